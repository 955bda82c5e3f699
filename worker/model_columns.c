#include "worker/model_columns.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/number.h"

/* ---- written ---- */

/* Bytes of the character at `at`; 0: it is none (RFC 3629). A NUL ends every comparison. */
static unsigned utf8_bytes(const uint8_t *at)
{
    /* The second byte's range, for each first byte that has one of its own. */
    const uint8_t lo = *at == 0xe0 ? 0xa0 : *at == 0xf0 ? 0x90 : 0x80;
    const uint8_t hi = *at == 0xed ? 0x9f : *at == 0xf4 ? 0x8f : 0xbf;
    unsigned n = *at < 0x80 ? 1 : *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : 4;

    if (n > 1 && (*at < 0xc2 || *at > 0xf4 || at[1] < lo || at[1] > hi))
        return 0;
    for (unsigned i = 2; i < n; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

static bool is_utf8(const char *text)
{
    const uint8_t *at = (const uint8_t *)text;
    unsigned n = 1;

    for (; *at && n; at += n)
        n = utf8_bytes(at);
    return n > 0;
}

/* A name of other bytes than UTF-8 is written as if it were Latin-1: JSON has no bytes. Its seed stands beside it. */
static void add_text(cJSON *object, const char *key, const char *text)
{
    char utf8[2 * SETTINGS_TEXT_MAX + 1];
    size_t n = 0;

    if (is_utf8(text)) {
        cJSON_AddStringToObject(object, key, text);
        return;
    }
    for (; *text && n + 2 < sizeof utf8; text++) {
        uint8_t c = (uint8_t)*text;

        if (c >= 0x80)
            utf8[n++] = (char)(0xc0 | c >> 6);
        utf8[n++] = (char)(c >= 0x80 ? 0x80 | (c & 0x3f) : c);
    }
    utf8[n] = '\0';
    cJSON_AddStringToObject(object, key, utf8);
}

/* 64 bits are more than a JSON number is sure to keep. */
static void add_u64(cJSON *object, const char *key, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%" PRIu64, value);
    cJSON_AddStringToObject(object, key, text);
}

static void add_numeric(cJSON *root, const struct settings *s, const struct schema *schema)
{
    static const char *const transforms[] = { [LINE_PARSER_LOG1P] = "log1p",
                                              [LINE_PARSER_STANDARDISE] = "standardise",
                                              [LINE_PARSER_RAW] = "raw" };
    const struct line_parser_plan *plan = schema_plan(schema);
    cJSON *object = cJSON_AddObjectToObject(root, "numeric"), *item;
    cJSON *columns = cJSON_AddArrayToObject(object, "columns");
    char name[SCHEMA_NAME_MAX];

    for (uint32_t i = 0; i < schema_n_numeric(schema); i++) {
        cJSON_AddItemToArray(columns, item = cJSON_CreateObject());
        schema_numeric_id(schema, i, name);
        add_text(item, "name", name);
    }
    cJSON_AddStringToObject(object, "transform", transforms[plan->numeric_as]);
    cJSON_AddNumberToObject(object, "missing", 0);
    if (!settings_n_hats(s))
        return;
    cJSON_AddNumberToObject(object, "hats", settings_n_hats(s));
    cJSON_AddNumberToObject(object, "first_hat", (double)settings_first_hat(s));
}

/* The tables of its rows, where they are not JOB/emb and JOB/wide. */
static void add_rows(cJSON *item, const struct settings *s, uint32_t field)
{
    const uint32_t group = field_tables_of(s->fields, field),
                   dim = settings_dim(field_tables_settings(s, group));
    const char *tail = field_tables_tail(s->fields, group);
    char name[sizeof "emb" + SCHEMA_NAME_MAX];

    if (!tail[0])
        return;
    snprintf(name, sizeof name, "emb%s", tail);
    cJSON_AddStringToObject(item, "rows", name);
    if (dim == settings_dim(s))
        return;
    cJSON_AddNumberToObject(item, "dim", dim);
    snprintf(name, sizeof name, "proj.%u", group);
    cJSON_AddStringToObject(item, "projection", name);
}

static void add_features(cJSON *root, const struct settings *s, const struct schema *schema)
{
    const struct line_parser_plan *plan = schema_plan(schema);
    cJSON *features = cJSON_AddArrayToObject(root, "features"), *item;
    char name[SCHEMA_NAME_MAX];

    for (uint32_t i = 0; i < schema_n_fields(schema); i++) {
        cJSON_AddItemToArray(features, item = cJSON_CreateObject());
        schema_field_id(schema, i, name);
        add_text(item, "name", name);
        cJSON_AddStringToObject(item, "kind", plan->fields[i].is_bucket ? "bucket" : "token");
        schema_field_id(schema, schema_field_table(schema, i), name);
        add_text(item, "table", name);
        add_rows(item, s, i);
        if (field_tables_has_mean(s->fields, i))
            cJSON_AddStringToObject(item, "pooling", "mean");
        add_u64(item, "seed", plan->fields[i].seed);
        if (plan->fields[i].space)
            add_u64(item, "hash_space", plan->fields[i].space);
    }
}

/* "label": the one label, or the names of several with commas between, one for each probability. */
static void add_labels(cJSON *root, const struct schema *schema)
{
    char names[LINE_PARSER_LABELS_MAX * SCHEMA_NAME_MAX] = "", name[SCHEMA_NAME_MAX];
    size_t n = 0;

    for (uint32_t i = 0; i < schema_n_labels(schema); i++) {
        schema_label_id(schema, i, name);
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? "," : "", name);
    }
    add_text(root, "label", names);
}

void model_columns_describe(cJSON *root, const struct settings *s, const struct schema *schema)
{
    const struct line_parser_plan *plan = schema_plan(schema);

    add_labels(root, schema);
    add_numeric(root, s, schema);
    add_features(root, s, schema);
    add_text(root, "missing", plan->missing);
    cJSON_AddStringToObject(root, "missing_as", plan->missing_has_key ? "key" : "skip");
    add_text(root, "inner_separator", plan->inner_separator);
}

/* ---- read ---- */

static const cJSON *get(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static const char *member_text(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(get(object, name));

    return text ? text : "";
}

/* The place of the text in a list that ends with NULL; -1: it is not there. */
static int index_of(const char *const *list, const char *text)
{
    for (int i = 0; list[i]; i++)
        if (strcmp(list[i], text) == 0)
            return i;
    return -1;
}

/* Lists of columns in settings are divided at commas, and blanks around a name do not count. */
static int check_name(const struct settings *s, const char *name, struct err *err)
{
    const size_t len = strlen(name);

    if (len && !strchr(name, ',') && strcmp(name, "*") != 0 && name[0] != ' ' &&
        name[len - 1] != ' ')
        return 0;
    return err_set(err, PS_ESPEC,
                   "job \"%s\": its record has a column '%.40s', which no list can name: give "
                   "--format, --columns or --data as in its training",
                   s->job, name);
}

/* Adds the names of these items to the list, of those with this `kind` alone; NULL: all. */
static int put_names(FILE *out, const struct settings *s, const cJSON *items, const char *kind,
                     struct err *err)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, items)
    {
        const char *name = member_text(item, "name");

        if (kind && strcmp(member_text(item, "kind"), kind) != 0)
            continue;
        if (check_name(s, name, err))
            return PS_ESPEC;
        fprintf(out, "%s%s", ftell(out) ? "," : "", name);
    }
    return 0;
}

/* Groups of features that share a table: "a,b;c,d". */
static void put_shared(FILE *out, const cJSON *features)
{
    const cJSON *first, *item;

    cJSON_ArrayForEach(first, features)
    {
        const char *name = member_text(first, "name");
        uint32_t n = 0;

        if (strcmp(member_text(first, "table"), name) != 0)
            continue;
        for (item = first->next; item; item = item->next) {
            if (strcmp(member_text(item, "table"), name) != 0)
                continue;
            if (!n++)
                fprintf(out, "%s%s", ftell(out) ? ";" : "", name);
            fprintf(out, ",%s", member_text(item, "name"));
        }
    }
}

enum list {
    LIST_COLUMNS,
    LIST_NUMERIC,
    LIST_CATEGORICAL,
    LIST_BUCKETISE,
    LIST_SHARED,
    N_LISTS
};

/* The lists of a schema's settings, each to be freed. */
static int make_lists(const struct settings *s, const cJSON *root, char *lists[N_LISTS],
                      struct err *err)
{
    const cJSON *numeric = get(get(root, "numeric"), "columns");
    const cJSON *features = get(root, "features");
    int status = 0;

    for (int i = 0; i < N_LISTS && !status; i++) {
        size_t n_bytes;
        FILE *out = open_memstream(&lists[i], &n_bytes);

        if (!out)
            return err_set(err, -ENOMEM, "no memory for the names of columns");
        if (i == LIST_COLUMNS || i == LIST_NUMERIC)
            status = put_names(out, s, numeric, NULL, err);
        if (!status && (i == LIST_COLUMNS || i == LIST_CATEGORICAL))
            status = put_names(out, s, features, "token", err);
        if (!status && (i == LIST_COLUMNS || i == LIST_BUCKETISE))
            status = put_names(out, s, features, "bucket", err);
        if (i == LIST_SHARED)
            put_shared(out, features);
        if (fclose(out) && !status)
            status = err_set(err, -ENOMEM, "no memory for the names of columns");
    }
    return status;
}

static int adopt_schema(struct settings *s, const cJSON *root, struct schema **ret,
                        struct err *err)
{
    static const char *const transforms[] = { "log1p", "standardise", "raw", NULL };
    const int as = index_of(transforms, member_text(get(root, "numeric"), "transform"));
    char *lists[N_LISTS] = { NULL };
    int status = make_lists(s, root, lists, err);
    struct schema_text text;

    if (!status && as < 0)
        status =
            err_set(err, PS_ESPEC, "job \"%s\": its record has an unknown transform", s->job);
    if (!status) {
        s->numeric_as = as;
        text = (struct schema_text){
            .delimiter = "\001", /* there are no lines */
            .columns = lists[LIST_COLUMNS],
            .numeric = lists[LIST_NUMERIC],
            .categorical = lists[LIST_CATEGORICAL],
            .bucketise = lists[LIST_BUCKETISE],
            .shared = lists[LIST_SHARED],
            .missing = member_text(root, "missing"),
            .missing_as = strcmp(member_text(root, "missing_as"), "skip") == 0
                              ? SCHEMA_MISSING_SKIP
                              : SCHEMA_MISSING_KEY,
            .inner_separator = member_text(root, "inner_separator"),
            .numeric_as = (enum schema_numeric)as,
        };
        status = schema_new(&text, NULL, ret, err);
    }
    for (int i = 0; i < N_LISTS; i++)
        free(lists[i]);
    return status;
}

static uint64_t space_of(const cJSON *feature)
{
    uint64_t space = 0;

    return number_read_u64(member_text(feature, "hash_space"), &space) ? 0 : space;
}

static int adopt_fields(struct settings *s, const cJSON *root, struct schema *schema,
                        struct field_tables **ret, struct err *err)
{
    struct field_tables_field *fields =
        memory_alloc((schema_n_fields(schema) + 1) * sizeof *fields);
    const cJSON *item;
    uint32_t f = 0;
    int status = 0;

    cJSON_ArrayForEach(item, get(root, "features"))
    {
        const char *rows = member_text(item, "rows");
        const double dim = cJSON_GetNumberValue(get(item, "dim"));

        if (f == schema_n_fields(schema))
            break;
        fields[f++] = (struct field_tables_field){
            .tail = strncmp(rows, "emb.", 4) == 0 ? rows + 3 : "",
            .dim = dim >= 1 && dim <= 4096 ? (uint32_t)dim : s->dim,
            .space = space_of(item),
            .has_mean = strcmp(member_text(item, "pooling"), "mean") == 0,
        };
    }
    if (s->field.n)
        status = err_set(err, PS_ESPEC,
                         "--field: the record of job \"%s\" says which tables its fields have: "
                         "leave it out",
                         s->job);
    if (!status && f == schema_n_fields(schema))
        status = field_tables_adopt(s, schema, fields, ret, err);
    s->fields = *ret;
    free(fields);
    return status;
}

int model_columns_adopt(struct settings *s, const cJSON *root, struct schema **ret,
                        struct field_tables **ret_fields, struct err *err)
{
    int status;

    *ret = NULL;
    *ret_fields = NULL;
    status = adopt_schema(s, root, ret, err);
    if (!status)
        status = adopt_fields(s, root, *ret, ret_fields, err);
    if (status) {
        schema_free(*ret);
        *ret = NULL;
    }
    return status;
}

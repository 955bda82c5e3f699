#include "worker/field_tables.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/suggest.h"
#include "worker/model/dlrm_config.h"

#define TAIL_MAX 60u /* with NUL: the name of a table holds it behind a job's of 63 bytes */

/* What an option is of. */
enum option_kind {
    OF_TABLE,
    OF_EMBEDDINGS, /* of a table of rows with more than a first-order weight, which starts at 0 */
    OF_BAG,        /* of a field, and of such rows: fields of one table can differ in it */
    OF_KEYS,       /* of a field, and of those that share its table by --share-table */
    OF_SHARING
};

/* Settings that can be those of a field; what they are about where a model has nothing of the kind. */
static const struct option {
    const char *name;
    enum option_kind kind;
} options[] = {
    { "dim", OF_EMBEDDINGS },
    { "init", OF_EMBEDDINGS },
    { "init-scale", OF_EMBEDDINGS },
    { "cardinality", OF_EMBEDDINGS },
    { "pooling", OF_BAG },
    { "hash-space", OF_KEYS },
    { "share-table", OF_SHARING },
    { "optimizer", OF_TABLE },
    { "lr", OF_TABLE },
    { "epsilon", OF_TABLE },
    { "momentum", OF_TABLE },
    { "nesterov", OF_TABLE },
    { "beta1", OF_TABLE },
    { "beta2", OF_TABLE },
    { "weight-decay", OF_TABLE },
    { "initial-accumulator", OF_TABLE },
    { "ftrl-beta", OF_TABLE },
    { "ftrl-l1", OF_TABLE },
    { "ftrl-l2", OF_TABLE },
    { "clip-norm", OF_TABLE },
    { "row-decay", OF_TABLE },
    { "table-storage", OF_TABLE },
    { "table-max", OF_TABLE },
    { "table-full", OF_TABLE },
    { "admit-touches", OF_TABLE },
    { "admit-clocks", OF_TABLE },
    { "idle-clocks", OF_TABLE },
    { "ttl", OF_TABLE },
    { "rare-touches", OF_TABLE },
    { "rare-clocks", OF_TABLE },
    { "push-codec", OF_TABLE },
    { "pull-codec", OF_TABLE },
};

struct group {
    struct settings *s; /* owned; its lists are borrowed of the job's */
    char tail[TAIL_MAX];
    uint32_t n_fields;
};

struct field_tables {
    uint32_t n;
    struct group groups[FIELD_TABLES_MAX];
    struct batch_groups batch;
    uint8_t of_field[LINE_PARSER_COLUMNS_MAX];
    bool has_mean[LINE_PARSER_COLUMNS_MAX]; /* of each field */
};

/* ---- items ---- */

/* "NAME:OPTION=VALUE,..." */
struct item {
    char name[SETTINGS_TEXT_MAX];
    char options[SETTINGS_TEXT_MAX];
};

static int split_item(const char *text, struct item *ret, struct err *err)
{
    const char *colon = strrchr(text, ':');

    if (!colon || colon == text || !colon[1])
        return err_set(
            err, PS_ESETTING,
            "--field \"%.60s\": expected is COLUMN:OPTION=VALUE,..., such as C1:lr=0.1", text);
    snprintf(ret->name, sizeof ret->name, "%.*s", (int)(colon - text), text);
    snprintf(ret->options, sizeof ret->options, "%s", colon + 1);
    return 0;
}

static const struct option *find_option(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(options); i++)
        if (strcmp(options[i].name, name) == 0)
            return &options[i];
    return NULL;
}

static int refuse_option(const char *column, const char *name, struct err *err)
{
    struct suggest near;

    suggest_init(&near, name);
    for (size_t i = 0; i < COUNT_OF(options); i++)
        suggest_offer(&near, options[i].name);
    return near.name
               ? err_set(err, PS_ESETTING,
                         "--field %.60s: unknown option \"%.40s\"; did you mean \"%s\"?",
                         column, name, near.name)
               : err_set(err, PS_ESETTING,
                         "--field %.60s: unknown option \"%.40s\": a field can have init, "
                         "optimizer, lr and others of a table (psworker's reference, "
                         "\"field\")",
                         column, name);
}

static bool has_embeddings(const struct settings *s)
{
    return (dlrm_config_parts((enum model_kind)s->model) & MODEL_EMBEDDINGS) != 0;
}

static int set_option(struct settings *to, const char *column, const char *name,
                      const char *value, struct err *err)
{
    const struct option *option = find_option(name);
    struct err why = { 0 };

    if (!option)
        return refuse_option(column, name, err);
    if ((option->kind == OF_EMBEDDINGS || option->kind == OF_BAG) && !has_embeddings(to))
        return err_set(
            err, PS_ESETTING,
            "--field %.60s: --model %s has first-order weights, which start at 0 and "
            "are summed; leave %s out",
            column, dlrm_config_kind_name((enum model_kind)to->model), name);
    return settings_set(&settings_worker, to, name, value, &why)
               ? err_set(err, PS_ESETTING, "--field %.60s: %.400s", column, why.text)
               : 0;
}

/* The learning rate of another optimizer than the job's is not the job's. */
static void reset_rate(struct settings *to, const struct settings *before)
{
    if (to->optimizer != before->optimizer)
        to->lr = 0;
}

static int apply_item(struct settings *to, const struct item *item, struct err *err)
{
    char list[SETTINGS_TEXT_MAX], *rest = list, *name;
    struct settings *before = memory_alloc(sizeof *before);
    int status = 0;

    *before = *to;
    memcpy(list, item->options, sizeof list);
    while (!status && (name = strsep(&rest, ",")) != NULL) {
        char *value = strchr(name, '=');

        if (!value || value == name)
            status = err_set(err, PS_ESETTING,
                             "--field %.60s: \"%.60s\" is not OPTION=VALUE, such as lr=0.1",
                             item->name, name);
        if (status)
            break;
        *value++ = '\0';
        status = set_option(to, item->name, name, value, err);
        if (strcmp(name, "optimizer") == 0)
            reset_rate(to, before);
    }
    free(before);
    return status;
}

static int check_codec(const struct settings *s, const struct settings *job,
                       enum codec_policy_direction direction, const char *name, struct err *err)
{
    enum codec_id codec;

    if (!settings_codec(s, direction, &codec) || settings_codec(job, direction, &codec))
        return 0;
    return err_set(err, PS_ESETTING, "%s auto is chosen for all tables at once: give --%s auto",
                   name, name);
}

/* The options of one field are held against each other as the job's settings are. */
static int check_options(const struct settings *s, const struct settings *job,
                         const char *column, struct err *err)
{
    struct err why = { 0 };
    int status = settings_check_rows(s, &why);

    if (!status && s->init == TABLE_SPEC_INIT_END && s->init_scale > 0)
        status = err_set(&why, PS_ESETTING,
                         "init-scale says how wide rows start: leave it out with init auto");
    if (!status)
        status = check_codec(s, job, CODEC_POLICY_ROWS_PUSH, "push-codec", &why);
    if (!status)
        status = check_codec(s, job, CODEC_POLICY_ROWS_PULL, "pull-codec", &why);
    return status ? err_set(err, PS_ESETTING, "--field %.60s: %.400s", column, why.text) : 0;
}

/* The job's settings, as a field without options has them. */
static void start_options(struct settings *to, const struct settings *s)
{
    *to = *s;
    to->fields = NULL;
    to->cardinality = 0;
    to->share_table[0] = '\0'; /* the schema has the job's */
}

/* ---- columns ---- */

static bool is_position(const char *text)
{
    return text[0] && text[strspn(text, "0123456789")] == '\0';
}

static bool is_called(const struct schema *schema, uint32_t field, const char *name)
{
    char id[SCHEMA_NAME_MAX];

    schema_field_id(schema, field, id);
    if (strcmp(id, name) == 0)
        return true;
    return is_position(name) && strtoul(name, NULL, 10) == schema_field_column(schema, field);
}

static bool matches(const struct schema *schema, uint32_t field, const char *name)
{
    char id[SCHEMA_NAME_MAX];

    schema_field_id(schema, field, id);
    return is_called(schema, field, name) || fnmatch(name, id, 0) == 0;
}

static int refuse_name(const struct schema *schema, const char *name, struct err *err)
{
    char ids[LINE_PARSER_COLUMNS_MAX][SCHEMA_NAME_MAX], id[SCHEMA_NAME_MAX];
    struct suggest near;

    for (uint32_t i = 0; i < schema_n_numeric(schema); i++) {
        schema_numeric_id(schema, i, id);
        if (strcmp(id, name) == 0)
            return err_set(err, PS_ESETTING,
                           "--field %.60s: that is a numeric column, and has no rows", name);
    }
    if (strpbrk(name, "*?["))
        return err_set(err, PS_ESETTING,
                       "--field %.60s: no categorical column has a name like that", name);
    suggest_init(&near, name);
    for (uint32_t f = 0; f < schema_n_fields(schema); f++) {
        schema_field_id(schema, f, ids[f]);
        suggest_offer(&near, ids[f]);
    }
    return err_set(err, PS_ESETTING,
                   near.name
                       ? "--field %.60s: there is no such categorical column; did you mean "
                         "\"%s\"?"
                       : "--field %.60s: there is no such categorical column",
                   name, near.name);
}

static int check_names(const struct settings *s, const struct schema *schema,
                       const struct item *items, struct err *err)
{
    for (uint32_t i = 0; i < s->field.n; i++) {
        bool found = false;

        for (uint32_t f = 0; f < schema_n_fields(schema) && !found; f++)
            found = matches(schema, f, items[i].name);
        if (!found)
            return refuse_name(schema, items[i].name, err);
    }
    return 0;
}

/* ---- groups ---- */

static const struct setting *row_named(const char *name)
{
    const struct setting *row = settings_worker.rows;

    while (strcmp(row->name, name) != 0)
        row++;
    return row;
}

/* The first option of a table in which they differ; NULL: they are alike. */
static const char *differing(const struct settings *a, const struct settings *b)
{
    for (size_t i = 0; i < COUNT_OF(options); i++)
        if (options[i].kind <= OF_EMBEDDINGS &&
            !settings_row_is_equal(row_named(options[i].name), a, b))
            return options[i].name;
    return NULL;
}

/* Each has as many keys as it has. */
static bool has_own_table(const struct settings *s)
{
    return s->init == TABLE_SPEC_INIT_END && !s->cardinality && has_embeddings(s);
}

/* Bytes that a table's name cannot have are written as %XX; a name that is then too long is a number. */
static void write_tail(const struct schema *schema, uint32_t field, char ret[TAIL_MAX])
{
    char id[SCHEMA_NAME_MAX];
    size_t n = 1;

    schema_field_id(schema, field, id);
    ret[0] = '.';
    for (const char *at = id; *at; at++) {
        const bool is_plain = *at > ' ' && *at < 0x7f && *at != '%';

        if (n + 4 > TAIL_MAX) {
            snprintf(ret, TAIL_MAX, ".%%%016llx", (unsigned long long)schema_seed(id));
            return;
        }
        n += (size_t)snprintf(ret + n, TAIL_MAX - n, is_plain ? "%c" : "%%%02X", (uint8_t)*at);
    }
}

static int add_group(struct field_tables *t, const struct schema *schema, uint32_t field,
                     const struct settings *s, uint32_t *ret, struct err *err)
{
    struct group *group = &t->groups[t->n];

    if (t->n == FIELD_TABLES_MAX)
        return err_set(err, PS_ESETTING,
                       "--field: more than %u tables; give fields the same options, or --init "
                       "auto a cardinality",
                       FIELD_TABLES_MAX);
    group->s = memory_alloc(sizeof *group->s);
    *group->s = *s;
    write_tail(schema, field, group->tail);
    *ret = t->n++;
    return 0;
}

/* Fields of one table (--share-table) are in the group of its first field, which stands before them. */
static int join_shared(struct field_tables *t, const struct schema *schema, uint32_t field,
                       const struct settings *s, uint32_t *ret, struct err *err)
{
    const struct line_parser_plan *plan = schema_plan(schema);
    const uint32_t first = schema_field_table(schema, field);
    const char *option = differing(t->groups[t->of_field[first]].s, s);
    char a[SCHEMA_NAME_MAX], b[SCHEMA_NAME_MAX];

    *ret = t->of_field[first];
    if (!option && plan->fields[first].space != plan->fields[field].space)
        option = "hash-space";
    if (!option)
        return 0;
    schema_field_id(schema, first, a);
    schema_field_id(schema, field, b);
    return err_set(
        err, PS_ESETTING,
        "--field: columns '%s' and '%s' have one table (share-table), and differ in %s: give "
        "both the same",
        a, b, option);
}

static int find_group(struct field_tables *t, const struct schema *schema, uint32_t field,
                      const struct settings *s, uint32_t *ret, struct err *err)
{
    if (schema_field_table(schema, field) != field)
        return join_shared(t, schema, field, s, ret, err);
    for (*ret = 0; *ret < t->n && !has_own_table(s); ++*ret)
        if (!differing(t->groups[*ret].s, s))
            return 0;
    return add_group(t, schema, field, s, ret, err);
}

/* The start of what is told. */
static void set_scale(struct settings *s, uint64_t cardinality)
{
    s->auto_scale = cardinality ? (float)(1 / sqrt((double)cardinality)) : 0;
}

/* The settings of a field, in *s; *ret_name: of the last item that it has. */
static int apply_items(const struct settings *job, const struct schema *schema, uint32_t field,
                       const struct item *items, struct settings *s, const char **ret_name,
                       struct err *err)
{
    int status = 0;

    *ret_name = "*";
    start_options(s, job);
    for (uint32_t i = 0; i < job->field.n && !status; i++)
        if (matches(schema, field, items[i].name)) {
            status = apply_item(s, &items[i], err);
            *ret_name = items[i].name;
        }
    return status;
}

/* The option share-table, before tables are made: it names one column, before or behind this one. */
static int share_field(const struct settings *job, struct schema *schema, uint32_t field,
                       const struct item *items, struct settings *s, struct err *err)
{
    const char *name;
    uint32_t with = 0;
    int status = apply_items(job, schema, field, items, s, &name, err);

    if (status || !s->share_table[0])
        return status;
    while (with < schema_n_fields(schema) && !is_called(schema, with, s->share_table))
        with++;
    if (with == schema_n_fields(schema))
        return err_set(err, PS_ESETTING,
                       "--field %.60s: share-table=%.60s: expected is the name of one "
                       "categorical column",
                       name, s->share_table);
    return schema_share(schema, field, with, err);
}

static int add_field(struct field_tables *t, const struct settings *job, struct schema *schema,
                     uint32_t field, const struct item *items, struct settings *s,
                     struct err *err)
{
    const char *name;
    uint32_t group = 0;
    int status = apply_items(job, schema, field, items, s, &name, err);

    if (!status)
        status = check_options(s, job, name, err);
    if (s->init != TABLE_SPEC_INIT_END)
        s->cardinality = 0; /* nothing asks for it */
    set_scale(s, s->cardinality);
    schema_set_space(schema, field, s->hash_space);
    if (!status)
        status = find_group(t, schema, field, s, &group, err);
    if (status)
        return status;
    t->of_field[field] = (uint8_t)group;
    t->has_mean[field] = s->pooling == POOLING_MEAN;
    t->groups[group].n_fields++;
    return 0;
}

static int make(struct field_tables *t, const struct settings *s, struct schema *schema,
                struct err *err)
{
    struct item *items = memory_alloc((s->field.n + 1) * sizeof *items);
    struct settings *scratch = memory_alloc(sizeof *scratch);
    int status = 0;

    t->groups[0].s = memory_alloc(sizeof *t->groups[0].s);
    start_options(t->groups[0].s, s);
    t->n = 1;
    for (uint32_t i = 0; i < s->field.n && !status; i++)
        status = split_item(s->field.items[i], &items[i], err);
    if (!status)
        status = check_names(s, schema, items, err);
    for (uint32_t f = 0; f < schema_n_fields(schema) && !status; f++)
        status = share_field(s, schema, f, items, scratch, err);
    for (uint32_t f = 0; f < schema_n_fields(schema) && !status; f++)
        status = add_field(t, s, schema, f, items, scratch, err);
    t->batch = (struct batch_groups){ t->n, t->of_field };
    free(scratch);
    free(items);
    return status;
}

static bool is_plain(const struct settings *s)
{
    return !s->field.n && !s->hash_space && s->pooling != POOLING_MEAN &&
           (s->init != TABLE_SPEC_INIT_END || !has_embeddings(s));
}

/* Nothing of it differs from one table for all. */
static bool is_trivial(const struct field_tables *t)
{
    for (uint32_t f = 0; f < COUNT_OF(t->has_mean); f++)
        if (t->has_mean[f])
            return false;
    return t->n == 1;
}

int field_tables_new(const struct settings *s, struct schema *schema, struct field_tables **ret,
                     struct err *err)
{
    struct field_tables *t;
    int status;

    *ret = NULL;
    if (is_plain(s))
        return 0;
    t = memory_alloc(sizeof *t);
    *t = (struct field_tables){ 0 };
    status = make(t, s, schema, err);
    if (status || is_trivial(t)) {
        field_tables_free(t);
        return status;
    }
    *ret = t;
    return 0;
}

static int adopt_field(struct field_tables *t, const struct settings *s, uint32_t field,
                       const struct field_tables_field *as, struct err *err)
{
    const char *tail = as->tail;
    uint32_t g = 0;

    while (g < t->n && strcmp(t->groups[g].tail, tail) != 0)
        g++;
    if (g == FIELD_TABLES_MAX || strlen(tail) >= TAIL_MAX || (tail[0] && tail[0] != '.'))
        return err_set(err, PS_ESPEC,
                       "job \"%s\": its record has a table emb%.80s, which this psworker knows "
                       "nothing of",
                       s->job, tail);
    if (g == t->n) {
        t->groups[g].s = memory_alloc(sizeof *t->groups[g].s);
        start_options(t->groups[g].s, s);
        snprintf(t->groups[g].tail, TAIL_MAX, "%s", tail);
        t->groups[g].s->dim = as->dim;
        t->n++;
    }
    t->of_field[field] = (uint8_t)g;
    t->has_mean[field] = as->has_mean;
    t->groups[g].n_fields++;
    return 0;
}

int field_tables_adopt(const struct settings *s, struct schema *schema,
                       const struct field_tables_field *fields, struct field_tables **ret,
                       struct err *err)
{
    struct field_tables *t = memory_alloc(sizeof *t);
    int status = 0;

    *t = (struct field_tables){ .n = 1 };
    *ret = NULL;
    t->groups[0].s = memory_alloc(sizeof *t->groups[0].s);
    start_options(t->groups[0].s, s);
    for (uint32_t f = 0; f < schema_n_fields(schema) && !status; f++) {
        schema_set_space(schema, f, fields[f].space);
        status = adopt_field(t, s, f, &fields[f], err);
    }
    t->batch = (struct batch_groups){ t->n, t->of_field };
    if (status || is_trivial(t)) {
        field_tables_free(t);
        return status;
    }
    *ret = t;
    return 0;
}

void field_tables_free(struct field_tables *t)
{
    if (!t)
        return;
    for (uint32_t g = 0; g < t->n; g++)
        free(t->groups[g].s);
    free(t);
}

uint32_t field_tables_n(const struct field_tables *t)
{
    return t ? t->n : 1;
}

uint32_t field_tables_of(const struct field_tables *t, uint32_t field)
{
    return t ? t->of_field[field] : 0;
}

bool field_tables_has_mean(const struct field_tables *t, uint32_t field)
{
    return t && t->has_mean[field];
}

const struct batch_groups *field_tables_groups(const struct field_tables *t)
{
    return t && t->n > 1 ? &t->batch : NULL;
}

const char *field_tables_tail(const struct field_tables *t, uint32_t group)
{
    return t ? t->groups[group].tail : "";
}

bool field_tables_has_fields(const struct field_tables *t, uint32_t group)
{
    return !t || t->groups[group].n_fields > 0;
}

const struct settings *field_tables_settings(const struct settings *s, uint32_t group)
{
    return s->fields ? s->fields->groups[group].s : s;
}

static bool wants_count(const struct group *group)
{
    return group->n_fields && has_own_table(group->s);
}

bool field_tables_want_counts(const struct field_tables *t)
{
    bool wants = false;

    for (uint32_t g = 0; g < field_tables_n(t) && t; g++)
        wants = wants || wants_count(&t->groups[g]);
    return wants;
}

void field_tables_set_counts(struct field_tables *t, const uint64_t *counts)
{
    for (uint32_t g = 0; g < t->n; g++)
        if (wants_count(&t->groups[g]))
            set_scale(t->groups[g].s, counts[g]);
}

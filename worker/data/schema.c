#include "worker/data/schema.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/memory.h"
#include "worker/data/columns.h"
#include "worker/data/line_parser_simd.h"
#include "worker/data/line_reader.h"
#include "worker/data/parquet_file.h"

static_assert(COLUMNS_NAME_MAX == SCHEMA_NAME_MAX, "one limit");

#define DELIMITER_MAX 16u /* bytes, with NUL */
#define CRITEO_N_NUMERIC 13u
#define CRITEO_N_CATEGORICAL 26u
#define PRESETS "criteo, criteo-unlabelled"

struct schema {
    struct line_parser_plan plan, unlabelled;
    struct columns columns; /* owned */
    const char **names,
        **unlabelled_names; /* owned, into columns; unlabelled: without the label's */
    enum schema_keys keys;
    uint16_t
        tables[LINE_PARSER_COLUMNS_MAX]; /* of each field: the first of its group, or itself */
    bool has_header;
    char delimiter[DELIMITER_MAX];
    char *missing, *inner_separator, *label_positive; /* owned */
    struct line_parser_span *positive;                /* owned, into label_positive */
    float *mean, *std;                                /* owned */
    float *log1p_table;                               /* owned */
    struct line_parser_simd *simd; /* owned; NULL where the plan does not fit */
};

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

static int no_memory(struct err *err)
{
    return err_set(err, -ENOMEM, "no memory for the schema");
}

/* ---- the texts ---- */

static int unescape(const char *setting, const char *text, char to[DELIMITER_MAX],
                    struct err *err)
{
    size_t n = 0;

    for (const char *at = text; *at; at++) {
        char c = *at;

        if (n == DELIMITER_MAX - 1)
            return err_set(err, PS_ESETTING, "%s: longer than %u characters", setting,
                           DELIMITER_MAX - 1);
        if (c == '\\') {
            c = *++at;
            c = c == 't' ? '\t' : c == 's' ? ' ' : c == '\\' ? '\\' : '\0';
            if (!c)
                return err_set(err, PS_ESETTING,
                               "%s: '%s': \\t \\s and \\\\ are known behind a \\", setting,
                               text);
        }
        to[n++] = c;
    }
    to[n] = '\0';
    return 0;
}

static int copy_text(char **ret, const char *text, struct err *err)
{
    size_t n_bytes = strlen(or_empty(text)) + 1;

    *ret = memory_try_alloc(n_bytes);
    if (!*ret)
        return no_memory(err);
    memcpy(*ret, or_empty(text), n_bytes);
    return 0;
}

static int set_quote(struct schema *s, const char *quote, struct err *err)
{
    if (!quote[0])
        return 0;
    if (quote[1] || quote[0] == s->delimiter[0] || s->delimiter[1])
        return err_set(
            err, PS_ESETTING,
            "quote: '%s': one character expected, beside a delimiter of one other character",
            quote);
    s->plan.quote = quote[0];
    return 0;
}

/* label_positive, cut at its commas. */
static int set_positive(struct schema *s, struct err *err)
{
    const char *cursor = s->label_positive[0] ? s->label_positive : NULL, *item;
    uint32_t n_max = 1;
    size_t len = 0;

    for (const char *at = s->label_positive; *at; at++)
        n_max += *at == ',';
    s->positive = memory_try_alloc(n_max * sizeof *s->positive);
    if (!s->positive)
        return no_memory(err);
    while ((item = columns_next_item(&cursor, &len)) != NULL) {
        if (len == 0)
            return err_set(err, PS_ESETTING, "label-positive: an empty token in '%.100s'",
                           s->label_positive);
        s->positive[s->plan.n_positive++] =
            (struct line_parser_span){ s->label_positive + (item - s->label_positive), len };
    }
    s->plan.positive = s->positive;
    return 0;
}

static int set_texts(struct schema *s, const struct schema_text *text, struct err *err)
{
    bool preset = or_empty(text->preset)[0] != '\0';
    int status =
        unescape("delimiter", preset ? "\t" : or_empty(text->delimiter), s->delimiter, err);

    if (!status && !s->delimiter[0])
        status = err_set(err, PS_ESETTING, "delimiter: empty; \\t or , expected, for example");
    if (!status)
        status = copy_text(&s->missing, text->missing, err);
    if (!status)
        status = copy_text(&s->inner_separator, text->inner_separator, err);
    if (!status && s->inner_separator[0] && strstr(s->inner_separator, s->delimiter))
        status = err_set(err, PS_ESETTING, "inner-separator: '%s' holds the delimiter",
                         s->inner_separator);
    if (!status)
        status = copy_text(&s->label_positive, text->label_positive, err);
    if (!status)
        status = set_positive(s, err);
    if (!status)
        status = set_quote(s, or_empty(text->quote), err);
    s->plan.delimiter = s->delimiter;
    s->plan.missing = s->missing;
    s->plan.inner_separator = s->inner_separator;
    s->plan.missing_has_key = text->missing_as == SCHEMA_MISSING_KEY;
    s->has_header = text->header && !preset;
    return status;
}

/* ---- the columns ---- */

static int use_preset(struct schema *s, const struct schema_text *text, struct err *err)
{
    bool unlabelled = strcmp(text->preset, "criteo-unlabelled") == 0;
    uint32_t n_label = unlabelled ? 0 : 1;
    const uint32_t n = n_label + CRITEO_N_NUMERIC + CRITEO_N_CATEGORICAL;
    int status;

    if (!unlabelled && strcmp(text->preset, "criteo") != 0)
        return err_set(err, PS_ESETTING, "--format: \"%s\" is unknown; there are " PRESETS,
                       text->preset);
    if (or_empty(text->columns)[0] || or_empty(text->label)[0] || or_empty(text->numeric)[0] ||
        or_empty(text->categorical)[0])
        return err_set(
            err, PS_ESETTING,
            "preset: %s already says what columns, label, numeric and categorical are: "
            "leave these empty, or the preset",
            text->preset);
    status = columns_init(&s->columns, n, err);
    for (uint32_t i = 0; i < n && !status; i++) {
        uint32_t of_kind = i - n_label;
        bool numeric = i >= n_label && of_kind < CRITEO_N_NUMERIC;
        char name[16] = "label";

        if (i >= n_label)
            snprintf(name, sizeof name, "%c%u", numeric ? 'I' : 'C',
                     numeric ? of_kind + 1 : of_kind - CRITEO_N_NUMERIC + 1);
        s->columns.kinds[i] = i < n_label ? COLUMNS_LABEL
                              : numeric   ? COLUMNS_NUMERIC
                                          : COLUMNS_CATEGORICAL;
        status = columns_set_name(&s->columns, i, name, strlen(name), err);
    }
    s->columns.preset = true;
    return status;
}

static int use_name_list(struct schema *s, const char *list, struct err *err)
{
    const char *cursor = list, *item;
    uint32_t n = 1, i = 0;
    size_t len = 0;
    int status;

    for (const char *at = list; *at; at++)
        n += *at == ',';
    status = columns_init(&s->columns, n, err);
    while (!status && (item = columns_next_item(&cursor, &len)) != NULL)
        status = columns_set_name(&s->columns, i++, item, len, err);
    return status;
}

/* The number of columns, and with a header their names, as the first line has them. */
static int use_first_line(struct schema *s, const char *first_line, struct err *err)
{
    struct line_parser_span spans[LINE_PARSER_COLUMNS_MAX + 1];
    uint32_t n;
    char *line;
    int status = copy_text(&line, first_line, err);

    if (status)
        return status;
    n = line_parser_split(s->delimiter, s->plan.quote, line, strlen(line), spans,
                          LINE_PARSER_COLUMNS_MAX + 1);
    if (n == 0)
        status = err_set(err, PS_EDATA, "the first line: a quote is not closed");
    else
        status = columns_init(&s->columns, n, err);
    for (uint32_t i = 0; s->has_header && i < n && !status; i++)
        status = columns_set_name(&s->columns, i, spans[i].at, spans[i].len, err);
    free(line);
    return status;
}

static int use_parquet(struct schema *s, const struct parquet_file *file, struct err *err)
{
    const uint32_t n = parquet_file_n_columns(file);
    int status = columns_init(&s->columns, n, err);

    for (uint32_t i = 0; i < n && !status; i++) {
        const char *name = parquet_file_column(file, i)->name;

        status = columns_set_name(&s->columns, i, name, strlen(name), err);
    }
    return status;
}

static int find_columns(struct schema *s, const struct schema_text *text,
                        const char *first_line, const struct parquet_file *parquet,
                        struct err *err)
{
    if (or_empty(text->preset)[0])
        return use_preset(s, text, err);
    if (or_empty(text->columns)[0]) {
        if (text->header)
            return err_set(
                err, PS_ESETTING,
                "columns: names are given for files that have a header of their own");
        return use_name_list(s, text->columns, err);
    }
    if (parquet)
        return use_parquet(s, parquet, err);
    if (!first_line)
        return err_set(err, PS_ESETTING,
                       "the first line of the data is needed to know its columns");
    return use_first_line(s, first_line, err);
}

static int claim_columns(struct schema *s, const struct schema_text *text, struct err *err)
{
    const struct {
        const char *setting, *list;
        enum columns_kind kind;
    } lists[] = {
        { "label", or_empty(text->label), COLUMNS_LABEL },
        { "numeric", or_empty(text->numeric), COLUMNS_NUMERIC },
        { "categorical", or_empty(text->categorical), COLUMNS_CATEGORICAL },
        { "bucketise", or_empty(text->bucketise), COLUMNS_BUCKET },
        { "ignored", or_empty(text->ignored), COLUMNS_IGNORED },
    };
    uint32_t n_labels = 0;

    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        int status =
            columns_claim(&s->columns, lists[i].setting, lists[i].list, lists[i].kind, err);

        if (status)
            return status;
    }
    for (uint32_t i = 0; i < s->columns.n; i++)
        n_labels += s->columns.kinds[i] == COLUMNS_LABEL;
    if (n_labels > LINE_PARSER_LABELS_MAX || s->columns.rest == COLUMNS_LABEL)
        return err_set(err, PS_ESETTING, "label: '%s': one column expected, or up to %u",
                       text->label, LINE_PARSER_LABELS_MAX);
    columns_claim_rest(&s->columns);
    return 0;
}

/* ---- the plan ---- */

static void add_numerics(struct schema *s, enum schema_numeric numeric_as)
{
    struct line_parser_plan *p = &s->plan;

    for (uint32_t i = 0; i < s->columns.n; i++) {
        if (s->columns.kinds[i] != COLUMNS_NUMERIC)
            continue;
        if (numeric_as == SCHEMA_BUCKET)
            s->columns.kinds[i] = COLUMNS_BUCKET;
        else
            p->numeric_columns[p->n_numeric++] = (uint16_t)i;
    }
}

static void add_fields(struct schema *s, enum columns_kind kind)
{
    struct line_parser_plan *p = &s->plan;

    for (uint32_t i = 0; i < s->columns.n; i++)
        if (s->columns.kinds[i] == kind)
            p->fields[p->n_fields++] =
                (struct line_parser_field){ .column = (uint16_t)i,
                                            .is_bucket = kind == COLUMNS_BUCKET };
}

static int plan_columns(struct schema *s, enum schema_numeric numeric_as, struct err *err)
{
    struct line_parser_plan *p = &s->plan;

    p->n_columns = s->columns.n;
    for (uint32_t i = 0; i < s->columns.n; i++)
        if (s->columns.kinds[i] == COLUMNS_LABEL)
            p->label_columns[p->n_labels++] = (uint16_t)i;
    add_numerics(s, numeric_as);
    add_fields(s, COLUMNS_CATEGORICAL);
    add_fields(s, COLUMNS_BUCKET);
    if (p->n_numeric == 0 && p->n_fields == 0)
        return err_set(
            err, PS_ESETTING,
            "numeric and categorical: no column is either, so there is nothing to learn from: "
            "name columns with these two, or give --format");
    return 0;
}

static int plan_numbers(struct schema *s, enum schema_numeric numeric_as, struct err *err)
{
    struct line_parser_plan *p = &s->plan;

    p->numeric_as = numeric_as == SCHEMA_LOG1P         ? LINE_PARSER_LOG1P
                    : numeric_as == SCHEMA_STANDARDISE ? LINE_PARSER_STANDARDISE
                                                       : LINE_PARSER_RAW;
    s->mean = memory_try_alloc((p->n_numeric + 1) * sizeof *s->mean);
    s->std = memory_try_alloc((p->n_numeric + 1) * sizeof *s->std);
    s->log1p_table = memory_try_alloc(LINE_PARSER_LOG1P_TABLE * sizeof *s->log1p_table);
    if (!s->mean || !s->std || !s->log1p_table)
        return no_memory(err);
    for (uint32_t i = 0; i < p->n_numeric; i++)
        s->std[i] = 1;
    for (uint32_t i = 0; i < LINE_PARSER_LOG1P_TABLE; i++)
        s->log1p_table[i] = (float)log1p(i);
    p->mean = s->mean;
    p->std = s->std;
    p->log1p_table = s->log1p_table;
    if (line_parser_simd_fits(p) && !(s->simd = line_parser_simd_new(p, simd_best())))
        return no_memory(err);
    p->simd = s->simd;
    return 0;
}

/* Where a column is in a file without the labels'. */
static uint16_t without_labels(const struct schema *s, uint16_t column)
{
    uint16_t n = column;

    for (uint32_t i = 0; i < s->plan.n_labels; i++)
        n = (uint16_t)(n - (s->plan.label_columns[i] < column));
    return n;
}

/* The plan's reference, with every column as many places to the left as labels are before it. */
static int plan_unlabelled(struct schema *s, struct err *err)
{
    struct line_parser_plan *p = &s->unlabelled;
    uint32_t n = 0;

    s->names = memory_try_alloc(s->columns.n * sizeof *s->names);
    s->unlabelled_names = memory_try_alloc(s->columns.n * sizeof *s->unlabelled_names);
    if (!s->names || !s->unlabelled_names)
        return no_memory(err);
    for (uint32_t i = 0; i < s->columns.n; i++) {
        s->names[i] = s->columns.named ? s->columns.names[i] : NULL;
        if (s->columns.kinds[i] != COLUMNS_LABEL)
            s->unlabelled_names[n++] = s->names[i];
    }
    s->plan.names = s->names;
    *p = s->plan;
    p->names = s->unlabelled_names;
    p->n_columns -= p->n_labels;
    p->n_labels = 0;
    for (uint32_t i = 0; i < p->n_numeric; i++)
        p->numeric_columns[i] = without_labels(s, p->numeric_columns[i]);
    for (uint32_t i = 0; i < p->n_fields; i++)
        p->fields[i].column = without_labels(s, p->fields[i].column);
    return 0;
}

/* ---- the seeds of keys ---- */

uint64_t schema_seed(const char *name)
{
    return XXH3_64bits(name, strlen(name));
}

static void column_id(const struct schema *s, uint32_t column, char ret[SCHEMA_NAME_MAX])
{
    snprintf(ret, SCHEMA_NAME_MAX, "%u", column);
    if (s->columns.names[column][0])
        snprintf(ret, SCHEMA_NAME_MAX, "%s", s->columns.names[column]);
}

/* The field of a column that a group names, by name or position. */
static int find_shared(const struct schema *s, const char *item, size_t len, uint32_t *ret,
                       struct err *err)
{
    uint64_t first, last;
    uint32_t column = 0;
    int status = 0;

    if (columns_has_name(&s->columns, item, len) ||
        !columns_parse_range(item, len, &first, &last))
        status = columns_find_name(&s->columns, "share-table", item, len, &column, err);
    else if (first != last || first >= s->columns.n)
        status = err_set(err, PS_ESETTING, "share-table: '%.*s': one column expected, 0 to %u",
                         (int)len, item, s->columns.n - 1);
    else
        column = (uint32_t)first;
    for (uint32_t f = 0; !status && f < s->plan.n_fields; f++)
        if (s->plan.fields[f].column == column) {
            *ret = f;
            return 0;
        }
    return status ? status
                  : err_set(err, PS_ESETTING,
                            "share-table: '%.*s' is no categorical column: it has no table",
                            (int)len, item);
}

static int check_kinds(const struct schema *s, uint32_t i, uint32_t j, struct err *err)
{
    if (s->plan.fields[i].is_bucket == s->plan.fields[j].is_bucket)
        return 0;
    return err_set(err, PS_ESETTING,
                   "share-table: of columns %u and %u one is bucketised: no token is of both",
                   schema_field_column(s, i), schema_field_column(s, j));
}

/* One group, "target,history". taken: fields of the groups so far. */
static int share_group(struct schema *s, const char *group, bool *taken, struct err *err)
{
    const char *cursor = group, *item;
    uint32_t first = 0, f = 0, n = 0;
    size_t len = 0;
    int status = 0;

    while (!status && (item = columns_next_item(&cursor, &len)) != NULL) {
        status =
            len ? find_shared(s, item, len, &f, err)
                : err_set(err, PS_ESETTING, "share-table: an empty item in '%.60s'", group);
        if (status)
            return status;
        if (taken[f])
            return err_set(err, PS_ESETTING, "share-table: '%.*s' stands there twice", (int)len,
                           item);
        taken[f] = true;
        first = n++ ? first : f;
        status = check_kinds(s, first, f, err);
        if (status)
            return status;
        s->tables[f] = (uint16_t)first;
    }
    return status || n > 1
               ? status
               : err_set(err, PS_ESETTING,
                         "share-table: '%.60s': two columns or more expected: a,b;c,d", group);
}

static int share_tables(struct schema *s, const char *groups, struct err *err)
{
    bool taken[LINE_PARSER_COLUMNS_MAX] = { false };
    char *copy, *rest, *group;
    int status = copy_text(&copy, groups, err);

    for (uint32_t f = 0; f < s->plan.n_fields; f++)
        s->tables[f] = (uint16_t)f;
    rest = !status && copy[0] ? copy : NULL;
    while (!status && (group = strsep(&rest, ";")) != NULL)
        status = share_group(s, group, taken, err);
    free(copy);
    return status;
}

/* The seeds of the fields' own names. Two columns of one name would be one feature. */
static int name_seeds(const struct schema *s, uint64_t *seeds, struct err *err)
{
    char name[SCHEMA_NAME_MAX];

    for (uint32_t f = 0; f < s->plan.n_fields; f++) {
        const unsigned column = schema_field_column(s, f);

        schema_field_id(s, f, name);
        seeds[f] = schema_seed(name);
        for (uint32_t i = 0; i < f; i++)
            if (seeds[i] == seeds[f] && s->tables[f] != s->tables[i])
                return err_set(
                    err, PS_ESETTING,
                    "columns %u and %u are both called '%s', and keys come from names: "
                    "name them apart, or take --share-table %u,%u or --key-scheme "
                    "position",
                    schema_field_column(s, i), column, name, schema_field_column(s, i), column);
    }
    return 0;
}

int schema_use_keys(struct schema *s, enum schema_keys keys, struct err *err)
{
    const bool by_name = keys == SCHEMA_KEYS_BY_NAME;
    uint64_t seeds[LINE_PARSER_COLUMNS_MAX];
    int status = by_name ? name_seeds(s, seeds, err) : 0;

    if (status)
        return status;
    s->keys = keys;
    for (uint32_t f = 0; f < s->plan.n_fields; f++)
        s->plan.fields[f].seed = s->unlabelled.fields[f].seed =
            by_name ? seeds[s->tables[f]] : s->tables[f];
    if (s->simd)
        line_parser_simd_set_seeds(s->simd, &s->plan);
    return 0;
}

void schema_set_space(struct schema *s, uint32_t i, uint64_t n)
{
    s->plan.fields[i].space = s->unlabelled.fields[i].space = n;
    s->plan.has_spaces = false;
    for (uint32_t f = 0; f < s->plan.n_fields; f++)
        s->plan.has_spaces |= s->plan.fields[f].space > 0;
    s->unlabelled.has_spaces = s->plan.has_spaces;
}

int schema_share(struct schema *s, uint32_t i, uint32_t j, struct err *err)
{
    const uint16_t a = s->tables[i], b = s->tables[j], first = a < b ? a : b;

    if (check_kinds(s, i, j, err))
        return PS_ESETTING;
    for (uint32_t f = 0; f < s->plan.n_fields; f++)
        if (s->tables[f] == a || s->tables[f] == b)
            s->tables[f] = first;
    return schema_use_keys(s, s->keys, err);
}

bool schema_shares(const struct schema *s)
{
    for (uint32_t f = 0; f < s->plan.n_fields; f++)
        if (s->tables[f] != f)
            return true;
    return false;
}

enum schema_keys schema_keys(const struct schema *s)
{
    return s->keys;
}

static int new_schema(const struct schema_text *text, const char *first_line,
                      const struct parquet_file *parquet, struct schema **ret_schema,
                      struct err *err)
{
    struct schema *s = memory_try_alloc(sizeof *s);
    int status;

    if (!s)
        return no_memory(err);
    status = set_texts(s, text, err);
    if (!status)
        status = find_columns(s, text, first_line, parquet, err);
    if (!status)
        status = claim_columns(s, text, err);
    if (!status)
        status = plan_columns(s, text->numeric_as, err);
    if (!status)
        status = plan_numbers(s, text->numeric_as, err);
    if (!status)
        status = plan_unlabelled(s, err);
    if (!status)
        status = share_tables(s, or_empty(text->shared), err);
    if (!status)
        status = schema_use_keys(s, text->keys, err);
    if (status) {
        schema_free(s);
        return status;
    }
    *ret_schema = s;
    return 0;
}

int schema_new(const struct schema_text *text, const char *first_line,
               struct schema **ret_schema, struct err *err)
{
    return new_schema(text, first_line, NULL, ret_schema, err);
}

static int open_parquet(const struct schema_text *text, const char *path,
                        struct schema **ret_schema, struct err *err)
{
    struct parquet_file *file;
    int status = parquet_file_open(path, &file, err);

    if (status)
        return status;
    status = new_schema(text, NULL, file, ret_schema, err);
    parquet_file_close(file);
    return status;
}

int schema_open(const struct schema_text *text, struct input_pipes *pipes, const char *path,
                struct schema **ret_schema, struct err *err)
{
    bool known = or_empty(text->preset)[0] || or_empty(text->columns)[0];
    char *first_line = NULL;
    int status;

    if (!known && parquet_file_is_one(path))
        return open_parquet(text, path, ret_schema, err);
    status = known ? 0 : line_reader_first_line(pipes, path, &first_line, err);
    if (!status)
        status = schema_new(text, first_line, ret_schema, err);
    free(first_line);
    return status;
}

void schema_free(struct schema *s)
{
    if (!s)
        return;
    columns_deinit(&s->columns);
    free(s->names);
    free(s->unlabelled_names);
    free(s->missing);
    free(s->inner_separator);
    free(s->label_positive);
    free(s->positive);
    free(s->mean);
    free(s->std);
    free(s->log1p_table);
    free(s->simd);
    free(s);
}

uint32_t schema_n_numeric(const struct schema *s)
{
    return s->plan.n_numeric;
}

uint32_t schema_n_fields(const struct schema *s)
{
    return s->plan.n_fields;
}

bool schema_has_header(const struct schema *s)
{
    return s->has_header;
}

bool schema_has_label(const struct schema *s)
{
    return s->plan.n_labels > 0;
}

uint32_t schema_n_labels(const struct schema *s)
{
    return s->plan.n_labels ? s->plan.n_labels : 1;
}

static uint32_t numeric_column(const struct schema *s, uint32_t i)
{
    assert(i < s->plan.n_numeric);
    return s->plan.numeric_columns[i];
}

uint32_t schema_field_column(const struct schema *s, uint32_t i)
{
    assert(i < s->plan.n_fields);
    return s->plan.fields[i].column;
}

const char *schema_numeric_name(const struct schema *s, uint32_t i)
{
    return s->columns.names[numeric_column(s, i)];
}

const char *schema_field_name(const struct schema *s, uint32_t i)
{
    return s->columns.names[schema_field_column(s, i)];
}

void schema_numeric_id(const struct schema *s, uint32_t i, char ret[SCHEMA_NAME_MAX])
{
    column_id(s, numeric_column(s, i), ret);
}

void schema_field_id(const struct schema *s, uint32_t i, char ret[SCHEMA_NAME_MAX])
{
    column_id(s, schema_field_column(s, i), ret);
}

void schema_label_id(const struct schema *s, uint32_t i, char ret[SCHEMA_NAME_MAX])
{
    ret[0] = '\0';
    if (schema_has_label(s))
        column_id(s, s->plan.label_columns[i], ret);
}

uint32_t schema_field_table(const struct schema *s, uint32_t i)
{
    assert(i < s->plan.n_fields);
    return s->tables[i];
}

const struct line_parser_plan *schema_plan(const struct schema *s)
{
    return &s->plan;
}

const struct line_parser_plan *schema_plan_unlabelled(const struct schema *s)
{
    return &s->unlabelled;
}

void schema_keep_missing(struct schema *s, bool keeps)
{
    s->plan.numeric_missing = s->unlabelled.numeric_missing = keeps ? NAN : 0;
}

bool schema_needs_moments(const struct schema *s)
{
    return s->plan.numeric_as == LINE_PARSER_STANDARDISE && s->plan.n_numeric > 0;
}

void schema_set_moments(struct schema *s, const float *mean, const float *std)
{
    for (uint32_t i = 0; i < s->plan.n_numeric; i++) {
        s->mean[i] = mean[i];
        s->std[i] = std[i] > 0 && isfinite(std[i]) ? std[i] : 1;
    }
}

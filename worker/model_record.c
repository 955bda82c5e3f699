#include "worker/model_record.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "worker/model/dlrm_config.h"
#include "worker/model_columns.h"
#include "worker/model_shape.h"

#define FORMAT "psd model 1"
#define BY_NAME_SALT UINT64_C(0x6e616d65)
#define SLACK_FLOATS 256u /* another worker's text may be a little longer */
#define FLOATS_MAX (1u << 24)

static const char *scheme_text(enum settings_keys keys)
{
    return keys == KEYS_BY_NAME ? "name" : "position";
}

static uint64_t rows_seed(const struct settings *s, uint32_t dim, enum settings_keys keys)
{
    uint64_t seed = hash_mix2(settings_seed(s, SEED_INIT), dim);

    return keys == KEYS_BY_NAME ? hash_mix2(seed, BY_NAME_SALT) : seed;
}

uint64_t model_record_rows_seed(const struct settings *s, uint32_t dim)
{
    return rows_seed(s, dim, (enum settings_keys)s->key_scheme);
}

/* ---- the text ---- */

static cJSON *describe(const struct settings *s, const struct schema *schema)
{
    cJSON *root = cJSON_CreateObject();

    cJSON_AddStringToObject(root, "format", FORMAT);
    cJSON_AddStringToObject(root, "keys",
                            schema_keys(schema) == SCHEMA_KEYS_BY_NAME ? "name" : "position");
    cJSON_AddStringToObject(root, "hash", "xxh3_64");
    model_columns_describe(root, s, schema);
    model_shape_describe(root, s,
                         &(struct model_shape_columns){ schema_n_labels(schema),
                                                        schema_n_numeric(schema),
                                                        schema_n_fields(schema) });
    return root;
}

int model_record_describe(const struct settings *s, const struct schema *schema, char **ret,
                          struct err *err)
{
    cJSON *root = describe(s, schema);

    *ret = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    return *ret ? 0 : err_set(err, -ENOMEM, "no memory for the model's record");
}

static uint64_t mix_name(uint64_t h, const char *name)
{
    return hash_mix2(h, schema_seed(name));
}

/* What the job's workers must agree on beside their tables' layout. By position a column's name means nothing. */
static uint64_t identity(const struct settings *s, const struct schema *schema)
{
    const bool by_name = schema_keys(schema) == SCHEMA_KEYS_BY_NAME;
    const struct line_parser_plan *plan = schema_plan(schema);
    char name[SCHEMA_NAME_MAX];
    uint64_t h = hash_mix2(schema_n_fields(schema), schema_n_numeric(schema));

    for (uint32_t i = 0; i < schema_n_fields(schema); i++) {
        schema_field_id(schema, i, name);
        h = hash_mix2(h, schema_field_table(schema, i));
        h = by_name ? mix_name(hash_mix2(h, plan->fields[i].is_bucket), name) : h;
    }
    for (uint32_t i = 0; by_name && i < schema_n_numeric(schema); i++) {
        schema_numeric_id(schema, i, name);
        h = mix_name(h, name);
    }
    for (uint32_t i = 0; s->fields && i < schema_n_fields(schema); i++)
        h = mix_name(h, field_tables_tail(s->fields, field_tables_of(s->fields, i)));
    for (uint32_t i = 0; i < schema_n_fields(schema); i++) {
        const uint64_t space = plan->fields[i].space;

        h = space ? hash_mix2(hash_mix2(h, i), space) : h;
        h = field_tables_has_mean(s->fields, i) ? hash_mix2(h, ~(uint64_t)i) : h;
    }
    h = by_name ? hash_mix2(h, plan->numeric_as) : h;
    h = settings_n_hats(s) ? hash_mix2(h, UINT64_C(0x68617473) + settings_n_hats(s)) : h;
    /* Jobs of psworkers that knew one kind are of that. */
    h = s->model != MODEL_DLRM ? hash_mix2(h, (uint64_t)s->model) : h;
    return (h & ~UINT64_C(1)) | (uint64_t)by_name;
}

/* ---- the table ---- */

struct model_record {
    bool has_rows, is_there; /* the job has rows; it has a record */
    struct table_spec spec;
    uint32_t id, n_blocks;
    uint64_t *keys; /* owned, as values */
    float *values;
};

static struct table_spec record_spec(const struct settings *s, uint64_t n_floats, uint64_t seed)
{
    struct table_spec spec = {
        .kind = TABLE_SPEC_DENSE,
        .dim = TABLE_SPEC_DENSE_BLOCK,
        .n_floats = n_floats,
        .seed = seed,
        .optim = TABLE_SPEC_SGD,
        .params = table_spec_optim_defaults(TABLE_SPEC_SGD),
        .mode = TABLE_SPEC_MODE_ASYNC, /* its readers wait for no step */
    };

    snprintf(spec.name, sizeof spec.name, "%.63s/model", s->job);
    spec.params.learning_rate = 1;
    spec.params.weight_decay = 0;
    return spec;
}

/* Finds a table; false if it is not there. Any other failure is one: what cannot be asked for may be there. */
static int find(struct param_store *store, struct table_spec *spec, uint32_t *ret_id,
                bool *ret_found, struct err *err)
{
    struct err why;
    int status = store->ops->table_find(store, spec, ret_id, &why);

    *ret_found = !status;
    return !status || status == PS_ENOTABLE ? 0 : err_set(err, status, "%s", why.text);
}

int model_record_find(const struct settings *s, struct param_store *store, struct err *err)
{
    struct table_spec spec = record_spec(s, 1, 0);
    bool is_there;
    uint32_t id;

    return find(store, &spec, &id, &is_there, err);
}

static int record_arrays(struct model_record *r, struct err *err)
{
    if (!table_spec_only_adds(&r->spec) || r->spec.n_floats > FLOATS_MAX)
        return err_set(err, PS_ESPEC,
                       "table %s is not the record of a model: take another --job",
                       r->spec.name);
    r->n_blocks = (uint32_t)table_spec_n_blocks(&r->spec);
    r->keys = memory_alloc(r->n_blocks * sizeof *r->keys);
    r->values = memory_alloc((size_t)r->n_blocks * r->spec.dim * sizeof *r->values);
    for (uint32_t i = 0; i < r->n_blocks; i++)
        r->keys[i] = i;
    return 0;
}

/* The text, which the caller frees; "" before rank 0 has written it. */
static int record_read(struct model_record *r, struct param_store *store, char **ret,
                       struct err *err)
{
    struct ps_pull_section section = { .table = r->id,
                                       .codec = CODEC_FP32,
                                       .n_keys = r->n_blocks,
                                       .keys = r->keys,
                                       .dst = r->values };
    int status = store->ops->pull_start(store, 0, &section, 1, err);
    char *text;

    if (!status)
        status = store->ops->pull_wait(store, err);
    if (status)
        return status;
    text = memory_alloc(r->spec.n_floats + 1);
    for (uint64_t i = 0; i < r->spec.n_floats; i++)
        text[i] = r->values[i] >= 1 && r->values[i] < 256 ? (char)(uint8_t)r->values[i] : '\0';
    text[r->spec.n_floats] = '\0';
    *ret = text;
    return 0;
}

static int record_write(struct model_record *r, struct param_store *store, const char *text,
                        struct err *err)
{
    const struct param_store_ops *ops = store->ops;
    const struct ps_push_section section = { .table = r->id,
                                             .op = SECTION_ASSIGN,
                                             .codec = CODEC_FP32,
                                             .n_keys = r->n_blocks,
                                             .keys = r->keys,
                                             .values = r->values };
    size_t n = strlen(text);
    int status;

    if (n > r->spec.n_floats)
        return 0; /* it stays empty: of another worker's table, made with other settings */
    memset(r->values, 0, (size_t)r->n_blocks * r->spec.dim * sizeof *r->values);
    for (size_t i = 0; i < n; i++)
        r->values[i] = (float)(uint8_t)text[i];
    status = ops->push(store, ops->clock(store), 0, false, &section, 1, err);
    /* The servers had declared this worker dead; it has joined again. */
    if (status == PS_EFENCED)
        status = ops->push(store, ops->resume(store), 0, false, &section, 1, err);
    return status;
}

/* ---- what differs ---- */

static const cJSON *get(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static const char *text_of(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(get(object, name));

    return text ? text : "none";
}

/* The place of the first items that differ in this member; false: none do. */
static bool differ(const cJSON *a, const cJSON *b, const char *name, uint32_t *ret_place,
                   const char **ret_a, const char **ret_b)
{
    a = a ? a->child : NULL;
    b = b ? b->child : NULL;
    for (*ret_place = 1; a || b; ++*ret_place) {
        *ret_a = text_of(a, name);
        *ret_b = text_of(b, name);
        if (!a || !b || strcmp(*ret_a, *ret_b) != 0)
            return true;
        a = a->next;
        b = b->next;
    }
    return false;
}

/* Lists of columns, of which the order counts. */
static int refuse_lists(const struct settings *s, const char *what, const cJSON *theirs,
                        const cJSON *ours, struct err *err)
{
    const char *have, *want;
    uint32_t place;

    if (!differ(theirs, ours, "name", &place, &have, &want))
        return 0;
    return err_set(
        err, PS_ESPEC,
        "job \"%s\": its %s column %u is '%.40s', that of these settings and the log "
        "'%.40s': give the same columns in the same order, or take another --job",
        s->job, what, place, have, want);
}

/* What text_of() makes of a feature without "rows" of its own. */
static const char *rows_table(const char *text)
{
    return strcmp(text, "none") == 0 ? "emb" : text;
}

static int refuse_tables(const struct settings *s, const cJSON *theirs, const cJSON *ours,
                         struct err *err)
{
    const char *have, *want;
    uint32_t place;

    if (!differ(theirs, ours, "table", &place, &have, &want))
        return 0;
    return err_set(
        err, PS_ESPEC,
        "--share-table: in job \"%s\" column '%.40s' has the table of '%.40s', these "
        "settings give it that of '%.40s': share the same tables, or take another --job",
        s->job, text_of(cJSON_GetArrayItem(ours, (int)place - 1), "name"), have, want);
}

static int refuse_rows(const struct settings *s, const cJSON *theirs, const cJSON *ours,
                       struct err *err)
{
    const char *have, *want;
    uint32_t place;

    if (!differ(theirs, ours, "rows", &place, &have, &want))
        return 0;
    return err_set(
        err, PS_ESPEC,
        "--field: in job \"%s\" column '%.40s' has its rows in table %s/%.60s, these "
        "settings put them in %s/%.60s: give fields the same options, or take another "
        "--job",
        s->job, text_of(cJSON_GetArrayItem(ours, (int)place - 1), "name"), s->job,
        rows_table(have), s->job, rows_table(want));
}

/* What else features differ in: the member, what it is where it is missing, and its setting. */
struct feature_option {
    const char *member, *otherwise, *setting;
};

static int refuse_option(const struct settings *s, const cJSON *theirs, const cJSON *ours,
                         const struct feature_option *option, struct err *err)
{
    const char *have, *want;
    uint32_t place;

    if (!differ(theirs, ours, option->member, &place, &have, &want))
        return 0;
    have = strcmp(have, "none") == 0 ? option->otherwise : have;
    want = strcmp(want, "none") == 0 ? option->otherwise : want;
    return err_set(
        err, PS_ESPEC,
        "--%s: in job \"%s\" column '%.40s' has %.40s, in these settings %.40s: give it as "
        "the job has it, or take another --job",
        option->setting, s->job, text_of(cJSON_GetArrayItem(ours, (int)place - 1), "name"),
        have, want);
}

static int refuse_columns(const struct settings *s, const cJSON *theirs, const cJSON *ours,
                          struct err *err)
{
    static const struct feature_option options[] = { { "hash_space", "0", "hash-space" },
                                                     { "pooling", "sum", "pooling" } };
    const cJSON *numbers = get(theirs, "numeric"), *own = get(ours, "numeric");
    const cJSON *features = get(theirs, "features");
    /* By position a name means nothing, and a place has no other one. */
    const bool by_name = strcmp(text_of(ours, "keys"), "name") == 0;
    int status = 0;

    if (features && by_name)
        status = refuse_lists(s, "categorical", features, get(ours, "features"), err);
    if (features && !status)
        status = refuse_tables(s, features, get(ours, "features"), err);
    if (features && !status)
        status = refuse_rows(s, features, get(ours, "features"), err);
    for (size_t i = 0; i < COUNT_OF(options) && features && !status; i++)
        status = refuse_option(s, features, get(ours, "features"), &options[i], err);
    if (features && by_name && !status)
        status = refuse_lists(s, "numeric", get(numbers, "columns"), get(own, "columns"), err);
    if (features && by_name && !status &&
        strcmp(text_of(numbers, "transform"), text_of(own, "transform")) != 0)
        status = err_set(err, PS_ESPEC,
                         "job \"%s\" was begun with --numeric-as %s, these settings have %s",
                         s->job, text_of(numbers, "transform"), text_of(own, "transform"));
    return status
               ? status
               : err_set(err, PS_ESPEC,
                         "job \"%s\" was begun with other columns than these settings and the "
                         "log have: give the same, in the same order, or take another --job",
                         s->job);
}

static unsigned n_hats_of(const cJSON *record)
{
    const double n = cJSON_GetNumberValue(get(get(record, "numeric"), "hats"));

    return n >= 1 && n <= DLRM_HATS_MAX ? (unsigned)n : 0;
}

static int refuse_hats(const struct settings *s, const cJSON *theirs, struct err *err)
{
    if (!theirs || n_hats_of(theirs) == settings_n_hats(s))
        return 0;
    return err_set(err, PS_ESPEC,
                   "--numeric-hats: job \"%s\" has %u for each number, these settings have %u: "
                   "give --numeric-hats %u and the --bottom that it has, or take another --job",
                   s->job, n_hats_of(theirs), settings_n_hats(s), n_hats_of(theirs));
}

static int refuse_kind(const struct settings *s, const cJSON *theirs, struct err *err)
{
    const char *have = text_of(get(theirs, "model"), "kind");
    const char *want = dlrm_config_kind_name((enum model_kind)s->model);

    if (!theirs || strcmp(have, want) == 0)
        return 0;
    return err_set(err, PS_ESPEC,
                   "--model: job \"%s\" is of %.40s, these settings are of %s: give --model "
                   "%.40s, or take another --job",
                   s->job, have, want, have);
}

static int explain(struct model_record *r, const struct settings *s,
                   const struct schema *schema, struct param_store *store, struct err *err)
{
    struct err unread;
    cJSON *theirs, *ours;
    char *text = NULL;
    int status = record_read(r, store, &text, &unread);

    /* Nothing can be read while this worker has pushes of the process before it, for tables that are not open yet. */
    theirs = status ? NULL : cJSON_Parse(text);
    ours = describe(s, schema);
    status = refuse_kind(s, theirs, err);
    if (!status)
        status = refuse_hats(s, theirs, err);
    if (!status)
        status = refuse_columns(s, theirs, ours, err);
    cJSON_Delete(theirs);
    cJSON_Delete(ours);
    free(text);
    return status;
}

/* ---- the job's scheme ---- */

/* The scheme that the job was begun with; KEYS_AUTO: none yet. The rows' seed says it, unless it came from another
 * --seed (which eval need not know); then the record does. */
static enum settings_keys scheme_of(const struct settings *s, const struct table_spec *rows,
                                    const struct model_record *r)
{
    if (r->has_rows && rows->seed == rows_seed(s, settings_dim(s), KEYS_BY_POSITION))
        return KEYS_BY_POSITION;
    if (r->has_rows && rows->seed == rows_seed(s, settings_dim(s), KEYS_BY_NAME))
        return KEYS_BY_NAME;
    if (r->is_there)
        return r->spec.seed & 1 ? KEYS_BY_NAME : KEYS_BY_POSITION;
    if (!r->has_rows)
        return KEYS_AUTO;
    return s->key_scheme == KEYS_AUTO ? KEYS_BY_POSITION : (enum settings_keys)s->key_scheme;
}

static int use(struct settings *s, struct schema *schema, enum settings_keys keys,
               struct err *err)
{
    s->key_scheme = (int)keys;
    return schema_use_keys(
        schema, keys == KEYS_BY_NAME ? SCHEMA_KEYS_BY_NAME : SCHEMA_KEYS_BY_POSITION, err);
}

/* The schema takes the job's scheme. */
static int use_found(struct settings *s, struct schema *schema, enum settings_keys found,
                     bool has_record, struct err *err)
{
    if (found == KEYS_AUTO)
        return use(s, schema, s->key_scheme ? (enum settings_keys)s->key_scheme : KEYS_BY_NAME,
                   err);
    if (s->key_scheme != KEYS_AUTO && s->key_scheme != (int)found)
        return err_set(
            err, PS_ESPEC,
            "--key-scheme %s: job \"%s\" was begun with keys by column %s, and keeps "
            "them: leave --key-scheme out, or take another --job",
            scheme_text((enum settings_keys)s->key_scheme), s->job, scheme_text(found));
    if (!has_record && schema_shares(schema) && found == KEYS_BY_POSITION)
        return err_set(
            err, PS_ESPEC,
            "--share-table: job \"%s\" was begun without shared tables: leave it out, "
            "or take another --job",
            s->job);
    log_line_info("job \"%s\" has keys by column %s", s->job, scheme_text(found));
    return use(s, schema, found, err);
}

static int make(struct model_record *r, const struct settings *s, const struct schema *schema,
                struct param_store *store, const char *text, struct err *err)
{
    const uint64_t n_floats = strlen(text) + SLACK_FLOATS;
    const uint64_t n_blocks = (n_floats + TABLE_SPEC_DENSE_BLOCK - 1) / TABLE_SPEC_DENSE_BLOCK;
    struct err why;
    int status;

    r->spec = record_spec(s, n_blocks * TABLE_SPEC_DENSE_BLOCK, identity(s, schema));
    status = store->ops->table(store, &r->spec, &r->id, &why);
    if (status == PS_ESPEC)
        return err_set(
            err, status,
            "another worker of job \"%s\" has begun it just now with another model, "
            "other columns, tables or keys (%.200s): give all workers the same settings",
            s->job, why.text);
    return status ? err_set(err, status, "%s", why.text) : 0;
}

static int fill(struct model_record *r, struct param_store *store, const char *text,
                struct err *err)
{
    char *have;
    int status = record_read(r, store, &have, err);

    if (status)
        return status;
    if (!have[0])
        status = record_write(r, store, text, err);
    free(have);
    return status;
}

/* The rows first: whoever made them had made the record before. */
static int find_both(struct model_record *r, const struct settings *s,
                     struct param_store *store, struct table_spec *rows, struct err *err)
{
    uint32_t id;
    int status;

    *rows = (struct table_spec){ .dim = settings_dim(s) };
    snprintf(rows->name, sizeof rows->name, "%.63s/emb", s->job);
    status = find(store, rows, &id, &r->has_rows, err);
    if (!status)
        status = find(store, &r->spec, &r->id, &r->is_there, err);
    return !status && r->is_there ? record_arrays(r, err) : status;
}

int model_record_open(struct settings *s, struct schema *schema, struct param_store *store,
                      struct model_record **ret, struct err *err)
{
    struct model_record *r = memory_alloc(sizeof *r);
    struct table_spec rows;
    int status;

    *r = (struct model_record){ .spec = record_spec(s, 0, 0) };
    status = find_both(r, s, store, &rows, err);
    if (!status)
        status = use_found(s, schema, scheme_of(s, &rows, r), r->is_there, err);
    if (!status && r->is_there && r->spec.seed != identity(s, schema))
        status = explain(r, s, schema, store, err);
    if (status) {
        model_record_free(r);
        return status;
    }
    *ret = r;
    return 0;
}

int model_record_make(struct model_record *r, const struct settings *s,
                      const struct schema *schema, struct param_store *store, struct err *err)
{
    char *text;
    int status;

    /* Jobs from before the record stay as they are. */
    if (r->is_there || (r->has_rows && s->key_scheme != KEYS_BY_NAME))
        return 0;
    status = model_record_describe(s, schema, &text, err);
    if (status)
        return status;
    status = make(r, s, schema, store, text, err);
    if (!status)
        status = record_arrays(r, err);
    r->is_there = !status;
    free(text);
    return status;
}

int model_record_fill(struct model_record *r, const struct settings *s,
                      const struct schema *schema, struct param_store *store, struct err *err)
{
    char *text;
    int status;

    if (!r->is_there || s->rank != 0)
        return 0;
    status = model_record_describe(s, schema, &text, err);
    if (status)
        return status;
    status = fill(r, store, text, err);
    free(text);
    return status;
}

void model_record_free(struct model_record *r)
{
    if (!r)
        return;
    free(r->keys);
    free(r->values);
    free(r);
}

/* ---- the model of a record, for who has no settings of it ---- */

static const char *member_text(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(get(object, name));

    return text ? text : "";
}

/* The record's text, to be freed; NULL: there is none. */
static int adopt_text(const struct settings *s, struct param_store *store, char **ret,
                      struct err *err)
{
    struct model_record *r = memory_alloc(sizeof *r);
    int status;

    *ret = NULL;
    *r = (struct model_record){ .spec = record_spec(s, 0, 0) };
    status = find(store, &r->spec, &r->id, &r->is_there, err);
    if (!status && r->is_there)
        status = record_arrays(r, err);
    if (!status && r->is_there)
        status = record_read(r, store, ret, err);
    model_record_free(r);
    return status;
}

int model_record_adopt(struct settings *s, struct param_store *store, struct schema **ret,
                       struct field_tables **ret_fields, struct err *err)
{
    char *text, program[] = "psworker", *argv[] = { program, NULL };
    struct settings *fallback = memory_alloc(sizeof *fallback);
    enum settings_action action;
    cJSON *root = NULL;
    int status = adopt_text(s, store, &text, err);

    *ret = NULL;
    *ret_fields = NULL;
    if (!status)
        status = settings_load(&settings_worker, 1, argv, 1, fallback, &action, err);
    if (!status) {
        root = text ? cJSON_Parse(text) : NULL;
        if (!text || !text[0])
            status = err_set(err, PS_ENOTABLE,
                             "job \"%s\" has no record of its columns: has its training begun? "
                             "An older job's columns and shape are given as in its training "
                             "(--format, --columns or --data)",
                             s->job);
        else if (strcmp(member_text(root, "format"), FORMAT) != 0)
            status =
                err_set(err, PS_ESPEC,
                        "job \"%s\": its record is of another version of psworker", s->job);
    }
    if (!status)
        status = model_shape_adopt(s, fallback, root, err);
    if (!status)
        status = model_columns_adopt(s, root, ret, ret_fields, err);
    cJSON_Delete(root);
    settings_free(&settings_worker, fallback);
    free(fallback);
    free(text);
    return status;
}

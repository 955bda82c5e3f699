/*
 * One table of fields serves both questions about a specification, whether it is in its ranges
 * and whether two are the same, so that a new field is checked, compared and named by adding
 * one row.
 */
#include "proto/table_spec.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "common/number.h"

static const char *const kind_names[] = { "sparse", "dense" };
static const char *const init_names[] = { "zero", "uniform", "normal" };
static const char *const optimizer_names[] = {
    "sgd",  "momentum", "adagrad", "rowwise_adagrad", "adam", "ftrl", "adamw", "lion", "lamb",
    "lars", "sm3",      "came",    "sm3_matrix"
};
static const char *const decay_names[] = { "none",   "linear", "exp",    "inv_sqrt",
                                           "cosine", "step",   "plateau" };
static const char *const mode_names[] = { "job", "async", "ssp", "bsp" };
static const char *const storage_names[] = { "fp32", "bf16", "fp16" };
static const char *const victims_names[] = { "none", "oldest", "rarest" };

_Static_assert(COUNT_OF(kind_names) == TABLE_SPEC_KIND_END, "a name for each kind");
_Static_assert(COUNT_OF(init_names) == TABLE_SPEC_INIT_END, "a name for each init");
_Static_assert(COUNT_OF(optimizer_names) == TABLE_SPEC_OPTIM_END, "a name for each optimizer");
_Static_assert(COUNT_OF(decay_names) == TABLE_SPEC_DECAY_END, "a name for each decay");
_Static_assert(COUNT_OF(mode_names) == TABLE_SPEC_MODE_END, "a name for each mode");
_Static_assert(COUNT_OF(storage_names) == TABLE_SPEC_STORAGE_END, "a name for each storage");
_Static_assert(COUNT_OF(victims_names) == TABLE_SPEC_VICTIMS_END,
               "a name for each kind of victims");

enum field_type { FIELD_U32, FIELD_U64, FIELD_FLOAT, FIELD_NAME };

struct field {
    const char *name;
    size_t offset;
    enum field_type type;
    double min, max;          /* both within the range */
    const char *const *names; /* FIELD_NAME: of the numbers 0..max */
    const char *
        setting; /* its name for table_spec_set(); NULL: a part of the layout, or of the rows' life */
    double new_max; /* of a table that is made, or set; 0: max */
};

#define AT(member) offsetof(struct table_spec, member)
#define U32(name, member, min, max)                          \
    {                                                        \
        name, AT(member), FIELD_U32, min, max, NULL, NULL, 0 \
    }
#define U64(name, member)                                     \
    {                                                         \
        name, AT(member), FIELD_U64, 0, 0x1p64, NULL, NULL, 0 \
    }
#define REAL(name, member, min, max)                           \
    {                                                          \
        name, AT(member), FIELD_FLOAT, min, max, NULL, NULL, 0 \
    }
/* 0 to new_max; what is stored may have any float. */
#define REAL_NEW(name, member, new_max)                                  \
    {                                                                    \
        name, AT(member), FIELD_FLOAT, 0, ANY_FLOAT, NULL, NULL, new_max \
    }
#define NAMED(name, member, names)                                           \
    {                                                                        \
        name, AT(member), FIELD_NAME, 0, COUNT_OF(names) - 1, names, NULL, 0 \
    }
/* The same of a field that table_spec_set() changes. */
#define U32_SET(name, member, setting)                               \
    {                                                                \
        name, AT(member), FIELD_U32, 0, UINT32_MAX, NULL, setting, 0 \
    }
#define U64_SET(name, member, setting)                           \
    {                                                            \
        name, AT(member), FIELD_U64, 0, 0x1p64, NULL, setting, 0 \
    }
#define REAL_SET(name, member, max, setting)                    \
    {                                                           \
        name, AT(member), FIELD_FLOAT, 0, max, NULL, setting, 0 \
    }
#define REAL_SET_NEW(name, member, new_max, setting)                        \
    {                                                                       \
        name, AT(member), FIELD_FLOAT, 0, ANY_FLOAT, NULL, setting, new_max \
    }
#define NAMED_SET(name, member, names, setting)                                 \
    {                                                                           \
        name, AT(member), FIELD_NAME, 0, COUNT_OF(names) - 1, names, setting, 0 \
    }
#define ANY_FLOAT 3.4028234663852886e38 /* FLT_MAX: finite is enough */
#define BELOW_1 0x1.fffffep-1           /* the float before 1 */

/* clang-format off */
static const struct field fields[] = {
    NAMED("kind", kind, kind_names),
    U32("dim", dim, 1, TABLE_SPEC_LAYER_MAX),
    U64("n_floats", n_floats),
    U64("seed", seed),
    NAMED("init", init, init_names),
    REAL_NEW("init_scale", init_scale, 1e6),
    NAMED("optimizer", optim, optimizer_names),
    REAL_SET_NEW("learning_rate", params.learning_rate, 1e6, "lr"),
    REAL_SET_NEW("epsilon", params.epsilon, 1e6, "epsilon"),
    REAL_SET("momentum", params.momentum, BELOW_1, "momentum"),
    REAL("nesterov", params.nesterov, 0, 1),
    REAL_SET_NEW("weight_decay", params.weight_decay, 1e6, "weight-decay"),
    REAL_SET("beta1", params.beta1, BELOW_1, "beta1"),
    REAL_SET("beta2", params.beta2, BELOW_1, "beta2"),
    REAL_NEW("initial_accumulator", params.initial_accumulator, 1e30),
    REAL_SET("lr_decay", params.lr_decay, ANY_FLOAT, "lr-decay"),
    REAL_NEW("ftrl_beta", params.ftrl_beta, 1e6),
    REAL_NEW("ftrl_l1", params.ftrl_l1, 1e6),
    REAL_NEW("ftrl_l2", params.ftrl_l2, 1e6),
    U32_SET("warmup_clocks", schedule.warmup_clocks, "warmup"),
    NAMED_SET("decay", schedule.decay, decay_names, "decay"),
    U64_SET("decay_start", schedule.decay_start, "decay-start"),
    U64_SET("decay_clocks", schedule.decay_clocks, "decay-clocks"),
    REAL_SET("decay_rate", schedule.decay_rate, 1, "decay-rate"),
    REAL_SET("decay_floor", schedule.decay_floor, 1, "decay-floor"),
    REAL_SET("clip_norm", clip_norm, ANY_FLOAT, "clip"),
    NAMED("mode", mode, mode_names),
    U32("bound", bound, 0, UINT32_MAX),
    NAMED("storage", storage, storage_names),
    U32("admit_touches", limits.admit_touches, 0, TABLE_SPEC_ADMIT_MAX),
    U64("admit_clocks", limits.admit_clocks),
    U64("idle_clocks", limits.idle_clocks),
    U32("ttl_s", limits.ttl_s, 0, UINT32_MAX),
    U32("rare_touches", limits.rare_touches, 0, TABLE_SPEC_RARE_MAX),
    U64("rare_clocks", limits.rare_clocks),
    NAMED("victims", limits.victims, victims_names),
    U64("max_bytes", limits.max_bytes),
    REAL("row_decay", row_decay, 0, BELOW_1),
};
/* clang-format on */

static const char *name_of(const char *const *names, size_t n_names, unsigned number)
{
    return number < n_names ? names[number] : NULL;
}

const char *table_spec_kind_name(enum table_spec_kind kind)
{
    return name_of(kind_names, COUNT_OF(kind_names), kind);
}

const char *table_spec_init_name(enum table_spec_init init)
{
    return name_of(init_names, COUNT_OF(init_names), init);
}

const char *table_spec_optim_name(enum table_spec_optim optim)
{
    return name_of(optimizer_names, COUNT_OF(optimizer_names), optim);
}

const char *table_spec_decay_name(enum table_spec_decay decay)
{
    return name_of(decay_names, COUNT_OF(decay_names), decay);
}

const char *table_spec_mode_name(enum table_spec_mode mode)
{
    return name_of(mode_names, COUNT_OF(mode_names), mode);
}

const char *table_spec_storage_name(enum table_spec_storage storage)
{
    return name_of(storage_names, COUNT_OF(storage_names), storage);
}

const char *table_spec_victims_name(enum table_spec_victims victims)
{
    return name_of(victims_names, COUNT_OF(victims_names), victims);
}

struct optimizer_params table_spec_optim_defaults(enum table_spec_optim optim)
{
    switch (optim) {
    case TABLE_SPEC_SGD:
        return (struct optimizer_params){ .learning_rate = 0.1f };
    case TABLE_SPEC_MOMENTUM:
        return (struct optimizer_params){ .learning_rate = 0.1f, .momentum = 0.9f };
    case TABLE_SPEC_ADAGRAD:
    case TABLE_SPEC_ROWWISE_ADAGRAD:
        return (struct optimizer_params){ .learning_rate = 0.01f, .epsilon = 1e-10f };
    case TABLE_SPEC_ADAM:
        return (struct optimizer_params){
            .learning_rate = 0.001f, .epsilon = 1e-8f, .beta1 = 0.9f, .beta2 = 0.999f
        };
    case TABLE_SPEC_FTRL: /* McMahan et al., KDD 2013: beta 1 "is usually good enough" */
        return (struct optimizer_params){ .learning_rate = 0.1f, .ftrl_beta = 1 };
    case TABLE_SPEC_ADAMW: /* torch.optim.AdamW's */
        return (struct optimizer_params){ .learning_rate = 0.001f,
                                          .epsilon = 1e-8f,
                                          .weight_decay = 0.01f,
                                          .beta1 = 0.9f,
                                          .beta2 = 0.999f };
    case TABLE_SPEC_LION: /* Chen et al. 2023, but for decay, which is the task's */
        return (
            struct optimizer_params){ .learning_rate = 1e-4f, .beta1 = 0.9f, .beta2 = 0.99f };
    case TABLE_SPEC_LAMB: /* You et al. 2020, section 4 */
        return (struct optimizer_params){
            .learning_rate = 0.01f, .epsilon = 1e-6f, .beta1 = 0.9f, .beta2 = 0.999f
        };
    case TABLE_SPEC_LARS:
        return (struct optimizer_params){ .learning_rate = 0.01f,
                                          .epsilon = 1e-8f,
                                          .momentum = 0.9f };
    case TABLE_SPEC_SM3:
    case TABLE_SPEC_SM3_MATRIX:
        return (struct optimizer_params){ .learning_rate = 0.03f, .epsilon = 1e-10f };
    case TABLE_SPEC_CAME: /* Luo et al. 2023, but for decay, which is the task's */
        return (
            struct optimizer_params){ .learning_rate = 2e-4f, .beta1 = 0.9f, .beta2 = 0.999f };
    case TABLE_SPEC_OPTIM_END:
        break;
    }
    assert(optim < TABLE_SPEC_OPTIM_END);
    return (struct optimizer_params){ 0 };
}

/* Of a row as a matrix, as square as its length allows: its rows and columns. */
static uint32_t matrix_floats(uint32_t dim)
{
    uint32_t n_rows = 1;

    for (uint32_t n = 2; n * n <= dim; n++)
        if (dim % n == 0)
            n_rows = n;
    return n_rows + dim / n_rows;
}

static uint32_t optimizer_floats(const struct table_spec *spec)
{
    switch (spec->optim) {
    case TABLE_SPEC_SGD:
        return 0;
    case TABLE_SPEC_MOMENTUM:
    case TABLE_SPEC_ADAGRAD:
    case TABLE_SPEC_LARS:
        return spec->dim;
    case TABLE_SPEC_ROWWISE_ADAGRAD:
    case TABLE_SPEC_SM3:
        return 1;
    case TABLE_SPEC_ADAM:
    case TABLE_SPEC_FTRL:
    case TABLE_SPEC_LAMB:
        return 2 * spec->dim;
    case TABLE_SPEC_ADAMW:
        return 2 * spec->dim + 1;
    case TABLE_SPEC_LION:
        return spec->dim + 1;
    case TABLE_SPEC_CAME:
        return spec->dim + 2 * matrix_floats(spec->dim);
    case TABLE_SPEC_SM3_MATRIX:
        return matrix_floats(spec->dim);
    case TABLE_SPEC_OPTIM_END:
        break;
    }
    assert(spec->optim < TABLE_SPEC_OPTIM_END);
    return 0;
}

uint32_t table_spec_state_floats(const struct table_spec *spec)
{
    return optimizer_floats(spec) + (spec->row_decay > 0);
}

bool table_spec_only_adds(const struct table_spec *spec)
{
    const struct optimizer_params params = { .learning_rate = 1 };
    const struct lr_schedule none = { 0 };

    return spec->kind == TABLE_SPEC_DENSE && spec->optim == TABLE_SPEC_SGD &&
           spec->clip_norm == 0 && spec->schedule.warmup_clocks == none.warmup_clocks &&
           spec->schedule.decay == none.decay &&
           memcmp(&spec->params, &params, sizeof params) == 0;
}

uint64_t table_spec_n_blocks(const struct table_spec *spec)
{
    return spec->n_floats / spec->dim + (spec->n_floats % spec->dim != 0);
}

uint64_t table_spec_salt(const struct table_spec *spec)
{
    return spec->kind == TABLE_SPEC_DENSE ? XXH3_64bits(spec->name, strlen(spec->name)) : 0;
}

static uint32_t u32_at(const struct table_spec *spec, const struct field *field)
{
    uint32_t value;

    memcpy(&value, (const char *)spec + field->offset, sizeof value);
    return value;
}

static uint64_t u64_at(const struct table_spec *spec, const struct field *field)
{
    uint64_t value;

    memcpy(&value, (const char *)spec + field->offset, sizeof value);
    return value;
}

static float float_at(const struct table_spec *spec, const struct field *field)
{
    float value;

    memcpy(&value, (const char *)spec + field->offset, sizeof value);
    return value;
}

static int check_name(const char name[static TABLE_SPEC_NAME_MAX], struct err *err)
{
    size_t n = strnlen(name, TABLE_SPEC_NAME_MAX);

    if (n == 0)
        return err_set(err, PS_ESPEC, "the table has no name");
    if (n == TABLE_SPEC_NAME_MAX)
        return err_set(err, PS_ESPEC, "the table's name is longer than %d bytes",
                       TABLE_SPEC_NAME_MAX - 1);
    for (size_t i = 0; i < n; i++)
        if (name[i] <= ' ' || name[i] > '~')
            return err_set(err, PS_ESPEC,
                           "byte %zu of the table's name is 0x%02x; expected printable ASCII "
                           "without blanks",
                           i, (unsigned char)name[i]);
    return 0;
}

static int check_field(const struct table_spec *spec, const struct field *field,
                       struct err *err)
{
    double value = 0;

    switch (field->type) {
    case FIELD_U64:
        return 0;
    case FIELD_FLOAT:
        value = (double)float_at(spec, field);
        break;
    case FIELD_U32:
    case FIELD_NAME:
        value = u32_at(spec, field);
        break;
    }
    if (value >= field->min && value <= field->max) /* false for NaN */
        return 0;
    if (field->type == FIELD_NAME)
        return err_set(err, PS_ESPEC,
                       "table %s: %s is number %.0f; expected 0 (%s) to %.0f (%s)", spec->name,
                       field->name, value, field->names[0], field->max,
                       field->names[(size_t)field->max]);
    if (field->max == ANY_FLOAT)
        return err_set(err, PS_ESPEC,
                       "table %s: %s is %.9g; expected a finite number that is not negative",
                       spec->name, field->name, value);
    return err_set(err, PS_ESPEC, "table %s: %s is %.9g; expected %.9g to %.9g", spec->name,
                   field->name, value, field->min, field->max);
}

/* Does it divide by the root of a sum of squares, and epsilon? */
static bool is_adagrad(const struct table_spec *spec)
{
    return spec->optim == TABLE_SPEC_ADAGRAD || spec->optim == TABLE_SPEC_ROWWISE_ADAGRAD ||
           spec->optim == TABLE_SPEC_SM3 || spec->optim == TABLE_SPEC_SM3_MATRIX;
}

/* Does it divide by the root of a mean of squares, and epsilon? */
static bool is_adam(const struct table_spec *spec)
{
    return spec->optim == TABLE_SPEC_ADAM || spec->optim == TABLE_SPEC_ADAMW ||
           spec->optim == TABLE_SPEC_LAMB;
}

/* Would a gradient of zero on a row that never had another be divided by zero? */
static bool divides_by_zero(const struct table_spec *spec)
{
    return spec->params.epsilon == 0 &&
           (is_adam(spec) || spec->optim == TABLE_SPEC_LARS ||
            (is_adagrad(spec) && spec->params.initial_accumulator == 0));
}

/* A dense array is all there or not at all. */
static int check_unlimited(const struct table_spec *spec, struct err *err)
{
    const struct table_spec_limits *l = &spec->limits;
    const struct {
        const char *name;
        uint64_t value;
    } all[] = {
        { "admit_touches", l->admit_touches },
        { "admit_clocks", l->admit_clocks },
        { "idle_clocks", l->idle_clocks },
        { "ttl_s", l->ttl_s },
        { "rare_touches", l->rare_touches },
        { "rare_clocks", l->rare_clocks },
        { "victims", l->victims },
        { "max_bytes", l->max_bytes },
    };

    for (size_t i = 0; i < COUNT_OF(all); i++)
        if (all[i].value)
            return err_set(err, PS_ESPEC,
                           "table %s: %s is %llu; expected 0, as the table is dense",
                           spec->name, all[i].name, (unsigned long long)all[i].value);
    return 0;
}

static int check_limits(const struct table_spec *spec, struct err *err)
{
    const struct table_spec_limits *l = &spec->limits;

    if (l->admit_touches > 1 && !l->admit_clocks)
        return err_set(err, PS_ESPEC,
                       "table %s: admit_clocks is 0; expected 1 or more with admit_touches %u",
                       spec->name, l->admit_touches);
    if (l->admit_clocks && l->admit_touches < 2)
        return err_set(
            err, PS_ESPEC,
            "table %s: admit_touches is %u; expected 2 or more with admit_clocks %llu",
            spec->name, l->admit_touches, (unsigned long long)l->admit_clocks);
    if (l->rare_touches && !l->rare_clocks)
        return err_set(err, PS_ESPEC,
                       "table %s: rare_clocks is 0; expected 1 or more with rare_touches %u",
                       spec->name, l->rare_touches);
    if (l->rare_clocks && !l->rare_touches)
        return err_set(err, PS_ESPEC,
                       "table %s: rare_touches is 0; expected 1 or more with rare_clocks %llu",
                       spec->name, (unsigned long long)l->rare_clocks);
    return 0;
}

/* A block as long as a layer may be has one layer and nothing else. */
static int check_dim(const struct table_spec *spec, struct err *err)
{
    if (spec->dim <= TABLE_SPEC_DIM_MAX)
        return 0;
    if (spec->kind != TABLE_SPEC_DENSE || !table_spec_takes_layers(spec->optim))
        return err_set(err, PS_ESPEC,
                       "table %s: dim is %u; expected at most %u, except of a dense table with "
                       "lamb or lars, which is one layer",
                       spec->name, spec->dim, TABLE_SPEC_DIM_MAX);
    if (spec->dim != spec->n_floats)
        return err_set(err, PS_ESPEC,
                       "table %s: dim is %u and n_floats %llu; expected the same above %u, "
                       "as the table is then one layer",
                       spec->name, spec->dim, (unsigned long long)spec->n_floats,
                       TABLE_SPEC_DIM_MAX);
    return 0;
}

/* What no single field's range can say. */
static int check_together(const struct table_spec *spec, struct err *err)
{
    int status = check_dim(spec, err);

    if (status)
        return status;
    if (spec->kind == TABLE_SPEC_DENSE &&
        (spec->n_floats == 0 || spec->n_floats > TABLE_SPEC_FLOATS_MAX))
        return err_set(err, PS_ESPEC,
                       "table %s: n_floats is %llu; expected 1 to %llu of a dense table",
                       spec->name, (unsigned long long)spec->n_floats,
                       (unsigned long long)TABLE_SPEC_FLOATS_MAX);
    if (spec->kind == TABLE_SPEC_SPARSE && spec->n_floats != 0)
        return err_set(err, PS_ESPEC,
                       "table %s: n_floats is %llu; expected 0, as the table is sparse",
                       spec->name, (unsigned long long)spec->n_floats);
    if (spec->row_decay > 0 && spec->row_decay < TABLE_SPEC_ROW_DECAY_MIN)
        return err_set(err, PS_ESPEC,
                       "table %s: row_decay is %.9g; expected 0 or at least %g, as weights are "
                       "floats, and a step that changes less is lost",
                       spec->name, (double)spec->row_decay, (double)TABLE_SPEC_ROW_DECAY_MIN);
    if (spec->kind == TABLE_SPEC_DENSE && spec->row_decay > 0)
        return err_set(err, PS_ESPEC,
                       "table %s: row_decay is %.9g; expected 0 of a dense table, all of whose "
                       "weights have a gradient: weight_decay",
                       spec->name, (double)spec->row_decay);
    if (spec->optim == TABLE_SPEC_FTRL && spec->row_decay > 0)
        return err_set(
            err, PS_ESPEC,
            "table %s: row_decay is %.9g; expected 0 with ftrl, whose weights follow "
            "from its sums: ftrl_l2",
            spec->name, (double)spec->row_decay);
    if (spec->params.nesterov != 0 && spec->params.nesterov != 1)
        return err_set(err, PS_ESPEC, "table %s: nesterov is %.9g; expected 0 or 1", spec->name,
                       (double)spec->params.nesterov);
    if (spec->optim == TABLE_SPEC_FTRL && spec->params.learning_rate == 0)
        return err_set(err, PS_ESPEC, "table %s: learning_rate is 0; FTRL divides by it",
                       spec->name);
    if (divides_by_zero(spec))
        return err_set(err, PS_ESPEC, "table %s: epsilon is 0; %s then divides 0 by 0",
                       spec->name, table_spec_optim_name(spec->optim));
    if (spec->schedule.decay != TABLE_SPEC_DECAY_NONE && spec->schedule.decay_clocks == 0)
        return err_set(err, PS_ESPEC,
                       "table %s: decay_clocks is 0; expected 1 or more with decay %s",
                       spec->name, table_spec_decay_name(spec->schedule.decay));
    if ((spec->schedule.decay == TABLE_SPEC_DECAY_EXP ||
         spec->schedule.decay == TABLE_SPEC_DECAY_STEP) &&
        spec->schedule.decay_rate == 0)
        return err_set(err, PS_ESPEC, "table %s: decay_rate is 0; expected more with decay %s",
                       spec->name, table_spec_decay_name(spec->schedule.decay));
    return spec->kind == TABLE_SPEC_DENSE ? check_unlimited(spec, err)
                                          : check_limits(spec, err);
}

int table_spec_check(const struct table_spec *spec, struct err *err)
{
    int status = check_name(spec->name, err);

    for (size_t i = 0; i < COUNT_OF(fields) && !status; i++)
        status = check_field(spec, &fields[i], err);
    return status ? status : check_together(spec, err);
}

/* Psds before those with AdamW end the connection at an optimizer that they do not know. */
int table_spec_explain(const struct table_spec *spec, int status, struct err *err)
{
    if (status != PS_EPROTO || spec->optim <= TABLE_SPEC_FTRL)
        return status;
    return err_set(err, status,
                   "table %s: %s; so does a psd of an older version end a connection that asks "
                   "for optimizer %s, which it does not know: upgrade the servers first",
                   spec->name, status_text(status), table_spec_optim_name(spec->optim));
}

/* --- the ranges of new tables --- */

/* The range of one field, where that of a new table is the smaller one. */
static int check_new_field(const struct table_spec *spec, const struct field *field,
                           struct err *err)
{
    struct field tight = *field;

    if (field->new_max == 0)
        return 0;
    tight.max = field->new_max;
    return check_field(spec, &tight, err);
}

/* What makes weights infinite though each number is in its range. */
static int check_growth(const struct table_spec *spec, struct err *err)
{
    const struct optimizer_params *p = &spec->params;
    const double rate = (double)p->learning_rate;

    if ((spec->optim == TABLE_SPEC_SGD || spec->optim == TABLE_SPEC_MOMENTUM) &&
        rate * (double)p->weight_decay > 2)
        return err_set(
            err, PS_ESPEC,
            "table %s: learning_rate times weight_decay is %.9g; expected at most 2, "
            "beyond which weights grow without bound",
            spec->name, rate * (double)p->weight_decay);
    if ((spec->optim == TABLE_SPEC_ADAMW || spec->optim == TABLE_SPEC_LION ||
         spec->optim == TABLE_SPEC_CAME) &&
        rate * (double)p->weight_decay > 1)
        return err_set(
            err, PS_ESPEC,
            "table %s: learning_rate times weight_decay is %.9g; expected at most 1, "
            "which leaves nothing of a weight",
            spec->name, rate * (double)p->weight_decay);
    if ((spec->optim == TABLE_SPEC_ADAM || spec->optim == TABLE_SPEC_ADAMW) &&
        rate > 1e16 * (double)p->epsilon)
        return err_set(err, PS_ESPEC,
                       "table %s: epsilon is %.9g; expected at least learning_rate / 1e16",
                       spec->name, (double)p->epsilon);
    if (table_spec_takes_layers(spec->optim) && p->epsilon < 1e-12f)
        return err_set(err, PS_ESPEC, "table %s: epsilon is %.9g; expected at least 1e-12",
                       spec->name, (double)p->epsilon);
    if (spec->optim == TABLE_SPEC_FTRL && rate < 1e-8)
        return err_set(err, PS_ESPEC,
                       "table %s: learning_rate is %.9g; FTRL divides by it: expected at least "
                       "1e-8",
                       spec->name, rate);
    if (spec->optim == TABLE_SPEC_FTRL && p->ftrl_beta == 0 && p->ftrl_l2 == 0 &&
        p->initial_accumulator == 0)
        return err_set(err, PS_ESPEC,
                       "table %s: ftrl_beta, ftrl_l2 and initial_accumulator are 0; FTRL then "
                       "divides by 0",
                       spec->name);
    return 0;
}

int table_spec_check_new(const struct table_spec *spec, struct err *err)
{
    int status = table_spec_check(spec, err);

    for (size_t i = 0; i < COUNT_OF(fields) && !status; i++)
        status = check_new_field(spec, &fields[i], err);
    return status ? status : check_growth(spec, err);
}

static int differ(const char *table, const struct field *field, const struct table_spec *have,
                  const struct table_spec *want, struct err *err)
{
    switch (field->type) {
    case FIELD_FLOAT: {
        char here[NUMBER_TEXT_MAX], asked[NUMBER_TEXT_MAX];

        number_write_float(float_at(have, field), here);
        number_write_float(float_at(want, field), asked);
        return err_set(err, PS_ESPEC, "table %s: %s is %s here, %s was asked for", table,
                       field->name, here, asked);
    }
    case FIELD_NAME: {
        const char *here = name_of(field->names, (size_t)field->max + 1, u32_at(have, field));
        const char *asked = name_of(field->names, (size_t)field->max + 1, u32_at(want, field));

        return err_set(err, PS_ESPEC, "table %s: %s is %s here, %s was asked for", table,
                       field->name, here ? here : "out of range",
                       asked ? asked : "out of range");
    }
    case FIELD_U32:
        return err_set(err, PS_ESPEC, "table %s: %s is %u here, %u was asked for", table,
                       field->name, u32_at(have, field), u32_at(want, field));
    case FIELD_U64:
        break;
    }
    return err_set(err, PS_ESPEC, "table %s: %s is %llu here, %llu was asked for", table,
                   field->name, (unsigned long long)u64_at(have, field),
                   (unsigned long long)u64_at(want, field));
}

static bool is_same(const struct table_spec *a, const struct table_spec *b,
                    const struct field *field)
{
    return memcmp((const char *)a + field->offset, (const char *)b + field->offset,
                  field->type == FIELD_U64 ? 8 : 4) == 0;
}

/* Both leave the learning rate to the job's training, which may have changed it since either was written. */
static bool is_trained_rate(const struct table_spec *have, const struct table_spec *want,
                            const struct field *field)
{
    return field->offset == AT(params.learning_rate) &&
           have->schedule.decay == TABLE_SPEC_DECAY_PLATEAU &&
           want->schedule.decay == TABLE_SPEC_DECAY_PLATEAU;
}

static int check_names(const struct table_spec *have, const struct table_spec *want,
                       struct err *err)
{
    return strcmp(have->name, want->name) == 0
               ? 0
               : err_set(err, PS_ESPEC, "table %s: name is %s here, %s was asked for",
                         have->name, have->name, want->name);
}

static void print_value(const struct table_spec *spec, const struct field *field,
                        char dst[NUMBER_TEXT_MAX])
{
    const char *name;

    switch (field->type) {
    case FIELD_FLOAT:
        number_write_float(float_at(spec, field), dst);
        return;
    case FIELD_NAME:
        name = name_of(field->names, (size_t)field->max + 1, u32_at(spec, field));
        snprintf(dst, NUMBER_TEXT_MAX, "%s", name ? name : "?");
        return;
    case FIELD_U32:
        snprintf(dst, NUMBER_TEXT_MAX, "%u", u32_at(spec, field));
        return;
    case FIELD_U64:
        break;
    }
    snprintf(dst, NUMBER_TEXT_MAX, "%llu", (unsigned long long)u64_at(spec, field));
}

/* lr and clip of dense tables have names of their own. */
static const char *dense_prefix(const struct table_spec *spec, const struct field *field)
{
    return spec->kind == TABLE_SPEC_DENSE &&
                   (strcmp(field->setting, "lr") == 0 || strcmp(field->setting, "clip") == 0)
               ? "dense-"
               : "";
}

/* Of all fields from `first` on that differ and can be changed, as one alone may be invalid: "lr=1,decay=none". */
static bool print_settings(const struct table_spec *have, const struct table_spec *want,
                           size_t first, char dst[TABLE_SPEC_SETTINGS_MAX])
{
    size_t n = 0;

    for (size_t i = first; i < COUNT_OF(fields) && n < TABLE_SPEC_SETTINGS_MAX; i++) {
        char value[NUMBER_TEXT_MAX];

        if (!fields[i].setting || is_same(have, want, &fields[i]))
            continue;
        print_value(want, &fields[i], value);
        n += (size_t)snprintf(dst + n, TABLE_SPEC_SETTINGS_MAX - n, "%s%s%s=%s", n ? "," : "",
                              dense_prefix(want, &fields[i]), fields[i].setting, value);
    }
    return n < TABLE_SPEC_SETTINGS_MAX;
}

/* The command that gives the table what was asked for. One that only adds is changed under its own name alone. */
static void add_advice(const struct table_spec *have, const struct table_spec *want,
                       size_t first, struct err *err)
{
    const char *slash = strchr(want->name, '/');
    char settings[TABLE_SPEC_SETTINGS_MAX];
    size_t n_name, n = err ? strlen(err->text) : 0;

    if (!err || !slash || !fields[first].setting ||
        !print_settings(have, want, first, settings))
        return;
    n_name = table_spec_only_adds(have) ? strlen(want->name) : (size_t)(slash - want->name);
    snprintf(err->text + n, sizeof err->text - n, " (psctl set %.*s %s changes it)",
             (int)n_name, want->name, settings);
}

int table_spec_same(const struct table_spec *have, const struct table_spec *want,
                    struct err *err)
{
    int status = check_names(have, want, err);

    for (size_t i = 0; i < COUNT_OF(fields) && !status; i++)
        if (!is_same(have, want, &fields[i]) && !is_trained_rate(have, want, &fields[i])) {
            status = differ(have->name, &fields[i], have, want, err);
            add_advice(have, want, i, err);
        }
    return status;
}

int table_spec_same_layout(const struct table_spec *have, const struct table_spec *want,
                           struct err *err)
{
    int status = check_names(have, want, err);

    for (size_t i = 0; i < COUNT_OF(fields) && !status; i++)
        if (!fields[i].setting && !is_same(have, want, &fields[i]))
            status = differ(have->name, &fields[i], have, want, err);
    return status;
}

/* --- settings of a table that is there --- */

static const struct field *find_setting(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(fields); i++)
        if (fields[i].setting && strcmp(fields[i].setting, name) == 0)
            return &fields[i];
    return NULL;
}

static int find_name(const struct field *field, const char *value, uint32_t *ret)
{
    for (*ret = 0; *ret <= (uint32_t)field->max; ++*ret)
        if (strcmp(field->names[*ret], value) == 0)
            return 0;
    return PS_ESPEC;
}

static int write_field(struct table_spec *spec, const struct field *field, const char *value)
{
    char *at = (char *)spec + field->offset;
    uint64_t number = 0;
    uint32_t small = 0;
    float real = 0;
    int status;

    switch (field->type) {
    case FIELD_FLOAT:
        status = number_read_float(value, &real);
        memcpy(at, &real, sizeof real);
        return status;
    case FIELD_NAME:
        status = find_name(field, value, &small);
        memcpy(at, &small, sizeof small);
        return status;
    case FIELD_U32:
        status = number_read_u64(value, &number);
        small = (uint32_t)number;
        memcpy(at, &small, sizeof small);
        return status || number > UINT32_MAX ? PS_ESPEC : 0;
    case FIELD_U64:
        break;
    }
    status = number_read_u64(value, &number);
    memcpy(at, &number, sizeof number);
    return status;
}

/* Does a setting of this name say anything of the table? psworker clips gradients of embedding rows alone, so a job's
 * dense tables have no part in "clip". */
static bool concerns(const struct table_spec *spec, const char *name)
{
    const bool is_dense = spec->kind == TABLE_SPEC_DENSE;

    if (strcmp(name, "dense-lr") == 0 || strcmp(name, "dense-clip") == 0)
        return is_dense;
    return strcmp(name, "clip") != 0 || !is_dense;
}

static int set_one(struct table_spec *spec, const char *name, const char *value,
                   struct err *err)
{
    const struct field *field = find_setting(strcmp(name, "dense-lr") == 0     ? "lr"
                                             : strcmp(name, "dense-clip") == 0 ? "clip"
                                                                               : name);
    struct table_spec changed = *spec;

    if (!field)
        return err_set(err, PS_ESPEC,
                       "setting \"%.40s\": expected one of lr, dense-lr, epsilon, momentum, "
                       "weight-decay, beta1, beta2, lr-decay, warmup, decay, decay-start, "
                       "decay-clocks, decay-rate, decay-floor, clip, dense-clip",
                       name);
    if (write_field(&changed, field, value))
        return err_set(err, PS_ESPEC, "setting %s: found \"%.40s\", expected %s", name, value,
                       field->type == FIELD_NAME
                           ? "none, linear, exp, inv_sqrt, cosine, step or plateau"
                           : "a number");
    if (!concerns(spec, name))
        return 0;
    *spec = changed;
    return check_new_field(spec, field, err);
}

/* As long as epsilon was added, a row could be assigned with a sum of squares of 0. */
static int check_epsilon(const struct table_spec *before, const struct table_spec *changed,
                         struct err *err)
{
    if (!is_adagrad(before) || before->params.epsilon == 0 || changed->params.epsilon > 0)
        return 0;
    return err_set(err, PS_ESPEC,
                   "table %s: epsilon is %g, and is not set to 0: rows whose sum of squares is "
                   "0 would become NaN",
                   before->name, (double)before->params.epsilon);
}

int table_spec_set(struct table_spec *spec, const char *settings, struct err *err)
{
    struct table_spec changed = *spec;
    char copy[TABLE_SPEC_SETTINGS_MAX], *next = copy, *item;
    size_t n = strnlen(settings, sizeof copy);
    int status = 0;

    if (n == 0 || n == sizeof copy)
        return err_set(err, PS_ESPEC,
                       "settings: found %zu characters, expected 1 to %zu, as in "
                       "lr=0.005,decay=none",
                       n, sizeof copy - 1);
    memcpy(copy, settings, n + 1);
    while (!status && (item = strsep(&next, ",")) != NULL) {
        char *value = strchr(item, '=');

        if (!value)
            return err_set(err, PS_ESPEC, "setting \"%.40s\": expected NAME=VALUE", item);
        *value = '\0';
        status = set_one(&changed, item, value + 1, err);
    }
    if (!status)
        status = table_spec_check(&changed, err);
    if (!status)
        status = check_epsilon(spec, &changed, err);
    /* One from before the ranges of new tables stays as it is, but for what is set. */
    if (!status && table_spec_check_new(spec, NULL) == 0)
        status = table_spec_check_new(&changed, err);
    if (!status)
        *spec = changed;
    return status;
}

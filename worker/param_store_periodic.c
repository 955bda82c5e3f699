#include "worker/param_store_periodic.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/cache/period_rows.h"
#include "worker/param_store_proxy.h"

struct periodic_table {
    struct local_tensor tensor;
    uint32_t period, phase;
    uint64_t *keys;              /* owned: of all blocks, of what freezes it, too */
    struct ps_push_section last; /* its step's push, as this worker asked for it last */
    /* How often it was pushed; what that was at the pull under way, and at the one that brought what is here. */
    uint64_t n_pushed, asked_at, pulled_at;
    bool is_asked; /* by the pull under way */
    bool lacks;    /* the servers lack something */
    struct variance {
        uint32_t table;
        float *values;  /* owned: to be pushed, or pulled; NULL: it is not to be frozen */
        bool is_asked;  /* by the pull under way */
        bool is_pushed; /* this worker's part of it */
    } variance;
};

/* An embedding table with a period. */
struct row_table {
    struct period_rows rows;
    uint32_t period;
    struct ps_push_section last; /* as of a dense table */
    bool lacks;
    uint32_t n_asked, cap; /* of the pull under way: rows that are not here */
    uint32_t *numbers;     /* owned, as below; [cap], in its section */
    uint64_t *keys;        /* [cap] */
    float *weights;        /* [cap][dim] */
};

struct periodic {
    struct param_store_proxy forward;
    struct param_store_ops ops; /* below */
    struct param_store_periodic_options options;
    pthread_mutex_t lock; /* of the tables, which a pull and a push use */
    struct periodic_table *tables[PS_TABLES_MAX]; /* owned; NULL: pushed at each step */
    struct row_table *row_tables[PS_TABLES_MAX];  /* owned; NULL, likewise */
    struct merge {                                /* of the adaptive weight */
        bool is_there;                            /* it has a table, and may have been pulled */
        uint32_t table;
        float value, to_push; /* what the servers have: the mean square of the last merge */
        double square;        /* |d_k|^2 of what is being pushed */
    } merge;
    uint64_t next_clock;                 /* behind the last step that was pushed; 0: none */
    uint32_t n_samples;                  /* of that push: the weight of what is left */
    const struct ps_pull_section *asked; /* borrowed by a step's pull until its wait */
    uint32_t n_asked;
    struct ps_pull_section pulls[SECTIONS_MAX]; /* what the inner pull borrows */
    struct ps_push_section pushes[SECTIONS_MAX];
};

static struct periodic *periodic_of(const struct param_store *s)
{
    return (struct periodic *)(void *)(uintptr_t)s;
}

/* --- tables --- */

static uint32_t period_of(const struct periodic *p, const struct table_spec *spec)
{
    if (spec->kind != TABLE_SPEC_DENSE || table_spec_only_adds(spec))
        return 0;
    return p->options.period_of(p->options.arg, spec->name);
}

static bool is_periodic(const struct periodic *p, const struct table_spec *spec)
{
    return period_of(p, spec) > (p->options.rule == LOCAL_TENSOR_SUM);
}

/* Momentum SGD has no beta1; a table of it that is made otherwise has another number there. */
#define MERGES_BETA1 0.0f

bool param_store_periodic_merges(const struct table_spec *have)
{
    return have->optim == TABLE_SPEC_MOMENTUM && have->params.beta1 == MERGES_BETA1;
}

/* Never one that only adds, which psd keeps apart from those that are trained. */
static struct table_spec outer_spec(const struct periodic *p, const struct table_spec *spec)
{
    struct table_spec outer = *spec;

    if (p->options.rule == LOCAL_TENSOR_SUM)
        return outer;
    outer.optim = TABLE_SPEC_MOMENTUM;
    outer.params = table_spec_optim_defaults(TABLE_SPEC_MOMENTUM);
    outer.params.learning_rate = p->options.slow_lr;
    outer.params.momentum = p->options.slow_momentum;
    outer.params.beta1 = MERGES_BETA1;
    outer.schedule = (struct lr_schedule){ 0 };
    outer.clip_norm = 0;
    return outer;
}

/* Floats of the tables of this period whose pushes have this phase. */
static uint64_t load_of(const struct periodic *p, uint32_t period, uint32_t phase)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < PS_TABLES_MAX; i++) {
        const struct periodic_table *t = p->tables[i];

        n += t && t->period == period && t->phase == phase ? t->tensor.n_floats : 0;
    }
    return n;
}

/* The one with the least load; tables come in the model's order, so it is the same for all workers. */
static uint32_t choose_phase(const struct periodic *p, uint32_t period)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < period && p->options.rotates && load_of(p, period, best); i++)
        if (load_of(p, period, i) < load_of(p, period, best))
            best = i;
    return best;
}

static void free_table(struct periodic_table *t)
{
    if (!t)
        return;
    local_tensor_deinit(&t->tensor);
    free(t->variance.values);
    free(t->keys);
    free(t);
}

static int make_table(const struct periodic *p, const struct table_spec *spec,
                      struct periodic_table **ret)
{
    const uint64_t n = local_tensor_frozen_floats(spec) / spec->dim;
    struct periodic_table *t = memory_try_alloc(sizeof *t);
    int status;

    if (!t)
        return -ENOMEM;
    *t = (struct periodic_table){ .period = period_of(p, spec) };
    t->phase = choose_phase(p, t->period);
    t->keys = memory_try_alloc(n * sizeof *t->keys);
    status = local_tensor_init(
        &t->tensor, spec, p->options.rule,
        (struct local_tensor_uses){ .may_freeze = p->options.freeze_at != 0,
                                    .stretches = p->options.merges_adaptively > 1 });
    if (!status && !t->keys)
        status = -ENOMEM;
    if (status) {
        free_table(t);
        return status;
    }
    for (uint64_t i = 0; i < n; i++)
        t->keys[i] = i;
    *ret = t;
    return 0;
}

/* A table beside those of the model, that adds up what is pushed, from 0: "JOB/NAME" of the job of `like`. */
static struct table_spec own_spec(const struct table_spec *like, const char *name,
                                  const char *tail, uint64_t n_floats)
{
    struct table_spec spec = { .kind = TABLE_SPEC_DENSE,
                               .dim = n_floats < like->dim ? (uint32_t)n_floats : like->dim,
                               .n_floats = n_floats,
                               .optim = TABLE_SPEC_SGD,
                               .params = table_spec_optim_defaults(TABLE_SPEC_SGD),
                               .mode = like->mode,
                               .bound = like->bound };
    const char *slash = strchr(like->name, '/');
    const int n_job = slash ? (int)(slash - like->name) : 0;

    spec.params.learning_rate = 1;
    spec.params.weight_decay = 0;
    snprintf(spec.name, sizeof spec.name, "%.*s/%s%.50s", n_job, like->name, name, tail);
    return spec;
}

static int make_variance(const struct periodic *p, const struct table_spec *spec,
                         struct periodic_table *t, struct err *err)
{
    struct param_store *inner = p->forward.inner;
    const uint64_t n = local_tensor_frozen_floats(spec);
    const char *slash = strchr(spec->name, '/');
    const struct table_spec variance =
        own_spec(spec, "variance.", slash ? slash + 1 : spec->name,
                 n > t->tensor.n_floats ? n : spec->n_floats);
    int status;

    t->variance.values = memory_try_alloc(n * sizeof *t->variance.values);
    if (!t->variance.values)
        return err_set(err, -ENOMEM, "table %s: no memory for a copy", variance.name);
    status = inner->ops->table(inner, &variance, &t->variance.table, err);
    if (status) { /* the next call tries again */
        free(t->variance.values);
        t->variance.values = NULL;
    }
    return status;
}

static int make_merge(struct periodic *p, const struct table_spec *spec, struct err *err)
{
    struct param_store *inner = p->forward.inner;
    const struct table_spec merge = own_spec(spec, "merge", "", 1);
    int status = inner->ops->table(inner, &merge, &p->merge.table, err);

    p->merge.is_there = !status;
    return status;
}

static void free_row_table(struct row_table *t)
{
    if (!t)
        return;
    period_rows_deinit(&t->rows);
    free(t->numbers);
    free(t->keys);
    free(t->weights);
    free(t);
}

static int row_table(struct periodic *p, const struct table_spec *spec, uint32_t *ret_table,
                     struct err *err)
{
    struct param_store *inner = p->forward.inner;
    const uint32_t period = spec->kind == TABLE_SPEC_SPARSE && p->options.row_period_of
                                ? p->options.row_period_of(p->options.arg, spec->name)
                                : 1;
    const int status = inner->ops->table(inner, spec, ret_table, err);
    struct row_table *t;

    if (status || period == 1 || p->row_tables[*ret_table])
        return status;
    t = memory_try_alloc(sizeof *t);
    if (!t)
        return err_set(err, -ENOMEM, "table %s: no memory", spec->name);
    t->period = period;
    period_rows_init(&t->rows, spec->dim);
    p->row_tables[*ret_table] = t;
    return 0;
}

static int table(struct param_store *s, const struct table_spec *spec, uint32_t *ret_table,
                 struct err *err)
{
    struct periodic *p = periodic_of(s);
    struct param_store *inner = p->forward.inner;
    struct periodic_table *t;
    struct table_spec outer;
    int status;

    if (!is_periodic(p, spec))
        return row_table(p, spec, ret_table, err);
    outer = outer_spec(p, spec);
    status = inner->ops->table(inner, &outer, ret_table, err);
    if (!status && !p->tables[*ret_table] && make_table(p, spec, &p->tables[*ret_table]))
        status = err_set(err, -ENOMEM, "table %s: no memory for a copy", spec->name);
    if (!status && p->options.merges_adaptively > 1 && !p->merge.is_there)
        status = make_merge(p, spec, err);
    t = status ? NULL : p->tables[*ret_table];
    return t && p->options.freeze_at && !t->variance.values ? make_variance(p, spec, t, err)
                                                            : status;
}

/* The worker's optimizer is no part of a table, so it is as the caller says. */
static int table_find(struct param_store *s, struct table_spec *spec, uint32_t *ret_table,
                      struct err *err)
{
    const struct periodic *p = periodic_of(s);
    struct param_store *inner = p->forward.inner;
    const struct table_spec want = *spec;
    int status = inner->ops->table_find(inner, spec, ret_table, err);

    if (status || p->options.rule == LOCAL_TENSOR_SUM || !is_periodic(p, &want))
        return status;
    spec->optim = want.optim;
    spec->params = want.params;
    spec->schedule = want.schedule;
    return 0;
}

/* --- pull --- */

/* There may be second moments of this worker's time, or of one before; under the lock. */
static bool ask_variance(struct periodic_table *t)
{
    if (!t)
        return false;
    t->variance.is_asked = t->variance.values && t->is_asked && !t->tensor.is_frozen &&
                           (t->variance.is_pushed || !t->tensor.is_here);
    return t->variance.is_asked;
}

static uint32_t n_frozen_blocks(const struct periodic_table *t)
{
    return (uint32_t)(local_tensor_frozen_floats(&t->tensor.spec) / t->tensor.spec.dim);
}

static struct ps_pull_section variance_pull(const struct periodic_table *t)
{
    return (struct ps_pull_section){ .table = t->variance.table,
                                     .n_keys = n_frozen_blocks(t),
                                     .keys = t->keys,
                                     .dst = t->variance.values };
}

/* Once the table itself is here. Where all are 0 there are none: no worker has pushed them, or there was no gradient
 * yet. Then they are shared again. */
static void take_variance(struct periodic_table *t)
{
    bool any = false;

    for (uint64_t i = 0; i < t->tensor.n_floats && !any; i++)
        any = t->variance.values[i] != 0;
    if (any)
        local_tensor_freeze(&t->tensor, t->variance.values);
    else
        t->variance.is_pushed = false;
}

static const uint64_t merge_key;

/* All tables were pushed together, and are asked for together. */
static struct ps_pull_section merge_pull(struct periodic *p)
{
    return (struct ps_pull_section){
        .table = p->merge.table, .n_keys = 1, .keys = &merge_key, .dst = &p->merge.value
    };
}

static bool asks_any(const struct periodic *p, const struct ps_pull_section *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (p->tables[s[i].table] && p->tables[s[i].table]->is_asked)
            return true;
    return false;
}

/* Once all tables are here. */
static void stretch_all(const struct periodic *p)
{
    double merged = 0, theta;

    for (uint32_t i = 0; i < p->n_asked; i++) {
        const struct periodic_table *t = p->tables[p->asked[i].table];

        merged += t && t->is_asked ? local_tensor_merged_square(&t->tensor) : 0;
    }
    theta = local_tensor_theta((double)p->merge.value, merged, p->options.merges_adaptively);
    for (uint32_t i = 0; i < p->n_asked; i++) {
        struct periodic_table *t = p->tables[p->asked[i].table];

        if (t && t->is_asked)
            local_tensor_stretch(&t->tensor, theta, p->asked[i].dst);
    }
}

/* Space for the rows that may not be here; it holds nothing that must stay. */
static int reserve_asked(struct row_table *t, uint32_t n)
{
    if (n <= t->cap)
        return 0;
    free(t->numbers);
    free(t->keys);
    free(t->weights);
    t->numbers = memory_try_alloc(n * sizeof *t->numbers);
    t->keys = memory_try_alloc(n * sizeof *t->keys);
    t->weights = memory_try_alloc((size_t)n * t->rows.dim * sizeof *t->weights);
    t->cap = t->numbers && t->keys && t->weights ? n : 0;
    return t->cap ? 0 : -ENOMEM;
}

/* Without memory all rows are asked for, and none is kept. */
static bool ask_rows(struct row_table *t, struct ps_pull_section *s)
{
    t->n_asked = 0;
    if (reserve_asked(t, s->n_keys))
        return true;
    t->n_asked = period_rows_read(&t->rows, s->n_keys, s->keys, s->dst, t->numbers);
    for (uint32_t i = 0; i < t->n_asked; i++)
        t->keys[i] = s->keys[t->numbers[i]];
    s->n_keys = t->n_asked;
    s->keys = t->keys;
    s->dst = t->weights;
    return t->n_asked > 0;
}

static void answer_rows(struct row_table *t, const struct ps_pull_section *s)
{
    const uint32_t dim = t->rows.dim;

    for (uint32_t i = 0; i < t->n_asked; i++) {
        const float *weights = t->weights + (size_t)i * dim;

        memcpy(s->dst + (size_t)t->numbers[i] * dim, weights, dim * sizeof *weights);
        period_rows_keep(&t->rows, t->keys[i], weights);
    }
    t->n_asked = 0;
}

/* True if the servers are asked for *s, which may have become shorter; under the lock. */
static bool ask(struct periodic *p, struct ps_pull_section *s)
{
    struct periodic_table *t = p->tables[s->table];

    if (p->row_tables[s->table])
        return ask_rows(p->row_tables[s->table], s);
    if (!t)
        return true;
    t->is_asked = !t->tensor.is_here || t->pulled_at != t->n_pushed;
    t->asked_at = t->n_pushed;
    t->variance.is_asked = false;
    return t->is_asked;
}

/* Of a step for which all is here: one block of the narrowest table, which is read here afterwards, so that a step of
 * lock step or ssp waits for the others as ever. */
static uint32_t ask_to_wait(struct periodic *p, const struct ps_pull_section *s, uint32_t n)
{
    const struct ps_pull_section *best = NULL;
    uint32_t least = 0;

    for (uint32_t i = 0; i < n; i++) {
        const struct periodic_table *t = p->tables[s[i].table];

        if (!t || (best && t->tensor.spec.dim >= least))
            continue;
        best = &s[i];
        least = t->tensor.spec.dim;
    }
    if (!best)
        return 0;
    p->pulls[0] = *best;
    p->pulls[0].n_keys = 1;
    return 1;
}

static int pull_start(struct param_store *s, uint64_t clock,
                      const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    struct periodic *p = periodic_of(s);
    struct param_store *inner = p->forward.inner;
    uint32_t n_left = 0;

    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < n; i++) {
        p->pulls[n_left] = sections[i];
        n_left += ask(p, &p->pulls[n_left]);
    }
    for (uint32_t i = 0; i < n && n_left < SECTIONS_MAX; i++)
        if (ask_variance(p->tables[sections[i].table]))
            p->pulls[n_left++] = variance_pull(p->tables[sections[i].table]);
    if (p->merge.is_there && asks_any(p, sections, n) && n_left < SECTIONS_MAX)
        p->pulls[n_left++] = merge_pull(p);
    if (!n_left)
        n_left = ask_to_wait(p, sections, n);
    pthread_mutex_unlock(&p->lock);
    p->asked = sections;
    p->n_asked = n;
    return inner->ops->pull_start(inner, clock, p->pulls, n_left, err);
}

/* The servers' tables as they are; what is here stays as it is. */
static int pull_for_eval(struct param_store *s, uint64_t clock,
                         const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    struct periodic *p = periodic_of(s);
    struct param_store *inner = p->forward.inner;

    p->n_asked = 0;
    return (inner->ops->pull_for_eval ? inner->ops->pull_for_eval
                                      : inner->ops->pull_start)(inner, clock, sections, n, err);
}

/* Under the lock. */
static void answer(const struct periodic *p, const struct ps_pull_section *s)
{
    struct periodic_table *t = p->tables[s->table];

    if (p->row_tables[s->table])
        answer_rows(p->row_tables[s->table], s);
    if (!t)
        return;
    if (!t->is_asked) {
        local_tensor_read(&t->tensor, s->dst);
        return;
    }
    local_tensor_take(&t->tensor, s->dst);
    t->pulled_at = t->asked_at;
    if (t->variance.is_asked)
        take_variance(t);
}

static int pull_wait(struct param_store *s, struct err *err)
{
    struct periodic *p = periodic_of(s);
    struct param_store *inner = p->forward.inner;
    int status = inner->ops->pull_wait(inner, err);

    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < p->n_asked && !status; i++)
        answer(p, &p->asked[i]);
    if (!status && p->merge.is_there && asks_any(p, p->asked, p->n_asked))
        stretch_all(p);
    pthread_mutex_unlock(&p->lock);
    p->n_asked = 0;
    return status;
}

/* --- push --- */

/* What the servers lack of the table, in the form of its last push; under the lock. */
static struct ps_push_section take_out(struct periodic *p, struct periodic_table *t)
{
    struct ps_push_section section = t->last;

    section.keys = t->keys;
    if (p->merge.is_there)
        p->merge.square += local_tensor_square(&t->tensor);
    section.values = local_tensor_difference(&t->tensor);
    t->lacks = false;
    t->n_pushed++;
    return section;
}

/* Not before the first step: of none the second moment is 0 / 0. */
static bool shares_variance(const struct periodic *p, const struct periodic_table *t,
                            uint64_t clock)
{
    return t && t->variance.values && !t->lacks && !t->variance.is_pushed &&
           !t->tensor.is_frozen && t->tensor.is_here && t->tensor.n_steps &&
           clock + 1 >= p->options.freeze_at;
}

/* The servers subtract what is pushed, and take the mean over workers; under the lock. */
static struct ps_push_section take_out_variance(struct periodic_table *t)
{
    local_tensor_variance(&t->tensor, t->variance.values);
    for (uint64_t i = 0; i < local_tensor_frozen_floats(&t->tensor.spec); i++)
        t->variance.values[i] = -t->variance.values[i];
    t->variance.is_pushed = true;
    return (struct ps_push_section){ .table = t->variance.table,
                                     .n_keys = n_frozen_blocks(t),
                                     .keys = t->keys,
                                     .values = t->variance.values };
}

/* The servers subtract the mean of what is pushed, and so have the mean of the squares then; under the lock. */
static struct ps_push_section take_out_square(struct periodic *p)
{
    p->merge.to_push = (float)((double)p->merge.value - p->merge.square);
    p->merge.square = 0;
    return (struct ps_push_section){
        .table = p->merge.table, .n_keys = 1, .keys = &merge_key, .values = &p->merge.to_push
    };
}

/* What the servers lack of its rows, which then are forgotten; under the lock. */
static struct ps_push_section take_out_rows(struct row_table *t)
{
    struct ps_push_section section = t->last;

    section.n_keys = period_rows_sums(&t->rows, &section.keys, &section.values);
    period_rows_clear(&t->rows);
    t->lacks = false;
    return section;
}

/* As add_step(). */
static int add_rows(struct row_table *t, uint64_t clock, struct ps_push_section *section,
                    bool *ret_goes, struct err *err)
{
    const int status =
        period_rows_add(&t->rows, section->n_keys, section->keys, section->values);

    if (status)
        return err_set(err, status, "--row-period: no memory for the sums of gradients");
    t->last = *section;
    t->lacks = true;
    *ret_goes = (clock + 1) % t->period == 0;
    if (*ret_goes)
        *section = take_out_rows(t);
    return 0;
}

/* *ret_goes false: the servers get nothing of it at this step; under the lock. */
static int add_step(struct periodic *p, uint64_t clock, struct ps_push_section *section,
                    bool *ret_goes, struct err *err)
{
    struct periodic_table *t = p->tables[section->table];

    *ret_goes = true;
    if (section->op != SECTION_GRADIENT)
        return 0;
    if (p->row_tables[section->table])
        return add_rows(p->row_tables[section->table], clock, section, ret_goes, err);
    if (!t)
        return 0;
    local_tensor_step(&t->tensor, section->values, clock);
    t->last = *section;
    t->lacks = true;
    *ret_goes = (clock + 1 + t->phase) % t->period == 0;
    if (*ret_goes)
        *section = take_out(p, t);
    return 0;
}

static int push(struct param_store *s, uint64_t clock, uint32_t n_samples, bool tick,
                const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    struct periodic *p = periodic_of(s);
    struct param_store *inner = p->forward.inner;
    uint32_t n_left = 0;
    int status = 0;

    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < n && !status; i++) {
        bool goes = true;

        p->pushes[n_left] = sections[i];
        status = add_step(p, clock, &p->pushes[n_left], &goes, err);
        n_left += goes;
    }
    for (uint32_t i = 0; i < n && n_left < SECTIONS_MAX; i++)
        if (shares_variance(p, p->tables[sections[i].table], clock))
            p->pushes[n_left++] = take_out_variance(p->tables[sections[i].table]);
    if (p->merge.square > 0 && n_left < SECTIONS_MAX)
        p->pushes[n_left++] = take_out_square(p);
    pthread_mutex_unlock(&p->lock);
    if (status)
        return status;
    if (tick) {
        p->next_clock = clock + 1;
        p->n_samples = n_samples;
    }
    return inner->ops->push(inner, clock, n_samples, tick, p->pushes, n_left, err);
}

/* --- the rest --- */

/* What the servers lack of the table when the worker leaves: its own steps. What all workers have added to the last
 * merge would count once for each clock at which one leaves; under the lock. */
static struct ps_push_section take_out_last(struct periodic *p, struct periodic_table *t)
{
    if (p->merge.is_there)
        local_tensor_unstretch(&t->tensor);
    return take_out(p, t);
}

/* In lock step only a push that ends a step counts. It is there even when nothing is left, so that the clock of a
 * worker that has left is always one more than its batches. */
static int leave(struct param_store *s, struct err *err)
{
    struct periodic *p = periodic_of(s);
    struct param_store *inner = p->forward.inner;
    bool ends_step = p->options.lock_step && p->next_clock;
    struct err ignored;
    uint32_t n = 0;
    int status = 0, left;

    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < PS_TABLES_MAX; i++)
        if (p->tables[i] && p->tables[i]->lacks)
            p->pushes[n++] = take_out_last(p, p->tables[i]);
    for (uint32_t i = 0; i < PS_TABLES_MAX && n < SECTIONS_MAX; i++)
        if (p->row_tables[i] && p->row_tables[i]->lacks)
            p->pushes[n++] = take_out_rows(p->row_tables[i]);
    pthread_mutex_unlock(&p->lock);
    if (n || ends_step)
        status =
            inner->ops->push(inner, p->next_clock, p->n_samples, ends_step, p->pushes, n, err);
    if ((n || ends_step) && !status)
        status = inner->ops->flush(inner, err);
    p->next_clock = 0; /* a second leave() has nothing to add */
    if (status == PS_EFENCED)
        return status;
    left = inner->ops->leave(inner, status ? &ignored : err);
    return status ? status : left;
}

static void drop_rows(struct periodic *p)
{
    for (uint32_t i = 0; i < PS_TABLES_MAX; i++) {
        if (!p->row_tables[i])
            continue;
        period_rows_clear(&p->row_tables[i]->rows);
        p->row_tables[i]->lacks = false;
    }
}

static void drop_unpushed(struct param_store *s)
{
    struct periodic *p = periodic_of(s);

    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < PS_TABLES_MAX; i++)
        if (p->tables[i])
            p->tables[i]->lacks = false;
    drop_rows(p);
    pthread_mutex_unlock(&p->lock);
}

/* A step that leave() ends is one of the new incarnation. */
static uint64_t resume(struct param_store *s)
{
    struct periodic *p = periodic_of(s);
    struct param_store *inner = p->forward.inner;
    uint64_t clock;

    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < PS_TABLES_MAX; i++) {
        if (!p->tables[i])
            continue;
        local_tensor_reset(&p->tables[i]->tensor);
        p->tables[i]->lacks = p->tables[i]->variance.is_pushed = false;
    }
    drop_rows(p);
    pthread_mutex_unlock(&p->lock);
    clock = inner->ops->resume(inner);
    if (p->next_clock)
        p->next_clock = clock;
    return clock;
}

static int prefetch(struct param_store *s, const struct ps_pull_section *sections, uint32_t n,
                    struct err *err)
{
    struct param_store *inner = periodic_of(s)->forward.inner;

    return inner->ops->prefetch(inner, sections, n, err);
}

static void prefetch_end(struct param_store *s)
{
    struct param_store *inner = periodic_of(s)->forward.inner;

    inner->ops->prefetch_end(inner);
}

static void stats(const struct param_store *s, struct ps_stats *ret)
{
    const struct param_store *inner = periodic_of(s)->forward.inner;

    inner->ops->stats(inner, ret);
}

static void close_store(struct param_store *s)
{
    struct periodic *p = periodic_of(s);

    p->forward.inner->ops->close(p->forward.inner);
    for (uint32_t i = 0; i < PS_TABLES_MAX; i++)
        free_table(p->tables[i]);
    for (uint32_t i = 0; i < PS_TABLES_MAX; i++)
        free_row_table(p->row_tables[i]);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static const struct param_store_ops ops = { .table = table,
                                            .table_find = table_find,
                                            .pull_start = pull_start,
                                            .pull_for_eval = pull_for_eval,
                                            .pull_wait = pull_wait,
                                            .push = push,
                                            .flush = param_store_proxy_flush,
                                            .leave = leave,
                                            .drop_unpushed = drop_unpushed,
                                            .copy = param_store_proxy_copy,
                                            .clock = param_store_proxy_clock,
                                            .stats = stats,
                                            .encoder = param_store_proxy_encoder,
                                            .resume = resume,
                                            .cancel = param_store_proxy_cancel,
                                            .close = close_store };

struct param_store *param_store_periodic_new(struct param_store *inner,
                                             const struct param_store_periodic_options *options)
{
    struct periodic *p = memory_alloc(sizeof *p);

    *p = (struct periodic){ .forward = { { &p->ops, inner->journal }, inner, NULL },
                            .ops = ops,
                            .options = *options };
    p->ops.overlaps = inner->ops->overlaps;
    /* Rows with a period are here, or are asked for one by one. */
    p->ops.has_places = inner->ops->has_places && !options->row_period_of;
    if (inner->ops->prefetch && !options->row_period_of)
        p->ops.prefetch = prefetch;
    if (inner->ops->prefetch_end && !options->row_period_of)
        p->ops.prefetch_end = prefetch_end;
    pthread_mutex_init(&p->lock, NULL);
    return &p->forward.store;
}

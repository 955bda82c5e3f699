/* The trainer's tables on psd servers: one call of libps for each. */
#include "common/memory.h"
#include "worker/param_store.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct remote {
    struct param_store store;
    struct ps_client *client;   /* owned, but by a reader's view */
    struct ps_pull *pull;       /* under way: the trainer has one at a time; or NULL */
    float rates[PS_TABLES_MAX]; /* that this run has pushed (SECTION_RATE); 0: none */
};

static struct remote *remote_of(struct param_store *s)
{
    return (struct remote *)(void *)s;
}

static struct ps_client *client(const struct param_store *s)
{
    return ((const struct remote *)(const void *)s)->client;
}

static int table(struct param_store *s, const struct table_spec *spec, uint32_t *ret_table,
                 struct err *err)
{
    return ps_table(client(s), spec, ret_table, err);
}

static int table_find(struct param_store *s, struct table_spec *spec, uint32_t *ret_table,
                      struct err *err)
{
    return ps_table_find(client(s), spec, ret_table, err);
}

static int pull_start(struct param_store *s, uint64_t clock,
                      const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    struct remote *r = remote_of(s);

    assert(!r->pull);
    return ps_pull_start(r->client, clock, sections, n, &r->pull, err);
}

static int pull_wait(struct param_store *s, struct err *err)
{
    struct remote *r = remote_of(s);
    struct ps_pull *pull = r->pull;

    r->pull = NULL;
    return ps_pull_wait(r->client, pull, err);
}

static int pull(struct param_store *s, uint64_t clock, const struct ps_pull_section *sections,
                uint32_t n, struct err *err)
{
    struct ps_pull *pull;
    int status = ps_pull_start(client(s), clock, sections, n, &pull, err);

    return status ? status : ps_pull_wait(client(s), pull, err);
}

static int push(struct param_store *s, uint64_t clock, uint32_t n_samples, bool tick,
                const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    int status = ps_push(client(s), clock, n_samples, tick, sections, n, err);

    for (uint32_t i = 0; i < n && !status; i++)
        if (sections[i].op == SECTION_RATE)
            remote_of(s)->rates[sections[i].table] = section_rate_of(sections[i].steps);
    return status;
}

static int flush(struct param_store *s, struct err *err)
{
    return ps_flush(client(s), err);
}

static int leave(struct param_store *s, struct err *err)
{
    return ps_leave(client(s), err);
}

/* ---- a copy of the tables ---- */

/* Rows in the order that a push wants. */
struct copied_rows {
    uint32_t *order; /* owned: places in the scan's answer, by key */
    uint64_t *keys;  /* owned, as all below */
    float *weights, *state;
};

static int compare_keys(const void *a, const void *b, void *keys)
{
    const uint64_t *of = keys, x = of[*(const uint32_t *)a], y = of[*(const uint32_t *)b];

    return (x > y) - (x < y);
}

static void copied_rows_deinit(struct copied_rows *c)
{
    free(c->order);
    free(c->keys);
    free(c->weights);
    free(c->state);
}

static bool copied_rows_init(struct copied_rows *c, size_t n, size_t dim, size_t n_state)
{
    *c = (struct copied_rows){
        .order = memory_try_alloc(n * sizeof *c->order),
        .keys = memory_try_alloc(n * sizeof *c->keys),
        .weights = memory_try_alloc(n * dim * sizeof *c->weights),
        .state = n_state ? memory_try_alloc(n * n_state * sizeof *c->state) : NULL,
    };
    return c->order && c->keys && c->weights && (c->state || !n_state);
}

static void sort_rows(const struct ps_scan_rows *rows, size_t dim, size_t n_state,
                      struct copied_rows *c)
{
    for (uint32_t i = 0; i < rows->n; i++)
        c->order[i] = i;
    qsort_r(c->order, rows->n, sizeof *c->order, compare_keys, (void *)(uintptr_t)rows->keys);
    for (size_t i = 0; i < rows->n; i++) {
        const size_t at = c->order[i];

        c->keys[i] = rows->keys[at];
        memcpy(c->weights + i * dim, rows->weights + at * dim, dim * sizeof(float));
        if (n_state)
            memcpy(c->state + i * n_state, rows->state + at * n_state, n_state * sizeof(float));
    }
}

/* A key that is removed and made again during a scan is still in one slice. */
static int copy_rows(struct param_store *to, uint32_t table, const struct table_spec *spec,
                     const struct ps_scan_rows *rows, struct err *err)
{
    const size_t n_state = table_spec_state_floats(spec);
    struct ps_push_section section = { .table = table,
                                       .op = SECTION_ASSIGN_STATE,
                                       .codec = CODEC_FP32,
                                       .n_keys = (uint32_t)rows->n,
                                       .steps = rows->steps };
    struct copied_rows c;
    int status = -ENOMEM;

    if (copied_rows_init(&c, rows->n + 1, spec->dim, n_state)) {
        sort_rows(rows, spec->dim, n_state, &c);
        section.keys = c.keys;
        section.values = c.weights;
        section.state = c.state;
        status = to->ops->push(to, 0, 0, false, &section, 1, err);
    } else {
        (void)err_set(err, status, "table %s: no memory for a copy", spec->name);
    }
    copied_rows_deinit(&c);
    return status;
}

static int copy_table(struct param_store *s, uint32_t from, struct param_store *to,
                      struct err *err)
{
    struct table_spec spec = *ps_table_spec(client(s), from);
    const struct ps_scan_options options = { .state = true };
    struct ps_scan_rows rows;
    struct ps_scan *scan;
    uint32_t table;
    int status;

    if (remote_of(s)->rates[from] > 0)
        spec.params.learning_rate = remote_of(s)->rates[from];
    status = to->ops->table(to, &spec, &table, err);

    if (!status)
        status = ps_scan_start(client(s), from, &options, &scan, err);
    if (status)
        return status;
    while (!status && ps_scan_goes_on(scan)) {
        status = ps_scan_next(scan, &rows, err);
        if (!status)
            status = copy_rows(to, table, &spec, &rows, err);
    }
    ps_scan_free(scan);
    return status;
}

/* A client has a number for each time that it was asked for a table: the last one has what it was made with. */
static bool has_later_number(const struct param_store *s, uint32_t table)
{
    const char *name = ps_table_spec(client(s), table)->name;
    const struct table_spec *later;

    for (uint32_t i = table + 1; (later = ps_table_spec(client(s), i)) != NULL; i++)
        if (strcmp(later->name, name) == 0)
            return true;
    return false;
}

static int copy(struct param_store *s, struct param_store *to, struct err *err)
{
    struct ps_stats copied;
    int status = 0;

    for (uint32_t i = 0; !status && ps_table_spec(client(s), i); i++)
        if (!has_later_number(s, i))
            status = copy_table(s, i, to, err);
    to->ops->stats(to, &copied);
    if (!status && copied.rows_refused)
        status = err_set(err, PS_EBUDGET, "%llu %s no place in a copy of the tables",
                         (unsigned long long)copied.rows_refused,
                         copied.rows_refused == 1 ? "row finds" : "rows find");
    return status;
}

/* ---- the rest ---- */

static uint64_t clock_of(const struct param_store *s)
{
    return ps_clock(client(s));
}

static void stats(const struct param_store *s, struct ps_stats *ret)
{
    ps_stats(client(s), ret);
}

static struct push_encoder *encoder(const struct param_store *s)
{
    return ps_encoder(client(s));
}

static uint32_t set_tap(struct param_store *s, const struct ps_tap *tap)
{
    ps_set_tap(client(s), tap);
    return ps_n_shards(client(s));
}

static void close_store(struct param_store *s)
{
    ps_close(client(s));
    free(s);
}

/* A pull that nobody has waited for is one of the old incarnation. */
static uint64_t resume(struct param_store *s)
{
    struct remote *r = remote_of(s);
    struct err ignored;

    if (r->pull) {
        ps_pull_cancel(r->client, r->pull);
        (void)pull_wait(s, &ignored);
    }
    return ps_resume(r->client);
}

/* Of whichever thread. */
static void cancel(struct param_store *s)
{
    ps_pull_cancel(client(s), NULL);
}

static const struct param_store_ops ops = { .table = table,
                                            .table_find = table_find,
                                            .pull_start = pull_start,
                                            .pull_wait = pull_wait,
                                            .pull = pull,
                                            .push = push,
                                            .flush = flush,
                                            .leave = leave,
                                            .clock = clock_of,
                                            .stats = stats,
                                            .encoder = encoder,
                                            .set_tap = set_tap,
                                            .close = close_store,
                                            .resume = resume,
                                            .cancel = cancel,
                                            .copy = copy,
                                            .takes_pulled = true,
                                            .overlaps = true };

/* ---- a view of the same client, for another thread ---- */

/* A client has a number for each time that it was asked for a table: here they are asked for once. */
static int view_find(struct param_store *s, struct table_spec *spec, uint32_t *ret_table,
                     struct err *err)
{
    const struct table_spec *known;

    for (uint32_t i = 0; (known = ps_table_spec(client(s), i)) != NULL; i++)
        if (strcmp(known->name, spec->name) == 0) {
            *spec = *known;
            *ret_table = i;
            return 0;
        }
    return table_find(s, spec, ret_table, err);
}

static void close_view(struct param_store *s)
{
    struct err ignored;

    if (remote_of(s)->pull) {
        ps_pull_cancel(client(s), remote_of(s)->pull);
        (void)pull_wait(s, &ignored);
    }
    free(s);
}

static const struct param_store_ops view_ops = { .table = table,
                                                 .table_find = view_find,
                                                 .pull_start = pull_start,
                                                 .pull_wait = pull_wait,
                                                 .push = push,
                                                 .flush = flush,
                                                 .leave = leave,
                                                 .clock = clock_of,
                                                 .stats = stats,
                                                 .encoder = encoder,
                                                 .set_tap = set_tap,
                                                 .close = close_view,
                                                 .resume = resume,
                                                 .cancel = cancel,
                                                 .overlaps = true };

struct param_store *param_store_remote_view(struct param_store *s)
{
    struct remote *r = memory_alloc(sizeof *r);

    assert(s->ops == &ops);
    *r = (struct remote){ .store.ops = &view_ops, .client = client(s) };
    return &r->store;
}

int param_store_remote_open(const struct ps_options *options, struct param_store **ret,
                            struct err *err)
{
    struct ps_client *c;
    struct remote *r;
    int status = ps_open(options, &c, err);

    if (status)
        return status;
    r = memory_alloc(sizeof *r);
    *r = (struct remote){ .store.ops = &ops, .client = c };
    *ret = &r->store;
    return 0;
}

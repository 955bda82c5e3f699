/* Whole tables: rows assigned, scanned, dropped. Built on pushes, pulls and operators' commands alone. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/client/ps.h"
#include "worker/client/ps_admin.h"
#include "worker/client/scan.h"

#define SLICE_BYTES (256u << 10)

/* ---- assign ---- */

struct assignment {
    const struct table_spec *spec;
    const uint64_t *keys;
    const float *weights, *state;
    size_t n_state; /* floats of a row */
};

/* The first row with NaN or infinity; n: there is none. */
static size_t find_bad_row(const float *x, size_t n, size_t n_floats)
{
    for (size_t i = 0; i < n; i++) {
        bool is_bad = false;

        for (size_t k = 0; k < n_floats; k++)
            is_bad |= !isfinite(x[i * n_floats + k]);
        if (is_bad)
            return i;
    }
    return n;
}

static int check_rows(const struct assignment *a, size_t n, struct err *err)
{
    size_t bad = find_bad_row(a->weights, n, a->spec->dim);
    const char *where = "";

    if (bad == n && a->state) {
        bad = find_bad_row(a->state, n, a->n_state);
        where = " in its state";
    }
    if (bad == n)
        return 0;
    return err_set(err, PS_ENAN, "table %s: the row of key %" PRIu64 " has NaN or infinity%s",
                   a->spec->name, a->keys[bad], where);
}

static int check_order(const struct assignment *a, size_t n, struct err *err)
{
    for (size_t i = 1; i < n; i++)
        if (a->keys[i - 1] >= a->keys[i])
            return err_set(err, -EINVAL,
                           "table %s: key %" PRIu64 " follows %" PRIu64
                           ": keys must ascend, and each stand there once",
                           a->spec->name, a->keys[i], a->keys[i - 1]);
    return 0;
}

static int check_assignment(const struct assignment *a, size_t n, struct err *err)
{
    int status;

    if (n && (!a->keys || !a->weights))
        return err_set(err, -EINVAL, "table %s: %zu keys to assign, and no array of %s",
                       a->spec->name, n, a->keys ? "weights" : "keys");
    status = check_order(a, n, err);
    return status ? status : check_rows(a, n, err);
}

int ps_assign_check(struct ps_client *c, uint32_t table, const uint64_t *keys, size_t n,
                    const float *weights, const float *state, struct err *err)
{
    struct assignment a = { ps_table_spec(c, table), keys, weights, state, 0 };

    if (!a.spec)
        return err_set(err, -EINVAL, "this client has no table %" PRIu32, table);
    a.n_state = table_spec_state_floats(a.spec);
    return check_assignment(&a, n, err);
}

/* One at least: a whole layer may be longer. */
size_t ps_assign_rows_max(const struct table_spec *spec)
{
    const size_t n =
        PS_ASSIGN_BYTES / (((size_t)spec->dim + table_spec_state_floats(spec)) * sizeof(float) +
                           sizeof(uint64_t));

    return n ? n : 1;
}

int ps_assign_slice(struct ps_client *c, uint32_t table, const uint64_t *keys, size_t n,
                    const float *weights, const float *state, uint64_t steps, struct err *err)
{
    const struct ps_push_section s = { .table = table,
                                       .op = state ? SECTION_ASSIGN_STATE : SECTION_ASSIGN,
                                       .codec = CODEC_FP32,
                                       .n_keys = (uint32_t)n,
                                       .keys = keys,
                                       .values = weights,
                                       .state = state,
                                       .steps = state ? steps : 0 };

    return ps_push(c, ps_next_clock(c), 0, false, &s, 1, err);
}

int ps_assign(struct ps_client *c, uint32_t table, const uint64_t *keys, size_t n,
              const float *weights, const float *state, uint64_t steps, struct err *err)
{
    int status = ps_assign_check(c, table, keys, n, weights, state, err);
    const struct table_spec *spec = status ? NULL : ps_table_spec(c, table);
    const size_t n_most = spec ? ps_assign_rows_max(spec) : 0;

    for (size_t from = 0; from < n && !status; from += n_most)
        status = ps_assign_slice(c, table, keys + from, n - from < n_most ? n - from : n_most,
                                 weights + from * spec->dim,
                                 state ? state + from * table_spec_state_floats(spec) : NULL,
                                 steps, err);
    return status;
}

/* ---- scan ---- */

void ps_scan_free(struct ps_scan *scan)
{
    struct err ignored;

    if (!scan)
        return;
    if (scan->pull) { /* it borrows the scan until its end, which is at once */
        ps_pull_cancel(scan->client, scan->pull);
        while (ps_pull_wait(scan->client, scan->pull, &ignored) == -EINTR)
            ;
    }
    scan_deinit(scan);
    free(scan);
}

bool ps_scan_goes_on(const struct ps_scan *scan)
{
    return scan_goes_on(scan);
}

int ps_scan_start(struct ps_client *c, uint32_t table, const struct ps_scan_options *options,
                  struct ps_scan **ret_scan, struct err *err)
{
    static const struct ps_scan_options none = { 0 };
    const struct table_spec *spec = ps_table_spec(c, table);
    struct ps_scan *scan;

    if (!spec)
        return err_set(err, -EINVAL, "this client has no table %" PRIu32, table);
    options = options ? options : &none;
    scan = memory_try_alloc(sizeof *scan);
    if (!scan)
        return err_set(err, -ENOMEM, "table %s: no memory for a scan", spec->name);
    *scan = (struct ps_scan){ .client = c,
                              .table = table,
                              .n_shards = ps_n_shards(c),
                              .slice_bytes =
                                  options->slice_bytes ? options->slice_bytes : SLICE_BYTES,
                              .dim = spec->dim,
                              .n_state = options->state ? table_spec_state_floats(spec) : 0,
                              .has_state = options->state };
    scan->places = memory_try_alloc(scan->n_shards * sizeof *scan->places);
    if (!scan->places) {
        ps_scan_free(scan);
        return err_set(err, -ENOMEM, "table %s: no memory for a scan", spec->name);
    }
    scan->steps_sink = (struct ps_state_sink){ .take = scan_take_steps, .arg = scan };
    scan->sections[0] =
        (struct ps_pull_section){ .table = table, .codec = CODEC_FP32, .scan = scan };
    scan->sections[1] = (struct ps_pull_section){ .table = table,
                                                  .codec = CODEC_FP32,
                                                  .sink = &scan->steps_sink };
    *ret_scan = scan;
    return 0;
}

uint64_t ps_scan_version(const struct ps_scan *scan, uint32_t shard)
{
    return shard < scan->n_shards ? scan->places[shard].version : 0;
}

static int report_stale(const struct ps_scan *scan, struct err *err)
{
    return err_set(err, -ESTALE,
                   "table %s: a shard has restarted during the scan, and has lost pushes that "
                   "it had applied: scan again",
                   ps_table_spec(scan->client, scan->table)->name);
}

/* Of the next slices; none while one is under way. */
static int start_pull(struct ps_scan *scan, uint64_t until_ns, struct err *err)
{
    int status;

    scan_drop_rows(scan);
    if (scan->is_stale)
        return report_stale(scan, err);
    status = ps_ready_until(scan->client, until_ns, err);
    if (status)
        return status;
    return ps_pull_start(scan->client, 0, scan->sections, scan->has_state ? 2 : 1, &scan->pull,
                         err);
}

int ps_scan_next(struct ps_scan *scan, struct ps_scan_rows *ret, struct err *err)
{
    return ps_scan_next_until(scan, UINT64_MAX, ret, err);
}

int ps_scan_next_until(struct ps_scan *scan, uint64_t until_ns, struct ps_scan_rows *ret,
                       struct err *err)
{
    int status = 0;

    *ret = (struct ps_scan_rows){ .steps = scan->steps };
    if (!scan->pull && !scan->is_stale && !ps_scan_goes_on(scan))
        return 0;
    if (!scan->pull)
        status = start_pull(scan, until_ns, err);
    if (status)
        return status;
    status = ps_pull_wait_until(scan->client, scan->pull, until_ns, err);
    if (status == -EAGAIN || status == -EINTR)
        return status;
    scan->pull = NULL;
    if (status) {
        scan_drop_rows(scan);
        return scan->is_stale ? report_stale(scan, err) : status;
    }
    scan_commit(scan);
    ret->n = scan->n;
    ret->steps = scan->steps;
    ret->keys = (const uint64_t *)(const void *)bytes_front(&scan->keys);
    ret->weights = (const float *)(const void *)bytes_front(&scan->weights);
    ret->state = scan->n_state ? (const float *)(const void *)bytes_front(&scan->state) : NULL;
    return 0;
}

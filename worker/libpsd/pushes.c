/* What changes rows and moves a worker: pushes, assignments, clocks, the end of its part in a job. */
#include <errno.h>
#include <stdlib.h>

#include "common/memory.h"
#include "worker/libpsd/sections.h"

#define FEW_SECTIONS 8u /* stand on the stack */

/* ---- pushes ---- */

static int check_push(const psd_rows *rows, int n, int flags, struct err *err)
{
    if (flags & ~PSD_TICK)
        return err_set(err, -EINVAL, "flags are 0x%x; expected 0 or PSD_TICK", (unsigned)flags);
    return sections_check("push", rows, n, err);
}

static int push_sections(psd *c, uint64_t clock, uint32_t samples, bool tick,
                         const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    int status = handle_pass(c, &c->changing, HANDLE_FOREVER, err);

    if (status)
        return status;
    status = ps_push(c->client, clock, samples, tick, sections, n, err);
    handle_pass_back(c, &c->changing);
    return status;
}

static int push(psd *c, uint64_t clock, uint32_t samples, bool tick, const psd_rows *rows,
                uint32_t n, struct err *err)
{
    struct ps_push_section few[FEW_SECTIONS], *many = NULL;
    int status;

    if (n > FEW_SECTIONS) {
        many = memory_try_alloc(n * sizeof *many);
        if (!many)
            return err_set(err, -ENOMEM, "no memory for a push of %u sections", n);
    }
    status = sections_read_push(rows, n, many ? many : few, err);
    if (!status)
        status = push_sections(c, clock, samples, tick, many ? many : few, n, err);
    free(many);
    return status;
}

int psd_push(psd *c, uint64_t clock, uint32_t samples, int flags, const psd_rows *rows, int n)
{
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    status = check_push(rows, n, flags, &err);
    if (!status)
        status = push(c, clock, samples, flags & PSD_TICK, rows, (uint32_t)n, &err);
    return handle_leave(c, status, &err);
}

/* ---- rows that are set ---- */

/* What is pushed as state. SGD's rows have none, and yet its table counts steps: any pointer says so. */
static const float *state_of(const psd_rows *r, uint32_t n_state)
{
    if (n_state)
        return r->state;
    return r->state || r->steps ? r->rows : NULL;
}

static int check_assign(psd *c, const psd_rows *r, struct err *err)
{
    const struct table_spec *spec = ps_table_spec(c->client, r->table);

    if (c->is_reader)
        return err_set(err, -EINVAL, "a reader does not push: it has no job");
    if (spec && r->steps && !state_of(r, table_spec_state_floats(spec)))
        return err_set(err, -EINVAL,
                       "table %s: steps of its optimizer, and no array of its state",
                       spec->name);
    return ps_assign_check(c->client, r->table, r->keys, r->n, r->rows, r->state, err);
}

/* Rows [from, from + n). */
static int assign_slice(psd *c, const psd_rows *r, const struct table_spec *spec, size_t from,
                        size_t n, struct err *err)
{
    const uint32_t n_state = table_spec_state_floats(spec);
    const float *state = state_of(r, n_state);
    int status = handle_pass(c, &c->changing, HANDLE_FOREVER, err);

    if (status)
        return status;
    status = ps_assign_slice(c->client, r->table, r->keys + from, n, r->rows + from * spec->dim,
                             state ? state + from * n_state : NULL, r->steps, err);
    handle_pass_back(c, &c->changing);
    return status;
}

/* Nothing of this slice was sent, and the same call goes on. */
static bool is_for_later(int status)
{
    return status == -EINTR || status == -ENOMEM || status == PS_EDEADLINE;
}

static int64_t assign(psd *c, const psd_rows *r, struct err *err)
{
    const struct table_spec *spec = ps_table_spec(c->client, r->table);
    int status = check_assign(c, r, err);
    const size_t n_most = status ? 0 : ps_assign_rows_max(spec);
    size_t n_done = 0;

    while (n_done < r->n && !status) {
        const size_t n = r->n - n_done < n_most ? (size_t)r->n - n_done : n_most;

        status = assign_slice(c, r, spec, n_done, n, err);
        n_done += status ? 0 : n;
    }
    return status && !(n_done && is_for_later(status)) ? status : (int64_t)n_done;
}

int64_t psd_assign(psd *c, const psd_rows *rows)
{
    psd_rows r;
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    status = sections_read_assign(rows, &r, &err);
    return handle_leave_with(c, status ? status : assign(c, &r, &err), &err);
}

/* ---- flushes, clocks ---- */

int psd_flush(psd *c, int timeout_ms)
{
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    status = ps_flush_until(c->client, handle_until(timeout_ms, c->push_timeout_ms), &err);
    return handle_leave(c, handle_timed(status, &err), &err);
}

/* No push and no request for a table is under way: behind the farewell they would wait for nobody. */
static int leave(psd *c, uint64_t until_ns, struct err *err)
{
    int status = handle_pass(c, &c->changing, until_ns, err);

    if (status)
        return status;
    status = ps_leave_until(c->client, until_ns, err);
    handle_pass_back(c, &c->changing);
    return status;
}

int psd_leave(psd *c, int timeout_ms)
{
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    status = leave(c, handle_until(timeout_ms, c->push_timeout_ms), &err);
    return handle_leave(c, handle_timed(status, &err), &err);
}

/* Servers give no clock that a number of 63 bits cannot hold, unless they lie. */
static int64_t positive(uint64_t clock)
{
    return clock > INT64_MAX ? INT64_MAX : (int64_t)clock;
}

int64_t psd_clock(psd *c)
{
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    return handle_leave_with(c, positive(ps_clock(c->client)), &err);
}

int64_t psd_resume(psd *c)
{
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    return handle_leave_with(c, positive(ps_resume(c->client)), &err);
}

/*
 * Scans by number, like pulls: that of a slot and how often the slot was used, so that a stale or invented one is found
 * out.
 *
 *     psd_scan    uses of the slot << 8 | slot        uses count from 1
 *
 *     slot        fields belong to                    leaves it by
 *     FREE        under the handle's lock             psd_scan_start() -> STANDS
 *     STANDS      under the handle's lock             psd_scan_next() -> BUSY; psd_scan_end() -> FREE
 *     BUSY        the thread in psd_scan_next()       its end -> STANDS
 */
#include <errno.h>
#include <stdlib.h>

#include "common/memory.h"
#include "worker/libpsd/handle.h"

#define SLOT_BITS 8u
#define SLOTS_MAX ((uint32_t)PSD_SCANS_MAX)

struct slot {
    uint64_t n_uses;
    struct ps_scan *scan; /* owned; NULL: FREE */
    uint32_t table;
    bool is_busy;
};

struct handle_scans {
    struct slot slots[SLOTS_MAX];
};

struct handle_scans *handle_scans_new(void)
{
    return memory_try_alloc(sizeof(struct handle_scans));
}

void handle_scans_free(struct handle_scans *scans)
{
    for (uint32_t i = 0; scans && i < SLOTS_MAX; i++)
        ps_scan_free(scans->slots[i].scan);
    free(scans);
}

/* ---- start ---- */

/* Into a free slot. */
static psd_scan keep(psd *c, struct ps_scan *scan, uint32_t table, struct err *err)
{
    psd_scan number = 0;

    uv_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < SLOTS_MAX && !number; i++) {
        struct slot *slot = &c->scans->slots[i];

        if (slot->scan)
            continue;
        slot->scan = scan;
        slot->table = table;
        number = (psd_scan)(++slot->n_uses << SLOT_BITS | i);
    }
    uv_mutex_unlock(&c->lock);
    return number ? number
                  : err_set(err, -ENOSPC, "%u scans have not ended: psd_scan_end() some first",
                            SLOTS_MAX);
}

static psd_scan start(psd *c, int table, int flags, struct err *err)
{
    const struct ps_scan_options options = { .state = flags & PSD_STATE };
    struct ps_scan *scan;
    psd_scan number;
    int status;

    if (flags & ~PSD_STATE)
        return err_set(err, -EINVAL, "flags are 0x%x; expected 0 or PSD_STATE",
                       (unsigned)flags);
    if (table < 0)
        return err_set(err, -EINVAL, "no table has number %d", table);
    status = ps_scan_start(c->client, (uint32_t)table, &options, &scan, err);
    if (status)
        return status;
    number = keep(c, scan, (uint32_t)table, err);
    if (number < 0)
        ps_scan_free(scan);
    return number;
}

psd_scan psd_scan_start(psd *c, int table, int flags)
{
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    return handle_leave_with(c, start(c, table, flags, &err), &err);
}

/* ---- next, end ---- */

/* BUSY, by this thread. */
static int take(psd *c, psd_scan number, struct slot **ret, struct err *err)
{
    const uint32_t index = (uint32_t)number & ((1u << SLOT_BITS) - 1);
    struct slot *slot = index < SLOTS_MAX ? &c->scans->slots[index] : NULL;
    int status = 0;

    uv_mutex_lock(&c->lock);
    if (number <= 0 || !slot || !slot->scan ||
        (psd_scan)(slot->n_uses << SLOT_BITS | index) != number)
        status = err_set(err, -EINVAL, "no scan has number %lld", (long long)number);
    else if (slot->is_busy)
        status = err_set(err, -EBUSY, "another thread is in this scan");
    else
        slot->is_busy = true;
    uv_mutex_unlock(&c->lock);
    *ret = slot;
    return status;
}

/* An answer may hold no row before the end. Returns how many came, 0 at the end. */
static int64_t next_rows(struct ps_scan *scan, uint64_t until_ns, struct ps_scan_rows *ret,
                         struct err *err)
{
    int status = 0;

    do
        status = ps_scan_next_until(scan, until_ns, ret, err);
    while (!status && !ret->n && ps_scan_goes_on(scan));
    return status ? status : (int64_t)ret->n;
}

static int64_t next(psd *c, psd_scan number, psd_rows *ret, int timeout_ms, struct err *err)
{
    struct ps_scan_rows rows;
    psd_rows filled = { 0 };
    struct slot *slot;
    int64_t n = take(c, number, &slot, err);

    if (n < 0)
        return n;
    n = next_rows(slot->scan, handle_until(timeout_ms, 0), &rows, err);
    if (n >= 0) {
        filled.table = slot->table;
        filled.n = rows.n;
        filled.keys = rows.keys;
        filled.rows = (float *)(uintptr_t)rows.weights;
        filled.op = PSD_ASSIGN;
        filled.state = rows.state;
        filled.steps = rows.steps;
    }
    uv_mutex_lock(&c->lock);
    slot->is_busy = false;
    uv_mutex_unlock(&c->lock);
    if (n < 0)
        return handle_timed((int)n, err);
    return handle_fill(ret, &filled, sizeof filled, err) ? -EINVAL : n;
}

int64_t psd_scan_next(psd *c, psd_scan scan, psd_rows *ret, int timeout_ms)
{
    psd_rows none = { 0 };
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    status = handle_fill(ret, &none, sizeof none, &err); /* before rows are taken */
    return handle_leave_with(c, status ? status : next(c, scan, ret, timeout_ms, &err), &err);
}

int psd_scan_end(psd *c, psd_scan scan)
{
    struct ps_scan *ended = NULL;
    struct slot *slot;
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    status = take(c, scan, &slot, &err);
    if (!status) {
        ended = slot->scan;
        uv_mutex_lock(&c->lock);
        slot->scan = NULL;
        slot->is_busy = false;
        uv_mutex_unlock(&c->lock);
    }
    ps_scan_free(ended);
    return handle_leave(c, status, &err);
}

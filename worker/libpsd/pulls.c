/*
 * Pulls by number. A number is that of a slot and how often the slot was used, so that a stale or invented one is
 * found out:
 *
 *     psd_op      uses of the slot << 16 | slot        uses count from 1
 *
 *     slot        fields belong to                                    leaves it by
 *     FREE        the list of free ones                               psd_pull() -> UNDER WAY
 *     UNDER WAY   under the handle's lock                             psd_wait() -> WAITED FOR
 *     WAITED FOR  the thread that waits                               its end -> FREE; a time-out, a signal
 *                                                                     -> UNDER WAY
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "common/memory.h"
#include "worker/libpsd/sections.h"

#define SLOT_BITS 16u
#define SLOTS_MAX (1u << SLOT_BITS)
#define CHUNK_SLOTS 64u

enum slot_state { SLOT_FREE, SLOT_UNDER_WAY, SLOT_WAITED_FOR };

struct slot {
    uint32_t index;
    enum slot_state state;
    uint64_t n_uses;
    struct ps_pull *pull;             /* the engine's; NULL until it has begun */
    struct ps_pull_section *sections; /* owned, n_sections_max; kept for the next use */
    uint32_t n_sections_max;
    struct slot *next_free;
};

/* Under the handle's lock. Slots never move. */
struct handle_ops {
    struct slot *chunks[SLOTS_MAX / CHUNK_SLOTS]; /* owned, of CHUNK_SLOTS each */
    uint32_t n_slots;
    struct slot *free;
};

struct handle_ops *handle_ops_new(void)
{
    return memory_try_alloc(sizeof(struct handle_ops));
}

void handle_ops_free(struct handle_ops *ops)
{
    for (uint32_t i = 0; ops && i < ops->n_slots; i++)
        free(ops->chunks[i / CHUNK_SLOTS][i % CHUNK_SLOTS].sections);
    for (uint32_t i = 0; ops && i < ops->n_slots; i += CHUNK_SLOTS)
        free(ops->chunks[i / CHUNK_SLOTS]);
    free(ops);
}

static psd_op number_of(const struct slot *slot)
{
    return (psd_op)(slot->n_uses << SLOT_BITS | slot->index);
}

/* Under the lock. CHUNK_SLOTS more. */
static int add_slots(struct handle_ops *ops, struct err *err)
{
    struct slot *chunk;

    if (ops->n_slots == SLOTS_MAX)
        return err_set(err, -ENOSPC, "%u pulls are under way: some must be waited for first",
                       SLOTS_MAX);
    chunk = memory_try_alloc(CHUNK_SLOTS * sizeof *chunk);
    if (!chunk)
        return err_set(err, -ENOMEM, "no memory for more pulls");
    ops->chunks[ops->n_slots / CHUNK_SLOTS] = chunk;
    for (uint32_t i = CHUNK_SLOTS; i-- > 0;) {
        chunk[i].index = ops->n_slots + i;
        chunk[i].next_free = ops->free;
        ops->free = &chunk[i];
    }
    ops->n_slots += CHUNK_SLOTS;
    return 0;
}

static void free_slot(psd *c, struct slot *slot)
{
    uv_mutex_lock(&c->lock);
    slot->state = SLOT_FREE;
    slot->pull = NULL;
    slot->next_free = c->ops->free;
    c->ops->free = slot;
    uv_mutex_unlock(&c->lock);
}

/* UNDER WAY, with space for n sections. */
static int take_slot(psd *c, uint32_t n, struct slot **ret, struct err *err)
{
    struct slot *slot = NULL;
    void *more;
    int status = 0;

    uv_mutex_lock(&c->lock);
    if (!c->ops->free)
        status = add_slots(c->ops, err);
    if (!status) {
        slot = c->ops->free;
        c->ops->free = slot->next_free;
        slot->state = SLOT_UNDER_WAY;
        slot->n_uses++;
    }
    uv_mutex_unlock(&c->lock);
    if (status)
        return status;
    if (n > slot->n_sections_max) {
        more = memory_try_realloc(slot->sections, n * sizeof *slot->sections);
        if (!more) {
            free_slot(c, slot);
            return err_set(err, -ENOMEM, "no memory for a pull of %u sections", n);
        }
        slot->sections = more;
        slot->n_sections_max = n;
    }
    *ret = slot;
    return 0;
}

/* Under the lock. NULL: no pull has this number, or no longer, or not yet. */
static struct slot *find_slot(const psd *c, psd_op op)
{
    uint32_t index = (uint32_t)op & (SLOTS_MAX - 1);
    struct slot *slot;

    if (op <= 0 || index >= c->ops->n_slots)
        return NULL;
    slot = &c->ops->chunks[index / CHUNK_SLOTS][index % CHUNK_SLOTS];
    return slot->state != SLOT_FREE && slot->pull && number_of(slot) == op ? slot : NULL;
}

/* ---- start ---- */

static int start(psd *c, uint64_t clock, const psd_rows *rows, uint32_t n, psd_op *ret,
                 struct err *err)
{
    struct slot *slot = NULL;
    struct ps_pull *pull;
    psd_op op;
    int status = take_slot(c, n, &slot, err);

    if (status)
        return status;
    op = number_of(slot);
    status = sections_read_pull(rows, n, slot->sections, err);
    if (!status)
        status = ps_pull_start_tagged(c->client, c->is_reader ? 0 : clock, slot->sections, n,
                                      slot, &pull, err);
    if (status) {
        free_slot(c, slot);
        return status;
    }
    uv_mutex_lock(&c->lock);
    if (slot->state != SLOT_FREE && number_of(slot) == op) /* psd_next() is not quicker */
        slot->pull = pull;
    uv_mutex_unlock(&c->lock);
    *ret = op;
    return 0;
}

int psd_pull(psd *c, uint64_t clock, const psd_rows *rows, int n, psd_op *ret_op)
{
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    status = sections_check("pull", rows, n, &err);
    if (!status && !ret_op)
        status = err_set(&err, -EINVAL, "psd_pull() has no place for the pull's number");
    if (!status)
        status = start(c, clock, rows, (uint32_t)n, ret_op, &err);
    return handle_leave(c, status, &err);
}

/* ---- wait ---- */

/* This thread waits for it. */
static int begin_wait(psd *c, psd_op op, struct slot **ret, struct ps_pull **ret_pull,
                      struct err *err)
{
    struct slot *slot;
    int status = 0;

    uv_mutex_lock(&c->lock);
    slot = find_slot(c, op);
    if (!slot)
        status = err_set(err, -EINVAL, "no pull under way has number %lld", (long long)op);
    else if (slot->state == SLOT_WAITED_FOR)
        status = err_set(err, -EBUSY, "another thread waits for this pull");
    else
        slot->state = SLOT_WAITED_FOR;
    *ret_pull = slot ? slot->pull : NULL;
    *ret = slot;
    uv_mutex_unlock(&c->lock);
    return status;
}

static void pause_wait(psd *c, struct slot *slot)
{
    uv_mutex_lock(&c->lock);
    slot->state = SLOT_UNDER_WAY;
    uv_mutex_unlock(&c->lock);
}

int psd_wait(psd *c, psd_op op, int timeout_ms)
{
    struct ps_pull *pull;
    struct slot *slot;
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    status = begin_wait(c, op, &slot, &pull, &err);
    if (!status) {
        status = ps_pull_wait_until(c->client, pull, handle_until(timeout_ms, 0), &err);
        if (status == -EAGAIN || status == -EINTR)
            pause_wait(c, slot);
        else
            free_slot(c, slot);
        status = handle_timed(status, &err);
    }
    return handle_leave(c, status, &err);
}

int psd_cancel(psd *c, psd_op op)
{
    struct slot *slot;
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    if (op == 0) {
        ps_pull_cancel(c->client, NULL);
    } else {
        uv_mutex_lock(&c->lock);
        slot = find_slot(c, op);
        if (slot)
            ps_pull_cancel_tagged(c->client, slot->pull, slot);
        uv_mutex_unlock(&c->lock);
    }
    return handle_leave(c, status, &err);
}

/* ---- completions ---- */

int psd_fd(psd *c)
{
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    if (!atomic_exchange(&c->uses_fd, true))
        (void)eventfd_write(c->fd, 1); /* for pulls that have come already */
    return handle_leave(c, c->fd, &err);
}

/* The last one was taken: the descriptor is no longer readable, unless one has come meanwhile. */
static void clear_fd(psd *c)
{
    eventfd_t ignored;

    (void)eventfd_read(c->fd, &ignored);
    if (ps_pull_has_next(c->client))
        (void)eventfd_write(c->fd, 1);
}

/* Its psd_pull() may not have returned yet. The number is what it will return. */
static psd_op take_next(psd *c)
{
    struct ps_pull *pull;
    void *tag = NULL;
    psd_op op = 0;
    bool has_more;

    uv_mutex_lock(&c->lock);
    pull = ps_pull_next(c->client, &tag, &has_more);
    if (pull) {
        struct slot *slot = tag;

        if (!slot->pull)
            slot->pull = pull;
        op = number_of(slot);
    }
    uv_mutex_unlock(&c->lock);
    if (!has_more && atomic_load(&c->uses_fd))
        clear_fd(c);
    return op;
}

psd_op psd_next(psd *c)
{
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    return handle_leave_with(c, take_next(c), &err);
}

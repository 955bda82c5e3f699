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
 *
 * A pull of which all rows were in the cache has ended when psd_pull() returns. It has no slot, but a `hit`: a word of
 * its number's uses and of flags, without a lock.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "common/hash.h"
#include "common/memory.h"
#include "worker/client/argument_check.h"
#include "worker/libpsd/cached_pull.h"
#include "worker/libpsd/sections.h"

#define SLOT_BITS 16u
#define INDEX_MASK ((1u << SLOT_BITS) - 1)
#define HITS_MAX 512u
#define HITS_LINE 8u /* hits in a cache line: threads begin to look at different ones */
#define SLOTS_MAX ((1u << SLOT_BITS) - HITS_MAX) /* a hit's number has these and higher ones */
#define CHUNK_SLOTS 64u
#define FEW_SECTIONS 32u /* stand on the stack */

/* A hit: uses << 3 | flags; no flag: it is free. */
enum { HIT_HELD = 1, HIT_TAKEN = 2, HIT_CANCELLED = 4, HIT_FLAGS = 7, HIT_FLAG_BITS = 3 };

enum slot_state { SLOT_FREE, SLOT_UNDER_WAY, SLOT_WAITED_FOR };

struct slot {
    uint32_t index;
    enum slot_state state;
    uint64_t n_uses;
    struct ps_pull *pull;             /* the engine's; NULL until it has begun */
    struct ps_pull_section *sections; /* owned, n_sections_max; kept for the next use */
    uint32_t n_sections_max;
    struct cached_pull cached; /* of a handle with a cache */
    bool is_cancelled;
    uint64_t n_cancelled; /* of all pulls, when it began */
    struct slot *next_free;
};

/* Under the handle's lock. Slots never move. */
struct handle_ops {
    struct slot *chunks[SLOTS_MAX / CHUNK_SLOTS]; /* owned, of CHUNK_SLOTS each */
    uint32_t n_slots;
    struct slot *free;
    uint64_t n_cancelled;            /* counts psd_cancel() of all */
    _Atomic uint64_t hits[HITS_MAX]; /* without the lock */
};

struct handle_ops *handle_ops_new(void)
{
    return memory_try_alloc(sizeof(struct handle_ops));
}

void handle_ops_free(struct handle_ops *ops)
{
    for (uint32_t i = 0; ops && i < ops->n_slots; i++) {
        free(ops->chunks[i / CHUNK_SLOTS][i % CHUNK_SLOTS].sections);
        cached_pull_deinit(&ops->chunks[i / CHUNK_SLOTS][i % CHUNK_SLOTS].cached);
    }
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
        slot->is_cancelled = false;
        slot->n_cancelled = c->ops->n_cancelled;
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
    uint32_t index = (uint32_t)op & INDEX_MASK;
    struct slot *slot;

    if (op <= 0 || index >= c->ops->n_slots)
        return NULL;
    slot = &c->ops->chunks[index / CHUNK_SLOTS][index % CHUNK_SLOTS];
    return slot->state != SLOT_FREE && slot->pull && number_of(slot) == op ? slot : NULL;
}

/* ---- hits ---- */

static bool is_hit(psd_op op)
{
    return op > 0 && ((uint32_t)op & INDEX_MASK) >= SLOTS_MAX;
}

static psd_op number_of_hit(uint32_t index, uint64_t word)
{
    return (psd_op)(word >> HIT_FLAG_BITS << SLOT_BITS | (SLOTS_MAX + index));
}

/* The number of a pull that has ended; 0: too many of them are not waited for. */
static psd_op take_hit(struct handle_ops *ops)
{
    uint32_t first = (uint32_t)hash_mix((uintptr_t)pthread_self()) * HITS_LINE;

    for (uint32_t i = 0; i < HITS_MAX; i++) {
        uint32_t index = (first + i) % HITS_MAX;
        uint64_t word = atomic_load_explicit(&ops->hits[index], memory_order_relaxed);
        uint64_t next = (word | HIT_FLAGS) + 1 + HIT_HELD;

        if (!(word & HIT_FLAGS) &&
            atomic_compare_exchange_strong(&ops->hits[index], &word, next))
            return number_of_hit(index, next);
    }
    return 0;
}

/* It is waited for. */
static int end_hit(struct handle_ops *ops, psd_op op, struct err *err)
{
    uint32_t index = ((uint32_t)op & INDEX_MASK) - SLOTS_MAX;
    uint64_t word = atomic_load(&ops->hits[index]);

    while ((word & HIT_HELD) && number_of_hit(index, word) == op)
        if (atomic_compare_exchange_weak(&ops->hits[index], &word, word & ~(uint64_t)HIT_FLAGS))
            return word & HIT_CANCELLED ? err_set(err, -ECANCELED, "the pull was cancelled")
                                        : 0;
    return err_set(err, -EINVAL, "no pull under way has number %lld", (long long)op);
}

/* Sets a flag of one that is held, has this number (0: any) and not yet the flag. Its number; 0: there was none. */
static psd_op flag_hit(struct handle_ops *ops, uint32_t index, psd_op op, uint64_t flag)
{
    uint64_t word = atomic_load(&ops->hits[index]);

    while ((word & HIT_HELD) && !(word & flag) && (!op || number_of_hit(index, word) == op))
        if (atomic_compare_exchange_weak(&ops->hits[index], &word, word | flag))
            return number_of_hit(index, word);
    return 0;
}

/* op 0: all. */
static void cancel_hits(struct handle_ops *ops, psd_op op)
{
    for (uint32_t i = 0; i < HITS_MAX; i++)
        (void)flag_hit(ops, i, op, HIT_CANCELLED);
}

static bool has_hit(const struct handle_ops *ops)
{
    for (uint32_t i = 0; i < HITS_MAX; i++)
        if ((atomic_load(&ops->hits[i]) & (HIT_HELD | HIT_TAKEN)) == HIT_HELD)
            return true;
    return false;
}

/* One that psd_next() has not had; 0: there is none. */
static psd_op next_hit(struct handle_ops *ops)
{
    psd_op op = 0;

    for (uint32_t i = 0; i < HITS_MAX && !op; i++)
        op = flag_hit(ops, i, 0, HIT_TAKEN);
    return op;
}

/* ---- start ---- */

/* The slot is the caller's; if it fails, it is free. */
static int send_pull(psd *c, uint64_t clock, struct slot *slot,
                     const struct ps_pull_section *sections, uint32_t n, psd_op *ret,
                     struct err *err)
{
    const psd_op op = number_of(slot);
    struct ps_pull *pull;
    int status = ps_pull_start_tagged(c->client, c->is_reader ? 0 : clock, sections, n, slot,
                                      &pull, err);

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

static int start(psd *c, uint64_t clock, const psd_rows *rows, uint32_t n, psd_op *ret,
                 struct err *err)
{
    struct slot *slot = NULL;
    int status = take_slot(c, n, &slot, err);

    if (status)
        return status;
    status = sections_read_pull(rows, n, slot->sections, err);
    if (!status)
        return send_pull(c, clock, slot, slot->sections, n, ret, err);
    free_slot(c, slot);
    return status;
}

/* What the look has found missing; `whole`: all keys. */
static int send_missing(psd *c, struct slot *slot, struct cached_lookup *lookup, bool whole,
                        psd_op *ret, struct err *err)
{
    struct cached_pull *p = &slot->cached;
    uint32_t n = lookup->n;
    int status = whole ? cached_pull_start_whole(p, lookup->sections, n, err)
                       : cached_pull_start(p, lookup, slot->sections, &n, err);

    if (status) {
        free_slot(c, slot);
        return status;
    }
    return send_pull(c, 0, slot, whole ? p->asked : slot->sections, n, ret, err);
}

/* The rows that are in the cache are copied here and now. `slot`, or NULL, has the sections. */
static int start_checked(psd *c, const struct ps_pull_section *sections, uint32_t n,
                         struct slot *slot, psd_op *ret, struct err *err)
{
    struct cached_lookup lookup;
    bool is_missing;
    int status = 0;

    cached_lookup_start(&lookup, c, sections, n);
    is_missing = cached_lookup_next(&lookup);
    *ret = is_missing || cached_lookup_took_too_long(&lookup) ? 0 : take_hit(c->ops);
    if (*ret) {
        if (slot)
            free_slot(c, slot);
        cached_lookup_count(&lookup);
        if (atomic_load(&c->uses_fd))
            (void)eventfd_write(c->fd, 1);
        return 0;
    }
    if (!slot)
        status = take_slot(c, n, &slot, err);
    return status ? status : send_missing(c, slot, &lookup, !is_missing, ret, err);
}

/* The servers would refuse its number; the cache still has rows. */
static int check_dropped(const psd *c, const struct ps_pull_section *sections, uint32_t n,
                         struct err *err)
{
    for (uint32_t i = 0; i < n; i++)
        if (atomic_load(&c->is_dropped[sections[i].table]))
            return err_set(err, PS_ENOTABLE, "a pull, section %u: table %u was dropped", i,
                           sections[i].table);
    return 0;
}

static int start_cached(psd *c, const psd_rows *rows, uint32_t n, psd_op *ret, struct err *err)
{
    struct ps_pull_section few[FEW_SECTIONS], *sections = few;
    struct slot *slot = NULL;
    int status = n > FEW_SECTIONS ? take_slot(c, n, &slot, err) : 0;

    if (status)
        return status;
    if (slot)
        sections = slot->sections;
    status = sections_read_pull(rows, n, sections, err);
    if (!status)
        status = argument_check_pull(sections, n, atomic_load(&c->n_tables), err);
    if (!status)
        status = check_dropped(c, sections, n, err);
    if (!status)
        return start_checked(c, sections, n, slot, ret, err);
    if (slot)
        free_slot(c, slot);
    return status;
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
        status = c->cache ? start_cached(c, rows, (uint32_t)n, ret_op, &err)
                          : start(c, clock, rows, (uint32_t)n, ret_op, &err);
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

/* Rows of the cache have become too old meanwhile: all keys are pulled, under the same number. */
static int restart_pull(psd *c, struct slot *slot, struct ps_pull **ret_pull, struct err *err)
{
    struct cached_pull *p = &slot->cached;
    int status = ps_pull_start_tagged(c->client, 0, p->asked, p->n_asked, slot, ret_pull, err);

    if (status == -EINTR) /* this wait cannot be made again */
        return err_set(err, -ECANCELED, "a signal ended the pull as it began again");
    if (status)
        return status;
    uv_mutex_lock(&c->lock);
    slot->pull = *ret_pull;
    if (slot->is_cancelled || slot->n_cancelled != c->ops->n_cancelled)
        ps_pull_cancel_tagged(c->client, *ret_pull, slot); /* while there was none to cancel */
    uv_mutex_unlock(&c->lock);
    return 0;
}

static int wait_for(psd *c, struct slot *slot, struct ps_pull *pull, uint64_t until_ns,
                    struct err *err)
{
    int status = ps_pull_wait_until(c->client, pull, until_ns, err);

    while (!status && c->cache && cached_pull_end(&slot->cached, c)) {
        status = restart_pull(c, slot, &pull, err);
        if (!status)
            status = ps_pull_wait_until(c->client, pull, until_ns, err);
    }
    return status;
}

int psd_wait(psd *c, psd_op op, int timeout_ms)
{
    struct ps_pull *pull;
    struct slot *slot;
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    if (is_hit(op))
        return handle_leave(c, end_hit(c->ops, op, &err), &err);
    status = begin_wait(c, op, &slot, &pull, &err);
    if (!status) {
        status = wait_for(c, slot, pull, handle_until(timeout_ms, 0), &err);
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
    if (op == 0 || is_hit(op))
        cancel_hits(c->ops, op);
    uv_mutex_lock(&c->lock);
    if (op == 0) {
        c->ops->n_cancelled++;
        ps_pull_cancel(c->client, NULL);
    } else if ((slot = find_slot(c, op))) {
        slot->is_cancelled = true;
        ps_pull_cancel_tagged(c->client, slot->pull, slot);
    }
    uv_mutex_unlock(&c->lock);
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
    if (ps_pull_has_next(c->client) || (c->cache && has_hit(c->ops)))
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
    if (!op && c->cache)
        op = next_hit(c->ops);
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

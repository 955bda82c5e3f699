#include "worker/client/desk.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

#define WAIT_SLICE_NS \
    UINT64_C(3600000000000) /* libuv adds the time-out to the clock: no overflow */

int desk_init(struct desk *d)
{
    int status;

    *d = (struct desk){ 0 };
    status = uv_mutex_init(&d->lock);
    if (status)
        return status;
    status = uv_cond_init(&d->changed);
    if (status)
        uv_mutex_destroy(&d->lock);
    return status;
}

void desk_deinit(struct desk *d)
{
    uint32_t i;

    for (i = 0; i < d->n_shards; i++)
        buf_deinit(&d->answers[i].body);
    free(d->answers);
    free(d->acked);
    uv_cond_destroy(&d->changed);
    uv_mutex_destroy(&d->lock);
}

static int copy_err(struct err *dst, const struct err *src)
{
    if (dst)
        *dst = *src;
    return src->status;
}

/* Under the lock: waits until done(d, arg), or the failure, or the deadline. */
static int wait_until(struct desk *d, bool (*done)(const struct desk *d, uint64_t arg),
                      uint64_t arg, uint64_t deadline_ns, struct err *err)
{
    uint64_t now;

    while (!d->failure.status && !done(d, arg)) {
        now = uv_hrtime();
        if (now >= deadline_ns)
            return -ETIMEDOUT;
        uv_cond_timedwait(&d->changed, &d->lock,
                          deadline_ns - now < WAIT_SLICE_NS ? deadline_ns - now
                                                            : WAIT_SLICE_NS);
    }
    return d->failure.status ? copy_err(err, &d->failure) : 0;
}

static bool is_joined(const struct desk *d, uint64_t arg)
{
    (void)arg;
    return d->standing == DESK_JOINED || d->standing == DESK_UNTOLD;
}

/* Under the lock: tells of a rejoin once it is complete, to each who asks: the thread that
 * pulls and the one that pushes must both stop before the steps are done anew. */
static int tell_rejoin(struct desk *d, struct err *err)
{
    int status = wait_until(d, is_joined, 0, DESK_NO_DEADLINE, err);

    if (status || d->standing == DESK_JOINED)
        return status;
    return err_set(err, PS_EFENCED,
                   "the servers had declared this worker dead: it has joined again and goes on "
                   "at clock %llu",
                   (unsigned long long)d->clock);
}

/* Under the lock. */
static int tell_refusal(struct desk *d, struct err *err)
{
    int status = copy_err(err, &d->refusal);

    d->refusal.status = 0;
    return status;
}

int desk_wait_open(struct desk *d, uint64_t deadline_ns, struct err *err)
{
    int status;

    uv_mutex_lock(&d->lock);
    status = wait_until(d, is_joined, 0, deadline_ns, err);
    uv_mutex_unlock(&d->lock);
    return status;
}

static bool has_room(const struct desk *d, uint64_t max_bytes)
{
    return d->unacked_bytes <= max_bytes || d->standing != DESK_JOINED;
}

int desk_wait_room(struct desk *d, uint64_t max_bytes, struct err *err)
{
    int status;

    uv_mutex_lock(&d->lock);
    status = wait_until(d, has_room, max_bytes, DESK_NO_DEADLINE, err);
    if (!status)
        status = tell_rejoin(d, err);
    if (!status)
        status = tell_refusal(d, err);
    uv_mutex_unlock(&d->lock);
    return status;
}

uint64_t desk_resume(struct desk *d)
{
    uint64_t clock;

    uv_mutex_lock(&d->lock);
    if (d->standing == DESK_UNTOLD)
        d->standing = DESK_JOINED;
    clock = d->clock;
    uv_mutex_unlock(&d->lock);
    return clock;
}

void desk_add_pushes(struct desk *d, uint64_t n_pushes, uint64_t n_bytes,
                     struct desk_identity *ret)
{
    uint32_t i;

    uv_mutex_lock(&d->lock);
    *ret = (struct desk_identity){ d->epoch, d->incarnation, d->map_id, UINT64_MAX };
    for (i = 0; i < d->n_shards; i++)
        if (d->acked[i] < ret->acked)
            ret->acked = d->acked[i];
    if (d->standing == DESK_JOINED) {
        d->n_unacked += n_pushes;
        d->unacked_bytes += n_bytes;
    } else {
        ret->epoch = UINT64_MAX; /* fenced since the caller looked */
    }
    uv_mutex_unlock(&d->lock);
}

void desk_start_pull(struct desk *d, uint64_t *ret_id, uint64_t *ret_epoch)
{
    uint32_t i;

    uv_mutex_lock(&d->lock);
    *ret_id = ++d->pull_id;
    *ret_epoch = d->standing == DESK_JOINED ? d->epoch : UINT64_MAX;
    d->pull_refused = d->pull_cancelled = false;
    for (i = 0; i < d->n_shards; i++)
        d->answers[i].here = false;
    uv_mutex_unlock(&d->lock);
}

static bool is_answered(const struct desk *d, uint64_t shard)
{
    return d->answers[shard].here || d->pull_refused || d->pull_cancelled ||
           d->standing != DESK_JOINED;
}

int desk_wait_answer(struct desk *d, uint32_t shard, uint64_t deadline_ns, struct err *err)
{
    int status;

    uv_mutex_lock(&d->lock);
    status = wait_until(d, is_answered, shard, deadline_ns, err);
    if (!status && d->pull_cancelled)
        status = err_set(err, -ECANCELED, "the pull was cancelled");
    else if (!status && !d->answers[shard].here && !d->pull_refused)
        status = tell_rejoin(d, err);
    uv_mutex_unlock(&d->lock);
    return status;
}

void desk_end_pull(struct desk *d)
{
    uv_mutex_lock(&d->lock);
    d->pull_id++;
    uv_mutex_unlock(&d->lock);
}

void desk_cancel_pull(struct desk *d)
{
    uv_mutex_lock(&d->lock);
    d->pull_cancelled = true;
    uv_cond_broadcast(&d->changed);
    uv_mutex_unlock(&d->lock);
}

uint32_t desk_first_silent(struct desk *d)
{
    uint32_t i;

    uv_mutex_lock(&d->lock);
    for (i = 0; i < d->n_shards && d->answers[i].here; i++)
        ;
    uv_mutex_unlock(&d->lock);
    return i;
}

uint32_t desk_first_refusal(struct desk *d)
{
    uint32_t i;

    uv_mutex_lock(&d->lock);
    for (i = 0; i < d->n_shards && !(d->answers[i].here && d->answers[i].reply.status); i++)
        ;
    uv_mutex_unlock(&d->lock);
    return i;
}

void desk_start_table(struct desk *d)
{
    uv_mutex_lock(&d->lock);
    d->table = (struct desk_table){ .n_waiting = d->n_shards };
    uv_mutex_unlock(&d->lock);
}

static bool is_told(const struct desk *d, uint64_t arg)
{
    (void)arg;
    return d->table.n_waiting == 0;
}

int desk_wait_table(struct desk *d, uint64_t deadline_ns, struct desk_table *ret,
                    struct err *err)
{
    int status;

    uv_mutex_lock(&d->lock);
    status = wait_until(d, is_told, 0, deadline_ns, err);
    *ret = d->table;
    uv_mutex_unlock(&d->lock);
    return status;
}

void desk_start_leave(struct desk *d)
{
    uv_mutex_lock(&d->lock);
    d->n_leaving = d->n_shards;
    uv_mutex_unlock(&d->lock);
}

static bool have_left(const struct desk *d, uint64_t arg)
{
    (void)arg;
    return d->n_leaving == 0;
}

int desk_wait_left(struct desk *d, uint64_t deadline_ns, struct err *err)
{
    int status;

    uv_mutex_lock(&d->lock);
    status = wait_until(d, have_left, 0, deadline_ns, err);
    uv_mutex_unlock(&d->lock);
    return status;
}

uint64_t desk_clock(const struct desk *d)
{
    struct desk *locked = (struct desk *)d; /* reading takes the lock, too */
    uint64_t clock;

    uv_mutex_lock(&locked->lock);
    clock = d->clock;
    uv_mutex_unlock(&locked->lock);
    return clock;
}

bool desk_is_failed(struct desk *d)
{
    bool failed;

    uv_mutex_lock(&d->lock);
    failed = d->failure.status != 0;
    uv_mutex_unlock(&d->lock);
    return failed;
}

static void unlock_and_wake(struct desk *d)
{
    uv_cond_broadcast(&d->changed);
    uv_mutex_unlock(&d->lock);
}

void desk_set_shards(struct desk *d, uint32_t n_shards, uint64_t map_id, uint64_t incarnation)
{
    uv_mutex_lock(&d->lock);
    assert(!d->answers);
    d->answers = mem_alloc(n_shards * sizeof *d->answers);
    d->acked = mem_alloc(n_shards * sizeof *d->acked);
    d->map_id = map_id;
    d->incarnation = incarnation;
    d->n_shards = n_shards;
    uv_mutex_unlock(&d->lock);
}

void desk_joined(struct desk *d, uint64_t clock)
{
    uv_mutex_lock(&d->lock);
    if (clock > d->clock)
        d->clock = clock;
    d->standing = d->standing == DESK_OPENING ? DESK_JOINED : DESK_UNTOLD;
    unlock_and_wake(d);
}

uint64_t desk_rejoin(struct desk *d, uint64_t incarnation)
{
    uint64_t epoch;

    uv_mutex_lock(&d->lock);
    epoch = ++d->epoch;
    d->incarnation = incarnation;
    memset(d->acked, 0, d->n_shards * sizeof *d->acked);
    if (d->standing != DESK_OPENING)
        d->standing = DESK_REJOINING;
    d->n_unacked = d->unacked_bytes = 0;
    unlock_and_wake(d);
    return epoch;
}

void desk_fail(struct desk *d, int status, const char *sentence)
{
    uv_mutex_lock(&d->lock);
    if (!d->failure.status)
        err_set(&d->failure, status, "%s", sentence);
    unlock_and_wake(d);
}

void desk_refuse(struct desk *d, int status, const char *sentence)
{
    uv_mutex_lock(&d->lock);
    if (!d->refusal.status)
        err_set(&d->refusal, status, "%s", sentence);
    d->n_refusals++;
    unlock_and_wake(d);
}

void desk_ack(struct desk *d, uint32_t shard, uint64_t seq, uint64_t n_bytes)
{
    uv_mutex_lock(&d->lock);
    assert(d->n_unacked > 0 && d->unacked_bytes >= n_bytes);
    d->acked[shard] = seq;
    d->n_unacked--;
    d->unacked_bytes -= n_bytes;
    unlock_and_wake(d);
}

bool desk_wants(struct desk *d, uint64_t id)
{
    bool wants;

    uv_mutex_lock(&d->lock);
    wants = d->pull_id == id;
    uv_mutex_unlock(&d->lock);
    return wants;
}

void desk_answered(struct desk *d, uint64_t id, uint32_t shard)
{
    uv_mutex_lock(&d->lock);
    if (d->pull_id == id) {
        d->answers[shard].here = true;
        d->pull_refused |= d->answers[shard].reply.status != 0;
    }
    unlock_and_wake(d);
}

void desk_table_told(struct desk *d, const struct table_reply *reply)
{
    uv_mutex_lock(&d->lock);
    if (reply->status && !d->table.status) {
        d->table.status = reply->status;
        memcpy(d->table.text, reply->text, sizeof d->table.text);
    } else if (!reply->status) {
        d->table.spec = reply->spec;
    }
    assert(d->table.n_waiting > 0);
    d->table.n_waiting--;
    unlock_and_wake(d);
}

void desk_left(struct desk *d)
{
    uv_mutex_lock(&d->lock);
    if (d->n_leaving)
        d->n_leaving--;
    unlock_and_wake(d);
}

#include "worker/client/client_state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define WAIT_SLICE_NS \
    UINT64_C(3600000000000) /* libuv adds the time-out to the clock: no overflow */

int client_state_init(struct client_state *s)
{
    int status;

    *s = (struct client_state){ 0 };
    status = uv_mutex_init(&s->lock);
    if (status)
        return status;
    status = uv_cond_init(&s->changed);
    if (status)
        uv_mutex_destroy(&s->lock);
    return status;
}

void client_state_deinit(struct client_state *s)
{
    uint32_t i;

    for (i = 0; i < s->n_shards; i++)
        bytes_deinit(&s->answers[i].body);
    free(s->answers);
    free(s->acked);
    uv_cond_destroy(&s->changed);
    uv_mutex_destroy(&s->lock);
}

static int copy_err(struct err *dst, const struct err *src)
{
    if (dst)
        *dst = *src;
    return src->status;
}

/* Under the lock: waits until done(s, arg), or the failure, or the deadline. */
static int wait_until(struct client_state *s,
                      bool (*done)(const struct client_state *s, uint64_t arg), uint64_t arg,
                      uint64_t deadline_ns, struct err *err)
{
    uint64_t now;

    while (!s->failure.status && !done(s, arg)) {
        now = uv_hrtime();
        if (now >= deadline_ns)
            return -ETIMEDOUT;
        uv_cond_timedwait(&s->changed, &s->lock,
                          deadline_ns - now < WAIT_SLICE_NS ? deadline_ns - now
                                                            : WAIT_SLICE_NS);
    }
    return s->failure.status ? copy_err(err, &s->failure) : 0;
}

static bool is_joined(const struct client_state *s, uint64_t arg)
{
    (void)arg;
    return s->phase == CLIENT_STATE_JOINED || s->phase == CLIENT_STATE_REJOINED;
}

/* Under the lock, unless JOINED: PS_EFENCED once a rejoin is complete. Every caller gets it: the thread that pulls
 * and the one that pushes must both stop before the steps are done again. */
static int report_rejoin(struct client_state *s, struct err *err)
{
    int status = wait_until(s, is_joined, 0, CLIENT_STATE_NO_DEADLINE, err);

    if (status || s->phase == CLIENT_STATE_JOINED)
        return status;
    return err_set(err, PS_EFENCED,
                   "the servers had declared this worker dead: it has joined again and goes on "
                   "at clock %llu",
                   (unsigned long long)s->clock);
}

/* Under the lock. */
static int report_refusal(struct client_state *s, struct err *err)
{
    int status = copy_err(err, &s->refusal);

    s->refusal.status = 0;
    return status;
}

int client_state_wait_open(struct client_state *s, uint64_t deadline_ns, struct err *err)
{
    int status;

    uv_mutex_lock(&s->lock);
    status = wait_until(s, is_joined, 0, deadline_ns, err);
    uv_mutex_unlock(&s->lock);
    return status;
}

/* A push that brings a shard no row has no bytes, and has to be acknowledged, too. */
static bool is_within_window(const struct client_state *s, uint64_t max_bytes)
{
    bool fits = max_bytes ? s->unacked_bytes <= max_bytes : s->n_unacked == 0;

    return fits || s->phase != CLIENT_STATE_JOINED;
}

int client_state_wait_window(struct client_state *s, uint64_t max_bytes, struct err *err)
{
    int status;

    uv_mutex_lock(&s->lock);
    status = wait_until(s, is_within_window, max_bytes, CLIENT_STATE_NO_DEADLINE, err);
    if (!status && s->phase != CLIENT_STATE_JOINED)
        status = report_rejoin(s, err);
    if (!status && s->refusal.status)
        status = report_refusal(s, err);
    uv_mutex_unlock(&s->lock);
    return status;
}

uint64_t client_state_resume(struct client_state *s)
{
    uint64_t clock;

    uv_mutex_lock(&s->lock);
    if (s->phase == CLIENT_STATE_REJOINED)
        s->phase = CLIENT_STATE_JOINED;
    clock = s->clock;
    uv_mutex_unlock(&s->lock);
    return clock;
}

void client_state_add_pushes(struct client_state *s, uint64_t n_pushes, uint64_t n_bytes,
                             struct client_state_identity *ret)
{
    uint32_t i;

    uv_mutex_lock(&s->lock);
    *ret = (struct client_state_identity){ s->epoch, s->incarnation, s->map_id, UINT64_MAX };
    for (i = 0; i < s->n_shards; i++)
        if (s->acked[i] < ret->acked)
            ret->acked = s->acked[i];
    if (s->phase == CLIENT_STATE_JOINED) {
        s->n_unacked += n_pushes;
        s->unacked_bytes += n_bytes;
    } else {
        ret->epoch = UINT64_MAX; /* fenced since client_state_wait_window() */
    }
    uv_mutex_unlock(&s->lock);
}

void client_state_start_pull(struct client_state *s, uint64_t *ret_id, uint64_t *ret_epoch)
{
    uint32_t i;

    uv_mutex_lock(&s->lock);
    *ret_id = ++s->pull_id;
    *ret_epoch = s->phase == CLIENT_STATE_JOINED ? s->epoch : UINT64_MAX;
    s->pull_refused = s->pull_cancelled = false;
    for (i = 0; i < s->n_shards; i++)
        s->answers[i].arrived = false;
    uv_mutex_unlock(&s->lock);
}

static bool is_answered(const struct client_state *s, uint64_t shard)
{
    return s->answers[shard].arrived || s->pull_refused || s->pull_cancelled ||
           s->phase != CLIENT_STATE_JOINED;
}

int client_state_wait_answer(struct client_state *s, uint32_t shard, uint64_t deadline_ns,
                             struct err *err)
{
    int status;

    uv_mutex_lock(&s->lock);
    status = wait_until(s, is_answered, shard, deadline_ns, err);
    if (!status && s->pull_cancelled)
        status = err_set(err, -ECANCELED, "the pull was cancelled");
    else if (!status && !s->answers[shard].arrived && !s->pull_refused)
        status = report_rejoin(s, err);
    uv_mutex_unlock(&s->lock);
    return status;
}

void client_state_end_pull(struct client_state *s)
{
    uv_mutex_lock(&s->lock);
    s->pull_id++;
    uv_mutex_unlock(&s->lock);
}

void client_state_cancel_pull(struct client_state *s)
{
    uv_mutex_lock(&s->lock);
    s->pull_cancelled = true;
    uv_cond_broadcast(&s->changed);
    uv_mutex_unlock(&s->lock);
}

uint32_t client_state_first_silent(struct client_state *s)
{
    uint32_t i;

    uv_mutex_lock(&s->lock);
    for (i = 0; i < s->n_shards && s->answers[i].arrived; i++)
        ;
    uv_mutex_unlock(&s->lock);
    return i;
}

uint32_t client_state_first_refusal(struct client_state *s)
{
    uint32_t i;

    uv_mutex_lock(&s->lock);
    for (i = 0; i < s->n_shards && !(s->answers[i].arrived && s->answers[i].reply.status); i++)
        ;
    uv_mutex_unlock(&s->lock);
    return i;
}

void client_state_start_table(struct client_state *s)
{
    uv_mutex_lock(&s->lock);
    s->table = (struct client_state_table){ .n_waiting = s->n_shards };
    uv_mutex_unlock(&s->lock);
}

static bool is_table_answered(const struct client_state *s, uint64_t arg)
{
    (void)arg;
    return s->table.n_waiting == 0;
}

int client_state_wait_table(struct client_state *s, uint64_t deadline_ns,
                            struct client_state_table *ret, struct err *err)
{
    int status;

    uv_mutex_lock(&s->lock);
    status = wait_until(s, is_table_answered, 0, deadline_ns, err);
    *ret = s->table;
    uv_mutex_unlock(&s->lock);
    return status;
}

void client_state_start_leave(struct client_state *s)
{
    uv_mutex_lock(&s->lock);
    s->n_leaving = s->n_shards;
    uv_mutex_unlock(&s->lock);
}

static bool have_left(const struct client_state *s, uint64_t arg)
{
    (void)arg;
    return s->n_leaving == 0;
}

int client_state_wait_left(struct client_state *s, uint64_t deadline_ns, struct err *err)
{
    int status;

    uv_mutex_lock(&s->lock);
    status = wait_until(s, have_left, 0, deadline_ns, err);
    uv_mutex_unlock(&s->lock);
    return status;
}

uint64_t client_state_clock(const struct client_state *s)
{
    struct client_state *locked = (struct client_state *)s; /* reading takes the lock, too */
    uint64_t clock;

    uv_mutex_lock(&locked->lock);
    clock = s->clock;
    uv_mutex_unlock(&locked->lock);
    return clock;
}

bool client_state_is_failed(struct client_state *s)
{
    bool failed;

    uv_mutex_lock(&s->lock);
    failed = s->failure.status != 0;
    uv_mutex_unlock(&s->lock);
    return failed;
}

static void unlock_and_wake(struct client_state *s)
{
    uv_cond_broadcast(&s->changed);
    uv_mutex_unlock(&s->lock);
}

void client_state_set_shards(struct client_state *s, uint32_t n_shards, uint64_t map_id,
                             uint64_t incarnation)
{
    uv_mutex_lock(&s->lock);
    assert(!s->answers);
    s->answers = memory_alloc(n_shards * sizeof *s->answers);
    s->acked = memory_alloc(n_shards * sizeof *s->acked);
    s->map_id = map_id;
    s->incarnation = incarnation;
    s->n_shards = n_shards;
    uv_mutex_unlock(&s->lock);
}

void client_state_joined(struct client_state *s, uint64_t clock)
{
    uv_mutex_lock(&s->lock);
    if (clock > s->clock)
        s->clock = clock;
    s->phase = s->phase == CLIENT_STATE_OPENING ? CLIENT_STATE_JOINED : CLIENT_STATE_REJOINED;
    unlock_and_wake(s);
}

uint64_t client_state_rejoin(struct client_state *s, uint64_t incarnation)
{
    uint64_t epoch;

    uv_mutex_lock(&s->lock);
    epoch = ++s->epoch;
    s->incarnation = incarnation;
    memset(s->acked, 0, s->n_shards * sizeof *s->acked);
    if (s->phase != CLIENT_STATE_OPENING)
        s->phase = CLIENT_STATE_REJOINING;
    s->n_unacked = s->unacked_bytes = 0;
    unlock_and_wake(s);
    return epoch;
}

void client_state_fail(struct client_state *s, int status, const char *sentence)
{
    uv_mutex_lock(&s->lock);
    if (!s->failure.status)
        err_set(&s->failure, status, "%s", sentence);
    unlock_and_wake(s);
}

void client_state_refuse(struct client_state *s, int status, const char *sentence)
{
    uv_mutex_lock(&s->lock);
    if (!s->refusal.status)
        err_set(&s->refusal, status, "%s", sentence);
    s->n_refusals++;
    unlock_and_wake(s);
}

void client_state_ack(struct client_state *s, uint32_t shard, uint64_t seq, uint64_t n_bytes)
{
    uv_mutex_lock(&s->lock);
    assert(s->n_unacked > 0 && s->unacked_bytes >= n_bytes);
    s->acked[shard] = seq;
    s->n_unacked--;
    s->unacked_bytes -= n_bytes;
    unlock_and_wake(s);
}

bool client_state_is_current_pull(struct client_state *s, uint64_t id)
{
    bool is_current;

    uv_mutex_lock(&s->lock);
    is_current = s->pull_id == id;
    uv_mutex_unlock(&s->lock);
    return is_current;
}

void client_state_answered(struct client_state *s, uint64_t id, uint32_t shard)
{
    uv_mutex_lock(&s->lock);
    if (s->pull_id == id) {
        s->answers[shard].arrived = true;
        s->pull_refused |= s->answers[shard].reply.status != 0;
    }
    unlock_and_wake(s);
}

void client_state_table_answered(struct client_state *s, const struct table_reply *reply)
{
    uv_mutex_lock(&s->lock);
    if (reply->status && !s->table.status) {
        s->table.status = reply->status;
        memcpy(s->table.text, reply->text, sizeof s->table.text);
    } else if (!reply->status) {
        s->table.spec = reply->spec;
    }
    assert(s->table.n_waiting > 0);
    s->table.n_waiting--;
    unlock_and_wake(s);
}

void client_state_left(struct client_state *s)
{
    uv_mutex_lock(&s->lock);
    if (s->n_leaving)
        s->n_leaving--;
    unlock_and_wake(s);
}

#include "worker/client/client_state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/client/pull.h"

#define DRIVE_NS UINT64_C(10000000) /* of a wait, in which its thread may drive */

int client_state_init(struct client_state *s, const struct client_state_hooks *hooks)
{
    int status;

    *s = (struct client_state){ 0 };
    if (hooks)
        s->hooks = *hooks;
    status = uv_mutex_init(&s->lock);
    if (status)
        return status;
    status = wakeup_init(&s->changed, false);
    if (status)
        uv_mutex_destroy(&s->lock);
    s->last_came = &s->first_came;
    return status;
}

/* ---- lists of pulls ---- */

static void add_pull(struct ps_pull **list, struct ps_pull *pull)
{
    pull->next = *list;
    pull->link = list;
    if (pull->next)
        pull->next->link = &pull->next;
    *list = pull;
}

static void remove_pull(struct ps_pull *pull)
{
    *pull->link = pull->next;
    if (pull->next)
        pull->next->link = pull->link;
    pull->next = NULL;
    pull->link = NULL;
}

static void free_pulls(struct ps_pull **list)
{
    struct ps_pull *pull;

    while ((pull = *list)) {
        remove_pull(pull);
        pull_free(pull);
    }
}

void client_state_deinit(struct client_state *s)
{
    free_pulls(&s->idle);
    free_pulls(&s->under_way);
    free(s->acked);
    wakeup_fds_deinit(&s->fds);
    wakeup_deinit(&s->changed);
    uv_mutex_destroy(&s->lock);
}

static int copy_err(struct err *dst, const struct err *src)
{
    if (dst)
        *dst = *src;
    return src->status;
}

/* ---- threads that wait ---- */

/* One of them. Under the lock, but while it is awake. */
struct waiter {
    struct wakeup *wakeup; /* that it sleeps at, unless it is interruptible */
    int fd; /* that it sleeps at, if it is; -1: it has none yet, or there is none */
    struct signals *signals;
    struct ps_pull *pull; /* that it waits for, or NULL: */
    bool (*done)(const struct client_state *s, uint64_t arg);
    uint64_t arg;

    uint64_t until_ns;        /* it may drive so long; 0: it has not waited yet */
    bool drives, was_refused; /* the network was not to be driven, when it last tried */
    bool is_called; /* to drive in another one's place, or as what it waits for has come */
    struct waiter *next, **link; /* in the list of those that sleep; NULL: it does not */
};

void client_state_set_network(struct client_state *s,
                              const struct client_state_network *network)
{
    s->network = *network;
}

static void wake_at(const struct client_state *s, int fd, struct wakeup *wakeup)
{
    if (!s->hooks.is_interruptible)
        wakeup_broadcast(wakeup);
    else
        wakeup_write(fd);
}

/* Under the lock: one that sleeps. */
static void wake(const struct client_state *s, struct waiter *w)
{
    if (w->is_called)
        return;
    w->is_called = true;
    wake_at(s, w->fd, w->wakeup);
}

static int sleep_until_woken(struct client_state *s, struct waiter *w, uint64_t timeout_ns)
{
    int status;

    if (s->hooks.is_interruptible && w->fd < 0)
        w->fd = wakeup_fds_take(&s->fds);
    w->next = s->asleep;
    w->link = &s->asleep;
    if (w->next)
        w->next->link = &w->next;
    s->asleep = w;
    if (w->pull)
        w->pull->waiter = w;
    if (s->hooks.is_interruptible) {
        uv_mutex_unlock(&s->lock);
        status = wakeup_sleep(w->fd, timeout_ns, w->signals);
        uv_mutex_lock(&s->lock);
    } else {
        status = wakeup_wait(w->wakeup, &s->lock, timeout_ns, w->signals);
    }
    if (w->pull)
        w->pull->waiter = NULL;
    *w->link = w->next;
    if (w->next)
        w->next->link = w->link;
    w->was_refused = w->is_called = false;
    return status;
}

/* Under the lock: one that sleeps, and has not for long, drives on. False: there is none. */
static bool call_next(struct client_state *s)
{
    const uint64_t now_ns = uv_hrtime();

    for (struct waiter *next = s->asleep; next; next = next->next) {
        if (next->is_called || now_ns >= next->until_ns)
            continue;
        wake(s, next);
        return true;
    }
    return false;
}

static void stop_driving(struct client_state *s, struct waiter *w, bool is_for_long)
{
    s->network.leave(s->network.arg, w->signals, is_for_long);
    w->drives = s->has_driver = false;
}

static int drive(struct client_state *s, struct waiter *w, uint64_t timeout_ns)
{
    int status;

    if (w->pull)
        w->pull->is_driven = true;
    uv_mutex_unlock(&s->lock);
    status = s->network.turn(s->network.arg, w->signals, timeout_ns);
    uv_mutex_lock(&s->lock);
    if (w->pull)
        w->pull->is_driven = false;
    if (status != -EAGAIN)
        return status;
    stop_driving(s, w, false);
    s->may_drive = false;
    w->was_refused = true;
    return 0;
}

/* What it waits for may have come meanwhile. */
static void start_driving(struct client_state *s, struct waiter *w)
{
    s->has_driver = true;
    uv_mutex_unlock(&s->lock);
    w->drives = s->network.enter(s->network.arg);
    uv_mutex_lock(&s->lock);
    s->has_driver = s->may_drive = w->drives;
    w->was_refused = !w->drives;
}

/* Drives the network or sleeps, up to timeout_ns, and then what it waits for may have come. -EINTR behind a signal. */
static int wait_a_turn(struct client_state *s, struct waiter *w, uint64_t now_ns,
                       uint64_t timeout_ns)
{
    uint64_t left_ns;

    if (s->hooks.is_interruptible)
        signals_hold(w->signals);
    if (!w->until_ns)
        w->until_ns = now_ns + DRIVE_NS;
    left_ns = now_ns < w->until_ns ? w->until_ns - now_ns : 0;
    if (w->drives && left_ns)
        return drive(s, w, timeout_ns < left_ns ? timeout_ns : left_ns);
    if (w->drives)
        stop_driving(s, w, !call_next(s));
    else if (s->network.enter && !s->has_driver && !w->was_refused && left_ns) {
        start_driving(s, w);
        return 0;
    }
    return sleep_until_woken(s, w, timeout_ns);
}

/* Another one drives on. Also one that was called and need not wait any more calls the next one. */
static void end_waiting(struct client_state *s, struct waiter *w)
{
    if (w->drives)
        stop_driving(s, w, false);
    wakeup_fds_give(&s->fds, w->fd);
    if (!s->has_driver && s->may_drive)
        (void)call_next(s);
}

/* Under the lock: what happens here need not happen by the driver's hand. */
static void wake_driver(struct client_state *s)
{
    if (s->has_driver)
        s->network.wake(s->network.arg);
}

/* Under the lock, unlock() follows: waits until done(s, arg), or the failure, or the deadline, or a signal. */
static int wait_until(struct client_state *s, struct signals *signals,
                      bool (*done)(const struct client_state *s, uint64_t arg), uint64_t arg,
                      uint64_t deadline_ns, struct err *err)
{
    struct waiter w = {
        .wakeup = &s->changed, .fd = -1, .signals = signals, .done = done, .arg = arg
    };
    int status = 0;

    while (!s->failure.status && !done(s, arg)) {
        uint64_t now = uv_hrtime();

        if (!status && now >= deadline_ns)
            status = -ETIMEDOUT;
        if (status)
            break;
        status = wait_a_turn(s, &w, now, deadline_ns - now);
    }
    end_waiting(s, &w);
    if (s->failure.status)
        return copy_err(err, &s->failure);
    return done(s, arg) ? 0 : status;
}

/* Handlers of signals that were held run without the lock. */
static void unlock(struct client_state *s, struct signals *signals)
{
    uv_mutex_unlock(&s->lock);
    signals_release(signals);
}

static bool is_joined(const struct client_state *s, uint64_t arg)
{
    (void)arg;
    return s->phase == CLIENT_STATE_JOINED || s->phase == CLIENT_STATE_REJOINED;
}

static int set_fenced(const struct client_state *s, struct err *err)
{
    return err_set(err, PS_EFENCED,
                   "the servers had declared this worker dead: it has joined again and goes on "
                   "at clock %llu",
                   (unsigned long long)s->clock);
}

/* Under the lock, unless JOINED: PS_EFENCED once a rejoin is complete. Every caller gets it: threads that pull
 * and the one that pushes must all stop before the steps are done again. */
static int report_rejoin(struct client_state *s, struct signals *signals, uint64_t deadline_ns,
                         struct err *err)
{
    int status = wait_until(s, signals, is_joined, 0, deadline_ns, err);

    return status || s->phase == CLIENT_STATE_JOINED ? status : set_fenced(s, err);
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
    struct signals signals = { 0 };
    int status;

    uv_mutex_lock(&s->lock);
    status = wait_until(s, &signals, is_joined, 0, deadline_ns, err);
    unlock(s, &signals);
    return status;
}

/* A push that brings a shard no row has no bytes, and has to be acknowledged, too. */
static bool is_within_window(const struct client_state *s, uint64_t max_bytes)
{
    bool fits = max_bytes ? s->unacked_bytes <= max_bytes : s->n_unacked == 0;

    return fits || s->phase != CLIENT_STATE_JOINED;
}

/* Under the lock. */
static int wait_window(struct client_state *s, struct signals *signals, uint64_t max_bytes,
                       uint64_t deadline_ns, struct err *err)
{
    int status = wait_until(s, signals, is_within_window, max_bytes, deadline_ns, err);

    if (!status && s->phase != CLIENT_STATE_JOINED)
        status = report_rejoin(s, signals, deadline_ns, err);
    if (!status && s->refusal.status)
        status = report_refusal(s, err);
    return status;
}

int client_state_wait_window(struct client_state *s, uint64_t max_bytes, uint64_t deadline_ns,
                             struct err *err)
{
    struct signals signals = { 0 };
    int status;

    uv_mutex_lock(&s->lock);
    status = wait_window(s, &signals, max_bytes, deadline_ns, err);
    unlock(s, &signals);
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

/* ---- pulls ---- */

int client_state_acquire_pull(struct client_state *s, uint64_t deadline_ns,
                              struct ps_pull **ret, struct err *err)
{
    struct signals signals = { 0 };
    struct ps_pull *pull = NULL;
    int status;

    uv_mutex_lock(&s->lock);
    status = wait_window(s, &signals, UINT64_MAX, deadline_ns, err);
    if (!status && s->idle) {
        pull = s->idle;
        remove_pull(pull);
        pull->state = PULL_FILLED;
    }
    unlock(s, &signals);
    if (status)
        return status;
    if (!pull)
        pull = pull_new(s, s->n_shards);
    if (!pull)
        return err_set(err, -ENOMEM, "no memory for one more pull");
    *ret = pull;
    return 0;
}

/* Its requests were dropped when the worker joined again. */
static bool is_fenced(const struct client_state *s, const struct ps_pull *pull)
{
    return pull->epoch != s->epoch;
}

/* Under the lock. No wait for it would last. */
static bool has_ended(const struct client_state *s, const struct ps_pull *pull)
{
    return s->failure.status || pull->is_cancelled || pull->is_refused || !pull->n_missing ||
           (is_fenced(s, pull) && is_joined(s, 0));
}

/* Under the lock: it has ended, and nobody waits for it. */
static void come(struct client_state *s, struct ps_pull *pull)
{
    if (!s->hooks.on_came || !pull->tag || pull->link_came || pull->is_taken ||
        pull->state != PULL_UNDER_WAY)
        return;
    pull->next_came = NULL;
    pull->link_came = s->last_came;
    *s->last_came = pull;
    s->last_came = &pull->next_came;
    s->n_came++;
    if (s->first_came == pull)
        s->hooks.on_came(s->hooks.arg);
}

/* Under the lock. It need not stand there. */
static void leave_came(struct client_state *s, struct ps_pull *pull)
{
    if (!pull->link_came)
        return;
    *pull->link_came = pull->next_came;
    if (pull->next_came)
        pull->next_came->link_came = pull->link_came;
    else
        s->last_came = pull->link_came;
    pull->link_came = NULL;
    s->n_came--;
}

/* Under the lock: what has happened may end any pull. */
static void come_all(struct client_state *s)
{
    for (struct ps_pull *pull = s->under_way; pull; pull = pull->next)
        if (has_ended(s, pull))
            come(s, pull);
}

uint32_t client_state_start_pull(struct client_state *s, struct ps_pull *pull,
                                 uint64_t *ret_clock)
{
    uint32_t n_came;

    uv_mutex_lock(&s->lock);
    pull->id = ++s->last_pull_id;
    pull->epoch = s->phase == CLIENT_STATE_JOINED ? s->epoch : UINT64_MAX;
    pull->state = PULL_UNDER_WAY;
    pull->is_refused = pull->is_taken = false;
    pull->is_cancelled = s->is_leaving;
    pull->n_missing = pull->n_shards;
    pull->n_decoded = 0;
    for (uint32_t i = 0; i < pull->n_shards; i++)
        pull->answers[i].arrived = false;
    add_pull(&s->under_way, pull);
    if (has_ended(s, pull))
        come(s, pull);
    *ret_clock = pull->clock < s->job_clock ? pull->clock : s->job_clock;
    if (*ret_clock < s->clock)
        *ret_clock = s->clock;
    n_came = s->n_came;
    uv_mutex_unlock(&s->lock);
    return n_came;
}

struct ps_pull *client_state_next_came(struct client_state *s, void **ret_tag, bool *ret_more)
{
    struct ps_pull *pull;

    uv_mutex_lock(&s->lock);
    pull = s->first_came;
    if (pull) {
        leave_came(s, pull);
        pull->is_taken = true;
        *ret_tag = pull->tag;
    }
    *ret_more = s->first_came != NULL;
    uv_mutex_unlock(&s->lock);
    return pull;
}

bool client_state_has_come(struct client_state *s)
{
    bool has_come;

    uv_mutex_lock(&s->lock);
    has_come = s->first_came != NULL;
    uv_mutex_unlock(&s->lock);
    return has_come;
}

int client_state_begin_wait(struct client_state *s, struct ps_pull *pull, uint64_t now_ns,
                            struct err *err)
{
    int status = 0;

    uv_mutex_lock(&s->lock);
    if (pull->client_state != s || pull->state < PULL_UNDER_WAY)
        status = err_set(err, -EINVAL, "this pull is not under way: its end was waited for");
    else if (pull->state == PULL_WAITED_FOR)
        status = err_set(err, -EINVAL, "another thread waits for this pull already");
    if (!status) {
        pull->state = PULL_WAITED_FOR;
        pull->waited_since_ns = now_ns;
        leave_came(s, pull);
    }
    uv_mutex_unlock(&s->lock);
    return status;
}

/* Under the lock: what its thread has to release. */
static struct signals take_signals(struct ps_pull *pull)
{
    struct signals signals = { 0 };

    if (pull->signals.are_held)
        signals = pull->signals;
    pull->signals.are_held = false;
    return signals;
}

void client_state_pause_wait(struct client_state *s, struct ps_pull *pull)
{
    struct signals signals;

    uv_mutex_lock(&s->lock);
    signals = take_signals(pull);
    pull->state = PULL_UNDER_WAY;
    pull->waited_since_ns = 0;
    pull->is_taken = false;
    if (has_ended(s, pull))
        come(s, pull);
    unlock(s, &signals);
}

static bool is_decided(const struct client_state *s, const struct ps_pull *pull, uint32_t shard)
{
    return pull->is_cancelled || pull->is_refused || pull->answers[shard].arrived ||
           (is_fenced(s, pull) && is_joined(s, 0));
}

/* Under the lock, like wait_until(). A fence has no deadline: links give up by themselves. */
static int wait_decided(struct client_state *s, struct ps_pull *pull, uint32_t shard,
                        uint64_t until_ns)
{
    struct waiter w = { .wakeup = &pull->changed,
                        .fd = -1,
                        .signals = &pull->signals,
                        .pull = pull,
                        .until_ns = pull->waited_since_ns + DRIVE_NS };
    int status = 0;

    while (!s->failure.status && !is_decided(s, pull, shard)) {
        uint64_t now = uv_hrtime(), deadline_ns = is_fenced(s, pull) ? CLIENT_STATE_NO_DEADLINE
                                                                     : pull->deadline_ns;

        if (!status && now >= deadline_ns)
            status = -ETIMEDOUT;
        if (!status && now >= until_ns)
            status = -EAGAIN;
        if (status)
            break;
        pull->awaited = shard;
        status =
            wait_a_turn(s, &w, now, (deadline_ns < until_ns ? deadline_ns : until_ns) - now);
        pull->awaited = PULL_NO_SHARD;
    }
    end_waiting(s, &w);
    return s->failure.status || is_decided(s, pull, shard) ? 0 : status;
}

static uint32_t first_refusal(const struct ps_pull *pull)
{
    uint32_t i = 0;

    while (i < pull->n_shards && !(pull->answers[i].arrived && pull->answers[i].status))
        i++;
    return i;
}

int client_state_wait_answer(struct client_state *s, struct ps_pull *pull, uint32_t shard,
                             uint64_t until_ns, uint32_t *ret_refused, struct err *err)
{
    int status;

    uv_mutex_lock(&s->lock);
    status = wait_decided(s, pull, shard, until_ns);
    if (!status && s->failure.status)
        status = copy_err(err, &s->failure);
    else if (!status && pull->is_cancelled)
        status = err_set(err, -ECANCELED, "the pull was cancelled");
    else if (!status && !pull->is_refused && !pull->answers[shard].arrived)
        status = set_fenced(s, err);
    *ret_refused = pull->is_refused ? first_refusal(pull) : pull->n_shards;
    uv_mutex_unlock(&s->lock);
    return status;
}

void client_state_end_pull(struct client_state *s, struct ps_pull *pull)
{
    struct signals signals;

    uv_mutex_lock(&s->lock);
    signals = take_signals(pull);
    if (pull->state >= PULL_UNDER_WAY)
        remove_pull(pull);
    pull->id = 0;
    pull->state = PULL_IDLE;
    pull->tag = NULL;
    pull->waited_since_ns = 0;
    add_pull(&s->idle, pull);
    unlock(s, &signals);
}

static void cancel_pull(struct client_state *s, struct ps_pull *pull)
{
    pull->is_cancelled = true;
    if (pull->waiter)
        wake(s, pull->waiter);
    wake_driver(s);
    come(s, pull);
}

void client_state_cancel_pull(struct client_state *s, struct ps_pull *pull, const void *tag)
{
    uv_mutex_lock(&s->lock);
    if (pull->client_state == s && pull->state >= PULL_UNDER_WAY && (!tag || pull->tag == tag))
        cancel_pull(s, pull);
    uv_mutex_unlock(&s->lock);
}

void client_state_cancel_pulls(struct client_state *s)
{
    uv_mutex_lock(&s->lock);
    for (struct ps_pull *pull = s->under_way; pull; pull = pull->next)
        cancel_pull(s, pull);
    uv_mutex_unlock(&s->lock);
}

uint32_t client_state_first_silent(struct client_state *s, const struct ps_pull *pull)
{
    uint32_t i;

    uv_mutex_lock(&s->lock);
    for (i = 0; i < pull->n_shards && pull->answers[i].arrived; i++)
        ;
    uv_mutex_unlock(&s->lock);
    return i;
}

uint64_t client_state_waited_since(struct client_state *s)
{
    uint64_t since_ns = 0;

    uv_mutex_lock(&s->lock);
    for (const struct ps_pull *pull = s->under_way; pull; pull = pull->next)
        if (pull->waited_since_ns && (!since_ns || pull->waited_since_ns < since_ns))
            since_ns = pull->waited_since_ns;
    uv_mutex_unlock(&s->lock);
    return since_ns;
}

/* ---- tables, farewells ---- */

int client_state_start_table(struct client_state *s, struct err *err)
{
    int status = 0;

    uv_mutex_lock(&s->lock);
    if (s->failure.status)
        status = copy_err(err, &s->failure);
    else
        s->table = (struct client_state_table){ .n_waiting = s->n_shards };
    uv_mutex_unlock(&s->lock);
    return status;
}

static bool is_table_answered(const struct client_state *s, uint64_t arg)
{
    (void)arg;
    return s->table.n_waiting == 0;
}

int client_state_wait_table(struct client_state *s, uint64_t deadline_ns,
                            struct client_state_table *ret, struct err *err)
{
    struct signals signals = { 0 };
    int status;

    uv_mutex_lock(&s->lock);
    status = wait_until(s, &signals, is_table_answered, 0, deadline_ns, err);
    *ret = s->table;
    unlock(s, &signals);
    return status;
}

void client_state_start_leave(struct client_state *s)
{
    uv_mutex_lock(&s->lock);
    s->is_leaving = true;
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
    struct signals signals = { 0 };
    int status;

    uv_mutex_lock(&s->lock);
    status = wait_until(s, &signals, have_left, 0, deadline_ns, err);
    unlock(s, &signals);
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

/* Those who wait for pushes, tables and farewells, not for pulls. */
static void unlock_and_wake(struct client_state *s)
{
    for (struct waiter *w = s->asleep; w; w = w->next)
        if (!w->pull && (s->failure.status || w->done(s, w->arg)))
            wake(s, w);
    uv_mutex_unlock(&s->lock);
}

static void unlock_and_wake_all(struct client_state *s)
{
    for (struct waiter *w = s->asleep; w; w = w->next)
        if (w->pull)
            wake(s, w);
    wake_driver(s);
    come_all(s);
    unlock_and_wake(s);
}

int client_state_set_shards(struct client_state *s, uint32_t n_shards, uint64_t map_id,
                            uint64_t incarnation)
{
    uint64_t *acked = memory_try_alloc(n_shards * sizeof *acked);

    if (!acked)
        return -ENOMEM;
    uv_mutex_lock(&s->lock);
    assert(!s->acked);
    s->acked = acked;
    s->map_id = map_id;
    s->incarnation = incarnation;
    s->n_shards = n_shards;
    uv_mutex_unlock(&s->lock);
    return 0;
}

void client_state_joined(struct client_state *s, uint64_t clock)
{
    uv_mutex_lock(&s->lock);
    if (clock > s->clock)
        s->clock = clock;
    s->phase = s->phase == CLIENT_STATE_OPENING ? CLIENT_STATE_JOINED : CLIENT_STATE_REJOINED;
    unlock_and_wake_all(s);
}

void client_state_job_is_at(struct client_state *s, uint64_t clock)
{
    uv_mutex_lock(&s->lock);
    if (clock > s->job_clock)
        s->job_clock = clock;
    uv_mutex_unlock(&s->lock);
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
    unlock_and_wake_all(s);
    return epoch;
}

void client_state_fail(struct client_state *s, int status, const char *sentence)
{
    uv_mutex_lock(&s->lock);
    if (!s->failure.status)
        err_set(&s->failure, status, "%s", sentence);
    unlock_and_wake_all(s);
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

void client_state_answered(struct client_state *s, struct ps_pull *pull, uint64_t id,
                           uint32_t shard)
{
    bool is_awaited = false;
    int fd = -1;

    uv_mutex_lock(&s->lock);
    if (pull->id == id && !pull->answers[shard].arrived) {
        pull->answers[shard].arrived = true;
        pull->is_refused |= pull->answers[shard].status != 0;
        pull->n_missing--;
        is_awaited = pull->waiter && !pull->waiter->is_called &&
                     (pull->awaited == shard || pull->is_refused);
        if (is_awaited) {
            pull->waiter->is_called = true;
            fd = pull->waiter->fd;
        }
        if (has_ended(s, pull))
            come(s, pull);
    }
    uv_mutex_unlock(&s->lock);
    if (is_awaited) /* or another thread sleeps there by now, and wakes for no reason */
        wake_at(s, fd, &pull->changed);
}

void client_state_table_answered(struct client_state *s, const struct table_reply *reply)
{
    uv_mutex_lock(&s->lock);
    if (reply->status && !s->table.status) {
        s->table.status = reply->status;
        memcpy(s->table.text, reply->text, sizeof s->table.text);
    } else if (!reply->status) {
        s->table.spec = reply->spec;
        s->table.missing |= ~reply->features;
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

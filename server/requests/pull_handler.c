#include "server/requests/pull_handler.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/requests/pulled_keys.h"

/* Pulls in the order in which they came. */
struct pull_queue {
    struct pending_pull *first; /* owned */
    struct pending_pull **last; /* where the next one is queued */
};

struct pull_handler {
    struct pull_handler_config config;
    struct request_context *request; /* borrowed */
    struct pull_context context;
    struct pull_queue parked;
    /* Their replies are made in slices; the next one's turn. Of readers there may be any number. */
    struct pull_queue of_workers, of_readers;
    uint64_t n_slices;             /* made so far: workers and readers take turns */
    struct pull_queue unread;      /* partly sent; their clients have still to read that */
    struct pending_pull *received; /* owned: the pull being read; NULL: to be acquired */
    struct pull_handler_counts counts;
    size_t parked_bytes;   /* what all parked ones take */
    uint64_t retried_cost; /* of what this retry has answered at once, in bytes of a slice */
    bool any_congested;    /* one is ready whose connection takes no answer now */
};

/* What a retry answers at once: 16 pulls of each of thousands of connections may have waited. */
#define RETRY_COST_MAX (4 * (uint64_t)SHARD_SLICE_BYTES)

/* Rows are paid for by their bytes in the reply, as long as these are a quarter of the rows' own. */
#define REPLY_SHARE 4u

/* --- a queue --- */

static void init_queue(struct pull_queue *queue)
{
    queue->first = NULL;
    queue->last = &queue->first;
}

static void enqueue(struct pull_queue *queue, struct pending_pull *a)
{
    a->next = NULL;
    *queue->last = a;
    queue->last = &a->next;
}

/* Takes *at out of the queue; it is the caller's. */
static struct pending_pull *dequeue(struct pull_queue *queue, struct pending_pull **at)
{
    struct pending_pull *a = *at;

    *at = a->next;
    if (!*at)
        queue->last = at;
    a->next = NULL;
    return a;
}

static void free_queue(struct pull_queue *queue)
{
    while (queue->first)
        pull_reply_free(dequeue(queue, &queue->first));
}

/* The place of the connection's first pull, from *at on; *ret is NULL if there is none. */
static struct pending_pull **find_in_queue(struct pending_pull **at, const struct connection *c)
{
    while (*at && (*at)->connection != c)
        at = &(*at)->next;
    return at;
}

struct pull_handler *pull_handler_new(const struct pull_handler_config *config)
{
    struct pull_handler *p = memory_alloc(sizeof *p);

    p->config = *config;
    if (!p->config.parked_bytes_max)
        p->config.parked_bytes_max = PULL_HANDLER_PARKED_BYTES_MAX;
    p->request = p->context.request = config->context;
    p->context.deltas.budget.max = config->deltas_max_bytes;
    init_queue(&p->parked);
    init_queue(&p->of_workers);
    init_queue(&p->of_readers);
    init_queue(&p->unread);
    return p;
}

void pull_handler_free(struct pull_handler *p)
{
    if (!p)
        return;
    free_queue(&p->parked);
    free_queue(&p->of_workers);
    free_queue(&p->of_readers);
    free_queue(&p->unread);
    pull_reply_deinit_context(&p->context);
    pull_reply_free(p->received);
    free(p);
}

/* --- in slices --- */

bool pull_handler_is_busy(const struct pull_handler *p)
{
    return p->of_workers.first || p->of_readers.first;
}

/* The pull begins to run, or goes on. */
static void run(struct pull_handler *p, struct pending_pull *a)
{
    enqueue(a->worker ? &p->of_workers : &p->of_readers, a);
}

/* The next one's turn. There is one. */
static struct pull_queue *next_queue(struct pull_handler *p)
{
    bool is_readers_turn = p->n_slices++ % 2;

    if (!p->of_workers.first || (is_readers_turn && p->of_readers.first))
        return &p->of_readers;
    return &p->of_workers;
}

void pull_handler_more(struct pull_handler *p)
{
    struct pull_queue *queue;
    struct pending_pull *a;
    bool done;
    int status;

    if (!pull_handler_is_busy(p))
        return;
    queue = next_queue(p);
    a = dequeue(queue, &queue->first);
    status = pull_reply_more(&p->context, a, &done);
    /* Its keys are read, and its client may take its time: others can be unpacked. */
    if (!done && a->holds && pull_reply_is_partly_sent(a))
        connection_drop_unpacked(a->connection);
    if (!done) {
        if (a->state == PULL_REPLY_WAITS)
            enqueue(&p->unread, a);
        else
            run(p, a);
        return;
    }
    if (status)
        connection_fail(a->connection, status);
    pull_reply_recycle(&p->context, a);
    if (p->any_congested)
        pull_handler_retry(p);
}

void pull_handler_written(struct pull_handler *p, struct connection *c)
{
    struct pending_pull **at = find_in_queue(&p->unread.first, c);

    if (*at && pull_reply_can_go_on(*at))
        run(p, dequeue(&p->unread, at));
}

/* In one piece? One push may make many ready: some of these run in slices, and more while there are readers. */
static bool is_answered_at_once(struct pull_handler *p, const struct pending_pull *a) ON_SHARD
{
    struct channel_loop *channels = p->request->channels;
    uint64_t cost = shard_pull_cost(p->request->shard, &a->pull);

    if (shard_pull_is_large(p->request->shard, &a->pull) || !channel_loop_has_time(channels) ||
        p->retried_cost + cost > RETRY_COST_MAX)
        return false;
    p->retried_cost += cost;
    if (channels->n_low)
        channels->used_bytes += cost;
    return true;
}

/* Of a pull that is not parked any more. Takes it. Not 0: the connection cannot go on. */
static int answer(struct pull_handler *p, struct pending_pull *a) ON_SHARD
{
    struct err err = { 0 };
    bool done = true;
    int status;

    a->runs = !is_answered_at_once(p, a);
    status = pull_reply_begin(&p->context, a, &err);
    if (status) {
        status = pull_reply_refuse(&p->context, a, status, err.text);
    } else if (a->runs) {
        run(p, a);
        return 0;
    } else {
        do
            status = pull_reply_more(&p->context, a, &done);
        while (!done);
    }
    pull_reply_recycle(&p->context, a);
    return status;
}

/* --- parking --- */

/* No other psd can be the primary; its job's clock has come, and what it would see is known to the standby, if one is
 * in sync. */
static bool is_ready(const struct pull_handler *p, const struct worker *worker,
                     const struct pull *pull) ON_SHARD
{
    return reply_queue_is_current(p->request->replies) &&
           shard_pull_ready(p->request->shard, worker, pull) &&
           (!worker || reply_queue_shows_gone(p->request->replies));
}

/* Points a section's keys to their copy. */
static void rebase(struct pull *pull, const uint8_t *from, const uint8_t *to)
{
    for (uint32_t i = 0; i < pull->n_sections; i++)
        if (pull->sections[i].keys)
            pull->sections[i].keys = to + (pull->sections[i].keys - from);
}

static size_t parked_bytes(const struct pending_pull *parked)
{
    return sizeof *parked + parked->body.cap_bytes;
}

/* -ENOBUFS, which ends the worker, for the connection's own pulls; -ENOMEM, after which it may ask again, for all. */
static int check_space(const struct pull_handler *p, const struct request *r, struct err *err)
{
    const struct connection *c = r->connection;

    if (c->parked.n >= PULL_HANDLER_PARKED_MAX ||
        c->parked.n_bytes + r->body_bytes > p->request->frame_max_bytes)
        return err_set(err, -ENOBUFS, "too many pulls of this connection are parked");
    if (p->parked_bytes + sizeof(struct pending_pull) + r->body_bytes >
        p->config.parked_bytes_max)
        return err_set(err, -ENOMEM,
                       "parked pulls take %zu of %zu bytes on this shard: no place for %zu "
                       "more until the slower workers have caught up",
                       p->parked_bytes, p->config.parked_bytes_max, r->body_bytes);
    return 0;
}

/* Takes p->received. */
static int park(struct pull_handler *p, const struct request *r)
{
    struct connection *c = r->connection;
    struct pending_pull *parked = p->received;
    uint64_t park_ms = p->config.park_max_ms;
    uint8_t *body = bytes_reserve(&parked->body, r->body_bytes + 1);

    if (!body)
        return -ENOMEM;
    p->received = NULL;
    if (parked->pull.deadline_ms && parked->pull.deadline_ms < park_ms)
        park_ms = parked->pull.deadline_ms;
    parked->since_ms = parked->counted_ms = uv_now(c->tcp.loop);
    parked->until_ms = parked->since_ms + park_ms;
    if (r->body_bytes)
        memcpy(body, r->body, r->body_bytes);
    bytes_commit(&parked->body, r->body_bytes);
    rebase(&parked->pull, r->body, body);
    enqueue(&p->parked, parked);
    c->parked.n++;
    c->parked.n_bytes += r->body_bytes;
    p->parked_bytes += parked_bytes(parked);
    p->counts.parked++;
    p->counts.parked_total++;
    return 0;
}

/* In the job's sum, as far as it is not there yet: so the sum has the pulls that wait now, and never falls. */
static void count_waiting(struct pull_handler *p, struct pending_pull *parked) ON_SHARD
{
    struct worker *worker = request_context_waiting_worker(p->request, parked->connection);
    uint64_t now_ms = uv_now(p->request->loop);

    if (worker)
        worker->job->parked_ms += now_ms - parked->counted_ms;
    parked->counted_ms = now_ms;
}

/* Takes *at out of the list; the caller goes on with it. */
static struct pending_pull *unpark(struct pull_handler *p, struct pending_pull **at) ON_SHARD
{
    struct pending_pull *parked = dequeue(&p->parked, at);

    count_waiting(p, parked);
    parked->connection->parked.n--;
    parked->connection->parked.n_bytes -= bytes_len(&parked->body);
    p->parked_bytes -= parked_bytes(parked);
    p->counts.parked--;
    return parked;
}

/* The first of those whom all others wait for; NULL: there is none. Who is behind the min clock is waited for by nobody
 * (job.n_backups), and of those who are at it one may be enough: rather one that is not suspected. */
static const struct worker *find_slowest(const struct job *job)
{
    uint64_t min_clock = job_min_clock(job);
    const struct worker *suspect = NULL;

    for (uint32_t i = 0; i < job->n_workers; i++) {
        const struct worker *w = &job->workers[i];

        if (!job_counts(w) || w->clock != min_clock)
            continue;
        if (!job->n_backups || !w->is_suspected)
            return w;
        if (!suspect)
            suspect = w;
    }
    return suspect;
}

/* How long it may hold the others up: until its join deadline or, if it says nothing, its lease ends. */
static uint64_t patience_ms(const struct pull_handler *p, const struct worker *w,
                            const struct pull_handler_times *now)
{
    uint64_t silent_ms = now->shard_ms - w->last_seen_ms, end_ms = w->job->join_deadline_ms;

    if (w->state == WORKER_EXPECTED)
        return end_ms > now->shard_ms ? end_ms - now->shard_ms : 0;
    end_ms = w->suspected_ms + p->config.park_max_ms;
    if (w->is_suspected)
        return end_ms > now->shard_ms ? end_ms - now->shard_ms : 0;
    if (silent_ms <= now->lease_ms / 2)
        return UINT64_MAX;
    return now->lease_ms > silent_ms ? now->lease_ms - silent_ms : 0;
}

/* "min clock is 7, needs 12: worker 0 (psworker host:123) is at 7"; "... needs 12, a sync point: ..." */
static void explain(struct pull_handler *p, const struct job *job, const struct pull *pull,
                    char *dst, size_t n_bytes) ON_SHARD
{
    bool is_sync_point;
    const struct worker *w = find_slowest(job);
    uint64_t min_clock = job_min_clock(job);
    uint64_t needs = shard_pull_needs(p->request->shard, job, pull, &is_sync_point);
    int n =
        snprintf(dst, n_bytes, "min clock is %llu, needs %llu%s", (unsigned long long)min_clock,
                 (unsigned long long)needs, is_sync_point ? ", a sync point" : "");

    if (!reply_queue_is_current(p->request->replies))
        snprintf(dst, n_bytes, "the standby does not answer, and may be the primary by now");
    else if (!reply_queue_shows_gone(p->request->replies))
        snprintf(dst, n_bytes, "a worker is gone, and the standby has not acknowledged that");
    else if (min_clock >= needs)
        snprintf(dst, n_bytes, "all have finished the clock before, which is being combined");
    if (!w || min_clock >= needs)
        return;
    if (w->state == WORKER_EXPECTED)
        snprintf(dst + n, n_bytes - (size_t)n, ": worker %u has not joined yet", w->rank);
    else
        snprintf(dst + n, n_bytes - (size_t)n, ": worker %u (%s) is at %llu%s", w->rank,
                 w->name, (unsigned long long)w->clock,
                 w->is_suspected ? ", suspected, and not refused by all shards" : "");
}

/* --- what dispatch calls --- */

/* p->received, for this request; the pull in it is still to be read. */
static int acquire_received(struct pull_handler *p, const struct request *r,
                            struct worker *worker)
{
    if (!p->received)
        p->received = pull_reply_acquire(&p->context);
    if (!p->received)
        return -ENOMEM;
    p->received->connection = r->connection;
    p->received->request_id = r->header->request_id;
    p->received->start_ns = r->start_ns;
    p->received->worker = worker;
    return 0;
}

static int refuse_received(struct pull_handler *p, int status, const char *sentence) ON_SHARD
{
    return pull_reply_refuse(&p->context, p->received, status, sentence);
}

/* At once. A reply that has few bytes for its rows, or is a refusal after all, took longer than these say. */
static int answer_small(struct pull_handler *p, struct pending_pull *a, uint64_t cost) ON_SHARD
{
    struct channel *channel = &a->connection->channel;
    uint64_t bytes_before = channel->bytes_out, n_sent;
    bool done = false;
    int status = 0;

    if (channel->channels->n_low)
        channel_use_work(channel, cost);
    while (!done)
        status = pull_reply_more(&p->context, a, &done);
    n_sent = channel->bytes_out - bytes_before;
    if (cost / REPLY_SHARE > n_sent)
        channel_use_turn(channel, cost / REPLY_SHARE - n_sent);
    return status;
}

/* Ready: at once, or in slices with the connection held. */
static int answer_received(struct pull_handler *p, struct request *r) ON_SHARD
{
    uint64_t cost = shard_pull_cost(p->request->shard, &p->received->pull);
    struct pending_pull *a = p->received;
    struct err err = { 0 };
    int status;

    a->runs = shard_pull_is_large(p->request->shard, &a->pull);
    if (a->runs) {
        request_hold(r);
        a->holds = true;
    }
    status = pull_reply_begin(&p->context, a, &err);
    if (status)
        return refuse_received(p, status, err.text);
    if (!a->runs)
        return answer_small(p, a, cost);
    p->received = NULL;
    run(p, a);
    return 0;
}

/* Not ready. A pull that cannot be answered at all is refused now, not after a wait. */
static int park_received(struct pull_handler *p, const struct request *r) ON_SHARD
{
    size_t value_bytes[SECTIONS_MAX];
    struct err err = { 0 };
    int status = shard_pull_plan(p->request->shard, &p->received->pull,
                                 p->request->frame_max_bytes - UINT16_MAX, value_bytes, &err);

    if (!status)
        status = check_space(p, r, &err);
    if (status)
        return refuse_received(p, status, err.text);
    status = park(p, r);
    return status ? refuse_received(p, status, status_text(status)) : 0;
}

/* Reads it into p->received. A compressed body is unpacked only if its answer fits in a frame, however
 * long a reader says that it is. */
static int read_pull(struct pull_handler *p, struct request *r, struct err *err) ON_SHARD
{
    size_t value_bytes[SECTIONS_MAX];
    struct pull *pull = &p->received->pull;
    int status = request_open_body(r);

    if (!status)
        status = message_read_pull(r->header, r->head, r->body, r->body_bytes, pull);
    if (!status)
        status = connection_check_sections(r->connection, pull->sections, pull->n_sections);
    if (!status && r->packed && !p->received->worker)
        status = shard_pull_plan(p->request->shard, pull,
                                 p->request->frame_max_bytes - UINT16_MAX, value_bytes, err);
    return status ? status : request_unpack(r);
}

static int receive(struct pull_handler *p, struct request *r) ON_SHARD
{
    struct worker *worker = NULL;
    struct err err = { 0 };
    struct pull *pull;
    int refusal = 0, status;

    if (!request_is_from_reader(r))
        refusal = request_context_find_worker(p->request, r->connection, r->now_ms, &worker);
    status = acquire_received(p, r, refusal ? NULL : worker);
    if (status)
        return status;
    pull = &p->received->pull;
    if (!refusal)
        refusal = read_pull(p, r, &err);
    if (refusal == REQUEST_LATER)
        return refusal;
    if (refusal)
        return refuse_received(p, refusal, err.text[0] ? err.text : status_text(refusal));
    if (worker && !membership_clock_is_near(worker, pull->clock - pull->unfinished))
        return refuse_received(p, PS_EPROTO, "a clock that is out of range");
    /* On the connection before, a pull may come behind the first push of what is sent again on this one. */
    if (worker && worker->join_number == r->connection->worker.join_number &&
        membership_advance_clock(worker, pull->clock - pull->unfinished)) {
        (void)shard_advance(p->request->shard, r->now_ms);
        pull_handler_retry(p);
    }
    return is_ready(p, worker, pull) ? answer_received(p, r) : park_received(p, r);
}

int pull_handler_receive(struct pull_handler *p, struct request *r)
{
    const struct stats_requests *requests = &p->request->requests[FRAME_PULL];
    const struct err *refusal = &p->context.last_refusal;
    uint64_t n_refused = requests->n_refused;
    int status = receive(p, r);

    if (requests->n_refused != n_refused)
        request_context_log(p->request, r->connection, "pull", refusal->status, refusal->text);
    return status;
}

/* True if enough replies wait to be read, or one is being made. Then this one stays parked, where it takes little
 * memory, until it is tried again. */
static bool is_congested(struct pull_handler *p, const struct connection *c)
{
    bool is_full = c->channel.state == CHANNEL_CONGESTED ||
                   *find_in_queue(&p->of_workers.first, c) ||
                   *find_in_queue(&p->unread.first, c);

    p->any_congested = p->any_congested || is_full;
    return is_full;
}

void pull_handler_retry(struct pull_handler *p)
{
    struct pending_pull **at = &p->parked.first, *parked;
    struct connection *c;
    bool is_reader;
    int status;

    p->any_congested = false;
    p->retried_cost = 0;
    while ((parked = *at)) {
        c = parked->connection;
        is_reader = strcmp(c->hello.role, "reader") == 0;
        parked->worker = is_reader ? NULL : request_context_waiting_worker(p->request, c);
        if ((parked->worker || is_reader) &&
            (!is_ready(p, parked->worker, &parked->pull) || is_congested(p, c))) {
            at = &parked->next;
            continue;
        }
        unpark(p, at);
        if (parked->worker || is_reader) {
            status = answer(p, parked);
        } else {
            status =
                pull_reply_refuse(&p->context, parked, PS_EFENCED, status_text(PS_EFENCED));
            pull_reply_recycle(&p->context, parked);
        }
        if (status)
            connection_fail(c, status);
    }
}

/* Takes it. */
static void refuse(struct pull_handler *p, struct pending_pull *a, int status,
                   const char *sentence) ON_SHARD
{
    status = pull_reply_refuse(&p->context, a, status, sentence);
    if (status)
        connection_fail(a->connection, status);
    pull_reply_recycle(&p->context, a);
}

/* Only its client holds it up; connection_set_sweep() limits how long a client may take to read. */
static bool waits_for_its_client(struct pull_handler *p, const struct worker *worker,
                                 const struct pending_pull *parked) ON_SHARD
{
    return worker && is_congested(p, parked->connection) && is_ready(p, worker, &parked->pull);
}

/* Does it wait for a suspect that the shards do not agree on? A pull waits so long for a slow worker at most. */
static bool waits_in_vain(struct pull_handler *p, const struct worker *worker,
                          uint64_t shard_ms) ON_SHARD
{
    const struct worker *slowest = worker ? find_slowest(worker->job) : NULL;

    return slowest && slowest->is_suspected &&
           shard_ms >= slowest->suspected_ms + p->config.park_max_ms;
}

void pull_handler_expire(struct pull_handler *p, uint64_t loop_ms, uint64_t shard_ms)
{
    bool any_suspects = membership_has_suspects(shard_membership(p->request->shard));
    struct pending_pull **at = &p->parked.first;
    char sentence[240];

    if (p->any_congested || any_suspects) /* a suspect's own are refused */
        pull_handler_retry(p);
    while (*at) {
        struct worker *worker = NULL;
        bool is_over = loop_ms >= (*at)->until_ms;

        if (is_over || any_suspects)
            worker = request_context_waiting_worker(p->request, (*at)->connection);
        is_over = is_over || waits_in_vain(p, worker, shard_ms);
        if (!is_over || waits_for_its_client(p, worker, *at)) {
            at = &(*at)->next;
            continue;
        }
        snprintf(sentence, sizeof sentence, "%s", status_text(PS_EDEADLINE));
        if (worker)
            explain(p, worker->job, &(*at)->pull, sentence, sizeof sentence);
        p->counts.expired++;
        refuse(p, unpark(p, at), PS_EDEADLINE, sentence);
    }
}

static void drop(struct pull_handler *p, struct pending_pull *a)
{
    channel_loop_release(a->connection->channel.channels, &a->out);
    channel_loop_release(a->connection->channel.channels, &a->known);
    connection_set_reply_bytes(a->connection, 0);
    pull_reply_recycle(&p->context, a);
}

/* A reply that is partly sent can only be refused by the end of its connection. */
static void refuse_queue(struct pull_handler *p, struct pull_queue *queue, int status,
                         const char *sentence) ON_SHARD
{
    struct pending_pull *a;

    while (queue->first) {
        a = dequeue(queue, &queue->first);
        if (!pull_reply_is_partly_sent(a)) {
            refuse(p, a, status, sentence);
            continue;
        }
        connection_fail(a->connection, status);
        drop(p, a);
    }
}

void pull_handler_refuse_all(struct pull_handler *p, int status, const char *sentence)
{
    while (p->parked.first)
        refuse(p, unpark(p, &p->parked.first), status, sentence);
    refuse_queue(p, &p->of_workers, status, sentence);
    refuse_queue(p, &p->of_readers, status, sentence);
    refuse_queue(p, &p->unread, status, sentence);
}

/* --- tables that were dropped --- */

static bool names_dropped(const struct pull_handler *p, const struct pull *pull) ON_SHARD
{
    for (uint32_t i = 0; i < pull->n_sections; i++)
        if (!shard_table(p->request->shard, pull->sections[i].table_id))
            return true;
    return false;
}

/* Those whose client has read a part of the answer can only be refused by the end of their connection. */
static void refuse_dropped(struct pull_handler *p, struct pull_queue *queue) ON_SHARD
{
    struct pending_pull **at = &queue->first, *a;

    while ((a = *at)) {
        if (!names_dropped(p, &a->pull)) {
            at = &a->next;
            continue;
        }
        a = queue == &p->parked ? unpark(p, at) : dequeue(queue, at);
        if (!pull_reply_is_partly_sent(a)) {
            refuse(p, a, PS_ENOTABLE, "the table was dropped meanwhile (psctl drop)");
            continue;
        }
        connection_fail(a->connection, PS_ENOTABLE);
        drop(p, a);
    }
}

static bool is_there(void *shard, uint32_t table_id) ON_SHARD
{
    return shard_table(shard, table_id) != NULL;
}

void pull_handler_refuse_dropped(struct pull_handler *p, struct connection *first)
{
    refuse_dropped(p, &p->parked);
    refuse_dropped(p, &p->of_workers);
    refuse_dropped(p, &p->of_readers);
    refuse_dropped(p, &p->unread);
    for (struct connection *c = first; c; c = c->next)
        if (c->deltas)
            pull_deltas_drop(c->deltas, is_there, p->request->shard);
}

static void drop_from(struct pull_handler *p, struct pull_queue *queue,
                      const struct connection *c)
{
    struct pending_pull **at = &queue->first;

    while (*(at = find_in_queue(at, c)))
        drop(p, dequeue(queue, at));
}

void pull_handler_drop(struct pull_handler *p, struct connection *c)
{
    struct pending_pull **at = &p->parked.first;

    while (*(at = find_in_queue(at, c)))
        drop(p, unpark(p, at));
    drop_from(p, &p->of_workers, c);
    drop_from(p, &p->of_readers, c);
    drop_from(p, &p->unread, c);
    pull_deltas_free(c->deltas);
    c->deltas = NULL;
    pulled_keys_free(c->pulled_keys);
    c->pulled_keys = NULL;
}

void pull_handler_count(const struct pull_handler *p, struct pull_handler_counts *ret)
{
    *ret = p->counts;
    ret->delta_bytes = p->context.deltas.budget.used;
}

const struct err *pull_handler_last_refusal(const struct pull_handler *p)
{
    return &p->context.last_refusal;
}

/* Its own deadline, or that of the worker that it waits for, if that comes first. */
static uint64_t left_ms(const struct pull_handler *p, const struct pending_pull *parked,
                        const struct worker *worker, const struct pull_handler_times *now)
{
    const struct worker *slowest = worker ? find_slowest(worker->job) : NULL;
    uint64_t own_ms = parked->until_ms > now->loop_ms ? parked->until_ms - now->loop_ms : 0;
    uint64_t others_ms = slowest ? patience_ms(p, slowest, now) : UINT64_MAX;

    return others_ms < own_ms ? others_ms : own_ms;
}

void pull_handler_count_waiting(struct pull_handler *p)
{
    for (struct pending_pull *i = p->parked.first; i; i = i->next)
        count_waiting(p, i);
}

uint32_t pull_handler_report(struct pull_handler *p, const struct pull_handler_times *now,
                             struct stats_wait *ret_waits, uint32_t n_max)
{
    uint32_t n = 0;

    for (struct pending_pull *i = p->parked.first; i && n < n_max; i = i->next) {
        const struct connection_worker *w = &i->connection->worker;
        struct worker *worker = request_context_waiting_worker(p->request, i->connection);
        struct stats_wait *wait = &ret_waits[n++];

        *wait =
            (struct stats_wait){ .since_unix_ms = now->unix_ms - (now->loop_ms - i->since_ms),
                                 .until_unix_ms = now->unix_ms + left_ms(p, i, worker, now) };
        snprintf(wait->what, sizeof wait->what, "parked pull");
        snprintf(wait->who, sizeof wait->who, "job %.24s, worker %u (%.40s)", w->job, w->rank,
                 worker ? worker->name : "?");
        if (worker)
            explain(p, worker->job, &i->pull, wait->why, sizeof wait->why);
    }
    return n;
}

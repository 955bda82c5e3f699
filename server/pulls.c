#include "server/pulls.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

/* A pull kept aside, with a copy of the keys that it asks for. */
struct parked {
    struct parked *next;
    struct connection *connection; /* borrowed; pulls_drop() comes before it goes */
    uint64_t request_id, start_ns;
    uint64_t since_ms, until_ms; /* of the loop */
    uint8_t *body;               /* owned */
    size_t body_bytes;
    struct pull pull; /* its sections point into body */
};

struct pulls {
    struct pulls_config config;
    struct parked *first, **last; /* owned, in order of arrival */
    struct pulls_counts counts;
    size_t parked_bytes; /* what all parked ones take */
    bool any_congested;  /* one is ready whose connection takes no answer now */
    struct err last_refusal;
    struct buf out;    /* the reply being made; empty in between */
    struct pull asked; /* the pull being read; 14 KB that need not be on a stack */
};

struct pulls *pulls_new(const struct pulls_config *config)
{
    struct pulls *p = mem_alloc(sizeof *p);

    p->config = *config;
    if (!p->config.parked_bytes_max)
        p->config.parked_bytes_max = PULLS_PARKED_BYTES_MAX;
    p->last = &p->first;
    return p;
}

static void free_parked(struct parked *parked)
{
    free(parked->body);
    free(parked);
}

void pulls_free(struct pulls *p)
{
    struct parked *next;

    if (!p)
        return;
    for (struct parked *i = p->first; i; i = next) {
        next = i->next;
        free_parked(i);
    }
    buf_deinit(&p->out);
    free(p);
}

/* --- replies --- */

static int send_reply(struct pulls *p, struct connection *c, uint64_t start_ns)
{
    int status = connection_send(c, &p->out);

    histogram_record(&p->config.requests->latency_ns, uv_hrtime() - start_ns);
    return status;
}

static int send_refusal(struct pulls *p, struct connection *c, uint64_t request_id,
                        uint64_t start_ns, int told, const char *sentence)
{
    struct pull_reply reply = { .status = told };
    uint8_t *values;
    int status;

    snprintf(reply.text, sizeof reply.text, "%s", sentence);
    err_set(&p->last_refusal, told, "%s", sentence);
    p->config.requests->n_refused++;
    status = message_begin_pull_reply(&p->out, &reply, &values);
    if (!status)
        status = message_end_pull_reply(&p->out, request_id, false);
    return status ? status : send_reply(p, c, start_ns);
}

/* Makes the whole reply in p->out, or leaves it empty. */
static int make_answer(struct pulls *p, struct worker *worker, const struct pull *pull,
                       uint64_t request_id, struct err *err) ON_SHARD
{
    struct pull_reply reply = { .n_sections = pull->n_sections };
    size_t value_bytes[SECTIONS_MAX];
    uint8_t *values;
    int status;

    status = shard_pull_plan(p->config.shard, pull, p->config.frame_max_bytes - UINT16_MAX,
                             value_bytes, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < pull->n_sections; i++)
        reply.sections[i].value_bytes = value_bytes[i];
    reply.min_clock = worker ? job_min_clock(worker->job) : 0;
    reply.version = shard_version(p->config.shard);
    status = message_begin_pull_reply(&p->out, &reply, &values);
    if (status)
        return err_set(err, status, "%s", status_text(status));
    status = shard_pull(p->config.shard, worker, pull, values, &reply.min_clock, &reply.version,
                        err);
    if (status) {
        buf_deinit(&p->out);
        return status;
    }
    status = message_end_pull_reply(&p->out, request_id, p->config.replies == PULLS_COMPRESSED);
    return status ? err_set(err, status, "%s", status_text(status)) : 0;
}

static int answer(struct pulls *p, struct connection *c, struct worker *worker,
                  const struct pull *pull, uint64_t request_id, uint64_t start_ns) ON_SHARD
{
    struct err err = { 0 };
    int status = make_answer(p, worker, pull, request_id, &err);

    if (status)
        return send_refusal(p, c, request_id, start_ns, status, err.text);
    return send_reply(p, c, start_ns);
}

/* --- parking --- */

/* Lets the copy of a section's keys stand where they stood in the body. */
static void rebase(struct pull *pull, const uint8_t *from, const uint8_t *to)
{
    for (uint32_t i = 0; i < pull->n_sections; i++)
        if (pull->sections[i].keys)
            pull->sections[i].keys = to + (pull->sections[i].keys - from);
}

static size_t parked_bytes(const struct parked *parked)
{
    return sizeof *parked + parked->body_bytes;
}

/* A connection's own doing ends its worker; where others take the place, it may come again. */
static int check_place(const struct pulls *p, const struct request *r, struct err *err)
{
    const struct connection *c = r->connection;

    if (c->parked.n >= PULLS_PARKED_MAX ||
        c->parked.n_bytes + r->body_bytes > p->config.frame_max_bytes)
        return err_set(err, -ENOBUFS, "too many pulls of this connection are parked");
    if (p->parked_bytes + sizeof(struct parked) + r->body_bytes > p->config.parked_bytes_max)
        return err_set(err, -ENOMEM,
                       "parked pulls take %zu of %zu bytes on this shard: no place for %zu "
                       "more until the slower workers have caught up",
                       p->parked_bytes, p->config.parked_bytes_max, r->body_bytes);
    return 0;
}

static int park(struct pulls *p, const struct request *r)
{
    struct connection *c = r->connection;
    uint64_t park_ms = p->config.park_max_ms;
    struct parked *parked;

    parked = mem_try_alloc(sizeof *parked);
    if (!parked)
        return -ENOMEM;
    parked->body = mem_try_alloc(r->body_bytes + 1);
    if (!parked->body) {
        free(parked);
        return -ENOMEM;
    }
    if (p->asked.deadline_ms && p->asked.deadline_ms < park_ms)
        park_ms = p->asked.deadline_ms;
    parked->connection = c;
    parked->request_id = r->header->request_id;
    parked->start_ns = r->start_ns;
    parked->since_ms = uv_now(c->tcp.loop);
    parked->until_ms = parked->since_ms + park_ms;
    if (r->body_bytes)
        memcpy(parked->body, r->body, r->body_bytes);
    parked->body_bytes = r->body_bytes;
    parked->pull = p->asked;
    rebase(&parked->pull, r->body, parked->body);
    *p->last = parked;
    p->last = &parked->next;
    c->parked.n++;
    c->parked.n_bytes += r->body_bytes;
    p->parked_bytes += parked_bytes(parked);
    p->counts.parked++;
    p->counts.parked_total++;
    return 0;
}

/* Takes *at out of the list; the caller frees it. */
static struct parked *unpark(struct pulls *p, struct parked **at)
{
    struct parked *parked = *at;

    *at = parked->next;
    if (!*at)
        p->last = at;
    parked->connection->parked.n--;
    parked->connection->parked.n_bytes -= parked->body_bytes;
    p->parked_bytes -= parked_bytes(parked);
    p->counts.parked--;
    return parked;
}

/* The connection's worker as long as it counts, without renewing its lease: it is not it that
 * speaks here. */
static struct worker *find_worker(struct pulls *p, const struct connection_worker *who) ON_SHARD
{
    struct roster *roster = shard_roster(p->config.shard);
    struct worker *worker;
    struct job *job;

    for (uint32_t i = 0; i < roster_n_jobs(roster); i++) {
        job = roster_job(roster, i);
        if (strcmp(job->name, who->job) != 0 || who->rank >= job->n_workers)
            continue;
        worker = &job->workers[who->rank];
        if (worker->state == WORKER_LIVE && worker->incarnation == who->incarnation)
            return worker;
    }
    return NULL;
}

/* The min clock that a pull needs: its own, less the strictest bound of its tables. */
static uint64_t needed_clock(struct pulls *p, const struct job *job, const struct pull *pull)
    ON_SHARD
{
    uint64_t needed = 0, bound;

    for (uint32_t i = 0; i < pull->n_sections; i++) {
        const struct shard_table *table =
            shard_table(p->config.shard, pull->sections[i].table_id);
        enum spec_mode mode = table ? table->spec.mode : SPEC_MODE_ASYNC;

        bound = mode == SPEC_MODE_SSP ? table->spec.bound : 0;
        if (mode == SPEC_MODE_JOB) {
            mode = job->mode;
            bound = mode == SPEC_MODE_SSP ? job->bound : 0;
        }
        if (mode != SPEC_MODE_ASYNC && pull->clock > bound && pull->clock - bound > needed)
            needed = pull->clock - bound;
    }
    return needed;
}

/* "min clock is 7, needs 12: worker 0 (psworker host:123) is at 7" */
static void explain(struct pulls *p, const struct job *job, const struct pull *pull, char *dst,
                    size_t n_bytes) ON_SHARD
{
    uint64_t min_clock = job_min_clock(job);
    int n =
        snprintf(dst, n_bytes, "min clock is %llu, needs %llu", (unsigned long long)min_clock,
                 (unsigned long long)needed_clock(p, job, pull));

    for (uint32_t i = 0; i < job->n_workers; i++) {
        const struct worker *w = &job->workers[i];

        if ((w->state != WORKER_LIVE && w->state != WORKER_EXPECTED) || w->clock > min_clock)
            continue;
        if (w->state == WORKER_EXPECTED)
            snprintf(dst + n, n_bytes - (size_t)n, ": worker %u has not joined yet", w->rank);
        else
            snprintf(dst + n, n_bytes - (size_t)n, ": worker %u (%s) is at %llu", w->rank,
                     w->name, (unsigned long long)w->clock);
        return;
    }
}

/* --- what the service calls --- */

int pulls_refuse(struct pulls *p, const struct request *r, int status, const char *sentence)
{
    return send_refusal(p, r->connection, r->header->request_id, r->start_ns, status, sentence);
}

int pulls_ask(struct pulls *p, const struct request *r, struct worker *worker)
{
    size_t value_bytes[SECTIONS_MAX];
    struct err err = { 0 };
    int status = r->body_status;

    if (!status)
        status = message_read_pull(r->header, r->head, r->body, r->body_bytes, &p->asked);
    if (status)
        return pulls_refuse(p, r, status, status_text(status));
    if (worker && roster_reach(worker, p->asked.clock)) {
        (void)shard_advance(p->config.shard, r->now_ms);
        pulls_retry(p);
    }
    if (shard_pull_ready(p->config.shard, worker, &p->asked))
        return answer(p, r->connection, worker, &p->asked, r->header->request_id, r->start_ns);
    /* What cannot be answered at all is told now, not after a wait. */
    status = shard_pull_plan(p->config.shard, &p->asked, p->config.frame_max_bytes - UINT16_MAX,
                             value_bytes, &err);
    if (status)
        return pulls_refuse(p, r, status, err.text);
    status = check_place(p, r, &err);
    if (status)
        return pulls_refuse(p, r, status, err.text);
    status = park(p, r);
    return status ? pulls_refuse(p, r, status, status_text(status)) : 0;
}

/* Do answers wait to be read, more than enough? Then this one waits here, where it takes little,
 * until the next look. */
static bool is_congested(struct pulls *p, const struct connection *c)
{
    bool is_full = c->channel.state == CHANNEL_CONGESTED;

    p->any_congested = p->any_congested || is_full;
    return is_full;
}

void pulls_retry(struct pulls *p)
{
    struct parked **at = &p->first, *parked;
    struct connection *c;
    struct worker *worker;
    int status;

    p->any_congested = false;
    while ((parked = *at)) {
        c = parked->connection;
        worker = find_worker(p, &c->worker);
        if (worker &&
            (!shard_pull_ready(p->config.shard, worker, &parked->pull) || is_congested(p, c))) {
            at = &parked->next;
            continue;
        }
        unpark(p, at);
        if (worker)
            status = answer(p, c, worker, &parked->pull, parked->request_id, parked->start_ns);
        else
            status = send_refusal(p, c, parked->request_id, parked->start_ns, PS_EFENCED,
                                  status_text(PS_EFENCED));
        if (status)
            connection_fail(c, status);
        free_parked(parked);
    }
}

static void refuse_parked(struct pulls *p, struct parked **at, int status, const char *sentence)
    ON_SHARD
{
    struct parked *parked = unpark(p, at);

    status = send_refusal(p, parked->connection, parked->request_id, parked->start_ns, status,
                          sentence);
    if (status)
        connection_fail(parked->connection, status);
    free_parked(parked);
}

/* Nobody else holds it up: how long a client may take to read is the switchboard's to say. */
static bool waits_for_its_client(struct pulls *p, const struct worker *worker,
                                 const struct parked *parked) ON_SHARD
{
    return worker && parked->connection->channel.state == CHANNEL_CONGESTED &&
           shard_pull_ready(p->config.shard, worker, &parked->pull);
}

void pulls_expire(struct pulls *p, uint64_t loop_ms)
{
    struct parked **at = &p->first;
    char sentence[160];

    if (p->any_congested)
        pulls_retry(p);
    while (*at) {
        struct worker *worker = NULL;
        bool is_over = loop_ms >= (*at)->until_ms;

        if (is_over)
            worker = find_worker(p, &(*at)->connection->worker);
        if (!is_over || waits_for_its_client(p, worker, *at)) {
            at = &(*at)->next;
            continue;
        }
        snprintf(sentence, sizeof sentence, "%s", status_text(PS_EDEADLINE));
        if (worker)
            explain(p, worker->job, &(*at)->pull, sentence, sizeof sentence);
        p->counts.expired++;
        refuse_parked(p, at, PS_EDEADLINE, sentence);
    }
}

void pulls_refuse_all(struct pulls *p, int status, const char *sentence)
{
    while (p->first)
        refuse_parked(p, &p->first, status, sentence);
}

void pulls_drop(struct pulls *p, struct connection *c)
{
    struct parked **at = &p->first;

    while (*at) {
        if ((*at)->connection == c)
            free_parked(unpark(p, at));
        else
            at = &(*at)->next;
    }
}

void pulls_count(const struct pulls *p, struct pulls_counts *ret)
{
    *ret = p->counts;
}

const struct err *pulls_last_refusal(const struct pulls *p)
{
    return &p->last_refusal;
}

uint32_t pulls_report(struct pulls *p, uint64_t loop_ms, uint64_t unix_ms,
                      struct report_wait *ret_waits, uint32_t n_max)
{
    uint32_t n = 0;

    for (struct parked *i = p->first; i && n < n_max; i = i->next) {
        const struct connection_worker *who = &i->connection->worker;
        struct worker *worker = find_worker(p, who);
        struct report_wait *wait = &ret_waits[n++];

        *wait = (struct report_wait){ .since_unix_ms = unix_ms - (loop_ms - i->since_ms),
                                      .until_unix_ms = unix_ms + (i->until_ms - loop_ms) };
        snprintf(wait->what, sizeof wait->what, "parked pull");
        snprintf(wait->who, sizeof wait->who, "job %.24s, worker %u (%.40s)", who->job,
                 who->rank, worker ? worker->name : "?");
        if (worker)
            explain(p, worker->job, &i->pull, wait->why, sizeof wait->why);
    }
    return n;
}

#include "server/pulls.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/answer_line.h"

struct pulls {
    struct pulls_config config;
    struct answer_desk desk;
    struct answer_line parked;
    struct answer_line under_way; /* being made in slices; the next one's turn */
    struct answer_line unread; /* begun to leave, and their clients have still to read that */
    struct answer *asked;      /* owned: the pull being read; NULL: to be taken */
    struct pulls_counts counts;
    size_t parked_bytes; /* what all parked ones take */
    bool any_congested;  /* one is ready whose connection takes no answer now */
};

struct pulls *pulls_new(const struct pulls_config *config)
{
    struct pulls *p = mem_alloc(sizeof *p);

    p->config = *config;
    if (!p->config.parked_bytes_max)
        p->config.parked_bytes_max = PULLS_PARKED_BYTES_MAX;
    p->desk = (struct answer_desk){ .shard = config->shard,
                                    .frame_max_bytes = config->frame_max_bytes,
                                    .compress = config->replies == PULLS_COMPRESSED,
                                    .requests = config->requests };
    answer_line_init(&p->parked);
    answer_line_init(&p->under_way);
    answer_line_init(&p->unread);
    return p;
}

void pulls_free(struct pulls *p)
{
    if (!p)
        return;
    answer_line_deinit(&p->parked);
    answer_line_deinit(&p->under_way);
    answer_line_deinit(&p->unread);
    answer_desk_deinit(&p->desk);
    answer_free(p->asked);
    free(p);
}

/* --- in slices --- */

bool pulls_are_under_way(const struct pulls *p)
{
    return p->under_way.first != NULL;
}

void pulls_more(struct pulls *p)
{
    struct answer *a;
    bool done;
    int status;

    if (!p->under_way.first)
        return;
    a = answer_line_take(&p->under_way, &p->under_way.first);
    status = answer_more(&p->desk, a, &done);
    if (!done) {
        answer_line_add(a->state == ANSWER_WAITS ? &p->unread : &p->under_way, a);
        return;
    }
    if (status)
        connection_fail(a->connection, status);
    answer_put_by(&p->desk, a);
    if (p->any_congested)
        pulls_retry(p);
}

void pulls_written(struct pulls *p, struct connection *c)
{
    struct answer **at = answer_line_find(&p->unread.first, c);

    if (*at && answer_can_go_on(*at))
        answer_line_add(&p->under_way, answer_line_take(&p->unread, at));
}

/* One that is not parked any more. Takes it. Not 0: the connection cannot go on. */
static int answer(struct pulls *p, struct answer *a) ON_SHARD
{
    struct err err = { 0 };
    bool done = true;
    int status = answer_begin(&p->desk, a, &err);

    if (status) {
        status = answer_refuse(&p->desk, a, status, err.text);
    } else if (shard_pull_is_large(p->config.shard, &a->pull)) {
        answer_line_add(&p->under_way, a);
        return 0;
    } else {
        do
            status = answer_more(&p->desk, a, &done);
        while (!done);
    }
    answer_put_by(&p->desk, a);
    return status;
}

/* --- parking --- */

/* Lets the copy of a section's keys stand where they stood in the body. */
static void rebase(struct pull *pull, const uint8_t *from, const uint8_t *to)
{
    for (uint32_t i = 0; i < pull->n_sections; i++)
        if (pull->sections[i].keys)
            pull->sections[i].keys = to + (pull->sections[i].keys - from);
}

static size_t parked_bytes(const struct answer *parked)
{
    return sizeof *parked + buf_len(&parked->body);
}

/* A connection's own doing ends its worker; where others take the place, it may come again. */
static int check_place(const struct pulls *p, const struct request *r, struct err *err)
{
    const struct connection *c = r->connection;

    if (c->parked.n >= PULLS_PARKED_MAX ||
        c->parked.n_bytes + r->body_bytes > p->config.frame_max_bytes)
        return err_set(err, -ENOBUFS, "too many pulls of this connection are parked");
    if (p->parked_bytes + sizeof(struct answer) + r->body_bytes > p->config.parked_bytes_max)
        return err_set(err, -ENOMEM,
                       "parked pulls take %zu of %zu bytes on this shard: no place for %zu "
                       "more until the slower workers have caught up",
                       p->parked_bytes, p->config.parked_bytes_max, r->body_bytes);
    return 0;
}

/* Takes the pull that was asked. */
static int park(struct pulls *p, const struct request *r)
{
    struct connection *c = r->connection;
    struct answer *parked = p->asked;
    uint64_t park_ms = p->config.park_max_ms;
    uint8_t *body = buf_reserve(&parked->body, r->body_bytes + 1);

    if (!body)
        return -ENOMEM;
    p->asked = NULL;
    if (parked->pull.deadline_ms && parked->pull.deadline_ms < park_ms)
        park_ms = parked->pull.deadline_ms;
    parked->since_ms = uv_now(c->tcp.loop);
    parked->until_ms = parked->since_ms + park_ms;
    if (r->body_bytes)
        memcpy(body, r->body, r->body_bytes);
    buf_commit(&parked->body, r->body_bytes);
    rebase(&parked->pull, r->body, body);
    answer_line_add(&p->parked, parked);
    c->parked.n++;
    c->parked.n_bytes += r->body_bytes;
    p->parked_bytes += parked_bytes(parked);
    p->counts.parked++;
    p->counts.parked_total++;
    return 0;
}

/* Takes *at out of the list; the caller goes on with it. */
static struct answer *unpark(struct pulls *p, struct answer **at)
{
    struct answer *parked = answer_line_take(&p->parked, at);

    parked->connection->parked.n--;
    parked->connection->parked.n_bytes -= buf_len(&parked->body);
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

/* "min clock is 7, needs 12: worker 0 (psworker host:123) is at 7"; "... needs 12, a cut: ..." */
static void explain(struct pulls *p, const struct job *job, const struct pull *pull, char *dst,
                    size_t n_bytes) ON_SHARD
{
    bool is_cut;
    uint64_t min_clock = job_min_clock(job);
    uint64_t needs = shard_pull_needs(p->config.shard, job, pull, &is_cut);
    int n =
        snprintf(dst, n_bytes, "min clock is %llu, needs %llu%s", (unsigned long long)min_clock,
                 (unsigned long long)needs, is_cut ? ", a cut" : "");

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

/* p->asked, for this request; the pull in it is still to be read. */
static int take_asked(struct pulls *p, const struct request *r, struct worker *worker)
{
    if (!p->asked)
        p->asked = answer_take(&p->desk);
    if (!p->asked)
        return -ENOMEM;
    p->asked->connection = r->connection;
    p->asked->request_id = r->header->request_id;
    p->asked->start_ns = r->start_ns;
    p->asked->worker = worker;
    return 0;
}

/* Without a place for the pull nothing can be said about it, not even no. */
int pulls_refuse(struct pulls *p, const struct request *r, int status, const char *sentence)
{
    int failed = take_asked(p, r, NULL);

    return failed ? failed : answer_refuse(&p->desk, p->asked, status, sentence);
}

/* Ready: at once, or in slices with the connection held. */
static int answer_asked(struct pulls *p, const struct request *r) ON_SHARD
{
    struct answer *a = p->asked;
    struct err err = { 0 };
    bool done = false;
    int status;

    if (shard_pull_is_large(p->config.shard, &a->pull)) {
        request_keep(r, &a->unpacked);
        a->holds = true;
    }
    status = answer_begin(&p->desk, a, &err);
    if (status)
        return answer_refuse(&p->desk, a, status, err.text);
    if (a->holds) {
        p->asked = NULL;
        answer_line_add(&p->under_way, a);
        return 0;
    }
    while (!done)
        status = answer_more(&p->desk, a, &done);
    return status;
}

int pulls_ask(struct pulls *p, const struct request *r, struct worker *worker)
{
    size_t value_bytes[SECTIONS_MAX];
    struct err err = { 0 };
    int status = take_asked(p, r, worker);

    if (status)
        return status;
    status = r->body_status;
    if (!status)
        status = message_read_pull(r->header, r->head, r->body, r->body_bytes, &p->asked->pull);
    if (status)
        return answer_refuse(&p->desk, p->asked, status, status_text(status));
    /* On the connection before, a pull may come behind the first push of what is sent again on this one. */
    if (worker && worker->join_number == r->connection->worker.join_number &&
        roster_reach(worker, p->asked->pull.clock - p->asked->pull.unfinished)) {
        (void)shard_advance(p->config.shard, r->now_ms);
        pulls_retry(p);
    }
    if (shard_pull_ready(p->config.shard, worker, &p->asked->pull))
        return answer_asked(p, r);
    /* What cannot be answered at all is told now, not after a wait. */
    status = shard_pull_plan(p->config.shard, &p->asked->pull,
                             p->config.frame_max_bytes - UINT16_MAX, value_bytes, &err);
    if (!status)
        status = check_place(p, r, &err);
    if (status)
        return answer_refuse(&p->desk, p->asked, status, err.text);
    status = park(p, r);
    return status ? answer_refuse(&p->desk, p->asked, status, status_text(status)) : 0;
}

/* Do answers wait to be read, more than enough, or is one being made? Then this one waits here,
 * where it takes little, until the next look. */
static bool is_congested(struct pulls *p, const struct connection *c)
{
    bool is_full = c->channel.state == CHANNEL_CONGESTED ||
                   *answer_line_find(&p->under_way.first, c) ||
                   *answer_line_find(&p->unread.first, c);

    p->any_congested = p->any_congested || is_full;
    return is_full;
}

void pulls_retry(struct pulls *p)
{
    struct answer **at = &p->parked.first, *parked;
    struct connection *c;
    int status;

    p->any_congested = false;
    while ((parked = *at)) {
        c = parked->connection;
        parked->worker = find_worker(p, &c->worker);
        if (parked->worker &&
            (!shard_pull_ready(p->config.shard, parked->worker, &parked->pull) ||
             is_congested(p, c))) {
            at = &parked->next;
            continue;
        }
        unpark(p, at);
        if (parked->worker) {
            status = answer(p, parked);
        } else {
            status = answer_refuse(&p->desk, parked, PS_EFENCED, status_text(PS_EFENCED));
            answer_put_by(&p->desk, parked);
        }
        if (status)
            connection_fail(c, status);
    }
}

/* Takes it. */
static void refuse(struct pulls *p, struct answer *a, int status, const char *sentence) ON_SHARD
{
    status = answer_refuse(&p->desk, a, status, sentence);
    if (status)
        connection_fail(a->connection, status);
    answer_put_by(&p->desk, a);
}

/* Nobody else holds it up: how long a client may take to read is the switchboard's to say. */
static bool waits_for_its_client(struct pulls *p, const struct worker *worker,
                                 const struct answer *parked) ON_SHARD
{
    return worker && is_congested(p, parked->connection) &&
           shard_pull_ready(p->config.shard, worker, &parked->pull);
}

void pulls_expire(struct pulls *p, uint64_t loop_ms)
{
    struct answer **at = &p->parked.first;
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
        refuse(p, unpark(p, at), PS_EDEADLINE, sentence);
    }
}

static void renew_leases(struct pulls *p, const struct answer_line *line, uint64_t now_ms)
    ON_SHARD
{
    for (struct answer *a = line->first; a; a = a->next) {
        const struct connection_worker *who = &a->connection->worker;
        struct worker *worker;

        if (a->holds && answer_is_alive(a) && find_worker(p, who))
            (void)!roster_find(shard_roster(p->config.shard), who->job, who->rank,
                               who->incarnation, now_ms, &worker);
    }
}

void pulls_renew_leases(struct pulls *p, uint64_t now_ms)
{
    renew_leases(p, &p->under_way, now_ms);
    renew_leases(p, &p->unread, now_ms);
}

static void drop(struct pulls *p, struct answer *a)
{
    channel_hub_give(a->connection->channel.hub, &a->out);
    channel_hub_give(a->connection->channel.hub, &a->known);
    answer_put_by(&p->desk, a);
}

/* What has begun to leave can only be told by the end of its connection. */
static void refuse_line(struct pulls *p, struct answer_line *line, int status,
                        const char *sentence) ON_SHARD
{
    struct answer *a;

    while (line->first) {
        a = answer_line_take(line, &line->first);
        if (!answer_has_left(a)) {
            refuse(p, a, status, sentence);
            continue;
        }
        connection_fail(a->connection, status);
        drop(p, a);
    }
}

void pulls_refuse_all(struct pulls *p, int status, const char *sentence)
{
    while (p->parked.first)
        refuse(p, unpark(p, &p->parked.first), status, sentence);
    refuse_line(p, &p->under_way, status, sentence);
    refuse_line(p, &p->unread, status, sentence);
}

static void drop_from(struct pulls *p, struct answer_line *line, const struct connection *c)
{
    struct answer **at = &line->first;

    while (*(at = answer_line_find(at, c)))
        drop(p, answer_line_take(line, at));
}

void pulls_drop(struct pulls *p, struct connection *c)
{
    struct answer **at = &p->parked.first;

    while (*(at = answer_line_find(at, c)))
        drop(p, unpark(p, at));
    drop_from(p, &p->under_way, c);
    drop_from(p, &p->unread, c);
}

void pulls_count(const struct pulls *p, struct pulls_counts *ret)
{
    *ret = p->counts;
}

const struct err *pulls_last_refusal(const struct pulls *p)
{
    return &p->desk.last_refusal;
}

uint32_t pulls_report(struct pulls *p, uint64_t loop_ms, uint64_t unix_ms,
                      struct report_wait *ret_waits, uint32_t n_max)
{
    uint32_t n = 0;

    for (struct answer *i = p->parked.first; i && n < n_max; i = i->next) {
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

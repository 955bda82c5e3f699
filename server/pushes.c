#include "server/pushes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/mem.h"
#include "common/pile.h"
#include "server/glance.h"

#define SPARES_MAX 16u /* so many that wait at a time cost no allocation */

/* A push and whom to answer. */
struct asked {
    struct pile_link spare;        /* once it is answered */
    struct asked *next;            /* in line */
    struct connection *connection; /* borrowed; pushes_drop() comes before it goes */
    uint64_t request_id, start_ns;
    struct buf unpacked; /* owned: the body of a compressed one */
    bool under_way, holds;
    struct push push; /* its sections point into the frame, or into `unpacked` */
};

struct pushes {
    struct pushes_config config;
    struct asked *first;  /* owned: under way, or the next to be; behind it who waits */
    struct asked **last;  /* where the next one waits */
    struct asked *asking; /* owned: the one being read; NULL: to be taken */
    struct pile spares;   /* owned: answered, for the next ones */
};

struct pushes *pushes_new(const struct pushes_config *config)
{
    struct pushes *p = mem_alloc(sizeof *p);

    p->config = *config;
    p->last = &p->first;
    p->spares.n_max = SPARES_MAX;
    return p;
}

static void free_asked(struct asked *a)
{
    if (!a)
        return;
    buf_deinit(&a->unpacked);
    free(a);
}

static struct asked *asked_of(struct pile_link *spare)
{
    return spare ? CONTAINER_OF(spare, struct asked, spare) : NULL;
}

void pushes_free(struct pushes *p)
{
    struct asked *a;

    if (!p)
        return;
    while ((a = p->first) != NULL) {
        p->first = a->next;
        free_asked(a);
    }
    while ((a = asked_of(pile_pop(&p->spares))) != NULL)
        free_asked(a);
    free_asked(p->asking);
    free(p);
}

/* Done with, in no line. The memory of one body is kept, and no more, as that may be large. */
static void put_by(struct pushes *p, struct asked *a)
{
    if (p->spares.n)
        buf_deinit(&a->unpacked);
    a->under_way = a->holds = false;
    if (!pile_push(&p->spares, &a->spare))
        free_asked(a);
}

/* NULL: no memory. */
static struct asked *take_spare(struct pushes *p)
{
    struct asked *a = asked_of(pile_pop(&p->spares));

    return a ? a : mem_try_alloc(sizeof *a);
}

bool pushes_are_under_way(const struct pushes *p)
{
    return p->first && (p->first->under_way || !p->config.acks->is_full);
}

/* Who pushes; its lease is renewed. */
static int find_worker(struct pushes *p, const struct asked *a, uint64_t now_ms,
                       struct worker **ret_worker) ON_SHARD
{
    const struct connection_worker *who = &a->connection->worker;
    int status = PS_ENOJOIN;

    if (who->joined)
        status = roster_find(shard_roster(p->config.shard), who->job, who->rank,
                             who->incarnation, now_ms, ret_worker);
    if (status == PS_EFENCED)
        shard_push_fenced(p->config.shard);
    return status;
}

/* Replies; told: what judging returned. */
static int answer(struct pushes *p, struct asked *a, int told,
                  const struct shard_push_result *result) ON_SHARD
{
    struct push_reply answer = { .status = told ? told : result->status,
                                 .seq = a->push.seq,
                                 .min_clock = result->min_clock,
                                 .version = result->version,
                                 .rows_refused = result->rows_refused,
                                 .repeated = result->repeated };
    struct ack_timing timing = { p->config.requests, a->start_ns };
    struct buf out = { 0 };
    int status;

    if (answer.status)
        snprintf(answer.text, sizeof answer.text, "%s",
                 result->text[0] ? result->text : status_text(answer.status));
    status = channel_hub_take(a->connection->channel.hub, 1, &out);
    if (!status)
        status = message_write_push_reply(&out, a->request_id, &answer);
    if (status)
        buf_deinit(&out);
    else
        status = acks_send(p->config.acks, a->connection, &out, &timing);
    if (a->holds)
        connection_release(a->connection);
    a->holds = false;
    p->config.requests->n_refused += answer.status != 0;
    p->config.on_answered(p->config.owner, a->connection, &answer, a->push.seq != 0);
    return status;
}

/* Judges it, or begins to. Where the log is full nothing is done, and it has to wait for its turn: an
 * answer would only be asked for again. */
static int begin(struct pushes *p, struct asked *a, struct worker *worker, uint64_t now_ms,
                 struct shard_push_result *ret, enum shard_push_state *ret_state) ON_SHARD
{
    int status;

    *ret_state = SHARD_PUSH_LATER;
    if (p->config.acks->is_full)
        return 0;
    status = shard_push_begin(p->config.shard, worker, &a->push, now_ms, ret, ret_state);
    if (status != -EAGAIN)
        return status;
    *ret_state = SHARD_PUSH_LATER;
    return 0;
}

/* --- the line --- */

static void line_up(struct pushes *p, struct asked *a)
{
    /* The one under way goes before those that wait. */
    struct asked **at = a->under_way ? &p->first : p->last;

    a->next = *at;
    *at = a;
    if (!a->next)
        p->last = &a->next;
}

static struct asked *leave_line(struct pushes *p, struct asked **at)
{
    struct asked *a = *at;

    *at = a->next;
    if (!*at)
        p->last = at;
    return a;
}

/* Begins with the first, or goes on with it. True once it has been judged: *ret_told. */
static bool judge_first(struct pushes *p, uint64_t now_ms, int *ret_told,
                        struct shard_push_result *ret) ON_SHARD
{
    enum shard_push_state state = SHARD_PUSH_JUDGED;
    struct asked *a = p->first;
    struct worker *worker;

    *ret = (struct shard_push_result){ 0 };
    if (a->under_way) {
        *ret_told = shard_push_more(p->config.shard, now_ms, ret, &state);
        if (state == SHARD_PUSH_JUDGED && *ret_told == -EAGAIN)
            state = SHARD_PUSH_LATER; /* the log is full: it begins again when there is room */
        a->under_way = state == SHARD_PUSH_UNDER_WAY;
    } else {
        *ret_told = find_worker(p, a, now_ms, &worker);
        if (!*ret_told)
            *ret_told = begin(p, a, worker, now_ms, ret, &state);
        a->under_way = state == SHARD_PUSH_UNDER_WAY;
    }
    return state == SHARD_PUSH_JUDGED;
}

static void tell_first(struct pushes *p, int told, const struct shard_push_result *result)
    ON_SHARD
{
    struct asked *a = leave_line(p, &p->first);
    int status = answer(p, a, told, result);

    if (status)
        connection_fail(a->connection, status);
    put_by(p, a);
}

void pushes_more(struct pushes *p, uint64_t now_ms)
{
    struct shard_push_result result;
    int told;

    /* The next in line begins before control goes back to the loop: whose push has just been
     * judged may have sent another one, which must not get ahead. */
    while (p->first && judge_first(p, now_ms, &told, &result))
        tell_first(p, told, &result);
}

/* --- what the service calls --- */

/* p->asking, for this request; the push in it is still to be read. */
static int take_asking(struct pushes *p, const struct request *r)
{
    struct asked *a;

    if (!p->asking)
        p->asking = take_spare(p);
    a = p->asking;
    if (!a)
        return -ENOMEM;
    a->connection = r->connection;
    a->request_id = r->header->request_id;
    a->start_ns = r->start_ns;
    a->push.seq = 0;
    return 0;
}

static int judge(struct pushes *p, const struct request *r, struct shard_push_result *ret,
                 enum shard_push_state *ret_state) ON_SHARD
{
    struct asked *a = p->asking;
    struct worker *worker;
    int status = r->body_status;

    *ret = (struct shard_push_result){ 0 };
    *ret_state = SHARD_PUSH_JUDGED;
    if (!status)
        status = message_read_push(r->header, r->head, r->body, r->body_bytes, &a->push);
    if (!status)
        glance_tell(&a->push, r->body, r->n_seen);
    if (!status)
        status = find_worker(p, a, r->now_ms, &worker);
    if (status)
        return status;
    return begin(p, a, worker, r->now_ms, ret, ret_state);
}

int pushes_ask(struct pushes *p, const struct request *r)
{
    struct shard_push_result result;
    enum shard_push_state state;
    struct asked *a;
    int told, status = take_asking(p, r);

    if (status)
        return status;
    a = p->asking;
    told = judge(p, r, &result, &state);
    if (state == SHARD_PUSH_JUDGED)
        return answer(p, a, told, &result);
    p->asking = NULL;
    request_keep(r, &a->unpacked);
    a->holds = true;
    a->under_way = state == SHARD_PUSH_UNDER_WAY;
    line_up(p, a);
    return 0;
}

void pushes_renew_leases(struct pushes *p, uint64_t now_ms)
{
    for (const struct asked *a = p->first; a; a = a->next) {
        struct worker *worker;

        if (!a->under_way) /* else shard_advance() knows */
            (void)!find_worker(p, a, now_ms, &worker);
    }
}

/* The one under way, all at once. */
static void finish_first(struct pushes *p, uint64_t now_ms) ON_SHARD
{
    struct shard_push_result result;
    int told;

    shard_settle(p->config.shard);
    if (judge_first(p, now_ms, &told, &result))
        tell_first(p, told, &result);
}

void pushes_drop(struct pushes *p, struct connection *c, uint64_t now_ms)
{
    struct asked **at = &p->first;

    if (p->first && p->first->under_way && p->first->connection == c)
        finish_first(p, now_ms);
    while (*at) {
        if ((*at)->connection == c)
            put_by(p, leave_line(p, at));
        else
            at = &(*at)->next;
    }
}

void pushes_stop(struct pushes *p, uint64_t now_ms)
{
    const struct shard_push_result nothing = { 0 };

    if (p->first && p->first->under_way)
        finish_first(p, now_ms);
    while (p->first) {
        struct asked *a = leave_line(p, &p->first);
        int status = answer(p, a, PS_ESTOPPING, &nothing);

        if (status)
            connection_fail(a->connection, status);
        put_by(p, a);
    }
}

#include "server/cluster/coord_etcd.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/hash.h"
#include "common/memory.h"
#include "server/cluster/etcd_auth.h"
#include "server/cluster/etcd_http.h"
#include "server/cluster/etcd_json.h"
#include "server/cluster/etcd_url.h"

#define PAUSE_MS 50u       /* after a round over all endpoints in which none answered */
#define PAUSE_MAX_MS 1000u /* of a watch: doubles from PAUSE_MS with each round */
#define ATTEMPT_MAX_MS 8000u
#define AUTH_MS 5000u       /* for a token: a password takes etcd a while */
#define ANSWER_MAX_MS 1000u /* the slowest answer that first attempts wait for twice as long */

enum call_kind { CALL_GET, CALL_PUT_IF, CALL_GRANT, CALL_KEEP, CALL_REVOKE };

/* A call from its first attempt to its answer. */
struct call {
    struct coord_etcd *c; /* borrowed */
    struct call *next, *prev;
    enum call_kind kind;
    char *body; /* owned; of each attempt */
    struct etcd_http_transfer transfer;
    uint64_t deadline_ms, start_ms, sent_ms;
    uint32_t n_failed;          /* attempts */
    bool is_pinned;             /* a probe: one attempt, at one endpoint */
    bool is_short;              /* this attempt has less than its time: the deadline ends it */
    uint32_t endpoint;          /* of this attempt */
    bool may_be_made;           /* an attempt whose answer is missing */
    struct coord_write *writes; /* owned, with their texts; of put_if */
    uint32_t n_writes;
    int64_t lease;
    struct err err; /* of the last attempt */
    coord_done *done;
    void *arg; /* borrowed */
};

enum watch_state { WATCH_WAITS, WATCH_LISTS, WATCH_OPENS, WATCH_STREAMS, WATCH_ENDED };

struct watch {
    struct coord_watch base;
    struct coord_etcd *c; /* borrowed */
    struct watch *next;
    enum watch_state state;
    char *below; /* owned */
    struct etcd_http_transfer transfer;
    uint32_t endpoint; /* of the transfer */
    uint64_t start_ms; /* WAITS: the next attempt; OPENS: when it is given up */
    uint64_t probe_ms; /* STREAMS: the next probe */
    int64_t from;      /* the next revision; 0: a list first */
    int64_t behind;    /* the value of `from` at a probe that showed a change */
    struct etcd_json_seen seen;
    bool is_doubtful; /* STREAMS: at an older state than was seen, until a probe has said why */
    uint32_t n_failed;       /* since something was heard */
    uint32_t n_restarts;     /* since a stream has lasted */
    bool is_away, is_probed; /* COORD_AWAY was reported; a probe is under way */
    coord_on_event *on_event;
    void *arg; /* borrowed */
};

struct coord_etcd {
    struct coord base;
    uv_loop_t *loop; /* borrowed */
    struct etcd_http http;
    struct etcd_url at;
    uint32_t current; /* endpoint */
    bool has_answered;
    uint64_t answer_ms; /* how long answers have taken of late: the slowest, which fades */
    struct etcd_auth auth;
    uv_timer_t turn_timer;
    struct call *calls;    /* owned */
    struct watch *watches; /* owned */
    bool is_closing;
    void (*on_closed)(void *arg);
    void *arg; /* borrowed */
};

static void schedule(struct coord_etcd *c, uint64_t at_ms);

static struct coord_etcd *etcd_of(struct coord *c)
{
    return CONTAINER_OF(c, struct coord_etcd, base);
}

static uint64_t now_ms(const struct coord_etcd *c)
{
    uv_update_time(c->loop);
    return uv_now(c->loop);
}

/* --- endpoints --- */

static void watch_restart(struct watch *w, const struct err *why);

/* Calls and watches go to the next one. */
static void endpoint_failed(struct coord_etcd *c, uint32_t endpoint, const struct err *why)
{
    if (endpoint == c->current)
        c->current = (c->current + 1) % c->at.n_endpoints;
    for (struct watch *w = c->watches; w; w = w->next)
        if (w->transfer.easy && w->endpoint == endpoint)
            watch_restart(w, why);
}

/* An answer, or none within that time. */
static void note_time(struct coord_etcd *c, uint64_t took_ms)
{
    c->answer_ms -= c->answer_ms / 8;
    if (c->answer_ms < took_ms)
        c->answer_ms = took_ms < ANSWER_MAX_MS ? took_ms : ANSWER_MAX_MS;
}

static uint64_t first_attempt_ms(const struct coord_etcd *c)
{
    const uint64_t least = c->has_answered ? COORD_ETCD_ATTEMPT_MS / 2 : COORD_ETCD_ATTEMPT_MS;

    return 2 * c->answer_ms > least ? 2 * c->answer_ms : least;
}

/* --- calls --- */

static const char *const paths[] = {
    [CALL_GET] = "/v3/kv/range",        [CALL_PUT_IF] = "/v3/kv/txn",
    [CALL_GRANT] = "/v3/lease/grant",   [CALL_KEEP] = "/v3/lease/keepalive",
    [CALL_REVOKE] = "/v3/lease/revoke",
};

static void call_free(struct call *k)
{
    etcd_http_stop(&k->transfer);
    for (uint32_t i = 0; i < k->n_writes; i++) {
        free((char *)k->writes[i].key);
        free((char *)k->writes[i].value);
    }
    free(k->writes);
    free(k->body);
    free(k);
}

/* Frees the call; its `done` may make others. */
static void call_end(struct call *k, const struct err *err, const struct coord_result *result)
{
    if (k->prev)
        k->prev->next = k->next;
    else
        k->c->calls = k->next;
    if (k->next)
        k->next->prev = k->prev;
    etcd_http_stop(&k->transfer);
    k->done(k->arg, err, err->status ? NULL : result);
    call_free(k);
}

static void call_fail(struct call *k, int status)
{
    struct err err = k->err;

    err.status = status;
    if (!err.text[0])
        err_set(&err, status, "etcd was not asked: %s", status_text(status));
    else if (k->kind == CALL_PUT_IF && k->may_be_made)
        err_set(&err, status, "%.200s; the transaction may have been made", k->err.text);
    call_end(k, &err, NULL);
}

/* This attempt has brought nothing; the next one is at another endpoint. */
static void call_retry(struct call *k)
{
    struct coord_etcd *c = k->c;
    const struct err why = k->err;
    const uint32_t endpoint = k->endpoint;

    if (++k->n_failed % c->at.n_endpoints == 0 && k->transfer.status == -ETIMEDOUT)
        note_time(c, now_ms(c) - k->sent_ms);
    k->may_be_made = k->may_be_made || k->transfer.status != -ECONNREFUSED;
    etcd_http_stop(&k->transfer);
    k->start_ms = now_ms(c) + (k->n_failed % c->at.n_endpoints ? 0 : PAUSE_MS);
    schedule(c, k->start_ms);
    if (k->is_pinned)
        call_fail(k, why.status);
    endpoint_failed(c, endpoint, &why);
}

static int read_answer(struct call *k, const cJSON *root, struct etcd_json_answer *a)
{
    const char *prefix = k->c->at.prefix;
    int status;

    switch (k->kind) {
    case CALL_GET:
        return etcd_json_read_items(root, prefix, a);
    case CALL_PUT_IF:
        status = etcd_json_read_put_if(root, prefix, a);
        if (!status && !a->result.is_made && k->may_be_made &&
            etcd_json_written_at(a, k->writes, k->n_writes)) {
            a->result.is_made = true;
            a->result.revision = etcd_json_written_at(a, k->writes, k->n_writes);
        }
        return status;
    case CALL_GRANT:
    case CALL_KEEP:
        status = etcd_json_read_lease(root, a);
        return !status && a->result.lease != k->lease ? PS_EPROTO : status;
    case CALL_REVOKE:
        break;
    }
    return 0;
}

/* Of a grant whose first answer was lost. How long it lives, keep-alive tells. */
static bool was_granted(const struct call *k, int code)
{
    return k->kind == CALL_GRANT && code == ETCD_JSON_ALREADY && k->may_be_made;
}

static void use_answer(struct call *k, const cJSON *root)
{
    struct etcd_json_answer a = { 0 };
    struct err err = { 0 };
    const int code = etcd_json_error(root, &err);
    const char *at = k->c->at.endpoints[k->endpoint];

    if (was_granted(k, code)) {
        free(k->body);
        k->body = etcd_json_lease(k->lease);
        k->kind = CALL_KEEP;
        etcd_http_stop(&k->transfer);
        k->start_ms = now_ms(k->c);
        schedule(k->c, k->start_ms);
    } else if (code) {
        if (!etcd_auth_is_refused(&k->c->auth, code, err.text) &&
            etcd_json_is_final(code, k->kind == CALL_REVOKE, at, &err)) {
            call_end(k, &err, &a.result);
            return;
        }
        err_set(&k->err, -EIO, "etcd at %s: %.120s%s", at, err.text,
                etcd_auth_hint(&k->c->auth, code, err.text));
        call_retry(k);
    } else if (read_answer(k, root, &a)) {
        err_set(&k->err, PS_EPROTO,
                "%s does not answer as etcd 3.4 does: is it etcd's client port?", at);
        call_retry(k);
    } else {
        a.result.sent_ms = k->sent_ms;
        if (k->kind == CALL_KEEP && a.result.ttl_ms == 0)
            err_set(&err, -ENOENT, "etcd knows no lease %llx: it has ended",
                    (long long)k->lease);
        call_end(k, &err, &a.result);
    }
    etcd_json_free(&a);
}

static void on_call_done(struct etcd_http_transfer *t)
{
    struct call *k = CONTAINER_OF(t, struct call, transfer);
    struct err err = { 0 };
    cJSON *root = etcd_http_read(t, &err);

    if (!root) {
        /* One that had no time says less than the one before it. */
        if (!(k->is_short && k->err.status && t->status == -ETIMEDOUT))
            k->err = err;
        call_retry(k);
        return;
    }
    note_time(k->c, now_ms(k->c) - k->sent_ms);
    k->c->has_answered = true;
    use_answer(k, root);
    cJSON_Delete(root);
}

/* Doubles with each round over all endpoints, but the second: a member that has no leader yet gives no answer at all,
 * and is asked again soon. */
static uint64_t attempt_ms(const struct call *k)
{
    const uint32_t round = k->n_failed / k->c->at.n_endpoints;
    uint64_t ms = first_attempt_ms(k->c);

    for (uint32_t i = 1; i < round && ms < ATTEMPT_MAX_MS; i++)
        ms *= 2;
    return ms;
}

static void call_start(struct call *k, uint64_t now)
{
    const uint64_t left = now < k->deadline_ms ? k->deadline_ms - now : 0;
    const uint64_t ms = k->is_pinned ? left : attempt_ms(k);

    if (now >= k->deadline_ms) {
        call_fail(k, PS_EDEADLINE);
        return;
    }
    if (!k->is_pinned)
        k->endpoint = k->c->current;
    k->sent_ms = now;
    k->is_short = left < ms;
    if (etcd_http_start(&k->transfer, k->c->at.endpoints[k->endpoint], paths[k->kind], k->body,
                        k->is_short ? left : ms)) {
        err_set(&k->err, -ENOMEM, "etcd was not asked: out of memory");
        call_fail(k, -ENOMEM);
    }
}

/* body: taken. */
static struct call *call_new(struct coord_etcd *c, enum call_kind kind, char *body,
                             uint32_t timeout_ms, coord_done *done, void *arg)
{
    struct call *k = memory_alloc(sizeof *k);

    k->c = c;
    k->kind = kind;
    k->body = body;
    k->transfer = (struct etcd_http_transfer){ .http = &c->http, .on_done = on_call_done };
    k->start_ms = now_ms(c);
    k->deadline_ms = k->start_ms + timeout_ms;
    k->done = done;
    k->arg = arg;
    k->next = c->calls;
    if (k->next)
        k->next->prev = k;
    c->calls = k;
    schedule(c, k->start_ms);
    return k;
}

static void get(struct coord *coord, const char *key, bool is_prefix, uint32_t timeout_ms,
                coord_done *done, void *arg)
{
    struct coord_etcd *c = etcd_of(coord);

    call_new(c, CALL_GET, etcd_json_get(c->at.prefix, key, is_prefix, 0), timeout_ms, done,
             arg);
}

static void put_if(struct coord *coord, const struct coord_write *writes, uint32_t n_writes,
                   uint32_t timeout_ms, coord_done *done, void *arg)
{
    struct coord_etcd *c = etcd_of(coord);
    struct call *k;

    assert(n_writes > 0 && n_writes <= COORD_TXN_MAX);
    k = call_new(c, CALL_PUT_IF, etcd_json_put_if(c->at.prefix, writes, n_writes), timeout_ms,
                 done, arg);
    k->writes = memory_alloc(n_writes * sizeof *writes);
    k->n_writes = n_writes;
    for (uint32_t i = 0; i < n_writes; i++) {
        k->writes[i] = writes[i];
        k->writes[i].if_value = NULL; /* the body has it */
        k->writes[i].key = memory_need(strdup(writes[i].key));
        if (writes[i].value)
            k->writes[i].value = memory_need(strdup(writes[i].value));
    }
}

/* A number of ours, so that a grant whose answer is lost can be repeated. */
static void grant(struct coord *coord, uint32_t ttl_ms, uint32_t timeout_ms, coord_done *done,
                  void *arg)
{
    struct coord_etcd *c = etcd_of(coord);
    int64_t lease = 0;
    struct call *k;

    if (getrandom(&lease, sizeof lease, GRND_NONBLOCK) != sizeof lease)
        lease = (int64_t)uv_hrtime();
    lease = (lease & INT64_MAX) | 1;
    k = call_new(c, CALL_GRANT, etcd_json_grant(lease, (ttl_ms + 999) / 1000), timeout_ms, done,
                 arg);
    k->lease = lease;
}

static void keep(struct coord *coord, int64_t lease, uint32_t timeout_ms, coord_done *done,
                 void *arg)
{
    call_new(etcd_of(coord), CALL_KEEP, etcd_json_lease(lease), timeout_ms, done, arg)->lease =
        lease;
}

static void revoke_lease(struct coord *coord, int64_t lease, uint32_t timeout_ms,
                         coord_done *done, void *arg)
{
    call_new(etcd_of(coord), CALL_REVOKE, etcd_json_lease(lease), timeout_ms, done, arg)
        ->lease = lease;
}

/* --- watches --- */

static void report(struct watch *w, enum coord_event_kind kind, int64_t revision,
                   const struct coord_item *items, uint32_t n_items, const struct err *err)
{
    const struct coord_event event = {
        .kind = kind, .revision = revision, .items = items, .n_items = n_items, .err = err
    };

    if (w->state != WATCH_ENDED)
        w->on_event(w->arg, &event);
}

/* After a round over all endpoints, with jitter: those that a member has lost do not come back all at once. */
static uint64_t watch_pause_ms(const struct watch *w)
{
    const uint32_t n = w->c->at.n_endpoints, round = w->n_restarts / n;
    const uint64_t ms = round > 5 ? PAUSE_MAX_MS : PAUSE_MS << round >> 1;
    const float jitter = hash_unit(hash_mix(uv_hrtime()));

    return w->n_restarts % n ? 0 : ms / 2 + (uint64_t)((float)(ms / 2) * jitter);
}

static void watch_restart(struct watch *w, const struct err *why)
{
    struct coord_etcd *c = w->c;

    if (w->state == WATCH_ENDED)
        return;
    etcd_http_stop(&w->transfer);
    w->n_failed++;
    w->n_restarts++;
    w->state = WATCH_WAITS;
    w->start_ms = now_ms(c) + watch_pause_ms(w);
    schedule(c, w->start_ms);
    if (w->n_failed >= c->at.n_endpoints && !w->is_away) {
        w->is_away = true;
        report(w, COORD_AWAY, 0, NULL, 0, why);
    }
}

/* The stream has ended, or made no sense. */
static void watch_failed(struct watch *w, const struct err *why)
{
    const struct err copy = *why;
    const uint32_t endpoint = w->endpoint;

    if (w->transfer.easy)
        endpoint_failed(w->c, endpoint, &copy); /* restarts this one, too */
}

static void watch_heard(struct watch *w)
{
    w->n_failed = 0;
    if (w->is_away) {
        w->is_away = false;
        report(w, COORD_BACK, 0, NULL, 0, NULL);
    }
}

/* All keys are read anew: at once, the first time. A member that asks for that again and again is asked ever less
 * often. */
static void watch_reread(struct watch *w)
{
    w->from = 0;
    etcd_http_stop(&w->transfer);
    w->state = WATCH_WAITS;
    w->start_ms = now_ms(w->c) + (w->n_restarts++ ? watch_pause_ms(w) : 0);
    schedule(w->c, w->start_ms);
}

static void use_list(struct watch *w, const cJSON *root)
{
    struct etcd_json_answer a = { 0 };
    struct err err = { 0 }, restored;

    if (etcd_json_error(root, &err) || etcd_json_read_items(root, w->c->at.prefix, &a) ||
        a.result.revision <= 0) {
        struct err why;

        err_set(&why, PS_EPROTO, "etcd at %s cannot be read: %.120s",
                w->c->at.endpoints[w->endpoint], err.text[0] ? err.text : "not its JSON");
        watch_failed(w, &why);
    } else {
        const bool is_restored = etcd_json_is_restored(&w->seen, &a.result, &restored);

        etcd_http_stop(&w->transfer);
        w->from = a.result.revision + 1;
        w->seen = (struct etcd_json_seen){ a.result.revision, a.result.store_id };
        w->state = WATCH_WAITS;
        w->start_ms = now_ms(w->c);
        schedule(w->c, w->start_ms);
        watch_heard(w);
        report(w, COORD_ALL, a.result.revision, a.items, a.n_items,
               is_restored ? &restored : NULL);
    }
    etcd_json_free(&a);
}

static void on_watch_done(struct etcd_http_transfer *t)
{
    struct watch *w = CONTAINER_OF(t, struct watch, transfer);
    struct err err = { 0 };
    cJSON *root;

    if (w->state == WATCH_LISTS) {
        root = etcd_http_read(t, &err);
        if (root)
            use_list(w, root);
        else
            watch_failed(w, &err);
        cJSON_Delete(root);
        return;
    }
    if (t->is_too_long)
        err_set(&err, PS_ETOOBIG, "etcd at %s: a message of more than %u MiB", t->address,
                COORD_ANSWER_MAX >> 20);
    else
        err_set(&err, -ECONNRESET, "etcd at %s: the watch has ended%s%.120s", t->address,
                t->error[0] ? ": " : "", t->error);
    watch_failed(w, &err);
}

static void report_changes(struct watch *w, const struct etcd_json_answer *a)
{
    for (uint32_t i = 0; i < a->n_items; i++)
        if (a->items[i].mod_revision >= w->from) {
            const int64_t revision = a->items[i].mod_revision;

            report(w, a->removed[i] ? COORD_REMOVED : COORD_CHANGED, revision, &a->items[i], 1,
                   NULL);
        }
    for (uint32_t i = 0; i < a->n_items; i++)
        if (a->items[i].mod_revision >= w->from)
            w->from = a->items[i].mod_revision + 1;
    if (w->from > w->seen.revision)
        w->seen.revision = w->from - 1;
}

/* One message of the stream. */
static void use_message(struct watch *w, const cJSON *root)
{
    struct etcd_json_answer a = { 0 };
    struct err said = { 0 }, err = { 0 };
    const char *at = w->c->at.endpoints[w->endpoint];

    const int code = etcd_json_error(root, &said);

    if (code) {
        (void)etcd_auth_is_refused(&w->c->auth, code, said.text);
        err_set(&err, -EIO, "etcd at %s ends the watch: %.120s", at, said.text);
    } else if (etcd_json_read_event(root, w->c->at.prefix, &a))
        err_set(&err, PS_EPROTO,
                "%s does not answer as etcd 3.4 does: is it etcd's client port?", at);
    else if (a.is_canceled && a.compact_revision > 0) {
        watch_reread(w); /* what lies between is gone */
    } else if (a.is_canceled &&
               a.reason[0]) { /* all that etcd 3.4 says of a token that has ended */
        etcd_auth_drop(&w->c->auth);
        err_set(&err, -EACCES, "etcd at %s has cancelled the watch: %.80s", at, a.reason);
    } else if (a.is_canceled)
        err_set(&err, -ECANCELED, "etcd at %s has cancelled the watch", at);
    else if (a.is_created && w->state == WATCH_OPENS) {
        w->state = WATCH_STREAMS;
        w->behind = 0;
        /* A member that is behind the others, or etcd was restored: a read says which. */
        w->is_doubtful = etcd_json_is_restored(&w->seen, &a.result, &said);
        w->probe_ms = now_ms(w->c) + (w->is_doubtful ? 0 : COORD_ETCD_PROBE_MS);
        schedule(w->c, w->probe_ms);
        if (!w->is_doubtful)
            watch_heard(w);
    }
    if (!err.status)
        report_changes(w, &a);
    else
        watch_failed(w, &err);
    etcd_json_free(&a);
}

/* Of what has come, all whole lines. */
static void read_stream(struct watch *w)
{
    struct bytes *in = &w->transfer.in;

    while (w->transfer.easy && (w->state == WATCH_OPENS || w->state == WATCH_STREAMS)) {
        const uint8_t *end =
            bytes_len(in) ? memchr(bytes_front(in), '\n', bytes_len(in)) : NULL;
        const size_t n = end ? (size_t)(end - bytes_front(in)) : 0;
        cJSON *root;

        if (!end)
            return;
        if (n == 0) {
            bytes_consume(in, 1);
            continue;
        }
        root = cJSON_ParseWithLength((const char *)bytes_front(in), n);
        bytes_consume(in, n + 1);
        use_message(w, root); /* NULL: as JSON without a result */
        cJSON_Delete(root);
    }
}

static void watch_start(struct watch *w, uint64_t now)
{
    struct coord_etcd *c = w->c;
    const uint64_t created_ms = 2 * first_attempt_ms(c); /* until a watch is confirmed */
    const bool lists = w->from == 0;
    char *body = lists ? etcd_json_get(c->at.prefix, w->below, true, 0)
                       : etcd_json_watch(c->at.prefix, w->below, w->from);
    int status;

    w->endpoint = c->current;
    w->state = lists ? WATCH_LISTS : WATCH_OPENS;
    w->start_ms = now + created_ms;
    status =
        etcd_http_start(&w->transfer, c->at.endpoints[w->endpoint],
                        lists ? paths[CALL_GET] : "/v3/watch", body, lists ? created_ms : 0);
    free(body);
    schedule(c, w->start_ms);
    if (status) {
        struct err err;

        err_set(&err, status, "etcd was not asked: %s", status_text(status));
        watch_restart(w, &err);
    }
}

static void on_probe(void *arg, const struct err *err, const struct coord_result *result)
{
    struct watch *w = arg;
    struct err why;

    w->is_probed = false;
    if (err->status || w->state != WATCH_STREAMS)
        return; /* endpoint_failed() restarts it */
    if (etcd_json_is_restored(&w->seen, result, &why)) {
        watch_reread(w);
        return;
    }
    w->seen.revision = result->revision;
    w->is_doubtful = false;
    watch_heard(w);
    if (result->n_items && w->behind == w->from) {
        err_set(&why, -ETIMEDOUT, "etcd at %s: the watch is silent about a change",
                w->c->at.endpoints[w->endpoint]);
        watch_failed(w, &why);
    } else {
        w->behind = result->n_items ? w->from : 0;
    }
}

static void probe(struct watch *w, uint64_t now)
{
    struct coord_etcd *c = w->c;
    struct call *k;

    w->n_restarts = 0; /* it has lasted so long */
    w->probe_ms = now + COORD_ETCD_PROBE_MS;
    schedule(c, w->probe_ms);
    if (w->is_probed)
        return;
    k = call_new(c, CALL_GET, etcd_json_get(c->at.prefix, w->below, true, w->from - 1),
                 (uint32_t)(COORD_ETCD_PROBE_MS + first_attempt_ms(c)), on_probe, w);
    k->is_pinned = true;
    k->endpoint = w->endpoint;
    w->is_probed = true;
}

static struct coord_watch *watch(struct coord *coord, const char *prefix,
                                 coord_on_event *on_event, void *arg)
{
    struct coord_etcd *c = etcd_of(coord);
    struct watch *w = memory_alloc(sizeof *w);

    w->base.coord = coord;
    w->c = c;
    w->below = memory_need(strdup(prefix));
    w->transfer = (struct etcd_http_transfer){ .http = &c->http, .on_done = on_watch_done };
    w->start_ms = now_ms(c);
    w->on_event = on_event;
    w->arg = arg;
    w->next = c->watches;
    c->watches = w;
    schedule(c, w->start_ms);
    return &w->base;
}

/* Freed at the next turn: this may be called from its own event. */
static void unwatch(struct coord_watch *base)
{
    struct watch *w = CONTAINER_OF(base, struct watch, base);

    w->state = WATCH_ENDED;
    etcd_http_stop(&w->transfer);
    schedule(w->c, 0);
}

static void sweep_watches(struct coord_etcd *c)
{
    struct watch **at = &c->watches;

    while (*at) {
        struct watch *w = *at;

        if (w->state == WATCH_ENDED && !w->is_probed) {
            *at = w->next;
            etcd_http_stop(&w->transfer);
            free(w->below);
            free(w);
        } else
            at = &w->next;
    }
}

/* --- the loop --- */

static void on_http_closed(struct etcd_http *h)
{
    struct coord_etcd *c = CONTAINER_OF(h, struct coord_etcd, http);

    if (c->on_closed)
        c->on_closed(c->arg);
    free(c);
}

static void on_turn_closed(uv_handle_t *handle)
{
    struct coord_etcd *c = handle->data;

    etcd_http_close(&c->http);
}

static void on_data(struct etcd_http *h)
{
    struct coord_etcd *c = CONTAINER_OF(h, struct coord_etcd, http);

    for (struct watch *w = c->watches; w; w = w->next)
        if (w->transfer.easy)
            read_stream(w);
}

static void close_now(struct coord_etcd *c)
{
    while (c->calls) {
        err_set(&c->calls->err, -ECANCELED, "the connection to etcd is closed");
        call_fail(c->calls, -ECANCELED);
    }
    for (struct watch *w = c->watches; w; w = w->next)
        w->state = WATCH_ENDED;
    sweep_watches(c);
    etcd_auth_deinit(&c->auth);
    uv_close((uv_handle_t *)&c->turn_timer, on_turn_closed);
}

/* Users' requests wait for a token, at most until their deadline. */
static void await_token(struct coord_etcd *c, uint64_t now)
{
    struct call *next;

    etcd_auth_ask(&c->auth, c->at.endpoints[c->current], now, AUTH_MS);
    if (!c->auth.transfer.easy) /* else on_auth_done() goes on */
        schedule(c, c->auth.retry_ms);
    for (struct call *k = c->calls; k; k = next) {
        next = k->next;
        if (k->transfer.easy)
            continue;
        if (k->deadline_ms <= now) {
            if (c->auth.err.status)
                k->err = c->auth.err;
            call_fail(k, PS_EDEADLINE);
            next = c->calls;
        } else
            schedule(c, k->deadline_ms);
    }
    sweep_watches(c);
}

static void on_auth_done(struct etcd_http_transfer *t)
{
    struct coord_etcd *c = CONTAINER_OF(t, struct coord_etcd, auth.transfer);
    const int status = etcd_auth_read(&c->auth, now_ms(c));

    if (status) {
        c->current = (c->current + 1) % c->at.n_endpoints;
        for (struct watch *w = c->watches; w; w = w->next)
            if (w->state == WATCH_WAITS)
                watch_restart(w, &c->auth.err);
    }
    schedule(c, status ? c->auth.retry_ms : 0);
}

/* Starts what is due. Requests are begun here alone: curl takes none from within its own callbacks. */
static void on_turn(uv_timer_t *timer)
{
    struct coord_etcd *c = timer->data;
    const uint64_t now = now_ms(c);
    struct call *next;

    uv_timer_stop(timer);
    if (c->is_closing) {
        close_now(c);
        return;
    }
    c->http.token = c->auth.token;
    if (etcd_auth_is_awaited(&c->auth)) {
        await_token(c, now);
        return;
    }
    for (struct call *k = c->calls; k; k = next) {
        next = k->next;
        if (k->transfer.easy)
            continue;
        if (k->start_ms <= now || k->deadline_ms <= now) {
            call_start(k, now);
            next =
                c->calls; /* a `done` may have changed the list: those that run are passed over */
        } else
            schedule(c, k->start_ms < k->deadline_ms ? k->start_ms : k->deadline_ms);
    }
    for (struct watch *w = c->watches; w; w = w->next) {
        struct err err;

        if (w->state == WATCH_WAITS && w->start_ms <= now)
            watch_start(w, now);
        else if (w->state == WATCH_OPENS && w->start_ms <= now) {
            err_set(&err, -ETIMEDOUT, "etcd at %s does not confirm the watch",
                    c->at.endpoints[w->endpoint]);
            watch_failed(w, &err);
        } else if (w->state == WATCH_STREAMS && w->probe_ms <= now)
            probe(w, now);
        else if (w->state != WATCH_ENDED)
            schedule(c, w->state == WATCH_STREAMS ? w->probe_ms : w->start_ms);
    }
    sweep_watches(c);
}

static void schedule(struct coord_etcd *c, uint64_t at_ms)
{
    const uint64_t now = uv_now(c->loop);
    const uint64_t in_ms = at_ms > now ? at_ms - now : 0;

    if (!uv_is_active((uv_handle_t *)&c->turn_timer) ||
        uv_timer_get_due_in(&c->turn_timer) > in_ms)
        uv_timer_start(&c->turn_timer, on_turn, in_ms, 0);
}

/* --- open and close --- */

static void close_etcd(struct coord *coord, void (*on_closed)(void *arg), void *arg)
{
    struct coord_etcd *c = etcd_of(coord);

    c->is_closing = true;
    c->on_closed = on_closed;
    c->arg = arg;
    schedule(c, 0);
}

static const struct coord_ops ops = {
    .get = get,
    .put_if = put_if,
    .grant = grant,
    .keep = keep,
    .revoke = revoke_lease,
    .watch = watch,
    .unwatch = unwatch,
    .close = close_etcd,
};

int coord_etcd_open(const struct coord_options *options, uv_loop_t *loop, struct coord **ret,
                    struct err *err)
{
    struct coord_etcd *c = memory_alloc(sizeof *c);
    int status = etcd_url_parse(options->url, &c->at, err);

    if (!status)
        status = etcd_auth_init(&c->auth, options->user, options->password_file, &c->http,
                                on_auth_done, err);
    if (!status)
        status = etcd_http_set_tls(&c->http, options->ca_file, options->cert_file,
                                   options->key_file, err);
    if (status) {
        free(c);
        return status;
    }
    c->base.ops = &ops;
    c->loop = loop;
    c->http.max_bytes = COORD_ANSWER_MAX;
    c->http.on_data = on_data;
    c->http.on_closed = on_http_closed;
    etcd_http_open(&c->http, loop);
    uv_timer_init(loop, &c->turn_timer);
    c->turn_timer.data = c;
    *ret = &c->base;
    return 0;
}

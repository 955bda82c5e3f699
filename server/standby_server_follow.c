/*
 * In the order of a standby's life: hello -> FOLLOW (leaving -> holding -> deciding -> beginning -> answered) ->
 * FILE ... -> FOLLOW -> FETCH at the shards -> the tick: in sync, or not.
 *
 * One job of libuv's pool is under way at a time: it reads and writes what this thread leaves alone meanwhile.
 */
#include "server/standby_server_internal.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "proto/message_replication.h"
#include "server/standby_settings.h"

#define FOLLOW_BYTES_MAX (1u << 20) /* of a FOLLOW: 64 terms of 1024 shards take half of it */
#define CONNECT_MS 10000u
#define ASK_EVERY_MS 2000u
#define REFUSED_LINES_AT_ONCE 5u
#define REFUSED_LINE_EVERY_MS 10000u

static const char *data_dir(const struct standby_server *s)
{
    return s->config.settings->data_dir;
}

/* --- the pool's job --- */

static void start_job(struct standby_server *s, void (*run)(void *server),
                      void (*done)(void *server)) ON_MAIN
{
    pool_job_start(&s->job, s->config.loop, run, done);
}

static void write_terms(void *server)
{
    struct standby_server *s = server;

    s->job.err.status = terms_write(s->config.files, data_dir(s), &s->terms, &s->job.err);
}

/* Of the one that asks, on every shard; go_on() once that is done. keep: of each. */
static void step_shards(struct standby_server *s, enum shard_thread_standby what,
                        const uint64_t *keep) ON_MAIN
{
    struct fetch_standby standby = {
        .term = terms_last(&s->terms),
        .ack = s->terms.ack,
        .pin_bytes_max = s->config.settings->standby_log_max_bytes / s->n_shards
    };

    snprintf(standby.name, sizeof standby.name, "%s", s->request.name);
    standby_shards_ask(s->shards, what, &standby, keep);
}

static void order_shards(struct standby_server *s, enum shard_thread_standby what) ON_MAIN
{
    if (!s->is_closed)
        standby_shards_order(s->shards, what);
}

static void note_terms(struct standby_server *s, void (*done)(void *server)) ON_MAIN
{
    start_job(s, write_terms, done);
}

static void seal(struct standby_server *s) ON_MAIN
{
    order_shards(s, SHARD_STANDBY_SEAL);
}

/* --- what becomes of this psd --- */

static void go_on(void *server);
static void refuse_follow(struct standby_server *s) ON_MAIN;

static void log_serving(const struct standby_server *s)
{
    if (s->terms.n)
        log_line_info("standby: this psd is the primary, of term %" PRIu64 "%s%.100s",
                      terms_last(&s->terms), s->terms.peer[0] ? ", and its standby is " : "",
                      s->terms.peer);
}

static void serve_term(struct standby_server *s) ON_MAIN
{
    s->write_err = (struct err){ 0 };
    s->state = SERVER_SERVING;
    sync_init(&s->sync, s->config.settings->standby_patience_ms, false, clock_mono_ms());
    log_serving(s);
    s->config.serve(s->config.owner);
    if (s->request.step == FOLLOW_HOLDING)
        go_on(s);
    else if (s->terms.peer[0])
        step_shards(s, SHARD_STANDBY_HOLD, NULL); /* it may come back */
}

static void on_term_written(void *server)
{
    struct standby_server *s = server;

    enter_main();
    if (s->job.err.status) {
        s->write_err = s->job.err;
        log_line_error("the new term is not written, and no worker is served: %s",
                       s->job.err.text);
        s->state = SERVER_AWAITED; /* the tick tries again */
        s->was_in_sync = false;
        s->asked_ms = clock_mono_ms();
        s->request.err = s->job.err;
        if (s->request.step == FOLLOW_HOLDING)
            refuse_follow(s);
        return;
    }
    if (s->coordination)
        standby_server_claim_term(s);
    else
        serve_term(s);
}

/* A term that begins behind each shard's newest record; once a run, however often its write fails. */
static void begin_term(struct standby_server *s) ON_MAIN
{
    if (!s->has_begun) {
        standby_shards_next(s->shards, s->request.first);
        terms_begin(&s->terms, standby_server_next_term(s), s->request.first);
    }
    s->has_begun = true;
    s->state = SERVER_BEGINNING;
    s->terms.role = TERMS_PRIMARY;
    s->terms.in_sync = false;
    s->terms.ack = (enum terms_ack)s->config.settings->standby_ack;
    start_job(s, write_terms, on_term_written);
}

static void depose(struct standby_server *s, const char *sentence) ON_MAIN
{
    if (s->state == SERVER_DEPOSED)
        return;
    s->state = SERVER_DEPOSED;
    order_shards(s, SHARD_STANDBY_SEAL);
    s->config.deposed(s->config.owner, sentence);
}

static void on_role_written(void *server)
{
    struct standby_server *s = server;

    enter_main();
    if (s->job.err.status)
        log_line_error("this psd does not note that it is a standby now: %s", s->job.err.text);
    depose(s, s->sentence);
}

/* Another psd says that it is the primary: the next start follows it. */
static void depose_for_good(struct standby_server *s, const char *sentence) ON_MAIN
{
    snprintf(s->sentence, sizeof s->sentence, "%s", sentence);
    s->terms.role = TERMS_STANDBY;
    s->terms.in_sync = false;
    start_job(s, write_terms, on_role_written);
}

/* --- the peer of the last run --- */

static void ask_peer(void *server)
{
    struct standby_server *s = server;

    s->job.err.status = peer_query_ask(&s->query.asked, &s->query.answer, &s->job.err);
}

static void on_peer_answer(void *server)
{
    struct standby_server *s = server;
    const struct peer_answer *answer = &s->query.answer;
    char sentence[256];

    enter_main();
    s->asked_ms = clock_mono_ms();
    if (s->state != SERVER_ASKING && s->state != SERVER_AWAITED && s->state != SERVER_SERVING)
        return;
    if (!s->job.err.status && answer->is_primary && answer->term > terms_last(&s->terms)) {
        snprintf(sentence, sizeof sentence, "%.128s is the primary, of term %" PRIu64,
                 s->terms.peer, answer->term);
        depose_for_good(s, sentence);
        return;
    }
    if (s->state == SERVER_SERVING)
        return;
    /* With fsync this log has all that was acknowledged, and the peer says that it is not the primary. */
    if (!s->was_in_sync || (!s->job.err.status && answer->term && !answer->is_primary &&
                            s->config.settings->durability == WAL_FSYNC)) {
        begin_term(s);
        return;
    }
    if (s->state == SERVER_ASKING) {
        s->state = SERVER_AWAITED;
        log_line_warn(
            "standby %.128s had all that this psd acknowledged, and this psd's log may "
            "not: workers are refused until it follows (psctl promote "
            "--accept-loss serves without it)",
            s->terms.peer);
    }
}

static void start_query(struct standby_server *s) ON_MAIN
{
    struct peer_query *asked = &s->query.asked;

    *asked =
        (struct peer_query){ .node = s->config.welcome->node, .tls = s->config.settings->tls };
    snprintf(asked->peer, sizeof asked->peer, "%s", s->terms.peer);
    snprintf(asked->token, sizeof asked->token, "%.127s", s->config.settings->token);
    s->asked_ms = clock_mono_ms();
    start_job(s, ask_peer, on_peer_answer);
}

static int read_terms(struct standby_server *s, struct err *err)
{
    const uint64_t now_ms = clock_mono_ms();

    s->since_ms = now_ms;
    sync_init(&s->sync, s->config.settings->standby_patience_ms, false, now_ms);
    s->terms.n_shards = s->n_shards;
    return data_dir(s)[0]
               ? terms_read(s->config.files, data_dir(s), s->n_shards, &s->terms, err)
               : 0;
}

int standby_server_begin_promoted(struct standby_server *s, struct err *err)
{
    if (read_terms(s, err))
        return err->status;
    s->has_begun = true;
    s->state = SERVER_SERVING;
    log_serving(s);
    s->config.serve(s->config.owner);
    if (s->terms.peer[0])
        step_shards(s, SHARD_STANDBY_HOLD, NULL); /* it may come back */
    return 0;
}

struct coordination *standby_server_coordination(const struct standby_server *s)
{
    return s->coordination;
}

int standby_server_begin(struct standby_server *s, uint64_t timeline, struct err *err)
{
    int status = read_terms(s, err);

    if (status)
        return status;
    s->was_in_sync = s->terms.history && s->terms.timeline == timeline &&
                     (s->terms.in_sync || s->terms.role == TERMS_STANDBY);
    if (!s->terms.history) {
        s->terms.timeline = timeline;
    } else if (s->terms.timeline != timeline) {
        terms_begin_history(&s->terms, terms_random(), timeline, s->n_shards);
    }
    if (s->coordination) {
        s->state = SERVER_ASKING;
        standby_server_check_claim(s);
    } else if (!s->terms.history) {
        s->state = SERVER_SERVING;
        s->config.serve(s->config.owner);
    } else if (!s->terms.peer[0]) {
        begin_term(s);
    } else {
        s->state = SERVER_ASKING;
        start_query(s);
    }
    return 0;
}

int standby_server_promote(struct standby_server *s, bool accept_loss, struct err *err)
{
    if (s->state != SERVER_ASKING && s->state != SERVER_AWAITED)
        return err_set(err, -EBUSY, "promote: this psd is the primary already");
    if (!accept_loss)
        return err_set(
            err, -EPERM,
            "promote: %.100s may have pushes that this psd acknowledged and does not "
            "have: with --accept-loss these are lost",
            s->terms.peer);
    log_line_warn("promoted with --accept-loss, without what %.128s may have more",
                  s->terms.peer);
    s->was_in_sync = s->is_foreign = false;
    s->asked_ms = 0;
    return 0;
}

/* --- FOLLOW --- */

static void end_request(struct standby_server *s)
{
    terms_deinit(&s->request.theirs);
    s->request.step = FOLLOW_NONE;
    s->request.connection = NULL;
}

static int send_follow_reply(struct connection *c, uint64_t request_id,
                             struct follow_reply *reply)
{
    struct bytes frame = { 0 };
    int status = message_write_follow_reply(&frame, request_id, reply);

    if (status)
        bytes_deinit(&frame);
    return status ? status : connection_send(c, &frame);
}

/* As s->request has it: err, or action. */
static void answer_follow(struct standby_server *s) ON_MAIN
{
    struct follower_request *q = &s->request;
    struct follow_reply *reply = memory_alloc(sizeof *reply);
    uint8_t *terms = memory_alloc(message_terms_bytes(s->terms.n, s->n_shards) + 1);
    struct connection *c = q->connection;
    int status;

    reply->status = q->err.status;
    snprintf(reply->text, sizeof reply->text, "%s", q->err.text);
    reply->term = terms_last(&s->terms);
    reply->history = s->terms.history;
    if (!reply->status) {
        reply->action = q->action;
        reply->n_shards = s->n_shards;
        for (uint32_t i = 0; i < s->n_shards && q->action == FOLLOW_GO_ON; i++)
            reply->keep[i] = q->keep[i];
        terms_put(&s->terms, terms);
        reply->n_terms = s->terms.n;
        reply->terms = terms;
    }
    if (c) {
        status = send_follow_reply(c, q->request_id, reply);
        connection_release(c);
        if (status)
            connection_fail(c, status);
    }
    free(terms);
    free(reply);
    end_request(s);
}

static void refuse_follow(struct standby_server *s)
{
    char more[64];

    if (s->request.connection &&
        log_line_limit_pass(&s->limit, "refused", 0, uv_now(s->config.loop), more))
        log_line_warn("standby %.63s is refused: %s%s", s->request.name, s->request.err.text,
                      more);
    answer_follow(s);
}

/* GO_ON where the log has all that it takes, else COPY; TERMS, if this is the first standby or another one. */
static void decide(void *server)
{
    struct standby_server *s = server;

    struct follower_request *q = &s->request;
    bool has = true;
    int status = 0;

    for (uint32_t i = 0; i < s->n_shards && !status && q->action == FOLLOW_GO_ON; i++) {
        has = q->keep[i] >= q->last[i];
        if (!has)
            status = standby_files_has_log(
                s->config.files, data_dir(s), s->terms.timeline, i, q->keep[i] + 1,
                atomic_load(&standby_shards_view(s->shards, i)->lost_through), &has,
                &s->job.err);
        if (!has)
            q->action = FOLLOW_COPY;
    }
    if (!status && q->action == FOLLOW_COPY)
        status = standby_files_open(s->config.files, data_dir(s), s->terms.timeline,
                                    s->n_shards, &s->files, q->first, &s->job.err);
    if (!status)
        status = terms_write(s->config.files, data_dir(s), &s->terms, &s->job.err);
    s->job.err.status = status;
}

static void on_decided(void *server)
{
    struct standby_server *s = server;
    struct follower_request *q = &s->request;

    enter_main();
    q->err = s->job.err;
    if (q->err.status || !q->connection) {
        if (!q->err.status)
            standby_files_close(s->config.files, &s->files);
        refuse_follow(s);
        return;
    }
    q->step = FOLLOW_BEGINNING;
    if (q->action == FOLLOW_COPY) {
        standby_copy_begin(s->copy, q->connection, &s->files);
        step_shards(s, SHARD_STANDBY_HOLD, q->first);
    } else {
        step_shards(s, SHARD_STANDBY_BEGIN, q->keep);
    }
}

static void begin_following(struct standby_server *s) ON_MAIN
{
    struct follower_request *q = &s->request;

    if (q->action == FOLLOW_GO_ON) {
        s->is_followed = true;
        s->was_connected = false;
        s->follower_connection = q->connection;
        s->followed_ms = clock_mono_ms();
        s->sync.ends = false;
        snprintf(s->name, sizeof s->name, "%s", q->name);
    }
    log_line_info("standby %.63s, %.100s, %s", q->name, q->asked.address,
                  q->action == FOLLOW_GO_ON ? "follows" : "copies the newest restore point");
    answer_follow(s);
}

static void start_deciding(struct standby_server *s) ON_MAIN
{
    struct follower_request *q = &s->request;

    q->step = FOLLOW_DECIDING;
    if (!s->terms.history) {
        terms_begin_history(&s->terms, terms_random(), s->terms.timeline, s->n_shards);
        terms_begin(&s->terms, 1, NULL);
    }
    s->terms.role = TERMS_PRIMARY;
    s->terms.ack = (enum terms_ack)s->config.settings->standby_ack;
    s->terms.in_sync = false;
    snprintf(s->terms.peer, sizeof s->terms.peer, "%s", q->asked.address);
    start_job(s, decide, on_decided);
}

/* It has what this psd acknowledged and has lost, or a greater term. */
static void hand_over(struct standby_server *s) ON_MAIN
{
    struct follower_request *q = &s->request;
    char sentence[256];

    snprintf(sentence, sizeof sentence,
             "standby %.100s has more than this psd's log, and becomes the primary",
             q->asked.address);
    q->action = FOLLOW_TAKE_OVER;
    answer_follow(s);
    depose(s, sentence);
}

static bool has_more(const uint64_t *last, const uint64_t *keep, uint32_t n)
{
    while (n > 0 && last[n - 1] <= keep[n - 1])
        n--;
    return n > 0;
}

/* The shards keep their logs now, and have said where these end. */
static void classify(struct standby_server *s) ON_MAIN
{
    struct follower_request *q = &s->request;
    bool is_common;

    standby_shards_last(s->shards, q->last);
    is_common = terms_common(&s->terms, &q->theirs, q->last, q->asked.last, q->keep);
    q->action = is_common ? FOLLOW_GO_ON : FOLLOW_COPY;
    q->is_classified = true;
    if (is_common && terms_last(&q->theirs) > terms_last(&s->terms)) {
        hand_over(s);
    } else if (s->state == SERVER_SERVING) {
        start_deciding(s);
    } else if (is_common && s->config.settings->durability != WAL_FSYNC &&
               has_more(q->asked.last, q->keep, s->n_shards)) {
        hand_over(s);
    } else {
        begin_term(s); /* goes on once it serves */
    }
}

/* The next step. */
static void go_on(void *server)
{
    struct standby_server *s = server;

    enter_main();
    if (s->is_closed)
        return;
    switch (s->request.step) {
    case FOLLOW_HOLDING:
        if (s->request.is_classified)
            start_deciding(s); /* it serves now */
        else
            classify(s);
        break;
    case FOLLOW_BEGINNING:
        begin_following(s);
        break;
    case FOLLOW_NONE:
    case FOLLOW_LEAVING:
    case FOLLOW_DECIDING:
        break;
    }
}

/* 0, or why this one may not follow now. */
static int check_follow(const struct standby_server *s, struct err *err) ON_MAIN
{
    const struct follower_request *q = &s->request;
    int status;

    if (!data_dir(s)[0])
        return err_set(err, PS_ESETTING,
                       "a primary without --data-dir has no log that a standby could follow");
    if (s->state == SERVER_DEPOSED || s->state == SERVER_OFF || s->is_closed)
        return err_set(err, PS_ESTOPPING, "%s", status_text(PS_ESTOPPING));
    if (s->is_foreign)
        return err_set(err, PS_ESTOPPING, "this psd has not the group's data");
    status = standby_settings_check(s->config.settings, s->config.welcome, &q->asked, err);
    if (status)
        return status;
    if (s->is_followed && strcmp(s->terms.peer, q->asked.address) != 0)
        return err_set(err, -EBUSY, "%.100s is the standby, and there is one at a time",
                       s->terms.peer);
    if (s->state != SERVER_SERVING && strcmp(s->terms.peer, q->asked.address) != 0)
        return err_set(err, PS_ESTOPPING, "%.100s was the standby, and is awaited",
                       s->terms.peer);
    return 0;
}

/* The standby of before, most often the same one, is not waited for any more: then the new one begins. */
static void tick_follow(struct standby_server *s) ON_MAIN
{
    if (s->request.step != FOLLOW_LEAVING || s->job.is_running ||
        standby_shards_is_busy(s->shards))
        return;
    if (s->state != SERVER_SERVING && s->state != SERVER_AWAITED)
        return;
    s->sync.ends = true;
    if (s->sync.state != SYNC_OUT)
        return;
    s->is_followed = false;
    standby_copy_drop(s->copy, NULL);
    s->request.step = FOLLOW_HOLDING;
    step_shards(s, SHARD_STANDBY_HOLD, NULL);
}

static int on_follow(struct standby_server *s, struct request *r) ON_MAIN
{
    struct follower_request *q = &s->request;
    struct follow_reply refusal = { .status = -EBUSY,
                                    .text = "another FOLLOW is being answered" };
    int status;

    if (q->step != FOLLOW_NONE)
        return send_follow_reply(r->connection, r->header->request_id, &refusal);
    status = message_read_follow(r->header, r->head, r->body, r->body_bytes, &q->asked);
    if (!status)
        status = terms_take(&q->theirs, q->asked.history ? q->asked.history : 1, q->asked.terms,
                            q->asked.n_terms, q->asked.n_shards);
    if (status)
        return status;
    q->theirs.history = q->asked.history;
    q->asked.terms = NULL;
    q->connection = r->connection;
    q->request_id = r->header->request_id;
    q->err = (struct err){ 0 };
    q->is_classified = false;
    snprintf(q->name, sizeof q->name, "%s", r->connection->hello.name);
    connection_hold(r->connection);
    if (check_follow(s, &q->err))
        refuse_follow(s);
    else
        q->step = FOLLOW_LEAVING;
    tick_follow(s);
    return 0;
}

/* --- connections --- */

static int on_request(void *owner, struct request *r)
{
    struct standby_server *s = owner;

    enter_main();
    if (r->header->type == FRAME_FOLLOW)
        return on_follow(s, r);
    if (r->header->type == FRAME_FILE)
        return standby_copy_request(s->copy, r);
    return PS_EPROTO;
}

static void on_closed(void *owner, struct connection *c, int why)
{
    struct standby_server *s = owner;

    (void)why;
    enter_main();
    if (s->request.connection == c) {
        s->request.connection = NULL;
        if (s->request.step == FOLLOW_LEAVING)
            end_request(s);
    }
    if (s->follower_connection == c)
        s->follower_connection = NULL;
    standby_copy_drop(s->copy, c);
}

static const struct connection_events standby_server_events = { .on_request = on_request,
                                                                .on_closed = on_closed };

int standby_server_admit(const struct standby_server *s, struct err *err)
{
    uint32_t n = 0;

    for (const struct connection *c = s->connections.first; c; c = c->next)
        n++;
    if (n < STANDBY_SERVER_CONNECTIONS_MAX)
        return 0;
    return err_set(err, -EMFILE, "%u standbys are connected", n);
}

int standby_server_receive(struct standby_server *s, const struct connection_socket *socket,
                           uint64_t request_id, const struct hello *hello)
{
    return connection_set_open(&s->connections, socket, request_id, hello, NULL);
}

static void on_sync_note_write(void *server);

static const struct standby_server_steps steps = { .write_terms = note_terms,
                                                   .on_sync_note_write = on_sync_note_write,
                                                   .start_query = start_query,
                                                   .begin_term = begin_term,
                                                   .serve_term = serve_term,
                                                   .refuse_follow = refuse_follow,
                                                   .seal = seal,
                                                   .depose_for_good = depose_for_good };

struct standby_server *standby_server_new(const struct standby_server_config *config)
{
    struct standby_server *s = memory_alloc(sizeof *s);
    const uint32_t n = config->settings->shards;
    struct connection_set_config connections = { .channels = &s->channels,
                                                 .frame_max_bytes = FOLLOW_BYTES_MAX,
                                                 .frame_timeout_ms =
                                                     config->settings->frame_timeout_ms,
                                                 .memory = config->memory,
                                                 .welcome = config->welcome,
                                                 .events = &standby_server_events,
                                                 .owner = s };

    s->config = *config;
    s->steps = &steps;
    s->job.owner = s;
    s->n_shards = n;
    s->limit = (struct log_line_limit){ .n_at_once = REFUSED_LINES_AT_ONCE,
                                        .every_ms = REFUSED_LINE_EVERY_MS };
    if (config->settings->coord[0])
        s->coordination = standby_server_coordinate(s);
    s->shards = standby_shards_new(&config->shards, n, go_on, s);
    s->request.last = memory_alloc(n * sizeof(uint64_t));
    s->request.keep = memory_alloc(n * sizeof(uint64_t));
    s->request.first = memory_alloc(n * sizeof(uint64_t));
    s->copy = standby_copy_new(config->loop, config->files);
    channel_loop_init(&s->channels, config->loop);
    connection_set_init(&s->connections, &connections);
    return s;
}

void standby_server_free(struct standby_server *s)
{
    if (!s)
        return;
    channel_loop_deinit(&s->channels);
    standby_copy_free(s->copy);
    standby_files_close(s->config.files, &s->files);
    terms_deinit(&s->request.theirs);
    terms_deinit(&s->terms);
    free(s->request.last);
    free(s->request.keep);
    free(s->request.first);
    standby_shards_free(s->shards);
    coordination_free(s->coordination);
    free(s);
}

void standby_server_close(struct standby_server *s)
{
    if (s->is_closed)
        return;
    s->is_closed = s->job.is_abandoned = true;
    coordination_close(s->coordination);
    connection_set_close_all(&s->connections);
    channel_loop_close(&s->channels);
}

/* --- the tick --- */

static void check_term(struct standby_server *s) ON_MAIN
{
    const uint64_t term = standby_shards_greater_term(s->shards);
    char sentence[256];

    if (term <= terms_last(&s->terms))
        return;
    snprintf(sentence, sizeof sentence,
             "term %" PRIu64 " is over, a standby names %" PRIu64
             ": another psd is the primary",
             terms_last(&s->terms), term);
    depose(s, sentence);
}

static void on_sync_note_write(void *server)
{
    struct standby_server *s = server;

    enter_main();
    if (s->job.err.status && !s->write_err.status)
        log_line_error("whether the standby is in sync is not written, and replies wait: %s",
                       s->job.err.text);
    s->write_err = s->job.err;
    sync_note_write(&s->sync, s->job.err.status, clock_mono_ms());
    if (s->sync.state != SYNC_IN)
        return;
    log_line_info("standby %.63s is in sync", s->name);
    order_shards(s, SHARD_STANDBY_IN_SYNC);
}

/* A standby that never came, or has gone, is not waited for: another one may follow. */
static void check_follower(struct standby_server *s, uint64_t now_ms) ON_MAIN
{
    const struct sync_shard *shards = standby_shards_query(s->shards);
    uint32_t n = 0;

    if (!s->is_followed)
        return;
    for (uint32_t i = 0; i < s->n_shards; i++)
        n += shards[i].is_connected;
    if (n == s->n_shards)
        s->was_connected = true;
    else if (s->sync.state == SYNC_OUT &&
             (s->was_connected ||
              (!s->follower_connection && now_ms - s->followed_ms > CONNECT_MS))) {
        log_line_warn("standby %.63s has gone", s->name);
        s->is_followed = false;
        order_shards(s, SHARD_STANDBY_END);
    }
}

/* A standby that is lost may have been promoted, as where this psd was stopped or cut off: so it is asked before this
 * one goes on alone, and from then on again and again while there is none. */
static bool asks_whether_it_is_promoted(struct standby_server *s, uint64_t now_ms) ON_MAIN
{
    bool is_in = s->sync.state == SYNC_IN;

    if (s->coordination || !s->terms.peer[0] || s->request.step != FOLLOW_NONE ||
        now_ms - s->asked_ms < ASK_EVERY_MS)
        return false;
    if (is_in ? !sync_seems_lost(&s->sync, standby_shards_query(s->shards), s->n_shards, now_ms)
              : s->is_followed || s->sync.state != SYNC_OUT)
        return false;
    start_query(s);
    return true;
}

static void tick_sync(struct standby_server *s, uint64_t now_ms) ON_MAIN
{
    if (s->job.is_running || s->is_claiming || asks_whether_it_is_promoted(s, now_ms))
        return;
    switch (sync_step(&s->sync, standby_shards_query(s->shards), s->n_shards,
                      s->is_followed && s->terms.ack != TERMS_ACK_NO, now_ms)) {
    case SYNC_NOTHING:
        break;
    case SYNC_CLOSE_GATES:
        order_shards(s, SHARD_STANDBY_CLOSE_GATE);
        break;
    case SYNC_OPEN_GATES:
        log_line_warn("standby %.63s is out of sync: replies do not wait for it", s->name);
        order_shards(s, SHARD_STANDBY_OPEN_GATE);
        break;
    case SYNC_WRITE_YES:
        standby_server_write_sync(s, true);
        break;
    case SYNC_WRITE_NO:
        standby_server_write_sync(s, false);
        break;
    }
}

/* Awaited: the peer is asked again and again; without it only where a person, or a write that failed, says so. */
static void tick_waiting(struct standby_server *s, uint64_t now_ms) ON_MAIN
{
    if (s->state != SERVER_AWAITED || s->job.is_running || s->is_foreign ||
        s->request.step > FOLLOW_LEAVING)
        return;
    if (now_ms - s->asked_ms < ASK_EVERY_MS)
        return;
    s->asked_ms = now_ms;
    if (s->was_in_sync)
        start_query(s);
    else
        begin_term(s);
}

void standby_server_tick(struct standby_server *s)
{
    const uint64_t now_ms = clock_mono_ms();

    connection_set_sweep(&s->connections, uv_now(s->config.loop));
    if (s->is_closed || s->state == SERVER_OFF || s->state == SERVER_DEPOSED)
        return;
    check_term(s);
    standby_server_check_claim(s);
    if (s->state == SERVER_SERVING) {
        tick_sync(s, now_ms);
        check_follower(s, now_ms);
    }
    tick_follow(s);
    tick_waiting(s, now_ms);
}

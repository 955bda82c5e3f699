/*
 * Whom this primary is followed by: FOLLOW, from the question to its answer
 * (leaving -> holding -> deciding -> beginning -> answered).
 */
#include "server/standby_server_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "proto/message_replication.h"
#include "server/replication/arithmetic.h"
#include "server/standby_settings.h"

#define LEFT_AFTER_MS \
    10000u /* a standby that is silent for so long leaves its place to another one */
#define COPIES_AT_ONCE 3u
#define COPIES_IN_A_ROW_MS 600000u  /* one that comes later is the first again */
#define REST_MS UINT64_C(10000)     /* after those at once; twice as long after each, */
#define REST_MS_MAX UINT64_C(60000) /* but not longer */

/* --- copies in a row --- */

/* From its last copy until the next one may begin. A standby whose copies come to nothing asks for one after the
 * other: it finds differing rows, or is a psd that does not know this one's records. */
static uint64_t copy_rest_ms(const struct standby_server *s) ON_MAIN
{
    uint64_t rest_ms = REST_MS;

    if (s->copies.n < COPIES_AT_ONCE ||
        strcmp(s->copies.address, s->request.asked.address) != 0)
        return 0;
    for (uint32_t n = COPIES_AT_ONCE; n < s->copies.n; n++)
        rest_ms = rest_ms < REST_MS_MAX / 2 ? 2 * rest_ms : REST_MS_MAX;
    return rest_ms;
}

static void note_copy(struct standby_server *s) ON_MAIN
{
    const char *address = s->request.asked.address;
    const uint64_t now_ms = clock_mono_ms();

    if (strcmp(s->copies.address, address) != 0 ||
        now_ms > s->copies.begun_ms + copy_rest_ms(s) + COPIES_IN_A_ROW_MS)
        s->copies.n = 0;
    snprintf(s->copies.address, sizeof s->copies.address, "%s", address);
    s->copies.n++;
    s->copies.begun_ms = now_ms;
}

/* --- the answer --- */

void standby_server_end_follow(struct standby_server *s)
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
    arithmetic_fingerprint(reply->cpu);
    if (!reply->status) {
        reply->action = q->action;
        reply->begun = s->begun_with;
        reply->patience_ms = (uint32_t)s->config.settings->standby_patience_ms;
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
    standby_server_end_follow(s);
}

/* Else it goes on by itself once something is over. */
static bool is_for_a_person(int status)
{
    return status == PS_ECLUSTER || status == PS_ENOCHECKPOINT;
}

/* Operators are told of it as long as it asks. False: just so it was refused before. */
static bool note_refused(struct standby_server *s) ON_MAIN
{
    const struct follower_request *q = &s->request;
    const uint64_t now_ms = clock_mono_ms();
    const bool is_new =
        !s->refused.why[0] || now_ms > s->refused.asked_ms + STANDBY_SERVER_REFUSED_FOR_MS;
    const bool is_same = strcmp(s->refused.address, q->asked.address) == 0;
    const bool is_known = !is_new && is_same && strcmp(s->refused.why, q->err.text) == 0;

    if (!is_for_a_person(q->err.status) ||
        (!is_new && !is_same && s->refused.has_the_data && !q->has_the_data))
        return true; /* who has the only copy is not forgotten for another one */
    if (!is_known)
        s->refused.since_ms = now_ms;
    s->refused.asked_ms = now_ms;
    s->refused.has_the_data = q->has_the_data;
    snprintf(s->refused.address, sizeof s->refused.address, "%s", q->asked.address);
    snprintf(s->refused.why, sizeof s->refused.why, "%s", q->err.text);
    return !is_known;
}

static void refuse_follow(struct standby_server *s) ON_MAIN
{
    char more[64];

    if (s->request.connection && note_refused(s) &&
        log_line_limit_pass(&s->limit, "refused", 0, uv_now(s->config.loop), more))
        log_line_warn("standby %.63s is refused: %s%s", s->request.name, s->request.err.text,
                      more);
    answer_follow(s);
}

/* A copy from which the log leads nowhere would be followed by another one, without end. */
static int check_copy(struct standby_server *s)
{
    for (uint32_t i = 0; i < s->n_shards; i++) {
        const uint64_t lost = atomic_load(&standby_shards_view(s->shards, i)->lost_through);

        if (s->request.first[i] >= lost)
            continue;
        standby_files_close(s->config.files, &s->files);
        return err_set(
            &s->job.err, PS_ENOCHECKPOINT,
            "shard %" PRIu32 ": the log has lost record %" PRIu64
            ", and the newest restore point needs it: psctl checkpoint makes another one",
            i, lost);
    }
    return 0;
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
                s->config.files, standby_server_data_dir(s), s->terms.timeline, i,
                q->keep[i] + 1, atomic_load(&standby_shards_view(s->shards, i)->lost_through),
                &has, &s->job.err);
        if (!has)
            q->action = FOLLOW_COPY;
    }
    if (!status && q->action == FOLLOW_COPY)
        status =
            standby_files_open(s->config.files, standby_server_data_dir(s), s->terms.timeline,
                               s->n_shards, &s->files, q->first, &s->job.err);
    if (!status && q->action == FOLLOW_COPY)
        status = check_copy(s);
    if (!status)
        status =
            terms_write(s->config.files, standby_server_data_dir(s), &s->terms, &s->job.err);
    s->job.err.status = status;
}

static void on_decided(void *server)
{
    struct standby_server *s = server;
    struct follower_request *q = &s->request;

    enter_main();
    q->err = s->job.err;
    if (q->err.status || !q->connection) {
        standby_files_close(s->config.files, &s->files);
        refuse_follow(s);
        return;
    }
    q->step = FOLLOW_BEGINNING;
    if (q->action == FOLLOW_COPY) {
        standby_copy_begin(s->copy, q->connection, &s->files);
        standby_server_ask_shards(s, SHARD_STANDBY_HOLD, q->first);
    } else {
        standby_server_ask_shards(s, SHARD_STANDBY_BEGIN, q->keep);
    }
}

static void note_arithmetic(struct standby_server *s) ON_MAIN
{
    char ours[ARITHMETIC_MAX], note[STANDBY_SETTINGS_NOTE_MAX] = "";

    arithmetic_fingerprint(ours);
    if (standby_settings_arithmetic_differs(ours, s->request.asked.cpu, note) &&
        strcmp(note, s->note) != 0)
        log_line_warn("standby %.63s: %s", s->request.name, note);
    snprintf(s->note, sizeof s->note, "%s", note);
}

static void begin_following(struct standby_server *s) ON_MAIN
{
    struct follower_request *q = &s->request;
    const bool has_own_name = strcmp(q->name, q->asked.address) != 0;

    if (strcmp(s->refused.address, q->asked.address) == 0)
        s->refused.why[0] = '\0';
    if (q->action == FOLLOW_GO_ON) {
        s->is_followed = true;
        s->was_connected = false;
        s->follower_connection = q->connection;
        s->followed_ms = clock_mono_ms();
        s->sync.ends = false;
        snprintf(s->name, sizeof s->name, "%s", q->name);
        note_arithmetic(s);
    } else {
        note_copy(s);
    }
    log_line_info("standby %.63s%s%.100s %s", q->name, has_own_name ? ", " : "",
                  has_own_name ? q->asked.address : "",
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
    s->terms.is_durable = s->config.settings->durability == WAL_FSYNC;
    s->terms.in_sync = false;
    snprintf(s->terms.peer, sizeof s->terms.peer, "%s", q->asked.address);
    s->asked_to_follow_ms = q->since_ms;
    standby_server_start_job(s, decide, on_decided);
}

/* It has what this psd acknowledged and has lost, or a greater term. A start is not over before the standby says that
 * it is the primary: if it dies before it has noted that, it comes back, and is told again. */
static void hand_over(struct standby_server *s) ON_MAIN
{
    struct follower_request *q = &s->request;
    char sentence[256];

    snprintf(sentence, sizeof sentence,
             "standby %.100s has more than this psd's log, and becomes the primary",
             q->asked.address);
    q->action = FOLLOW_TAKE_OVER;
    answer_follow(s);
    if (s->state == SERVER_SERVING) {
        standby_server_depose(s, sentence);
        return;
    }
    if (!s->is_given_over)
        log_line_warn("%s", sentence);
    s->is_given_over = true;
}

static bool has_more(const uint64_t *last, const uint64_t *keep, uint32_t n)
{
    while (n > 0 && last[n - 1] <= keep[n - 1])
        n--;
    return n > 0;
}

/* It has heard of this psd's disk since its own start. */
static bool knows_stored(const struct follow *asked)
{
    uint32_t i = 0;

    while (i < asked->n_shards && !asked->stored[i])
        i++;
    return i < asked->n_shards;
}

/* What the standby has more was acknowledged, or may have been: with fsync only if this directory is an older copy,
 * which a standby that was restarted cannot say. It takes over then if it lacks nothing. */
static bool is_to_take_over(const struct standby_server *s) ON_MAIN
{
    const struct follower_request *q = &s->request;
    const bool has_all = !has_more(q->last, q->keep, s->n_shards);

    return has_more(q->asked.last, q->keep, s->n_shards) &&
           (!s->log_has_all || (has_all && !knows_stored(&q->asked)));
}

/* The term of which this standby will be. */
static void on_term_begun(struct standby_server *s, const struct err *err) ON_MAIN
{
    s->request.err = *err;
    if (err->status)
        refuse_follow(s);
    else if (!s->is_closed)
        start_deciding(s);
}

/* What the standby knows of this psd in the same reign is newer than what is here: a term that this psd had begun, or
 * a record that was on its disk. Neither is lost by a crash, nor by a power cut. */
static bool is_older_copy(const struct standby_server *s) ON_MAIN
{
    const struct follower_request *q = &s->request;
    const uint64_t theirs = terms_last(&q->theirs), mine = terms_last(&s->terms);

    if (s->accepts_loss || q->theirs.history != s->terms.history ||
        q->asked.n_shards != s->n_shards || !terms_is_one_reign(theirs, mine))
        return false;
    for (uint32_t i = 0; i < s->n_shards; i++)
        if (q->asked.stored[i] > q->keep[i] && q->asked.last[i] > q->keep[i])
            return true;
    return theirs > mine;
}

/* Who follows would give up what was acknowledged, and who takes over might lack what another copy has: a person
 * decides. */
static void refuse_older(struct standby_server *s) ON_MAIN
{
    struct follower_request *q = &s->request;

    if (s->state != SERVER_SERVING) {
        standby_server_note_older(s, terms_last(&q->theirs));
        err_set(&q->err, PS_EMOVED,
                "this psd's data directory is an older copy than %.80s has, and it does not "
                "serve: promote that one (psctl promote), or put the newer directory back",
                q->asked.address);
    } else {
        err_set(&q->err, PS_ECLUSTER,
                "this psd serves from an older copy of its data directory than %.80s has: "
                "stop it and promote that one (psctl promote); else give that one an empty "
                "--data-dir",
                q->asked.address);
    }
    refuse_follow(s);
}

/* The shards keep their logs now, and have said where these end. */
static void classify(struct standby_server *s) ON_MAIN
{
    struct follower_request *q = &s->request;
    bool is_common;

    standby_shards_last(s->shards, q->last);
    is_common = terms_common(&s->terms, &q->theirs, q->last, q->asked.last, q->keep);
    q->action = is_common ? FOLLOW_GO_ON : FOLLOW_COPY;
    if (is_older_copy(s))
        refuse_older(s);
    else if (is_common && terms_last(&q->theirs) > terms_last(&s->terms))
        hand_over(s);
    else if (s->state == SERVER_SERVING)
        start_deciding(s);
    else if (is_common && !s->accepts_loss && is_to_take_over(s))
        hand_over(s);
    else
        standby_server_begin_term(s, on_term_begun);
}

/* The next step. */
void standby_server_go_on_following(struct standby_server *s)
{
    switch (s->request.step) {
    case FOLLOW_HOLDING:
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

/* One of the same address, which goes on: two that took turns would never be in sync. One that has begun anew has
 * closed its connections, or is silent. */
static bool follows_already(struct standby_server *s) ON_MAIN
{
    return s->is_followed && s->was_connected && s->follower_connection &&
           s->follower_connection != s->request.connection &&
           strcmp(s->terms.peer, s->request.asked.address) == 0 &&
           !sync_seems_lost(&s->sync, standby_shards_query(s->shards), s->n_shards,
                            clock_mono_ms());
}

/* Out of sync, and silent on connections that stand: its machine hangs, or is gone without a word. */
static bool has_left(struct standby_server *s) ON_MAIN
{
    const struct sync_shard *shards = standby_shards_query(s->shards);
    const uint64_t now_ms = clock_mono_ms();
    bool is_silent = false;

    for (uint32_t i = 0; i < s->n_shards; i++)
        is_silent = is_silent || now_ms > shards[i].heard_ms + LEFT_AFTER_MS;
    return is_silent && s->sync.state == SYNC_OUT && now_ms > s->followed_ms + LEFT_AFTER_MS;
}

static bool has_place(struct standby_server *s, struct err *err) ON_MAIN
{
    if (!s->is_followed || strcmp(s->terms.peer, s->request.asked.address) == 0 || has_left(s))
        return true;
    err_set(err, -EBUSY, "%.100s is the standby, and there is one at a time", s->terms.peer);
    return false;
}

/* It does not know yet whose standby may come. */
static bool is_starting(const struct standby_server *s)
{
    return s->state == SERVER_OFF || (s->state != SERVER_SERVING && !s->terms.peer[0]);
}

static int refuse_early(const struct standby_server *s, struct err *err) ON_MAIN
{
    if (s->state == SERVER_OFF || !standby_server_is_waiting(s, err))
        err_set(err, PS_ESTOPPING, "the primary is starting, and reads its data");
    return err->status;
}

/* A psd that had a standby has it in TERMS, unless its disk was lost: it would be copied over what it has lost. With
 * --coord a start begins a history of its own, and writes it: only the standby that it names tells. */
static bool has_lost_its_data(const struct standby_server *s) ON_MAIN
{
    const struct follow *asked = &s->request.asked;
    bool has_records = false;

    for (uint32_t i = 0; i < s->n_shards; i++)
        has_records = has_records || asked->last[i];
    return !s->had_standby && asked->history && asked->history != s->terms.history &&
           has_records;
}

/* It has the only copy. */
static int refuse_who_has_the_data(struct standby_server *s, struct err *err) ON_MAIN
{
    const char *address = s->request.asked.address;

    s->request.has_the_data = true;
    return err_set(
        err, PS_ECLUSTER,
        "primary %.48s has no data of this pair, and standby %.48s has it: if the "
        "primary's disk is lost, stop it and psctl promote --server %.48s; else give the "
        "standby an empty --data-dir",
        s->config.own_address, address, address);
}

/* 0, or why this one may not follow now. */
static int check_follow(struct standby_server *s, struct err *err) ON_MAIN
{
    const struct follower_request *q = &s->request;
    int status;

    if (!standby_server_data_dir(s)[0])
        return err_set(err, PS_ESETTING,
                       "a primary without --data-dir has no log that a standby could follow");
    if (s->state == SERVER_DEPOSED)
        return err_set(err, PS_ESTOPPING, "this psd is not the primary any more, and ends");
    if (s->is_closed)
        return err_set(err, PS_ESTOPPING, "%s", status_text(PS_ESTOPPING));
    if (is_starting(s))
        return refuse_early(s, err);
    if (s->switching.step != SWITCH_NONE)
        return err_set(err, -EBUSY, "this psd hands over to its standby");
    if (s->is_foreign)
        return err_set(err, PS_ESTOPPING, "this psd has not the group's data");
    if (!q->asked.history && clock_mono_ms() < s->copies.begun_ms + copy_rest_ms(s))
        return err_set(err, -EBUSY,
                       "the last %" PRIu32
                       " copies were of no use before long, and the next one "
                       "begins %" PRIu64 " s after the last: the standby's log has the reason",
                       s->copies.n, copy_rest_ms(s) / 1000);
    status = standby_settings_check(s->config.settings, s->config.welcome, &q->asked, err);
    if (status)
        return status;
    if (has_lost_its_data(s))
        return refuse_who_has_the_data(s, err);
    if (strcmp(q->asked.address, s->config.own_address) == 0)
        return err_set(err, PS_ECLUSTER,
                       "the standby calls itself %.100s, as this primary does: give each an "
                       "--advertise of its own",
                       q->asked.address);
    if (follows_already(s))
        return err_set(
            err, -EBUSY,
            "%.100s follows already: does another standby have the same --advertise?",
            q->asked.address);
    if (!has_place(s, err))
        return err->status;
    if (s->state != SERVER_SERVING && strcmp(s->terms.peer, q->asked.address) != 0)
        return err_set(err, PS_ESTOPPING, "%.100s was the standby, and is awaited",
                       s->terms.peer);
    return 0;
}

/* The standby may have taken over between its question and the loss (standby_server_claim.c). */
static bool asked_before_the_loss(const struct standby_server *s) ON_MAIN
{
    return s->claim_lost_ms &&
           s->request.since_ms <= s->claim_lost_ms + STANDBY_SERVER_AGREEMENT_MS &&
           s->sync.state != SYNC_OUT;
}

/* The standby of before, most often the same one, is not waited for any more: then the new one begins. */
void standby_server_tick_follow(struct standby_server *s)
{
    if (s->request.step != FOLLOW_LEAVING || standby_server_is_busy(s) ||
        standby_shards_is_busy(s->shards))
        return;
    if (asked_before_the_loss(s)) {
        err_set(&s->request.err, -EBUSY,
                "the coordination service has just lost this psd's claim: ask again");
        refuse_follow(s);
        return;
    }
    if (s->state != SERVER_SERVING && s->state != SERVER_AWAITED)
        return;
    if (!has_place(s, &s->request.err)) { /* no more: the one that was silent is back */
        refuse_follow(s);
        return;
    }
    s->sync.ends = true;
    if (s->sync.state != SYNC_OUT)
        return;
    if (s->is_followed && strcmp(s->terms.peer, s->request.asked.address) != 0)
        log_line_warn("standby %.100s is silent, and leaves its place to %.100s", s->terms.peer,
                      s->request.asked.address);
    s->is_followed = false;
    standby_copy_drop(s->copy, NULL);
    s->request.step = FOLLOW_HOLDING;
    standby_server_ask_shards(s, SHARD_STANDBY_HOLD, NULL);
}

/* A connection whose FOLLOW waits is not read from, so a standby that has given up waiting asks over another one. Until
 * the primary has read the end of the first, this one gets no answer, but it counts as asked. */
static int refuse_another(struct standby_server *s, struct request *r) ON_MAIN
{
    struct follow_reply *refusal = memory_alloc(sizeof *refusal);
    struct follow *asked = memory_alloc(sizeof *asked);
    int status = message_read_follow(r->header, r->head, r->body, r->body_bytes, asked);

    refusal->status = -EBUSY;
    snprintf(refusal->text, sizeof refusal->text, "another FOLLOW is being answered");
    if (!status && strcmp(s->terms.peer, asked->address) == 0)
        s->asked_to_follow_ms = clock_mono_ms();
    if (!status)
        status = send_follow_reply(r->connection, r->header->request_id, refusal);
    free(asked);
    free(refusal);
    return status;
}

int standby_server_receive_follow(struct standby_server *s, struct request *r)
{
    struct follower_request *q = &s->request;
    int status;

    if (q->step != FOLLOW_NONE)
        return refuse_another(s, r);
    status = message_read_follow(r->header, r->head, r->body, r->body_bytes, &q->asked);
    if (!status)
        status = terms_take(&q->theirs, q->asked.history ? q->asked.history : 1, q->asked.terms,
                            q->asked.n_terms, q->asked.n_shards);
    if (status)
        return status;
    q->theirs.history = q->asked.history;
    q->asked.terms = NULL;
    if (strcmp(s->terms.peer, q->asked.address) == 0)
        s->asked_to_follow_ms = clock_mono_ms();
    q->connection = r->connection;
    q->request_id = r->header->request_id;
    q->since_ms = clock_mono_ms();
    q->err = (struct err){ 0 };
    q->has_the_data = false;
    snprintf(q->name, sizeof q->name, "%s", r->connection->hello.name);
    connection_hold(r->connection);
    if (check_follow(s, &q->err)) {
        const bool has_failed = strcmp(s->terms.peer, q->asked.address) == 0;

        refuse_follow(s);
        if (has_failed)
            standby_server_refuse_hand_over(s);
    } else {
        q->step = FOLLOW_LEAVING;
        s->rises_ms = 0;
    }
    standby_server_tick_follow(s);
    return 0;
}

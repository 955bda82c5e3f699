/*
 * In the order of a connection's life:
 *
 *     start -> dial -> on_connected -> on_welcome -> fetch -> on_records -> fetch ... -> on_closed -> dial
 */
#include "server/shard_follower.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "proto/channel.h"
#include "proto/connector.h"
#include "proto/message_replication.h"
#include "server/replication/follower.h"

#define FETCHES_MAX 2u
#define REPORT_MS 1000u      /* for the primary to answer that it has heard */
#define PAUSE_MS 1000u       /* ticks that are further apart: this psd stood still */
#define HEAD_BYTES_MAX 4096u /* of a reply, beside its records */

struct shard_follower {
    struct shard_follower_config config;
    struct shard_follower_primary primary;
    struct follower follower;
    enum shard_follower_state state;
    struct connector *connector; /* owned; NULL: no connection */
    struct bytes out;            /* a frame being made; empty in between */
    bool is_welcome, is_stuck;   /* the log takes no records */
    uint64_t stuck_ms;           /* monotonic: since then */
    bool is_over;                /* handed over: nothing is fetched any more */
    uint32_t n_fetches;          /* under way */
    uint64_t request_id;
    uint64_t sent_next, sent_durable; /* by the last fetch */
    uint64_t sent_ms;                 /* the primary's clock, as it said last */
    uint64_t asked_ms;                /* monotonic: of the oldest question without an answer */
    uint64_t
        fetched_ms[FETCHES_MAX]; /* monotonic: of the questions under way, the oldest first */
    uint64_t answered_ms;        /* monotonic: of the newest question that was answered */
    uint64_t ticked_ms;          /* the tick before */
    uint32_t n_failed;           /* attempts in a row */
    uint64_t retry_ms;
    uint64_t durable;
    bool
        is_reporting; /* the primary is told that a row differs: its answer ends the connection */
    char useless[200]; /* why the shard is not the primary's, and never will be; "": it is */
    char refusal[200]; /* why this side ends the connection; "": it does not */
    uv_mutex_t lock;
    struct shard_follower_view view; /* under the lock */
};

/* --- what others see --- */

static void set_why(struct shard_follower *f, const char *why)
{
    uv_mutex_lock(&f->lock);
    snprintf(f->view.why, sizeof f->view.why, "%.199s", why);
    uv_mutex_unlock(&f->lock);
}

static void update_view(struct shard_follower *f) ON_SHARD
{
    struct shard_follower_view *v = &f->view;

    f->durable = shard_wal_durable(f->config.wal);
    uv_mutex_lock(&f->lock);
    v->state = f->state;
    v->received = f->follower.received;
    v->applied = f->follower.applied;
    v->is_drained = follower_n_waiting(&f->follower) == 0;
    v->durable = f->durable;
    v->is_exact = follower_is_exact(&f->follower);
    if (v->applied >= v->appended)
        v->behind_ms = 0;
    else if (!v->behind_ms)
        v->behind_ms = clock_mono_ms();
    uv_mutex_unlock(&f->lock);
}

/* The primary waits for this standby for a while after its newest question, and then goes on alone. So an answer says
 * nothing about the time behind that: it may have been read late, by a psd that stood still. */
static bool is_outdated(const struct shard_follower *f)
{
    return f->answered_ms && clock_mono_ms() > f->answered_ms + f->primary.patience_ms;
}

static void note_reply(struct shard_follower *f, const struct fetch_reply *reply)
{
    f->sent_ms = reply->sent_ms;
    uv_mutex_lock(&f->lock);
    f->view.heard_ms = clock_mono_ms();
    f->view.appended = reply->appended;
    f->view.stored = reply->durable;
    f->view.was_silent = is_outdated(f);
    f->view.is_in_sync = reply->in_sync && !f->view.was_silent;
    f->view.is_handed_over = reply->hands_over;
    uv_mutex_unlock(&f->lock);
}

void shard_follower_see(struct shard_follower *f, struct shard_follower_view *ret)
{
    uv_mutex_lock(&f->lock);
    *ret = f->view;
    uv_mutex_unlock(&f->lock);
}

static void note_silence(struct shard_follower *f)
{
    if (!is_outdated(f) || f->is_over)
        return;
    uv_mutex_lock(&f->lock);
    f->view.is_in_sync = false;
    f->view.was_silent = true;
    uv_mutex_unlock(&f->lock);
}

/* --- the end of a connection --- */

static void hang_up(struct shard_follower *f) ON_SHARD
{
    note_silence(f);
    f->answered_ms = 0;
    connector_drop(f->connector);
    f->connector = NULL;
    f->is_welcome = false;
    f->n_fetches = 0;
}

static void give_up(struct shard_follower *f, const char *why, bool needs_copy) ON_SHARD;

/* Tried again, a little later. A connection that has fetched was the session's: the main thread begins another. */
static void lose(struct shard_follower *f, const char *why) ON_SHARD
{
    if (f->state == SHARD_FOLLOWER_FETCHING) {
        give_up(f, f->is_reporting ? f->useless : why, f->is_reporting);
        return;
    }
    hang_up(f);
    f->retry_ms = clock_mono_ms() + connector_backoff_ms(f->n_failed, f->request_id);
    f->n_failed++;
    set_why(f, why);
    update_view(f);
}

/* What the main thread decides about. */
static void give_up(struct shard_follower *f, const char *why, bool needs_copy)
{
    hang_up(f);
    f->state = SHARD_FOLLOWER_FAILED;
    f->is_reporting = false;
    if (needs_copy && why != f->useless)
        snprintf(f->useless, sizeof f->useless, "%.199s", why);
    uv_mutex_lock(&f->lock);
    f->view.needs_copy = needs_copy;
    uv_mutex_unlock(&f->lock);
    set_why(f, why);
    update_view(f);
}

/* --- fetching --- */

static int send_out(struct shard_follower *f)
{
    return channel_send(connector_channel(f->connector), &f->out);
}

/* The primary has said that there is more. */
static bool is_behind(const struct shard_follower *f) ON_SHARD
{
    return f->view.appended > f->follower.received; /* this thread alone writes it */
}

static void fetch(struct shard_follower *f) ON_SHARD
{
    const struct fetch m = {
        .term = f->primary.term,
        .next = f->follower.received + 1,
        .durable = f->durable,
        .applied = f->follower.applied,
        .heard_ms = f->sent_ms,
        .wait_ms = f->primary.wait_ms ? f->primary.wait_ms : SHARD_FOLLOWER_WAIT_MS,
        .max_bytes = is_behind(f) ? SHARD_FOLLOWER_CATCH_UP_BYTES : SHARD_FOLLOWER_FETCH_BYTES
    };
    int status = message_write_fetch(&f->out, ++f->request_id, &m);

    if (!status)
        status = send_out(f);
    if (status) {
        bytes_deinit(&f->out);
        lose(f, status_text(status));
        return;
    }
    f->fetched_ms[f->n_fetches] = clock_mono_ms();
    if (!f->n_fetches++)
        f->asked_ms = f->fetched_ms[0];
    f->sent_next = m.next;
    f->sent_durable = m.durable;
}

/* The first fetch asks. A second one tells, or asks for what comes behind the first one's answer: so the primary reads
 * one while this standby replays the other. */
static bool has_to_fetch(const struct shard_follower *f) ON_SHARD
{
    bool has_progress = f->durable > f->sent_durable || f->follower.received + 1 > f->sent_next;

    if (!f->is_welcome || f->is_stuck || f->is_reporting || f->is_over || f->follower.unknown ||
        f->n_fetches >= FETCHES_MAX)
        return false;
    return !f->n_fetches || has_progress || is_behind(f);
}

static void fetch_more(struct shard_follower *f) ON_SHARD
{
    while (has_to_fetch(f))
        fetch(f); /* or the connection is lost */
}

/* A row differs: the primary hears of it first, so that its operators do, too. Nothing is acknowledged any more. */
static void report_difference(struct shard_follower *f, const char *sentence) ON_SHARD
{
    struct fetch m = { .term = f->primary.term, .next = f->sent_next };
    int status;

    snprintf(m.differs, sizeof m.differs, "%.199s", sentence);
    snprintf(f->useless, sizeof f->useless, "%.199s", sentence);
    uv_mutex_lock(&f->lock);
    f->view.is_in_sync = false;
    uv_mutex_unlock(&f->lock);
    set_why(f, sentence);
    status = message_write_fetch(&f->out, ++f->request_id, &m);
    if (!status)
        status = send_out(f);
    if (status) {
        bytes_deinit(&f->out);
        give_up(f, sentence, true);
        return;
    }
    f->is_reporting = true;
    f->asked_ms = clock_mono_ms();
}

/* Replays what has come. False: the shard is of no use any more. */
static bool follow(struct shard_follower *f) ON_SHARD
{
    struct err err = { 0 };
    int status = follower_run(&f->follower, f->config.now_ms(f->config.owner), &err);
    const char *failure = shard_wal_failure(f->config.wal);
    bool was_stuck = f->is_stuck;

    f->is_stuck = status == -EAGAIN;
    if (f->is_stuck) {
        f->stuck_ms = was_stuck ? f->stuck_ms : clock_mono_ms();
        char why[200];

        snprintf(why, sizeof why, "this standby's log takes no records: %.150s",
                 failure[0] ? failure : "its disk is behind, or memory is short");
        set_why(f, why);
    } else if (was_stuck) {
        set_why(f, "");
    }
    if (!status || f->is_stuck)
        return true;
    log_line_error("shard %" PRIu32 ": %s", f->config.shard_number, err.text);
    if (f->follower.differs && f->is_welcome)
        report_difference(f, err.text);
    else
        give_up(f, err.text, true);
    return false;
}

/* The connection's end follows. */
static int refuse(struct shard_follower *f, int status, const char *why)
{
    snprintf(f->refusal, sizeof f->refusal, "%.199s", why);
    return status;
}

/* It has another term, or it has not got what is asked for any more: the main thread asks it what to do. */
static int on_refusal(struct shard_follower *f, const struct fetch_reply *reply) ON_SHARD
{
    char why[200];

    snprintf(why, sizeof why, "the primary refuses: %.170s",
             reply->text[0] ? reply->text : status_text(reply->status));
    uv_mutex_lock(&f->lock);
    f->view.greater_term = reply->term > f->primary.term ? reply->term : 0;
    uv_mutex_unlock(&f->lock);
    give_up(f, why, false);
    return UV_ECANCELED;
}

/* It was not acknowledged, and a copy would lead to it again: what is here stays, and the main thread tries again. */
static int refuse_unknown(struct shard_follower *f) ON_SHARD
{
    char why[200];

    snprintf(why, sizeof why,
             "record %" PRIu64 " of the primary is of type %" PRIu32
             ", which this psd does not know: the primary is a newer one; upgrade this standby",
             f->follower.unknown, f->follower.unknown_type);
    return refuse(f, PS_EVERSION, why);
}

static int on_records(struct shard_follower *f, const struct frame_header *header,
                      const uint8_t *head, const uint8_t *body) ON_SHARD
{
    struct fetch_reply reply;
    struct err err = { 0 };
    int status = message_read_fetch_reply(header, head, body, header->body_bytes, &reply);
    const bool was_over = f->is_over;

    if (status)
        return refuse(f, status, "the primary's answer makes no sense");
    if (f->is_reporting)
        return reply.status ? refuse(f, UV_EOF, f->useless) : 0;
    if (reply.status)
        return on_refusal(f, &reply);
    if (reply.term != f->primary.term || !f->n_fetches)
        return refuse(f, PS_EPROTO, "the primary answers with another term");
    f->answered_ms = f->fetched_ms[0];
    f->fetched_ms[0] = f->fetched_ms[1];
    f->n_fetches--;
    f->asked_ms = clock_mono_ms();
    f->n_failed = 0;
    if (reply.n_records)
        status = follower_add(&f->follower, reply.first, reply.n_records, reply.records,
                              reply.record_bytes, &err);
    if (!status && reply.audit_bytes)
        status = follower_audit(&f->follower, reply.audit, reply.audit_bytes);
    if (status)
        return refuse(f, status, err.text[0] ? err.text : "the primary's audit is none");
    f->is_over = f->is_over || reply.hands_over;
    note_reply(f, &reply);
    fetch_more(f); /* acknowledges them */
    if (f->connector && follow(f)) {
        update_view(f);
        fetch_more(f);
    }
    if (f->connector && f->follower.unknown)
        return refuse_unknown(f);
    /* Once: a second fetch that was under way is answered so, too. */
    if (f->is_over && !was_over && f->primary.on_handed_over)
        f->primary.on_handed_over(f->primary.owner);
    return f->connector ? 0 : UV_ECANCELED;
}

/* --- the connection --- */

static int on_welcome(struct shard_follower *f, const struct frame_header *header,
                      const uint8_t *head) ON_SHARD
{
    struct hello_reply *reply = memory_alloc(sizeof *reply);
    int status = header->type == FRAME_HELLO_REPLY
                     ? message_read_hello_reply(header, head, reply)
                     : PS_EPROTO;
    char why[200];

    snprintf(why, sizeof why, "%.190s",
             status           ? "it is no psd that a standby can follow"
             : reply->text[0] ? reply->text
                              : status_text(reply->status));
    status = status ? status : reply->status;
    free(reply);
    if (status)
        return refuse(f, status, why);
    f->is_welcome = true;
    f->state = SHARD_FOLLOWER_FETCHING;
    set_why(f, "");
    update_view(f);
    fetch_more(f);
    return f->connector ? 0 : UV_ECANCELED;
}

static void on_connected(void *owner)
{
    struct shard_follower *f = owner;
    int status;

    enter_shard();
    status = message_write_hello(&f->out, ++f->request_id, &f->primary.hello);
    if (!status)
        status = send_out(f);
    if (status) {
        bytes_deinit(&f->out);
        lose(f, status_text(status));
        return;
    }
    f->asked_ms = clock_mono_ms();
}

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct shard_follower *f = owner;

    enter_shard();
    if (!f->is_welcome)
        return on_welcome(f, header, head);
    if (header->type != FRAME_FETCH_REPLY)
        return refuse(f, PS_EPROTO, "the primary answers what was not asked");
    return on_records(f, header, head, body);
}

static void on_closed(void *owner, int why)
{
    struct shard_follower *f = owner;

    enter_shard();
    f->connector = NULL;
    lose(f, f->refusal[0] ? f->refusal : connector_why(why));
}

static const struct connector_events connector_events = { on_connected, on_frame, on_closed };

static void dial(struct shard_follower *f) ON_SHARD
{
    int status = connector_new(f->config.channels, &f->primary.address, &connector_events, f,
                               &f->connector);

    f->refusal[0] = '\0';
    if (status) {
        f->connector = NULL;
        lose(f, connector_why(status));
        return;
    }
    connector_set_frame_max(f->connector, (uint32_t)WAL_RECORD_BYTES_MAX + HEAD_BYTES_MAX);
    f->asked_ms = clock_mono_ms();
}

/* --- for the shard's thread --- */

static int reserve(void *owner, size_t n_bytes)
{
    struct shard_follower *f = owner;
    int status;

    enter_shard();
    status = shard_wal_reserve_copy(f->config.wal, n_bytes);
    return status == -ENOMEM ? -EAGAIN
                             : status; /* nothing has been replayed: it is tried again */
}

static uint64_t append(void *owner, const struct wal_record *record)
{
    struct shard_follower *f = owner;

    enter_shard();
    return shard_wal_copy(f->config.wal, record);
}

struct shard_follower *shard_follower_new(const struct shard_follower_config *config)
{
    struct shard_follower *f = memory_alloc(sizeof *f);
    const struct follower_log log = { f, reserve, append };

    f->config = *config;
    if (uv_mutex_init(&f->lock))
        abort();
    follower_init(&f->follower, config->shard, &log, shard_wal_last(config->wal),
                  config->needs);
    update_view(f);
    return f;
}

void shard_follower_free(struct shard_follower *f)
{
    if (!f)
        return;
    follower_deinit(&f->follower);
    bytes_deinit(&f->out);
    uv_mutex_destroy(&f->lock);
    free(f);
}

void shard_follower_start(struct shard_follower *f,
                          const struct shard_follower_primary *primary)
{
    f->primary = *primary;
    f->primary.hello.shard = primary->shard;
    if (f->useless[0]) {
        give_up(f, f->useless, true);
        return;
    }
    f->state = SHARD_FOLLOWER_DIALLING;
    f->n_failed = 0;
    f->retry_ms = 0;
    f->is_over = false;
    f->follower.unknown = 0;
    uv_mutex_lock(&f->lock);
    f->view.appended = f->view.heard_ms = f->view.greater_term = 0;
    f->view.is_in_sync = f->view.needs_copy = f->view.is_handed_over = false;
    f->view.was_silent = false;
    uv_mutex_unlock(&f->lock);
    set_why(f, "the connection is being opened");
    update_view(f);
    dial(f);
}

void shard_follower_stop(struct shard_follower *f)
{
    if (!f || f->state == SHARD_FOLLOWER_IDLE)
        return;
    uv_mutex_lock(&f->lock);
    f->view.is_handed_over = false;
    uv_mutex_unlock(&f->lock);
    hang_up(f);
    if (f->useless[0]) {
        give_up(f, f->useless, true);
        return;
    }
    if (f->state != SHARD_FOLLOWER_FAILED && !follow(f))
        return;
    f->state = SHARD_FOLLOWER_IDLE;
    if (!f->is_stuck)
        set_why(f, "");
    update_view(f);
}

void shard_follower_drop(struct shard_follower *f)
{
    if (!f)
        return;
    follower_stop(&f->follower);
    f->is_stuck = false;
    update_view(f);
}

/* Nothing was acknowledged for so long that the primary may go on alone soon: until its next word this shard is not in
 * sync, whatever the last one said. */
static void doubt_sync(struct shard_follower *f, uint64_t now_ms)
{
    note_silence(f);
    if (!f->is_stuck || now_ms < f->stuck_ms + f->primary.patience_ms / 2)
        return;
    uv_mutex_lock(&f->lock);
    f->view.is_in_sync = false;
    uv_mutex_unlock(&f->lock);
}

/* While this psd stood still it read nothing: the answer may be there. */
static void note_pause(struct shard_follower *f, uint64_t now_ms)
{
    if (now_ms - f->ticked_ms > PAUSE_MS)
        f->asked_ms = now_ms;
    f->ticked_ms = now_ms;
}

void shard_follower_tick(struct shard_follower *f)
{
    uint64_t now_ms = clock_mono_ms();

    if (f)
        note_pause(f, now_ms);
    if (!f || f->state == SHARD_FOLLOWER_FAILED || (f->is_stuck && !follow(f)))
        return;
    doubt_sync(f, now_ms);
    if (f->is_reporting && now_ms > f->asked_ms + REPORT_MS)
        give_up(f, f->useless, true);
    if (f->state == SHARD_FOLLOWER_IDLE) {
        update_view(f);
        return;
    }
    if (f->connector && (f->n_fetches || f->is_over || !f->is_welcome) &&
        now_ms > f->asked_ms + SHARD_FOLLOWER_SILENCE_MS)
        lose(f, "the primary has not answered for 5 s");
    if (f->state == SHARD_FOLLOWER_DIALLING && !f->connector && now_ms >= f->retry_ms)
        dial(f);
    update_view(f);
    fetch_more(f);
}

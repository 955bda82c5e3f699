/* A standby's data: the copy of its primary's newest restore point, and the start of the shards from what is there. */
#include "server/standby_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "common/number.h"
#include "server/standby_session.h"

#define COPY_RETRY_MS 10000u /* after one that a disk or a file has ended */

/* --- rebuilding --- */

static bool is_of_data(int status)
{
    return status == PS_ECORRUPT || status == PS_ENOCHECKPOINT || status == PS_ECLUSTER;
}

void standby_rebuilt(struct standby *s, const struct start_result *result)
{
    s->err = result->err;
    if (s->state == STANDBY_STOPPED || s->err.status == PS_ESTOPPING)
        return;
    if (s->err.status && is_of_data(s->err.status) && !s->is_promoting) {
        standby_discard(s, s->err.text);
        return;
    }
    if (s->err.status) {
        standby_fail(s);
        return;
    }
    s->is_loaded = s->asks_twice =
        true; /* a copy, or a log with a torn end, has other records than it was told */
    s->epoch = result->epoch;
    standby_update_last(s);
    if (s->theirs.history)
        standby_adopt(s);
    else
        standby_dial_later(s, s->why);
}

/* --- copying --- */

static void ask_for_file(struct standby *s, const struct file_request *m) ON_MAIN
{
    standby_ask(s, message_write_file(&s->session.out, ++s->session.request_id, m));
}

static void end_copy(struct standby *s) ON_MAIN
{
    copy_deinit(&s->copy);
    bytes_deinit(&s->piece);
    bytes_deinit(&s->later);
    s->has_later = false;
}

/* Not over at once: what has ended it may last, as a full disk does. */
void standby_fail_copy(struct standby *s, const char *why)
{
    char sentence[256];

    snprintf(sentence, sizeof sentence, "the copy is given up: %.220s", why);
    end_copy(s);
    standby_session_drop(&s->session);
    standby_dial_later(s, sentence);
    s->retry_ms = clock_mono_ms() + COPY_RETRY_MS;
}

static void finish_copy(struct standby *s) ON_MAIN
{
    log_line_info("copied %" PRIu64 " bytes in %" PRIu32 " file%s from %s", s->copy.n_bytes,
                  s->copy.n, NUMBER_PLURAL(s->copy.n), s->config.primary);
    end_copy(s);
    standby_keep_all(s);
    standby_rebuild(s);
}

static int add_piece(struct standby *s, struct err *err)
{
    return copy_add(&s->copy, &s->piece_reply, err);
}

static void ask_for_next(struct standby *s) ON_MAIN
{
    struct file_request next;

    if (copy_next(&s->copy, &next))
        ask_for_file(s, &next);
}

static void on_piece_added(struct standby *s) ON_MAIN;

/* While one piece is written, the next one comes. */
static void take_piece(struct standby *s) ON_MAIN
{
    standby_start_job(s, add_piece, on_piece_added);
    ask_for_next(s);
}

static void on_piece_added(struct standby *s)
{
    const struct bytes written = s->piece;

    if (s->err.status) {
        standby_fail_copy(s, s->err.text);
    } else if (s->session.state != SESSION_WELCOME) {
        standby_fail_copy(s, s->why[0] ? s->why : "the connection was lost");
    } else if (s->has_later) {
        s->piece = s->later;
        s->piece_reply = s->later_reply;
        s->later = written;
        s->has_later = false;
        take_piece(s);
    } else if (copy_is_whole(&s->copy)) {
        finish_copy(s);
    } /* else it is on its way */
}

/* The frame's bytes are borrowed. */
static int keep_piece(const struct file_reply *reply, struct bytes *bytes,
                      struct file_reply *ret)
{
    uint8_t *dst;

    bytes_consume(bytes, bytes_len(bytes));
    dst = bytes_reserve(bytes, reply->n_bytes + 1);
    if (!dst)
        return -ENOMEM;
    if (reply->n_bytes)
        memcpy(dst, reply->bytes, reply->n_bytes);
    bytes_commit(bytes, reply->n_bytes);
    *ret = *reply;
    ret->bytes = dst;
    return 0;
}

static int on_piece(struct standby *s, const struct file_reply *reply) ON_MAIN
{
    int status;

    if (s->is_working) {
        status = keep_piece(reply, &s->later, &s->later_reply);
        s->has_later = !status;
        return status;
    }
    status = keep_piece(reply, &s->piece, &s->piece_reply);
    if (!status)
        take_piece(s);
    return status;
}

static int on_list(struct standby *s, const struct file_reply *reply, struct err *err) ON_MAIN
{
    int status = copy_list(&s->copy, (const char *)reply->bytes, reply->n_bytes, err);

    if (status)
        return status;
    s->has_list = true;
    if (copy_is_whole(&s->copy))
        finish_copy(s);
    else
        ask_for_next(s);
    return 0;
}

int standby_on_file(struct standby *s, const struct file_reply *reply)
{
    struct err err = { 0 };
    int status = reply->status;

    if (status)
        err_set(&err, status, "%s", reply->text[0] ? reply->text : status_text(status));
    else if (!s->has_list)
        status = on_list(s, reply, &err);
    else
        status = on_piece(s, reply);
    if (!status)
        return s->session.state == SESSION_WELCOME ? 0 : UV_ECANCELED;
    if (!err.status)
        err_set(&err, status, "%s", status_text(status));
    if (!s->is_working) {
        standby_fail_copy(s, err.text);
        return UV_ECANCELED;
    }
    standby_session_drop(&s->session); /* on_piece_added() gives the copy up */
    standby_set_why(s, err.text);
    return UV_ECANCELED;
}

/* From here on the directory is a standby's. */
static int prepare_copy(struct standby *s, struct err *err)
{
    const char *data_dir = s->config.settings->data_dir;
    int status = copy_prepare(s->config.files, data_dir, !s->was_standby, err);

    if (status)
        return status;
    while (s->terms.n)
        free(s->terms.items[--s->terms.n].first);
    s->terms.history = 0;
    s->terms.in_sync = false;
    s->terms.role = TERMS_STANDBY;
    snprintf(s->terms.peer, sizeof s->terms.peer, "%.127s", s->config.primary);
    return standby_write_terms(s, err);
}

static void on_prepared(struct standby *s) ON_MAIN
{
    const struct file_request list = { .max_bytes = COPY_PIECE_BYTES };

    if (s->err.status) {
        standby_fail_copy(s, s->err.text);
        return;
    }
    s->was_standby = true;
    memset(s->last, 0, standby_n_shards(s) * sizeof *s->last);
    copy_init(&s->copy, s->config.files, s->config.settings->data_dir);
    s->has_list = s->has_later = false;
    if (s->session.state == SESSION_WELCOME)
        ask_for_file(s, &list);
    else
        standby_fail_copy(s, "the connection was lost");
}

void standby_begin_copy(struct standby *s)
{
    standby_set_state(s, STANDBY_COPYING);
    log_line_info("%s has to be copied from %s: %s", s->config.settings->data_dir,
                  s->config.primary,
                  s->was_standby ? "what was copied before is removed"
                                 : "checkpoints and logs that are there, if any, are archived");
    standby_start_job(s, prepare_copy, on_prepared);
}

#include "worker/client/link_state.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/hash.h"

#define BACKOFF_MIN_MS 50u
#define BACKOFF_MAX_MS 2000u
#define NOTICE_MS 5000u /* between two sentences about one absence */

static void sentence(const struct link *l, char *dst, size_t n_bytes, const char *fmt,
                     va_list args)
{
    int n = snprintf(dst, n_bytes, "shard %u at %s ", l->config.shard, l->config.address.text);

    vsnprintf(dst + n, n_bytes - (size_t)n, fmt, args);
}

void link_state_notice(struct link *l, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    sentence(l, text, sizeof text, fmt, args);
    va_end(args);
    l->events->notice(l->owner, text);
}

void link_state_set(struct link *l, enum link_phase phase)
{
    l->phase = phase;
    l->phase_since_ms = l->now_ms;
}

void link_state_hang_up(struct link *l)
{
    dial_drop(l->dial);
    l->dial = NULL;
    l->beat_id = l->greet_id = 0;
}

void link_state_over(struct link *l, int status, const char *fmt, ...)
{
    char text[512];
    va_list args;

    link_state_hang_up(l);
    link_state_set(l, LINK_OVER);
    va_start(args, fmt);
    sentence(l, text, sizeof text, fmt, args);
    va_end(args);
    l->events->failed(l->owner, l->config.shard, status, text);
}

void link_state_left(struct link *l)
{
    link_state_hang_up(l);
    link_state_set(l, LINK_OVER);
    l->events->left(l->owner, l->config.shard);
}

/* 50 ms, 100 ms ... 2 s, each times 0.5 to 1, so that workers do not come back all at once. */
static uint64_t backoff_ms(struct link *l)
{
    uint32_t n = l->n_attempts < 10 ? l->n_attempts : 10, ms = BACKOFF_MIN_MS << n;
    uint64_t dice = hash_mix2(l->config.join.incarnation ^ l->config.shard,
                              l->last_request_id + l->n_attempts);

    l->n_attempts++;
    if (ms > BACKOFF_MAX_MS)
        ms = BACKOFF_MAX_MS;
    return ms / 2 + (uint64_t)((float)(ms / 2) * hash_unit(dice));
}

/* `how`: in what way it is not what it should be, for people. */
static void lose(struct link *l, const char *how, const char *why)
{
    if (l->phase == LINK_OVER)
        return;
    if (l->phase == LINK_LEAVING) {
        link_state_left(l);
        return;
    }
    link_state_hang_up(l);
    if (l->phase == LINK_READY)
        l->away_since_ms = l->now_ms;
    link_state_set(l, LINK_AWAY);
    l->next_try_ms = l->now_ms + backoff_ms(l);
    snprintf(l->why, sizeof l->why, "%s", why);
    if (l->now_ms >= l->next_notice_ms) {
        l->next_notice_ms = l->now_ms + NOTICE_MS;
        link_state_notice(l, "%s: %s; trying again", how, l->why);
    }
}

void link_state_lose(struct link *l, const char *why)
{
    lose(l, l->was_ready ? "is away" : "is not there yet", why);
}

bool link_state_is_passing(int status)
{
    return status == PS_ESTOPPING || status == PS_ENOJOIN || status == PS_ESEQ ||
           status == -ENOMEM || status == -EMFILE || /* connections-max: some end */
           status == -EBUSY; /* the rank's former process may be dying; others come to a cut */
}

void link_state_refuse(struct link *l, const char *what, int status, const char *text)
{
    if (!text[0])
        text = status_text(status);
    if (link_state_is_passing(status))
        lose(l, "does not take this worker yet", text);
    else
        link_state_over(l, status, "refused %s: %s", what, text);
}

void link_state_send(struct link *l, const char *what, int status, struct buf *frame)
{
    size_t n_bytes = buf_len(frame);

    if (status == PS_ETOOBIG ||
        (!status && n_bytes - FRAME_HEADER_BYTES > l->frame_max_bytes)) {
        buf_deinit(frame);
        link_state_over(l, PS_ETOOBIG,
                        "takes frames of %u bytes, and %s has more: make the batch smaller",
                        l->frame_max_bytes, what);
        return;
    }
    if (status) {
        buf_deinit(frame);
        link_state_lose(l, dial_why(status));
        return;
    }
    (void)dial_send(l->dial, frame); /* if it fails, events.closed follows, and knows why */
    l->events->traffic(l->owner, 0, n_bytes);
}

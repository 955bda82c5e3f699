#include "worker/client/link_phase.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/hash.h"

#define NOTICE_MS 5000u /* between two sentences about one absence */

static void sentence(const struct shard_link *l, char *dst, size_t n_bytes, const char *fmt,
                     va_list args)
{
    int n = snprintf(dst, n_bytes, "shard %u at %s ", l->config.shard, l->config.address.text);

    vsnprintf(dst + n, n_bytes - (size_t)n, fmt, args);
}

void link_phase_notice(struct shard_link *l, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    sentence(l, text, sizeof text, fmt, args);
    va_end(args);
    l->events->notice(l->owner, text);
}

void link_phase_set(struct shard_link *l, enum link_phase phase)
{
    if (l->phase == PHASE_GREETED)
        l->away_since_ms += l->now_ms - l->phase_since_ms; /* the shard was there */
    l->phase = phase;
    l->phase_since_ms = l->now_ms;
}

void link_phase_disconnect(struct shard_link *l)
{
    connector_drop(l->connector);
    io_connection_drop(l->io);
    l->connector = NULL;
    l->io = NULL;
    l->channel = NULL;
    l->beat_id = l->greet_id = 0;
    l->held_until_ms = 0;
    pull_queue_reset(&l->pulls);
    named_pulls_reset(&l->named);
}

void link_phase_give_up(struct shard_link *l, int status, const char *fmt, ...)
{
    char text[512];
    va_list args;

    link_phase_disconnect(l);
    link_phase_set(l, PHASE_OVER);
    va_start(args, fmt);
    sentence(l, text, sizeof text, fmt, args);
    va_end(args);
    l->events->failed(l->owner, l->config.shard, status, text);
}

void link_phase_finish_leave(struct shard_link *l)
{
    link_phase_disconnect(l);
    link_phase_set(l, PHASE_OVER);
    l->events->left(l->owner, l->config.shard);
}

/* A shard that hears its worker less often than once a lease counts it out, and with it those that it waits for: their
 * leases begin anew each time that it comes. */
static uint64_t backoff_ms(const struct shard_link *l)
{
    uint64_t seed = hash_mix2(l->config.join.incarnation ^ l->config.shard, l->last_request_id);
    uint64_t ms = connector_backoff_ms(l->n_attempts, seed + l->n_attempts);

    return l->lease_ms && ms > l->lease_ms / 2 ? l->lease_ms / 2 : ms;
}

/* Drops the connection and dials again after the backoff. `how`: the link's state, for people. */
static void drop_connection(struct shard_link *l, const char *how, const char *why)
{
    if (l->phase == PHASE_OVER)
        return;
    if (l->phase == PHASE_LEAVING) {
        link_phase_finish_leave(l);
        return;
    }
    link_phase_disconnect(l);
    if (l->phase == PHASE_READY)
        l->away_since_ms = l->now_ms;
    link_phase_set(l, PHASE_AWAY);
    l->events->lost(l->owner, l->config.shard);
    l->next_try_ms = l->now_ms + backoff_ms(l);
    l->n_attempts++;
    snprintf(l->why, sizeof l->why, "%s", why);
    if (l->now_ms >= l->next_notice_ms) {
        l->next_notice_ms = l->now_ms + NOTICE_MS;
        link_phase_notice(l, "%s: %s; trying again", how, l->why);
    }
}

void link_phase_lose(struct shard_link *l, const char *why)
{
    drop_connection(l, l->was_ready ? "is away" : "is not there yet", why);
}

bool link_phase_is_transient(int status)
{
    return status == PS_ESTOPPING || status == PS_EMOVED || status == PS_ENOJOIN ||
           status == PS_ESEQ || status == PS_EKEYS || status == -ENOMEM ||
           status == -EMFILE || /* connections-max: some end */
           status == -EBUSY;    /* others come to a sync point, or the rank's process ends */
}

void link_phase_refused(struct shard_link *l, const char *what, int status, const char *text)
{
    if (!text[0])
        text = status_text(status);
    if (link_phase_is_transient(status))
        drop_connection(l, "does not take this worker yet", text);
    else
        link_phase_give_up(l, status, "refused %s: %s", what, text);
}

void link_phase_send(struct shard_link *l, const char *what, int status, struct bytes *frame)
{
    size_t n_bytes = bytes_len(frame);

    if (status == PS_ETOOBIG ||
        (!status && n_bytes - FRAME_HEADER_BYTES > l->frame_max_bytes)) {
        bytes_deinit(frame);
        link_phase_give_up(l, PS_ETOOBIG,
                           "takes frames of %u bytes, and %s has more: make the batch smaller",
                           l->frame_max_bytes, what);
        return;
    }
    if (status) {
        bytes_deinit(frame);
        link_phase_lose(l, connector_why(status));
        return;
    }
    if (l->io)
        io_connection_send(l->io, frame);
    else
        (void)channel_send(l->channel, frame); /* if it fails, events.closed follows */
    l->events->traffic(l->owner, 0, n_bytes);
}

/*
 * The trainer's half of the library: encodes and decodes, hands parcels to the network thread,
 * waits at the desk. What pulls use and what pushes use is apart (ps.h, Threads); they meet at
 * the desk, in the mailbox and in counters.
 */
#include "worker/client/ps.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "worker/client/ps_options.h"
#include "worker/client/ps_state.h"
#include "worker/client/resend.h"

#define LEAVE_MS 10000u

static void count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void make_room(struct ps_client *c)
{
    c->n_shards = c->desk.n_shards;
    c->encoder = encoder_new(c->n_shards);
    c->pushes = mem_alloc(c->n_shards * sizeof *c->pushes);
    c->pulls = mem_alloc(c->n_shards * sizeof *c->pulls);
    /* All that the window lets be under way, and the push that passes it. */
    outbox_init(&c->push_out, c->n_shards, 2 * (size_t)c->options.window_bytes);
    outbox_init(&c->pull_out, c->n_shards, 0);
}

int ps_open(const struct ps_options *options, struct ps_client **ret_client, struct err *err)
{
    struct ps_client *c = mem_alloc(sizeof *c);
    int status;

    c->options = ps_options_complete(options);
    status = ps_options_check(&c->options, err);
    if (!status) {
        status = desk_init(&c->desk);
        if (status)
            err_set(err, status, "no lock: %s", status_text(status));
    }
    if (status) {
        free(c);
        return status;
    }
    if (c->options.spool)
        spool_origin(c->options.spool, &c->options.origin);
    c->n_ticked = c->options.origin.next_clock;
    status = net_new(&c->options, &c->desk, &c->net, err);
    if (!status) {
        status = desk_wait_open(
            &c->desk,
            ps_state_after_ms(2 * (uint64_t)c->options.connect_ms + PS_STATE_SLACK_MS), err);
        if (status == -ETIMEDOUT)
            status = err_set(err, PS_EDEADLINE, "the servers at %s are not ready after %u s",
                             c->options.servers, c->options.connect_ms / 1000);
    }
    if (status) {
        ps_close(c);
        return status;
    }
    make_room(c);
    resend_init(&c->resend, c->options.spool, &c->desk, c->net, c->encoder);
    *ret_client = c;
    return 0;
}

void ps_close(struct ps_client *c)
{
    if (!c)
        return;
    net_free(c->net);
    desk_deinit(&c->desk);
    resend_deinit(&c->resend);
    encoder_free(c->encoder);
    outbox_deinit(&c->push_out);
    outbox_deinit(&c->pull_out);
    free(c->pushes);
    free(c->pulls);
    free(c);
}

/* ---- pull ---- */

static void end_pull(struct ps_client *c)
{
    if (!c->pull.under_way)
        return;
    c->pull.under_way = false;
    desk_end_pull(&c->desk);
    net_drop_pull(c->net);
}

/* Steps before `clock` whose push the network thread does not have yet. */
static uint64_t n_unfinished(const struct ps_client *c, uint64_t clock)
{
    uint64_t finished = atomic_load(&c->n_ticked), joined_at = desk_clock(&c->desk);

    if (finished < joined_at)
        finished = joined_at;
    return clock > finished ? clock - finished : 0;
}

static void send_pull(struct ps_client *c, uint64_t clock)
{
    struct outbox *o = &c->pull_out;
    uint64_t id, epoch, unfinished = n_unfinished(c, clock);
    uint32_t i;

    for (i = 0; i < c->n_shards; i++) {
        o->parcels[i]->clock = clock;
        o->parcels[i]->unfinished = unfinished;
        o->parcels[i]->deadline_ms = c->options.pull_ms;
        parcel_fill(o->parcels[i], &o->bufs[i], c->pulls[i].sections);
    }
    desk_start_pull(&c->desk, &id, &epoch);
    net_pull(c->net, epoch, id, o->parcels);
    outbox_forget(o);
}

int ps_pull_start(struct ps_client *c, uint64_t clock, const struct ps_pull_section *sections,
                  uint32_t n, struct err *err)
{
    struct outbox *o = &c->pull_out;
    uint32_t i;
    int status = resend_found(&c->resend, err);

    if (!status)
        status = desk_wait_room(&c->desk, UINT64_MAX, err);
    if (status)
        return status;
    assert(!c->pull.under_way);
    status = outbox_make(o, n);
    if (!status)
        status = encoder_pull(c->encoder, sections, n, o->bufs, c->pulls);
    if (status) {
        outbox_clear(o);
        return err_set(err, status, "pull of clock %" PRIu64 ": %s", clock,
                       status_text(status));
    }
    send_pull(c, clock);
    c->pull.under_way = true;
    c->pull.sections = sections;
    c->pull.n = n;
    c->pull.deadline_ns = ps_state_after_ms((uint64_t)c->options.pull_ms + PS_STATE_SLACK_MS);
    count(&c->n_pulls, 1);
    for (i = 0; i < n; i++)
        count(&c->rows_pulled, sections[i].n_keys);
    return 0;
}

static int decode_answer(struct ps_client *c, uint32_t shard, struct err *err)
{
    const struct pull_reply *reply = &c->desk.answers[shard].reply;
    const uint8_t *values[SECTIONS_MAX];
    size_t value_bytes[SECTIONS_MAX];
    char name[160];
    uint32_t i;
    int status;

    for (i = 0; i < reply->n_sections; i++) {
        values[i] = reply->sections[i].values;
        value_bytes[i] = reply->sections[i].value_bytes;
    }
    status =
        encoder_pulled(c->encoder, c->pull.sections, c->pull.n, shard, values, value_bytes);
    if (!status) {
        if (shard == 0 || reply->min_clock < c->pulled_clock)
            c->pulled_clock = reply->min_clock;
        return 0;
    }
    net_shard_name(c->net, shard, name, sizeof name);
    return err_set(err, status, "%s answered a pull with rows that cannot be read: %s", name,
                   status_text(status));
}

static int tell_refused_pull(struct ps_client *c, uint32_t shard, struct err *err)
{
    const struct pull_reply *reply = &c->desk.answers[shard].reply;
    char name[160];

    net_shard_name(c->net, shard, name, sizeof name);
    return err_set(err, reply->status, "%s refused a pull: %s", name,
                   reply->text[0] ? reply->text : status_text(reply->status));
}

static int tell_late_pull(struct ps_client *c, struct err *err)
{
    uint32_t shard = desk_first_silent(&c->desk);
    char name[160] = "a shard";

    if (shard < c->n_shards)
        net_shard_name(c->net, shard, name, sizeof name);
    return err_set(
        err, PS_EDEADLINE,
        "%s has not answered a pull for %u s; what it waits for, other workers or its disk, "
        "`psctl why` tells",
        name, c->options.pull_ms / 1000);
}

/* Waits for one shard after the other, and decodes while the next ones are still on their
 * way. */
static int collect(struct ps_client *c, struct err *err)
{
    uint32_t shard, bad;
    uint64_t since_ns;
    int status = 0;

    atomic_store(&c->parked_since_ns, uv_hrtime());
    for (shard = 0; shard < c->n_shards && !status; shard++) {
        since_ns = uv_hrtime();
        status = desk_wait_answer(&c->desk, shard, c->pull.deadline_ns, err);
        count(&c->park_ns, uv_hrtime() - since_ns);
        if (status)
            break;
        bad = desk_first_refusal(&c->desk);
        status =
            bad < c->n_shards ? tell_refused_pull(c, bad, err) : decode_answer(c, shard, err);
    }
    atomic_store(&c->parked_since_ns, 0);
    return status == -ETIMEDOUT ? tell_late_pull(c, err) : status;
}

int ps_pull_wait(struct ps_client *c, struct err *err)
{
    int status;

    if (!c->pull.under_way) {
        status = desk_wait_room(&c->desk, UINT64_MAX, err);
        return status ? status : err_set(err, -EINVAL, "no pull is under way");
    }
    status = collect(c, err);
    if (status)
        end_pull(c);
    c->pull.under_way = false;
    return status;
}

void ps_pull_cancel(struct ps_client *c)
{
    desk_cancel_pull(&c->desk);
}

/* A push that was made while the shards declared the worker dead went to nobody, and is dropped like those that were
 * under way. Its step stays finished: pulls behind it say so. */
uint64_t ps_resume(struct ps_client *c)
{
    uint64_t clock, ticked = atomic_load(&c->n_ticked);

    end_pull(c);
    clock = desk_resume(&c->desk);
    return clock > ticked ? clock : ticked;
}

/* ---- push ---- */

static uint64_t show_push(struct ps_client *c, uint32_t shard, uint64_t clock,
                          uint32_t n_samples, bool tick)
{
    struct push *push = &c->pushes[shard];

    if (!c->tap.push)
        return 1;
    push->clock = clock;
    push->n_samples = n_samples;
    push->tick = tick;
    return c->tap.push(c->tap.arg, shard, push);
}

static void send_push(struct ps_client *c, uint64_t clock, uint32_t n_samples, bool tick)
{
    struct outbox *o = &c->push_out;
    struct desk_identity id;
    uint64_t n_bytes = 0;
    uint32_t i;

    for (i = 0; i < c->n_shards; i++) {
        o->parcels[i]->clock = clock;
        o->parcels[i]->n_samples = n_samples;
        o->parcels[i]->tick = tick;
        o->parcels[i]->n_versions = show_push(c, i, clock, n_samples, tick);
        n_bytes += buf_len(&o->bufs[i]);
        parcel_fill(o->parcels[i], &o->bufs[i], c->pushes[i].sections);
    }
    count(&c->bytes_pushed, n_bytes);
    desk_add_pushes(&c->desk, c->n_shards, n_bytes, &id);
    resend_keep(&c->resend, &id, o->parcels, c->n_shards);
    net_push(c->net, id.epoch, o->parcels);
    outbox_forget(o);
    if (tick)
        atomic_store(&c->n_ticked, clock + 1);
}

/* For ps_stats(), which may be another thread's. */
static void note_residuals(struct ps_client *c)
{
    struct encoder_residuals owed;

    encoder_residuals(c->encoder, &owed);
    atomic_store_explicit(&c->residual_rows, owed.n_rows, memory_order_relaxed);
    atomic_store_explicit(&c->residual_bytes, owed.n_bytes, memory_order_relaxed);
    atomic_store_explicit(&c->residual_settled, owed.n_settled, memory_order_relaxed);
}

static int wait_room(struct ps_client *c, uint64_t max_bytes, struct err *err)
{
    int status;

    atomic_store(&c->room_since_ns, uv_hrtime());
    status = desk_wait_room(&c->desk, max_bytes, err);
    atomic_store(&c->room_since_ns, 0);
    return status;
}

int ps_push(struct ps_client *c, uint64_t clock, uint32_t n_samples, bool tick,
            const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    struct outbox *o = &c->push_out;
    uint64_t since_ns = uv_hrtime();
    uint32_t i;
    int status = resend_found(&c->resend, err);

    assert(!c->options.reader);
    if (!status)
        status = wait_room(c, c->options.window_bytes, err);
    count(&c->room_ns, uv_hrtime() - since_ns);
    if (status)
        return status;
    status = outbox_make(o, n);
    if (!status)
        status = encoder_push(c->encoder, sections, n, o->bufs, c->pushes);
    if (status) {
        outbox_clear(o);
        return err_set(err, status, "push of clock %" PRIu64 ": %s", clock,
                       status_text(status));
    }
    send_push(c, clock, n_samples, tick);
    note_residuals(c);
    count(&c->n_pushes, 1);
    for (i = 0; i < n; i++)
        count(&c->rows_pushed, sections[i].n_keys);
    return 0;
}

int ps_flush(struct ps_client *c, struct err *err)
{
    int status = resend_found(&c->resend, err);

    return status ? status : wait_room(c, 0, err);
}

int ps_leave(struct ps_client *c, struct err *err)
{
    int status = ps_flush(c, err), left;
    struct err unsaid;

    end_pull(c);
    if (status == PS_EFENCED || desk_is_failed(&c->desk))
        return status;
    desk_start_leave(&c->desk);
    net_leave(c->net);
    left = desk_wait_left(&c->desk, ps_state_after_ms(LEAVE_MS), &unsaid);
    if (left == -ETIMEDOUT)
        left = err_set(&unsaid, PS_EDEADLINE,
                       "the shards have not answered the farewell for %u s", LEAVE_MS / 1000);
    if (!left && c->options.spool && !c->resend.failure.status)
        spool_remove(c->options.spool);
    if (status || !left)
        return status;
    return err_set(err, left, "%s", unsaid.text);
}

/* ---- what is known ---- */

uint32_t ps_n_shards(const struct ps_client *c)
{
    return c->n_shards;
}

void ps_set_tap(struct ps_client *c, const struct ps_tap *tap)
{
    c->tap = *tap;
}

uint64_t ps_clock(const struct ps_client *c)
{
    uint64_t clock = desk_clock(&c->desk), stood = c->options.origin.next_clock;

    return clock > stood ? clock : stood;
}

struct encoder *ps_encoder(const struct ps_client *c)
{
    return c->encoder;
}

static uint64_t lasted_ns(const _Atomic uint64_t *since_ns, uint64_t now_ns)
{
    uint64_t since = atomic_load(since_ns);

    return since && now_ns > since ? now_ns - since : 0;
}

/* Of the thread that pulls, or of the one that pushes. */
static uint64_t waiting_ns(const struct ps_client *c)
{
    uint64_t now = uv_hrtime(), parked = lasted_ns(&c->parked_since_ns, now),
             room = lasted_ns(&c->room_since_ns, now);

    return parked > room ? parked : room;
}

void ps_stats(const struct ps_client *c, struct ps_stats *ret)
{
    *ret = (struct ps_stats){ .pulls = c->n_pulls,
                              .pushes = c->n_pushes,
                              .bytes_pushed = c->bytes_pushed,
                              .rows_pulled = c->rows_pulled,
                              .rows_pushed = c->rows_pushed,
                              .park_ns = c->park_ns,
                              .waiting_ns = waiting_ns(c),
                              .pulled_clock = c->pulled_clock,
                              .room_ns = c->room_ns,
                              .residual_rows = c->residual_rows,
                              .residual_bytes = c->residual_bytes,
                              .residual_settled = c->residual_settled };
    net_stats(c->net, ret);
}

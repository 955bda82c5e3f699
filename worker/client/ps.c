/*
 * The trainer's half of the library: encodes and decodes, hands parcels to the network thread,
 * waits at the desk.
 */
#include "worker/client/ps.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "worker/client/encode.h"
#include "worker/client/net.h"

#define NS_PER_MS UINT64_C(1000000)
#define SLACK_MS 2000u /* the servers' own sentence about a deadline is to come before ours */
#define LEAVE_MS 10000u

struct ps_client {
    struct ps_options options;
    struct desk desk;
    struct net *net;         /* owned */
    struct encoder *encoder; /* owned */
    uint32_t n_shards, n_tables;
    struct ps_tap tap;
    struct buf *bufs;        /* owned, n_shards: what the encoder fills */
    struct push *pushes;     /* owned, n_shards */
    struct pull *pulls;      /* owned, n_shards */
    struct parcel **parcels; /* owned, n_shards: NULLs between calls */
    struct {
        bool under_way;
        const struct ps_pull_section *sections; /* borrowed while under way */
        uint32_t n;
        uint64_t deadline_ns;
    } pull;
    uint64_t n_pulls, n_pushes, rows_pulled, rows_pushed, park_ns;
};

static uint64_t after_ms(uint64_t ms)
{
    return uv_hrtime() + ms * NS_PER_MS;
}

static struct ps_options with_defaults(const struct ps_options *options)
{
    struct ps_options o = *options;

    o.connect_ms = o.connect_ms ? o.connect_ms : 60000;
    o.give_up_ms = o.give_up_ms ? o.give_up_ms : 60000;
    o.pull_ms = o.pull_ms ? o.pull_ms : 600000;
    o.window_bytes = o.window_bytes ? o.window_bytes : 64u << 20;
    o.answer_ms = o.answer_ms ? o.answer_ms : 20000;
    o.token = o.token ? o.token : "";
    o.name = o.name ? o.name : "";
    o.job = o.job ? o.job : "";
    return o;
}

static int check_options(const struct ps_options *o, struct err *err)
{
    if (o->reader)
        return 0;
    if (!o->job[0] || strlen(o->job) >= SPEC_NAME_MAX)
        return err_set(err, -EINVAL, "job: \"%s\" is no name of 1 to %u characters", o->job,
                       SPEC_NAME_MAX - 1);
    if (!o->n_workers || o->rank >= o->n_workers)
        return err_set(err, -EINVAL, "rank %u of %u workers: expected 0 to workers - 1",
                       o->rank, o->n_workers);
    if (o->mode != SPEC_MODE_ASYNC && o->mode != SPEC_MODE_SSP && o->mode != SPEC_MODE_BSP)
        return err_set(err, -EINVAL, "mode %d: expected async, ssp or bsp", (int)o->mode);
    return 0;
}

static void make_room(struct ps_client *c)
{
    c->n_shards = c->desk.n_shards;
    c->encoder = encoder_new(c->n_shards);
    c->bufs = mem_alloc(c->n_shards * sizeof *c->bufs);
    c->pushes = mem_alloc(c->n_shards * sizeof *c->pushes);
    c->pulls = mem_alloc(c->n_shards * sizeof *c->pulls);
    c->parcels = mem_alloc(c->n_shards * sizeof(struct parcel *));
}

int ps_open(const struct ps_options *options, struct ps_client **ret_client, struct err *err)
{
    struct ps_client *c = mem_alloc(sizeof *c);
    int status;

    c->options = with_defaults(options);
    status = check_options(&c->options, err);
    if (!status) {
        status = desk_init(&c->desk);
        if (status)
            err_set(err, status, "no lock: %s", status_text(status));
    }
    if (status) {
        free(c);
        return status;
    }
    status = net_new(&c->options, &c->desk, &c->net, err);
    if (!status) {
        status = desk_wait_open(&c->desk,
                                after_ms(2 * (uint64_t)c->options.connect_ms + SLACK_MS), err);
        if (status == -ETIMEDOUT)
            status = err_set(err, PS_EDEADLINE, "the servers at %s are not ready after %u s",
                             c->options.servers, c->options.connect_ms / 1000);
    }
    if (status) {
        ps_close(c);
        return status;
    }
    make_room(c);
    *ret_client = c;
    return 0;
}

void ps_close(struct ps_client *c)
{
    uint32_t i;

    if (!c)
        return;
    net_free(c->net);
    desk_deinit(&c->desk);
    encoder_free(c->encoder);
    for (i = 0; i < c->n_shards; i++)
        buf_deinit(&c->bufs[i]);
    free(c->bufs);
    free(c->pushes);
    free(c->pulls);
    free(c->parcels);
    free(c);
}

/* ---- tables ---- */

/* Asks all shards; what they said. */
static int ask_table(struct ps_client *c, const struct table_request *request,
                     struct desk_table *ret, struct err *err)
{
    int status;

    if (c->n_tables == PS_TABLES_MAX)
        return err_set(err, -ENOSPC, "table %s: a client has at most %u tables",
                       request->spec.name, PS_TABLES_MAX);
    desk_start_table(&c->desk);
    net_table(c->net, request);
    status = desk_wait_table(&c->desk, after_ms(2 * (uint64_t)c->options.give_up_ms + SLACK_MS),
                             ret, err);
    if (status == -ETIMEDOUT) {
        status = err_set(err, PS_EDEADLINE, "table %s: the shards have not answered",
                         request->spec.name);
        desk_fail(&c->desk, status,
                  "a table that was asked for never came"); /* its number is in doubt */
    } else if (!status && ret->status) {
        net_drop_table(c->net);
        status = err_set(err, ret->status, "%s",
                         ret->text[0] ? ret->text : status_text(ret->status));
    }
    return status;
}

static int add_table(struct ps_client *c, const struct table_spec *spec, uint32_t *ret_table,
                     struct err *err)
{
    if (encoder_add_table(c->encoder, c->n_tables, spec)) {
        net_drop_table(c->net);
        return err_set(err, -ENOMEM, "table %s: no memory for rows of %u floats", spec->name,
                       spec->dim);
    }
    *ret_table = c->n_tables++;
    return 0;
}

int ps_table(struct ps_client *c, const struct table_spec *spec, uint32_t *ret_table,
             struct err *err)
{
    struct table_request request = { .spec = *spec };
    struct desk_table said;
    int status = spec_check(spec, err);

    if (!status)
        status = ask_table(c, &request, &said, err);
    return status ? status : add_table(c, spec, ret_table, err);
}

int ps_table_find(struct ps_client *c, struct table_spec *spec, uint32_t *ret_table,
                  struct err *err)
{
    struct table_request request = { .spec = *spec, .must_exist = true };
    struct desk_table said;
    int status = ask_table(c, &request, &said, err);

    if (!status && spec_check(&said.spec, err)) {
        net_drop_table(c->net);
        status = PS_ESPEC;
    }
    if (!status)
        status = add_table(c, &said.spec, ret_table, err);
    if (!status)
        *spec = said.spec;
    return status;
}

/* ---- parcels ---- */

static void free_parcels(struct ps_client *c)
{
    uint32_t i;

    for (i = 0; i < c->n_shards; i++) {
        parcel_free(c->parcels[i]);
        c->parcels[i] = NULL;
        buf_deinit(&c->bufs[i]);
    }
}

static int make_parcels(struct ps_client *c, uint32_t n_sections)
{
    uint32_t i;

    for (i = 0; i < c->n_shards; i++) {
        c->parcels[i] = parcel_new(n_sections);
        if (!c->parcels[i]) {
            free_parcels(c);
            return -ENOMEM;
        }
    }
    return 0;
}

/* They are the network thread's now. */
static void forget_parcels(struct ps_client *c)
{
    memset(c->parcels, 0, c->n_shards * sizeof(struct parcel *));
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

/* What has to be told before anything else. */
static int trouble(struct ps_client *c, uint64_t max_bytes, struct err *err)
{
    int status = desk_wait_room(&c->desk, max_bytes, err);

    if (status == PS_EFENCED)
        end_pull(c);
    return status;
}

static void send_pull(struct ps_client *c, uint64_t clock)
{
    uint64_t id, epoch;
    uint32_t i;

    for (i = 0; i < c->n_shards; i++) {
        c->parcels[i]->clock = clock;
        c->parcels[i]->deadline_ms = c->options.pull_ms;
        parcel_fill(c->parcels[i], &c->bufs[i], c->pulls[i].sections);
    }
    desk_start_pull(&c->desk, &id, &epoch);
    net_pull(c->net, epoch, id, c->parcels);
    forget_parcels(c);
}

int ps_pull_start(struct ps_client *c, uint64_t clock, const struct ps_pull_section *sections,
                  uint32_t n, struct err *err)
{
    uint32_t i;
    int status = trouble(c, UINT64_MAX, err);

    assert(!c->pull.under_way);
    if (status)
        return status;
    status = make_parcels(c, n);
    if (!status)
        status = encoder_pull(c->encoder, sections, n, c->bufs, c->pulls);
    if (status) {
        free_parcels(c);
        return err_set(err, status, "pull of clock %" PRIu64 ": %s", clock,
                       status_text(status));
    }
    send_pull(c, clock);
    c->pull.under_way = true;
    c->pull.sections = sections;
    c->pull.n = n;
    c->pull.deadline_ns = after_ms((uint64_t)c->options.pull_ms + SLACK_MS);
    c->n_pulls++;
    for (i = 0; i < n; i++)
        c->rows_pulled += sections[i].n_keys;
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
    if (!status)
        return 0;
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
    return err_set(err, PS_EDEADLINE, "%s has not answered a pull for %u s", name,
                   c->options.pull_ms / 1000);
}

/* Waits for one shard after the other, and decodes while the next ones are still on their
 * way. */
static int collect(struct ps_client *c, struct err *err)
{
    uint32_t shard, bad;
    uint64_t since_ns;
    int status = 0;

    for (shard = 0; shard < c->n_shards && !status; shard++) {
        since_ns = uv_hrtime();
        status = desk_wait_answer(&c->desk, shard, c->pull.deadline_ns, err);
        c->park_ns += uv_hrtime() - since_ns;
        if (status)
            break;
        bad = desk_first_refusal(&c->desk);
        status =
            bad < c->n_shards ? tell_refused_pull(c, bad, err) : decode_answer(c, shard, err);
    }
    return status == -ETIMEDOUT ? tell_late_pull(c, err) : status;
}

int ps_pull_wait(struct ps_client *c, struct err *err)
{
    int status;

    if (!c->pull.under_way) {
        status = trouble(c, UINT64_MAX, err);
        return status ? status : err_set(err, -EINVAL, "no pull is under way");
    }
    status = collect(c, err);
    if (status)
        end_pull(c);
    c->pull.under_way = false;
    return status;
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
    uint64_t n_bytes = 0, epoch;
    uint32_t i;

    for (i = 0; i < c->n_shards; i++) {
        c->parcels[i]->clock = clock;
        c->parcels[i]->n_samples = n_samples;
        c->parcels[i]->tick = tick;
        c->parcels[i]->n_versions = show_push(c, i, clock, n_samples, tick);
        n_bytes += buf_len(&c->bufs[i]);
        parcel_fill(c->parcels[i], &c->bufs[i], c->pushes[i].sections);
    }
    epoch = desk_add_pushes(&c->desk, c->n_shards, n_bytes);
    net_push(c->net, epoch, c->parcels);
    forget_parcels(c);
}

int ps_push(struct ps_client *c, uint64_t clock, uint32_t n_samples, bool tick,
            const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    uint32_t i;
    int status = trouble(c, c->options.window_bytes, err);

    assert(!c->options.reader);
    if (status)
        return status;
    status = make_parcels(c, n);
    if (!status)
        status = encoder_push(c->encoder, sections, n, c->bufs, c->pushes);
    if (status) {
        free_parcels(c);
        return err_set(err, status, "push of clock %" PRIu64 ": %s", clock,
                       status_text(status));
    }
    send_push(c, clock, n_samples, tick);
    c->n_pushes++;
    for (i = 0; i < n; i++)
        c->rows_pushed += sections[i].n_keys;
    return 0;
}

int ps_flush(struct ps_client *c, struct err *err)
{
    return trouble(c, 0, err);
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
    left = desk_wait_left(&c->desk, after_ms(LEAVE_MS), &unsaid);
    if (left == -ETIMEDOUT)
        left = err_set(&unsaid, PS_EDEADLINE,
                       "the shards have not answered the farewell for %u s", LEAVE_MS / 1000);
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
    return desk_clock(&c->desk);
}

void ps_stats(const struct ps_client *c, struct ps_stats *ret)
{
    *ret = (struct ps_stats){ .pulls = c->n_pulls,
                              .pushes = c->n_pushes,
                              .rows_pulled = c->rows_pulled,
                              .rows_pushed = c->rows_pushed,
                              .park_ns = c->park_ns };
    net_stats(c->net, ret);
    encoder_residuals(c->encoder, &ret->residual_rows, &ret->residual_bytes);
}

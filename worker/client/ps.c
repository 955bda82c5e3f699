/*
 * The trainer's half of the library: encodes and decodes, hands requests to the network thread,
 * waits at the client_state. Threads that pull and the one that pushes (ps.h, Threads) share the
 * client_state, the mailbox and counters; each pull has its own struct ps_pull.
 */
#include "worker/client/ps.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/client/argument_check.h"
#include "worker/client/network_thread.h"
#include "worker/client/pull.h"
#include "worker/client/push_encoder.h"
#include "worker/client/push_journal.h"
#include "worker/client/traffic.h"

#define LEAVE_MS 10000u
#define SLACK_MS 2000u /* the servers' own sentence about a deadline comes before ours */

/* What the client knows of a table. */
struct known_table {
    struct table_spec spec;
    uint32_t missing; /* MESSAGE_FEATURE_* that some shard has not */
};

struct ps_client {
    struct ps_options options;
    struct client_state state;
    struct network_thread *net;   /* owned */
    struct push_encoder *encoder; /* owned */
    uint32_t n_shards;
    _Atomic uint32_t n_tables;
    struct known_table *tables; /* owned, PS_TABLES_MAX */
    struct request_set push_set;
    struct ps_tap tap;
    _Atomic bool is_over; /* the farewell was sent */
    bool is_leaving;      /* and its answers are waited for */
    bool has_left;        /* and no push of its run is open */
    /* The request for a table whose wait a signal has ended. */
    struct {
        bool is_under_way;
        struct table_request request;
    } table;
    /* With a journal: the pushes of the process before are sent again, once, before anything else is asked or pushed;
     * those of this one are kept before they are sent. */
    struct {
        uv_mutex_t lock; /* whoever comes first, one that pulls or one that pushes, does it */
        _Atomic bool is_due;
        struct err failure;       /* final */
        uint64_t epoch, last_seq; /* of the last push */
    } resend;
    _Atomic uint64_t n_ticked; /* steps whose push was handed to the network thread */
    _Atomic uint64_t n_pulls, n_pushes, bytes_pushed, park_ns, window_ns;
    _Atomic uint64_t window_since_ns; /* of the wait under way; 0: none */
    _Atomic uint64_t residual_rows, residual_bytes, residual_flushed;
    _Atomic uint64_t
        pulled_clock; /* lowest min clock of the answers to the last pull that ended */
};

/* So long from now, in uv_hrtime(). */
static uint64_t after_ms(uint64_t ms)
{
    return uv_hrtime() + ms * UINT64_C(1000000);
}

static struct client_state_hooks make_hooks(const struct ps_options *o)
{
    return (struct client_state_hooks){ .is_interruptible = o->is_interruptible,
                                        .on_came = o->on_came,
                                        .arg = o->came_arg };
}

/* The caller's own deadline has passed, and nothing has failed. */
static int report_not_yet(int status, struct err *err)
{
    return status == -EINTR ? err_set(err, status, "a signal ended the wait")
                            : err_set(err, -EAGAIN, "not yet");
}

static int check_not_over(const struct ps_client *c, struct err *err)
{
    return atomic_load(&c->is_over) ? err_set(err, -EINVAL, "this client has left") : 0;
}

/* ---- open, close ---- */

/* Defaults (ps_types.h) for zeros, "" for NULLs. */
static struct ps_options complete_options(const struct ps_options *options)
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

static void count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static int make_buffers(struct ps_client *c, struct err *err)
{
    c->n_shards = c->state.n_shards;
    c->encoder = push_encoder_new(c->n_shards);
    c->tables = memory_try_alloc(PS_TABLES_MAX * sizeof *c->tables);
    /* All pushes that fit the window, and the one that exceeds it. */
    request_set_init(&c->push_set, c->n_shards, 2 * (size_t)c->options.window_bytes);
    return c->encoder && c->tables
               ? 0
               : err_set(err, -ENOMEM, "no memory for pushes to %u shards", c->n_shards);
}

static void open_journal(struct ps_client *c)
{
    push_journal_origin(c->options.journal, &c->options.origin);
    c->resend.last_seq = c->options.origin.last_seq;
    c->resend.is_due = push_journal_has_found(c->options.journal);
    uv_mutex_init(&c->resend.lock);
}

int ps_open(const struct ps_options *options, struct ps_client **ret_client, struct err *err)
{
    struct ps_client *c = memory_try_alloc(sizeof *c);
    struct client_state_hooks hooks;
    int status;

    if (!c)
        return err_set(err, -ENOMEM, "no memory for a client");
    c->options = complete_options(options);
    hooks = make_hooks(&c->options);
    status = argument_check_options(&c->options, err);
    if (!status) {
        status = client_state_init(&c->state, &hooks);
        if (status)
            err_set(err, status, "no lock: %s", status_text(status));
    }
    if (status) {
        free(c);
        return status;
    }
    if (c->options.journal)
        open_journal(c);
    c->n_ticked = c->options.origin.next_clock;
    status = network_thread_new(&c->options, &c->state, &c->net, err);
    if (!status) {
        status = client_state_wait_open(
            &c->state, after_ms(2 * (uint64_t)c->options.connect_ms + SLACK_MS), err);
        if (status == -ETIMEDOUT)
            status = err_set(err, PS_EDEADLINE, "the servers at %s are not ready after %u s",
                             c->options.servers, c->options.connect_ms / 1000);
        else if (status == -EINTR)
            status = report_not_yet(status, err);
    }
    if (!status)
        status = make_buffers(c, err);
    if (status)
        ps_close(c);
    else
        *ret_client = c;
    return status;
}

void ps_close(struct ps_client *c)
{
    if (!c)
        return;
    network_thread_free(c->net);
    client_state_deinit(&c->state);
    if (c->options.journal) {
        if (c->has_left)
            push_journal_remove(c->options.journal);
        uv_mutex_destroy(&c->resend.lock);
    }
    push_encoder_free(c->encoder);
    free(c->tables);
    if (c->n_shards)
        request_set_deinit(&c->push_set);
    free(c);
}

/* ---- tables ---- */

/* The answers to the request under way. */
static int wait_table(struct ps_client *c, struct client_state_table *ret, struct err *err)
{
    const struct table_request *request = &c->table.request;
    int status = client_state_wait_table(
        &c->state, after_ms(2 * (uint64_t)c->options.give_up_ms + SLACK_MS), ret, err);

    if (status == -EINTR)
        return report_not_yet(status, err);
    c->table.is_under_way = false;
    if (status == -ETIMEDOUT) {
        status = err_set(err, PS_EDEADLINE, "table %s: the shards have not answered",
                         request->spec.name);
        client_state_fail(&c->state, status,
                          "a table that was asked for never came"); /* its number is in doubt */
    } else if (!status && ret->status) {
        network_thread_drop_table(c->net);
        status = err_set(err, ret->status, "%s",
                         ret->text[0] ? ret->text : status_text(ret->status));
    }
    return status;
}

/* The table of an earlier request that nobody has waited for to its end. */
static int drop_other_table(struct ps_client *c, const struct table_request *request,
                            struct err *err)
{
    struct client_state_table answer = { 0 };
    int status;

    if (!c->table.is_under_way || memcmp(&c->table.request, request, sizeof *request) == 0)
        return 0;
    status = wait_table(c, &answer, err);
    if (!status)
        network_thread_drop_table(c->net);
    return status && status == answer.status ? 0 : status; /* its refusal is not for this one */
}

/* Asks all shards; what they answer. */
static int request_table(struct ps_client *c, const struct table_request *request,
                         struct client_state_table *ret, struct err *err)
{
    int status = check_not_over(c, err);

    if (!status)
        status = drop_other_table(c, request, err);
    if (status)
        return status;
    if (c->n_tables == PS_TABLES_MAX)
        return err_set(err, -ENOSPC, "table %s: a client has at most %u tables",
                       request->spec.name, PS_TABLES_MAX);
    if (!c->table.is_under_way) {
        status = client_state_start_table(&c->state, err);
        if (status)
            return status;
        if (network_thread_table(c->net, request))
            return err_set(err, -ENOMEM, "table %s: no memory", request->spec.name);
        c->table.is_under_way = true;
        c->table.request = *request;
    }
    return wait_table(c, ret, err);
}

static int add_table(struct ps_client *c, const struct table_spec *spec, uint32_t missing,
                     uint32_t *ret_table, struct err *err)
{
    if (push_encoder_add_table(c->encoder, c->n_tables, spec)) {
        network_thread_drop_table(c->net);
        return err_set(err, -ENOMEM, "table %s: no memory for rows of %u floats", spec->name,
                       spec->dim);
    }
    c->tables[c->n_tables] = (struct known_table){ *spec, missing };
    *ret_table = c->n_tables++;
    return 0;
}

const struct table_spec *ps_table_spec(const struct ps_client *c, uint32_t table)
{
    return table < c->n_tables ? &c->tables[table].spec : NULL;
}

/* What a shard of an older version would not understand is not sent to it. */
static int check_features(const struct ps_client *c, uint32_t table, uint32_t feature,
                          const char *what, struct err *err)
{
    const struct known_table *t = &c->tables[table];

    if (!(t->missing & feature))
        return 0;
    return err_set(err, PS_EVERSION,
                   "table %s: a psd of this cluster is of an older version, which has no %s",
                   t->spec.name, what);
}

int ps_table(struct ps_client *c, const struct table_spec *spec, uint32_t *ret_table,
             struct err *err)
{
    struct table_request request;
    struct client_state_table answer;
    int status = table_spec_check(spec, err);

    memset(&request, 0, sizeof request); /* its bytes are compared */
    request.spec = *spec;
    if (!status)
        status = table_spec_explain(spec, request_table(c, &request, &answer, err), err);
    return status ? status : add_table(c, spec, answer.missing, ret_table, err);
}

int ps_table_find(struct ps_client *c, struct table_spec *spec, uint32_t *ret_table,
                  struct err *err)
{
    struct table_request request;
    struct client_state_table answer;
    int status;

    memset(&request, 0, sizeof request);
    request.spec = *spec;
    request.must_exist = true;
    status = request_table(c, &request, &answer, err);
    if (!status && table_spec_check(&answer.spec, err)) {
        network_thread_drop_table(c->net);
        status = PS_ESPEC;
    }
    if (!status)
        status = add_table(c, &answer.spec, answer.missing, ret_table, err);
    if (!status)
        *spec = answer.spec;
    return status;
}

/* ---- pushes of the process before, through the journal (push_journal.h) ---- */

/* This process's number of the table, the last if it was asked for twice. */
static int find_table(const struct push_encoder *e, const char *name, uint32_t *ret,
                      struct err *err)
{
    uint32_t i = push_encoder_n_tables(e);

    while (i-- > 0)
        if (strncmp(push_encoder_table_name(e, i), name, TABLE_SPEC_NAME_MAX) == 0) {
            *ret = i;
            return 0;
        }
    return err_set(err, PS_ESPEC,
                   "what is kept of this worker is of another model: this one has no table "
                   "\"%s\"",
                   name);
}

static int translate(const struct push_encoder *e, struct push_journal_push *p, struct err *err)
{
    int status = 0;

    for (uint32_t i = 0; i < p->n_shards; i++)
        for (uint32_t k = 0; k < p->requests[i]->n_sections && !status; k++) {
            struct section *s = &p->requests[i]->sections[k];

            status = find_table(e, p->found_names[s->table_id], &s->table_id, err);
        }
    return status;
}

/* The epoch is 0 as long as the worker is the one that it was. */
static int resend_push(struct ps_client *c, struct push_journal_push *p, struct err *err)
{
    struct client_state_identity id;
    uint64_t n_bytes = 0;
    int status = translate(c->encoder, p, err);

    if (status)
        return status;
    for (uint32_t i = 0; i < p->n_shards; i++) {
        p->requests[i]->seq = p->seq;
        n_bytes += bytes_len(&p->requests[i]->bytes);
    }
    client_state_add_pushes(&c->state, p->n_shards, n_bytes, &id);
    network_thread_push(c->net, id.epoch, p->requests);
    return 0;
}

static int resend_all(struct ps_client *c, struct err *err)
{
    struct client_state_identity id;
    struct push_journal_push *p;
    int status = 0;

    client_state_add_pushes(&c->state, 0, 0, &id);
    if (id.epoch)
        push_journal_drop_found(c->options.journal,
                                "this worker has had to join as a new incarnation");
    while (!status && (p = push_journal_pop(c->options.journal)) != NULL) {
        status = resend_push(c, p, err);
        push_journal_format_free_push(p);
    }
    return status;
}

/* All tables are known. When the worker has had to join as a new incarnation meanwhile, what was found is dropped.
 * PS_ESPEC, from then on: it has a table that this model has not. */
static int resend(struct ps_client *c, struct err *err)
{
    int status = 0;

    if (!atomic_load(&c->resend.is_due))
        return 0;
    uv_mutex_lock(&c->resend.lock);
    if (atomic_load(&c->resend.is_due) && !c->resend.failure.status &&
        !resend_all(c, &c->resend.failure))
        atomic_store(&c->resend.is_due, false);
    status = c->resend.failure.status;
    if (status)
        *err = c->resend.failure;
    uv_mutex_unlock(&c->resend.lock);
    return status;
}

/* Numbers the requests of a push, and keeps it; nothing of one that nobody will take. */
static void keep_push(struct ps_client *c, const struct client_state_identity *id)
{
    const char *names[PS_TABLES_MAX];
    struct push_journal_push push = { .map_id = id->map_id,
                                      .n_shards = c->n_shards,
                                      .names = names,
                                      .requests = c->push_set.requests };

    if (id->epoch == UINT64_MAX)
        return;
    if (id->epoch != c->resend.epoch)
        c->resend.last_seq = 0;
    c->resend.epoch = id->epoch;
    push.seq = ++c->resend.last_seq;
    push.n_tables = push_encoder_n_tables(c->encoder);
    for (uint32_t i = 0; i < push.n_tables; i++)
        names[i] = push_encoder_table_name(c->encoder, i);
    for (uint32_t i = 0; i < c->n_shards; i++)
        push.requests[i]->seq = push.seq;
    push_journal_put(c->options.journal, id->incarnation, &push, id->acked);
}

/* ---- pull ---- */

/* Steps before `clock` whose push the network thread does not have yet. */
static uint64_t n_unfinished(const struct ps_client *c, uint64_t clock, uint64_t joined_at)
{
    uint64_t finished = atomic_load(&c->n_ticked);

    if (finished < joined_at)
        finished = joined_at;
    return clock > finished ? clock - finished : 0;
}

static void send_pull(struct ps_client *c, struct ps_pull *pull)
{
    struct request **requests = pull->requests.requests;
    uint64_t joined_at, unfinished;
    uint32_t n_came = client_state_start_pull(&c->state, pull, &joined_at);

    unfinished = n_unfinished(c, pull->clock, joined_at);
    for (uint32_t i = 0; i < c->n_shards; i++) {
        requests[i]->pull = pull;
        requests[i]->pull_id = pull->id;
        requests[i]->clock = pull->clock;
        requests[i]->unfinished = unfinished;
        requests[i]->deadline_ms = c->options.pull_ms;
    }
    network_thread_pull(c->net, pull->epoch, requests, n_came);
}

/* What can be told without the servers, and an error of an earlier push. */
static int check_pull(struct ps_client *c, const struct ps_pull_section *sections, uint32_t n,
                      struct err *err)
{
    int status = check_not_over(c, err);

    if (!status)
        status = argument_check_pull(sections, n, c->n_tables, err);
    for (uint32_t i = 0; i < n && !status; i++)
        status = check_features(c, sections[i].table, argument_check_feature(&sections[i]),
                                "such pulls", err);
    return status ? status : resend(c, err);
}

static int acquire_pull(struct ps_client *c, struct ps_pull **ret, struct err *err)
{
    uint64_t until_ns =
        c->options.is_interruptible ? after_ms(c->options.pull_ms) : CLIENT_STATE_NO_DEADLINE;
    int status = client_state_acquire_pull(&c->state, until_ns, ret, err);

    if (status == -EINTR)
        return report_not_yet(status, err);
    return status == -ETIMEDOUT
               ? err_set(err, PS_EDEADLINE, "this worker has not joined again for %u s",
                         c->options.pull_ms / 1000)
               : status;
}

int ps_ready_until(struct ps_client *c, uint64_t until_ns, struct err *err)
{
    int status = client_state_wait_window(&c->state, UINT64_MAX, until_ns, err);

    return status == -EINTR || status == -ETIMEDOUT ? report_not_yet(status, err) : status;
}

int ps_pull_start(struct ps_client *c, uint64_t clock, const struct ps_pull_section *sections,
                  uint32_t n, struct ps_pull **ret_pull, struct err *err)
{
    return ps_pull_start_tagged(c, clock, sections, n, NULL, ret_pull, err);
}

int ps_pull_start_tagged(struct ps_client *c, uint64_t clock,
                         const struct ps_pull_section *sections, uint32_t n, void *tag,
                         struct ps_pull **ret_pull, struct err *err)
{
    struct ps_pull *pull;
    int status = check_pull(c, sections, n, err);

    if (!status)
        status = acquire_pull(c, &pull, err);
    if (status)
        return status;
    status = pull_encode(pull, c->encoder, sections, n);
    if (status) {
        client_state_end_pull(&c->state, pull);
        return err_set(err, status, "pull of clock %" PRIu64 ": %s", clock,
                       status_text(status));
    }
    pull->tag = tag;
    pull->clock = clock;
    pull->deadline_ns = after_ms((uint64_t)c->options.pull_ms + SLACK_MS);
    send_pull(c, pull);
    count(&c->n_pulls, 1);
    for (uint32_t i = 0; i < n; i++)
        traffic_pulled(&c->state.traffic, &sections[i], c->tables[sections[i].table].spec.dim);
    *ret_pull = pull;
    return 0;
}

static int decode_answer(struct ps_client *c, struct ps_pull *pull, uint32_t shard,
                         struct err *err)
{
    int status = pull_decode(pull, shard);
    char name[160];

    if (!status)
        return 0;
    network_thread_shard_name(c->net, shard, name, sizeof name);
    return err_set(err, status, "%s answered a pull with rows that cannot be read: %s", name,
                   status_text(status));
}

static int report_refused_pull(struct ps_client *c, const struct ps_pull *pull, uint32_t shard,
                               struct err *err)
{
    const struct pull_answer *a = &pull->answers[shard];
    char name[160];

    network_thread_shard_name(c->net, shard, name, sizeof name);
    if (a->is_lost)
        return err_set(err, a->status, "no memory for what %s answered a pull", name);
    return err_set(err, a->status, "%s refused a pull: %s", name,
                   a->text[0] ? a->text : status_text(a->status));
}

static int report_late_pull(struct ps_client *c, const struct ps_pull *pull, struct err *err)
{
    uint32_t shard = client_state_first_silent(&c->state, pull);
    char name[160] = "a shard";

    if (shard < c->n_shards)
        network_thread_shard_name(c->net, shard, name, sizeof name);
    return err_set(
        err, PS_EDEADLINE,
        "%s has not answered a pull for %u s; what it waits for, other workers or its disk, "
        "`psctl why` shows",
        name, c->options.pull_ms / 1000);
}

/* Waits for one shard after the other, and decodes while the next ones are still on their
 * way. */
static int collect(struct ps_client *c, struct ps_pull *pull, uint64_t since_ns,
                   uint64_t until_ns, struct err *err)
{
    uint32_t *shard = &pull->n_decoded, refused;
    int status = 0;

    for (; *shard < c->n_shards; ++*shard) {
        status = client_state_wait_answer(&c->state, pull, *shard, until_ns, &refused, err);
        count(&c->park_ns, uv_hrtime() - since_ns);
        if (!status && refused < c->n_shards)
            status = report_refused_pull(c, pull, refused, err);
        else if (!status)
            status = decode_answer(c, pull, *shard, err);
        if (status)
            break;
        if (*shard + 1 < c->n_shards)
            since_ns = uv_hrtime();
    }
    return status == -ETIMEDOUT ? report_late_pull(c, pull, err) : status;
}

int ps_pull_wait(struct ps_client *c, struct ps_pull *pull, struct err *err)
{
    return ps_pull_wait_until(c, pull, CLIENT_STATE_NO_DEADLINE, err);
}

int ps_pull_wait_until(struct ps_client *c, struct ps_pull *pull, uint64_t until_ns,
                       struct err *err)
{
    uint64_t since_ns = uv_hrtime();
    int status;

    if (!pull) {
        status = client_state_wait_window(&c->state, UINT64_MAX, CLIENT_STATE_NO_DEADLINE, err);
        return status ? status : err_set(err, -EINVAL, "no pull is under way");
    }
    status = client_state_begin_wait(&c->state, pull, since_ns, err);
    if (status)
        return status;
    status = collect(c, pull, since_ns, until_ns, err);
    if (status == -EAGAIN || status == -EINTR) {
        client_state_pause_wait(&c->state, pull);
        return report_not_yet(status, err);
    }
    if (!status)
        atomic_store(&c->pulled_clock, pull->min_clock);
    client_state_end_pull(&c->state, pull);
    if (status)
        network_thread_drop_ended_pulls(c->net);
    return status;
}

struct ps_pull *ps_pull_next(struct ps_client *c, void **ret_tag, bool *ret_more)
{
    return client_state_next_came(&c->state, ret_tag, ret_more);
}

bool ps_pull_has_next(struct ps_client *c)
{
    return client_state_has_come(&c->state);
}

void ps_pull_cancel_tagged(struct ps_client *c, struct ps_pull *pull, const void *tag)
{
    client_state_cancel_pull(&c->state, pull, tag);
}

void ps_stop(struct ps_client *c, const char *sentence)
{
    client_state_fail(&c->state, -ECANCELED, sentence);
}

void ps_pull_cancel(struct ps_client *c, struct ps_pull *pull)
{
    if (pull)
        client_state_cancel_pull(&c->state, pull, NULL);
    else
        client_state_cancel_pulls(&c->state);
}

/* A push that was made while the shards declared the worker dead went to nobody, and is dropped like those that were
 * under way. Its step stays finished: pulls behind it say so. */
uint64_t ps_resume(struct ps_client *c)
{
    uint64_t clock = client_state_resume(&c->state), ticked = atomic_load(&c->n_ticked);

    return clock > ticked ? clock : ticked;
}

/* ---- push ---- */

static void send_push(struct ps_client *c, uint64_t clock, uint32_t n_samples, bool tick)
{
    struct client_state_identity id;
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < c->n_shards; i++) {
        struct request *r = c->push_set.requests[i];

        r->clock = clock;
        r->n_samples = n_samples;
        r->tick = tick;
        r->n_versions = c->tap.push ? c->tap.push(c->tap.arg, i, r) : 1;
        n_bytes += bytes_len(&r->bytes);
    }
    count(&c->bytes_pushed, n_bytes);
    client_state_add_pushes(&c->state, c->n_shards, n_bytes, &id);
    if (c->options.journal)
        keep_push(c, &id);
    network_thread_push(c->net, id.epoch, c->push_set.requests);
    if (tick)
        atomic_store(&c->n_ticked, clock + 1);
}

/* For ps_stats(), which may be another thread's. */
static void publish_residuals(struct ps_client *c)
{
    struct push_encoder_residuals residuals;

    push_encoder_residuals(c->encoder, &residuals);
    atomic_store_explicit(&c->residual_rows, residuals.n_rows, memory_order_relaxed);
    atomic_store_explicit(&c->residual_bytes, residuals.n_bytes, memory_order_relaxed);
    atomic_store_explicit(&c->residual_flushed, residuals.n_flushed, memory_order_relaxed);
}

static int wait_window(struct ps_client *c, uint64_t max_bytes, uint64_t until_ns,
                       struct err *err)
{
    int status;

    atomic_store(&c->window_since_ns, uv_hrtime());
    status = client_state_wait_window(&c->state, max_bytes, until_ns, err);
    atomic_store(&c->window_since_ns, 0);
    return status == -EINTR || status == -ETIMEDOUT ? report_not_yet(status, err) : status;
}

/* The push may begin. */
static int wait_push(struct ps_client *c, struct err *err)
{
    uint64_t until_ns =
        c->options.push_ms ? after_ms(c->options.push_ms) : CLIENT_STATE_NO_DEADLINE;
    int status = wait_window(c, c->options.window_bytes, until_ns, err);

    return status == -EAGAIN ? err_set(err, PS_EDEADLINE,
                                       "a push waited %u s for the shards to acknowledge "
                                       "earlier ones; what they wait for `psctl why` shows",
                                       c->options.push_ms / 1000)
                             : status;
}

/* What not every psd knows. */
static int check_op(const struct ps_client *c, const struct ps_push_section *s, struct err *err)
{
    if (s->op == SECTION_RATE)
        return check_features(c, s->table, MESSAGE_FEATURE_RATES, "learning rates", err);
    if (s->op == SECTION_GRADIENT_AT)
        return check_features(c, s->table, MESSAGE_FEATURE_DELAYS, "delay compensation", err);
    return s->op == SECTION_ASSIGN_STATE
               ? check_features(c, s->table, MESSAGE_FEATURE_WHOLE_TABLES, "assigned states",
                                err)
               : 0;
}

/* As check_pull(). */
static int check_push(struct ps_client *c, const struct ps_push_section *sections, uint32_t n,
                      struct err *err)
{
    int status = check_not_over(c, err);

    if (!status && c->options.reader)
        status = err_set(err, -EINVAL, "a reader does not push: it has no job");
    if (!status)
        status = argument_check_push(sections, n, c->n_tables, err);
    for (uint32_t i = 0; i < n && !status; i++) {
        status = argument_check_rows(&sections[i], &c->tables[sections[i].table].spec, err);
        if (!status)
            status = check_op(c, &sections[i], err);
    }
    return status ? status : resend(c, err);
}

int ps_push(struct ps_client *c, uint64_t clock, uint32_t n_samples, bool tick,
            const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    uint64_t since_ns = uv_hrtime();
    uint32_t i;
    int status = check_push(c, sections, n, err);

    if (!status)
        status = wait_push(c, err);
    count(&c->window_ns, uv_hrtime() - since_ns);
    if (status)
        return status;
    status = request_set_acquire(&c->push_set, n);
    if (!status)
        status = push_encoder_push(c->encoder, sections, n, c->push_set.requests);
    if (status) {
        request_set_release(&c->push_set);
        return err_set(err, status, "push of clock %" PRIu64 ": %s", clock,
                       status_text(status));
    }
    send_push(c, clock, n_samples, tick);
    if (push_encoder_keeps_residuals(c->encoder))
        publish_residuals(c);
    count(&c->n_pushes, 1);
    for (i = 0; i < n; i++)
        traffic_pushed(&c->state.traffic, &sections[i], c->tables[sections[i].table].spec.dim);
    return 0;
}

int ps_flush_until(struct ps_client *c, uint64_t until_ns, struct err *err)
{
    int status = check_not_over(c, err);

    if (!status)
        status = resend(c, err);
    return status ? status : wait_window(c, 0, until_ns, err);
}

/* The answers to the farewell. */
static int wait_left(struct ps_client *c, uint64_t until_ns, struct err *err)
{
    uint64_t deadline_ns = after_ms(LEAVE_MS);
    bool is_callers = until_ns < deadline_ns;
    int status = client_state_wait_left(&c->state, is_callers ? until_ns : deadline_ns, err);

    if (status == -EINTR || (status == -ETIMEDOUT && is_callers))
        return report_not_yet(status, err);
    c->is_leaving = false;
    if (status == -ETIMEDOUT)
        status = err_set(err, PS_EDEADLINE,
                         "the shards have not answered the farewell for %u s", LEAVE_MS / 1000);
    c->has_left = !status && !c->resend.failure.status;
    return status;
}

int ps_leave_until(struct ps_client *c, uint64_t until_ns, struct err *err)
{
    struct err leave_err;
    int status, left;

    if (c->is_leaving)
        return wait_left(c, until_ns, err);
    status = check_not_over(c, err);
    if (status)
        return status;
    status = ps_flush_until(c, until_ns, err);
    if (status == -EINTR || status == -EAGAIN)
        return status;
    client_state_cancel_pulls(&c->state);
    if (status == PS_EFENCED || client_state_is_failed(&c->state))
        return status;
    atomic_store(&c->is_over, true);
    c->is_leaving = true;
    client_state_start_leave(&c->state);
    client_state_cancel_pulls(&c->state); /* of threads that have started one meanwhile */
    network_thread_leave(c->net);
    left = wait_left(c, until_ns, &leave_err);
    if (status || !left)
        return status;
    return err_set(err, left, "%s", leave_err.text);
}

/* ---- getters, counters ---- */

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
    uint64_t clock = client_state_clock(&c->state), previous = c->options.origin.next_clock;

    return clock > previous ? clock : previous;
}

uint64_t ps_next_clock(const struct ps_client *c)
{
    const uint64_t clock = ps_clock(c), ticked = atomic_load(&c->n_ticked);

    return clock > ticked ? clock : ticked;
}

struct push_encoder *ps_encoder(const struct ps_client *c)
{
    return c->encoder;
}

static uint64_t lasted_ns(uint64_t since_ns, uint64_t now_ns)
{
    return since_ns && now_ns > since_ns ? now_ns - since_ns : 0;
}

/* Of a thread that pulls, or of the one that pushes. */
static uint64_t waiting_ns(const struct ps_client *c)
{
    struct client_state *locked = (struct client_state *)&c->state; /* reading takes the lock */
    uint64_t parked_since_ns = client_state_waited_since(locked),
             window_since_ns = atomic_load(&c->window_since_ns), now = uv_hrtime(),
             parked = lasted_ns(parked_since_ns, now), window = lasted_ns(window_since_ns, now);

    return parked > window ? parked : window;
}

void ps_stats(const struct ps_client *c, struct ps_stats *ret)
{
    *ret = (struct ps_stats){ .pulls = c->n_pulls,
                              .pushes = c->n_pushes,
                              .bytes_pushed = c->bytes_pushed,
                              .park_ns = c->park_ns,
                              .waiting_ns = waiting_ns(c),
                              .pulled_clock = c->pulled_clock,
                              .window_ns = c->window_ns,
                              .residual_rows = c->residual_rows,
                              .residual_bytes = c->residual_bytes,
                              .residual_flushed = c->residual_flushed };
    traffic_read(&c->state.traffic, ret);
    network_thread_stats(c->net, ret);
}

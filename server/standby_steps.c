/* The steps that a standby's life is made of: standby_dialog.c, standby_data.c and standby_fetch.c take them. */
#include "server/standby_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "proto/connector.h"
#include "server/replication/arithmetic.h"
#include "server/shard_follower.h"
#include "server/standby_settings.h"

#define ANSWERS_MS 2000u /* since its last word a primary counts as one that answers */

/* --- small things --- */

void standby_set_state(struct standby *s, enum standby_state state)
{
    s->state = state;
    s->since_ms = clock_mono_ms();
    s->since_unix_ms = clock_unix_ms();
}

/* A line of the log for each new reason. */
void standby_set_why(struct standby *s, const char *why)
{
    if (why[0] && strcmp(why, s->logged) != 0) {
        log_line_warn("standby of %s: %s", s->config.primary, why);
        snprintf(s->logged, sizeof s->logged, "%s", why);
    }
    snprintf(s->why, sizeof s->why, "%s", why);
}

void standby_end_if_stopped(struct standby *s)
{
    void (*stopped)(void *arg) = s->stopped;

    if (s->state != STANDBY_STOPPED || s->is_working || s->n_outstanding || !stopped)
        return;
    s->stopped = NULL;
    stopped(s->stopped_arg);
}

/* --- jobs and rounds --- */

static void run_job(uv_work_t *work)
{
    struct standby *s = work->data;

    enter_pool();
    s->err.status = s->job(s, &s->err);
}

static void on_job(uv_work_t *work, int status)
{
    struct standby *s = work->data;

    enter_main();
    assert(status == 0);
    s->is_working = false;
    if (s->state == STANDBY_STOPPED)
        standby_end_if_stopped(s);
    else
        s->then(s);
}

void standby_start_job(struct standby *s, int (*job)(struct standby *s, struct err *err),
                       void (*then)(struct standby *s))
{
    assert(!s->is_working);
    s->found.in_sync = s->terms.in_sync;
    s->found.term = terms_last(&s->terms);
    s->found.history = s->terms.history;
    s->found.n_bytes = s->copy.n_bytes;
    s->found.n_total_bytes = s->copy.n_total_bytes;
    s->is_working = true;
    s->err = (struct err){ 0 };
    s->job = job;
    s->then = then;
    if (uv_queue_work(s->config.loop, &s->work, run_job, on_job))
        abort(); /* only for a NULL callback */
}

static void on_task_back(struct mail *mail, void *owner)
{
    struct standby *s = CONTAINER_OF(mail, struct standby_task, mail)->standby;

    (void)owner;
    enter_main();
    if (--s->n_outstanding)
        return;
    if (s->state == STANDBY_STOPPED)
        standby_end_if_stopped(s);
    else
        s->then_shards(s);
}

void standby_send_back(struct standby_task *task)
{
    int status;

    task->mail.run = on_task_back;
    status = mailbox_post(task->standby->config.mailbox, &task->mail);
    assert(status == 0); /* the main thread's box outlives the shards */
}

void standby_on_shards(struct standby *s, void (*run)(struct mail *mail, void *owner),
                       void (*then)(struct standby *s))
{
    assert(!s->n_outstanding);
    s->then_shards = then;
    s->n_outstanding = standby_n_shards(s);
    for (uint32_t i = 0; i < standby_n_shards(s); i++) {
        int status;

        s->tasks[i].mail.run = run;
        status = shard_thread_post(s->config.shards[i], &s->tasks[i].mail);
        assert(status == 0); /* they are stopped behind standby_stop() */
    }
}

void standby_see_shard(const struct standby *s, uint32_t i, struct shard_follower_view *ret)
{
    shard_follower_see(shard_thread_follower(s->config.shards[i]), ret);
}

/* What the shards have, in memory, too. */
void standby_update_last(struct standby *s)
{
    struct shard_follower_view view;

    for (uint32_t i = 0; i < standby_n_shards(s) && s->is_loaded; i++) {
        standby_see_shard(s, i, &view);
        s->last[i] = view.received;
    }
}

int standby_write_terms(struct standby *s, struct err *err)
{
    return terms_write(s->config.files, s->config.settings->data_dir, &s->terms, err);
}

void standby_fail(struct standby *s)
{
    struct err err = s->err;

    s->config.events->failed(s->config.node, &err);
}

void standby_hello_of(const struct standby *s, struct hello *ret)
{
    *ret = (struct hello){ .version_min = PROTO_VERSION_MIN,
                           .version_max = PROTO_VERSION_MAX,
                           .role = "standby",
                           .shard = MESSAGE_SHARD_LISTENER,
                           .frame_flags = FRAME_SUM_BEHIND };
    snprintf(ret->token, sizeof ret->token, "%.127s", s->config.settings->token);
    snprintf(ret->name, sizeof ret->name, "%.63s", s->config.own_address);
}

void standby_dial_later(struct standby *s, const char *why)
{
    standby_set_why(s, why);
    standby_set_state(s, STANDBY_DIALLING);
    s->retry_ms = clock_mono_ms() + connector_backoff_ms(s->n_failed, clock_mono_ns());
    s->n_failed++;
}

void standby_ask(struct standby *s, int written)
{
    if (!written)
        written = standby_session_ask(&s->session);
    if (written) {
        bytes_deinit(&s->session.out);
        standby_session_drop(&s->session);
        standby_dial_later(s, status_text(written));
    }
}

/* --- the primary is asked --- */

/* The term of the newest record. */
static uint64_t term_of_last(const struct standby *s)
{
    for (uint32_t i = s->terms.n; i > 0; i--)
        for (uint32_t shard = 0; shard < standby_n_shards(s); shard++)
            if (s->terms.items[i - 1].first[shard] <= s->last[shard])
                return s->terms.items[i - 1].term;
    return 0;
}

/* With less than this a primary comes back with an older directory than it had. */
static void put_stored(const struct standby *s, uint64_t *ret)
{
    struct shard_follower_view view;

    for (uint32_t i = 0; i < standby_n_shards(s) && s->is_loaded; i++) {
        standby_see_shard(s, i, &view);
        ret[i] = view.stored;
    }
}

void standby_follow(struct standby *s)
{
    bool has = s->terms.history && !s->wants_copy;
    struct follow *m = memory_alloc(sizeof *m);
    uint8_t *terms = memory_alloc(message_terms_bytes(s->terms.n, standby_n_shards(s)) + 1);

    standby_set_state(s, STANDBY_DIALLING);
    standby_update_last(s);
    *m = (struct follow){ .memory_max = s->config.settings->memory_max_bytes,
                          .n_shards = standby_n_shards(s),
                          .terms = terms };
    standby_settings_text(s->config.settings, s->config.map, m->settings);
    arithmetic_fingerprint(m->cpu);
    snprintf(m->address, sizeof m->address, "%.127s", s->config.own_address);
    if (has) {
        m->term = term_of_last(s);
        m->history = s->terms.history;
        m->n_terms = s->terms.n;
        memcpy(m->last, s->last, standby_n_shards(s) * sizeof *m->last);
        terms_put(&s->terms, terms);
        put_stored(s, m->stored);
    }
    standby_ask(s, message_write_follow(&s->session.out, ++s->session.request_id, m));
    free(terms);
    free(m);
}

/* --- does it answer? --- */

uint64_t standby_heard_ms(const struct standby *s)
{
    uint64_t heard_ms = s->session.heard_ms;
    struct shard_follower_view view;

    for (uint32_t i = 0; i < standby_n_shards(s) && s->is_loaded; i++) {
        standby_see_shard(s, i, &view);
        if (view.heard_ms > heard_ms)
            heard_ms = view.heard_ms;
    }
    return heard_ms;
}

bool standby_is_answering(const struct standby *s)
{
    return ((s->session.state == SESSION_WELCOME && !s->is_moved) || s->is_refusing) &&
           clock_mono_ms() - standby_heard_ms(s) < ANSWERS_MS;
}

/* --- the shards are loaded --- */

void standby_keep_all(struct standby *s)
{
    for (uint32_t i = 0; i < standby_n_shards(s); i++)
        s->keep[i] = UINT64_MAX;
}

void standby_rebuild(struct standby *s)
{
    standby_set_state(s, STANDBY_REBUILDING);
    s->config.events->rebuild(s->config.node, s->keep);
}

/* --- the claim --- */

bool standby_is_named(const struct standby *s)
{
    const struct claim *c = coordination_claim(s->config.coordination);

    return c && c->in_sync && c->term == s->followed_term &&
           strcmp(c->standby, s->config.own_address) == 0 &&
           !coordination_is_doubtful(s->config.coordination);
}

bool standby_is_claimed(const struct standby *s)
{
    const struct claim *c = coordination_claim(s->config.coordination);

    return c && coordination_is_own(s->config.coordination) &&
           !coordination_is_doubtful(s->config.coordination) && s->terms.history &&
           c->history == s->terms.history && c->term > terms_last(&s->terms);
}

bool standby_lacks_by_claim(const struct standby *s)
{
    const struct claim *c =
        s->config.coordination ? coordination_claim(s->config.coordination) : NULL;

    return c && (coordination_is_doubtful(s->config.coordination) ||
                 (!coordination_is_own(s->config.coordination) &&
                  !(c->in_sync && strcmp(c->standby, s->config.own_address) == 0)));
}

bool standby_may_claim(const struct standby *s)
{
    if (!coordination_is_known(s->config.coordination))
        return false;
    if (s->promises & STANDBY_BY_ITSELF)
        return standby_is_named(s) || standby_is_claimed(s);
    return (s->promises & STANDBY_ACCEPT_LOSS) || !standby_lacks_by_claim(s);
}

#include "server/standby_shards.h"

#include <assert.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/memory.h"

/* One shard's part of what is asked. */
struct shard_step {
    struct shard_call call;
    struct standby_shards *shards;
    enum shard_thread_standby what;
    struct fetch_standby standby;
    uint64_t last;
};

/* An order that nobody waits for. */
struct shard_order {
    struct mail mail;
    enum shard_thread_standby what;
};

struct standby_shards {
    struct shard_call_config config;
    uint32_t n, n_outstanding;
    void (*done)(void *owner);
    void *owner;
    struct shard_step *steps;    /* owned, n */
    struct sync_shard *as_found; /* owned, n */
};

struct standby_shards *standby_shards_new(const struct shard_call_config *config, uint32_t n,
                                          void (*done)(void *owner), void *owner)
{
    struct standby_shards *s = memory_alloc(sizeof *s);

    s->config = *config;
    s->n = n;
    s->done = done;
    s->owner = owner;
    s->steps = memory_alloc(n * sizeof *s->steps);
    s->as_found = memory_alloc(n * sizeof *s->as_found);
    return s;
}

void standby_shards_free(struct standby_shards *s)
{
    if (!s)
        return;
    free(s->steps);
    free(s->as_found);
    free(s);
}

static void on_order(struct mail *mail, void *owner)
{
    struct shard_order *order = CONTAINER_OF(mail, struct shard_order, mail);

    enter_shard();
    (void)shard_thread_standby(owner, order->what, NULL);
    free(order);
}

void standby_shards_order(struct standby_shards *s, enum shard_thread_standby what)
{
    for (uint32_t i = 0; i < s->n; i++) {
        struct shard_order *order = memory_alloc(sizeof *order);

        *order = (struct shard_order){ .mail.run = on_order, .what = what };
        if (shard_thread_post(s->config.shards[i], &order->mail))
            free(order); /* it stops */
    }
}

static int ask_shard(struct shard_call *call, struct shard_thread *t)
{
    struct shard_step *step = CONTAINER_OF(call, struct shard_step, call);

    enter_shard();
    if (step->what == SHARD_STANDBY_HOLD)
        (void)shard_thread_standby(t, SHARD_STANDBY_END, NULL);
    step->last = shard_thread_standby(t, step->what, &step->standby);
    return 0;
}

static void on_answered(struct shard_call *call)
{
    struct standby_shards *s = CONTAINER_OF(call, struct shard_step, call)->shards;

    enter_main();
    if (--s->n_outstanding == 0)
        s->done(s->owner);
}

void standby_shards_ask(struct standby_shards *s, enum shard_thread_standby what,
                        const struct fetch_standby *standby, const uint64_t *keep)
{
    assert(!s->n_outstanding);
    s->n_outstanding = s->n;
    for (uint32_t i = 0; i < s->n; i++) {
        struct shard_step *step = &s->steps[i];

        *step = (struct shard_step){
            .call = { .config = s->config, .ask = ask_shard, .answered = on_answered },
            .shards = s,
            .what = what,
            .standby = *standby
        };
        step->standby.keep = keep ? keep[i] : 0;
        if (shard_call_start(&step->call, i))
            s->n_outstanding--; /* it stops, and so does the node: nobody waits for `done` */
    }
}

bool standby_shards_is_busy(const struct standby_shards *s)
{
    return s->n_outstanding > 0;
}

void standby_shards_last(const struct standby_shards *s, uint64_t *ret)
{
    for (uint32_t i = 0; i < s->n; i++)
        ret[i] = s->steps[i].last;
}

void standby_shards_next(const struct standby_shards *s, uint64_t *ret)
{
    for (uint32_t i = 0; i < s->n; i++)
        ret[i] = atomic_load(&standby_shards_view(s, i)->appended) + 1;
}

const struct fetch_view *standby_shards_view(const struct standby_shards *s, uint32_t shard)
{
    return shard_thread_fetch_view(s->config.shards[shard]);
}

const struct sync_shard *standby_shards_query(struct standby_shards *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        const struct fetch_view *view = standby_shards_view(s, i);

        s->as_found[i] =
            (struct sync_shard){ .is_connected = atomic_load(&view->is_connected),
                                 .is_closed = atomic_load(&view->is_closed),
                                 .held = atomic_load(&view->held),
                                 .closed_at = atomic_load(&view->closed_at),
                                 .heard_ms = atomic_load(&view->heard_ms),
                                 .caught_up_ms = atomic_load(&view->caught_up_ms) };
    }
    return s->as_found;
}

uint64_t standby_shards_greater_term(const struct standby_shards *s)
{
    uint64_t greatest = 0;

    for (uint32_t i = 0; i < s->n; i++) {
        const uint64_t term = atomic_load(&standby_shards_view(s, i)->greater_term);

        greatest = term > greatest ? term : greatest;
    }
    return greatest;
}

uint64_t standby_shards_differences(const struct standby_shards *s)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < s->n; i++)
        n += atomic_load(&standby_shards_view(s, i)->n_differences);
    return n;
}

void standby_shards_lag(const struct standby_shards *s, uint64_t *ret_records, uint64_t *ret_ms)
{
    const uint64_t now_ms = clock_mono_ms();

    *ret_records = *ret_ms = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct fetch_view *view = standby_shards_view(s, i);
        const uint64_t received = atomic_load(&view->received),
                       appended = atomic_load(&view->appended),
                       sent_ms = atomic_load(&view->sent_ms);

        if (appended <= received)
            continue;
        *ret_records += appended - received;
        if (sent_ms && now_ms > sent_ms && now_ms - sent_ms > *ret_ms)
            *ret_ms = now_ms - sent_ms;
    }
}

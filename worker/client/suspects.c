#include "worker/client/suspects.h"

#include <stdlib.h>

#include "common/memory.h"

/* A limit: a shard repeats its suspects in each reply, so one that finds no space is added later. */
#define ITEMS_MAX 64u

enum stage { NOTHING, DOUBTED, ASKED, REFUSES, AGREED, DONE };

struct item {
    uint32_t rank;
    uint64_t incarnation;
    bool is_agreed;
    uint8_t *stages; /* owned, n_shards: enum stage */
};

struct suspects_relay {
    uint32_t n_shards, n;
    struct item items[ITEMS_MAX];
};

struct suspects_relay *suspects_new(uint32_t n_shards)
{
    struct suspects_relay *r = memory_try_alloc(sizeof *r);

    if (r)
        r->n_shards = n_shards;
    return r;
}

void suspects_free(struct suspects_relay *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->n; i++)
        free(r->items[i].stages);
    free(r);
}

/* The stage that the next heartbeat to this shard leads to; NOTHING: it need not name the suspect. */
static enum stage next_stage(const struct item *item, uint32_t shard)
{
    if (item->stages[shard] < ASKED)
        return ASKED;
    return item->is_agreed && item->stages[shard] == REFUSES ? AGREED : NOTHING;
}

bool suspects_are_open(const struct suspects_relay *r)
{
    return r->n > 0;
}

bool suspects_has_update(const struct suspects_relay *r, uint32_t shard)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (next_stage(&r->items[i], shard) != NOTHING && r->items[i].stages[shard] != DOUBTED)
            return true;
    return false;
}

void suspects_ask(struct suspects_relay *r, uint32_t shard, struct suspects *ret)
{
    for (uint32_t i = 0; i < r->n && ret->n < MESSAGE_SUSPECTS_MAX; i++) {
        struct item *item = &r->items[i];
        enum stage next = next_stage(item, shard);

        if (next == NOTHING)
            continue;
        item->stages[shard] = (uint8_t)next;
        ret->items[ret->n++] = (struct suspect){ .rank = item->rank,
                                                 .incarnation = item->incarnation,
                                                 .is_agreed = next == AGREED };
    }
}

static struct item *find(struct suspects_relay *r, const struct suspect *s)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (r->items[i].rank == s->rank && r->items[i].incarnation == s->incarnation)
            return &r->items[i];
    return NULL;
}

/* NULL: ITEMS_MAX are there, or there is no memory. */
static struct item *upsert(struct suspects_relay *r, const struct suspect *s)
{
    struct item *item = find(r, s);
    uint8_t *stages;

    if (item || r->n == ITEMS_MAX)
        return item;
    stages = memory_try_alloc(r->n_shards);
    if (!stages)
        return NULL;
    r->items[r->n] =
        (struct item){ .rank = s->rank, .incarnation = s->incarnation, .stages = stages };
    return &r->items[r->n++];
}

static bool all_are(const struct suspects_relay *r, const struct item *item, enum stage stage)
{
    for (uint32_t i = 0; i < r->n_shards; i++)
        if (item->stages[i] < stage)
            return false;
    return true;
}

/* As far as is known no shard refuses it. */
static bool is_unsuspected(const struct suspects_relay *r, const struct item *item)
{
    for (uint32_t i = 0; i < r->n_shards; i++)
        if (item->stages[i] >= ASKED)
            return false;
    return true;
}

/* Marks suspects that all shards refuse as agreed, and removes those that are DONE at all shards, or suspected by none.
 */
static void conclude(struct suspects_relay *r)
{
    for (uint32_t i = 0; i < r->n;) {
        struct item *item = &r->items[i];

        item->is_agreed = item->is_agreed || all_are(r, item, REFUSES);
        if (!all_are(r, item, DONE) && !is_unsuspected(r, item)) {
            i++;
            continue;
        }
        free(item->stages);
        *item = r->items[--r->n];
    }
}

void suspects_answered(struct suspects_relay *r, uint32_t shard,
                       const struct suspects *suspected, const struct suspects *doubted)
{
    for (uint32_t i = 0; i < doubted->n; i++) {
        struct item *item = find(r, &doubted->items[i]);

        if (item)
            item->stages[shard] = DOUBTED;
    }
    for (uint32_t i = 0; i < r->n; i++) {
        uint8_t *stage = &r->items[i].stages[shard];

        if (*stage == ASKED || *stage == AGREED)
            ++*stage;
    }
    for (uint32_t i = 0; i < suspected->n; i++) {
        struct item *item = upsert(r, &suspected->items[i]);

        /* DONE: it was restarted since, and suspects it once more. */
        if (item && (item->stages[shard] < ASKED || item->stages[shard] == DONE))
            item->stages[shard] = REFUSES;
    }
    conclude(r);
}

void suspects_lost(struct suspects_relay *r, uint32_t shard)
{
    for (uint32_t i = 0; i < r->n; i++) {
        struct item *item = &r->items[i];

        if (item->stages[shard] != DONE)
            item->stages[shard] = item->is_agreed ? REFUSES : NOTHING;
    }
}

#include "tests/sim/push_history.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/key_codec.h"

void push_history_deinit(struct push_history *l)
{
    struct sent_push *next;

    for (struct sent_push *push = l->first; push; push = next) {
        next = push->next;
        for (uint32_t i = 0; i < PLAN_N_TABLES_MAX; i++) {
            free(push->sections[i].encoded);
            free(push->sections[i].values);
        }
        free(push);
    }
    *l = (struct push_history){ 0 };
}

/* Floats of a row. */
static uint32_t n_floats(const struct plan *p, const struct sent_push *push, uint32_t table)
{
    return push->op == SECTION_ASSIGN_STATE ? p->widths[table] : p->dims[table];
}

static float value_of(const struct plan *p, const struct sent_push *push, uint32_t table,
                      uint32_t key, uint32_t i)
{
    return push->op == SECTION_GRADIENT
               ? plan_gradient(p, push->rank, push->clock, table, key, i)
               : plan_assigned(p, push->rank, push->clock, table, key, i);
}

static void fill_section(const struct plan *p, const struct sent_push *push, uint32_t table,
                         struct sent_section *s)
{
    uint32_t width = n_floats(p, push, table);
    uint64_t keys[PLAN_N_KEYS_MAX];

    for (uint32_t i = 0; i < s->n_keys; i++)
        keys[i] = plan_key(s->keys[i]);
    s->encoded = malloc(s->n_keys * (size_t)KEY_CODEC_BYTES_MAX + 1);
    s->values = malloc((size_t)s->n_keys * width * sizeof *s->values + 1);
    assert(s->encoded && s->values);
    s->key_bytes = key_codec_encode(keys, s->n_keys, s->encoded);
    for (uint32_t i = 0; i < s->n_keys; i++)
        for (uint32_t k = 0; k < width; k++)
            s->values[(size_t)i * width + k] = value_of(p, push, table, s->keys[i], k);
}

static bool has_key(const struct plan *p, const struct sent_push *push, uint32_t table,
                    uint32_t key, uint32_t part, uint32_t n_parts)
{
    if (plan_shard_of(p, key) != push->shard)
        return false;
    return push->op == SECTION_GRADIENT
               ? key % n_parts == part && plan_pushes(p, push->rank, push->clock, table, key)
               : plan_assigns(p, push->rank, push->clock, table, key);
}

struct sent_push *push_history_make(struct push_history *l, const struct plan *p,
                                    const struct sent_push *like, uint32_t part,
                                    uint32_t n_parts)
{
    struct sent_push *push = calloc(1, sizeof *push);

    assert(push);
    *push = *like;
    push->next = l->first;
    push->tick = push->op == SECTION_GRADIENT && part == n_parts - 1;
    l->first = push;
    l->n++;
    for (uint32_t table = 0; table < p->n_tables; table++) {
        struct sent_section *s = &push->sections[table];

        for (uint32_t key = 0; key < p->n_keys; key++)
            if (has_key(p, push, table, key, part, n_parts))
                s->keys[s->n_keys++] = (uint8_t)key;
        fill_section(p, push, table, s);
    }
    return push;
}

struct sent_push *push_history_find(const struct push_history *l, uint32_t shard, uint32_t rank,
                                    uint64_t incarnation, uint64_t seq)
{
    struct sent_push *push = l->first;

    while (push && (push->shard != shard || push->rank != rank ||
                    push->incarnation != incarnation || push->seq != seq))
        push = push->next;
    return push;
}

void push_history_fill(const struct sent_push *sent, const struct plan *p, struct push *ret)
{
    ret->seq = sent->seq;
    ret->clock = sent->clock;
    ret->n_samples = p->n_samples[sent->rank];
    ret->tick = sent->tick;
    ret->n_sections = p->n_tables;
    for (uint32_t i = 0; i < p->n_tables; i++) {
        const struct sent_section *s = &sent->sections[i];

        ret->sections[i] = (struct section){
            .table_id = i,
            .op = sent->op,
            .steps =
                sent->op == SECTION_ASSIGN_STATE ? plan_steps(p, sent->rank, sent->clock) : 0,
            .codec = CODEC_FP32,
            .n_keys = s->n_keys,
            .keys = s->encoded,
            .key_bytes = s->key_bytes,
            .values = (const uint8_t *)s->values,
            .value_bytes = (size_t)s->n_keys * n_floats(p, sent, i) * sizeof(float)
        };
    }
}

#include "worker/client/pull.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/client/push_encoder.h"

struct ps_pull *pull_new(const void *client_state, uint32_t n_shards, bool is_interruptible)
{
    struct ps_pull *pull = memory_try_alloc(sizeof *pull);

    if (!pull)
        return NULL;
    *pull = (struct ps_pull){ .client_state = client_state,
                              .n_shards = n_shards,
                              .state = PULL_FILLED,
                              .awaited = PULL_NO_SHARD };
    pull->answers = memory_try_alloc(n_shards * sizeof *pull->answers);
    if (!pull->answers || wakeup_init(&pull->changed, is_interruptible)) {
        free(pull->answers);
        free(pull);
        return NULL;
    }
    partition_init(&pull->partition, n_shards);
    request_set_init(&pull->requests, n_shards, 0);
    return pull;
}

void pull_free(struct ps_pull *pull)
{
    for (uint32_t i = 0; i < pull->n_shards; i++)
        bytes_deinit(&pull->answers[i].body);
    free(pull->answers);
    partition_deinit(&pull->partition);
    request_set_deinit(&pull->requests);
    wakeup_deinit(&pull->changed);
    free(pull);
}

int pull_encode(struct ps_pull *pull, const struct push_encoder *encoder,
                const struct ps_pull_section *sections, uint32_t n)
{
    int status = request_set_acquire(&pull->requests, n);

    if (!status)
        status =
            push_encoder_pull(encoder, sections, n, &pull->partition, pull->requests.requests);
    if (status) {
        request_set_release(&pull->requests);
        return status;
    }
    pull->sections = sections;
    pull->n_sections = n;
    pull->min_clock = UINT64_MAX;
    return 0;
}

static size_t values_bytes(const struct pull_reply *reply)
{
    size_t n_bytes = 0;

    for (uint32_t i = 0; i < reply->n_sections; i++)
        n_bytes += reply->sections[i].value_bytes;
    return n_bytes;
}

void pull_copy_answer(struct pull_answer *a, const struct pull_reply *reply)
{
    const size_t n_bytes = reply->n_sections * sizeof(size_t) + values_bytes(reply);
    uint8_t *dst;

    bytes_consume(&a->body, bytes_len(&a->body));
    dst = bytes_reserve(&a->body, n_bytes);
    a->status = dst ? reply->status : -ENOMEM;
    a->min_clock = reply->min_clock;
    a->text[0] = '\0';
    if (reply->status)
        snprintf(a->text, sizeof a->text, "%s", reply->text);
    a->is_lost = !dst;
    if (!dst)
        return;
    for (uint32_t i = 0; i < reply->n_sections; i++, dst += sizeof(size_t))
        memcpy(dst, &reply->sections[i].value_bytes, sizeof(size_t));
    for (uint32_t i = 0; i < reply->n_sections; i++) {
        if (reply->sections[i].value_bytes)
            memcpy(dst, reply->sections[i].values, reply->sections[i].value_bytes);
        dst += reply->sections[i].value_bytes;
    }
    bytes_commit(&a->body, n_bytes);
}

int pull_decode(struct ps_pull *pull, const struct push_encoder *encoder, uint32_t shard)
{
    const struct pull_answer *a = &pull->answers[shard];
    const uint8_t *sizes = bytes_front(&a->body),
                  *next = sizes + pull->n_sections * sizeof(size_t);
    const uint8_t *values[SECTIONS_MAX];
    size_t value_bytes[SECTIONS_MAX];
    int status;

    assert(!a->status && pull->n_sections <= SECTIONS_MAX);
    for (uint32_t i = 0; i < pull->n_sections; i++) {
        memcpy(&value_bytes[i], sizes + i * sizeof(size_t), sizeof(size_t));
        values[i] = next;
        next += value_bytes[i];
    }
    status = push_encoder_pulled(encoder, pull->sections, pull->n_sections, &pull->partition,
                                 shard, values, value_bytes);
    if (!status && a->min_clock < pull->min_clock)
        pull->min_clock = a->min_clock;
    return status;
}

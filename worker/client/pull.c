#include "worker/client/pull.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/client/pulled_rows.h"
#include "worker/client/push_encoder.h"

struct ps_pull *pull_new(const void *client_state, uint32_t n_shards)
{
    struct ps_pull *pull = memory_try_alloc(sizeof *pull);

    if (!pull)
        return NULL;
    *pull = (struct ps_pull){ .client_state = client_state,
                              .n_shards = n_shards,
                              .state = PULL_FILLED,
                              .awaited = PULL_NO_SHARD };
    pull->answers = memory_try_alloc(n_shards * sizeof *pull->answers);
    if (!pull->answers || wakeup_init(&pull->changed, false)) {
        free(pull->answers);
        free(pull);
        return NULL;
    }
    partition_init(&pull->partition, n_shards);
    request_set_init(&pull->requests, n_shards, 0);
    return pull;
}

static void free_answer(struct pull_answer *a)
{
    bytes_deinit(&a->body);
    free(a->values);
}

void pull_free(struct ps_pull *pull)
{
    for (uint32_t i = 0; i < pull->n_shards; i++)
        free_answer(&pull->answers[i]);
    free(pull->answers);
    partition_deinit(&pull->partition);
    request_set_deinit(&pull->requests);
    wakeup_deinit(&pull->changed);
    free(pull);
}

/* Makes ready for rows that stay as they are sent, if a section has such. -ENOMEM. */
static int begin_pulled(struct ps_pull *pull, const struct ps_pull_section *sections,
                        uint32_t n)
{
    int status = 0;

    pull->pulled = NULL;
    for (uint32_t i = 0; i < n && !status; i++) {
        if (!sections[i].pulled)
            continue;
        pull->pulled = sections[i].pulled;
        status = pulled_rows_begin(pull->pulled, sections[i].codec, pull->n_shards);
    }
    return status;
}

int pull_encode(struct ps_pull *pull, const struct push_encoder *encoder,
                const struct ps_pull_section *sections, uint32_t n)
{
    int status = begin_pulled(pull, sections, n);

    if (!status)
        status = request_set_acquire(&pull->requests, n);
    if (!status)
        status =
            push_encoder_pull(encoder, sections, n, &pull->partition, pull->requests.requests);
    if (status) {
        request_set_release(&pull->requests);
        return status;
    }
    pull->encoder = encoder;
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

/* -ENOMEM. */
static int reserve_values(struct pull_answer *a, uint32_t n)
{
    struct pull_values *values;

    if (n <= a->cap_values)
        return 0;
    values = memory_try_realloc(a->values, n * sizeof *values);
    if (!values)
        return -ENOMEM;
    a->values = values;
    a->cap_values = n;
    return 0;
}

/* Their buffer becomes the answer's, whose last one is left in its place. */
static void take_buffer(struct pull_answer *a, struct bytes *buffer)
{
    struct bytes taken = *buffer;

    *buffer = a->body;
    a->body = taken;
}

/* -ENOMEM. */
static int copy_values(struct pull_answer *a, uint32_t n, size_t n_bytes)
{
    uint8_t *dst = bytes_reserve(&a->body, n_bytes + 1);

    if (!dst)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        if (a->values[i].n_bytes)
            memcpy(dst, a->values[i].bytes, a->values[i].n_bytes);
        a->values[i].bytes = dst;
        dst += a->values[i].n_bytes;
    }
    bytes_commit(&a->body, n_bytes);
    return 0;
}

/* -ENOMEM. */
static int keep_values(struct pull_answer *a, const struct pull_reply *reply,
                       struct bytes *buffer)
{
    bytes_consume(&a->body, bytes_len(&a->body));
    if (reserve_values(a, reply->n_sections))
        return -ENOMEM;
    for (uint32_t i = 0; i < reply->n_sections; i++)
        a->values[i] =
            (struct pull_values){ reply->sections[i].values, reply->sections[i].value_bytes };
    if (!buffer)
        return copy_values(a, reply->n_sections, values_bytes(reply));
    take_buffer(a, buffer);
    return 0;
}

static int decode(struct ps_pull *pull, uint32_t shard, const uint8_t *const *values,
                  const size_t *value_bytes)
{
    return push_encoder_pulled(pull->encoder, pull->sections, pull->n_sections,
                               &pull->partition, shard, values, value_bytes);
}

/* From where it has been received. */
static int decode_reply(struct ps_pull *pull, uint32_t shard, const struct pull_reply *reply)
{
    const uint8_t *values[SECTIONS_MAX];
    size_t value_bytes[SECTIONS_MAX];

    assert(reply->n_sections == pull->n_sections && pull->n_sections <= SECTIONS_MAX);
    for (uint32_t i = 0; i < reply->n_sections; i++) {
        values[i] = reply->sections[i].values;
        value_bytes[i] = reply->sections[i].value_bytes;
    }
    return decode(pull, shard, values, value_bytes);
}

void pull_take_answer(struct ps_pull *pull, uint32_t shard, const struct pull_reply *reply,
                      struct bytes *buffer)
{
    struct pull_answer *a = &pull->answers[shard];

    a->is_lost = false;
    a->status = reply->status;
    a->min_clock = reply->min_clock;
    a->text[0] = '\0';
    a->is_decoded =
        pull->is_driven && pull->awaited == shard && !reply->status && !pull->pulled;
    if (reply->status) {
        snprintf(a->text, sizeof a->text, "%s", reply->text);
    } else if (a->is_decoded) {
        a->decode_status = decode_reply(pull, shard, reply);
    } else {
        a->status = keep_values(a, reply, buffer);
        a->is_lost = a->status != 0;
    }
}

static int decode_kept(struct ps_pull *pull, uint32_t shard)
{
    const struct pull_answer *a = &pull->answers[shard];
    const uint8_t *values[SECTIONS_MAX];
    size_t value_bytes[SECTIONS_MAX];

    assert(pull->n_sections <= SECTIONS_MAX);
    for (uint32_t i = 0; i < pull->n_sections; i++) {
        values[i] = a->values[i].bytes;
        value_bytes[i] = a->values[i].n_bytes;
    }
    return decode(pull, shard, values, value_bytes);
}

int pull_decode(struct ps_pull *pull, uint32_t shard)
{
    struct pull_answer *a = &pull->answers[shard];
    int status;

    assert(!a->status);
    status = a->is_decoded ? a->decode_status : decode_kept(pull, shard);
    if (!status && pull->pulled)
        pulled_rows_keep(pull->pulled, shard, &a->body);
    if (!status && a->min_clock < pull->min_clock)
        pull->min_clock = a->min_clock;
    return status;
}

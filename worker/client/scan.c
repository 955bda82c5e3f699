#include "worker/client/scan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void scan_deinit(struct ps_scan *scan)
{
    bytes_deinit(&scan->keys);
    bytes_deinit(&scan->weights);
    bytes_deinit(&scan->state);
    free(scan->places);
}

bool scan_goes_on(const struct ps_scan *scan)
{
    for (uint32_t i = 0; i < scan->n_shards; i++)
        if (!scan->places[i].is_over)
            return true;
    return false;
}

void scan_ask(const struct ps_scan *scan, uint32_t shard, struct section *ret)
{
    const struct scan_place *place = &scan->places[shard];

    if (place->is_over)
        return;
    ret->codec = CODEC_FP32;
    ret->state = scan->has_state;
    ret->scan_bytes = scan->slice_bytes;
    ret->cursor = place->cursor;
}

/* All space is reserved before anything is taken. */
static int take_rows(struct ps_scan *scan, const uint8_t *keys, uint32_t n)
{
    const size_t weights_bytes = scan->dim * sizeof(float),
                 state_bytes = scan->n_state * sizeof(float);
    const uint8_t *row = keys + n * sizeof(uint64_t);
    uint8_t *weights = bytes_reserve(&scan->weights, n * weights_bytes + 1),
            *state = bytes_reserve(&scan->state, n * state_bytes + 1),
            *to = bytes_reserve(&scan->keys, n * sizeof(uint64_t) + 1);

    if (!weights || !state || !to)
        return -ENOMEM;
    memcpy(to, keys, n * sizeof(uint64_t));
    for (uint32_t i = 0; i < n; i++, row += weights_bytes + state_bytes) {
        memcpy(weights + i * weights_bytes, row, weights_bytes);
        if (state_bytes)
            memcpy(state + i * state_bytes, row + weights_bytes, state_bytes);
    }
    bytes_commit(&scan->keys, n * sizeof(uint64_t));
    bytes_commit(&scan->weights, n * weights_bytes);
    bytes_commit(&scan->state, n * state_bytes);
    scan->n += n;
    return 0;
}

int scan_take(struct ps_scan *scan, uint32_t shard, const uint8_t *values, size_t value_bytes)
{
    const size_t row_bytes =
        sizeof(uint64_t) + (scan->dim + (size_t)scan->n_state) * sizeof(float);
    struct scan_place *place = &scan->places[shard];
    uint32_t n, flags;
    uint64_t version;

    if (place->is_over)
        return value_bytes ? PS_ECOUNT : 0;
    if (value_bytes < SECTION_SCAN_HEAD_BYTES)
        return PS_ECOUNT;
    memcpy(&version, values, 8);
    memcpy(&place->next, values + 8, 8);
    memcpy(&n, values + 16, 4);
    memcpy(&flags, values + 20, 4);
    place->will_be_over = flags & SECTION_SCAN_END;
    if ((value_bytes - SECTION_SCAN_HEAD_BYTES) / row_bytes != n ||
        (value_bytes - SECTION_SCAN_HEAD_BYTES) % row_bytes ||
        (!place->will_be_over && place->next <= place->cursor))
        return PS_ECOUNT;
    if (version < place->version) {
        scan->is_stale = true;
        return -ESTALE;
    }
    if (place->cursor == 0 && !place->version)
        place->version = version;
    return take_rows(scan, values + SECTION_SCAN_HEAD_BYTES, n);
}

int scan_take_steps(void *arg, const struct ps_pull_section *s, uint32_t shard,
                    const uint32_t *numbers, uint32_t n, const uint8_t *values,
                    size_t value_bytes)
{
    struct ps_scan *scan = arg;
    uint64_t steps;

    (void)s, (void)shard, (void)numbers;
    if (n || value_bytes != section_state_bytes(0))
        return PS_ECOUNT;
    memcpy(&steps, values, sizeof steps);
    if (steps > scan->steps)
        scan->steps = steps;
    return 0;
}

void scan_drop_rows(struct ps_scan *scan)
{
    scan->n = 0;
    bytes_consume(&scan->keys, bytes_len(&scan->keys));
    bytes_consume(&scan->weights, bytes_len(&scan->weights));
    bytes_consume(&scan->state, bytes_len(&scan->state));
}

void scan_commit(struct ps_scan *scan)
{
    for (uint32_t i = 0; i < scan->n_shards; i++) {
        struct scan_place *place = &scan->places[i];

        place->cursor = place->next;
        place->is_over = place->is_over || place->will_be_over;
    }
}

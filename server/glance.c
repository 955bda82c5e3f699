#include "server/glance.h"

#include "proto/codec_catalog.h"

static bool is_plain(const struct section *s)
{
    return s->codec == CODEC_FP32 && s->n_keys;
}

/* Rows of the section that end before n_bytes of the body do. */
static uint32_t rows_before(const struct section *s, const uint8_t *body, size_t n_bytes)
{
    size_t at = (size_t)(s->values - body), row_bytes = s->value_bytes / s->n_keys;

    if (n_bytes <= at)
        return 0;
    return n_bytes - at < s->value_bytes ? (uint32_t)((n_bytes - at) / row_bytes) : s->n_keys;
}

size_t glance_more(struct push *scratch, const struct frame_header *header, const uint8_t *head,
                   const uint8_t *body, size_t n_bytes, size_t n_seen)
{
    const struct codec *codec = codec_by_id(CODEC_FP32);

    if (header->type != FRAME_PUSH || (header->flags & FRAME_ZSTD) ||
        message_read_push(header, head, body, header->body_bytes, scratch) != 0)
        return 0;
    for (uint32_t i = 0; i < scratch->n_sections; i++) {
        const struct section *s = &scratch->sections[i];
        size_t row_bytes = is_plain(s) ? s->value_bytes / s->n_keys : 0;
        uint32_t first, row, end;

        if (!row_bytes)
            continue;
        first = rows_before(s, body, n_seen);
        end = rows_before(s, body, n_bytes);
        for (row = first; row < end; row++)
            if (codec->check(s->values + row * row_bytes, (uint32_t)(row_bytes / 4), 0))
                break;
        if (row > first)
            n_seen = (size_t)(s->values - body) + row * row_bytes;
        if (row < s->n_keys)
            break;
    }
    return n_seen;
}

void glance_tell(struct push *push, const uint8_t *body, size_t n_seen)
{
    for (uint32_t i = 0; i < push->n_sections && n_seen; i++) {
        struct section *s = &push->sections[i];

        if (is_plain(s))
            s->n_finite = rows_before(s, body, n_seen);
    }
}

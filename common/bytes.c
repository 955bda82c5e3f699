#include "common/bytes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

uint8_t *bytes_reserve(struct bytes *b, size_t n_bytes)
{
    size_t len = bytes_len(b), want = b->cap_bytes ? b->cap_bytes : 4096;
    uint8_t *bytes;

    assert(b->bytes ? b->cap_bytes > 0 : b->end == 0);
    if (n_bytes > SIZE_MAX / 4 - len)
        return NULL; /* the doubling below would overflow */
    if (b->bytes && b->cap_bytes - b->end >= n_bytes)
        return b->bytes + b->end;
    if (b->start) {
        memmove(b->bytes, b->bytes + b->start, len);
        b->start = 0;
        b->end = len;
    }
    while (want - len < n_bytes)
        want *= 2;
    if (want > b->cap_bytes) {
        bytes = memory_try_realloc(b->bytes, want);
        if (!bytes)
            return NULL;
        b->bytes = bytes;
        b->cap_bytes = want;
    }
    return b->bytes + b->end;
}

void bytes_commit(struct bytes *b, size_t n_bytes)
{
    assert(n_bytes <= b->cap_bytes - b->end);
    b->end += n_bytes;
}

void bytes_consume(struct bytes *b, size_t n_bytes)
{
    assert(n_bytes <= bytes_len(b));
    b->start += n_bytes;
    if (b->start == b->end)
        b->start = b->end = 0;
}

void bytes_deinit(struct bytes *b)
{
    free(b->bytes);
    *b = (struct bytes){ 0 };
}

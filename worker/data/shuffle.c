#include "worker/data/shuffle.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"

#define BLOCK_LINE_MAX 4096u /* bytes */

struct slot {
    struct shuffle_line line; /* bytes: in the block; owned if cap_bytes is more than there */
    size_t cap_bytes;
};

struct shuffle {
    uint64_t seed, n_draws;
    uint32_t n, n_max, n_sliced;
    size_t
        space_bytes; /* of a line in the block: what the first one needed, to a multiple of 64 */
    char *block;     /* owned; NULL: every line has memory of its own */
    struct slot out;     /* handed out last; its memory takes the next line */
    struct slot slots[]; /* [n_max], n of them full */
};

int shuffle_new(uint32_t n_max, uint64_t seed, struct shuffle **ret_shuffle)
{
    struct shuffle *s = memory_try_alloc(sizeof *s + n_max * sizeof *s->slots);

    assert(n_max > 0);
    if (!s)
        return -ENOMEM;
    s->seed = seed;
    s->n_max = n_max;
    *ret_shuffle = s;
    return 0;
}

static size_t block_bytes(const struct shuffle *s)
{
    return ((size_t)s->n_max + 1) * s->space_bytes;
}

static bool is_owned(const struct shuffle *s, const struct slot *slot)
{
    return slot->line.bytes && (!s->block || slot->cap_bytes > s->space_bytes);
}

void shuffle_free(struct shuffle *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->n_max; i++)
        if (is_owned(s, &s->slots[i]))
            free(s->slots[i].line.bytes);
    if (is_owned(s, &s->out))
        free(s->out.line.bytes);
    if (s->block)
        memory_unmap(s->block, block_bytes(s));
    free(s);
}

/* In 0 .. n - 1, from the upper half of a hash: the bias, n / 2^32, is of no matter to a
 * shuffle. */
static uint32_t draw(struct shuffle *s)
{
    return (uint32_t)((hash_mix2(s->seed, s->n_draws++) >> 32) * s->n >> 32);
}

/* A window of lines of about one length is one block of large pages: it is read at random. If
 * there is none to be had, lines have memory of their own. */
static void make_block(struct shuffle *s, size_t len)
{
    s->space_bytes = (len + 63) / 64 * 64;
    if (s->space_bytes <= BLOCK_LINE_MAX && s->space_bytes > 0)
        s->block = memory_map(block_bytes(s));
}

/* More space than there is. What was there is lost. */
static int reserve_line(struct shuffle *s, struct slot *to, size_t len)
{
    size_t cap = len + (to->cap_bytes ? len / 4 : 0) + 1;
    char *bytes;

    if (s->space_bytes == 0)
        make_block(s, len);
    if (s->block && !to->line.bytes && len <= s->space_bytes) {
        to->line.bytes = s->block + s->n_sliced++ * s->space_bytes;
        to->cap_bytes = s->space_bytes;
        return 0;
    }
    cap = cap > s->space_bytes ? cap : s->space_bytes + 1;
    bytes = memory_try_realloc(is_owned(s, to) ? to->line.bytes : NULL, cap);
    if (!bytes)
        return -ENOMEM;
    to->line.bytes = bytes;
    to->cap_bytes = cap;
    return 0;
}

static int copy_line(struct shuffle *s, struct slot *to, const struct shuffle_line *from)
{
    if ((from->len > to->cap_bytes || !to->line.bytes) && reserve_line(s, to, from->len))
        return -ENOMEM;
    memcpy(to->line.bytes, from->bytes, from->len);
    to->line.len = from->len;
    to->line.number = from->number;
    to->line.file = from->file;
    return 0;
}

static void exchange(struct slot *a, struct slot *b)
{
    struct slot kept = *a;

    *a = *b;
    *b = kept;
}

int shuffle_put(struct shuffle *s, const struct shuffle_line *in, struct shuffle_line *ret_out)
{
    *ret_out = (struct shuffle_line){ 0 };
    if (s->n < s->n_max) {
        if (copy_line(s, &s->slots[s->n], in))
            return -ENOMEM;
        s->n++;
        return 0;
    }
    if (copy_line(s, &s->out, in))
        return -ENOMEM;
    exchange(&s->out, &s->slots[draw(s)]);
    *ret_out = s->out.line;
    return 0;
}

void shuffle_drain(struct shuffle *s, struct shuffle_line *ret_out)
{
    uint32_t i;

    *ret_out = (struct shuffle_line){ 0 };
    if (s->n == 0)
        return;
    i = draw(s);
    exchange(&s->out, &s->slots[i]);
    exchange(&s->slots[i], &s->slots[--s->n]);
    *ret_out = s->out.line;
}

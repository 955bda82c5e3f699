#include "worker/data/shuffle.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/mem.h"

struct slot {
    struct shuffle_line line; /* bytes: owned */
    size_t cap_bytes;
};

struct shuffle {
    uint64_t seed, n_draws;
    uint32_t n, n_max;
    struct slot out;     /* handed out last; its memory takes the next line */
    struct slot slots[]; /* [n_max], n of them full */
};

int shuffle_new(uint32_t n_max, uint64_t seed, struct shuffle **ret_shuffle)
{
    struct shuffle *s = mem_try_alloc(sizeof *s + n_max * sizeof *s->slots);

    assert(n_max > 0);
    if (!s)
        return -ENOMEM;
    s->seed = seed;
    s->n_max = n_max;
    *ret_shuffle = s;
    return 0;
}

void shuffle_free(struct shuffle *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->n_max; i++)
        free(s->slots[i].line.bytes);
    free(s->out.line.bytes);
    free(s);
}

/* In 0 .. n - 1, from the upper half of a hash: the bias, n / 2^32, is of no matter to a
 * shuffle. */
static uint32_t draw(struct shuffle *s)
{
    return (uint32_t)((hash_mix2(s->seed, s->n_draws++) >> 32) * s->n >> 32);
}

static int copy_line(struct slot *to, const struct shuffle_line *from)
{
    if (from->len + 1 > to->cap_bytes) {
        size_t cap = from->len + from->len / 4 + 16;
        char *bytes = mem_try_realloc(to->line.bytes, cap);

        if (!bytes)
            return -ENOMEM;
        to->line.bytes = bytes;
        to->cap_bytes = cap;
    }
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
        if (copy_line(&s->slots[s->n], in))
            return -ENOMEM;
        s->n++;
        return 0;
    }
    if (copy_line(&s->out, in))
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

/*
 * Which keys have gone: a Bloom filter of fixed size (Bloom, CACM 1970), so it says yes of a key
 * that has not now and then, and never no of one that has.
 */
#ifndef WORKER_MIRROR_GONE_H
#define WORKER_MIRROR_GONE_H

#include <stdbool.h>
#include <stdlib.h>

#include "common/hash.h"
#include "common/mem.h"

#define GONE_BITS (UINT64_C(1) << 24) /* 1 million keys: wrong of 1 in 70 */
#define GONE_HASHES 2u

struct gone {
    uint8_t *bits; /* owned; NULL: none has gone */
    bool is_lost;  /* there is no memory for bits: any may have gone */
};

static inline void gone_deinit(struct gone *g)
{
    free(g->bits);
    g->bits = NULL;
}

static inline void gone_add(struct gone *g, uint64_t key)
{
    if (!g->bits)
        g->bits = mem_try_alloc(GONE_BITS / 8);
    g->is_lost = g->is_lost || !g->bits;
    for (uint32_t i = 0; g->bits && i < GONE_HASHES; i++) {
        uint64_t at = hash_mix2(key, i) % GONE_BITS;

        g->bits[at / 8] = (uint8_t)(g->bits[at / 8] | 1u << at % 8);
    }
}

static inline bool gone_has(const struct gone *g, uint64_t key)
{
    bool has = g->bits != NULL;

    for (uint32_t i = 0; has && i < GONE_HASHES; i++) {
        uint64_t at = hash_mix2(key, i) % GONE_BITS;

        has = g->bits[at / 8] >> at % 8 & 1;
    }
    return has || g->is_lost;
}

#endif

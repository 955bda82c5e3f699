/*
 * One table's part of a push in full, when there is no room left for what its rows would be
 * owed: the batch's rows with what is owed to them, and with them the rows owed for longest.
 *
 *     batch      3  7  9       gradients g
 *     oldest     2  7  8       owed e
 *     settled    2  3  7  8  9      e  g  g+e  e  g      in fp32: then nothing is owed to them
 *
 * One section still, so that the table takes one step and every server and every twin of it
 * sees what it always sees. It is dear, and so it makes room for many pushes at once.
 */
#ifndef WORKER_CLIENT_SETTLE_H
#define WORKER_CLIENT_SETTLE_H

#include <stdbool.h>

#include "worker/client/ps_types.h"
#include "worker/client/residual.h"

struct settle {
    uint64_t *keys; /* owned: ascending, n_keys of cap_keys */
    float *values;  /* owned: n_keys x dim, as many as fit cap_floats */
    uint32_t n_keys;
    uint64_t cap_keys, cap_floats;
};

void settle_deinit(struct settle *s);

/* Must rows go before a section of these keys can be encoded with feedback? */
bool settle_is_due(const struct residual *r, const uint64_t *keys, uint32_t n_keys);

/* Fills s->keys: of the section, which are given, and of the oldest rows. Nothing changes in r. -ENOMEM. */
int settle_collect(struct settle *s, const struct residual *r, const uint64_t *keys,
                   uint32_t n_keys) MUST_CHECK;

/* The values, too. -ENOMEM. */
int settle_prepare(struct settle *s, const struct residual *r,
                   const struct ps_push_section *section) MUST_CHECK;

/* What settle_collect() took goes out: nothing is owed any more. */
void settle_done(const struct settle *s, struct residual *r);

#endif

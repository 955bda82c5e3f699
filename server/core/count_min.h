/*
 * Counts the recent touches of keys. A count-min sketch (Cormode and Muthukrishnan, "An improved data stream summary",
 * J. Algorithms 2005) of counters of 4 bits, with conservative update (Estan and Varghese, SIGCOMM 2002). It has two
 * generations: the current half-window and the one before. A turn makes the current one the older one and begins anew.
 *
 *     generation    4 rows of n_cells counters, two to a byte; a key has one in each row
 *     count(key)    min over the rows of this generation + min over those of the last
 *
 * It never undercounts (up to COUNT_MIN_COUNT_MAX a generation). It overcounts by e * n / n_cells or more for at most
 * e^-4 = 1.8 % of the keys, with n the touches counted in a generation; with the conservative update the real share is
 * far smaller. A turn gives the next generation 2 cells for each touch of the last one. So in a steady stream at most
 * those 1.8 % are overcounted by 2 or more.
 *
 * A generation has 8 KiB to 16 MiB, 1 MiB to begin with, but both together not more than 1/16
 * of the smallest budget above it (16 KiB always).
 */
#ifndef SERVER_CORE_COUNT_MIN_H
#define SERVER_CORE_COUNT_MIN_H

#include "common/base.h"
#include "server/core/memory_budget.h"

#define COUNT_MIN_COUNT_MAX 15u

struct count_min;

/* PS_EBUDGET or -ENOMEM: nothing is held. `parent` (may be NULL) is borrowed for its life. */
int count_min_new(struct count_min **ret_sketch, struct memory_budget *parent) MUST_CHECK;
/* NULL is fine. */
void count_min_free(struct count_min *s);

/* Counts one touch; returns the count with it. */
uint32_t count_min_add(struct count_min *s, uint64_t key);
uint32_t count_min_count(const struct count_min *s, uint64_t key);

/* Ends a half-window. Without memory for another size, the new generation keeps the old one. */
void count_min_end_window(struct count_min *s);

uint64_t count_min_bytes(const struct count_min *s);

#endif

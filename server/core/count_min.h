/*
 * How often was a key seen lately? A count-min sketch (Cormode and Muthukrishnan, "An improved
 * data stream summary", J. Algorithms 2005) of counters of 4 bits, with conservative update
 * (Estan and Varghese, SIGCOMM 2002), in two generations: what is counted now, and the
 * half-window before. A turn makes the one the other and begins anew.
 *
 *     generation    4 rows of n_cells counters, two to a byte; a key has one in each row
 *     count(key)    min over the rows of this generation + min over those of the last
 *
 * It never undercounts (up to COUNT_MIN_COUNT_MAX a generation). It overcounts by e * n / n_cells
 * or more for at most e^-4 = 1.8 % of the keys, n the touches counted in a generation; the
 * conservative update makes that a bound from far above. A turn sizes the next generation for 2
 * cells for each touch of the one that ends, so that a stream that goes on as it was is
 * overcounted by 2 or more for no more than those 1.8 %.
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

/* A half-window has ended. Where there is no memory for another size, the old one goes on. */
void count_min_turn(struct count_min *s);

uint64_t count_min_bytes(const struct count_min *s);

#endif

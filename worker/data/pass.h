/*
 * One pass over the files: opens one after another, keeps the rows of the range that are this
 * rank's, shuffles, parses, cuts batches. No thread: feed.h gives it one.
 *
 *     files -> lines -> range -> share of the rank -> shuffle window -> parse -> batch
 *
 * Dealing goes by a row's number and comes before the shuffle, so rows that are another rank's
 * cost a newline search, not a parse.
 */
#ifndef WORKER_DATA_PASS_H
#define WORKER_DATA_PASS_H

#include <stdatomic.h>

#include "common/status.h"
#include "worker/data/batch.h"
#include "worker/data/feed_options.h"

struct pass;

/* `stop` (borrowed, may be NULL): once true, the pass ends soon. -ENOMEM. */
int pass_new(const struct feed_options *options, const atomic_bool *stop,
             struct pass **ret_pass, struct err *err) MUST_CHECK;
void pass_free(struct pass *p);

/* Passes over options.skip batches, the first time; fills the batch and deduplicates its keys; n is 0 behind the last one. After an error the
 * pass is over. */
int pass_fill(struct pass *p, struct batch *b, struct err *err) MUST_CHECK;

void pass_counts(const struct pass *p, struct feed_counts *ret);

#endif

/*
 * One pass over the files: opens one after another, keeps the rows of the range that are this
 * rank's, shuffles, parses, cuts batches. No thread: data_loader.h gives it one.
 *
 *     files -> lines -> range -> share of the rank -> shuffle window -> parse -> batch
 *
 * A row's number decides its rank, before the shuffle. So another rank's rows cost a newline search,
 * not a parse.
 */
#ifndef WORKER_DATA_LOADER_PASS_H
#define WORKER_DATA_LOADER_PASS_H

#include <stdatomic.h>

#include "common/status.h"
#include "worker/data/batch.h"
#include "worker/data/data_loader_options.h"

struct loader_pass;

/* `stop` (borrowed, may be NULL): once true, the pass ends soon. -ENOMEM. */
int loader_pass_new(const struct data_loader_options *options, const atomic_bool *stop,
                    struct loader_pass **ret_pass, struct err *err) MUST_CHECK;
void loader_pass_free(struct loader_pass *p);

/* Fills the batch and deduplicates its keys; n is 0 after the last one. The first call skips options.skip batches
 * before. After an error the pass is over. */
int loader_pass_fill(struct loader_pass *p, struct batch *b, struct err *err) MUST_CHECK;

/* The two halves of it: rows, in the order of the calls; then the batch alone, which any thread may do, in working
 * memory of its own. -ENOMEM. */
int loader_pass_read(struct loader_pass *p, struct batch *b, struct err *err) MUST_CHECK;
int loader_pass_dedup(struct batch *b, struct batch_scratch *memory, struct err *err)
    MUST_CHECK;

void loader_pass_counts(const struct loader_pass *p, struct data_loader_counts *ret);

#endif

/*
 * The last pulls of a connection whose keys the shard keeps, so that a push names its pull and does not bring its keys
 * again.
 *
 *     named_pulls_ask()    the pull goes out, and asks the shard to keep its keys
 *     named_pulls_add()    its answer says that they are kept
 *     named_pulls_name()   a push goes out: sections whose keys are those of a section of such a pull have none
 *
 * The shard keeps those of the last SECTION_PULLS_KEPT pulls that ask for it. So one with as many behind it is not
 * named any more. All is of one connection: what is sent again on the next one has its keys.
 *
 * Where pushes have other keys than pulls, as behind a cache of rows, few pulls ask.
 */
#ifndef WORKER_CLIENT_NAMED_PULLS_H
#define WORKER_CLIENT_NAMED_PULLS_H

#include "worker/client/request.h"

/* Zeroed: none. */
struct named_pulls {
    bool is_off;                /* for good: the shard did not know a pull that was named */
    uint64_t n_asked, n_unused; /* pulls that asked; since one was named */
    uint32_t n;
    struct request *pulls[SECTION_PULLS_KEPT]; /* owned; used */
};

/* The keep_number of a pull that is being sent; 0: it does not ask. */
uint64_t named_pulls_ask(struct named_pulls *p);

/* Takes the pull, whose keys are kept. */
void named_pulls_add(struct named_pulls *p, struct request *pull);

/* `push` is `r`, as request_push() has filled it. */
void named_pulls_name(struct named_pulls *p, const struct request *r, struct push *push);

/* The connection has ended: the shard keeps nothing. */
void named_pulls_reset(struct named_pulls *p);

#endif

/*
 * A coordination service (coord.h) in memory, for tests and simulation: one store, and a client for each member.
 * Nothing happens but in coord_mem_advance(): time is its argument, and what goes wrong is drawn from a seed.
 *
 *     client --request--> store --answer--> client          each with a delay, each may be lost
 *
 * A call whose request or answer is lost ends at its deadline, as with any service; its request may come to the store
 * after that. A lease ends when nothing has come for it in its time.
 */
#ifndef SERVER_CLUSTER_COORD_MEM_H
#define SERVER_CLUSTER_COORD_MEM_H

#include "server/cluster/coord.h"

struct coord_mem_faults {
    uint32_t delay_ms;      /* of each way, at most; 0: none */
    uint32_t late_ms;       /* ... and of one message in 16 */
    uint32_t lost_requests; /* of 1000 */
    uint32_t lost_answers;  /* of 1000 */
};

struct coord_mem;

struct coord_mem *coord_mem_new(uint64_t seed);

/* Clients that are still open go with it, without a word to their callers. */
void coord_mem_free(struct coord_mem *m);

/* From now on. */
void coord_mem_set_faults(struct coord_mem *m, const struct coord_mem_faults *faults);

/* A client of the store; freed by its close(), whose on_closed comes from the next coord_mem_advance(). Clients are
 * numbered 0, 1, ... in the order of these calls. */
struct coord *coord_mem_client(struct coord_mem *m);

uint32_t coord_mem_number(const struct coord *c);

/* Nothing passes between the store and this client, in either direction; what is under way is lost. */
void coord_mem_set_away(struct coord_mem *m, uint32_t client, bool is_away);

/* Watches that have not seen all changes so far will read all keys anew. */
void coord_mem_compact(struct coord_mem *m);

/* All keys are removed, as an operator does it: watches hear of each. */
void coord_mem_remove_all(struct coord_mem *m);

/* Keeps a copy of all keys, in place of the one before. None of them may have a lease. */
void coord_mem_copy(struct coord_mem *m);

/* The store is another one from now on, with the keys and the revision of the copy, or empty. What is under way is
 * lost. A watch that has heard of the store before is told (COORD_ALL with a sentence), at the latest after notice_ms;
 * until then it hears nothing, and its client may write. */
void coord_mem_restore(struct coord_mem *m, bool from_copy, uint32_t notice_ms);

/* Has each watch of this client heard of the store as it is now, and of one before that, too? */
bool coord_mem_knows_restore(const struct coord_mem *m, uint32_t client);

/* Does what is due until now_ms, which never goes back. Returns when the next thing is due, or UINT64_MAX. */
uint64_t coord_mem_advance(struct coord_mem *m, uint64_t now_ms);

/* What the store has under a key at this moment, or NULL. Borrowed until the next call. For checks of tests. */
const struct coord_item *coord_mem_find(const struct coord_mem *m, const char *key);

#endif

/*
 * The keys of a connection's last pulls, so that a push can name them instead of bringing them again.
 *
 *     a pull asks for it -> pulled_keys_keep() -> its reply says that they are kept
 *     a push names it    -> pulled_keys_acquire() -> pulled_keys_put(): the push is whole
 *                        -> ... checked, applied, logged as any other ... -> pulled_keys_release()
 *
 * Kept are those of the SECTION_PULLS_KEPT pulls with the greatest request ids, as the client knows, too: it names no
 * older one. A pull of many keys, or one for which the budget has no space, is not kept, and its reply does not say so.
 */
#ifndef SERVER_REQUESTS_PULLED_KEYS_H
#define SERVER_REQUESTS_PULLED_KEYS_H

#include "proto/section.h"
#include "server/core/memory_budget.h"

#define PULLED_KEYS_BYTES_MAX ((size_t)4 << 20) /* of one pull */

/* Those of one pull. */
struct pulled_keys;

/* Those of a connection. */
struct pulled_keys_set;

/* Keeps the keys of `pull`; *set is made if it is NULL. The budget stays borrowed until all of it is released. False:
 * they are not kept. */
bool pulled_keys_keep(struct pulled_keys_set **set, struct memory_budget *budget,
                      uint64_t request_id, const struct pull *pull);

/* NULL is fine. What a push has acquired stays. */
void pulled_keys_free(struct pulled_keys_set *set);

/* NULL: they are not kept. Set: NULL is fine. */
struct pulled_keys *pulled_keys_acquire(struct pulled_keys_set *set, uint64_t request_id);
/* NULL is fine. */
void pulled_keys_release(struct pulled_keys *keys);

/* The sections that name them have them then; borrowed. PS_ECOUNT: the pull has no such section, or another number of
 * keys. PS_ETOOBIG: keys and values have more than max_bytes by now: a few named bytes may stand for many. */
int pulled_keys_put(const struct pulled_keys *keys, size_t max_bytes, struct push *push)
    MUST_CHECK;

#endif

/* What the tests of the table share: a lookup of one key, keys whose hash is chosen, and a check
 * of all that must hold for any table at any time. */
#ifndef TESTS_UNIT_CORE_TABLE_FIXTURE_H
#define TESTS_UNIT_CORE_TABLE_FIXTURE_H

#include <errno.h>

#include "fixture.h"
#include "server/core/table.h"

struct row *find(const struct table *t, uint64_t key);
struct table *make_rows(uint32_t payload_bytes, uint64_t max_bytes,
                        struct memory_budget *parent);
struct row *insert(struct table *t, uint64_t key);

/* The key whose hash_mix() is x: that is a bijection. */
uint64_t unmix(uint64_t x);

/* Every number's row is found by its key, and nothing else; the facts agree with it. */
void check_whole(const struct table *t);

#endif

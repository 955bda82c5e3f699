/*
 * Room in the index for more keys; for table*.c alone.
 *
 *     no segment yet                     one of 64 lines
 *     a full one of fewer than 1024      gets twice the lines
 *     a full one of 1024 lines (64 KiB)  becomes two, by the next bit of x
 *     that would make the directory      gets twice the lines: keys that agree in so many bits
 *     larger than 16 x the segments      were chosen by somebody
 *
 * All keys of the one segment are dealt out anew, which reads the head of each of its 12,000 rows:
 * well under a millisecond. No growth costs more, except that of the last kind.
 */
#ifndef SERVER_CORE_TABLE_GROW_H
#define SERVER_CORE_TABLE_GROW_H

#include "server/core/table_index.h"

/* Makes sure that one more key finds a place. PS_EBUDGET or -ENOMEM: it would not; what is there
 * is found as before. */
int table_grow_reserve(struct table_index *x, const struct table_slabs *rows, uint64_t key)
    MUST_CHECK;

/* Of an empty index: segments for about n_keys keys, so that on the way there none has to be dealt out. As far
 * as memory and budget reach. */
void table_grow_ahead(struct table_index *x, const struct table_slabs *rows, uint64_t n_keys);

#endif

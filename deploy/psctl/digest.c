#include "deploy/psctl/digest.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/mem.h"

#define STAMP_FLAGS 0xffu

uint64_t digest_table(const struct shard_table *table)
{
    const size_t head_bytes = 2 * sizeof(uint64_t);
    uint8_t *bytes = mem_alloc(head_bytes + table->payload_bytes);
    uint64_t n = table_n_numbers(table->rows), sum = 0;

    for (uint64_t i = 0; i < n; i++) {
        const struct row *row = table_row(table->rows, i);
        uint64_t head[2];

        if (!row)
            continue;
        head[0] = row->key;
        head[1] = row->stamp & ~(uint64_t)STAMP_FLAGS;
        memcpy(bytes, head, head_bytes);
        memcpy(bytes + head_bytes, row->floats, table->payload_bytes);
        sum += XXH3_64bits(bytes, head_bytes + table->payload_bytes);
    }
    free(bytes);
    return sum;
}

#include "server/replication/audit.h"

#include <inttypes.h>
#include <string.h>

#include "common/crc32c.h"

#define PLACES_MAX (4 * AUDIT_ROWS_MAX) /* of rows, of which some are free */

struct audit_row {
    uint32_t table, crc;
    uint64_t key, version;
};

_Static_assert(sizeof(struct audit_row) == AUDIT_ROW_BYTES, "written as it is");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian");

static struct audit_row describe(uint32_t table, const struct shard_table *t,
                                 const struct row *row)
{
    return (struct audit_row){ .table = table,
                               .crc = crc32c_extend(0, row->floats, t->payload_bytes),
                               .key = row->key,
                               .version = row_version(row) };
}

/* The row at the cursor, which goes on; NULL: there is none. */
static const struct row *next_row(struct shard *s, struct audit_cursor *c,
                                  struct shard_table **ret_table, uint32_t *ret_id) ON_SHARD
{
    struct shard_table *t;

    if (c->table >= shard_n_tables(s))
        *c = (struct audit_cursor){ 0 };
    t = c->table < shard_n_tables(s) ? shard_table(s, c->table) : NULL;
    if (!t || c->row >= table_n_numbers(t->rows)) {
        *c = (struct audit_cursor){ .table = c->table + 1 };
        return NULL;
    }
    *ret_table = t;
    *ret_id = c->table;
    return table_row(t->rows, c->row++);
}

size_t audit_take(struct shard *s, uint64_t number, struct audit_cursor *cursor,
                  uint8_t dst[static MESSAGE_AUDIT_MAX])
{
    size_t n_bytes = sizeof number;

    if (!number || !shard_is_between_changes(s))
        return 0;
    memcpy(dst, &number, sizeof number);
    for (uint32_t i = 0; i < PLACES_MAX && n_bytes + AUDIT_ROW_BYTES <= MESSAGE_AUDIT_MAX;
         i++) {
        struct shard_table *t;
        uint32_t table;
        const struct row *row = next_row(s, cursor, &t, &table);
        struct audit_row as_sent;

        if (!row)
            continue;
        as_sent = describe(table, t, row);
        memcpy(dst + n_bytes, &as_sent, sizeof as_sent);
        n_bytes += sizeof as_sent;
    }
    return n_bytes > sizeof number ? n_bytes : 0;
}

uint64_t audit_number(const uint8_t *bytes, size_t n_bytes)
{
    uint64_t number;

    if (n_bytes < sizeof number || n_bytes > MESSAGE_AUDIT_MAX ||
        (n_bytes - sizeof number) % AUDIT_ROW_BYTES)
        return 0;
    memcpy(&number, bytes, sizeof number);
    return number;
}

static int compare_row(struct shard *s, uint64_t number, const struct audit_row *theirs,
                       struct err *err) ON_SHARD
{
    struct shard_table *t =
        theirs->table < shard_n_tables(s) ? shard_table(s, theirs->table) : NULL;
    struct row *row = NULL;
    struct audit_row ours;

    if (!t)
        return err_set(err, PS_ECORRUPT,
                       "at record %" PRIu64 " the primary has a table %" PRIu32
                       ", and this standby does not",
                       number, theirs->table);
    table_find_batch(t->rows, &theirs->key, 1, &row);
    if (!row)
        return err_set(err, PS_ECORRUPT,
                       "at record %" PRIu64 " the primary has a row of table %s, key %" PRIu64
                       ", and this standby does not",
                       number, t->spec.name, theirs->key);
    ours = describe(theirs->table, t, row);
    if (ours.version != theirs->version)
        return err_set(err, PS_ECORRUPT,
                       "at record %" PRIu64 " the row of table %s, key %" PRIu64
                       " is of version %" PRIu64 " here, and of %" PRIu64 " at the primary",
                       number, t->spec.name, theirs->key, ours.version, theirs->version);
    if (ours.crc != theirs->crc)
        return err_set(err, PS_ECORRUPT,
                       "at record %" PRIu64 " the row of table %s, key %" PRIu64
                       " has other values here than at the primary",
                       number, t->spec.name, theirs->key);
    return 0;
}

int audit_compare(struct shard *s, const uint8_t *bytes, size_t n_bytes, struct err *err)
{
    const uint64_t number = audit_number(bytes, n_bytes);
    int status = 0;

    for (size_t at = sizeof number; at + AUDIT_ROW_BYTES <= n_bytes && !status;
         at += AUDIT_ROW_BYTES) {
        struct audit_row theirs;

        memcpy(&theirs, bytes + at, sizeof theirs);
        status = compare_row(s, number, &theirs, err);
    }
    return status;
}

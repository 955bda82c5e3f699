#include "server/replication/follower.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "server/replication/audit.h"

#define N_BYTES_AT 4u /* of a record's header: wal_record.h */
#define NUMBER_AT 8u
#define TYPE_AT 32u
#define KEPT_BYTES_MAX (4u << 20) /* a longer buffer is freed once it is empty */

void follower_init(struct follower *f, struct shard *shard, const struct follower_log *log,
                   uint64_t last, uint64_t needs)
{
    *f = (struct follower){ .shard = shard,
                            .log = *log,
                            .received = last,
                            .replayed = last,
                            .applied = last,
                            .needs = needs };
}

void follower_deinit(struct follower *f)
{
    bytes_deinit(&f->in);
}

/* --- what comes --- */

/* Of the record there, with its padding; 0: there is none that is whole. */
static size_t record_bytes(const uint8_t *src, size_t n_bytes)
{
    uint64_t n;
    uint32_t payload;

    if (n_bytes < WAL_RECORD_HEADER_BYTES)
        return 0;
    memcpy(&payload, src + N_BYTES_AT, sizeof payload);
    n = ((uint64_t)WAL_RECORD_HEADER_BYTES + payload + 7) & ~UINT64_C(7);
    return n <= n_bytes ? (size_t)n : 0;
}

static uint32_t record_type(const uint8_t *record)
{
    uint32_t type;

    memcpy(&type, record + TYPE_AT, sizeof type);
    return type;
}

/* Do they stand there, one behind the other? *ret_skip: bytes of those that were received before; *ret_bytes: of those
 * before one of an unknown type, which is f->unknown then. */
static bool are_records(struct follower *f, uint64_t first, uint32_t n_records,
                        const uint8_t *records, size_t n_bytes, size_t *ret_skip,
                        size_t *ret_bytes)
{
    size_t at = 0;

    *ret_skip = 0;
    *ret_bytes = n_bytes;
    f->unknown = 0;
    for (uint32_t i = 0; i < n_records; i++) {
        size_t n = record_bytes(records + at, n_bytes - at);
        uint64_t number;

        if (!n)
            return false;
        memcpy(&number, records + at + NUMBER_AT, sizeof number);
        if (number != first + i)
            return false;
        if (!f->unknown && !wal_record_knows(record_type(records + at))) {
            f->unknown = number;
            f->unknown_type = record_type(records + at);
            *ret_bytes = at;
        }
        at += n;
        if (number <= f->received)
            *ret_skip = at;
    }
    return at == n_bytes;
}

int follower_add(struct follower *f, uint64_t first, uint32_t n_records, const uint8_t *records,
                 size_t n_bytes, struct err *err)
{
    size_t skip, known;
    uint8_t *dst;

    if (first == 0 || first > f->received + 1 || n_records > UINT64_MAX - first)
        return err_set(err, PS_EPROTO,
                       "records from %" PRIu64 " on came, and %" PRIu64 " was asked for", first,
                       f->received + 1);
    if (!are_records(f, first, n_records, records, n_bytes, &skip, &known))
        return err_set(err, PS_EPROTO, "what came from record %" PRIu64 " on is no records",
                       first);
    if (skip >= known)
        return 0;
    dst = bytes_reserve(&f->in, known - skip);
    if (!dst)
        return err_set(err, -ENOMEM, "no memory for %zu bytes of records", known - skip);
    memcpy(dst, records + skip, known - skip);
    bytes_commit(&f->in, known - skip);
    f->received = f->unknown ? f->unknown - 1 : first + n_records - 1;
    return 0;
}

/* --- what is done with it --- */

/* A record of another number or content than the crc of its sender says cannot be told from one that was damaged in
 * memory, here or there. */
static int decode(struct follower *f, size_t at, struct wal_record_storage *storage,
                  struct wal_record *ret, size_t *ret_bytes, struct err *err)
{
    struct err reason = { 0 };
    const char *wrong = wal_record_decode(bytes_front(&f->in) + at, bytes_len(&f->in) - at,
                                          storage, ret, ret_bytes, &reason);

    if (!wrong)
        return 0;
    return err_set(err, PS_ECORRUPT, "record %" PRIu64 " of the primary cannot be read: %s",
                   f->replayed + 1, wrong);
}

/* All that is replayed is of whole events: it goes to the log. */
static int append_ahead(struct follower *f, struct err *err) ON_SHARD
{
    while (f->ahead) {
        struct wal_record_storage storage;
        struct wal_record record;
        uint64_t number;
        size_t n_bytes;
        int status = decode(f, 0, &storage, &record, &n_bytes, err);

        if (status)
            return status;
        number = f->log.append(f->log.owner, &record);
        assert(number == record.number && number == f->applied + 1);
        f->applied = number;
        f->ahead -= n_bytes;
        bytes_consume(&f->in, n_bytes);
    }
    return 0;
}

static int replay_one(struct follower *f, uint64_t now_ms, struct err *err) ON_SHARD
{
    struct wal_record_storage storage;
    struct wal_record record;
    struct err why = { 0 };
    size_t n_bytes;
    int status = decode(f, f->ahead, &storage, &record, &n_bytes, err);

    if (status)
        return status;
    status = f->log.reserve(f->log.owner, n_bytes);
    if (status)
        return status;
    status = shard_replay(f->shard, &record.event, now_ms, &why);
    if (status)
        return err_set(err, status,
                       "record %" PRIu64 " (%s) of the primary cannot be replayed: %s",
                       record.number, wal_record_name(record.event.type), why.text);
    f->replayed = record.number;
    f->ahead += n_bytes;
    if (!replay_waits(f->shard))
        return append_ahead(f, err);
    return record.event.type == SHARD_EVENT_ROWS
               ? 0
               : err_set(err, PS_ECORRUPT,
                         "record %" PRIu64 " (%s) of the primary stands between rows and their "
                         "push",
                         record.number, wal_record_name(record.event.type));
}

int follower_audit(struct follower *f, const uint8_t *bytes, uint32_t n_bytes)
{
    const uint64_t number = audit_number(bytes, n_bytes);

    if (!number)
        return PS_EPROTO;
    if (f->audit_at || number < f->replayed || number < f->needs)
        return 0;
    memcpy(f->audit, bytes, n_bytes);
    f->audit_bytes = n_bytes;
    f->audit_at = number;
    return 0;
}

/* The primary was there between two events, so no rows wait for their push. */
static int audit(struct follower *f, struct err *err) ON_SHARD
{
    int status = 0;

    if (!f->audit_at || f->replayed < f->audit_at)
        return 0;
    if (f->replayed == f->audit_at && !replay_waits(f->shard))
        status = audit_compare(f->shard, f->audit, f->audit_bytes, err);
    f->differs = f->differs || status != 0;
    f->audit_at = 0;
    return status;
}

int follower_run(struct follower *f, uint64_t now_ms, struct err *err)
{
    int status = audit(f, err);

    while (!status && follower_n_waiting(f)) {
        status = replay_one(f, now_ms, err);
        if (!status)
            status = audit(f, err);
    }
    if (!bytes_len(&f->in) && f->in.cap_bytes > KEPT_BYTES_MAX)
        bytes_deinit(&f->in);
    return status;
}

void follower_stop(struct follower *f)
{
    bytes_consume(&f->in, bytes_len(&f->in));
    f->ahead = 0;
    f->received = f->replayed = f->applied;
    f->audit_at = 0;
    replay_drop_rows(f->shard);
}

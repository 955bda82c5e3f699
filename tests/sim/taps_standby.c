/* The product's functions that are observed in a standby, and in what its primary keeps for it (taps.c). */
#include "proto/message_replication.h"
#include "server/core/shard_internal.h"
#include "server/replication/arithmetic.h"
#include "server/replication/copy.h"
#include "server/replication/follower.h"
#include "server/replication/record_ring.h"
#include "tests/sim/node.h"
#include "tests/sim/pair.h"
#include "tests/sim/wrap.h"

static struct node *here(void)
{
    return node_of_process(process_current());
}

static struct shard_record *record_here(uint32_t shard)
{
    return &here()->world->members[here()->member][shard];
}

/* A standby's shard: it lives as it is replayed. */
void REAL(follower_init)(struct follower *f, struct shard *shard,
                         const struct follower_log *log, uint64_t last, uint64_t needs);
void WRAP(follower_init)(struct follower *f, struct shard *shard,
                         const struct follower_log *log, uint64_t last, uint64_t needs);
void WRAP(follower_init)(struct follower *f, struct shard *shard,
                         const struct follower_log *log, uint64_t last, uint64_t needs)
{
    struct shard_record *rec = record_here(shard->config.shard);

    REAL(follower_init)(f, shard, log, last, needs);
    rec->life.core = shard;
    rec->life.follower = f;
    rec->life.fiber = machine.running;
    rec->life.process = process_current();
    rec->heard_in_sync = false;
}

int REAL(follower_add)(struct follower *f, uint64_t first, uint32_t n_records,
                       const uint8_t *records, size_t n_bytes, struct err *err);
int WRAP(follower_add)(struct follower *f, uint64_t first, uint32_t n_records,
                       const uint8_t *records, size_t n_bytes, struct err *err);
int WRAP(follower_add)(struct follower *f, uint64_t first, uint32_t n_records,
                       const uint8_t *records, size_t n_bytes, struct err *err)
{
    struct shard_record *rec = record_here(f->shard->config.shard);
    int status = REAL(follower_add)(f, first, n_records, records, n_bytes, err);

    if (f->received > rec->received)
        rec->received = f->received;
    return status;
}

void REAL(follower_deinit)(struct follower *f);
void WRAP(follower_deinit)(struct follower *f);
void WRAP(follower_deinit)(struct follower *f)
{
    struct shard_record *rec = record_here(f->shard->config.shard);

    if (rec->life.follower == f)
        rec->life.follower = NULL, rec->life.core = NULL;
    REAL(follower_deinit)(f);
}

/* --- what it hears, and asks for --- */

int REAL(message_read_fetch_reply)(const struct frame_header *h, const uint8_t *head,
                                   const uint8_t *body, size_t body_bytes,
                                   struct fetch_reply *ret);
int WRAP(message_read_fetch_reply)(const struct frame_header *h, const uint8_t *head,
                                   const uint8_t *body, size_t body_bytes,
                                   struct fetch_reply *ret);
int WRAP(message_read_fetch_reply)(const struct frame_header *h, const uint8_t *head,
                                   const uint8_t *body, size_t body_bytes,
                                   struct fetch_reply *ret)
{
    int status = REAL(message_read_fetch_reply)(h, head, body, body_bytes, ret);

    if (!status && !ret->status)
        pair_heard(here(), ret->in_sync);
    return status;
}

/* All members compute with this one processor, and the real one takes longer than most schedules. */
void WRAP(arithmetic_fingerprint)(char ret[static ARITHMETIC_MAX]);
void WRAP(arithmetic_fingerprint)(char ret[static ARITHMETIC_MAX])
{
    snprintf(ret, ARITHMETIC_MAX, "simulated");
}

int REAL(copy_prepare)(const struct file_ops *files, const char *data_dir, bool keeps,
                       struct err *err);
int WRAP(copy_prepare)(const struct file_ops *files, const char *data_dir, bool keeps,
                       struct err *err);
int WRAP(copy_prepare)(const struct file_ops *files, const char *data_dir, bool keeps,
                       struct err *err)
{
    pair_copy_begins(here());
    return REAL(copy_prepare)(files, data_dir, keeps, err);
}

bool REAL(copy_next)(const struct copy *c, struct file_request *ret);
bool WRAP(copy_next)(const struct copy *c, struct file_request *ret);
bool WRAP(copy_next)(const struct copy *c, struct file_request *ret)
{
    bool goes_on = REAL(copy_next)(c, ret);

    if (!goes_on)
        pair_has_copied(here());
    return goes_on;
}

/* A standby that takes little at a time: what it gets ends within what the primary did at once. */
int REAL(message_write_fetch)(struct bytes *out, uint64_t request_id, const struct fetch *m);
int WRAP(message_write_fetch)(struct bytes *out, uint64_t request_id, const struct fetch *m);
int WRAP(message_write_fetch)(struct bytes *out, uint64_t request_id, const struct fetch *m)
{
    struct fetch little = *m;

    if (here()->world->plan.pairs.fetch_bytes)
        little.max_bytes = here()->world->plan.pairs.fetch_bytes;
    return REAL(message_write_fetch)(out, request_id, &little);
}

void REAL(record_ring_init)(struct record_ring *r, struct channel_pool *buffers,
                            size_t max_bytes, uint64_t last);
void WRAP(record_ring_init)(struct record_ring *r, struct channel_pool *buffers,
                            size_t max_bytes, uint64_t last);
void WRAP(record_ring_init)(struct record_ring *r, struct channel_pool *buffers,
                            size_t max_bytes, uint64_t last)
{
    (void)max_bytes;
    REAL(record_ring_init)(r, buffers, here()->world->plan.pairs.ring_bytes, last);
}

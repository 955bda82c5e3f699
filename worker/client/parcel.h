/*
 * One push or pull for one shard, encoded but not yet framed: what a link keeps until the shard
 * has answered, to be framed anew for each connection. Then it goes back, with its memory, to those
 * who fill such parcels.
 */
#ifndef WORKER_CLIENT_PARCEL_H
#define WORKER_CLIENT_PARCEL_H

#include "common/buf.h"
#include "common/spares.h"
#include "proto/message.h"

struct parcel {
    struct spare spare; /* while it is with `home` */
    struct spares
        *home; /* borrowed: who takes it when it is done with; NULL: nobody, it is freed */
    struct parcel *next; /* the backlog's */
    uint64_t request_id; /* of the last time it was sent; 0: never */
    uint64_t seq;        /* push: given by the backlog */
    uint64_t clock;
    uint32_t n_samples;   /* push */
    bool tick;            /* push */
    uint64_t unfinished;  /* pull: steps before its clock that are under way */
    uint64_t n_versions;  /* push: by how much it raises the shard's version */
    uint64_t after_seq;   /* pull: the pushes that were sent before it */
    uint64_t asked_ms;    /* pull: when */
    uint32_t deadline_ms; /* pull: from then on */
    struct buf bytes;     /* owned; the sections borrow it */
    size_t
        most_bytes; /* that `bytes` have held: of their room, which is more, no page beyond that is taken */
    uint32_t n_sections, cap_sections;
    struct section sections[]; /* table_id: the client's number */
};

/* An empty one with room for n_sections. NULL without memory. */
struct parcel *parcel_new(uint32_t n_sections) MUST_CHECK;

/* The same, one that has come back if there is one: `bytes` are empty, and have the room that they had. `home` outlives it. */
struct parcel *parcel_take(struct spares *home, uint32_t n_sections) MUST_CHECK;

/* Frees those that have come back. */
void parcel_free_spares(struct spares *home);

/* Takes *bytes (and leaves it empty), copies its n_sections sections. */
void parcel_fill(struct parcel *p, struct buf *bytes, const struct section *sections);

/* Done with: back home, or freed. Any thread. NULL is fine. */
void parcel_free(struct parcel *p);

/* Appends the frame of one request. shard_ids[i]: the shard's number of the client's table i.
 * zstd and status: as message_write_*(). */
int parcel_write_push(const struct parcel *p, const uint32_t *shard_ids, uint64_t request_id,
                      struct message_zstd *zstd, struct buf *out) MUST_CHECK;
int parcel_write_pull(const struct parcel *p, const uint32_t *shard_ids, uint64_t request_id,
                      struct message_zstd *zstd, uint32_t deadline_ms, struct buf *out)
    MUST_CHECK;

#endif

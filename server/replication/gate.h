/*
 * What one shard's replies wait for beside its own log: what the standby has of it.
 *
 *     GATE_OPEN     nothing: the standby is not in sync, or there is none
 *     GATE_WAITS    the standby's acknowledgement, as --standby-ack says
 *     GATE_SEALED   for ever: another psd is the primary
 *
 * And whether the standby keeps up: each fetch acknowledges what came before it. It has caught up with a fetch that
 * asks for records behind all that were there at the fetch before.
 *
 * A value: no loop, no clock, no lock. In the standby's numbers nothing is believed that cannot be.
 */
#ifndef SERVER_REPLICATION_GATE_H
#define SERVER_REPLICATION_GATE_H

#include <stdbool.h>

#include "server/replication/terms.h"

enum gate_mode { GATE_OPEN, GATE_WAITS, GATE_SEALED };

struct gate {
    enum gate_mode mode;
    enum terms_ack ack;
    uint64_t received, durable, applied; /* the standby's; received: all up to this record */
    uint64_t closed_at;                  /* the newest record when the gate began to wait */
    uint64_t seen_appended, seen_ms;     /* as the last fetch found them */
    uint64_t caught_up_ms;               /* when it last had all that there was; 0: never */
    uint64_t sealed_at;
};

/* A standby follows, and has all up to `keep`. */
void gate_begin(struct gate *g, uint64_t keep);

/* It asks for what comes behind `next` - 1. appended: the shard's newest record. */
struct fetch;
/* PS_EPROTO: it claims to have what there never was. Then nothing is noted. */
int gate_fetch(struct gate *g, const struct fetch *fetch, uint64_t appended, uint64_t now_ms)
    MUST_CHECK;

/* Begins to wait, or ends it; a sealed one stays sealed. */
void gate_close(struct gate *g, uint64_t appended);
void gate_open(struct gate *g);
void gate_seal(struct gate *g);

/* The standby has all up to this record, as --standby-ack counts: in memory, or on its disk. */
uint64_t gate_held(const struct gate *g);

/* All replies up to this record may go, as far as the standby is concerned. */
uint64_t gate_acknowledged(const struct gate *g);

#endif

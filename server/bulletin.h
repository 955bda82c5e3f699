/*
 * Where a shard pins up its newest report and others read it. A reader holds on to what it
 * took, never to the shard: posting waits for nobody but whoever is just taking or posting a
 * pointer.
 */
#ifndef SERVER_BULLETIN_H
#define SERVER_BULLETIN_H

#include <stdatomic.h>
#include <uv.h>

#include "server/admin/report.h"

struct bulletin_sheet {
    struct shard_report *report; /* owned; nobody writes to it any more */
    _Atomic uint32_t n_holders;  /* readers, and the board itself */
};

struct bulletin {
    uv_mutex_t lock;
    struct bulletin_sheet *newest; /* NULL before the first */
};

int bulletin_init(struct bulletin *b) MUST_CHECK;

/* Nobody may still read. */
void bulletin_deinit(struct bulletin *b);

/* Takes the report. */
void bulletin_post(struct bulletin *b, struct shard_report *report);

/* The newest report, which stays as it is until bulletin_return(). NULL before the first. Any
 * thread. */
struct bulletin_sheet *bulletin_take(struct bulletin *b);
void bulletin_return(struct bulletin_sheet *sheet);

#endif

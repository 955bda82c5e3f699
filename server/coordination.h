/*
 * Who is the primary of this psd's group, by a coordination service (server/cluster/coord.h): one claim for each group,
 * under groups/NUMBER, which changes by compare-and-swap alone.
 *
 *     who                          writes                                        only over
 *     a primary that starts        its new term, nobody in sync                  a claim of its own, or none
 *     a primary                    its standby is in sync, or is not any more    its own, of this term
 *     a standby that takes over    its new term, nobody in sync                  "this standby is in sync"
 *
 * Both members read a claim and write over just that one. So of a primary that stops waiting for its standby, and a
 * standby that takes over, one succeeds; the other one learns of it. server/replication/README.md, "With a coordination
 * service".
 *
 * The first claim of a cluster also writes what all its nodes share (claim.h). A psd of another shape has no claim: it
 * may have been given the name of another cluster. A standby has no claim before its primary has said which node it is.
 */
#ifndef SERVER_COORDINATION_H
#define SERVER_COORDINATION_H

#include <uv.h>

#include "common/thread_role.h"
#include "proto/message.h"
#include "server/admin/stats.h"
#include "server/cluster/claim.h"
#include "server/cluster/coord.h"

#define COORDINATION_WAIT_MAX 320u

struct coordination;

struct coordination_config {
    uv_loop_t *loop;              /* borrowed */
    coord_open *open;             /* NULL: this program has no service */
    struct coord_options service; /* borrowed */
    uint32_t group;
    struct claim_config cluster;
    bool is_placed;          /* else the primary has still to say which node this psd is */
    const char *own_address; /* borrowed; filled in before a claim is written or compared */
    void (*on_change)(void *owner); /* another claim is known, or the first */
    void *owner;                    /* borrowed */
};

/* Reads the claim, from now on. One whose url is wrong never knows a claim, and says so. */
struct coordination *coordination_new(const struct coordination_config *config) ON_MAIN;

/* Nothing is written or told any more. A second time, or NULL: nothing. */
void coordination_close(struct coordination *c) ON_MAIN;

/* The loop has ended behind coordination_close(). NULL is fine. */
void coordination_free(struct coordination *c) ON_MAIN;

bool coordination_is_known(const struct coordination *c) ON_MAIN;

/* The service can be heard. */
bool coordination_is_there(const struct coordination *c) ON_MAIN;

/* NULL: there is none, or none is known. Borrowed until the loop's next turn. */
const struct claim *coordination_claim(const struct coordination *c) ON_MAIN;

/* How long a standby waits for a silent primary: failover_after_ms, or twice that once one has taken over by itself
 * three times in ten minutes, so that a machine that often stands still costs no failover each time. */
uint64_t coordination_patience_ms(const struct coordination *c, uint64_t failover_after_ms)
    ON_MAIN;

/* The claim was there when the service turned out to be restored from a copy, and may be older than what was known of
 * it: nobody has written it since. A primary writes it again (standby_server_claim.c), and nobody takes over by it. */
bool coordination_is_doubtful(const struct coordination *c) ON_MAIN;

/* The claim names this psd as the primary. */
bool coordination_is_own(const struct coordination *c) ON_MAIN;

/* Writes a claim of this psd as the primary, over the one that is known, whose takeovers it keeps as long as they
 * count: the claim's own come behind them. `done` is called once, later: 0, it was made; -EEXIST, another one is there
 * now, and this one never will be. Until the service has said which of both, it is asked again: there is no deadline,
 * and coordination_is_waiting() says so. One at a time. */
void coordination_write(struct coordination *c, const struct claim *claim,
                        void (*done)(void *arg, const struct err *err), void *arg) ON_MAIN;

/* For operators. */
void coordination_report(const struct coordination *c, uint64_t failover_after_ms,
                         struct stats_coordination *ret) ON_MAIN;

/* A sentence, while something waits for the service. */
bool coordination_is_waiting(const struct coordination *c,
                             char ret[static COORDINATION_WAIT_MAX]) ON_MAIN;

#endif

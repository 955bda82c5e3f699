/*
 * A psd that follows a primary, on the main thread. It asks: FOLLOW and FILE here, FETCH on each shard's thread
 * (shard_follower.h).
 *
 *     state        meaning                                        leaves it by
 *     READING      what the data directory holds                  -> DIALLING
 *     DIALLING     the primary is dialled, and asked              GO_ON -> REBUILDING, or FOLLOWING; COPY -> COPYING;
 *                                                                 TAKE_OVER, promote -> REBUILDING, SEALING
 *     COPYING      its newest restore point comes                 -> REBUILDING; a failure -> DIALLING
 *     REBUILDING   as a start (start.h), up to what both have     -> FOLLOWING, or SEALING
 *     FOLLOWING    its records come                               the connection's end -> DIALLING; promote -> SEALING
 *     SEALING      nothing is fetched; what has come is applied   -> PROMOTING
 *     PROMOTING    a new term is written                          -> PRIMARY
 *     PRIMARY      the shards may serve                           -
 *     STOPPED      nothing is under way, or is to be              -
 *
 * FOLLOWING is in sync while the primary says that its replies wait for this standby.
 *
 * Where the shards hold what the primary does not have, or are of no use, the node ends and begins again
 * (events.restart): the next life asks anew before it loads anything.
 *
 * DATA_DIR/TERMS (server/replication/terms.h) says that the directory is a standby's, from before the first file of a
 * copy is written. It has the primary's list of terms once the log behind what both have is gone, and before the first
 * record is asked for: so a term in the list never names records of another one.
 */
#ifndef SERVER_STANDBY_H
#define SERVER_STANDBY_H

#include "common/address.h"
#include "server/coordination.h"
#include "server/net/group_view.h"
#include "server/settings.h"
#include "server/shard_thread.h"
#include "server/start.h"

struct standby;

enum standby_state {
    STANDBY_READING,
    STANDBY_DIALLING,
    STANDBY_COPYING,
    STANDBY_REBUILDING,
    STANDBY_FOLLOWING,
    STANDBY_SEALING,
    STANDBY_PROMOTING,
    STANDBY_PRIMARY,
    STANDBY_STOPPED
};

struct standby_events {
    /* start_run() with `follows` and this `keep`, borrowed until standby_rebuilt(). */
    void (*rebuild)(void *node, const uint64_t *keep);
    /* The cluster that the primary is of is written (cluster_file.h), or its shards cannot go on: the node is to end,
     * and to begin again. */
    void (*restart)(void *node, const char *why);
    /* The primary has been reached, and is of the cluster that this node's map shows. */
    void (*welcomed)(void *node);
    /* Its shards are being sealed: it does not say who the primary is, until it is that or follows again. */
    void (*rises)(void *node);
    /* The shards are this node's, and its log is of a term of its own. */
    void (*promoted)(void *node);
    void (*failed)(void *node, const struct err *err);
};

struct standby_config {
    uv_loop_t *loop;                     /* borrowed: the main thread's, */
    struct mailbox *mailbox;             /* borrowed: and its mailbox */
    const struct file_ops *files;        /* borrowed */
    const struct settings *settings;     /* borrowed */
    const struct hello_reply *map;       /* borrowed: of this node */
    const char *own_address;             /* borrowed: where clients will reach it */
    const char *primary;                 /* borrowed: HOST:PORT */
    struct coordination *coordination;   /* borrowed; NULL: a person promotes */
    struct shard_thread *const *shards;  /* borrowed: settings->shards of them */
    const struct standby_events *events; /* borrowed, static */
    void *node;                          /* borrowed */
};

struct standby_view {
    enum standby_state state;
    bool is_answering; /* the primary has, a moment ago */
    bool is_refused;   /* a psd is there, and did not want this one when it was asked last */
    bool is_moved;     /* what is there has said that it is not the primary */
    bool has_data;     /* of a primary that it has followed */
    bool is_useless;   /* and which is not the primary's any more: it copies anew */
    bool is_promoting; /* a promotion is under way, or is to begin */
    bool in_sync;      /* all that the primary acknowledges is here, as far as is known */
    bool may_lack; /* what the primary has acknowledged: a person's promotion accepts a loss */
    bool is_unheard; /* it was in sync, and has not followed since its own start */
    bool is_exact;   /* the shards are what the primary's were: a checkpoint may be taken */
    uint64_t term;   /* of the primary that was followed last */
    uint64_t lag_records, lag_ms;
    uint64_t since_unix_ms;          /* in this state */
    uint64_t n_bytes, n_total_bytes; /* COPYING */
    char why[COORDINATION_WAIT_MAX]; /* what it waits for, as a sentence; "": it follows */
    char note[200];                  /* what operators should know; "": nothing */
    char hindrance
        [COORDINATION_WAIT_MAX]; /* why it does not take over from a silent primary; "": it may, or does not have to */
};

/* PS_ESETTING and a sentence: config->primary is no address, or this psd's own. */
int standby_start(const struct standby_config *config, struct standby **ret, struct err *err)
    ON_MAIN MUST_CHECK;

/* After events.rebuild. */
void standby_rebuilt(struct standby *s, const struct start_result *result) ON_MAIN;

/* A few times a second. */
void standby_tick(struct standby *s, uint64_t now_ms) ON_MAIN;

void standby_see(const struct standby *s, struct standby_view *ret) ON_MAIN;

/* What it had when the term of its promotion began. */
enum follow_begun standby_begun_with(const struct standby *s) ON_MAIN;

/* The promotion that is under way, or done, is a switch: the old primary restarts as the standby. */
bool standby_is_handed_over(const struct standby *s) ON_MAIN;

/* As operators see it. */
void standby_report(const struct standby *s, const char *primary, struct stats_standby *ret)
    ON_MAIN;

/* For workers that are refused: PS_EMOVED and a sentence. */
int standby_report_refusal(const struct standby *s, const char *primary, struct err *err)
    ON_MAIN;

/* For standbys that are: the same; -ENODATA: this psd has no data, and neither follows nor knows a primary. */
int standby_report_no_primary(const struct standby *s, const char *primary, struct err *err)
    ON_MAIN;

/* How far a person goes. */
enum standby_promise {
    STANDBY_OTHER_IS_DEAD = 1 << 0, /* though it answers, or did a moment ago */
    STANDBY_BY_ITSELF = 1 << 2,     /* if the claim still says that it may */
    STANDBY_ACCEPT_LOSS = 1 << 1,   /* of what the primary may have acknowledged meanwhile */
    STANDBY_HANDED_OVER = 1 << 3    /* the primary asks for it, and acknowledges nothing more */
};

/* Of psctl's words: "the-other-is-dead", "accept-loss". */
unsigned standby_promises(const char *words);

/* `done` is called once, later: status 0, this psd is the primary now; else a sentence, and it follows as before.
 * -EBUSY: one is under way. */
int standby_promote(struct standby *s, unsigned promises,
                    void (*done)(void *arg, const struct err *err), void *arg, struct err *err)
    ON_MAIN MUST_CHECK;

/* `done` is called once, later or at once, when nothing is under way; the shards follow nobody then. */
void standby_stop(struct standby *s, void (*done)(void *arg), void *arg) ON_MAIN;

/* The loop has ended behind standby_stop(). NULL is fine. */
void standby_free(struct standby *s) ON_MAIN;

/* What other nodes and clients hear of this node's two psd: as the report says, of whichever side. `serves`: workers
 * may come. Nothing where there is, and was, no other one. */
void standby_report_groups(const struct stats_standby *report, const char *own_address,
                           bool serves, struct group_view *groups) ON_MAIN;

#endif

/*
 * The nodes: each a process that runs the product's node_run() with settings of its plan, on a disk of its own; how it dies,
 * stops and starts again; and what has to be true of it.
 */
#ifndef TESTS_SIM_NODE_H
#define TESTS_SIM_NODE_H

#include "tests/sim/disk.h"
#include "tests/sim/world.h"

/* A checkpoint that was taken, or may have been: its commit failed, or the process died in it. */
struct node_save {
    bool is_sure;
    uint64_t through[PLAN_N_SHARDS_MAX];
};

struct node {
    struct world *world;    /* borrowed */
    uint32_t index, number; /* in its cluster; of its data directory */
    uint32_t member;        /* of its pair: 0, or 1 that begins as the standby */
    struct node *other;     /* borrowed: the other member; NULL: it has no standby */
    bool is_in_sync;        /* as this process, a primary, sees its standby */
    bool says_in_sync;      /* ... as its TERMS surely says */
    uint64_t term, served;  /* the newest in its TERMS; the last one that it served in */
    uint64_t served_life;   /* its n_lives then */
    bool said_in_sync;      /* ... or a claim, when the process began */
    bool was_named;         /* the claim named it as the primary then */
    bool writes_primary;    /* TERMS say so, or are being written; of its last process, too, */
    bool wrote_primary;     /* when it started again */
    bool lacks_terms; /* a write of a primary's TERMS has failed, and none came behind it */
    struct disk disk;
    struct process *process; /* NULL: it is down */
    uint64_t n_lives, n_recovered;
    uint64_t n_faults; /* of its disk, when the process began */
    bool lost_power;   /* its last death took the power with it */
    bool is_due;       /* to start again */
    bool is_stopping;  /* it got SIGTERM */
    bool is_held;      /* it does not start again by itself */
    bool is_open;      /* all shards have a log */
    bool is_serving;   /* its start is over, and it is no standby */
    bool gives_up;     /* a standby that starts with fewer records than its files still have */
    uint64_t n_saves, n_done;
    uint64_t n_done_before; /* it got SIGTERM */
    struct node_save
        saves[PLAN_N_KEPT_MAX]; /* the newest; number n stands at n % PLAN_N_KEPT_MAX */
    uint64_t n_sync_points;
};

void node_init(struct node *n, struct world *world, uint32_t index, uint32_t number);
/* `second` is to be the standby of `first`, from its first start on. */
void node_pair(struct node *first, struct node *second);
void node_deinit(struct node *n);

/* The process starts after a while. */
void node_start(struct node *n);
void node_kill(struct node *n, bool is_power_cut);
/* As SIGTERM does it; it starts again when it has ended, unless it is held. */
void node_stop(struct node *n);
/* As psctl asks it, from a process of its own. */
int node_command(const struct node *n, const char *command, const char *argument,
                 uint32_t timeout_ms);
/* The same, and what it answers: owned, NULL if it does not. */
int node_ask(const struct node *n, const char *command, const char *argument,
             uint32_t timeout_ms, char **ret);
/* An operator asks for a checkpoint. */
void node_ask_checkpoint(struct node *n);

/* Are all its shards there, is nothing under way in them, and all their events on the disk? */
bool node_is_safe(const struct node *n);

/* If it died now. */
void node_check_crash(struct node *n, bool loses_power);
/* All is done. */
void node_check_end(struct node *n);

/* Both members of pairs, and nodes alone: NULL behind the last one. */
struct node *node_nth(const struct world *w, uint32_t i);
/* NULL: it is no psd. */
struct node *node_of_process(const struct process *p);
/* "10.0.0.1:7070" */
void node_address(const struct node *n, char ret[static 24]);
struct shard_record *node_record(const struct node *n, uint32_t local);
static inline struct node *node_of_record(const struct world *w, const struct shard_record *rec)
{
    return &(rec->member ? w->seconds : w->nodes)[rec->shard / w->plan.shards_per_node];
}

/* Has it a standby, or is it one? */
static inline bool node_is_paired(const struct world *w, const struct shard_record *rec)
{
    return w->lines && node_of_record(w, rec)->other;
}

/* It serves its shards, or did last. */
bool node_leads(const struct node *n);

/* --- for taps.c and os.c --- */

struct disk *cluster_disk(struct world *w, uint32_t number);
uint32_t cluster_number(const struct world *w, const struct disk *d);
/* The process has died in an operation of its disk: does not return. */
void cluster_died(struct world *w, struct process *p);
/* A shard was made again from the disk, with records up to `last`. */
struct cluster_recovered {
    uint32_t shard;
    struct shard *core;  /* NULL: it begins with nothing */
    uint64_t last, keep; /* keep: the last one that was to come back; UINT64_MAX: all */
    bool is_exact;
};

void cluster_accept(struct world *w, struct process *p, const struct cluster_recovered *r);
struct node_save *cluster_note_save(struct node *n);

#endif

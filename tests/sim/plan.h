/*
 * What one schedule is: the cluster, the job and how much goes wrong, all from its seed. When what
 * happens is decided on the way, by dice of the same seed.
 */
#ifndef TESTS_SIM_PLAN_H
#define TESTS_SIM_PLAN_H

#include <stdio.h>

#include "proto/section.h"
#include "proto/table_spec.h"
#include "server/wal/wal_queue.h"
#include "tests/sim/dice.h"

#define PLAN_N_SHARDS_MAX 4u
#define PLAN_N_WORKERS_MAX 3u
#define PLAN_N_TABLES_MAX 3u
#define PLAN_N_KEYS_MAX 48u
#define PLAN_N_STEPS_MAX 10u
#define PLAN_N_PULLS_MAX 4u /* of one worker at a time, and one whose step is being made */
#define PLAN_DIM_MAX 4u     /* of all tables but wide ones */
#define PLAN_WIDTH_MAX \
    (3 * PLAN_DIM_MAX + 2) /* floats of a row: AdamW that decays has the most */
#define PLAN_N_KEPT_MAX 3u
#define PLAN_NOBODY UINT32_MAX
#define PLAN_FIRST_OPS 60u  /* file operations of a first start, about */
#define PLAN_LEASE_MS 4000u /* longer than any fault lasts: no worker is declared dead */

/* Nodes that have a standby. */
struct plan_pairs {
    uint32_t has_standby; /* a bit for each node; 0: none */
    bool coordinated;     /* with a coordination service; else a person promotes */
    bool names_cluster;   /* standbys are told of the cluster, too */
    uint32_t ack;         /* enum terms_ack */
    uint32_t patience_ms, failover_ms, ring_bytes, log_max_bytes;
    uint32_t n_pauses, n_links, n_promotions, n_double_deaths, n_outages;
    uint32_t n_lossy; /* promotions with --accept-loss */
    uint32_t n_severed, n_switches;
    uint32_t n_losses;    /* of the coordination service's keys */
    uint32_t fetch_bytes; /* of an answer to a standby, at most; 0: as the product has it */
    bool dies_soon;       /* members die soon behind a promotion, too */
};

struct plan {
    uint64_t seed;

    uint32_t n_nodes, shards_per_node, n_shards;
    enum wal_durability durability;
    size_t block_bytes, queue_bytes;
    uint32_t segment_bytes, interval_ms;
    uint32_t checkpoint_every_us, n_deltas_max, keep;
    uint32_t lease_ms;

    uint32_t n_tables, n_keys, dims[PLAN_N_TABLES_MAX];
    uint32_t
        widths[PLAN_N_TABLES_MAX]; /* floats of a row: its weights, and its optimizer's state */
    bool has_limits;               /* admission by count, rows that go when they are idle */
    bool row_decays;               /* of some tables */
    bool names_keys; /* many pushes have the keys of their step's pull, and name it */
    struct table_spec specs[PLAN_N_TABLES_MAX];

    uint32_t n_workers, n_samples[PLAN_N_WORKERS_MAX];
    uint32_t n_backups; /* of lock step: a clock goes without so many workers */
    enum table_spec_mode mode;
    uint32_t bound, ahead; /* ahead: pulls of so many steps before the pushes of those before */
    uint32_t n_pulls;      /* of one worker, at most, that are under way at a time */
    bool assigns, scans;   /* workers set rows, too, and read whole tables */
    uint32_t n_steps;
    uint32_t sync_steps; /* bounded staleness: a sync point every so many steps; 0: never */
    bool asks_seldom;    /* of the same: some steps pull nothing */

    uint32_t network_us, disk_us, compute_us; /* the longest that one thing takes, mostly */
    uint32_t span_us;                         /* faults begin within */
    uint32_t n_resets, n_kills, n_power_cuts, n_worker_crashes, n_freezes, n_disk_faults;
    /* Behind the job's end the cluster starts again in another layout, and the job once more; n_next_nodes 0: it does not. */
    uint32_t n_next_nodes, next_shards_per_node;
    bool has_moved; /* the second layout serves */
    uint32_t
        n_replaced; /* a worker stands still, and somebody starts another one of its rank */
    uint32_t
        n_paths; /* nothing passes between one worker and one node, for longer than a lease */
    uint32_t
        n_isolations; /* nothing passes between any worker and one node, for longer than a lease */
    /* One rank says of another one in heartbeats that it is suspected, or refused by all, or says nothing of suspects as
     * long as things go wrong, though it relays; PLAN_NOBODY: none does. */
    uint32_t liar, accused, mute;
    /* A node dies in this operation of its first start; PLAN_NOBODY: none does. */
    uint32_t dies_first, dies_first_at;
    uint32_t n_stops,
        n_checkpoints; /* a node gets SIGTERM; an operator requests a checkpoint */
    struct plan_pairs pairs;
};

void plan_make(struct plan *p, uint64_t seed);

/* From here on in the other layout. */
void plan_go_on(struct plan *p);

/* Of one machine's monotonic clock, in millionths: half of them go up to 1 % too fast or too slow. */
int32_t plan_drift(const struct plan *p, uint32_t machine);

/* May what was acknowledged be lost, as nobody had synced it, or as a person has given it up? */
bool plan_may_lose(const struct plan *p);

/* Does membership stay as it is, so that lock step has one right result? */
bool plan_is_exact(const struct plan *p);

/* The last sync point at or before a step; 0: none. */
uint64_t plan_sync_point(const struct plan *p, uint64_t clock);

/* Does this step of a worker ask for rows, or compute with what it has? */
bool plan_pulls_at(const struct plan *p, uint32_t rank, uint64_t clock);

/* Which shard has key number `key`; all tables are sparse, so it is the same for each. */
uint32_t plan_shard_of(const struct plan *p, uint32_t key);
uint64_t plan_key(uint32_t key);

/* Is the key one of those that the worker's pull of this clock asks for, of all tables? */
bool plan_asks_for(const struct plan *p, uint32_t rank, uint64_t clock, uint32_t key);

/* The gradient of one worker for one key in one clock, small and whole: component i. 0 components are
 * sent for a key that plan_pushes() leaves out. */
bool plan_pushes(const struct plan *p, uint32_t rank, uint64_t clock, uint32_t table,
                 uint32_t key);
float plan_gradient(const struct plan *p, uint32_t rank, uint64_t clock, uint32_t table,
                    uint32_t key, uint32_t i);

/* What a worker does before the push of this clock: SECTION_GRADIENT: nothing. Else it assigns some rows, and with their
 * state a number of steps; component i of the row, its weights first, is small and whole, and in its state not negative. */
enum section_op plan_op(const struct plan *p, uint32_t rank, uint64_t clock);
bool plan_assigns(const struct plan *p, uint32_t rank, uint64_t clock, uint32_t table,
                  uint32_t key);
float plan_assigned(const struct plan *p, uint32_t rank, uint64_t clock, uint32_t table,
                    uint32_t key, uint32_t i);
uint64_t plan_steps(const struct plan *p, uint32_t rank, uint64_t clock);

/* The longest that the disk takes for one thing, stalls included. */
uint32_t plan_disk_us_max(const struct plan *p);

void plan_print(const struct plan *p, FILE *to);

#endif

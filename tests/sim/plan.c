#include "tests/sim/plan.h"

#include "proto/placement.h"
#include "server/replication/terms.h"
#include "tests/sim/optim.h"

static void make_cluster(struct plan *p, struct dice *d)
{
    static const uint32_t nodes[] = { 1, 1, 1, 2, 2, 3 }, shards[] = { 1, 2, 3, 1, 2, 1 };
    uint64_t i = dice_roll(d, COUNT_OF(nodes)), durability = dice_roll(d, 10);

    p->n_nodes = nodes[i];
    p->shards_per_node = shards[i];
    p->n_shards = p->n_nodes * p->shards_per_node;
    p->durability = durability < 6 ? WAL_FSYNC : durability < 9 ? WAL_ASYNC : WAL_NONE;
    p->block_bytes = (size_t)1 << dice_from(d, 10, 13);
    p->queue_bytes = p->block_bytes << dice_from(d, 1, 5);
    p->segment_bytes = 1u << dice_from(d, 10, 15);
    p->interval_ms = (uint32_t)dice_from(d, 8, 60);
    p->checkpoint_every_us = dice_once_in(d, 3) ? 0 : (uint32_t)dice_from(d, 30000, 400000);
    p->n_deltas_max = (uint32_t)dice_roll(d, 4);
    p->keep = (uint32_t)dice_from(d, 1, PLAN_N_KEPT_MAX);
}

/* Most tables have state; wide ones take long enough without. */
static enum table_spec_optim draw_optim(struct dice *d, uint32_t dim)
{
    static const enum table_spec_optim optims[] = { TABLE_SPEC_SGD, TABLE_SPEC_ADAMW,
                                                    TABLE_SPEC_ROWWISE_ADAGRAD,
                                                    TABLE_SPEC_ADAM };
    uint64_t i = dice_roll(d, COUNT_OF(optims));

    return dim > PLAN_DIM_MAX ? TABLE_SPEC_SGD : optims[i];
}

static void make_tables(struct plan *p, struct dice *d)
{
    bool is_wide = dice_once_in(d, 60); /* pushes of which are applied in slices */

    p->n_tables = (uint32_t)dice_from(d, 1, PLAN_N_TABLES_MAX);
    p->n_keys = is_wide ? PLAN_N_KEYS_MAX : (uint32_t)dice_from(d, 8, PLAN_N_KEYS_MAX);
    p->has_limits = dice_once_in(d, 8);
    for (uint32_t i = 0; i < p->n_tables; i++) {
        struct table_spec *spec = &p->specs[i];

        p->dims[i] = is_wide && i == 0 ? 12288 : (uint32_t)dice_from(d, 1, PLAN_DIM_MAX);
        *spec = (struct table_spec){ .kind = TABLE_SPEC_SPARSE,
                                     .dim = p->dims[i],
                                     .seed = 7,
                                     .init = TABLE_SPEC_INIT_ZERO,
                                     .optim = draw_optim(d, p->dims[i]),
                                     .mode = TABLE_SPEC_MODE_JOB };
        snprintf(spec->name, sizeof spec->name, "job/t%u", i);
        spec->params = table_spec_optim_defaults(spec->optim);
        spec->params.learning_rate = 1;
        p->widths[i] = p->dims[i] + optimizer_state_floats(spec);
        if (p->has_limits && i == 0)
            spec->limits = (struct table_spec_limits){ .admit_touches = 2,
                                                       .admit_clocks = 100,
                                                       .idle_clocks = 3 };
    }
}

static void make_job(struct plan *p, struct dice *d)
{
    static const uint32_t samples[PLAN_N_WORKERS_MAX][PLAN_N_WORKERS_MAX] = { { 1, 0, 0 },
                                                                              { 1, 3, 0 },
                                                                              { 1, 1, 2 } };
    uint64_t mode = dice_roll(d, 10);

    p->n_workers = (uint32_t)dice_from(d, 1, PLAN_N_WORKERS_MAX);
    for (uint32_t i = 0; i < p->n_workers; i++)
        p->n_samples[i] = samples[p->n_workers - 1][i]; /* weights are exact in fp32 */
    p->mode = mode < 5   ? TABLE_SPEC_MODE_BSP
              : mode < 8 ? TABLE_SPEC_MODE_SSP
                         : TABLE_SPEC_MODE_ASYNC;
    p->bound = p->mode == TABLE_SPEC_MODE_SSP ? (uint32_t)dice_from(d, 1, 3) : 0;
    p->ahead = p->mode == TABLE_SPEC_MODE_BSP ? 0 : (uint32_t)dice_roll(d, 2);
    p->n_steps = p->dims[0] > PLAN_DIM_MAX ? 3 : (uint32_t)dice_from(d, 3, PLAN_N_STEPS_MAX);
}

/* By dice of its own, so that a seed's schedule is otherwise what it was. */
static void make_backups(struct plan *p, struct dice d)
{
    if (p->mode == TABLE_SPEC_MODE_BSP && p->n_workers > 1 && dice_once_in(&d, 3))
        p->n_backups = (uint32_t)dice_from(&d, 1, p->n_workers - 1);
}

/* Most schedules have a few kinds of faults, some none, and some all. */
static uint32_t some(struct dice *d, uint32_t most)
{
    return dice_once_in(d, 2) ? 0 : (uint32_t)dice_from(d, 1, most);
}

static void make_faults(struct plan *p, struct dice *d)
{
    bool leases_end = dice_once_in(d, 4);

    p->network_us = (uint32_t)dice_from(d, 100, 3000);
    p->disk_us = dice_once_in(d, 6) ? 20000 : (uint32_t)dice_from(d, 50, 2000);
    p->compute_us = (uint32_t)dice_from(d, 400, 30000);
    p->span_us = 100000 + p->n_steps * (4 * p->network_us + p->compute_us);
    p->n_resets = some(d, 5);
    p->n_kills = some(d, 4);
    p->n_power_cuts = some(d, 3);
    p->n_disk_faults = some(d, 3);
    p->n_stops = dice_once_in(d, 3) ? (uint32_t)dice_from(d, 1, 2) : 0;
    p->n_checkpoints = some(d, 4);
    p->lease_ms = PLAN_LEASE_MS;
    if (!leases_end)
        return;
    p->lease_ms = (uint32_t)dice_from(d, 100, 400);
    p->n_worker_crashes = some(d, 3);
    p->n_freezes = some(d, 2);
    p->n_replaced = some(d, 2);
}

/* The same. */
static void make_sync_points(struct plan *p, struct dice d)
{
    if (p->mode != TABLE_SPEC_MODE_SSP)
        return;
    p->sync_steps = dice_once_in(&d, 5) ? 0 : (uint32_t)dice_from(&d, 1, 5);
    p->asks_seldom = dice_once_in(&d, 3);
}

/* The same. */
static void make_layout(struct plan *p, struct dice d)
{
    static const uint32_t nodes[] = { 1, 1, 1, 2, 2, 3 }, shards[] = { 1, 2, 3, 1, 2, 1 };
    uint64_t i = dice_roll(&d, COUNT_OF(nodes));

    if (!dice_once_in(&d, 5) || (nodes[i] == p->n_nodes && shards[i] == p->shards_per_node))
        return;
    p->n_next_nodes = nodes[i];
    p->next_shards_per_node = shards[i];
}

/* The same. Where nobody is to be declared dead there are none. */
static void make_paths(struct plan *p, struct dice d)
{
    if (p->lease_ms != PLAN_LEASE_MS && !dice_once_in(&d, 4))
        p->n_paths = (uint32_t)dice_from(&d, 1, 3);
}

/* The same. Where there is another node that hears them. */
static void make_isolations(struct plan *p, struct dice d)
{
    if (p->lease_ms != PLAN_LEASE_MS && p->n_nodes > 1 && dice_once_in(&d, 2))
        p->n_isolations = (uint32_t)dice_from(&d, 1, 2);
}

/* The same. A lie about a worker that is heard everywhere changes nothing, as long as the third one is there. */
static void make_members(struct plan *p, struct dice d)
{
    p->liar = p->mute = p->accused = PLAN_NOBODY;
    if (p->n_workers < PLAN_N_WORKERS_MAX || p->n_shards == 1)
        return;
    if (p->lease_ms != PLAN_LEASE_MS) {
        if (dice_once_in(&d, 3))
            p->mute = (uint32_t)dice_roll(&d, p->n_workers);
    } else if (p->mode == TABLE_SPEC_MODE_BSP && p->durability == WAL_FSYNC &&
               dice_once_in(&d, 2)) {
        p->liar = (uint32_t)dice_roll(&d, p->n_workers);
        p->accused = (p->liar + 1 + (uint32_t)dice_roll(&d, p->n_workers - 1)) % p->n_workers;
    }
}

/* The same. */
static void make_pulls(struct plan *p, struct dice d)
{
    p->n_pulls = 1;
    if (p->mode == TABLE_SPEC_MODE_ASYNC && dice_once_in(&d, 2))
        p->n_pulls = (uint32_t)dice_from(&d, 2, PLAN_N_PULLS_MAX - 1);
}

/* The same. */
static void make_whole_tables(struct plan *p, struct dice d)
{
    p->assigns = dice_once_in(&d, 3);
    p->scans = dice_once_in(&d, 3);
}

/* To be in sync takes a while, and the job is to go on then. */
static void set_pace(struct plan *p, uint32_t compute_us)
{
    p->compute_us = compute_us;
    p->span_us = 300000 + p->n_steps * (4 * p->network_us + p->compute_us);
}

/* The same. Layouts of pairs do not change, and nobody is without a log. */
static void make_pairs(struct plan *p, struct dice d)
{
    struct plan_pairs *pairs = &p->pairs;
    uint64_t ack = dice_roll(&d, 10);

    if (!dice_once_in(&d, 2) || p->durability == WAL_NONE)
        return;
    p->n_next_nodes = 0;
    p->liar = p->accused =
        PLAN_NOBODY; /* a worker may be suspected with reason: a pair is away for longer */
    pairs->has_standby = 1u << dice_roll(&d, p->n_nodes);
    if (dice_once_in(&d, 3))
        pairs->has_standby = (1u << p->n_nodes) - 1;
    pairs->coordinated = dice_once_in(&d, 2);
    pairs->names_cluster = !dice_once_in(&d, 4);
    pairs->ack = ack < 1 ? TERMS_ACK_NO : ack < 7 ? TERMS_ACK_GOT : TERMS_ACK_DISK;
    pairs->patience_ms = (uint32_t)dice_from(&d, 200, 800);
    pairs->failover_ms = (uint32_t)dice_from(&d, 600, 900);
    pairs->ring_bytes = 1u << dice_from(&d, 10, 16);
    pairs->log_max_bytes = 1u << dice_from(&d, 10, 20);
    pairs->n_pauses = some(&d, 3);
    pairs->n_links = some(&d, 3);
    pairs->n_double_deaths = dice_once_in(&d, 3);
    pairs->n_outages = pairs->coordinated ? some(&d, 2) : 0;
    pairs->n_promotions = pairs->coordinated ? 0 : some(&d, 2);
    pairs->n_lossy = !pairs->coordinated && p->durability == WAL_ASYNC && dice_once_in(&d, 4);
    p->n_kills += pairs->n_promotions || pairs->coordinated ? some(&d, 2) : 0;
    set_pace(p, (uint32_t)dice_from(&d, 20000, 200000));
}

/* The same. */
static void make_changes(struct plan_pairs *pairs, struct dice d)
{
    if (!pairs->has_standby)
        return;
    pairs->n_severed = pairs->coordinated ? some(&d, 2) : 0;
    pairs->n_switches = some(&d, 2);
    pairs->fetch_bytes = dice_once_in(&d, 2) ? 0 : 1u << dice_from(&d, 6, 12);
    pairs->dies_soon = dice_once_in(&d, 3);
}

/* The same. Nothing goes wrong but that only workers reach a primary, which has to notice, while they pull for long: among
 * other faults that is rare, as their jobs have ended before. */
static void make_severed(struct plan *p, struct dice d)
{
    struct plan_pairs *pairs = &p->pairs;

    if (!pairs->coordinated || !dice_once_in(&d, 3))
        return;
    set_pace(p, (uint32_t)dice_from(&d, 200000, 600000));
    p->n_resets = p->n_kills = p->n_power_cuts = p->n_disk_faults = p->n_stops = 0;
    p->lease_ms = PLAN_LEASE_MS;
    p->mute = PLAN_NOBODY;
    p->n_worker_crashes = p->n_freezes = p->n_replaced = p->n_paths = p->n_isolations = 0;
    pairs->n_pauses = pairs->n_links = pairs->n_double_deaths = pairs->n_outages = 0;
    pairs->n_switches = 0;
    pairs->n_severed = (uint32_t)dice_from(&d, 2, 3);
}

/* The same. */
static void make_losses(struct plan_pairs *pairs, struct dice d)
{
    if (pairs->coordinated && dice_once_in(&d, 3))
        pairs->n_losses = (uint32_t)dice_from(&d, 1, 2);
}

void plan_go_on(struct plan *p)
{
    p->has_moved = true;
    p->n_nodes = p->n_next_nodes;
    p->shards_per_node = p->next_shards_per_node;
    p->n_shards = p->n_nodes * p->shards_per_node;
    p->n_next_nodes = 0;
}

/* By half, so that powers are exact. */
static void make_row_decays(struct plan *p, struct dice d)
{
    if (!dice_once_in(&d, 6))
        return;
    for (uint32_t i = 0; i < p->n_tables; i++)
        if (p->dims[i] <= PLAN_DIM_MAX && dice_once_in(&d, 2)) {
            p->specs[i].row_decay = 0.5f;
            p->widths[i]++;
            p->row_decays = true;
        }
}

static void make_named_keys(struct plan *p, struct dice d)
{
    p->names_keys = dice_once_in(&d, 3);
}

/* A first start makes most of its files one after another: which of them are there has to make no difference. */
static void make_first_start(struct plan *p, struct dice d)
{
    p->dies_first = dice_once_in(&d, 8) ? (uint32_t)dice_roll(&d, p->n_nodes) : PLAN_NOBODY;
    p->dies_first_at = (uint32_t)dice_roll(&d, PLAN_FIRST_OPS);
}

void plan_make(struct plan *p, uint64_t seed)
{
    struct dice d = dice_of(seed, 1);

    *p = (struct plan){ .seed = seed };
    make_cluster(p, &d);
    make_tables(p, &d);
    make_job(p, &d);
    make_faults(p, &d);
    make_sync_points(p, dice_of(seed, 5));
    make_layout(p, dice_of(seed, 8));
    make_paths(p, dice_of(seed, 9));
    make_isolations(p, dice_of(seed, 14));
    make_members(p, dice_of(seed, 12));
    make_backups(p, dice_of(seed, 15));
    make_pulls(p, dice_of(seed, 11));
    make_whole_tables(p, dice_of(seed, 13));
    make_pairs(p, dice_of(seed, 20));
    make_changes(&p->pairs, dice_of(seed, 22));
    make_severed(p, dice_of(seed, 27));
    make_losses(&p->pairs, dice_of(seed, 28));
    make_row_decays(p, dice_of(seed, 24));
    make_named_keys(p, dice_of(seed, 25));
    make_first_start(p, dice_of(seed, 26));
}

uint64_t plan_sync_point(const struct plan *p, uint64_t clock)
{
    return p->sync_steps ? clock / p->sync_steps * p->sync_steps : 0;
}

bool plan_pulls_at(const struct plan *p, uint32_t rank, uint64_t clock)
{
    return !p->asks_seldom || hash_mix2(p->seed ^ rank, clock) % 3 > 0;
}

int32_t plan_drift(const struct plan *p, uint32_t machine)
{
    struct dice d = dice_of(p->seed, 5000 + (uint64_t)machine);

    return dice_once_in(&d, 2) ? (int32_t)dice_from(&d, 0, 20000) - 10000 : 0;
}

bool plan_may_lose(const struct plan *p)
{
    return p->durability != WAL_FSYNC;
}

bool plan_is_exact(const struct plan *p)
{
    return p->mode == TABLE_SPEC_MODE_BSP && p->durability == WAL_FSYNC &&
           p->lease_ms == PLAN_LEASE_MS && !p->has_limits && !p->has_moved && !p->assigns;
}

uint64_t plan_key(uint32_t key)
{
    return key * UINT64_C(3) + 1;
}

uint32_t plan_shard_of(const struct plan *p, uint32_t key)
{
    return placement_shard(plan_key(key), 0, p->n_shards);
}

static uint64_t draw(const struct plan *p, uint32_t rank, uint64_t clock, uint32_t table,
                     uint32_t key)
{
    return hash_mix2(p->seed ^ (clock << 32), rank << 16 | table << 8 | key);
}

bool plan_asks_for(const struct plan *p, uint32_t rank, uint64_t clock, uint32_t key)
{
    const uint32_t one_in = p->dims[0] > PLAN_DIM_MAX ? 16 : 2;

    return hash_mix2(p->seed ^ rank << 8 ^ clock, key) % one_in == 0;
}

bool plan_pushes(const struct plan *p, uint32_t rank, uint64_t clock, uint32_t table,
                 uint32_t key)
{
    if (p->names_keys && hash_mix2(p->seed ^ 0x4a3e, clock << 8 | rank << 4 | table) % 2)
        return plan_asks_for(p, rank, clock, key);
    return draw(p, rank, clock, table, key) % 3 == 0;
}

float plan_gradient(const struct plan *p, uint32_t rank, uint64_t clock, uint32_t table,
                    uint32_t key, uint32_t i)
{
    uint64_t h = draw(p, rank, clock, table, key) >> 32;

    return (float)((int)((h >> i % 24) % 33) - 16);
}

enum section_op plan_op(const struct plan *p, uint32_t rank, uint64_t clock)
{
    const uint64_t h = hash_mix2(p->seed ^ 0xa551, clock << 8 | rank);

    return p->assigns && h % 2 ? h % 4 == 1 ? SECTION_ASSIGN : SECTION_ASSIGN_STATE
                               : SECTION_GRADIENT;
}

bool plan_assigns(const struct plan *p, uint32_t rank, uint64_t clock, uint32_t table,
                  uint32_t key)
{
    return draw(p, rank + 100, clock, table, key) % 4 == 0;
}

float plan_assigned(const struct plan *p, uint32_t rank, uint64_t clock, uint32_t table,
                    uint32_t key, uint32_t i)
{
    const float value = plan_gradient(p, rank + 100, clock, table, key, i);

    return i < p->dims[table] || value >= 0 ? value : -value;
}

uint64_t plan_steps(const struct plan *p, uint32_t rank, uint64_t clock)
{
    return hash_mix2(p->seed ^ rank, clock) % 20;
}

uint32_t plan_disk_us_max(const struct plan *p)
{
    return 10 * p->disk_us;
}

static void print_pairs(const struct plan_pairs *p, FILE *to)
{
    static const char *const ack_modes[] = { "no", "got", "disk" };

    if (!p->has_standby)
        return;
    fprintf(to,
            "standbys of nodes 0x%x%s, ack %s, patience %u ms, failover %u ms, ring %u, log %u "
            "bytes; %u pauses, %u links, %u promotions (%u lossy), %u double deaths, %u "
            "outages, %u severed, %u losses of keys, %u switches%s, fetches of %u bytes\n",
            p->has_standby, p->coordinated ? ", coordinated" : "", ack_modes[p->ack],
            p->patience_ms, p->failover_ms, p->ring_bytes, p->log_max_bytes, p->n_pauses,
            p->n_links, p->n_promotions, p->n_lossy, p->n_double_deaths, p->n_outages,
            p->n_severed, p->n_losses, p->n_switches,
            p->dies_soon ? ", deaths behind promotions" : "", p->fetch_bytes);
}

void plan_print(const struct plan *p, FILE *to)
{
    static const char *const durability[] = { "none", "async", "fsync" };

    fprintf(
        to,
        "seed %llu: %u nodes of %u shards, %s, %u workers (%u backups) in %s (bound %u, ahead "
        "%u, %u pulls, "
        "sync "
        "%u%s%s%s), %u "
        "steps, "
        "%u tables (%s%s%s%s%s) of %u keys%s%s%s%s, checkpoint every %u us (%u deltas, keep "
        "%u), "
        "lease %u ms; "
        "then %u nodes of %u; "
        "%u stops, %u checkpoints asked for, %u cuts, %u kills, %u power cuts, %u disk faults, "
        "%u workers crash, %u freeze, %u are replaced, %u paths, %u isolations, liar %d about "
        "%d, mute %d, node %d dies in operation %u\n",
        (unsigned long long)p->seed, p->n_nodes, p->shards_per_node, durability[p->durability],
        p->n_workers, p->n_backups, table_spec_mode_name(p->mode), p->bound, p->ahead,
        p->n_pulls, p->sync_steps, p->asks_seldom ? ", asks seldom" : "",
        p->assigns ? ", assigns" : "", p->scans ? ", scans" : "", p->n_steps, p->n_tables,
        table_spec_optim_name(p->specs[0].optim), p->n_tables > 1 ? ", " : "",
        p->n_tables > 1 ? table_spec_optim_name(p->specs[1].optim) : "",
        p->n_tables > 2 ? ", " : "",
        p->n_tables > 2 ? table_spec_optim_name(p->specs[2].optim) : "", p->n_keys,
        p->dims[0] > PLAN_DIM_MAX ? ", wide" : "", p->has_limits ? ", limits" : "",
        p->row_decays ? ", rows decay" : "", p->names_keys ? ", pushes name pulls" : "",
        p->checkpoint_every_us, p->n_deltas_max, p->keep, p->lease_ms, p->n_next_nodes,
        p->next_shards_per_node, p->n_stops, p->n_checkpoints, p->n_resets, p->n_kills,
        p->n_power_cuts, p->n_disk_faults, p->n_worker_crashes, p->n_freezes, p->n_replaced,
        p->n_paths, p->n_isolations, (int)p->liar, (int)p->accused, (int)p->mute,
        (int)p->dies_first, p->dies_first_at);
    print_pairs(&p->pairs, to);
}

#include "tests/sim/node.h"

#include <assert.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/cluster.h"
#include "server/node.h"
#include "server/replication/follower.h"
#include "tests/sim/agree.h"
#include "tests/sim/check.h"
#include "tests/sim/coord.h"
#include "tests/sim/os.h"
#include "tests/sim/pair.h"
#include "tests/sim/taps.h"
#include "worker/client/ps_admin.h"

#define EXIT_DEPOSED 3
#define ARGS_MAX 40u
#define ARG_BYTES 48u

static uint32_t n_shards(const struct node *n)
{
    return n->world->plan.shards_per_node;
}

static struct check_place place(const struct node *n, uint32_t local)
{
    return check_place_of(n->world, node_record(n, local));
}

struct shard_record *node_record(const struct node *n, uint32_t local)
{
    return &n->world->members[n->member][n->index * n_shards(n) + local];
}

bool node_leads(const struct node *n)
{
    return n->world->records[n->index * n_shards(n)] == node_record(n, 0);
}

struct node *node_nth(const struct world *w, uint32_t i)
{
    if (i < w->plan.n_nodes)
        return &w->nodes[i];
    i -= w->plan.n_nodes;
    for (uint32_t k = 0; k < w->plan.n_nodes; k++)
        if (w->nodes[k].other && i-- == 0)
            return w->nodes[k].other;
    return NULL;
}

struct node *node_of_process(const struct process *p)
{
    return p && p->node != UINT32_MAX ? p->owner : NULL;
}

void node_address(const struct node *n, char ret[static 24])
{
    snprintf(ret, 24, "10.0.0.%u:7070", n->index + 1 + 10 * n->member);
}

static struct node *node_of(const struct world *w, uint32_t number, const struct disk *d)
{
    struct node *n;

    for (uint32_t i = 0; (n = node_nth(w, i)) != NULL; i++)
        if (d ? &n->disk == d : n->number == number)
            return n;
    for (uint32_t i = 0; i < w->n_old_nodes; i++)
        if (d ? &w->old_nodes[i].disk == d : w->old_nodes[i].number == number)
            return &w->old_nodes[i];
    abort();
}

struct disk *cluster_disk(struct world *w, uint32_t number)
{
    return &node_of(w, number, NULL)->disk;
}

uint32_t cluster_number(const struct world *w, const struct disk *d)
{
    return node_of(w, 0, d)->number;
}

/* --- the process --- */

struct args {
    uint32_t n;
    char text[ARGS_MAX][ARG_BYTES];
    char *argv[ARGS_MAX + 1];
};

static void add(struct args *a, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void add(struct args *a, const char *fmt, ...)
{
    va_list values;

    assert(a->n < ARGS_MAX);
    va_start(values, fmt);
    vsnprintf(a->text[a->n], ARG_BYTES, fmt, values);
    va_end(values);
    a->argv[a->n] = a->text[a->n];
    a->n++;
}

static void add_pair(const struct node *n, struct args *a)
{
    static const char *const ack_modes[] = { "no", "got", "disk" };
    const struct plan_pairs *p = &n->world->plan.pairs;
    char address[24];

    node_address(n->other, address);
    if (n->member)
        add(a, "--standby=%s", address);
    if (p->coordinated)
        add(a, "--coord=%s", COORD_URL);
    add(a, "--failover-after=%ums", p->failover_ms);
    add(a, "--standby-ack=%s", ack_modes[p->ack]);
    add(a, "--standby-patience=%ums", p->patience_ms);
}

static void make_args(const struct node *n, struct args *a)
{
    static const char *const durability[] = { "none", "async", "fsync" };
    const struct plan *p = &n->world->plan;
    bool names_cluster = n->other && p->pairs.names_cluster;
    char address[24];

    node_address(n, address);
    add(a, "psd");
    add(a, "--listen=%s", address);
    add(a, "--insecure");
    for (uint32_t i = 0;
         (n->member ? names_cluster : p->n_nodes > 1 || names_cluster) && i < p->n_nodes; i++)
        add(a, "--cluster=10.0.0.%u:7070", i + 1);
    if (!n->member || names_cluster)
        add(a, "--node=%u", n->index);
    if (n->other)
        add_pair(n, a);
    add(a, "--shards=%u", p->shards_per_node);
    add(a, "--data-dir=%s%u", OS_DATA_DIR, n->number);
    for (uint32_t i = 0; i < n->world->n_old_nodes; i++)
        add(a, "--restore=%s%u", OS_DATA_DIR, n->world->old_nodes[i].number);
    add(a, "--durability=%s", durability[p->durability]);
    add(a, "--log-interval=%ums", p->interval_ms);
    add(a, "--checkpoint-every=%ums", p->checkpoint_every_us / 1000);
    add(a, "--checkpoint-deltas=%u", p->n_deltas_max);
    add(a, "--keep=%u", p->keep);
    add(a, "--cut-every=%u", p->sync_steps);
    add(a, "--lease=%ums", p->lease_ms);
    add(a, "--join-timeout=%ums", 3 * p->lease_ms);
}

static void run(void *owner)
{
    struct node *n = owner;
    struct process *p = process_current();
    struct settings settings = { 0 };
    enum settings_action action;
    struct args *a = calloc(1, sizeof *a);
    struct err err = { 0 };
    int status;

    assert(a);
    make_args(n, a);
    status = settings_load(&settings_psd, (int)a->n, a->argv, 1, &settings, &action, &err);
    if (!status)
        status = settings_complete(&settings, &err);
    if (status)
        world_fail(n->world, "node %u: settings: %s", n->index, err.text);
    free(a);
    settings.open_coord = coord_open_simulated;
    if (n->other)
        settings.standby_log_max_bytes = n->world->plan.pairs.log_max_bytes;
    cluster_choose_shards(&settings, &file_os);
    p->exit_status = node_run(&settings, NULL);
    settings_free(&settings_psd, &settings);
}

/* --- how it ends --- */

/* A node that got SIGTERM while it served, and says that it has, has all on its disk, whatever its durability: there
 * is a last checkpoint. */
static void note_orderly_end(struct node *n)
{
    for (uint32_t i = 0; i < n_shards(n); i++) {
        struct shard_record *rec = node_record(n, i);

        rec->safe = rec->written = rec->history.n;
        rec->lost = 0;
    }
}

static void leave(struct node *n, bool loses_power)
{
    if (loses_power)
        disk_power_cut(&n->disk);
    else
        disk_kill(&n->disk);
    n->lost_power = loses_power || (!n->is_open && n->lost_power);
    n->process = NULL;
    n->is_open = n->is_serving = n->is_stopping = n->is_in_sync = false;
    if (!n->is_held)
        node_start(n);
}

/* As a standby, or to become one: it comes again. */
static bool starts_anew(const struct node *n, int exit_status)
{
    return n->other && (exit_status == NODE_RESTART || exit_status == EXIT_DEPOSED);
}

/* False once the other member serves: what this one has counts no more. */
static bool is_of_record(const struct node *n)
{
    const struct shard_record *rec = node_record(n, 0);

    return n->world->records[rec->shard] == rec;
}

static void on_end(void *owner)
{
    struct node *n = owner;
    const struct process *p = n->process;
    bool has_faults = n->disk.n_faults != n->n_faults, is_saved, is_off;

    /* If it is stopped before it has resharded what --restore names, it says that this is not done. */
    if (p->exit_status && !has_faults && !(n->is_stopping && !n->is_open) &&
        !starts_anew(n, p->exit_status))
        world_fail(n->world, "node %u: psd ends with %d: %s", n->index, p->exit_status,
                   p->last_error);
    if (!p->exit_status && !n->is_stopping)
        world_fail(n->world, "node %u: psd ends by itself", n->index);
    world_trace(n->world, "node %u has ended with %d", n->index, p->exit_status);
    is_saved = !p->exit_status && n->is_open && n->n_done > n->n_done_before;
    if (!p->exit_status && n->is_serving && is_of_record(n) && !is_saved)
        world_fail(n->world, "node %u has served, was stopped, and leaves no checkpoint of it",
                   n->index);
    if (is_saved)
        note_orderly_end(n);
    taps_process_ended(n->world, p);
    /* Now and then the machine is switched off behind it. By dice of its own, so that all else stays as it is. Not behind
     * a start that was given up, where the next layout is to find what nobody has synced. */
    is_off = !p->exit_status && (is_saved || !n->is_held) &&
             hash_mix2(n->world->plan.seed ^ n->number, 77 + n->n_lives) % 3 == 0;
    leave(n, is_off || n->disk.is_gated);
}

void node_kill(struct node *n, bool is_power_cut)
{
    /* After a sync that failed nobody but the process that saw it knows what is safe: the next one would read
     * it from memory (server/wal/README.md, "Limits"). */
    bool loses_power = is_power_cut || n->disk.is_gated;
    struct process *p = n->process;

    if (!p) {
        if (loses_power)
            disk_power_cut(&n->disk);
        n->lost_power = n->lost_power || loses_power;
        return;
    }
    world_trace(n->world, "node %u dies%s", n->index, loses_power ? " with its power" : "");
    taps_process_ended(n->world, p);
    leave(n, loses_power);
    process_kill(p);
}

void cluster_died(struct world *w, struct process *p)
{
    node_kill(node_of_process(p),
              w->die_loses_power < 0 ? dice_once_in(&w->dice, 2) : w->die_loses_power > 0);
    abort();
}

void node_stop(struct node *n)
{
    if (!n->process || n->is_stopping)
        return;
    world_trace(n->world, "node %u is told to stop", n->index);
    n->n_done_before = n->n_done;
    n->is_stopping = process_signal(n->process, SIGTERM);
    if (!n->is_stopping)
        node_kill(n, false);
}

/* --- how it starts --- */

static void on_start(void *owner, uint64_t number, void *data)
{
    struct node *n = owner;
    char name[24];

    (void)number;
    (void)data;
    n->is_due = false;
    if (n->process || n->is_held)
        return;
    n->gives_up = false;
    snprintf(name, sizeof name, "node %u%s", n->index, n->member ? "'" : "");
    n->n_faults = n->disk.n_faults;
    n->n_lives++;
    world_trace(n->world, "node %u starts", n->index);
    n->process = process_start(name, &n->disk, run, on_end, n);
    n->process->node = n->index;
    n->process->drift_ppm = plan_drift(&n->world->plan, 2 * n->number + n->member);
    pair_starts(n);
}

void node_start(struct node *n)
{
    const struct plan *p = &n->world->plan;

    if (n->is_due)
        return;
    n->is_due = true;
    events_in(&machine.events,
              dice_from(&n->world->dice, 500, 4 * (uint64_t)p->compute_us + 2000), on_start, n,
              0, NULL);
}

/* What came back becomes what is known; what did not has never happened. */
void cluster_accept(struct world *w, struct process *p, const struct cluster_recovered *r)
{
    struct node *n = node_of_process(p);
    struct shard_record *rec = &w->members[n->member][r->shard];
    const struct check_place at = check_place_of(w, rec);
    const uint64_t last = r->last;

    if (rec->has_copied)
        pair_adopt(w, rec, last);
    else
        check_promise(w, rec, last, r->keep, n->lost_power);
    world_trace(w, "shard %u%s: is back with %llu of %llu records", r->shard,
                n->member ? "'" : "", (unsigned long long)last,
                (unsigned long long)rec->history.n);
    n->gives_up = n->gives_up || (n->other && last < rec->history.n);
    rec->history.n = last;
    rec->lost = 0;
    rec->safe = rec->safe < last ? rec->safe : last;
    rec->written = last;
    rec->saved = rec->saved < last ? rec->saved : last;
    rec->promised = rec->promised < last ? rec->promised : last;
    rec->due = rec->due < last ? rec->due : last;
    rec->n_seen = last;
    if (rec == w->records[r->shard])
        agree_started(w, r->shard);
    model_deinit(&rec->model);
    check_fold(w, rec, last, &rec->model);
    if (r->core && r->is_exact)
        check_same(w, &at, r->core, &rec->model, "back");
    rec->life = (struct shard_life){ .process = p };
}

/* --- checkpoints --- */

struct node_save *cluster_note_save(struct node *n)
{
    struct node_save *save = &n->saves[n->n_saves++ % PLAN_N_KEPT_MAX];

    *save = (struct node_save){ .is_sure = false };
    return save;
}

/* The oldest one that has to be there still; NULL: none was ever taken, or nobody can say. *ret_is_cut: the log may be,
 * so that nothing older leads anywhere. */
static const struct node_save *oldest_save(const struct node *n, bool *ret_loses_power)
{
    uint64_t keep = n->world->plan.keep, n_kept = n->n_saves < keep ? n->n_saves : keep;

    *ret_loses_power = n->n_done > 0;
    for (; n_kept > 0; n_kept--) {
        const struct node_save *save = &n->saves[(n->n_saves - n_kept) % PLAN_N_KEPT_MAX];

        if (save->is_sure)
            return save;
    }
    /* The first one may be in its place, and what was before it removed, before that is said. */
    return n->n_done == 0 && n->n_saves > 0 ? &n->saves[(n->n_saves - 1) % PLAN_N_KEPT_MAX]
                                            : NULL;
}

int node_ask(const struct node *n, const char *command, const char *argument,
             uint32_t timeout_ms, char **ret)
{
    const struct ps_admin_plan plan = {
        .token = "", .command = command, .argument = argument, .timeout_ms = timeout_ms
    };
    struct err err = { 0 };
    char address[24];
    int status;

    *ret = NULL;
    node_address(n, address);
    status = ps_admin_one(&plan, address, ret, &err);
    world_trace(n->world, "an operator hears of %s of node %u%s: %s", command, n->index,
                n->member ? "'" : "", status ? err.text : "done");
    return status;
}

int node_command(const struct node *n, const char *command, const char *argument,
                 uint32_t timeout_ms)
{
    char *json;
    int status = node_ask(n, command, argument, timeout_ms, &json);

    free(json);
    return status;
}

static void ask_checkpoint(void *owner)
{
    (void)node_command(owner, "checkpoint", "", 5000);
}

static void on_answered(void *owner)
{
    (void)owner;
}

void node_ask_checkpoint(struct node *n)
{
    process_start("operator", NULL, ask_checkpoint, on_answered, n)->node = UINT32_MAX;
}

/* --- checks --- */

/* For a worker, and not only as it hears none any more, which it does for longer than a schedule lasts. */
static bool is_waiting(const struct shard_record *rec)
{
    const struct worker *any;

    enter_shard();
    any = membership_worker(shard_membership(rec->life.core), "job", 0);
    return rec->model.n_held && !(any && job_is_deserted(any->job));
}

bool node_is_safe(const struct node *n)
{
    bool is_none = n->world->plan.durability == WAL_NONE;

    if (!n->process || !n->is_open || n->is_stopping)
        return false;
    if (n->other && !node_leads(n))
        return pair_is_safe(n);
    for (uint32_t i = 0; i < n_shards(n); i++) {
        const struct shard_record *rec = node_record(n, i);
        const struct wal_queue *q = rec->life.queue;

        if (!q || !rec->life.core || !taps_is_idle(rec) || rec->lost || is_waiting(rec) ||
            (is_none ? q->progress.written < q->kept_last
                     : q->progress.durable < rec->history.n))
            return false;
    }
    return true;
}

/* A standby whose copy is exact: what is on its disk is a start. */
static bool is_whole(const struct node *n, uint32_t i)
{
    const struct shard_life *life = &node_record(n, i)->life;

    return life->core && (!life->follower || follower_is_exact(life->follower));
}

void node_check_crash(struct node *n, bool loses_power)
{
    loses_power = loses_power || n->disk.is_gated;
    /* Until its start has archived a newer checkpoint, records that it gives up may come back: once more in vain. */
    for (uint32_t i = 0; n->is_open && !n->gives_up && i < n_shards(n); i++) {
        const struct check_place at = place(n, i);

        if (n->other && !is_whole(n, i))
            continue;
        check_crash_now(n->world, &at, &n->disk, loses_power);
    }
}

/* From how many steps on the shard can go back to each: what is older need not be kept. */
static uint64_t oldest_kept(const struct node *n, uint32_t i)
{
    bool loses_power;
    const struct node_save *save = oldest_save(n, &loses_power);

    if (save && n->world->plan.mode == TABLE_SPEC_MODE_SSP)
        return check_min_clock(n->world, place(n, i).shard, save->through[i]);
    if (save)
        return check_n_steps(n->world, place(n, i).shard, save->through[i]);
    return loses_power ? n->world->plan.n_steps : 0;
}

static void check_clocks(struct node *n, struct calm *calm) ON_SHARD
{
    calm_init(calm, &n->world->plan);
    while (calm->n_steps < n->world->plan.n_steps) {
        calm_step(calm);
        for (uint32_t i = 0; !n->other && i < n_shards(n); i++) {
            const struct check_place at = place(n, i);

            if (calm->n_steps <= agree_n_whole(n->world, at.shard))
                check_clock(n->world, &at, &n->disk, calm,
                            calm->n_steps >= oldest_kept(n, i) ||
                                calm->n_steps == n->world->plan.n_steps);
        }
    }
}

/* Was it reached in records that a log which was full has dropped, so that only a later checkpoint has them? */
static bool is_in_gap(const struct node *n, uint32_t i, uint64_t sync_point)
{
    const struct shard_record *rec = node_record(n, i);

    return rec->gap_first &&
           sync_point > check_min_clock(n->world, place(n, i).shard, rec->gap_first - 1) &&
           sync_point <= check_min_clock(n->world, place(n, i).shard, rec->gap_last);
}

/* If no recorded event is lost, and the job's clocks never began anew: all that were reached. */
static void check_sync_points(struct node *n) ON_SHARD
{
    const struct plan *p = &n->world->plan;

    for (uint32_t i = 0; p->sync_steps && i < n_shards(n); i++) {
        const struct check_place at = place(n, i);
        const struct shard_record *rec = node_record(n, i);
        uint64_t min_clock = model_min_clock(&rec->model);

        if (p->durability != WAL_FSYNC || rec->model.run != 1)
            continue;
        for (uint64_t sync_point = p->sync_steps; sync_point <= min_clock;
             sync_point += p->sync_steps)
            n->n_sync_points += check_sync_point(n->world, &at, &n->disk, sync_point,
                                                 sync_point > oldest_kept(n, i) &&
                                                     !is_in_gap(n, i, sync_point));
    }
}

void node_check_end(struct node *n)
{
    struct calm *calm = calloc(1, sizeof *calm);

    assert(calm);
    enter_shard();
    if (plan_is_exact(&n->world->plan))
        check_clocks(n, calm);
    if (!n->other) /* a copy begins with a later checkpoint, and --at with what that holds */
        check_sync_points(n);
    for (uint32_t i = 0; i < n_shards(n); i++) {
        const struct check_place at = place(n, i);

        check_end(n->world, &at, node_record(n, i)->life.core, calm);
    }
    free(calm);
}

/* --- life --- */

void node_pair(struct node *first, struct node *second)
{
    node_init(second, first->world, first->index, 10 + first->number);
    second->member = 1;
    second->other = first;
    first->other = second;
}

void node_init(struct node *n, struct world *world, uint32_t index, uint32_t number)
{
    *n = (struct node){ .world = world, .index = index, .number = number };
    disk_init(&n->disk, dice_of(world->plan.seed, 100 + number));
}

void node_deinit(struct node *n)
{
    disk_deinit(&n->disk);
}

#include "tests/sim/node.h"

#include <assert.h>
#include <stdlib.h>

#include "server/durable/epochs.h"
#include "tests/sim/check.h"

/* What the shards of a start were made from. */
struct start {
    struct shard *cores[PLAN_N_SHARDS_MAX]; /* owned until a server takes them */
    struct rebuild_facts facts[PLAN_N_SHARDS_MAX];
    struct err err;
};

static uint32_t n_servers(const struct node *n)
{
    return n->world->plan.shards_per_node;
}

static struct check_place place(const struct node *n, uint32_t local)
{
    return (struct check_place){ n->index, local, n->index * n_servers(n) + local };
}

/* --- starting --- */

static int make_again(struct node *n, struct start *start)
{
    int status = n->disk.ops.mkdir(&n->disk, CHECK_DATA_DIR);

    enter_shard();
    for (uint32_t i = 0; i < n_servers(n) && !status; i++) {
        const struct check_place at = place(n, i);

        status = check_rebuild(n->world, &at, &n->disk, NULL, &start->cores[i],
                               &start->facts[i], &start->err);
    }
    return status;
}

/* What came back becomes what is known; what did not has never happened. */
static void accept(struct node *n, uint32_t i, struct shard *core, uint64_t last)
{
    const struct check_place at = place(n, i);
    struct shard_book *book = &n->world->books[at.shard];

    enter_shard();
    check_promise(n->world, &at, last, n->was_cut);
    world_tell(n->world, "shard %u: is back with %llu of %llu records", at.shard,
               (unsigned long long)last, (unsigned long long)book->history.n);
    book->history.n = last;
    book->lost = 0;
    book->safe = book->safe < last ? book->safe : last;
    book->written = last;
    book->due = book->due < last ? book->due : last;
    book->n_seen = last;
    model_deinit(&book->model);
    model_init(&book->model, &n->world->plan);
    for (uint64_t k = 0; k < last; k++) {
        const char *wrong = model_apply(&book->model, &book->history.facts[k]);

        if (wrong)
            world_fail(n->world, "shard %u: record %llu: %s", at.shard,
                       (unsigned long long)k + 1, wrong);
    }
    check_same(n->world, &at, core, &book->model, "back");
}

/* As server/restore.c and server/opening.c do it. */
static int start_server(struct node *n, uint32_t i, struct start *start)
{
    const struct rebuild_facts *facts = &start->facts[i];
    const struct log_identity identity = { .node = n->index,
                                           .shard = place(n, i).shard,
                                           .n_shards = n->world->plan.n_shards };
    char dir[LOG_PATH_MAX];
    int status = 0;

    if (facts->number)
        status = checkpoint_sync(&n->disk.ops, CHECK_DATA_DIR, facts->number, &start->err);
    if (!status)
        status = epochs_log_dir(CHECK_DATA_DIR, 0, i, dir, &start->err);
    if (!status)
        status = server_start(&n->servers[i], n->n_lives + 1, start->cores[i], dir, &identity,
                              &facts->end, &start->err);
    if (!status)
        start->cores[i] = NULL;
    return status;
}

static int serve(struct node *n, struct start *start)
{
    int status = epochs_make(&n->disk.ops, CHECK_DATA_DIR, 0, &start->err);

    for (uint32_t i = 0; i < n_servers(n) && !status; i++)
        status = start_server(n, i, start);
    return status;
}

static void stop_servers(struct node *n)
{
    for (uint32_t i = 0; i < n_servers(n); i++)
        server_stop(&n->servers[i]);
}

/* Of what all shards were loaded from, if it is the same. */
static void start_keeper(struct node *n, const struct start *start)
{
    uint64_t number = start->facts[0].number;

    for (uint32_t i = 1; i < n_servers(n); i++)
        if (start->facts[i].number != number)
            number = 0;
    keeper_start(&n->keeper, n->life, number, number ? start->facts[0].n_links - 1 : 0);
}

static void on_start(void *owner, uint64_t number, void *data)
{
    struct node *n = owner;
    uint64_t n_faults = n->disk.n_faults;
    struct start start = { 0 };
    int status;

    (void)number;
    (void)data;
    enter_shard();
    n->is_due = false;
    status = make_again(n, &start);
    /* Before a log is opened: that writes. */
    for (uint32_t i = 0; !status && i < n_servers(n); i++)
        accept(n, i, start.cores[i], start.facts[i].end.last);
    if (!status)
        status = serve(n, &start);
    if (status && n->disk.n_faults == n_faults)
        world_fail(n->world, "node %u cannot start: %s", n->index, start.err.text);
    if (!status) {
        n->life = ++n->n_lives;
        n->n_recovered++;
        start_keeper(n, &start);
        return;
    }
    world_tell(n->world, "node %u cannot start yet: %s", n->index, status_text(status));
    stop_servers(n);
    for (uint32_t i = 0; i < n_servers(n); i++)
        if (start.cores[i])
            shard_free(start.cores[i]);
    node_start(n);
}

void node_start(struct node *n)
{
    const struct plan *p = &n->world->plan;

    if (n->is_due)
        return;
    n->is_due = true;
    events_in(&n->world->events,
              dice_from(&n->world->dice, 500, 4 * (uint64_t)p->compute_us + 2000), on_start, n,
              0, NULL);
}

/* --- dying --- */

void node_kill(struct node *n, bool is_power_cut)
{
    /* After a sync that failed nobody but the process that saw it knows what is safe: the next one would read
     * it from memory (server/log/README.md, "What is not in it"). */
    bool is_cut = is_power_cut || n->disk.is_gated;

    world_tell(n->world, "node %u dies%s", n->index, is_cut ? " with its power" : "");
    n->disk.dead = true;
    keeper_stop(&n->keeper);
    for (uint32_t i = 0; i < n_servers(n); i++)
        if (n->servers[i].life)
            net_reset(&n->world->net, n->servers[i].shard);
    stop_servers(n);
    if (is_cut)
        disk_power_cut(&n->disk);
    else
        disk_kill(&n->disk);
    n->was_cut = is_cut || (!n->life && n->was_cut);
    n->life = 0;
    node_start(n);
}

/* --- checks --- */

bool node_is_safe(const struct node *n)
{
    if (!n->life)
        return false;
    for (uint32_t i = 0; i < n_servers(n); i++) {
        const struct server *s = &n->servers[i];
        const struct log_progress *p = &s->log.queue.progress;
        bool is_none = n->world->plan.durability == LOG_NONE;

        if (!server_is_settled(s) || s->log.is_busy || s->book->lost || s->book->model.n_held ||
            (is_none ? p->written < s->log.queue.kept_last : p->durable < s->book->history.n))
            return false;
    }
    return true;
}

void node_check_crash(struct node *n, bool is_cut)
{
    enter_shard();
    is_cut = is_cut || n->disk.is_gated;
    for (uint32_t i = 0; n->life && i < n_servers(n); i++) {
        const struct check_place at = place(n, i);

        check_crash_now(n->world, &at, &n->disk, is_cut);
        if (server_is_settled(&n->servers[i]))
            check_same(n->world, &at, n->servers[i].core, &n->world->books[at.shard].model,
                       "now");
    }
}

void node_check_step(struct node *n)
{
    enter_shard();
    for (uint32_t i = 0; n->life && i < n_servers(n); i++) {
        const struct check_place at = place(n, i);
        struct shard_book *book = &n->world->books[at.shard];

        check_interval(n->world, at.shard);
        if (book->n_seen == book->history.n || !server_is_settled(&n->servers[i]))
            continue;
        book->n_seen = book->history.n;
        check_same(n->world, &at, n->servers[i].core, &book->model, "now");
    }
}

/* From how many steps on the shard can go back to each: what is older need not be kept. */
static uint64_t oldest_kept(const struct node *n, uint32_t i)
{
    bool is_cut;
    const struct keeper_save *save = keeper_oldest(&n->keeper, &is_cut);

    if (save && n->world->plan.mode == SPEC_MODE_SSP)
        return check_min_clock(n->world, place(n, i).shard, save->through[i]);
    if (save)
        return check_n_steps(n->world, place(n, i).shard, save->through[i]);
    return is_cut ? n->world->plan.n_steps : 0;
}

static void check_cuts(struct node *n, struct calm *calm) ON_SHARD
{
    calm_init(calm, &n->world->plan);
    while (calm->n_steps < n->world->plan.n_steps) {
        calm_step(calm);
        for (uint32_t i = 0; i < n_servers(n); i++) {
            const struct check_place at = place(n, i);

            check_cut(n->world, &at, &n->disk, calm,
                      calm->n_steps >= oldest_kept(n, i) ||
                          calm->n_steps == n->world->plan.n_steps);
        }
    }
}

/* Where nothing that was told is lost, and the job's clocks never began anew: all that were reached. */
static void check_meetings(struct node *n) ON_SHARD
{
    const struct plan *p = &n->world->plan;

    for (uint32_t i = 0; p->meet_steps && i < n_servers(n); i++) {
        const struct check_place at = place(n, i);
        const struct shard_book *book = &n->world->books[at.shard];
        uint64_t reached = model_min_clock(&book->model);

        if (p->durability != LOG_FSYNC || book->model.run != 1)
            continue;
        for (uint64_t met = p->meet_steps; met <= reached; met += p->meet_steps)
            n->n_met += check_meeting(n->world, &at, &n->disk, met, met > oldest_kept(n, i));
    }
}

void node_check_end(struct node *n)
{
    struct calm *calm = calloc(1, sizeof *calm);

    assert(calm);
    enter_shard();
    if (plan_is_exact(&n->world->plan))
        check_cuts(n, calm);
    check_meetings(n);
    for (uint32_t i = 0; i < n_servers(n); i++) {
        const struct check_place at = place(n, i);

        check_end(n->world, &at, n->servers[i].core, calm);
    }
    free(calm);
}

/* --- life --- */

void node_init(struct node *n, struct world *world, uint32_t index)
{
    *n = (struct node){ .world = world, .index = index };
    disk_init(&n->disk, dice_of(world->plan.seed, 100 + index));
    for (uint32_t i = 0; i < n_servers(n); i++)
        server_init(&n->servers[i], world, place(n, i).shard, &n->disk);
    n->keeper = (struct keeper){ .world = world,
                                 .servers = n->servers,
                                 .node = index,
                                 .disk = &n->disk,
                                 .data_dir = CHECK_DATA_DIR };
    keeper_init(&n->keeper);
}

void node_deinit(struct node *n)
{
    n->disk.dead = true;
    keeper_deinit(&n->keeper);
    for (uint32_t i = 0; i < n_servers(n); i++)
        server_deinit(&n->servers[i]);
    disk_deinit(&n->disk);
}

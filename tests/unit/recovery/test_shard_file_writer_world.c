/*
 * A shard to which all sorts of things happen while checkpoints of it are written: full ones and deltas,
 * between requests, on a disk that forgets what was not synced. What is loaded, with the events since, is the
 * shard, bit for bit.
 */
#include "server/checkpoint/loader.h"
#include "server/checkpoint/shard_file_writer.h"
#include "server/core/bsp.h"
#include "server/core/push_apply.h"
#include "tests/support/crash_files.h"
#include "tests/support/share.h"
#include "tests/unit/core/replay_world.h"

#define DATA_DIR "data"
#define KEEP 2u

static const struct shard_file_identity identity = { .n_shards = 1, .map_id = 99 };

/* A checkpoint under way. */
struct saving {
    struct world w;
    struct crash_files c;
    struct shard_file_writer *writer; /* NULL: none */
    struct shard_file_writer_buffer *out;
    struct manifest *m;
    uint64_t first, through;
    bool is_read;
    uint64_t newest; /* its number; 0: the shard was never saved, or its scan was dropped */
    uint64_t n_full, n_deltas, n_dropped, n_loads;
};

static struct shard_file_writer_config config_of(struct saving *v)
{
    return (struct shard_file_writer_config){ .files = &v->c.ops,
                                              .data_dir = DATA_DIR,
                                              .number = v->m->number,
                                              .identity = identity,
                                              .base = v->m->base };
}

static void begin(struct saving *v)
{
    struct shard_file_writer_config config;
    struct err err;
    int status;

    enter_shard();
    *v->m = (struct manifest){ .n_nodes = 1,
                               .shards_per_node = 1,
                               .n_shards = 1,
                               .map_id = identity.map_id,
                               .n_files = 1 };
    if (v->newest && snapshot_scan_may_be_delta(v->w.s) && roll(&v->w.dice, 4))
        v->m->base = v->newest;
    assert_int_equal(checkpoint_next(&v->c.ops, DATA_DIR, &v->m->number, &err), 0);
    config = config_of(v);
    v->first = v->w.event_log->n;
    status = shard_file_writer_begin(&config, v->w.s, v->first, &v->writer, &err);
    if (!status)
        return;
    assert_int_equal(status, -EAGAIN);
    assert_true(push_apply_is_under_way(v->w.s));
    v->writer = NULL;
}

static void drop(struct saving *v)
{
    if (!v->writer)
        return;
    enter_shard();
    if (v->out)
        shard_file_writer_recycle(v->writer, v->out);
    shard_file_writer_discard(v->writer);
    shard_file_writer_end(v->writer, v->w.s, SNAPSHOT_SCAN_DROPPED);
    v->writer = NULL;
    v->out = NULL;
    v->is_read = false;
    v->newest = 0; /* the next one has to be full */
    v->n_dropped++;
}

/* The manifest is written when the log is durable through `through`: here, all events are. */
static void end(struct saving *v)
{
    uint64_t firsts[1];
    struct err err;

    enter_shard();
    assert_int_equal(shard_file_writer_close(v->writer, v->through, &v->m->files[0], &err), 0);
    shard_file_writer_note_jobs(v->w.s, v->m);
    assert_int_equal(checkpoint_commit(&v->c.ops, DATA_DIR, v->m, KEEP, firsts, &err), 0);
    assert_true(firsts[0] <= v->first);
    shard_file_writer_end(v->writer, v->w.s, SNAPSHOT_SCAN_KEPT);
    v->writer = NULL;
    v->is_read = false;
    v->newest = v->m->number;
    if (v->m->base)
        v->n_deltas++;
    else
        v->n_full++;
}

static void fill(struct saving *v)
{
    enum shard_file_writer_state state;

    enter_shard();
    state = shard_file_writer_fill(v->writer, v->w.s);
    if (state == SHARD_FILE_WRITER_READ && !v->is_read)
        v->through = v->w.event_log->n;
    v->is_read = state == SHARD_FILE_WRITER_READ;
}

static void save_some(struct saving *v)
{
    struct err err;

    if (!v->writer) {
        begin(v);
        return;
    }
    if (roll(&v->w.dice, 150) == 0) {
        drop(v);
        return;
    }
    if (v->out && roll(&v->w.dice, 2)) {
        assert_int_equal(shard_file_writer_write(v->writer, v->out, &err), 0);
        shard_file_writer_recycle(v->writer, v->out);
        v->out = NULL;
    }
    fill(v);
    if (!v->out)
        v->out = shard_file_writer_next(v->writer);
    if (shard_file_writer_is_written(v->writer))
        end(v);
}

/* From the disk, and the events since; from nothing but events where it has no checkpoint. */
static struct shard *load(struct saving *v)
{
    struct shard *s = shard_new(&v->w.config);
    struct checkpoint found;
    struct loader_facts facts = { 0 };
    struct err err = { 0 };
    int status = checkpoint_find(&v->c.ops, DATA_DIR, 0, &found, NULL, NULL, &err);

    enter_shard();
    if (status == PS_ENOCHECKPOINT) {
        replay_begin(s);
    } else {
        assert_int_equal(status, 0);
        assert_true(checkpoint_is_of(&found, 0, &identity));
        status =
            loader_load(&(struct loader_config){ .files = &v->c.ops, .checkpoint = &found }, 0,
                        s, v->w.now_ms, &facts, &err);
        if (status)
            fail_msg("%s", err.text);
        v->newest = found.links[0].number;
        checkpoint_close(&found);
    }
    for (size_t i = facts.first; i < v->w.event_log->n; i++)
        if (shard_replay(s, &v->w.event_log->events[i]->e, v->w.now_ms, &err) != 0)
            fail_msg("event %zu: %s", i, err.text);
    replay_end(s, v->w.now_ms);
    v->n_loads++;
    return s;
}

/* The process dies, and maybe the power goes; what is loaded goes on. A push or a clock that is half done is done
 * where it is made again. */
static void die(struct saving *v)
{
    struct shard *again;

    enter_shard();
    finish_push(&v->w);
    bsp_finish(v->w.s);
    drop(v);
    if (roll(&v->w.dice, 2))
        crash_files_power_cut(&v->c);
    again = load(v);
    assert_same_shard(v->w.s, again);
    shard_set_events(v->w.s, NULL);
    shard_free(v->w.s);
    v->w.s = again;
    shard_set_events(again, &v->w.event_log->sink);
}

static void step_of(struct saving *v)
{
    uint64_t dice = roll(&v->w.dice, 230);

    if (dice < 90)
        push_one(&v->w);
    else if (dice < 130)
        go_on(&v->w);
    else if (dice < 142)
        join_one(&v->w);
    else if (dice < 145)
        leave_one(&v->w);
    else if (dice < 155)
        time_passes(&v->w);
    else if (dice < 158)
        advance_one(&v->w);
    else if (dice < 164)
        table_one(&v->w);
    else if (dice < 227)
        save_some(v);
    else
        die(v);
}

static void run(const char *test, const struct shape *shape, uint64_t n_rounds,
                struct saving *sum)
{
    *sum = (struct saving){ 0 };
    for (uint64_t round = (uint64_t)share_first_of((long)n_rounds); round < n_rounds;
         round += (uint64_t)share_step_of((long)n_rounds)) {
        struct saving *v = calloc(1, sizeof *v);

        v->w = begin_world(test, shape, round);
        v->m = calloc(1, sizeof *v->m);
        crash_files_init(&v->c);
        for (uint32_t i = 0; i < shape->n_steps; i++)
            step_of(v);
        die(v);
        sum->n_full += v->n_full;
        sum->n_deltas += v->n_deltas;
        sum->n_dropped += v->n_dropped;
        sum->n_loads += v->n_loads;
        shard_free(v->w.s);
        event_log_free(v->w.event_log);
        crash_files_deinit(&v->c);
        free(v->m);
        free(v);
    }
}

static void with_budgets_admission_and_sweeps(void **state)
{
    static const struct shape shape = {
        .n_keys = 2500, .n_large = 1400, .n_steps = 700, .limits = true
    };
    struct saving sum;

    (void)state;
    run("writer with limits", &shape, 8, &sum);
    assert_true(!share_is_all() ||
                (sum.n_full > 8 && sum.n_deltas > 8 && sum.n_dropped > 0 && sum.n_loads > 20));
}

static void without_limits(void **state)
{
    static const struct shape shape = { .n_keys = 2500, .n_large = 1400, .n_steps = 700 };
    struct saving sum;

    (void)state;
    run("writer without limits", &shape, 8, &sum);
    assert_true(!share_is_all() || (sum.n_full > 8 && sum.n_deltas > 8));
}

static void with_few_keys_and_many_checkpoints(void **state)
{
    static const struct shape shape = {
        .n_keys = 60, .n_large = 50, .n_steps = 2000, .limits = true
    };
    struct saving sum;

    (void)state;
    run("writer with few keys", &shape, 8, &sum);
    assert_true(!share_is_all() || sum.n_deltas > 24);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_budgets_admission_and_sweeps),
        cmocka_unit_test(without_limits),
        cmocka_unit_test(with_few_keys_and_many_checkpoints),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

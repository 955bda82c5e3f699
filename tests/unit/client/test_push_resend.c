/* A client that ends without a word, and the next one that goes on: each push is applied once, whatever a shard had of it. */
#include "tests/support/crash_files.h"
#include "tests/unit/client/fixture.h"
#include "worker/client/push_journal.h"

#define DIR "state"

struct life {
    struct push_journal *journal;
    struct ps_client *c;
    uint32_t table;
};

static void note_sentence(void *arg, const char *sentence)
{
    snprintf(arg, 256, "%s", sentence);
}

/* What it says last is in text[256]. */
static struct push_journal *open_journal(struct crash_files *disk, uint64_t incarnation,
                                         char *text)
{
    const struct push_journal_options options = { .files = &disk->ops,
                                                  .dir = DIR,
                                                  .job = "j",
                                                  .incarnation = incarnation,
                                                  .notice = note_sentence,
                                                  .notice_arg = text };
    struct push_journal *s;
    struct err err;

    if (push_journal_open(&options, &s, &err))
        fail_msg("%s", err.text);
    return s;
}

static void begin(struct life *l, struct crash_files *disk, struct fake *f,
                  uint64_t incarnation, bool first_table_too, char *text)
{
    const struct table_spec other = make_spec("other"), spec = make_spec("emb");
    struct ps_options options;
    char address[32];
    struct err err;

    fake_address(f, address);
    options = make_options(address);
    options.journal = l->journal = open_journal(disk, incarnation, text);
    if (ps_open(&options, &l->c, &err) ||
        (first_table_too && ps_table(l->c, &other, &l->table, &err)) ||
        ps_table(l->c, &spec, &l->table, &err))
        fail_msg("%s", err.text);
}

/* As a kill -9 does: nothing is waited for, nothing said. */
static void die(struct life *l)
{
    ps_close(l->c);
    push_journal_close(l->journal);
}

/* Pushes the steps up to n_steps that none has pushed yet. */
static void work(struct life *l, uint64_t n_steps)
{
    float rows[N_KEYS * FAKE_DIM];
    struct err err;

    for (uint64_t step = ps_clock(l->c); step < n_steps; step++)
        if (pull_rows(l->c, l->table, step, rows, &err) ||
            push_step(l->c, l->table, step, &err))
            fail_msg("step %u: %s", (unsigned)step, err.text);
}

static void check_sums(struct fake *f)
{
    float want[N_KEYS * FAKE_DIM] = { 0 }, values[N_KEYS * FAKE_DIM];

    for (uint32_t step = 0; step < N_STEPS; step++) {
        values_of_step(step, values);
        for (uint32_t i = 0; i < N_KEYS * FAKE_DIM; i++)
            want[i] += values[i];
    }
    for (uint32_t i = 0; i < f->plan.n_shards; i++) {
        assert_int_equal(f->shards[i].n_applied, N_STEPS);
        assert_int_equal(f->shards[i].clock, N_STEPS);
    }
    for (uint32_t i = 0; i < N_KEYS; i++)
        assert_memory_equal(
            fake_row(&f->shards[placement_shard(keys[i], 0, f->plan.n_shards)], keys[i])
                ->values,
            want + i * FAKE_DIM, FAKE_DIM * sizeof(float));
}

/* Two processes: the first dies behind its push of step `last`; a shard hangs up at frame fault_at. */
static bool two_lives(long fault_at, enum fake_fault fault, uint64_t last)
{
    struct fake_plan plan = {
        .n_shards = 2, .fault_at = fault_at, .fault_type = FRAME_PUSH, .fault = fault
    };
    struct fake *f = fake_start(&plan);
    char text[256] = "";
    struct crash_files disk;
    struct life l;
    struct err err;
    bool over;

    crash_files_init(&disk);
    begin(&l, &disk, f, 7, true, text);
    work(&l, last + 1);
    die(&l);
    begin(&l, &disk, f, 9, false, text); /* the table has another number now */
    assert_int_equal(ps_clock(l.c), last + 1);
    work(&l, N_STEPS);
    if (ps_leave(l.c, &err))
        fail_msg("%s", err.text);
    die(&l);
    fake_stop(f);
    over = f->n_frames <= fault_at;
    for (uint32_t i = 0; i < plan.n_shards; i++)
        assert_int_equal(f->shards[i].incarnation, 7);
    check_sums(f);
    fake_free(f);
    assert_string_equal(text, "");
    assert_false(crash_files_is_there(&disk, DIR "/j.0.2.pushes"));
    crash_files_deinit(&disk);
    return over;
}

static void the_next_process_sends_what_a_shard_has_not_had_and_goes_on(void **state)
{
    (void)state;
    for (uint64_t last = 0; last < N_STEPS; last++)
        for (long k = 0; !two_lives(k, k % 2 ? FAKE_DROP_AFTER : FAKE_DROP_BEFORE, last); k++)
            ;
}

static void many_processes_that_each_die_at_once_apply_each_push_once(void **state)
{
    struct fake_plan plan = { .n_shards = 3, .fault_at = -1 };
    struct fake *f = fake_start(&plan);
    struct crash_files disk;
    char text[256] = "";
    struct life l;
    struct err err;

    (void)state;
    crash_files_init(&disk);
    for (uint64_t i = 0; i < 3 * N_STEPS; i++) {
        begin(&l, &disk, f, 7 + i, i % 2, text);
        work(&l, i / 3 + 1);
        die(&l);
    }
    begin(&l, &disk, f, 99, true, text);
    if (ps_leave(l.c, &err))
        fail_msg("%s", err.text);
    die(&l);
    fake_stop(f);
    check_sums(f);
    fake_free(f);
    crash_files_deinit(&disk);
}

/* What another cluster, or one that has declared the worker dead, must not get. */
static void is_somebody_new(const struct fake_plan *later, const char *says)
{
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1, .mute_pushes = true };
    struct fake *f = fake_start(&plan);
    struct crash_files disk;
    char text[256] = "";
    struct life l;
    struct err err;

    crash_files_init(&disk);
    begin(&l, &disk, f, 7, true, text);
    if (push_step(l.c, l.table, 0, &err))
        fail_msg("%s", err.text);
    die(&l);
    fake_stop(f);
    fake_free(f);
    f = fake_start(later);
    begin(&l, &disk, f, 9, true, text);
    assert_int_equal(ps_clock(l.c), 1);
    work(&l, 2);
    if (ps_flush(l.c, &err))
        fail_msg("%s", err.text);
    assert_non_null(strstr(text, says));
    die(&l);
    fake_stop(f);
    for (uint32_t i = 0; i < later->n_shards; i++) {
        assert_true(f->shards[i].incarnation > 7);
        assert_int_equal(f->shards[i].n_applied, 1);
        assert_int_equal(f->shards[i].last_seq, 1);
    }
    fake_free(f);
    crash_files_deinit(&disk);
}

static void
another_cluster_and_servers_that_have_declared_it_dead_see_somebody_new(void **state)
{
    static const char dropped[] =
        "this worker has had to join as a new incarnation: pushes 1 to 1";

    (void)state;
    is_somebody_new(&(struct fake_plan){ .n_shards = 3, .fault_at = -1 }, dropped);
    is_somebody_new(&(struct fake_plan){ .n_shards = 2, .fault_at = -1, .map_id = 43 },
                    dropped);
    is_somebody_new(&(struct fake_plan){ .n_shards = 2, .fault_at = -1, .fenced_below = 8 },
                    dropped);
}

static void a_model_without_the_table_is_reported_and_nothing_is_sent(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1, .mute_pushes = true };
    const struct table_spec spec = make_spec("unlike");
    struct fake *f = fake_start(&plan);
    struct ps_options options;
    struct crash_files disk;
    char text[256] = "", address[32];
    float rows[N_KEYS * FAKE_DIM];
    struct life l;
    struct err err;

    (void)state;
    crash_files_init(&disk);
    begin(&l, &disk, f, 7, false, text);
    if (push_step(l.c, l.table, 0, &err))
        fail_msg("%s", err.text);
    die(&l);
    fake_address(f, address);
    options = make_options(address);
    options.journal = l.journal = open_journal(&disk, 9, text);
    if (ps_open(&options, &l.c, &err) || ps_table(l.c, &spec, &l.table, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pull_rows(l.c, l.table, 1, rows, &err), PS_ESPEC);
        assert_non_null(strstr(err.text, "\"emb\""));
    }
    die(&l);
    fake_stop(f);
    fake_free(f);
    crash_files_deinit(&disk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_process_sends_what_a_shard_has_not_had_and_goes_on),
        cmocka_unit_test(many_processes_that_each_die_at_once_apply_each_push_once),
        cmocka_unit_test(
            another_cluster_and_servers_that_have_declared_it_dead_see_somebody_new),
        cmocka_unit_test(a_model_without_the_table_is_reported_and_nothing_is_sent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) +
           cmocka_run_group_tests_name("threads that drive", tests, all_drive, NULL);
}

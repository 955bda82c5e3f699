/* Clocks: when a pull may be answered. Lock step: test_bsp.c. */
#include "server/core/shard.h"

#include "fixture.h"

#define DIM 5u

static void answer(struct shard *s, struct worker *w, uint64_t clock, uint32_t table)
{
    static const uint64_t key = 0;
    struct pull *pull = make_pull(clock, table, &key, 0);
    uint64_t min_clock, version;
    uint8_t dst[8];

    enter_shard();
    assert_int_equal(shard_pull(s, w, pull, dst, &min_clock, &version, NULL), 0);
    assert_int_equal(min_clock, job_min_clock(w->job));
    free_pull(pull);
}

static void a_pull_waits_for_the_strictest_of_its_tables(void **state)
{
    static const uint64_t key = 1;
    struct table_spec job = sparse_spec("job", DIM, TABLE_SPEC_SGD),
                      async = sparse_spec("async", DIM, TABLE_SPEC_SGD);
    struct table_spec ssp = sparse_spec("ssp", DIM, TABLE_SPEC_SGD),
                      bsp = sparse_spec("bsp", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    uint32_t ids[4];
    struct worker *w = join(s, TABLE_SPEC_MODE_SSP, 3, 0, 2);
    struct pull *pull = make_pull(4, 0, &key, 1);

    (void)state;
    async.mode = TABLE_SPEC_MODE_ASYNC;
    ssp.mode = TABLE_SPEC_MODE_SSP;
    ssp.bound = 1;
    bsp.mode = TABLE_SPEC_MODE_BSP;
    ids[0] = make_table(s, &job);
    ids[1] = make_table(s, &async);
    ids[2] = make_table(s, &ssp);
    ids[3] = make_table(s, &bsp);
    enter_shard();
    for (uint64_t clock = 0; clock < 6; clock++) { /* min clock is 0: worker 1 has not come */
        assert_int_equal(ready(s, w, clock, ids[0]), clock <= 3);
        assert_true(ready(s, w, clock, ids[1]));
        assert_int_equal(ready(s, w, clock, ids[2]), clock <= 1);
        assert_int_equal(ready(s, w, clock, ids[3]), clock == 0);
        assert_true(ready(s, NULL, clock, ids[3]));
    }
    assert_false(ready(s, w, UINT64_MAX, ids[0]));
    pull->sections[1] = pull->sections[0]; /* two tables in one pull */
    pull->sections[0].table_id = ids[1];
    pull->sections[1].table_id = ids[0];
    pull->n_sections = 2;
    assert_false(shard_pull_ready(s, w, pull));
    pull->clock = 3;
    assert_true(shard_pull_ready(s, w, pull));
    pull->n_sections = 0;
    pull->clock = 99;
    assert_true(shard_pull_ready(s, w, pull));
    pull->n_sections = 1;
    free_pull(pull);
    shard_free(s);
}

/* Random schedules of ticks, deaths, departures and returns. The oracle looks
 * at a list of clocks. */
static void a_pull_is_answered_exactly_when_the_slowest_living_worker_allows(void **state)
{
    enum { N = 4, N_EVENTS = 4000 };
    struct dice dice = dice_of_this_run("ssp");
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);

    (void)state;
    enter_shard();
    for (uint32_t bound = 0; bound < 4; bound++) {
        struct shard *s = make_shard(0, 1, 0);
        uint32_t table = make_table(s, &spec);
        uint64_t clocks[N] = { 0 }, incarnation = 1, now_ms = 0, least, most;
        struct worker *w[N];
        bool counted[N];

        for (uint32_t i = 0; i < N; i++) {
            w[i] = join(s, TABLE_SPEC_MODE_SSP, bound, i, N);
            counted[i] = true;
        }
        for (uint32_t e = 0; e < N_EVENTS; e++) {
            uint32_t i = (uint32_t)roll(&dice, N);
            uint64_t what = roll(&dice, 40);

            least = UINT64_MAX;
            most = 0;
            for (uint32_t k = 0; k < N; k++) {
                least = counted[k] && clocks[k] < least ? clocks[k] : least;
                most = clocks[k] > most ? clocks[k] : most;
            }
            if (what > 1 && counted[i]) {
                uint64_t asked = clocks[i] + roll(&dice, 3);
                bool want = (int64_t)least >= (int64_t)asked - (int64_t)bound;

                assert_int_equal(ready(s, w[i], asked, table), want);
                if (!want || asked != clocks[i])
                    continue;
                answer(s, w[i], asked, table);
                must_push(s, w[i], next_push(w[i], clocks[i]++));
            } else if (what == 0 && counted[i] && i > 0) { /* rank 0 stays, and the job */
                membership_leave(shard_membership(s), w[i]);
                counted[i] = false;
                assert_true(shard_advance(s, now_ms));
                assert_false(shard_advance(s, now_ms));
            } else if (what == 1 && !counted[i]) {
                assert_ptr_equal(
                    join_at(s, TABLE_SPEC_MODE_SSP, bound, i, N, ++incarnation, now_ms), w[i]);
                counted[i] = true;
                clocks[i] = least;
            }
        }
        assert_int_equal(w[0]->job->staleness_violations, 0);
        assert_true(w[0]->job->staleness.max <= bound);
        assert_true(most > 10);
        shard_free(s);
    }
}

static void staleness_is_that_of_the_answer_and_a_violation_is_counted(void **state)
{
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    uint32_t table = make_table(s, &spec);
    struct worker *w = join(s, TABLE_SPEC_MODE_SSP, 3, 0, 2);
    struct job *job = w->job;

    (void)state;
    enter_shard();
    answer(s, w, 0, table);
    answer(s, w, 2, table);
    answer(s, w, 3, table);
    assert_int_equal(job->staleness_violations, 0);
    /* Nobody should: it was not ready. That is what the counter is for. */
    answer(s, w, 4, table);
    assert_int_equal(job->staleness_violations, 1);
    assert_int_equal(job->staleness.n, 4);
    assert_int_equal(job->staleness.sum, 9);
    assert_int_equal(job->staleness.max, 4);
    assert_int_equal(histogram_count_le(&job->staleness, 0), 1);
    assert_int_equal(histogram_count_le(&job->staleness, 2), 2);
    join_at(s, TABLE_SPEC_MODE_SSP, 3, 1, 2, 1, 0)->clock = 9;
    w->clock = 9;
    answer(s, w, 4, table); /* behind min clock is not stale */
    assert_int_equal(histogram_count_le(&job->staleness, 0), 2);
    shard_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pull_waits_for_the_strictest_of_its_tables),
        cmocka_unit_test(a_pull_is_answered_exactly_when_the_slowest_living_worker_allows),
        cmocka_unit_test(staleness_is_that_of_the_answer_and_a_violation_is_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

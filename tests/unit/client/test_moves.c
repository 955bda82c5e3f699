/* Two nodes that are primary and standby of the same shards, and clients that go to whichever serves. */
#include <errno.h>

#include "common/clock.h"
#include "tests/support/seed.h"
#include "tests/unit/client/fixture.h"

struct pair {
    struct fake *nodes[2];
    char servers[64];
    struct ps_client *c;
    uint32_t table;
    _Atomic uint64_t n_steps; /* pushed; their sums: */
    float sums[N_KEYS * FAKE_DIM];
    uint64_t term;
    uint32_t primary; /* which of the two */
    _Atomic uint32_t n_moved, n_early;
    char moved[512];
};

static void on_notice(void *arg, const char *sentence)
{
    struct pair *p = arg;

    if (strstr(sentence, "primary moved from")) {
        snprintf(p->moved, sizeof p->moved, "%s", sentence);
        p->n_moved++;
    }
    p->n_early += strstr(sentence, "is the primary of an earlier term") != NULL;
}

/* The first one is the primary. */
static void start_pair(struct pair *p, uint32_t n_shards)
{
    struct fake_plan plan = { .n_shards = n_shards, .fault_at = -1 };

    *p = (struct pair){ .term = 1 };
    p->nodes[0] = fake_start(&plan);
    plan.node_ports[0] = p->nodes[0]->port;
    p->nodes[1] = fake_start(&plan);
    fake_become(p->nodes[0], FAKE_PRIMARY, 1, p->nodes[0], p->nodes[1], NULL);
    fake_become(p->nodes[1], FAKE_STANDBY, 1, p->nodes[0], p->nodes[1], NULL);
    snprintf(p->servers, sizeof p->servers, "127.0.0.1:%d", p->nodes[0]->port);
}

static void open_client(struct pair *p)
{
    const struct table_spec spec = make_spec("emb");
    struct ps_options options = make_options(p->servers);
    struct err err;

    options.on_notice = on_notice;
    options.notice_arg = p;
    if (ps_open(&options, &p->c, &err) || ps_table(p->c, &spec, &p->table, &err))
        fail_msg("%s", err.text);
}

/* The primary is dead or stands still, and the standby takes over with all that it had acknowledged. */
static void move_primary(struct pair *p, enum fake_role how)
{
    struct fake *from = p->nodes[p->primary], *to = p->nodes[!p->primary];

    fake_become(from, how, p->term, from, to, NULL);
    fake_become(to, FAKE_PRIMARY, ++p->term, to, NULL, from);
    p->primary = !p->primary;
}

/* The one that was the primary is there again, as the standby. */
static void bring_back(struct pair *p)
{
    struct fake *primary = p->nodes[p->primary], *standby = p->nodes[!p->primary];

    fake_become(standby, FAKE_STANDBY, p->term, primary, standby, NULL);
    fake_become(primary, FAKE_PRIMARY, p->term, primary, standby, NULL);
}

/* Reads what all steps before have left, and pushes one more. */
static void step(struct pair *p)
{
    float rows[N_KEYS * FAKE_DIM], values[N_KEYS * FAKE_DIM];
    const struct ps_push_section push = {
        .table = p->table, .n_keys = N_KEYS, .keys = keys, .values = values
    };
    struct err err;

    while (pull_rows(p->c, p->table, p->n_steps, rows, &err)) /* memory is for an answer, too */
        if (err.status != -ENOMEM)
            fail_msg("%s", err.text);
    assert_memory_equal(rows, p->sums, sizeof rows);
    values_of_step((uint32_t)(p->n_steps % 16), values);
    if (ps_push(p->c, p->n_steps, 8, true, &push, 1, &err))
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < N_KEYS * FAKE_DIM; i++)
        p->sums[i] += values[i];
    p->n_steps++;
}

/* Leaves; each push was applied once, at whoever served then. */
static void end(struct pair *p)
{
    struct err err;

    if (ps_flush(p->c, &err) || ps_leave(p->c, &err))
        fail_msg("%s", err.text);
    ps_close(p->c);
    for (int i = 0; i < 2; i++)
        fake_stop(p->nodes[i]);
    for (uint32_t i = 0; i < p->nodes[0]->plan.n_shards; i++) {
        assert_int_equal(p->nodes[p->primary]->shards[i].n_applied, p->n_steps);
        assert_int_equal(p->nodes[p->primary]->shards[i].last_seq, p->n_steps);
    }
    for (int i = 0; i < 2; i++)
        fake_free(p->nodes[i]);
}

static void a_job_goes_on_at_the_standby_that_takes_over(void **state)
{
    static const enum fake_role ways[] = { FAKE_DEAD, FAKE_STUCK, FAKE_STANDBY };
    char want[512];
    struct pair p;

    (void)state;
    for (size_t w = 0; w < COUNT_OF(ways); w++) {
        start_pair(&p, 2);
        open_client(&p);
        for (int i = 0; i < 3; i++)
            step(&p);
        move_primary(&p, ways[w]);
        for (int i = 0; i < 3; i++)
            step(&p);
        assert_int_equal(p.n_moved, 1);
        snprintf(want, sizeof want,
                 "node 0: primary moved from 127.0.0.1:%d to 127.0.0.1:%d (term 2)",
                 p.nodes[0]->port, p.nodes[1]->port);
        assert_string_equal(p.moved, want);
        end(&p);
    }
}

static void a_client_that_asks_the_standby_first_finds_the_primary(void **state)
{
    struct pair p;

    (void)state;
    start_pair(&p, 2);
    snprintf(p.servers, sizeof p.servers, "127.0.0.1:%d", p.nodes[1]->port);
    open_client(&p);
    step(&p);
    move_primary(&p, FAKE_DEAD);
    step(&p);
    bring_back(&p);
    move_primary(&p, FAKE_DEAD);
    step(&p);
    assert_int_equal(p.n_moved, 2);
    end(&p);
}

/* It has served term 2. Now the old primary is back, knows nothing of that, and says that it serves. */
static void an_earlier_term_is_not_believed(void **state)
{
    struct fake *old;
    struct pair p;

    (void)state;
    start_pair(&p, 2);
    open_client(&p);
    step(&p);
    move_primary(&p, FAKE_DEAD);
    step(&p);
    old = p.nodes[0];
    fake_become(old, FAKE_PRIMARY, 1, old, p.nodes[1], NULL);
    step(&p);
    /* The new one, too, has forgotten its term: the client waits until it knows it again. */
    fake_become(p.nodes[1], FAKE_STUCK, 2, p.nodes[1], old, NULL);
    fake_become(p.nodes[1], FAKE_PRIMARY, 1, p.nodes[1], old, NULL);
    while (!p.n_early)
        uv_sleep(1);
    assert_int_equal(p.n_moved, 1);
    fake_become(p.nodes[1], FAKE_PRIMARY, 3, p.nodes[1], old, NULL);
    step(&p);
    end(&p);
}

static void without_a_standby_nobody_is_watched(void **state)
{
    struct ps_stats stats;
    char address[32];
    struct fake *f;
    struct err err;

    (void)state;
    f = fake_start(
        &(struct fake_plan){ .n_shards = 2, .fault_at = 7, .fault = FAKE_DROP_AFTER });
    fake_address(f, address);
    assert_int_equal(run_job(address, &stats, &err), 0);
    fake_stop(f);
    assert_int_equal(f->n_watches, 0);
    assert_int_equal(f->n_hellos, 4); /* one for the list, one for each shard, and one more */
    check_applied_once(f);
    fake_free(f);
}

/* The first standby comes when the job has begun: the answer to a heartbeat says so. */
static void a_standby_that_comes_later_is_known_in_time(void **state)
{
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1 };
    struct pair p = { .term = 1 };

    (void)state;
    p.nodes[0] = fake_start(&plan);
    snprintf(p.servers, sizeof p.servers, "127.0.0.1:%d", p.nodes[0]->port);
    open_client(&p);
    step(&p);
    plan.node_ports[0] = p.nodes[0]->port;
    p.nodes[1] = fake_start(&plan);
    fake_become(p.nodes[1], FAKE_STANDBY, 1, p.nodes[0], p.nodes[1], NULL);
    fake_become(p.nodes[0], FAKE_PRIMARY, 1, p.nodes[0], p.nodes[1], NULL);
    while (!p.nodes[1]->n_watches) /* a third of a lease */
        uv_sleep(1);
    move_primary(&p, FAKE_STUCK);
    step(&p);
    assert_int_equal(p.n_moved, 1);
    end(&p);
}

/* The list of nodes knows only the one that is gone; the user has named both. */
static void a_client_that_starts_later_finds_who_took_over(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .n_nodes = 2, .fault_at = -1 };
    struct fake *other, *gone, *heir;
    struct pair p = { .term = 1 };
    struct err err;

    (void)state;
    plan.node = 1;
    plan.node_ports[0] = 1;
    gone = fake_start(&plan);
    plan.node_ports[1] = gone->port;
    heir = fake_start(&plan);
    plan.node = 0;
    plan.node_ports[0] = 0;
    other = fake_start(&plan);
    fake_become(gone, FAKE_DEAD, 1, gone, heir, NULL);
    fake_become(heir, FAKE_PRIMARY, 65536, heir, gone, NULL);
    snprintf(p.servers, sizeof p.servers, "127.0.0.1:%d,127.0.0.1:%d", other->port, heir->port);
    open_client(&p);
    step(&p);
    step(&p);
    assert_int_equal(p.n_moved, 1);
    assert_memory_equal(p.moved, "node 1: ", 8);
    if (ps_flush(p.c, &err) || ps_leave(p.c, &err))
        fail_msg("%s", err.text);
    ps_close(p.c);
    fake_stop(other);
    fake_stop(gone);
    fake_stop(heir);
    assert_int_equal(other->shards[0].n_applied, 2);
    assert_int_equal(heir->shards[1].n_applied + heir->shards[0].n_applied, 2);
    fake_free(other);
    fake_free(gone);
    fake_free(heir);
}

/* Node 1's psd refuses a worker. It may be an old primary, and the new one take what comes of that worker; so node 0 hears of it
 * when node 1's standby has said who the primary is, too. */
static void suspects_of_a_primary_wait_until_its_standby_is_asked(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .n_nodes = 2, .fault_at = -1 };
    struct fake *other, *primary, *standby;
    struct pair p = { .term = 1 };
    uint64_t begun_ms;

    (void)state;
    plan.node = 1;
    plan.node_ports[0] = 1;
    standby = fake_start(&plan);
    plan.suspects = true;
    primary = fake_start(&plan);
    plan.suspects = false;
    plan.node_ports[1] = primary->port;
    plan.node = 0;
    plan.node_ports[0] = 0;
    other = fake_start(&plan);
    fake_become(standby, FAKE_STUCK, 1, primary, standby, NULL);
    fake_become(primary, FAKE_PRIMARY, 1, primary, standby, NULL);
    snprintf(p.servers, sizeof p.servers, "127.0.0.1:%d", other->port);
    begun_ms = clock_mono_ms();
    open_client(&p);
    while (primary->n_beats < 2 || other->n_beats < 3)
        uv_sleep(1);
    /* After two seconds the standby counts as one that is not there. */
    if (clock_mono_ms() - begun_ms < 1500)
        assert_int_equal(other->n_suspects, 0);
    fake_become(standby, FAKE_STANDBY, 1, primary, standby, NULL);
    while (!other->n_suspects)
        uv_sleep(1);
    ps_close(p.c);
    fake_stop(other);
    fake_stop(primary);
    fake_stop(standby);
    fake_free(other);
    fake_free(primary);
    fake_free(standby);
}

#define N_MOVES 40u

struct mover {
    struct pair *p;
    uint64_t seed;
    _Atomic bool is_over;
};

static void move_at_random(void *arg)
{
    static const enum fake_role ways[] = { FAKE_DEAD, FAKE_STUCK, FAKE_STANDBY };
    struct mover *m = arg;
    uint64_t n = 0;

    for (uint32_t i = 0; i < N_MOVES; i++) {
        uint64_t n_steps;

        uv_sleep((unsigned)(hash_mix2(m->seed, n++) % 10)); /* somewhere in the job's steps */
        move_primary(m->p, ways[hash_mix2(m->seed, n++) % COUNT_OF(ways)]);
        n_steps = m->p->n_steps;
        while (hash_mix2(m->seed, n) % 2 && m->p->n_steps < n_steps + 2)
            uv_sleep(1); /* until the job goes on there */
        n++;
        bring_back(m->p);
    }
    m->is_over = true;
}

static void each_push_arrives_once_however_often_the_primary_moves(void **state)
{
    struct mover m = { .seed = seed_by_the_clock() };
    uv_thread_t thread;
    struct pair p;

    (void)state;
    start_pair(&p, 3);
    open_client(&p);
    m.p = &p;
    assert_int_equal(uv_thread_create(&thread, move_at_random, &m), 0);
    while (!m.is_over)
        step(&p);
    uv_thread_join(&thread);
    step(&p);
    assert_true(p.n_moved > 0);
    print_message("%u moves, %u of them noticed, under %u steps\n", N_MOVES, p.n_moved,
                  (unsigned)p.n_steps);
    end(&p);
}

#ifdef PS_FAULTS
/* Some allocations of the network's thread fail from the k-th one of a move on: the watcher or the links try again, and
 * each push arrives once all the same. */
static void a_move_without_memory_is_tried_again(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    long n_failed = 1, k;
    uint32_t n_rounds = 0;

    (void)state;
    memory_exempt_this_thread();
    for (k = (long)(seed % 2); n_failed && n_rounds < 60; k += 2, n_rounds++) {
        struct pair p;

        start_pair(&p, 2);
        open_client(&p);
        step(&p);
        memory_fail_anywhere(k, 1 + (long)(hash_mix2(seed, n_rounds) % 3));
        move_primary(&p, n_rounds % 2 ? FAKE_DEAD : FAKE_STANDBY);
        step(&p);
        step(&p);
        n_failed = memory_n_failed_anywhere();
        memory_fail_anywhere(-1, 0);
        step(&p);
        assert_int_equal(p.n_moved, 1);
        end(&p);
    }
    print_message("%u moves, allocations up to the %ld-th failed\n", n_rounds, k - 2);
    assert_true(n_rounds > 2);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_goes_on_at_the_standby_that_takes_over),
        cmocka_unit_test(a_client_that_asks_the_standby_first_finds_the_primary),
        cmocka_unit_test(an_earlier_term_is_not_believed),
        cmocka_unit_test(without_a_standby_nobody_is_watched),
        cmocka_unit_test(a_standby_that_comes_later_is_known_in_time),
        cmocka_unit_test(a_client_that_starts_later_finds_who_took_over),
        cmocka_unit_test(suspects_of_a_primary_wait_until_its_standby_is_asked),
        cmocka_unit_test(each_push_arrives_once_however_often_the_primary_moves),
#ifdef PS_FAULTS
        cmocka_unit_test(a_move_without_memory_is_tried_again),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL) +
           cmocka_run_group_tests_name("threads that drive", tests, all_drive, NULL);
}

/* The adaptive weight of a merge, where workers end: three stores with a period over one server, in lock step. The server's optimizer is that of the mean:
 * it subtracts, at each clock and of each table, the mean of what was pushed at it. */
#include "worker/param_store_periodic.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "tests/support/seed.h"

#define DIM 4u
#define N_BLOCKS 2u
#define FLOATS (DIM * N_BLOCKS)
#define N_WORKERS 3u
#define N_TABLES 2u /* the model's, and that of the squares */
#define PERIOD 10u
#define STEPS 30u /* of three periods */
#define N_SAMPLES 32u

static const uint64_t all_blocks[N_BLOCKS] = { 0, 1 };

struct server {
    float weights[N_TABLES][FLOATS];
    double sums[N_TABLES][FLOATS], n_samples[N_TABLES]; /* of this clock's pushes */
};

/* A worker's end of it. */
struct link {
    struct param_store store;
    struct server *server;
    const struct ps_pull_section *sections; /* of the pull under way */
    uint32_t n;
};

static struct link *link_of(struct param_store *s)
{
    return (struct link *)(void *)s;
}

static int table(struct param_store *s, const struct table_spec *spec, uint32_t *ret_table,
                 struct err *err)
{
    (void)s;
    (void)err;
    *ret_table = strcmp(spec->name, "job/merge") == 0;
    return 0;
}

static int pull_start(struct param_store *s, uint64_t clock,
                      const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    (void)clock;
    (void)err;
    link_of(s)->sections = sections;
    link_of(s)->n = n;
    return 0;
}

static uint32_t n_floats(uint32_t number, uint32_t n_keys)
{
    return number ? 1 : n_keys * DIM;
}

static int pull_wait(struct param_store *s, struct err *err)
{
    const struct link *l = link_of(s);

    (void)err;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct ps_pull_section *section = &l->sections[i];

        memcpy(section->dst, l->server->weights[section->table],
               n_floats(section->table, section->n_keys) * sizeof *section->dst);
    }
    return 0;
}

static int push(struct param_store *s, uint64_t clock, uint32_t n_samples, bool tick,
                const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    struct server *server = link_of(s)->server;

    (void)clock;
    (void)err;
    assert_true(tick);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t number = sections[i].table;

        server->n_samples[number] += n_samples;
        for (uint32_t k = 0; k < n_floats(number, sections[i].n_keys); k++)
            server->sums[number][k] += (double)n_samples * (double)sections[i].values[k];
    }
    return 0;
}

static int done(struct param_store *s, struct err *err)
{
    (void)s;
    (void)err;
    return 0;
}

static void close_nothing(struct param_store *s)
{
    (void)s;
}

static const struct param_store_ops ops = { .table = table,
                                            .pull_start = pull_start,
                                            .pull_wait = pull_wait,
                                            .push = push,
                                            .flush = done,
                                            .leave = done,
                                            .close = close_nothing };

static void end_clock(struct server *server)
{
    for (uint32_t t = 0; t < N_TABLES; t++)
        for (uint32_t k = 0; k < FLOATS && server->n_samples[t] > 0; k++)
            server->weights[t][k] -= (float)(server->sums[t][k] / server->n_samples[t]);
    memset(server->sums, 0, sizeof server->sums);
    memset(server->n_samples, 0, sizeof server->n_samples);
}

static uint32_t period_of(const void *arg, const char *name)
{
    (void)arg;
    (void)name;
    return PERIOD;
}

struct run {
    uint64_t seed;
    struct server server;
    struct link links[N_WORKERS];
    struct param_store *stores[N_WORKERS];
    float weights[N_WORKERS][FLOATS]; /* that they compute with */
    float farthest;                   /* of these from the server's after a pull */
};

static void begin(struct run *r, uint64_t seed, uint32_t merges_adaptively)
{
    const struct param_store_periodic_options options = { .rule = LOCAL_TENSOR_STEPS,
                                                          .slow_lr = 1,
                                                          .lock_step = true,
                                                          .merges_adaptively =
                                                              merges_adaptively,
                                                          .period_of = period_of };
    struct table_spec spec = { .kind = TABLE_SPEC_DENSE,
                               .dim = DIM,
                               .n_floats = FLOATS,
                               .optim = TABLE_SPEC_SGD,
                               .params = table_spec_optim_defaults(TABLE_SPEC_SGD),
                               .name = "job/lin.W" };
    uint32_t number;
    struct err err;

    *r = (struct run){ .seed = seed };
    spec.params.learning_rate = 0.125f;
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        r->links[i] = (struct link){ .store.ops = &ops, .server = &r->server };
        r->stores[i] = param_store_periodic_new(&r->links[i].store, &options);
        assert_int_equal(r->stores[i]->ops->table(r->stores[i], &spec, &number, &err), 0);
        assert_int_equal(number, 0);
    }
}

static void pull_by(struct run *r, uint32_t rank, uint64_t clock)
{
    const struct ps_pull_section section = { .n_keys = N_BLOCKS,
                                             .keys = all_blocks,
                                             .dst = r->weights[rank] };
    struct param_store *s = r->stores[rank];
    struct err err;

    assert_int_equal(s->ops->pull_start(s, clock, &section, 1, &err), 0);
    assert_int_equal(s->ops->pull_wait(s, &err), 0);
    for (uint32_t k = 0; k < FLOATS && clock % PERIOD == 0; k++)
        r->farthest = fmaxf(r->farthest, fabsf(r->weights[rank][k] - r->server.weights[0][k]));
}

/* Workers differ. Behind STEPS there is nothing left to learn. */
static void push_by(struct run *r, uint32_t rank, uint64_t clock)
{
    struct param_store *s = r->stores[rank];
    float gradient[FLOATS];
    const struct ps_push_section section = { .n_keys = N_BLOCKS,
                                             .keys = all_blocks,
                                             .values = gradient };
    struct err err;

    for (uint32_t k = 0; k < FLOATS; k++)
        gradient[k] = clock < STEPS ? (float)hash_unit(hash_mix2(
                                          r->seed, (clock * N_WORKERS + rank) * FLOATS + k)) -
                                          0.5f
                                    : 0;
    assert_int_equal(s->ops->push(s, clock, N_SAMPLES, true, &section, 1, &err), 0);
}

/* Each worker leaves behind its last step. */
static void run(struct run *r, uint64_t seed, uint32_t merges_adaptively,
                const uint64_t steps[N_WORKERS])
{
    struct err err;

    begin(r, seed, merges_adaptively);
    for (uint64_t clock = 0; clock < STEPS + PERIOD; clock++) {
        for (uint32_t i = 0; i < N_WORKERS; i++)
            if (clock < steps[i])
                pull_by(r, i, clock);
        for (uint32_t i = 0; i < N_WORKERS; i++)
            if (clock < steps[i])
                push_by(r, i, clock);
            else if (clock == steps[i])
                assert_int_equal(r->stores[i]->ops->leave(r->stores[i], &err), 0);
        end_clock(&r->server);
    }
    for (uint32_t i = 0; i < N_WORKERS; i++)
        r->stores[i]->ops->close(r->stores[i]);
}

static float distance(const struct run *a, const struct run *b)
{
    float most = 0;

    for (uint32_t k = 0; k < FLOATS; k++)
        most = fmaxf(most, fabsf(a->server.weights[0][k] - b->server.weights[0][k]));
    return most;
}

/* However many workers have a step behind the last merge, and at whatever clocks they leave. */
static void the_last_merge_is_by_the_mean_whoever_leaves_when(void **state)
{
    static const uint64_t ends[][N_WORKERS] = {
        { 31, 30, 30 }, { 31, 31, 31 }, { 32, 31, 31 }, { 33, 32, 30 }
    };
    const uint64_t seed = seed_by_the_clock();
    struct run want, mean, got;

    (void)state;
    run(&want, seed, N_WORKERS, (const uint64_t[N_WORKERS]){ STEPS, STEPS, STEPS });
    run(&mean, seed, 0, (const uint64_t[N_WORKERS]){ STEPS, STEPS, STEPS });
    assert_true(distance(&want, &mean) > 0.01f); /* the merges before have it */
    for (uint32_t i = 0; i < COUNT_OF(ends); i++) {
        run(&got, seed, N_WORKERS, ends[i]);
        assert_true(got.farthest > 0.01f); /* workers have it after each merge */
        if (!(distance(&got, &want) < 1e-5f))
            fail_msg("workers that leave as case %u: %g apart", i,
                     (double)distance(&got, &want));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_merge_is_by_the_mean_whoever_leaves_when),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

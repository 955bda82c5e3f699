#include "tests/unit/client/fixture.h"

static bool drives;
static uint32_t net_threads;

int all_drive(void **state)
{
    (void)state;
    drives = true;
    net_threads = 0;
    return 0;
}

int all_have_io_threads(void **state)
{
    (void)state;
    net_threads = 3;
    return 0;
}

struct table_spec make_spec(const char *name)
{
    struct table_spec spec = { .kind = TABLE_SPEC_SPARSE,
                               .dim = FAKE_DIM,
                               .params = table_spec_optim_defaults(TABLE_SPEC_SGD) };

    snprintf(spec.name, sizeof spec.name, "%s", name);
    return spec;
}

struct ps_options make_options(const char *servers)
{
    const char *all = getenv("PS_NET_THREADS");

    return (struct ps_options){ .servers = servers,
                                .name = "test",
                                .job = "j",
                                .n_workers = 1,
                                .names_keys = true,
                                .drives = drives,
                                .is_interruptible = drives,
                                .net_threads =
                                    all && !drives ? (uint32_t)atoi(all) : net_threads,
                                .mode = TABLE_SPEC_MODE_ASYNC };
}

void values_of_step(uint32_t step, float *values)
{
    uint32_t i;

    for (i = 0; i < N_KEYS * FAKE_DIM; i++)
        values[i] = (float)(step * 1000 + i + 1);
}

int push_step(struct ps_client *c, uint32_t table, uint64_t clock, struct err *err)
{
    float values[N_KEYS * FAKE_DIM];
    struct ps_push_section push = {
        .table = table, .n_keys = N_KEYS, .keys = keys, .values = values
    };

    values_of_step((uint32_t)clock, values);
    return ps_push(c, clock, 8, true, &push, 1, err);
}

int pull_rows(struct ps_client *c, uint32_t table, uint64_t clock, float *dst, struct err *err)
{
    struct ps_pull_section pull = {
        .table = table, .n_keys = N_KEYS, .keys = keys, .dst = dst
    };
    struct ps_pull *started;
    int status = ps_pull_start(c, clock, &pull, 1, &started, err);

    return status ? status : ps_pull_wait(c, started, err);
}

int run_job(const char *servers, struct ps_stats *stats, struct err *err)
{
    struct ps_options options = make_options(servers);
    const struct table_spec other = make_spec("other"), spec = make_spec("emb");
    float rows[N_KEYS * FAKE_DIM], want[N_KEYS * FAKE_DIM] = { 0 }, values[N_KEYS * FAKE_DIM];
    struct ps_client *c;
    uint32_t table = 0, step, i;
    int status = ps_open(&options, &c, err);

    if (status)
        return status;
    status = ps_table(c, &other, &table, err);
    if (!status)
        status = ps_table(c, &spec, &table, err);
    for (step = 0; step < N_STEPS && !status; step++) {
        status = pull_rows(c, table, step, rows, err);
        if (!status)
            assert_memory_equal(rows, want, sizeof want);
        values_of_step(step, values);
        for (i = 0; i < N_KEYS * FAKE_DIM; i++)
            want[i] += values[i];
        if (!status)
            status = push_step(c, table, step, err);
    }
    if (!status)
        status = ps_leave(c, err);
    ps_stats(c, stats);
    ps_close(c);
    return status;
}

void check_applied_once(struct fake *f)
{
    float want[N_KEYS * FAKE_DIM] = { 0 }, values[N_KEYS * FAKE_DIM];
    uint32_t step, i;

    for (step = 0; step < N_STEPS; step++) {
        values_of_step(step, values);
        for (i = 0; i < N_KEYS * FAKE_DIM; i++)
            want[i] += values[i];
    }
    for (i = 0; i < f->plan.n_shards; i++) {
        assert_int_equal(f->shards[i].n_applied, N_STEPS);
        assert_int_equal(f->shards[i].n_repeated, 0);
        assert_int_equal(f->shards[i].clock, N_STEPS);
    }
    for (i = 0; i < N_KEYS; i++)
        assert_memory_equal(
            fake_row(&f->shards[placement_shard(keys[i], 0, f->plan.n_shards)], keys[i])
                ->values,
            want + i * FAKE_DIM, FAKE_DIM * sizeof(float));
}

void set_up(struct rig *rig, const struct fake_plan *plan, const struct ps_options *more)
{
    const struct table_spec spec = make_spec("emb");
    struct ps_options options = make_options(rig->address);
    struct err err;

    rig->f = fake_start(plan);
    fake_address(rig->f, rig->address);
    if (more)
        options = *more;
    options.servers = rig->address;
    if (ps_open(&options, &rig->c, &err) || ps_table(rig->c, &spec, &rig->table, &err))
        fail_msg("%s", err.text);
}

int push_and_flush(struct rig *rig, uint64_t clock, struct err *err)
{
    int status = push_step(rig->c, rig->table, clock, err);

    return status ? status : ps_flush(rig->c, err);
}

void halt(struct rig *rig)
{
    ps_close(rig->c);
    rig->c = NULL;
    if (!rig->f->stopped)
        fake_stop(rig->f);
}

void tear_down(struct rig *rig)
{
    halt(rig);
    fake_free(rig->f);
}

void assert_not_let_in(const struct fake_plan *plan, int status, const char *words)
{
    struct fake *f = fake_start(plan);
    char address[32];
    struct ps_options options = make_options(address);
    struct ps_client *c;
    struct err err;

    fake_address(f, address);
    assert_int_equal(ps_open(&options, &c, &err), status);
    assert_non_null(strstr(err.text, words));
    fake_stop(f);
    fake_free(f);
}

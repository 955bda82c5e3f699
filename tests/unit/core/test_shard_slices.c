/* Pushes and pulls that go on in slices, while others come in between: against a reference that gets
 * the same requests whole, each at the moment at which it took effect. */
#include <errno.h>
#include <math.h>

#include "fixture.h"
#include "server/core/bsp.h"
#include "server/core/lock_step.h"

enum { N_TABLES = 6, N_WORKERS = 4, N_KEYS_MAX = 9000, DIM_MAX = 512, N_PULLS = 2 };

/* What is asked of a table: a large push or pull is one of n_large keys below n_keys. */
static const struct {
    uint32_t dim, n_keys, n_large;
    enum table_spec_optim optim;
    enum table_spec_storage storage;
    enum table_spec_mode mode;
    float clip_norm;
} kinds[N_TABLES] = {
    { 4, 12000, 9000, TABLE_SPEC_ADAGRAD, TABLE_SPEC_FP32, TABLE_SPEC_MODE_JOB, 0 },
    { 300, 900, 600, TABLE_SPEC_ADAM, TABLE_SPEC_BF16, TABLE_SPEC_MODE_JOB, 0 },
    { 512, 1200, 800, TABLE_SPEC_ROWWISE_ADAGRAD, TABLE_SPEC_FP16, TABLE_SPEC_MODE_JOB, 0 },
    { 64, 9000, 4000, TABLE_SPEC_FTRL, TABLE_SPEC_FP32, TABLE_SPEC_MODE_JOB, 0.5f },
    { 256, 800, 700, TABLE_SPEC_MOMENTUM, TABLE_SPEC_FP32, TABLE_SPEC_MODE_JOB, 0 }, /* dense */
    { 33, 5000, 4500, TABLE_SPEC_SGD, TABLE_SPEC_BF16, TABLE_SPEC_MODE_BSP, 0 },
};

/* A push of a worker that has not been answered. */
struct asked {
    struct push *push; /* NULL: none */
    bool was_replayed; /* the reference has had it, and said `want` */
    struct shard_push_result want;
    int want_status;
};

struct reading {
    struct pull *pull; /* NULL: none */
    struct shard_pull_op run;
    uint32_t table;
    uint64_t *keys;
    uint8_t *bytes;
    size_t row_bytes;
};

struct pair {
    struct dice dice;
    uint32_t n_tables;
    struct shard *s, *reference;
    struct worker *workers[N_WORKERS], *references[N_WORKERS];
    struct asked asked[N_WORKERS];
    uint32_t under_way; /* whose push is in slices; N_WORKERS: nobody's */
    struct reading readings[N_PULLS];
    bool may_combine; /* the reference */
    struct shard_events waits;
    uint64_t n_large, n_later, n_overtaken, n_refused, n_clock_slices;
};

static uint32_t pick_keys(struct dice *d, uint32_t table, uint32_t n_wanted, uint64_t *keys)
{
    uint64_t n_keys = kinds[table].n_keys;
    uint32_t n = 0;

    for (uint64_t key = 0; key < n_keys && n < n_wanted; key++)
        if (roll(d, n_keys - key) < n_wanted - n)
            keys[n++] = key;
    return n;
}

static enum codec_id pick_codec(struct dice *d)
{
    return (enum codec_id)roll(d, CODEC_ID_END);
}

static void add_random(struct pair *p, struct push *push, uint32_t table, uint32_t n_wanted)
{
    static uint64_t keys[N_KEYS_MAX];
    static float values[3 * 4000 * 300];
    uint32_t dim = kinds[table].dim, n = pick_keys(&p->dice, table, n_wanted, keys);
    enum section_op op = roll(&p->dice, 8)
                             ? SECTION_GRADIENT
                             : SECTION_ASSIGN + (enum section_op)roll(&p->dice, 2);

    if (op == SECTION_ASSIGN_STATE) {
        dim += table_spec_state_floats(&shard_table(p->s, table)->spec);
        assert_true((uint64_t)n * dim <= COUNT_OF(values));
        for (uint32_t i = 0; i < n * dim; i++)
            values[i] = hash_unit(hash_mix2(p->dice.seed, p->dice.n++));
        for (uint32_t i = 0; i < n && shard_table(p->s, table)->spec.row_decay > 0; i++)
            values[(i + 1) * dim - 1] = (float)roll(&p->dice, 100);
        add_section(push, table, op, CODEC_FP32, dim, keys, n, values)->steps =
            roll(&p->dice, 100);
        return;
    }
    assert_true((uint64_t)n * dim <= COUNT_OF(values));
    for (uint32_t i = 0; i < n * dim; i++)
        values[i] = roll_float(&p->dice);
    if (n && roll(&p->dice, 10) == 0)
        values[roll(&p->dice, (uint64_t)n * dim)] = NAN;
    if (op == SECTION_GRADIENT &&
        roll(&p->dice, 4) == 0) { /* `then` is whatever stands there */
        add_gradient_at(push, table, CODEC_INT8, dim, keys, n, values, values + 4000 * 300,
                        (struct section_delay){ .lambda = 2 });
        return;
    }
    add_section(push, table, op, pick_codec(&p->dice), dim, keys, n, values);
}

/* Of one to three tables; of the first two workers' one is mostly large. */
static struct push *random_push(struct pair *p, uint32_t rank)
{
    struct push *push = next_push(p->workers[rank], p->workers[rank]->clock);
    uint32_t first = (uint32_t)roll(&p->dice, p->n_tables), n = 1 + (uint32_t)roll(&p->dice, 3);

    push->tick = roll(&p->dice, 2) == 0;
    push->n_samples = 1 + (uint32_t)roll(&p->dice, 5);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t table = (first + i) % p->n_tables;
        bool large = i == 0 && rank < 2 && roll(&p->dice, 4);

        add_random(p, push, table, large ? kinds[table].n_large : (uint32_t)roll(&p->dice, 60));
    }
    return push;
}

/* A push whose clock is combined in slices is answered with what holds then. */
static void assert_reported(const struct pair *p, const struct shard_push_result *got,
                            const struct shard_push_result *want)
{
    assert_int_equal(got->status, want->status);
    assert_string_equal(got->text, want->text);
    assert_int_equal(got->repeated, want->repeated);
    if (p->n_tables < N_TABLES) {
        assert_int_equal(got->min_clock, want->min_clock);
        assert_int_equal(got->version, want->version);
    }
    assert_true(got->min_clock >= want->min_clock);
    assert_in_range(got->version, want->version, shard_version(p->s));
    assert_int_equal(got->rows_refused, want->rows_refused);
}

/* The reference's clocks wait for those of the other shard. */
static int on_reserve(void *owner, const struct shard_event *event)
{
    const struct pair *p = owner;

    return event->type == SHARD_EVENT_COMBINE && !p->may_combine ? -ENOMEM : 0;
}

static void on_record(void *owner, const struct shard_event *event)
{
    (void)owner;
    (void)event;
}

static void cache(struct pair *p, uint32_t rank)
{
    struct asked *a = &p->asked[rank];

    a->want_status = shard_push(p->reference, p->references[rank], a->push, 0, &a->want);
    a->was_replayed = true;
}

static void follow_clocks(struct pair *p)
{
    const struct shard_counters *all = shard_counters(p->s);

    p->may_combine = true;
    while (shard_counters(p->reference)->combined_clocks < all->combined_clocks)
        assert_true(bsp_release_clock(p->reference));
    p->may_combine = false;
}

/* Has the push under way taken its place in the order? Then the reference gets it now. So it is with clocks. */
static void follow(struct pair *p)
{
    if (p->under_way < N_WORKERS && !p->asked[p->under_way].was_replayed &&
        p->s->large.phase >= PUSH_APPLY)
        cache(p, p->under_way);
    follow_clocks(p);
}

static void check_result(struct pair *p, uint32_t rank, int status,
                         const struct shard_push_result *got)
{
    struct asked *a = &p->asked[rank];

    if (!a->was_replayed)
        cache(p, rank);
    follow_clocks(p);
    assert_int_equal(status, a->want_status);
    assert_reported(p, got, &a->want);
    p->n_refused += got->status != 0;
    free_push(a->push);
    *a = (struct asked){ 0 };
}

static void begin(struct pair *p, uint32_t rank)
{
    struct asked *a = &p->asked[rank];
    struct shard_push_result result;
    enum shard_push_state state;
    int status;

    if (rank == p->under_way)
        return;
    if (!a->push)
        a->push = random_push(p, rank);
    status = shard_push_begin(p->s, p->workers[rank], a->push, 0, &result, &state);
    p->n_overtaken += state == SHARD_PUSH_DONE && p->under_way < N_WORKERS;
    p->n_later += state == SHARD_PUSH_BUSY;
    if (state == SHARD_PUSH_DONE)
        check_result(p, rank, status, &result);
    if (state == SHARD_PUSH_RUNNING) {
        p->under_way = rank;
        p->n_large++;
    }
    follow(p);
}

static void go_on(struct pair *p)
{
    struct shard_push_result result;
    enum shard_push_state state;
    uint32_t rank = p->under_way;
    int status;

    if (rank == N_WORKERS) {
        lock_step_more(p->s);
        follow(p);
        return;
    }
    p->n_clock_slices += p->s->large.phase == PUSH_RELEASE;
    status = shard_push_more(p->s, 0, &result, &state);
    if (state == SHARD_PUSH_DONE) {
        p->under_way = N_WORKERS;
        check_result(p, rank, status, &result);
    }
    follow(p);
}

/* Rows [from, to) as the reference has them now. */
static void assert_read(struct pair *p, const struct reading *r, uint32_t from, uint32_t to)
{
    struct pull *pull = make_pull(r->pull->clock, r->table, r->keys + from, to - from);
    uint8_t *want = malloc((to - from) * r->row_bytes + 1);
    uint64_t min_clock, version;
    struct err err;

    assert_non_null(want);
    pull->sections[0].codec = r->pull->sections[0].codec;
    pull->sections[0].k = r->pull->sections[0].k;
    assert_int_equal(shard_pull(p->reference, NULL, pull, want, &min_clock, &version, &err), 0);
    assert_memory_equal(r->bytes + from * r->row_bytes, want, (to - from) * r->row_bytes);
    free(want);
    free_pull(pull);
}

static void begin_reading(struct pair *p, struct reading *r)
{
    uint32_t n;
    const struct codec *codec;
    enum codec_id id = pick_codec(&p->dice);

    r->table = (uint32_t)roll(&p->dice, p->n_tables);
    r->keys = malloc(N_KEYS_MAX * sizeof *r->keys);
    n = pick_keys(&p->dice, r->table, kinds[r->table].n_large, r->keys);
    r->pull = make_pull(0, r->table, r->keys, n);
    r->pull->sections[0].codec = id;
    r->pull->sections[0].k = id == CODEC_TOPK ? 3 : 0;
    codec = codec_by_id((uint32_t)id);
    r->row_bytes = codec->row_bytes(kinds[r->table].dim, r->pull->sections[0].k);
    r->bytes = malloc(n * r->row_bytes + 1);
    assert_true(shard_pull_cost(p->s, r->pull) > SHARD_SLICE_BYTES);
    shard_pull_begin(p->s, NULL, r->pull, r->bytes, &r->run);
}

static void end_reading(struct pair *p, struct reading *r)
{
    shard_pull_end(p->s, NULL, &r->run);
    free_pull(r->pull);
    free(r->keys);
    free(r->bytes);
    *r = (struct reading){ 0 };
}

static void read_on(struct pair *p, struct reading *r)
{
    uint32_t from;
    struct err err = { 0 };

    if (!r->pull)
        begin_reading(p, r);
    from = r->run.is_open ? r->pull->sections[0].n_keys - r->run.section.keys.n_left : 0;
    assert_int_equal(shard_pull_more(p->s, &r->run, &err), 0);
    assert_read(p, r, from, r->pull->sections[0].n_keys - r->run.section.keys.n_left);
    if (r->run.done)
        end_reading(p, r);
}

static void assert_same_rows(struct pair *p, uint32_t table)
{
    uint32_t n_bytes = shard_table(p->s, table)->payload_bytes;

    assert_int_equal(table_n_rows(shard_table(p->s, table)->rows),
                     table_n_rows(shard_table(p->reference, table)->rows));
    assert_int_equal(shard_table(p->s, table)->n_pushes,
                     shard_table(p->reference, table)->n_pushes);
    assert_int_equal(shard_table(p->s, table)->rows_pushed,
                     shard_table(p->reference, table)->rows_pushed);
    for (uint64_t key = 0; key < kinds[table].n_keys; key++) {
        const struct row *row = find_row(p->s, table, key),
                         *want = find_row(p->reference, table, key);

        assert_int_equal(row != NULL, want != NULL);
        if (!row)
            continue;
        assert_true(row->stamp == want->stamp); /* version and touches */
        assert_memory_equal(row->floats, want->floats, n_bytes);
    }
}

static void assert_same(struct pair *p)
{
    shard_finish_push(p->s);
    follow(p);
    bsp_finish(p->s);
    follow(p);
    for (uint32_t i = 0; i < p->n_tables; i++)
        assert_same_rows(p, i);
    assert_int_equal(shard_version(p->s), shard_version(p->reference));
    p->reference->counters.pulls = p->s->counters.pulls; /* the reference was asked in pieces */
    p->reference->counters.rows_pulled = p->s->counters.rows_pulled;
    memcpy(p->reference->counters.value_bytes_out, p->s->counters.value_bytes_out,
           sizeof p->s->counters.value_bytes_out);
    assert_memory_equal(shard_counters(p->s), shard_counters(p->reference),
                        sizeof(struct shard_counters));
    assert_int_equal(p->s->refusal.n, p->reference->refusal.n);
    assert_string_equal(p->s->refusal.text, p->reference->refusal.text);
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        assert_int_equal(p->workers[i]->last_seq, p->references[i]->last_seq);
        assert_int_equal(p->workers[i]->clock, p->references[i]->clock);
    }
}

static void set_up(struct pair *p, uint32_t n_tables, struct dice dice)
{
    *p = (struct pair){ .dice = dice, .n_tables = n_tables, .under_way = N_WORKERS };
    enter_shard();
    p->s = make_shard(0, 1, 0);
    p->reference = make_shard(0, 1, 0);
    p->waits = (struct shard_events){ p, on_reserve, on_record };
    shard_set_events(p->reference, &p->waits);
    for (uint32_t i = 0; i < n_tables; i++) {
        struct table_spec spec = sparse_spec("", kinds[i].dim, kinds[i].optim);

        if (i == 4)
            spec = dense_spec("", kinds[i].dim, kinds[i].dim * (uint64_t)kinds[i].n_keys,
                              kinds[i].optim);
        snprintf(spec.name, sizeof spec.name, "t%u", i);
        spec.storage = kinds[i].storage;
        spec.mode = kinds[i].mode;
        spec.clip_norm = kinds[i].clip_norm;
        spec.row_decay = i == 0 || i == 1 || i == 5 ? 0.02f : 0;
        assert_int_equal(make_table(p->s, &spec), i);
        assert_int_equal(make_table(p->reference, &spec), i);
    }
    for (uint32_t rank = 0; rank < N_WORKERS; rank++) {
        p->workers[rank] = join(p->s, TABLE_SPEC_MODE_ASYNC, 0, rank, N_WORKERS);
        p->references[rank] = join(p->reference, TABLE_SPEC_MODE_ASYNC, 0, rank, N_WORKERS);
    }
}

static void tear_down(struct pair *p)
{
    enter_shard();
    while (p->under_way < N_WORKERS)
        go_on(p);
    assert_same(p);
    for (uint32_t i = 0; i < N_WORKERS; i++)
        if (p->asked[i].push)
            free_push(p->asked[i].push);
    for (uint32_t i = 0; i < N_PULLS; i++)
        while (p->readings[i].pull)
            read_on(p, &p->readings[i]);
    shard_free(p->s);
    shard_free(p->reference);
}

static void run_pair(uint32_t n_tables, const char *name)
{
    struct pair p;

    enter_shard();
    set_up(&p, n_tables, dice_of_this_run(name));
    for (uint32_t i = 0; i < 1500; i++) {
        switch (roll(&p.dice, 8)) {
        case 0:
        case 1:
        case 2:
            begin(&p, (uint32_t)roll(&p.dice, N_WORKERS));
            break;
        case 3:
            read_on(&p, &p.readings[roll(&p.dice, N_PULLS)]);
            break;
        case 4:
            if (roll(&p.dice, 20) == 0)
                assert_same(&p);
            break;
        default:
            go_on(&p);
        }
    }
    print_message(
        "%llu in slices, %llu came later, %llu overtook, %llu refused; %llu slices of "
        "clocks\n",
        (unsigned long long)p.n_large, (unsigned long long)p.n_later,
        (unsigned long long)p.n_overtaken, (unsigned long long)p.n_refused,
        (unsigned long long)p.n_clock_slices);
    assert_true(n_tables < N_TABLES || p.n_clock_slices > 0);
    assert_true(p.n_large > 5 && p.n_later > 0 && p.n_overtaken > 20 && p.n_refused > 0);
    tear_down(&p);
}

static void slices_end_in_the_same_bits_as_whole_pushes(void **state)
{
    (void)state;
    run_pair(5, "slices");
}

static void slices_leave_lock_step_as_it_is(void **state)
{
    (void)state;
    run_pair(6, "slices and lock step");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_end_in_the_same_bits_as_whole_pushes),
        cmocka_unit_test(slices_leave_lock_step_as_it_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Whole tables: rows assigned with their state, scanned in slices while they change, and which keys have one. */
#include <errno.h>
#include <math.h>

#include "fixture.h"
#include "server/core/replay.h"
#include "server/core/scan.h"
#include "server/core/shard_internal.h"
#include "server/core/weights.h"

#define DIM 3u
#define N_KEYS_MAX 4000u

/* --- assign with state --- */

/* Rows of weights and state, as they are sent. */
static struct section *add_state(struct push *push, uint32_t table, uint32_t n_floats,
                                 const uint64_t *keys, uint32_t n_keys, const float *rows,
                                 uint64_t steps)
{
    struct section *s = add_section(push, table, SECTION_ASSIGN_STATE, CODEC_FP32, n_floats,
                                    keys, n_keys, rows);

    s->steps = steps;
    return s;
}

static void a_row_is_set_with_its_state_and_trains_on_like_the_one_it_came_from(void **state)
{
    static const uint64_t keys[] = { 3, 8, 11 };
    struct dice dice = dice_of_this_run("state");

    (void)state;
    enter_shard();
    for (int optim = 0; optim < TABLE_SPEC_OPTIM_END; optim++)
        for (int storage = 0; storage < 3; storage++) {
            struct table_spec spec = sparse_spec("job/emb", DIM, (enum table_spec_optim)optim);
            struct shard *from = make_shard(0, 1, 0), *to = make_shard(0, 1, 0);
            const uint32_t n_state = table_spec_state_floats(&spec);
            float rows[3 * (4 * DIM + 2)], g[3 * DIM];
            struct worker *a = join(from, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
            struct worker *b = join(to, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
            struct push *push;

            spec.storage = (enum table_spec_storage)storage;
            assert_int_equal(optimizer_find(spec.optim)->state_floats(DIM), n_state);
            assert_int_equal(make_table(from, &spec), 0);
            assert_int_equal(make_table(to, &spec), 0);
            for (uint64_t clock = 0; clock < 5; clock++) {
                for (uint32_t i = 0; i < 3 * DIM; i++)
                    g[i] = roll_float(&dice);
                push = next_push(a, clock);
                add_gradient(push, 0, DIM, keys, 3, g);
                must_push(from, a, push);
            }
            for (uint32_t i = 0; i < 3; i++) {
                const struct row *row = find_row(from, 0, keys[i]);
                const struct shard_table *t = shard_table(from, 0);

                weights_load(spec.storage, row->floats, DIM, rows + i * (DIM + n_state));
                memcpy(rows + i * (DIM + n_state) + DIM,
                       (const uint8_t *)row->floats + t->weights_bytes,
                       n_state * sizeof(float));
            }
            push = next_push(b, 0);
            add_state(push, 0, DIM + n_state, keys, 3, rows, shard_table(from, 0)->n_pushes);
            must_push(to, b, push);
            assert_int_equal(shard_table(to, 0)->n_pushes, 5);
            for (uint64_t clock = 5; clock < 8; clock++) {
                for (uint32_t i = 0; i < 3 * DIM; i++)
                    g[i] = roll_float(&dice);
                push = next_push(a, clock);
                add_gradient(push, 0, DIM, keys, 3, g);
                must_push(from, a, push);
                push = next_push(b, clock);
                add_gradient(push, 0, DIM, keys, 3, g);
                must_push(to, b, push);
            }
            for (uint32_t i = 0; i < 3; i++)
                assert_memory_equal(find_row(from, 0, keys[i])->floats,
                                    find_row(to, 0, keys[i])->floats,
                                    shard_table(to, 0)->payload_bytes);
            shard_free(from);
            shard_free(to);
        }
}

static void steps_never_fall(void **state)
{
    struct table_spec spec = sparse_spec("job/emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    const float row[DIM] = { 1, 2, 3 };
    const uint64_t key = 5;

    (void)state;
    enter_shard();
    make_table(s, &spec);
    for (uint64_t i = 0; i < 3; i++) {
        struct push *push = next_push(w, 0);

        add_state(push, 0, DIM, &key, 1, row, (uint64_t[]){ 7, 3, 0 }[i]);
        must_push(s, w, push);
        assert_int_equal(shard_table(s, 0)->n_pushes, 7);
    }
    shard_free(s);
}

static void only_a_job_of_the_tables_name_sets_its_steps(void **state)
{
    const char *const names[] = { "job/emb", "job", "job/part/emb", "jobs/emb", "emb", "jo/b" };
    const float row[DIM] = { 1, 2, 3 };
    const uint64_t key = 5;

    (void)state;
    enter_shard();
    for (uint32_t i = 0; i < COUNT_OF(names); i++) {
        struct table_spec spec = sparse_spec(names[i], DIM, TABLE_SPEC_SGD);
        struct shard *s = make_shard(0, 1, 0);
        struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
        struct push *push = next_push(w, 0);
        struct shard_push_result result;

        make_table(s, &spec);
        add_state(push, 0, DIM, &key, 1, row, 0); /* rows are anyone's */
        must_push(s, w, push);
        push = next_push(w, 0);
        add_state(push, 0, DIM, &key, 0, row, SECTION_STEPS_MAX);
        result = try_push(s, w, push);
        assert_int_equal(result.status, i < 3 ? 0 : PS_EPROTO);
        assert_int_equal(shard_table(s, 0)->n_pushes, i < 3 ? SECTION_STEPS_MAX : 0);
        if (i >= 3)
            assert_non_null(strstr(result.text, "sets its step count"));
        shard_free(s);
    }
}

static void refuse(enum table_spec_optim optim, uint32_t n_floats, uint32_t at, float bad,
                   int status, const char *why)
{
    struct table_spec spec = sparse_spec("emb", DIM, optim);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    const uint64_t keys[] = { 5, 9 };
    struct shard_push_result result;
    float rows[2 * (3 * DIM + 1)] = { 0 };
    struct push *push = next_push(w, 0);

    make_table(s, &spec);
    rows[n_floats + at] = bad;
    add_state(push, 0, n_floats, keys, 2, rows, 0);
    result = try_push(s, w, push);
    assert_int_equal(result.status, status);
    if (!strstr(result.text, why) || (status == PS_ENAN && !strstr(result.text, "key 9")))
        fail_msg("\"%s\" does not say \"%s\"", result.text, why);
    assert_null(find_row(s, 0, 5));
    assert_int_equal(shard_version(s), 0);
    shard_free(s);
}

static void what_is_no_row_is_refused_whole_with_its_key(void **state)
{
    (void)state;
    enter_shard();
    refuse(TABLE_SPEC_ADAM, 3 * DIM, 0, NAN, PS_ENAN, "NaN or infinity");
    refuse(TABLE_SPEC_ADAM, 3 * DIM, DIM - 1, 2e15f, PS_ENAN, "beyond 1e+15");
    refuse(TABLE_SPEC_ADAM, 3 * DIM, DIM, -INFINITY, PS_ENAN, "NaN or infinity in its state");
    refuse(TABLE_SPEC_ADAM, 3 * DIM, 3 * DIM - 1, NAN, PS_ENAN, "NaN or infinity in its state");
    refuse(TABLE_SPEC_ADAM, 3 * DIM, 2 * DIM, -1, PS_ENAN, "negative sum of squares");
    refuse(TABLE_SPEC_ADAGRAD, 2 * DIM, DIM, -1, PS_ENAN, "negative sum of squares");
    refuse(TABLE_SPEC_FTRL, 3 * DIM, 3 * DIM - 1, -1, PS_ENAN, "negative sum of squares");
    refuse(TABLE_SPEC_ADAM, 2 * DIM, 0, 0, PS_EWIDTH, "bytes of values");
    refuse(TABLE_SPEC_SGD, 2 * DIM, 0, 0, PS_EWIDTH, "bytes of values");
}

/* One row, of DIM weights of 0 and a state of n equal floats `first`, then of floats `second`. */
static struct shard_push_result assign_one(struct shard *s, struct worker *w, float first,
                                           float second)
{
    const struct table_spec *spec = &shard_table(s, 0)->spec;
    const uint32_t n_state = table_spec_state_floats(spec);
    const uint64_t key = 5;
    float row[3 * DIM + 1] = { 0 };
    struct push *push = next_push(w, 0);

    for (uint32_t i = 0; i < n_state; i++)
        row[DIM + i] = i < DIM ? first : second;
    add_state(push, 0, DIM + n_state, &key, 1, row, 0);
    return try_push(s, w, push);
}

/* Each of these made weights infinite or NaN within three gradients of 0 to 1e15. */
static const struct {
    enum table_spec_optim optim;
    struct optimizer_params params;
    float first, second, fine_first, fine_second;
    bool is_huge;
    const char *why;
} bad[] = {
    { TABLE_SPEC_MOMENTUM,
      { .learning_rate = 1, .momentum = 0.9f },
      3e38f,
      0,
      -1e16f,
      0,
      true,
      "larger" },
    { TABLE_SPEC_ADAM,
      { .learning_rate = 0.001f, .epsilon = 1e-8f, .beta1 = 0.9f, .beta2 = 0.999f },
      -3e38f,
      0,
      -1e15f,
      0,
      true,
      "larger" },
    { TABLE_SPEC_FTRL,
      { .learning_rate = 0.1f, .ftrl_beta = 1 },
      -3e38f,
      0,
      1e15f,
      1e30f,
      true,
      "larger" },
    { TABLE_SPEC_FTRL,
      { .learning_rate = 0.1f, .ftrl_beta = 1 },
      0,
      3e38f,
      0,
      1e37f,
      true,
      "larger" },
    { TABLE_SPEC_FTRL,
      { .learning_rate = 0.1f, .initial_accumulator = 1 },
      5,
      0,
      5,
      1e-30f,
      false,
      "of 0 in" },
    { TABLE_SPEC_ADAGRAD,
      { .learning_rate = 0.1f, .initial_accumulator = 1 },
      0,
      0,
      1e-40f,
      0,
      false,
      "of 0 in" },
    { TABLE_SPEC_ROWWISE_ADAGRAD,
      { .learning_rate = 0.1f, .initial_accumulator = 1 },
      0,
      0,
      3e38f,
      0,
      false,
      "of 0 in" },
};

static void a_state_that_no_training_leads_to_is_refused_and_counted(void **state)
{
    (void)state;
    enter_shard();
    for (uint32_t i = 0; i < COUNT_OF(bad); i++) {
        struct table_spec spec = sparse_spec("emb", DIM, bad[i].optim);
        struct shard *s = make_shard(0, 1, 0);
        struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
        const float gradients[] = { 0, 1e15f, -1e15f };
        const uint64_t key = 5;
        struct shard_push_result result;

        s->config.gradient_max = 1e15f;
        spec.params = bad[i].params;
        make_table(s, &spec);
        result = assign_one(s, w, bad[i].first, bad[i].second);
        assert_int_equal(result.status, PS_ENAN);
        if (!strstr(result.text, bad[i].why) || !strstr(result.text, "key 5"))
            fail_msg("\"%s\" does not say \"%s\"", result.text, bad[i].why);
        assert_int_equal(shard_counters(s)->huge_pushes, bad[i].is_huge);
        assert_int_equal(shard_counters(s)->nan_pushes, !bad[i].is_huge);
        assert_int_equal(assign_one(s, w, bad[i].fine_first, bad[i].fine_second).status, 0);
        for (uint32_t k = 0; k < 3; k++) {
            const float g[DIM] = { gradients[k], gradients[k], gradients[k] };
            struct push *push = next_push(w, k);

            add_gradient(push, 0, DIM, &key, 1, g);
            must_push(s, w, push);
            assert_true(isfinite(find_row(s, 0, key)->floats[0]));
        }
        shard_free(s);
    }
}

/* The largest gradients that are admitted, of one sign and of both, and the greatest and smallest parameters. */
static void draw_extreme(struct dice *dice, struct table_spec *spec)
{
    struct optimizer_params *p = &spec->params;
    const float below_1[] = { 0, 0.5f, 0.9f, 0.9999999f, 0x1.fffffep-1f };

    p->learning_rate = (const float[]){ 1e-8f, 1e-3f, 0.1f, 1, 1e6f }[roll(dice, 5)];
    p->momentum = below_1[roll(dice, 5)];
    p->beta1 = below_1[roll(dice, 5)];
    p->beta2 = below_1[roll(dice, 5)];
    p->nesterov = (float)roll(dice, 2);
    p->epsilon = (const float[]){ 1e-10f, 1e-8f, 1e-3f, 0 }[roll(dice, 4)];
    p->initial_accumulator = (const float[]){ 0, 1e-40f, 1, 1e30f }[roll(dice, 4)];
    p->ftrl_beta = (const float[]){ 0, 1, 1e6f }[roll(dice, 3)];
    p->ftrl_l1 = (const float[]){ 0, 1, 1e6f }[roll(dice, 3)];
    p->ftrl_l2 = (const float[]){ 0, 1, 1e6f }[roll(dice, 3)];
    p->weight_decay = (const float[]){ 0, 0, 1e-3f, 1 }[roll(dice, 4)];
    spec->init = TABLE_SPEC_INIT_UNIFORM;
    spec->init_scale = (const float[]){ 0.01f, 1e6f }[roll(dice, 2)];
}

static void every_state_that_training_leads_to_is_assigned_again(void **state)
{
    struct dice dice = dice_of_this_run("reachable");
    const uint64_t key = 5;
    uint64_t n_assigned = 0;

    (void)state;
    enter_shard();
    for (uint32_t run = 0; run < 3000; run++) {
        struct table_spec spec =
            sparse_spec("emb", DIM, (enum table_spec_optim)roll(&dice, TABLE_SPEC_OPTIM_END));
        struct shard *from = make_shard(0, 1, 0), *to = make_shard(0, 1, 0);
        struct worker *a = join(from, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
        struct worker *b = join(to, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
        const uint64_t kind = roll(&dice, 4), n_steps = 1 + roll(&dice, 40);
        float row[4 * DIM + 2];
        uint32_t n_state;
        bool is_sane = true;

        from->config.gradient_max = to->config.gradient_max = 1e15f;
        do
            draw_extreme(&dice, &spec);
        while (table_spec_check_new(&spec, NULL) != 0);
        n_state = table_spec_state_floats(&spec);
        make_table(from, &spec);
        make_table(to, &spec);
        for (uint64_t clock = 0; clock < n_steps; clock++) {
            struct push *push = next_push(a, clock);
            float g[DIM];

            for (uint32_t i = 0; i < DIM; i++)
                g[i] = kind == 0   ? 1e15f
                       : kind == 1 ? (roll(&dice, 2) ? 1e15f : -1e15f)
                       : kind == 2 ? (clock ? 1e-30f : -1e15f)
                                   : (clock % 7 ? 0 : 1e-20f);
            add_gradient(push, 0, DIM, &key, 1, g);
            must_push(from, a, push);
        }
        memcpy(row, find_row(from, 0, key)->floats, (DIM + n_state) * sizeof *row);
        for (uint32_t i = 0; i < DIM + n_state; i++)
            is_sane = is_sane && isfinite(row[i]) && (i >= DIM || fabsf(row[i]) <= 1e15f);
        if (is_sane) { /* else the weights themselves are not assigned */
            struct push *push = next_push(b, 0);

            add_state(push, 0, DIM + n_state, &key, 1, row, 0);
            must_push(to, b, push);
            assert_memory_equal(find_row(to, 0, key)->floats, row,
                                (DIM + n_state) * sizeof *row);
            n_assigned++;
        }
        shard_free(from);
        shard_free(to);
    }
    assert_true(n_assigned > 1000);
}

/* A log may have what an older psd admitted. */
static void a_log_with_any_finite_state_is_replayed(void **state)
{
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_ADAM);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    const float rows[][3 * DIM] = {
        { 1, 1, 1, 3e38f, -3e38f, 3e38f, 0, 0, 0 },
        { 1, 1, 1, 0, 0, 0, INFINITY, 0, 0 },
    };
    const uint64_t key = 5;
    struct err err = { 0 };

    (void)state;
    enter_shard();
    make_table(s, &spec);
    replay_begin(s);
    for (uint32_t i = 0; i < 2; i++) {
        struct push *push = next_push(w, 0);
        const struct shard_event event = { .type = SHARD_EVENT_PUSH,
                                           .version = 1,
                                           .push = { .worker = { "job", 0, 1 },
                                                     .push = push } };

        add_state(push, 0, 3 * DIM, &key, 1, rows[i], SECTION_STEPS_MAX); /* by any job */
        assert_int_equal(shard_replay(s, &event, 1, &err), i ? PS_ECORRUPT : 0);
        free_push(push);
    }
    replay_end(s, 1);
    assert_memory_equal(find_row(s, 0, key)->floats, rows[0], sizeof rows[0]);
    shard_free(s);
}

/* --- presence --- */

static void a_pull_says_which_keys_have_a_row(void **state)
{
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct dice dice = dice_of_this_run("presence");
    uint64_t keys[700], there[700], n_there = 0, version, min_clock;
    float rows[700 * DIM];
    uint8_t plain[700 * DIM * 4], marked[2 * (sizeof plain + 88)];
    struct err err = { 0 };
    struct pull *pull;
    struct push *push;
    size_t value_bytes[2];

    (void)state;
    enter_shard();
    make_table(s, &spec);
    for (uint32_t i = 0; i < 700; i++) {
        keys[i] = i ? keys[i - 1] + 1 + roll(&dice, 5) : 0;
        if (roll(&dice, 2))
            there[n_there++] = keys[i];
    }
    for (uint32_t i = 0; i < 700 * DIM; i++)
        rows[i] = roll_float(&dice);
    push = next_push(w, 0);
    add_assign(push, 0, DIM, there, (uint32_t)n_there, rows);
    must_push(s, w, push);

    pull = make_pull(0, 0, keys, 700);
    assert_int_equal(shard_pull(s, NULL, pull, plain, &min_clock, &version, &err), 0);
    pull->sections[0].present = true;
    pull->sections[1] = pull->sections[0]; /* borrows its keys */
    pull->n_sections = 2;
    assert_int_equal(shard_pull_plan(s, pull, SIZE_MAX / 2, value_bytes, &err), 0);
    assert_int_equal(value_bytes[0], sizeof plain + 88);
    memset(marked, 0xa5, sizeof marked);
    assert_int_equal(shard_pull(s, NULL, pull, marked, &min_clock, &version, &err), 0);
    for (uint32_t k = 0; k < 2; k++) {
        const uint8_t *values = marked + k * value_bytes[0], *bits = values + sizeof plain;

        assert_memory_equal(values, plain, sizeof plain);
        for (uint32_t i = 0; i < 704; i++)
            assert_int_equal(bits[i / 8] >> i % 8 & 1,
                             i < 700 && find_row(s, 0, keys[i]) != NULL);
    }
    pull->n_sections = 1;
    free_pull(pull);
    shard_free(s);
}

/* --- scan --- */

struct seen {
    uint32_t *n; /* owned: of each key below n_keys */
    uint64_t n_keys, n_rows, n_slices, version;
    uint32_t row_floats;
    float *last; /* owned: the rows as they came last */
};

/* One slice; true while the scan goes on. */
static bool scan_once(struct shard *s, uint32_t scan_bytes, bool with_state, uint64_t *cursor,
                      struct seen *seen)
{
    static uint8_t dst[SECTION_SCAN_HEAD_BYTES + SHARD_SLICE_BYTES + 4096];
    struct pull *pull = make_pull(0, 0, NULL, 0);
    struct section *section = &pull->sections[0];
    uint64_t version, min_clock, key;
    size_t value_bytes;
    uint32_t n, flags;
    struct err err = { 0 };
    const uint8_t *rows;

    section->scan_bytes = scan_bytes;
    section->cursor = *cursor;
    section->state = with_state;
    assert_int_equal(shard_pull_plan(s, pull, sizeof dst, &value_bytes, &err), 0);
    assert_true(shard_pull_cost(s, pull) > SHARD_SLICE_BYTES); /* a slice of its own */
    assert_int_equal(shard_pull(s, NULL, pull, dst, &min_clock, &version, &err), 0);
    memcpy(&seen->version, dst, 8);
    memcpy(&n, dst + 16, 4);
    memcpy(&flags, dst + 20, 4);
    assert_true(SECTION_SCAN_HEAD_BYTES + n * (8 + seen->row_floats * sizeof(float)) <=
                value_bytes);
    rows = dst + SECTION_SCAN_HEAD_BYTES + 8 * (size_t)n;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(&key, dst + SECTION_SCAN_HEAD_BYTES + 8 * i, 8);
        assert_true(key < seen->n_keys);
        seen->n[key]++;
        memcpy(seen->last + key * seen->row_floats, rows + i * seen->row_floats * sizeof(float),
               seen->row_floats * sizeof(float));
    }
    seen->n_rows += n;
    seen->n_slices++;
    memcpy(&key, dst + 8, 8);
    assert_true(flags & SECTION_SCAN_END || key > *cursor);
    *cursor = key;
    free_pull(pull);
    return !(flags & SECTION_SCAN_END);
}

static struct seen seen_of(uint64_t n_keys, uint32_t row_floats)
{
    return (struct seen){ .n = memory_alloc(n_keys * sizeof(uint32_t)),
                          .n_keys = n_keys,
                          .row_floats = row_floats,
                          .last = memory_alloc(n_keys * row_floats * sizeof(float)) };
}

static void free_seen(struct seen *seen)
{
    free(seen->n);
    free(seen->last);
}

/* Rows of keys [first, first + n). */
static void push_keys(struct shard *s, struct worker *w, uint64_t first, uint32_t n,
                      float value)
{
    struct push *push = next_push(w, 0);
    uint64_t *keys = memory_alloc(n * sizeof *keys);
    float *rows = memory_alloc(n * DIM * sizeof *rows);

    for (uint32_t i = 0; i < n; i++)
        keys[i] = first + i;
    for (uint32_t i = 0; i < n * DIM; i++)
        rows[i] = value;
    add_assign(push, 0, DIM, keys, n, rows);
    must_push(s, w, push);
    free(keys);
    free(rows);
}

static void each_row_comes_once_in_slices_of_any_size(void **state)
{
    static const uint32_t n_rows[] = { 0, 1, 2, 700, 40000 },
                          sizes[] = { 1, 100, 5000, 1u << 20, UINT32_MAX };

    (void)state;
    enter_shard();
    for (uint32_t i = 0; i < COUNT_OF(n_rows); i++)
        for (uint32_t k = n_rows[i] > 1000 ? 2 : 0; k < COUNT_OF(sizes); k++) {
            struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_ADAGRAD);
            struct shard *s = make_shard(0, 1, 0);
            struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
            struct seen seen = seen_of(n_rows[i] + 1, 2 * DIM);
            uint64_t cursor = 0;

            make_table(s, &spec);
            for (uint32_t at = 0; at < n_rows[i]; at += 1000)
                push_keys(s, w, at, n_rows[i] - at < 1000 ? n_rows[i] - at : 1000, (float)at);
            while (scan_once(s, sizes[k], true, &cursor, &seen))
                assert_true(seen.n_slices <= 2 * n_rows[i] + 100);
            assert_int_equal(seen.n_rows, n_rows[i]);
            for (uint64_t key = 0; key < n_rows[i]; key++) {
                assert_int_equal(seen.n[key], 1);
                assert_memory_equal(seen.last + key * 2 * DIM, find_row(s, 0, key)->floats,
                                    2 * DIM * sizeof(float));
            }
            assert_int_equal(seen.version, shard_version(s));
            free_seen(&seen);
            shard_free(s);
        }
}

/* Rows are added and removed, so that segments split and rows have other numbers, between all slices. */
static void rows_that_stay_come_once_while_others_come_and_go(void **state)
{
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct dice dice = dice_of_this_run("churn");
    struct seen seen = seen_of(400000, DIM);
    uint64_t cursor = 0, n = 20000, began;

    (void)state;
    enter_shard();
    make_table(s, &spec);
    for (uint64_t at = 0; at < n; at += 1000)
        push_keys(s, w, at, 1000, 1);
    began = shard_version(s);
    while (scan_once(s, 20000, false, &cursor, &seen)) {
        assert_true(seen.version >= began);
        for (uint32_t i = 0; i < 40; i++) { /* of the later half; made again now and then */
            const uint64_t key = 10000 + roll(&dice, n - 10000);
            struct row *row;

            table_find_batch(shard_table(s, 0)->rows, &key, 1, &row);
            if (row)
                table_remove(shard_table(s, 0)->rows, row);
            if (roll(&dice, 2))
                push_keys(s, w, key, 1, 2);
        }
        if (n < 390000)
            push_keys(s, w, n, 900, 3);
        n += n < 390000 ? 900 : 0;
    }
    for (uint64_t key = 0; key < seen.n_keys; key++)
        assert_true(key < 10000 ? seen.n[key] == 1 : seen.n[key] <= 1);
    free_seen(&seen);
    shard_free(s);
}

/* A push in slices has taken effect: its rows are there changed or, if they are new, the version says that they may be
 * missing. */
static void a_scan_beside_a_push_in_slices_is_of_the_version_that_it_says(void **state)
{
    const uint32_t n = 60000, n_before = 30000;
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct seen seen = seen_of(n, DIM);
    struct push *push;
    uint64_t *keys = memory_alloc(n * sizeof *keys), cursor = 0, before;
    float *rows = memory_alloc(n * DIM * sizeof *rows);
    struct shard_push_result result;
    enum shard_push_state push_state;
    bool goes_on = true;

    (void)state;
    enter_shard();
    make_table(s, &spec);
    for (uint32_t at = 0; at < n_before; at += 1000)
        push_keys(s, w, at, 1000, 1);
    before = shard_version(s);
    for (uint32_t i = 0; i < n; i++)
        keys[i] = i;
    for (uint32_t i = 0; i < n * DIM; i++)
        rows[i] = 2;
    push = next_push(w, 0);
    add_assign(push, 0, DIM, keys, n, rows);
    assert_int_equal(shard_push_begin(s, w, push, 0, &result, &push_state), 0);
    while (shard_version(s) == before) {
        assert_int_equal(push_state, SHARD_PUSH_RUNNING);
        assert_int_equal(shard_push_more(s, 0, &result, &push_state), 0);
    }
    assert_int_equal(push_state, SHARD_PUSH_RUNNING);
    while (goes_on) {
        goes_on = scan_once(s, 50000, false, &cursor, &seen);
        assert_int_equal(seen.version, push_state == SHARD_PUSH_RUNNING ? before : before + 1);
        if (push_state == SHARD_PUSH_RUNNING && seen.n_slices % 4 == 0)
            assert_int_equal(shard_push_more(s, 0, &result, &push_state), 0);
    }
    for (uint32_t key = 0; key < n; key++) {
        assert_true(key < n_before ? seen.n[key] == 1 : seen.n[key] <= 1);
        if (seen.n[key])
            assert_true(seen.last[key * DIM] == 2.0f);
    }
    while (push_state == SHARD_PUSH_RUNNING)
        assert_int_equal(shard_push_more(s, 0, &result, &push_state), 0);
    free_push(push);
    free(keys);
    free(rows);
    free_seen(&seen);
    shard_free(s);
}

/* Keys that were chosen so that all fall into the same place of the order, as far as that goes. */
static void keys_chosen_on_purpose_are_scanned_too(void **state)
{
    struct table_spec spec = sparse_spec("emb", 1, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    static const uint32_t n_wanted[] = { 3, 300 }; /* searched for, and guessed at first */
    uint64_t keys[600];
    const float one = 1;
    struct row *found[300];

    (void)state;
    enter_shard();
    make_table(s, &spec);
    /* The finaliser of hash_mix() backwards, for hashes that agree in the bits that an order begins with. */
    for (uint64_t i = 0; i < 600; i++) {
        uint64_t order = UINT64_C(0x5aa5000000000000) + i * 3, x = order >> 12 | order << 52;

        x = x ^ x >> 31 ^ x >> 62;
        x *= UINT64_C(0x319642b2d24d8ec3);
        x = x ^ x >> 27 ^ x >> 54;
        x *= UINT64_C(0x96de1b173f119089);
        x = x ^ x >> 30 ^ x >> 60;
        keys[i] = x - UINT64_C(0x9e3779b97f4a7c15);
        assert_true(hash_index_order(keys[i]) == order);
        struct push *push = next_push(w, 0);
        add_assign(push, 0, 1, &keys[i], 1, &one);
        must_push(s, w, push);
    }
    for (uint32_t k = 0; k < COUNT_OF(n_wanted); k++) {
        uint64_t cursor = 0, n = 0;

        do {
            uint64_t last, from = cursor, cost = 0;
            uint32_t got =
                table_range(shard_table(s, 0)->rows, cursor, n_wanted[k], found, &last, &cost);

            assert_true(got <= n_wanted[k]);
            for (uint32_t i = 0; i < got; i++) {
                assert_true(hash_index_order(found[i]->key) >= from);
                assert_true(hash_index_order(found[i]->key) <= last);
            }
            n += got;
            cursor = last + 1;
        } while (cursor);
        assert_int_equal(n, 600);
    }
    shard_free(s);
}

/* Of a table of many segments: how often one is looked through, for how many rows. */
static void a_search_for_rows_reads_a_segment_a_few_times(void **state)
{
    static const uint32_t n_wanted[] = { 1, 30, 300, 3000, 8192 };
    const uint64_t once = (HASH_INDEX_LINE_COST + HASH_INDEX_ROW_COST * HASH_INDEX_LINE_PLACES)
                          << HASH_INDEX_LINES_SHIFT;
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct dice dice = dice_of_this_run("search");
    static struct row *found[8192];

    (void)state;
    enter_shard();
    make_table(s, &spec);
    for (uint64_t at = 0; at < 40000; at += 1000)
        push_keys(s, w, at, 1000, 1);
    for (uint32_t k = 0; k < COUNT_OF(n_wanted); k++) {
        uint64_t cost = 0, n = 0, n_searches = 0, cursor = roll(&dice, UINT64_MAX), last;

        for (; n_searches < 20; n_searches++, cursor = last + 1)
            n += table_range(shard_table(s, 0)->rows, cursor, n_wanted[k], found, &last, &cost);
        assert_true(cost >= once / 4 * n_searches); /* a segment is half full, after a split */
        assert_true(cost <= (n_wanted[k] < 100 ? 4 : 2) * once * n_searches);
        if (n_wanted[k] <= 300)
            assert_true(n >= n_searches * n_wanted[k] / 2);
    }
    shard_free(s);
}

static struct pull *make_scans(uint32_t n, enum codec_id codec, uint32_t scan_bytes)
{
    struct pull *pull = memory_alloc(sizeof *pull);

    pull->n_sections = n;
    for (uint32_t i = 0; i < n; i++)
        pull->sections[i] = (struct section){ .codec = codec,
                                              .k = codec == CODEC_TOPK,
                                              .scan_bytes = scan_bytes,
                                              .cursor = i * (UINT64_MAX / n) };
    return pull;
}

/* As while readers are connected. */
static void scans_end_when_slices_are_small(void **state)
{
    static uint8_t dst[4 * (SECTION_SCAN_HEAD_BYTES + 4096)];
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct err err = { 0 };
    struct pull *pull = make_scans(4, CODEC_FP32, 4096);
    size_t value_bytes[SECTIONS_MAX];
    uint64_t version, min_clock;

    (void)state;
    enter_shard();
    make_table(s, &spec);
    for (uint64_t key = 0; key < 3000; key++)
        assert_int_equal(restore_row(s, 0, key, key + 1, NULL), 0);
    shard_set_slice(s, SHARD_SMALL_SLICE_BYTES);
    assert_true(shard_pull_is_large(s, pull));
    assert_int_equal(shard_pull_plan(s, pull, sizeof dst, value_bytes, &err), 0);
    assert_int_equal(shard_pull(s, NULL, pull, dst, &min_clock, &version, &err), 0);
    free_pull(pull);
    shard_free(s);
}

/* Neither by their number nor by what they ask for. */
static void scans_are_planned_with_no_more_than_a_slice(void **state)
{
    enum { ROW_BYTES = 8 + 4 * DIM };
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct err err = { 0 };
    size_t value_bytes[SECTIONS_MAX];

    (void)state;
    enter_shard();
    make_table(s, &spec);
    for (uint32_t n = 1; n <= SECTIONS_MAX; n *= 2) {
        struct pull *pull = make_scans(n, CODEC_FP32, UINT32_MAX);
        size_t total = 0;

        assert_int_equal(shard_pull_plan(s, pull, 64 << 20, value_bytes, &err), 0);
        for (uint32_t i = 0; i < n; i++) {
            total += value_bytes[i];
            assert_true(value_bytes[i] >= SECTION_SCAN_HEAD_BYTES + ROW_BYTES);
        }
        assert_true(total <= SHARD_SLICE_BYTES + n * SECTION_SCAN_HEAD_BYTES);
        free_pull(pull);
    }
    shard_free(s);
}

/* Otherwise a few bytes for each of 8,192 rows of 16 KiB would be one slice. */
static void a_scan_is_bounded_by_its_rows_own_bytes_too(void **state)
{
    struct table_spec spec = sparse_spec("emb", 4096, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct pull *pull = make_scans(1, CODEC_TOPK, UINT32_MAX);
    struct err err = { 0 };
    size_t value_bytes;

    (void)state;
    enter_shard();
    make_table(s, &spec);
    assert_int_equal(shard_pull_plan(s, pull, 64 << 20, &value_bytes, &err), 0);
    assert_true(value_bytes >= SECTION_SCAN_HEAD_BYTES + 1 * (8 + 6));
    assert_true(value_bytes <= SECTION_SCAN_HEAD_BYTES + 32 * (8 + 6));
    free_pull(pull);
    shard_free(s);
}

/* A client that asks for a byte has its rows in few answers all the same. */
static void a_scan_has_a_floor_of_bytes(void **state)
{
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct seen seen = seen_of(10000, DIM);
    uint64_t cursor = 0;

    (void)state;
    enter_shard();
    make_table(s, &spec);
    for (uint64_t at = 0; at < 10000; at += 1000)
        push_keys(s, w, at, 1000, 1);
    while (scan_once(s, 1, false, &cursor, &seen))
        ;
    assert_int_equal(seen.n_rows, 10000);
    assert_true(seen.n_slices * 4096 / 3 < 10000 * (8 + 4 * DIM));
    free_seen(&seen);
    shard_free(s);
}

static void a_scan_that_fits_in_no_answer_or_memory_is_refused(void **state)
{
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct pull *pull = make_pull(0, 0, NULL, 0);
    uint8_t dst[4096];
    uint64_t min_clock, version;
    struct err err = { 0 };
    size_t value_bytes;

    (void)state;
    enter_shard();
    make_table(s, &spec);
    pull->sections[0].scan_bytes = 1000;
    assert_int_equal(shard_pull_plan(s, pull, 4000, &value_bytes, &err), PS_ETOOBIG);
    assert_int_equal(shard_pull_plan(s, pull, 4120, &value_bytes, &err), 0);
    pull->sections[0].state = true;
    pull->sections[0].codec = CODEC_BF16;
    assert_int_equal(shard_pull_plan(s, pull, 4120, &value_bytes, &err), PS_ECODEC);
    pull->sections[0].codec = CODEC_FP32;
#ifdef PS_FAULTS
    memory_fail_after(0);
    assert_int_equal(shard_pull(s, NULL, pull, dst, &min_clock, &version, &err), -ENOMEM);
    memory_fail_after(-1);
#endif
    assert_int_equal(shard_pull(s, NULL, pull, dst, &min_clock, &version, &err), 0);
    free_pull(pull);
    shard_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_is_set_with_its_state_and_trains_on_like_the_one_it_came_from),
        cmocka_unit_test(steps_never_fall),
        cmocka_unit_test(only_a_job_of_the_tables_name_sets_its_steps),
        cmocka_unit_test(what_is_no_row_is_refused_whole_with_its_key),
        cmocka_unit_test(a_state_that_no_training_leads_to_is_refused_and_counted),
        cmocka_unit_test(every_state_that_training_leads_to_is_assigned_again),
        cmocka_unit_test(a_log_with_any_finite_state_is_replayed),
        cmocka_unit_test(a_pull_says_which_keys_have_a_row),
        cmocka_unit_test(each_row_comes_once_in_slices_of_any_size),
        cmocka_unit_test(rows_that_stay_come_once_while_others_come_and_go),
        cmocka_unit_test(a_scan_beside_a_push_in_slices_is_of_the_version_that_it_says),
        cmocka_unit_test(keys_chosen_on_purpose_are_scanned_too),
        cmocka_unit_test(a_search_for_rows_reads_a_segment_a_few_times),
        cmocka_unit_test(scans_end_when_slices_are_small),
        cmocka_unit_test(scans_are_planned_with_no_more_than_a_slice),
        cmocka_unit_test(a_scan_is_bounded_by_its_rows_own_bytes_too),
        cmocka_unit_test(a_scan_has_a_floor_of_bytes),
        cmocka_unit_test(a_scan_that_fits_in_no_answer_or_memory_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

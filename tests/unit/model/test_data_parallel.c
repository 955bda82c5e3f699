/* Models on several devices, which are all the CPU here: the bits of a model for each part of the batch and plain sums
 * over them; and one device's numbers, but for roundings. */
#include <errno.h>
#include <math.h>

#include "tests/unit/model/fixture.h"

enum { TRIALS = 60 };

/* Of row u: its place and width. */
static size_t row_at(const struct fixture *f, const struct batch *b, uint32_t u,
                     uint32_t *ret_dim)
{
    size_t at = 0;

    *ret_dim = f->config.dim;
    for (uint32_t i = 0; i <= u; i++) {
        at += i ? *ret_dim : 0;
        if (f->config.n_groups)
            *ret_dim = f->config.group_dims[b->unique[i] >> 32];
    }
    return at;
}

/* ---- a model for each part ---- */

struct part {
    struct fixture f; /* of one part */
    float weight;
    double share;
};

static struct dlrm_config part_config(const struct dlrm_config *config, uint32_t d)
{
    struct dlrm_config c = *config;

    c.batch_max = (config->batch_max + config->n_devices - 1) / config->n_devices;
    c.n_devices = 0;
    c.clip_norm = c.l2_rows = 0;
    c.seed = d ? hash_mix2(config->seed, d) : config->seed;
    return c;
}

static void copy_samples(const struct batch *from, uint32_t first, uint32_t n, struct batch *to)
{
    uint32_t at = 0;

    to->n = n;
    for (uint32_t i = 0; i < n * from->n_labels; i++)
        to->label[i] = from->label[first * from->n_labels + i];
    for (uint32_t i = 0; i < n * from->n_numeric; i++)
        to->numeric[i] = from->numeric[first * from->n_numeric + i];
    for (uint32_t bag = 0; bag < n * from->n_fields; bag++) {
        const uint32_t b = first * from->n_fields + bag;

        for (uint32_t i = from->starts[b]; i < from->starts[b + 1]; i++)
            to->keys[at++] = from->keys[i];
        to->starts[bag + 1] = at;
    }
    to->n_keys = at;
    fixture_dedup(to);
}

static uint32_t find_key(const struct batch *b, uint64_t key)
{
    for (uint32_t u = 0; u < b->n_unique; u++)
        if (b->unique[u] == key)
            return u;
    return UINT32_MAX;
}

static void part_init(struct part *t, const struct fixture *whole, uint32_t d)
{
    const struct dlrm_config config = part_config(&whole->config, d);
    const uint32_t n = whole->batch.n, first = n * d / whole->config.n_devices,
                   end = n * (d + 1) / whole->config.n_devices;
    struct fixture_rng rng = { 1, 0 };

    /* Space for all rows of the whole batch. */
    fixture_init(&t->f, &config, config.batch_max, &rng);
    copy_samples(&whole->batch, first, end - first, &t->f.batch);
    free(t->f.rows), free(t->f.row_grads);
    t->f.rows = memory_alloc(whole->batch.n_unique * 64 * sizeof(float) + 1);
    t->f.row_grads = memory_alloc(whole->batch.n_unique * 64 * sizeof(float) + 1);
    if (config.wide) {
        free(t->f.wide), free(t->f.wide_grads);
        t->f.wide = memory_alloc(whole->batch.n_unique * sizeof(float) + 1);
        t->f.wide_grads = memory_alloc(whole->batch.n_unique * sizeof(float) + 1);
    }
    for (uint32_t i = 0; i < dlrm_n_tensors(t->f.m); i++)
        memcpy(dlrm_tensor(t->f.m, i)->values, dlrm_tensor(whole->m, i)->values,
               dlrm_tensor(whole->m, i)->n_floats * sizeof(float));
    for (uint32_t u = 0; u < t->f.batch.n_unique; u++) {
        const uint32_t w = find_key(&whole->batch, t->f.batch.unique[u]);
        uint32_t dim;
        const size_t to = row_at(&t->f, &t->f.batch, u, &dim),
                     from = row_at(whole, &whole->batch, w, &dim);

        memcpy(t->f.rows + to, whole->rows + from, dim * sizeof(float));
        if (config.wide)
            t->f.wide[u] = whole->wide[w];
    }
    t->weight = (float)(end - first) / (float)n;
    t->share = (double)(end - first) / n;
}

static void parts_init(struct part *parts, const struct fixture *whole)
{
    for (uint32_t d = 0; d < whole->config.n_devices; d++)
        part_init(&parts[d], whole, d);
}

static void parts_deinit(struct part *parts, uint32_t n)
{
    for (uint32_t d = 0; d < n; d++)
        fixture_deinit(&parts[d].f);
}

static void same(const char *what, float got, float want)
{
    if (memcmp(&got, &want, sizeof got) != 0)
        fail_msg("%s: %.9g, the parts' sum is %.9g", what, (double)got, (double)want);
}

static void check_row(const struct fixture *whole, const struct part *parts, uint32_t u)
{
    uint32_t dim, own;
    const size_t at = row_at(whole, &whole->batch, u, &dim);
    float wide = 0;

    for (uint32_t k = 0; k < dim; k++) {
        float sum = 0;
        bool is_first = true;

        for (uint32_t d = 0; d < whole->config.n_devices; d++) {
            const struct fixture *f = &parts[d].f;
            const uint32_t r = find_key(&f->batch, whole->batch.unique[u]);
            float term;

            if (r == UINT32_MAX)
                continue;
            term = parts[d].weight * f->row_grads[row_at(f, &f->batch, r, &own) + k];
            sum = is_first ? term : sum + term;
            is_first = false;
            if (k == 0 && whole->config.wide)
                wide += parts[d].weight * f->wide_grads[r];
        }
        if (whole->config.l2_rows > 0)
            sum += whole->config.l2_rows * whole->rows[at + k];
        same("a row's gradient", whole->row_grads[at + k], sum);
    }
    if (whole->config.wide)
        same("a first-order weight's gradient", whole->wide_grads[u], wide);
}

static void check_tensor(const struct fixture *whole, const struct part *parts, uint32_t i)
{
    for (uint32_t k = 0; k < dlrm_tensor(whole->m, i)->n_floats; k++) {
        float sum = 0;
        bool is_first = true;

        for (uint32_t d = 0; d < whole->config.n_devices; d++) {
            const float term = parts[d].weight * dlrm_tensor(parts[d].f.m, i)->grads[k];

            if (!parts[d].f.batch.n)
                continue;
            sum = is_first ? term : sum + term;
            is_first = false;
        }
        same(dlrm_tensor(whole->m, i)->name, dlrm_tensor(whole->m, i)->grads[k], sum);
    }
}

static void check_step(struct fixture *whole, struct part *parts, uint64_t number)
{
    double loss = 0;

    fixture_step(whole, number);
    for (uint32_t d = 0; d < whole->config.n_devices; d++)
        if (parts[d].f.batch.n) {
            fixture_step(&parts[d].f, number);
            loss += parts[d].f.loss * parts[d].f.batch.n / whole->batch.n;
        }
    assert_memory_equal(&whole->loss, &loss, sizeof loss);
    for (uint32_t i = 0; i < dlrm_n_tensors(whole->m); i++)
        check_tensor(whole, parts, i);
    for (uint32_t u = 0; u < whole->batch.n_unique; u++)
        check_row(whole, parts, u);
}

static void check_prediction(struct fixture *whole, struct part *parts)
{
    const uint32_t n_tasks = dlrm_n_tasks(whole->m);
    const float *probs = dlrm_probs(whole->m);

    fixture_predict(whole);
    for (uint32_t d = 0; d < whole->config.n_devices; d++) {
        if (!parts[d].f.batch.n)
            continue;
        fixture_predict(&parts[d].f);
        for (uint32_t i = 0; i < parts[d].f.batch.n * n_tasks; i++)
            same("a probability", *probs++, dlrm_probs(parts[d].f.m)[i]);
    }
    assert_ptr_equal(probs, dlrm_probs(whole->m) + whole->batch.n * n_tasks);
}

static struct dlrm_config random_config(struct fixture_rng *rng)
{
    struct dlrm_config c = fixture_config(rng, (struct fixture_most){ 24, 9, 9 });

    if (fixture_below(rng, 2) && !c.wide && dlrm_config_parts(c.kind) & MODEL_TOP) {
        c.n_tasks = 2;
        c.task_weights[0] = 1, c.task_weights[1] = 0.5f;
    }
    if (dlrm_config_parts(c.kind) & MODEL_EMBEDDINGS) {
        c.means[0] = fixture_below(rng, 2) ? 1 + fixture_below(rng, 15) : 0;
        c.n_groups = fixture_below(rng, 5);
    }
    for (uint32_t g = 0; g < c.n_groups; g++)
        c.group_dims[g] = fixture_below(rng, 3) ? 1 + fixture_below(rng, 12) : c.dim;
    c.n_devices = 2 + fixture_below(rng, 3);
    for (uint32_t d = 0; d < c.n_devices; d++)
        c.devices[d] = d;
    c.n_threads = 1 + fixture_below(rng, 3);
    return c;
}

/* A second batch, with which arrays grow, or do not. */
static void any_batch_has_the_bits_of_a_model_for_each_part(void **state)
{
    const uint64_t seed = seed_of_run(4711);
    uint32_t n_checked = 0;

    (void)state;
    for (uint64_t i = 0; i < TRIALS; i++) {
        struct fixture_rng rng = { hash_mix2(seed, i), 0 };
        const struct dlrm_config config = random_config(&rng);
        struct part parts[DLRM_DEVICES_MAX];
        struct fixture whole;

        if (dlrm_config_check(&config, NULL))
            continue;
        fixture_init(&whole, &config, 1 + fixture_below(&rng, config.batch_max), &rng);
        parts_init(parts, &whole);
        check_step(&whole, parts, 3);
        check_prediction(&whole, parts);
        check_step(&whole, parts, 4);
        parts_deinit(parts, config.n_devices);
        fixture_deinit(&whole);
        n_checked++;
    }
    assert_true(n_checked > TRIALS / 2);
}

/* ---- against one device ---- */

/* Batch norm and dropout look at parts; the norm of all gradients is the batch's. */
static void any_batch_has_the_gradients_of_one_device_but_for_roundings(void **state)
{
    const uint64_t seed = seed_of_run(4712);

    (void)state;
    for (uint64_t i = 0; i < TRIALS; i++) {
        struct fixture_rng rng = { hash_mix2(seed, i), 0 }, same_rng;
        struct dlrm_config config = random_config(&rng);
        struct fixture several, one;
        uint32_t n;

        config.batch_norm = false;
        config.dropout = 0;
        config.clip_norm = fixture_below(&rng, 2) ? 0.05f : 0;
        if (dlrm_config_check(&config, NULL))
            continue;
        n = 1 + fixture_below(&rng, config.batch_max);
        same_rng = rng;
        fixture_init(&several, &config, n, &rng);
        config.n_devices = 0;
        fixture_init(&one, &config, n, &same_rng);
        for (uint64_t step = 0; step < 2; step++) {
            fixture_step(&several, step);
            fixture_step(&one, step);
            assert_true(fabs(several.loss - one.loss) <= 1e-6 * fabs(one.loss));
            fixture_near("dense gradients", dlrm_tensor(several.m, 0)->grads,
                         dlrm_tensor(one.m, 0)->grads, dlrm_dense_floats(one.m), 1e-5);
            fixture_near("row gradients", several.row_grads, one.row_grads,
                         dlrm_config_row_floats(&one.config, &one.batch), 1e-5);
            if (config.wide)
                fixture_near("wide gradients", several.wide_grads, one.wide_grads,
                             one.batch.n_unique, 1e-5);
        }
        fixture_predict(&several);
        fixture_predict(&one);
        fixture_near("probabilities", dlrm_probs(several.m), dlrm_probs(one.m),
                     one.batch.n * one.batch.n_labels, 1e-5);
        fixture_deinit(&several);
        fixture_deinit(&one);
    }
}

/* A sample for three of five devices; the weights of a step in which a device had none are not those that it has. */
static void a_device_without_samples_has_the_weights_of_the_next_step(void **state)
{
    struct dlrm_config config = fixture_plain;
    struct fixture_rng rng = { 5, 0 };
    struct fixture f;
    struct dlrm_step step;
    struct part parts[5];

    (void)state;
    config.n_devices = 5;
    fixture_init(&f, &config, 3, &rng);
    fixture_step(&f, 0);
    fixture_fill(&rng, dlrm_dense(f.m), dlrm_dense_floats(f.m), 0.3f);
    step = fixture_step_of(&f, 1);
    assert_int_equal(dlrm_step(f.m, &step, &f.loss), 0);
    fixture_batch_fill(&f.batch, 4, &rng);
    f.rows = memory_try_realloc(f.rows, f.batch.n_unique * 8 * sizeof(float));
    f.row_grads = memory_try_realloc(f.row_grads, f.batch.n_unique * 8 * sizeof(float));
    fixture_fill(&rng, f.rows, f.batch.n_unique * 8, 1);
    parts_init(parts, &f);
    check_step(&f, parts, 2);
    parts_deinit(parts, 5);
    fixture_deinit(&f);
}

static void its_devices_are_named(void **state)
{
    struct dlrm_config config = fixture_plain;
    struct err err;
    struct dlrm *m;

    (void)state;
    config.n_devices = 3;
    config.devices[1] = 4, config.devices[2] = 1;
    assert_int_equal(dlrm_new(&config, &m, &err), 0);
    assert_non_null(
        strstr(dlrm_device(m), "; each batch is divided among 3 devices: cpu:0, cpu:4, cpu:1"));
    assert_false(dlrm_encodes(m));
    assert_int_equal(dlrm_keep_rows(m, 1 << 20), 0);
    assert_false(dlrm_keeps_rows(m));
    dlrm_free(m);
    config.n_devices = DLRM_DEVICES_MAX + 1;
    assert_int_equal(dlrm_new(&config, &m, &err), PS_ESETTING);
    assert_string_equal(err.text, "model: the number of devices is 17, expected 0 to 16");
}

#ifdef PS_FAULTS
static void every_failing_allocation_is_reported_and_can_be_made_good(void **state)
{
    struct dlrm_config config = fixture_plain;
    long k = 0;
    bool failed = true;

    (void)state;
    config.n_devices = 2;
    config.wide = true;
    for (; failed; k++) {
        struct fixture_rng rng = { 9, 0 };
        struct fixture f;
        struct dlrm_step step;
        struct dlrm *m;
        struct err err;
        int status;

        memory_fail_after(k);
        status = dlrm_new(&config, &m, &err);
        memory_fail_after(-1);
        failed = status != 0;
        assert_true(!failed || status == -ENOMEM);
        if (!failed)
            dlrm_free(m);
        if (k > 20)
            continue;
        fixture_init(&f, &config, 16, &rng);
        step = fixture_step_of(&f, 0);
        memory_fail_after(k);
        status = dlrm_step(f.m, &step, &f.loss);
        memory_fail_after(-1);
        assert_true(status ? status == -ENOMEM : k > 10);
        assert_int_equal(dlrm_step(f.m, &step, &f.loss), 0);
        fixture_deinit(&f);
    }
    assert_true(k > 40);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_batch_has_the_bits_of_a_model_for_each_part),
        cmocka_unit_test(any_batch_has_the_gradients_of_one_device_but_for_roundings),
        cmocka_unit_test(a_device_without_samples_has_the_weights_of_the_next_step),
        cmocka_unit_test(its_devices_are_named),
#ifdef PS_FAULTS
        cmocka_unit_test(every_failing_allocation_is_reported_and_can_be_made_good),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "tests/unit/model/row_cache_world.h"
#define WORLD_NOWHERE UINT32_MAX
#define WORLD_PARTS 3u

/* The key's place goes, or it is given one that nobody has. */
static void world_lose_or_find_place(struct world *w, uint32_t key)
{
    if (w->place_of[key] != WORLD_NOWHERE && fixture_below(&w->rng, 6) == 0) {
        w->is_taken[w->place_of[key]] = false;
        w->place_of[key] = WORLD_NOWHERE;
    }
    for (uint32_t n = 0; n < 3 && w->place_of[key] == WORLD_NOWHERE; n++) {
        const uint32_t place = fixture_below(&w->rng, WORLD_KEYS);

        if (w->is_taken[place])
            continue;
        w->is_taken[place] = true;
        w->place_of[key] = place;
        w->version_of[key] = 0;
    }
}

static void world_answer_row(struct world *w, struct world_step *s, uint32_t r)
{
    const uint32_t key = (uint32_t)s->batch.unique[r], place = w->place_of[key];
    struct fixture_rng bits = { key, 0 };
    uint64_t version;

    if (place == WORLD_NOWHERE || !w->version_of[key] || fixture_below(&w->rng, 3) == 0)
        w->version_of[key] = w->n_versions;
    version = w->version_of[key];
    bits.i = version << 32;
    fixture_fill(&bits, s->rows + (size_t)r * w->config.dim, w->config.dim, 0.7f);
    s->versions[r] = place == WORLD_NOWHERE ? 0 : version;
    s->places[r] = place == WORLD_NOWHERE ? fixture_below(&w->rng, WORLD_KEYS) : place;
    if (place >= w->n_places)
        return;
    s->is_there[r] = w->device[place] == version;
    s->n_there += s->is_there[r];
    w->device[place] = version;
}

static void world_draw_step(struct world *w, struct world_step *s)
{
    struct batch *b = &s->batch;

    fixture_batch_init(b, w->config.batch_max, w->config.n_numeric, w->config.n_fields,
                       3 * w->config.batch_max * w->config.n_fields);
    fixture_batch_fill(b, WORLD_SAMPLES, &w->rng);
    s->rows = memory_alloc(b->n_unique * world_row_bytes(w) + 1);
    s->versions = memory_alloc(b->n_unique * sizeof *s->versions + 1);
    s->places = memory_alloc(b->n_unique * sizeof *s->places + 1);
    w->n_versions++;
    for (uint32_t key = 0; key < WORLD_KEYS; key++)
        world_lose_or_find_place(w, key);
    for (uint32_t r = 0; r < b->n_unique; r++)
        world_answer_row(w, s, r);
}

void world_init(struct world *w, uint32_t dim, uint32_t n_places, uint64_t seed)
{
    *w = (struct world){ .config = { .batch_max = WORLD_SAMPLES,
                                     .n_numeric = 2,
                                     .n_fields = 3,
                                     .dim = dim,
                                     .n_bottom = 1,
                                     .bottom = { 5 },
                                     .n_top = 1,
                                     .top = { 6 },
                                     .seed = 11,
                                     .n_threads = 1 },
                         .rng = { seed, 0 },
                         .n_places = n_places };
    for (uint32_t key = 0; key < WORLD_KEYS; key++)
        w->place_of[key] = WORLD_NOWHERE;
    for (uint32_t i = 0; i < WORLD_STEPS; i++)
        world_draw_step(w, &w->steps[i]);
}

uint64_t world_n_rows(const struct world *w)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < WORLD_STEPS; i++)
        n += w->steps[i].batch.n_unique;
    return n;
}

uint64_t world_n_there(const struct world *w)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < WORLD_STEPS; i++)
        n += w->steps[i].n_there;
    return n;
}

void world_deinit(struct world *w)
{
    for (uint32_t i = 0; i < WORLD_STEPS; i++) {
        fixture_batch_deinit(&w->steps[i].batch);
        free(w->steps[i].rows);
        free(w->steps[i].versions);
        free(w->steps[i].places);
    }
}

struct world_run {
    const struct world *w;
    const struct world_way *way;
    struct dlrm *m;
    float *values;
    float *given[WORLD_STEPS]; /* the host's side of rows, pinned */
    struct codec_rows parts[WORLD_STEPS][WORLD_PARTS];
    uint32_t *to[WORLD_STEPS]; /* pinned */
    struct dlrm_pulled pulled[WORLD_STEPS];
};

static float *world_give(const struct world_run *run, const struct world_step *s)
{
    const size_t row_bytes = world_row_bytes(run->w);
    float *rows = dlrm_host_alloc(run->m, (s->batch.n_unique + 1) * row_bytes);

    if (!rows)
        return NULL;
    memcpy(rows, s->rows, s->batch.n_unique * row_bytes);
    for (uint32_t r = 0; r < s->batch.n_unique && run->way->blanks; r++)
        if (s->is_there[r])
            memset((uint8_t *)rows + r * row_bytes, 0xff, row_bytes);
    return rows;
}

/* An allocation that was to fail has failed; those behind it are well. */
static void world_heal(void)
{
#ifdef PS_FAULTS
    memory_fail_after(-1);
#endif
}

/* In place of `given`: row k of what is sent is the (7 k)-th of those that there are; part 1 is empty. */
static bool world_send(struct world_run *run, uint32_t i)
{
    const struct world_step *s = &run->w->steps[i];
    const uint32_t n = s->batch.n_unique, dim = run->w->config.dim, first = n / 3;
    uint32_t by = 7;

    run->to[i] = dlrm_host_alloc(run->m, (n + 1) * sizeof *run->to[i]);
    if (!run->to[i])
        return false;
    while (n && n % by == 0)
        by += 4;
    for (uint32_t k = 0; k < n; k++) {
        run->to[i][k] = k * by % n;
        memcpy(run->given[i] + (size_t)k * dim, s->rows + (size_t)run->to[i][k] * dim,
               world_row_bytes(run->w));
    }
    run->parts[i][0] = (struct codec_rows){ (void *)run->given[i], first };
    run->parts[i][2] =
        (struct codec_rows){ (void *)(run->given[i] + (size_t)first * dim), n - first };
    run->pulled[i] = (struct dlrm_pulled){ CODEC_FP32, WORLD_PARTS, run->parts[i], run->to[i] };
    return true;
}

static int world_begin(struct world_run *run, struct world_end *end, uint32_t i)
{
    const struct world_step *s = &run->w->steps[i];
    struct dlrm_step step = { .batch = &s->batch,
                              .row_grads = end->row_grads[i],
                              .versions = s->versions,
                              .places = s->places,
                              .number = i,
                              .keeps_dense = i > 0 };

    run->given[i] = world_give(run, s);
    if (!run->given[i])
        return -ENOMEM;
    step.rows = run->given[i];
    if (run->way->pulls) {
        if (!world_send(run, i))
            return -ENOMEM;
        step.rows = NULL;
        step.pulled = &run->pulled[i];
    }
    dlrm_use(run->m, run->values, end->grads[i]);
    return dlrm_step_begin(run->m, i % dlrm_n_buffer_sets(run->m), &step);
}

static void world_end_step(struct world_run *run, struct world_end *end, uint32_t i)
{
    if (!end->status[i])
        end->status[i] = dlrm_step_end(run->m, i % dlrm_n_buffer_sets(run->m), &end->losses[i]);
}

/* As many steps at a time as the device takes. */
static void world_steps(struct world_run *run, struct world_end *end)
{
    const uint32_t n_sets = dlrm_n_buffer_sets(run->m);

    for (uint32_t i = 0; i < WORLD_STEPS + n_sets; i++) {
        if (i >= n_sets)
            world_end_step(run, end, i - n_sets);
        if (i < WORLD_STEPS)
            end->status[i] = world_begin(run, end, i);
        if (i < WORLD_STEPS && end->status[i])
            world_heal();
    }
}

bool world_play(const struct world *w, const struct world_way *way, struct world_end *end)
{
    struct world_run run = { .w = w, .way = way };
    struct fixture_rng rng = { 3, 0 };
    struct err err;

    *end = (struct world_end){ 0 };
    if (dlrm_new_on(way->ops, &w->config, &run.m, &err)) {
        world_heal();
        return false;
    }
    end->n_dense = dlrm_dense_floats(run.m);
    run.values = memory_alloc(end->n_dense * sizeof(float));
    fixture_fill(&rng, run.values, end->n_dense, 0.5f);
    for (uint32_t i = 0; i < WORLD_STEPS; i++) {
        end->row_grads[i] = memory_alloc(w->steps[i].batch.n_unique * world_row_bytes(w) + 1);
        end->grads[i] = memory_alloc(end->n_dense * sizeof(float));
    }
    if (way->keeps && dlrm_keep_rows(run.m, w->n_places * world_row_bytes(w)))
        world_heal();
    if (way->pulls)
        dlrm_take_pulled(run.m);
    world_steps(&run, end);
    end->counts = dlrm_row_counts(run.m);
    for (uint32_t i = 0; i < WORLD_STEPS; i++) {
        const size_t n = w->steps[i].batch.n_unique + 1;

        dlrm_host_free(run.m, run.given[i], n * world_row_bytes(w));
        dlrm_host_free(run.m, run.to[i], n * sizeof *run.to[i]);
    }
    dlrm_free(run.m);
    free(run.values);
    return true;
}

void world_end_free(struct world_end *end)
{
    for (uint32_t i = 0; i < WORLD_STEPS; i++) {
        free(end->row_grads[i]);
        free(end->grads[i]);
    }
}

uint32_t world_n_wrong(const struct world *w, const struct world_end *got,
                       const struct world_end *want)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < WORLD_STEPS; i++) {
        const size_t n_bytes = w->steps[i].batch.n_unique * world_row_bytes(w);

        if (!got->status[i])
            n += memcmp(&got->losses[i], &want->losses[i], sizeof got->losses[i]) != 0 ||
                 memcmp(got->row_grads[i], want->row_grads[i], n_bytes) != 0 ||
                 memcmp(got->grads[i], want->grads[i], want->n_dense * sizeof(float)) != 0;
    }
    return n;
}

uint32_t world_n_failed(const struct world_end *end)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < WORLD_STEPS; i++)
        n += end->status[i] != 0;
    return n;
}

#include "tests/unit/core/golden.h"

#include <math.h>

static void golden_param(const char *name, const char *param, float *field)
{
    if (npy_has(name, "param", param))
        *field = (float)npy_param(name, param);
}

struct table_spec golden_spec(const struct golden_case *c)
{
    struct table_spec spec = sparse_spec("golden", GOLDEN_COLS, c->optim);
    struct optimizer_params *p = &spec.params;
    char kind[16];

    npy_param_text(c->name, "kind", kind, sizeof kind);
    if (strcmp(kind, "dense") == 0)
        spec = dense_spec("golden", GOLDEN_COLS, GOLDEN_FLOATS, c->optim);
    spec.init = TABLE_SPEC_INIT_ZERO;
    golden_param(c->name, "lr", &p->learning_rate);
    golden_param(c->name, "alpha", &p->learning_rate);
    golden_param(c->name, "eps", &p->epsilon);
    golden_param(c->name, "momentum", &p->momentum);
    golden_param(c->name, "weight_decay", &p->weight_decay);
    golden_param(c->name, "beta1", &p->beta1);
    golden_param(c->name, "beta2", &p->beta2);
    golden_param(c->name, "initial_accumulator", &p->initial_accumulator);
    golden_param(c->name, "lr_decay", &p->lr_decay);
    golden_param(c->name, "beta", &p->ftrl_beta);
    golden_param(c->name, "l1", &p->ftrl_l1);
    golden_param(c->name, "l2", &p->ftrl_l2);
    if (npy_has(c->name, "param", "moment_divisor")) {
        const float root = sqrtf((float)npy_param(c->name, "moment_divisor"));

        p->learning_rate *= root; /* as lr g / (sqrt(s / c) + eps) has it */
        p->epsilon *= root;
    }
    p->nesterov = strstr(c->name, "nesterov") ? 1 : 0;
    return spec;
}

struct golden_grads golden_grads_load(const char *name)
{
    struct golden_grads g = { 0 };

    if (npy_has(name, "array", "g")) {
        g.rows = npy_load(name, "g");
        return g;
    }
    g.start = npy_load(name, "co_start");
    g.idx = npy_load(name, "co_idx");
    g.rows = npy_load(name, "co_rows");
    return g;
}

void golden_grads_free(struct golden_grads *g)
{
    npy_free(&g->start);
    npy_free(&g->idx);
    npy_free(&g->rows);
}

uint32_t golden_step(struct golden_grads *g, uint32_t step, const float **ret_rows)
{
    int64_t first = 0, n = GOLDEN_ROWS;

    if (g->start.bytes) {
        first = g->start.i[step];
        n = g->start.i[step + 1] - first;
    } else {
        first = (int64_t)step * GOLDEN_ROWS;
    }
    for (int64_t i = 0; i < n; i++)
        g->keys[i] = g->start.bytes ? (uint64_t)g->idx.i[first + i] : (uint64_t)i;
    *ret_rows = g->rows.f + first * GOLDEN_COLS;
    return (uint32_t)n;
}

/* The floats of a row that this array has: of some kinds of state one for all of its weights. */
static uint32_t width_of(const struct golden_case *c, const char *name)
{
    static const char *const of_matrix[] = { "state_r", "state_R", "state_c", "state_C" };
    const bool is_sum = c->optim == TABLE_SPEC_ROWWISE_ADAGRAD || c->optim == TABLE_SPEC_SM3;

    const bool is_matrix = c->optim == TABLE_SPEC_CAME || c->optim == TABLE_SPEC_SM3_MATRIX;

    for (uint32_t i = 0; is_matrix && i < COUNT_OF(of_matrix); i++)
        if (strcmp(name, of_matrix[i]) == 0) /* 2 x 4 */
            return i < 2 ? 2 : GOLDEN_COLS / 2;
    return strcmp(name, "state_t") == 0 || (is_sum && strcmp(name, "p") != 0) ? 1 : GOLDEN_COLS;
}

void golden_check(const struct golden_case *c, uint32_t step, const float *rows,
                  uint32_t row_floats)
{
    const char *names[] = { "p",          c->states[0], c->states[1],
                            c->states[2], c->states[3], c->states[4] };
    float got[GOLDEN_FLOATS];
    uint32_t at = 0;

    for (uint32_t a = 0; a < COUNT_OF(names) && names[a]; a++) {
        uint32_t width = width_of(c, names[a]);

        for (uint32_t r = 0; r < GOLDEN_ROWS; r++)
            memcpy(got + r * width, rows + r * row_floats + at, width * sizeof *got);
        npy_check(c->name, names[a], got, (int64_t)step * GOLDEN_ROWS * width,
                  GOLDEN_ROWS * width);
        at += width;
    }
}

/* Rows of several tables made as wide as the model: rows and their gradients as the plain loop has them, bit for bit; the
 * matrices' gradients within rounding. */
#include "tests/unit/cuda/lab.h"

enum { GROUPS_MAX = 6 };

struct job {
    struct row_projection p;
    uint32_t starts[GROUPS_MAX + 1];
    float *rows, *dwide, *wide, *drows;
    void *scratch;
};

static cudaError_t run_both(void *arg)
{
    struct job *j = arg;
    cudaError_t error = kernels_project_forward(NULL, &j->p, j->rows, j->wide);

    return error
               ? error
               : kernels_project_backward(NULL, &j->p, j->rows, j->dwide, j->drows, j->scratch);
}

static uint32_t n_rows_of(const struct job *j, uint32_t g)
{
    return j->starts[g + 1] - j->starts[g];
}

static size_t n_floats(const struct job *j)
{
    size_t n = 0;

    for (uint32_t g = 0; g < j->p.n_groups; g++)
        n += (size_t)n_rows_of(j, g) * j->p.groups[g].dim;
    return n;
}

static size_t weights_bytes(const struct job *j, uint32_t g)
{
    return (size_t)j->p.dim * j->p.groups[g].dim * sizeof(float);
}

/* Groups of any widths and rows: none, one block's, parts of a block, several parts. */
static void draw(struct lab *lab, struct job *j)
{
    uint32_t *starts, n = 0;

    *j = (struct job){ .p = { .dim = 1 + lab_below(lab, 80),
                              .n_groups = 1 + lab_below(lab, GROUPS_MAX) } };
    for (uint32_t g = 0; g < j->p.n_groups; g++) {
        struct row_projection_group *group = &j->p.groups[g];

        group->dim = lab_below(lab, 3) ? 1 + lab_below(lab, 40) : j->p.dim;
        n += lab_below(lab, 3) ? lab_below(lab, 90) : lab_below(lab, 2) ? 0 : 64;
        n += lab_below(lab, 8) ? 0 : 600;
        j->starts[g + 1] = n;
        if (group->dim == j->p.dim)
            continue;
        group->w = lab_floats(lab, (size_t)j->p.dim * group->dim, 0);
        group->dw = lab_blank(lab, weights_bytes(j, g), 0);
    }
    j->p.n_rows_max = n + lab_below(lab, 70);
    starts = lab_blank(lab, sizeof j->starts, 0);
    memcpy(starts, j->starts, sizeof j->starts);
    j->p.starts = starts;
    j->rows = lab_floats(lab, n_floats(j), 0);
    j->dwide = lab_floats(lab, (size_t)n * j->p.dim, 0);
    j->wide = lab_blank(lab, (size_t)n * j->p.dim * sizeof(float), 0);
    j->drows = lab_blank(lab, n_floats(j) * sizeof(float), 0);
    j->scratch = lab_blank(lab, kernels_project_bytes(&j->p), 0);
}

static void run(struct lab *lab, struct job *j)
{
    struct lab_out outs[GROUPS_MAX + 3] = {
        { j->wide, (size_t)j->starts[j->p.n_groups] * j->p.dim * sizeof(float), NULL },
        { j->drows, n_floats(j) * sizeof(float), NULL }
    };
    uint32_t n = 2;

    for (uint32_t g = 0; g < j->p.n_groups; g++)
        if (j->p.groups[g].w)
            outs[n++] = (struct lab_out){ j->p.groups[g].dw, weights_bytes(j, g), NULL };
    lab_each_order(lab, run_both, j, outs);
}

/* Row r of a group: its numbers start at `rows`, wide ones at `wide`. */
static void check_row(const struct job *j, const struct row_projection_group *g, size_t rows,
                      size_t wide)
{
    const uint32_t dim = j->p.dim;
    float sum;

    for (uint32_t i = 0; i < dim; i++) {
        sum = 0;
        for (uint32_t k = 0; k < g->dim; k++)
            sum += j->rows[rows + k] * (g->w ? g->w[i * g->dim + k] : 0);
        lab_same(&j->wide[wide + i], g->w ? &sum : &j->rows[rows + i], 1);
    }
    for (uint32_t k = 0; k < g->dim; k++) {
        sum = 0;
        for (uint32_t i = 0; i < dim; i++)
            sum += j->dwide[wide + i] * (g->w ? g->w[i * g->dim + k] : 0);
        lab_same(&j->drows[rows + k], g->w ? &sum : &j->dwide[wide + k], 1);
    }
}

static void check_weights(struct lab *lab, const struct job *j, uint32_t g, size_t rows)
{
    const struct row_projection_group *group = &j->p.groups[g];
    const size_t n = (size_t)j->p.dim * group->dim;
    double *want = lab_blank(lab, n * sizeof *want, 0),
           *magnitude = lab_blank(lab, n * sizeof *magnitude, 0);

    for (size_t e = 0; e < n; e++) {
        want[e] = magnitude[e] = 0;
        for (uint32_t r = 0; r < n_rows_of(j, g); r++) {
            const double term =
                (double)j->dwide[(size_t)(j->starts[g] + r) * j->p.dim + e / group->dim] *
                (double)j->rows[rows + (size_t)r * group->dim + e % group->dim];

            want[e] += term;
            magnitude[e] += fabs(term);
        }
    }
    lab_near(group->dw, want, magnitude, n, 1e-6);
}

static void rows_of_all_widths_are_the_plain_loops(void **state)
{
    struct lab *lab = *state;

    for (int i = 0; i < 10; i++) {
        size_t rows = 0;
        struct job j;

        draw(lab, &j);
        run(lab, &j);
        for (uint32_t g = 0; g < j.p.n_groups; g++) {
            const struct row_projection_group *group = &j.p.groups[g];

            if (group->w)
                check_weights(lab, &j, g, rows);
            for (uint32_t r = 0; r < n_rows_of(&j, g); r++, rows += group->dim)
                check_row(&j, group, rows, (size_t)(j.starts[g] + r) * j.p.dim);
        }
        lab_sweep(lab);
    }
}

/* More memory for rows changes no bit: sums are made in parts of the rows that there are. */
static void the_space_for_rows_changes_no_bit(void **state)
{
    struct lab *lab = *state;
    float *w, *dw;
    struct job j;

    draw(lab, &j);
    j.p.n_groups = 1;
    j.p.groups[0] = (struct row_projection_group){ .dim = 5 };
    j.p.dim = 7;
    w = lab_floats(lab, 35, 0);
    j.p.groups[0].w = w;
    j.p.groups[0].dw = dw = lab_blank(lab, 35 * sizeof(float), 0);
    j.starts[1] = 700;
    j.p.starts = memcpy(lab_blank(lab, sizeof j.starts, 0), j.starts, sizeof j.starts);
    j.rows = lab_floats(lab, 700 * 5, 0);
    j.dwide = lab_floats(lab, 700 * 7, 0);
    j.wide = lab_blank(lab, 700 * 7 * sizeof(float), 0);
    j.drows = lab_blank(lab, 700 * 5 * sizeof(float), 0);
    j.p.n_rows_max = 700;
    j.scratch = lab_blank(lab, kernels_project_bytes(&j.p), 0);
    run(lab, &j);
    j.p.groups[0].dw = lab_blank(lab, 35 * sizeof(float), 0);
    j.p.n_rows_max = 5000;
    run(lab, &j);
    lab_same(j.p.groups[0].dw, dw, 35);
    lab_sweep(lab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_all_widths_are_the_plain_loops),
        cmocka_unit_test(the_space_for_rows_changes_no_bit),
    };

    return cmocka_run_group_tests(tests, lab_open, lab_close);
}

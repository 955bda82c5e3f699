/* As with optimizer.c, an optimizer is its functions and BUILDS() behind them. */
#include "server/core/optimizer_row.h"

#include <math.h>
#include <string.h>

#include "server/core/optimizer_builds.h"

/* --- sums over a row --- */

#define N_LANES 16u

typedef float lanes16 __attribute__((vector_size(64)));
typedef float lanes8 __attribute__((vector_size(32)));
typedef float lanes4 __attribute__((vector_size(16)));

/* The upper half onto the lower one until one lane is left. */
SIMD_INLINE float fold(const lanes16 *sums)
{
    lanes8 low8, high8;
    lanes4 low4, high4;

    memcpy(&low8, sums, sizeof low8);
    memcpy(&high8, (const char *)sums + sizeof low8, sizeof high8);
    low8 += high8;
    memcpy(&low4, &low8, sizeof low4);
    memcpy(&high4, (const char *)&low8 + sizeof low4, sizeof high4);
    low4 += high4;
    return (low4[0] + low4[2]) + (low4[1] + low4[3]);
}

/* In lanes, whose order of adding is the same in every build, however wide its vectors are. Said
 * as a vector, of which compilers make what they have; of a loop over an array they do not. */
SIMD_INLINE float squares_of_part(const float *restrict w, const optimizer_gradient *restrict g,
                                  uint32_t dim, float wd)
{
    lanes16 sums = { 0 }, wi, gi;
    uint32_t i = 0;

    for (; i + N_LANES <= dim; i += N_LANES) {
        memcpy(&wi, w + i, sizeof wi);
        memcpy(&gi, g + i, sizeof gi);
        gi += wd * wi;
        sums += gi * gi;
    }
    if (i < dim) {
        float square[N_LANES] = { 0 };

        for (uint32_t j = 0; i < dim; i++, j++) {
            float rest = g[i] + wd * w[i];

            square[j] = rest * rest;
        }
        memcpy(&gi, square, sizeof gi);
        sums += gi;
    }
    return fold(&sums);
}

/* Sums of longer rows are made part by part, and of the parts in double: a lane of floats that has added up many
 * thousands of squares no longer has bits for the next one. */
#define PART TABLE_SPEC_DIM_MAX

SIMD_INLINE float sum_of_squares(const float *restrict w, const optimizer_gradient *restrict g,
                                 uint32_t dim, float wd)
{
    double sum = 0;
    uint32_t i = 0;

    for (; dim - i > PART; i += PART)
        sum += (double)squares_of_part(w + i, g + i, PART, wd);
    return (float)(sum + (double)squares_of_part(w + i, g + i, dim - i, wd));
}

/* --- row-wise Adagrad --- */

/*
 * Row-wise Adagrad: one accumulator for a whole row (RWSAdagrad of facebookresearch/dlrm;
 * Gupta, Bengio, Weston 2014):
 *
 *     s <- s + mean over the row of g^2
 *     w <- w - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)
 *
 * On a dense table a row is a block, its padding included; plain Adagrad is what one wants
 * there.
 */
static uint32_t adagrad_state_floats(uint32_t dim)
{
    (void)dim;
    return 1; /* s */
}

static void adagrad_prepare(struct optimizer_step *s)
{
    s->derived[OPTIMIZER_ADAGRAD_RATE] =
        (float)((double)s->lr / (1.0 + (double)(s->t - 1) * (double)s->params->lr_decay));
}

static void adagrad_init(const float *restrict w, float *restrict sum, uint32_t dim,
                         const struct optimizer_params *p)
{
    (void)w, (void)dim;
    sum[0] = p->initial_accumulator;
}

static enum optimizer_fault adagrad_check(const optimizer_gradient *sum, uint32_t dim,
                                          const struct optimizer_params *p, double gradient)
{
    (void)dim, (void)gradient;
    return optimizer_check_sums(sum, 1, p, p->epsilon == 0.0f);
}

SIMD_INLINE void adagrad_step(float *restrict w, float *restrict sum,
                              const optimizer_gradient *restrict g, uint32_t dim,
                              const struct optimizer_step *s)
{
    const float wd = s->params->weight_decay;
    float rate;

    sum[0] += sum_of_squares(w, g, dim, wd) / (float)dim;
    rate = s->derived[OPTIMIZER_ADAGRAD_RATE] / (sqrtf(sum[0]) + s->params->epsilon);
    for (uint32_t i = 0; i < dim; i++)
        w[i] -= rate * (g[i] + wd * w[i]);
}

BUILDS(adagrad, TABLE_SPEC_ROWWISE_ADAGRAD, adagrad_prepare)
const struct optimizer *const optimizer_row_adagrad[SIMD_END] = BUILDS_OF(adagrad);

/* --- LAMB --- */

/* Beyond this norm of weights a step grows no further: the bound of the papers' phi(). Without one weights grow by a
 * factor at each step, and so beyond all bounds. */
#define NORM_MAX 0x1p20f

static inline float bounded_norm(float squares)
{
    const float norm = sqrtf(squares);

    return norm < NORM_MAX ? norm : NORM_MAX;
}

/*
 * LAMB: Adam's step, whose length in a row becomes that of the row's weights, so that large batches can have large
 * rates. You et al. 2020 (Large Batch Optimization for Deep Learning), algorithm 2, with bias correction:
 *
 *     m, v and their corrections c1, c2 as with Adam
 *     u <- m / c1 / (sqrt(v / c2) + eps) + weight_decay * w
 *     w <- w - lr * min(|w|, 2^20) / |u| * u      a norm of 0: lr * u
 */
static uint32_t lamb_state_floats(uint32_t dim)
{
    return 2 * dim; /* m, then v */
}

static void lamb_prepare(struct optimizer_step *s)
{
    const struct optimizer_corrections c = optimizer_derive_means(s);

    s->derived[OPTIMIZER_RATE] = (float)(1.0 / c.mean);
    s->derived[OPTIMIZER_ROOT_SCALE] = (float)(1.0 / c.root);
}

static void lamb_init(const float *restrict w, float *restrict state, uint32_t dim,
                      const struct optimizer_params *p)
{
    (void)w, (void)p;
    memset(state, 0, 2 * dim * sizeof *state);
}

static enum optimizer_fault lamb_check(const optimizer_gradient *state, uint32_t dim,
                                       const struct optimizer_params *p, double gradient)
{
    return optimizer_check_means(state, dim, p, gradient);
}

/* Of a step, by value: what weights are stored to cannot change it. */
struct lamb {
    float b1, rest1, b2, rest2, of_m, of_root, eps, wd;
};

SIMD_INLINE float lamb_direction(float w, float m, float v, struct lamb c)
{
    return c.of_m * m / (sqrtf(v) * c.of_root + c.eps) + c.wd * w;
}

/* n weights, at most N_LANES: m and v after the step; the squares of w and u are added to sums[0] and sums[1]. */
SIMD_INLINE void lamb_lanes(const float *restrict w, float *restrict m, float *restrict v,
                            const optimizer_gradient *restrict g, uint32_t n, struct lamb c,
                            lanes16 sums[2])
{
    float wi[N_LANES] = { 0 }, ui[N_LANES] = { 0 };
    lanes16 lanes;

    for (uint32_t j = 0; j < n; j++) {
        m[j] = c.b1 * m[j] + c.rest1 * g[j];
        v[j] = c.b2 * v[j] + c.rest2 * (g[j] * g[j]);
        wi[j] = w[j];
        ui[j] = lamb_direction(w[j], m[j], v[j], c);
    }
    memcpy(&lanes, wi, sizeof lanes);
    sums[0] += lanes * lanes;
    memcpy(&lanes, ui, sizeof lanes);
    sums[1] += lanes * lanes;
}

/* The floats of one part: m and v after the step; the squares of w and u are added to of_w and of_u. */
SIMD_INLINE void lamb_part(const float *restrict w, float *restrict m, float *restrict v,
                           const optimizer_gradient *restrict g, uint32_t dim, struct lamb c,
                           double *of_w, double *of_u)
{
    lanes16 sums[2] = { { 0 }, { 0 } };
    uint32_t i = 0;

    for (; i + N_LANES <= dim; i += N_LANES)
        lamb_lanes(w + i, m + i, v + i, g + i, N_LANES, c, sums);
    lamb_lanes(w + i, m + i, v + i, g + i, dim - i, c, sums);
    *of_w += (double)fold(&sums[0]);
    *of_u += (double)fold(&sums[1]);
}

SIMD_INLINE void lamb_step(float *restrict w, float *restrict state,
                           const optimizer_gradient *restrict g, uint32_t dim,
                           const struct optimizer_step *s)
{
    const struct lamb c = { s->derived[OPTIMIZER_BETA1], s->derived[OPTIMIZER_REST1],
                            s->derived[OPTIMIZER_BETA2], s->derived[OPTIMIZER_REST2],
                            s->derived[OPTIMIZER_RATE],  s->derived[OPTIMIZER_ROOT_SCALE],
                            s->params->epsilon,          s->params->weight_decay };
    float *m = state, *v = state + dim, norm_w, norm_u, rate;
    double of_w = 0, of_u = 0;
    uint32_t i = 0;

    for (; dim - i > PART; i += PART)
        lamb_part(w + i, m + i, v + i, g + i, PART, c, &of_w, &of_u);
    lamb_part(w + i, m + i, v + i, g + i, dim - i, c, &of_w, &of_u);
    norm_w = bounded_norm((float)of_w);
    norm_u = sqrtf((float)of_u);
    rate = norm_w > 0 && norm_u > 0 ? s->lr * (norm_w / norm_u) : s->lr;
    for (i = 0; i < dim; i++)
        w[i] -= rate * lamb_direction(w[i], m[i], v[i], c);
}

BUILDS(lamb, TABLE_SPEC_LAMB, lamb_prepare)
const struct optimizer *const optimizer_row_lamb[SIMD_END] = BUILDS_OF(lamb);

/* --- LARS --- */

/*
 * LARS: momentum SGD whose rate in a row follows the ratio of the norms of weights and gradient. You, Gitman, Ginsburg
 * 2017 (Large Batch Training of Convolutional Networks), algorithm 1, lr being the product of its global rate and its
 * trust coefficient:
 *
 *     local <- min(|w|, 2^20) / (|g| + weight_decay * min(|w|, 2^20) + eps)      a norm of 0: 1
 *     b <- mu * b + lr * local * (g + weight_decay * w)
 *     w <- w - b
 */
static uint32_t lars_state_floats(uint32_t dim)
{
    return dim; /* b */
}

static void lars_init(const float *restrict w, float *restrict b, uint32_t dim,
                      const struct optimizer_params *p)
{
    (void)w, (void)p;
    memset(b, 0, dim * sizeof *b);
}

/* A geometric sum of steps, each of at most lr * NORM_MAX, or lr * |g| of a row of zeros, of any lr and mu that the
 * table had or will have. */
#define LARS_SUM (1e6 * 0x1p24)

static enum optimizer_fault lars_check(const optimizer_gradient *b, uint32_t dim,
                                       const struct optimizer_params *p, double gradient)
{
    (void)p;
    return optimizer_check_magnitude(b, dim, (gradient + (double)NORM_MAX) * LARS_SUM);
}

SIMD_INLINE void lars_step(float *restrict w, float *restrict b,
                           const optimizer_gradient *restrict g, uint32_t dim,
                           const struct optimizer_step *s)
{
    const float mu = s->params->momentum, wd = s->params->weight_decay;
    const float norm_w = bounded_norm(sum_of_squares(w, (const optimizer_gradient *)w, dim, 0)),
                norm_g = sqrtf(sum_of_squares(w, g, dim, 0));
    const float local =
        norm_w > 0 && norm_g > 0 ? norm_w / (norm_g + wd * norm_w + s->params->epsilon) : 1;
    const float rate = s->lr * local;

    for (uint32_t i = 0; i < dim; i++) {
        float bi = mu * b[i] + rate * (g[i] + wd * w[i]);

        b[i] = bi;
        w[i] -= bi;
    }
}

BUILDS(lars, TABLE_SPEC_LARS, NULL)
const struct optimizer *const optimizer_row_lars[SIMD_END] = BUILDS_OF(lars);

/* --- SM3 --- */

/*
 * SM3: Adagrad whose sums of squares are bounded by one number for a row. Anil, Gupta, Koren, Singer 2019 (Memory-
 * Efficient Adaptive Optimization), algorithm SM3-II, a row being a cover set:
 *
 *     s_i <- mu + g_i^2
 *     w_i <- w_i - lr * g_i / (sqrt(s_i) + eps)
 *     mu <- max over the row of s_i
 *
 * Where row-wise Adagrad divides a whole row by one root, SM3 keeps apart the weights that a gradient touches.
 */
static uint32_t sm3_state_floats(uint32_t dim)
{
    (void)dim;
    return 1; /* mu */
}

static void sm3_init(const float *restrict w, float *restrict mu, uint32_t dim,
                     const struct optimizer_params *p)
{
    (void)w, (void)dim;
    mu[0] = p->initial_accumulator;
}

static enum optimizer_fault sm3_check(const optimizer_gradient *mu, uint32_t dim,
                                      const struct optimizer_params *p, double gradient)
{
    (void)dim, (void)gradient;
    return optimizer_check_sums(mu, 1, p, p->epsilon == 0.0f);
}

typedef int32_t masks16 __attribute__((vector_size(64)));

/* n weights, at most N_LANES, and the largest s_i of each lane. NaN is passed over. */
SIMD_INLINE void sm3_lanes(float *restrict w, const optimizer_gradient *restrict g, uint32_t n,
                           float mu, const struct optimizer_step *s, lanes16 *most)
{
    const float lr = s->lr, eps = s->params->epsilon, wd = s->params->weight_decay;
    float sums[N_LANES] = { 0 };
    lanes16 lanes;
    masks16 more;

    for (uint32_t j = 0; j < n; j++) {
        float gj = g[j] + wd * w[j];

        sums[j] = mu + gj * gj;
        w[j] -= lr * (gj / (sqrtf(sums[j]) + eps));
    }
    memcpy(&lanes, sums, sizeof lanes);
    more = lanes > *most;
    *most = (lanes16)((more & (masks16)lanes) | (~more & (masks16)*most));
}

SIMD_INLINE void sm3_step(float *restrict w, float *restrict mu,
                          const optimizer_gradient *restrict g, uint32_t dim,
                          const struct optimizer_step *s)
{
    const float before = mu[0];
    lanes16 most = { 0 };
    uint32_t i = 0;

    for (; i + N_LANES <= dim; i += N_LANES)
        sm3_lanes(w + i, g + i, N_LANES, before, s, &most);
    sm3_lanes(w + i, g + i, dim - i, before, s, &most);
    for (i = 0; i < N_LANES; i++)
        mu[0] = most[i] > mu[0] ? most[i] : mu[0];
}

BUILDS(sm3, TABLE_SPEC_SM3, NULL)
const struct optimizer *const optimizer_row_sm3[SIMD_END] = BUILDS_OF(sm3);

/* --- SM3 of matrices --- */

/* A row as a matrix, row by row, as square as its length allows: so many rows, at most SM3_ROWS_MAX. */
static uint32_t matrix_rows(uint32_t dim)
{
    uint32_t n = (uint32_t)sqrtf((float)dim);

    while (dim % n)
        n--;
    return n;
}

#define SM3_ROWS_MAX 128u
_Static_assert(SM3_ROWS_MAX *SM3_ROWS_MAX >= TABLE_SPEC_DIM_MAX, "rows of the largest square");

/*
 * SM3 with rows and columns as cover sets: Anil et al. 2019, algorithm SM3-II, as for the matrices of its section 4,
 * the row being one (matrix_rows()):
 *
 *     s_ij <- min(r_i, c_j) + g_ij^2
 *     w_ij <- w_ij - lr * g_ij / (sqrt(s_ij) + eps)
 *     r_i <- max over j of s_ij,   c_j <- max over i of s_ij
 *
 * The bounds are closer to Adagrad's sums than one number of a row is, for 64 floats of a block of 1,024.
 */
static uint32_t sm3_matrix_state_floats(uint32_t dim)
{
    const uint32_t n_rows = matrix_rows(dim);

    return n_rows + dim / n_rows; /* r, c */
}

static void sm3_matrix_init(const float *restrict w, float *restrict sums, uint32_t dim,
                            const struct optimizer_params *p)
{
    const uint32_t n = sm3_matrix_state_floats(dim);

    (void)w;
    for (uint32_t i = 0; i < n; i++)
        sums[i] = p->initial_accumulator;
}

static enum optimizer_fault sm3_matrix_check(const optimizer_gradient *sums, uint32_t dim,
                                             const struct optimizer_params *p, double gradient)
{
    (void)gradient;
    return optimizer_check_sums(sums, sm3_matrix_state_floats(dim), p, p->epsilon == 0.0f);
}

/* n columns, at most N_LANES, of all rows: c, which no other column asks for, and the largest s of each row so far. */
SIMD_INLINE void sm3_columns(float *restrict w, const float *restrict r, float *restrict c,
                             const optimizer_gradient *restrict g, uint32_t n, uint32_t n_rows,
                             uint32_t n_cols, float *restrict of_rows,
                             const struct optimizer_step *s)
{
    const float lr = s->lr, eps = s->params->epsilon, wd = s->params->weight_decay;
    float most[N_LANES] = { 0 };

    for (uint32_t i = 0; i < n_rows; i++, w += n_cols, g += n_cols) {
        for (uint32_t j = 0; j < n; j++) {
            const float gj = g[j] + wd * w[j];
            const float sum = (r[i] < c[j] ? r[i] : c[j]) + gj * gj;

            w[j] -= lr * (gj / (sqrtf(sum) + eps));
            most[j] = sum > most[j] ? sum : most[j];
            of_rows[i] = sum > of_rows[i] ? sum : of_rows[i];
        }
    }
    memcpy(c, most, n * sizeof *c);
}

SIMD_INLINE void sm3_matrix_step(float *restrict w, float *restrict state,
                                 const optimizer_gradient *restrict g, uint32_t dim,
                                 const struct optimizer_step *s)
{
    const uint32_t n_rows = matrix_rows(dim), n_cols = dim / n_rows;
    float of_rows[SM3_ROWS_MAX] = { 0 };

    for (uint32_t j = 0, n; j < n_cols; j += n) {
        n = n_cols - j < N_LANES ? n_cols - j : N_LANES;
        sm3_columns(w + j, state, state + n_rows + j, g + j, n, n_rows, n_cols, of_rows, s);
    }
    memcpy(state, of_rows, n_rows * sizeof *state);
}

BUILDS(sm3_matrix, TABLE_SPEC_SM3_MATRIX, NULL)
const struct optimizer *const optimizer_row_sm3_matrix[SIMD_END] = BUILDS_OF(sm3_matrix);

/* --- CAME --- */

/* The paper's, of all its tasks: what is added to squares, and how slowly the instability is forgotten. */
#define CAME_EPSILON 1e-30f
#define CAME_INSTABILITY_EPSILON 1e-16f
#define CAME_BETA3 0.9999
#define CAME_UPDATE_MAX 1e37f /* no training leads there: a state that a peer sets may */

/*
 * CAME: Adafactor's factored second moment, with steps that are longer the more the mean of the steps is trusted. Luo
 * et al. 2023 (CAME: Confidence-guided Adaptive Memory Efficient Optimization), algorithm 2, d = 1. The row is a matrix
 * (matrix_rows()); means run over a row or a column of it:
 *
 *     r <- b2 * r + (1 - b2) * row means of g^2 + 1e-30,   c likewise of columns
 *     u <- g / sqrt(r c / mean(r)),   u <- u / max(1, root mean square of u)
 *     m <- b1 * m + (1 - b1) * u
 *     R <- b3 * R + (1 - b3) * row means of (u - m)^2 + 1e-16,   C likewise of columns,   b3 = 0.9999
 *     w <- w * (1 - lr * weight_decay) - lr * m / sqrt(R C / mean(R))
 *
 * A block of 1,024 floats so has 1,152 floats of state, where Adam's has 2,048. Of a table of rows, a row decays at its
 * own steps alone.
 */
/* Where its parts stand in a row's state. */
struct came_parts {
    uint32_t n_rows, n_cols;
    float *m, *r, *c, *instable_r, *instable_c;
};

static inline struct came_parts came_parts_of(float *state, uint32_t dim)
{
    struct came_parts p = { .n_rows = matrix_rows(dim), .m = state };

    p.n_cols = dim / p.n_rows;
    p.r = p.m + dim;
    p.c = p.r + p.n_rows;
    p.instable_r = p.c + p.n_cols;
    p.instable_c = p.instable_r + p.n_rows;
    return p;
}

static uint32_t came_state_floats(uint32_t dim)
{
    const uint32_t n_rows = matrix_rows(dim);

    return dim + 2 * (n_rows + dim / n_rows); /* m, r, c, R, C */
}

static void came_prepare(struct optimizer_step *s)
{
    (void)optimizer_derive_means(s);
    s->derived[OPTIMIZER_DECAY] =
        (float)(1.0 - (double)s->lr * (double)s->params->weight_decay);
}

static void came_init(const float *restrict w, float *restrict state, uint32_t dim,
                      const struct optimizer_params *p)
{
    (void)w, (void)p;
    memset(state, 0, came_state_floats(dim) * sizeof *state);
}

/* u is at most the root of dim, as its root mean square is at most 1. */
static enum optimizer_fault came_check(const optimizer_gradient *state, uint32_t dim,
                                       const struct optimizer_params *p, double gradient)
{
    const uint32_t n_rows = matrix_rows(dim), n = n_rows + dim / n_rows;
    const double most_m = OPTIMIZER_MEAN * (sqrt((double)dim) + 1), most_u_m = 2 * most_m;
    enum optimizer_fault fault = optimizer_check_magnitude(state, dim, most_m);

    if (!fault)
        fault = optimizer_check_sums(state + dim, 2 * n, p, false);
    if (!fault)
        fault = optimizer_check_magnitude(state + dim, n,
                                          OPTIMIZER_MEAN * (gradient * gradient + 1));
    if (!fault)
        fault =
            optimizer_check_magnitude(state + dim + n, n, OPTIMIZER_MEAN * most_u_m * most_u_m);
    return fault;
}

/* The factor of row i of a factored root: sqrt(mean(r) / r[i]). */
SIMD_INLINE float row_factor(const float *r, uint32_t i, double mean)
{
    return (float)sqrt(mean / (double)r[i]);
}

SIMD_INLINE double mean_of(const float *x, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i];
    return sum / n;
}

/* r and c after the step. */
SIMD_INLINE void came_squares(const optimizer_gradient *restrict g, struct came_parts p,
                              const struct optimizer_step *s)
{
    const float b2 = s->derived[OPTIMIZER_BETA2], rest2 = s->derived[OPTIMIZER_REST2];
    const float of_column = rest2 / (float)p.n_rows;

    for (uint32_t j = 0; j < p.n_cols; j++)
        p.c[j] *= b2;
    for (uint32_t i = 0; i < p.n_rows; i++, g += p.n_cols) {
        double sum = 0;

        for (uint32_t j = 0; j < p.n_cols; j++) {
            const float square = g[j] * g[j] + CAME_EPSILON;

            sum += (double)square;
            p.c[j] += of_column * square;
        }
        p.r[i] = b2 * p.r[i] + rest2 * (float)(sum / p.n_cols);
    }
}

SIMD_INLINE float came_update(float g, float of_row, float c)
{
    const float u = g * of_row / sqrtf(c);

    return u > CAME_UPDATE_MAX ? CAME_UPDATE_MAX : u < -CAME_UPDATE_MAX ? -CAME_UPDATE_MAX : u;
}

/* What brings the root mean square of u to 1 at most. */
SIMD_INLINE float came_clip(const optimizer_gradient *restrict g, struct came_parts p,
                            double mean)
{
    double sum = 0, root;

    for (uint32_t i = 0; i < p.n_rows; i++, g += p.n_cols) {
        const float of_row = row_factor(p.r, i, mean);

        for (uint32_t j = 0; j < p.n_cols; j++) {
            const double u = (double)came_update(g[j], of_row, p.c[j]);

            sum += u * u;
        }
    }
    root = sqrt(sum / ((double)p.n_rows * p.n_cols));
    return root > 1 ? (float)(1 / root) : 1;
}

/* m, R and C after the step. */
SIMD_INLINE void came_moments(const optimizer_gradient *restrict g, struct came_parts p,
                              const struct optimizer_step *s)
{
    const float b1 = s->derived[OPTIMIZER_BETA1], rest1 = s->derived[OPTIMIZER_REST1],
                b3 = (float)CAME_BETA3, rest3 = (float)(1 - CAME_BETA3);
    const float of_column = rest3 / (float)p.n_rows;
    const double mean = mean_of(p.r, p.n_rows);
    const float clip = came_clip(g, p, mean);
    float *m = p.m;

    for (uint32_t j = 0; j < p.n_cols; j++)
        p.instable_c[j] *= b3;
    for (uint32_t i = 0; i < p.n_rows; i++, g += p.n_cols, m += p.n_cols) {
        const float of_row = row_factor(p.r, i, mean);
        double sum = 0;

        for (uint32_t j = 0; j < p.n_cols; j++) {
            const float u = came_update(g[j], of_row, p.c[j]) * clip;
            const float mj = b1 * m[j] + rest1 * u;
            const float square = (u - mj) * (u - mj) + CAME_INSTABILITY_EPSILON;

            m[j] = mj;
            sum += (double)square;
            p.instable_c[j] += of_column * square;
        }
        p.instable_r[i] = b3 * p.instable_r[i] + rest3 * (float)(sum / p.n_cols);
    }
}

SIMD_INLINE void came_step(float *restrict w, float *restrict state,
                           const optimizer_gradient *restrict g, uint32_t dim,
                           const struct optimizer_step *s)
{
    const struct came_parts p = came_parts_of(state, dim);
    const float lr = s->lr, kept = s->derived[OPTIMIZER_DECAY];
    const float *m = p.m;
    double mean;

    came_squares(g, p, s);
    came_moments(g, p, s);
    mean = mean_of(p.instable_r, p.n_rows);
    for (uint32_t i = 0; i < p.n_rows; i++, w += p.n_cols, m += p.n_cols) {
        const float of_row = row_factor(p.instable_r, i, mean);

        for (uint32_t j = 0; j < p.n_cols; j++)
            w[j] = kept * w[j] - lr * (m[j] * of_row / sqrtf(p.instable_c[j]));
    }
}

BUILDS(came, TABLE_SPEC_CAME, came_prepare)
const struct optimizer *const optimizer_row_came[SIMD_END] = BUILDS_OF(came);

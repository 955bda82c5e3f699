/*
 * A dense table that a worker pushes and pulls every so many steps: its copy here, and what the servers lack of it.
 *
 *     base     the servers' weights, as far as this worker knows them
 *     here     base, and what has become of it since: here = base + what the servers lack
 *
 * With LOCAL_TENSOR_STEPS the worker makes each step of its own optimizer on `here`, and pushes base - here, the
 * direction in which a server has to go back. With LOCAL_TENSOR_SUM `here` stays base, and gradients are added up.
 *
 *     LOCAL_TENSOR_STEPS and momentum SGD on the server (learning rate alpha, momentum beta) are SlowMo:
 *
 *         x_k+1 = x_k - gamma d(x_k)                     H times, on each worker: its optimizer's own step
 *         u     = beta u + mean over workers of (x_0 - x_H)
 *         x_0   = x_0 - alpha u
 *
 * Wang, Tantia, Ballas, Rabbat, "SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum", ICLR
 * 2020, algorithm 1, with u here gamma times the paper's, so that a rate gamma that falls does not lengthen what
 * momentum has (as in BMUF: Chen and Huo, ICASSP 2016). The optimizer's state stays with the worker ("maintained").
 *
 * Adam's second moment can be frozen at a mean over workers. Their steps are then linear in their gradients, with one
 * scale for all workers, so that the mean of x_H is where Adam with that second moment comes to by the mean gradients,
 * and what a codec leaves of a push may come with a later one:
 *
 *     v     = mean over workers of v_k / (1 - beta2^k)      once, and no float less than a hundredth of their mean
 *     m_k+1 = beta1 m_k + (1 - beta1) g_k
 *     x_k+1 = x_k - gamma m_k+1 / (1 - beta1^(k+1)) / (sqrt(v) + eps)
 *
 * That is the compressed stage of 1-bit Adam (Tang et al., ICML 2021, algorithm 1), and with H > 1 that of 0/1 Adam's
 * local steps (Lu et al., ICLR 2023), but that here the preconditioned momentum is what is merged, and that the stage
 * before has the workers' own second moments.
 *
 * LAMB and LARS have the whole table for their layer. LAMB's second moment is frozen likewise, and so is the
 * coefficient of its steps. A fresh second moment, w, goes on to say how the latter would have changed since:
 *
 *     c     = mean over workers of that of |x| / |u|, at rate 0.1          once, with v
 *     w_k   = beta2 w_k + (1 - beta2) g_k^2                                from v_k / (1 - beta2^k) at that time on
 *     r     = max over the layer of (sqrt(w_k of that time) + eps) / (sqrt(w_k) + eps), in [0.5, 4] and at most a
 *             tenth of it away from the r before; 1 at first
 *     u     = m_k+1 / (1 - beta1^(k+1)) / (sqrt(v) + eps) + decay x,       x_k+1 = x_k - gamma c r u
 *
 * With decay r becomes r q + 1 - q, q being the share of |u| that is not decay, at most 1. That is the compressed
 * stage of 1-bit LAMB (Li, Awan, Tanaka, Rajbhandari, He, HiPC 2022, algorithm 1, with the numbers and the decay of
 * its code in DeepSpeed) for one worker, and LAMB's corrections beside it. Of several workers each has an r of its own,
 * by its own gradients, where the paper makes the mean gradient out of the mean momentum.
 *
 * A mean of K workers' differences d_k is short where they have found different things, and their sum too long where
 * all have found the same. The adaptive weight is between these: 1 where all agree, K where all are orthogonal.
 *
 *     M     = mean of d_k = (x_0 - x_1) of the servers, and what was added before
 *     x_1   = x_0 - theta M,     theta = (mean of |d_k|^2) / |M|^2, in [1, K]
 *
 * theta / K is the gamma of CoCoA+ (Ma et al., ICML 2015; Snap ML, Duenner et al., NeurIPS 2018, merges likewise) with
 * which local problems need no damping of their own: its condition gamma |sum of d_k|^2 <= sum of |d_k|^2, met exactly.
 * The servers merge by the mean. Each worker adds (theta - 1) M to its copy, and to what it pushes next, together with
 * the others; one that leaves before drops it.
 */
#ifndef WORKER_CACHE_LOCAL_TENSOR_H
#define WORKER_CACHE_LOCAL_TENSOR_H

#include "common/status.h"
#include "proto/table_spec.h"

enum local_tensor_rule { LOCAL_TENSOR_STEPS, LOCAL_TENSOR_SUM };

struct local_tensor {
    struct table_spec spec; /* with the worker's own optimizer */
    enum local_tensor_rule rule;
    uint64_t n_floats;        /* of all blocks, with the last one's padding */
    float *floats;            /* owned: all of the below */
    float *base, *here, *out; /* [n_floats]; of LOCAL_TENSOR_SUM `here` is the sum */
    float *state;             /* of each block in turn */
    uint32_t state_floats;    /* of a block */
    uint64_t n_steps;
    bool is_here; /* a pull has brought it */
    bool is_frozen;
    uint32_t
        unit; /* floats that the optimizer takes for a row: a block, or the table for LAMB and LARS */
    struct local_coefficient {
        bool is_kept;         /* this table may be frozen, and has one */
        float *shared, *own;  /* [unit]: v and v_k */
        float least;          /* of the former */
        double average, rest; /* the mean of |x| / |u|; what of it is that of its start at 0 */
        double ratio;         /* r */
    } coefficient;
    float *pulled,
        *added; /* [n_floats] of an adaptive weight: what the last pull brought; (theta - 1) M, or M */
};

/* What may be asked of a table of LOCAL_TENSOR_STEPS. */
struct local_tensor_uses {
    bool may_freeze; /* the second moment, of Adam or LAMB */
    bool stretches;  /* with an adaptive weight */
};

/* -ENOMEM. */
int local_tensor_init(struct local_tensor *t, const struct table_spec *spec,
                      enum local_tensor_rule rule, struct local_tensor_uses uses) MUST_CHECK;
void local_tensor_deinit(struct local_tensor *t);

/* The servers' weights: become the base of what they lack. On return `weights` has what this worker computes with. */
void local_tensor_take(struct local_tensor *t, float *weights);

/* What this worker computes with; is_here. */
void local_tensor_read(const struct local_tensor *t, float *ret_weights);

/* The gradient of a step at this clock; is_here. */
void local_tensor_step(struct local_tensor *t, const float *gradient, uint64_t clock);

/* What is to be pushed, valid until the next call: the servers then lack nothing. is_here. */
const float *local_tensor_difference(struct local_tensor *t);

/* What freezes a table of this specification: its floats, and behind them, for LAMB, a block that begins with c. */
uint64_t local_tensor_frozen_floats(const struct table_spec *spec);

/* Of Adam and LAMB: the second moment, corrected for its start at 0, into ret[]; and frozen at these. is_here. */
void local_tensor_variance(const struct local_tensor *t, float *ret);
void local_tensor_freeze(struct local_tensor *t, const float *variance);

/* Of an adaptive weight: |d_k|^2 of what local_tensor_difference() would return, without what was added. is_here. */
double local_tensor_square(const struct local_tensor *t);
/* |M|^2, after a take(); 0 after the first one. Then the copy and `weights` get what is added at this theta. */
double local_tensor_merged_square(const struct local_tensor *t);
void local_tensor_stretch(struct local_tensor *t, double theta, float *weights);
/* Without what the last stretch() added, of which no difference() has been made. */
void local_tensor_unstretch(struct local_tensor *t);
/* In [1, n_workers]. */
double local_tensor_theta(double mean_square, double merged_square, uint32_t n_workers);

/* As before the first pull; what the servers lack is dropped. */
void local_tensor_reset(struct local_tensor *t);

#endif

/*
 * The specification of a table: the value that a job sends, a shard keeps, and a checkpoint stores. Two workers that
 * request one table must send equal specifications.
 *
 * A dense table is an array of n_floats, divided into blocks of `dim` floats. Block i is the row of key i, so all code
 * below the specification treats both kinds alike. The last block's tail is padding that is never read.
 */
#ifndef PROTO_TABLE_SPEC_H
#define PROTO_TABLE_SPEC_H

#include <stdbool.h>

#include "common/status.h"

#define TABLE_SPEC_ROW_DECAY_MIN 1e-6f /* but for 0; 1 - X has steps of 6e-8 */
#define TABLE_SPEC_NAME_MAX 128        /* with the final NUL; printable ASCII without blanks */
#define TABLE_SPEC_DIM_MAX 16384u      /* floats in a row or block, but for whole layers: */
#define TABLE_SPEC_LAYER_MAX \
    (1u << 22) /* in a block of a dense table whose optimizer is LAMB or LARS */
#define TABLE_SPEC_DENSE_BLOCK 1024u /* what psworker uses for `dim` of dense tables */
#define TABLE_SPEC_FLOATS_MAX (UINT64_C(1) << 40) /* in a dense table */
#define TABLE_SPEC_ADMIT_MAX 15u                  /* what a counter of 4 bits can tell */
#define TABLE_SPEC_RARE_MAX 255u                  /* what a row counts */

enum table_spec_kind { TABLE_SPEC_SPARSE, TABLE_SPEC_DENSE, TABLE_SPEC_KIND_END };
enum table_spec_init {
    TABLE_SPEC_INIT_ZERO,
    TABLE_SPEC_INIT_UNIFORM,
    TABLE_SPEC_INIT_NORMAL,
    TABLE_SPEC_INIT_END
};
enum table_spec_optim {
    TABLE_SPEC_SGD,
    TABLE_SPEC_MOMENTUM,
    TABLE_SPEC_ADAGRAD,
    TABLE_SPEC_ROWWISE_ADAGRAD,
    TABLE_SPEC_ADAM,
    TABLE_SPEC_FTRL,
    TABLE_SPEC_ADAMW,
    TABLE_SPEC_LION,
    TABLE_SPEC_LAMB,
    TABLE_SPEC_LARS,
    TABLE_SPEC_SM3,
    TABLE_SPEC_CAME,
    TABLE_SPEC_SM3_MATRIX,
    TABLE_SPEC_OPTIM_END
};
/* Their names, in the order of the enum, as settings list a choice. */
#define TABLE_SPEC_OPTIM_CHOICE \
    "sgd|momentum|adagrad|rowwise_adagrad|adam|ftrl|adamw|lion|lamb|lars|sm3|came|sm3_matrix"
/* Those that follow the clock, in the order of the enum, as settings list a choice. */
#define TABLE_SPEC_DECAY_CHOICE "none|linear|exp|inv_sqrt|cosine|step"
enum table_spec_decay {
    TABLE_SPEC_DECAY_NONE,
    TABLE_SPEC_DECAY_LINEAR,
    TABLE_SPEC_DECAY_EXP,
    TABLE_SPEC_DECAY_INV_SQRT,
    TABLE_SPEC_DECAY_COSINE,
    TABLE_SPEC_DECAY_STEP,
    TABLE_SPEC_DECAY_PLATEAU,
    TABLE_SPEC_DECAY_END
};

/* The storage of weights in memory (server/core/weights.h); optimizer state is always fp32. */
enum table_spec_storage {
    TABLE_SPEC_FP32,
    TABLE_SPEC_BF16,
    TABLE_SPEC_FP16,
    TABLE_SPEC_STORAGE_END
};

/* The rows that are evicted for new ones when a budget is full: none (new rows are refused), those whose last push is
 * longest ago, or those with the fewest pushes. */
enum table_spec_victims {
    TABLE_SPEC_VICTIMS_NONE,
    TABLE_SPEC_VICTIMS_OLDEST,
    TABLE_SPEC_VICTIMS_RAREST,
    TABLE_SPEC_VICTIMS_END
};

/* Consistency of one table: as the job says, or its own. */
enum table_spec_mode {
    TABLE_SPEC_MODE_JOB,
    TABLE_SPEC_MODE_ASYNC,
    TABLE_SPEC_MODE_SSP,
    TABLE_SPEC_MODE_BSP,
    TABLE_SPEC_MODE_END
};

/* The numbers that an optimizer may use; each reads those of its formula. */
struct optimizer_params {
    float learning_rate; /* before the schedule; FTRL's alpha */
    float epsilon;
    float momentum;            /* mu of momentum SGD and LARS */
    float nesterov;            /* 0 or 1 */
    float weight_decay;        /* g + weight_decay * w, unless the formula has it elsewhere */
    float beta1, beta2;        /* Adam, AdamW, LAMB, Lion, CAME */
    float initial_accumulator; /* sum of squares of Adagrad, FTRL and SM3 at the start */
    float lr_decay;            /* Adagrad: lr / (1 + (t - 1) * lr_decay) */
    float ftrl_beta, ftrl_l1, ftrl_l2;
};

/*
 * lr(c) = learning_rate * min(1, (c + 1) / warmup_clocks) * decay(x), c the push's clock and
 * x = max(0, c - decay_start):
 *
 *     none      1
 *     linear    max(decay_floor, 1 - x / decay_clocks)
 *     exp       max(decay_floor, decay_rate ^ (x / decay_clocks))
 *     inv_sqrt  max(decay_floor, 1 / sqrt(1 + x / decay_clocks))
 *     cosine    decay_floor + (1 - decay_floor) * (1 + cos(pi * min(1, x / decay_clocks))) / 2
 *     step      max(decay_floor, decay_rate ^ floor(x / decay_clocks))
 *     plateau   1: learning_rate itself falls when a worker pushes a lower one (proto/section.h, SECTION_RATE)
 *
 * cosine is that of SGDR without restarts (Loshchilov & Hutter, ICLR 2017), and, like PyTorch's CosineAnnealingLR, ends
 * at decay_clocks; step is PyTorch's StepLR.
 */
struct lr_schedule {
    uint32_t warmup_clocks; /* 0: none */
    enum table_spec_decay decay;
    uint64_t decay_start;
    uint64_t decay_clocks;
    float decay_rate, decay_floor;
};

/*
 * Rules for the admission and removal of rows. For sparse tables only; 0 switches a rule off.
 *
 *     admit     a key gets a row at its admit_touches-th push within admit_clocks clocks, counted
 *               in a sketch: those of the last half of the window always count, those before
 *               the window never, those between in part of the cases; the gradients of the pushes
 *               before are dropped and counted
 *     idle      a row goes when it was not pushed for idle_clocks clocks
 *     ttl       a row goes when it was not pushed for ttl_s seconds of the shard's time
 *     rare      a row goes when it had fewer than rare_touches pushes in rare_clocks clocks
 *     budget    max_bytes for the table over all shards, each having an equal part; when it or
 *               the node's is full, `victims` says which rows are evicted
 *
 * A row that was removed and comes back starts anew. idle and ttl end within 1/32 of their span, never early; rare has
 * a window that is longer by one pass of the sweep. The sweep removes rows (server/core/expire.h), so not at the
 * instant. Clocks are the table's: the progress of its pushes' clocks since the server began.
 */
struct table_spec_limits {
    uint32_t admit_touches; /* 0 or 1: at once; at most TABLE_SPEC_ADMIT_MAX */
    uint32_t rare_touches;  /* at most TABLE_SPEC_RARE_MAX */
    uint64_t admit_clocks, idle_clocks, rare_clocks;
    uint32_t ttl_s;
    enum table_spec_victims victims;
    uint64_t max_bytes;
};

struct table_spec {
    char name[TABLE_SPEC_NAME_MAX];
    enum table_spec_kind kind;
    uint32_t dim;      /* weights in a row; of a dense table: floats in a block */
    uint64_t n_floats; /* dense only: length of the array */
    uint64_t seed;
    enum table_spec_init init;
    float init_scale; /* uniform: in [-scale, scale); normal: standard deviation */
    enum table_spec_optim optim;
    struct optimizer_params params;
    struct lr_schedule schedule;
    float clip_norm; /* L2 bound on a row's gradient before the optimizer; 0: none */
    enum table_spec_mode mode;
    uint32_t bound; /* clocks; of TABLE_SPEC_MODE_SSP */
    enum table_spec_storage storage;
    /* Of a sparse table: the share of its weights that each row loses at each step of the table, also without a
     * gradient; 0: none. Rows then have a float of state more, their last one: the step up to which they have. */
    float row_decay;
    struct table_spec_limits limits;
};

/* The paper's or PyTorch's defaults of an optimizer, learning_rate included. */
struct optimizer_params table_spec_optim_defaults(enum table_spec_optim optim);

/* Names as settings and pages show them; NULL for a number out of range. The _find
 * functions return -1 for a name that is unknown. */
const char *table_spec_kind_name(enum table_spec_kind kind);
const char *table_spec_init_name(enum table_spec_init init);
const char *table_spec_optim_name(enum table_spec_optim optim);
const char *table_spec_decay_name(enum table_spec_decay decay);
/* job async ssp bsp */
const char *table_spec_mode_name(enum table_spec_mode mode);
/* fp32 bf16 fp16 */
const char *table_spec_storage_name(enum table_spec_storage storage);
/* none oldest rarest */
const char *table_spec_victims_name(enum table_spec_victims victims);

/* True of LAMB and LARS: a row, or a block of a dense table, is a layer of their papers, whose norms its step uses. */
static inline bool table_spec_takes_layers(enum table_spec_optim optim)
{
    return optim == TABLE_SPEC_LAMB || optim == TABLE_SPEC_LARS;
}

/* Number of rows (blocks) of a dense table. */
uint64_t table_spec_n_blocks(const struct table_spec *spec);

/* The floats of optimizer state in a row, behind its weights (server/core/optimizer.h says what they are). */
uint32_t table_spec_state_floats(const struct table_spec *spec);

/* Salt for placement_shard(). */
uint64_t table_spec_salt(const struct table_spec *spec);

/* Checks the range of each field. PS_ESPEC and a sentence that names the field, its value and its range. NaN and Inf
 * are out of every range. */
int table_spec_check(const struct table_spec *spec, struct err *err) MUST_CHECK;

/* Checks a table that is to be made, in narrower ranges: those in which gradients of up to 1e15 (psd's --gradient-max)
 * do not make weights infinite. Tables in logs and checkpoints may be older than these ranges. */
int table_spec_check_new(const struct table_spec *spec, struct err *err) MUST_CHECK;

/* A shard's answer to a request for this table. Adds to a failure what is known of psds of older versions; returns
 * status. */
int table_spec_explain(const struct table_spec *spec, int status, struct err *err);

/* True of a dense table that only adds up what is pushed: SGD of learning rate 1, and all else off. Nothing in it is
 * trained; psworker keeps statistics of batch norm, means of columns and its stop flag so. */
bool table_spec_only_adds(const struct table_spec *spec);

/* Changes fields of a table that is there, none of which is a part of its rows' layout or of their life:
 * "lr=0.005,decay=exp". Names are psworker's; dense-lr and dense-clip say nothing of a sparse table, and clip nothing
 * of a dense one, as with psworker. PS_ESPEC with a sentence: *spec is as it was. */
#define TABLE_SPEC_SETTINGS_MAX 128u
int table_spec_set(struct table_spec *spec, const char *settings, struct err *err) MUST_CHECK;

/* table_spec_same(), but for the fields that table_spec_set() changes. */
int table_spec_same_layout(const struct table_spec *have, const struct table_spec *want,
                           struct err *err) MUST_CHECK;

/* PS_ESPEC and a sentence "table X: dim is 16 here, 32 was asked for" if they differ. If the field can be changed, it
 * ends with the psctl command that changes all such fields. Learning rates may differ if both have decay plateau. */
int table_spec_same(const struct table_spec *have, const struct table_spec *want,
                    struct err *err) MUST_CHECK;

#endif

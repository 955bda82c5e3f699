/*
 * All settings of psworker, as one value. settings.c holds the table from which the command line, the
 * job file, --help and the sample are made, and the checks that concern several settings at once.
 */
#ifndef WORKER_SETTINGS_H
#define WORKER_SETTINGS_H

#include <stdbool.h>

#include "common/settings.h"
#include "common/tls.h"
#include "common/token_file.h"
#include "proto/codec.h"
#include "proto/table_spec.h"
#include "worker/codec_policy.h"

#define SETTINGS_LOADER_THREADS_MAX 64u
#define SETTINGS_NET_THREADS_MAX 16u
#define SETTINGS_LAYERS_MAX 7u /* hidden layers of an MLP */

enum settings_device { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };
enum settings_compute { COMPUTE_IN_FP32, COMPUTE_IN_TF32, COMPUTE_IN_BF16 };
enum settings_best { BEST_BY_AUC, BEST_BY_LOGLOSS };
enum settings_delay_form { DELAY_ADAPTIVE, DELAY_CONSTANT };
enum settings_merge { MERGE_BY_MEAN, MERGE_ADAPTIVELY };
enum settings_keep { KEEP_LAST, KEEP_BEST };
/* The parts of a run that draw random numbers. */
enum settings_seeds { SEED_INIT, SEED_SHUFFLE, SEED_DROPOUT, SETTINGS_SEEDS };
enum settings_share { SHARE_ROWS, SHARE_FILES };
enum settings_pooling { POOLING_SUM, POOLING_MEAN };
enum settings_keys { KEYS_AUTO, KEYS_BY_NAME, KEYS_BY_POSITION };

struct pending_report;
struct field_tables;

#define SETTINGS_GPUS_MAX 16u

struct device_place;

struct settings {
    /* data */
    struct setting_list data, valid;
    char format[SETTINGS_TEXT_MAX], delimiter[SETTINGS_TEXT_MAX], columns[SETTINGS_TEXT_MAX];
    char label[SETTINGS_TEXT_MAX], label_positive[SETTINGS_TEXT_MAX],
        numeric[SETTINGS_TEXT_MAX];
    char categorical[SETTINGS_TEXT_MAX], ignore[SETTINGS_TEXT_MAX],
        bucketise[SETTINGS_TEXT_MAX];
    char loss_weights[SETTINGS_TEXT_MAX];
    uint32_t
        n_tasks; /* of a model whose record was read, for who has no labels; 0: as many as labels */
    char missing[SETTINGS_TEXT_MAX], inner_separator[SETTINGS_TEXT_MAX];
    char quote[SETTINGS_TEXT_MAX], data_cache[SETTINGS_TEXT_MAX],
        share_table[SETTINGS_TEXT_MAX];
    int key_scheme; /* enum settings_keys; main resolves KEYS_AUTO (model_record.h) */
    bool header, labelled;
    int missing_as, numeric_as, share;
    float valid_fraction;
    uint64_t train_rows, bad_rows_max, hash_space;
    uint32_t shuffle;
    /* job */
    char job[SETTINGS_TEXT_MAX], servers[SETTINGS_TEXT_MAX], token_file[SETTINGS_TEXT_MAX];
    char tls_ca[SETTINGS_TEXT_MAX], tls_cert[SETTINGS_TEXT_MAX], tls_key[SETTINGS_TEXT_MAX];
    struct tls_context *tls; /* owned, of these files; main reads them; NULL: plain */
    struct pending_report
        *report; /* what is reported of the training; owned by main; NULL: nothing */
    /* Of servers that begins with etcd:// */
    char coord_ca[SETTINGS_TEXT_MAX], coord_cert[SETTINGS_TEXT_MAX],
        coord_key[SETTINGS_TEXT_MAX];
    char coord_user[SETTINGS_TEXT_MAX], coord_password_file[SETTINGS_TEXT_MAX];
    char token[TOKEN_FILE_MAX]; /* the file's content; main reads it */
    uint32_t workers, rank, staleness, backup_workers, ahead;
    int mode;
    bool local, allow_lost_workers;
    uint64_t connect_timeout_ms, give_up_ms, pull_timeout_ms, finish_timeout_ms;
    /* model */
    int model;    /* enum model_kind */
    uint32_t dim; /* settings_dim() */
    char numeric_hats[SETTINGS_TEXT_MAX], bottom[SETTINGS_TEXT_MAX], top[SETTINGS_TEXT_MAX];
    uint32_t cross_layers, cross_rank;
    int interaction, pooling;
    bool self_interaction, wide, batch_norm;
    float dropout, l2_dense, l2_embedding;
    float positive_weight, label_smoothing, keep_negatives;
    int init; /* enum table_spec_init; TABLE_SPEC_INIT_END: auto */
    float init_scale;
    float auto_scale; /* of init auto, in the settings of a field: field_tables.h */
    struct setting_list field;
    const struct field_tables
        *fields; /* of these items and the columns; owned by setup; NULL: one table for all */
    int table_storage, table_full;
    uint64_t table_max_bytes, admit_clocks, idle_clocks, ttl_ms, rare_clocks;
    uint32_t admit_touches, rare_touches;
    /* training */
    uint32_t batch, epochs, early_stop;
    uint64_t steps_max;
    int best_by;
    uint64_t seed, seeds[SETTINGS_SEEDS], eval_every; /* settings_seed() */
    int optimizer, dense_optimizer, embedding_mode, dense_mode;
    uint32_t embedding_staleness, dense_staleness;
    float lr, dense_lr, epsilon, momentum, beta1, beta2, weight_decay, initial_accumulator;
    float ftrl_beta, ftrl_l1, ftrl_l2, clip_norm, clip_global_norm, row_decay;
    bool nesterov;
    float delay_compensation; /* 0: none */
    int delay_form;           /* enum settings_delay_form */
    uint32_t local_steps;     /* 0: none */
    float slow_lr, slow_momentum;
    bool rotate;
    uint64_t freeze_at; /* 0: never */
    int merge_weight;   /* enum settings_merge */
    struct setting_list period, row_period;
    char meta[SETTINGS_TEXT_MAX]; /* "": no meta learning */
    float meta_inner_lr;
    uint32_t meta_inner_steps;
    char warmup[SETTINGS_TEXT_MAX];
    int decay;
    uint64_t decay_start, decay_clocks;
    uint32_t decay_patience;
    float decay_rate, decay_floor;
    /* wire */
    int push_codec, pull_codec, wide_push_codec, wide_pull_codec, dense_push_codec,
        dense_pull_codec; /* numbers in their lists: settings_codec() */
    uint64_t dense_push_warmup;
    int dense_push_warmup_codec;
    char dense_refresh[SETTINGS_TEXT_MAX], state_dir[SETTINGS_TEXT_MAX];
    uint64_t residual_max_bytes, state_every;
    float topk;
    bool zstd;
    uint64_t window_bytes, row_cache_bytes, device_cache_bytes;
    uint32_t reuse_clocks;
    bool pull_deltas;
    float pull_tolerance, dense_pull_tolerance;
    int pull_delta_codec,
        dense_pull_delta_codec; /* 0: within the tolerance, 1: onebit, 2: int8, 3: sparse */
    /* machine and output */
    char device[SETTINGS_TEXT_MAX];
    int device_encode; /* 0: off */
    uint32_t threads, loader_threads, net_threads, local_shards;
    int compute;
    char json[SETTINGS_TEXT_MAX], output[SETTINGS_TEXT_MAX], checkpoint[SETTINGS_TEXT_MAX],
        save[SETTINGS_TEXT_MAX];
    int keep;
    char log_line_level[SETTINGS_TEXT_MAX];
    uint64_t progress_every_ms;
    char metrics_listen[SETTINGS_TEXT_MAX];
    char report_page[SETTINGS_TEXT_MAX], svg[SETTINGS_TEXT_MAX];
    uint32_t report_rows;
    /* serve */
    char http[SETTINGS_TEXT_MAX], http_token_file[SETTINGS_TEXT_MAX];
    char http_token[TOKEN_FILE_MAX]; /* that file's content; serve reads it */
    struct setting_list http_hosts;
    bool insecure;
    uint64_t max_age_ms, deadline_ms, body_max_bytes;
    uint32_t connections_max, in_flight_max;
    /* tune */
    uint32_t trials, halving, parallel;
    struct setting_list search;
    /* synth */
    uint64_t rows, cardinality;
    uint32_t numeric_columns, categorical_columns;
    float zipf, positive_rate;
};

extern const struct settings_table settings_worker;

/* Checks what settings_load() does not: ranges, and settings that exclude each other. `command` is
 * "train", "eval" ... PS_ESETTING with a sentence. */
int settings_check(const struct settings *s, const char *command, struct err *err) MUST_CHECK;

/* What of it concerns the rows of one table: numbers, and rules of admission and removal. */
int settings_check_rows(const struct settings *s, struct err *err) MUST_CHECK;

/* "512,256" -> widths. PS_ESETTING with a sentence that names `name`. */
int settings_widths(const char *name, const char *text, uint32_t *ret_widths, uint32_t max,
                    uint32_t *ret_n, struct err *err) MUST_CHECK;

/* Hats of each numeric column and the first one's peak (worker/model/dlrm_config.h), and the bottom MLP's widths.
 * _keep_inputs(): what is left to psworker is as in a job whose first layer has n_weights, if that was begun without
 * hats. True: the model is another one than before. */
uint32_t settings_n_hats(const struct settings *s);
float settings_first_hat(const struct settings *s);
const char *settings_bottom(const struct settings *s);
bool settings_keep_inputs(struct settings *s, uint32_t n_numeric, uint64_t n_weights);
/* Widths of both MLPs, too. */
int settings_check_inputs(const struct settings *s, struct err *err) MUST_CHECK;

/* Floats of an embedding row; whether there are first-order weights beside the rows. The kind of model decides, too. */
uint32_t settings_dim(const struct settings *s);
bool settings_has_wide(const struct settings *s);
/* How embedding rows start, and how wide. */
enum table_spec_init settings_init(const struct settings *s);
float settings_init_scale(const struct settings *s);
/* The optimizer of the embedding or the dense tables, and its parameters: those of optim, should that be another one
 * (settings_dense_optim_is_auto()). */
enum table_spec_optim settings_optim(const struct settings *s, bool dense);
struct optimizer_params settings_optim_params(const struct settings *s, bool dense,
                                              enum table_spec_optim optim);
/* What was left to psworker, and so may be what a table has already. */
bool settings_dense_optim_is_auto(const struct settings *s);
bool settings_rate_is_auto(const struct settings *s, bool dense, enum table_spec_optim optim);
/* Batches that may be pulled before the push of the batch before them: --ahead, at most the strictest
 * bound of the tables. */
uint32_t settings_ahead(const struct settings *s);

/* --loader-threads; 0 is one for each CPU that this process may use, at most 4. */
uint32_t settings_loader_threads(const struct settings *s);
/* Clocks over which the learning rate rises. Adagrad's first steps have full length whatever the
 * gradient. Those that several workers make at once from the same weights add up to one step that is
 * far too long, from which some runs never recover (deploy/docs/benchmarks.md). */
#define SETTINGS_WARMUP_AUTO 16u
bool settings_warmup_is_auto(const struct settings *s);
/* The learning rate's schedule: of the embedding tables, and of the dense ones, whose optimizer is optim. */
struct lr_schedule settings_schedule(const struct settings *s);
struct lr_schedule settings_dense_schedule(const struct settings *s,
                                           enum table_spec_optim optim);
/* --seed, or the part's own. */
uint64_t settings_seed(const struct settings *s, enum settings_seeds part);
/* Are there rows to validate with? */
bool settings_has_valid_rows(const struct settings *s);
/* Admission and removal of embedding rows. */
struct table_spec_limits settings_limits(const struct settings *s);

/* The codec of a direction; true, and fp32 to begin with, if it is auto. */
bool settings_codec(const struct settings *s, enum codec_policy_direction direction,
                    enum codec_id *ret);
/* Are the gradients of embedding or dense tables compensated for their delay, and how? */
bool settings_compensates(const struct settings *s, bool dense);
struct section_delay settings_delay(const struct settings *s);
/* True if the servers have each array of the MLPs in one block, as their optimizer takes it whole (LAMB, LARS). */
bool settings_has_layers(const struct settings *s);
/* PS_ESETTING if layers would be sent as topk; if --delay-compensation is given and no table's gradients are
 * compensated, or if a codec has no room for the weights. */
int settings_check_optimizers(const struct settings *s, struct err *err) MUST_CHECK;
/* --device, and of a GPU which: the first that is named, or for cuda and auto by this worker's number among those of
 * its machine. settings_check_device(): PS_ESETTING. */
enum settings_device settings_device(const struct settings *s, struct device_place *ret);

/* The GPUs that --device names. */
struct settings_gpus {
    bool all; /* those of the machine, and no numbers */
    uint32_t n, numbers[SETTINGS_GPUS_MAX];
};

struct settings_gpus settings_gpus(const struct settings *s);
int settings_check_device(const struct settings *s, struct err *err) MUST_CHECK;
/* --dense-refresh: 1 or more steps, 0 for auto. PS_ESETTING, also where the mode excludes it. */
int settings_refresh(const struct settings *s, uint32_t *ret, struct err *err) MUST_CHECK;
/* NULL, or the settings for which gradients come to the CPU as floats before they are encoded. */
const char *settings_changes_gradients(const struct settings *s);
/* What --meta goes with. */
int settings_check_meta(const struct settings *s, const char *command, struct err *err)
    MUST_CHECK;
/* True if all pulls of dense tables return all pushes of the step before. */
bool settings_dense_is_exact(const struct settings *s);
/* Steps from one push and pull of the dense table "JOB/NAME" to the next (--period, --local-steps), and of the
 * embedding table (--row-period). _are_set: there may be tables with more than 1. */
uint32_t settings_period(const struct settings *s, const char *table);
uint32_t settings_row_period(const struct settings *s, const char *table);
bool settings_periods_are_set(const struct settings *s);
/* The pattern of an item of --period, or of another setting like it; PS_ESETTING. */
int settings_period_pattern(const char *setting, const char *item, char ret[SETTINGS_TEXT_MAX],
                            uint32_t *ret_period, struct err *err) MUST_CHECK;
/* --slow-lr, or what it is if it is left to psworker. */
float settings_slow_lr(const struct settings *s);
int settings_check_periods(const struct settings *s, struct err *err) MUST_CHECK;

#endif

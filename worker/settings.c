#include "worker/settings.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "common/address.h"
#include "common/memory.h"
#include "common/number.h"
#include "proto/codec_catalog.h"
#include "worker/client/discovery.h"
#include "worker/client/ps_settings.h"
#include "worker/model/dlrm_config.h"
#include "worker/param_store.h"

/* clang-format off */
#define ROW(section, name, type, field, arg, fallback, lo, hi, help) \
    { section, name, type, arg, fallback, help, offsetof(struct settings, field), lo, hi }

/* Of ps_settings.h. */
#define LOADER_THREADS_AUTO 4u /* at most */
#define JOB_ROW(...) ROW("job", __VA_ARGS__),
#define MODEL_ROW(...) ROW("model", __VA_ARGS__),
#define TRAINING_ROW(...) ROW("training", __VA_ARGS__),
#define WIRE_ROW(...) ROW("wire", __VA_ARGS__),

#define CODECS "fp32|bf16|fp16|int8|onebit|topk|auto"
#define PULL_CODECS "fp32|bf16|fp16|int8|auto"
#define PLAIN_CODECS "fp32|bf16|fp16|int8"
#define DELTA_CODECS "within|onebit|int8|sparse"
#define WIDE_CODECS "fp32|bf16|fp16|auto" /* one float a row: the others take more */

static const struct setting rows[] = {
    ROW("data", "data", SETTING_LIST, data, "PATH", "", 0, 0,
        "click logs: files or directories, Parquet or text, plain, .zst or .gz; -: standard input; repeatable"),
    ROW("data", "valid", SETTING_LIST, valid, "PATH", "", 0, 0,
        "validation logs; without it the end of --data in file order is used"),
    ROW("data", "valid-fraction", SETTING_FLOAT, valid_fraction, "F", "0", 0, 0,
        "share of --data's rows, at its end, kept for validation"),
    ROW("data", "train-rows", SETTING_U64, train_rows, "N", "0", 0, 0,
        "train on the first N rows, validate on the rest; 0: see valid-fraction"),
    ROW("data", "format", SETTING_TEXT, format, "PRESET", "", 0, 0,
        "criteo, criteo-unlabelled, or empty: the settings below say it"),
    ROW("data", "delimiter", SETTING_TEXT, delimiter, "TEXT", "\\t", 0, 0,
        "between columns; \\t for a tab, \\s for a blank; more than one character is fine"),
    ROW("data", "header", SETTING_FLAG, header, "yes|no", "no", 0, 0,
        "the first line of each text file names the columns; Parquet does so by itself"),
    ROW("data", "columns", SETTING_TEXT, columns, "NAMES", "", 0, 0,
        "names of the columns of files without a header, or those of Parquet to look for, comma-separated"),
    ROW("data", "label", SETTING_TEXT, label, "COLUMN", "", 0, 0,
        "the label column, by position from 0 or by name; several: a task each, which share the model"),
    ROW("data", "loss-weights", SETTING_TEXT, loss_weights, "NAME=X,...", "", 0, 0,
        "of several labels: what each counts in the loss; 1 where it is not given"),
    ROW("data", "label-positive", SETTING_TEXT, label_positive, "TOKENS", "", 0, 0,
        "label tokens that mean a click, comma-separated; empty: the number 1"),
    ROW("data", "numeric", SETTING_TEXT, numeric, "COLUMNS", "", 0, 0,
        "numeric columns: positions (0,3-7), names, or * for all others"),
    ROW("data", "categorical", SETTING_TEXT, categorical, "COLUMNS", "", 0, 0,
        "categorical columns, in the same form"),
    ROW("data", "ignore", SETTING_TEXT, ignore, "COLUMNS", "", 0, 0,
        "columns that * leaves out"),
    ROW("data", "bucketise", SETTING_TEXT, bucketise, "COLUMNS", "", 0, 0,
        "numeric columns that become categoricals"),
    ROW("data", "numeric-as", SETTING_CHOICE, numeric_as, "log1p|standardise|raw", "log1p",
        0, 0, "transform of numeric columns"),
    ROW("data", "missing", SETTING_TEXT, missing, "TOKEN", "", 0, 0,
        "token that means missing, beside the empty one"),
    ROW("data", "missing-as", SETTING_CHOICE, missing_as, "key|skip", "key", 0, 0,
        "a missing categorical has a row of its own, or none"),
    ROW("data", "inner-separator", SETTING_TEXT, inner_separator, "TEXT", "", 0, 0,
        "between the values of a multi-valued categorical; a LIST of Parquet needs none"),
    ROW("data", "share-table", SETTING_TEXT, share_table, "COLUMNS", "", 0, 0,
        "categorical columns whose equal tokens have one row: target,history; more groups behind a ;"),
    ROW("data", "hash-space", SETTING_U64, hash_space, "N", "0", 0, 0,
        "keys to which the tokens of a column are hashed, so that some share a row; 0: each token has its own"),
    ROW("data", "key-scheme", SETTING_CHOICE, key_scheme, "auto|name|position", "auto", 0, 0,
        "keys come from a column's name or its position; auto: as the job was begun, a new one by name"),
    ROW("data", "quote", SETTING_TEXT, quote, "CHARACTER", "", 0, 0,
        "around fields that hold the delimiter"),
    ROW("data", "labelled", SETTING_FLAG, labelled, "yes|no", "no", 0, 0,
        "predict: the files have the label column all the same"),
    ROW("data", "shuffle", SETTING_U32, shuffle, "ROWS", "0", 0, 100000000,
        "shuffle within a window of this many rows; 0: file order"),
    ROW("data", "share", SETTING_CHOICE, share, "rows|files", "rows", 0, 0,
        "how the workers of a job divide the data: rows, a batch each in turn, or whole files"),
    ROW("data", "bad-rows-max", SETTING_U64, bad_rows_max, "N", "1000", 0, 0,
        "malformed rows that are skipped before the job stops"),
    ROW("data", "data-cache", SETTING_TEXT, data_cache, "DIR", "", 0, 0,
        "keep the parsed rows there: later passes and runs read them instead of the text"),

    ROW("job", "job", SETTING_TEXT, job, "NAME", "job", 0, 0,
        "name of the training run; its tables are NAME/..."),
    ROW("job", "servers", SETTING_TEXT, servers, "HOST:PORT,...", "127.0.0.1:7070", 0, 0,
        "any one of the cluster's nodes is enough; or etcd://HOST:PORT[,HOST:PORT...]/CLUSTER, "
        "which says where they are"),
    ROW("job", "coord-ca", SETTING_TEXT, coord_ca, "FILE", "", 0, 0,
        "servers by etcd: ask it over TLS, and trust the certificates that this file signs"),
    ROW("job", "coord-cert", SETTING_TEXT, coord_cert, "FILE", "", 0, 0,
        "an own certificate for etcd; needs coord-key"),
    ROW("job", "coord-key", SETTING_TEXT, coord_key, "FILE", "", 0, 0, "the key of coord-cert"),
    ROW("job", "coord-user", SETTING_TEXT, coord_user, "NAME", "", 0, 0,
        "etcd's user; needs coord-password-file"),
    ROW("job", "coord-password-file", SETTING_TEXT, coord_password_file, "FILE", "", 0, 0,
        "the file with the user's password"),
    PS_SETTINGS_TOKEN_FILE(JOB_ROW)
    PS_SETTINGS_TLS(JOB_ROW)
    PS_SETTINGS_WORKERS(JOB_ROW)
    ROW("job", "mode", SETTING_CHOICE, mode, PS_SETTINGS_MODES, "bsp", 0, 0,
        "asynchronous, bounded staleness, or lock step"),
    PS_SETTINGS_BOUND(JOB_ROW)
    PS_SETTINGS_BACKUPS(JOB_ROW)
    ROW("job", "ahead", SETTING_U32, ahead, "N", "0", 0, 64,
        "batches pulled while earlier ones compute, where the bound allows: faster, staler"),
    ROW("job", "local", SETTING_FLAG, local, "yes|no", "no", 0, 0,
        "tables inside this process instead of on servers"),
    ROW("job", "local-shards", SETTING_U32, local_shards, "N", "0", 0, PARAM_STORE_LOCAL_SHARDS_MAX,
        "of --local: parts of the tables, which threads share; 0: 1, or 8 where batches are large"),
    PS_SETTINGS_PATIENCE(JOB_ROW)
    ROW("job", "pull-timeout", SETTING_MS, pull_timeout_ms, "TIME", "30m", 1, 86400000,
        "longest wait for one pull, for other workers included"),
    ROW("job", "finish-timeout", SETTING_MS, finish_timeout_ms, "TIME", "10m", 0, 86400000,
        "how long a worker waits at its end for the job's other workers"),
    ROW("job", "allow-lost-workers", SETTING_FLAG, allow_lost_workers, "yes|no", "no", 0, 0,
        "a job that has lost workers, and so rows, ends with exit code 0 instead of 3"),

    ROW("model", "model", SETTING_CHOICE, model, MODEL_KIND_NAMES, "dlrm", 0, 0,
        "DLRM, or logistic regression, factorisation machine, Wide & Deep, DeepFM, DCN V2"),
    ROW("model", "dim", SETTING_U32, dim, "N", "16", 1, 4096, "floats of an embedding row"),
    ROW("model", "numeric-hats", SETTING_TEXT, numeric_hats, "N|auto", "auto", 0, 0,
        "piecewise linear bases of each number, beside it and whether it is missing; auto: 8 for a dlrm whose "
        "--bottom is auto, unless numbers are raw, else 0"),
    ROW("model", "bottom", SETTING_TEXT, bottom, "WIDTHS|auto", "auto", 0, 0,
        "hidden layers of the bottom MLP; a last one of width dim follows; auto: 256,64, without hats 512,256,64"),
    ROW("model", "top", SETTING_TEXT, top, "WIDTHS", "512,256", 0, 0,
        "hidden layers of the top MLP; a last one of width 1 follows"),
    ROW("model", "cross-layers", SETTING_U32, cross_layers, "N", "2", 1, DLRM_CROSS_MAX,
        "layers of the cross network of dcnv2, below its top MLP"),
    ROW("model", "cross-rank", SETTING_U32, cross_rank, "N", "0", 0, DLRM_WIDTH_MAX,
        "rank of the cross network's matrices: of N columns and N rows each; 0: full"),
    ROW("model", "pooling", SETTING_CHOICE, pooling, "sum|mean", "sum", 0, 0,
        "what a field with several values makes of their embedding rows"),
    ROW("model", "interaction", SETTING_CHOICE, interaction, "dot|concat", "dot", 0, 0,
        "how embedding bags and the bottom output are combined"),
    ROW("model", "self-interaction", SETTING_FLAG, self_interaction, "yes|no", "no", 0, 0,
        "dot products of a bag with itself too"),
    ROW("model", "wide", SETTING_FLAG, wide, "yes|no", "no", 0, 0,
        "add a first-order term: one weight for each key"),
    ROW("model", "batch-norm", SETTING_FLAG, batch_norm, "yes|no", "no", 0, 0,
        "batch normalisation in the hidden layers"),
    ROW("model", "dropout", SETTING_FLOAT, dropout, "P", "0", 0, 0,
        "dropout in the top MLP's hidden layers"),
    ROW("model", "l2-dense", SETTING_FLOAT, l2_dense, "X", "0", 0, 0,
        "L2 penalty on the MLPs' weights"),
    ROW("model", "l2-embedding", SETTING_FLOAT, l2_embedding, "X", "0", 0, 0,
        "L2 penalty on the rows that a batch touches"),
    ROW("model", "positive-weight", SETTING_FLOAT, positive_weight, "X", "1", 0, 0,
        "weight of positive samples in the loss of the training"),
    ROW("model", "label-smoothing", SETTING_FLOAT, label_smoothing, "X", "0", 0, 0,
        "labels of the training's loss: y + x (1/2 - y)"),
    ROW("model", "keep-negatives", SETTING_FLOAT, keep_negatives, "F", "1", 0, 0,
        "train on this share of the negative samples; predictions stay those for all of them"),
    ROW("model", "init", SETTING_CHOICE, init, "zero|uniform|normal|auto", "uniform", 0, 0,
        "how embedding rows start; auto: uniform within 1/sqrt(n) of 0, n being the different keys of the row's field"),
    ROW("model", "init-scale", SETTING_FLOAT, init_scale, "X", "0", 0, 0,
        "half width of uniform, standard deviation of normal; 0: 0.01"),
    PS_SETTINGS_ROWS(MODEL_ROW)
    ROW("model", "field", SETTING_ITEMS, field, "COLUMN:OPTION=VALUE,...", "", 0, 0,
        "give the rows of a column, or of a pattern such as C*, a table with settings of its own: init, lr, optimizer, "
        "table-storage ...; or a section [field COLUMN] of the configuration; repeatable"),

    ROW("training", "batch", SETTING_U32, batch, "N", "128", 1, 1048576,
        "samples of a mini-batch, for each worker"),
    ROW("training", "epochs", SETTING_U32, epochs, "N", "1", 1, 100000, "passes over the data"),
    PS_SETTINGS_SEED(TRAINING_ROW, "of initial weights, shuffling and dropout")
    ROW("training", "seed-init", SETTING_U64, seeds[SEED_INIT], "N", "0", 0, 0,
        "of initial weights alone; 0: as --seed"),
    ROW("training", "seed-shuffle", SETTING_U64, seeds[SEED_SHUFFLE], "N", "0", 0, 0,
        "of shuffling alone; 0: as --seed"),
    ROW("training", "seed-dropout", SETTING_U64, seeds[SEED_DROPOUT], "N", "0", 0, 0,
        "of dropout alone; 0: as --seed"),
    PS_SETTINGS_OPTIMIZER(TRAINING_ROW)
    ROW("training", "lr", SETTING_FLOAT, lr, "X", "0", 0, 0,
        "learning rate of the embedding tables; 0: 0.03 for the Adagrads and both sm3, 0.001 for adam and adamw, "
        "0.0001 for lion, 0.0002 for came, 0.01 for lamb and lars, 0.1 for the others"),
    ROW("training", "dense-optimizer", SETTING_CHOICE, dense_optimizer,
        "auto|same|" TABLE_SPEC_OPTIM_CHOICE, "auto", 0, 0,
        "of the dense tables; same: as --optimizer (adagrad for rowwise_adagrad); auto: adam instead of "
        "Adagrad if a step has 512 samples or more and their gradients go as floats or int8"),
    ROW("training", "dense-lr", SETTING_FLOAT, dense_lr, "X", "0", 0, 0,
        "learning rate of the dense tables; 0: as --lr, if that is given and both have one optimizer, else "
        "0.01 for adagrad, and else as there"),
    ROW("training", "epsilon", SETTING_FLOAT, epsilon, "X", "0", 0, 0,
        "what Adam and Adagrad and their kin add to a root; 0: the optimizer's own default"),
    ROW("training", "momentum", SETTING_FLOAT, momentum, "X", "0.9", 0, 0, "of momentum SGD and LARS"),
    PS_SETTINGS_NESTEROV(TRAINING_ROW)
    ROW("training", "beta1", SETTING_FLOAT, beta1, "X", "0.9", 0, 0, "of Adam, AdamW, LAMB, Lion and CAME"),
    ROW("training", "beta2", SETTING_FLOAT, beta2, "X", "0", 0, 0,
        "of the same; 0: the optimizer's own default, 0.99 of lion and 0.999 of the others"),
    ROW("training", "weight-decay", SETTING_FLOAT, weight_decay, "X", "0", 0, 0,
        "added to the gradient by the servers: g + x w; of adamw, lion and came apart from it: w - lr x w, and 0: "
        "adamw's own default, 0.01"),
    ROW("training", "initial-accumulator", SETTING_FLOAT, initial_accumulator, "X", "0", 0, 0,
        "sum of squares of Adagrad, SM3 and FTRL at the start"),
    ROW("training", "ftrl-beta", SETTING_FLOAT, ftrl_beta, "X", "1", 0, 0, "of FTRL-proximal"),
    ROW("training", "ftrl-l1", SETTING_FLOAT, ftrl_l1, "X", "0", 0, 0, "of FTRL-proximal"),
    ROW("training", "ftrl-l2", SETTING_FLOAT, ftrl_l2, "X", "0", 0, 0, "of FTRL-proximal"),
    PS_SETTINGS_CLIP(TRAINING_ROW)
    ROW("training", "clip-global-norm", SETTING_FLOAT, clip_global_norm, "X", "0", 0, 0,
        "L2 bound on all gradients of a batch as one vector, as clip_grad_norm_ of PyTorch; 0: none"),
    ROW("training", "row-decay", SETTING_FLOAT, row_decay, "X", "0", 0, 0,
        "L2 of whole embedding tables: each step of a table takes this share of the weights of all its rows"),
    ROW("training", "warmup", SETTING_TEXT, warmup, "CLOCKS|auto", "auto", 0, 0,
        "clocks over which the learning rate rises to its value; auto: 16 where several workers are not in lock step, "
        "and, with --dropout, for dense tables whose optimizer and rate are left to psworker if that is Adagrad and "
        "--batch is below 512; else 0"),
    PS_SETTINGS_DECAY(TRAINING_ROW, TABLE_SPEC_DECAY_CHOICE "|plateau")
    ROW("training", "decay-patience", SETTING_U32, decay_patience, "N", "2", 0, 0,
        "plateau: multiply by decay-rate when more than N validations in a row were not better"),
    ROW("training", "delay-compensation", SETTING_FLOAT, delay_compensation, "X", "0", 0, 0,
        "lambda of DC-ASGD: gradients are pushed with the weights that they are of, and the servers correct them for "
        "what others have changed since; 0: as they are"),
    ROW("training", "delay-form", SETTING_CHOICE, delay_form, "adaptive|constant", "adaptive", 0, 0,
        "of --delay-compensation: g + X |g| (w - w_then), or g + X g g (w - w_then)"),
    ROW("training", "local-steps", SETTING_U32, local_steps, "N", "0", 0, 100000,
        "dense tables: steps that each worker makes by itself before the servers merge what came of them; 0: none"),
    ROW("training", "slow-lr", SETTING_FLOAT, slow_lr, "X", "0", 0, 0,
        "of --local-steps: the servers' learning rate; 0: 1 in lock step, else 1 / workers"),
    ROW("training", "slow-momentum", SETTING_FLOAT, slow_momentum, "X", "0", 0, 0,
        "of --local-steps: the servers' momentum"),
    ROW("training", "freeze-variance-at", SETTING_U64, freeze_at, "CLOCK", "0", 0, 0,
        "of --local-steps, Adam or LAMB in lock step: from then on workers share a second moment that stays; 0: never"),
    ROW("training", "merge-weight", SETTING_CHOICE, merge_weight, "mean|adaptive", "mean", 0, 0,
        "of --local-steps and --model lr in lock step: weight of workers' differences in a merge: their mean, or more "
        "where they differ"),
    ROW("training", "meta", SETTING_TEXT, meta, "COLUMN", "", 0, 0,
        "meta learning: half of a task's samples in a batch adapt the model, the others train it; the categorical "
        "column that names the task"),
    ROW("training", "meta-inner-lr", SETTING_FLOAT, meta_inner_lr, "X", "0.1", 0, 0,
        "of --meta: learning rate of the steps that adapt the model to a task"),
    ROW("training", "meta-inner-steps", SETTING_U32, meta_inner_steps, "N", "1", 1, 100, "of --meta: these steps"),
    ROW("training", "embedding-mode", SETTING_CHOICE, embedding_mode, PS_SETTINGS_TABLE_MODES, "job", 0, 0,
        "consistency of the embedding tables, if not the job's"),
    ROW("training", "embedding-staleness", SETTING_U32, embedding_staleness, "CLOCKS", PS_SETTINGS_STALENESS_TEXT,
        0, PS_SETTINGS_STALENESS_MAX, "bound of --embedding-mode ssp"),
    ROW("training", "dense-mode", SETTING_CHOICE, dense_mode, PS_SETTINGS_TABLE_MODES, "job", 0, 0,
        "consistency of the dense tables, if not the job's"),
    ROW("training", "dense-staleness", SETTING_U32, dense_staleness, "CLOCKS", PS_SETTINGS_STALENESS_TEXT,
        0, PS_SETTINGS_STALENESS_MAX, "bound of --dense-mode ssp"),
    ROW("training", "eval-every", SETTING_U64, eval_every, "BATCHES", "0", 0, 0,
        "validate this often; 0: at the end of each epoch"),
    ROW("training", "steps-max", SETTING_U64, steps_max, "N", "0", 0, 0,
        "batches after which this worker ends, however long the data and epochs are; 0: no limit"),
    ROW("training", "early-stop", SETTING_U32, early_stop, "N", "0", 0, 0,
        "stop after N validations without a better one; 0: never"),
    ROW("training", "early-stop-by", SETTING_CHOICE, best_by, "auc|logloss", "auc", 0, 0,
        "what makes a validation better, for --early-stop and --keep best"),

    ROW("wire", "push-codec", SETTING_CHOICE, push_codec, CODECS, "fp32", 0, 0,
        "encoding of the gradients of embedding rows; auto: chosen by measurements of the link"),
    ROW("wire", "pull-codec", SETTING_CHOICE, pull_codec, PULL_CODECS, "fp32", 0, 0,
        "encoding of embedding rows"),
    ROW("wire", "wide-push-codec", SETTING_CHOICE, wide_push_codec, WIDE_CODECS, "fp32", 0, 0,
        "encoding of the gradients of first-order weights"),
    ROW("wire", "wide-pull-codec", SETTING_CHOICE, wide_pull_codec, WIDE_CODECS, "fp32", 0, 0,
        "encoding of first-order weights"),
    ROW("wire", "dense-push-codec", SETTING_CHOICE, dense_push_codec, "same|" CODECS, "same",
        0, 0, "encoding of the gradients of dense tables; same: as --push-codec"),
    ROW("wire", "dense-pull-codec", SETTING_CHOICE, dense_pull_codec, PULL_CODECS, "fp32", 0, 0,
        "encoding of dense tables"),
    ROW("wire", "dense-push-warmup", SETTING_U64, dense_push_warmup, "STEPS", "0", 0, 0,
        "onebit and topk begin after so many steps of dense-push-warmup-codec; with auto 32 if 0"),
    ROW("wire", "dense-push-warmup-codec", SETTING_CHOICE, dense_push_warmup_codec, PLAIN_CODECS,
        "bf16", 0, 0, "until then"),
    ROW("wire", "dense-refresh", SETTING_TEXT, dense_refresh, "STEPS|auto", "1", 0, 0,
        "pull dense tables every so many steps, within the bound; not in lock step"),
    ROW("wire", "period", SETTING_LIST, period, "TABLE=N,...", "", 0, 0,
        "dense tables of this name or pattern (top.*) are pushed and pulled every N steps; gradients add up meanwhile"),
    ROW("wire", "row-period", SETTING_LIST, row_period, "TABLE=N,...", "", 0, 0,
        "the same of embedding tables (emb, emb.FIELD, wide): of their rows"),
    ROW("wire", "rotate", SETTING_FLAG, rotate, "yes|no", "no", 0, 0,
        "tables of one period take turns, so that all steps have about the same bytes"),
    ROW("wire", "row-cache", SETTING_BYTES, row_cache_bytes, "BYTES", "256M", 0, 0,
        "rows that a job's only worker keeps exact, so that they are not pulled again; 0: off"),
    ROW("wire", "reuse-clocks", SETTING_U32, reuse_clocks, "CLOCKS", "0", 0, 1000000,
        "of several workers, each reuses rows while the slowest is so close behind"),
    ROW("wire", "pull-deltas", SETTING_FLAG, pull_deltas, "", "no", 0, 0,
        "of several workers, each pulls what has changed of the rows that it has, up to row-cache"),
    ROW("wire", "pull-tolerance", SETTING_FLOAT, pull_tolerance, "X", "0", 0, 0,
        "root mean square that an embedding row of pull-deltas may differ from the servers'; 0: exact"),
    ROW("wire", "dense-pull-tolerance", SETTING_FLOAT, dense_pull_tolerance, "X", "0", 0, 0,
        "the same of a block of dense tables"),
    ROW("wire", "pull-delta-codec", SETTING_CHOICE, pull_delta_codec, DELTA_CODECS, "within", 0, 0,
        "encoding of an embedding row's difference beyond pull-tolerance; within: the shortest that leaves no more"),
    ROW("wire", "dense-pull-delta-codec", SETTING_CHOICE, dense_pull_delta_codec, DELTA_CODECS, "onebit", 0, 0,
        "the same of a block of dense tables; what onebit and sparse leave comes with the next pulls"),
    ROW("wire", "topk", SETTING_FLOAT, topk, "F", "0.01", 0, 0,
        "share of a row's values that topk keeps, at least one"),
    PS_SETTINGS_ZSTD(WIRE_ROW)
    PS_SETTINGS_RESIDUALS(WIRE_ROW)
    ROW("wire", "state-dir", SETTING_TEXT, state_dir, "DIR", "", 0, 0,
        "directory for the state from which a killed worker resumes exactly where it stopped"),
    ROW("wire", "state-every", SETTING_U64, state_every, "STEPS", "1000", 0, 0,
        "write the residuals this often, beside the end of a run; 0: only then"),
    PS_SETTINGS_WINDOW(WIRE_ROW)

    ROW("machine", "device", SETTING_TEXT, device, "auto|cpu|cuda|cuda:N,...|cuda:all", "auto", 0, 0,
        "where the model computes; auto: on a GPU if there is one, else on the CPU; cuda:1: the second GPU; "
        "cuda:0,1: each batch on these two; cuda:all: on all"),
    ROW("machine", "device-cache", SETTING_BYTES, device_cache_bytes, "BYTES", "1G", 0, 0,
        "a GPU's memory for the row cache's rows, up to --row-cache; 0: off"),
    ROW("machine", "threads", SETTING_U32, threads, "N", "1", 1, DLRM_THREADS_MAX,
        "threads that share a step on the CPU, or score requests (serve); they change no result"),
    ROW("machine", "loader-threads", SETTING_U32, loader_threads, "N", "0", 0, SETTINGS_LOADER_THREADS_MAX,
        "threads that read batches ahead, and a large batch's rows from the row cache, or share --local-shards; 0: "
        "one for each CPU, at most 4; they change no result"),
    ROW("machine", "net-threads", SETTING_U32, net_threads, "N", "1", 1, SETTINGS_NET_THREADS_MAX,
        "threads that have the shards' connections: for large batches, many cores and several shards; they change "
        "no result"),
    ROW("machine", "compute", SETTING_CHOICE, compute, "fp32|tf32|bf16", "fp32", 0, 0,
        "matrix products take inputs rounded so, where the device can; sums are fp32"),
    ROW("machine", "device-encode", SETTING_CHOICE, device_encode, "off|on", "on", 0, 0,
        "the GPU encodes gradients, keeps residuals, and decodes rows; the same bytes"),
    ROW("output", "json", SETTING_TEXT, json, "FILE", "", 0, 0,
        "one JSON object a line: progress, validation, last result or failure; - for stdout"),
    ROW("output", "output", SETTING_TEXT, output, "FILE", "-", 0, 0,
        "file that predict and synth write; - for stdout; predict replaces it only when all rows are written"),
    ROW("output", "checkpoint", SETTING_TEXT, checkpoint, "DIR,...", "", 0, 0,
        "eval, predict, serve: read the model from a checkpoint instead of servers"),
    ROW("output", "save", SETTING_TEXT, save, "DIR", "", 0, 0,
        "train: write the model there as a checkpoint, at the end with --local, or with keep best"),
    ROW("output", "keep", SETTING_CHOICE, keep, "last|best", "last", 0, 0,
        "which model --save leaves: of the last step, or of the best validation (also with servers)"),
    ROW("output", "progress-every", SETTING_MS, progress_every_ms, "TIME", "2s", 10, 86400000,
        "time between progress lines"),
    ROW("output", "metrics-listen", SETTING_TEXT, metrics_listen, "HOST:PORT", "", 0, 0,
        "train: address that answers GET /metrics, for Prometheus; port 0: a free one; empty: none. Where other "
        "machines reach it, with http-token-file or insecure"),
    ROW("output", "report", SETTING_TEXT, report_page, "FILE", "", 0, 0,
        "train: a page of the run, as HTML: curves, calibration, importance of columns, cost, settings; rank 0's"),
    ROW("output", "report-rows", SETTING_U32, report_rows, "N", "5000", 1, 10000000,
        "validation rows, drawn by --seed, on which the importance of columns is measured"),
    ROW("output", "log-level", SETTING_TEXT, log_line_level, "LEVEL", "info", 0, 0,
        "error, warn, info or debug"),

    ROW("tune", "trials", SETTING_U32, trials, "N", "20", 1, 10000,
        "settings that are tried; the first trial has those that are given"),
    ROW("tune", "search", SETTING_ITEMS, search, "NAME=VALUES,...", "", 0, 0,
        "what is searched: lr=1e-4..1e-1,dim=8|16|32; empty: learning rates, dim, dropout; repeatable"),
    ROW("tune", "halving", SETTING_U32, halving, "N", "3", 1, 16,
        "one of N trials goes on with N times the rows, until the best train on all; 1: each trial has all rows"),
    ROW("tune", "parallel", SETTING_U32, parallel, "N", "1", 1, 64, "trials that run at once"),
    ROW("tune", "svg", SETTING_TEXT, svg, "FILE", "", 0, 0,
        "a picture of what mattered: the loss of each trial over each setting"),

    ROW("serve", "http", SETTING_TEXT, http, "HOST:PORT", "127.0.0.1:7080", 0, 0,
        "address that answers POST /score, GET /model, /metrics and /healthz; port 0: a free one"),
    ROW("serve", "http-hosts", SETTING_LIST, http_hosts, "NAMES", "", 0, 0,
        "more names under which it, or metrics-listen, is reached, as in the header Host; *: any"),
    ROW("serve", "http-token-file", SETTING_TEXT, http_token_file, "FILE", "", 0, 0,
        "file that holds the token which requests bring, those to metrics-listen, too (Authorization: Bearer TOKEN)"),
    ROW("serve", "insecure", SETTING_FLAG, insecure, "yes|no", "no", 0, 0,
        "answer other machines without a token: each of them can read the model's scores, or the job's figures"),
    ROW("serve", "max-age", SETTING_MS, max_age_ms, "TIME", "2s", 10, 86400000,
        "no score is of parameters older than this; they are pulled anew twice as often"),
    ROW("serve", "deadline", SETTING_MS, deadline_ms, "TIME", "1s", 1, 600000,
        "a request that has not been scored by then is answered with status 503"),
    ROW("serve", "body-max", SETTING_BYTES, body_max_bytes, "BYTES", "4M", 1024, UINT32_MAX,
        "longest body of a request"),
    ROW("serve", "connections-max", SETTING_U32, connections_max, "N", "256", 1, 65536,
        "connections; a new one takes the place of the oldest that waits for no score"),
    ROW("serve", "in-flight-max", SETTING_U32, in_flight_max, "N", "1024", 1, 65536,
        "requests that are read or scored at a time; others are answered with status 503"),

    ROW("synth", "rows", SETTING_U64, rows, "N", "100000", 1, 1000000000000, "rows to write"),
    ROW("synth", "cardinality", SETTING_U64, cardinality, "N", "10000", 1, 1000000000,
        "distinct tokens of a categorical column"),
    ROW("synth", "zipf", SETTING_FLOAT, zipf, "A", "1.05", 0, 0,
        "exponent of the tokens' popularity"),
    ROW("synth", "positive-rate", SETTING_FLOAT, positive_rate, "F", "0.25", 0, 0,
        "share of clicks"),
    ROW("synth", "numeric-columns", SETTING_U32, numeric_columns, "N", "13", 0, 500,
        "numeric columns to write"),
    ROW("synth", "categorical-columns", SETTING_U32, categorical_columns, "N", "26", 0, 500,
        "categorical columns to write"),
};
/* clang-format on */

const struct settings_table settings_worker = {
    .program = "psworker",
    .usage = "psworker train|tune|eval|predict|serve|synth|key COLUMN TOKEN [--config FILE] "
             "[options]",
    .about =
        "Trains a DLRM-like model on click logs. Its tables stand on psd servers, or inside "
        "this process with --local.\n"
        "serve: scores rows of HTTP requests with the model of a job, while it trains, or of a "
        "checkpoint.\n"
        "key COLUMN TOKEN: the row of the embedding tables that a token of this column has, as "
        "psctl row takes it.",
    .rows = rows,
    .n_rows = COUNT_OF(rows),
};

static bool has(const struct settings *s, enum model_part part)
{
    return (dlrm_config_parts((enum model_kind)s->model) & part) != 0;
}

uint32_t settings_dim(const struct settings *s)
{
    return has(s, MODEL_EMBEDDINGS) ? s->dim : 1;
}

bool settings_has_wide(const struct settings *s)
{
    return s->wide || has(s, MODEL_FIRST_ORDER);
}

/* First-order weights start at 0, whatever table holds them. */
enum table_spec_init settings_init(const struct settings *s)
{
    if (!has(s, MODEL_EMBEDDINGS))
        return TABLE_SPEC_INIT_ZERO;
    return s->init == TABLE_SPEC_INIT_END ? TABLE_SPEC_INIT_UNIFORM
                                          : (enum table_spec_init)s->init;
}

/* The start of the rows. With Adagrad for the dense tables wider ones learn less: deploy/docs/benchmarks.md, "The
 * defaults". PyTorch's DLRM has the same width for a table of 10,000 rows. */
#define INIT_SCALE 0.01f

float settings_init_scale(const struct settings *s)
{
    if (s->init_scale > 0)
        return s->init_scale;
    return s->init == TABLE_SPEC_INIT_END && s->auto_scale > 0 ? s->auto_scale : INIT_SCALE;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* How far a pull of tables in this mode may be ahead of this worker's own pushes. */
static uint32_t bound_of(const struct settings *s, int table_mode, uint32_t table_bound)
{
    enum table_spec_mode mode = (enum table_spec_mode)table_mode;
    uint32_t bound = table_bound;

    if (mode == TABLE_SPEC_MODE_JOB) {
        mode = (enum table_spec_mode)(s->mode + TABLE_SPEC_MODE_ASYNC);
        bound = s->staleness;
    }
    if (mode == TABLE_SPEC_MODE_BSP)
        return 0;
    return mode == TABLE_SPEC_MODE_SSP ? bound : UINT32_MAX;
}

uint32_t settings_ahead(const struct settings *s)
{
    uint32_t sparse = bound_of(s, s->embedding_mode, s->embedding_staleness);
    uint32_t dense = bound_of(s, s->dense_mode, s->dense_staleness);

    return least(s->ahead, least(sparse, dense));
}

uint32_t settings_loader_threads(const struct settings *s)
{
    cpu_set_t cpus;
    int n = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;

    return s->loader_threads ? s->loader_threads : least((uint32_t)n, LOADER_THREADS_AUTO);
}

struct table_spec_limits settings_limits(const struct settings *s)
{
    return (struct table_spec_limits){ .admit_touches = s->admit_touches,
                                       .admit_clocks = s->admit_clocks,
                                       .idle_clocks = s->idle_clocks,
                                       .ttl_s = (uint32_t)(s->ttl_ms / 1000),
                                       .rare_touches = s->rare_touches,
                                       .rare_clocks = s->rare_clocks,
                                       .victims = (enum table_spec_victims)s->table_full,
                                       .max_bytes = s->table_max_bytes };
}

uint64_t settings_seed(const struct settings *s, enum settings_seeds part)
{
    return s->seeds[part] ? s->seeds[part] : s->seed;
}

/* ---- the network's settings ---- */

int settings_refresh(const struct settings *s, uint32_t *ret, struct err *err)
{
    char *end;
    unsigned long n = strtoul(s->dense_refresh, &end, 10);
    bool is_auto = strcmp(s->dense_refresh, "auto") == 0;

    if (!is_auto &&
        (end == s->dense_refresh || *end || n < 1 || n > 1000000 || s->dense_refresh[0] == '-'))
        return err_set(
            err, PS_ESETTING,
            "--dense-refresh: \"%.40s\" is neither auto nor a number of steps from 1",
            s->dense_refresh);
    if (!is_auto && n > 1 && settings_dense_is_exact(s))
        return err_set(err, PS_ESETTING,
                       "--dense-refresh goes with --mode ssp or async: in lock step every step "
                       "sees all pushes of the one before");
    *ret = is_auto ? 0 : (uint32_t)n;
    return 0;
}

/* ---- checks ---- */

static int want(struct err *err, int holds, const char *sentence)
{
    return holds ? 0 : err_set(err, PS_ESETTING, "%s", sentence);
}

static int check_numbers(const struct settings *s, struct err *err)
{
    const struct {
        const char *name;
        float value, lo, below;
    } floats[] = {
        { "valid-fraction", s->valid_fraction, 0, 1 },
        { "dropout", s->dropout, 0, 1 },
        { "l2-dense", s->l2_dense, 0, 1e6f },
        { "positive-weight", s->positive_weight, 1e-6f, 1e6f },
        { "label-smoothing", s->label_smoothing, 0, 1 },
        { "keep-negatives", s->keep_negatives, 1e-6f, 1.000001f },
        { "l2-embedding", s->l2_embedding, 0, 1e6f },
        { "init-scale", s->init_scale, 0, 1e6f },
        { "lr", s->lr, 0, 1e6f },
        { "dense-lr", s->dense_lr, 0, 1e6f },
        { "epsilon", s->epsilon, 0, 1e6f },
        { "momentum", s->momentum, 0, 1 },
        { "beta1", s->beta1, 0, 1 },
        { "beta2", s->beta2, 0, 1 },
        { "weight-decay", s->weight_decay, 0, 1e6f },
        { "clip-norm", s->clip_norm, 0, 1e30f },
        { "clip-global-norm", s->clip_global_norm, 0, 1e30f },
        { "row-decay", s->row_decay, 0, 1 },
        { "initial-accumulator", s->initial_accumulator, 0, 1e30f },
        { "ftrl-beta", s->ftrl_beta, 0, 1e6f },
        { "ftrl-l1", s->ftrl_l1, 0, 1e6f },
        { "ftrl-l2", s->ftrl_l2, 0, 1e6f },
        { "topk", s->topk, 0, 1.000001f },
        { "pull-tolerance", s->pull_tolerance, 0, 1e6f },
        { "dense-pull-tolerance", s->dense_pull_tolerance, 0, 1e6f },
        { "decay-rate", s->decay_rate, 0, 1.000001f },
        { "slow-lr", s->slow_lr, 0, 1e6f },
        { "slow-momentum", s->slow_momentum, 0, 1 },
        { "meta-inner-lr", s->meta_inner_lr, 0, 1e6f },
        { "delay-compensation", s->delay_compensation, 0, SECTION_LAMBDA_MAX },
        { "decay-floor", s->decay_floor, 0, 1.000001f },
        { "positive-rate", s->positive_rate, 0, 1 },
        { "zipf", s->zipf, 0, 100 },
    };

    for (size_t i = 0; i < COUNT_OF(floats); i++)
        if (!(floats[i].value >= floats[i].lo && floats[i].value < floats[i].below))
            return err_set(err, PS_ESETTING, "--%s: %g is not from %g to below %g",
                           floats[i].name, (double)floats[i].value, (double)floats[i].lo,
                           (double)floats[i].below);
    return 0;
}

static int check_warmup(const struct settings *s, struct err *err)
{
    uint64_t n;

    if (settings_warmup_is_auto(s) || (number_read_u64(s->warmup, &n) == 0 && n <= UINT32_MAX))
        return 0;
    return err_set(err, PS_ESETTING,
                   "--warmup: \"%.40s\" is neither auto nor a number of clocks", s->warmup);
}

bool settings_has_valid_rows(const struct settings *s)
{
    return s->valid.n || s->train_rows || s->valid_fraction > 0;
}

static int check_keep(const struct settings *s, struct err *err)
{
    int status = want(
        err, s->save[0],
        "--keep best goes with --save DIR, which gets a checkpoint at each validation that "
        "is the best so far");

    return status ? status
                  : want(err, settings_has_valid_rows(s),
                         "--keep best needs validation rows: give --valid, --valid-fraction or "
                         "--train-rows");
}

static bool are_rows_exact(const struct settings *s)
{
    int mode = s->embedding_mode ? s->embedding_mode : s->mode + TABLE_SPEC_MODE_ASYNC;

    return mode == TABLE_SPEC_MODE_BSP;
}

static int check_pull_deltas(const struct settings *s, struct err *err)
{
    const bool sparse = s->pull_tolerance > 0, dense = s->dense_pull_tolerance > 0;
    int status = want(err, s->pull_deltas || (!sparse && !dense),
                      "--pull-tolerance and --dense-pull-tolerance go with --pull-deltas");

    if (!status)
        status = want(err, !s->pull_deltas || s->row_cache_bytes,
                      "--pull-deltas keeps rows in the memory of --row-cache, which is 0");
    if (status)
        return status;
    return want(err, !(sparse && are_rows_exact(s)) && !(dense && settings_dense_is_exact(s)),
                "--pull-tolerance, --dense-pull-tolerance: rows of lock step are exact; "
                "leave them out, or give --mode ssp or async");
}

static int check_train(const struct settings *s, struct err *err)
{
    int status = want(err, s->data.n > 0,
                      "--data: what to train on is missing; name a file or a directory");

    if (!status)
        status = check_warmup(s, err);
    if (!status)
        status = want(err, s->rank < s->workers,
                      "--rank must be less than --workers: ranks count from 0");
    if (!status)
        status = want(
            err, !s->backup_workers || s->backup_workers < s->workers,
            "--backup-workers must be less than --workers: a step needs one that is no backup");
    if (!status)
        status = want(
            err, !s->backup_workers || s->mode + TABLE_SPEC_MODE_ASYNC == TABLE_SPEC_MODE_BSP,
            "--backup-workers goes with --mode bsp: in ssp and async no step waits for all "
            "pushes");
    if (!status)
        status = want(err, !s->local || s->workers == 1,
                      "--local is one worker: drop --workers or --local");
    if (!status)
        status =
            want(err, s->local || !s->save[0] || s->keep == KEEP_BEST,
                 "--save goes with --local or --keep best; the tables that servers have at the "
                 "end of a run `psctl checkpoint` saves");
    if (!status)
        status = want(err, !(s->train_rows && s->valid_fraction > 0),
                      "--train-rows and --valid-fraction say the same thing; give one of them");
    if (!status)
        status =
            want(err, !s->valid.n || (!s->train_rows && !(s->valid_fraction > 0)),
                 "--valid names the validation logs; drop --train-rows and --valid-fraction");
    if (!status)
        status = want(err, !s->early_stop || settings_has_valid_rows(s),
                      "--early-stop needs validation rows: give --valid, --valid-fraction or "
                      "--train-rows");
    if (!status)
        status = check_pull_deltas(s, err);
    if (!status)
        status = settings_check_periods(s, err);
    if (!status && s->keep == KEEP_BEST)
        status = check_keep(s, err);
    if (!status)
        status = want(err, !s->checkpoint[0],
                      "--checkpoint is for eval and predict; psd itself starts from "
                      "its newest checkpoint");
    return status;
}

/* A host that has no address is a mistake of the settings, too. */
static int check_metrics_listen(const struct settings *s, struct err *err)
{
    struct sockaddr_storage at;
    int status = s->metrics_listen[0]
                     ? address_resolve("metrics-listen", s->metrics_listen, &at, err)
                     : 0;

    if (status == -EADDRNOTAVAIL)
        status = err->status = PS_ESETTING;
    if (!status && s->metrics_listen[0])
        status = want(err,
                      s->http_token_file[0] || s->insecure ||
                          address_is_loopback((const struct sockaddr *)&at),
                      "--metrics-listen: other machines reach this address: give "
                      "--http-token-file, listen on 127.0.0.1, or say --insecure if everybody "
                      "there may read this job's figures");
    return status;
}

/* Settings of parts that not every kind of model has. */
static const struct {
    const char *name, *what;
    uint32_t parts; /* any of them will do */
} of_parts[] = {
    { "dim", "embeddings, only first-order weights", MODEL_EMBEDDINGS },
    { "pooling", "embeddings, only first-order weights", MODEL_EMBEDDINGS },
    { "init", "embeddings, only first-order weights", MODEL_EMBEDDINGS },
    { "init-scale", "embeddings, only first-order weights", MODEL_EMBEDDINGS },
    { "wide", "rows beside its first-order weights", MODEL_EMBEDDINGS },
    { "wide-push-codec", "rows beside its first-order weights (--push-codec)",
      MODEL_EMBEDDINGS },
    { "wide-pull-codec", "rows beside its first-order weights (--pull-codec)",
      MODEL_EMBEDDINGS },
    { "bottom", "bottom MLP", MODEL_BOTTOM },
    { "interaction", "interaction to choose", MODEL_INTERACTION },
    { "self-interaction", "interaction to choose", MODEL_INTERACTION },
    { "top", "top MLP", MODEL_TOP },
    { "cross-layers", "cross network", MODEL_CROSS },
    { "cross-rank", "cross network", MODEL_CROSS },
    { "batch-norm", "hidden layers", MODEL_TOP },
    { "dropout", "hidden layers", MODEL_TOP },
};

static const struct setting *row_named(const char *name)
{
    const struct setting *row = rows;

    while (strcmp(row->name, name) != 0)
        row++;
    return row;
}

static bool is_given(const struct settings *s, const char *name, struct settings *scratch)
{
    const struct setting *row = row_named(name);
    struct err err;

    return settings_set(&settings_worker, scratch, name, row->fallback, &err) ||
           !settings_row_is_equal(row, s, scratch);
}

static int check_model(const struct settings *s, struct err *err)
{
    const enum model_kind kind = (enum model_kind)s->model;
    struct settings *scratch = memory_alloc(sizeof *scratch);
    int status = 0;

    for (size_t i = 0; i < COUNT_OF(of_parts) && !status; i++)
        if (!(dlrm_config_parts(kind) & of_parts[i].parts) &&
            is_given(s, of_parts[i].name, scratch))
            status = err_set(err, PS_ESETTING, "--%s: --model %s has no %s; leave it out",
                             of_parts[i].name, dlrm_config_kind_name(kind), of_parts[i].what);
    free(scratch);
    return status;
}

/* The servers' own checks, before a server is asked. */
static int check_limits(const struct settings *s, struct err *err)
{
    const struct table_spec spec = { .name = "emb",
                                     .dim = settings_dim(s),
                                     .optim = TABLE_SPEC_SGD,
                                     .limits = settings_limits(s) };
    struct err why = { 0 };
    int status = want(err, s->ttl_ms % 1000 == 0, "--ttl: whole seconds are expected");

    if (!status)
        status = want(err, (s->admit_touches > 1) == (s->admit_clocks > 0),
                      "--admit-touches of 2 or more and --admit-clocks go together: so many "
                      "pushes within so many clocks");
    if (!status)
        status = want(err, (s->rare_touches > 0) == (s->rare_clocks > 0),
                      "--rare-touches and --rare-clocks go together: fewer pushes than that "
                      "within so many clocks");

    if (!status && table_spec_check_new(&spec, &why))
        status = err_set(err, PS_ESETTING, "%s", why.text);
    return status;
}

int settings_check_rows(const struct settings *s, struct err *err)
{
    int status = check_numbers(s, err);

    if (!status)
        status = settings_check_optimizers(s, err);
    return status ? status : check_limits(s, err);
}

/* As the client reads it, when a try costs nothing. */
static int check_servers(const struct settings *s, struct err *err)
{
    struct address *servers;
    struct err why = { 0 };
    uint32_t n;
    int status;

    if (s->local || s->checkpoint[0] || strncmp(s->servers, "etcd://", 7) == 0)
        return 0;
    servers = memory_alloc(DISCOVERY_SERVERS_MAX * sizeof *servers);
    status = address_list(s->servers, DISCOVERY_SERVERS_MAX, servers, &n, &why);
    free(servers);
    return status ? err_set(err, PS_ESETTING, "--servers: %s", why.text) : 0;
}

static int check_serve(const struct settings *s, struct err *err)
{
    struct sockaddr_storage at;
    int status = want(err, !s->local || s->checkpoint[0],
                      "--local needs --checkpoint DIR to read the model from");

    if (!status)
        status = want(err, settings_device(s, NULL) != DEVICE_CUDA,
                      "--device cuda: serve computes on the CPU; leave it out");
    if (!status)
        status = address_resolve("http", s->http, &at, err);
    if (status == -EADDRNOTAVAIL)
        status = err->status = PS_ESETTING;
    if (!status)
        status = want(err,
                      s->http_token_file[0] || s->insecure ||
                          address_is_loopback((const struct sockaddr *)&at),
                      "--http: other machines reach this address: give --http-token-file, "
                      "listen on 127.0.0.1, or say --insecure if everybody there may ask for "
                      "scores");
    return status;
}

int settings_check(const struct settings *s, const char *command, struct err *err)
{
    bool serves = strcmp(command, "serve") == 0;
    bool reads = strcmp(command, "eval") == 0 || strcmp(command, "predict") == 0;
    int status = settings_check_rows(s, err);

    if (!status)
        status = check_model(s, err);
    if (!status)
        status = settings_check_inputs(s, err);
    if (!status)
        status = settings_check_device(s, err);
    if (!status)
        status =
            want(err, s->job[0] && !strpbrk(s->job, " /\t\n") && strlen(s->job) < 64,
                 "--job: a name of 1 to 63 characters without blanks and slashes is expected");
    if (!status && serves)
        status = check_serve(s, err);
    if (!status && (reads || serves || strcmp(command, "train") == 0))
        status = check_servers(s, err);
    if (!status && strcmp(command, "train") == 0)
        status = check_train(s, err);
    if (!status && strcmp(command, "train") == 0)
        status = check_metrics_listen(s, err);
    if (!status)
        status = settings_check_meta(s, command, err);
    if (!status && reads)
        status = want(err, s->data.n > 0,
                      "--data: what to read is missing; name a file or a directory");
    if (!status && reads)
        status = want(err, !s->local || s->checkpoint[0],
                      "--local needs --checkpoint DIR to read the model from");
    return status;
}

/*
 * The settings of a table and of a job that psworker's command line, psd_open() and psd_table() have alike: name, type,
 * values, fallback, range, help. What differs between them (the fallback of lr, mode and pull-timeout, the
 * learning rate's warm-up) stands in each one's table.
 *
 *     #define ROW(name, type, field, arg, fallback, lo, hi, help) ...
 *     static const struct setting rows[] = { PS_SETTINGS_CLIP(ROW) ... };
 */
#ifndef WORKER_CLIENT_PS_SETTINGS_H
#define WORKER_CLIENT_PS_SETTINGS_H

#include "common/settings.h"
#include "proto/table_spec.h"

/* clang-format off */
#define PS_SETTINGS_MODES "async|ssp|bsp"
#define PS_SETTINGS_TABLE_MODES "job|" PS_SETTINGS_MODES

/* The default bound of ssp, also as one would type it, and the largest. */
#define PS_SETTINGS_STALENESS 4
#define PS_SETTINGS_DIGITS(number) #number
#define PS_SETTINGS_TYPED(number) PS_SETTINGS_DIGITS(number)
#define PS_SETTINGS_STALENESS_TEXT PS_SETTINGS_TYPED(PS_SETTINGS_STALENESS)
#define PS_SETTINGS_STALENESS_MAX 1000000
#define PS_SETTINGS_BACKUPS_MAX 64 /* as servers take: MEMBERSHIP_N_BACKUPS_MAX */

#define PS_SETTINGS_TIME_MAX 86400000 /* ms: a day */

/* ---- a job ---- */

#define PS_SETTINGS_WORKERS(ROW) \
    ROW("workers", SETTING_U32, workers, "N", "1", 1, 1024, "workers of the job") \
    ROW("rank", SETTING_U32, rank, "R", "0", 0, 1023, "which of them this one is, from 0")

#define PS_SETTINGS_BOUND(ROW) \
    ROW("staleness", SETTING_U32, staleness, "CLOCKS", PS_SETTINGS_STALENESS_TEXT, 0, PS_SETTINGS_STALENESS_MAX, \
        "bound of --mode ssp")

#define PS_SETTINGS_BACKUPS(ROW) \
    ROW("backup-workers", SETTING_U32, backup_workers, "N", "0", 0, PS_SETTINGS_BACKUPS_MAX, \
        "of lock step: a step does not wait for the N slowest workers, whose gradients are dropped")

#define PS_SETTINGS_TOKEN_FILE(ROW) \
    ROW("token-file", SETTING_TEXT, token_file, "FILE", "", 0, 0, "file that holds the token which the servers ask for")

#define PS_SETTINGS_TLS(ROW) \
    ROW("tls-ca", SETTING_TEXT, tls_ca, "FILE", "", 0, 0, \
        "speak TLS with the servers, whose certificates are of the CA in this PEM file") \
    ROW("tls-cert", SETTING_TEXT, tls_cert, "FILE", "", 0, 0, "certificate that the servers are shown (PEM)") \
    ROW("tls-key", SETTING_TEXT, tls_key, "FILE", "", 0, 0, "private key of tls-cert (PEM)")

#define PS_SETTINGS_PATIENCE(ROW) \
    ROW("connect-timeout", SETTING_MS, connect_timeout_ms, "TIME", "60s", 1, PS_SETTINGS_TIME_MAX, \
        "how long to wait for servers at the start") \
    ROW("give-up", SETTING_MS, give_up_ms, "TIME", "60s", 1, PS_SETTINGS_TIME_MAX, \
        "a server away for longer ends the job")

#define PS_SETTINGS_ZSTD(ROW) \
    ROW("zstd", SETTING_FLAG, zstd, "yes|no", "no", 0, 0, "compress messages where it pays")

#define PS_SETTINGS_RESIDUALS(ROW) \
    ROW("residual-max", SETTING_BYTES, residual_max_bytes, "BYTES", "256M", 0, 0, \
        "memory for the residuals of onebit and topk of an embedding table; 0: no limit")

#define PS_SETTINGS_WINDOW(ROW) \
    ROW("window", SETTING_BYTES, window_bytes, "BYTES", "64M", 65536, UINT32_MAX, \
        "unacknowledged pushes that may be under way")

/* ---- a table ---- */

#define PS_SETTINGS_SEED(ROW, help) ROW("seed", SETTING_U64, seed, "N", "1", 0, 0, help)

#define PS_SETTINGS_OPTIMIZER(ROW) \
    ROW("optimizer", SETTING_CHOICE, optimizer, TABLE_SPEC_OPTIM_CHOICE, "adagrad", 0, 0, "of the embedding tables")

#define PS_SETTINGS_NESTEROV(ROW) \
    ROW("nesterov", SETTING_FLAG, nesterov, "yes|no", "no", 0, 0, "Nesterov's form of momentum SGD")

#define PS_SETTINGS_CLIP(ROW) \
    ROW("clip-norm", SETTING_FLOAT, clip_norm, "X", "0", 0, 0, "L2 bound on the gradient of an embedding row; 0: none")

#define PS_SETTINGS_DECAY(ROW, choice) \
    ROW("decay", SETTING_CHOICE, decay, choice, "none", 0, 0, \
        "how the learning rate falls after decay-start") \
    ROW("decay-start", SETTING_U64, decay_start, "CLOCK", "0", 0, 0, "clock at which decay begins") \
    ROW("decay-clocks", SETTING_U64, decay_clocks, "CLOCKS", "10000", 1, UINT32_MAX, "time scale of the decay") \
    ROW("decay-rate", SETTING_FLOAT, decay_rate, "X", "0.5", 0, 0, "factor of exp and step for every decay-clocks") \
    ROW("decay-floor", SETTING_FLOAT, decay_floor, "X", "0", 0, 0, "the decay's factor does not fall below it")

/* Where rows lie, and which keys have one. */
#define PS_SETTINGS_ROWS(ROW) \
    ROW("table-storage", SETTING_CHOICE, table_storage, "fp32|bf16|fp16", "fp32", 0, 0, \
        "how embedding weights lie in the servers' memory; optimizer state is fp32") \
    ROW("table-max", SETTING_BYTES, table_max_bytes, "BYTES", "0", 0, 0, \
        "memory of an embedding table over all shards; 0: as the servers allow") \
    ROW("table-full", SETTING_CHOICE, table_full, "refuse|oldest|rarest", "refuse", 0, 0, \
        "when memory is full: refuse new rows, or drop those pushed longest ago, or least") \
    ROW("admit-touches", SETTING_U32, admit_touches, "N", "1", 0, TABLE_SPEC_ADMIT_MAX, \
        "a key gets a row at its N-th push within admit-clocks") \
    ROW("admit-clocks", SETTING_U64, admit_clocks, "CLOCKS", "0", 0, 0, "window of admit-touches") \
    ROW("idle-clocks", SETTING_U64, idle_clocks, "CLOCKS", "0", 0, 0, \
        "drop rows not pushed for so many clocks; 0: never") \
    ROW("ttl", SETTING_MS, ttl_ms, "TIME", "0", 0, UINT64_C(4294967295000), \
        "drop rows not pushed for so long, in whole seconds; 0: never") \
    ROW("rare-touches", SETTING_U32, rare_touches, "N", "0", 0, TABLE_SPEC_RARE_MAX, \
        "drop rows with fewer pushes in rare-clocks; 0: none") \
    ROW("rare-clocks", SETTING_U64, rare_clocks, "CLOCKS", "0", 0, 0, "window of rare-touches")
/* clang-format on */

#endif

/*
 * The texts that psd_open() and psd_table() take: a URL, and words NAME=VALUE with psworker's names.
 */
#ifndef WORKER_LIBPSD_OPTIONS_H
#define WORKER_LIBPSD_OPTIONS_H

#include "common/settings.h"
#include "worker/libpsd/handle.h"

enum { OPTIONS_ASYNC, OPTIONS_SSP, OPTIONS_BSP };

struct options {
    char servers[HANDLE_SERVERS_BYTES], job[TABLE_SPEC_NAME_MAX]; /* of the URL */
    bool reader, zstd;
    uint32_t workers, rank, staleness, backup_workers;
    int mode;
    char token[SETTINGS_TEXT_MAX], token_file[SETTINGS_TEXT_MAX], name[SETTINGS_TEXT_MAX];
    char tls_ca[SETTINGS_TEXT_MAX], tls_cert[SETTINGS_TEXT_MAX], tls_key[SETTINGS_TEXT_MAX];
    uint64_t connect_timeout_ms, give_up_ms, pull_timeout_ms, push_timeout_ms;
    uint64_t window_bytes, residual_max_bytes;
    uint64_t cache_bytes, max_age_ms; /* 0: no cache */
};

/* -EINVAL: the URL; PS_ESETTING: a word; what token_file_read() returns. */
int options_read(struct options *ret, const char *url, const char *words, struct err *err)
    MUST_CHECK;

/* The specification of table `name`, in full. PS_ESETTING, PS_ESPEC. */
int options_read_spec(struct table_spec *ret, const char *name, const char *words,
                      struct err *err) MUST_CHECK;

#endif

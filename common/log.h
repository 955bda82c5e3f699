/*
 * Lines for the operator, on stderr: level, time (or journald's <N> prefix under systemd),
 * sentence. Programs log (main, services, trainers); libraries and cores return a status
 * instead.
 */
#ifndef COMMON_LOG_H
#define COMMON_LOG_H

#include <stdbool.h>

#include "common/base.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Once, before any thread starts. Name: error warn info debug; -EINVAL for another. */
int log_set_level(const char *name);

void log_write(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_write(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

/* A line that a peer can provoke: at most `per_second` of them, then a count of the rest. */
struct log_limit {
    uint64_t window_start_ms, n_in_window, n_suppressed;
};

/* True if the line may be written now; *ret_suppressed then says how many were not since the
 * last. */
bool log_limit_pass(struct log_limit *limit, uint64_t now_ms, unsigned per_second,
                    uint64_t *ret_suppressed);

#endif

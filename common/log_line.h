/*
 * Lines for the operator, on stderr: level, time (or journald's <N> prefix under systemd),
 * sentence. Programs log (main, services, trainers); libraries and cores return a status
 * instead.
 */
#ifndef COMMON_LOG_LINE_H
#define COMMON_LOG_LINE_H

#include <stdbool.h>

#include "common/base.h"

enum log_line_level {
    LOG_LINE_LEVEL_ERROR,
    LOG_LINE_LEVEL_WARN,
    LOG_LINE_LEVEL_INFO,
    LOG_LINE_LEVEL_DEBUG
};

/* Any thread. Name: error warn info debug; -EINVAL for another. */
int log_line_set_level(const char *name);

void log_line_write(enum log_line_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

#define log_line_error(...) log_line_write(LOG_LINE_LEVEL_ERROR, __VA_ARGS__)
#define log_line_warn(...) log_line_write(LOG_LINE_LEVEL_WARN, __VA_ARGS__)
#define log_line_info(...) log_line_write(LOG_LINE_LEVEL_INFO, __VA_ARGS__)
#define log_line_debug(...) log_line_write(LOG_LINE_LEVEL_DEBUG, __VA_ARGS__)

/*
 * Limits lines that a peer can provoke, by kind: a few at once, then one each every_ms, which counts those in between.
 * The owner sets n_at_once and every_ms; the rest is zeroed.
 */
#define LOG_LINE_LIMIT_KINDS 16u

struct log_line_limit {
    uint32_t n_at_once;
    uint64_t every_ms;
    struct log_line_kind {
        const char *what; /* borrowed, static; NULL: none yet */
        int status;
        uint32_t n_left;    /* lines that may be written at once */
        uint64_t filled_ms; /* when n_left was last added to */
        uint64_t n_suppressed;
    } kinds[LOG_LINE_LIMIT_KINDS];
    uint32_t next; /* where a new kind goes when all are taken */
};

/* True if a line of this kind may be written now. ret_more: what to write behind it, " (and 7 lines like it)"
 * or "". `what`: static; its text counts. */
bool log_line_limit_pass(struct log_line_limit *limit, const char *what, int status,
                         uint64_t now_ms, char ret_more[static 64]);

#endif

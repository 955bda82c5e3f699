#include "common/log_line.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES_MAX 2048

struct level_name {
    const char *name;
    char journald_prefix[4]; /* <syslog priority> */
};

static const struct level_name level_names[] = {
    [LOG_LINE_LEVEL_ERROR] = { "error", "<3>" },
    [LOG_LINE_LEVEL_WARN] = { "warn", "<4>" },
    [LOG_LINE_LEVEL_INFO] = { "info", "<6>" },
    [LOG_LINE_LEVEL_DEBUG] = { "debug", "<7>" },
};

/* The one choice that a whole process shares. */
static _Atomic int chosen_level = LOG_LINE_LEVEL_INFO;

int log_line_set_level(const char *name)
{
    size_t i;

    for (i = 0; i < COUNT_OF(level_names); i++)
        if (strcmp(name, level_names[i].name) == 0) {
            atomic_store_explicit(&chosen_level, (int)i, memory_order_relaxed);
            return 0;
        }
    return -EINVAL;
}

/* systemd.exec(5): $JOURNAL_STREAM is DEVICE:INODE of the journal's end of stderr. A redirected
 * stderr has another. */
static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat found;
    char have[64];

    if (!stream || fstat(STDERR_FILENO, &found) < 0)
        return false;
    snprintf(have, sizeof have, "%ju:%ju", (uintmax_t)found.st_dev, (uintmax_t)found.st_ino);
    return strcmp(stream, have) == 0;
}

/* Level and time, or the journal's prefix; returns its length. */
static size_t write_head(char *line, size_t n_bytes, enum log_line_level level)
{
    struct timespec now;
    struct tm utc;
    size_t n;

    if (stderr_is_journal())
        return (size_t)snprintf(line, n_bytes, "%s", level_names[level].journald_prefix);
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    n = strftime(line, n_bytes, "%Y-%m-%dT%H:%M:%S", &utc);
    return n + (size_t)snprintf(line + n, n_bytes - n, ".%03ldZ %-5s ", now.tv_nsec / 1000000,
                                level_names[level].name);
}

/* What a peer or a file put into the sentence must not look like a second line. */
static void blank_controls(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = ' ';
}

void log_line_write(enum log_line_level level, const char *fmt, ...)
{
    char line[LINE_BYTES_MAX];
    size_t head, space;
    va_list args;
    int saved_errno = errno, n;
    ssize_t written;

    if ((int)level > atomic_load_explicit(&chosen_level, memory_order_relaxed))
        return;
    head = write_head(line, sizeof line, level);
    space = sizeof line - head - 1; /* and the end of line */
    va_start(args, fmt);
    n = vsnprintf(line + head, space, fmt, args);
    va_end(args);
    if (n >= (int)space)
        memcpy(line + head + space - 4, "...", 4);
    blank_controls(line + head);
    space = strlen(line);
    line[space++] = '\n';
    /* One write, so that lines of several threads do not mix. There is nobody to tell if it
     * fails. */
    written = write(STDERR_FILENO, line, space);
    (void)written;
    errno = saved_errno;
}

static struct log_line_kind *find_kind(struct log_line_limit *limit, const char *what,
                                       int status, uint64_t now_ms)
{
    struct log_line_kind *kind;

    for (uint32_t i = 0; i < LOG_LINE_LIMIT_KINDS; i++) {
        kind = &limit->kinds[i];
        if (kind->what && kind->status == status && strcmp(kind->what, what) == 0)
            return kind;
    }
    kind = &limit->kinds[limit->next];
    limit->next = (limit->next + 1) % LOG_LINE_LIMIT_KINDS;
    *kind = (struct log_line_kind){
        .what = what, .status = status, .n_left = limit->n_at_once, .filled_ms = now_ms
    };
    return kind;
}

static void fill(const struct log_line_limit *limit, struct log_line_kind *kind,
                 uint64_t now_ms)
{
    uint64_t n = (now_ms - kind->filled_ms) / limit->every_ms;

    kind->filled_ms += n * limit->every_ms;
    kind->n_left =
        n < limit->n_at_once - kind->n_left ? kind->n_left + (uint32_t)n : limit->n_at_once;
}

bool log_line_limit_pass(struct log_line_limit *limit, const char *what, int status,
                         uint64_t now_ms, char ret_more[static 64])
{
    struct log_line_kind *kind = find_kind(limit, what, status, now_ms);

    fill(limit, kind, now_ms);
    if (!kind->n_left) {
        kind->n_suppressed++;
        return false;
    }
    kind->n_left--;
    ret_more[0] = '\0';
    if (kind->n_suppressed)
        snprintf(ret_more, 64, " (and %" PRIu64 " lines like it)", kind->n_suppressed);
    kind->n_suppressed = 0;
    return true;
}

#include "server/table_command.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "common/number.h"
#include "server/admin/json.h"
#include "server/core/table_admin.h"

#define NO_SHARD UINT32_MAX
/* For space in a log, or for the disk: until the first shard has changed something, and then for the others, which
 * are to follow it. Meanwhile nobody joins the job. */
#define WAIT_MS 10000u
#define WAIT_TO_END_MS 60000u
#define LOCK_MS (WAIT_MS + WAIT_TO_END_MS + 10000u)

struct table_command {
    struct shard_call call;
    enum table_command_kind kind;
    table_command_done done; /* NULL: cancelled */
    void *arg;
    char job[TABLE_SPEC_NAME_MAX], settings[TABLE_SPEC_SETTINGS_MAX];
    enum { COMMAND_CHECK, COMMAND_ACT, COMMAND_SYNC, COMMAND_UNLOCK } phase;
    uint32_t n_locked;  /* shards, from the first one on */
    bool has_acted;     /* a shard has changed something */
    struct err failure; /* why the rest is left, in COMMAND_UNLOCK */
    uint64_t record; /* of the shard's log: the last one to be on the disk; 0: not yet known */
    uint64_t since_ms; /* monotonic: when the shard's turn, or the first one's to act, began */
    bool is_idle;      /* the shard was not ready: it is asked again at the next tick */
    struct table_admin_counts counts;
};

enum table_command_kind table_command_kind(const char *name)
{
    static const char *const names[] = { "drop-check", "drop", "set-check", "set" };
    enum table_command_kind kind = 0;

    while (kind < TABLE_COMMAND_END && strcmp(names[kind], name) != 0)
        kind++;
    return kind;
}

static bool is_set(const struct table_command *c)
{
    return c->kind == TABLE_COMMAND_SET || c->kind == TABLE_COMMAND_SET_CHECK;
}

static int read_argument(struct table_command *c, const char *argument, struct err *err)
{
    const char *blank = is_set(c) ? strchr(argument, ' ') : argument + strlen(argument);
    size_t n_job = blank ? (size_t)(blank - argument) : 0;

    if (!n_job || n_job >= sizeof c->job)
        return err_set(err, PS_ESETTING, "%s: found \"%.60s\", expected %s",
                       is_set(c) ? "set" : "drop", argument,
                       is_set(c) ? "a job and NAME=VALUE" : "a job's name");
    memcpy(c->job, argument, n_job);
    if (!is_set(c))
        return 0;
    if (strlen(blank + 1) >= sizeof c->settings)
        return err_set(err, PS_ESETTING, "set: more than %u characters of settings",
                       TABLE_SPEC_SETTINGS_MAX - 1);
    snprintf(c->settings, sizeof c->settings, "%s", blank + 1);
    return 0;
}

/* --- on a shard --- */

/* Tables are on every shard: their number is not the sum. */
static void add_counts(struct table_command *c, const struct table_admin_counts *more)
{
    if (more->n_tables > c->counts.n_tables)
        c->counts.n_tables = more->n_tables;
    c->counts.n_rows += more->n_rows;
    c->counts.n_bytes += more->n_bytes;
}

static bool only_checks(const struct table_command *c)
{
    return c->kind == TABLE_COMMAND_DROP_CHECK || c->kind == TABLE_COMMAND_SET_CHECK;
}

static int check(struct table_command *c, struct shard_thread *t) ON_SHARD
{
    struct shard *shard = shard_thread_shard(t);
    const uint64_t now_ms = shard_thread_now_ms(t);
    struct table_admin_counts counts;
    int status = table_admin_check(shard, c->job, is_set(c) ? c->settings : NULL, &c->call.err);

    if (!status && !only_checks(c))
        status = table_admin_lock(shard, c->job, now_ms, now_ms + LOCK_MS, &c->call.err);
    table_admin_count(shard, c->job, is_set(c), &counts);
    if (!status)
        add_counts(c, &counts);
    return status;
}

/* Again after -EAGAIN it does what is left, so the counts are those of the check. */
static int act(struct table_command *c, struct shard_thread *t) ON_SHARD
{
    struct table_admin_counts counts;
    int status =
        is_set(c)
            ? table_admin_set(shard_thread_shard(t), c->job, c->settings, &counts, &c->call.err)
            : table_admin_drop(shard_thread_shard(t), c->job, &counts, &c->call.err);

    if (counts.n_tables)
        c->has_acted = true;
    if (!status)
        table_admin_unlock(shard_thread_shard(t), c->job);
    /* Also without a changed table: clocks that had waited for space in the log may have been combined. */
    shard_thread_tables_changed(t);
    return status;
}

static int ask(struct shard_call *call, struct shard_thread *t) ON_SHARD
{
    struct table_command *c = CONTAINER_OF(call, struct table_command, call);

    if (c->phase == COMMAND_UNLOCK) {
        table_admin_unlock(shard_thread_shard(t), c->job);
        return 0;
    }
    if (c->phase == COMMAND_SYNC)
        return shard_thread_await_log(t, &c->record, &call->err);
    if (!shard_thread_is_open(t))
        return err_set(&call->err, PS_ESTOPPING, "%s", status_text(PS_ESTOPPING));
    return c->phase == COMMAND_CHECK ? check(c, t) : act(c, t);
}

/* --- on the main thread --- */

static char *render(const struct table_command *c)
{
    char *text = NULL;
    size_t n_bytes;
    FILE *out = open_memstream(&text, &n_bytes);
    struct json j = { .out = out };

    if (!out)
        return NULL;
    json_open(&j, NULL);
    json_text(&j, "job", c->job);
    json_u64(&j, "tables", c->counts.n_tables);
    json_u64(&j, "rows", c->counts.n_rows);
    json_u64(&j, "bytes", c->counts.n_bytes);
    json_close(&j);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

static void log_end(const struct table_command *c)
{
    if (c->call.err.status || c->phase != COMMAND_SYNC || !c->counts.n_tables)
        return;
    if (is_set(c))
        log_line_info("job %s: %u table%s with %s from now on", c->job, c->counts.n_tables,
                      NUMBER_PLURAL(c->counts.n_tables), c->settings);
    else
        log_line_info("job %s: %u table%s dropped, with %" PRIu64 " row%s", c->job,
                      c->counts.n_tables, NUMBER_PLURAL(c->counts.n_tables), c->counts.n_rows,
                      NUMBER_PLURAL(c->counts.n_rows));
}

/* -ETIMEDOUT says that something has changed. */
static void describe_failure(struct table_command *c)
{
    const struct err why = c->phase == COMMAND_UNLOCK ? c->failure : c->call.err;
    const char *text = why.text[0] ? why.text : status_text(why.status);

    c->call.err = why;
    if (why.status == -EAGAIN)
        c->call.err.status = -EBUSY;
    if (why.status && c->phase == COMMAND_SYNC)
        err_set(&c->call.err, -ETIMEDOUT, "it is done, but not yet on the disk (%.160s)", text);
    else if (why.status && c->has_acted)
        err_set(&c->call.err, -ETIMEDOUT, "only some of the shards have done it: %.160s", text);
}

static void finish(struct table_command *c) ON_MAIN
{
    char *json;

    describe_failure(c);
    json = c->call.err.status ? NULL : render(c);
    if (!c->call.err.status && !json)
        err_set(&c->call.err, -ENOMEM, "no memory for the answer");
    log_end(c);
    if (c->done)
        c->done(c->arg, &c->call.err, json);
    free(json);
    free(c);
}

/* False: the shard takes no calls any more. */
static bool call_shard(struct table_command *c, uint32_t shard) ON_MAIN
{
    c->is_idle = false;
    if (shard_call_start(&c->call, shard) == 0)
        return true;
    err_set(&c->call.err, PS_ESTOPPING, "%s", status_text(PS_ESTOPPING));
    return false;
}

/* The next shard, also of the next phase; NO_SHARD: that was the last one. */
static uint32_t step(struct table_command *c)
{
    c->record = 0;
    if (c->phase != COMMAND_ACT)
        c->since_ms = clock_mono_ms();
    c->n_locked += c->phase == COMMAND_CHECK && !only_checks(c);
    if (c->phase == COMMAND_UNLOCK && c->call.shard + 1 == c->n_locked)
        return NO_SHARD;
    if (c->call.shard + 1 < c->call.config.map->shards_per_node)
        return c->call.shard + 1;
    if (only_checks(c) || c->phase == COMMAND_SYNC)
        return NO_SHARD;
    c->since_ms = clock_mono_ms();
    c->phase = c->phase == COMMAND_CHECK ? COMMAND_ACT : COMMAND_SYNC;
    return 0;
}

/* May the shard be asked again? Once one has acted the others are to follow. */
static bool may_wait(const struct table_command *c)
{
    const bool has_begun = c->has_acted && c->phase == COMMAND_ACT;

    return c->done && clock_mono_ms() - c->since_ms < (has_begun ? WAIT_TO_END_MS : WAIT_MS);
}

/* The first shard that is locked, which are freed then, or NO_SHARD. */
static uint32_t fail(struct table_command *c)
{
    if (!c->n_locked || c->phase == COMMAND_SYNC)
        return NO_SHARD;
    c->failure = c->call.err;
    c->phase = COMMAND_UNLOCK;
    return 0;
}

static void answered(struct shard_call *answer) ON_MAIN
{
    struct table_command *c = CONTAINER_OF(answer, struct table_command, call);
    struct err *err = &answer->err;
    uint32_t next;

    if (err->status == -EAGAIN && may_wait(c)) {
        c->is_idle = true;
        return;
    }
    next = err->status ? fail(c) : step(c);
    if (next != NO_SHARD && call_shard(c, next))
        return;
    finish(c);
}

int table_command_start(const struct shard_call_config *config, enum table_command_kind kind,
                        const char *argument, table_command_done done, void *arg,
                        struct table_command **ret, struct err *err)
{
    struct table_command *c = memory_alloc(sizeof *c);
    int status;

    *c =
        (struct table_command){ .call = { .config = *config, .ask = ask, .answered = answered },
                                .kind = kind,
                                .done = done,
                                .arg = arg,
                                .since_ms = clock_mono_ms() };
    status = read_argument(c, argument, err);
    if (!status && !call_shard(c, 0))
        status = err_set(err, PS_ESTOPPING, "%s", status_text(PS_ESTOPPING));
    if (status)
        free(c);
    else
        *ret = c;
    return status;
}

void table_command_tick(struct table_command *c)
{
    if (c->is_idle && !call_shard(c, c->call.shard))
        finish(c);
}

void table_command_cancel(struct table_command *c)
{
    c->done = NULL;
    if (c->is_idle &&
        !call_shard(c, c->call.shard)) /* for the last time: no tick comes any more */
        finish(c);
}

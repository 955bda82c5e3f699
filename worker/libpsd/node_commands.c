/*
 * psd_checkpoint(), psd_drop(): ask every node as psctl does, on a thread of its own, whose questions end within 50 ms
 * when nobody waits for them any more.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/client/ps_admin.h"
#include "worker/libpsd/handle.h"

#define SILENCE_MS 10000u /* without a frame from a node */
#define BEAT_MS 1000u
#define SERVER_MAX ADDRESS_SERVER_MAX

/* Shared by the thread that waits and the one that asks. */
struct asking {
    psd *c;
    const char *check; /* a command that comes first; NULL: none */
    const char *command, *argument;
    uv_mutex_t lock;
    struct wakeup ended;
    bool has_ended; /* under the lock */
    _Atomic bool is_cancelled;

    /* The asking thread's, until it has ended. */
    struct hello_reply cluster;
    struct ps_admin_node nodes[MESSAGE_NODES_MAX];
    uint32_t n_nodes;
    struct err err;
};

static bool is_cancelled(void *arg)
{
    const struct asking *a = arg;

    return atomic_load(&a->is_cancelled);
}

/* The first server that answers knows the others. */
static int find_nodes(struct asking *a)
{
    char server[HANDLE_SERVERS_BYTES];
    int status = PS_EDEADLINE;

    for (const char *at = a->c->servers; *at && status && !is_cancelled(a);) {
        size_t n = strcspn(at, ",");

        memcpy(server, at, n);
        server[n] = '\0';
        status = ps_admin_find(&(struct ps_admin_plan){ .token = a->c->token,
                                                        .tls = a->c->tls,
                                                        .timeout_ms = SILENCE_MS,
                                                        .is_cancelled = is_cancelled,
                                                        .arg = a },
                               server, &a->cluster, &a->err);
        at += n + (at[n] == ',');
    }
    if (status)
        return status;
    a->err.status = 0; /* of a server before it that did not answer */
    a->n_nodes = a->cluster.n_nodes;
    for (uint32_t i = 0; i < a->n_nodes; i++)
        a->nodes[i].server = a->cluster.nodes[i];
    return 0;
}

static void free_answers(struct asking *a)
{
    for (uint32_t i = 0; i < a->n_nodes; i++) {
        free(a->nodes[i].json);
        a->nodes[i].json = NULL;
    }
}

/* False: the answer of some node is a failure. */
static bool command_nodes(struct asking *a, const char *command)
{
    uint32_t i = 0;

    ps_admin_ask(&(struct ps_admin_plan){ .token = a->c->token,
                                          .tls = a->c->tls,
                                          .command = command,
                                          .argument = a->argument,
                                          .timeout_ms = SILENCE_MS,
                                          .beat_ms = BEAT_MS,
                                          .beat_command = "status",
                                          .is_cancelled = is_cancelled,
                                          .arg = a },
                 a->nodes, a->n_nodes);
    while (i < a->n_nodes && a->nodes[i].json)
        i++;
    return i == a->n_nodes;
}

static bool check_nodes(struct asking *a)
{
    bool may_go_on = command_nodes(a, a->check) && !is_cancelled(a);

    if (may_go_on)
        free_answers(a);
    return may_go_on;
}

static void ask(void *arg)
{
    struct asking *a = arg;
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    if (!find_nodes(a) && (!a->check || check_nodes(a)))
        (void)command_nodes(a, a->command);
    uv_mutex_lock(&a->lock);
    a->has_ended = true;
    wakeup_signal(&a->ended);
    uv_mutex_unlock(&a->lock);
}

/* The caller's wait: 0 when all is asked. */
static int wait_for_answers(struct asking *a, uint64_t until_ns, struct err *err)
{
    struct signals signals = { 0 };
    int status = 0;

    uv_mutex_lock(&a->lock);
    while (!a->has_ended && !status) {
        const uint64_t slice_ns = UINT64_C(100000000); /* in which psd_close() is noticed */
        uint64_t now = uv_hrtime(), left_ns = until_ns > now ? until_ns - now : 0;

        if (atomic_load(&a->c->is_closing))
            status = err_set(err, -ECANCELED, "the handle is being closed");
        else if (!left_ns)
            status = err_set(err, -EAGAIN, "the servers are still at it");
        else if (wakeup_wait(&a->ended, &a->lock, left_ns < slice_ns ? left_ns : slice_ns,
                             &signals) &&
                 !a->has_ended)
            status =
                err_set(err, -EINTR, "a signal ended the wait; the servers are still at it");
    }
    uv_mutex_unlock(&a->lock);
    signals_release(&signals);
    return status;
}

/* What each node has answered: text to be read. */
static int check_answers(const struct asking *a, struct err *err)
{
    if (a->err.status)
        return err_set(err, a->err.status, "%s", a->err.text);
    for (uint32_t i = 0; i < a->n_nodes; i++)
        if (a->nodes[i].err.status)
            return err_set(err, a->nodes[i].err.status, "%s", a->nodes[i].err.text);
    return 0;
}

/* A member of a flat JSON object: {"number":17,...} */
static int read_member(const struct ps_admin_node *node, const char *name, uint64_t *ret,
                       struct err *err)
{
    const char *at = node->json ? strstr(node->json, name) : NULL;
    char *end = NULL;

    if (at) {
        at += strlen(name);
        *ret = strtoull(at, &end, 10);
    }
    return at && end != at
               ? 0
               : err_set(err, PS_EPROTO, "psd at %s: its answer has no %s", node->server, name);
}

/* Reads the answers, before they are freed. */
typedef int reader(const struct asking *a, void *ret, struct err *err);

/* All but the lock. */
static int ask_and_wait(struct asking *a, uint64_t until_ns, reader *read, void *ret,
                        struct err *err)
{
    uv_thread_t thread;
    int status = uv_thread_create(&thread, ask, a);

    if (status)
        return err_set(err, status, "no thread to ask with: %s", status_text(status));
    status = wait_for_answers(a, until_ns, err);
    atomic_store(&a->is_cancelled, true);
    uv_thread_join(&thread);
    if (!status)
        status = check_answers(a, err);
    if (!status)
        status = read(a, ret, err);
    free_answers(a);
    return status;
}

/* 0 or more is what read() has returned. */
static int command(const struct asking *what, uint64_t until_ns, reader *read, void *ret,
                   struct err *err)
{
    struct asking *a = memory_try_alloc(sizeof *a);
    int status;

    if (!a)
        return err_set(err, -ENOMEM, "no memory to ask the nodes: %s", what->command);
    a->c = what->c;
    a->check = what->check;
    a->command = what->command;
    a->argument = what->argument;
    status = uv_mutex_init(&a->lock);
    if (!status)
        status = wakeup_init(&a->ended, true); /* cannot fail */
    if (status) {
        free(a);
        return err_set(err, status, "no lock: %s", status_text(status));
    }
    status = ask_and_wait(a, until_ns, read, ret, err);
    wakeup_deinit(&a->ended);
    uv_mutex_destroy(&a->lock);
    free(a);
    return status;
}

/* ---- checkpoints ---- */

struct numbers {
    uint64_t *numbers;
    size_t n_max;
};

static int read_numbers(const struct asking *a, void *ret, struct err *err)
{
    const struct numbers *to = ret;

    for (uint32_t i = 0; i < a->n_nodes; i++) {
        uint64_t number = 0;
        int status = read_member(&a->nodes[i], "\"number\":", &number, err);

        if (status)
            return status;
        if (i < to->n_max)
            to->numbers[i] = number;
    }
    return (int)a->n_nodes;
}

int psd_checkpoint(psd *c, uint64_t *numbers, size_t n_max, int timeout_ms)
{
    struct err err;
    int status = handle_enter(c, &err);
    uint64_t until_ns;

    if (status)
        return handle_fail(&err);
    until_ns = handle_until(timeout_ms, 0);
    if (n_max && !numbers)
        status = err_set(&err, -EINVAL, "psd_checkpoint() has no array for numbers");
    else if (!c->is_reader)
        status = ps_flush_until(c->client, until_ns, &err);
    if (!status)
        status = command(&(struct asking){ .c = c, .command = "checkpoint" }, until_ns,
                         read_numbers, &(struct numbers){ numbers, n_max }, &err);
    return handle_leave(c, handle_timed(status, &err), &err);
}

/* ---- tables that go ---- */

/* Every node has a part of the same tables. */
static int read_dropped(const struct asking *a, void *ret, struct err *err)
{
    psd_dropped *sum = ret;
    int status = 0;

    for (uint32_t i = 0; i < a->n_nodes && !status; i++) {
        uint64_t n_tables = 0, n_rows = 0, n_bytes = 0;

        status = read_member(&a->nodes[i], "\"tables\":", &n_tables, err);
        if (!status)
            status = read_member(&a->nodes[i], "\"rows\":", &n_rows, err);
        if (!status)
            status = read_member(&a->nodes[i], "\"bytes\":", &n_bytes, err);
        sum->tables = n_tables > sum->tables ? (uint32_t)n_tables : sum->tables;
        sum->rows += n_rows;
        sum->bytes += n_bytes;
    }
    return status;
}

static bool is_of_job(const char *table, const char *job)
{
    const size_t n = strlen(job);

    return strncmp(table, job, n) == 0 && (table[n] == '\0' || table[n] == '/');
}

/* Their names get new numbers. */
static void mark_dropped(psd *c, const char *job)
{
    uv_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < c->n_tables; i++)
        c->is_dropped[i] = c->is_dropped[i] || is_of_job(c->tables[i].name, job);
    uv_mutex_unlock(&c->lock);
}

static int drop(psd *c, const char *name, psd_dropped *ret, uint64_t until_ns, struct err *err)
{
    int status;

    if (!name || !name[0] || strlen(name) >= TABLE_SPEC_NAME_MAX)
        return err_set(err, -EINVAL,
                       "psd_drop() has no name of a job or table of 1 to %u bytes",
                       TABLE_SPEC_NAME_MAX - 1);
    status = command(
        &(struct asking){ .c = c, .check = "drop-check", .command = "drop", .argument = name },
        until_ns, read_dropped, ret, err);
    if (!status)
        mark_dropped(c, name);
    return status;
}

int psd_drop(psd *c, const char *name, psd_dropped *ret, int timeout_ms)
{
    psd_dropped dropped = { 0 }, unwanted = { .size = sizeof unwanted };
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    ret = ret ? ret : &unwanted;
    status = handle_fill(ret, &dropped, sizeof dropped, &err);
    if (!status)
        status = drop(c, name, &dropped, handle_until(timeout_ms, 0), &err);
    if (!status)
        status = handle_fill(ret, &dropped, sizeof dropped, &err);
    return handle_leave(c, handle_timed(status, &err), &err);
}

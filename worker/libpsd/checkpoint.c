/*
 * psd_checkpoint(): asks every node as psctl does, on a thread of its own, whose questions end within 50 ms when
 * nobody waits for them any more.
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
        status = ps_admin_cluster(server, a->c->token, SILENCE_MS, &a->cluster, &a->err);
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

static void ask(void *arg)
{
    struct asking *a = arg;
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    if (!find_nodes(a))
        ps_admin_ask(&(struct ps_admin_plan){ .token = a->c->token,
                                              .command = "checkpoint",
                                              .timeout_ms = SILENCE_MS,
                                              .beat_ms = BEAT_MS,
                                              .beat_command = "status",
                                              .is_cancelled = is_cancelled,
                                              .arg = a },
                     a->nodes, a->n_nodes);
    uv_mutex_lock(&a->lock);
    a->has_ended = true;
    wakeup_signal(&a->ended);
    uv_mutex_unlock(&a->lock);
}

/* The caller's wait: 0 when all is asked. */
static int wait_for_answers(struct asking *a, uint64_t until_ns, struct err *err)
{
    int status = 0;

    uv_mutex_lock(&a->lock);
    while (!a->has_ended && !status) {
        const uint64_t slice_ns = UINT64_C(100000000); /* in which psd_close() is noticed */
        uint64_t now = uv_hrtime(), left_ns = until_ns > now ? until_ns - now : 0;

        if (atomic_load(&a->c->is_closing))
            status = err_set(err, -ECANCELED, "the handle is being closed");
        else if (!left_ns)
            status = err_set(err, -EAGAIN, "the servers still write");
        else if (wakeup_wait(&a->ended, &a->lock, left_ns < slice_ns ? left_ns : slice_ns) &&
                 !a->has_ended)
            status = err_set(err, -EINTR, "a signal ended the wait; the servers still write");
    }
    uv_mutex_unlock(&a->lock);
    return status;
}

/* {"number":17,...} */
static int read_number(const char *json, uint64_t *ret)
{
    static const char name[] = "\"number\":";
    const char *at = strstr(json, name);
    char *end;

    if (!at)
        return PS_EPROTO;
    *ret = strtoull(at + sizeof name - 1, &end, 10);
    return end == at + sizeof name - 1 ? PS_EPROTO : 0;
}

static int read_answers(const struct asking *a, uint64_t *numbers, size_t n_max,
                        struct err *err)
{
    if (a->err.status)
        return err_set(err, a->err.status, "%s", a->err.text);
    for (uint32_t i = 0; i < a->n_nodes; i++) {
        uint64_t number;

        if (!a->nodes[i].json)
            return err_set(err, a->nodes[i].err.status, "%s", a->nodes[i].err.text);
        if (read_number(a->nodes[i].json, &number))
            return err_set(err, PS_EPROTO, "psd at %s: its answer names no checkpoint",
                           a->nodes[i].server);
        if (i < n_max)
            numbers[i] = number;
    }
    return (int)a->n_nodes;
}

/* All but the threads. */
static int ask_and_wait(struct asking *a, uint64_t until_ns, uint64_t *numbers, size_t n_max,
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
        status = read_answers(a, numbers, n_max, err);
    for (uint32_t i = 0; i < a->n_nodes; i++)
        free(a->nodes[i].json);
    return status;
}

static int checkpoint(psd *c, uint64_t until_ns, uint64_t *numbers, size_t n_max,
                      struct err *err)
{
    struct asking *a = memory_try_alloc(sizeof *a);
    int status;

    if (!a)
        return err_set(err, -ENOMEM, "no memory to ask for a checkpoint");
    a->c = c;
    status = uv_mutex_init(&a->lock);
    if (!status)
        status = wakeup_init(&a->ended, true);
    if (status)
        err_set(err, status, "no lock: %s", status_text(status));
    else
        status = ask_and_wait(a, until_ns, numbers, n_max, err);
    uv_mutex_destroy(&a->lock);
    free(a);
    return status;
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
        status = checkpoint(c, until_ns, numbers, n_max, &err);
    return handle_leave(c, handle_timed(status, &err), &err);
}

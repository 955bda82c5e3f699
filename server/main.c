/* psd: reads what the person asked for, and becomes a node. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
#include <uv.h>

#include "common/file.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "common/memory_reserve.h"
#include "server/cluster.h"
#include "server/cluster/coord_etcd.h"
#include "server/node.h"
#include "server/service_manager.h"
#include "server/start_source.h"

#define READY_MS 90000u              /* from then on, as deploy/psd.service has it */
#define RESERVE_BYTES_PER_MS 100000u /* at the least: a host may have to find them */
#define POOL_THREADS 4u              /* libuv's */
#define OTHER_THREADS 4u             /* of the stats page, and to spare; shards have two each */

static int misuse(const struct err *err)
{
    fprintf(stderr, "psd: %s\n", err->text);
    return 2;
}

/* All that a start would refuse before it opens anything. */
static int check(const struct settings *s)
{
    struct hello_reply *map = memory_alloc(sizeof *map);
    struct err err = { 0 };
    int status = cluster_map(s, map, &err);
    char more[SETTINGS_TEXT_MAX + 100];

    free(map);
    if (status) {
        fprintf(stderr, "psd: %s\n", err.text);
        return 1;
    }
    snprintf(more, sizeof more, "node %u of %u, TLS %s, %s%s", s->node,
             s->cluster.n ? s->cluster.n : 1, s->tls ? "on" : "off",
             s->data_dir[0] ? "data in " : "nothing is kept", s->data_dir);
    settings_print_checked(&settings_psd, more, stdout);
    return 0;
}

/* -1: go on and run. */
static int read_settings(int argc, char **argv, struct settings *settings,
                         struct settings_reload *reload)
{
    enum settings_action action;
    struct err err = { 0 };

    if (settings_reload_init(reload, argc, argv, settings, &action, &err))
        return misuse(&err);
    switch (action) {
    case SETTINGS_HELP:
        settings_print_help(&settings_psd, stdout);
        return 0;
    case SETTINGS_VERSION:
        printf("psd %s\n", PS_VERSION);
        return 0;
    case SETTINGS_PRINT_CONFIG:
        settings_print_config(&settings_psd, settings, stdout);
        return 0;
    case SETTINGS_RUN:
    case SETTINGS_CHECK:
        break;
    }
    if (settings_complete(settings, &err))
        return misuse(&err);
    if (log_line_set_level(settings->log_line_level)) {
        err_set(&err, PS_ESETTING,
                "log-level: found \"%.40s\", expected error, warn, info or debug",
                settings->log_line_level);
        return misuse(&err);
    }
    return action == SETTINGS_CHECK ? check(settings) : -1;
}

/* Nothing is open yet: a signal ends the process at once. */
static int reserve(uint64_t n_bytes)
{
    struct err err = { 0 };
    int status;

    service_manager_extend(READY_MS + n_bytes / RESERVE_BYTES_PER_MS);
    status = memory_reserve_init(n_bytes, &err);
    if (status)
        log_line_error("memory-reserve: %s", err.text);
    return status;
}

/* --- threads: libuv ends the process without a word where it gets none for its pool --- */

static void wait_for_go(void *arg)
{
    uv_sem_wait(arg);
}

/* As many threads as a node has, at one time. */
static int try_threads(uint32_t n)
{
    uv_thread_t *threads = memory_alloc(n * sizeof *threads);
    uv_sem_t go;
    uint32_t n_made = 0;
    int status = uv_sem_init(&go, 0);

    while (!status && n_made < n &&
           (status = uv_thread_create(&threads[n_made], wait_for_go, &go)) == 0)
        n_made++;
    for (uint32_t i = 0; i < n_made; i++)
        uv_sem_post(&go);
    for (uint32_t i = 0; i < n_made; i++)
        uv_thread_join(&threads[i]);
    free(threads);
    return status;
}

static void on_work(uv_work_t *work)
{
    (void)work;
}

static void on_worked(uv_work_t *work, int status)
{
    (void)work;
    (void)status;
}

/* The pool is made with its first work, while there is room for it. */
static int start_pool(void)
{
    uv_loop_t loop;
    uv_work_t work;
    int status = uv_loop_init(&loop);

    if (status)
        return status;
    status = uv_queue_work(&loop, &work, on_work, on_worked);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
    return status;
}

static int check_threads(const struct settings *settings)
{
    uint32_t n = POOL_THREADS + OTHER_THREADS + 2 * settings->shards;
    int status = try_threads(n);

    if (!status)
        status = start_pool();
    if (status)
        log_line_error(
            "cannot start %u threads: %s (limits: ulimit -v and -u, TasksMax, memory)", n,
            status_text(status));
    return status;
}

/* Others' abort(), as libuv's where the system has no memory for it, says nothing. A watchdog's SIGABRT comes from no
 * abort() that would end the process behind this: the raised signal does, once this has returned. */
static void on_abort(int number)
{
    static const char sentence[] =
        "psd: aborted: by the watchdog, for want of memory or threads "
        "(ulimit -v, -u), or by a fault of psd\n";

    (void)!write(STDERR_FILENO, sentence, sizeof sentence - 1);
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static int run(struct settings *settings, struct settings_reload *reload) ON_MAIN
{
    int status = check_threads(settings) || reserve(settings->memory_reserve_bytes)
                     ? 1
                     : node_run(settings, reload);

    while (status == NODE_RESTART) {
        cluster_choose_shards(settings, &file_os);
        status = node_run(settings, reload);
    }

    memory_reserve_deinit();
    return status;
}

/* A connection takes a descriptor; the soft limit is mostly 1,024, which is for programs that use select(). */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    struct settings settings = { 0 };
    struct settings_reload reload = { 0 };
    int status = read_settings(argc, argv, &settings, &reload);

    enter_main();
    memory_map_large_blocks();
    signal(SIGPIPE, SIG_IGN); /* a peer that is gone is an error of write(), not the end */
    signal(SIGABRT, on_abort);
    signal(SIGXFSZ, SIG_IGN); /* so is a file that is as large as the system allows it to be */
    raise_descriptor_limit();
    settings.open_coord = coord_etcd_open;
    if (status < 0) {
        start_source_choose_shards(&settings, &file_os);
        cluster_choose_shards(&settings, &file_os);
        status = run(&settings, &reload);
    }
    settings_reload_deinit(&reload);
    tls_context_free(settings.tls);
    settings_free(&settings_psd, &settings);
    return status;
}

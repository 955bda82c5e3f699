/* psd_open(), psd_close(), and what a handle keeps in between: notices, counters. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"
#include "worker/client/push_encoder.h"
#include "worker/libpsd/options.h"
#include "worker/libpsd/row_cache.h"

/* ---- notices ---- */

/* From the network thread. */
static void on_notice(void *arg, const char *sentence)
{
    psd *c = arg;
    uint32_t i;

    uv_mutex_lock(&c->lock);
    if (c->n_notices == HANDLE_NOTICES_MAX) {
        c->first_notice = (c->first_notice + 1) % HANDLE_NOTICES_MAX;
        c->n_notices--;
        c->notices_lost++;
    }
    i = (c->first_notice + c->n_notices++) % HANDLE_NOTICES_MAX;
    snprintf(c->notices[i], HANDLE_NOTICE_BYTES, "%s", sentence);
    uv_mutex_unlock(&c->lock);
}

static int take_notice(psd *c, char *dst, size_t n)
{
    int length = 0;

    uv_mutex_lock(&c->lock);
    if (c->n_notices) {
        snprintf(dst, n, "%s", c->notices[c->first_notice]);
        length = (int)strlen(dst);
        c->first_notice = (c->first_notice + 1) % HANDLE_NOTICES_MAX;
        c->n_notices--;
    }
    uv_mutex_unlock(&c->lock);
    return length;
}

int psd_notice(psd *c, char *dst, size_t n)
{
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    if (!dst || n < 2)
        status = err_set(&err, -EINVAL, "no space for a sentence");
    else
        status = take_notice(c, dst, n);
    return handle_leave(c, status, &err);
}

/* ---- open ---- */

/* A page that is zeros in a child. NULL: this kernel has none (before 4.14). */
static const uint32_t *map_mark(void)
{
    const size_t n_bytes = (size_t)sysconf(_SC_PAGESIZE);
    uint32_t *mark =
        mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (mark == MAP_FAILED)
        return NULL;
    if (madvise(mark, n_bytes, MADV_WIPEONFORK)) {
        munmap(mark, n_bytes);
        return NULL;
    }
    *mark = 1;
    return mark;
}

static void free_handle(psd *c)
{
    handle_scans_free(c->scans);
    ps_close(c->client);
    tls_context_free(c->tls);
    if (c->is_parents)
        munmap((void *)(uintptr_t)c->is_parents, (size_t)sysconf(_SC_PAGESIZE));
    if (c->fd >= 0)
        close(c->fd);
    handle_ops_free(c->ops);
    row_cache_free(c->cache);
    unique_deinit(&c->unique);
    free(c->tables);
    free(c->notices);
    wakeup_deinit(&c->changing.freed);
    uv_mutex_destroy(&c->lock);
    free(c);
}

static int init_waits(psd *c)
{
    int status = uv_mutex_init(&c->lock);

    return status ? status : wakeup_init(&c->changing.freed, true); /* cannot fail */
}

static psd *make_handle(void)
{
    psd *c = memory_try_alloc(sizeof *c);

    if (!c)
        return NULL;
    if (init_waits(c)) {
        free(c);
        return NULL;
    }
    c->pid = getpid();
    c->is_parents = map_mark();
    c->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    c->ops = handle_ops_new();
    c->scans = handle_scans_new();
    c->tables = memory_try_alloc(PS_TABLES_MAX * sizeof *c->tables);
    c->notices = memory_try_alloc(HANDLE_NOTICES_MAX * sizeof *c->notices);
    if (c->fd >= 0 && c->ops && c->scans && c->tables && c->notices)
        return c;
    free_handle(c);
    return NULL;
}

/* The engine's hook: a pull has come, and none had. Under its lock. */
static void on_came(void *arg)
{
    const psd *c = arg;

    if (atomic_load(&c->uses_fd))
        (void)eventfd_write(c->fd, 1);
}

static int open_client(psd *c, const struct options *o, struct err *err)
{
    struct ps_options options = { .servers = o->servers,
                                  .token = o->token,
                                  .tls = c->tls,
                                  .name = o->name,
                                  .reader = o->reader,
                                  .job = c->job,
                                  .rank = o->rank,
                                  .n_workers = o->workers,
                                  .mode =
                                      (enum table_spec_mode)(TABLE_SPEC_MODE_ASYNC + o->mode),
                                  .bound = o->mode == OPTIONS_SSP ? o->staleness : 0,
                                  .n_backups = o->backup_workers,
                                  .connect_ms = (uint32_t)o->connect_timeout_ms,
                                  .give_up_ms = (uint32_t)o->give_up_ms,
                                  .pull_ms = (uint32_t)o->pull_timeout_ms,
                                  .push_ms = (uint32_t)o->push_timeout_ms,
                                  .window_bytes = (uint32_t)o->window_bytes,
                                  .compress = o->zstd,
                                  .on_notice = on_notice,
                                  .notice_arg = c,
                                  .drives = true,
                                  .is_interruptible = true,
                                  .on_came = on_came,
                                  .came_arg = c };
    int status = ps_open(&options, &c->client, err);

    if (!status)
        push_encoder_bound_residuals(ps_encoder(c->client), o->residual_max_bytes);
    return status;
}

static int open_cache(psd *c, const struct options *o, struct err *err)
{
    if (!o->cache_bytes)
        return 0;
    c->cache =
        row_cache_new(o->cache_bytes, o->max_age_ms * UINT64_C(1000000), clock_boot_ns());
    return c->cache ? 0
                    : err_set(err, -ENOMEM, "no memory for a cache of %llu bytes",
                              (unsigned long long)o->cache_bytes);
}

static int open_handle(psd **ret, const struct options *o, struct err *err)
{
    psd *c = make_handle();
    int status;

    if (!c)
        return err_set(err, -ENOMEM, "no memory for a handle");
    c->is_reader = o->reader;
    c->push_timeout_ms = o->push_timeout_ms;
    memcpy(c->job, o->job, sizeof c->job);
    memcpy(c->servers, o->servers, sizeof c->servers);
    memcpy(c->token, o->token, sizeof c->token); /* options_read() has checked its length */
    status = open_cache(c, o, err);
    if (!status)
        status = tls_context_open(o->tls_ca, o->tls_cert, o->tls_key, &c->tls, err);
    if (!status)
        status = open_client(c, o, err);
    if (status)
        free_handle(c);
    else
        *ret = c;
    return status;
}

int psd_open(psd **ret, const char *url, const char *options, char why[PSD_WHY_MAX])
{
    struct options *o = memory_try_alloc(sizeof *o);
    struct err err = { 0 };
    int status = 0;

    if (!o)
        status = err_set(&err, -ENOMEM, "no memory for options");
    else if (!ret || !url)
        status =
            err_set(&err, -EINVAL, "psd_open() has no %s", ret ? "URL" : "place for a handle");
    if (!status)
        status = options_read(o, url, options ? options : "", &err);
    if (!status)
        status = open_handle(ret, o, &err);
    free(o);
    if (!status)
        return 0;
    err.status = status;
    status = handle_fail(&err);
    if (why)
        snprintf(why, PSD_WHY_MAX, "%s", psd_error());
    return status;
}

/* ---- close ---- */

static void end_waits(psd *c)
{
    atomic_store(&c->is_closing, true);
    ps_stop(c->client, "the handle is being closed");
    uv_mutex_lock(&c->lock);
    wakeup_broadcast(&c->changing.freed);
    uv_mutex_unlock(&c->lock);
}

int psd_end_waits(psd *c)
{
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return status == -ECANCELED ? 0 : handle_fail(&err);
    end_waits(c);
    return handle_leave(c, 0, &err);
}

/* Until the other threads are out, whose waits have ended. They cannot signal that: the handle is gone then. */
static void wait_for_others(psd *c)
{
    const struct timespec pause = { .tv_nsec = 1000000 };

    while (atomic_load(&c->n_users))
        nanosleep(&pause, NULL);
}

int psd_close(psd *c)
{
    struct err err;

    if (!c)
        return 0;
    if (handle_check_process(c, &err))
        return handle_fail(&err);
    if (atomic_exchange(&c->is_closed, true)) {
        err_set(&err, -EALREADY, "another thread closes this handle");
        return handle_fail(&err);
    }
    end_waits(c);
    wait_for_others(c);
    free_handle(c);
    return 0;
}

/* ---- counters ---- */

int psd_get_stats(psd *c, psd_stats *ret)
{
    struct ps_stats s;
    psd_stats filled = { 0 };
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    ps_stats(c->client, &s);
    filled = (psd_stats){ .n_shards = ps_n_shards(c->client),
                          .pulls = s.pulls,
                          .pushes = s.pushes,
                          .rows_pulled = s.rows_pulled,
                          .rows_pushed = s.rows_pushed,
                          .rows_refused = s.rows_refused,
                          .bytes_in = s.bytes_in,
                          .bytes_out = s.bytes_out,
                          .reconnects = s.reconnects,
                          .resent_pushes = s.resent_pushes,
                          .rejoins = s.rejoins,
                          .pushes_lost = s.pushes_lost,
                          .min_clock = s.min_clock,
                          .staleness_max = s.staleness_max,
                          .wait_ns = s.park_ns,
                          .push_wait_ns = s.window_ns,
                          .residual_rows = s.residual_rows,
                          .residual_bytes = s.residual_bytes };
    uv_mutex_lock(&c->lock);
    filled.notices_lost = c->notices_lost;
    uv_mutex_unlock(&c->lock);
    status = handle_fill(ret, &filled, sizeof filled, &err);
    return handle_leave(c, status, &err);
}

int psd_get_cache_stats(psd *c, psd_cache_stats *ret)
{
    struct row_cache_stats s = { 0 };
    psd_cache_stats filled = { 0 };
    struct err err;
    int status = handle_enter(c, &err);

    if (status)
        return handle_fail(&err);
    if (c->cache) {
        row_cache_stats(c->cache, &s);
        filled = (psd_cache_stats){ .hits = s.n_hits,
                                    .misses = s.n_misses,
                                    .puts = s.n_put,
                                    .evictions = s.n_evicted,
                                    .left_out = s.n_left_out,
                                    .rows = s.n_rows,
                                    .bytes = s.n_bytes,
                                    .bytes_max = s.max_bytes,
                                    .oldest_age_ns = s.oldest_age_ns,
                                    .max_age_ns = row_cache_max_age(c->cache) };
    }
    status = handle_fill(ret, &filled, sizeof filled, &err);
    return handle_leave(c, status, &err);
}

#include "worker/tune/tune.h"

#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "common/number.h"
#include "worker/client/ps_admin.h"
#include "worker/setup.h"
#include "worker/tune/halving.h"
#include "worker/tune/search_space.h"
#include "worker/tune/trial.h"
#include "worker/tune/tune_report.h"

#define VALID_FRACTION 0.1f /* of the training rows, where nothing else is said */
#define STOP_CHECK_MS 200
#define DROP_MS 8000u

/* ---- before the first trial ---- */

/* What every trial has: the settings as given, without what concerns other runs and files. */
static int make_base(struct tune *t, struct err *err)
{
    static const char *const cleared[] = { "valid",      "save",   "state-dir",
                                           "json",       "report", "metrics-listen",
                                           "checkpoint", "search", "svg" };
    int status = 0;

    t->base = memory_alloc(sizeof *t->base);
    settings_copy(&settings_worker, t->base, t->given);
    for (size_t i = 0; i < COUNT_OF(cleared) && !status; i++)
        status = settings_set(&settings_worker, t->base, cleared[i], "", err);
    t->base->keep = KEEP_LAST;
    t->base->progress_every_ms = 60000;
    if (!t->base->train_rows && !(t->base->valid_fraction > 0))
        t->base->valid_fraction = VALID_FRACTION;
    if (!status && t->given->workers > 1)
        status =
            err_set(err, PS_ESETTING,
                    "--workers %u: a trial is one worker's; --parallel runs several trials "
                    "at once",
                    t->given->workers);
    if (!status)
        status = settings_check(t->base, "train", err);
    if (!status && t->given->valid.n)
        log_line_info("tune does not read --valid: trials are judged by the end of --data");
    return status;
}

/* The rows that there are to train on. */
static int count_rows(struct tune *t, struct err *err)
{
    struct setup setup;
    int status = setup_data(&setup, t->base, true, true, err);

    if (!status && setup_first_pipe(&setup))
        status = err_set(err, PS_ESETTING, "--data: %.200s can be read only once: name a file",
                         setup_first_pipe(&setup));
    t->n_rows = setup.train.end_row * t->base->epochs;
    setup_deinit(&setup);
    return status;
}

static int make_folder(struct tune *t, struct err *err)
{
    const char *tmp = getenv("TMPDIR");
    int status = 0;

    if (snprintf(t->dir, sizeof t->dir, "%s/psworker-tune-XXXXXX",
                 tmp && tmp[0] ? tmp : "/tmp") >= (int)sizeof t->dir)
        status = -ENAMETOOLONG;
    else if (!mkdtemp(t->dir))
        status = -errno;
    if (status) {
        t->dir[0] = 0;
        return err_set(err, status, "TMPDIR: no folder can be made in it: %s",
                       strerror(-status));
    }
    if (!t->base->data_cache[0])
        snprintf(t->base->data_cache, sizeof t->base->data_cache, "%s/rows", t->dir);
    return 0;
}

static void draw_trials(struct tune *t)
{
    t->trials = memory_alloc(t->n * sizeof *t->trials);
    for (uint32_t i = 0; i < t->n; i++) {
        t->order[i] = i;
        for (uint32_t j = 0; j < t->space.n; j++) {
            char *given = settings_row_text(t->space.settings[j].row, t->base);

            if (i == 0)
                snprintf(t->trials[i].values[j], SEARCH_SPACE_TEXT_MAX, "%s", given);
            else
                search_space_draw(&t->space.settings[j], t->base->seed, i,
                                  t->trials[i].values[j]);
            free(given);
        }
    }
}

static int open_json(struct tune *t, struct err *err)
{
    const char *path = t->given->json;

    if (!path[0])
        return 0;
    t->json = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");
    return t->json ? 0
                   : err_set(err, -errno, "--json: %.300s cannot be written: %s", path,
                             strerror(errno));
}

static int prepare(struct tune *t, struct err *err)
{
    int status = make_base(t, err);

    if (!status)
        status = search_space_of(t->given, &t->space, err);
    if (!status)
        status = open_json(t, err);
    if (!status)
        status = count_rows(t, err);
    if (!status)
        status = make_folder(t, err);
    if (status)
        return status;
    t->processes = memory_alloc(t->base->parallel * sizeof *t->processes);
    halving_plan(t->n, t->base->halving, &t->plan);
    draw_trials(t);
    snprintf(t->salt, sizeof t->salt, "%06x",
             (unsigned)(hash_mix2(clock_unix_ms(), (uint64_t)getpid()) & 0xffffff));
    return 0;
}

/* ---- jobs ---- */

static void job_of(const struct tune *t, uint32_t trial, char ret[static 64])
{
    snprintf(ret, 64, "%.32s.tune-%s.%u.%u", t->base->job, t->salt, trial + 1, t->rung + 1);
}

static int command_nodes(const struct tune *t, const struct hello_reply *cluster,
                         const char *command, const char *job, struct err *err)
{
    const struct ps_admin_plan plan = { .token = t->given->token,
                                        .tls = t->given->tls,
                                        .timeout_ms = DROP_MS,
                                        .command = command,
                                        .argument = job };
    int status = 0;

    for (uint32_t i = 0; i < cluster->n_nodes && !status; i++) {
        char *answer = NULL;

        status = ps_admin_one(&plan, cluster->nodes[i], &answer, err);
        free(answer);
    }
    return status;
}

static int find_cluster(const struct tune *t, struct hello_reply *ret, struct err *err)
{
    const struct ps_admin_plan plan = { .token = t->given->token,
                                        .tls = t->given->tls,
                                        .timeout_ms = DROP_MS };
    char list[SETTINGS_TEXT_MAX], *rest = list, *server;
    int status = -ENOENT;

    memcpy(list, t->given->servers, sizeof list);
    while (status && (server = strsep(&rest, ",")) != NULL)
        if (server[0])
            status = ps_admin_find(&plan, server, ret, err);
    return status;
}

static void drop_job(struct tune *t, uint32_t trial)
{
    struct hello_reply *cluster;
    char job[64];
    struct err err;
    int status;

    if (t->base->local)
        return;
    job_of(t, trial, job);
    cluster = memory_alloc(sizeof *cluster);
    status = find_cluster(t, cluster, &err);
    if (!status)
        status = command_nodes(t, cluster, "drop-check", job, &err);
    if (!status)
        status = command_nodes(t, cluster, "drop", job, &err);
    free(cluster);
    if (status && !t->n_jobs_left++)
        err_set(&t->why_left, status, "job %s: %.300s", job, err.text);
}

/* ---- trials ---- */

/* The settings of a trial on this rung. The caller's to free, with its lists. */
static struct settings *settings_of(const struct tune *t, uint32_t trial, struct err *err)
{
    struct settings *s = memory_alloc(sizeof *s);
    int status = 0;

    settings_copy(&settings_worker, s, t->base);
    for (uint32_t i = 0; i < t->space.n && !status; i++)
        status = settings_set(&settings_worker, s, t->space.settings[i].row->name,
                              t->trials[trial].values[i], err);
    job_of(t, trial, s->job);
    if (t->plan.share[t->rung] < 1)
        s->steps_max =
            1 + (uint64_t)(t->plan.share[t->rung] * (double)t->n_rows / (double)s->batch);
    if (!status)
        return s;
    settings_free(&settings_worker, s);
    free(s);
    return NULL;
}

static void fail_trial(struct tune *t, uint32_t trial, const char *why)
{
    snprintf(t->trials[trial].why, sizeof t->trials[trial].why, "%s", why);
    t->n_failed++;
    t->n_ended++;
    tune_report_trial(t, trial);
}

static void start_trial(struct tune *t, uint32_t trial)
{
    struct trial_process *p = t->processes;
    struct err err;
    struct settings *s = settings_of(t, trial, &err);

    while (p->pid)
        p++;
    if (!s || trial_process_start(s, t->dir, trial, p, &err))
        fail_trial(t, trial, err.text);
    else
        t->n_running++;
    if (s)
        settings_free(&settings_worker, s);
    free(s);
}

static void end_trial(struct tune *t, struct trial_process *p)
{
    const uint32_t trial = p->trial;
    struct trial_result result = { 0 };
    char why[TRIAL_WHY_MAX];

    trial_process_end(p, &result, why);
    t->n_running--;
    drop_job(t, trial);
    if (t->is_stopped) /* it ended early, and is no trial */
        return;
    if (why[0]) {
        fail_trial(t, trial, why);
        return;
    }
    t->trials[trial].results[t->trials[trial].n_rungs++] = result;
    t->n_ended++;
    tune_report_trial(t, trial);
}

/* Until a trial ends, or for a moment, after which a stop is looked for. */
static void wait_trials(struct tune *t)
{
    struct pollfd fds[64];
    nfds_t n = t->base->parallel;

    for (nfds_t i = 0; i < n; i++)
        fds[i] = (struct pollfd){ .fd = t->processes[i].pid ? t->processes[i].fd : -1,
                                  .events = POLLIN };
    if (poll(fds, n, STOP_CHECK_MS) <= 0)
        return;
    for (nfds_t i = 0; i < n; i++)
        if (fds[i].fd >= 0 && fds[i].revents)
            end_trial(t, &t->processes[i]);
}

static void check_stop(struct tune *t)
{
    if (t->is_stopped || !stop_signal_asked(t->stop))
        return;
    t->is_stopped = true;
    log_line_info("a signal asked for it: the trials that run are ended");
    for (uint32_t i = 0; i < t->base->parallel; i++)
        if (t->processes[i].pid)
            trial_process_stop(&t->processes[i]);
}

/* The first trial runs alone: it parses the rows, and leaves them to the others. */
static uint32_t n_at_once(const struct tune *t)
{
    return t->n_ended ? t->base->parallel : 1;
}

static void run_rung(struct tune *t)
{
    uint32_t next = 0;

    while ((next < t->n_order && !t->is_stopped) || t->n_running) {
        while (next < t->n_order && !t->is_stopped && t->n_running < n_at_once(t))
            start_trial(t, t->order[next++]);
        check_stop(t);
        if (t->n_running)
            wait_trials(t);
    }
}

static void promote(struct tune *t)
{
    double *losses = memory_alloc(t->n * sizeof *losses);

    for (uint32_t i = 0; i < t->n; i++)
        losses[i] = t->trials[i].n_rungs == t->rung + 1
                        ? tune_report_loss(t, &t->trials[i].results[t->rung])
                        : (double)NAN;
    t->n_order = halving_promote(losses, t->n, t->plan.n_trials[t->rung + 1], t->order);
    free(losses);
}

static void run_rungs(struct tune *t)
{
    t->n_order = t->n;
    for (;;) {
        log_line_info("rung %u of %u: %u trials, each on %.3g %% of %llu rows", t->rung + 1,
                      t->plan.n_rungs, t->n_order, 100 * t->plan.share[t->rung],
                      (unsigned long long)t->n_rows);
        run_rung(t);
        if (t->is_stopped || t->rung + 1 == t->plan.n_rungs)
            return;
        promote(t);
        if (!t->n_order)
            return;
        t->rung++;
    }
}

/* ---- all ---- */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

static void free_all(struct tune *t)
{
    if (t->dir[0])
        (void)nftw(t->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (t->json && t->json != stdout)
        fclose(t->json);
    if (t->base)
        settings_free(&settings_worker, t->base);
    free(t->base);
    free(t->trials);
    free(t->processes);
    free(t);
}

static int report(struct tune *t, struct err *err)
{
    if (t->n_jobs_left)
        log_line_warn("the servers still have the tables of %u trials (psctl drop): %s",
                      t->n_jobs_left, t->why_left.text);
    tune_report_end(t);
    if (tune_report_best(t) == t->n)
        return err_set(err, PS_EDATA,
                       t->is_stopped ? "no trial has ended before the signal"
                                     : "no trial has ended well; the first: %s",
                       t->trials[0].why);
    return t->given->svg[0] ? tune_report_write_svg(t, err) : 0;
}

int tune_run(const struct settings *s, char *const *words, const struct stop_signal *stop,
             struct err *err)
{
    struct tune *t = memory_alloc(sizeof *t);
    int status;

    t->given = s;
    t->words = words;
    t->stop = stop;
    t->n = s->trials;
    status = prepare(t, err);
    if (!status) {
        run_rungs(t);
        status = report(t, err);
    }
    free_all(t);
    return status;
}

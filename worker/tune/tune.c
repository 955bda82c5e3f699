#include "worker/tune/tune.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "common/number.h"
#include "worker/atomic_file.h"
#include "worker/client/ps_admin.h"
#include "worker/plateau.h"
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
    if (!status)
        status = plateau_check(t->base, err);
    if (!status && t->given->valid.n)
        log_line_info("tune does not read --valid: trials are judged by the end of --data");
    return status;
}

static bool draws_negatives(const struct tune *t)
{
    bool draws = t->base->keep_negatives < 1;

    for (uint32_t i = 0; i < t->space.n; i++)
        draws = draws || strcmp(t->space.settings[i].row->name, "keep-negatives") == 0;
    return draws;
}

/* A rung ends trials after a number of steps, a share of those that all rows make. */
static int check_rungs(const struct tune *t, struct err *err)
{
    if (t->plan.n_rungs == 1 || !draws_negatives(t))
        return 0;
    return err_set(
        err, PS_ESETTING,
        "--keep-negatives: how many of the rows are trained on is not known before "
        "a trial, so a part of them cannot be told: --halving 1 trains each trial on "
        "all");
}

/* What can be read but once has been, and each trial reads it. */
static int check_secrets(const struct settings *s, struct err *err)
{
    const struct {
        const char *name, *path;
    } files[] = { { "token-file", s->token_file },
                  { "tls-ca", s->tls_ca },
                  { "tls-cert", s->tls_cert },
                  { "tls-key", s->tls_key } };
    struct stat st;

    for (size_t i = 0; i < COUNT_OF(files) && !s->local; i++)
        if (files[i].path[0] && stat(files[i].path, &st) == 0 && !S_ISREG(st.st_mode))
            return err_set(err, PS_ESETTING,
                           "--%s: %.200s is no plain file, and each trial reads it",
                           files[i].name, files[i].path);
    return 0;
}

/* Before hours of trials. */
static int check_svg(const struct settings *s, struct err *err)
{
    struct err why;
    int status;

    if (strcmp(s->svg, "-") == 0)
        return err_set(err, PS_ESETTING, "--svg -: stdout has the table; name a file");
    status = s->svg[0] ? atomic_file_try(s->svg, &why) : 0;
    return status ? err_set(err, status, "--svg: %.300s cannot be written: %s", s->svg,
                            strerror(-status))
                  : 0;
}

static int refuse_pipe(const struct setup *setup, struct err *err)
{
    return err_set(err, PS_ESETTING, "--data: %.200s can be read only once: name a file",
                   setup_first_pipe(setup));
}

/* The rows that there are to train on. */
static int count_rows(struct tune *t, struct err *err)
{
    struct setup setup = { 0 };
    int status = setup_data(&setup, t->base, true, true, err);

    if (!status && setup_first_pipe(&setup))
        status = refuse_pipe(&setup, err);
    t->n_rows = setup.train.end_row;
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

/* ---- jobs ---- */

static struct ps_admin_plan plan_of(const struct settings *s)
{
    return (struct ps_admin_plan){ .token = s->token, .tls = s->tls, .timeout_ms = DROP_MS };
}

static int find_cluster(const struct settings *s, struct hello_reply *ret, struct err *err)
{
    const struct ps_admin_plan plan = plan_of(s);
    char list[SETTINGS_TEXT_MAX], *rest = list, *server;
    int status = -ENOENT;

    memcpy(list, s->servers, sizeof list);
    while (status && (server = strsep(&rest, ",")) != NULL) {
        if (server[0])
            status = ps_admin_find(&plan, server, ret, err);
        if (!status) /* nodes are listed as the cluster was made; this one may have taken over */
            snprintf(ret->nodes[ret->node], sizeof ret->nodes[0], "%s", server);
    }
    return status;
}

/* Of a psd that is a standby now: who serves its shards. */
static bool find_primary(struct ps_admin_plan plan, const char *server,
                         char ret[static MESSAGE_ADDRESS_MAX])
{
    char *answer = NULL;
    const cJSON *replication, *peer;
    struct err ignored;
    cJSON *report;

    plan.command = "status";
    plan.argument = NULL;
    if (ps_admin_one(&plan, server, &answer, &ignored))
        return false;
    report = cJSON_Parse(answer);
    replication = cJSON_GetObjectItemCaseSensitive(report, "replication");
    peer = cJSON_GetObjectItemCaseSensitive(replication, "peer");
    snprintf(ret, MESSAGE_ADDRESS_MAX, "%s", cJSON_IsString(peer) ? peer->valuestring : "");
    cJSON_Delete(report);
    free(answer);
    return ret[0] != 0;
}

static int command_node(const struct ps_admin_plan *plan, const char *server, struct err *err)
{
    char *answer = NULL, primary[MESSAGE_ADDRESS_MAX];
    int status = ps_admin_one(plan, server, &answer, err);

    if (status == PS_EMOVED && find_primary(*plan, server, primary))
        status = ps_admin_one(plan, primary, &answer, err);
    free(answer);
    return status;
}

static int command_nodes(const struct settings *s, const struct hello_reply *cluster,
                         const char *command, const char *job, struct err *err)
{
    struct ps_admin_plan plan = plan_of(s);
    int status = 0;

    plan.command = command;
    plan.argument = job;
    for (uint32_t i = 0; i < cluster->n_nodes && !status; i++)
        status = command_node(&plan, cluster->nodes[i], err);
    return status;
}

/* s: with the token and certificates that have been read. Without `drops` nothing is changed. */
static int drop_tables(const struct settings *s, const char *job, bool drops, struct err *err)
{
    struct hello_reply *cluster = memory_alloc(sizeof *cluster);
    int status = find_cluster(s, cluster, err);

    if (!status)
        status = command_nodes(s, cluster, "drop-check", job, err);
    if (!status && drops)
        status = command_nodes(s, cluster, "drop", job, err);
    free(cluster);
    return status;
}

static void job_of(const struct tune *t, uint32_t trial, char ret[static 64])
{
    snprintf(ret, 64, "%.32s.tune-%s.%u.%u", t->base->job, t->salt, trial + 1, t->rung + 1);
}

/* Without the right to drop them, the jobs of a long search would fill the servers. Any other failure, as of a server
 * that is not there yet, is for the trials to tell. */
static int check_right_to_drop(const struct tune *t, struct err *err)
{
    char job[64];
    struct err why;

    if (t->base->local)
        return 0;
    job_of(t, 0, job);
    return drop_tables(t->given, job, false, &why) == PS_EDENIED
               ? err_set(
                     err, PS_EDENIED,
                     "tune drops the jobs of its trials, which takes the role admin: %.300s",
                     why.text)
               : 0;
}

static void drop_job(struct tune *t, uint32_t trial)
{
    char job[64];
    struct err err;
    int status;

    if (t->base->local)
        return;
    job_of(t, trial, job);
    status = drop_tables(t->given, job, true, &err);
    if (!status || t->n_jobs_left++)
        return;
    err_set(&t->why_left, status, "job %s: %.300s", job, err.text);
    log_line_warn("the servers keep the tables of a trial that has ended: %s",
                  t->why_left.text);
}

/* ---- start ---- */

/* All that can be wrong in the settings. */
static int read_search(struct tune *t, struct err *err)
{
    int status = make_base(t, err);

    if (!status)
        status = search_space_of(t->given, &t->space, err);
    halving_plan(t->n, t->given->halving, &t->plan);
    if (!status)
        status = check_rungs(t, err);
    if (!status)
        status = check_secrets(t->given, err);
    return status ? status : check_svg(t->given, err);
}

static int prepare(struct tune *t, struct err *err)
{
    int status = read_search(t, err);

    snprintf(t->salt, sizeof t->salt, "%06x",
             (unsigned)(hash_mix2(clock_unix_ms(), (uint64_t)getpid()) & 0xffffff));
    if (!status)
        status = check_right_to_drop(t, err);
    if (!status)
        status = open_json(t, err);
    if (!status)
        status = count_rows(t, err);
    if (!status)
        status = make_folder(t, err);
    if (status)
        return status;
    t->processes = memory_alloc(t->base->parallel * sizeof *t->processes);
    draw_trials(t);
    return 0;
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
    s->steps_max = halving_steps(t->plan.share[t->rung], t->n_rows, s->epochs, s->batch,
                                 t->base->steps_max);
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
    if (!s || trial_process_start(s, t->dir, trial, (uint32_t)(p - t->processes), p, &err))
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

    trial_process_end(p, t->given->best_by == BEST_BY_LOGLOSS, &result, why);
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
    const bool is_unheard = t->json == stdout && ferror(stdout); /* as of `| head` */

    if (t->is_stopped || !(is_unheard || stop_signal_asked(t->stop)))
        return;
    t->is_stopped = true;
    log_line_info("%s: the trials that run are ended",
                  is_unheard ? "--json: nobody reads stdout" : "a signal asked for it");
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

    check_stop(t); /* one may have come while the rows were counted */
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

/* All epochs, as far as --steps-max lets them. */
static uint64_t n_rows_of_whole(const struct tune *t)
{
    const uint64_t n_rows = t->n_rows * t->base->epochs,
                   max = t->base->steps_max * t->base->batch;

    return max && max < n_rows ? max : n_rows;
}

static void run_rungs(struct tune *t)
{
    t->n_order = t->n;
    for (;;) {
        log_line_info("rung %u of %u: %u trial%s, each on %.3g %% of %llu rows", t->rung + 1,
                      t->plan.n_rungs, t->n_order, NUMBER_PLURAL(t->n_order),
                      100 * t->plan.share[t->rung], (unsigned long long)n_rows_of_whole(t));
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
        log_line_warn("the servers still have the tables of %u trial%s (psctl drop): %s",
                      t->n_jobs_left, NUMBER_PLURAL(t->n_jobs_left), t->why_left.text);
    tune_report_end(t);
    if (t->json && ferror(t->json))
        return err_set(err, -EIO, "--json: %.300s cannot be written", t->given->json);
    if (tune_report_best(t) == t->n)
        return err_set(err, PS_EDATA,
                       t->is_stopped ? "no trial has ended before the signal"
                                     : "no trial has ended well; the first: %s",
                       t->trials[0].why);
    return t->given->svg[0] ? tune_report_write_svg(t, err) : 0;
}

static struct tune *new_tune(const struct settings *s)
{
    struct tune *t = memory_alloc(sizeof *t);

    t->given = s;
    t->n = s->trials;
    return t;
}

int tune_run(const struct settings *s, char *const *words, const struct stop_signal *stop,
             struct err *err)
{
    struct tune *t = new_tune(s);
    int status;

    t->words = words;
    t->stop = stop;
    (void)signal(SIGPIPE,
                 SIG_IGN); /* a reader that goes must not leave trials and jobs behind */
    status = prepare(t, err);
    if (!status) {
        run_rungs(t);
        status = report(t, err);
    }
    free_all(t);
    return status;
}

int tune_check(const struct settings *s, struct err *err)
{
    struct tune *t = new_tune(s);
    struct setup setup = { 0 };
    int status = read_search(t, err);

    if (!status)
        status = setup_check(&setup, t->base, true, true, err);
    if (!status && setup_first_pipe(&setup))
        status = refuse_pipe(&setup, err);
    setup_deinit(&setup);
    free_all(t);
    return status;
}

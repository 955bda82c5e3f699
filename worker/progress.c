#include "worker/progress.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "common/number.h"
#include "worker/client/pending_report.h"
#include "worker/metrics_endpoint.h"

#define BAR_CELLS 24

struct progress {
    FILE *json;                        /* owned unless stdout; NULL without --json */
    struct metrics_endpoint *endpoint; /* owned; NULL without --metrics-listen */
    bool terminal;                     /* stderr is one: draw a bar */
    bool drawn;                        /* a bar stands on the current line */
    uint64_t every_ns;
    double started, paused_at, paused; /* seconds */
    double last_report;
    uint64_t last_samples;
    struct stage_times last_stages;
    double last_loss, last_auc; /* auc: 0 before the first validation */
    /* What the servers get. */
    struct {
        struct pending_report *pending; /* borrowed; NULL: nothing */
        uint64_t every_ns;
        double at; /* seconds */
        uint64_t samples;
        struct stage_times stages;
        struct learning_report last; /* its loss is not carried on */
    } reports;
};

static double now_s(void)
{
    return (double)clock_mono_ns() * 1e-9;
}

int progress_open(const struct settings *s, struct progress **ret, struct err *err)
{
    FILE *json = NULL;
    struct progress *p;

    if (strcmp(s->json, "-") == 0) {
        json = stdout;
    } else if (s->json[0]) {
        json = fopen(s->json, "w");
        if (!json)
            return err_set(err, -errno, "--json: %s cannot be written: %s", s->json,
                           strerror(errno));
    }
    p = memory_alloc(sizeof *p);
    *p = (struct progress){ .json = json,
                            .terminal = isatty(STDERR_FILENO) == 1,
                            .every_ns = s->progress_every_ms * 1000000,
                            .started = now_s() };
    p->last_report = p->reports.at = p->started;
    p->reports.pending = s->report;
    p->reports.every_ns = (s->progress_every_ms < PROGRESS_REPORT_MS ? s->progress_every_ms
                                                                     : PROGRESS_REPORT_MS) *
                          UINT64_C(1000000);
    *ret = p;
    return 0;
}

int progress_listen(struct progress *p, const struct settings *s, struct err *err)
{
    return metrics_endpoint_open(s, &p->endpoint, err);
}

/* JSON has no NaN: what cannot be said is null. */
static void put_number(FILE *out, const char *name, double value)
{
    if (isfinite(value))
        fprintf(out, ",\"%s\":%.17g", name, value);
    else
        fprintf(out, ",\"%s\":null", name);
}

static void put_count(FILE *out, const char *name, uint64_t value)
{
    fprintf(out, ",\"%s\":%llu", name, (unsigned long long)value);
}

static double bytes_per_sample(const struct progress_state *s)
{
    return s->samples ? (double)(s->store.bytes_in + s->store.bytes_out) / (double)s->samples
                      : 0;
}

static void put_state(FILE *out, const struct progress_state *s, double samples_per_s,
                      double loss)
{
    put_count(out, "epoch", s->epoch);
    put_count(out, "step", s->step);
    put_count(out, "samples", s->samples);
    put_number(out, "samples_per_s", samples_per_s);
    put_number(out, "loss", loss);
    put_count(out, "min_clock", s->store.min_clock);
    put_count(out, "staleness_max", s->store.staleness_max);
    put_number(out, "wire_bytes_per_sample", bytes_per_sample(s));
    put_count(out, "device_rows_copied", s->device_rows.n_copied);
    put_count(out, "device_rows_reused", s->device_rows.n_kept);
    put_count(out, "device_rows_held", s->store.rows_on_device);
    put_count(out, "device_rows_bytes", s->store.rows_on_device * s->device_rows.row_bytes);
}

/* Share of the time that each stage was busy; those that were it most come first in a person's
 * mind, so that one is named. */
static void put_stages(FILE *out, const struct stage_times *s, double seconds)
{
    uint64_t wall_ns = seconds > 0 ? (uint64_t)(seconds * 1e9) : 0;
    char name[32];

    for (uint32_t i = 0; i < STAGE_TIMES_N; i++) {
        snprintf(name, sizeof name, "busy_%s", stage_times_name((enum stage)i));
        put_number(out, name, stage_times_share(s, (enum stage)i, wall_ns));
    }
    fprintf(out, ",\"bottleneck\":\"%s\"", stage_times_name(stage_times_bottleneck(s)));
}

static void put_cache(FILE *out, const struct ps_stats *s)
{
    put_count(out, "rows_asked", s->rows_asked);
    put_count(out, "rows_cached", s->rows_cached);
    put_count(out, "rows_pulled_again", s->rows_pulled_again);
    put_count(out, "rows_read_ahead", s->rows_read_ahead);
    put_count(out, "bytes_saved", s->bytes_saved);
}

/* As JSON has it. */
static void put_name(FILE *out, const char *name)
{
    for (; *name; name++)
        if ((unsigned char)*name < 0x20)
            fprintf(out, "\\u%04x", (unsigned)*name);
        else
            fprintf(out, strchr("\"\\", *name) ? "\\%c" : "%c", *name);
}

static void put_tasks(FILE *out, const struct metrics_result *m)
{
    fputs(",\"tasks\":[", out);
    for (uint32_t i = 0; i < m->n_tasks; i++) {
        fprintf(out, "%s{\"label\":\"", i ? "," : "");
        put_name(out, m->tasks[i].label);
        fputc('"', out);
        put_number(out, "auc", m->tasks[i].auc);
        put_number(out, "logloss", m->tasks[i].logloss);
        put_number(out, "normalised_entropy", m->tasks[i].ne);
        put_number(out, "calibration", m->tasks[i].calibration);
        fputc('}', out);
    }
    fputc(']', out);
}

static void put_metrics(FILE *out, const struct metrics_result *m)
{
    put_number(out, "auc", m ? m->auc : NAN);
    put_number(out, "logloss", m ? m->logloss : NAN);
    put_number(out, "normalised_entropy", m ? m->ne : NAN);
    put_number(out, "calibration", m ? m->calibration : NAN);
    put_count(out, "validation_rows", m ? m->n : 0);
    if (m && m->n_tasks)
        put_tasks(out, m);
}

static void log_tasks(const struct metrics_result *m)
{
    for (uint32_t i = 0; i < m->n_tasks; i++)
        log_line_info("label %s: AUC %.4f, log-loss %.4f, normalised entropy %.4f",
                      m->tasks[i].label, m->tasks[i].auc, m->tasks[i].logloss, m->tasks[i].ne);
}

static void clear_bar(struct progress *p)
{
    if (p->drawn)
        fputs("\r\033[K", stderr);
    p->drawn = false;
}

/* How far the run is, where its length is known. */
static void draw_share(const struct progress_state *s)
{
    double share = (double)s->samples / (double)s->samples_expected;
    int full = (int)(share * BAR_CELLS);

    fputs(" [", stderr);
    for (int i = 0; i < BAR_CELLS; i++)
        fputc(i < full ? '#' : '.', stderr);
    fprintf(stderr, "] %3.0f%%", share * 100);
}

static void draw_bar(struct progress *p, const struct progress_state *s, double rate,
                     double loss)
{
    clear_bar(p);
    fprintf(stderr, "epoch %u/%u", s->epoch + 1, s->n_epochs);
    if (s->samples_expected)
        draw_share(s);
    else
        fprintf(stderr, ", %llu samples", (unsigned long long)s->samples);
    fprintf(stderr, "  %.0f samples/s  loss %.4f", rate, loss);
    if (p->last_auc > 0)
        fprintf(stderr, "  AUC %.4f", p->last_auc);
    fprintf(stderr, "  staleness %llu  %.0f bytes/sample",
            (unsigned long long)s->store.staleness_max, bytes_per_sample(s));
    fflush(stderr);
    p->drawn = true;
}

void progress_loss(struct progress_state *state, double loss)
{
    if (state->loss_epoch != state->epoch) {
        state->epoch_loss_sum = 0;
        state->epoch_loss_n = 0;
        state->loss_epoch = state->epoch;
    }
    state->loss_sum += loss;
    state->loss_n++;
    state->unreported_loss_sum += loss;
    state->unreported_loss_n++;
    state->epoch_loss_sum += loss;
    state->epoch_loss_n++;
}

static void show_state(struct progress *p, const struct progress_state *state)
{
    const struct metrics_endpoint_state shown = { .epoch = state->epoch,
                                                  .clock = state->clock,
                                                  .steps = state->step,
                                                  .samples = state->samples,
                                                  .n_bad_rows = state->bad.n,
                                                  .store = state->store };

    metrics_endpoint_set_state(p->endpoint, &shown);
}

/* ---- for the servers ---- */

static void put_busy(struct learning_report *r, const struct stage_times *stages,
                     double seconds)
{
    _Static_assert(STAGE_TIMES_N == LEARNING_STAGES, "the stages of a report");
    const uint64_t wall_ns = seconds > 0 ? (uint64_t)(seconds * 1e9) : 0;

    for (uint32_t i = 0; i < LEARNING_STAGES; i++)
        r->busy[i] = (uint16_t)lround(1000 * stage_times_share(stages, (enum stage)i, wall_ns));
}

static uint32_t at_most_u32(uint64_t n)
{
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* What is no number that servers take stays away. */
static void put_report(struct progress *p, const struct learning_report *report)
{
    const char *wrong = learning_report_wrong(report);

    if (wrong)
        log_line_debug("a report to the servers is left out: %s", wrong);
    else
        pending_report_put(p->reports.pending, report);
}

static void report_steps(struct progress *p, struct progress_state *state, double now)
{
    struct learning_report *r = &p->reports.last;
    const struct stage_times stages = stage_times_since(&state->stages, &p->reports.stages);
    const double lasted = now - p->reports.at;

    r->samples = state->samples_before + state->samples;
    r->steps = at_most_u32(state->unreported_loss_n);
    if (r->steps)
        r->loss = (float)(state->unreported_loss_sum / (double)state->unreported_loss_n);
    if (lasted > 0)
        r->samples_per_s = (float)((double)(state->samples - p->reports.samples) / lasted);
    put_busy(r, &stages, lasted);
    state->unreported_loss_sum = 0;
    state->unreported_loss_n = 0;
    p->reports.at = now;
    p->reports.samples = state->samples;
    p->reports.stages = state->stages;
    put_report(p, r);
    r->steps = 0;
}

void progress_report(struct progress *p, struct progress_state *state)
{
    if (p->reports.pending && state->unreported_loss_n)
        report_steps(p, state, now_s());
}

static void report_if_due(struct progress *p, struct progress_state *state, double now)
{
    if (p->reports.pending && (now - p->reports.at) * 1e9 >= (double)p->reports.every_ns)
        report_steps(p, state, now);
}

static void report_validation(struct progress *p, const struct progress_state *state,
                              const struct metrics_result *result)
{
    struct learning_report *r = &p->reports.last;

    if (!p->reports.pending)
        return;
    r->samples = state->samples_before + state->samples;
    r->n_validations++;
    r->has_one_class = !isfinite(result->auc);
    r->auc = r->has_one_class ? 0 : (float)result->auc;
    r->logloss = (float)result->logloss;
    put_report(p, r);
}

void progress_kept(struct progress *p, uint32_t epoch, uint64_t step)
{
    struct learning_report *r = &p->reports.last;

    r->kept_epoch = epoch + 1;
    r->kept_step = step;
    if (p->reports.pending)
        put_report(p, r);
}

void progress_report_validation(struct progress *p, const struct progress_state *state,
                                const struct metrics_result *result)
{
    report_validation(p, state, result);
    if (p->reports.pending)
        pending_report_wait(p->reports.pending, PROGRESS_REPORT_MS);
}

/* ---- a step, a validation ---- */

void progress_step(struct progress *p, struct progress_state *state)
{
    double now = now_s(), lasted = now - p->last_report, rate;
    struct stage_times stages;

    show_state(p, state);
    report_if_due(p, state, now);
    if ((now - p->last_report) * 1e9 < (double)p->every_ns)
        return;
    rate = (double)(state->samples - p->last_samples) / lasted;
    stages = stage_times_since(&state->stages, &p->last_stages);
    p->last_stages = state->stages;
    if (state->loss_n)
        p->last_loss = state->loss_sum / (double)state->loss_n;
    state->loss_sum = 0;
    state->loss_n = 0;
    p->last_report = now;
    p->last_samples = state->samples;
    metrics_endpoint_set_rates(p->endpoint, rate, p->last_loss, &stages, lasted);
    if (p->terminal)
        draw_bar(p, state, rate, p->last_loss);
    else
        log_line_info("epoch %u/%u, step %llu: %.0f samples/s, loss %.4f, staleness %llu, %.0f "
                      "bytes/sample",
                      state->epoch + 1, state->n_epochs, (unsigned long long)state->step, rate,
                      p->last_loss, (unsigned long long)state->store.staleness_max,
                      bytes_per_sample(state));
    sd_notifyf(0, "STATUS=epoch %u of %u, step %llu, loss %.4f, %.0f samples/s",
               state->epoch + 1, state->n_epochs, (unsigned long long)state->step, p->last_loss,
               rate);
    if (!p->json)
        return;
    fputs("{\"event\":\"progress\"", p->json);
    put_state(p->json, state, rate, p->last_loss);
    put_number(p->json, "seconds", now - p->started - p->paused);
    put_stages(p->json, &stages, lasted);
    fputs("}\n", p->json);
    fflush(p->json);
}

void progress_validation(struct progress *p, const struct progress_state *state,
                         const struct metrics_result *result)
{
    clear_bar(p);
    metrics_endpoint_set_validation(p->endpoint, result);
    report_validation(p, state, result);
    if (isfinite(result->auc))
        p->last_auc = result->auc;
    log_line_info(
        "epoch %u/%u, step %llu: validation AUC %.4f, log-loss %.4f, normalised entropy "
        "%.4f, %llu rows",
        state->epoch + 1, state->n_epochs, (unsigned long long)state->step, result->auc,
        result->logloss, result->ne, (unsigned long long)result->n);
    log_tasks(result);
    if (!p->json)
        return;
    fputs("{\"event\":\"validation\"", p->json);
    put_count(p->json, "epoch", state->epoch);
    put_count(p->json, "step", state->step);
    put_metrics(p->json, result);
    fputs("}\n", p->json);
    fflush(p->json);
}

static void report_bottleneck(const struct progress_state *state, double seconds)
{
    char text[STAGE_TIMES_SENTENCE_BYTES];

    if (!state->step || !(seconds > 0))
        return;
    stage_times_sentence(&state->stages, (uint64_t)(seconds * 1e9), text, sizeof text);
    log_line_info("%s", text);
}

static void report_cache(const struct ps_stats *s)
{
    if (s->rows_asked)
        log_line_info(
            "the row cache had %.1f%% of %llu rows, %.2f%% were pulled again; %.1f MB of "
            "values were not sent",
            100 * (double)s->rows_cached / (double)s->rows_asked,
            (unsigned long long)s->rows_asked,
            100 * (double)s->rows_pulled_again / (double)s->rows_asked,
            (double)s->bytes_saved * 1e-6);
}

static void report_device_rows(const struct dlrm_row_counts *c, const struct ps_stats *s)
{
    if (s->rows_on_device)
        log_line_info("the device holds %llu rows with their optimizer's states, %.1f MB",
                      (unsigned long long)s->rows_on_device,
                      (double)(s->rows_on_device * c->row_bytes) * 1e-6);
    if (c->n_kept)
        log_line_info("of %llu rows the device had %.1f%%, the others were copied there",
                      (unsigned long long)(c->n_copied + c->n_kept),
                      100 * (double)c->n_kept / (double)(c->n_copied + c->n_kept));
}

static void report_refused(const struct ps_stats *s)
{
    if (s->rows_refused)
        log_line_warn(
            "%llu time%s a new embedding row found no place in the servers' memory: such "
            "keys did not learn (psd --memory-max, --table-max; psctl tables: REFUSED)",
            (unsigned long long)s->rows_refused, NUMBER_PLURAL(s->rows_refused));
}

static void report_lost(const struct progress_state *s)
{
    if (s->store.pushes_lost)
        log_line_warn("servers that crashed have lost %llu push%s that they had acknowledged: "
                      "what was learned from them is gone (psd --durability fsync loses none)",
                      (unsigned long long)s->store.pushes_lost,
                      s->store.pushes_lost == 1 ? "" : "es");
    if (s->store.pushes_late)
        log_line_info("%llu push%s of this worker came after the first ones of their step, "
                      "which went on without "
                      "them (--backup-workers)",
                      (unsigned long long)s->store.pushes_late,
                      s->store.pushes_late == 1 ? "" : "es");
    if (s->workers_lost)
        log_line_warn("%u of the job's workers %s lost", s->workers_lost,
                      s->workers_lost == 1 ? "was" : "were");
}

static void put_lost(FILE *out, const struct progress_state *s)
{
    put_count(out, "workers_lost", s->workers_lost);
    put_number(out, "rows_untrained", s->is_untrained_known ? (double)s->rows_untrained : NAN);
    put_count(out, "pushes_lost", s->store.pushes_lost);
    put_count(out, "pushes_late", s->store.pushes_late);
}

void progress_result(struct progress *p, const struct progress_state *state,
                     const struct metrics_result *valid, const char *stopped)
{
    double seconds = now_s() - p->started - p->paused;
    double rate = seconds > 0 ? (double)state->samples / seconds : 0;
    double loss = state->epoch_loss_n ? state->epoch_loss_sum / (double)state->epoch_loss_n : 0;

    clear_bar(p);
    if (stopped)
        log_line_info("stopped early: %s", stopped);
    report_bottleneck(state, seconds);
    if (state->step)
        log_line_info(
            "trained on %llu samples in %.1f s: %.0f samples/s, %.0f bytes/sample on the "
            "wire%s",
            (unsigned long long)state->samples, seconds, rate, bytes_per_sample(state),
            state->validates || valid ? "" : " (no validation rows were given)");
    report_cache(&state->store);
    report_refused(&state->store);
    report_device_rows(&state->device_rows, &state->store);
    report_lost(state);
    if (state->bad.n)
        log_line_warn("%llu malformed %s skipped (--bad-rows-max); the first: %s",
                      (unsigned long long)state->bad.n,
                      state->bad.n == 1 ? "row was" : "rows were", state->bad.first);
    if (valid)
        log_line_info("%s %.4f, log-loss %.4f, normalised entropy %.4f, %llu rows",
                      state->step ? "validation AUC" : "AUC", valid->auc, valid->logloss,
                      valid->ne, (unsigned long long)valid->n);
    if (valid)
        log_tasks(valid);
    if (!p->json)
        return;
    fputs("{\"event\":\"result\"", p->json);
    put_state(p->json, state, rate, loss);
    put_number(p->json, "seconds", seconds);
    put_stages(p->json, &state->stages, seconds);
    put_metrics(p->json, valid);
    put_count(p->json, "bytes_in", state->store.bytes_in);
    put_count(p->json, "bytes_out", state->store.bytes_out);
    put_count(p->json, "rows_pulled", state->store.rows_pulled);
    put_count(p->json, "rows_pushed", state->store.rows_pushed);
    put_count(p->json, "rows_refused", state->store.rows_refused);
    put_count(p->json, "residual_rows", state->store.residual_rows);
    put_count(p->json, "residual_bytes", state->store.residual_bytes);
    put_count(p->json, "residual_settled", state->store.residual_flushed);
    put_cache(p->json, &state->store);
    put_count(p->json, "reconnects", state->store.reconnects);
    put_count(p->json, "resent_pushes", state->store.resent_pushes);
    put_count(p->json, "rejoins", state->store.rejoins);
    put_number(p->json, "parked_seconds", (double)state->store.park_ns * 1e-9);
    put_count(p->json, "bad_rows", state->bad.n);
    put_lost(p->json, state);
    if (p->reports.last.kept_epoch) {
        put_count(p->json, "kept_epoch", p->reports.last.kept_epoch - 1);
        put_count(p->json, "kept_step", p->reports.last.kept_step);
    }
    fprintf(p->json, ",\"stopped_early\":%s}\n", stopped ? "true" : "false");
    fflush(p->json);
}

void progress_failure(struct progress *p, const char *sentence)
{
    cJSON *text;
    char *quoted;

    if (!p || !p->json)
        return;
    text = cJSON_CreateString(sentence);
    quoted = cJSON_PrintUnformatted(text);
    fprintf(p->json, "{\"event\":\"failure\",\"error\":%s}\n", quoted ? quoted : "null");
    cJSON_free(quoted);
    cJSON_Delete(text);
}

void progress_pause(struct progress *p)
{
    clear_bar(p);
    p->paused_at = now_s();
}

void progress_resume(struct progress *p)
{
    double lasted = now_s() - p->paused_at;

    p->paused += lasted;
    p->last_report += lasted;
    p->reports.at += lasted;
}

double progress_seconds(const struct progress *p)
{
    return now_s() - p->started - p->paused;
}

int progress_close(struct progress *p, struct err *err)
{
    int status = 0;

    if (!p)
        return 0;
    clear_bar(p);
    metrics_endpoint_close(p->endpoint);
    if (p->json && (ferror(p->json) || (p->json == stdout ? fflush(stdout) : fclose(p->json))))
        status = err_set(err, -EIO, "--json: not all of it could be written");
    free(p);
    return status;
}

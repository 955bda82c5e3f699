#include "worker/report/training_report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "worker/atomic_file.h"
#include "worker/report/calibration.h"
#include "worker/report/importance.h"
#include "worker/report/report_page.h"
#include "worker/report/row_sample.h"
#include "worker/report/training_history.h"

#define ROWS_SALT UINT64_C(0x7265706f72742d72)
#define PERMUTE_SALT UINT64_C(0x7265706f72742d70)

struct training_report {
    const struct settings *s; /* borrowed */
    uint64_t started_ns;
    struct evaluate_observer observer;
    struct training_history history;
    struct row_sample rows; /* owned */
    bool rows_failed;       /* no memory for them */
    uint32_t n_labels;      /* of calibrations; 0: none */
    struct calibration calibrations[METRICS_TASKS_MAX];
    struct importance importance; /* owned */
    struct err why_not_measured, why_not_calibrated;
    double measure_s;
};

static double seconds_since(uint64_t ns)
{
    return (double)(clock_mono_ns() - ns) * 1e-9;
}

/* ---- what comes while it trains ---- */

static void add_rows(void *arg, const struct batch *batch)
{
    struct training_report *r = arg;

    if (!r->rows_failed)
        r->rows_failed = row_sample_add(&r->rows, batch) != 0;
}

static void add_calibrations(void *arg, const struct metrics *metrics, uint32_t n_labels)
{
    struct training_report *r = arg;

    for (uint32_t i = 0; i < n_labels; i++)
        if (calibration_of(&metrics[i], &r->calibrations[i])) {
            err_set(&r->why_not_calibrated, -ENOMEM,
                    "there was no memory to order %llu predictions",
                    (unsigned long long)metrics[i].n);
            log_line_warn("--report: %s", r->why_not_calibrated.text);
            return;
        }
    r->n_labels = n_labels;
}

void training_report_loss(struct training_report *r, double loss)
{
    if (r)
        training_history_loss(&r->history, loss);
}

static double samples_of(const struct progress_state *state)
{
    return (double)(state->samples_before + state->samples);
}

void training_report_step(struct training_report *r, const struct progress_state *state,
                          double train_s)
{
    if (!r)
        return;
    r->history.samples_start = (double)state->samples_before;
    training_history_step(&r->history, samples_of(state), train_s);
}

void training_report_validation(struct training_report *r, const struct progress_state *state,
                                const struct metrics_result *result)
{
    if (r)
        training_history_validation(&r->history, state->epoch, samples_of(state), result);
}

const struct evaluate_observer *training_report_observer(struct training_report *r)
{
    return r ? &r->observer : NULL;
}

/* ---- begin ---- */

/* A later look at a disk that is full, or a folder that is not there, would come after hours of training. */
static int try_file(const char *path, struct err *err)
{
    struct err why;
    const int status = atomic_file_try(path, &why);

    return status ? err_set(err, status, "--report: %.300s cannot be written: %s", path,
                            strerror(-status))
                  : 0;
}

int training_report_new(const struct settings *s, struct training_report **ret, struct err *err)
{
    struct training_report *r;
    int status;

    *ret = NULL;
    if (!s->report_page[0] || s->rank)
        return 0;
    status = try_file(s->report_page, err);
    if (status)
        return status;
    r = memory_alloc(sizeof *r);
    r->s = s;
    r->started_ns = clock_mono_ns();
    r->observer = (struct evaluate_observer){ r, add_rows, add_calibrations };
    r->rows_failed =
        row_sample_init(&r->rows, s->report_rows, hash_mix2(s->seed, ROWS_SALT)) != 0;
    *ret = r;
    return 0;
}

void training_report_free(struct training_report *r)
{
    if (!r)
        return;
    row_sample_deinit(&r->rows);
    importance_deinit(&r->importance);
    free(r);
}

/* ---- end ---- */

static void measure(struct training_report *r, const struct training_report_end *end)
{
    const struct importance_options options = { .setup = end->setup,
                                                .tables = end->tables,
                                                .sample = &r->rows,
                                                .stop = end->stop,
                                                .seed = hash_mix2(r->s->seed, PERMUTE_SALT) };
    const uint64_t since_ns = clock_mono_ns();

    if (!end->result) {
        err_set(&r->why_not_measured, 0, "%s",
                end->failure            ? "the run failed"
                : end->setup->has_valid ? "the run was stopped before its last validation"
                                        : "that takes validation rows: give --valid, "
                                          "--valid-fraction or --train-rows");
        err_set(&r->why_not_calibrated, 0, "%s", r->why_not_measured.text);
        return;
    }
    if (r->rows_failed) {
        err_set(&r->why_not_measured, 0, "there was no memory for %u rows (--report-rows)",
                r->s->report_rows);
        return;
    }
    log_line_info("measuring the importance of %u columns on %u rows (--report)",
                  r->rows.n_numeric + r->rows.n_fields, r->rows.n);
    (void)!importance_measure(&options, &r->importance, &r->why_not_measured);
    r->measure_s = seconds_since(since_ns);
}

static uint64_t peak_bytes(void)
{
    struct rusage usage;

    return getrusage(RUSAGE_SELF, &usage) ? 0 : (uint64_t)usage.ru_maxrss * 1024;
}

static struct report_page_cost cost_of(const struct training_report *r,
                                       const struct training_report_end *end)
{
    _Static_assert(CODEC_ID_END <= REPORT_PAGE_CODECS, "a row for each codec");
    const struct ps_stats *stats = &end->run->store;
    struct report_page_cost cost = { .train_s = end->train_s,
                                     .total_s = seconds_since(r->started_ns),
                                     .measure_s = r->measure_s,
                                     .peak_bytes = peak_bytes(),
                                     .n_codecs = CODEC_ID_END };

    for (uint32_t i = 0; i < CODEC_ID_END; i++)
        cost.codecs[i] =
            (struct report_page_codec){ codec_by_id(i)->name, stats->values_pulled[i],
                                        stats->values_pushed[i] };
    return cost;
}

/* The caller's to free; NULL: no memory. */
static char *print_page(const struct report_page *page, size_t *ret_bytes)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, ret_bytes);
    bool has_failed;

    if (!out)
        return NULL;
    report_page_put(page, out);
    has_failed = ferror(out);
    if (fclose(out) || has_failed) {
        free(text);
        return NULL;
    }
    return text;
}

static int write_page(const struct training_report *r, const struct report_page *page)
{
    size_t n_bytes;
    char *text = print_page(page, &n_bytes);
    struct err err;
    int status = text ? atomic_file_write(r->s->report_page, text, n_bytes, &err) : -ENOMEM;

    free(text);
    return status;
}

void training_report_write(struct training_report *r, const struct training_report_end *end)
{
    char labels[METRICS_TASKS_MAX][SCHEMA_NAME_MAX];
    struct report_page page;
    int status;

    if (!r)
        return;
    training_history_end(&r->history, samples_of(end->run), end->train_s);
    measure(r, end);
    for (uint32_t i = 0; i < r->n_labels; i++)
        schema_label_id(end->setup->schema, i, labels[i]);
    page = (struct report_page){ .settings = r->s,
                                 .device = dlrm_device(end->setup->model),
                                 .unix_s = clock_unix_ms() / 1000,
                                 .run = end->run,
                                 .history = &r->history,
                                 .result = end->result,
                                 .n_labels = r->n_labels,
                                 .calibrations = r->n_labels ? r->calibrations : NULL,
                                 .labels = (const char(*)[SCHEMA_NAME_MAX])labels,
                                 .importance = r->importance.n ? &r->importance : NULL,
                                 .why_not_measured = r->why_not_measured.text,
                                 .why_not_calibrated = r->why_not_calibrated.text,
                                 .cost = cost_of(r, end),
                                 .stopped = end->stopped,
                                 .failure = end->failure };
    status = write_page(r, &page);
    if (status)
        log_line_warn("--report: %.300s cannot be written: %s; the training is not affected",
                      r->s->report_page, strerror(-status));
    else
        log_line_info("the report is in %s", r->s->report_page);
}

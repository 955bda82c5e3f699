#include "worker/metrics_endpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/http_server.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "common/token_file.h"

#define REQUEST_MS 10000u /* from a request's first byte to its answer's last */
#define IDLE_MS 60000u
#define CONNECTIONS_MAX 16u
#define SWEEP_EVERY_MS 200u

/* What is shown. */
struct figures {
    struct metrics_endpoint_state state;
    bool has_rates;
    double samples_per_s, loss, seconds;
    struct stage_times stages;
    uint64_t n_validations;
    struct metrics_result validation;
};

struct metrics_endpoint {
    const struct settings *s; /* borrowed */
    struct http_server *http; /* owned */
    char token[TOKEN_FILE_MAX]; /* that requests bring; "": none */
    uint64_t swept_ms;
    pthread_mutex_t lock; /* of the figures */
    struct figures figures;
};

/* ---- the text ---- */

static void put_head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP psworker_%s %s\n# TYPE psworker_%s %s\n", name, help, name, type);
}

/* psworker_NAME{job="...",rank="..." and what the caller adds. A job's name has no blank, but may have the rest. */
static void put_labels(FILE *out, const struct settings *s, const char *name)
{
    fprintf(out, "psworker_%s{job=\"", name);
    for (const char *c = s->job; *c; c++) {
        if (*c == '\\' || *c == '"')
            fputc('\\', out);
        fputc((unsigned char)*c < 0x80 ? *c : '?', out);
    }
    fprintf(out, "\",rank=\"%u\"", s->rank);
}

static void put_number(FILE *out, const struct settings *s, const char *name, const char *help,
                       bool has_value, double value)
{
    put_head(out, name, "gauge", help);
    if (!has_value)
        return;
    put_labels(out, s, name);
    if (isnan(value))
        fputs("} NaN\n", out);
    else
        fprintf(out, "} %.9g\n", value);
}

static void put_count(FILE *out, const struct settings *s, const char *name, const char *type,
                      const char *help, uint64_t value)
{
    put_head(out, name, type, help);
    put_labels(out, s, name);
    fprintf(out, "} %" PRIu64 "\n", value);
}

static void put_training(FILE *out, const struct settings *s, const struct figures *f)
{
    const struct metrics_result *valid = &f->validation;
    const bool is_validated = f->n_validations > 0;

    put_count(out, s, "epoch", "gauge", "The epoch under way, from 1.",
              f->state.epoch + UINT64_C(1));
    put_count(out, s, "clock", "gauge",
              "Steps that this worker has finished, as servers count.", f->state.clock);
    put_count(out, s, "steps_total", "counter", "Steps of this process.", f->state.steps);
    put_count(out, s, "samples_total", "counter", "Samples that this process has trained on.",
              f->state.samples);
    put_number(out, s, "samples_per_second", "Samples a second, between the last two reports.",
               f->has_rates, f->samples_per_s);
    put_number(out, s, "loss", "Mean loss of the steps between the last two reports.",
               f->has_rates, f->loss);
    put_count(out, s, "validations_total", "counter", "Validations of this process.",
              f->n_validations);
    put_number(out, s, "validation_auc", "AUC of the last validation.", is_validated,
               valid->auc);
    put_number(out, s, "validation_logloss", "Log-loss of the last validation.", is_validated,
               valid->logloss);
    put_number(out, s, "validation_rows", "Rows of the last validation.", is_validated,
               (double)valid->n);
    put_count(out, s, "bad_rows_total", "counter", "Malformed rows that were skipped.",
              f->state.n_bad_rows);
}

static void put_stages(FILE *out, const struct settings *s, const struct figures *f)
{
    const uint64_t wall_ns = f->seconds > 0 ? (uint64_t)(f->seconds * 1e9) : 0;

    put_head(out, "busy_ratio", "gauge",
             "Share of the time between the last two reports in which a stage was busy.");
    for (uint32_t i = 0; i < STAGE_TIMES_N && f->has_rates; i++) {
        put_labels(out, s, "busy_ratio");
        fprintf(out, ",stage=\"%s\"} %.6f\n", stage_times_name((enum stage)i),
                stage_times_share(&f->stages, (enum stage)i, wall_ns));
    }
}

static void put_store(FILE *out, const struct settings *s, const struct ps_stats *store)
{
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } rows[] = {
        { "min_clock", "gauge", "Clock of the job's slowest worker, as servers said last.",
          store->min_clock },
        { "received_bytes_total", "counter", "Bytes received from servers.", store->bytes_in },
        { "sent_bytes_total", "counter", "Bytes sent to servers.", store->bytes_out },
        { "rows_pulled_total", "counter", "Rows pulled.", store->rows_pulled },
        { "rows_pushed_total", "counter", "Rows pushed.", store->rows_pushed },
        { "rows_refused_total", "counter", "New rows that servers refused for want of memory.",
          store->rows_refused },
        { "pushes_lost_total", "counter",
          "Acknowledged pushes that a crash of their shard has cost.", store->pushes_lost },
        { "pushes_resent_total", "counter", "Pushes sent again after a reconnect.",
          store->resent_pushes },
        { "reconnects_total", "counter", "Connections to shards that were made anew.",
          store->reconnects },
        { "rejoins_total", "counter",
          "Times that this worker was declared dead and joined again.", store->rejoins },
        { "residual_bytes", "gauge", "Memory of residuals of codecs with feedback.",
          store->residual_bytes },
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        put_count(out, s, rows[i].name, rows[i].type, rows[i].help, rows[i].value);
    put_head(out, "parked_seconds_total", "counter",
             "Time spent waiting for answers to pulls.");
    put_labels(out, s, "parked_seconds_total");
    fprintf(out, "} %.6f\n", (double)store->park_ns * 1e-9);
}

/* NULL: no memory. */
static char *render(struct metrics_endpoint *m, size_t *ret_bytes)
{
    struct figures figures;
    char *text = NULL;
    FILE *out = open_memstream(&text, ret_bytes);

    if (!out)
        return NULL;
    pthread_mutex_lock(&m->lock);
    figures = m->figures;
    pthread_mutex_unlock(&m->lock);
    put_head(out, "build_info", "gauge", "The program's version.");
    put_labels(out, m->s, "build_info");
    fprintf(out, ",version=\"%s\"} 1\n", PS_VERSION);
    put_training(out, m->s, &figures);
    put_stages(out, m->s, &figures);
    put_store(out, m->s, &figures.state.store);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* ---- requests ---- */

static enum MHD_Result send_metrics(struct metrics_endpoint *m,
                                    struct MHD_Connection *connection)
{
    struct MHD_Response *response = NULL;
    size_t n_bytes;
    char *text = render(m, &n_bytes);

    if (text)
        response = MHD_create_response_from_buffer(n_bytes, text, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        free(text);
        return http_server_send_sentence(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                                         "no memory to make this answer\n");
    }
    return http_server_send(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8",
                            NULL, response);
}

/* First without a body, then with each piece of it, then at its end: only the end is answered. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *http_version,
                                  const char *upload_data, size_t *upload_bytes,
                                  void **request_state)
{
    struct metrics_endpoint *m = arg;
    const char *sentence;
    unsigned code;

    (void)http_version;
    (void)upload_data;
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return http_server_refuse_method(connection, "GET, HEAD",
                                         "read-only: GET and HEAD are answered\n");
    if (!*request_state) {
        *request_state = m;
        return MHD_YES;
    }
    if (*upload_bytes)
        return MHD_NO;
    code = http_server_check_host(m->http, connection, &sentence);
    if (code)
        return http_server_send_sentence(connection, code, sentence);
    if (m->token[0] && !http_server_has_token(connection, m->token))
        return http_server_send_challenge(
            connection, "Bearer",
            "a token is expected: Authorization: Bearer TOKEN, of --http-token-file\n");
    if (strcmp(url, "/metrics") == 0)
        return send_metrics(m, connection);
    return http_server_send_sentence(connection, MHD_HTTP_NOT_FOUND,
                                     "no such page; there is /metrics\n");
}

static const struct http_server_events events = { .on_request = on_request };

/* ---- for the trainer ---- */

int metrics_endpoint_open(const struct settings *s, struct metrics_endpoint **ret,
                          struct err *err)
{
    struct http_server_config config = {
        .address = s->metrics_listen,
        .names = { .self = "",
                   .hosts = &s->http_hosts,
                   .refusal = "the name in the header Host is none of this server's; "
                              "--http-hosts lists more\n" },
        .request_ms = REQUEST_MS,
        .idle_ms = IDLE_MS,
        .address_max = CONNECTIONS_MAX,
        .connections_max = CONNECTIONS_MAX,
        .events = &events
    };
    struct metrics_endpoint *m;
    int status;

    *ret = NULL;
    if (!s->metrics_listen[0])
        return 0;
    m = memory_alloc(sizeof *m);
    *m = (struct metrics_endpoint){ .s = s };
    pthread_mutex_init(&m->lock, NULL);
    config.owner = m;
    status = token_file_read(&file_os, s->http_token_file, m->token, err);
    if (!status)
        status = http_server_open(&config, &m->http, err);
    if (!status)
        status = http_server_start(m->http, err);
    if (status) {
        metrics_endpoint_close(m);
        return status;
    }
    log_line_info("metrics on http://%s/metrics", metrics_endpoint_address(m));
    *ret = m;
    return 0;
}

void metrics_endpoint_close(struct metrics_endpoint *m)
{
    if (!m)
        return;
    http_server_stop(m->http);
    http_server_free(m->http);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

const char *metrics_endpoint_address(const struct metrics_endpoint *m)
{
    return m ? http_server_address(m->http) : "";
}

/* Slow clients go when there is a step; while the trainer waits, a new client takes the oldest's place. */
static void sweep(struct metrics_endpoint *m)
{
    struct http_server_counts ignored;
    uint64_t now_ms = clock_mono_ms();

    if (now_ms - m->swept_ms < SWEEP_EVERY_MS)
        return;
    m->swept_ms = now_ms;
    http_server_sweep(m->http, now_ms, &ignored);
}

void metrics_endpoint_set_state(struct metrics_endpoint *m,
                                const struct metrics_endpoint_state *state)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    m->figures.state = *state;
    pthread_mutex_unlock(&m->lock);
    sweep(m);
}

void metrics_endpoint_set_rates(struct metrics_endpoint *m, double samples_per_s, double loss,
                                const struct stage_times *stages, double seconds)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    m->figures.has_rates = true;
    m->figures.samples_per_s = samples_per_s;
    m->figures.loss = loss;
    m->figures.stages = *stages;
    m->figures.seconds = seconds;
    pthread_mutex_unlock(&m->lock);
}

void metrics_endpoint_set_validation(struct metrics_endpoint *m,
                                     const struct metrics_result *result)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    m->figures.n_validations++;
    m->figures.validation = *result;
    pthread_mutex_unlock(&m->lock);
}

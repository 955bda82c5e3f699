/* The lines of JSON that psbench_report.h promises. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "proto/codec_catalog.h"
#include "tests/bench/psbench_cpu.h"
#include "tests/bench/psbench_handshake.h"
#include "tests/bench/psbench_report.h"

static void put(cJSON *object, const char *name, double value)
{
    cJSON_AddNumberToObject(object, name, value);
}

/* Not more digits than were measured. */
static void put_short(cJSON *object, const char *name, double value)
{
    put(object, name, round(value * 1e4) / 1e4);
}

void psbench_report_spread(cJSON *object, const char *name, const struct psbench_spread *spread)
{
    cJSON *item = cJSON_AddObjectToObject(object, name);

    put_short(item, "median", spread->median);
    put_short(item, "min", spread->min);
    put_short(item, "max", spread->max);
}

cJSON *psbench_report_open(const struct psbench_settings *s)
{
    cJSON *line = cJSON_CreateObject();
    char model[128];

    psbench_cpu_model(model, sizeof model);
    cJSON_AddStringToObject(line, "event", "result");
    cJSON_AddStringToObject(line, "load", psbench_report_load_name(s->load));
    cJSON_AddBoolToObject(line, "local", s->local);
    put(line, "unix_ms", (double)psbench_handshake_unix_ms());
    cJSON_AddStringToObject(line, "cpu_model", model);
    put(line, "cores", psbench_cpu_count());
    put(line, "keys_per_request", s->keys_per_request);
    put(line, "dim", s->dim);
    put(line, "rows", (double)s->rows);
    put_short(line, "zipf", (double)s->zipf);
    put_short(line, "pull_share", (double)s->pull_share);
    put(line, "connections", s->connections);
    put(line, "depth", s->depth);
    put_short(line, "rate", (double)s->rate);
    cJSON_AddStringToObject(line, "arrivals",
                            s->rate == 0                     ? "closed loop"
                            : s->arrivals == PSBENCH_POISSON ? "poisson"
                                                             : "fixed");
    cJSON_AddStringToObject(line, "codec", codec_by_id((uint32_t)s->codec)->name);
    cJSON_AddStringToObject(line, "optimizer",
                            table_spec_optim_name((enum table_spec_optim)s->optimizer));
    cJSON_AddStringToObject(line, "storage",
                            table_spec_storage_name((enum table_spec_storage)s->storage));
    cJSON_AddBoolToObject(line, "compress", s->compress);
    return line;
}

static void put_latency(cJSON *object, const struct histogram *h)
{
    put_short(object, "p50_us", (double)histogram_quantile(h, 0.5) / 1e3);
    put_short(object, "p99_us", (double)histogram_quantile(h, 0.99) / 1e3);
    put_short(object, "p999_us", (double)histogram_quantile(h, 0.999) / 1e3);
    put_short(object, "max_us", (double)h->max / 1e3);
}

static void put_cpu(cJSON *line, const struct psbench_counts *c)
{
    const char *name = "server_cpu_s_per_million_rows";

    if (c->server_cpu_seconds < 0 || !c->server_pid || !c->n_rows)
        cJSON_AddNullToObject(line, name);
    else
        put_short(line, name, c->server_cpu_seconds * 1e6 / (double)c->n_rows);
    put_short(line, "client_busy", c->client_cpu_seconds / c->seconds);
    cJSON_AddBoolToObject(line, "client_spins", c->spins);
}

static void put_counts(cJSON *line, const struct psbench_counts *c)
{
    const struct psbench_traffic *pull = &c->traffic[PSBENCH_IS_PULL];
    const struct psbench_traffic *push = &c->traffic[PSBENCH_IS_PUSH];
    uint64_t bytes_in = pull->bytes_in + push->bytes_in;
    uint64_t bytes_out = pull->bytes_out + push->bytes_out;

    put(line, "shards", c->n_shards);
    put_short(line, "seconds", c->seconds);
    put(line, "requests", (double)(pull->n_requests + push->n_requests));
    put_short(line, "rows_per_s", (double)c->n_rows / c->seconds);
    put_short(line, "requests_per_s",
              (double)(pull->n_requests + push->n_requests) / c->seconds);
    put_short(line, "gb_per_s", (double)(bytes_in + bytes_out) / c->seconds / 1e9);
    put(line, "bytes_in", (double)bytes_in);
    put(line, "bytes_out", (double)bytes_out);
    put_latency(line, &c->latency_ns);
    put(line, "errors", (double)c->n_errors);
    put(line, "rows_refused", (double)c->n_rows_refused);
    put(line, "unsent", (double)c->n_unsent);
    put_short(line, "late_p99_us", (double)histogram_quantile(&c->late_ns, 0.99) / 1e3);
    put_short(line, "late_max_us", (double)c->late_ns.max / 1e3);
    put_cpu(line, c);
}

static void put_beyond(cJSON *object, const struct histogram *h)
{
    put_latency(object, h);
    put_short(object, "worst_beyond_median_us",
              (double)(h->max - histogram_quantile(h, 0.5)) / 1e3);
}

/* The rows when they were new, and once more: the request as a whole, and the server's CPU time
 * for it if that is known. */
static void put_grow(cJSON *line, const struct psbench_counts *c,
                     const struct psbench_counts *again)
{
    cJSON *grow = cJSON_AddObjectToObject(line, "grow"), *list, *item;

    put_beyond(cJSON_AddObjectToObject(grow, "new"), &c->latency_ns);
    put_beyond(cJSON_AddObjectToObject(grow, "again"), &again->latency_ns);
    if (c->work_ns.n) {
        put_beyond(cJSON_AddObjectToObject(grow, "server_cpu_new"), &c->work_ns);
        put_beyond(cJSON_AddObjectToObject(grow, "server_cpu_again"), &again->work_ns);
    }
    list = cJSON_AddArrayToObject(grow, "worst");
    for (uint32_t i = 0; i < PSBENCH_WORST_MAX && c->worst[i].latency_ns; i++) {
        item = cJSON_CreateObject();
        put_short(item, "us", (double)c->worst[i].latency_ns / 1e3);
        put(item, "rows_before", (double)c->worst[i].rows_before);
        cJSON_AddItemToArray(list, item);
    }
}

static void put_limits(cJSON *line, const struct psbench_limits *l)
{
    cJSON *limits = cJSON_AddObjectToObject(line, "limits");

    put(limits, "rounds", l->n_rounds);
    psbench_report_spread(limits, "actual_rows_per_s", &l->actual);
    psbench_report_spread(limits, "wire_rows_per_s", &l->wire);
    psbench_report_spread(limits, "table_rows_per_s", &l->table);
    psbench_report_spread(limits, "serial_rows_per_s", &l->serial);
    psbench_report_spread(limits, "ratio", &l->ratio);
    put_short(limits, "try_sleeps_rows_per_s", l->try_sleeps);
    put_short(limits, "try_spins_rows_per_s", l->try_spins);
    put(limits, "wire_read_bytes", l->read_bytes);
    cJSON_AddBoolToObject(limits, "wire_spins", l->spins);
    put_short(limits, "wire_server_busy", l->wire_server_busy);
    put_short(limits, "wire_client_busy", l->wire_client_busy);
    put(limits, "table_chunk", l->chunk);
    put(limits, "table_ahead", l->ahead);
    put(limits, "server_cpu", l->server_cpu);
    put(limits, "client_cpu", l->client_cpu);
}

int psbench_report_append(const char *path, cJSON *line, struct err *err)
{
    char *text = cJSON_PrintUnformatted(line);
    FILE *file = text ? fopen(path, "a") : NULL;
    int status = 0;

    if (!text)
        status = err_set(err, -ENOMEM, "json: no memory");
    else if (!file)
        status = err_set(err, -errno, "json: %.150s: %s", path, status_text(-errno));
    if (file && ((fprintf(file, "%s\n", text) < 0) | fclose(file)))
        status = err_set(err, -EIO, "json: %.150s cannot be written", path);
    free(text);
    cJSON_Delete(line);
    return status;
}

int psbench_report_json(const struct psbench_findings *f, struct err *err)
{
    cJSON *line = psbench_report_open(f->settings);

    put_counts(line, f->counts);
    if (f->again)
        put_grow(line, f->counts, f->again);
    if (f->limits)
        put_limits(line, f->limits);
    return psbench_report_append(f->settings->json, line, err);
}

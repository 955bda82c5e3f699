#include "tests/bench/psbench_report.h"

#include <errno.h>

#include "proto/codec_catalog.h"
#include "proto/spec.h"

const char *psbench_report_load_name(enum psbench_load load)
{
    static const char *const names[] = {
        [PSBENCH_PULL] = "pull", [PSBENCH_PUSH] = "push", [PSBENCH_MIX] = "mix"
    };

    return names[load];
}

static double per_second(const struct psbench_counts *c, uint64_t n)
{
    return c->seconds > 0 ? (double)n / c->seconds : 0;
}

static double quantile_us(const struct psbench_counts *c, double q)
{
    return (double)histogram_quantile(&c->latency_ns, q) / 1e3;
}

static double cpu_per_million_rows(const struct psbench_counts *c)
{
    return c->server_cpu_seconds < 0 || !c->n_rows
               ? -1
               : c->server_cpu_seconds * 1e6 / (double)c->n_rows;
}

void psbench_report_print(const struct psbench_settings *s, const struct psbench_counts *c,
                          FILE *out)
{
    fprintf(out, "%s, %u keys a request, dim %u, %llu rows, ",
            psbench_report_load_name(s->load), s->keys_per_request, s->dim,
            (unsigned long long)s->rows);
    if (s->zipf > 0)
        fprintf(out, "zipf %g", (double)s->zipf);
    else
        fprintf(out, "uniform");
    fprintf(out, ", %u connections x depth %u to %u shards, %s\n", s->connections, s->depth,
            c->n_shards, codec_by_id((uint32_t)s->codec)->name);
    fprintf(out, "  rows/s      %.0f\n", per_second(c, c->n_rows));
    fprintf(out, "  requests/s  %.0f\n", per_second(c, c->n_requests));
    fprintf(out, "  wire GB/s   %.3f (%.3f in, %.3f out)\n",
            per_second(c, c->bytes_in + c->bytes_out) / 1e9, per_second(c, c->bytes_in) / 1e9,
            per_second(c, c->bytes_out) / 1e9);
    fprintf(out, "  latency us  p50 %.0f  p99 %.0f  p99.9 %.0f  max %.0f\n",
            quantile_us(c, 0.5), quantile_us(c, 0.99), quantile_us(c, 0.999),
            quantile_us(c, 1));
    if (c->server_cpu_seconds >= 0)
        fprintf(out, "  server CPU  %.3f s per million rows\n", cpu_per_million_rows(c));
    if (c->n_errors)
        fprintf(out, "  errors      %llu, the first: %s\n", (unsigned long long)c->n_errors,
                c->first_error);
}

int psbench_report_json(const struct psbench_settings *s, const struct psbench_counts *c,
                        struct err *err)
{
    FILE *file = fopen(s->json, "a");
    int n, status;

    if (!file)
        return err_set(err, -errno, "json: %s: %s", s->json, status_text(-errno));
    n = fprintf(
        file,
        "{\"event\":\"result\",\"load\":\"%s\",\"keys_per_request\":%u,\"dim\":%u,\"rows\":%"
        "llu,\"zipf\":%g,"
        "\"connections\":%u,\"depth\":%u,\"shards\":%u,\"codec\":\"%s\",\"optimizer\":\"%s\","
        "\"seconds\":%.3f,"
        "\"rows_per_s\":%.0f,\"requests_per_s\":%.1f,\"gb_per_s\":%.4f,\"bytes_in\":%llu,"
        "\"bytes_out\":%llu,"
        "\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f,\"max_us\":%.1f,\"errors\":%llu,",
        psbench_report_load_name(s->load), s->keys_per_request, s->dim,
        (unsigned long long)s->rows, (double)s->zipf, s->connections, s->depth, c->n_shards,
        codec_by_id((uint32_t)s->codec)->name, spec_optim_name((enum spec_optim)s->optimizer),
        c->seconds, per_second(c, c->n_rows), per_second(c, c->n_requests),
        per_second(c, c->bytes_in + c->bytes_out) / 1e9, (unsigned long long)c->bytes_in,
        (unsigned long long)c->bytes_out, quantile_us(c, 0.5), quantile_us(c, 0.99),
        quantile_us(c, 0.999), quantile_us(c, 1), (unsigned long long)c->n_errors);
    if (n > 0 && c->server_cpu_seconds >= 0)
        n = fprintf(file, "\"server_cpu_s_per_million_rows\":%.4f}\n", cpu_per_million_rows(c));
    else if (n > 0)
        n = fprintf(file, "\"server_cpu_s_per_million_rows\":null}\n");
    status = fclose(file) || n < 0 ? -EIO : 0;
    return status ? err_set(err, status, "json: %s cannot be written", s->json) : 0;
}

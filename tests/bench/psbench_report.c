#include "tests/bench/psbench_report.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/codec_catalog.h"

static double per_second(const struct psbench_counts *c, uint64_t n)
{
    return c->seconds > 0 ? (double)n / c->seconds : 0;
}

static uint64_t sum_requests(const struct psbench_counts *c)
{
    return c->traffic[PSBENCH_IS_PULL].n_requests + c->traffic[PSBENCH_IS_PUSH].n_requests;
}

static uint64_t sum_in(const struct psbench_counts *c)
{
    return c->traffic[PSBENCH_IS_PULL].bytes_in + c->traffic[PSBENCH_IS_PUSH].bytes_in;
}

static uint64_t sum_out(const struct psbench_counts *c)
{
    return c->traffic[PSBENCH_IS_PULL].bytes_out + c->traffic[PSBENCH_IS_PUSH].bytes_out;
}

static double quantile_us(const struct histogram *h, double q)
{
    return (double)histogram_quantile(h, q) / 1e3;
}

static double max_us(const struct histogram *h)
{
    return (double)h->max / 1e3;
}

/* What the slowest request took beyond what most of its size do. */
static double beyond_median_us(const struct histogram *h)
{
    return max_us(h) - quantile_us(h, 0.5);
}

static double per_million_rows(const struct psbench_counts *c, double seconds)
{
    return seconds * 1e6 / (double)c->n_rows;
}

static bool knows_server_cpu(const struct psbench_counts *c)
{
    return c->server_cpu_seconds >= 0 && c->server_pid && c->n_rows;
}

static void print_latency(const char *what, const struct histogram *h, FILE *out)
{
    fprintf(out, "  %-11s p50 %.0f  p99 %.0f  p99.9 %.0f  max %.0f\n", what,
            quantile_us(h, 0.5), quantile_us(h, 0.99), quantile_us(h, 0.999), max_us(h));
}

static void print_head(const struct psbench_settings *s, const struct psbench_counts *c,
                       FILE *out)
{
    fprintf(out, "%s, %u keys a request, dim %u (%s, %s), %llu rows, ",
            psbench_report_load_name(s->load), s->keys_per_request, s->dim,
            table_spec_storage_name((enum table_spec_storage)s->storage),
            table_spec_optim_name((enum table_spec_optim)s->optimizer),
            (unsigned long long)s->rows);
    if (s->zipf > 0)
        fprintf(out, "zipf %g", (double)s->zipf);
    else
        fprintf(out, "uniform");
    fprintf(out, ", %u connections x depth %u to %u shards, %s, ", s->connections, s->depth,
            c->n_shards, codec_by_id((uint32_t)s->codec)->name);
    if (s->rate > 0)
        fprintf(out, "open loop, %g requests/s, %s", (double)s->rate,
                s->arrivals == PSBENCH_POISSON ? "Poisson" : "evenly spaced");
    else
        fprintf(out, "closed loop");
    fprintf(out, ", psbench %s\n", c->spins ? "spins" : "sleeps between answers");
}

static void print_grow(const struct psbench_counts *c, const struct psbench_counts *again,
                       FILE *out)
{
    fprintf(out, "  worst beyond the median us  %.0f; of the same keys once more %.0f\n",
            beyond_median_us(&c->latency_ns), beyond_median_us(&again->latency_ns));
    print_latency("once more", &again->latency_ns, out);
    if (c->work_ns.n) {
        print_latency("server CPU", &c->work_ns, out);
        print_latency("  once more", &again->work_ns, out);
        fprintf(out, "  worst server CPU beyond the median us  %.0f; once more %.0f\n",
                beyond_median_us(&c->work_ns), beyond_median_us(&again->work_ns));
    }
    fprintf(out, "  slowest us (at rows)       ");
    for (uint32_t i = 0; i < PSBENCH_WORST_MAX && c->worst[i].latency_ns; i++)
        fprintf(out, " %.0f (%.2f M)", (double)c->worst[i].latency_ns / 1e3,
                (double)c->worst[i].rows_before / 1e6);
    fprintf(out, "\n");
}

static void print_spread(const char *what, const struct psbench_spread *s, double unit,
                         FILE *out)
{
    fprintf(out, "  %-28s %6.3f  (%.3f to %.3f)\n", what, s->median / unit, s->min / unit,
            s->max / unit);
}

static void print_limits(const struct psbench_limits *l, FILE *out)
{
    fprintf(out, "limits, M rows/s, median of %u rounds (least to greatest)\n", l->n_rounds);
    print_spread("actual", &l->actual, 1e6, out);
    print_spread("a: bare sockets", &l->wire, 1e6, out);
    print_spread("b: table, one thread", &l->table, 1e6, out);
    print_spread("serial limit 1/(1/a + 1/b)", &l->serial, 1e6, out);
    print_spread("actual / serial limit", &l->ratio, 1, out);
    if (l->try_sleeps > 0 || l->try_spins > 0)
        fprintf(out, "  psbench tried first: %.3f asleep between answers, %.3f spinning\n",
                l->try_sleeps / 1e6, l->try_spins / 1e6);
    fprintf(out,
            "  a reads %u KiB at a time and %s, its server %.0f%% and client %.0f%% busy; b in "
            "chunks of %u, %u rows ahead; ",
            l->read_bytes >> 10, l->spins ? "spins" : "sleeps", 100 * l->wire_server_busy,
            100 * l->wire_client_busy, l->chunk, l->ahead);
    if (l->server_cpu < 0 && l->client_cpu < 0)
        fprintf(out, "no core was named\n");
    else
        fprintf(out, "server core %d, client core %d (-1: any)\n", l->server_cpu,
                l->client_cpu);
}

static void print_cpu(const struct psbench_counts *c, FILE *out)
{
    if (knows_server_cpu(c))
        fprintf(out, "  server CPU  %.4f s per million rows, %.0f%% of a core\n",
                per_million_rows(c, c->server_cpu_seconds),
                100 * c->server_cpu_seconds / c->seconds);
    fprintf(out, "  client CPU  %.0f%% of a core\n", 100 * c->client_cpu_seconds / c->seconds);
}

const char *psbench_report_load_name(enum psbench_load load)
{
    static const char *const names[] = { [PSBENCH_PULL] = "pull",
                                         [PSBENCH_PUSH] = "push",
                                         [PSBENCH_MIX] = "mix",
                                         [PSBENCH_GROW] = "grow" };

    return names[load];
}

void psbench_report_print(const struct psbench_findings *f, FILE *out)
{
    const struct psbench_counts *c = f->counts;

    print_head(f->settings, c, out);
    fprintf(out, "  rows/s      %.0f\n", per_second(c, c->n_rows));
    fprintf(out, "  requests/s  %.0f\n", per_second(c, sum_requests(c)));
    fprintf(out, "  wire GB/s   %.3f (%.3f in, %.3f out)\n",
            per_second(c, sum_in(c) + sum_out(c)) / 1e9, per_second(c, sum_in(c)) / 1e9,
            per_second(c, sum_out(c)) / 1e9);
    print_latency("latency us", &c->latency_ns, out);
    if (f->settings->rate > 0) {
        print_latency("we sent late", &c->late_ns, out);
        if (c->n_unsent)
            fprintf(out, "  unsent      %llu requests were due and had no slot to the end\n",
                    (unsigned long long)c->n_unsent);
    }
    print_cpu(c, out);
    if (f->again)
        print_grow(c, f->again, out);
    if (f->limits)
        print_limits(f->limits, out);
    if (c->n_rows_refused)
        fprintf(out, "  no room     for %llu new rows: the server's memory budget is reached\n",
                (unsigned long long)c->n_rows_refused);
    if (c->n_errors)
        fprintf(out, "  errors      %llu, the first: %s\n", (unsigned long long)c->n_errors,
                c->first_error);
}

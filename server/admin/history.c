#include "server/admin/history.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "common/memory.h"
#include "proto/codec_catalog.h"

#define N_REQUESTS ((FRAME_TYPE_END) / 2u) /* requests are odd */
#define NAME_MAX_BYTES 64

/* How a minute is made of its seconds. */
enum fold { MEAN, GREATEST };

/* Counters of a shard, shown as what they grew by in a second. */
enum counter {
    ROWS_PULLED,
    ROWS_PUSHED,
    PULLS,
    PUSHES,
    BYTES_IN,
    BYTES_OUT,
    LOG_BYTES,
    LOG_SYNCS,
    PUSH_WAIT_US,
    CPU_US,
    CODEC_IN, /* one for each codec */
    CODEC_OUT = CODEC_IN + CODEC_ID_END,
    N_COUNTERS = CODEC_OUT + CODEC_ID_END
};

static const struct {
    const char *name;
    float scale; /* of the counter's unit to the series' */
} counters[CODEC_IN] = {
    [ROWS_PULLED] = { "rows_pulled", 1 },
    [ROWS_PUSHED] = { "rows_pushed", 1 },
    [PULLS] = { "pulls", 1 },
    [PUSHES] = { "pushes", 1 },
    [BYTES_IN] = { "bytes_in", 1 },
    [BYTES_OUT] = { "bytes_out", 1 },
    [LOG_BYTES] = { "log_bytes", 1 },
    [LOG_SYNCS] = { "log_syncs", 1 },
    [PUSH_WAIT_US] = { "push_wait", 1e-6f },
    [CPU_US] = { "cpu", 1e-6f },
};

/* What is, now. */
enum gauge {
    ROWS,
    TABLES_BYTES,
    RSS_BYTES,
    HELD_BYTES,
    LIVE_WORKERS,
    CONNECTIONS,
    STALENESS_P50,
    STALENESS_P99,
    LOG_HELD_BYTES,
    DISK_LOG_BYTES,
    DISK_CHECKPOINT_BYTES,
    DISK_FREE_BYTES,
    CHECKPOINT_AGE_MS,
    WAITS,
    PARKED_PULLS,
    PUSHES_WAITING,
    REPLIES_WAITING,
    LAG_RECORDS,
    LAG_MS,
    N_GAUGES
};

static const struct {
    const char *name;
    enum fold fold;
} gauges[N_GAUGES] = {
    [ROWS] = { "rows", MEAN },
    [TABLES_BYTES] = { "tables_bytes", MEAN },
    [RSS_BYTES] = { "rss_bytes", MEAN },
    [HELD_BYTES] = { "held_bytes", GREATEST },
    [LIVE_WORKERS] = { "live_workers", MEAN },
    [CONNECTIONS] = { "connections", MEAN },
    [STALENESS_P50] = { "staleness_p50", MEAN },
    [STALENESS_P99] = { "staleness_p99", GREATEST },
    [LOG_HELD_BYTES] = { "log_held_bytes", GREATEST },
    [DISK_LOG_BYTES] = { "disk_log_bytes", MEAN },
    [DISK_CHECKPOINT_BYTES] = { "disk_checkpoint_bytes", MEAN },
    [DISK_FREE_BYTES] = { "disk_free_bytes", MEAN },
    [CHECKPOINT_AGE_MS] = { "checkpoint_age_ms", GREATEST },
    [WAITS] = { "waits", GREATEST },
    [PARKED_PULLS] = { "parked_pulls", GREATEST },
    [PUSHES_WAITING] = { "pushes_waiting", GREATEST },
    [REPLIES_WAITING] = { "replies_waiting", GREATEST },
    [LAG_RECORDS] = { "lag_records", GREATEST },
    [LAG_MS] = { "lag_ms", GREATEST },
};

/* Of each shard. */
enum shard_series {
    SHARD_ROWS,
    SHARD_BYTES,
    SHARD_CPU,
    SHARD_PULL_P99,
    SHARD_PUSH_P99,
    N_SHARD_SERIES
};

static const struct {
    const char *name;
    enum fold fold;
} shard_series[N_SHARD_SERIES] = {
    [SHARD_ROWS] = { "rows_per_s", MEAN },
    [SHARD_BYTES] = { "bytes", MEAN },
    [SHARD_CPU] = { "cpu", MEAN },
    [SHARD_PULL_P99] = { "pull_p99_ns", GREATEST },
    [SHARD_PUSH_P99] = { "push_p99_ns", GREATEST },
};

/* The order of the series. */
enum {
    FIRST_GAUGE = N_COUNTERS,
    FIRST_P50 = FIRST_GAUGE + N_GAUGES,
    FIRST_P99 = FIRST_P50 + N_REQUESTS,
    FIRST_SHARD = FIRST_P99 + N_REQUESTS
};

/* A shard's counters as its last report had them. */
struct counter_base {
    uint64_t made_mono_ms; /* 0: none yet */
    uint64_t values[N_COUNTERS];
};

struct minute {
    float sum, greatest;
    uint32_t n;
};

struct history {
    uv_mutex_t lock;
    uint32_t n_shards; /* of the node */
    uint32_t n_shards_shown;
    uint32_t n_series;
    uint32_t first_shard;          /* its global number */
    uint64_t first_s, newest_s;    /* seconds of the monotonic clock; newest 0: none */
    float *values;                 /* of the newest second, while it is made */
    struct minute *minutes_so_far; /* of the minute under way */
    struct counter_base *bases;    /* n_shards */
    struct histogram *staleness, *staleness_before, *scratch;
    float *rings[2]; /* n_series * slots, a series after the other */
    size_t n_bytes;  /* of all: the arrays lie behind this struct */
};

static const uint32_t n_slots[] = { HISTORY_SECONDS, HISTORY_MINUTES };
static const uint32_t step_s[] = { 1, 60 };

/* --- memory --- */

static size_t rounded(size_t n_bytes)
{
    return (n_bytes + _Alignof(max_align_t) - 1) / _Alignof(max_align_t) *
           _Alignof(max_align_t);
}

static size_t bytes_of(uint32_t n_shards, uint32_t n_series)
{
    return rounded(sizeof(struct history)) + rounded(n_series * sizeof(float)) +
           rounded(n_series * sizeof(struct minute)) +
           rounded(n_shards * sizeof(struct counter_base)) +
           3 * rounded(sizeof(struct histogram)) +
           rounded(n_series * HISTORY_SECONDS * sizeof(float)) +
           rounded(n_series * HISTORY_MINUTES * sizeof(float));
}

static void *take(char **at, size_t n_bytes)
{
    void *taken = *at;

    *at += rounded(n_bytes);
    return taken;
}

static void clear_ring(struct history *h, enum history_step step)
{
    for (size_t i = 0; i < (size_t)h->n_series * n_slots[step]; i++)
        h->rings[step][i] = NAN;
}

struct history *history_new(uint32_t n_shards)
{
    uint32_t n_shown = n_shards, n_series = FIRST_SHARD + n_shards * N_SHARD_SERIES;
    struct history *h;
    size_t n_bytes;
    char *at;

    if (bytes_of(n_shards, n_series) > HISTORY_BYTES_MAX) {
        n_shown = 0;
        n_series = FIRST_SHARD;
    }
    n_bytes = bytes_of(n_shards, n_series);
    h = memory_try_alloc(n_bytes);
    if (!h)
        return NULL;
    h->n_bytes = n_bytes;
    h->n_shards = n_shards;
    h->n_shards_shown = n_shown;
    h->n_series = n_series;
    at = (char *)h + rounded(sizeof *h);
    h->values = take(&at, n_series * sizeof *h->values);
    h->minutes_so_far = take(&at, n_series * sizeof *h->minutes_so_far);
    h->bases = take(&at, n_shards * sizeof *h->bases);
    h->staleness = take(&at, sizeof *h->staleness);
    h->staleness_before = take(&at, sizeof *h->staleness_before);
    h->scratch = take(&at, sizeof *h->scratch);
    for (int step = HISTORY_SECOND; step <= HISTORY_MINUTE; step++) {
        h->rings[step] = take(&at, (size_t)n_series * n_slots[step] * sizeof(float));
        clear_ring(h, (enum history_step)step);
    }
    if (uv_mutex_init(&h->lock))
        abort(); /* only without memory */
    return h;
}

void history_free(struct history *h)
{
    if (!h)
        return;
    uv_mutex_destroy(&h->lock);
    free(h);
}

size_t history_bytes(const struct history *h)
{
    return h->n_bytes;
}

uint32_t history_n_shards(const struct history *h)
{
    return h->n_shards_shown;
}

/* --- a sample: under the lock --- */

static void read_counters(const struct shard_report *r, uint64_t dst[static N_COUNTERS])
{
    dst[ROWS_PULLED] = r->counters.rows_pulled;
    dst[ROWS_PUSHED] = r->counters.rows_pushed;
    dst[PULLS] = r->counters.pulls;
    dst[PUSHES] = r->counters.pushes;
    dst[BYTES_IN] = r->net.bytes_in;
    dst[BYTES_OUT] = r->net.bytes_out;
    dst[LOG_BYTES] = r->log.bytes;
    dst[LOG_SYNCS] = r->log.n_syncs;
    dst[PUSH_WAIT_US] = r->log.push_wait_us;
    dst[CPU_US] = r->cpu_us;
    memcpy(dst + CODEC_IN, r->counters.value_bytes_in, sizeof r->counters.value_bytes_in);
    memcpy(dst + CODEC_OUT, r->counters.value_bytes_out, sizeof r->counters.value_bytes_out);
}

static void add(float *value, float more)
{
    *value = isnan(*value) ? more : *value + more;
}

static float scale_of(unsigned counter)
{
    return counter < CODEC_IN ? counters[counter].scale : 1;
}

/* The counters of a shard that was rebuilt (a standby's) begin anew: nothing is known of that second. */
static bool has_grown(const struct counter_base *base, const uint64_t now[static N_COUNTERS],
                      uint64_t made_mono_ms)
{
    if (!base->made_mono_ms || made_mono_ms < base->made_mono_ms)
        return false;
    for (unsigned i = 0; i < N_COUNTERS; i++)
        if (now[i] < base->values[i])
            return false;
    return true;
}

/* A shard that has not reported since the last sample adds 0; its next report tells what it did meanwhile. */
static void sample_counters(struct history *h, uint32_t shard, const struct shard_report *r)
{
    struct counter_base *base = &h->bases[shard];
    uint64_t now[N_COUNTERS];
    float seconds;

    read_counters(r, now);
    if (!has_grown(base, now, r->made_mono_ms)) {
        base->made_mono_ms = r->made_mono_ms;
        memcpy(base->values, now, sizeof now);
        return;
    }
    seconds = (float)(r->made_mono_ms - base->made_mono_ms) / 1000;
    for (unsigned i = 0; i < N_COUNTERS; i++) {
        uint64_t more = now[i] - base->values[i];

        add(&h->values[i], seconds > 0 ? (float)more * scale_of(i) / seconds : 0);
    }
    if (shard < h->n_shards_shown) {
        float *own = h->values + FIRST_SHARD + shard * N_SHARD_SERIES;
        uint64_t rows = now[ROWS_PULLED] + now[ROWS_PUSHED] - base->values[ROWS_PULLED] -
                        base->values[ROWS_PUSHED],
                 cpu_us = now[CPU_US] - base->values[CPU_US];

        own[SHARD_ROWS] = seconds > 0 ? (float)rows / seconds : 0;
        own[SHARD_CPU] = seconds > 0 ? (float)cpu_us / 1e6f / seconds : 0;
    }
    base->made_mono_ms = r->made_mono_ms;
    memcpy(base->values, now, sizeof now);
}

static float quantile(const struct histogram *histogram, double q)
{
    return histogram->n ? (float)histogram_quantile(histogram, q) : NAN;
}

static void sample_shard_gauges(struct history *h, uint32_t shard, const struct shard_report *r)
{
    float *gauge = h->values + FIRST_GAUGE;

    add(&gauge[ROWS], (float)stats_n_rows(r));
    add(&gauge[TABLES_BYTES], (float)r->bytes);
    add(&gauge[HELD_BYTES], (float)r->net.held_bytes);
    add(&gauge[CONNECTIONS], (float)r->net.connections);
    add(&gauge[LOG_HELD_BYTES], (float)r->log.held_bytes);
    add(&gauge[WAITS], (float)r->n_waits);
    add(&gauge[PARKED_PULLS], (float)r->net.parked_pulls);
    add(&gauge[PUSHES_WAITING], (float)r->log.n_pushes_waiting);
    add(&gauge[REPLIES_WAITING], (float)r->log.n_waiting);
    if (shard < h->n_shards_shown) {
        float *own = h->values + FIRST_SHARD + shard * N_SHARD_SERIES;

        own[SHARD_BYTES] = (float)r->bytes;
        own[SHARD_PULL_P99] = quantile(&r->requests[FRAME_PULL].minute_ns, 0.99);
        own[SHARD_PUSH_P99] = quantile(&r->requests[FRAME_PUSH].minute_ns, 0.99);
    }
}

/* Every shard counts the same workers: most of them are live at the one that has seen most. */
static void sample_workers(struct history *h, const struct shard_report *r)
{
    float *live = &h->values[FIRST_GAUGE + LIVE_WORKERS], n = (float)stats_n_live_workers(r);

    *live = isnan(*live) || n > *live ? n : *live;
}

static void sample_latencies(struct history *h, const struct node_report *node)
{
    for (unsigned i = 0; i < N_REQUESTS; i++) {
        memset(h->scratch, 0, sizeof *h->scratch);
        for (uint32_t s = 0; s < node->n_shards; s++)
            if (node->shards[s] && node->shards[s]->requests[2 * i + 1].minute_ns.n)
                histogram_merge(h->scratch, &node->shards[s]->requests[2 * i + 1].minute_ns);
        h->values[FIRST_P50 + i] = quantile(h->scratch, 0.5);
        h->values[FIRST_P99 + i] = quantile(h->scratch, 0.99);
    }
}

/* True if `now` is a later state of `before`, and not that of other jobs. */
static bool is_later(const struct histogram *now, const struct histogram *before)
{
    for (unsigned i = 0; i < HISTOGRAM_N_BUCKETS; i++)
        if (now->counts[i] < before->counts[i])
            return false;
    return true;
}

/* Of the pulls since the last sample, of all jobs. */
static void sample_staleness(struct history *h, const struct node_report *node)
{
    float *gauge = h->values + FIRST_GAUGE;
    struct histogram *exchanged = h->staleness_before;

    memset(h->staleness, 0, sizeof *h->staleness);
    for (uint32_t s = 0; s < node->n_shards; s++)
        for (uint32_t i = 0; node->shards[s] && i < node->shards[s]->n_jobs; i++)
            if (node->shards[s]->jobs[i].staleness.n)
                histogram_merge(h->staleness, &node->shards[s]->jobs[i].staleness);
    memset(h->scratch, 0, sizeof *h->scratch);
    if (h->newest_s && is_later(h->staleness, h->staleness_before))
        histogram_difference(h->scratch, h->staleness, h->staleness_before);
    gauge[STALENESS_P50] = quantile(h->scratch, 0.5);
    gauge[STALENESS_P99] = quantile(h->scratch, 0.99);
    h->staleness_before = h->staleness;
    h->staleness = exchanged;
}

static void sample_node(struct history *h, const struct node_report *node)
{
    float *gauge = h->values + FIRST_GAUGE;

    gauge[RSS_BYTES] = (float)node->rss_bytes;
    add(&gauge[WAITS], (float)node->n_waits);
    if (node->disk.is_on) {
        gauge[DISK_LOG_BYTES] = (float)node->disk.log_bytes;
        gauge[DISK_CHECKPOINT_BYTES] = (float)node->disk.checkpoint_bytes;
        gauge[DISK_FREE_BYTES] = node->disk.size_bytes ? (float)node->disk.free_bytes : NAN;
    }
    if (node->last_checkpoint_unix_ms && node->clock_unix_ms >= node->last_checkpoint_unix_ms)
        gauge[CHECKPOINT_AGE_MS] = (float)(node->clock_unix_ms - node->last_checkpoint_unix_ms);
    if (node->standby.is_on && node->standby.peer[0]) {
        gauge[LAG_RECORDS] = (float)node->standby.lag_records;
        gauge[LAG_MS] = (float)node->standby.lag_ms;
    }
}

static void fill_values(struct history *h, const struct node_report *node)
{
    for (uint32_t i = 0; i < h->n_series; i++)
        h->values[i] = NAN;
    for (uint32_t s = 0; s < node->n_shards && s < h->n_shards; s++) {
        const struct shard_report *r = node->shards[s];

        if (!r)
            continue;
        h->first_shard = r->shard - s;
        sample_counters(h, s, r);
        sample_shard_gauges(h, s, r);
        sample_workers(h, r);
    }
    sample_latencies(h, node);
    sample_staleness(h, node);
    sample_node(h, node);
}

/* --- the rings: under the lock --- */

static enum fold fold_of(uint32_t series)
{
    if (series < FIRST_GAUGE)
        return MEAN;
    if (series < FIRST_P50)
        return gauges[series - FIRST_GAUGE].fold;
    if (series < FIRST_SHARD)
        return series < FIRST_P99 ? MEAN : GREATEST;
    return shard_series[(series - FIRST_SHARD) % N_SHARD_SERIES].fold;
}

static float *slot(struct history *h, enum history_step step, uint32_t series, uint64_t at)
{
    return &h->rings[step][(size_t)series * n_slots[step] + at % n_slots[step]];
}

/* Slots after `last` up to `now` become unknown, all of the ring at most. */
static void skip(struct history *h, enum history_step step, uint64_t last, uint64_t now)
{
    uint64_t n = now - last < n_slots[step] ? now - last : n_slots[step];

    for (uint64_t at = now - n + 1; at <= now; at++)
        for (uint32_t i = 0; i < h->n_series; i++)
            *slot(h, step, i, at) = NAN;
}

static void end_minute(struct history *h, uint64_t minute)
{
    for (uint32_t i = 0; i < h->n_series; i++) {
        struct minute *m = &h->minutes_so_far[i];

        if (m->n)
            *slot(h, HISTORY_MINUTE, i, minute) =
                fold_of(i) == MEAN ? m->sum / (float)m->n : m->greatest;
        *m = (struct minute){ 0 };
    }
}

static void note_second(struct history *h, uint64_t second)
{
    for (uint32_t i = 0; i < h->n_series; i++) {
        struct minute *m = &h->minutes_so_far[i];
        float value = h->values[i];

        *slot(h, HISTORY_SECOND, i, second) = value;
        if (isnan(value))
            continue;
        m->sum += value;
        m->greatest = m->n && m->greatest > value ? m->greatest : value;
        m->n++;
    }
}

bool history_sample(struct history *h, const struct node_report *node)
{
    uint64_t second = node->clock_mono_ms / 1000, last = h->newest_s;

    uv_mutex_lock(&h->lock);
    if (h->newest_s && second <= h->newest_s) {
        uv_mutex_unlock(&h->lock);
        return false;
    }
    fill_values(h, node);
    if (!last)
        h->first_s = second;
    else if (second / 60 > last / 60) {
        end_minute(h, last / 60);
        skip(h, HISTORY_MINUTE, last / 60, second / 60);
    }
    if (last)
        skip(h, HISTORY_SECOND, last, second);
    note_second(h, second);
    h->newest_s = second;
    uv_mutex_unlock(&h->lock);
    return true;
}

uint64_t history_newest(struct history *h)
{
    uint64_t newest;

    uv_mutex_lock(&h->lock);
    newest = h->newest_s;
    uv_mutex_unlock(&h->lock);
    return newest;
}

/* --- text: under the lock --- */

static void name_series(const struct history *h, uint32_t series,
                        char dst[static NAME_MAX_BYTES])
{
    if (series < CODEC_IN)
        snprintf(dst, NAME_MAX_BYTES, "%s", counters[series].name);
    else if (series < CODEC_OUT)
        snprintf(dst, NAME_MAX_BYTES, "codec_in.%s", codec_by_id(series - CODEC_IN)->name);
    else if (series < N_COUNTERS)
        snprintf(dst, NAME_MAX_BYTES, "codec_out.%s", codec_by_id(series - CODEC_OUT)->name);
    else if (series < FIRST_P50)
        snprintf(dst, NAME_MAX_BYTES, "%s", gauges[series - FIRST_GAUGE].name);
    else if (series < FIRST_P99)
        snprintf(dst, NAME_MAX_BYTES, "p50_ns.%s",
                 frame_type_name(2 * (series - FIRST_P50) + 1));
    else if (series < FIRST_SHARD)
        snprintf(dst, NAME_MAX_BYTES, "p99_ns.%s",
                 frame_type_name(2 * (series - FIRST_P99) + 1));
    else
        snprintf(dst, NAME_MAX_BYTES, "shard.%u.%s",
                 (unsigned)(h->first_shard + (series - FIRST_SHARD) / N_SHARD_SERIES),
                 shard_series[(series - FIRST_SHARD) % N_SHARD_SERIES].name);
}

/* Four digits: 1234567 is 1235e3, which is as exact as a picture and short. */
static void put_value(FILE *out, float value)
{
    int exponent = 0;
    double v = value;

    if (isnan(v)) {
        fputs("null", out);
        return;
    }
    for (; v >= 9999.5; v /= 10)
        exponent++;
    if (exponent)
        fprintf(out, "%.0fe%d", v, exponent);
    else
        fprintf(out, "%.4g", v);
}

static bool has_value(struct history *h, enum history_step step, uint32_t series,
                      uint64_t first, uint64_t last)
{
    for (uint64_t at = first; at <= last; at++)
        if (!isnan(*slot(h, step, series, at)))
            return true;
    return false;
}

/* A codec that nobody uses is 0 throughout, and left out as if it were unknown. */
static bool is_used(struct history *h, enum history_step step, uint32_t series, uint64_t first,
                    uint64_t last)
{
    if (series < CODEC_IN || series >= N_COUNTERS)
        return has_value(h, step, series, first, last);
    for (uint64_t at = first; at <= last; at++)
        if (*slot(h, step, series, at) > 0)
            return true;
    return false;
}

static void put_series(struct history *h, FILE *out, enum history_step step, uint64_t first,
                       uint64_t last)
{
    char name[NAME_MAX_BYTES];
    const char *comma = "";

    for (uint32_t i = 0; i < h->n_series; i++) {
        if (!is_used(h, step, i, first, last))
            continue;
        name_series(h, i, name);
        fprintf(out, "%s\"%s\":", comma, name);
        for (uint64_t at = first; at <= last; at++) {
            fputc(at == first ? '[' : ',', out);
            put_value(out, *slot(h, step, i, at));
        }
        fputc(']', out);
        comma = ",";
    }
}

/* The slots that there are; false: none. The minute under way is none yet. */
static bool find_slots(const struct history *h, enum history_step step, uint64_t *ret_first,
                       uint64_t *ret_last)
{
    uint64_t first = h->first_s / step_s[step], last = h->newest_s / step_s[step];

    if (!h->newest_s || (step == HISTORY_MINUTE && last == first))
        return false;
    last -= step == HISTORY_MINUTE;
    *ret_first = last - first < n_slots[step] ? first : last - n_slots[step] + 1;
    *ret_last = last;
    return true;
}

char *history_render(struct history *h, enum history_step step, const struct node_report *node)
{
    uint64_t first = 0, last = 0;
    char *text = NULL;
    size_t n_bytes;
    bool is_bad, is_there;
    FILE *out = open_memstream(&text, &n_bytes);

    if (!out)
        return NULL;
    uv_mutex_lock(&h->lock);
    is_there = find_slots(h, step, &first, &last);
    fprintf(out, "{\"step_ms\":%u,\"slot\":%llu,\"slot_unix_ms\":%llu,\"n\":%llu,\"series\":{",
            (unsigned)step_s[step] * 1000, (unsigned long long)last,
            (unsigned long long)(node->clock_unix_ms - node->clock_mono_ms +
                                 last * step_s[step] * 1000),
            is_there ? (unsigned long long)(last - first + 1) : 0);
    if (is_there)
        put_series(h, out, step, first, last);
    uv_mutex_unlock(&h->lock);
    fputs("}}\n", out);
    is_bad = ferror(out) != 0;
    if (fclose(out) == 0 && !is_bad)
        return text;
    free(text);
    return NULL;
}

void history_put_newest(struct history *h, FILE *out)
{
    char name[NAME_MAX_BYTES];
    const char *comma = "";

    uv_mutex_lock(&h->lock);
    fputc('{', out);
    for (uint32_t i = 0; h->newest_s && i < h->n_series; i++) {
        float value = *slot(h, HISTORY_SECOND, i, h->newest_s);

        if (isnan(value) || (value <= 0 && i >= CODEC_IN && i < N_COUNTERS))
            continue;
        name_series(h, i, name);
        fprintf(out, "%s\"%s\":", comma, name);
        put_value(out, value);
        comma = ",";
    }
    fputc('}', out);
    uv_mutex_unlock(&h->lock);
}

#include "server/admin/stats.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

double stats_overhead(const struct stats_table *table)
{
    uint64_t held = table->slab_bytes + table->index_bytes;

    if (table->spec.kind == TABLE_SPEC_DENSE)
        return table->n_rows ? (double)(table->row_bytes - table->payload_bytes) : 0;
    return table->n_rows ? (double)held / (double)table->n_rows - (double)table->payload_bytes
                         : 0;
}

void shard_report_free(struct shard_report *report)
{
    if (!report)
        return;
    free(report->tables);
    for (uint32_t i = 0; i < report->n_jobs; i++)
        free(report->jobs[i].curve);
    free(report->jobs);
    free(report->workers);
    free(report->waits);
    free(report);
}

/* --- the total of a node --- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The structs of counters hold nothing but u64. */
static void add_all(void *into, const void *from, size_t n_bytes)
{
    uint64_t *a = into;
    const uint64_t *b = from;

    for (size_t i = 0; i < n_bytes / sizeof *a; i++)
        a[i] += b[i];
}

_Static_assert(sizeof(struct shard_counters) % sizeof(uint64_t) == 0, "add_all() adds u64s");
_Static_assert(sizeof(struct stats_log) % sizeof(uint64_t) == 0, "add_all() adds u64s");
_Static_assert(sizeof(struct stats_net) % sizeof(uint64_t) == 0, "add_all() adds u64s");

/* Shards make their tables in the same order, so the place of one is the first place to look
 * for another. */
static struct stats_table *find_table(struct shard_report *t, uint32_t hint, const char *name)
{
    if (hint < t->n_tables && strcmp(t->tables[hint].spec.name, name) == 0)
        return &t->tables[hint];
    for (uint32_t i = 0; i < t->n_tables; i++)
        if (strcmp(t->tables[i].spec.name, name) == 0)
            return &t->tables[i];
    return NULL;
}

static void add_table(struct shard_report *t, uint32_t hint, const struct stats_table *from)
{
    struct stats_table *into = find_table(t, hint, from->spec.name);

    if (!into) {
        t->tables[t->n_tables++] = *from;
        return;
    }
    into->n_rows += from->n_rows;
    into->n_removed += from->n_removed;
    into->bytes += from->bytes;
    into->slab_bytes += from->slab_bytes;
    into->index_bytes += from->index_bytes;
    into->count_min_bytes += from->count_min_bytes;
    into->bytes_max += from->bytes_max;
    into->n_pushes = most(into->n_pushes, from->n_pushes);
    into->rows_refused += from->rows_refused;
    into->rows_pulled += from->rows_pulled;
    into->rows_pushed += from->rows_pushed;
    into->rows_unadmitted += from->rows_unadmitted;
    into->rows_evicted += from->rows_evicted;
    into->rows_idle += from->rows_idle;
    into->rows_expired += from->rows_expired;
    into->rows_rare += from->rows_rare;
}

static struct stats_job *find_job(struct shard_report *t, const char *name)
{
    for (uint32_t i = 0; i < t->n_jobs; i++)
        if (strcmp(t->jobs[i].name, name) == 0)
            return &t->jobs[i];
    return NULL;
}

static void add_job(struct shard_report *t, const struct stats_job *from)
{
    struct stats_job *into = find_job(t, from->name);

    if (!into) {
        into = &t->jobs[t->n_jobs++];
        memcpy(into->name, from->name, sizeof into->name);
        into->mode = from->mode;
        into->bound = from->bound;
        into->n_workers = from->n_workers;
        into->n_backups = from->n_backups;
        into->min_clock = from->min_clock;
    }
    into->min_clock = least(into->min_clock, from->min_clock);
    into->n_deaths = most(into->n_deaths, from->n_deaths);
    into->n_fenced += from->n_fenced;
    into->n_lost += from->n_lost;
    into->parked_ms += from->parked_ms;
    into->staleness_violations += from->staleness_violations;
    histogram_merge(&into->staleness, &from->staleness);
    if (from->learning.unix_ms > into->learning.unix_ms)
        into->learning = from->learning;
}

static struct stats_worker *find_worker(struct shard_report *t, const struct stats_worker *like)
{
    for (uint32_t i = 0; i < t->n_workers; i++)
        if (t->workers[i].rank == like->rank && strcmp(t->workers[i].job, like->job) == 0)
            return &t->workers[i];
    return NULL;
}

/* Of a worker at two shards. It has left when it has left both: until then its least clock is not its last one. */
static enum worker_state state_of(enum worker_state a, enum worker_state b)
{
    enum worker_state earlier = a < b ? a : b, later = a < b ? b : a;

    return later == WORKER_LEFT ? earlier : later;
}

static void add_worker(struct shard_report *t, const struct stats_worker *from)
{
    struct stats_worker *into = find_worker(t, from);

    if (!into) {
        t->workers[t->n_workers++] = *from;
        return;
    }
    into->state = state_of(into->state, from->state);
    into->is_suspected |= from->is_suspected;
    into->incarnation = most(into->incarnation, from->incarnation);
    into->clock = least(into->clock, from->clock);
    into->n_skipped = most(into->n_skipped, from->n_skipped);
    into->last_seq = most(into->last_seq, from->last_seq);
    into->silent_ms = most(into->silent_ms, from->silent_ms);
    into->is_suspected = into->is_suspected || from->is_suspected;
    into->is_given_up = into->is_given_up || from->is_given_up;
    into->doubts_itself = into->doubts_itself || from->doubts_itself;
    if (from->reporters.n > into->reporters.n)
        into->reporters = from->reporters;
    if (from->agreed.n > into->agreed.n)
        into->agreed = from->agreed;
    if (from->learning.unix_ms > into->learning.unix_ms)
        into->learning = from->learning;
}

static void add_refusal(struct shard_report *t, const struct shard_refusal *from)
{
    uint64_t n = t->last_refusal.n + from->n;

    if (from->n)
        t->last_refusal = *from;
    t->last_refusal.n = n;
}

static void add_shard(struct shard_report *t, const struct shard_report *from)
{
    t->bytes += from->bytes;
    t->memory_max_bytes += from->memory_max_bytes;
    t->version += from->version;
    t->tables_bytes += from->tables_bytes;
    t->cpu_us += from->cpu_us;
    add_all(&t->counters, &from->counters, sizeof t->counters);
    add_all(&t->net, &from->net, sizeof t->net);
    add_all(&t->log, &from->log, sizeof t->log);
    if (from->log_line_error[0])
        memcpy(t->log_line_error, from->log_line_error, sizeof t->log_line_error);
    add_refusal(t, &from->last_refusal);
    for (unsigned type = 0; type < FRAME_TYPE_END; type++) {
        t->requests[type].n += from->requests[type].n;
        t->requests[type].n_refused += from->requests[type].n_refused;
        histogram_merge(&t->requests[type].latency_ns, &from->requests[type].latency_ns);
        histogram_merge(&t->requests[type].minute_ns, &from->requests[type].minute_ns);
    }
    histogram_merge(&t->read_wait_ns, &from->read_wait_ns);
    for (uint32_t i = 0; i < from->n_tables; i++)
        add_table(t, i, &from->tables[i]);
    for (uint32_t i = 0; i < from->n_jobs; i++)
        add_job(t, &from->jobs[i]);
    for (uint32_t i = 0; i < from->n_workers; i++)
        add_worker(t, &from->workers[i]);
    if (from->n_waits)
        memcpy(&t->waits[t->n_waits], from->waits, from->n_waits * sizeof *t->waits);
    t->n_waits += from->n_waits;
}

/* Space for every shard's everything: nothing has to grow. */
static struct shard_report *new_total(const struct node_report *node)
{
    struct shard_report *t = memory_alloc(sizeof *t);
    size_t n_tables = 1, n_jobs = 1, n_workers = 1, n_waits = 1 + (size_t)node->n_waits;

    for (uint32_t i = 0; i < node->n_shards; i++) {
        const struct shard_report *shard = node->shards[i];

        n_tables += shard ? shard->n_tables : 0;
        n_jobs += shard ? shard->n_jobs : 0;
        n_workers += shard ? shard->n_workers : 0;
        n_waits += shard ? shard->n_waits : 0;
    }
    t->tables = memory_alloc(n_tables * sizeof *t->tables);
    t->jobs = memory_alloc(n_jobs * sizeof *t->jobs);
    t->workers = memory_alloc(n_workers * sizeof *t->workers);
    t->waits = memory_alloc(n_waits * sizeof *t->waits);
    return t;
}

struct shard_report *stats_total(const struct node_report *node)
{
    struct shard_report *t = new_total(node);

    for (uint32_t i = 0; i < node->n_shards; i++)
        if (node->shards[i])
            add_shard(t, node->shards[i]);
    add_all(&t->net, &node->listener, sizeof t->net);
    t->requests[FRAME_ADMIN].n += node->admin_requests;
    t->requests[FRAME_ADMIN].n_refused += node->listener.refused_requests;
    if (node->n_waits)
        memcpy(&t->waits[t->n_waits], node->waits, node->n_waits * sizeof *t->waits);
    t->n_waits += node->n_waits;
    return t;
}

uint32_t stats_n_live_workers(const struct shard_report *report)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < report->n_workers; i++)
        n += report->workers[i].state == WORKER_LIVE;
    return n;
}

uint64_t stats_n_rows(const struct shard_report *report)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < report->n_tables; i++)
        n += report->tables[i].n_rows;
    return n;
}

/* --- a restore --- */

void stats_restore_text(const struct stats_restore *restore, uint64_t now_unix_ms,
                        char dst[static STATS_RESTORE_TEXT_MAX])
{
    uint64_t total = restore->n_total_bytes,
             done = restore->n_bytes < total ? restore->n_bytes : total,
             since = restore->since_unix_ms;
    char share[48] = "";

    if (total)
        snprintf(share, sizeof share, "%.0f %% of %.1f MB, ",
                 100 * (double)done / (double)total, (double)total / 1e6);
    snprintf(dst, STATS_RESTORE_TEXT_MAX,
             "restoring: %s%" PRIu64 " rows, %" PRIu64
             " records of the write-ahead log, for %" PRIu64 " s",
             share, restore->n_rows, restore->n_records,
             now_unix_ms > since ? (now_unix_ms - since) / 1000 : 0);
}

/* --- publication --- */

int report_publisher_init(struct report_publisher *p)
{
    p->newest = NULL;
    return uv_mutex_init(&p->lock);
}

void report_publisher_deinit(struct report_publisher *p)
{
    published_report_release(p->newest);
    p->newest = NULL;
    uv_mutex_destroy(&p->lock);
}

void report_publisher_publish(struct report_publisher *p, struct shard_report *report)
{
    struct published_report *published = memory_alloc(sizeof *published), *old;

    published->report = report;
    atomic_store(&published->n_holders, 1);
    uv_mutex_lock(&p->lock);
    old = p->newest;
    p->newest = published;
    uv_mutex_unlock(&p->lock);
    published_report_release(old);
}

struct published_report *report_publisher_acquire(struct report_publisher *p)
{
    struct published_report *published;

    uv_mutex_lock(&p->lock);
    published = p->newest;
    if (published)
        atomic_fetch_add(&published->n_holders, 1);
    uv_mutex_unlock(&p->lock);
    return published;
}

void published_report_release(struct published_report *published)
{
    if (!published || atomic_fetch_sub(&published->n_holders, 1) != 1)
        return;
    shard_report_free(published->report);
    free(published);
}

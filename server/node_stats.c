#include "server/node_stats.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"
#include "common/memory_reserve.h"

#define SAMPLE_EVERY_MS 10000u
#define N_SAMPLES 60u /* ten minutes */

/* The free space of the last ten minutes, and what psd's own files took, so that the rate at which the disk fills is
 * known, and whose files fill it. */
struct disk_history {
    uint64_t mono_ms[N_SAMPLES], free_bytes[N_SAMPLES], own_bytes[N_SAMPLES];
    uint32_t n, next;
};

struct node_stats {
    uv_mutex_t lock;
    struct disk_history disk;
    struct node_report node;
    struct stats_wait waits[NODE_STATS_N_WAITS_MAX];
    struct shard_thread *const *shards; /* borrowed */
    uint32_t n_shards;
};

/* One reader's view. */
struct view {
    struct node_report node;
    struct stats_wait waits[NODE_STATS_N_WAITS_MAX];
    struct published_report **published; /* owned, n_shards */
    const struct shard_report **reports; /* owned, n_shards */
};

struct node_report node_stats_first(const struct settings *s, const struct hello_reply *map)
{
    return (struct node_report){ .version = PS_VERSION,
                                 .address = "",
                                 .http_address = s->http,
                                 .durability = s->data_dir[0] ? s->durability_name : "off",
                                 .node = map->node,
                                 .n_nodes = map->n_nodes,
                                 .shards_per_node = s->shards,
                                 .nodes = map->nodes,
                                 .lease_ms = s->lease_ms,
                                 .metrics_tables = s->metrics_tables,
                                 .checkpoints_kept = s->keep,
                                 .checkpoint_deltas = s->checkpoint_deltas,
                                 .started_unix_ms = clock_unix_ms(),
                                 .pid = (uint64_t)getpid(),
                                 .memory_max_bytes = s->memory_max_bytes,
                                 .client_memory_max_bytes = s->client_memory_bytes };
}

struct node_stats *node_stats_new(struct shard_thread *const *shards, uint32_t n_shards)
{
    struct node_stats *s = memory_alloc(sizeof *s);

    if (uv_mutex_init(&s->lock))
        abort(); /* only without memory */
    s->shards = shards;
    s->n_shards = n_shards;
    return s;
}

void node_stats_free(struct node_stats *s)
{
    if (!s)
        return;
    uv_mutex_destroy(&s->lock);
    free(s);
}

/* The disk is measured no more often than that. */
static void note_disk(struct disk_history *h, const struct stats_disk *disk)
{
    uint32_t last = (h->next + N_SAMPLES - 1) % N_SAMPLES;
    uint64_t now_ms = clock_mono_ms();

    if (!disk->is_on || !disk->size_bytes ||
        (h->n && now_ms < h->mono_ms[last] + SAMPLE_EVERY_MS))
        return;
    h->mono_ms[h->next] = now_ms;
    h->free_bytes[h->next] = disk->free_bytes;
    h->own_bytes[h->next] = disk->checkpoint_bytes + disk->log_bytes + disk->archived_bytes;
    h->next = (h->next + 1) % N_SAMPLES;
    h->n += h->n < N_SAMPLES;
}

static uint64_t rate(uint64_t less, uint64_t more, uint64_t ms)
{
    return more > less ? (more - less) * 1000 / ms : 0;
}

/* From the oldest sample to the newest. */
static void measure_fill(const struct disk_history *h, struct stats_disk *disk)
{
    uint32_t oldest = h->n < N_SAMPLES ? 0 : h->next,
             last = (h->next + N_SAMPLES - 1) % N_SAMPLES;

    if (h->n < 2)
        return;
    disk->fill_over_ms = h->mono_ms[last] - h->mono_ms[oldest];
    disk->fill_bytes_per_s =
        rate(h->free_bytes[last], h->free_bytes[oldest], disk->fill_over_ms);
    disk->others_fill_bytes_per_s =
        rate(h->free_bytes[last] + h->own_bytes[last],
             h->free_bytes[oldest] + h->own_bytes[oldest], disk->fill_over_ms);
}

void node_stats_publish(struct node_stats *s, const struct node_report *node)
{
    uint32_t n_waits =
        node->n_waits < NODE_STATS_N_WAITS_MAX ? node->n_waits : NODE_STATS_N_WAITS_MAX;

    uv_mutex_lock(&s->lock);
    s->node = *node;
    s->node.n_waits = n_waits;
    note_disk(&s->disk, &node->disk);
    measure_fill(&s->disk, &s->node.disk);
    if (n_waits)
        memcpy(s->waits, node->waits, n_waits * sizeof *s->waits);
    uv_mutex_unlock(&s->lock);
}

/* proc(5), statm: all of the address space and the resident set, in pages. */
static void measure_memory(struct node_report *node)
{
    unsigned long long total = 0, resident = 0,
                       page = (unsigned long long)sysconf(_SC_PAGESIZE);
    FILE *file = fopen("/proc/self/statm", "r");

    if (!file)
        return;
    if (fscanf(file, "%llu %llu", &total, &resident) == 2) {
        node->virtual_bytes = total * page;
        node->rss_bytes = resident * page;
    }
    fclose(file);
}

/* Entries of a directory but . and .. */
static uint64_t count_entries(const char *path)
{
    const struct dirent *entry;
    uint64_t n = 0;
    DIR *dir = opendir(path);

    while (dir && (entry = readdir(dir)) != NULL)
        n += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return n;
}

/* The mode stands in brackets: always [madvise] never. Without the file the kernel has none. */
static bool has_huge_pages(void)
{
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    char modes[64] = "";
    bool is_on;

    if (!file)
        return false;
    is_on = fgets(modes, sizeof modes, file) != NULL && !strstr(modes, "[never]");
    fclose(file);
    return is_on && prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 0;
}

static void measure_process(struct node_report *node)
{
    struct rusage usage = { 0 };
    struct rlimit limit = { 0 };
    uint64_t n_fds = count_entries("/proc/self/fd");

    measure_memory(node);
    getrusage(RUSAGE_SELF, &usage);
    getrlimit(RLIMIT_NOFILE, &limit);
    node->cpu_us = (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
                   (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    node->n_fds = n_fds ? n_fds - 1 : 0; /* one was the directory itself */
    node->n_fds_max = limit.rlim_cur;
    node->n_threads = count_entries("/proc/self/task");
    node->has_huge_pages = has_huge_pages();
}

static void fill_view(struct node_stats *s, struct view *v)
{
    uv_mutex_lock(&s->lock);
    v->node = s->node;
    memcpy(v->waits, s->waits, sizeof v->waits);
    uv_mutex_unlock(&s->lock);
    v->published = memory_alloc(s->n_shards * sizeof *v->published);
    v->reports = memory_alloc(s->n_shards * sizeof *v->reports);
    for (uint32_t i = 0; i < s->n_shards; i++) {
        v->published[i] = shard_thread_report(s->shards[i]);
        v->reports[i] = v->published[i] ? v->published[i]->report : NULL;
    }
    v->node.waits = v->waits;
    v->node.n_shards = s->n_shards;
    v->node.shards = v->reports;
    v->node.clock_unix_ms = clock_unix_ms();
    v->node.clock_mono_ms = clock_mono_ms();
    measure_process(&v->node);
    v->node.memory_reserve_left_bytes = memory_reserve_left();
}

void node_stats_with_report(void *stats,
                            void (*use)(void *arg, const struct node_report *report), void *arg)
{
    struct node_stats *s = stats;
    struct view *v = memory_alloc(sizeof *v);

    fill_view(s, v);
    use(arg, &v->node);
    for (uint32_t i = 0; i < s->n_shards; i++)
        published_report_release(v->published[i]);
    free(v->published);
    free(v->reports);
    free(v);
}

uint64_t node_stats_n_rows(const struct node_stats *s)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < s->n_shards; i++) {
        struct published_report *published = shard_thread_report(s->shards[i]);

        sum += published ? stats_n_rows(published->report) : 0;
        published_report_release(published);
    }
    return sum;
}

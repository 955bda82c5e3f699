#include "server/node_stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"
#include "common/memory_reserve.h"

struct node_stats {
    uv_mutex_t lock;
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

void node_stats_publish(struct node_stats *s, const struct node_report *node)
{
    uint32_t n_waits =
        node->n_waits < NODE_STATS_N_WAITS_MAX ? node->n_waits : NODE_STATS_N_WAITS_MAX;

    uv_mutex_lock(&s->lock);
    s->node = *node;
    s->node.n_waits = n_waits;
    if (n_waits)
        memcpy(s->waits, node->waits, n_waits * sizeof *s->waits);
    uv_mutex_unlock(&s->lock);
}

/* proc(5), statm: the second number is the resident set in pages. */
static uint64_t resident_bytes(void)
{
    unsigned long long total, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    if (!file)
        return 0;
    if (fscanf(file, "%llu %llu", &total, &resident) != 2)
        resident = 0;
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
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
    v->node.rss_bytes = resident_bytes();
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

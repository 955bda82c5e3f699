#include "server/facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/mem.h"
#include "common/now.h"
#include "common/reserve.h"

struct facts {
    uv_mutex_t lock;
    struct node_report node;
    struct report_wait waits[FACTS_N_WAITS_MAX];
    struct shard_thread *const *shards; /* borrowed */
    uint32_t n_shards;
};

/* One reader's view. */
struct view {
    struct node_report node;
    struct report_wait waits[FACTS_N_WAITS_MAX];
    struct bulletin_sheet **sheets;      /* owned, n_shards */
    const struct shard_report **reports; /* owned, n_shards */
};

struct facts *facts_new(struct shard_thread *const *shards, uint32_t n_shards)
{
    struct facts *f = mem_alloc(sizeof *f);

    if (uv_mutex_init(&f->lock))
        abort(); /* only without memory */
    f->shards = shards;
    f->n_shards = n_shards;
    return f;
}

void facts_free(struct facts *f)
{
    if (!f)
        return;
    uv_mutex_destroy(&f->lock);
    free(f);
}

void facts_publish(struct facts *f, const struct node_report *node)
{
    uint32_t n_waits = node->n_waits < FACTS_N_WAITS_MAX ? node->n_waits : FACTS_N_WAITS_MAX;

    uv_mutex_lock(&f->lock);
    f->node = *node;
    f->node.n_waits = n_waits;
    if (n_waits)
        memcpy(f->waits, node->waits, n_waits * sizeof *f->waits);
    uv_mutex_unlock(&f->lock);
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

static void fill_view(struct facts *f, struct view *v)
{
    uv_mutex_lock(&f->lock);
    v->node = f->node;
    memcpy(v->waits, f->waits, sizeof v->waits);
    uv_mutex_unlock(&f->lock);
    v->sheets = mem_alloc(f->n_shards * sizeof *v->sheets);
    v->reports = mem_alloc(f->n_shards * sizeof *v->reports);
    for (uint32_t i = 0; i < f->n_shards; i++) {
        v->sheets[i] = shard_thread_report(f->shards[i]);
        v->reports[i] = v->sheets[i] ? v->sheets[i]->report : NULL;
    }
    v->node.waits = v->waits;
    v->node.n_shards = f->n_shards;
    v->node.shards = v->reports;
    v->node.now_unix_ms = now_unix_ms();
    v->node.now_mono_ms = now_mono_ms();
    v->node.rss_bytes = resident_bytes();
    v->node.memory_reserve_left_bytes = reserve_left();
}

void facts_with_report(void *facts, void (*use)(void *arg, const struct node_report *report),
                       void *arg)
{
    struct facts *f = facts;
    struct view *v = mem_alloc(sizeof *v);

    fill_view(f, v);
    use(arg, &v->node);
    for (uint32_t i = 0; i < f->n_shards; i++)
        bulletin_return(v->sheets[i]);
    free(v->sheets);
    free(v->reports);
    free(v);
}

#include "server/load_ahead.h"

#include "common/pages.h"

/* The oldest part that is wanted; false: no more will be. */
static bool take(struct load_ahead *a, struct load_ahead_part *ret)
{
    bool is_there;

    uv_mutex_lock(&a->lock);
    while (a->n_taken == a->n_given && a->state == LOAD_AHEAD_ON)
        uv_cond_wait(&a->changed, &a->lock);
    is_there = a->state == LOAD_AHEAD_ON;
    if (is_there)
        *ret = a->parts[a->n_taken++ % LOAD_AHEAD_PARTS];
    uv_mutex_unlock(&a->lock);
    return is_there;
}

static void run(void *arg)
{
    struct load_ahead *a = arg;
    struct load_ahead_part part;

    enter_pool();
    while (take(a, &part))
        pages_touch(part.pages, part.n_bytes);
}

void load_ahead_begin(struct load_ahead *a)
{
    *a = (struct load_ahead){ .state = LOAD_AHEAD_ON };
    if (uv_mutex_init(&a->lock)) {
        a->state = LOAD_AHEAD_OFF;
        return;
    }
    if (uv_cond_init(&a->changed) == 0) {
        if (uv_thread_create(&a->thread, run, a) == 0)
            return;
        uv_cond_destroy(&a->changed);
    }
    uv_mutex_destroy(&a->lock);
    a->state = LOAD_AHEAD_OFF;
}

static bool give(struct load_ahead *a, const struct load_ahead_part *part)
{
    bool has_room;

    uv_mutex_lock(&a->lock);
    a->parts[a->n_given++ % LOAD_AHEAD_PARTS] = *part;
    has_room = a->n_given - a->n_taken < LOAD_AHEAD_PARTS;
    uv_cond_signal(&a->changed);
    uv_mutex_unlock(&a->lock);
    return has_room;
}

static bool has_room(struct load_ahead *a)
{
    bool ret;

    uv_mutex_lock(&a->lock);
    ret = a->n_given - a->n_taken < LOAD_AHEAD_PARTS;
    uv_mutex_unlock(&a->lock);
    return ret;
}

void load_ahead_go_on(struct load_ahead *a, struct shard *shard)
{
    struct load_ahead_part part;
    bool goes_on = a->state == LOAD_AHEAD_ON && has_room(a);

    for (uint32_t i = 0; i < shard_n_tables(shard) && goes_on; i++) {
        struct table *rows = shard_table(shard, i)->rows;
        struct table_facts facts;

        table_facts(rows, &facts);
        while (goes_on && table_ahead(rows, LOAD_AHEAD_BYTES / facts.row_bytes, &part.pages,
                                      &part.n_bytes))
            goes_on = give(a, &part);
    }
}

void load_ahead_end(struct load_ahead *a)
{
    if (a->state != LOAD_AHEAD_ON)
        return;
    uv_mutex_lock(&a->lock);
    a->state = LOAD_AHEAD_ENDS;
    uv_cond_signal(&a->changed);
    uv_mutex_unlock(&a->lock);
    uv_thread_join(&a->thread);
    uv_cond_destroy(&a->changed);
    uv_mutex_destroy(&a->lock);
    a->state = LOAD_AHEAD_OFF;
}

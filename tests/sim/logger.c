#include "tests/sim/logger.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

static void on_wake(void *owner, uint64_t life, void *data);

/* --- the writer's thread --- */

static void wake(struct logger *l, uint64_t delay_us)
{
    events_in(&l->world->events, delay_us, on_wake, l, l->life, NULL);
}

static uint64_t disk_time_us(struct logger *l)
{
    uint64_t most = l->world->plan.disk_us;

    if (dice_once_in(&l->world->dice, 20))
        most = plan_disk_us_max(&l->world->plan); /* disks stall */
    return dice_from(&l->world->dice, most / 8, most);
}

static void note_progress(struct logger *l)
{
    const struct log_progress *p = log_writer_progress(l->writer);

    l->book->safe = p->durable > l->book->saved ? p->durable : l->book->saved;
    l->book->written = p->written > l->book->saved ? p->written : l->book->saved;
    l->book->lost = l->queue.lost_first;
    if (p->state != LOG_WRITER_OK)
        l->book->troubled_us = l->world->events.now_us;
}

static void send_acks(struct logger *l)
{
    uint64_t acknowledged = log_queue_acknowledged(&l->queue);
    uint32_t n = 0;

    for (; n < l->n_acks && l->acks[n].number <= acknowledged; n++) {
        if (l->acks[n].number > l->book->promised)
            l->book->promised = l->acks[n].number;
        net_answer(&l->world->net, l->acks[n].to, &l->acks[n].message);
        if (l->acks[n].message.type == MESSAGE_PUSH && !l->acks[n].message.status)
            l->acks[n].message.push->is_acked = true;
    }
    for (uint32_t i = n; i < l->n_acks; i++)
        l->acks[i - n] = l->acks[i];
    l->n_acks -= n;
}

static void on_told(void *owner, uint64_t life, void *due)
{
    struct logger *l = owner;
    uint64_t now_ms = world_ms(l->world), due_ms = *(uint64_t *)due, poll_ms;

    if (!life || life != l->life)
        return;
    log_writer_tell(l->writer, &l->queue);
    l->is_busy = false;
    note_progress(l);
    send_acks(l);
    if (l->queue.progress.durable >= l->sync_to)
        l->sync_to = 0;
    else if (l->queue.progress.state == LOG_WRITER_OK)
        l->wants_sync = true;
    poll_ms = l->world->plan.interval_ms / 4 + 1;
    if (l->wants_sync || l->cut || (l->queue.first && l->queue.durability == LOG_FSYNC))
        wake(l, 1);
    else if (due_ms <= now_ms)
        wake(l, 100);
    else if (l->queue.first && poll_ms < due_ms - now_ms)
        wake(l, 1000 * poll_ms);
    else if (due_ms != UINT64_MAX)
        wake(l, 1000 * (due_ms - now_ms));
}

static void on_wake(void *owner, uint64_t life, void *data)
{
    struct logger *l = owner;
    uint64_t now_ms = world_ms(l->world), *due_ms = malloc(sizeof *due_ms);
    struct err err = { 0 };

    (void)data;
    assert(due_ms);
    if (!life || life != l->life || l->is_busy) {
        free(due_ms);
        return;
    }
    if (l->wants_sync)
        log_writer_sync(l->writer);
    if (l->cut)
        (void)!log_writer_cut(l->writer, l->cut, &err); /* what stays is cut the next time */
    l->wants_sync = false;
    l->cut = 0;
    log_writer_take(l->writer, &l->queue);
    log_writer_work(l->writer, now_ms, now_ms, due_ms);
    l->is_busy = true;
    events_in(&l->world->events, disk_time_us(l), on_told, l, life, due_ms);
}

/* --- the recorder's sink --- */

static int on_reserve(void *owner, size_t n_bytes)
{
    struct logger *l = owner;

    return log_queue_reserve(&l->queue, n_bytes);
}

static uint64_t on_append(void *owner, const struct log_record *record)
{
    struct logger *l = owner;
    struct fact fact = fact_of(&record->event, &l->world->ledger, l->shard);
    uint64_t number = log_queue_append(&l->queue, record, world_ms(l->world));
    const char *wrong;

    world_tell(l->world, "shard %u: record %llu: %s, rank %u, version %llu", l->shard,
               (unsigned long long)number, log_record_name(fact.type), fact.rank,
               (unsigned long long)fact.version);
    fact.told_us = l->world->events.now_us;
    history_add(&l->book->history, &fact);
    if (l->book->history.n != number)
        world_fail(l->world, "shard %u: record %llu is told, %llu is next", l->shard,
                   (unsigned long long)number, (unsigned long long)l->book->history.n);
    wrong = model_apply(&l->book->model, &fact);
    if (wrong)
        world_fail(l->world, "shard %u: record %llu: %s", l->shard, (unsigned long long)number,
                   wrong);
    l->book->lost = l->queue.lost_first;
    if (!l->is_busy)
        wake(l, l->queue.durability == LOG_FSYNC || (l->queue.first && l->queue.first->next)
                    ? dice_roll(&l->world->dice, 100)
                    : 250 * ((uint64_t)l->world->plan.interval_ms + 4));
    return number;
}

/* --- life --- */

int logger_start(struct logger *l, uint64_t life, const char *dir,
                 const struct log_identity *identity, const struct log_end *end,
                 struct err *err)
{
    const struct plan *p = &l->world->plan;
    struct log_writer_config config = { .files = &l->disk->ops,
                                        .identity = *identity,
                                        .durability = p->durability,
                                        .zstd = LOG_ZSTD_OFF,
                                        .interval_ms = p->interval_ms,
                                        .retry_ms = 10,
                                        .segment_bytes = p->segment_bytes };
    int status;

    snprintf(config.dir, sizeof config.dir, "%s", dir);
    status = log_writer_open(&config, end, world_ms(l->world), &l->writer, err);
    if (status)
        return status;
    log_queue_init(&l->queue, &(struct log_queue_config){ .durability = p->durability,
                                                          .next_number = end->last + 1,
                                                          .block_bytes = p->block_bytes,
                                                          .max_bytes = p->queue_bytes });
    recorder_init(&l->recorder, &(struct recorder_config){ .sink = { l, on_reserve, on_append },
                                                           .last = end->last });
    l->life = life;
    l->is_busy = l->wants_sync = false;
    l->cut = l->sync_to = 0;
    note_progress(l);
    return 0;
}

void logger_stop(struct logger *l)
{
    if (!l->life)
        return;
    log_writer_free(l->writer);
    log_queue_deinit(&l->queue);
    free(l->acks);
    l->acks = NULL;
    l->n_acks = l->cap_acks = 0;
    l->life = 0;
}

void logger_answer(struct logger *l, struct net_connection *to, const struct message *m)
{
    if (l->n_acks == l->cap_acks) {
        l->cap_acks = l->cap_acks ? 2 * l->cap_acks : 16;
        l->acks = realloc(l->acks, l->cap_acks * sizeof *l->acks);
        assert(l->acks);
    }
    l->acks[l->n_acks++] = (struct ack){ recorder_last(&l->recorder), to, *m };
    send_acks(l);
}

void logger_drop(struct logger *l, const struct net_connection *to)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < l->n_acks; i++)
        if (l->acks[i].to != to)
            l->acks[n++] = l->acks[i];
    l->n_acks = n;
}

void logger_sync(struct logger *l, uint64_t number)
{
    l->wants_sync = true;
    l->sync_to = number;
    if (!l->is_busy)
        wake(l, 1);
}

void logger_saved(struct logger *l, uint64_t first, uint64_t needed)
{
    log_queue_mend(&l->queue, first);
    l->book->saved = first;
    l->cut = needed;
    note_progress(l);
    send_acks(l);
    if (!l->is_busy)
        wake(l, 1);
}

int logger_await(const struct logger *l, uint64_t first, uint64_t through)
{
    if (l->queue.lost_last > first)
        return -EIO;
    if (l->queue.progress.durable >= through)
        return 0;
    return l->queue.progress.state == LOG_WRITER_FAILED ? l->queue.progress.err.status
                                                        : -EAGAIN;
}

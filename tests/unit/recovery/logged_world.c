#include "tests/unit/recovery/logged_world.h"
#define UNIX_MS UINT64_C(1700000000000)

static const struct wal_identity logged_identity = { .node = 1, .n_shards = 1, .map_id = 7 };

/* --- one event log that tells two --- */

static int both_reserve(void *owner, const struct shard_event *event)
{
    struct logged_world *l = owner;
    int status = shard_events_reserve(&l->recorder.events, event);

    l->n_waited += status != 0;
    return status ? status : shard_events_reserve(&l->kept, event);
}

static void both_record(void *owner, const struct shard_event *event)
{
    struct logged_world *l = owner;

    shard_events_record(&l->kept, event);
    shard_events_record(&l->recorder.events, event);
    assert_int_equal(recorder_last(&l->recorder), l->w.event_log->n);
}

static int sink_reserve(void *owner, size_t n_bytes)
{
    struct logged_world *l = owner;

    return wal_queue_reserve(&l->queue, n_bytes);
}

uint64_t sink_append(void *owner, const struct wal_record *record)
{
    struct logged_world *l = owner;

    assert_int_equal(record->unix_ms, UNIX_MS + l->log_ms);
    return wal_queue_append(&l->queue, record, l->log_ms);
}

static uint64_t unix_ms_of(void *clock)
{
    const struct logged_world *l = clock;

    return UNIX_MS + l->log_ms;
}

/* --- its log --- */

static struct wal_writer_config writer_config(struct logged_world *l)
{
    return (struct wal_writer_config){ .files = &l->disk.ops,
                                       .dir = LOG_DIR,
                                       .identity = logged_identity,
                                       .durability = l->durability,
                                       .zstd = WAL_ZSTD_WHERE_IT_PAYS,
                                       .retry_ms = 500,
                                       .segment_bytes = 60000 };
}

int open_log(struct logged_world *l, const struct wal_end *end)
{
    const struct wal_writer_config config = writer_config(l);
    struct err err = { 0 };
    int status = wal_writer_open(&config, end, UNIX_MS, &l->writer, &err);

    if (status) {
        assert_true(err.text[0] != '\0');
        l->writer = NULL;
    }
    wal_queue_init(&l->queue, &(struct wal_queue_config){ .durability = l->durability,
                                                          .next_number = end->last + 1,
                                                          .block_bytes = 8000,
                                                          .max_bytes = 16 << 20 });
    recorder_init(&l->recorder,
                  &(struct recorder_config){ .sink = { l, sink_reserve, sink_append },
                                             .last = end->last,
                                             .unix_ms = unix_ms_of,
                                             .clock = l });
    return status;
}

void close_log(struct logged_world *l)
{
    wal_writer_free(l->writer);
    wal_queue_deinit(&l->queue);
    l->writer = NULL;
    assert_int_equal(crash_files_n_open(&l->disk.files), 0);
}

uint64_t promise_of(const struct logged_world *l)
{
    uint64_t durable = l->queue.progress.durable;

    if (l->durability == WAL_FSYNC)
        return wal_queue_acknowledged(&l->queue);
    return l->queue.lost_first && l->queue.lost_first <= durable ? l->queue.lost_first - 1
                                                                 : durable;
}

uint64_t promised_events(const struct logged_world *l, uint64_t promised)
{
    while (promised && l->w.event_log->events[promised - 1]->e.type == SHARD_EVENT_ROWS)
        promised--;
    return promised;
}

void work(struct logged_world *l)
{
    uint64_t due_ms, promise;

    wal_writer_drain(l->writer, &l->queue);
    wal_writer_work(l->writer, l->log_ms, UNIX_MS, &due_ms);
    wal_writer_report(l->writer, &l->queue);
    promise = promise_of(l);
    assert_true(promise >= l->promised);
    l->promised = promise;
}

/* A scan is a checkpoint only when the log is durable to its end. */
static void note_scans(struct logged_world *l)
{
    if (l->w.n_full != l->n_full)
        l->n_through = 0; /* a full one has taken the place of all */
    l->n_full = l->w.n_full;
    while (l->n_through < l->w.n_scans) {
        l->through[l->n_through++] = recorder_last(&l->recorder);
        wal_writer_sync(l->writer);
        work(l);
    }
}

void logged_step(struct logged_world *l)
{
    step(&l->w);
    note_scans(l);
    l->log_ms += roll(&l->w.dice, 400);
    if (roll(&l->w.dice, 4) == 0)
        work(l);
}

void logged_steps(struct logged_world *l, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        logged_step(l);
    work(l);
}

/* --- life --- */

/* What begin_world() has made happen comes first. */
static void record_the_beginning(struct logged_world *l)
{
    for (size_t i = 0; i < l->w.event_log->n; i++) {
        const struct shard_event *e = &l->w.event_log->events[i]->e;

        if (shard_event_is_asked_for(e->type))
            assert_int_equal(shard_events_reserve(&l->recorder.events, e), 0);
        shard_events_record(&l->recorder.events, e);
    }
}

int begin_logged(struct logged_world *l, struct dice dice, const struct shape *shape,
                 uint64_t round, enum wal_durability durability)
{
    const struct wal_end nothing = { 0 };
    int status;

    *l = (struct logged_world){ .w = begin_world_of(dice, shape, round),
                                .durability = durability,
                                .log_ms = 1000 };
    bad_disk_init(&l->disk);
    status = open_log(l, &nothing);
    record_the_beginning(l);
    l->kept = l->w.event_log->sink;
    l->w.event_log->sink = (struct shard_events){ l, both_reserve, both_record };
    return status;
}

void end_logged(struct logged_world *l)
{
    enter_shard();
    finish_push(&l->w);
    bsp_finish(l->w.s);
    shard_set_events(l->w.s, NULL);
    close_log(l);
    end_world(&l->w);
    crash_files_deinit(&l->disk.files);
}

/* --- made again --- */

struct wal_replay recovery_of(struct logged_world *l, size_t n_scans)
{
    struct wal_replay r = { .n_scans = n_scans,
                            .config = { .files = &l->disk.ops,
                                        .dir = LOG_DIR,
                                        .identity = &logged_identity,
                                        .from = 1 } };

    if (n_scans) {
        r.config.from = l->w.scans[n_scans - 1].position + 1;
        r.config.needs = l->through[n_scans - 1];
    }
    return r;
}

int recover(struct logged_world *l, struct wal_replay *r)
{
    int status;

    enter_shard();
    r->s = shard_new(&l->w.config);
    replay_begin(r->s);
    r->err = (struct err){ 0 };
    status = replay_scans(r->s, l->w.scans, r->n_scans, l->w.now_ms);
    if (!status)
        status = wal_replay_run(r->s, &r->config, l->w.now_ms, &r->facts, &r->end, &r->err);
    replay_end(r->s, l->w.now_ms);
    return status;
}

void assert_is_reference(struct logged_world *l, struct shard *s, uint64_t last)
{
    struct shard *reference;

    enter_shard();
    assert_int_equal(
        try_restore(&l->w.config, NULL, 0, l->w.event_log, last, l->w.now_ms, &reference), 0);
    assert_same_shard(reference, s);
    shard_free(reference);
}

size_t n_usable_scans(const struct logged_world *l, uint64_t last)
{
    size_t n = 0;

    while (n < l->n_through && l->through[n] <= last)
        n++;
    return n;
}

void die(struct logged_world *l, long power_cut)
{
    enter_shard();
    shard_set_events(l->w.s, NULL);
    if (l->w.going.scan)
        scan_end(l->w.s, &l->w.going, SNAPSHOT_SCAN_DROPPED);
    kept_scan_free(&l->w.going);
    finish_push(&l->w);
    shard_free(l->w.s);
    l->w.s = NULL;
    close_log(l);
    if (power_cut >= 0)
        bad_disk_power_cut(&l->disk, (uint64_t)power_cut, l->durability == WAL_NONE);
    crash_files_heal(&l->disk.files);
}

void rise(struct logged_world *l, size_t n_scans, struct shard *s, const struct wal_end *end)
{
    struct event_log *j = l->w.event_log;

    for (size_t i = n_scans; i < l->w.n_scans; i++)
        kept_scan_free(&l->w.scans[i]);
    l->w.n_scans = l->n_through = n_scans;
    while (j->n > end->last)
        free_event(j->events[--j->n]);
    l->promised = 0;
    l->w.s = s;
    assert_int_equal(open_log(l, end), 0);
    shard_set_events(s, &j->sink);
}

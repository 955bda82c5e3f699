/* A write-ahead log that is full for a while: requests that need space in it wait, are not refused for memory, and
 * loses neither its connection nor its turn. */
#include "common/clock.h"
#include "server/core/shard_internal.h"
#include "server/shard_wal.h"
#include "serving.h"
#include "tests/support/crash_files.h"
#include "tests/support/slow_disk.h"

#define QUEUE_BYTES \
    (64u << 10) /* less than a block: full with every record that is not yet taken */
#define N_KEYS_LARGE 60000u /* of rows of DIM: more than a slice */

struct logged {
    struct fixture f;
    struct crash_files files;
    struct slow_disk disk;
    struct mailbox mailbox;
    uv_timer_t timer;
    struct shard_wal *log;
    uint32_t n_spaces; /* times at which the log had room again */
};

static void on_space(void *owner)
{
    struct logged *l = owner;

    enter_shard();
    l->n_spaces++;
    dispatch_resume(l->f.dispatch);
}

static void logged_begin_with(struct logged *l, enum wal_durability durability,
                              uint64_t wait_max_ms, size_t queue_bytes)
{
    struct wal_writer_config writer = {
        .dir = "log", .identity = { .n_shards = 1 }, .durability = durability, .interval_ms = 4
    };
    struct wal_end end = { .verdict = WAL_CLEAN };
    struct err err;

    *l = (struct logged){ .n_spaces = 0 };
    set_up_waiting(&l->f, wait_max_ms);
    crash_files_init(&l->files);
    slow_disk_init(&l->disk, &l->files.ops);
    writer.files = &l->disk.ops;
    assert_int_equal(mailbox_init(&l->mailbox, &l->f.loop, NULL), 0);
    uv_timer_init(&l->f.loop, &l->timer);
    enter_shard();
    assert_int_equal(shard_wal_open(&(struct shard_wal_config){ .shard = l->f.shard,
                                                                .replies = &l->f.replies,
                                                                .mailbox = &l->mailbox,
                                                                .timer = &l->timer,
                                                                .writer = &writer,
                                                                .queue_max_bytes = queue_bytes,
                                                                .on_space = on_space,
                                                                .owner = l },
                                    &end, &l->log, &err),
                     0);
}

static void logged_begin_waiting(struct logged *l, enum wal_durability durability,
                                 uint64_t wait_max_ms)
{
    logged_begin_with(l, durability, wait_max_ms, QUEUE_BYTES);
}

static void logged_begin(struct logged *l, enum wal_durability durability)
{
    logged_begin_waiting(l, durability, 1000000);
}

static void logged_end(struct logged *l)
{
    struct err err;

    enter_shard();
    mailbox_close(&l->mailbox);
    uv_close((uv_handle_t *)&l->timer, NULL);
    assert_int_equal(shard_wal_close(l->log, &err), 0);
    tear_down(&l->f);
    mailbox_deinit(&l->mailbox);
    slow_disk_deinit(&l->disk);
    crash_files_deinit(&l->files);
}

static void send_push(struct peer *p, uint64_t seq, uint32_t n_keys)
{
    static uint64_t keys[N_KEYS_LARGE];
    static uint8_t key_bytes[(size_t)N_KEYS_LARGE * KEY_CODEC_BYTES_MAX];
    static float values[N_KEYS_LARGE * DIM];
    struct bytes frame = { 0 };
    struct push push = {
        .seq = seq, .clock = seq - 1, .n_samples = 1, .n_sections = n_keys > 0
    };

    for (uint32_t i = 0; i < n_keys; i++)
        keys[i] = 2 * i;
    push.sections[0] = (struct section){ .n_keys = n_keys,
                                         .keys = key_bytes,
                                         .key_bytes = key_codec_encode(keys, n_keys, key_bytes),
                                         .values = (const uint8_t *)values,
                                         .value_bytes = (size_t)n_keys * DIM * sizeof(float) };
    assert_int_equal(message_write_push(&frame, 100 + seq, &push, NULL), 0);
    peer_send(p, &frame);
}

static void assert_applied(struct peer *p, uint64_t seq)
{
    const struct push_reply reply = hear_push(p, seq);

    assert_string_equal(reply.text, "");
    assert_int_equal(reply.status, 0);
    assert_false(reply.repeated);
}

/* Until nothing waits to be written. */
static void drain(struct logged *l, struct peer *p)
{
    struct stats_log report;
    char error[200];

    do {
        peer_turn(p);
        enter_shard();
        shard_wal_report(l->log, &report, error);
    } while (report.held_bytes);
}

/* The disk stands still, and one push of `p` has filled the queue behind what stands at its gate. */
static void fill(struct logged *l, struct peer *p, uint64_t seq)
{
    drain(l, p);
    slow_disk_shut(&l->disk);
    send_push(p, seq, 0);
    assert_applied(p, seq);
    slow_disk_await(&l->disk);
    assert_false(l->f.replies.is_full);
}

/* The writer's progress is a message to this thread: it comes after what was written. */
static void await_bound(struct logged *l, struct peer *p, struct stats_wait *ret)
{
    uint64_t give_up_ms = clock_mono_ms() + 60000;
    bool is_bound;

    do {
        peer_turn(p);
        enter_shard();
        is_bound = shard_wal_is_bound(l->log, ret);
    } while (!is_bound && clock_mono_ms() < give_up_ms);
    assert_true(is_bound);
}

static void turn(struct peer *p)
{
    for (int i = 0; i < 20; i++)
        peer_turn(p);
}

static void pushes_joins_and_tables_wait_until_there_is_space(void **state)
{
    struct logged l;
    struct peer p, late, maker;

    (void)state;
    logged_begin(&l, WAL_ASYNC);
    p = worker_of(&l.f, 0);
    late = client(&l.f, "worker");
    maker = client(&l.f, "worker");
    fill(&l, &p, 1);
    send_push(&p, 2, 0);
    send_join(&late, 1, 1);
    send_table(&maker, "t");
    turn(&p);
    enter_shard();
    dispatch_tick(l.f.dispatch);
    assert_true(l.f.replies.is_full);
    assert_int_equal(shard_counters(l.f.shard)->pushes, 1);
    assert_int_equal(shard_n_tables(l.f.shard), 0);
    slow_disk_open(&l.disk);
    assert_applied(&p, 2);
    assert_int_equal(hear_join(&late).status, 0);
    assert_int_equal(hear_table(&maker).status, 0);
    assert_true(l.n_spaces > 0);
    send_push(&p, 3, 0); /* and goes on */
    assert_applied(&p, 3);
    assert_int_equal(beat(&late), 0);
    peer_close(&p);
    peer_close(&late);
    peer_close(&maker);
    logged_end(&l);
}

/* Another large push may find no space. */
static bool is_nearly_full(struct logged *l)
{
    struct stats_log report;
    char error[200];

    enter_shard();
    shard_wal_report(l->log, &report, error);
    return report.held_bytes + (uint64_t)N_KEYS_LARGE * (DIM + 2) * sizeof(float) >
           ((uint64_t)64 << 20);
}

/* The disk stands still, and more than the low part of the queue waits; it is not full. Pushes have their turns, one
 * after the other, and are told of. */
static void pushes_wait_for_their_turn_before_it_is_full(void **state)
{
    struct logged l;
    struct peer p;
    struct stats_log report;
    struct stats_wait wait;
    char error[200];
    uint64_t seq = 0;

    (void)state;
    logged_begin_with(&l, WAL_ASYNC, 1000000, 0);
    p = worker_of(&l.f, 0);
    assert_int_equal(ask_table(&p, "t"), 0);
    drain(&l, &p);
    slow_disk_shut(&l.disk);
    while (l.f.replies.push_waits.n_over < 3 && !is_nearly_full(&l)) {
        send_push(&p, ++seq, N_KEYS_LARGE);
        assert_applied(&p, seq); /* though the disk stands still: its turn has come */
        assert_false(l.f.replies.is_full);
    }
    if (is_nearly_full(&l)) {
        print_message("skipped: pushes take longer here than they would have to wait\n");
        slow_disk_open(&l.disk);
        peer_close(&p);
        logged_end(&l);
        skip();
    }
    assert_true(l.f.replies.push_waits.over_ns > 0);
    assert_int_equal(l.f.replies.push_waits.n_now, 0);
    enter_shard();
    shard_wal_report(l.log, &report, error);
    assert_true(report.push_wait_us > 0);
    assert_false(shard_wal_is_bound(
        l.log, &wait)); /* how slow is not known before it has taken something */
    slow_disk_open(&l.disk);
    await_bound(&l, &p, &wait);
    assert_string_equal(wait.what, "write-ahead log's disk");
    assert_non_null(strstr(wait.why, "MB/s"));
    peer_close(&p);
    logged_end(&l);
}

static void report(struct logged *l)
{
    struct stats_log report;
    char error[200];

    enter_shard();
    shard_wal_report(l->log, &report, error);
}

/* A push waits for 0.7 s, and is reported as waiting. */
static void pass_time(struct logged *l, struct peer *p)
{
    const uint64_t until_ms = clock_mono_ms() + 700;

    while (!l->f.replies.push_waits.n_now)
        peer_turn(p);
    report(l);
    while (clock_mono_ms() < until_ms)
        peer_turn(p);
    assert_true(l->f.replies.is_full);
    report(l);
}

static void wait_for_the_disk(struct logged *l, struct peer *p, uint64_t seq)
{
    fill(l, p, seq);
    send_push(p, seq + 1, 0);
    pass_time(l, p);
    slow_disk_open(&l->disk);
    assert_applied(p, seq + 1);
}

static void wait_for_the_standby(struct logged *l, struct peer *p, uint64_t seq)
{
    struct fetch_handler *fetches = dispatch_fetches(l->f.dispatch);

    drain(l, p);
    enter_shard();
    fetch_handler_park(fetches, true, false);
    send_push(p, seq, 0);
    pass_time(l, p);
    enter_shard();
    fetch_handler_unpark(fetches);
    assert_applied(p, seq);
}

/* Who buys a disk by these figures is told of the disk's time alone. */
static void a_wait_for_the_standby_is_not_counted_as_the_disks(void **state)
{
    struct logged l;
    struct peer p;
    struct stats_wait wait;
    double held_s, all_s;

    (void)state;
    logged_begin(&l, WAL_ASYNC);
    p = worker_of(&l.f, 0);
    assert_int_equal(ask_table(&p, "t"), 0);
    send_push(&p, 1, N_KEYS_LARGE); /* from which the disk's speed is known */
    assert_applied(&p, 1);
    enter_shard();
    shard_wal_ship(l.log, dispatch_fetches(l.f.dispatch));
    wait_for_the_disk(&l, &p, 2);
    wait_for_the_standby(&l, &p, 4);
    wait_for_the_disk(&l, &p, 5);
    await_bound(&l, &p, &wait);
    assert_int_equal(
        sscanf(wait.why, "pushes waited for %lf s of the last %lf s", &held_s, &all_s), 2);
    assert_true(held_s >= 1.2 && all_s - held_s >= 0.6);
    peer_close(&p);
    logged_end(&l);
}

static bool large_is_under_way(struct fixture *f)
{
    enter_shard();
    return f->shard->large.push != NULL;
}

static void a_large_push_that_finds_it_full_in_the_middle_begins_again(void **state)
{
    struct logged l;
    struct peer p, other;

    (void)state;
    logged_begin(&l, WAL_ASYNC);
    p = worker_of(&l.f, 0);
    other = worker_of(&l.f, 1);
    assert_int_equal(ask_table(&p, "t"), 0);
    drain(&l, &p);
    slow_disk_shut(&l.disk);
    send_push(&p, 1, N_KEYS_LARGE);
    while (!large_is_under_way(&l.f))
        uv_run(&l.f.loop, UV_RUN_NOWAIT);
    send_push(&other, 1, 0); /* overtakes it, and fills the queue */
    while (large_is_under_way(&l.f))
        uv_run(&l.f.loop, UV_RUN_NOWAIT);
    assert_int_equal(shard_counters(l.f.shard)->pushes, 1);
    assert_true(l.f.replies.is_full);
    slow_disk_open(&l.disk);
    assert_applied(&other, 1);
    assert_applied(&p, 1);
    peer_close(&p);
    peer_close(&other);
    logged_end(&l);
}

static void a_peer_that_hangs_up_while_deferred_is_dropped(void **state)
{
    struct logged l;
    struct peer p, late, other;

    (void)state;
    logged_begin(&l, WAL_ASYNC);
    p = worker_of(&l.f, 0);
    late = client(&l.f, "worker");
    other = client(&l.f, "worker");
    fill(&l, &p, 1);
    send_join(&late, 1, 1);
    send_table(&other, "t");
    turn(&p);
    peer_close(&late);
    turn(&p);
    slow_disk_open(&l.disk);
    while (!l.n_spaces)
        peer_turn(&p);
    send_push(&p, 2, 0);
    assert_applied(&p, 2);
    peer_close(&other);
    peer_close(&p);
    logged_end(&l);
}

static void a_waiting_peer_is_closed_when_the_daemon_stops(void **state)
{
    struct logged l;
    struct peer p, late;

    (void)state;
    logged_begin(&l, WAL_ASYNC);
    p = worker_of(&l.f, 0);
    late = client(&l.f, "worker");
    fill(&l, &p, 1);
    send_join(&late, 1, 1);
    turn(&p);
    enter_shard();
    dispatch_stop(l.f.dispatch);
    assert_false(peer_receive(&late));
    slow_disk_open(&l.disk);
    peer_close(&late);
    peer_close(&p);
    logged_end(&l);
}

static size_t n_connections(struct logged *l)
{
    struct connection_set_counts counts;

    connection_set_count(&l->f.connections, &counts);
    return counts.connections;
}

/* A held connection is not read: that its peer has hung up is seen when the wait is over, however long the disk
 * stands still. */
static void a_client_that_waited_learns_why_and_leaves_no_connection_behind(void **state)
{
    struct join_reply joined;
    struct table_reply made;
    struct logged l;
    struct peer p, late, maker, gone;

    (void)state;
    logged_begin_waiting(&l, WAL_ASYNC, 1);
    p = client(&l.f, "worker");
    late = client(&l.f, "worker");
    maker = client(&l.f, "worker");
    gone = client(&l.f, "worker");
    while (join_job(&p, 0, 1).status)
        ;
    fill(&l, &p, 1);
    send_join(&late, 1, 1);
    send_table(&maker, "t");
    send_table(&gone, "u");
    turn(&p);
    peer_close(&gone);
    turn(&p);
    assert_int_equal(n_connections(&l), 4);
    enter_shard();
    dispatch_tick(l.f.dispatch);
    joined = hear_join(&late);
    assert_int_equal(joined.status, -EBUSY);
    assert_non_null(strstr(joined.text, "job job: the write-ahead log takes no more now"));
    made = hear_table(&maker);
    assert_int_equal(made.status, -EBUSY);
    assert_non_null(strstr(made.text, "table t: the write-ahead log takes no more now"));
    peer_close(&late);
    peer_close(&maker);
    while (n_connections(&l) > 1)
        peer_turn(&p);
    assert_true(l.f.replies.is_full);
    slow_disk_open(&l.disk);
    drain(&l, &p);
    assert_int_equal(shard_n_tables(l.f.shard), 0);
    assert_int_equal(beat(&p), 0);
    peer_close(&p);
    logged_end(&l);
}

/* The writer makes room at any moment, also between a reservation that finds none and whatever is asked
 * next: each time the queue is full, room is asked for until there is some. */
static void a_writer_that_is_just_as_fast_is_never_taken_for_a_lack_of_memory(void **state)
{
    const struct push push = { .seq = 1 };
    const struct shard_event event = { .type = SHARD_EVENT_PUSH,
                                       .push = { { "job", 0, 1 }, &push, 0 } };
    struct logged l;
    struct peer p; /* keeps the loop turning */
    uint32_t n_full = 0;

    (void)state;
    logged_begin(&l, WAL_FSYNC);
    p = client(&l.f, "worker");
    enter_shard();
    for (int i = 0; i < 500; i++) {
        const struct shard_events *event_log = l.f.shard->events;
        int status;

        while ((status = shard_events_reserve(event_log, &event)) != 0) {
            assert_int_equal(status, -EAGAIN);
            assert_true(l.f.replies.is_full);
            n_full++;
        }
        shard_events_record(event_log, &event);
        while (l.f.replies.is_full)
            uv_run(&l.f.loop, UV_RUN_NOWAIT);
    }
    assert_true(n_full > 0);
    peer_close(&p);
    logged_end(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pushes_wait_for_their_turn_before_it_is_full),
        cmocka_unit_test(a_wait_for_the_standby_is_not_counted_as_the_disks),
        cmocka_unit_test(pushes_joins_and_tables_wait_until_there_is_space),
        cmocka_unit_test(a_large_push_that_finds_it_full_in_the_middle_begins_again),
        cmocka_unit_test(a_peer_that_hangs_up_while_deferred_is_dropped),
        cmocka_unit_test(a_waiting_peer_is_closed_when_the_daemon_stops),
        cmocka_unit_test(a_client_that_waited_learns_why_and_leaves_no_connection_behind),
        cmocka_unit_test(a_writer_that_is_just_as_fast_is_never_taken_for_a_lack_of_memory),
    };

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A shard's part of a standby: what it gets, what replies wait for, and what the log keeps for it. */
#include <sys/socket.h>

#include "common/clock.h"
#include "common/memory.h"
#include "proto/message_replication.h"
#include "server/wal/wal_writer.h"
#include "serving.h"
#include "tests/support/crash_files.h"

#define TERM 5u

static const struct fetch_standby standby_of_nobody = {
    .term = TERM, .keep = 0, .ack = TERMS_ACK_GOT, .name = "", .pin_bytes_max = 1000
};

static struct fetch_handler *fetches(struct fixture *f)
{
    enter_shard();
    return dispatch_fetches(f->dispatch);
}

/* last: the log's newest record. */
static void begin_with(struct fixture *f, const char *name, uint64_t last)
{
    struct fetch_standby standby = standby_of_nobody;

    enter_shard();
    snprintf(standby.name, sizeof standby.name, "%s", name);
    fetch_handler_begin(fetches(f), &standby, last);
}

static void begin(struct fixture *f, const char *name)
{
    begin_with(f, name, 0);
}

static void append(struct fixture *f, uint64_t number, enum shard_event_type type)
{
    static const uint64_t keys[] = { 1, 2, 3 };
    struct wal_record record = { .number = number, .event.type = type };

    enter_shard();
    if (type == SHARD_EVENT_ROWS) {
        record.event.rows.keys = keys;
        record.event.rows.n_keys = 3;
    } else {
        record.event.gone.worker = (struct shard_event_worker){ .job = "job" };
    }
    reply_queue_note(&f->replies, number);
    fetch_handler_append(fetches(f), &record);
}

static void ask(struct peer *p, uint64_t request_id, const struct fetch *m)
{
    struct bytes frame = { 0 };

    assert_int_equal(message_write_fetch(&frame, request_id, m), 0);
    peer_send(p, &frame);
}

static struct fetch_reply hear(struct peer *p, uint64_t request_id)
{
    struct fetch_reply got;

    assert_true(peer_receive(p));
    assert_int_equal(p->header.type, FRAME_FETCH_REPLY);
    assert_int_equal(p->header.request_id, request_id);
    assert_int_equal(
        message_read_fetch_reply(&p->header, p->head, p->body, p->header.body_bytes, &got), 0);
    return got;
}

static void a_fetch_waits_for_records_and_acknowledges_those_before(void **state)
{
    const struct fetch_view *view;
    struct fetch_reply got;
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = client(&f, "standby");
    view = fetch_handler_view(fetches(&f));
    ask(&p, 1, &(struct fetch){ .term = TERM, .next = 1 });
    assert_int_equal(hear(&p, 1).status, -ESTALE); /* nobody follows */
    begin(&f, f.connections.first->hello.name);
    append(&f, 1, SHARD_EVENT_ROWS);
    append(&f, 2, SHARD_EVENT_ROWS);
    ask(&p, 2, &(struct fetch){ .term = TERM, .next = 1, .wait_ms = 60000 });
    got = hear(&p, 2);
    assert_int_equal(got.first, 1);
    assert_int_equal(got.n_records, 2);
    assert_int_equal(got.appended, 2);
    assert_true(atomic_load(&view->is_connected));
    ask(&p, 3, &(struct fetch){ .term = TERM, .next = 3, .wait_ms = 60000 });
    ask(&p, 4, &(struct fetch){ .term = TERM, .next = 3, .durable = 2, .wait_ms = 60000 });
    assert_int_equal(hear(&p, 3).n_records, 0); /* the second one told something */
    assert_int_equal(atomic_load(&view->received), 2);
    assert_int_equal(atomic_load(&view->durable), 2);
    append(&f, 3, SHARD_EVENT_ROWS);
    got = hear(&p, 4);
    assert_int_equal(got.first, 3);
    assert_int_equal(got.n_records, 1);
    peer_close(&p);
    tear_down(&f);
}

static void replies_wait_for_the_standby_while_the_gate_is_closed(void **state)
{
    struct push push = { .seq = 1, .n_samples = 1, .tick = true };
    struct bytes frame = { 0 };
    struct fixture f;
    struct peer p, worker;

    (void)state;
    set_up(&f);
    p = client(&f, "standby");
    begin(&f, f.connections.first->hello.name);
    worker = worker_of(&f, 0);
    enter_shard();
    reply_queue_release(&f.replies, UINT64_MAX); /* --durability async */
    fetch_handler_close_gate(fetches(&f));
    append(&f, 1, SHARD_EVENT_ROWS);
    assert_int_equal(message_write_push(&frame, 101, &push, NULL), 0);
    peer_send(&worker, &frame);
    assert_int_equal(beat(&worker), 0);
    assert_int_equal(f.replies.n_waiting, 1);
    ask(&p, 1, &(struct fetch){ .term = TERM, .next = 1 });
    assert_int_equal(hear(&p, 1).n_records, 1); /* it has it now, and has not said so */
    assert_int_equal(f.replies.n_waiting, 1);
    ask(&p, 2, &(struct fetch){ .term = TERM, .next = 2 });
    assert_int_equal(hear_push(&worker, 1).status, 0);
    append(&f, 2, SHARD_EVENT_ROWS);
    push.seq = 2;
    push.clock = 1;
    assert_int_equal(message_write_push(&frame, 102, &push, NULL), 0);
    peer_send(&worker, &frame);
    assert_int_equal(beat(&worker), 0);
    assert_int_equal(f.replies.n_waiting, 1);
    enter_shard();
    fetch_handler_open_gate(fetches(&f));
    assert_int_equal(hear_push(&worker, 2).status, 0);
    peer_close(&p);
    peer_close(&worker);
    tear_down(&f);
}

static void a_worker_that_is_gone_is_shown_once_the_standby_knows(void **state)
{
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = client(&f, "standby");
    begin(&f, f.connections.first->hello.name);
    enter_shard();
    append(&f, 1, SHARD_EVENT_GONE);
    assert_true(reply_queue_shows_gone(&f.replies)); /* it is not in sync */
    fetch_handler_close_gate(fetches(&f));
    assert_false(reply_queue_shows_gone(&f.replies));
    ask(&p, 1, &(struct fetch){ .term = TERM, .next = 1 });
    assert_int_equal(hear(&p, 1).n_records, 1);
    assert_false(reply_queue_shows_gone(&f.replies));
    ask(&p, 2, &(struct fetch){ .term = TERM, .next = 2 });
    assert_int_equal(hear(&p, 2).n_records, 0);
    assert_true(reply_queue_shows_gone(&f.replies));
    peer_close(&p);
    tear_down(&f);
}

static void a_greater_term_seals_the_shard(void **state)
{
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = client(&f, "standby");
    begin(&f, f.connections.first->hello.name);
    enter_shard();
    fetch_handler_close_gate(fetches(&f));
    ask(&p, 1, &(struct fetch){ .term = TERM - 1, .next = 1 });
    assert_int_equal(hear(&p, 1).status, -ESTALE);
    ask(&p, 2, &(struct fetch){ .term = TERM + 1, .next = 1 });
    assert_int_equal(hear(&p, 2).status, PS_EMOVED);
    assert_int_equal(atomic_load(&fetch_handler_view(fetches(&f))->greater_term), TERM + 1);
    append(&f, 1, SHARD_EVENT_ROWS);
    fetch_handler_open_gate(fetches(&f));
    reply_queue_release(&f.replies, UINT64_MAX);
    assert_true(f.replies.acknowledged < 1);
    peer_close(&p);
    tear_down(&f);
}

/* Of half a chunk of the ring and more, so that each has a chunk of its own. */
static void append_large(struct fixture *f, uint64_t number)
{
    static uint64_t keys[100000];
    const struct wal_record record = { .number = number,
                                       .event = { .type = SHARD_EVENT_ROWS,
                                                  .rows = { .keys = keys,
                                                            .n_keys = COUNT_OF(keys) } } };

    enter_shard();
    reply_queue_note(&f->replies, number);
    fetch_handler_append(fetches(f), &record);
}

/* The ring drops its oldest records until replies wait; what it has then may be as much as it holds. */
static void pushes_go_on_when_a_ring_that_was_full_as_the_gate_closed_has_space(void **state)
{
    struct fixture f;
    struct peer p;
    uint64_t n;

    (void)state;
    set_up(&f);
    p = client(&f, "standby");
    begin(&f, f.connections.first->hello.name);
    for (n = 1; n <= 70; n++)
        append_large(&f, n);
    assert_false(fetch_handler_is_full(fetches(&f)));
    enter_shard();
    fetch_handler_close_gate(fetches(&f));
    assert_true(fetch_handler_is_full(fetches(&f)));
    f.replies.is_full = true; /* as shard_wal.c does for the push that comes now */
    ask(&p, 1, &(struct fetch){ .term = TERM, .next = n });
    assert_int_equal(hear(&p, 1).n_records, 0);
    assert_false(fetch_handler_is_full(fetches(&f)));
    assert_false(f.replies.is_full);
    peer_close(&p);
    tear_down(&f);
}

static void the_log_keeps_what_the_standby_has_not_written_up_to_a_bound(void **state)
{
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = client(&f, "standby");
    assert_true(fetch_handler_pin(fetches(&f)) == UINT64_MAX);
    begin(&f, f.connections.first->hello.name);
    assert_int_equal(fetch_handler_pin(fetches(&f)), 1);
    enter_shard();
    append(&f, 1, SHARD_EVENT_ROWS);
    append(&f, 2, SHARD_EVENT_ROWS);
    ask(&p, 1, &(struct fetch){ .term = TERM, .next = 1 });
    assert_int_equal(hear(&p, 1).n_records, 2);
    fetch_handler_stored(fetches(&f), 2, 1, 900); /* it has lost the second one */
    assert_int_equal(fetch_handler_pin(fetches(&f)), 1);
    ask(&p, 2, &(struct fetch){ .term = TERM, .next = 3, .durable = 1 });
    assert_int_equal(hear(&p, 2).durable, 1);
    assert_int_equal(fetch_handler_pin(fetches(&f)), 2);
    fetch_handler_stored(fetches(&f), 2, 2, 1800); /* it had all at 900 */
    assert_int_equal(fetch_handler_pin(fetches(&f)), 2);
    fetch_handler_stored(fetches(&f), 2, 2, 1901);
    assert_true(fetch_handler_pin(fetches(&f)) == UINT64_MAX);
    peer_close(&p);
    tear_down(&f);
}

/* At each of its questions there is one record more, and it is never far behind. */
static void a_standby_that_never_has_all_is_not_taken_for_one_that_is_far_behind(void **state)
{
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = client(&f, "standby");
    begin(&f, f.connections.first->hello.name);
    enter_shard();
    append(&f, 1, SHARD_EVENT_ROWS);
    for (uint64_t n = 2; n < 30; n++) {
        append(&f, n, SHARD_EVENT_ROWS);
        ask(&p, n, &(struct fetch){ .term = TERM, .next = n - 1, .durable = n - 2 });
        assert_int_not_equal(hear(&p, n).n_records, 0);
        fetch_handler_stored(fetches(&f), n, n, 100 * n);
        assert_int_equal(fetch_handler_pin(fetches(&f)), n - 1);
    }
    fetch_handler_stored(fetches(&f), 29, 29, 100 * 29 + 1001);
    assert_true(fetch_handler_pin(fetches(&f)) == UINT64_MAX);
    assert_int_not_equal(atomic_load(&fetch_handler_view(fetches(&f))->dropped_ms), 0);
    ask(&p, 30, &(struct fetch){ .term = TERM, .next = 30, .durable = 28 });
    assert_int_equal(hear(&p, 30).n_records, 0);
    assert_int_equal(fetch_handler_pin(fetches(&f)), 30);
    assert_int_equal(atomic_load(&fetch_handler_view(fetches(&f))->dropped_ms), 0);
    peer_close(&p);
    tear_down(&f);
}

/* Of a megabyte: a chunk of the ring has one. */
static void append_long(struct fixture *f, uint64_t number)
{
    static uint64_t keys[(1 << 20) / 8 - 64];
    struct wal_record record = { .number = number, .event.type = SHARD_EVENT_ROWS };

    enter_shard();
    record.event.rows.keys = keys;
    record.event.rows.n_keys = COUNT_OF(keys);
    reply_queue_note(&f->replies, number);
    fetch_handler_append(fetches(f), &record);
}

static void one_that_is_behind_gets_a_chunk_for_each_of_its_fetches_in_order(void **state)
{
    struct fetch_reply got;
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = client(&f, "standby");
    begin(&f, f.connections.first->hello.name);
    for (uint64_t i = 1; i <= 8; i++)
        append_long(&f, i);
    ask(&p, 1, &(struct fetch){ .term = TERM, .next = 1, .max_bytes = 3u << 20 });
    ask(&p, 2, &(struct fetch){ .term = TERM, .next = 1, .max_bytes = 4u << 20 });
    got = hear(&p, 1);
    assert_int_equal(got.first, 1);
    assert_int_equal(got.n_records, 1);
    got = hear(&p, 2);
    assert_int_equal(got.first, 2); /* where the one before it has ended */
    assert_int_equal(got.n_records, 1);
    ask(&p, 3, &(struct fetch){ .term = TERM, .next = 2, .max_bytes = 1 });
    got = hear(&p, 3);
    assert_int_equal(got.first, 3);
    assert_int_equal(got.n_records, 1);
    peer_close(&p);
    tear_down(&f);
}

/* --- from the log's segments --- */

/* Records 1 to n, each in a block of its own. */
static void write_log(struct crash_files *disk, uint64_t n)
{
    const struct wal_end end = { 0 };
    struct wal_writer_config config = { .files = &disk->ops,
                                        .dir = "log",
                                        .durability = WAL_FSYNC,
                                        .identity = { .n_shards = 1 } };
    struct wal_queue queue;
    struct wal_writer *writer;
    struct err err = { 0 };
    uint64_t due;

    assert_int_equal(disk->ops.mkdir(disk->ops.state, "log"), 0);
    assert_int_equal(wal_writer_open(&config, &end, 1, &writer, &err), 0);
    wal_queue_init(&queue,
                   &(struct wal_queue_config){ .durability = WAL_FSYNC, .next_number = 1 });
    for (uint64_t i = 0; i < n; i++) {
        const struct wal_record record = {
            .event = { .type = SHARD_EVENT_COMBINE, .version = 1, .combine = { 1, i } }
        };

        assert_int_equal(wal_queue_reserve(&queue, wal_record_bytes(&record)), 0);
        wal_queue_append(&queue, &record, i);
        wal_writer_drain(writer, &queue);
        wal_writer_work(writer, i, 1, &due);
        wal_writer_report(writer, &queue);
    }
    wal_writer_free(writer);
    wal_queue_deinit(&queue);
}

/* A turn of the shard's loop, and its tick. */
static void turn(struct fixture *f)
{
    enter_shard();
    uv_run(&f->loop, UV_RUN_NOWAIT);
    fetch_handler_tick(fetches(f));
}

static void a_block_that_is_being_written_is_read_again(void **state)
{
    struct crash_files disk;
    const struct fetch_view *view;
    struct crash_inode *segment;
    struct fetch_reply got;
    struct fixture f;
    struct peer p;
    uint8_t *middle;

    (void)state;
    crash_files_init(&disk);
    write_log(&disk, 8);
    segment = crash_files_at(&disk, "log/00000000000000000001.psl");
    middle = segment->bytes + segment->n_bytes / 2;
    set_up(&f);
    view = fetch_handler_view(fetches(&f));
    fetch_handler_log(fetches(&f), &disk.ops, "log", 8);
    p = client(&f, "standby");
    begin_with(&f, f.connections.first->hello.name, 8);
    ask(&p, 1, &(struct fetch){ .term = TERM, .next = 1, .max_bytes = 1 << 20 });
    *middle ^= 1; /* half of a block is not there yet */
    got = hear(&p, 1);
    assert_in_range(got.n_records, 1, 7);
    ask(&p, 2, &(struct fetch){ .term = TERM, .next = got.n_records + 1 });
    while (!atomic_load(&view->doubted))
        turn(&f);
    *middle ^= 1;
    while (atomic_load(&view->doubted))
        turn(&f);
    got = hear(&p, 2);
    assert_int_equal(got.status, 0);
    assert_int_equal(atomic_load(&view->lost_through), 0);
    peer_close(&p);
    tear_down(&f);
    crash_files_deinit(&disk);
}

static bool is_current(struct fixture *f)
{
    enter_shard();
    return reply_queue_is_current(&f->replies);
}

static void a_primary_that_a_standby_may_have_replaced_shows_nothing(void **state)
{
    const uint64_t old_ms = clock_mono_ms() - 2 * FETCH_HANDLER_ALONE_MS;
    struct fetch_standby standby = standby_of_nobody;
    uint64_t id = 2;
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = client(&f, "standby");
    enter_shard();
    snprintf(standby.name, sizeof standby.name, "%s", f.connections.first->hello.name);
    standby.takes_over = true;
    fetch_handler_begin(fetches(&f), &standby, 0);
    ask(&p, 1, &(struct fetch){ .term = TERM, .next = 1, .heard_ms = old_ms });
    (void)hear(&p, 1);
    assert_true(is_current(&f)); /* no claim says that it may take over */
    enter_shard();
    fetch_handler_close_gate(fetches(&f));
    assert_false(is_current(&f)); /* one may, before the service has answered */
    fetch_handler_set_in_sync(fetches(&f));
    assert_false(is_current(&f));
    /* A word that has not been sent yet is none. */
    ask(&p, 2, &(struct fetch){ .term = TERM, .next = 1, .heard_ms = UINT64_MAX });
    (void)hear(&p, 2);
    assert_false(is_current(&f));
    do { /* this process may stand still for longer */
        id++;
        ask(&p, id, &(struct fetch){ .term = TERM, .next = 1, .heard_ms = clock_mono_ms() });
        (void)hear(&p, id);
    } while (!is_current(&f));
    ask(&p, id + 1, &(struct fetch){ .term = TERM, .next = 1, .heard_ms = old_ms });
    (void)hear(&p, id + 1);
    assert_false(is_current(&f));
    enter_shard();
    fetch_handler_open_gate(fetches(&f));
    assert_true(is_current(&f));
    fetch_handler_seal(fetches(&f));
    assert_false(is_current(&f));
    peer_close(&p);
    tear_down(&f);
}

static bool is_drained(struct fixture *f)
{
    enter_shard();
    return atomic_load(&fetch_handler_view(fetches(f))->is_drained);
}

static void send_push(struct peer *worker, uint64_t seq)
{
    struct push push = { .seq = seq, .clock = seq - 1, .n_samples = 1, .tick = true };
    struct bytes frame = { 0 };

    assert_int_equal(message_write_push(&frame, 100 + seq, &push, NULL), 0);
    peer_send(worker, &frame);
    assert_int_equal(beat(worker), 0);
}

static void a_switch_is_drained_once_the_standby_has_all_and_all_replies_are_out(void **state)
{
    struct fixture f;
    struct peer p, worker;

    (void)state;
    set_up(&f);
    p = client(&f, "standby");
    begin(&f, f.connections.first->hello.name);
    worker = worker_of(&f, 0);
    enter_shard();
    reply_queue_release(&f.replies, UINT64_MAX);
    fetch_handler_close_gate(fetches(&f));
    fetch_handler_park(fetches(&f), true, false);
    assert_false(is_drained(&f)); /* no standby is connected */
    ask(&p, 1, &(struct fetch){ .term = TERM, .next = 1, .wait_ms = 60000 });
    append(&f, 1, SHARD_EVENT_ROWS);
    assert_int_equal(hear(&p, 1).n_records, 1);
    assert_true(fetch_handler_is_full(fetches(&f))); /* so its log takes no event */
    fetch_handler_park(fetches(&f), true, false);
    assert_false(is_drained(&f));
    ask(&p, 2, &(struct fetch){ .term = TERM, .next = 2, .wait_ms = 60000 });
    assert_int_equal(beat(&worker), 0);
    fetch_handler_park(fetches(&f), false, false);
    assert_false(is_drained(&f)); /* a push is under way */
    fetch_handler_park(fetches(&f), true, true);
    assert_false(is_drained(&f)); /* it is not on the standby's disk */
    fetch_handler_park(fetches(&f), true, false);
    assert_true(is_drained(&f));
    fetch_handler_unpark(fetches(&f));
    assert_false(fetch_handler_is_full(fetches(&f)));
    assert_false(is_drained(&f));
    peer_close(&p);
    peer_close(&worker);
    tear_down(&f);
}

static void a_shard_that_is_handed_over_says_so_and_acknowledges_nothing(void **state)
{
    struct fixture f;
    struct peer p, worker;
    struct fetch_reply got;

    (void)state;
    set_up(&f);
    p = client(&f, "standby");
    begin(&f, f.connections.first->hello.name);
    worker = worker_of(&f, 0);
    enter_shard();
    reply_queue_release(&f.replies, UINT64_MAX);
    fetch_handler_close_gate(fetches(&f));
    ask(&p, 1, &(struct fetch){ .term = TERM, .next = 1, .wait_ms = 60000 });
    assert_int_equal(beat(&worker), 0);
    enter_shard();
    fetch_handler_hand_over(fetches(&f));
    got = hear(&p, 1); /* at once */
    assert_true(got.hands_over && got.in_sync && !got.status && !got.n_records);
    append(&f, 1, SHARD_EVENT_ROWS);
    send_push(&worker, 1);
    enter_shard();
    fetch_handler_open_gate(fetches(&f));
    fetch_handler_unpark(fetches(&f));
    assert_true(fetch_handler_is_full(fetches(&f)));
    assert_int_equal(f.replies.n_waiting, 1);
    ask(&p, 2, &(struct fetch){ .term = TERM, .next = 1 }); /* it had asked before it heard */
    got = hear(&p, 2);
    assert_true(got.hands_over && !got.n_records);
    assert_int_equal(f.replies.n_waiting, 1);
    peer_close(&p);
    peer_close(&worker);
    tear_down(&f);
}

#ifdef PS_FAULTS
/* --- without memory --- */

/* Until there is an answer, or the connection has ended. The peer's own memory does not fail. */
static void await_end(struct fixture *f, struct peer *p)
{
    char c;

    while (recv(p->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) < 0)
        turn(f);
}

/* One that begins anew gets all of it. */
static void fetch_all(struct fixture *f, uint64_t n)
{
    struct peer p = client(f, "standby");
    uint64_t next = 1;
    struct fetch_reply got;

    begin_with(f, f->connections.first->hello.name, n);
    while (next <= n) {
        ask(&p, next, &(struct fetch){ .term = TERM, .next = next });
        got = hear(&p, next);
        assert_int_equal(got.status, 0);
        assert_int_equal(got.first, next);
        next += got.n_records;
    }
    peer_close(&p);
}

/* Records 1 to 8, of the ring or of the log's segments: they come, or a sentence does, or the connection ends. */
static bool fetch_while_the_kth_allocation_fails(struct crash_files *disk, bool from_ring,
                                                 long k)
{
    struct fetch_reply got;
    struct fixture f;
    struct peer p;
    long n_failed;

    set_up(&f);
    fetch_handler_log(fetches(&f), &disk->ops, "log", from_ring ? 0 : 8);
    p = client(&f, "standby");
    begin_with(&f, f.connections.first->hello.name, from_ring ? 0 : 8);
    for (uint64_t i = 1; from_ring && i <= 8; i++)
        append(&f, i, SHARD_EVENT_ROWS);
    ask(&p, 1, &(struct fetch){ .term = TERM, .next = 1, .max_bytes = 1 << 20 });
    memory_fail_anywhere(k, 1);
    await_end(&f, &p);
    n_failed = memory_n_failed_anywhere();
    memory_fail_anywhere(-1, 0);
    if (peer_receive(&p)) {
        assert_int_equal(
            message_read_fetch_reply(&p.header, p.head, p.body, p.header.body_bytes, &got), 0);
        assert_true(got.status == 0 || (n_failed && got.status == -ENOMEM));
    } else {
        assert_true(n_failed);
    }
    peer_close(&p);
    if (!from_ring)
        fetch_all(&f, 8);
    tear_down(&f);
    return !n_failed;
}

static void a_fetch_without_memory_is_refused_or_ends_and_the_next_one_gets_all(void **state)
{
    struct crash_files disk;
    long k;

    (void)state;
    crash_files_init(&disk);
    write_log(&disk, 8);
    for (int from_ring = 0; from_ring < 2; from_ring++) {
        for (k = 0; !fetch_while_the_kth_allocation_fails(&disk, from_ring, k);)
            assert_true(++k < 1000);
        assert_true(k > 0);
        print_message("%ld allocations failed\n", k);
    }
    crash_files_deinit(&disk);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fetch_waits_for_records_and_acknowledges_those_before),
        cmocka_unit_test(one_that_is_behind_gets_a_chunk_for_each_of_its_fetches_in_order),
        cmocka_unit_test(replies_wait_for_the_standby_while_the_gate_is_closed),
        cmocka_unit_test(a_worker_that_is_gone_is_shown_once_the_standby_knows),
        cmocka_unit_test(a_greater_term_seals_the_shard),
        cmocka_unit_test(a_primary_that_a_standby_may_have_replaced_shows_nothing),
        cmocka_unit_test(a_switch_is_drained_once_the_standby_has_all_and_all_replies_are_out),
        cmocka_unit_test(a_shard_that_is_handed_over_says_so_and_acknowledges_nothing),
        cmocka_unit_test(pushes_go_on_when_a_ring_that_was_full_as_the_gate_closed_has_space),
        cmocka_unit_test(a_block_that_is_being_written_is_read_again),
        cmocka_unit_test(the_log_keeps_what_the_standby_has_not_written_up_to_a_bound),
        cmocka_unit_test(a_standby_that_never_has_all_is_not_taken_for_one_that_is_far_behind),
#ifdef PS_FAULTS
        cmocka_unit_test(a_fetch_without_memory_is_refused_or_ends_and_the_next_one_gets_all),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

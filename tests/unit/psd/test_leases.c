/*
 * A worker that psd keeps waiting does not lose its lease for that, whatever it has asked for: it cannot send a beat
 * while its connection is held, and sends none before it knows that it has joined. Once it has its reply it is as
 * mortal as any. A row of `parkings` for each way in which a worker's request waits. (A BEAT is answered at once. What
 * operators, watchers and standbys ask for may wait, too, but no worker speaks on their connections.)
 */
#include <errno.h>

#include "server/core/shard_events.h"
#include "serving.h"

enum { N_KEYS = 60000 }; /* with its values 1 MiB: ten slices and more */

struct scene {
    struct fixture f;
    struct peer p,
        again; /* again: another connection of the same worker, or one that becomes that */
    struct peer other; /* of the job, and heard of */
    struct worker *worker;
};

static uint8_t key_bytes[(size_t)N_KEYS * KEY_CODEC_BYTES_MAX];
static float values[N_KEYS * DIM];
static struct message_zstd zstd;

/* --- a log that is full, or behind --- */

static int refuse_event(void *owner, const struct shard_event *event)
{
    (void)owner, (void)event;
    return -EAGAIN;
}

static const struct shard_events full_log = { .reserve = refuse_event };

static void fill_log(struct scene *s)
{
    enter_shard();
    shard_set_events(s->f.shard, &full_log);
    s->f.replies.is_full = true;
}

static void empty_log(struct scene *s)
{
    enter_shard();
    shard_set_events(s->f.shard, NULL);
    s->f.replies.is_full = false;
    dispatch_resume(s->f.dispatch);
}

static void lag(struct scene *s)
{
    reply_queue_note(&s->f.replies, 1);
}

static void catch_up(struct scene *s)
{
    enter_shard();
    reply_queue_release(&s->f.replies, 1);
}

static void await_queued_reply(struct scene *s)
{
    while (!s->f.replies.n_waiting)
        peer_turn(&s->p);
}

/* Its connection is held: psd reads no more from it. */
static void await_held(struct scene *s)
{
    bool is_held = false;

    while (!is_held) {
        peer_turn(&s->p);
        for (const struct connection *c = s->f.connections.first; c; c = c->next)
            is_held = is_held || c->channel.held;
    }
}

/* --- requests --- */

static struct section section_of(uint32_t n_keys)
{
    static uint64_t keys[N_KEYS];

    for (uint32_t i = 0; i < n_keys; i++)
        keys[i] = i;
    return (struct section){ .n_keys = n_keys,
                             .keys = key_bytes,
                             .key_bytes = key_codec_encode(keys, n_keys, key_bytes) };
}

static void send_push(struct scene *s, uint32_t n_keys, struct message_zstd *pack)
{
    struct push push = { .seq = 1, .n_samples = 1, .n_sections = n_keys > 0 };
    struct bytes frame = { 0 };

    push.sections[0] = section_of(n_keys);
    push.sections[0].values = (const uint8_t *)values;
    push.sections[0].value_bytes = n_keys * DIM * sizeof *values;
    assert_int_equal(message_write_push(&frame, 101, &push, pack), 0);
    peer_send(&s->p, &frame);
}

static void send_pull(struct scene *s, uint64_t clock, uint32_t n_keys)
{
    struct pull pull = { .clock = clock, .n_sections = 1, .sections = { section_of(n_keys) } };
    struct bytes frame = { 0 };

    assert_int_equal(message_write_pull(&frame, 60, &pull, NULL), 0);
    peer_send(&s->p, &frame);
}

static void send_leave(struct peer *p)
{
    struct bytes frame = { 0 };

    assert_int_equal(message_write_leave(&frame, 70, 0), 0);
    peer_send(p, &frame);
}

static void hear_leave(struct peer *p)
{
    struct status_reply reply;

    assert_true(peer_receive(p));
    assert_int_equal(p->header.type, FRAME_LEAVE_REPLY);
    assert_int_equal(message_read_status_reply(&p->header, p->head, &reply), 0);
    assert_int_equal(reply.status, 0);
}

/* --- the ways to wait --- */

static void park_push_behind_full_log(struct scene *s)
{
    fill_log(s);
    send_push(s, 0, NULL);
    await_held(s);
}

static void unpark_push_behind_full_log(struct scene *s)
{
    empty_log(s);
    assert_int_equal(hear_push(&s->p, 1).status, 0);
}

static void park_push_of_large_body(struct scene *s)
{
    send_push(s, N_KEYS, &zstd);
    await_held(s);
}

static void park_push_in_slices(struct scene *s)
{
    send_push(s, N_KEYS, NULL);
    await_held(s);
}

static void unpark_push(struct scene *s)
{
    assert_int_equal(hear_push(&s->p, 1).status, 0);
}

static void park_push_reply(struct scene *s)
{
    lag(s);
    send_push(s, 0, NULL);
    await_queued_reply(s);
}

static void unpark_push_reply(struct scene *s)
{
    catch_up(s);
    unpark_push(s);
}

static void park_pull_in_slices(struct scene *s)
{
    send_pull(s, 0, N_KEYS);
    await_held(s);
}

static void unpark_pull(struct scene *s)
{
    assert_int_equal(hear_pull(&s->p, 60).status, 0);
}

static void park_join_behind_full_log(struct scene *s)
{
    fill_log(s);
    send_join(&s->again, 0, 1);
    await_held(s);
}

static void unpark_join_behind_full_log(struct scene *s)
{
    empty_log(s);
    assert_int_equal(hear_join(&s->again).status, 0);
}

static void park_join_reply(struct scene *s)
{
    lag(s);
    send_join(&s->again, 0, 1);
    await_queued_reply(s);
}

static void unpark_join_reply(struct scene *s)
{
    catch_up(s);
    assert_int_equal(hear_join(&s->again).status, 0);
}

static void park_table_behind_full_log(struct scene *s)
{
    fill_log(s);
    send_table(&s->p, "another");
    await_held(s);
}

static void unpark_table_behind_full_log(struct scene *s)
{
    empty_log(s);
    assert_int_equal(hear_table(&s->p).status, 0);
}

static void park_table_reply(struct scene *s)
{
    lag(s);
    send_table(&s->p, "another");
    await_queued_reply(s);
}

static void unpark_table_reply(struct scene *s)
{
    catch_up(s);
    assert_int_equal(hear_table(&s->p).status, 0);
}

/* It waits for the end of a large push of its worker. */
static void park_leave(struct scene *s)
{
    assert_int_equal(join_job(&s->again, 0, 1).status, 0);
    park_push_in_slices(s);
    send_leave(&s->again);
    peer_turn(&s->p);
}

static void unpark_leave(struct scene *s)
{
    unpark_push(s);
    hear_leave(&s->again);
}

static const struct parking {
    const char *name;
    void (*park)(struct scene *s);
    void (*unpark)(struct scene *s);
} parkings[] = {
    { "a push behind a full log", park_push_behind_full_log, unpark_push_behind_full_log },
    { "a push whose body is unpacked", park_push_of_large_body, unpark_push },
    { "a push in slices", park_push_in_slices, unpark_push },
    { "the reply to a push", park_push_reply, unpark_push_reply },
    { "a pull in slices", park_pull_in_slices, unpark_pull },
    { "a join behind a full log", park_join_behind_full_log, unpark_join_behind_full_log },
    { "the reply to a join", park_join_reply, unpark_join_reply },
    { "a table behind a full log", park_table_behind_full_log, unpark_table_behind_full_log },
    { "the reply to a table", park_table_reply, unpark_table_reply },
    { "a leave during a push", park_leave, unpark_leave },
};

/* --- the tests --- */

static void begin(struct scene *s)
{
    set_up(&s->f);
    s->p = worker_of(&s->f, 0);
    s->other = worker_of(&s->f, 1);
    s->again = client(&s->f, "worker");
    (void)ask_table(&s->p, "t");
    s->worker = membership_worker(shard_membership(s->f.shard), "job", 0);
}

static void end(struct scene *s)
{
    peer_close(&s->p);
    peer_close(&s->again);
    peer_close(&s->other);
    tear_down(&s->f);
}

/* Its lease is over, unless a tick finds that it is not silent. */
static bool outlives_its_lease(struct scene *s)
{
    enter_shard();
    s->worker->last_seen_ms = dispatch_now_ms(s->f.dispatch) - 10001;
    dispatch_tick(s->f.dispatch);
    return s->worker->state == WORKER_LIVE && !s->worker->is_suspected;
}

static void who_is_kept_waiting_lives_and_who_is_not_has_a_lease(void **state)
{
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(parkings); i++) {
        begin(&s);
        parkings[i].park(&s);
        for (int k = 0; k < 3; k++)
            if (!outlives_its_lease(&s))
                fail_msg("%s: the worker that waits for it is declared dead", parkings[i].name);
        parkings[i].unpark(&s);
        if (outlives_its_lease(&s))
            fail_msg("%s: the worker that has the reply lives for ever", parkings[i].name);
        end(&s);
    }
}

/* It waits for other workers, and for one that may be gone: its client sends beats meanwhile. */
static void a_pull_that_waits_for_other_workers_keeps_no_lease(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    send_push(&s, 0, NULL);
    assert_int_equal(hear_push(&s.p, 1).status, 0);
    send_pull(&s, 1, 10);
    assert_int_equal(beat(&s.p), 0);
    assert_int_equal(s.worker->job->workers[0].clock, 1);
    assert_int_equal(s.f.connections.first->next->next->parked.n, 1);
    assert_false(outlives_its_lease(&s));
    end(&s);
}

/* Of a worker that is live, with its incarnation alone: the one before it and its successor keep no lease of it. */
static void a_join_that_waits_keeps_the_lease_of_its_own_incarnation(void **state)
{
    static const struct {
        uint64_t incarnation;
        bool lives;
    } joins[] = { { 1, true }, { 2, false } };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(joins); i++) {
        begin(&s);
        fill_log(&s);
        send_join(&s.again, 0, joins[i].incarnation);
        await_held(&s);
        assert_int_equal(outlives_its_lease(&s), joins[i].lives);
        empty_log(&s);
        (void)hear_join(&s.again);
        end(&s);
    }
}

/* Heard when it comes, not at the next tick: others' messages may end leases before that. */
static void a_join_that_waits_is_heard_when_it_comes(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    fill_log(&s);
    s.worker->last_seen_ms = 1;
    send_join(&s.again, 0, 1);
    await_held(&s);
    assert_true(s.worker->last_seen_ms > 1);
    empty_log(&s);
    assert_int_equal(hear_join(&s.again).status, 0);
    end(&s);
}

/* A reply that waits is no life of a worker whose connection has ended. */
static void a_connection_that_is_gone_keeps_no_lease(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    park_push_reply(&s);
    assert_true(outlives_its_lease(&s));
    shutdown(s.p.fd, SHUT_RDWR);
    while (s.f.replies.n_waiting)
        peer_turn(&s.other);
    assert_false(outlives_its_lease(&s));
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_kept_waiting_lives_and_who_is_not_has_a_lease),
        cmocka_unit_test(a_pull_that_waits_for_other_workers_keeps_no_lease),
        cmocka_unit_test(a_join_that_waits_keeps_the_lease_of_its_own_incarnation),
        cmocka_unit_test(a_join_that_waits_is_heard_when_it_comes),
        cmocka_unit_test(a_connection_that_is_gone_keeps_no_lease),
    };
    int status;

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    status = cmocka_run_group_tests(tests, NULL, NULL);
    message_zstd_deinit(&zstd);
    return status;
}

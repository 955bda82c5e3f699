/* How much pulls may take while they wait: for their clock, and for a client that reads
 * slowly. */
#include "server/requests/pull_handler.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/memory.h"
#include "proto/key_codec.h"
#include "server/net/connection.h"
#include "tests/unit/net/peer.h"

#define FRAME_MAX_BYTES (1u << 20)
#define DIM 4u
#define N_KEYS 60000u /* an answer of nearly 1 MiB, to a question of 60 KB */

/* Two workers in lock step, or more with backup workers; rank 0 is a clock ahead and asks. */
struct fixture {
    uv_loop_t loop;
    struct channel_loop channels;
    struct shard *shard;
    struct pull_handler *pulls;
    struct request_context context;
    struct reply_queue replies;
    struct connection_set connections;
    struct hello_reply welcome;
    struct worker *workers[3];
    struct peer peer;
    uv_idle_t idle;
};

/* What the service does while answers are under way. */
static void on_idle(uv_idle_t *idle)
{
    struct fixture *f = idle->data;

    enter_shard();
    pull_handler_more(f->pulls);
}

static int on_request(void *owner, struct request *r)
{
    struct fixture *f = owner;

    enter_shard();
    return pull_handler_receive(f->pulls, r);
}

static void on_closed(void *owner, struct connection *c, int why)
{
    struct fixture *f = owner;

    (void)why;
    enter_shard();
    pull_handler_drop(f->pulls, c);
}

static const struct connection_events events = { .on_request = on_request,
                                                 .on_closed = on_closed };

static void push_empty_at(struct fixture *f, uint32_t rank, uint64_t clock)
{
    struct push *push = memory_alloc(sizeof *push);
    struct shard_push_result result;

    push->seq = f->workers[rank]->last_seq + 1;
    push->clock = clock;
    push->tick = true;
    enter_shard();
    assert_int_equal(shard_push(f->shard, f->workers[rank], push, 0, &result), 0);
    assert_int_equal(result.status, 0);
    free(push);
}

static void push_empty(struct fixture *f, uint32_t rank)
{
    push_empty_at(f, rank, 0);
}

static void set_up_shard(struct fixture *f, uint32_t n_backups)
{
    struct table_spec spec = { .name = "t", .dim = DIM, .params.learning_rate = 1 };
    struct membership_join join = { .job = "job",
                                    .n_workers = 2 + n_backups,
                                    .incarnation = 1,
                                    .mode = TABLE_SPEC_MODE_BSP,
                                    .n_backups = n_backups,
                                    .relays = n_backups > 0,
                                    .name = "client" };
    struct err err;
    uint32_t id;

    enter_shard();
    f->shard = shard_new(&(struct shard_config){
        .n_shards = 1, .lease_ms = 10000, .join_ms = 10000, .park_ms = 10000 });
    assert_int_equal(shard_table_open(f->shard, &spec, false, &id, &err), 0);
    for (; join.rank < join.n_workers; join.rank++)
        assert_int_equal(
            membership_join(shard_membership(f->shard), &join, 0, &f->workers[join.rank], &err),
            0);
    push_empty(f, 0);
}

static void set_up_backups(struct fixture *f, size_t parked_bytes_max, uint32_t n_backups)
{
    struct pull_handler_config pulls = { .context = &f->context,
                                         .park_max_ms = 10000,
                                         .parked_bytes_max = parked_bytes_max };
    struct connection_set_config connections = { .channels = &f->channels,
                                                 .frame_max_bytes = FRAME_MAX_BYTES,
                                                 .frame_timeout_ms = 10000,
                                                 .welcome = &f->welcome,
                                                 .events = &events,
                                                 .owner = f };
    struct hello hello = { .version_min = 1, .version_max = 1, .role = "worker" };
    struct connection_worker *worker;
    int ends[2];

    *f = (struct fixture){ .welcome = { .version = 1, .n_nodes = 1, .nodes = { "here:1" } } };
    assert_int_equal(uv_loop_init(&f->loop), 0);
    channel_loop_init(&f->channels, &f->loop);
    uv_idle_init(&f->loop, &f->idle);
    uv_idle_start(&f->idle, on_idle);
    f->idle.data = f;
    set_up_shard(f, n_backups);
    f->context = (struct request_context){ .shard = f->shard,
                                           .loop = &f->loop,
                                           .channels = &f->channels,
                                           .replies = &f->replies,
                                           .frame_max_bytes = FRAME_MAX_BYTES };
    reply_queue_init(&f->replies);
    request_context_init(&f->context);
    f->pulls = pull_handler_new(&pulls);
    connection_set_init(&f->connections, &connections);
    assert_int_equal(uv_socketpair(SOCK_STREAM, 0, ends, UV_NONBLOCK_PIPE, 0), 0);
    assert_int_equal(connection_set_open(&f->connections,
                                         &(struct connection_socket){ .fd = ends[0] }, 1,
                                         &hello, NULL),
                     0);
    worker = &f->connections.first->worker;
    *worker = (struct connection_worker){ .joined = true,
                                          .job = "job",
                                          .incarnation = 1,
                                          .join_number = f->workers[0]->join_number };
    f->peer = (struct peer){ .loop = &f->loop, .fd = ends[1] };
    assert_true(peer_receive(&f->peer));
}

static void set_up(struct fixture *f, size_t parked_bytes_max)
{
    set_up_backups(f, parked_bytes_max, 0);
}

static void tear_down(struct fixture *f)
{
    enter_shard();
    peer_close(&f->peer);
    uv_unref((uv_handle_t *)&f->idle);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&f->idle, NULL);
    channel_loop_close(&f->channels);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    channel_loop_deinit(&f->channels);
    pull_handler_free(f->pulls);
    request_context_deinit(&f->context);
    reply_queue_deinit(&f->replies);
    shard_free(f->shard);
}

static void ask_ahead(struct fixture *f, uint64_t request_id, uint64_t clock,
                      uint64_t unfinished)
{
    static uint64_t keys[N_KEYS];
    static uint8_t bytes[(size_t)N_KEYS * KEY_CODEC_BYTES_MAX];
    struct pull pull = { .clock = clock, .unfinished = unfinished, .n_sections = 1 };
    struct bytes frame = { 0 };

    for (uint32_t i = 0; i < N_KEYS; i++)
        keys[i] = i;
    pull.sections[0] = (struct section){ .n_keys = N_KEYS, .keys = bytes };
    pull.sections[0].key_bytes = key_codec_encode(keys, N_KEYS, bytes);
    assert_int_equal(message_write_pull(&frame, request_id, &pull, NULL), 0);
    peer_send(&f->peer, &frame);
}

static void ask(struct fixture *f, uint64_t request_id)
{
    ask_ahead(f, request_id, 1, 0);
}

static int hear(struct fixture *f, uint64_t *ret_request_id)
{
    struct pull_reply reply;
    struct peer *p = &f->peer;

    assert_true(peer_receive(p));
    assert_int_equal(p->header.type, FRAME_PULL_REPLY);
    assert_int_equal(
        message_read_pull_reply(&p->header, p->head, p->body, p->header.body_bytes, &reply), 0);
    *ret_request_id = p->header.request_id;
    return reply.status;
}

static uint64_t n_parked(struct fixture *f)
{
    struct pull_handler_counts counts;

    enter_shard();
    pull_handler_count(f->pulls, &counts);
    return counts.parked;
}

static void a_pull_that_finds_no_place_on_the_shard_may_come_again(void **state)
{
    uint64_t request_id;
    struct fixture f;

    (void)state;
    enter_shard();
    set_up(&f, 200000); /* room for two of 60 KB and what stands beside them */
    for (uint64_t i = 0; i < 3; i++)
        ask(&f, 60 + i);
    assert_int_equal(hear(&f, &request_id), -ENOMEM); /* which clients take as passing */
    assert_int_equal(request_id, 62);
    assert_non_null(strstr(pull_handler_last_refusal(f.pulls)->text, "parked pulls take"));
    assert_int_equal(n_parked(&f), 2);
    push_empty(&f, 1);
    pull_handler_retry(f.pulls);
    assert_int_equal(hear(&f, &request_id), 0);
    assert_int_equal(hear(&f, &request_id), 0);
    tear_down(&f);
}

/* 16 answers are 16 MiB: of a client that reads none, no more than what makes its connection
 * congested is made. */
static void answers_wait_until_the_ones_before_them_are_read(void **state)
{
    uint64_t request_id, n_heard = 0;
    struct fixture f;

    (void)state;
    enter_shard();
    set_up(&f, 0);
    for (uint64_t i = 0; i < PULL_HANDLER_PARKED_MAX; i++)
        ask(&f, 60 + i);
    while (n_parked(&f) < PULL_HANDLER_PARKED_MAX)
        peer_turn(&f.peer);
    push_empty(&f, 1);
    pull_handler_retry(f.pulls);
    assert_true(pull_handler_is_busy(f.pulls));
    assert_int_equal(n_parked(&f), PULL_HANDLER_PARKED_MAX - 1); /* one is made at a time */
    while (pull_handler_is_busy(f.pulls))
        uv_run(&f.loop, UV_RUN_NOWAIT);
    assert_in_range(n_parked(&f), 1, PULL_HANDLER_PARKED_MAX - 2);
    assert_true(uv_stream_get_write_queue_size(f.connections.first->channel.stream) <
                10u << 20);
    pull_handler_expire(f.pulls, UINT64_MAX, 0); /* ready: no deadline ends it */
    assert_true(n_parked(&f) > 0);
    while (n_heard < PULL_HANDLER_PARKED_MAX) {
        while (n_heard + pull_handler_is_busy(f.pulls) <
               PULL_HANDLER_PARKED_MAX - n_parked(&f)) {
            assert_int_equal(hear(&f, &request_id), 0);
            assert_int_equal(request_id, 60 + n_heard++);
        }
        peer_turn(&f.peer);
        pull_handler_expire(f.pulls, 0, 0); /* the next tick */
    }
    assert_int_equal(n_parked(&f), 0);
    tear_down(&f);
}

/* Else the others' steps would be combined without the pushes that are still to come. */
static void a_pull_ahead_of_its_workers_pushes_finishes_no_step(void **state)
{
    uint64_t request_id;
    struct fixture f;

    (void)state;
    enter_shard();
    set_up(&f, 0);
    ask_ahead(&f, 60, 5, 4); /* rank 0 has finished 1 step */
    while (n_parked(&f) < 1)
        peer_turn(&f.peer);
    assert_int_equal(f.workers[0]->clock, 1);
    ask_ahead(&f, 61, 5, 2);
    while (n_parked(&f) < 2)
        peer_turn(&f.peer);
    assert_int_equal(f.workers[0]->clock, 3); /* moved up by another shard */
    for (uint64_t i = 0; i < 5; i++)
        push_empty_at(&f, 1, i);
    pull_handler_retry(f.pulls);
    assert_int_equal(n_parked(&f), 2); /* its own pushes of clocks 3 and 4 are not in */
    for (uint64_t i = 3; i < 5; i++)
        push_empty_at(&f, 0, i);
    pull_handler_retry(f.pulls);
    assert_int_equal(hear(&f, &request_id), 0);
    assert_int_equal(hear(&f, &request_id), 0);
    tear_down(&f);
}

/* Its pushes are sent again on the new connection, one by one: what was said behind them on the old one is too early. */
static void a_pull_on_the_connection_before_finishes_no_step(void **state)
{
    const struct membership_join again = { .job = "job",
                                           .n_workers = 2,
                                           .incarnation = 1,
                                           .mode = TABLE_SPEC_MODE_BSP,
                                           .name = "client" };
    struct worker *worker;
    struct fixture f;
    struct err err;

    (void)state;
    enter_shard();
    set_up(&f, 0);
    assert_int_equal(membership_join(shard_membership(f.shard), &again, 0, &worker, &err), 0);
    assert_true(worker == f.workers[0] && worker->resumed);
    ask_ahead(&f, 60, 5, 2);
    while (n_parked(&f) < 1)
        peer_turn(&f.peer);
    assert_int_equal(worker->clock, 1);
    f.connections.first->worker.join_number =
        worker->join_number; /* as a join on this one does */
    ask_ahead(&f, 61, 5, 2);
    while (n_parked(&f) < 2)
        peer_turn(&f.peer);
    assert_int_equal(worker->clock, 3);
    tear_down(&f);
}

static void suspect(struct fixture *f, uint32_t rank)
{
    f->workers[rank]->is_suspected = true;
    f->workers[rank]->suspected_ms = 0;
}

/* The end of --park-max after that. */
static void expire(struct fixture *f)
{
    enter_shard();
    assert_false(membership_advance(shard_membership(f->shard), 0));
    pull_handler_expire(f->pulls, uv_now(&f->loop), 10000);
}

/* Of three workers two are enough. Rank 1 has sent nothing, and rank 2 the first step. */
static void pulls_outlast_a_suspect_that_is_a_backup_worker(void **state)
{
    struct pull_reply reply;
    struct fixture f;

    (void)state;
    enter_shard();
    set_up_backups(&f, 0, 1);
    push_empty(&f, 2);
    push_empty_at(&f, 0, 1);
    ask_ahead(&f, 60, 2, 0);
    while (n_parked(&f) < 1)
        peer_turn(&f.peer);
    suspect(&f, 1);
    expire(&f);
    assert_int_equal(n_parked(&f), 1); /* it waits for rank 2 */
    f.workers[1]->clock = 1;
    expire(&f);
    assert_int_equal(n_parked(&f), 1); /* for either of them */
    f.workers[1]->clock = 0;
    suspect(&f, 2);
    expire(&f);
    assert_true(peer_receive(&f.peer));
    assert_int_equal(message_read_pull_reply(&f.peer.header, f.peer.head, f.peer.body,
                                             f.peer.header.body_bytes, &reply),
                     0);
    assert_int_equal(reply.status, PS_EDEADLINE);
    assert_string_equal(reply.text, "min clock is 1, needs 2: worker 2 (client) is at 1, "
                                    "suspected, and not refused by all shards");
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pull_that_finds_no_place_on_the_shard_may_come_again),
        cmocka_unit_test(answers_wait_until_the_ones_before_them_are_read),
        cmocka_unit_test(a_pull_ahead_of_its_workers_pushes_finishes_no_step),
        cmocka_unit_test(a_pull_on_the_connection_before_finishes_no_step),
        cmocka_unit_test(pulls_outlast_a_suspect_that_is_a_backup_worker),
    };

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

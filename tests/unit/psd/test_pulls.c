/* How much pulls may take while they wait: for their clock, and for a client that reads
 * slowly. */
#include "server/pulls.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/mem.h"
#include "proto/keys.h"
#include "server/net/switchboard.h"
#include "tests/unit/net/peer.h"

#define FRAME_MAX_BYTES (1u << 20)
#define DIM 4u
#define N_KEYS 60000u /* an answer of nearly 1 MiB, to a question of 60 KB */

/* Two workers in lock step; rank 0 is a clock ahead and asks. */
struct fixture {
    uv_loop_t loop;
    struct channel_hub hub;
    struct shard *shard;
    struct pulls *pulls;
    struct report_requests requests;
    struct switchboard board;
    struct hello_reply welcome;
    struct worker *workers[2];
    struct peer peer;
    uv_idle_t idle;
};

/* What the service does while answers are under way. */
static void on_idle(uv_idle_t *idle)
{
    struct fixture *f = idle->data;

    enter_shard();
    pulls_more(f->pulls);
}

static int on_request(void *owner, struct connection *c, const struct frame_header *header,
                      const uint8_t *head, const uint8_t *body)
{
    struct fixture *f = owner;
    const struct request r = { .connection = c,
                               .header = header,
                               .head = head,
                               .body = body,
                               .body_bytes = header->body_bytes };

    enter_shard();
    return pulls_ask(f->pulls, &r, f->workers[0]);
}

static void on_closed(void *owner, struct connection *c, int why)
{
    struct fixture *f = owner;

    (void)why;
    enter_shard();
    pulls_drop(f->pulls, c);
}

static const struct connection_events events = { .request = on_request, .closed = on_closed };

static void push_empty_at(struct fixture *f, uint32_t rank, uint64_t clock)
{
    struct push *push = mem_alloc(sizeof *push);
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

static void set_up_shard(struct fixture *f)
{
    struct table_spec spec = { .name = "t", .dim = DIM, .params.learning_rate = 1 };
    struct roster_join join = {
        .job = "job", .n_workers = 2, .incarnation = 1, .mode = SPEC_MODE_BSP, .name = "client"
    };
    struct err err;
    uint32_t id;

    enter_shard();
    f->shard = shard_new(&(struct shard_config){
        .n_shards = 1, .lease_ms = 10000, .join_ms = 10000, .park_ms = 10000 });
    assert_int_equal(shard_table_ask(f->shard, &spec, false, &id, &err), 0);
    for (; join.rank < 2; join.rank++)
        assert_int_equal(
            roster_join(shard_roster(f->shard), &join, 0, &f->workers[join.rank], &err), 0);
    push_empty(f, 0);
}

static void set_up(struct fixture *f, size_t parked_bytes_max)
{
    struct pulls_config pulls = { .frame_max_bytes = FRAME_MAX_BYTES,
                                  .park_max_ms = 10000,
                                  .parked_bytes_max = parked_bytes_max,
                                  .requests = &f->requests };
    struct switchboard_config board = { .hub = &f->hub,
                                        .frame_max_bytes = FRAME_MAX_BYTES,
                                        .frame_timeout_ms = 10000,
                                        .welcome = &f->welcome,
                                        .events = &events,
                                        .owner = f };
    struct hello hello = { .version_min = 1, .version_max = 1, .role = "worker" };
    struct connection_worker *who;
    int ends[2];

    *f = (struct fixture){ .welcome = { .version = 1, .n_nodes = 1, .nodes = { "here:1" } } };
    assert_int_equal(uv_loop_init(&f->loop), 0);
    channel_hub_init(&f->hub, &f->loop);
    uv_idle_init(&f->loop, &f->idle);
    uv_idle_start(&f->idle, on_idle);
    f->idle.data = f;
    set_up_shard(f);
    pulls.shard = f->shard;
    f->pulls = pulls_new(&pulls);
    switchboard_init(&f->board, &board);
    assert_int_equal(uv_socketpair(SOCK_STREAM, 0, ends, UV_NONBLOCK_PIPE, 0), 0);
    assert_int_equal(switchboard_open(&f->board, ends[0], 1, &hello), 0);
    who = &f->board.first->worker;
    *who = (struct connection_worker){ .joined = true,
                                       .job = "job",
                                       .incarnation = 1,
                                       .join_number = f->workers[0]->join_number };
    f->peer = (struct peer){ .loop = &f->loop, .fd = ends[1] };
    assert_true(peer_receive(&f->peer));
}

static void tear_down(struct fixture *f)
{
    enter_shard();
    peer_close(&f->peer);
    uv_unref((uv_handle_t *)&f->idle);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&f->idle, NULL);
    channel_hub_close(&f->hub);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    channel_hub_deinit(&f->hub);
    pulls_free(f->pulls);
    shard_free(f->shard);
}

static void ask_ahead(struct fixture *f, uint64_t request_id, uint64_t clock,
                      uint64_t unfinished)
{
    static uint64_t keys[N_KEYS];
    static uint8_t bytes[(size_t)N_KEYS * KEYS_BYTES_MAX];
    struct pull pull = { .clock = clock, .unfinished = unfinished, .n_sections = 1 };
    struct buf frame = { 0 };

    for (uint32_t i = 0; i < N_KEYS; i++)
        keys[i] = i;
    pull.sections[0] = (struct section){ .n_keys = N_KEYS, .keys = bytes };
    pull.sections[0].key_bytes = keys_encode(keys, N_KEYS, bytes);
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
    struct pulls_counts counts;

    enter_shard();
    pulls_count(f->pulls, &counts);
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
    assert_non_null(strstr(pulls_last_refusal(f.pulls)->text, "parked pulls take"));
    assert_int_equal(n_parked(&f), 2);
    push_empty(&f, 1);
    pulls_retry(f.pulls);
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
    for (uint64_t i = 0; i < PULLS_PARKED_MAX; i++)
        ask(&f, 60 + i);
    while (n_parked(&f) < PULLS_PARKED_MAX)
        peer_turn(&f.peer);
    push_empty(&f, 1);
    pulls_retry(f.pulls);
    assert_true(pulls_are_under_way(f.pulls));
    assert_int_equal(n_parked(&f), PULLS_PARKED_MAX - 1); /* one is made at a time */
    while (pulls_are_under_way(f.pulls))
        uv_run(&f.loop, UV_RUN_NOWAIT);
    assert_in_range(n_parked(&f), 1, PULLS_PARKED_MAX - 2);
    assert_true(uv_stream_get_write_queue_size(f.board.first->channel.stream) < 10u << 20);
    pulls_expire(f.pulls, UINT64_MAX); /* ready: no deadline ends it */
    assert_true(n_parked(&f) > 0);
    while (n_heard < PULLS_PARKED_MAX) {
        while (n_heard + pulls_are_under_way(f.pulls) < PULLS_PARKED_MAX - n_parked(&f)) {
            assert_int_equal(hear(&f, &request_id), 0);
            assert_int_equal(request_id, 60 + n_heard++);
        }
        peer_turn(&f.peer);
        pulls_expire(f.pulls, 0); /* the next tick */
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
    pulls_retry(f.pulls);
    assert_int_equal(n_parked(&f), 2); /* its own pushes of clocks 3 and 4 are not in */
    for (uint64_t i = 3; i < 5; i++)
        push_empty_at(&f, 0, i);
    pulls_retry(f.pulls);
    assert_int_equal(hear(&f, &request_id), 0);
    assert_int_equal(hear(&f, &request_id), 0);
    tear_down(&f);
}

/* Its pushes are sent again on the new connection, one by one: what was said behind them on the old one is too early. */
static void a_pull_on_the_connection_before_finishes_no_step(void **state)
{
    const struct roster_join again = {
        .job = "job", .n_workers = 2, .incarnation = 1, .mode = SPEC_MODE_BSP, .name = "client"
    };
    struct worker *worker;
    struct fixture f;
    struct err err;

    (void)state;
    enter_shard();
    set_up(&f, 0);
    assert_int_equal(roster_join(shard_roster(f.shard), &again, 0, &worker, &err), 0);
    assert_true(worker == f.workers[0] && worker->resumed);
    ask_ahead(&f, 60, 5, 2);
    while (n_parked(&f) < 1)
        peer_turn(&f.peer);
    assert_int_equal(worker->clock, 1);
    f.board.first->worker.join_number = worker->join_number; /* as a join on this one does */
    ask_ahead(&f, 61, 5, 2);
    while (n_parked(&f) < 2)
        peer_turn(&f.peer);
    assert_int_equal(worker->clock, 3);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pull_that_finds_no_place_on_the_shard_may_come_again),
        cmocka_unit_test(answers_wait_until_the_ones_before_them_are_read),
        cmocka_unit_test(a_pull_ahead_of_its_workers_pushes_finishes_no_step),
        cmocka_unit_test(a_pull_on_the_connection_before_finishes_no_step),
    };

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

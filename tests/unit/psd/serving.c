#include "tests/unit/psd/serving.h"
#define SERVING_FRAME_MAX_BYTES (64u << 20)

static void on_space(void *owner)
{
    struct fixture *f = owner;

    enter_shard();
    dispatch_resume(f->dispatch);
}

void set_up_waiting(struct fixture *f, uint64_t wait_max_ms)
{
    struct shard_config core = {
        .n_shards = 1, .lease_ms = 10000, .join_ms = 10000, .park_ms = 10000
    };
    struct dispatch_config dispatch = { .loop = &f->loop,
                                        .channels = &f->channels,
                                        .connections = &f->connections,
                                        .frame_max_bytes = SERVING_FRAME_MAX_BYTES,
                                        .lease_ms = 10000,
                                        .park_max_ms = 10000,
                                        .wait_max_ms = wait_max_ms,
                                        .on_space = on_space,
                                        .owner = f };
    struct connection_set_config connections = { .channels = &f->channels,
                                                 .frame_max_bytes = SERVING_FRAME_MAX_BYTES,
                                                 .frame_timeout_ms = 10000,
                                                 .memory = &f->memory,
                                                 .low_priority = true,
                                                 .welcome = &f->welcome,
                                                 .events = &dispatch_events };

    *f = (struct fixture){
        .memory = { .max_bytes = UINT64_MAX, .n_loops = 1 },
        .welcome = { .version = 1, .n_nodes = 1, .shards_per_node = 1, .nodes = { "here:1" } }
    };
    assert_int_equal(uv_loop_init(&f->loop), 0);
    channel_loop_init(&f->channels, &f->loop);
    f->shard = shard_new(&core);
    reply_queue_init(&f->replies);
    dispatch.shard = f->shard;
    dispatch.replies = &f->replies;
    f->dispatch = dispatch_new(&dispatch);
    connections.owner = f->dispatch;
    connection_set_init(&f->connections, &connections);
}

void tear_down(struct fixture *f)
{
    enter_shard();
    uv_run(&f->loop, UV_RUN_DEFAULT);
    dispatch_stop(f->dispatch);
    channel_loop_close(&f->channels);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    assert_int_equal(f->channels.held_bytes, 0);
    channel_loop_deinit(&f->channels);
    dispatch_free(f->dispatch);
    reply_queue_deinit(&f->replies);
    shard_free(f->shard);
}

static struct peer open_client(struct fixture *f, const char *role, uint32_t frame_flags,
                               const struct access *access)
{
    struct hello hello = {
        .version_min = 1, .version_max = 1, .name = "client", .frame_flags = frame_flags
    };
    struct peer p = { .loop = &f->loop };
    int ends[2];

    snprintf(hello.role, sizeof hello.role, "%s", role);
    assert_int_equal(uv_socketpair(SOCK_STREAM, 0, ends, UV_NONBLOCK_PIPE, 0), 0);
    assert_int_equal(
        connection_set_open(&f->connections,
                            &(struct connection_socket){ .fd = ends[0], .access = *access }, 1,
                            &hello, NULL),
        0);
    p.fd = ends[1];
    assert_true(peer_receive(&p));
    assert_int_equal(p.header.type, FRAME_HELLO_REPLY);
    return p;
}

struct peer client_of(struct fixture *f, const char *role, uint32_t frame_flags)
{
    return open_client(f, role, frame_flags, &(struct access){ .role = ACCESS_ALL });
}

struct peer client_with(struct fixture *f, const char *role, const struct access *access)
{
    return open_client(f, role, 0, access);
}

/* The next frame is of this type, and answers this request. */
static void hear(struct peer *p, uint16_t type, uint64_t request_id)
{
    assert_true(peer_receive(p));
    assert_int_equal(p->header.type, type);
    assert_int_equal(p->header.request_id, request_id);
}

void send_table(struct peer *p, const char *name)
{
    struct table_request asked = { .spec = { .dim = DIM, .params.learning_rate = 1 } };
    struct bytes frame = { 0 };

    snprintf(asked.spec.name, sizeof asked.spec.name, "%s", name);
    assert_int_equal(message_write_table(&frame, 2, &asked), 0);
    peer_send(p, &frame);
}

struct table_reply hear_table(struct peer *p)
{
    struct table_reply reply;

    hear(p, FRAME_TABLE_REPLY, 2);
    assert_int_equal(message_read_table_reply(&p->header, p->head, &reply), 0);
    return reply;
}

uint32_t ask_table(struct peer *p, const char *name)
{
    struct table_reply reply;

    send_table(p, name);
    reply = hear_table(p);
    assert_int_equal(reply.status, 0);
    return reply.table_id;
}

void send_join(struct peer *p, uint32_t rank, uint64_t incarnation)
{
    struct join asked = { .job = "job",
                          .rank = rank,
                          .n_workers = 2,
                          .relays = true,
                          .incarnation = incarnation,
                          .mode = TABLE_SPEC_MODE_BSP,
                          .name = "client" };
    struct bytes frame = { 0 };

    assert_int_equal(message_write_join(&frame, 3, &asked), 0);
    peer_send(p, &frame);
}

struct join_reply hear_join(struct peer *p)
{
    struct join_reply reply;

    hear(p, FRAME_JOIN_REPLY, 3);
    assert_int_equal(message_read_join_reply(&p->header, p->head, &reply), 0);
    return reply;
}

struct join_reply join_job(struct peer *p, uint32_t rank, uint64_t incarnation)
{
    send_join(p, rank, incarnation);
    return hear_join(p);
}

struct peer worker_of(struct fixture *f, uint32_t rank)
{
    struct peer p = client(f, "worker");

    assert_int_equal(join_job(&p, rank, 1).status, 0);
    return p;
}

struct push_reply hear_push(struct peer *p, uint64_t seq)
{
    struct push_reply reply;

    hear(p, FRAME_PUSH_REPLY, 100 + seq);
    assert_int_equal(message_read_push_reply(&p->header, p->head, &reply), 0);
    assert_int_equal(reply.seq, seq);
    return reply;
}

struct pull_reply hear_pull(struct peer *p, uint64_t request_id)
{
    struct pull_reply reply;

    hear(p, FRAME_PULL_REPLY, request_id);
    assert_int_equal(
        message_read_pull_reply(&p->header, p->head, p->body, p->header.body_bytes, &reply), 0);
    return reply;
}

static struct status_reply send_beat(struct peer *p, const struct beat *m)
{
    struct status_reply reply;
    struct bytes frame = { 0 };

    assert_int_equal(message_write_beat(&frame, 50, m), 0);
    peer_send(p, &frame);
    hear(p, FRAME_BEAT_REPLY, 50);
    assert_int_equal(message_read_status_reply(&p->header, p->head, &reply), 0);
    return reply;
}

int beat(struct peer *p)
{
    return send_beat(p, &(struct beat){ 0 }).status;
}

struct status_reply beat_about(struct peer *p, uint32_t rank, bool is_agreed)
{
    struct suspect about = { .rank = rank, .incarnation = 1, .is_agreed = is_agreed };

    return send_beat(p, &(struct beat){ .suspects = { 1, { about } } });
}

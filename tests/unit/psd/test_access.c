/*
 * What each role may: every frame that a client can send, of its own job and of another one. A row for each request, a
 * column for each role; the requests go through the listener's check and a real shard.
 */
#include "common/token_file.h"
#include "proto/message_replication.h"
#include "server/admin_server.h"
#include "server/net/listener.h"
#include "tests/unit/psd/serving.h"

#define N_ROLES 7u

static const struct access roles[N_ROLES] = {
    { ACCESS_ALL, "", "" },        { ACCESS_NODE, "c", "" },   { ACCESS_WORKER, "c", "" },
    { ACCESS_WORKER, "c", "job" }, { ACCESS_READER, "c", "" }, { ACCESS_OPERATOR, "c", "" },
    { ACCESS_ADMIN, "c", "" },
};

/* In the order of `roles`: all, node, worker, worker of job, reader, operator, admin; + may, - may not. */
static const struct {
    const char *hello_role;
    uint32_t shard;
    const char *expected;
} hellos[] = {
    { "worker", 0, "+-++--+" },
    { "reader", 0, "+++++-+" },
    { "operator", MESSAGE_SHARD_LISTENER, "+++++++" },
    { "watcher", MESSAGE_SHARD_LISTENER, "+++++++" },
    { "standby", MESSAGE_SHARD_LISTENER, "++-----" },
    { "standby", 0, "++-----" },
};

static void a_role_greets_as_what_it_may_be(void **state)
{
    struct hello_reply map = { .shards_per_node = 1, .map_id = 7, .n_nodes = 1 }, reply;
    struct listener_config config = { .map = &map, .token = "" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(hellos); i++)
        for (size_t k = 0; k < N_ROLES; k++) {
            struct hello hello = { .version_min = 1,
                                   .version_max = 1,
                                   .shard = hellos[i].shard };
            struct access access;
            const int expected = hellos[i].expected[k] == '+' ? 0 : PS_EDENIED;

            strcpy(hello.role, hellos[i].hello_role);
            if (listener_check_hello(&config, &hello, &roles[k], &reply, &access) != expected)
                fail_msg("%s as %s: %s", access_role_name(roles[k].role), hello.role,
                         reply.text);
            assert_int_equal(access.role, roles[k].role);
        }
}

static void a_token_has_a_role_as_a_certificate_has(void **state)
{
    struct hello_reply map = { .shards_per_node = 1, .map_id = 7, .n_nodes = 1 }, reply;
    struct token_list tokens = { .n = 2,
                                 .items = { { { ACCESS_READER, "", "" }, "of readers" },
                                            { { ACCESS_WORKER, "", "job" }, "of workers" } } };
    struct listener_config config = { .map = &map, .token = "", .tokens = &tokens };
    struct hello hello = { .version_min = 1, .version_max = 1, .role = "worker" };
    struct access access;

    (void)state;
    assert_int_equal(listener_check_hello(&config, &hello, NULL, &reply, &access),
                     PS_EGREETING);
    strcpy(hello.token, "of readers");
    assert_int_equal(listener_check_hello(&config, &hello, NULL, &reply, &access), PS_EDENIED);
    assert_non_null(strstr(reply.text, "token is of role reader"));
    strcpy(hello.token, "of workers");
    assert_int_equal(listener_check_hello(&config, &hello, NULL, &reply, &access), 0);
    assert_string_equal(access.job, "job");
    strcpy(hello.token, "of worker");
    assert_int_equal(listener_check_hello(&config, &hello, NULL, &reply, &access),
                     PS_EGREETING);
}

/* ---- frames ---- */

static int hear_status(struct peer *p, enum frame_type type)
{
    struct table_reply table;
    struct join_reply join;
    struct pull_reply pull;
    struct push_reply push;
    struct status_reply reply;

    assert_true(peer_receive(p));
    assert_int_equal(p->header.type, type);
    if (type == FRAME_TABLE_REPLY)
        return message_read_table_reply(&p->header, p->head, &table) ? -1 : table.status;
    if (type == FRAME_JOIN_REPLY)
        return message_read_join_reply(&p->header, p->head, &join) ? -1 : join.status;
    if (type == FRAME_PULL_REPLY)
        return message_read_pull_reply(&p->header, p->head, p->body, p->header.body_bytes,
                                       &pull)
                   ? -1
                   : pull.status;
    if (type == FRAME_PUSH_REPLY)
        return message_read_push_reply(&p->header, p->head, &push) ? -1 : push.status;
    return message_read_status_reply(&p->header, p->head, &reply) ? -1 : reply.status;
}

static int table_of(struct peer *p, const char *job, bool must_exist)
{
    struct table_request asked = { .must_exist = must_exist,
                                   .spec = { .kind = TABLE_SPEC_SPARSE,
                                             .dim = DIM,
                                             .optim = TABLE_SPEC_SGD,
                                             .mode = TABLE_SPEC_MODE_JOB } };
    struct bytes frame = { 0 };

    asked.spec.params = table_spec_optim_defaults(asked.spec.optim);
    snprintf(asked.spec.name, sizeof asked.spec.name, "%s/t", job);
    assert_int_equal(message_write_table(&frame, 1, &asked), 0);
    peer_send(p, &frame);
    return hear_status(p, FRAME_TABLE_REPLY);
}

static int join_of(struct peer *p, const char *job, uint32_t rank)
{
    struct join join = { .rank = rank,
                         .n_workers = 8,
                         .incarnation = 1,
                         .mode = TABLE_SPEC_MODE_ASYNC,
                         .name = "test" };
    struct bytes frame = { 0 };

    strcpy(join.job, job);
    assert_int_equal(message_write_join(&frame, 1, &join), 0);
    peer_send(p, &frame);
    return hear_status(p, FRAME_JOIN_REPLY);
}

static struct section section_of(uint32_t table_id, const uint8_t *keys, size_t key_bytes)
{
    return (struct section){ .table_id = table_id,
                             .codec = CODEC_FP32,
                             .n_keys = 1,
                             .keys = keys,
                             .key_bytes = key_bytes };
}

static int rows_of(struct peer *p, uint32_t table_id, bool is_push)
{
    static const uint64_t key = 5;
    static const float gradient[DIM] = { 1 };
    uint8_t keys[32];
    struct bytes frame = { 0 };
    struct push push = { .seq = 1, .n_sections = 1 };
    struct pull pull = { .n_sections = 1 };

    pull.sections[0] = section_of(table_id, keys, key_codec_encode(&key, 1, keys));
    push.sections[0] = pull.sections[0];
    push.sections[0].op = SECTION_GRADIENT;
    push.sections[0].values = (const uint8_t *)gradient;
    push.sections[0].value_bytes = sizeof gradient;
    assert_int_equal(is_push ? message_write_push(&frame, 1, &push, NULL)
                             : message_write_pull(&frame, 1, &pull, NULL),
                     0);
    peer_send(p, &frame);
    return hear_status(p, is_push ? FRAME_PUSH_REPLY : FRAME_PULL_REPLY);
}

static int simple(struct peer *p, enum frame_type type)
{
    struct bytes frame = { 0 };

    assert_int_equal(type == FRAME_BEAT ? message_write_beat(&frame, 1, &(struct beat){ 0 })
                                        : message_write_leave(&frame, 1, 0),
                     0);
    peer_send(p, &frame);
    return hear_status(p, type + 1);
}

/* A request on a connection that has joined `job`, if it says so, and named `named`. */
static const struct {
    const char *what, *hello_role, *joins, *names;
    enum frame_type type;
    const char *job;      /* of the request */
    const char *expected; /* as above; . is a role that does not come this far */
} requests[] = {
    { "join its job", "worker", NULL, NULL, FRAME_JOIN, "job", "+.++..+" },
    { "join another", "worker", NULL, NULL, FRAME_JOIN, "other", "+.+-..+" },
    { "make its table", "worker", "job", NULL, FRAME_TABLE, "job", "+.++..+" },
    { "make another's", "worker", "job", NULL, FRAME_TABLE, "other", "+.+-..+" },
    { "make one of a longer name", "worker", "job", NULL, FRAME_TABLE, "jobs", "+.+-..+" },
    { "find its table", "reader", NULL, NULL, FRAME_TABLE, "job", "+++++.+" },
    { "find another's", "reader", NULL, NULL, FRAME_TABLE, "other", "+++-+.+" },
    { "pull what it named", "worker", "job", "job", FRAME_PULL, "job", "+.++..+" },
    { "pull what it did not", "worker", "job", "job", FRAME_PULL, "other", "+.--..-" },
    { "read what it named", "reader", NULL, "job", FRAME_PULL, "job", "+++++.+" },
    { "read what it did not", "reader", NULL, "job", FRAME_PULL, "other", "+----.-" },
    { "push what it named", "worker", "job", "job", FRAME_PUSH, "job", "+.++..+" },
    { "push what it did not", "worker", "job", "job", FRAME_PUSH, "other", "+.--..-" },
    { "beat", "worker", "job", NULL, FRAME_BEAT, NULL, "+.++..+" },
    { "leave", "worker", "job", NULL, FRAME_LEAVE, NULL, "+.++..+" },
};

static int ask(struct peer *p, size_t i, uint32_t rank, const uint32_t ids[2])
{
    const char *job = requests[i].job;

    switch (requests[i].type) {
    case FRAME_JOIN:
        return join_of(p, job, rank);
    case FRAME_TABLE:
        return table_of(p, job, strcmp(requests[i].hello_role, "reader") == 0);
    case FRAME_PULL:
    case FRAME_PUSH:
        return rows_of(p, ids[strcmp(job, "other") == 0], requests[i].type == FRAME_PUSH);
    default:
        return simple(p, requests[i].type);
    }
}

static void check(struct fixture *f, size_t i, uint32_t k, const uint32_t ids[2])
{
    struct peer p = client_with(f, requests[i].hello_role, &roles[k]);
    const bool reads = strcmp(requests[i].hello_role, "reader") == 0;
    int status;

    if (requests[i].joins)
        assert_int_equal(join_of(&p, requests[i].joins, k), 0);
    if (requests[i].names)
        assert_int_equal(table_of(&p, requests[i].names, reads), 0);
    status = ask(&p, i, k, ids);
    if (status != (requests[i].expected[k] == '+' ? 0 : PS_EDENIED))
        fail_msg("%s, role %s%s: %s", requests[i].what, access_role_name(roles[k].role),
                 roles[k].job, status_text(status));
    if (requests[i].joins && requests[i].type != FRAME_LEAVE)
        assert_int_equal(simple(&p, FRAME_LEAVE), 0);
    peer_close(&p);
}

static void a_role_may_send_what_its_row_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(requests); i++)
        for (uint32_t k = 0; k < N_ROLES; k++) {
            struct fixture f;
            struct peer owner;
            uint32_t ids[2];

            if (requests[i].expected[k] == '.')
                continue;
            set_up(&f);
            owner = client(&f, "worker");
            assert_int_equal(table_of(&owner, "job", false), 0);
            assert_int_equal(table_of(&owner, "other", false), 0);
            ids[0] = 0;
            ids[1] = 1;
            check(&f, i, k, ids);
            peer_close(&owner);
            tear_down(&f);
        }
}

/* In the order of `roles`. */
static const struct {
    const char *command, *expected;
} commands[] = {
    { "status", "+++++++" },     { "tables", "+++++++" },  { "workers", "+++++++" },
    { "why", "+++++++" },        { "stats", "+++++++" },   { "row", "+++-+++" },
    { "checkpoint", "+-----+" }, { "drop", "+-----+" },    { "drop-check", "+-----+" },
    { "set", "+-----+" },        { "set-check", "+-----+" }, { "promote", "+-----+" },
    { "switch", "+-----+" },     { "of tomorrow", "+-----+" }, { "", "+-----+" },
};

static void a_command_that_changes_something_is_for_admins(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        for (size_t k = 0; k < N_ROLES; k++) {
            const int expected = commands[i].expected[k] == '+' ? 0 : PS_EDENIED;
            struct err err = { 0 };

            if (admin_server_check_access(&roles[k], commands[i].command, &err) != expected)
                fail_msg("%s, role %s: %s", commands[i].command,
                         access_role_name(roles[k].role), err.text);
        }
}

/* A shard knows six frames of clients and one of standbys. Any other one ends the connection, whoever sends it. */
static bool is_of_a_shard(enum frame_type type)
{
    return type == FRAME_JOIN || type == FRAME_TABLE || type == FRAME_PULL ||
           type == FRAME_PUSH || type == FRAME_BEAT || type == FRAME_LEAVE ||
           type == FRAME_FETCH;
}

static void send_frame_of(struct peer *p, enum frame_type type)
{
    struct bytes frame = { 0 };
    struct frame_header header;

    assert_int_equal(message_write_leave(&frame, 1, 0), 0);
    assert_int_equal(frame_decode(bytes_front(&frame), 1 << 20, &header), 0);
    header.type = type;
    frame_encode(frame.bytes + frame.start, &header);
    peer_send(p, &frame);
}

static void a_frame_of_another_place_ends_the_connection(void **state)
{
    static const char *const hello_roles[] = { "worker", "reader", "standby" };
    struct fixture f;

    (void)state;
    set_up(&f);
    for (int type = 1; type < FRAME_TYPE_END; type++)
        for (size_t h = 0; h < COUNT_OF(hello_roles) && !is_of_a_shard((enum frame_type)type);
             h++)
            for (size_t k = 0; k < N_ROLES; k++) {
                struct peer p;

                if (!access_may_greet(&roles[k], hello_roles[h]))
                    continue;
                p = client_with(&f, hello_roles[h], &roles[k]);
                send_frame_of(&p, (enum frame_type)type);
                if (peer_receive(&p))
                    fail_msg("%s as %s sends frame type %d, and is answered with type %d",
                             access_role_name(roles[k].role), hello_roles[h], type,
                             p.header.type);
                peer_close(&p);
            }
    tear_down(&f);
}

/* Whoever may be one. */
static void only_a_standby_fetches(void **state)
{
    static const char *const hello_roles[] = { "worker", "reader" };
    struct fixture f;

    (void)state;
    set_up(&f);
    for (size_t h = 0; h < COUNT_OF(hello_roles); h++)
        for (size_t k = 0; k < N_ROLES; k++) {
            struct bytes frame = { 0 };
            struct fetch_reply reply;
            struct peer p;

            if (!access_may_greet(&roles[k], hello_roles[h]))
                continue;
            p = client_with(&f, hello_roles[h], &roles[k]);
            assert_int_equal(message_write_fetch(&frame, 1, &(struct fetch){ .next = 1 }), 0);
            peer_send(&p, &frame);
            assert_true(peer_receive(&p));
            assert_int_equal(p.header.type, FRAME_FETCH_REPLY);
            assert_int_equal(
                message_read_fetch_reply(&p.header, p.head, p.body, p.header.body_bytes, &reply),
                0);
            assert_int_equal(reply.status, -EPERM);
            peer_close(&p);
        }
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_role_greets_as_what_it_may_be),
        cmocka_unit_test(a_token_has_a_role_as_a_certificate_has),
        cmocka_unit_test(a_role_may_send_what_its_row_says),
        cmocka_unit_test(a_command_that_changes_something_is_for_admins),
        cmocka_unit_test(a_frame_of_another_place_ends_the_connection),
        cmocka_unit_test(only_a_standby_fetches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

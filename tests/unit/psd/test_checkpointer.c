/* Checkpoints from the main thread's side, with a real shard thread and a disk in memory whose
 * files can be kept from being made. */
#include "server/checkpointer.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "server/admin_server.h"
#include "server/start.h"
#include "tests/support/crash_files.h"
#include "tests/unit/net/peer.h"

#define DATA_DIR "data"
#define LIMIT_MS 1000u

struct fixture {
    uv_loop_t loop;
    uv_timer_t timer; /* keeps the loop going, as the node's does */
    struct mailbox mailbox;
    struct crash_files disk;
    struct file_ops files; /* the disk's, but that a shard's file waits for the gate */
    uv_sem_t gate;
    struct shard_thread *shard;
    struct checkpointer *checkpointer;
    const struct checkpointer_record *record; /* the checkpointer's */
    struct node_stats *facts;
    struct admin_server *admin_server;
    struct hello_reply welcome;
};

static int create(void *state, const char *path, int *ret_fd)
{
    struct fixture *f = CONTAINER_OF((struct crash_files *)state, struct fixture, disk);

    if (strstr(path, ".psc"))
        uv_sem_wait(&f->gate);
    return f->disk.ops.create(state, path, ret_fd);
}

static void on_timer(uv_timer_t *timer)
{
    (void)timer;
}

static void refresh(void *node)
{
    (void)node;
}

static struct shard_thread *start_shard(struct fixture *f)
{
    struct shard_thread_config config = {
        .core = { .n_shards = 1, .lease_ms = 10000, .join_ms = 10000, .park_ms = 10000 },
        .frame_max_bytes = 1 << 20,
        .frame_timeout_ms = 10000,
        .welcome = &f->welcome
    };
    struct shard_thread *thread;
    struct err err;

    enter_main();
    assert_int_equal(shard_thread_start(&config, &thread, &err), 0);
    return thread;
}

static void stop_shard(struct shard_thread *thread)
{
    enter_main();
    shard_thread_stop(thread);
    shard_thread_join(thread);
}

static void set_up(struct fixture *f)
{
    struct checkpointer_config checkpointer = { .loop = &f->loop,
                                                .mailbox = &f->mailbox,
                                                .files = &f->files,
                                                .data_dir = DATA_DIR,
                                                .identity = { .n_shards = 1 },
                                                .n_nodes = 1,
                                                .keep = 2,
                                                .limit_ms = LIMIT_MS,
                                                .n_shards = 1,
                                                .shards = &f->shard };
    struct admin_server_config admin = { .loop = &f->loop,
                                         .welcome = &f->welcome,
                                         .frame_timeout_ms = 10000,
                                         .refresh = refresh,
                                         .node = f };

    enter_main();
    *f = (struct fixture){ .welcome = { .version = 1, .n_nodes = 1, .nodes = { "here:1" } } };
    assert_int_equal(uv_loop_init(&f->loop), 0);
    assert_int_equal(uv_timer_init(&f->loop, &f->timer), 0);
    assert_int_equal(uv_timer_start(&f->timer, on_timer, 1, 1), 0);
    assert_int_equal(mailbox_init(&f->mailbox, &f->loop, f), 0);
    assert_int_equal(uv_sem_init(&f->gate, 0), 0);
    crash_files_init(&f->disk);
    f->files = f->disk.ops;
    f->files.create = create;
    f->shard = start_shard(f);
    f->checkpointer = checkpointer_new(&checkpointer);
    f->record = checkpointer_record(f->checkpointer);
    admin.stats = f->facts = node_stats_new(&f->shard, 1);
    admin.checkpointer = f->checkpointer;
    f->admin_server = admin_server_new(&admin);
}

/* As a node ends, whatever its checkpoint does. */
static void tear_down(struct fixture *f)
{
    enter_main();
    admin_server_close(f->admin_server);
    checkpointer_stop(f->checkpointer);
    stop_shard(f->shard);
    uv_close((uv_handle_t *)&f->timer, NULL);
    mailbox_close(&f->mailbox);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    mailbox_deinit(&f->mailbox);
    admin_server_free(f->admin_server);
    checkpointer_free(f->checkpointer);
    node_stats_free(f->facts);
    crash_files_deinit(&f->disk);
    uv_sem_destroy(&f->gate);
}

struct answer {
    int n;
    struct checkpointer_record last;
};

static void on_done(void *arg, const struct checkpointer_record *record)
{
    struct answer *answer = arg;

    answer->n++;
    answer->last = *record;
}

static void run_until(struct fixture *f, const uint64_t *counter, uint64_t n)
{
    while (*counter < n)
        uv_run(&f->loop, UV_RUN_ONCE);
}

static void wishes_share_the_next_one_while_one_is_under_way(void **state)
{
    struct answer first = { 0 }, later = { 0 };
    struct fixture f;

    (void)state;
    enter_main();
    set_up(&f);
    checkpointer_request(f.checkpointer, on_done, &first);
    for (int i = 0; i < 5; i++)
        checkpointer_request(f.checkpointer, on_done, &later);
    uv_sem_post(&f.gate);
    run_until(&f, &f.record->n_done, 1);
    assert_true(first.n == 1 && later.n == 0);
    uv_sem_post(&f.gate);
    run_until(&f, &f.record->n_done, 2);
    assert_true(first.n == 1 && later.n == 5);
    assert_int_equal(f.record->busy_since_unix_ms, 0);
    tear_down(&f);
}

/* A psd that is deposed ends at once. The checkpoint has gone any number of steps by then; a second one waits. */
static void a_node_may_end_while_one_runs(void **state)
{
    (void)state;
    for (uint32_t n_turns = 0; n_turns < 40; n_turns++) {
        struct answer done = { 0 };
        struct fixture f;

        set_up(&f);
        if (n_turns % 2)
            uv_sem_post(&f.gate);
        checkpointer_request(f.checkpointer, on_done, &done);
        checkpointer_request(f.checkpointer, on_done, &done);
        for (uint32_t i = 0; i < n_turns / 2; i++)
            uv_run(&f.loop, UV_RUN_ONCE);
        uv_sem_post(&f.gate); /* the shard's file, if it is asked for only now */
        tear_down(&f);
        assert_true(done.n <= 2);
    }
}

static void the_next_one_is_due_so_long_after_the_end_of_the_last(void **state)
{
    uint64_t start_ms = clock_mono_ms(), end_ms;
    struct answer answer = { 0 };
    struct fixture f;

    (void)state;
    enter_main();
    set_up(&f);
    assert_false(checkpointer_is_due(f.checkpointer, start_ms, 100, start_ms + 99));
    assert_true(checkpointer_is_due(f.checkpointer, start_ms, 100, start_ms + 100));
    checkpointer_request(f.checkpointer, on_done, &answer);
    assert_false(checkpointer_is_due(f.checkpointer, start_ms, 100, start_ms + 100000));
    while (clock_mono_ms() < start_ms + 5) /* it takes a while */
        uv_run(&f.loop, UV_RUN_NOWAIT);
    uv_sem_post(&f.gate);
    run_until(&f, &f.record->n_done, 1);
    end_ms = clock_mono_ms();
    assert_false(checkpointer_is_due(f.checkpointer, start_ms, 100, start_ms + 104));
    assert_true(checkpointer_is_due(f.checkpointer, start_ms, 100, end_ms + 100));
    tear_down(&f);
}

/* With --keep 2 logs take three times the limit, and a disk gives them half of its space. */
static void logs_that_the_disk_has_no_space_for_are_a_reason_earlier(void **state)
{
    static const struct {
        uint64_t space_mib, log_mib, limit_mib;
        bool is_triggered;
    } rows[] = { { 0, 99, 100, false },   { 0, 100, 100, true }, { 10000, 99, 100, false },
                 { 600, 99, 100, false }, { 594, 99, 99, true }, { 60, 9, 10, false },
                 { 60, 10, 10, true },    { 3, 0, 1, false },    { 3, 1, 1, true } };
    const struct settings settings = { .log_max_bytes = 100 << 20 };
    struct fixture f;

    (void)state;
    enter_main();
    set_up(&f);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct checkpointer_trigger trigger = { .settings = &settings,
                                                .space_bytes = rows[i].space_mib << 20,
                                                .found_bytes = rows[i].log_mib << 20 };
        bool is = checkpointer_is_triggered(f.checkpointer, &trigger, 100000);

        if (is != rows[i].is_triggered || f.record->log_max_bytes != rows[i].limit_mib << 20)
            fail_msg("row %zu: %d, limit %" PRIu64, i, is, f.record->log_max_bytes);
    }
    tear_down(&f);
}

static void one_that_takes_too_long_is_reported_as_failed_and_goes_on(void **state)
{
    struct answer answer = { 0 };
    struct fixture f;

    (void)state;
    enter_main();
    set_up(&f);
    checkpointer_request(f.checkpointer, on_done, &answer);
    checkpointer_tick(f.checkpointer, clock_mono_ms());
    assert_int_equal(answer.n, 0);
    assert_int_equal(f.record->until_unix_ms, f.record->busy_since_unix_ms + LIMIT_MS);
    while (!f.record->busy_number)
        uv_run(&f.loop, UV_RUN_ONCE);
    assert_int_equal(f.record->busy_number, 1);
    checkpointer_tick(f.checkpointer, clock_mono_ms() + LIMIT_MS);
    assert_int_equal(answer.n, 1);
    assert_int_equal(answer.last.error.status, PS_EDEADLINE);
    assert_non_null(strstr(answer.last.error.text, "checkpoint 1 has not moved for 1 s; it"));
    assert_true(f.record->busy_since_unix_ms && !f.record->until_unix_ms);
    checkpointer_request(f.checkpointer, on_done,
                         &answer); /* nor does this one wait for ever */
    checkpointer_tick(f.checkpointer, clock_mono_ms() + LIMIT_MS);
    assert_int_equal(answer.n, 2);
    assert_int_equal(f.record->n_failed, 1);
    uv_sem_post(&f.gate);
    run_until(&f, &f.record->n_done, 1);
    assert_int_equal(answer.n, 2);
    assert_int_equal(f.record->n_failed, 1);
    assert_int_equal(f.record->error.status, 0);
    assert_int_equal(f.record->busy_number, 0);
    tear_down(&f);
}

/* --- operators --- */

static struct peer operator_of(struct fixture *f)
{
    struct hello hello = { .version_min = 1, .version_max = 1, .role = "operator" };
    struct peer p = { .loop = &f->loop };
    int ends[2];

    enter_main();
    assert_int_equal(uv_socketpair(SOCK_STREAM, 0, ends, UV_NONBLOCK_PIPE, 0), 0);
    assert_int_equal(admin_server_receive(f->admin_server,
                                          &(struct connection_socket){ .fd = ends[0] }, 1,
                                          &hello),
                     0);
    p.fd = ends[1];
    assert_true(peer_receive(&p));
    return p;
}

static void send_command(struct peer *p, uint64_t request_id, const char *name)
{
    struct admin command = { 0 };
    struct bytes frame = { 0 };

    snprintf(command.command, sizeof command.command, "%s", name);
    assert_int_equal(message_write_admin(&frame, request_id, &command), 0);
    peer_send(p, &frame);
}

static void request_checkpoint(struct peer *p, uint64_t request_id)
{
    send_command(p, request_id, "checkpoint");
}

static int hear(struct peer *p, uint64_t request_id)
{
    struct status_reply reply;

    assert_true(peer_receive(p));
    assert_int_equal(p->header.request_id, request_id);
    assert_int_equal(message_read_status_reply(&p->header, p->head, &reply), 0);
    return reply.status;
}

static void an_operator_waits_for_one_checkpoint_at_a_time(void **state)
{
    struct peer one, other;
    struct fixture f;

    (void)state;
    enter_main();
    set_up(&f);
    one = operator_of(&f);
    other = operator_of(&f);
    assert_int_equal(admin_server_n_connections(f.admin_server), 2);
    request_checkpoint(&one, 5);
    request_checkpoint(&one, 6);
    assert_int_equal(hear(&one, 6), -EBUSY);
    send_command(&one, 9, "status"); /* how it stands may be asked meanwhile */
    assert_int_equal(hear(&one, 9), 0);
    request_checkpoint(&other, 7);
    uv_sem_post(&f.gate);
    assert_int_equal(hear(&one, 5), 0);
    uv_sem_post(&f.gate);
    assert_int_equal(hear(&other, 7), 0);
    request_checkpoint(&one, 8); /* and again, once it has its answer */
    uv_sem_post(&f.gate);
    assert_int_equal(hear(&one, 8), 0);
    peer_close(&one);
    peer_close(&other);
    while (admin_server_n_connections(f.admin_server))
        uv_run(&f.loop, UV_RUN_ONCE);
    tear_down(&f);
}

/* --- the other way --- */

static void make_table(struct mail *mail, void *owner)
{
    const struct table_spec spec = { .name = "t", .dim = 4, .params.learning_rate = 1 };
    struct err err;
    uint32_t id;

    (void)mail;
    enter_shard();
    assert_int_equal(shard_table_open(shard_thread_shard((struct shard_thread *)owner), &spec,
                                      false, &id, &err),
                     0);
}

static void on_restored(void *arg, const struct start_result *result)
{
    assert_string_equal(result->err.status ? result->err.text : "", "");
    assert_int_equal(result->n_tables, 1);
    *(uint64_t *)arg = 1;
}

static void what_a_restored_shard_reports_is_what_it_has_loaded(void **state)
{
    struct settings settings = { .data_dir = DATA_DIR };
    struct mail mail = { .run = make_table };
    struct answer answer = { 0 };
    struct shard_thread *thread;
    struct start_config config;
    struct published_report *published;
    uint64_t is_restored = 0;
    struct fixture f;

    (void)state;
    enter_main();
    set_up(&f);
    assert_int_equal(shard_thread_post(f.shard, &mail), 0);
    checkpointer_request(f.checkpointer, on_done, &answer);
    uv_sem_post(&f.gate);
    run_until(&f, &f.record->n_done, 1);
    thread = start_shard(&f);
    config = (struct start_config){ .loop = &f.loop,
                                    .mailbox = &f.mailbox,
                                    .checkpointer = f.checkpointer,
                                    .files = &f.files,
                                    .settings = &settings,
                                    .n_nodes = 1,
                                    .n_shards = 1,
                                    .shards = &thread };
    start_run(&config, on_restored, &is_restored);
    run_until(&f, &is_restored, 1);
    published = shard_thread_report(thread);
    assert_non_null(published);
    assert_int_equal(published->report->n_tables, 1);
    published_report_release(published);
    stop_shard(thread);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wishes_share_the_next_one_while_one_is_under_way),
        cmocka_unit_test(a_node_may_end_while_one_runs),
        cmocka_unit_test(the_next_one_is_due_so_long_after_the_end_of_the_last),
        cmocka_unit_test(logs_that_the_disk_has_no_space_for_are_a_reason_earlier),
        cmocka_unit_test(one_that_takes_too_long_is_reported_as_failed_and_goes_on),
        cmocka_unit_test(an_operator_waits_for_one_checkpoint_at_a_time),
        cmocka_unit_test(what_a_restored_shard_reports_is_what_it_has_loaded),
    };

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

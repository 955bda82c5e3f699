/* Calls from a main thread's loop to two real shard threads. */
#include "server/shard_call.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"

enum { N_SHARDS = 2 };

struct fixture {
    uv_loop_t loop;
    uv_timer_t timer; /* keeps the loop going, as the node's does */
    struct mailbox mailbox;
    struct hello_reply map;
    struct shard_thread *shards[N_SHARDS];
    uv_thread_t main;
    struct shard_call call;
    struct shard_thread *asked[N_SHARDS]; /* in the order of the calls */
    uint32_t n_asked, n_answered;
    int status; /* of every answer */
    bool goes_on;
};

static void on_timer(uv_timer_t *timer)
{
    (void)timer;
}

static int ask(struct shard_call *call, struct shard_thread *t) ON_SHARD
{
    struct fixture *f = CONTAINER_OF(call, struct fixture, call);
    uv_thread_t here = uv_thread_self();

    assert_false(uv_thread_equal(&here, &f->main));
    f->asked[f->n_asked++ % N_SHARDS] = t;
    if (f->status)
        return err_set(&call->err, f->status, "asked shard %u in vain", call->shard);
    return 0;
}

static void answered(struct shard_call *call) ON_MAIN
{
    struct fixture *f = CONTAINER_OF(call, struct fixture, call);
    uv_thread_t here = uv_thread_self();

    assert_true(uv_thread_equal(&here, &f->main));
    f->n_answered++;
    if (f->goes_on && call->shard + 1 < N_SHARDS)
        assert_int_equal(shard_call_start(call, call->shard + 1), 0);
}

static void set_up(struct fixture *f)
{
    struct shard_thread_config config = {
        .core = { .n_shards = N_SHARDS, .lease_ms = 10000, .join_ms = 10000, .park_ms = 10000 },
        .frame_max_bytes = 1 << 20,
        .frame_timeout_ms = 10000,
        .welcome = &f->map
    };
    struct err err;

    enter_main();
    *f = (struct fixture){ .map = { .version = 1, .n_nodes = 1, .shards_per_node = N_SHARDS } };
    f->main = uv_thread_self();
    assert_int_equal(uv_loop_init(&f->loop), 0);
    assert_int_equal(uv_timer_init(&f->loop, &f->timer), 0);
    assert_int_equal(uv_timer_start(&f->timer, on_timer, 1, 1), 0);
    assert_int_equal(mailbox_init(&f->mailbox, &f->loop, f), 0);
    for (uint32_t i = 0; i < N_SHARDS; i++) {
        config.index = config.core.shard = i;
        assert_int_equal(shard_thread_start(&config, &f->shards[i], &err), 0);
    }
    f->call = (struct shard_call){ .config = { &f->mailbox, &f->map, f->shards },
                                   .ask = ask,
                                   .answered = answered };
}

static void tear_down(struct fixture *f)
{
    enter_main();
    for (uint32_t i = 0; i < N_SHARDS; i++) {
        if (!f->shards[i])
            continue;
        shard_thread_stop(f->shards[i]);
        shard_thread_join(f->shards[i]);
    }
    uv_close((uv_handle_t *)&f->timer, NULL);
    mailbox_close(&f->mailbox);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    mailbox_deinit(&f->mailbox);
}

static void await_answers(struct fixture *f, uint32_t n)
{
    uint64_t end_ms = clock_mono_ms() + 120000;

    while (f->n_answered < n) {
        assert_true(clock_mono_ms() < end_ms);
        uv_run(&f->loop, UV_RUN_ONCE);
    }
    assert_int_equal(f->n_answered, n);
}

static void shards_are_called_one_after_the_other_and_answer_on_the_main_thread(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    enter_main();
    f.goes_on = true;
    assert_int_equal(shard_call_start(&f.call, 0), 0);
    await_answers(&f, N_SHARDS);
    assert_int_equal(f.n_asked, N_SHARDS);
    for (uint32_t i = 0; i < N_SHARDS; i++)
        assert_ptr_equal(f.asked[i], f.shards[i]);
    assert_int_equal(f.call.err.status, 0);
    tear_down(&f);
}

static void
an_answer_has_the_shards_status_and_sentence_and_the_next_call_has_none_of_it(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    enter_main();
    f.status = -EAGAIN;
    assert_int_equal(shard_call_start(&f.call, 1), 0);
    await_answers(&f, 1);
    assert_int_equal(f.call.err.status, -EAGAIN);
    assert_string_equal(f.call.err.text, "asked shard 1 in vain");
    f.status = 0;
    assert_int_equal(shard_call_start(&f.call, 1), 0);
    await_answers(&f, 2);
    assert_int_equal(f.call.err.status, 0);
    assert_string_equal(f.call.err.text, "");
    assert_ptr_equal(f.asked[1], f.shards[1]);
    tear_down(&f);
}

/* Until the thread has read its stop, calls are answered. */
static void a_shard_that_has_stopped_takes_no_call(void **state)
{
    uint64_t end_ms = clock_mono_ms() + 120000;
    struct fixture f;
    uint32_t n = 0;

    (void)state;
    set_up(&f);
    enter_main();
    shard_thread_stop(f.shards[0]);
    while (shard_call_start(&f.call, 0) == 0) {
        assert_true(clock_mono_ms() < end_ms);
        await_answers(&f, ++n);
    }
    assert_int_equal(shard_call_start(&f.call, 0), PS_ESTOPPING);
    assert_int_equal(f.n_asked, n);
    assert_int_equal(f.n_answered, n);
    shard_thread_join(f.shards[0]);
    f.shards[0] = NULL;
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_are_called_one_after_the_other_and_answer_on_the_main_thread),
        cmocka_unit_test(
            an_answer_has_the_shards_status_and_sentence_and_the_next_call_has_none_of_it),
        cmocka_unit_test(a_shard_that_has_stopped_takes_no_call),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

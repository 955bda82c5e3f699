/*
 * Who does the network's work: a thread that issues a request sends it, one of those that wait reads the answers, and
 * the library's own thread does the rest. Nothing of that shows, but in time.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libpsd_fixture.h"
#include "proto/frame.h"

#define SPEC "dim=4 optimizer=sgd lr=0.1 init=zero"
#define N_THREADS 4u
#define N_UNDER_WAY 8u
#define FDS_MAX 1024

static psd_op start_pull(struct handle *h, float *rows)
{
    psd_rows section = h->section;
    psd_op op = 0;

    section.rows = rows;
    if (psd_pull(h->c, 0, &section, 1, &op))
        fail_msg("%s", psd_error());
    return op;
}

/* ---- threads that wait ---- */

struct waiter {
    struct handle *h;
    psd_op op;
    int status;
    uint64_t ended_ms;
    pthread_t thread;
    float rows[N_KEYS * FAKE_DIM];
};

static void *wait_for_long(void *arg)
{
    struct waiter *w = arg;

    do
        w->status = psd_wait(w->h->c, w->op, -1);
    while (w->status == -EBUSY); /* begin_wait() looks just then */
    w->ended_ms = now_ms();
    return NULL;
}

static void begin_wait(struct waiter *w)
{
    w->op = start_pull(w->h, w->rows);
    assert_int_equal(pthread_create(&w->thread, NULL, wait_for_long, w), 0);
    while (psd_wait(w->h->c, w->op, 0) != -EBUSY) /* until it waits */
        usleep(1000);
    usleep(5000);
}

/* The first one reads for all, and hands that on when it is done; the last one is alone. */
static void test_a_wait_is_cancelled_whoever_reads(void **state)
{
    struct waiter waiters[N_THREADS];
    struct handle h;

    (void)state;
    open_handle(&h, &(struct fake_plan){ .n_shards = 2, .holds_pulls = true }, "", SPEC);
    for (uint32_t i = 0; i < N_THREADS; i++) {
        waiters[i] = (struct waiter){ .h = &h };
        begin_wait(&waiters[i]);
    }
    for (uint32_t i = 0; i < N_THREADS; i++) {
        uint64_t began = now_ms();

        assert_int_equal(psd_cancel(h.c, waiters[i].op), 0);
        pthread_join(waiters[i].thread, NULL);
        assert_int_equal(waiters[i].status, -ECANCELED);
        assert_true(waiters[i].ended_ms - began < 2000);
    }
    close_all(&h);
}

struct caller {
    struct handle *h;
    uint32_t number;
    pthread_t thread;
    _Atomic bool is_enough;
};

/* Waits in slices: so the one that reads is another one now and then, also in the middle of a pull. */
static void *pull_in_slices(void *arg)
{
    struct caller *c = arg;
    float rows[2][N_KEYS * FAKE_DIM];
    psd_op ops[2];

    for (uint32_t step = 0; step < 60; step++) {
        for (uint32_t i = 0; i < 2; i++)
            ops[i] = start_pull(c->h, rows[i]);
        if (step % 8 == c->number)
            psd_cancel(c->h->c, ops[1]);
        for (uint32_t i = 0; i < 2; i++) {
            int status = -ETIMEDOUT;

            while (status == -ETIMEDOUT)
                status = psd_wait(c->h->c, ops[i], (int)((step + c->number) % 3));
            if (status && status != -ECANCELED)
                fail_msg("%d: %s", status, psd_error());
            for (uint32_t k = 0; !status && k < N_KEYS * FAKE_DIM; k++)
                assert_true(rows[i][k] == (float)(k + 1));
        }
    }
    return NULL;
}

static void pull_from_all_threads(const struct fake_plan *plan)
{
    struct caller callers[N_THREADS];
    struct handle h;

    open_handle(&h, plan, "", SPEC);
    for (uint32_t i = 0; i < N_KEYS * FAKE_DIM; i++)
        h.rows[i] = (float)(i + 1);
    assert_int_equal(psd_push(h.c, 0, 8, PSD_TICK, &h.section, 1), 0);
    for (uint32_t i = 0; i < N_THREADS; i++) {
        callers[i] = (struct caller){ .h = &h, .number = i };
        assert_int_equal(pthread_create(&callers[i].thread, NULL, pull_in_slices, &callers[i]),
                         0);
    }
    for (uint32_t step = 1; step < 30; step++) { /* adds nothing */
        memset(h.rows, 0, sizeof h.rows);
        assert_int_equal(psd_push(h.c, step, 8, PSD_TICK, &h.section, 1), 0);
        assert_int_equal(psd_flush(h.c, 30000), 0);
    }
    for (uint32_t i = 0; i < N_THREADS; i++)
        pthread_join(callers[i].thread, NULL);
    assert_int_equal(psd_leave(h.c, 30000), 0);
    close_all(&h);
}

static void test_any_thread_reads_for_all(void **state)
{
    (void)state;
    pull_from_all_threads(&(struct fake_plan){ .n_shards = 2 });
    pull_from_all_threads(&(struct fake_plan){ .n_shards = 3, .shuffles_pulls = true });
}

static void test_a_connection_breaks_whoever_reads(void **state)
{
    (void)state;
    for (long i = 0; i < 6; i++)
        pull_from_all_threads(
            &(struct fake_plan){ .n_shards = 2,
                                 .fault = i % 2 ? FAKE_DROP_AFTER : FAKE_DROP_BEFORE,
                                 .fault_at = 15 * i,
                                 .fault_type = i % 3 ? FRAME_PULL : FRAME_PUSH });
}

/* ---- what leaves later ---- */

/* While some answers are still to be fetched, a pull may wait for others to leave with it: not for ever. */
static void test_a_pull_leaves_though_nobody_waits(void **state)
{
    static float rows[N_UNDER_WAY + 1][N_KEYS * FAKE_DIM];
    struct handle h;
    struct pollfd fd = { .events = POLLIN };

    (void)state;
    open_handle(&h, &(struct fake_plan){ .n_shards = 1 }, "", SPEC);
    fd.fd = psd_fd(h.c);
    for (uint32_t round = 0; round < 50; round++) {
        psd_op ops[N_UNDER_WAY + 1], op;
        uint32_t n_left = N_UNDER_WAY;

        for (uint32_t i = 0; i < N_UNDER_WAY; i++)
            ops[i] = start_pull(&h, rows[i]);
        assert_int_equal(psd_wait(h.c, ops[0], 10000), 0);
        ops[N_UNDER_WAY] = start_pull(&h, rows[N_UNDER_WAY]);
        while (n_left) {
            assert_int_equal(poll(&fd, 1, 10000), 1);
            while ((op = psd_next(h.c)) > 0) {
                assert_int_equal(psd_wait(h.c, op, 0), 0);
                n_left--;
            }
        }
    }
    close_all(&h);
}

/* ---- a caller's signals ---- */

/* Shuts our side of each connection to this port: the next write to it fails. Returns how many there are. */
static int shut_connections(int port)
{
    int n = 0;

    for (int fd = 3; fd < FDS_MAX; fd++) {
        struct sockaddr_in peer;
        socklen_t n_bytes = sizeof peer;

        if (getpeername(fd, (struct sockaddr *)&peer, &n_bytes) || peer.sin_family != AF_INET ||
            ntohs(peer.sin_port) != port)
            continue;
        assert_int_equal(shutdown(fd, SHUT_WR), 0);
        n++;
    }
    return n;
}

static void test_a_caller_that_sends_gets_no_sigpipe(void **state)
{
    sigset_t before, after, pending;
    struct handle h;

    (void)state;
    signal(SIGPIPE, SIG_DFL);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    open_handle(&h, &(struct fake_plan){ .n_shards = 2 }, "", SPEC);
    for (uint32_t step = 0; step < 20; step++) {
        assert_int_equal(psd_wait(h.c, start_pull(&h, h.rows), 10000), 0);
        assert_int_equal(shut_connections(h.f->port), 2);
        for (uint32_t i = 0; i < N_KEYS * FAKE_DIM; i++)
            h.rows[i] = 1;
        assert_int_equal(psd_push(h.c, step, 8, PSD_TICK, &h.section, 1), 0);
        assert_int_equal(sigpending(&pending), 0);
        assert_int_equal(sigismember(&pending, SIGPIPE), 0);
        assert_int_equal(psd_flush(h.c, 30000), 0);
    }
    assert_int_equal(psd_wait(h.c, start_pull(&h, h.rows), 10000), 0);
    for (uint32_t i = 0; i < N_KEYS * FAKE_DIM; i++)
        assert_true(h.rows[i] == 20); /* each push once */
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int number = 1; number < 32; number++)
        assert_int_equal(sigismember(&before, number), sigismember(&after, number));
    close_all(&h);
}

static void *pull_until_enough(void *arg)
{
    struct caller *c = arg;
    float rows[N_KEYS * FAKE_DIM];
    sigset_t all;

    sigfillset(&all); /* the signals here are for the thread that waits */
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!atomic_load(&c->is_enough))
        assert_int_equal(psd_wait(c->h->c, start_pull(c->h, rows), 30000), 0);
    return NULL;
}

static void start_callers(struct handle *h, struct caller *callers)
{
    for (uint32_t i = 0; i < N_THREADS; i++) {
        callers[i] = (struct caller){ .h = h };
        assert_int_equal(
            pthread_create(&callers[i].thread, NULL, pull_until_enough, &callers[i]), 0);
    }
}

static void end_callers(struct caller *callers)
{
    for (uint32_t i = 0; i < N_THREADS; i++)
        atomic_store(&callers[i].is_enough, true);
    for (uint32_t i = 0; i < N_THREADS; i++)
        pthread_join(callers[i].thread, NULL);
}

/* A node that answers pulls, and pushes never, with one push under way. */
static void open_busy_handle(struct handle *h, struct caller *callers)
{
    sigset_t set, before;

    sigfillset(&set);
    pthread_sigmask(SIG_BLOCK, &set, &before); /* on the node's thread, too */
    open_handle(h, &(struct fake_plan){ .n_shards = 2, .mute_pushes = true }, "", SPEC);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert_int_equal(psd_push(h->c, 0, 1, PSD_TICK, &h->section, 1), 0);
    start_callers(h, callers);
}

/* The one that waits for a push could read for those that pull, and work more than it sleeps. */
static void test_a_signal_ends_a_wait_beside_busy_threads(void **state)
{
    struct caller callers[N_THREADS];
    struct handle h;

    (void)state;
    open_busy_handle(&h, callers);
    for (uint32_t round = 0; round < 5; round++) {
        uint64_t began = alarm_soon(), took_ms;
        int status = psd_flush(h.c, 20000);

        took_ms = now_ms() - began;
        if (status != -EINTR)
            end_callers(callers); /* before this function ends */
        assert_says(status, -EINTR, "signal");
        assert_in_range(took_ms, 50, 2000); /* else it would be 20 s */
    }
    end_callers(callers);
    close_all(&h);
}

struct sender {
    pthread_t thread, to;
    _Atomic bool has_begun;
    useconds_t delay_us;
    _Atomic uint64_t sent_ms;
};

static _Atomic uint32_t n_handled;

static void on_signal(int number)
{
    (void)number;
    atomic_fetch_add(&n_handled, 1);
}

static void *send_signal(void *arg)
{
    struct sender *s = arg;
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!atomic_load(&s->has_begun))
        usleep(100);
    usleep(s->delay_us);
    atomic_store(&s->sent_ms, now_ms());
    assert_int_equal(pthread_kill(s->to, SIGUSR1), 0);
    return NULL;
}

/* Whatever the thread does at that moment: reads for others, is called to read, or sleeps. */
static void test_no_signal_of_a_thread_that_waits_is_missed(void **state)
{
    const struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    struct caller callers[N_THREADS];
    struct handle h;

    (void)state;
    sigaction(SIGUSR1, &action, NULL);
    open_busy_handle(&h, callers);
    for (uint32_t round = 0; round < 40; round++) {
        struct sender sender = { .to = pthread_self(), .delay_us = 3000 + round * 577 % 12000 };
        uint64_t took_ms;
        int status;

        assert_int_equal(pthread_create(&sender.thread, NULL, send_signal, &sender), 0);
        atomic_store(&sender.has_begun, true);
        status = psd_flush(h.c, 20000);
        took_ms = now_ms() - atomic_load(&sender.sent_ms);
        pthread_join(sender.thread, NULL);
        if (status != -EINTR)
            end_callers(callers); /* before this function ends */
        assert_says(status, -EINTR, "signal");
        assert_int_equal(atomic_load(&n_handled), round + 1); /* before the call returned */
        assert_in_range(took_ms, 0, 2000);
    }
    end_callers(callers);
    close_all(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wait_is_cancelled_whoever_reads),
        cmocka_unit_test(test_any_thread_reads_for_all),
        cmocka_unit_test(test_a_connection_breaks_whoever_reads),
        cmocka_unit_test(test_a_pull_leaves_though_nobody_waits),
        cmocka_unit_test(test_a_caller_that_sends_gets_no_sigpipe),
        cmocka_unit_test(test_a_signal_ends_a_wait_beside_busy_threads),
        cmocka_unit_test(test_no_signal_of_a_thread_that_waits_is_missed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

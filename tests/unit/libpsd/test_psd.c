/* libpsd as a program of a stranger would use and misuse it, on a node that the test controls. */
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/memory.h"
#include "libpsd_fixture.h"

#define SPEC "dim=4 optimizer=sgd lr=0.1 init=zero"

static void open_on(struct handle *h, const struct fake_plan *plan)
{
    open_handle(h, plan, "", SPEC);
}

static psd_op start_pull(struct handle *h)
{
    psd_op op = 0;

    if (psd_pull(h->c, 0, &h->section, 1, &op))
        fail_msg("%s", psd_error());
    assert_true(op > 0);
    return op;
}

/* ---- what works ---- */

static void test_rows_that_are_pushed_are_pulled(void **state)
{
    struct handle h;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2 });
    for (uint32_t i = 0; i < N_KEYS * FAKE_DIM; i++)
        h.rows[i] = (float)i;
    assert_int_equal(psd_push(h.c, 0, 8, PSD_TICK, &h.section, 1), 0);
    memset(h.rows, 0, sizeof h.rows);
    assert_int_equal(psd_wait(h.c, start_pull(&h), 10000), 0);
    for (uint32_t i = 0; i < N_KEYS * FAKE_DIM; i++)
        assert_true(h.rows[i] == (float)i); /* the fake adds */
    assert_int_equal(psd_flush(h.c, -1), 0);
    assert_int_equal(psd_leave(h.c, 10000), 0);
    assert_says(psd_push(h.c, 1, 8, 0, &h.section, 1), -EINVAL, "has left");
    close_all(&h);
}

/* The first server of the list is away. */
static void test_any_server_of_the_list_will_do(void **state)
{
    struct fake *f =
        fake_start(&(struct fake_plan){ .n_shards = 1, .admin = "{\"number\":7}" });
    char address[32], url[128], why[PSD_WHY_MAX];
    uint64_t number = 0;
    psd *c;

    (void)state;
    fake_address(f, address);
    snprintf(url, sizeof url, "psd://127.0.0.1:1,%s/j", address);
    if (psd_open(&c, url, NULL, why))
        fail_msg("%s", why);
    if (psd_checkpoint(c, &number, 1, 10000) != 1)
        fail_msg("%s", psd_error());
    assert_int_equal(number, 7);
    assert_int_equal(psd_close(c), 0);
    fake_stop(f);
    fake_free(f);
}

static void test_pulls_end_in_any_order_and_once(void **state)
{
    struct handle h;
    psd_op ops[40];
    static float rows[40][N_KEYS * FAKE_DIM];

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 3, .shuffles_pulls = true });
    for (uint32_t i = 0; i < 40; i++) {
        h.section.rows = rows[i];
        ops[i] = start_pull(&h);
        for (uint32_t k = 0; k < i; k++)
            assert_true(ops[k] != ops[i]);
    }
    for (uint32_t i = 40; i-- > 0;)
        assert_int_equal(psd_wait(h.c, ops[i], 10000), 0);
    for (uint32_t i = 0; i < 40; i++)
        assert_says(psd_wait(h.c, ops[i], 0), -EINVAL, "no pull under way has number");
    assert_true(start_pull(&h) != ops[0]); /* its slot, not its number */
    close_all(&h);
}

static void test_a_descriptor_is_readable_when_a_pull_has_come(void **state)
{
    struct handle h;
    struct pollfd fd = { .events = POLLIN };
    psd_op ops[20], op;
    static float rows[20][N_KEYS * FAKE_DIM];
    uint32_t n = 0;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2, .shuffles_pulls = true });
    fd.fd = psd_fd(h.c);
    assert_true(fd.fd >= 0);
    assert_int_equal(psd_next(h.c), 0);
    assert_int_equal(poll(&fd, 1, 0), 0);
    for (uint32_t i = 0; i < 20; i++) {
        h.section.rows = rows[i];
        ops[i] = start_pull(&h);
    }
    while (n < 20) {
        assert_int_equal(poll(&fd, 1, 10000), 1);
        while ((op = psd_next(h.c)) > 0) {
            assert_int_equal(psd_wait(h.c, op, 0), 0);
            n++;
        }
        assert_int_equal(op, 0);
    }
    assert_int_equal(poll(&fd, 1, 0), 0);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(psd_wait(h.c, ops[i], 0), -EINVAL);
    close_all(&h);
}

static void test_a_cancelled_pull_comes_too(void **state)
{
    struct handle h;
    psd_op op;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 1, .holds_pulls = true });
    assert_true(psd_fd(h.c) >= 0);
    op = start_pull(&h);
    assert_int_equal(psd_next(h.c), 0);
    assert_int_equal(psd_cancel(h.c, op), 0);
    assert_int_equal(psd_next(h.c), op);
    assert_int_equal(psd_next(h.c), 0);
    assert_says(psd_wait(h.c, op, 0), -ECANCELED, "cancelled");
    assert_int_equal(psd_cancel(h.c, op), 0);
    op = start_pull(&h);
    assert_int_equal(psd_cancel(h.c, 0), 0);
    assert_int_equal(psd_wait(h.c, op, -1), -ECANCELED);
    close_all(&h);
}

static void test_a_table_has_one_number(void **state)
{
    psd_table_info info = { .size = sizeof info };
    struct handle h;
    int other;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2 });
    assert_int_equal(psd_table(h.c, "emb", SPEC), h.table);
    assert_int_equal(psd_table(h.c, "j/emb", NULL), h.table);
    other = psd_table(h.c, "other/emb", SPEC);
    assert_int_equal(other, h.table + 1);
    assert_says(psd_table(h.c, "emb", "dim=8 optimizer=sgd lr=0.1 init=zero"), PSD_ESPEC,
                "dim is 4");
    assert_int_equal(psd_get_table(h.c, h.table, &info), 0);
    assert_int_equal(info.dim, 4);
    assert_string_equal(info.name, "j/emb");
    assert_string_equal(info.optimizer, "sgd");
    close_all(&h);
}

static void test_structs_of_other_versions_are_understood(void **state)
{
    struct {
        psd_rows known;
        uint64_t later;
    } two[2] = { 0 };
    struct {
        psd_stats known;
        uint64_t later, end;
    } newer = { .known.size = sizeof newer - sizeof newer.end, .later = 5, .end = 6 };
    psd_stats stats = { .size = 2 * sizeof(uint32_t) + 8, .pushes = 77 };
    struct handle h;
    psd_op op;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 1 });
    two[0].known = two[1].known = h.section;
    two[0].known.size = two[1].known.size = sizeof two[0];
    assert_int_equal(psd_pull(h.c, 0, &two[0].known, 1, &op), 0);
    assert_int_equal(psd_wait(h.c, op, 10000), 0);
    two[1].later = 1;
    assert_says(psd_pull(h.c, 0, &two[0].known, 2, &op), -EINVAL,
                "section 1: a member that this version");
    assert_int_equal(psd_get_stats(h.c, &stats),
                     0); /* an older struct, which ends behind `pulls` */
    assert_int_equal(stats.pulls, 1);
    assert_int_equal(stats.pushes, 77);
    assert_int_equal(psd_get_stats(h.c, &newer.known), 0);
    assert_int_equal(newer.known.n_shards, 1);
    assert_int_equal(newer.later, 0);
    assert_int_equal(newer.end, 6);
    close_all(&h);
}

/* ---- misuse ---- */

static void test_each_misuse_is_a_status_with_a_sentence(void **state)
{
    const uint64_t twice[2] = { 5, 5 }, down[2] = { 6, 5 };
    struct handle h;
    psd_rows bad, two[2];
    psd_op op;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2 });
#define REFUSED(member, value, words)                            \
    bad = h.section;                                             \
    bad.member = value;                                          \
    assert_says(psd_pull(h.c, 0, &bad, 1, &op), -EINVAL, words); \
    assert_says(psd_push(h.c, 0, 1, PSD_TICK, &bad, 1), -EINVAL, words)
    REFUSED(table, 7, "no table 7");
    REFUSED(keys, NULL, "no array of keys");
    REFUSED(rows, NULL, "no array of rows");
    REFUSED(size, 0, "its size is 0");
    REFUSED(size, 1u << 31, "its size is");
    REFUSED(codec, 17, "no codec 17");
    REFUSED(n, UINT64_C(1) << 40, "keys; expected at most");
    REFUSED(reserved, 1, "does not know");
#undef REFUSED
    bad = h.section;
    bad.n = 2;
    bad.keys = twice;
    assert_says(psd_pull(h.c, 0, &bad, 1, &op), -EINVAL, "keys must ascend");
    bad.keys = down;
    assert_says(psd_push(h.c, 0, 1, 0, &bad, 1), -EINVAL, "keys must ascend");
    bad = h.section;
    bad.op = 9;
    assert_says(psd_push(h.c, 0, 1, 0, &bad, 1), -EINVAL, "no operation 9");
    bad.op = PSD_GRADIENT;
    bad.topk = 2;
    assert_says(psd_push(h.c, 0, 1, 0, &bad, 1), -EINVAL, "topk is 2");
    two[0] = two[1] = h.section;
    assert_says(psd_push(h.c, 0, 1, 0, two, 2), -EINVAL, "has a section already");
    assert_says(psd_push(h.c, 0, 1, 6, two, 1), -EINVAL, "flags are 0x6");
    assert_says(psd_pull(h.c, 0, NULL, 1, &op), -EINVAL, "without an array");
    assert_says(psd_pull(h.c, 0, two, -1, &op), -EINVAL, "it may have 0 to 256");
    assert_says(psd_pull(h.c, 0, two, 257, &op), -EINVAL, "it may have 0 to 256");
    assert_says(psd_pull(h.c, 0, two, 1, NULL), -EINVAL, "no place");
    assert_says(psd_wait(h.c, 0, 0), -EINVAL, "no pull under way");
    assert_says(psd_wait(h.c, -5, 0), -EINVAL, "no pull under way");
    assert_says(psd_wait(h.c, INT64_MAX, 0), -EINVAL, "no pull under way");
    assert_says(psd_get_table(h.c, 99, NULL), PSD_ENOTABLE, "no table has number 99");
    assert_says(psd_get_table(h.c, 0, NULL), -EINVAL, "no struct");
    assert_says(psd_get_stats(h.c, &(psd_stats){ .size = 0 }), -EINVAL,
                "the struct's size is 0");
    assert_says(psd_notice(h.c, NULL, 10), -EINVAL, "no space");
    assert_says(psd_checkpoint(h.c, NULL, 4, 0), -EINVAL, "no array");
    assert_says(psd_unique(h.c, NULL, 4, NULL, NULL), -EINVAL, "an array is NULL");
    assert_int_equal(psd_wait(h.c, start_pull(&h), 10000), 0); /* and all is well */
    close_all(&h);
}

static void test_no_handle_is_refused(void **state)
{
    psd_op op;

    (void)state;
    assert_says(psd_pull(NULL, 0, NULL, 0, &op), -EINVAL, "no handle");
    assert_int_equal(psd_push(NULL, 0, 1, 0, NULL, 0), -EINVAL);
    assert_int_equal(psd_wait(NULL, 1, 0), -EINVAL);
    assert_int_equal(psd_clock(NULL), -EINVAL);
    assert_int_equal(psd_next(NULL), -EINVAL);
    assert_int_equal(psd_close(NULL), 0);
}

static void test_words_are_checked(void **state)
{
    static const struct {
        const char *url, *options;
        int status;
        const char *words;
    } cases[] = {
        { "http://h:1/j", "", -EINVAL, "is no psd://" },
        { "etcd://h:1/c", "", -EINVAL, "psctl cluster --coord URL shows them" },
        { "psd:///j", "", -EINVAL, "names no server" },
        { "psd://127.0.0.1:1", "", -EINVAL, "names no job" },
        { "psd://127.0.0.1:1/a/b", "", -EINVAL, "0x2f" },
        { "psd://127.0.0.1:1/a b", "", -EINVAL, "0x20" },
        { "psd://127.0.0.1/j", "", -EINVAL, "127.0.0.1" },
        { "psd://h:1/j", "rnak=1", PSD_ESETTING, "did you mean \"rank\"" },
        { "psd://h:1/j", "rank", PSD_ESETTING, "\"rank\" is no NAME=VALUE" },
        { "psd://h:1/j", "rank=3", PSD_ESETTING, "3 of 1 workers" },
        { "psd://h:1/j", "rank=x", PSD_ESETTING, "rank: \"x\"" },
        { "psd://h:1/j", "mode=fast", PSD_ESETTING, "mode: \"fast\"" },
        { "psd://h:1/j", "name=\"a b", PSD_ESETTING, "not closed" },
        { "psd://h:1/j", "name=\"a b\"c", PSD_ESETTING, "behind its quotes" },
        { "psd://h:1/j", "token=a token_file=/b", PSD_ESETTING, "exclude each other" },
        { "psd://h:1/j", "token-file=/nowhere", -ENOENT, "token-file" },
        { "psd://127.0.0.1:1/j", "connect-timeout=200ms", PSD_EDEADLINE, "127.0.0.1:1" },
    };
    psd *c;
    char why[PSD_WHY_MAX];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int status = psd_open(&c, cases[i].url, cases[i].options, why);

        assert_string_equal(why, psd_error());
        if (status != cases[i].status)
            print_message("%s %s: %s\n", cases[i].url, cases[i].options, why);
        assert_says(status, cases[i].status, cases[i].words);
    }
    assert_int_equal(psd_open(NULL, "psd://h:1/j", "", why), -EINVAL);
    assert_int_equal(psd_open(&c, NULL, "", NULL), -EINVAL);
}

static void test_specifications_are_checked(void **state)
{
    static const struct {
        const char *spec;
        int status;
        const char *words;
    } cases[] = {
        { "", PSD_ESPEC, "dim=N is missing" },
        { "dim=0", PSD_ESPEC, "dim=N is missing" },
        { "dim=99999", PSD_ESPEC, "dim is 99999" },
        { "dim=4 lr=-1", PSD_ESETTING, "lr: \"-1\"" },
        { "dim=4 lr=nan", PSD_ESETTING, "lr: \"nan\"" },
        { "dim=4 optimizer=shampoo", PSD_ESETTING, "optimizer: \"shampoo\"" },
        { "dim=4 optimiser=adam", PSD_ESETTING, "did you mean \"optimizer\"" },
        { "floats=10 ttl=5s", PSD_ESPEC, "the table is dense" },
        { "floats=10 row-decay=0.1", PSD_ESPEC, "row_decay is 0.1" },
        { "dim=4 row-decay=1", PSD_ESPEC, "row_decay is 1" },
    };
    struct handle h;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 1 });
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_says(psd_table(h.c, "new", cases[i].spec), cases[i].status, cases[i].words);
    assert_says(psd_table(h.c, "", SPEC), -EINVAL, "no name");
    assert_says(psd_table(h.c, NULL, SPEC), -EINVAL, "no name");
    assert_says(psd_table(h.c, "a b", SPEC), PSD_ESPEC, "0x20");
    close_all(&h);
}

/* ---- waits ---- */

static void test_a_wait_has_its_own_deadline(void **state)
{
    uint64_t began = now_ms();
    struct handle h;
    psd_op op;

    (void)state;
    open_handle(&h,
                &(struct fake_plan){ .n_shards = 2, .holds_pulls = true, .mute_pushes = true },
                "window=65536 push-timeout=100ms pull-timeout=300ms", SPEC);
    op = start_pull(&h);
    assert_int_equal(psd_wait(h.c, op, 0), -ETIMEDOUT);
    assert_says(psd_wait(h.c, op, 50), -ETIMEDOUT, "not within");
    assert_int_equal(psd_push(h.c, 0, 1, PSD_TICK, &h.section, 1), 0);
    assert_int_equal(psd_flush(h.c, 0), -ETIMEDOUT);
    assert_int_equal(psd_flush(h.c, -1), -ETIMEDOUT);
    assert_int_equal(psd_leave(h.c, 50), -ETIMEDOUT);
    assert_says(psd_wait(h.c, op, -1), PSD_EDEADLINE, "has not answered a pull");
    assert_true(now_ms() - began < 10000);
    close_all(&h);
}

static void assert_interrupted(int status, uint64_t began)
{
    assert_says(status, -EINTR, "signal");
    assert_in_range(now_ms() - began, 50, 350);
}

static void test_a_signal_ends_every_wait(void **state)
{
    char url[64];
    struct fake *mute = fake_start(&(struct fake_plan){ .n_shards = 1, .mute = true });
    struct handle h;
    uint64_t began;
    psd_op op;
    psd *c;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2, .holds_pulls = true, .mute_pushes = true });
    op = start_pull(&h);
    began = alarm_soon();
    assert_interrupted(psd_wait(h.c, op, -1), began);
    began = alarm_soon();
    assert_interrupted(psd_wait(h.c, op, 5000), began);
    assert_int_equal(psd_push(h.c, 0, 1, PSD_TICK, &h.section, 1), 0);
    began = alarm_soon();
    assert_interrupted(psd_flush(h.c, -1), began);
    began = alarm_soon();
    assert_interrupted(psd_leave(h.c, -1), began);
    assert_int_equal(psd_cancel(h.c, op), 0);
    assert_int_equal(psd_wait(h.c, op, -1), -ECANCELED);
    close_all(&h);
    url_of(mute, url);
    began = alarm_soon();
    assert_interrupted(psd_open(&c, url, "", NULL), began);
    fake_stop(mute);
    fake_free(mute);
}

struct waiter {
    psd *c;
    psd_op op;
    int status;
};

static void *wait_for_long(void *arg)
{
    struct waiter *w = arg;

    w->status = psd_wait(w->c, w->op, -1);
    return NULL;
}

static void *flush_for_long(void *arg)
{
    struct waiter *w = arg;

    w->status = psd_flush(w->c, -1);
    return NULL;
}

static void test_close_ends_the_waits_of_other_threads(void **state)
{
    struct waiter a, b;
    pthread_t threads[2];
    struct handle h;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2, .holds_pulls = true, .mute_pushes = true });
    a = (struct waiter){ .c = h.c, .op = start_pull(&h) };
    b = (struct waiter){ .c = h.c };
    assert_int_equal(psd_push(h.c, 0, 1, PSD_TICK, &h.section, 1), 0);
    pthread_create(&threads[0], NULL, wait_for_long, &a);
    pthread_create(&threads[1], NULL, flush_for_long, &b);
    while (psd_wait(h.c, a.op, 0) != -EBUSY) /* until the other one waits */
        usleep(1000);
    usleep(20000);
    close_all(&h);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    assert_int_equal(a.status, -ECANCELED);
    assert_int_equal(b.status, -ECANCELED);
}

static void test_waits_end_before_the_handle_is_freed(void **state)
{
    struct waiter a;
    pthread_t thread;
    struct handle h;
    psd_op op;

    (void)state;
    assert_says(psd_end_waits(NULL), -EINVAL, "NULL");
    open_on(&h, &(struct fake_plan){ .n_shards = 2, .holds_pulls = true });
    a = (struct waiter){ .c = h.c, .op = start_pull(&h) };
    pthread_create(&thread, NULL, wait_for_long, &a);
    while (psd_wait(h.c, a.op, 0) != -EBUSY) /* until the other one waits */
        usleep(1000);
    assert_int_equal(psd_end_waits(h.c), 0);
    pthread_join(thread, NULL);
    assert_int_equal(a.status, -ECANCELED);
    assert_says(psd_pull(h.c, 0, &h.section, 1, &op), -ECANCELED, "closed");
    assert_says(psd_flush(h.c, -1), -ECANCELED, "closed");
    assert_int_equal(psd_end_waits(h.c), 0);
    close_all(&h);
}

/* ---- processes ---- */

static bool is_refused_in_child(struct handle *h, psd_op op)
{
    psd_stats stats = { .size = sizeof stats };
    psd_op other;
    char text[8];

    return psd_wait(h->c, op, -1) == -ECHILD && psd_flush(h->c, -1) == -ECHILD &&
           psd_pull(h->c, 0, &h->section, 1, &other) == -ECHILD &&
           psd_push(h->c, 0, 1, 0, &h->section, 1) == -ECHILD &&
           psd_table(h->c, "emb", SPEC) == -ECHILD && psd_leave(h->c, -1) == -ECHILD &&
           psd_cancel(h->c, op) == -ECHILD && psd_clock(h->c) == -ECHILD &&
           psd_resume(h->c) == -ECHILD && psd_next(h->c) == -ECHILD &&
           psd_fd(h->c) == -ECHILD && psd_get_stats(h->c, &stats) == -ECHILD &&
           psd_notice(h->c, text, sizeof text) == -ECHILD &&
           psd_checkpoint(h->c, NULL, 0, -1) == -ECHILD &&
           strstr(psd_error(), "fork") != NULL && psd_close(h->c) == -ECHILD;
}

static void test_a_child_is_refused_at_once_and_disturbs_nobody(void **state)
{
    uint64_t began = now_ms();
    struct handle h;
    int ended = -1;
    pid_t child;
    psd_op op;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2 });
    op = start_pull(&h);
    child = fork();
    if (child == 0)
        _exit(is_refused_in_child(&h, op) ? 7 : 8);
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 7);
    assert_true(now_ms() - began < 5000);
    assert_int_equal(psd_wait(h.c, op, 10000), 0);
    assert_int_equal(psd_push(h.c, 0, 1, PSD_TICK, &h.section, 1), 0);
    assert_int_equal(psd_leave(h.c, 10000), 0);
    close_all(&h);
}

static void test_signals_stay_the_programs(void **state)
{
    struct sigaction before, after;
    sigset_t mask_before, mask_after;
    struct handle h;

    (void)state;
    sigaction(SIGPIPE, NULL, &before);
    pthread_sigmask(SIG_SETMASK, NULL, &mask_before);
    open_on(&h, &(struct fake_plan){ .n_shards = 1 });
    fake_stop(h.f); /* the peer is gone: what is written to it must not kill */
    for (uint32_t i = 0; i < 3; i++)
        (void)!psd_push(h.c, i, 1, PSD_TICK, &h.section, 1);
    (void)!psd_flush(h.c, 200);
    psd_close(h.c);
    fake_free(h.f);
    sigaction(SIGPIPE, NULL, &after);
    pthread_sigmask(SIG_SETMASK, NULL, &mask_after);
    assert_true(before.sa_handler == after.sa_handler);
    assert_memory_equal(&mask_before, &mask_after, 8); /* what the kernel fills */
}

static void test_notices_can_be_read(void **state)
{
    char text[512] = "";
    uint64_t until = now_ms() + 20000;
    struct handle h;

    (void)state;
    open_handle(&h, &(struct fake_plan){ .n_shards = 1, .fault_at = 1, .fault_type = 0 }, "",
                SPEC);
    assert_int_equal(psd_notice(h.c, text, sizeof text), 0);
    fake_stop(h.f);
    (void)!psd_push(h.c, 0, 1, PSD_TICK, &h.section, 1);
    while (psd_notice(h.c, text, sizeof text) == 0 && now_ms() < until)
        usleep(5000);
    assert_non_null(strstr(text, "127.0.0.1"));
    psd_close(h.c);
    fake_free(h.f);
}

#ifdef PS_FAULTS

/* ---- memory ---- */

static int use_all(const char *url)
{
    uint64_t ids[3] = { 9, 2, 9 }, unique[3];
    float rows[2 * 4] = { 0 };
    psd_op op = 0;
    psd *c;
    int status = psd_open(&c, url, "", NULL), table = -1;

    if (status)
        return status;
    if (psd_unique(c, ids, 3, unique, NULL) == 2)
        table = psd_table(c, "emb", SPEC);
    if (table >= 0) {
        psd_rows r = {
            .size = sizeof r, .table = (uint32_t)table, .n = 2, .keys = unique, .rows = rows
        };

        status = psd_pull(c, 0, &r, 1, &op);
        if (!status)
            status = psd_wait(c, op, 10000);
        if (!status)
            status = psd_push(c, 0, 1, PSD_TICK, &r, 1);
        if (!status)
            status = psd_leave(c, 10000);
    } else {
        status = -ENOMEM;
    }
    psd_close(c);
    return status;
}

static void test_each_allocation_may_fail(void **state)
{
    struct fake *f = fake_start(&(struct fake_plan){ .n_shards = 2 });
    int status = -ENOMEM;
    char url[64];

    (void)state;
    url_of(f, url);
    for (long k = 0; status; k++) {
        memory_fail_after(k);
        status = use_all(url);
        memory_fail_after(-1);
        if (status && status != -ENOMEM)
            fail_msg("allocation %ld fails: %d, %s", k, status, psd_error());
        assert_true(k < 1000);
    }
    fake_stop(f);
    fake_free(f);
}

#endif

/* ---- keys ---- */

static void test_keys_of_batches_are_those_of_tokens(void **state)
{
    const int64_t offsets[] = { 0, 1, 1, 4 }, down[] = { 0, 2, 1, 4 },
                  numbers[] = { -7, 0, INT64_MIN };
    uint64_t seed = psd_seed("item"), got[3];

    (void)state;
    assert_int_equal(psd_keys(seed, "abcd", offsets, 3, got), 0);
    assert_int_equal(got[0], psd_key(seed, "a", 1));
    assert_int_equal(got[1], psd_key(seed, "", 0));
    assert_int_equal(got[2], psd_key(seed, "bcd", 3));
    assert_true(psd_key(seed, "a", 1) != psd_key(psd_seed("user"), "a", 1));
    assert_says(psd_keys(seed, "abcd", down, 3, got), -EINVAL, "do not ascend");
    assert_int_equal(psd_keys_int64(seed, numbers, 3, got), 0);
    assert_int_equal(got[0], psd_key(seed, "-7", 2));
    assert_int_equal(got[1], psd_key(seed, "0", 1));
    assert_int_equal(got[2], psd_key(seed, "-9223372036854775808", 20));
    assert_int_equal(psd_keys(seed, NULL, NULL, 0, NULL), 0);
}

static void test_different_keys_ascend(void **state)
{
    const uint64_t ids[] = { 7, 3, 7, UINT64_MAX, 3 };
    uint64_t unique[5];
    int64_t inverse[5];

    (void)state;
    assert_int_equal(psd_unique(NULL, ids, 5, unique, inverse), 3);
    assert_int_equal(unique[0], 3);
    assert_int_equal(unique[2], UINT64_MAX);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(unique[inverse[i]], ids[i]);
}

static void test_statuses_are_psds(void **state)
{
    (void)state;
    assert_int_equal(PSD_EFENCED, PS_EFENCED);
    assert_int_equal(PSD_ENOTFILE, PS_ENOTFILE);
    assert_int_equal(PSD_EPROTO, PS_EPROTO);
    assert_int_equal(PSD_ESPEC, PS_ESPEC);
    assert_int_equal(PSD_TOPK, CODEC_TOPK);
    assert_int_equal(PSD_INT8, CODEC_INT8);
    assert_int_equal(PSD_ASSIGN, SECTION_ASSIGN);
    for (int status = -10040; status < 10; status++)
        assert_true(psd_strerror(status)[0] != '\0');
    assert_string_equal(psd_version(), PS_VERSION);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_that_are_pushed_are_pulled),
        cmocka_unit_test(test_any_server_of_the_list_will_do),
        cmocka_unit_test(test_pulls_end_in_any_order_and_once),
        cmocka_unit_test(test_a_descriptor_is_readable_when_a_pull_has_come),
        cmocka_unit_test(test_a_cancelled_pull_comes_too),
        cmocka_unit_test(test_a_table_has_one_number),
        cmocka_unit_test(test_structs_of_other_versions_are_understood),
        cmocka_unit_test(test_each_misuse_is_a_status_with_a_sentence),
        cmocka_unit_test(test_no_handle_is_refused),
        cmocka_unit_test(test_words_are_checked),
        cmocka_unit_test(test_specifications_are_checked),
        cmocka_unit_test(test_a_wait_has_its_own_deadline),
        cmocka_unit_test(test_a_signal_ends_every_wait),
        cmocka_unit_test(test_close_ends_the_waits_of_other_threads),
        cmocka_unit_test(test_waits_end_before_the_handle_is_freed),
        cmocka_unit_test(test_a_child_is_refused_at_once_and_disturbs_nobody),
        cmocka_unit_test(test_signals_stay_the_programs),
        cmocka_unit_test(test_notices_can_be_read),
#ifdef PS_FAULTS
        cmocka_unit_test(test_each_allocation_may_fail),
#endif
        cmocka_unit_test(test_keys_of_batches_are_those_of_tokens),
        cmocka_unit_test(test_different_keys_ascend),
        cmocka_unit_test(test_statuses_are_psds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

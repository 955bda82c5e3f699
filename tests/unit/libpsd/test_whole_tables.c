/* Whole tables through libpsd, on a node that the test controls: rows that are set, scans, drops, and what is there. */
#include <math.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/memory.h"
#include "libpsd_fixture.h"

#define ADAM "dim=4 optimizer=adam lr=0.1 init=zero"
#define MANY 800000u /* keys, of which a slice has less than half */

static void open_on(struct handle *h, const struct fake_plan *plan, const char *options)
{
    struct fake_plan newer = *plan;

    newer.features = MESSAGE_FEATURE_WHOLE_TABLES;
    open_handle(h, &newer, options, ADAM);
    for (uint32_t i = 0; i < N_KEYS * FAKE_DIM; i++)
        h->rows[i] = (float)i + 0.25f;
    for (uint32_t i = 0; i < N_KEYS * N_STATE; i++)
        h->state[i] = (float)i + 1000;
}

static psd_scan start_scan(const struct handle *h, int flags)
{
    psd_scan scan = psd_scan_start(h->c, h->table, flags);

    if (scan <= 0)
        fail_msg("%s", psd_error());
    return scan;
}

/* ---- what works ---- */

static void assign_all(struct handle *h)
{
    h->section.state = h->state;
    h->section.steps = 17;
    assert_int_equal(psd_assign(h->c, &h->section), N_KEYS);
    assert_int_equal(psd_flush(h->c, 10000), 0);
}

/* The number of a row among those that were assigned. */
static uint32_t number_of(uint64_t key)
{
    uint32_t i = 0;

    while (i < N_KEYS && keys[i] != key)
        i++;
    assert_true(i < N_KEYS);
    return i;
}

/* All rows, each once, bit by bit. */
static void check_scan(struct handle *h, int flags)
{
    psd_rows got = { .size = sizeof got };
    const psd_scan scan = start_scan(h, flags);
    uint32_t n_came[N_KEYS] = { 0 };
    int64_t n;

    while ((n = psd_scan_next(h->c, scan, &got, 10000)) > 0) {
        assert_true(got.n == (uint64_t)n && got.table == (uint32_t)h->table);
        assert_true((got.state != NULL) == (flags == PSD_STATE));
        for (uint32_t i = 0; i < got.n; i++) {
            const uint32_t at = number_of(got.keys[i]);

            n_came[at]++;
            assert_memory_equal(got.rows + i * FAKE_DIM, h->rows + at * FAKE_DIM,
                                FAKE_DIM * sizeof(float));
            if (flags)
                assert_memory_equal(got.state + i * N_STATE, h->state + at * N_STATE,
                                    N_STATE * sizeof(float));
        }
    }
    if (n)
        fail_msg("%s", psd_error());
    assert_int_equal(got.steps, flags ? 17 : 0);
    for (uint32_t i = 0; i < N_KEYS; i++)
        assert_int_equal(n_came[i], 1);
    assert_int_equal(psd_scan_next(h->c, scan, &got, 0), 0); /* and so it stays */
    assert_int_equal(psd_scan_end(h->c, scan), 0);
    assert_says(psd_scan_next(h->c, scan, &got, 0), -EINVAL, "no scan has number");
}

static void test_what_is_assigned_is_scanned(void **state)
{
    psd_table_info info = { .size = sizeof info };
    psd_rows none = { .size = sizeof none };
    struct handle h;
    psd_scan empty;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 3, .scans = 2 }, "");
    assert_int_equal(psd_get_table(h.c, h.table, &info), 0);
    assert_int_equal(info.n_state, N_STATE);
    empty = start_scan(&h, PSD_STATE);
    assert_int_equal(psd_scan_next(h.c, empty, &none, 10000), 0);
    assign_all(&h);
    check_scan(&h, PSD_STATE);
    check_scan(&h, 0);
    assert_int_equal(psd_clock(h.c), 0); /* it was no step */
    none.table = (uint32_t)h.table;
    assert_int_equal(psd_assign(h.c, &none), 0); /* no rows */
    close_all(&h);                               /* with a scan that has not ended */
}

static void test_steps_are_assigned_where_there_is_no_state(void **state)
{
    struct handle h;
    int sgd;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2, .scans = 5 }, "");
    sgd = psd_table(h.c, "sgd", "dim=4 optimizer=sgd");
    h.section.table = (uint32_t)sgd;
    h.section.steps = 99;
    assert_int_equal(psd_assign(h.c, &h.section), N_KEYS);
    assert_int_equal(psd_flush(h.c, 10000), 0);
    h.section.table = (uint32_t)h.table;
    assert_says(psd_assign(h.c, &h.section), -EINVAL, "no array of its state");
    psd_close(h.c);
    fake_stop(h.f);
    assert_int_equal(h.f->shards[0].steps, 99);
    fake_free(h.f);
}

static void test_a_pull_says_which_keys_have_a_row(void **state)
{
    uint8_t present[2] = { 0xff, 0xff };
    struct handle h;
    psd_op op;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 3 }, "");
    h.section.n = 5;
    assert_int_equal(psd_assign(h.c, &h.section), 5);
    assert_int_equal(psd_flush(h.c, 10000), 0);
    h.keys[0] = keys[0];
    h.keys[1] = keys[4];
    h.keys[2] = 2000;
    h.section.n = 3;
    h.section.present = present;
    assert_int_equal(psd_pull(h.c, 0, &h.section, 1, &op), 0);
    assert_int_equal(psd_wait(h.c, op, 10000), 0);
    assert_int_equal(present[0], 3);
    assert_int_equal(present[1], 0xff);
    assert_says(psd_push(h.c, 0, 1, 0, &h.section, 1), -EINVAL, "present is for pulls");
    assert_says(psd_assign(h.c, &h.section), -EINVAL, "present is for pulls");
    close_all(&h);
}

static void test_a_scan_goes_on_over_lost_connections(void **state)
{
    (void)state;
    for (long k = 0; k < 6; k++) {
        struct fake_plan plan = { .n_shards = 2,
                                  .scans = 3,
                                  .fault_at = k,
                                  .fault_type = FRAME_PULL,
                                  .fault = k % 2 ? FAKE_DROP_BEFORE : FAKE_DROP_AFTER };
        struct handle h;

        open_on(&h, &plan, "");
        assign_all(&h);
        check_scan(&h, PSD_STATE);
        close_all(&h);
    }
}

static void test_a_pull_of_a_scan_is_no_pull_of_the_caller(void **state)
{
    struct pollfd fd = { .events = POLLIN };
    psd_rows got = { .size = sizeof got };
    struct handle h;
    psd_scan scan;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2, .scans = 2 }, "");
    assign_all(&h);
    fd.fd = psd_fd(h.c);
    (void)psd_next(h.c);
    scan = start_scan(&h, 0);
    while (psd_scan_next(h.c, scan, &got, 0) == -ETIMEDOUT) {
        assert_int_equal(psd_next(h.c), 0);
        assert_int_equal(poll(&fd, 1, 0), 0);
    }
    assert_true(got.n > 0);
    close_all(&h);
}

/* ---- misuse ---- */

static void test_each_misuse_is_a_status_with_a_sentence(void **state)
{
    psd_rows got = { .size = sizeof got };
    struct handle h;
    psd_op op;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2, .scans = 2 }, "");
#define REFUSED(member, value, status, words)              \
    do {                                                   \
        psd_rows bad = h.section;                          \
        bad.member = value;                                \
        assert_says(psd_assign(h.c, &bad), status, words); \
    } while (0)
    REFUSED(table, 7, -EINVAL, "no table 7");
    REFUSED(keys, NULL, -EINVAL, "no array of keys");
    REFUSED(rows, NULL, -EINVAL, "no array of weights");
    REFUSED(size, 3, -EINVAL, "its size is 3");
    REFUSED(n, UINT64_C(1) << 40, -EINVAL, "expected at most");
    REFUSED(reserved, 1, -EINVAL, "does not know");
    h.keys[3] = h.keys[2];
    REFUSED(op, 0, -EINVAL, "keys must ascend");
    h.keys[3] = keys[3];
    h.rows[2 * FAKE_DIM + 1] = NAN;
    REFUSED(op, 0, PSD_ENAN, "the row of key 3 has NaN or infinity");
    h.rows[2 * FAKE_DIM + 1] = 0;
    h.state[5 * N_STATE + 7] = INFINITY;
    REFUSED(state, h.state, PSD_ENAN, "the row of key 13 has NaN or infinity in its state");
    assert_says(psd_assign(h.c, NULL), -EINVAL, "has no rows");
    h.section.steps = 1;
    assert_says(psd_push(h.c, 0, 1, 0, &h.section, 1), -EINVAL, "are for psd_assign()");
    assert_says(psd_pull(h.c, 0, &h.section, 1, &op), -EINVAL, "are not pulled");
    h.section.steps = 0;
    h.section.op = 2; /* the engine's number of rows with state */
    assert_says(psd_push(h.c, 0, 1, 0, &h.section, 1), -EINVAL, "no operation 2");
    assert_says(psd_scan_start(h.c, 7, 0), -EINVAL, "no table 7");
    assert_says(psd_scan_start(h.c, -1, 0), -EINVAL, "no table has number -1");
    assert_says(psd_scan_start(h.c, 0, 6), -EINVAL, "flags are 0x6");
    assert_says(psd_scan_next(h.c, 0, &got, 0), -EINVAL, "no scan has number 0");
    assert_says(psd_scan_next(h.c, -1, &got, 0), -EINVAL, "no scan has number -1");
    assert_says(psd_scan_next(h.c, INT64_MAX, &got, 0), -EINVAL, "no scan has number");
    assert_says(psd_scan_next(h.c, 256, NULL, 0), -EINVAL, "no struct");
    assert_says(psd_scan_end(h.c, 77), -EINVAL, "no scan has number 77");
    assert_says(psd_drop(h.c, NULL, NULL, 0), -EINVAL, "has no name");
    assert_says(psd_drop(h.c, "", NULL, 0), -EINVAL, "has no name");
    assert_says(psd_drop(h.c, "x", &(psd_dropped){ .size = 1 }, 0), -EINVAL, "size is 1");
    assert_says(psd_assign(NULL, &h.section), -EINVAL, "no handle");
    assert_int_equal(psd_scan_start(NULL, 0, 0), -EINVAL);
    assert_int_equal(psd_scan_next(NULL, 1, &got, 0), -EINVAL);
    assert_int_equal(psd_scan_end(NULL, 1), -EINVAL);
    assert_int_equal(psd_drop(NULL, "x", NULL, 0), -EINVAL);
    h.section.op = 0;
    h.state[5 * N_STATE + 7] = 0;
    assign_all(&h); /* and all is well */
    check_scan(&h, PSD_STATE);
    close_all(&h);
}

static void test_scans_have_numbers_of_their_own(void **state)
{
    psd_rows got = { .size = sizeof got };
    psd_scan scans[PSD_SCANS_MAX], again;
    struct handle h;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2, .scans = 2 }, "");
    for (uint32_t i = 0; i < PSD_SCANS_MAX; i++)
        scans[i] = start_scan(&h, 0);
    assert_says(psd_scan_start(h.c, 0, 0), -ENOSPC, "64 scans have not ended");
    assert_int_equal(psd_scan_end(h.c, scans[9]), 0);
    again = start_scan(&h, 0);
    assert_true(again != scans[9]);
    assert_int_equal(psd_scan_next(h.c, scans[9], &got, 0), -EINVAL);
    assert_int_equal(psd_scan_next(h.c, again, &got, 10000), 0);
    close_all(&h);
}

static void test_a_reader_assigns_nothing(void **state)
{
    struct handle h;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2, .scans = 2 }, "reader=yes");
    assert_says(psd_assign(h.c, &h.section), -EINVAL, "a reader does not push");
    close_all(&h);
}

static void test_an_older_psd_says_so(void **state)
{
    struct fake *f = fake_start(&(struct fake_plan){ .n_shards = 2 });
    psd_rows got = { .size = sizeof got };
    char url[64], why[PSD_WHY_MAX];
    psd_scan scan;
    psd *c;

    (void)state;
    url_of(f, url);
    assert_int_equal(psd_open(&c, url, "", why), 0);
    assert_int_equal(psd_table(c, "emb", ADAM), 0);
    scan = psd_scan_start(c, 0, 0);
    assert_true(scan > 0);
    assert_says(psd_scan_next(c, scan, &got, 10000), PSD_EVERSION, "older version");
    psd_close(c);
    fake_stop(f);
    fake_free(f);
}

/* ---- waits ---- */

static void test_a_scan_has_a_deadline_in_each_call(void **state)
{
    psd_rows got = { .size = sizeof got };
    struct handle h;
    uint64_t began;
    psd_scan scan;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2, .scans = 2, .holds_pulls = true },
            "pull-timeout=300ms");
    scan = start_scan(&h, PSD_STATE);
    assert_int_equal(psd_scan_next(h.c, scan, &got, 0), -ETIMEDOUT);
    began = now_ms();
    assert_says(psd_scan_next(h.c, scan, &got, 50), -ETIMEDOUT, "not within");
    assert_in_range(now_ms() - began, 45, 2000);
    began = alarm_soon();
    assert_says(psd_scan_next(h.c, scan, &got, 5000), -EINTR, "signal");
    assert_in_range(now_ms() - began, 50, 350);
    assert_says(psd_scan_next(h.c, scan, &got, -1), PSD_EDEADLINE, "has not answered a pull");
    assert_int_equal(psd_scan_next(h.c, scan, &got, 0), -ETIMEDOUT); /* it is asked again */
    assert_int_equal(psd_cancel(h.c, 0), 0);
    assert_says(psd_scan_next(h.c, scan, &got, -1), -ECANCELED, "cancelled");
    assert_int_equal(psd_scan_next(h.c, scan, &got, 0), -ETIMEDOUT);
    assert_int_equal(psd_scan_end(h.c, scan), 0); /* with a pull under way */
    scan = start_scan(&h, 0);
    assert_int_equal(psd_scan_next(h.c, scan, &got, 0), -ETIMEDOUT);
    close_all(&h);
}

static void test_an_assignment_that_was_ended_says_how_far_it_came(void **state)
{
    uint64_t *many = memory_alloc(MANY * sizeof *many), began;
    float *rows = memory_alloc(MANY * FAKE_DIM * sizeof *rows);
    int64_t n_first;
    struct handle h;

    (void)state;
    for (uint32_t i = 0; i < MANY; i++)
        many[i] = i;
    open_on(&h, &(struct fake_plan){ .n_shards = 2, .mute_pushes = true, .counts_rows = true },
            "window=64K push-timeout=300ms");
    h.section.keys = many;
    h.section.rows = rows;
    h.section.n = MANY;
    began = alarm_soon();
    n_first = psd_assign(h.c, &h.section);
    assert_true(n_first > 0 && n_first < MANY / 2);
    assert_in_range(now_ms() - began, 50, 2000);
    h.section.n -= (uint64_t)n_first;
    assert_says(psd_assign(h.c, &h.section), PSD_EDEADLINE, "waited");
    assert_true(now_ms() - began < 5000);
    psd_close(h.c);
    fake_stop(h.f);
    assert_int_equal(h.f->shards[0].n_rows_pushed + h.f->shards[1].n_rows_pushed, n_first);
    fake_free(h.f);
    free(rows);
    free(many);
}

static void test_many_rows_are_several_pushes(void **state)
{
    uint64_t *many = memory_alloc(MANY * sizeof *many);
    float *rows = memory_alloc(MANY * FAKE_DIM * sizeof *rows);
    psd_stats stats = { .size = sizeof stats };
    struct handle h;

    (void)state;
    for (uint32_t i = 0; i < MANY; i++)
        many[i] = 3 * (uint64_t)i;
    open_on(&h, &(struct fake_plan){ .n_shards = 2, .counts_rows = true }, "");
    h.section.keys = many;
    h.section.rows = rows;
    h.section.n = MANY;
    assert_int_equal(psd_assign(h.c, &h.section), MANY);
    assert_int_equal(psd_flush(h.c, -1), 0);
    assert_int_equal(psd_get_stats(h.c, &stats), 0);
    assert_true(stats.pushes > 2 && stats.rows_pushed == MANY);
    psd_close(h.c);
    fake_stop(h.f);
    assert_int_equal(h.f->shards[0].n_rows_pushed + h.f->shards[1].n_rows_pushed, MANY);
    fake_free(h.f);
    free(rows);
    free(many);
}

struct waiter {
    psd *c;
    psd_scan scan;
    int64_t result;
};

static void *scan_for_long(void *arg)
{
    psd_rows got = { .size = sizeof got };
    struct waiter *w = arg;

    do /* the other one looks, too */
        w->result = psd_scan_next(w->c, w->scan, &got, -1);
    while (w->result == -EBUSY);
    return NULL;
}

static void test_a_scan_is_one_threads_and_close_ends_its_wait(void **state)
{
    psd_rows got = { .size = sizeof got };
    struct handle h;
    struct waiter w;
    pthread_t thread;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2, .scans = 2, .holds_pulls = true }, "");
    w = (struct waiter){ .c = h.c, .scan = start_scan(&h, 0) };
    pthread_create(&thread, NULL, scan_for_long, &w);
    while (psd_scan_next(h.c, w.scan, &got, 0) != -EBUSY)
        usleep(1000);
    assert_says(psd_scan_end(h.c, w.scan), -EBUSY, "another thread");
    close_all(&h);
    pthread_join(thread, NULL);
    assert_int_equal(w.result, -ECANCELED);
}

static void test_a_child_is_refused(void **state)
{
    psd_rows got = { .size = sizeof got };
    struct handle h;
    int ended = -1;
    psd_scan scan;
    pid_t child;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2, .scans = 2 }, "");
    assign_all(&h);
    scan = start_scan(&h, PSD_STATE);
    (void)!psd_scan_next(h.c, scan, &got, 0); /* its pull is under way */
    child = fork();
    if (child == 0)
        _exit(psd_assign(h.c, &h.section) == -ECHILD && psd_scan_start(h.c, 0, 0) == -ECHILD &&
                      psd_scan_next(h.c, scan, &got, -1) == -ECHILD &&
                      psd_scan_end(h.c, scan) == -ECHILD &&
                      psd_drop(h.c, "j", NULL, -1) == -ECHILD
                  ? 7
                  : 8);
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 7);
    assert_true(psd_scan_next(h.c, scan, &got, 10000) > 0);
    close_all(&h);
}

/* ---- drops ---- */

static void test_dropped_tables_get_new_numbers(void **state)
{
    psd_dropped dropped = { .size = sizeof dropped };
    struct handle h;

    (void)state;
    open_on(&h,
            &(struct fake_plan){ .n_shards = 2,
                                 .admin = "{\"tables\":3,\"rows\":40,\"bytes\":500}" },
            "");
    assert_int_equal(psd_drop(h.c, "k", &dropped, 10000), 0);
    assert_int_equal(dropped.tables, 3);
    assert_int_equal(dropped.rows, 40);
    assert_int_equal(dropped.bytes, 500);
    assert_int_equal(psd_table(h.c, "emb", ADAM), h.table); /* of another job */
    assert_int_equal(psd_leave(h.c, 10000), 0);
    assert_int_equal(psd_drop(h.c, "j/em", NULL, -1), 0);
    assert_int_equal(psd_table(h.c, "emb", ADAM), h.table);
    assert_int_equal(psd_drop(h.c, "j/emb", NULL, -1), 0);
    assert_says(psd_table(h.c, "emb", ADAM), -EINVAL, "has left"); /* so it asks the servers */
    close_all(&h);
}

static void test_answers_to_a_drop_may_be_wrong_or_missing(void **state)
{
    struct handle h;
    uint64_t began;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 1, .admin = "{\"tables\":3}" }, "");
    assert_says(psd_drop(h.c, "k", NULL, 10000), PSD_EPROTO, "its answer has no \"rows\":");
    close_all(&h);
    open_on(&h, &(struct fake_plan){ .n_shards = 1 }, "");
    fake_stop(h.f); /* nobody is there any more */
    began = now_ms();
    assert_true(psd_drop(h.c, "k", NULL, 5000) < 0 && psd_error()[0]);
    assert_true(now_ms() - began < 10000);
    psd_close(h.c);
    fake_free(h.f);
}

static void test_the_next_server_is_asked_where_the_first_is_gone(void **state)
{
    struct fake *f = fake_start(
        &(struct fake_plan){ .n_shards = 1, .admin = "{\"tables\":1,\"rows\":2,\"bytes\":3}" });
    psd_dropped dropped = { .size = sizeof dropped };
    char url[100];
    psd *c;

    (void)state;
    snprintf(url, sizeof url, "psd://127.0.0.1:1,127.0.0.1:%d/j", f->port);
    assert_int_equal(psd_open(&c, url, "", NULL), 0);
    assert_int_equal(psd_drop(c, "k", &dropped, 10000), 0);
    assert_int_equal(dropped.rows, 2);
    psd_close(c);
    fake_stop(f);
    fake_free(f);
}

#ifdef PS_FAULTS

/* ---- memory ---- */

static int use_all(struct handle *h)
{
    psd_rows got = { .size = sizeof got };
    int64_t n = psd_assign(h->c, &h->section), status = 0;
    psd_scan scan;

    if (n != N_KEYS)
        return (int)n;
    scan = psd_scan_start(h->c, h->table, PSD_STATE);
    if (scan < 0)
        return (int)scan;
    do
        status = psd_scan_next(h->c, scan, &got, 10000);
    while (status > 0);
    n = psd_scan_end(h->c, scan);
    if (!status)
        status = psd_drop(h->c, "k", NULL, 10000);
    return (int)(status ? status : n);
}

static void test_each_allocation_may_fail(void **state)
{
    int status = -ENOMEM;
    struct handle h;

    (void)state;
    open_on(&h,
            &(struct fake_plan){ .n_shards = 2,
                                 .scans = 3,
                                 .admin = "{\"tables\":3,\"rows\":40,\"bytes\":500}" },
            "");
    h.section.state = h.state;
    for (long k = 0; status; k++) {
        memory_fail_after(k);
        status = use_all(&h);
        memory_fail_after(-1);
        if (status && status != -ENOMEM)
            fail_msg("allocation %ld fails: %d, %s", k, status, psd_error());
        assert_true(k < 1000);
    }
    h.section.steps = 17;
    assign_all(&h);
    check_scan(&h, PSD_STATE);
    close_all(&h);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_assigned_is_scanned),
        cmocka_unit_test(test_steps_are_assigned_where_there_is_no_state),
        cmocka_unit_test(test_a_pull_says_which_keys_have_a_row),
        cmocka_unit_test(test_a_scan_goes_on_over_lost_connections),
        cmocka_unit_test(test_a_pull_of_a_scan_is_no_pull_of_the_caller),
        cmocka_unit_test(test_each_misuse_is_a_status_with_a_sentence),
        cmocka_unit_test(test_scans_have_numbers_of_their_own),
        cmocka_unit_test(test_a_reader_assigns_nothing),
        cmocka_unit_test(test_an_older_psd_says_so),
        cmocka_unit_test(test_a_scan_has_a_deadline_in_each_call),
        cmocka_unit_test(test_an_assignment_that_was_ended_says_how_far_it_came),
        cmocka_unit_test(test_many_rows_are_several_pushes),
        cmocka_unit_test(test_a_scan_is_one_threads_and_close_ends_its_wait),
        cmocka_unit_test(test_a_child_is_refused),
        cmocka_unit_test(test_dropped_tables_get_new_numbers),
        cmocka_unit_test(test_answers_to_a_drop_may_be_wrong_or_missing),
        cmocka_unit_test(test_the_next_server_is_asked_where_the_first_is_gone),
#ifdef PS_FAULTS
        cmocka_unit_test(test_each_allocation_may_fail),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The writer by itself: buffers on their way, faults that stay, what it refuses; and with a thread that writes. */
#include <pthread.h>

#include "common/memory.h"
#include "tests/unit/recovery/save_fixture.h"

#define PATH DATA_DIR "/checkpoints/00000000000000000001/shard-000.psc"

/* 20 pushes of 5,000 keys, 80 bytes each row: 8 buffers. */
static void fill_bed(struct bed *b)
{
    for (uint64_t i = 0; i < 20; i++)
        bed_push(b, i * N_KEYS, N_KEYS);
}

static struct shard_file_writer *begin(struct bed *b)
{
    struct shard_file_writer_config config;
    struct shard_file_writer *s;
    struct err err;

    assert_int_equal(bed_next(b, 0, &err), 0);
    config = bed_config(b);
    enter_shard();
    assert_int_equal(shard_file_writer_begin(&config, b->s, b->first, &s, &err), 0);
    return s;
}

static void one_buffer_is_filled_while_the_other_is_written(void **state)
{
    struct bed b;
    struct shard_file_writer_buffer *out, *next;
    enum shard_file_writer_state how = SHARD_FILE_WRITER_MORE;
    struct shard_file_writer_facts facts;
    struct shard_file_writer *s;
    struct err err;
    uint32_t n = 0;

    (void)state;
    bed_init(&b);
    fill_bed(&b);
    s = begin(&b);
    assert_null(shard_file_writer_next(s));
    while ((out = shard_file_writer_next(s)) == NULL)
        how = shard_file_writer_fill(s, b.s);
    assert_int_equal(how, SHARD_FILE_WRITER_MORE);
    while (how == SHARD_FILE_WRITER_MORE)
        how = shard_file_writer_fill(s, b.s);
    assert_int_equal(how, SHARD_FILE_WRITER_FULL);
    assert_null(shard_file_writer_next(s)); /* one at a time */
    shard_file_writer_facts(s, &facts);
    assert_int_equal(shard_file_writer_fill(s, b.s), SHARD_FILE_WRITER_FULL);
    assert_int_equal(facts.n_bytes, 0);
    assert_in_range(facts.n_seen, 1, facts.n_numbers - 1);
    assert_int_equal(shard_file_writer_write(s, out, &err), 0);
    shard_file_writer_recycle(s, out);
    while (!shard_file_writer_is_written(s)) {
        (void)shard_file_writer_fill(s, b.s);
        next = shard_file_writer_next(s);
        if (!next)
            continue;
        n++;
        assert_int_equal(shard_file_writer_write(s, next, &err), 0);
        shard_file_writer_recycle(s, next);
    }
    assert_in_range(n, 7, 9);
    assert_int_equal(shard_file_writer_fill(s, b.s), SHARD_FILE_WRITER_READ);
    assert_null(shard_file_writer_next(s));
    assert_int_equal(shard_file_writer_close(s, b.first + 3, &b.m->files[0], &err), 0);
    shard_file_writer_facts(s, &facts);
    assert_int_equal(facts.n_seen, facts.n_numbers);
    assert_int_equal(checkpoint_commit(&b.c.ops, DATA_DIR, b.m, 1, b.firsts, &err), 0);
    shard_file_writer_end(s, b.s, SNAPSHOT_SCAN_KEPT);
    assert_int_equal(b.m->files[0].n_rows, 20 * N_KEYS);
    assert_int_equal(b.m->files[0].first, b.first);
    assert_int_equal(b.m->files[0].through, b.first + 3);
    bed_assert_newest(&b, 1);
    bed_deinit(&b);
}

static void a_fault_is_reported_again_by_every_later_call_and_the_file_goes(void **state)
{
    (void)state;
    for (long k = 0; k < 3; k++) { /* create, the head, a buffer */
        struct bed b;
        struct shard_file_writer_buffer *out;
        struct shard_file_writer *s;
        struct err err, again;
        int status = 0;

        bed_init(&b);
        fill_bed(&b);
        s = begin(&b);
        crash_files_heal(&b.c);
        b.c.fail_at = k;
        while (!shard_file_writer_is_written(s)) {
            (void)shard_file_writer_fill(s, b.s);
            out = shard_file_writer_next(s);
            if (!out)
                continue;
            if (status) {
                assert_int_equal(shard_file_writer_write(s, out, &again), status);
                assert_string_equal(again.text, err.text);
            } else {
                status = shard_file_writer_write(s, out, &err);
            }
            shard_file_writer_recycle(s, out);
        }
        assert_int_equal(status, -EIO);
        assert_non_null(strstr(err.text, PATH));
        assert_int_equal(shard_file_writer_close(s, b.first, &b.m->files[0], &again), -EIO);
        assert_string_equal(again.text, err.text);
        assert_false(crash_files_is_there(&b.c, PATH));
        shard_file_writer_end(s, b.s, SNAPSHOT_SCAN_DROPPED);
        assert_false(snapshot_scan_may_be_delta(b.s));
        bed_deinit(&b);
    }
}

static void what_is_given_up_leaves_no_file_at_any_point(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 40; n += 3) {
        struct bed b;
        struct shard_file_writer_buffer *out;
        struct shard_file_writer *s;
        struct err err;

        bed_init(&b);
        fill_bed(&b);
        s = begin(&b);
        for (uint32_t i = 0; i < n && !shard_file_writer_is_written(s); i++) {
            (void)shard_file_writer_fill(s, b.s);
            out = shard_file_writer_next(s);
            if (!out)
                continue;
            assert_int_equal(shard_file_writer_write(s, out, &err), 0);
            shard_file_writer_recycle(s, out);
        }
        shard_file_writer_discard(s);
        assert_false(crash_files_is_there(&b.c, PATH));
        shard_file_writer_end(s, b.s, SNAPSHOT_SCAN_DROPPED);
        bed_save(&b, 0, 1);
        bed_deinit(&b);
    }
}

static void a_delta_without_a_base_is_refused_and_nothing_has_happened(void **state)
{
    struct bed b;
    struct shard_file_writer_config config;
    struct shard_file_writer *s;
    struct err err;
    uint64_t number;

    (void)state;
    bed_init(&b);
    assert_int_equal(bed_next(&b, 0, &err), 0);
    config = bed_config(&b);
    config.base = 1;
    config.number = 2;
    enter_shard();
    assert_int_equal(shard_file_writer_begin(&config, b.s, 0, &s, &err), -EINVAL);
    number = bed_save(&b, 0, 1);
    assert_true(snapshot_scan_may_be_delta(b.s));
    assert_int_equal(bed_save(&b, number, 1), number + 1);
    bed_deinit(&b);
}

static void tables_in_any_number_have_their_chunks(void **state)
{
    struct bed b;

    (void)state;
    bed_init(&b);
    for (uint32_t i = 0; i < 150; i++) { /* more than a buffer has pieces */
        char name[16];
        struct table_spec spec;

        snprintf(name, sizeof name, "t%u", i);
        spec = sparse_spec(name, DIM, TABLE_SPEC_SGD);
        b.table = make_table(b.s, &spec);
        bed_push(&b, i, 2);
    }
    bed_save(&b, 0, 1);
    assert_int_equal(b.m->files[0].n_rows, 300);
    bed_assert_newest(&b, 1);
    bed_deinit(&b);
}

#ifdef PS_FAULTS
static void without_memory_at_any_point_it_does_not_begin_and_all_is_as_it_was(void **state)
{
    struct bed b;
    struct shard_file_writer_config config;
    struct shard_file_writer *s;
    struct err err = { 0 };
    uint64_t base;
    int status = -ENOMEM;

    (void)state;
    bed_init(&b);
    bed_push(&b, 0, 10);
    base = bed_save(&b, 0, 2);
    bed_push(&b, 0, 5);
    assert_int_equal(bed_next(&b, base, &err), 0);
    config = bed_config(&b);
    enter_shard();
    for (long k = 0; status && k < 100; k++) {
        assert_true(snapshot_scan_may_be_delta(b.s));
        memory_fail_after(k);
        status = shard_file_writer_begin(&config, b.s, b.first, &s, &err);
        memory_fail_after(-1);
        assert_true(status == 0 || (status == -ENOMEM && k < 99));
    }
    shard_file_writer_discard(s);
    shard_file_writer_end(s, b.s, SNAPSHOT_SCAN_DROPPED);
    bed_deinit(&b);
}
#endif

/* --- a thread that writes --- */

struct shared {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct shard_file_writer *s;
    struct shard_file_writer_buffer *in, *done;
    bool is_over;
};

static void *write_all(void *arg)
{
    struct shared *d = arg;
    struct err err;

    pthread_mutex_lock(&d->lock);
    while (!d->is_over) {
        struct shard_file_writer_buffer *buffer = d->in;

        if (!buffer) {
            pthread_cond_wait(&d->changed, &d->lock);
            continue;
        }
        d->in = NULL;
        pthread_mutex_unlock(&d->lock);
        assert_int_equal(shard_file_writer_write(d->s, buffer, &err), 0);
        pthread_mutex_lock(&d->lock);
        d->done = buffer;
        pthread_cond_signal(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* One step of the shard's thread: a request, a slice, and what is there to be handed over. */
static void turn(struct shared *d, struct bed *b, uint64_t i)
{
    enum shard_file_writer_state how;
    struct shard_file_writer_buffer *done;

    bed_push(b, i % 50 * 2000, 100);
    how = shard_file_writer_fill(d->s, b->s);
    pthread_mutex_lock(&d->lock);
    while (how == SHARD_FILE_WRITER_FULL && !d->done)
        pthread_cond_wait(&d->changed, &d->lock);
    done = d->done;
    d->done = NULL;
    pthread_mutex_unlock(&d->lock);
    if (done)
        shard_file_writer_recycle(d->s, done);
    done = shard_file_writer_next(d->s);
    if (!done)
        return;
    pthread_mutex_lock(&d->lock);
    d->in = done;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

/* The rows of pushes that came while the file was written are in it; no log is replayed behind them. */
static void assert_resharded_is_not_older_than_its_rows(const struct bed *b,
                                                        const struct checkpoint *found)
{
    struct shard *all = make_shard(0, 1, 0);
    const struct shard_table *t;
    struct loader_facts facts;
    struct err err;

    assert_int_equal(
        loader_reshard(&(struct loader_config){ .files = &b->c.ops, .checkpoint = found }, all,
                       &facts, &err),
        0);
    t = shard_table(all, 0);
    assert_int_not_equal(table_n_rows(t->rows), 0);
    for (uint64_t i = 0; i < table_n_rows(t->rows); i++)
        assert_true(row_version(table_row(t->rows, i)) <= shard_version(all));
    shard_free(all);
}

static void another_thread_writes_while_the_shard_goes_on(void **state)
{
    struct bed b;
    struct event_log *event_log = event_log_new();
    struct shared d = { .lock = PTHREAD_MUTEX_INITIALIZER,
                        .changed = PTHREAD_COND_INITIALIZER };
    struct checkpoint found;
    struct loader_facts facts;
    struct shard *again;
    pthread_t thread;
    struct err err;

    (void)state;
    bed_init(&b);
    fill_bed(&b);
    d.s = begin(&b);
    shard_set_events(b.s, &event_log->sink);
    assert_int_equal(pthread_create(&thread, NULL, write_all, &d), 0);
    for (uint64_t i = 0; !shard_file_writer_is_written(d.s); i++)
        turn(&d, &b, i);
    pthread_mutex_lock(&d.lock);
    d.is_over = true;
    pthread_cond_signal(&d.changed);
    pthread_mutex_unlock(&d.lock);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(shard_file_writer_close(d.s, b.first + event_log->n, &b.m->files[0], &err),
                     0);
    assert_int_equal(checkpoint_commit(&b.c.ops, DATA_DIR, b.m, 1, b.firsts, &err), 0);
    shard_file_writer_end(d.s, b.s, SNAPSHOT_SCAN_KEPT);
    assert_int_equal(checkpoint_find(&b.c.ops, DATA_DIR, 0, &found, NULL, NULL, &err), 0);
    again = make_shard(0, 1, 0);
    assert_int_equal(
        loader_load(&(struct loader_config){ .files = &b.c.ops, .checkpoint = &found }, 0,
                    again, 0, &facts, &err),
        0);
    for (size_t i = 0; i < event_log->n; i++)
        assert_int_equal(shard_replay(again, &event_log->events[i]->e, 0, &err), 0);
    replay_end(again, 0);
    assert_same_shard(b.s, again);
    assert_resharded_is_not_older_than_its_rows(&b, &found);
    checkpoint_close(&found);
    shard_free(again);
    shard_set_events(b.s, NULL);
    event_log_free(event_log);
    bed_deinit(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_buffer_is_filled_while_the_other_is_written),
        cmocka_unit_test(a_fault_is_reported_again_by_every_later_call_and_the_file_goes),
        cmocka_unit_test(what_is_given_up_leaves_no_file_at_any_point),
        cmocka_unit_test(a_delta_without_a_base_is_refused_and_nothing_has_happened),
        cmocka_unit_test(tables_in_any_number_have_their_chunks),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_at_any_point_it_does_not_begin_and_all_is_as_it_was),
#endif
        cmocka_unit_test(another_thread_writes_while_the_shard_goes_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Pushes that outlive their process: what is found is what was kept, or a beginning of it, or nothing. */
#include "worker/client/push_journal.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/memory.h"
#include "tests/support/crash_files.h"
#include "tests/support/seed.h"
#include "tests/support/share.h"

#define DIR "state"
#define N_SHARDS 3u
#define MAP 77u

static const char *const names[] = { "j/emb", "j/top" };

/* The rows of a shard in push `seq`: a function of both. */
static struct request *make_request(uint64_t seq, uint32_t shard)
{
    uint64_t dice = hash_mix2(seq, shard);
    uint32_t n_sections = (uint32_t)(dice % 3);
    struct section sections[2] = { 0 };
    struct request *p = request_new(n_sections);
    struct bytes rows = { 0 };
    size_t n_bytes = 40 * n_sections + dice % 50;
    uint8_t *at = bytes_reserve(&rows, n_bytes + 1);

    for (size_t i = 0; i < n_bytes; i++)
        at[i] = (uint8_t)hash_mix2(dice, i);
    bytes_commit(&rows, n_bytes);
    for (uint32_t i = 0; i < n_sections; i++)
        sections[i] = (struct section){ .table_id = (uint32_t)(dice >> i) % 2,
                                        .op = (enum section_op)((dice >> 4) % SECTION_OP_END),
                                        .codec = (enum codec_id)((dice >> 8) % CODEC_ID_END),
                                        .k = i,
                                        .n_keys = 3 + i,
                                        .keys = at + 40 * i,
                                        .key_bytes = 10,
                                        .values = at + 40 * i + 10,
                                        .value_bytes = 30 };
    for (uint32_t i = 0; i < n_sections; i++)
        if (section_op_has_steps(sections[i].op)) {
            sections[i].k = 0;
            sections[i].steps = dice & SECTION_STEPS_MAX;
        }
    p->bytes = rows;
    memcpy(p->sections, sections, n_sections * sizeof *sections);
    p->clock = seq + 100;
    p->n_samples = (uint32_t)(seq * 3);
    p->tick = seq % 4 != 0;
    p->n_versions = dice % 5;
    return p;
}

static void put(struct push_journal *s, uint64_t incarnation, uint64_t seq, uint64_t acked)
{
    struct request *requests[N_SHARDS];
    struct push_journal_push push = { .seq = seq,
                                      .map_id = MAP,
                                      .n_shards = N_SHARDS,
                                      .n_tables = COUNT_OF(names),
                                      .names = names,
                                      .requests = requests };
    uint8_t note[8];

    for (uint32_t i = 0; i < N_SHARDS; i++)
        requests[i] = make_request(seq, i);
    memcpy(note, &seq, sizeof note);
    push_journal_set_note(s, note, sizeof note);
    push_journal_put(s, incarnation, &push, acked);
    for (uint32_t i = 0; i < N_SHARDS; i++)
        request_free(requests[i]);
}

static bool same_section(const struct section *a, const struct section *b)
{
    return a->table_id == b->table_id && a->op == b->op && a->codec == b->codec &&
           a->k == b->k && a->steps == b->steps && a->n_keys == b->n_keys &&
           a->key_bytes == b->key_bytes && a->value_bytes == b->value_bytes &&
           memcmp(a->keys, b->keys, a->key_bytes) == 0 &&
           memcmp(a->values, b->values, a->value_bytes) == 0;
}

static void check_push(const struct push_journal_push *p, uint64_t seq)
{
    assert_int_equal(p->seq, seq);
    assert_int_equal(p->map_id, MAP);
    assert_int_equal(p->n_shards, N_SHARDS);
    assert_int_equal(p->n_tables, COUNT_OF(names));
    for (size_t i = 0; i < COUNT_OF(names); i++)
        assert_string_equal(p->found_names[i], names[i]);
    assert_int_equal(p->note_bytes, 8);
    assert_memory_equal(p->note, &seq, 8);
    for (uint32_t i = 0; i < N_SHARDS; i++) {
        struct request *want = make_request(seq, i), *got = p->requests[i];

        assert_int_equal(got->clock, want->clock);
        assert_int_equal(got->n_samples, want->n_samples);
        assert_int_equal(got->tick, want->tick);
        assert_int_equal(got->n_versions, want->n_versions);
        assert_int_equal(got->n_sections, want->n_sections);
        assert_int_equal(bytes_len(&got->bytes), bytes_len(&want->bytes));
        assert_memory_equal(bytes_front(&got->bytes), bytes_front(&want->bytes),
                            bytes_len(&want->bytes));
        for (uint32_t k = 0; k < want->n_sections; k++)
            assert_true(same_section(&got->sections[k], &want->sections[k]));
        request_free(want);
    }
}

static void count_notice(void *arg, const char *sentence)
{
    (void)sentence;
    ++*(int *)arg;
}

/* Of incarnations from 1000 on segments are large, else of two or three pushes. */
static int open_on(struct crash_files *disk, uint64_t incarnation, int *n_notices,
                   struct push_journal **ret, struct err *err)
{
    const struct push_journal_options options = { .files = &disk->ops,
                                                  .dir = DIR,
                                                  .job = "ctr",
                                                  .rank = 2,
                                                  .incarnation = incarnation,
                                                  .segment_bytes =
                                                      incarnation < 1000 ? 1500 : 0,
                                                  .notice = count_notice,
                                                  .notice_arg = n_notices };

    return push_journal_open(&options, ret, err);
}

static struct push_journal *must_open(struct crash_files *disk, uint64_t incarnation,
                                      int *n_notices)
{
    struct push_journal *s = NULL;
    struct err err;

    if (open_on(disk, incarnation, n_notices, &s, &err))
        fail_msg("%s", err.text);
    return s;
}

/* Closes it; what it had found is a run of pushes that were kept. Returns the last one's number. */
static uint64_t check_found(struct push_journal *s, uint64_t *ret_first)
{
    struct ps_origin origin;
    struct push_journal_push *p;
    uint64_t next;

    push_journal_origin(s, &origin);
    next = origin.acked_seq + 1;
    *ret_first = push_journal_has_found(s) ? next : 0;
    if (push_journal_has_found(s)) {
        assert_int_equal(origin.clock, next + 100);
        assert_int_equal(origin.next_clock, origin.last_seq + 100 + (origin.last_seq % 4 != 0));
        assert_int_equal(origin.n_shards, N_SHARDS);
    }
    while ((p = push_journal_pop(s)) != NULL) {
        check_push(p, next++);
        push_journal_format_free_push(p);
    }
    assert_int_equal(origin.last_seq, next - 1);
    push_journal_close(s);
    return origin.last_seq;
}

/* ---- tests ---- */

static void what_is_found_is_what_was_kept_whatever_the_number_of_processes(void **state)
{
    struct crash_files disk;
    uint64_t first, last = 0;
    int n_notices = 0;

    (void)state;
    crash_files_init(&disk);
    for (uint64_t life = 0; life < 5; life++) {
        struct push_journal *s = must_open(&disk, 1000 + life, &n_notices);
        struct ps_origin origin;

        push_journal_origin(s, &origin);
        assert_int_equal(origin.incarnation, 1000);
        assert_int_equal(origin.last_seq, last);
        while (push_journal_has_found(s))
            push_journal_format_free_push(push_journal_pop(s));
        for (uint64_t i = 0; i < life; i++)
            put(s, 1000, ++last, 0);
        push_journal_close(s);
    }
    assert_int_equal(check_found(must_open(&disk, 1, &n_notices), &first), 10);
    assert_int_equal(first, 1);
    assert_int_equal(n_notices, 0);
    assert_int_equal(crash_files_n_open(&disk), 0);
    crash_files_deinit(&disk);
}

/* A process that put n pushes and ended. */
static struct crash_inode *one_life(struct crash_files *disk, uint64_t n)
{
    int n_notices = 0;
    struct push_journal *s;

    crash_files_init(disk);
    s = must_open(disk, 9, &n_notices);
    for (uint64_t i = 1; i <= n; i++)
        put(s, 9, i, 0);
    push_journal_close(s);
    assert_int_equal(n_notices, 0);
    return crash_files_at(disk, DIR "/ctr.2.1.pushes");
}

static void of_a_damaged_file_nothing_is_taken_that_was_not_put(void **state)
{
    struct crash_files disk;
    uint64_t first, last;
    size_t n_bytes = SIZE_MAX, n_idle = 0;

    (void)state;
    for (size_t at = (size_t)share_first(); at < n_bytes; at += (size_t)share_step()) {
        struct crash_inode *inode = one_life(&disk, 3);
        int n_notices = 0;

        n_bytes = inode->n_bytes;
        inode->bytes[at] ^= (uint8_t)(1 << at % 8);
        last = check_found(must_open(&disk, 5, &n_notices), &first);
        /* Between two pushes nothing stands. */
        assert_int_equal(n_notices, last == 3 ? 0 : 1);
        n_idle += last == 3;
        crash_files_deinit(&disk);
    }
    assert_true(n_idle < 3 * PUSH_JOURNAL_PUSH_HEAD_BYTES);
}

static void
segments_go_when_all_shards_have_acknowledged_them_but_for_the_newest_push(void **state)
{
    struct crash_files disk;
    uint64_t first, seq = 0;
    int n_notices = 0;
    struct push_journal *s;

    (void)state;
    crash_files_init(&disk);
    for (int life = 0; life < 4; life++) { /* each begins a segment */
        s = must_open(&disk, 1009, &n_notices);
        while (push_journal_has_found(s))
            push_journal_format_free_push(push_journal_pop(s));
        put(s, 1009, seq + 1, 0);
        put(s, 1009, seq + 2, 0);
        seq += 2;
        if (life < 3)
            push_journal_close(s);
    }
    assert_true(crash_files_is_there(&disk, DIR "/ctr.2.1.pushes"));
    put(s, 1009, ++seq, 5); /* the segment before ended with 6 */
    assert_true(crash_files_is_there(&disk, DIR "/ctr.2.3.pushes"));
    put(s, 1009, ++seq, 6);
    assert_false(crash_files_is_there(&disk, DIR "/ctr.2.3.pushes"));
    push_journal_close(s);
    assert_int_equal(check_found(must_open(&disk, 1001, &n_notices), &first), 10);
    assert_int_equal(first, 7);
    s = must_open(&disk, 1001, &n_notices);
    push_journal_remove(s);
    push_journal_close(s);
    for (uint64_t i = 1; i < 8; i++) {
        char path[64];

        snprintf(path, sizeof path, DIR "/ctr.2.%u.pushes", (unsigned)i);
        assert_false(crash_files_is_there(&disk, path));
    }
    assert_int_equal(n_notices, 0);
    crash_files_deinit(&disk);
}

static void a_new_incarnation_counts_from_one_and_the_old_one_is_dropped(void **state)
{
    struct crash_files disk;
    struct ps_origin origin;
    uint64_t first;
    int n_notices = 0;
    struct push_journal *s;

    (void)state;
    crash_files_init(&disk);
    s = must_open(&disk, 9, &n_notices);
    for (uint64_t i = 1; i <= 4; i++)
        put(s, 9, i, 0);
    put(s, 12, 1, 0);
    put(s, 12, 2, 1);
    push_journal_close(s);
    s = must_open(&disk, 1, &n_notices);
    push_journal_origin(s, &origin);
    assert_int_equal(origin.incarnation, 12);
    assert_int_equal(check_found(s, &first), 2);
    assert_int_equal(first, 1);
    crash_files_deinit(&disk);
}

/* One life with a disk that fails at operation k, for every k; then the next one. */
static void fail_at(long k, bool dies, bool torn, bool *ret_over)
{
    struct crash_files disk;
    struct push_journal *s = NULL;
    struct err err = { 0 };
    uint64_t first, last, seq = 0, last_seq = 20;
    int n_notices = 0;

    crash_files_init(&disk);
    disk.fail_at = k;
    disk.dies = dies;
    disk.torn = torn;
    if (open_on(&disk, 9, &n_notices, &s, &err)) {
        assert_true(err.text[0]);
    } else {
        while (seq++ < last_seq) {
            put(s, 9, seq, seq - 1);
            if (n_notices == 1 && last_seq == 20)
                last_seq = seq + 64; /* it is tried again every so often */
        }
        push_journal_close(s);
    }
    *ret_over = disk.n_ops <= k;
    crash_files_heal(&disk);
    last = check_found(must_open(&disk, 5, &n_notices), &first);
    /* A disk that fails once is used again; of one that has died a beginning may be left. */
    if (s && !dies)
        assert_int_equal(last, last_seq);
    assert_int_equal(crash_files_n_open(&disk), 0);
    crash_files_deinit(&disk);
}

static void a_disk_that_fails_at_any_operation_stops_nothing_and_leaves_no_lie(void **state)
{
    bool over = false;

    (void)state;
    for (long k = share_first(); !over; k += share_step())
        fail_at(k, false, k % 2 == 0, &over);
    over = false;
    for (long k = share_first(); !over; k += share_step())
        fail_at(k, true, k % 2 == 0, &over);
}

/* The process ends where operation k would have begun, or behind it. */
static void a_process_that_dies_at_any_operation_has_kept_all_pushes_before(void **state)
{
    struct crash_files disk;
    bool over = false;

    (void)state;
    for (long k = share_first(); !over; k += share_step()) {
        struct push_journal *s = NULL;
        struct err err;
        uint64_t first, last, seq = 0, died_in = 0;
        int n_notices = 0;

        crash_files_init(&disk);
        disk.fail_at = k;
        disk.dies = true;
        if (!open_on(&disk, 9, &n_notices, &s, &err)) {
            while (seq < 12 && !disk.dead) {
                put(s, 9, seq + 1, seq);
                seq++;
            }
            died_in = seq;
            push_journal_close(s);
        }
        over = disk.n_ops <= k;
        crash_files_heal(&disk);
        n_notices = 0;
        last = check_found(must_open(&disk, 5, &n_notices), &first);
        assert_true(last == died_in || last + 1 == died_in);
        assert_true(!over || last == 12);
        assert_int_equal(n_notices, 0);
        crash_files_deinit(&disk);
    }
}

/* Shards that lag behind by a random number of pushes, and a process that dies at a random operation, six times. */
static void segments_are_written_over_and_never_mixed_up(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    uint64_t dice = 0;

    (void)state;
    for (long run = share_first(); run < 300; run += share_step()) {
        struct crash_files disk;
        uint64_t seq = 0, acked = 0, first, last;
        int n_notices = 0;

        crash_files_init(&disk);
        for (int life = 0; life < 6; life++) {
            struct push_journal *s = must_open(&disk, 9, &n_notices);
            uint64_t n_lag = hash_mix2(seed, dice++) % 8;

            while (push_journal_has_found(s))
                push_journal_format_free_push(push_journal_pop(s));
            disk.dies = true;
            disk.fail_at = disk.n_ops + (long)(hash_mix2(seed, dice++) % 300);
            for (; !disk.dead; seq++) {
                if (seq > acked + n_lag)
                    acked = seq - hash_mix2(seed, dice++) % (n_lag + 1);
                put(s, 9, seq + 1, acked);
            }
            push_journal_close(s);
            crash_files_heal(&disk);
            n_notices = 0;
            last = check_found(must_open(&disk, 5, &n_notices), &first);
            assert_true(last == seq || last + 1 == seq);
            assert_true(last == acked || (first && first <= acked + 1));
            assert_int_equal(n_notices, 0);
            seq = last;
        }
        crash_files_deinit(&disk);
    }
}

#ifdef PS_FAULTS
static void without_memory_nothing_is_read_and_nothing_leaks(void **state)
{
    struct crash_files disk;
    struct push_journal *s;
    struct err err;
    int n_notices = 0, status = -ENOMEM;

    (void)state;
    crash_files_init(&disk);
    s = must_open(&disk, 9, &n_notices);
    for (uint64_t i = 1; i <= 4; i++)
        put(s, 9, i, 0);
    push_journal_close(s);
    for (long n = 0; status; n++) {
        memory_fail_after(n);
        status = open_on(&disk, 5, &n_notices, &s, &err);
        memory_fail_after(-1);
        if (status)
            assert_int_equal(status, -ENOMEM);
        else
            push_journal_close(s);
    }
    crash_files_deinit(&disk);
}
#endif

static void the_file_of_another_worker_is_refused(void **state)
{
    const struct push_journal_header other = {
        .job = "other", .rank = 2, .incarnation = 3, .first_seq = 1
    };
    struct crash_files disk;
    uint8_t bytes[PUSH_JOURNAL_HEADER_BYTES];
    struct push_journal *s;
    struct err err;
    int n_notices = 0, fd;

    (void)state;
    crash_files_init(&disk);
    push_journal_close(must_open(&disk, 9, &n_notices));
    push_journal_format_header(&other, bytes);
    assert_int_equal(disk.ops.create(disk.ops.state, DIR "/ctr.2.1.pushes", &fd), 0);
    assert_int_equal(disk.ops.write_all(disk.ops.state, fd, bytes, sizeof bytes), 0);
    disk.ops.close(disk.ops.state, fd);
    assert_int_equal(open_on(&disk, 9, &n_notices, &s, &err), PS_ESPEC);
    assert_non_null(strstr(err.text, "ctr.2.1.pushes"));
    crash_files_deinit(&disk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_found_is_what_was_kept_whatever_the_number_of_processes),
        cmocka_unit_test(a_process_that_dies_at_any_operation_has_kept_all_pushes_before),
        cmocka_unit_test(segments_are_written_over_and_never_mixed_up),
        cmocka_unit_test(of_a_damaged_file_nothing_is_taken_that_was_not_put),
        cmocka_unit_test(
            segments_go_when_all_shards_have_acknowledged_them_but_for_the_newest_push),
        cmocka_unit_test(a_new_incarnation_counts_from_one_and_the_old_one_is_dropped),
        cmocka_unit_test(a_disk_that_fails_at_any_operation_stops_nothing_and_leaves_no_lie),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_nothing_is_read_and_nothing_leaks),
#endif
        cmocka_unit_test(the_file_of_another_worker_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "tests/unit/data/fixture.h"

#include <errno.h>

#include "worker/data/shuffle.h"

static uint32_t number_in(const struct shuffle_line *line)
{
    char text[400];

    memcpy(text, line->bytes, line->len);
    text[line->len] = '\0';
    assert_int_equal(strtoul(text, NULL, 10), line->number);
    assert_int_equal(line->file, line->number / 10);
    return (uint32_t)line->number;
}

/* Puts 0 .. n - 1 through a window, the number also as text; ret_order[i] is what came out
 * i-th. */
static int run(uint32_t n, uint32_t window, uint64_t seed, uint32_t *ret_order)
{
    struct shuffle_line out;
    uint32_t n_out = 0;
    struct shuffle *s;

    if (shuffle_new(window, seed, &s))
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        char text[400];
        size_t len = (size_t)snprintf(text, sizeof text, "%*u", (int)(1 + i * 7 % 300), i);
        struct shuffle_line in = { .bytes = text, .len = len, .number = i, .file = i / 10 };

        if (shuffle_put(s, &in, &out)) {
            shuffle_free(s);
            return -ENOMEM;
        }
        if (out.bytes)
            ret_order[n_out++] = number_in(&out);
    }
    for (shuffle_drain(s, &out); out.bytes; shuffle_drain(s, &out))
        ret_order[n_out++] = number_in(&out);
    assert_int_equal(n_out, n);
    shuffle_free(s);
    return 0;
}

static void every_line_comes_out_once(void **state)
{
    uint64_t seed = fixture_seed(__func__), counter = 0;
    uint32_t order[2000];
    uint8_t seen[2000];

    (void)state;
    for (int round = 0; round < 100; round++) {
        uint32_t n = fixture_draw(seed, &counter, 2000);
        uint32_t window = 1 + fixture_draw(seed, &counter, 300);

        memset(seen, 0, sizeof seen);
        assert_int_equal(run(n, window, seed + (uint64_t)round, order), 0);
        for (uint32_t i = 0; i < n; i++) {
            assert_true(order[i] < n && !seen[order[i]]++);
            /* Nothing comes out before it came in: i + window lines were in when the i-th came
             * out. */
            assert_true(order[i] < i + window);
        }
    }
}

static void the_seed_decides_the_order(void **state)
{
    uint32_t a[1000], b[1000], c[1000];

    (void)state;
    assert_int_equal(run(1000, 100, 1, a), 0);
    assert_int_equal(run(1000, 100, 1, b), 0);
    assert_int_equal(run(1000, 100, 2, c), 0);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
}

static void a_window_of_all_lines_mixes_evenly(void **state)
{
    uint32_t counts[8][8] = { 0 };
    uint32_t order[8];

    (void)state;
    for (uint64_t seed = 0; seed < 8000; seed++) {
        assert_int_equal(run(8, 8, seed, order), 0);
        for (uint32_t i = 0; i < 8; i++)
            counts[order[i]][i]++;
    }
    /* 1000 expected, standard deviation 30. */
    for (uint32_t i = 0; i < 64; i++)
        assert_in_range(counts[i / 8][i % 8], 850, 1150);
}

#ifdef PS_FAULTS
static void every_failed_allocation_is_reported(void **state)
{
    uint32_t order[100];
    int status = -1;

    (void)state;
    for (long k = 0; status != 0; k++) {
        memory_fail_after(k);
        status = run(100, 10, 3, order);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_line_comes_out_once),
        cmocka_unit_test(the_seed_decides_the_order),
        cmocka_unit_test(a_window_of_all_lines_mixes_evenly),
#ifdef PS_FAULTS
        cmocka_unit_test(every_failed_allocation_is_reported),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

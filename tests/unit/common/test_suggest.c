#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/suggest.h"

static const char *const names[] = {
    "shards", "listen", "data-dir", "memory-max", "http", "lr"
};

static const char *nearest_of(const char *word)
{
    struct suggest n;
    size_t i;

    suggest_init(&n, word);
    for (i = 0; i < COUNT_OF(names); i++)
        suggest_offer(&n, names[i]);
    return n.name;
}

static void a_slip_of_the_fingers_finds_its_name(void **state)
{
    (void)state;
    assert_string_equal(nearest_of("shrads"), "shards");
    assert_string_equal(nearest_of("shard"), "shards");
    assert_string_equal(nearest_of("lisen"), "listen");
    assert_string_equal(nearest_of("data_dir"), "data-dir");
    assert_string_equal(nearest_of("memorymax"), "memory-max");
    assert_string_equal(nearest_of("htpt"), "http");
    assert_string_equal(nearest_of("http"), "http");
    assert_string_equal(nearest_of("l"), "lr");
}

static void another_word_finds_nothing(void **state)
{
    (void)state;
    assert_null(nearest_of("colour"));
    assert_null(nearest_of("xyzzy"));
    assert_null(nearest_of(""));
}

static void the_nearest_wins_and_the_first_of_equals(void **state)
{
    struct suggest n;

    (void)state;
    suggest_init(&n, "batches");
    suggest_offer(&n, "batch");
    suggest_offer(&n, "batched");
    suggest_offer(&n, "batchea");
    assert_string_equal(n.name, "batched");
    assert_int_equal(n.n_edits, 1);
}

static void words_of_any_length_are_compared_safely(void **state)
{
    char long_word[5000];

    (void)state;
    memset(long_word, 'a', sizeof long_word);
    long_word[sizeof long_word - 1] = '\0';
    assert_null(nearest_of(long_word));
    long_word[63] = '\0';
    assert_null(nearest_of(long_word));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slip_of_the_fingers_finds_its_name),
        cmocka_unit_test(another_word_finds_nothing),
        cmocka_unit_test(the_nearest_wins_and_the_first_of_equals),
        cmocka_unit_test(words_of_any_length_are_compared_safely),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

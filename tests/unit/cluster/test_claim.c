/* Claims as texts: what is written is read, and nothing else. */
#include "server/cluster/claim.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base.h"

static void a_claim_is_read_as_it_was_written(void **state)
{
    struct claim c = { .term = UINT64_MAX,
                       .history = 7,
                       .in_sync = true,
                       .writer = { UINT64_MAX, UINT64_MAX } },
                 got;
    const struct claim_writer writer = c.writer;
    char text[CLAIM_VALUE_MAX];

    (void)state;
    memset(c.primary, 'p', sizeof c.primary - 1);
    memset(c.standby, 's', sizeof c.standby - 1);
    for (uint32_t i = 0; i < CLAIM_TAKEOVERS_MAX; i++)
        claim_add_takeover(&c, UINT64_MAX - i);
    claim_print(&c, &writer, text);
    assert_int_equal(claim_read(text, &got), 0);
    assert_memory_equal(&c, &got, sizeof c);
    memset(c.standby, 0, sizeof c.standby);
    c.in_sync = false;
    claim_print(&c, &writer, text);
    assert_int_equal(claim_read(text, &got), 0);
    assert_memory_equal(&c, &got, sizeof c);
}

/* Any prefix of it, and any with one byte more. */
static void part_of_a_claim_is_none(void **state)
{
    const struct claim c = { .term = 1, .history = 2, .primary = "a:1", .standby = "b:1" };
    const struct claim_config shared = { 3, 4, "lease=10s cut-every=0" };
    struct claim_config config;
    struct claim got;
    char text[CLAIM_VALUE_MAX + 1];

    (void)state;
    claim_print(&c, &(struct claim_writer){ 1, 2 }, text);
    strcat(text, " ");
    assert_int_equal(claim_read(text, &got), -EINVAL);
    for (size_t n = strlen(text) - 1; n-- > 0;) {
        text[n] = '\0';
        assert_int_equal(claim_read(text, &got), -EINVAL);
    }
    claim_config_print(&shared, text);
    assert_int_equal(claim_config_read(text, &config), 0);
    assert_memory_equal(&config, &shared, sizeof config);
    for (size_t n = strlen(text); n-- > 0;) {
        text[n] = '\0';
        assert_int_equal(claim_config_read(text, &config), -EINVAL);
    }
    assert_int_equal(
        claim_config_read("{\"nodes\":\"0\",\"shards\":\"1\",\"settings\":\"-\"}", &config),
        -EINVAL);
}

static void a_claim_has_the_newest_takeovers(void **state)
{
    struct claim c = { 0 };

    (void)state;
    for (uint64_t i = 0; i < 2 * CLAIM_TAKEOVERS_MAX; i++)
        claim_add_takeover(&c, 1000 + i);
    assert_int_equal(c.n_takeovers, CLAIM_TAKEOVERS_MAX);
    assert_int_equal(c.takeovers[0], 1000 + CLAIM_TAKEOVERS_MAX);
}

/* Of its own clock, from when it has seen them. */
static void takeovers_of_ten_minutes_count(void **state)
{
    struct claim_takeovers t = { 0 };
    struct claim c = { 0 }, kept = { 0 };

    (void)state;
    assert_false(claim_takeovers_note(&t, &c, 5));
    for (uint64_t i = 0; i < CLAIM_TAKEOVERS_MAX; i++) {
        claim_add_takeover(&c, 70 + i);
        assert_true(claim_takeovers_note(&t, &c, 1000 + i));
        assert_false(claim_takeovers_note(&t, &c, 2000)); /* again, of other things */
        assert_int_equal(claim_takeovers_count(&t, 2000), i + 1);
    }
    assert_int_equal(claim_takeovers_count(&t, 1000 + CLAIM_TAKEOVERS_MS),
                     CLAIM_TAKEOVERS_MAX - 1);
    claim_takeovers_keep(&t, 1006 + CLAIM_TAKEOVERS_MS, &kept);
    assert_int_equal(kept.n_takeovers, 2);
    assert_int_equal(kept.takeovers[0], 77);
    assert_int_equal(claim_takeovers_count(&t, 1008 + CLAIM_TAKEOVERS_MS), 0);
    /* The oldest makes way for a newer one, and one is dropped by its primary. */
    claim_add_takeover(&c, 100);
    assert_true(claim_takeovers_note(&t, &c, 1006 + CLAIM_TAKEOVERS_MS));
    assert_int_equal(claim_takeovers_count(&t, 1006 + CLAIM_TAKEOVERS_MS), 3);
    assert_false(claim_takeovers_note(&t, &kept, 1006 + CLAIM_TAKEOVERS_MS));
    assert_int_equal(claim_takeovers_count(&t, 1006 + CLAIM_TAKEOVERS_MS), 2);
    /* A psd that starts does not know how old they are. */
    t = (struct claim_takeovers){ 0 };
    assert_true(claim_takeovers_note(&t, &c, 50));
    assert_int_equal(claim_takeovers_count(&t, 50), CLAIM_TAKEOVERS_MAX);
    assert_int_equal(claim_takeovers_count(&t, 50 + CLAIM_TAKEOVERS_MS), 0);
}

static void another_shape_or_setting_is_named(void **state)
{
    static const struct {
        struct claim_config theirs, ours;
        const char *words; /* NULL: they agree */
    } cases[] = {
        { { 2, 4, "a=1 b=2" }, { 2, 4, "a=1 b=2" }, NULL },
        { { 2, 4, "b=2 a=1" }, { 2, 4, "a=1 b=2" }, NULL },
        { { 2, 4, "a=1" }, { 2, 4, "a=1 b=2" }, NULL }, /* of another version */
        { { 2, 4, "a=1 b=2" }, { 2, 4, "b=2" }, NULL },
        { { 2, 4, "aa=1" }, { 2, 4, "a=2" }, NULL },
        { { 2, 4, "a=1" }, { 3, 4, "a=1" }, "has 2 nodes of 4 shards, and this psd is of 3" },
        { { 1, 1, "a=1" },
          { 2, 4, "a=1" },
          "has 1 node of 1 shard, and this psd is of 2 nodes of 4" },
        { { 2, 4, "a=1" }, { 2, 8, "a=1" }, "name behind the slash right" },
        { { 2, 4, "a=1 b=2" }, { 2, 4, "a=1 b=3" }, "has b=2, and this psd b=3" },
        { { 2, 4, "a=1 b=22" }, { 2, 4, "a=1 b=2" }, "has b=22, and this psd b=2" },
        { { 2, 4, "gradient-max=9.99999987e+14" },
          { 2, 4, "gradient-max=1000" },
          "has gradient-max=1e+15, and this psd gradient-max=1000:" },
        { { 2, 4, "frame-max=67108864" },
          { 2, 4, "frame-max=1000" },
          "has frame-max=64M, and this psd frame-max=1000:" },
        { { 2, 4, "gradient-over=0" },
          { 2, 4, "gradient-over=1" },
          "has gradient-over=refuse, and this psd gradient-over=clip:" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct err err = { 0 };
        const int status = claim_config_compare(&cases[i].theirs, &cases[i].ours, &err);

        assert_int_equal(status, cases[i].words ? PS_ECLUSTER : 0);
        if (cases[i].words && !strstr(err.text, cases[i].words))
            fail_msg("%s", err.text);
    }
}

static void a_claim_is_newer_by_its_term_or_by_what_its_writer_has_written_since(void **state)
{
    const struct claim before = { .term = 5, .writer = { 7, 3 } };
    const struct claim newer[] = { { .term = 6, .writer = { 8, 1 } },
                                   { .term = 5, .writer = { 7, 4 } } };
    const struct claim others[] = { { .term = 5, .writer = { 7, 3 } },
                                    { .term = 5, .writer = { 7, 2 } },
                                    { .term = 5, .writer = { 8, 4 } },
                                    { .term = 4, .writer = { 7, 4 } },
                                    { .term = 5 } };
    struct claim got;
    char text[CLAIM_VALUE_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof newer / sizeof *newer; i++)
        assert_true(claim_is_newer(&newer[i], &before));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(claim_is_newer(&others[i], &before));
    claim_print(&(struct claim){ .term = 5, .primary = "a:1" },
                &(struct claim_writer){ UINT64_MAX, UINT64_MAX }, text);
    assert_int_equal(claim_read(text, &got), 0);
    assert_true(got.writer.id == UINT64_MAX && got.writer.n == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_claim_is_read_as_it_was_written),
        cmocka_unit_test(part_of_a_claim_is_none),
        cmocka_unit_test(a_claim_has_the_newest_takeovers),
        cmocka_unit_test(takeovers_of_ten_minutes_count),
        cmocka_unit_test(a_claim_is_newer_by_its_term_or_by_what_its_writer_has_written_since),
        cmocka_unit_test(another_shape_or_setting_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What a primary and its standby say of how they compute: a note for operators, and no reason to refuse the standby. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/replication/arithmetic.h"
#include "server/standby_settings.h"

#define PRIMARY "avx512 glibc-2.36 1a2b3c4d"

static void other_arithmetic_is_noted_with_both(void **state)
{
    static const char *const others[] = { "avx2 glibc-2.36 1a2b3c4d",     /* other kernels */
                                          "avx512 glibc-2.41 1a2b3c4d",   /* another libc */
                                          "avx512 glibc-2.36 1a2b3c4e" }; /* other results */
    char note[STANDBY_SETTINGS_NOTE_MAX], want[2 * STANDBY_SETTINGS_NOTE_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_true(standby_settings_arithmetic_differs(PRIMARY, others[i], note));
        snprintf(want, sizeof want,
                 "the primary computes as " PRIMARY
                 ", the standby as %s: rows may come to differ "
                 "in their last bits, and the standby copies anew then",
                 others[i]);
        assert_string_equal(note, want);
    }
}

static void equal_arithmetic_and_a_psd_that_does_not_say_are_not_noted(void **state)
{
    char note[STANDBY_SETTINGS_NOTE_MAX] = "as it was", ours[ARITHMETIC_MAX],
         again[ARITHMETIC_MAX];

    (void)state;
    arithmetic_fingerprint(ours);
    arithmetic_fingerprint(again);
    assert_true(ours[0] != '\0');
    assert_false(standby_settings_arithmetic_differs(ours, again, note));
    assert_false(standby_settings_arithmetic_differs("", ours, note));
    assert_false(standby_settings_arithmetic_differs(ours, "", note));
    assert_string_equal(note, "as it was");
}

/* As long as a peer may make them: both are in the note, and the sentence has its end. */
static void long_ones_are_shortened(void **state)
{
    char primary[ARITHMETIC_MAX], standby[ARITHMETIC_MAX], note[STANDBY_SETTINGS_NOTE_MAX];

    (void)state;
    memset(primary, 'p', sizeof primary - 1);
    memset(standby, 's', sizeof standby - 1);
    primary[sizeof primary - 1] = standby[sizeof standby - 1] = '\0';
    assert_true(standby_settings_arithmetic_differs(primary, standby, note));
    assert_non_null(strstr(note, "computes as pppp"));
    assert_non_null(strstr(note, "the standby as ssss"));
    assert_non_null(strstr(note, "copies anew then"));
}

static void a_standby_with_another_processor_is_not_refused(void **state)
{
    struct settings *settings = calloc(1, sizeof *settings);
    struct hello_reply *map = calloc(1, sizeof *map);
    struct follow *asked = calloc(1, sizeof *asked);
    struct err err = { 0 };

    (void)state;
    settings->shards = asked->n_shards = 2;
    map->n_nodes = 1;
    standby_settings_text(settings, map, asked->settings);
    snprintf(asked->address, sizeof asked->address, "10.0.0.2:7070");
    snprintf(asked->cpu, sizeof asked->cpu, "plain glibc-2.31 00000000");
    assert_int_equal(standby_settings_check(settings, map, asked, &err), 0);
    asked->settings[0] ^= 1; /* so it would be, were it a setting */
    assert_int_equal(standby_settings_check(settings, map, asked, &err), PS_ECLUSTER);
    free(asked);
    free(map);
    free(settings);
}

/* Numbers as they were set; the list of nodes by the option that has it. */
static void what_differs_is_named_as_an_operator_writes_it(void **state)
{
    struct settings *settings = calloc(1, sizeof *settings);
    struct hello_reply *map = calloc(1, sizeof *map);
    struct follow *asked = calloc(1, sizeof *asked);
    struct err err = { 0 };

    (void)state;
    settings->shards = asked->n_shards = 2;
    snprintf(asked->address, sizeof asked->address, "10.0.0.2:7070");
    settings->gradient_max = 0.1f;
    settings->frame_max_bytes = 64 << 20;
    map->n_nodes = 2;
    map->map_id = 7;
    standby_settings_text(settings, map, asked->settings);
    settings->gradient_max = 1e15f;
    assert_int_equal(standby_settings_check(settings, map, asked, &err), PS_ECLUSTER);
    assert_string_equal(err.text, "the standby has gradient-max=0.1, the primary "
                                  "gradient-max=1e+15: give both the same settings");
    settings->frame_max_bytes = 32 << 20;
    assert_int_equal(standby_settings_check(settings, map, asked, &err), PS_ECLUSTER);
    assert_string_equal(err.text, "the standby has frame-max=64M, the primary frame-max=32M: "
                                  "give both the same settings");
    map->map_id = 8;
    assert_int_equal(standby_settings_check(settings, map, asked, &err), PS_ECLUSTER);
    assert_string_equal(err.text, "the standby's list of nodes is not the primary's: give both "
                                  "the same --cluster");
    free(asked);
    free(map);
    free(settings);
}

/* It would stand in TERMS and in the claim. */
static void an_address_that_is_none_is_refused(void **state)
{
    static const char *const bad[] = { "", "10.0.0.2", "a b:7070", "\"a\":7070" };
    struct settings *settings = calloc(1, sizeof *settings);
    struct hello_reply *map = calloc(1, sizeof *map);
    struct follow *asked = calloc(1, sizeof *asked);
    struct err err = { 0 };

    (void)state;
    settings->shards = 2;
    asked->n_shards = 3; /* which is told to operators, with the address */
    map->n_nodes = 1;
    standby_settings_text(settings, map, asked->settings);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        snprintf(asked->address, sizeof asked->address, "%s", bad[i]);
        assert_int_equal(standby_settings_check(settings, map, asked, &err), PS_EPROTO);
        assert_non_null(strstr(err.text, "under which address it listens"));
    }
    free(asked);
    free(map);
    free(settings);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_differs_is_named_as_an_operator_writes_it),
        cmocka_unit_test(other_arithmetic_is_noted_with_both),
        cmocka_unit_test(equal_arithmetic_and_a_psd_that_does_not_say_are_not_noted),
        cmocka_unit_test(long_ones_are_shortened),
        cmocka_unit_test(a_standby_with_another_processor_is_not_refused),
        cmocka_unit_test(an_address_that_is_none_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

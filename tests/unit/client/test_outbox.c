/* Parcels go out filled, come back when they are done with, and are filled again in the same memory. */
#include "worker/client/outbox.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/mem.h"

#define N_SHARDS 3u
#define WINDOW ((size_t)1 << 20)

/* One call: each shard's parcel gets n_bytes and is handed to the caller. */
static void fill(struct outbox *o, uint32_t n_sections, size_t n_bytes, struct parcel **ret)
{
    struct section sections[8] = { { .n_keys = n_sections } };

    assert_int_equal(outbox_make(o, n_sections), 0);
    for (uint32_t i = 0; i < N_SHARDS; i++) {
        uint8_t *at = buf_reserve(&o->bufs[i], n_bytes);

        assert_int_equal(buf_len(&o->bufs[i]), 0);
        memset(at, (int)i + 1, n_bytes);
        buf_commit(&o->bufs[i], n_bytes);
        parcel_fill(o->parcels[i], &o->bufs[i], sections);
        ret[i] = o->parcels[i];
    }
    outbox_forget(o);
}

static void give_back(struct parcel **parcels)
{
    for (uint32_t i = 0; i < N_SHARDS; i++)
        parcel_free(parcels[i]);
}

static void calls_that_are_alike_use_the_same_memory(void **state)
{
    struct parcel *one[N_SHARDS], *two[N_SHARDS];
    const uint8_t *bytes[N_SHARDS];
    struct outbox o;

    (void)state;
    outbox_init(&o, N_SHARDS, WINDOW);
    fill(&o, 2, 30000, one);
    for (uint32_t i = 0; i < N_SHARDS; i++)
        bytes[i] = one[i]->bytes.bytes;
    give_back(one);
#ifdef PS_FAULTS
    mem_fail_after(0);
#endif
    for (int again = 0; again < 4; again++) {
        fill(&o, 1 + (uint32_t)again % 2, 32000, two);
        for (uint32_t i = 0; i < N_SHARDS; i++) {
            uint32_t was = 0;

            while (was < N_SHARDS && two[i]->bytes.bytes != bytes[was])
                was++;
            assert_int_not_equal(was, N_SHARDS);
            assert_int_equal(buf_len(&two[i]->bytes), 32000);
            assert_int_equal(buf_front(&two[i]->bytes)[0], i + 1);
        }
        give_back(two);
    }
#ifdef PS_FAULTS
    mem_fail_after(-1);
#endif
    outbox_deinit(&o);
}

static void a_parcel_that_comes_back_is_as_good_as_new(void **state)
{
    struct parcel *one[N_SHARDS], *two[N_SHARDS];
    struct outbox o;

    (void)state;
    outbox_init(&o, N_SHARDS, WINDOW);
    fill(&o, 1, 100, one);
    for (uint32_t i = 0; i < N_SHARDS; i++) {
        one[i]->seq = 7;
        one[i]->request_id = 8;
        one[i]->n_versions = 9;
        one[i]->tick = true;
        one[i]->next = one[0];
    }
    give_back(one);
    fill(&o, 8, 100, two); /* of more sections */
    for (uint32_t i = 0; i < N_SHARDS; i++) {
        assert_int_equal(two[i]->seq, 0);
        assert_int_equal(two[i]->request_id, 0);
        assert_int_equal(two[i]->n_versions, 0);
        assert_false(two[i]->tick);
        assert_null(two[i]->next);
        assert_int_equal(two[i]->n_sections, 8);
        assert_int_equal(two[i]->sections[0].n_keys, 8);
    }
    give_back(two);
    outbox_deinit(&o);
}

static void what_was_not_handed_on_is_taken_back(void **state)
{
    struct parcel *one[N_SHARDS];
    struct outbox o;

    (void)state;
    outbox_init(&o, N_SHARDS, WINDOW);
    fill(&o, 1, 5000, one);
    give_back(one);
    assert_int_equal(outbox_make(&o, 1), 0);
    assert_non_null(buf_reserve(&o.bufs[1], 50000));
    buf_commit(&o.bufs[1], 50000);
    outbox_clear(&o);
    assert_int_equal(o.spares.n, N_SHARDS);
    outbox_clear(&o);
    assert_int_equal(o.spares.n, N_SHARDS);
    fill(&o, 1, 10, one);
    give_back(one);
    outbox_deinit(&o);
}

/* As when a shard has been away. */
static void after_a_rush_no_more_lies_idle_than_was_said(void **state)
{
    struct parcel *calls[100][N_SHARDS];
    struct outbox o;

    (void)state;
    outbox_init(&o, N_SHARDS, WINDOW);
    for (uint32_t i = 0; i < COUNT_OF(calls); i++)
        fill(&o, 1, 30000, calls[i]);
    for (uint32_t i = 0; i < COUNT_OF(calls); i++)
        give_back(calls[i]);
    assert_in_range(o.spares.n_bytes, WINDOW / 2, WINDOW);
    outbox_deinit(&o);
}

#ifdef PS_FAULTS
static void a_call_that_finds_no_memory_leaves_nothing_half_made(void **state)
{
    struct parcel *one[N_SHARDS];
    struct outbox o;
    long n;

    (void)state;
    outbox_init(&o, N_SHARDS, WINDOW);
    for (n = 0;; n++) {
        int status;

        mem_fail_after(n);
        status = outbox_make(&o, n % 2 ? 8 : 1);
        mem_fail_after(-1);
        if (!status)
            break;
        assert_int_equal(status, -ENOMEM);
        for (uint32_t i = 0; i < N_SHARDS; i++)
            assert_null(o.parcels[i]);
    }
    assert_true(n > 0);
    outbox_clear(&o);
    fill(&o, 2, 100, one);
    give_back(one);
    outbox_deinit(&o);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_that_are_alike_use_the_same_memory),
        cmocka_unit_test(a_parcel_that_comes_back_is_as_good_as_new),
        cmocka_unit_test(what_was_not_handed_on_is_taken_back),
        cmocka_unit_test(after_a_rush_no_more_lies_idle_than_was_said),
#ifdef PS_FAULTS
        cmocka_unit_test(a_call_that_finds_no_memory_leaves_nothing_half_made),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

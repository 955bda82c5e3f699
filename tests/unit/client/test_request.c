/* Requests are handed on filled, come home when they are answered, and are filled again in the same memory. */
#include "worker/client/request.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/memory.h"

#define N_SHARDS 3u
#define WINDOW ((size_t)1 << 20)

/* One call: each shard's request gets n_bytes and is handed to the caller. */
static void fill(struct request_set *s, uint32_t n_sections, size_t n_bytes,
                 struct request **ret)
{
    struct section sections[8] = { { .n_keys = n_sections } };

    assert_int_equal(request_set_acquire(s, n_sections), 0);
    for (uint32_t i = 0; i < N_SHARDS; i++) {
        struct request *r = s->requests[i];
        uint8_t *at = bytes_reserve(&r->bytes, n_bytes);

        assert_int_equal(bytes_len(&r->bytes), 0);
        memset(at, (int)i + 1, n_bytes);
        bytes_commit(&r->bytes, n_bytes);
        memcpy(r->sections, sections, n_sections * sizeof *sections);
        ret[i] = r;
    }
    request_set_reset(s);
}

static void free_all(struct request **requests)
{
    for (uint32_t i = 0; i < N_SHARDS; i++)
        request_free(requests[i]);
}

static void calls_that_are_alike_use_the_same_memory(void **state)
{
    struct request *one[N_SHARDS], *two[N_SHARDS];
    const uint8_t *bytes[N_SHARDS];
    struct request_set s;

    (void)state;
    request_set_init(&s, N_SHARDS, WINDOW);
    fill(&s, 2, 30000, one);
    for (uint32_t i = 0; i < N_SHARDS; i++)
        bytes[i] = one[i]->bytes.bytes;
    free_all(one);
#ifdef PS_FAULTS
    memory_fail_after(0);
#endif
    for (int again = 0; again < 4; again++) {
        fill(&s, 1 + (uint32_t)again % 2, 32000, two);
        for (uint32_t i = 0; i < N_SHARDS; i++) {
            uint32_t was = 0;

            while (was < N_SHARDS && two[i]->bytes.bytes != bytes[was])
                was++;
            assert_int_not_equal(was, N_SHARDS);
            assert_int_equal(bytes_len(&two[i]->bytes), 32000);
            assert_int_equal(bytes_front(&two[i]->bytes)[0], i + 1);
        }
        free_all(two);
    }
#ifdef PS_FAULTS
    memory_fail_after(-1);
#endif
    request_set_deinit(&s);
}

static void a_request_that_comes_home_is_as_good_as_new(void **state)
{
    struct request *one[N_SHARDS], *two[N_SHARDS];
    struct request_set s;

    (void)state;
    request_set_init(&s, N_SHARDS, WINDOW);
    fill(&s, 1, 100, one);
    for (uint32_t i = 0; i < N_SHARDS; i++) {
        one[i]->seq = 7;
        one[i]->request_id = 8;
        one[i]->n_versions = 9;
        one[i]->tick = true;
        one[i]->next = one[0];
    }
    free_all(one);
    fill(&s, 8, 100, two); /* of more sections */
    for (uint32_t i = 0; i < N_SHARDS; i++) {
        assert_int_equal(two[i]->seq, 0);
        assert_int_equal(two[i]->request_id, 0);
        assert_int_equal(two[i]->n_versions, 0);
        assert_false(two[i]->tick);
        assert_null(two[i]->next);
        assert_int_equal(two[i]->n_sections, 8);
        assert_int_equal(two[i]->sections[0].n_keys, 8);
    }
    free_all(two);
    request_set_deinit(&s);
}

static void what_was_not_handed_on_is_released(void **state)
{
    struct request *one[N_SHARDS];
    struct request_set s;

    (void)state;
    request_set_init(&s, N_SHARDS, WINDOW);
    fill(&s, 1, 5000, one);
    free_all(one);
    assert_int_equal(request_set_acquire(&s, 1), 0);
    assert_non_null(bytes_reserve(&s.requests[1]->bytes, 50000));
    bytes_commit(&s.requests[1]->bytes, 50000);
    request_set_release(&s);
    assert_int_equal(s.free_list.n, N_SHARDS);
    request_set_release(&s);
    assert_int_equal(s.free_list.n, N_SHARDS);
    fill(&s, 1, 10, one);
    free_all(one);
    request_set_deinit(&s);
}

/* As when a shard has been away. */
static void after_a_rush_no_more_lies_idle_than_the_bound(void **state)
{
    struct request *calls[100][N_SHARDS];
    struct request_set s;

    (void)state;
    request_set_init(&s, N_SHARDS, WINDOW);
    for (uint32_t i = 0; i < COUNT_OF(calls); i++)
        fill(&s, 1, 30000, calls[i]);
    for (uint32_t i = 0; i < COUNT_OF(calls); i++)
        free_all(calls[i]);
    assert_in_range(s.free_list.n_bytes, WINDOW / 2, WINDOW);
    request_set_deinit(&s);
}

#ifdef PS_FAULTS
static void a_call_that_finds_no_memory_leaves_nothing_half_made(void **state)
{
    struct request *one[N_SHARDS];
    struct request_set s;
    long n;

    (void)state;
    request_set_init(&s, N_SHARDS, WINDOW);
    for (n = 0;; n++) {
        int status;

        memory_fail_after(n);
        status = request_set_acquire(&s, n % 2 ? 8 : 1);
        memory_fail_after(-1);
        if (!status)
            break;
        assert_int_equal(status, -ENOMEM);
        for (uint32_t i = 0; i < N_SHARDS; i++)
            assert_true(!s.requests || !s.requests[i]);
    }
    assert_true(n > 0);
    request_set_release(&s);
    fill(&s, 2, 100, one);
    free_all(one);
    request_set_deinit(&s);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_that_are_alike_use_the_same_memory),
        cmocka_unit_test(a_request_that_comes_home_is_as_good_as_new),
        cmocka_unit_test(what_was_not_handed_on_is_released),
        cmocka_unit_test(after_a_rush_no_more_lies_idle_than_the_bound),
#ifdef PS_FAULTS
        cmocka_unit_test(a_call_that_finds_no_memory_leaves_nothing_half_made),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

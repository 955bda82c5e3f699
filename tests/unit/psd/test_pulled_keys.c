/* Pushes that name the keys of a pull: they are the pushes that they stand for, and a name that is none is refused. */
#include "server/requests/pulled_keys.h"

#include <errno.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"
#include "serving.h"
#include "tests/support/seed.h"

/* ---- the set, against a list ---- */

static uint8_t bytes[64];

/* A pull with a section of request_id % 5 + 1 keys, and one of two. */
static const struct pull *pull_of(uint64_t request_id)
{
    static struct pull pull;
    const uint32_t n = (uint32_t)(request_id % 5) + 1;

    memset(bytes, (int)(request_id % 100), sizeof bytes);
    pull.n_sections = 2;
    pull.sections[0] = (struct section){ .n_keys = n, .keys = bytes, .key_bytes = n };
    pull.sections[1] = (struct section){ .n_keys = 2, .keys = bytes, .key_bytes = 4 };
    return &pull;
}

static int put(const struct pulled_keys *k, struct push *push, uint32_t keys_at,
               uint32_t n_keys)
{
    push->n_sections = 1;
    push->sections[0] = (struct section){ .keys_at = keys_at, .n_keys = n_keys };
    return pulled_keys_put(k, SIZE_MAX, push);
}

static void assert_keys_of(const struct pulled_keys *k, uint64_t request_id, struct push *push)
{
    const uint32_t n = (uint32_t)(request_id % 5) + 1;

    assert_int_equal(put(k, push, 1, n), 0);
    assert_int_equal(push->sections[0].key_bytes, n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(push->sections[0].keys[i], request_id % 100);
    assert_int_equal(push->sections[0].keys_at, 0);
    assert_int_equal(put(k, push, 2, 2), 0);
    assert_int_equal(push->sections[0].key_bytes, 4);
    assert_int_equal(put(k, push, 1, n + 1), PS_ECOUNT);
    assert_int_equal(put(k, push, 3, n), PS_ECOUNT);
    assert_int_equal(put(k, push, UINT32_MAX, n), PS_ECOUNT);
}

/* Ids in any order; budget and memory that end now and then. */
static void the_last_pulls_are_kept_whatever_memory_there_is(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    struct memory_budget budget = { .max = 1400 };
    struct pulled_keys_set *set = NULL;
    struct push *push = memory_alloc(sizeof *push);
    bool kept[400] = { 0 };
    uint32_t n_refused = 0;

    (void)state;
    for (uint64_t step = 0; step < 20000; step++) {
        const uint64_t dice = hash_mix2(seed, step), id = step / 60 + dice % 20;
        uint32_t n_above = 0;
        struct pulled_keys *k;

        if (dice % 3) {
            k = pulled_keys_acquire(set, id);
            for (uint64_t i = id + 1; i < COUNT_OF(kept); i++)
                n_above += kept[i];
            if (n_above >= SECTION_PULLS_KEPT)
                kept[id] = false;
            assert_int_equal(k != NULL, kept[id]);
            if (k)
                assert_keys_of(k, id, push);
            pulled_keys_release(k);
            continue;
        }
#ifdef PS_FAULTS
        memory_fail_after(dice % 11 == 0 ? (long)(dice % 2) : -1);
#endif
        for (uint64_t i = id + 1; i < COUNT_OF(kept); i++)
            n_above += kept[i];
        if (pulled_keys_keep(&set, &budget, id, pull_of(id))) {
            assert_true(n_above < SECTION_PULLS_KEPT);
            kept[id] = true;
        } else {
            kept[id] = false;
            n_refused++;
        }
#ifdef PS_FAULTS
        memory_fail_after(-1);
#endif
        assert_true(budget.used <= budget.max);
        for (uint64_t i = 0; i < COUNT_OF(kept); i++) { /* what had to make place, if any */
            k = pulled_keys_acquire(set, i);
            assert_true(!k || kept[i]);
            kept[i] = k != NULL;
            pulled_keys_release(k);
        }
    }
    assert_true(n_refused > 100);
    pulled_keys_free(set);
    assert_int_equal(budget.used, 0);
    free(push);
}

static void what_a_push_has_outlives_the_connection(void **state)
{
    struct memory_budget budget = { .max = 1 << 20 };
    struct pulled_keys_set *set = NULL;
    struct push *push = memory_alloc(sizeof *push);
    struct pulled_keys *k;

    (void)state;
    assert_true(pulled_keys_keep(&set, &budget, 7, pull_of(7)));
    k = pulled_keys_acquire(set, 7);
    pulled_keys_free(set);
    assert_keys_of(k, 7, push);
    assert_true(budget.used > 0);
    pulled_keys_release(k);
    assert_int_equal(budget.used, 0);
    free(push);
}

static void a_pull_of_very_many_keys_is_not_kept(void **state)
{
    struct memory_budget budget = { 0 };
    struct pulled_keys_set *set = NULL;
    struct pull pull = { .n_sections = 1 };
    uint8_t *many = memory_alloc(PULLED_KEYS_BYTES_MAX + 1);

    (void)state;
    pull.sections[0] = (struct section){ .n_keys = 9, .keys = many };
    pull.sections[0].key_bytes = PULLED_KEYS_BYTES_MAX + 1;
    assert_false(pulled_keys_keep(&set, &budget, 1, &pull));
    pull.sections[0].key_bytes--;
    assert_true(pulled_keys_keep(&set, &budget, 1, &pull));
    pulled_keys_free(set);
    assert_int_equal(budget.used, 0);
    free(many);
}

/* As if it had come with its keys. */
static void a_push_with_more_than_a_frame_of_keys_and_values_is_refused(void **state)
{
    struct memory_budget budget = { .max = 1 << 20 };
    struct pulled_keys_set *set = NULL;
    struct push *push = memory_alloc(sizeof *push);
    struct pulled_keys *k;

    (void)state;
    assert_true(pulled_keys_keep(&set, &budget, 7, pull_of(7)));
    k = pulled_keys_acquire(set, 7);
    for (uint32_t times = 0; times < 2; times++) {
        push->n_sections = SECTIONS_MAX;
        for (uint32_t i = 0; i < SECTIONS_MAX; i++)
            push->sections[i] = (struct section){ .keys_at = 2, .n_keys = 2, .value_bytes = 8 };
        assert_int_equal(pulled_keys_put(k, SECTIONS_MAX * (4 + 8) - times, push),
                         times ? PS_ETOOBIG : 0);
    }
    pulled_keys_release(k);
    pulled_keys_free(set);
    free(push);
}

/* ---- over a connection ---- */

enum { N_KEYS = 3 };

static uint32_t ask_async_table(struct peer *p, const char *name)
{
    struct table_request asked = {
        .spec = { .dim = DIM, .params.learning_rate = 1, .mode = TABLE_SPEC_MODE_ASYNC }
    };
    struct bytes frame = { 0 };
    struct table_reply reply;

    snprintf(asked.spec.name, sizeof asked.spec.name, "%s", name);
    assert_int_equal(message_write_table(&frame, 2, &asked), 0);
    peer_send(p, &frame);
    reply = hear_table(p);
    assert_int_equal(reply.status, 0);
    return reply.table_id;
}

/* Keys 10 x, 10 x + 1, 10 x + 2 of table 0; the rows if `rows` is not NULL. */
static bool pull_rows(struct peer *p, uint64_t request_id, uint64_t x, bool keep, float *rows)
{
    const uint64_t keys[N_KEYS] = { 10 * x, 10 * x + 1, 10 * x + 2 };
    uint8_t key_bytes[N_KEYS * KEY_CODEC_BYTES_MAX];
    struct pull pull = { .keep = keep, .n_sections = 1 };
    struct bytes frame = { 0 };
    struct pull_reply reply;

    pull.sections[0] = (struct section){ .n_keys = N_KEYS, .keys = key_bytes };
    pull.sections[0].key_bytes = key_codec_encode(keys, N_KEYS, key_bytes);
    assert_int_equal(message_write_pull(&frame, request_id, &pull, NULL), 0);
    peer_send(p, &frame);
    reply = hear_pull(p, request_id);
    assert_int_equal(reply.status, 0);
    if (rows)
        memcpy(rows, reply.sections[0].values, N_KEYS * DIM * sizeof(float));
    return reply.kept;
}

/* All gradients are -1, so the rows grow by it. */
static struct push_reply push_named(struct peer *p, uint64_t seq, uint64_t keys_of,
                                    uint32_t keys_at, uint32_t n_keys)
{
    static float gradient[8 * DIM];
    struct push push = {
        .seq = seq, .clock = 0, .n_samples = 1, .n_sections = 1, .keys_of = keys_of
    };
    struct bytes frame = { 0 };

    for (uint32_t i = 0; i < 8 * DIM; i++)
        gradient[i] = -1;
    push.sections[0] = (struct section){ .n_keys = n_keys,
                                         .keys_at = keys_at,
                                         .values = (const uint8_t *)gradient,
                                         .value_bytes = n_keys * DIM * sizeof(float) };
    assert_int_equal(message_write_push(&frame, 100 + seq, &push, NULL), 0);
    peer_send(p, &frame);
    return hear_push(p, seq);
}

static void assert_rows(struct peer *p, uint64_t x, float value)
{
    float rows[N_KEYS * DIM];

    (void)pull_rows(p, 9000 + x, x, false, rows);
    for (uint32_t i = 0; i < N_KEYS * DIM; i++)
        assert_true(rows[i] == value);
}

static void a_push_has_the_keys_of_the_pull_that_it_names(void **state)
{
    struct fixture f;
    struct peer p;
    uint64_t seq = 0;

    (void)state;
    set_up(&f);
    p = worker_of(&f, 0);
    assert_int_equal(ask_async_table(&p, "t"), 0);
    for (uint64_t x = 1; x <= SECTION_PULLS_KEPT + 1; x++)
        assert_true(pull_rows(&p, 200 + x, x, true, NULL));
    assert_false(pull_rows(&p, 300, 1, false, NULL));
    for (uint64_t x = SECTION_PULLS_KEPT + 1; x > 1; x--)
        assert_int_equal(push_named(&p, ++seq, 200 + x, 1, N_KEYS).status, 0);
    assert_int_equal(push_named(&p, ++seq, 203, 1, N_KEYS).status, 0);
    assert_rows(&p, 1, 0);
    assert_rows(&p, 2, 1);
    assert_rows(&p, 3, 2);
    /* The first one had to make place: the push is to come again with its keys, under the same number. */
    assert_int_equal(push_named(&p, seq + 1, 201, 1, N_KEYS).status, PS_EKEYS);
    assert_int_equal(push_named(&p, seq + 1, 202, 1, N_KEYS).status, 0);
    assert_rows(&p, 2, 2);
    peer_close(&p);
    tear_down(&f);
}

static void a_name_that_is_none_is_refused_and_the_connection_goes_on(void **state)
{
    struct fixture f;
    struct peer p, other;

    (void)state;
    set_up(&f);
    p = worker_of(&f, 0);
    other = worker_of(&f, 1);
    assert_int_equal(ask_async_table(&p, "t"), 0);
    assert_true(pull_rows(&p, 200, 1, true, NULL));
    assert_int_equal(push_named(&p, 1, 200, 2, N_KEYS).status, PS_ECOUNT);
    assert_int_equal(push_named(&p, 1, 200, UINT32_MAX, N_KEYS).status, PS_ECOUNT);
    assert_int_equal(push_named(&p, 1, 200, 1, N_KEYS + 1).status, PS_ECOUNT);
    assert_int_equal(push_named(&p, 1, UINT64_MAX, 1, N_KEYS).status, PS_EKEYS);
    assert_int_equal(push_named(&other, 1, 200, 1, N_KEYS).status, PS_EKEYS);
    assert_rows(&p, 1, 0);
    assert_int_equal(push_named(&p, 1, 200, 1, N_KEYS).status, 0);
    assert_rows(&p, 1, 1);
    peer_close(&p);
    peer_close(&other);
    tear_down(&f);
}

/* What is kept goes with the connection: one that comes next knows nothing of it. */
static void a_new_connection_has_no_keys(void **state)
{
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = worker_of(&f, 0);
    assert_int_equal(ask_async_table(&p, "t"), 0);
    assert_true(pull_rows(&p, 200, 1, true, NULL));
    peer_close(&p);
    p = worker_of(&f, 0);
    assert_int_equal(push_named(&p, 1, 200, 1, N_KEYS).status, PS_EKEYS);
    peer_close(&p);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_pulls_are_kept_whatever_memory_there_is),
        cmocka_unit_test(what_a_push_has_outlives_the_connection),
        cmocka_unit_test(a_pull_of_very_many_keys_is_not_kept),
        cmocka_unit_test(a_push_with_more_than_a_frame_of_keys_and_values_is_refused),
        cmocka_unit_test(a_push_has_the_keys_of_the_pull_that_it_names),
        cmocka_unit_test(a_name_that_is_none_is_refused_and_the_connection_goes_on),
        cmocka_unit_test(a_new_connection_has_no_keys),
    };

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

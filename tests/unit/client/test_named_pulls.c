/* Pushes that name the keys of their pulls: which ones do, and that each push is applied once and whole, whatever
 * happens to connections meanwhile. */
#include "worker/client/named_pulls.h"

#include "common/hash.h"
#include "proto/key_codec.h"
#include "tests/support/seed.h"
#include "tests/unit/client/fixture.h"

/* A request of one section; `n` keys from `first` on. */
static struct request *request_of(uint32_t table, uint64_t first, uint32_t n)
{
    struct request *r = request_new(1);
    uint64_t of[64];
    uint8_t *to;
    size_t n_bytes;

    assert_non_null(r);
    for (uint32_t i = 0; i < n; i++)
        of[i] = first + i;
    to = bytes_reserve(&r->bytes, (size_t)n * KEY_CODEC_BYTES_MAX + 1);
    assert_non_null(to);
    n_bytes = key_codec_encode(of, n, to);
    bytes_commit(&r->bytes, n_bytes);
    r->sections[0] =
        (struct section){ .table_id = table, .n_keys = n, .keys = to, .key_bytes = n_bytes };
    return r;
}

/* Request ids are tens of the numbers. */
static void ask(struct named_pulls *p, struct request *pull)
{
    pull->keep_number = named_pulls_ask(p);
    assert_true(pull->keep_number > 0);
    pull->request_id = 10 * pull->keep_number;
}

/* The number of the pull that a push of these keys names; 0: none. */
static uint64_t named(struct named_pulls *p, uint32_t table, uint64_t first, uint32_t n)
{
    static const uint32_t ids[] = { 70, 71, 72, 73 };
    struct request *r = request_of(table, first, n);
    struct push *push = memory_alloc(sizeof *push);
    uint64_t of;

    request_push(r, ids, push);
    named_pulls_name(p, r, push);
    of = push->keys_of / 10;
    assert_int_equal(push->sections[0].keys_at, of ? 1 : 0);
    assert_int_equal(push->sections[0].key_bytes, of ? 0 : r->sections[0].key_bytes);
    assert_int_equal(push->sections[0].table_id, ids[table]);
    request_free(r);
    free(push);
    return of;
}

static void a_push_names_the_pull_with_its_keys_and_no_other(void **state)
{
    struct named_pulls p = { 0 };
    struct request *pulls[3] = { request_of(0, 5, 9), request_of(1, 5, 9),
                                 request_of(0, 6, 9) };

    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        ask(&p, pulls[i]);
    assert_int_equal(named(&p, 0, 5, 9), 0); /* not answered yet */
    for (uint32_t i = 3; i--;)
        named_pulls_add(&p, pulls[i]);
    assert_int_equal(named(&p, 0, 5, 9), 1);
    assert_int_equal(named(&p, 1, 5, 9), 2);
    assert_int_equal(named(&p, 0, 6, 9), 3);
    assert_int_equal(named(&p, 0, 5, 8), 0);
    assert_int_equal(named(&p, 2, 5, 9), 0);
    assert_int_equal(named(&p, 0, 5, 0), 0);
    named_pulls_reset(&p);
    assert_int_equal(named(&p, 0, 5, 9), 0);
}

/* Two tables, one of which has the same keys in all pulls. */
static void a_push_names_the_pull_that_saves_most_bytes(void **state)
{
    static const uint32_t ids[] = { 70, 71 };
    struct named_pulls p = { 0 };
    struct push *push = memory_alloc(sizeof *push);
    struct request *r;

    (void)state;
    for (uint64_t k = 0; k < 3; k++) {
        struct request *same = request_of(1, 0, 4);

        r = request_of(0, 100 * k, 9);
        r = memory_need(realloc(r, sizeof *r + 2 * sizeof r->sections[0]));
        r->n_sections = r->cap_sections = 2;
        r->sections[1] = same->sections[0];
        ask(&p, r);
        named_pulls_add(&p, r);
        r->bytes.start = r->bytes.end; /* the keys of `same` stay with the test */
        free(same);
    }
    r = request_of(1, 0, 4);
    r = memory_need(realloc(r, sizeof *r + 2 * sizeof r->sections[0]));
    r->n_sections = r->cap_sections = 2;
    r->sections[1] = p.pulls[1]->sections[0];
    request_push(r, ids, push);
    named_pulls_name(&p, r, push);
    assert_int_equal(push->keys_of, 20);
    assert_int_equal(push->sections[0].keys_at, 2);
    assert_int_equal(push->sections[1].keys_at, 1);
    request_free(r);
    for (uint32_t i = 0; i < 3; i++)
        free((void *)(uintptr_t)p.pulls[i]->sections[1].keys);
    named_pulls_reset(&p);
    free(push);
}

/* Against what a shard keeps: the keys of the last pulls that asked. */
static void a_pull_with_too_many_behind_it_is_not_named(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    struct named_pulls p = { 0 };
    struct request *sent[64] = { 0 };
    uint32_t n_sent = 0, n_named = 0;
    uint64_t dice = 0;

    (void)state;
    for (uint32_t step = 0; step < 4000; step++) {
        const uint64_t roll = hash_mix2(seed, dice++);

        if (n_sent == 0 || (roll % 3 == 0 && n_sent < COUNT_OF(sent))) {
            struct request *pull = request_of(0, 1000 * (p.n_asked + 1), 5);

            p.n_unused = 0;
            ask(&p, pull);
            sent[n_sent++] = pull;
        } else if (roll % 3 == 1) { /* answers come in any order; some keys are not kept */
            const uint32_t i = (uint32_t)(roll / 3 % n_sent);

            if (roll % 7)
                named_pulls_add(&p, sent[i]);
            else
                request_free(sent[i]);
            sent[i] = sent[--n_sent];
        } else {
            const uint64_t number = p.n_asked - roll / 3 % 12,
                           of = named(&p, 0, 1000 * number, 5);

            assert_true(of == 0 || of == number);
            assert_true(of == 0 || p.n_asked - of < SECTION_PULLS_KEPT);
            n_named += of != 0;
        }
        if (step % 977 == 0) { /* the connection ends */
            named_pulls_reset(&p);
            while (n_sent)
                request_free(sent[--n_sent]);
        }
        assert_true(p.n <= SECTION_PULLS_KEPT);
    }
    assert_true(n_named > 100);
    while (n_sent)
        request_free(sent[--n_sent]);
    named_pulls_reset(&p);
}

static void where_no_push_names_them_few_pulls_ask(void **state)
{
    struct named_pulls p = { 0 };
    uint32_t n = 0;

    (void)state;
    for (uint32_t i = 0; i < 64 * 101; i++)
        n += named_pulls_ask(&p) != 0;
    assert_int_equal(n, 64 + 100);
    p.is_off = true;
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(named_pulls_ask(&p), 0);
}

static uint64_t run(const struct fake_plan *plan, bool *ret_was_hit)
{
    struct fake *f = fake_start(plan);
    struct ps_stats stats;
    char address[32];
    struct err err;
    uint64_t n_named = 0;

    fake_address(f, address);
    if (run_job(address, &stats, &err))
        fail_msg("fault %d at %ld: %s", plan->fault, plan->fault_at, err.text);
    fake_stop(f);
    check_applied_once(f);
    for (uint32_t i = 0; i < plan->n_shards; i++)
        n_named += f->shards[i].n_named;
    *ret_was_hit = plan->fault_at >= 0 && f->n_frames > plan->fault_at;
    fake_free(f);
    return n_named;
}

static void each_push_is_applied_once_and_whole_wherever_a_connection_breaks(void **state)
{
    static const enum fake_fault faults[] = { FAKE_DROP_BEFORE, FAKE_DROP_AFTER, FAKE_GARBAGE };
    struct fake_plan plan = { .n_shards = 2, .keeps_keys = true, .fault_at = -1, .seed = 7 };
    bool was_hit;

    (void)state;
    assert_int_equal(run(&plan, &was_hit), 2 * N_STEPS);
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        plan.fault = faults[i];
        plan.fault_at = 0;
        do
            assert_true(run(&plan, &was_hit) >= N_STEPS);
        while (plan.fault_at += 5, was_hit);
    }
}

static void a_shard_that_keeps_no_keys_gets_them_with_each_push(void **state)
{
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1 };
    bool was_hit;

    (void)state;
    assert_int_equal(run(&plan, &was_hit), 0);
}

/* It answers that it has not; the push comes again with its keys, and so do all later ones. */
static void a_shard_that_has_lost_the_keys_gets_the_whole_push(void **state)
{
    struct fake_plan plan = {
        .n_shards = 2, .keeps_keys = true, .lacks_keys = true, .fault_at = -1
    };
    bool was_hit;

    (void)state;
    assert_int_equal(run(&plan, &was_hit), 0);
}

/* A push of known keys, behind a pull of them, to a shard that takes frames of so many bytes. */
static int push_to(uint32_t frame_max_bytes, bool keeps_keys, uint64_t *ret_n_named)
{
    const struct fake_plan plan = { .n_shards = 1,
                                    .keeps_keys = keeps_keys,
                                    .frame_max_bytes = frame_max_bytes,
                                    .fault_at = -1 };
    float rows[N_KEYS * FAKE_DIM];
    struct rig rig;
    struct err err;
    int status;

    set_up(&rig, &plan, NULL);
    if (pull_rows(rig.c, rig.table, 0, rows, &err))
        fail_msg("%s", err.text);
    status = push_and_flush(&rig, 0, &err);
    halt(&rig);
    *ret_n_named += rig.f->shards[0].n_named;
    tear_down(&rig);
    return status;
}

/* What is too large fails at once, and not when it goes with its keys on a later connection. */
static void a_push_that_fits_without_its_keys_alone_is_too_large(void **state)
{
    const uint32_t row_bytes = N_KEYS * FAKE_DIM * sizeof(float);
    uint32_t n_too_large = 0;
    uint64_t n_named = 0, n_none = 0;

    (void)state;
    for (uint32_t more = 24; more < 96; more += 4) {
        const int status = push_to(row_bytes + more, true, &n_named);

        assert_true(status == 0 || status == PS_ETOOBIG);
        assert_int_equal(push_to(row_bytes + more, false, &n_none), status);
        n_too_large += status != 0;
    }
    assert_true(n_too_large > 0);
    assert_int_equal(n_none, 0);
    assert_int_equal(push_to(4096, true, &n_named), 0);
    assert_true(n_named > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_push_names_the_pull_with_its_keys_and_no_other),
        cmocka_unit_test(a_push_names_the_pull_that_saves_most_bytes),
        cmocka_unit_test(a_pull_with_too_many_behind_it_is_not_named),
        cmocka_unit_test(where_no_push_names_them_few_pulls_ask),
        cmocka_unit_test(each_push_is_applied_once_and_whole_wherever_a_connection_breaks),
        cmocka_unit_test(a_shard_that_keeps_no_keys_gets_them_with_each_push),
        cmocka_unit_test(a_shard_that_has_lost_the_keys_gets_the_whole_push),
        cmocka_unit_test(a_push_that_fits_without_its_keys_alone_is_too_large),
    };

    signal(SIGPIPE, SIG_IGN); /* as every program that speaks frames does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

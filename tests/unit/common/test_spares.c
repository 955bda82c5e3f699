#include <assert.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/mem.h"
#include "common/pile.h"
#include "common/spares.h"

#define N_ROUNDS 20000u

struct block {
    struct spare spare;
    uint32_t owner; /* of the thread that has it; 0: nobody's */
};

static struct block *block_of(struct spare *spare)
{
    return spare ? CONTAINER_OF(spare, struct block, spare) : NULL;
}

static void free_all(struct spares *s)
{
    struct spare *spare;

    while ((spare = spares_take(s)) != NULL)
        free(block_of(spare));
    spares_deinit(s);
}

static void the_newest_goes_out_first(void **state)
{
    struct block a = { 0 }, b = { 0 };
    struct spares s;

    (void)state;
    spares_init(&s, 2, 0);
    assert_null(spares_take(&s));
    assert_true(spares_give(&s, &a.spare, 10));
    assert_true(spares_give(&s, &b.spare, 20));
    assert_int_equal(s.n_bytes, 30);
    assert_ptr_equal(spares_take(&s), &b.spare);
    assert_ptr_equal(spares_take(&s), &a.spare);
    assert_null(spares_take(&s));
    assert_int_equal(s.n_bytes, 0);
    spares_deinit(&s);
}

static void a_few_stay_however_large_and_more_as_long_as_they_are_small(void **state)
{
    struct block blocks[5] = { 0 };
    struct spares s;

    (void)state;
    spares_init(&s, 2, 100);
    assert_true(spares_give(&s, &blocks[0].spare, 1000));
    assert_true(spares_give(&s, &blocks[1].spare, SIZE_MAX / 2));
    assert_false(spares_give(&s, &blocks[2].spare, 1));
    assert_ptr_equal(spares_take(&s), &blocks[1].spare);
    assert_ptr_equal(spares_take(&s), &blocks[0].spare);
    for (int i = 0; i < 4; i++)
        assert_true(spares_give(&s, &blocks[i].spare, 25));
    assert_false(spares_give(&s, &blocks[4].spare, 1));
    assert_true(spares_give(&s, &blocks[4].spare, 0));
    for (int i = 0; i < 5; i++)
        assert_non_null(spares_take(&s));
    assert_int_equal(s.n_bytes, 0);
    spares_deinit(&s);
}

static void without_room_for_more_none_stays_beyond_the_few(void **state)
{
    struct block blocks[2] = { 0 };
    struct spares s;

    (void)state;
    spares_init(&s, 1, 0);
    assert_true(spares_give(&s, &blocks[0].spare, 0));
    assert_false(spares_give(&s, &blocks[1].spare, 0));
    assert_ptr_equal(spares_take(&s), &blocks[0].spare);
    spares_deinit(&s);
}

static void a_pile_gives_out_the_newest_and_keeps_no_more_than_it_may(void **state)
{
    struct pile_link a, b, c;
    struct pile p = { .n_max = 2 };

    (void)state;
    assert_null(pile_pop(&p));
    assert_true(pile_push(&p, &a));
    assert_true(pile_push(&p, &b));
    assert_false(pile_push(&p, &c));
    assert_ptr_equal(pile_pop(&p), &b);
    assert_true(pile_push(&p, &c));
    assert_ptr_equal(pile_pop(&p), &c);
    assert_ptr_equal(pile_pop(&p), &a);
    assert_null(pile_pop(&p));
    assert_int_equal(p.n, 0);
}

struct hand {
    pthread_t thread;
    struct spares *spares;
    uint32_t id, n_made;
};

/* Takes or makes, and gives: nobody else may have the block meanwhile. */
static void *turn_over(void *arg)
{
    struct hand *h = arg;

    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        struct block *block = block_of(spares_take(h->spares));

        if (!block) {
            block = mem_alloc(sizeof *block);
            h->n_made++;
        }
        assert(block->owner == 0);
        block->owner = h->id;
        assert(block->owner == h->id);
        block->owner = 0;
        if (!spares_give(h->spares, &block->spare, sizeof *block))
            abort();
    }
    return NULL;
}

static void threads_that_turn_blocks_over_make_one_each(void **state)
{
    struct hand hands[4] = { 0 };
    struct spares s;
    uint32_t n_made = 0;

    (void)state;
    spares_init(&s, COUNT_OF(hands), 0);
    for (uint32_t i = 0; i < COUNT_OF(hands); i++) {
        hands[i] = (struct hand){ .spares = &s, .id = i + 1 };
        assert_int_equal(pthread_create(&hands[i].thread, NULL, turn_over, &hands[i]), 0);
    }
    for (uint32_t i = 0; i < COUNT_OF(hands); i++) {
        assert_int_equal(pthread_join(hands[i].thread, NULL), 0);
        n_made += hands[i].n_made;
    }
    assert_in_range(n_made, 1, COUNT_OF(hands));
    assert_int_equal(s.n, n_made);
    free_all(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newest_goes_out_first),
        cmocka_unit_test(a_pile_gives_out_the_newest_and_keeps_no_more_than_it_may),
        cmocka_unit_test(a_few_stay_however_large_and_more_as_long_as_they_are_small),
        cmocka_unit_test(without_room_for_more_none_stays_beyond_the_few),
        cmocka_unit_test(threads_that_turn_blocks_over_make_one_each),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include <assert.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/free_list.h"
#include "common/memory.h"

#define N_ROUNDS 20000u

struct block {
    struct shared_free_link link;
    uint32_t owner; /* of the thread that has it; 0: nobody's */
};

static struct block *block_of(struct shared_free_link *link)
{
    return link ? CONTAINER_OF(link, struct block, link) : NULL;
}

static void free_all(struct shared_free_list *s)
{
    struct shared_free_link *link;

    while ((link = shared_free_list_pop(s)) != NULL)
        free(block_of(link));
    shared_free_list_deinit(s);
}

static void the_newest_goes_out_first(void **state)
{
    struct block a = { 0 }, b = { 0 };
    struct shared_free_list s;

    (void)state;
    shared_free_list_init(&s, 2, 0);
    assert_null(shared_free_list_pop(&s));
    assert_true(shared_free_list_push(&s, &a.link, 10));
    assert_true(shared_free_list_push(&s, &b.link, 20));
    assert_int_equal(s.n_bytes, 30);
    assert_ptr_equal(shared_free_list_pop(&s), &b.link);
    assert_ptr_equal(shared_free_list_pop(&s), &a.link);
    assert_null(shared_free_list_pop(&s));
    assert_int_equal(s.n_bytes, 0);
    shared_free_list_deinit(&s);
}

static void a_few_stay_however_large_and_more_as_long_as_they_are_small(void **state)
{
    struct block blocks[5] = { 0 };
    struct shared_free_list s;

    (void)state;
    shared_free_list_init(&s, 2, 100);
    assert_true(shared_free_list_push(&s, &blocks[0].link, 1000));
    assert_true(shared_free_list_push(&s, &blocks[1].link, SIZE_MAX / 2));
    assert_false(shared_free_list_push(&s, &blocks[2].link, 1));
    assert_ptr_equal(shared_free_list_pop(&s), &blocks[1].link);
    assert_ptr_equal(shared_free_list_pop(&s), &blocks[0].link);
    for (int i = 0; i < 4; i++)
        assert_true(shared_free_list_push(&s, &blocks[i].link, 25));
    assert_false(shared_free_list_push(&s, &blocks[4].link, 1));
    assert_true(shared_free_list_push(&s, &blocks[4].link, 0));
    for (int i = 0; i < 5; i++)
        assert_non_null(shared_free_list_pop(&s));
    assert_int_equal(s.n_bytes, 0);
    shared_free_list_deinit(&s);
}

static void without_space_for_more_none_stays_beyond_the_few(void **state)
{
    struct block blocks[2] = { 0 };
    struct shared_free_list s;

    (void)state;
    shared_free_list_init(&s, 1, 0);
    assert_true(shared_free_list_push(&s, &blocks[0].link, 0));
    assert_false(shared_free_list_push(&s, &blocks[1].link, 0));
    assert_ptr_equal(shared_free_list_pop(&s), &blocks[0].link);
    shared_free_list_deinit(&s);
}

static void a_free_list_gives_out_the_newest_and_keeps_no_more_than_it_may(void **state)
{
    struct free_list_link a, b, c;
    struct free_list p = { .n_max = 2 };

    (void)state;
    assert_null(free_list_pop(&p));
    assert_true(free_list_push(&p, &a));
    assert_true(free_list_push(&p, &b));
    assert_false(free_list_push(&p, &c));
    assert_ptr_equal(free_list_pop(&p), &b);
    assert_true(free_list_push(&p, &c));
    assert_ptr_equal(free_list_pop(&p), &c);
    assert_ptr_equal(free_list_pop(&p), &a);
    assert_null(free_list_pop(&p));
    assert_int_equal(p.n, 0);
}

struct hand {
    pthread_t thread;
    struct shared_free_list *list;
    uint32_t id, n_made;
};

/* Takes or makes, and gives: nobody else may have the block meanwhile. */
static void *turn_over(void *arg)
{
    struct hand *h = arg;

    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        struct block *block = block_of(shared_free_list_pop(h->list));

        if (!block) {
            block = memory_alloc(sizeof *block);
            h->n_made++;
        }
        assert(block->owner == 0);
        block->owner = h->id;
        assert(block->owner == h->id);
        block->owner = 0;
        if (!shared_free_list_push(h->list, &block->link, sizeof *block))
            abort();
    }
    return NULL;
}

static void threads_that_turn_blocks_over_make_one_each(void **state)
{
    struct hand hands[4] = { 0 };
    struct shared_free_list s;
    uint32_t n_made = 0;

    (void)state;
    shared_free_list_init(&s, COUNT_OF(hands), 0);
    for (uint32_t i = 0; i < COUNT_OF(hands); i++) {
        hands[i] = (struct hand){ .list = &s, .id = i + 1 };
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
        cmocka_unit_test(a_free_list_gives_out_the_newest_and_keeps_no_more_than_it_may),
        cmocka_unit_test(a_few_stay_however_large_and_more_as_long_as_they_are_small),
        cmocka_unit_test(without_space_for_more_none_stays_beyond_the_few),
        cmocka_unit_test(threads_that_turn_blocks_over_make_one_each),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

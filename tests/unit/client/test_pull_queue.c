/* Which pulls a link sends, and which it holds back. */
#include "worker/client/pull_queue.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "worker/client/pull.h"

#define N_MAX 64u
#define N_STEPS 20000u

/* Number 3's id is 3 until it has ended. */
static struct ps_pull pulls[N_STEPS + 1];

static struct request *new_pull(uint64_t pull_id, size_t n_bytes)
{
    struct request *r = request_new(0);

    assert_non_null(r);
    pulls[pull_id].id = pull_id;
    r->pull = &pulls[pull_id];
    r->pull_id = pull_id;
    assert_non_null(bytes_reserve(&r->bytes, n_bytes + 1));
    bytes_commit(&r->bytes, n_bytes);
    return r;
}

/* As a link does: all that it may; returns how many. */
static uint32_t send_all(struct pull_queue *q, uint64_t *last_request_id)
{
    uint32_t n = 0;

    while (pull_queue_next(q, 4, 1000)) {
        pull_queue_sent(q, ++*last_request_id);
        n++;
    }
    return n;
}

static void answer(struct pull_queue *q, uint64_t request_id)
{
    struct request *r = pull_queue_find(q, request_id);

    assert_non_null(r);
    pull_queue_remove(q, r);
    request_free(r);
    assert_null(pull_queue_find(q, request_id));
}

static void pulls_beyond_the_limit_are_held_back_until_others_are_answered(void **state)
{
    struct pull_queue q = { 0 };
    uint64_t last = 0;

    (void)state;
    for (uint64_t id = 1; id <= 7; id++)
        pull_queue_add(&q, new_pull(id, 10));
    assert_int_equal(send_all(&q, &last), 4);
    assert_null(pull_queue_find(&q, 5));
    answer(&q, 3);
    answer(&q, 1);
    assert_int_equal(send_all(&q, &last), 2);
    assert_int_equal(pull_queue_find(&q, 5)->pull_id, 5);
    assert_int_equal(pull_queue_oldest(&q)->pull_id, 2);
    pull_queue_reset(&q);
    assert_null(pull_queue_find(&q, 6));
    assert_int_equal(pull_queue_next(&q, 4, 1000)->pull_id, 2);
    pull_queue_clear(&q);
    assert_null(pull_queue_next(&q, 4, 1000));
}

static void the_keys_of_all_that_are_sent_fit_a_frame_but_one_pull_is_always_sent(void **state)
{
    struct pull_queue q = { 0 };
    uint64_t last = 0;

    (void)state;
    pull_queue_add(&q, new_pull(1, 5000));
    pull_queue_add(&q, new_pull(2, 600));
    pull_queue_add(&q, new_pull(3, 400));
    pull_queue_add(&q, new_pull(4, 1));
    assert_int_equal(send_all(&q, &last), 1);
    answer(&q, 1);
    assert_int_equal(send_all(&q, &last), 2);
    answer(&q, 2);
    assert_int_equal(send_all(&q, &last), 1);
    pull_queue_clear(&q);
}

/* The shard parks it still, and refuses a connection's 17th. */
static void a_dropped_pull_counts_until_its_answer_or_the_end_of_the_connection(void **state)
{
    struct pull_queue q = { 0 };
    uint64_t last = 0;

    (void)state;
    for (uint64_t id = 1; id <= 6; id++)
        pull_queue_add(&q, new_pull(id, 10));
    assert_int_equal(send_all(&q, &last), 4);
    for (uint64_t id = 1; id <= 3; id++)
        pulls[id].id = 0;
    pull_queue_drop_ended(&q);
    pulls[5].id = 77; /* and is used again; it was not sent: it goes at once */
    pull_queue_drop_ended(&q);
    pull_queue_drop_ended(&q);
    assert_int_equal(send_all(&q, &last), 0);
    assert_int_equal(pull_queue_oldest(&q)->pull_id, 4);
    assert_true(pull_queue_find(&q, 2)->is_dropped);
    answer(&q, 2);
    assert_int_equal(send_all(&q, &last), 1);
    pull_queue_reset(&q);
    assert_int_equal(send_all(&q, &last), 2);
    assert_int_equal(pull_queue_oldest(&q)->pull_id, 4);
    pull_queue_clear(&q);
    assert_null(pull_queue_oldest(&q));
}

/* ---- random steps against a trivial model ---- */

struct item {
    uint64_t pull_id, request_id; /* 0: not sent */
    bool is_dropped;
};

struct model {
    struct item items[N_MAX];
    uint32_t n;
};

static void remove_item(struct model *m, uint32_t i)
{
    memmove(&m->items[i], &m->items[i + 1], (m->n - i - 1) * sizeof m->items[0]);
    m->n--;
}

static uint32_t n_sent(const struct model *m)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->n; i++)
        n += m->items[i].request_id != 0;
    return n;
}

static void check_same(const struct pull_queue *q, const struct model *m)
{
    const struct request *r = q->first;

    for (uint32_t i = 0; i < m->n; i++, r = r->next) {
        assert_non_null(r);
        assert_int_equal(r->pull_id, m->items[i].pull_id);
        assert_int_equal(r->is_dropped, m->items[i].is_dropped);
        if (m->items[i].request_id)
            assert_ptr_equal(pull_queue_find(q, m->items[i].request_id), r);
    }
    assert_null(r);
    assert_int_equal(q->n_sent, n_sent(m));
    assert_int_equal(q->sent_bytes, n_sent(m) * 10);
}

static void drop_item(struct model *m, uint32_t i)
{
    if (m->items[i].request_id)
        m->items[i].is_dropped = true;
    else
        remove_item(m, i);
}

static void reset_items(struct model *m)
{
    for (uint32_t i = m->n; i-- > 0;) {
        m->items[i].request_id = 0;
        if (m->items[i].is_dropped)
            remove_item(m, i);
    }
}

static void random_step(struct pull_queue *q, struct model *m, uint64_t dice, uint64_t *last)
{
    const uint32_t i = m->n ? (uint32_t)(dice >> 8) % m->n : 0;
    const uint64_t id = m->n ? m->items[i].pull_id : 0, what = dice % 16;

    if (what < 6 && m->n < N_MAX) {
        pull_queue_add(q, new_pull(++*last, 10));
        m->items[m->n++] = (struct item){ .pull_id = *last };
    } else if (what < 11 && pull_queue_next(q, 4, 1000)) {
        pull_queue_sent(q, ++*last);
        m->items[n_sent(m)].request_id = *last;
    } else if (what < 13 && m->n && m->items[i].request_id) {
        answer(q, m->items[i].request_id);
        remove_item(m, i);
    } else if (what < 15 && m->n) {
        pulls[id].id = 0;
        pull_queue_drop_ended(q);
        drop_item(m, i);
    } else if (what == 15 && dice >> 32 & 1) {
        pull_queue_reset(q);
        reset_items(m);
    }
}

static void random_steps_end_as_in_a_trivial_model(void **state)
{
    const uint64_t seed = 51000000;
    struct pull_queue q = { 0 };
    struct model m = { .n = 0 };
    uint64_t last = 0;

    (void)state;
    printf("seed %llu\n", (unsigned long long)seed);
    for (uint64_t i = 0; i < N_STEPS; i++) {
        random_step(&q, &m, hash_mix2(seed, i), &last);
        check_same(&q, &m);
    }
    pull_queue_clear(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pulls_beyond_the_limit_are_held_back_until_others_are_answered),
        cmocka_unit_test(the_keys_of_all_that_are_sent_fit_a_frame_but_one_pull_is_always_sent),
        cmocka_unit_test(a_dropped_pull_counts_until_its_answer_or_the_end_of_the_connection),
        cmocka_unit_test(random_steps_end_as_in_a_trivial_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

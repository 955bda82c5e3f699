/* The largest floats of a difference: what is written is what is read, within its limits; and bytes that are none of it
 * are refused. */
#include "server/core/delta_sparse.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"
#include "common/status.h"
#include "tests/support/seed.h"

#define DIM_MAX 3000u

struct bench {
    uint64_t seed, n;
    uint32_t dim;
    float x[DIM_MAX], sent[DIM_MAX], got[DIM_MAX];
    uint8_t bytes[4 * DIM_MAX];
};

static uint64_t draw(struct bench *b)
{
    return hash_mix2(b->seed, b->n++);
}

/* One in `rare` floats is not 0; of about this size, some much larger or smaller. */
static void fill(struct bench *b, uint32_t rare, float size)
{
    bool any = false;

    for (uint32_t i = 0; i < b->dim; i++) {
        const float x = (float)(2 * hash_unit(draw(b)) - 1) * size;

        b->x[i] = draw(b) % rare ? 0 : draw(b) % 16 ? x : x * 1e-3f;
        any = any || b->x[i] != 0;
    }
    if (!any)
        b->x[draw(b) % b->dim] = -size;
}

static double lost(const struct bench *b)
{
    double sum = 0;

    for (uint32_t i = 0; i < b->dim; i++)
        sum += ((double)b->x[i] - (double)b->sent[i]) * ((double)b->x[i] - (double)b->sent[i]);
    return sum;
}

static uint32_t n_sent(const struct bench *b)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->dim; i++)
        n += b->sent[i] != 0;
    return n;
}

static int decode(struct bench *b, size_t n_bytes, size_t *ret_bytes)
{
    uint8_t *exact = memory_alloc(n_bytes + 1); /* a read beyond them is seen */
    int status;

    exact = realloc(exact, n_bytes ? n_bytes : 1);
    memcpy(exact, b->bytes, n_bytes);
    status = delta_sparse_decode(exact, n_bytes, b->dim, b->got, ret_bytes);
    free(exact);
    return status;
}

static void what_is_read_is_what_was_said_to_be_sent(void **state)
{
    static const uint32_t dims[] = { 1, 2, 7, 8, 64, 1000, DIM_MAX };
    static struct bench b;

    (void)state;
    b.seed = seed_by_the_clock();
    for (uint32_t round = 0; round < 3000; round++) {
        const float size = powf(10, (float)(draw(&b) % 30) - 20);
        const uint32_t rare = 1 + (uint32_t)(draw(&b) % 40);
        double allowed, sum = 0;
        size_t n_bytes, n_read = 0;

        b.dim = dims[draw(&b) % COUNT_OF(dims)];
        fill(&b, rare, size);
        for (uint32_t i = 0; i < b.dim; i++)
            sum += (double)b.x[i] * (double)b.x[i];
        allowed = sum * hash_unit(draw(&b)) * (draw(&b) % 2 ? 0.01 : 0.9);
        n_bytes = delta_sparse_encode(b.x, b.dim, allowed, b.bytes, sizeof b.bytes, b.sent);
        assert_true(n_bytes > 4);
        assert_int_equal(decode(&b, n_bytes, &n_read), 0);
        assert_int_equal(n_read, n_bytes);
        assert_memory_equal(b.got, b.sent, b.dim * sizeof b.got[0]);
        assert_true(lost(&b) < sum);
        assert_true(n_sent(&b) <= (b.dim < 8 ? 1 : b.dim / 8));
        /* What is sent of a float loses at most a third of it: with the rest it may not be within. */
        if (n_sent(&b) < b.dim / 8 && allowed > sum / 9 * 1.01)
            assert_true(lost(&b) <= allowed * 1.001);
        assert_int_equal(delta_sparse_encode(b.x, b.dim, allowed, b.bytes, n_bytes - 1, b.sent),
                         0);
    }
}

/* 1 % of a block: a byte and a quarter for each. */
static void few_floats_take_few_bytes(void **state)
{
    static struct bench b = { .dim = 1000 };

    (void)state;
    b.seed = seed_by_the_clock();
    for (uint32_t round = 0; round < 100; round++) {
        size_t n_bytes;

        fill(&b, 100, 1);
        n_bytes = delta_sparse_encode(b.x, b.dim, 0, b.bytes, sizeof b.bytes, b.sent);
        assert_true(n_bytes <= 6 + n_sent(&b) * 3 / 2);
    }
}

/* A layer: an eighth of it is more than the head can count. */
static void of_a_layer_no_more_are_sent_than_can_be_counted(void **state)
{
    const uint32_t dim = 600000;
    float *x = memory_alloc(3 * (size_t)dim * sizeof *x), *sent = x + dim, *got = sent + dim;
    const size_t n_most = 4 * (size_t)dim;
    uint8_t *bytes = memory_alloc(n_most);
    size_t n_bytes, n_read;
    uint32_t n = 0;

    (void)state;
    for (uint32_t i = 0; i < dim; i++)
        x[i] = 2 * hash_unit(hash_mix2(3, i)) - 1;
    n_bytes = delta_sparse_encode(x, dim, 0, bytes, n_most, sent);
    assert_true(n_bytes > 0);
    for (uint32_t i = 0; i < dim; i++)
        n += sent[i] != 0;
    assert_int_equal(n, UINT16_MAX);
    assert_int_equal(delta_sparse_decode(bytes, n_bytes, dim, got, &n_read), 0);
    assert_int_equal(n_read, n_bytes);
    assert_memory_equal(got, sent, dim * sizeof *got);
    free(bytes);
    free(x);
}

static void the_largest_come_first_until_all_have_come(void **state)
{
    static struct bench b = { .dim = 1000 };
    double sum = 0, left;

    (void)state;
    b.seed = seed_by_the_clock();
    fill(&b, 1, 1);
    memset(b.sent, 0, sizeof b.sent);
    sum = lost(&b);
    for (uint32_t round = 0; round < 40; round++) {
        assert_true(delta_sparse_encode(b.x, b.dim, 0, b.bytes, sizeof b.bytes, b.sent) > 0);
        left = lost(&b);
        assert_true(left < sum * (1 - 1.0 / 9));
        for (uint32_t i = 0; i < b.dim; i++)
            b.x[i] -= b.sent[i];
        sum = left;
    }
    assert_true(sum < 1e-3);
}

static void nothing_is_said_of_floats_that_are_too_small(void **state)
{
    static struct bench b = { .dim = 10 };

    (void)state;
    assert_int_equal(delta_sparse_encode(b.x, b.dim, 0, b.bytes, sizeof b.bytes, b.sent), 0);
    b.x[3] = 1e-44f;
    assert_int_equal(delta_sparse_encode(b.x, b.dim, 0, b.bytes, sizeof b.bytes, b.sent), 0);
    b.x[3] = 1;
    assert_int_equal(delta_sparse_encode(b.x, b.dim, 0, b.bytes, 0, b.sent), 0);
    assert_int_equal(delta_sparse_encode(b.x, b.dim, 0, b.bytes, 4, b.sent), 0);
    assert_int_equal(delta_sparse_encode(b.x, b.dim, 1, b.bytes, sizeof b.bytes, b.sent), 0);
}

/* Cut, changed in a bit, or random: refused, or read as finite floats in no more bytes than there are. */
static void bytes_that_are_none_of_it_are_refused(void **state)
{
    static struct bench b;
    uint32_t n_refused = 0;
    size_t n_bytes, n_read = 0;

    (void)state;
    b.seed = seed_by_the_clock();
    for (uint32_t round = 0; round < 4000; round++) {
        b.dim = 1 + (uint32_t)(draw(&b) % 300);
        fill(&b, 1 + (uint32_t)(draw(&b) % 9), 1);
        n_bytes = delta_sparse_encode(b.x, b.dim, 0, b.bytes, sizeof b.bytes, b.sent);
        assert_true(n_bytes > 0);
        assert_int_equal(decode(&b, draw(&b) % n_bytes, &n_read), PS_ECOUNT);
        if (round % 2) {
            b.bytes[draw(&b) % n_bytes] ^= (uint8_t)(1u << draw(&b) % 8);
        } else {
            n_bytes = draw(&b) % 64;
            for (size_t i = 0; i < n_bytes; i++)
                b.bytes[i] = (uint8_t)draw(&b);
            if (n_bytes > 1)
                b.bytes[1] = 0;
        }
        if (decode(&b, n_bytes, &n_read)) {
            n_refused++;
            continue;
        }
        assert_true(n_read <= n_bytes);
        for (uint32_t i = 0; i < b.dim; i++)
            assert_true(isfinite(b.got[i]));
    }
    assert_true(n_refused > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_read_is_what_was_said_to_be_sent),
        cmocka_unit_test(few_floats_take_few_bytes),
        cmocka_unit_test(of_a_layer_no_more_are_sent_than_can_be_counted),
        cmocka_unit_test(the_largest_come_first_until_all_have_come),
        cmocka_unit_test(nothing_is_said_of_floats_that_are_too_small),
        cmocka_unit_test(bytes_that_are_none_of_it_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

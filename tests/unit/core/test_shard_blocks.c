/* A dense table is all there or not at all, however little memory there is. */
#include <errno.h>

#include "common/memory.h"
#include "fixture.h"
#include "server/core/shard_internal.h"

#define DIM 256u
#define N_BLOCKS 300u /* more than a chunk; 300 KiB */

struct lab {
    struct shard *s;
    struct worker *w;
    uint32_t emb, top;
};

static struct lab lab_new(enum table_spec_mode mode, uint64_t memory_max_bytes)
{
    struct table_spec emb = sparse_spec("emb", 4, TABLE_SPEC_SGD),
                      top = dense_spec("top", DIM, N_BLOCKS * DIM, TABLE_SPEC_SGD);
    struct lab l = { .s = make_shard(0, 1, memory_max_bytes) };

    emb.mode = top.mode = mode;
    l.emb = make_table(l.s, &emb);
    l.top = make_table(l.s, &top);
    l.w = join(l.s, mode, 0, 0, 1);
    return l;
}

static uint64_t n_rows(const struct lab *l, uint32_t table)
{
    enter_shard();
    return table_n_rows(shard_table(l->s, table)->rows);
}

/* Ten rows of the sparse table, and blocks [from, to) of the dense one. */
static struct push *push_of(const struct lab *l, enum section_op op, uint32_t from, uint32_t to)
{
    static float ones[N_BLOCKS * DIM];
    static uint64_t keys[N_BLOCKS];
    struct push *push = next_push(l->w, l->w->clock);

    for (uint32_t i = 0; i < N_BLOCKS * DIM; i++)
        ones[i] = 1;
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        keys[i] = i;
    add_section(push, l->emb, op, CODEC_FP32, 4, keys, 10, ones);
    add_section(push, l->top, op, CODEC_FP32, DIM, keys + from, to - from, ones);
    return push;
}

static void assert_no_blocks_are_marked(const struct lab *l)
{
    for (uint64_t i = 0; i < N_BLOCKS; i++) {
        const struct row *row = find_row(l->s, l->top, i);

        assert_true(!row || !(row_flags(row) & ROW_MAKING));
    }
}

static void refuse_without_space(enum table_spec_mode mode, enum section_op op)
{
    struct lab l = lab_new(mode, 200 << 10);
    struct table_facts facts;
    struct shard_push_result result = try_push(l.s, l.w, push_of(&l, op, 0, N_BLOCKS));

    assert_int_equal(result.status, PS_EBUDGET);
    assert_non_null(
        strstr(result.text, "dense table top: no space for 300 blocks of 1040 bytes"));
    assert_non_null(strstr(result.text, "--memory-max"));
    assert_int_equal(n_rows(&l, l.emb), 0);
    assert_int_equal(n_rows(&l, l.top), 0);
    assert_string_equal(shard_last_refusal(l.s)->table, "top");
    assert_int_equal(l.s->held_bytes, 0);
    result = try_push(l.s, l.w, push_of(&l, op, 0, 20)); /* what fits, does */
    assert_int_equal(result.status, 0);
    enter_shard();
    (void)shard_advance(l.s, 1);
    assert_int_equal(n_rows(&l, l.top), 20);
    result = try_push(l.s, l.w, push_of(&l, op, 10, N_BLOCKS));
    assert_int_equal(result.status, PS_EBUDGET);
    assert_non_null(strstr(result.text, "280 blocks"));
    assert_int_equal(n_rows(&l, l.top), 20); /* those of before stay */
    table_facts(shard_table(l.s, l.top)->rows, &facts);
    assert_int_equal(facts.n_removed, 0); /* places that were kept are no rows */
    assert_int_equal(l.s->held_bytes, 0);
    assert_int_equal(shard_counters(l.s)->rows_refused, 0);
    assert_no_blocks_are_marked(&l);
    shard_free(l.s);
}

static void a_push_without_memory_for_its_blocks_is_refused_whole(void **state)
{
    (void)state;
    refuse_without_space(TABLE_SPEC_MODE_ASYNC, SECTION_ASSIGN);
    refuse_without_space(TABLE_SPEC_MODE_ASYNC, SECTION_GRADIENT);
    refuse_without_space(TABLE_SPEC_MODE_BSP, SECTION_ASSIGN);
    refuse_without_space(TABLE_SPEC_MODE_BSP,
                         SECTION_GRADIENT); /* told now, not when its clock is */
}

static void sparse_rows_take_nothing_from_blocks_that_are_there(void **state)
{
    struct lab l = lab_new(TABLE_SPEC_MODE_ASYNC, 1 << 20);
    static const float ones[1000 * 4] = { 1 };
    uint64_t keys[1000];

    (void)state;
    must_push(l.s, l.w, push_of(&l, SECTION_ASSIGN, 0, N_BLOCKS));
    for (uint64_t from = 0; from < 100; from++) {
        struct push *push = next_push(l.w, l.w->clock);

        for (uint32_t i = 0; i < 1000; i++)
            keys[i] = from * 1000 + i;
        add_gradient(push, l.emb, 4, keys, 1000, ones);
        must_push(l.s, l.w, push);
    }
    assert_true(shard_counters(l.s)->rows_refused > 0); /* of the sparse one, as ever */
    must_push(l.s, l.w, push_of(&l, SECTION_GRADIENT, 0, N_BLOCKS));
    assert_int_equal(n_rows(&l, l.top), N_BLOCKS);
    assert_int_equal(shard_table(l.s, l.top)->rows_refused, 0);
    shard_free(l.s);
}

#ifdef PS_FAULTS
static void fail_each_allocation(enum table_spec_mode mode)
{
    int status = -ENOMEM;
    long n_failed = 0;

    for (long k = 0; status != 0; k++) {
        struct lab l = lab_new(mode, 0);
        struct push *push = push_of(&l, SECTION_GRADIENT, 0, N_BLOCKS);
        struct shard_push_result result;
        uint64_t n_now;

        enter_shard();
        push->tick = false; /* in lock step it waits */
        memory_fail_after(k);
        status = shard_push(l.s, l.w, push, 0, &result);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        n_failed += strstr(result.text, "dense table top: no memory for 300 blocks") != NULL;
        n_now = mode == TABLE_SPEC_MODE_BSP ? 0 : N_BLOCKS;
        assert_int_equal(n_rows(&l, l.top), status ? 0 : n_now);
        assert_true(!status == (l.s->held_bytes > 0) || mode != TABLE_SPEC_MODE_BSP);
        assert_int_equal(l.w->last_seq, status ? 0 : 1);
        if (status)
            assert_int_equal(shard_push(l.s, l.w, push, 0, &result), 0);
        assert_int_equal(n_rows(&l, l.top), n_now);
        assert_no_blocks_are_marked(&l);
        free_push(push);
        shard_free(l.s);
    }
    assert_true(n_failed > 2);
}

static void without_memory_it_is_not_committed_and_is_sent_again(void **state)
{
    (void)state;
    fail_each_allocation(TABLE_SPEC_MODE_ASYNC);
    fail_each_allocation(TABLE_SPEC_MODE_BSP);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_push_without_memory_for_its_blocks_is_refused_whole),
        cmocka_unit_test(sparse_rows_take_nothing_from_blocks_that_are_there),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_it_is_not_committed_and_is_sent_again),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * What a shard knows beside its tables, as bytes: jobs, workers, held pushes. What is accepted is
 * written back as the same bytes; and the shard goes on with it: workers come, time passes, leases end, held
 * clocks are applied.
 */
#include <errno.h>

#include "tests/unit/core/events_fixture.h"

#include "server/core/snapshot_meta.h"
#include "tests/fuzz/harness.h"

#define DIM 4u

static struct shard *new_shard(void)
{
    struct table_spec emb = sparse_spec("emb", DIM, TABLE_SPEC_ADAGRAD);
    struct table_spec top = dense_spec("top", DIM, 5 * DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);

    emb.mode = TABLE_SPEC_MODE_BSP;
    emb.clip_norm = 1;
    (void)make_table(s, &emb);
    (void)make_table(s, &top);
    return s;
}

static void encode(struct shard *s, struct bytes *out)
{
    int status = snapshot_meta_encode(s, out);

    assert(!status);
    for (const struct bsp_queue *q = s->queues; q; q = q->next)
        for (const struct bsp_held *h = q->first; h; h = h->next) {
            size_t n_bytes;
            const uint8_t *payload = snapshot_meta_payload(h, &n_bytes);

            harness_put(out, payload, n_bytes);
        }
}

static void check_same(struct shard *s, const uint8_t *bytes, size_t n_bytes)
{
    struct bytes again = { 0 };

    encode(s, &again);
    assert(bytes_len(&again) == n_bytes);
    assert(memcmp(bytes_front(&again), bytes, n_bytes) == 0);
    bytes_deinit(&again);
}

static void check_finite(struct shard *s)
{
    const struct shard_table *t;

    enter_shard();
    t = shard_table(s, 0);
    for (uint64_t i = 0; i < table_n_numbers(t->rows); i++) {
        const struct row *row = table_row(t->rows, i);

        for (uint32_t k = 0; row && k < DIM; k++)
            assert(row->floats[k] - row->floats[k] == 0);
    }
}

/* All that was there ends; nothing is held for a job in which nobody counts. */
static void go_on(struct shard *s)
{
    struct worker *worker;
    struct err err;
    struct bytes end = { 0 };

    enter_shard();
    (void)shard_advance(s, 1);
    (void)!membership_join(shard_membership(s),
                           &(struct membership_join){ .job = "job",
                                                      .rank = 1,
                                                      .n_workers = 2,
                                                      .incarnation = 9,
                                                      .mode = TABLE_SPEC_MODE_BSP,
                                                      .name = "tester" },
                           2, &worker, &err);
    (void)shard_advance(s, LEASE_MS + JOIN_MS + 10);
    for (uint32_t i = 0; i < membership_n_jobs(shard_membership(s)); i++)
        assert(!job_is_alive(membership_job(shard_membership(s), i)));
    check_finite(s);
    encode(s, &end);
    bytes_deinit(&end);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct harness_bytes in = { bytes, bytes + n_bytes };
    uint8_t *copy = harness_take(&in, SIZE_MAX, &n_bytes);
    struct shard *s = new_shard();
    int status;

    enter_shard();
    status = snapshot_meta_decode(s, copy, n_bytes, 0);
    if (status == 0) {
        check_same(s, copy, n_bytes);
        go_on(s);
    } else {
        assert(status == PS_ECORRUPT || status == -ENOMEM);
    }
    shard_free(s);
    free(copy);
}

/* --- seeds --- */

static void hold(struct shard *s, struct worker *w, uint64_t n_clocks)
{
    const uint64_t keys[] = { 1, 3, 4 };
    const float values[3 * DIM] = { 1, 2, 3, 4, 5, 6 };

    for (uint64_t clock = 0; clock < n_clocks; clock++) {
        struct push *push = next_push(w, clock);

        (void)add_section(push, 0, SECTION_GRADIENT, clock % 2 ? CODEC_INT8 : CODEC_FP32, DIM,
                          keys, 3, values);
        (void)add_gradient(push, 1, DIM, keys, 2, values);
        (void)must_push(s, w, push);
    }
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    struct shard *s;

    if (i >= 9)
        return false;
    s = new_shard();
    enter_shard();
    for (uint32_t rank = 0; rank < i % 3; rank++)
        hold(s, join(s, TABLE_SPEC_MODE_BSP, 0, rank, 3), i / 3 + rank);
    if (i > 6)
        membership_leave(shard_membership(s), membership_worker(shard_membership(s), "job", 0));
    encode(s, out);
    shard_free(s);
    return true;
}

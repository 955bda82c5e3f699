#include "membership_fixture.h"

struct membership_join ask(uint32_t rank, uint32_t n_workers, uint64_t incarnation)
{
    return (struct membership_join){ .job = "job",
                                     .rank = rank,
                                     .n_workers = n_workers,
                                     .incarnation = incarnation,
                                     .mode = TABLE_SPEC_MODE_SSP,
                                     .bound = 4,
                                     .name = "host:1" };
}

int try_join(struct membership *r, struct membership_join join, uint64_t now_ms,
             struct worker **ret_worker)
{
    struct err err = { 0 };
    int status = membership_join(r, &join, now_ms, ret_worker, &err);

    assert_int_equal(status, err.status);
    assert_true(!status == !err.text[0]); /* every refusal has a sentence */
    return status;
}

struct worker *must_join(struct membership *r, struct membership_join join, uint64_t now_ms)
{
    struct worker *w = NULL;

    assert_int_equal(try_join(r, join, now_ms, &w), 0);
    return w;
}

struct membership_join ask_relay(uint32_t rank, uint64_t incarnation)
{
    struct membership_join join = ask(rank, 3, incarnation);

    join.relays = true;
    return join;
}

struct worker *join_three(struct membership *r)
{
    struct worker *w = NULL;

    for (uint32_t rank = 0; rank < 3; rank++)
        w = must_join(r, ask_relay(rank, 7), 0);
    return w;
}

void hear(struct membership *r, uint32_t rank, uint64_t now_ms)
{
    struct worker *found;

    assert_int_equal(membership_find(r, "job", rank, 7, now_ms, &found), 0);
}

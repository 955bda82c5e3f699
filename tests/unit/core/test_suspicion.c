/* Whom a shard believes about a worker that it hears, or does not hear any more. */
#include "membership_fixture.h"

/* Rank `from` says of `rank`, incarnation `incarnation`, that a shard suspects it, or that all do. */
static bool name_suspect(struct membership *r, const struct worker *w, uint32_t from,
                         uint64_t incarnation, bool is_agreed, uint64_t now_ms)
{
    const struct membership_report report = { from, w->rank, incarnation, is_agreed };

    return membership_suspect(r, w->job, &report, now_ms);
}

/* Three that relay; rank 2 has been silent for longer than its lease, at `1 + LEASE_MS`. */
static struct worker *suspect_one(struct membership *r)
{
    struct worker *w = join_three(r);

    for (uint32_t rank = 0; rank < 2; rank++) {
        hear(r, rank, LEASE_MS);
        w->job->workers[rank].clock = 9;
    }
    assert_false(membership_advance(r, 1 + LEASE_MS));
    assert_true(w->is_suspected);
    assert_int_equal(w->suspected_ms, 1 + LEASE_MS);
    return w;
}

static void a_silent_worker_is_refused_and_waited_for_until_all_shards_suspect_it(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = suspect_one(r), *found;

    (void)state;
    assert_true(membership_has_suspects(r));
    assert_int_equal(w->state, WORKER_LIVE);
    assert_int_equal(job_min_clock(w->job), 0); /* it is waited for ... */
    assert_int_equal(membership_find(r, "job", 2, 7, 1 + LEASE_MS, &found), PS_EFENCED);
    assert_int_equal(try_join(r, ask_relay(2, 7), 1 + LEASE_MS, &found), PS_EFENCED);
    assert_int_equal(membership_n_gone(r), 0);
    assert_false(name_suspect(r, w, 0, 7, false, 1 + LEASE_MS));
    assert_true(name_suspect(r, w, 0, 7, true, 1 + LEASE_MS)); /* ... until then */
    assert_int_equal(w->state, WORKER_DEAD);
    assert_false(w->is_suspected);
    assert_int_equal(job_min_clock(w->job), 9);
    assert_int_equal(w->job->n_deaths, 1);
    assert_false(name_suspect(r, w, 0, 7, true, 1 + LEASE_MS)); /* once more */
    assert_int_equal(w->job->n_deaths, 1);
    (void)membership_advance(r, 1 + LEASE_MS);
    assert_false(membership_has_suspects(r));
    membership_free(r);
}

static void a_worker_that_is_heard_here_is_refused_once_two_others_say_that_a_shard_suspects_it(
    void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = join_three(r), *found;

    (void)state;
    assert_false(name_suspect(r, w, 0, 6, false, 1)); /* its predecessor */
    assert_false(membership_doubts(w, 0));
    assert_false(name_suspect(r, w, 0, 7, true, 1));
    assert_false(name_suspect(r, w, 0, 7, true, 1)); /* one may say so as often as it likes */
    assert_true(membership_doubts(w, 0));
    assert_false(membership_doubts(w, 1));
    (void)membership_advance(r, 2);
    hear(r, 2, 10);
    must_join(r, ask_relay(2, 7), 10); /* a reconnect changes nothing */
    assert_false(name_suspect(r, w, 1, 7, false, 10));
    assert_int_equal(membership_find(r, "job", 2, 7, 10, &found), PS_EFENCED);
    assert_int_equal(w->state, WORKER_LIVE);
    assert_false(membership_doubts(w, 0));
    assert_false(name_suspect(r, w, 1, 7, true,
                              10)); /* what was said before it was refused does not count */
    assert_true(name_suspect(r, w, 0, 7, true, 10));
    assert_int_equal(w->state, WORKER_DEAD);
    membership_free(r);
}

static void a_worker_that_a_shard_does_not_answer_is_refused_by_the_word_of_one(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = join_three(r);

    (void)state;
    assert_false(name_suspect(r, w, 2, 7, false, 1)); /* of itself */
    assert_true(w->doubts_itself);
    (void)membership_advance(r, 2);
    assert_false(w->is_suspected);
    assert_false(name_suspect(r, w, 0, 7, false, 3));
    assert_true(w->is_suspected);
    membership_free(r);
}

static void who_does_not_relay_is_not_believed(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = join_three(r);
    struct membership_join mute = ask_relay(0, 8);

    (void)state;
    mute.relays = false;
    must_join(r, mute, 1);
    membership_leave(r, &w->job->workers[1]);
    assert_false(name_suspect(r, w, 0, 7, false, 1));
    assert_false(membership_doubts(w, 0));
    assert_false(w->is_suspected);
    membership_free(r);
}

/* A healthy worker finds out within its lease, and comes back as somebody new. */
static void one_worker_alone_ends_nobody_before_a_lease_is_over(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = join_three(r);

    (void)state;
    membership_leave(r, &w->job->workers[1]);
    hear(r, 2, 100);
    assert_false(name_suspect(r, w, 0, 7, true, 100)); /* nobody else could say it */
    assert_true(w->is_suspected);
    assert_false(name_suspect(r, w, 0, 7, true, 101));
    hear(r, 0, 100 + LEASE_MS);
    assert_false(membership_advance(r, 100 + LEASE_MS));
    assert_int_equal(w->state, WORKER_LIVE);
    assert_true(membership_advance(r, 101 + LEASE_MS));
    assert_int_equal(w->state, WORKER_DEAD);
    assert_int_equal(w->agreed.ranks[0], 0); /* for the log */
    membership_free(r);
}

/* At the start of a job the others are still to come. */
static void an_expected_worker_is_asked_for_its_word_too(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = must_join(r, ask_relay(2, 7), 0);

    (void)state;
    must_join(r, ask_relay(0, 7), 0);
    assert_false(name_suspect(r, w, 0, 7, false, 1));
    assert_false(w->is_suspected);
    hear(r, 0, JOIN_MS);
    hear(r, 2, JOIN_MS);
    assert_true(membership_advance(r, JOIN_MS)); /* it has not come */
    assert_false(membership_advance(r, JOIN_MS + 1));
    assert_false(w->is_suspected); /* by what was said before */
    assert_false(name_suspect(r, w, 0, 7, false, JOIN_MS + 1));
    assert_true(w->is_suspected);
    membership_free(r);
}

/* It has a lease to come back. */
static void
a_worker_that_has_not_come_back_since_a_restart_is_asked_for_its_word_too(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = join_three(r);

    (void)state;
    w->job->workers[1].relays = false; /* as a log has it */
    membership_renew(r, 10);
    must_join(r, ask_relay(0, 7), 10);
    assert_false(name_suspect(r, w, 0, 7, false, 11));
    assert_false(w->is_suspected);
    hear(r, 0, 11 + LEASE_MS);
    hear(r, 2, 11 + LEASE_MS);
    assert_false(membership_advance(r, 11 + LEASE_MS)); /* it has not */
    assert_false(name_suspect(r, w, 0, 7, false, 11 + LEASE_MS));
    assert_true(w->is_suspected);
    membership_free(r);
}

/* As while its join's reply waits for a standby: nobody is dead by this shard's word alone. */
static void who_is_heard_and_has_not_come_back_since_a_restart_may_relay(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = join_three(r);

    (void)state;
    w->job->workers[1].relays = w->job->workers[2].relays = false; /* as a log has them */
    membership_renew(r, 10);
    must_join(r, ask_relay(0, 7), 10);
    hear(r, 1, 11 + LEASE_MS);
    assert_false(membership_advance(r, 11 + LEASE_MS));
    assert_true(w->job->workers[0].is_suspected);
    w->job->workers[1].is_known = true; /* and does not */
    assert_true(membership_advance(r, 11 + LEASE_MS));
    assert_int_equal(w->job->workers[0].state, WORKER_DEAD);
    membership_free(r);
}

/* Its join is on its way here, or was lost with a crash, when the others have agreed to go on without it. */
static void an_incarnation_that_another_shard_suspects_may_not_join_any_more(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = must_join(r, ask_relay(0, 7), 0), *first = w, *second, *found;

    (void)state;
    second = must_join(r, ask_relay(1, 7), 0);
    w = &first->job->workers[2];
    assert_false(name_suspect(r, w, 0, 7, false, 1)); /* expected */
    assert_int_equal(try_join(r, ask_relay(2, 7), 1, &found), PS_EFENCED);
    assert_true(membership_fence(r, "job", 2) <= 8);
    must_join(r, ask_relay(2, 8), 1);
    assert_false(
        name_suspect(r, second, 0, 9, true, 1)); /* a process behind the one that is here */
    assert_int_equal(membership_find(r, "job", 1, 7, 2, &found), 0);
    assert_int_equal(try_join(r, ask_relay(1, 9), 2, &found), PS_EFENCED);
    must_join(r, ask_relay(1, 10), 2);
    assert_false(name_suspect(r, first, 1, 9, false, 2));
    assert_false(name_suspect(r, first, 1, 8, false, 2)); /* the greater one stays barred */
    assert_int_equal(try_join(r, ask_relay(0, 9), 2, &found), PS_EFENCED);
    membership_renew(r, 3); /* a restart */
    must_join(r, ask_relay(0, 9), 3);
    membership_free(r);
}

static void a_suspect_that_comes_back_as_somebody_new_is_suspected_no_more(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = suspect_one(r), *found;

    (void)state;
    assert_ptr_equal(must_join(r, ask_relay(2, 8), 2 + LEASE_MS), w);
    assert_false(w->is_suspected);
    assert_int_equal(membership_find(r, "job", 2, 8, 2 + LEASE_MS, &found), 0);
    assert_false(name_suspect(r, w, 0, 7, true, 2 + LEASE_MS)); /* that was about the old one */
    assert_int_equal(w->state, WORKER_LIVE);
    membership_free(r);
}

static void a_suspect_that_those_who_are_left_do_not_relay_is_dead(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = suspect_one(r);
    struct membership_join mute = ask_relay(1, 8);

    (void)state;
    mute.relays = false;
    membership_leave(r, &w->job->workers[0]);
    assert_false(membership_advance(r, 2 + LEASE_MS));
    must_join(r, mute, 2 + LEASE_MS);
    assert_true(membership_advance(r, 2 + LEASE_MS));
    assert_int_equal(w->state, WORKER_DEAD);
    membership_free(r);
}

static void a_restart_suspects_nobody(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = suspect_one(r), *found;

    (void)state;
    (void)name_suspect(r, &w->job->workers[0], 1, 7, false, 1 + LEASE_MS);
    membership_renew(r, 1000000);
    assert_false(w->is_suspected);
    assert_false(membership_doubts(&w->job->workers[0], 1));
    assert_int_equal(membership_find(r, "job", 2, 7, 1000000, &found), 0);
    membership_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_silent_worker_is_refused_and_waited_for_until_all_shards_suspect_it),
        cmocka_unit_test(
            a_worker_that_is_heard_here_is_refused_once_two_others_say_that_a_shard_suspects_it),
        cmocka_unit_test(a_worker_that_a_shard_does_not_answer_is_refused_by_the_word_of_one),
        cmocka_unit_test(who_does_not_relay_is_not_believed),
        cmocka_unit_test(one_worker_alone_ends_nobody_before_a_lease_is_over),
        cmocka_unit_test(an_expected_worker_is_asked_for_its_word_too),
        cmocka_unit_test(
            a_worker_that_has_not_come_back_since_a_restart_is_asked_for_its_word_too),
        cmocka_unit_test(who_is_heard_and_has_not_come_back_since_a_restart_may_relay),
        cmocka_unit_test(an_incarnation_that_another_shard_suspects_may_not_join_any_more),
        cmocka_unit_test(a_suspect_that_comes_back_as_somebody_new_is_suspected_no_more),
        cmocka_unit_test(a_suspect_that_those_who_are_left_do_not_relay_is_dead),
        cmocka_unit_test(a_restart_suspects_nobody),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

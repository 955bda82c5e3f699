/* A shard that hears no worker of a job any more: it decides nothing, as the workers may go on at other shards. */
#include "membership_fixture.h"
#include "server/core/shard_events.h"

#define SILENT_MS (1 + LEASE_MS) /* all that came at 0 have been silent for a lease */

/* Three that relay, with clocks 4, 5 and 6, none of which is heard any more. */
static struct worker *give_up_three(struct membership *r)
{
    struct worker *w = join_three(r)->job->workers;

    for (uint32_t rank = 0; rank < 3; rank++) {
        w[rank].clock = 4 + rank;
        w[rank].last_seq = 10;
    }
    assert_false(membership_advance(r, SILENT_MS));
    for (uint32_t rank = 0; rank < 3; rank++)
        assert_true(w[rank].is_given_up && !w[rank].is_suspected);
    return w;
}

static struct membership_join ask_with_clock(uint32_t rank, uint64_t incarnation,
                                             uint64_t clock)
{
    struct membership_join join = ask_relay(rank, incarnation);

    join.clock = clock;
    return join;
}

static void nothing_is_decided_while_no_worker_is_heard(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = give_up_three(r);

    (void)state;
    assert_false(job_is_alive(w->job));
    assert_true(job_is_deserted(w->job));
    assert_int_equal(w->job->n_deaths, 3);
    assert_false(membership_advance(r, 5 * LEASE_MS));
    assert_int_equal(w->job->n_deaths, 3);
    assert_int_equal(membership_n_gone(r), 0);
    for (uint32_t rank = 0; rank < 3; rank++)
        assert_int_equal(w[rank].state, WORKER_LIVE);
    assert_int_equal(job_min_clock(w->job), 4);
    assert_false(job_all_ticked(w->job, 4)); /* no clock is complete without them */
    assert_false(membership_has_suspects(r));
    membership_free(r);
}

static void the_first_that_is_heard_again_goes_on_and_the_others_have_a_lease(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = give_up_three(r), *found;
    struct membership_join back = ask_with_clock(1, 7, 6);

    (void)state;
    hear(r, 0, 50000); /* the same connection */
    assert_true(job_is_alive(w->job) && !job_is_deserted(w->job));
    assert_false(membership_advance(r, 50000 + LEASE_MS));
    assert_false(w[0].is_given_up || w[1].is_given_up || w[2].is_given_up);
    assert_false(w[1].is_suspected || w[2].is_suspected);
    back.last_acked = 9; /* the reply to its last push was lost */
    assert_ptr_equal(must_join(r, back, 50000 + LEASE_MS), &w[1]);
    assert_true(w[1].resumed);
    assert_int_equal(w[1].last_seq, 10);
    assert_int_equal(w[1].clock, 5); /* its push of clock 5 is still to come */
    hear(r, 0, 50000 + LEASE_MS);
    assert_false(membership_advance(r, 50001 + LEASE_MS));
    assert_true(w[2].is_suspected); /* it has not come: now the others are asked */
    assert_int_equal(membership_find(r, "job", 2, 7, 50001 + LEASE_MS, &found), PS_EFENCED);
    assert_int_equal(job_min_clock(w->job), 4);
    membership_free(r);
}

static void a_new_incarnation_of_one_brings_the_others_back_too(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = give_up_three(r);

    (void)state;
    must_join(r, ask_with_clock(2, 8, 6), 50000);
    assert_int_equal(w[2].clock, 6);
    assert_true(w[0].state == WORKER_LIVE && w[1].state == WORKER_LIVE);
    assert_false(membership_advance(r, 50000 + LEASE_MS));
    assert_false(job_all_ticked(w->job, 4));
    hear(r, 0, 50000 + LEASE_MS); /* by its old connection */
    assert_int_equal(w[0].last_seq, 10);
    assert_int_equal(w->job->n_deaths, 3);
    membership_free(r);
}

static void who_was_suspected_before_the_silence_stays_refused(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = join_three(r)->job->workers, *found;

    (void)state;
    hear(r, 0, LEASE_MS);
    hear(r, 1, LEASE_MS);
    assert_false(membership_advance(r, SILENT_MS));
    assert_true(w[2].is_suspected);
    w[2].is_reported = true; /* the others have been told */
    assert_false(membership_advance(r, 1 + 2 * LEASE_MS));
    assert_true(w[0].is_given_up && w[1].is_given_up && w[2].is_given_up);
    hear(r, 0, 50000);
    assert_int_equal(membership_find(r, "job", 2, 7, 50000, &found), PS_EFENCED);
    assert_int_equal(try_join(r, ask_relay(2, 7), 50000, &found), PS_EFENCED);
    assert_true(w[2].is_suspected && !w[2].is_given_up);
    must_join(r, ask_relay(2, 8), 50000);
    membership_free(r);
}

/* Their leases do not end in the same moment. */
static void who_is_suspected_and_nobody_knows_it_is_only_silent(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = join_three(r)->job->workers;

    (void)state;
    hear(r, 0, LEASE_MS / 2);
    assert_false(membership_advance(r, SILENT_MS));
    assert_true(w[1].is_suspected && w[2].is_suspected);
    assert_false(membership_suspect(r, w->job, &(struct membership_report){ 0, 2, 7, false },
                                    SILENT_MS)); /* this one is suspected elsewhere, too */
    assert_false(membership_advance(r, 2 * LEASE_MS));
    assert_true(w[1].is_given_up && !w[1].is_suspected);
    assert_true(w[2].is_given_up && w[2].is_suspected);
    hear(r, 1, 50000);
    assert_true(job_is_alive(w->job) && !w[0].is_suspected && w[2].is_suspected);
    membership_free(r);
}

/* --- ends --- */

struct events {
    uint32_t n;
    enum shard_event_type types[8];
    uint32_t ranks[8];
    int states[8];
};

static int reserve(void *owner, const struct shard_event *event)
{
    (void)owner;
    (void)event;
    return 0;
}

static void record(void *owner, const struct shard_event *event)
{
    struct events *e = owner;

    assert_in_range(e->n, 0, 7);
    e->types[e->n] = event->type;
    e->ranks[e->n] =
        event->type == SHARD_EVENT_JOIN ? event->join.join->rank : event->gone.worker.rank;
    e->states[e->n] = event->type == SHARD_EVENT_GONE ? event->gone.state : 0;
    e->n++;
}

static void a_job_that_starts_afresh_ends_them_first_and_so_does_its_log(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS), *copy;
    struct worker *w = give_up_three(r), *found;
    uint64_t version = 1;
    struct events e = { 0 };
    const struct shard_events events = { &e, reserve, record };
    struct membership_join again = ask_relay(1, 9);
    struct err err = { 0 };

    (void)state;
    membership_set_events(r, &events, &version);
    must_join(r, again, 50000);
    assert_int_equal(w->job->run, 2);
    assert_int_equal(w[0].state, WORKER_EXPECTED);
    assert_int_equal(e.n, 4);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(e.types[i] == SHARD_EVENT_GONE && e.ranks[i] == i &&
                    e.states[i] == WORKER_DEAD);
    assert_true(e.types[3] == SHARD_EVENT_JOIN && e.ranks[3] == 1);
    assert_int_equal(try_join(r, ask_relay(0, 7), 50000, &found), PS_EFENCED);

    copy = membership_new(LEASE_MS, JOIN_MS); /* a restart: the log knows no silence */
    w = join_three(copy)->job->workers;
    for (uint32_t rank = 0; rank < 3; rank++)
        assert_int_equal(membership_replay_end(copy, &w[rank], WORKER_DEAD), 0);
    assert_int_equal(membership_replay_join(copy, &again, 50000, &err), 0);
    assert_int_equal(w->job->run, 2);
    assert_int_equal(w[1].state, WORKER_LIVE);
    membership_free(copy);
    membership_free(r);
}

static void other_settings_start_it_afresh_but_not_for_one_that_comes_back(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = give_up_three(r), *found;
    struct membership_join other = ask_relay(0, 7);

    (void)state;
    other.bound = 5;
    assert_int_equal(try_join(r, other, 50000, &found), PS_EJOB);
    assert_true(job_is_deserted(w->job));
    other.incarnation = 8;
    must_join(r, other, 50000);
    assert_int_equal(w->job->bound, 5);
    assert_int_equal(w[1].state, WORKER_EXPECTED);
    membership_free(r);
}

static void they_are_dead_once_nobody_can_come_back_any_more(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = give_up_three(r);

    (void)state;
    assert_false(membership_advance(r, SILENT_MS + MEMBERSHIP_GIVEN_UP_MS));
    assert_true(membership_advance(r, SILENT_MS + MEMBERSHIP_GIVEN_UP_MS + 1));
    for (uint32_t rank = 0; rank < 3; rank++)
        assert_int_equal(w[rank].state, WORKER_DEAD);
    assert_int_equal(w->job->n_deaths, 3); /* told once */
    assert_true(job_all_ticked(w->job, 9));
    membership_free(r);
}

static void a_job_that_needs_the_place_ends_them(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = give_up_three(r), *found;
    struct membership_join other = ask_relay(0, 1);
    uint64_t version = 1;
    struct events e = { 0 };
    const struct shard_events events = { &e, reserve, record };
    char name[16];

    (void)state;
    other.n_workers = 1;
    other.job = name;
    for (uint32_t i = 1; i < MEMBERSHIP_N_JOBS_MAX; i++) {
        snprintf(name, sizeof name, "job-%u", i);
        must_join(r, other, 50000);
    }
    membership_set_events(r, &events, &version);
    snprintf(name, sizeof name, "one more");
    must_join(r, other, 50000);
    assert_int_equal(e.n, 4); /* three ends, and the join */
    assert_string_equal(w->job->name, "one more");
    snprintf(name, sizeof name, "too many");
    assert_int_equal(try_join(r, other, 50000, &found), -ENOSPC);
    membership_free(r);
}

/* --- who has nobody to agree with --- */

static void the_only_shard_of_a_cluster_declares_them_dead_by_itself(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = join_three(r)->job->workers;

    (void)state;
    membership_set_alone(r);
    membership_renew(r, 0); /* whether they relay is not known since */
    assert_true(membership_advance(r, SILENT_MS));
    assert_true(w[0].state == WORKER_DEAD && w[1].state == WORKER_DEAD);
    membership_free(r);
}

/* Of an older client, it can tell no other shard. */
static void a_worker_that_does_not_relay_is_not_waited_for(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct membership_join old = ask_relay(0, 7);
    struct worker *w;

    (void)state;
    old.relays = false;
    w = must_join(r, old, 0)->job->workers;
    must_join(r, ask_relay(1, 7), 0);
    must_join(r, ask_relay(2, 7), 0);
    hear(r, 0, LEASE_MS);
    assert_true(membership_advance(r, SILENT_MS));
    assert_true(w[1].state == WORKER_DEAD && w[2].state == WORKER_DEAD);
    assert_true(membership_advance(r, 1 + 2 * LEASE_MS)); /* none is left that would relay */
    assert_int_equal(w[0].state, WORKER_DEAD);
    membership_free(r);
}

static void after_a_restart_those_that_do_not_come_back_are_given_up(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = give_up_three(r);

    (void)state;
    for (uint32_t rank = 0; rank < 3; rank++)
        w[rank].relays = false; /* as a log has it */
    membership_renew(r, 50000);
    assert_true(job_is_alive(w->job));
    assert_false(membership_advance(r, 50001 + LEASE_MS));
    assert_true(job_is_deserted(w->job));
    membership_free(r);
}

/* One that is still expected may come, and relay. */
static void a_worker_that_comes_late_finds_the_others_waited_for(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = must_join(r, ask_relay(0, 7), 0)->job->workers;

    (void)state;
    w[0].clock = 1;
    assert_false(membership_advance(r, SILENT_MS));
    assert_true(w[0].is_given_up && job_is_alive(w->job) && !job_is_deserted(w->job));
    must_join(r, ask_relay(1, 7), 2 * LEASE_MS);
    assert_false(w[0].is_given_up);
    hear(r, 0, 2 * LEASE_MS);
    assert_int_equal(w[0].state, WORKER_LIVE);
    membership_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_decided_while_no_worker_is_heard),
        cmocka_unit_test(the_first_that_is_heard_again_goes_on_and_the_others_have_a_lease),
        cmocka_unit_test(a_new_incarnation_of_one_brings_the_others_back_too),
        cmocka_unit_test(who_was_suspected_before_the_silence_stays_refused),
        cmocka_unit_test(who_is_suspected_and_nobody_knows_it_is_only_silent),
        cmocka_unit_test(a_job_that_starts_afresh_ends_them_first_and_so_does_its_log),
        cmocka_unit_test(other_settings_start_it_afresh_but_not_for_one_that_comes_back),
        cmocka_unit_test(they_are_dead_once_nobody_can_come_back_any_more),
        cmocka_unit_test(a_job_that_needs_the_place_ends_them),
        cmocka_unit_test(the_only_shard_of_a_cluster_declares_them_dead_by_itself),
        cmocka_unit_test(a_worker_that_does_not_relay_is_not_waited_for),
        cmocka_unit_test(after_a_restart_those_that_do_not_come_back_are_given_up),
        cmocka_unit_test(a_worker_that_comes_late_finds_the_others_waited_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

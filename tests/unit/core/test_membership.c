#include <errno.h>

#include "membership_fixture.h"

static void a_worker_is_expected_then_live_then_gone(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = must_join(r, ask(0, 2, 1), 100), *other = &w->job->workers[1];

    (void)state;
    assert_int_equal(w->state, WORKER_LIVE);
    assert_string_equal(w->name, "host:1");
    assert_int_equal(other->state, WORKER_EXPECTED);
    assert_int_equal(w->job->join_deadline_ms, 100 + JOIN_MS);
    assert_true(job_is_alive(w->job));
    other = must_join(r, ask(1, 2, 1), 200);
    membership_leave(r, w);
    assert_int_equal(w->state, WORKER_LEFT);
    assert_true(membership_advance(r, 200 + LEASE_MS + 1));
    assert_int_equal(other->state, WORKER_DEAD);
    assert_int_equal(w->job->n_deaths, 1);
    assert_false(job_is_alive(w->job));
    membership_free(r);
    membership_free(NULL);
}

static void a_lease_ends_when_it_is_over_and_not_a_moment_before(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = must_join(r, ask(0, 1, 1), 1000), *found;

    (void)state;
    assert_false(membership_advance(r, 1000 + LEASE_MS));
    assert_int_equal(membership_find(r, "job", 0, 1, 1000 + LEASE_MS, &found), 0);
    assert_ptr_equal(found, w);
    assert_false(membership_advance(r, 0)); /* a clock that steps back kills nobody */
    assert_false(membership_advance(r, 1000 + 2 * LEASE_MS));
    assert_true(membership_advance(r, 1001 + 2 * LEASE_MS));
    assert_false(membership_advance(r, 1002 + 2 * LEASE_MS)); /* told once */
    assert_int_equal(w->state, WORKER_DEAD);
    membership_free(r);
}

static void a_worker_that_never_joins_is_lost_at_the_join_deadline(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = must_join(r, ask(0, 2, 1), 0), *found;

    (void)state;
    w->clock = 9;
    assert_int_equal(job_min_clock(w->job), 0);
    assert_int_equal(membership_find(r, "job", 0, 1, JOIN_MS - 1, &found), 0);
    assert_false(membership_advance(r, JOIN_MS - 1));
    assert_true(membership_advance(r, JOIN_MS));
    assert_int_equal(w->job->workers[1].state, WORKER_LOST);
    assert_int_equal(job_min_clock(w->job), 9);
    w = must_join(r, ask(1, 2, 5), JOIN_MS + 1); /* late is better than never */
    assert_int_equal(w->state, WORKER_LIVE);
    assert_int_equal(w->clock, 9);
    membership_free(r);
}

static void only_the_incarnation_that_counts_is_found(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = must_join(r, ask(0, 2, 7), 0), *found = NULL;

    (void)state;
    assert_int_equal(membership_find(r, "nobody", 0, 7, 0, &found), PS_ENOJOIN);
    assert_int_equal(membership_find(r, "job", 2, 7, 0, &found), PS_ENOJOIN);
    assert_int_equal(membership_find(r, "job", 1, 7, 0, &found), PS_ENOJOIN); /* not yet here */
    assert_int_equal(membership_find(r, "job", 0, 8, 0, &found), PS_ENOJOIN);
    assert_int_equal(w->job->n_fenced, 0);
    assert_int_equal(membership_find(r, "job", 0, 6, 0, &found), PS_EFENCED);
    assert_int_equal(w->job->n_fenced, 1);
    must_join(r, ask(0, 2, 9), 0);
    assert_int_equal(membership_find(r, "job", 0, 7, 0, &found), PS_EFENCED);
    assert_int_equal(membership_find(r, "job", 0, 9, 0, &found), 0);
    membership_leave(r, found);
    assert_int_equal(membership_find(r, "job", 0, 9, 0, &found), PS_EFENCED);
    assert_int_equal(w->job->n_fenced, 3);
    membership_free(r);
}

static void a_reconnect_of_the_living_changes_nothing(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = must_join(r, ask(0, 1, 3), 0);
    struct membership_join again = ask(0, 1, 3);

    (void)state;
    w->clock = 12;
    w->last_seq = 40;
    again.clock = 15; /* its pushes of 12 to 14 are still under way */
    again.last_acked = 38;
    assert_ptr_equal(must_join(r, again, 5000), w);
    assert_int_equal(w->clock, 12);
    assert_int_equal(w->last_seq, 40);
    assert_int_equal(w->last_seen_ms, 5000);
    membership_free(r);
}

static void the_dead_come_back_only_as_somebody_new(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *a = must_join(r, ask(0, 2, 3), 0), *b = must_join(r, ask(1, 2, 3), 0), *w;

    (void)state;
    a->clock = 4;
    a->last_seq = 17;
    b->clock = 6;
    b->last_seen_ms = LEASE_MS;
    assert_true(membership_advance(r, LEASE_MS + 1));
    assert_int_equal(a->state, WORKER_DEAD);
    assert_int_equal(try_join(r, ask(0, 2, 3), LEASE_MS + 2, &w), PS_EFENCED);
    assert_int_equal(try_join(r, ask(0, 2, 2), LEASE_MS + 2, &w), PS_EFENCED);
    assert_int_equal(a->job->n_fenced, 2);
    assert_int_equal(must_join(r, ask(0, 2, 4), LEASE_MS + 2)->clock, 6); /* at the min clock */
    assert_int_equal(a->last_seq, 0); /* its numbers begin anew */
    membership_free(r);
}

static void a_new_incarnation_replaces_a_living_one_without_waiting_for_its_lease(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *a = must_join(r, ask(0, 2, 3), 0), *b = must_join(r, ask(1, 2, 3), 0);
    struct membership_join ahead = ask(0, 2, 5);

    (void)state;
    a->clock = 4;
    b->clock = 6;
    assert_int_equal(must_join(r, ask(0, 2, 4), 0)->clock, 4);
    ahead.clock = 11; /* it has loaded a checkpoint of its own */
    assert_int_equal(must_join(r, ahead, 0)->clock, 11);
    membership_free(r);
}

static void
another_process_waits_until_the_living_one_has_been_silent_for_half_a_lease(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct membership_join other = ask(0, 1, 2);
    struct worker *w = must_join(r, ask(0, 1, 1), 0);

    (void)state;
    other.name = "host:2";
    assert_int_equal(try_join(r, other, LEASE_MS / 2 - 1, &w), -EBUSY);
    assert_int_equal(w->incarnation, 1);
    assert_int_equal(must_join(r, other, LEASE_MS / 2)->incarnation, 2);
    membership_free(r);
}

static void a_worker_continues_where_a_shard_that_lost_it_left_off(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct membership_join join = ask(0, 1, 3);
    struct worker *w;

    (void)state;
    join.clock = 57;
    join.last_acked = 60;
    w = must_join(r, join, 0);
    assert_int_equal(w->clock, 57);
    assert_int_equal(w->last_seq, 60);
    assert_int_equal(w->n_lost, 60);
    assert_int_equal(w->job->n_lost, 60);
    membership_free(r);
}

static void pushes_that_were_lost_are_named_in_every_join_of_the_incarnation(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct membership_join join = ask(0, 1, 3);
    struct worker *w = must_join(r, join, 0);

    (void)state;
    assert_true(w->lost_first == 0 && w->lost_last == 0);
    w->last_seq = 5;
    w->is_known = false; /* as after a restart of the shard */
    join.last_acked = 9;
    for (int i = 0; i < 2; i++) {
        w = must_join(r, join, 0);
        assert_true(w->lost_first == 6 && w->lost_last == 9);
        assert_int_equal(w->n_lost, i ? 0 : 4);
    }
    assert_int_equal(w->job->n_lost, 4);
    w = must_join(r, ask(0, 1, 4), 0);
    assert_true(w->lost_first == 0 && w->lost_last == 0);
    membership_free(r);
}

static void steps_that_nobody_of_a_rank_did_are_counted_at_its_return(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *a = must_join(r, ask(0, 2, 1), 0), *b = must_join(r, ask(1, 2, 1), 0);
    struct membership_join join = ask(1, 2, 2);

    (void)state;
    b->clock = 7;
    membership_leave(r, b);
    a->clock = 20;
    b = must_join(r, join, 0);
    assert_true(b->clock == 20 && b->n_skipped == 13);
    b = must_join(r, join, 0); /* a reconnect */
    assert_int_equal(b->n_skipped, 13);
    membership_leave(r, b);
    a->clock = 25;
    join.incarnation = 3;
    join.clock = 24; /* of steps that it did: the shard had not heard of them */
    b = must_join(r, join, 0);
    assert_int_equal(b->n_skipped, 14); /* of all its absences */
    b->last_seq = 5;
    membership_leave(r, b);
    a->clock = 28;
    assert_int_equal(must_join(r, join, 0)->n_skipped,
                     17); /* the same one again, for lost replies */
    membership_free(r);
}

static void other_settings_are_refused_by_name_while_the_job_runs(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct membership_join other = ask(1, 2, 1);
    struct worker *w;
    struct err err;

    (void)state;
    must_join(r, ask(0, 2, 1), 0);
    other.bound = 5;
    assert_int_equal(membership_join(r, &other, 0, &w, &err), PS_EJOB);
    assert_non_null(strstr(err.text, "staleness"));
    other = ask(1, 3, 1);
    assert_int_equal(membership_join(r, &other, 0, &w, &err), PS_EJOB);
    assert_non_null(strstr(err.text, "2 workers"));
    other = ask(1, 2, 1);
    other.mode = TABLE_SPEC_MODE_BSP;
    assert_int_equal(membership_join(r, &other, 0, &w, &err), PS_EJOB);
    assert_non_null(strstr(err.text, "ssp"));
    membership_free(r);
}

static void nonsense_is_refused_with_a_sentence(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    char long_name[TABLE_SPEC_NAME_MAX + 1];
    struct membership_join bad[13];
    struct worker *w;

    (void)state;
    memset(long_name, 'x', TABLE_SPEC_NAME_MAX);
    long_name[TABLE_SPEC_NAME_MAX] = 0;
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        bad[i] = ask(0, 2, 1);
    bad[0].rank = 2;
    bad[1].n_workers = 0;
    bad[2].n_workers = MEMBERSHIP_N_WORKERS_MAX + 1;
    bad[3].mode = TABLE_SPEC_MODE_JOB;
    bad[4].mode = TABLE_SPEC_MODE_END;
    bad[5].job = "";
    bad[6].job = long_name;
    bad[7].clock = MEMBERSHIP_CLOCK_END + 1;
    bad[8].clock = UINT64_MAX;
    bad[9].clock = MEMBERSHIP_CLOCK_FAR + MEMBERSHIP_CLOCK_STEP + 1;
    bad[10].incarnation = MEMBERSHIP_INCARNATION_END;
    bad[11].incarnation = UINT64_MAX;
    bad[12].last_acked = MEMBERSHIP_ACKED_MAX + 1;
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_int_equal(try_join(r, bad[i], 0, &w), -EINVAL);
    assert_int_equal(membership_n_jobs(r), 0);
    membership_free(r);
}

static void a_job_of_which_all_are_gone_starts_afresh(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *a = must_join(r, ask(0, 2, 3), 0), *b = must_join(r, ask(1, 2, 3), 0), *w;
    struct membership_join fresh = ask(4, 9, 3);
    uint64_t run = a->job->run;

    (void)state;
    a->clock = b->clock = 99;
    membership_leave(r, a);
    assert_true(membership_advance(r, LEASE_MS + 1)); /* b dies */
    assert_int_equal(job_min_clock(a->job), 99);
    assert_int_equal(try_join(r, ask(1, 2, 3), LEASE_MS + 2, &w), PS_EFENCED);
    fresh.mode = TABLE_SPEC_MODE_BSP;
    w = must_join(r, fresh, LEASE_MS + 2);
    assert_int_equal(membership_n_jobs(r), 1);
    assert_int_equal(w->job->n_workers, 9);
    assert_int_equal(w->job->mode, TABLE_SPEC_MODE_BSP);
    assert_int_not_equal(w->job->run, run);
    assert_int_equal(w->clock, 0);
    assert_int_equal(w->job->n_deaths, 0);
    /* An old pointer still points to somebody who is gone. */
    assert_int_equal(a->state, WORKER_LEFT);
    fresh.rank = 1; /* fenced before, fenced still */
    assert_int_equal(try_join(r, fresh, LEASE_MS + 2, &w), PS_EFENCED);
    fresh.rank = 0; /* left, so its number may be used again */
    must_join(r, fresh, LEASE_MS + 2);
    membership_free(r);
}

static void a_start_that_failed_holds_nobody_to_its_settings(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = must_join(r, ask(0, 3, 1), 0);
    uint64_t run = w->job->run;

    (void)state;
    assert_int_equal(try_join(r, ask(1, 2, 1), 0, &w), PS_EJOB);
    membership_leave(r, membership_worker(r, "job", 0));
    w = must_join(r, ask(1, 3, 1), 0); /* the same settings: the same run */
    assert_int_equal(w->job->run, run);
    membership_leave(r, w);
    w = must_join(r, ask(1, 2, 2), 0);
    assert_int_equal(w->job->n_workers, 2);
    assert_int_not_equal(w->job->run, run);
    w->clock = 1; /* a step was done: it is a run, and one worker of it is expected */
    membership_leave(r, w);
    assert_int_equal(try_join(r, ask(0, 3, 3), 0, &w), PS_EJOB);
    membership_free(r);
}

static void a_worker_that_left_a_running_job_returns_only_as_a_new_incarnation(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *a = must_join(r, ask(0, 2, 3), 0), *w;

    (void)state;
    membership_leave(r, a);
    membership_leave(r, a);
    assert_int_equal(membership_n_gone(r), 1);
    assert_int_equal(try_join(r, ask(0, 2, 3), 0, &w), PS_EFENCED);
    must_join(r, ask(0, 2, 4), 0);
    membership_free(r);
}

/* Killed in its farewell: the process behind it finds pushes that it takes for open. */
static void a_worker_that_left_finds_its_pushes_acknowledged(void **state)
{
    struct membership_join again = ask(0, 2, 3), other;
    struct membership *r;
    struct worker *a, *b, *w;
    uint64_t run;

    (void)state;
    for (int all_left = 0; all_left < 2; all_left++) {
        r = membership_new(LEASE_MS, JOIN_MS);
        a = must_join(r, ask(0, 2, 3), 0);
        b = must_join(r, ask(1, 2, 3), 0);
        run = a->job->run;
        a->clock = a->last_seq = 9;
        b->clock = 4;
        membership_leave(r, a);
        if (all_left)
            membership_leave(r, b);
        other = again;
        other.bound = 7;
        assert_int_not_equal(try_join(r, other, 0, &w), 0);
        w = must_join(r, again, 0);
        assert_int_equal(w->state, WORKER_LIVE);
        assert_int_equal(w->last_seq, 9);
        assert_int_equal(w->clock, 9);
        assert_int_equal(w->job->run, run);
        assert_true(w->resumed);
        membership_leave(r, w);
        again.last_acked = 9; /* it knows: then that was all */
        if (!all_left)
            assert_int_equal(try_join(r, again, 0, &w), PS_EFENCED);
        again.last_acked = 0;
        membership_free(r);
    }
}

static void the_min_clock_is_that_of_the_slowest_live_worker(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w[3];

    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        w[i] = must_join(r, ask(i, 3, 1), 0);
    w[0]->clock = UINT64_MAX;
    w[1]->clock = 5;
    w[2]->clock = 7;
    assert_int_equal(job_min_clock(w[0]->job), 5);
    assert_true(job_all_ticked(w[0]->job, 4));
    assert_false(job_all_ticked(w[0]->job, 5));
    membership_leave(r, w[1]);
    assert_int_equal(job_min_clock(w[0]->job), 7);
    membership_leave(r, w[2]);
    assert_int_equal(job_min_clock(w[0]->job), UINT64_MAX);
    membership_free(r);
}

static void the_greatest_incarnation_fences_itself_and_nobody_else(void **state)
{
    const uint64_t greatest = MEMBERSHIP_INCARNATION_END - 1;
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w;

    (void)state;
    must_join(r, ask(0, 1, greatest), 0);
    assert_true(membership_advance(r, LEASE_MS + 1));
    assert_int_equal(try_join(r, ask(0, 1, greatest), LEASE_MS + 1, &w), PS_EFENCED);
    assert_int_equal(membership_find(r, "job", 0, greatest, 0, &w), PS_EFENCED);
    w = must_join(r, ask(0, 1, 7), LEASE_MS + 1); /* the rank has a next process */
    assert_int_equal(membership_find(r, "job", 0, greatest, LEASE_MS + 1, &w), PS_ENOJOIN);
    assert_int_equal(try_join(r, ask(0, 1, 6), LEASE_MS + 1, &w), PS_EFENCED);
    membership_free(r);
}

/* As logs and checkpoints of before have it, when nothing was out of range. */
static void what_a_log_says_is_taken_and_its_rank_and_job_go_on(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct membership_join join = ask(0, 1, UINT64_MAX), later = ask(0, 1, 7);
    struct worker *w;
    struct err err = { 0 };

    (void)state;
    join.clock = MEMBERSHIP_CLOCK_END;
    join.last_acked = UINT64_MAX;
    assert_int_equal(membership_replay_join(r, &join, 0, &err), 0);
    w = membership_worker(r, "job", 0);
    assert_true(w->incarnation == UINT64_MAX && w->clock == MEMBERSHIP_CLOCK_END);
    assert_false(membership_advance(r, LEASE_MS + 1));
    assert_true(w->is_given_up); /* whether it relays is not known */
    later.clock =
        12; /* it has trained before, and would have to begin where no step leads on */
    w = must_join(r, later, LEASE_MS + 2);
    assert_int_equal(w->clock, 12);
    assert_int_equal(w->last_seq, 0);
    membership_free(r);
}

static void clocks_that_peers_name_leave_numbers_for_the_next_steps(void **state)
{
    const uint64_t far = MEMBERSHIP_CLOCK_FAR;
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct membership_join join = ask(0, 2, 1), other = ask(1, 2, 1);
    struct worker *w;

    (void)state;
    join.clock = far;
    w = must_join(r, join, 0);
    assert_true(membership_clock_is_near(w, far + MEMBERSHIP_CLOCK_STEP));
    assert_false(membership_clock_is_near(w, far + MEMBERSHIP_CLOCK_STEP + 1));
    assert_false(membership_clock_is_near(w, UINT64_MAX));
    other.clock = far + MEMBERSHIP_CLOCK_STEP + 1;
    assert_int_equal(try_join(r, other, 0, &w), -EINVAL);
    other.clock = far + 1;
    assert_int_equal(must_join(r, other, 0)->clock, far + 1);
    membership_free(r);
}

static void a_reconnect_claims_no_push_that_the_shard_knows_it_never_had(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct membership_join again = ask(0, 1, 3);
    struct worker *w = must_join(r, again, 0);

    (void)state;
    w->last_seq = 40;
    again.last_acked = 41;
    assert_int_equal(try_join(r, again, 1, &w), -EINVAL);
    assert_int_equal(membership_worker(r, "job", 0)->last_seq, 40);
    membership_renew(r, 2); /* a restart may have lost some */
    w = must_join(r, again, 3);
    assert_int_equal(w->last_seq, 41);
    assert_int_equal(w->n_lost, 1);
    again.last_acked = 42;
    assert_int_equal(try_join(r, again, 4, &w), -EINVAL);
    membership_free(r);
}

static void jobs_that_are_gone_are_replaced_by_new_ones(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *first = NULL, *w;
    char name[32];

    (void)state;
    for (uint32_t i = 0; i < MEMBERSHIP_N_JOBS_MAX; i++) {
        struct membership_join join = ask(0, 1, 1);

        snprintf(name, sizeof name, "job%u", i);
        join.job = name;
        w = must_join(r, join, 0);
        first = first ? first : w;
    }
    assert_int_equal(try_join(r, ask(0, 3, 1), 0, &w), -ENOSPC);
    membership_leave(r, first);
    w = must_join(r, ask(0, 3, 1), 0);
    assert_string_equal(w->job->name, "job");
    assert_int_equal(membership_n_jobs(r), MEMBERSHIP_N_JOBS_MAX);
    assert_int_equal(membership_find(r, "job0", 0, 1, 0, &w), PS_ENOJOIN);
    assert_string_equal(membership_job(r, 0)->name, "job");
    membership_free(r);
}

static void an_expected_worker_can_be_given_up_before_its_time(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = must_join(r, ask(0, 2, 1), 0);

    (void)state;
    membership_give_up(r, w);
    assert_int_equal(w->state, WORKER_LIVE);
    membership_give_up(r, membership_worker(r, "job", 1));
    assert_int_equal(membership_worker(r, "job", 1)->state, WORKER_LOST);
    assert_int_equal(membership_n_gone(r), 1);
    membership_free(r);
}

static void states_have_names(void **state)
{
    (void)state;
    assert_string_equal(worker_state_name(WORKER_EXPECTED), "expected");
    assert_string_equal(worker_state_name(WORKER_LOST), "lost");
    assert_non_null(worker_state_name((enum worker_state)99));
}

#ifdef PS_FAULTS
static void a_join_without_memory_leaves_no_job_behind(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = NULL;
    int status = -1;
    long k;

    (void)state;
    for (k = 0; status != 0; k++) {
        assert_int_equal(membership_n_jobs(r), 0);
        memory_fail_after(k);
        status = try_join(r, ask(0, 3, 1), 0, &w);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
    }
    assert_int_equal(k, 3);
    membership_leave(r, w);
    assert_true(membership_advance(r, JOIN_MS)); /* the other two never came */
    memory_fail_after(0);                        /* afresh, and larger */
    assert_int_equal(try_join(r, ask(0, 100, 2), JOIN_MS, &w), -ENOMEM);
    memory_fail_after(-1);
    assert_int_equal(membership_job(r, 0)->n_workers, 3);
    membership_free(r);
}
#endif

static void a_refused_worker_learns_which_incarnation_may_join(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *a = must_join(r, ask(0, 2, 300), 0), *b = must_join(r, ask(1, 2, 7), 0), *w;

    (void)state;
    assert_int_equal(try_join(r, ask(0, 2, 200), 0, &w), PS_EFENCED); /* its clock is behind */
    assert_int_equal(membership_fence(r, "job", 0), 301); /* 300 would pass for a reconnect */
    must_join(r, ask(0, 2, 301), 0);
    membership_leave(r, a);
    assert_int_equal(try_join(r, ask(0, 2, 301), 0, &w), PS_EFENCED);
    assert_int_equal(membership_fence(r, "job", 0), 302);
    b->last_seen_ms = 1;
    assert_true(membership_advance(r, LEASE_MS + 2));
    assert_int_equal(membership_fence(r, "job", 1), 8);
    assert_int_equal(try_join(r, ask(1, 2, 7), LEASE_MS + 2, &w), PS_EFENCED);
    must_join(r, ask(1, 2, 8), LEASE_MS + 2);
    must_join(r, ask(1, 2, MEMBERSHIP_FENCE_MAX), LEASE_MS + 2);
    assert_true(membership_fence(r, "job", 1) == MEMBERSHIP_FENCE_MAX + 1);
    assert_int_equal(membership_fence(r, "job", MEMBERSHIP_N_WORKERS_MAX), 0);
    assert_int_equal(membership_fence(r, "nobody", 0), 0);
    membership_free(r);
}

static void a_clock_beyond_the_job_advances_no_worker(void **state)
{
    struct membership *r = membership_new(LEASE_MS, JOIN_MS);
    struct worker *w = must_join(r, ask(0, 1, 1), 0);

    (void)state;
    assert_false(membership_advance_clock(w, UINT64_MAX));
    assert_false(membership_advance_clock(w, MEMBERSHIP_CLOCK_END + 1));
    assert_int_equal(w->clock, 0);
    assert_true(
        membership_advance_clock(w, MEMBERSHIP_CLOCK_END)); /* where the last push leads */
    membership_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_is_expected_then_live_then_gone),
        cmocka_unit_test(a_lease_ends_when_it_is_over_and_not_a_moment_before),
        cmocka_unit_test(a_worker_that_never_joins_is_lost_at_the_join_deadline),
        cmocka_unit_test(only_the_incarnation_that_counts_is_found),
        cmocka_unit_test(a_reconnect_of_the_living_changes_nothing),
        cmocka_unit_test(the_dead_come_back_only_as_somebody_new),
        cmocka_unit_test(a_new_incarnation_replaces_a_living_one_without_waiting_for_its_lease),
        cmocka_unit_test(
            another_process_waits_until_the_living_one_has_been_silent_for_half_a_lease),
        cmocka_unit_test(a_worker_continues_where_a_shard_that_lost_it_left_off),
        cmocka_unit_test(pushes_that_were_lost_are_named_in_every_join_of_the_incarnation),
        cmocka_unit_test(steps_that_nobody_of_a_rank_did_are_counted_at_its_return),
        cmocka_unit_test(a_start_that_failed_holds_nobody_to_its_settings),
        cmocka_unit_test(other_settings_are_refused_by_name_while_the_job_runs),
        cmocka_unit_test(nonsense_is_refused_with_a_sentence),
        cmocka_unit_test(a_job_of_which_all_are_gone_starts_afresh),
        cmocka_unit_test(a_worker_that_left_a_running_job_returns_only_as_a_new_incarnation),
        cmocka_unit_test(a_worker_that_left_finds_its_pushes_acknowledged),
        cmocka_unit_test(the_min_clock_is_that_of_the_slowest_live_worker),
        cmocka_unit_test(the_greatest_incarnation_fences_itself_and_nobody_else),
        cmocka_unit_test(what_a_log_says_is_taken_and_its_rank_and_job_go_on),
        cmocka_unit_test(clocks_that_peers_name_leave_numbers_for_the_next_steps),
        cmocka_unit_test(a_reconnect_claims_no_push_that_the_shard_knows_it_never_had),
        cmocka_unit_test(jobs_that_are_gone_are_replaced_by_new_ones),
        cmocka_unit_test(an_expected_worker_can_be_given_up_before_its_time),
        cmocka_unit_test(states_have_names),
#ifdef PS_FAULTS
        cmocka_unit_test(a_join_without_memory_leaves_no_job_behind),
#endif
        cmocka_unit_test(a_refused_worker_learns_which_incarnation_may_join),
        cmocka_unit_test(a_clock_beyond_the_job_advances_no_worker),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

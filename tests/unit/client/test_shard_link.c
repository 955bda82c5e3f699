/* One link on simulated time against a fake shard: only deadlines are looked at here,
 * test_ps.c does the rest. */
#include "worker/client/shard_link.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/client/fake_shard.h"
#include "worker/client/pull.h"

struct rig {
    uv_loop_t loop;
    struct channel_loop channels;
    uv_timer_t pulse; /* so that the loop never sleeps for good */
    struct fake *f;
    struct shard_link *link;
    uint64_t now_ms;
    uint32_t n_ready, n_pushed, n_refused, n_pulled, n_reconnected, n_left, n_notices,
        n_restarts, n_beats, n_lost;
    uint32_t n_greeted;
    bool is_behind;      /* answer to events.greeted */
    uint32_t n_overtook; /* answers to pulls that were asked for before the one answered last */
    uint64_t last_pulled;
    bool waits;      /* for other shards */
    bool has_report; /* of learning, until a heartbeat has it */
    bool suspects;   /* of has_suspects() */
    char notice[512];
    int failed;
    char sentence[512];
    uint64_t n_resent;
};

static void on_ready(void *owner, uint32_t shard, const struct join_reply *joined)
{
    (void)shard;
    (void)joined;
    ((struct rig *)owner)->n_ready++;
}

static void on_pushed(void *owner, uint32_t shard, const struct request *push,
                      const struct push_reply *reply)
{
    struct rig *rig = owner;

    (void)shard;
    (void)push;
    rig->n_pushed++;
    rig->n_refused += reply->status != 0;
}

static void on_pulled(void *owner, uint32_t shard, const struct request *pull,
                      const struct pull_reply *reply, struct bytes *values)
{
    struct rig *rig = owner;

    (void)shard, (void)values;
    assert_int_equal(reply->status, 0);
    rig->n_pulled++;
    rig->n_overtook += pull->pull_id < rig->last_pulled;
    rig->last_pulled = pull->pull_id;
}

static void on_table(void *owner, uint32_t shard, uint32_t table,
                     const struct table_reply *reply)
{
    (void)owner;
    (void)shard;
    (void)table;
    (void)reply;
}

static void on_fenced(void *owner, uint32_t shard, uint64_t fenced_below)
{
    (void)owner;
    (void)shard;
    (void)fenced_below;
}

static void on_left(void *owner, uint32_t shard)
{
    (void)shard;
    ((struct rig *)owner)->n_left++;
}

static void on_min_clock(void *owner, uint32_t shard, uint64_t min_clock)
{
    (void)owner;
    (void)shard;
    (void)min_clock;
}

static void on_traffic(void *owner, uint64_t bytes_in, uint64_t bytes_out)
{
    (void)owner;
    (void)bytes_in;
    (void)bytes_out;
}

static void on_resent(void *owner, uint32_t shard, uint64_t n_pushes)
{
    (void)shard;
    ((struct rig *)owner)->n_resent += n_pushes;
}

static void on_reconnected(void *owner, uint32_t shard, uint64_t n_resent)
{
    ((struct rig *)owner)->n_reconnected++;
    on_resent(owner, shard, n_resent);
}

static void on_notice(void *owner, const char *sentence)
{
    struct rig *rig = owner;

    rig->n_notices++;
    rig->n_restarts += strstr(sentence, " has been restarted: it goes on from its newest "
                                        "checkpoint, or from nothing if it has none; what it "
                                        "acknowledged after that is gone") != NULL;
    snprintf(rig->notice, sizeof rig->notice, "%s", sentence);
}

static void on_failed(void *owner, uint32_t shard, int status, const char *sentence)
{
    struct rig *rig = owner;

    (void)shard;
    rig->failed = status;
    snprintf(rig->sentence, sizeof rig->sentence, "%s", sentence);
}

static bool may_join(void *owner)
{
    return !((struct rig *)owner)->waits;
}

static void fill_beat(void *owner, uint32_t shard, struct beat *ret)
{
    (void)owner;
    (void)shard;
    ret->suspects = (struct suspects){ 1, { { 5, 6, 0, false } } };
    ret->has_learning = ((struct rig *)owner)->has_report;
    ((struct rig *)owner)->has_report = false;
}

static bool has_report(void *owner, uint32_t shard)
{
    (void)shard;
    return ((struct rig *)owner)->has_report;
}

static void on_beat_answered(void *owner, uint32_t shard, const struct suspects *suspects,
                             const struct suspects *doubted)
{
    (void)doubted;
    (void)shard;
    (void)suspects;
    ((struct rig *)owner)->n_beats++;
}

static bool has_suspects(void *owner)
{
    return ((struct rig *)owner)->suspects;
}

static void on_lost(void *owner, uint32_t shard)
{
    (void)shard;
    ((struct rig *)owner)->n_lost++;
}

static void on_groups_changed(void *owner, uint32_t shard)
{
    (void)owner;
    (void)shard;
}

static bool on_greeted(void *owner, uint32_t shard, const struct hello_reply *reply)
{
    struct rig *rig = owner;

    (void)shard;
    rig->n_greeted++;
    assert_int_equal(reply->map_id, 42);
    return !rig->is_behind;
}

static const struct shard_link_events events = { .ready = on_ready,
                                                 .pushed = on_pushed,
                                                 .pulled = on_pulled,
                                                 .greeted = on_greeted,
                                                 .table = on_table,
                                                 .fenced = on_fenced,
                                                 .may_join = may_join,
                                                 .has_report = has_report,
                                                 .fill_beat = fill_beat,
                                                 .beat_answered = on_beat_answered,
                                                 .groups_changed = on_groups_changed,
                                                 .has_suspects = has_suspects,
                                                 .lost = on_lost,
                                                 .left = on_left,
                                                 .min_clock = on_min_clock,
                                                 .traffic = on_traffic,
                                                 .reconnected = on_reconnected,
                                                 .resent = on_resent,
                                                 .notice = on_notice,
                                                 .failed = on_failed };

static void on_pulse(uv_timer_t *timer)
{
    (void)timer;
}

static void set_up_as(struct rig *rig, const struct fake_plan *plan, bool joins)
{
    struct shard_link_config config = {
        .joins = joins, .connect_ms = 60000, .give_up_ms = 60000, .answer_ms = 20000
    };
    char address[32];
    struct err err;

    *rig = (struct rig){ .now_ms = 1000000 };
    assert_int_equal(uv_loop_init(&rig->loop), 0);
    channel_loop_init(&rig->channels, &rig->loop);
    uv_timer_init(&rig->loop, &rig->pulse);
    uv_timer_start(&rig->pulse, on_pulse, 1, 1);
    rig->f = fake_start(plan);
    fake_address(rig->f, address);
    assert_int_equal(address_parse(address, strlen(address), &config.address, &err), 0);
    config.shard = 3;
    config.hello =
        (struct hello){ .version_min = 1, .version_max = 1, .role = "worker", .map_id = 42 };
    config.join = (struct join){
        .job = "j", .n_workers = 1, .incarnation = 7, .mode = TABLE_SPEC_MODE_ASYNC
    };
    config.join.relays = plan->push_status == PS_ESTOPPING || plan->push_status == -EBUSY;
    rig->link = shard_link_new(&rig->channels, &config, &events, rig);
}

static void set_up(struct rig *rig, const struct fake_plan *plan)
{
    set_up_as(rig, plan, !plan->holds_pulls); /* a reader has no heartbeats */
}

static void tear_down(struct rig *rig)
{
    if (!rig->f->stopped)
        fake_stop(rig->f);
    fake_free(rig->f);
    shard_link_free(rig->link);
    uv_close((uv_handle_t *)&rig->pulse, NULL);
    channel_loop_close(&rig->channels);
    uv_run(&rig->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&rig->loop), 0);
    channel_loop_deinit(&rig->channels);
}

static void pass_ms(struct rig *rig, uint64_t ms)
{
    rig->now_ms += ms;
    shard_link_tick(rig->link, rig->now_ms);
}

static void run_until(struct rig *rig, const uint32_t *count, uint32_t n)
{
    while (*count < n) {
        uv_run(&rig->loop, UV_RUN_ONCE);
        pass_ms(rig, 1);
    }
}

/* Number 3's id is 3 until it has ended. */
static struct ps_pull pulls[101];

static void end_pull(struct rig *rig, uint64_t id)
{
    pulls[id].id = UINT64_MAX;
    shard_link_drop_ended_pulls(rig->link);
}

static struct request *empty_request(uint32_t deadline_ms)
{
    struct request *p = request_new(0);

    assert_non_null(p);
    p->deadline_ms = deadline_ms;
    return p;
}

static struct request *pull_request(uint64_t pull_id, uint64_t clock)
{
    struct request *p = empty_request(600000);

    pulls[pull_id].id = pull_id;
    p->pull = &pulls[pull_id];
    p->pull_id = pull_id;
    p->clock = clock;
    return p;
}

static void a_pull_without_answer_is_reported_again_and_again(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1, .holds_pulls = true };
    struct rig rig;

    (void)state;
    set_up(&rig, &plan);
    run_until(&rig, &rig.n_ready, 1);
    shard_link_pull(rig.link, pull_request(0, 0));
    pass_ms(&rig, 19999);
    assert_int_equal(rig.n_notices, 0);
    pass_ms(&rig, 1);
    assert_int_equal(rig.n_notices, 1);
    assert_memory_equal(rig.notice, "shard 3 at 127.0.0.1:", 21);
    assert_non_null(strstr(rig.notice, " has not answered a pull for 20 s"));
    pass_ms(&rig, 19999);
    assert_int_equal(rig.n_notices, 1);
    end_pull(&rig, 0);
    pass_ms(&rig, 1);
    assert_int_equal(rig.n_notices, 1);
    tear_down(&rig);
}

/* A shard refuses what is beyond, and a dropped pull is one that it still parks. */
static void a_worker_has_sixteen_pulls_at_a_shard_dropped_ones_included(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1, .holds_pulls = true };
    struct rig rig;

    (void)state;
    set_up_as(&rig, &plan, true);
    run_until(&rig, &rig.n_ready, 1);
    for (uint64_t id = 1; id <= 20; id++)
        shard_link_pull(rig.link, pull_request(id, 0));
    for (uint64_t id = 1; id <= 5; id++)
        end_pull(&rig, id);
    shard_link_pull(rig.link, pull_request(21, 0));
    shard_link_push(rig.link, empty_request(0)); /* not delayed by those held back */
    run_until(&rig, &rig.n_pushed, 1);
    assert_int_equal(rig.f->n_pulls_held, 16);
    tear_down(&rig);
}

static void pulls_are_answered_in_any_order_and_dropped_ones_ignored(void **state)
{
    struct fake_plan plan = {
        .n_shards = 1, .fault_at = -1, .shuffles_pulls = true, .seed = 51000000
    };
    struct rig rig;

    (void)state;
    set_up(&rig, &plan);
    run_until(&rig, &rig.n_ready, 1);
    for (uint64_t id = 1; id <= 100; id++) {
        shard_link_pull(rig.link, pull_request(id, 0));
        if (id % 10 == 0)
            end_pull(&rig, id);
    }
    run_until(&rig, &rig.n_pulled, 90);
    assert_true(rig.n_overtook > 10);
    tear_down(&rig);
    assert_int_equal(rig.n_pulled, 90);
}

/* Wherever a connection breaks, a pull comes behind the pushes that were made before it, and each push once. */
static void pushes_and_pulls_are_sent_again_in_the_order_of_the_calls(void **state)
{
    struct fake_plan plan = {
        .n_shards = 1, .fault_at = 0, .shuffles_pulls = true, .seed = 51000001
    };
    bool was_hit = true;

    (void)state;
    for (plan.fault_at = 2; was_hit; plan.fault_at++) {
        struct rig rig;

        plan.fault = plan.fault_at % 2 ? FAKE_DROP_AFTER : FAKE_DROP_BEFORE;
        set_up(&rig, &plan);
        run_until(&rig, &rig.n_ready, 1);
        for (uint64_t i = 0; i < 40; i++)
            if (i % 4 == 1)
                shard_link_push(rig.link, empty_request(0));
            else
                shard_link_pull(rig.link, pull_request(i, (i + 2) / 4)); /* pushes before */
        run_until(&rig, &rig.n_pushed, 10);
        run_until(&rig, &rig.n_pulled, 30);
        fake_stop(rig.f);
        was_hit = rig.f->n_frames > plan.fault_at;
        assert_int_equal(rig.n_reconnected, was_hit ? 1 : 0);
        assert_int_equal(rig.f->shards[0].n_applied, 10);
        assert_int_equal(rig.f->shards[0].n_early, 0);
        tear_down(&rig);
        assert_int_equal(rig.n_pulled, 30);
    }
    assert_true(plan.fault_at > 40);
}

static void a_heartbeat_without_answer_ends_the_connection(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = 2, .mute_from = 2 };
    struct rig rig;

    (void)state;
    set_up(&rig, &plan);
    run_until(&rig, &rig.n_ready, 1);
    pass_ms(&rig, 334); /* a third of the lease: a beat goes out */
    pass_ms(&rig, 19999);
    assert_int_equal(rig.n_notices, 0);
    pass_ms(&rig, 1);
    assert_int_equal(rig.n_notices, 1);
    assert_non_null(strstr(rig.notice, "is away: no answer to a heartbeat; trying again"));
    assert_int_equal(rig.n_lost, 1);
    assert_int_equal(rig.n_beats, 0);
    tear_down(&rig);
}

static void heartbeats_go_out_three_times_in_a_lease(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1 };
    struct rig rig;
    int i;

    (void)state;
    set_up(&rig, &plan);
    run_until(&rig, &rig.n_ready, 1);
    for (i = 0; i < 4; i++) {
        pass_ms(&rig, 334);
        shard_link_push(rig.link, empty_request(0));
        run_until(&rig, &rig.n_pushed, (uint32_t)i + 1); /* answered behind the beat */
    }
    tear_down(&rig);
    assert_int_equal(rig.n_notices, 0);
}

static void a_shard_is_joined_once_all_others_are_there_and_meanwhile_not_given_up(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1 };
    struct rig rig;

    (void)state;
    set_up(&rig, &plan);
    rig.waits = true;
    while (!shard_link_is_greeted(rig.link)) {
        uv_run(&rig.loop, UV_RUN_ONCE);
        pass_ms(&rig, 1);
    }
    pass_ms(&rig, 600000); /* ten times what it waits for a shard that is away */
    assert_int_equal(rig.failed, 0);
    assert_int_equal(rig.n_lost, 0);
    assert_int_equal(rig.n_ready, 0);
    rig.waits = false;
    run_until(&rig, &rig.n_ready, 1);
    assert_true(shard_link_is_greeted(rig.link));
    rig.waits = true; /* another shard went away before it was joined */
    pass_ms(&rig, 334);
    for (int i = 0; i < 50; i++) {
        uv_run(&rig.loop, UV_RUN_ONCE);
        pass_ms(&rig, 1);
    }
    assert_int_equal(rig.n_beats, 0); /* this one's lease is not renewed */
    rig.waits = false;
    run_until(&rig, &rig.n_beats, 1);
    tear_down(&rig);
}

/* The push may wait at a sync point for a worker that this shard suspects. Each refusal ends a connection long before a heartbeat is
 * due, and without one nobody would tell the other shards. */
static void a_heartbeat_goes_out_before_pushes_that_end_the_connection(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1, .push_status = PS_ESTOPPING };
    struct rig rig;

    (void)state;
    set_up(&rig, &plan);
    run_until(&rig, &rig.n_ready, 1);
    shard_link_push(rig.link, empty_request(0));
    run_until(&rig, &rig.n_lost, 5);
    assert_true(rig.n_ready >= 5);
    assert_true(rig.n_beats >= 4); /* the first one may have come too late */
    tear_down(&rig);
}

/* All shards have to refuse a suspect at the same time, and a push that waits for it ends its connection. */
static void pushes_wait_for_a_lease_while_shards_agree_on_a_suspect(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1, .push_status = -EBUSY };
    struct rig rig;

    (void)state;
    set_up(&rig, &plan);
    rig.suspects = true;
    run_until(&rig, &rig.n_ready, 1);
    shard_link_push(rig.link, empty_request(0));
    run_until(&rig, &rig.n_lost, 1);
    run_until(&rig, &rig.n_ready, 2);
    assert_non_null(strstr(rig.notice, "a push waits until all shards refuse a suspected"));
    rig.n_beats = 0;
    run_until(&rig, &rig.n_beats, 2); /* three in a lease */
    assert_int_equal(rig.n_lost, 1);
    assert_int_equal(rig.n_reconnected, 1);
    assert_int_equal(rig.n_resent, 0);
    run_until(&rig, &rig.n_lost, 2); /* the lease is over, and the push is sent */
    assert_int_equal(rig.n_resent, 1);
    run_until(&rig, &rig.n_ready, 3);
    rig.n_beats = 0;
    rig.suspects = false; /* they agree: it is sent at once */
    run_until(&rig, &rig.n_lost, 3);
    assert_true(rig.n_beats <= 1);
    assert_int_equal(rig.n_resent, 2);
    tear_down(&rig);
}

/* Long before a heartbeat is due, but not one behind the other; and what is left goes before the farewell. */
static void a_report_of_learning_does_not_wait_for_a_heartbeat(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1 };
    struct rig rig;

    (void)state;
    set_up(&rig, &plan);
    run_until(&rig, &rig.n_ready, 1);
    rig.has_report = true;
    run_until(&rig, &rig.n_beats, 1);
    assert_false(rig.has_report);
    rig.has_report = true;
    pass_ms(&rig, 1);
    assert_true(rig.has_report);
    shard_link_leave(rig.link);
    assert_false(rig.has_report);
    run_until(&rig, &rig.n_left, 1);
    fake_stop(rig.f);
    assert_int_equal(rig.f->shards[0].n_beats, 2);
    tear_down(&rig);
}

/* Which an older psd refuses: that is an answer, too. */
static void a_reader_reports_whatever_the_answer(void **state)
{
    for (int refusal = 0; refusal < 2; refusal++) {
        struct fake_plan plan = { .n_shards = 1,
                                  .fault_at = refusal ? 0 : -1,
                                  .fault_type = FRAME_BEAT,
                                  .fault = FAKE_REFUSE,
                                  .refusal = PS_ENOJOIN };
        struct rig rig;

        (void)state;
        set_up_as(&rig, &plan, false);
        run_until(&rig, &rig.n_ready, 1);
        pass_ms(&rig, 30000);
        assert_int_equal(rig.n_beats, 0);
        rig.has_report = true;
        run_until(&rig, &rig.n_beats, 1);
        assert_int_equal(rig.n_lost, 0);
        assert_int_equal(rig.failed, 0);
        tear_down(&rig);
    }
}

static void a_push_without_answer_ends_the_job(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .mute_pushes = true, .fault_at = -1 };
    struct rig rig;
    uint32_t n;

    (void)state;
    set_up(&rig, &plan);
    run_until(&rig, &rig.n_ready, 1);
    shard_link_push(rig.link, empty_request(0));
    for (n = 0; n < 59; n++) {
        pass_ms(&rig, 1000);
        uv_run(&rig.loop, UV_RUN_NOWAIT);
        uv_run(&rig.loop, UV_RUN_ONCE);
    }
    assert_int_equal(rig.failed, 0);
    pass_ms(&rig, 1000);
    assert_int_equal(rig.failed, PS_EDEADLINE);
    assert_non_null(strstr(rig.sentence, "has not answered a push for 60 s"));
    tear_down(&rig);
}

/* One that comes back and back again for the same push, taking or refusing it without a verdict. */
static void a_push_that_is_never_acknowledged_ends_the_job(struct fake_plan plan,
                                                           const char *why)
{
    struct rig rig;
    uint64_t start_ms;

    plan.n_shards = 1;
    set_up(&rig, &plan);
    run_until(&rig, &rig.n_ready, 1);
    shard_link_push(rig.link, empty_request(0));
    start_ms = rig.now_ms;
    while (!rig.failed && rig.now_ms - start_ms < 200000) {
        uv_run(&rig.loop, UV_RUN_ONCE);
        pass_ms(&rig, 20);
    }
    assert_int_equal(rig.failed, PS_EDEADLINE);
    assert_true(rig.now_ms - start_ms >= 60000 && rig.now_ms - start_ms < 70000);
    assert_true(
        rig.n_reconnected >
        60); /* at least once a lease, which is a second: else it counts the worker out */
    assert_int_equal(rig.n_pushed, 0);
    assert_non_null(strstr(rig.sentence, "has not taken a push for 6"));
    assert_non_null(strstr(rig.sentence, why));
    tear_down(&rig);
}

static void a_push_for_which_there_is_never_memory_ends_the_job(void **state)
{
    struct fake_plan plan = { .fault_at = -1, .push_status = -ENOMEM };

    (void)state;
    a_push_that_is_never_acknowledged_ends_the_job(plan, "the fake refuses this push");
    plan.push_status = PS_ESEQ;
    a_push_that_is_never_acknowledged_ends_the_job(plan, "the fake refuses this push");
}

static void a_push_that_always_breaks_the_connection_ends_the_job(void **state)
{
    struct fake_plan plan = { .fault_at = -1, .push_status = FAKE_HANGS_UP };

    (void)state;
    a_push_that_is_never_acknowledged_ends_the_job(plan, "connection");
}

static void a_refusal_whose_answer_was_lost_is_reported_all_the_same(void **state)
{
    struct fake_plan plan = { .n_shards = 1,
                              .fault_at = 1,
                              .fault_type = FRAME_PUSH,
                              .fault = FAKE_REFUSE_DROP,
                              .refusal = PS_ENAN };
    struct rig rig;

    (void)state;
    set_up(&rig, &plan);
    run_until(&rig, &rig.n_ready, 1);
    shard_link_push(rig.link, empty_request(0));
    shard_link_push(rig.link, empty_request(0));
    run_until(&rig, &rig.n_pushed, 2);
    assert_int_equal(rig.n_refused, 1);
    tear_down(&rig);
}

static void a_shard_that_was_restarted_may_have_nothing_left(void **state)
{
    struct fake_plan plan = {
        .n_shards = 1, .fault_at = 0, .fault_type = FRAME_PUSH, .fault = FAKE_DROP_AFTER
    };
    struct rig rig;

    (void)state;
    set_up(&rig, &plan);
    run_until(&rig, &rig.n_ready, 1);
    assert_int_equal(rig.n_restarts, 0);
    shard_link_push(rig.link, empty_request(0));
    run_until(&rig, &rig.n_ready, 2); /* the fake never says that it knew the worker */
    assert_int_equal(rig.n_restarts, 1);
    tear_down(&rig);
}

static void a_shard_that_accepts_but_never_answers_is_given_up(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1, .mute = true };
    struct rig rig;
    uint32_t n;

    (void)state;
    set_up(&rig, &plan);
    pass_ms(&rig, 0);
    for (n = 0; n < 60 && !rig.failed; n++) {
        uv_run(&rig.loop, UV_RUN_NOWAIT);
        pass_ms(&rig, 1000);
    }
    assert_int_equal(n, 60);
    assert_int_equal(rig.failed, PS_EDEADLINE);
    assert_non_null(strstr(rig.sentence, "has been away for 60 s: no answer to the "));
    assert_true(rig.n_notices >= 6 && rig.n_notices <= 12); /* not one for each try */
    tear_down(&rig);
}

static void another_clusters_shard_is_refused(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1, .map_id = 43 };
    struct rig rig;

    (void)state;
    set_up(&rig, &plan);
    while (!rig.failed) {
        pass_ms(&rig, 1);
        uv_run(&rig.loop, UV_RUN_ONCE);
    }
    assert_int_equal(rig.failed, PS_ECLUSTER);
    tear_down(&rig);
}

static void a_farewell_ends_also_when_the_shard_is_gone(void **state)
{
    struct fake_plan plan = {
        .n_shards = 1, .fault_at = 0, .fault_type = FRAME_LEAVE, .fault = FAKE_DROP_BEFORE
    };
    struct rig rig;

    (void)state;
    set_up(&rig, &plan);
    run_until(&rig, &rig.n_ready, 1);
    shard_link_leave(rig.link);
    run_until(&rig, &rig.n_left, 1);
    tear_down(&rig);
    plan.fault = FAKE_NONE;
    plan.mute_from = 2;
    set_up(&rig, &plan);
    run_until(&rig, &rig.n_ready, 1);
    shard_link_leave(rig.link);
    pass_ms(&rig, 4999);
    assert_int_equal(rig.n_left, 0);
    pass_ms(&rig, 1);
    assert_int_equal(rig.n_left, 1);
    tear_down(&rig);
}

#ifdef PS_FAULTS
/* The k-th allocation behind a push and a pull fails: the connection is lost, and another brings both. */
static void a_request_without_memory_goes_out_on_the_next_connection(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1 };
    struct rig rig;
    bool was_hit = true;
    long k;

    (void)state;
    for (k = 0; was_hit; k++) {
        struct request *push = empty_request(0), *pull = pull_request(0, 0);

        set_up(&rig, &plan);
        run_until(&rig, &rig.n_ready, 1);
        memory_fail_after(k);
        shard_link_push(rig.link, push);
        shard_link_pull(rig.link, pull);
        memory_fail_after(-1);
        run_until(&rig, &rig.n_pushed, 1);
        run_until(&rig, &rig.n_pulled, 1);
        was_hit = rig.n_reconnected > 0;
        fake_stop(rig.f);
        assert_int_equal(rig.f->shards[0].n_applied, 1);
        tear_down(&rig);
    }
    assert_true(k > 1); /* the pull takes the buffer that the push has left */
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pull_without_answer_is_reported_again_and_again),
        cmocka_unit_test(a_worker_has_sixteen_pulls_at_a_shard_dropped_ones_included),
        cmocka_unit_test(pulls_are_answered_in_any_order_and_dropped_ones_ignored),
        cmocka_unit_test(pushes_and_pulls_are_sent_again_in_the_order_of_the_calls),
        cmocka_unit_test(a_heartbeat_without_answer_ends_the_connection),
        cmocka_unit_test(heartbeats_go_out_three_times_in_a_lease),
        cmocka_unit_test(
            a_shard_is_joined_once_all_others_are_there_and_meanwhile_not_given_up),
        cmocka_unit_test(a_heartbeat_goes_out_before_pushes_that_end_the_connection),
        cmocka_unit_test(pushes_wait_for_a_lease_while_shards_agree_on_a_suspect),
        cmocka_unit_test(a_report_of_learning_does_not_wait_for_a_heartbeat),
        cmocka_unit_test(a_reader_reports_whatever_the_answer),
        cmocka_unit_test(a_push_without_answer_ends_the_job),
        cmocka_unit_test(a_push_for_which_there_is_never_memory_ends_the_job),
        cmocka_unit_test(a_push_that_always_breaks_the_connection_ends_the_job),
        cmocka_unit_test(a_refusal_whose_answer_was_lost_is_reported_all_the_same),
        cmocka_unit_test(a_shard_that_was_restarted_may_have_nothing_left),
        cmocka_unit_test(a_shard_that_accepts_but_never_answers_is_given_up),
        cmocka_unit_test(another_clusters_shard_is_refused),
        cmocka_unit_test(a_farewell_ends_also_when_the_shard_is_gone),
#ifdef PS_FAULTS
        cmocka_unit_test(a_request_without_memory_goes_out_on_the_next_connection),
#endif
    };

    signal(SIGPIPE, SIG_IGN); /* the network thread, which links run on elsewhere, blocks it */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Pushes (shard.h): at once, or in slices. */
#include <assert.h>

#include "server/core/shard_run.h"
#include "server/core/shard_verdict.h"

void shard_push_fenced(struct shard *s)
{
    s->counters.pushes_fenced++;
}

static void renew_lease(struct worker *worker, uint64_t now_ms)
{
    if (now_ms > worker->last_seen_ms)
        worker->last_seen_ms = now_ms;
}

/* Everything that needs no look at its rows. True if that was all. */
static bool is_answered(struct shard *s, struct worker *worker, const struct push *push,
                        uint64_t now_ms, struct shard_push_result *ret, int *ret_status)
    ON_SHARD
{
    struct err err = { 0 };
    bool is_repeated;

    *ret = (struct shard_push_result){ 0 };
    /* The same worker on another connection: what it has sent before comes first. */
    if (worker && s->large.worker == worker)
        shard_settle(s);
    *ret_status = shard_verdict_turn(worker, push, &is_repeated, &err);
    if (*ret_status) {
        s->counters.pushes_fenced += *ret_status == PS_EFENCED;
        if (*ret_status == PS_ESEQ)
            worker->is_behind = true;
        shard_verdict_tell(s, worker, &err, ret);
        return true;
    }
    renew_lease(worker, now_ms);
    if (is_repeated)
        shard_verdict_repeat(s, worker, push, ret);
    return is_repeated;
}

static int judge_at_once(struct shard *s, struct worker *worker, const struct push *push,
                         struct shard_push_result *ret)
{
    shard_run_begin(s, &s->small, worker, push);
    shard_run_more(s, &s->small, UINT64_MAX);
    *ret = s->small.result;
    shard_run_end(&s->small);
    return s->small.status;
}

int shard_push(struct shard *s, struct worker *worker, const struct push *push, uint64_t now_ms,
               struct shard_push_result *ret)
{
    int status;

    shard_settle(s);
    if (is_answered(s, worker, push, now_ms, ret, &status))
        return status;
    return judge_at_once(s, worker, push, ret);
}

int shard_push_begin(struct shard *s, struct worker *worker, const struct push *push,
                     uint64_t now_ms, struct shard_push_result *ret,
                     enum shard_push_state *ret_state)
{
    int status;

    *ret_state = SHARD_PUSH_JUDGED;
    if (is_answered(s, worker, push, now_ms, ret, &status))
        return status;
    if (!shard_run_is_large(s, push))
        return judge_at_once(s, worker, push, ret);
    if (s->large.phase != SHARD_IDLE) {
        *ret_state = SHARD_PUSH_LATER;
        return 0;
    }
    shard_run_begin(s, &s->large, worker, push);
    return shard_push_more(s, now_ms, ret, ret_state);
}

int shard_push_more(struct shard *s, uint64_t now_ms, struct shard_push_result *ret,
                    enum shard_push_state *ret_state)
{
    struct shard_run *run = &s->large;

    assert(run->phase != SHARD_IDLE);
    if (shard_run_is_under_way(run))
        renew_lease(run->worker, now_ms);
    shard_run_more(s, run, SHARD_SLICE_BYTES);
    *ret_state = SHARD_PUSH_UNDER_WAY;
    if (run->phase != SHARD_JUDGED)
        return 0;
    *ret_state = SHARD_PUSH_JUDGED;
    *ret = run->result;
    shard_run_end(run);
    return run->status;
}

void shard_settle(struct shard *s)
{
    shard_run_more(s, &s->large, UINT64_MAX);
}

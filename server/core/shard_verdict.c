#include "server/core/shard_verdict.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "server/core/shard_again.h"
#include "server/core/shard_blocks.h"
#include "server/core/shard_change.h"
#include "server/core/shard_lockstep.h"
#include "server/core/shard_look.h"
#include "server/core/shard_sweep.h"
#include "server/core/shard_tell.h"

int shard_verdict_turn(const struct worker *worker, const struct push *push, bool *ret_repeated,
                       struct err *err)
{
    *ret_repeated = false;
    if (!worker)
        return err_set(err, PS_ENOJOIN, "%s", status_text(PS_ENOJOIN));
    if (worker->state != WORKER_LIVE)
        return err_set(err, PS_EFENCED, "job %s: rank %" PRIu32 " is %s", worker->job->name,
                       worker->rank, worker_state_name(worker->state));
    if (push->seq == 0)
        return err_set(err, PS_ESEQ, "push number 0: numbers begin with 1");
    *ret_repeated = push->seq <= worker->last_seq;
    if (push->seq > worker->last_seq && push->seq - worker->last_seq > 1)
        return err_set(err, PS_ESEQ, "push number %" PRIu64 " came, %" PRIu64 " is next",
                       push->seq, worker->last_seq + 1);
    return 0;
}

void shard_verdict_tell(const struct shard *s, const struct worker *worker,
                        const struct err *err, struct shard_push_result *ret)
{
    ret->status = err->status;
    memcpy(ret->text, err->text, sizeof ret->text - 1);
    ret->min_clock = worker ? job_min_clock(worker->job) : 0;
    ret->version = s->version;
}

void shard_verdict_repeat(struct shard *s, const struct worker *worker, const struct push *push,
                          struct shard_push_result *ret)
{
    struct err err = { 0 };

    s->counters.pushes_repeated++;
    if (push->seq == worker->refused_seq)
        err_set(&err, worker->refused_status, "%s (judged before)",
                status_text(worker->refused_status));
    *ret = (struct shard_push_result){ .repeated = true };
    shard_verdict_tell(s, worker, &err, ret);
}

static void note_refusal(struct shard *s, const struct shard_run *run)
{
    const struct shard_fault *fault = &run->fault;
    struct shard_refusal *refusal = &s->refusal;

    s->counters.pushes_refused++;
    s->counters.nan_pushes += fault->err.status == PS_ENAN;
    *refusal = (struct shard_refusal){ .n = refusal->n + 1,
                                       .status = fault->err.status,
                                       .key = fault->key,
                                       .clock = run->push->clock };
    memcpy(refusal->text, fault->err.text, sizeof refusal->text - 1);
    memcpy(refusal->worker, run->worker->name, sizeof refusal->worker);
    if (fault->entry)
        memcpy(refusal->table, fault->entry->table.spec.name, sizeof refusal->table);
}

static void take_number(struct shard *s, struct shard_run *run)
{
    run->worker->last_seq = run->push->seq;
    run->worker->is_behind = false;
    s->counters.pushes++;
}

static void tick(struct shard *s, struct worker *worker, const struct push *push)
{
    if (!push->tick || push->clock >= ROSTER_CLOCK_END)
        return;
    if (push->clock + 1 > worker->clock)
        worker->clock = push->clock + 1;
    s->counters.ticks++;
    shard_lockstep_tick(s, worker, push->clock);
}

/* The end of its step, and what that completes. */
static void end_step(struct shard *s, struct shard_run *run)
{
    uint64_t n_refused = s->counters.rows_refused;

    tick(s, run->worker, run->push);
    (void)shard_lockstep_release(s);
    run->result.rows_refused += s->counters.rows_refused - n_refused;
}

static bool is_unjudged(int status)
{
    return status == -ENOMEM || status == -EAGAIN || status == -EBUSY || status == PS_EFENCED ||
           status == PS_ESEQ || status == PS_ENOJOIN;
}

/* Room in the journal for its being judged so. */
static int reserve_journal(struct shard *s, struct shard_run *run, int judged)
{
    int status = shard_tell_reserve(s, run->worker, run->push, judged);

    if (!status)
        return 0;
    return err_set(&run->fault.err, status,
                   status == -EAGAIN ? "the push log is full: push number %" PRIu64 " waits"
                                     : "no memory for the log of push number %" PRIu64,
                   run->push->seq);
}

static void refuse(struct shard *s, struct shard_run *run, int status)
{
    take_number(s, run);
    run->worker->refused_seq = run->push->seq;
    run->worker->refused_status = status;
    note_refusal(s, run);
    shard_tell_push(s, run->worker, run->push, status);
    end_step(s, run);
}

int shard_verdict_refuse_again(struct shard *s, struct shard_run *run, int status)
{
    if (status == 0 || is_unjudged(status))
        return PS_ECORRUPT;
    run->fault.err.status = status;
    refuse(s, run, status);
    return 0;
}

void shard_verdict_refuse(struct shard *s, struct shard_run *run, int status)
{
    struct shard_fault *fault = &run->fault;

    if (status == -ENOMEM && fault->err.status != -ENOMEM)
        err_set(&fault->err, -ENOMEM, "no memory for push number %" PRIu64, run->push->seq);
    s->counters.pushes_fenced += status == PS_EFENCED;
    if (!is_unjudged(status)) {
        int reserved = reserve_journal(s, run, status);

        status = reserved ? reserved : status;
    }
    run->worker->is_behind = !s->again;
    if (s->again || is_unjudged(status))
        run->status = status;
    else
        refuse(s, run, status);
    shard_verdict_tell(s, run->worker, &fault->err, &run->result);
}

static void count_sections(struct shard *s, const struct shard_run *run)
{
    for (uint32_t i = 0; i < run->push->n_sections; i++) {
        const struct section *section = &run->push->sections[i];

        run->parts[i].rows.entry->table.rows_pushed += section->n_keys;
        s->counters.rows_pushed += section->n_keys;
        s->counters.value_bytes_in[section->codec] += section->value_bytes;
    }
}

/* Its place in the order of pushes: one version for all that does not wait, one step of each
 * table's count. */
static void take_place(struct shard *s, struct shard_run *run)
{
    bool any = false;

    for (uint32_t i = 0; i < run->push->n_sections; i++)
        any = any || !run->parts[i].waits;
    s->version += any;
    if (any)
        shard_look_note(s, run->worker, run->push);
    if (any && s->again)
        shard_again_begin(s);
    for (uint32_t i = 0; i < run->push->n_sections; i++) {
        struct shard_part *part = &run->parts[i];
        struct shard_entry *entry = part->rows.entry;

        if (part->waits || part->section->op != SECTION_GRADIENT)
            continue;
        part->step = optim_step_at(entry->optim, &entry->table.spec, run->push->clock,
                                   ++entry->table.n_pushes);
        shard_sweep_note_push(entry, run->worker->job->run, run->push->clock, s->version);
        if (run->push->clock >= run->worker->job->reached)
            run->worker->job->reached = run->push->clock + 1;
    }
    run->version = s->version;
}

int shard_verdict_prepare(struct shard *s, struct shard_run *run)
{
    int status;

    run->fault.entry = NULL;
    status = reserve_journal(s, run, 0);
    if (!status)
        status = shard_lockstep_copy(s, run->worker, run->push, run->parts, &run->held,
                                     &run->fault.err);
    if (status)
        return status;
    status = shard_blocks_make(s, run);
    if (status && run->held) {
        shard_lockstep_let_go(s, run->held);
        run->held = NULL;
    }
    return status;
}

void shard_verdict_accept(struct shard *s, struct shard_run *run)
{
    take_number(s, run);
    count_sections(s, run);
    take_place(s, run);
    if (run != &s->large)
        shard_change_all(s, run);
    shard_lockstep_hold(s, run->worker, run->held);
    shard_tell_push(s, run->worker, run->push, 0);
    end_step(s, run);
    shard_verdict_tell(s, run->worker, &run->fault.err, &run->result);
}

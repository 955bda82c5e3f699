#include "server/core/push.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "server/core/bsp.h"
#include "server/core/expire.h"
#include "server/core/pending_rows.h"
#include "server/core/push_apply.h"
#include "server/core/replay_decisions.h"
#include "server/core/row_admission.h"
#include "server/core/row_provenance.h"
#include "server/core/section_check.h"
#include "server/core/shard_log_events.h"
#include "server/core/sync_point.h"

/* --- the turn, and the replies --- */

/* May this push be applied or refused now? PS_ENOJOIN, PS_EFENCED, PS_ESEQ; or *ret_repeated: it was before. */
static int check_turn(const struct worker *worker, const struct push *push, bool *ret_repeated,
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

/* Fills *ret, but for what only some replies have. */
static void report(const struct shard *s, const struct worker *worker, const struct err *err,
                   struct shard_push_result *ret)
{
    ret->status = err->status;
    memcpy(ret->text, err->text, sizeof ret->text - 1);
    ret->min_clock = worker ? job_min_clock(worker->job) : 0;
    ret->version = s->version;
}

/* The reply to a push that was acknowledged before. */
static void report_repeated(struct shard *s, const struct worker *worker,
                            const struct push *push, struct shard_push_result *ret)
{
    struct err err = { 0 };

    s->counters.pushes_repeated++;
    if (push->seq == worker->refused_seq)
        err_set(&err, worker->refused_status, "%s (refused before)",
                status_text(worker->refused_status));
    *ret = (struct shard_push_result){ .repeated = true };
    report(s, worker, &err, ret);
}

static void note_refusal(struct shard *s, const struct push_op *op)
{
    const struct push_fault *fault = &op->fault;
    struct shard_refusal *refusal = &s->refusal;

    s->counters.pushes_refused++;
    s->counters.nan_pushes += fault->err.status == PS_ENAN && !fault->is_huge;
    s->counters.huge_pushes += fault->is_huge;
    *refusal = (struct shard_refusal){ .n = refusal->n + 1,
                                       .status = fault->err.status,
                                       .key = fault->key,
                                       .clock = op->push->clock };
    memcpy(refusal->text, fault->err.text, sizeof refusal->text - 1);
    memcpy(refusal->worker, op->worker->name, sizeof refusal->worker);
    if (fault->entry)
        memcpy(refusal->table, fault->entry->table.spec.name, sizeof refusal->table);
}

static void use_number(struct shard *s, struct push_op *op)
{
    op->worker->last_seq = op->push->seq;
    op->worker->is_behind = false;
    s->counters.pushes++;
}

static void tick(struct shard *s, struct worker *worker, const struct push *push)
{
    if (!push->tick || push->clock >= MEMBERSHIP_CLOCK_END)
        return;
    if (push->clock + 1 > worker->clock)
        worker->clock = push->clock + 1;
    s->counters.ticks++;
    if (s->queues)
        bsp_tick(s, worker, push->clock);
}

/* The end of its step, and what that completes. */
static void end_step(struct shard *s, struct push_op *op)
{
    uint64_t n_refused = s->counters.rows_refused;

    tick(s, op->worker, op->push);
    if (s->queues && op->is_whole)
        (void)bsp_release(s);
    else if (s->queues)
        (void)bsp_release_some(s);
    op->result.rows_refused += s->counters.rows_refused - n_refused;
}

static bool is_retried(int status)
{
    return status == -ENOMEM || status == -EAGAIN || status == -EBUSY || status == PS_EFENCED ||
           status == PS_ESEQ || status == PS_ENOJOIN;
}

/* Reserves the PUSH event with this outcome. */
static int reserve_event(struct shard *s, struct push_op *op, int outcome)
{
    int status = shard_log_events_reserve(s, op->worker, op->push, outcome);

    if (!status)
        return 0;
    return err_set(&op->fault.err, status,
                   status == -EAGAIN ? "the write-ahead log is full: push number %" PRIu64
                                       " waits"
                                     : "no memory for the log of push number %" PRIu64,
                   op->push->seq);
}

/* The number is used up and its tick counts; no row changes. */
static void commit_refusal(struct shard *s, struct push_op *op, int status)
{
    use_number(s, op);
    op->worker->refused_seq = op->push->seq;
    op->worker->refused_status = status;
    note_refusal(s, op);
    shard_log_events_push(s, op->worker, op->push, status);
    end_step(s, op);
}

/* A clock that is out of range moves nothing, and the record in the log has no tick. Records of an older psd, which let
 * it move the worker's clock, have one; so a replay leads to the clocks of its time. */
static void commit_refusal_of_clock(struct shard *s, struct push_op *op, int status)
{
    const struct push *sent = op->push;
    const struct push still = {
        .seq = sent->seq, .clock = sent->clock, .n_samples = sent->n_samples, .tick = false
    };

    op->push = &still;
    commit_refusal(s, op, status);
    op->push = sent;
}

/* op->fault says why it is not applied. -ENOMEM, -EAGAIN, -EBUSY and the statuses of check_turn() leave the
 * number unused: the push comes again. */
static void refuse(struct shard *s, struct push_op *op, int status)
{
    struct push_fault *fault = &op->fault;

    if (status == -ENOMEM && fault->err.status != -ENOMEM)
        err_set(&fault->err, -ENOMEM, "no memory for push number %" PRIu64, op->push->seq);
    s->counters.pushes_fenced += status == PS_EFENCED;
    if (!is_retried(status)) {
        int reserved = reserve_event(s, op, status);

        status = reserved ? reserved : status;
    }
    op->worker->is_behind = !s->replay;
    if (s->replay || is_retried(status))
        op->status = status;
    else if (!membership_clock_is_near(op->worker, op->push->clock))
        commit_refusal_of_clock(s, op, status);
    else
        commit_refusal(s, op, status);
    report(s, op->worker, &fault->err, &op->result);
}

/* A delta has the specification of its base. */
static void set_rate(struct shard *s, struct shard_entry *entry, float rate)
{
    if (rate == entry->table.spec.params.learning_rate)
        return;
    entry->table.spec.params.learning_rate = rate;
    s->base.counts = s->base.is_there = false;
}

/* Its place in the order of pushes: one version for all that does not wait, one step of each
 * table's count. */
static void assign_version(struct shard *s, struct push_op *op)
{
    bool any = false;

    for (uint32_t i = 0; i < op->push->n_sections; i++) {
        const struct section *sent = &op->push->sections[i];

        op->sections[i].in.entry->table.rows_pushed += sent->n_keys;
        s->counters.rows_pushed += sent->n_keys;
        s->counters.value_bytes_in[sent->codec] += sent->value_bytes;
        any = any || !op->sections[i].waits;
    }
    s->version += any;
    if (any)
        row_provenance_note(s, op->worker, op->push);
    if (any && s->replay)
        replay_decisions_begin(s);
    for (uint32_t i = 0; i < op->push->n_sections; i++) {
        struct push_section *section = &op->sections[i];
        struct shard_entry *entry = section->in.entry;

        if (section->in.sent->op == SECTION_ASSIGN_STATE &&
            section->in.sent->steps > entry->table.n_pushes)
            entry->table.n_pushes = section->in.sent->steps;
        if (section->in.sent->op == SECTION_RATE)
            set_rate(s, entry, section_rate_of(section->in.sent->steps));
        if (section->waits)
            continue;
        if (op->push->clock >= op->worker->job->applied_end)
            op->worker->job->applied_end = op->push->clock + 1;
        section->step.t = entry->table.n_pushes;
        if (!section_op_is_gradient(section->in.sent->op))
            continue;
        section->step = optimizer_step_at(entry->optim, &entry->table.spec, op->push->clock,
                                          ++entry->table.n_pushes);
        expire_note_push(entry, op->worker->job->run, op->push->clock, s->version);
    }
    op->version = s->version;
}

/* Is the job over with its clock, by the first ones? */
static bool is_over(const struct shard *s, const struct push_op *op)
{
    const struct job *job = op->worker->job;

    return bsp_holds_job(s, job) && job_is_over(job, op->push->clock);
}

/* A worker that comes back to a shard which knew nothing of it may have been moved up past a push that it sends again:
 * its gradients are late, as they would have been without the restart. */
static bool is_late(const struct shard *s, const struct push_op *op)
{
    bool is_behind = op->push->clock >= op->worker->clock;

    for (uint32_t i = 0; i < op->push->n_sections; i++)
        is_behind = is_behind || op->sections[i].waits;
    return is_behind && is_over(s, op);
}

/* The last steps that can fail: a copy of what waits for its clock, rows for blocks of dense tables. -EAGAIN (the
 * log is full), -ENOMEM, or a refusal. */
static int prepare(struct shard *s, struct push_op *op)
{
    int status;

    op->fault.entry = NULL;
    op->held = NULL;
    op->is_late = is_late(s, op);
    status = reserve_event(s, op, 0);
    if (!status && bsp_holds_job(s, op->worker->job) && !op->is_late)
        status = bsp_copy(s, op->worker, op->push, op->sections, &op->held, &op->fault.err);
    if (status)
        return status;
    status = row_admission_blocks(s, op);
    if (status && op->held) {
        bsp_release_held(s, op->held);
        op->held = NULL;
    }
    return status;
}

/* The job is over with its clock: its gradients for lock-step tables are dropped, and its reply says so. */
static void drop_late(struct shard *s, struct push_op *op)
{
    bool drops = op->push->tick;

    for (uint32_t i = 0; i < op->push->n_sections; i++)
        drops = drops || op->sections[i].waits;
    s->counters.pushes_dropped += drops;
    op->result.late = drops;
    if (op->push->clock >= op->worker->clock) /* else what is held of it was in time */
        bsp_drop_late(s, op->worker, op->push->clock);
}

/* Changes the rows of s->small; those of s->large change from here on, in slices. */
static void commit(struct shard *s, struct push_op *op)
{
    use_number(s, op);
    s->counters.rows_clipped += op->n_clipped;
    assign_version(s, op);
    if (op != &s->large)
        push_apply_all(s, op);
    if (op->held)
        bsp_hold(s, op->worker, op->held);
    if (op->is_late)
        drop_late(s, op);
    shard_log_events_push(s, op->worker, op->push, 0);
    end_step(s, op);
    report(s, op->worker, &op->fault.err, &op->result);
}

uint64_t shard_push_cost(const struct shard *s, const struct push *push)
{
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < push->n_sections; i++) {
        const struct shard_entry *entry = shard_entry_at(s, push->sections[i].table_id);

        if (entry)
            n_bytes += (uint64_t)push->sections[i].n_keys * entry->row_cost;
    }
    return n_bytes;
}

static bool is_large(const struct shard *s, const struct worker *worker,
                     const struct push *push) ON_SHARD
{
    uint64_t n_bytes = shard_push_cost(s, push);

    return n_bytes > s->slice_bytes ||
           (s->queues && bsp_ends_large_clock(s, worker, push, n_bytes));
}

void shard_set_slice(struct shard *s, uint64_t n_bytes)
{
    s->slice_bytes = n_bytes;
}

/* --- CHECK: the sections against their tables --- */

/* What both names have before their first slash. */
static bool is_of_one_family(const char *a, const char *b)
{
    size_t n = strcspn(a, "/");

    return n == strcspn(b, "/") && memcmp(a, b, n) == 0;
}

static int check_family(const struct push_op *op, const struct shard_table *table,
                        const char *what, struct err *err)
{
    if (is_of_one_family(op->worker->job->name, table->spec.name))
        return 0;
    return err_set(
        err, PS_EPROTO,
        "table %.80s: job %.64s sets its %s; only jobs of the table's own name, up to "
        "the first slash, may",
        table->spec.name, op->worker->job->name, what);
}

static int check_rate(const struct shard *s, const struct push_op *op,
                      const struct section *sent, const struct shard_table *table,
                      struct err *err)
{
    struct table_spec spec = table->spec;

    if (sent->op != SECTION_RATE)
        return 0;
    spec.params.learning_rate = section_rate_of(sent->steps);
    if (sent->n_keys || sent->steps > UINT32_MAX || !(spec.params.learning_rate > 0))
        return err_set(err, PS_EPROTO,
                       "table %s: a learning rate of %g with %" PRIu32
                       " rows; expected one above 0, and no row",
                       spec.name, (double)spec.params.learning_rate, sent->n_keys);
    if (table_spec_check_new(&spec, err))
        return err->status = PS_EPROTO;
    if (table->spec.schedule.decay != TABLE_SPEC_DECAY_PLATEAU)
        return err_set(err, PS_EPROTO,
                       "table %s: a learning rate was pushed, and its decay is %s; expected "
                       "plateau",
                       table->spec.name, table_spec_decay_name(table->spec.schedule.decay));
    return s->replay ? 0 : check_family(op, table, "learning rate", err);
}

/* A step count never falls again, and what a learning rate is may depend on it: so other jobs do not set it. Rows that
 * they assign can be mended. */
static int check_steps(const struct shard *s, const struct push_op *op,
                       const struct section *sent, const struct shard_table *table,
                       struct err *err)
{
    if (sent->op != SECTION_ASSIGN_STATE || sent->steps <= table->n_pushes || s->replay)
        return 0;
    return check_family(op, table, "step count", err);
}

static int check_delay(const struct section *sent, const struct push_section *section,
                       struct err *err)
{
    const struct table_spec *spec = &section->rows.entry->table.spec;

    if (sent->op != SECTION_GRADIENT_AT)
        return 0;
    if (section->waits)
        return err_set(
            err, PS_EPROTO,
            "table %s: gradients with delay compensation; in lock step they are those of "
            "the weights that they change",
            spec->name);
    if (sent->codec == CODEC_TOPK)
        return err_set(err, PS_ECODEC,
                       "table %s: gradients with delay compensation, encoded as topk; expected "
                       "another codec",
                       spec->name);
    if (!section_delay_is_valid(sent->steps))
        return err_set(err, PS_EPROTO,
                       "table %s: delay compensation by %g, of form %" PRIu64
                       "; expected 0 to %g, of form 0 or 1",
                       spec->name, (double)section_delay_of(sent->steps).lambda,
                       sent->steps >> 32, (double)SECTION_LAMBDA_MAX);
    return 0;
}

static int check_table(struct shard *s, struct push_op *op, const struct section *sent,
                       struct push_section *section)
{
    struct push_fault *fault = &op->fault;
    int status = section_check_table(s, sent, &section->in, &fault->err);
    struct shard_entry *entry = section->in.entry;

    if (status)
        return status;
    fault->entry = entry;
    section->rows = (struct pending_rows){ .entry = entry, .n_keys = sent->n_keys };
    section->waits = section_op_is_gradient(sent->op) &&
                     shard_mode_of(entry, op->worker->job) == TABLE_SPEC_MODE_BSP;
    if ((unsigned)sent->op >= SECTION_OP_END)
        return err_set(
            &fault->err, PS_EPROTO,
            "table %s: operation number %u; expected 0 (gradient), 1 (assign), 2 "
            "(assign with state), 3 (learning rate) or 4 (gradient with its weights)",
            entry->table.spec.name, (unsigned)sent->op);
    if (entry->mark == s->mark)
        return err_set(&fault->err, PS_EPROTO, "table %s stands in two sections of one push",
                       entry->table.spec.name);
    entry->mark = s->mark;
    status = check_steps(s, op, sent, &entry->table, &fault->err);
    if (!status)
        status = check_rate(s, op, sent, &entry->table, &fault->err);
    if (!status)
        status = check_delay(sent, section, &fault->err);
    return status ? status : section_check_sizes(s, &section->in, &fault->err);
}

/* Asked again before it takes effect: the worker may have been moved up meanwhile. */
static int check_clock(const struct shard *s, struct push_op *op)
{
    const struct push *push = op->push;
    const struct worker *worker = op->worker;

    for (uint32_t i = 0; i < push->n_sections && push->clock < worker->clock; i++) {
        if (!op->sections[i].waits || is_over(s, op))
            continue;
        op->fault.entry = op->sections[i].in.entry;
        return err_set(&op->fault.err, PS_EPROTO,
                       "table %s: a gradient of clock %" PRIu64
                       " after the worker has finished it (its clock is %" PRIu64 ")",
                       op->fault.entry->table.spec.name, push->clock, worker->clock);
    }
    op->fault.entry = NULL;
    return s->replay ? 0 : sync_point_arrive(s, op->worker, push->clock, &op->fault.err);
}

static int check_tables(struct shard *s, struct push_op *op)
{
    const struct push *push = op->push;
    int status = 0;

    s->mark++;
    if (push->clock >= MEMBERSHIP_CLOCK_END ||
        (!s->replay && !membership_clock_is_near(op->worker, push->clock)))
        return err_set(&op->fault.err, PS_EPROTO, "clock %" PRIu64 " is out of range",
                       push->clock);
    for (uint32_t i = 0; i < push->n_sections && !status; i++)
        status = check_table(s, op, &push->sections[i], &op->sections[i]);
    return status ? status : check_clock(s, op);
}

/* Marks are for a large push: nothing comes between the slices of a small one. */
static int reserve_marks(struct push_op *op, uint64_t n_keys)
{
    uint32_t n_sections = op->push->n_sections;
    uint8_t *marks = shard_scratch(&op->marks, n_keys / 8 + n_sections, 1);

    if (!marks)
        return -ENOMEM;
    memset(marks, 0, n_keys / 8 + n_sections);
    for (uint32_t i = 0; i < n_sections; i++) {
        op->sections[i].rows.marks = marks;
        marks += op->sections[i].rows.n_keys / 8 + 1;
    }
    return 0;
}

/* Gives every section its arrays. */
static int reserve_rows(struct shard *s, struct push_op *op)
{
    uint64_t n_keys = 0, *keys;

    for (uint32_t i = 0; i < op->push->n_sections; i++)
        n_keys += op->push->sections[i].n_keys;
    keys = shard_scratch(&op->keys, n_keys, sizeof *keys);
    if (!keys)
        return -ENOMEM;
    for (uint32_t i = 0; i < op->push->n_sections; i++) {
        op->sections[i].rows.keys = keys;
        keys += op->sections[i].rows.n_keys;
    }
    return op == &s->large ? reserve_marks(op, n_keys) : 0;
}

/* --- CHECK and APPLY, in chunks --- */

/* Above which magnitude a float is too large. Of what the log has it was asked when it came, maybe of another
 * number. */
static uint32_t magnitude_max(const struct shard *s, const struct push_section *section)
{
    if (s->replay)
        return CODEC_FINITE;
    return section_op_is_gradient(section->in.sent->op)
               ? shard_magnitude_max(&s->config)
               : codec_bytes_of_float(SECTION_ASSIGN_MAX);
}

/* The next n rows. Those that are too large are clipped, if they are to be. */
static int check_values(struct shard *s, struct push_op *op, struct push_section *section,
                        uint32_t n)
{
    const uint32_t max = magnitude_max(s, section), end = section->rows.n_done + n;
    struct push_fault *fault = &op->fault;
    uint32_t from = section->rows.n_done, row;
    int status;

    for (;; from = row + 1) {
        status = section_check_values(s, &section->in, from, end - from, max, &row);
        if (!status)
            return 0;
        fault->is_huge = status == PS_ENAN && section_check_is_huge(s, &section->in, row);
        if (!fault->is_huge || !s->config.clip_gradients ||
            !section_op_is_gradient(section->in.sent->op))
            break;
        section_check_clip(&section->in, row, s->config.gradient_max, s->values);
        op->n_clipped++;
    }
    fault->key = section->rows.keys[row];
    return section_check_refuse_row(s, &section->in, row, fault->key, status,
                                    s->config.gradient_max, &fault->err);
}

static int check_chunk(struct shard *s, struct push_op *op, struct push_section *section,
                       uint32_t n)
{
    struct push_fault *fault = &op->fault;
    uint32_t from = section->rows.n_done;
    int status;

    fault->entry = section->in.entry;
    status = section_check_keys(s, &section->in, n, section->rows.keys + from, &fault->key,
                                &fault->err);
    if (!status)
        status = check_values(s, op, section, n);
    section->rows.n_done += n;
    return status;
}

/* Of the section that the phase is at, if it has rows left: about n_bytes of them. Returns
 * what that costs. */
static uint64_t work(struct shard *s, struct push_op *op, uint64_t n_bytes, int *ret_status)
{
    struct push_section *section = &op->sections[op->section];
    uint32_t cost = section->in.entry->row_cost, chunk = section->in.entry->chunk_rows;
    uint32_t n_left = section->rows.n_keys - section->rows.n_done;
    uint64_t n = op->phase == PUSH_CHECK || n_bytes / cost < chunk ? chunk : n_bytes / cost;

    n = n < n_left ? n : n_left;
    if (n == 0 || (section->waits && op->phase != PUSH_CHECK)) {
        op->section++;
        return 0;
    }
    if (op->phase == PUSH_CHECK)
        *ret_status = check_chunk(s, op, section, (uint32_t)n);
    else
        push_apply_rows(s, op, section, (uint32_t)n);
    return n * cost;
}

/* --- from phase to phase --- */

static void trim(struct push_op *op)
{
    shard_trim(&op->keys);
    shard_trim(&op->marks);
}

/* Nothing of it is left behind. */
static void fail(struct shard *s, struct push_op *op, int status)
{
    op->phase = PUSH_DONE;
    refuse(s, op, status);
    op->phase = op == &s->large ? PUSH_RELEASE : PUSH_DONE;
    trim(op);
}

/* In slices, others have come in between: is all as it was when it began? Of a push out of the log nothing was
 * checked before. */
static int check_unchanged(const struct shard *s, struct push_op *op)
{
    const struct worker *worker = op->worker;
    bool is_repeated;
    int status = check_turn(worker, op->push, &is_repeated, &op->fault.err);

    if (!status && (worker->incarnation != op->incarnation || worker->job->run != op->run))
        status = err_set(&op->fault.err, PS_EFENCED, "another process has this rank now");
    if (!status && is_repeated)
        status = err_set(&op->fault.err, PS_ESEQ, "push number %" PRIu64 " came twice at once",
                         op->push->seq);
    return status ? status : check_clock(s, op);
}

static void take_effect(struct shard *s, struct push_op *op)
{
    int status = op == &s->large || s->replay ? check_unchanged(s, op) : 0;

    if (!status)
        status = prepare(s, op);
    if (status) {
        fail(s, op, status);
        return;
    }
    for (uint32_t i = 0; i < op->push->n_sections; i++)
        if (!op->sections[i].waits)
            pending_rows_begin(&op->sections[i].rows);
    op->phase = PUSH_APPLY;
    op->section = 0;
    commit(s, op);
}

static void end_rows(const struct shard *s, struct push_op *op)
{
    for (uint32_t i = 0; i < op->push->n_sections; i++)
        if (!op->sections[i].waits)
            pending_rows_end(&op->sections[i].rows);
    op->phase = op == &s->large ? PUSH_RELEASE : PUSH_DONE;
    trim(op);
}

/* Clocks that were complete had to wait for the end of this push. Only one that is not to be sent again waits for those
 * of its job. Returns what was used. */
static uint64_t release_clocks(struct shard *s, struct push_op *op, uint64_t n_bytes)
{
    uint64_t n_refused = s->counters.rows_refused, used;

    if (s->queues)
        (void)bsp_release_some(s);
    if (op->status || !bsp_is_in_slices(s) || !bsp_is_behind(s, op->worker->job)) {
        op->phase = PUSH_DONE;
        return 0;
    }
    used = bsp_more(s, n_bytes);
    op->result.rows_refused += s->counters.rows_refused - n_refused;
    op->result.min_clock = job_min_clock(op->worker->job);
    op->result.version = s->version;
    return used;
}

/* The turn has been checked. */
static void begin(struct shard *s, struct push_op *op, struct worker *worker,
                  const struct push *push)
{
    int status;

    op->push = push;
    op->worker = worker;
    op->incarnation = worker->incarnation;
    op->run = worker->job->run;
    op->fault = (struct push_fault){ 0 };
    op->n_clipped = 0;
    op->status = 0;
    op->result = (struct shard_push_result){ 0 };
    op->phase = PUSH_CHECK;
    op->section = 0;
    status = check_tables(s, op);
    if (!status)
        status = reserve_rows(s, op);
    if (status)
        fail(s, op, status);
}

/* Goes on for about n_bytes of rows (row_cost), or until it is done. */
static void advance(struct shard *s, struct push_op *op, uint64_t n_bytes)
{
    int status = 0;

    while (push_is_running(op) && n_bytes) {
        uint64_t cost = 0;

        if (op->phase == PUSH_RELEASE)
            cost = release_clocks(s, op, n_bytes);
        else if (op->section < op->push->n_sections)
            cost = work(s, op, n_bytes, &status);
        else if (op->phase == PUSH_CHECK)
            take_effect(s, op);
        else
            end_rows(s, op);
        if (status)
            fail(s, op, status);
        n_bytes -= cost < n_bytes ? cost : n_bytes;
        status = 0;
    }
}

/* The result has been reported. */
static void close_op(struct push_op *op)
{
    op->phase = PUSH_IDLE;
    op->push = NULL;
    op->worker = NULL;
}

/* --- shard.h --- */

void shard_push_fenced(struct shard *s)
{
    s->counters.pushes_fenced++;
}

/* Everything that needs no look at its rows. True if that was all. */
static bool is_answered_early(struct shard *s, struct worker *worker, const struct push *push,
                              uint64_t now_ms, struct shard_push_result *ret, int *ret_status)
    ON_SHARD
{
    struct err err = { 0 };
    bool is_repeated;

    *ret = (struct shard_push_result){ 0 };
    *ret_status = check_turn(worker, push, &is_repeated, &err);
    if (*ret_status) {
        s->counters.pushes_fenced += *ret_status == PS_EFENCED;
        if (*ret_status == PS_ESEQ)
            worker->is_behind = true;
        report(s, worker, &err, ret);
        return true;
    }
    membership_hear(worker, now_ms);
    if (is_repeated)
        report_repeated(s, worker, push, ret);
    return is_repeated;
}

static int run_at_once(struct shard *s, struct worker *worker, const struct push *push,
                       bool is_whole, struct shard_push_result *ret)
{
    s->small.is_whole = is_whole;
    begin(s, &s->small, worker, push);
    advance(s, &s->small, UINT64_MAX);
    *ret = s->small.result;
    close_op(&s->small);
    return s->small.status;
}

int shard_push(struct shard *s, struct worker *worker, const struct push *push, uint64_t now_ms,
               struct shard_push_result *ret)
{
    int status;

    shard_finish_push(s);
    if (is_answered_early(s, worker, push, now_ms, ret, &status))
        return status;
    return run_at_once(s, worker, push, true, ret);
}

int shard_push_begin(struct shard *s, struct worker *worker, const struct push *push,
                     uint64_t now_ms, struct shard_push_result *ret,
                     enum shard_push_state *ret_state)
{
    int status;

    /* The same worker on another connection: what it has sent before comes first. */
    *ret_state = SHARD_PUSH_BUSY;
    if (shard_is_pushing(s, worker))
        return 0;
    *ret_state = SHARD_PUSH_DONE;
    if (is_answered_early(s, worker, push, now_ms, ret, &status))
        return status;
    if (!is_large(s, worker, push))
        return run_at_once(s, worker, push, false, ret);
    if (s->large.phase != PUSH_IDLE || bsp_is_in_slices(s)) {
        *ret_state = SHARD_PUSH_BUSY;
        return 0;
    }
    begin(s, &s->large, worker, push);
    return shard_push_more(s, now_ms, ret, ret_state);
}

bool shard_is_between_changes(const struct shard *s)
{
    return s->large.phase == PUSH_IDLE && !bsp_is_in_slices(s);
}

int shard_push_more(struct shard *s, uint64_t now_ms, struct shard_push_result *ret,
                    enum shard_push_state *ret_state)
{
    struct push_op *op = &s->large;

    assert(op->phase != PUSH_IDLE);
    if (push_is_running(op))
        membership_hear(op->worker, now_ms);
    advance(s, op, s->slice_bytes);
    *ret_state = SHARD_PUSH_RUNNING;
    if (op->phase != PUSH_DONE)
        return 0;
    *ret_state = SHARD_PUSH_DONE;
    *ret = op->result;
    close_op(op);
    return op->status;
}

bool shard_is_pushing(const struct shard *s, const struct worker *worker)
{
    return push_is_running(&s->large) && s->large.worker == worker;
}

void shard_finish_push(struct shard *s)
{
    struct push_op *op = &s->large;

    while (push_is_running(op) && op->phase != PUSH_RELEASE)
        advance(s, op, s->slice_bytes);
    if (push_is_running(op))
        op->phase = PUSH_DONE;
}

/* --- replay.h --- */

int push_replay_applied(struct shard *s, struct worker *worker, const struct push *push,
                        struct err *err)
{
    struct push_op *op = &s->small;

    begin(s, op, worker, push);
    advance(s, op, UINT64_MAX);
    if (op->fault.err.status) {
        *err = op->fault.err;
        err->status = op->status == -ENOMEM ? -ENOMEM : PS_ECORRUPT;
    }
    close_op(op);
    return err->status;
}

int push_replay_refused(struct shard *s, struct worker *worker, const struct push *push,
                        int status)
{
    struct push_op *op = &s->small;

    if (status == 0 || is_retried(status))
        return PS_ECORRUPT;
    op->push = push;
    op->worker = worker;
    op->fault = (struct push_fault){ .err.status = status };
    commit_refusal(s, op, status);
    close_op(op);
    return 0;
}

void push_deinit(struct push_op *op)
{
    bytes_deinit(&op->keys);
    bytes_deinit(&op->marks);
}

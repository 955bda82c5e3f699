/* Pushes (shard.h): judged as a whole, then applied or held, then the clock ticks. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "server/core/shard_lockstep.h"
#include "server/core/shard_rows.h"
#include "server/core/shard_section.h"

/* What is wrong with a push, and where. */
struct fault {
    struct err err;
    const struct shard_entry *entry; /* NULL: the push as a whole */
    uint64_t key;
};

/* May this push be judged now? Else why not; or it has been, long ago. */
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

/* The section's bytes against its table, before any room is made for its keys. */
static int check_size(const struct shard_entry *entry, struct shard_part *part, struct err *err)
{
    const struct section *section = part->section;
    int status = shard_section_codec(entry, section, &part->codec, &part->row_bytes, err);

    if (!status)
        status = shard_section_count(entry, section, err);
    return status ? status
                  : shard_section_width(entry, section, part->codec, part->row_bytes, err);
}

static int check_table(struct shard *s, const struct worker *worker, const struct push *push,
                       struct shard_part *part, struct fault *fault)
{
    const struct section *section = part->section;
    struct shard_entry *entry;
    int status = shard_section_table(s, section, &entry, &fault->err);

    if (status)
        return status;
    fault->entry = entry;
    part->rows = (struct shard_rows){ .entry = entry, .n_keys = section->n_keys };
    part->waits =
        section->op == SECTION_GRADIENT && shard_mode_of(entry, worker->job) == SPEC_MODE_BSP;
    if (section->op != SECTION_GRADIENT && section->op != SECTION_ASSIGN)
        return err_set(&fault->err, PS_EPROTO,
                       "table %s: operation number %u; expected 0 (gradient) or 1 (assign)",
                       entry->table.spec.name, (unsigned)section->op);
    if (entry->mark == s->mark)
        return err_set(&fault->err, PS_EPROTO, "table %s stands in two sections of one push",
                       entry->table.spec.name);
    entry->mark = s->mark;
    if (part->waits && push->clock < worker->clock)
        return err_set(&fault->err, PS_EPROTO,
                       "table %s: a gradient of clock %" PRIu64
                       " after the worker has finished it (its clock is %" PRIu64 ")",
                       entry->table.spec.name, push->clock, worker->clock);
    return check_size(entry, part, &fault->err);
}

/* Gives every part its run of the scratch for keys and rows. */
static int reserve_scratch(struct shard *s, uint32_t n_parts)
{
    uint64_t n_keys = 0, *keys;
    struct row **rows;

    for (uint32_t i = 0; i < n_parts; i++)
        n_keys += s->parts[i].rows.n_keys;
    keys = shard_scratch(&s->keys, n_keys, sizeof *keys);
    rows = shard_scratch(&s->rows, n_keys, sizeof *rows);
    if (!keys || !rows)
        return -ENOMEM;
    for (uint32_t i = 0; i < n_parts; i++) {
        s->parts[i].rows.keys = keys;
        s->parts[i].rows.rows = rows;
        keys += s->parts[i].rows.n_keys;
        rows += s->parts[i].rows.n_keys;
    }
    return 0;
}

static int check_rows(struct shard *s, struct shard_part *part, uint64_t *keys,
                      struct fault *fault)
{
    int status;

    fault->entry = part->rows.entry;
    status =
        shard_section_keys(s, part->rows.entry, part->section, keys, &fault->key, &fault->err);
    return status ? status
                  : shard_section_values(part, keys, s->values, &fault->key, &fault->err);
}

/* Holds the whole push against its tables and fills s->parts. A refusal, or -ENOMEM. */
static int check_push(struct shard *s, const struct worker *worker, const struct push *push,
                      struct fault *fault)
{
    uint64_t *keys;
    int status = 0;

    s->mark++;
    if (push->clock >= ROSTER_CLOCK_END)
        return err_set(&fault->err, PS_EPROTO, "clock %" PRIu64 " is out of range",
                       push->clock);
    for (uint32_t i = 0; i < push->n_sections && !status; i++) {
        s->parts[i] = (struct shard_part){ .section = &push->sections[i] };
        status = check_table(s, worker, push, &s->parts[i], fault);
    }
    if (!status)
        status = reserve_scratch(s, push->n_sections);
    keys = (uint64_t *)(void *)s->keys.bytes;
    for (uint32_t i = 0; i < push->n_sections && !status; i++) {
        status = check_rows(s, &s->parts[i], keys, fault);
        keys += push->sections[i].n_keys;
    }
    if (!status)
        fault->entry = NULL;
    return status;
}

/* All that can still fail: room for new rows, and the copy of what must wait. */
static int prepare(struct shard *s, const struct worker *worker, const struct push *push,
                   struct shard_held **ret_held, struct fault *fault)
{
    int status = 0;

    for (uint32_t i = 0; i < push->n_sections && !status; i++)
        if (!s->parts[i].waits)
            status = shard_rows_prepare(s, &s->parts[i].rows);
    return status ? status : shard_lockstep_copy(s, worker, push, ret_held, &fault->err);
}

static void apply_gradient(struct shard *s, struct shard_part *part, uint64_t clock)
{
    struct shard_rows *b = &part->rows;
    const struct table_spec *spec = &b->entry->table.spec;
    const struct optim_step step =
        optim_step_at(b->entry->optim, spec, clock, ++b->entry->table.n_pushes);
    const uint8_t *src = part->section->values;

    for (uint32_t i = 0; i < b->n_keys; i++, src += part->row_bytes) {
        int status = part->codec->decode(src, spec->dim, part->section->k, s->gradient);

        assert(!status); /* check_rows() has decoded it before */
        shard_rows_step(s, b, i, s->gradient, &step, clock);
    }
}

static void apply_assignment(struct shard *s, struct shard_part *part, uint64_t clock)
{
    struct shard_rows *b = &part->rows;
    const uint8_t *src = part->section->values;

    for (uint32_t i = 0; i < b->n_keys; i++, src += part->row_bytes) {
        int status =
            part->codec->decode(src, b->entry->table.spec.dim, part->section->k, s->values);

        assert(!status);
        shard_rows_assign(s, b, i, s->values, clock);
    }
}

/* Every part that does not wait. */
static void apply_now(struct shard *s, const struct push *push)
{
    bool any = false;

    for (uint32_t i = 0; i < push->n_sections; i++)
        any = any || !s->parts[i].waits;
    s->version += any;
    for (uint32_t i = 0; i < push->n_sections; i++) {
        if (s->parts[i].waits)
            continue;
        if (push->sections[i].op == SECTION_GRADIENT)
            apply_gradient(s, &s->parts[i], push->clock);
        else
            apply_assignment(s, &s->parts[i], push->clock);
    }
}

static void count_sections(struct shard *s, const struct push *push)
{
    for (uint32_t i = 0; i < push->n_sections; i++) {
        const struct section *section = &push->sections[i];

        s->parts[i].rows.entry->table.rows_pushed += section->n_keys;
        s->counters.rows_pushed += section->n_keys;
        s->counters.value_bytes_in[section->codec] += section->value_bytes;
    }
}

static void note_refusal(struct shard *s, const struct worker *worker, const struct push *push,
                         const struct fault *fault)
{
    struct shard_refusal *refusal = &s->refusal;

    s->counters.pushes_refused++;
    s->counters.nan_pushes += fault->err.status == PS_ENAN;
    *refusal = (struct shard_refusal){ .n = refusal->n + 1,
                                       .status = fault->err.status,
                                       .key = fault->key,
                                       .clock = push->clock };
    memcpy(refusal->text, fault->err.text, sizeof refusal->text - 1);
    memcpy(refusal->worker, worker->name, sizeof refusal->worker);
    if (fault->entry)
        memcpy(refusal->table, fault->entry->table.spec.name, sizeof refusal->table);
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

static int judge(struct shard *s, struct worker *worker, const struct push *push,
                 struct fault *fault)
{
    struct shard_held *held = NULL;
    int status = check_push(s, worker, push, fault);

    if (!status)
        status = prepare(s, worker, push, &held, fault);
    if (status == -ENOMEM && fault->err.status != -ENOMEM)
        err_set(&fault->err, -ENOMEM, "no memory for push number %" PRIu64, push->seq);
    if (status == -ENOMEM)
        return status;
    worker->last_seq = push->seq;
    s->counters.pushes++;
    if (status) {
        worker->refused_seq = push->seq;
        worker->refused_status = status;
        note_refusal(s, worker, push, fault);
    } else {
        count_sections(s, push);
        apply_now(s, push);
        shard_lockstep_hold(s, worker, held);
    }
    tick(s, worker, push);
    (void)shard_lockstep_release(s);
    return 0;
}

void shard_push_fenced(struct shard *s)
{
    s->counters.pushes_fenced++;
}

int shard_push(struct shard *s, struct worker *worker, const struct push *push, uint64_t now_ms,
               struct shard_push_result *ret)
{
    uint64_t refused_before = s->counters.rows_refused;
    struct fault fault = { 0 };
    int status;

    *ret = (struct shard_push_result){ 0 };
    status = check_turn(worker, push, &ret->repeated, &fault.err);
    if (!status && now_ms > worker->last_seen_ms)
        worker->last_seen_ms = now_ms;
    if (!status && !ret->repeated)
        status = judge(s, worker, push, &fault);
    else if (!status && push->seq == worker->refused_seq)
        err_set(&fault.err, worker->refused_status, "%s (judged before)",
                status_text(worker->refused_status));
    shard_scratch_trim(s);
    s->counters.pushes_repeated += ret->repeated;
    s->counters.pushes_fenced += status == PS_EFENCED;
    ret->status = fault.err.status;
    memcpy(ret->text, fault.err.text, sizeof ret->text - 1);
    ret->min_clock = worker ? job_min_clock(worker->job) : 0;
    ret->version = s->version;
    ret->rows_refused = s->counters.rows_refused - refused_before;
    return status;
}

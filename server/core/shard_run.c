#include "server/core/shard_run.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "server/core/shard_change.h"
#include "server/core/shard_cut.h"
#include "server/core/shard_rows.h"
#include "server/core/shard_section.h"
#include "server/core/shard_verdict.h"

bool shard_run_is_large(const struct shard *s, const struct push *push)
{
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < push->n_sections; i++) {
        const struct shard_entry *entry = shard_entry_at(s, push->sections[i].table_id);

        if (entry)
            n_bytes += (uint64_t)push->sections[i].n_keys * shard_row_cost(entry);
    }
    return n_bytes > SHARD_SLICE_BYTES;
}

/* --- before the first chunk: the sections against their tables --- */

/* The section's bytes against its table, before any room is made for its keys. */
static int check_size(const struct shard_entry *entry, struct shard_part *part, struct err *err)
{
    const struct section *section = part->section;
    int status = shard_section_codec(entry, section, &part->codec, &part->row_bytes, err);

    if (!status)
        status = shard_section_count(entry, section, err);
    if (!status)
        status = shard_section_width(entry, section, part->codec, part->row_bytes, err);
    return status ? status : shard_section_open(entry, section, &part->reader, err);
}

static int check_table(struct shard *s, struct shard_run *run, struct shard_part *part)
{
    const struct section *section = part->section;
    struct shard_fault *fault = &run->fault;
    struct shard_entry *entry;
    int status = shard_section_table(s, section, &entry, &fault->err);

    if (status)
        return status;
    fault->entry = entry;
    part->rows = (struct shard_rows){ .entry = entry, .n_keys = section->n_keys };
    part->waits = section->op == SECTION_GRADIENT &&
                  shard_mode_of(entry, run->worker->job) == SPEC_MODE_BSP;
    if (section->op != SECTION_GRADIENT && section->op != SECTION_ASSIGN)
        return err_set(&fault->err, PS_EPROTO,
                       "table %s: operation number %u; expected 0 (gradient) or 1 (assign)",
                       entry->table.spec.name, (unsigned)section->op);
    if (entry->mark == s->mark)
        return err_set(&fault->err, PS_EPROTO, "table %s stands in two sections of one push",
                       entry->table.spec.name);
    entry->mark = s->mark;
    return check_size(entry, part, &fault->err);
}

/* Asked again before it takes effect: the worker may have been moved up meanwhile. */
static int check_clock(const struct shard *s, struct shard_run *run)
{
    const struct push *push = run->push;
    const struct worker *worker = run->worker;

    for (uint32_t i = 0; i < push->n_sections && push->clock < worker->clock; i++) {
        if (!run->parts[i].waits)
            continue;
        run->fault.entry = run->parts[i].rows.entry;
        return err_set(&run->fault.err, PS_EPROTO,
                       "table %s: a gradient of clock %" PRIu64
                       " after the worker has finished it (its clock is %" PRIu64 ")",
                       run->fault.entry->table.spec.name, push->clock, worker->clock);
    }
    run->fault.entry = NULL;
    return s->again ? 0 : shard_cut_arrive(s, run->worker, push->clock, &run->fault.err);
}

static int check_tables(struct shard *s, struct shard_run *run)
{
    const struct push *push = run->push;
    int status = 0;

    s->mark++;
    if (push->clock >= ROSTER_CLOCK_END)
        return err_set(&run->fault.err, PS_EPROTO, "clock %" PRIu64 " is out of range",
                       push->clock);
    for (uint32_t i = 0; i < push->n_sections && !status; i++) {
        run->parts[i].section = &push->sections[i];
        status = check_table(s, run, &run->parts[i]);
    }
    return status ? status : check_clock(s, run);
}

/* Gives every part its arrays. Nobody comes in between where the push is small. */
static int reserve(struct shard *s, struct shard_run *run)
{
    uint64_t n_keys = 0, *keys;
    uint32_t n_sections = run->push->n_sections;
    bool has_marks = run == &s->large;
    uint8_t *marks = NULL;

    for (uint32_t i = 0; i < n_sections; i++)
        n_keys += run->push->sections[i].n_keys;
    keys = shard_scratch(&run->keys, n_keys, sizeof *keys);
    if (has_marks)
        marks = shard_scratch(&run->marks, n_keys / 8 + n_sections, 1);
    if (!keys || (has_marks && !marks))
        return -ENOMEM;
    if (has_marks)
        memset(marks, 0, n_keys / 8 + n_sections);
    for (uint32_t i = 0; i < n_sections; i++) {
        struct shard_rows *b = &run->parts[i].rows;

        b->keys = keys;
        b->marks = marks;
        keys += b->n_keys;
        marks += has_marks ? b->n_keys / 8 + 1 : 0;
    }
    return 0;
}

/* --- chunks --- */

static int check_chunk(struct shard *s, struct shard_run *run, struct shard_part *part,
                       uint32_t n)
{
    struct shard_fault *fault = &run->fault;
    const struct shard_entry *entry = part->rows.entry;
    uint32_t from = part->rows.n_done;
    int status;

    fault->entry = entry;
    status = shard_section_keys(s, entry, part->section, &part->reader, n,
                                part->rows.keys + from, &fault->key, &fault->err);
    if (!status)
        status = shard_section_values(part, from, n, &fault->key, &fault->err);
    part->rows.n_done += n;
    return status;
}

/* Of the part that the phase is at, if it has rows left: about so many bytes of them. Returns
 * what that costs. */
static uint64_t work(struct shard *s, struct shard_run *run, uint64_t n_bytes, int *ret_status)
{
    struct shard_part *part = &run->parts[run->part];
    uint32_t cost = shard_row_cost(part->rows.entry), chunk = shard_chunk(part->rows.entry);
    uint32_t n_left = part->rows.n_keys - part->rows.n_done;
    uint64_t n = run->phase == SHARD_CHECK || n_bytes / cost < chunk ? chunk : n_bytes / cost;

    n = n < n_left ? n : n_left;
    if (n == 0 || (part->waits && run->phase != SHARD_CHECK)) {
        run->part++;
        return 0;
    }
    if (run->phase == SHARD_CHECK)
        *ret_status = check_chunk(s, run, part, (uint32_t)n);
    else
        shard_change_rows(s, run, part, (uint32_t)n);
    return n * cost;
}

/* --- from phase to phase --- */

static void trim(struct shard_run *run)
{
    shard_trim(&run->keys);
    shard_trim(&run->marks);
}

/* Nothing of it is left behind. */
static void fail(struct shard *s, struct shard_run *run, int status)
{
    run->phase = SHARD_JUDGED;
    shard_verdict_refuse(s, run, status);
    trim(run);
}

/* In slices, others have come in between: is all as it was when it began? */
static int check_again(const struct shard *s, struct shard_run *run)
{
    bool is_repeated;
    int status = shard_verdict_turn(run->worker, run->push, &is_repeated, &run->fault.err);

    if (!status && is_repeated)
        status = err_set(&run->fault.err, PS_ESEQ, "push number %" PRIu64 " came twice at once",
                         run->push->seq);
    return status ? status : check_clock(s, run);
}

static void take_effect(struct shard *s, struct shard_run *run)
{
    int status = check_again(s, run);

    if (!status)
        status = shard_verdict_prepare(s, run);
    if (status) {
        fail(s, run, status);
        return;
    }
    for (uint32_t i = 0; i < run->push->n_sections; i++)
        if (!run->parts[i].waits)
            shard_rows_begin(&run->parts[i].rows);
    run->phase = SHARD_APPLY;
    run->part = 0;
    shard_verdict_accept(s, run);
}

static void end(struct shard_run *run)
{
    for (uint32_t i = 0; i < run->push->n_sections; i++)
        if (!run->parts[i].waits)
            shard_rows_end(&run->parts[i].rows);
    run->phase = SHARD_JUDGED;
    trim(run);
}

static void next_phase(struct shard *s, struct shard_run *run)
{
    if (run->phase == SHARD_CHECK)
        take_effect(s, run);
    else
        end(run);
}

void shard_run_begin(struct shard *s, struct shard_run *run, struct worker *worker,
                     const struct push *push)
{
    int status;

    run->push = push;
    run->worker = worker;
    run->fault = (struct shard_fault){ 0 };
    run->status = 0;
    run->result = (struct shard_push_result){ 0 };
    run->phase = SHARD_CHECK;
    run->part = 0;
    status = check_tables(s, run);
    if (!status)
        status = reserve(s, run);
    if (status)
        fail(s, run, status);
}

void shard_run_more(struct shard *s, struct shard_run *run, uint64_t n_bytes)
{
    int status = 0;

    while (shard_run_is_under_way(run) && n_bytes) {
        uint64_t cost = 0;

        if (run->part == run->push->n_sections)
            next_phase(s, run);
        else
            cost = work(s, run, n_bytes, &status);
        if (status)
            fail(s, run, status);
        n_bytes -= cost < n_bytes ? cost : n_bytes;
        status = 0;
    }
}

void shard_run_end(struct shard_run *run)
{
    run->phase = SHARD_IDLE;
    run->push = NULL;
    run->worker = NULL;
}

void shard_run_deinit(struct shard_run *run)
{
    buf_deinit(&run->keys);
    buf_deinit(&run->marks);
}

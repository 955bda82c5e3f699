/* Pulls (shard.h): planned, parked until the clocks allow, answered. */
#include <inttypes.h>

#include "server/core/shard_cut.h"
#include "server/core/shard_lockstep.h"
#include "server/core/shard_section.h"

#define NO_BOUND UINT64_MAX

int shard_pull_plan(struct shard *s, const struct pull *pull, size_t max_bytes,
                    size_t *ret_value_bytes, struct err *err)
{
    size_t row_bytes, head_bytes, total = 0;
    struct shard_entry *entry;
    const struct codec *codec;
    int status = 0;

    for (uint32_t i = 0; i < pull->n_sections; i++) {
        const struct section *section = &pull->sections[i];

        if ((status = shard_section_table(s, section, &entry, err)) != 0 ||
            (status = shard_section_codec(entry, section, &codec, &row_bytes, err)) != 0 ||
            (status = shard_section_count(entry, section, err)) != 0)
            return status;
        head_bytes = section->state ? section_state_bytes(section->n_keys) : 0;
        if (head_bytes > max_bytes - total ||
            section->n_keys > (max_bytes - total - head_bytes) / row_bytes)
            return err_set(err, PS_ETOOBIG,
                           "table %s: %" PRIu32
                           " rows of %zu bytes do not fit in an answer of %zu bytes",
                           entry->table.spec.name, section->n_keys, row_bytes, max_bytes);
        ret_value_bytes[i] = head_bytes + section->n_keys * row_bytes;
        total += ret_value_bytes[i];
    }
    return 0;
}

/* How many clocks a worker of the job may be ahead of min clock when it reads this table. */
static uint64_t table_bound(const struct shard_entry *entry, const struct job *job)
{
    switch (shard_mode_of(entry, job)) {
    case SPEC_MODE_BSP:
        return 0;
    case SPEC_MODE_SSP:
        return entry->table.spec.mode == SPEC_MODE_SSP ? entry->table.spec.bound : job->bound;
    case SPEC_MODE_JOB:
    case SPEC_MODE_ASYNC:
    case SPEC_MODE_END:
        break;
    }
    return NO_BOUND;
}

/* The strictest of the tables asked for. */
static uint64_t bound_of(const struct shard *s, const struct job *job, const struct pull *pull)
{
    uint64_t strictest = NO_BOUND;

    for (uint32_t i = 0; i < pull->n_sections; i++) {
        const struct shard_entry *entry = shard_entry_at(s, pull->sections[i].table_id);
        /* NULL: the plan has refused it. */
        uint64_t bound = entry ? table_bound(entry, job) : NO_BOUND;

        if (bound < strictest)
            strictest = bound;
    }
    return strictest;
}

static bool has_lockstep(const struct shard *s, const struct job *job, const struct pull *pull)
{
    for (uint32_t i = 0; i < pull->n_sections; i++) {
        const struct shard_entry *entry = shard_entry_at(s, pull->sections[i].table_id);

        if (entry && shard_mode_of(entry, job) == SPEC_MODE_BSP)
            return true;
    }
    return false;
}

uint64_t shard_pull_needs(const struct shard *s, const struct job *job, const struct pull *pull,
                          bool *ret_is_cut)
{
    uint64_t bound = bound_of(s, job, pull), met = shard_cut_met(s, job, pull->clock);
    uint64_t needs = pull->clock > bound ? pull->clock - bound : 0;

    *ret_is_cut = met > needs;
    return *ret_is_cut ? met : needs;
}

bool shard_pull_ready(struct shard *s, const struct worker *worker, const struct pull *pull)
{
    bool is_cut;

    if (!worker)
        return true;
    if (job_min_clock(worker->job) < shard_pull_needs(s, worker->job, pull, &is_cut))
        return false;
    return !has_lockstep(s, worker->job, pull) || !shard_lockstep_is_behind(s, worker->job);
}

/* What was really given is measured here, and not by what shard_pull_ready() let through. */
static void count_staleness(const struct shard *s, const struct worker *worker,
                            const struct pull *pull, uint64_t min_clock)
{
    uint64_t ahead = pull->clock > min_clock ? pull->clock - min_clock : 0;

    histogram_record(&worker->job->staleness, ahead);
    if (ahead > bound_of(s, worker->job, pull))
        worker->job->staleness_violations++;
}

static void count_sections(struct shard *s, const struct shard_pull_run *run)
{
    s->counters.pulls++;
    for (uint32_t i = 0; i < run->pull->n_sections; i++) {
        const struct section *section = &run->pull->sections[i];

        s->tables[section->table_id]->table.rows_pulled += section->n_keys;
        s->counters.rows_pulled += section->n_keys;
        s->counters.value_bytes_out[section->codec] += run->value_bytes[i];
    }
}

void shard_pull_begin(struct shard *s, const struct worker *worker, const struct pull *pull,
                      uint8_t *dst, struct shard_pull_run *ret)
{
    ret->pull = pull;
    ret->min_clock = worker ? job_min_clock(worker->job) : 0;
    ret->version = s->version;
    ret->dst = dst;
    ret->section = 0;
    ret->is_open = false;
    ret->known = NULL;
    ret->n_known = 0;
    ret->done = pull->n_sections == 0;
}

void shard_pull_end(struct shard *s, struct worker *worker, const struct shard_pull_run *run)
{
    count_sections(s, run);
    if (worker)
        count_staleness(s, worker, run->pull, run->min_clock);
}

bool shard_pull_is_large(const struct shard *s, const struct pull *pull)
{
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < pull->n_sections; i++) {
        const struct shard_entry *entry = shard_entry_at(s, pull->sections[i].table_id);

        if (entry)
            n_bytes += (uint64_t)pull->sections[i].n_keys * shard_row_cost(entry);
    }
    return n_bytes > SHARD_SLICE_BYTES;
}

/* Rows are read until they cost a slice, and to the end of the last chunk. */
size_t shard_pull_slice_room(const struct shard *s, const struct pull *pull)
{
    uint64_t cost_max = 0, n_bytes = 0;

    for (uint32_t i = 0; i < pull->n_sections; i++) {
        const struct shard_entry *entry = shard_entry_at(s, pull->sections[i].table_id);
        uint64_t cost = (uint64_t)shard_chunk(entry) * shard_row_cost(entry);

        if (cost > cost_max)
            cost_max = cost;
    }
    for (uint32_t i = 0; i < pull->n_sections; i++) {
        const struct section *section = &pull->sections[i];
        const struct shard_entry *entry = shard_entry_at(s, section->table_id);
        size_t row_bytes =
            codec_by_id((uint32_t)section->codec)->row_bytes(entry->table.spec.dim, section->k);
        uint64_t most =
            ((SHARD_SLICE_BYTES + cost_max) / shard_row_cost(entry) + 1) * row_bytes;

        if (most > n_bytes)
            n_bytes = most;
    }
    return n_bytes;
}

int shard_pull(struct shard *s, struct worker *worker, const struct pull *pull, uint8_t *dst,
               uint64_t *ret_min_clock, uint64_t *ret_version, struct err *err)
{
    struct shard_pull_run run;
    int status = 0;

    shard_pull_begin(s, worker, pull, dst, &run);
    while (!run.done && !status)
        status = shard_pull_more(s, &run, err);
    if (status)
        return status;
    *ret_min_clock = run.min_clock;
    *ret_version = run.version;
    shard_pull_end(s, worker, &run);
    return 0;
}

#include "deploy/psctl/verify_bonds.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "common/mem.h"
#include "server/store/checkpoint_links.h"

struct bonds {
    struct verify_report *report; /* borrowed */
    /* Owned: of checkpoints that psd has finished since the points were looked at. */
    uint64_t *new_epochs;
    size_t n_new;
};

/* --- who has come --- */

static void add_if_new(struct bonds *b, uint64_t number, struct manifest *scratch)
{
    const struct verify_report *v = b->report;
    const struct verify_point *p = verify_report_find(v, number);
    char dir[SHELF_PATH_MAX];

    if (p && p->verdict != VERIFY_UNFINISHED)
        return;
    verify_report_dir(v, number, dir);
    if (!manifest_read(v->files, dir, scratch, NULL))
        b->new_epochs[b->n_new++] = scratch->map_id;
}

static int find_new(struct bonds *b, struct err *err)
{
    const struct verify_report *v = b->report;
    struct shelf_numbers numbers = { 0 };
    struct manifest *scratch = mem_alloc(sizeof *scratch);
    char base[SHELF_PATH_MAX];
    int status = shelf_path(v->data_dir, base, err);

    if (!status)
        status = shelf_list(v->files, base, &numbers, err);
    b->new_epochs = mem_alloc((numbers.n + 1) * sizeof *b->new_epochs);
    for (size_t i = 0; i < numbers.n && !status; i++)
        add_if_new(b, numbers.items[i], scratch);
    free(numbers.items);
    free(scratch);
    return status;
}

static bool has_come(const struct bonds *b, uint64_t epoch)
{
    for (size_t i = 0; i < b->n_new; i++)
        if (b->new_epochs[i] == epoch)
            return true;
    return false;
}

static bool is_still_there(const struct verify_report *v, const struct verify_point *p)
{
    char dir[SHELF_PATH_MAX];

    verify_report_dir(v, p->number, dir);
    return !checkpoint_is_unfinished(v->files, dir);
}

/* --- points and what they stand on --- */

static bool are_links_whole(struct verify_report *v, const struct verify_point *p)
{
    const struct verify_point *link = p;

    while (link && link->verdict == VERIFY_WHOLE && link->manifest->base)
        link = verify_report_find(v, link->manifest->base);
    if (link && link->verdict == VERIFY_WHOLE)
        return true;
    verify_report_damage(
        v, "restore point %" PRIu64 " is of no use: a checkpoint that it is a delta to is %s",
        p->number, link ? "damaged" : "gone");
    return false;
}

/* --- points and their logs --- */

static const struct verify_log *find_log(const struct verify_report *v, uint64_t epoch,
                                         uint32_t shard)
{
    for (size_t i = 0; i < v->n_logs; i++)
        if (v->logs[i].epoch == epoch && v->logs[i].shard_index == shard)
            return &v->logs[i];
    return NULL;
}

/* Records that psd needs no more go from the front. */
static bool is_cut(const struct verify_log *log, uint64_t number)
{
    return log && log->n_stretches && log->stretches[0].first > number;
}

static bool is_newest(const struct bonds *b, const struct verify_point *p)
{
    const struct verify_report *v = b->report;

    for (size_t i = v->n_points; &v->points[i - 1] != p; i--)
        if (v->points[i - 1].verdict == VERIFY_WHOLE)
            return false;
    return !has_come(b, p->manifest->map_id);
}

/* Its walk's log was cut, which psd does once a newer one is safe. */
static bool is_cut_off(const struct bonds *b, const struct verify_point *p)
{
    const struct manifest *m = p->manifest;

    if (is_newest(b, p))
        return false;
    for (uint32_t i = 0; i < m->n_files; i++)
        if (m->files[i].first < m->files[i].through &&
            is_cut(find_log(b->report, m->map_id, i), m->files[i].first + 1))
            return true;
    return false;
}

static void tell_cut_off(const struct verify_report *v, const struct verify_point *p)
{
    cJSON_AddBoolToObject(p->json, "log_cut", true);
    verify_report_say(v,
                      "note     checkpoint %" PRIu64
                      " is no restore point any more, as its log is cut: it is kept for those "
                      "that are deltas to it, or about to go",
                      p->number);
}

/* A file of a restore point against its shard's log. */
static void check_file(const struct bonds *b, const struct verify_point *p, uint32_t i)
{
    struct verify_report *v = b->report;
    const struct part_facts *f = &p->manifest->files[i];
    const struct verify_log *log = find_log(v, p->manifest->map_id, i);
    uint64_t last = log ? verify_log_last(log) : 0;
    uint64_t reach = log ? verify_log_reach(log, f->first + 1) : f->first;

    if (reach < f->through)
        verify_report_damage(v,
                             "restore point %" PRIu64 ", shard %u: needs records %" PRIu64
                             " to %" PRIu64 " of its log, %" PRIu64 " are there",
                             p->number, i, f->first + 1, f->through, reach - f->first);
    else if (last > reach && is_newest(b, p))
        verify_report_damage(v,
                             "shard %u: between records %" PRIu64 " and %" PRIu64
                             " the log has a hole that no restore point makes good",
                             i, reach, last);
}

static void check_point(const struct bonds *b, const struct verify_point *p)
{
    struct verify_report *v = b->report;

    if (p->verdict != VERIFY_WHOLE || !is_still_there(v, p) || !are_links_whole(v, p))
        return;
    if (p->manifest->n_shards == 0) /* of an older psd: nothing was logged */
        return;
    if (is_cut_off(b, p)) {
        tell_cut_off(v, p);
        return;
    }
    for (uint32_t i = 0; i < p->manifest->n_files; i++)
        check_file(b, p, i);
}

/* --- logs and what they begin with --- */

static bool has_point(const struct bonds *b, uint64_t epoch)
{
    const struct verify_report *v = b->report;

    for (size_t i = 0; i < v->n_points; i++)
        if (v->points[i].verdict == VERIFY_WHOLE && v->points[i].manifest->map_id == epoch)
            return true;
    return has_come(b, epoch);
}

/* All that there is of a shard has to be in it. */
static void check_log_alone(struct verify_report *v, const struct verify_log *log)
{
    const struct verify_log_stretch *first = &log->stretches[0];

    if (first->first > 1)
        verify_report_damage(
            v, "shard %u: the log begins with record %" PRIu64 ", and there is no checkpoint",
            log->shard_index, first->first);
    else if (verify_log_last(log) > first->last)
        verify_report_damage(v,
                             "shard %u: between records %" PRIu64 " and %" PRIu64
                             " the log has a hole, and there is no checkpoint",
                             log->shard_index, first->last, verify_log_last(log));
}

/* The log of an epoch needs the checkpoint that the epoch begins with, or a later one. */
static void check_newest_epoch(const struct bonds *b)
{
    struct verify_report *v = b->report;
    uint64_t epoch = 0;

    for (size_t i = 0; i < v->n_logs; i++)
        if (v->logs[i].n_records && v->logs[i].epoch > epoch)
            epoch = v->logs[i].epoch;
    if (epoch && !has_point(b, epoch))
        verify_report_damage(v, "the log of epoch %" PRIu64 " has no checkpoint to begin with",
                             epoch);
    for (size_t i = 0; i < v->n_logs && !epoch && v->n_points == 0; i++)
        if (v->logs[i].n_records && !has_point(b, 0))
            check_log_alone(v, &v->logs[i]);
}

int verify_bonds_check(struct verify_report *v, struct err *err)
{
    struct bonds b = { .report = v };
    int status = find_new(&b, err);

    for (size_t i = 0; i < v->n_points && !status; i++)
        check_point(&b, &v->points[i]);
    if (!status)
        check_newest_epoch(&b);
    free(b.new_epochs);
    return status;
}

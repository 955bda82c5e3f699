#include "server/recovery/recover_shard.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/number.h"
#include "server/checkpoint/loader.h"
#include "server/core/bsp.h"
#include "server/core/sync_point.h"
#include "server/recovery/disk_usage.h"
#include "server/recovery/timeline.h"
#include "server/wal/wal_control.h"

/* A job's name may hold colons. */
int recover_shard_at_read(const char *text, char job[static TABLE_SPEC_NAME_MAX],
                          struct recover_shard_at *ret, struct err *err)
{
    const char *colon = strrchr(text, ':'), *digits = colon ? colon + 1 : text;
    uint64_t number;

    *ret = (struct recover_shard_at){ 0 };
    if (!text[0])
        return 0;
    ret->intact = strcmp(text, "intact") == 0;
    if (ret->intact)
        return 0;
    if (number_read_u64(digits, &number) || colon == text || !number ||
        (colon && (size_t)(colon - text) >= TABLE_SPEC_NAME_MAX))
        return err_set(
            err, PS_ESETTING,
            "at: found \"%.80s\", expected the number of a checkpoint, JOB:CLOCK or intact",
            text);
    if (colon) {
        snprintf(job, TABLE_SPEC_NAME_MAX, "%.*s", (int)(colon - text), text);
        ret->job = job;
        ret->clock = number;
    } else {
        ret->number = number;
    }
    return 0;
}

void recover_shard_report_later(const struct recover_shard_at *at,
                                void (*report)(void *arg, const char *sentence), void *arg)
{
    struct err text;

    err_set(&text, 0,
            "at: job %.40s is not in lock step throughout; all of its first %" PRIu64
            " steps are there; of later steps each shard has those that it had by then; with "
            "bounded staleness only sync points, multiples of psd's --cut-every, are exact",
            at->job, at->clock);
    if (report)
        report(arg, text.text);
}

/* One attempt after another: a restore point, or none, and the log behind it. */
struct attempt {
    const struct recover_shard_config *config;
    struct shard *shard;
    uint64_t now_ms;
    uint64_t
        epochs_below; /* what epochs from this one on began with is behind the clock; 0: of none is that known */
    bool was_too_new;              /* a restore point was there, behind the clock */
    struct err damage;             /* restore points were there, all damaged; status 0: no */
    const struct checkpoint *from; /* NULL: nothing */
    bool is_gone; /* what this attempt would need is not kept any more: no damage */
    struct loader_facts loaded;
    uint64_t n_log_file_bytes;  /* read of the log, before the replay under way */
    uint64_t n_total_bytes;     /* recover_shard_progress */
    struct wal_control control; /* read before the log, which may be written meanwhile */
    char log_dir[WAL_PATH_MAX];
    struct wal_identity identity;
    struct recover_shard_facts *facts;
};

/* What a job's clock, asked for with --at, makes of a state. */
enum fit { FITS, TOO_NEW };

static void report(const struct recover_shard_config *config, const char *sentence)
{
    if (config->report)
        config->report(config->arg, sentence);
}

static int report_progress(const struct attempt *a, const struct wal_replay_facts *replayed)
{
    const struct recover_shard_progress progress = {
        .n_bytes = a->loaded.n_bytes + a->n_log_file_bytes + replayed->n_file_bytes,
        .n_total_bytes = a->n_total_bytes,
        .n_records = a->facts->n_records + replayed->n_records
    };

    return a->config->progress ? a->config->progress(a->config->arg, &progress) : 0;
}

/* Headers, and what a log holds behind its end, are no part of what is counted on the way. */
static void report_all(struct attempt *a)
{
    if (a->n_total_bytes > a->loaded.n_bytes)
        a->n_log_file_bytes = a->n_total_bytes - a->loaded.n_bytes;
    (void)!report_progress(a, &(struct wal_replay_facts){ 0 });
}

static int on_replayed(void *owner, const struct wal_replay_facts *facts)
{
    return report_progress(owner, facts);
}

static int on_loaded(void *owner)
{
    return report_progress(owner, &(struct wal_replay_facts){ 0 });
}

/* --- the log --- */

static int add_remedy(int status, struct err *err)
{
    const struct err why = *err;

    return err_set(
        err, status,
        "%.183s; --at intact starts with all before it, --at NUMBER or --at JOB:CLOCK "
        "with less",
        why.text);
}

/* What was promised and cannot be read is not gone around, unless that was asked for. Nothing at all is not what can be
 * read of a log whose beginning a checkpoint has made needless. */
static int check_end(const struct attempt *a, struct err *err)
{
    const struct wal_end *end = &a->facts->end;
    bool is_nothing = end->is_truncated && !a->from;

    if (end->verdict == WAL_DAMAGED && (!a->config->at.intact || is_nothing))
        return err_set(err, PS_ECORRUPT, "%s", end->text);
    return 0;
}

/* --at intact goes around what else is a refusal. */
static int go_around(const struct attempt *a, int status, const struct err *err)
{
    if (status != PS_ECORRUPT || !a->config->at.intact)
        return status;
    report(a->config, err->text);
    return 0;
}

static int replay(struct attempt *a, const struct wal_replay_config *part,
                  struct wal_replay_facts *ret, struct err *err) ON_SHARD
{
    struct wal_replay_config config = *part;
    int status;

    config.files = a->config->files;
    config.dir = a->log_dir;
    config.identity = &a->identity;
    config.on_progress = on_replayed;
    config.owner = a;
    status = wal_replay_run(a->shard, &config, a->now_ms, ret, &a->facts->end, err);
    a->facts->n_records += ret->n_records;
    a->facts->n_log_bytes += ret->n_bytes;
    a->facts->n_pushes += ret->n_pushes;
    a->n_log_file_bytes += ret->n_file_bytes;
    a->is_gone = a->facts->end.is_truncated;
    if (!status)
        status = check_end(a, err);
    return status == PS_ECORRUPT ? add_remedy(status, err) : status;
}

/* The scan's own end, before which its rows are of different moments. */
static int replay_scan(struct attempt *a, uint64_t *ret_from, struct err *err) ON_SHARD
{
    struct wal_replay_facts done;

    *ret_from = a->loaded.first + 1;
    if (a->loaded.through <= a->loaded.first)
        return 0;
    *ret_from = a->loaded.through + 1;
    return replay(a,
                  &(struct wal_replay_config){ .from = a->loaded.first + 1,
                                               .needs = a->loaded.through,
                                               .through = a->loaded.through },
                  &done, err);
}

/* A clock may have been complete when the log ended, and the record that it is combined not there yet. */
static bool release_to_clock(struct attempt *a, const struct recover_shard_at *at) ON_SHARD
{
    bool is_there = false;

    replay_end(a->shard, a->now_ms);
    while (!is_there && bsp_release_clock(a->shard))
        is_there = sync_point_of(a->shard, at->job, at->clock - 1) != SYNC_POINT_EARLY;
    return is_there;
}

static int replay_to_clock(struct attempt *a, enum fit *ret_fit, struct err *err) ON_SHARD
{
    const struct recover_shard_at *at = &a->config->at;
    struct wal_replay_facts done = { 0 };
    enum sync_point point;
    uint64_t from;
    int status = replay_scan(a, &from, err);

    if (status)
        return status;
    point = sync_point_of(a->shard, at->job, at->clock - 1);
    *ret_fit = point == SYNC_POINT_PAST ? TOO_NEW : FITS;
    if (point != SYNC_POINT_EARLY)
        return 0;
    status = replay(a,
                    &(struct wal_replay_config){
                        .from = from, .sync_job = at->job, .sync_clock = at->clock - 1 },
                    &done, err);
    if (!status && !done.covers_sync_point)
        done.covers_sync_point = release_to_clock(a, at);
    if (!status && !done.covers_sync_point)
        return err_set(err, PS_ENOCHECKPOINT,
                       "at: job %s has not finished %" PRIu64 " steps in what is kept", at->job,
                       at->clock);
    a->facts->has_later =
        !status && sync_point_of(a->shard, at->job, at->clock - 1) == SYNC_POINT_PAST;
    return status;
}

/* What newer restore points had of this shard's log. */
struct promise {
    const struct attempt *attempt;
    uint64_t through, number; /* the furthest, and whose it is; 0: nobody's */
    uint64_t damaged;         /* a newer one without a manifest to ask; 0: there is none */
};

static void note_promise(void *arg, const struct checkpoint_entry *entry)
{
    struct promise *p = arg;
    const struct recover_shard_facts *facts = p->attempt->facts;
    const struct manifest *m = entry->manifest;
    uint32_t i = p->attempt->config->shard_index;

    if (entry->is_archived || entry->number <= facts->number)
        return;
    if (!m) {
        p->damaged = entry->number;
    } else if (m->map_id == facts->epoch && i < m->n_files &&
               m->files[i].through > p->through) {
        p->through = m->files[i].through;
        p->number = entry->number;
    }
}

/* Has the shard all that newer restore points had? An older one does as well only where the log leads there.
 * A checkpoint may have closed a gap of the log: what came behind it was acknowledged. If that one cannot be
 * loaded, the one before and the log lead to the gap and no further; what was acknowledged is not given up
 * without a word. */
static int check_promised(const struct attempt *a, struct err *err)
{
    const struct recover_shard_config *config = a->config;
    const struct wal_end *end = &a->facts->end;
    struct promise p = { .attempt = a };
    int status = checkpoint_each(config->files, config->data_dir, note_promise, &p, err);

    if (status)
        return status;
    if (end->last < p.through)
        return err_set(err, PS_ECORRUPT,
                       "shard %" PRIu32 ": the write-ahead log ends behind record %" PRIu64
                       "; checkpoint %" PRIu64 ", which is damaged, had all up to %" PRIu64
                       ": repair it, or go without what came behind, with --at intact (or "
                       "--at NUMBER, --at JOB:CLOCK)",
                       config->shard_index, end->last, p.number, p.through);
    if (end->verdict == WAL_GAP && p.damaged)
        return err_set(err, PS_ECORRUPT,
                       "shard %" PRIu32 ": the write-ahead log has a gap behind record %" PRIu64
                       "; checkpoint %" PRIu64 ", which is damaged, may have what came behind: "
                       "repair it, or go without, with --at intact (or --at NUMBER, --at "
                       "JOB:CLOCK)",
                       config->shard_index, end->last, p.damaged);
    return 0;
}

/* --- what the control file knows of the log --- */

#define WITHOUT "; --at intact starts without, --at NUMBER or --at JOB:CLOCK with less"

static int read_control(struct attempt *a, struct err *err)
{
    const struct recover_shard_config *config = a->config;
    char path[WAL_PATH_MAX];
    int status = wal_control_path(config->data_dir, config->shard_index, path, err);

    if (!status)
        status = wal_control_read(config->files, path, &a->control, err);
    if (!status)
        status = wal_control_check_mark(&a->control, path, err);
    if (status == PS_ECORRUPT)
        report(config, err->text);
    return status == PS_ECORRUPT ? 0 : status;
}

static int refuse_epoch(const struct attempt *a, struct err *err)
{
    return err_set(err, PS_ECORRUPT,
                   "shard %" PRIu32 ": the newest write-ahead log, of epoch %" PRIu64
                   ", is gone, and every checkpoint of it" WITHOUT,
                   a->config->shard_index, a->control.epoch);
}

static int refuse_gone(const struct attempt *a, struct err *err)
{
    return err_set(
        err, PS_ECORRUPT,
        "shard %" PRIu32 ": segment %020" PRIu64
        ".psl of the write-ahead log is gone, with what was acknowledged behind record "
        "%" PRIu64 WITHOUT,
        a->config->shard_index, a->control.segment, a->facts->end.last_read);
}

static int refuse_short(const struct attempt *a, struct err *err)
{
    return err_set(err, PS_ECORRUPT,
                   "shard %" PRIu32
                   ": the write-ahead log is truncated or damaged: it ends behind record "
                   "%" PRIu64 ", byte %" PRIu64 " of segment %.24s; records up to %" PRIu64
                   " were on the disk" WITHOUT,
                   a->config->shard_index, a->facts->end.last_read, a->facts->end.offset,
                   strrchr(a->facts->end.path, '/') + 1, a->control.durable);
}

/* Is the newest segment there, or one that came after it? */
static int has_newest(const struct attempt *a, bool *ret, struct err *err)
{
    struct wal_segments all;
    int status = wal_segment_list(a->config->files, a->log_dir, &all, err);

    *ret = a->control.segment <= (all.n ? all.firsts[all.n - 1] : 0);
    free(all.firsts);
    return status;
}

static int stop_listing(void *arg, const char *name)
{
    (void)arg;
    (void)name;
    return 1;
}

/* Neither the log's directory nor the control file is there: so it is with a copied checkpoint, and where somebody
 * has removed both. */
static void report_no_log(const struct attempt *a)
{
    const struct file_ops *files = a->config->files;
    const struct wal_control *c = &a->control;
    struct err text;

    if (!a->from || a->config->follows || c->epoch || c->segment || c->durable ||
        files->list(files->state, a->log_dir, stop_listing, NULL) != -ENOENT)
        return;
    err_set(&text, 0,
            "shard %" PRIu32 ": checkpoint %" PRIu64
            " has no write-ahead log beside it: if one was there, what it had is lost",
            a->config->shard_index, a->facts->number);
    report(a->config, text.text);
}

/* Files that were removed or cut behind what can be read leave no other trace. */
static int check_control(const struct attempt *a, struct err *err)
{
    const struct wal_control *c = &a->control;
    const struct wal_end *end = &a->facts->end;
    bool is_short = end->last_read < c->durable, has = false;
    int status;

    report_no_log(a);
    if (c->epoch > a->facts->epoch)
        return refuse_epoch(a, err);
    if (c->epoch < a->facts->epoch || end->verdict == WAL_GAP || end->verdict == WAL_DAMAGED)
        return 0; /* the reader has told of these */
    status = has_newest(a, &has, err);
    if (status || (has && !is_short))
        return status;
    if (has && end->path[0])
        return refuse_short(a, err);
    if (is_short || !c->is_closed)
        return refuse_gone(a, err);
    report(a->config,
           "the newest segment of the write-ahead log is gone; there was nothing in it");
    return 0;
}

static int replay_all(struct attempt *a, struct err *err) ON_SHARD
{
    struct wal_replay_facts done;
    struct wal_replay_config all = { .from = a->loaded.first + 1 };
    int status;

    if (a->loaded.through > a->loaded.first)
        all.needs = a->loaded.through;
    status = replay(a, &all, &done, err);
    if (!status)
        status = go_around(a, check_promised(a, err), err);
    return status ? status : go_around(a, check_control(a, err), err);
}

/* A standby's shard. What a checkpoint's scan needs of the log may still be the primary's alone. Records behind `keep`
 * are given up, whatever was known of them. */
static int replay_followed(struct attempt *a, enum fit *ret_fit, struct err *err) ON_SHARD
{
    const uint64_t keep = a->config->keep;
    const struct loader_facts *loaded = &a->loaded;
    struct wal_replay_facts done;
    int status;

    a->facts->needs = loaded->through > loaded->first ? loaded->through : loaded->first;
    if (keep < a->facts->needs) {
        *ret_fit = TOO_NEW;
        return 0;
    }
    status =
        replay(a, &(struct wal_replay_config){ .from = loaded->first + 1, .through = keep },
               &done, err);
    if (status || keep != UINT64_MAX)
        return status;
    status = check_promised(a, err);
    return status ? status : check_control(a, err);
}

/* --- the restore point --- */

/* Who names a checkpoint of an older epoch wants just that one. */
static int check_epoch(struct attempt *a, struct err *err)
{
    const struct recover_shard_config *config = a->config;
    int status;

    if (config->at.number)
        return 0;
    status =
        timeline_check(config->files, config->data_dir, a->facts->epoch, a->epochs_below, err);
    a->is_gone = status == PS_ECORRUPT && !a->from;
    return go_around(a, status, err);
}

/* For the end of the log alone: any other state may come before it. */
static void measure(struct attempt *a)
{
    const struct recover_shard_config *config = a->config;
    uint64_t first = 0;

    a->n_total_bytes = a->n_log_file_bytes = 0;
    if (config->at.job || config->at.number)
        return;
    for (uint32_t i = 0; a->from && i < a->from->n_links; i++) {
        const struct manifest *m = &a->from->links[i];

        if (config->shard_index < m->n_files)
            a->n_total_bytes += m->files[config->shard_index].n_bytes;
        if (i == 0 && config->shard_index < m->n_files)
            first = m->files[config->shard_index].first;
    }
    a->n_total_bytes += disk_usage_segments(config->files, a->log_dir, first + 1);
}

static int load(struct attempt *a, struct err *err) ON_SHARD
{
    const struct recover_shard_config *config = a->config;
    struct loader_config loader = {
        .files = config->files, .checkpoint = a->from, .progress = on_loaded, .arg = a
    };
    struct shard_file_identity identity = config->identity;

    if (!a->from) {
        replay_begin(a->shard);
        return 0;
    }
    identity.map_id = a->facts->epoch;
    if (!checkpoint_is_of(a->from, config->shard_index, &identity))
        return err_set(err, PS_ECLUSTER, "%s was written by other shards", a->from->dir);
    return loader_load(&loader, config->shard_index, a->shard, a->now_ms, &a->loaded, err);
}

static int replay_by_options(struct attempt *a, enum fit *ret_fit, struct err *err) ON_SHARD
{
    uint64_t from;

    *ret_fit = FITS;
    if (a->config->follows)
        return replay_followed(a, ret_fit, err);
    if (a->config->at.job)
        return replay_to_clock(a, ret_fit, err);
    return a->config->at.number ? replay_scan(a, &from, err) : replay_all(a, err);
}

/* *ret_damaged: the files of the restore point are damaged, or the log that it needs, if damage may be skipped; an
 * older restore point may do. */
static int try(struct attempt *a, enum fit *ret_fit, bool *ret_damaged, struct err *err)
    ON_SHARD
{
    const struct recover_shard_config *config = a->config;
    int status;

    *a->facts = (struct recover_shard_facts){ 0 };
    a->loaded = (struct loader_facts){ 0 };
    a->is_gone = false;
    if (a->from) {
        a->facts->number = a->from->links[0].number;
        a->facts->n_links = a->from->n_links;
        a->facts->epoch = a->from->links[0].map_id;
    }
    a->identity = (struct wal_identity){ .node = config->identity.node,
                                         .shard = config->identity.shard,
                                         .n_shards = config->identity.n_shards,
                                         .map_id = a->facts->epoch };
    *ret_damaged = false;
    status = timeline_log_dir(config->data_dir, a->facts->epoch, config->shard_index,
                              a->log_dir, err);
    if (!status)
        status = check_epoch(a, err);
    if (!status)
        status = read_control(a, err);
    if (status)
        return status;
    measure(a);
    status = on_loaded(a);
    if (status)
        return err_set(err, status, "the recovery was to end");
    status = load(a, err);
    *ret_damaged = status && checkpoint_is_damage(status);
    a->facts->n_bytes = a->loaded.n_bytes;
    a->facts->end.last = a->loaded.first;
    if (!status) {
        status = replay_by_options(a, ret_fit, err);
        *ret_damaged = status == PS_ECORRUPT && config->at.intact;
    }
    if (config->follows && !status && *ret_fit == FITS)
        replay_drop_rows(a->shard);
    else
        replay_end(a->shard, a->now_ms);
    return status;
}

/* Does the first log begin with its first record? Then it has all that a damaged restore point of it had. */
static int has_whole_log(const struct recover_shard_config *config, bool *ret, struct err *err)
{
    struct wal_segments all = { 0 };
    char dir[WAL_PATH_MAX];
    int status = timeline_log_dir(config->data_dir, 0, config->shard_index, dir, err);

    if (!status)
        status = wal_segment_list(config->files, dir, &all, err);
    *ret = !status && all.n && all.firsts[0] == 1;
    free(all.firsts);
    return status;
}

int recover_shard_refuse_empty(const struct err *damage, struct err *err)
{
    const struct err why = *damage;

    return err_set(err, PS_ECORRUPT,
                   "%.140s; the write-ahead log alone does not lead there; --no-restore starts "
                   "empty, and leaves the files",
                   why.text);
}

/* No restore point is below `below`, or none that is whole. From nothing is right then, as far as the log goes; but it
 * is never taken for an empty start. */
static int find_nothing(const struct attempt *a, struct err *err)
{
    bool is_whole = false;
    int status;

    if (!a->damage.status)
        return 0;
    status = has_whole_log(a->config, &is_whole, err);
    return status || is_whole ? status : recover_shard_refuse_empty(&a->damage, err);
}

/* The restore point below `below`; *ret_is_there false: there is none, and the log alone is the start. */
static int find(struct attempt *a, uint64_t below, struct checkpoint *ret, bool *ret_is_there,
                struct err *err)
{
    const struct recover_shard_config *config = a->config;
    int status;

    /* An archived checkpoint is a start only if --at names it. */
    if (config->at.number && below == config->at.number + 1)
        status = checkpoint_find_numbered(config->files, config->data_dir, config->at.number,
                                          ret, config->report, config->arg, err);
    else
        status = checkpoint_find(config->files, config->data_dir, below, ret, config->report,
                                 config->arg, err);
    *ret_is_there = status == 0;
    if (status == PS_ECORRUPT)
        a->damage = *err;
    if ((status == PS_ENOCHECKPOINT || status == PS_ECORRUPT) && !config->at.number)
        return find_nothing(a, err);
    if (status || !config->at.number || ret->links[0].number == config->at.number)
        return status;
    checkpoint_close(ret);
    return err_set(err, PS_ENOCHECKPOINT, "at: there is no valid checkpoint %" PRIu64 " in %s",
                   config->at.number, config->data_dir);
}

/* An unfinished write, as far as the control file knows. A power cut may have taken its newest knowledge. */
static void report_torn(const struct recover_shard_config *config, const struct wal_end *end)
{
    struct err text;

    err_set(
        &text, 0,
        "shard %" PRIu32 ": what came behind record %" PRIu64
        " of the torn write-ahead log is lost; nothing of it is known to have been on the "
        "disk. If the power failed and the disk is damaged, pushes acknowledged in the second "
        "before may be among it",
        config->shard_index, end->last_present);
    report(config, text.text);
}

static void report_end(const struct recover_shard_config *config, const struct wal_end *end)
{
    if (end->n_headers)
        report(config, end->header_text);
    if (end->text[0])
        report(config, end->text);
    if (end->verdict == WAL_TORN)
        report_torn(config, end);
}

/* What is too new was there; what is older is no start any more, as its log was truncated. */
static int refuse_clock(const struct recover_shard_config *config, struct err *err)
{
    if (config->follows)
        return err_set(err, PS_ENOCHECKPOINT,
                       "no checkpoint of before record %" PRIu64 " of shard %" PRIu32
                       " is kept: all behind it would have to be given up",
                       config->keep, config->shard_index);
    return err_set(err, PS_ENOCHECKPOINT,
                   "at: what is kept of job %s begins behind step %" PRIu64, config->at.job,
                   config->at.clock);
}

/* The search goes on below a restore point that is behind the clock. Where an epoch begins with it, the one
 * before leads up to what that epoch was made of: what came later was left. */
static int go_below(struct attempt *a, uint64_t *below, struct err *err)
{
    const struct recover_shard_config *config = a->config;
    struct timeline_beginning b;
    int status;

    *below = a->facts->number;
    a->was_too_new = true;
    if (a->facts->number != a->facts->epoch)
        return 0;
    if (config->follows) /* its records are of one timeline */
        return refuse_clock(config, err);
    status = timeline_read_beginning(config->files, config->data_dir, a->facts->epoch, &b, err);
    if (!status)
        *below = a->epochs_below = b.above < *below ? b.above + 1 : *below;
    timeline_beginning_deinit(&b);
    return status;
}

/* What comes behind an attempt that has not led to the shard. 0: another one, below *below. */
static int after_failure(struct attempt *a, int status, bool damaged, uint64_t *below,
                         struct err *err) ON_SHARD
{
    const struct recover_shard_config *config = a->config;

    if (a->was_too_new && status && a->is_gone)
        return refuse_clock(config, err);
    if ((status && !damaged) || !a->from || config->at.number)
        return status ? status : refuse_clock(config, err);
    shard_clear(a->shard);
    if (!status)
        return go_below(a, below, err);
    report(config, err->text);
    a->damage = *err;
    a->damage.status = PS_ECORRUPT;
    *below = a->facts->number;
    return 0;
}

/* One restore point. *ret_is_done: the shard is as it was. */
static int try_below(struct attempt *a, uint64_t *below, bool *ret_is_done, struct err *err)
    ON_SHARD
{
    struct checkpoint found = { 0 };
    enum fit fit = FITS;
    bool is_there, damaged;
    int status = find(a, *below, &found, &is_there, err);

    if (status)
        return status;
    a->from = is_there ? &found : NULL;
    status = try(a, &fit, &damaged, err);
    checkpoint_close(&found);
    *ret_is_done = !status && fit == FITS;
    return *ret_is_done ? 0 : after_failure(a, status, damaged, below, err);
}

int recover_shard_run(const struct recover_shard_config *config, struct shard *shard,
                      uint64_t now_ms, struct recover_shard_facts *ret, struct err *err)
{
    struct attempt a = { .config = config, .shard = shard, .now_ms = now_ms, .facts = ret };
    uint64_t below = config->at.number ? config->at.number + 1 : config->below;
    bool is_done = false;
    int status = 0;

    while (!status && !is_done)
        status = try_below(&a, &below, &is_done, err);
    if (status)
        return status;
    report_all(&a);
    report_end(config, &ret->end);
    return 0;
}

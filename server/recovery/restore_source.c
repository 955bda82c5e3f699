#include "server/recovery/restore_source.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/directory.h"
#include "server/checkpoint/shard_file_reader.h"
#include "server/core/bsp.h"
#include "server/recovery/timeline.h"
#include "server/wal/wal_control.h"

#define LEASE_MS 1u /* of shards that serve nobody */

static bool is_file(const struct file_ops *files, const char *path)
{
    int fd;

    if (files->open_read(files->state, path, &fd))
        return false;
    (void)files->close(files->state, fd);
    return true;
}

/* --- what is there --- */

/* A job in lock step; NULL: there was none. */
static const struct manifest_job *find_held_job(const struct manifest *m)
{
    for (uint32_t i = 0; i < m->n_jobs; i++)
        if (m->jobs[i].mode == TABLE_SPEC_MODE_BSP)
            return &m->jobs[i];
    return NULL;
}

/* Has the node's first shard a table that is in lock step whatever the job is? All have the same. */
static int has_held_table(const struct restore_source *s, const struct file_ops *files,
                          bool *ret, struct err *err)
{
    char path[CHECKPOINT_FILE_PATH_MAX], name[MANIFEST_NAME_MAX];
    struct shard_file_reader r;
    int status;

    manifest_file_name(0, name);
    snprintf(path, sizeof path, "%s/%s", s->checkpoint.dir, name);
    status = shard_file_reader_open(&r, files, path, err);
    if (status)
        return status;
    *ret = false;
    for (uint32_t i = 0; i < r.header.n_tables; i++)
        *ret = *ret || r.tables[i].spec.mode == TABLE_SPEC_MODE_BSP;
    shard_file_reader_close(&r);
    return 0;
}

/* May pushes be held there that wait for their clock? They are in no row, and differ from shard to shard. */
static int may_wait(const struct restore_source *s, const struct file_ops *files, bool *ret,
                    struct err *err)
{
    const struct manifest *m = &s->checkpoint.links[0];

    *ret = find_held_job(m) != NULL;
    return *ret || !m->n_jobs ? 0 : has_held_table(s, files, ret, err);
}

static bool is_exact_by_itself(const struct checkpoint *c)
{
    for (uint32_t i = 0; i < c->links[0].n_files; i++)
        if (c->links[0].files[i].first != c->links[0].files[i].through)
            return false;
    return true;
}

struct newer {
    uint64_t number;
    bool *ret; /* is one newer than that */
};

static void note_newer(void *arg, const struct checkpoint_entry *item)
{
    const struct newer *n = arg;

    *n->ret = *n->ret || (!item->is_archived && item->number > n->number);
}

/* Does the control file know of more than the checkpoint has? It may be gone. */
static int is_more_known(const struct restore_source *s, const struct file_ops *files,
                         uint32_t i, bool *ret, struct err *err)
{
    const struct manifest *m = &s->checkpoint.links[0];
    struct wal_control c;
    char path[WAL_PATH_MAX];
    int status = wal_control_path(s->data_dir, i, path, err);

    if (!status)
        status = wal_control_read(files, path, &c, err);
    if (status && status != PS_ECORRUPT)
        return status;
    *ret = !status &&
           (c.epoch > m->map_id || (c.epoch == m->map_id && (c.durable > m->files[i].first ||
                                                             (c.segment && !c.is_closed))));
    return 0;
}

/* Does the log of shard i go on behind the checkpoint? Also where it cannot be told: recover_shard_run() says why. */
static int goes_on(const struct restore_source *s, const struct file_ops *files, uint32_t i,
                   bool *ret, struct err *err)
{
    const struct manifest *m = &s->checkpoint.links[0];
    const struct wal_record *record = NULL;
    struct wal_reader *reader;
    char dir[WAL_PATH_MAX];
    int status = timeline_log_dir(s->data_dir, m->map_id, i, dir, err);

    if (!status)
        status = wal_reader_open(files, dir, NULL, m->files[i].first + 1, &reader, err);
    if (status)
        return status;
    status = wal_reader_next(reader, &record, err);
    *ret = record || (!status && wal_reader_end(reader)->verdict != WAL_CLEAN);
    wal_reader_free(reader);
    return status || *ret ? status : is_more_known(s, files, i, ret, err);
}

/* Was a newer one passed over, or is there a newer epoch? Then recover_shard_run() says what that means. */
static int is_followed(const struct restore_source *s, const struct file_ops *files, bool *ret,
                       struct err *err)
{
    const struct manifest *m = &s->checkpoint.links[0];
    uint64_t newest;
    int status = timeline_newest(files, s->data_dir, 0, &newest, err);

    *ret = newest > m->map_id;
    if (!status)
        status = checkpoint_each(files, s->data_dir, note_newer,
                                 &(struct newer){ m->number, ret }, err);
    return status;
}

static int check_exact(struct restore_source *s, const struct file_ops *files, struct err *err)
{
    const struct manifest *m = &s->checkpoint.links[0];
    bool waits, followed = false;
    int status;

    s->is_exact = is_exact_by_itself(&s->checkpoint) && !s->at.job;
    if (m->n_shards == 0)
        return 0;
    status = may_wait(s, files, &waits, err);
    if (!status && !s->at.number)
        status = is_followed(s, files, &followed, err);
    s->is_exact = !status && s->is_exact && !waits && !followed;
    if (s->at.number)
        return status;
    for (uint32_t i = 0; i < m->n_files && s->is_exact && !status; i++) {
        bool more = false;

        status = goes_on(s, files, i, &more, err);
        s->is_exact = !more;
    }
    return status;
}

static int inspect_checkpoint(struct restore_source *s, const struct file_ops *files,
                              struct err *err)
{
    const struct manifest *m = &s->checkpoint.links[0];

    s->has_checkpoint = true;
    s->node = m->node;
    s->n_nodes = m->n_nodes;
    s->shards_per_node = m->shards_per_node;
    return check_exact(s, files, err);
}

static void ignore(void *arg, const char *sentence)
{
    (void)arg;
    (void)sentence;
}

/* The shards that had a log before the first checkpoint: those whose directories are there, or whose control files. */
static int count_shards(const struct restore_source *s, const struct file_ops *files,
                        uint32_t *ret, struct err *err)
{
    struct wal_control *controls = NULL;
    uint32_t n = 0;
    int status = timeline_n_shards(files, s->data_dir, 0, ret, err);

    if (!status && *ret)
        status = wal_control_read_all(files, s->data_dir, ignore, NULL, &controls, &n, err);
    *ret = n > *ret ? n : *ret;
    free(controls);
    return status;
}

/* What the log of one shard says of its node. A node's shards have consecutive numbers. */
struct origin {
    struct wal_identity identity;
    bool is_there, is_sure, fits; /* with the n shards that there are */
    uint32_t n;                   /* shards of the node */
};

static int read_origin(const struct restore_source *s, const struct file_ops *files, uint32_t i,
                       uint32_t n, struct origin *ret, struct err *err)
{
    const struct wal_identity *found;
    struct wal_reader *reader;
    char dir[WAL_PATH_MAX];
    int status = timeline_log_dir(s->data_dir, 0, i, dir, err);

    if (!status)
        status = wal_reader_open(files, dir, NULL, 1, &reader, err);
    if (status)
        return status;
    found = wal_reader_identity(reader);
    *ret = (struct origin){ .is_there = found != NULL, .n = n };
    if (found) {
        ret->identity = *found;
        ret->is_sure = wal_reader_identity_is_sure(reader);
        if (found->node && found->shard >= i)
            ret->n = (found->shard - i) / found->node;
        ret->fits = ret->n > i && found->shard < found->n_shards &&
                    found->n_shards % ret->n == 0 &&
                    found->shard == (uint64_t)found->node * ret->n + i;
    }
    wal_reader_free(reader);
    return 0;
}

/* No checkpoint yet: the logs themselves say whose they are. A damaged header that makes no sense says nothing; then
 * each shard finds out whether its log is its own (wal_reader.h). */
static int inspect_log(struct restore_source *s, const struct file_ops *files, struct err *err)
{
    struct origin o = { 0 };
    uint32_t n;
    int status = count_shards(s, files, &n, err);

    for (uint32_t i = 0; i < n && !status && !o.fits; i++) {
        status = read_origin(s, files, i, n, &o, err);
        if (!status && o.is_sure && !o.fits)
            return err_set(err, PS_ECORRUPT,
                           "%.160s/log/%020u/shard-%03" PRIu32 " is of shard %" PRIu32
                           " of %" PRIu32 ", node %" PRIu32 ", and %" PRIu32
                           " shards are there: directories of others are gone; make them, "
                           "empty, to start without",
                           s->data_dir, 0u, i, o.identity.shard, o.identity.n_shards,
                           o.identity.node, n);
    }
    if (status || !o.fits)
        return status;
    s->has_log = true;
    s->node = o.identity.node;
    s->shards_per_node = o.n;
    s->n_nodes = o.identity.n_shards / o.n;
    return 0;
}

/* All checkpoints are damaged, as *err says: the log may have all that they had. */
static int inspect_log_alone(struct restore_source *s, const struct file_ops *files,
                             struct err *err)
{
    const struct err damage = *err;
    int status = inspect_log(s, files, err);

    return status || s->has_log ? status : recover_shard_refuse_empty(&damage, err);
}

/* --- was anything ever kept? --- */

static uint64_t epoch_of(const struct restore_source *s)
{
    return s->has_checkpoint ? s->checkpoint.links[0].map_id : 0;
}

/* The manifest counts rows and records, and the file itself its tables. */
static int is_empty_file(const struct restore_source *s, const struct file_ops *files,
                         uint32_t i, bool *ret, struct err *err)
{
    const struct shard_file_facts *facts = &s->checkpoint.links[0].files[i];
    char path[CHECKPOINT_FILE_PATH_MAX], name[MANIFEST_NAME_MAX];
    struct shard_file_reader r;
    int status;

    *ret = false;
    if (facts->n_rows || facts->first || facts->through)
        return 0;
    manifest_file_name(i, name);
    snprintf(path, sizeof path, "%s/%s", s->checkpoint.dir, name);
    status = shard_file_reader_open(&r, files, path, err);
    if (status)
        return status;
    *ret = r.header.n_tables == 0;
    shard_file_reader_close(&r);
    return 0;
}

static int is_empty_log(const struct restore_source *s, const struct file_ops *files,
                        uint32_t i, bool *ret, struct err *err)
{
    const struct wal_record *record = NULL;
    struct wal_reader *reader;
    char dir[WAL_PATH_MAX];
    int status = timeline_log_dir(s->data_dir, epoch_of(s), i, dir, err);

    if (!status)
        status = wal_reader_open(files, dir, NULL, 1, &reader, err);
    if (status)
        return status;
    status = wal_reader_next(reader, &record, err);
    *ret = !status && !record && wal_reader_end(reader)->verdict == WAL_CLEAN;
    wal_reader_free(reader);
    return status;
}

/* Does its control file know of no record? Files of the log may be gone. */
static int is_empty_control(const struct restore_source *s, const struct file_ops *files,
                            uint32_t i, bool *ret, struct err *err)
{
    struct wal_control c;
    char path[WAL_PATH_MAX];
    int status = wal_control_path(s->data_dir, i, path, err);

    if (!status)
        status = wal_control_read(files, path, &c, err);
    *ret = !status && c.epoch <= epoch_of(s) && (c.epoch < epoch_of(s) || c.durable == 0);
    return status;
}

static int is_empty_shard(const struct restore_source *s, const struct file_ops *files,
                          uint32_t i, bool *ret, struct err *err)
{
    int status = 0;

    *ret = true;
    if (s->has_checkpoint)
        status = is_empty_file(s, files, i, ret, err);
    if (!status && *ret)
        status = is_empty_log(s, files, i, ret, err);
    if (!status && *ret)
        status = is_empty_control(s, files, i, ret, err);
    return status;
}

int restore_source_is_unused(const struct restore_source *s, const struct file_ops *files,
                             bool *ret, struct err *err)
{
    const struct manifest *m = &s->checkpoint.links[0];
    bool unused = s->data_dir[0] && !s->at.number && !s->at.job, followed = false;
    int status = 0;

    if (s->has_checkpoint && unused) {
        unused = m->n_shards && !m->n_jobs && m->n_files == s->shards_per_node;
        status = is_followed(s, files, &followed, err);
    }
    unused = unused && !followed && (s->has_checkpoint || s->has_log);
    for (uint32_t i = 0; i < s->shards_per_node && unused && !status; i++)
        status = is_empty_shard(s, files, i, &unused, err);
    *ret = unused && !status;
    return checkpoint_is_damage(status) ? 0 : status;
}

/* --- opening --- */

/* Only its files are resharded: the shards' progress is not known. */
static void report_held_job(const struct restore_source *s,
                            void (*report)(void *arg, const char *sentence), void *arg)
{
    const struct manifest_job *job = find_held_job(&s->checkpoint.links[0]);
    struct err text;

    if (!job || !report)
        return;
    err_set(
        &text, 0,
        "job %.60s was in lock step, and pushes may have waited for their clock: they are left "
        "out of %.120s",
        job->name, s->checkpoint.dir);
    report(arg, text.text);
}

static int open_alone(const struct file_ops *files, const char *path, struct restore_source *s,
                      void (*report)(void *arg, const char *sentence), void *arg,
                      struct err *err)
{
    int status;

    s->data_dir[0] = '\0';
    status = checkpoint_open(files, path, &s->checkpoint, err);
    if (status)
        return status;
    s->has_checkpoint = true;
    s->node = s->checkpoint.links[0].node;
    s->n_nodes = s->checkpoint.links[0].n_nodes;
    s->shards_per_node = s->checkpoint.links[0].shards_per_node;
    s->is_exact = is_exact_by_itself(&s->checkpoint);
    if (s->is_exact) {
        report_held_job(s, report, arg);
        return 0;
    }
    return err_set(err, PS_ECORRUPT,
                   "%.200s was taken under load and is exact only with its log: name the data "
                   "directory that it stands in",
                   path);
}

static int open_data_dir(const struct file_ops *files, struct restore_source *s,
                         void (*report)(void *arg, const char *sentence), void *arg,
                         struct err *err)
{
    int status;

    if (s->at.number)
        status = checkpoint_find_numbered(files, s->data_dir, s->at.number, &s->checkpoint,
                                          report, arg, err);
    else
        status = checkpoint_find(files, s->data_dir, 0, &s->checkpoint, report, arg, err);
    if (status == PS_ENOCHECKPOINT && !s->at.number)
        return inspect_log(s, files, err);
    if (status == PS_ECORRUPT && !s->at.number)
        return inspect_log_alone(s, files, err);
    return status ? status : inspect_checkpoint(s, files, err);
}

int restore_source_open(const struct file_ops *files, const char *path,
                        const struct recover_shard_at *at,
                        void (*report)(void *arg, const char *sentence), void *arg,
                        struct restore_source *ret, struct err *err)
{
    char dir[CHECKPOINT_PATH_MAX], manifest[CHECKPOINT_PATH_MAX + 16];
    int status;

    *ret = (struct restore_source){ .at = *at };
    if (strlen(path) >= CHECKPOINT_PATH_MAX)
        return err_set(err, -ENAMETOOLONG, "a path of more than %u bytes",
                       CHECKPOINT_PATH_MAX - 1);
    snprintf(ret->data_dir, sizeof ret->data_dir, "%s", path);
    directory_resolve(files, path, dir);
    snprintf(manifest, sizeof manifest, "%s/MANIFEST", dir);
    if (is_file(files, manifest) && !directory_split(path, ret->data_dir, &ret->at.number))
        status = open_alone(files, path, ret, report, arg, err);
    else
        status = open_data_dir(files, ret, report, arg, err);
    if (status)
        restore_source_close(ret);
    return status;
}

void restore_source_close(struct restore_source *s)
{
    checkpoint_close(&s->checkpoint);
    s->checkpoint = (struct checkpoint){ 0 };
}

struct recover_shard_at restore_source_requested(const struct restore_source *sources,
                                                 uint32_t n_sources)
{
    uint32_t i = 0;

    while (i + 1 < n_sources && !sources[i].at.job && !sources[i].at.number)
        i++;
    return sources[i].at;
}

void restore_source_rewind(struct restore_source *s, const struct recover_shard_at *at)
{
    if (!s->is_exact)
        s->at = *at;
}

bool restore_source_is_of(const struct restore_source *s, uint32_t node, uint32_t n_nodes,
                          uint32_t shards_per_node)
{
    if (!s->has_checkpoint && !s->has_log)
        return true;
    return s->node == node && s->n_nodes == n_nodes && s->shards_per_node == shards_per_node &&
           (!s->has_checkpoint || s->checkpoint.links[0].n_shards != 0);
}

bool restore_source_is_recoverable(const struct restore_source *s)
{
    return s->data_dir[0] && !s->at.number && s->has_checkpoint &&
           s->checkpoint.links[0].n_shards != 0;
}

int restore_source_check_set(const struct restore_source *sources, const char *const *paths,
                             uint32_t n_sources, bool is_whole, struct err *err)
{
    const struct restore_source *s = sources;

    for (uint32_t i = 0; i < n_sources; i++) {
        if (!s[i].has_checkpoint && !s[i].has_log)
            return err_set(err, PS_ENOCHECKPOINT, "neither a checkpoint nor a log is in %.160s",
                           paths[i]);
        if (is_whole && s[i].n_nodes != n_sources)
            return err_set(err, PS_ECLUSTER,
                           "%.120s was written by node %u, one of %u nodes; %u directories are "
                           "given, expected those of all",
                           paths[i], s[i].node, s[i].n_nodes, n_sources);
        if (s[i].n_nodes != s[0].n_nodes)
            return err_set(err, PS_ECLUSTER,
                           "%.90s was written by one of %u nodes, %.90s by one of %u", paths[0],
                           s[0].n_nodes, paths[i], s[i].n_nodes);
        for (uint32_t j = 0; j < i; j++)
            if (s[i].node == s[j].node)
                return err_set(err, PS_ECLUSTER,
                               "%.100s and %.100s were both written by node %u", paths[j],
                               paths[i], s[i].node);
    }
    return 0;
}

int restore_source_recover(const struct restore_source *s, const struct file_ops *files,
                           uint32_t i, const struct recover_shard_config *how, uint64_t now_ms,
                           struct shard **ret, struct recover_shard_facts *ret_facts,
                           struct err *err)
{
    struct shard_config core = { .shard = s->node * s->shards_per_node + i,
                                 .n_shards = s->n_nodes * s->shards_per_node,
                                 .lease_ms = LEASE_MS,
                                 .join_ms = LEASE_MS,
                                 .park_ms = LEASE_MS };
    struct recover_shard_config config = *how;
    int status;

    config.files = files;
    config.data_dir = s->data_dir;
    config.shard_index = i;
    config.at = s->at;
    config.identity = (struct shard_file_identity){ .node = s->node,
                                                    .shard = core.shard,
                                                    .n_shards = core.n_shards };
    *ret = shard_new(&core);
    status = recover_shard_run(&config, *ret, now_ms, ret_facts, err);
    if (!status && ret_facts->end.verdict == WAL_DAMAGED && !s->at.intact)
        status = err_set(err, PS_ECORRUPT, "--at NUMBER takes a checkpoint alone, as %s",
                         ret_facts->end.text);
    if (status) {
        shard_free(*ret);
        *ret = NULL;
    } else if (!s->at.job && !s->at.number) {
        (void)bsp_release(*ret); /* a clock that was complete when the log ended */
    }
    return status;
}

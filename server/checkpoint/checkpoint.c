#include "server/checkpoint/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/checkpoint/directory.h"

bool checkpoint_is_damage(int status)
{
    return status == PS_ECORRUPT || status == -EIO || status == -ENOENT;
}

bool checkpoint_is_unfinished(const struct file_ops *files, const char *dir)
{
    struct manifest *m = memory_alloc(sizeof *m);
    int status = manifest_read(files, dir, m, NULL);

    free(m);
    return status == -ENOENT;
}

void checkpoint_close(struct checkpoint *c)
{
    free(c->links);
    c->links = NULL;
    c->n_links = 0;
}

/* --- its manifests --- */

static bool is_same_layout(const struct manifest *a, const struct manifest *b)
{
    return a->node == b->node && a->n_nodes == b->n_nodes && a->n_shards == b->n_shards &&
           a->map_id == b->map_id && a->n_files == b->n_files;
}

/* The manifest that links[n_links - 1] is built on. */
static int read_base(const struct file_ops *files, struct checkpoint *c, struct err *err)
{
    const uint64_t number = c->links[c->n_links - 1].base;
    char dir[CHECKPOINT_PATH_MAX];
    struct manifest *links;
    int status;

    if (c->n_links == CHECKPOINT_CHAIN_MAX)
        return err_set(err, PS_ECORRUPT, "a chain of more than %u checkpoints: %.160s",
                       CHECKPOINT_CHAIN_MAX, c->dir);
    links = memory_try_realloc(c->links, (c->n_links + 1) * sizeof *links);
    if (!links)
        return err_set(err, -ENOMEM, "no memory to read %.160s", c->dir);
    c->links = links;
    directory_beside(files, c->dir, number, dir);
    status = manifest_read(files, dir, &links[c->n_links], err);
    if (status)
        return status;
    if (links[c->n_links].number != number ||
        !is_same_layout(&links[c->n_links], &links[c->n_links - 1]))
        return err_set(err, PS_ECORRUPT,
                       "it is not the checkpoint that number %" PRIu64 " is a delta to: %.160s",
                       links[c->n_links - 1].number, dir);
    c->n_links++;
    return 0;
}

/* Reads the manifests of a restore point: its own and those of its bases. Opens no shard file. On failure *ret is
 * empty. */
static int read_links(const struct file_ops *files, const char *dir, struct checkpoint *ret,
                      struct err *err)
{
    int status;

    *ret = (struct checkpoint){ 0 };
    if (strlen(dir) + 40 > CHECKPOINT_PATH_MAX)
        return err_set(err, -ENAMETOOLONG, "a checkpoint's path of more than %u bytes",
                       CHECKPOINT_PATH_MAX - 40);
    directory_resolve(files, dir, ret->dir);
    ret->links = memory_alloc(sizeof *ret->links);
    status = manifest_read(files, ret->dir, ret->links, err);
    ret->n_links = 1;
    while (!status && ret->links[ret->n_links - 1].base)
        status = read_base(files, ret, err);
    if (status)
        checkpoint_close(ret);
    return status;
}

/* --- a shard's chain of files --- */

/* One file on its way through the reader. */
struct link {
    const struct checkpoint *checkpoint;
    uint32_t link, file;
    struct err *err;
};

/* The number of files in the chain of file i; 1: it is full. */
static uint32_t chain_length(const struct checkpoint *c, uint32_t i)
{
    uint32_t n = 1;

    while (n < c->n_links && c->links[n - 1].files[i].is_delta)
        n++;
    return n;
}

static int wrong(const struct link *l, const struct shard_file_reader *r, const char *reason)
{
    return err_set(l->err, PS_ECORRUPT, "%s: %.160s", reason, r->path);
}

/* Is it the file that the manifest means, and on what its manifest says it is built? */
static int check_head(const struct link *l, const struct shard_file_reader *r)
{
    const struct manifest *m = &l->checkpoint->links[l->link];
    const struct shard_file_facts *want = &m->files[l->file];
    const struct shard_file_header *h = &r->header;

    if (h->number != m->number || h->shard_index != l->file)
        return err_set(l->err, PS_ECORRUPT,
                       "it is shard %" PRIu32 " of checkpoint %" PRIu64 ", shard %" PRIu32
                       " of %" PRIu64 " was expected: %.120s",
                       h->shard_index, h->number, l->file, m->number, r->path);
    if (h->version != want->version || h->first != want->first ||
        h->base != (want->is_delta ? m->base : 0))
        return wrong(l, r, "its header is not what the manifest says");
    if (h->format >= 3 &&
        (h->identity.shard != want->shard || h->identity.node != m->node ||
         h->identity.n_shards != m->n_shards || h->identity.map_id != m->map_id))
        return wrong(l, r, "it was written by another shard than the manifest says");
    if (want->is_delta && l->link + 1 < l->checkpoint->n_links &&
        h->base_version != l->checkpoint->links[l->link + 1].files[l->file].version)
        return wrong(l, r, "it is a delta to another file than the one that is there");
    return 0;
}

/* To be asked once it has been read to its end. */
static int check_facts(const struct link *l, const struct shard_file_reader *r)
{
    const struct shard_file_facts *want = &l->checkpoint->links[l->link].files[l->file];
    const struct shard_file_facts *have = &r->facts;

    if (have->n_bytes != want->n_bytes || have->crc != want->crc)
        return err_set(l->err, PS_ECORRUPT,
                       "%" PRIu64 " bytes with checksum %08" PRIx32
                       ", the manifest says %" PRIu64 " with %08" PRIx32 ": %.120s",
                       have->n_bytes, have->crc, want->n_bytes, want->crc, r->path);
    if (have->n_rows != want->n_rows || have->n_gone != want->n_gone ||
        have->through != want->through)
        return wrong(l, r, "its counts are not what the manifest says");
    return 0;
}

/* links[k] stands beside links[0], under its number. */
static void file_path(const struct link *l, const struct file_ops *files,
                      char ret[static CHECKPOINT_FILE_PATH_MAX])
{
    const struct checkpoint *c = l->checkpoint;
    char dir[CHECKPOINT_PATH_MAX], name[MANIFEST_NAME_MAX];

    if (l->link)
        directory_beside(files, c->dir, c->links[l->link].number, dir);
    else
        memcpy(dir, c->dir, sizeof dir);
    manifest_file_name(l->file, name);
    snprintf(ret, CHECKPOINT_FILE_PATH_MAX, "%s/%s", dir, name);
}

static int open_link(const struct link *l, const struct file_ops *files, const char *path,
                     struct shard_file_reader *r)
{
    int status = shard_file_reader_open(r, files, path, l->err);

    if (status)
        return status;
    status = check_head(l, r);
    if (status)
        shard_file_reader_close(r);
    return status;
}

static int check_chain(const struct file_ops *files, const struct checkpoint *c, uint32_t i,
                       struct err *err)
{
    char path[CHECKPOINT_FILE_PATH_MAX];
    struct shard_file_reader r;
    int status = 0;

    for (uint32_t k = chain_length(c, i); k-- > 0 && !status;) {
        struct link l = { .checkpoint = c, .link = k, .file = i, .err = err };

        file_path(&l, files, path);
        status = open_link(&l, files, path, &r);
        if (!status)
            shard_file_reader_close(&r);
    }
    return status;
}

static int read_open(const struct link *l, struct shard_file_reader *r,
                     const struct checkpoint_visitor *visitor)
{
    struct shard_file_reader_chunk piece;
    int found, status = visitor->on_file(visitor->owner, r, l->link);

    while (!status && (found = shard_file_reader_next(r, &piece)) != 0) {
        if (found < 0)
            return found;
        status = visitor->on_piece(visitor->owner, r, &piece);
    }
    return status ? status : check_facts(l, r);
}

int checkpoint_chain_read_link(const struct file_ops *files, const struct checkpoint *c,
                               uint32_t i, uint32_t link,
                               const struct checkpoint_visitor *visitor,
                               struct shard_file_facts *ret_facts, struct err *err)
{
    const struct link l = { .checkpoint = c, .link = link, .file = i, .err = err };
    char path[CHECKPOINT_FILE_PATH_MAX];
    struct shard_file_reader r;
    int status;

    file_path(&l, files, path);
    status = open_link(&l, files, path, &r);
    if (status)
        return status;
    status = read_open(&l, &r, visitor);
    if (!status && ret_facts)
        *ret_facts = r.facts;
    shard_file_reader_close(&r);
    return status;
}

int checkpoint_chain_read(const struct file_ops *files, const struct checkpoint *c, uint32_t i,
                          const struct checkpoint_visitor *visitor,
                          struct shard_file_facts *ret_facts, struct err *err)
{
    int status = 0;

    for (uint32_t k = chain_length(c, i); k-- > 0 && !status;)
        status = checkpoint_chain_read_link(files, c, i, k, visitor, ret_facts, err);
    return status;
}

/* --- one, and the newest --- */

int checkpoint_open(const struct file_ops *files, const char *dir, struct checkpoint *ret,
                    struct err *err)
{
    int status = read_links(files, dir, ret, err);

    for (uint32_t i = 0; !status && i < ret->links[0].n_files; i++)
        status = check_chain(files, ret, i, err);
    if (status)
        checkpoint_close(ret);
    return status;
}

int checkpoint_open_live(const struct file_ops *files, const char *dir, struct checkpoint *ret,
                         bool *ret_unfinished, struct err *err)
{
    int status = checkpoint_open(files, dir, ret, err);

    *ret_unfinished = status == -ENOENT && checkpoint_is_unfinished(files, dir);
    if (status != -ENOENT || *ret_unfinished)
        return status;
    status = checkpoint_open(files, dir, ret, err);
    *ret_unfinished = status == -ENOENT && checkpoint_is_unfinished(files, dir);
    return status;
}

bool checkpoint_is_of(const struct checkpoint *c, uint32_t i,
                      const struct shard_file_identity *identity)
{
    const struct manifest *m = &c->links[0];

    return i < m->n_files && m->n_shards > 0 && m->n_shards == identity->n_shards &&
           m->node == identity->node && m->map_id == identity->map_id &&
           m->files[i].shard == identity->shard;
}

static int find_below(const struct file_ops *files, const char *data_dir, uint64_t below,
                      const struct directory_numbers *numbers, struct checkpoint *ret,
                      void (*report)(void *, const char *), void *arg, struct err *err)
{
    char dir[CHECKPOINT_PATH_MAX];
    uint32_t n_damaged = 0;
    bool unfinished = false;
    int status;

    for (size_t i = 0; i < numbers->n; i++) {
        if (below && numbers->items[i] >= below)
            continue;
        status = directory_number_path(data_dir, numbers->items[i], dir, err);
        if (!status)
            status = checkpoint_open_live(files, dir, ret, &unfinished, err);
        if (!status || !checkpoint_is_damage(status))
            return status;
        if (unfinished)
            continue;
        n_damaged++;
        if (report)
            report(arg, err->text);
    }
    if (n_damaged)
        return err_set(err, PS_ECORRUPT,
                       "no checkpoint of %" PRIu32 " is whole: %.150s/checkpoints", n_damaged,
                       data_dir);
    if (below)
        return err_set(err, PS_ENOCHECKPOINT, "no checkpoint %" PRIu64 " or older in %.200s",
                       below - 1, data_dir);
    return err_set(err, PS_ENOCHECKPOINT, "no checkpoint in %.200s", data_dir);
}

int checkpoint_find_numbered(const struct file_ops *files, const char *data_dir,
                             uint64_t number, struct checkpoint *ret,
                             void (*report)(void *, const char *sentence), void *arg,
                             struct err *err)
{
    char dir[CHECKPOINT_PATH_MAX];
    int status = checkpoint_find(files, data_dir, number + 1, ret, report, arg, err);

    if (status != PS_ENOCHECKPOINT && (status || ret->links[0].number == number))
        return status;
    checkpoint_close(ret);
    status = directory_archived_path(data_dir, number, dir, err);
    if (status)
        return status;
    if (checkpoint_is_unfinished(files, dir))
        return err_set(err, PS_ENOCHECKPOINT,
                       "at: there is no valid checkpoint %" PRIu64 " in %.200s", number,
                       data_dir);
    return checkpoint_open(files, dir, ret, err);
}

int checkpoint_find(const struct file_ops *files, const char *data_dir, uint64_t below,
                    struct checkpoint *ret, void (*report)(void *, const char *sentence),
                    void *arg, struct err *err)
{
    char base[CHECKPOINT_PATH_MAX];
    struct err own = { 0 };
    struct directory_numbers numbers;
    int status;

    *ret = (struct checkpoint){ 0 };
    if (!err)
        err = &own; /* `report` needs the sentence anyway */
    status = directory_path(data_dir, base, err);
    if (status)
        return status;
    status = directory_list(files, base, &numbers, err);
    if (!status)
        status = find_below(files, data_dir, below, &numbers, ret, report, arg, err);
    free(numbers.items);
    return status;
}

/* --- verify --- */

struct verifier {
    void (*progress)(void *arg);
    void *arg;
};

static int on_file(void *owner, const struct shard_file_reader *r, uint32_t n_behind)
{
    (void)owner;
    (void)r;
    (void)n_behind;
    return 0;
}

static int on_piece(void *owner, const struct shard_file_reader *r,
                    const struct shard_file_reader_chunk *piece)
{
    const struct verifier *v = owner;

    (void)r;
    (void)piece;
    if (v->progress)
        v->progress(v->arg);
    return 0;
}

int checkpoint_verify(const struct file_ops *files, const struct checkpoint *c,
                      void (*progress)(void *), void *arg, struct err *err)
{
    struct verifier v = { .progress = progress, .arg = arg };
    struct checkpoint_visitor visitor = { .owner = &v,
                                          .on_file = on_file,
                                          .on_piece = on_piece };
    int status = 0;

    for (uint32_t i = 0; i < c->links[0].n_files && !status; i++)
        status = checkpoint_chain_read(files, c, i, &visitor, NULL, err);
    return status;
}

/* With all manifests that its deltas need, or with its own alone. */
static int read_own_links(const struct file_ops *files, const char *dir, struct checkpoint *ret,
                          struct err *err)
{
    int status = read_links(files, dir, ret, err);

    if (!status || !checkpoint_is_damage(status))
        return status;
    directory_resolve(files, dir, ret->dir);
    ret->links = memory_alloc(sizeof *ret->links);
    ret->n_links = 1;
    status = manifest_read(files, ret->dir, ret->links, err);
    if (status)
        checkpoint_close(ret);
    return status;
}

/* 0, with its sentence reported, where the status is about a file that should be there. */
static int report_damage(const struct file_ops *files, const char *dir, int status,
                         void (*damaged)(void *arg, const char *sentence), void *arg,
                         const struct err *err)
{
    if (!checkpoint_is_damage(status))
        return status;
    if (!checkpoint_is_unfinished(files, dir))
        damaged(arg, err->text);
    return 0;
}

static int check_base_is_there(const struct file_ops *files, const struct checkpoint *c,
                               struct err *err)
{
    uint64_t base = c->links[0].base;
    char dir[CHECKPOINT_PATH_MAX];

    if (!base)
        return 0;
    directory_beside(files, c->dir, base, dir);
    return checkpoint_is_unfinished(files, dir)
               ? err_set(err, -ENOENT,
                         "checkpoint %" PRIu64 ", to which it is a delta, is gone: %.160s",
                         base, c->dir)
               : 0;
}

int checkpoint_verify_own(const struct file_ops *files, const char *dir,
                          void (*damaged)(void *arg, const char *sentence), void *arg,
                          struct err *err)
{
    struct checkpoint_visitor visitor = { .owner = &(struct verifier){ 0 },
                                          .on_file = on_file,
                                          .on_piece = on_piece };
    struct checkpoint c;
    int status = read_own_links(files, dir, &c, err);

    if (status)
        return report_damage(files, dir, status, damaged, arg, err);
    for (uint32_t i = 0; i < c.links[0].n_files && !status; i++) {
        status = checkpoint_chain_read_link(files, &c, i, 0, &visitor, NULL, err);
        status = report_damage(files, dir, status, damaged, arg, err);
    }
    if (!status)
        status =
            report_damage(files, dir, check_base_is_there(files, &c, err), damaged, arg, err);
    checkpoint_close(&c);
    return status;
}

int checkpoint_find_whole(const struct file_ops *files, const char *data_dir,
                          struct checkpoint *ret, void (*report)(void *, const char *sentence),
                          void *arg, struct err *err)
{
    struct err own = { 0 }, damage = { 0 };
    uint64_t below = 0;
    int status;

    err = err ? err : &own;
    for (;;) {
        status = checkpoint_find(files, data_dir, below, ret, report, arg, err);
        if (status == PS_ENOCHECKPOINT && damage.status)
            *err = damage; /* there were some */
        if (status)
            return err->status;
        status = checkpoint_verify(files, ret, NULL, NULL, err);
        if (!status)
            return 0;
        below = ret->links[0].number;
        checkpoint_close(ret);
        if (!checkpoint_is_damage(status))
            return status;
        if (report)
            report(arg, err->text);
        damage = *err;
        damage.status = PS_ECORRUPT;
    }
}

/* --- making one --- */

/* Nothing else is being written now: what is unfinished stays so, and may fill the disk
 * that the next one needs. */
static void remove_unfinished(const struct file_ops *files, const char *data_dir,
                              const struct directory_numbers *numbers)
{
    char dir[CHECKPOINT_PATH_MAX];

    for (size_t i = 0; i < numbers->n; i++)
        if (directory_number_path(data_dir, numbers->items[i], dir, NULL) == 0 &&
            checkpoint_is_unfinished(files, dir))
            directory_remove(files, dir);
}

int checkpoint_next_above(const struct file_ops *files, const char *data_dir, uint64_t floor,
                          uint64_t *ret_number, struct err *err)
{
    char base[CHECKPOINT_PATH_MAX], dir[CHECKPOINT_PATH_MAX];
    struct directory_numbers numbers;
    uint64_t number;
    int status = directory_path(data_dir, base, err);

    if (status || (status = directory_make_dir(files, data_dir, NULL, err)) != 0 ||
        (status = directory_make_dir(files, base, data_dir, err)) != 0)
        return status;
    status = directory_list(files, base, &numbers, err);
    number = (numbers.greatest > floor ? numbers.greatest : floor) + 1;
    remove_unfinished(files, data_dir, &numbers);
    free(numbers.items);
    if (status || (status = directory_number_path(data_dir, number, dir, err)) != 0 ||
        (status = directory_make_dir(files, dir, base, err)) != 0)
        return status;
    *ret_number = number;
    return 0;
}

int checkpoint_next(const struct file_ops *files, const char *data_dir, uint64_t *ret_number,
                    struct err *err)
{
    return checkpoint_next_above(files, data_dir, 0, ret_number, err);
}

int checkpoint_file_path(const char *data_dir, uint64_t number, uint32_t shard_index,
                         char ret[static CHECKPOINT_FILE_PATH_MAX], struct err *err)
{
    char dir[CHECKPOINT_PATH_MAX], name[MANIFEST_NAME_MAX];
    int status = directory_number_path(data_dir, number, dir, err);

    if (status)
        return status;
    manifest_file_name(shard_index, name);
    snprintf(ret, CHECKPOINT_FILE_PATH_MAX, "%s/%s", dir, name);
    return 0;
}

/* --- which stay --- */

/* While restore points are counted, the newest first. */
struct count {
    const struct file_ops *files;
    const char *data_dir;
    uint32_t keep, n_kept;
    uint64_t *needed; /* numbers that restore points need which stay; some stand twice */
    size_t n_needed, needed_cap;
    uint32_t n_shards;
    uint64_t *firsts; /* of n_shards, or NULL */
};

static bool is_needed(const struct count *count, uint64_t number)
{
    for (size_t i = 0; i < count->n_needed; i++)
        if (count->needed[i] == number)
            return true;
    return false;
}

/* Whose log is in no file of it, or which is of another layout, needs all of the log. */
static void note_firsts(const struct count *count, const struct manifest *m)
{
    for (uint32_t i = 0; count->firsts && i < count->n_shards; i++) {
        uint64_t first = m->n_files == count->n_shards ? m->files[i].first : 0;

        if (count->n_kept == 0 || first < count->firsts[i])
            count->firsts[i] = first;
    }
}

static void need_links(struct count *count, const struct checkpoint *c)
{
    for (uint32_t i = 1; i < c->n_links && count->n_needed < count->needed_cap; i++)
        if (!is_needed(count, c->links[i].number))
            count->needed[count->n_needed++] = c->links[i].number;
}

/* This restore point stays, and what its deltas need. */
static void keep_point(struct count *count, const struct checkpoint *c)
{
    note_firsts(count, &c->links[0]);
    count->n_kept++;
    need_links(count, c);
}

/* What was archived stays until a person removes it: so does what it needs, or it could not be gone back to. */
static void keep_archived(struct count *count, const struct directory_numbers *archived)
{
    char dir[CHECKPOINT_PATH_MAX];

    for (size_t i = 0; i < archived->n; i++) {
        struct checkpoint c = { 0 };

        if (directory_archived_path(count->data_dir, archived->items[i], dir, NULL) == 0 &&
            read_links(count->files, dir, &c, NULL) == 0)
            need_links(count, &c);
        checkpoint_close(&c);
    }
}

/* Stays, goes, or, where it cannot be read for a reason that is not its own, is left alone. */
static void keep_or_remove(struct count *count, uint64_t number)
{
    char dir[CHECKPOINT_PATH_MAX];
    struct checkpoint c = { 0 };
    int status;

    if (directory_number_path(count->data_dir, number, dir, NULL) != 0)
        return;
    status =
        count->n_kept < count->keep ? read_links(count->files, dir, &c, NULL) : PS_ECORRUPT;
    if (!status)
        keep_point(count, &c);
    else if ((status == PS_ECORRUPT || status == -ENOENT) && !is_needed(count, number))
        directory_remove(count->files, dir);
    checkpoint_close(&c);
}

/* Number `newest` is the one just written. */
static void prune(struct count *count, uint64_t newest)
{
    char base[CHECKPOINT_PATH_MAX];
    struct directory_numbers numbers = { 0 }, archived = { 0 };
    int status = directory_path(count->data_dir, base, NULL);

    if (!status)
        status = directory_list(count->files, base, &numbers, NULL);
    if (!status)
        status = directory_list_archived(count->files, base, &archived, NULL);
    count->needed_cap = numbers.n + archived.n;
    count->needed = memory_alloc((count->needed_cap + 1) * sizeof *count->needed);
    keep_archived(count, &archived);
    for (size_t i = 0; i < numbers.n && !status; i++)
        if (numbers.items[i] <= newest)
            keep_or_remove(count, numbers.items[i]);
    free(count->needed);
    free(archived.items);
    free(numbers.items);
}

/* A delta to what nobody can load would be none. */
static int check_base(const struct file_ops *files, const char *data_dir,
                      const struct manifest *m, struct err *err)
{
    char dir[CHECKPOINT_PATH_MAX];
    struct checkpoint base;
    int status;

    if (!m->base)
        return 0;
    status = directory_number_path(data_dir, m->base, dir, err);
    if (!status)
        status = read_links(files, dir, &base, err);
    if (status)
        return status;
    if (base.n_links == CHECKPOINT_CHAIN_MAX)
        status =
            err_set(err, -EINVAL,
                    "a chain of %u checkpoints ends in %.160s: the next one has to be full",
                    CHECKPOINT_CHAIN_MAX, dir);
    checkpoint_close(&base);
    return status;
}

/* Its own base was made so when it was committed. */
int checkpoint_sync(const struct file_ops *files, const char *data_dir, uint64_t number,
                    struct err *err)
{
    char dir[CHECKPOINT_PATH_MAX];
    int status = directory_number_path(data_dir, number, dir, err);

    if (status)
        return status;
    status = files->sync_dir(files->state, dir);
    return status ? err_set(err, status, "cannot sync the checkpoint: %s: %.150s",
                            status_text(status), dir)
                  : 0;
}

int checkpoint_commit(const struct file_ops *files, const char *data_dir,
                      const struct manifest *m, uint32_t keep, uint64_t *ret_firsts,
                      struct err *err)
{
    struct count count = { .files = files,
                           .data_dir = data_dir,
                           .keep = keep ? keep : 1,
                           .n_shards = m->n_files,
                           .firsts = ret_firsts };
    char dir[CHECKPOINT_PATH_MAX];
    int status = directory_number_path(data_dir, m->number, dir, err);

    assert(m->n_files > 0 && m->n_files <= MANIFEST_N_FILES_MAX);
    if (!status)
        status = check_base(files, data_dir, m, err);
    if (!status && m->base)
        status = checkpoint_sync(files, data_dir, m->base, err);
    if (!status)
        status = manifest_write(files, dir, m, err);
    if (status)
        return status;
    if (ret_firsts)
        memset(ret_firsts, 0, m->n_files * sizeof *ret_firsts);
    if (keep != CHECKPOINT_KEEP_ALL)
        prune(&count, m->number);
    if (ret_firsts &&
        count.n_kept < count.keep) /* the log's beginning is one of those to go back to */
        memset(ret_firsts, 0, m->n_files * sizeof *ret_firsts);
    return 0;
}

int checkpoint_archive(const struct file_ops *files, const char *data_dir, uint64_t number,
                       struct err *err)
{
    return directory_archive(files, data_dir, number, err);
}

/* --- all of them, by their manifests --- */

struct listing {
    const struct file_ops *files;
    const char *data_dir;
    void (*visit)(void *arg, const struct checkpoint_entry *item);
    void *arg;
    struct manifest *manifest;
};

static int visit(const struct listing *w, uint64_t number, bool is_archived, struct err *err)
{
    struct checkpoint_entry item = { .number = number, .is_archived = is_archived };
    char dir[DIRECTORY_PATH_MAX];
    int status = is_archived ? directory_archived_path(w->data_dir, number, dir, err)
                             : directory_number_path(w->data_dir, number, dir, err);

    if (status)
        return status;
    status = manifest_read(w->files, dir, w->manifest, err);
    if (status == -ENOENT)
        return 0;
    if (status && !checkpoint_is_damage(status))
        return status;
    item.manifest = status ? NULL : w->manifest;
    w->visit(w->arg, &item);
    return 0;
}

static int visit_all(const struct listing *w, const char *base, bool is_archived,
                     struct err *err)
{
    struct directory_numbers numbers;
    int status = is_archived ? directory_list_archived(w->files, base, &numbers, err)
                             : directory_list(w->files, base, &numbers, err);

    for (size_t i = 0; i < numbers.n && !status; i++)
        status = visit(w, numbers.items[i], is_archived, err);
    free(numbers.items);
    return status;
}

int checkpoint_each(const struct file_ops *files, const char *data_dir,
                    void (*visit_one)(void *arg, const struct checkpoint_entry *item),
                    void *arg, struct err *err)
{
    struct listing w = { files, data_dir, visit_one, arg,
                         memory_try_alloc(sizeof *w.manifest) };
    char base[DIRECTORY_PATH_MAX];
    int status = w.manifest ? directory_path(data_dir, base, err)
                            : err_set(err, -ENOMEM, "no memory to read manifests");

    if (!status)
        status = visit_all(&w, base, false, err);
    if (!status)
        status = visit_all(&w, base, true, err);
    free(w.manifest);
    return status;
}

/* --- what their logs are needed from --- */

struct firsts {
    uint32_t n_files, n_points;
    uint64_t *items; /* borrowed, n_files */
};

static void note_point(void *arg, const struct checkpoint_entry *item)
{
    struct firsts *f = arg;
    const struct manifest *m = item->manifest;

    if (item->is_archived)
        return;
    for (uint32_t i = 0; i < f->n_files; i++) {
        uint64_t first = m && m->n_files == f->n_files ? m->files[i].first : 0;

        if (!f->n_points || first < f->items[i])
            f->items[i] = first;
    }
    f->n_points++;
}

int checkpoint_firsts(const struct file_ops *files, const char *data_dir, uint32_t n_files,
                      uint64_t *ret_firsts, struct err *err)
{
    struct firsts f = { .n_files = n_files, .items = ret_firsts };

    memset(ret_firsts, 0, n_files * sizeof *ret_firsts);
    return checkpoint_each(files, data_dir, note_point, &f, err);
}

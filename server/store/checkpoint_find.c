/* Restore points are found, opened and verified (checkpoint.h). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/store/chain.h"
#include "server/store/checkpoint_links.h"
#include "server/store/shelf.h"

bool checkpoint_is_damage(int status)
{
    return status == PS_ECORRUPT || status == -EIO || status == -ENOENT;
}

bool checkpoint_is_unfinished(const struct file_ops *files, const char *dir)
{
    struct manifest *m = mem_alloc(sizeof *m);
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
    links = mem_try_realloc(c->links, (c->n_links + 1) * sizeof *links);
    if (!links)
        return err_set(err, -ENOMEM, "no memory to read %.160s", c->dir);
    c->links = links;
    shelf_beside(files, c->dir, number, dir);
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

int checkpoint_read_links(const struct file_ops *files, const char *dir, struct checkpoint *ret,
                          struct err *err)
{
    int status;

    *ret = (struct checkpoint){ 0 };
    if (strlen(dir) + 40 > CHECKPOINT_PATH_MAX)
        return err_set(err, -ENAMETOOLONG, "a checkpoint's path of more than %u bytes",
                       CHECKPOINT_PATH_MAX - 40);
    shelf_resolve(files, dir, ret->dir);
    ret->links = mem_alloc(sizeof *ret->links);
    status = manifest_read(files, ret->dir, ret->links, err);
    ret->n_links = 1;
    while (!status && ret->links[ret->n_links - 1].base)
        status = read_base(files, ret, err);
    if (status)
        checkpoint_close(ret);
    return status;
}

/* --- one, and the newest --- */

int checkpoint_open(const struct file_ops *files, const char *dir, struct checkpoint *ret,
                    struct err *err)
{
    int status = checkpoint_read_links(files, dir, ret, err);

    for (uint32_t i = 0; !status && i < ret->links[0].n_files; i++)
        status = chain_check(files, ret, i, err);
    if (status)
        checkpoint_close(ret);
    return status;
}

int checkpoint_open_settled(const struct file_ops *files, const char *dir,
                            struct checkpoint *ret, bool *ret_unfinished, struct err *err)
{
    int status = checkpoint_open(files, dir, ret, err);

    *ret_unfinished = status == -ENOENT && checkpoint_is_unfinished(files, dir);
    if (status != -ENOENT || *ret_unfinished)
        return status;
    status = checkpoint_open(files, dir, ret, err);
    *ret_unfinished = status == -ENOENT && checkpoint_is_unfinished(files, dir);
    return status;
}

bool checkpoint_is_of(const struct checkpoint *c, uint32_t i, const struct part_identity *who)
{
    const struct manifest *m = &c->links[0];

    return i < m->n_files && m->n_shards > 0 && m->n_shards == who->n_shards &&
           m->node == who->node && m->map_id == who->map_id && m->files[i].shard == who->shard;
}

static int find_below(const struct file_ops *files, const char *data_dir, uint64_t below,
                      const struct shelf_numbers *numbers, struct checkpoint *ret,
                      void (*report)(void *, const char *), void *arg, struct err *err)
{
    char dir[CHECKPOINT_PATH_MAX];
    uint32_t n_damaged = 0;
    bool unfinished = false;
    int status;

    for (size_t i = 0; i < numbers->n; i++) {
        if (below && numbers->items[i] >= below)
            continue;
        status = shelf_number_path(data_dir, numbers->items[i], dir, err);
        if (!status)
            status = checkpoint_open_settled(files, dir, ret, &unfinished, err);
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
                       "no checkpoint of %" PRIu32
                       " is whole; to start empty, move them away: %.150s/checkpoints",
                       n_damaged, data_dir);
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
    status = shelf_aside_path(data_dir, number, dir, err);
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
    struct shelf_numbers numbers;
    int status;

    *ret = (struct checkpoint){ 0 };
    if (!err)
        err = &own; /* `report` needs the sentence anyway */
    status = shelf_path(data_dir, base, err);
    if (status)
        return status;
    status = shelf_list(files, base, &numbers, err);
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

static int on_file(void *owner, const struct part_reader *r, uint32_t n_behind)
{
    (void)owner;
    (void)r;
    (void)n_behind;
    return 0;
}

static int on_piece(void *owner, const struct part_reader *r, const struct part_piece *piece)
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
    struct chain_visitor visitor = { .owner = &v, .on_file = on_file, .on_piece = on_piece };
    int status = 0;

    for (uint32_t i = 0; i < c->links[0].n_files && !status; i++)
        status = chain_read(files, c, i, &visitor, NULL, err);
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

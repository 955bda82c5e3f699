/* Checkpoints are made, counted and removed (checkpoint.h); checkpoint_find.c finds them again. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/store/checkpoint.h"
#include "server/store/checkpoint_links.h"
#include "server/store/shelf.h"

/* Nothing else is being written now: what is unfinished stays so, and may fill the disk
 * that the next one needs. */
static void remove_unfinished(const struct file_ops *files, const char *data_dir,
                              const struct shelf_numbers *numbers)
{
    char dir[CHECKPOINT_PATH_MAX];

    for (size_t i = 0; i < numbers->n; i++)
        if (shelf_number_path(data_dir, numbers->items[i], dir, NULL) == 0 &&
            checkpoint_is_unfinished(files, dir))
            shelf_remove(files, dir);
}

int checkpoint_next_above(const struct file_ops *files, const char *data_dir, uint64_t floor,
                          uint64_t *ret_number, struct err *err)
{
    char base[CHECKPOINT_PATH_MAX], dir[CHECKPOINT_PATH_MAX];
    struct shelf_numbers numbers;
    uint64_t number;
    int status = shelf_path(data_dir, base, err);

    if (status || (status = shelf_make_dir(files, data_dir, NULL, err)) != 0 ||
        (status = shelf_make_dir(files, base, data_dir, err)) != 0)
        return status;
    status = shelf_list(files, base, &numbers, err);
    number = (numbers.greatest > floor ? numbers.greatest : floor) + 1;
    remove_unfinished(files, data_dir, &numbers);
    free(numbers.items);
    if (status || (status = shelf_number_path(data_dir, number, dir, err)) != 0 ||
        (status = shelf_make_dir(files, dir, base, err)) != 0)
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
    int status = shelf_number_path(data_dir, number, dir, err);

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

/* What was set aside stays until a person removes it: so does what it needs, or it could not be gone back to. */
static void keep_aside(struct count *count, const struct shelf_numbers *aside)
{
    char dir[CHECKPOINT_PATH_MAX];

    for (size_t i = 0; i < aside->n; i++) {
        struct checkpoint c = { 0 };

        if (shelf_aside_path(count->data_dir, aside->items[i], dir, NULL) == 0 &&
            checkpoint_read_links(count->files, dir, &c, NULL) == 0)
            need_links(count, &c);
        checkpoint_close(&c);
    }
}

/* Stays, goes, or, where it cannot be read for a reason that is not its own, is left alone. */
static void judge(struct count *count, uint64_t number)
{
    char dir[CHECKPOINT_PATH_MAX];
    struct checkpoint c = { 0 };
    int status;

    if (shelf_number_path(count->data_dir, number, dir, NULL) != 0)
        return;
    status = count->n_kept < count->keep ? checkpoint_read_links(count->files, dir, &c, NULL)
                                         : PS_ECORRUPT;
    if (!status)
        keep_point(count, &c);
    else if ((status == PS_ECORRUPT || status == -ENOENT) && !is_needed(count, number))
        shelf_remove(count->files, dir);
    checkpoint_close(&c);
}

/* Number `newest` is the one just written. */
static void prune(struct count *count, uint64_t newest)
{
    char base[CHECKPOINT_PATH_MAX];
    struct shelf_numbers numbers = { 0 }, aside = { 0 };
    int status = shelf_path(count->data_dir, base, NULL);

    if (!status)
        status = shelf_list(count->files, base, &numbers, NULL);
    if (!status)
        status = shelf_list_aside(count->files, base, &aside, NULL);
    count->needed_cap = numbers.n + aside.n;
    count->needed = mem_alloc((count->needed_cap + 1) * sizeof *count->needed);
    keep_aside(count, &aside);
    for (size_t i = 0; i < numbers.n && !status; i++)
        if (numbers.items[i] <= newest)
            judge(count, numbers.items[i]);
    free(count->needed);
    free(aside.items);
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
    status = shelf_number_path(data_dir, m->base, dir, err);
    if (!status)
        status = checkpoint_read_links(files, dir, &base, err);
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
    int status = shelf_number_path(data_dir, number, dir, err);

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
    int status = shelf_number_path(data_dir, m->number, dir, err);

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

int checkpoint_set_aside(const struct file_ops *files, const char *data_dir, uint64_t number,
                         struct err *err)
{
    return shelf_set_aside(files, data_dir, number, err);
}

#include "deploy/psctl/watch.h"

#include <stdlib.h>

#include "common/hash.h"
#include "server/store/shelf.h"

/* Of one path: a checkpoint, or a data directory with some. */
static uint64_t stand_of(const struct file_ops *files, const char *path)
{
    char dir[SHELF_PATH_MAX];
    struct shelf_numbers numbers = { 0 };
    uint64_t stand = shelf_is_finished(files, path);

    if (shelf_path(path, dir, NULL) || shelf_list(files, dir, &numbers, NULL))
        numbers.n = 0;
    for (size_t i = 0; i < numbers.n; i++)
        if (shelf_number_path(path, numbers.items[i], dir, NULL) == 0 &&
            shelf_is_finished(files, dir))
            stand = hash_mix2(stand, numbers.items[i]);
    free(numbers.items);
    return stand;
}

static uint64_t stand_now(const struct collect_config *config)
{
    uint64_t stand = 0;

    for (uint32_t i = 0; i < config->n_paths; i++)
        stand = hash_mix2(stand, stand_of(config->files, config->paths[i]));
    return stand;
}

void watch_begin(struct watch *w)
{
    const struct collect_config *c = w->config;

    for (uint32_t i = 0; i < c->n_paths && !w->n_looks; i++)
        w->is_point[i] = shelf_is_finished(c->files, c->paths[i]);
    w->stand = stand_now(w->config);
    w->n_looks++;
}

bool watch_again(const struct watch *w, int status)
{
    const struct collect_config *c = w->config;
    bool is_last = w->n_looks == WATCH_N_LOOKS_MAX;

    if (!checkpoint_is_damage(status) && status != PS_ENOCHECKPOINT)
        return false;
    if (stand_now(c) == w->stand)
        return false;
    if (c->report)
        c->report(c->arg, is_last
                              ? "psd has replaced checkpoints each time that they were read: a "
                                "copy, or psd with a greater --keep, stands still"
                              : "psd has replaced checkpoints while they were read: again");
    return !is_last;
}

int watch_gone(const char *dir, struct err *err)
{
    return err_set(err, PS_ENOCHECKPOINT,
                   "%.160s was removed while it was read: psd keeps the newest ones (--keep)",
                   dir);
}

int watch_end(const struct watch *w, int status, struct err *err)
{
    const struct collect_config *c = w->config;

    for (uint32_t i = 0; i < c->n_paths && status; i++)
        if (w->is_point[i] && !shelf_is_finished(c->files, c->paths[i]))
            return watch_gone(c->paths[i], err);
    return status;
}

int watch_collect(const struct collect_config *config, uint64_t now_ms, struct shard **ret,
                  struct collect_facts *ret_facts, struct err *err)
{
    struct watch watch = { .config = config };
    int status;

    do {
        watch_begin(&watch);
        status = collect_one(config, now_ms, ret, ret_facts, err);
    } while (watch_again(&watch, status));
    return watch_end(&watch, status, err);
}

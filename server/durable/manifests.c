#include "server/durable/manifests.h"

#include <errno.h>
#include <stdlib.h>

#include "common/mem.h"
#include "server/store/checkpoint.h"
#include "server/store/shelf.h"

struct walk {
    const struct file_ops *files;
    const char *data_dir;
    void (*visit)(void *arg, const struct manifests_item *item);
    void *arg;
    struct manifest *manifest;
};

static int visit(const struct walk *w, uint64_t number, bool is_aside, struct err *err)
{
    struct manifests_item item = { .number = number, .is_aside = is_aside };
    char dir[SHELF_PATH_MAX];
    int status = is_aside ? shelf_aside_path(w->data_dir, number, dir, err)
                          : shelf_number_path(w->data_dir, number, dir, err);

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

static int visit_all(const struct walk *w, const char *base, bool is_aside, struct err *err)
{
    struct shelf_numbers numbers;
    int status = is_aside ? shelf_list_aside(w->files, base, &numbers, err)
                          : shelf_list(w->files, base, &numbers, err);

    for (size_t i = 0; i < numbers.n && !status; i++)
        status = visit(w, numbers.items[i], is_aside, err);
    free(numbers.items);
    return status;
}

int manifests_each(const struct file_ops *files, const char *data_dir,
                   void (*visit_one)(void *arg, const struct manifests_item *item), void *arg,
                   struct err *err)
{
    struct walk w = { files, data_dir, visit_one, arg, mem_try_alloc(sizeof *w.manifest) };
    char base[SHELF_PATH_MAX];
    int status = w.manifest ? shelf_path(data_dir, base, err)
                            : err_set(err, -ENOMEM, "no memory to read manifests");

    if (!status)
        status = visit_all(&w, base, false, err);
    if (!status)
        status = visit_all(&w, base, true, err);
    free(w.manifest);
    return status;
}

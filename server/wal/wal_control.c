#include "server/wal/wal_control.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/crc32c.h"
#include "common/file_text.h"
#include "common/memory.h"

#define TEXT_MAX 512u
#define TAIL "crc32c "
#define TAIL_BYTES 16u /* with 8 digits and a newline */
#define TEMPORARY ".tmp"
#define MARK ".mark"
#define SLOT_BYTES 32u
#define SLOT_PLACE_BYTES 4096u /* a torn page leaves the other slot whole */

static const char mark_magic[8] = "PSDMARK";

int wal_control_path(const char *data_dir, uint32_t shard_index, char ret[static WAL_PATH_MAX],
                     struct err *err)
{
    int n = snprintf(ret, WAL_PATH_MAX, "%s/wal-%03" PRIu32 ".control", data_dir, shard_index);

    if (n < 0 || (size_t)n + sizeof TEMPORARY > WAL_PATH_MAX)
        return err_set(err, -ENAMETOOLONG, "%.100s...: the path is too long", data_dir);
    return 0;
}

static int fail(struct err *err, int status, const char *what, const char *path)
{
    return err_set(err, status, "the write-ahead log: cannot %s: %s: %s", what,
                   status_text(status), path);
}

/* --- writing --- */

int wal_control_write(const struct file_ops *files, const char *path,
                      const struct wal_control *c, struct err *err)
{
    char text[TEXT_MAX], tmp[WAL_PATH_MAX + sizeof TEMPORARY];
    int status, n = snprintf(text, sizeof text,
                             "psd wal control, format 1\nepoch %" PRIu64 "\nsegment %" PRIu64
                             "\ndurable %" PRIu64 "\n%s",
                             c->epoch, c->segment, c->durable, c->is_closed ? "closed\n" : "");

    if (c->mark && !c->is_closed)
        n += snprintf(text + n, sizeof text - (size_t)n, "mark %08" PRIx32 "\n", c->mark);
    n += snprintf(text + n, sizeof text - (size_t)n, TAIL "%08" PRIx32 "\n",
                  crc32c_extend(0, text, (size_t)n));
    snprintf(tmp, sizeof tmp, "%s" TEMPORARY, path);
    status = file_text_write(files, tmp, text, (size_t)n);
    if (!status)
        status = files->rename(files->state, tmp, path);
    return status ? fail(err, status, "write", path) : 0;
}

static int sync_name(const struct file_ops *files, const char *path, struct err *err)
{
    char dir[WAL_PATH_MAX];
    const char *slash = strrchr(path, '/');
    int status;

    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    status = files->sync_dir(files->state, dir);
    return status ? fail(err, status, "sync the directory", dir) : 0;
}

/* --- reading --- */

static bool parse(const char *text, size_t n_bytes, struct wal_control *ret)
{
    char tail[TAIL_BYTES + 1];
    size_t n = n_bytes - TAIL_BYTES;
    int end = 0;

    if (n_bytes < TAIL_BYTES)
        return false;
    snprintf(tail, sizeof tail, TAIL "%08" PRIx32 "\n", crc32c_extend(0, text, n));
    if (memcmp(tail, text + n, TAIL_BYTES) != 0)
        return false;
    if (sscanf(text,
               "psd wal control, format 1 epoch %" SCNu64 " segment %" SCNu64
               " durable %" SCNu64 " %n",
               &ret->epoch, &ret->segment, &ret->durable, &end) != 3 ||
        !end)
        return false;
    ret->is_closed = strncmp(text + end, "closed\n", 7) == 0;
    if (sscanf(text + end, "mark %8" SCNx32, &ret->mark) != 1)
        ret->mark = 0;
    return true;
}

/* What a slot says of this log; 0: nothing. */
static uint64_t read_slot(const uint8_t *slot, const struct wal_control *c)
{
    uint64_t numbers[2];
    uint32_t mark, crc;

    memcpy(numbers, slot + 8, sizeof numbers);
    memcpy(&mark, slot + 24, 4);
    memcpy(&crc, slot + 28, 4);
    if (memcmp(slot, mark_magic, sizeof mark_magic) != 0 || crc32c_extend(0, slot, 28) != crc ||
        numbers[0] != c->epoch || mark != c->mark)
        return 0;
    return numbers[1];
}

/* One that cannot be read says nothing. */
static void read_mark(const struct file_ops *files, const char *path, struct wal_control *c)
{
    char mark_path[WAL_PATH_MAX + sizeof MARK];
    struct bytes found = { 0 };
    const uint8_t *slots;

    if (!c->mark)
        return;
    snprintf(mark_path, sizeof mark_path, "%s" MARK, path);
    c->mark_status = file_text_read(files, mark_path, SLOT_PLACE_BYTES + SLOT_BYTES, &found);
    if (c->mark_status) {
        bytes_deinit(&found);
        return;
    }
    slots = found.bytes + found.start;
    for (size_t at = 0; at + SLOT_BYTES <= bytes_len(&found); at += SLOT_PLACE_BYTES) {
        uint64_t durable = read_slot(slots + at, c);

        c->durable = durable > c->durable ? durable : c->durable;
    }
    bytes_deinit(&found);
}

int wal_control_read(const struct file_ops *files, const char *path, struct wal_control *ret,
                     struct err *err)
{
    struct wal_control found = { 0 };
    struct bytes text = { 0 };
    int status = file_text_read(files, path, TEXT_MAX, &text);

    *ret = (struct wal_control){ 0 };
    if (!status && !parse((const char *)text.bytes + text.start, bytes_len(&text), &found))
        status = PS_ECORRUPT;
    bytes_deinit(&text);
    if (status == -ENOENT)
        return 0;
    if (status == PS_ECORRUPT || status == -EIO) /* of a sector: damage like any other */
        return err_set(err, PS_ECORRUPT,
                       "%s, so whether files of the write-ahead log are gone is not known: %s",
                       status == -EIO ? "cannot be read: Input/output error" : "damaged", path);
    if (status)
        return fail(err, status, "read", path);
    read_mark(files, path, &found);
    *ret = found;
    return 0;
}

int wal_control_check_mark(const struct wal_control *c, const char *path, struct err *err)
{
    char why[128] = "gone";

    if (!c->mark_status)
        return 0;
    if (c->mark_status != -ENOENT)
        snprintf(why, sizeof why, "cannot be read: %s", status_text(c->mark_status));
    return err_set(err, PS_ECORRUPT,
                   "%s, so whether acknowledged records behind %" PRIu64
                   " of the write-ahead log are missing is not known: %s" MARK,
                   why, c->durable, path);
}

/* --- those of all shards --- */

static int count(void *arg, const char *name)
{
    uint32_t *n = arg, shard;
    int end = 0;

    if (sscanf(name, "wal-%" SCNu32 ".control%n", &shard, &end) == 1 && end && !name[end] &&
        shard < WAL_CONTROL_N_MAX && shard >= *n)
        *n = shard + 1;
    return 0;
}

int wal_control_read_all(const struct file_ops *files, const char *data_dir,
                         void (*damaged)(void *arg, const char *sentence), void *arg,
                         struct wal_control **ret, uint32_t *ret_n, struct err *err)
{
    char path[WAL_PATH_MAX];
    int status;

    *ret = NULL;
    *ret_n = 0;
    status = files->list(files->state, data_dir, count, ret_n);
    if (status && status != -ENOENT)
        return err_set(err, status, "cannot list: %s: %.200s", status_text(status), data_dir);
    *ret = memory_alloc((*ret_n + 1) * sizeof **ret);
    status = 0;
    for (uint32_t i = 0; i < *ret_n && !status; i++) {
        struct err why;

        status = wal_control_path(data_dir, i, path, &why);
        if (!status)
            status = wal_control_read(files, path, &(*ret)[i], &why);
        if (!status)
            status = wal_control_check_mark(&(*ret)[i], path, &why);
        if (status == PS_ECORRUPT) {
            damaged(arg, why.text);
            status = 0;
        } else if (status && err) {
            *err = why;
        }
    }
    return status;
}

void wal_control_keep_newest(struct wal_control *all, uint32_t n, uint64_t epoch)
{
    for (uint32_t i = 0; i < n; i++)
        epoch = all[i].epoch > epoch ? all[i].epoch : epoch;
    for (uint32_t i = 0; i < n; i++)
        if (all[i].epoch < epoch)
            all[i] = (struct wal_control){ 0 };
}

bool wal_control_reset(struct wal_control *c, uint64_t first)
{
    if (!c->segment && c->durable < first)
        return false;
    *c = (struct wal_control){ .epoch = c->epoch,
                               .durable = c->durable < first ? c->durable : first - 1 };
    return true;
}

int wal_control_rewind(const struct file_ops *files, const char *path, uint64_t epoch,
                       uint64_t first, struct err *err)
{
    struct wal_control c;
    int status = wal_control_read(files, path, &c, err);

    if (status && status != PS_ECORRUPT)
        return status;
    if (!status && c.epoch != epoch)
        return 0;
    if (status)
        c = (struct wal_control){ .epoch = epoch };
    if (status || wal_control_reset(&c, first))
        status = wal_control_write(files, path, &c, err);
    /* Also where nothing is to change: the time before, syncing may have failed. */
    return status ? status : sync_name(files, path, err);
}

/* --- the mark --- */

int wal_control_mark_create(const struct file_ops *files, const char *path, int *ret_fd)
{
    char mark_path[WAL_PATH_MAX + sizeof MARK];
    int status;

    snprintf(mark_path, sizeof mark_path, "%s" MARK, path);
    status = files->create(files->state, mark_path, ret_fd);
    if (status)
        return status;
    status = sync_name(files, path, NULL);
    if (status)
        (void)files->close(files->state, *ret_fd);
    return status;
}

int wal_control_mark_write(const struct file_ops *files, int fd, const struct wal_control *c,
                           uint32_t n)
{
    const uint64_t numbers[] = { c->epoch, c->durable };
    uint8_t slot[SLOT_BYTES];
    uint32_t crc;

    memcpy(slot, mark_magic, sizeof mark_magic);
    memcpy(slot + 8, numbers, sizeof numbers);
    memcpy(slot + 24, &c->mark, 4);
    crc = crc32c_extend(0, slot, 28);
    memcpy(slot + 28, &crc, 4);
    return files->write_at(files->state, fd, (uint64_t)(n % 2) * SLOT_PLACE_BYTES, slot,
                           sizeof slot);
}

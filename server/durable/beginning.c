#include "server/durable/beginning.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/crc.h"
#include "common/mem.h"
#include "server/durable/epochs.h"

#define HEAD "psd epoch, format 1\nabove "
#define TOLD "told\n"
#define TAIL_BYTES 16u      /* crc32c 01234567 newline */
#define TEXT_MAX (1u << 20) /* what the settings can say is less */
#define PATH_BYTES (LOG_PATH_MAX + 24)

/* --- as text --- */

static void tail(char dst[static TAIL_BYTES + 1], const char *text, size_t n_bytes)
{
    snprintf(dst, TAIL_BYTES + 1, "crc32c %08" PRIx32 "\n", crc_extend(0, text, n_bytes));
}

/* To be freed; NULL without memory. */
static char *print(const struct beginning *b, size_t *ret_bytes)
{
    char *text = NULL, end[TAIL_BYTES + 1];
    FILE *out = open_memstream(&text, ret_bytes);

    if (!out)
        return NULL;
    fprintf(out, HEAD "%" PRIu64 "\n%s%s", b->above, b->was_told ? TOLD : "", b->told);
    fflush(out);
    tail(end, text, *ret_bytes);
    fprintf(out, "%s", end);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* False: these bytes are no such text. `text` is changed, and ended with NUL. */
static bool parse(char *text, size_t n_bytes, struct beginning *ret)
{
    char end[TAIL_BYTES + 1], *behind;
    size_t n = n_bytes - TAIL_BYTES;

    if (n_bytes < TAIL_BYTES + sizeof HEAD)
        return false;
    tail(end, text, n);
    if (memcmp(end, text + n, TAIL_BYTES) != 0 || strncmp(text, HEAD, sizeof HEAD - 1) != 0)
        return false;
    text[n] = '\0';
    ret->above = strtoull(text + sizeof HEAD - 1, &behind, 10);
    if (*behind++ != '\n')
        return false;
    ret->was_told = strncmp(behind, TOLD, sizeof TOLD - 1) == 0;
    ret->told = mem_alloc(n + 1);
    snprintf(ret->told, n + 1, "%s", behind + (ret->was_told ? sizeof TOLD - 1 : 0));
    return true;
}

/* --- as a file --- */

static int path_of(const char *data_dir, uint64_t epoch, char ret[static PATH_BYTES],
                   struct err *err)
{
    char dir[LOG_PATH_MAX];
    int status = epochs_dir(data_dir, epoch, dir, err);

    if (!status)
        snprintf(ret, PATH_BYTES, "%s/BEGINNING", dir);
    return status;
}

static int write_text(const struct file_ops *files, const char *path, const char *text,
                      size_t n_bytes)
{
    int fd, closed, status = files->create(files->state, path, &fd);

    if (status)
        return status;
    status = files->write_all(files->state, fd, text, n_bytes);
    if (!status)
        status = files->sync(files->state, fd);
    closed = files->close(files->state, fd);
    return status ? status : closed;
}

int beginning_write(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                    const struct beginning *b, struct err *err)
{
    char path[PATH_BYTES], tmp[PATH_BYTES + 8], dir[LOG_PATH_MAX], *text;
    size_t n_bytes;
    int status = epochs_dir(data_dir, epoch, dir, err);

    if (!status)
        status = path_of(data_dir, epoch, path, err);
    if (status)
        return status;
    text = print(b, &n_bytes);
    if (!text)
        return err_set(err, -ENOMEM, "no memory to write %s", path);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    status = write_text(files, tmp, text, n_bytes);
    free(text);
    if (!status)
        status = files->rename(files->state, tmp, path);
    if (!status)
        status = files->sync_dir(files->state, dir);
    return status ? err_set(err, status, "cannot write: %s: %s", status_text(status), path) : 0;
}

static int read_text(const struct file_ops *files, const char *path, struct buf *b)
{
    int64_t n = 1;
    int fd, status = files->open_read(files->state, path, &fd);

    if (status)
        return status;
    while (n > 0 && !status) {
        uint8_t *room = buf_reserve(b, 4096);

        n = room ? files->read(files->state, fd, room, 4096) : -ENOMEM;
        if (n > 0)
            buf_commit(b, (size_t)n);
        status = n < 0 ? (int)n : buf_len(b) > TEXT_MAX ? PS_ECORRUPT : 0;
    }
    (void)!files->close(files->state, fd);
    return status;
}

int beginning_read(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                   struct beginning *ret, struct err *err)
{
    char path[PATH_BYTES];
    struct buf text = { 0 };
    int status = path_of(data_dir, epoch, path, err);

    *ret = (struct beginning){ .above = epoch };
    if (status)
        return status;
    status = read_text(files, path, &text);
    if (!status && !parse((char *)text.bytes + text.start, buf_len(&text), ret))
        status = PS_ECORRUPT;
    buf_deinit(&text);
    if (status == PS_ECORRUPT)
        return err_set(err, status, "what the log's epoch began with is damaged: %s", path);
    if (status && status != -ENOENT)
        return err_set(err, status, "cannot read: %s: %s", status_text(status), path);
    if (!ret->told)
        ret->told = mem_alloc(1);
    return 0;
}

void beginning_deinit(struct beginning *b)
{
    free(b->told);
    b->told = NULL;
}

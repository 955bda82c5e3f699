#include "common/file_text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/crc32c.h"

#define READ_BYTES 4095u
#define PATH_BYTES 1200u

int file_text_write(const struct file_ops *files, const char *path, const char *text,
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

int file_text_read(const struct file_ops *files, const char *path, size_t max_bytes,
                   struct bytes *text)
{
    int64_t n = 1;
    int fd, status = files->open_read(files->state, path, &fd);

    if (status)
        return status;
    while (n > 0 && !status) {
        uint8_t *space = bytes_reserve(text, READ_BYTES + 1);

        n = space ? files->read(files->state, fd, space, READ_BYTES) : -ENOMEM;
        if (n > 0)
            bytes_commit(text, (size_t)n);
        status = n < 0 ? (int)n : bytes_len(text) > max_bytes ? PS_ECORRUPT : 0;
    }
    (void)files->close(files->state, fd);
    if (!status)
        text->bytes[text->end] = '\0'; /* the last round reserved it */
    return status;
}

int file_text_replace(const struct file_ops *files, const char *dir, const char *name,
                      const char *text, size_t n_bytes, struct err *err)
{
    char path[PATH_BYTES], tmp[PATH_BYTES + sizeof ".tmp"];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name), status;

    if (n < 0 || (size_t)n >= sizeof path)
        return err_set(err, -ENAMETOOLONG, "the path is too long: %.150s...", dir);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    status = file_text_write(files, tmp, text, n_bytes);
    if (!status)
        status = files->rename(files->state, tmp, path);
    if (!status)
        status = files->sync_dir(files->state, dir);
    return status ? err_set(err, status, "cannot write: %s: %s", status_text(status), path) : 0;
}

static void tail(char dst[static FILE_TEXT_TAIL_BYTES + 1], const char *text, size_t n_bytes)
{
    snprintf(dst, FILE_TEXT_TAIL_BYTES + 1, "crc32c %08" PRIx32 "\n",
             crc32c_extend(0, text, n_bytes));
}

size_t file_text_seal(char *text, size_t n_bytes)
{
    tail(text + n_bytes, text, n_bytes);
    return n_bytes + FILE_TEXT_TAIL_BYTES;
}

bool file_text_unseal(char *text, size_t n_bytes)
{
    char want[FILE_TEXT_TAIL_BYTES + 1];

    if (n_bytes < FILE_TEXT_TAIL_BYTES)
        return false;
    n_bytes -= FILE_TEXT_TAIL_BYTES;
    tail(want, text, n_bytes);
    if (memcmp(text + n_bytes, want, FILE_TEXT_TAIL_BYTES) != 0 || memchr(text, '\0', n_bytes))
        return false;
    text[n_bytes] = '\0';
    return true;
}

char *file_text_line(char **text, const char *words)
{
    const size_t n = strlen(words);
    char *rest = *text + n, *end;

    if (strncmp(*text, words, n) != 0)
        return NULL;
    end = strchr(rest, '\n');
    if (!end)
        return NULL;
    *end = '\0';
    *text = end + 1;
    return rest;
}

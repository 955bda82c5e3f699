#include "common/file_text.h"

#include <errno.h>

#include "common/status.h"

#define READ_BYTES 4095u

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

#include "tests/fuzz/text.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

void text_new(struct text *t, const void *bytes, size_t n_bytes)
{
    ssize_t n;

    t->fd = memfd_create("text", MFD_CLOEXEC);
    assert(t->fd >= 0);
    n = write(t->fd, bytes, n_bytes);
    assert(n >= 0 && (size_t)n == n_bytes);
    snprintf(t->path, sizeof t->path, "/proc/self/fd/%d", t->fd);
}

void text_free(struct text *t)
{
    close(t->fd);
}

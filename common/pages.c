#include "common/pages.h"

#ifdef PS_FAULTS

#include <stdlib.h>

#include "common/mem.h"

void *pages_alloc(size_t n_bytes)
{
    return mem_try_alloc(n_bytes);
}

void pages_from(pages_source *source)
{
    (void)source;
}

void pages_free(void *pages, size_t n_bytes)
{
    (void)n_bytes;
    free(pages);
}

void pages_touch(void *pages, size_t n_bytes)
{
    (void)pages, (void)n_bytes;
}

#else

#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20)

static pages_source *first_source;

static void *map(size_t n_bytes)
{
    void *pages =
        mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return pages == MAP_FAILED ? NULL : pages;
}

/* Maps a huge page more than asked for and gives back what lies before and behind the aligned
 * part. */
static void *map_aligned(size_t n_bytes)
{
    size_t whole = (n_bytes + 4095) & ~(size_t)4095, before;
    uint8_t *pages = map(whole + HUGE_BYTES);

    if (!pages)
        return NULL;
    before = (HUGE_BYTES - (uintptr_t)pages % HUGE_BYTES) % HUGE_BYTES;
    if (before)
        munmap(pages, before);
    if (before < HUGE_BYTES)
        munmap(pages + before + whole, HUGE_BYTES - before);
    (void)madvise(pages + before, whole, MADV_HUGEPAGE); /* advice: small pages do as well */
    return pages + before;
}

void pages_from(pages_source *source)
{
    first_source = source;
}

void *pages_alloc(size_t n_bytes)
{
    void *pages;

    if (n_bytes > SIZE_MAX / 2)
        return NULL;
    if (n_bytes < HUGE_BYTES)
        return map(n_bytes);
    pages = first_source ? first_source(n_bytes) : NULL;
    return pages ? pages : map_aligned(n_bytes);
}

void pages_free(void *pages, size_t n_bytes)
{
    if (pages)
        munmap(pages, n_bytes);
}

void pages_touch(void *pages, size_t n_bytes)
{
    uint8_t *at = pages;

    /* Piece by piece: meanwhile no other thread can map or unmap. Before Linux 5.14 nothing
     * happens. */
    for (size_t n; n_bytes; at += n, n_bytes -= n) {
        n = n_bytes < HUGE_BYTES ? n_bytes : HUGE_BYTES;
        (void)madvise(at, n, MADV_POPULATE_WRITE);
    }
}

#endif

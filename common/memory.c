#include "common/memory.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(block, n_bytes) ((void)(block), (void)(n_bytes))
#define ASAN_UNPOISON_MEMORY_REGION(block, n_bytes) ((void)(block), (void)(n_bytes))
#endif

#define PAGE_BYTES ((uintptr_t)4096)
#define HUGE_BYTES ((size_t)2 << 20)
#define LINE_BYTES ((size_t)64)

#ifdef PS_FAULTS
static _Thread_local long allocs_left = -1;
static _Thread_local bool is_exempt;
static _Atomic long any_left = -1, any_fail_left, any_failed; /* of all threads */

void memory_fail_after(long n_allocs)
{
    allocs_left = n_allocs;
}

void memory_exempt_this_thread(void)
{
    is_exempt = true;
}

void memory_fail_anywhere(long n_allocs, long n_fail)
{
    any_left = -1; /* while the others are set */
    any_fail_left = n_fail;
    any_failed = 0;
    any_left = n_allocs;
}

long memory_n_failed_anywhere(void)
{
    return any_failed;
}

/* Counts down to 0; false: it is there. */
static bool take_one(_Atomic long *left)
{
    long n = *left;

    while (n > 0 && !atomic_compare_exchange_weak(left, &n, n - 1))
        ;
    return n > 0;
}

static bool fault_anywhere(void)
{
    if (is_exempt || any_left < 0 || take_one(&any_left) || !take_one(&any_fail_left))
        return false;
    any_failed++;
    return true;
}

static bool fault(void)
{
    if (fault_anywhere())
        return true;
    if (allocs_left < 0)
        return false;
    if (allocs_left == 0)
        return true;
    allocs_left--;
    return false;
}
#else
static bool fault(void)
{
    return false;
}
#endif

/* Not exit(): other threads run. */
static _Noreturn void stop_without_memory(size_t n_bytes)
{
    if (n_bytes)
        fprintf(stderr, "out of memory asking for %zu bytes (ulimit -v, or the machine's)\n",
                n_bytes);
    else
        fprintf(stderr, "out of memory (ulimit -v, or the machine's)\n");
    _exit(1);
}

void *memory_alloc(size_t n_bytes)
{
    void *block = calloc(1, n_bytes ? n_bytes : 1);

    if (!block)
        stop_without_memory(n_bytes);
    return block;
}

void *memory_alloc_lines(size_t n_bytes)
{
    size_t whole = (n_bytes + LINE_BYTES - 1) & ~(LINE_BYTES - 1);
    void *block = aligned_alloc(LINE_BYTES, whole);

    if (!block)
        stop_without_memory(n_bytes);
    return memset(block, 0, whole);
}

void *memory_need(void *made)
{
    if (!made)
        stop_without_memory(0);
    return made;
}

void *memory_try_alloc(size_t n_bytes)
{
    return fault() ? NULL : calloc(1, n_bytes);
}

void *memory_try_realloc(void *block, size_t n_bytes)
{
    return fault() ? NULL : realloc(block, n_bytes);
}

void *memory_try_large(size_t n_bytes)
{
    size_t whole = n_bytes & ~(HUGE_BYTES - 1);
    void *block;

    if (!whole)
        return memory_try_realloc(NULL, n_bytes);
    if (fault() || posix_memalign(&block, HUGE_BYTES, n_bytes) != 0)
        return NULL;
    (void)madvise(block, whole, MADV_HUGEPAGE); /* advice: small pages do as well */
    return block;
}

void memory_map_large_blocks(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 4 << 20);
}

void memory_drop(uint8_t *bytes, size_t n_bytes)
{
    uint8_t *first = bytes + (PAGE_BYTES - (uintptr_t)bytes % PAGE_BYTES) % PAGE_BYTES;
    uint8_t *end = bytes + n_bytes - (uintptr_t)(bytes + n_bytes) % PAGE_BYTES;

    if (end > first)
        (void)madvise(first, (size_t)(end - first), MADV_DONTNEED); /* else it is freed later */
}

void memory_hide(void *block, size_t n_bytes)
{
    ASAN_POISON_MEMORY_REGION(block, n_bytes);
}

void memory_show(void *block, size_t n_bytes)
{
    ASAN_UNPOISON_MEMORY_REGION(block, n_bytes);
}

/* ---- large arrays ---- */

#ifdef PS_FAULTS

void *memory_map(size_t n_bytes)
{
    return memory_try_alloc(n_bytes);
}

void memory_map_from(memory_source *source)
{
    (void)source;
}

void memory_unmap(void *pages, size_t n_bytes)
{
    (void)n_bytes;
    free(pages);
}

void memory_populate(void *pages, size_t n_bytes)
{
    (void)pages, (void)n_bytes;
}

#else

static memory_source *first_source;

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

void memory_map_from(memory_source *source)
{
    first_source = source;
}

void *memory_map(size_t n_bytes)
{
    void *pages;

    if (n_bytes > SIZE_MAX / 2)
        return NULL;
    if (n_bytes < HUGE_BYTES)
        return map(n_bytes);
    pages = first_source ? first_source(n_bytes) : NULL;
    return pages ? pages : map_aligned(n_bytes);
}

void memory_unmap(void *pages, size_t n_bytes)
{
    if (pages)
        munmap(pages, n_bytes);
}

void memory_populate(void *pages, size_t n_bytes)
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

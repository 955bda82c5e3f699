#include "common/memory_reserve.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <uv.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"

#define PAGE_BYTES ((uint64_t)4096)
#define HUGE_BYTES ((uint64_t)2 << 20)

static struct {
    uint8_t *start;           /* NULL: there is none; set before other threads take */
    uint64_t n_bytes;         /* whole huge pages */
    _Atomic uint64_t n_taken; /* from the front */
} reserve;

/* ---- clearing ---- */

struct touching {
    uint8_t *start;
    uint64_t n_bytes;
    _Atomic uint64_t next; /* bytes from start; the first that no thread has in hand */
};

/* Writes, not MADV_POPULATE_WRITE, which Linux has since 5.14. */
static void touch(void *arg)
{
    struct touching *t = arg;
    uint64_t from;

    while ((from = atomic_fetch_add(&t->next, HUGE_BYTES)) < t->n_bytes)
        for (uint64_t at = from; at < from + HUGE_BYTES; at += PAGE_BYTES)
            *(volatile uint8_t *)(t->start + at) = 0;
}

/* A thread that cannot start is one fewer. */
static void touch_all(uint8_t *start, uint64_t n_bytes)
{
    struct touching t = { .start = start, .n_bytes = n_bytes };
    uv_thread_t threads[MEMORY_RESERVE_THREADS_MAX];
    uint32_t n = 0, n_others = uv_available_parallelism() - 1;

    while (n < n_others && n < MEMORY_RESERVE_THREADS_MAX &&
           uv_thread_create(&threads[n], touch, &t) == 0)
        n++;
    touch(&t);
    while (n)
        uv_thread_join(&threads[--n]);
}

/* ---- making ---- */

/* Without this the kernel would end some process once the memory is written to. */
static int check(uint64_t n_bytes, struct err *err)
{
    uint64_t there = uv_get_free_memory(), allowed = uv_get_constrained_memory();

    if (allowed && allowed < there)
        there = allowed;
    return n_bytes <= there
               ? 0
               : err_set(err, -ENOMEM,
                         "%.1f GiB of memory were to be reserved, but %.1f are there",
                         (double)n_bytes / (1u << 30), (double)there / (1u << 30));
}

/* On a huge page's border, or NULL. */
static uint8_t *map(uint64_t n_bytes)
{
    uint8_t *pages = mmap(NULL, n_bytes + HUGE_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t before;

    if (pages == MAP_FAILED)
        return NULL;
    before = (HUGE_BYTES - (uintptr_t)pages % HUGE_BYTES) % HUGE_BYTES;
    if (before)
        munmap(pages, before);
    munmap(pages + before + n_bytes, HUGE_BYTES - before);
    (void)madvise(pages + before, n_bytes, MADV_HUGEPAGE); /* advice: small pages do as well */
    return pages + before;
}

int memory_reserve_init(uint64_t n_bytes, struct err *err)
{
    const uint64_t whole = (n_bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1),
                   began_ms = clock_mono_ms();
    int status = n_bytes ? check(whole, err) : 0;

    if (status || !n_bytes)
        return status;
    reserve.start = map(whole);
    if (!reserve.start)
        return err_set(err, -ENOMEM, "%.1f GiB of memory cannot be reserved: %s",
                       (double)n_bytes / (1u << 30), status_text(-errno));
    touch_all(reserve.start, whole);
    reserve.n_bytes = whole;
    atomic_store(&reserve.n_taken, 0);
    memory_map_from(memory_reserve_acquire);
    log_line_info("%.1f GiB of memory reserved in %.1f s", (double)whole / (1u << 30),
                  (double)(clock_mono_ms() - began_ms) * 1e-3);
    return 0;
}

void memory_reserve_deinit(void)
{
    uint64_t n_left = memory_reserve_left();

    memory_map_from(NULL);
    if (n_left)
        munmap(reserve.start + reserve.n_bytes - n_left, n_left);
    reserve.start = NULL;
    reserve.n_bytes = 0;
}

/* ---- taking ---- */

void *memory_reserve_acquire(size_t n_bytes)
{
    uint64_t n_whole = (n_bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1), n_taken;

    if (!reserve.start)
        return NULL;
    n_taken = atomic_load(&reserve.n_taken);
    do {
        if (n_whole > reserve.n_bytes - n_taken)
            return NULL;
    } while (!atomic_compare_exchange_weak(&reserve.n_taken, &n_taken, n_taken + n_whole));
    return reserve.start + n_taken;
}

uint64_t memory_reserve_left(void)
{
    return reserve.start ? reserve.n_bytes - atomic_load(&reserve.n_taken) : 0;
}

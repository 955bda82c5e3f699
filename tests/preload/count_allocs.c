/*
 * A library for LD_PRELOAD that counts, by caller, how often a process asks for memory. Where the environment names
 * a file in PS_ALLOCS, it gets a line for each caller when the process ends:
 *
 *     count bytes name-of-the-thread frame frame ...       a frame: FILE+0xOFFSET, the innermost first
 *
 * Frees are not counted: what is asked for anew in each step is what costs. tests/system/allocations.py reads the file, and
 * gives the frames their names.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FRAMES_MAX 24
#define OWN_FRAMES 2 /* note() and the function that stands in for the allocator's */
#define CALLERS_MAX 16384u
#define EXPORT __attribute__((visibility("default"), noinline))

void *__libc_malloc(size_t n_bytes);
void *__libc_calloc(size_t n, size_t n_bytes);
void *__libc_realloc(void *block, size_t n_bytes);
void *__libc_memalign(size_t alignment, size_t n_bytes);

struct caller {
    uint64_t count, bytes;
    char thread[16];
    int n_frames;
    void *frames[FRAMES_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct caller
    callers[CALLERS_MAX];    /* a hash table, by frames and thread; count 0: free */
static uint64_t n_uncounted; /* for want of room */
static atomic_bool counts;
/* What the unwinder asks for itself does not count. */
static __attribute__((tls_model("initial-exec"))) _Thread_local bool inside;

static bool is_same(const struct caller *c, const char *thread, void *const *frames, int n)
{
    return c->n_frames == n && memcmp(c->frames, frames, (size_t)n * sizeof *frames) == 0 &&
           strcmp(c->thread, thread) == 0;
}

/* The caller's place, or NULL. */
static struct caller *find(const char *thread, void *const *frames, int n)
{
    uint64_t hash = 0;

    for (int i = 0; i < n; i++)
        hash = (hash ^ (uintptr_t)frames[i]) * UINT64_C(0x9e3779b97f4a7c15);
    for (uint32_t i = 0; i < CALLERS_MAX; i++) {
        struct caller *c = &callers[((hash >> 32) + i) % CALLERS_MAX];

        if (!c->count || is_same(c, thread, frames, n))
            return c;
    }
    return NULL;
}

static void add(const char *thread, void *const *frames, int n, size_t n_bytes)
{
    struct caller *c;

    pthread_mutex_lock(&lock);
    c = find(thread, frames, n);
    if (c) {
        if (!c->count) {
            memcpy(c->frames, frames, (size_t)n * sizeof *frames);
            memcpy(c->thread, thread, sizeof c->thread);
            c->n_frames = n;
        }
        c->count++;
        c->bytes += n_bytes;
    } else {
        n_uncounted++;
    }
    pthread_mutex_unlock(&lock);
}

static __attribute__((noinline)) void note(size_t n_bytes)
{
    void *frames[FRAMES_MAX + OWN_FRAMES];
    char thread[16] = "";
    int error = errno, n;

    if (inside || !atomic_load_explicit(&counts, memory_order_relaxed))
        return;
    inside = true;
    n = backtrace(frames, FRAMES_MAX + OWN_FRAMES);
    pthread_getname_np(pthread_self(), thread, sizeof thread);
    if (n > OWN_FRAMES)
        add(thread, frames + OWN_FRAMES, n - OWN_FRAMES, n_bytes);
    inside = false;
    errno = error;
}

/* ---- in the allocator's place ---- */

EXPORT void *malloc(size_t n_bytes)
{
    note(n_bytes);
    return __libc_malloc(n_bytes);
}

EXPORT void *calloc(size_t n, size_t n_bytes)
{
    note(n * n_bytes);
    return __libc_calloc(n, n_bytes);
}

EXPORT void *realloc(void *block, size_t n_bytes)
{
    note(n_bytes);
    return __libc_realloc(block, n_bytes);
}

EXPORT void *memalign(size_t alignment, size_t n_bytes)
{
    note(n_bytes);
    return __libc_memalign(alignment, n_bytes);
}

EXPORT void *aligned_alloc(size_t alignment, size_t n_bytes)
{
    note(n_bytes);
    return __libc_memalign(alignment, n_bytes);
}

EXPORT int posix_memalign(void **ret, size_t alignment, size_t n_bytes)
{
    void *block;

    note(n_bytes);
    block = __libc_memalign(alignment, n_bytes);
    if (!block)
        return ENOMEM;
    *ret = block;
    return 0;
}

/* The C library's own calls, for large blocks and stacks, do not come this way. */
EXPORT void *mmap(void *at, size_t n_bytes, int protection, int flags, int fd, off_t offset)
{
    note(n_bytes);
    return (void *)syscall(SYS_mmap, at, n_bytes, protection, flags, fd, offset);
}

/* ---- start and end ---- */

static void __attribute__((constructor)) start(void)
{
    void *frames[2];

    (void)backtrace(frames, 2); /* loads the unwinder */
    atomic_store(&counts, getenv("PS_ALLOCS") != NULL);
}

static void write_frame(FILE *out, void *frame)
{
    Dl_info where;

    if (dladdr(frame, &where) && where.dli_fname)
        fprintf(out, " %s+0x%tx", where.dli_fname, (char *)frame - (char *)where.dli_fbase);
    else
        fprintf(out, " ?+%p", frame);
}

static void __attribute__((destructor)) end(void)
{
    const char *path = getenv("PS_ALLOCS");
    FILE *out;

    if (!atomic_exchange(&counts, false) || !(out = fopen(path, "w")))
        return;
    for (uint32_t i = 0; i < CALLERS_MAX; i++) {
        const struct caller *c = &callers[i];

        if (!c->count)
            continue;
        fprintf(out, "%" PRIu64 " %" PRIu64 " %s", c->count, c->bytes, c->thread);
        for (int k = 0; k < c->n_frames; k++)
            write_frame(out, c->frames[k]);
        fputc('\n', out);
    }
    if (n_uncounted)
        fprintf(out, "%" PRIu64 " 0 full ?+0x0\n", n_uncounted);
    fclose(out);
}

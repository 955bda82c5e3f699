#include "tests/emu/memory.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define __asan_poison_memory_region(memory, n_bytes) ((void)(memory), (void)(n_bytes))
#define __asan_unpoison_memory_region(memory, n_bytes) ((void)(memory), (void)(n_bytes))
#endif

struct piece {
    struct piece *next;
    enum emu_memory_side side;
    int device;
    unsigned char *bytes;
    size_t n_bytes;
};

/* Pinned memory is asked for by any thread. */
static struct {
    pthread_mutex_t lock;
    struct piece *pieces;
    long alive;
} state = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void lock(void)
{
    (void)pthread_mutex_lock(&state.lock);
}

static void unlock(void)
{
    (void)pthread_mutex_unlock(&state.lock);
}

void *emu_memory_new(enum emu_memory_side side, int device, size_t n_bytes)
{
    struct piece *p = malloc(sizeof *p);

    assert(p);
    *p = (struct piece){ NULL, side, device, aligned_alloc(256, (n_bytes + 255) / 256 * 256),
                         n_bytes };
    assert(p->bytes);
    memset(p->bytes, 0xff, (n_bytes + 255) / 256 * 256);
    lock();
    p->next = state.pieces;
    state.pieces = p;
    state.alive++;
    unlock();
    if (side == EMU_MEMORY_DEVICE)
        __asan_poison_memory_region(p->bytes, (n_bytes + 255) / 256 * 256);
    return p->bytes;
}

void emu_memory_free(enum emu_memory_side side, void *memory)
{
    struct piece **at = &state.pieces, *p;

    lock();
    while (*at && !((*at)->bytes == memory && (*at)->side == side))
        at = &(*at)->next;
    assert(*at);
    p = *at;
    *at = p->next;
    state.alive--;
    unlock();
    __asan_unpoison_memory_region(p->bytes, (p->n_bytes + 255) / 256 * 256);
    free(p->bytes);
    free(p);
}

bool emu_memory_is_device(int device, const void *memory, size_t n_bytes)
{
    const unsigned char *bytes = memory;
    bool is = false;

    lock();
    for (const struct piece *p = state.pieces; p && !is; p = p->next)
        is = p->side == EMU_MEMORY_DEVICE && p->device == device && bytes >= p->bytes &&
             bytes + n_bytes <= p->bytes + p->n_bytes;
    unlock();
    return is;
}

bool emu_memory_touches_device(const void *memory, size_t n_bytes)
{
    const unsigned char *bytes = memory;
    bool touches = false;

    lock();
    for (const struct piece *p = state.pieces; p && !touches; p = p->next)
        touches = p->side == EMU_MEMORY_DEVICE && bytes < p->bytes + p->n_bytes &&
                  p->bytes < bytes + n_bytes;
    unlock();
    return touches;
}

void emu_memory_open(int device)
{
    lock();
    for (struct piece *p = state.pieces; p; p = p->next)
        if (p->side == EMU_MEMORY_DEVICE && p->device == device)
            __asan_unpoison_memory_region(p->bytes, p->n_bytes);
    unlock();
}

void emu_memory_close(void)
{
    lock();
    for (struct piece *p = state.pieces; p; p = p->next)
        if (p->side == EMU_MEMORY_DEVICE)
            __asan_poison_memory_region(p->bytes, p->n_bytes);
    unlock();
}

long emu_memory_alive(void)
{
    return state.alive;
}

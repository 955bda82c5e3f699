#include "worker/batch_memory.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "common/memory.h"

#define BITS_MIN 6u /* of a size: space for a struct kept */
#define BITS_END 48u

/* A block that is with nobody. */
struct kept {
    struct kept *next;
};

struct batch_memory {
    struct dlrm *model; /* borrowed */
    struct batch_allocator ops;
    pthread_mutex_t
        lock; /* the thread of a loader grows arrays, its owner makes and ends them */
    struct kept *kept[BITS_END]; /* of 2^i bytes */
    uint64_t n_out;              /* blocks that are with somebody */
};

/* BITS_END: no memory is that large. */
static unsigned bits_of(size_t n_bytes)
{
    unsigned bits = BITS_MIN;

    while (bits < BITS_END && (size_t)1 << bits < n_bytes)
        bits++;
    return bits;
}

static void *pop_pooled(struct batch_memory *m, unsigned bits)
{
    struct kept *block = m->kept[bits];

    if (block)
        m->kept[bits] = block->next;
    return block;
}

static void *alloc(void *arg, size_t n_bytes)
{
    const unsigned bits = bits_of(n_bytes);
    struct batch_memory *m = arg;
    void *block;

    if (bits == BITS_END)
        return NULL;
    pthread_mutex_lock(&m->lock);
    block = pop_pooled(m, bits);
    if (!block)
        block = dlrm_host_alloc(m->model, (size_t)1 << bits);
    m->n_out += block != NULL;
    pthread_mutex_unlock(&m->lock);
    return block;
}

static void release(void *arg, void *memory, size_t n_bytes)
{
    const unsigned bits = bits_of(n_bytes);
    struct batch_memory *m = arg;
    struct kept *block = memory;

    pthread_mutex_lock(&m->lock);
    block->next = m->kept[bits];
    m->kept[bits] = block;
    m->n_out--;
    pthread_mutex_unlock(&m->lock);
}

struct batch_memory *batch_memory_new(struct dlrm *model)
{
    struct batch_memory *m = memory_alloc(sizeof *m);

    m->model = model;
    m->ops = (struct batch_allocator){ alloc, release, m };
    pthread_mutex_init(&m->lock, NULL);
    return m;
}

void batch_memory_free(struct batch_memory *m)
{
    if (!m)
        return;
    assert(m->n_out == 0);
    for (unsigned bits = BITS_MIN; bits < BITS_END; bits++) {
        void *block;

        while ((block = pop_pooled(m, bits)) != NULL)
            dlrm_host_free(m->model, block, (size_t)1 << bits);
    }
    pthread_mutex_destroy(&m->lock);
    free(m);
}

const struct batch_allocator *batch_memory_of_batches(const struct batch_memory *m)
{
    return &m->ops;
}

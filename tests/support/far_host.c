#include "tests/support/far_host.h"

#include <stdlib.h>

#include "common/memory.h"

void far_host_init(struct far_host *h)
{
    *h = (struct far_host){ 0 };
    pthread_mutex_init(&h->lock, NULL);
}

size_t far_host_deinit(struct far_host *h)
{
    pthread_mutex_destroy(&h->lock);
    for (uint32_t i = 0; i < FAR_HOST_BLOCKS_MAX; i++)
        if (h->blocks[i].at)
            return h->blocks[i].n_bytes;
    return 0;
}

/* The one that holds these bytes, or NULL. Under the lock. */
static struct far_host_block *find(struct far_host *h, const void *host, size_t n_bytes)
{
    for (uint32_t i = 0; i < FAR_HOST_BLOCKS_MAX; i++) {
        struct far_host_block *b = &h->blocks[i];
        const size_t at = (uintptr_t)host - (uintptr_t)b->at;

        if (b->at && at <= b->n_bytes && n_bytes <= b->n_bytes - at)
            return b;
    }
    return NULL;
}

void *far_host_alloc(struct far_host *h, size_t n_bytes)
{
    uint8_t *memory = memory_try_alloc(n_bytes);
    uint32_t i = 0;

    if (!memory)
        return NULL;
    pthread_mutex_lock(&h->lock);
    while (i < FAR_HOST_BLOCKS_MAX && h->blocks[i].at)
        i++;
    if (i < FAR_HOST_BLOCKS_MAX)
        h->blocks[i] = (struct far_host_block){ memory, n_bytes };
    pthread_mutex_unlock(&h->lock);
    if (i < FAR_HOST_BLOCKS_MAX)
        return memory;
    free(memory);
    return NULL;
}

bool far_host_free(struct far_host *h, void *memory, size_t n_bytes)
{
    struct far_host_block *b;
    bool is_one;

    pthread_mutex_lock(&h->lock);
    b = find(h, memory, n_bytes);
    is_one = b && b->at == memory && b->n_bytes == n_bytes;
    if (is_one)
        *b = (struct far_host_block){ 0 };
    pthread_mutex_unlock(&h->lock);
    if (is_one)
        free(memory);
    return is_one;
}

bool far_host_has(struct far_host *h, const void *host, size_t n_bytes)
{
    bool has;

    pthread_mutex_lock(&h->lock);
    has = find(h, host, n_bytes) != NULL;
    pthread_mutex_unlock(&h->lock);
    return has;
}

uint64_t far_host_hash(const void *host, size_t n_bytes)
{
    const uint8_t *bytes = host;
    uint64_t hash = n_bytes;

    for (size_t i = 0; i < n_bytes; i++)
        hash = hash * UINT64_C(0x100000001b3) + bytes[i];
    return hash;
}

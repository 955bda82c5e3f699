/* The far device's memory of the host (far_device.h): blocks, asked for and given back by any thread. Private to it. */
#ifndef TESTS_SUPPORT_FAR_HOST_H
#define TESTS_SUPPORT_FAR_HOST_H

#include <pthread.h>
#include <stdbool.h>

#include "common/base.h"

enum { FAR_HOST_BLOCKS_MAX = 256 };

struct far_host {
    pthread_mutex_t lock;
    struct far_host_block {
        uint8_t *at; /* owned */
        size_t n_bytes;
    } blocks[FAR_HOST_BLOCKS_MAX];
};

void far_host_init(struct far_host *h);

/* Bytes of a block that was not given back, or 0. */
size_t far_host_deinit(struct far_host *h);

/* NULL: there is no memory, or are too many blocks. */
void *far_host_alloc(struct far_host *h, size_t n_bytes);

/* False: it is no such block. */
bool far_host_free(struct far_host *h, void *memory, size_t n_bytes);

/* Of n_bytes, to know them again by. */
uint64_t far_host_hash(const void *host, size_t n_bytes);

/* Are all these bytes of one block? */
bool far_host_has(struct far_host *h, const void *host, size_t n_bytes);

#endif

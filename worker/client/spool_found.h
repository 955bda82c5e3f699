/*
 * What a process finds of the pushes that one before it has kept (spool.h): the segments of this
 * worker, in order, and what they tell together.
 */
#ifndef WORKER_CLIENT_SPOOL_FOUND_H
#define WORKER_CLIENT_SPOOL_FOUND_H

#include "common/file.h"
#include "worker/client/spool_format.h"

#define SPOOL_PATH_MAX 1024u

/* Whose, and where. */
struct spool_options {
    const struct file_ops *files; /* borrowed, as all here */
    const char *dir, *job;
    uint32_t rank;
    uint64_t incarnation;   /* of a worker that finds nothing to go on from */
    uint64_t segment_bytes; /* a new one begins behind so many; 0: 8 MiB */
    void (*notice)(void *arg, const char *sentence);
    void *notice_arg;
};

struct spool_found {
    uint64_t oldest, newest;  /* numbers of the segments; 1 and 0 if there are none */
    uint64_t incarnation;     /* 0: nothing to go on from */
    uint64_t last_seq;        /* of the last push that was kept, or 0 */
    struct spool_push *first; /* owned by whoever gets it; in order */
};

/* -ENAMETOOLONG. */
int spool_found_path(const char *dir, const char *job, uint32_t rank, uint64_t number,
                     char ret[SPOOL_PATH_MAX]) MUST_CHECK;

/* Reads all of them. What is damaged, or does not belong together, is told (options->notice), and
 * *ret has the numbers of the segments alone. PS_ESPEC, -errno, -ENOMEM as spool_open(). */
int spool_found_read(const struct spool_options *options, struct spool_found *ret,
                     struct err *err) MUST_CHECK;

#endif

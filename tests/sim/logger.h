/*
 * A shard's push log in a simulated process: queue, recorder and writer are the product's; the thread
 * (server/log/log_thread.c) and the replies that wait (server/acks.c) are played here, event by event.
 *
 *     append -> [wait for the writer] -> take, work (files) -> [the disk takes its time] -> tell -> replies
 *
 * So what the shard does while the disk is busy comes between. All that is told is told to the twin, too.
 */
#ifndef TESTS_SIM_LOGGER_H
#define TESTS_SIM_LOGGER_H

#include "server/durable/recorder.h"
#include "server/log/log_writer.h"
#include "tests/sim/disk.h"
#include "tests/sim/world.h"

struct ack {
    uint64_t number;
    struct net_connection *to;
    struct message message;
};

struct logger {
    struct world *world; /* borrowed, as all here */
    struct shard_book *book;
    struct disk *disk;
    uint32_t shard;
    uint64_t life; /* 0: no process is there */

    struct recorder recorder;
    struct log_queue queue;
    struct log_writer *writer; /* owned */
    bool is_busy;              /* the disk */
    bool wants_sync;
    uint64_t sync_to; /* a wish that has not come true; 0: none */
    uint64_t cut;     /* 0: none is wished */
    struct ack *acks; /* owned: in order */
    uint32_t n_acks, cap_acks;
};

/* Opens the log behind *end. What log_writer_open() answers. */
int logger_start(struct logger *l, uint64_t life, const char *dir,
                 const struct log_identity *identity, const struct log_end *end,
                 struct err *err) MUST_CHECK;
/* The process is gone. */
void logger_stop(struct logger *l);

/* A reply that promises what has happened so far. */
void logger_answer(struct logger *l, struct net_connection *to, const struct message *m);
void logger_drop(struct logger *l, const struct net_connection *to);

/* As log_thread_sync(), and mend and cut when a checkpoint is safe. */
void logger_sync(struct logger *l, uint64_t number);
void logger_saved(struct logger *l, uint64_t first, uint64_t needed);

/* Is the log from record `first` + 1 through `through` on the disk? 0, -EAGAIN, or it never will be. */
int logger_await(const struct logger *l, uint64_t first, uint64_t through) MUST_CHECK;

#endif

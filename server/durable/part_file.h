/*
 * One shard's file of a checkpoint being written: a head made beforehand, then chunks, then the footer. For
 * saver.c alone; the format is part.h's.
 */
#ifndef SERVER_DURABLE_PART_FILE_H
#define SERVER_DURABLE_PART_FILE_H

#include "common/file.h"
#include "server/store/checkpoint.h"

/* A chunk in a buffer: its n_bytes stand at `at`, behind PART_CHUNK_BYTES for its head. */
struct part_file_chunk {
    struct part_chunk chunk;
    size_t at;
};

struct part_file {
    const struct file_ops *files; /* borrowed */
    char path[CHECKPOINT_FILE_PATH_MAX];
    uint8_t *head; /* owned: header and table records */
    size_t head_bytes;
    int fd;       /* -1: none is open */
    bool is_made; /* with its head */
    struct part_facts facts;
    struct part_footer totals; /* of what is written */
    uint64_t n_synced;         /* so many of the bytes are on the disk */
    struct err fault;          /* the first; status 0: none */
};

/* `path` is the caller's to fill in. */
void part_file_init(struct part_file *f, const struct file_ops *files);

/* Room for the header and n_tables records. -ENOMEM */
int part_file_reserve(struct part_file *f, uint32_t n_tables) MUST_CHECK;

/* Encodes the header; returns where its records stand, which the caller fills in before anything is written. */
uint8_t *part_file_begin(struct part_file *f, const struct part_header *header);

/* Chunks, one behind the other in `bytes`; their heads are filled in. A failure stays: it is told again by every
 * later call. */
int part_file_write(struct part_file *f, const struct part_file_chunk *chunks,
                    uint32_t n_chunks, uint8_t *bytes, size_t n_bytes, struct err *err)
    MUST_CHECK;

/* Footer, sync, close. After a failure the file is discarded. */
int part_file_close(struct part_file *f, uint64_t through, uint64_t last_version,
                    struct part_facts *ret, struct err *err) MUST_CHECK;

/* Closes and removes it, if it is there. */
void part_file_discard(struct part_file *f);

void part_file_deinit(struct part_file *f);

#endif

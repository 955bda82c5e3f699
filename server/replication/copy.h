/*
 * A copy of a primary's newest restore point in a standby's data directory, under the same names. The primary lists its
 * files, those that others need first:
 *
 *     log/EPOCH/BEGINNING                    of the timeline, if it has one
 *     checkpoints/NUMBER/shard-III.psc ...   of the oldest checkpoint of the chain,
 *     checkpoints/NUMBER/MANIFEST            which counts from here on; then of the next one
 *
 * Each file is written beside its name, synced, and renamed. So what an interrupted copy has left is no restore point
 * that could be taken for a whole one, and the next copy removes it. What the files hold is checked when they are
 * loaded.
 *
 *     copy_prepare()           the directory has no data any more
 *     copy_list()              as the primary sent it
 *     copy_next(), copy_add()  piece by piece, until copy_is_whole(); one may be asked for while one is added
 *     copy_deinit()            also after a failure
 *
 * All but copy_next() may take long: of a thread of libuv's pool. copy_next() is the asking thread's.
 */
#ifndef SERVER_REPLICATION_COPY_H
#define SERVER_REPLICATION_COPY_H

#include <stdbool.h>

#include "common/file.h"
#include "common/status.h"
#include "proto/message_replication.h"

#define COPY_PIECE_BYTES (1u << 20)
#define COPY_FILES_MAX 65536u

struct copy_file {
    char name[MESSAGE_FILE_NAME_MAX];
    uint64_t n_bytes;
};

struct copy {
    const struct file_ops *files; /* borrowed */
    const char *data_dir;         /* borrowed */
    struct copy_file *items;      /* owned */
    uint32_t n, at;               /* files; the one under way */
    uint64_t offset;              /* in it */
    uint32_t piece_bytes;         /* of a file, in one answer */
    uint32_t asked;               /* the asking thread's: the file that is asked for next, */
    uint64_t asked_offset;        /* and where in it */
    int fd;                       /* of it; -1: not open */
    uint64_t n_bytes, n_total_bytes;
};

/* Archives the checkpoints and logs that are there (`keeps`; as a start does with what it does not use), or removes
 * them; and the logs' control files. Statuses of the file system. */
int copy_prepare(const struct file_ops *files, const char *data_dir, bool keeps,
                 struct err *err) MUST_CHECK;

void copy_init(struct copy *c, const struct file_ops *files, const char *data_dir);
void copy_deinit(struct copy *c);

/* Lines "BYTES NAME". PS_EPROTO and a sentence: no list, or names that are none of the above; -ENOMEM. */
int copy_list(struct copy *c, const char *text, size_t n_bytes, struct err *err) MUST_CHECK;

/* What to ask for; false: all is asked for. */
bool copy_next(struct copy *c, struct file_request *ret);

static inline bool copy_is_whole(const struct copy *c)
{
    return c->at == c->n;
}

/* The answers, in the order of questions. PS_EPROTO: it does not fit; statuses of the file system, with a sentence. */
int copy_add(struct copy *c, const struct file_reply *reply, struct err *err) MUST_CHECK;

/* The primary's side: how fast pieces go while it serves clients too. Two cores that a copy has for itself answer pulls
 * milliseconds later. */
#define COPY_BYTES_PER_MS 300000u

struct copy_pace {
    uint64_t next_ns; /* when what has been sent is paid for; 0: nothing has */
};

/* So long after now_ns the next piece may be read, of n_bytes at most; 0: it is read now, and counts. What a timer's
 * milliseconds are too long or too short for evens out. */
static inline uint64_t copy_pace_wait_ms(struct copy_pace *p, uint64_t now_ns, uint32_t n_bytes)
{
    if (p->next_ns > now_ns && (p->next_ns - now_ns) / 1000000)
        return (p->next_ns - now_ns) / 1000000;
    if (p->next_ns < now_ns)
        p->next_ns = now_ns;
    p->next_ns += (uint64_t)n_bytes * 1000000 / COPY_BYTES_PER_MS;
    return 0;
}

#endif

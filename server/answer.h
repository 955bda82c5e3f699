/*
 * One pull on its way to its answer, which is made in the buffer that goes to the socket: at
 * once, or a slice at a time (shard.h).
 *
 *     answer_begin -> answer_more ... -> sent, or refused
 *
 * A long one leaves in parts, if its client understands that: each slice as soon as it is made, while
 * the cache has it, in a frame whose sum stands behind it. It cannot be refused once it has begun to
 * leave; so its keys are read, and refused, before. Nothing else is delivered on its connection
 * meanwhile, and no slice is made while much of those before has still to be written.
 *
 *     answer_begin -> answer_more ... : keys -> answer_more, [ANSWER_WAITS] ... : parts -> sent
 */
#ifndef SERVER_ANSWER_H
#define SERVER_ANSWER_H

#include "server/admin/report.h"
#include "server/core/shard.h"
#include "server/request.h"

/* What is the same for all of a shard's answers. */
struct answer_desk {
    struct shard *shard; /* borrowed */
    uint32_t frame_max_bytes;
    bool compress;
    struct report_requests *requests; /* borrowed: the counters of pulls */
    struct err last_refusal;
    struct answer *spare; /* owned: done with, for the next ones */
    uint32_t n_spares;
};

enum answer_state {
    ANSWER_WHOLE,   /* it is sent when all of it is made */
    ANSWER_KEYS,    /* it will leave in parts: its keys are being read */
    ANSWER_LEAVING, /* the next part can be made */
    ANSWER_WAITS    /* for its client to read those before: answer_can_go_on() */
};

struct answer {
    struct answer *next;
    enum answer_state state;
    struct connection *connection; /* borrowed; its owner is told before it goes */
    uint64_t request_id, start_ns;
    uint64_t since_ms, until_ms; /* parked, by the loop's clock */
    uint64_t job_run;            /* of the worker's job, when the answer was begun */
    struct worker *worker;       /* borrowed, like all of the roster's; NULL: a reader */
    bool holds;                  /* its connection, from its beginning until it is answered */
    struct buf body;             /* owned: the keys, if they do not stand in a held frame */
    struct buf unpacked;         /* owned: the same, of a compressed body */
    struct buf out;              /* owned: the reply being made, or its next part */
    struct buf known;            /* owned: u64, its keys, if it leaves in parts */
    size_t part_bytes;           /* of values in a part, at most */
    struct frame_crc crc;        /* of it, as far as it is made */
    uint64_t reached_bytes;      /* answer_is_alive()'s */
    struct pull pull;
    struct shard_pull_run run;
};

/* A new one, or one that was put by. NULL if there is no memory. */
struct answer *answer_take(struct answer_desk *desk) MUST_CHECK;

/* Done with: kept for the next one with its memory, if that is not much, or freed. */
void answer_put_by(struct answer_desk *desk, struct answer *a);

/* Also while it is under way. */
void answer_free(struct answer *a);

/* Frees those that were put by. */
void answer_desk_deinit(struct answer_desk *desk);

/* Begins to read the rows of a->pull. Not 0: why it is refused; nothing is to be undone. */
int answer_begin(struct answer_desk *desk, struct answer *a, struct err *err)
    ON_SHARD MUST_CHECK;

/* One slice more, and at the end the reply. *ret_done: it has been answered, or refused. Not 0:
 * the connection cannot go on. Not for one that ANSWER_WAITS. */
int answer_more(struct answer_desk *desk, struct answer *a, bool *ret_done) ON_SHARD MUST_CHECK;

/* Some of what it waits for has been written: true if that is enough. */
bool answer_can_go_on(struct answer *a);

/* To be asked now and then. Is it for us to go on, or has its client read some of it since the last time? */
bool answer_is_alive(struct answer *a);

/* Has some of it left, so that it can neither be refused nor dropped without its connection? */
bool answer_has_left(const struct answer *a);

/* Says no instead; lets go of the connection. As above. */
int answer_refuse(struct answer_desk *desk, struct answer *a, int told, const char *sentence)
    ON_SHARD MUST_CHECK;

#endif

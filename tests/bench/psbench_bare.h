/*
 * One end of a bare connection: counts the bytes of messages that come, and writes messages whose
 * bytes mean nothing.
 *
 *     message: [ its length u32 | length of the answer u32 | anything ]
 */
#ifndef TESTS_BENCH_PSBENCH_BARE_H
#define TESTS_BENCH_PSBENCH_BARE_H

#include <uv.h>

#include "common/base.h"

#define BARE_PREFIX_BYTES 8u

struct bare {
    uv_tcp_t tcp;
    uv_buf_t buffer; /* borrowed: where all ends of a loop read to */
    void (*message)(struct bare *b, uint32_t answer_bytes);
    void (*ended)(struct bare *b, int why); /* the connection is closed */
    void *owner;
    uint8_t prefix[BARE_PREFIX_BYTES];
    uint32_t n_prefix; /* how much of it has come */
    uint64_t n_left;   /* of the message, behind the prefix */
    int why;
};

/* b->tcp is connected, and b->room, message, ended, owner are set. */
int bare_start(struct bare *b) MUST_CHECK;

/* Writes n_bytes of `bytes` (borrowed until all is over), whose prefix says what is wanted. */
void bare_send(struct bare *b, uint32_t n_bytes, uint32_t answer_bytes, const uint8_t *bytes);

/* `ended` follows. */
void bare_close(struct bare *b, int why);

#endif

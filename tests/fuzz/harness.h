/*
 * What a fuzz target is: a function of bytes that asserts what must hold whatever they are, and
 * seeds, made by the project's own writers, so that a format that changes takes its target along.
 *
 *     fuzz_X.c      a target: harness_one(), harness_seed()
 *     harness.c     the same two as libFuzzer knows them, and --seeds DIR
 *     replay.c      main() where there is no libFuzzer: runs files once
 *     crc32c.c         stands in for common/crc32c.c
 *     disk.h        folders of files as bytes
 *
 * Every checksum is 0 here (crc32c.c): bytes that a mutation has changed get as far as bytes that a
 * writer has written, and a writer's bytes are still what a reader expects.
 */
#ifndef TESTS_FUZZ_HARNESS_H
#define TESTS_FUZZ_HARNESS_H

#include <assert.h>
#include <stdbool.h>

#include "common/bytes.h"

/* Runs the target on these bytes; what does not hold is an assertion that fails. */
void harness_one(const uint8_t *bytes, size_t n_bytes);

/* Appends seed i, an input of which much is accepted, to *out, which is empty; false: there are only i of
 * them. */
bool harness_seed(uint32_t i, struct bytes *out) MUST_CHECK;

/* libFuzzer's names of it. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

/* Bytes that are taken from the front. */
struct harness_bytes {
    const uint8_t *at, *end; /* borrowed */
};

static inline size_t harness_left(const struct harness_bytes *in)
{
    return (size_t)(in->end - in->at);
}

/* The next n_bytes (at most 8), little-endian; zeros behind the end. */
uint64_t harness_number(struct harness_bytes *in, unsigned n_bytes);

/* The next n_bytes, or as many as there are, in memory of exactly their size, so that a look
 * beyond them is seen; the caller's to free(). */
uint8_t *harness_take(struct harness_bytes *in, size_t n_bytes, size_t *ret_n_bytes);

/* For seeds. */
void harness_put(struct bytes *out, const void *bytes, size_t n_bytes);
void harness_put_number(struct bytes *out, uint64_t value, unsigned n_bytes);
void harness_put_text(struct bytes *out, const char *text);

/* Digests of what was accepted: equal for equal bytes in an equal order. */
void harness_digest(uint64_t *digest, const void *bytes, size_t n_bytes);

#endif

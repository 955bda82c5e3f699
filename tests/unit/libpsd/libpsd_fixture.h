/* A program that uses libpsd, on a node that the test controls (../client/fake_shard.h). */
#ifndef TESTS_UNIT_LIBPSD_LIBPSD_FIXTURE_H
#define TESTS_UNIT_LIBPSD_LIBPSD_FIXTURE_H

#include "tests/unit/client/fixture.h"
#include "worker/libpsd/psd.h"

#define N_STATE (2 * FAKE_DIM) /* floats of a row's optimizer state, with Adam */

struct handle {
    struct fake *f;
    psd *c;
    int table;
    uint64_t keys[N_KEYS];
    float rows[N_KEYS * FAKE_DIM], state[N_KEYS * N_STATE];
    psd_rows section; /* of the keys and the rows */
};

void url_of(const struct fake *f, char dst[64]);

/* A node by the plan, a handle on it, and its table "emb" by the specification. */
void open_handle(struct handle *h, const struct fake_plan *plan, const char *options,
                 const char *spec);
void close_all(struct handle *h);

/* The status, and the words in psd_error(). */
void assert_says(int64_t status, int64_t expected, const char *words);

uint64_t now_ms(void);

/* SIGALRM in 100 ms, with a handler that asks for SA_RESTART. Returns now_ms(). */
uint64_t alarm_soon(void);

#endif

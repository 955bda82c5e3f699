/*
 * What a store has that stands before another one (store_mirror.h, store_reuse.h): the calls that do
 * not concern it go on to that one as they are.
 */
#ifndef WORKER_STORE_FORWARD_H
#define WORKER_STORE_FORWARD_H

#include "worker/store.h"

/* The head of such a store's struct. */
struct store_forward {
    struct store store;
    struct store *inner; /* owned */
    /* Hears of each table that inner has, with its number; what it returns is the call's. */
    int (*keep_table)(struct store *s, const struct table_spec *spec, uint32_t table,
                      struct err *err);
};

/* store_ops of the same names. */
int store_forward_table(struct store *s, const struct table_spec *spec, uint32_t *ret_table,
                        struct err *err) MUST_CHECK;
int store_forward_table_find(struct store *s, struct table_spec *spec, uint32_t *ret_table,
                             struct err *err) MUST_CHECK;
int store_forward_flush(struct store *s, struct err *err) MUST_CHECK;
int store_forward_leave(struct store *s, struct err *err) MUST_CHECK;
uint64_t store_forward_clock(const struct store *s);
struct encoder *store_forward_encoder(const struct store *s);
uint64_t store_forward_resume(struct store *s);
void store_forward_cancel(struct store *s);

#endif

/*
 * The base of a cache before another store (param_store_exact_cache.h, param_store_stale_cache.h): forwards the calls
 * that the cache does not change.
 */
#ifndef WORKER_PARAM_STORE_PROXY_H
#define WORKER_PARAM_STORE_PROXY_H

#include "worker/param_store.h"

/* The head of such a store's struct. */
struct param_store_proxy {
    struct param_store store;
    struct param_store *inner; /* owned */
    /* Called for each table of `inner`, with its number; its result is the call's. */
    int (*keep_table)(struct param_store *s, const struct table_spec *spec, uint32_t table,
                      struct err *err);
};

/* param_store_ops of the same names. */
int param_store_proxy_table(struct param_store *s, const struct table_spec *spec,
                            uint32_t *ret_table, struct err *err) MUST_CHECK;
int param_store_proxy_table_find(struct param_store *s, struct table_spec *spec,
                                 uint32_t *ret_table, struct err *err) MUST_CHECK;
int param_store_proxy_flush(struct param_store *s, struct err *err) MUST_CHECK;
int param_store_proxy_leave(struct param_store *s, struct err *err) MUST_CHECK;
int param_store_proxy_copy(struct param_store *s, struct param_store *to, struct err *err);
uint64_t param_store_proxy_clock(const struct param_store *s);
struct push_encoder *param_store_proxy_encoder(const struct param_store *s);
uint64_t param_store_proxy_resume(struct param_store *s);
void param_store_proxy_cancel(struct param_store *s);

#endif

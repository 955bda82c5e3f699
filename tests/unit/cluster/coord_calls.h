/* Calls of a coordination service (server/cluster/coord.h) on a loop, one after the other, each run to its answer. */
#ifndef TESTS_UNIT_CLUSTER_COORD_CALLS_H
#define TESTS_UNIT_CLUSTER_COORD_CALLS_H

#include <uv.h>

#include "tests/unit/cluster/etcd_process.h"

#include "server/cluster/coord.h"

#define CALLS_ITEMS_MAX 64

/* What came last, copied. */
struct calls_answer {
    bool is_there;
    struct err err;
    struct coord_result result;
    struct coord_item items[CALLS_ITEMS_MAX];
    char texts[CALLS_ITEMS_MAX][2][200];
};

/* What a watch has reported: all keys as they are by its events. */
struct calls_view {
    uint32_t n_items, n_all, n_changes, n_away, n_back, n_restored;
    int64_t
        revision; /* of the last event; they never go back, but where the store was restored */
    char keys[CALLS_ITEMS_MAX][100], values[CALLS_ITEMS_MAX][100];
    char away[256], restored[256];
};

void calls_run(uv_loop_t *loop, const bool *until, uint32_t timeout_ms);

const struct calls_answer *calls_get(uv_loop_t *loop, struct coord *c, const char *key,
                                     bool is_prefix, uint32_t timeout_ms);
const struct calls_answer *calls_put_if(uv_loop_t *loop, struct coord *c,
                                        const struct coord_write *writes, uint32_t n,
                                        uint32_t timeout_ms);
/* One key. */
const struct calls_answer *calls_put(uv_loop_t *loop, struct coord *c, const char *key,
                                     int64_t if_revision, const char *value);
const struct calls_answer *calls_grant(uv_loop_t *loop, struct coord *c, uint32_t ttl_ms);
const struct calls_answer *calls_keep(uv_loop_t *loop, struct coord *c, int64_t lease);
const struct calls_answer *calls_revoke(uv_loop_t *loop, struct coord *c, int64_t lease);

/* coord_done, whose arg is a struct calls_answer. */
void calls_on_done(void *arg, const struct err *err, const struct coord_result *result);

/* coord_on_event, whose arg is a struct calls_view. */
void calls_on_event(void *arg, const struct coord_event *event);
const char *calls_value(const struct calls_view *v, const char *key); /* NULL: not there */

/* Until the watch has reported this value (NULL: that there is none). */
void calls_await_value(uv_loop_t *loop, const struct calls_view *v, const char *key,
                       const char *value, uint32_t timeout_ms);

/* Closes it, and runs the loop to its end. */
void calls_close(uv_loop_t *loop, struct coord *c);

#endif

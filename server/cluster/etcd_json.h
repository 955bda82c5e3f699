/*
 * Requests to etcd's JSON gateway (/v3/..., etcd 3.4) and its answers, as texts. Keys and values travel in base64,
 * 64-bit numbers as texts; a field that is 0, false or empty is left out.
 *
 * `prefix` is the cluster's, "/psd/NAME/": requests add it to each key, answers take it away. Requests are owned by
 * the caller: free(). Answers come from whoever listens on the port; whatever does not have the expected form is
 * refused with PS_EPROTO.
 */
#ifndef SERVER_CLUSTER_ETCD_JSON_H
#define SERVER_CLUSTER_ETCD_JSON_H

#include <cjson/cJSON.h>

#include "server/cluster/coord.h"

#define ETCD_JSON_TOKEN_MAX 4096u /* a JWT is long */

/* Base64 (RFC 4648, with padding). encode: dst has 4 * (n_bytes + 2) / 3 + 1 bytes at least. decode: strict; a text
 * with NUL behind it, owned, or NULL; *ret_n_bytes without the NUL. */
void etcd_json_encode(const void *bytes, size_t n_bytes, char *dst);
char *etcd_json_decode(const char *text, size_t *ret_n_bytes);

/* above: 0, or only keys with a greater mod_revision count, and one of them will do, without its value. */
char *etcd_json_get(const char *prefix, const char *key, bool is_prefix, int64_t above);
char *etcd_json_put_if(const char *prefix, const struct coord_write *writes, uint32_t n);
char *etcd_json_watch(const char *prefix, const char *below, int64_t from_revision);
char *etcd_json_grant(int64_t lease, uint32_t ttl_s);
char *etcd_json_lease(int64_t lease); /* keepalive, revoke */

char *etcd_json_authenticate(const char *user, const char *password);

/* Of the answer to that: owned, or NULL: there is none that a header could hold. */
char *etcd_json_read_token(const cJSON *root);

struct etcd_json_answer {
    struct coord_result result; /* its items are those below */
    struct coord_item *items;   /* owned */
    uint32_t n_items, cap_items;
    /* Of a watch's message: */
    bool is_created, is_canceled;
    int64_t compact_revision;
    char reason[96]; /* why it is cancelled */
    bool *removed;   /* owned; of each item */
};

/* gRPC codes that etcd answers with. */
enum etcd_json_code {
    ETCD_JSON_INVALID = 3,
    ETCD_JSON_NOT_FOUND = 5,
    ETCD_JSON_DENIED = 7,
    ETCD_JSON_ALREADY = 9,
    ETCD_JSON_OUT_OF_RANGE = 11
};

/* The error that an answer carries, as {"error", "code"}, or in a stream {"error": {...}}: its gRPC code, or 0. *err
 * has its sentence. */
int etcd_json_error(const cJSON *root, struct err *err);

/* True if that error is the answer to a call, as *err then says it (0: of a revoke of a lease that has ended). False:
 * another endpoint may know more. */
bool etcd_json_is_final(int code, bool is_revoke, const char *endpoint, struct err *err);

/* The newest state of etcd that was read; zeroed: none. */
struct etcd_json_seen {
    int64_t revision;
    uint64_t store_id;
};

/* Of a linearizable read: an older state than that, or another store, so etcd was restored from a copy, or replaced.
 * *err has a sentence. */
bool etcd_json_is_restored(const struct etcd_json_seen *seen, const struct coord_result *result,
                           struct err *err);

/* Each fills *ret, zeroed before, which etcd_json_free() empties, after a failure, too. Errors: PS_EPROTO, -ENOMEM. */
int etcd_json_read_items(const cJSON *root, const char *prefix, struct etcd_json_answer *ret);
int etcd_json_read_put_if(const cJSON *root, const char *prefix, struct etcd_json_answer *ret);
/* Of a transaction that was refused after an attempt without an answer: the revision at which its keys are what it
 * would have written, or 0. */
int64_t etcd_json_written_at(const struct etcd_json_answer *a, const struct coord_write *writes,
                             uint32_t n);
int etcd_json_read_event(const cJSON *root, const char *prefix, struct etcd_json_answer *ret);
int etcd_json_read_lease(const cJSON *root, struct etcd_json_answer *ret);
void etcd_json_free(struct etcd_json_answer *a);

#endif

/*
 * The coordination service as a table of functions: a small store of keys with revisions, transactions, leases and
 * watches, which all members of a cluster share. coord_etcd.h is etcd; coord_mem.h is memory, for tests and simulation.
 *
 *     get        one key, or all below a prefix, as of one revision
 *     put_if     several keys in one transaction, if none of them has changed since it was read
 *     grant ...  leases: keys that go when their owner no longer keeps them alive
 *     watch      all keys below a prefix, first as they are, then each change
 *
 * Keys are relative to the cluster's own prefix. Values are texts. All calls are made on the loop's thread and return
 * at once; `done` is called later, exactly once, never from inside the call, and at the latest `timeout_ms` after it,
 * with a sentence in *err if it failed.
 */
#ifndef SERVER_CLUSTER_COORD_H
#define SERVER_CLUSTER_COORD_H

#include <stdbool.h>

#include "common/status.h"

#define COORD_TXN_MAX 16u
#define COORD_KEY_MAX 256u         /* with the cluster's prefix and NUL */
#define COORD_VALUE_MAX (1u << 20) /* of one value; etcd takes 1.5 MiB in a request */
#define COORD_ANSWER_MAX \
    (4u << 20) /* an answer, or a watch's message, that is longer is refused */

struct coord_item {
    char *key, *value;
    int64_t mod_revision; /* of the last transaction that wrote it */
    int64_t lease;        /* 0: none */
};

enum coord_change { COORD_CHECK, COORD_PUT, COORD_REMOVE };

/* One key of a transaction. Every key is compared; so a transaction that is repeated changes nothing twice. */
struct coord_write {
    enum coord_change change; /* COORD_CHECK: compared only */
    const char *key;
    int64_t if_revision; /* its mod_revision as it was read; 0: the key must not be there */
    const char *value;   /* of COORD_PUT */
    int64_t lease;       /* of COORD_PUT; 0: none */
    /* What it must have, too, if it is there; NULL: anything. A store that was restored gives a revision again. */
    const char *if_value;
};

struct coord_result {
    int64_t
        revision; /* of the store; of a transaction that was made: of the keys that it wrote */
    /* Of put_if: it was made. Else one of the keys had changed, and nothing was written. */
    bool is_made;
    /* Of get: what is there, in the order of keys. Of put_if that was not made: its keys as they are now. Borrowed
     * for the call. */
    const struct coord_item *items;
    uint32_t n_items;
    /* Of grant and keep. The lease lives until ttl_ms after sent_ms at least: by the clock of the loop, measured from
     * sending. */
    int64_t lease;
    uint64_t ttl_ms, sent_ms;
    uint64_t store_id; /* another one is another store; 0: it is not said */
};

/* result: NULL if err->status is not 0. */
typedef void coord_done(void *arg, const struct err *err, const struct coord_result *result);

enum coord_event_kind {
    /* Items are all that is there: what is not among them is not there. *err, if there is one: the store was restored
     * from a copy or replaced, and its revisions have gone back. */
    COORD_ALL,
    COORD_CHANGED, /* items[0] was written */
    COORD_REMOVED, /* items[0].key was removed, or its lease has ended */
    COORD_AWAY,    /* nothing can be heard of the service; *err says why. Watching goes on. */
    COORD_BACK,    /* after COORD_AWAY: nothing was missed, or COORD_ALL follows */
};

struct coord_event {
    enum coord_event_kind kind;
    int64_t revision;
    const struct coord_item *items; /* borrowed for the call */
    uint32_t n_items;
    const struct err *err;
};

typedef void coord_on_event(void *arg, const struct coord_event *event);

struct coord;
struct coord_watch;
struct uv_loop_s; /* libuv's loop */

/*
 * put_if: 1 to COORD_TXN_MAX writes, copied. An answer that is lost is no failure yet: the transaction is made again,
 * which reads its keys where they have changed; if they are what it would have written, it was made. A transaction
 * that fails (PS_EDEADLINE, say) may have been made, or may still be: but not if one of its keys has changed since.
 * Two callers that write the same value over the same revision both hear that theirs was made: whoever must not puts
 * a name of its own into the value.
 *
 * keep: -ENOENT if the lease has ended. revoke: its keys go; 0, too, if it had ended.
 */
struct coord_ops {
    void (*get)(struct coord *c, const char *key, bool is_prefix, uint32_t timeout_ms,
                coord_done *done, void *arg);
    void (*put_if)(struct coord *c, const struct coord_write *writes, uint32_t n_writes,
                   uint32_t timeout_ms, coord_done *done, void *arg);
    void (*grant)(struct coord *c, uint32_t ttl_ms, uint32_t timeout_ms, coord_done *done,
                  void *arg);
    void (*keep)(struct coord *c, int64_t lease, uint32_t timeout_ms, coord_done *done,
                 void *arg);
    void (*revoke)(struct coord *c, int64_t lease, uint32_t timeout_ms, coord_done *done,
                   void *arg);
    /* Begins with COORD_ALL, once the service can be heard. Changes come in the order of revisions. */
    struct coord_watch *(*watch)(struct coord *c, const char *prefix, coord_on_event *on_event,
                                 void *arg);
    /* No event comes any more. The watch is freed. */
    void (*unwatch)(struct coord_watch *w);
    /* Calls under way end with -ECANCELED; then on_closed (NULL is fine), from the loop, and *c is freed. */
    void (*close)(struct coord *c, void (*on_closed)(void *arg), void *arg);
};

/* What each kind begins with. */
struct coord {
    const struct coord_ops *ops;
};

/* Where it is, and as whom it is asked. All borrowed; "" or NULL: none. */
struct coord_options {
    const char *url;
    const char *ca_file;              /* whom to trust: asked over TLS */
    const char *cert_file, *key_file; /* this program's own certificate */
    const char *user, *password_file;
};

/* PS_ESETTING: *err has the fault. *ret is freed by its close(). */
typedef int coord_open(const struct coord_options *options, struct uv_loop_s *loop,
                       struct coord **ret, struct err *err);

struct coord_watch {
    struct coord *coord;
};

#endif

/*
 * What the files of libpsd share: the handle, and the way into each public function and out of it.
 *
 *     int psd_something(psd *c, ...)
 *     {
 *         struct err err;
 *         int status = handle_enter(c, &err);        -EINVAL, -ECHILD, -ECANCELED
 *
 *         if (status)
 *             return handle_fail(&err);
 *         status = ...;                              a status with a sentence in err
 *         return handle_leave(c, status, &err);
 *     }
 *
 * Locks: `lock` first, then those of worker/client. Nothing is called with `lock` held that waits, but for
 * wakeup_wait().
 */
#ifndef WORKER_LIBPSD_HANDLE_H
#define WORKER_LIBPSD_HANDLE_H

#include "common/tls.h"
#include "common/token_file.h"
#include "common/unique.h"
#include "worker/client/ps.h"
#include "worker/client/wakeup.h"
#include "worker/libpsd/psd.h"

#define HANDLE_NOTICES_MAX 64u
#define HANDLE_NOTICE_BYTES 512u
#define HANDLE_SERVERS_BYTES 4096u
#define HANDLE_FOREVER UINT64_MAX

struct handle_ops;
struct handle_scans;
struct row_cache;

/* Lets one thread in at a time. Under the handle's lock. */
struct handle_gate {
    bool is_busy;
    struct wakeup freed;
};

struct psd {
    /* 1, on a page that the kernel makes zeros in a child of fork(); NULL: it cannot, and pid tells a child. */
    const uint32_t *is_parents;
    pid_t pid;
    struct ps_client *client; /* owned */
    uint64_t push_timeout_ms;
    bool is_reader;
    char job[TABLE_SPEC_NAME_MAX];
    char servers[HANDLE_SERVERS_BYTES], token[TOKEN_FILE_MAX]; /* for node_commands.c */
    struct tls_context *tls;                                   /* owned; NULL: plain */

    _Atomic uint32_t
        n_users; /* threads between handle_enter() and handle_leave(), the last they touch */
    _Atomic bool is_closing; /* no call is let in, and no wait goes on */
    _Atomic bool is_closed;  /* psd_close() was called */

    uv_mutex_t lock;
    struct handle_gate
        changing; /* psd_push(), psd_table(), psd_leave(): of these the engine takes one at a time */
    _Atomic bool is_unique_used;
    struct unique unique; /* of the thread that has set is_unique_used */

    /* Tables, in the order of their numbers; a number and what it says never change. n_tables grows under the lock,
     * behind the table that it counts: it may be read without. */
    _Atomic uint32_t n_tables;
    struct table_spec *tables; /* owned, PS_TABLES_MAX */
    /* By psd_drop() of this handle: its name may have a newer number. Set under the lock. */
    _Atomic bool is_dropped[PS_TABLES_MAX];

    struct row_cache *cache; /* owned; NULL: every pull goes to the servers */

    struct handle_ops *ops;     /* owned: pulls.c */
    struct handle_scans *scans; /* owned: scans.c */
    int fd;                     /* eventfd */
    _Atomic bool uses_fd;

    /* Notices [first, first + n) of the ring. */
    uint32_t first_notice, n_notices;
    uint64_t notices_lost;
    char (*notices)[HANDLE_NOTICE_BYTES]; /* owned */
};

/* Keeps the sentence for psd_error(); returns err->status. */
int handle_fail(const struct err *err);

/* -EINVAL: c is NULL. -ECHILD: it is the parent's. */
int handle_check_process(const psd *c, struct err *err) MUST_CHECK;

/* The caller is in, or out again with a sentence in *err. */
int handle_enter(psd *c, struct err *err) MUST_CHECK;

/* And out. Returns the status; a negative one has its sentence in *err. */
int handle_leave(psd *c, int status, const struct err *err);
int64_t handle_leave_with(psd *c, int64_t result, const struct err *err);

/* Waits until no other thread is behind the gate. until_ns: in uv_hrtime(). -EAGAIN, -EINTR, -ECANCELED with a
 * sentence. */
int handle_pass(psd *c, struct handle_gate *gate, uint64_t until_ns, struct err *err)
    MUST_CHECK;
void handle_pass_back(psd *c, struct handle_gate *gate);

/* timeout_ms of a public function as a time in uv_hrtime(); less than 0: default_ms, 0 is for ever. */
uint64_t handle_until(int timeout_ms, uint64_t default_ms);

/* The engine's -EAGAIN is the caller's -ETIMEDOUT. */
int handle_timed(int status, struct err *err);

/* Copies a struct up to the size that the caller's has; -EINVAL with a sentence if that is none. `size` is its first
 * member, and stays. */
int handle_fill(void *dst, const void *src, size_t n_bytes, struct err *err) MUST_CHECK;

/* ---- pulls.c ---- */

struct handle_ops *handle_ops_new(void);
void handle_ops_free(struct handle_ops *ops);

/* ---- scans.c ---- */

struct handle_scans *handle_scans_new(void);
/* Before ps_close(). */
void handle_scans_free(struct handle_scans *scans);

#endif

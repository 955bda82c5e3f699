/*
 * psd.h: libpsd, the C library of psd, a parameter server for embedding tables. C99 and C++.
 *
 * Results. A function that returns int, int64_t, psd_op or psd_scan returns 0 or more when it worked, and a negative
 * status when not: a negative errno, or one of PSD_E... below. psd_error() then has a sentence. A call that fails has
 * done nothing, where its contract does not say otherwise. No misuse ends the process, but for a pointer that points
 * nowhere and a handle that was closed.
 *
 * Threads. Any thread may call any function at any time; psd_close() ends the waits of the others. psd_push(),
 * psd_assign(), psd_table() and psd_leave() of several threads wait for each other. A pull never waits for them. A
 * thread that has not waited for long reads the answers of all: no other thread is woken for that. A call is
 * not to be ended by pthread_cancel() or longjmp().
 *
 * Waiting. Every wait has a deadline. A handler of a signal that runs on the thread that waits ends the wait with
 * -EINTR, within 0.2 s of the signal; what was waited for goes on. A signal that comes before the wait begins does not,
 * nor one that another thread handles: in the first 10 ms of a wait its thread reads answers, and one to the process
 * goes to any thread that does not block it. Who must see these, too, waits in slices of 200 ms.
 *
 * Processes. After fork() every call of the child with the parent's handle returns -ECHILD at once; the parent is not
 * disturbed. The library installs no signal handler, raises no SIGPIPE, leaves signal masks as they were (inside a call
 * signals may have to wait for 10 ms, and SIGPIPE for its end), prints nothing, and never ends the process. Its one
 * thread for a handle blocks all signals, and has ended when psd_close() returns.
 *
 * Structs begin with their size: set it to sizeof, and the rest to zero. Later versions add members at the end.
 */
#ifndef PSD_H
#define PSD_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

#define PSD_API 1            /* counts the versions of this header */
#define PSD_WHY_MAX 256      /* bytes of a sentence, with the final NUL */
#define PSD_SECTIONS_MAX 256 /* psd_rows in one call */
#define PSD_TABLES_MAX 256   /* tables of a handle */
#define PSD_SCANS_MAX 64     /* scans of a handle that have not ended */

typedef struct psd psd;   /* a worker of a job, or a reader */
typedef int64_t psd_op;   /* the number of a pull, from 1; none is used twice in a handle */
typedef int64_t psd_scan; /* the number of a scan, likewise */

/* Statuses beside errno's, the same numbers as psd logs them. psd_strerror() has a text for each. */
enum {
    /* clang-format off */
    PSD_EPROTO = -10001, PSD_ECORRUPT = -10002,
    PSD_ENOTABLE = -10003,  /* no such table */
    PSD_EWIDTH = -10004, PSD_ESHARD = -10005, PSD_EDEVICE = -10006,
    PSD_ESPEC = -10007,     /* the table exists with another specification, or it is wrong */
    PSD_EBUDGET = -10008,   /* memory is full: new rows are refused */
    PSD_EFENCED = -10009,   /* the servers had declared this worker dead: psd_resume() */
    PSD_ESEQ = -10010,
    PSD_EDEADLINE = -10011, /* a server did not answer in its time */
    PSD_ENAN = -10012,      /* a push holds NaN or infinity */
    PSD_EORDER = -10013, PSD_ECODEC = -10014, PSD_EVERSION = -10015,
    PSD_EGREETING = -10016, /* wrong token, or no psd */
    PSD_EJOB = -10017,      /* the job runs with another number of workers, mode or staleness */
    PSD_ETOOBIG = -10018, PSD_ECLUSTER = -10019,
    PSD_ESTOPPING = -10020, /* the server is stopping */
    PSD_EDATA = -10021,
    PSD_ESETTING = -10022,  /* an option is unknown, or its value is wrong */
    PSD_ENOJOIN = -10023, PSD_ECOUNT = -10024, PSD_ENOCHECKPOINT = -10025,
    PSD_EHTTP = -10026,     /* the address is the stats port */
    PSD_ENOTFILE = -10027
    /* clang-format on */
};

/* How rows travel. fp32 loses nothing; onebit and topk are for pushes, which keep what they lose for later pushes. */
enum { PSD_FP32, PSD_BF16, PSD_FP16, PSD_INT8, PSD_ONEBIT, PSD_TOPK };

/* A push does one step of the table's optimizer with a row, or sets its weights and starts its optimizer state anew;
 * psd_assign() sets many rows, and state. */
enum { PSD_GRADIENT, PSD_ASSIGN };

enum { PSD_TICK = 1 };  /* a flag of psd_push(): this worker has finished step `clock` */
enum { PSD_STATE = 1 }; /* a flag of psd_scan_start(): rows come with their optimizer's state */

/* Rows of one table: to be pulled (rows is written), pushed or assigned (rows is read), or those of a scan. */
typedef struct psd_rows {
    uint32_t size, table; /* sizeof(psd_rows); from psd_table() */
    uint64_t n;           /* keys, at most 2^32 - 1 */
    const uint64_t *keys; /* [n], ascending, each once: psd_unique() makes them so */
    float *rows;          /* [n][dim] of the table; C order */
    uint32_t codec;       /* PSD_FP32 ... */
    uint32_t op;          /* push: PSD_GRADIENT or PSD_ASSIGN */
    float topk;           /* push with PSD_TOPK: share of a row's values that travel; 0: 0.01 */
    uint32_t reserved;    /* 0 */
    /* Only psd_pull(), NULL or [(n + 7) / 8]: bit i % 8 of byte i / 8 is set if key i has a row. Bits beyond n are 0.
     * (What is pulled of a key without one are its initial weights.) PSD_EVERSION: a psd is too old to say. */
    uint8_t *present;
    /* Only psd_assign() and scans, NULL or [n][n_state of the table]: the optimizer's state of each row (Adagrad's
     * sums, Adam's m and v ...); and the table's step count that goes with it, for Adam's bias correction. */
    const float *state;
    uint64_t steps;
} psd_rows;

/* What a table is. */
typedef struct psd_table_info {
    uint32_t size;     /* sizeof(psd_table_info) */
    uint32_t dim;      /* floats of a row; of a dense table, of a block */
    uint64_t n_floats; /* dense: its keys are 0 .. ceil(n_floats / dim) - 1; else 0 */
    char name[128];    /* in full: "JOB/item" */
    char optimizer[24];
    float lr;         /* before the schedule */
    uint32_t n_state; /* floats of a row's optimizer state: psd_rows.state */
} psd_table_info;

/* What psd_drop() has dropped, of all nodes. */
typedef struct psd_dropped {
    uint32_t size, tables; /* sizeof(psd_dropped) */
    uint64_t rows, bytes;  /* of memory */
} psd_dropped;

/* Since psd_open(). */
typedef struct psd_stats {
    uint32_t size, n_shards; /* sizeof(psd_stats); of the cluster */
    uint64_t pulls, pushes, rows_pulled, rows_pushed;
    uint64_t rows_refused; /* pushed rows without a place, as memory was full */
    uint64_t bytes_in, bytes_out, reconnects, resent_pushes, rejoins;
    uint64_t
        pushes_lost;    /* acknowledged, and gone with a crash of their shard (once for each) */
    uint64_t min_clock; /* of the slowest who is waited for, as last said */
    uint64_t staleness_max; /* clocks: the most that a pull was ahead of min_clock */
    uint64_t wait_ns,
        push_wait_ns; /* spent in psd_wait(); in psd_push() waiting for acknowledgements */
    uint64_t residual_rows, residual_bytes; /* what onebit and topk keep for later pushes */
    uint64_t notices_lost;                  /* sentences that nobody took in time */
} psd_stats;

/* Of a reader with cache=, since psd_open(); without one, zeros. */
typedef struct psd_cache_stats {
    uint32_t size, reserved;   /* sizeof(psd_cache_stats); 0 */
    uint64_t hits, misses;     /* keys of pulls: in the cache; not there, or too old */
    uint64_t puts;             /* rows put into it */
    uint64_t evictions;        /* rows that others drove out before they were too old */
    uint64_t left_out;         /* rows not put: too long, or another thread put one beside it */
    uint64_t rows;             /* in it, with those that are too old and not yet overwritten */
    uint64_t bytes, bytes_max; /* in use, of keys, rows and its own tables; of cache= */
    uint64_t oldest_age_ns, max_age_ns; /* the oldest row handed out, how old; of max-age= */
} psd_cache_stats;

/* ---- the library ---- */

/* "0.1.0"; a text for a status, for ever, never NULL: any number will do. */
const char *psd_version(void);
const char *psd_strerror(int status);

/* The sentence of this thread's last failed call: the thing, what was found, what was expected. "" before the first.
 * Valid until the thread's next failed call. */
const char *psd_error(void);

/* ---- a handle ---- */

/*
 * Connects to a cluster, and joins a job as one of its workers, or as a reader.
 *
 *     url       psd://HOST:PORT[,HOST:PORT...][/JOB]; any one node of the cluster is enough; [::1]:7070 for IPv6
 *     options   "NAME=VALUE NAME=VALUE ...", NULL is "". Names are psworker's flags, with - or _; a value with blanks
 *               stands in "double quotes" (\" and \\ inside):
 *
 *         reader=no             yes: pulls only, never parked, in no job; psd_push() is refused. JOB then is only the
 *                               prefix of tables' names, and may be left out
 *         workers=1 rank=0      of the job
 *         mode=async            or ssp, bsp
 *         staleness=4           bound of mode=ssp, in clocks
 *         backup-workers=0      of mode=bsp: a step does not wait for so many workers, and drops their gradients. One
 *                               that is behind goes on at psd_stats.min_clock
 *         token= token-file=    what the servers ask for
 *         tls-ca=               speak TLS: PEM file of the CA that the servers' certificates are of
 *         tls-cert= tls-key=    PEM files of the certificate that the servers are shown
 *         name=                 for people, in psctl and logs; else PROGRAM host:pid
 *         connect-timeout=60s   how long to wait for servers at the start
 *         give-up=60s           a server away for longer ends the handle
 *         pull-timeout=10m      longest life of a pull, time that it waits for other workers included; 2 s more where
 *                               servers are silent
 *         push-timeout=10m      longest that a push waits for acknowledgements of earlier ones
 *         window=64M            unacknowledged pushes that may be under way
 *         residual-max=256M     memory for what onebit and topk keep of a table
 *         zstd=no               compress messages where it pays
 *         cache=0               a reader's: memory for rows that it has pulled, from 1M; with max-age
 *         max-age=              how old a row of the cache may be, 1ms to 24h, from when it was asked for
 *
 *     why       gets the sentence of a failure, as psd_error() has it, too; may be NULL
 *
 * 0, with the handle in *ret. PSD_ESETTING, PSD_EDEADLINE (no server, for connect-timeout), PSD_EJOB, PSD_EGREETING,
 * -EINTR, -ENOMEM ...
 */
int psd_open(psd **ret, const char *url, const char *options, char why[PSD_WHY_MAX]);

/* Ends the waits of other threads with -ECANCELED, drops what is under way, ends the library's thread, frees all. Takes
 * up to 1 s, or as long as the resolver takes for a server's name; it does not wait for pushes: psd_flush() does. A
 * worker that has not left (psd_leave()) counts as lost until its lease ends or another process takes its rank. NULL
 * is fine. In a child of fork(): frees nothing. */
int psd_close(psd *c);

/* The first half of psd_close(), for a program that cannot say yet that no other thread will use the handle: all waits
 * end with -ECANCELED, and so does every later call; the handle stays, for psd_close(). */
int psd_end_waits(psd *c);

/* The next sentence about what happened meanwhile: connections lost and found, lost pushes, slow servers. Returns its
 * length, and 0 when there is none. n > 0: bytes of dst; a longer sentence is cut. The handle keeps the last 64. */
int psd_notice(psd *c, char *dst, size_t n);

int psd_get_stats(psd *c, psd_stats *ret);             /* fills *ret up to ret->size */
int psd_get_cache_stats(psd *c, psd_cache_stats *ret); /* likewise */

/* ---- tables ---- */

/*
 * Makes a table on all shards, or finds it there with the same specification. A name without "/" is JOB/name. Returns
 * the table's number, 0 or more; for the same name always the same.
 *
 * spec NULL: it has to be there, with whatever specification; PSD_ENOTABLE if it is not. Else "NAME=VALUE ...":
 *
 *     dim=N                 floats of a row, 1 to 16384. Has to be given. With lamb and lars a dense table may be one
 *                           layer: floats=N dim=N, N up to 4194304
 *     floats=N              makes a dense table of N floats in blocks of dim (1024, or N if that is less): all there
 *                           from the start, for a model's own parameters
 *     optimizer=adagrad     or sgd, momentum, rowwise_adagrad, adam, ftrl, adamw, lion, lamb, lars, sm3, came,
 *                           sm3_matrix
 *     lr=X                  else the optimizer's own: 0.1 (sgd, momentum, ftrl), 0.03 (both sm3), 0.01 (adagrad, lamb,
 *                           lars), 0.001 (adam, adamw), 0.0002 (came), 0.0001 (lion)
 *     epsilon momentum nesterov beta1 beta2 weight-decay initial-accumulator lr-decay ftrl-beta ftrl-l1 ftrl-l2
 *                           of the optimizer
 *     clip-norm=0           L2 bound on a row's gradient
 *     row-decay=0           share of the weights of all rows that each step of the table takes, also without a gradient
 *     init=uniform          or zero, normal; dense: zero
 *     init-scale=0.05       half width, standard deviation
 *     seed=1                of the initial weights; with the table's name, so that tables differ
 *     warmup=0 decay=none decay-start decay-clocks decay-rate decay-floor      of the learning rate
 *     mode=job staleness    consistency of this table, if not the job's
 *     table-storage=fp32    or bf16, fp16
 *     table-max=0 table-full=refuse     bytes over all shards; then refuse new rows, or drop the oldest or rarest
 *     admit-touches admit-clocks idle-clocks ttl rare-touches rare-clocks      which keys get and keep a row
 *
 * PSD_ESETTING, PSD_ESPEC with a sentence that names the word; -ENOSPC beyond PSD_TABLES_MAX; PSD_EDEADLINE behind
 * twice give-up and 2 s: servers may be away once meanwhile. After -EINTR the same call goes on with the same request.
 */
int psd_table(psd *c, const char *name, const char *spec);

/* Fills *ret up to ret->size. PSD_ENOTABLE: no table has this number. */
int psd_get_table(psd *c, int table, psd_table_info *ret);

/* ---- keys ---- */

/* The seed of a column's keys, from its name. NULL is "". */
uint64_t psd_seed(const char *column);

/* The key of a token of n bytes: XXH3_64(token, seed), as psworker makes it of the same column. */
uint64_t psd_key(uint64_t seed, const void *token, size_t n);

/* Of n tokens: token i is bytes[offsets[i] .. offsets[i + 1]), offsets ascend. -EINVAL: they do not. */
int psd_keys(uint64_t seed, const void *bytes, const int64_t *offsets, size_t n,
             uint64_t *ret_keys);

/* Of n numbers: the keys of their decimal texts, "-7". */
int psd_keys_int64(uint64_t seed, const int64_t *numbers, size_t n, uint64_t *ret_keys);

/* The different keys among n, ascending, to `unique` (space for n; may be `keys`); and inverse[i], [n] or NULL: where
 * keys[i] is in it. Returns how many. c, or NULL: whose memory it works in, again and again; threads that do so at
 * once, and NULL, take some for the call. -ENOMEM, -EINVAL. */
int64_t psd_unique(psd *c, const uint64_t *keys, size_t n, uint64_t *unique, int64_t *inverse);

/* ---- pulls ---- */

/*
 * Starts to pull the rows of n sections, from all shards, and returns at once. `clock`: the step that they are for,
 * from 0; a reader's is ignored. *rows are copied; the arrays that they point to stay borrowed until psd_wait() ends
 * the pull, and are written by it alone. A table may stand in several sections. Many pulls may be under way, and end
 * in any order. A pull that is started after psd_push() has returned sees that push.
 *
 * A reader with cache= looks there first, and pulls the keys that are missing or too old. Each row was current at some
 * moment after this call began, or at most max-age before psd_wait() has ended the pull. It writes into the arrays from
 * here on. If all rows are there, no server is asked, unless 512 such pulls are not yet waited for.
 *
 * *ret_op, from 1. -EINVAL with the section and what is wrong in it; PSD_EFENCED until psd_resume(); the refusal of an
 * earlier push, once (PSD_ENAN ...), after which the same call may be made again.
 */
int psd_pull(psd *c, uint64_t clock, const psd_rows *rows, int n, psd_op *ret_op);

/*
 * Waits for a pull, up to timeout_ms: 0 only looks, less than 0 waits as long as pull-timeout.
 *
 *     0              the rows are here, the pull has ended
 *     -ETIMEDOUT     not yet; the pull goes on, and the arrays stay borrowed
 *     -EINTR         likewise
 *     -EBUSY         another thread waits for it; likewise
 *     -EINVAL        no pull under way has this number
 *     another        the pull has ended: -ECANCELED, PSD_EFENCED, PSD_EDEADLINE (pull-timeout), a shard's refusal
 */
int psd_wait(psd *c, psd_op op, int timeout_ms);

/* Its wait, that goes on or is still to come, ends with -ECANCELED; it is still to be waited for. Returns 0 also for a
 * pull that has ended. op 0: all pulls that are under way, and all psd_scan_next(). */
int psd_cancel(psd *c, psd_op op);

/* A descriptor for poll(): readable while psd_next() has a pull, until it returns 0. It may be readable without one.
 * The handle's; do not read or close it. */
int psd_fd(psd *c);

/* A pull for which psd_wait() would not have to wait, the first that came so far, each once; 0: there is none. To end
 * it and to have its rows, call psd_wait(c, op, 0): with cache= -ETIMEDOUT, rarely, and the pull comes once more. */
psd_op psd_next(psd *c);

/* ---- pushes ---- */

/*
 * Sends the gradients of n sections (n may be 0) to the shards, numbered: each is applied once, also over lost
 * connections. Copies what it needs, and returns before they are acknowledged; waits, up to push-timeout, while more
 * than `window` are not. `samples`: in this step, its weight in bsp. A table may stand in one section.
 *
 * -EINVAL, PSD_EFENCED, -EINTR, -ENOMEM, PSD_EDEADLINE: nothing was pushed. The refusal of an earlier push (PSD_ENAN
 * ...), once: this one was not pushed either.
 */
int psd_push(psd *c, uint64_t clock, uint32_t samples, int flags, const psd_rows *rows, int n);

/* Waits until all pushes are acknowledged: they then are in the servers' logs. timeout_ms as in psd_wait(); less than 0
 * is push-timeout. -ETIMEDOUT, -EINTR: not yet. The refusal of a push, once. */
int psd_flush(psd *c, int timeout_ms);

/* ---- whole tables ---- */

/*
 * Sets rows, also those that are not there yet: their weights, and with rows->state the optimizer's state; else that
 * begins anew. Of any number of keys: they travel in pushes of at most 8 MiB, each of which is applied once, and takes
 * effect at one version of each shard. It waits as psd_push() does, is no step, and moves no clock. With state or
 * steps, the table's step count becomes rows->steps, if it is less. codec, op and topk are ignored.
 *
 * Returns how many keys it took, from the first on: fewer than n only if a signal came, push-timeout passed or memory
 * was short behind some of them; the rest is for the next call. psd_flush() waits until all are safe.
 * psd_stats.rows_refused counts those for which memory was full.
 *
 * Nothing is sent, and the sentence has the key, if keys do not ascend (-EINVAL) or a value is NaN or infinity
 * (PSD_ENAN). -EINVAL: a reader's handle, too. PSD_EVERSION: a psd is too old for state. Others as psd_push(); the
 * refusal of an earlier push may come when some rows were sent.
 */
int64_t psd_assign(psd *c, const psd_rows *rows);

/*
 * Begins to walk a sparse or dense table, trained meanwhile or not; for workers and readers. A key that has a row from
 * the first psd_scan_next() to the last comes exactly once, with its weights of the first one or of a later moment; one
 * that comes or goes meanwhile comes once or not at all; none comes twice. It goes on over lost connections and
 * restarts of servers, which keep nothing of it. flags: 0 or PSD_STATE. -ENOSPC beyond PSD_SCANS_MAX of a handle.
 */
psd_scan psd_scan_start(psd *c, int table, int flags);

/*
 * The next rows: fills *ret up to ret->size, with n, keys (in no order), rows and, of PSD_STATE, state; steps then are
 * the table's (the last call's are the ones to assign). The arrays are the handle's, and valid until the scan's next
 * call, whatever that returns, or psd_close(). Each shard's part is at most 256 KiB, or a row. timeout_ms as in
 * psd_wait().
 *
 *     1 and more     so many keys
 *     0              all have come
 *     -ETIMEDOUT     not yet; the same call goes on. -EINTR, -EBUSY (another thread is in it): likewise
 *     -EINVAL        no scan has this number
 *     -ESTALE        final: a server has restarted without pushes whose rows had come. Scan again
 *     another        nothing is lost or doubled: the same call goes on. -ECANCELED: psd_cancel(c, 0)
 */
int64_t psd_scan_next(psd *c, psd_scan scan, psd_rows *ret, int timeout_ms);

/* Ends a scan, at its end or before, and frees its memory. psd_close() does so, too. */
int psd_scan_end(psd *c, psd_scan scan);

/*
 * Drops a job's tables on all nodes, with their rows: those named NAME/..., and the table NAME; so "JOB/TABLE" is one
 * table. Asks every node first whether it can. Any handle of the cluster will do, also one that has left. ret: NULL, or
 * filled up to ret->size. timeout_ms as in psd_checkpoint().
 *
 * -EBUSY, with nothing changed: the job has workers (this one, too: psd_leave() first), or is being dropped. -EINTR,
 * -ETIMEDOUT, a node's failure: some may be dropped; the same call does the rest. Numbers of dropped tables are refused
 * from then on (PSD_ENOTABLE), in every handle; psd_table() of this one has new ones. Another reader's cache may hand
 * out their rows for up to max-age.
 */
int psd_drop(psd *c, const char *name, psd_dropped *ret, int timeout_ms);

/* ---- clocks, jobs ---- */

/* The clock at which this worker begins, or goes on after it was lost: 0, or the one after the last that it ticked. */
int64_t psd_clock(psd *c);

/* After PSD_EFENCED: the worker has joined again, what was under way is dropped. Lets calls through again, and returns
 * the clock to go on at. */
int64_t psd_resume(psd *c);

/* Flushes, and says goodbye: the other workers no longer wait for this one. Only psd_close(), psd_notice(), psd_drop()
 * and psd_get_stats() may follow. timeout_ms as in psd_flush(). -EINTR, -ETIMEDOUT, PSD_EFENCED: it has not left. */
int psd_leave(psd *c, int timeout_ms);

/*
 * Has every node write a checkpoint, and waits for them, up to timeout_ms; less than 0: as long as each says once a
 * second that it goes on. Returns the number of nodes N; numbers[i] is the number of node i's checkpoint, for i < N and
 * i < n_max. Flushes first. -EINTR, -ETIMEDOUT: the servers may finish it all the same.
 */
int psd_checkpoint(psd *c, uint64_t *numbers, size_t n_max, int timeout_ms);

#ifdef __cplusplus
}
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif

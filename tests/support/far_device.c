#include "tests/support/far_device.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/hash.h"
#include "common/memory.h"
#include "tests/support/far_host.h"
#include "tests/support/far_ops.h"
#include "tests/support/far_rows.h"
#include "tests/support/far_stop.h"

enum { COPIES_MAX = 512, BLOCKS_MAX = 256, RECORDS_MAX = 64 };

#define REGION_BYTES ((size_t)1 << 36)
#define GAP_BYTES 4096u

struct block {
    uintptr_t at;
    size_t n_bytes;
    uint8_t *real; /* owned, exactly so large: the sanitizer sees its borders */
};

struct copy {
    void *to;
    const void *from;
    size_t n_bytes;
    uint64_t hash;          /* of the host's bytes when it was asked for */
    struct row_upload rows; /* n 0: a plain copy */
    bool again;             /* `from` is the device's */
};

enum state { IDLE, BEGUN, ENDED };

struct buffer_set {
    enum state state;
    uint64_t key, order;
    bool replayed;
    struct copy uploads[COPIES_MAX], downloads[COPIES_MAX];
    uint32_t n_uploads, n_uploaded, n_downloads;
    struct far_ops ops; /* that are not run yet */
};

struct record {
    uint64_t key;
    struct far_ops ops;
};

struct compute {
    struct far_seat seat;
    struct compute *cpu; /* owned: of the table beneath */
    uint8_t *region;
    size_t region_used;
    struct block blocks[BLOCKS_MAX];
    struct far_host host;
    struct buffer_set sets[DEVICE_BUFFER_SETS];
    struct buffer_set *open; /* between begin and end */
    uint64_t n_begins;
    struct record records[RECORDS_MAX];
    uint32_t n_records;
};

/* A table of ops has no argument. */
static struct {
    const struct device_ops *cpu;
    const struct far_device_plan *plan;
    struct far_device_counts counts;
    _Atomic uint64_t n_host_allocs; /* any thread's */
} the;

/* ---- memory ---- */

static struct block *find_block(struct compute *c, const void *device, size_t n_bytes)
{
    const uintptr_t at = (uintptr_t)device;

    for (uint32_t i = 0; i < BLOCKS_MAX; i++) {
        struct block *b = &c->blocks[i];

        if (b->real && at >= b->at && at + n_bytes <= b->at + b->n_bytes)
            return b;
    }
    far_stop("%p with %zu bytes is no memory of mine%s", device, n_bytes,
             at - (uintptr_t)c->region < REGION_BYTES ? ": it was freed, or is too short" : "");
    return NULL;
}

static void *real_of(struct compute *c, const void *device)
{
    const struct block *b = find_block(c, device, 1);

    return b->real + ((uintptr_t)device - b->at);
}

static void *far_memory_alloc_zeroed(struct compute *c, size_t n_bytes)
{
    struct block *b = c->blocks;

    if (c->open)
        far_stop("memory is asked for between begin and end");
    while (b->real)
        if (++b == c->blocks + BLOCKS_MAX)
            far_stop("more than %d blocks", BLOCKS_MAX);
    b->real = memory_try_alloc(n_bytes);
    if (!b->real)
        return NULL;
    if (REGION_BYTES - c->region_used < n_bytes + 2 * GAP_BYTES)
        far_stop("the region is used up");
    b->at = (uintptr_t)c->region + c->region_used;
    b->n_bytes = n_bytes;
    c->region_used += (n_bytes + 2 * GAP_BYTES - 1) / GAP_BYTES * GAP_BYTES;
    the.counts.n_allocs++;
    return (void *)b->at;
}

/* What nobody has written is NaN. */
static void *far_memory_alloc(struct compute *c, size_t n_bytes)
{
    void *memory = far_memory_alloc_zeroed(c, n_bytes);

    if (memory)
        memset(real_of(c, memory), 0xff, n_bytes);
    return memory;
}

static void far_memory_free(struct compute *c, void *memory, size_t n_bytes)
{
    struct block *b = find_block(c, memory, n_bytes);

    if (c->open)
        far_stop("memory is freed between begin and end");
    if (b->at != (uintptr_t)memory || b->n_bytes != n_bytes)
        far_stop("%zu bytes are freed as %zu", b->n_bytes, n_bytes);
    free(b->real);
    *b = (struct block){ 0 };
}

static void *far_host_memory(struct compute *c, size_t n_bytes)
{
    void *memory = far_host_alloc(&c->host, n_bytes);

    if (memory)
        atomic_fetch_add(&the.n_host_allocs, 1);
    return memory;
}

static void far_host_memory_free(struct compute *c, void *memory, size_t n_bytes)
{
    if (!far_host_free(&c->host, memory, n_bytes))
        far_stop("%zu bytes of the host are freed that I did not give", n_bytes);
}

static void count_pageable(struct compute *c, const void *host, size_t n_bytes)
{
    the.counts.n_pageable += !far_host_has(&c->host, host, n_bytes);
}

/* ---- copies ---- */

static struct buffer_set *set_at(struct compute *c, uint32_t set)
{
    if (set >= DEVICE_BUFFER_SETS)
        far_stop("there is no buffer set %u", set);
    return &c->sets[set];
}

static void add_copy(struct copy *copies, uint32_t *n, void *to, const void *from,
                     size_t n_bytes)
{
    if (*n == COPIES_MAX)
        far_stop("more than %d copies", COPIES_MAX);
    copies[(*n)++] = (struct copy){ .to = to, .from = from, .n_bytes = n_bytes };
}

static void run_rows(struct compute *c, const struct row_upload *asked)
{
    const size_t row_bytes = asked->dim * sizeof *asked->rows;
    struct row_upload u = *asked;
    int bad;

    (void)find_block(c, u.how, u.n * sizeof *u.how);
    u.how = real_of(c, u.how);
    bad = far_rows_check(&u, find_block(c, u.kept, 1)->n_bytes / row_bytes);
    if (bad >= 0)
        far_stop("row %d has a place beyond the memory, or another row's", bad);
    u.rows = real_of(c, u.rows);
    u.kept = real_of(c, u.kept);
    the.cpu->upload_rows(c->cpu, 0, &u);
    for (uint32_t i = 0; i < u.n; i++)
        the.counts.upload_bytes += u.how[i] & DEVICE_ROW_KEPT ? 0 : row_bytes;
}

static void run_uploads(struct compute *c, struct buffer_set *s)
{
    for (; s->n_uploaded < s->n_uploads; s->n_uploaded++) {
        const struct copy *copy = &s->uploads[s->n_uploaded];

        (void)find_block(c, copy->to, copy->n_bytes);
        if (copy->rows.n) {
            run_rows(c, &copy->rows);
            continue;
        }
        memcpy(real_of(c, copy->to), copy->again ? real_of(c, copy->from) : copy->from,
               copy->n_bytes);
        the.counts.upload_bytes += copy->again ? 0 : copy->n_bytes;
    }
}

static struct copy *add_upload(struct compute *c, uint32_t set, void *device, const void *from,
                               size_t n_bytes)
{
    struct buffer_set *s = set_at(c, set);

    if (s->state != IDLE)
        far_stop("a copy into buffer set %u, whose step has begun", set);
    add_copy(s->uploads, &s->n_uploads, device, from, n_bytes);
    return &s->uploads[s->n_uploads - 1];
}

/* rows.n 0: a plain copy. */
static void ask_upload(struct compute *c, uint32_t set, void *device, const void *host,
                       size_t n_bytes, struct row_upload rows)
{
    struct copy *copy = add_upload(c, set, device, host, n_bytes);

    copy->hash = far_host_hash(host, n_bytes);
    copy->rows = rows;
    count_pageable(c, host, n_bytes);
    the.counts.n_uploads++;
    if (!the.plan->late)
        run_uploads(c, set_at(c, set));
}

/* What is there by then: who began before this has what it asked for. */
static void far_upload_again(struct compute *c, uint32_t set, void *device, const void *from,
                             size_t n_bytes)
{
    (void)find_block(c, from, n_bytes);
    add_upload(c, set, device, from, n_bytes)->again = true;
    if (!the.plan->late)
        run_uploads(c, set_at(c, set));
}

static void far_upload(struct compute *c, uint32_t set, void *device, const void *host,
                       size_t n_bytes)
{
    ask_upload(c, set, device, host, n_bytes, (struct row_upload){ 0 });
}

static void far_upload_rows(struct compute *c, uint32_t set, const struct row_upload *u)
{
    const size_t n_bytes = (size_t)u->n * u->dim * sizeof *u->rows;

    if (!far_host_has(&c->host, u->host, n_bytes))
        far_stop("rows that I am to read myself are in memory that I did not give");
    ask_upload(c, set, u->rows, u->host, n_bytes, *u);
}

static void far_download(struct compute *c, uint32_t set, void *host, const void *device,
                         size_t n_bytes)
{
    struct buffer_set *s = set_at(c, set);

    if (s->state != ENDED)
        far_stop("a copy out of buffer set %u, whose step has not ended", set);
    (void)find_block(c, device, n_bytes);
    memset(host, 0xff, n_bytes); /* NaN, until it is there */
    add_copy(s->downloads, &s->n_downloads, host, device, n_bytes);
    count_pageable(c, host, n_bytes);
    the.counts.n_downloads++;
}

/* ---- steps ---- */

static struct record *find_record(struct compute *c, uint64_t key)
{
    for (uint32_t i = 0; key && i < c->n_records; i++)
        if (c->records[i].key == key)
            return &c->records[i];
    return NULL;
}

static void count_under_way(const struct compute *c)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < DEVICE_BUFFER_SETS; i++)
        n += c->sets[i].state != IDLE;
    if (n > the.counts.most_under_way)
        the.counts.most_under_way = n;
}

static bool far_begin(struct compute *c, uint32_t set, uint64_t key)
{
    struct buffer_set *s = set_at(c, set);
    const struct record *record = find_record(c, key);

    if (c->open || s->state != IDLE)
        far_stop(
            "buffer set %u begins while a step is open, or before the wait for its last one",
            set);
    run_uploads(c, s);
    s->state = BEGUN;
    s->key = key;
    s->order = ++c->n_begins;
    s->replayed = record && the.plan->replays;
    c->open = s;
    count_under_way(c);
    if (!s->replayed)
        return false;
    far_ops_copy(&s->ops, &record->ops);
    the.counts.n_replays++;
    return true;
}

static struct far_ops *open_list(struct compute *c)
{
    if (!c->open)
        far_stop("an op outside of begin and end");
    if (c->open->replayed)
        far_stop("an op of a step that is replayed");
    return &c->open->ops;
}

static void keep_record(struct compute *c, const struct buffer_set *s)
{
    struct record *record = find_record(c, s->key);

    if (!s->key || s->replayed)
        return;
    if (record) {
        const int differs = far_ops_compare(&record->ops, &s->ops);

        if (differs >= 0)
            far_stop("op %d of key %llx is another than it was", differs,
                     (unsigned long long)s->key);
        the.counts.n_compared++;
        return;
    }
    if (c->n_records == RECORDS_MAX)
        far_stop("more than %d records", RECORDS_MAX);
    record = &c->records[c->n_records++];
    record->key = s->key;
    far_ops_copy(&record->ops, &s->ops);
    the.counts.n_records++;
}

static void far_end(struct compute *c, uint32_t set)
{
    struct buffer_set *s = set_at(c, set);

    if (c->open != s)
        far_stop("buffer set %u ends and has not begun", set);
    keep_record(c, s);
    s->state = ENDED;
    c->open = NULL;
    if (!the.plan->late)
        far_ops_run(&s->ops, c, the.cpu, c->cpu);
}

/* Ops of all steps that began before `order`, in that order. */
static void run_up_to(struct compute *c, uint64_t order)
{
    for (;;) {
        struct buffer_set *next = NULL;

        for (uint32_t i = 0; i < DEVICE_BUFFER_SETS; i++) {
            struct buffer_set *s = &c->sets[i];

            if (s->state == ENDED && s->ops.n && s->order <= order &&
                (!next || s->order < next->order))
                next = s;
        }
        if (!next)
            return;
        far_ops_run(&next->ops, c, the.cpu, c->cpu);
    }
}

static void check_uploads(const struct buffer_set *s, uint32_t set)
{
    for (uint32_t i = 0; i < s->n_uploads; i++)
        if (!s->uploads[i].again &&
            far_host_hash(s->uploads[i].from, s->uploads[i].n_bytes) != s->uploads[i].hash)
            far_stop("copy %u into buffer set %u: the host's side has changed before the wait",
                     i, set);
}

static int far_wait(struct compute *c, uint32_t set)
{
    struct buffer_set *s = set_at(c, set);
    const bool runs_all = hash_mix2(the.plan->seed, the.counts.n_waits) & 1;

    if (s->state == BEGUN)
        far_stop("a wait for buffer set %u, whose step has not ended", set);
    run_up_to(c, runs_all ? UINT64_MAX : s->order);
    for (uint32_t i = 0; i < s->n_downloads; i++)
        memcpy((void *)(uintptr_t)s->downloads[i].to, real_of(c, s->downloads[i].from),
               s->downloads[i].n_bytes);
    check_uploads(s, set);
    s->state = IDLE;
    s->n_uploads = s->n_uploaded = s->n_downloads = 0;
    return ++the.counts.n_waits == the.plan->bad_wait ? PS_EDEVICE : 0;
}

/* ---- the device ---- */

static void far_close(struct compute *c)
{
    size_t left;

    if (!c)
        return;
    for (uint32_t i = 0; i < BLOCKS_MAX; i++)
        if (c->blocks[i].real)
            far_stop("%zu bytes were not freed", c->blocks[i].n_bytes);
    left = far_host_deinit(&c->host);
    if (left)
        far_stop("%zu bytes of the host were not freed", left);
    for (uint32_t i = 0; i < DEVICE_BUFFER_SETS; i++)
        far_ops_clear(&c->sets[i].ops);
    for (uint32_t i = 0; i < c->n_records; i++)
        far_ops_clear(&c->records[i].ops);
    the.cpu->close(c->cpu);
    munmap(c->region, REGION_BYTES);
    free(c);
}

static int far_open(const struct device_options *options, struct compute **ret_c,
                    struct err *err)
{
    struct compute *c;
    int status;

    if (the.plan->refuses)
        return err_set(err, PS_EDEVICE, "far: it does not want to");
    c = memory_alloc(sizeof *c);
    c->seat = (struct far_seat){ open_list, real_of };
    status = the.cpu->open(options, &c->cpu, err);
    if (status) {
        free(c);
        return status;
    }
    c->region =
        mmap(NULL, REGION_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (c->region == MAP_FAILED)
        far_stop("no addresses");
    far_host_init(&c->host);
    *ret_c = c;
    return 0;
}

static const char *far_describe(const struct compute *c)
{
    (void)c;
    return "far: the CPU's ops behind memory of their own";
}

static const char *far_failure(const struct compute *c)
{
    (void)c;
    return "far: this wait was to fail";
}

static int far_reserve(struct compute *c, uint32_t n_max, uint32_t in, uint32_t out)
{
    return the.cpu->reserve(c->cpu, n_max, in, out);
}

const struct device_ops *far_device_ops(const struct device_ops *cpu,
                                        const struct far_device_plan *plan)
{
    static struct device_ops ops;

    the.cpu = cpu;
    the.plan = plan;
    the.counts = (struct far_device_counts){ 0 };
    atomic_store(&the.n_host_allocs, 0);
    ops = (struct device_ops){ .name = "far",
                               .wants_transpose = true,
                               .open = far_open,
                               .close = far_close,
                               .describe = far_describe,
                               .reserve = far_reserve,
                               .memory_alloc = far_memory_alloc,
                               .memory_alloc_zeroed = far_memory_alloc_zeroed,
                               .memory_free = far_memory_free,
                               .host_alloc = far_host_memory,
                               .host_free = far_host_memory_free,
                               .upload = far_upload,
                               .upload_from_device = far_upload_again,
                               .upload_rows = far_upload_rows,
                               .download = far_download,
                               .begin = far_begin,
                               .end = far_end,
                               .wait = far_wait,
                               .failure = far_failure };
    far_ops_table(&ops);
    return &ops;
}

struct far_device_counts far_device_counts(void)
{
    struct far_device_counts counts = the.counts;

    counts.n_host_allocs = atomic_load(&the.n_host_allocs);
    return counts;
}

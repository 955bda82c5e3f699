#include "worker/data/data_loader.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"
#include "worker/data/line_reader.h"
#include "worker/data/loader_pass.h"
#include "worker/data/parquet_file.h"
#include "worker/data/parquet_rows.h"

/* A batch and the counts as they were when it was full. */
struct place {
    struct batch batch;
    struct data_loader_counts counts;
    bool is_ready; /* under the lock: the caller may take it */
};

#define STOP_POLL_NS 100000000L
#define NOTICES_MAX 8u /* that wait for the caller; more of them are dropped */
#define NOTICE_BYTES 352u

struct notices {
    uint32_t n;
    char text[NOTICES_MAX][NOTICE_BYTES];
};

/*
 * The queue is a ring of places: n_given .. n_taken - 1 are with the caller, n_taken .. n_read - 1 hold batches for it,
 * ready or in the dedup of one of the threads; place n_read is filled by the one thread that reads. A batch is only
 * touched by the side that its place belongs to, so the lock is held for counters alone.
 */
struct data_loader {
    struct loader_pass *pass; /* owned; of the thread that reads */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under the lock. */
    uint64_t n_read, n_taken, n_given;
    bool is_reading;    /* a thread has the pass */
    uint64_t n_end;     /* so many batches are there in all; UINT64_MAX: not known */
    struct err failure; /* status 0, or why there are no more */
    struct data_loader_counts at_end; /* once n_end is known */
    struct data_loader_counts counts; /* of the batch taken last */
    struct notices notices;           /* the threads', for the caller */

    _Atomic uint64_t read_ns, dedup_ns;
    void (*on_notice)(void *arg, const char *sentence);
    void *notice_arg; /* borrowed */
    bool (*is_stopped)(const void *arg);
    const void *stop_arg;                /* borrowed */
    const struct batch_deduper *deduper; /* borrowed; NULL: none */
    atomic_bool stop;
    pthread_t *threads; /* owned; n_started */
    uint32_t n_threads, n_started;
    uint32_t n_places, n_lend;
    struct place places[];
};

/* ---- the threads ---- */

/* Of the n-th batch, from 0. */
static struct place *place_of(struct data_loader *f, uint64_t n)
{
    return &f->places[n % f->n_places];
}

/* Under the lock. An end that comes earlier counts. */
static void set_end(struct data_loader *f, uint64_t n, int status, const struct err *why,
                    const struct data_loader_counts *counts)
{
    if (n >= f->n_end)
        return;
    f->n_end = n;
    f->at_end = *counts;
    f->failure = (struct err){ 0 };
    if (status)
        f->failure = *why;
}

/* Under the lock, and nobody reads. */
static void end_stopped(struct data_loader *f)
{
    struct data_loader_counts counts;

    loader_pass_counts(f->pass, &counts);
    set_end(f, f->n_read, 0, NULL, &counts);
    pthread_cond_broadcast(&f->changed);
}

/* The place to fill next, with the right to read; or NULL when there is nothing more to be read. */
static struct place *begin_read(struct data_loader *f)
{
    struct place *place = NULL;

    pthread_mutex_lock(&f->lock);
    while ((f->is_reading || f->n_read - f->n_given == f->n_places) && f->n_end == UINT64_MAX &&
           !atomic_load(&f->stop))
        pthread_cond_wait(&f->changed, &f->lock);
    if (f->n_end == UINT64_MAX && !atomic_load(&f->stop)) {
        place = place_of(f, f->n_read);
        f->is_reading = true;
    } else if (!f->is_reading) {
        end_stopped(f);
    }
    pthread_mutex_unlock(&f->lock);
    return place;
}

/* `has`: a batch was read. Returns its number. */
static uint64_t end_read(struct data_loader *f, bool has, int status, const struct err *why)
{
    struct data_loader_counts counts;
    uint64_t n;

    loader_pass_counts(f->pass, &counts);
    pthread_mutex_lock(&f->lock);
    n = f->n_read;
    f->is_reading = false;
    if (has) {
        place_of(f, n)->counts = counts;
        place_of(f, n)->is_ready = false;
        f->n_read++;
    } else {
        set_end(f, n, status, why, &counts);
    }
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return n;
}

static void end_dedup(struct data_loader *f, uint64_t n, int status, const struct err *why)
{
    struct place *place = place_of(f, n);

    pthread_mutex_lock(&f->lock);
    if (status)
        set_end(f, n, status, why, &place->counts);
    else
        place->is_ready = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static void keep_notice(void *arg, const char *sentence)
{
    struct data_loader *f = arg;

    pthread_mutex_lock(&f->lock);
    if (f->notices.n < NOTICES_MAX)
        snprintf(f->notices.text[f->notices.n++], NOTICE_BYTES, "%s", sentence);
    pthread_mutex_unlock(&f->lock);
}

static void add_time_since(_Atomic uint64_t *ns, uint64_t since_ns)
{
    atomic_fetch_add_explicit(ns, clock_mono_ns() - since_ns, memory_order_relaxed);
}

static void *open_deduper(const struct batch_deduper *d)
{
    return d ? d->open(d->arg) : NULL;
}

/* What the deduper cannot do is done here. */
static int dedup_batch(const struct data_loader *f, void *deduper, struct batch *b,
                       struct batch_scratch *memory, struct err *err)
{
    if (deduper && !f->deduper->run(deduper, b))
        return 0;
    return loader_pass_dedup(b, memory, err);
}

static void *fill_batches(void *arg)
{
    struct batch_scratch memory = { 0 };
    struct data_loader *f = arg;
    void *deduper = open_deduper(f->deduper);
    struct err why = { 0 };
    struct place *place;

    while ((place = begin_read(f)) != NULL) {
        uint64_t since_ns = clock_mono_ns(), n;
        int status = loader_pass_read(f->pass, &place->batch, &why);
        bool has = !status && place->batch.n > 0;

        add_time_since(&f->read_ns, since_ns);
        n = end_read(f, has, status, &why);
        if (!has)
            break;
        since_ns = clock_mono_ns();
        status = dedup_batch(f, deduper, &place->batch, &memory, &why);
        add_time_since(&f->dedup_ns, since_ns);
        end_dedup(f, n, status, &why);
    }
    batch_scratch_deinit(&memory);
    if (deduper)
        f->deduper->close(deduper);
    return NULL;
}

/* ---- the caller ---- */

static int check_options(const struct data_loader_options *o, struct err *err)
{
    assert(o->schema && o->batch > 0 && o->n_ranks > 0 && o->rank < o->n_ranks && o->queue > 0);
    if (o->n_paths == 0)
        return err_set(err, PS_ESETTING, "no data: give a file or a directory");
    if (o->labelled && !schema_has_label(o->schema))
        return err_set(err, PS_ESETTING,
                       "label: no column is the label, and without one nothing is "
                       "learned or measured");
    for (uint32_t i = 0; i < o->n_paths; i++)
        if (strcmp(o->paths[i], "-") != 0 && access(o->paths[i], R_OK) != 0)
            return err_set(err, -errno, "%s: cannot read: %s", o->paths[i], strerror(errno));
    return 0;
}

static void stop_threads(struct data_loader *f)
{
    pthread_mutex_lock(&f->lock);
    atomic_store(&f->stop, true);
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    for (uint32_t i = 0; i < f->n_started; i++)
        pthread_join(f->threads[i], NULL);
}

static void free_feed(struct data_loader *f)
{
    stop_threads(f);
    for (uint32_t i = 0; i < f->n_places; i++)
        batch_deinit(&f->places[i].batch);
    loader_pass_free(f->pass);
    free(f->threads);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static int init_places(struct data_loader *f, const struct data_loader_options *o,
                       struct err *err)
{
    int status = 0;

    for (uint32_t i = 0; i < f->n_places && !status; i++) {
        status = batch_init_labels(&f->places[i].batch, o->memory, o->batch,
                                   schema_n_labels(o->schema), schema_n_numeric(o->schema),
                                   schema_n_fields(o->schema));
        f->places[i].batch.groups = o->groups;
    }
    if (status)
        return err_set(err, status, "no memory for %u batches of %u rows", f->n_places,
                       o->batch);
    return 0;
}

static int start_threads(struct data_loader *f, struct err *err)
{
    int status = 0;

    f->threads = memory_try_alloc(f->n_threads * sizeof *f->threads);
    if (!f->threads)
        return err_set(err, -ENOMEM, "no memory for %u reading threads", f->n_threads);
    while (f->n_started < f->n_threads && !status) {
        status = -pthread_create(&f->threads[f->n_started], NULL, fill_batches, f);
        f->n_started += !status;
    }
    return status ? err_set(err, status, "cannot start a reading thread: %s", strerror(-status))
                  : 0;
}

int data_loader_open(const struct data_loader_options *options, struct data_loader **ret_loader,
                     struct err *err)
{
    struct data_loader_options own = *options;
    int status = check_options(options, err);
    struct data_loader *f;
    uint32_t n_lend;

    if (status)
        return status;
    n_lend = options->lend ? options->lend : 1;
    f = memory_try_alloc(sizeof *f + (options->queue + n_lend) * sizeof *f->places);
    if (!f)
        return err_set(err, -ENOMEM, "no memory for a queue of %u batches", options->queue);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    f->n_end = UINT64_MAX;
    f->n_threads = options->n_threads ? options->n_threads : 1;
    f->n_lend = n_lend;
    f->n_places = options->queue + n_lend;
    status = init_places(f, options, err);
    f->on_notice = options->on_notice;
    f->notice_arg = options->notice_arg;
    f->is_stopped = options->is_stopped;
    f->stop_arg = options->stop_arg;
    f->deduper = options->deduper;
    own.on_notice = keep_notice;
    own.notice_arg = f;
    if (!status)
        status = loader_pass_new(&own, &f->stop, &f->pass, err);
    if (!status)
        status = start_threads(f, err);
    if (status) {
        free_feed(f);
        return status;
    }
    *ret_loader = f;
    return 0;
}

void data_loader_release(struct data_loader *f)
{
    pthread_mutex_lock(&f->lock);
    assert(f->n_given < f->n_taken);
    f->n_given++;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

/* Under the lock: the next batch is ready, or there is none. */
static bool is_next_known(struct data_loader *f)
{
    return f->n_taken == f->n_end ||
           (f->n_taken < f->n_read && place_of(f, f->n_taken)->is_ready);
}

bool data_loader_is_ready(struct data_loader *f)
{
    bool ready;

    pthread_mutex_lock(&f->lock);
    ready = is_next_known(f);
    pthread_mutex_unlock(&f->lock);
    return ready;
}

static void report_notices(struct data_loader *f, const struct notices *notices)
{
    for (uint32_t i = 0; i < notices->n && f->on_notice; i++)
        f->on_notice(f->notice_arg, notices->text[i]);
}

/* Under the lock: until a thread has made something, or a while has passed. */
static void wait_for_batch(struct data_loader *f)
{
    struct timespec until;

    if (!f->is_stopped) {
        pthread_cond_wait(&f->changed, &f->lock);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += STOP_POLL_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_clockwait(&f->changed, &f->lock, CLOCK_MONOTONIC, &until);
    if (f->is_stopped(f->stop_arg) && !atomic_load(&f->stop)) {
        atomic_store(&f->stop, true);
        pthread_cond_broadcast(&f->changed);
    }
}

int data_loader_acquire(struct data_loader *f, struct batch **ret_batch, struct err *err)
{
    struct notices notices;
    struct place *place;
    int status = 0;

    pthread_mutex_lock(&f->lock);
    assert(f->n_taken - f->n_given < f->n_lend);
    while (!is_next_known(f))
        wait_for_batch(f);
    place = f->n_taken < f->n_end ? place_of(f, f->n_taken) : NULL;
    f->n_taken += place != NULL;
    if (!place && f->failure.status)
        status = err_set(err, f->failure.status, "%s", f->failure.text);
    f->counts = place ? place->counts : f->at_end;
    notices.n = f->notices.n;
    memcpy(notices.text, f->notices.text, notices.n * sizeof *notices.text);
    f->notices.n = 0;
    pthread_mutex_unlock(&f->lock);
    report_notices(f, &notices);
    *ret_batch = place ? &place->batch : NULL;
    return status;
}

int data_loader_next(struct data_loader *f, struct batch **ret_batch, struct err *err)
{
    while (f->n_given <
           f->n_taken) /* both this thread's, as data_loader_next() is all it calls */
        data_loader_release(f);
    return data_loader_acquire(f, ret_batch, err);
}

void data_loader_counts(struct data_loader *f, struct data_loader_counts *ret)
{
    pthread_mutex_lock(&f->lock);
    *ret = f->counts;
    pthread_mutex_unlock(&f->lock);
}

void data_loader_bad_rows_add(struct data_loader_bad_rows *sum,
                              const struct data_loader_counts *counts)
{
    if (!sum->n)
        memcpy(sum->first, counts->bad_row, sizeof sum->first);
    sum->n += counts->bad_rows;
}

uint64_t data_loader_busy_ns(const struct data_loader *f)
{
    const uint64_t read_ns = atomic_load_explicit(&f->read_ns, memory_order_relaxed),
                   dedup_ns = atomic_load_explicit(&f->dedup_ns, memory_order_relaxed),
                   share_ns = (read_ns + dedup_ns) / f->n_threads;

    return read_ns > share_ns ? read_ns : share_ns;
}

void data_loader_close(struct data_loader *f)
{
    if (f)
        free_feed(f);
}

/* ---- files ---- */

struct file_list {
    char **files;
    uint32_t n, cap;
};

static void free_list(struct file_list *list)
{
    for (uint32_t i = 0; i < list->n; i++)
        free(list->files[i]);
    free(list->files);
}

static int add_file(struct file_list *list, const char *directory, const char *name,
                    struct err *err)
{
    size_t n_directory = strlen(directory), n_bytes = n_directory + strlen(name) + 2;
    bool slash = name[0] && (n_directory == 0 || directory[n_directory - 1] != '/');
    char *path = memory_try_alloc(n_bytes);

    if (path && list->n == list->cap) {
        uint32_t cap = list->cap ? list->cap * 2 : 16;
        char **files = memory_try_realloc(list->files, cap * sizeof *files);

        if (!files) {
            free(path);
            path = NULL;
        } else {
            list->files = files;
            list->cap = cap;
        }
    }
    if (!path)
        return err_set(err, -ENOMEM, "%s: no memory to list its files", directory);
    snprintf(path, n_bytes, "%s%s%s", directory, slash ? "/" : "", name);
    list->files[list->n++] = path;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_data_file(const char *directory, const char *name)
{
    char path[4096];
    struct stat st;

    if (name[0] == '.' ||
        snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path)
        return false;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static int add_directory(struct file_list *list, const char *path, struct err *err)
{
    uint32_t n_before = list->n;
    DIR *directory = opendir(path);
    struct dirent *entry;
    int status = 0;

    if (!directory)
        return err_set(err, -errno, "%s: cannot list: %s", path, strerror(errno));
    while (!status && (entry = readdir(directory)) != NULL)
        if (is_data_file(path, entry->d_name))
            status = add_file(list, path, entry->d_name, err);
    closedir(directory);
    if (status)
        return status;
    if (list->n == n_before)
        return err_set(err, PS_EDATA, "%s: a directory without a data file", path);
    qsort(list->files + n_before, list->n - n_before, sizeof *list->files, by_name);
    return 0;
}

int data_loader_expand(char *const *paths, uint32_t n_paths, char ***ret_files, uint32_t *ret_n,
                       struct err *err)
{
    struct file_list list = { 0 };
    struct stat st;
    int status = n_paths ? 0 : err_set(err, PS_ESETTING, "no data: give a file or a directory");

    for (uint32_t i = 0; i < n_paths && !status; i++) {
        if (strcmp(paths[i], "-") == 0)
            status = add_file(&list, paths[i], "", err);
        else if (stat(paths[i], &st) != 0)
            status = err_set(err, -errno, "%s: cannot open: %s", paths[i], strerror(errno));
        else if (S_ISDIR(st.st_mode))
            status = add_directory(&list, paths[i], err);
        else
            status = add_file(&list, paths[i], "", err);
    }
    if (status) {
        free_list(&list);
        return status;
    }
    *ret_files = list.files;
    *ret_n = list.n;
    return 0;
}

static int count_rows(const char *file, const struct schema *schema, uint64_t *rows,
                      struct err *err)
{
    uint64_t n_lines = 0;
    struct line_reader_line line;
    struct line_reader *reader;
    int status;

    if (parquet_file_is_one(file)) {
        status = parquet_rows_count(file, &n_lines, err);
        *rows += n_lines;
        return status;
    }
    status = line_reader_open(file, &reader, err);
    if (status)
        return status;
    while ((status = line_reader_next(reader, &line, err)) == 0 && line.bytes)
        n_lines++;
    line_reader_close(reader);
    *rows += n_lines - (n_lines > 0 && schema_has_header(schema));
    return status;
}

int data_loader_count_rows(char *const *files, uint32_t n_files, const struct schema *schema,
                           uint64_t *ret_rows, struct err *err)
{
    uint64_t rows = 0;
    int status = 0;

    for (uint32_t i = 0; i < n_files && !status; i++)
        status = count_rows(files[i], schema, &rows, err);
    if (!status)
        *ret_rows = rows;
    return status;
}

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
};

#define STOP_POLL_NS 100000000L
#define NOTICES_MAX 8u /* that wait for the caller; more of them are dropped */
#define NOTICE_BYTES 352u

struct notices {
    uint32_t n;
    char text[NOTICES_MAX][NOTICE_BYTES];
};

/*
 * The queue is a ring of places: n_given .. n_taken - 1 are with the caller, n_taken ..
 * n_filled - 1 hold batches for it, the thread fills place n_filled. A batch is only touched by the side that its
 * place belongs to, so the lock is held for counters alone.
 */
struct data_loader {
    struct loader_pass *pass; /* owned; the thread's while it runs */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under the lock. */
    uint64_t n_filled, n_taken, n_given;
    bool ended;                       /* nothing more will be filled */
    struct err failure;               /* status 0, or why it ended */
    struct data_loader_counts at_end; /* once ended */
    struct data_loader_counts counts; /* of the batch taken last */
    struct notices notices;           /* the thread's, for the caller */

    _Atomic uint64_t busy_ns;
    void (*on_notice)(void *arg, const char *sentence);
    void *notice_arg; /* borrowed */
    bool (*is_stopped)(const void *arg);
    const void *stop_arg; /* borrowed */
    atomic_bool stop;
    uint32_t n_places, n_lend;
    struct place places[];
};

/* ---- the thread ---- */

/* The place to fill next, or NULL when the loader is being closed. */
static struct place *wait_for_place(struct data_loader *f)
{
    struct place *place;

    pthread_mutex_lock(&f->lock);
    while (f->n_filled - f->n_given == f->n_places && !atomic_load(&f->stop))
        pthread_cond_wait(&f->changed, &f->lock);
    place = atomic_load(&f->stop) ? NULL : &f->places[f->n_filled % f->n_places];
    pthread_mutex_unlock(&f->lock);
    return place;
}

static void announce_batch(struct data_loader *f)
{
    pthread_mutex_lock(&f->lock);
    f->n_filled++;
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static void announce_end(struct data_loader *f, int status, const struct err *why)
{
    pthread_mutex_lock(&f->lock);
    f->ended = true;
    if (status)
        f->failure = *why;
    loader_pass_counts(f->pass, &f->at_end);
    pthread_cond_signal(&f->changed);
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

static int fill_place(struct data_loader *f, struct place *place, struct err *why)
{
    uint64_t since_ns = clock_mono_ns();
    int status = loader_pass_fill(f->pass, &place->batch, why);

    atomic_fetch_add_explicit(&f->busy_ns, clock_mono_ns() - since_ns, memory_order_relaxed);
    return status;
}

static void *fill_batches(void *arg)
{
    struct data_loader *f = arg;
    struct err why = { 0 };
    struct place *place;
    int status = 0;

    while ((place = wait_for_place(f)) != NULL) {
        status = fill_place(f, place, &why);
        if (status || place->batch.n == 0)
            break;
        loader_pass_counts(f->pass, &place->counts);
        announce_batch(f);
    }
    announce_end(f, status, &why);
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

static void free_feed(struct data_loader *f)
{
    for (uint32_t i = 0; i < f->n_places; i++)
        batch_deinit(&f->places[i].batch);
    loader_pass_free(f->pass);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static int init_places(struct data_loader *f, const struct data_loader_options *o,
                       struct err *err)
{
    int status = 0;

    for (uint32_t i = 0; i < f->n_places && !status; i++)
        status = batch_init_in(&f->places[i].batch, o->memory, o->batch,
                               schema_n_numeric(o->schema), schema_n_fields(o->schema));
    if (status)
        return err_set(err, status, "no memory for %u batches of %u rows", f->n_places,
                       o->batch);
    return 0;
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
    f->n_lend = n_lend;
    f->n_places = options->queue + n_lend;
    status = init_places(f, options, err);
    f->on_notice = options->on_notice;
    f->notice_arg = options->notice_arg;
    f->is_stopped = options->is_stopped;
    f->stop_arg = options->stop_arg;
    own.on_notice = keep_notice;
    own.notice_arg = f;
    if (!status)
        status = loader_pass_new(&own, &f->stop, &f->pass, err);
    if (!status && (status = -pthread_create(&f->thread, NULL, fill_batches, f)) != 0)
        err_set(err, status, "cannot start the reading thread: %s", strerror(-status));
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
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

bool data_loader_is_ready(struct data_loader *f)
{
    bool ready;

    pthread_mutex_lock(&f->lock);
    ready = f->n_filled > f->n_taken || f->ended;
    pthread_mutex_unlock(&f->lock);
    return ready;
}

static void report_notices(struct data_loader *f, const struct notices *notices)
{
    for (uint32_t i = 0; i < notices->n && f->on_notice; i++)
        f->on_notice(f->notice_arg, notices->text[i]);
}

/* Under the lock: until the thread has made something, or a while has passed. */
static void wait_for_batch(struct data_loader *f)
{
    struct timespec until;

    if (!f->is_stopped) {
        pthread_cond_wait(&f->changed, &f->lock);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += STOP_POLL_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&f->changed, &f->lock, &until);
    if (f->is_stopped(f->stop_arg))
        atomic_store(&f->stop, true);
}

int data_loader_acquire(struct data_loader *f, struct batch **ret_batch, struct err *err)
{
    struct notices notices;
    struct place *place;
    int status = 0;

    pthread_mutex_lock(&f->lock);
    assert(f->n_taken - f->n_given < f->n_lend);
    while (f->n_filled == f->n_taken && !f->ended)
        wait_for_batch(f);
    place = f->n_filled > f->n_taken ? &f->places[f->n_taken % f->n_places] : NULL;
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
    return atomic_load_explicit(&f->busy_ns, memory_order_relaxed);
}

void data_loader_close(struct data_loader *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    atomic_store(&f->stop, true);
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
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

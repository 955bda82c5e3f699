#include "worker/serve/scorer.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/memory.h"

#define CALLS_MAX 256u /* that share a pass */

/* The samples of a call in the batch. */
struct share {
    struct score_call *call;
    uint32_t first, n;
};

struct scoring_thread {
    struct scorer *scorer;
    pthread_t thread;
    bool is_running;
    struct served_model_reader *reader; /* owned */
    struct batch batch;
    struct share shares[CALLS_MAX];
    uint32_t n_shares;
};

struct scorer {
    struct served_model *model;     /* borrowed */
    struct score_columns *columns;  /* owned */
    struct scoring_thread *threads; /* owned */
    uint32_t n_threads, n_tasks;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct score_call *first, **last; /* those that wait */
    uint64_t n_waiting;
    bool is_stopping;
    _Atomic uint64_t n_batches, n_rows;
};

/* ---- the queue ---- */

/* Under the lock. */
static struct score_call *pop(struct scorer *s)
{
    struct score_call *call = s->first;

    if (!call)
        return NULL;
    s->first = call->next;
    if (!s->first)
        s->last = &s->first;
    s->n_waiting--;
    return call;
}

/* NULL: the end. */
static struct score_call *wait_for_call(struct scorer *s)
{
    struct score_call *call;

    pthread_mutex_lock(&s->lock);
    while (!s->is_stopping && !s->first)
        pthread_cond_wait(&s->changed, &s->lock);
    call = s->is_stopping ? NULL : pop(s);
    pthread_mutex_unlock(&s->lock);
    return call;
}

/* NULL: none waits. */
static struct score_call *next_call(struct scorer *s)
{
    struct score_call *call;

    pthread_mutex_lock(&s->lock);
    call = pop(s);
    pthread_mutex_unlock(&s->lock);
    return call;
}

static void finish(struct score_call *call)
{
    score_request_close(&call->request);
    call->on_done(call);
}

static void fail(struct score_call *call, int status, const char *sentence)
{
    call->status = status;
    err_set(&call->err, status, "%s", sentence);
    finish(call);
}

static void refuse_stopping(struct score_call *call)
{
    fail(call, PS_ESTOPPING, "psworker is stopping");
}

/* ---- a pass ---- */

static int open_call(struct scorer *s, struct score_call *call)
{
    call->status =
        score_request_open(&call->request, s->columns, call->body, call->n_bytes, &call->err);
    if (call->status)
        return call->status;
    call->n_rows = call->request.n_rows;
    call->n_tasks = s->n_tasks;
    call->scores =
        memory_try_alloc((call->n_rows + (size_t)1) * s->n_tasks * sizeof *call->scores);
    if (!call->scores)
        call->status = err_set(&call->err, -ENOMEM, "no memory for %u scores", call->n_rows);
    return call->status;
}

/* Adds rows of the call to the batch. True: it has more, and the batch is full. A call that fails is done. */
static bool add_call(struct scoring_thread *t, struct score_call *call)
{
    struct batch *b = &t->batch;
    const uint32_t n_before = b->n, n_keys_before = b->n_keys;

    if (atomic_load(&call->is_abandoned)) {
        fail(call, PS_EDEADLINE, status_text(PS_EDEADLINE));
        return false;
    }
    if (!call->status)
        call->status = score_request_read(&call->request, b, &call->err);
    if (call->status) {
        b->n = n_before;
        b->n_keys = n_keys_before;
        finish(call);
        return false;
    }
    t->shares[t->n_shares++] = (struct share){ call, n_before, b->n - n_before };
    return call->request.n_read < call->n_rows;
}

/* Fills the batch, with the rest of `call` first. Returns the call that has more rows than had space; NULL: none. */
static struct score_call *gather(struct scoring_thread *t, struct score_call *call)
{
    struct scorer *s = t->scorer;

    batch_clear(&t->batch);
    t->n_shares = 0;
    while (call) {
        if (!call->request.columns && open_call(s, call))
            finish(call);
        else if (add_call(t, call))
            return call;
        if (t->batch.n == t->batch.n_max || t->n_shares == CALLS_MAX)
            break;
        call = next_call(s);
    }
    return NULL;
}

/* The last moment for which somebody waits. */
static uint64_t latest_deadline(const struct scoring_thread *t)
{
    uint64_t latest_ns = 0;

    for (uint32_t i = 0; i < t->n_shares; i++)
        if (t->shares[i].call->deadline_ns > latest_ns)
            latest_ns = t->shares[i].call->deadline_ns;
    return latest_ns;
}

static void add_stamp(struct score_call *call, const struct served_model_stamp *stamp)
{
    struct served_model_stamp *to = &call->stamp;

    if (!call->n_scored) {
        *to = *stamp;
        return;
    }
    to->has_clock = to->has_clock && stamp->has_clock;
    to->clock = stamp->clock < to->clock ? stamp->clock : to->clock;
    to->taken_ns = stamp->taken_ns < to->taken_ns ? stamp->taken_ns : to->taken_ns;
}

static void hand_out(struct scoring_thread *t, const float *probs,
                     const struct served_model_stamp *stamp)
{
    const uint32_t n_tasks = t->scorer->n_tasks;

    for (uint32_t i = 0; i < t->n_shares; i++) {
        const struct share *share = &t->shares[i];
        struct score_call *call = share->call;

        if (share->n)
            memcpy(call->scores + (size_t)call->n_scored * n_tasks,
                   probs + (size_t)share->first * n_tasks,
                   (size_t)share->n * n_tasks * sizeof *probs);
        add_stamp(call, stamp);
        call->n_scored += share->n;
    }
}

static int compute(struct scoring_thread *t, const float **ret_probs,
                   struct served_model_stamp *ret, struct err *err)
{
    if (batch_dedup(&t->batch))
        return err_set(err, -ENOMEM, "no memory for the keys of %u rows", t->batch.n);
    atomic_fetch_add(&t->scorer->n_batches, 1);
    atomic_fetch_add(&t->scorer->n_rows, t->batch.n);
    return served_model_predict(t->reader, &t->batch, latest_deadline(t), ret_probs, ret, err);
}

/* Requests without a row have a stamp, too. */
static void stamp_nothing(struct scoring_thread *t, struct served_model_stamp *ret)
{
    struct served_model_state state;

    served_model_state(t->scorer->model, &state);
    *ret = state.stamp;
}

/* Computes the batch, and ends the calls in it that have no more rows. Returns `rest`, or NULL if it has failed. */
static struct score_call *score(struct scoring_thread *t, struct score_call *rest)
{
    struct served_model_stamp stamp = { 0 };
    const float *probs = NULL;
    struct err err = { 0 };
    int status = 0;

    if (t->batch.n)
        status = compute(t, &probs, &stamp, &err);
    else
        stamp_nothing(t, &stamp);
    if (!status)
        hand_out(t, probs, &stamp);
    for (uint32_t i = 0; i < t->n_shares; i++) {
        struct score_call *call = t->shares[i].call;

        if (status) {
            call->status = status;
            call->err = err;
        }
        if (status || call != rest)
            finish(call);
    }
    return status ? NULL : rest;
}

static void *run(void *arg)
{
    struct scoring_thread *t = arg;
    struct score_call *call, *rest = NULL;

    while ((call = rest ? rest : wait_for_call(t->scorer)) != NULL) {
        rest = gather(t, call);
        if (t->n_shares)
            rest = score(t, rest);
    }
    return NULL;
}

/* ---- start and end ---- */

static int start_threads(struct scorer *s, uint32_t batch_max, struct err *err)
{
    const struct schema *schema = served_model_schema(s->model);
    int status = 0;

    for (uint32_t i = 0; i < s->n_threads && !status; i++) {
        struct scoring_thread *t = &s->threads[i];

        t->scorer = s;
        if (batch_init(&t->batch, batch_max, schema_n_numeric(schema), schema_n_fields(schema)))
            return err_set(err, -ENOMEM, "no memory for batches of %u rows", batch_max);
        t->batch.groups = served_model_groups(s->model);
        status = served_model_reader_new(s->model, &t->reader, err);
        if (!status && pthread_create(&t->thread, NULL, run, t) != 0)
            status = err_set(err, -EAGAIN, "no thread can be started");
        t->is_running = !status;
    }
    return status;
}

int scorer_start(struct served_model *m, uint32_t n_threads, uint32_t batch_max,
                 struct scorer **ret, struct err *err)
{
    struct scorer *s = memory_alloc(sizeof *s);
    int status;

    s->model = m;
    s->n_threads = n_threads;
    s->n_tasks = served_model_n_tasks(m);
    s->threads = memory_alloc(n_threads * sizeof *s->threads);
    s->last = &s->first;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    status = score_columns_new(served_model_schema(m), &s->columns, err);
    if (!status)
        status = start_threads(s, batch_max, err);
    if (status) {
        scorer_stop(s);
        scorer_free(s);
        return status;
    }
    *ret = s;
    return 0;
}

void scorer_stop(struct scorer *s)
{
    struct score_call *call;

    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < s->n_threads; i++)
        if (s->threads[i].is_running)
            pthread_join(s->threads[i].thread, NULL);
    while ((call = next_call(s)) != NULL)
        refuse_stopping(call);
}

void scorer_free(struct scorer *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->n_threads; i++) {
        served_model_reader_free(s->threads[i].reader);
        batch_deinit(&s->threads[i].batch);
    }
    score_columns_free(s->columns);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s->threads);
    free(s);
}

void scorer_submit(struct scorer *s, struct score_call *call)
{
    bool is_stopping;

    pthread_mutex_lock(&s->lock);
    is_stopping = s->is_stopping;
    if (!is_stopping) {
        call->next = NULL;
        *s->last = call;
        s->last = &call->next;
        s->n_waiting++;
        pthread_cond_signal(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    if (is_stopping)
        refuse_stopping(call);
}

const struct score_columns *scorer_columns(const struct scorer *s)
{
    return s->columns;
}

void scorer_count(struct scorer *s, struct scorer_counts *ret)
{
    pthread_mutex_lock(&s->lock);
    ret->n_waiting = s->n_waiting;
    pthread_mutex_unlock(&s->lock);
    ret->n_batches = atomic_load(&s->n_batches);
    ret->n_rows = atomic_load(&s->n_rows);
}

#include "worker/serve/served_model.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "common/token_file.h"
#include "worker/compute/device.h"
#include "worker/job_peers.h"
#include "worker/model_record.h"
#include "worker/model_tables.h"
#include "worker/setup.h"

#define NS_IN_MS UINT64_C(1000000)
#define CLOCK_EVERY_MS \
    250u /* the job's clock is asked for so often; an older one still holds */
#define RETRY_MS 50u
#define LINE_EVERY_MS 10000u

/* One thread's half of the model. */
struct served_model_reader {
    struct served_model *m;   /* borrowed */
    struct param_store *view; /* owned; NULL: the model's own store, under pull_lock */
    struct setup setup;       /* its model and the memory of batches; else the served model's */
    struct model_tables *tables; /* owned */
    struct step_buffers step;
    uint64_t number; /* of the dense arrays in step.dense */
};

struct served_model {
    struct settings *settings;            /* owned */
    struct setup setup;                   /* its schema */
    struct param_store *store;            /* owned */
    struct model_record *record;          /* owned */
    struct served_model_reader *follower; /* owned: pulls the dense arrays */
    struct batch no_rows;                 /* the follower's: zeroed */
    uint64_t max_age_ns;
    bool follows;
    pthread_mutex_t pull_lock; /* of a store whose calls must not overlap */

    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    bool is_stopping, has_thread, has_failed;
    pthread_t thread;
    float *dense; /* owned */
    size_t n_dense;
    uint64_t number, taken_ns, clock;
    bool has_clock;
    uint64_t n_failed;
    struct err failure; /* status 0: the last refresh went well */
};

static void notice(void *arg, const char *sentence)
{
    (void)arg;
    log_line_info("%s", sentence);
}

/* ---- readers ---- */

void served_model_reader_free(struct served_model_reader *r)
{
    if (!r)
        return;
    if (r->tables)
        model_tables_step_deinit(r->tables, &r->step);
    model_tables_free(r->tables);
    batch_memory_free(r->setup.batch_memory);
    dlrm_free(r->setup.model);
    if (r->view)
        r->view->ops->close(r->view);
    free(r);
}

int served_model_reader_new(struct served_model *m, struct served_model_reader **ret,
                            struct err *err)
{
    struct served_model_reader *r = memory_alloc(sizeof *r);
    int status;

    *r = (struct served_model_reader){
        .m = m, .setup = { .s = m->settings, .schema = m->setup.schema }
    };
    if (m->store->ops->overlaps)
        r->view = param_store_remote_view(m->store);
    status = setup_model_on(&r->setup, &device_cpu, err);
    if (!status)
        status =
            model_tables_find(m->settings, r->setup.model, schema_n_numeric(m->setup.schema),
                              r->view ? r->view : m->store, &r->tables, err);
    if (!status)
        status = model_tables_step_init(r->tables, &r->step, err);
    if (status) {
        served_model_reader_free(r);
        return status;
    }
    *ret = r;
    return 0;
}

static int pull(struct served_model_reader *r, enum model_tables_want want, struct err *err)
{
    int status;

    if (r->view)
        return model_tables_pull(r->tables, &r->step, want, err);
    pthread_mutex_lock(&r->m->pull_lock);
    status = model_tables_pull(r->tables, &r->step, want, err);
    pthread_mutex_unlock(&r->m->pull_lock);
    return status;
}

/* ---- the dense arrays ---- */

/* Under the lock. */
static bool is_fresh(const struct served_model *m)
{
    return !m->follows || clock_mono_ns() - m->taken_ns <= m->max_age_ns;
}

static void publish(struct served_model *m, uint64_t taken_ns, bool has_clock, uint64_t clock)
{
    pthread_mutex_lock(&m->lock);
    memcpy(m->dense, m->follower->step.dense, m->n_dense * sizeof *m->dense);
    m->number++;
    m->taken_ns = taken_ns;
    m->has_clock = has_clock;
    m->clock = clock;
    m->failure = (struct err){ 0 };
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

/* The bound is kept whatever the clock is, so a server that does not say it is no failure. */
static bool ask_clock(const struct served_model *m, uint64_t *ret)
{
    const uint64_t patience_ms = m->settings->max_age_ms / 4;
    struct err ignored;

    return job_peers_clock(m->settings,
                           patience_ms < 20     ? 20
                           : patience_ms > 1000 ? 1000
                                                : (uint32_t)patience_ms,
                           ret, &ignored) == 0;
}

/* What the follower keeps between two pulls. */
struct follow {
    uint64_t asked_ms, clock, warned_ms;
    bool has_clock;
};

static int refresh(struct served_model *m, struct follow *f, struct err *err)
{
    const uint64_t now_ms = clock_mono_ms();
    uint64_t taken_ns;
    int status;

    if (m->follows && (!f->asked_ms || now_ms - f->asked_ms >= CLOCK_EVERY_MS)) {
        f->has_clock = ask_clock(m, &f->clock) || f->has_clock; /* the last one still holds */
        f->asked_ms = now_ms;
    }
    taken_ns = clock_mono_ns();
    m->follower->step.batch = &m->no_rows;
    status = pull(m->follower, MODEL_TABLES_DENSE, err);
    if (!status)
        publish(m, taken_ns, f->has_clock, f->clock);
    return status;
}

static void note_failure(struct served_model *m, struct follow *f, const struct err *err)
{
    const uint64_t now_ms = clock_mono_ms();

    pthread_mutex_lock(&m->lock);
    m->failure = *err;
    m->n_failed++;
    m->has_failed = clock_mono_ns() - m->taken_ns > m->settings->give_up_ms * NS_IN_MS;
    pthread_mutex_unlock(&m->lock);
    if (f->warned_ms && now_ms - f->warned_ms < LINE_EVERY_MS)
        return;
    f->warned_ms = now_ms;
    log_line_warn("the model cannot be refreshed: %s", err->text);
}

static struct timespec at_ns(uint64_t ns)
{
    return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000),
                              .tv_nsec = (long)(ns % 1000000000) };
}

/* Under the lock. */
static void sleep_until(struct served_model *m, uint64_t until_ns)
{
    const struct timespec until = at_ns(until_ns);

    while (!m->is_stopping && clock_mono_ns() < until_ns &&
           pthread_cond_timedwait(&m->changed, &m->lock, &until) == 0)
        ;
}

static void *follow(void *arg)
{
    struct served_model *m = arg;
    struct follow f = { 0 };

    pthread_mutex_lock(&m->lock);
    sleep_until(m, m->taken_ns + m->max_age_ns / 2);
    while (!m->is_stopping) {
        uint64_t next_ns = clock_mono_ns() + m->max_age_ns / 2;
        struct err err = { 0 };
        int status;

        pthread_mutex_unlock(&m->lock);
        status = refresh(m, &f, &err);
        if (status) {
            note_failure(m, &f, &err);
            next_ns = clock_mono_ns() + RETRY_MS * NS_IN_MS;
        } else {
            f.warned_ms = 0;
        }
        pthread_mutex_lock(&m->lock);
        sleep_until(m, next_ns);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* Copies the dense arrays for the reader, if it has others. Waits until they are within the bound. */
static int take_dense(struct served_model_reader *r, uint64_t until_ns,
                      struct served_model_stamp *ret, struct err *err)
{
    const struct timespec until = at_ns(until_ns);
    struct served_model *m = r->m;
    int status = 0;

    pthread_mutex_lock(&m->lock);
    while (!is_fresh(m) && !m->is_stopping && !status)
        status = -pthread_cond_timedwait(&m->changed, &m->lock, &until);
    if (is_fresh(m)) {
        status = 0;
        r->step.has_dense = r->number != m->number;
        if (r->step.has_dense)
            memcpy(r->step.dense, m->dense, m->n_dense * sizeof *m->dense);
        r->number = m->number;
        *ret = (struct served_model_stamp){ m->follows, m->has_clock, m->clock, m->taken_ns };
    } else {
        status =
            err_set(err, PS_EDEADLINE,
                    "the model is older than --max-age %llu ms, and no newer one comes%s%.180s",
                    (unsigned long long)m->settings->max_age_ms, m->failure.text[0] ? ": " : "",
                    m->failure.text);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

int served_model_predict(struct served_model_reader *r, struct batch *batch, uint64_t until_ns,
                         const float **ret_probs, struct served_model_stamp *ret,
                         struct err *err)
{
    const uint64_t rows_ns = clock_mono_ns();
    struct dlrm_step step;
    int status;

    r->step.batch = batch;
    status = pull(r, MODEL_TABLES_ROWS, err);
    if (!status)
        status = take_dense(r, until_ns, ret, err);
    if (status)
        return status;
    if (rows_ns < ret->taken_ns)
        ret->taken_ns = rows_ns;
    step = model_tables_use(r->tables, &r->step);
    status = dlrm_predict(r->setup.model, &step);
    if (status)
        return dlrm_failed(r->setup.model, status, err);
    if (r->m->follows && clock_mono_ns() - ret->taken_ns > r->m->max_age_ns)
        return err_set(err, PS_EDEADLINE,
                       "the rows came later than --max-age %llu ms after they were asked for",
                       (unsigned long long)r->m->settings->max_age_ms);
    *ret_probs = dlrm_probs(r->setup.model);
    return 0;
}

/* ---- start and end ---- */

/* As the job's record says; of a job that has none, by settings as in its training. */
static int find_schema(struct served_model *m, struct err *err)
{
    struct settings *s = m->settings;
    int status = model_record_adopt(s, m->store, &m->setup.schema, &m->setup.fields, err);

    if (status && (s->data.n || s->format[0] || s->columns[0])) {
        log_line_info("columns come from the settings: %s", err->text);
        status = setup_columns(&m->setup, s, err);
        if (!status)
            status = setup_fields(&m->setup, s, err);
    }
    if (!status)
        status = setup_inputs(&m->setup, s, m->store, err);
    if (!status)
        status = model_record_open(s, m->setup.schema, m->store, &m->record, err);
    return status;
}

static int load_moments(struct served_model *m, struct err *err)
{
    const uint32_t n = schema_n_numeric(m->setup.schema);
    float *mean;
    int status;

    if (!schema_needs_moments(m->setup.schema))
        return 0;
    mean = memory_alloc(2 * n * sizeof *mean);
    status = model_tables_load_moments(m->follower->tables, mean, mean + n, err);
    if (!status)
        schema_set_moments(m->setup.schema, mean, mean + n);
    free(mean);
    return status;
}

static int load(struct served_model *m, const struct stop_signal *stop, struct err *err)
{
    struct settings *s = m->settings;
    struct follow first = { 0 };
    int status = 0;

    if (!s->checkpoint[0])
        status = token_file_read(&file_os, s->token_file, s->token, err);
    if (!status)
        status = setup_store(s, false, NULL, stop, notice, NULL, &m->store, err);
    if (!status)
        status = find_schema(m, err);
    if (!status)
        status = served_model_reader_new(m, &m->follower, err);
    if (!status)
        status = load_moments(m, err);
    if (status)
        return status;
    m->n_dense = dlrm_dense_floats(m->follower->setup.model);
    m->dense = memory_try_alloc((m->n_dense + 1) * sizeof *m->dense);
    if (!m->dense)
        return err_set(err, -ENOMEM, "no memory for %zu dense weights", m->n_dense);
    return refresh(m, &first, err);
}

static void init_locks(struct served_model *m)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&m->pull_lock, NULL);
    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &attr);
    pthread_condattr_destroy(&attr);
}

int served_model_open(const struct settings *s, const struct stop_signal *stop,
                      struct served_model **ret, struct err *err)
{
    struct served_model *m = memory_alloc(sizeof *m);
    int status;

    m->settings = memory_alloc(sizeof *m->settings);
    *m->settings = *s;
    m->settings->threads = 1; /* of a batch: serve's threads have one each */
    m->settings->pull_timeout_ms = s->deadline_ms;
    m->setup.s = m->settings;
    m->max_age_ns = s->max_age_ms * NS_IN_MS;
    m->follows = !s->checkpoint[0];
    init_locks(m);
    status = load(m, stop, err);
    if (!status && m->follows) {
        status = -pthread_create(&m->thread, NULL, follow, m);
        m->has_thread = !status;
        if (status)
            err_set(err, status, "no thread can be started");
    }
    if (status) {
        served_model_close(m);
        return status;
    }
    *ret = m;
    return 0;
}

void served_model_cancel(struct served_model *m)
{
    pthread_mutex_lock(&m->lock);
    m->is_stopping = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (m->store->ops->cancel)
        m->store->ops->cancel(m->store);
}

void served_model_close(struct served_model *m)
{
    if (!m)
        return;
    if (m->has_thread) {
        served_model_cancel(m);
        pthread_join(m->thread, NULL);
    }
    served_model_reader_free(m->follower);
    model_record_free(m->record);
    if (m->store)
        m->store->ops->close(m->store);
    setup_deinit(&m->setup);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    pthread_mutex_destroy(&m->pull_lock);
    free(m->dense);
    free(m->settings); /* its lists are the caller's */
    free(m);
}

const struct schema *served_model_schema(const struct served_model *m)
{
    return m->setup.schema;
}

const struct batch_groups *served_model_groups(const struct served_model *m)
{
    return field_tables_groups(m->setup.fields);
}

int served_model_describe(const struct served_model *m, char **ret, struct err *err)
{
    return model_record_describe(m->settings, m->setup.schema, ret, err);
}

uint32_t served_model_n_tasks(const struct served_model *m)
{
    return dlrm_n_tasks(m->follower->setup.model);
}

const char *served_model_device(const struct served_model *m)
{
    return dlrm_device(m->follower->setup.model);
}

void served_model_state(struct served_model *m, struct served_model_state *ret)
{
    *ret = (struct served_model_state){ 0 };
    pthread_mutex_lock(&m->lock);
    ret->stamp = (struct served_model_stamp){ m->follows, m->has_clock, m->clock, m->taken_ns };
    ret->n_refreshes = m->number;
    ret->n_failed_refreshes = m->n_failed;
    ret->is_fresh = is_fresh(m);
    memcpy(ret->failure, m->failure.text, sizeof ret->failure);
    pthread_mutex_unlock(&m->lock);
}

bool served_model_has_failed(struct served_model *m, struct err *err)
{
    bool has_failed;

    pthread_mutex_lock(&m->lock);
    has_failed = m->has_failed;
    if (has_failed)
        err_set(err, m->failure.status ? m->failure.status : PS_EDEADLINE,
                "the model has not been refreshed for --give-up %llu ms: %.190s",
                (unsigned long long)m->settings->give_up_ms, m->failure.text);
    pthread_mutex_unlock(&m->lock);
    return has_failed;
}

/* Threads that score requests, and the HTTP server before them, with the model of a checkpoint. */
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "common/clock.h"
#include "common/memory.h"
#include "tests/unit/worker/click_log.h"
#include "worker/model_record.h"
#include "worker/model_tables.h"
#include "worker/serve/score_server.h"
#include "worker/serve/scorer.h"
#include "worker/serve/served_model.h"
#include "worker/setup.h"

#define N_CALLS 300u
#define N_ROWS_MAX 50u
#define S_IN_NS UINT64_C(1000000000)

static char model_path[64];

/* ---- a model with its initial weights, as a checkpoint ---- */

static void write_model(void)
{
    static const char *const flags[] = { "--local", NULL };
    struct model_record *record;
    struct model_tables *tables;
    struct param_store *store;
    struct settings s;
    struct setup u;
    struct err err = { 0 };

    snprintf(model_path, sizeof model_path, "/tmp/psd-model-%d", (int)getpid());
    click_log_settings(&s, flags);
    must(setup_data(&u, &s, true, true, &err), &err);
    must(setup_model_on(&u, &device_cpu, &err), &err);
    must(param_store_local_open(&(struct param_store_local_options){ .job = s.job }, &store,
                                &err),
         &err);
    must(model_record_open(&s, u.schema, store, &record, &err), &err);
    must(model_record_make(record, &s, u.schema, store, &err), &err);
    must(model_tables_create(&s, u.model, 13, store, &tables, &err), &err);
    must(model_record_fill(record, &s, u.schema, store, &err), &err);
    must(param_store_local_save(store, model_path, &err), &err);
    model_tables_free(tables);
    model_record_free(record);
    store->ops->close(store);
    setup_deinit(&u);
    settings_free(&settings_worker, &s);
}

static int before_all(void **state)
{
    int status = click_log_write(state);

    if (!status)
        write_model();
    return status;
}

static int behind_all(void **state)
{
    char command[96];

    snprintf(command, sizeof command, "rm -r %s", model_path);
    return click_log_remove(state) || system(command) != 0;
}

/* ---- what serves ---- */

struct bench {
    struct settings s;
    struct served_model *model;
    struct scorer *scorer;
    struct err err;
};

static void bench_settings(struct bench *b)
{
    static const char *const none[] = { NULL };

    *b = (struct bench){ 0 };
    click_log_settings(&b->s, none);
    snprintf(b->s.checkpoint, sizeof b->s.checkpoint, "%s", model_path);
    snprintf(b->s.http, sizeof b->s.http, "127.0.0.1:0");
}

static void bench_new(struct bench *b, uint32_t n_threads)
{
    bench_settings(b);
    must(served_model_open(&b->s, NULL, &b->model, &b->err), &b->err);
    must(scorer_start(b->model, n_threads, 16, &b->scorer, &b->err), &b->err);
}

static void bench_free(struct bench *b)
{
    scorer_stop(b->scorer);
    scorer_free(b->scorer);
    served_model_close(b->model);
    settings_free(&settings_worker, &b->s);
}

/* A request of rows that differ in their first column, and its answers. */
struct score_asked {
    struct score_call call;
    char *body; /* owned */
    _Atomic uint32_t n_done;
    uint32_t first, n;
};

static void on_done(struct score_call *call)
{
    atomic_fetch_add(&((struct score_asked *)(void *)call)->n_done, 1);
}

static void asked_init(struct score_asked *r, uint32_t first, uint32_t n)
{
    size_t n_bytes;
    FILE *out = open_memstream(&r->body, &n_bytes);

    r->first = first;
    r->n = n;
    fputs("{\"rows\":[", out);
    for (uint32_t i = 0; i < n; i++)
        fprintf(out, "%s{\"C1\":\"t%u\",\"I1\":%u}", i ? "," : "", first + i, i % 7);
    fputs("]}", out);
    fclose(out);
    r->call.body = r->body;
    r->call.n_bytes = n_bytes;
    r->call.deadline_ns = clock_mono_ns() + 60 * S_IN_NS;
    r->call.on_done = on_done;
}

static void asked_deinit(struct score_asked *r)
{
    free(r->call.scores);
    free(r->body);
}

static void await(struct score_asked *r)
{
    while (!atomic_load(&r->n_done))
        poll(NULL, 0, 1); /* nothing else tells of it */
}

static void requests_share_passes_and_get_their_own_scores(void **state)
{
    struct score_asked *all = memory_alloc((N_CALLS + 1) * sizeof *all), *whole = &all[N_CALLS];
    struct scorer_counts counts;
    uint64_t n_rows = 0;
    struct bench b;

    (void)state;
    bench_new(&b, 3);
    asked_init(whole, 0, N_CALLS + N_ROWS_MAX);
    scorer_submit(b.scorer, &whole->call);
    for (uint32_t i = 0; i < N_CALLS; i++) {
        asked_init(&all[i], i, i % N_ROWS_MAX); /* some without a row */
        scorer_submit(b.scorer, &all[i].call);
        n_rows += i % N_ROWS_MAX;
    }
    for (uint32_t i = 0; i <= N_CALLS; i++)
        await(&all[i]);
    assert_int_equal(whole->call.status, 0);
    for (uint32_t i = 0; i < N_CALLS; i++) {
        assert_int_equal(all[i].call.status, 0);
        assert_int_equal(all[i].call.n_rows, all[i].n);
        /* I1 counts from each request's first row. */
        if (all[i].n && i % 7 == 0)
            assert_memory_equal(all[i].call.scores, whole->call.scores + i,
                                all[i].n * sizeof(float));
    }
    scorer_count(b.scorer, &counts);
    assert_int_equal(counts.n_rows, n_rows + N_CALLS + N_ROWS_MAX);
    assert_true(counts.n_batches < N_CALLS + counts.n_rows / 16);
    assert_int_equal(counts.n_waiting, 0);
    bench_free(&b);
    for (uint32_t i = 0; i <= N_CALLS; i++) {
        assert_int_equal(atomic_load(&all[i].n_done), 1);
        asked_deinit(&all[i]);
    }
    free(all);
}

/* The rows of one that is refused leave the pass of the others. */
static void a_bad_request_fails_alone(void **state)
{
    static const char tail[] = "{\"C1\":[[]]}]}";
    struct score_asked good[20] = { 0 }, bad[20] = { 0 };
    struct bench b;

    (void)state;
    bench_new(&b, 1);
    for (uint32_t i = 0; i < COUNT_OF(good); i++) {
        asked_init(&good[i], 0, 3);
        asked_init(&bad[i], 0, 30); /* its fault comes in the second pass */
        memcpy(bad[i].body + bad[i].call.n_bytes - 4, "x", 1);
        if (i % 2) /* one that is no JSON */
            memcpy(bad[i].body + bad[i].call.n_bytes - sizeof tail + 1, tail, sizeof tail - 1);
        scorer_submit(b.scorer, &good[i].call);
        scorer_submit(b.scorer, &bad[i].call);
    }
    for (uint32_t i = 0; i < COUNT_OF(good); i++) {
        await(&good[i]);
        await(&bad[i]);
        assert_int_equal(good[i].call.status, 0);
        assert_int_equal(bad[i].call.status, PS_EDATA);
        assert_true(bad[i].call.err.text[0]);
        assert_memory_equal(good[i].call.scores, good[0].call.scores, 3 * sizeof(float));
    }
    bench_free(&b);
    for (uint32_t i = 0; i < COUNT_OF(good); i++) {
        asked_deinit(&good[i]);
        asked_deinit(&bad[i]);
    }
}

static void what_nobody_waits_for_is_dropped_and_a_stop_leaves_nothing(void **state)
{
    struct score_asked *all = memory_alloc(N_CALLS * sizeof *all), late = { 0 };
    struct bench b;

    (void)state;
    bench_new(&b, 2);
    for (uint32_t i = 0; i < N_CALLS; i++) {
        asked_init(&all[i], i, 100);
        atomic_store(&all[i].call.is_abandoned, i % 3 == 0);
        scorer_submit(b.scorer, &all[i].call);
    }
    scorer_stop(b.scorer);
    asked_init(&late, 0, 1);
    scorer_submit(b.scorer, &late.call);
    assert_int_equal(atomic_load(&late.n_done), 1);
    assert_int_equal(late.call.status, PS_ESTOPPING);
    for (uint32_t i = 0; i < N_CALLS; i++) {
        assert_int_equal(atomic_load(&all[i].n_done), 1);
        assert_true(all[i].call.status == PS_ESTOPPING ||
                    all[i].call.status == (i % 3 ? 0 : PS_EDEADLINE));
        asked_deinit(&all[i]);
    }
    asked_deinit(&late);
    bench_free(&b);
    free(all);
}

/* ---- over HTTP ---- */

struct ticker {
    struct score_server *server;
    pthread_t thread;
    _Atomic bool is_over;
};

static void *tick(void *arg)
{
    struct ticker *t = arg;

    while (!atomic_load(&t->is_over)) {
        score_server_tick(t->server);
        poll(NULL, 0, 5);
    }
    return NULL;
}

/* The answer to a request on a connection that ends behind it. */
static void talk(const struct score_server *server, const char *line, const char *body,
                 char answer[static 4096])
{
    struct sockaddr_in to = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char request[2048];
    size_t n = 0;
    ssize_t got;

    to.sin_port = htons((uint16_t)atoi(strrchr(score_server_address(server), ':') + 1));
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    snprintf(request, sizeof request,
             "%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
             "%zu\r\n\r\n%s",
             line, strlen(body), body);
    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL),
                     (ssize_t)strlen(request));
    while ((got = recv(fd, answer + n, 4095 - n, 0)) > 0)
        n += (size_t)got;
    answer[n] = '\0';
    close(fd);
}

struct asker {
    struct score_server *server;
    pthread_t thread;
};

static void *ask(void *arg)
{
    const struct asker *a = arg;
    char answer[4096];

    for (int i = 0; i < 30; i++) {
        talk(a->server, "POST /score", "{\"rows\":[{\"C1\":\"a\"},{\"C2\":7}]}", answer);
        if (!strstr(answer, "200 OK") || !strstr(answer, "{\"scores\":[0."))
            fail_msg("%s", answer);
        talk(a->server, "POST /v1/score", "{\"rows\":[{\"C0\":\"a\"}]}", answer);
        if (!strstr(answer, "400 Bad Request") || !strstr(answer, "no column"))
            fail_msg("%s", answer);
    }
    return NULL;
}

static void clients_at_once_are_answered_over_http(void **state)
{
    struct ticker ticker = { 0 };
    struct asker askers[4];
    char answer[4096];
    uint64_t n_connections;
    struct bench b;

    (void)state;
    bench_new(&b, 2);
    must(score_server_open(&b.s, b.model, &ticker.server, &b.err), &b.err);
    must(score_server_start(ticker.server, b.scorer, &b.err), &b.err);
    assert_int_equal(pthread_create(&ticker.thread, NULL, tick, &ticker), 0);
    for (size_t i = 0; i < COUNT_OF(askers); i++) {
        askers[i].server = ticker.server;
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
    }
    for (size_t i = 0; i < COUNT_OF(askers); i++)
        pthread_join(askers[i].thread, NULL);
    talk(ticker.server, "GET /metrics", "", answer);
    assert_non_null(strstr(answer, "psworker_serve_answers_total{code=\"200\"} 120"));
    assert_non_null(strstr(answer, "psworker_serve_answers_total{code=\"400\"} 120"));
    while (!score_server_is_idle(ticker.server, &n_connections))
        poll(NULL, 0, 1);
    score_server_drain(ticker.server);
    atomic_store(&ticker.is_over, true);
    pthread_join(ticker.thread, NULL);
    scorer_stop(b.scorer);
    score_server_close(ticker.server);
    bench_free(&b);
}

static void a_model_that_is_not_there_is_no_model(void **state)
{
    struct bench b;

    (void)state;
    bench_settings(&b);
    snprintf(b.s.job, sizeof b.s.job, "other");
    assert_int_equal(served_model_open(&b.s, NULL, &b.model, &b.err), PS_ENOTABLE);
    snprintf(b.s.checkpoint, sizeof b.s.checkpoint, "/nonexistent");
    assert_int_equal(served_model_open(&b.s, NULL, &b.model, &b.err), PS_ENOCHECKPOINT);
    settings_free(&settings_worker, &b.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_share_passes_and_get_their_own_scores),
        cmocka_unit_test(a_bad_request_fails_alone),
        cmocka_unit_test(what_nobody_waits_for_is_dropped_and_a_stop_leaves_nothing),
        cmocka_unit_test(clients_at_once_are_answered_over_http),
        cmocka_unit_test(a_model_that_is_not_there_is_no_model),
    };

    return cmocka_run_group_tests(tests, before_all, behind_all);
}

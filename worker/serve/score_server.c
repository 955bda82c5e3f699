#include "worker/serve/score_server.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/histogram.h"
#include "common/http/http_server.h"
#include "common/memory.h"

#define REQUEST_MS \
    10000u /* from a request's first byte to its answer's last, beside --deadline */
#define IDLE_MS 60000u
#define SWEEP_EVERY_MS 200u
#define BODY_BYTES_MIN (16u << 10)
#define BODIES_MAX 64u /* of --body-max that are held at a time */
#define SCORE_BYTES 20u
#define DISCARDED_MAX 16u /* of --body-max: a longer body that is refused is not read */

static const char json_type[] = "application/json";
static const char text_type[] = "text/plain; charset=utf-8";

/* The codes of answers, as /metrics counts them. */
static const unsigned codes[] = { 200, 400, 401, 403, 404, 405, 413, 503 };
#define N_CODES COUNT_OF(codes)

/* A request for scores, from its headers to its answer's last byte. */
struct http_call {
    struct score_call call;
    struct score_server *server;
    struct MHD_Connection *connection;
    struct http_call *next, **prev; /* of those in flight */
    struct http_call *next_expired;
    char *body; /* owned */
    size_t n_bytes, cap;
    uint64_t submitted_ns;
    bool is_refused;                        /* its body is too large */
    bool is_full;                           /* or finds no memory */
    bool is_submitted, is_done, is_expired; /* the last two under the lock */
    unsigned n_holders;                     /* under the lock: the connection, the scorer */
    char *answer;                           /* owned: of a call that is done; NULL: no memory */
    size_t answer_bytes;
    unsigned code;
};

/* A connection's request that is refused: its body is read all the same, as the answer would else be lost behind a
 * reset. */
struct refusal {
    unsigned code;
    const char *sentence; /* static */
};

struct score_server {
    const struct settings *s; /* borrowed, as the next two */
    struct served_model *model;
    struct scorer *scorer;
    struct http_server *http; /* owned */
    char token[TOKEN_FILE_MAX];
    char *description; /* owned: the static half of /model */
    uint64_t swept_ms;
    _Atomic bool is_draining;
    pthread_mutex_t lock; /* of the next four */
    struct http_call *first;
    uint64_t n_in_flight, body_bytes;
    struct http_server_counts connections;
    struct histogram latency_ns; /* written by the HTTP thread */
    _Atomic uint64_t n_answers[N_CODES], n_rows, n_expired;
};

/* ---- answers ---- */

static enum MHD_Result answer(struct score_server *v, struct MHD_Connection *connection,
                              unsigned code, const char *type, struct MHD_Response *response)
{
    for (size_t i = 0; i < N_CODES; i++)
        if (codes[i] == code)
            atomic_fetch_add(&v->n_answers[i], 1);
    if (response && atomic_load(&v->is_draining))
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (response && code == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    return http_server_send(connection, code, type, NULL, response);
}

/* Takes the text; NULL: no memory. */
static struct MHD_Response *response_of(char *text, size_t n_bytes)
{
    struct MHD_Response *response =
        text ? MHD_create_response_from_buffer(n_bytes, text, MHD_RESPMEM_MUST_FREE) : NULL;

    if (!response)
        free(text);
    return response;
}

/* {"error":"sentence"}; NULL: no memory. */
static char *error_text(const char *sentence)
{
    cJSON *root = cJSON_CreateObject();
    char *text = NULL;

    if (root && cJSON_AddStringToObject(root, "error", sentence))
        text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    return text;
}

static struct MHD_Response *error_response(const char *sentence)
{
    char *text = error_text(sentence);

    return response_of(text, text ? strlen(text) : 0);
}

static enum MHD_Result send_error(struct score_server *v, struct MHD_Connection *connection,
                                  unsigned code, const char *sentence)
{
    return answer(v, connection, code, json_type, error_response(sentence));
}

static enum MHD_Result refuse_method(struct score_server *v, struct MHD_Connection *connection,
                                     const char *allow)
{
    struct MHD_Response *response =
        error_response("POST is for /score and /v1/score, GET for /model, /metrics, /healthz");

    if (response)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, allow);
    return answer(v, connection, MHD_HTTP_METHOD_NOT_ALLOWED, json_type, response);
}

static double age_of(const struct served_model_stamp *stamp)
{
    return (double)(clock_mono_ns() - stamp->taken_ns) * 1e-9;
}

/* "clock":12,"age_s":0.25; null where there is none. */
static int put_stamp(char *dst, size_t n_bytes, const struct served_model_stamp *stamp)
{
    char clock[24] = "null", age[32] = "null";

    if (stamp->has_clock)
        snprintf(clock, sizeof clock, "%" PRIu64, stamp->clock);
    if (stamp->follows)
        snprintf(age, sizeof age, "%.6f", age_of(stamp));
    return snprintf(dst, n_bytes, "\"clock\":%s,\"age_s\":%s", clock, age);
}

/* A number has the digits that predict writes; one that is not finite has no text in JSON. */
static char *put_score(char *at, double score)
{
    return at + (isfinite(score) ? sprintf(at, "%.9g", score) : sprintf(at, "null"));
}

/* Of several labels a row has an array. */
static char *put_row(char *at, const float *scores, uint32_t n_tasks)
{
    if (n_tasks == 1)
        return put_score(at, (double)*scores);
    for (uint32_t i = 0; i < n_tasks; i++) {
        *at++ = i ? ',' : '[';
        at = put_score(at, (double)scores[i]);
    }
    *at++ = ']';
    return at;
}

static void render_scores(struct http_call *c)
{
    const uint32_t n_tasks = c->call.n_tasks;
    const size_t n_max = c->call.n_rows * (size_t)(n_tasks + 1) * SCORE_BYTES + 128;
    char *text = memory_try_alloc(n_max), *at = text;

    if (!text)
        return;
    at += sprintf(at, "{\"scores\":[");
    for (size_t i = 0; i < c->call.n_rows; i++) {
        if (i)
            *at++ = ',';
        at = put_row(at, c->call.scores + i * n_tasks, n_tasks);
    }
    at += sprintf(at, "],");
    at += put_stamp(at, 96, &c->call.stamp);
    at += sprintf(at, "}\n");
    c->answer = text;
    c->answer_bytes = (size_t)(at - text);
}

/* ---- a request in flight ---- */

static void free_call(struct http_call *c)
{
    free(c->call.scores);
    free(c->body);
    free(c->answer);
    free(c);
}

/* Under the lock. */
static bool drop_holder(struct http_call *c)
{
    return --c->n_holders == 0;
}

/* Of a scorer's thread. An answer that comes too late is dropped. */
static void on_done(struct score_call *call)
{
    struct http_call *c = (struct http_call *)(void *)call;
    struct score_server *v = c->server;
    bool is_last, is_late;

    c->code = !call->status              ? MHD_HTTP_OK
              : call->status == PS_EDATA ? MHD_HTTP_BAD_REQUEST
                                         : MHD_HTTP_SERVICE_UNAVAILABLE;
    if (!call->status) {
        render_scores(c);
    } else {
        c->answer = error_text(call->err.text);
        c->answer_bytes = c->answer ? strlen(c->answer) : 0;
    }
    pthread_mutex_lock(&v->lock);
    c->is_done = true;
    is_late = c->is_expired;
    is_last = drop_holder(c);
    pthread_mutex_unlock(&v->lock);
    if (is_last)
        free_call(c);
    else if (!is_late)
        http_server_resume(v->http, c->connection);
}

static enum MHD_Result submit(struct score_server *v, struct MHD_Connection *connection,
                              struct http_call *c)
{
    c->submitted_ns = clock_mono_ns();
    c->connection = connection;
    c->call.body = c->body;
    c->call.n_bytes = c->n_bytes;
    c->call.deadline_ns = c->submitted_ns + v->s->deadline_ms * UINT64_C(1000000);
    c->call.on_done = on_done;
    http_server_hold(v->http, connection);
    MHD_suspend_connection(connection);
    pthread_mutex_lock(&v->lock);
    c->n_holders++;
    c->is_submitted = true;
    pthread_mutex_unlock(&v->lock);
    scorer_submit(v->scorer, &c->call);
    return MHD_YES;
}

static void explain_deadline(struct score_server *v, char sentence[400])
{
    struct served_model_state state;
    struct scorer_counts counts;

    served_model_state(v->model, &state);
    scorer_count(v->scorer, &counts);
    snprintf(sentence, 400, "no score within --deadline %" PRIu64 " ms: %s", v->s->deadline_ms,
             state.failure[0]   ? state.failure
             : counts.n_waiting ? "other requests are before this one"
                                : "it was still being scored");
}

static enum MHD_Result send_call(struct score_server *v, struct MHD_Connection *connection,
                                 struct http_call *c)
{
    struct MHD_Response *response;
    char sentence[400];
    bool is_expired;

    pthread_mutex_lock(&v->lock);
    is_expired = c->is_expired; /* then a scorer may still be making the answer */
    pthread_mutex_unlock(&v->lock);
    histogram_record(&v->latency_ns, clock_mono_ns() - c->submitted_ns);
    if (is_expired) {
        atomic_fetch_add(&v->n_expired, 1);
        explain_deadline(v, sentence);
        return send_error(v, connection, MHD_HTTP_SERVICE_UNAVAILABLE, sentence);
    }
    if (!c->answer)
        return send_error(v, connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                          "no memory to make this answer");
    if (c->code == MHD_HTTP_OK)
        atomic_fetch_add(&v->n_rows, c->call.n_rows);
    response = response_of(c->answer, c->answer_bytes);
    c->answer = NULL; /* the response's */
    return answer(v, connection, c->code, json_type, response);
}

/* ---- the body ---- */

/* Space for n_bytes more. False: there is none. */
static bool reserve_body(struct score_server *v, struct http_call *c, size_t n_bytes)
{
    size_t cap = c->cap ? 2 * c->cap : BODY_BYTES_MIN;
    bool has_space;
    char *body;

    if (c->n_bytes + n_bytes <= c->cap)
        return true;
    while (cap < c->n_bytes + n_bytes)
        cap *= 2;
    pthread_mutex_lock(&v->lock);
    has_space = v->body_bytes == c->cap || /* there is no other */
                v->body_bytes + cap - c->cap <= BODIES_MAX * v->s->body_max_bytes;
    if (has_space)
        v->body_bytes += cap - c->cap;
    pthread_mutex_unlock(&v->lock);
    body = has_space ? memory_try_realloc(c->body, cap) : NULL;
    if (body) {
        c->body = body;
        c->cap = cap;
        return true;
    }
    if (has_space) {
        pthread_mutex_lock(&v->lock);
        v->body_bytes -= cap - c->cap;
        pthread_mutex_unlock(&v->lock);
    }
    return false;
}

/* What is too much is read all the same: else the answer would be lost behind a reset. */
static void take_body(struct score_server *v, struct http_call *c, const char *data,
                      size_t n_bytes)
{
    if (c->is_refused || c->is_full)
        return;
    c->is_refused = n_bytes > v->s->body_max_bytes - c->n_bytes;
    c->is_full = !c->is_refused && !reserve_body(v, c, n_bytes);
    if (c->is_refused || c->is_full)
        return;
    memcpy(c->body + c->n_bytes, data, n_bytes);
    c->n_bytes += n_bytes;
}

static const char busy[] = "too many requests are under way: try again";

static enum MHD_Result refuse_length(struct score_server *v, struct MHD_Connection *connection)
{
    char sentence[96];

    snprintf(sentence, sizeof sentence, "the body is longer than --body-max, %" PRIu64 " bytes",
             v->s->body_max_bytes);
    return send_error(v, connection, MHD_HTTP_CONTENT_TOO_LARGE, sentence);
}

/* ---- GET ---- */

static void put_help(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP psworker_serve_%s %s\n# TYPE psworker_serve_%s %s\n", name, help, name,
            type);
}

static void put_value(FILE *out, const char *name, const char *type, const char *help,
                      double value)
{
    put_help(out, name, type, help);
    fprintf(out, "psworker_serve_%s %.15g\n", name, value);
}

static void put_latency(FILE *out, const struct histogram *h)
{
    static const double bounds_s[] = { 0.0001, 0.00025, 0.0005, 0.001, 0.0025,
                                       0.005,  0.01,    0.025,  0.05,  0.1,
                                       0.25,   0.5,     1,      2.5,   10 };

    put_help(out, "request_seconds", "histogram",
             "Time from a request's last byte to its answer.");
    for (size_t i = 0; i < COUNT_OF(bounds_s); i++)
        fprintf(out, "psworker_serve_request_seconds_bucket{le=\"%g\"} %" PRIu64 "\n",
                bounds_s[i], histogram_count_le(h, (uint64_t)(bounds_s[i] * 1e9)));
    fprintf(out,
            "psworker_serve_request_seconds_bucket{le=\"+Inf\"} %" PRIu64
            "\npsworker_serve_request_seconds_sum %.9g\npsworker_serve_request_seconds_count "
            "%" PRIu64 "\n",
            atomic_load(&h->n), (double)atomic_load(&h->sum) * 1e-9, atomic_load(&h->n));
}

static void put_model(FILE *out, struct score_server *v)
{
    struct served_model_state state;

    served_model_state(v->model, &state);
    if (state.stamp.follows)
        put_value(out, "model_age_seconds", "gauge", "Age of the model's dense parameters.",
                  age_of(&state.stamp));
    if (state.stamp.has_clock)
        put_value(out, "model_clock", "gauge", "Steps that all the job's workers had finished.",
                  (double)state.stamp.clock);
    put_value(out, "model_is_fresh", "gauge", "1 if they are not older than --max-age.",
              state.is_fresh);
    put_value(out, "refreshes_total", "counter", "Pulls of the dense parameters.",
              (double)state.n_refreshes);
    put_value(out, "failed_refreshes_total", "counter", "Those that failed.",
              (double)state.n_failed_refreshes);
}

static void put_metrics(FILE *out, struct score_server *v)
{
    struct http_server_counts connections;
    struct scorer_counts counts;
    uint64_t n_in_flight;

    pthread_mutex_lock(&v->lock);
    n_in_flight = v->n_in_flight;
    connections = v->connections;
    pthread_mutex_unlock(&v->lock);
    scorer_count(v->scorer, &counts);
    put_help(out, "answers_total", "counter", "Answers, by status.");
    for (size_t i = 0; i < N_CODES; i++)
        fprintf(out, "psworker_serve_answers_total{code=\"%u\"} %" PRIu64 "\n", codes[i],
                atomic_load(&v->n_answers[i]));
    put_value(out, "rows_total", "counter", "Rows whose scores were sent.",
              (double)atomic_load(&v->n_rows));
    put_value(out, "expired_total", "counter", "Requests that reached their deadline.",
              (double)atomic_load(&v->n_expired));
    put_value(out, "batches_total", "counter", "Passes through the model.",
              (double)counts.n_batches);
    put_value(out, "computed_rows_total", "counter", "Rows in these passes.",
              (double)counts.n_rows);
    put_value(out, "in_flight", "gauge", "Requests that are read or scored.",
              (double)n_in_flight);
    put_value(out, "waiting", "gauge", "Requests that no thread has taken yet.",
              (double)counts.n_waiting);
    put_value(out, "connections", "gauge", "Open connections.",
              (double)connections.connections);
    put_value(out, "connections_total", "counter", "Connections accepted.",
              (double)connections.connections_total);
    put_value(out, "evicted_connections_total", "counter",
              "Those cut off: too slow, or for a new one.", (double)connections.evicted);
    put_latency(out, &v->latency_ns);
    put_model(out, v);
}

static void put_description(FILE *out, struct score_server *v)
{
    struct served_model_state state;
    char stamp[96];

    served_model_state(v->model, &state);
    put_stamp(stamp, sizeof stamp, &state.stamp);
    fprintf(out, "{%s,%s\n", stamp, v->description + 1);
}

/* Fills a text by `put`. */
static enum MHD_Result send_text(struct score_server *v, struct MHD_Connection *connection,
                                 const char *type, void (*put)(FILE *, struct score_server *))
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *out = open_memstream(&text, &n_bytes);

    if (out)
        put(out, v);
    if (!out || fclose(out)) {
        free(text);
        return send_error(v, connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                          "no memory to make this answer");
    }
    return answer(v, connection, MHD_HTTP_OK, type, response_of(text, n_bytes));
}

static enum MHD_Result send_health(struct score_server *v, struct MHD_Connection *connection)
{
    struct served_model_state state;
    char sentence[400];

    served_model_state(v->model, &state);
    if (!atomic_load(&v->is_draining) && state.is_fresh)
        return answer(v, connection, MHD_HTTP_OK, text_type,
                      MHD_create_response_from_buffer(3, (void *)(uintptr_t) "ok\n",
                                                      MHD_RESPMEM_PERSISTENT));
    snprintf(sentence, sizeof sentence, "the model is older than --max-age: %s", state.failure);
    return send_error(v, connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                      atomic_load(&v->is_draining) ? "stopping" : sentence);
}

/* ---- requests ---- */

/* 0, or the code of a refusal and its sentence. */
static unsigned check_client(const struct score_server *v, struct MHD_Connection *connection,
                             const char **ret_sentence)
{
    const unsigned code = http_server_check_host(v->http, connection, ret_sentence);

    if (code)
        return code;
    *ret_sentence = "a token is expected: Authorization: Bearer TOKEN, of --http-token-file";
    return !v->token[0] || http_server_has_token(connection, v->token) ? 0
                                                                       : MHD_HTTP_UNAUTHORIZED;
}

static struct http_call *new_call(struct score_server *v)
{
    struct http_call *c = memory_try_alloc(sizeof *c);

    pthread_mutex_lock(&v->lock);
    if (c && v->n_in_flight < v->s->in_flight_max) {
        c->server = v;
        c->n_holders = 1;
        c->next = v->first;
        c->prev = &v->first;
        if (c->next)
            c->next->prev = &c->next;
        v->first = c;
        v->n_in_flight++;
        pthread_mutex_unlock(&v->lock);
        return c;
    }
    pthread_mutex_unlock(&v->lock);
    free(c);
    return NULL;
}

/* The headers are there. An answer to them would end the connection. */
static enum MHD_Result begin_score(struct score_server *v, struct MHD_Connection *connection,
                                   void **request_state)
{
    struct refusal *refusal = http_server_state(connection);
    const char *length;

    if (!refusal)
        return MHD_NO; /* there was no memory for it */
    length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
                                         MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (length && strtoull(length, NULL, 10) / DISCARDED_MAX > v->s->body_max_bytes)
        return refuse_length(v, connection);
    refusal->code = check_client(v, connection, &refusal->sentence);
    *request_state = refusal->code ? NULL : new_call(v);
    if (*request_state)
        return MHD_YES;
    if (!refusal->code)
        *refusal = (struct refusal){ MHD_HTTP_SERVICE_UNAVAILABLE, busy };
    *request_state = refusal;
    return MHD_YES;
}

/* A piece of the body, its end, or the answer. */
static enum MHD_Result go_on(struct score_server *v, struct MHD_Connection *connection,
                             struct http_call *c, const char *upload_data, size_t *upload_bytes)
{
    if (*upload_bytes) {
        take_body(v, c, upload_data, *upload_bytes);
        *upload_bytes = 0;
        return MHD_YES;
    }
    if (c->is_refused)
        return refuse_length(v, connection);
    if (c->is_full)
        return send_error(v, connection, MHD_HTTP_SERVICE_UNAVAILABLE, busy);
    return c->is_submitted ? send_call(v, connection, c) : submit(v, connection, c);
}

static enum MHD_Result refuse(struct score_server *v, struct MHD_Connection *connection,
                              const struct refusal *refusal, size_t *upload_bytes)
{
    if (!*upload_bytes)
        return send_error(v, connection, refusal->code, refusal->sentence);
    *upload_bytes = 0;
    return MHD_YES;
}

static bool is_score(const char *url)
{
    return strcmp(url, "/score") == 0 || strcmp(url, "/v1/score") == 0;
}

static enum MHD_Result send_page(struct score_server *v, struct MHD_Connection *connection,
                                 const char *url)
{
    const char *sentence;
    unsigned code;

    if (strcmp(url, "/healthz") == 0) {
        code = http_server_check_host(v->http, connection, &sentence);
        return code ? send_error(v, connection, code, sentence) : send_health(v, connection);
    }
    code = check_client(v, connection, &sentence);
    if (code)
        return send_error(v, connection, code, sentence);
    if (strcmp(url, "/model") == 0)
        return send_text(v, connection, json_type, put_description);
    if (strcmp(url, "/metrics") == 0)
        return send_text(v, connection, "text/plain; version=0.0.4; charset=utf-8",
                         put_metrics);
    if (is_score(url))
        return refuse_method(v, connection, "POST");
    return send_error(v, connection, MHD_HTTP_NOT_FOUND,
                      "no such page; there are /score, /model, /metrics, /healthz");
}

/* Called when a request's headers are there, with each piece of its body, when all of it is there, and when a
 * suspended connection goes on. A request's state is its call; that of a GET the server, and of one that is refused
 * the connection's state. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *http_version,
                                  const char *upload_data, size_t *upload_bytes,
                                  void **request_state)
{
    const bool is_get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    struct score_server *v = arg;

    (void)http_version;
    if (!*request_state && is_get) {
        *request_state = v;
        return MHD_YES;
    }
    if (is_get)
        return *upload_bytes ? MHD_NO : send_page(v, connection, url);
    if (!*request_state)
        return is_score(url) && strcmp(method, "POST") == 0
                   ? begin_score(v, connection, request_state)
                   : refuse_method(v, connection, is_score(url) ? "POST" : "GET, HEAD");
    if (*request_state == http_server_state(connection))
        return refuse(v, connection, *request_state, upload_bytes);
    return go_on(v, connection, *request_state, upload_data, upload_bytes);
}

static void on_completed(void *owner, void *state, void *request_state)
{
    struct score_server *v = owner;
    struct http_call *c = request_state;
    bool is_last;

    if (!c || request_state == owner || request_state == state)
        return;
    pthread_mutex_lock(&v->lock);
    *c->prev = c->next;
    if (c->next)
        c->next->prev = c->prev;
    v->n_in_flight--;
    v->body_bytes -= c->cap;
    atomic_store(&c->call.is_abandoned, true);
    is_last = drop_holder(c);
    pthread_mutex_unlock(&v->lock);
    if (is_last)
        free_call(c);
}

static const struct http_server_events events = { .on_request = on_request,
                                                  .on_completed = on_completed };

/* ---- for the command ---- */

/* {"job":...,"source":...,"columns":[...],"record":{...}} */
static int describe(struct score_server *v, struct err *err)
{
    cJSON *root = cJSON_CreateObject(), *columns;
    const struct score_columns *names = scorer_columns(v->scorer);
    char *record = NULL;
    int status = served_model_describe(v->model, &record, err);

    cJSON_AddStringToObject(root, "job", v->s->job);
    cJSON_AddStringToObject(root, "source", v->s->checkpoint[0] ? "checkpoint" : "servers");
    columns = cJSON_AddArrayToObject(root, "columns");
    for (uint32_t i = 0; i < score_columns_n(names); i++)
        cJSON_AddItemToArray(columns, cJSON_CreateString(score_columns_name(names, i)));
    if (!status)
        cJSON_AddItemToObject(root, "record", cJSON_Parse(record));
    v->description = cJSON_PrintUnformatted(root);
    if (!status && !v->description)
        status = err_set(err, -ENOMEM, "no memory for the model's description");
    cJSON_Delete(root);
    free(record);
    return status;
}

int score_server_open(const struct settings *s, struct served_model *m,
                      struct score_server **ret, struct err *err)
{
    struct score_server *v = memory_alloc(sizeof *v);
    const struct http_server_config config = {
        .address = s->http,
        .names = { .self = "",
                   .hosts = &s->http_hosts,
                   .refusal = "the name in the header Host is none of this server's; "
                              "--http-hosts lists more" },
        .request_ms = REQUEST_MS + (uint32_t)s->deadline_ms,
        .idle_ms = IDLE_MS,
        .address_max = s->connections_max,
        .connections_max = s->connections_max,
        .state_bytes = sizeof(struct refusal),
        .events = &events,
        .owner = v
    };
    int status;

    *v = (struct score_server){ .s = s, .model = m };
    pthread_mutex_init(&v->lock, NULL);
    status = token_file_read(&file_os, s->http_token_file, v->token, err);
    if (!status && v->token[0] && strlen(v->token) < TOKEN_FILE_MIN)
        status = err_set(err, PS_ESETTING,
                         "--http-token-file: a token of %u characters or more is expected",
                         TOKEN_FILE_MIN);
    if (!status)
        status = http_server_open(&config, &v->http, err);
    if (status) {
        score_server_close(v);
        return status;
    }
    *ret = v;
    return 0;
}

int score_server_start(struct score_server *v, struct scorer *scorer, struct err *err)
{
    int status;

    v->scorer = scorer;
    status = describe(v, err);
    return status ? status : http_server_start(v->http, err);
}

/* Under the lock. */
static struct http_call *expire(struct score_server *v)
{
    const uint64_t now_ns = clock_mono_ns();
    struct http_call *expired = NULL;

    for (struct http_call *c = v->first; c; c = c->next) {
        if (!c->is_submitted || c->is_done || c->is_expired || now_ns < c->call.deadline_ns)
            continue;
        c->is_expired = true;
        atomic_store(&c->call.is_abandoned, true);
        c->next_expired = expired;
        expired = c;
    }
    return expired;
}

void score_server_tick(struct score_server *v)
{
    const uint64_t now_ms = clock_mono_ms();
    struct http_server_counts counts;
    struct http_call *c, *next;

    pthread_mutex_lock(&v->lock);
    c = expire(v);
    pthread_mutex_unlock(&v->lock);
    for (; c; c = next) { /* its connection is suspended, so it stays */
        next = c->next_expired;
        http_server_resume(v->http, c->connection);
    }
    if (now_ms - v->swept_ms < SWEEP_EVERY_MS)
        return;
    v->swept_ms = now_ms;
    http_server_sweep(v->http, now_ms, &counts);
    pthread_mutex_lock(&v->lock);
    v->connections = counts;
    pthread_mutex_unlock(&v->lock);
}

void score_server_drain(struct score_server *v)
{
    atomic_store(&v->is_draining, true);
    http_server_close_listener(v->http);
}

bool score_server_is_idle(struct score_server *v, uint64_t *ret_connections)
{
    bool is_idle;

    pthread_mutex_lock(&v->lock);
    is_idle = !v->n_in_flight;
    *ret_connections = v->connections.connections;
    pthread_mutex_unlock(&v->lock);
    return is_idle;
}

void score_server_close(struct score_server *v)
{
    if (!v)
        return;
    http_server_stop(v->http);
    http_server_free(v->http);
    pthread_mutex_destroy(&v->lock);
    free(v->description);
    free(v);
}

const char *score_server_address(const struct score_server *v)
{
    return http_server_address(v->http);
}

/* /metrics of a worker, asked over the loopback: what it says before, in and after training, and to whom. */
#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/memory.h"
#include "worker/metrics_endpoint.h"

#define ANSWER_BYTES (64u << 10)

static struct settings settings_of(const char *address)
{
    struct settings s = { .rank = 3 };

    snprintf(s.job, sizeof s.job, "a\"b\\c");
    snprintf(s.metrics_listen, sizeof s.metrics_listen, "%s", address);
    return s;
}

/* The whole answer, to be freed. */
static char *ask(const char *address, const char *request)
{
    struct sockaddr_in to = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                              .sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1)) };
    char *text = memory_alloc(ANSWER_BYTES);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    size_t done = 0;
    ssize_t n;

    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL),
                     (ssize_t)strlen(request));
    while ((n = recv(fd, text + done, ANSWER_BYTES - 1 - done, 0)) > 0)
        done += (size_t)n;
    close(fd);
    return text;
}

#define GET "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
#define LABELS "{job=\"a\\\"b\\\\c\",rank=\"3\""

static void assert_has(const char *text, const char *what)
{
    if (!strstr(text, what))
        fail_msg("%s is not in: %s", what, text);
}

static void without_an_address_there_is_none(void **state)
{
    const struct settings s = settings_of("");
    const struct metrics_endpoint_state progress = { 0 };
    const struct stage_times stages = { { 0 } };
    struct metrics_endpoint *m;
    struct err err;

    (void)state;
    assert_int_equal(metrics_endpoint_open(&s, &m, &err), 0);
    assert_null(m);
    assert_string_equal(metrics_endpoint_address(m), "");
    metrics_endpoint_set_state(m, &progress);
    metrics_endpoint_set_rates(m, 1, 1, &stages, 1);
    metrics_endpoint_set_validation(m, &(struct metrics_result){ 0 });
    metrics_endpoint_close(m);
}

static void it_shows_the_last_step_and_validation(void **state)
{
    const struct settings s = settings_of("127.0.0.1:0");
    const struct metrics_endpoint_state progress = {
        .epoch = 1,
        .clock = 70,
        .steps = 60,
        .samples = 6000,
        .store = { .min_clock = 68, .pushes_lost = 2, .reconnects = 5, .park_ns = 1500000000 }
    };
    const struct stage_times stages = { .ns = { [STAGE_COMPUTE] = 500000000 } };
    const struct metrics_result valid = { .n = 10, .auc = 0.75, .logloss = NAN };
    struct metrics_endpoint *m;
    struct err err;
    char *text;

    (void)state;
    assert_int_equal(metrics_endpoint_open(&s, &m, &err), 0);
    text = ask(metrics_endpoint_address(m), GET);
    assert_has(text, "200 OK");
    assert_has(text, "\npsworker_samples_total" LABELS "} 0\n");
    assert_null(strstr(text, "\npsworker_loss{"));
    assert_null(strstr(text, "\npsworker_validation_auc{"));
    free(text);
    metrics_endpoint_set_state(m, &progress);
    metrics_endpoint_set_rates(m, 1234.5, 0.5, &stages, 2);
    metrics_endpoint_set_validation(m, &valid);
    text = ask(metrics_endpoint_address(m), GET);
    assert_has(text, "\npsworker_epoch" LABELS "} 2\n");
    assert_has(text, "\npsworker_clock" LABELS "} 70\n");
    assert_has(text, "\npsworker_min_clock" LABELS "} 68\n");
    assert_has(text, "\npsworker_steps_total" LABELS "} 60\n");
    assert_has(text, "\npsworker_samples_per_second" LABELS "} 1234.5\n");
    assert_has(text, "\npsworker_loss" LABELS "} 0.5\n");
    assert_has(text, "\npsworker_busy_ratio" LABELS ",stage=\"compute\"} 0.250000\n");
    assert_has(text, "\npsworker_validations_total" LABELS "} 1\n");
    assert_has(text, "\npsworker_validation_auc" LABELS "} 0.75\n");
    assert_has(text, "\npsworker_validation_logloss" LABELS "} NaN\n");
    assert_has(text, "\npsworker_pushes_lost_total" LABELS "} 2\n");
    assert_has(text, "\npsworker_reconnects_total" LABELS "} 5\n");
    assert_has(text, "\npsworker_parked_seconds_total" LABELS "} 1.500000\n");
    free(text);
    metrics_endpoint_close(m);
}

static void others_are_refused(void **state)
{
    static const char *const requests[][2] = {
        { "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", " 404 " },
        { "GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", " 403 " },
        { "DELETE /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", " 405 " },
        { "POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1"
          "\r\n\r\nx",
          " 405 " },
    };
    const struct settings s = settings_of("127.0.0.1:0");
    struct metrics_endpoint *m, *second;
    struct settings same;
    struct err err;

    (void)state;
    assert_int_equal(metrics_endpoint_open(&s, &m, &err), 0);
    for (size_t i = 0; i < COUNT_OF(requests); i++) {
        char *text = ask(metrics_endpoint_address(m), requests[i][0]);

        assert_has(text, requests[i][1]);
        free(text);
    }
    same = settings_of(metrics_endpoint_address(m));
    assert_true(metrics_endpoint_open(&same, &second, &err) < 0);
    assert_null(second);
    assert_true(err.text[0]);
    metrics_endpoint_close(m);
}

static void a_token_is_wanted_if_there_is_one(void **state)
{
    char path[] = "/tmp/test_metrics_token.XXXXXX";
    struct settings s = settings_of("127.0.0.1:0");
    struct metrics_endpoint *m;
    int fd = mkstemp(path);
    struct err err;
    char *text;

    (void)state;
    assert_int_equal(write(fd, "open sesame\n", 12), 12);
    close(fd);
    snprintf(s.http_token_file, sizeof s.http_token_file, "%s", path);
    assert_int_equal(metrics_endpoint_open(&s, &m, &err), 0);
    text = ask(metrics_endpoint_address(m), GET);
    assert_has(text, "HTTP/1.1 401 ");
    assert_has(text, "Authorization: Bearer TOKEN, of --http-token-file");
    free(text);
    text = ask(metrics_endpoint_address(m),
               "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
               "Authorization: Bearer open sesame\r\n\r\n");
    assert_has(text, "HTTP/1.1 200 ");
    free(text);
    metrics_endpoint_close(m);
    unlink(path);
    snprintf(s.http_token_file, sizeof s.http_token_file, "%s", "/nowhere");
    assert_int_not_equal(metrics_endpoint_open(&s, &m, &err), 0);
}

static void *train(void *arg)
{
    struct metrics_endpoint_state progress = { 0 };
    const struct stage_times stages = { { 0 } };

    for (uint32_t i = 0; i < 20000; i++) {
        progress.samples = progress.store.pulls = i;
        metrics_endpoint_set_state(arg, &progress);
        metrics_endpoint_set_rates(arg, i, i, &stages, 1);
    }
    return NULL;
}

static void it_answers_while_the_trainer_goes_on(void **state)
{
    const struct settings s = settings_of("127.0.0.1:0");
    struct metrics_endpoint *m;
    pthread_t trainer;
    struct err err;

    (void)state;
    assert_int_equal(metrics_endpoint_open(&s, &m, &err), 0);
    assert_int_equal(pthread_create(&trainer, NULL, train, m), 0);
    for (unsigned i = 0; i < 20; i++) {
        char *text = ask(metrics_endpoint_address(m), GET);

        assert_has(text, "200 OK");
        free(text);
    }
    pthread_join(trainer, NULL);
    metrics_endpoint_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_an_address_there_is_none),
        cmocka_unit_test(it_shows_the_last_step_and_validation),
        cmocka_unit_test(others_are_refused),
        cmocka_unit_test(a_token_is_wanted_if_there_is_one),
        cmocka_unit_test(it_answers_while_the_trainer_goes_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

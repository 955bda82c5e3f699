#include "libpsd_fixture.h"

#include <signal.h>
#include <time.h>

void url_of(const struct fake *f, char dst[64])
{
    char address[32];

    fake_address(f, address);
    snprintf(dst, 64, "psd://%s/j", address);
}

void open_handle(struct handle *h, const struct fake_plan *plan, const char *options,
                 const char *spec)
{
    char url[64], why[PSD_WHY_MAX];

    *h = (struct handle){ .f = fake_start(plan) };
    url_of(h->f, url);
    if (psd_open(&h->c, url, options, why))
        fail_msg("%s", why);
    h->table = psd_table(h->c, "emb", spec);
    if (h->table < 0)
        fail_msg("%s", psd_error());
    memcpy(h->keys, keys, sizeof keys);
    h->section = (psd_rows){ .size = sizeof h->section,
                             .table = (uint32_t)h->table,
                             .n = N_KEYS,
                             .keys = h->keys,
                             .rows = h->rows };
}

void close_all(struct handle *h)
{
    assert_int_equal(psd_close(h->c), 0);
    fake_stop(h->f);
    fake_free(h->f);
}

void assert_says(int64_t status, int64_t expected, const char *words)
{
    assert_int_equal(status, expected);
    if (!strstr(psd_error(), words))
        fail_msg("\"%s\" does not say \"%s\"", psd_error(), words);
}

uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void on_alarm(int number)
{
    (void)number;
}

uint64_t alarm_soon(void)
{
    const struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
    const struct itimerspec soon = { .it_value.tv_nsec = 100000000 };
    static timer_t timer;
    static bool is_made;

    sigaction(SIGALRM, &action, NULL);
    if (!is_made)
        assert_int_equal(timer_create(CLOCK_MONOTONIC, NULL, &timer), 0);
    is_made = true;
    assert_int_equal(timer_settime(timer, 0, &soon, NULL), 0);
    return now_ms();
}

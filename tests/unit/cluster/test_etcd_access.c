/* Real etcd that does not take everybody: over TLS, with certificates of clients, with users and passwords. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/clock.h"
#include "server/cluster/coord_etcd.h"
#include "tests/unit/cluster/coord_calls.h"

#define SECRET "correct horse"
#define ASKED_MAX 20

struct fixture {
    struct etcd_process etcd;
    uv_loop_t loop;
    struct coord *c;
    char files[6][96]; /* see path() */
};

enum file { CA, CERT, KEY, OTHER, PASSWORD, ABSENT };

static const char *path(struct fixture *f, enum file which)
{
    static const char *const names[] = { "ca.pem",    "client.pem", "client.key",
                                         "other.pem", "password",   "absent" };

    snprintf(f->files[which], sizeof f->files[which], "%s/%s", f->etcd.dir, names[which]);
    return f->files[which];
}

static void open_with(struct fixture *f, struct coord_options options)
{
    struct err err = { 0 };

    options.url = f->etcd.url;
    assert_int_equal(uv_loop_init(&f->loop), 0);
    if (coord_etcd_open(&options, &f->loop, &f->c, &err))
        fail_msg("%s", err.text);
}

static void close_it(struct fixture *f)
{
    calls_close(&f->loop, f->c);
    assert_int_equal(uv_loop_close(&f->loop), 0);
}

/* A question as one who has these: answered, or the words of the sentence. */
static void ask_as(struct fixture *f, const struct coord_options *options, const char *words)
{
    const struct calls_answer *a = NULL;
    bool is_so = false;

    open_with(f, *options);
    for (int n = 0; n < ASKED_MAX && !is_so; n++) { /* a last attempt may have had no time */
        a = calls_get(&f->loop, f->c, "k", false, words ? 700 : 20000);
        if (!words)
            assert_int_equal(a->err.status, 0);
        is_so = !words || strstr(a->err.text, words);
    }
    if (!is_so)
        fail_msg("found \"%s\", expected \"%s\"", a->err.text, words);
    close_it(f);
}

static void over_tls_both_show_their_certificates(void **state)
{
    struct fixture f = { 0 };
    struct coord_options o;

    (void)state;
    etcd_process_start_tls(&f.etcd);
    o = (struct coord_options){ .ca_file = path(&f, CA),
                                .cert_file = path(&f, CERT),
                                .key_file = path(&f, KEY) };
    ask_as(&f, &o, NULL);
    o.ca_file = path(&f, OTHER);
    ask_as(&f, &o, "certificate");
    o.ca_file = path(&f, ABSENT);
    ask_as(&f, &o, "etcd at 127.0.0.1");
    ask_as(&f, &(struct coord_options){ .ca_file = path(&f, CA) }, "etcd at 127.0.0.1");
    ask_as(&f, &(struct coord_options){ 0 }, "does it want TLS (coord-ca)");
    etcd_process_stop(&f.etcd);
}

static void write_password(struct fixture *f, const char *text)
{
    FILE *out = fopen(path(f, PASSWORD), "w");

    assert_non_null(out);
    fprintf(out, "%s\n", text);
    fclose(out);
    assert_int_equal(chmod(path(f, PASSWORD), 0600), 0);
}

static void enable_users(const struct etcd_process *e)
{
    static const char *const posts[][2] = {
        { "/v3/auth/user/add", "{\"name\":\"root\",\"password\":\"root\"}" },
        { "/v3/auth/role/add", "{\"name\":\"root\"}" },
        { "/v3/auth/user/grant", "{\"user\":\"root\",\"role\":\"root\"}" },
        { "/v3/auth/user/add", "{\"name\":\"psd\",\"password\":\"" SECRET "\"}" },
        { "/v3/auth/user/add", "{\"name\":\"guest\",\"password\":\"" SECRET "\"}" },
        { "/v3/auth/role/add", "{\"name\":\"psd\"}" },
        /* Keys from "/psd/" to "/psd0". */
        { "/v3/auth/role/grant",
          "{\"name\":\"psd\",\"perm\":{\"permType\":\"READWRITE\",\"key\":\"L3BzZC8=\","
          "\"range_end\":\"L3BzZDA=\"}}" },
        { "/v3/auth/user/grant", "{\"user\":\"psd\",\"role\":\"psd\"}" },
        { "/v3/auth/enable", "{}" },
    };

    for (size_t i = 0; i < COUNT_OF(posts); i++)
        assert_true(etcd_process_post(e, posts[i][0], posts[i][1]));
}

static void a_user_has_a_password_and_rights(void **state)
{
    struct fixture f = { 0 };
    struct coord_options o;

    (void)state;
    etcd_process_start(&f.etcd, 1);
    enable_users(&f.etcd);
    write_password(&f, SECRET);
    o = (struct coord_options){ .user = "psd", .password_file = path(&f, PASSWORD) };
    ask_as(&f, &o, NULL);
    o.user = "guest";
    ask_as(&f, &o, "its user needs read and write for /psd/");
    o.user = "nobody";
    ask_as(&f, &o, "does not take user nobody");
    ask_as(&f, &(struct coord_options){ 0 }, "give coord-user and coord-password-file");
    o = (struct coord_options){ .user = "psd", .password_file = path(&f, ABSENT) };
    ask_as(&f, &o, "coord-password-file: cannot read");
    write_password(&f, "wrong");
    o.password_file = path(&f, PASSWORD);
    ask_as(&f, &o, "does not take user psd");
    etcd_process_stop(&f.etcd);
}

/* The check of a password takes longer than the pause between two tries: the loop goes on, and does not wait for it. */
static void while_a_password_is_checked_the_loop_goes_on(void **state)
{
    const struct calls_answer *a;
    struct fixture f = { 0 };
    uint64_t began_ms;

    (void)state;
    etcd_process_start(&f.etcd, 1);
    enable_users(&f.etcd);
    write_password(&f, SECRET);
    open_with(&f, (struct coord_options){ .user = "psd", .password_file = path(&f, PASSWORD) });
    etcd_process_signal(&f.etcd, 0, SIGSTOP);
    began_ms = clock_mono_ms();
    a = calls_get(&f.loop, f.c, "k", false, 1500);
    assert_int_equal(a->err.status, PS_EDEADLINE);
    assert_in_range(clock_mono_ms() - began_ms, 1500, 4900); /* not the 5 s of the password */
    etcd_process_signal(&f.etcd, 0, SIGCONT);
    a = calls_get(&f.loop, f.c, "k", false, 20000);
    assert_int_equal(a->err.status, 0);
    close_it(&f);
    etcd_process_stop(&f.etcd);
}

/* Tokens live a second there: what comes after is asked with a new one, and so is a watch. */
static void a_token_that_has_ended_is_replaced(void **state)
{
    static struct calls_view view;
    struct fixture f = { 0 };
    struct coord_watch *watch;
    int64_t revision = 0;

    (void)state;
    etcd_process_start(&f.etcd, 1);
    enable_users(&f.etcd);
    write_password(&f, SECRET);
    view = (struct calls_view){ 0 };
    open_with(&f, (struct coord_options){ .user = "psd", .password_file = path(&f, PASSWORD) });
    watch = f.c->ops->watch(f.c, "", calls_on_event, &view);
    for (int i = 0; i < 3; i++) {
        char value[16];
        const struct calls_answer *a;

        snprintf(value, sizeof value, "%d", i);
        a = calls_put(&f.loop, f.c, "k", revision, value);
        if (a->err.status)
            fail_msg("%s", a->err.text);
        assert_true(a->result.is_made);
        revision = a->result.revision;
        calls_await_value(&f.loop, &view, "k", value, 20000);
        etcd_process_signal(&f.etcd, 0, SIGKILL); /* it knows no token of before */
        etcd_process_restart(&f.etcd, 0);
    }
    f.c->ops->unwatch(watch);
    close_it(&f);
    etcd_process_stop(&f.etcd);
}

static void half_of_a_setting_is_refused(void **state)
{
    static const struct {
        struct coord_options options;
        const char *words;
    } cases[] = {
        { { .user = "u" }, "coord-user and coord-password-file: give both" },
        { { .password_file = "p" }, "coord-user and coord-password-file: give both" },
        { { .ca_file = "c", .cert_file = "c" }, "coord-cert and coord-key: give both" },
        { { .ca_file = "c", .key_file = "c" }, "coord-cert and coord-key: give both" },
        { { .cert_file = "c", .key_file = "c" }, "coord-ca asks for: give it, too" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct coord_options o = cases[i].options;
        struct err err = { 0 };
        struct coord *c;
        uv_loop_t loop;

        o.url = "etcd://h:1/c";
        assert_int_equal(uv_loop_init(&loop), 0);
        assert_int_equal(coord_etcd_open(&o, &loop, &c, &err), PS_ESETTING);
        assert_non_null(strstr(err.text, cases[i].words));
        assert_int_equal(uv_loop_close(&loop), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(over_tls_both_show_their_certificates),
        cmocka_unit_test(a_user_has_a_password_and_rights),
        cmocka_unit_test(while_a_password_is_checked_the_loop_goes_on),
        cmocka_unit_test(a_token_that_has_ended_is_replaced),
        cmocka_unit_test(half_of_a_setting_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

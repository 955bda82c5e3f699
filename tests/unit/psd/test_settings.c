#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/cluster.h"
#include "server/settings.h"

/* Loads flags as main() does. */
static int load(struct settings *s, struct err *err, int n, const char *const *flags)
{
    char *argv[16] = { (char *)"psd" };
    enum settings_action action;
    int status;

    assert_true(n < 15);
    for (int i = 0; i < n; i++)
        argv[i + 1] = (char *)flags[i];
    *s = (struct settings){ 0 };
    *err = (struct err){ 0 };
    status = settings_load(&settings_psd, n + 1, argv, 1, s, &action, err);
    return status ? status : settings_complete(s, err);
}

#define LOAD(s, err, ...)                                          \
    load(s, err, (int)COUNT_OF(((const char *[]){ __VA_ARGS__ })), \
         (const char *[]){ __VA_ARGS__ })

static void dev_chooses_what_is_not_given(void **state)
{
    struct settings s;
    struct err err;

    (void)state;
    assert_int_equal(LOAD(&s, &err, "--dev"), 0);
    assert_string_equal(s.listen, "127.0.0.1:7070");
    assert_string_equal(s.http, "127.0.0.1:7071");
    assert_string_equal(s.data_dir, "./psd-data");
    assert_true(s.shards >= 1);
    settings_free(&settings_psd, &s);
    assert_int_equal(
        LOAD(&s, &err, "--dev", "--http", "off", "--listen", "[::1]:1", "--shards", "3"), 0);
    assert_string_equal(s.listen, "[::1]:1");
    assert_string_equal(s.http, "");
    assert_int_equal(s.shards, 3);
    settings_free(&settings_psd, &s);
}

static void the_defaults_are_those_of_the_manual(void **state)
{
    struct settings s;
    struct err err;

    (void)state;
    assert_int_equal(LOAD(&s, &err, "--listen", "127.0.0.1:0"), 0);
    assert_int_equal(s.lease_ms, 10000);
    assert_int_equal(s.join_timeout_ms, 60000);
    assert_int_equal(s.handshake_timeout_ms, 5000);
    assert_int_equal(s.frame_timeout_ms, 30000);
    assert_int_equal(s.frame_max_bytes, 64 << 20);
    assert_int_equal(s.keep, 3);
    assert_int_equal(s.checkpoint_every_ms, 0);
    assert_int_equal(s.memory_max_bytes, 0);
    assert_int_equal(s.memory_reserve_bytes, 0);
    assert_string_equal(s.http, "");
    assert_string_equal(s.data_dir, "");
    settings_free(&settings_psd, &s);
}

static void nothing_to_listen_on_is_reported_with_what_to_type(void **state)
{
    struct settings s;
    struct err err;

    (void)state;
    assert_int_equal(LOAD(&s, &err, "--shards", "1"), PS_ESETTING);
    assert_non_null(strstr(err.text, "psd --dev"));
    settings_free(&settings_psd, &s);
}

static void settings_that_do_not_go_together_are_refused(void **state)
{
    struct settings s;
    struct err err;

    (void)state;
    assert_int_equal(LOAD(&s, &err, "--dev", "--restore", "x", "--no-restore"), PS_ESETTING);
    settings_free(&settings_psd, &s);
    assert_int_equal(LOAD(&s, &err, "--listen", "a:1", "--checkpoint-every", "1s"),
                     PS_ESETTING);
    settings_free(&settings_psd, &s);
    assert_int_equal(LOAD(&s, &err, "--dev", "--shards", "1000", "--cluster", "a:1,b:2"),
                     PS_ESETTING);
    assert_non_null(strstr(err.text, "1024"));
    settings_free(&settings_psd, &s);
    assert_int_equal(LOAD(&s, &err, "--dev", "--token", "a", "--token-file", "b"), PS_ESETTING);
    settings_free(&settings_psd, &s);
    assert_int_equal(LOAD(&s, &err, "--dev", "--memory-max", "1G", "--memory-reserve", "1G"),
                     0);
    settings_free(&settings_psd, &s);
    assert_int_equal(LOAD(&s, &err, "--dev", "--memory-max", "1G", "--memory-reserve", "2G"),
                     PS_ESETTING);
    assert_non_null(strstr(err.text, "more than memory-max"));
    settings_free(&settings_psd, &s);
    assert_int_equal(LOAD(&s, &err, "--dev", "--standby-ack", "disk", "--durability", "none"),
                     PS_ESETTING);
    assert_non_null(strstr(err.text, "durability async or fsync"));
    settings_free(&settings_psd, &s);
    assert_int_equal(LOAD(&s, &err, "--dev", "--listen", "127.0.0.1:7071", "--data-dir", "d",
                          "--standby", "127.0.0.1:7071"),
                     PS_ESETTING);
    assert_non_null(strstr(err.text, "this psd's own address"));
    settings_free(&settings_psd, &s);
    assert_int_equal(LOAD(&s, &err, "--listen", "127.0.0.1:7071", "--data-dir", "d",
                          "--advertise", "10.0.0.2:7071", "--standby", "127.0.0.1:7071"),
                     0);
    settings_free(&settings_psd, &s);
}

/* Redis calls this protected mode. */
static void without_a_token_only_this_machine_is_listened_to(void **state)
{
    static const char *const near[] = { "127.0.0.1:0", "127.1.2.3:7070", "[::1]:7070",
                                        "[::ffff:127.0.0.1]:7070" };
    static const char *const far[] = {
        "0.0.0.0:7070",           ":7070",      "[::]:7070", "10.0.0.1:7070",
        "[::ffff:10.0.0.1]:7070", "128.0.0.1:0"
    };
    struct settings s;
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(near); i++) {
        assert_int_equal(
            LOAD(&s, &err, "--listen", near[i], "--http", near[i], "--token", "open sesame"),
            0);
        assert_false(settings_pages_want_role(&s));
        settings_free(&settings_psd, &s);
        assert_int_equal(LOAD(&s, &err, "--listen", near[i], "--http", near[i]), 0);
        settings_free(&settings_psd, &s);
    }
    for (size_t i = 0; i < COUNT_OF(far); i++) {
        assert_int_equal(LOAD(&s, &err, "--listen", far[i]), PS_ESETTING);
        assert_non_null(strstr(err.text, far[i]));
        assert_non_null(strstr(err.text, "insecure"));
        settings_free(&settings_psd, &s);
        assert_int_equal(LOAD(&s, &err, "--listen", far[i], "--insecure"), 0);
        settings_free(&settings_psd, &s);
        assert_int_equal(LOAD(&s, &err, "--listen", far[i], "--token", "open sesame"), 0);
        settings_free(&settings_psd, &s);
        assert_int_equal(LOAD(&s, &err, "--listen", near[0], "--http", far[i]), PS_ESETTING);
        assert_non_null(strstr(err.text, "http: other machines reach"));
        assert_non_null(strstr(err.text, far[i]));
        settings_free(&settings_psd, &s);
        assert_int_equal(LOAD(&s, &err, "--listen", near[0], "--http", far[i], "--insecure"),
                         0);
        assert_false(settings_pages_want_role(&s));
        settings_free(&settings_psd, &s);
        assert_int_equal(
            LOAD(&s, &err, "--listen", near[0], "--http", far[i], "--token", "open sesame"), 0);
        assert_true(settings_pages_want_role(&s));
        settings_free(&settings_psd, &s);
    }
}

static void a_coord_that_no_etcd_can_be_asked_by_is_refused(void **state)
{
    static const char good[] = "etcd://10.0.0.3:2379/prod";
    static const char *const bad[][3] = {
        { "etcd://10.0.0.3:2379", "expected etcd://HOST:PORT[,HOST:PORT...]/CLUSTER" },
        { "etcd://10.0.0.3:2379/", "the cluster's name has 1 to 64 letters" },
        { "etcd://10.0.0.3/prod", "\"10.0.0.3\" is no server address" },
        { "etcd://10.0.0.3:2379/pr/od", "\"10.0.0.3:2379/pr\" is no server address" },
        { "etcd://10.0.0.3:2379/a b", "the cluster's name has 1 to 64 letters" },
    };
    static const char *const files[] = { "coord-ca", "coord-password-file" };
    struct settings s;
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(LOAD(&s, &err, "--dev", "--coord", bad[i][0]), PS_ESETTING);
        assert_int_equal(strncmp(err.text, "coord: ", 7), 0);
        assert_non_null(strstr(err.text, bad[i][1]));
    }
    assert_int_equal(LOAD(&s, &err, "--dev", "--coord", good, "--coord-user", "u"),
                     PS_ESETTING);
    assert_non_null(strstr(err.text, "coord-user and coord-password-file: give both"));
    assert_int_equal(LOAD(&s, &err, "--dev", "--coord", good, "--coord-cert", "c"),
                     PS_ESETTING);
    assert_non_null(strstr(err.text, "coord-cert and coord-key: give both"));
    for (size_t i = 0; i < 2; i++) {
        const char *option = i ? "--coord-password-file" : "--coord-ca";

        assert_int_equal(LOAD(&s, &err, "--dev", "--coord", good, "--coord-user", i ? "u" : "",
                              option, "no-such-file"),
                         PS_ESETTING);
        assert_non_null(strstr(err.text, files[i]));
        assert_non_null(strstr(err.text, "no-such-file: No such file or directory"));
    }
    assert_int_equal(LOAD(&s, &err, "--dev", "--coord", good), 0);
}

static void a_token_that_can_be_guessed_is_refused(void **state)
{
    static const char *const short_ones[] = { "x", "1234567", "1234567  " };
    struct settings s;
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(short_ones); i++) {
        assert_int_equal(LOAD(&s, &err, "--dev", "--token", short_ones[i]), PS_ESETTING);
        assert_non_null(strstr(err.text, "expected one line of 8 to 127 characters"));
        settings_free(&settings_psd, &s);
    }
    assert_int_equal(LOAD(&s, &err, "--dev", "--token", "12345678"), 0);
    settings_free(&settings_psd, &s);
}

static void a_token_file_gives_its_one_line(void **state)
{
    char path[] = "/tmp/psd-token-XXXXXX";
    struct settings s;
    struct err err;
    FILE *file;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    file = fdopen(fd, "w");
    fputs("open sesame\n", file);
    fclose(file);
    assert_int_equal(LOAD(&s, &err, "--dev", "--token-file", path), 0);
    assert_string_equal(s.token, "open sesame");
    settings_free(&settings_psd, &s);
    assert_int_equal(chmod(path, 0640), 0); /* a service has a group of its own */
    assert_int_equal(LOAD(&s, &err, "--dev", "--token-file", path), 0);
    settings_free(&settings_psd, &s);
    for (mode_t mode = 0604; mode >= 0602; mode -= 2) {
        assert_int_equal(chmod(path, mode), 0);
        assert_int_equal(LOAD(&s, &err, "--dev", "--token-file", path), PS_ESETTING);
        assert_non_null(strstr(err.text, "every user of this machine can read or change"));
        settings_free(&settings_psd, &s);
    }
    assert_int_equal(chmod(path, 0600), 0);
    file = fopen(path, "a"); /* no client takes a second line, either */
    fputs("close sesame\n", file);
    fclose(file);
    assert_int_equal(LOAD(&s, &err, "--dev", "--token-file", path), PS_ESETTING);
    assert_non_null(strstr(err.text, "expected one line"));
    settings_free(&settings_psd, &s);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(LOAD(&s, &err, "--dev", "--token-file", path), PS_ESETTING);
    settings_free(&settings_psd, &s);
    unlink(path);
}

static void all_nodes_of_a_cluster_have_one_map(void **state)
{
    struct hello_reply a, b, c;
    struct settings s;
    struct err err;

    (void)state;
    assert_int_equal(LOAD(&s, &err, "--dev", "--shards", "2", "--cluster", "a:1,b:2"), 0);
    assert_int_equal(cluster_map(&s, &a, &err), 0);
    s.node = 1;
    assert_int_equal(cluster_map(&s, &b, &err), 0);
    assert_true(a.map_id == b.map_id && a.map_id != 0);
    assert_int_equal(b.node, 1);
    assert_string_equal(b.nodes[1], "b:2");
    s.shards = 3;
    assert_int_equal(cluster_map(&s, &c, &err), 0);
    assert_true(a.map_id != c.map_id);
    s.node = 2;
    assert_int_equal(cluster_map(&s, &c, &err), PS_ECLUSTER);
    s.node = 1;
    snprintf(s.advertise, sizeof s.advertise, "a:1");
    assert_int_equal(cluster_map(&s, &c, &err), PS_ECLUSTER);
    assert_non_null(strstr(err.text, "--node"));
    settings_free(&settings_psd, &s);
    assert_int_equal(LOAD(&s, &err, "--dev", "--cluster", "a:1,a:1"), 0);
    assert_int_equal(cluster_map(&s, &a, &err), PS_ECLUSTER);
    settings_free(&settings_psd, &s);
}

static void a_node_that_stands_alone_is_named_by_where_it_listens(void **state)
{
    struct hello_reply map;
    struct settings s;
    struct err err;

    (void)state;
    assert_int_equal(LOAD(&s, &err, "--listen", "127.0.0.1:0", "--shards", "1"), 0);
    assert_int_equal(cluster_map(&s, &map, &err), 0);
    cluster_name_self(&s, "127.0.0.1:4711", &map);
    assert_string_equal(map.nodes[0], "127.0.0.1:4711");
    cluster_name_self(&s, "0.0.0.0:4711", &map);
    assert_non_null(strstr(map.nodes[0], ":4711"));
    assert_null(strstr(map.nodes[0], "0.0.0.0"));
    snprintf(s.advertise, sizeof s.advertise, "me:1");
    assert_int_equal(cluster_map(&s, &map, &err), 0);
    cluster_name_self(&s, "0.0.0.0:4711", &map);
    assert_string_equal(map.nodes[0], "me:1");
    settings_free(&settings_psd, &s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dev_chooses_what_is_not_given),
        cmocka_unit_test(the_defaults_are_those_of_the_manual),
        cmocka_unit_test(nothing_to_listen_on_is_reported_with_what_to_type),
        cmocka_unit_test(settings_that_do_not_go_together_are_refused),
        cmocka_unit_test(without_a_token_only_this_machine_is_listened_to),
        cmocka_unit_test(a_coord_that_no_etcd_can_be_asked_by_is_refused),
        cmocka_unit_test(a_token_that_can_be_guessed_is_refused),
        cmocka_unit_test(a_token_file_gives_its_one_line),
        cmocka_unit_test(all_nodes_of_a_cluster_have_one_map),
        cmocka_unit_test(a_node_that_stands_alone_is_named_by_where_it_listens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

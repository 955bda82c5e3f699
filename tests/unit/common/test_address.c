#include "common/address.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>
#include <netinet/in.h>

static int parse(const char *text, struct address *ret, struct err *err)
{
    return address_parse(text, strlen(text), ret, err);
}

static void host_and_port_are_taken_apart(void **state)
{
    struct address a;
    struct err err;

    (void)state;
    assert_int_equal(parse("ps1.example.org:7070", &a, &err), 0);
    assert_string_equal(a.host, "ps1.example.org");
    assert_string_equal(a.port, "7070");
    assert_string_equal(a.text, "ps1.example.org:7070");
    assert_int_equal(parse("[::1]:1", &a, &err), 0);
    assert_string_equal(a.host, "::1");
}

static void what_is_no_address_is_refused_with_what_was_found(void **state)
{
    static const char *const bad[] = { "",        "host",       "host:",    ":7070",
                                       "host:0",  "host:65536", "a:b",      "host:70x",
                                       "host:-1", "::1:7070",   "[]:7070",  "host:123456",
                                       "a:1:",    "host: 7070", "host:+70", "[::1]7070",
                                       "[::1]:x", "\"a\":7070", "a\\:7070", "a b:7070" };
    char text[300];
    struct address a;
    struct err err;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(bad); i++) {
        assert_int_equal(parse(bad[i], &a, &err), -EINVAL);
        assert_non_null(strstr(err.text, bad[i]));
        assert_non_null(strstr(err.text, "HOST:PORT"));
    }
    memset(text, 'a', sizeof text);
    memcpy(text + sizeof text - 6, ":7070", 6);
    assert_int_equal(parse(text, &a, &err), -EINVAL);
}

static void a_list_may_have_blanks_but_no_holes(void **state)
{
    struct address a[3];
    struct err err;
    uint32_t n;

    (void)state;
    assert_int_equal(address_list("a:1, b:2 ,\tc:3", 3, a, &n, &err), 0);
    assert_int_equal(n, 3);
    assert_string_equal(a[1].text, "b:2");
    assert_string_equal(a[2].host, "c");
    assert_int_equal(address_list("a:1,b:2,c:3,d:4", 3, a, &n, &err), -EINVAL);
    assert_int_equal(address_list("a:1,,b:2", 3, a, &n, &err), -EINVAL);
    assert_int_equal(address_list("a:1,", 3, a, &n, &err), -EINVAL);
    assert_int_equal(address_list("  ", 3, a, &n, &err), -EINVAL);
    assert_int_equal(address_list("", 3, a, &n, &err), -EINVAL);
}

static void addresses_are_read_as_people_type_them(void **state)
{
    static const struct {
        const char *text, *host, *port;
    } good[] = {
        { "127.0.0.1:7070", "127.0.0.1", "7070" },
        { "node-3.example:1", "node-3.example", "1" },
        { "[::1]:7070", "::1", "7070" },
        { "[fe80::1%eth0]:65535", "fe80::1%eth0", "65535" },
        { ":0", "", "0" },
        { "localhost:00080", "localhost", "00080" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        struct address a;

        assert_int_equal(address_parse_listen("listen", good[i].text, &a, NULL), 0);
        assert_string_equal(a.host, good[i].host);
        assert_string_equal(a.port, good[i].port);
    }
}

static void what_is_no_address_is_refused_with_the_setting_and_the_text(void **state)
{
    static const char *const bad[] = {
        "",          "7070",       "host",    "host:",
        "host:http", "host:70 70", "host:-1", "host:65536",
        "host:+80",  "::1:7070",   "[::1]",   "[::1]7070",
        "[]:1",      "host:1:2",   "[:1",     "host:999999999999999999999",
        "\"a\":1",   "a\\:1",      "a b:1",
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct address a;
        struct err err;

        assert_int_equal(address_parse_listen("listen", bad[i], &a, &err), PS_ESETTING);
        assert_non_null(strstr(err.text, "listen: found"));
        assert_non_null(strstr(err.text, bad[i]));
        assert_non_null(strstr(err.text, "such as 127.0.0.1:7070, with a port up to 65535"));
    }
}

static void a_host_longer_than_any_is_refused(void **state)
{
    char text[400];
    struct address a;

    (void)state;
    memset(text, 'h', sizeof text);
    memcpy(text + 300, ":1", 3);
    assert_int_equal(address_parse_listen("listen", text, &a, NULL), PS_ESETTING);
}

static void numbers_resolve_to_themselves(void **state)
{
    static const char *const texts[] = { "127.0.0.1:7070", "[::1]:7070", "0.0.0.0:0" };
    struct sockaddr_storage address;
    char text[ADDRESS_TEXT_MAX];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        assert_int_equal(address_resolve("listen", texts[i], &address, NULL), 0);
        address_text((struct sockaddr *)&address, text);
        assert_string_equal(text, texts[i]);
        assert_int_equal(address_is_any((struct sockaddr *)&address), i == 2);
    }
    assert_int_equal(address_resolve("listen", ":9", &address, NULL), 0);
    assert_true(address_is_any((struct sockaddr *)&address));
}

/* Sure of it only where two ports or two numbers differ. */
static void a_listener_is_elsewhere_where_no_name_could_lead_to_it(void **state)
{
    static const struct {
        const char *listen, *line;
        bool is_elsewhere;
    } cases[] = {
        { "127.0.0.1:7070", "127.0.0.1:7070", false },
        { "127.0.0.1:7170", "127.0.0.1:7180", true },
        { "127.0.0.1:0", "127.0.0.1:7180", false },
        { ":7070", "a.example:7070", false },
        { "0.0.0.0:7070", "10.0.0.1:7070", false },
        { "[::]:7070", "[fd00::1]:7070", false },
        { "[::]:7070", "[fd00::1]:7071", true },
        { "10.0.0.1:7070", "10.0.0.2:7070", true },
        { "10.0.0.1:7070", "a.example:7070", false },
        { "a.example:7070", "b.example:7070", false },
        { "10.0.0.1:7070", "[fd00::1]:7070", false },
        { "[FD00::1]:7070", "[fd00::1]:7070", false },
        { "[fd00:0:0::1]:7070", "[fd00::1]:7070", false },
        { "[fd00::2]:7070", "[fd00::1]:7070", true },
        { "[0::0]:7070", "[fd00::1]:7070", false },
        { "", "10.0.0.2:7070", false },
        { "10.0.0.1:7070", "", false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_int_equal(address_is_elsewhere(cases[i].listen, cases[i].line),
                         cases[i].is_elsewhere);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_and_port_are_taken_apart),
        cmocka_unit_test(what_is_no_address_is_refused_with_what_was_found),
        cmocka_unit_test(a_list_may_have_blanks_but_no_holes),
        cmocka_unit_test(addresses_are_read_as_people_type_them),
        cmocka_unit_test(what_is_no_address_is_refused_with_the_setting_and_the_text),
        cmocka_unit_test(a_host_longer_than_any_is_refused),
        cmocka_unit_test(numbers_resolve_to_themselves),
        cmocka_unit_test(a_listener_is_elsewhere_where_no_name_could_lead_to_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

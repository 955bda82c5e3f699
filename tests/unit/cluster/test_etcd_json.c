/* Requests and answers of etcd's JSON gateway, as texts. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/memory.h"
#include "server/cluster/etcd_json.h"
#include "tests/support/seed.h"

static void base64_is_rfc_4648s(void **state)
{
    static const char *const pairs[][2] = {
        { "", "" },
        { "f", "Zg==" },
        { "fo", "Zm8=" },
        { "foo", "Zm9v" },
        { "foob", "Zm9vYg==" },
        { "fooba", "Zm9vYmE=" },
        { "foobar", "Zm9vYmFy" },
    };
    static const char *const bad[] = { "Z",    "Zg",       "Zg=",  "Z===",
                                       "====", "Zg==Zg==", "Zm9*", "Zm=v" };
    size_t n;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        char text[16], *back;

        etcd_json_encode(pairs[i][0], strlen(pairs[i][0]), text);
        assert_string_equal(text, pairs[i][1]);
        back = etcd_json_decode(text, &n);
        assert_string_equal(back, pairs[i][0]);
        free(back);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_null(etcd_json_decode(bad[i], &n));
}

static void any_bytes_come_back_from_base64(void **state)
{
    const uint64_t seed = seed_of_run(7);

    (void)state;
    for (uint64_t i = 0; i < 2000; i++) {
        uint8_t bytes[100];
        char text[140], *back;
        const size_t n = hash_mix2(seed, i) % sizeof bytes;
        size_t n_back;

        for (size_t j = 0; j < n; j++)
            bytes[j] = (uint8_t)hash_mix2(seed + i, j);
        etcd_json_encode(bytes, n, text);
        back = etcd_json_decode(text, &n_back);
        assert_int_equal(n_back, n);
        assert_memory_equal(back, bytes, n);
        free(back);
    }
}

static void a_request_is_what_etcd_expects(void **state)
{
    const struct coord_write writes[] = {
        { .change = COORD_PUT, .key = "a", .if_revision = 5, .value = "x", .lease = 7 },
        { .change = COORD_REMOVE, .key = "b", .if_value = "x" },
    };
    char *text = etcd_json_put_if("/", writes, 2);

    (void)state;
    assert_string_equal(
        text,
        "{\"compare\":[{\"key\":\"L2E=\",\"target\":\"MOD\",\"result\":\"EQUAL\",\"mod_"
        "revision\":\"5\"},"
        "{\"key\":\"L2I=\",\"target\":\"MOD\",\"result\":\"EQUAL\",\"mod_revision\":\"0\"},"
        "{\"key\":\"L2I=\",\"target\":\"VALUE\",\"result\":\"EQUAL\",\"value\":\"eA==\"}],"
        "\"success\":[{\"request_put\":{\"key\":\"L2E=\",\"value\":\"eA==\",\"lease\":\"7\"}},"
        "{\"request_delete_range\":{\"key\":\"L2I=\"}}],"
        "\"failure\":[{\"request_range\":{\"key\":\"L2E=\"}},{\"request_range\":{\"key\":\"L2I="
        "\"}}]}");
    free(text);
    text = etcd_json_get("/", "a", true, 0);
    assert_string_equal(text, "{\"key\":\"L2E=\",\"range_end\":\"L2I=\"}");
    free(text);
}

/* A message that has everything, with its bytes changed at random: read, or refused. And with each k-th allocation
 * failing. */
static void a_damaged_answer_is_refused_or_read_and_nothing_else(void **state)
{
    static const char message[] =
        "{\"result\":{\"header\":{\"revision\":\"12\"},\"created\":true,\"compact_revision\":"
        "\"3\","
        "\"events\":[{\"type\":\"DELETE\",\"kv\":{\"key\":\"L2E=\",\"mod_revision\":\"7\"}},"
        "{\"kv\":{\"key\":\"L2I=\",\"mod_revision\":\"8\",\"value\":\"eA==\",\"lease\":\"5\"}}]"
        "}}";
    const uint64_t seed = seed_of_run(3);
    uint64_t n_read = 0;

    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        char text[sizeof message];
        struct etcd_json_answer a = { 0 };
        struct err err;
        cJSON *root;

        memcpy(text, message, sizeof text);
        for (uint64_t j = 0; j < i % 4; j++)
            text[hash_mix2(seed + i, j) % (sizeof text - 1)] =
                "\"{}[]:,019aA=\\n"[hash_mix2(seed + i, j + 100) % 14];
        root = cJSON_Parse(text);
        if (root && !etcd_json_error(root, &err))
            n_read += etcd_json_read_event(root, "/", &a) == 0;
        etcd_json_free(&a);
        cJSON_Delete(root);
    }
    assert_true(n_read >= 5000 && n_read < 20000);
#ifdef PS_FAULTS
    for (long k = 0;; k++) {
        struct etcd_json_answer a = { 0 };
        cJSON *root = cJSON_Parse(message);
        int status;

        memory_fail_after(k);
        status = etcd_json_read_event(root, "/", &a);
        memory_fail_after(-1);
        etcd_json_free(&a);
        cJSON_Delete(root);
        if (status == 0) {
            assert_true(k >= 6);
            break;
        }
    }
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(base64_is_rfc_4648s),
        cmocka_unit_test(any_bytes_come_back_from_base64),
        cmocka_unit_test(a_request_is_what_etcd_expects),
        cmocka_unit_test(a_damaged_answer_is_refused_or_read_and_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

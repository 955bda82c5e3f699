/* When a device gets the rows of a job's only worker, and when all stays as it is (worker/device_replica.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/log_line.h"
#include "tests/support/far_device.h"
#include "worker/device_replica.h"

static bool refuse(struct param_store *s, uint32_t table, uint32_t n_places)
{
    (void)s, (void)table;
    assert_true(n_places > 0);
    return false;
}

static const struct param_store_ops plain = { 0 }, refuses = { .replicate = refuse };

static struct dlrm *new_model(const struct device_ops *ops)
{
    const struct dlrm_config config = {
        .n_fields = 2, .dim = 4, .batch_max = 8, .n_top = 1, .top = { 1 }
    };
    struct dlrm *model;
    struct err err;

    assert_int_equal(dlrm_new_on(ops, &config, &model, &err), 0);
    return model;
}

/* device_replica_open(), and what it says on stderr. */
static void open_logged(struct device_replica *r, const struct settings *s,
                        struct param_store *store, const struct table_spec *spec,
                        struct step_buffers_shape *shape, char *said, size_t n_bytes)
{
    const int saved_fd = dup(STDERR_FILENO);
    FILE *file = tmpfile();

    assert_non_null(file);
    assert_true(saved_fd >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    device_replica_open(r, s, store, 0, spec, shape);
    assert_true(dup2(saved_fd, STDERR_FILENO) >= 0);
    close(saved_fd);
    rewind(file);
    said[fread(said, 1, n_bytes - 1, file)] = '\0';
    fclose(file);
}

/* Nothing has changed: neither in the shape nor on the device. `why` is a part of the line that says so; NULL: nobody
 * asked for it, and there is none. */
static void check_none(const struct device_ops *ops, const struct param_store_ops *store_ops,
                       const struct settings *s, const struct table_spec *spec, bool encodes,
                       const char *why)
{
    struct step_buffers_shape shape = { .model = new_model(ops), .encodes = encodes };
    struct param_store store = { .ops = store_ops };
    struct device_replica replica = { 0 };
    char said[1024];

    open_logged(&replica, s, &store, spec, &shape, said, sizeof said);
    if (why ? !strstr(said, "rows stay in the row cache: ") || !strstr(said, why) : said[0])
        fail_msg("\"%s\" where \"%s\" was wanted", said, why ? why : "");
    assert_null(replica.model);
    assert_false(shape.places);
    assert_int_equal(shape.n_states, 0);
    assert_false(dlrm_keeps_rows(shape.model));
    dlrm_free(shape.model);
}

static void without_a_reason_to_have_rows_the_device_has_none(void **state)
{
    static const struct far_device_plan plan = { .late = true };
    const struct device_ops *far = far_device_ops(&device_cpu, &plan);
    const struct settings usual = { .device_cache_bytes = 4096, .row_cache_bytes = 4096 },
                          off = { .row_cache_bytes = 4096 },
                          bf16 = { .device_cache_bytes = 4096,
                                   .row_cache_bytes = 4096,
                                   .pull_codec = CODEC_BF16 },
                          small = { .device_cache_bytes = 4096, .row_cache_bytes = 31 },
                          local_steps = { .device_cache_bytes = 4096,
                                          .row_cache_bytes = 4096,
                                          .workers = 1,
                                          .local_steps = 4 };
    const struct table_spec spec = { .dim = 4, .optim = TABLE_SPEC_ADAGRAD },
                            ftrl = { .dim = 4, .optim = TABLE_SPEC_FTRL };

    (void)state;
    assert_int_equal(log_line_set_level("info"), 0);
    check_none(far, &plain, &usual, &spec, true, NULL);
    check_none(far, &refuses, &off, &spec, true, NULL);
    check_none(far, &refuses, &bf16, &spec, true, "another codec");
    check_none(far, &refuses, &usual, &ftrl, true, "the device knows");
    check_none(far, &refuses, &usual, &spec, false, "--device-encode");
    check_none(far, &refuses, &small, &spec, true, "no place for one");
    check_none(far, &refuses, &usual, &spec, true, "no place for one"); /* it changes no rows */
    check_none(far, &plain, &local_steps, &spec, false, "--local-steps");
    check_none(&device_cpu, &refuses, &usual, &spec, true, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_reason_to_have_rows_the_device_has_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

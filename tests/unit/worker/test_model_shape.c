/* The shape of each kind of model goes through its text and back; what is given and differs is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "worker/model/dlrm_config.h"
#include "worker/model_shape.h"

static const struct model_shape_columns columns = { 1, 3, 5 };

static struct settings load(int n, const char *const *flags)
{
    struct settings s = { 0 };
    enum settings_action action;
    struct err err = { 0 };

    if (settings_load(&settings_worker, n, (char **)(uintptr_t)flags, 0, &s, &action, &err))
        fail_msg("%s", err.text);
    return s;
}

static struct settings of_kind(int kind)
{
    const uint32_t parts = dlrm_config_parts((enum model_kind)kind);
    const char *flags[12] = { "--model", dlrm_config_kind_name((enum model_kind)kind) };
    int n = 2;

    if (parts & MODEL_EMBEDDINGS)
        flags[n++] = "--dim=6";
    if (parts & MODEL_TOP) {
        flags[n++] = "--top=9,7";
        flags[n++] = "--batch-norm";
    }
    if (parts & MODEL_BOTTOM)
        flags[n++] = "--bottom=11";
    if (parts & MODEL_CROSS) {
        flags[n++] = "--cross-layers=3";
        flags[n++] = "--cross-rank=5";
    }
    return load(n, flags);
}

static void a_shape_is_taken_as_it_was_written(void **state)
{
    struct settings fallback = load(0, NULL);
    struct err err = { 0 };

    (void)state;
    for (int kind = 0; kind < MODEL_KINDS; kind++) {
        struct settings wrote = of_kind(kind), took = load(0, NULL);
        cJSON *root = cJSON_CreateObject();

        model_shape_describe(root, &wrote, &columns);
        assert_int_equal(model_shape_adopt(&took, &fallback, root, &err), 0);
        assert_int_equal(took.model, kind);
        assert_int_equal(settings_dim(&took), settings_dim(&wrote));
        assert_int_equal(settings_has_wide(&took), settings_has_wide(&wrote));
        assert_string_equal(took.top, wrote.top);
        assert_string_equal(took.bottom, wrote.bottom);
        assert_int_equal(took.batch_norm, wrote.batch_norm);
        assert_int_equal(took.cross_layers, wrote.cross_layers);
        assert_int_equal(took.cross_rank, wrote.cross_rank);
        cJSON_Delete(root);
    }
}

static void another_shape_or_an_unknown_kind_is_refused(void **state)
{
    struct settings fallback = load(0, NULL), fm = of_kind(MODEL_FM),
                    top = of_kind(MODEL_DEEPFM), cross = of_kind(MODEL_DCNV2);
    cJSON *root = cJSON_CreateObject(), *of_cross = cJSON_CreateObject();
    struct err err = { 0 };

    (void)state;
    model_shape_describe(root, &top, &columns);
    assert_int_equal(model_shape_adopt(&fm, &fallback, root, &err), PS_ESPEC);
    assert_non_null(strstr(err.text, "--model"));
    strcpy(top.top, "9");
    assert_int_equal(model_shape_adopt(&top, &fallback, root, &err), PS_ESPEC);
    assert_non_null(strstr(err.text, "--top"));
    model_shape_describe(of_cross, &cross, &columns);
    cross.cross_layers = 4;
    assert_int_equal(model_shape_adopt(&cross, &fallback, of_cross, &err), PS_ESPEC);
    assert_non_null(strstr(err.text, "--cross-layers"));
    cross.cross_layers = 3, cross.cross_rank = 6;
    assert_int_equal(model_shape_adopt(&cross, &fallback, of_cross, &err), PS_ESPEC);
    assert_non_null(strstr(err.text, "--cross-rank"));
    cJSON_Delete(of_cross);
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(root, "model"), "kind",
                              cJSON_CreateString("of a later psworker"));
    assert_int_equal(model_shape_adopt(&fallback, &fallback, root, &err), PS_ESPEC);
    cJSON_Delete(root);
}

/* They stand beside the columns. */
static void hats_are_the_records(void **state)
{
    struct settings fallback = load(0, NULL), took = load(0, NULL), wrote = load(0, NULL),
                    other = load(1, (const char *[]){ "--numeric-hats=3" });
    cJSON *root = cJSON_CreateObject(), *bare = cJSON_CreateObject();
    struct err err = { 0 };

    (void)state;
    model_shape_describe(root, &wrote, &columns);
    cJSON_AddNumberToObject(cJSON_AddObjectToObject(root, "numeric"), "hats", 8);
    assert_int_equal(model_shape_adopt(&other, &fallback, root, &err), PS_ESPEC);
    assert_non_null(strstr(err.text, "--numeric-hats"));
    assert_int_equal(model_shape_adopt(&took, &fallback, root, &err), 0);
    assert_int_equal(settings_n_hats(&took), 8);
    assert_string_equal(settings_bottom(&took), settings_bottom(&wrote));
    model_shape_describe(bare, &wrote, &columns); /* of a psworker that knew none */
    took = load(0, NULL);
    assert_int_equal(model_shape_adopt(&took, &fallback, bare, &err), 0);
    assert_int_equal(settings_n_hats(&took), 0);
    cJSON_Delete(root);
    cJSON_Delete(bare);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shape_is_taken_as_it_was_written),
        cmocka_unit_test(another_shape_or_an_unknown_kind_is_refused),
        cmocka_unit_test(hats_are_the_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

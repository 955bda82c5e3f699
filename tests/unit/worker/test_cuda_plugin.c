/* A GPU's plug-in that cannot be used is one sentence: drivers and plug-ins of every kind, written and
 * compiled here. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "worker/cuda_plugin.h"

static struct {
    char folder[64];
} the;

/* FOLDER/NAME, a shared library of this text. dlopen() knows a file by its name: no two tests share one. */
static const char *library(char *path, size_t n_bytes, const char *name, const char *text)
{
    char command[400];
    FILE *f;

    snprintf(path, n_bytes, "%s/%s.c", the.folder, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    snprintf(command, sizeof command, "cc -shared -fPIC -o %s/%s.so %s", the.folder, name,
             path);
    assert_int_equal(system(command), 0);
    snprintf(path, n_bytes, "%s/%s.so", the.folder, name);
    return path;
}

#define DRIVER_OF(init, count, n)                                 \
    "int cuInit(unsigned flags) { return flags ? 1 : " init "; }" \
    "int cuDeviceGetCount(int *n) { *n = " n "; return " count "; }"
#define SAYS                                            \
    "int cuGetErrorString(int code, const char **text)" \
    "{ *text = code == 100 ? \"no device was found\" : 0; return 0; }"
/* Any address will do for a table: nobody looks into it here. */
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define PLUGIN                                                        \
    "const void *psworker_cuda(unsigned abi) { static int t; return " \
    "abi == " TEXT(DEVICE_ABI) " ? &t : 0; }"

struct refusal {
    const char *name, *driver, *plugin, *words; /* NULL: there is none */
};

static const struct refusal refusals[] = {
    { "none", NULL, PLUGIN, "there is no NVIDIA driver (" },
    { "empty", "int nothing;", PLUGIN, "it lacks cuInit or cuDeviceGetCount" },
    { "half", "int cuInit(unsigned f) { return (int)f; }", PLUGIN, "it lacks cuInit or" },
    { "absent", DRIVER_OF("100", "0", "1") SAYS, PLUGIN, "no device was found (100)" },
    { "stub", DRIVER_OF("34", "0", "1"), PLUGIN, "it fails (34)" },
    { "mute", DRIVER_OF("35", "0", "1") SAYS, PLUGIN, "it fails (35)" },
    { "uncounted", DRIVER_OF("0", "3", "1"), PLUGIN, "it fails (3)" },
    { "zero", DRIVER_OF("0", "0", "0"), PLUGIN, "the NVIDIA driver knows no device" },
    { "alone", DRIVER_OF("0", "0", "1"), NULL, "there is no psworker_cuda.so beside" },
    { "needy", DRIVER_OF("0", "0", "1"),
      "extern int of_nobody(void); int x(void) { return of_nobody(); }" PLUGIN,
      "psworker_cuda.so cannot be opened (" },
    { "other", DRIVER_OF("0", "0", "1"), "int nothing;", "it lacks psworker_cuda" },
    { "old", DRIVER_OF("0", "0", "1"),
      "const void *psworker_cuda(unsigned abi) { (void)abi; return 0; }",
      "; install both from one build" },
};

static void what_cannot_be_used_is_one_sentence(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(refusals); i++) {
        const struct refusal *r = &refusals[i];
        char driver[160] = "/nowhere/libcuda.so.1", plugin[160] = "/nowhere/psworker_cuda.so";
        char name[32];
        const struct device_ops *ops = NULL;
        struct err err = { 0 };

        snprintf(name, sizeof name, "driver_%s", r->name);
        if (r->driver)
            (void)library(driver, sizeof driver, name, r->driver);
        snprintf(name, sizeof name, "plugin_%s", r->name);
        if (r->plugin)
            (void)library(plugin, sizeof plugin, name, r->plugin);
        assert_int_equal(
            cuda_plugin_open(&(struct cuda_plugin_places){ driver, { plugin } }, &ops, &err),
            r->driver ? PS_EDEVICE : -ENODEV);
        assert_null(ops);
        if (!strstr(err.text, r->words))
            fail_msg("%s: expected \"%s\" in \"%s\"", r->name, r->words, err.text);
    }
}

static void the_first_file_that_is_there_is_taken(void **state)
{
    char driver[160], plugin[160];
    const struct device_ops *ops = NULL;
    struct err err = { 0 };

    (void)state;
    (void)library(driver, sizeof driver, "driver_good", DRIVER_OF("0", "0", "2"));
    (void)library(plugin, sizeof plugin, "plugin_good", PLUGIN);
    assert_int_equal(
        cuda_plugin_open(&(struct cuda_plugin_places){ driver, { "/nowhere/x.so", plugin } },
                         &ops, &err),
        0);
    assert_non_null(ops);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(the.folder, sizeof the.folder, "/tmp/psd-plugin-XXXXXX");
    return mkdtemp(the.folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[100];

    (void)state;
    snprintf(command, sizeof command, "rm -r %s", the.folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_used_is_one_sentence),
        cmocka_unit_test(the_first_file_that_is_there_is_taken),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

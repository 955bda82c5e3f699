/*
 * A settings file: u8 program | text. Entries are written and read again as what they were; settings that
 * are accepted, printed and read again, print the same.
 */
#include <stdlib.h>
#include <string.h>

#include "common/ini_file.h"
#include "server/settings.h"
#include "tests/fuzz/text.h"
#include "tests/unit/common/settings_example.h"

union values {
    struct example_settings example;
    struct settings psd;
};

/* --- entries --- */

struct entries {
    uint64_t digest;
    uint32_t n;
    FILE *again; /* they are written to, or NULL */
};

static int on_entry(void *arg, const struct ini_file_entry *entry, struct err *err)
{
    struct entries *e = arg;

    (void)err;
    assert(entry->name[0] && entry->line > 0);
    harness_digest(&e->digest, entry->name, strlen(entry->name));
    harness_digest(&e->digest, entry->value, strlen(entry->value));
    e->n++;
    if (e->again)
        ini_file_write(e->again, entry->name, entry->value);
    return 0;
}

static void check_entries(const char *path)
{
    struct entries first = { 0 }, second = { 0 };
    struct err err = { 0 };
    char *bytes = NULL;
    size_t n_bytes = 0;
    struct text file;
    int status;

    first.again = open_memstream(&bytes, &n_bytes);
    assert(first.again);
    fputs("#\n",
          first.again); /* a name may begin with a byte order mark, but not in the first line */
    status = ini_file_read(path, on_entry, &first, &err);
    fclose(first.again);
    if (status) {
        assert(status == PS_ESETTING && err.text[0]);
    } else {
        text_new(&file, bytes, n_bytes);
        status = ini_file_read(file.path, on_entry, &second, &err);
        assert(status == 0 && first.n == second.n && first.digest == second.digest);
        text_free(&file);
    }
    free(bytes);
}

/* --- a program's settings --- */

/* What the file means, as --print-config says it; NULL when it is refused. The caller's to free(). */
static char *print(const struct settings_table *table, const char *path, size_t *ret_n_bytes)
{
    char *argv[] = { (char *)(uintptr_t) "program", (char *)(uintptr_t) "--config",
                     (char *)(uintptr_t)path, NULL };
    union values *values = calloc(1, sizeof *values);
    enum settings_action action;
    struct err err = { 0 };
    char *bytes = NULL;
    FILE *out;
    int status;

    assert(values);
    status = settings_load(table, 3, argv, 1, values, &action, &err);
    assert(status == 0 || (status == PS_ESETTING && err.text[0]));
    if (status == 0) {
        assert(action == SETTINGS_RUN);
        out = open_memstream(&bytes, ret_n_bytes);
        assert(out);
        settings_print_config(table, values, out);
        fclose(out);
        settings_free(table, values);
    }
    free(values);
    return bytes;
}

static void check_settings(const struct settings_table *table, const char *path)
{
    size_t n_first, n_second;
    char *first = print(table, path, &n_first), *second;
    struct text file;

    if (!first)
        return;
    text_new(&file, first, n_first);
    second = print(table, file.path, &n_second);
    assert(second && n_first == n_second && memcmp(first, second, n_first) == 0);
    text_free(&file);
    free(first);
    free(second);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct harness_bytes in = { bytes, bytes + n_bytes };
    bool psd = harness_number(&in, 1) & 1;
    struct text file;

    text_new(&file, in.at, harness_left(&in));
    check_entries(file.path);
    check_settings(psd ? &settings_psd : &example_table, file.path);
    text_free(&file);
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    static const char *const texts[] = {
        "# a comment\n[network]\nlisten = 127.0.0.1:7070\nservers = a:1, b:2\nservers = c:3\n",
        "[store]\nshards = 8\nmemory-max = 4G\nframe-max=1M\nsync = off\n; another\n",
        "delimiter = \" \\t\\x41\\\"\\\\ \"\nmode = bsp\nlr = 1.5e-3\nlease = 250ms\n",
        "listen = 0.0.0.0:7070\nshards = 4\ndata-dir = /var/lib/psd\nlog-level = info\n",
        "cluster = a:7070,b:7070\nnode = 1\nmemory-max = 12G\ncheckpoint-every = 10m\n",
    };

    if (i >= COUNT_OF(texts))
        return false;
    harness_put_number(out, i > 2, 1);
    harness_put_text(out, texts[i]);
    return true;
}

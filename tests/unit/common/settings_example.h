/*
 * A program's settings with a row of every type, for the tests of the settings table.
 */
#ifndef TESTS_UNIT_COMMON_SETTINGS_EXAMPLE_H
#define TESTS_UNIT_COMMON_SETTINGS_EXAMPLE_H

#include <stdbool.h>

#include "common/settings.h"

enum example_mode { EXAMPLE_ASYNC, EXAMPLE_SSP, EXAMPLE_BSP };

struct example_settings {
    char listen[SETTINGS_TEXT_MAX];
    char delimiter[SETTINGS_TEXT_MAX];
    uint32_t shards, any32;
    uint64_t seed, rows;
    float lr, dropout;
    uint64_t memory_max, frame_max;
    uint64_t lease, park;
    bool dev, sync;
    int mode;
    struct setting_list servers, data, field;
};

#define ROW(section, name, type, arg, fallback, help, field, min, max)                      \
    {                                                                                       \
        section, name, type, arg, fallback, help, offsetof(struct example_settings, field), \
            min, max                                                                        \
    }

/* clang-format off */
static const struct setting example_rows[] = {
    ROW("network", "listen", SETTING_TEXT, "HOST:PORT", "127.0.0.1:7070",
        "where workers connect", listen, 0, 0),
    ROW("network", "servers", SETTING_LIST, "HOST:PORT,...", "",
        "nodes of the cluster, any one of which tells the others", servers, 0, 0),
    ROW("store", "shards", SETTING_U32, "N", "4",
        "threads, each with its slice of every table", shards, 1, 1024),
    ROW("store", "any32", SETTING_U32, "N", "0", "a number without a range", any32, 0, 0),
    ROW("store", "memory-max", SETTING_BYTES, "SIZE", "0",
        "rows and their index; 0 for no limit", memory_max, 0, 0),
    ROW("store", "frame-max", SETTING_BYTES, "SIZE", "64M",
        "the largest message", frame_max, 65536, (uint64_t)1 << 30),
    ROW("training", "seed", SETTING_U64, "N", "1", "where randomness starts", seed, 0, 0),
    ROW("training", "rows", SETTING_U64, "N", "1000", "rows to make", rows, 1, 1000000),
    ROW("training", "lr", SETTING_FLOAT, "X", "0.01", "learning rate", lr, 0, 0),
    ROW("training", "dropout", SETTING_FLOAT, "X", "0",
        "share of units left out", dropout, 0, 1),
    ROW("training", "mode", SETTING_CHOICE, "async|ssp|bsp", "ssp",
        "how workers wait for each other", mode, 0, 0),
    ROW("training", "data", SETTING_LIST, "PATH", "a.tsv,b.tsv", "files to read", data, 0, 0),
    ROW("training", "field", SETTING_ITEMS, "COLUMN:OPTION=VALUE,...", "", "options of a column", field, 0, 0),
    ROW("training", "delimiter", SETTING_TEXT, "TEXT", ",",
        "what stands between columns", delimiter, 0, 0),
    ROW("network", "lease", SETTING_MS, "TIME", "10s",
        "a worker that is silent for longer is dead", lease, 100, 3600000),
    ROW("network", "park", SETTING_MS, "TIME", "30s",
        "the longest that a pull waits", park, 0, 0),
    ROW("network", "dev", SETTING_FLAG, NULL, "no", "one node on this machine", dev, 0, 0),
    ROW("store", "sync", SETTING_FLAG, NULL, "yes", "fsync what is acknowledged", sync, 0, 0),
};

/* clang-format on */

static const struct settings_table example_table = {
    .program = "example",
    .usage = "example [--dev] [--config FILE] [options]",
    .about = "Keeps rows_of tables and *serves* them. It is here to show every kind of setting "
             "there is, in a "
             "paragraph that is longer than a line of a terminal.",
    .rows = example_rows,
    .n_rows = COUNT_OF(example_rows),
};

/* settings_load() of a command line given as words; the last is NULL. */
#define EXAMPLE_LOAD(settings, action, err, ...) \
    example_load((settings), (action), (err),    \
                 (const char *const[]){ "example", __VA_ARGS__, NULL })

int example_load(struct example_settings *settings, enum settings_action *action,
                 struct err *err, const char *const *words);

#endif

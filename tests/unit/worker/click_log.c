#include "tests/unit/worker/click_log.h"

char click_log_path[64];

void must(int status, const struct err *err)
{
    if (status)
        fail_msg("%s", err->text);
}

void click_log_settings(struct settings *s, const char *const *more)
{
    const char *flags[40] = {
        "--data", click_log_path, "--format", "criteo",   "--batch", "16",     "--dim",
        "4",      "--bottom",     "8",        "--top",    "8",       "--wide", "--mode",
        "async",  "--log-level",  "error",    "--epochs", "2"
    };
    enum settings_action action;
    struct err err = { 0 };
    int n = 19;

    while (*more)
        flags[n++] = *more++;
    memset(s, 0, sizeof *s);
    must(settings_load(&settings_worker, n, (char **)(uintptr_t)flags, 0, s, &action, &err),
         &err);
}

int click_log_write(void **state)
{
    struct synth_options options = { .rows = CLICK_LOG_ROWS,
                                     .seed = 5,
                                     .n_numeric = 13,
                                     .n_categorical = 26,
                                     .cardinality = 50,
                                     .zipf = 1,
                                     .positive_rate = 0.25 };
    struct err err = { 0 };

    (void)state;
    snprintf(click_log_path, sizeof click_log_path, "/tmp/psd-clicks-%d.tsv", (int)getpid());
    must(synth_write(&options, click_log_path, &err), &err);
    return 0;
}

int click_log_remove(void **state)
{
    (void)state;
    return unlink(click_log_path);
}

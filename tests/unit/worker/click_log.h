/* A log of clicks in Criteo's layout, which the tests of a program share, and the settings of a small run over it. */
#ifndef TESTS_UNIT_WORKER_CLICK_LOG_H
#define TESTS_UNIT_WORKER_CLICK_LOG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "worker/data/synth.h"
#include "worker/settings.h"

#define CLICK_LOG_ROWS 640u
#define CLICK_LOG_BATCH 16u
#define CLICK_LOG_BATCHES (CLICK_LOG_ROWS / CLICK_LOG_BATCH)

extern char click_log_path[64];

void must(int status, const struct err *err);

/* `more`: flags, up to a NULL. */
void click_log_settings(struct settings *s, const char *const *more);

/* Before a program's tests, and behind them. */
int click_log_write(void **state);

int click_log_remove(void **state);

#endif

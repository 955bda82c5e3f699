/*
 * What a node's counters did lately, as series of numbers for the stats page: one value a second for 15 minutes, and
 * one a minute for 24 hours. All of it is one block of at most HISTORY_BYTES_MAX, allocated at the start.
 *
 *     seconds   slot s % 900     of the monotonic clock's second s
 *     minutes   slot m % 1440    of its minute m: the mean of its seconds, or their greatest value (a wait, a p99)
 *
 * A slot without a sample is NaN, null in the JSON: nobody took one, or nothing was known. Rates are measured between
 * two reports of each shard, at the times of these reports, so that a late reader does not bend them. The wall clock
 * stands nowhere in here: when it jumps, all points move with it.
 *
 * Thread-safe.
 */
#ifndef SERVER_ADMIN_HISTORY_H
#define SERVER_ADMIN_HISTORY_H

#include <stdbool.h>
#include <stdio.h>

#include "server/admin/stats.h"

#define HISTORY_SECONDS 900u
#define HISTORY_MINUTES 1440u
#define HISTORY_BYTES_MAX (8u << 20)

struct history;

enum history_step { HISTORY_SECOND, HISTORY_MINUTE };

/* For a node of n_shards. Shards have series of their own if all of them fit. NULL: no memory. */
struct history *history_new(uint32_t n_shards) MUST_CHECK;
void history_free(struct history *h); /* NULL is fine */

/* What it holds, all in all. */
size_t history_bytes(const struct history *h);
/* Of the node's shards those that have series: all or none. */
uint32_t history_n_shards(const struct history *h);

/* Notes the second in which the report was made (node->clock_mono_ms). False: that one or a later one is noted. */
bool history_sample(struct history *h, const struct node_report *node);

/*
 * {"step_ms":1000,"slot":S,"slot_unix_ms":T,"n":N,"series":{"NAME":[N values, the last one of slot S]}}. T is the wall
 * clock's time at which slot S began, by the clocks of the report. Slots before the first sample are left out, and so
 * are series without a value. NULL: no memory. The text is malloc'ed.
 */
char *history_render(struct history *h, enum history_step step, const struct node_report *node);

/* {"NAME":VALUE, ...} of the newest second, without unknown ones. */
void history_put_newest(struct history *h, FILE *out);

/* The newest second; 0: there is none. */
uint64_t history_newest(struct history *h);

#endif

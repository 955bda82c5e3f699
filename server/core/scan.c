#include "server/core/scan.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "server/core/push_apply.h"
#include "server/core/row_decay.h"
#include "server/core/weights.h"

/* Of an answer: so it is one slice, of rows and of heads of rows that are looked at. */
#define ROWS_MAX 8192u

/* Of an answer, at least: to look for one row costs nearly as much as to look for hundreds. */
#define BYTES_MIN 4096u

/* Of a slice: after so much looking the rows that were found are enough. */
#define SEARCH_MAX (SHARD_SLICE_BYTES / 2)

#define AHEAD 8u

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t max(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* To read and encode one of its rows, in bytes of a slice. */
static uint64_t row_cost(const struct shard_section *section)
{
    const struct shard_table *t = &section->entry->table;
    const size_t n_bytes = section->sent->state ? t->payload_bytes : t->weights_bytes;

    return max(sizeof(struct row) + n_bytes, SHARD_SLICE_BYTES / ROWS_MAX) *
           shard_codec_cost(section->codec->id);
}

/* Rows of its answer, at most; one at least, however large. */
static uint32_t n_rows_max(const struct shard_section *section, uint32_t n_scans)
{
    const size_t n_bytes =
        min(max(section->sent->scan_bytes, BYTES_MIN), SHARD_SLICE_BYTES / n_scans);
    const size_t n = min(n_bytes / (sizeof(uint64_t) + section->row_bytes),
                         SHARD_SLICE_BYTES / row_cost(section));

    return (uint32_t)min(max(n, 1), ROWS_MAX);
}

uint32_t scan_n_sections(const struct pull *pull)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < pull->n_sections; i++)
        n += pull->sections[i].scan_bytes > 0;
    return n;
}

int scan_plan(struct shard_section *section, uint32_t n_scans, size_t max_bytes,
              size_t *ret_bytes, struct err *err)
{
    if (section->sent->state)
        section->row_bytes = shard_state_row_bytes(section->entry);
    *ret_bytes = SECTION_SCAN_HEAD_BYTES +
                 n_rows_max(section, n_scans) * (sizeof(uint64_t) + section->row_bytes);
    if (*ret_bytes > max_bytes)
        return err_set(err, PS_ETOOBIG,
                       "table %s: the scans of this pull do not fit in one answer",
                       section->entry->table.spec.name);
    return 0;
}

/* What a push or clock in slices has still to change of these rows, changes first. */
static void change_first(struct shard *s, const struct shard_entry *entry,
                         struct row *const *rows, uint32_t n)
{
    uint64_t keys[SHARD_CHUNK_MAX];

    for (uint32_t from = 0, end; from < n; from = end) {
        end = n - from < SHARD_CHUNK_MAX ? n : from + SHARD_CHUNK_MAX;
        for (uint32_t i = from; i < end; i++) {
            uint32_t to = i - from;

            for (; to > 0 && keys[to - 1] > rows[i]->key; to--)
                keys[to] = keys[to - 1];
            keys[to] = rows[i]->key;
        }
        push_apply_first(s, entry, keys, end - from);
    }
}

/* Rows until half of them are there, or enough was looked at. *cursor goes on; false: the scan is over. */
static bool find_rows(const struct table *t, uint64_t *cursor, uint32_t n_max,
                      struct row **rows, uint32_t *ret_n, uint64_t *ret_used)
{
    uint64_t last = *cursor - 1;

    *ret_n = 0;
    *ret_used = 0;
    while (*ret_used < SEARCH_MAX && *ret_n < (n_max + 1) / 2) {
        *ret_n += table_range(t, *cursor, n_max - *ret_n, rows + *ret_n, &last, ret_used);
        *cursor = last + 1;
        if (last == UINT64_MAX)
            return false;
    }
    return true;
}

static void put_row(struct shard *s, const struct shard_section *section, const struct row *row,
                    uint8_t *dst)
{
    const struct shard_entry *entry = section->entry;
    const struct table_spec *spec = &entry->table.spec;
    const size_t weights_bytes = spec->dim * sizeof(float);

    weights_load(spec->storage, row->floats, spec->dim, s->values);
    if (!section->sent->state) {
        row_decay_show(&entry->table, row, s->values);
        section->codec->encode(s->values, spec->dim, section->sent->k, dst);
        return;
    }
    memcpy(dst, s->values, weights_bytes);
    memcpy(dst + weights_bytes, (const uint8_t *)row->floats + entry->table.weights_bytes,
           section->row_bytes - weights_bytes);
}

static void put_head(uint8_t *dst, uint64_t version, uint64_t next, uint32_t n_rows,
                     uint32_t flags)
{
    memcpy(dst, &version, 8);
    memcpy(dst + 8, &next, 8);
    memcpy(dst + 16, &n_rows, 4);
    memcpy(dst + 20, &flags, 4);
}

int scan_slice(struct shard *s, struct shard_section *section, uint32_t n_scans, uint8_t *dst,
               size_t *ret_bytes, uint64_t *ret_used, struct err *err)
{
    const uint64_t version = push_apply_version(s);
    uint64_t cursor = section->sent->cursor;
    uint32_t n_max, n;
    struct row **rows;
    uint8_t *at;
    bool goes_on;

    if (section->sent->state)
        section->row_bytes = shard_state_row_bytes(section->entry);
    n_max = n_rows_max(section, n_scans);
    rows = shard_scratch(&s->found, n_max, sizeof *rows);
    if (!rows)
        return err_set(err, -ENOMEM, "%s", status_text(-ENOMEM));
    goes_on = find_rows(section->entry->table.rows, &cursor, n_max, rows, &n, ret_used);
    *ret_used += n * row_cost(section);
    if (push_apply_is_under_way(s)) {
        change_first(s, section->entry, rows, n);
        *ret_used += (uint64_t)n * section->entry->row_cost;
    }
    put_head(dst, version, cursor, n, goes_on ? 0 : SECTION_SCAN_END);
    at = dst + SECTION_SCAN_HEAD_BYTES;
    for (uint32_t i = 0; i < n; i++, at += sizeof(uint64_t))
        memcpy(at, &rows[i]->key, sizeof(uint64_t));
    for (uint32_t i = 0; i < n; i++, at += section->row_bytes) {
        if (i + AHEAD < n)
            __builtin_prefetch((const char *)rows[i + AHEAD] + 64);
        put_row(s, section, rows[i], at);
    }
    *ret_bytes = (size_t)(at - dst);
    return 0;
}

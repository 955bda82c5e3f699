/*
 * What a worker keeps of its pushes, as the process after it finds it: what is read is written, read and
 * written again as the same bytes; what is damaged leaves nothing to go on from but a sentence.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/disk.h"
#include "worker/client/spool.h"

#define DIR "state"
#define N_SHARDS 2u
#define INCARNATION 7u

static void must(int status)
{
    assert(status == 0);
}

static void count_notice(void *arg, const char *sentence)
{
    assert(sentence[0]);
    ++*(unsigned *)arg;
}

static struct spool_options options_of(struct crash_files *disk, unsigned *n_notices)
{
    return (struct spool_options){ .files = &disk->ops,
                                   .dir = DIR,
                                   .job = "ctr",
                                   .rank = 2,
                                   .incarnation = INCARNATION,
                                   .segment_bytes = 600,
                                   .notice = count_notice,
                                   .notice_arg = n_notices };
}

/* The record of a push that was read. */
static void write_again(struct spool_push *p, struct buf *out)
{
    const char **names = malloc((p->n_tables + 1) * sizeof *names);

    assert(names);
    for (uint32_t i = 0; i < p->n_tables; i++)
        names[i] = p->found_names[i];
    p->names = names;
    must(spool_format_push(p, out));
    for (uint32_t i = 0; i < p->n_shards; i++)
        harness_put(out, buf_front(&p->parcels[i]->bytes), buf_len(&p->parcels[i]->bytes));
    p->names = NULL;
    free(names);
}

static void check_push(struct spool_push *p)
{
    struct buf first = { 0 }, second = { 0 };
    struct spool_push *again;
    size_t n_bytes;

    write_again(p, &first);
    must(spool_format_read_push(buf_front(&first), buf_len(&first), &again, &n_bytes));
    assert(n_bytes == buf_len(&first));
    write_again(again, &second);
    assert(buf_len(&first) == buf_len(&second));
    assert(memcmp(buf_front(&first), buf_front(&second), n_bytes) == 0);
    spool_format_free_push(again);
    buf_deinit(&first);
    buf_deinit(&second);
}

static void check_found(struct spool *s, unsigned n_notices)
{
    struct ps_origin origin;
    struct spool_push *p;
    uint64_t next;

    spool_origin(s, &origin);
    assert(!n_notices || !spool_has_found(s));
    next = origin.acked_seq + 1;
    while ((p = spool_take(s)) != NULL) {
        assert(p->seq == next++);
        check_push(p);
        spool_format_free_push(p);
    }
    assert(next == origin.last_seq + 1);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct harness_bytes in = { bytes, bytes + n_bytes };
    struct crash_files disk;
    struct spool *s = NULL;
    unsigned n_notices = 0;
    struct err err = { 0 };
    struct spool_options options;
    int status;

    crash_files_init(&disk);
    disk_fill(&disk, DIR, &in);
    options = options_of(&disk, &n_notices);
    status = spool_open(&options, &s, &err);
    if (status == 0)
        check_found(s, n_notices);
    else
        assert(err.text[0] && (status == PS_ESPEC || status == -ENOMEM));
    spool_close(s);
    assert(crash_files_n_open(&disk) == 0);
    crash_files_deinit(&disk);
}

/* A push of one section for each shard. */
static void put(struct spool *s, uint64_t seq)
{
    static const char *const names[] = { "ctr/emb", "ctr/top" };
    struct parcel *parcels[N_SHARDS];
    struct spool_push push = { .seq = seq,
                               .map_id = 5,
                               .n_shards = N_SHARDS,
                               .n_tables = COUNT_OF(names),
                               .names = names,
                               .parcels = parcels };
    const uint8_t rows[24] = { 1, 2, 3, 4, (uint8_t)seq };

    for (uint32_t i = 0; i < N_SHARDS; i++) {
        struct buf copy = { 0 };
        struct section section = {
            .table_id = i, .n_keys = 2, .key_bytes = 8, .value_bytes = 16
        };

        harness_put(&copy, rows, sizeof rows);
        section.keys = buf_front(&copy);
        section.values = section.keys + 8;
        parcels[i] = parcel_new(1);
        assert(parcels[i]);
        parcel_fill(parcels[i], &copy, &section);
        parcels[i]->clock = seq + 3;
        parcels[i]->tick = true;
    }
    spool_put(s, INCARNATION, &push, 0);
    for (uint32_t i = 0; i < N_SHARDS; i++)
        parcel_free(parcels[i]);
}

bool harness_seed(uint32_t i, struct buf *out)
{
    struct crash_files disk;
    unsigned n_notices = 0;
    struct spool_options options;
    struct spool *s;
    struct err err;

    if (i >= 5)
        return false;
    crash_files_init(&disk);
    options = options_of(&disk, &n_notices);
    must(spool_open(&options, &s, &err));
    for (uint64_t seq = 1; seq <= i; seq++)
        put(s, seq);
    spool_close(s);
    disk_dump(&disk, DIR, out);
    crash_files_deinit(&disk);
    return true;
}

/*
 * What a worker keeps of its pushes, as the process after it finds it: what is read is written, read and
 * written again as the same bytes; what is damaged leaves nothing to go on from but a sentence.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/disk.h"
#include "worker/client/push_journal.h"

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

static struct push_journal_options options_of(struct crash_files *disk, unsigned *n_notices)
{
    return (struct push_journal_options){ .files = &disk->ops,
                                          .dir = DIR,
                                          .job = "ctr",
                                          .rank = 2,
                                          .incarnation = INCARNATION,
                                          .segment_bytes = 600,
                                          .notice = count_notice,
                                          .notice_arg = n_notices };
}

/* The record of a push that was read. */
static void write_again(struct push_journal_push *p, struct bytes *out)
{
    const char **names = malloc((p->n_tables + 1) * sizeof *names);

    assert(names);
    for (uint32_t i = 0; i < p->n_tables; i++)
        names[i] = p->found_names[i];
    p->names = names;
    must(push_journal_format_push(p, out));
    for (uint32_t i = 0; i < p->n_shards; i++)
        harness_put(out, bytes_front(&p->requests[i]->bytes),
                    bytes_len(&p->requests[i]->bytes));
    p->names = NULL;
    free(names);
}

static void check_push(struct push_journal_push *p)
{
    struct bytes first = { 0 }, second = { 0 };
    struct push_journal_push *again;
    size_t n_bytes;

    write_again(p, &first);
    must(push_journal_format_read_push(bytes_front(&first), bytes_len(&first), &again,
                                       &n_bytes));
    assert(n_bytes == bytes_len(&first));
    write_again(again, &second);
    assert(bytes_len(&first) == bytes_len(&second));
    assert(memcmp(bytes_front(&first), bytes_front(&second), n_bytes) == 0);
    push_journal_format_free_push(again);
    bytes_deinit(&first);
    bytes_deinit(&second);
}

static void check_found(struct push_journal *s, unsigned n_notices)
{
    struct ps_origin origin;
    struct push_journal_push *p;
    uint64_t next;

    push_journal_origin(s, &origin);
    assert(!n_notices || !push_journal_has_found(s));
    next = origin.acked_seq + 1;
    while ((p = push_journal_pop(s)) != NULL) {
        assert(p->seq == next++);
        check_push(p);
        push_journal_format_free_push(p);
    }
    assert(next == origin.last_seq + 1);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct harness_bytes in = { bytes, bytes + n_bytes };
    struct crash_files disk;
    struct push_journal *s = NULL;
    unsigned n_notices = 0;
    struct err err = { 0 };
    struct push_journal_options options;
    int status;

    crash_files_init(&disk);
    disk_fill(&disk, DIR, &in);
    options = options_of(&disk, &n_notices);
    status = push_journal_open(&options, &s, &err);
    if (status == 0)
        check_found(s, n_notices);
    else
        assert(err.text[0] && (status == PS_ESPEC || status == -ENOMEM));
    push_journal_close(s);
    assert(crash_files_n_open(&disk) == 0);
    crash_files_deinit(&disk);
}

/* A push of one section for each shard. */
static void put(struct push_journal *s, uint64_t seq)
{
    static const char *const names[] = { "ctr/emb", "ctr/top" };
    struct request *requests[N_SHARDS];
    struct push_journal_push push = { .seq = seq,
                                      .map_id = 5,
                                      .n_shards = N_SHARDS,
                                      .n_tables = COUNT_OF(names),
                                      .names = names,
                                      .requests = requests };
    const uint8_t rows[24] = { 1, 2, 3, 4, (uint8_t)seq };

    for (uint32_t i = 0; i < N_SHARDS; i++) {
        struct bytes copy = { 0 };
        struct section section = {
            .table_id = i, .n_keys = 2, .key_bytes = 8, .value_bytes = 16
        };

        harness_put(&copy, rows, sizeof rows);
        section.keys = bytes_front(&copy);
        section.values = section.keys + 8;
        requests[i] = request_new(1);
        assert(requests[i]);
        requests[i]->bytes = copy;
        requests[i]->sections[0] = section;
        requests[i]->clock = seq + 3;
        requests[i]->tick = true;
    }
    push_journal_put(s, INCARNATION, &push, 0);
    for (uint32_t i = 0; i < N_SHARDS; i++)
        request_free(requests[i]);
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    struct crash_files disk;
    unsigned n_notices = 0;
    struct push_journal_options options;
    struct push_journal *s;
    struct err err;

    if (i >= 5)
        return false;
    crash_files_init(&disk);
    options = options_of(&disk, &n_notices);
    must(push_journal_open(&options, &s, &err));
    for (uint64_t seq = 1; seq <= i; seq++)
        put(s, seq);
    push_journal_close(s);
    disk_dump(&disk, DIR, out);
    crash_files_deinit(&disk);
    return true;
}

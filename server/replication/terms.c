#include "server/replication/terms.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/file_text.h"
#include "common/memory.h"
#include "common/number.h"

#define NAME "TERMS"
#define PATH_BYTES 1100u
#define HEAD_BYTES 512u  /* all lines but those of the terms, at most */
#define NUMBER_BYTES 21u /* a blank and 20 digits */
#define TEXT_BYTES_MAX \
    (HEAD_BYTES + TERMS_KEPT_MAX * (8 + (1 + MESSAGE_NODE_SHARDS_MAX) * NUMBER_BYTES))

static const char *const ack_names[TERMS_ACK_END] = { "no", "got", "disk" };

static void drop_items(struct terms *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        free(t->items[i].first);
    t->n = 0;
}

void terms_deinit(struct terms *t)
{
    drop_items(t);
    *t = (struct terms){ 0 };
}

uint64_t terms_last(const struct terms *t)
{
    return t->n ? t->items[t->n - 1].term : 0;
}

uint64_t terms_restarted(uint64_t newest, uint64_t random)
{
    return newest + 1 + random % TERMS_RESTART_STEP_MAX;
}

uint64_t terms_promoted(uint64_t newest, uint64_t random)
{
    return (newest / TERMS_PROMOTION_STEP + 1) * TERMS_PROMOTION_STEP +
           random % (TERMS_PROMOTION_STEP / 2);
}

bool terms_is_one_reign(uint64_t a, uint64_t b)
{
    return a / TERMS_PROMOTION_STEP == b / TERMS_PROMOTION_STEP;
}

uint64_t terms_random(void)
{
    uint64_t number = 0;

    while (!number)
        if (getrandom(&number, sizeof number, 0) != sizeof number)
            number = clock_unix_ms() * UINT64_C(0x9e3779b97f4a7c15);
    return number;
}

void terms_begin_history(struct terms *t, uint64_t history, uint64_t timeline,
                         uint32_t n_shards)
{
    assert(history);
    drop_items(t);
    t->history = history;
    t->timeline = timeline;
    t->n_shards = n_shards;
}

static void drop_oldest(struct terms *t)
{
    free(t->items[0].first);
    memmove(t->items, t->items + 1, (t->n - 1) * sizeof *t->items);
    t->n--;
}

void terms_begin(struct terms *t, uint64_t term, const uint64_t *first)
{
    struct terms_item item = { term, memory_alloc(t->n_shards * sizeof *first) };

    assert(term > terms_last(t));
    for (uint32_t i = 0; i < t->n_shards; i++)
        item.first[i] = first ? first[i] : 1;
    while (t->n >= TERMS_KEPT_MAX)
        drop_oldest(t);
    t->items[t->n++] = item;
}

void terms_adopt(struct terms *t, const struct terms *from)
{
    const uint32_t n = from->n < TERMS_KEPT_MAX ? from->n : TERMS_KEPT_MAX;

    terms_begin_history(t, from->history, t->timeline, from->n_shards);
    for (uint32_t i = from->n - n; i < from->n; i++)
        terms_begin(t, from->items[i].term, from->items[i].first);
}

/* --- the list as bytes --- */

static void put_u64(uint8_t *dst, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        dst[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get_u64(const uint8_t *src)
{
    uint64_t value = 0;

    for (int i = 7; i >= 0; i--)
        value = value << 8 | src[i];
    return value;
}

void terms_put(const struct terms *t, uint8_t *dst)
{
    for (uint32_t i = 0; i < t->n; i++) {
        put_u64(dst, t->items[i].term);
        dst += 8;
        for (uint32_t s = 0; s < t->n_shards; s++, dst += 8)
            put_u64(dst, t->items[i].first[s]);
    }
}

/* Terms ascend, to no greater one than another can follow, and records have numbers from 1 on. */
static bool makes_sense(const uint8_t *src, uint32_t n_terms, uint32_t n_shards)
{
    uint64_t before = 0;

    for (uint32_t i = 0; i < n_terms; i++) {
        if (get_u64(src) <= before || get_u64(src) > TERMS_NUMBER_MAX)
            return false;
        before = get_u64(src);
        src += 8;
        for (uint32_t s = 0; s < n_shards; s++, src += 8)
            if (get_u64(src) == 0)
                return false;
    }
    return true;
}

int terms_take(struct terms *ret, uint64_t history, const uint8_t *src, uint32_t n_terms,
               uint32_t n_shards)
{
    struct terms_item items[MESSAGE_TERMS_MAX];

    if (n_terms > MESSAGE_TERMS_MAX || n_shards > MESSAGE_NODE_SHARDS_MAX || !n_shards ||
        (n_terms && !history) || !makes_sense(src, n_terms, n_shards))
        return PS_EPROTO;
    for (uint32_t i = 0; i < n_terms; i++) {
        items[i].term = get_u64(src);
        items[i].first = memory_try_alloc(n_shards * sizeof *items[i].first);
        if (!items[i].first) {
            while (i > 0)
                free(items[--i].first);
            return -ENOMEM;
        }
        src += 8;
        for (uint32_t s = 0; s < n_shards; s++, src += 8)
            items[i].first[s] = get_u64(src);
    }
    drop_items(ret);
    ret->history = history;
    ret->n_shards = n_shards;
    ret->n = n_terms;
    memcpy(ret->items, items, n_terms * sizeof *items);
    return 0;
}

/* --- what two logs have in common --- */

/* The indexes of the newest term that both lists have, with the same first record of the shard. False: none. A term
 * whose first records differ is of two members that began it apart. */
static bool newest_common(const struct terms *a, const struct terms *b, uint32_t shard,
                          uint32_t *ret_a, uint32_t *ret_b)
{
    uint32_t i = a->n, j = b->n;

    while (i > 0 && j > 0) {
        const struct terms_item *x = &a->items[i - 1], *y = &b->items[j - 1];

        if (x->term == y->term && x->first[shard] == y->first[shard]) {
            *ret_a = i - 1;
            *ret_b = j - 1;
            return true;
        }
        i -= x->term >= y->term;
        j -= y->term >= x->term;
    }
    return false;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The last record before the terms behind `index`. They need not ascend: a primary that restarts may have lost records
 * of the term before. */
static uint64_t end_of(const struct terms *t, uint32_t index, uint32_t shard, uint64_t last)
{
    for (uint32_t i = index + 1; i < t->n; i++)
        last = least(last, t->items[i].first[shard] - 1);
    return last;
}

bool terms_common(const struct terms *mine, const struct terms *theirs,
                  const uint64_t *mine_last, const uint64_t *their_last, uint64_t *ret_keep)
{
    const uint32_t n_shards = mine->n_shards;
    bool found =
        mine->history && mine->history == theirs->history && n_shards == theirs->n_shards;

    for (uint32_t s = 0; s < n_shards && found; s++) {
        uint32_t i, j;

        found = newest_common(mine, theirs, s, &i, &j);
        if (found)
            ret_keep[s] =
                least(end_of(mine, i, s, mine_last[s]), end_of(theirs, j, s, their_last[s]));
    }
    if (!found)
        memset(ret_keep, 0, n_shards * sizeof *ret_keep);
    return found;
}

/* --- the file --- */

static size_t print(const struct terms *t, char *dst, size_t dst_bytes)
{
    size_t n = (size_t)snprintf(
        dst, dst_bytes,
        "psd terms 2\nhistory %016" PRIx64 "\ntimeline %" PRIu64
        "\nrole %s\nin-sync %s\nack %s\ndurable %s\npeer %s\nshards %" PRIu32 "\n",
        t->history, t->timeline, t->role == TERMS_PRIMARY ? "primary" : "standby",
        t->in_sync ? "yes" : "no", ack_names[t->ack], t->is_durable ? "yes" : "no",
        t->peer[0] ? t->peer : "-", t->n_shards);

    for (uint32_t i = 0; i < t->n; i++) {
        n += (size_t)snprintf(dst + n, dst_bytes - n, "term %" PRIu64, t->items[i].term);
        for (uint32_t s = 0; s < t->n_shards; s++)
            n += (size_t)snprintf(dst + n, dst_bytes - n, " %" PRIu64, t->items[i].first[s]);
        n += (size_t)snprintf(dst + n, dst_bytes - n, "\n");
    }
    assert(n + FILE_TEXT_TAIL_BYTES < dst_bytes);
    return file_text_seal(dst, n);
}

int terms_write(const struct file_ops *files, const char *data_dir, const struct terms *t,
                struct err *err)
{
    const size_t text_bytes =
        HEAD_BYTES + FILE_TEXT_TAIL_BYTES + t->n * (8 + (1 + t->n_shards) * NUMBER_BYTES);
    char *text = memory_try_alloc(text_bytes);
    int status;

    if (!text)
        return err_set(err, -ENOMEM, "no memory to write %s/" NAME, data_dir);
    status = file_text_replace(files, data_dir, NAME, text, print(t, text, text_bytes), err);
    free(text);
    return status;
}

static bool one_of(const char *name, const char *const *names, size_t n, size_t *ret)
{
    for (*ret = 0; *ret < n; ++*ret)
        if (name && strcmp(name, names[*ret]) == 0)
            return true;
    return false;
}

static bool parse_head(char **text, struct terms *ret)
{
    static const char *const roles[] = { "primary", "standby" };
    static const char *const answers[] = { "no", "yes" };
    const char *history, *timeline, *peer, *shards;
    size_t role, in_sync, ack, durable = 0;
    bool is_old;
    uint64_t n_shards;
    char *end;

    is_old = file_text_line(text, "psd terms 1") != NULL;
    if ((!is_old && !file_text_line(text, "psd terms 2")) ||
        !(history = file_text_line(text, "history ")) ||
        !(timeline = file_text_line(text, "timeline ")) ||
        !one_of(file_text_line(text, "role "), roles, COUNT_OF(roles), &role) ||
        !one_of(file_text_line(text, "in-sync "), answers, COUNT_OF(answers), &in_sync) ||
        !one_of(file_text_line(text, "ack "), ack_names, TERMS_ACK_END, &ack) ||
        (!is_old &&
         !one_of(file_text_line(text, "durable "), answers, COUNT_OF(answers), &durable)) ||
        !(peer = file_text_line(text, "peer ")) || !(shards = file_text_line(text, "shards ")))
        return false;
    if (number_read_u64(timeline, &ret->timeline) || number_read_u64(shards, &n_shards) ||
        n_shards > MESSAGE_NODE_SHARDS_MAX || strlen(peer) >= sizeof ret->peer)
        return false;
    ret->history = strtoull(history, &end, 16);
    ret->role = role ? TERMS_STANDBY : TERMS_PRIMARY;
    ret->in_sync = in_sync;
    ret->is_durable = durable;
    ret->ack = (enum terms_ack)ack;
    ret->n_shards = (uint32_t)n_shards;
    snprintf(ret->peer, sizeof ret->peer, "%s", strcmp(peer, "-") == 0 ? "" : peer);
    return *end == '\0';
}

/* A number up to a blank or the end. */
static bool next_number(char **text, uint64_t *ret)
{
    char *word = strsep(text, " ");

    return word && number_read_u64(word, ret) == 0;
}

static bool parse_term(char *rest, struct terms *ret)
{
    uint64_t term, *first = memory_alloc((ret->n_shards + 1) * sizeof *first);
    bool good = next_number(&rest, &term) && term > terms_last(ret) &&
                term <= TERMS_NUMBER_MAX && ret->history;

    for (uint32_t s = 0; s < ret->n_shards && good; s++)
        good = next_number(&rest, &first[s]) && first[s] > 0;
    good = good && !rest;
    if (good)
        terms_begin(ret, term, first);
    free(first);
    return good;
}

static bool parse(char *text, size_t n_bytes, struct terms *ret)
{
    char *rest;

    if (!file_text_unseal(text, n_bytes) || !parse_head(&text, ret))
        return false;
    while ((rest = file_text_line(&text, "term ")) != NULL)
        if (!parse_term(rest, ret))
            return false;
    return *text == '\0';
}

int terms_read(const struct file_ops *files, const char *data_dir, uint32_t n_shards,
               struct terms *ret, struct err *err)
{
    char path[PATH_BYTES];
    struct bytes text = { 0 };
    int status;

    *ret = (struct terms){ 0 };
    snprintf(path, sizeof path, "%s/" NAME, data_dir);
    status = file_text_read(files, path, TEXT_BYTES_MAX, &text);
    if (!status && !parse((char *)text.bytes + text.start, bytes_len(&text), ret))
        status = PS_ECORRUPT;
    bytes_deinit(&text);
    if (status && status != -ENOENT) {
        terms_deinit(ret);
        return err_set(err, status, "cannot read who was the primary: %s: %s",
                       status_text(status), path);
    }
    if (ret->n_shards != n_shards) {
        drop_items(ret);
        ret->history = 0;
        ret->n_shards = n_shards;
    }
    return 0;
}

#include "server/cluster/claim.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/number.h"

void claim_key(uint32_t group, char dst[static CLAIM_KEY_MAX])
{
    snprintf(dst, CLAIM_KEY_MAX, "groups/%" PRIu32, group);
}

void claim_print(const struct claim *c, const struct claim_writer *writer,
                 char dst[static CLAIM_VALUE_MAX])
{
    char takeovers[CLAIM_TAKEOVERS_MAX * 21 + 1] = "-";
    size_t n = 0;

    for (uint32_t i = 0; i < c->n_takeovers; i++)
        n += (size_t)snprintf(takeovers + n, sizeof takeovers - n, "%s%" PRIu64, i ? " " : "",
                              c->takeovers[i]);
    snprintf(dst, CLAIM_VALUE_MAX,
             "{\"term\":\"%" PRIu64 "\",\"history\":\"%" PRIu64
             "\",\"in_sync\":\"%s\",\"primary\":\"%s\",\"standby\":\"%s\",\"takeovers\":\"%s\","
             "\"writer\":\"%" PRIx64 "-%" PRIu64 "\"}",
             c->term, c->history, c->in_sync ? "yes" : "no", c->primary,
             c->standby[0] ? c->standby : "-", takeovers, writer->id, writer->n);
}

/* "-", or numbers between blanks. */
static int read_takeovers(const char *text, struct claim *ret)
{
    int n = 0;

    if (strcmp(text, "-") == 0)
        return 0;
    while (*text) {
        if (ret->n_takeovers == CLAIM_TAKEOVERS_MAX ||
            sscanf(text, "%20" SCNu64 "%n", &ret->takeovers[ret->n_takeovers], &n) != 1)
            return -EINVAL;
        ret->n_takeovers++;
        text += n;
        text += *text == ' ';
    }
    return 0;
}

int claim_read(const char *text, struct claim *ret)
{
    char in_sync[4], takeovers[CLAIM_TAKEOVERS_MAX * 21 + 1], writer[40];
    int end = 0;

    *ret = (struct claim){ 0 };
    if (sscanf(text,
               "{\"term\":\"%" SCNu64 "\",\"history\":\"%" SCNu64
               "\",\"in_sync\":\"%3[a-z]\",\"primary\":\"%127[^\"]\",\"standby\":\"%127[^\"]"
               "\",\"takeovers\":\"%189[-0-9 ]\",\"writer\":\"%39[-0-9a-f]\"}%n",
               &ret->term, &ret->history, in_sync, ret->primary, ret->standby, takeovers,
               writer, &end) != 7 ||
        !end || text[end] || read_takeovers(takeovers, ret))
        return -EINVAL;
    if (sscanf(writer, "%16" SCNx64 "-%20" SCNu64, &ret->writer.id, &ret->writer.n) != 2)
        ret->writer = (struct claim_writer){ 0 };
    ret->in_sync = strcmp(in_sync, "yes") == 0;
    if (strcmp(ret->standby, "-") == 0)
        ret->standby[0] = '\0';
    return 0;
}

bool claim_is_newer(const struct claim *c, const struct claim *before)
{
    return c->term > before->term ||
           (c->term == before->term && c->writer.id && c->writer.id == before->writer.id &&
            c->writer.n > before->writer.n);
}

void claim_add_takeover(struct claim *c, uint64_t term)
{
    if (c->n_takeovers == CLAIM_TAKEOVERS_MAX) {
        memmove(c->takeovers, c->takeovers + 1,
                (CLAIM_TAKEOVERS_MAX - 1) * sizeof *c->takeovers);
        c->n_takeovers--;
    }
    c->takeovers[c->n_takeovers++] = term;
}

/* now_ms: it is new. */
static uint64_t when_seen(const struct claim_takeovers *t, uint64_t term, uint64_t now_ms)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->terms[i] == term)
            return t->seen_ms[i];
    return now_ms;
}

bool claim_takeovers_note(struct claim_takeovers *t, const struct claim *c, uint64_t now_ms)
{
    const struct claim_takeovers before = *t;
    bool is_new = false;

    t->n = c->n_takeovers;
    for (uint32_t i = 0; i < t->n; i++) {
        t->terms[i] = c->takeovers[i];
        t->seen_ms[i] = when_seen(&before, t->terms[i], now_ms);
        is_new = is_new || when_seen(&before, t->terms[i], UINT64_MAX) == UINT64_MAX;
    }
    return is_new;
}

static bool counts(const struct claim_takeovers *t, uint32_t i, uint64_t now_ms)
{
    return now_ms - t->seen_ms[i] < CLAIM_TAKEOVERS_MS;
}

uint32_t claim_takeovers_count(const struct claim_takeovers *t, uint64_t now_ms)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->n; i++)
        n += counts(t, i, now_ms);
    return n;
}

void claim_takeovers_keep(const struct claim_takeovers *t, uint64_t now_ms, struct claim *c)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (counts(t, i, now_ms))
            claim_add_takeover(c, t->terms[i]);
}

void claim_config_print(const struct claim_config *c, char dst[static CLAIM_VALUE_MAX])
{
    snprintf(dst, CLAIM_VALUE_MAX,
             "{\"nodes\":\"%" PRIu32 "\",\"shards\":\"%" PRIu32 "\",\"settings\":\"%s\"}",
             c->n_nodes, c->n_shards, c->settings[0] ? c->settings : "-");
}

int claim_config_read(const char *text, struct claim_config *ret)
{
    int end = 0;

    *ret = (struct claim_config){ 0 };
    if (sscanf(text,
               "{\"nodes\":\"%" SCNu32 "\",\"shards\":\"%" SCNu32
               "\",\"settings\":\"%319[^\"]\"}%n",
               &ret->n_nodes, &ret->n_shards, ret->settings, &end) != 3 ||
        !end || text[end] || !ret->n_nodes || !ret->n_shards)
        return -EINVAL;
    return 0;
}

/* The word at `text` that begins with the n_bytes of `name`; NULL: none. *ret_n_bytes: how long it is. */
static const char *find_word(const char *text, const char *name, size_t n_bytes,
                             size_t *ret_n_bytes)
{
    while (*text) {
        *ret_n_bytes = strcspn(text, " ");
        if (*ret_n_bytes >= n_bytes && memcmp(text, name, n_bytes) == 0)
            return text;
        text += *ret_n_bytes + strspn(text + *ret_n_bytes, " ");
    }
    return NULL;
}

void claim_write_setting(const char *setting, size_t n_bytes,
                         char dst[static CLAIM_SETTING_MAX])
{
    static const char gradient_max[] = "gradient-max=", frame_max[] = "frame-max=";
    char number[NUMBER_TEXT_MAX];
    uint64_t n;

    snprintf(dst, CLAIM_SETTING_MAX, "%.*s", (int)n_bytes, setting);
    if (strncmp(dst, gradient_max, sizeof gradient_max - 1) == 0) {
        number_write_float(strtof(dst + sizeof gradient_max - 1, NULL), number);
        snprintf(dst, CLAIM_SETTING_MAX, "%s%s", gradient_max, number);
    } else if (strncmp(dst, frame_max, sizeof frame_max - 1) == 0 &&
               !number_read_u64(dst + sizeof frame_max - 1, &n)) {
        number_write_bytes(n, number);
        snprintf(dst, CLAIM_SETTING_MAX, "%s%s", frame_max, number);
    } else if (strcmp(dst, "gradient-over=0") == 0) {
        snprintf(dst, CLAIM_SETTING_MAX, "gradient-over=refuse");
    } else if (strcmp(dst, "gradient-over=1") == 0) {
        snprintf(dst, CLAIM_SETTING_MAX, "gradient-over=clip");
    }
}

int claim_config_compare(const struct claim_config *theirs, const struct claim_config *ours,
                         struct err *err)
{
    const char *word = ours->settings;

    if (theirs->n_nodes != ours->n_nodes || theirs->n_shards != ours->n_shards)
        return err_set(err, PS_ECLUSTER,
                       "coord: the cluster of this name has %" PRIu32 " node%s of %" PRIu32
                       " shard%s, and this psd is of %" PRIu32 " node%s of %" PRIu32
                       ": is the name behind the slash right?",
                       theirs->n_nodes, NUMBER_PLURAL(theirs->n_nodes), theirs->n_shards,
                       NUMBER_PLURAL(theirs->n_shards), ours->n_nodes,
                       NUMBER_PLURAL(ours->n_nodes), ours->n_shards);
    while (*word) {
        const size_t n = strcspn(word, " "), n_name = strcspn(word, "=") + 1;
        size_t n_other = 0;
        const char *other =
            n_name <= n ? find_word(theirs->settings, word, n_name, &n_other) : NULL;

        if (other && (n != n_other || memcmp(word, other, n) != 0)) {
            char cluster[CLAIM_SETTING_MAX], own[CLAIM_SETTING_MAX];

            claim_write_setting(other, n_other, cluster);
            claim_write_setting(word, n, own);
            return err_set(err, PS_ECLUSTER,
                           "coord: the cluster has %.80s, and this psd %.80s: give all nodes "
                           "the same",
                           cluster, own);
        }
        word += n + strspn(word + n, " ");
    }
    return 0;
}

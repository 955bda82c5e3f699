#include "server/cluster/group_record.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/number.h"

void group_record_print(const struct group_record *r, char dst[static GROUP_RECORD_MAX])
{
    snprintf(
        dst, GROUP_RECORD_MAX,
        "{\"term\":\"%llu\",\"primary\":\"%s\",\"primary_run\":\"%llu\",\"standby\":\"%s\","
        "\"standby_run\":\"%llu\",\"in_sync\":%s,\"history\":\"%llu\"}",
        (unsigned long long)r->term, r->primary, (unsigned long long)r->primary_run, r->standby,
        (unsigned long long)r->standby_run, r->in_sync ? "true" : "false",
        (unsigned long long)r->history);
}

static int read_u64(const cJSON *root, const char *name, uint64_t *ret)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(root, name);

    return cJSON_IsString(value) ? number_read_u64(value->valuestring, ret) : -EINVAL;
}

static int read_name(const cJSON *root, const char *name, char dst[static GROUP_NAME_MAX])
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(root, name);
    size_t n;

    if (!cJSON_IsString(value))
        return -EINVAL;
    n = strlen(value->valuestring);
    if (n >= GROUP_NAME_MAX || strspn(value->valuestring, allowed) != n)
        return -EINVAL;
    memcpy(dst, value->valuestring, n + 1);
    return 0;
}

int group_record_read(const char *text, struct group_record *ret)
{
    cJSON *root = cJSON_Parse(text);
    const cJSON *in_sync = cJSON_GetObjectItemCaseSensitive(root, "in_sync");
    struct group_record r = { .in_sync = cJSON_IsTrue(in_sync) };
    int status = cJSON_IsBool(in_sync) ? 0 : -EINVAL;

    status = status ? status : read_u64(root, "term", &r.term);
    status = status ? status : read_u64(root, "primary_run", &r.primary_run);
    status = status ? status : read_u64(root, "standby_run", &r.standby_run);
    status = status ? status : read_u64(root, "history", &r.history);
    status = status ? status : read_name(root, "primary", r.primary);
    status = status ? status : read_name(root, "standby", r.standby);
    if (!status && (r.term == 0 || !r.primary[0] || (r.in_sync && !r.standby[0])))
        status = -EINVAL;
    cJSON_Delete(root);
    if (!status)
        *ret = r;
    return status;
}

void group_lineage_add(struct group_lineage *l, uint64_t term, uint64_t first)
{
    if (l->n_spans == GROUP_SPANS_MAX)
        memmove(l->spans, l->spans + 1, --l->n_spans * sizeof *l->spans);
    l->spans[l->n_spans++] = (struct group_span){ term, first };
    l->last = first;
}

void group_lineage_truncate(struct group_lineage *l, uint64_t last)
{
    while (l->n_spans && l->spans[l->n_spans - 1].first > last)
        l->n_spans--;
    l->last = last;
}

uint64_t group_lineage_term(const struct group_lineage *l)
{
    return l->n_spans ? l->spans[l->n_spans - 1].term : 0;
}

static uint64_t end_of(const struct group_lineage *l, uint32_t span)
{
    return span + 1 < l->n_spans ? l->spans[span + 1].first - 1 : l->last;
}

uint64_t group_lineage_common(const struct group_lineage *a, const struct group_lineage *b)
{
    uint32_t i = a->n_spans, j = b->n_spans;

    if (a->history != b->history)
        return 0;
    while (i && j) {
        const struct group_span *x = &a->spans[i - 1], *y = &b->spans[j - 1];

        if (x->term == y->term) {
            const uint64_t m = end_of(a, i - 1), n = end_of(b, j - 1);

            return x->first == y->first ? (m < n ? m : n) : 0;
        }
        if (x->term > y->term)
            i--;
        else
            j--;
    }
    return 0;
}

int group_lineage_compare(const struct group_lineage *a, const struct group_lineage *b)
{
    const uint64_t s = group_lineage_term(a), t = group_lineage_term(b);

    if (s != t)
        return s > t ? 1 : -1;
    return (a->last > b->last) - (a->last < b->last);
}

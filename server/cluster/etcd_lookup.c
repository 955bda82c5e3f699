#include "server/cluster/etcd_lookup.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "common/memory.h"
#include "server/cluster/claim.h"
#include "server/cluster/coord_etcd.h"

struct lookup {
    struct coord *coord;
    struct groups *groups; /* borrowed */
    const char *url;
    struct err err;
};

static const struct coord_item *find(const struct coord_result *r, const char *key)
{
    for (uint32_t i = 0; i < r->n_items; i++)
        if (strcmp(r->items[i].key, key) == 0)
            return &r->items[i];
    return NULL;
}

static void read_group(const struct coord_result *r, uint32_t number, struct group *ret)
{
    char key[CLAIM_KEY_MAX];
    const struct coord_item *item;
    struct claim claim;

    claim_key(number, key);
    item = find(r, key);
    *ret = (struct group){ 0 };
    if (!item || claim_read(item->value, &claim))
        return;
    ret->term = claim.term;
    ret->in_sync = claim.in_sync;
    snprintf(ret->primary, sizeof ret->primary, "%s", claim.primary);
    snprintf(ret->standby, sizeof ret->standby, "%s", claim.standby);
}

static void read_groups(struct lookup *l, const struct coord_result *r)
{
    const struct coord_item *item = find(r, CLAIM_CONFIG_KEY);
    struct claim_config config;

    if (!item) {
        err_set(&l->err, -ENOENT,
                "%.150s: no psd has served under this cluster's name: is it right?", l->url);
        return;
    }
    if (claim_config_read(item->value, &config) || config.n_nodes > MESSAGE_NODES_MAX) {
        err_set(&l->err, PS_EPROTO, "%.100s: what etcd has there is not of a psd: %.60s",
                l->url, item->value);
        return;
    }
    l->groups->n = config.n_nodes;
    for (uint32_t i = 0; i < config.n_nodes; i++)
        read_group(r, i, &l->groups->items[i]);
}

static void on_answer(void *arg, const struct err *err, const struct coord_result *result)
{
    struct lookup *l = arg;

    if (err->status)
        l->err = *err;
    else
        read_groups(l, result);
    l->coord->ops->close(l->coord, NULL, NULL);
}

/* Behind a question a sentence of its own. */
static void add_advice(struct err *ret, const struct err *why)
{
    const size_t n = strlen(why->text);

    err_set(ret, why->status, "%.190s%s psd can also be named itself, as HOST:PORT", why->text,
            n && n <= 190 && why->text[n - 1] == '?' ? " A" : "; a");
}

int etcd_lookup(const struct coord_options *options, uint32_t timeout_ms, struct groups *ret,
                struct err *err)
{
    struct lookup l = { .groups = ret, .url = options->url };
    uv_loop_t loop;
    int status = uv_loop_init(&loop);

    memset(ret, 0, sizeof *ret);
    if (status)
        return err_set(err, status, "etcd was not asked: %s", uv_strerror(status));
    status = coord_etcd_open(options, &loop, &l.coord, err);
    if (!status) {
        l.coord->ops->get(l.coord, "", true, timeout_ms, on_answer, &l);
        uv_run(&loop, UV_RUN_DEFAULT);
        status = l.err.status;
        if (status)
            add_advice(err, &l.err);
    }
    status = uv_loop_close(&loop) == 0 || status ? status : -EBUSY;
    return status;
}

/* False: there is no room for it. */
static bool add(char *dst, size_t dst_bytes, const char *address)
{
    const size_t n = strlen(dst), n_more = strlen(address) + (n > 0);

    if (!address[0])
        return true;
    if (n + n_more >= dst_bytes)
        return false;
    snprintf(dst + n, dst_bytes - n, "%s%s", n ? "," : "", address);
    return true;
}

int etcd_lookup_servers(const struct coord_options *options, uint32_t timeout_ms, char *dst,
                        size_t dst_bytes, struct err *err)
{
    struct groups *groups = memory_alloc(sizeof *groups);
    int status = etcd_lookup(options, timeout_ms, groups, err);
    bool fits = true;

    dst[0] = '\0';
    for (uint32_t i = 0; i < groups->n && fits && !status; i++)
        fits = add(dst, dst_bytes, groups->items[i].primary);
    for (uint32_t i = 0; i < groups->n && fits && !status; i++)
        fits = add(dst, dst_bytes, groups->items[i].standby);
    free(groups);
    if (!status && !dst[0])
        return err_set(err, -ENOENT, "%.150s: etcd names no primary", options->url);
    return status;
}

#include "server/net/group_view.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "common/memory.h"
#include "common/status.h"

struct group_view {
    const struct hello_reply *map; /* borrowed */
    uv_mutex_t lock;               /* of `own` */
    struct group own;              /* the main thread alone writes it */
    _Atomic uint64_t number;       /* 0: `own` is not set */
    _Atomic bool is_primary;
    _Atomic bool is_hidden; /* the map */
    void (*on_change)(void *arg);
    void *arg;
};

struct group_view *group_view_new(const struct hello_reply *map)
{
    struct group_view *v = memory_alloc(sizeof *v);

    v->map = map;
    atomic_init(&v->is_primary, true);
    if (!uv_mutex_init(&v->lock))
        return v;
    free(v);
    return NULL;
}

void group_view_free(struct group_view *v)
{
    if (!v)
        return;
    uv_mutex_destroy(&v->lock);
    free(v);
}

void group_view_show_map(struct group_view *v, bool is_shown)
{
    atomic_store(&v->is_hidden, !is_shown);
}

bool group_view_has_map(const struct group_view *v)
{
    return !atomic_load(&v->is_hidden);
}

static bool is_same(const struct group *a, const struct group *b)
{
    return a->term == b->term && a->in_sync == b->in_sync &&
           strcmp(a->primary, b->primary) == 0 && strcmp(a->standby, b->standby) == 0;
}

void group_view_set_own(struct group_view *v, enum group_view_role role,
                        const struct group *own)
{
    bool is_primary = role == GROUP_VIEW_PRIMARY;

    if (atomic_load(&v->number) &&
        (own->term < v->own.term ||
         (is_same(own, &v->own) && is_primary == atomic_load(&v->is_primary))))
        return;
    uv_mutex_lock(&v->lock);
    v->own = *own;
    uv_mutex_unlock(&v->lock);
    atomic_store(&v->is_primary, is_primary);
    atomic_fetch_add(&v->number, 1);
    if (v->on_change)
        v->on_change(v->arg);
}

void group_view_clear_primary(struct group_view *v)
{
    struct group own = v->own;

    own.primary[0] = '\0';
    group_view_set_own(v, GROUP_VIEW_OTHER, &own);
}

void group_view_on_change(struct group_view *v, void (*on_change)(void *arg), void *arg)
{
    v->on_change = on_change;
    v->arg = arg;
}

bool group_view_is_primary(const struct group_view *v)
{
    return atomic_load_explicit(&v->is_primary, memory_order_acquire);
}

uint64_t group_view_number(const struct group_view *v)
{
    return atomic_load(&v->number);
}

/* The number is read first: who gets an older one than the groups only asks once more. */
void group_view_get(struct group_view *v, struct groups *ret)
{
    *ret = (struct groups){ .number = group_view_number(v) };
    if (!ret->number)
        return;
    assert(v->map->n_nodes <= MESSAGE_NODES_MAX && v->map->node < v->map->n_nodes);
    ret->n = v->map->n_nodes;
    for (uint32_t i = 0; i < ret->n; i++)
        memcpy(ret->items[i].primary, v->map->nodes[i], MESSAGE_ADDRESS_MAX);
    uv_mutex_lock(&v->lock);
    ret->items[v->map->node] = v->own;
    uv_mutex_unlock(&v->lock);
}

void group_view_refuse(struct group_view *v, struct hello_reply *reply)
{
    uint32_t version = reply->version;
    const struct group *own;

    *reply = *v->map;
    reply->version = version;
    reply->status = PS_EMOVED;
    group_view_get(v, &reply->groups);
    own = &reply->groups.items[v->map->node];
    snprintf(reply->text, sizeof reply->text,
             "this psd does not serve the shards of node %u: %s is their primary (term %llu)",
             v->map->node, own->primary[0] ? own->primary : "nobody that it knows",
             (unsigned long long)own->term);
}

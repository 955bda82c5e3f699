/*
 * Who is the primary of each node's shards, as this process knows it: for hello replies, and for those who watch. What
 * it does not know of another node is that node's address in the list of the cluster, under term 0.
 *
 * Until group_view_set_own() this process has no standby and never had one: it is its node's primary, and tells nobody
 * of groups, so that not a byte is more than without them.
 *
 * The main thread writes, all threads read.
 */
#ifndef SERVER_NET_GROUP_VIEW_H
#define SERVER_NET_GROUP_VIEW_H

#include "common/thread_role.h"
#include "proto/message.h"

struct group_view;

enum group_view_role {
    GROUP_VIEW_PRIMARY, /* this process serves the node's shards */
    GROUP_VIEW_OTHER    /* another one does, or nobody: this one is a standby, or is deposed */
};

/* `map` is borrowed: the list of nodes, and which of them this is. NULL: no lock can be made. */
struct group_view *group_view_new(const struct hello_reply *map) MUST_CHECK;

/* No thread uses it any more. NULL is fine. */
void group_view_free(struct group_view *v);

/* Not shown: this is a standby that has not heard yet of which cluster its primary is. `map` has its own address alone,
 * and no client may go by it. It is shown at first. */
void group_view_show_map(struct group_view *v, bool is_shown) ON_MAIN;
/* Any thread. */
bool group_view_has_map(const struct group_view *v);

/* Of this process's own node. Nothing happens if nothing is new. A smaller term than before is not ours to say: then
 * nothing happens, either. Who waits is told at once (on_change). */
void group_view_set_own(struct group_view *v, enum group_view_role role,
                        const struct group *own) ON_MAIN;

/* Between two primaries: nobody is known to serve this process's own node. */
void group_view_clear_primary(struct group_view *v) ON_MAIN;

/* One at most; called by group_view_set_own(). on_change NULL: nobody any more. */
void group_view_on_change(struct group_view *v, void (*on_change)(void *arg), void *arg)
    ON_MAIN;

/* Any thread. */
bool group_view_is_primary(const struct group_view *v);

/* Any thread. n is 0 before the first group_view_set_own(). */
void group_view_get(struct group_view *v, struct groups *ret);

/* Any thread. Grows with each change; 0 before the first one. */
uint64_t group_view_number(const struct group_view *v);

/* Any thread. Makes *reply a refusal with PS_EMOVED that names the whole cluster, groups included, so that the client
 * can go on to the primary. reply->version stays. */
void group_view_refuse(struct group_view *v, struct hello_reply *reply);

#endif

/* Groups in the head of a message. For message*.c alone. */
#ifndef PROTO_MESSAGE_GROUPS_H
#define PROTO_MESSAGE_GROUPS_H

#include "proto/group.h"
#include "proto/ps.pb-c.h"

struct message_groups {
    Ps__Group items[MESSAGE_NODES_MAX];
    Ps__Group *list[MESSAGE_NODES_MAX];
};

/* Strings are borrowed from *groups. */
void message_groups_put(const struct groups *groups, struct message_groups *ret);

/* PS_EPROTO for more than MESSAGE_NODES_MAX, and for strings that do not fit. */
int message_groups_take(Ps__Group *const *list, size_t n, uint64_t number, struct groups *ret)
    MUST_CHECK;

#endif

/*
 * An operator's command to one or more nodes at once. A slow answer is waited for as long as the node reports progress.
 *
 *     handshake -> command, beat, beat ... -> answer          one connection each, all on one loop
 */
#ifndef WORKER_CLIENT_PS_ADMIN_H
#define WORKER_CLIENT_PS_ADMIN_H

#include "common/status.h"
#include "common/tls.h"
#include "proto/message.h"

/* A node that is asked. */
struct ps_admin_node {
    const char *server; /* borrowed */
    char *json;         /* the answer, to be freed; NULL: there is none, and err says why */
    struct err err;
};

/* All is borrowed. */
struct ps_admin_plan {
    const char *token, *command, *argument;
    struct tls_context *tls; /* NULL: plain */
    uint32_t timeout_ms;     /* without a frame from the node */
    /* Progress is requested every beat_ms until the answer arrives; 0: never. Reported by on_beat of nodes[i]. */
    uint32_t beat_ms;
    const char *beat_command;
    void (*on_beat)(void *arg, uint32_t i, const char *json);
    /* Asked 20 times a second: true ends all that is open with -ECANCELED. NULL: never. */
    bool (*is_cancelled)(void *arg);
    void *arg;
};

/* Returns when each of the nodes has answered or failed: each has its own err. */
void ps_admin_ask(const struct ps_admin_plan *plan, struct ps_admin_node *nodes, uint32_t n);

/* Of one node. */
int ps_admin_one(const struct ps_admin_plan *plan, const char *server, char **ret_json,
                 struct err *err) MUST_CHECK;

/* The cluster, from this node's handshake, with the plan's token, tls, timeout_ms and is_cancelled(). */
int ps_admin_find(const struct ps_admin_plan *plan, const char *server, struct hello_reply *ret,
                  struct err *err) MUST_CHECK;

#endif

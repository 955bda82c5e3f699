/* Who comes to a node's listener: a connection goes to whom it is for, or is refused. */
#include "server/node_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/log_line.h"
#include "server/shard_thread.h"

uint64_t node_clients_limits_now(struct node *n)
{
    return connection_limits_time(&n->limits_clock, uv_now(&n->loop));
}

static int on_client(void *owner, const struct listener_client *client)
{
    const struct hello *hello = client->hello;
    struct node *n = owner;

    enter_main();
    if (hello->shard != MESSAGE_SHARD_LISTENER)
        return shard_thread_receive(
            n->shards[hello->shard], &client->socket, client->request_id, hello,
            connection_limits_open(n->limits, client->address, node_clients_limits_now(n)));
    if (strcmp(hello->role, "watcher") == 0) {
        if (watch_server_receive(n->watches, &client->socket, client->request_id, hello))
            log_line_warn("a watcher's connection was accepted, but could not be opened");
        return 0;
    }
    if (strcmp(hello->role, "standby") == 0) {
        if (standby_server_receive(n->standbys, &client->socket, client->request_id, hello))
            log_line_warn("a standby's connection was accepted, but could not be opened");
        return 0;
    }
    if (admin_server_receive(n->admin, &client->socket, client->request_id, hello))
        log_line_warn("an operator's connection was accepted, but could not be opened");
    return 0;
}

static int admit(void *owner, const struct sockaddr_storage *address, struct err *err)
{
    struct node *n = owner;

    enter_main();
    return connection_limits_admit(n->limits, address, node_clients_limits_now(n), err);
}

static int admit_operator(void *owner, struct err *err)
{
    struct node *n = owner;

    enter_main();
    return admin_server_admit(n->admin, err);
}

static int admit_standby(void *owner, struct err *err)
{
    struct node *n = owner;

    enter_main();
    if (n->state == NODE_FOLLOWING)
        return standby_report_no_primary(n->standby, n->primary, err);
    return standby_server_admit(n->standbys, err);
}

static void on_refused(void *owner, const char *peer, int status, const char *sentence)
{
    struct node *n = owner;
    char more[64];

    if (log_line_limit_pass(&n->limit, "refused", 0, uv_now(&n->loop), more))
        log_line_warn("listener: %s refused: %s%s", peer,
                      sentence[0] ? sentence : status_text(status), more);
}

const struct listener_events node_clients_events = { .check_serving = node_check_serving,
                                                     .on_client = on_client,
                                                     .admit = admit,
                                                     .admit_operator = admit_operator,
                                                     .admit_standby = admit_standby,
                                                     .on_refused = on_refused };

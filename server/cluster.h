/*
 * The static list of nodes that make up a cluster, as the hello reply has it: the same value
 * on every node but for the node's own number. A client that knows it knows where every key
 * bucket is.
 */
#ifndef SERVER_CLUSTER_H
#define SERVER_CLUSTER_H

#include "common/file.h"
#include "common/thread_role.h"
#include "proto/message.h"
#include "server/settings.h"

/*
 * Fills *ret from cluster, node, advertise and shards. PS_ECLUSTER and a sentence when the list
 * does not hold this node. Of a node that stands alone the list is its own address:
 * cluster_name_self() fills it in when it is known.
 */
int cluster_map(const struct settings *s, struct hello_reply *ret, struct err *err) MUST_CHECK;

/* The same from DATA_DIR/CLUSTER (cluster_file.h), where there is one and no --cluster: *ret_is_there. */
int cluster_map_of_file(const struct settings *s, const struct file_ops *files,
                        struct hello_reply *map, bool *ret_is_there, struct err *err)
    MUST_CHECK;

/* The number of shards in that file, if --shards is not set. One that cannot be read stops the start later. */
void cluster_choose_shards(struct settings *s, const struct file_ops *files);

/* Where others reach this node: --advertise, or where it listens. */
void cluster_own_address(const struct settings *s, const char *listening,
                         char ret[static MESSAGE_ADDRESS_MAX]);

/* `listening`: where the listener really listens, in numbers. Only for a node that stands alone
 * without --advertise; also makes map_id. */
void cluster_name_self(const struct settings *s, const char *listening,
                       struct hello_reply *map);

/* Warns if this node listens where its line of the list does not lead. Only of a node that says which line it is. */
void cluster_warn_elsewhere(const struct settings *s);

/* Warns if other machines can reach the node and no token is asked for. */
void cluster_warn_open(const struct settings *s, const char *listening);

#endif

/* Where the nodes of a cluster are, asked of etcd once: for programs without a loop, which then ask the nodes. */
#ifndef SERVER_CLUSTER_ETCD_LOOKUP_H
#define SERVER_CLUSTER_ETCD_LOOKUP_H

#include "proto/group.h"
#include "server/cluster/coord.h"

/* As the claims say: one group for each node of the cluster; one without a claim has no primary. Waits up to
 * timeout_ms for etcd. PS_ESETTING, PS_EDEADLINE; -ENOENT: no psd has ever served under this cluster's name. */
int etcd_lookup(const struct coord_options *options, uint32_t timeout_ms, struct groups *ret,
                struct err *err) MUST_CHECK;

/* All primaries, then all standbys: "HOST:PORT,HOST:PORT", as many as dst holds. */
int etcd_lookup_servers(const struct coord_options *options, uint32_t timeout_ms, char *dst,
                        size_t dst_bytes, struct err *err) MUST_CHECK;

#endif

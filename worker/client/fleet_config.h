/*
 * What a client says of itself to every shard, out of its options.
 */
#ifndef WORKER_CLIENT_FLEET_CONFIG_H
#define WORKER_CLIENT_FLEET_CONFIG_H

#include "worker/client/link_owner.h"
#include "worker/client/ps_types.h"

struct hello fleet_config_hello(const struct ps_options *options);

/* Of the shard with this number at the cluster; its index on its node, and the cluster's map, are
 * the greeting's. spent_ms of connect_ms are over. */
struct link_config fleet_config_link(const struct ps_options *options,
                                     const struct ps_origin *origin, uint64_t spent_ms);

#endif

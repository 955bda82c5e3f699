/*
 * etcd 3.4 as a coordination service (coord.h), through its JSON gateway: HTTP/1.1 on the client port, libcurl on
 * libuv.
 *
 * One endpoint is used at a time. Whatever goes wrong there (no connection, no answer in its time, an answer that is
 * not etcd's, a member without a leader) moves calls and watches to the next one. A call repeats until its deadline.
 * An attempt has COORD_ETCD_ATTEMPT_MS; once etcd has answered, half of that, or twice as long as its slowest answer of
 * late, up to 2 s. From the third round over all endpoints on it has twice as long as in the round before.
 *
 * A watch that is silent looks like one without changes. So while there is one, keys that have changed are asked for
 * at its own endpoint every COORD_ETCD_PROBE_MS; an endpoint that does not answer, or a watch that twice has not seen
 * what the answer shows, ends that stream, and the next one goes on from the revision after the last that was seen.
 * After each round over all endpoints it pauses, twice as long each time, up to 1 s, until a stream has lasted.
 */
#ifndef SERVER_CLUSTER_COORD_ETCD_H
#define SERVER_CLUSTER_COORD_ETCD_H

#include <uv.h>

#include "server/cluster/coord.h"

#define COORD_ETCD_ATTEMPT_MS 500u
#define COORD_ETCD_PROBE_MS 1000u

/* options->url: etcd_url.h. Connects to nothing yet. */
int coord_etcd_open(const struct coord_options *options, uv_loop_t *loop, struct coord **ret,
                    struct err *err) MUST_CHECK;

#endif

/* What listens on etcd's port and answers as a test wants: a server on the test's own loop. */
#ifndef TESTS_UNIT_CLUSTER_FAKE_ETCD_H
#define TESTS_UNIT_CLUSTER_FAKE_ETCD_H

#include <stdbool.h>
#include <uv.h>

#include "common/base.h"

struct fake_connection;

struct fake_etcd {
    uv_loop_t *loop;
    uv_tcp_t server;
    int port;
    int n_requests;
    struct fake_connection *connections;
    /* A whole request has come. */
    void (*on_request)(struct fake_etcd *f, struct fake_connection *to, const char *path,
                       const char *body);
    void *arg;
};

void fake_etcd_start(struct fake_etcd *f, uv_loop_t *loop);
void fake_etcd_stop(struct fake_etcd *f);

/* Bytes as they are. */
void fake_etcd_send(struct fake_connection *to, const char *bytes, size_t n_bytes);

/* HTTP 200 with this body. in_pieces: a byte at a time, each in a turn of the loop of its own. */
void fake_etcd_answer(struct fake_connection *to, const char *body);
void fake_etcd_answer_in_pieces(struct fake_connection *to, const char *body);

/* HTTP 200, and a body that ends with the connection. */
void fake_etcd_begin(struct fake_connection *to);
void fake_etcd_close(struct fake_connection *to);

#endif

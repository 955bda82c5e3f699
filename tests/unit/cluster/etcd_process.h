/* Real etcd on the loopback: one member, or three, each a process of its own on free ports with a directory of its own. */
#ifndef TESTS_UNIT_CLUSTER_ETCD_PROCESS_H
#define TESTS_UNIT_CLUSTER_ETCD_PROCESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

#define ETCD_MEMBERS_MAX 3

struct etcd_process {
    int n_members;
    pid_t pids[ETCD_MEMBERS_MAX]; /* 0: ended */
    int ports[ETCD_MEMBERS_MAX], peer_ports[ETCD_MEMBERS_MAX];
    bool is_tls;
    char dir[64], url[160]; /* etcd://127.0.0.1:PORT,.../test */
};

/* One member over TLS, with the files that tests/support/certificates.sh makes in e->dir; it asks for a client's
 * certificate. Skips the test where there is no etcd or openssl. */
void etcd_process_start_tls(struct etcd_process *e);

/* Posts to the first member, without TLS. False: no answer. */
bool etcd_process_post(const struct etcd_process *e, const char *path, const char *body);

/* Skips the test where there is no etcd. Returns when all members answer. */
void etcd_process_start(struct etcd_process *e, int n_members);

/* A member that was killed. */
void etcd_process_restart(struct etcd_process *e, int member);
void etcd_process_empty(const struct etcd_process *e,
                        int member); /* its data, while it is ended */
void etcd_process_signal(struct etcd_process *e, int member,
                         int signal); /* SIGKILL: and waits for its end */
int etcd_process_leader(const struct etcd_process *e);
void etcd_process_stop(struct etcd_process *e);

/* Forgets all revisions until now. */
void etcd_process_compact(const struct etcd_process *e, int64_t revision);

/* A port that is free at this moment. */
int etcd_process_free_port(void);

#endif

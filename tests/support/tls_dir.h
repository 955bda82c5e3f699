/* Certificates for tests, made in a folder of their own. */
#ifndef TESTS_SUPPORT_TLS_DIR_H
#define TESTS_SUPPORT_TLS_DIR_H

#include "common/tls.h"

struct tls_dir {
    char path[64];
};

/*
 * DIR/NAME.pem and DIR/NAME.key, all of the cluster "c" and, but for the last line, of the CA "ca":
 *
 *     node                                                  of 127.0.0.1 and localhost
 *     worker (of all jobs), ads (of that job), reader, operator, admin
 *     expired, early                                        nodes whose time is over, or has not begun
 *     away                                                  a node, of another host
 *     foreign                                               a node, of the cluster "d"
 *     other, stranger                                       another CA, and a node of it
 */
void tls_dir_make(struct tls_dir *d);
void tls_dir_remove(struct tls_dir *d);

/* For a group of tests of cmocka: *state is one, made before them and removed behind. */
int tls_dir_set_up(void **state);
int tls_dir_tear_down(void **state);

/* With the certificate of this name, or without one: "". It believes the CA of this name. */
struct tls_context *tls_dir_context(const struct tls_dir *d, const char *name, const char *ca);

#endif

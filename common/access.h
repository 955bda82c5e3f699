/*
 * Who a peer is, and so what it may do: a role, and of a worker the job.
 *
 * A certificate says it with a URI among its names, a line of a token file with the part from ROLE on:
 *
 *     psd://CLUSTER/ROLE[/JOB]
 *
 *     role       may
 *     node       follow another psd, ask it, and be a server
 *     worker     train the job, and read its tables; without a JOB, all jobs
 *     reader     read tables
 *     operator   ask for reports, as all may, and look up rows
 *     admin      all that an operator, a worker and a reader may, and change tables
 *     all        everything: a peer of a node that knows no roles
 */
#ifndef COMMON_ACCESS_H
#define COMMON_ACCESS_H

#include <stdbool.h>

#include "common/base.h"

#define ACCESS_CLUSTER_MAX 64u
#define ACCESS_JOB_MAX 64u

enum access_role {
    ACCESS_ALL, /* of a zeroed struct: nobody asked */
    ACCESS_NODE,
    ACCESS_WORKER,
    ACCESS_READER,
    ACCESS_OPERATOR,
    ACCESS_ADMIN,
    ACCESS_END
};

struct access {
    enum access_role role;
    char cluster[ACCESS_CLUSTER_MAX]; /* "": a token, which names none */
    char job[ACCESS_JOB_MAX];         /* "": all */
};

/* "node", "worker" ... */
const char *access_role_name(enum access_role role);

/* ROLE[/JOB], n_bytes long. Fills role and job, and leaves the cluster alone. False: it is none, or names a job for a
 * role that has no job. */
bool access_parse(const char *text, size_t n_bytes, struct access *ret);

/* psd://CLUSTER/ROLE[/JOB], n_bytes long. ACCESS_ALL is no role of a certificate. */
bool access_parse_uri(const char *uri, size_t n_bytes, struct access *ret);

/* Whether it may greet with this role of a hello: worker, reader, operator, watcher or standby. */
bool access_may_greet(const struct access *a, const char *hello_role);

/* Whether it may train this job. */
bool access_may_join(const struct access *a, const char *job);

/* Whether it may use, or make, a table of this name: a worker of a job those whose names begin with JOB/. */
bool access_may_use_table(const struct access *a, const char *table);

/* Of an operator's commands reports are for all. Whether it may look up rows of any table; and whether it may have a
 * command that changes something. */
bool access_may_query_rows(const struct access *a);
bool access_may_change(const struct access *a);

#endif

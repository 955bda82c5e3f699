#include "common/access.h"

#include <stdio.h>
#include <string.h>

static const char *const names[ACCESS_END] = {
    [ACCESS_ALL] = "all",       [ACCESS_NODE] = "node",         [ACCESS_WORKER] = "worker",
    [ACCESS_READER] = "reader", [ACCESS_OPERATOR] = "operator", [ACCESS_ADMIN] = "admin",
};

const char *access_role_name(enum access_role role)
{
    return names[role];
}

/* Copies a part of a name. False: it is empty, too long, or has a character that no part has. */
static bool copy_part(const char *text, size_t n_bytes, char *dst, size_t dst_bytes)
{
    if (n_bytes == 0 || n_bytes >= dst_bytes)
        return false;
    for (size_t i = 0; i < n_bytes; i++)
        if (text[i] <= ' ' || text[i] > '~' || text[i] == '/')
            return false;
    memcpy(dst, text, n_bytes);
    dst[n_bytes] = '\0';
    return true;
}

bool access_parse(const char *text, size_t n_bytes, struct access *ret)
{
    const char *slash = memchr(text, '/', n_bytes);
    const size_t role_bytes = slash ? (size_t)(slash - text) : n_bytes;
    char job[ACCESS_JOB_MAX] = "";
    int role = 0;

    while (role < ACCESS_END &&
           (strlen(names[role]) != role_bytes || memcmp(names[role], text, role_bytes) != 0))
        role++;
    if (role == ACCESS_END)
        return false;
    if (slash && (role != ACCESS_WORKER ||
                  !copy_part(slash + 1, n_bytes - role_bytes - 1, job, sizeof job)))
        return false;
    ret->role = (enum access_role)role;
    memcpy(ret->job, job, sizeof ret->job);
    return true;
}

bool access_parse_uri(const char *uri, size_t n_bytes, struct access *ret)
{
    static const char scheme[] = "psd://";
    const size_t scheme_bytes = sizeof scheme - 1;
    struct access found = { 0 };
    const char *slash;

    if (n_bytes <= scheme_bytes || memcmp(uri, scheme, scheme_bytes) != 0)
        return false;
    uri += scheme_bytes;
    n_bytes -= scheme_bytes;
    slash = memchr(uri, '/', n_bytes);
    if (!slash || !copy_part(uri, (size_t)(slash - uri), found.cluster, sizeof found.cluster) ||
        !access_parse(slash + 1, n_bytes - (size_t)(slash - uri) - 1, &found) ||
        found.role == ACCESS_ALL)
        return false;
    *ret = found;
    return true;
}

/* A role's row: the roles of a hello that it may have. */
static const char *const hellos[ACCESS_END][5] = {
    [ACCESS_ALL] = { "worker", "reader", "operator", "watcher", "standby" },
    [ACCESS_NODE] = { "reader", "operator", "watcher", "standby" },
    [ACCESS_WORKER] = { "worker", "reader", "operator", "watcher" }, /* for reports alone */
    [ACCESS_READER] = { "reader", "operator", "watcher" },
    [ACCESS_OPERATOR] = { "operator", "watcher" },
    [ACCESS_ADMIN] = { "worker", "reader", "operator", "watcher" },
};

bool access_may_greet(const struct access *a, const char *hello_role)
{
    for (size_t i = 0; i < COUNT_OF(hellos[0]); i++)
        if (hellos[a->role][i] && strcmp(hellos[a->role][i], hello_role) == 0)
            return true;
    return false;
}

static bool trains(const struct access *a)
{
    return a->role == ACCESS_ALL || a->role == ACCESS_WORKER || a->role == ACCESS_ADMIN;
}

bool access_may_join(const struct access *a, const char *job)
{
    return trains(a) && (!a->job[0] || strcmp(a->job, job) == 0);
}

bool access_may_use_table(const struct access *a, const char *table)
{
    const size_t n_bytes = strlen(a->job);

    if (a->role == ACCESS_OPERATOR)
        return false;
    return !n_bytes || (strncmp(a->job, table, n_bytes) == 0 && table[n_bytes] == '/');
}

bool access_may_query_rows(const struct access *a)
{
    return a->role != ACCESS_WORKER || !a->job[0];
}

bool access_may_change(const struct access *a)
{
    return a->role == ACCESS_ALL || a->role == ACCESS_ADMIN;
}

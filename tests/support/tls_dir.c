#include "tests/support/tls_dir.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/tls_cert.h"

#define HOUR_S INT64_C(3600)

static const struct {
    const char *name, *ca, *cluster, *role, *host;
    int64_t from_hours, until_hours;
} certs[] = {
    { "ca", "", "", "all", NULL, -48, 48 },
    { "other", "", "", "all", NULL, -48, 48 },
    { "node", "ca", "c", "node", "127.0.0.1", -1, 24 },
    { "worker", "ca", "c", "worker", NULL, -1, 24 },
    { "ads", "ca", "c", "worker/ads", NULL, -1, 24 },
    { "reader", "ca", "c", "reader", NULL, -1, 24 },
    { "operator", "ca", "c", "operator", NULL, -1, 24 },
    { "admin", "ca", "c", "admin", NULL, -1, 24 },
    { "expired", "ca", "c", "node", "127.0.0.1", -24, -1 },
    { "early", "ca", "c", "node", "127.0.0.1", 1, 24 },
    { "away", "ca", "c", "node", "10.9.8.7", -1, 24 },
    { "foreign", "ca", "d", "node", "127.0.0.1", -1, 24 },
    { "stranger", "other", "c", "node", "127.0.0.1", -1, 24 },
};

struct names {
    char cert[128], key[128];
};

static struct names names_of(const struct tls_dir *d, const char *name)
{
    struct names n = { "", "" };

    if (name[0]) {
        snprintf(n.cert, sizeof n.cert, "%s/%s.pem", d->path, name);
        snprintf(n.key, sizeof n.key, "%s/%s.key", d->path, name);
    }
    return n;
}

void tls_dir_make(struct tls_dir *d)
{
    const int64_t now_s = (int64_t)time(NULL);

    strcpy(d->path, "/tmp/psd-tls-XXXXXX");
    if (!mkdtemp(d->path))
        abort();
    for (size_t i = 0; i < COUNT_OF(certs); i++) {
        struct names own = names_of(d, certs[i].name), ca = names_of(d, certs[i].ca);
        const char *hosts[] = { certs[i].host, "localhost" };
        struct tls_cert_plan plan = { .cert = own.cert,
                                      .key = own.key,
                                      .ca_cert = ca.cert[0] ? ca.cert : NULL,
                                      .ca_key = ca.key,
                                      .name = certs[i].name,
                                      .hosts = hosts,
                                      .n_hosts = certs[i].host ? 2 : 0,
                                      .from_unix_s = now_s + certs[i].from_hours * HOUR_S,
                                      .until_unix_s = now_s + certs[i].until_hours * HOUR_S };
        struct err err;
        bool is_role = access_parse(certs[i].role, strlen(certs[i].role), &plan.access);

        snprintf(plan.access.cluster, sizeof plan.access.cluster, "%s", certs[i].cluster);
        if (!is_role || tls_cert_make(&plan, &err)) {
            fprintf(stderr, "%s: %s\n", certs[i].name, err.text);
            abort();
        }
    }
}

void tls_dir_remove(struct tls_dir *d)
{
    for (size_t i = 0; i < COUNT_OF(certs); i++) {
        struct names own = names_of(d, certs[i].name);

        unlink(own.cert);
        unlink(own.key);
    }
    rmdir(d->path);
}

int tls_dir_set_up(void **state)
{
    *state = malloc(sizeof(struct tls_dir));
    tls_dir_make(*state);
    return 0;
}

int tls_dir_tear_down(void **state)
{
    tls_dir_remove(*state);
    free(*state);
    return 0;
}

struct tls_context *tls_dir_context(const struct tls_dir *d, const char *name, const char *ca)
{
    struct names own = names_of(d, name), authority = names_of(d, ca);
    struct tls_context *t = NULL;
    struct err err = { 0 };

    if (tls_context_new(&(struct tls_files){ authority.cert, own.cert, own.key, false }, &t,
                        &err)) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return t;
}

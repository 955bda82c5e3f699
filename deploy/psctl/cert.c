#include "deploy/psctl/cert.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/tls_cert.h"

#define PATH_BYTES 4096u
#define DAY_S INT64_C(86400)
#define EARLY_S INT64_C(300) /* clocks of other machines may be behind */

struct making {
    const struct options *options; /* borrowed */
    const char *dir;               /* borrowed */
    const char *hosts[TLS_CERT_HOSTS_MAX];
    uint32_t n_hosts;
    uint32_t n_made;
};

static int fail(const char *sentence)
{
    fprintf(stderr, "psctl: cert: %s\n", sentence);
    return EXIT_FAILED;
}

static int fail_path(const char *path, int error)
{
    fprintf(stderr, "psctl: cert: %s: %s\n", path, strerrordesc_np(error));
    return EXIT_FAILED;
}

static bool path_of(const struct making *m, const char *name, const char *ending,
                    char ret[static PATH_BYTES])
{
    return snprintf(ret, PATH_BYTES, "%s/%s.%s", m->dir, name, ending) < (int)PATH_BYTES;
}

/* Of the role, or of a CA where that is ACCESS_ALL. False: stderr says why. */
static bool make(struct making *m, const char *name, enum access_role role)
{
    char cert[PATH_BYTES], key[PATH_BYTES], ca_cert[PATH_BYTES], ca_key[PATH_BYTES], text[256];
    const bool is_ca = role == ACCESS_ALL, is_node = role == ACCESS_NODE;
    struct tls_cert_plan plan = { .cert = cert,
                                  .key = key,
                                  .ca_cert = is_ca ? NULL : ca_cert,
                                  .ca_key = is_ca ? NULL : ca_key,
                                  .name = text,
                                  .access = { .role = role },
                                  .hosts = m->hosts,
                                  .n_hosts = is_node ? m->n_hosts : 0,
                                  .from_unix_s = (int64_t)time(NULL) - EARLY_S };
    struct err err;

    if (!path_of(m, name, "pem", cert) || !path_of(m, name, "key", key) ||
        !path_of(m, "ca", "pem", ca_cert) || !path_of(m, "ca", "key", ca_key))
        return fail("the path is too long") == EXIT_ANSWERED;
    if (access(cert, F_OK) == 0)
        return true;
    plan.until_unix_s = (int64_t)time(NULL) + m->options->days * DAY_S;
    snprintf(plan.access.cluster, sizeof plan.access.cluster, "%.63s", m->options->cluster);
    if (role == ACCESS_WORKER)
        snprintf(plan.access.job, sizeof plan.access.job, "%.63s", m->options->job);
    snprintf(text, sizeof text, "psd %.40s %s", m->options->cluster, is_ca ? "CA" : name);
    if (tls_cert_make(&plan, &err))
        return fail(err.text) == EXIT_ANSWERED;
    m->n_made++;
    printf("%s, %s\n", cert, key);
    return true;
}

/* What access_parse_uri() will make of them again. A comma would begin another name of the certificate. */
static bool check_names(const struct options *o)
{
    char uri[512];
    struct access ignored;
    const int n = snprintf(uri, sizeof uri, "psd://%.200s/worker%s%.200s", o->cluster,
                           o->job[0] ? "/" : "", o->job);

    return !strchr(uri, ',') && access_parse_uri(uri, (size_t)n, &ignored);
}

static bool add_hosts(struct making *m)
{
    static const char *const own[] = { "localhost", "127.0.0.1", "::1" };

    for (size_t i = 0; i < COUNT_OF(own); i++)
        m->hosts[m->n_hosts++] = own[i];
    if (m->options->hosts.n > TLS_CERT_HOSTS_MAX - m->n_hosts)
        return false;
    for (uint32_t i = 0; i < m->options->hosts.n; i++)
        m->hosts[m->n_hosts++] = m->options->hosts.items[i];
    return true;
}

int cert_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct making m = { .options = o, .dir = words[0] };
    bool is_good;

    (void)n_words;
    if (!check_names(o))
        return fail("--cluster and --job: up to 63 characters without blank, comma and / are "
                    "expected");
    if (!add_hosts(&m))
        return fail("--host: too many");
    if (mkdir(m.dir, 0700) && errno != EEXIST)
        return fail_path(m.dir, errno);
    is_good = make(&m, "ca", ACCESS_ALL);
    for (int role = ACCESS_NODE; role < ACCESS_END && is_good; role++)
        is_good = make(&m, access_role_name((enum access_role)role), (enum access_role)role);
    if (is_good && !m.n_made)
        printf("%s has all certificates already\n", m.dir);
    return is_good ? EXIT_ANSWERED : EXIT_FAILED;
}

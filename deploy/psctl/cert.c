#include "deploy/psctl/cert.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/tls_cert.h"
#include "deploy/psctl/data_dir.h"
#include "deploy/psctl/field.h"

#define PATH_BYTES 4096u
#define DAY_S INT64_C(86400)
#define EARLY_S INT64_C(300) /* clocks of other machines may be behind */

struct making {
    const struct options *options; /* borrowed */
    const char *dir;               /* borrowed */
    const char *hosts[TLS_CERT_HOSTS_MAX];
    uint32_t n_hosts;
    uint32_t n_made;
    cJSON *files; /* owned: of each role, for --json */
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

/* A certificate and its plan, which borrows the texts beside it. */
struct wanted {
    char cert[PATH_BYTES], key[PATH_BYTES], ca_cert[PATH_BYTES], ca_key[PATH_BYTES], text[256];
    struct tls_cert_plan plan;
};

/* Of the role, or of a CA where that is ACCESS_ALL. False: stderr says why. */
static bool plan_of(const struct making *m, enum access_role role, struct wanted *ret)
{
    const bool is_ca = role == ACCESS_ALL;
    const char *name = is_ca ? "ca" : access_role_name(role);
    struct tls_cert_plan *plan = &ret->plan;

    if (!path_of(m, name, "pem", ret->cert) || !path_of(m, name, "key", ret->key) ||
        !path_of(m, "ca", "pem", ret->ca_cert) || !path_of(m, "ca", "key", ret->ca_key))
        return fail("the path is too long") == EXIT_ANSWERED;
    snprintf(ret->text, sizeof ret->text, "psd %.40s %s", m->options->cluster,
             is_ca ? "CA" : name);
    *plan = (struct tls_cert_plan){ .cert = ret->cert,
                                    .key = ret->key,
                                    .ca_cert = is_ca ? NULL : ret->ca_cert,
                                    .ca_key = is_ca ? NULL : ret->ca_key,
                                    .name = ret->text,
                                    .access = { .role = role },
                                    .hosts = m->hosts,
                                    .n_hosts = role == ACCESS_NODE ? m->n_hosts : 0,
                                    .from_unix_s = (int64_t)time(NULL) - EARLY_S,
                                    .until_unix_s =
                                        (int64_t)time(NULL) + m->options->days * DAY_S };
    snprintf(plan->access.cluster, sizeof plan->access.cluster, "%.63s", m->options->cluster);
    if (role == ACCESS_WORKER)
        snprintf(plan->access.job, sizeof plan->access.job, "%.63s", m->options->job);
    return true;
}

/* What is there must be what is asked for: the others are to be of one cluster with it. */
static bool check(struct making *m, enum access_role role)
{
    struct wanted w;
    struct err err;

    if (!plan_of(m, role, &w))
        return false;
    if (role == ACCESS_ALL || access(w.cert, F_OK) != 0 || !tls_cert_compare(&w.plan, &err))
        return true;
    fprintf(stderr,
            "psctl: cert: %s: remove it and its key for a new one, or name another folder\n",
            err.text);
    return false;
}

static void add_file(struct making *m, enum access_role role, const struct wanted *w,
                     bool is_made)
{
    cJSON *file = cJSON_CreateObject();

    cJSON_AddStringToObject(file, "role", role == ACCESS_ALL ? "ca" : access_role_name(role));
    cJSON_AddStringToObject(file, "certificate", w->cert);
    cJSON_AddStringToObject(file, "key", w->key);
    cJSON_AddBoolToObject(file, "made", is_made);
    cJSON_AddItemToArray(m->files, file);
}

static void print_files(struct making *m)
{
    cJSON *all = cJSON_CreateObject();

    cJSON_AddStringToObject(all, "directory", m->dir);
    cJSON_AddItemToObject(all, "files", m->files);
    data_dir_print_json(all);
}

static bool make(struct making *m, enum access_role role)
{
    struct wanted w;
    struct err err;

    if (!plan_of(m, role, &w))
        return false;
    if (access(w.cert, F_OK) == 0) {
        add_file(m, role, &w, false);
        return true;
    }
    if (tls_cert_make(&w.plan, &err))
        return fail(err.text) == EXIT_ANSWERED;
    m->n_made++;
    add_file(m, role, &w, true);
    if (!m->options->json)
        printf("%s, %s\n", w.cert, w.key);
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

/* NULL, or the host that no certificate can be for. */
static const char *find_bad_host(const struct options *o)
{
    for (uint32_t i = 0; i < o->hosts.n; i++)
        if (!tls_cert_is_host(o->hosts.items[i]))
            return o->hosts.items[i];
    return NULL;
}

/* Before anything is made. What is asked for stands in names that other programs split at commas and blanks. */
static bool check_asked(const struct options *o)
{
    const char *host = find_bad_host(o);

    if (!check_names(o))
        fputs("psctl: cert: --cluster and --job: up to 63 characters without blank, comma and "
              "/ are "
              "expected\n",
              stderr);
    else if (host)
        field_put(stderr, "psctl: cert: --host: \"", host,
                  "\" is no address, and no name of letters, digits, dots and dashes\n");
    return !host && check_names(o);
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
    bool is_good = true;

    (void)n_words;
    if (!check_asked(o))
        return EXIT_MISUSED;
    if (!add_hosts(&m)) {
        fail("--host: too many");
        return EXIT_MISUSED;
    }
    if (mkdir(m.dir, 0700) && errno != EEXIST)
        return fail_path(m.dir, errno);
    m.files = cJSON_CreateArray();
    for (int role = ACCESS_ALL; role < ACCESS_END; role++)
        is_good = check(&m, (enum access_role)role) && is_good;
    for (int role = ACCESS_ALL; role < ACCESS_END && is_good; role++)
        is_good = make(&m, (enum access_role)role);
    if (is_good && o->json) {
        print_files(&m);
        return EXIT_ANSWERED;
    }
    cJSON_Delete(m.files);
    if (is_good && !m.n_made)
        printf("%s has all certificates already\n", m.dir);
    return is_good ? EXIT_ANSWERED : EXIT_FAILED;
}

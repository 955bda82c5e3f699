#include "worker/libpsd/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "common/hash.h"
#include "common/memory.h"
#include "common/token_file.h"
#include "worker/client/ps_settings.h"
#include "worker/libpsd/row_cache.h"

#define DENSE_BLOCK TABLE_SPEC_DENSE_BLOCK
#define CACHE_BYTES_MAX (UINT64_C(1) << 40)
#define CACHE_AGE_MS_MAX UINT64_C(86400000)

/* clang-format off */
#define ROW(name, type, field, arg, fallback, lo, hi, help) \
    { "libpsd", name, type, arg, fallback, help, offsetof(struct options, field), lo, hi },

static const struct setting rows[] = {
    ROW("reader", SETTING_FLAG, reader, "yes|no", "no", 0, 0, "")
    ROW("mode", SETTING_CHOICE, mode, PS_SETTINGS_MODES, "async", 0, 0, "")
    ROW("token", SETTING_TEXT, token, "TEXT", "", 0, 0, "")
    ROW("name", SETTING_TEXT, name, "TEXT", "", 0, 0, "")
    ROW("pull-timeout", SETTING_MS, pull_timeout_ms, "TIME", "10m", 1, PS_SETTINGS_TIME_MAX, "")
    ROW("push-timeout", SETTING_MS, push_timeout_ms, "TIME", "10m", 1, PS_SETTINGS_TIME_MAX, "")
    PS_SETTINGS_WORKERS(ROW)
    PS_SETTINGS_BOUND(ROW)
    PS_SETTINGS_BACKUPS(ROW)
    PS_SETTINGS_TOKEN_FILE(ROW)
    PS_SETTINGS_TLS(ROW)
    PS_SETTINGS_PATIENCE(ROW)
    PS_SETTINGS_WINDOW(ROW)
    PS_SETTINGS_RESIDUALS(ROW)
    PS_SETTINGS_ZSTD(ROW)
    ROW("cache", SETTING_BYTES, cache_bytes, "BYTES", "0", 0, 0, "")
    ROW("max-age", SETTING_MS, max_age_ms, "TIME", "0", 0, 0, "")
};
#undef ROW

/* What psd_table() reads, before it is a table_spec. Floats of -1: the optimizer's own. */
struct spec_words {
    uint32_t dim, admit_touches, rare_touches, staleness;
    uint64_t floats, seed, warmup, decay_start, decay_clocks;
    uint64_t table_max_bytes, admit_clocks, idle_clocks, rare_clocks, ttl_ms;
    int optimizer, init, decay, mode, table_storage, table_full;
    float lr, epsilon, momentum, beta1, beta2, weight_decay, initial_accumulator, lr_decay, ftrl_beta, ftrl_l1, ftrl_l2;
    float clip_norm, init_scale, decay_rate, decay_floor, row_decay;
    bool nesterov;
};

#define ROW(name, type, field, arg, fallback, lo, hi, help) \
    { "libpsd", name, type, arg, fallback, help, offsetof(struct spec_words, field), lo, hi },
#define OWN(name, field) ROW(name, SETTING_FLOAT, field, "X", NULL, 0, UINT64_MAX, "")

static const struct setting spec_rows[] = {
    ROW("dim", SETTING_U32, dim, "N", "0", 0, 0, "")
    ROW("floats", SETTING_U64, floats, "N", "0", 0, 0, "")
    ROW("init", SETTING_CHOICE, init, "auto|zero|uniform|normal", "auto", 0, 0, "")
    ROW("warmup", SETTING_U64, warmup, "CLOCKS", "0", 0, UINT32_MAX, "")
    ROW("mode", SETTING_CHOICE, mode, PS_SETTINGS_TABLE_MODES, "job", 0, 0, "")
    OWN("lr", lr) OWN("epsilon", epsilon) OWN("momentum", momentum) OWN("beta1", beta1) OWN("beta2", beta2)
    OWN("weight-decay", weight_decay) OWN("initial-accumulator", initial_accumulator) OWN("lr-decay", lr_decay)
    OWN("ftrl-beta", ftrl_beta) OWN("ftrl-l1", ftrl_l1) OWN("ftrl-l2", ftrl_l2) OWN("init-scale", init_scale)
    ROW("row-decay", SETTING_FLOAT, row_decay, "X", "0", 0, 0, "")
    PS_SETTINGS_SEED(ROW, "")
    PS_SETTINGS_OPTIMIZER(ROW)
    PS_SETTINGS_NESTEROV(ROW)
    PS_SETTINGS_CLIP(ROW)
    PS_SETTINGS_DECAY(ROW, TABLE_SPEC_DECAY_CHOICE)
    PS_SETTINGS_BOUND(ROW)
    PS_SETTINGS_ROWS(ROW)
};
#undef ROW
#undef OWN
/* clang-format on */

static const struct settings_table open_table = { .program = "libpsd",
                                                  .rows = rows,
                                                  .n_rows = COUNT_OF(rows) };
static const struct settings_table spec_table = { .program = "libpsd",
                                                  .rows = spec_rows,
                                                  .n_rows = COUNT_OF(spec_rows) };

/* ---- words ---- */

/* One NAME=VALUE at a time. */
struct words {
    const char *at;
    char name[64], value[SETTINGS_TEXT_MAX];
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static int read_name(struct words *w, struct err *err)
{
    size_t n = strcspn(w->at, "= \t\r\n");

    if (w->at[n] != '=' || n == 0 || n >= sizeof w->name)
        return err_set(err, PS_ESETTING, "\"%.*s\" is no NAME=VALUE", n < 60 ? (int)n : 60,
                       w->at);
    for (size_t i = 0; i < n; i++)
        w->name[i] = (char)(w->at[i] == '_' ? '-' : w->at[i]);
    w->name[n] = '\0';
    w->at += n + 1;
    return 0;
}

/* As it is, up to a blank; or in quotes, with \ before what is meant. */
static int read_value(struct words *w, struct err *err)
{
    bool is_quoted = *w->at == '"';
    size_t n = 0;

    w->at += is_quoted;
    while (*w->at && (is_quoted ? *w->at != '"' : !is_blank(*w->at))) {
        if (is_quoted && *w->at == '\\' && w->at[1])
            w->at++;
        if (n + 1 == sizeof w->value)
            return err_set(err, PS_ESETTING, "%s: its value is longer than %zu bytes", w->name,
                           sizeof w->value - 1);
        w->value[n++] = *w->at++;
    }
    w->value[n] = '\0';
    if (is_quoted && *w->at != '"')
        return err_set(err, PS_ESETTING, "%s: its quotes are not closed", w->name);
    w->at += is_quoted;
    if (*w->at && !is_blank(*w->at))
        return err_set(err, PS_ESETTING, "%s: \"%.20s\" stands behind its quotes", w->name,
                       w->at);
    return 0;
}

static int read_words(const struct settings_table *table, void *settings, const char *text,
                      struct err *err)
{
    struct words w = { .at = text };
    int status = 0;

    for (size_t i = 0; i < table->n_rows && !status; i++)
        if (table->rows[i].fallback)
            status = settings_set(table, settings, table->rows[i].name, table->rows[i].fallback,
                                  err);
    while (!status) {
        while (is_blank(*w.at))
            w.at++;
        if (!*w.at)
            break;
        status = read_name(&w, err);
        if (!status)
            status = read_value(&w, err);
        if (!status)
            status = settings_set(table, settings, w.name, w.value, err);
    }
    return status;
}

/* ---- psd_open() ---- */

static int read_url(struct options *o, const char *url, struct err *err)
{
    static const char scheme[] = "psd://";
    const char *servers = url + sizeof scheme - 1, *slash;
    size_t n;

    if (strncmp(url, "etcd://", 7) == 0)
        return err_set(err, -EINVAL,
                       "\"%.80s\": libpsd does not ask etcd; give it psd://HOST:PORT,..., as "
                       "psctl cluster --coord URL shows them",
                       url);
    if (strncmp(url, scheme, sizeof scheme - 1) != 0)
        return err_set(err, -EINVAL, "\"%.80s\" is no psd://HOST:PORT[,HOST:PORT...]/JOB", url);
    slash = strchr(servers, '/');
    n = slash ? (size_t)(slash - servers) : strlen(servers);
    if (n == 0 || n >= sizeof o->servers)
        return err_set(err, -EINVAL, "\"%.80s\" names %s", url,
                       n ? "too many servers" : "no server");
    memcpy(o->servers, servers, n);
    if (!slash)
        return 0;
    if (strlen(slash + 1) >= sizeof o->job)
        return err_set(err, -EINVAL, "the job's name in \"%.80s...\" is longer than %zu bytes",
                       url, sizeof o->job - 1);
    strcpy(o->job, slash + 1);
    return 0;
}

/* Printable, as it stands in tables' names; and without the character that ends it there. */
static int check_job(const struct options *o, struct err *err)
{
    for (const char *at = o->job; *at; at++)
        if (*at <= ' ' || *at > '~' || *at == '/')
            return err_set(err, -EINVAL,
                           "the job's name has byte 0x%02x: printable ASCII without blanks and "
                           "\"/\" is expected",
                           (unsigned char)*at);
    if (!o->job[0] && !o->reader)
        return err_set(err, -EINVAL,
                       "the URL names no job: psd://HOST:PORT/JOB; or say reader=yes");
    return 0;
}

/* "python3 host:4711" */
static void default_name(char dst[SETTINGS_TEXT_MAX])
{
    char host[128] = "?";

    (void)gethostname(host, sizeof host - 1);
    snprintf(dst, SETTINGS_TEXT_MAX, "%.40s %.60s:%ld", program_invocation_short_name, host,
             (long)getpid());
}

static int read_token(struct options *o, struct err *err)
{
    char token[TOKEN_FILE_MAX];
    int status;

    if (o->token[0] && o->token_file[0])
        return err_set(err, PS_ESETTING, "token and token-file exclude each other");
    if (strlen(o->token) >= TOKEN_FILE_MAX)
        return err_set(err, PS_ESETTING, "token: it is longer than %u bytes",
                       TOKEN_FILE_MAX - 1);
    status = o->token_file[0] ? token_file_read(&file_os, o->token_file, token, err) : 0;
    if (!status && o->token_file[0])
        strcpy(o->token, token);
    return status;
}

/* Without cache=, max-age= bounds nothing; without max-age=, nobody knows what cache= may hand out. */
static int check_cache(const struct options *o, struct err *err)
{
    if (!o->cache_bytes)
        return o->max_age_ms
                   ? err_set(err, PS_ESETTING,
                             "max-age: it is the bound of cache=BYTES, which is not given")
                   : 0;
    if (!o->reader)
        return err_set(
            err, PS_ESETTING,
            "cache: a worker trains on the rows that the servers have now; it is for "
            "reader=yes");
    if (o->cache_bytes < ROW_CACHE_BYTES_MIN || o->cache_bytes > CACHE_BYTES_MAX)
        return err_set(err, PS_ESETTING, "cache: %llu bytes; expected 1M to 1024G",
                       (unsigned long long)o->cache_bytes);
    if (!o->max_age_ms)
        return err_set(err, PS_ESETTING,
                       "cache: it needs max-age=TIME, how old a row may be, 1ms to 24h");
    if (o->max_age_ms > CACHE_AGE_MS_MAX)
        return err_set(err, PS_ESETTING, "max-age: %llu ms; expected 1ms to 24h",
                       (unsigned long long)o->max_age_ms);
    return 0;
}

int options_read(struct options *ret, const char *url, const char *words, struct err *err)
{
    int status;

    memset(ret, 0, sizeof *ret);
    status = read_url(ret, url, err);
    if (!status)
        status = read_words(&open_table, ret, words, err);
    if (!status)
        status = check_job(ret, err);
    if (!status && ret->rank >= ret->workers)
        status = err_set(err, PS_ESETTING, "rank: %u of %u workers; expected 0 to workers - 1",
                         ret->rank, ret->workers);
    if (!status)
        status = check_cache(ret, err);
    if (!status)
        status = read_token(ret, err);
    if (!status && !ret->name[0])
        default_name(ret->name);
    return status;
}

/* ---- psd_table() ---- */

static void set_own(float *dst, float word)
{
    if (word >= 0)
        *dst = word;
}

static struct optimizer_params read_params(const struct spec_words *w)
{
    struct optimizer_params p = table_spec_optim_defaults((enum table_spec_optim)w->optimizer);

    set_own(&p.learning_rate, w->lr);
    set_own(&p.epsilon, w->epsilon);
    set_own(&p.momentum, w->momentum);
    set_own(&p.beta1, w->beta1);
    set_own(&p.beta2, w->beta2);
    set_own(&p.weight_decay, w->weight_decay);
    set_own(&p.initial_accumulator, w->initial_accumulator);
    set_own(&p.lr_decay, w->lr_decay);
    set_own(&p.ftrl_beta, w->ftrl_beta);
    set_own(&p.ftrl_l1, w->ftrl_l1);
    set_own(&p.ftrl_l2, w->ftrl_l2);
    p.nesterov = w->nesterov;
    return p;
}

static struct table_spec_limits read_limits(const struct spec_words *w)
{
    return (struct table_spec_limits){ .admit_touches =
                                           w->admit_touches > 1 ? w->admit_touches : 0,
                                       .admit_clocks = w->admit_clocks,
                                       .idle_clocks = w->idle_clocks,
                                       .ttl_s = (uint32_t)(w->ttl_ms / 1000),
                                       .rare_touches = w->rare_touches,
                                       .rare_clocks = w->rare_clocks,
                                       .victims = (enum table_spec_victims)w->table_full,
                                       .max_bytes = w->table_max_bytes };
}

static uint32_t block_of(uint64_t n_floats)
{
    return n_floats < DENSE_BLOCK ? (uint32_t)n_floats : DENSE_BLOCK;
}

/* Of the part behind the job, so that a job under another name begins with the same weights. */
static uint64_t table_seed(const char *name, uint64_t seed, uint32_t dim)
{
    const char *slash = strchr(name, '/'), *own = slash ? slash + 1 : name;

    return hash_mix2(hash_mix2(seed, dim), XXH3_64bits(own, strlen(own)));
}

static void fill_spec(struct table_spec *spec, const struct spec_words *w)
{
    bool is_dense = w->floats > 0;

    spec->kind = is_dense ? TABLE_SPEC_DENSE : TABLE_SPEC_SPARSE;
    spec->dim = is_dense && !w->dim ? block_of(w->floats) : w->dim;
    spec->n_floats = w->floats;
    spec->seed = table_seed(spec->name, w->seed, spec->dim);
    spec->init = is_dense ? TABLE_SPEC_INIT_ZERO : TABLE_SPEC_INIT_UNIFORM;
    if (w->init)
        spec->init = (enum table_spec_init)(w->init - 1);
    spec->init_scale = w->init_scale >= 0                   ? w->init_scale
                       : spec->init == TABLE_SPEC_INIT_ZERO ? 0
                                                            : 0.05f;
    spec->optim = (enum table_spec_optim)w->optimizer;
    spec->params = read_params(w);
    spec->schedule = (struct lr_schedule){ .warmup_clocks = (uint32_t)w->warmup,
                                           .decay = (enum table_spec_decay)w->decay,
                                           .decay_start = w->decay_start,
                                           .decay_clocks = w->decay_clocks,
                                           .decay_rate = w->decay_rate,
                                           .decay_floor = w->decay_floor };
    spec->clip_norm = w->clip_norm;
    spec->row_decay = w->row_decay;
    spec->mode = (enum table_spec_mode)w->mode;
    spec->bound = spec->mode == TABLE_SPEC_MODE_SSP ? w->staleness : 0;
    spec->storage = (enum table_spec_storage)w->table_storage;
    spec->limits = read_limits(w);
}

int options_read_spec(struct table_spec *ret, const char *name, const char *words,
                      struct err *err)
{
    struct spec_words w = { .lr = -1,
                            .epsilon = -1,
                            .momentum = -1,
                            .beta1 = -1,
                            .beta2 = -1,
                            .weight_decay = -1,
                            .initial_accumulator = -1,
                            .lr_decay = -1,
                            .ftrl_beta = -1,
                            .ftrl_l1 = -1,
                            .ftrl_l2 = -1,
                            .init_scale = -1 };
    int status = read_words(&spec_table, &w, words, err);

    if (status)
        return status;
    memset(ret, 0, sizeof *ret);
    snprintf(ret->name, sizeof ret->name, "%s", name);
    if (!w.dim && !w.floats)
        return err_set(err, PS_ESPEC, "table %s: dim=N is missing, the floats of a row", name);
    fill_spec(ret, &w);
    return table_spec_check_new(ret, err);
}

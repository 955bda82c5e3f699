#include "tests/bench/psbench_handshake.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/address.h"
#include "proto/codec.h"
#include "worker/client/ps.h"
#include "worker/client/ps_admin.h"

#define ASK_MS 5000u

void psbench_handshake_hello(const struct psbench_settings *s, struct hello *ret)
{
    *ret = (struct hello){ .version_min = PROTO_VERSION_MIN,
                           .version_max = PROTO_VERSION_MAX,
                           .role = "worker",
                           .name = "psbench",
                           .frame_flags = FRAME_FLAGS_KNOWN };
    if (s->reader)
        memcpy(ret->role, "reader", sizeof "reader");
    memcpy(ret->token, s->token, strnlen(s->token, sizeof ret->token - 1));
}

void psbench_handshake_join(uint32_t rank, uint32_t n_ranks, uint64_t incarnation,
                            struct join *ret)
{
    *ret = (struct join){ .job = "psbench",
                          .rank = rank,
                          .n_workers = n_ranks,
                          .incarnation = incarnation,
                          .mode = TABLE_SPEC_MODE_ASYNC,
                          .name = "psbench" };
}

void psbench_handshake_table(const struct psbench_settings *s, struct table_request *ret)
{
    *ret = (struct table_request){ .spec = { .kind = TABLE_SPEC_SPARSE,
                                             .dim = s->dim,
                                             .seed = 1,
                                             .init = TABLE_SPEC_INIT_UNIFORM,
                                             .init_scale = 0.01f,
                                             .optim = (enum table_spec_optim)s->optimizer,
                                             .storage = (enum table_spec_storage)s->storage,
                                             .mode = TABLE_SPEC_MODE_JOB } };
    ret->spec.params = table_spec_optim_defaults(ret->spec.optim);
    ret->must_exist = s->reader;
    memcpy(ret->spec.name, s->table, sizeof ret->spec.name);
}

uint64_t psbench_handshake_unix_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void psbench_handshake_name_table(struct psbench_settings *s)
{
    int n = snprintf(s->table, sizeof s->table, "psbench/%u/%s/%s", s->dim,
                     table_spec_optim_name((enum table_spec_optim)s->optimizer),
                     table_spec_storage_name((enum table_spec_storage)s->storage));

    if (s->load == PSBENCH_GROW && n > 0)
        snprintf(s->table + n, sizeof s->table - (size_t)n, "/%" PRIu64,
                 psbench_handshake_unix_ms());
}

static bool is_here(const char *server)
{
    struct address address;
    uint32_t n;

    return !address_list(server, 1, &address, &n, NULL) &&
           (strncmp(address.host, "127.", 4) == 0 || strcmp(address.host, "::1") == 0 ||
            strcmp(address.host, "localhost") == 0);
}

static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

uint32_t psbench_handshake_find_pid(const struct psbench_settings *s)
{
    char *text = NULL;
    cJSON *json;
    uint32_t pid = 0;

    if (!is_here(s->server) || ps_admin_one(&(struct ps_admin_plan){ .token = s->token,
                                                                     .tls = s->tls,
                                                                     .command = "status",
                                                                     .argument = "",
                                                                     .timeout_ms = ASK_MS },
                                            s->server, &text, NULL))
        return 0;
    json = cJSON_Parse(text);
    if (number(json, "n_nodes") == 1)
        pid = (uint32_t)number(json, "pid");
    cJSON_Delete(json);
    free(text);
    return pid;
}

uint32_t psbench_handshake_k(const struct psbench_settings *s)
{
    if (s->codec != CODEC_TOPK)
        return 0;
    return s->dim >= 10 ? s->dim / 10 : 1;
}

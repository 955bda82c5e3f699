#include "server/cluster/etcd_auth.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/memory.h"
#include "common/token_file.h"
#include "server/cluster/etcd_json.h"

#define GRPC_PERMISSION_DENIED 7
#define GRPC_UNAUTHENTICATED 16

int etcd_auth_init(struct etcd_auth *a, const char *user, const char *password_file,
                   struct etcd_http *http, void (*on_done)(struct etcd_http_transfer *t),
                   struct err *err)
{
    *a = (struct etcd_auth){ .user = user ? user : "",
                             .password_file = password_file ? password_file : "",
                             .transfer = { .http = http, .on_done = on_done } };
    if ((a->user[0] != '\0') != (a->password_file[0] != '\0'))
        return err_set(err, PS_ESETTING,
                       "coord-user and coord-password-file: give both, or none");
    return 0;
}

void etcd_auth_deinit(struct etcd_auth *a)
{
    etcd_http_stop(&a->transfer);
    etcd_auth_drop(a);
}

bool etcd_auth_is_awaited(const struct etcd_auth *a)
{
    return a->user[0] && !a->token;
}

static int read_password(struct etcd_auth *a, char ret[static TOKEN_FILE_MAX])
{
    struct err err = { 0 };

    if (token_file_read(&file_os, a->password_file, ret, &err) == 0)
        return 0;
    err_set(&a->err, err.status, "coord-password-file%s",
            strchr(err.text, ':') ? strchr(err.text, ':') : "");
    return err.status;
}

void etcd_auth_ask(struct etcd_auth *a, const char *address, uint64_t now_ms,
                   uint64_t timeout_ms)
{
    char password[TOKEN_FILE_MAX], *body;

    if (a->transfer.easy || now_ms < a->retry_ms)
        return;
    a->retry_ms = now_ms + ETCD_AUTH_RETRY_MS;
    if (read_password(a, password))
        return;
    body = etcd_json_authenticate(a->user, password);
    if (etcd_http_start(&a->transfer, address, "/v3/auth/authenticate", body, timeout_ms))
        err_set(&a->err, -ENOMEM, "etcd was not asked: out of memory");
    memset(password, 0, sizeof password);
    free(body);
}

int etcd_auth_read(struct etcd_auth *a, uint64_t now_ms)
{
    const char *at = a->transfer.address;
    struct err said = { 0 };
    cJSON *root;

    a->err = (struct err){ 0 };
    root = etcd_http_read(&a->transfer, &a->err);
    if (root && etcd_json_error(root, &said))
        err_set(&a->err, -EACCES, "etcd at %s does not take user %.40s: %.80s", at, a->user,
                said.text);
    else if (root)
        a->token = etcd_json_read_token(root);
    if (!a->token && !a->err.status)
        err_set(&a->err, PS_EPROTO, "etcd at %s gives user %.40s no token", at, a->user);
    a->retry_ms = now_ms + ETCD_AUTH_RETRY_MS;
    cJSON_Delete(root);
    etcd_http_stop(&a->transfer);
    return a->err.status;
}

bool etcd_auth_is_refused(struct etcd_auth *a, int code, const char *text)
{
    if (code == GRPC_PERMISSION_DENIED)
        return true;
    if (code != GRPC_UNAUTHENTICATED && !strstr(text, "user name is empty") &&
        !strstr(text, "auth store is old"))
        return false;
    etcd_auth_drop(a);
    return true;
}

void etcd_auth_drop(struct etcd_auth *a)
{
    free(a->token);
    a->token = NULL;
}

const char *etcd_auth_hint(const struct etcd_auth *a, int code, const char *text)
{
    if (!a->user[0] && strstr(text, "user name is empty"))
        return ": give coord-user and coord-password-file";
    return code == ETCD_JSON_DENIED ? ": its user needs read and write for /psd/" : "";
}

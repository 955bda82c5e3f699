#include "server/cluster/etcd_json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void etcd_json_encode(const void *bytes, size_t n_bytes, char *dst)
{
    const uint8_t *b = bytes;

    for (size_t i = 0; i < n_bytes; i += 3) {
        const size_t n = n_bytes - i;
        const uint32_t v = (uint32_t)b[i] << 16 | (n > 1 ? (uint32_t)b[i + 1] << 8 : 0) |
                           (n > 2 ? b[i + 2] : 0);

        *dst++ = digits[v >> 18];
        *dst++ = digits[v >> 12 & 63];
        *dst++ = n > 1 ? digits[v >> 6 & 63] : '=';
        *dst++ = n > 2 ? digits[v & 63] : '=';
    }
    *dst = '\0';
}

static int digit_value(char c)
{
    const char *at = c ? strchr(digits, c) : NULL;

    return at ? (int)(at - digits) : -1;
}

char *etcd_json_decode(const char *text, size_t *ret_n_bytes)
{
    const size_t n = strlen(text);
    size_t pads = 0, used = 0;
    char *dst;

    if (n % 4 != 0)
        return NULL;
    while (pads < 2 && pads < n && text[n - 1 - pads] == '=')
        pads++;
    dst = memory_try_alloc(n / 4 * 3 + 1);
    if (!dst)
        return NULL;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t v = 0;

        for (size_t j = 0; j < 4; j++) {
            const bool is_pad = i + j >= n - pads;
            const int value = is_pad ? 0 : digit_value(text[i + j]);

            if (value < 0) {
                free(dst);
                return NULL;
            }
            v = v << 6 | (uint32_t)value;
        }
        dst[used++] = (char)(v >> 16);
        dst[used++] = (char)(v >> 8 & 255);
        dst[used++] = (char)(v & 255);
    }
    used -= pads;
    dst[used] = '\0';
    *ret_n_bytes = used;
    return dst;
}

/* --- requests --- */

static void add_bytes(cJSON *object, const char *name, const char *bytes, size_t n_bytes)
{
    char *text = memory_alloc(4 * ((n_bytes + 2) / 3) + 1);

    etcd_json_encode(bytes, n_bytes, text);
    memory_need(cJSON_AddStringToObject(object, name, text));
    free(text);
}

static void add_i64(cJSON *object, const char *name, int64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%lld", (long long)value);
    memory_need(cJSON_AddStringToObject(object, name, text));
}

static void add_key(cJSON *object, const char *prefix, const char *key, bool is_prefix)
{
    char full[COORD_KEY_MAX];
    const int n = snprintf(full, sizeof full, "%s%s", prefix, key);

    add_bytes(object, "key", full, (size_t)n);
    if (is_prefix) { /* the first key behind all that begin so: no key of ours ends with the byte 255 */
        full[n - 1]++;
        add_bytes(object, "range_end", full, (size_t)n);
    }
}

static cJSON *new_object(void)
{
    return memory_need(cJSON_CreateObject());
}

static cJSON *add_object(cJSON *to, const char *name)
{
    return memory_need(cJSON_AddObjectToObject(to, name));
}

static cJSON *add_element(cJSON *list)
{
    cJSON *element = new_object();

    cJSON_AddItemToArray(list, element);
    return element;
}

static char *print(cJSON *root)
{
    char *text = memory_need(cJSON_PrintUnformatted(root));

    cJSON_Delete(root);
    return text;
}

char *etcd_json_get(const char *prefix, const char *key, bool is_prefix, int64_t above)
{
    cJSON *root = new_object();

    add_key(root, prefix, key, is_prefix);
    if (above) {
        add_i64(root, "min_mod_revision", above + 1);
        add_i64(root, "limit", 1);
        memory_need(cJSON_AddTrueToObject(root, "keys_only"));
    }
    return print(root);
}

static void add_compare(cJSON *list, const char *prefix, const struct coord_write *w)
{
    cJSON *compare = add_element(list);

    add_key(compare, prefix, w->key, false);
    memory_need(cJSON_AddStringToObject(compare, "target", "MOD"));
    memory_need(cJSON_AddStringToObject(compare, "result", "EQUAL"));
    add_i64(compare, "mod_revision", w->if_revision);
    if (!w->if_value)
        return;
    compare = add_element(list);
    add_key(compare, prefix, w->key, false);
    memory_need(cJSON_AddStringToObject(compare, "target", "VALUE"));
    memory_need(cJSON_AddStringToObject(compare, "result", "EQUAL"));
    add_bytes(compare, "value", w->if_value, strlen(w->if_value));
}

static void add_write(cJSON *list, const char *prefix, const struct coord_write *w)
{
    cJSON *request;

    if (w->change == COORD_CHECK)
        return;
    if (w->change == COORD_REMOVE) {
        add_key(add_object(add_element(list), "request_delete_range"), prefix, w->key, false);
        return;
    }
    request = add_object(add_element(list), "request_put");
    add_key(request, prefix, w->key, false);
    add_bytes(request, "value", w->value, strlen(w->value));
    if (w->lease)
        add_i64(request, "lease", w->lease);
}

char *etcd_json_put_if(const char *prefix, const struct coord_write *writes, uint32_t n)
{
    cJSON *root = new_object();
    cJSON *compare = memory_need(cJSON_AddArrayToObject(root, "compare"));
    cJSON *success = memory_need(cJSON_AddArrayToObject(root, "success"));
    cJSON *failure = memory_need(cJSON_AddArrayToObject(root, "failure"));

    for (uint32_t i = 0; i < n; i++) {
        add_compare(compare, prefix, &writes[i]);
        add_write(success, prefix, &writes[i]);
        add_key(add_object(add_element(failure), "request_range"), prefix, writes[i].key,
                false);
    }
    return print(root);
}

char *etcd_json_watch(const char *prefix, const char *below, int64_t from_revision)
{
    cJSON *root = new_object();
    cJSON *create = add_object(root, "create_request");

    add_key(create, prefix, below, true);
    add_i64(create, "start_revision", from_revision);
    return print(root);
}

char *etcd_json_grant(int64_t lease, uint32_t ttl_s)
{
    cJSON *root = new_object();

    add_i64(root, "ID", lease);
    add_i64(root, "TTL", ttl_s);
    return print(root);
}

char *etcd_json_lease(int64_t lease)
{
    cJSON *root = new_object();

    add_i64(root, "ID", lease);
    return print(root);
}

char *etcd_json_authenticate(const char *user, const char *password)
{
    cJSON *root = new_object();

    memory_need(cJSON_AddStringToObject(root, "name", user));
    memory_need(cJSON_AddStringToObject(root, "password", password));
    return print(root);
}

/* --- answers --- */

char *etcd_json_read_token(const cJSON *root)
{
    const cJSON *token = cJSON_GetObjectItemCaseSensitive(root, "token");
    const char *text = cJSON_IsString(token) ? token->valuestring : "";

    for (const char *at = text; *at; at++)
        if (*at <= ' ' || *at > '~')
            return NULL;
    return text[0] && strlen(text) < ETCD_JSON_TOKEN_MAX ? memory_need(strdup(text)) : NULL;
}

/* A number as a text, or, as other versions write small ones, as a number. Absent: 0. */
static int64_t read_i64(const cJSON *object, const char *name, int *status)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    char *end;
    long long n;

    if (!value)
        return 0;
    if (cJSON_IsNumber(value) && value->valuedouble >= -0x1p53 && value->valuedouble <= 0x1p53)
        return (int64_t)value->valuedouble;
    if (!cJSON_IsString(value) || !value->valuestring[0]) {
        *status = PS_EPROTO;
        return 0;
    }
    errno = 0;
    n = strtoll(value->valuestring, &end, 10);
    if (errno || *end)
        *status = PS_EPROTO;
    return n;
}

/* Of a field with base64; absent: "". NULL: *status says why. */
static char *read_text(const cJSON *object, const char *name, int *status)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    const char *text = value && cJSON_IsString(value) ? value->valuestring : "";
    size_t n_bytes;
    char *decoded = etcd_json_decode(text, &n_bytes);

    if (!decoded || (value && !cJSON_IsString(value)))
        *status = PS_EPROTO;
    return decoded;
}

/* One of {"key", "value", "mod_revision", "lease"}. */
static int add_item(const cJSON *kv, const char *prefix, bool is_removed,
                    struct etcd_json_answer *ret)
{
    struct coord_item *item = &ret->items[ret->n_items];
    const size_t skipped = strlen(prefix);
    int status = 0;

    if (!cJSON_IsObject(kv))
        return PS_EPROTO;
    item->key = read_text(kv, "key", &status);
    item->value = read_text(kv, "value", &status);
    item->mod_revision = read_i64(kv, "mod_revision", &status);
    item->lease = read_i64(kv, "lease", &status);
    ret->removed[ret->n_items++] = is_removed;
    if (!status && (item->mod_revision <= 0 || strncmp(item->key, prefix, skipped) != 0))
        status = PS_EPROTO;
    if (!status)
        memmove(item->key, item->key + skipped, strlen(item->key + skipped) + 1);
    return status;
}

static int reserve_items(struct etcd_json_answer *a, size_t n)
{
    a->items = memory_try_alloc((n + 1) * sizeof *a->items);
    a->removed = memory_try_alloc((n + 1) * sizeof *a->removed);
    return a->items && a->removed ? 0 : -ENOMEM;
}

/* It may have all 64 bits. 0: none is there. */
static uint64_t read_id(const cJSON *object, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);

    return cJSON_IsString(value) ? strtoull(value->valuestring, NULL, 10) : 0;
}

static int read_header(const cJSON *root, struct etcd_json_answer *ret)
{
    const cJSON *header = cJSON_GetObjectItemCaseSensitive(root, "header");
    int status = 0;

    if (!cJSON_IsObject(header))
        return PS_EPROTO;
    ret->result.revision = read_i64(header, "revision", &status);
    ret->result.store_id = read_id(header, "cluster_id");
    return status;
}

bool etcd_json_is_final(int code, bool is_revoke, const char *endpoint, struct err *err)
{
    const struct err why = *err;

    switch (code) {
    case ETCD_JSON_NOT_FOUND:
        if (is_revoke)
            *err = (struct err){ 0 };
        else
            err_set(err, -ENOENT, "etcd knows no such lease: it has ended");
        return true;
    case ETCD_JSON_INVALID:
    case ETCD_JSON_OUT_OF_RANGE:
        err_set(err, -EINVAL, "etcd at %s refuses the request: %.120s", endpoint, why.text);
        return true;
    default:
        return false;
    }
}

bool etcd_json_is_restored(const struct etcd_json_seen *seen, const struct coord_result *result,
                           struct err *err)
{
    if (seen->store_id && result->store_id && result->store_id != seen->store_id)
        err_set(err, PS_ECLUSTER,
                "etcd was restored or replaced: cluster %" PRIx64
                " answers in place of %" PRIx64,
                result->store_id, seen->store_id);
    else if (result->revision > 0 && result->revision < seen->revision)
        err_set(err, PS_ECLUSTER,
                "etcd was restored or replaced: its revision was %" PRId64 ", and is %" PRId64,
                seen->revision, result->revision);
    else
        return false;
    return true;
}

static void show_items(struct etcd_json_answer *a)
{
    a->result.items = a->items;
    a->result.n_items = a->n_items;
}

/* An array or nothing; how many elements it has. */
static int read_list(const cJSON *root, const char *name, const cJSON **ret, size_t *ret_n)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, name);

    if (list && !cJSON_IsArray(list))
        return PS_EPROTO;
    *ret = list;
    *ret_n = list ? (size_t)cJSON_GetArraySize(list) : 0;
    return 0;
}

int etcd_json_read_items(const cJSON *root, const char *prefix, struct etcd_json_answer *ret)
{
    const cJSON *kvs = NULL, *kv;
    size_t n = 0;
    int status = read_header(root, ret);

    if (!status)
        status = read_list(root, "kvs", &kvs, &n);
    if (!status)
        status = reserve_items(ret, n);
    if (status)
        return status;
    cJSON_ArrayForEach(kv, kvs)
    {
        status = add_item(kv, prefix, false, ret);
        if (status)
            return status;
    }
    show_items(ret);
    return 0;
}

/* One of "responses": {"response_range": {"kvs": [...]}} with at most one key. */
static int add_response(const cJSON *response, const char *prefix, struct etcd_json_answer *ret)
{
    const cJSON *range = cJSON_GetObjectItemCaseSensitive(response, "response_range");
    const cJSON *kvs = NULL;
    size_t n = 0;
    int status = range ? read_list(range, "kvs", &kvs, &n) : PS_EPROTO;

    if (status || n > 1)
        return PS_EPROTO;
    return n ? add_item(kvs->child, prefix, false, ret) : 0;
}

int etcd_json_read_put_if(const cJSON *root, const char *prefix, struct etcd_json_answer *ret)
{
    const cJSON *responses = NULL, *response;
    size_t n = 0;
    int status = read_header(root, ret);

    ret->result.is_made = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "succeeded"));
    if (!status)
        status = read_list(root, "responses", &responses, &n);
    if (!status && (n > COORD_TXN_MAX || (n == 0 && !ret->result.is_made)))
        status = PS_EPROTO;
    if (!status)
        status = reserve_items(ret, n);
    if (status || ret->result.is_made)
        return status;
    cJSON_ArrayForEach(response, responses)
    {
        status = add_response(response, prefix, ret);
        if (status)
            return status;
    }
    show_items(ret);
    return 0;
}

static int add_event(const cJSON *event, const char *prefix, struct etcd_json_answer *ret)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(event, "type");
    const cJSON *kv = cJSON_GetObjectItemCaseSensitive(event, "kv");
    const bool is_removed = cJSON_IsString(type) && strcmp(type->valuestring, "DELETE") == 0;

    if (type && !is_removed && !(cJSON_IsString(type) && strcmp(type->valuestring, "PUT") == 0))
        return PS_EPROTO;
    return kv ? add_item(kv, prefix, is_removed, ret) : PS_EPROTO;
}

int etcd_json_read_event(const cJSON *root, const char *prefix, struct etcd_json_answer *ret)
{
    const cJSON *result = cJSON_GetObjectItemCaseSensitive(root, "result"), *events = NULL;
    const cJSON *event, *reason;
    size_t n = 0;
    int status = result ? read_header(result, ret) : PS_EPROTO;

    if (!status)
        status = read_list(result, "events", &events, &n);
    if (!status)
        status = reserve_items(ret, n);
    if (status)
        return status;
    ret->is_created = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(result, "created"));
    ret->is_canceled = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(result, "canceled"));
    ret->compact_revision = read_i64(result, "compact_revision", &status);
    reason = cJSON_GetObjectItemCaseSensitive(result, "cancel_reason");
    if (cJSON_IsString(reason))
        snprintf(ret->reason, sizeof ret->reason, "%.95s", reason->valuestring);
    cJSON_ArrayForEach(event, events)
    {
        status = status ? status : add_event(event, prefix, ret);
        if (status)
            return status;
    }
    show_items(ret);
    return status;
}

/* {"ID", "TTL"}; of keepalive, within "result". Without a TTL: the lease has ended. */
int etcd_json_read_lease(const cJSON *root, struct etcd_json_answer *ret)
{
    const cJSON *result = cJSON_GetObjectItemCaseSensitive(root, "result");
    int64_t ttl_s;
    int status;

    if (!result)
        result = root;
    status = read_header(result, ret);
    ret->result.lease = read_i64(result, "ID", &status);
    ttl_s = read_i64(result, "TTL", &status);
    if (!status && (ttl_s < 0 || ttl_s > INT32_MAX))
        status = PS_EPROTO;
    ret->result.ttl_ms = (uint64_t)ttl_s * 1000;
    return status;
}

int64_t etcd_json_written_at(const struct etcd_json_answer *a, const struct coord_write *writes,
                             uint32_t n)
{
    int64_t revision = 0;

    for (uint32_t i = 0; i < n; i++) {
        const struct coord_write *w = &writes[i];
        const struct coord_item *found = NULL;

        if (w->change == COORD_CHECK)
            continue;
        for (uint32_t j = 0; j < a->n_items; j++)
            if (strcmp(a->items[j].key, w->key) == 0)
                found = &a->items[j];
        if ((found != NULL) != (w->change == COORD_PUT))
            return 0;
        if (!found)
            continue;
        if (strcmp(found->value, w->value) != 0 || found->lease != w->lease ||
            found->mod_revision <= w->if_revision)
            return 0;
        if (revision && revision != found->mod_revision)
            return 0; /* one transaction writes all of its keys at one revision */
        revision = found->mod_revision;
    }
    return revision ? revision : a->result.revision;
}

int etcd_json_error(const cJSON *root, struct err *err)
{
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(root, "error");
    const cJSON *text, *code;

    if (!error)
        return 0;
    if (cJSON_IsObject(error))
        root = error;
    text = cJSON_GetObjectItemCaseSensitive(root, "message");
    if (!text)
        text = error;
    code = cJSON_GetObjectItemCaseSensitive(root, cJSON_IsObject(error) ? "grpc_code" : "code");
    err_set(err, -EIO, "%.120s", cJSON_IsString(text) ? text->valuestring : "an error");
    return cJSON_IsNumber(code) && code->valueint > 0 ? code->valueint : 2; /* UNKNOWN */
}

void etcd_json_free(struct etcd_json_answer *a)
{
    for (uint32_t i = 0; i < a->n_items; i++) {
        free(a->items[i].key);
        free(a->items[i].value);
    }
    free(a->items);
    free(a->removed);
    *a = (struct etcd_json_answer){ 0 };
}

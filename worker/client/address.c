#include "worker/client/address.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int refuse(const char *text, size_t n_bytes, struct err *err)
{
    int shown = n_bytes > 100 ? 100 : (int)n_bytes;

    return err_set(err, -EINVAL,
                   "\"%.*s\" is no server address: expected HOST:PORT, as in 127.0.0.1:7070",
                   shown, text);
}

static bool is_port(const char *text)
{
    size_t n = strspn(text, "0123456789");
    long port = n > 0 && n <= 5 && !text[n] ? strtol(text, NULL, 10) : 0;

    return port > 0 && port < 65536;
}

int address_parse(const char *text, size_t n_bytes, struct address *ret, struct err *err)
{
    struct address a = { 0 };
    const char *colon = NULL, *host = text;
    size_t host_bytes, i;

    for (i = 0; i < n_bytes; i++)
        if (text[i] == ':')
            colon = text + i;
    if (!colon || n_bytes >= ADDRESS_TEXT_MAX)
        return refuse(text, n_bytes, err);
    host_bytes = (size_t)(colon - text);
    if (host_bytes > 2 && text[0] == '[' && colon[-1] == ']') {
        host++;
        host_bytes -= 2;
    } else if (memchr(text, ':', host_bytes)) {
        return refuse(text, n_bytes, err);
    }
    i = n_bytes - (size_t)(colon + 1 - text);
    if (!host_bytes || i >= sizeof a.port)
        return refuse(text, n_bytes, err);
    memcpy(a.host, host, host_bytes);
    memcpy(a.port, colon + 1, i);
    memcpy(a.text, text, n_bytes);
    if (!is_port(a.port) || strlen(a.host) != host_bytes || strpbrk(a.host, "[] \t"))
        return refuse(text, n_bytes, err);
    *ret = a;
    return 0;
}

int address_list(const char *text, uint32_t max, struct address *ret, uint32_t *ret_n,
                 struct err *err)
{
    const char *at = text;
    uint32_t n = 0;
    size_t len, left;
    int status;

    for (;; at += len + 1) {
        len = strcspn(at, ",");
        left = strspn(at, " \t");
        if (n == max)
            return err_set(err, -EINVAL, "more than %u server addresses", max);
        if (left > len)
            left = len;
        for (status = (int)len; status > (int)left && strchr(" \t", at[status - 1]);)
            status--;
        status = address_parse(at + left, (size_t)status - left, &ret[n], err);
        if (status)
            return status;
        n++;
        if (!at[len])
            break;
    }
    *ret_n = n;
    return 0;
}

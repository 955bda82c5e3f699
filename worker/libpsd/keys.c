/* Keys of tokens, and the different ones among many. No server is asked. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Hashing a token of a few bytes costs less than calling a library for it. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "worker/libpsd/handle.h"

uint64_t psd_seed(const char *column)
{
    const char *name = column ? column : "";

    return XXH3_64bits(name, strlen(name));
}

uint64_t psd_key(uint64_t seed, const void *token, size_t n)
{
    return XXH3_64bits_withSeed(token ? token : "", token ? n : 0, seed);
}

static int refuse(const char *sentence)
{
    struct err err;

    err_set(&err, -EINVAL, "%s", sentence);
    return handle_fail(&err);
}

int psd_keys(uint64_t seed, const void *bytes, const int64_t *offsets, size_t n,
             uint64_t *ret_keys)
{
    const char *at = bytes;

    if (n && (!offsets || !ret_keys || (!bytes && offsets[0] != offsets[n])))
        return refuse("psd_keys() has tokens, and an array is NULL");
    for (size_t i = 0; i < n; i++)
        if (offsets[i] < 0 || offsets[i + 1] < offsets[i])
            return refuse("psd_keys(): the offsets of tokens do not ascend");
    for (size_t i = 0; i < n; i++)
        ret_keys[i] =
            psd_key(seed, at ? at + offsets[i] : at, (size_t)(offsets[i + 1] - offsets[i]));
    return 0;
}

/* Backwards from `end`; returns where the text begins. */
static char *write_decimal(char *end, int64_t number)
{
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;

    do {
        *--end = (char)('0' + left % 10);
        left /= 10;
    } while (left);
    if (number < 0)
        *--end = '-';
    return end;
}

int psd_keys_int64(uint64_t seed, const int64_t *numbers, size_t n, uint64_t *ret_keys)
{
    char text[24], *const end = text + sizeof text;

    if (n && (!numbers || !ret_keys))
        return refuse("psd_keys_int64() has numbers, and an array is NULL");
    for (size_t i = 0; i < n; i++) {
        const char *at = write_decimal(end, numbers[i]);

        ret_keys[i] = psd_key(seed, at, (size_t)(end - at));
    }
    return 0;
}

/* ---- different keys ---- */

static int64_t find_unique(struct unique *u, const uint64_t *keys, size_t n, uint64_t *unique,
                           int64_t *inverse, struct err *err)
{
    size_t n_unique;

    if (n && (!keys || !unique))
        return err_set(err, -EINVAL, "psd_unique() has keys, and an array is NULL");
    if (unique_find(u, keys, n, unique, inverse, &n_unique))
        return err_set(err, -ENOMEM, "no memory to compare %zu keys", n);
    return (int64_t)n_unique;
}

static int64_t find_alone(const uint64_t *keys, size_t n, uint64_t *unique, int64_t *inverse,
                          struct err *err)
{
    struct unique own = { 0 };
    int64_t result = find_unique(&own, keys, n, unique, inverse, err);

    unique_deinit(&own);
    return result;
}

int64_t psd_unique(psd *c, const uint64_t *keys, size_t n, uint64_t *unique, int64_t *inverse)
{
    struct err err;
    int64_t result;

    if (!c) {
        result = find_alone(keys, n, unique, inverse, &err);
        if (result < 0)
            (void)handle_fail(&err);
        return result;
    }
    if (handle_enter(c, &err))
        return handle_fail(&err);
    if (atomic_exchange(&c->is_unique_used, true)) {
        result = find_alone(keys, n, unique, inverse, &err);
    } else {
        result = find_unique(&c->unique, keys, n, unique, inverse, &err);
        atomic_store(&c->is_unique_used, false);
    }
    return handle_leave_with(c, result, &err);
}

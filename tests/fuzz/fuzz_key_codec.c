/* Keys as differences: u16 n_keys | bytes. What is accepted is written back as the same bytes, and is
 * the same when it is read in pieces. */
#include <stdlib.h>
#include <string.h>

#include "common/status.h"
#include "proto/key_codec.h"
#include "tests/fuzz/harness.h"

static int read_in_pieces(const uint8_t *src, size_t n_bytes, uint32_t n_keys, uint64_t *keys)
{
    struct key_codec_reader r;
    int status = key_codec_reader_init(&r, src, n_bytes, n_keys);
    uint32_t n, i = 0;

    do {
        n = 1 + (n_keys + i) % 7;
        n = n < n_keys - i ? n : n_keys - i;
        if (!status)
            status = key_codec_reader_next(&r, n, keys + i);
        i += n;
    } while (!status && i < n_keys);
    return status;
}

static void check_back(const uint64_t *keys, uint32_t n_keys, const uint8_t *src,
                       size_t n_bytes)
{
    uint8_t *back = malloc((size_t)n_keys * KEY_CODEC_BYTES_MAX + 1);

    assert(back);
    for (uint32_t i = 1; i < n_keys; i++)
        assert(keys[i] > keys[i - 1]);
    assert(key_codec_encode(keys, n_keys, back) == n_bytes);
    assert(n_bytes == 0 || memcmp(back, src, n_bytes) == 0);
    free(back);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct harness_bytes in = { bytes, bytes + n_bytes };
    uint32_t n_keys = (uint32_t)harness_number(&in, 2);
    uint64_t *keys = malloc(n_keys * sizeof *keys), *again = malloc(n_keys * sizeof *keys);
    size_t n;
    uint8_t *src = harness_take(&in, SIZE_MAX, &n);
    int status = key_codec_decode(src, n, n_keys, keys);

    assert(status == 0 || status == PS_EORDER || status == PS_ECOUNT);
    assert(read_in_pieces(src, n, n_keys, again) == status);
    if (!status) {
        assert(n_keys == 0 || memcmp(keys, again, n_keys * sizeof *keys) == 0);
        check_back(keys, n_keys, src, n);
    }
    free(src);
    free(keys);
    free(again);
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    const uint32_t n_keys[] = { 0, 1, 2, 10, 100, 300 };
    uint8_t bytes[300 * KEY_CODEC_BYTES_MAX];
    uint64_t keys[300], key = i;

    if (i >= COUNT_OF(n_keys))
        return false;
    for (uint32_t j = 0; j < n_keys[i];
         j++, key += 1 + (UINT64_C(1) << (j % (11 * i + 1) % 55)))
        keys[j] = key;
    harness_put_number(out, n_keys[i], 2);
    harness_put(out, bytes, key_codec_encode(keys, n_keys[i], bytes));
    return true;
}

#include "tests/fuzz/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

uint64_t harness_number(struct harness_bytes *in, unsigned n_bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < n_bytes && in->at < in->end; i++)
        value |= (uint64_t)*in->at++ << 8 * i;
    return value;
}

uint8_t *harness_take(struct harness_bytes *in, size_t n_bytes, size_t *ret_n_bytes)
{
    size_t n = n_bytes < harness_left(in) ? n_bytes : harness_left(in);
    uint8_t *copy = malloc(n);

    assert(copy || !n);
    if (n)
        memcpy(copy, in->at, n);
    in->at += n;
    *ret_n_bytes = n;
    return copy;
}

void harness_put(struct bytes *out, const void *bytes, size_t n_bytes)
{
    uint8_t *space = bytes_reserve(out, n_bytes + 1);

    assert(space);
    if (n_bytes)
        memcpy(space, bytes, n_bytes);
    bytes_commit(out, n_bytes);
}

void harness_put_number(struct bytes *out, uint64_t value, unsigned n_bytes)
{
    for (unsigned i = 0; i < n_bytes; i++)
        harness_put(out, &(uint8_t){ (uint8_t)(value >> 8 * i) }, 1);
}

void harness_put_text(struct bytes *out, const char *text)
{
    harness_put(out, text, strlen(text));
}

void harness_digest(uint64_t *digest, const void *bytes, size_t n_bytes)
{
    *digest = XXH3_64bits_withSeed(bytes, n_bytes, *digest + n_bytes);
}

static void write_seed(const char *dir, uint32_t i, const struct bytes *seed)
{
    char path[1024];
    FILE *file;

    snprintf(path, sizeof path, "%s/seed-%03u", dir, i);
    file = fopen(path, "w");
    if (!file || fwrite(bytes_front(seed), 1, bytes_len(seed), file) != bytes_len(seed) ||
        fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

/* --seeds DIR: writes the seeds, and that was all. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct bytes seed = { 0 };

    if (*argc != 3 || strcmp((*argv)[1], "--seeds") != 0)
        return 0;
    (void)!mkdir((*argv)[2], 0777);
    for (uint32_t i = 0; harness_seed(i, &seed); i++) {
        write_seed((*argv)[2], i, &seed);
        bytes_consume(&seed, bytes_len(&seed));
    }
    bytes_deinit(&seed);
    exit(0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    harness_one(bytes, n_bytes);
    return 0;
}

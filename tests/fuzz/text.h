/* Bytes as a file that has a path, for what opens files by name. In memory. */
#ifndef TESTS_FUZZ_TEXT_H
#define TESTS_FUZZ_TEXT_H

#include "tests/fuzz/harness.h"

#define TEXT_PATH_MAX 64u

struct text {
    int fd;
    char path[TEXT_PATH_MAX];
};

void text_new(struct text *t, const void *bytes, size_t n_bytes);
void text_free(struct text *t);

#endif

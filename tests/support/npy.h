/*
 * Reads the golden vectors (build/golden/CASE/NAME.npy and manifest.txt) and holds results to
 * them.
 *
 * .npy version 1.0, C order, '<f4' or '<i8' only, on a little-endian machine. The folder is the
 * environment's PS_GOLDEN, else build/golden. Where nobody has unpacked them the running cmocka test is
 * skipped with a sentence, but not in CI; whatever else is missing or malformed fails it.
 *
 *     struct npy x = npy_load("codec_int8", "x");        x.f, x.n, x.dims[0..x.n_dims)
 *     double rows = npy_param("codec_int8", "rows");
 *     npy_check("codec_int8", "scale", got, 0, -1);      the whole array
 *     npy_check("opt_adam_dense", "p", got, 800, 400);   elements [800, 1200)
 *     npy_free(&x);
 */
#ifndef TESTS_SUPPORT_NPY_H
#define TESTS_SUPPORT_NPY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define NPY_DIMS_MAX 4

struct npy {
    char type; /* 'f' float32, 'i' int64 */
    int n_dims;
    int64_t dims[NPY_DIMS_MAX], n; /* shape; number of elements */
    union {
        float *f;
        int64_t *i;
        void *bytes;
    }; /* owned */
};

void npy_free(struct npy *a);

/* The whole array; npy_free() it. */
struct npy npy_load(const char *case_name, const char *name);

bool npy_has(const char *case_name, const char *kind, const char *name);

/* A "param" that is a word. */
void npy_param_text(const char *case_name, const char *name, char *out, size_t cap);

double npy_param(const char *case_name, const char *name);

/* A "list" of numbers: fills values[0..cap), returns how many there are
 * (more than cap fails). */
size_t npy_list(const char *case_name, const char *name, double *values, size_t cap);

/* Holds got[0..n) to elements [off, off + n) of an expected array by the manifest's tolerance
 * (n < 0: all that are left). `got` is float or int64_t, as the array is. Returns the largest
 * share of the tolerance used. */
double npy_check(const char *case_name, const char *name, const void *got, int64_t off,
                 int64_t n);

#endif

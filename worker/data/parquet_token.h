/*
 * A value of a Parquet file as text would have it: what is hashed, and what a sentence shows.
 *
 *     integers     -12
 *     reals        the shortest text that is the same number again, "1.0", "0.1", "1e-05", "1e+16": Python's repr() and
 *                  DuckDB's text; of a float as many digits as a float needs
 *     text         its bytes
 */
#ifndef WORKER_DATA_PARQUET_TOKEN_H
#define WORKER_DATA_PARQUET_TOKEN_H

#include "worker/data/parquet_decoder.h"

#define PARQUET_TOKEN_BYTES 40u

/* Of value i: in `space`, or where the value is. */
struct line_parser_span parquet_token_of(enum parquet_type type, const struct parquet_values *v,
                                         uint32_t i, char space[PARQUET_TOKEN_BYTES]);

/* Value i, which is no text. */
double parquet_token_number(enum parquet_type type, const struct parquet_values *v, uint32_t i);

/* A real number, NUL-terminated; returns the length. */
size_t parquet_token_real(double x, bool is_float, char to[PARQUET_TOKEN_BYTES]);

#endif

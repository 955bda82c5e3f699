#include "worker/data/synth.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "common/hash.h"
#include "common/memory.h"

#define ZSTD_LEVEL 3
#define PILOT_ROWS 4096u /* rows that the bias is fitted on */
#define SPREAD 1.5       /* of the logits */
#define LOG_NUMERIC_MEAN 1.7
#define MISSING_NUMERIC 0.1
#define MISSING_TOKEN 0.02
#define FIELD_TEXT_MAX 24u /* bytes of a field, with what stands before it */

/* What a random number is for, so that no two uses share one. */
enum purpose { OF_ROW, OF_PILOT_ROW, OF_NUMERIC_WEIGHT, OF_TOKEN_WEIGHT, OF_TOKEN_TEXT };

struct synth {
    const struct synth_options *options;
    double weight_spread; /* of one column's part of the logit */
    double bias;
    char *line; /* owned, space for the longest */
};

/* A stream of random numbers: number i of stream `base`. */
struct stream {
    uint64_t base, i;
};

/* In (0, 1), never either end. */
static double unit(uint64_t h)
{
    return ((double)(h >> 11) + 0.5) * 0x1p-53;
}

static double next_unit(struct stream *s)
{
    return unit(hash_mix2(s->base, s->i++));
}

/* Box and Muller 1958. */
static double normal(double u1, double u2)
{
    return sqrt(-2 * log(u1)) * cos(2 * 3.14159265358979323846 * u2);
}

static uint64_t hash_of(const struct synth *s, enum purpose purpose, uint64_t column,
                        uint64_t x)
{
    return hash_mix2(hash_mix2(hash_mix2(s->options->seed, purpose), column), x);
}

static double weight(const struct synth *s, enum purpose purpose, uint64_t column, uint64_t x)
{
    uint64_t h = hash_of(s, purpose, column, x);

    return s->weight_spread * normal(unit(hash_mix(h)), unit(hash_mix(h + 1)));
}

/* Token numbers by inversion of the density x^-a on [1, n + 1): about Zipf's law, and no table
 * of n entries. */
static uint64_t draw_token(const struct synth_options *o, double u)
{
    double n = (double)o->cardinality, a = 1 - o->zipf;
    double x = fabs(a) < 1e-9 ? exp(u * log(n + 1)) : pow(u * (pow(n + 1, a) - 1) + 1, 1 / a);

    return x >= n ? o->cardinality : x < 1 ? 1 : (uint64_t)x;
}

/* Appends the columns of a row to `to`, which moves; returns their part of the logit. */
static double add_columns(const struct synth *s, struct stream *random, char **to)
{
    const struct synth_options *o = s->options;
    double logit = 0;

    for (uint32_t j = 0; j < o->n_numeric; j++) {
        double missing = next_unit(random), u1 = next_unit(random), u2 = next_unit(random);
        double x = floor(exp(1.5 + 1.3 * normal(u1, u2)));

        *(*to)++ = '\t';
        if (missing < MISSING_NUMERIC)
            continue;
        *to += sprintf(*to, "%" PRIu64, (uint64_t)x);
        logit += weight(s, OF_NUMERIC_WEIGHT, j, 0) * (log1p(x) - LOG_NUMERIC_MEAN);
    }
    for (uint32_t j = 0; j < o->n_categorical; j++) {
        double missing = next_unit(random);
        uint64_t token = draw_token(o, next_unit(random));

        *(*to)++ = '\t';
        if (missing < MISSING_TOKEN)
            continue;
        *to += sprintf(*to, "%08x", (unsigned)(hash_of(s, OF_TOKEN_TEXT, j, token) >> 32));
        logit += weight(s, OF_TOKEN_WEIGHT, j, token);
    }
    return logit;
}

static double sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

/* The bias with which the pilot rows have the wanted mean, by bisection: the mean grows with
 * it. */
static int fit_bias(struct synth *s, struct err *err)
{
    double *logits = memory_try_alloc(PILOT_ROWS * sizeof *logits), low = -50, high = 50;

    if (!logits)
        return err_set(err, -ENOMEM, "no memory to make up data");
    for (uint32_t i = 0; i < PILOT_ROWS; i++) {
        struct stream random = { .base = hash_of(s, OF_PILOT_ROW, 0, i) };
        char *to = s->line;

        logits[i] = add_columns(s, &random, &to);
    }
    for (int step = 0; step < 60; step++) {
        double sum = 0;

        s->bias = (low + high) / 2;
        for (uint32_t i = 0; i < PILOT_ROWS; i++)
            sum += sigmoid(logits[i] + s->bias);
        if (sum < s->options->positive_rate * PILOT_ROWS)
            low = s->bias;
        else
            high = s->bias;
    }
    free(logits);
    return 0;
}

/* --- the file --- */

/* Where text goes: a file, plain or packed with zstd as its name ends, or stdout ("-"). The
 * first failure is kept; a file that could not be finished is removed. */
struct sink {
    const char *path; /* owned, behind the struct */
    FILE *file;       /* owned, unless it is stdout */
    ZSTD_CCtx *zstd;  /* owned; NULL: plain */
    size_t packed_bytes;
    void *packed; /* owned; packed text on its way to the file */
};

static int write_failed(const struct sink *s, struct err *err)
{
    int status = errno ? -errno : -EIO;

    return err_set(err, status, "%s: cannot write: %s", s->path, strerror(-status));
}

static int start_packing(struct sink *s, struct err *err)
{
    size_t len = strlen(s->path);

    if (len < 4 || strcmp(s->path + len - 4, ".zst") != 0)
        return 0;
    s->packed_bytes = ZSTD_CStreamOutSize();
    s->packed = memory_try_alloc(s->packed_bytes);
    s->zstd = ZSTD_createCCtx();
    if (!s->packed || !s->zstd)
        return err_set(err, -ENOMEM, "%s: no memory to pack it", s->path);
    ZSTD_CCtx_setParameter(s->zstd, ZSTD_c_compressionLevel, ZSTD_LEVEL);
    ZSTD_CCtx_setParameter(s->zstd, ZSTD_c_checksumFlag, 1);
    return 0;
}

/* Packs what is in `in`; with ZSTD_e_end also finishes the frame. */
static int pack(struct sink *s, ZSTD_inBuffer *in, ZSTD_EndDirective directive, struct err *err)
{
    size_t left;

    do {
        ZSTD_outBuffer out = { .dst = s->packed, .size = s->packed_bytes };

        left = ZSTD_compressStream2(s->zstd, &out, in, directive);
        if (ZSTD_isError(left))
            return err_set(err, -ENOMEM, "%s: cannot pack: %s", s->path,
                           ZSTD_getErrorName(left));
        errno = 0;
        if (fwrite(s->packed, 1, out.pos, s->file) != out.pos)
            return write_failed(s, err);
    } while (directive == ZSTD_e_end ? left != 0 : in->pos < in->size);
    return 0;
}

static int sink_write(struct sink *s, const void *bytes, size_t n_bytes, struct err *err)
{
    ZSTD_inBuffer in = { .src = bytes, .size = n_bytes };

    if (s->zstd)
        return pack(s, &in, ZSTD_e_continue, err);
    errno = 0;
    return fwrite(bytes, 1, n_bytes, s->file) == n_bytes ? 0 : write_failed(s, err);
}

/* A file of ours that is not finished is of no use; a device or a pipe is not ours to
 * remove. */
static void remove_file(const struct sink *s)
{
    struct stat st;

    if (lstat(s->path, &st) == 0 && S_ISREG(st.st_mode))
        unlink(s->path);
}

/* Writes what is left and frees the sink in any case; `status` is how the writing went so far,
 * and is returned if it was a failure. */
static int sink_close(struct sink *s, int status, struct err *err)
{
    ZSTD_inBuffer nothing = { 0 };

    if (!status && s->zstd)
        status = pack(s, &nothing, ZSTD_e_end, err);
    errno = 0;
    if (s->file && fflush(s->file) != 0 && !status)
        status = write_failed(s, err);
    if (s->file && s->file != stdout) {
        if (fclose(s->file) != 0 && !status)
            status = write_failed(s, err);
        if (status)
            remove_file(s);
    }
    ZSTD_freeCCtx(s->zstd);
    free(s->packed);
    free(s);
    return status;
}

static int sink_open(const char *path, struct sink **ret, struct err *err)
{
    size_t path_bytes = strlen(path) + 1;
    struct sink *s = memory_try_alloc(sizeof *s + path_bytes);
    int status;

    if (!s)
        return err_set(err, -ENOMEM, "%s: no memory to write it", path);
    s->path = memcpy(s + 1, path, path_bytes);
    s->file = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");
    status = s->file ? start_packing(s, err) : write_failed(s, err);
    if (status)
        return sink_close(s, status, err);
    *ret = s;
    return 0;
}

/* --- rows --- */

static int write_row(const struct synth *s, uint64_t row, struct sink *sink, struct err *err)
{
    const struct synth_options *o = s->options;
    struct stream random = { .base = hash_of(s, OF_ROW, 0, row) };
    double probability;
    char *to = s->line + 1;
    int label;

    probability = sigmoid(s->bias + add_columns(s, &random, &to));
    label = next_unit(&random) < probability;
    s->line[0] = label ? '1' : '0';
    *to++ = '\n';
    if (o->on_row)
        o->on_row(o->arg, probability, label);
    return sink_write(sink, s->line, (size_t)(to - s->line), err);
}

static int check_options(const struct synth_options *o, struct err *err)
{
    if (o->n_numeric > SYNTH_COLUMNS_MAX || o->n_categorical > SYNTH_COLUMNS_MAX ||
        o->n_numeric + o->n_categorical == 0)
        return err_set(err, PS_ESETTING,
                       "%u numeric and %u categorical columns: 1 to %u of a kind expected",
                       o->n_numeric, o->n_categorical, SYNTH_COLUMNS_MAX);
    if (o->cardinality == 0)
        return err_set(err, PS_ESETTING, "cardinality: 0, at least 1 expected");
    if (!(o->zipf >= 0 && o->zipf <= 10))
        return err_set(err, PS_ESETTING, "zipf: %g, 0 to 10 expected", o->zipf);
    if (!(o->positive_rate > 0 && o->positive_rate < 1))
        return err_set(err, PS_ESETTING, "positive-rate: %g, between 0 and 1 expected",
                       o->positive_rate);
    return 0;
}

static int init(struct synth *s, const struct synth_options *o, struct err *err)
{
    uint32_t n = o->n_numeric + o->n_categorical;

    *s = (struct synth){ .options = o, .weight_spread = SPREAD / sqrt((double)n) };
    s->line = memory_try_alloc((n + 1) * FIELD_TEXT_MAX);
    return s->line ? fit_bias(s, err) : err_set(err, -ENOMEM, "no memory to make up data");
}

int synth_write(const struct synth_options *options, const char *path, struct err *err)
{
    struct sink *sink = NULL;
    struct synth s;
    int status = check_options(options, err);

    if (status)
        return status;
    status = init(&s, options, err);
    if (!status)
        status = sink_open(path, &sink, err);
    if (!status) {
        for (uint64_t i = 0; i < options->rows && !status; i++)
            status = write_row(&s, options->first_row + i, sink, err);
        status = sink_close(sink, status, err);
    }
    free(s.line);
    return status;
}

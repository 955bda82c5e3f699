#include "worker/model/device_push_encode.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "proto/codec_catalog.h"

_Static_assert(DLRM_NONE == DEVICE_NONE, "places go to the op as they come");
_Static_assert(sizeof(struct device_encode) == 4 * sizeof(uint32_t) + 6 * sizeof(void *),
               "without gaps: memcmp() tells whether two are the same");

#define KEY (UINT64_C(1) << 62) /* keys of other steps do not reach it */

void device_push_encode_init(struct device_push_encode *f, const struct device_ops *ops,
                             struct compute *c, const struct dlrm_config *config,
                             const struct dlrm_tensor *tensors, uint32_t n_tensors)
{
    f->ops = ops;
    f->c = c;
    f->n = DLRM_DENSE + n_tensors;
    f->at[DLRM_ROWS].width = config->dim;
    f->at[DLRM_WIDE].width = config->wide;
    for (uint32_t i = 0; i < n_tensors; i++)
        f->at[DLRM_DENSE + i] = (struct device_push_encode_residual){
            .width = tensors[i].block,
            .at = tensors[i].at,
        };
}

void device_push_encode_set_width(struct device_push_encode *f, uint32_t gradient,
                                  uint32_t width)
{
    struct device_push_encode_residual *at = &f->at[gradient];

    assert(gradient < f->n && (at->width == width || !at->residual));
    at->width = width;
}

/* ---- memory ---- */

static size_t row_bytes(const struct device_push_encode_residual *gradient,
                        const struct dlrm_encoded *t)
{
    return codec_by_id(t->codec)->row_bytes(gradient->width, t->k);
}

static bool is_floats(const struct dlrm_encoded *t)
{
    return t->codec == CODEC_FP32 && !t->from && !t->residual_at;
}

/* Of the rows' bytes, the wide ones', all tensors'. */
static uint32_t section_of(uint32_t gradient)
{
    return gradient < DLRM_DENSE ? gradient : DLRM_DENSE;
}

static void free_memory(const struct device_push_encode *f,
                        struct device_push_encode_buffers *r)
{
    if (r->memory)
        f->ops->memory_free(f->c, r->memory, r->n_bytes);
    r->memory = NULL;
}

static void free_buffers(const struct device_push_encode *f,
                         struct device_push_encode_buffers *r)
{
    free_memory(f, r);
    if (r->counts)
        f->ops->host_free(f->c, r->counts, f->n * sizeof *r->counts);
    free(r->encodes);
    for (uint32_t i = 0; i < DEVICE_PUSH_ENCODE_KEYS; i++)
        free(r->keys[i].encodes);
}

void device_push_encode_release_residuals(struct device_push_encode *f)
{
    for (uint32_t i = 0; i < f->n; i++) {
        struct device_push_encode_residual *at = &f->at[i];

        if (at->residual)
            f->ops->memory_free(f->c, at->residual,
                                (size_t)at->n_residual_rows * at->width * sizeof *at->residual);
        at->residual = NULL;
        at->n_residual_rows = 0;
    }
}

void device_push_encode_deinit(struct device_push_encode *f)
{
    for (uint32_t i = 0; i < DLRM_BUFFER_SETS; i++)
        free_buffers(f, &f->buffers[i]);
    device_push_encode_release_residuals(f);
    *f = (struct device_push_encode){ 0 };
}

/* Rows and keys are the data's: with space to spare. What a tensor has does not change. */
static uint32_t with_headroom(uint32_t gradient, uint32_t n)
{
    return gradient < DLRM_DENSE && n < UINT32_MAX / 2 ? n + n / 2 : n;
}

/* What a step needs at least, in the caps; true: there was all of it. */
static bool raise_caps(const struct device_push_encode *f, const struct dlrm_encoded *encoded,
                       struct device_push_encode_buffers *r)
{
    size_t n_bytes[DLRM_DENSE + 1] = { 0 }, n_roomy[DLRM_DENSE + 1] = { 0 };
    bool fits = r->memory != NULL;

    for (uint32_t i = 0; i < f->n; i++) {
        const struct dlrm_encoded *t = &encoded[i];

        if (!t->n)
            continue;
        if (t->n > r->rows_cap[i]) {
            r->rows_cap[i] = with_headroom(i, t->n);
            fits = false;
        }
        if (is_floats(t))
            continue;
        n_bytes[section_of(i)] += t->n * row_bytes(&f->at[i], t);
        n_roomy[section_of(i)] += r->rows_cap[i] * row_bytes(&f->at[i], t);
    }
    for (uint32_t p = 0; p <= DLRM_DENSE; p++)
        if (n_bytes[p] > r->bytes_cap[p]) {
            r->bytes_cap[p] = n_roomy[p];
            fits = false;
        }
    return fits;
}

static size_t words_bytes(const struct device_push_encode *f,
                          const struct device_push_encode_buffers *r)
{
    size_t n = f->n;

    for (uint32_t i = 0; i < f->n; i++)
        n += 2 * (size_t)r->rows_cap[i];
    return n * sizeof(uint32_t);
}

static int alloc_memory(const struct device_push_encode *f,
                        struct device_push_encode_buffers *r)
{
    r->n_bytes = words_bytes(f, r);
    for (uint32_t p = 0; p <= DLRM_DENSE; p++)
        r->n_bytes += r->bytes_cap[p];
    r->memory = f->ops->memory_alloc_zeroed(f->c, r->n_bytes); /* indices: see device_buffers */
    return r->memory ? 0 : -ENOMEM;
}

int device_push_encode_reserve(struct device_push_encode *f, uint32_t set,
                               const struct dlrm_encoded *encoded)
{
    struct device_push_encode_buffers *r = &f->buffers[set];

    if (!r->counts) {
        r->counts = f->ops->host_alloc(f->c, f->n * sizeof *r->counts);
        if (!r->counts)
            return -ENOMEM;
        r->encodes = memory_alloc(f->n * sizeof *r->encodes);
        for (uint32_t i = 0; i < DEVICE_PUSH_ENCODE_KEYS; i++)
            r->keys[i].encodes = memory_alloc(f->n * sizeof *r->encodes);
    }
    if (raise_caps(f, encoded, r))
        return 0;
    free_memory(f, r);
    return alloc_memory(f, r);
}

/* ---- residuals ---- */

int device_push_encode_reserve_residual(struct device_push_encode *f, uint32_t gradient,
                                        uint32_t n_rows)
{
    struct device_push_encode_residual *at = &f->at[gradient];

    assert(gradient < f->n && !at->residual);
    if (!n_rows)
        return 0;
    at->residual =
        f->ops->memory_alloc_zeroed(f->c, (size_t)n_rows * at->width * sizeof *at->residual);
    if (!at->residual)
        return -ENOMEM;
    at->n_residual_rows = n_rows;
    return 0;
}

/* Places from i on that follow one on the other: one copy. */
static uint32_t run_of(const uint32_t *at, uint32_t i, uint32_t n)
{
    uint32_t end = i + 1;

    while (end < n && at[end] == at[end - 1] + 1)
        end++;
    return end - i;
}

static float *residual_row(const struct device_push_encode_residual *gradient, uint32_t at,
                           uint32_t n)
{
    assert(at < gradient->n_residual_rows && n <= gradient->n_residual_rows - at);
    return gradient->residual + (size_t)at * gradient->width;
}

int device_push_encode_put_residual(struct device_push_encode *f, uint32_t gradient,
                                    const uint32_t *at, uint32_t n, const float *rows)
{
    const size_t width = f->at[gradient].width;

    assert(gradient < f->n);
    for (uint32_t i = 0, run; i < n; i += run) {
        run = run_of(at, i, n);
        f->ops->upload(f->c, 0, residual_row(&f->at[gradient], at[i], run), rows + i * width,
                       run * width * sizeof *rows);
    }
    (void)f->ops->begin(f->c, 0, 0);
    f->ops->end(f->c, 0);
    return f->ops->wait(f->c, 0);
}

int device_push_encode_get_residual(struct device_push_encode *f, uint32_t gradient,
                                    const uint32_t *at, uint32_t n, float *rows)
{
    const size_t width = f->at[gradient].width;

    assert(gradient < f->n);
    (void)f->ops->begin(f->c, 0, 0);
    f->ops->end(f->c, 0);
    for (uint32_t i = 0, run; i < n; i += run) {
        run = run_of(at, i, n);
        f->ops->download(f->c, 0, rows + i * width, residual_row(&f->at[gradient], at[i], run),
                         run * width * sizeof *rows);
    }
    return f->ops->wait(f->c, 0);
}

/* ---- a step ---- */

/* Of a gradient's rows: where they are in the buffer set's memory. `words` is behind those of the gradients before. */
struct cursor {
    uint32_t *words;
    uint8_t *bytes[DLRM_DENSE + 1];
};

static struct cursor start(const struct device_push_encode *f,
                           const struct device_push_encode_buffers *r)
{
    uint8_t *bytes = (uint8_t *)r->memory + words_bytes(f, r);
    struct cursor at = { (uint32_t *)r->memory + f->n, { 0 } };

    for (uint32_t p = 0; p <= DLRM_DENSE; p++) {
        at.bytes[p] = bytes;
        bytes += r->bytes_cap[p];
    }
    return at;
}

/* The tensors follow one on the other; rows and wide ones have a part each. */
static uint8_t *next_bytes(struct cursor *at, uint32_t gradient, size_t n_bytes)
{
    uint8_t *bytes = at->bytes[section_of(gradient)];

    at->bytes[section_of(gradient)] += n_bytes;
    return bytes;
}

/* Row i's place is i: of tensors that is the rule, and the op knows it without being told. */
static bool is_plain(uint32_t gradient, const uint32_t *places, uint32_t n)
{
    uint32_t i = 0;

    while (gradient >= DLRM_DENSE && i < n && places[i] == i)
        i++;
    return gradient >= DLRM_DENSE && i == n;
}

/* The device's copy of n places in space for cap; NULL: the op needs none. */
static const uint32_t *put_places(const struct device_push_encode *f, uint32_t set,
                                  uint32_t gradient, const uint32_t *places, uint32_t n,
                                  struct cursor *at)
{
    uint32_t *device = at->words;

    at->words += f->buffers[set].rows_cap[gradient];
    if (!places || is_plain(gradient, places, n))
        return NULL;
    if (n)
        f->ops->upload(f->c, set, device, places, n * sizeof *places);
    return device;
}

static const float *gradients(const struct device_push_encode *f, uint32_t gradient,
                              const struct dlrm_io *io)
{
    return gradient == DLRM_ROWS   ? io->row_grads
           : gradient == DLRM_WIDE ? io->wide_grads
                                   : io->grads + f->at[gradient].at;
}

static struct device_encode encode_of(struct device_push_encode *f, uint32_t set,
                                      uint32_t gradient, const struct dlrm_encoded *t,
                                      const struct dlrm_io *io, struct cursor *at)
{
    const struct device_push_encode_buffers *r = &f->buffers[set];
    const uint32_t *from = put_places(f, set, gradient, t->from, t->n, at);
    const uint32_t *residual_at = put_places(f, set, gradient, t->residual_at, t->n, at);

    assert(!t->n || !t->residual_at || f->at[gradient].residual);
    return (struct device_encode){
        .codec = t->codec,
        .dim = f->at[gradient].width,
        .k = t->k,
        .n_max = r->rows_cap[gradient],
        .n = (const uint32_t *)r->memory + gradient,
        .rows = gradients(f, gradient, io),
        .from = from,
        .residual = t->residual_at ? f->at[gradient].residual : NULL,
        .residual_at = residual_at,
        .bytes = next_bytes(at, gradient, t->n ? t->n * row_bytes(&f->at[gradient], t) : 0),
    };
}

/* The key of a step with these arguments: a new one for those that were not seen of late. */
static uint64_t key_of(struct device_push_encode *f, struct device_push_encode_buffers *r,
                       const struct dlrm_io *io)
{
    const size_t n_bytes = io->n_encodes * sizeof *r->encodes;
    struct device_push_encode_key *k;

    if (!io->key)
        return 0;
    for (uint32_t i = 0; i < DEVICE_PUSH_ENCODE_KEYS; i++) {
        k = &r->keys[i];
        if (k->step == io->key && k->n == io->n_encodes &&
            memcmp(k->encodes, r->encodes, n_bytes) == 0)
            return k->key;
    }
    k = &r->keys[r->n_keys++ % DEVICE_PUSH_ENCODE_KEYS];
    k->step = io->key;
    k->n = io->n_encodes;
    k->key = KEY | ++f->n_keys;
    memcpy(k->encodes, r->encodes, n_bytes);
    return k->key;
}

/* Says where the gradient's bytes will be, and how they get there. */
static void add_gradient(struct device_push_encode *f, uint32_t set, uint32_t gradient,
                         const struct dlrm_encoded *t, struct dlrm_io *io, struct cursor *at)
{
    struct device_push_encode_buffers *r = &f->buffers[set];
    struct device_encode *e = &r->encodes[io->n_encodes];

    assert(f->at[gradient].width || !t->n);
    r->counts[gradient] = t->n;
    r->bytes[gradient] = NULL;
    if (!f->at[gradient].width)
        return;
    if (is_floats(t)) {
        r->bytes[gradient] = (const uint8_t *)gradients(f, gradient, io);
        at->words += 2 * (size_t)r->rows_cap[gradient];
        return;
    }
    *e = encode_of(f, set, gradient, t, io, at);
    r->bytes[gradient] = e->bytes;
    io->n_encodes++;
}

void device_push_encode_in(struct device_push_encode *f, uint32_t set,
                           const struct dlrm_encoded *encoded, struct dlrm_io *io)
{
    struct device_push_encode_buffers *r = &f->buffers[set];
    struct cursor at = start(f, r);

    for (uint32_t i = 0; i < f->n; i++)
        add_gradient(f, set, i, &encoded[i], io, &at);
    f->ops->upload(f->c, set, r->memory, r->counts, f->n * sizeof *r->counts);
    io->encodes = r->encodes;
    io->key = key_of(f, r, io);
}

void device_push_encode_out(struct device_push_encode *f, uint32_t set,
                            const struct dlrm_encoded *encoded)
{
    const uint8_t *const *bytes = f->buffers[set].bytes, *device = NULL;
    uint8_t *host = NULL;
    size_t n = 0;

    for (uint32_t i = 0; i < f->n; i++) {
        const size_t more = encoded[i].n ? encoded[i].n * row_bytes(&f->at[i], &encoded[i]) : 0;

        if (more && n && encoded[i].bytes == host + n && bytes[i] == device + n) {
            n += more;
        } else if (more) {
            if (n)
                f->ops->download(f->c, set, host, device, n);
            host = encoded[i].bytes;
            device = bytes[i];
            n = more;
        }
    }
    if (n)
        f->ops->download(f->c, set, host, device, n);
}

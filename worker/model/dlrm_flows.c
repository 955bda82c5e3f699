#include "worker/model/dlrm_flows.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "proto/codec_catalog.h"

_Static_assert(DLRM_NONE == COMPUTE_NONE, "places go to the op as they come");
_Static_assert(sizeof(struct compute_encode) == 4 * sizeof(uint32_t) + 6 * sizeof(void *),
               "without gaps: memcmp() tells whether two are the same");

#define KEY (UINT64_C(1) << 62) /* keys of other steps do not reach it */

void dlrm_flows_init(struct dlrm_flows *f, const struct compute_ops *ops, struct compute *c,
                     const struct dlrm_config *config, const struct dlrm_tensor *tensors,
                     uint32_t n_tensors)
{
    f->ops = ops;
    f->c = c;
    f->n = DLRM_DENSE + n_tensors;
    f->at[DLRM_ROWS].width = config->dim;
    f->at[DLRM_WIDE].width = config->wide;
    for (uint32_t i = 0; i < n_tensors; i++)
        f->at[DLRM_DENSE + i] = (struct dlrm_flows_owed){
            .width =
                tensors[i].n_floats < SPEC_DENSE_BLOCK ? tensors[i].n_floats : SPEC_DENSE_BLOCK,
            .at = tensors[i].at,
        };
}

/* ---- memory ---- */

static size_t row_bytes(const struct dlrm_flows_owed *flow, const struct dlrm_travel *t)
{
    return codec_by_id(t->codec)->row_bytes(flow->width, t->k);
}

static bool is_floats(const struct dlrm_travel *t)
{
    return t->codec == CODEC_FP32 && !t->from && !t->owed_at;
}

/* Of the rows' bytes, the wide ones', all tensors'. */
static uint32_t part_of(uint32_t flow)
{
    return flow < DLRM_DENSE ? flow : DLRM_DENSE;
}

static void drop_memory(const struct dlrm_flows *f, struct dlrm_flows_room *r)
{
    if (r->memory)
        f->ops->memory_free(f->c, r->memory, r->n_bytes);
    r->memory = NULL;
}

static void drop_room(const struct dlrm_flows *f, struct dlrm_flows_room *r)
{
    drop_memory(f, r);
    if (r->counts)
        f->ops->host_free(f->c, r->counts, f->n * sizeof *r->counts);
    free(r->encodes);
    for (uint32_t i = 0; i < DLRM_FLOWS_KEYS; i++)
        free(r->keys[i].encodes);
}

void dlrm_flows_release(struct dlrm_flows *f)
{
    for (uint32_t i = 0; i < f->n; i++) {
        struct dlrm_flows_owed *at = &f->at[i];

        if (at->owed)
            f->ops->memory_free(f->c, at->owed,
                                (size_t)at->n_owed * at->width * sizeof *at->owed);
        at->owed = NULL;
        at->n_owed = 0;
    }
}

void dlrm_flows_deinit(struct dlrm_flows *f)
{
    for (uint32_t i = 0; i < DLRM_SLOTS; i++)
        drop_room(f, &f->rooms[i]);
    dlrm_flows_release(f);
    *f = (struct dlrm_flows){ 0 };
}

/* Rows and keys are the data's: with room to spare. What a tensor has does not change. */
static uint32_t with_spare(uint32_t flow, uint32_t n)
{
    return flow < DLRM_DENSE && n < UINT32_MAX / 2 ? n + n / 2 : n;
}

/* What a step needs at least, in the caps; true: there was all of it. */
static bool raise_caps(const struct dlrm_flows *f, const struct dlrm_travel *travel,
                       struct dlrm_flows_room *r)
{
    size_t n_bytes[DLRM_DENSE + 1] = { 0 }, n_roomy[DLRM_DENSE + 1] = { 0 };
    bool fits = r->memory != NULL;

    for (uint32_t i = 0; i < f->n; i++) {
        const struct dlrm_travel *t = &travel[i];

        if (!t->n)
            continue;
        if (t->n > r->rows_cap[i]) {
            r->rows_cap[i] = with_spare(i, t->n);
            fits = false;
        }
        if (is_floats(t))
            continue;
        n_bytes[part_of(i)] += t->n * row_bytes(&f->at[i], t);
        n_roomy[part_of(i)] += r->rows_cap[i] * row_bytes(&f->at[i], t);
    }
    for (uint32_t p = 0; p <= DLRM_DENSE; p++)
        if (n_bytes[p] > r->bytes_cap[p]) {
            r->bytes_cap[p] = n_roomy[p];
            fits = false;
        }
    return fits;
}

static size_t words_bytes(const struct dlrm_flows *f, const struct dlrm_flows_room *r)
{
    size_t n = f->n;

    for (uint32_t i = 0; i < f->n; i++)
        n += 2 * (size_t)r->rows_cap[i];
    return n * sizeof(uint32_t);
}

static int take_memory(const struct dlrm_flows *f, struct dlrm_flows_room *r)
{
    r->n_bytes = words_bytes(f, r);
    for (uint32_t p = 0; p <= DLRM_DENSE; p++)
        r->n_bytes += r->bytes_cap[p];
    r->memory = f->ops->memory_alloc(f->c, r->n_bytes);
    return r->memory ? 0 : -ENOMEM;
}

int dlrm_flows_make_room(struct dlrm_flows *f, uint32_t slot, const struct dlrm_travel *travel)
{
    struct dlrm_flows_room *r = &f->rooms[slot];

    if (!r->counts) {
        r->counts = f->ops->host_alloc(f->c, f->n * sizeof *r->counts);
        if (!r->counts)
            return -ENOMEM;
        r->encodes = mem_alloc(f->n * sizeof *r->encodes);
        for (uint32_t i = 0; i < DLRM_FLOWS_KEYS; i++)
            r->keys[i].encodes = mem_alloc(f->n * sizeof *r->encodes);
    }
    if (raise_caps(f, travel, r))
        return 0;
    drop_memory(f, r);
    return take_memory(f, r);
}

/* ---- what is owed ---- */

int dlrm_flows_owe(struct dlrm_flows *f, uint32_t flow, uint32_t n_rows)
{
    struct dlrm_flows_owed *at = &f->at[flow];

    assert(flow < f->n && !at->owed);
    if (!n_rows)
        return 0;
    at->owed = f->ops->memory_alloc(f->c, (size_t)n_rows * at->width * sizeof *at->owed);
    if (!at->owed)
        return -ENOMEM;
    at->n_owed = n_rows;
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

static float *owed_row(const struct dlrm_flows_owed *flow, uint32_t at, uint32_t n)
{
    assert(at < flow->n_owed && n <= flow->n_owed - at);
    return flow->owed + (size_t)at * flow->width;
}

int dlrm_flows_put(struct dlrm_flows *f, uint32_t flow, const uint32_t *at, uint32_t n,
                   const float *rows)
{
    const size_t width = f->at[flow].width;

    assert(flow < f->n);
    for (uint32_t i = 0, run; i < n; i += run) {
        run = run_of(at, i, n);
        f->ops->upload(f->c, 0, owed_row(&f->at[flow], at[i], run), rows + i * width,
                       run * width * sizeof *rows);
    }
    (void)f->ops->begin(f->c, 0, 0);
    f->ops->end(f->c, 0);
    return f->ops->wait(f->c, 0);
}

int dlrm_flows_get(struct dlrm_flows *f, uint32_t flow, const uint32_t *at, uint32_t n,
                   float *rows)
{
    const size_t width = f->at[flow].width;

    assert(flow < f->n);
    (void)f->ops->begin(f->c, 0, 0);
    f->ops->end(f->c, 0);
    for (uint32_t i = 0, run; i < n; i += run) {
        run = run_of(at, i, n);
        f->ops->download(f->c, 0, rows + i * width, owed_row(&f->at[flow], at[i], run),
                         run * width * sizeof *rows);
    }
    return f->ops->wait(f->c, 0);
}

/* ---- a step ---- */

/* Of a flow's rows: where they are in the slot's memory. `words` is behind those of the flows before. */
struct cursor {
    uint32_t *words;
    uint8_t *bytes[DLRM_DENSE + 1];
};

static struct cursor start(const struct dlrm_flows *f, const struct dlrm_flows_room *r)
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
static uint8_t *take_bytes(struct cursor *at, uint32_t flow, size_t n_bytes)
{
    uint8_t *bytes = at->bytes[part_of(flow)];

    at->bytes[part_of(flow)] += n_bytes;
    return bytes;
}

/* Row i's place is i: of tensors that is the rule, and the op knows it without being told. */
static bool is_plain(uint32_t flow, const uint32_t *places, uint32_t n)
{
    uint32_t i = 0;

    while (flow >= DLRM_DENSE && i < n && places[i] == i)
        i++;
    return flow >= DLRM_DENSE && i == n;
}

/* The device's copy of n places in room for cap; NULL: the op needs none. */
static const uint32_t *put_places(const struct dlrm_flows *f, uint32_t slot, uint32_t flow,
                                  const uint32_t *places, uint32_t n, struct cursor *at)
{
    uint32_t *device = at->words;

    at->words += f->rooms[slot].rows_cap[flow];
    if (!places || is_plain(flow, places, n))
        return NULL;
    if (n)
        f->ops->upload(f->c, slot, device, places, n * sizeof *places);
    return device;
}

static const float *gradients(const struct dlrm_flows *f, uint32_t flow,
                              const struct dlrm_io *io)
{
    return flow == DLRM_ROWS   ? io->row_grads
           : flow == DLRM_WIDE ? io->wide_grads
                               : io->grads + f->at[flow].at;
}

static struct compute_encode encode_of(struct dlrm_flows *f, uint32_t slot, uint32_t flow,
                                       const struct dlrm_travel *t, const struct dlrm_io *io,
                                       struct cursor *at)
{
    const struct dlrm_flows_room *r = &f->rooms[slot];
    const uint32_t *from = put_places(f, slot, flow, t->from, t->n, at);
    const uint32_t *owed_at = put_places(f, slot, flow, t->owed_at, t->n, at);

    assert(!t->n || !t->owed_at || f->at[flow].owed);
    return (struct compute_encode){
        .codec = t->codec,
        .dim = f->at[flow].width,
        .k = t->k,
        .n_max = r->rows_cap[flow],
        .n = (const uint32_t *)r->memory + flow,
        .rows = gradients(f, flow, io),
        .from = from,
        .owed = t->owed_at ? f->at[flow].owed : NULL,
        .owed_at = owed_at,
        .bytes = take_bytes(at, flow, t->n ? t->n * row_bytes(&f->at[flow], t) : 0),
    };
}

/* The key of a step with these arguments: a new one for those that were not seen of late. */
static uint64_t key_of(struct dlrm_flows *f, struct dlrm_flows_room *r,
                       const struct dlrm_io *io)
{
    const size_t n_bytes = io->n_encodes * sizeof *r->encodes;
    struct dlrm_flows_key *k;

    if (!io->key)
        return 0;
    for (uint32_t i = 0; i < DLRM_FLOWS_KEYS; i++) {
        k = &r->keys[i];
        if (k->step == io->key && k->n == io->n_encodes &&
            memcmp(k->encodes, r->encodes, n_bytes) == 0)
            return k->key;
    }
    k = &r->keys[r->n_keys++ % DLRM_FLOWS_KEYS];
    k->step = io->key;
    k->n = io->n_encodes;
    k->key = KEY | ++f->n_keys;
    memcpy(k->encodes, r->encodes, n_bytes);
    return k->key;
}

/* Says where the flow's bytes will be, and how they get there. */
static void add_flow(struct dlrm_flows *f, uint32_t slot, uint32_t flow,
                     const struct dlrm_travel *t, struct dlrm_io *io, struct cursor *at)
{
    struct dlrm_flows_room *r = &f->rooms[slot];
    struct compute_encode *e = &r->encodes[io->n_encodes];

    assert(f->at[flow].width || !t->n);
    r->counts[flow] = t->n;
    r->bytes[flow] = NULL;
    if (!f->at[flow].width)
        return;
    if (is_floats(t)) {
        r->bytes[flow] = (const uint8_t *)gradients(f, flow, io);
        at->words += 2 * (size_t)r->rows_cap[flow];
        return;
    }
    *e = encode_of(f, slot, flow, t, io, at);
    r->bytes[flow] = e->bytes;
    io->n_encodes++;
}

void dlrm_flows_in(struct dlrm_flows *f, uint32_t slot, const struct dlrm_travel *travel,
                   struct dlrm_io *io)
{
    struct dlrm_flows_room *r = &f->rooms[slot];
    struct cursor at = start(f, r);

    for (uint32_t i = 0; i < f->n; i++)
        add_flow(f, slot, i, &travel[i], io, &at);
    f->ops->upload(f->c, slot, r->memory, r->counts, f->n * sizeof *r->counts);
    io->encodes = r->encodes;
    io->key = key_of(f, r, io);
}

void dlrm_flows_out(struct dlrm_flows *f, uint32_t slot, const struct dlrm_travel *travel)
{
    const uint8_t *const *bytes = f->rooms[slot].bytes, *device = NULL;
    uint8_t *host = NULL;
    size_t n = 0;

    for (uint32_t i = 0; i < f->n; i++) {
        const size_t more = travel[i].n ? travel[i].n * row_bytes(&f->at[i], &travel[i]) : 0;

        if (more && n && travel[i].bytes == host + n && bytes[i] == device + n) {
            n += more;
        } else if (more) {
            if (n)
                f->ops->download(f->c, slot, host, device, n);
            host = travel[i].bytes;
            device = bytes[i];
            n = more;
        }
    }
    if (n)
        f->ops->download(f->c, slot, host, device, n);
}

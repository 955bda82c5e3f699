#include "worker/libpsd/cached_pull.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/memory.h"
#include "worker/libpsd/row_cache.h"

/* So many keys are looked up in much less time than that, unless the thread loses its core meanwhile. */
#define QUICK_KEYS 256u
#define QUICK_NS UINT64_C(10000000)

struct cached_miss {
    uint32_t section; /* number of the one asked for */
    uint32_t n;       /* keys */
    size_t first,
        present; /* where its keys begin in `keys` and `indices`; its bits in `presences` */
    float *rows; /* of its keys; the caller's array, if all of the section is missing */
    bool is_all;
};

/* ---- look ---- */

/* Floats of a row, so that as many rows fit as if each table had an equal part of the memory. */
static uint32_t mean_floats(const psd *c)
{
    const uint64_t one = UINT64_C(1) << 40, head_floats = 4;
    uint32_t n_tables = atomic_load(&c->n_tables);
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n_tables; i++)
        sum += one / (c->tables[i].dim + head_floats);
    return sum ? (uint32_t)(n_tables * one / sum - head_floats) : 1;
}

static void start_cache(psd *c)
{
    if (!row_cache_is_started(c->cache))
        row_cache_start(c->cache, mean_floats(c));
}

void cached_lookup_start(struct cached_lookup *lookup, psd *c,
                         const struct ps_pull_section *sections, uint32_t n)
{
    *lookup = (struct cached_lookup){
        .c = c, .sections = sections, .n = n, .now_ns = clock_boot_ns(), .oldest_ns = UINT64_MAX
    };
    start_cache(c);
    for (uint32_t i = 0; i < n; i++) {
        lookup->n_keys += sections[i].n_keys;
        if (sections[i].present)
            memset(sections[i].present, 0, section_present_bytes(sections[i].n_keys));
    }
}

/* Rows of a section, as the cache has them. */
static struct row_cache_rows rows_of(const psd *c, const struct ps_pull_section *s)
{
    return (struct row_cache_rows){ .table = s->table,
                                    .dim = c->tables[s->table].dim,
                                    .codec = s->codec,
                                    .n = s->n_keys,
                                    .keys = s->keys,
                                    .rows = s->dst,
                                    .present = s->present };
}

bool cached_lookup_next(struct cached_lookup *lookup)
{
    for (lookup->from += lookup->n_batch; lookup->section < lookup->n;
         lookup->section++, lookup->from = 0) {
        const struct row_cache_rows ask =
            rows_of(lookup->c, &lookup->sections[lookup->section]);

        for (; lookup->from < ask.n; lookup->from += lookup->n_batch) {
            uint32_t left = ask.n - lookup->from;

            lookup->n_batch = left < ROW_CACHE_BATCH ? left : ROW_CACHE_BATCH;
            lookup->missing =
                row_cache_read(lookup->c->cache, &ask, lookup->from, lookup->n_batch,
                               lookup->now_ns, &lookup->oldest_ns);
            if (lookup->missing) {
                lookup->n_missing += (uint32_t)__builtin_popcountll(lookup->missing);
                return true;
            }
        }
    }
    return false;
}

bool cached_lookup_took_too_long(struct cached_lookup *lookup)
{
    const uint64_t max_age_ns = row_cache_max_age(lookup->c->cache),
                   oldest_ns = lookup->oldest_ns;

    if (oldest_ns == UINT64_MAX)
        return false;
    if (lookup->n_keys > QUICK_KEYS || lookup->now_ns + QUICK_NS > oldest_ns + max_age_ns)
        lookup->now_ns = clock_boot_ns();
    return lookup->now_ns > oldest_ns + max_age_ns;
}

static void count(const psd *c, uint64_t n_hits, uint64_t n_misses, uint64_t oldest_ns,
                  uint64_t now_ns)
{
    row_cache_count(c->cache, n_hits, n_misses, oldest_ns < now_ns ? now_ns - oldest_ns : 0);
}

void cached_lookup_count(const struct cached_lookup *lookup)
{
    count(lookup->c, lookup->n_keys, 0, lookup->oldest_ns, lookup->now_ns);
}

/* ---- memory ---- */

/* n_bytes that are not kept when they grow. */
static int reserve(void **block, size_t *n_block, size_t n_bytes, struct err *err)
{
    if (n_bytes <= *n_block)
        return 0;
    free(*block);
    *block = memory_try_alloc(n_bytes + n_bytes / 4);
    *n_block = *block ? n_bytes + n_bytes / 4 : 0;
    return *block ? 0 : err_set(err, -ENOMEM, "no memory for a pull of %zu bytes", n_bytes);
}

/* What was asked for is copied; there is space for n_keys that are missing. */
static int keep_asked(struct cached_pull *p, const struct ps_pull_section *sections, uint32_t n,
                      uint64_t n_keys, struct err *err)
{
    const size_t asked_bytes = n * sizeof *p->asked, miss_bytes = n * sizeof *p->misses,
                 key_bytes = n_keys * sizeof *p->keys;
    int status =
        reserve(&p->memory, &p->n_memory,
                asked_bytes + miss_bytes + key_bytes + n_keys * sizeof *p->indices, err);
    char *at = p->memory;

    if (status)
        return status;
    p->asked = (struct ps_pull_section *)(void *)at;
    p->misses = (struct cached_miss *)(void *)(at + asked_bytes);
    p->keys = (uint64_t *)(void *)(at + asked_bytes + miss_bytes);
    p->indices = (uint32_t *)(void *)(at + asked_bytes + miss_bytes + key_bytes);
    memcpy(p->asked, sections, asked_bytes);
    p->n_asked = n;
    p->n_keys = 0;
    for (uint32_t i = 0; i < n; i++)
        p->n_keys += sections[i].n_keys;
    p->n_misses = 0;
    p->oldest_ns = UINT64_MAX;
    p->is_whole = false;
    return 0;
}

void cached_pull_deinit(struct cached_pull *p)
{
    free(p->memory);
    free(p->row_memory);
}

/* ---- start ---- */

/* The missing keys of the look's batch. */
static void add_misses(struct cached_pull *p, const struct cached_lookup *lookup,
                       size_t *n_keys)
{
    const uint64_t *keys = lookup->sections[lookup->section].keys + lookup->from;
    struct cached_miss *m = p->n_misses ? &p->misses[p->n_misses - 1] : NULL;

    if (!m || m->section != lookup->section) {
        m = &p->misses[p->n_misses++];
        *m = (struct cached_miss){ .section = lookup->section, .first = *n_keys };
    }
    for (uint64_t missing = lookup->missing; missing; missing &= missing - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(missing);

        p->keys[*n_keys] = keys[i];
        p->indices[(*n_keys)++] = lookup->from + i;
        m->n++;
    }
}

/* Where the missing rows will be: a section of which all are missing has its own array. */
static int place_rows(struct cached_pull *p, const psd *c, struct err *err)
{
    size_t n_floats = 0, n_present = 0;
    float *rows;
    int status;

    for (uint32_t i = 0; i < p->n_misses; i++) {
        struct cached_miss *m = &p->misses[i];
        const struct ps_pull_section *s = &p->asked[m->section];

        m->is_all = m->n == s->n_keys;
        if (m->is_all)
            continue;
        n_floats += (size_t)m->n * c->tables[s->table].dim;
        m->present = n_present;
        n_present += s->present ? section_present_bytes(m->n) : 0;
    }
    status =
        reserve(&p->row_memory, &p->n_row_memory, n_floats * sizeof *rows + n_present, err);
    if (status)
        return status;
    rows = p->row_memory;
    p->presences = (uint8_t *)(rows + n_floats);
    for (uint32_t i = 0; i < p->n_misses; i++) {
        struct cached_miss *m = &p->misses[i];
        const struct ps_pull_section *s = &p->asked[m->section];

        m->rows = m->is_all ? s->dst : rows;
        rows += m->is_all ? 0 : (size_t)m->n * c->tables[s->table].dim;
    }
    return 0;
}

/* A miss as a section. */
static struct ps_pull_section section_of(const struct cached_pull *p,
                                         const struct cached_miss *m)
{
    struct ps_pull_section s = p->asked[m->section];

    if (m->is_all)
        return s;
    s.n_keys = m->n;
    s.keys = p->keys + m->first;
    s.dst = m->rows;
    s.present = s.present ? p->presences + m->present : NULL;
    return s;
}

int cached_pull_start(struct cached_pull *p, struct cached_lookup *lookup,
                      struct ps_pull_section *ret_sections, uint32_t *ret_n, struct err *err)
{
    size_t n_keys = 0;
    int status = keep_asked(p, lookup->sections, lookup->n, lookup->n_keys, err);

    if (status)
        return status;
    lookup->sections = p->asked; /* the caller's may be ret_sections */
    do
        add_misses(p, lookup, &n_keys);
    while (cached_lookup_next(lookup));
    status = place_rows(p, lookup->c, err);
    for (uint32_t i = 0; i < p->n_misses && !status; i++)
        ret_sections[i] = section_of(p, &p->misses[i]);
    *ret_n = p->n_misses;
    p->sent_ns = lookup->now_ns;
    p->oldest_ns = lookup->oldest_ns;
    p->n_missing = lookup->n_missing;
    return status;
}

int cached_pull_start_whole(struct cached_pull *p, const struct ps_pull_section *sections,
                            uint32_t n, struct err *err)
{
    int status = keep_asked(p, sections, n, 0, err);

    p->is_whole = true;
    p->n_missing = p->n_keys;
    p->sent_ns = clock_boot_ns();
    return status;
}

/* ---- end ---- */

static void put(const struct cached_pull *p, psd *c, const struct ps_pull_section *s,
                uint64_t now_ns)
{
    const struct row_cache_rows rows = rows_of(c, s);

    row_cache_put(c->cache, &rows, p->sent_ns, now_ns);
}

/* From the rows that were pulled to where the caller wants them. */
static void hand_out(const struct cached_pull *p, const psd *c, const struct cached_miss *m,
                     const struct ps_pull_section *pulled)
{
    const struct ps_pull_section *s = &p->asked[m->section];
    const uint32_t *indices = p->indices + m->first;
    const size_t dim = c->tables[s->table].dim;

    for (uint32_t i = 0; i < m->n; i++) {
        memcpy(s->dst + indices[i] * dim, m->rows + i * dim, dim * sizeof *s->dst);
        if (s->present && pulled->present[i / 8] >> i % 8 & 1)
            s->present[indices[i] / 8] |= (uint8_t)(1u << indices[i] % 8);
    }
}

bool cached_pull_end(struct cached_pull *p, psd *c)
{
    const uint64_t now_ns = clock_boot_ns();

    for (uint32_t i = 0; i < p->n_misses; i++) {
        const struct ps_pull_section pulled = section_of(p, &p->misses[i]);

        put(p, c, &pulled, now_ns);
        if (!p->misses[i].is_all)
            hand_out(p, c, &p->misses[i], &pulled);
    }
    for (uint32_t i = 0; i < p->n_asked && p->is_whole; i++)
        put(p, c, &p->asked[i], now_ns);
    if (p->is_whole || p->oldest_ns == UINT64_MAX || now_ns < p->oldest_ns ||
        now_ns - p->oldest_ns <= row_cache_max_age(c->cache)) {
        count(c, p->n_keys - p->n_missing, p->n_missing, p->oldest_ns, now_ns);
        return false;
    }
    p->n_misses = 0;
    p->n_missing = p->n_keys;
    p->oldest_ns = UINT64_MAX;
    p->is_whole = true;
    p->sent_ns = now_ns;
    return true;
}

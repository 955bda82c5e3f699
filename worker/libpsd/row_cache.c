#include "worker/libpsd/row_cache.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <uv.h>

#include "common/hash.h"
#include "common/memory.h"

/* ThreadSanitizer knows no vectors that are atomic. */
#if defined(__SSE4_1__) && !defined(__SANITIZE_THREAD__)
#include <smmintrin.h>
#define HAS_VECTORS
#endif

#define LINE_BYTES 64u
#define SHARDS_MAX 64u
#define SHARD_BYTES_MIN (UINT64_C(256) << 10)
#define SMALL_SHARE 10u /* 1 / SMALL_SHARE of the rows' memory is the small ring */
#define SLOTS 8u        /* of a bucket */
#define SLOTS_USED 4u   /* of a bucket by entries, on average; ghosts have the rest */
#define USES_MAX 3u
#define REINSERTS_MAX 64u /* entries that are saved at the tail for one that is put */
#define COUNTERS 16u
#define HEAD_WORDS 2u
#define UNIT_WORDS 2u /* a unit is 16 bytes */

/* A slot. */
#define POSITION_BITS 44u
#define POSITION_MASK ((UINT64_C(1) << POSITION_BITS) - 1)
#define TWO_LAPS (UINT64_C(2) << 32)
#define KIND_SHIFT 44u
#define LIVE_BIT (UINT64_C(1) << 45) /* of SMALL and MAIN */
#define USE_SHIFT 46u
#define USES_MASK (UINT64_C(3) << USE_SHIFT)
#define TAG_SHIFT 48u
#define FIND_MASK (UINT64_C(0xffff) << TAG_SHIFT | LIVE_BIT)

enum kind { EMPTY, GHOST, SMALL, MAIN };

/* An entry's second word. */
#define TIME_BITS 44u
#define TIME_MASK ((UINT64_C(1) << TIME_BITS) - 1)
#define TIME_SHIFT 16u /* its time counts 65.5 us, rounded down: 36 years */
#define TABLE_SHIFT TIME_BITS
#define CODEC_SHIFT (TABLE_SHIFT + 8)
#define PRESENCE_SHIFT (CODEC_SHIFT + 3)
#define HEAD_MASK (UINT64_C(0x7ff) << TABLE_SHIFT) /* table and codec */

enum presence { UNKNOWN, ABSENT, PRESENT };

/* Positions are lap << 32 | offset in units. `tail` is read by everybody, the rest under the shard's mutex. */
struct ring {
    _Atomic uint64_t tail;
    _Atomic uint64_t *words; /* [n_units][UNIT_WORDS] */
    uint64_t head;
    uint32_t n_units;
    uint32_t end; /* where the lap before the head's has ended */
};

struct shard {
    struct ring rings[2];    /* small, main */
    _Atomic uint64_t *slots; /* [n_buckets][SLOTS] */
    uint32_t n_buckets;
    uint32_t n_ghosts; /* numbers them */
    uint64_t n_main;   /* entries in the main ring */
    _Atomic uint64_t n_put, n_evicted, n_left_out, n_rows, n_used_units;
    uv_mutex_t lock;
} __attribute__((aligned(LINE_BYTES)));

struct counters {
    _Atomic uint64_t n_hits, n_misses, oldest_age_ns;
} __attribute__((aligned(LINE_BYTES)));

struct row_cache {
    void *memory; /* of memory_map(): this struct is in it */
    uint64_t max_bytes, max_age_ns, start_ns;
    uint32_t n_shards, shard_bits;
    _Atomic bool is_started;
    uv_mutex_t start_lock;
    _Atomic uint32_t dims[256]; /* of tables; set before a table's first row is put */
    struct counters counters[COUNTERS];
    struct shard shards[];
};

/* ---- memory ---- */

static uint64_t bytes_of_shard(const struct row_cache *cache)
{
    uint64_t head = sizeof *cache + cache->n_shards * sizeof *cache->shards + LINE_BYTES;

    return (cache->max_bytes - head) / cache->n_shards / LINE_BYTES * LINE_BYTES;
}

static int init_locks(struct row_cache *cache)
{
    int status = uv_mutex_init(&cache->start_lock);
    uint32_t n = 0;

    while (!status && n < cache->n_shards) {
        status = uv_mutex_init(&cache->shards[n].lock);
        n += !status;
    }
    if (!status)
        return 0;
    while (n-- > 0)
        uv_mutex_destroy(&cache->shards[n].lock);
    return status;
}

struct row_cache *row_cache_new(uint64_t max_bytes, uint64_t max_age_ns, uint64_t now_ns)
{
    uint8_t *memory = max_bytes < ROW_CACHE_BYTES_MIN ? NULL : memory_map(max_bytes);
    struct row_cache *cache;

    if (!memory)
        return NULL;
    cache = (struct row_cache *)(void *)(memory + (-(uintptr_t)memory & (LINE_BYTES - 1)));
    cache->memory = memory;
    cache->max_bytes = max_bytes;
    cache->max_age_ns = max_age_ns;
    cache->start_ns = now_ns;
    cache->n_shards = 1;
    while (cache->n_shards < SHARDS_MAX &&
           max_bytes / (2 * cache->n_shards) >= SHARD_BYTES_MIN) {
        cache->n_shards *= 2;
        cache->shard_bits++;
    }
    if (!init_locks(cache))
        return cache;
    memory_unmap(memory, max_bytes);
    return NULL;
}

void row_cache_free(struct row_cache *cache)
{
    if (!cache)
        return;
    for (uint32_t i = 0; i < cache->n_shards; i++)
        uv_mutex_destroy(&cache->shards[i].lock);
    uv_mutex_destroy(&cache->start_lock);
    memory_unmap(cache->memory, cache->max_bytes);
}

static uint32_t entry_units(uint32_t dim)
{
    return (uint32_t)((HEAD_WORDS * sizeof(uint64_t) + (uint64_t)dim * sizeof(float) + 15) /
                      16);
}

static void lay_out(struct row_cache *cache, uint32_t row_floats)
{
    uint64_t n_bytes = bytes_of_shard(cache),
             row_bytes = 16 * (uint64_t)entry_units(row_floats);
    uint32_t n_buckets =
        (uint32_t)(n_bytes / (SLOTS * sizeof(uint64_t) + SLOTS_USED * row_bytes));
    uint8_t *at = (uint8_t *)&cache->shards[cache->n_shards];
    uint32_t n_units;

    n_buckets += n_buckets == 0;
    n_units = (uint32_t)((n_bytes - n_buckets * SLOTS * sizeof(uint64_t)) / 16);
    for (uint32_t i = 0; i < cache->n_shards; i++, at += n_bytes) {
        struct shard *s = &cache->shards[i];

        s->n_buckets = n_buckets;
        s->slots = (_Atomic uint64_t *)(void *)at;
        s->rings[0].words = s->slots + (size_t)n_buckets * SLOTS;
        s->rings[0].n_units = n_units / SMALL_SHARE;
        s->rings[1].words = s->rings[0].words + (size_t)s->rings[0].n_units * UNIT_WORDS;
        s->rings[1].n_units = n_units - s->rings[0].n_units;
    }
}

void row_cache_start(struct row_cache *cache, uint32_t row_floats)
{
    uv_mutex_lock(&cache->start_lock);
    if (!atomic_load(&cache->is_started)) {
        lay_out(cache, row_floats);
        atomic_store_explicit(&cache->is_started, true, memory_order_release);
    }
    uv_mutex_unlock(&cache->start_lock);
}

bool row_cache_is_started(const struct row_cache *cache)
{
    return atomic_load_explicit(&cache->is_started, memory_order_acquire);
}

/* ---- keys, slots, entries ---- */

/* Of a table's key. */
static uint64_t hash_of(uint32_t table, uint64_t key)
{
    return hash_mix(key ^ ((uint64_t)table + 1) * UINT64_C(0x9e3779b97f4a7c15));
}

static struct shard *shard_of(struct row_cache *cache, uint64_t hash)
{
    return &cache->shards[cache->shard_bits ? hash >> (64 - cache->shard_bits) : 0];
}

static _Atomic uint64_t *bucket_of(const struct shard *s, uint64_t hash)
{
    return s->slots + (size_t)((((hash >> 16) & UINT32_MAX) * s->n_buckets) >> 32) * SLOTS;
}

static uint64_t read_slot(const _Atomic uint64_t *slot)
{
    return atomic_load_explicit(slot, memory_order_relaxed);
}

static void write_slot(_Atomic uint64_t *slot, uint64_t value)
{
    atomic_store_explicit(slot, value, memory_order_release);
}

static enum kind kind_of(uint64_t slot)
{
    return (enum kind)(slot >> KIND_SHIFT & 3);
}

static uint32_t uses_of(uint64_t slot)
{
    return (uint32_t)(slot >> USE_SHIFT & 3);
}

static uint64_t make_slot(uint64_t hash, uint32_t uses, enum kind kind, uint64_t position)
{
    return hash << TAG_SHIFT | (uint64_t)uses << USE_SHIFT | (uint64_t)kind << KIND_SHIFT |
           (position & POSITION_MASK);
}

/* The slots of a bucket with a key's tag and an entry, as bits. (The halves of an aligned vector are loaded whole, as
 * atomics are.) */
static inline uint32_t find_tags(const _Atomic uint64_t *bucket, uint64_t hash)
{
    const uint64_t wanted = hash << TAG_SHIFT | LIVE_BIT;
    uint32_t found = 0;
#ifdef HAS_VECTORS
    const __m128i *pairs = (const __m128i *)(const void *)bucket;
    const __m128i mask = _mm_set1_epi64x((int64_t)FIND_MASK),
                  tag = _mm_set1_epi64x((int64_t)wanted);

    for (uint32_t i = 0; i < SLOTS / 2; i++) {
        __m128i equal = _mm_cmpeq_epi64(_mm_and_si128(_mm_load_si128(&pairs[i]), mask), tag);

        found |= (uint32_t)_mm_movemask_pd(_mm_castsi128_pd(equal)) << 2 * i;
    }
#else
    for (uint32_t i = 0; i < SLOTS; i++)
        found |= (uint32_t)((read_slot(&bucket[i]) & FIND_MASK) == wanted) << i;
#endif
    return found;
}

/* Of a position. */
static uint32_t lap_of(uint64_t position)
{
    return (uint32_t)(position >> 32);
}

/* Of a position or a slot. */
static uint32_t offset_of(uint64_t position)
{
    return (uint32_t)position;
}

static _Atomic uint64_t *entry_at(const struct ring *ring, uint64_t position)
{
    return ring->words + (size_t)offset_of(position) * UNIT_WORDS;
}

static struct ring *ring_of(struct shard *s, uint64_t slot)
{
    return &s->rings[kind_of(slot) == MAIN];
}

static uint64_t time_of(const struct row_cache *cache, uint64_t ns)
{
    return (ns > cache->start_ns ? ns - cache->start_ns : 0) >> TIME_SHIFT;
}

static uint64_t sent_ns_of(const struct row_cache *cache, uint64_t head)
{
    return cache->start_ns + ((head & TIME_MASK) << TIME_SHIFT);
}

/* Another thread's clock may be ahead of this one's. */
static uint64_t age_of(const struct row_cache *cache, uint64_t head, uint64_t now_ns)
{
    uint64_t sent_ns = sent_ns_of(cache, head);

    return now_ns > sent_ns ? now_ns - sent_ns : 0;
}

static uint32_t table_of(uint64_t head)
{
    return (uint32_t)(head >> TABLE_SHIFT & 255);
}

static enum codec_id codec_of(uint64_t head)
{
    return (enum codec_id)(head >> CODEC_SHIFT & 7);
}

static enum presence presence_of(uint64_t head)
{
    return (enum presence)(head >> PRESENCE_SHIFT & 3);
}

/* True if an entry with this head can stand for a row that would travel so. */
static bool is_as_good(uint64_t head, enum codec_id codec, bool with_presence)
{
    return (codec_of(head) == CODEC_FP32 || codec_of(head) == codec) &&
           (!with_presence || presence_of(head) != UNKNOWN);
}

/* ---- read ---- */

static inline uint64_t load(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

/* Each word is stored as it was loaded: by way of an array the compiler would make vectors of it, which wait. */
static inline void copy_row(float *dst, const _Atomic uint64_t *words, uint32_t dim)
{
    uint32_t k = 0;
#ifdef HAS_VECTORS
    for (; k + 4 <= dim; k += 4, words += 2)
        _mm_storeu_ps(dst + k, _mm_load_ps((const float *)(const void *)words));
    atomic_signal_fence(memory_order_acquire); /* the processor keeps the order of loads */
#endif
    for (; k + 2 <= dim; k += 2, words++) {
        const uint64_t pair = load(words);

        memcpy(dst + k, &pair, sizeof pair);
    }
    if (k < dim) {
        const uint64_t last = load(words);

        memcpy(dst + k, &last, sizeof *dst);
    }
}

/* A key that is looked up. */
struct lookup {
    struct shard *shard;
    _Atomic uint64_t *bucket;
    uint64_t hash;
    uint32_t found; /* slots with its tag, as bits */
};

/* What all keys of a batch share. */
struct batch {
    const struct row_cache_rows *ask;
    uint32_t entry_units;
    uint64_t head, lossless; /* a head's table and codec: the one asked for; with CODEC_FP32 */
    uint64_t oldest_time;    /* that is not too old */
    uint64_t oldest_found;
};

/* An entry with this head can stand for a row of the batch. */
static inline bool is_good(const struct batch *b, uint64_t head)
{
    const uint64_t kind = head & HEAD_MASK;

    return (kind == b->head || kind == b->lossless) && (head & TIME_MASK) >= b->oldest_time &&
           (!b->ask->present || presence_of(head) != UNKNOWN);
}

/* Copies the entry of a slot, if it is that of the key number i and may be used; its head in *ret_head. */
static inline bool read_entry(const struct batch *b, struct shard *s, _Atomic uint64_t *slot,
                              uint32_t i, uint64_t *ret_head)
{
    const uint64_t seen = read_slot(slot);
    struct ring *ring = ring_of(s, seen);
    const uint64_t tail = load(&ring->tail);
    uint64_t value = load(slot);
    const uint64_t ahead = (value - tail) & POSITION_MASK;
    const _Atomic uint64_t *words = entry_at(ring, value);

    if (!(value & LIVE_BIT) || (value ^ seen) & ~USES_MASK || ahead >= TWO_LAPS ||
        offset_of(value) + (uint64_t)b->entry_units > ring->n_units ||
        load(&words[0]) != b->ask->keys[i])
        return false;
    *ret_head = load(&words[1]);
    if (!is_good(b, *ret_head))
        return false;
    copy_row(b->ask->rows + (size_t)i * b->ask->dim, words + HEAD_WORDS, b->ask->dim);
    if (atomic_load_explicit(&ring->tail, memory_order_relaxed) > tail + ahead)
        return false;
    if (uses_of(value) < USES_MAX) /* fails if the entry is moved, and need not succeed */
        atomic_compare_exchange_strong_explicit(slot, &value,
                                                value + (UINT64_C(1) << USE_SHIFT),
                                                memory_order_relaxed, memory_order_relaxed);
    return true;
}

static void set_present(uint8_t *present, uint32_t i, bool is_present)
{
    const uint32_t mask = 1u << i % 8;

    present[i / 8] = (uint8_t)(is_present ? present[i / 8] | mask : present[i / 8] & ~mask);
}

static inline bool read_key(struct batch *b, const struct lookup *l, uint32_t i)
{
    uint32_t found = l->found;
    uint64_t head = 0;

    while (found && !read_entry(b, l->shard, &l->bucket[__builtin_ctz(found)], i, &head))
        found &= found - 1; /* another key's tag, mostly */
    if (!found)
        return false;
    if ((head & TIME_MASK) < b->oldest_found)
        b->oldest_found = head & TIME_MASK;
    if (b->ask->present)
        set_present(b->ask->present, i, presence_of(head) == PRESENT);
    return true;
}

static inline void prefetch_bucket(struct row_cache *cache, struct lookup *l, uint32_t table,
                                   uint64_t key)
{
    l->hash = hash_of(table, key);
    l->shard = shard_of(cache, l->hash);
    l->bucket = bucket_of(l->shard, l->hash);
    __builtin_prefetch((const void *)l->bucket);
}

/* The bucket has come. */
static inline void prefetch_entry(struct lookup *l, uint32_t n_bytes)
{
    const char *at;
    uint64_t slot;

    l->found = find_tags(l->bucket, l->hash);
    if (!l->found)
        return;
    slot = read_slot(&l->bucket[__builtin_ctz(l->found)]);
    at = (const char *)entry_at(ring_of(l->shard, slot), slot);
    for (uint32_t k = 0; k < n_bytes; k += LINE_BYTES)
        __builtin_prefetch(at + k);
    __builtin_prefetch(at + n_bytes - 1);
}

/* The first time, in an entry's unit, at which an entry is not too old at now_ns. */
static uint64_t oldest_time(const struct row_cache *cache, uint64_t now_ns)
{
    const uint64_t since_ns = now_ns - cache->start_ns;

    return now_ns <= cache->start_ns || since_ns <= cache->max_age_ns
               ? 0
               : (since_ns - cache->max_age_ns + (1u << TIME_SHIFT) - 1) >> TIME_SHIFT;
}

uint64_t row_cache_read(struct row_cache *cache, const struct row_cache_rows *ask,
                        uint32_t from, uint32_t n, uint64_t now_ns, uint64_t *oldest_ns)
{
    const uint64_t lossless = (uint64_t)ask->table << TABLE_SHIFT;
    struct batch b = { .ask = ask,
                       .entry_units = entry_units(ask->dim),
                       .head = lossless | (uint64_t)ask->codec << CODEC_SHIFT,
                       .lossless = lossless,
                       .oldest_time = oldest_time(cache, now_ns),
                       .oldest_found = UINT64_MAX };
    const uint32_t n_bytes = b.entry_units < 32 ? b.entry_units * 16 : 512;
    struct lookup lookups[ROW_CACHE_BATCH];
    uint64_t missing = 0;

    if (!row_cache_is_started(cache))
        return n < 64 ? (UINT64_C(1) << n) - 1 : UINT64_MAX;
    for (uint32_t i = 0; i < n; i++)
        prefetch_bucket(cache, &lookups[i], ask->table, ask->keys[from + i]);
    for (uint32_t i = 0; i < n; i++)
        prefetch_entry(&lookups[i], n_bytes); /* what is longer comes by itself */
    for (uint32_t i = 0; i < n; i++)
        missing |= (uint64_t)!read_key(&b, &lookups[i], from + i) << i;
    if (b.oldest_found != UINT64_MAX && sent_ns_of(cache, b.oldest_found) < *oldest_ns)
        *oldest_ns = sent_ns_of(cache, b.oldest_found);
    return missing;
}

/* ---- evict: under the shard's lock ---- */

static uint64_t tail_of(const struct ring *ring)
{
    return atomic_load_explicit(&ring->tail, memory_order_relaxed);
}

static bool is_wrapped(const struct ring *ring)
{
    return lap_of(ring->head) != lap_of(tail_of(ring));
}

/* True, with the head there, if n units fit without an eviction. */
static bool has_space(struct ring *ring, uint32_t n)
{
    if (!is_wrapped(ring)) {
        if (ring->n_units - offset_of(ring->head) >= n)
            return true;
        ring->end = offset_of(ring->head);
        ring->head = ((uint64_t)lap_of(ring->head) + 1) << 32;
        if (offset_of(tail_of(ring)) == ring->end) /* it was empty */
            atomic_store_explicit(&ring->tail, ring->head, memory_order_release);
    }
    return is_wrapped(ring) ? offset_of(tail_of(ring)) - offset_of(ring->head) >= n
                            : ring->n_units >= n;
}

static void count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

/* What the slots say of the entry at the tail is over. */
static void advance_tail(struct shard *s, struct ring *ring, uint32_t n_units)
{
    uint64_t tail = tail_of(ring) + n_units;

    if (is_wrapped(ring) && offset_of(tail) == ring->end)
        tail = ((uint64_t)lap_of(tail) + 1) << 32;
    atomic_store_explicit(&ring->tail, tail, memory_order_release);
    count(&s->n_used_units, (uint64_t)0 - n_units);
}

static void advance_head(struct shard *s, struct ring *ring, uint32_t n_units)
{
    ring->head += n_units;
    count(&s->n_used_units, n_units);
}

static void copy_entry(_Atomic uint64_t *dst, const _Atomic uint64_t *src, uint32_t n_units)
{
    for (uint32_t i = 0; i < n_units * UNIT_WORDS; i++) /* forward: they may overlap */
        atomic_store_explicit(&dst[i], atomic_load_explicit(&src[i], memory_order_relaxed),
                              memory_order_release);
}

/* The slot that points to a position, or NULL. */
static _Atomic uint64_t *slot_of(const struct shard *s, uint64_t hash, enum kind kind,
                                 uint64_t position)
{
    const uint64_t wanted = make_slot(hash, 0, kind, position);
    _Atomic uint64_t *bucket = bucket_of(s, hash);

    for (uint32_t i = 0; i < SLOTS; i++)
        if ((read_slot(&bucket[i]) & ~USES_MASK) == wanted)
            return &bucket[i];
    return NULL;
}

static void drop_entry(struct shard *s, _Atomic uint64_t *slot, uint64_t hash, bool as_ghost)
{
    s->n_main -= kind_of(read_slot(slot)) == MAIN;
    count(&s->n_rows, (uint64_t)0 - 1);
    write_slot(slot, as_ghost
                         ? make_slot(hash, 0, GHOST, (hash >> 46 & 0xfff) << 32 | s->n_ghosts++)
                         : 0);
}

static void reserve_main(struct row_cache *cache, struct shard *s, uint32_t n_units,
                         uint64_t now_ns);

/* The entry at a ring's tail, and what is to be done with it. */
struct tail_entry {
    const _Atomic uint64_t *words;
    uint32_t n_units;
    uint64_t hash;
    _Atomic uint64_t *slot; /* NULL: another entry has the key now, or none */
    bool is_old;
};

static struct tail_entry read_tail(struct row_cache *cache, struct shard *s, enum kind kind,
                                   uint64_t now_ns)
{
    const struct ring *ring = &s->rings[kind == MAIN];
    const uint64_t tail = tail_of(ring);
    struct tail_entry e = { .words = entry_at(ring, tail) };
    const uint64_t head = atomic_load_explicit(&e.words[1], memory_order_relaxed);

    e.n_units =
        entry_units(atomic_load_explicit(&cache->dims[table_of(head)], memory_order_relaxed));
    e.hash = hash_of(table_of(head), atomic_load_explicit(&e.words[0], memory_order_relaxed));
    e.slot = slot_of(s, e.hash, kind, tail);
    e.is_old = age_of(cache, head, now_ns) > cache->max_age_ns;
    return e;
}

/* An entry of the main ring that was used goes to its head again. It may lie on itself there. */
static void evict_main(struct row_cache *cache, struct shard *s, bool may_save, uint64_t now_ns)
{
    struct ring *ring = &s->rings[1];
    struct tail_entry e = read_tail(cache, s, MAIN, now_ns);
    uint64_t value = e.slot ? read_slot(e.slot) : 0;

    if (!e.slot || e.is_old || !may_save || !uses_of(value)) {
        if (e.slot) {
            count(&s->n_evicted, !e.is_old);
            drop_entry(s, e.slot, e.hash, e.is_old);
        }
        advance_tail(s, ring, e.n_units);
        return;
    }
    advance_tail(s, ring, e.n_units);
    copy_entry(entry_at(ring, ring->head), e.words, e.n_units);
    write_slot(e.slot, make_slot(e.hash, uses_of(value) - 1, MAIN, ring->head));
    advance_head(s, ring, e.n_units);
}

static void reserve_main(struct row_cache *cache, struct shard *s, uint32_t n_units,
                         uint64_t now_ns)
{
    for (uint32_t n = 0; !has_space(&s->rings[1], n_units); n++)
        evict_main(cache, s, n < REINSERTS_MAX, now_ns);
}

/* One that was used moves to the main ring; others, too, while there is space that nothing has had yet. */
static void evict_small(struct row_cache *cache, struct shard *s, uint64_t now_ns)
{
    struct ring *main = &s->rings[1];
    struct tail_entry e = read_tail(cache, s, SMALL, now_ns);

    if (e.slot && !e.is_old && (uses_of(read_slot(e.slot)) || has_space(main, e.n_units))) {
        reserve_main(cache, s, e.n_units, now_ns);
        copy_entry(entry_at(main, main->head), e.words, e.n_units);
        write_slot(e.slot, make_slot(e.hash, 0, MAIN, main->head));
        advance_head(s, main, e.n_units);
        s->n_main++;
    } else if (e.slot) {
        count(&s->n_evicted, !e.is_old);
        drop_entry(s, e.slot, e.hash, true);
    }
    advance_tail(s, &s->rings[0], e.n_units);
}

/* ---- put: under the shard's lock ---- */

static _Atomic uint64_t *find_slot(struct shard *s, uint64_t hash, uint32_t table, uint64_t key)
{
    _Atomic uint64_t *bucket = bucket_of(s, hash);

    for (uint32_t found = find_tags(bucket, hash); found; found &= found - 1) {
        _Atomic uint64_t *slot = &bucket[__builtin_ctz(found)];
        const uint64_t value = read_slot(slot);
        const _Atomic uint64_t *words = entry_at(ring_of(s, value), value);

        if (atomic_load_explicit(&words[0], memory_order_relaxed) == key &&
            table_of(atomic_load_explicit(&words[1], memory_order_relaxed)) == table)
            return slot;
    }
    return NULL;
}

static bool is_ghost_of(const struct shard *s, uint64_t slot, uint64_t hash)
{
    return kind_of(slot) == GHOST && slot >> TAG_SHIFT == (hash & 0xffff) &&
           (slot >> 32 & 0xfff) == (hash >> 46 & 0xfff) &&
           (uint64_t)(uint32_t)(s->n_ghosts - (uint32_t)slot) <= s->n_main + SLOTS;
}

/* Takes the key's ghost away. */
static bool had_ghost(struct shard *s, uint64_t hash)
{
    _Atomic uint64_t *bucket = bucket_of(s, hash);

    for (uint32_t i = 0; i < SLOTS; i++)
        if (is_ghost_of(s, read_slot(&bucket[i]), hash)) {
            write_slot(&bucket[i], 0);
            return true;
        }
    return false;
}

/* How much a slot is worth: nothing, a ghost by its age, an entry by its uses and ring. */
static uint64_t worth_of(const struct shard *s, uint64_t slot)
{
    switch (kind_of(slot)) {
    case EMPTY:
        return 0;
    case GHOST:
        return (uint64_t)UINT32_MAX + 1 - (uint32_t)(s->n_ghosts - (uint32_t)slot);
    case SMALL:
    case MAIN:
        break;
    }
    return (uint64_t)(2 * uses_of(slot) + (kind_of(slot) == MAIN) + 2) << 32;
}

/* A slot of the key's bucket that may be written: the one of least worth. */
static _Atomic uint64_t *take_slot(struct shard *s, uint64_t hash)
{
    _Atomic uint64_t *bucket = bucket_of(s, hash), *least = bucket;

    for (uint32_t i = 1; i < SLOTS; i++)
        if (worth_of(s, read_slot(&bucket[i])) < worth_of(s, read_slot(least)))
            least = &bucket[i];
    if (read_slot(least) & LIVE_BIT) {
        count(&s->n_evicted, 1);
        drop_entry(s, least, 0, false);
    }
    return least;
}

/* Where a row with n units goes; EMPTY: nowhere. `slot` is that of the key's entry, or NULL. */
static enum kind choose_ring(struct shard *s, const _Atomic uint64_t *slot, uint64_t hash,
                             uint32_t n_units)
{
    const bool is_known = slot ? kind_of(read_slot(slot)) == MAIN || uses_of(read_slot(slot))
                               : had_ghost(s, hash);

    if (n_units > s->rings[1].n_units / 4)
        return EMPTY;
    return is_known || n_units > s->rings[0].n_units / 4 ? MAIN : SMALL;
}

static void write_entry(_Atomic uint64_t *words, uint64_t key, uint64_t head, const float *row,
                        uint32_t dim)
{
    atomic_store_explicit(&words[0], key, memory_order_release);
    atomic_store_explicit(&words[1], head, memory_order_release);
    words += HEAD_WORDS;
    for (uint32_t k = 0; k < dim; k += 2, words++) {
        uint64_t pair = 0;

        memcpy(&pair, row + k, (dim - k >= 2 ? 2 : 1) * sizeof *row);
        atomic_store_explicit(words, pair, memory_order_release);
    }
}

static void put(struct row_cache *cache, struct shard *s, const struct row_cache_rows *rows,
                uint32_t i, uint64_t hash, uint64_t head, uint64_t now_ns)
{
    const uint64_t key = rows->keys[i];
    const uint32_t n_units = entry_units(rows->dim);
    _Atomic uint64_t *slot = find_slot(s, hash, rows->table, key);
    enum kind kind;
    struct ring *ring;

    if (slot) {
        const uint64_t value = read_slot(slot),
                       old = atomic_load_explicit(&entry_at(ring_of(s, value), value)[1],
                                                  memory_order_relaxed);

        if ((old & TIME_MASK) >= (head & TIME_MASK) &&
            is_as_good(old, rows->codec, presence_of(head) != UNKNOWN))
            return;
    }
    kind = choose_ring(s, slot, hash, n_units);
    if (kind == EMPTY) {
        atomic_fetch_add_explicit(&s->n_left_out, 1, memory_order_relaxed);
        return;
    }
    ring = &s->rings[kind == MAIN];
    if (kind == MAIN)
        reserve_main(cache, s, n_units, now_ns);
    while (kind == SMALL && !has_space(ring, n_units))
        evict_small(cache, s, now_ns);
    write_entry(entry_at(ring, ring->head), key, head, rows->rows + (size_t)i * rows->dim,
                rows->dim);
    slot = find_slot(s, hash, rows->table, key); /* it may have gone, or be another one */
    if (slot)
        drop_entry(s, slot, 0, false);
    else
        slot = take_slot(s, hash);
    write_slot(slot, make_slot(hash, 0, kind, ring->head));
    advance_head(s, ring, n_units);
    s->n_main += kind == MAIN;
    count(&s->n_rows, 1);
    count(&s->n_put, 1);
}

void row_cache_put(struct row_cache *cache, const struct row_cache_rows *rows, uint64_t sent_ns,
                   uint64_t now_ns)
{
    const uint64_t base = time_of(cache, sent_ns) | (uint64_t)rows->table << TABLE_SHIFT |
                          (uint64_t)rows->codec << CODEC_SHIFT;

    if (!row_cache_is_started(cache) ||
        (now_ns > sent_ns && now_ns - sent_ns > cache->max_age_ns))
        return;
    atomic_store_explicit(&cache->dims[rows->table], rows->dim, memory_order_relaxed);
    for (uint32_t i = 0; i < rows->n; i++) {
        const uint64_t hash = hash_of(rows->table, rows->keys[i]);
        struct shard *s = shard_of(cache, hash);
        enum presence presence = UNKNOWN;

        if (rows->present)
            presence = rows->present[i / 8] >> i % 8 & 1 ? PRESENT : ABSENT;
        if (uv_mutex_trylock(&s->lock)) { /* nobody waits here: the row is pulled once more */
            atomic_fetch_add_explicit(&s->n_left_out, 1, memory_order_relaxed);
            continue;
        }
        put(cache, s, rows, i, hash, base | (uint64_t)presence << PRESENCE_SHIFT, now_ns);
        uv_mutex_unlock(&s->lock);
    }
}

/* ---- counters ---- */

/* Of this thread, and a few others. */
static struct counters *counters_of(struct row_cache *cache)
{
    return &cache->counters[hash_mix((uintptr_t)pthread_self()) % COUNTERS];
}

void row_cache_count(struct row_cache *cache, uint64_t n_hits, uint64_t n_misses,
                     uint64_t oldest_age_ns)
{
    struct counters *c = counters_of(cache);
    uint64_t oldest = atomic_load_explicit(&c->oldest_age_ns, memory_order_relaxed);

    if (n_hits)
        atomic_fetch_add_explicit(&c->n_hits, n_hits, memory_order_relaxed);
    if (n_misses)
        atomic_fetch_add_explicit(&c->n_misses, n_misses, memory_order_relaxed);
    while (oldest_age_ns > oldest &&
           !atomic_compare_exchange_weak_explicit(&c->oldest_age_ns, &oldest, oldest_age_ns,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

void row_cache_stats(struct row_cache *cache, struct row_cache_stats *ret)
{
    *ret = (struct row_cache_stats){ .max_bytes = cache->max_bytes,
                                     .n_bytes = sizeof *cache +
                                                cache->n_shards * sizeof *cache->shards };
    for (uint32_t i = 0; i < COUNTERS; i++) {
        struct counters *c = &cache->counters[i];
        uint64_t oldest = atomic_load(&c->oldest_age_ns);

        ret->n_hits += atomic_load(&c->n_hits);
        ret->n_misses += atomic_load(&c->n_misses);
        if (oldest > ret->oldest_age_ns)
            ret->oldest_age_ns = oldest;
    }
    for (uint32_t i = 0; i < cache->n_shards && row_cache_is_started(cache); i++) {
        struct shard *s = &cache->shards[i];

        ret->n_put += atomic_load(&s->n_put);
        ret->n_evicted += atomic_load(&s->n_evicted);
        ret->n_left_out += atomic_load(&s->n_left_out);
        ret->n_rows += atomic_load(&s->n_rows);
        ret->n_bytes += atomic_load(&s->n_used_units) * 16 +
                        (uint64_t)s->n_buckets * SLOTS * sizeof(uint64_t);
    }
}

uint64_t row_cache_max_age(const struct row_cache *cache)
{
    return cache->max_age_ns;
}

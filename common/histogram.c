#include "common/histogram.h"

#include <assert.h>

/*
 * Values below 16 have a bucket each. A greater one, whose highest bit is number e, falls into
 * the 16 buckets of [2^e, 2^(e+1)) by the four bits below the highest:
 *
 *     value     0..15    16..31   32..63   ...   2^63..2^64-1
 *     buckets   0..15    16..31   32..47   ...   960..975
 */
static unsigned bucket_of(uint64_t value)
{
    unsigned e;

    if (value < 16)
        return (unsigned)value;
    e = 63u - (unsigned)__builtin_clzll(value);
    return (e - 3) * 16 + (unsigned)(value >> (e - 4) & 15);
}

static uint64_t bucket_first(unsigned bucket)
{
    return bucket < 16 ? bucket : (uint64_t)(16 + bucket % 16) << (bucket / 16 - 1);
}

static uint64_t bucket_last(unsigned bucket)
{
    return bucket + 1 < HISTOGRAM_N_BUCKETS ? bucket_first(bucket + 1) - 1 : UINT64_MAX;
}

static uint64_t get(const _Atomic uint64_t *x)
{
    return atomic_load_explicit(x, memory_order_relaxed);
}

/* A load and a store in place of a locked add: there is one writer. */
static void add(_Atomic uint64_t *x, uint64_t n)
{
    atomic_store_explicit(x, get(x) + n, memory_order_relaxed);
}

static void raise_max(struct histogram *h, uint64_t value)
{
    if (value > get(&h->max))
        atomic_store_explicit(&h->max, value, memory_order_relaxed);
}

void histogram_record(struct histogram *h, uint64_t value)
{
    raise_max(h, value);
    add(&h->sum, value);
    add(&h->n, 1);
    add(&h->counts[bucket_of(value)], 1);
}

/* Which of n values in ascending order, counted from 1, is the q-quantile. */
static uint64_t rank_of(double q, uint64_t n)
{
    double exact = q * (double)n;
    uint64_t rank = exact < (double)n ? (uint64_t)exact : n;

    if (rank < n && (double)rank < exact)
        rank++;
    return rank > 0 ? rank : 1;
}

uint64_t histogram_quantile(const struct histogram *h, double q)
{
    uint64_t n = 0, seen = 0, rank, max = get(&h->max), last;
    unsigned b;

    assert(q >= 0 && q <= 1);
    /* Not h->n: it may be ahead of or behind the counts that this thread sees. */
    for (b = 0; b < HISTOGRAM_N_BUCKETS; b++)
        n += get(&h->counts[b]);
    if (n == 0)
        return 0;
    rank = rank_of(q, n);
    for (b = 0; b < HISTOGRAM_N_BUCKETS - 1; b++) {
        seen += get(&h->counts[b]);
        if (seen >= rank)
            break;
    }
    last = bucket_last(b);
    /* A max below the bucket is one that this thread has not seen rise yet. */
    return max >= bucket_first(b) && max < last ? max : last;
}

void histogram_merge(struct histogram *into, const struct histogram *from)
{
    unsigned b;

    raise_max(into, get(&from->max));
    add(&into->sum, get(&from->sum));
    add(&into->n, get(&from->n));
    for (b = 0; b < HISTOGRAM_N_BUCKETS; b++)
        add(&into->counts[b], get(&from->counts[b]));
}

static uint64_t above(const _Atomic uint64_t *now, const _Atomic uint64_t *before)
{
    uint64_t a = get(now), b = get(before);

    return a > b ? a - b : 0;
}

void histogram_difference(struct histogram *into, const struct histogram *now,
                          const struct histogram *before)
{
    uint64_t max = get(&now->max);

    add(&into->sum, above(&now->sum, &before->sum));
    add(&into->n, above(&now->n, &before->n));
    for (unsigned b = 0; b < HISTOGRAM_N_BUCKETS; b++) {
        uint64_t n = above(&now->counts[b], &before->counts[b]);

        add(&into->counts[b], n);
        if (n)
            raise_max(into, bucket_last(b) < max ? bucket_last(b) : max);
    }
}

uint64_t histogram_count_le(const struct histogram *h, uint64_t limit)
{
    unsigned b, last = bucket_of(limit);
    uint64_t n = 0;

    for (b = 0; b <= last; b++)
        n += get(&h->counts[b]);
    return n;
}

uint64_t histogram_bucket(const struct histogram *h, unsigned bucket, uint64_t *ret_last)
{
    *ret_last = bucket_last(bucket);
    return get(&h->counts[bucket]);
}

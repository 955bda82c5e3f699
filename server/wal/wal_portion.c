#include "server/wal/wal_portion.h"

#define FIRST_BYTES (UINT64_C(4) << 20)
#define SAMPLE_BYTES_MIN (UINT64_C(256) << 10) /* less says nothing of the speed */
#define PORTION_MS 40.0
#define FIXED_SHARE 10.0 /* a portion takes so many times what its sync costs by itself */
#define FADING 0.8       /* of what a portion counts, with each later one */
#define HALF_EVERY 4u
#define TRY_EVERY 16u
#define PLAIN_GAIN 1.1 /* compressed is the shorter log: it has to lose clearly */
#define MIB 1048576.0

void wal_portion_init(struct wal_portion *p)
{
    *p = (struct wal_portion){ .bytes = FIRST_BYTES, .compresses = true };
}

uint64_t wal_portion_next(const struct wal_portion *p)
{
    return p->n % HALF_EVERY == HALF_EVERY - 1 ? p->bytes / 2 : p->bytes;
}

/* ms = *ret_fixed + MiB * *ret_each. Where the points do not give a rising line: through the origin. */
static void fit(const struct wal_portion *p, double *ret_fixed, double *ret_each)
{
    double spread = p->w * p->xx - p->x * p->x;
    double each = spread > 0 ? (p->w * p->xy - p->x * p->y) / spread : 0;
    double fixed = (p->y - each * p->x) / p->w;

    if (spread < 1e-3 * p->x * p->x || each <= 0 || fixed < 0) {
        each = p->y / p->x;
        fixed = 0;
    }
    *ret_fixed = fixed;
    *ret_each = each;
}

static uint64_t portion_bytes(const struct wal_portion *p)
{
    double fixed, each, ms = PORTION_MS, bytes;

    fit(p, &fixed, &each);
    if (FIXED_SHARE * fixed > ms)
        ms = FIXED_SHARE * fixed;
    if (each * (double)WAL_PORTION_MAX <= ms * MIB)
        return WAL_PORTION_MAX;
    bytes = ms / each * MIB;
    return bytes < (double)WAL_PORTION_MIN ? WAL_PORTION_MIN : (uint64_t)bytes;
}

/* Is the next portion compressed? */
static bool choose(struct wal_portion *p, double mib_per_s)
{
    double *now = &p->mib_per_s[p->compresses];
    bool better;

    *now = *now > 0 ? (*now + mib_per_s) / 2 : mib_per_s;
    better = p->mib_per_s[0] < PLAIN_GAIN * p->mib_per_s[1];
    if (p->mib_per_s[!p->compresses] <= 0)
        return !p->compresses;
    return p->n % TRY_EVERY == TRY_EVERY - 1 ? !better : better;
}

void wal_portion_note(struct wal_portion *p, uint64_t n_bytes, uint64_t raw_bytes, uint64_t ns,
                      enum wal_portion_behind behind)
{
    double x = (double)n_bytes / MIB, y = (double)ns / 1e6;

    if (n_bytes < SAMPLE_BYTES_MIN)
        return;
    p->n++;
    p->w = FADING * p->w + 1;
    p->x = FADING * p->x + x;
    p->y = FADING * p->y + y;
    p->xx = FADING * p->xx + x * x;
    p->xy = FADING * p->xy + x * y;
    p->raw = FADING * p->raw + (double)raw_bytes / MIB;
    p->bytes = portion_bytes(p);
    p->compresses =
        behind == WAL_PORTION_LAST || choose(p, (double)raw_bytes / MIB / (y / 1000));
}

static uint64_t speed(const struct wal_portion *p, double mib)
{
    return p->y > 0 ? (uint64_t)(mib / p->y * 1000 * MIB) : 0;
}

uint64_t wal_portion_disk_speed(const struct wal_portion *p)
{
    return speed(p, p->x);
}

uint64_t wal_portion_raw_speed(const struct wal_portion *p)
{
    return speed(p, p->raw);
}

/*
 * The size of a portion: the bytes of the log that are written before a sync, computed from the times of the last
 * portions. A sync should be short: until it ends, memory is not freed and pushes wait. But each sync has a fixed cost
 * (a seek, a flush, the file system's journal), which should be a small share.
 *
 *     time of a portion = fixed + bytes / speed       a line through the last portions, newer ones counting more
 *     bytes             = speed * max(PORTION_MS, FIXED_SHARE * fixed), within WAL_PORTION_MIN and _MAX
 *
 * Every fourth portion is half as large, as a line needs two points.
 *
 * Compression spares the disk, but takes time of the same thread. While more than a portion waits, the faster of the
 * two ways is used, and the other one is tried with every sixteenth portion; else all portions are compressed.
 */
#ifndef SERVER_WAL_WAL_PORTION_H
#define SERVER_WAL_WAL_PORTION_H

#include <stdbool.h>
#include <stdint.h>

#define WAL_PORTION_MIN (UINT64_C(1) << 20)
#define WAL_PORTION_MAX (UINT64_C(16) << 20)

struct wal_portion {
    uint64_t bytes; /* the present size */
    uint32_t n;     /* portions so far */
    /* Sums over the last portions: their number, MiB, ms, squares, products, and MiB before compression. */
    double w, x, y, xx, xy, raw;
    bool compresses;     /* the present portion, where that shortens it */
    double mib_per_s[2]; /* of records, while more waited: plain, compressed; 0: not tried */
};

enum wal_portion_behind { WAL_PORTION_LAST, WAL_PORTION_MORE_WAITS };

void wal_portion_init(struct wal_portion *p);

/* After so many bytes a sync is due. */
uint64_t wal_portion_next(const struct wal_portion *p);

/* A sync has ended: n_bytes since the last one, raw_bytes before compression, took `ns` of writing and syncing. */
void wal_portion_note(struct wal_portion *p, uint64_t n_bytes, uint64_t raw_bytes, uint64_t ns,
                      enum wal_portion_behind behind);

/* The disk's speed, and the same in bytes before compression; 0: not known. */
uint64_t wal_portion_disk_speed(const struct wal_portion *p);
uint64_t wal_portion_raw_speed(const struct wal_portion *p);

#endif

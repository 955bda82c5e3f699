/*
 * The disk monitor: a thread that measures the bytes of checkpoints and logs in the data directory. It also reads all
 * of them again at intervals (a scrub), slowly, so that damage is known before the files are needed.
 *
 * A scrub checks every checksum and count, as psctl verify does, at DISK_MONITOR_BYTES_PER_S at most. It reads each
 * file once, and goes on behind damage. Sizes are measured meanwhile. Files that psd itself removes or truncates
 * meanwhile are not damage. Archived files are not scrubbed. A sector that cannot be read is damage, and so are
 * segments that are missing or truncated, if the control files of the logs (wal_control.h) name them.
 *
 *     DATA_DIR/scrub.state      when the last scrub ended, or psd first served: Unix ms
 *
 * So restarts do not put a scrub off. One that a restart interrupts begins anew.
 */
#ifndef SERVER_DISK_MONITOR_H
#define SERVER_DISK_MONITOR_H

#include "common/file.h"
#include "common/thread_role.h"
#include "server/admin/stats.h"

#define DISK_MONITOR_BYTES_PER_S (UINT64_C(32) << 20)

struct disk_monitor;

struct disk_monitor_config {
    const struct file_ops *files; /* borrowed */
    const char *data_dir;         /* borrowed */
    uint64_t
        scrub_every_ms; /* from the end of one to the next one, also across restarts; 0: none */
    uint64_t measure_every_ms; /* sizes, also during a scrub; 0: 10 s */
};

/* Starts the thread. Statuses of libuv, with a sentence. */
int disk_monitor_start(const struct disk_monitor_config *config, struct disk_monitor **ret,
                       struct err *err) MUST_CHECK;

/* The last measures, and scrub. NULL: zeros. Any thread. */
void disk_monitor_view(struct disk_monitor *w, struct stats_disk *ret);

/* Ends what it does, joins, frees. NULL is fine. */
void disk_monitor_close(struct disk_monitor *w);

#endif

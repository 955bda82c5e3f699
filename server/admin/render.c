#include "server/admin/render.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/clock.h"

/* What is wrong with the log of a shard; false: nothing. */
static bool describe_log(const struct shard_report *shard, char *ret_sentence, size_t n_bytes)
{
    const struct stats_log *log = &shard->log;

    if (log->is_failed)
        snprintf(ret_sentence, n_bytes,
                 "the write-ahead log of shard %" PRIu32 " %scannot be written: %s",
                 shard->shard,
                 log->has_gap ? "lacks records until the next checkpoint is written, and " : "",
                 shard->log_line_error);
    else if (log->has_gap)
        snprintf(ret_sentence, n_bytes,
                 "the write-ahead log of shard %" PRIu32
                 " lacks records until the next checkpoint is written",
                 shard->shard);
    else if (log->waited_ms > RENDER_DISK_MS)
        snprintf(ret_sentence, n_bytes,
                 "the disk is slow: replies of shard %" PRIu32 " have waited for %" PRIu64
                 " ms for their records to be safe",
                 shard->shard, log->waited_ms);
    return log->is_failed || log->has_gap || log->waited_ms > RENDER_DISK_MS;
}

int render_health(const struct node_report *node, char *ret_sentence, size_t n_bytes)
{
    char since[CLOCK_TEXT_MAX];

    for (uint32_t i = 0; i < node->n_shards; i++) {
        const struct shard_report *shard = node->shards[i];
        uint64_t age_ms = shard && node->clock_mono_ms > shard->made_mono_ms
                              ? node->clock_mono_ms - shard->made_mono_ms
                              : 0;

        if (!shard && node->ready) {
            snprintf(ret_sentence, n_bytes, "shard %" PRIu32 " has not reported yet", i);
            return -1;
        }
        if (age_ms > RENDER_STUCK_MS && !node->restore.is_on) { /* one that loads makes none */
            snprintf(ret_sentence, n_bytes,
                     "shard %" PRIu32 " is stuck: its last report is %" PRIu64 " ms old",
                     shard->shard, age_ms);
            return -1;
        }
        if (shard && describe_log(shard, ret_sentence, n_bytes))
            return -1;
    }
    if (node->last_checkpoint_error[0]) {
        snprintf(ret_sentence, n_bytes, "the last checkpoint failed: %s",
                 node->last_checkpoint_error);
        return -1;
    }
    if (node->standby.wait[0]) {
        snprintf(ret_sentence, n_bytes, "%s", node->standby.wait);
        return -1;
    }
    if (node->standby.is_missing && node->standby.gone_unix_ms) {
        clock_utc_text(node->standby.gone_unix_ms, since);
        snprintf(
            ret_sentence, n_bytes,
            "ok, but standby %s is %s since %s: a failure of this node may lose pushes%s%s",
            node->standby.peer,
            strcmp(node->standby.state, "no standby") == 0 ? "gone" : "silent", since,
            node->standby.refusal[0] ? "; " : "", node->standby.refusal);
    } else if (node->standby.refusal[0]) {
        snprintf(ret_sentence, n_bytes, "ok, but %s", node->standby.refusal);
    } else if (node->standby.is_missing)
        snprintf(ret_sentence, n_bytes,
                 "ok, but standby %s is not in sync: a failure of this node may lose pushes",
                 node->standby.peer);
    else if (node->coordination.is_away)
        snprintf(ret_sentence, n_bytes,
                 "ok, but the coordination service does not answer, and no standby takes over: "
                 "%s",
                 node->coordination.error);
    else
        snprintf(ret_sentence, n_bytes, "ok");
    return 0;
}

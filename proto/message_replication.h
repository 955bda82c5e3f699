/*
 * The messages between a standby and its primary, and of those who watch which psd is the primary. As in message.h,
 * message_write_X() appends a whole frame, and message_read_X() returns 0, -ENOMEM, or PS_EPROTO or PS_ECOUNT of a head
 * or body that makes no sense. Bodies are borrowed.
 *
 *     frame         who asks, where             its body
 *     follow        standby, at the listener    terms
 *     follow reply                              terms
 *     file reply    standby, at the listener    bytes of the file; of the list, a line "BYTES NAME" for each file
 *     fetch reply   standby, at a shard         records, as in a block of the log (server/wal/wal_block.h)
 *     watch         watcher, at the listener    -
 *
 * Terms, oldest first, each: its number, then of each shard the number of the first record that was made in it. 8 bytes
 * each, little-endian.
 */
#ifndef PROTO_MESSAGE_REPLICATION_H
#define PROTO_MESSAGE_REPLICATION_H

#include "proto/message.h"

#define MESSAGE_SETTINGS_MAX 512u  /* of follow, with NUL */
#define MESSAGE_FILE_NAME_MAX 128u /* with NUL */
#define MESSAGE_NODE_SHARDS_MAX 1024u
#define MESSAGE_TERMS_MAX 64u
#define MESSAGE_AUDIT_MAX 1544u /* bytes: server/replication/audit.h */
#define MESSAGE_FETCH_REPLY_MAX \
    2048u /* bytes of a fetch reply before its records, at most: header and head */

enum follow_action {
    FOLLOW_GO_ON = 1, /* with the record behind `keep`; what is behind it the standby drops */
    FOLLOW_COPY = 2,  /* the files first */
    FOLLOW_TAKE_OVER =
        3, /* the standby has acknowledged records that this node has lost: it becomes the primary */
    FOLLOW_ACTION_END
};

/* What the primary had when its newest term began. */
enum follow_begun {
    FOLLOW_BEGUN_UNKNOWN, /* an older psd, or that term began in an earlier run */
    FOLLOW_BEGUN_WHOLE,   /* all that had been acknowledged */
    FOLLOW_BEGUN_SEEN,    /* the same, unless the primary before it went on without this one */
    FOLLOW_BEGUN_LOSSY,   /* perhaps less: a person accepted a loss */
    FOLLOW_BEGUN_END
};

struct follow {
    uint64_t term, history;
    uint32_t features;
    uint64_t memory_max;
    char settings[MESSAGE_SETTINGS_MAX];
    char cpu[64];
    char address[MESSAGE_ADDRESS_MAX];
    uint32_t n_shards;
    uint64_t last[MESSAGE_NODE_SHARDS_MAX];
    /* What the primary has said to have on its disk, in this run of the standby; 0: nothing is known. */
    uint64_t stored[MESSAGE_NODE_SHARDS_MAX];
    uint32_t n_terms;
    const uint8_t *terms; /* borrowed: n_terms * (1 + n_shards) * 8 bytes */
};

struct follow_reply {
    int status;
    char text[MESSAGE_TEXT_MAX];
    uint64_t term, history;
    enum follow_action action;              /* with status 0 */
    uint32_t n_shards;                      /* with status 0 */
    uint64_t keep[MESSAGE_NODE_SHARDS_MAX]; /* FOLLOW_GO_ON; else 0 */
    uint32_t n_terms;
    const uint8_t *terms; /* borrowed */
    char cpu[64];
    enum follow_begun begun;
    uint32_t patience_ms; /* the primary's --standby-patience; 0: it does not say */
};

struct file_request {
    char name[MESSAGE_FILE_NAME_MAX]; /* "": the list */
    uint64_t offset;
    uint32_t max_bytes;
};

struct file_reply {
    int status;
    char text[MESSAGE_TEXT_MAX];
    uint64_t file_bytes;
    const uint8_t *bytes; /* borrowed */
    size_t n_bytes;
};

struct fetch {
    uint64_t term, next, durable, applied, heard_ms;
    uint32_t wait_ms, max_bytes;
    char differs[MESSAGE_TEXT_MAX]; /* a sentence; "": no row does, as far as is known */
};

struct fetch_reply {
    int status;
    char text[MESSAGE_TEXT_MAX];
    uint64_t term, first, appended, durable, sent_ms;
    bool in_sync;    /* the primary's replies wait for this standby */
    bool hands_over; /* it acknowledges nothing more here: the standby is to take over */
    uint32_t n_records;
    const uint8_t *records; /* borrowed */
    size_t record_bytes;
    uint32_t audit_bytes;
    uint8_t audit[MESSAGE_AUDIT_MAX];
};

struct watch {
    uint64_t above;
    uint32_t wait_ms;
};

struct watch_reply {
    int status;
    char text[MESSAGE_TEXT_MAX];
    struct groups groups;
};

/* Of n terms of so many shards. */
static inline size_t message_terms_bytes(uint32_t n_terms, uint32_t n_shards)
{
    return (size_t)n_terms * (1 + n_shards) * 8;
}

int message_write_follow(struct bytes *out, uint64_t request_id, const struct follow *m)
    MUST_CHECK;
int message_write_follow_reply(struct bytes *out, uint64_t request_id,
                               const struct follow_reply *m) MUST_CHECK;
int message_write_file(struct bytes *out, uint64_t request_id, const struct file_request *m)
    MUST_CHECK;
int message_write_file_reply(struct bytes *out, uint64_t request_id, const struct file_reply *m)
    MUST_CHECK;
int message_write_fetch(struct bytes *out, uint64_t request_id, const struct fetch *m)
    MUST_CHECK;
int message_write_fetch_reply(struct bytes *out, uint64_t request_id,
                              const struct fetch_reply *m) MUST_CHECK;
/* The same around records that stand in *records alone, behind MESSAGE_FETCH_REPLY_MAX free bytes, and whose crc32c is
 * known: they are neither read nor moved. reply's own are not used. */
int message_write_fetch_reply_around(struct bytes *records, uint32_t crc, uint64_t request_id,
                                     const struct fetch_reply *m) MUST_CHECK;
int message_write_watch(struct bytes *out, uint64_t request_id, const struct watch *m)
    MUST_CHECK;
int message_write_watch_reply(struct bytes *out, uint64_t request_id,
                              const struct watch_reply *m) MUST_CHECK;

/* `body` and `body_bytes` as message_body() gave them. */
int message_read_follow(const struct frame_header *h, const uint8_t *head, const uint8_t *body,
                        size_t body_bytes, struct follow *ret) MUST_CHECK;
int message_read_follow_reply(const struct frame_header *h, const uint8_t *head,
                              const uint8_t *body, size_t body_bytes, struct follow_reply *ret)
    MUST_CHECK;
int message_read_file(const struct frame_header *h, const uint8_t *head,
                      struct file_request *ret) MUST_CHECK;
int message_read_file_reply(const struct frame_header *h, const uint8_t *head,
                            const uint8_t *body, size_t body_bytes, struct file_reply *ret)
    MUST_CHECK;
int message_read_fetch(const struct frame_header *h, const uint8_t *head, struct fetch *ret)
    MUST_CHECK;
int message_read_fetch_reply(const struct frame_header *h, const uint8_t *head,
                             const uint8_t *body, size_t body_bytes, struct fetch_reply *ret)
    MUST_CHECK;
int message_read_watch(const struct frame_header *h, const uint8_t *head, struct watch *ret)
    MUST_CHECK;
int message_read_watch_reply(const struct frame_header *h, const uint8_t *head,
                             struct watch_reply *ret) MUST_CHECK;

#endif

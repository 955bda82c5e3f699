/*
 * A whole message: plain structs here, protobuf-c heads and raw bodies on the wire. Only
 * message*.c know protobuf-c.
 *
 * message_write_X() appends one whole frame (header, head, body) to a buf, which is what
 * channel_send() takes. message_read_X() fills a plain struct from a frame's head and body,
 * after it has held all counts and lengths against each other and the body; strings are copied,
 * sections borrow the body. Both return 0, -ENOMEM (PS_ETOOBIG when a frame would pass its
 * limits), or for a read PS_EPROTO / PS_ECOUNT / PS_ECODEC: a peer can make them fail but not
 * harm. After a failed read *ret holds nothing of use.
 *
 *     frame         its body
 *     push          for each section its keys, then its values
 *     pull          for each section its keys
 *     pull reply    for each section its values
 *     admin reply   JSON text
 *
 * A body is compressed with zstd (level 1) when the caller asks and it gets at least 1/16
 * smaller; message_body() undoes that.
 */
#ifndef PROTO_MESSAGE_H
#define PROTO_MESSAGE_H

#include <stdbool.h>

#include "common/bytes.h"
#include "proto/frame.h"
#include "proto/group.h"
#include "proto/learning.h"
#include "proto/section.h"
#include "proto/table_spec.h"

#define PROTO_VERSION_MIN 1u
#define PROTO_VERSION_MAX 1u
#define MESSAGE_TEXT_MAX 256u /* a sentence in a reply, with NUL; longer is cut */
#define MESSAGE_SHARD_LISTENER UINT32_MAX

struct hello {
    uint32_t version_min, version_max;
    char role[16];
    char token[128];
    uint32_t shard; /* index on the node, or MESSAGE_SHARD_LISTENER */
    uint64_t map_id;
    char name[64];
    uint32_t frame_flags; /* enum frame_flag, that the caller understands */
};

/* The version that both will speak: the newest of psd's that the client knows. */
static inline uint32_t message_common_version(const struct hello *hello)
{
    return hello->version_max < PROTO_VERSION_MAX ? hello->version_max : PROTO_VERSION_MAX;
}

struct hello_reply {
    int status;
    char text[MESSAGE_TEXT_MAX];
    uint32_t version;
    uint32_t n_nodes, node, shards_per_node;
    uint64_t map_id;
    uint32_t frame_max_bytes;
    char nodes[MESSAGE_NODES_MAX][MESSAGE_ADDRESS_MAX];
    struct groups groups; /* none: nodes have no standbys */
};

struct table_request {
    struct table_spec spec;
    bool must_exist;
};

struct table_reply {
    int status;
    char text[MESSAGE_TEXT_MAX];
    uint32_t table_id;
    struct table_spec spec;
    uint32_t features; /* MESSAGE_FEATURE_*: what its sections may ask for */
};

/* Pushes of SECTION_ASSIGN_STATE, pulls with `present`, and scans (section.h). */
#define MESSAGE_FEATURE_WHOLE_TABLES 1u
/* Pushes of SECTION_RATE. */
#define MESSAGE_FEATURE_RATES 2u
/* Pushes of SECTION_GRADIENT_AT. */
#define MESSAGE_FEATURE_DELAYS 4u
/* Pulls of rows as differences (struct section_delta). */
#define MESSAGE_FEATURE_DELTAS 8u
/* ... of SECTION_DELTA_SPARSE. */
#define MESSAGE_FEATURE_SPARSE_DELTAS 16u

struct join {
    char job[TABLE_SPEC_NAME_MAX];
    uint32_t rank, n_workers;
    uint64_t incarnation;
    enum table_spec_mode mode;
    uint32_t bound;
    uint64_t clock, last_acked;
    char name[64];
    bool relays; /* it carries suspicions between its shards */
    uint32_t n_backups;
    /* After a read that failed: which field is wrong, and why; borrowed, static. NULL: the head as a whole. */
    const char *wrong;
};

struct join_reply {
    int status;
    char text[MESSAGE_TEXT_MAX];
    uint64_t last_applied, clock, min_clock;
    uint32_t lease_ms;
    bool resumed;          /* the shard still knew this incarnation: a reconnect */
    uint64_t fenced_below; /* with PS_EFENCED: the smallest incarnation that may join */
    uint64_t refused_seq;  /* the last push of this incarnation that was refused; 0: none */
    int refused_status;
    /* Pushes of this incarnation that were acknowledged and are lost, first to last; 0: none. */
    uint64_t lost_first, lost_last;
    uint64_t skipped_clocks; /* of this rank, that none of its incarnations has finished */
    uint32_t n_backups;      /* of the job */
};

struct pull_reply {
    int status;
    char text[MESSAGE_TEXT_MAX];
    uint64_t min_clock, version;
    bool kept; /* the shard keeps the pull's keys */
    uint32_t n_sections;
    struct {
        const uint8_t *values;
        size_t value_bytes;
    } sections[SECTIONS_MAX];
};

struct push_reply {
    int status;
    char text[MESSAGE_TEXT_MAX];
    uint64_t seq, min_clock, version, rows_refused;
    bool repeated, late;
};

#define MESSAGE_SUSPECTS_MAX 16u /* in one message; others come in the next one */

/* A worker whose lease at a shard is over. */
struct suspect {
    uint32_t rank;
    uint64_t incarnation;
    uint64_t clock; /* in a reply: steps that it had finished at this shard */
    bool is_agreed; /* in a beat: all shards of the sender have fenced it */
};

struct suspects {
    uint32_t n;
    struct suspect items[MESSAGE_SUSPECTS_MAX];
};

struct beat {
    uint64_t clock;
    struct suspects suspects;
    bool has_learning;
    struct learning_report learning;
    /* Of a reader: the worker that it was; else "". */
    char job[TABLE_SPEC_NAME_MAX];
    uint32_t rank;
    uint64_t incarnation;
};

struct status_reply { /* beat, leave, admin */
    int status;
    char text[MESSAGE_TEXT_MAX];
    uint64_t min_clock;
    struct suspects suspects; /* of a beat */
    struct suspects doubted;  /* of a beat, with -EINPROGRESS: named in it, and not refused */
    uint64_t groups_number;   /* of a beat: as hello_reply.groups.number; 0: there are none */
};

struct admin {
    char command[32];
    char argument[256];
};

/* The zstd state with which a thread compresses and decompresses (message_zstd.h). */
struct message_zstd;

/* The body of a frame as it was before compression: `body` itself, or *scratch filled with it.
 * PS_ECORRUPT if it is no zstd frame, PS_ETOOBIG if it would pass max_bytes. */
int message_body(struct message_zstd *zstd, const struct frame_header *header,
                 const uint8_t *body, uint32_t max_bytes, struct bytes *scratch,
                 const uint8_t **ret_body, size_t *ret_bytes) MUST_CHECK;

/* The length that the body states, without decompressing it. The same errors. */
int message_body_size(const struct frame_header *header, const uint8_t *body,
                      uint32_t max_bytes, size_t *ret_bytes) MUST_CHECK;

int message_write_hello(struct bytes *out, uint64_t request_id, const struct hello *m)
    MUST_CHECK;
int message_write_hello_reply(struct bytes *out, uint64_t request_id,
                              const struct hello_reply *m) MUST_CHECK;
int message_write_table(struct bytes *out, uint64_t request_id, const struct table_request *m)
    MUST_CHECK;
int message_write_table_reply(struct bytes *out, uint64_t request_id,
                              const struct table_reply *m) MUST_CHECK;
int message_write_join(struct bytes *out, uint64_t request_id, const struct join *m) MUST_CHECK;
int message_write_join_reply(struct bytes *out, uint64_t request_id, const struct join_reply *m)
    MUST_CHECK;
int message_write_push_reply(struct bytes *out, uint64_t request_id, const struct push_reply *m)
    MUST_CHECK;
int message_write_beat(struct bytes *out, uint64_t request_id, const struct beat *m) MUST_CHECK;
int message_write_leave(struct bytes *out, uint64_t request_id, uint64_t clock) MUST_CHECK;
int message_write_admin(struct bytes *out, uint64_t request_id, const struct admin *m)
    MUST_CHECK;
/* `type`: FRAME_BEAT_REPLY or FRAME_LEAVE_REPLY. */
int message_write_status_reply(struct bytes *out, enum frame_type type, uint64_t request_id,
                               const struct status_reply *m) MUST_CHECK;
int message_write_admin_reply(struct bytes *out, uint64_t request_id,
                              const struct status_reply *m, const char *json, size_t json_bytes)
    MUST_CHECK;

/* Pull and push copy the bytes that their sections point to into the frame, with zstd where
 * that pays; NULL: as they are. */
int message_write_pull(struct bytes *out, uint64_t request_id, const struct pull *m,
                       struct message_zstd *zstd) MUST_CHECK;
int message_write_push(struct bytes *out, uint64_t request_id, const struct push *m,
                       struct message_zstd *zstd) MUST_CHECK;

/*
 * A pull's reply is filled in place: begin reserves header, head and body in `out` and returns
 * where the values of section i go (value_bytes[i] each, one behind the other). Then one of
 *
 *     sum ... -> end    the crc is taken while values are near (`end`: behind the last one that is
 *                       written; sum may be left out); *crc begins as zeroes
 *     pack              with zstd where that pays
 *
 * If sections have become shorter than planned, trim comes before end or pack, and there is no sum. The values stand
 * one behind the other; m has their lengths, and otherwise the arguments of begin.
 *
 * A refused pull has n_sections 0. When begin fails *out is empty.
 *
 * A reply in chunks (FRAME_SUM_BEHIND): open appends only the header and the head to *out, which was empty, and begins
 * the crc. The values follow as they are made, then frame_put_sum().
 */
int message_begin_pull_reply(struct bytes *out, uint64_t request_id, const struct pull_reply *m,
                             uint8_t **ret_values) MUST_CHECK;
void message_sum_pull_reply(const struct bytes *out, const uint8_t *end, struct frame_crc *crc);
void message_end_pull_reply(struct bytes *out, struct frame_crc *crc);
void message_trim_pull_reply(struct bytes *out, const struct pull_reply *m);
void message_pack_pull_reply(struct bytes *out, struct message_zstd *zstd);

int message_open_pull_reply(struct bytes *out, uint64_t request_id, const struct pull_reply *m,
                            struct frame_crc *ret_crc) MUST_CHECK;

int message_read_hello(const struct frame_header *h, const uint8_t *head, struct hello *ret)
    MUST_CHECK;
int message_read_hello_reply(const struct frame_header *h, const uint8_t *head,
                             struct hello_reply *ret) MUST_CHECK;
int message_read_table(const struct frame_header *h, const uint8_t *head,
                       struct table_request *ret) MUST_CHECK;
int message_read_table_reply(const struct frame_header *h, const uint8_t *head,
                             struct table_reply *ret) MUST_CHECK;
int message_read_join(const struct frame_header *h, const uint8_t *head, struct join *ret)
    MUST_CHECK;
int message_read_join_reply(const struct frame_header *h, const uint8_t *head,
                            struct join_reply *ret) MUST_CHECK;
int message_read_push_reply(const struct frame_header *h, const uint8_t *head,
                            struct push_reply *ret) MUST_CHECK;
int message_read_beat(const struct frame_header *h, const uint8_t *head, struct beat *ret)
    MUST_CHECK;
int message_read_leave(const struct frame_header *h, const uint8_t *head, uint64_t *ret_clock)
    MUST_CHECK;
int message_read_admin(const struct frame_header *h, const uint8_t *head, struct admin *ret)
    MUST_CHECK;
int message_read_status_reply(const struct frame_header *h, const uint8_t *head,
                              struct status_reply *ret) MUST_CHECK;

/* `body` and `body_bytes` as message_body() gave them; sections borrow it. NULL, and what message_body_size() gave: the
 * head is held against the length, and sections have no keys and values. */
int message_read_pull(const struct frame_header *h, const uint8_t *head, const uint8_t *body,
                      size_t body_bytes, struct pull *ret) MUST_CHECK;
int message_read_push(const struct frame_header *h, const uint8_t *head, const uint8_t *body,
                      size_t body_bytes, struct push *ret) MUST_CHECK;
int message_read_pull_reply(const struct frame_header *h, const uint8_t *head,
                            const uint8_t *body, size_t body_bytes, struct pull_reply *ret)
    MUST_CHECK;

#endif

/*
 * The terms of a node: who was the primary of its shards, from which record on. DATA_DIR/TERMS keeps them, with what
 * this psd was at its last run. Without replication there is no such file.
 *
 * A term is a stretch of log that one primary wrote. Two members of one history that both have record n of one term
 * have the same records up to n. So terms_common() finds how much of two logs is equal without reading them.
 *
 *     psd terms 2
 *     history 8f14e45fceea167a      random; another one with each timeline (log epoch)
 *     timeline 0                    the log epoch that these terms are of
 *     role primary                  or standby
 *     in-sync yes                   primary: no reply went out before the standby had its record
 *     ack got                       primary: what the standby acknowledged: no, got, disk
 *     durable yes                   primary: no reply went out before its record was on this disk
 *     peer 10.0.0.2:7070            the other member; "-": none
 *     shards 2
 *     term 1 1 1                    its number, then the first record of each shard; oldest first
 *     term 2 5812 5790
 *     crc32c 0a1b2c3d               of all bytes before this line
 *
 * Files of version 1 do not say what was durable: that counts as no.
 */
#ifndef SERVER_REPLICATION_TERMS_H
#define SERVER_REPLICATION_TERMS_H

#include <stdbool.h>

#include "common/file.h"
#include "common/status.h"
#include "proto/message_replication.h"

#define TERMS_KEPT_MAX 32u /* later ones drop the oldest */
#define TERMS_NUMBER_MAX \
    (UINT64_MAX / 2) /* of a term that is believed: others come behind it */
#define TERMS_RESTART_STEP_MAX UINT64_C(65536) /* a restart goes up by so much at most */
#define TERMS_PROMOTION_STEP \
    (UINT64_C(1)             \
     << 32) /* a promotion begins the next multiple: no restart of the old primary gets there */

enum terms_role { TERMS_PRIMARY, TERMS_STANDBY };

/* What a standby has done with a record before the primary's reply goes out. */
enum terms_ack { TERMS_ACK_NO, TERMS_ACK_GOT, TERMS_ACK_DISK, TERMS_ACK_END };

struct terms_item {
    uint64_t term;
    uint64_t *first; /* owned: n_shards */
};

/* A zeroed one has no history. */
struct terms {
    uint64_t history; /* 0: none */
    uint64_t timeline;
    enum terms_role role;
    enum terms_ack ack;
    bool in_sync;
    bool is_durable;
    char peer[MESSAGE_ADDRESS_MAX]; /* "": none */
    uint32_t n_shards, n;
    struct terms_item
        items[MESSAGE_TERMS_MAX]; /* ascending terms; this file begins with TERMS_KEPT_MAX */
};

void terms_deinit(struct terms *t);

/* Of DATA_DIR/TERMS. Without such a file *ret is zeroed but for n_shards. One of another layout keeps role, peer and
 * in_sync, but no history. PS_ECORRUPT, -ENOMEM, errors of files: *ret is zeroed. */
int terms_read(const struct file_ops *files, const char *data_dir, uint32_t n_shards,
               struct terms *ret, struct err *err) MUST_CHECK;

/* Replaces the file in one step; it is on the disk when this returns 0. Else the old or the new one is there. */
int terms_write(const struct file_ops *files, const char *data_dir, const struct terms *t,
                struct err *err) MUST_CHECK;

/* Begins a term with these records (n_shards of them, copied; NULL: all 1). term is above terms_last(). */
void terms_begin(struct terms *t, uint64_t term, const uint64_t *first);

/* For a new history; not 0. */
uint64_t terms_random(void);

/* The two are of one primary and its restarts: no promotion lies between them. */
bool terms_is_one_reign(uint64_t a, uint64_t b);

/* Begins a history without terms. history: not 0. */
void terms_begin_history(struct terms *t, uint64_t history, uint64_t timeline,
                         uint32_t n_shards);

/* The newest term; 0: none. */
uint64_t terms_last(const struct terms *t);

/* The term that a restart of the primary begins, by `random`: of two copies of one directory that start apart each
 * begins another one, and the greater one is the primary. */
uint64_t terms_restarted(uint64_t newest, uint64_t random);

/* The term that a promotion begins: the next multiple of TERMS_PROMOTION_STEP, and up to half a step more, by `random`:
 * two members that are promoted apart, each without a word of the other, do not begin the same one. */
uint64_t terms_promoted(uint64_t newest, uint64_t random);

/* Replaces history and list with those of `from`; what is this psd's own stays. */
void terms_adopt(struct terms *t, const struct terms *from);

/* The list as the body of FOLLOW and its reply (message_terms_bytes()), and back; terms_take() begins with history,
 * and replaces history, layout and list of *ret. PS_EPROTO: the numbers make no sense; -ENOMEM; then *ret stays. */
void terms_put(const struct terms *t, uint8_t *dst);
int terms_take(struct terms *ret, uint64_t history, const uint8_t *src, uint32_t n_terms,
               uint32_t n_shards) MUST_CHECK;

/* ret_keep (n_shards): for each shard the last record that both logs have, which end with these records. False: they
 * have another history or layout, or their lists know no common term: ret_keep is all 0. */
bool terms_common(const struct terms *mine, const struct terms *theirs,
                  const uint64_t *mine_last, const uint64_t *their_last, uint64_t *ret_keep);

#endif

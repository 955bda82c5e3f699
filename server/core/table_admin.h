/*
 * An operator's changes to the tables of a job: dropping them, or giving them other settings. The tables of job J are
 * the table "J" and those whose names begin with "J/". Both need a job without expected or live workers: then all
 * shards change them between the same two steps, and no worker goes on with the earlier tables. The same holds for the
 * workers of jobs "J/..." and, if J has a slash itself, of the jobs whose names J begins with.
 *
 * Tables that only add (table_spec_only_adds()) keep their settings: nothing in them is trained, and their worker asks
 * for these. Under its own name such a table can be changed, too.
 *
 * Each table is one event (shard_events.h): after a crash at any moment it is there whole, or not at all; it has all
 * of the old settings, or all of the new ones. A second call does what the first one has left.
 *
 * An id is never given twice, so a client that still has the id of a dropped table is refused with PS_ENOTABLE.
 */
#ifndef SERVER_CORE_TABLE_ADMIN_H
#define SERVER_CORE_TABLE_ADMIN_H

#include "server/core/shard.h"

struct table_admin_counts {
    uint32_t n_tables;
    uint64_t n_rows, n_bytes;
};

/* The job's tables here that would be dropped, or (is_set) be given other settings. */
void table_admin_count(struct shard *s, const char *job, bool is_set,
                       struct table_admin_counts *ret) ON_SHARD;

/* The job that has most tables here: what their names have before the first slash. Returns how many; 0: there is none,
 * or no memory to count. Takes a millisecond for 10,000 tables. */
uint32_t table_admin_most(const struct shard *s, char ret_job[static TABLE_SPEC_NAME_MAX])
    ON_SHARD;

/* Checks that the tables may be dropped, or be given these settings (NULL: dropped). -EBUSY: a worker of the job, or of
 * one that may share its tables, is live or expected, or pushes of another job are held for one of the tables; err says
 * which. -EINVAL: the job's name is invalid. PS_ESPEC: one of the tables cannot have the settings. */
int table_admin_check(struct shard *s, const char *job, const char *settings, struct err *err)
    ON_SHARD MUST_CHECK;

/* From here until table_admin_unlock(), or until_ms, nobody joins the job, or one that may share its tables, at this
 * shard (table_admin_may_join()). So a worker that comes while some shards have been changed finds the change at all of
 * them. -EBUSY with a sentence: the tables are locked already, or too many others are. */
int table_admin_lock(struct shard *s, const char *job, uint64_t now_ms, uint64_t until_ms,
                     struct err *err) ON_SHARD MUST_CHECK;
void table_admin_unlock(struct shard *s, const char *job) ON_SHARD;

/* 0, or -EBUSY with a sentence: the job's tables are being changed. */
int table_admin_may_join(const struct shard *s, const char *job, uint64_t now_ms,
                         struct err *err) ON_SHARD MUST_CHECK;

/* Drops all tables of the job. *ret counts the dropped ones, also on failure: statuses of table_admin_check(), -EAGAIN
 * (the log is full), -ENOMEM. Then end the pulls that would read them. */
int table_admin_drop(struct shard *s, const char *job, struct table_admin_counts *ret,
                     struct err *err) ON_SHARD MUST_CHECK;

/* Gives each of them the settings "NAME=VALUE,..." (table_spec_set()). Else as table_admin_drop(). */
int table_admin_set(struct shard *s, const char *job, const char *settings,
                    struct table_admin_counts *ret, struct err *err) ON_SHARD MUST_CHECK;

/* For replay: the table's specification from now on. PS_ESPEC with a sentence: it is no specification, or another
 * table's, or rows would have to change. */
int table_admin_set_spec(struct shard *s, uint32_t id, const struct table_spec *spec,
                         struct err *err) ON_SHARD MUST_CHECK;

#endif

/*
 * Whether a psd follows another one, from its start on: it was told so with --standby, or it was a standby at its last
 * run (DATA_DIR/TERMS). What TERMS knows wins: --standby counts only if it names somebody else than the partner there,
 * and was not done before. DATA_DIR/PROMOTED has the option that is done: by a promotion, or because this psd has
 * learned of a later primary; as at and restore are done once (start_source.h).
 */
#ifndef SERVER_STANDBY_ROLE_H
#define SERVER_STANDBY_ROLE_H

#include "common/file.h"
#include "proto/message.h"
#include "server/replication/terms.h"
#include "server/settings.h"

/* ret_primary: HOST:PORT; "": this psd follows nobody. Statuses of the file system; PS_ECORRUPT: the directory's role
 * cannot be read, and --standby is not given. */
int standby_role_read(const struct file_ops *files, const struct settings *s,
                      char ret_primary[static MESSAGE_ADDRESS_MAX], struct err *err) MUST_CHECK;

/* The option --standby, if there is one, is done. Before TERMS says that this psd is the primary. */
int standby_role_note_done(const struct file_ops *files, const struct settings *s,
                           struct err *err) MUST_CHECK;

/* *ret: this psd was the primary of whom --standby names: it serves once that one has said that it is a standby. */
int standby_role_names_partner(const struct file_ops *files, const struct settings *s,
                               const struct terms *t, bool *ret, struct err *err) MUST_CHECK;

/* Before TERMS has another role than primary: whether its standby was in sync, for standby_role_was_primary(). */
int standby_role_note_deposed(const struct file_ops *files, const char *data_dir,
                              const struct terms *t, struct err *err) MUST_CHECK;

/* True if this psd was the primary of the newest term in *t: its directory's TERMS says so, or DATA_DIR/DEPOSED, which
 * standby_role_note_deposed() leaves. *ret_alone: it ended without a standby in sync. */
bool standby_role_was_primary(const struct file_ops *files, const char *data_dir,
                              const struct terms *t, bool *ret_alone);

/* The next start follows the peer in TERMS: it is the primary now. */
int standby_role_follow(const struct file_ops *files, const struct settings *s, struct err *err)
    MUST_CHECK;

#endif

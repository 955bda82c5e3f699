/*
 * Whether a psd follows another one, from its start on: it was told so with --standby, or it was a standby at its last
 * run (DATA_DIR/TERMS). A standby that was promoted goes on as the primary, though its command line still says
 * --standby: DATA_DIR/PROMOTED has the option that is done, as at and restore are done once (start_source.h).
 */
#ifndef SERVER_STANDBY_ROLE_H
#define SERVER_STANDBY_ROLE_H

#include "common/file.h"
#include "proto/message.h"
#include "server/settings.h"

/* ret_primary: HOST:PORT; "": this psd follows nobody. Statuses of the file system; PS_ECORRUPT: the directory's role
 * cannot be read, and --standby is not given. */
int standby_role_read(const struct file_ops *files, const struct settings *s,
                      char ret_primary[static MESSAGE_ADDRESS_MAX], struct err *err) MUST_CHECK;

/* The option --standby of that address is done. Before TERMS says that this psd is the primary. */
int standby_role_promoted(const struct file_ops *files, const char *data_dir,
                          const char *primary, struct err *err) MUST_CHECK;

/* The next start follows the peer in TERMS: it is the primary now. */
int standby_role_follow(const struct file_ops *files, const struct settings *s, struct err *err)
    MUST_CHECK;

#endif

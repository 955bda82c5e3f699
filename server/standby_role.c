#include "server/standby_role.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/file_text.h"
#include "common/log_line.h"
#include "server/replication/terms.h"

#define NAME "PROMOTED"
#define DEPOSED_NAME "DEPOSED"
#define DEPOSED_BYTES 64u
#define PATH_BYTES 1100u

int standby_role_note_done(const struct file_ops *files, const struct settings *s,
                           struct err *err)
{
    return s->standby[0] ? file_text_replace(files, s->data_dir, NAME, s->standby,
                                             strlen(s->standby), err)
                         : 0;
}

/* The directory knows later terms than those of the primary that --standby names. */
static int is_done(const struct file_ops *files, const struct settings *s, bool *ret,
                   struct err *err)
{
    struct bytes text = { 0 };
    char path[PATH_BYTES];
    int status;

    *ret = false;
    snprintf(path, sizeof path, "%s/" NAME, s->data_dir);
    status = file_text_read(files, path, MESSAGE_ADDRESS_MAX, &text);
    *ret = !status && strcmp((const char *)text.bytes + text.start, s->standby) == 0;
    bytes_deinit(&text);
    if (status && status != -ENOENT && status != PS_ECORRUPT)
        return err_set(err, status, "cannot read: %s: %s", status_text(status), path);
    return 0;
}

static void log_known(const struct settings *s, const struct terms *t, bool done)
{
    if (t->role == TERMS_PRIMARY && done)
        log_line_info("--standby %.100s is done: this psd was promoted, and goes on as the "
                      "primary",
                      s->standby);
    else if (t->role == TERMS_PRIMARY)
        log_line_info("--standby %.100s: this psd was the primary of that one, and asks it who "
                      "is the primary now",
                      s->standby);
    else if (strcmp(s->standby, t->peer) != 0)
        log_line_info("--standby %.100s is done: that was the primary before, and this psd "
                      "follows %.100s, as its directory says",
                      s->standby, t->peer);
}

enum option { OPTION_NONE, OPTION_FOLLOWED, OPTION_PARTNER, OPTION_DONE };

/* --standby counts if it names somebody whom the directory does not know. The partner in TERMS, and one of before, are
 * known: what this psd is to the first is in TERMS, and the second one's time is over. */
static int read_option(const struct file_ops *files, const struct settings *s,
                       const struct terms *t, enum option *ret, struct err *err)
{
    const bool is_new = !t->history && (t->role == TERMS_PRIMARY || !t->peer[0]);
    bool done = false;
    int status = 0;

    if (s->standby[0] && !is_new)
        status = is_done(files, s, &done, err);
    *ret = !s->standby[0]                               ? OPTION_NONE
           : done                                       ? OPTION_DONE
           : is_new || strcmp(s->standby, t->peer) != 0 ? OPTION_FOLLOWED
                                                        : OPTION_PARTNER;
    return status;
}

static int decide_role(const struct file_ops *files, const struct settings *s,
                       const struct terms *t, char ret_primary[static MESSAGE_ADDRESS_MAX],
                       struct err *err)
{
    enum option option;
    int status = read_option(files, s, t, &option, err);

    if (t->role == TERMS_STANDBY)
        snprintf(ret_primary, MESSAGE_ADDRESS_MAX, "%.127s", t->peer);
    if (status || option == OPTION_NONE)
        return status;
    if (option == OPTION_FOLLOWED)
        snprintf(ret_primary, MESSAGE_ADDRESS_MAX, "%.127s", s->standby);
    else
        log_known(s, t, option == OPTION_DONE);
    return 0;
}

int standby_role_names_partner(const struct file_ops *files, const struct settings *s,
                               const struct terms *t, bool *ret, struct err *err)
{
    enum option option;
    int status = read_option(files, s, t, &option, err);

    *ret = !status && option == OPTION_PARTNER && t->role == TERMS_PRIMARY;
    return status;
}

int standby_role_read(const struct file_ops *files, const struct settings *s,
                      char ret_primary[static MESSAGE_ADDRESS_MAX], struct err *err)
{
    struct terms terms = { 0 };
    int status;

    ret_primary[0] = '\0';
    if (!s->data_dir[0])
        return 0;
    status = terms_read(files, s->data_dir, s->shards, &terms, err);
    if (status == PS_ECORRUPT && s->standby[0]) {
        log_line_warn("%s", err->text);
        status = 0;
    }
    if (!status)
        status = decide_role(files, s, &terms, ret_primary, err);
    terms_deinit(&terms);
    return status;
}

/* --- the end of a primary --- */

/* "TERM in-sync yes", or no. */
static void print_deposed(const struct terms *t, bool in_sync, char dst[static DEPOSED_BYTES])
{
    snprintf(dst, DEPOSED_BYTES, "%" PRIu64 " in-sync %s", terms_last(t),
             in_sync ? "yes" : "no");
}

int standby_role_note_deposed(const struct file_ops *files, const char *data_dir,
                              const struct terms *t, struct err *err)
{
    char text[DEPOSED_BYTES];

    if (t->role != TERMS_PRIMARY)
        return 0;
    print_deposed(t, t->in_sync, text);
    return file_text_replace(files, data_dir, DEPOSED_NAME, text, strlen(text), err);
}

bool standby_role_was_primary(const struct file_ops *files, const char *data_dir,
                              const struct terms *t, bool *ret_alone)
{
    char path[PATH_BYTES], alone[DEPOSED_BYTES], in_sync[DEPOSED_BYTES];
    struct bytes text = { 0 };
    const char *found;
    bool was_primary;

    *ret_alone = t->role == TERMS_PRIMARY && !t->in_sync;
    if (t->role == TERMS_PRIMARY)
        return true;
    snprintf(path, sizeof path, "%s/" DEPOSED_NAME, data_dir);
    print_deposed(t, false, alone);
    print_deposed(t, true, in_sync);
    found = file_text_read(files, path, DEPOSED_BYTES, &text)
                ? ""
                : (const char *)text.bytes + text.start;
    *ret_alone = strcmp(found, alone) == 0;
    was_primary = *ret_alone || strcmp(found, in_sync) == 0;
    bytes_deinit(&text);
    return was_primary;
}

int standby_role_follow(const struct file_ops *files, const struct settings *s, struct err *err)
{
    struct terms terms = { 0 };
    struct err unnoted;
    int status = terms_read(files, s->data_dir, s->shards, &terms, err);

    /* Which is for a sentence alone: TERMS is written all the same. */
    if (!status && standby_role_note_deposed(files, s->data_dir, &terms, &unnoted))
        log_line_warn("%s", unnoted.text);
    if (!status) {
        terms.role = TERMS_STANDBY;
        terms.in_sync = false;
        status = terms_write(files, s->data_dir, &terms, err);
    }
    if (!status && strcmp(s->standby, terms.peer) != 0)
        status = standby_role_note_done(files, s, err);
    terms_deinit(&terms);
    return status;
}

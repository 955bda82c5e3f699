#include "server/standby_role.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/file_text.h"
#include "common/log_line.h"
#include "server/replication/terms.h"

#define NAME "PROMOTED"
#define PATH_BYTES 1100u

int standby_role_promoted(const struct file_ops *files, const char *data_dir,
                          const char *primary, struct err *err)
{
    return file_text_replace(files, data_dir, NAME, primary, strlen(primary), err);
}

/* True if a promotion was of a standby of just that primary. */
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

static int decide_role(const struct file_ops *files, const struct settings *s,
                       const struct terms *t, char ret_primary[static MESSAGE_ADDRESS_MAX],
                       struct err *err)
{
    bool done = false;
    int status = 0;

    if (t->role == TERMS_STANDBY) {
        snprintf(ret_primary, MESSAGE_ADDRESS_MAX, "%.127s",
                 s->standby[0] ? s->standby : t->peer);
        return 0;
    }
    if (s->standby[0] && t->history)
        status = is_done(files, s, &done, err);
    if (status || !s->standby[0])
        return status;
    if (done)
        log_line_info("standby %s is done: this psd was promoted, and goes on as the primary",
                      s->standby);
    else
        snprintf(ret_primary, MESSAGE_ADDRESS_MAX, "%.127s", s->standby);
    return 0;
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

int standby_role_follow(const struct file_ops *files, const struct settings *s, struct err *err)
{
    struct terms terms = { 0 };
    int status = terms_read(files, s->data_dir, s->shards, &terms, err);

    if (!status) {
        terms.role = TERMS_STANDBY;
        terms.in_sync = false;
        status = terms_write(files, s->data_dir, &terms, err);
    }
    terms_deinit(&terms);
    return status;
}

#include "common/token_file.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* All of it, or the first max_bytes. A pipe gives it in pieces. */
static int64_t read_up_to(const struct file_ops *files, int fd, char *dst, size_t max_bytes)
{
    size_t n = 0;
    int64_t got = 1;

    while (got > 0 && n < max_bytes) {
        got = files->read(files->state, fd, dst + n, max_bytes - n);
        if (got > 0)
            n += (size_t)got;
    }
    return got < 0 ? got : (int64_t)n;
}

/* Of a pipe, as a shell's <(...) makes one, nobody else can read. The group may: a service of its own is in it. */
static int check_mode(const char *path, struct err *err)
{
    struct stat found;

    if (stat(path, &found) || !S_ISREG(found.st_mode) || !(found.st_mode & (S_IROTH | S_IWOTH)))
        return 0;
    return err_set(
        err, PS_ESETTING,
        "token-file: every user of this machine can read or change %.150s (mode %03o); "
        "expected: its owner and a group alone (chmod o-rw)",
        path, (unsigned)found.st_mode & 0777u);
}

/* The file's text. There is none of the path "", which names no file. */
static int read_text(const struct file_ops *files, const char *path, char *text,
                     size_t max_bytes, size_t *ret_bytes, struct err *err)
{
    int fd, status;
    int64_t n;

    *ret_bytes = 0;
    status = path[0] ? check_mode(path, err) : 0;
    if (status || !path[0])
        return status;
    status = files->open_read(files->state, path, &fd);
    if (status)
        return err_set(err, status, "token-file: cannot read %.150s: %s", path,
                       status_text(status));
    n = read_up_to(files, fd, text, max_bytes);
    (void)files->close(files->state, fd);
    if (n < 0)
        return err_set(err, (int)n, "token-file: cannot read %.150s: %s", path,
                       status_text((int)n));
    *ret_bytes = (size_t)n;
    return 0;
}

static size_t trimmed(const char *text, size_t n)
{
    while (n > 0 &&
           memchr("\r\n\t ", text[n - 1], 4)) /* not strchr(), which finds a NUL, too */
        n--;
    return n;
}

/* Of one line; text has n of max_bytes. */
static int take_token(const char *path, const char *text, size_t n, size_t max_bytes,
                      char ret_token[static TOKEN_FILE_MAX], struct err *err)
{
    if (n >= max_bytes)
        return err_set(err, PS_ESETTING,
                       "token-file: %.150s holds more than the %u characters of a token", path,
                       TOKEN_FILE_MAX - 1);
    n = trimmed(text, n);
    if (n == 0 || n >= TOKEN_FILE_MAX || memchr(text, '\0', n) || memchr(text, '\n', n))
        return err_set(err, PS_ESETTING,
                       "token-file: found %zu bytes in %.150s, expected one line of %u to %u "
                       "characters",
                       n, path, TOKEN_FILE_MIN, TOKEN_FILE_MAX - 1);
    memcpy(ret_token, text, n);
    ret_token[n] = '\0';
    return 0;
}

int token_file_read(const struct file_ops *files, const char *path,
                    char ret_token[static TOKEN_FILE_MAX], struct err *err)
{
    char text[TOKEN_FILE_MAX + 32] = ""; /* and blanks */
    size_t n;
    int status = read_text(files, path, text, sizeof text, &n, err);

    ret_token[0] = '\0';
    if (status || !path[0])
        return status;
    return take_token(path, text, n, sizeof text, ret_token, err);
}

/* ---- roles ---- */

/* "ROLE[/JOB] SECRET". False: it is no such line. */
static bool take_line(const char *line, size_t n, struct token_list *list)
{
    const char *blank = memchr(line, ' ', n);
    size_t n_role = blank ? (size_t)(blank - line) : 0, n_token;
    struct access access = { 0 };

    n = trimmed(line, n);
    if (!blank || !access_parse(line, n_role, &access) || list->n == TOKEN_FILE_ROLES_MAX)
        return false;
    while (n_role < n && line[n_role] == ' ')
        n_role++;
    n_token = n - n_role;
    if (n_token < TOKEN_FILE_MIN || n_token >= TOKEN_FILE_MAX ||
        memchr(line + n_role, '\0', n_token))
        return false;
    list->items[list->n].access = access;
    memcpy(list->items[list->n].token, line + n_role, n_token);
    list->items[list->n++].token[n_token] = '\0';
    return true;
}

static bool begins_with_role(const char *text, size_t n)
{
    const char *blank = memchr(text, ' ', n);
    struct access ignored;

    return blank && access_parse(text, (size_t)(blank - text), &ignored);
}

static int take_lines(const char *path, const char *text, size_t n, struct token_list *list,
                      struct err *err)
{
    uint32_t number = 0;

    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - text) - at : n - at;

        number++;
        if (trimmed(text + at, len) && !take_line(text + at, len, list))
            return err_set(
                err, PS_ESETTING,
                "token-file: line %u of %.120s: expected ROLE[/JOB] SECRET, with %u to "
                "%u characters, and at most %u lines",
                number, path, TOKEN_FILE_MIN, TOKEN_FILE_MAX - 1, TOKEN_FILE_ROLES_MAX);
        at += len + 1;
    }
    return 0;
}

int token_file_read_roles(const struct file_ops *files, const char *path,
                          char ret_token[static TOKEN_FILE_MAX], struct token_list *ret_list,
                          struct err *err)
{
    char text[TOKEN_FILE_ROLES_MAX * (TOKEN_FILE_MAX + ACCESS_JOB_MAX + 32)] = "";
    size_t n;
    int status = read_text(files, path, text, sizeof text, &n, err);

    ret_token[0] = '\0';
    *ret_list = (struct token_list){ 0 };
    if (status || !path[0])
        return status;
    if (!begins_with_role(text, n))
        return take_token(path, text, n, TOKEN_FILE_MAX + 32, ret_token, err);
    status = take_lines(path, text, n, ret_list, err);
    for (uint32_t i = 0; i < ret_list->n && !status && !ret_token[0]; i++)
        if (ret_list->items[i].access.role == ACCESS_NODE ||
            ret_list->items[i].access.role == ACCESS_ALL)
            strcpy(ret_token, ret_list->items[i].token);
    return status;
}

bool token_file_is_same(const char *ours, const char *theirs)
{
    char a[TOKEN_FILE_MAX] = { 0 }, b[TOKEN_FILE_MAX] = { 0 };
    unsigned difference = 0;

    snprintf(a, sizeof a, "%s", ours);
    snprintf(b, sizeof b, "%s", theirs);
    for (size_t i = 0; i < sizeof a; i++)
        difference |= (unsigned)(a[i] ^ b[i]);
    return difference == 0;
}

bool token_file_find(const char *token, const struct token_list *list, const char *theirs,
                     struct access *ret)
{
    const bool has_roles = list && list->n;
    bool matches = !has_roles && (!token[0] || token_file_is_same(token, theirs));

    *ret = (struct access){ .role = ACCESS_ALL };
    for (uint32_t i = 0; has_roles && i < list->n; i++)
        if (token_file_is_same(list->items[i].token, theirs)) {
            matches = true;
            *ret = list->items[i].access;
        }
    return matches;
}

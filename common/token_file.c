#include "common/token_file.h"

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

int token_file_read(const struct file_ops *files, const char *path,
                    char ret_token[static TOKEN_FILE_MAX], struct err *err)
{
    char text[TOKEN_FILE_MAX + 32] = ""; /* and blanks */
    int64_t n;
    int fd, status;

    ret_token[0] = '\0';
    if (!path[0])
        return 0;
    status = check_mode(path, err);
    if (status)
        return status;
    status = files->open_read(files->state, path, &fd);
    if (status)
        return err_set(err, status, "token-file: cannot read %.150s: %s", path,
                       status_text(status));
    n = read_up_to(files, fd, text, sizeof text);
    (void)files->close(files->state, fd);
    if (n < 0)
        return err_set(err, (int)n, "token-file: cannot read %.150s: %s", path,
                       status_text((int)n));
    if (n == (int64_t)sizeof text)
        return err_set(err, PS_ESETTING,
                       "token-file: %.150s holds more than the %u characters of a token", path,
                       TOKEN_FILE_MAX - 1);
    while (n > 0 &&
           memchr("\r\n\t ", text[n - 1], 4)) /* not strchr(), which finds a NUL, too */
        n--;
    if (n == 0 || n >= TOKEN_FILE_MAX || memchr(text, '\0', (size_t)n) ||
        memchr(text, '\n', (size_t)n))
        return err_set(err, PS_ESETTING,
                       "token-file: found %lld bytes in %.150s, expected one line of %u to %u "
                       "characters",
                       (long long)n, path, TOKEN_FILE_MIN, TOKEN_FILE_MAX - 1);
    memcpy(ret_token, text, (size_t)n);
    ret_token[n] = '\0';
    return 0;
}

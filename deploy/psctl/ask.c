#include "deploy/psctl/ask.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/mem.h"
#include "deploy/psctl/offline.h"
#include "deploy/psctl/show.h"
#include "worker/client/ps.h"

#define N_HOPS_MAX 2u /* the node that was named, and the one that it names */

static int complain(const char *sentence)
{
    fprintf(stderr, "psctl: %s\n", sentence);
    return EXIT_FAILED;
}

int ask_token(const struct options *o, char token[static ASK_TOKEN_MAX], struct err *err)
{
    const char *path = o->token_file;
    int64_t n;
    int fd, status;

    token[0] = '\0';
    if (!path[0])
        return 0;
    status = file_os.open_read(file_os.state, path, &fd);
    if (status)
        return err_set(err, status, "token-file: cannot read %.150s: %s", path,
                       status_text(status));
    n = file_os.read(file_os.state, fd, token, ASK_TOKEN_MAX);
    file_os.close(file_os.state, fd);
    if (n < 0)
        return err_set(err, (int)n, "token-file: cannot read %.150s: %s", path,
                       status_text((int)n));
    if (n == ASK_TOKEN_MAX)
        return err_set(err, PS_ESETTING,
                       "token-file: %.150s holds more than the %u characters of a token", path,
                       ASK_TOKEN_MAX - 1);
    while (n > 0 && strchr("\r\n\t ", token[n - 1]))
        n--;
    token[n] = '\0';
    return 0;
}

/* *ret_json is the caller's to free. */
static int ask(const struct options *o, const char *server, const char *command,
               const char *argument, char **ret_json, struct err *err)
{
    char token[ASK_TOKEN_MAX];
    int status = ask_token(o, token, err);

    return status ? status
                  : ps_admin(server, token, command, argument, (uint32_t)o->timeout_ms,
                             ret_json, err);
}

int ask_tell(const struct options *o, const char *command, const char *json)
{
    if (o->json)
        printf("%s%s", json, json[0] && json[strlen(json) - 1] == '\n' ? "" : "\n");
    else if (!show_answer(command, json, stdout))
        return complain("the answer makes no sense here; --json shows it as it came");
    return EXIT_ANSWERED;
}

int ask_show(const struct options *o, const char *command)
{
    struct err err = { 0 };
    char *json = NULL;
    int code;

    if (ask(o, o->server, command, "", &json, &err) != 0)
        return complain(err.text);
    code = ask_tell(o, command, json);
    free(json);
    return code;
}

/* The address of the node that keeps the row, where it is another one: the caller's to free, or NULL. */
static char *other_node(const char *json)
{
    cJSON *root = cJSON_Parse(json);
    const char *address = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "ask"));
    char *copy = NULL;

    if (address && address[0]) {
        copy = mem_alloc(strlen(address) + 1);
        memcpy(copy, address, strlen(address));
    }
    cJSON_Delete(root);
    return copy;
}

int ask_row(const struct options *o, const char *const *words, uint32_t n_words)
{
    char argument[SPEC_NAME_MAX + 32], *server = NULL, *json = NULL;
    struct err err = { 0 };
    uint64_t key;
    int code = EXIT_ANSWERED;

    (void)n_words;
    if (offline_read_key(words[1], &key, &err))
        return offline_fail(&err);
    if (strlen(words[0]) >= SPEC_NAME_MAX)
        return complain("row: no table has so long a name");
    snprintf(argument, sizeof argument, "%" PRIu64 " %s", key, words[0]);
    for (uint32_t i = 0; i < N_HOPS_MAX && (i == 0 || server); i++) {
        free(json);
        json = NULL;
        if (ask(o, server ? server : o->server, "row", argument, &json, &err) != 0) {
            code = complain(err.text);
            break;
        }
        free(server);
        server = other_node(json);
    }
    if (code == EXIT_ANSWERED && server)
        code = complain(
            "row: the nodes send from one to the other, none says that it has the row");
    else if (code == EXIT_ANSWERED)
        code = ask_tell(o, "row", json);
    free(server);
    free(json);
    return code;
}

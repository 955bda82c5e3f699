#include "deploy/psctl/ask.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/token_file.h"
#include "deploy/psctl/offline.h"
#include "deploy/psctl/show.h"
#include "worker/client/ps.h"

#define N_HOPS_MAX 2u /* the node that was named, and the one that it names */

static int complain(const char *sentence)
{
    fprintf(stderr, "psctl: %s\n", sentence);
    return EXIT_FAILED;
}

/* *ret_json is the caller's to free. */
static int ask(const struct options *o, const char *server, const char *command,
               const char *argument, char **ret_json, struct err *err)
{
    char token[TOKEN_FILE_MAX];
    int status = token_file_read(&file_os, o->token_file, token, err);

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

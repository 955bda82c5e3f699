#include "deploy/psctl/ask_nodes.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/mem.h"
#include "deploy/psctl/offline.h"

bool ask_nodes_find(struct ask_nodes *a, const struct options *o)
{
    struct err err = { 0 };

    *a = (struct ask_nodes){ .options = o, .cluster = mem_alloc(sizeof *a->cluster) };
    if (!token_file_read(&file_os, o->token_file, a->token, &err) &&
        !ps_admin_cluster(o->server, a->token, (uint32_t)o->timeout_ms, a->cluster, &err))
        return true;
    fprintf(stderr, "psctl: %s\n", err.text);
    return false;
}

void ask_nodes_deinit(struct ask_nodes *a)
{
    for (uint32_t i = 0; a->nodes && i < a->cluster->n_nodes; i++)
        free(a->nodes[i].json);
    free(a->nodes);
    free(a->cluster);
}

bool ask_nodes_is_alone(const struct ask_nodes *a)
{
    return a->cluster->n_nodes == 1;
}

void ask_nodes_run(struct ask_nodes *a, const struct ps_admin_plan *plan)
{
    struct ps_admin_plan with_token = *plan;
    uint32_t n = a->cluster->n_nodes;

    with_token.token = a->token;
    a->nodes = mem_alloc(n * sizeof *a->nodes);
    for (uint32_t i = 0; i < n; i++)
        a->nodes[i].server = i == a->cluster->node ? a->options->server : a->cluster->nodes[i];
    ps_admin_ask(&with_token, a->nodes, n);
}

int ask_nodes_tell_json(const struct ask_nodes *a)
{
    cJSON *root = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(root, "nodes");
    int code = EXIT_ANSWERED;

    for (uint32_t i = 0; i < a->cluster->n_nodes; i++) {
        const char *json = a->nodes[i].json;
        cJSON *item = json ? cJSON_Parse(json) : NULL;

        if (!item) {
            item = cJSON_CreateObject();
            cJSON_AddStringToObject(item, "error",
                                    json ? "the answer makes no sense" : a->nodes[i].err.text);
            code = EXIT_FAILED;
        }
        cJSON_AddNumberToObject(item, "node", i);
        cJSON_AddItemToArray(list, item);
    }
    offline_print_json(root);
    return code;
}

/* --- why --- */

/* By how much a node's time is moved, so that it is the first one's: clocks of nodes differ. */
static void move_time(cJSON *wait, const char *name, double ms)
{
    cJSON *item = cJSON_GetObjectItemCaseSensitive(wait, name);

    if (cJSON_IsNumber(item) && item->valuedouble > 0)
        cJSON_SetNumberValue(item, item->valuedouble + ms);
}

static void add_waits(cJSON *all, cJSON *answer)
{
    cJSON *now = cJSON_GetObjectItemCaseSensitive(all, "now_unix_ms"),
          *waits = cJSON_GetObjectItemCaseSensitive(answer, "waits"), *wait;
    double its_now =
        cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(answer, "now_unix_ms"));

    if (!now)
        now = cJSON_AddNumberToObject(all, "now_unix_ms", its_now);
    while ((wait = cJSON_DetachItemFromArray(waits, 0)) != NULL) {
        move_time(wait, "since_unix_ms", now->valuedouble - its_now);
        move_time(wait, "until_unix_ms", now->valuedouble - its_now);
        cJSON_AddItemToArray(cJSON_GetObjectItemCaseSensitive(all, "waits"), wait);
    }
}

static void complain(const struct ask_nodes *a, uint32_t i)
{
    const char *why = a->nodes[i].json ? "the answer makes no sense" : a->nodes[i].err.text;

    if (ask_nodes_is_alone(a))
        fprintf(stderr, "psctl: %s\n", why);
    else
        fprintf(stderr, "psctl: node %" PRIu32 ": %s\n", i, why);
}

/* The answers as if one node had given them. */
static int tell_waits(const struct ask_nodes *a)
{
    cJSON *all = cJSON_CreateObject();
    int code = EXIT_ANSWERED;
    bool is_quiet;
    char *json;

    cJSON_AddArrayToObject(all, "waits");
    for (uint32_t i = 0; i < a->cluster->n_nodes; i++) {
        cJSON *answer = cJSON_Parse(a->nodes[i].json);

        if (answer) {
            add_waits(all, answer);
        } else {
            complain(a, i);
            code = EXIT_FAILED;
        }
        cJSON_Delete(answer);
    }
    is_quiet = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(all, "waits")) == 0;
    json = cJSON_PrintUnformatted(all);
    cJSON_Delete(all);
    if (code != EXIT_ANSWERED && is_quiet) /* who does not answer may be what is waited for */
        printf("nothing waits on the nodes that answer\n");
    else if (ask_tell(a->options, "why", json) != EXIT_ANSWERED)
        code = EXIT_FAILED;
    cJSON_free(json);
    return code;
}

static int tell_why(const struct ask_nodes *a)
{
    if (a->options->json && !ask_nodes_is_alone(a))
        return ask_nodes_tell_json(a);
    if (ask_nodes_is_alone(a) && !a->nodes[0].json) {
        complain(a, 0);
        return EXIT_FAILED;
    }
    return a->options->json ? ask_tell(a->options, "why", a->nodes[0].json) : tell_waits(a);
}

int ask_nodes_why(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct ask_nodes a;
    int code = EXIT_FAILED;

    (void)words;
    (void)n_words;
    if (ask_nodes_find(&a, o)) {
        ask_nodes_run(&a, &(struct ps_admin_plan){ .command = "why",
                                                   .timeout_ms = (uint32_t)o->timeout_ms });
        code = tell_why(&a);
    }
    ask_nodes_deinit(&a);
    return code;
}

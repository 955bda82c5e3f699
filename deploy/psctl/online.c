#include "deploy/psctl/online.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/memory.h"
#include "common/token_file.h"
#include "deploy/psctl/data_dir.h"
#include "deploy/psctl/text_output.h"
#include "worker/client/ps.h"
#include "worker/client/ps_admin.h"

/* One question to every node of a cluster. */
struct node_query {
    const struct options *options; /* borrowed */
    char token[TOKEN_FILE_MAX];
    struct hello_reply *cluster; /* owned */
    struct ps_admin_node *nodes; /* owned, cluster->n_nodes, and their answers */
};

static int fail(const char *sentence)
{
    fprintf(stderr, "psctl: %s\n", sentence);
    return EXIT_FAILED;
}

/* A node listens from its start on, but for a while in which it reserves memory. */
static const char *hint(int status)
{
    return status == -ECONNREFUSED
               ? ": no psd listens there, or it has just been started, as its log says"
               : "";
}

static int fail_with(const struct err *err)
{
    fprintf(stderr, "psctl: %s%s\n", err->text, hint(err->status));
    return EXIT_FAILED;
}

/* Prints an answer, with --json as it came. Returns the exit code. */
static int print_answer(const struct options *o, const char *command, const char *json)
{
    if (o->json)
        printf("%s%s", json, json[0] && json[strlen(json) - 1] == '\n' ? "" : "\n");
    else if (!text_output_answer(command, json, stdout))
        return fail("the answer makes no sense here; --json shows it as it came");
    return EXIT_ANSWERED;
}

/* Asks the node in the options for the list of all nodes. False: no answer; stderr says why. node_query_deinit() in
 * either case. */
static bool find_nodes(struct node_query *a, const struct options *o)
{
    struct err err = { 0 };

    *a = (struct node_query){ .options = o, .cluster = memory_alloc(sizeof *a->cluster) };
    if (!token_file_read(&file_os, o->token_file, a->token, &err) &&
        !ps_admin_cluster(o->server, a->token, (uint32_t)o->timeout_ms, a->cluster, &err))
        return true;
    (void)fail_with(&err);
    return false;
}

static void node_query_deinit(struct node_query *a)
{
    for (uint32_t i = 0; a->nodes && i < a->cluster->n_nodes; i++)
        free(a->nodes[i].json);
    free(a->nodes);
    free(a->cluster);
}

/* A cluster of one node. */
static bool is_alone(const struct node_query *a)
{
    return a->cluster->n_nodes == 1;
}

/* Sends the plan to all nodes, without the token. The node that --server named is asked under that name, because this
 * machine can reach it by that name. */
static void ask_all_nodes(struct node_query *a, const struct ps_admin_plan *plan)
{
    struct ps_admin_plan with_token = *plan;
    uint32_t n = a->cluster->n_nodes;

    with_token.token = a->token;
    a->nodes = memory_alloc(n * sizeof *a->nodes);
    for (uint32_t i = 0; i < n; i++)
        a->nodes[i].server = i == a->cluster->node ? a->options->server : a->cluster->nodes[i];
    ps_admin_ask(&with_token, a->nodes, n);
}

/* Prints one JSON object, {"nodes":[...]}: each node's answer with its number, or the reason for having none. Returns
 * the exit code: answered if all nodes have answered. */
static int print_json(const struct node_query *a)
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
    data_dir_print_json(root);
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

static const char *failure_of(const struct node_query *a, uint32_t i)
{
    return a->nodes[i].json ? "the answer makes no sense" : a->nodes[i].err.text;
}

static void print_node_failure(const struct node_query *a, uint32_t i)
{
    const char *more = a->nodes[i].json ? "" : hint(a->nodes[i].err.status);

    if (is_alone(a))
        fprintf(stderr, "psctl: %s%s\n", failure_of(a, i), more);
    else
        fprintf(stderr, "psctl: node %" PRIu32 ": %s%s\n", i, failure_of(a, i), more);
}

/* What all jobs with rows there wait for. */
static void list_silent_nodes(const struct node_query *a)
{
    for (uint32_t i = 0; i < a->cluster->n_nodes; i++)
        if (!a->nodes[i].json)
            printf("node down: node %" PRIu32 " at %s; %s%s; jobs that need it wait for it\n",
                   i, a->cluster->nodes[i], failure_of(a, i), hint(a->nodes[i].err.status));
}

/* The answers as if one node had given them. */
static int print_waits(const struct node_query *a)
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
            print_node_failure(a, i);
            code = EXIT_FAILED;
        }
        cJSON_Delete(answer);
    }
    is_quiet = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(all, "waits")) == 0;
    json = cJSON_PrintUnformatted(all);
    cJSON_Delete(all);
    list_silent_nodes(a);
    if (code != EXIT_ANSWERED && is_quiet) /* who does not answer may be what is waited for */
        printf("nothing waits on the nodes that answer\n");
    else if (print_answer(a->options, "why", json) != EXIT_ANSWERED)
        code = EXIT_FAILED;
    cJSON_free(json);
    return code;
}

static int print_why(const struct node_query *a)
{
    if (a->options->json && !is_alone(a))
        return print_json(a);
    if (is_alone(a) && !a->nodes[0].json) {
        print_node_failure(a, 0);
        return EXIT_FAILED;
    }
    return a->options->json ? print_answer(a->options, "why", a->nodes[0].json)
                            : print_waits(a);
}

int online_why(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct node_query a;
    int code = EXIT_FAILED;

    (void)words;
    (void)n_words;
    if (find_nodes(&a, o)) {
        ask_all_nodes(&a, &(struct ps_admin_plan){ .command = "why",
                                                   .timeout_ms = (uint32_t)o->timeout_ms });
        code = print_why(&a);
    }
    node_query_deinit(&a);
    return code;
}

#define N_HOPS_MAX 2u /* the node that was named, and the one that it names */

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

int online_show(const struct options *o, const char *command)
{
    struct err err = { 0 };
    char *json = NULL;
    int code;

    if (ask(o, o->server, command, "", &json, &err) != 0)
        return fail_with(&err);
    code = print_answer(o, command, json);
    free(json);
    return code;
}

int online_promote(const struct options *o, const char *const *words, uint32_t n_words)
{
    char argument[64], *json = NULL;
    struct err err = { 0 };
    int code;

    (void)words;
    (void)n_words;
    snprintf(argument, sizeof argument, "%s %s", o->other_is_dead ? "the-other-is-dead" : "",
             o->accept_loss ? "accept-loss" : "");
    if (ask(o, o->server, "promote", argument, &json, &err) != 0)
        return fail_with(&err);
    code = print_answer(o, "promote", json);
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
        copy = memory_alloc(strlen(address) + 1);
        memcpy(copy, address, strlen(address));
    }
    cJSON_Delete(root);
    return copy;
}

/* EXIT_FAILED if there is no such row, as grep(1) has it. */
static int print_row(const struct options *o, const char *json)
{
    int code = print_answer(o, "row", json);
    cJSON *root = cJSON_Parse(json);

    if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "found")))
        code = EXIT_FAILED;
    cJSON_Delete(root);
    return code;
}

int online_row(const struct options *o, const char *const *words, uint32_t n_words)
{
    char argument[TABLE_SPEC_NAME_MAX + 32], *server = NULL, *json = NULL;
    struct err err = { 0 };
    uint64_t key;
    int code = EXIT_ANSWERED;

    (void)n_words;
    if (data_dir_read_key(words[1], &key, &err))
        return data_dir_fail(&err);
    if (strlen(words[0]) >= TABLE_SPEC_NAME_MAX)
        return fail("row: no table has so long a name");
    snprintf(argument, sizeof argument, "%" PRIu64 " %s", key, words[0]);
    for (uint32_t i = 0; i < N_HOPS_MAX && (i == 0 || server); i++) {
        free(json);
        json = NULL;
        if (ask(o, server ? server : o->server, "row", argument, &json, &err) != 0) {
            code = fail_with(&err);
            break;
        }
        free(server);
        server = other_node(json);
    }
    if (code == EXIT_ANSWERED && server)
        code = fail("row: the nodes send from one to the other, none says that it has the row");
    else if (code == EXIT_ANSWERED)
        code = print_row(o, json);
    free(server);
    free(json);
    return code;
}

#define BEAT_MS 1000u
#define NOTE_FIRST_MS 5000u /* who waits is told so after this, */
#define NOTE_EVERY_MS 30000u

struct waited {
    uint64_t
        number; /* of the checkpoint that the node was writing when it last said so; 0: none */
    uint64_t note_ms; /* monotonic: when to tell */
};

struct request {
    struct node_query asked;
    struct waited *waited; /* owned, of each */
};

/* --- while it is written --- */

static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static void note(const struct request *r, uint32_t i, const cJSON *status, const cJSON *busy)
{
    double now = number(status, "now_unix_ms"), until = number(busy, "until_unix_ms");
    char sentence[240];
    int n = snprintf(sentence, sizeof sentence,
                     "node %" PRIu32 " at %.120s writes checkpoint %.0f, for %.0f s now", i,
                     r->asked.nodes[i].server, number(busy, "number"),
                     (now - number(busy, "since_unix_ms")) / 1000);

    if (until > 0)
        snprintf(sentence + n, sizeof sentence - (size_t)n, ", %.0f s more if it does not move",
                 (until - now) / 1000);
    data_dir_note(NULL, sentence);
}

/* How a node stands, now and then. */
static void on_beat(void *arg, uint32_t i, const char *json)
{
    const struct request *r = arg;
    struct waited *w = &r->waited[i];
    cJSON *status = cJSON_Parse(json);
    const cJSON *busy = cJSON_GetObjectItemCaseSensitive(
        cJSON_GetObjectItemCaseSensitive(status, "checkpoints"), "under_way");

    w->number = (uint64_t)number(busy, "number");
    if (busy && clock_mono_ms() >= w->note_ms) {
        w->note_ms = clock_mono_ms() + NOTE_EVERY_MS;
        note(r, i, status, busy);
    }
    cJSON_Delete(status);
}

/* --- the end --- */

static void fail_node(const struct request *r, uint32_t i)
{
    const struct err *err = &r->asked.nodes[i].err;
    char label[40] = "";

    if (!is_alone(&r->asked))
        snprintf(label, sizeof label, "node %" PRIu32 ": ", i);
    fprintf(stderr, "psctl: %s%s", label, err->text);
    if (err->status == PS_EDEADLINE && r->waited[i].number)
        fprintf(stderr, "; it was writing checkpoint %" PRIu64 ", which may still end well",
                r->waited[i].number);
    fputc('\n', stderr);
}

static int print_lines(const struct request *r)
{
    int code = EXIT_ANSWERED;

    for (uint32_t i = 0; i < r->asked.cluster->n_nodes; i++) {
        if (!r->asked.nodes[i].json) {
            fail_node(r, i);
            code = EXIT_FAILED;
            continue;
        }
        if (!is_alone(&r->asked))
            printf("node %" PRIu32 ": ", i);
        if (print_answer(r->asked.options, "checkpoint", r->asked.nodes[i].json) !=
            EXIT_ANSWERED)
            code = EXIT_FAILED;
    }
    return code;
}

static void ask_all(struct request *r)
{
    uint32_t n = r->asked.cluster->n_nodes;

    r->waited = memory_alloc(n * sizeof *r->waited);
    for (uint32_t i = 0; i < n; i++)
        r->waited[i].note_ms = clock_mono_ms() + NOTE_FIRST_MS;
    ask_all_nodes(&r->asked,
                  &(struct ps_admin_plan){ .command = "checkpoint",
                                           .timeout_ms = (uint32_t)r->asked.options->timeout_ms,
                                           .beat_ms = BEAT_MS,
                                           .beat_command = "status",
                                           .on_beat = on_beat,
                                           .arg = r });
}

int online_checkpoint(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct request r = { 0 };
    int code = EXIT_FAILED;

    (void)words;
    (void)n_words;
    if (find_nodes(&r.asked, o)) {
        ask_all(&r);
        code = o->json && !is_alone(&r.asked) ? print_json(&r.asked) : print_lines(&r);
    }
    node_query_deinit(&r.asked);
    free(r.waited);
    return code;
}

/* --- the tables of a job --- */

struct job_tables {
    double n_tables, n_rows, n_bytes;
};

/* True if all nodes have answered; else stderr says which have not, and why. */
static bool add_answers(const struct node_query *a, struct job_tables *ret)
{
    bool all = true;

    *ret = (struct job_tables){ 0 };
    for (uint32_t i = 0; i < a->cluster->n_nodes; i++) {
        cJSON *answer = cJSON_Parse(a->nodes[i].json);
        double n = number(answer, "tables");

        if (!answer) {
            print_node_failure(a, i);
            all = false;
            continue;
        }
        ret->n_tables = n > ret->n_tables ? n : ret->n_tables;
        ret->n_rows += number(answer, "rows");
        ret->n_bytes += number(answer, "bytes");
        cJSON_Delete(answer);
    }
    return all;
}

static void free_answers(struct node_query *a)
{
    for (uint32_t i = 0; i < a->cluster->n_nodes; i++)
        free(a->nodes[i].json);
    free(a->nodes);
    a->nodes = NULL;
}

/* All nodes, at once. The nodes' answers stay in *a. */
static bool command_all(struct node_query *a, const char *command, const char *argument,
                        struct job_tables *ret)
{
    ask_all_nodes(a, &(struct ps_admin_plan){ .command = command,
                                              .argument = argument,
                                              .timeout_ms = (uint32_t)a->options->timeout_ms,
                                              .beat_ms = BEAT_MS,
                                              .beat_command = "status" });
    return add_answers(a, ret);
}

static int print_tables(const struct node_query *a, const char *job, const char *what,
                        const struct job_tables *t)
{
    if (a->options->json)
        return print_json(a);
    if (t->n_tables == 0)
        printf("job %s has no tables\n", job);
    else
        printf("job %s%s %.0f tables, %.0f rows, %.1f MiB\n", job, what, t->n_tables, t->n_rows,
               t->n_bytes / 1048576);
    return EXIT_ANSWERED;
}

/* Is a failure of this status one before anything was changed? */
static bool is_refusal(int status)
{
    return status == -EBUSY || status == -EINVAL || status == -ENOMEM ||
           status == -ECONNREFUSED || status == PS_ESPEC || status == PS_ESETTING ||
           status == PS_ESTOPPING;
}

static int fail_in_between(const struct node_query *a)
{
    uint32_t n_nodes = a->cluster->n_nodes, n_done = 0, n_refused = 0;
    char sentence[160];

    for (uint32_t i = 0; i < n_nodes; i++) {
        n_done += a->nodes[i].json != NULL;
        n_refused += !a->nodes[i].json && is_refusal(a->nodes[i].err.status);
    }
    if (n_refused == n_nodes)
        return fail("nothing was changed");
    snprintf(sentence, sizeof sentence,
             "%" PRIu32 " of %" PRIu32 " nodes %s done it: the same command once more does the "
             "rest, while the job has no workers",
             n_done, n_nodes, n_done == 1 ? "has" : "have");
    return fail(sentence);
}

/* First all nodes are asked whether they can; one that cannot leaves all as they were. */
static int command_tables(struct node_query *a, const char *const commands[static 2],
                          const char *argument, const char *job, const char *done)
{
    struct job_tables t;

    if (!command_all(a, commands[0], argument, &t))
        return fail("nothing was changed");
    if (commands[1]) {
        free_answers(a);
        if (!command_all(a, commands[1], argument, &t))
            return fail_in_between(a);
    }
    return print_tables(a, job, done, &t);
}

int online_drop(const struct options *o, const char *const *words, uint32_t n_words)
{
    const char *const commands[] = { "drop-check", o->yes ? "drop" : NULL };
    struct node_query a;
    int code = EXIT_FAILED;

    (void)n_words;
    if (find_nodes(&a, o)) {
        code = command_tables(&a, commands, words[0], words[0], o->yes ? ": dropped" : " has");
        if (code == EXIT_ANSWERED && !o->yes)
            code = fail("nothing was dropped: --yes drops them");
    }
    node_query_deinit(&a);
    return code;
}

int online_set(const struct options *o, const char *const *words, uint32_t n_words)
{
    static const char *const commands[] = { "set-check", "set" };
    char argument[TABLE_SPEC_NAME_MAX + TABLE_SPEC_SETTINGS_MAX];
    struct node_query a;
    int code = EXIT_FAILED;

    (void)n_words;
    if (strlen(words[0]) >= TABLE_SPEC_NAME_MAX || strlen(words[1]) >= TABLE_SPEC_SETTINGS_MAX)
        return fail("set: no job has so long a name, or more than 127 characters of settings");
    snprintf(argument, sizeof argument, "%s %s", words[0], words[1]);
    if (find_nodes(&a, o))
        code = command_tables(&a, commands, argument, words[0], ": changed");
    node_query_deinit(&a);
    return code;
}

#include "deploy/psctl/online.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/memory.h"
#include "common/number.h"
#include "common/token_file.h"
#include "deploy/psctl/cluster_query.h"
#include "deploy/psctl/cluster_report.h"
#include "deploy/psctl/data_dir.h"
#include "deploy/psctl/field.h"
#include "deploy/psctl/text_output.h"
#include "server/cluster/etcd_lookup.h"
#include "worker/client/ps.h"
#include "worker/client/ps_admin.h"

static int fail(const char *sentence)
{
    fprintf(stderr, "psctl: %s\n", sentence);
    return EXIT_FAILED;
}

static int fail_with(const struct err *err)
{
    fprintf(stderr, "psctl: %s%s\n", err->text, cluster_query_hint(err->status));
    return EXIT_FAILED;
}

/* Prints an answer as text. Returns the exit code. */
static int print_text(const struct options *o, const char *command, const cJSON *answer)
{
    struct text_output_view view = text_output_on_stdout(o->output == OPTIONS_WIDE);

    if (!text_output_answer(command, answer, &view))
        return fail("the answer makes no sense here; --json shows it as it came");
    return EXIT_ANSWERED;
}

/* Prints one answer, with --json as it came. Returns the exit code. */
static int print_answer(const struct options *o, const char *command, const char *json)
{
    cJSON *answer;
    int code;

    if (o->json) {
        printf("%s%s", json, json[0] && json[strlen(json) - 1] == '\n' ? "" : "\n");
        return EXIT_ANSWERED;
    }
    answer = cJSON_Parse(json);
    code = print_text(o, command, answer);
    cJSON_Delete(answer);
    return code;
}

/* --- status, tables, workers, jobs --- */

/* Of several nodes: status has each node's lines; else the answers as if one node had given them. */
static int print_merged(const struct cluster_query *q, const char *command)
{
    cJSON *answers = cluster_query_answers(q, NULL), *all;
    uint32_t n_failed = cluster_query_print_failures(q);
    int code = EXIT_FAILED;

    all = strcmp(command, "status") == 0 ? cJSON_Duplicate(answers, true)
                                         : cluster_report_merge(answers);
    if (n_failed < q->n)
        code = print_text(q->options, command, all);
    cJSON_Delete(all);
    cJSON_Delete(answers);
    return n_failed ? EXIT_FAILED : code;
}

/* command: psd's name of the report; shown: how it is printed. */
static int show(const struct options *o, const char *command, const char *shown)
{
    struct cluster_query q;
    int code = EXIT_FAILED;

    if (cluster_query_open(&q, o)) {
        cluster_query_ask(&q, &(struct ps_admin_plan){ .command = command });
        cluster_query_print_moves(&q);
        if (o->json)
            code = cluster_query_print_json(&q);
        else if (!cluster_query_is_alone(&q))
            code = print_merged(&q, shown);
        else if (!cluster_query_print_failures(&q))
            code = print_answer(o, shown, q.nodes[0].json);
    }
    cluster_query_close(&q);
    return code;
}

int online_status(const struct options *o, const char *const *words, uint32_t n_words)
{
    (void)words;
    (void)n_words;
    return show(o, "status", "status");
}

int online_tables(const struct options *o, const char *const *words, uint32_t n_words)
{
    (void)words;
    (void)n_words;
    return show(o, "tables", "tables");
}

int online_workers(const struct options *o, const char *const *words, uint32_t n_words)
{
    (void)words;
    (void)n_words;
    return show(o, "workers", "workers");
}

int online_jobs(const struct options *o, const char *const *words, uint32_t n_words)
{
    (void)words;
    (void)n_words;
    return show(o, "workers", "jobs");
}

/* --- why --- */

/* What all jobs with rows there wait for. */
static void list_silent_nodes(const struct cluster_query *q)
{
    for (uint32_t i = 0; i < q->n; i++)
        if (!q->nodes[i].json)
            printf("node down: node %" PRIu32 " at %s; %s%s; jobs that need it wait for it\n",
                   cluster_query_number(q, i), cluster_query_address(q, i),
                   cluster_query_failure(q, i), cluster_query_hint(q->nodes[i].err.status));
}

/* The answers as if one node had given them. */
static int print_waits(const struct cluster_query *q)
{
    cJSON *answers = cluster_query_answers(q, NULL), *all = cluster_report_merge(answers);
    uint32_t n_failed = cluster_query_print_failures(q);
    int code = n_failed ? EXIT_FAILED : EXIT_ANSWERED;

    list_silent_nodes(q);
    if (n_failed && !cJSON_GetArraySize(field_child(
                        all, "waits"))) /* who is silent may be what is waited for */
        printf("nothing waits on the nodes that answer\n");
    else if (print_text(q->options, "why", all) != EXIT_ANSWERED)
        code = EXIT_FAILED;
    cJSON_Delete(all);
    cJSON_Delete(answers);
    return code;
}

int online_why(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct cluster_query q;
    int code = EXIT_FAILED;

    (void)words;
    (void)n_words;
    if (cluster_query_open(&q, o)) {
        cluster_query_ask(&q, &(struct ps_admin_plan){ .command = "why" });
        cluster_query_print_moves(&q);
        if (o->json)
            code = cluster_query_print_json(&q);
        else if (!cluster_query_is_alone(&q) || !cluster_query_print_failures(&q))
            code = print_waits(&q);
    }
    cluster_query_close(&q);
    return code;
}

/* --- promote --- */

/* Of one node. *ret_json is the caller's to free. */
static int ask(const struct options *o, const char *server, const char *command,
               const char *argument, char **ret_json, struct err *err)
{
    bool is_change = strcmp(command, "row") != 0;
    char token[TOKEN_FILE_MAX];
    int status = token_file_read(&file_os, o->token_file, token, err);

    return status
               ? status
               : ps_admin_one(&(struct ps_admin_plan){ .token = token,
                                                       .tls = o->tls,
                                                       .command = command,
                                                       .argument = argument,
                                                       .timeout_ms = cluster_query_timeout_ms(
                                                           o, is_change) },
                              server, ret_json, err);
}

/* Of several groups one has to be named: NULL: it is not. */
static int read_group(const char *command, const char *word, uint32_t n_groups, uint32_t *ret)
{
    char sentence[200], *end = NULL;
    const unsigned long group = word ? strtoul(word, &end, 10) : 0;

    if (!word && n_groups > 1)
        snprintf(sentence, sizeof sentence,
                 "%s: the cluster has %" PRIu32 " groups: name one, as psctl %s 0", command,
                 n_groups, command);
    else if (word && (word[0] < '0' || word[0] > '9' || *end || group >= n_groups))
        snprintf(sentence, sizeof sentence, "%s: found group %.20s, expected 0 to %" PRIu32,
                 command, word, n_groups - 1);
    else
        sentence[0] = '\0';
    *ret = (uint32_t)group;
    return sentence[0] ? fail(sentence) : EXIT_ANSWERED;
}

/* A group as the psd at --server knows it. */
static int find_group(const struct options *o, const char *command, const char *word,
                      struct group *ret)
{
    struct cluster_query q;
    uint32_t group = 0;
    int code = EXIT_FAILED;

    if (cluster_query_open(&q, o))
        code = read_group(command, word, q.cluster->n_nodes, &group);
    if (code == EXIT_ANSWERED) {
        *ret =
            group < q.cluster->groups.n ? q.cluster->groups.items[group] : (struct group){ 0 };
        /* A node alone shows no group, and its map names who was the primary first. A standby names its primary. */
        if (!ret->primary[0])
            snprintf(ret->primary, sizeof ret->primary, "%.127s",
                     q.cluster->n_nodes == 1 ? o->server : q.cluster->nodes[group]);
        if (!ret->standby[0] && q.cluster->n_nodes == 1) /* a node alone shows no group */
            snprintf(ret->standby, sizeof ret->standby, "%.127s", o->server);
    }
    cluster_query_close(&q);
    return code;
}

/* The same, as etcd has it: the nodes may be away. */
static int find_group_by_etcd(const struct options *o, const char *command, const char *word,
                              struct group *ret)
{
    const struct coord_options service = options_coord(o);
    struct groups *groups = memory_alloc(sizeof *groups);
    struct err err = { 0 };
    uint32_t group = 0;
    int code = EXIT_FAILED;

    if (etcd_lookup(&service, cluster_query_timeout_ms(o, false), groups, &err))
        (void)fail_with(&err);
    else
        code = read_group(command, word, groups->n, &group);
    if (code == EXIT_ANSWERED)
        *ret = groups->items[group];
    free(groups);
    return code;
}

/* Whom to promote: the psd at --server, or the standby of a group. */
static int find_standby(const struct options *o, const char *word,
                        char ret[static MESSAGE_ADDRESS_MAX])
{
    struct group group = { 0 };
    char sentence[200];
    int code = EXIT_ANSWERED;

    snprintf(ret, MESSAGE_ADDRESS_MAX, "%.127s", o->server);
    if (o->coord[0])
        code = find_group_by_etcd(o, "promote", word, &group);
    else if (word)
        code = find_group(o, "promote", word, &group);
    else
        return EXIT_ANSWERED;
    snprintf(ret, MESSAGE_ADDRESS_MAX, "%s", group.standby);
    if (code != EXIT_ANSWERED || group.standby[0])
        return code;
    snprintf(sentence, sizeof sentence,
             "promote: no standby of group %.20s is known: name it with --server HOST:PORT",
             word ? word : "0");
    return fail(sentence);
}

#define PROMOTION_BEAT_MS 1000u

/* A promotion that takes its time. */
struct promotion {
    const char *server; /* borrowed */
    uint64_t began_ms, until_ms;
    char state[240]; /* what the standby has last said of itself */
};

/* A line for each new reason. */
static void on_promotion_beat(void *arg, uint32_t i, const char *json)
{
    struct promotion *p = arg;
    cJSON *status = cJSON_Parse(json);
    const char *state = field_text(status, "health");

    (void)i;
    if (state[0] && strncmp(state, p->state, sizeof p->state - 1) != 0) {
        snprintf(p->state, sizeof p->state, "%s", state);
        fprintf(stderr, "psctl: note: %s, for %.0f s now", p->server,
                (double)(clock_mono_ms() - p->began_ms) / 1000);
        field_put(stderr, ": ", p->state, "\n");
    }
    cJSON_Delete(status);
}

static bool is_promotion_late(void *arg)
{
    const struct promotion *p = arg;

    return clock_mono_ms() >= p->until_ms;
}

static int fail_late(const struct promotion *p, uint32_t timeout_ms)
{
    fprintf(stderr, "psctl: promote: %s is not the primary after %.0f s", p->server,
            (double)timeout_ms / 1000);
    field_put(stderr, ": ", p->state[0] ? p->state : "it has not said why", "");
    fputs("; it goes on without psctl, and psctl status shows how it ends\n", stderr);
    return EXIT_FAILED;
}

int online_promote(const struct options *o, const char *const *words, uint32_t n_words)
{
    const uint32_t timeout_ms = cluster_query_timeout_ms(o, true);
    char server[MESSAGE_ADDRESS_MAX], argument[64], token[TOKEN_FILE_MAX], *json = NULL;
    struct promotion p = { .server = server, .began_ms = clock_mono_ms() };
    const struct ps_admin_plan plan = { .token = token,
                                        .tls = o->tls,
                                        .command = "promote",
                                        .argument = argument,
                                        .timeout_ms = timeout_ms,
                                        .beat_ms = PROMOTION_BEAT_MS,
                                        .beat_command = "status",
                                        .on_beat = on_promotion_beat,
                                        .is_cancelled = is_promotion_late,
                                        .arg = &p };
    struct err err = { 0 };
    int status, code;

    if (find_standby(o, n_words ? words[0] : NULL, server) != EXIT_ANSWERED)
        return EXIT_FAILED;
    p.until_ms = p.began_ms + timeout_ms;
    snprintf(argument, sizeof argument, "%s %s", o->other_is_dead ? "the-other-is-dead" : "",
             o->accept_loss ? "accept-loss" : "");
    status = token_file_read(&file_os, o->token_file, token, &err);
    if (!status)
        status = ps_admin_one(&plan, server, &json, &err);
    if (status)
        return status == -ECANCELED ? fail_late(&p, timeout_ms) : fail_with(&err);
    code = print_answer(o, "promote", json);
    free(json);
    return code;
}

/* --- row, switch --- */

#define N_HOPS_MAX 2u /* the node that was named, and the one that it names */

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

/* Only a primary that lives can hand over. */
static int fail_to_switch(const struct group *known, const struct err *err)
{
    fprintf(stderr,
            "psctl: %s%s; a primary that does not answer cannot hand over: its standby%s%s "
            "becomes the primary by psctl promote there\n",
            err->text, cluster_query_hint(err->status), known->standby[0] ? " " : "",
            known->standby);
    return EXIT_FAILED;
}

int online_switch(const struct options *o, const char *const *words, uint32_t n_words)
{
    char server[MESSAGE_ADDRESS_MAX], *json = NULL, *other = NULL;
    struct group group = { 0 };
    struct err err = { 0 };
    int code = EXIT_FAILED;

    if (o->coord[0] || n_words)
        code = (o->coord[0] ? find_group_by_etcd
                            : find_group)(o, "switch", n_words ? words[0] : NULL, &group);
    if ((o->coord[0] || n_words) && code != EXIT_ANSWERED)
        return EXIT_FAILED;
    snprintf(server, sizeof server, "%.127s", group.primary[0] ? group.primary : o->server);
    for (uint32_t i = 0; i < N_HOPS_MAX; i++) {
        free(json);
        json = NULL;
        if (ask(o, server, "switch", "", &json, &err) != 0)
            return err.status == -ECONNREFUSED || err.status == -ETIMEDOUT ||
                           err.status == -EHOSTUNREACH
                       ? fail_to_switch(&group, &err)
                       : fail_with(&err);
        other = other_node(json);
        if (!other)
            break;
        snprintf(server, sizeof server, "%.127s", other);
        free(other);
    }
    code = print_answer(o, "switch", json);
    free(json);
    return code;
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

/* --- checkpoint --- */

#define BEAT_MS 1000u
#define NOTE_FIRST_MS 5000u /* who waits is told so after this, */
#define NOTE_EVERY_MS 30000u

struct waited {
    uint64_t
        number; /* of the checkpoint that the node was writing when it last said so; 0: none */
    uint64_t note_ms; /* monotonic: when to tell */
};

struct request {
    struct cluster_query asked;
    struct waited *waited; /* owned, of each */
};

/* --- while it is written --- */

static void note(const struct request *r, uint32_t i, const cJSON *status, const cJSON *busy)
{
    double now = field_number(status, "now_unix_ms"),
           until = field_number(busy, "until_unix_ms");
    char sentence[240];
    int n = snprintf(sentence, sizeof sentence,
                     "node %" PRIu32 " at %.120s writes checkpoint %.0f, for %.0f s now", i,
                     r->asked.nodes[i].server, field_number(busy, "number"),
                     (now - field_number(busy, "since_unix_ms")) / 1000);

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
    const cJSON *busy = field_child(field_child(status, "checkpoints"), "under_way");

    w->number = (uint64_t)field_number(busy, "number");
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

    if (!cluster_query_is_alone(&r->asked))
        snprintf(label, sizeof label, "node %" PRIu32 ": ", cluster_query_number(&r->asked, i));
    fprintf(stderr, "psctl: %s%s", label, err->text);
    if (err->status == PS_EDEADLINE && r->waited[i].number)
        fprintf(stderr, "; it was writing checkpoint %" PRIu64 ", which may still end well",
                r->waited[i].number);
    fputc('\n', stderr);
}

static int print_lines(const struct request *r)
{
    int code = EXIT_ANSWERED;

    for (uint32_t i = 0; i < r->asked.n; i++) {
        if (!r->asked.nodes[i].json) {
            fail_node(r, i);
            code = EXIT_FAILED;
            continue;
        }
        if (!cluster_query_is_alone(&r->asked))
            printf("node %" PRIu32 ": ", cluster_query_number(&r->asked, i));
        if (print_answer(r->asked.options, "checkpoint", r->asked.nodes[i].json) !=
            EXIT_ANSWERED)
            code = EXIT_FAILED;
    }
    return code;
}

static void ask_all(struct request *r)
{
    uint32_t n = r->asked.n;

    r->waited = memory_alloc(n * sizeof *r->waited);
    for (uint32_t i = 0; i < n; i++)
        r->waited[i].note_ms = clock_mono_ms() + NOTE_FIRST_MS;
    cluster_query_ask(&r->asked, &(struct ps_admin_plan){ .command = "checkpoint",
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
    if (cluster_query_open(&r.asked, o)) {
        ask_all(&r);
        code = o->json && !cluster_query_is_alone(&r.asked) ? cluster_query_print_json(&r.asked)
                                                            : print_lines(&r);
    }
    cluster_query_close(&r.asked);
    free(r.waited);
    return code;
}

/* --- the tables of a job --- */

struct job_tables {
    double n_tables, n_rows, n_bytes;
};

/* True if all nodes have answered; else stderr says which have not, and why. */
static bool add_answers(const struct cluster_query *a, struct job_tables *ret)
{
    bool all = !cluster_query_print_failures(a);

    *ret = (struct job_tables){ 0 };
    for (uint32_t i = 0; i < a->n; i++) {
        cJSON *answer = cJSON_Parse(a->nodes[i].json);
        double n = field_number(answer, "tables");

        if (!answer) {
            all = false;
            continue;
        }
        ret->n_tables = n > ret->n_tables ? n : ret->n_tables;
        ret->n_rows += field_number(answer, "rows");
        ret->n_bytes += field_number(answer, "bytes");
        cJSON_Delete(answer);
    }
    return all;
}

/* All nodes, at once. The nodes' answers stay in *a. */
static bool command_all(struct cluster_query *a, const char *command, const char *argument,
                        struct job_tables *ret)
{
    cluster_query_ask(a, &(struct ps_admin_plan){ .command = command,
                                                  .argument = argument,
                                                  .beat_ms = BEAT_MS,
                                                  .beat_command = "status" });
    return add_answers(a, ret);
}

static int print_tables(const struct cluster_query *a, const char *job, const char *what,
                        const struct job_tables *t)
{
    if (a->options->json)
        return cluster_query_print_json(a);
    if (t->n_tables == 0)
        printf("job %s has no tables\n", job);
    else
        printf("job %s%s %.0f table%s, %.0f row%s, %.1f MiB\n", job, what, t->n_tables,
               NUMBER_PLURAL(t->n_tables), t->n_rows, NUMBER_PLURAL(t->n_rows),
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

static int fail_in_between(const struct cluster_query *a)
{
    uint32_t n_nodes = a->n, n_done = 0, n_refused = 0;
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
static int command_tables(struct cluster_query *a, const char *const commands[static 2],
                          const char *argument, const char *job, const char *done)
{
    struct job_tables t;

    if (!command_all(a, commands[0], argument, &t))
        return fail("nothing was changed");
    if (commands[1]) {
        if (!command_all(a, commands[1], argument, &t))
            return fail_in_between(a);
    }
    return print_tables(a, job, done, &t);
}

int online_drop(const struct options *o, const char *const *words, uint32_t n_words)
{
    const char *const commands[] = { "drop-check", o->yes ? "drop" : NULL };
    struct cluster_query a;
    int code = EXIT_FAILED;

    (void)n_words;
    if (cluster_query_open(&a, o)) {
        code = command_tables(&a, commands, words[0], words[0], o->yes ? ": dropped" : " has");
        if (code == EXIT_ANSWERED && !o->yes)
            code = fail("nothing was dropped: --yes drops them");
    }
    cluster_query_close(&a);
    return code;
}

int online_set(const struct options *o, const char *const *words, uint32_t n_words)
{
    static const char *const commands[] = { "set-check", "set" };
    char argument[TABLE_SPEC_NAME_MAX + TABLE_SPEC_SETTINGS_MAX];
    struct cluster_query a;
    int code = EXIT_FAILED;

    (void)n_words;
    if (strlen(words[0]) >= TABLE_SPEC_NAME_MAX || strlen(words[1]) >= TABLE_SPEC_SETTINGS_MAX)
        return fail("set: no job has so long a name, or more than 127 characters of settings");
    snprintf(argument, sizeof argument, "%s %s", words[0], words[1]);
    if (cluster_query_open(&a, o))
        code = command_tables(&a, commands, argument, words[0], ": changed");
    cluster_query_close(&a);
    return code;
}

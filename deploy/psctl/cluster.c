#include "deploy/psctl/cluster.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/number.h"
#include "common/token_file.h"
#include "deploy/psctl/cluster_query.h"
#include "deploy/psctl/data_dir.h"
#include "deploy/psctl/field.h"
#include "deploy/psctl/fold.h"
#include "deploy/psctl/text_grid.h"
#include "deploy/psctl/text_output.h"
#include "server/cluster/etcd_lookup.h"
#include "worker/client/ps_admin.h"

#define MEMBERS_MAX (4 * MESSAGE_NODES_MAX)

/* Whom this command asks. */
struct member {
    uint32_t group;
    char address[MESSAGE_ADDRESS_MAX];
    bool is_by_map; /* nobody but the cluster's list names it */
};

struct cluster {
    const struct options *options; /* borrowed */
    char token[TOKEN_FILE_MAX];
    struct groups groups;
    struct member members[MEMBERS_MAX];
    uint32_t n_members;
    cJSON *answers; /* owned: one for each member */
};

/* --- whom to ask --- */

static struct member *find_member(struct cluster *c, uint32_t group, const char *address)
{
    for (uint32_t i = 0; i < c->n_members; i++)
        if (c->members[i].group == group && strcmp(c->members[i].address, address) == 0)
            return &c->members[i];
    return NULL;
}

static void append_member(struct cluster *c, uint32_t group, const char *address,
                          bool is_by_map)
{
    if (!address[0] || c->n_members == MEMBERS_MAX)
        return;
    c->members[c->n_members] = (struct member){ .group = group, .is_by_map = is_by_map };
    memccpy(c->members[c->n_members++].address, address, 0, MESSAGE_ADDRESS_MAX - 1);
}

static void add_member(struct cluster *c, uint32_t group, const char *address)
{
    struct member *known = find_member(c, group, address);

    if (known)
        known->is_by_map = false;
    else
        append_member(c, group, address, false);
}

static struct ps_admin_plan plan_of(const struct cluster *c, const char *command)
{
    return (struct ps_admin_plan){ .token = c->token,
                                   .tls = c->options->tls,
                                   .command = command,
                                   .timeout_ms = cluster_query_timeout_ms(c->options, false) };
}

static int find_by_etcd(struct cluster *c, struct err *err)
{
    const struct coord_options service = options_coord(c->options);

    return etcd_lookup(&service, cluster_query_timeout_ms(c->options, false), &c->groups, err);
}

/* A node alone has no group in its handshake, and may still have a standby: its report says. */
static int find_by_node(struct cluster *c, struct err *err)
{
    struct hello_reply *map = memory_alloc(sizeof *map);
    const struct ps_admin_plan plan = plan_of(c, "");
    int status = ps_admin_find(&plan, c->options->server, map, err);

    c->groups = map->groups;
    c->groups.n = status ? 0 : map->n_nodes;
    for (uint32_t i = 0; i < c->groups.n; i++) {
        struct group *g = &c->groups.items[i];

        if (!map->groups.n)
            *g = (struct group){ 0 };
        if (!g->primary[0])
            snprintf(g->primary, sizeof g->primary, "%s", map->nodes[i]);
        add_member(c, i, i == map->node ? c->options->server : "");
        if (!g->term && !find_member(c, i, g->primary))
            append_member(c, i, g->primary, true);
    }
    free(map);
    return status;
}

/* --- the questions --- */

static void ask(struct cluster *c, const char *command, uint32_t first,
                struct ps_admin_node nodes[static MEMBERS_MAX])
{
    const struct ps_admin_plan plan = plan_of(c, command);

    for (uint32_t i = first; i < c->n_members; i++)
        nodes[i] = (struct ps_admin_node){ .server = c->members[i].address };
    ps_admin_ask(&plan, nodes + first, c->n_members - first);
}

static void add_answer(cJSON *into, const char *name, struct ps_admin_node *node)
{
    cJSON *json = node->json ? cJSON_Parse(node->json) : NULL;
    char text[sizeof node->err.text + 128];

    if (cJSON_IsObject(json))
        cJSON_AddItemToObject(into, name, json);
    else
        cJSON_Delete(json);
    if (!cJSON_IsObject(json) && !field_child(into, "error")) {
        snprintf(text, sizeof text, "%s%s",
                 node->json ? "the answer makes no sense" : node->err.text,
                 cluster_query_hint(node->err.status));
        cJSON_AddStringToObject(into, "error", text);
    }
    free(node->json);
}

/* Of the members from `first` on. */
static void ask_members(struct cluster *c, uint32_t first)
{
    struct ps_admin_node *status = memory_alloc(MEMBERS_MAX * sizeof *status);
    struct ps_admin_node *why = memory_alloc(MEMBERS_MAX * sizeof *why);

    ask(c, "status", first, status);
    ask(c, "why", first, why);
    for (uint32_t i = first; i < c->n_members; i++) {
        cJSON *answer = cJSON_CreateObject();

        cJSON_AddNumberToObject(answer, "group", c->members[i].group);
        cJSON_AddStringToObject(answer, "address", c->members[i].address);
        add_answer(answer, "status", &status[i]);
        add_answer(answer, "why", &why[i]);
        cJSON_AddItemToArray(c->answers, answer);
    }
    free(status);
    free(why);
}

/* Members that only another member knows of. */
static void add_peers(struct cluster *c)
{
    const cJSON *answer;

    cJSON_ArrayForEach(answer, c->answers)
    {
        const cJSON *status = field_child(answer, "status");
        const char *own = field_text(status, "address");
        const uint32_t group = (uint32_t)field_number(answer, "group");

        if (own[0])
            for (uint32_t i = 0; i < c->n_members; i++) /* --server may name it otherwise */
                if (c->members[i].group == group &&
                    strcmp(c->members[i].address, field_text(answer, "address")) == 0)
                    memccpy(c->members[i].address, own, 0, MESSAGE_ADDRESS_MAX - 1);
        add_member(c, group, field_text(field_child(status, "replication"), "peer"));
    }
}

/* --- the summary --- */

static bool is_primary(const cJSON *answer)
{
    const cJSON *status = field_child(answer, "status");
    const cJSON *replication = field_child(status, "replication");

    if (!status)
        return false;
    return replication ? strcmp(field_text(replication, "role"), "primary") == 0 : true;
}

static double term_of(const cJSON *answer)
{
    return field_number(field_child(field_child(answer, "status"), "replication"), "term");
}

/* The member that serves: of those that say so the one with the greatest term. */
static const cJSON *find_primary(const cJSON *members, uint32_t group)
{
    const cJSON *answer, *best = NULL;

    cJSON_ArrayForEach(answer, members) if ((uint32_t)field_number(answer, "group") == group &&
                                            is_primary(answer) &&
                                            (!best || term_of(answer) > term_of(best))) best =
        answer;
    return best;
}

/* The member that has answered and says that it is the standby; NULL: none. */
static const cJSON *find_standby(const cJSON *members, uint32_t group)
{
    const cJSON *answer;

    cJSON_ArrayForEach(answer, members)
    {
        const cJSON *r = field_child(field_child(answer, "status"), "replication");

        if ((uint32_t)field_number(answer, "group") == group &&
            strcmp(field_text(r, "role"), "standby") == 0)
            return answer;
    }
    return NULL;
}

static const char *address_of(const cJSON *answer)
{
    const char *own = field_text(field_child(answer, "status"), "address");

    return own[0] ? own : field_text(answer, "address");
}

static void add_waits(cJSON *waits, const cJSON *answer)
{
    const cJSON *wait;

    cJSON_ArrayForEach(wait, field_child(field_child(answer, "why"), "waits"))
    {
        cJSON *copy = cJSON_Duplicate(wait, true);

        cJSON_AddStringToObject(copy, "member", address_of(answer));
        cJSON_AddItemToArray(waits, copy);
    }
}

static void add_member_of(cJSON *list, const cJSON *answer)
{
    const cJSON *status = field_child(answer, "status");
    const cJSON *replication = field_child(status, "replication");
    cJSON *member = cJSON_CreateObject();

    cJSON_AddStringToObject(member, "address", address_of(answer));
    if (!status)
        cJSON_AddStringToObject(member, "error", field_text(answer, "error"));
    else {
        cJSON_AddStringToObject(member, "role",
                                replication ? field_text(replication, "role") : "primary");
        cJSON_AddStringToObject(member, "state",
                                replication ? field_text(replication, "state") : "alone");
        cJSON_AddStringToObject(member, "version", field_text(status, "version"));
        cJSON_AddStringToObject(member, "health", field_text(status, "health"));
        cJSON_AddBoolToObject(member, "serves",
                              is_primary(answer) && field_is_true(status, "ready"));
    }
    cJSON_AddItemToArray(list, member);
}

/* Of a primary that restores its data: "87 %"; "": how far it is is not known. NULL: it does not restore any. */
static const char *restored(const cJSON *primary, char dst[static FIELD_CELL_MAX])
{
    const cJSON *r = field_child(field_child(primary, "status"), "restoring");
    const double total = field_number(r, "total_bytes");

    dst[0] = '\0';
    if (r && total > 0)
        snprintf(dst, FIELD_CELL_MAX, "%.0f %%",
                 floor(100 * fmin(field_number(r, "bytes") / total, 1)));
    return r ? dst : NULL;
}

/* The standby that was asked is the only one that its own handshake names: its primary is its peer. */
static const char *known_primary(const struct group *known, const cJSON *standby)
{
    const cJSON *r = field_child(field_child(standby, "status"), "replication");

    return standby && strcmp(known->primary, address_of(standby)) == 0 ? field_text(r, "peer")
                                                                       : known->primary;
}

/* What the primary says. Without one what was known before, of etcd or of another node, and what the standby has last
 * heard. */
static cJSON *group_summary(const struct group *known, uint32_t number, const cJSON *members)
{
    const cJSON *primary = find_primary(members, number), *answer;
    const cJSON *standby = primary ? NULL : find_standby(members, number);
    const cJSON *r =
        field_child(field_child(primary ? primary : standby, "status"), "replication");
    cJSON *group = cJSON_CreateObject(), *list, *waits;
    char cell[FIELD_CELL_MAX];
    const char *share = restored(primary, cell);

    cJSON_AddNumberToObject(group, "group", number);
    cJSON_AddBoolToObject(group, "serves",
                          field_is_true(field_child(primary, "status"), "ready"));
    if (share)
        cJSON_AddStringToObject(group, "restored", share);
    cJSON_AddStringToObject(group, "primary",
                            primary ? address_of(primary) : known_primary(known, standby));
    cJSON_AddStringToObject(group, "standby",
                            standby ? address_of(standby)
                            : r     ? field_text(r, "peer")
                                    : known->standby);
    cJSON_AddStringToObject(group, "standby_state", standby ? field_text(r, "state") : "");
    cJSON_AddNumberToObject(group, "term",
                            r ? fmax(field_number(r, "term"), (double)known->term)
                              : (double)known->term);
    cJSON_AddBoolToObject(group, "in_sync",
                          primary ? field_is_true(r, "in_sync") : known->in_sync);
    cJSON_AddNumberToObject(group, "lag_records", field_number(r, "standby_lag_records"));
    cJSON_AddNumberToObject(group, "lag_ms", field_number(r, "standby_lag_ms"));
    list = cJSON_AddArrayToObject(group, "members");
    waits = cJSON_AddArrayToObject(group, "waits");
    cJSON_ArrayForEach(answer, members)
    {
        if ((uint32_t)field_number(answer, "group") != number)
            continue;
        add_member_of(list, answer);
        add_waits(waits, answer);
    }
    return group;
}

cJSON *cluster_summary(const struct groups *groups, const cJSON *members)
{
    cJSON *root = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(root, "groups");
    const cJSON *answer;

    cJSON_ArrayForEach(answer, members)
    {
        const cJSON *c = field_child(field_child(answer, "status"), "coordination");

        if (c && !field_child(root, "coordination"))
            cJSON_AddItemToObject(root, "coordination", cJSON_Duplicate(c, true));
    }
    for (uint32_t i = 0; i < groups->n; i++)
        cJSON_AddItemToArray(list, group_summary(&groups->items[i], i, members));
    return root;
}

/* Who is silent, and whom no member that answers names, is none any more where another one serves. */
static void drop_replaced(struct cluster *c)
{
    cJSON *answer = c->answers->child, *next;

    for (uint32_t i = 0; answer; i++, answer = next) {
        const cJSON *primary = find_primary(c->answers, c->members[i].group);

        next = answer->next;
        if (c->members[i].is_by_map && !field_child(answer, "status") &&
            field_is_true(field_child(primary, "status"), "ready") &&
            strcmp(c->members[i].address, address_of(primary)) != 0)
            cJSON_Delete(cJSON_DetachItemViaPointer(c->answers, answer));
    }
}

/* --- as text --- */

/* Of its members: the primary's, and the others' where they differ. */
static void format_versions(const cJSON *group, char *dst, size_t dst_bytes)
{
    const cJSON *member;

    dst[0] = '\0';
    cJSON_ArrayForEach(member, field_child(group, "members"))
    {
        const char *version = field_text(member, "version");
        const size_t n = strlen(dst);

        if (version[0] && !strstr(dst, version))
            snprintf(dst + n, dst_bytes - n, "%s%.20s", n ? ", " : "", version);
    }
    if (!dst[0])
        snprintf(dst, dst_bytes, "-");
}

static const char *or_dash(const char *text)
{
    return text[0] ? text : "-";
}

/* How far a standby is behind is the primary's to say. Of one that has lost its standby nothing is known; of one that
 * does not answer, what the standby has last heard. */
static bool knows_lag(const cJSON *group)
{
    const cJSON *member;

    if (field_text(group, "standby_state")[0])
        return true;
    cJSON_ArrayForEach(member, field_child(group, "members"))
    {
        const char *state = field_text(member, "state");

        if (strcmp(field_text(member, "address"), field_text(group, "primary")) == 0)
            return state[0] && strcmp(state, "no standby") != 0 && strcmp(state, "alone") != 0;
    }
    return false;
}

static void add_line(struct text_grid *g, const cJSON *group)
{
    const bool has_lag = field_text(group, "standby")[0] && knows_lag(group);
    const bool has_standby = field_text(group, "standby")[0];
    const bool serves = field_is_true(group, "serves");
    const bool in_sync = field_is_true(group, "in_sync");
    char versions[80], cell[FIELD_CELL_MAX];

    format_versions(group, versions, sizeof versions);
    text_grid_add(g, "%.0f", field_number(group, "group"));
    text_grid_add(g, "%s%s", or_dash(field_text(group, "primary")),
                  serves ? "" : " (does not serve)");
    text_grid_paint(g, serves ? TERMINAL_GREEN : TERMINAL_RED);
    text_grid_add(g, "%s", or_dash(field_text(group, "standby")));
    text_grid_add(g, "%.0f", field_number(group, "term"));
    text_grid_add(g, "%s", !has_standby ? "-" : in_sync ? "yes" : "no");
    text_grid_paint(g, !has_standby || in_sync ? TERMINAL_PLAIN : TERMINAL_YELLOW);
    text_grid_add(g, "%s",
                  has_lag ? field_format_count(cell, field_number(group, "lag_records")) : "-");
    if (has_lag)
        text_grid_add(g, "%.0f ms", field_number(group, "lag_ms"));
    else
        text_grid_add(g, "-");
    text_grid_add(g, "%s", versions);
}

/* Who may serve, of a group that nobody serves. */
static void print_hope(const cJSON *group, FILE *out)
{
    const double number = field_number(group, "group");
    const char *share = field_text(group, "restored");

    if (field_is_true(group, "serves"))
        return;
    if (field_child(group, "restored"))
        fprintf(out, "group %.0f: the primary restores its data%s%s%s: wait\n", number,
                share[0] ? " (" : "", share, share[0] ? ")" : "");
    /* A claim without a standby, or a node alone: one that is not in sync would not be found here. */
    else if (!field_text(group, "standby")[0])
        fprintf(
            out,
            "group %.0f: no standby is known that may take over: start the primary again, or "
            "promote a standby (psctl promote --server HOST:PORT)\n",
            number);
}

static bool is_standby(const cJSON *group, const char *address)
{
    const cJSON *member;

    cJSON_ArrayForEach(member, field_child(group, "members"))
    {
        if (strcmp(field_text(member, "address"), address) == 0)
            return strcmp(field_text(member, "role"), "standby") == 0;
    }
    return false;
}

/* The name of a wait is not that of a role: a primary waits for its standby, and a standby for its primary. */
static void print_wait(const cJSON *group, const cJSON *wait, FILE *out)
{
    const char *what = field_text(wait, "what"), *who = field_text(wait, "who");
    const bool is_pair = strcmp(what, "standby") == 0;
    const bool is_own = strcmp(what, "restore") == 0;

    fprintf(out, "group %.0f: ", field_number(group, "group"));
    field_put(out, "", field_text(wait, "member"), "");
    if (is_pair || is_own || strcmp(what, "coordination") == 0) {
        field_put(out, " waits for ",
                  is_pair && is_standby(group, field_text(wait, "member")) ? "primary" : what,
                  "");
        if (!is_own && strcmp(who, "none") != 0)
            field_put(out, " ", who, "");
    } else {
        field_put(out, ": ", what, "");
        field_put(out, ", ", who, "");
    }
    field_put(out, ": ", field_text(wait, "why"), "\n");
}

/* Beside the group's primary, as one that came back with an empty directory. */
static bool serves_too(const cJSON *group, const cJSON *member)
{
    return field_is_true(member, "serves") &&
           strcmp(field_text(member, "address"), field_text(group, "primary")) != 0;
}

static void print_group_lines(const cJSON *group, FILE *out)
{
    const double number = field_number(group, "group");
    const cJSON *item;

    cJSON_ArrayForEach(item, field_child(group, "members"))
    {
        if (serves_too(group, item)) {
            fprintf(out, "group %.0f: ", number);
            field_put(out, "", field_text(item, "address"),
                      " serves as a primary, too, with other data than ");
            field_put(out, "", field_text(group, "primary"),
                      ", which has the newest term: stop one of the two\n");
        }
        if (!field_text(item, "error")[0])
            continue;
        fprintf(out, "group %.0f: ", number);
        field_put(out, "", field_text(item, "address"), " does not answer: ");
        field_put(out, "", field_text(item, "error"), "\n");
    }
    print_hope(group, out);
    if (field_text(group, "standby_state")[0]) {
        fprintf(out, "group %.0f: ", number);
        field_put(out, "", field_text(group, "standby"), " is its standby: ");
        field_put(out, "", field_text(group, "standby_state"), "; ");
        fprintf(
            out, "when it last heard of the primary it was %.0f record%s and %.0f ms behind\n",
            field_number(group, "lag_records"),
            NUMBER_PLURAL(field_number(group, "lag_records")), field_number(group, "lag_ms"));
    }
    cJSON_ArrayForEach(item, field_child(group, "waits")) print_wait(group, item, out);
}

void cluster_print(const cJSON *summary, const struct terminal *terminal, FILE *out)
{
    static const char *const heads[] = { "GROUP",    "<PRIMARY", "<STANDBY", "TERM",
                                         "<IN SYNC", "1BEHIND",  "2FOR",     "<3VERSION" };
    const cJSON *c = field_child(summary, "coordination"), *group;
    struct text_grid g;

    if (c) {
        field_put(out, "coordination ", field_text(c, "service"), ": ");
        if (field_is_true(c, "away"))
            field_put(out,
                      "it does not answer, and no standby takes over: ", field_text(c, "error"),
                      "\n");
        else
            fputs("it answers\n", out);
    }
    text_grid_init(&g, heads, COUNT_OF(heads));
    cJSON_ArrayForEach(group, field_child(summary, "groups")) add_line(&g, group);
    text_grid_finish(&g, terminal, out);
    cJSON_ArrayForEach(group, field_child(summary, "groups")) print_group_lines(group, out);
}

/* --- the command --- */

static int code_of(const cJSON *summary)
{
    const cJSON *group, *member;

    cJSON_ArrayForEach(group, field_child(summary, "groups"))
    {
        if (!field_is_true(group, "serves"))
            return EXIT_FAILED;
        cJSON_ArrayForEach(member, field_child(group, "members"))
        {
            if (field_text(member, "error")[0] || serves_too(group, member))
                return EXIT_FAILED;
        }
    }
    return EXIT_ANSWERED;
}

static int show(struct cluster *c)
{
    struct text_output_view view = text_output_on_stdout(c->options->output == OPTIONS_WIDE);
    struct fold fold;
    cJSON *summary;
    uint32_t n_known;
    int code;

    for (uint32_t i = 0; i < c->groups.n; i++) {
        add_member(c, i, c->groups.items[i].term ? c->groups.items[i].primary : "");
        add_member(c, i, c->groups.items[i].standby);
    }
    c->answers = cJSON_CreateArray();
    ask_members(c, 0);
    n_known = c->n_members;
    add_peers(c);
    if (c->n_members > n_known)
        ask_members(c, n_known);
    drop_replaced(c);
    summary = cluster_summary(&c->groups, c->answers);
    code = code_of(summary);
    if (c->options->json) {
        data_dir_print_json(cJSON_Duplicate(summary, true));
    } else {
        cluster_print(summary, &view.terminal, fold_open(&fold));
        fold_close(&fold, &view.terminal, stdout);
    }
    cJSON_Delete(summary);
    cJSON_Delete(c->answers);
    return code;
}

int cluster_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct cluster *c = memory_alloc(sizeof *c);
    struct err err = { 0 };
    int status, code = EXIT_FAILED;

    (void)words;
    (void)n_words;
    c->options = o;
    status = token_file_read(&file_os, o->token_file, c->token, &err);
    if (!status)
        status = o->coord[0] ? find_by_etcd(c, &err) : find_by_node(c, &err);
    if (status)
        fprintf(stderr, "psctl: %s%s\n", err.text, cluster_query_hint(err.status));
    else
        code = show(c);
    free(c);
    return code;
}

/*
 * Nodes that do not agree in what they are, as their own settings say: each of them runs, and looks well, but refuses
 * workers, or is asked for keys that it does not have.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/address.h"
#include "deploy/psctl/doctor_findings.h"
#include "deploy/psctl/field.h"

#define PEER_TIMEOUT_MS 3000u
#define VALUES_MAX 400u /* bytes of "node 0 has ..., node 1 has ..." */

static const cJSON *setting_of(const cJSON *node, const char *name)
{
    return field_find(field_child(node, "settings"), "name", name);
}

static const char *value_of(const cJSON *node, const char *name)
{
    return field_text(setting_of(node, name), "value");
}

/* A psd that is, or was, a standby has the cluster from its primary, and not from its settings. */
static bool says_what_it_is(const cJSON *node)
{
    return field_child(node, "settings") && !value_of(node, "standby")[0] &&
           !value_of(node, "coord")[0];
}

/* --- settings that must be equal --- */

/* Of all that say what they are. */
static bool is_agreed(const struct examination *e, const cJSON *first, const char *name)
{
    const cJSON *node;

    cJSON_ArrayForEach(node, field_child(e->after, "nodes"))
    {
        if (says_what_it_is(node) && strcmp(value_of(node, name), value_of(first, name)) != 0)
            return false;
    }
    return true;
}

static void say_difference(struct examination *e, const char *name)
{
    char values[VALUES_MAX] = "";
    size_t n = 0;
    const cJSON *node;

    cJSON_ArrayForEach(node, field_child(e->after, "nodes"))
    {
        if (says_what_it_is(node) && n < sizeof values)
            n += (size_t)snprintf(values + n, sizeof values - n, "%snode %.0f has %.100s",
                                  n ? ", " : "", field_number(node, "node"),
                                  value_of(node, name)[0] ? value_of(node, name) : "none");
    }
    doctor_say(e, PROBLEM, NO_NODE,
               "nodes differ in %.60s, which must be equal, or they refuse workers: %s", name,
               values);
}

static void examine_equal(struct examination *e)
{
    const cJSON *node, *first = NULL, *setting;

    cJSON_ArrayForEach(node, field_child(e->after, "nodes"))
    {
        if (!first && says_what_it_is(node))
            first = node;
    }
    cJSON_ArrayForEach(setting, field_child(first, "settings"))
    {
        if (field_is_true(setting, "equal") &&
            !is_agreed(e, first, field_text(setting, "name")))
            say_difference(e, field_text(setting, "name"));
    }
}

/* --- settings of which the primary's count: those of its standby from a failover on --- */

static const char *const of_the_primary[] = { "durability", "standby-ack" };

/* No standby is refused for that, as one member is changed before the other. */
static void examine_pair(struct examination *e, const cJSON *node)
{
    const cJSON *other = field_child(node, "peer_settings");

    for (size_t i = 0; other && i < COUNT_OF(of_the_primary); i++) {
        const char *own = value_of(node, of_the_primary[i]),
                   *theirs = field_text(field_find(other, "name", of_the_primary[i]), "value");

        if (own[0] && theirs[0] && strcmp(own, theirs) != 0)
            doctor_say(e, WARNING, field_number(node, "node"),
                       "it has %s %.60s, and %.127s, the other one of its pair, %.60s: after a "
                       "failover that one counts; give both the same",
                       of_the_primary[i], own,
                       field_text(field_child(node, "replication"), "peer"), theirs);
    }
}

/* The other one of a pair is asked only while it is heard: a silent one costs the deadline. */
static void ask_peer(const struct cluster_query *q, cJSON *report)
{
    const cJSON *r = field_child(report, "replication");
    const char *peer = field_text(r, "peer"), *state = field_text(r, "state");
    const struct ps_admin_plan plan = { .token = q->token,
                                        .tls = q->options->tls,
                                        .command = "config",
                                        .timeout_ms = PEER_TIMEOUT_MS };
    struct err err = { 0 };
    char *json = NULL;
    cJSON *answer, *settings;

    if (!peer[0] || !(field_is_true(r, "in_sync") || strcmp(state, "following") == 0 ||
                      strcmp(state, "standby follows") == 0))
        return;
    if (ps_admin_one(&plan, peer, &json, &err) == 0) {
        answer = cJSON_Parse(json);
        settings = cJSON_DetachItemFromObjectCaseSensitive(answer, "settings");
        if (settings)
            cJSON_AddItemToObject(report, "peer_settings", settings);
        cJSON_Delete(answer);
    }
    free(json);
}

/* --- which line of the list a node is --- */

/* The line of the cluster's list; "": there is no such line. */
static const char *line_of(const cJSON *node, uint32_t number,
                           char ret[static ADDRESS_SERVER_MAX])
{
    const char *at = value_of(node, "cluster");
    size_t n;

    for (; number && at; number--) {
        at = strchr(at, ',');
        at = at ? at + 1 : NULL;
    }
    n = at ? strcspn(at, ",") : 0;
    snprintf(ret, ADDRESS_SERVER_MAX, "%.*s", (int)(n < ADDRESS_SERVER_MAX ? n : 0),
             at ? at : "");
    return ret;
}

/* Asked at the address that the list has for one node, it says that it is another. */
static void examine_number(struct examination *e, const cJSON *node, double n)
{
    const char *own = value_of(node, "node");
    char expected[24];

    snprintf(expected, sizeof expected, "%.0f", n);
    if (strcmp(own, expected) != 0)
        doctor_say(
            e, PROBLEM, n,
            "it says that it is node %.20s, and the list of the cluster has its address as "
            "node %s: its --node is wrong, and it refuses the keys that workers send it",
            own, expected);
}

static void examine_listen(struct examination *e, const cJSON *node, double n)
{
    const char *listen = value_of(node, "listen");
    char line[ADDRESS_SERVER_MAX];

    line_of(node, (uint32_t)n, line);
    if (!value_of(node, "advertise")[0] && address_is_elsewhere(listen, line))
        doctor_say(
            e, WARNING, n,
            "it listens on %.120s, and others look for it at %s, its line of the cluster's "
            "list: one of the two is wrong; if both lead to it, --advertise %s says so",
            listen, line, line);
}

void doctor_settings_examine(struct examination *e)
{
    const cJSON *node;

    examine_equal(e);
    cJSON_ArrayForEach(node, field_child(e->after, "nodes"))
    {
        examine_pair(e, node);
        if (!says_what_it_is(node) || !value_of(node, "cluster")[0])
            continue;
        examine_number(e, node, field_number(node, "node"));
        examine_listen(e, node, field_number(node, "node"));
    }
}

void doctor_settings_ask(const struct cluster_query *q, cJSON *reports)
{
    cJSON *answers = doctor_ask_answering(q, "config");
    const cJSON *answer;
    int i = 0;

    cJSON_ArrayForEach(answer, field_child(answers, "nodes"))
    {
        cJSON *report = cJSON_GetArrayItem(field_child(reports, "nodes"), i++);
        const cJSON *settings = field_child(answer, "settings");

        if (report && settings)
            cJSON_AddItemToObject(report, "settings", cJSON_Duplicate(settings, true));
        if (report && settings)
            ask_peer(q, report);
    }
    cJSON_Delete(answers);
}

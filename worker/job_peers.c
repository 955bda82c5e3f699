#include "worker/job_peers.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "worker/client/discovery.h"
#include "worker/client/ps.h"
#include "worker/client/ps_admin.h"

#define ASK_EVERY_MS 100u
#define ASK_SELDOM_MS 2000u
#define SAY_EVERY_MS 5000
#define ANSWER_MS 5000
#define REPORT_MS 2000 /* until the nodes' reports have this worker's end */
#define WHY_MS 1000    /* the same for who is in a hurry, or has but little time left */

static const char *text_of(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));

    return text ? text : "";
}

static bool takes_part(const cJSON *worker)
{
    const char *state = text_of(worker, "state");

    return strcmp(state, "live") == 0 || strcmp(state, "suspected") == 0 ||
           strcmp(state, "expected") == 0;
}

/* ---- whom to ask ---- */

/* The two psd of the node that has answered: one of them may be gone by the next question. */
struct members {
    char at[2][ADDRESS_SERVER_MAX];
};

#define SERVERS_MAX (DISCOVERY_SERVERS_MAX + 3u)

struct servers {
    uint32_t n;
    char at[SERVERS_MAX][ADDRESS_SERVER_MAX];
};

static void add_server(struct servers *list, const char *server)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (strcmp(list->at[i], server) == 0)
            return;
    if (server[0] && list->n < SERVERS_MAX)
        snprintf(list->at[list->n++], ADDRESS_SERVER_MAX, "%s", server);
}

/* First where a standby has taken over, as --servers may name the dead one alone; then --servers. */
static int list_servers(const struct job_peers *p, const struct members *members,
                        struct servers *ret, struct err *err)
{
    struct address *named = memory_alloc(DISCOVERY_SERVERS_MAX * sizeof *named);
    struct ps_stats stats = { 0 };
    uint32_t n;
    int status = address_list(p->settings->servers, DISCOVERY_SERVERS_MAX, named, &n, err);

    ret->n = 0;
    if (p->store)
        p->store->ops->stats(p->store, &stats);
    if (!status) {
        add_server(ret, stats.moved_to);
        for (uint32_t i = 0; i < 2 && members; i++)
            add_server(ret, members->at[i]);
        for (uint32_t i = 0; i < n; i++)
            add_server(ret, named[i].text);
    }
    free(named);
    return status;
}

/* Asks the servers in turn, until one answers: 0, or why the last one did not. */
static int try_servers(const struct job_peers *p, const struct members *members,
                       int (*try)(void *arg, const char *server, struct err *err), void *arg,
                       struct err *err)
{
    struct servers *servers = memory_alloc(sizeof *servers);
    int status = list_servers(p, members, servers, err);

    if (!status)
        for (uint32_t i = 0; i < servers->n && (!i || status); i++)
            status = try(arg, servers->at[i], err);
    free(servers);
    return status;
}

struct question {
    const struct settings *settings;
    const char *command;
    uint32_t timeout_ms;
    char *json; /* the answer, to be freed */
};

static int put_question(void *arg, const char *server, struct err *err)
{
    struct question *q = arg;

    return ps_admin_one(&(struct ps_admin_plan){ .token = q->settings->token,
                                                 .tls = q->settings->tls,
                                                 .command = q->command,
                                                 .argument = "",
                                                 .timeout_ms = q->timeout_ms },
                        server, &q->json, err);
}

/* For an answer: what is left, in bounds. A server that hangs is not to hold a worker for longer than was said. */
static uint32_t answer_ms(const struct settings *s, uint64_t waited_ms)
{
    uint64_t left_ms = s->finish_timeout_ms > waited_ms ? s->finish_timeout_ms - waited_ms : 0;

    if (left_ms < WHY_MS)
        return WHY_MS;
    return left_ms < ANSWER_MS ? (uint32_t)left_ms : ANSWER_MS;
}

/* ---- what is waited for ---- */

/* psd reports the first letters of a job's name. */
static bool is_own(const cJSON *wait, const struct settings *s)
{
    char label[64];

    snprintf(label, sizeof label, "job %.24s, worker %u (", s->job, s->rank);
    return strncmp(text_of(wait, "who"), label, strlen(label)) == 0;
}

/* This worker's own wait, or else the first that there is; NULL: none. */
static const cJSON *find_wait(const cJSON *waits, const struct settings *s)
{
    const cJSON *wait;

    cJSON_ArrayForEach(wait, waits)
    {
        if (is_own(wait, s))
            return wait;
    }
    return cJSON_GetArrayItem(waits, 0);
}

static void put_why(const cJSON *wait, char ret_why[JOB_PEERS_WHY_MAX])
{
    if (strcmp(text_of(wait, "what"), "parked pull") == 0)
        snprintf(ret_why, JOB_PEERS_WHY_MAX, "%.200s", text_of(wait, "why"));
    else
        snprintf(ret_why, JOB_PEERS_WHY_MAX, "%.60s, %.100s: %.120s", text_of(wait, "what"),
                 text_of(wait, "who"), text_of(wait, "why"));
}

enum reason { REASON_NONE, REASON_OTHERS, REASON_AWAY, REASON_OWN };

/* What one node has to say, if that is a better reason than the best so far. */
static void scan_node(const struct ps_admin_node *node, const struct settings *s,
                      enum reason *best, char ret_why[JOB_PEERS_WHY_MAX])
{
    cJSON *root = cJSON_Parse(node->json);
    const cJSON *wait = find_wait(cJSON_GetObjectItemCaseSensitive(root, "waits"), s);
    enum reason reason = !node->json       ? REASON_AWAY
                         : !wait           ? REASON_NONE
                         : is_own(wait, s) ? REASON_OWN
                                           : REASON_OTHERS;

    if (reason > *best) {
        *best = reason;
        if (wait)
            put_why(wait, ret_why);
        else
            snprintf(ret_why, JOB_PEERS_WHY_MAX, "%.200s", node->err.text);
    }
    cJSON_Delete(root);
}

struct search {
    const struct settings *settings;
    char server[ADDRESS_SERVER_MAX]; /* that has described the cluster */
    struct hello_reply cluster;
    struct members members;
};

/* Its group, as the server has described it; NULL: it has no standby, and never had one. */
static const struct group *own_group(const struct search *f)
{
    const struct groups *groups = &f->cluster.groups;

    return f->cluster.node < groups->n && groups->items[f->cluster.node].term
               ? &groups->items[f->cluster.node]
               : NULL;
}

/* A standby may have described the cluster: its primary is asked. */
static const char *server_of(const struct search *f, uint32_t node)
{
    const struct group *group = own_group(f);

    if (node != f->cluster.node)
        return f->cluster.nodes[node];
    return group && group->primary[0] ? group->primary : f->server;
}

static int find_cluster(void *arg, const char *server, struct err *err)
{
    struct search *f = arg;
    const struct group *group;

    snprintf(f->server, sizeof f->server, "%s", server);
    if (ps_admin_find(&(struct ps_admin_plan){ .token = f->settings->token,
                                               .tls = f->settings->tls,
                                               .timeout_ms = WHY_MS },
                      server, &f->cluster, err))
        return err->status;
    group = own_group(f);
    snprintf(f->members.at[0], ADDRESS_SERVER_MAX, "%s", group ? group->primary : "");
    snprintf(f->members.at[1], ADDRESS_SERVER_MAX, "%s", group ? group->standby : "");
    return 0;
}

/* Of all nodes of the cluster. */
static void ask_why(const struct settings *s, const struct search *found,
                    char ret_why[JOB_PEERS_WHY_MAX])
{
    const struct hello_reply *cluster = &found->cluster;
    const struct ps_admin_plan plan = {
        .token = s->token, .tls = s->tls, .command = "why", .argument = "", .timeout_ms = WHY_MS
    };
    struct ps_admin_node *nodes = memory_alloc(cluster->n_nodes * sizeof *nodes);
    enum reason best = REASON_NONE;

    snprintf(ret_why, JOB_PEERS_WHY_MAX, "the servers know of no wait");
    for (uint32_t i = 0; i < cluster->n_nodes; i++)
        nodes[i].server = server_of(found, i);
    ps_admin_ask(&plan, nodes, cluster->n_nodes);
    for (uint32_t i = 0; i < cluster->n_nodes; i++) {
        scan_node(&nodes[i], s, &best, ret_why);
        free(nodes[i].json);
    }
    free(nodes);
}

void job_peers_why(const struct job_peers *p, char ret_why[JOB_PEERS_WHY_MAX])
{
    struct search *f = memory_alloc(sizeof *f);
    struct err err = { 0 };

    f->settings = p->settings;
    if (try_servers(p, NULL, find_cluster, f, &err))
        snprintf(ret_why, JOB_PEERS_WHY_MAX, "no server says for what (%.200s)", err.text);
    else
        ask_why(p->settings, f, ret_why);
    free(f);
}

/* ---- how the others ended ---- */

static double number_of(const cJSON *object, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(object, name));
}

/* 0 also where it is not there: an older psd leaves out what is newer. */
static uint64_t count_of(const cJSON *object, const char *name)
{
    double n = number_of(object, name);

    return n >= 0 && n < 1e18 ? (uint64_t)n : 0;
}

static const cJSON *find_job(const cJSON *root, const char *name)
{
    const cJSON *job;

    cJSON_ArrayForEach(job, cJSON_GetObjectItemCaseSensitive(root, "jobs"))
    {
        if (strcmp(text_of(job, "name"), name) == 0)
            return job;
    }
    return NULL;
}

static bool has_been_lost(const cJSON *worker)
{
    const char *state = text_of(worker, "state");

    return strcmp(state, "dead") == 0 || strcmp(state, "lost") == 0;
}

static bool has_left(const cJSON *worker)
{
    return strcmp(text_of(worker, "state"), "left") == 0;
}

/* A node that has not seen this worker leave reports what was before that. A farewell that was lost on its way makes it
 * a dead one there. */
static bool knows_the_end(const cJSON *job, uint32_t own_rank)
{
    const cJSON *worker;

    cJSON_ArrayForEach(worker, cJSON_GetObjectItemCaseSensitive(job, "workers"))
    {
        if (number_of(worker, "rank") == (double)own_rank)
            return !takes_part(worker);
    }
    return false;
}

static void add_worker(struct job_peers_ends *ends, const cJSON *worker, uint32_t own_rank)
{
    double rank = number_of(worker, "rank");
    uint64_t finished = count_of(worker, "clock"), skipped = count_of(worker, "skipped_clocks");
    uint32_t i;

    if (!(rank >= 0 && rank < JOB_PEERS_RANKS_MAX) || (uint32_t)rank == own_rank)
        return;
    i = (uint32_t)rank;
    if (skipped > ends->skipped[i])
        ends->skipped[i] = skipped;
    if (takes_part(worker) && !ends->at_work[0])
        snprintf(ends->at_work, sizeof ends->at_work, "rank %u (%.100s)", i,
                 text_of(worker, "name"));
    if (has_been_lost(worker)) {
        if (!ends->is_lost[i] || finished < ends->clock[i])
            ends->clock[i] = finished;
        ends->n_lost += !ends->is_lost[i];
        ends->is_lost[i] = true;
    } else if (has_left(worker) && !ends->is_lost[i]) {
        if (finished > ends->clock[i])
            ends->clock[i] = finished;
        ends->has_left[i] = true;
    }
}

/* False: its report is older than the end of this worker. */
static bool add_node(struct job_peers_ends *ends, const struct ps_admin_node *node,
                     const struct settings *s)
{
    cJSON *root = node->json ? cJSON_Parse(node->json) : NULL;
    const cJSON *job = find_job(root, s->job), *worker;
    bool knows = knows_the_end(job, s->rank);

    if (knows)
        cJSON_ArrayForEach(worker, cJSON_GetObjectItemCaseSensitive(job, "workers"))
        {
            add_worker(ends, worker, s->rank);
        }
    ends->is_known = ends->is_known || knows;
    cJSON_Delete(root);
    return knows || !node->json;
}

/* One question to all nodes. False: one of them is behind. *ret_heard: the one that has described them has answered. */
static bool ask_ends(const struct settings *s, const struct search *found, uint32_t timeout_ms,
                     struct job_peers_ends *ret, bool *ret_heard)
{
    const struct hello_reply *cluster = &found->cluster;
    const struct ps_admin_plan plan = { .token = s->token,
                                        .tls = s->tls,
                                        .command = "workers",
                                        .argument = "",
                                        .timeout_ms = timeout_ms };
    struct ps_admin_node *nodes = memory_alloc(cluster->n_nodes * sizeof *nodes);
    bool all = true;

    memset(ret, 0, sizeof *ret);
    for (uint32_t i = 0; i < cluster->n_nodes; i++)
        nodes[i].server = server_of(found, i);
    ps_admin_ask(&plan, nodes, cluster->n_nodes);
    *ret_heard = nodes[cluster->node].json != NULL;
    for (uint32_t i = 0; i < cluster->n_nodes; i++) {
        all = add_node(ret, &nodes[i], s) && all;
        if (nodes[i].err.text[0])
            snprintf(ret->why_unknown, sizeof ret->why_unknown, "%.200s", nodes[i].err.text);
        free(nodes[i].json);
    }
    free(nodes);
    return all;
}

/* Waiting for the ends of the others. */
struct end_wait {
    const struct job_peers *peers;
    const struct settings *settings;
    const struct stop_signal *stop;
    uint64_t silence_max_ms; /* without an answer; 0: what is known now is enough */
    uint64_t since_ms, heard_ms, say_ms;
    struct search search;
    bool has_found; /* the cluster; false again when the node that has described it is silent */
    bool has_tried; /* it was found once */
};

/* False: a node is behind, or none has answered. */
static bool ask_once(struct end_wait *w, uint64_t waited_ms, struct job_peers_ends *ret)
{
    struct err err = { 0 };

    if (!w->has_found &&
        try_servers(w->peers, &w->search.members, find_cluster, &w->search, &err)) {
        snprintf(ret->why_unknown, sizeof ret->why_unknown, "%.200s", err.text);
        return false;
    }
    w->has_tried = true;
    return ask_ends(w->settings, &w->search, answer_ms(w->settings, waited_ms), ret,
                    &w->has_found);
}

/* Is that all that the servers will say, or is the time over? */
static bool is_over(struct end_wait *w, bool all, const struct job_peers_ends *ends,
                    uint64_t now_ms)
{
    const uint64_t waited_ms = now_ms - w->since_ms;

    if (ends->is_known)
        w->heard_ms = now_ms;
    if (ends->is_known && (all || waited_ms >= REPORT_MS) &&
        (!w->silence_max_ms || !ends->at_work[0]))
        return true;
    if (stop_signal_asked(w->stop) || !w->silence_max_ms)
        return waited_ms >= REPORT_MS || !w->has_tried;
    return now_ms - w->heard_ms >= w->silence_max_ms ||
           (waited_ms >= REPORT_MS && waited_ms >= w->settings->finish_timeout_ms);
}

static void say_wait(struct end_wait *w, const struct job_peers_ends *ends, uint64_t now_ms)
{
    if (now_ms < w->say_ms)
        return;
    w->say_ms = now_ms + SAY_EVERY_MS;
    if (ends->is_known)
        log_line_info("waiting for the job's other workers: %s", ends->at_work);
    else
        log_line_info("waiting for the servers to say how the job's other workers ended: %s",
                      ends->why_unknown);
}

/* Each worker of a job asks all nodes, so that many of them ask less often. */
static struct timespec pause_of(const struct settings *s)
{
    uint64_t ms = s->workers * ASK_EVERY_MS / 10;

    ms = ms < ASK_EVERY_MS ? ASK_EVERY_MS : ms > ASK_SELDOM_MS ? ASK_SELDOM_MS : ms;
    return (struct timespec){ .tv_sec = (time_t)(ms / 1000),
                              .tv_nsec = (long)(ms % 1000) * 1000000L };
}

static void warn_unknown(const struct end_wait *w, struct job_peers_ends *ends)
{
    if (!ends->is_known) {
        if (!ends->why_unknown[0])
            snprintf(ends->why_unknown, sizeof ends->why_unknown,
                     "no server knows this worker");
        log_line_warn("whether workers of the job were lost is not known: %s",
                      ends->why_unknown);
    } else if (ends->at_work[0] && w->silence_max_ms) {
        ends->is_known = false;
        snprintf(ends->why_unknown, sizeof ends->why_unknown, "%.120s has not ended",
                 ends->at_work);
        if (!stop_signal_asked(w->stop))
            log_line_warn("going on without the job's other workers (--finish-timeout): %s",
                          ends->at_work);
    }
}

/* A question that fails is asked again: what was trained is not thrown away for it. */
void job_peers_find_ends(const struct job_peers *p, const struct stop_signal *stop,
                         uint64_t silence_max_ms, struct job_peers_ends *ret)
{
    const struct settings *s = p->settings;
    const uint64_t since_ms = clock_mono_ms();
    const struct timespec pause = pause_of(s);
    struct end_wait *w = memory_alloc(sizeof *w);
    uint64_t now_ms = since_ms;
    bool all;

    *w = (struct end_wait){ .peers = p,
                            .settings = s,
                            .stop = stop,
                            .silence_max_ms = silence_max_ms,
                            .since_ms = since_ms,
                            .heard_ms = since_ms,
                            .say_ms = since_ms + SAY_EVERY_MS };
    w->search.settings = s;
    for (;;) {
        memset(ret, 0, sizeof *ret);
        all = ask_once(w, now_ms - since_ms, ret);
        now_ms = clock_mono_ms();
        if (is_over(w, all, ret, now_ms))
            break;
        say_wait(w, ret, now_ms);
        sd_notify(0, "WATCHDOG=1");
        nanosleep(&pause, NULL);
    }
    warn_unknown(w, ret);
    /* The others learn it with their next question: until then nobody may take this worker's end for a sign that the
     * servers can be stopped. */
    if (ret->is_known && silence_max_ms)
        nanosleep(&pause, NULL);
    free(w);
}

/* ---- dead workers ---- */

static void log_if_dead(const cJSON *worker, const struct settings *s,
                        struct job_peers_dead *dead)
{
    const char *state = text_of(worker, "state");
    double rank = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(worker, "rank"));
    bool is_dead = strcmp(state, "dead") == 0, is_gone = is_dead || strcmp(state, "lost") == 0;

    if (!(rank >= 0 && rank < JOB_PEERS_RANKS_MAX) || (uint32_t)rank == s->rank)
        return;
    if (is_gone && !dead->is_logged[(uint32_t)rank])
        log_line_warn("worker %u %s; the others go on without it, and nobody takes over its "
                      "rows: start it again to train them",
                      (uint32_t)rank,
                      is_dead ? "is gone: it was not heard of for a lease, and is declared dead"
                              : "has not come within the join timeout");
    dead->is_logged[(uint32_t)rank] = is_gone;
}

void job_peers_log_dead(const struct job_peers *p, struct job_peers_dead *dead)
{
    const struct settings *s = p->settings;
    struct question q = { .settings = s, .command = "workers", .timeout_ms = WHY_MS };
    const cJSON *job, *worker;
    struct err ignored;
    cJSON *root;

    if (try_servers(p, NULL, put_question, &q, &ignored))
        return;
    root = cJSON_Parse(q.json);
    cJSON_ArrayForEach(job, cJSON_GetObjectItemCaseSensitive(root, "jobs"))
    {
        if (strcmp(text_of(job, "name"), s->job) != 0)
            continue;
        cJSON_ArrayForEach(worker, cJSON_GetObjectItemCaseSensitive(job, "workers"))
            log_if_dead(worker, s, dead);
    }
    cJSON_Delete(root);
    free(q.json);
}

/* ---- the job's clock ---- */

int job_peers_clock(const struct settings *s, uint32_t timeout_ms, uint64_t *ret,
                    struct err *err)
{
    struct question q = { .settings = s, .command = "workers", .timeout_ms = timeout_ms };
    const struct job_peers p = { .settings = s };
    int status = try_servers(&p, NULL, put_question, &q, err);
    cJSON *root = status ? NULL : cJSON_Parse(q.json);
    const cJSON *job = find_job(root, s->job);

    if (!status && !job)
        status = err_set(err, -ENOENT, "the servers know no job \"%s\"", s->job);
    if (!status)
        *ret = count_of(job, "min_clock");
    cJSON_Delete(root);
    free(q.json);
    return status;
}

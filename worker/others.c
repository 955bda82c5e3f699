#include "worker/others.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include "common/log.h"
#include "worker/client/ps.h"

#define ASK_EVERY_MS 100
#define SAY_EVERY_MS 5000
#define ANSWER_MS 5000
#define WHY_MS 1000 /* the same for who is in a hurry */

static const char *text_of(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));

    return text ? text : "";
}

static bool takes_part(const cJSON *worker)
{
    const char *state = text_of(worker, "state");

    return strcmp(state, "live") == 0 || strcmp(state, "expected") == 0;
}

/* How many of one job's workers still take part; ret_who: the first of them. */
static int count_job(const cJSON *job, char *ret_who, size_t n_bytes)
{
    const cJSON *worker;
    int n = 0;

    cJSON_ArrayForEach(worker, cJSON_GetObjectItemCaseSensitive(job, "workers"))
    {
        if (takes_part(worker) && n++ == 0)
            snprintf(
                ret_who, n_bytes, "rank %d (%s)",
                (int)cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(worker, "rank")),
                text_of(worker, "name"));
    }
    return n;
}

/* -1 when the answer is no list of jobs. */
static int count(const char *json, const char *name, char *ret_who, size_t n_bytes)
{
    cJSON *root = cJSON_Parse(json);
    const cJSON *jobs = cJSON_GetObjectItemCaseSensitive(root, "jobs"), *job;
    int n = cJSON_IsArray(jobs) ? 0 : -1;

    cJSON_ArrayForEach(job, jobs)
    {
        if (strcmp(text_of(job, "name"), name) == 0)
            n += count_job(job, ret_who, n_bytes);
    }
    cJSON_Delete(root);
    return n;
}

/* The first server's answer, to be freed. */
static int question(const struct settings *s, const char *token, const char *command,
                    uint32_t timeout_ms, char **ret_json, struct err *err)
{
    char server[SETTINGS_TEXT_MAX];

    snprintf(server, sizeof server, "%s", s->servers);
    server[strcspn(server, ",")] = 0;
    return ps_admin(server, token, command, "", timeout_ms, ret_json, err);
}

static int ask(const struct settings *s, const char *token, char *ret_who, size_t n_bytes,
               int *ret_n, struct err *err)
{
    char *json;
    int status = question(s, token, "workers", ANSWER_MS, &json, err);

    if (status)
        return status;
    *ret_n = count(json, s->job, ret_who, n_bytes);
    free(json);
    return *ret_n < 0 ? err_set(err, PS_EPROTO, "the list of workers cannot be read") : 0;
}

/* A question that fails is asked again: what was trained is not thrown away for it. */
void others_wait(const struct settings *s, const char *token, const struct stop *stop)
{
    const struct timespec pause = { .tv_nsec = ASK_EVERY_MS * 1000000L };
    uint64_t waited_ms = 0;
    char who[160];
    struct err err;
    int n = 0;

    for (;;) {
        if (ask(s, token, who, sizeof who, &n, &err))
            snprintf(who, sizeof who, "who is not known (%.100s)", err.text);
        else if (n == 0)
            return;
        if (stop_asked(stop))
            return;
        if (waited_ms >= s->finish_timeout_ms) {
            log_warn("going on without the job's other workers (--finish-timeout): %s", who);
            return;
        }
        if (waited_ms % SAY_EVERY_MS == 0 && waited_ms)
            log_info("waiting for the job's other workers: %s", who);
        sd_notify(0, "WATCHDOG=1");
        nanosleep(&pause, NULL);
        waited_ms += ASK_EVERY_MS;
    }
}

/* ---- what is waited for ---- */

/* This worker's own wait, or else the first that there is; NULL: none. psd tells the first letters of a job's
 * name. */
static const cJSON *find_wait(const cJSON *waits, const struct settings *s)
{
    const cJSON *wait;
    char who[64];

    snprintf(who, sizeof who, "job %.24s, worker %u (", s->job, s->rank);
    cJSON_ArrayForEach(wait, waits)
    {
        if (strncmp(text_of(wait, "who"), who, strlen(who)) == 0)
            return wait;
    }
    return cJSON_GetArrayItem(waits, 0);
}

static void put_why(const cJSON *wait, char ret_why[OTHERS_WHY_MAX])
{
    if (!wait)
        snprintf(ret_why, OTHERS_WHY_MAX, "the server knows of no wait");
    else if (strcmp(text_of(wait, "what"), "parked pull") == 0)
        snprintf(ret_why, OTHERS_WHY_MAX, "%.200s", text_of(wait, "why"));
    else
        snprintf(ret_why, OTHERS_WHY_MAX, "%.60s, %.100s: %.120s", text_of(wait, "what"),
                 text_of(wait, "who"), text_of(wait, "why"));
}

void others_why(const struct settings *s, const char *token, char ret_why[OTHERS_WHY_MAX])
{
    struct err err = { 0 };
    char *json;
    cJSON *root;

    if (question(s, token, "why", WHY_MS, &json, &err)) {
        snprintf(ret_why, OTHERS_WHY_MAX, "for what is not known (%.200s)", err.text);
        return;
    }
    root = cJSON_Parse(json);
    put_why(find_wait(cJSON_GetObjectItemCaseSensitive(root, "waits"), s), ret_why);
    cJSON_Delete(root);
    free(json);
}

/* ---- who is gone ---- */

static void tell_gone(const cJSON *worker, const struct settings *s, struct others_gone *gone)
{
    const char *state = text_of(worker, "state");
    double rank = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(worker, "rank"));
    bool is_dead = strcmp(state, "dead") == 0, is_gone = is_dead || strcmp(state, "lost") == 0;

    if (!(rank >= 0 && rank < OTHERS_RANKS_MAX) || (uint32_t)rank == s->rank)
        return;
    if (is_gone && !gone->told[(uint32_t)rank])
        log_warn("worker %u %s; the others go on without it", (uint32_t)rank,
                 is_dead ? "is gone: it was not heard of for a lease, and is declared dead"
                         : "has not come within the join timeout");
    gone->told[(uint32_t)rank] = is_gone;
}

void others_tell_gone(const struct settings *s, const char *token, struct others_gone *gone)
{
    const cJSON *job, *worker;
    struct err ignored;
    char *json;
    cJSON *root;

    if (question(s, token, "workers", WHY_MS, &json, &ignored))
        return;
    root = cJSON_Parse(json);
    cJSON_ArrayForEach(job, cJSON_GetObjectItemCaseSensitive(root, "jobs"))
    {
        if (strcmp(text_of(job, "name"), s->job) != 0)
            continue;
        cJSON_ArrayForEach(worker, cJSON_GetObjectItemCaseSensitive(job, "workers"))
            tell_gone(worker, s, gone);
    }
    cJSON_Delete(root);
    free(json);
}

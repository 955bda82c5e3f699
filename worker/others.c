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

static int ask(const struct settings *s, const char *token, char *ret_who, size_t n_bytes,
               int *ret_n, struct err *err)
{
    char server[SETTINGS_TEXT_MAX], *json;
    int status;

    snprintf(server, sizeof server, "%s", s->servers);
    server[strcspn(server, ",")] = 0;
    status = ps_admin(server, token, "workers", "", ANSWER_MS, &json, err);
    if (status)
        return status;
    *ret_n = count(json, s->job, ret_who, n_bytes);
    free(json);
    return *ret_n < 0
               ? err_set(err, PS_EPROTO, "%s: the list of workers cannot be read", server)
               : 0;
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

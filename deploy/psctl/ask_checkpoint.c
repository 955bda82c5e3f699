#include "deploy/psctl/ask_checkpoint.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/now.h"
#include "deploy/psctl/ask.h"
#include "deploy/psctl/offline.h"
#include "deploy/psctl/show.h"
#include "worker/client/ps_admin.h"

#define BEAT_MS 1000u
#define NOTE_FIRST_MS 5000u /* who waits is told so after this, */
#define NOTE_EVERY_MS 30000u

struct waited {
    uint64_t
        number; /* of the checkpoint that the node was writing when it last said so; 0: none */
    uint64_t note_ms; /* monotonic: when to tell */
};

struct request {
    const struct options *options;
    struct hello_reply *cluster; /* owned */
    struct ps_admin_node *nodes; /* owned, cluster->n_nodes, and their answers */
    struct waited *waited;       /* owned, of each */
};

static bool is_alone(const struct request *r)
{
    return r->cluster->n_nodes == 1;
}

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
                     r->nodes[i].server, number(busy, "number"),
                     (now - number(busy, "since_unix_ms")) / 1000);

    if (until > 0)
        snprintf(sentence + n, sizeof sentence - (size_t)n, ", %.0f s more if it does not move",
                 (until - now) / 1000);
    offline_note(NULL, sentence);
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
    if (busy && now_mono_ms() >= w->note_ms) {
        w->note_ms = now_mono_ms() + NOTE_EVERY_MS;
        note(r, i, status, busy);
    }
    cJSON_Delete(status);
}

/* --- the end --- */

static void complain(const struct request *r, uint32_t i)
{
    const struct err *err = &r->nodes[i].err;
    char who[40] = "";

    if (!is_alone(r))
        snprintf(who, sizeof who, "node %" PRIu32 ": ", i);
    fprintf(stderr, "psctl: %s%s", who, err->text);
    if (err->status == PS_EDEADLINE && r->waited[i].number)
        fprintf(stderr, "; it was writing checkpoint %" PRIu64 ", which may still end well",
                r->waited[i].number);
    fputc('\n', stderr);
}

static int tell_lines(const struct request *r)
{
    int code = EXIT_ANSWERED;

    for (uint32_t i = 0; i < r->cluster->n_nodes; i++) {
        if (!r->nodes[i].json) {
            complain(r, i);
            code = EXIT_FAILED;
            continue;
        }
        if (!is_alone(r))
            printf("node %" PRIu32 ": ", i);
        if (ask_tell(r->options, "checkpoint", r->nodes[i].json) != EXIT_ANSWERED)
            code = EXIT_FAILED;
    }
    return code;
}

static int tell_json(const struct request *r)
{
    cJSON *root = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(root, "nodes");
    int code = EXIT_ANSWERED;

    for (uint32_t i = 0; i < r->cluster->n_nodes; i++) {
        const char *json = r->nodes[i].json;
        cJSON *item = json ? cJSON_Parse(json) : NULL;

        if (!item) {
            item = cJSON_CreateObject();
            cJSON_AddStringToObject(item, "error",
                                    json ? "the answer makes no sense" : r->nodes[i].err.text);
            code = EXIT_FAILED;
        }
        cJSON_AddNumberToObject(item, "node", i);
        cJSON_AddItemToArray(list, item);
    }
    offline_print_json(root);
    return code;
}

/* The node that was named is asked under that name, by which it can be reached. */
static void ask_all(struct request *r, const char *token)
{
    const struct options *o = r->options;
    const struct ps_admin_plan plan = { .token = token,
                                        .command = "checkpoint",
                                        .timeout_ms = (uint32_t)o->timeout_ms,
                                        .beat_ms = BEAT_MS,
                                        .beat_command = "status",
                                        .on_beat = on_beat,
                                        .arg = r };
    uint32_t n = r->cluster->n_nodes;

    r->nodes = mem_alloc(n * sizeof *r->nodes);
    r->waited = mem_alloc(n * sizeof *r->waited);
    for (uint32_t i = 0; i < n; i++) {
        r->nodes[i].server = i == r->cluster->node ? o->server : r->cluster->nodes[i];
        r->waited[i].note_ms = now_mono_ms() + NOTE_FIRST_MS;
    }
    ps_admin_ask(&plan, r->nodes, n);
}

static void deinit(struct request *r)
{
    for (uint32_t i = 0; r->nodes && i < r->cluster->n_nodes; i++)
        free(r->nodes[i].json);
    free(r->nodes);
    free(r->waited);
    free(r->cluster);
}

int ask_checkpoint_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct request r = { .options = o, .cluster = mem_alloc(sizeof *r.cluster) };
    char token[ASK_TOKEN_MAX];
    struct err err = { 0 };
    int code;

    (void)words;
    (void)n_words;
    if (ask_token(o, token, &err) ||
        ps_admin_cluster(o->server, token, (uint32_t)o->timeout_ms, r.cluster, &err)) {
        fprintf(stderr, "psctl: %s\n", err.text);
        code = EXIT_FAILED;
    } else {
        ask_all(&r, token);
        code = o->json && !is_alone(&r) ? tell_json(&r) : tell_lines(&r);
    }
    deinit(&r);
    return code;
}

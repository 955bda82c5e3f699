#include "deploy/psctl/ask_checkpoint.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/now.h"
#include "deploy/psctl/ask_nodes.h"
#include "deploy/psctl/offline.h"
#include "deploy/psctl/show.h"

#define BEAT_MS 1000u
#define NOTE_FIRST_MS 5000u /* who waits is told so after this, */
#define NOTE_EVERY_MS 30000u

struct waited {
    uint64_t
        number; /* of the checkpoint that the node was writing when it last said so; 0: none */
    uint64_t note_ms; /* monotonic: when to tell */
};

struct request {
    struct ask_nodes asked;
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
    const struct err *err = &r->asked.nodes[i].err;
    char who[40] = "";

    if (!ask_nodes_is_alone(&r->asked))
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

    for (uint32_t i = 0; i < r->asked.cluster->n_nodes; i++) {
        if (!r->asked.nodes[i].json) {
            complain(r, i);
            code = EXIT_FAILED;
            continue;
        }
        if (!ask_nodes_is_alone(&r->asked))
            printf("node %" PRIu32 ": ", i);
        if (ask_tell(r->asked.options, "checkpoint", r->asked.nodes[i].json) != EXIT_ANSWERED)
            code = EXIT_FAILED;
    }
    return code;
}

static void ask_all(struct request *r)
{
    uint32_t n = r->asked.cluster->n_nodes;

    r->waited = mem_alloc(n * sizeof *r->waited);
    for (uint32_t i = 0; i < n; i++)
        r->waited[i].note_ms = now_mono_ms() + NOTE_FIRST_MS;
    ask_nodes_run(&r->asked,
                  &(struct ps_admin_plan){ .command = "checkpoint",
                                           .timeout_ms = (uint32_t)r->asked.options->timeout_ms,
                                           .beat_ms = BEAT_MS,
                                           .beat_command = "status",
                                           .on_beat = on_beat,
                                           .arg = r });
}

int ask_checkpoint_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct request r = { 0 };
    int code = EXIT_FAILED;

    (void)words;
    (void)n_words;
    if (ask_nodes_find(&r.asked, o)) {
        ask_all(&r);
        code = o->json && !ask_nodes_is_alone(&r.asked) ? ask_nodes_tell_json(&r.asked)
                                                        : tell_lines(&r);
    }
    ask_nodes_deinit(&r.asked);
    free(r.waited);
    return code;
}

#include "tests/bench/psbench_cases.h"

#include <string.h>

#include "common/number.h"
#include "proto/codec_catalog.h"
#include "tests/bench/psbench_handshake.h"
#include "tests/bench/psbench_report.h"

#define KEYS_MAX 1000000u
#define DEPTH_MOST 4u
#define DEPTH_KEYS 4000u /* in flight on a connection, about, if there is a choice */

static int find_load(const char *name)
{
    for (int load = 0; load < PSBENCH_LOAD_END; load++)
        if (strcmp(name, psbench_report_load_name((enum psbench_load)load)) == 0)
            return load;
    return -1;
}

static int refuse_loads(const char *text, struct err *err)
{
    return err_set(
        err, PS_ESETTING,
        "what to do? %s%.60s%sexpected pull, push, mix or grow, or some of them with "
        "commas, or connect; see psbench --help",
        text[0] ? "found \"" : "", text, text[0] ? "\", " : "");
}

int psbench_cases_loads(const char *text, struct psbench_settings *s, struct err *err)
{
    char words[SETTINGS_TEXT_MAX] = "", *rest = words, *word;
    int load;

    strncpy(words, text, sizeof words - 1);
    for (s->n_loads = 0; (word = strsep(&rest, ",")); s->n_loads++) {
        load = find_load(word);
        if (load < 0 || s->n_loads == PSBENCH_LOAD_END)
            return refuse_loads(text, err);
        s->loads[s->n_loads] = (enum psbench_load)load;
    }
    return 0;
}

static int read_keys(const char *text, uint32_t *ret, struct err *err)
{
    uint64_t n;

    if (number_read_u64(text, &n) || n < 1 || n > KEYS_MAX)
        return err_set(err, PS_ESETTING,
                       "keys-per-request: found \"%.40s\", expected whole numbers from 1 to %u",
                       text, KEYS_MAX);
    *ret = (uint32_t)n;
    return 0;
}

static int read_codec(const char *text, int *ret, struct err *err)
{
    const struct codec *codec = codec_find(text);

    if (!codec)
        return err_set(
            err, PS_ESETTING,
            "codec: found \"%.40s\", expected fp32, bf16, fp16, int8, onebit or topk", text);
    *ret = (int)codec->id;
    return 0;
}

int psbench_cases_list(const struct psbench_settings *s,
                       struct psbench_case ret[static PSBENCH_CASES_MAX], uint32_t *ret_n,
                       struct err *err)
{
    uint32_t n = 0, i, j, k;
    int status;

    for (i = 0; i < s->n_loads; i++)
        for (j = 0; j < s->codecs.n; j++)
            for (k = 0; k < s->keys.n; k++) {
                if (n == PSBENCH_CASES_MAX)
                    return err_set(err, PS_ESETTING, "found more than %u combinations", n);
                ret[n].load = s->loads[i];
                status = read_codec(s->codecs.items[j], &ret[n].codec, err);
                if (!status)
                    status = read_keys(s->keys.items[k], &ret[n].keys_per_request, err);
                if (status)
                    return status;
                n++;
            }
    *ret_n = n;
    return n ? 0 : err_set(err, PS_ESETTING, "codec, keys-per-request: found none");
}

/* A few thousand keys in flight keep a server busy; more only wait. */
static uint32_t depth_of(uint32_t keys_per_request)
{
    uint32_t depth = DEPTH_KEYS / keys_per_request;

    return depth < 1 ? 1 : depth < DEPTH_MOST ? depth : DEPTH_MOST;
}

void psbench_cases_choose(const struct psbench_case *one, struct psbench_settings *s)
{
    s->load = one->load;
    s->codec = one->codec;
    s->keys_per_request = one->keys_per_request;
    s->depth = s->depth_wanted ? s->depth_wanted : depth_of(one->keys_per_request);
    psbench_handshake_name_table(s);
}

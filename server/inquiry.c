#include "server/inquiry.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/number.h"
#include "server/admin/json.h"
#include "server/core/shard_look.h"
#include "server/core/weights.h"

#define NOBODY UINT32_MAX

struct inquiry {
    struct mail mail;
    struct inquiry_config config;
    inquiry_done done; /* NULL: forgotten */
    void *arg;
    uint64_t key;
    char table[SPEC_NAME_MAX];
    uint32_t asked; /* the shard of this node that has it now */
    uint32_t owner; /* of the cluster's shards; NOBODY: none has said so yet */
    char *json;     /* owned; NULL: the shard that was asked does not keep it */
    struct err err;
};

static int read_argument(struct inquiry *q, const char *argument, struct err *err)
{
    const char *blank = strchr(argument, ' ');
    char digits[32];

    if (!blank || (size_t)(blank - argument) >= sizeof digits || !blank[1] ||
        strlen(blank + 1) >= sizeof q->table)
        return err_set(err, PS_ESETTING,
                       "row: found \"%.100s\", expected a key and a table's name", argument);
    snprintf(digits, sizeof digits, "%.*s", (int)(blank - argument), argument);
    if (number_read_u64(digits, &q->key))
        return err_set(err, PS_ESETTING,
                       "row: found key \"%.40s\", expected a number below 2^64", digits);
    snprintf(q->table, sizeof q->table, "%s", blank + 1);
    return 0;
}

/* --- JSON --- */

static void put_u64_text(struct json *j, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%" PRIu64, value);
    json_text(j, name, text);
}

static void put_floats(struct json *j, const char *name, const float *floats, uint32_t n)
{
    json_open_list(j, name);
    for (uint32_t i = 0; i < n; i++)
        if (isfinite(floats[i]))
            json_float(j, NULL, floats[i]);
        else
            json_text(j, NULL, isnan(floats[i]) ? "nan" : floats[i] > 0 ? "inf" : "-inf");
    json_close_list(j);
}

static void put_push(struct json *j, const struct shard_look *look)
{
    const struct shard_look_push *push = look->push;

    if (!push)
        return;
    json_open(j, "pushed_by");
    json_text(j, "job", look->job);
    json_u64(j, "clock", push->clock);
    json_bool(j, "combined", push->is_combined);
    if (!push->is_combined) {
        json_u64(j, "rank", push->rank);
        put_u64_text(j, "incarnation", push->incarnation);
        json_u64(j, "seq", push->seq);
    }
    json_close(j);
}

static void put_row(struct json *j, const struct shard_look *look)
{
    const struct shard_table *t = look->table;
    uint32_t n_state = (t->payload_bytes - t->weights_bytes) / (uint32_t)sizeof(float);
    float *floats = mem_alloc((t->spec.dim + n_state + 1) * sizeof *floats);

    json_u64(j, "version", row_version(look->row));
    json_u64(j, "touches", row_touches(look->row));
    weights_load(t->spec.storage, look->row->floats, t->spec.dim, floats);
    put_floats(j, "weights", floats, t->spec.dim);
    memcpy(floats, (const uint8_t *)look->row->floats + t->weights_bytes,
           n_state * sizeof *floats);
    put_floats(j, "state", floats, n_state);
    free(floats);
    put_push(j, look);
}

static void put_place(struct json *j, const struct inquiry *q)
{
    uint32_t per_node = q->config.map->shards_per_node;

    put_u64_text(j, "key", q->key);
    json_text(j, "table", q->table);
    json_u64(j, "node", q->owner / per_node);
    json_u64(j, "shard", q->owner);
}

/* look NULL: the answer is who to ask. NULL: no memory. */
static char *render(const struct inquiry *q, const struct shard_look *look)
{
    char *text = NULL;
    size_t n_bytes;
    FILE *out = open_memstream(&text, &n_bytes);
    struct json j = { .out = out };

    if (!out)
        return NULL;
    json_open(&j, NULL);
    put_place(&j, q);
    if (!look) {
        json_text(&j, "ask", q->config.map->nodes[q->owner / q->config.map->shards_per_node]);
    } else {
        json_bool(&j, "found", look->row);
        json_text(&j, "optimizer", spec_optim_name(look->table->spec.optim));
        if (look->row)
            put_row(&j, look);
    }
    json_close(&j);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* --- its way --- */

static void on_back(struct mail *mail, void *owner);

static int ask(struct inquiry *q, struct shard *shard) ON_SHARD
{
    struct shard_look look;
    int status = shard_look(shard, q->table, q->key, &look);

    if (status == -ERANGE)
        return err_set(&q->err, status, "row: table %s has no block %" PRIu64, q->table,
                       q->key);
    if (status)
        return err_set(&q->err, status, "row: there is no table %s here", q->table);
    q->owner = look.owner;
    if (!look.table)
        return 0;
    q->json = render(q, &look);
    return q->json ? 0 : err_set(&q->err, -ENOMEM, "row: no memory for the answer");
}

static void on_shard(struct mail *mail, void *owner)
{
    struct inquiry *q = CONTAINER_OF(mail, struct inquiry, mail);
    int status;

    enter_shard();
    q->err.status = ask(q, shard_thread_shard(owner));
    q->mail.run = on_back;
    status = mailbox_post(q->config.mailbox, &q->mail);
    assert(status == 0); /* the main thread's box outlives the shards */
}

static void finish(struct inquiry *q) ON_MAIN
{
    if (q->done)
        q->done(q->arg, &q->err, q->json);
    free(q->json);
    free(q);
}

static int send_to(struct inquiry *q, uint32_t index) ON_MAIN
{
    q->asked = index;
    q->err = (struct err){ 0 };
    q->mail.run = on_shard;
    return shard_thread_post(q->config.shards[index], &q->mail);
}

/* Whoever makes a table asks one shard after the other: a shard may not know it, and the next one does. */
static bool may_ask_next(const struct inquiry *q)
{
    return q->err.status == PS_ENOTABLE && q->owner == NOBODY &&
           q->asked + 1 < q->config.map->shards_per_node;
}

/* Where it goes next on this node; NOBODY: nowhere, its way is over. */
static uint32_t next_shard(const struct inquiry *q)
{
    uint32_t per_node = q->config.map->shards_per_node;

    if (!q->done || q->json)
        return NOBODY;
    if (may_ask_next(q))
        return q->asked + 1;
    if (q->err.status || q->owner / per_node != q->config.map->node)
        return NOBODY;
    return q->owner % per_node;
}

static void on_back(struct mail *mail, void *owner)
{
    struct inquiry *q = CONTAINER_OF(mail, struct inquiry, mail);
    uint32_t next = next_shard(q);

    (void)owner;
    enter_main();
    if (next != NOBODY && send_to(q, next) == 0)
        return; /* it is the shard's now */
    if (next != NOBODY)
        err_set(&q->err, PS_ESTOPPING, "row: %s", status_text(PS_ESTOPPING));
    else if (q->done && !q->err.status && !q->json)
        q->json = render(q, NULL);
    if (!q->err.status && !q->json)
        err_set(&q->err, -ENOMEM, "row: no memory for the answer");
    finish(q);
}

int inquiry_start(const struct inquiry_config *config, const char *argument, inquiry_done done,
                  void *arg, struct inquiry **ret, struct err *err)
{
    struct inquiry *q = mem_alloc(sizeof *q);
    int status = read_argument(q, argument, err);

    q->config = *config;
    q->owner = NOBODY;
    q->done = done;
    q->arg = arg;
    if (!status && send_to(q, 0) != 0)
        status = err_set(err, PS_ESTOPPING, "row: %s", status_text(PS_ESTOPPING));
    if (status)
        free(q);
    else
        *ret = q;
    return status;
}

void inquiry_forget(struct inquiry *q)
{
    q->done = NULL;
}

#include "server/row_lookup.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/number.h"
#include "server/admin/json.h"
#include "server/core/row_decay.h"
#include "server/core/row_provenance.h"
#include "server/core/weights.h"

#define NOBODY UINT32_MAX
#define LAYER_SHOWN 64u /* floats of a row that is a whole layer */

struct row_lookup {
    struct shard_call call;
    row_lookup_done done; /* NULL: forgotten */
    void *arg;
    _Atomic bool is_cancelled; /* for the shard, which may then do nothing */
    uint64_t key;
    char table[TABLE_SPEC_NAME_MAX];
    uint32_t owner; /* of the cluster's shards; NOBODY: none has said so yet */
    char *json;     /* owned; NULL: the shard that was asked does not keep it */
};

static int read_argument(struct row_lookup *q, const char *argument, struct err *err)
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

/* Of a whole layer only the first ones: a shard would be seconds at a million numbers. */
static uint32_t n_shown(const struct shard_table *t)
{
    return t->spec.dim > TABLE_SPEC_DIM_MAX ? LAYER_SHOWN : UINT32_MAX;
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

static void put_push(struct json *j, const struct row_provenance *found)
{
    const struct row_provenance_push *push = found->push;

    if (!push)
        return;
    json_open(j, "pushed_by");
    json_text(j, "job", found->job);
    json_u64(j, "clock", push->clock);
    json_bool(j, "combined", push->is_combined);
    if (!push->is_combined) {
        json_u64(j, "rank", push->rank);
        put_u64_text(j, "incarnation", push->incarnation);
        json_u64(j, "seq", push->seq);
    }
    json_close(j);
}

static void put_row(struct json *j, const struct row_provenance *found)
{
    const struct shard_table *t = found->table;
    const uint32_t n_most = n_shown(t);
    uint32_t n_state = (t->payload_bytes - t->weights_bytes) / (uint32_t)sizeof(float);
    float *floats = memory_alloc((t->spec.dim + n_state + 1) * sizeof *floats);

    json_u64(j, "version", row_version(found->row));
    json_u64(j, "touches", row_touches(found->row));
    weights_load(t->spec.storage, found->row->floats, t->spec.dim, floats);
    row_decay_show(t, found->row, floats);
    if (t->spec.dim > n_most) {
        json_u64(j, "n_weights", t->spec.dim);
        json_u64(j, "n_state", n_state);
    }
    put_floats(j, "weights", floats, t->spec.dim < n_most ? t->spec.dim : n_most);
    memcpy(floats, (const uint8_t *)found->row->floats + t->weights_bytes,
           n_state * sizeof *floats);
    put_floats(j, "state", floats, n_state < n_most ? n_state : n_most);
    free(floats);
    put_push(j, found);
}

static void put_place(struct json *j, const struct row_lookup *q)
{
    uint32_t per_node = q->call.config.map->shards_per_node;

    put_u64_text(j, "key", q->key);
    json_text(j, "table", q->table);
    json_u64(j, "node", q->owner / per_node);
    json_u64(j, "shard", q->owner);
}

/* found NULL: the answer names the node to ask. NULL: no memory. */
static char *render(const struct row_lookup *q, const struct row_provenance *found)
{
    char *text = NULL;
    size_t n_bytes;
    FILE *out = open_memstream(&text, &n_bytes);
    struct json j = { .out = out };

    if (!out)
        return NULL;
    json_open(&j, NULL);
    put_place(&j, q);
    if (!found) {
        json_text(&j, "ask",
                  q->call.config.map->nodes[q->owner / q->call.config.map->shards_per_node]);
    } else {
        json_bool(&j, "found", found->row);
        json_text(&j, "optimizer", table_spec_optim_name(found->table->spec.optim));
        if (found->row)
            put_row(&j, found);
    }
    json_close(&j);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* --- its way --- */

static int ask(struct shard_call *call, struct shard_thread *t) ON_SHARD
{
    struct row_lookup *q = CONTAINER_OF(call, struct row_lookup, call);
    struct row_provenance found;
    int status;

    if (atomic_load(&q->is_cancelled))
        return err_set(&call->err, -ECANCELED, "row: whoever asked is gone");
    status = row_provenance_find(shard_thread_shard(t), q->table, q->key, &found);

    if (status == -ERANGE)
        return err_set(&call->err, status, "row: table %s has no block %" PRIu64, q->table,
                       q->key);
    if (status)
        return err_set(&call->err, status, "row: there is no table %s here", q->table);
    q->owner = found.owner;
    if (!found.table)
        return 0;
    q->json = render(q, &found);
    return q->json ? 0 : err_set(&call->err, -ENOMEM, "row: no memory for the answer");
}

static void finish(struct row_lookup *q) ON_MAIN
{
    if (q->done)
        q->done(q->arg, &q->call.err, q->json);
    free(q->json);
    free(q);
}

/* Whoever makes a table asks one shard after the other: a shard may not know it, and the next one does. */
static bool may_ask_next(const struct row_lookup *q)
{
    return q->call.err.status == PS_ENOTABLE && q->owner == NOBODY &&
           q->call.shard + 1 < q->call.config.map->shards_per_node;
}

/* Where it goes next on this node; NOBODY: nowhere, its way is over. */
static uint32_t next_shard(const struct row_lookup *q)
{
    uint32_t per_node = q->call.config.map->shards_per_node;

    if (!q->done || q->json)
        return NOBODY;
    if (may_ask_next(q))
        return q->call.shard + 1;
    if (q->call.err.status || q->owner / per_node != q->call.config.map->node)
        return NOBODY;
    return q->owner % per_node;
}

static void answered(struct shard_call *call) ON_MAIN
{
    struct row_lookup *q = CONTAINER_OF(call, struct row_lookup, call);
    uint32_t next = next_shard(q);

    if (next != NOBODY && shard_call_start(call, next) == 0)
        return; /* it is the shard's now */
    if (next != NOBODY)
        err_set(&call->err, PS_ESTOPPING, "row: %s", status_text(PS_ESTOPPING));
    else if (q->done && !call->err.status && !q->json)
        q->json = render(q, NULL);
    if (!call->err.status && !q->json)
        err_set(&call->err, -ENOMEM, "row: no memory for the answer");
    finish(q);
}

int row_lookup_start(const struct shard_call_config *config, const char *argument,
                     row_lookup_done done, void *arg, struct row_lookup **ret, struct err *err)
{
    struct row_lookup *q = memory_alloc(sizeof *q);
    int status = read_argument(q, argument, err);

    q->call = (struct shard_call){ .config = *config, .ask = ask, .answered = answered };
    q->owner = NOBODY;
    q->done = done;
    q->arg = arg;
    if (!status && shard_call_start(&q->call, 0) != 0)
        status = err_set(err, PS_ESTOPPING, "row: %s", status_text(PS_ESTOPPING));
    if (status)
        free(q);
    else
        *ret = q;
    return status;
}

void row_lookup_cancel(struct row_lookup *q)
{
    q->done = NULL;
    atomic_store(&q->is_cancelled, true);
}

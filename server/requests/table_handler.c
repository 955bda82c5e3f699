#include "server/requests/table_handler.h"

#include <errno.h>
#include <stdio.h>

#include "server/core/table_admin.h"
#include "server/requests/deferred.h"

#define TABLES_COUNTED_EVERY_MS 10000u
#define TABLES_OF_ONE_MIN 256u /* a client's library has no more (PS_TABLES_MAX) */

/* So that no single client takes all places. */
static int check_share(struct table_handler *t, const struct connection *c,
                       const struct table_spec *spec, struct err *err) ON_SHARD
{
    uint32_t share = t->tables_max / 4, id;

    share = share < TABLES_OF_ONE_MIN ? TABLES_OF_ONE_MIN : share;
    if (!t->tables_max || c->n_tables_made < share ||
        shard_table_open(t->context->shard, spec, true, &id, NULL) == 0)
        return 0;
    return err_set(err, -ENOSPC,
                   "table %s: this connection has made %u tables, which is its share of "
                   "--tables-max",
                   spec->name, c->n_tables_made);
}

/* A table was refused, as there are --tables-max. */
static void note_full(struct table_handler *t, struct err *err) ON_SHARD
{
    struct table_handler_full *full = &t->full;
    uint64_t now_ms = uv_now(t->context->loop);
    size_t n = strlen(err->text);

    if (!full->counted_ms || now_ms - full->counted_ms >= TABLES_COUNTED_EVERY_MS) {
        full->n_most = table_admin_most(t->context->shard, full->job);
        full->counted_ms = now_ms;
    }
    full->refused_ms = now_ms;
    full->n_tables = shard_n_live_tables(t->context->shard);
    if (full->n_most)
        snprintf(err->text + n, sizeof err->text - n, "; %.64s has %u of them", full->job,
                 full->n_most);
}

/* Who makes many is in the log before they are missed. */
static void log_many_tables(struct table_handler *t, const struct connection *c) ON_SHARD
{
    char more[64];

    if (c->n_tables_made == TABLES_OF_ONE_MIN &&
        log_line_limit_pass(&t->context->limit, "many tables", 0, uv_now(t->context->loop),
                            more))
        log_line_info("shard %u: a connection from %s (%s) has made %u tables%s",
                      t->context->shard_number, c->peer, c->hello.name, c->n_tables_made, more);
}

static int get_table(struct table_handler *t, const struct request *r,
                     const struct table_request *asked, uint32_t *ret_id, struct err *err)
    ON_SHARD
{
    uint32_t n_before = shard_n_tables(t->context->shard);
    int status = asked->must_exist ? 0 : check_share(t, r->connection, &asked->spec, err);

    if (!status)
        status =
            shard_table_open(t->context->shard, &asked->spec, asked->must_exist, ret_id, err);
    if (status == -ENOSPC && shard_n_live_tables(t->context->shard) >= t->tables_max)
        note_full(t, err);
    if (shard_n_tables(t->context->shard) == n_before)
        return status;
    r->connection->n_tables_made++;
    log_many_tables(t, r->connection);
    return status;
}

int table_handler_receive(struct table_handler *t, struct request *r)
{
    struct table_reply answer = { 0 };
    struct table_request asked = { 0 };
    struct bytes out = { 0 };
    struct err err = { 0 };
    int status = message_read_table(r->header, r->head, &asked);

    if (status) {
        err_set(&err, status, "%s", status_text(status));
    } else if (request_is_from_reader(r) && !asked.must_exist) {
        status = err_set(&err, -EPERM, "table %s: a reader makes no tables", asked.spec.name);
    } else if (!access_may_use_table(&r->connection->access, asked.spec.name)) {
        status = request_context_deny(r->connection, "table", asked.spec.name, &err);
    } else {
        status = get_table(t, r, &asked, &answer.table_id, &err);
        if (!status)
            status = connection_name_table(r->connection, answer.table_id);
        if (!status)
            answer.spec = shard_table(t->context->shard, answer.table_id)->spec;
        answer.features = MESSAGE_FEATURE_WHOLE_TABLES | MESSAGE_FEATURE_RATES |
                          MESSAGE_FEATURE_DELAYS | MESSAGE_FEATURE_DELTAS |
                          MESSAGE_FEATURE_SPARSE_DELTAS;
    }
    if (deferred_is_wanted(r, &status))
        return REQUEST_LATER;
    answer.status = status;
    snprintf(answer.text, sizeof answer.text, "%s", err.text);
    if (asked.must_exist && status == PS_ENOTABLE)
        status = 0; /* an answer to "is it there?", and no refusal */
    return request_context_reply(
        t->context, r, status, err.text, &out,
        message_write_table_reply(&out, r->header->request_id, &answer));
}

/* Tables, as a client asks for them (ps.h). */
#include <errno.h>

#include "worker/client/ps.h"
#include "worker/client/ps_state.h"

/* Asks all shards; what they said. */
static int ask_table(struct ps_client *c, const struct table_request *request,
                     struct desk_table *ret, struct err *err)
{
    int status;

    if (c->n_tables == PS_TABLES_MAX)
        return err_set(err, -ENOSPC, "table %s: a client has at most %u tables",
                       request->spec.name, PS_TABLES_MAX);
    desk_start_table(&c->desk);
    net_table(c->net, request);
    status = desk_wait_table(
        &c->desk, ps_state_after_ms(2 * (uint64_t)c->options.give_up_ms + PS_STATE_SLACK_MS),
        ret, err);
    if (status == -ETIMEDOUT) {
        status = err_set(err, PS_EDEADLINE, "table %s: the shards have not answered",
                         request->spec.name);
        desk_fail(&c->desk, status,
                  "a table that was asked for never came"); /* its number is in doubt */
    } else if (!status && ret->status) {
        net_drop_table(c->net);
        status = err_set(err, ret->status, "%s",
                         ret->text[0] ? ret->text : status_text(ret->status));
    }
    return status;
}

static int add_table(struct ps_client *c, const struct table_spec *spec, uint32_t *ret_table,
                     struct err *err)
{
    if (encoder_add_table(c->encoder, c->n_tables, spec)) {
        net_drop_table(c->net);
        return err_set(err, -ENOMEM, "table %s: no memory for rows of %u floats", spec->name,
                       spec->dim);
    }
    *ret_table = c->n_tables++;
    return 0;
}

int ps_table(struct ps_client *c, const struct table_spec *spec, uint32_t *ret_table,
             struct err *err)
{
    struct table_request request = { .spec = *spec };
    struct desk_table said;
    int status = spec_check(spec, err);

    if (!status)
        status = ask_table(c, &request, &said, err);
    return status ? status : add_table(c, spec, ret_table, err);
}

int ps_table_find(struct ps_client *c, struct table_spec *spec, uint32_t *ret_table,
                  struct err *err)
{
    struct table_request request = { .spec = *spec, .must_exist = true };
    struct desk_table said;
    int status = ask_table(c, &request, &said, err);

    if (!status && spec_check(&said.spec, err)) {
        net_drop_table(c->net);
        status = PS_ESPEC;
    }
    if (!status)
        status = add_table(c, &said.spec, ret_table, err);
    if (!status)
        *spec = said.spec;
    return status;
}

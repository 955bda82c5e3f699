#include "worker/client/push_resend.h"

#include <inttypes.h>
#include <string.h>

void push_resend_init(struct push_resend *r, struct push_journal *journal,
                      struct client_state *state, struct network_thread *net,
                      struct push_encoder *encoder)
{
    struct ps_origin origin;

    if (!journal)
        return;
    r->journal = journal;
    r->state = state;
    r->net = net;
    r->encoder = encoder;
    push_journal_origin(journal, &origin);
    r->last_seq = origin.last_seq;
    r->has_found = push_journal_has_found(journal);
    uv_mutex_init(&r->lock);
}

void push_resend_deinit(struct push_resend *r)
{
    if (r->journal)
        uv_mutex_destroy(&r->lock);
}

/* ---- what was found ---- */

/* This process's number of the table, the last if it was asked for twice. */
static int find_table(const struct push_encoder *e, const char *name, uint32_t *ret,
                      struct err *err)
{
    uint32_t i = push_encoder_n_tables(e);

    while (i-- > 0)
        if (strncmp(push_encoder_table_name(e, i), name, TABLE_SPEC_NAME_MAX) == 0) {
            *ret = i;
            return 0;
        }
    return err_set(err, PS_ESPEC,
                   "what is kept of this worker is of another model: this one has no table "
                   "\"%s\"",
                   name);
}

static int translate(const struct push_encoder *e, struct push_journal_push *p, struct err *err)
{
    int status = 0;

    for (uint32_t i = 0; i < p->n_shards; i++)
        for (uint32_t k = 0; k < p->requests[i]->n_sections && !status; k++) {
            struct section *s = &p->requests[i]->sections[k];

            status = find_table(e, p->found_names[s->table_id], &s->table_id, err);
        }
    return status;
}

/* The epoch is 0 as long as the worker is the one that it was. */
static int send_push(struct push_resend *r, struct push_journal_push *p, struct err *err)
{
    struct client_state_identity id;
    uint64_t n_bytes = 0;
    int status = translate(r->encoder, p, err);

    if (status)
        return status;
    for (uint32_t i = 0; i < p->n_shards; i++) {
        p->requests[i]->seq = p->seq;
        n_bytes += bytes_len(&p->requests[i]->bytes);
    }
    client_state_add_pushes(r->state, p->n_shards, n_bytes, &id);
    network_thread_push(r->net, id.epoch, p->requests);
    memset(p->requests, 0, p->n_shards * sizeof(struct request *));
    return 0;
}

static int send_all(struct push_resend *r, struct err *err)
{
    struct client_state_identity id;
    struct push_journal_push *p;
    int status = 0;

    client_state_add_pushes(r->state, 0, 0, &id);
    if (id.epoch)
        push_journal_drop_found(r->journal, "this worker has had to join as somebody new");
    while (!status && (p = push_journal_pop(r->journal)) != NULL) {
        status = send_push(r, p, err);
        push_journal_format_free_push(p);
    }
    return status;
}

int push_resend_found(struct push_resend *r, struct err *err)
{
    int status = 0;

    if (!atomic_load(&r->has_found))
        return 0;
    uv_mutex_lock(&r->lock);
    if (atomic_load(&r->has_found) && !r->failure.status && !send_all(r, &r->failure))
        atomic_store(&r->has_found, false);
    status = r->failure.status;
    if (status)
        *err = r->failure;
    uv_mutex_unlock(&r->lock);
    return status;
}

/* ---- what is kept ---- */

void push_resend_keep(struct push_resend *r, const struct client_state_identity *id,
                      struct request **requests, uint32_t n_shards)
{
    const char *names[PS_TABLES_MAX];
    struct push_journal_push push = {
        .map_id = id->map_id, .n_shards = n_shards, .names = names, .requests = requests
    };

    if (id->epoch == UINT64_MAX)
        return;
    if (id->epoch != r->epoch)
        r->last_seq = 0;
    r->epoch = id->epoch;
    push.seq = ++r->last_seq;
    push.n_tables = push_encoder_n_tables(r->encoder);
    for (uint32_t i = 0; i < push.n_tables; i++)
        names[i] = push_encoder_table_name(r->encoder, i);
    for (uint32_t i = 0; i < n_shards; i++)
        requests[i]->seq = push.seq;
    push_journal_put(r->journal, id->incarnation, &push, id->acked);
}

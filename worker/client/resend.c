#include "worker/client/resend.h"

#include <inttypes.h>
#include <string.h>

void resend_init(struct resend *r, struct spool *spool, struct desk *desk, struct net *net,
                 struct encoder *encoder)
{
    struct ps_origin origin;

    if (!spool)
        return;
    r->spool = spool;
    r->desk = desk;
    r->net = net;
    r->encoder = encoder;
    spool_origin(spool, &origin);
    r->last_seq = origin.last_seq;
    r->has_found = spool_has_found(spool);
    uv_mutex_init(&r->lock);
}

void resend_deinit(struct resend *r)
{
    if (r->spool)
        uv_mutex_destroy(&r->lock);
}

/* ---- what was found ---- */

/* This process's number of the table, the last if it was asked for twice. */
static int find_table(const struct encoder *e, const char *name, uint32_t *ret, struct err *err)
{
    uint32_t i = encoder_n_tables(e);

    while (i-- > 0)
        if (strncmp(encoder_table_name(e, i), name, SPEC_NAME_MAX) == 0) {
            *ret = i;
            return 0;
        }
    return err_set(err, PS_ESPEC,
                   "what is kept of this worker is of another model: this one has no table "
                   "\"%s\"",
                   name);
}

static int translate(const struct encoder *e, struct spool_push *p, struct err *err)
{
    int status = 0;

    for (uint32_t i = 0; i < p->n_shards; i++)
        for (uint32_t k = 0; k < p->parcels[i]->n_sections && !status; k++) {
            struct section *s = &p->parcels[i]->sections[k];

            status = find_table(e, p->found_names[s->table_id], &s->table_id, err);
        }
    return status;
}

/* The epoch is 0 as long as the worker is the one that it was. */
static int send_push(struct resend *r, struct spool_push *p, struct err *err)
{
    struct desk_identity id;
    uint64_t n_bytes = 0;
    int status = translate(r->encoder, p, err);

    if (status)
        return status;
    for (uint32_t i = 0; i < p->n_shards; i++) {
        p->parcels[i]->seq = p->seq;
        n_bytes += buf_len(&p->parcels[i]->bytes);
    }
    desk_add_pushes(r->desk, p->n_shards, n_bytes, &id);
    net_push(r->net, id.epoch, p->parcels);
    memset(p->parcels, 0, p->n_shards * sizeof(struct parcel *));
    return 0;
}

static int send_all(struct resend *r, struct err *err)
{
    struct desk_identity id;
    struct spool_push *p;
    int status = 0;

    desk_add_pushes(r->desk, 0, 0, &id);
    if (id.epoch)
        spool_drop_found(r->spool, "this worker has had to join as somebody new");
    while (!status && (p = spool_take(r->spool)) != NULL) {
        status = send_push(r, p, err);
        spool_format_free_push(p);
    }
    return status;
}

int resend_found(struct resend *r, struct err *err)
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

void resend_keep(struct resend *r, const struct desk_identity *id, struct parcel **parcels,
                 uint32_t n_shards)
{
    const char *names[PS_TABLES_MAX];
    struct spool_push push = {
        .map_id = id->map_id, .n_shards = n_shards, .names = names, .parcels = parcels
    };

    if (!r->spool || id->epoch == UINT64_MAX)
        return;
    if (id->epoch != r->epoch)
        r->last_seq = 0;
    r->epoch = id->epoch;
    push.seq = ++r->last_seq;
    push.n_tables = encoder_n_tables(r->encoder);
    for (uint32_t i = 0; i < push.n_tables; i++)
        names[i] = encoder_table_name(r->encoder, i);
    for (uint32_t i = 0; i < n_shards; i++)
        parcels[i]->seq = push.seq;
    spool_put(r->spool, id->incarnation, &push, id->acked);
}

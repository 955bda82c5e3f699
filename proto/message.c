/* The messages without rows: each has a pair here, message_write_X() and message_read_X() with
 * its take_X(). */
#include "proto/message.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "proto/message_groups.h"
#include "proto/message_head.h"
#include "proto/message_zstd.h"
#include "proto/placement.h"
#include "proto/ps.pb-c.h"
#include "proto/table_spec.h"

int message_body(struct message_zstd *zstd, const struct frame_header *header,
                 const uint8_t *body, uint32_t max_bytes, struct bytes *scratch,
                 const uint8_t **ret_body, size_t *ret_bytes)
{
    int status;

    if (header->flags & FRAME_ZSTD) {
        status = message_zstd_decompress(zstd, body, header->body_bytes, max_bytes, scratch);
        if (status)
            return status;
        *ret_body = bytes_front(scratch);
        *ret_bytes = bytes_len(scratch);
        return 0;
    }
    if (header->body_bytes > max_bytes)
        return PS_ETOOBIG;
    *ret_body = body;
    *ret_bytes = header->body_bytes;
    return 0;
}

int message_body_size(const struct frame_header *header, const uint8_t *body,
                      uint32_t max_bytes, size_t *ret_bytes)
{
    if (header->flags & FRAME_ZSTD)
        return message_zstd_size(body, header->body_bytes, max_bytes, ret_bytes);
    if (header->body_bytes > max_bytes)
        return PS_ETOOBIG;
    *ret_bytes = header->body_bytes;
    return 0;
}

/* ---- a table's specification ---- */

static void put_params(const struct optimizer_params *p, Ps__OptimParams *head)
{
    ps__optim_params__init(head);
    head->learning_rate = p->learning_rate;
    head->epsilon = p->epsilon;
    head->momentum = p->momentum;
    head->nesterov = p->nesterov;
    head->weight_decay = p->weight_decay;
    head->beta1 = p->beta1;
    head->beta2 = p->beta2;
    head->initial_accumulator = p->initial_accumulator;
    head->lr_decay = p->lr_decay;
    head->ftrl_beta = p->ftrl_beta;
    head->ftrl_l1 = p->ftrl_l1;
    head->ftrl_l2 = p->ftrl_l2;
}

static struct optimizer_params take_params(const Ps__OptimParams *head)
{
    return (struct optimizer_params){
        .learning_rate = head->learning_rate,
        .epsilon = head->epsilon,
        .momentum = head->momentum,
        .nesterov = head->nesterov,
        .weight_decay = head->weight_decay,
        .beta1 = head->beta1,
        .beta2 = head->beta2,
        .initial_accumulator = head->initial_accumulator,
        .lr_decay = head->lr_decay,
        .ftrl_beta = head->ftrl_beta,
        .ftrl_l1 = head->ftrl_l1,
        .ftrl_l2 = head->ftrl_l2,
    };
}

static void put_limits(const struct table_spec_limits *l, Ps__TableSpec *head)
{
    head->admit_touches = l->admit_touches;
    head->admit_clocks = l->admit_clocks;
    head->idle_clocks = l->idle_clocks;
    head->ttl_s = l->ttl_s;
    head->rare_touches = l->rare_touches;
    head->rare_clocks = l->rare_clocks;
    head->victims = l->victims;
    head->max_bytes = l->max_bytes;
}

static struct table_spec_limits take_limits(const Ps__TableSpec *head)
{
    return (struct table_spec_limits){
        .admit_touches = head->admit_touches,
        .admit_clocks = head->admit_clocks,
        .idle_clocks = head->idle_clocks,
        .ttl_s = head->ttl_s,
        .rare_touches = head->rare_touches,
        .rare_clocks = head->rare_clocks,
        .victims = (enum table_spec_victims)head->victims,
        .max_bytes = head->max_bytes,
    };
}

/* Fills *head and *params, both initialised here; their strings are borrowed from *spec. */
static void put_spec(const struct table_spec *spec, Ps__TableSpec *head,
                     Ps__OptimParams *params)
{
    ps__table_spec__init(head);
    put_params(&spec->params, params);
    head->name = (char *)spec->name;
    head->kind = spec->kind;
    head->dim = spec->dim;
    head->n_floats = spec->n_floats;
    head->seed = spec->seed;
    head->init = spec->init;
    head->init_scale = spec->init_scale;
    head->optim = spec->optim;
    head->params = params;
    head->warmup_clocks = spec->schedule.warmup_clocks;
    head->decay = spec->schedule.decay;
    head->decay_start = spec->schedule.decay_start;
    head->decay_clocks = spec->schedule.decay_clocks;
    head->decay_rate = spec->schedule.decay_rate;
    head->decay_floor = spec->schedule.decay_floor;
    head->clip_norm = spec->clip_norm;
    head->mode = spec->mode;
    head->bound = spec->bound;
    head->storage = spec->storage;
    put_limits(&spec->limits, head);
    head->row_decay = spec->row_decay;
}

/* PS_EPROTO for numbers that no enum has, and for a name that does not fit. table_spec_check() does the rest, and
 * refuses the optimizers of later versions, with a sentence. */
static int take_spec(const Ps__TableSpec *head, struct table_spec *ret)
{
    struct table_spec spec = { 0 };

    if (head->kind >= TABLE_SPEC_KIND_END || head->init >= TABLE_SPEC_INIT_END ||
        head->decay >= TABLE_SPEC_DECAY_END || head->mode >= TABLE_SPEC_MODE_END ||
        head->storage >= TABLE_SPEC_STORAGE_END || head->victims >= TABLE_SPEC_VICTIMS_END)
        return PS_EPROTO;
    if (message_head_name(spec.name, sizeof spec.name, head->name))
        return PS_EPROTO;
    spec.kind = (enum table_spec_kind)head->kind;
    spec.dim = head->dim;
    spec.n_floats = head->n_floats;
    spec.seed = head->seed;
    spec.init = (enum table_spec_init)head->init;
    spec.init_scale = head->init_scale;
    spec.optim = (enum table_spec_optim)head->optim;
    if (head->params)
        spec.params = take_params(head->params);
    spec.schedule = (struct lr_schedule){
        .warmup_clocks = head->warmup_clocks,
        .decay = (enum table_spec_decay)head->decay,
        .decay_start = head->decay_start,
        .decay_clocks = head->decay_clocks,
        .decay_rate = head->decay_rate,
        .decay_floor = head->decay_floor,
    };
    spec.clip_norm = head->clip_norm;
    spec.mode = (enum table_spec_mode)head->mode;
    spec.bound = head->bound;
    spec.storage = (enum table_spec_storage)head->storage;
    spec.limits = take_limits(head);
    spec.row_decay = head->row_decay;
    *ret = spec;
    return 0;
}

/* ---- messages ---- */

int message_write_hello(struct bytes *out, uint64_t request_id, const struct hello *m)
{
    Ps__Hello head = PS__HELLO__INIT;

    head.version_min = m->version_min;
    head.version_max = m->version_max;
    head.role = (char *)m->role;
    head.token = (char *)m->token;
    head.shard = m->shard;
    head.map_id = m->map_id;
    head.name = (char *)m->name;
    head.frame_flags = m->frame_flags;
    return message_head_write(out, FRAME_HELLO, request_id, &head.base);
}

static int take_hello(const void *message, void *ret)
{
    const Ps__Hello *head = message;
    struct hello m = {
        .version_min = head->version_min,
        .version_max = head->version_max,
        .shard = head->shard,
        .map_id = head->map_id,
        .frame_flags = head->frame_flags,
    };

    if (message_head_name(m.role, sizeof m.role, head->role) ||
        message_head_secret(m.token, sizeof m.token, head->token) ||
        message_head_name(m.name, sizeof m.name, head->name))
        return PS_EPROTO;
    *(struct hello *)ret = m;
    return 0;
}

int message_read_hello(const struct frame_header *h, const uint8_t *head, struct hello *ret)
{
    return message_head_read(&ps__hello__descriptor, h, head, take_hello, ret);
}

int message_write_hello_reply(struct bytes *out, uint64_t request_id,
                              const struct hello_reply *m)
{
    Ps__HelloReply head = PS__HELLO_REPLY__INIT;
    char *nodes[MESSAGE_NODES_MAX];
    struct message_groups groups;

    assert(m->n_nodes <= MESSAGE_NODES_MAX);
    for (uint32_t i = 0; i < m->n_nodes; i++)
        nodes[i] = (char *)m->nodes[i];
    head.status = m->status;
    head.text = (char *)m->text;
    head.version = m->version;
    head.n_nodes = m->n_nodes;
    head.nodes = nodes;
    head.node = m->node;
    head.shards_per_node = m->shards_per_node;
    head.map_id = m->map_id;
    head.frame_max_bytes = m->frame_max_bytes;
    message_groups_put(&m->groups, &groups);
    head.n_groups = m->groups.n;
    head.groups = groups.list;
    head.groups_number = m->groups.number;
    return message_head_write(out, FRAME_HELLO_REPLY, request_id, &head.base);
}

/* A client sizes its arrays by these numbers. A refusal may leave them all out. */
static bool is_cluster(const Ps__HelloReply *head)
{
    if (head->n_nodes == 0)
        return head->status != 0;
    return head->n_nodes <= MESSAGE_NODES_MAX && head->node < head->n_nodes &&
           head->shards_per_node > 0 &&
           head->shards_per_node <= PLACEMENT_N_SHARDS_MAX / head->n_nodes;
}

static int take_hello_reply(const void *message, void *ret)
{
    const Ps__HelloReply *head = message;
    struct hello_reply *m = ret;

    if (message_head_status(&m->status, head->status) || !is_cluster(head))
        return PS_EPROTO;
    message_head_text(m->text, sizeof m->text, head->text);
    m->version = head->version;
    m->n_nodes = (uint32_t)head->n_nodes;
    m->node = head->node;
    m->shards_per_node = head->shards_per_node;
    m->map_id = head->map_id;
    m->frame_max_bytes = head->frame_max_bytes;
    for (uint32_t i = 0; i < m->n_nodes; i++)
        if (message_head_name(m->nodes[i], sizeof m->nodes[i], head->nodes[i]))
            return PS_EPROTO;
    if (head->n_groups && head->n_groups != head->n_nodes)
        return PS_EPROTO;
    return message_groups_take(head->groups, head->n_groups, head->groups_number, &m->groups);
}

int message_read_hello_reply(const struct frame_header *h, const uint8_t *head,
                             struct hello_reply *ret)
{
    *ret = (struct hello_reply){ 0 };
    return message_head_read(&ps__hello_reply__descriptor, h, head, take_hello_reply, ret);
}

int message_write_table(struct bytes *out, uint64_t request_id, const struct table_request *m)
{
    Ps__Table head = PS__TABLE__INIT;
    Ps__TableSpec spec;
    Ps__OptimParams params;

    put_spec(&m->spec, &spec, &params);
    head.spec = &spec;
    head.must_exist = m->must_exist;
    return message_head_write(out, FRAME_TABLE, request_id, &head.base);
}

static int take_table(const void *message, void *ret)
{
    const Ps__Table *head = message;
    struct table_request *m = ret;

    if (!head->spec)
        return PS_EPROTO;
    m->must_exist = head->must_exist != 0;
    return take_spec(head->spec, &m->spec);
}

int message_read_table(const struct frame_header *h, const uint8_t *head,
                       struct table_request *ret)
{
    return message_head_read(&ps__table__descriptor, h, head, take_table, ret);
}

int message_write_table_reply(struct bytes *out, uint64_t request_id,
                              const struct table_reply *m)
{
    Ps__TableReply head = PS__TABLE_REPLY__INIT;
    Ps__TableSpec spec;
    Ps__OptimParams params;

    head.status = m->status;
    head.text = (char *)m->text;
    head.table_id = m->table_id;
    head.features = m->features;
    if (m->status == 0) {
        put_spec(&m->spec, &spec, &params);
        head.spec = &spec;
    }
    return message_head_write(out, FRAME_TABLE_REPLY, request_id, &head.base);
}

static int take_table_reply(const void *message, void *ret)
{
    const Ps__TableReply *head = message;
    struct table_reply m = { .table_id = head->table_id, .features = head->features };

    if (message_head_status(&m.status, head->status) || (m.status == 0 && !head->spec))
        return PS_EPROTO;
    message_head_text(m.text, sizeof m.text, head->text);
    if (head->spec && (take_spec(head->spec, &m.spec) || m.spec.optim >= TABLE_SPEC_OPTIM_END))
        return PS_EPROTO;
    *(struct table_reply *)ret = m;
    return 0;
}

int message_read_table_reply(const struct frame_header *h, const uint8_t *head,
                             struct table_reply *ret)
{
    return message_head_read(&ps__table_reply__descriptor, h, head, take_table_reply, ret);
}

int message_write_join(struct bytes *out, uint64_t request_id, const struct join *m)
{
    Ps__Join head = PS__JOIN__INIT;

    head.job = (char *)m->job;
    head.rank = m->rank;
    head.n_workers = m->n_workers;
    head.incarnation = m->incarnation;
    head.mode = m->mode;
    head.bound = m->bound;
    head.clock = m->clock;
    head.last_acked = m->last_acked;
    head.name = (char *)m->name;
    head.relays = m->relays;
    head.n_backups = m->n_backups;
    return message_head_write(out, FRAME_JOIN, request_id, &head.base);
}

static int take_join(const void *message, void *ret)
{
    const Ps__Join *head = message;
    struct join m = {
        .rank = head->rank,
        .n_workers = head->n_workers,
        .incarnation = head->incarnation,
        .bound = head->bound,
        .clock = head->clock,
        .last_acked = head->last_acked,
        .relays = head->relays != 0,
        .n_backups = head->n_backups,
    };

    m.mode = (enum table_spec_mode)head->mode;
    if (head->mode <= TABLE_SPEC_MODE_JOB || head->mode >= TABLE_SPEC_MODE_END)
        m.wrong = "mode: expected 1, 2 or 3";
    else if (message_head_name(m.job, sizeof m.job, head->job))
        m.wrong = "job: expected at most 127 bytes of UTF-8 without control characters";
    else if (message_head_name(m.name, sizeof m.name, head->name))
        m.wrong = "name: expected at most 63 bytes of UTF-8 without control characters";
    *(struct join *)ret = m;
    return m.wrong ? PS_EPROTO : 0;
}

int message_read_join(const struct frame_header *h, const uint8_t *head, struct join *ret)
{
    return message_head_read(&ps__join__descriptor, h, head, take_join, ret);
}

int message_write_join_reply(struct bytes *out, uint64_t request_id, const struct join_reply *m)
{
    Ps__JoinReply head = PS__JOIN_REPLY__INIT;

    head.status = m->status;
    head.text = (char *)m->text;
    head.last_applied = m->last_applied;
    head.clock = m->clock;
    head.min_clock = m->min_clock;
    head.lease_ms = m->lease_ms;
    head.resumed = m->resumed;
    head.fenced_below = m->fenced_below;
    head.refused_seq = m->refused_seq;
    head.refused_status = m->refused_status;
    head.lost_first = m->lost_first;
    head.lost_last = m->lost_last;
    head.skipped_clocks = m->skipped_clocks;
    head.n_backups = m->n_backups;
    return message_head_write(out, FRAME_JOIN_REPLY, request_id, &head.base);
}

static int take_join_reply(const void *message, void *ret)
{
    const Ps__JoinReply *head = message;
    struct join_reply m = {
        .last_applied = head->last_applied,
        .clock = head->clock,
        .min_clock = head->min_clock,
        .lease_ms = head->lease_ms,
        .resumed = head->resumed,
        .fenced_below = head->fenced_below,
        .refused_seq = head->refused_seq,
        .lost_first = head->lost_first,
        .lost_last = head->lost_last,
        .skipped_clocks = head->skipped_clocks,
        .n_backups = head->n_backups,
    };

    if (message_head_status(&m.status, head->status) ||
        message_head_status(&m.refused_status, head->refused_status))
        return PS_EPROTO;
    message_head_text(m.text, sizeof m.text, head->text);
    *(struct join_reply *)ret = m;
    return 0;
}

int message_read_join_reply(const struct frame_header *h, const uint8_t *head,
                            struct join_reply *ret)
{
    return message_head_read(&ps__join_reply__descriptor, h, head, take_join_reply, ret);
}

static int write_clock(struct bytes *out, enum frame_type type, uint64_t request_id,
                       uint64_t clock)
{
    Ps__Clock head = PS__CLOCK__INIT;

    head.clock = clock;
    return message_head_write(out, type, request_id, &head.base);
}

static int take_clock(const void *message, void *ret)
{
    *(uint64_t *)ret = ((const Ps__Clock *)message)->clock;
    return 0;
}

/* ---- suspects ---- */

/* A list of them as protobuf-c wants it. */
struct suspect_heads {
    Ps__Suspect items[MESSAGE_SUSPECTS_MAX], *list[MESSAGE_SUSPECTS_MAX];
};

static void put_suspects(const struct suspects *all, struct suspect_heads *heads)
{
    for (uint32_t i = 0; i < all->n; i++) {
        Ps__Suspect *head = heads->list[i] = &heads->items[i];

        ps__suspect__init(head);
        head->rank = all->items[i].rank;
        head->incarnation = all->items[i].incarnation;
        head->clock = all->items[i].clock;
        head->agreed = all->items[i].is_agreed;
    }
}

static int take_suspects(Ps__Suspect *const *list, size_t n, struct suspects *ret)
{
    if (n > MESSAGE_SUSPECTS_MAX)
        return PS_EPROTO;
    ret->n = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        ret->items[i] = (struct suspect){ .rank = list[i]->rank,
                                          .incarnation = list[i]->incarnation,
                                          .clock = list[i]->clock,
                                          .is_agreed = list[i]->agreed != 0 };
    return 0;
}

/* ---- beat ---- */

/* `busy` stays borrowed by the head. */
static void put_learning(const struct beat *m, uint32_t busy[static LEARNING_STAGES],
                         Ps__Learning *head)
{
    const struct learning_report *r = &m->learning;

    ps__learning__init(head);
    for (uint32_t i = 0; i < LEARNING_STAGES; i++)
        busy[i] = r->busy[i];
    head->samples = r->samples;
    head->steps = r->steps;
    head->loss = r->loss;
    head->samples_per_s = r->samples_per_s;
    head->n_busy = LEARNING_STAGES;
    head->busy = busy;
    head->validations = r->n_validations;
    head->auc = r->auc;
    head->logloss = r->logloss;
    head->one_class = r->has_one_class;
    head->kept_epoch = r->kept_epoch;
    head->kept_step = r->kept_step;
    head->job = (char *)m->job;
    head->rank = m->rank;
    head->incarnation = m->incarnation;
}

int message_write_beat(struct bytes *out, uint64_t request_id, const struct beat *m)
{
    Ps__Beat head = PS__BEAT__INIT;
    struct suspect_heads suspects;
    Ps__Learning learning;
    uint32_t busy[LEARNING_STAGES];

    put_suspects(&m->suspects, &suspects);
    head.clock = m->clock;
    head.n_suspects = m->suspects.n;
    head.suspects = suspects.list;
    if (m->has_learning) {
        put_learning(m, busy, &learning);
        head.learning = &learning;
    }
    return message_head_write(out, FRAME_BEAT, request_id, &head.base);
}

/* Numbers are taken as they are: learning_report_wrong() is the reader's. A newer worker may have more stages. */
static int take_learning(const Ps__Learning *head, struct beat *m)
{
    struct learning_report *r = &m->learning;

    m->has_learning = true;
    *r = (struct learning_report){ .samples = head->samples,
                                   .steps = head->steps,
                                   .loss = head->loss,
                                   .samples_per_s = head->samples_per_s,
                                   .n_validations = head->validations,
                                   .auc = head->auc,
                                   .logloss = head->logloss,
                                   .has_one_class = head->one_class != 0,
                                   .kept_epoch = head->kept_epoch,
                                   .kept_step = head->kept_step };
    for (uint32_t i = 0; i < LEARNING_STAGES && i < head->n_busy; i++)
        r->busy[i] = head->busy[i] < UINT16_MAX ? (uint16_t)head->busy[i] : UINT16_MAX;
    m->rank = head->rank;
    m->incarnation = head->incarnation;
    return message_head_name(m->job, sizeof m->job, head->job);
}

static int take_beat(const void *message, void *ret)
{
    const Ps__Beat *head = message;
    struct beat *m = ret;

    m->clock = head->clock;
    m->has_learning = false;
    m->job[0] = '\0';
    if (head->learning && take_learning(head->learning, m))
        return PS_EPROTO;
    return take_suspects(head->suspects, head->n_suspects, &m->suspects);
}

int message_read_beat(const struct frame_header *h, const uint8_t *head, struct beat *ret)
{
    return message_head_read(&ps__beat__descriptor, h, head, take_beat, ret);
}

/* ---- the rest ---- */

int message_write_leave(struct bytes *out, uint64_t request_id, uint64_t clock)
{
    return write_clock(out, FRAME_LEAVE, request_id, clock);
}

int message_read_leave(const struct frame_header *h, const uint8_t *head, uint64_t *ret_clock)
{
    return message_head_read(&ps__clock__descriptor, h, head, take_clock, ret_clock);
}

int message_write_admin(struct bytes *out, uint64_t request_id, const struct admin *m)
{
    Ps__Admin head = PS__ADMIN__INIT;

    head.command = (char *)m->command;
    head.argument = (char *)m->argument;
    return message_head_write(out, FRAME_ADMIN, request_id, &head.base);
}

static int take_admin(const void *message, void *ret)
{
    const Ps__Admin *head = message;
    struct admin m;

    if (message_head_name(m.command, sizeof m.command, head->command) ||
        message_head_name(m.argument, sizeof m.argument, head->argument))
        return PS_EPROTO;
    *(struct admin *)ret = m;
    return 0;
}

int message_read_admin(const struct frame_header *h, const uint8_t *head, struct admin *ret)
{
    return message_head_read(&ps__admin__descriptor, h, head, take_admin, ret);
}

static Ps__StatusReply status_head(const struct status_reply *m)
{
    Ps__StatusReply head = PS__STATUS_REPLY__INIT;

    head.status = m->status;
    head.text = (char *)m->text;
    head.min_clock = m->min_clock;
    head.groups_number = m->groups_number;
    return head;
}

int message_write_status_reply(struct bytes *out, enum frame_type type, uint64_t request_id,
                               const struct status_reply *m)
{
    Ps__StatusReply head = status_head(m);
    struct suspect_heads suspects, doubted;

    assert(type == FRAME_BEAT_REPLY || type == FRAME_LEAVE_REPLY);
    put_suspects(&m->suspects, &suspects);
    head.n_suspects = m->suspects.n;
    head.suspects = suspects.list;
    put_suspects(&m->doubted, &doubted);
    head.n_doubted = m->doubted.n;
    head.doubted = doubted.list;
    return message_head_write(out, type, request_id, &head.base);
}

int message_write_admin_reply(struct bytes *out, uint64_t request_id,
                              const struct status_reply *m, const char *json, size_t json_bytes)
{
    Ps__StatusReply head = status_head(m);
    struct frame_header header = { .type = FRAME_ADMIN_REPLY, .request_id = request_id };
    uint8_t *body;
    int status = message_head_open(out, &head.base, json_bytes, &header, &body);

    if (status)
        return status;
    if (json_bytes)
        memcpy(body, json, json_bytes);
    message_head_seal(out, &header, body, NULL);
    return 0;
}

static int take_status_reply(const void *message, void *ret)
{
    const Ps__StatusReply *head = message;
    struct status_reply m = { .min_clock = head->min_clock,
                              .groups_number = head->groups_number };

    if (message_head_status(&m.status, head->status) ||
        take_suspects(head->suspects, head->n_suspects, &m.suspects) ||
        take_suspects(head->doubted, head->n_doubted, &m.doubted))
        return PS_EPROTO;
    message_head_text(m.text, sizeof m.text, head->text);
    *(struct status_reply *)ret = m;
    return 0;
}

int message_read_status_reply(const struct frame_header *h, const uint8_t *head,
                              struct status_reply *ret)
{
    return message_head_read(&ps__status_reply__descriptor, h, head, take_status_reply, ret);
}

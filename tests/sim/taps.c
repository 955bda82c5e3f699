/*
 * The product's functions that are observed (Makefile, SIM_WRAPS): each runs as it is, and its result goes to the model or is
 * compared with it, before any other thread runs.
 *
 *     wal_queue_append()                     an event is recorded: in the model, too
 *     wal_writer_open(), wal_writer_report(), wal_queue_close_gap()
 *                                            what is on the disk, as the log says
 *     recover_shard_run(), shard_set_events()        a shard comes back; it begins to live
 *     shard_pull_begin(), _end()             a pull is answered: the bound, and the rows of that moment
 *     reply_queue_send(), connection_send()         a reply leaves that promises something
 *     client_state_add_pushes(), client_state_ack()          a worker numbers a push; it hears that it is applied
 *     membership_join(), _suspect(), _advance()      who takes part; who is suspected
 *     suspects_ask(), suspects_has_update()  a worker lies of another one, or does not relay
 *     checkpoint_commit()                    a checkpoint is whole
 *
 * Those of standbys: taps_standby.c.
 */
#include "tests/sim/taps.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/message.h"
#include "server/checkpoint/checkpoint.h"
#include "server/core/push.h"
#include "server/core/push_apply.h"
#include "server/recovery/recover_shard.h"
#include "server/replication/follower.h"
#include "server/replication/sync.h"
#include "server/replication/terms.h"
#include "server/requests/reply_queue.h"
#include "server/shard_thread.h"
#include "server/standby.h"
#include "server/wal/wal_writer.h"
#include "tests/sim/agree.h"
#include "tests/sim/check.h"
#include "tests/sim/client.h"
#include "tests/sim/node.h"
#include "tests/sim/os.h"
#include "tests/sim/pair.h"
#include "tests/sim/wrap.h"
#include "worker/client/client_state.h"
#include "worker/client/suspects.h"

#define PROMISES_MAX 4096u /* a reply that leaves and is not noticed would stay for ever */

/* A reply that has not left: its bytes, and the record that it relies on. */
struct promise {
    const uint8_t *bytes;
    const struct connection *connection;
    struct shard_record *rec;
    uint64_t number;
};

static struct world *world;
static struct promise promises[PROMISES_MAX];
static uint32_t n_promises;
static struct wal_queue *new_queue; /* of which the writer is still to be opened */

static void on_turn(struct process *p);

void taps_begin(struct world *w)
{
    world = w;
    n_promises = 0;
    machine.on_turn = on_turn;
}

static void remove_promise(uint32_t i)
{
    promises[i] = promises[--n_promises];
}

/* Nothing that is left of such a reply leaves any more. */
static void drop_promises(const struct process *p)
{
    for (uint32_t i = n_promises; i-- > 0;)
        if (promises[i].rec->life.process == p)
            remove_promise(i);
}

void taps_process_ended(struct world *w, const struct process *p)
{
    drop_promises(p);
    for (uint32_t i = 0; i < w->plan.n_shards; i++)
        for (uint32_t k = 0; k < 2; k++)
            if (w->members[k][i].life.process == p)
                w->members[k][i].life = (struct shard_life){ 0 };
}

/* Of the psd that runs now. */
static struct shard_record *record_here(uint32_t shard)
{
    return &world->members[node_of_process(process_current())->member][shard];
}

static struct shard_record *record_of_queue(const struct wal_queue *q)
{
    for (uint32_t i = 0; i < world->plan.n_shards; i++)
        for (uint32_t k = 0; k < 2; k++)
            if (world->members[k][i].life.queue == q)
                return &world->members[k][i];
    return NULL;
}

/* It serves the shard, as far as anybody knows. */
static bool leads(const struct shard_record *rec)
{
    return !rec->life.follower && rec == world->records[rec->shard];
}

/* --- what the log records --- */

/* One that a process has freed may stand where another process's begins. */
static void release_queue_address(const struct wal_queue *q)
{
    struct shard_record *rec = record_of_queue(q);

    if (rec)
        rec->life.queue = NULL;
}

void REAL(wal_queue_init)(struct wal_queue *q, const struct wal_queue_config *config);
void WRAP(wal_queue_init)(struct wal_queue *q, const struct wal_queue_config *config);
void WRAP(wal_queue_init)(struct wal_queue *q, const struct wal_queue_config *config)
{
    struct wal_queue_config small = *config;

    small.block_bytes = world->plan.block_bytes;
    small.max_bytes = world->plan.queue_bytes;
    release_queue_address(q);
    new_queue = q;
    REAL(wal_queue_init)(q, &small);
}

/* What a thread has spent on files until now, and its process standing still: what it is at is not over. */
static uint64_t held_us_of(const struct fiber *f)
{
    uint64_t now_us = machine_now_us();

    if (!f)
        return 0;
    return f->disk_us - (f->disk_until_us > now_us ? f->disk_until_us - now_us : 0) +
           process_frozen_us(f->process);
}

uint64_t REAL(wal_queue_append)(struct wal_queue *q, const struct wal_record *record,
                                uint64_t now_ms);
uint64_t WRAP(wal_queue_append)(struct wal_queue *q, const struct wal_record *record,
                                uint64_t now_ms);
uint64_t WRAP(wal_queue_append)(struct wal_queue *q, const struct wal_record *record,
                                uint64_t now_ms)
{
    uint64_t number = REAL(wal_queue_append)(q, record, now_ms);
    struct shard_record *rec = record_of_queue(q);
    struct fact fact;
    const char *wrong;
    uint32_t shard;

    if (!rec)
        world_fail(world, "%s writes to the log of a shard that it does not have",
                   process_current()->name);
    shard = rec->shard;
    fact = fact_of(&record->event, &world->push_history, shard);
    fact.at_us = fact.here_us = machine_now_us();
    fact.at_held_us = held_us_of(rec->life.log_fiber);
    world_trace(world, "shard %u%s: record %llu: %s, rank %u, version %llu, clock %llu%s%s",
                shard, rec->member ? "'" : "", (unsigned long long)number,
                wal_record_name(fact.type), fact.rank, (unsigned long long)fact.version,
                (unsigned long long)(fact.push ? fact.push->clock : fact.clock),
                fact.status ? ": " : "", fact.status ? status_text(fact.status) : "");
    if (node_is_paired(world, rec))
        pair_recorded(world, rec, &fact);
    history_add(&rec->history, &fact);
    if (rec->history.n != number)
        world_fail(world, "shard %u: record %llu comes, %llu is next", shard,
                   (unsigned long long)number, (unsigned long long)rec->history.n);
    wrong = model_apply(&rec->model, &fact);
    rec->history.facts[number - 1].begins = rec->model.workers[fact.rank].clock;
    if (wrong)
        world_fail(world, "shard %u: record %llu: %s", shard, (unsigned long long)number,
                   wrong);
    rec->lost = q->lost_first;
    if (leads(rec))
        agree_recorded(world, shard, &fact);
    return number;
}

static void note_progress(struct shard_record *rec, const struct wal_queue *q)
{
    const struct wal_progress *p = &q->progress;

    rec->safe = p->durable > rec->saved ? p->durable : rec->saved;
    rec->written = p->written > rec->saved ? p->written : rec->saved;
    rec->lost = q->lost_first;
    if (p->state != WAL_WRITER_OK) {
        rec->failed_us = machine_now_us();
        rec->life.failed_held_us = held_us_of(rec->life.log_fiber);
    }
}

void REAL(wal_writer_report)(struct wal_writer *w, struct wal_queue *q);
void WRAP(wal_writer_report)(struct wal_writer *w, struct wal_queue *q);
void WRAP(wal_writer_report)(struct wal_writer *w, struct wal_queue *q)
{
    struct shard_record *rec = record_of_queue(q);

    REAL(wal_writer_report)(w, q);
    assert(rec);
    rec->life.log_fiber = machine.running;
    note_progress(rec, q);
}

void REAL(wal_queue_close_gap)(struct wal_queue *q, uint64_t number);
void WRAP(wal_queue_close_gap)(struct wal_queue *q, uint64_t number);
void WRAP(wal_queue_close_gap)(struct wal_queue *q, uint64_t number)
{
    struct shard_record *rec = record_of_queue(q);
    uint64_t first = q->lost_first;

    REAL(wal_queue_close_gap)(q, number);
    assert(rec);
    rec->saved = number;
    if (first && first <= number) {
        rec->gap_first = rec->gap_first ? rec->gap_first : first;
        rec->gap_last = number;
        for (uint64_t i = first; i <= number; i++)
            rec->history.facts[i - 1].is_dropped = true;
    }
    note_progress(rec, q);
}

/* Have all its shards a log now? */
static void note_open(struct node *n)
{
    for (uint32_t i = 0; i < world->plan.shards_per_node; i++)
        if (!node_record(n, i)->life.queue)
            return;
    n->is_open = true;
    n->n_recovered++;
}

int REAL(wal_writer_open)(const struct wal_writer_config *config, const struct wal_end *end,
                          uint64_t unix_ms, struct wal_writer **ret, struct err *err);
int WRAP(wal_writer_open)(const struct wal_writer_config *config, const struct wal_end *end,
                          uint64_t unix_ms, struct wal_writer **ret, struct err *err);
int WRAP(wal_writer_open)(const struct wal_writer_config *config, const struct wal_end *end,
                          uint64_t unix_ms, struct wal_writer **ret, struct err *err)
{
    struct wal_writer_config small = *config;
    struct shard_record *rec = record_here(config->identity.shard);
    struct wal_queue *q = new_queue;
    int status;

    if (rec->life.process != process_current()) /* it begins with nothing */
        cluster_accept(world, process_current(),
                       &(struct cluster_recovered){ .shard = config->identity.shard,
                                                    .last = end->last,
                                                    .keep = UINT64_MAX });
    small.segment_bytes = world->plan.segment_bytes;
    small.retry_ms = 10;
    status = REAL(wal_writer_open)(&small, end, unix_ms, ret, err);
    if (status)
        return status;
    if (rec->safe < wal_writer_progress(*ret)->durable) /* what it has read is synced now */
        rec->safe = wal_writer_progress(*ret)->durable;
    rec->life.queue = q;
    rec->life.writer = *ret;
    note_open(node_of_process(process_current()));
    return 0;
}

/* --- shards come and live --- */

/* A shard of the node's own, and of this layout: no old one whose rows are resharded. */
static bool is_own(const struct recover_shard_config *config)
{
    const struct node *n = node_of_process(process_current());
    uint32_t number = (uint32_t)strtoul(config->data_dir + strlen(OS_DATA_DIR), NULL, 10);

    return n && n->number == number && config->identity.n_shards == world->plan.n_shards;
}

int REAL(recover_shard_run)(const struct recover_shard_config *config, struct shard *shard,
                            uint64_t now_ms, struct recover_shard_facts *ret, struct err *err);
int WRAP(recover_shard_run)(const struct recover_shard_config *config, struct shard *shard,
                            uint64_t now_ms, struct recover_shard_facts *ret, struct err *err);
int WRAP(recover_shard_run)(const struct recover_shard_config *config, struct shard *shard,
                            uint64_t now_ms, struct recover_shard_facts *ret, struct err *err)
{
    int status = REAL(recover_shard_run)(config, shard, now_ms, ret, err);

    if (!status && is_own(config))
        cluster_accept(
            world, process_current(),
            &(struct cluster_recovered){ .shard = config->identity.shard,
                                         .core = shard,
                                         .last = ret->end.last,
                                         .keep = config->follows ? config->keep : UINT64_MAX,
                                         .is_exact = ret->needs <= ret->end.last });
    return status;
}

void REAL(shard_set_events)(struct shard *s, const struct shard_events *journal);
void WRAP(shard_set_events)(struct shard *s, const struct shard_events *journal);
void WRAP(shard_set_events)(struct shard *s, const struct shard_events *journal)
{
    struct shard_record *rec = record_here(s->config.shard);
    struct shard_life *life = &rec->life;
    const struct check_place at = check_place_of(world, rec);

    REAL(shard_set_events)(s, journal);
    life->follower = NULL;
    if (journal)
        check_same(world, &at, s, &rec->model, "at its start");
    life->core = journal ? s : NULL;
    life->fiber = machine.running;
    life->process = process_current();
}

bool taps_is_idle(const struct shard_record *rec)
{
    const struct shard *s = rec->life.core;

    return !s || (!push_is_running(&s->large) && !push_is_running(&s->small) &&
                  !push_apply_is_under_way(s));
}

/* All that a standby's shard has replayed is in its log, and its copy is exact. */
static bool is_whole(const struct shard_record *rec)
{
    const struct follower *f = rec->life.follower;

    return !f || (follower_is_exact(f) && !f->ahead);
}

/* A shard's thread has nothing half done here. */
static void on_turn(struct process *p)
{
    const struct node *n = node_of_process(p);

    for (uint32_t i = 0; n && i < world->plan.n_shards; i++) {
        struct shard_record *rec = &world->members[n->member][i];
        const struct check_place at = check_place_of(world, rec);

        if (rec->life.process != p || rec->life.fiber != machine.running || !rec->life.core)
            continue;
        check_interval(world, rec);
        if (leads(rec))
            agree_turn(world, i);
        if (rec->n_seen == rec->history.n || !taps_is_idle(rec) || !is_whole(rec))
            return;
        rec->n_seen = rec->history.n;
        check_same(world, &at, rec->life.core, &rec->model, "now");
    }
}

/* --- who takes part --- */

/* UINT32_MAX: of a shard that does not live yet, or of a copy. */
static uint32_t shard_of_membership(const struct membership *r)
{
    enter_shard();
    for (uint32_t i = 0; i < world->plan.n_shards; i++)
        if (world->records[i]->life.core && shard_membership(world->records[i]->life.core) == r)
            return i;
    return UINT32_MAX;
}

bool REAL(membership_suspect)(struct membership *r, const struct job *job,
                              const struct membership_report *report, uint64_t now_ms);
bool WRAP(membership_suspect)(struct membership *r, const struct job *job,
                              const struct membership_report *report, uint64_t now_ms);
bool WRAP(membership_suspect)(struct membership *r, const struct job *job,
                              const struct membership_report *report, uint64_t now_ms)
{
    uint32_t shard = shard_of_membership(r);
    bool any;

    world_trace(world, "shard %u: hears from rank %u that rank %u, incarnation %llu, is %s",
                shard, report->from, report->rank, (unsigned long long)report->incarnation,
                report->is_agreed ? "refused by all" : "suspected");
    any = REAL(membership_suspect)(r, job, report, now_ms);
    if (shard < world->plan.n_shards)
        agree_suspected(world, shard);
    return any;
}

bool REAL(membership_advance)(struct membership *r, uint64_t now_ms);
bool WRAP(membership_advance)(struct membership *r, uint64_t now_ms);
bool WRAP(membership_advance)(struct membership *r, uint64_t now_ms)
{
    uint32_t shard = shard_of_membership(r);
    bool any;

    if (shard >= world->plan.n_shards)
        return REAL(membership_advance)(r, now_ms);
    any = REAL(membership_advance)(r, now_ms);
    agree_suspected(world, shard);
    return any;
}

int REAL(membership_join)(struct membership *r, const struct membership_join *join,
                          uint64_t now_ms, struct worker **ret_worker, struct err *err);
int WRAP(membership_join)(struct membership *r, const struct membership_join *join,
                          uint64_t now_ms, struct worker **ret_worker, struct err *err);
int WRAP(membership_join)(struct membership *r, const struct membership_join *join,
                          uint64_t now_ms, struct worker **ret_worker, struct err *err)
{
    uint32_t shard = shard_of_membership(r);
    int status;

    if (shard >= world->plan.n_shards)
        return REAL(membership_join)(r, join, now_ms, ret_worker, err);
    agree_begin_join(world, shard);
    status = REAL(membership_join)(r, join, now_ms, ret_worker, err);
    agree_end_join(world, shard);
    if (!status)
        agree_joined(world, shard, join, *ret_worker);
    return status;
}

/* --- what workers say of each other --- */

/* Once nothing goes wrong any more it speaks, as it may be the only worker that is left. */
static bool is_mute(uint32_t rank)
{
    return rank == world->plan.mute && !world->is_calm;
}

void REAL(suspects_ask)(struct suspects_relay *r, uint32_t shard, struct suspects *ret);
void WRAP(suspects_ask)(struct suspects_relay *r, uint32_t shard, struct suspects *ret);
void WRAP(suspects_ask)(struct suspects_relay *r, uint32_t shard, struct suspects *ret)
{
    const struct client *c = &world->clients[process_current()->rank];
    uint64_t incarnation;

    if (is_mute(c->rank))
        return;
    REAL(suspects_ask)(r, shard, ret);
    if (ret->n < MESSAGE_SUSPECTS_MAX && client_lies(c, &incarnation))
        ret->items[ret->n++] = (struct suspect){ .rank = world->plan.accused,
                                                 .incarnation = incarnation,
                                                 .is_agreed = dice_once_in(&machine.dice, 2) };
}

bool REAL(suspects_has_update)(const struct suspects_relay *r, uint32_t shard);
bool WRAP(suspects_has_update)(const struct suspects_relay *r, uint32_t shard);
bool WRAP(suspects_has_update)(const struct suspects_relay *r, uint32_t shard)
{
    return !is_mute(process_current()->rank) && REAL(suspects_has_update)(r, shard);
}

/* --- pulls --- */

/* Every push of every counted worker of clocks below clock - bound is in it. */
static void check_bound(const struct shard_record *rec, uint64_t clock)
{
    const uint32_t shard = rec->shard;
    const struct model *model = &rec->model;
    uint64_t until = clock > world->plan.bound ? clock - world->plan.bound : 0;
    uint64_t sync_point = plan_sync_point(&world->plan, clock);

    if (world->plan.mode == TABLE_SPEC_MODE_ASYNC)
        return;
    until = sync_point > until ? sync_point : until;
    if (model_min_clock(model) < until)
        world_fail(world, "shard %u: a pull of clock %llu is answered at min clock %llu", shard,
                   (unsigned long long)clock, (unsigned long long)model_min_clock(model));
    if (model->n_held && model->held[0].run == model->run && model->held[0].push->clock < until)
        world_fail(
            world, "shard %u: a pull of clock %llu is answered before clock %llu is combined",
            shard, (unsigned long long)clock, (unsigned long long)model->held[0].push->clock);
    for (const struct sent_push *p = world->push_history.first; p; p = p->next) {
        const struct model_worker *worker = &model->workers[p->rank];

        if (p->shard == shard && p->clock < until && p->clock >= worker->joined_clock &&
            worker->state == WORKER_LIVE && worker->incarnation == p->incarnation &&
            p->seq > worker->last_seq && !world->plan.n_backups)
            world_fail(world,
                       "shard %u: a pull of clock %llu lacks push %llu of rank %u, clock %llu",
                       shard, (unsigned long long)clock, (unsigned long long)p->seq, p->rank,
                       (unsigned long long)p->clock);
    }
}

static void keep_rows(struct shard_record *rec, struct shard_answer *a)
{
    const struct plan *p = &world->plan;

    for (uint32_t table = 0; table < p->n_tables; table++)
        for (uint32_t key = 0; key < p->n_keys; key++)
            model_show(&rec->model, table, key,
                       p->dims[table] < PLAN_DIM_MAX ? p->dims[table] : PLAN_DIM_MAX,
                       a->rows[table][key]);
}

/* Of a worker that scans a table; with state, behind it a section of no keys that asks for the table's step count. The
 * section of a shard whose end is reached asks for nothing; its pull of clock 0 has ended long before. */
static bool is_scan(const struct worker *worker, const struct pull *pull)
{
    const struct section *sections = pull->sections;

    if (pull->n_sections == 2 ? !sections[1].state || sections[1].n_keys
                              : pull->n_sections != 1)
        return false;
    return sections[0].scan_bytes || (sections[0].n_keys == 0 && pull->clock == 0 &&
                                      world->clients[worker->rank].is_scanning);
}

/* Its rows are those that the shard has now. */
static void check_slice(const struct shard_record *rec, const struct shard_pull_op *op)
{
    const uint32_t shard = rec->shard;
    const struct section *section = &op->pull->sections[0];
    const struct model *m = &rec->model;
    const uint32_t table = section->table_id,
                   n = section->state ? world->plan.widths[table] : world->plan.dims[table];
    const size_t steps_bytes = op->pull->n_sections == 2 ? op->value_bytes[1] : 0;
    const uint8_t *bytes = op->dst - steps_bytes - op->value_bytes[0], *row;
    uint32_t n_rows;
    uint64_t name, key;

    if (!section->scan_bytes)
        return;
    memcpy(&n_rows, bytes + 16, sizeof n_rows);
    row = bytes + SECTION_SCAN_HEAD_BYTES + n_rows * sizeof name;
    for (uint32_t i = 0; i < n_rows; i++, row += n * sizeof(float)) {
        memcpy(&name, bytes + SECTION_SCAN_HEAD_BYTES + i * sizeof name, sizeof name);
        key = (name - 1) / 3;
        if (!model_is_row(m, table, (uint32_t)key, row, section->state))
            world_fail(
                world,
                "shard %u: a scan has other values of table %u, key %llu, than the shard",
                shard, table, (unsigned long long)key);
    }
}

void REAL(shard_pull_begin)(struct shard *s, const struct worker *worker,
                            const struct pull *pull, uint8_t *dst, struct shard_pull_op *ret);
void WRAP(shard_pull_begin)(struct shard *s, const struct worker *worker,
                            const struct pull *pull, uint8_t *dst, struct shard_pull_op *ret);
void WRAP(shard_pull_begin)(struct shard *s, const struct worker *worker,
                            const struct pull *pull, uint8_t *dst, struct shard_pull_op *ret)
{
    uint32_t shard = s->config.shard;
    struct shard_record *rec = record_here(shard);
    uint32_t rank = worker->rank;
    struct shard_answer *a;

    REAL(shard_pull_begin)(s, worker, pull, dst, ret);
    if (node_is_paired(world, rec))
        pair_pulled(world, rec);
    if (is_scan(worker, pull))
        return;
    a = &rec->answers[rank * WORLD_N_ANSWERS + rec->n_answers[rank]++ % WORLD_N_ANSWERS];
    world_trace(world, "shard %u: answers rank %u, clock %llu", shard, worker->rank,
                (unsigned long long)pull->clock);
    check_bound(rec, pull->clock);
    a->clock = pull->clock;
    a->n_facts = rec->history.n;
    a->is_mixed = !taps_is_idle(rec);
    keep_rows(rec, a);
}

void REAL(shard_pull_end)(struct shard *s, struct worker *worker,
                          const struct shard_pull_op *op);
void WRAP(shard_pull_end)(struct shard *s, struct worker *worker,
                          const struct shard_pull_op *op);
void WRAP(shard_pull_end)(struct shard *s, struct worker *worker,
                          const struct shard_pull_op *op)
{
    struct shard_record *rec = record_here(s->config.shard);

    REAL(shard_pull_end)(s, worker, op);
    if (worker && is_scan(worker, op->pull)) {
        if (taps_is_idle(rec))
            check_slice(rec, op);
        return;
    }
    for (uint32_t i = 0; worker && i < WORLD_N_ANSWERS; i++) {
        struct shard_answer *a = &rec->answers[worker->rank * WORLD_N_ANSWERS + i];

        if (a->clock == op->pull->clock)
            a->is_mixed = a->is_mixed || a->n_facts != rec->history.n;
    }
}

/* --- replies --- */

/* NULL: a thread of no shard's runs. */
static struct shard_record *record_of_running(void)
{
    const struct node *n = node_of_process(process_current());

    for (uint32_t i = 0; n && i < world->plan.shards_per_node; i++) {
        struct shard_record *rec = node_record(n, i);

        if (rec->life.process && rec->life.fiber == machine.running)
            return rec;
    }
    return NULL;
}

/* A push that is refused promises nothing. */
static bool is_refusal(const struct bytes *frame)
{
    const uint8_t *front = bytes_front(frame);
    struct push_reply reply;
    struct frame_header h;

    return frame_decode(front, UINT32_MAX, &h) == 0 && h.type == FRAME_PUSH_REPLY &&
           message_read_push_reply(&h, front + FRAME_HEADER_BYTES, &reply) == 0 && reply.status;
}

int REAL(reply_queue_send)(struct reply_queue *a, struct connection *c, struct bytes *frame,
                           const struct reply_timing *timing);
int WRAP(reply_queue_send)(struct reply_queue *a, struct connection *c, struct bytes *frame,
                           const struct reply_timing *timing);
int WRAP(reply_queue_send)(struct reply_queue *a, struct connection *c, struct bytes *frame,
                           const struct reply_timing *timing)
{
    struct shard_record *rec = record_of_running();

    if (rec && !is_refusal(frame)) {
        if (n_promises == PROMISES_MAX)
            world_fail(world, "shard %u: more replies wait than the simulation can note",
                       rec->shard);
        promises[n_promises++] = (struct promise){ frame->bytes, c, rec, rec->history.n };
    }
    return REAL(reply_queue_send)(a, c, frame, timing);
}

void REAL(reply_queue_drop)(struct reply_queue *a, const struct connection *c);
void WRAP(reply_queue_drop)(struct reply_queue *a, const struct connection *c);
void WRAP(reply_queue_drop)(struct reply_queue *a, const struct connection *c)
{
    for (uint32_t i = n_promises; i-- > 0;)
        if (promises[i].connection == c)
            remove_promise(i);
    REAL(reply_queue_drop)(a, c);
}

int REAL(connection_send)(struct connection *c, struct bytes *frame);
int WRAP(connection_send)(struct connection *c, struct bytes *frame);
int WRAP(connection_send)(struct connection *c, struct bytes *frame)
{
    struct shard_record *rec = record_of_running();

    for (uint32_t i = n_promises; i-- > 0 && rec;) {
        const struct promise *p = &promises[i];

        if (p->bytes != frame->bytes || p->rec != rec)
            continue;
        if (p->number > rec->promised)
            rec->promised = p->number;
        if (node_is_paired(world, rec))
            pair_promised(world, rec, p->number);
        remove_promise(i);
    }
    return REAL(connection_send)(c, frame);
}

/* --- checkpoints --- */

int REAL(checkpoint_commit)(const struct file_ops *files, const char *data_dir,
                            const struct manifest *m, uint32_t keep, uint64_t *ret_firsts,
                            struct err *err);
int WRAP(checkpoint_commit)(const struct file_ops *files, const char *data_dir,
                            const struct manifest *m, uint32_t keep, uint64_t *ret_firsts,
                            struct err *err);
int WRAP(checkpoint_commit)(const struct file_ops *files, const char *data_dir,
                            const struct manifest *m, uint32_t keep, uint64_t *ret_firsts,
                            struct err *err)
{
    struct node *n = node_of_process(process_current());
    struct node_save *save = cluster_note_save(n);
    int status;

    for (uint32_t i = 0; i < m->n_files; i++)
        save->through[i] = m->files[i].through;
    status = REAL(checkpoint_commit)(files, data_dir, m, keep, ret_firsts, err);
    if (status)
        return status;
    save->is_sure = true;
    n->n_done++;
    world_trace(world, "node %u: checkpoint %llu is whole, base %llu", n->index,
                (unsigned long long)m->number, (unsigned long long)m->base);
    return 0;
}

/* --- pairs --- */

void REAL(shard_threads_serve)(struct shard_thread **shards, uint32_t n);
void WRAP(shard_threads_serve)(struct shard_thread **shards, uint32_t n);
void WRAP(shard_threads_serve)(struct shard_thread **shards, uint32_t n)
{
    node_of_process(process_current())->is_serving = true;
    pair_serves(node_of_process(process_current()));
    REAL(shard_threads_serve)(shards, n);
}

/* Its start is over: no later one finds what it has given up. */
void REAL(standby_rebuilt)(struct standby *s, const struct start_result *result);
void WRAP(standby_rebuilt)(struct standby *s, const struct start_result *result);
void WRAP(standby_rebuilt)(struct standby *s, const struct start_result *result)
{
    if (!result->err.status)
        node_of_process(process_current())->gives_up = false;
    REAL(standby_rebuilt)(s, result);
}

static void note_sync(const struct sync *s)
{
    node_of_process(process_current())->is_in_sync = s->state == SYNC_IN;
}

enum sync_order REAL(sync_step)(struct sync *s, const struct sync_shard *shards, uint32_t n,
                                bool is_followed, uint64_t now_ms);
enum sync_order WRAP(sync_step)(struct sync *s, const struct sync_shard *shards, uint32_t n,
                                bool is_followed, uint64_t now_ms);
enum sync_order WRAP(sync_step)(struct sync *s, const struct sync_shard *shards, uint32_t n,
                                bool is_followed, uint64_t now_ms)
{
    enum sync_order order = REAL(sync_step)(s, shards, n, is_followed, now_ms);

    note_sync(s);
    return order;
}

void REAL(sync_note_write)(struct sync *s, int status, uint64_t now_ms);
void WRAP(sync_note_write)(struct sync *s, int status, uint64_t now_ms);
void WRAP(sync_note_write)(struct sync *s, int status, uint64_t now_ms)
{
    REAL(sync_note_write)(s, status, now_ms);
    note_sync(s);
}

/* Of a write that failed nobody knows what is there. */
int REAL(terms_write)(const struct file_ops *files, const char *data_dir, const struct terms *t,
                      struct err *err);
int WRAP(terms_write)(const struct file_ops *files, const char *data_dir, const struct terms *t,
                      struct err *err);
int WRAP(terms_write)(const struct file_ops *files, const char *data_dir, const struct terms *t,
                      struct err *err)
{
    struct node *n = node_of_process(process_current());
    int status;

    n->writes_primary = t->role == TERMS_PRIMARY;
    status = REAL(terms_write)(files, data_dir, t, err);
    n->writes_primary = !status && t->role == TERMS_PRIMARY;
    n->says_in_sync = !status && t->in_sync && t->role == TERMS_PRIMARY;
    if (!status) /* else it serves in none before a write, or a start that reads what is there */
        n->term = terms_last(t);
    if (n->says_in_sync)
        pair_says_in_sync(n);
    return status;
}

uint64_t WRAP(terms_random)(void);
uint64_t WRAP(terms_random)(void)
{
    return 1 + dice_roll(&machine.dice, UINT32_MAX);
}

/* --- workers --- */

void REAL(client_state_add_pushes)(struct client_state *d, uint64_t n_pushes, uint64_t n_bytes,
                                   struct client_state_identity *ret);
void WRAP(client_state_add_pushes)(struct client_state *d, uint64_t n_pushes, uint64_t n_bytes,
                                   struct client_state_identity *ret);
void WRAP(client_state_add_pushes)(struct client_state *d, uint64_t n_pushes, uint64_t n_bytes,
                                   struct client_state_identity *ret)
{
    REAL(client_state_add_pushes)(d, n_pushes, n_bytes, ret);
    if (ret->epoch != UINT64_MAX)
        client_numbers(&world->clients[process_current()->rank], ret->incarnation);
}

void REAL(client_state_ack)(struct client_state *d, uint32_t shard, uint64_t seq,
                            uint64_t n_bytes);
void WRAP(client_state_ack)(struct client_state *d, uint32_t shard, uint64_t seq,
                            uint64_t n_bytes);
void WRAP(client_state_ack)(struct client_state *d, uint32_t shard, uint64_t seq,
                            uint64_t n_bytes)
{
    struct sent_push *push = push_history_find(&world->push_history, shard,
                                               process_current()->rank, d->incarnation, seq);

    if (!push)
        world_fail(world, "rank %u hears of push %llu, which it has not made",
                   process_current()->rank, (unsigned long long)seq);
    push->is_acked = true;
    REAL(client_state_ack)(d, shard, seq, n_bytes);
}

#include "worker/client/cluster_client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/memory.h"
#include "worker/client/discovery.h"
#include "worker/client/group_watch.h"
#include "worker/client/pending_report.h"
#include "worker/client/pull.h"
#include "worker/client/shard_link.h"
#include "worker/client/suspects.h"

#define CONNECT_MIN_MS 1000u
#define RANDOM_RANGE 60000u /* of what two processes of one rank add to their incarnations */

/* Written by the network thread, read by any. */
struct counters {
    _Atomic uint64_t bytes_in, bytes_out, rows_refused, reconnects, resent_pushes, rejoins,
        min_clock, staleness_max, foreign, pushes_lost, skipped_clocks, pushes_late;
};

/* One shard of the cluster. */
struct member {
    struct shard_link *link; /* owned */
    struct address address;
    bool joined;    /* in this epoch */
    bool is_ready;  /* its link is */
    bool has_table; /* of the table under way */
    uint64_t min_clock;
    uint64_t
        lost_last; /* of this incarnation: acknowledged pushes up to here were counted as lost */
    struct cluster_client_version version;
};

struct cluster_client {
    struct channel_loop *channels;    /* borrowed */
    const struct ps_options *options; /* borrowed */
    struct io_thread *const *io; /* borrowed: shard i's connection is of io[(i + 1) % n_io] */
    uint32_t n_io;
    struct client_state *state;  /* borrowed */
    struct discovery *discovery; /* owned; NULL once the links are made */
    uv_mutex_t
        addresses; /* of the members', from when the state is open: another thread reads them */
    struct group_watch *groups; /* owned; NULL until the links are made */
    struct member *members; /* owned; good for reading from any thread once the state is open */
    uint32_t shards_per_node;
    struct suspects_relay *suspects; /* owned; NULL until the links are made */
    uint32_t n_shards, n_joined, n_ready;
    uint64_t now_ms, started_ms, epoch, clock;
    struct ps_origin origin; /* its incarnation is the one that counts */
    struct cluster_client_fences fences;
    bool failed, has_pushed, is_leaving;
    bool lacks_table; /* the last one that was asked for: no link has it */
    bool abandons;    /* the start has failed: links say goodbye */
    uint32_t n_left;
    struct counters counters;
    _Atomic bool has_moved; /* a node, to another psd */
    uint32_t moved_shard;   /* the last one; under `addresses` */
};

static void count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static uint64_t load(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void notice(void *owner, const char *sentence)
{
    struct cluster_client *cluster = owner;

    if (cluster->options->on_notice)
        cluster->options->on_notice(cluster->options->notice_arg, sentence);
}

/* Nothing goes on from here; the links are freed at the next tick, as one of them may be the caller. */
static void fail(struct cluster_client *cluster, int status, const char *sentence)
{
    cluster->failed = true;
    client_state_fail(cluster->state, status, sentence);
}

static void set_clock(struct cluster_client *cluster, uint64_t clock)
{
    if (clock <= cluster->clock)
        return;
    cluster->clock = clock;
    for (uint32_t i = 0; i < cluster->n_shards; i++)
        shard_link_set_clock(cluster->members[i].link, clock);
}

/* ---- fencing ---- */

uint32_t cluster_client_count_fence(struct cluster_client_fences *f, uint64_t now_ms)
{
    uint32_t n_recent = 1, i;

    for (i = 0; i < CLUSTER_CLIENT_FENCES_MAX && i < f->n; i++)
        n_recent += now_ms - f->at_ms[i] < CLUSTER_CLIENT_FENCES_MS;
    f->at_ms[f->n++ % CLUSTER_CLIENT_FENCES_MAX] = now_ms;
    return n_recent;
}

uint32_t cluster_client_rejoin_delay_ms(uint32_t n)
{
    return n > 1 ? 50u << (n - 1) : 0;
}

uint64_t cluster_client_next_incarnation(uint64_t own, uint64_t fenced_below, uint64_t unix_ms,
                                         uint64_t random)
{
    /* The fence itself may be the incarnation of another process, which has left (join_is_fenced()). */
    uint64_t next = own > fenced_below ? own : fenced_below;

    if (unix_ms > next)
        return unix_ms;
    if (next < UINT64_MAX)
        next++;
    return next < UINT64_MAX - RANDOM_RANGE ? next + random % RANDOM_RANGE : next;
}

/* ---- events of the links ---- */

/* Acknowledged pushes that the shard no longer has. Each is counted once, also if the shard crashes again. */
static void count_lost(struct cluster_client *cluster, uint32_t shard,
                       const struct join_reply *joined)
{
    struct member *m = &cluster->members[shard];
    uint64_t first = joined->lost_first > m->lost_last ? joined->lost_first : m->lost_last + 1,
             n;
    char text[512];

    if (first > joined->lost_last)
        return;
    m->lost_last = joined->lost_last;
    n = joined->lost_last - first + 1;
    count(&cluster->counters.pushes_lost, n);
    snprintf(text, sizeof text,
             "shard %u at %s has lost %" PRIu64
             " acknowledged push%s of this worker in a crash; the "
             "run goes on without them, and its bits are not those of a run without a crash; "
             "psd --durability fsync loses none",
             shard, m->address.text, n, n == 1 ? "" : "es");
    if (cluster->options->on_warning)
        cluster->options->on_warning(cluster->options->notice_arg, text);
    else
        notice(cluster, text);
}

static uint32_t node_of(const struct cluster_client *cluster, uint32_t shard)
{
    return shard / cluster->shards_per_node;
}

/* Is a shard of its node not ready? */
static bool is_node_away(const struct cluster_client *cluster, uint32_t node)
{
    uint32_t first = node * cluster->shards_per_node;

    for (uint32_t i = first; i < first + cluster->shards_per_node; i++)
        if (!cluster->members[i].is_ready)
            return true;
    return false;
}

static void set_ready(struct cluster_client *cluster, uint32_t shard, bool is_ready)
{
    struct member *m = &cluster->members[shard];

    if (m->is_ready && !is_ready)
        cluster->n_ready--;
    else if (!m->is_ready && is_ready)
        cluster->n_ready++;
    m->is_ready = is_ready;
    group_watch_set_away(cluster->groups, node_of(cluster, shard),
                         is_node_away(cluster, node_of(cluster, shard)));
}

static void on_ready(void *owner, uint32_t shard, const struct join_reply *joined)
{
    struct cluster_client *cluster = owner;
    struct member *m = &cluster->members[shard];

    set_ready(cluster, shard, true);
    set_clock(cluster, joined->clock);
    count_lost(cluster, shard, joined);
    if (joined->skipped_clocks > load(&cluster->counters.skipped_clocks))
        atomic_store_explicit(&cluster->counters.skipped_clocks, joined->skipped_clocks,
                              memory_order_relaxed);
    if (m->joined)
        return;
    m->joined = true;
    if (++cluster->n_joined == cluster->n_shards)
        client_state_joined(cluster->state, cluster->clock);
}

static void on_pushed(void *owner, uint32_t shard, const struct request *push,
                      const struct push_reply *reply)
{
    struct cluster_client *cluster = owner;
    char text[512];

    count(&cluster->counters.rows_refused, reply->rows_refused);
    count(&cluster->counters.pushes_late, reply->late);
    count(&cluster->counters.foreign,
          cluster_client_version_pushed(&cluster->members[shard].version,
                                        reply->status ? 0 : push->n_versions, reply->version));
    if (reply->status) {
        snprintf(text, sizeof text,
                 "shard %u at %s refused push %" PRIu64 " of clock %" PRIu64 ": %s", shard,
                 cluster->members[shard].address.text, push->seq, push->clock,
                 reply->text[0] ? reply->text : status_text(reply->status));
        client_state_refuse(cluster->state, reply->status, text);
    }
    client_state_ack(cluster->state, shard, push->seq, bytes_len(&push->bytes));
}

static void on_pulled(void *owner, uint32_t shard, const struct request *pull,
                      const struct pull_reply *reply, struct bytes *values)
{
    struct cluster_client *cluster = owner;
    uint64_t ahead = pull->clock > reply->min_clock ? pull->clock - reply->min_clock : 0;

    if (!reply->status && !cluster->options->reader &&
        ahead > atomic_load_explicit(&cluster->counters.staleness_max, memory_order_relaxed))
        atomic_store_explicit(&cluster->counters.staleness_max, ahead, memory_order_relaxed);
    if (!reply->status)
        cluster_client_version_pulled(&cluster->members[shard].version, reply->version);
    if (pull_has_ended(pull))
        return;
    pull_take_answer(pull->pull, shard, reply, values);
    client_state_answered(cluster->state, pull->pull, pull->pull_id, shard);
}

static bool on_greeted(void *owner, uint32_t shard, const struct hello_reply *reply)
{
    struct cluster_client *cluster = owner;

    group_watch_learn(cluster->groups, &reply->groups);
    return reply->status ||
           !group_watch_is_behind(cluster->groups, node_of(cluster, shard), &reply->groups);
}

static void on_groups_changed(void *owner, uint32_t shard)
{
    struct cluster_client *cluster = owner;

    group_watch_ask(cluster->groups, node_of(cluster, shard));
}

static void on_table(void *owner, uint32_t shard, uint32_t table,
                     const struct table_reply *reply)
{
    struct cluster_client *cluster = owner;

    (void)table; /* one is under way at a time */
    if (cluster->members[shard].has_table)
        return;
    cluster->members[shard].has_table = true;
    client_state_table_answered(cluster->state, reply);
}

static void on_fenced(void *owner, uint32_t shard, uint64_t fenced_below)
{
    struct cluster_client *cluster = owner;
    uint64_t incarnation = cluster->origin.incarnation;
    uint32_t i, n_fenced = cluster_client_count_fence(&cluster->fences, cluster->now_ms);
    char text[512];

    if (n_fenced > CLUSTER_CLIENT_FENCES_MAX) {
        snprintf(text, sizeof text,
                 "shard %u at %s declares worker %u of job %s dead again and again: is another "
                 "process running with the same rank?",
                 shard, cluster->members[shard].address.text, cluster->options->rank,
                 cluster->options->job);
        fail(cluster, PS_EFENCED, text);
        return;
    }
    if (cluster->clock < cluster->origin.next_clock)
        cluster->clock = cluster->origin.next_clock;
    cluster->origin =
        (struct ps_origin){ .incarnation = cluster_client_next_incarnation(
                                incarnation, fenced_below, clock_unix_ms(), uv_hrtime()) };
    incarnation = cluster->origin.incarnation;
    cluster->epoch = client_state_rejoin(cluster->state, incarnation);
    cluster->n_joined = 0;
    count(&cluster->counters.rejoins, 1);
    snprintf(text, sizeof text,
             "shard %u at %s refuses this worker (it was silent for a lease, or its rank was "
             "taken): joining again as incarnation %" PRIu64,
             shard, cluster->members[shard].address.text, incarnation);
    notice(cluster, text);
    for (i = 0; i < cluster->n_shards; i++) {
        cluster->members[i].joined = false;
        cluster->members[i].lost_last = 0;
        shard_link_rejoin(cluster->members[i].link, incarnation, cluster->clock,
                          cluster_client_rejoin_delay_ms(n_fenced));
    }
}

/* All shards, or none: a worker that only some could count would hold the others up there. So it joins, and renews its
 * leases, when each shard that it has not joined yet has answered. */
static bool may_join(void *owner)
{
    const struct cluster_client *cluster = owner;

    for (uint32_t i = 0; i < cluster->n_shards; i++)
        if (!cluster->members[i].joined && !shard_link_is_greeted(cluster->members[i].link))
            return false;
    return true;
}

/* A shard that answers this worker no more may refuse it. Then another shard, which hears it, believes the first worker
 * that says so. */
static bool doubts_itself(const struct cluster_client *cluster)
{
    for (uint32_t i = 0; i < cluster->n_shards; i++)
        if (shard_link_is_silent(cluster->members[i].link))
            return true;
    return false;
}

/* The node whose first shard this is; UINT32_MAX: it is no first one, and gets no report. */
static uint32_t reported_node(const struct cluster_client *cluster, uint32_t shard)
{
    return shard % cluster->shards_per_node ? UINT32_MAX : shard / cluster->shards_per_node;
}

static bool has_report(void *owner, uint32_t shard)
{
    const struct cluster_client *cluster = owner;

    return pending_report_has(cluster->options->report, reported_node(cluster, shard));
}

/* Else no suspect is told to the shard, or heard of it: it may be of an old primary. It repeats them in each answer. */
static bool is_primary_sure(const struct cluster_client *cluster, uint32_t shard)
{
    return group_watch_is_sure(cluster->groups, node_of(cluster, shard));
}

static void fill_beat(void *owner, uint32_t shard, struct beat *ret)
{
    const struct cluster_client *cluster = owner;
    const struct ps_options *options = cluster->options;

    pending_report_take(options->report, reported_node(cluster, shard),
                        options->reader ? 0 : cluster->origin.incarnation, ret);
    if (options->reader)
        return;
    if (doubts_itself(cluster))
        ret->suspects.items[ret->suspects.n++] =
            (struct suspect){ .rank = options->rank,
                              .incarnation = cluster->origin.incarnation };
    if (is_primary_sure(cluster, shard))
        suspects_ask(cluster->suspects, shard, &ret->suspects);
}

static void on_beat_answered(void *owner, uint32_t shard, const struct suspects *suspects,
                             const struct suspects *doubted)
{
    struct cluster_client *cluster = owner;

    pending_report_answered(cluster->options->report, reported_node(cluster, shard));
    if (is_primary_sure(cluster, shard))
        suspects_answered(cluster->suspects, shard, suspects, doubted);
    else
        suspects_lost(cluster->suspects, shard);
    for (uint32_t i = 0; i < cluster->n_shards; i++)
        if (is_primary_sure(cluster, i) && suspects_has_update(cluster->suspects, i))
            shard_link_beat_soon(cluster->members[i].link);
}

static bool has_suspects(void *owner)
{
    const struct cluster_client *cluster = owner;

    return suspects_are_open(cluster->suspects);
}

static void on_lost(void *owner, uint32_t shard)
{
    struct cluster_client *cluster = owner;

    set_ready(cluster, shard, false);
    suspects_lost(cluster->suspects, shard);
}

static void on_left(void *owner, uint32_t shard)
{
    struct cluster_client *cluster = owner;

    (void)shard;
    if (cluster->abandons)
        cluster->n_left++;
    else
        client_state_left(cluster->state);
}

static void on_min_clock(void *owner, uint32_t shard, uint64_t min_clock)
{
    struct cluster_client *cluster = owner;
    uint64_t lowest = UINT64_MAX;

    cluster->members[shard].min_clock = min_clock;
    for (uint32_t i = 0; i < cluster->n_shards; i++)
        if (cluster->members[i].min_clock < lowest)
            lowest = cluster->members[i].min_clock;
    atomic_store_explicit(&cluster->counters.min_clock, lowest, memory_order_relaxed);
    if (cluster->options->n_backups)
        client_state_job_is_at(cluster->state, lowest);
}

static void on_traffic(void *owner, uint64_t bytes_in, uint64_t bytes_out)
{
    struct cluster_client *cluster = owner;

    count(&cluster->counters.bytes_in, bytes_in);
    count(&cluster->counters.bytes_out, bytes_out);
}

static void on_resent(void *owner, uint32_t shard, uint64_t n_pushes)
{
    struct cluster_client *cluster = owner;

    (void)shard;
    count(&cluster->counters.resent_pushes, n_pushes);
}

static void on_reconnected(void *owner, uint32_t shard, uint64_t n_resent)
{
    struct cluster_client *cluster = owner;

    count(&cluster->counters.reconnects, 1);
    on_resent(owner, shard, n_resent);
}

static void on_failed(void *owner, uint32_t shard, int status, const char *sentence)
{
    (void)shard;
    fail(owner, status, sentence);
}

static const struct shard_link_events shard_link_events = { .ready = on_ready,
                                                            .pushed = on_pushed,
                                                            .pulled = on_pulled,
                                                            .greeted = on_greeted,
                                                            .table = on_table,
                                                            .fenced = on_fenced,
                                                            .may_join = may_join,
                                                            .has_report = has_report,
                                                            .fill_beat = fill_beat,
                                                            .beat_answered = on_beat_answered,
                                                            .groups_changed = on_groups_changed,
                                                            .has_suspects = has_suspects,
                                                            .lost = on_lost,
                                                            .left = on_left,
                                                            .min_clock = on_min_clock,
                                                            .traffic = on_traffic,
                                                            .reconnected = on_reconnected,
                                                            .resent = on_resent,
                                                            .notice = notice,
                                                            .failed = on_failed };

/* ---- finding the cluster ---- */

static void copy_text(char *dst, size_t n_bytes, const char *src)
{
    snprintf(dst, n_bytes, "%s", src ? src : "");
}

static struct hello make_hello(const struct ps_options *options)
{
    struct hello hello = { .version_min = PROTO_VERSION_MIN,
                           .version_max = PROTO_VERSION_MAX,
                           .frame_flags = FRAME_FLAGS_KNOWN };

    copy_text(hello.role, sizeof hello.role, options->reader ? "reader" : "worker");
    copy_text(hello.token, sizeof hello.token, options->token);
    copy_text(hello.name, sizeof hello.name, options->name);
    return hello;
}

static struct join make_join(const struct ps_options *options, const struct ps_origin *origin)
{
    struct join join = { .rank = options->rank,
                         .n_workers = options->n_workers,
                         .incarnation = origin->incarnation,
                         .mode = options->mode,
                         .bound = options->bound,
                         .n_backups = options->n_backups,
                         .clock = origin->clock };

    copy_text(join.job, sizeof join.job, options->job);
    copy_text(join.name, sizeof join.name, options->name);
    return join;
}

static struct shard_link_config make_link_config(const struct ps_options *options,
                                                 const struct ps_origin *origin,
                                                 uint64_t spent_ms)
{
    struct shard_link_config config = { .hello = make_hello(options),
                                        .joins = !options->reader,
                                        .join = make_join(options, origin),
                                        .acked_seq = origin->acked_seq,
                                        .sent_seq = origin->last_seq,
                                        .sent_clock = origin->clock,
                                        .give_up_ms = options->give_up_ms,
                                        .answer_ms = options->answer_ms,
                                        .compress = options->compress,
                                        .names_keys = options->names_keys && !options->reader };

    config.connect_ms = spent_ms + CONNECT_MIN_MS < options->connect_ms
                            ? options->connect_ms - (uint32_t)spent_ms
                            : CONNECT_MIN_MS;
    return config;
}

/* A worker that comes back to another cluster comes as a new incarnation: it has pushed nothing here. */
static void check_origin(struct cluster_client *cluster, uint32_t n_shards, uint64_t map_id)
{
    struct ps_origin *o = &cluster->origin;
    uint64_t clock = o->next_clock;

    if (!o->n_shards || (o->n_shards == n_shards && o->map_id == map_id))
        return;
    notice(cluster,
           "the servers are not those that this worker had pushed to: it joins as a new "
           "incarnation");
    *o = (struct ps_origin){ .incarnation = clock_unix_ms(), .clock = clock };
    cluster->epoch = client_state_rejoin(cluster->state, o->incarnation);
}

static int make_link(struct cluster_client *cluster, uint32_t shard,
                     const struct hello_reply *r)
{
    struct shard_link_config config = make_link_config(cluster->options, &cluster->origin,
                                                       cluster->now_ms - cluster->started_ms);

    config.shard = shard;
    config.io = cluster->io[(shard + 1) % cluster->n_io];
    config.address = cluster->members[shard].address;
    config.hello.shard = shard % r->shards_per_node;
    config.hello.map_id = r->map_id;
    config.join.relays = r->n_nodes * r->shards_per_node > 1;
    cluster->members[shard].link =
        shard_link_new(cluster->channels, &config, &shard_link_events, cluster);
    return cluster->members[shard].link ? 0 : -ENOMEM;
}

/* All of them, or none. */
static int make_links(struct cluster_client *cluster, uint32_t n_shards,
                      const struct hello_reply *r)
{
    uint32_t i = 0;

    while (i < n_shards && !make_link(cluster, i, r))
        i++;
    if (i == n_shards)
        return 0;
    while (i-- > 0) {
        shard_link_free(cluster->members[i].link);
        cluster->members[i].link = NULL;
    }
    return -ENOMEM;
}

/* A node's shards are served by another psd: their links go there, as after every lost connection. */
static void on_moved(void *owner, uint32_t node, const struct address *from,
                     const struct address *to, uint64_t term)
{
    struct cluster_client *cluster = owner;
    uint32_t first = node * cluster->shards_per_node;
    char text[512];

    snprintf(text, sizeof text, "node %u: primary moved from %s to %s (term %" PRIu64 ")", node,
             from->text, to->text, term);
    notice(cluster, text);
    uv_mutex_lock(&cluster->addresses);
    for (uint32_t i = first; i < first + cluster->shards_per_node; i++)
        cluster->members[i].address = *to;
    cluster->moved_shard = first;
    atomic_store(&cluster->has_moved, true);
    uv_mutex_unlock(&cluster->addresses);
    for (uint32_t i = first; i < first + cluster->shards_per_node && i < cluster->n_shards; i++)
        shard_link_move(cluster->members[i].link, to);
}

/* Where each node is, to begin with. */
static int find_nodes(struct cluster_client *cluster, uint32_t n_shards,
                      const struct address *found, const struct hello_reply *r)
{
    struct hello hello = make_hello(cluster->options);
    struct group_watch_config config = { .channels = cluster->channels,
                                         .hello = &hello,
                                         .found = found,
                                         .reply = r,
                                         .moved = on_moved,
                                         .owner = cluster };
    struct err err = { 0 };
    char text[512];
    int status;

    config.servers = discovery_servers(cluster->discovery, &config.n_servers);
    status = group_watch_new(&config, &cluster->groups, &err);
    cluster->shards_per_node = r->shards_per_node;
    for (uint32_t i = 0; i < n_shards && !status; i++)
        cluster->members[i].address = *group_watch_at(cluster->groups, node_of(cluster, i));
    if (!status)
        return 0;
    status = status == -ENOMEM ? status : PS_ECLUSTER;
    snprintf(text, sizeof text, "psd at %s describes a cluster that cannot be reached: %.300s",
             found->text, err.text);
    fail(cluster, status, text);
    return status;
}

/* Links to n_shards, whose addresses are set. -ENOMEM: there are none. */
static int make_cluster(struct cluster_client *cluster, uint32_t n_shards,
                        const struct hello_reply *r)
{
    int status;

    cluster->suspects = suspects_new(n_shards);
    if (!cluster->suspects || pending_report_open(cluster->options->report, r->n_nodes))
        return -ENOMEM;
    status = client_state_set_shards(cluster->state, n_shards, r->map_id,
                                     cluster->origin.incarnation);
    if (status)
        return status;
    check_origin(cluster, n_shards, r->map_id);
    cluster->clock = cluster->origin.clock;
    status = make_links(cluster, n_shards, r);
    if (!status)
        cluster->n_shards = n_shards;
    return status;
}

static void on_found(void *owner, const struct address *address, const struct hello_reply *r)
{
    struct cluster_client *cluster = owner;
    uint32_t n_shards = r->n_nodes * r->shards_per_node;
    char text[512];

    cluster->members = memory_try_alloc(n_shards * sizeof *cluster->members);
    if (cluster->members && find_nodes(cluster, n_shards, address, r))
        return;
    if (cluster->members && !make_cluster(cluster, n_shards, r))
        return;
    snprintf(text, sizeof text, "no memory for links to the %u shards of psd at %s", n_shards,
             address->text);
    fail(cluster, -ENOMEM, text);
}

static void on_not_found(void *owner, int status, const char *sentence)
{
    fail(owner, status, sentence);
}

static const struct discovery_events discovery_events = { on_found, notice, on_not_found };

struct cluster_client *cluster_client_new(struct channel_loop *channels,
                                          const struct ps_options *options,
                                          const struct address *servers, uint32_t n_servers,
                                          struct io_thread *const *io, uint32_t n_io,
                                          struct client_state *state)
{
    struct cluster_client *cluster = memory_try_alloc(sizeof *cluster);
    struct hello hello;

    if (!cluster)
        return NULL;
    if (uv_mutex_init(&cluster->addresses)) {
        free(cluster);
        return NULL;
    }
    cluster->channels = channels;
    cluster->options = options;
    cluster->io = io;
    cluster->n_io = n_io;
    cluster->state = state;
    cluster->origin = options->origin;
    if (!cluster->origin.incarnation)
        cluster->origin.incarnation = clock_unix_ms();
    hello = make_hello(options);
    cluster->discovery = discovery_new(channels, servers, n_servers, &hello,
                                       options->connect_ms, &discovery_events, cluster);
    if (cluster->discovery)
        return cluster;
    uv_mutex_destroy(&cluster->addresses);
    free(cluster);
    return NULL;
}

void cluster_client_stop(struct cluster_client *cluster)
{
    for (uint32_t i = 0; i < cluster->n_shards; i++)
        shard_link_free(cluster->members[i].link);
    cluster->n_shards = 0;
    group_watch_free(cluster->groups);
    cluster->groups = NULL;
    discovery_free(cluster->discovery);
    cluster->discovery = NULL;
}

bool cluster_client_abandon(struct cluster_client *cluster)
{
    if (cluster->options->reader || cluster->has_pushed || cluster->options->origin.n_shards)
        return false;
    cluster->abandons = true;
    for (uint32_t i = 0; i < cluster->n_shards; i++)
        shard_link_leave(cluster->members[i].link);
    return !cluster_client_has_left(cluster);
}

bool cluster_client_has_left(const struct cluster_client *cluster)
{
    return cluster->n_left >= cluster->n_shards;
}

void cluster_client_free(struct cluster_client *cluster)
{
    if (!cluster)
        return;
    cluster_client_stop(cluster);
    suspects_free(cluster->suspects);
    uv_mutex_destroy(&cluster->addresses);
    free(cluster->members);
    free(cluster);
}

void cluster_client_beat_soon(struct cluster_client *cluster)
{
    for (uint32_t i = 0; i < cluster->n_shards; i++)
        shard_link_beat_soon(cluster->members[i].link);
}

void cluster_client_tick(struct cluster_client *cluster, uint64_t now_ms)
{
    if (!cluster->started_ms)
        cluster->started_ms = now_ms;
    cluster->now_ms = now_ms;
    if (!cluster->failed && cluster->options->is_cancelled &&
        cluster->options->is_cancelled(cluster->options->cancel_arg))
        fail(cluster, -ECANCELED, "stopped before the training began");
    if (cluster->discovery && cluster->n_shards) {
        discovery_free(cluster->discovery);
        cluster->discovery = NULL;
    }
    if (cluster->discovery)
        discovery_tick(cluster->discovery, now_ms);
    if (cluster->groups && !cluster->failed)
        group_watch_tick(cluster->groups, now_ms);
    for (uint32_t i = 0; i < cluster->n_shards && !cluster->failed; i++)
        shard_link_tick(cluster->members[i].link, now_ms);
    /* Who has pushed may come back as the same incarnation: it does not leave. */
    if (cluster->failed && cluster->has_pushed)
        cluster_client_stop(cluster);
}

bool cluster_client_is_steady(const struct cluster_client *cluster)
{
    return cluster->n_ready && cluster->n_ready == cluster->n_shards && !cluster->discovery &&
           group_watch_is_quiet(cluster->groups) && !cluster->failed && !cluster->is_leaving;
}

void cluster_client_cork(struct cluster_client *cluster)
{
    for (uint32_t i = 0; i < cluster->n_shards; i++)
        shard_link_cork(cluster->members[i].link);
}

void cluster_client_uncork(struct cluster_client *cluster)
{
    for (uint32_t i = 0; i < cluster->n_shards; i++)
        shard_link_uncork(cluster->members[i].link);
}

/* Each to its shard's link. The epoch may end meanwhile, when a link fails or is fenced; and a pull that has ended was
 * to be dropped before it came here. */
static void hand_out(struct cluster_client *cluster, struct request *r,
                     void (*take)(struct shard_link *l, struct request *r))
{
    struct request *next;

    for (uint32_t i = 0; r; r = next, i++) {
        next = r->next;
        if (i < cluster->n_shards && r->epoch == cluster->epoch && !cluster->failed &&
            !(r->pull && pull_has_ended(r)))
            take(cluster->members[i].link, r);
        else
            request_free(r);
    }
}

void cluster_client_push(struct cluster_client *cluster, struct request *first)
{
    cluster->has_pushed = true;
    if (first->tick && first->epoch == cluster->epoch)
        set_clock(cluster, first->clock + 1);
    hand_out(cluster, first, shard_link_push);
}

void cluster_client_pull(struct cluster_client *cluster, struct request *first)
{
    hand_out(cluster, first, shard_link_pull);
}

void cluster_client_drop_ended_pulls(struct cluster_client *cluster)
{
    for (uint32_t i = 0; i < cluster->n_shards; i++)
        shard_link_drop_ended_pulls(cluster->members[i].link);
}

/* To a table that no link has space for. */
static void refuse_table(struct cluster_client *cluster)
{
    struct table_reply reply = { .status = -ENOMEM };

    cluster->lacks_table = true;
    snprintf(reply.text, sizeof reply.text, "no memory for one more table");
    for (uint32_t i = 0; i < cluster->n_shards; i++)
        client_state_table_answered(cluster->state, &reply);
}

void cluster_client_table(struct cluster_client *cluster, const struct table_request *request)
{
    uint32_t i;

    cluster->lacks_table = false;
    for (i = 0; i < cluster->n_shards; i++) {
        if (shard_link_reserve_table(cluster->members[i].link)) {
            refuse_table(cluster);
            return;
        }
    }
    for (i = 0; i < cluster->n_shards; i++)
        cluster->members[i].has_table = false;
    for (i = 0; i < cluster->n_shards; i++)
        shard_link_table(cluster->members[i].link, request);
}

void cluster_client_drop_table(struct cluster_client *cluster)
{
    for (uint32_t i = 0; i < cluster->n_shards && !cluster->lacks_table; i++)
        shard_link_drop_table(cluster->members[i].link);
}

void cluster_client_leave(struct cluster_client *cluster)
{
    cluster->is_leaving = true;
    for (uint32_t i = 0; i < cluster->n_shards; i++)
        shard_link_leave(cluster->members[i].link);
}

static void put_moved(struct cluster_client *cluster, struct ps_stats *ret)
{
    uv_mutex_lock(&cluster->addresses); /* reading takes the lock */
    snprintf(ret->moved_to, sizeof ret->moved_to, "%s",
             cluster->members[cluster->moved_shard].address.text);
    uv_mutex_unlock(&cluster->addresses);
}

void cluster_client_stats(const struct cluster_client *cluster, struct ps_stats *ret)
{
    const struct counters *c = &cluster->counters;

    ret->bytes_in = load(&c->bytes_in);
    ret->bytes_out = load(&c->bytes_out);
    ret->rows_refused = load(&c->rows_refused);
    ret->reconnects = load(&c->reconnects);
    ret->resent_pushes = load(&c->resent_pushes);
    ret->rejoins = load(&c->rejoins);
    ret->foreign = load(&c->foreign);
    ret->min_clock = load(&c->min_clock);
    ret->staleness_max = load(&c->staleness_max);
    ret->pushes_lost = load(&c->pushes_lost);
    ret->skipped_clocks = load(&c->skipped_clocks);
    ret->pushes_late = load(&c->pushes_late);
    if (atomic_load(&cluster->has_moved))
        put_moved((struct cluster_client *)(uintptr_t)cluster, ret);
}

void cluster_client_shard_name(struct cluster_client *cluster, uint32_t shard, char *dst,
                               size_t n_bytes)
{
    uv_mutex_lock(&cluster->addresses);
    snprintf(dst, n_bytes, "shard %u at %s", shard, cluster->members[shard].address.text);
    uv_mutex_unlock(&cluster->addresses);
}

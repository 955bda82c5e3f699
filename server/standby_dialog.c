/*
 * In the order of a standby's life: read -> dial -> welcome -> follow -> (copy ->) rebuild -> adopt -> fetch. The
 * functions stand in the reverse order, the last step first; from `rebuild` on they are in standby_data.c and
 * standby_fetch.c.
 */
#include "server/standby_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "common/number.h"
#include "server/cluster_file.h"
#include "server/replication/arithmetic.h"
#include "server/replication/log_end.h"
#include "server/standby_role.h"
#include "server/standby_session.h"

#define CLUSTER_NAMED 2u /* nodes */
#define CLUSTER_NAME_MAX 70u

/* --- what the primary says --- */

/* Does anything have to be given up? -EDOM: more than a rebuild up to `keep` can do. */
static int check_keep(struct standby *s, const struct follow_reply *reply, bool *ret_drops)
{
    *ret_drops = false;
    for (uint32_t i = 0; i < standby_n_shards(s); i++) {
        bool drops = reply->keep[i] < s->last[i];

        if (drops && !reply->keep[i])
            return -EDOM;
        *ret_drops = *ret_drops || drops;
        s->keep[i] = drops || s->is_loaded ? reply->keep[i] : UINT64_MAX;
    }
    return 0;
}

/* Were records that are given up acknowledged? What the primary says is of the term before its newest one, unless a
 * loss was accepted. A primary with a standby in sync acknowledges nothing before that one has it. */
static const char *describe_acknowledged(const struct standby *s,
                                         const struct follow_reply *reply) ON_MAIN
{
    const struct terms *t = &s->theirs;
    const bool is_next = t->n > 1 && t->items[t->n - 2].term == terms_last(&s->terms);

    if (reply->begun == FOLLOW_BEGUN_WHOLE && is_next)
        return s->was_primary ? "none of them had been acknowledged"
                              : "none of them had been acknowledged, unless the primary's data "
                                "directory is an older copy";
    if (reply->begun == FOLLOW_BEGUN_SEEN && is_next && s->was_primary && !s->was_alone)
        return "none of them had been acknowledged";
    if (reply->begun == FOLLOW_BEGUN_LOSSY)
        return "some of them may have been acknowledged: a person has made that psd the "
               "primary with --accept-loss";
    if (s->was_alone)
        return "some of them may have been acknowledged: this psd had gone on without its "
               "standby";
    return "whether some of them had been acknowledged is not known";
}

static void log_dropped(const struct standby *s, const struct follow_reply *reply) ON_MAIN
{
    for (uint32_t i = 0; i < standby_n_shards(s); i++)
        if (reply->keep[i] < s->last[i])
            log_line_warn("shard %" PRIu32 ": records %" PRIu64 " to %" PRIu64
                          " are given up: the primary does not have them (its term is %" PRIu64
                          ", this log ends in term %" PRIu64 "); %s",
                          i, reply->keep[i] + 1, s->last[i], reply->term, terms_last(&s->terms),
                          describe_acknowledged(s, reply));
}

/* Records in memory alone are dropped as they are; of what is applied a shard gets rid by a new life alone. */
static bool is_applied_beyond(const struct standby *s, const struct follow_reply *reply) ON_MAIN
{
    struct shard_follower_view view;

    for (uint32_t i = 0; i < standby_n_shards(s); i++) {
        standby_see_shard(s, i, &view);
        if (view.applied > reply->keep[i])
            return true;
    }
    return false;
}

static void go_on(struct standby *s, const struct follow_reply *reply) ON_MAIN
{
    bool drops;

    if (check_keep(s, reply, &drops)) {
        s->wants_copy = true;
        standby_follow(s);
        return;
    }
    if (drops)
        log_dropped(s, reply);
    if (!s->is_loaded) {
        standby_rebuild(s);
    } else if (is_applied_beyond(s, reply)) {
        standby_session_drop(&s->session);
        s->config.events->restart(s->config.node, "records are given up");
    } else {
        standby_adopt(s);
    }
}

static void copy_all(struct standby *s) ON_MAIN
{
    if (!s->is_loaded) {
        standby_begin_copy(s);
        return;
    }
    standby_session_drop(&s->session);
    s->config.events->restart(s->config.node, "the primary has to be copied");
}

static void take_over(struct standby *s) ON_MAIN
{
    log_line_warn("%s says that this standby has to take over: it has lost records that this "
                  "one has acknowledged",
                  s->config.primary);
    standby_session_drop(&s->session);
    s->is_promoting = true;
    s->promises = STANDBY_OTHER_IS_DEAD;
}

static int refuse(struct standby *s, int status, const char *why) ON_MAIN
{
    s->is_moved = status == PS_EMOVED;
    s->is_refusing = !s->is_moved;
    return standby_session_refuse(&s->session, status, why);
}

/* A promotion elsewhere counts more than what the old primary says. */
static int check_term(struct standby *s, const struct follow_reply *reply) ON_MAIN
{
    char why[256];
    uint64_t mine = s->terms.history == reply->history ? terms_last(&s->terms) : 0;

    if (reply->n_shards != standby_n_shards(s))
        return refuse(s, PS_EPROTO, "its answer is of another number of shards");
    if (reply->term >= mine)
        return 0;
    snprintf(why, sizeof why,
             "it is the primary of term %" PRIu64 ", and this standby has seen term %" PRIu64
             ": another psd is the primary",
             reply->term, mine);
    return refuse(s, PS_ECLUSTER, why);
}

static void note_arithmetic(struct standby *s, const char *theirs) ON_MAIN
{
    char ours[ARITHMETIC_MAX], note[STANDBY_SETTINGS_NOTE_MAX] = "";

    arithmetic_fingerprint(ours);
    if (standby_settings_arithmetic_differs(theirs, ours, note) && strcmp(note, s->note) != 0)
        log_line_warn("%s: %s", s->config.primary, note);
    snprintf(s->note, sizeof s->note, "%s", note);
}

static int on_follow(struct standby *s, const struct follow_reply *reply) ON_MAIN
{
    char why[MESSAGE_TEXT_MAX];
    int status;

    snprintf(why, sizeof why, "%.250s",
             reply->text[0] ? reply->text : status_text(reply->status));
    if (reply->status)
        return refuse(s, reply->status, why);
    s->is_moved = false;
    status = check_term(s, reply);
    if (!status)
        status = terms_take(&s->theirs, reply->history, reply->terms, reply->n_terms,
                            reply->n_shards);
    if (status)
        return s->session.refusal[0] ? status
                                     : refuse(s, status, "its list of terms makes no sense");
    s->is_refusing = false;
    note_arithmetic(s, reply->cpu);
    s->term = reply->term;
    s->patience_ms = reply->patience_ms;
    if (reply->action == FOLLOW_GO_ON)
        go_on(s, reply);
    else if (reply->action == FOLLOW_COPY)
        copy_all(s);
    else
        take_over(s);
    return s->session.state == SESSION_WELCOME ? 0 : UV_ECANCELED;
}

static int on_reply(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct standby *s = owner;
    struct follow_reply *follow_reply;
    struct file_reply file_reply;
    int status = PS_EPROTO;

    enter_main();
    if (header->type == FRAME_FOLLOW_REPLY && s->state == STANDBY_DIALLING && !s->is_working) {
        follow_reply = memory_alloc(sizeof *follow_reply);
        status =
            message_read_follow_reply(header, head, body, header->body_bytes, follow_reply);
        if (!status)
            status = on_follow(s, follow_reply);
        free(follow_reply);
    } else if (header->type == FRAME_FILE_REPLY && s->state == STANDBY_COPYING) {
        status = message_read_file_reply(header, head, body, header->body_bytes, &file_reply);
        if (!status)
            status = standby_on_file(s, &file_reply);
    }
    if (status && status != UV_ECANCELED && !s->session.refusal[0])
        (void)standby_session_refuse(&s->session, status, "its answer makes no sense");
    return status;
}

/* --- the cluster --- */

static bool is_same_map(const struct hello_reply *a, const struct hello_reply *b)
{
    return a->map_id == b->map_id && a->n_nodes == b->n_nodes && a->node == b->node &&
           a->shards_per_node == b->shards_per_node;
}

static void on_cluster_written(struct standby *s) ON_MAIN
{
    if (s->err.status)
        standby_fail(s);
    else
        s->config.events->restart(s->config.node,
                                  "its place in the primary's cluster is written down");
}

static int write_cluster(struct standby *s, struct err *err)
{
    int status =
        cluster_file_write(s->config.files, s->config.settings->data_dir,
                           (const struct hello_reply *)(const void *)s->piece.bytes, err);

    return status;
}

static int refuse_shards(struct standby *s, const struct hello_reply *theirs) ON_MAIN
{
    const uint32_t ours = s->config.settings->shards;
    char why[256];

    snprintf(why, sizeof why,
             "it has %" PRIu32 " shard%s, and this standby has %" PRIu32
             ": give both the same --shards",
             theirs->shards_per_node, NUMBER_PLURAL(theirs->shards_per_node), ours);
    return refuse(s, PS_ECLUSTER, why);
}

/* By its first nodes. */
static void name_cluster(const struct hello_reply *map, char dst[static CLUSTER_NAME_MAX])
{
    const uint32_t n = map->n_nodes < CLUSTER_NAMED ? map->n_nodes : CLUSTER_NAMED;
    size_t at = 0;

    for (uint32_t i = 0; i < n && at < CLUSTER_NAME_MAX; i++)
        at += (size_t)snprintf(dst + at, CLUSTER_NAME_MAX - at, "%s%s", i ? "," : "",
                               map->nodes[i]);
    if (map->n_nodes > n && at < CLUSTER_NAME_MAX)
        snprintf(dst + at, CLUSTER_NAME_MAX - at, " and %" PRIu32 " more", map->n_nodes - n);
}

/* The primary of before, which had this standby's name of the cluster: with an empty directory it has its own. */
static bool has_lost_the_name(const struct standby *s, const struct hello_reply *theirs) ON_MAIN
{
    return !s->config.settings->cluster.n && theirs->n_nodes == 1 &&
           s->config.map->n_nodes == 1 && s->terms.history &&
           strcmp(s->terms.peer, s->config.primary) == 0;
}

static int refuse_cluster(struct standby *s, const struct hello_reply *theirs) ON_MAIN
{
    const struct hello_reply *ours = s->config.map;
    char why[256], their_name[CLUSTER_NAME_MAX] = "", our_name[CLUSTER_NAME_MAX] = "";

    name_cluster(theirs, their_name);
    name_cluster(ours, our_name);
    if (has_lost_the_name(s, theirs)) {
        snprintf(
            why, sizeof why,
            "its cluster is %.28s, this standby's data is of %.28s: if the primary's disk is "
            "lost, stop it and psctl promote --server %.47s; else give this one an empty "
            "--data-dir",
            their_name, our_name, s->config.own_address);
        return refuse(s, PS_ECLUSTER, why);
    }
    snprintf(why, sizeof why,
             "it is node %" PRIu32 " of cluster %s (shards a node: %" PRIu32
             "); this standby is node %" PRIu32 " of cluster %s (%" PRIu32 "; %s)",
             theirs->node, their_name, theirs->shards_per_node, ours->node, our_name,
             ours->shards_per_node,
             s->config.settings->cluster.n ? "--cluster, --node"
                                           : "the data directory's CLUSTER");
    return refuse(s, PS_ECLUSTER, why);
}

/* Else its CLUSTER is of a primary that it has never followed. */
static bool has_records(const struct standby *s) ON_MAIN
{
    bool has = s->terms.history != 0;

    for (uint32_t i = 0; i < standby_n_shards(s); i++)
        has = has || s->last[i];
    return has;
}

/* Without --cluster a standby is of its primary's cluster, whatever that is called. */
static int note_cluster(struct standby *s, const struct hello_reply *theirs) ON_MAIN
{
    const struct settings *settings = s->config.settings;
    uint8_t *dst;

    if (!settings->shards_are_chosen && settings->shards != theirs->shards_per_node)
        return refuse_shards(s, theirs);
    if (settings->cluster.n || (s->has_cluster && has_records(s)) || s->is_loaded)
        return refuse_cluster(s, theirs);
    bytes_consume(&s->piece, bytes_len(&s->piece));
    dst = bytes_reserve(&s->piece, sizeof *theirs);
    if (!dst)
        return -ENOMEM;
    memcpy(dst, theirs, sizeof *theirs);
    bytes_commit(&s->piece, sizeof *theirs);
    standby_session_drop(&s->session);
    standby_start_job(s, write_cluster, on_cluster_written);
    return UV_ECANCELED;
}

static int on_welcome(void *owner, const struct hello_reply *reply)
{
    struct standby *s = owner;

    enter_main();
    if (!is_same_map(reply, s->config.map))
        return note_cluster(s, reply);
    s->config.events->welcomed(s->config.node);
    standby_follow(s);
    return s->session.state == SESSION_WELCOME ? 0 : UV_ECANCELED;
}

static void on_lost(void *owner, const char *why)
{
    struct standby *s = owner;

    enter_main();
    s->is_moved = s->is_moved || s->session.is_moved;
    s->is_refusing = s->is_refusing && s->session.refusal[0] && !s->session.is_moved;
    s->is_refused = s->is_refusing || s->session.is_refused;
    if (s->state == STANDBY_DIALLING && s->session.ended_instead)
        why = "it ended the connection when it was asked to be followed: is it an older psd?";
    if (s->session.has_no_data && !s->terms.history)
        why = "both are standbys, and neither has data: start one of them without --standby";
    if (s->state == STANDBY_FOLLOWING)
        standby_stop_following(s, why);
    else if (s->state == STANDBY_DIALLING)
        standby_dial_later(s, why);
    else if (s->state == STANDBY_COPYING && !s->is_working)
        standby_fail_copy(s, why);
    else
        standby_set_why(s, why); /* what is under way ends first */
}

static const struct standby_session_events session_events = { on_welcome, on_reply, on_lost };

static void dial(struct standby *s) ON_MAIN
{
    struct hello hello;

    standby_hello_of(s, &hello);
    standby_session_dial(&s->session, &s->primary, &hello);
}

/* --- what the directory holds --- */

static int read_directory(struct standby *s, struct err *err)
{
    const char *data_dir = s->config.settings->data_dir;
    struct hello_reply *map = memory_alloc(sizeof *map);
    int status = cluster_file_read(s->config.files, data_dir, map, err);

    s->has_cluster = map->n_nodes > 0;
    free(map);
    if (status)
        return status;
    status = terms_read(s->config.files, data_dir, standby_n_shards(s), &s->terms, err);
    if (status == PS_ECORRUPT) {
        log_line_warn("%s: what the directory holds is copied anew", err->text);
        status = 0;
        s->terms.n_shards = standby_n_shards(s);
    }
    s->was_standby = s->terms.role == TERMS_STANDBY;
    s->ended_in_sync = s->was_standby && s->terms.in_sync;
    s->was_primary =
        standby_role_was_primary(s->config.files, data_dir, &s->terms, &s->was_alone);
    s->terms.in_sync = false; /* the primary may have gone on alone since this psd's end */
    if (!status)
        status = log_end_read(s->config.files, data_dir, standby_n_shards(s), &s->epoch,
                              s->last, err);
    return status;
}

static void on_read(struct standby *s) ON_MAIN
{
    if (s->err.status) {
        standby_fail(s);
        return;
    }
    if (s->epoch != s->terms.timeline) /* a start with --at or --restore, meanwhile */
        s->terms.history = 0;
    standby_set_state(s, STANDBY_DIALLING);
    dial(s);
}

/* --- for the node --- */

int standby_start(const struct standby_config *config, struct standby **ret, struct err *err)
{
    struct standby *s;
    struct address primary;
    int status = address_parse(config->primary, strlen(config->primary), &primary, err);

    if (status)
        return status;
    if (strcmp(config->primary, config->own_address) == 0)
        return err_set(err, PS_ESETTING,
                       "standby: %.128s is this psd's own address: give that of its primary",
                       config->primary);
    s = memory_alloc(sizeof *s);
    s->config = *config;
    s->primary = primary;
    s->last = memory_alloc((standby_n_shards(s) + 1) * sizeof *s->last);
    s->keep = memory_alloc((standby_n_shards(s) + 1) * sizeof *s->keep);
    s->tasks = memory_alloc((standby_n_shards(s) + 1) * sizeof *s->tasks);
    for (uint32_t i = 0; i < standby_n_shards(s); i++)
        s->tasks[i] = (struct standby_task){ .standby = s, .index = i };
    s->work.data = s;
    s->copy.fd = -1;
    standby_session_init(&s->session, config->loop, &session_events, s);
    s->session.channels.tls = config->settings->tls;
    standby_set_state(s, STANDBY_READING);
    standby_start_job(s, read_directory, on_read);
    *ret = s;
    return 0;
}

void standby_tick(struct standby *s, uint64_t now_ms)
{
    standby_session_tick(&s->session, now_ms);
    if (s->state == STANDBY_FOLLOWING && !s->n_outstanding)
        standby_watch_shards(s);
    if (s->doubt_ms)
        standby_end_doubt(s, now_ms);
    if (s->state == STANDBY_SEALING)
        standby_try_begin_term(s);
    if (s->is_promoting)
        standby_begin_promotion(s);
    else if (s->config.coordination)
        standby_watch_primary(s, now_ms);
    if (s->state == STANDBY_DIALLING && !s->is_promoting && s->session.state == SESSION_IDLE &&
        !s->is_working && !s->n_outstanding && now_ms >= s->retry_ms)
        dial(s);
}

static void see_shards(const struct standby *s, struct standby_view *ret) ON_MAIN
{
    uint64_t now_ms = clock_mono_ms();
    struct shard_follower_view view;

    ret->is_exact = true;
    for (uint32_t i = 0; i < standby_n_shards(s); i++) {
        standby_see_shard(s, i, &view);
        ret->is_exact = ret->is_exact && view.is_exact;
        if (view.appended > view.applied)
            ret->lag_records += view.appended - view.applied;
        if (view.behind_ms && now_ms > view.behind_ms + ret->lag_ms)
            ret->lag_ms = now_ms - view.behind_ms;
    }
}

void standby_see(const struct standby *s, struct standby_view *ret)
{
    *ret =
        (struct standby_view){ .state = s->state,
                               .is_answering = standby_is_answering(s),
                               .is_refused = s->is_refused,
                               .is_moved = s->is_moved,
                               .has_data = s->is_working ? s->found.history : s->terms.history,
                               .is_useless = s->is_useless,
                               .is_promoting = s->is_promoting,
                               .in_sync = standby_noted_sync(s),
                               .may_lack = !standby_noted_sync(s) || standby_lacks_by_claim(s),
                               .is_unheard = standby_is_unheard(s),
                               .term = s->term ? s->term : standby_noted_term(s),
                               .since_unix_ms = s->since_unix_ms,
                               .n_bytes = s->is_working ? s->found.n_bytes : s->copy.n_bytes,
                               .n_total_bytes = s->is_working ? s->found.n_total_bytes
                                                              : s->copy.n_total_bytes };
    if (s->state != STANDBY_PROMOTING || !s->config.coordination ||
        !coordination_is_waiting(s->config.coordination, ret->why))
        snprintf(ret->why, sizeof ret->why, "%s", s->why);
    snprintf(ret->note, sizeof ret->note, "%s", s->note);
    standby_describe_hindrance(s, ret->hindrance, sizeof ret->hindrance);
    if (s->is_loaded)
        see_shards(s, ret);
}

enum follow_begun standby_begun_with(const struct standby *s)
{
    return s->begun_with;
}

bool standby_is_handed_over(const struct standby *s)
{
    return s->promises & STANDBY_HANDED_OVER;
}

/* --- the end --- */

void standby_stop(struct standby *s, void (*done)(void *arg), void *arg)
{
    standby_set_state(s, STANDBY_STOPPED);
    standby_session_close(&s->session);
    s->stopped = done;
    s->stopped_arg = arg;
    standby_end_if_stopped(s);
}

void standby_free(struct standby *s)
{
    if (!s)
        return;
    standby_session_deinit(&s->session);
    copy_deinit(&s->copy);
    bytes_deinit(&s->piece);
    bytes_deinit(&s->later);
    terms_deinit(&s->terms);
    terms_deinit(&s->theirs);
    free(s->tasks);
    free(s->keep);
    free(s->last);
    free(s);
}

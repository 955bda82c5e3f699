/*
 * Who serves: a start, the peer of the last run, the terms that this psd begins, and the claim with --coord.
 */
#include "server/standby_server_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "server/peer_query.h"
#include "server/standby_role.h"
#include "server/standby_settings.h"

#define ASK_EVERY_MS 2000u
#define FOLLOWS_WITHIN_MS \
    5000u /* a standby that lives, and has heard that its primary is back */

/* --- a term --- */

static void log_serving(const struct standby_server *s)
{
    if (s->terms.n)
        log_line_info("standby: this psd is the primary, of term %" PRIu64 "%s%.100s",
                      terms_last(&s->terms), s->terms.peer[0] ? ", and its standby is " : "",
                      s->terms.peer);
}

/* What waits for the term that was to begin: it has, or why not. */
static void end_begin(struct standby_server *s, const struct err *err) ON_MAIN
{
    void (*begun)(struct standby_server * s, const struct err *err) = s->begun;

    s->begun = NULL;
    if (begun)
        begun(s, err);
}

static void serve_term(struct standby_server *s) ON_MAIN
{
    s->write_err = (struct err){ 0 };
    s->state = SERVER_SERVING;
    sync_init(&s->sync, s->config.settings->standby_patience_ms, false, clock_mono_ms());
    log_serving(s);
    s->config.serve(s->config.owner);
    if (!s->begun && s->terms.peer[0])
        standby_server_ask_shards(s, SHARD_STANDBY_HOLD, NULL); /* it may come back */
    end_begin(s, &s->write_err);
}

/* Another claim is there: it is read before anything is tried again. */
static void on_term_claimed(void *server, const struct err *err)
{
    struct standby_server *s = server;

    enter_main();
    s->is_claiming = false;
    if (!err->status) {
        serve_term(s);
        return;
    }
    log_line_warn("coord: this psd does not begin its term: %s", err->text);
    s->state = SERVER_ASKING;
    s->has_read_claim = false;
    end_begin(s, err);
}

static void on_term_written(void *server)
{
    struct standby_server *s = server;

    enter_main();
    if (s->job.err.status) {
        s->write_err = s->job.err;
        log_line_error("the new term is not written, and no worker is served: %s",
                       s->job.err.text);
        s->state = SERVER_AWAITED; /* the tick tries again */
        s->was_in_sync = false;
        s->asked_ms = clock_mono_ms();
        end_begin(s, &s->write_err);
        return;
    }
    if (s->coordination)
        standby_server_claim(s, on_term_claimed);
    else
        serve_term(s);
}

/* Above the claim's, too: the disk may be another one. */
static uint64_t next_term(const struct standby_server *s) ON_MAIN
{
    const struct claim *c = s->coordination ? coordination_claim(s->coordination) : NULL;
    uint64_t newest = terms_last(&s->terms);

    newest = s->peer_term > newest ? s->peer_term : newest;
    newest = c && c->term > newest ? c->term : newest;
    return s->terms.role == TERMS_STANDBY ? terms_promoted(newest, terms_random())
                                          : terms_restarted(newest, terms_random());
}

/* A term that begins behind each shard's newest record; once a run, however often its write fails. */
void standby_server_begin_term(struct standby_server *s,
                               void (*begun)(struct standby_server *s, const struct err *err))
{
    s->begun = begun;
    if (!s->has_begun) {
        standby_shards_next(s->shards, s->request.first);
        terms_begin(&s->terms, next_term(s), s->request.first);
        s->begun_with = s->accepts_loss  ? FOLLOW_BEGUN_LOSSY
                        : s->log_has_all ? FOLLOW_BEGUN_WHOLE
                                         : FOLLOW_BEGUN_UNKNOWN;
    }
    s->has_begun = true;
    s->state = SERVER_BEGINNING;
    s->terms.role = TERMS_PRIMARY;
    s->terms.in_sync = false;
    s->terms.is_durable = s->config.settings->durability == WAL_FSYNC;
    standby_server_write_terms(s, on_term_written);
}

/* --- the peer of the last run --- */

/* In sync, it is asked before this psd goes on alone: what it takes over with is sealed by now. */
static void note_rising(struct standby_server *s, const struct err *err,
                        const struct peer_answer *answer) ON_MAIN
{
    const bool rises = s->state == SERVER_SERVING && s->sync.state == SYNC_IN && !err->status &&
                       answer->term && !answer->primary[0];

    if (rises && !s->rises_ms)
        log_line_warn(
            "standby %.128s is becoming the primary: replies wait until it is, or says "
            "that it is not",
            s->terms.peer);
    s->rises_ms = !rises ? 0 : s->rises_ms ? s->rises_ms : clock_mono_ms();
}

static void await(struct standby_server *s) ON_MAIN
{
    char awaited[DOUBT_MAX + 40];

    s->state = SERVER_AWAITED;
    standby_server_describe_awaited(s, awaited, sizeof awaited);
    log_line_warn("%s (psctl promote --accept-loss serves at once)", awaited);
}

void standby_server_note_older(struct standby_server *s, uint64_t peer_term)
{
    const bool was_older = s->is_older;

    s->is_older = s->was_in_sync = true;
    s->peer_term = peer_term;
    if (!was_older)
        await(s);
}

/* It knows a promotion that this psd has not seen, to a third psd. With --coord the claim says so. */
static bool names_later_primary(const struct standby_server *s,
                                const struct peer_answer *answer)
{
    return !s->coordination && answer->primary[0] && !answer->is_primary &&
           strcmp(answer->primary, s->config.own_address) != 0 &&
           answer->term > terms_last(&s->terms) &&
           !terms_is_one_reign(answer->term, terms_last(&s->terms));
}

/* It follows this psd, or did, and knows a term that this psd had begun and has no more. */
static bool names_newer_self(const struct standby_server *s, const struct peer_answer *answer)
{
    return !s->accepts_loss && !s->has_begun && answer->primary[0] && !answer->is_primary &&
           answer->term > terms_last(&s->terms) &&
           terms_is_one_reign(answer->term, terms_last(&s->terms));
}

/* All that was acknowledged is here, unless this directory is an older copy, and the standby, which would know, does
 * not come: it says that it is one, or, where a claim says who is the primary, it says anything or nothing. Where the
 * service has lost the claim, it may have taken over. */
static bool may_go_on_without(const struct standby_server *s, const struct err *err,
                              const struct peer_answer *answer) ON_MAIN
{
    const bool is_late = clock_mono_ms() > s->since_ms + FOLLOWS_WITHIN_MS;

    if (!s->log_has_all || s->is_older)
        return false;
    if (s->coordination && coordination_claim(s->coordination))
        return err->status || is_late;
    return !err->status && answer->primary[0] && !answer->is_primary && is_late;
}

static void on_peer_answer(void *server, const struct err *err,
                           const struct peer_answer *answer)
{
    struct standby_server *s = server;
    char sentence[256];

    enter_main();
    s->asked_ms = clock_mono_ms();
    if (s->state != SERVER_ASKING && s->state != SERVER_AWAITED && s->state != SERVER_SERVING &&
        s->state != SERVER_HANDED_OVER)
        return;
    if (!err->status && answer->is_primary && answer->term > terms_last(&s->terms)) {
        snprintf(sentence, sizeof sentence, "%.128s is the primary, of term %" PRIu64,
                 s->terms.peer, answer->term);
        standby_server_depose_for_good(s, sentence);
        return;
    }
    if (!err->status && names_later_primary(s, answer)) {
        snprintf(sentence, sizeof sentence,
                 "%.100s follows %.100s, the primary of term %" PRIu64, s->terms.peer,
                 answer->primary, answer->term);
        snprintf(s->terms.peer, sizeof s->terms.peer, "%s", answer->primary);
        standby_server_depose_for_good(s, sentence);
        return;
    }
    note_rising(s, err, answer);
    if (s->state == SERVER_SERVING || s->state == SERVER_HANDED_OVER || s->is_given_over)
        return;
    if (!err->status && names_newer_self(s, answer)) {
        standby_server_note_older(s, answer->term);
        return;
    }
    /* A term of this psd, above that one's, would make this directory the newer one. The tick follows it. */
    if (standby_server_claim_of_another(s))
        return;
    if (!s->was_in_sync || may_go_on_without(s, err, answer)) {
        standby_server_begin_term(s, NULL);
        return;
    }
    if (s->state == SERVER_ASKING)
        await(s);
}

void standby_server_ask_peer(struct standby_server *s)
{
    const uint32_t wait_ms = s->state < SERVER_SERVING ? PEER_QUERY_MS : PEER_QUERY_SOON_MS;
    const struct peer_answer nothing = { 0 };
    struct err err = { 0 };

    s->asked_ms = clock_mono_ms();
    if (peer_query_start(&s->query, &s->channels, s->terms.peer, s->config.own_address,
                         s->config.settings->token, s->config.welcome->node, wait_ms,
                         on_peer_answer, s, &err))
        on_peer_answer(s, &err, &nothing);
}

/* --- with --coord --- */

/* The claim is known. */
static void begin_by_claim(struct standby_server *s) ON_MAIN
{
    const struct claim *c = coordination_claim(s->coordination);

    s->has_read_claim = true;
    /* TERMS has a primary's term before the claim has it: a lower one is of a directory that was put back. */
    s->is_foreign = c && !s->has_begun &&
                    (c->history != s->terms.history || c->term > terms_last(&s->terms));
    if (!s->terms.history)
        terms_begin_history(&s->terms, terms_random(), s->terms.timeline, s->n_shards);
    if (s->is_foreign) {
        snprintf(s->terms.peer, sizeof s->terms.peer, "%s", c->standby);
        s->was_in_sync = true;
        await(s);
        return;
    }
    if (c) /* with fsync, too: a copy of this directory of the same term may lack what that one has */
        s->was_in_sync = c->in_sync;
    if (c && c->standby[0])
        snprintf(s->terms.peer, sizeof s->terms.peer, "%s", c->standby);
    if ((!c || s->was_in_sync) && s->terms.peer[0])
        standby_server_ask_peer(s);
    else
        standby_server_begin_term(s, NULL);
}

/* A start that finds another primary named, whose history is not that of the data here: as its standby this psd would
 * give all of it up, and the name of the cluster may be the wrong one. */
static bool has_other_data(const struct standby_server *s, const struct claim *c) ON_MAIN
{
    bool has_records = false;

    for (uint32_t i = 0; i < s->n_shards; i++)
        has_records = has_records || atomic_load(&standby_shards_view(s->shards, i)->appended);
    return s->state == SERVER_ASKING && !s->has_begun && has_records &&
           c->history != s->terms.history;
}

static void note_other_data(struct standby_server *s, const struct claim *c) ON_MAIN
{
    if (!s->has_other_data)
        log_line_error(
            "coord: %.100s is the primary there, and the data here is not that of its "
            "cluster: is the name behind the slash right? No worker is served; with "
            "--standby %.100s and an empty --data-dir this psd follows",
            c->primary, c->primary);
    s->has_other_data = true;
}

/* Who is named as the primary is it: nobody else. Once it is known, a start goes on. */
static void check_claim(struct standby_server *s) ON_MAIN
{
    const struct claim *c = standby_server_claim_of_another(s);
    char sentence[256];

    if (!s->coordination || s->is_closed || s->is_claiming || standby_server_is_busy(s) ||
        s->request.step > FOLLOW_LEAVING || s->state == SERVER_OFF ||
        s->state == SERVER_DEPOSED)
        return;
    if (c && has_other_data(s, c)) {
        note_other_data(s, c);
        return;
    }
    s->has_other_data = false;
    if (c) {
        snprintf(sentence, sizeof sentence,
                 "the coordination service names %.100s as the primary, of term %" PRIu64 "%s",
                 c->primary, c->term,
                 coordination_is_own(s->coordination) ? ": another psd with this one's name"
                                                      : "");
        standby_server_order(s, SHARD_STANDBY_SEAL);
        if (!coordination_is_own(s->coordination))
            snprintf(s->terms.peer, sizeof s->terms.peer, "%s", c->primary);
        standby_server_depose_for_good(s, sentence);
    } else if (s->state == SERVER_ASKING && !s->has_read_claim &&
               coordination_is_known(s->coordination)) {
        begin_by_claim(s);
    }
}

static void on_claim(void *server)
{
    enter_main();
    check_claim(server);
}

struct coordination *standby_server_coordinate(struct standby_server *s)
{
    const struct settings *settings = s->config.settings;
    struct coordination_config config = { .loop = s->config.loop,
                                          .open = settings->open_coord,
                                          .service = settings_coord(settings),
                                          .group = (uint32_t)s->config.welcome->node,
                                          .own_address = s->config.own_address,
                                          .on_change = on_claim,
                                          .owner = s };

    config.is_placed = s->config.has_map;
    config.cluster.n_nodes = s->config.welcome->n_nodes;
    config.cluster.n_shards = settings->shards;
    standby_settings_shared(settings, config.cluster.settings);
    return coordination_new(&config);
}

/* --- the start --- */

static int read_terms(struct standby_server *s, struct err *err)
{
    const uint64_t now_ms = clock_mono_ms();

    s->since_ms = now_ms;
    sync_init(&s->sync, s->config.settings->standby_patience_ms, false, now_ms);
    s->terms.n_shards = s->n_shards;
    if (standby_server_data_dir(s)[0] &&
        terms_read(s->config.files, standby_server_data_dir(s), s->n_shards, &s->terms, err))
        return err->status;
    s->had_standby = s->terms.history && s->terms.peer[0];
    s->terms.ack = (enum terms_ack)s->config.settings->standby_ack;
    return 0;
}

int standby_server_begin_promoted(struct standby_server *s, enum follow_begun begun_with,
                                  bool is_handed_over, struct err *err)
{
    if (read_terms(s, err))
        return err->status;
    s->is_handed_over = is_handed_over;
    s->begun_with = begun_with;
    s->has_begun = true;
    s->state = SERVER_SERVING;
    log_serving(s);
    s->config.serve(s->config.owner);
    if (s->terms.peer[0])
        standby_server_ask_shards(s, SHARD_STANDBY_HOLD, NULL); /* it may come back */
    return 0;
}

int standby_server_begin(struct standby_server *s, uint64_t timeline, struct err *err)
{
    bool names_partner = false;
    int status = read_terms(s, err);

    if (!status && standby_server_data_dir(s)[0])
        status = standby_role_names_partner(s->config.files, s->config.settings, &s->terms,
                                            &names_partner, err);
    if (status)
        return status;
    s->log_has_all = s->terms.role == TERMS_PRIMARY && s->terms.is_durable;
    s->was_in_sync = s->terms.history && s->terms.timeline == timeline &&
                     (s->terms.in_sync || s->terms.role == TERMS_STANDBY || names_partner);
    if (!s->terms.history) {
        s->terms.timeline = timeline;
    } else if (s->terms.timeline != timeline) {
        terms_begin_history(&s->terms, terms_random(), timeline, s->n_shards);
    }
    if (s->coordination) {
        s->state = SERVER_ASKING;
        check_claim(s);
    } else if (!s->terms.history) {
        s->state = SERVER_SERVING;
        s->config.serve(s->config.owner);
    } else if (!s->terms.peer[0]) {
        standby_server_begin_term(s, NULL);
    } else {
        s->state = SERVER_ASKING;
        standby_server_ask_peer(s);
    }
    return 0;
}

/* --- the tick --- */

/* Awaited: the peer is asked again and again; without it only where a person, or a write that failed, says so. */
static void tick_waiting(struct standby_server *s, uint64_t now_ms) ON_MAIN
{
    if (s->state != SERVER_AWAITED || standby_server_is_busy(s) || s->is_foreign ||
        s->request.step > FOLLOW_LEAVING)
        return;
    if (now_ms < s->asked_ms + ASK_EVERY_MS)
        return;
    s->asked_ms = now_ms;
    if (s->was_in_sync)
        standby_server_ask_peer(s);
    else
        standby_server_begin_term(s, NULL);
}

/* A fetch may have named a greater term. */
static void check_term(struct standby_server *s) ON_MAIN
{
    const uint64_t term = standby_shards_greater_term(s->shards);
    char sentence[256];

    if (term <= terms_last(&s->terms))
        return;
    standby_server_order(s, SHARD_STANDBY_SEAL);
    if (s->job.is_running) /* it may write TERMS, as the node does for one that is deposed */
        return;
    snprintf(sentence, sizeof sentence,
             "term %" PRIu64 " is over, a standby names %" PRIu64
             ": another psd is the primary",
             terms_last(&s->terms), term);
    standby_server_depose(s, sentence);
}

void standby_server_check_terms(struct standby_server *s)
{
    check_term(s);
    check_claim(s);
}

void standby_server_tick_term(struct standby_server *s, uint64_t now_ms)
{
    tick_waiting(s, now_ms);
}

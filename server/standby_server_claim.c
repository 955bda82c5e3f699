/* What a primary claims of the coordination service (coordination.h): its term, and whether its standby is in sync. */
#include "server/standby_server_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/log_line.h"

static const struct err *err_is_moved(struct err *err)
{
    err_set(err, -EEXIST, "the coordination service names another psd as the primary");
    return err;
}

/* As `terms` has it: a term that begins, or whether the standby is in sync. */
static void claim(struct standby_server *s, void (*done)(void *server, const struct err *err))
    ON_MAIN
{
    struct coordination_claim claim = { .term = terms_last(&s->terms),
                                        .history = s->terms.history,
                                        .in_sync = s->terms.in_sync };

    if (s->state == SERVER_SERVING)
        snprintf(claim.standby, sizeof claim.standby, "%s", s->terms.peer);
    s->is_claiming = true;
    coordination_write(s->coordination, &claim, done, s);
}

/* A claim that is known and names another psd. */
static const struct coordination_claim *claim_of_another(const struct standby_server *s) ON_MAIN
{
    const struct coordination_claim *c =
        s->coordination ? coordination_claim(s->coordination) : NULL;

    return c && !coordination_is_own(s->coordination) ? c : NULL;
}

/* Another claim is there: it is read before anything is tried again. */
static void on_term_claimed(void *server, const struct err *err)
{
    struct standby_server *s = server;

    enter_main();
    s->is_claiming = false;
    if (!err->status) {
        s->steps->serve_term(s);
        return;
    }
    log_line_warn("coord: this psd does not begin its term: %s", err->text);
    s->state = SERVER_ASKING;
    s->has_read_claim = false;
    s->request.err = *err;
    if (s->request.step == FOLLOW_HOLDING)
        s->steps->refuse_follow(s);
}

void standby_server_claim_term(struct standby_server *s)
{
    struct err err = { 0 };

    if (claim_of_another(s))
        on_term_claimed(s, err_is_moved(&err));
    else
        claim(s, on_term_claimed);
}

/* Above the claim's, too: the disk may be another one. */
uint64_t standby_server_next_term(const struct standby_server *s)
{
    const struct coordination_claim *c =
        s->coordination ? coordination_claim(s->coordination) : NULL;
    const uint64_t term = s->terms.role == TERMS_STANDBY
                              ? terms_promoted(&s->terms, terms_random())
                              : terms_last(&s->terms) + 1;

    return c && term <= c->term ? c->term + 1 : term;
}

/* The claim is known. */
static void begin_by_claim(struct standby_server *s) ON_MAIN
{
    const struct coordination_claim *c = coordination_claim(s->coordination);

    s->has_read_claim = true;
    s->is_foreign = c && !s->has_begun && c->history != s->terms.history;
    if (!s->terms.history)
        terms_begin_history(&s->terms, terms_random(), s->terms.timeline, s->n_shards);
    if (s->is_foreign) {
        snprintf(s->terms.peer, sizeof s->terms.peer, "%s", c->standby);
        s->was_in_sync = true;
        s->state = SERVER_AWAITED;
        log_line_warn("coord: this psd is named as the primary, but its data directory has not "
                      "the group's data: workers are refused until its standby takes over "
                      "(psctl promote --accept-loss serves without it)");
        return;
    }
    /* With fsync this log has all that was acknowledged, and of two claims one is made. */
    if (c)
        s->was_in_sync = c->in_sync && s->config.settings->durability != WAL_FSYNC;
    if (c && c->standby[0])
        snprintf(s->terms.peer, sizeof s->terms.peer, "%s", c->standby);
    if ((!c || s->was_in_sync) && s->terms.peer[0])
        s->steps->start_query(s);
    else
        s->steps->begin_term(s);
}

/* Who is named as the primary is it. */
void standby_server_check_claim(struct standby_server *s)
{
    const struct coordination_claim *c = claim_of_another(s);
    char sentence[256];

    if (!s->coordination || s->is_closed || s->is_claiming || standby_server_is_busy(s) ||
        s->request.step > FOLLOW_LEAVING || s->state == SERVER_OFF ||
        s->state == SERVER_DEPOSED)
        return;
    if (c) {
        snprintf(sentence, sizeof sentence,
                 "the coordination service names %.100s as the primary, of term %" PRIu64,
                 c->primary, c->term);
        s->steps->seal(s);
        snprintf(s->terms.peer, sizeof s->terms.peer, "%s", c->primary);
        s->steps->depose_for_good(s, sentence);
    } else if (s->state == SERVER_ASKING && !s->has_read_claim &&
               coordination_is_known(s->coordination)) {
        begin_by_claim(s);
    }
}

static void on_claim(void *server)
{
    enter_main();
    standby_server_check_claim(server);
}

static void on_sync_claimed(void *server, const struct err *err)
{
    struct standby_server *s = server;

    enter_main();
    s->is_claiming = false;
    s->job.err = *err;
    if (!err->status && !s->terms.in_sync)
        s->steps->write_terms(s, s->steps->on_sync_note_write);
    else
        s->steps->on_sync_note_write(s);
}

/* With --coord TERMS says at least what the claim says: "in sync" is written before it is claimed, "not" behind. */
static void claim_sync(void *server)
{
    struct standby_server *s = server;

    enter_main();
    if (s->job.err.status)
        s->steps->on_sync_note_write(s);
    else if (claim_of_another(s))
        on_sync_claimed(s, err_is_moved(&s->job.err));
    else
        claim(s, on_sync_claimed);
}

void standby_server_write_sync(struct standby_server *s, bool in_sync)
{
    s->terms.in_sync = in_sync;
    s->job.err = (struct err){ 0 };
    if (s->coordination && !in_sync)
        claim_sync(s);
    else
        s->steps->write_terms(s, s->coordination ? claim_sync : s->steps->on_sync_note_write);
}

struct coordination *standby_server_coordinate(struct standby_server *s)
{
    const struct settings *settings = s->config.settings;
    const struct coordination_config config = { .loop = s->config.loop,
                                                .open = settings->open_coord,
                                                .url = settings->coord,
                                                .group = (uint32_t)s->config.welcome->node,
                                                .own_address = s->config.own_address,
                                                .on_change = on_claim,
                                                .owner = s };

    return coordination_new(&config);
}

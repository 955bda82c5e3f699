/*
 * The shards of a standby: they fetch, and they become a primary's. In the order of steps: adopt -> fetch -> seal ->
 * begin a term -> lead; the last one stands first.
 */
#include "server/standby_internal.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "server/shard_follower.h"
#include "server/standby_role.h"
#include "server/standby_session.h"

#define SEAL_MS_MAX 30000u /* for the log to take what has come */
#define NOTE_RETRY_MS 1000u
#define STEADY_MS 1000u /* what follows for so long does not fail at once */
#define NEXT_WORD_MS \
    300u /* a word that comes so long after a question is of a psd that lives */
#define DOUBT_MS_MAX 2500u
#define RETRY_UNABLE_MS 10000u
#define RETRY_WRITE_MS 2000u /* of a term that is claimed already */
#define UNABLE_DIAL_MS 1000u /* a primary may ask for the same promotion again at once */
#define HEART_MS 100u        /* with --coord: so often at least a primary is heard */
#define FETCHES_A_PATIENCE \
    4u /* so often the primary hears of a standby that has nothing to do */

static void stop_shard(struct mail *mail, void *owner)
{
    enter_shard();
    shard_follower_stop(shard_thread_follower(owner));
    standby_send_back(CONTAINER_OF(mail, struct standby_task, mail));
}

/* --- may it lack something? --- */

/* A shard has heard nothing of the primary for so long that this may have gone on alone. */
static bool was_silent(const struct standby *s) ON_MAIN
{
    struct shard_follower_view view;

    for (uint32_t i = 0; i < standby_n_shards(s) && s->is_loaded; i++) {
        standby_see_shard(s, i, &view);
        if (view.was_silent)
            return true;
    }
    return false;
}

/* As far as this psd knows. The claim, which names it as in sync in just that term, knows better. */
static bool lacks(const struct standby *s) ON_MAIN
{
    if (s->config.coordination && standby_is_named(s))
        return false;
    return !standby_noted_sync(s) || was_silent(s) || standby_lacks_by_claim(s);
}

static int refuse_loss(const struct standby *s, struct err *err) ON_MAIN
{
    if (was_silent(s))
        return err_set(
            err, -ENODATA,
            "promote: %s has had no word with this standby for longer than it waits "
            "for one: if it went on alone, this standby does not know of that time, "
            "and what was acknowledged then is missing; --accept-loss goes on without "
            "it",
            s->config.primary);
    if (standby_is_unheard(s))
        return err_set(err, -ENODATA,
                       "promote: this standby was in sync with %s, and has not followed it "
                       "since its own start, so it does not know whether it has all: "
                       "--accept-loss goes on with what it has",
                       s->config.primary);
    return err_set(err, -ENODATA,
                   "promote: this standby was not in sync with %s: what the primary "
                   "acknowledged last may be missing; --accept-loss goes on without it",
                   s->config.primary);
}

/* --- the end of a promotion --- */

static void answer_promotion(struct standby *s, const struct err *err) ON_MAIN
{
    void (*promoted)(void *arg, const struct err *err) = s->promoted;

    s->is_promoting = false;
    s->doubt_ms = 0;
    s->promoted = NULL;
    if (err->status) /* who asked may have stopped waiting */
        log_line_error("this standby does not become the primary: %s", err->text);
    if (promoted)
        promoted(s->promoted_arg, err);
}

static void refuse_promotion(struct standby *s, const struct err *err) ON_MAIN
{
    standby_set_state(s, STANDBY_DIALLING);
    standby_set_why(s, "");
    s->retry_ms = clock_mono_ms();
    answer_promotion(s, err);
}

static void on_led(struct standby *s) ON_MAIN
{
    const struct err none = { 0 };

    standby_set_state(s, STANDBY_PRIMARY);
    log_line_info("this psd is the primary now, in term %" PRIu64, s->term);
    s->config.events->promoted(s->config.node);
    answer_promotion(s, &none);
}

static void lead_shard(struct mail *mail, void *owner)
{
    enter_shard();
    shard_thread_lead(owner);
    standby_send_back(CONTAINER_OF(mail, struct standby_task, mail));
}

static void on_term_begun(struct standby *s) ON_MAIN
{
    if (s->err.status) {
        free(s->terms.items[--s->terms.n].first);
        s->terms.role = TERMS_STANDBY;
        s->terms.in_sync = s->shards_in_sync; /* as before: nothing has been lost since */
        s->term = s->followed_term;
        refuse_promotion(s, &s->err);
        return;
    }
    standby_on_shards(s, lead_shard, on_led);
}

/* Nobody serves then: the reason is what operators need. */
static void on_promotion_written(struct standby *s) ON_MAIN
{
    if (s->err.status) {
        s->take_over_ms = clock_mono_ms() + RETRY_WRITE_MS;
        snprintf(s->unable, sizeof s->unable, "%.199s", s->err.text);
    }
    on_term_begun(s);
}

static int write_promotion(struct standby *s, struct err *err)
{
    int status = standby_role_note_done(s->config.files, s->config.settings, err);

    return status ? status : standby_write_terms(s, err);
}

static void on_claimed(void *standby, const struct err *err)
{
    struct standby *s = standby;

    enter_main();
    if (s->state != STANDBY_PROMOTING)
        return;
    s->err = *err;
    if (err->status == -EEXIST && standby_lacks_by_claim(s))
        err_set(&s->err, -EEXIST,
                "promote: %.100s is still the primary: it was the first to claim, and goes on "
                "without this standby",
                coordination_claim(s->config.coordination)->primary);
    if (err->status)
        on_term_begun(s);
    else
        standby_start_job(s, write_promotion, on_promotion_written);
}

/* The claim first: a promotion that is only in TERMS would be that of nobody. */
static void claim(struct standby *s) ON_MAIN
{
    struct claim claim = { .term = s->term, .history = s->terms.history };

    if (s->promises & STANDBY_BY_ITSELF && !coordination_is_own(s->config.coordination))
        claim_add_takeover(&claim, s->term); /* else it is in the claim of before */
    coordination_write(s->config.coordination, &claim, on_claimed, s);
}

static uint64_t next_term(const struct standby *s) ON_MAIN
{
    const uint64_t term = terms_promoted(terms_last(&s->terms), terms_random());
    const struct claim *c =
        s->config.coordination ? coordination_claim(s->config.coordination) : NULL;

    return c && term <= c->term ? c->term + 1 : term;
}

/* Over a claim that says so, or from a primary that hands over, it has all; without --coord nobody knows whether the
 * primary goes on alone meanwhile. */
static enum follow_begun begun_with(const struct standby *s) ON_MAIN
{
    if (s->promises & STANDBY_HANDED_OVER || (s->config.coordination && standby_is_named(s)))
        return FOLLOW_BEGUN_WHOLE;
    if (!s->config.coordination && standby_noted_sync(s))
        return FOLLOW_BEGUN_SEEN;
    return s->promises & STANDBY_ACCEPT_LOSS ? FOLLOW_BEGUN_LOSSY : FOLLOW_BEGUN_UNKNOWN;
}

static void begin_term(struct standby *s) ON_MAIN
{
    struct err err = { 0 };

    /* While `terms` has not the new term: a claim of before is held against the last one. */
    if (s->config.coordination && !standby_may_claim(s)) {
        err_set(&err, -EEXIST, "the coordination service does not say that this standby may");
        refuse_promotion(s, &err);
        return;
    }
    standby_set_state(s, STANDBY_PROMOTING);
    standby_set_why(s, "");
    for (uint32_t i = 0; i < standby_n_shards(s); i++) {
        struct shard_follower_view view;

        standby_see_shard(s, i, &view);
        s->keep[i] = view.applied + 1;
    }
    s->begun_with = begun_with(s);
    s->term = next_term(s);
    terms_begin(&s->terms, s->term, s->keep);
    s->terms.role = TERMS_PRIMARY;
    s->terms.in_sync = false;
    s->terms.ack = (enum terms_ack)s->config.settings->standby_ack;
    s->terms.is_durable = s->config.settings->durability == WAL_FSYNC;
    if (s->config.coordination)
        claim(s);
    else
        standby_start_job(s, write_promotion, on_promotion_written);
}

/* --- sealing --- */

/* With fsync what is sealed is on the disk before the term begins: what was promised rests on this log alone then. */
static bool is_undurable(const struct standby *s, const struct shard_follower_view *view)
{
    return s->config.settings->durability == WAL_FSYNC && view->durable < view->applied;
}

/* 0: they have applied all that has come; -EAGAIN: not yet; else they cannot. */
static int check_sealed(const struct standby *s, struct err *err) ON_MAIN
{
    struct shard_follower_view view;
    bool is_over = clock_mono_ms() - s->since_ms > SEAL_MS_MAX, is_ready;
    int status = 0;

    if (s->promoted && !(s->promises & STANDBY_ACCEPT_LOSS) && lacks(s)) {
        refuse_loss(s, err); /* the last answers, which it read on its way here, are old */
        return err->status;
    }
    for (uint32_t i = 0; i < standby_n_shards(s); i++) {
        standby_see_shard(s, i, &view);
        if (view.state == SHARD_FOLLOWER_FAILED)
            return err_set(err, PS_ECORRUPT, "shard %" PRIu32 ": %s", i, view.why);
        if (!view.is_exact)
            return err_set(err, -ENODATA,
                           "shard %" PRIu32
                           " has not got all that its copy needs: start it again as a standby",
                           i);
        is_ready = view.is_drained && !is_undurable(s, &view);
        if (!is_ready && is_over && !(s->promises & STANDBY_ACCEPT_LOSS))
            return err_set(err, -EIO, "shard %" PRIu32 ": %s (--accept-loss goes without)", i,
                           view.why);
        if (!is_ready && !is_over)
            status = -EAGAIN;
    }
    return status;
}

/* The shards' own fault, which a try at once would find again. */
static void note_unable(struct standby *s, const struct err *err) ON_MAIN
{
    s->take_over_ms = clock_mono_ms() + RETRY_UNABLE_MS;
    snprintf(s->unable, sizeof s->unable, "%.199s", err->text);
}

void standby_try_begin_term(struct standby *s)
{
    struct err err = { 0 };
    int status;

    if (s->is_working || s->n_outstanding)
        return;
    status = check_sealed(s, &err);
    if (status == -EAGAIN) {
        standby_set_why(s, "its log has still to take what has come");
    } else if (status) {
        note_unable(s, &err);
        refuse_promotion(s, &err);
        s->retry_ms += UNABLE_DIAL_MS;
    } else {
        begin_term(s);
    }
}

/* From here on no shard asks for anything: the primary that was has no acknowledgement more. */
static void seal(struct standby *s) ON_MAIN
{
    standby_set_state(s, STANDBY_SEALING);
    standby_set_why(s, "");
    s->config.events->rises(
        s->config.node); /* a primary that loses it asks before it goes on alone */
    standby_on_shards(s, stop_shard, standby_try_begin_term);
}

/* Once nothing else is under way: standby_tick() calls. */
void standby_begin_promotion(struct standby *s)
{
    if (s->is_working || s->n_outstanding ||
        (s->state != STANDBY_DIALLING && s->state != STANDBY_FOLLOWING))
        return;
    standby_session_drop(&s->session);
    if (s->is_loaded) {
        seal(s);
        return;
    }
    s->theirs.history = 0;
    standby_keep_all(s);
    standby_rebuild(s);
}

/* --- following --- */

static void on_shards_stopped(struct standby *s) ON_MAIN
{
    standby_update_last(s);
    s->shards_in_sync = s->shards_in_sync && !was_silent(s);
}

/* The session is over, and with it the fetches. One that lasted is begun again at once; else each try waits longer. */
void standby_stop_following(struct standby *s, const char *why)
{
    const uint64_t now_ms = clock_mono_ms();

    s->is_unsteady = now_ms - s->since_ms < STEADY_MS;
    standby_session_drop(&s->session);
    if (!s->is_unsteady)
        s->n_failed = 0;
    standby_dial_later(s, why);
    if (!s->is_unsteady)
        s->retry_ms = now_ms;
    if (!s->n_outstanding)
        standby_on_shards(s, stop_shard, on_shards_stopped);
}

static void on_discarded(struct standby *s) ON_MAIN
{
    if (s->err.status)
        standby_fail(s);
    else
        s->config.events->restart(s->config.node, s->why);
}

/* What is here is of no use: the next life copies. */
void standby_discard(struct standby *s, const char *why)
{
    standby_session_drop(&s->session);
    standby_set_why(s, why);
    standby_set_state(s, STANDBY_READING);
    s->terms.history = 0;
    s->terms.in_sync = false;
    s->terms.role = TERMS_STANDBY;
    while (s->terms.n)
        free(s->terms.items[--s->terms.n].first);
    standby_start_job(s, standby_write_terms, on_discarded);
}

#define NOTE_RETRY_MS 1000u

static void on_sync_noted(struct standby *s) ON_MAIN
{
    if (s->err.status) {
        if (!s->note_retry_ms)
            log_line_error("whether this standby is in sync is not noted: %s", s->err.text);
        s->terms.in_sync = !s->terms.in_sync;
        s->note_retry_ms = clock_mono_ms() + NOTE_RETRY_MS;
    } else {
        s->note_retry_ms = 0;
        log_line_info("this standby is %s with %s",
                      s->terms.in_sync ? "in sync" : "not in sync", s->config.primary);
    }
    if (s->is_promoting) /* it waited for that */
        standby_begin_promotion(s);
}

/* What counts is the shards' word; TERMS, which a full disk may refuse to take, comes after it. */
static void note_sync(struct standby *s, bool in_sync) ON_MAIN
{
    s->shards_in_sync = in_sync;
    if (s->is_working || in_sync == s->terms.in_sync || clock_mono_ms() < s->note_retry_ms)
        return;
    s->terms.in_sync = in_sync;
    standby_start_job(s, standby_write_terms, on_sync_noted);
}

void standby_watch_shards(struct standby *s)
{
    struct shard_follower_view view;
    bool in_sync = true;
    char why[256] = "";

    for (uint32_t i = 0; i < standby_n_shards(s); i++) {
        standby_see_shard(s, i, &view);
        in_sync = in_sync && view.is_in_sync;
        if (view.why[0] && !why[0])
            snprintf(why, sizeof why, "shard %" PRIu32 ": %s", i, view.why);
        if (view.state != SHARD_FOLLOWER_FAILED)
            continue;
        s->shards_in_sync = s->shards_in_sync && !was_silent(s);
        snprintf(why, sizeof why, "shard %" PRIu32 ": %s", i, view.why);
        if (!view.needs_copy || !s->is_useless)
            standby_stop_following(s, why);
        else if (!s->is_working)
            standby_discard(s, why);
        s->is_useless = s->is_useless || view.needs_copy;
        return;
    }
    standby_set_why(s, why);
    if (!why[0] && clock_mono_ms() - s->since_ms >= STEADY_MS)
        s->logged[0] = '\0';
    note_sync(s, in_sync);
}

static void fetch_shard(struct mail *mail, void *owner)
{
    struct standby_task *task = CONTAINER_OF(mail, struct standby_task, mail);
    struct shard_follower *f = shard_thread_follower(owner);
    struct shard_follower_view view;

    enter_shard();
    shard_follower_see(f, &view);
    if (task->standby->keep[task->index] < view.received)
        shard_follower_drop(f); /* what has come last is nobody's any more */
    shard_follower_start(f, &task->primary);
    standby_send_back(task);
}

static void on_fetching(struct standby *s) ON_MAIN
{
    if (s->state == STANDBY_DIALLING) /* it was lost meanwhile */
        standby_on_shards(s, stop_shard, on_shards_stopped);
}

/* Once it has said so of all shards nothing can be acknowledged any more, and this standby has all that was. */
static void on_handed_over(struct mail *mail, void *owner)
{
    struct standby *s = CONTAINER_OF(mail, struct standby_task, hand_over)->standby;
    struct shard_follower_view view;
    struct err err = { 0 };
    bool is_handed_over = s->state == STANDBY_FOLLOWING && !s->is_promoting;

    (void)owner;
    enter_main();
    for (uint32_t i = 0; i < standby_n_shards(s) && is_handed_over; i++) {
        standby_see_shard(s, i, &view);
        is_handed_over = view.is_handed_over;
    }
    if (!is_handed_over)
        return;
    log_line_info("%s hands over to this standby", s->config.primary);
    if (standby_promote(s, STANDBY_OTHER_IS_DEAD | STANDBY_HANDED_OVER, NULL, NULL, &err))
        log_line_error("%s", err.text);
}

static void on_shard_handed_over(void *task)
{
    struct standby_task *t = task;
    int status;

    enter_shard();
    t->hand_over.run = on_handed_over;
    status = mailbox_post(t->standby->config.mailbox, &t->hand_over);
    assert(status == 0); /* the main thread's box outlives the shards */
}

/* After which it goes on alone, whatever this psd's own --standby-patience is. */
static uint64_t primarys_patience_ms(const struct standby *s)
{
    return s->patience_ms ? s->patience_ms : s->config.settings->standby_patience_ms;
}

/* A primary with little patience takes a standby that waits longer for one that is lost. */
static uint32_t wait_ms(const struct standby *s)
{
    const uint64_t patience_ms = primarys_patience_ms(s) / FETCHES_A_PATIENCE;
    const uint32_t most_ms = s->config.coordination ? HEART_MS : SHARD_FOLLOWER_WAIT_MS;

    return patience_ms < most_ms ? (uint32_t)patience_ms : most_ms;
}

static void start_fetching(struct standby *s) ON_MAIN
{
    standby_set_why(s, "");
    standby_set_state(s, STANDBY_FOLLOWING);
    if (!s->is_unsteady || s->followed_term != s->term)
        log_line_info("following %s in term %" PRIu64, s->config.primary, s->term);
    s->followed_term = s->term;
    s->unable[0] = '\0';
    for (uint32_t i = 0; i < standby_n_shards(s); i++) {
        struct shard_follower_primary *p = &s->tasks[i].primary;

        *p = (struct shard_follower_primary){ .address = s->primary,
                                              .shard = i,
                                              .term = s->term,
                                              .patience_ms = primarys_patience_ms(s),
                                              .wait_ms = wait_ms(s),
                                              .on_handed_over = on_shard_handed_over,
                                              .owner = &s->tasks[i] };
        standby_hello_of(s, &p->hello);
    }
    standby_on_shards(s, fetch_shard, on_fetching);
}

static void on_adopted(struct standby *s) ON_MAIN
{
    bool asks = s->asks_twice;

    s->asks_twice = false;
    if (s->err.status)
        standby_fail(s);
    else if (asks && !s->is_promoting && s->session.state == SESSION_WELCOME)
        standby_follow(s);
    else if (!s->is_promoting && s->session.state == SESSION_WELCOME && !s->n_outstanding)
        start_fetching(s);
    else
        standby_dial_later(s, s->why);
}

/* The log has nothing that the primary has not. */
void standby_adopt(struct standby *s)
{
    terms_adopt(&s->terms, &s->theirs);
    s->terms.timeline = s->epoch;
    s->terms.role = TERMS_STANDBY;
    s->terms.in_sync = s->shards_in_sync = s->ended_in_sync = false;
    snprintf(s->terms.peer, sizeof s->terms.peer, "%.127s", s->config.primary);
    standby_start_job(s, standby_write_terms, on_adopted);
}

/* --- promotion --- */

static int check_promotion(const struct standby *s, unsigned promises, struct err *err) ON_MAIN
{
    if (s->is_promoting || s->state >= STANDBY_SEALING)
        return err_set(err, -EBUSY, "promote: one is under way, or done");
    if (s->state == STANDBY_COPYING || s->state == STANDBY_READING ||
        !(s->is_working ? s->found.history : s->terms.history))
        return err_set(err, -ENODATA,
                       "promote: this standby has no whole copy of %s: nothing could be served",
                       s->config.primary);
    if (standby_is_answering(s) && !(promises & STANDBY_OTHER_IS_DEAD))
        return err_set(err, -EEXIST,
                       "promote: %s still answers as the primary: stop it first, or say "
                       "--the-other-is-dead",
                       s->config.primary);
    if (s->config.coordination && !coordination_is_there(s->config.coordination) &&
        !(promises & (STANDBY_BY_ITSELF | STANDBY_HANDED_OVER)))
        return err_set(
            err, -EAGAIN,
            "promote: the coordination service does not answer, and without its word "
            "nobody becomes the primary: nothing is changed, promote once it does");
    if (lacks(s) &&
        !(promises & (STANDBY_ACCEPT_LOSS | STANDBY_BY_ITSELF | STANDBY_HANDED_OVER)))
        return refuse_loss(s, err);
    return 0;
}

unsigned standby_promises(const char *words)
{
    unsigned promises = 0;

    if (strstr(words, "the-other-is-dead"))
        promises |= STANDBY_OTHER_IS_DEAD;
    if (strstr(words, "accept-loss"))
        promises |= STANDBY_ACCEPT_LOSS;
    return promises;
}

static void begin_promotion(struct standby *s, unsigned promises) ON_MAIN
{
    s->is_promoting = true;
    s->doubt_ms = 0;
    s->promises = promises;
    log_line_info("promotion: %s is not followed any more", s->config.primary);
    standby_session_drop(&s->session);
    standby_begin_promotion(s);
}

/* One that was killed a moment ago counts as one that answers, until its connection's end is read or it is dialled
 * again. One that lives is heard again within that time. */
static void begin_doubt(struct standby *s, unsigned promises) ON_MAIN
{
    s->doubt_ms = clock_mono_ms();
    s->promises = promises;
    if (s->state == STANDBY_DIALLING)
        s->retry_ms = s->doubt_ms + NEXT_WORD_MS;
}

void standby_end_doubt(struct standby *s, uint64_t now_ms)
{
    const bool is_heard = standby_heard_ms(s) > s->doubt_ms + NEXT_WORD_MS;
    struct err err = { 0 };

    if (s->is_promoting || s->state >= STANDBY_SEALING) { /* which answers */
        s->doubt_ms = 0;
        return;
    }
    if (standby_is_answering(s) && !is_heard && now_ms < s->doubt_ms + DOUBT_MS_MAX)
        return;
    if (check_promotion(s, s->promises, &err))
        answer_promotion(s, &err);
    else
        begin_promotion(s, s->promises);
}

int standby_promote(struct standby *s, unsigned promises,
                    void (*done)(void *arg, const struct err *err), void *arg, struct err *err)
{
    int status;

    if (s->doubt_ms && !(promises & STANDBY_OTHER_IS_DEAD))
        return err_set(err, -EBUSY, "promote: one is under way, and looks for the primary");
    status = check_promotion(s, promises, err);
    if (status && status != -EEXIST)
        return status;
    if (done) { /* else a person who waits hears of this one */
        s->promoted = done;
        s->promoted_arg = arg;
    }
    if (status)
        begin_doubt(s, promises);
    else
        begin_promotion(s, promises);
    return 0;
}

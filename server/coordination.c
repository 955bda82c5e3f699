#include "server/coordination.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "server/replication/terms.h"

#define CALL_MS 5000u
#define RETRY_MS 100u
#define SLOW_MS 1000u /* a wait that is longer is told */

struct coordination {
    struct coordination_config config;
    struct coord *coord; /* owned; NULL: it could not be opened, or is closed */
    struct coord_watch *watch;
    uv_timer_t timer; /* to the next try */
    char key[CLAIM_KEY_MAX];
    bool has_config;    /* the cluster's is there, */
    bool is_of_another; /* and is not this psd's */
    bool was_let_in;    /* it was once: what comes there later keeps out only who starts then */
    struct claim claim;
    char text[CLAIM_VALUE_MAX]; /* its value */
    struct claim_takeovers takeovers;
    uint64_t takeover_unix_ms; /* when the last one was seen: for operators */
    bool is_known, is_there;   /* of the claim */
    int64_t revision;          /* of the claim; 0: it is not there */
    bool is_doubtful;          /* it is of a service that was restored */
    bool is_away;              /* the service, */
    uint64_t away_unix_ms;     /* since when */
    struct err err;            /* of the last failure */
    /* What is written. */
    bool is_writing, writes_config;
    struct claim wanted;
    char value[CLAIM_VALUE_MAX], cluster_value[CLAIM_VALUE_MAX];
    int64_t if_revision; /* and value: once the service was restored, a revision comes again */
    char if_value[CLAIM_VALUE_MAX];
    uint64_t since_ms;
    void (*done)(void *arg, const struct err *err);
    void *arg;
    struct claim_writer writer;
};

/* --- what is known --- */

static void change(struct coordination *c) ON_MAIN
{
    if (c->coord)
        c->config.on_change(c->config.owner);
}

/* As many as make standbys wait longer: said once for each. */
static void note_takeovers(struct coordination *c)
{
    const uint64_t now_ms = clock_mono_ms();
    uint32_t n;

    if (!claim_takeovers_note(&c->takeovers, &c->claim, now_ms))
        return;
    c->takeover_unix_ms = clock_unix_ms();
    n = claim_takeovers_count(&c->takeovers, now_ms);
    if (n >= CLAIM_TAKEOVERS_MANY)
        log_line_warn("coord: %" PRIu32 " failovers in ten minutes: a standby waits twice "
                      "failover-after for a silent primary",
                      n);
}

/* Older ones are passed over, and what nobody could have written: then no claim of this psd is made any more. */
static bool take_item(struct coordination *c, const struct coord_item *item)
{
    struct claim claim;

    if (c->is_known && item->mod_revision <= c->revision)
        return false;
    if (claim_read(item->value, &claim) || claim.term > TERMS_NUMBER_MAX) {
        err_set(&c->err, PS_EPROTO, "%s is no claim of a psd: %.60s", c->key, item->value);
        log_line_error("coord: %s", c->err.text);
        return false;
    }
    c->claim = claim;
    snprintf(c->text, sizeof c->text, "%s", item->value);
    note_takeovers(c);
    c->revision = item->mod_revision;
    c->is_there = c->is_known = true;
    c->is_doubtful = false;
    return true;
}

static bool take_absence(struct coordination *c, int64_t revision)
{
    if (c->is_known && revision <= c->revision)
        return false;
    c->is_known = true;
    c->is_there = false;
    c->revision = 0;
    return true;
}

/* Revisions have gone back, so whatever is there now counts. It is what was written since only if it is newer than
 * what this psd has seen: a standby may have missed that it is not in sync any more. */
static bool take_restored(struct coordination *c, const struct coord_item *item)
{
    const bool was_there = c->is_known && c->is_there;
    const struct claim before = c->claim;

    c->revision = 0;
    c->is_there = false;
    c->is_known = true;
    if (!item)
        return true;
    (void)take_item(c, item);
    c->is_doubtful = c->is_there && !(was_there && claim_is_newer(&c->claim, &before));
    return true;
}

static const struct coord_item *find_item(const char *key, const struct coord_item *items,
                                          uint32_t n)
{
    while (n > 0 && strcmp(items[n - 1].key, key) != 0)
        n--;
    return n ? &items[n - 1] : NULL;
}

/* A psd that is to be a standby is taken for a node alone until its primary has said which one it is. */
static bool is_without_place(const struct coordination *c, const struct claim_config *theirs)
{
    const struct claim_config *ours = &c->config.cluster;

    return !c->config.is_placed &&
           (theirs->n_nodes != ours->n_nodes || theirs->n_shards != ours->n_shards);
}

/* True if that lets this psd in, which was kept out before. */
static bool take_config(struct coordination *c, const struct coord_item *item)
{
    const bool was_of_another = c->is_of_another;
    struct claim_config theirs;
    struct err err = { 0 }, unplaced = { 0 };

    c->has_config = item != NULL;
    if (item && claim_config_read(item->value, &theirs))
        err_set(&err, PS_EPROTO, "coord: " CLAIM_CONFIG_KEY " is not of a psd: %.60s",
                item->value);
    else if (item && is_without_place(c, &theirs))
        err_set(&unplaced, PS_ECLUSTER,
                "coord: the primary has not said yet which node of the cluster this psd is");
    else if (item)
        err.status = claim_config_compare(&theirs, &c->config.cluster, &err);
    if (err.status)
        log_line_error("%s", err.text);
    else
        err = unplaced; /* which is no error */
    c->was_let_in = c->was_let_in || (item && !err.status);
    c->is_of_another = err.status && !c->was_let_in;
    if (err.status)
        c->err = err;
    return was_of_another && !c->is_of_another;
}

/* Of the cluster's config, if the event has something about it. */
static bool take_config_event(struct coordination *c, const struct coord_event *event)
{
    const struct coord_item *item = find_item(CLAIM_CONFIG_KEY, event->items, event->n_items);

    if (event->kind == COORD_ALL || (item && event->kind == COORD_CHANGED))
        return take_config(c, item);
    return item && event->kind == COORD_REMOVED && take_config(c, NULL);
}

static void on_event(void *arg, const struct coord_event *event)
{
    struct coordination *c = arg;
    const struct coord_item *item = find_item(c->key, event->items, event->n_items);
    bool is_new = false, is_let_in;

    enter_main();
    if (event->kind == COORD_AWAY) {
        c->is_away = true;
        c->away_unix_ms = clock_unix_ms();
        c->err = *event->err;
        if (c->is_known)
            log_line_warn("coord: the service does not answer, and no standby takes over: %s",
                          c->err.text);
        else
            log_line_warn("coord: the service has not answered yet, and until it does this psd "
                          "serves nobody: %s; is it the address of an etcd that runs?",
                          c->err.text);
        return;
    }
    if (c->is_away)
        log_line_info("coord: the service answers again");
    c->is_away = false;
    is_let_in = take_config_event(c, event);
    if (event->kind == COORD_ALL && event->err) {
        log_line_warn("coord: %s: who is the primary is read anew", event->err->text);
        is_new = take_restored(c, item);
    } else if (event->kind == COORD_REMOVED || (event->kind == COORD_ALL && !item))
        is_new = (item || event->kind == COORD_ALL) && take_absence(c, event->revision);
    else if (item)
        is_new = take_item(c, item);
    if (is_new || is_let_in)
        change(c);
}

bool coordination_is_known(const struct coordination *c)
{
    return c->is_known && !c->is_of_another;
}

bool coordination_is_there(const struct coordination *c)
{
    return coordination_is_known(c) && !c->is_away;
}

const struct claim *coordination_claim(const struct coordination *c)
{
    return coordination_is_known(c) && c->is_there ? &c->claim : NULL;
}

static uint32_t count_takeovers(const struct coordination *c) ON_MAIN
{
    return coordination_claim(c) ? claim_takeovers_count(&c->takeovers, clock_mono_ms()) : 0;
}

uint64_t coordination_patience_ms(const struct coordination *c, uint64_t failover_after_ms)
{
    /* No more than twice, however many: with the default of 700 ms a takeover is then still over within two seconds. */
    return count_takeovers(c) < CLAIM_TAKEOVERS_MANY ? failover_after_ms
                                                     : 2 * failover_after_ms;
}

bool coordination_is_doubtful(const struct coordination *c)
{
    return coordination_claim(c) && c->is_doubtful;
}

bool coordination_is_own(const struct coordination *c)
{
    const struct claim *claim = coordination_claim(c);

    return claim && strcmp(claim->primary, c->config.own_address) == 0;
}

bool coordination_is_waiting(const struct coordination *c,
                             char ret[static COORDINATION_WAIT_MAX])
{
    ret[0] = '\0';
    if (coordination_is_known(c) && !(c->is_writing && clock_mono_ms() - c->since_ms > SLOW_MS))
        return false;
    if (c->is_of_another) {
        snprintf(ret, COORDINATION_WAIT_MAX, "%s", c->err.text);
        return true;
    }
    snprintf(ret, COORDINATION_WAIT_MAX,
             "the coordination service has to say who is the primary: %s",
             c->err.status ? c->err.text : "it has not answered yet");
    return true;
}

void coordination_report(const struct coordination *c, uint64_t failover_after_ms,
                         struct stats_coordination *ret)
{
    const struct claim *claim = c ? coordination_claim(c) : NULL;

    *ret = (struct stats_coordination){ .is_on = c != NULL };
    if (!c)
        return;
    ret->is_away = c->is_away || !c->watch;
    ret->away_unix_ms = c->away_unix_ms;
    snprintf(ret->service, sizeof ret->service, "%.159s", c->config.service.url);
    snprintf(ret->error, sizeof ret->error, "%s", c->err.text);
    if (!claim)
        return;
    ret->n_takeovers = count_takeovers(c);
    ret->takeover_unix_ms = c->takeover_unix_ms;
    ret->patience_ms = coordination_patience_ms(c, failover_after_ms);
    ret->failover_after_ms = failover_after_ms;
    ret->has_claim = true;
    ret->term = claim->term;
    ret->in_sync = claim->in_sync;
    snprintf(ret->primary, sizeof ret->primary, "%s", claim->primary);
    snprintf(ret->standby, sizeof ret->standby, "%s", claim->standby);
}

/* --- what is written --- */

static void put(struct coordination *c) ON_MAIN;

static void on_retry(uv_timer_t *timer)
{
    enter_main();
    put(timer->data);
}

static void end_write(struct coordination *c, const struct err *err) ON_MAIN
{
    c->is_writing = false;
    c->done(c->arg, err);
}

static void note_made(struct coordination *c, int64_t revision)
{
    if (c->is_known && revision <= c->revision)
        return;
    c->claim = c->wanted;
    memcpy(c->text, c->value, sizeof c->text);
    note_takeovers(c);
    c->is_known = c->is_there = true;
    c->is_doubtful = false;
    c->revision = revision;
}

static void on_put(void *arg, const struct err *err, const struct coord_result *result)
{
    struct coordination *c = arg;
    const struct coord_item *item;
    struct err exists = { 0 };

    enter_main();
    if (!c->coord)
        return;
    if (err->status) { /* it may have been made: only the service knows, and it is asked again */
        c->err = *err;
        uv_timer_start(&c->timer, on_retry, RETRY_MS, 0);
        return;
    }
    item = result->is_made ? NULL : find_item(c->key, result->items, result->n_items);
    if (!result->is_made && c->writes_config)
        (void)take_config(c, find_item(CLAIM_CONFIG_KEY, result->items, result->n_items));
    if (result->is_made)
        note_made(c, result->revision);
    else if (item)
        (void)take_item(c, item);
    else
        (void)take_absence(c, result->revision);
    /* An earlier try was made, and only its answer was lost. */
    if (result->is_made || (item && strcmp(item->value, c->value) == 0)) {
        end_write(c, &exists);
        return;
    }
    err_set(&exists, -EEXIST, "the coordination service names %.100s as the primary",
            c->is_there ? c->claim.primary : "nobody");
    end_write(c, &exists);
    change(c);
}

static void put(struct coordination *c)
{
    const struct coord_write writes[] = {
        { .change = COORD_PUT,
          .key = c->key,
          .if_revision = c->if_revision,
          .if_value = c->if_revision ? c->if_value : NULL,
          .value = c->value },
        { .change = COORD_PUT, .key = CLAIM_CONFIG_KEY, .value = c->cluster_value },
    };

    c->coord->ops->put_if(c->coord, writes, c->writes_config ? 2 : 1, CALL_MS, on_put, c);
}

/* The cluster's config has become another's while this psd was about to make its first claim. */
static void on_kept_out(uv_timer_t *timer)
{
    struct coordination *c = timer->data;
    struct err err;

    enter_main();
    err_set(&err, -EEXIST, "%s", c->err.text);
    end_write(c, &err);
}

void coordination_write(struct coordination *c, const struct claim *claim,
                        void (*done)(void *arg, const struct err *err), void *arg)
{
    assert(!c->is_writing && c->is_known && c->coord);
    c->is_writing = true;
    c->writes_config = !c->has_config;
    c->since_ms = clock_mono_ms();
    c->wanted = *claim;
    c->wanted.n_takeovers = 0;
    if (c->is_there)
        claim_takeovers_keep(&c->takeovers, c->since_ms, &c->wanted);
    for (uint32_t i = 0; i < claim->n_takeovers; i++)
        claim_add_takeover(&c->wanted, claim->takeovers[i]);
    snprintf(c->wanted.primary, sizeof c->wanted.primary, "%s", c->config.own_address);
    c->writer.n++;
    c->wanted.writer = c->writer;
    c->if_revision = c->revision;
    memcpy(c->if_value, c->text, sizeof c->if_value);
    c->done = done;
    c->arg = arg;
    claim_print(&c->wanted, &c->writer, c->value);
    if (c->is_of_another)
        uv_timer_start(&c->timer, on_kept_out, 0, 0);
    else
        put(c);
}

/* --- begin and end --- */

struct coordination *coordination_new(const struct coordination_config *config)
{
    struct coordination *c = memory_alloc(sizeof *c);

    c->config = *config;
    claim_key(config->group, c->key);
    claim_config_print(&config->cluster, c->cluster_value);
    c->writer.id = terms_random();
    if (!config->open)
        err_set(&c->err, PS_ESETTING, "coord: this program has no coordination service");
    else if (config->open(&config->service, config->loop, &c->coord, &c->err))
        c->coord = NULL;
    if (!c->coord) {
        c->away_unix_ms = clock_unix_ms();
        log_line_error("%s", c->err.text);
        return c;
    }
    uv_timer_init(config->loop, &c->timer);
    c->timer.data = c;
    c->watch = c->coord->ops->watch(c->coord, "", on_event, c);
    return c;
}

void coordination_close(struct coordination *c)
{
    struct coord *coord = c ? c->coord : NULL;

    if (!coord)
        return;
    c->coord = NULL;
    uv_close((uv_handle_t *)&c->timer, NULL);
    coord->ops->unwatch(c->watch);
    coord->ops->close(coord, NULL, NULL);
}

void coordination_free(struct coordination *c)
{
    free(c);
}

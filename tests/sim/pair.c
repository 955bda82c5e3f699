#include "tests/sim/pair.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/replication/follower.h"
#include "server/replication/terms.h"
#include "tests/sim/agree.h"
#include "tests/sim/check.h"
#include "tests/sim/coord.h"

struct pair_record {
    uint64_t before; /* id; 0: it is the first one */
    struct fact fact;
};

static uint64_t greater(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static struct shard_record *other_of(struct world *w, const struct shard_record *rec)
{
    return &w->members[!rec->member][rec->shard];
}

void pair_begin(struct world *w)
{
    w->lines = calloc(PLAN_N_SHARDS_MAX, sizeof *w->lines);
    assert(w->lines);
}

void pair_end(struct world *w)
{
    for (uint32_t i = 0; w->lines && i < PLAN_N_SHARDS_MAX; i++) {
        free(w->lines[i].records);
        free(w->lines[i].promised);
    }
    free(w->lines);
    w->lines = NULL;
}

/* --- records --- */

static bool is_same(const struct fact *a, const struct fact *b)
{
    return a->type == b->type && a->version == b->version && a->rank == b->rank &&
           a->incarnation == b->incarnation && a->push == b->push && a->status == b->status &&
           a->state == b->state && a->clock == b->clock && a->last_acked == b->last_acked &&
           a->run == b->run && a->table == b->table && a->op == b->op && a->keys == b->keys;
}

static uint64_t find(const struct pair_line *line, uint64_t before, const struct fact *fact)
{
    for (uint64_t i = line->n; i > 0; i--)
        if (line->records[i - 1].before == before && is_same(&line->records[i - 1].fact, fact))
            return i;
    return 0;
}

static uint64_t add(struct pair_line *line, uint64_t before, const struct fact *fact)
{
    if (line->n == line->cap) {
        line->cap = line->cap ? 2 * line->cap : 128;
        line->records = realloc(line->records, line->cap * sizeof *line->records);
        assert(line->records);
    }
    line->records[line->n++] = (struct pair_record){ before, *fact };
    return line->n;
}

void pair_recorded(struct world *w, struct shard_record *rec, struct fact *fact)
{
    const struct history *h = &rec->history;
    const uint64_t before = h->n ? h->facts[h->n - 1].id : 0;
    struct pair_line *line = &w->lines[rec->shard];

    fact->id = find(line, before, fact);
    if (fact->id)
        fact->at_us = line->records[fact->id - 1].fact.at_us;
    else if (rec->life.follower)
        world_fail(w,
                   "shard %u: the standby's record %llu is none that a primary made behind "
                   "record %llu",
                   rec->shard, (unsigned long long)h->n + 1, (unsigned long long)h->n);
    else
        fact->id = add(line, before, fact);
}

/* --- what is promised --- */

/* So many of the promised records the log has. */
static uint64_t n_common(const struct pair_line *line, const struct shard_record *rec,
                         uint64_t n_most)
{
    uint64_t n = n_most < line->n_promised ? n_most : line->n_promised;

    n = n < rec->history.n ? n : rec->history.n;
    while (n > 0 && rec->history.facts[n - 1].id != line->promised[n - 1])
        n--;
    return n;
}

/* Does what a promotion goes by say that the standby has all that is acknowledged? */
static bool says_in_sync(const struct world *w, const struct node *n)
{
    char address[24];

    if (!w->plan.pairs.coordinated)
        return n->says_in_sync;
    node_address(n, address);
    return coord_says_in_sync(n->index, address);
}

/* What the standby has, or had, of it, as --standby-ack counts. */
static uint64_t standby_has(struct world *w, const struct shard_record *rec)
{
    const struct shard_record *other = other_of(w, rec);

    return w->plan.pairs.ack == TERMS_ACK_DISK ? other->safe
                                               : greater(other->received, other->history.n);
}

static void note_promise(struct pair_line *line, const struct shard_record *rec,
                         uint64_t number)
{
    while (line->cap_promised < number) {
        line->cap_promised = line->cap_promised ? 2 * line->cap_promised : 128;
        line->promised = realloc(line->promised, line->cap_promised * sizeof *line->promised);
        assert(line->promised);
    }
    for (; line->n_promised < number; line->n_promised++)
        line->promised[line->n_promised] = rec->history.facts[line->n_promised].id;
}

bool pair_await_promise(const struct node *n,
                        void (*run)(void *owner, uint64_t number, void *data), void *owner)
{
    struct world *w = n->world;

    if (w->on_promise)
        return false;
    w->on_promise = run;
    w->on_promise_owner = owner;
    w->promising = n;
    return true;
}

static void note_awaited(struct world *w, const struct shard_record *rec)
{
    if (!w->on_promise || w->is_calm || node_of_record(w, rec) != w->promising)
        return;
    events_in(&machine.events, dice_roll(&w->dice, 300), w->on_promise, w->on_promise_owner, 0,
              NULL);
    w->on_promise = NULL;
}

void pair_promised(struct world *w, struct shard_record *rec, uint64_t number)
{
    struct pair_line *line = &w->lines[rec->shard];
    const struct shard_record *leads = w->records[rec->shard];
    const uint64_t n = number < line->n_promised ? number : line->n_promised;

    if (line->is_given_up || !number)
        return;
    if (n && rec->history.facts[n - 1].id != line->promised[n - 1])
        world_fail(w, "shard %u: a reply relies on record %llu, and another one was promised",
                   rec->shard, (unsigned long long)n);
    if (rec != leads && (leads->history.n < number || leads->history.facts[number - 1].id !=
                                                          rec->history.facts[number - 1].id))
        world_fail(w,
                   "shard %u: a reply relies on record %llu, which whoever serves now does "
                   "not have",
                   rec->shard, (unsigned long long)number);
    if (rec == leads && says_in_sync(w, node_of_record(w, rec)) && standby_has(w, rec) < number)
        world_fail(w,
                   "shard %u: a reply relies on record %llu, the standby has %llu, and is "
                   "said to be in sync",
                   rec->shard, (unsigned long long)number,
                   (unsigned long long)standby_has(w, rec));
    if (number > line->n_promised)
        note_awaited(w, rec);
    note_promise(line, rec, number);
}

void pair_says_in_sync(struct node *n)
{
    struct world *w = n->world;

    for (uint32_t i = 0; n->other && i < w->plan.shards_per_node; i++) {
        const struct shard_record *rec = node_record(n, i), *other = other_of(w, rec);
        const struct pair_line *line = &w->lines[rec->shard];
        const uint64_t has = greater(other->received, other->history.n);

        if (!line->is_given_up && rec == w->records[rec->shard] && has < line->n_promised)
            world_fail(w,
                       "shard %u: the standby is said to be in sync, and has %llu of %llu "
                       "records that were promised",
                       rec->shard, (unsigned long long)has,
                       (unsigned long long)line->n_promised);
    }
}

void pair_heard(struct node *n, bool in_sync)
{
    for (uint32_t i = 0; i < n->world->plan.shards_per_node; i++) {
        struct shard_record *rec = node_record(n, i);

        if (rec->life.fiber != machine.running)
            continue;
        rec->heard_us = machine_now_us();
        rec->heard_in_sync = in_sync;
    }
}

/* A standby that has heard nothing for failover_ms may take over, whether it does or not. The clocks of both may differ by
 * 2 %. */
static void check_heard(struct world *w, struct shard_record *rec)
{
    const struct shard_record *other = other_of(w, rec);
    const uint64_t silent_us = machine_now_us() - other->heard_us;

    if (w->plan.pairs.coordinated && other->life.follower &&
        silent_us > 980 * (uint64_t)w->plan.pairs.failover_ms)
        world_fail(w,
                   "shard %u: a pull is answered, and the standby in sync has heard nothing "
                   "for %llu us: it may have taken over",
                   rec->shard, (unsigned long long)silent_us);
}

void pair_pulled(struct world *w, struct shard_record *rec)
{
    const struct history *h = &rec->history;

    if (w->lines[rec->shard].is_given_up)
        return;
    if (rec != w->records[rec->shard])
        world_fail(w, "shard %u: a pull is answered, and the other member is the primary",
                   rec->shard);
    if (!says_in_sync(w, node_of_record(w, rec)))
        return;
    check_heard(w, rec);
    for (uint64_t i = standby_has(w, rec); i < h->n; i++)
        if (h->facts[i].type == SHARD_EVENT_GONE)
            world_fail(w,
                       "shard %u: a pull is answered, and the standby does not know that rank "
                       "%u is gone",
                       rec->shard, h->facts[i].rank);
}

/* --- who serves --- */

/* What a member certainly has of it: in memory, or on its disk as that was left. */
static uint64_t n_sure(const struct world *w, const struct shard_record *rec)
{
    const struct node *n = node_of_record(w, rec);

    return rec->life.process && rec->life.core ? rec->history.n
                                               : check_floor(w, rec, n->lost_power);
}

void pair_starts(struct node *n)
{
    char address[24];

    n->said_in_sync = n->other && says_in_sync(n->world, n);
    node_address(n, address);
    n->wrote_primary = n->writes_primary;
    n->was_named =
        n->other && n->world->plan.pairs.coordinated && coord_names(n->index, address);
}

/* Does what the other one has count? A standby that was not in sync counts for nothing; who served before does, unless
 * this one was the primary by its claim or TERMS when it died, not having served yet. */
static bool is_heir(const struct world *w, const struct shard_record *rec)
{
    const struct node *n = node_of_record(w, rec);

    if (rec == w->records[rec->shard])
        return n->said_in_sync;
    return w->plan.pairs.coordinated ? n->said_in_sync || !n->was_named
                                     : !n->said_in_sync && !n->wrote_primary;
}

/* Both have lost some: whoever has more of one shard than the other serves, with what it has of all. Records that no
 * reply relied on count, too: a psd does not know which these are. */
static bool has_more_somewhere(struct world *w, const struct node *n)
{
    for (uint32_t i = 0; i < w->plan.shards_per_node; i++) {
        const struct shard_record *rec = node_record(n, i);

        if (rec->history.n > n_sure(w, other_of(w, rec)))
            return true;
    }
    return false;
}

static void check_serves(struct world *w, struct shard_record *rec)
{
    struct pair_line *line = &w->lines[rec->shard];
    const struct shard_record *other = other_of(w, rec);
    const uint64_t has = n_common(line, rec, UINT64_MAX),
                   other_had = is_heir(w, rec) ? n_common(line, other, n_sure(w, other)) : 0;

    if (line->is_given_up || has == line->n_promised)
        return;
    if (!plan_may_lose(&w->plan) ||
        (has < other_had && !has_more_somewhere(w, node_of_record(w, rec))))
        world_fail(w,
                   "shard %u: node %u%s serves, with %llu of %llu records that were promised; "
                   "the other one has %llu",
                   rec->shard, node_of_record(w, rec)->index,
                   rec->member ? ", its second member," : "", (unsigned long long)has,
                   (unsigned long long)line->n_promised, (unsigned long long)other_had);
    line->n_promised = has;
}

/* Without a claim, and with nobody to ask, a standby is to have heard that it is in sync since its start: before, its
 * primary may have gone on alone. */
static void check_may_serve(struct world *w, const struct node *n)
{
    bool has_heard = false;

    for (uint32_t i = 0; i < w->plan.shards_per_node; i++)
        has_heard = has_heard || node_record(n, i)->heard_in_sync;
    if (!has_heard && !w->plan.pairs.coordinated && !n->other->process && !n->wrote_primary &&
        !node_leads(n) && !w->lines[node_record(n, 0)->shard].is_given_up)
        world_fail(w,
                   "node %u, member %u: serves, and its primary has not said since its start "
                   "that it is in sync",
                   n->index, n->member);
}

static void on_death(void *owner, uint64_t is_power_cut, void *data)
{
    const struct node *n = owner;

    (void)data;
    if (!n->world->is_calm)
        node_kill(owner, is_power_cut);
}

/* What a promotion relies on is there in memory, and perhaps not yet on a disk. */
static void plan_deaths(struct node *n)
{
    struct dice d = dice_of(n->world->plan.seed, 200 + n->world->n_promotions);

    if (!n->world->plan.pairs.dies_soon || n->world->is_calm)
        return;
    for (int i = 0; i < 2; i++, n = n->other)
        if (dice_once_in(&d, 2))
            events_in(&machine.events, dice_from(&d, 100, 60000), on_death, n,
                      dice_once_in(&d, 2), NULL);
}

/* The one that was the primary may not have heard of it yet, and this one may not claim again before that one looks. */
static void plan_loss(const struct node *n)
{
    const struct world *w = n->world;
    struct dice d = dice_of(w->plan.seed, 300 + w->n_promotions);

    if (!w->plan.pairs.n_losses || w->is_calm || dice_once_in(&d, 4))
        return;
    coord_lose_keys(&d, 300000);
    if (dice_once_in(&d, 2))
        coord_hold(n->process, dice_from(&d, 1000000, 4000000));
    else if (dice_once_in(&d, 2))
        process_freeze(n->process, dice_from(&d, 1000000, 4000000));
}

static void lead(struct world *w, struct shard_record *rec)
{
    struct shard_record *before = w->records[rec->shard], *other = other_of(w, rec);

    rec->promised = w->lines[rec->shard].n_promised; /* by whomever */
    other->received = other->life.follower ? other->life.follower->received : other->history.n;
    if (rec == before)
        return;
    w->n_promotions++;
    for (uint32_t i = 0; i < PLAN_N_WORKERS_MAX; i++)
        rec->ranks[i] = before->ranks[i];
    rec->n_starts = before->n_starts;
    w->records[rec->shard] = rec;
    agree_started(w, rec->shard);
}

void pair_serves(struct node *n)
{
    struct world *w = n->world;

    if (!n->other)
        return;
    world_trace(w, "node %u, member %u: serves in term %llu", n->index, n->member,
                (unsigned long long)n->term);
    if (n->term <= n->other->served && n->other->served) {
        if (!w->lines[node_record(n, 0)->shard].is_given_up)
            world_fail(
                w, "node %u: a member serves in term %llu, the other one has served in %llu",
                n->index, (unsigned long long)n->term, (unsigned long long)n->other->served);
        return;
    }
    if (n->served && n->term <= n->served && n->served_life != n->n_lives)
        world_fail(w, "node %u: a member serves in term %llu, as before its restart", n->index,
                   (unsigned long long)n->term);
    check_may_serve(w, n);
    n->served = n->term;
    n->served_life = n->n_lives;
    if (!node_leads(n)) {
        plan_deaths(n);
        plan_loss(n);
    }
    for (uint32_t i = 0; i < w->plan.shards_per_node; i++) {
        check_serves(w, node_record(n, i));
        lead(w, node_record(n, i));
    }
}

void pair_give_up(struct node *n)
{
    for (uint32_t i = 0; i < n->world->plan.shards_per_node; i++)
        n->world->lines[node_record(n, i)->shard].is_given_up = true;
}

/* --- a person --- */

/* A member whose disk has failed between its claim and its TERMS, and which has died then, is named as the primary and
 * does not know whether its directory is the one that it had: a person has to say so. */
static struct node *who_needs_a_person(const struct world *w)
{
    struct node *n;

    for (uint32_t i = 0; (n = node_nth(w, i)) != NULL; i++)
        if (w->plan.pairs.coordinated && n->other && n->lacks_terms && n->process &&
            !n->is_serving)
            return n;
    return NULL;
}

static void on_done(void *owner)
{
    (void)owner;
}

static void accept_loss(void *owner)
{
    (void)node_command(owner, "promote", "accept-loss", 60000);
}

/* A person, who has seen to it that the primary is dead and stays so. */
struct promotion {
    struct node *dead, *to;
    bool is_lossy;
};

static void promote(void *owner)
{
    const struct promotion *p = owner;
    const char *words = p->is_lossy ? "the-other-is-dead accept-loss" : "the-other-is-dead";
    int status = -EAGAIN;

    for (int i = 0; i < 20 && status; i++) {
        status =
            node_command(p->to, "promote",
                         dice_once_in(&machine.dice, 2) && !p->is_lossy ? "" : words, 60000);
        fiber_sleep(100000);
    }
}

/* Whatever has become of it, the other one may come back. */
static void on_promoted(void *owner)
{
    struct promotion *p = owner;

    p->dead->is_held = false;
    if (!p->dead->process)
        node_start(p->dead);
    free(p);
}

void pair_promote(struct node *leader, bool is_lossy, struct dice *d)
{
    struct promotion *p;

    if (!leader->process || leader->is_held)
        return;
    p = malloc(sizeof *p);
    assert(p);
    *p = (struct promotion){ leader, leader->other, is_lossy };
    leader->is_held = true;
    node_kill(leader, dice_once_in(d, 2));
    if (is_lossy)
        pair_give_up(leader);
    process_start("operator", NULL, promote, on_promoted, p)->node = UINT32_MAX;
}

/* What `psctl why` shows of a member names one of these commands; else "". */
static const char *what_to_do(const struct node *n)
{
    const char *words = "";
    char *said = NULL;

    if (!n->process || node_ask(n, "why", "", 5000, &said) || !said)
        return "";
    world_trace(n->world, "why of node %u%s: %s", n->index, n->member ? "'" : "", said);
    if (strstr(said, "promote --accept-loss"))
        words = "accept-loss";
    else if (strstr(said, "(psctl promote)"))
        words = "promote";
    free(said);
    return words;
}

/* Both may lack something: a promotion that does not accept a loss first, of either; then one that does, of the member
 * that served last. What it lacks is lost, and nothing else is checked less. */
static void help(void *owner)
{
    struct node *first = node_leads(owner) ? owner : ((struct node *)owner)->other;

    for (int i = 0; i < 4; i++) {
        struct node *n = i % 2 ? first->other : first;
        const char *words = what_to_do(n);
        int status;

        if (!words[0] || (i < 2 && strcmp(words, "accept-loss") == 0))
            continue;
        if (i >= 2)
            pair_give_up(n);
        status = node_command(n, "promote", i < 2 ? "" : "accept-loss", 60000);
        if (i >= 2 && status == -EEXIST) /* "stop it first" */
            pair_promote(n->other, true, &n->world->dice);
        if (!status || (i >= 2 && status == -EEXIST))
            return;
    }
}

bool pair_sends_a_person(struct world *w)
{
    struct node *n = who_needs_a_person(w);

    if (w->has_sent_a_person)
        return false;
    w->has_sent_a_person = true;
    if (n) {
        pair_give_up(n);
        process_start("operator", NULL, accept_loss, on_done, n)->node = UINT32_MAX;
    }
    for (uint32_t i = 0; !n && coord_has_lost_keys() && i < w->plan.n_nodes; i++)
        if (w->nodes[i].other)
            process_start("operator", NULL, help, on_done, &w->nodes[i])->node = UINT32_MAX;
    return n || coord_has_lost_keys();
}

/* --- copies --- */

void pair_copy_begins(struct node *n)
{
    for (uint32_t i = 0; i < n->world->plan.shards_per_node; i++) {
        struct shard_record *rec = node_record(n, i);

        rec->history.n = rec->safe = rec->written = rec->saved = rec->due = rec->promised = 0;
        rec->lost = 0;
        rec->has_copied = false;
    }
    n->n_saves = n->n_done = 0;
}

void pair_has_copied(struct node *n)
{
    for (uint32_t i = 0; i < n->world->plan.shards_per_node; i++)
        node_record(n, i)->has_copied = true;
}

void pair_adopt(struct world *w, struct shard_record *rec, uint64_t last)
{
    const struct shard_record *other = other_of(w, rec);

    if (other->history.n < last)
        world_fail(w, "shard %u: a copy has %llu records, the primary %llu", rec->shard,
                   (unsigned long long)last, (unsigned long long)other->history.n);
    rec->history.n = 0;
    for (uint64_t i = 0; i < last; i++) {
        struct fact fact = other->history.facts[i];

        fact.here_us = machine_now_us();
        fact.at_held_us = 0;
        history_add(&rec->history, &fact);
    }
    rec->safe = rec->written = rec->saved = rec->due = last;
    rec->promised = rec->lost = 0;
    rec->has_copied = false;
}

/* --- the end --- */

bool pair_is_safe(const struct node *n)
{
    const struct world *w = n->world;
    const struct node *leader = n->other;

    for (uint32_t i = 0; i < w->plan.shards_per_node; i++) {
        const struct shard_record *rec = node_record(n, i), *leads = node_record(leader, i);

        if (!rec->life.core || !rec->life.follower || rec->history.n != leads->history.n ||
            (rec->history.n && rec->history.facts[rec->history.n - 1].id !=
                                   leads->history.facts[leads->history.n - 1].id))
            return false;
    }
    return w->plan.pairs.ack == TERMS_ACK_NO || leader->is_in_sync;
}

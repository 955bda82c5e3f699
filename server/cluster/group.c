#include "server/cluster/group.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define STALL_MS 200u /* a tick that is later by this: this process stood still itself */
#define FRESH_MS 150u /* a standby that answered in this time is there */
#define LAG_MAX 4096u /* records; nearer than this, acknowledgements may wait for the standby */
#define ASK_MS 200u   /* between two TAKE_OVER */
#define DRAIN_MS 5000u /* a switch that takes longer is given up */
#define PATIENCE_SHIFT_MAX 3u

/* --- actions --- */

static struct group_action *add_action(struct group *g, enum group_action_kind kind)
{
    struct group_action *a = &g->actions[g->n_actions];

    assert(g->n_actions < GROUP_ACTIONS_MAX);
    g->n_actions++;
    *a = (struct group_action){ .kind = kind };
    return a;
}

bool group_next_action(struct group *g, struct group_action *ret)
{
    if (g->n_actions == 0)
        return false;
    *ret = g->actions[0];
    memmove(g->actions, g->actions + 1, --g->n_actions * sizeof *g->actions);
    return true;
}

static struct group_message *send_message(struct group *g, enum group_message_kind kind,
                                          uint64_t term)
{
    struct group_message *m = &add_action(g, GROUP_SEND)->message;

    m->kind = kind;
    snprintf(m->from, sizeof m->from, "%s", g->config.name);
    m->run = g->config.run;
    m->term = term;
    m->sent_ms = g->now_ms;
    return m;
}

/* One transaction at a time. */
static void write_record(struct group *g, const struct group_record *r)
{
    struct group_action *a = add_action(g, GROUP_WRITE);

    assert(!g->is_writing);
    a->record = g->written = *r;
    a->if_revision = g->is_there ? g->revision : 0;
    g->is_writing = true;
}

static bool may_write(const struct group *g)
{
    return !g->is_writing && !g->must_read && !g->is_reading && !g->is_away && g->revision;
}

/* --- what the record says of this member --- */

static bool names_primary(const struct group *g)
{
    return g->is_there && strcmp(g->record.primary, g->config.name) == 0;
}

static bool names_standby(const struct group *g)
{
    return g->is_there && strcmp(g->record.standby, g->config.name) == 0;
}

static bool is_primary(const struct group *g)
{
    return names_primary(g) && g->record.primary_run == g->config.run;
}

static bool is_standby(const struct group *g)
{
    return names_standby(g) && g->record.standby_run == g->config.run;
}

/* A standby that has everything that was acknowledged: in this run, or on its disk. */
static bool may_take_over(const struct group *g)
{
    return g->record.in_sync && g->log.history == g->record.history &&
           (is_standby(g) ||
            (names_standby(g) && g->config.ack == GROUP_ACK_DURABLE && g->has_kept));
}

/* Three failovers in ten minutes double it. */
static uint64_t failover_after_ms(const struct group *g)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->n_failovers && i < 8; i++)
        n += g->now_ms - g->failovers_ms[i] < GROUP_FAILOVERS_MS;
    n /= 3;
    return (uint64_t)g->config.failover_after_ms
           << (n < PATIENCE_SHIFT_MAX ? n : PATIENCE_SHIFT_MAX);
}

/* --- primary --- */

static void reset_standby(struct group *g)
{
    g->received = g->standby_durable = 0;
    g->is_answered = g->is_gone = false;
    g->answered_ms = 0;
    g->alone_ms = g->progress_ms = g->now_ms;
}

static void become_primary(struct group *g)
{
    struct group_action *a = add_action(g, GROUP_LEAD);

    g->role = GROUP_PRIMARY;
    g->term = a->term = g->record.term;
    g->log.history = g->record.history;
    g->log.is_partial = false;
    g->has_kept = true;
    g->waits = g->record.in_sync;
    g->wait_from = UINT64_MAX;
    g->wait_revision = g->revision;
    g->has_asked = g->record.in_sync;
    g->is_draining = g->accepts_loss = g->is_called = false;
    g->parked_revision = 0;
    g->sent_ms = 0;
    g->other_run = 0;
    reset_standby(g);
    g->is_gone = g->record.in_sync; /* after a switch: the other one restarts now */
}

static void depose(struct group *g)
{
    if (g->role != GROUP_DEPOSED)
        add_action(g, GROUP_RESTART);
    g->role = GROUP_DEPOSED;
}

static void stop_waiting(struct group *g)
{
    g->waits = g->has_asked = false;
}

/* The record is one of this primary's own term. */
static void use_own_record(struct group *g, const struct group_record *before)
{
    if (before->standby_run != g->record.standby_run ||
        strcmp(before->standby, g->record.standby) != 0)
        reset_standby(g);
    if (!g->record.in_sync && g->revision > g->wait_revision)
        stop_waiting(g); /* no transaction on an older revision can say otherwise any more */
}

/* Out of sync first by transaction, then acknowledge without it. */
static bool wants_alone(const struct group *g)
{
    const uint64_t since = g->answer_ms > g->alone_ms ? g->answer_ms : g->alone_ms;

    if (!g->waits)
        return false;
    if (g->is_gone || g->other_run || g->now_ms - since >= g->config.standby_patience_ms)
        return true;
    return g->received < g->log.last &&
           g->now_ms - g->progress_ms >= g->config.standby_patience_ms;
}

static void go_alone(struct group *g)
{
    struct group_record r = g->record;

    if (!g->has_asked) {
        stop_waiting(g); /* nobody was told that it waits */
        return;
    }
    if (!may_write(g))
        return;
    r.in_sync = false;
    g->wait_revision = g->revision;
    write_record(g, &r);
}

/* Wait first; then the transaction, once the standby has all that was acknowledged without it. */
static void join_standby(struct group *g)
{
    struct group_record r = g->record;

    if (g->config.ack == GROUP_ACK_NOTHING || !g->record.standby[0] || g->record.in_sync ||
        !g->is_answered || g->now_ms - g->answered_ms > FRESH_MS)
        return;
    if (!g->waits) {
        if (g->received + LAG_MAX < g->log.last)
            return;
        g->waits = true;
        g->progress_ms = g->now_ms;
        g->wait_from = g->log.last;
        g->wait_revision = g->revision;
    }
    if (g->received < g->wait_from || !may_write(g))
        return;
    r.in_sync = g->has_asked = true;
    g->wait_revision = g->revision;
    write_record(g, &r);
}

static void hand_over(struct group *g)
{
    struct group_record r = g->record;

    /* Equal, and with fsync on its disk: it has to have what was acknowledged even if it restarts at once. */
    if (!g->record.in_sync || g->received < g->log.last ||
        (g->config.is_synced && g->standby_durable < g->log.last) || !may_write(g) ||
        g->now_ms - g->answered_ms > GROUP_PARK_MS)
        return;
    r.term++;
    snprintf(r.primary, sizeof r.primary, "%s", g->record.standby);
    r.primary_run = g->record.standby_run;
    snprintf(r.standby, sizeof r.standby, "%s", g->record.primary);
    r.standby_run = g->record.primary_run;
    g->parked_revision = g->revision;
    write_record(g, &r);
}

static void tick_primary(struct group *g)
{
    if (!g->sent_ms || g->now_ms - g->sent_ms >= GROUP_HEART_MS) {
        g->sent_ms = g->now_ms;
        send_message(g, GROUP_HEART, g->term)->lineage = g->log;
    }
    if (g->parked_revision && g->revision > g->parked_revision)
        g->parked_revision = 0;
    if (g->now_ms >= g->drain_until_ms)
        g->is_draining = false;
    if (wants_alone(g)) {
        g->is_draining = false;
        go_alone(g);
    } else if (g->parked_revision && may_write(g))
        write_record(g, &g->record); /* a switch that nobody knows of: this ends it */
    else if (g->is_draining && !g->parked_revision)
        hand_over(g);
    else
        join_standby(g);
}

/* --- standby --- */

static bool is_silent(const struct group *g)
{
    return g->is_called || g->now_ms - g->heard_ms >= failover_after_ms(g);
}

/* Once the record says so, this disk alone may have to have what was acknowledged. */
static bool is_safe(const struct group *g)
{
    return !g->config.is_synced || g->durable >= g->log.last;
}

/* Of the log with which it leads. If that is not of the record's history (a person had it serve, or the group was
 * created anew and its first primary never led), terms may mean other records there: it becomes a new history. */
static uint64_t own_history(const struct group *g)
{
    return g->log.history == g->record.history ? g->log.history : g->config.history;
}

/* From here on nothing of the term is answered. */
static void seal(struct group *g)
{
    g->role = GROUP_SEALED;
    g->follows = false;
    g->sealed_revision = g->revision;
    if (!is_safe(g))
        add_action(g, GROUP_SYNC);
}

/* The record has not changed since it was sealed: it asks, or asks once more as nobody knows of its transaction. */
static void tick_sealed(struct group *g)
{
    struct group_record r = g->record;

    if (!may_write(g) || g->revision != g->sealed_revision || !is_safe(g))
        return;
    r.term++;
    snprintf(r.primary, sizeof r.primary, "%s", g->config.name);
    r.primary_run = g->config.run;
    r.standby[0] = '\0';
    r.standby_run = 0;
    r.in_sync = false;
    r.history = own_history(g);
    write_record(g, &r);
}

static void tick_standby(struct group *g)
{
    if (g->is_rewinding || !may_write(g))
        return;
    if (g->accepts_loss || (may_take_over(g) && is_silent(g))) {
        seal(g);
        tick_sealed(g);
    } else if (g->role == GROUP_OUTSIDE && !g->record.in_sync &&
               (!g->record.standby[0] || names_standby(g))) {
        struct group_record r = g->record;

        snprintf(r.standby, sizeof r.standby, "%s", g->config.name);
        r.standby_run = g->config.run;
        write_record(g, &r);
    }
}

/* --- a primary that has returned --- */

static void lead_on(struct group *g)
{
    struct group_record r = g->record;

    r.term++;
    r.primary_run = g->config.run;
    r.in_sync = false;
    r.history = own_history(g);
    write_record(g, &r);
}

/* It has all that was acknowledged, as far as anybody has. */
static bool has_all(const struct group *g)
{
    if (g->is_called)
        return true;
    if (!g->has_kept || (g->log.last == 0 && g->log.history != g->record.history))
        return false; /* a new disk */
    return !g->record.in_sync || g->config.is_synced;
}

static void tick_returning(struct group *g)
{
    if (has_all(g) || g->accepts_loss) {
        if (may_write(g))
            lead_on(g);
    } else if (!g->sent_ms || g->now_ms - g->sent_ms >= ASK_MS) {
        g->sent_ms = g->now_ms;
        send_message(g, GROUP_TAKE_OVER, g->record.term)->lineage = g->log;
    }
}

/* Its history is on the disk before it is in the record: so a creator that restarts knows its log, empty or not, for
 * the group's, and an empty disk for one that was lost. */
static void create(struct group *g)
{
    struct group_record r = { .term = group_lineage_term(&g->log) + 1,
                              .primary_run = g->config.run,
                              .history = g->config.history };

    if (g->log.history != g->config.history) {
        g->is_rewinding = true;
        add_action(g, GROUP_BEGIN);
        return;
    }
    snprintf(r.primary, sizeof r.primary, "%s", g->config.name);
    write_record(g, &r);
}

/* --- the service --- */

static void note_failover(struct group *g, const struct group_record *before, bool was_there)
{
    if (was_there && g->is_there && g->record.term > before->term && !g->record.in_sync &&
        strcmp(before->primary, g->record.primary) != 0)
        g->failovers_ms[g->n_failovers++ % 8] = g->now_ms;
}

static void use_record(struct group *g, const struct group_record *before)
{
    if (g->role == GROUP_DEPOSED)
        return;
    if (g->role == GROUP_PRIMARY) {
        if (!is_primary(g) || g->record.term != g->term)
            depose(g);
        else
            use_own_record(g, before);
        return;
    }
    if (is_primary(g)) {
        become_primary(g);
        return;
    }
    if (names_primary(g)) {
        g->role = GROUP_RETURNING;
        g->is_called = g->accepts_loss = false;
        return;
    }
    g->role = is_standby(g) ? GROUP_STANDBY : GROUP_OUTSIDE;
    if (g->role == GROUP_STANDBY && g->record.in_sync && !g->has_kept) {
        g->has_kept = true;
        g->log.is_partial = false;
        add_action(g, GROUP_WHOLE);
    }
    g->is_called = g->accepts_loss = false;
    if (before->term != g->record.term || before->primary_run != g->record.primary_run)
        g->follows = false;
    if (before->in_sync != g->record.in_sync)
        g->heard_ms = g->now_ms;
}

void group_on_record(struct group *g, uint64_t now_ms, const struct group_record *record,
                     int64_t revision)
{
    const struct group_record before = g->record;
    const bool was_there = g->is_there;

    g->now_ms = now_ms;
    g->is_reading = g->must_read = false;
    if (revision <= g->revision)
        return;
    g->revision = revision;
    g->is_there = record != NULL;
    g->record = record ? *record : (struct group_record){ 0 };
    note_failover(g, &before, was_there);
    use_record(g, &before);
}

void group_on_unread(struct group *g, uint64_t now_ms)
{
    g->now_ms = now_ms;
    g->is_reading = false;
}

void group_on_away(struct group *g, uint64_t now_ms)
{
    g->now_ms = now_ms;
    g->is_away = true;
}

void group_on_back(struct group *g, uint64_t now_ms)
{
    g->now_ms = now_ms;
    g->is_away = false;
}

void group_on_written(struct group *g, uint64_t now_ms, int64_t revision)
{
    const struct group_record written = g->written;

    g->is_writing = false;
    g->must_read = revision == 0;
    if (revision)
        group_on_record(g, now_ms, &written, revision);
}

/* --- messages --- */

static bool is_from_primary(const struct group *g, const struct group_message *m)
{
    return g->is_there && m->term == g->record.term && m->run == g->record.primary_run &&
           strcmp(m->from, g->record.primary) == 0;
}

static void begin_to_follow(struct group *g, const struct group_message *m)
{
    const uint64_t common = group_lineage_common(&g->log, &m->lineage);

    g->term = m->term;
    g->followed_run = m->run;
    if (common && common == g->log.last && !g->config.has_many_logs) {
        g->follows = true;
        return;
    }
    g->is_rewinding = true;
    g->has_kept = false;
    g->log.is_partial = true;
    add_action(g, common ? GROUP_REWIND : GROUP_COPY)->last = common;
}

static void on_heart(struct group *g, const struct group_message *m)
{
    struct group_message *reply;

    if ((g->role != GROUP_STANDBY && g->role != GROUP_OUTSIDE) || !is_from_primary(g, m))
        return;
    g->heard_ms = g->now_ms;
    if (!g->is_rewinding && !g->follows)
        begin_to_follow(g, m);
    reply = send_message(g, GROUP_HEART_REPLY, m->term);
    reply->sent_ms = m->sent_ms;
    reply->follows = g->follows && g->term == m->term && g->followed_run == m->run;
    reply->received = g->log.last;
    reply->durable = g->durable;
}

static void use_answer(struct group *g, uint64_t received, uint64_t durable)
{
    const uint64_t number = g->config.ack == GROUP_ACK_DURABLE ? durable : received;

    if (number > g->received || g->received >= g->log.last)
        g->progress_ms = g->now_ms;
    if (number > g->received)
        g->received = number;
    if (durable > g->standby_durable)
        g->standby_durable = durable;
    g->answer_ms = g->now_ms;
    g->is_answered = true;
}

static void on_heart_reply(struct group *g, const struct group_message *m)
{
    if (g->role != GROUP_PRIMARY || m->term != g->term ||
        strcmp(m->from, g->record.standby) != 0)
        return;
    g->other_run = m->run == g->record.standby_run ? 0 : m->run;
    if (g->other_run || !m->follows)
        return;
    g->is_gone = false;
    if (m->sent_ms > g->answered_ms)
        g->answered_ms = m->sent_ms;
    g->answer_ms = g->now_ms;
    if (!g->config.has_many_logs)
        use_answer(g, m->received, m->durable);
}

/* Of a primary that has returned, and may lack what was acknowledged. */
static void on_take_over(struct group *g, const struct group_message *m)
{
    if ((g->role != GROUP_STANDBY && g->role != GROUP_OUTSIDE) || !names_standby(g) ||
        !g->record.in_sync || m->term != g->record.term ||
        strcmp(m->from, g->record.primary) != 0 || m->run == g->record.primary_run)
        return;
    if (is_standby(g) || may_take_over(g))
        g->is_called = true;
    else if (g->log.history == g->record.history &&
             group_lineage_compare(&g->log, &m->lineage) > 0)
        g->accepts_loss = true; /* of nothing but what neither has: both have restarted */
    else
        send_message(g, GROUP_YOU_DO, m->term)->lineage = g->log;
}

static void on_you_do(struct group *g, const struct group_message *m)
{
    if (g->role == GROUP_RETURNING && m->term == g->record.term &&
        strcmp(m->from, g->record.standby) == 0 && m->run != g->record.standby_run &&
        group_lineage_compare(&g->log, &m->lineage) >= 0)
        g->is_called = true;
}

void group_on_message(struct group *g, uint64_t now_ms, const struct group_message *m)
{
    g->now_ms = now_ms;
    switch (m->kind) {
    case GROUP_HEART:
        on_heart(g, m);
        break;
    case GROUP_HEART_REPLY:
        on_heart_reply(g, m);
        break;
    case GROUP_TAKE_OVER:
        on_take_over(g, m);
        break;
    case GROUP_YOU_DO:
        on_you_do(g, m);
        break;
    }
}

void group_on_gone(struct group *g, uint64_t now_ms)
{
    g->now_ms = now_ms;
    if (g->role == GROUP_PRIMARY)
        g->is_gone = true;
    else if (g->role == GROUP_STANDBY && g->record.in_sync)
        g->is_called = true;
}

/* --- the log --- */

void group_on_appended(struct group *g, uint64_t term, uint64_t number, bool lead)
{
    if (lead)
        group_lineage_add(&g->log, term, number);
    g->log.last = number;
}

void group_on_durable(struct group *g, uint64_t number)
{
    g->durable = number;
}

void group_on_rewound(struct group *g, uint64_t now_ms, const struct group_lineage *log)
{
    g->now_ms = now_ms;
    g->log = *log;
    g->durable = log->last;
    g->is_rewinding = false;
    /* The primary's log has only grown since. */
    g->follows = g->is_there && g->term == g->record.term &&
                 g->followed_run == g->record.primary_run &&
                 (g->role == GROUP_STANDBY || g->role == GROUP_OUTSIDE);
}

bool group_on_ship(struct group *g, uint64_t now_ms, uint64_t term, uint64_t primary_run)
{
    g->now_ms = now_ms;
    if ((g->role != GROUP_STANDBY && g->role != GROUP_OUTSIDE) || !g->follows ||
        g->term != term || g->followed_run != primary_run)
        return false;
    g->heard_ms = now_ms;
    return true;
}

void group_on_received(struct group *g, uint64_t now_ms, uint64_t term, uint64_t standby_run,
                       uint64_t received, uint64_t durable)
{
    g->now_ms = now_ms;
    if (g->role == GROUP_PRIMARY && term == g->term && standby_run == g->record.standby_run)
        use_answer(g, received, durable);
}

/* --- what the driver asks --- */

static bool is_parked(const struct group *g, uint64_t now_ms)
{
    return g->waits && (!g->is_answered || now_ms - g->answered_ms > GROUP_PARK_MS);
}

enum group_gate group_gate(const struct group *g, uint64_t now_ms)
{
    if (g->role != GROUP_PRIMARY || g->parked_revision || is_parked(g, now_ms))
        return GROUP_GATE_CLOSED;
    return g->waits ? GROUP_GATE_STANDBY : GROUP_GATE_OPEN;
}

uint64_t group_ack_limit(const struct group *g, uint64_t now_ms)
{
    switch (group_gate(g, now_ms)) {
    case GROUP_GATE_STANDBY:
        return g->received;
    case GROUP_GATE_OPEN:
        return UINT64_MAX;
    case GROUP_GATE_CLOSED:
        break;
    }
    return 0;
}

bool group_may_serve(const struct group *g, uint64_t now_ms)
{
    return group_gate(g, now_ms) != GROUP_GATE_CLOSED;
}

bool group_may_take(const struct group *g, uint64_t now_ms)
{
    return group_may_serve(g, now_ms) && !g->is_draining;
}

int group_switch(struct group *g, uint64_t now_ms)
{
    g->now_ms = now_ms;
    if (g->role != GROUP_PRIMARY || !g->record.in_sync)
        return -EAGAIN;
    g->is_draining = true;
    g->drain_until_ms = now_ms + DRAIN_MS;
    return 0;
}

void group_accept_loss(struct group *g, uint64_t now_ms)
{
    g->now_ms = now_ms;
    if (g->role == GROUP_STANDBY || g->role == GROUP_OUTSIDE || g->role == GROUP_RETURNING)
        g->accepts_loss = true;
}

void group_tick(struct group *g, uint64_t now_ms)
{
    g->now_ms = now_ms;
    if (now_ms - g->ticked_ms > STALL_MS && now_ms - g->heard_ms > STALL_MS)
        g->heard_ms = now_ms - STALL_MS; /* what came meanwhile could not be received */
    g->ticked_ms = now_ms;
    if (g->must_read && !g->is_reading && !g->is_writing) {
        g->is_reading = true;
        add_action(g, GROUP_READ);
    }
    switch (g->role) {
    case GROUP_OUTSIDE:
        if (g->revision && !g->is_there && g->config.may_create && !g->is_rewinding &&
            may_write(g))
            create(g);
        else if (g->is_there)
            tick_standby(g);
        break;
    case GROUP_STANDBY:
        tick_standby(g);
        break;
    case GROUP_SEALED:
        tick_sealed(g);
        break;
    case GROUP_RETURNING:
        tick_returning(g);
        break;
    case GROUP_PRIMARY:
        tick_primary(g);
        break;
    case GROUP_DEPOSED:
        break;
    }
}

void group_init(struct group *g, const struct group_config *config,
                const struct group_lineage *log, uint64_t now_ms)
{
    *g = (struct group){ .config = *config, .log = *log };
    g->durable = log->last;
    g->has_kept = log->history != 0 && !log->is_partial;
    g->now_ms = g->ticked_ms = g->heard_ms = now_ms;
}

static void why_primary(const struct group *g, uint64_t now_ms, char dst[static GROUP_WHY_MAX])
{
    const char *etcd = g->is_away
                           ? ", and the coordination service cannot be reached, so it may "
                             "not go on alone"
                           : "";

    if (g->parked_revision || g->is_draining)
        snprintf(dst, GROUP_WHY_MAX, "pushes wait: the group is handed over to %s",
                 g->record.standby);
    else if (is_parked(g, now_ms))
        snprintf(dst, GROUP_WHY_MAX, "pushes and pulls wait: standby %s does not answer%s",
                 g->record.standby, etcd);
    else if (g->waits && g->received < g->log.last)
        snprintf(dst, GROUP_WHY_MAX,
                 "pushes wait for %llu records that standby %s has not got%s",
                 (unsigned long long)(g->log.last - g->received), g->record.standby, etcd);
}

void group_why(const struct group *g, uint64_t now_ms, char dst[static GROUP_WHY_MAX])
{
    dst[0] = '\0';
    if (g->revision == 0)
        snprintf(dst, GROUP_WHY_MAX,
                 "the group's record has not been read yet: is the "
                 "coordination service there?");
    else if (g->role == GROUP_PRIMARY)
        why_primary(g, now_ms, dst);
    else if (g->role == GROUP_RETURNING && !has_all(g))
        snprintf(dst, GROUP_WHY_MAX,
                 "waits for %s, which may have records that this node has lost; psctl promote "
                 "--accept-loss goes on without",
                 g->record.standby[0] ? g->record.standby : "a standby");
    else if (g->role == GROUP_SEALED)
        snprintf(dst, GROUP_WHY_MAX, "asks to take over from %s", g->record.primary);
    else if (names_standby(g) && !is_standby(g) && g->record.in_sync)
        snprintf(dst, GROUP_WHY_MAX,
                 "waits for %s, as it was restarted and may lack records; psctl promote "
                 "--accept-loss goes on without",
                 g->record.primary);
    else if (!g->is_there)
        snprintf(dst, GROUP_WHY_MAX, "the group has not been created yet");
}

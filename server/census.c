#include "server/census.h"

#include <stdio.h>

#include "common/now.h"

/* Where guests who have not said hello are listed. */
struct greeting_list {
    struct census *census;
    const struct census_sources *from;
};

/* Room for one more wait, or NULL. */
static struct report_wait *add_wait(struct census *c, uint64_t since_unix_ms)
{
    struct report_wait *wait;

    if (c->report.n_waits == FACTS_N_WAITS_MAX)
        return NULL;
    wait = &c->waits[c->report.n_waits++];
    *wait = (struct report_wait){ .since_unix_ms = since_unix_ms };
    return wait;
}

static void add_greeting(void *arg, const char *peer, uint64_t since_ms)
{
    struct greeting_list *list = arg;
    uint64_t waited_ms = uv_now(list->from->loop) - since_ms;
    struct report_wait *wait = add_wait(list->census, now_unix_ms() - waited_ms);

    if (!wait)
        return;
    wait->until_unix_ms = wait->since_unix_ms + list->from->greeting_ms;
    snprintf(wait->what, sizeof wait->what, "greeting");
    snprintf(wait->who, sizeof wait->who, "%.90s", peer);
    snprintf(wait->why, sizeof wait->why, "it has connected and not said hello");
}

static void add_checkpoint(struct census *c, const struct census_sources *from) ON_MAIN
{
    const struct keeper_record *record = keeper_record(from->keeper);
    struct report_wait *wait;

    c->report.checkpoints_done = record->n_done;
    c->report.checkpoints_failed = record->n_failed;
    c->report.last_checkpoint_number = record->number;
    c->report.last_checkpoint_unix_ms = record->unix_ms;
    snprintf(c->report.last_checkpoint_error, sizeof c->report.last_checkpoint_error, "%.199s",
             record->error.status ? record->error.text : "");
    c->report.checkpoint_number = record->busy_number;
    c->report.checkpoint_since_unix_ms = record->busy_since_unix_ms;
    c->report.checkpoint_until_unix_ms = record->until_unix_ms;
    wait = record->busy_since_unix_ms ? add_wait(c, record->busy_since_unix_ms) : NULL;
    if (!wait)
        return;
    snprintf(wait->what, sizeof wait->what, "checkpoint");
    snprintf(wait->who, sizeof wait->who, "this node");
    snprintf(wait->why, sizeof wait->why, "its shards write their files");
    if (!from->stopping) /* the last one is waited for to its end */
        wait->until_unix_ms = record->until_unix_ms;
}

static void count_net(struct report_net *net, const struct census_sources *from) ON_MAIN
{
    struct switchboard_counts operators;
    struct door_counts door;

    desk_count(from->desk, &operators, &net->refused_requests);
    if (!from->door)
        return;
    door_count(from->door, &door);
    net->connections = door.greetings + operators.connections;
    net->connections_total = door.accepted;
    net->bytes_in = door.bytes_in + operators.bytes_in;
    net->bytes_out = door.bytes_out + operators.bytes_out;
    net->malformed_frames = door.malformed + operators.malformed;
    net->refused_greetings = door.refused;
    net->slow_peers = door.slow + operators.slow;
}

void census_publish(struct census *c, const struct census_sources *from, struct facts *facts)
{
    struct greeting_list list = { .census = c, .from = from };

    c->report.n_waits = 0;
    c->report.waits = c->waits;
    c->report.ready = from->ready;
    c->report.stopping = from->stopping;
    if (from->door)
        door_each_greeting(from->door, add_greeting, &list);
    if (from->keeper)
        add_checkpoint(c, from);
    count_net(&c->report.door, from);
    facts_publish(facts, &c->report);
}

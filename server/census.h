/* Draws up what the main thread knows about the node (door, operators, checkpoints) and
 * publishes it (facts.h). */
#ifndef SERVER_CENSUS_H
#define SERVER_CENSUS_H

#include "server/desk.h"
#include "server/facts.h"
#include "server/keeper.h"
#include "server/net/door.h"

struct census {
    struct node_report report; /* the draft; its constant fields are set by the node */
    struct report_wait waits[FACTS_N_WAITS_MAX];
};

struct census_sources {
    uv_loop_t *loop;
    const struct door *door; /* NULL: closed; what it counted last stays */
    const struct desk *desk;
    const struct keeper *keeper; /* NULL: no data directory */
    uint64_t greeting_ms;
    bool ready, stopping;
};

void census_publish(struct census *c, const struct census_sources *from, struct facts *facts)
    ON_MAIN;

#endif

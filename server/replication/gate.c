#include "server/replication/gate.h"

void gate_begin(struct gate *g, uint64_t keep)
{
    g->received = keep;
    g->durable = g->applied = 0;
    g->seen_appended = UINT64_MAX;
    g->seen_ms = g->caught_up_ms = 0;
}

int gate_fetch(struct gate *g, const struct fetch *fetch, uint64_t appended, uint64_t now_ms)
{
    if (!fetch->next || fetch->next - 1 > appended || fetch->durable >= fetch->next ||
        fetch->applied >= fetch->next || fetch->next - 1 < g->received)
        return PS_EPROTO;
    g->received = fetch->next - 1;
    if (fetch->durable > g->durable)
        g->durable = fetch->durable;
    g->applied = fetch->applied;
    if (g->received >= g->seen_appended)
        g->caught_up_ms = g->seen_ms;
    if (g->received == appended)
        g->caught_up_ms = now_ms;
    g->seen_appended = appended;
    g->seen_ms = now_ms;
    return 0;
}

void gate_close(struct gate *g, uint64_t appended)
{
    if (g->mode != GATE_OPEN)
        return;
    g->mode = GATE_WAITS;
    g->closed_at = appended;
}

void gate_open(struct gate *g)
{
    if (g->mode == GATE_WAITS)
        g->mode = GATE_OPEN;
}

void gate_seal(struct gate *g)
{
    if (g->mode == GATE_SEALED)
        return;
    g->sealed_at = g->mode == GATE_WAITS && g->ack != TERMS_ACK_NO ? gate_held(g) : 0;
    g->mode = GATE_SEALED;
}

uint64_t gate_held(const struct gate *g)
{
    return g->ack == TERMS_ACK_DISK ? g->durable : g->received;
}

uint64_t gate_acknowledged(const struct gate *g)
{
    if (g->mode == GATE_SEALED)
        return g->sealed_at;
    if (g->mode == GATE_OPEN || g->ack == TERMS_ACK_NO)
        return UINT64_MAX;
    return gate_held(g);
}

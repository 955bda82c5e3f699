/*
 * Suspects, in a worker's beat and in its reply: workers whose lease is over at a shard, and who are dead once all
 * shards refuse them (server/core/suspicion.h).
 */
#ifndef SERVER_REQUESTS_BEAT_SUSPECTS_H
#define SERVER_REQUESTS_BEAT_SUSPECTS_H

#include "proto/message.h"
#include "server/core/membership.h"

/* What a worker has heard of others, and of itself. True if one of these stopped counting. */
bool beat_suspects_report(struct membership *membership, struct worker *from,
                          const struct suspects *all, uint64_t now_ms);

/* Suspects for this worker, and its doubts about those that it has named. */
void beat_suspects_answer(const struct worker *to, const struct suspects *named,
                          struct status_reply *answer);

#endif

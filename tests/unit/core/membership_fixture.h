/* Jobs and their workers, as the tests of membership.h need them. */
#ifndef TESTS_UNIT_CORE_MEMBERSHIP_FIXTURE_H
#define TESTS_UNIT_CORE_MEMBERSHIP_FIXTURE_H

#include "fixture.h"
#include "server/core/membership.h"

/* Of job "job", in bounded staleness. */
struct membership_join ask(uint32_t rank, uint32_t n_workers, uint64_t incarnation);

/* Of three that relay. */
struct membership_join ask_relay(uint32_t rank, uint64_t incarnation);

int try_join(struct membership *r, struct membership_join join, uint64_t now_ms,
             struct worker **ret_worker);
struct worker *must_join(struct membership *r, struct membership_join join, uint64_t now_ms);

/* Three that relay, of incarnation 7, of which rank 2 is returned. */
struct worker *join_three(struct membership *r);

/* A message of it comes. */
void hear(struct membership *r, uint32_t rank, uint64_t now_ms);

#endif

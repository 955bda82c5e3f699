/*
 * What two psd of a pair may do with a shard. Each record that a primary makes has an id, and knows the one before it; so
 * the records of all primaries that a shard ever had are a tree, and each log is a way from its root.
 *
 *     a standby's record      is one that a primary made behind the one before
 *     a reply                 relies on records that whoever serves has; while the disk (TERMS), or the coordination
 *                             service, says that the standby is in sync, it has them, too, as --standby-ack says
 *     a pull                  while it says so: the standby knows of all workers that are gone, and is not about to take
 *                             over, having heard nothing for so long
 *     whoever begins to serve has all that replies relied on; without fsync at least what one of both members still
 *                             had, or had on a disk that was not lost
 */
#ifndef TESTS_SIM_PAIR_H
#define TESTS_SIM_PAIR_H

#include "tests/sim/node.h"

struct pair_record;

struct pair_line {
    struct pair_record *records; /* owned: that primaries made; id n stands at n - 1 */
    uint64_t n, cap;
    uint64_t *promised; /* owned: ids that replies relied on, by number */
    uint64_t n_promised, cap_promised;
    bool is_given_up; /* a person has accepted a loss: nothing is held any more */
};

void pair_begin(struct world *w);
void pair_end(struct world *w);

/* Before it is added to the record's history: gives it its id. */
void pair_recorded(struct world *w, struct shard_record *rec, struct fact *fact);

/* A reply leaves that relies on all up to this record. */
void pair_promised(struct world *w, struct shard_record *rec, uint64_t number);

/* Its TERMS says that the standby is in sync. */
void pair_says_in_sync(struct node *n);

/* `run` is called once, as an event, soon behind the next promise of this primary. False: another one is awaited. */
bool pair_await_promise(const struct node *n,
                        void (*run)(void *owner, uint64_t number, void *data), void *owner);

/* The running thread of a standby's shard has an answer of its primary's. */
void pair_heard(struct node *n, bool in_sync);

/* A worker's pull is answered. */
void pair_pulled(struct world *w, struct shard_record *rec);

/* Its process begins. */
void pair_starts(struct node *n);

/* It begins to serve: after a start, or a promotion. */
void pair_serves(struct node *n);

/* A standby has begun, or ended, a copy of its primary. */
void pair_copy_begins(struct node *n);
void pair_has_copied(struct node *n);

/* What is loaded came from the other member. */
void pair_adopt(struct world *w, struct shard_record *rec, uint64_t last);

/* A person, who has seen to it that this primary is dead and stays so, promotes the other member. */
void pair_promote(struct node *leader, bool is_lossy, struct dice *d);

/* A person promotes it with --accept-loss. */
void pair_give_up(struct node *n);
/* When nothing has happened for long: once, to a member that only a person can help. False: there is none. */
bool pair_sends_a_person(struct world *w);

/* It follows, and has all that the other one has; in sync, if it is to be. */
bool pair_is_safe(const struct node *n);

#endif

/*
 * One member of a replica group: who serves, whose word an acknowledgement needs, and when the other one takes over. A
 * value without I/O: time, messages and the coordination service's answers are arguments, what is to be done comes out
 * as actions. README.md of this folder: the rules, and how to drive one.
 *
 *                       +---------- record names another -----------+
 *                       v                                           |
 *     OUTSIDE --slot--> STANDBY --silence--> SEALED --made--> PRIMARY --another leads--> DEPOSED (restart)
 *        ^                 ^                    |                ^
 *        | restart         +---- not made ------+                |
 *     (start) ------ record names this member, of an earlier run: RETURNING
 *
 * A primary of term t acknowledges a record if (a) the standby that the record calls in sync has it, or (b) its own
 * compare-and-swap of term t said that none is in sync, and it has not begun to wait for one since.
 */
#ifndef SERVER_CLUSTER_GROUP_H
#define SERVER_CLUSTER_GROUP_H

#include "server/cluster/group_record.h"

#define GROUP_HEART_MS 50u
#define GROUP_PARK_MS 500u /* below the shortest failover_after_ms, by more than clocks drift */
#define GROUP_FAILOVERS_MS 600000u
#define GROUP_ACTIONS_MAX 16u
#define GROUP_WHY_MAX 256u

/* What of the standby an acknowledgement waits for. Nothing: it is never in sync, and a person promotes it. */
enum group_ack { GROUP_ACK_NOTHING, GROUP_ACK_RECEIVED, GROUP_ACK_DURABLE };

struct group_config {
    char name[GROUP_NAME_MAX];
    uint64_t run;     /* random, of this start of the process */
    uint64_t history; /* random: of the log, if this run begins a new history */
    enum group_ack ack;
    bool is_synced; /* records are on this disk before they are acknowledged (fsync) */
    bool
        has_many_logs; /* the driver compares them, and counts marks: README.md, "Several logs" */
    bool may_create;   /* the group, if the service has no record of it */
    uint32_t failover_after_ms, standby_patience_ms; /* 700, 2000 */
};

enum group_role {
    GROUP_OUTSIDE, /* not named by the record, or no record is known */
    GROUP_STANDBY,
    GROUP_SEALED,    /* answers nothing of the term, and asks to be primary */
    GROUP_RETURNING, /* the record names an earlier run as primary */
    GROUP_PRIMARY,
    GROUP_DEPOSED,
};

enum group_message_kind {
    GROUP_HEART, /* primary to standby, every GROUP_HEART_MS */
    GROUP_HEART_REPLY,
    GROUP_TAKE_OVER, /* a primary that has returned may lack records: the longer log serves */
    GROUP_YOU_DO,    /* ... and the asked one's is not longer */
};

struct group_message {
    enum group_message_kind kind;
    char from[GROUP_NAME_MAX];
    uint64_t run, term;
    uint64_t sent_ms;             /* HEART: by the sender's clock; HEART_REPLY: echoed */
    bool follows;                 /* HEART_REPLY: what stands below is of this term's log */
    uint64_t received, durable;   /* HEART_REPLY: record numbers */
    struct group_lineage lineage; /* of the sender's log, but in HEART_REPLY */
};

enum group_action_kind {
    GROUP_SEND, /* message, to the other member */
    GROUP_WRITE, /* record, if the key's revision is if_revision: put_if; then group_on_written() */
    GROUP_READ, /* the record is to be read anew: get; then group_on_record() or, if it failed, group_on_unread() */
    GROUP_SYNC, /* the log to the disk now, then group_on_durable() */
    GROUP_LEAD, /* append LEAD of `term` to the log, which is not partial; serve */
    GROUP_REWIND,  /* the log is partial; set aside what is behind `last`; group_on_rewound() */
    GROUP_COPY,    /* no record is common: likewise, with all files from the primary */
    GROUP_WHOLE,   /* the log is no longer partial: its directory says so */
    GROUP_BEGIN,   /* the log on the disk gets the history of config, then group_on_rewound() */
    GROUP_RESTART, /* this process ends, and starts anew */
};

struct group_action {
    enum group_action_kind kind;
    struct group_message message;
    struct group_record record;
    int64_t if_revision;
    uint64_t term, last;
};

struct group {
    struct group_config config;
    struct group_lineage log; /* this member's */
    uint64_t durable;         /* of it */
    uint64_t now_ms, ticked_ms;

    /* What is known of the service. revision 0: nothing yet. */
    struct group_record record;
    int64_t revision;
    bool is_there; /* the record; not yet: the group is to be created */
    bool is_away;
    bool is_writing, is_reading, must_read;
    struct group_record written; /* of the transaction under way */

    enum group_role role;
    uint64_t term; /* PRIMARY: its own; STANDBY, SEALED: which it follows */

    /* STANDBY */
    bool follows, is_rewinding;
    bool has_kept;                /* its disk has all that it had when it was in sync, or led */
    uint64_t followed_run;        /* of the primary */
    uint64_t heard_ms;            /* something of the primary was received */
    int64_t sealed_revision;      /* a transaction on it is under way, or was */
    bool is_called, accepts_loss; /* to take over; by a person */

    /* PRIMARY */
    bool waits;         /* (a): acknowledgements need the standby */
    uint64_t wait_from; /* the last record that was acknowledged without it, at most */
    int64_t
        wait_revision; /* since this revision; what the record said until then does not count */
    bool has_asked;    /* ... a transaction said "in sync" since */
    bool is_gone;      /* the standby's process */
    bool is_draining;
    uint64_t drain_until_ms, progress_ms; /* of the standby's `received` */
    int64_t parked_revision; /* a transaction that ends the term is under way on it */
    uint64_t received, standby_durable; /* of the record's standby; received: by config.ack */
    bool is_answered;
    uint64_t answered_ms; /* when the newest heartbeat that was answered had been sent */
    uint64_t answer_ms,
        alone_ms;       /* when an answer came; since when the standby is looked out for */
    uint64_t sent_ms;   /* the last heartbeat, or TAKE_OVER */
    uint64_t other_run; /* of the standby's member, where it is not the record's */

    uint64_t failovers_ms[8];
    uint32_t n_failovers;

    struct group_action actions[GROUP_ACTIONS_MAX];
    uint32_t n_actions;
};

/* log: this member's, as it was recovered. */
void group_init(struct group *g, const struct group_config *config,
                const struct group_lineage *log, uint64_t now_ms);

/* Takes the next action, in order. False: there is none. Call it until then after each call below. */
bool group_next_action(struct group *g, struct group_action *ret);

/* Every 25 ms or more often, after all input that has come was given. */
void group_tick(struct group *g, uint64_t now_ms);

/* The record at a revision, from a watch or a read; NULL: there is none. Older ones are passed over. */
void group_on_record(struct group *g, uint64_t now_ms, const struct group_record *record,
                     int64_t revision);
void group_on_unread(struct group *g, uint64_t now_ms);
void group_on_away(struct group *g, uint64_t now_ms);
void group_on_back(struct group *g, uint64_t now_ms);

/* The answer to GROUP_WRITE. revision: of the transaction that was made; 0: it was not made, or nobody knows. */
void group_on_written(struct group *g, uint64_t now_ms, int64_t revision);

void group_on_message(struct group *g, uint64_t now_ms, const struct group_message *m);

/* The connection to the other member has ended, and a new one is refused: its process is gone. */
void group_on_gone(struct group *g, uint64_t now_ms);

/* The log has this record now, of the term that it serves or follows (LEAD: lead is true); and is durable up to. */
void group_on_appended(struct group *g, uint64_t term, uint64_t number, bool lead);
void group_on_durable(struct group *g, uint64_t number);
void group_on_rewound(struct group *g, uint64_t now_ms, const struct group_lineage *log);

/* A standby: may it append records of this term from this run of the primary, and answer for them? It has heard of it
 * then. */
bool group_on_ship(struct group *g, uint64_t now_ms, uint64_t term, uint64_t primary_run);

/* A primary: its standby's answer, to records. (HEART_REPLY says the same.) */
void group_on_received(struct group *g, uint64_t now_ms, uint64_t term, uint64_t standby_run,
                       uint64_t received, uint64_t durable);

/* Whose word an acknowledgement needs now. */
enum group_gate { GROUP_GATE_CLOSED, GROUP_GATE_STANDBY, GROUP_GATE_OPEN };
enum group_gate group_gate(const struct group *g, uint64_t now_ms);

/* The newest record that may be acknowledged as far as the standby matters; UINT64_MAX: all. */
uint64_t group_ack_limit(const struct group *g, uint64_t now_ms);

/* May reads be answered, and pushes taken? */
bool group_may_serve(const struct group *g, uint64_t now_ms);
bool group_may_take(const struct group *g, uint64_t now_ms);

/* By a person. Switch: the standby takes over, once it has everything. -EAGAIN: not the primary, or none in sync. */
int group_switch(struct group *g, uint64_t now_ms);
/* This member serves with what it has. */
void group_accept_loss(struct group *g, uint64_t now_ms);

/* Why acknowledgements, or the member, wait: a sentence; "": they do not. */
void group_why(const struct group *g, uint64_t now_ms, char dst[static GROUP_WHY_MAX]);

#endif

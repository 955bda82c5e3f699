/* Two members, their logs and disks, the links between them, and the store; all on simulated time. */
#ifndef TESTS_GROUP_SIM_WORLD_H
#define TESTS_GROUP_SIM_WORLD_H

#include "server/cluster/coord_mem.h"
#include "server/cluster/group.h"

#define WORLD_MEMBERS 2
#define WORLD_LOG_MAX 6000u
#define WORLD_BOOTS_MAX 400u
#define WORLD_TERMS_MAX 2000u
#define WORLD_SHIP_MAX 32u
#define WORLD_EVENTS_MAX 20000u
#define WORLD_FAULTS_MS 15000u /* of a schedule; then it has to come to rest */
#define WORLD_HELP_MS 30000u
#define WORLD_END_MS 60000u

struct entry {
    uint64_t term, value, hash; /* hash: of all until here */
    bool is_lead;
};

struct member;
struct boot {
    struct member *member;
    uint32_t number;
};

struct member {
    struct world *w;
    int index;
    bool is_up;
    uint64_t person_run; /* a person had this run promoted */
    uint32_t boot;
    struct boot boots[WORLD_BOOTS_MAX];
    struct group g;
    struct group_config config;
    struct coord *client;
    uint32_t client_number;
    struct coord_watch *watch;
    double rate;       /* of its clock */
    uint64_t disk_lag; /* a tick in so many writes its log */
    uint64_t paused_until_ms, offset_ms;
    /* Its log: entries[0 .. last), of which n_disk are on the disk. */
    struct entry entries[WORLD_LOG_MAX];
    uint64_t last, n_disk, history;
    bool is_partial;
    uint64_t acked; /* by this primary, in its term */
    bool peer_follows;
    uint64_t peer_last, shipped_ms;
    uint32_t peer_boot;
};

enum event_kind {
    EVENT_TICK,
    EVENT_FAULT,
    EVENT_PUSH,
    EVENT_START,
    EVENT_KILL,
    EVENT_PAUSE,
    EVENT_MESSAGE,
    EVENT_SHIP,
    EVENT_SHIPPED,
    EVENT_GONE,
    EVENT_RECORD,
    EVENT_WRITTEN,
    EVENT_UNREAD,
    EVENT_AWAY,
    EVENT_BACK,
    EVENT_REWOUND,
    EVENT_STORE_BACK,
};

struct ship {
    uint64_t term, run, first, prev_hash, n, received, durable;
    struct entry entries[WORLD_SHIP_MAX];
};

struct event {
    uint64_t due_ms, order;
    enum event_kind kind;
    int member, from;
    uint32_t boot; /* of the member it is for; for another one it is lost */
    union {
        struct group_message message;
        struct ship *ship; /* owned */
        struct {
            struct group_record record;
            bool is_there;
            int64_t revision;
        } at;
        struct {
            uint64_t last;
            enum group_action_kind kind;
        } rewind;
    };
};

struct promise {
    uint64_t number;
    bool is_acked, is_excused;
};

struct world_counts {
    uint64_t n_leads, n_switches, n_kills, n_acknowledged, n_excused;
};

struct world {
    uint64_t seed, n_draws, now_ms, n_orders;
    struct world_counts *counts;
    struct coord_mem *store;
    struct member members[WORLD_MEMBERS];
    struct event *heap[WORLD_EVENTS_MAX];
    uint32_t n_events;
    uint64_t stalled_until_ms[WORLD_MEMBERS]; /* what this member sends */
    bool drops[WORLD_MEMBERS];                /* ... is lost then, else late */
    uint64_t n_runs, n_values, theme, rest_from;
    struct promise promises[2 * WORLD_LOG_MAX];
    struct group_record truth; /* what the store has */
    int64_t truth_revision;
    bool is_true;               /* it has one */
    int acker[WORLD_TERMS_MAX]; /* of each term: 1 + member */
    bool is_quiet;              /* the faults are over */
    bool is_person_asked;       /* the group is created anew, with what its creator has */
    bool has_lost,
        is_helped; /* a disk, or what a person gave up; a person has ended a wait for that */
    enum group_ack ack;
    bool is_synced;
    uint32_t push_ms, call_ms;
    char violation[300];
    bool is_violated;
    bool is_traced; /* --trace: what happens is printed */
};

/* One schedule. False: w->violation says what was broken. */
bool world_run(struct world *w, uint64_t seed, struct world_counts *counts);

/* --- for the parts of the simulation --- */

uint64_t world_draw(struct world *w, uint64_t below);
void world_violate(struct world *w, const char *fmt, ...) PRINTF_LIKE(2, 3);

void world_trace(const struct world *w, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Takes a zeroed event from malloc, adds it, due in in_ms. */
struct event *world_event(struct world *w, enum event_kind kind, int member, uint64_t in_ms);
uint64_t world_clock(const struct member *m);

/* member.c: what happens at one member. */
void member_start(struct member *m);
void member_kill(struct member *m);
void member_event(struct member *m, struct event *e);
void member_push(struct member *m);
struct group_lineage member_lineage(const struct member *m, uint64_t last);

/* check.c: promises. */
void check_update_truth(struct world *w);
void check_ack(struct member *m, uint64_t number);
void check_lead(struct member *m);
void check_serves(struct member *m);
void check_excuse(struct world *w);

/* faults.c */
void faults_inject(struct world *w);
void faults_later(struct world *w, const struct event *e);

#endif

/*
 * The machines of a schedule: simulated time, and processes whose threads are fibers of one thread of the system. A fiber runs
 * until it waits (for time, a lock, a socket); which one is next, and when, is decided by dice of the seed. So all that threads
 * and processes do to each other is a function of the seed.
 *
 *     event of the schedule's own    runs outside every fiber (machine.running is NULL)
 *     fiber                          belongs to a process; is gone with it, wherever it stands
 */
#ifndef TESTS_SIM_MACHINE_H
#define TESTS_SIM_MACHINE_H

#include <stdbool.h>

#include "tests/sim/dice.h"
#include "tests/sim/events.h"

#define MACHINE_NEVER UINT64_MAX

struct disk;
struct loop;
struct sock;

struct fiber {
    struct fiber *next; /* of its process */
    struct process *process;
    void *sp;
    uint8_t *stack;
    void *asan_stack;
    void (*run)(void *arg);
    void *arg;
    uint64_t wait;             /* number of the wait that it is in: other wake-ups are void */
    bool is_waiting, is_woken; /* woken: not by its deadline */
    bool has_ended;
    struct fiber *joiner;       /* waits for the end */
    struct fiber *next_in_line; /* of a lock, or a condition */
    const void *line;           /* which one; NULL: none */
    uint64_t disk_us,
        disk_until_us; /* that it has spent in operations of files; the end of the last */
};

struct process {
    struct process *next;
    char name[24];
    uint32_t node; /* of its disk; UINT32_MAX: a worker, which has none */
    uint32_t rank; /* of a worker */
    bool is_dead;
    uint64_t frozen_until_us, frozen_us; /* when it last stands still; altogether, until then */
    uint64_t behind_ms;                  /* its wall clock */
    uint64_t n_reads, read_ms; /* at its monotonic clock: how often, and what it said last */
    int32_t drift_ppm; /* its monotonic clock: that many millionths faster than time goes */
    struct fiber *fibers;
    struct loop *loops;
    struct disk *disk; /* borrowed; NULL: none */
    uint32_t n_jobs;   /* of its pool, under way */
    int exit_status;
    void (*main)(void *owner);   /* its main thread */
    void (*on_end)(void *owner); /* main() has returned; not called for who was killed */
    void *owner,
        *state; /* borrowed: what it is a process of; its memory, for who looks into it */
    char last_error[400]; /* sentence that it logged */
};

struct machine {
    struct events events;
    struct dice dice;
    struct fiber *running; /* NULL: the schedule itself */
    struct process *processes;
    struct fiber *ended; /* whose stack can be had back */
    struct sock *socks;
    uint32_t network_us;   /* the longest that bytes are under way, mostly */
    uint32_t window_bytes; /* the least that a connection may hold unread */
    uint32_t yield_one_in; /* how often a thread loses its core where another could notice */
    uint64_t n_switches;
    uint64_t digest;                    /* of all that has happened */
    bool is_calm;                       /* connections are not slow or short any more */
    void (*on_turn)(struct process *p); /* a loop of that process has gone round */
};

extern struct machine machine;

void machine_begin(uint64_t seed, uint32_t network_us);
/* All memory of the processes stays, for the end of this process of the system. */
void machine_end(void);

/* What is next happens. False: there is nothing. */
bool machine_step(void);

static inline uint64_t machine_now_us(void)
{
    return machine.events.now_us;
}

/* --- processes --- */

/* What paths go from: a worker's process; of a psd what it is a process of, which outlives it. */
static inline const void *process_place(const struct process *p)
{
    return p->node == UINT32_MAX ? (const void *)p : p->owner;
}

struct process *process_start(const char *name, struct disk *disk, void (*main)(void *owner),
                              void (*on_end)(void *owner), void *owner);
/* It is gone between two instructions; where it does that to itself this does not return. */
void process_kill(struct process *p);
/* Stands still, as SIGSTOP does it; the longer of two counts. */
void process_freeze(struct process *p, uint64_t for_us);
/* How long it has stood still by now. */
uint64_t process_frozen_us(const struct process *p);
/* False: it has no handler for it yet. */
bool process_signal(struct process *p, int number);

static inline struct process *process_current(void)
{
    return machine.running ? machine.running->process : NULL;
}

/* The monotonic clock of the machine that a process is on; NULL: one that goes as time does. */
static inline uint64_t machine_us_of(const struct process *p)
{
    const int64_t now_us = (int64_t)machine_now_us();

    return (uint64_t)(p ? now_us + now_us * p->drift_ppm / 1000000 : now_us);
}

static inline uint64_t machine_ms_of(const struct process *p)
{
    return 1000 + machine_us_of(p) / 1000;
}

/* When that clock has come to `ms`. */
static inline uint64_t machine_us_until(const struct process *p, uint64_t ms)
{
    const uint64_t us = ms > 1000 ? (ms - 1000) * 1000 : 0;

    return p->drift_ppm ? us * 1000000 / (uint64_t)(1000000 + p->drift_ppm) + 1 : us;
}

/* Of who runs. */
static inline uint64_t machine_ms(void)
{
    return machine_ms_of(process_current());
}

/* --- fibers --- */

struct fiber *fiber_new(struct process *p, void (*run)(void *arg), void *arg);
/* Others run meanwhile. Outside every fiber: nothing. */
void fiber_sleep(uint64_t us);
/* Now and then it sleeps for a moment here: its core is somebody else's. */
void fiber_yield(void);
/* Until it is woken, or until the time comes (MACHINE_NEVER: never). False: it was not woken. */
bool fiber_wait(uint64_t until_us);
void fiber_wake(struct fiber *f);

/* --- sockets of a process that is gone (uv_stream.c) --- */
void socks_of_dead(struct process *p);
void net_begin(void);

#endif

/*
 * A node with a few shards on a thread of its own: enough of psd to talk to, and it
 * misbehaves on request. Tables add what is pushed (4 floats a row, fp32), so a push that is
 * lost or applied twice shows in the sums; what is assigned they set. With plan.scans they answer scans, a few rows at
 * a time.
 *
 *     struct fake *f = fake_start(&(struct fake_plan){ .n_shards = 2, .fault_at = 3, ... });
 *     ... clients talk to fake_address(f) ...
 *     fake_become(f, FAKE_STANDBY, ...);     it is a standby from here on, or dead, or the primary again
 *     fake_stop(f);      the thread has ended: f->shards may be looked at
 *     fake_free(f);
 */
#ifndef TESTS_UNIT_CLIENT_FAKE_SHARD_H
#define TESTS_UNIT_CLIENT_FAKE_SHARD_H

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"
#include "proto/channel.h"
#include "proto/codec_catalog.h"
#include "proto/key_codec.h"
#include "proto/message.h"
#include "proto/message_replication.h"
#include "proto/table_spec.h"

/* What the node is told to do wrong, and what it is made of. */
#define FAKE_DIM 4u
#define FAKE_HANGS_UP 1 /* as plan.push_status */
#define FAKE_SHARDS_MAX 8u
#define FAKE_ROWS_MAX 256u

enum fake_fault {
    FAKE_NONE,
    FAKE_DROP_BEFORE, /* hangs up instead of doing what the frame says */
    FAKE_DROP_AFTER,  /* does it, and hangs up instead of answering */
    FAKE_REPEAT,      /* answers twice */
    FAKE_GARBAGE,     /* answers with random bytes */
    FAKE_BAD_HEAD,    /* answers with a good frame around random bytes */
    FAKE_REFUSE,      /* answers with plan.refusal */
    FAKE_REFUSE_DROP  /* refuses, and hangs up instead of saying so */
};

/* What a node of a pair is. */
enum fake_role {
    FAKE_PRIMARY, /* serves; also a node without a standby */
    FAKE_STANDBY, /* sends workers and readers to the primary, as it knows it */
    FAKE_DEAD,    /* hangs up on everybody */
    FAKE_STUCK    /* keeps its connections, and does nothing */
};

struct fake_plan {
    uint32_t n_shards;
    uint32_t n_nodes;  /* in its list; 0: 1 */
    uint32_t node;     /* in the list of nodes */
    int node_ports[4]; /* of them; 0: its own */
    int port;          /* 0: any */
    long fault_at;     /* number of the frame, from 0, of all that arrive; see fault_type */
    int fault_type;    /* 0: counts all frames, else those of this type */
    enum fake_fault fault;
    int refusal;           /* FAKE_REFUSE: the status; PS_EFENCED also fences */
    int hello_status;      /* of every HELLO */
    bool holds_pulls;      /* never answers them */
    bool shuffles_pulls;   /* answers them a millisecond later or two, in any order */
    long mute_from;        /* answers so many frames of each connection, then none; 0: all */
    bool mute_pushes;      /* never answers those */
    uint64_t map_id;       /* 0: 42 */
    bool mute;             /* never answers anything */
    bool fences_all;       /* no incarnation may join */
    bool fences_pushed;    /* an incarnation no longer counts once a push of it is applied */
    uint64_t fenced_below; /* no smaller incarnation may join */
    int push_status;       /* of every push: one that says that it was not acknowledged */
    bool hello_passes;     /* hello_status is that of each second HELLO only */
    uint64_t
        job_clock; /* its answers say that the job is there, if that is further than the worker */
    uint64_t join_clock; /* what shard 0 wants a worker to go on with */
    const char *admin;   /* the answer to operators; NULL: some */
    const char *bytes;   /* answers everything with these, which are no frame */
    uint32_t features;   /* of its tables: MESSAGE_FEATURE_*; 0: it is an older psd */
    uint32_t scans;   /* rows of an answer to a scan; 0: it answers one as a pull of no keys */
    bool counts_rows; /* of a push, and keeps none */
    bool keeps_keys;  /* of pulls, so that pushes may name them */
    bool lacks_keys;  /* ... but says that it has not, when one does */
    uint32_t frame_max_bytes; /* as it says; 0: FRAME_MAX_BYTES_DEFAULT */
    bool suspects;            /* refuses rank 9, as each answer to a heartbeat says */
    uint64_t seed;
};

struct fake_row {
    uint64_t key;
    float values[FAKE_DIM], state[2 * FAKE_DIM];
};

struct fake_shard {
    uint64_t last_seq, clock, incarnation,
        fenced;           /* incarnations up to `fenced` no longer count */
    uint64_t refused_seq; /* of the last push refused, or 0 */
    int refused_status;
    uint64_t n_applied, n_repeated, n_joins, n_left, n_beats;
    uint64_t unfinished; /* of the last pull */
    uint64_t n_early;    /* pulls that came before as many pushes as their clock says */
    struct fake_row rows[FAKE_ROWS_MAX];
    uint32_t n_rows;
    uint64_t n_rows_pushed, steps; /* assigned */
    uint64_t n_named;              /* sections that came without their keys */
    uint64_t n_keeps;              /* pulls that asked for their keys to be kept */
    uint32_t n_tables;
    struct table_spec tables[8];
};

struct fake {
    struct fake_plan plan;
    int port;
    uv_thread_t thread;
    uv_loop_t loop;
    struct channel_loop channels;
    uv_tcp_t listener;
    uv_async_t stop;
    uv_sem_t started;
    bool stopped;
    struct fake_conn *first; /* open connections */
    uv_timer_t pulse;        /* sends the answers that wait for it */
    struct fake_answer *held;
    uint64_t n_dice;
    long n_frames; /* that the fault counts */
    long n_hellos;
    _Atomic long n_watches, n_beats, n_suspects; /* suspects: that heartbeats have named */
    enum fake_role role;
    struct group group; /* as it knows it; term 0: there are no groups */
    uint64_t number;    /* of its changes */
    uv_async_t become;
    uv_sem_t has_become;
    const struct fake
        *heir_of; /* its shards' state is copied from there; NULL: it has its own */
    struct fake_next {
        enum fake_role role;
        struct group group;
    } next; /* of fake_become() */
    _Atomic long n_pulls_held;
    struct fake_shard shards[FAKE_SHARDS_MAX];
};

/* The keys of a pull. */
struct fake_kept {
    uint64_t request_id; /* 0: none */
    struct pull pull;
    uint8_t *body; /* owned */
};

struct fake_conn {
    uv_tcp_t tcp;
    struct channel channel;
    struct fake *fake;
    struct fake_conn *next;
    uint32_t shard; /* or MESSAGE_SHARD_LISTENER */
    uint64_t incarnation;
    long n_frames;
    bool is_watcher;
    uint64_t watch_id;      /* of a request that waits; 0: none */
    struct fake_kept *kept; /* owned: [SECTION_PULLS_KEPT]; NULL: none yet */
    uint32_t n_kept;        /* so far: the next one is at n_kept modulo that */
};

/* To a pull. */
struct fake_answer {
    struct fake_conn *conn;
    struct bytes frame;
    struct fake_answer *next;
};

struct fake_row *fake_row(struct fake_shard *s, uint64_t key);

struct fake *fake_start(const struct fake_plan *plan);

void fake_address(const struct fake *f, char dst[static 32]);

/* From here on it is this, and says so: in the group of its node `primary` and `standby` have this term. Who watches is
 * told. heir_of: it begins with the state of that one's shards, which must not be serving; NULL: with its own. */
void fake_become(struct fake *f, enum fake_role role, uint64_t term, const struct fake *primary,
                 const struct fake *standby, const struct fake *heir_of);

void fake_stop(struct fake *f);

void fake_free(struct fake *f);

#endif

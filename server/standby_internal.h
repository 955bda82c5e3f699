/* A standby from inside: for standby_dialog.c, standby_data.c, standby_fetch.c and standby_steps.c alone. */
#ifndef SERVER_STANDBY_INTERNAL_H
#define SERVER_STANDBY_INTERNAL_H

#include "server/replication/copy.h"
#include "server/replication/terms.h"
#include "server/standby.h"
#include "server/standby_session.h"
#include "server/standby_settings.h"

/* One shard's part of a step: goes to the shard's thread and back. */
struct standby_task {
    struct mail mail;
    struct mail hand_over; /* the primary has handed this shard over */
    struct standby *standby;
    uint32_t index;
    struct shard_follower_primary primary;
};

struct standby {
    struct standby_config config;
    enum standby_state state;
    uint64_t since_unix_ms, since_ms; /* in this state */
    struct address primary;
    struct standby_session session;
    uint64_t retry_ms; /* the next dial */
    uint32_t n_failed; /* in a row */
    bool is_refusing;  /* it lives, and does not want us */
    bool is_refused;   /* the same, or it refused the connection itself */
    bool is_moved;     /* it lives, and has said that it is not the primary */
    bool is_unsteady;  /* the last time it followed it was for a moment */
    bool is_useless;   /* a shard is not the primary's: copied once that one answers again */
    char why[256],
        logged[256]; /* logged: the last reason that is in the log, if it is not over */
    char note[STANDBY_SETTINGS_NOTE_MAX]; /* about the primary that was followed last */
    bool is_loaded;                       /* the shards have this node's data */
    bool asks_twice;                      /* FOLLOW, before it fetches */
    bool wants_copy;                      /* whatever the two logs have in common */
    bool was_standby;                     /* what is in the directory is a copy of somebody's */
    bool has_cluster;                     /* cluster_file.h */
    bool
        shards_in_sync; /* with the primary that it follows, as that one said last to each of them */
    bool ended_in_sync; /* the run before, as a standby; this one has not followed yet */
    bool was_primary,
        was_alone; /* of the newest term in TERMS, and ended without a standby in sync */
    enum follow_begun begun_with; /* the term of a promotion */
    uint64_t followed_term;
    uint32_t patience_ms;        /* the primary's; 0: it does not say */
    uint64_t take_over_ms;       /* the next try */
    char unable[200];            /* why its shards could not at the last one; "": they follow */
    uint64_t ticked_ms, woke_ms; /* the tick before; after this psd's own pause */
    uint64_t note_retry_ms; /* of noting whether it is in sync; 0: the last one was written */
    struct terms terms;     /* this directory's */
    struct terms theirs;    /* as the last reply had them */
    uint64_t epoch, term;
    uint64_t *last, *keep; /* owned, n_shards */
    struct copy copy;
    struct bytes piece,
        later; /* owned: of the file under way; the one behind it, that came meanwhile */
    struct file_reply piece_reply, later_reply;
    bool has_list, has_later;
    /* One job on the pool at a time. */
    uv_work_t work;
    int (*job)(struct standby *s, struct err *err);
    void (*then)(struct standby *s);
    struct err err; /* the job's */
    bool is_working;
    struct { /* of `terms` and `copy`, as that job found them: it may change them */
        bool in_sync;
        uint64_t term, history, n_bytes, n_total_bytes;
    } found;
    /* One round of all shards at a time. */
    struct standby_task *tasks; /* owned, n_shards */
    uint32_t n_outstanding;
    void (*then_shards)(struct standby *s);
    /* The promotion that is asked for; NULL: none, or TAKE_OVER asks for it. */
    bool is_promoting;
    unsigned promises;
    /* Since then a person's promotion waits for a word of the primary, or its end; 0: none does. */
    uint64_t doubt_ms;
    void (*promoted)(void *arg, const struct err *err);
    void *promoted_arg;
    void (*stopped)(void *arg);
    void *stopped_arg;
};

static inline uint32_t standby_n_shards(const struct standby *s)
{
    return s->config.settings->shards;
}

/* --- standby_steps.c --- */

void standby_set_state(struct standby *s, enum standby_state state);

/* A line of the log for each new reason. */
void standby_set_why(struct standby *s, const char *why);

/* `job` on libuv's pool; then `then`, unless the standby is stopped meanwhile, with s->err. */
void standby_start_job(struct standby *s, int (*job)(struct standby *s, struct err *err),
                       void (*then)(struct standby *s)) ON_MAIN;

/* `run` on each shard's thread, with the task's mail, which it gives to standby_send_back(); then `then`. */
void standby_on_shards(struct standby *s, void (*run)(struct mail *mail, void *owner),
                       void (*then)(struct standby *s)) ON_MAIN;
void standby_send_back(struct standby_task *task);

void standby_see_shard(const struct standby *s, uint32_t i, struct shard_follower_view *ret);

/* What the shards have, in memory, too. */
void standby_update_last(struct standby *s) ON_MAIN;

/* A job. */
int standby_write_terms(struct standby *s, struct err *err);

/* events.failed, with s->err. */
void standby_fail(struct standby *s) ON_MAIN;

void standby_hello_of(const struct standby *s, struct hello *ret);
void standby_dial_later(struct standby *s, const char *why) ON_MAIN;

/* Sends the frame in s->session.out, if it could be written. */
void standby_ask(struct standby *s, int written) ON_MAIN;

/* FOLLOW: the answer decides. */
void standby_follow(struct standby *s) ON_MAIN;

bool standby_is_answering(const struct standby *s) ON_MAIN;

/* When the primary's last word came. */
uint64_t standby_heard_ms(const struct standby *s) ON_MAIN;

/* The claim says that all that was acknowledged is here, and is about this run: a primary answers FOLLOW once it claims
 * that nobody is in sync, and claims "in sync" once what this run has received is all that was acknowledged. Whether it
 * has told this run so makes no difference: it may have stood still before it could. A claim that is older than the
 * FOLLOW is no longer the service's, so that none is made over it. */
bool standby_is_named(const struct standby *s) ON_MAIN;

/* It has claimed a term, and ended before TERMS had it. One who was a primary in that term has it there. */
bool standby_is_claimed(const struct standby *s) ON_MAIN;

/* The claim says that its primary acknowledges, or has acknowledged, without this standby. */
bool standby_lacks_by_claim(const struct standby *s) ON_MAIN;

/* May this psd, whose shards are sealed, claim the next term? */
bool standby_may_claim(const struct standby *s) ON_MAIN;

void standby_keep_all(struct standby *s);
void standby_rebuild(struct standby *s) ON_MAIN;

/* standby_stop()'s end, once nothing is under way. */
void standby_end_if_stopped(struct standby *s) ON_MAIN;

/* --- standby_data.c --- */

void standby_begin_copy(struct standby *s) ON_MAIN;
void standby_fail_copy(struct standby *s, const char *why) ON_MAIN;
int standby_on_file(struct standby *s, const struct file_reply *reply) ON_MAIN;

/* --- standby_fetch.c --- */

/* The log has nothing that the primary has not: its terms are this log's, and the shards fetch. */
void standby_adopt(struct standby *s) ON_MAIN;

/* What is here is of no use: the next life copies. */
void standby_discard(struct standby *s, const char *why) ON_MAIN;

void standby_stop_following(struct standby *s, const char *why) ON_MAIN;
void standby_watch_shards(struct standby *s) ON_MAIN;
void standby_begin_promotion(struct standby *s) ON_MAIN;
void standby_try_begin_term(struct standby *s) ON_MAIN;

/* With a person's promotion that waits (doubt_ms). */
void standby_end_doubt(struct standby *s, uint64_t now_ms) ON_MAIN;

/* --- standby_takeover.c --- */

/* Takes over if the primary is silent, and the claim allows it. */
void standby_watch_primary(struct standby *s, uint64_t now_ms) ON_MAIN;

/* Why it does not take over from a silent primary; "": it may, or the primary is heard, or a person promotes. */
void standby_describe_hindrance(const struct standby *s, char *dst, size_t n_bytes) ON_MAIN;

/* Of the main thread, also while a job works: what `terms` says, or said when the job began, if the shards have not
 * said otherwise since. */
static inline bool standby_noted_sync(const struct standby *s)
{
    return s->shards_in_sync && (s->is_working ? s->found.in_sync : s->terms.in_sync);
}

/* It was in sync at its end, and has not followed since its own start. */
static inline bool standby_is_unheard(const struct standby *s)
{
    return !s->is_working && s->ended_in_sync; /* a job reads the directory */
}

static inline uint64_t standby_noted_term(const struct standby *s)
{
    return s->is_working ? s->found.term : terms_last(&s->terms);
}

#endif

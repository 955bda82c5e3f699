/*
 * A queue of work for another thread's libuv loop: any thread posts, the loop's thread receives in the order of
 * posting. Beside counters this is the only structure that several loops share.
 */
#ifndef COMMON_MAILBOX_H
#define COMMON_MAILBOX_H

#include <stdbool.h>
#include <uv.h>

#include "common/base.h"

struct mail {
    struct mail *next; /* the mailbox's while posted */
    /* On the loop's thread; the mail is then run's to free. */
    void (*run)(struct mail *mail, void *owner);
};

struct mailbox {
    uv_async_t async;
    uv_mutex_t lock;
    struct mail *first, **last; /* owned until run */
    void *owner;
    /* Around each run of mails, on the loop's thread; NULL: nothing is to be done there. */
    void (*begin)(void *owner);
    void (*end)(void *owner);
    bool closed;
};

/* On the loop's thread (or before it runs). The handle keeps no loop alive. */
int mailbox_init(struct mailbox *m, uv_loop_t *loop, void *owner) MUST_CHECK;

/* Before the first mail is posted: functions to be called before the mails that are there are run, and after, so that
 * what they do can be done at once. */
void mailbox_set_batch(struct mailbox *m, void (*begin)(void *owner), void (*end)(void *owner));

/* From any thread. -EPIPE, with the mail still the caller's, once the box is closed. */
int mailbox_post(struct mailbox *m, struct mail *mail) MUST_CHECK;

/* The same without waking the loop: the mail waits for the next mailbox_run(), mailbox_post() or mailbox_wake(). */
int mailbox_add(struct mailbox *m, struct mail *mail) MUST_CHECK;

/* Wakes the loop, as mailbox_post() does. Any thread. Nothing happens to a box that is closed. */
void mailbox_wake(struct mailbox *m);

/* Any thread. */
bool mailbox_has_mail(struct mailbox *m);

/* On the loop's thread: runs the mails that are there. The loop does so by itself when it is woken. */
void mailbox_run(struct mailbox *m);

/* On the loop's thread: runs what is there, then takes no more. The async handle closes with
 * the loop; mailbox_deinit() after uv_loop_close(). */
void mailbox_close(struct mailbox *m);
void mailbox_deinit(struct mailbox *m);

#endif

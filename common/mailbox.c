#include "common/mailbox.h"

#include <assert.h>
#include <errno.h>

/* The oldest mail, now the caller's, or NULL. */
static struct mail *pop(struct mailbox *m)
{
    struct mail *mail;

    uv_mutex_lock(&m->lock);
    mail = m->first;
    if (mail) {
        m->first = mail->next;
        if (!m->first)
            m->last = &m->first;
        mail->next = NULL;
    }
    uv_mutex_unlock(&m->lock);
    return mail;
}

static struct mail *newest(struct mailbox *m)
{
    struct mail *mail;

    uv_mutex_lock(&m->lock);
    mail = m->first ? CONTAINER_OF(m->last, struct mail, next) : NULL;
    uv_mutex_unlock(&m->lock);
    return mail;
}

/*
 * Runs what was there on entry. A mail that comes meanwhile wakes the loop again, so that mails
 * which post mails cannot keep the loop from its sockets. One at a time, so that a mail that
 * closes the box leaves none behind.
 */
void mailbox_run(struct mailbox *m)
{
    const struct mail *until = newest(m);
    struct mail *mail;
    bool is_last = !until;

    if (!is_last && m->begin)
        m->begin(m->owner);
    while (!is_last && (mail = pop(m))) {
        is_last = mail == until;
        mail->run(mail, m->owner);
    }
    if (until && m->end)
        m->end(m->owner);
}

static void on_wake(uv_async_t *async)
{
    mailbox_run(CONTAINER_OF(async, struct mailbox, async));
}

int mailbox_init(struct mailbox *m, uv_loop_t *loop, void *owner)
{
    int status;

    *m = (struct mailbox){ .owner = owner };
    m->last = &m->first;
    status = uv_mutex_init(&m->lock);
    if (status < 0)
        return status;
    status = uv_async_init(loop, &m->async, on_wake);
    if (status < 0) {
        uv_mutex_destroy(&m->lock);
        return status;
    }
    uv_unref((uv_handle_t *)&m->async);
    return 0;
}

void mailbox_set_batch(struct mailbox *m, void (*begin)(void *owner), void (*end)(void *owner))
{
    m->begin = begin;
    m->end = end;
}

/* Under the lock: mailbox_close() may not close the handle between the check and the call. */
static void wake(struct mailbox *m)
{
    int status = uv_async_send(&m->async);

    assert(status == 0);
    (void)status;
}

/* Under the lock. -EPIPE: the box is closed. */
static int add(struct mailbox *m, struct mail *mail)
{
    if (m->closed)
        return -EPIPE;
    mail->next = NULL;
    *m->last = mail;
    m->last = &mail->next;
    return 0;
}

int mailbox_post(struct mailbox *m, struct mail *mail)
{
    int status;

    uv_mutex_lock(&m->lock);
    status = add(m, mail);
    if (!status)
        wake(m);
    uv_mutex_unlock(&m->lock);
    return status;
}

int mailbox_add(struct mailbox *m, struct mail *mail)
{
    int status;

    uv_mutex_lock(&m->lock);
    status = add(m, mail);
    uv_mutex_unlock(&m->lock);
    return status;
}

void mailbox_wake(struct mailbox *m)
{
    uv_mutex_lock(&m->lock);
    if (!m->closed)
        wake(m);
    uv_mutex_unlock(&m->lock);
}

bool mailbox_has_mail(struct mailbox *m)
{
    bool has_mail;

    uv_mutex_lock(&m->lock);
    has_mail = m->first != NULL;
    uv_mutex_unlock(&m->lock);
    return has_mail;
}

void mailbox_close(struct mailbox *m)
{
    struct mail *mail;
    bool was_closed;

    uv_mutex_lock(&m->lock);
    was_closed = m->closed;
    m->closed = true;
    uv_mutex_unlock(&m->lock);
    if (was_closed)
        return;
    while ((mail = pop(m)))
        mail->run(mail, m->owner);
    uv_close((uv_handle_t *)&m->async, NULL);
}

void mailbox_deinit(struct mailbox *m)
{
    assert(!m->first);
    uv_mutex_destroy(&m->lock);
}

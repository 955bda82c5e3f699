#include "server/shard_thread.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/mem.h"
#include "common/now.h"
#include "server/ahead.h"
#include "server/reporter.h"

#define TICK_MS 50u
#define REPORT_MS 200u

struct guest {
    struct mail mail;
    int fd;
    uint64_t request_id;
    struct hello hello;
};

struct shard_thread {
    struct shard_thread_config config;
    uv_thread_t thread;
    uv_loop_t loop;
    uv_timer_t timer;
    struct channel_hub hub;
    struct mailbox mailbox;
    struct bulletin bulletin;
    struct shard *shard; /* owned, by the thread */
    struct ahead ahead;
    struct acks acks;
    struct shard_log *log;   /* owned, by the thread; NULL: nothing is logged */
    struct shard_save *save; /* owned, by the thread */
    struct service *service; /* owned, by the thread */
    struct switchboard switchboard;
    struct mail serve, drain, stop;
    enum { SHARD_LOADING, SHARD_OPEN, SHARD_DRAINED } state;
    uint64_t reported_ms;
    uint64_t n_received; /* guests that came, of which n_gone are gone: the thread's to write */
    uint64_t n_handed;   /* guests that were sent: the main thread's */
    _Atomic uint64_t n_gone, alive_ms, log_bytes, saved_bytes;
    _Atomic bool log_has_gap;
};

void shard_thread_publish(struct shard_thread *t)
{
    struct reporter_sources from = { .shard = t->shard,
                                     .service = t->service,
                                     .log = t->log,
                                     .acks = &t->acks,
                                     .switchboard = &t->switchboard,
                                     .loop = &t->loop,
                                     .shard_number = t->config.core.shard,
                                     .lease_ms = t->config.core.lease_ms,
                                     .memory_max_bytes = t->config.core.memory_max_bytes };

    t->reported_ms = now_mono_ms();
    bulletin_post(&t->bulletin, reporter_make(&from));
}

static void show_life(struct shard_thread *t) ON_SHARD
{
    uint64_t now_ms = now_mono_ms();

    atomic_store(&t->alive_ms, now_ms);
    if (now_ms - t->reported_ms >= REPORT_MS)
        shard_thread_publish(t);
}

void shard_thread_progress(void *arg)
{
    struct shard_thread *t = arg;

    enter_shard();
    show_life(t);
}

static void count_gone(struct shard_thread *t)
{
    struct switchboard_counts counts;

    switchboard_count(&t->switchboard, &counts);
    atomic_store(&t->n_gone, t->n_received - counts.connections);
}

static void look_at_log(struct shard_thread *t) ON_SHARD
{
    char error[200];
    struct report_log log;

    if (!t->log)
        return;
    shard_log_report(t->log, &log, error);
    atomic_store(&t->log_bytes, log.bytes);
    atomic_store(&t->log_has_gap, log.has_gap && !log.is_failed);
}

static void on_tick(uv_timer_t *timer)
{
    struct shard_thread *t = timer->data;

    enter_shard();
    if (t->state != SHARD_LOADING)
        service_tick(t->service);
    ahead_tick(&t->ahead);
    atomic_store(&t->saved_bytes, shard_save_bytes(t->save));
    switchboard_sweep(&t->switchboard, uv_now(&t->loop));
    count_gone(t);
    look_at_log(t);
    show_life(t);
}

/* --- mail --- */

static void on_guest(struct mail *mail, void *owner)
{
    struct guest *guest = CONTAINER_OF(mail, struct guest, mail);
    struct shard_thread *t = owner;
    int status;

    enter_shard();
    t->n_received++;
    if (t->state == SHARD_OPEN) {
        status = switchboard_open(&t->switchboard, guest->fd, guest->request_id, &guest->hello);
        if (status)
            log_warn("shard %u: %s was let in, but: %s", t->config.core.shard,
                     guest->hello.name, status_text(status));
    } else {
        close(guest->fd);
    }
    free(guest);
}

static void on_serve(struct mail *mail, void *owner)
{
    struct shard_thread *t = owner;

    (void)mail;
    enter_shard();
    if (t->state != SHARD_LOADING)
        return;
    t->state = SHARD_OPEN;
    roster_renew(shard_roster(t->shard), service_now_ms(t->service));
    shard_save_hurry(t->save, false);
}

static void on_drain(struct mail *mail, void *owner)
{
    struct shard_thread *t = owner;

    (void)mail;
    enter_shard();
    t->state = SHARD_DRAINED;
    service_stop(t->service);
    switchboard_close_all(&t->switchboard);
    shard_save_hurry(t->save, true);
}

static void on_stop(struct mail *mail, void *owner)
{
    struct shard_thread *t = owner;

    enter_shard();
    on_drain(mail, owner);
    ahead_stop(&t->ahead);
    shard_save_stop(t->save);
    uv_close((uv_handle_t *)&t->timer, NULL);
    channel_hub_close(&t->hub);
    mailbox_close(&t->mailbox);
}

/* --- the thread --- */

static void make_shard(struct shard_thread *t) ON_SHARD
{
    struct service_config service = { .loop = &t->loop,
                                      .shard_number = t->config.core.shard,
                                      .frame_max_bytes = t->config.frame_max_bytes,
                                      .lease_ms = t->config.core.lease_ms,
                                      .park_max_ms = t->config.core.park_ms,
                                      .compress_replies = t->config.compress_replies };
    struct switchboard_config switchboard = { .hub = &t->hub,
                                              .frame_max_bytes = t->config.frame_max_bytes,
                                              .frame_timeout_ms = t->config.frame_timeout_ms,
                                              .welcome = t->config.welcome,
                                              .events = &service_events };
    struct shard_save_config save = { .loop = &t->loop,
                                      .bytes_per_s = t->config.save_bytes_per_s };

    t->shard = shard_new(&t->config.core);
    save.shard = t->shard;
    ahead_init(&t->ahead, &t->loop, t->shard);
    acks_init(&t->acks);
    t->save = shard_save_new(&save);
    shard_save_hurry(t->save, true);
    service.shard = t->shard;
    service.acks = &t->acks;
    t->service = service_new(&service);
    switchboard.owner = t->service;
    switchboard_init(&t->switchboard, &switchboard);
}

/* The log's last bytes: after this nothing is told to anybody. */
static void close_log(struct shard_thread *t) ON_SHARD
{
    struct err err = { 0 };

    if (t->log && shard_log_close(t->log, &err))
        log_error("shard %u: the push log was not written to its end: %s", t->config.core.shard,
                  err.text);
    t->log = NULL;
}

static void run(void *arg)
{
    struct shard_thread *t = arg;
    int status;

    enter_shard();
    make_shard(t);
    shard_thread_publish(t);
    status = uv_timer_start(&t->timer, on_tick, TICK_MS, TICK_MS);
    assert(status == 0);
    uv_run(&t->loop, UV_RUN_DEFAULT);
    shard_thread_publish(t);
    shard_save_free(t->save);
    close_log(t);
    service_free(t->service);
    acks_deinit(&t->acks);
    shard_free(t->shard);
}

/* Loop, timer and mailbox; leaves nothing behind when it fails. */
static int make_loop(struct shard_thread *t)
{
    int status = uv_loop_init(&t->loop);

    if (status)
        return status;
    status = bulletin_init(&t->bulletin);
    if (status) {
        uv_loop_close(&t->loop);
        return status;
    }
    status = mailbox_init(&t->mailbox, &t->loop, t);
    if (status) {
        bulletin_deinit(&t->bulletin);
        uv_loop_close(&t->loop);
        return status;
    }
    uv_timer_init(&t->loop, &t->timer);
    t->timer.data = t;
    channel_hub_init(&t->hub, &t->loop);
    return 0;
}

/* What run() leaves when its loop has ended. */
static void unmake_loop(struct shard_thread *t)
{
    int status = uv_loop_close(&t->loop);

    assert(status == 0);
    channel_hub_deinit(&t->hub);
    mailbox_deinit(&t->mailbox);
    bulletin_deinit(&t->bulletin);
}

int shard_thread_start(const struct shard_thread_config *config,
                       struct shard_thread **ret_thread, struct err *err)
{
    struct shard_thread *t = mem_alloc(sizeof *t);
    int status;

    t->config = *config;
    t->serve.run = on_serve;
    t->drain.run = on_drain;
    t->stop.run = on_stop;
    atomic_store(&t->alive_ms, now_mono_ms());
    status = make_loop(t);
    if (status) {
        free(t);
        return err_set(err, status, "shard %u: cannot make its loop: %s", config->index,
                       status_text(status));
    }
    status = uv_thread_create(&t->thread, run, t);
    if (status) {
        uv_close((uv_handle_t *)&t->timer, NULL);
        channel_hub_close(&t->hub);
        mailbox_close(&t->mailbox);
        uv_run(&t->loop, UV_RUN_DEFAULT);
        unmake_loop(t);
        free(t);
        return err_set(err, status, "shard %u: cannot start its thread: %s", config->index,
                       status_text(status));
    }
    *ret_thread = t;
    return 0;
}

void shard_thread_serve(struct shard_thread *t)
{
    int status = mailbox_post(&t->mailbox, &t->serve);

    assert(status == 0);
}

int shard_thread_receive(struct shard_thread *t, int fd, uint64_t request_id,
                         const struct hello *hello)
{
    struct guest *guest = mem_alloc(sizeof *guest);
    int status;

    *guest = (struct guest){
        .mail.run = on_guest, .fd = fd, .request_id = request_id, .hello = *hello
    };
    status = mailbox_post(&t->mailbox, &guest->mail);
    if (status) {
        free(guest);
        return status;
    }
    t->n_handed++;
    return 0;
}

uint64_t shard_thread_n_connections(const struct shard_thread *t)
{
    return t->n_handed - atomic_load(&t->n_gone);
}

int shard_thread_post(struct shard_thread *t, struct mail *mail)
{
    return mailbox_post(&t->mailbox, mail);
}

void shard_thread_drain(struct shard_thread *t)
{
    int status = mailbox_post(&t->mailbox, &t->drain);

    assert(status == 0);
}

void shard_thread_stop(struct shard_thread *t)
{
    int status = mailbox_post(&t->mailbox, &t->stop);

    assert(status == 0);
}

void shard_thread_join(struct shard_thread *t)
{
    uv_thread_join(&t->thread);
    unmake_loop(t);
    free(t);
}

struct bulletin_sheet *shard_thread_report(struct shard_thread *t)
{
    return bulletin_take(&t->bulletin);
}

uint64_t shard_thread_alive_ms(const struct shard_thread *t)
{
    return atomic_load(&t->alive_ms);
}

uint64_t shard_thread_saved_bytes(const struct shard_thread *t)
{
    return atomic_load(&t->saved_bytes);
}

uint64_t shard_thread_log_bytes(const struct shard_thread *t)
{
    return atomic_load(&t->log_bytes);
}

bool shard_thread_log_has_gap(const struct shard_thread *t)
{
    return atomic_load(&t->log_has_gap);
}

struct shard_save *shard_thread_save(struct shard_thread *t)
{
    return t->save;
}

uint64_t shard_thread_now_ms(struct shard_thread *t)
{
    return service_now_ms(t->service);
}

static void on_room(void *owner)
{
    struct shard_thread *t = owner;

    enter_shard();
    service_go_on(t->service);
}

int shard_thread_open_log(struct shard_thread *t, const struct log_writer_config *config,
                          const struct log_end *end, struct err *err)
{
    struct shard_log_config log = { .shard = t->shard,
                                    .acks = &t->acks,
                                    .mailbox = &t->mailbox,
                                    .writer = config,
                                    .on_room = on_room,
                                    .owner = t };
    int status = shard_log_open(&log, end, &t->log, err);

    if (!status)
        shard_save_follow(t->save, t->log);
    return status;
}

struct shard *shard_thread_shard(struct shard_thread *t)
{
    return t->shard;
}

uint32_t shard_thread_index(const struct shard_thread *t)
{
    return t->config.index;
}

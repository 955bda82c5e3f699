/* The primary's part of a standby from its begin to its end: connections, requests, the tick. */
#include "server/standby_server_internal.h"

#include <errno.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"

#define FOLLOW_BYTES_MAX (1u << 20) /* of a FOLLOW: 64 terms of 1024 shards take half of it */
#define REFUSED_LINES_AT_ONCE 5u
#define REFUSED_LINE_EVERY_MS 10000u

struct coordination *standby_server_coordination(const struct standby_server *s)
{
    return s->coordination;
}

int standby_server_promote(struct standby_server *s, bool accept_loss, struct err *err)
{
    char doubt[DOUBT_MAX];

    if (s->state == SERVER_HANDED_OVER && accept_loss) {
        standby_server_refuse_hand_over(s);
        return 0;
    }
    if (s->state == SERVER_OFF || s->state == SERVER_BEGINNING)
        return err_set(err, -EAGAIN, "promote: this psd is starting: try again");
    if (s->state != SERVER_ASKING && s->state != SERVER_AWAITED)
        return err_set(err, -EBUSY, "promote: this psd is the primary already");
    if (s->has_other_data && standby_server_is_waiting(s, err))
        return -EEXIST;
    if (s->coordination && !s->has_read_claim)
        return err_set(err, -EAGAIN,
                       "promote: the coordination service has to say first who is the primary");
    standby_server_describe_doubt(s, doubt, sizeof doubt);
    if (!accept_loss)
        return err_set(err, -EPERM,
                       "promote: %s: with --accept-loss what this psd does not have is lost",
                       doubt);
    log_line_warn("promoted with --accept-loss, without what this psd does not have: %s",
                  doubt);
    s->was_in_sync = s->is_foreign = s->is_older = false;
    s->accepts_loss = true;
    s->asked_ms = 0;
    return 0;
}

bool standby_server_has_handed_over(const struct standby_server *s)
{
    return s->switching.step == SWITCH_HANDED_OVER;
}

static int on_request(void *owner, struct request *r)
{
    struct standby_server *s = owner;

    enter_main();
    if (r->header->type == FRAME_FOLLOW)
        return standby_server_receive_follow(s, r);
    if (r->header->type == FRAME_FILE)
        return standby_copy_request(s->copy, r);
    return PS_EPROTO;
}

static void on_closed(void *owner, struct connection *c, int why)
{
    struct standby_server *s = owner;

    (void)why;
    enter_main();
    if (s->request.connection == c) {
        s->request.connection = NULL;
        if (s->request.step == FOLLOW_LEAVING) { /* nobody is to take the standby's place */
            standby_server_end_follow(s);
            s->sync.ends = false;
        }
    }
    if (s->follower_connection == c)
        s->follower_connection = NULL;
    standby_copy_drop(s->copy, c);
}

int standby_server_admit(const struct standby_server *s, struct err *err)
{
    uint32_t n = 0;

    for (const struct connection *c = s->connections.first; c; c = c->next)
        n++;
    if (n < STANDBY_SERVER_CONNECTIONS_MAX)
        return 0;
    return err_set(err, -EMFILE, "%u standbys are connected", n);
}

int standby_server_receive(struct standby_server *s, const struct connection_socket *socket,
                           uint64_t request_id, const struct hello *hello)
{
    return connection_set_open(&s->connections, socket, request_id, hello, NULL);
}

static const struct connection_events standby_server_events = { .on_request = on_request,
                                                                .on_closed = on_closed };

static void on_shards(void *server)
{
    struct standby_server *s = server;

    enter_main();
    if (s->is_closed)
        return;
    if (s->switching.step != SWITCH_NONE)
        standby_server_go_on_switching(s);
    else
        standby_server_go_on_following(s);
}

struct standby_server *standby_server_new(const struct standby_server_config *config)
{
    struct standby_server *s = memory_alloc(sizeof *s);
    const uint32_t n = config->settings->shards;
    struct connection_set_config connections = { .channels = &s->channels,
                                                 .frame_max_bytes = FOLLOW_BYTES_MAX,
                                                 .frame_timeout_ms =
                                                     config->settings->frame_timeout_ms,
                                                 .memory = config->memory,
                                                 .welcome = config->welcome,
                                                 .events = &standby_server_events,
                                                 .owner = s };

    s->config = *config;
    s->job.owner = s;
    s->n_shards = n;
    s->limit = (struct log_line_limit){ .n_at_once = REFUSED_LINES_AT_ONCE,
                                        .every_ms = REFUSED_LINE_EVERY_MS };
    if (config->settings->coord[0])
        s->coordination = standby_server_coordinate(s);
    s->shards = standby_shards_new(&config->shards, n, on_shards, s);
    s->request.last = memory_alloc(n * sizeof(uint64_t));
    s->request.keep = memory_alloc(n * sizeof(uint64_t));
    s->request.first = memory_alloc(n * sizeof(uint64_t));
    s->copy = standby_copy_new(&(struct standby_copy_config){
        config->loop, config->files, config->serves_clients, config->owner });
    channel_loop_init(&s->channels, config->loop);
    s->channels.tls = config->settings->tls;
    connection_set_init(&s->connections, &connections);
    uv_timer_init(config->loop, &s->switching.timer);
    s->switching.timer.data = s;
    return s;
}

void standby_server_free(struct standby_server *s)
{
    if (!s)
        return;
    channel_loop_deinit(&s->channels);
    standby_copy_free(s->copy);
    standby_files_close(s->config.files, &s->files);
    terms_deinit(&s->request.theirs);
    terms_deinit(&s->terms);
    free(s->request.last);
    free(s->request.keep);
    free(s->request.first);
    standby_shards_free(s->shards);
    coordination_free(s->coordination);
    free(s);
}

void standby_server_close(struct standby_server *s)
{
    if (s->is_closed)
        return;
    s->is_closed = s->job.is_abandoned = true;
    coordination_close(s->coordination);
    peer_query_drop(&s->query);
    peer_query_drop(&s->address.query);
    uv_close((uv_handle_t *)&s->switching.timer, NULL);
    standby_copy_close(s->copy);
    connection_set_close_all(&s->connections);
    channel_loop_close(&s->channels);
}

void standby_server_tick(struct standby_server *s)
{
    const uint64_t now_ms = clock_mono_ms();

    connection_set_sweep(&s->connections, uv_now(s->config.loop));
    peer_query_tick(&s->query, now_ms);
    standby_copy_tick(s->copy, now_ms);
    if (s->is_closed || s->state == SERVER_OFF || s->state == SERVER_DEPOSED)
        return;
    standby_server_check_terms(s);
    standby_server_tick_claim(s, now_ms);
    if (s->state == SERVER_SERVING && s->switching.step < SWITCH_SEALING)
        standby_server_tick_sync(s, now_ms);
    standby_server_tick_address(s, now_ms);
    standby_server_tick_follow(s);
    standby_server_tick_term(s, now_ms);
}

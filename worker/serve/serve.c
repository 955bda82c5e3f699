#include "worker/serve/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "worker/serve/score_server.h"

#define TICK_MS 10
#define CLOSE_MS 500u /* for clients to see that their connection ends */
#define SLACK_MS 1000u
#define WATCHDOG_MS 1000u

struct serving {
    struct served_model *model; /* owned, as all */
    struct scorer *scorer;
    struct score_server *server;
};

static void tick(struct score_server *server)
{
    const struct timespec pause = { .tv_nsec = TICK_MS * 1000000L };

    (void)nanosleep(&pause, NULL);
    score_server_tick(server);
}

static int begin(struct serving *v, const struct settings *s, struct stop_signal *stop,
                 struct err *err)
{
    int status = served_model_open(s, stop, &v->model, err);

    if (!status)
        status = score_server_open(s, v->model, &v->server, err);
    if (!status)
        status = scorer_start(v->model, s->threads, s->batch, &v->scorer, err);
    if (!status)
        status = score_server_start(v->server, v->scorer, err);
    return status;
}

/* Until a stop, or the model is lost. */
static int serve(struct serving *v, const struct stop_signal *stop, struct err *err)
{
    uint64_t notified_ms = 0;

    while (!stop_signal_asked(stop)) {
        tick(v->server);
        if (served_model_has_failed(v->model, err))
            return err->status;
        if (clock_mono_ms() - notified_ms < WATCHDOG_MS)
            continue;
        notified_ms = clock_mono_ms();
        sd_notify(0, "WATCHDOG=1");
    }
    return 0;
}

/* Answers what is under way. Connections end by themselves behind an answer; those that ask nothing are cut off. */
static void drain(struct serving *v, const struct settings *s)
{
    const uint64_t begun_ms = clock_mono_ms();
    uint64_t n_connections, waited_ms = 0;

    sd_notify(0, "STOPPING=1");
    score_server_drain(v->server);
    for (;;) {
        const bool is_idle = score_server_is_idle(v->server, &n_connections);

        if ((is_idle && (!n_connections || waited_ms > CLOSE_MS)) ||
            waited_ms > s->deadline_ms + SLACK_MS)
            return;
        tick(v->server);
        waited_ms = clock_mono_ms() - begun_ms;
    }
}

static void end(struct serving *v)
{
    if (v->model)
        served_model_cancel(v->model);
    scorer_stop(v->scorer);
    score_server_close(v->server);
    scorer_free(v->scorer);
    served_model_close(v->model);
}

int serve_run(const struct settings *s, struct stop_signal *stop, struct err *err)
{
    struct serving v = { 0 };
    int status = begin(&v, s, stop, err);

    if (!status) {
        stop_signal_grace(stop);
        log_line_info("computing on %s", served_model_device(v.model));
        log_line_info("serving job \"%s\" on http://%s/score", s->job,
                      score_server_address(v.server));
        sd_notify(0, "READY=1");
        status = serve(&v, stop, err);
        drain(&v, s);
    }
    end(&v);
    return status;
}

/* The steps that a primary's part of a standby is made of: a job of the pool, orders to the shards, the end. */
#include "server/standby_server_internal.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "server/standby_role.h"

void standby_server_start_job(struct standby_server *s, void (*run)(void *server),
                              void (*done)(void *server))
{
    pool_job_start(&s->job, s->config.loop, run, done);
}

static void write_terms(void *server)
{
    struct standby_server *s = server;

    s->job.err.status =
        terms_write(s->config.files, standby_server_data_dir(s), &s->terms, &s->job.err);
}

void standby_server_ask_shards(struct standby_server *s, enum shard_thread_standby what,
                               const uint64_t *keep)
{
    struct fetch_standby standby = {
        .term = terms_last(&s->terms),
        .ack = s->terms.ack,
        .pin_bytes_max = s->config.settings->standby_log_max_bytes / s->n_shards,
        .takes_over = s->coordination != NULL,
        .needs_disk = s->config.settings->durability == WAL_FSYNC
    };

    snprintf(standby.name, sizeof standby.name, "%s", s->request.name);
    standby_shards_ask(s->shards, what, &standby, keep);
}

void standby_server_order(struct standby_server *s, enum shard_thread_standby what)
{
    if (!s->is_closed)
        standby_shards_order(s->shards, what);
}

void standby_server_write_terms(struct standby_server *s, void (*done)(void *server))
{
    standby_server_start_job(s, write_terms, done);
}

void standby_server_end_switch(struct standby_server *s, const struct err *err)
{
    standby_server_switched *done = s->switching.done;
    char json[256];

    s->switching.done = NULL;
    if (!done)
        return;
    snprintf(json, sizeof json,
             "{\"role\":\"standby\",\"primary\":\"%s\",\"took_ms\":%" PRIu64 "}\n",
             s->terms.peer, clock_mono_ms() - s->switching.since_ms);
    done(s->switching.arg, err, json);
}

void standby_server_depose(struct standby_server *s, const char *sentence)
{
    if (s->state == SERVER_DEPOSED)
        return;
    standby_server_end_switch(s, NULL);
    s->state = SERVER_DEPOSED;
    standby_server_order(s, SHARD_STANDBY_SEAL);
    s->config.deposed(s->config.owner, sentence);
}

static void on_role_written(void *server)
{
    struct standby_server *s = server;

    enter_main();
    if (s->job.err.status)
        log_line_error("this psd does not note that it is a standby now: %s", s->job.err.text);
    standby_server_depose(s, s->sentence);
}

static void note_deposed(void *server)
{
    struct standby_server *s = server;

    s->job.err = (struct err){ 0 };
    s->job.err.status = standby_role_note_deposed(s->config.files, standby_server_data_dir(s),
                                                  &s->terms, &s->job.err);
}

/* TERMS is written whether or not it is: the rest is for a sentence alone. */
static void on_deposed_noted(void *server)
{
    struct standby_server *s = server;

    enter_main();
    if (s->job.err.status)
        log_line_error("%s", s->job.err.text);
    s->terms.role = TERMS_STANDBY;
    s->terms.in_sync = false;
    standby_server_start_job(s, write_terms, on_role_written);
}

void standby_server_depose_for_good(struct standby_server *s, const char *sentence)
{
    standby_server_end_switch(s, NULL);
    snprintf(s->sentence, sizeof s->sentence, "%s", sentence);
    standby_server_start_job(s, note_deposed, on_deposed_noted);
}

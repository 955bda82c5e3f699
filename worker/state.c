#include "worker/state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/log.h"
#include "common/mem.h"
#include "proto/codec_catalog.h"
#include "worker/client/residual_file.h"
#include "worker/settings_wire.h"

struct state {
    const struct file_ops *files;
    const struct settings *s; /* borrowed, as the encoder */
    struct encoder *encoder;
    uint64_t steps_before;
    bool has_begun; /* the file says so */
    bool was_ended; /* what was found was of a run that had ended; or there was nothing */
};

static int write_state(struct state *state, uint64_t n_steps, bool is_ended, struct err *err)
{
    struct residual_file f = { .rank = state->s->rank, .clock = n_steps, .is_ended = is_ended };

    snprintf(f.job, sizeof f.job, "%.63s", state->s->job);
    return residual_file_write(state->files, state->s->state_dir, &f, state->encoder, err);
}

/* May a codec of this run keep what it loses? */
static bool may_owe(const struct settings *s)
{
    static const enum choice_slot pushes[] = { CHOICE_ROWS_PUSH, CHOICE_DENSE_PUSH };
    bool ret = false;

    for (size_t i = 0; i < COUNT_OF(pushes); i++) {
        enum codec_id id;
        bool is_auto = settings_wire_codec(s, pushes[i], &id);

        ret = ret || is_auto || codec_by_id(id)->feedback;
    }
    return ret;
}

static void tell_found(const struct state *state, const struct residual_file *f)
{
    struct encoder_residuals owed;

    encoder_residuals(state->encoder, &owed);
    if (f->is_ended)
        log_info("%llu rows are owed something by %llu earlier steps: it goes out with their "
                 "next pushes",
                 (unsigned long long)owed.n_rows, (unsigned long long)f->clock);
    else if (owed.n_rows || may_owe(state->s))
        log_warn("the run before did not end by itself; what it owed to %llu rows is as of its "
                 "step %llu: of rows pushed since, a part is lost or sent twice",
                 (unsigned long long)owed.n_rows, (unsigned long long)f->clock);
}

static int read_state(struct state *state, struct err *err)
{
    struct residual_file f = { .rank = state->s->rank };
    int status;

    snprintf(f.job, sizeof f.job, "%.63s", state->s->job);
    status = residual_file_read(state->files, state->s->state_dir, state->encoder, &f, err);
    if (status == -ENOENT)
        return 0;
    if (status == PS_ECORRUPT) {
        log_warn("%s; this run begins owing nothing", err->text);
        return 0;
    }
    if (status)
        return status;
    state->steps_before = f.clock;
    state->was_ended = f.is_ended;
    tell_found(state, &f);
    return 0;
}

int state_open(const struct file_ops *files, const struct settings *s, struct encoder *e,
               struct state **ret, struct err *err)
{
    struct state *state;
    int status;

    *ret = NULL;
    if (!s->state_dir[0])
        return 0;
    state = mem_alloc(sizeof *state);
    *state = (struct state){ .files = files, .s = s, .encoder = e, .was_ended = true };
    status = read_state(state, err);
    if (!status)
        status = write_state(state, state->steps_before, state->was_ended, err);
    if (status) {
        free(state);
        return status;
    }
    *ret = state;
    return 0;
}

void state_free(struct state *state)
{
    free(state);
}

uint64_t state_steps_before(const struct state *state)
{
    return state ? state->steps_before : 0;
}

int state_begin(struct state *state, struct err *err)
{
    int status;

    if (!state || state->has_begun)
        return 0;
    status = write_state(state, state->steps_before, false, err);
    state->has_begun = !status;
    return status;
}

bool state_is_due(const struct state *state, uint64_t n_steps)
{
    return state && state->s->state_every && n_steps % state->s->state_every == 0;
}

void state_stepped(struct state *state, uint64_t n_steps)
{
    struct err err;

    if (!state_is_due(state, n_steps))
        return;
    if (write_state(state, n_steps, false, &err))
        log_warn("%s", err.text);
}

int state_end(struct state *state, uint64_t n_steps, struct err *err)
{
    if (!state)
        return 0;
    return write_state(state, n_steps, state->has_begun || state->was_ended, err);
}

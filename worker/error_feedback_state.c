#include "worker/error_feedback_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/log_line.h"
#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "worker/client/error_feedback_file.h"

struct error_feedback_state {
    const struct file_ops *files;
    const struct settings *s; /* borrowed, as the encoder */
    struct push_encoder *encoder;
    uint64_t steps_before;
    bool has_begun; /* the file says so */
    bool was_ended; /* what was found was of a run that had ended; or there was nothing */
};

static int write_state(struct error_feedback_state *state, uint64_t n_steps, bool is_ended,
                       struct err *err)
{
    struct error_feedback_file f = { .rank = state->s->rank,
                                     .clock = n_steps,
                                     .is_ended = is_ended };

    snprintf(f.job, sizeof f.job, "%.63s", state->s->job);
    return error_feedback_file_write(state->files, state->s->state_dir, &f, state->encoder,
                                     err);
}

/* May a codec of this run keep what it loses? */
static bool may_have_residuals(const struct settings *s)
{
    static const enum codec_policy_direction pushes[] = { CODEC_POLICY_ROWS_PUSH,
                                                          CODEC_POLICY_DENSE_PUSH };
    bool ret = false;

    for (size_t i = 0; i < COUNT_OF(pushes); i++) {
        enum codec_id id;
        bool is_auto = settings_codec(s, pushes[i], &id);

        ret = ret || is_auto || codec_by_id(id)->feedback;
    }
    return ret;
}

static void report_found(const struct error_feedback_state *state,
                         const struct error_feedback_file *f)
{
    struct push_encoder_residuals residuals;

    push_encoder_residuals(state->encoder, &residuals);
    if (f->is_ended)
        log_line_info(
            "%llu rows have residuals of %llu earlier steps: these are added to their next "
            "pushes",
            (unsigned long long)residuals.n_rows, (unsigned long long)f->clock);
    else if (residuals.n_rows || may_have_residuals(state->s))
        log_line_warn(
            "the run before did not end by itself; the residuals of %llu rows are as of its "
            "step %llu: of rows pushed since, a part is lost or sent twice",
            (unsigned long long)residuals.n_rows, (unsigned long long)f->clock);
}

static int read_state(struct error_feedback_state *state, struct err *err)
{
    struct error_feedback_file f = { .rank = state->s->rank };
    int status;

    snprintf(f.job, sizeof f.job, "%.63s", state->s->job);
    status =
        error_feedback_file_read(state->files, state->s->state_dir, state->encoder, &f, err);
    if (status == -ENOENT)
        return 0;
    if (status == PS_ECORRUPT) {
        log_line_warn("%s; this run begins owing nothing", err->text);
        return 0;
    }
    if (status)
        return status;
    state->steps_before = f.clock;
    state->was_ended = f.is_ended;
    report_found(state, &f);
    return 0;
}

int error_feedback_state_open(const struct file_ops *files, const struct settings *s,
                              struct push_encoder *e, struct error_feedback_state **ret,
                              struct err *err)
{
    struct error_feedback_state *state;
    int status;

    *ret = NULL;
    if (!s->state_dir[0])
        return 0;
    state = memory_alloc(sizeof *state);
    *state = (struct error_feedback_state){
        .files = files, .s = s, .encoder = e, .was_ended = true
    };
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

void error_feedback_state_free(struct error_feedback_state *state)
{
    free(state);
}

uint64_t error_feedback_state_steps_before(const struct error_feedback_state *state)
{
    return state ? state->steps_before : 0;
}

int error_feedback_state_begin(struct error_feedback_state *state, struct err *err)
{
    int status;

    if (!state || state->has_begun)
        return 0;
    status = write_state(state, state->steps_before, false, err);
    state->has_begun = !status;
    return status;
}

bool error_feedback_state_is_due(const struct error_feedback_state *state, uint64_t n_steps)
{
    return state && state->s->state_every && n_steps % state->s->state_every == 0;
}

void error_feedback_state_stepped(struct error_feedback_state *state, uint64_t n_steps)
{
    struct err err;

    if (!error_feedback_state_is_due(state, n_steps))
        return;
    if (write_state(state, n_steps, false, &err))
        log_line_warn("%s", err.text);
}

int error_feedback_state_end(struct error_feedback_state *state, uint64_t n_steps,
                             struct err *err)
{
    if (!state)
        return 0;
    return write_state(state, n_steps, state->has_begun || state->was_ended, err);
}

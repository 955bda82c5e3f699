/*
 * How a run's tables travel: the codec of each table and direction at each step (codecs.h), how
 * often dense tables are pulled, and what is kept of residuals (state.h). Beneath it is the
 * store, above it tables.c, which knows what the sections are.
 *
 * Dense tables, once pulled, are good for later steps while both hold:
 *
 *     --dense-refresh K      fewer than K steps have used them
 *     the bound s            step - min clock of that pull <= s (lock step: s = 0, so never)
 *
 * In between the worker sees neither its own dense pushes nor others'. A push of clock c that is
 * missing is one of the last K - 1 steps, which the bound allows to be missing.
 *
 * Threads: one may pull (wire_wants_dense(), wire_pulled(), wire_forget()) while another pushes.
 */
#ifndef WORKER_WIRE_H
#define WORKER_WIRE_H

#include "worker/bookmark.h"
#include "worker/codecs.h"
#include "worker/settings.h"
#include "worker/slot.h"
#include "worker/store.h"

struct wire;

/* The store has all of the run's tables. n_dense_floats: of all dense tables that are trained.
 * `trains`: for a run that pushes; others use settings alone, and fp32 where they say auto. */
int wire_new(const struct settings *s, struct store *store, uint64_t n_dense_floats,
             bool trains, struct wire **ret, struct err *err) MUST_CHECK;
void wire_free(struct wire *w);

/* Where the run stands, to be read and changed while no push is under way; a push advances it by its
 * step. */
struct bookmark *wire_bookmark(struct wire *w);
/* Is it that of a process before this one? */
bool wire_goes_on(const struct wire *w);
/* It goes with pushes that end no step, too, as it is now. */
void wire_mark(struct wire *w);

enum codec_id wire_codec(struct wire *w, enum choice_slot slot);

/* How the next step's gradients go (codecs.h): before its push, or when it begins. */
void wire_plan(struct wire *w, struct codecs_plan *ret);
/* They leave a device encoded. */
void wire_encode_elsewhere(struct wire *w);

/* Must dense tables be pulled for the step at this clock, or do those pulled before do? */
bool wire_wants_dense(struct wire *w, uint64_t clock);
/* The pull of the step at this clock has been answered; with dense tables or without. */
void wire_pulled(struct wire *w, uint64_t clock, bool with_dense);
/* Of what was pulled some may never be computed: dense tables are to be pulled anew, and steps that were planned and not
 * pushed are planned anew. */
void wire_forget(struct wire *w);

/* A computed step's push: ops->push with a tick, timed if its plan says so. */
int wire_push(struct wire *w, const struct slot *slot, const struct codecs_plan *plan,
              const struct ps_push_section *sections, uint32_t n, struct err *err) MUST_CHECK;

/* What codecs with feedback owe outlives the run (state.h): is there anybody to keep it? Is it to be kept as it is after
 * the step of this number? */
bool wire_keeps(const struct wire *w);
bool wire_keeps_at(const struct wire *w, uint64_t number);
/* Before the first push, and before anything else of what the encoder's residuals held. */
int wire_begin(struct wire *w, struct err *err) MUST_CHECK;
/* After a push: writes what the encoder's residuals hold, if it is time. */
void wire_keep(struct wire *w);

/* The store's, with the age of dense tables that were used again, and with the time that timed pushes
 * waited for their answers, as room_ns. Any thread. */
void wire_stats(const struct wire *w, struct ps_stats *ret);

/* The end of a run, well or with an error: writes the state. Needs no server, but the store's
 * encoder. NULL is fine. */
int wire_end(struct wire *w, struct err *err) MUST_CHECK;

#endif

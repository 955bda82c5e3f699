/* What the wire's settings mean, beside their text: codecs by direction, refresh. */
#ifndef WORKER_SETTINGS_WIRE_H
#define WORKER_SETTINGS_WIRE_H

#include "worker/choice.h"
#include "worker/settings.h"

/* The codec of a direction; true, and fp32 to begin with, if it says auto. */
bool settings_wire_codec(const struct settings *s, enum choice_slot slot, enum codec_id *ret);

/* --dense-refresh: 1 or more steps, 0 for auto. PS_ESETTING, also where it does not go with the
 * mode. */
int settings_wire_refresh(const struct settings *s, uint32_t *ret, struct err *err) MUST_CHECK;

/* Do all pulls of dense tables see all pushes of the step before? */
bool settings_wire_dense_is_exact(const struct settings *s);

#endif

/* What a user of the library leaves out of its options, and what is wrong with them. */
#ifndef WORKER_CLIENT_PS_OPTIONS_H
#define WORKER_CLIENT_PS_OPTIONS_H

#include "worker/client/ps_types.h"

/* With the defaults of ps_types.h where they have zeros, and "" for NULLs. */
struct ps_options ps_options_complete(const struct ps_options *options);

/* -EINVAL with a sentence: a name, rank or mode that no shard would take. */
int ps_options_check(const struct ps_options *o, struct err *err) MUST_CHECK;

#endif

/*
 * Arguments of ps_open(), ps_pull_start() and ps_push() that cannot be meant: a caller's mistake ends in a status with
 * a sentence, and does not end its process. What a shard refuses by itself is left to it: a clock out of range, a dense
 * block that is not there.
 */
#ifndef WORKER_CLIENT_ARGUMENT_CHECK_H
#define WORKER_CLIENT_ARGUMENT_CHECK_H

#include "worker/client/ps_types.h"

/* -EINVAL with a sentence: a name, rank or mode that no shard accepts. No string of *o is NULL. */
int argument_check_options(const struct ps_options *o, struct err *err) MUST_CHECK;

/* -EINVAL with a sentence that names the section. n_tables: that the client has. */
int argument_check_pull(const struct ps_pull_section *sections, uint32_t n, uint32_t n_tables,
                        struct err *err) MUST_CHECK;
/* The MESSAGE_FEATURE_* that the section needs; 0: none. */
uint32_t argument_check_feature(const struct ps_pull_section *s);
int argument_check_push(const struct ps_push_section *sections, uint32_t n, uint32_t n_tables,
                        struct err *err) MUST_CHECK;
/* Of a section that has passed: whether its table takes its rows so. */
int argument_check_rows(const struct ps_push_section *s, const struct table_spec *spec,
                        struct err *err) MUST_CHECK;

#endif

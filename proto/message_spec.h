/* A table's specification between its struct and its protobuf-c head. For message*.c alone. */
#ifndef PROTO_MESSAGE_SPEC_H
#define PROTO_MESSAGE_SPEC_H

#include "proto/ps.pb-c.h"
#include "proto/spec.h"

/* Fills *head and *params (both initialised here); their strings are borrowed from *spec. */
void message_spec_put(const struct table_spec *spec, Ps__TableSpec *head,
                      Ps__OptimParams *params);

/* PS_EPROTO for numbers that no enum has and for a name that does not fit. The rest is
 * spec_check()'s. */
int message_spec_take(const Ps__TableSpec *head, struct table_spec *ret) MUST_CHECK;

#endif

/*
 * The columns of a model, as its job's record (model_record.h) has them: the members label, numeric, features, missing,
 * missing_as and inner_separator (format: deploy/docs/serving.md).
 */
#ifndef WORKER_MODEL_COLUMNS_H
#define WORKER_MODEL_COLUMNS_H

#include <cjson/cJSON.h>

#include "worker/field_tables.h"

/* Adds the members to root. */
void model_columns_describe(cJSON *root, const struct settings *s, const struct schema *schema);

/* The schema, without a label, and the fields' tables, which s->fields becomes. Both are the caller's. PS_ESPEC: a
 * column cannot be named in settings, fields are given in s, or the columns are of another version of psworker. */
int model_columns_adopt(struct settings *s, const cJSON *root, struct schema **ret,
                        struct field_tables **ret_fields, struct err *err) MUST_CHECK;

#endif

/* The shape of a model, as the member "model" of its job's record (model_record.h) has it. */
#ifndef WORKER_MODEL_SHAPE_H
#define WORKER_MODEL_SHAPE_H

#include <cjson/cJSON.h>

#include "worker/settings.h"

struct model_shape_columns {
    uint32_t n_labels, n_numeric, n_fields;
};

/* Adds the member to root. */
void model_shape_describe(cJSON *root, const struct settings *s,
                          const struct model_shape_columns *columns);

/* s takes the shape that root has. PS_ESPEC: what is given in s, and so differs from `fallback`, is another one; or the
 * shape is of another version of psworker. */
int model_shape_adopt(struct settings *s, const struct settings *fallback, const cJSON *root,
                      struct err *err) MUST_CHECK;

#endif

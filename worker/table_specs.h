/* The specifications of a model's tables, as settings say them (model_tables.h). */
#ifndef WORKER_TABLE_SPECS_H
#define WORKER_TABLE_SPECS_H

#include "worker/model/dlrm.h"
#include "worker/param_store.h"
#include "worker/settings.h"

/* JOB/NAME and the tail of a group of fields behind it; s: the settings of the group (field_tables.h). The seed is the
 * caller's. */
struct table_spec table_specs_rows(const struct settings *s, const char *name, const char *tail,
                                   uint32_t dim);

/* JOB/NAME, which only adds up what is pushed. */
struct table_spec table_specs_dense(const struct settings *s, const char *name,
                                    uint64_t n_floats);

/* Tensor number i of the model. */
struct table_spec table_specs_tensor(const struct settings *s, const struct dlrm_tensor *tensor,
                                     uint32_t i);

/* True if the model can use the table that is there: a tensor may be one block there or several. */
bool table_specs_fit(const struct table_spec *have, const struct table_spec *want);

/* What the settings leave to psworker is what the table was made with: by an earlier psworker, with other defaults, or
 * with another batch or number of workers. */
void table_specs_keep(const struct settings *s, const struct table_spec *have,
                      struct table_spec *spec);

/* Before any table is made, which would stay: PS_ESETTING for a layer that is too long to be one block. One that is
 * there in blocks is used as it is. */
int table_specs_check_layers(const struct settings *s, struct dlrm *model,
                             struct param_store *store, struct err *err) MUST_CHECK;

#endif

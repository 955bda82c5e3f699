/*
 * The record of a job's model: how a row of the log becomes numbers and keys, and the model's shape, as a JSON text
 * (format: deploy/docs/serving.md). It lies in a table of the job, so it is in every checkpoint, log and copy of
 * it, and `psctl export` puts it into the metadata.
 *
 *     JOB/model   dense, only adds    the text, a byte in each float; zeros behind it
 *                 seed, bit 0         1: keys by column name; 0: by position
 *                 seed, other bits    a hash of the features (by name: with their names), which all workers compare
 *
 * The table is made before the job's other tables, and rank 0 fills it once. A job that has embedding rows and no
 * record was begun by a psworker that knew keys by position alone, and keeps them. The seed of the embedding rows
 * differs by key scheme, too: a psworker that does not know keys by name cannot join such a job.
 */
#ifndef WORKER_MODEL_RECORD_H
#define WORKER_MODEL_RECORD_H

#include "worker/data/schema.h"
#include "worker/field_tables.h"
#include "worker/param_store.h"
#include "worker/settings.h"

/* The seed of the initial rows of the job's sparse tables. s->key_scheme is resolved. */
uint64_t model_record_rows_seed(const struct settings *s, uint32_t dim);

struct model_record;

/* Finds the key scheme of the job, for s->key_scheme and the schema: as the job was begun, or, of a new one, as the
 * settings say, by name if they leave it open. PS_ESPEC with a sentence: the job has another scheme, or other columns;
 * PS_ESETTING as schema_use_keys(). */
int model_record_open(struct settings *s, struct schema *schema, struct param_store *store,
                      struct model_record **ret, struct err *err) MUST_CHECK;

/* For training, before the job's other tables are made: makes the record, unless it is there or the job is older. */
int model_record_make(struct model_record *r, const struct settings *s,
                      const struct schema *schema, struct param_store *store, struct err *err)
    MUST_CHECK;

/* Behind the job's other tables, as a pull asks for all of them: rank 0 fills the record once. */
int model_record_fill(struct model_record *r, const struct settings *s,
                      const struct schema *schema, struct param_store *store, struct err *err)
    MUST_CHECK;

/* The store opens the record's table, if there is one: a copy of the store's tables then has it. */
int model_record_find(const struct settings *s, struct param_store *store, struct err *err)
    MUST_CHECK;

void model_record_free(struct model_record *r);

/* The text of a record of this model, to be freed. -ENOMEM. */
int model_record_describe(const struct settings *s, const struct schema *schema, char **ret,
                          struct err *err) MUST_CHECK;

/* The columns and the model's shape as the job's record has them, for who has no settings of them: a schema without a
 * label, the fields' tables, and s->dim, bottom, top, interaction, wide, fields and the like. PS_ENOTABLE: there is no
 * record, or it is not filled yet. PS_ESPEC: it is of another version, a column of it cannot be named in settings, or
 * one of these settings is given and differs. */
int model_record_adopt(struct settings *s, struct param_store *store, struct schema **ret,
                       struct field_tables **ret_fields, struct err *err) MUST_CHECK;

#endif

/*
 * The tables of a model's fields. Fields that are given options of their own (`--field NAME:lr=0.1,...`, or a section
 * [field NAME] of the configuration) have rows in a table that was made so; fields that agree in all options share one.
 *
 *     group 0    fields without options                       JOB/emb            JOB/wide
 *     group g    others, in the order of their first field    JOB/emb.FIELD      JOB/wide.FIELD
 *
 * FIELD is the first field of the group. A step pulls and pushes all tables in one request each (model_tables.h).
 *
 * Some options are of the field alone, whatever its table: pooling, hash-space, and share-table, which gives it the
 * table of another column.
 *
 * An option has the name and the values of the setting that it replaces for these fields, so a group's options are a
 * whole struct settings. NAME is the name of a categorical column, its position, or a pattern (fnmatch(3)); of two
 * items that say the same option of a field, the later one holds.
 *
 * With init auto a group's rows start in U(-1/sqrt(n), 1/sqrt(n)), n being its number of different keys: told by the
 * option cardinality, or measured.
 */
#ifndef WORKER_FIELD_TABLES_H
#define WORKER_FIELD_TABLES_H

#include "worker/data/schema.h"
#include "worker/settings.h"

#define FIELD_TABLES_MAX BATCH_GROUPS_MAX

struct field_tables;

/* *ret is NULL if all fields are in one table, and none has means. The schema takes hashing spaces and shared tables.
 * The settings are borrowed. PS_ESETTING with a sentence: an item has no column, two columns share a table and differ
 * in options, or there would be too many tables. */
int field_tables_new(const struct settings *s, struct schema *schema, struct field_tables **ret,
                     struct err *err) MUST_CHECK;

/* A field as a record has it (model_record.h). */
struct field_tables_field {
    const char *tail; /* borrowed for the call */
    uint32_t dim;
    uint64_t space;
    bool has_mean;
};

/* The same of fields[number of the schema's]. PS_ESPEC: a tail is not what field_tables_tail() says. */
int field_tables_adopt(const struct settings *s, struct schema *schema,
                       const struct field_tables_field *fields, struct field_tables **ret,
                       struct err *err) MUST_CHECK;
void field_tables_free(struct field_tables *t);

/* NULL is fine for all below: one group, of all fields. */
uint32_t field_tables_n(const struct field_tables *t);
uint32_t field_tables_of(const struct field_tables *t, uint32_t field);
/* True if the vector of the field's bag is the mean of its rows, else their sum. */
bool field_tables_has_mean(const struct field_tables *t, uint32_t field);
/* For the batches (batch.h), borrowed; NULL: one group. */
const struct batch_groups *field_tables_groups(const struct field_tables *t);
/* Behind the names of its tables: "" or ".FIELD". */
const char *field_tables_tail(const struct field_tables *t, uint32_t group);
/* False: group 0, where all fields have options. Its tables exist, and stay empty. */
bool field_tables_has_fields(const struct field_tables *t, uint32_t group);
/* The job's settings with the options of the group. Borrowed. */
const struct settings *field_tables_settings(const struct settings *s, uint32_t group);

/* Are numbers of different keys to be measured? Then `counts` has those of each group; 0: none was seen. */
bool field_tables_want_counts(const struct field_tables *t);
void field_tables_set_counts(struct field_tables *t, const uint64_t *counts);

#endif

/*
 * What the coordination service has about a replica group, under groups/NUMBER: who serves, and under which term.
 *
 *     {"term":"7","primary":"h1","primary_run":"...","standby":"h2","standby_run":"...","in_sync":true,"history":"..."}
 *
 * It changes by compare-and-swap on its revision alone, so there is one primary for each term. A run is one life of a
 * process: a member that was restarted has another one, and no longer has what the record says of the run before it.
 */
#ifndef SERVER_CLUSTER_GROUP_RECORD_H
#define SERVER_CLUSTER_GROUP_RECORD_H

#include <stdbool.h>

#include "common/base.h"

#define GROUP_NAME_MAX 32u    /* of a member, with NUL: letters, digits, _ - . */
#define GROUP_SPANS_MAX 32u   /* of a lineage: the newest terms */
#define GROUP_RECORD_MAX 400u /* as a text, with NUL */

struct group_record {
    uint64_t term;
    char primary[GROUP_NAME_MAX], standby[GROUP_NAME_MAX]; /* standby "": none */
    uint64_t primary_run, standby_run;
    bool in_sync;     /* the standby has all that was acknowledged, and may take over */
    uint64_t history; /* random, of the log: another one shares no records with it */
};

void group_record_print(const struct group_record *r, char dst[static GROUP_RECORD_MAX]);

/* -EINVAL for anything else than such a text. */
int group_record_read(const char *text, struct group_record *ret) MUST_CHECK;

/*
 * The terms of a log, oldest first, from their first records (those that say LEAD):
 *
 *     first:   1         9              20
 *              | term 1  | term 4       | term 5 ... last
 */
struct group_lineage {
    uint64_t history; /* 0: none yet, on a new disk */
    uint64_t last;    /* the number of the newest record; 0: empty */
    uint32_t n_spans;
    struct group_span {
        uint64_t term, first;
    } spans[GROUP_SPANS_MAX];
    bool
        is_partial; /* copied or rewound, and not in sync since: may lack acknowledged records */
};

/* Forgets the oldest term if there are too many. */
void group_lineage_add(struct group_lineage *l, uint64_t term, uint64_t first);
void group_lineage_truncate(struct group_lineage *l, uint64_t last);
uint64_t group_lineage_term(const struct group_lineage *l); /* of the last record; 0: none */

/* The newest record that both logs have; 0: none that can be shown. Two records with the same term and number are the
 * same record, and so are all before them: a term has one primary, and a follower has a primary's records in order. */
uint64_t group_lineage_common(const struct group_lineage *a, const struct group_lineage *b);

/* Greater than 0: a has the later last term or, in the same term, more records. */
int group_lineage_compare(const struct group_lineage *a, const struct group_lineage *b);

#endif

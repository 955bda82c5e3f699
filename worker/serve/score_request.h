/*
 * The body of a request for scores -> samples of a batch. The body is JSON:
 *
 *     {"rows": [{"age": 39, "workclass": "State-gov", ...}, ...]}
 *     {"rows": [[39, "State-gov", ...], ...]}                               values in the order of score_columns
 *     {"columns": ["workclass", "age"], "rows": [["State-gov", 39], ...]}   in an order of the client's
 *
 * A value is what would stand in the log's text: line_parser.h makes the number or the keys of it, so a row has the
 * bits that its line has.
 *
 *     string          its bytes
 *     number          its text, as it stands in the body: 12345678901234567890 keeps all its digits
 *     null, or none   the empty field
 *     list            of a categorical column: a bag of its strings and numbers; null, and what is missing, adds none
 *     true, false, {} refused
 *
 * A body is not believed: all of it is checked before the first row is read, nothing is allocated for a value, and
 * lists are nested as deep as they have a meaning, no deeper.
 */
#ifndef WORKER_SERVE_SCORE_REQUEST_H
#define WORKER_SERVE_SCORE_REQUEST_H

#include "worker/data/schema.h"

/* The model's inputs: numeric columns, then categorical and bucketised ones, as a batch has them. */
struct score_columns;

/* The schema is borrowed for life. -ENOMEM. */
int score_columns_new(const struct schema *schema, struct score_columns **ret, struct err *err)
    MUST_CHECK;
void score_columns_free(struct score_columns *c);
uint32_t score_columns_n(const struct score_columns *c);
/* As keys and exports take it: the column's name, or its position in the log. */
const char *score_columns_name(const struct score_columns *c, uint32_t i);

struct score_request {
    const struct score_columns *columns; /* borrowed */
    char *at, *end;                      /* borrowed: the rows that are not read yet */
    uint32_t n_rows, n_read;
    uint32_t n_listed; /* values of a row that is a list */
    uint16_t *
        places; /* owned: the input of each of them, or of an object's members as the last row had them */
    uint16_t *listed; /* owned: of a list's values */
};

/* Checks the body, which is borrowed and changed until score_request_close(), and counts its rows. PS_EDATA: a sentence
 * for the client; -ENOMEM. Both leave nothing to close. */
int score_request_open(struct score_request *r, const struct score_columns *columns, char *body,
                       size_t n_bytes, struct err *err) MUST_CHECK;
/* Zeroed is fine. */
void score_request_close(struct score_request *r);

/* Adds rows to the batch, of the schema's shape, until it is full or all rows are read (n_read == n_rows). PS_EDATA
 * with a sentence that names the row and the column, -ENOMEM: the request is over, and the batch has the samples that
 * it had before this row. */
int score_request_read(struct score_request *r, struct batch *b, struct err *err) MUST_CHECK;

#endif

/*
 * Answers that wait for their turn, first come first served. A line does not own memory of its own.
 */
#ifndef SERVER_ANSWER_LINE_H
#define SERVER_ANSWER_LINE_H

#include "server/answer.h"

struct answer_line {
    struct answer *first; /* owned */
    struct answer **last; /* where the one behind them goes */
};

void answer_line_init(struct answer_line *line);
void answer_line_deinit(struct answer_line *line);

void answer_line_add(struct answer_line *line, struct answer *a);

/* Takes *at out of the line; the caller goes on with it. */
struct answer *answer_line_take(struct answer_line *line, struct answer **at);

/* Where the first one of the connection stands, from *at on; *ret is NULL if there is none. */
struct answer **answer_line_find(struct answer **at, const struct connection *c);

#endif

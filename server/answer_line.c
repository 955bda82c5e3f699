#include "server/answer_line.h"

void answer_line_init(struct answer_line *line)
{
    line->first = NULL;
    line->last = &line->first;
}

void answer_line_deinit(struct answer_line *line)
{
    while (line->first)
        answer_free(answer_line_take(line, &line->first));
}

void answer_line_add(struct answer_line *line, struct answer *a)
{
    a->next = NULL;
    *line->last = a;
    line->last = &a->next;
}

struct answer *answer_line_take(struct answer_line *line, struct answer **at)
{
    struct answer *a = *at;

    *at = a->next;
    if (!*at)
        line->last = at;
    a->next = NULL;
    return a;
}

struct answer **answer_line_find(struct answer **at, const struct connection *c)
{
    while (*at && (*at)->connection != c)
        at = &(*at)->next;
    return at;
}

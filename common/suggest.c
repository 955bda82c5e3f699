#include "common/suggest.h"

#include <limits.h>
#include <string.h>

#define WORD_MAX 63u

static unsigned least(unsigned a, unsigned b, unsigned c)
{
    unsigned ab = a < b ? a : b;

    return ab < c ? ab : c;
}

/*
 * Letters to insert, remove, change or swap with their neighbour to make b of a: the optimal
 * string alignment distance. Row i holds the distances of a's first i letters to all beginnings
 * of b; three rows are enough.
 */
static unsigned n_edits(const char *a, const char *b)
{
    unsigned rows[3][WORD_MAX + 1], *row, *above, *above2;
    size_t n_a = strlen(a), n_b = strlen(b), i, j;

    if (n_a > WORD_MAX || n_b > WORD_MAX)
        return UINT_MAX;
    for (j = 0; j <= n_b; j++)
        rows[0][j] = (unsigned)j;
    for (i = 1; i <= n_a; i++) {
        row = rows[i % 3];
        above = rows[(i + 2) % 3];
        above2 = rows[(i + 1) % 3];
        row[0] = (unsigned)i;
        for (j = 1; j <= n_b; j++) {
            row[j] = least(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                above2[j - 2] + 1 < row[j])
                row[j] = above2[j - 2] + 1;
        }
    }
    return rows[n_a % 3][n_b];
}

void suggest_init(struct suggest *n, const char *word)
{
    *n = (struct suggest){ .word = word, .n_edits = (unsigned)(strlen(word) + 2) / 3 + 1 };
}

void suggest_offer(struct suggest *n, const char *name)
{
    unsigned edits = n_edits(n->word, name);

    if (edits < n->n_edits) {
        n->n_edits = edits;
        n->name = name;
    }
}

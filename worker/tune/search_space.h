/*
 * What `psworker tune` searches: for some settings of a training run the values that they may take. A trial's value is
 * a pure function of the seed, the trial's number and the setting's name, so a setting more or less, or more trials,
 * change no other value.
 *
 *     lr=1e-4..1e-1     a range; a number by its logarithm if the end is at least 10 times a start above 0, else evenly
 *     dim=8|16|32       one of these
 *     wide=yes          this one
 */
#ifndef WORKER_TUNE_SEARCH_SPACE_H
#define WORKER_TUNE_SEARCH_SPACE_H

#include "worker/settings.h"

#define SEARCH_SPACE_MAX 24u
#define SEARCH_SPACE_CHOICES_MAX 24u
#define SEARCH_SPACE_TEXT_MAX 96u /* a value, with NUL */

enum search_space_kind { SEARCH_SPACE_CHOICE, SEARCH_SPACE_EVEN, SEARCH_SPACE_LOG };

struct search_space_setting {
    const struct setting *row;
    enum search_space_kind kind;
    double low, high; /* of a range */
    uint32_t n_choices;
    char choices[SEARCH_SPACE_CHOICES_MAX][SEARCH_SPACE_TEXT_MAX];
};

struct search_space {
    uint32_t n;
    struct search_space_setting settings[SEARCH_SPACE_MAX];
};

/* Of --search, or what is worth a search of this model: learning rates around their defaults, dim, dropout. PS_ESETTING
 * with a sentence: a name that is none of a model's or a training's settings, or a value that it cannot take. */
int search_space_of(const struct settings *s, struct search_space *ret, struct err *err)
    MUST_CHECK;

/* As one would type it. */
void search_space_draw(const struct search_space_setting *setting, uint64_t seed,
                       uint32_t trial, char ret[static SEARCH_SPACE_TEXT_MAX]);

/* Where a value stands: the number of a choice, or the number itself, of LOG its common logarithm. NaN: it is none of
 * the space. */
double search_space_place(const struct search_space_setting *setting, const char *value);

#endif

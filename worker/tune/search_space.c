#include "worker/tune/search_space.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"
#include "common/number.h"
#include "worker/model/dlrm_config.h"

#define LOG_FROM 10.0 /* the end of a range divided by its start */
#define DEFAULT_AROUND \
    10.0 /* a learning rate is searched from so much below to so much above its default */

/* ---- reading ---- */

static const struct setting *find_row(const char *name, size_t len)
{
    for (size_t i = 0; i < settings_worker.n_rows; i++)
        if (strlen(settings_worker.rows[i].name) == len &&
            strncmp(settings_worker.rows[i].name, name, len) == 0)
            return &settings_worker.rows[i];
    return NULL;
}

/* Those that make a model what it is; not its name, its data or its files. */
static bool is_searchable(const struct setting *row)
{
    static const char *const sections[] = { "model", "training", "wire" };
    static const char *const fixed[] = { "field", "state-dir", "steps-max", "epochs",
                                         "early-stop-by" };

    for (size_t i = 0; i < COUNT_OF(fixed); i++)
        if (strcmp(row->name, fixed[i]) == 0)
            return false;
    for (size_t i = 0; i < COUNT_OF(sections); i++)
        if (strcmp(row->section, sections[i]) == 0)
            return true;
    return false;
}

static bool is_number(const struct setting *row)
{
    return row->type == SETTING_FLOAT || row->type == SETTING_U32 || row->type == SETTING_U64;
}

/* The whole text is a finite number. */
static bool read_number(const char *text, size_t len, double *ret)
{
    char copy[64], *end;

    if (len == 0 || len >= sizeof copy)
        return false;
    memcpy(copy, text, len);
    copy[len] = 0;
    *ret = strtod(copy, &end);
    return *end == 0 && isfinite(*ret);
}

static void write_number(const struct setting *row, double value,
                         char ret[static SEARCH_SPACE_TEXT_MAX])
{
    char digits[32];

    if (row->type == SETTING_FLOAT) { /* three digits are enough, and are short to type */
        snprintf(digits, sizeof digits, "%.3g", value);
        number_write_float(strtof(digits, NULL), ret);
    } else {
        snprintf(ret, SEARCH_SPACE_TEXT_MAX, "%.0f", value);
    }
}

/* The setting takes this value. */
static int try_value(const struct settings *s, const struct setting *row, const char *value,
                     struct err *err)
{
    struct settings *copy = memory_alloc(sizeof *copy);
    struct err why;
    int status;

    settings_copy(&settings_worker, copy, s);
    status = settings_set(&settings_worker, copy, row->name, value, &why);
    settings_free(&settings_worker, copy);
    free(copy);
    return status ? err_set(err, PS_ESETTING, "--search: %.400s", why.text) : 0;
}

static int read_range(const struct settings *s, const char *text, size_t len, const char *dots,
                      struct search_space_setting *ret, struct err *err)
{
    char ends[2][SEARCH_SPACE_TEXT_MAX];
    const size_t n_first = (size_t)(dots - text);
    int status;

    if (!is_number(ret->row))
        return err_set(err, PS_ESETTING,
                       "--search: %s is no number and has no range: name its values, as in "
                       "%s=a|b",
                       ret->row->name, ret->row->name);
    if (!read_number(text, n_first, &ret->low) ||
        !read_number(dots + 2, len - n_first - 2, &ret->high) || !(ret->low < ret->high))
        return err_set(err, PS_ESETTING,
                       "--search: %s=%.*s is no range: two numbers, the smaller one first, are "
                       "expected, as in lr=1e-4..1e-1",
                       ret->row->name, (int)len, text);
    ret->kind =
        ret->low > 0 && ret->high / ret->low >= LOG_FROM ? SEARCH_SPACE_LOG : SEARCH_SPACE_EVEN;
    write_number(ret->row, ret->low, ends[0]);
    write_number(ret->row, ret->high, ends[1]);
    status = try_value(s, ret->row, ends[0], err);
    return status ? status : try_value(s, ret->row, ends[1], err);
}

static int read_choices(const struct settings *s, const char *text, size_t len,
                        struct search_space_setting *ret, struct err *err)
{
    const char *end = text + len, *stop;
    int status = 0;

    ret->kind = SEARCH_SPACE_CHOICE;
    for (; text <= end && !status; text = stop + 1) {
        char *choice = ret->choices[ret->n_choices];
        double number;

        stop = memchr(text, '|', (size_t)(end - text));
        if (!stop)
            stop = end;
        if (ret->n_choices == SEARCH_SPACE_CHOICES_MAX ||
            stop - text >= (long)SEARCH_SPACE_TEXT_MAX)
            return err_set(err, PS_ESETTING,
                           "--search: %s has more than %u values, or one of more than %u "
                           "characters",
                           ret->row->name, SEARCH_SPACE_CHOICES_MAX, SEARCH_SPACE_TEXT_MAX - 1);
        if (ret->row->type == SETTING_FLOAT &&
            read_number(text, (size_t)(stop - text), &number))
            number_write_float((float)number, choice);
        else
            memcpy(choice, text, (size_t)(stop - text));
        ret->n_choices++;
        status = try_value(s, ret->row, choice, err);
    }
    return status;
}

static int add(struct search_space *space, const struct settings *s, const char *text,
               size_t len, struct err *err)
{
    const char *equals = memchr(text, '=', len), *dots;
    struct search_space_setting *ret = &space->settings[space->n];
    const struct setting *row = equals ? find_row(text, (size_t)(equals - text)) : NULL;
    size_t n_values;

    if (!equals)
        return err_set(err, PS_ESETTING,
                       "--search: \"%.*s\" is not NAME=VALUES, as in lr=1e-4..1e-1,dim=8|16|32",
                       (int)len, text);
    if (!row || !is_searchable(row))
        return err_set(err, PS_ESETTING,
                       "--search: \"%.*s\" is none of the settings of a model or its training",
                       (int)(equals - text), text);
    for (uint32_t i = 0; i < space->n; i++)
        if (space->settings[i].row == row)
            return err_set(err, PS_ESETTING, "--search: %s is there twice", row->name);
    if (space->n == SEARCH_SPACE_MAX)
        return err_set(err, PS_ESETTING, "--search: more than %u settings", SEARCH_SPACE_MAX);
    *ret = (struct search_space_setting){ .row = row };
    space->n++;
    n_values = len - (size_t)(equals + 1 - text);
    dots = memmem(equals + 1, n_values, "..", 2);
    return dots ? read_range(s, equals + 1, n_values, dots, ret, err)
                : read_choices(s, equals + 1, n_values, ret, err);
}

/* Where the next NAME= begins behind a comma, or the end: values may hold commas, as top=512,256|256,128. */
static const char *find_end(const char *text)
{
    const char *comma = text;

    while ((comma = strchr(comma, ',')) != NULL) {
        const size_t len = strspn(comma + 1, "abcdefghijklmnopqrstuvwxyz0123456789-");

        if (comma[1 + len] == '=')
            return comma;
        comma++;
    }
    return text + strlen(text);
}

static int add_all(struct search_space *space, const struct settings *s, const char *text,
                   struct err *err)
{
    int status;
    const char *end;

    do {
        end = find_end(text);
        status = add(space, s, text, (size_t)(end - text), err);
        text = end + 1;
    } while (!status && *end);
    return status;
}

/* ---- what is worth a search ---- */

/* Around a rate; 0 to be searched around its optimizer's default. */
static int add_rate(struct search_space *space, const struct settings *s, const char *name,
                    bool dense, struct err *err)
{
    const double rate =
        (double)settings_optim_params(s, dense, settings_optim(s, dense)).learning_rate;
    char text[SEARCH_SPACE_TEXT_MAX];

    snprintf(text, sizeof text, "%s=%.3g..%.3g", name, rate / DEFAULT_AROUND,
             rate * DEFAULT_AROUND);
    return add_all(space, s, text, err);
}

static int add_defaults(struct search_space *space, const struct settings *s, struct err *err)
{
    const uint32_t parts = dlrm_config_parts((enum model_kind)s->model);
    int status = add_rate(space, s, "lr", false, err);

    if (!status && parts & (MODEL_TOP | MODEL_BOTTOM | MODEL_CROSS))
        status = add_rate(space, s, "dense-lr", true, err);
    if (!status && parts & MODEL_EMBEDDINGS)
        status = add_all(space, s, "dim=4|8|16|32", err);
    if (!status && parts & MODEL_TOP)
        status = add_all(space, s, "dropout=0|0.1|0.2|0.3", err);
    return status;
}

int search_space_of(const struct settings *s, struct search_space *ret, struct err *err)
{
    int status = 0;

    *ret = (struct search_space){ 0 };
    if (!s->search.n)
        return add_defaults(ret, s, err);
    for (uint32_t i = 0; i < s->search.n && !status; i++)
        status = add_all(ret, s, s->search.items[i], err);
    return status;
}

/* ---- values ---- */

/* In [0, 1). */
static double draw_unit(const struct setting *row, uint64_t seed, uint32_t trial)
{
    uint64_t h = hash_mix2(seed, trial);

    for (const char *at = row->name; *at; at++)
        h = hash_mix2(h, (unsigned char)*at);
    return (double)(h >> 11) * 0x1p-53;
}

void search_space_draw(const struct search_space_setting *setting, uint64_t seed,
                       uint32_t trial, char ret[static SEARCH_SPACE_TEXT_MAX])
{
    const double u = draw_unit(setting->row, seed, trial), low = setting->low,
                 high = setting->high;
    double value;

    switch (setting->kind) {
    case SEARCH_SPACE_CHOICE:
        memcpy(ret, setting->choices[(uint32_t)(u * setting->n_choices)],
               SEARCH_SPACE_TEXT_MAX);
        return;
    case SEARCH_SPACE_LOG:
        value = low * pow(high / low, u);
        break;
    case SEARCH_SPACE_EVEN:
    default:
        value = low + (high - low) * u;
        break;
    }
    write_number(setting->row, value, ret);
}

double search_space_place(const struct search_space_setting *setting, const char *value)
{
    double number;

    if (setting->kind != SEARCH_SPACE_CHOICE) {
        if (!read_number(value, strlen(value), &number))
            return (double)NAN;
        return setting->kind == SEARCH_SPACE_EVEN ? number
               : number > 0                       ? log10(number)
                                                  : (double)NAN;
    }
    for (uint32_t i = 0; i < setting->n_choices; i++)
        if (strcmp(setting->choices[i], value) == 0)
            return i;
    return (double)NAN;
}

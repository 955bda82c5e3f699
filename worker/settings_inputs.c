/* What numeric columns are to the model, and the bottom MLP that reads them, where settings leave it to psworker. */
#include <stdlib.h>
#include <string.h>

#include "common/number.h"
#include "worker/model/dlrm_config.h"
#include "worker/settings.h"

/* Logarithms of counts are seldom above 7. The figures: deploy/docs/benchmarks.md, "The defaults". */
#define HATS_AUTO 8u

/* Hats make the first layer as wide as it has ten inputs for each number, so a narrower one does. */
#define BOTTOM_AUTO "512,256,64"
#define BOTTOM_AUTO_FIRST 512u
#define BOTTOM_AUTO_HATS "256,64"

enum { LOG1P, STANDARDISE, RAW }; /* --numeric-as */

static bool is_auto(const char *text)
{
    return strcmp(text, "auto") == 0;
}

static bool has_bottom(const struct settings *s)
{
    return (dlrm_config_parts((enum model_kind)s->model) & MODEL_BOTTOM) != 0;
}

/* Who chooses the bottom MLP chooses its inputs, too; raw numbers have no common scale. */
uint32_t settings_n_hats(const struct settings *s)
{
    uint64_t n;

    if (is_auto(s->numeric_hats))
        return is_auto(s->bottom) && has_bottom(s) && (s->numeric_as != RAW || s->format[0])
                   ? HATS_AUTO
                   : 0;
    return number_read_u64(s->numeric_hats, &n) ? 0 : (uint32_t)n; /* checked before */
}

/* Logarithms begin at 0, standardised numbers lie around it. */
float settings_first_hat(const struct settings *s)
{
    const uint32_t n = settings_n_hats(s);

    return s->numeric_as == LOG1P || s->format[0] || !n ? 0 : -0.5f * (float)(n - 1);
}

const char *settings_bottom(const struct settings *s)
{
    if (!is_auto(s->bottom))
        return s->bottom;
    return settings_n_hats(s) ? BOTTOM_AUTO_HATS : BOTTOM_AUTO;
}

bool settings_keep_inputs(struct settings *s, uint32_t n_numeric, uint64_t n_weights)
{
    const bool keeps = n_numeric && is_auto(s->numeric_hats) && settings_n_hats(s) &&
                       n_weights == (uint64_t)n_numeric * BOTTOM_AUTO_FIRST;

    /* A job without numbers has the same record as one that was begun before there were hats. */
    if (keeps || !n_numeric) {
        s->numeric_hats[0] = '0';
        s->numeric_hats[1] = '\0';
    }
    return keeps;
}

int settings_widths(const char *name, const char *text, uint32_t *ret_widths, uint32_t max,
                    uint32_t *ret_n, struct err *err)
{
    const char *at = text;
    uint32_t n = 0;

    while (*at) {
        char *end;
        unsigned long width = strtoul(at, &end, 10);

        if (end == at || *at == '-' || width < 1 || width > 65536 || (*end && *end != ',') ||
            (*end && !end[1]))
            return err_set(
                err, PS_ESETTING,
                "--%s: \"%s\" is not a list of widths from 1 to 65536, such as 512,256", name,
                text);
        if (n == max)
            return err_set(err, PS_ESETTING, "--%s: more than %u layers", name, max);
        ret_widths[n++] = (uint32_t)width;
        at = *end ? end + 1 : end;
    }
    *ret_n = n;
    return 0;
}

int settings_check_inputs(const struct settings *s, struct err *err)
{
    uint32_t widths[SETTINGS_LAYERS_MAX], n_widths;
    uint64_t n;
    int status =
        settings_widths("bottom", settings_bottom(s), widths, COUNT_OF(widths), &n_widths, err);

    if (!status)
        status = settings_widths("top", s->top, widths, COUNT_OF(widths), &n_widths, err);
    if (status || is_auto(s->numeric_hats) ||
        (number_read_u64(s->numeric_hats, &n) == 0 && n <= DLRM_HATS_MAX))
        return status;
    return err_set(err, PS_ESETTING,
                   "--numeric-hats: \"%.40s\" is neither auto nor a number from 0 to %u",
                   s->numeric_hats, DLRM_HATS_MAX);
}

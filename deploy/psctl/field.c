#include "deploy/psctl/field.h"

#include <string.h>

#include "deploy/psctl/text_grid.h"

double field_number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

const char *field_text(const cJSON *object, const char *name)
{
    const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));

    return value ? value : "";
}

const cJSON *field_child(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

bool field_is_true(const cJSON *object, const char *name)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, name));
}

const cJSON *field_find(const cJSON *list, const char *name, const char *value)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list) if (strcmp(field_text(item, name), value) == 0) return item;
    return NULL;
}

const char *field_format_count(char dst[static FIELD_CELL_MAX], double n)
{
    snprintf(dst, FIELD_CELL_MAX, "%.0f", n);
    return dst;
}

const char *field_format_short(char dst[static FIELD_CELL_MAX], double n)
{
    static const char *const units[] = { "", " k", " M", " G" };
    size_t unit = 0;

    for (; n >= 1000 && unit + 1 < COUNT_OF(units); unit++)
        n /= 1000;
    snprintf(dst, FIELD_CELL_MAX, unit ? "%.1f%s" : "%.0f%s", n, units[unit]);
    return dst;
}

const char *field_format_bytes(char dst[static FIELD_CELL_MAX], double n)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    size_t unit = 0;

    for (; n >= 1024 && unit + 1 < COUNT_OF(units); unit++)
        n /= 1024;
    snprintf(dst, FIELD_CELL_MAX, unit ? "%.1f %s" : "%.0f %s", n, units[unit]);
    return dst;
}

const char *field_format_ns(char dst[static FIELD_CELL_MAX], double ns)
{
    if (ns >= 1e9)
        snprintf(dst, FIELD_CELL_MAX, "%.2f s", ns / 1e9);
    else if (ns >= 1e6)
        snprintf(dst, FIELD_CELL_MAX, "%.1f ms", ns / 1e6);
    else
        snprintf(dst, FIELD_CELL_MAX, "%.0f us", ns / 1e3);
    return dst;
}

const char *field_format_lasting(char dst[static FIELD_CELL_MAX], double ms)
{
    double s = ms > 0 ? ms / 1000 : 0;

    if (s < 120)
        snprintf(dst, FIELD_CELL_MAX, "%.0f s", s);
    else if (s < 7200)
        snprintf(dst, FIELD_CELL_MAX, "%.0f min", s / 60);
    else if (s < 172800)
        snprintf(dst, FIELD_CELL_MAX, "%.0f h", s / 3600);
    else
        snprintf(dst, FIELD_CELL_MAX, "%.0f d", s / 86400);
    return dst;
}

const char *field_format_maybe(char dst[static FIELD_CELL_MAX], const cJSON *object,
                               const char *name, int decimals)
{
    const cJSON *item = field_child(object, name);

    if (cJSON_IsNumber(item))
        snprintf(dst, FIELD_CELL_MAX, "%.*f", decimals, item->valuedouble);
    else
        snprintf(dst, FIELD_CELL_MAX, "-");
    return dst;
}

void field_put(FILE *out, const char *before, const char *value, const char *after)
{
    char tame[512];

    snprintf(tame, sizeof tame, "%s", value);
    text_grid_tame(tame);
    fprintf(out, "%s%s%s", before, tame, after);
}

#include "deploy/psctl/verify_findings.h"

#include <stdarg.h>
#include <stdio.h>

void verify_findings_say(const struct verify_findings *v, const char *fmt, ...)
{
    va_list args;

    if (v->telling == VERIFY_QUIETLY)
        return;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
}

void verify_findings_damage(struct verify_findings *v, const char *fmt, ...)
{
    char text[600];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    v->n_damaged++;
    cJSON_AddItemToArray(v->damage_json, cJSON_CreateString(text));
    verify_findings_say(v, "DAMAGED  %s", text);
}

const struct verify_point *verify_findings_find(const struct verify_findings *v,
                                                uint64_t number)
{
    for (size_t i = 0; i < v->n_points; i++)
        if (v->points[i].number == number)
            return &v->points[i];
    return NULL;
}

void verify_findings_dir(const struct verify_findings *v, uint64_t number,
                         char ret[static DIRECTORY_PATH_MAX])
{
    ret[0] = '\0';
    (void)!directory_number_path(v->data_dir, number, ret, NULL); /* it was listed: it fits */
}

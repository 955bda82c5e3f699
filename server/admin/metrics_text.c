#include "server/admin/metrics_text.h"

uint64_t metrics_text_field(const void *from, const struct metrics_family *f)
{
    return *(const uint64_t *)(const void *)((const char *)from + f->offset);
}

void metrics_text_head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void metrics_text_label(FILE *out, const char *key, const char *value)
{
    fprintf(out, ",%s=\"", key);
    for (; *value; value++) {
        if (*value == '\\' || *value == '"')
            fprintf(out, "\\%c", *value);
        else if (*value == '\n')
            fputs("\\n", out);
        else
            fputc((unsigned char)*value < 0x80 ? *value : '?', out);
    }
    fputc('"', out);
}

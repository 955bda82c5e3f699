#include "worker/key_command.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/number.h"
#include "worker/setup.h"

static int find_field(const struct schema *schema, const char *column, uint32_t *ret_field,
                      struct err *err)
{
    const uint32_t n = schema_n_fields(schema);
    uint64_t position = UINT64_MAX;

    if (number_read_u64(column, &position))
        position = UINT64_MAX;
    for (uint32_t f = 0; f < n; f++)
        if (strcmp(schema_field_name(schema, f), column) == 0 ||
            schema_field_column(schema, f) == position) {
            *ret_field = f;
            return 0;
        }
    return err_set(err, PS_ESETTING,
                   "key: \"%.60s\" is no categorical column; there are %u (--categorical, "
                   "--bucketise or the preset name them)",
                   column, n);
}

static int print(const struct batch *b, FILE *out, struct err *err)
{
    for (uint32_t i = 0; i < b->n_keys; i++)
        (void)fprintf(out, "%" PRIu64 "\n", b->keys[i]); /* what fails here fails again below */
    return fflush(out) || ferror(out)
               ? err_set(err, -EIO, "the keys cannot be written: %s", strerror(errno))
               : 0;
}

static int print_keys(const struct schema *schema, uint32_t field, const char *token, FILE *out,
                      struct err *err)
{
    struct err why = { 0 };
    struct batch b;
    char *copy;
    int status = batch_init(&b, 1, 0, schema_n_fields(schema));

    copy = status ? NULL : strdup(token);
    if (!copy)
        status = err_set(err, -ENOMEM, "no memory for a row");
    if (!status) {
        status = line_parser_keys(schema_plan(schema), field, copy, strlen(copy), &b, &why);
        if (status)
            err_set(err, status, "key: %s", why.text[0] ? why.text : status_text(status));
    }
    if (!status)
        status = print(&b, out, err);
    free(copy);
    batch_deinit(&b);
    return status;
}

int key_command_print(const struct settings *s, const char *column, const char *token,
                      FILE *out, struct err *err)
{
    struct setup u = { 0 };
    uint32_t field = 0;
    int status = setup_columns(&u, s, err);

    if (!status)
        status = schema_use_keys(u.schema,
                                 s->key_scheme == KEYS_BY_POSITION ? SCHEMA_KEYS_BY_POSITION
                                                                   : SCHEMA_KEYS_BY_NAME,
                                 err);
    if (!status)
        status = field_tables_new(s, u.schema, &u.fields, err);
    if (!status)
        status = find_field(u.schema, column, &field, err);
    if (!status)
        status = print_keys(u.schema, field, token, out, err);
    setup_deinit(&u);
    return status;
}

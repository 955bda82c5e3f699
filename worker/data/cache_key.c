#include "worker/data/cache_key.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/crc.h"

#define NAME_MAX_BYTES 100u /* of the file's own name in the cache's */

static_assert(sizeof(struct cache_key_block) == CACHE_KEY_BLOCK_BYTES, "as the table says");

/* With its length, so that two texts after one another differ from two others. */
static void add_bytes(XXH3_state_t *x, const void *bytes, size_t n_bytes)
{
    uint64_t n = n_bytes;

    XXH3_64bits_update(x, &n, sizeof n);
    XXH3_64bits_update(x, bytes, n_bytes);
}

static void add_number(XXH3_state_t *x, uint64_t number)
{
    add_bytes(x, &number, sizeof number);
}

static void add_text(XXH3_state_t *x, const char *text)
{
    add_bytes(x, text ? text : "", text ? strlen(text) : 0);
}

/* All of row_plan that decides what a line becomes, also the sentence of a refusal. */
static void add_plan(XXH3_state_t *x, const struct row_plan *p)
{
    const uint64_t numbers[] = { p->n_columns,       (uint64_t)(p->names != NULL),
                                 (uint64_t)p->quote, p->label_column,
                                 p->n_positive,      p->missing_has_key,
                                 p->numeric_as,      p->n_numeric,
                                 p->n_fields };

    add_bytes(x, numbers, sizeof numbers);
    for (uint32_t i = 0; p->names && i < p->n_columns; i++)
        add_text(x, p->names[i]);
    for (uint32_t i = 0; i < p->n_positive; i++)
        add_bytes(x, p->positive[i].at, p->positive[i].len);
    add_text(x, p->delimiter);
    add_text(x, p->missing);
    add_text(x, p->inner_separator);
    add_bytes(x, &p->numeric_missing, sizeof p->numeric_missing);
    add_bytes(x, p->numeric_columns, p->n_numeric * sizeof *p->numeric_columns);
    for (uint32_t i = 0; i < p->n_fields; i++)
        add_number(x, p->fields[i].column | (uint64_t)p->fields[i].is_bucket << 32);
    if (p->numeric_as == ROW_STANDARDISE) {
        add_bytes(x, p->mean, p->n_numeric * sizeof *p->mean);
        add_bytes(x, p->std, p->n_numeric * sizeof *p->std);
    }
}

static int look(const char *file, uint64_t *ret_bytes, uint64_t *ret_ns)
{
    struct stat st;

    if (stat(file, &st) != 0)
        return -errno;
    *ret_bytes = (uint64_t)st.st_size;
    *ret_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec;
    return 0;
}

int cache_key_init(struct cache_key *key, const char *dir, const struct file_ops *files,
                   const char *file, const struct schema *schema, const struct row_plan *plan,
                   struct err *err)
{
    char real[PATH_MAX], *name;
    XXH3_state_t x;
    int n, status;

    *key = (struct cache_key){ .files = files,
                               .n_numeric = plan->n_numeric,
                               .n_fields = plan->n_fields };
    status = look(file, &key->size_bytes, &key->changed_ns);
    if (!status && !realpath(file, real))
        status = -errno;
    if (status)
        return err_set(err, status, "%s: cannot look at it: %s", file, strerror(-status));
    XXH3_64bits_reset(&x);
    add_text(&x, real);
    add_number(&x, schema_has_header(schema));
    add_plan(&x, plan);
    key->fingerprint = XXH3_64bits_digest(&x);
    name = strrchr(real, '/') ? strrchr(real, '/') + 1 : real;
    n = snprintf(key->path, sizeof key->path, "%s/%.*s.%016llx.rows", dir, (int)NAME_MAX_BYTES,
                 name, (unsigned long long)key->fingerprint);
    if (n < 0 || (size_t)n + 40 > sizeof key->path)
        return err_set(err, -ENAMETOOLONG, "%.100s...: the path is too long", dir);
    return 0;
}

bool cache_key_holds(const struct cache_key *key, const char *file)
{
    uint64_t bytes, ns;

    return look(file, &bytes, &ns) == 0 && bytes == key->size_bytes && ns == key->changed_ns;
}

void cache_key_header(const struct cache_key *key, uint8_t at[CACHE_KEY_HEADER_BYTES])
{
    const uint32_t version = CACHE_KEY_VERSION;
    uint32_t crc;

    memset(at, 0, CACHE_KEY_HEADER_BYTES);
    memcpy(at, "psdrows", 8);
    memcpy(at + 8, &version, 4);
    memcpy(at + 16, &key->fingerprint, 8);
    memcpy(at + 24, &key->size_bytes, 8);
    memcpy(at + 32, &key->changed_ns, 8);
    memcpy(at + 40, &key->n_numeric, 4);
    memcpy(at + 44, &key->n_fields, 4);
    crc = crc_extend(0, at, CACHE_KEY_HEADER_BYTES);
    memcpy(at + 12, &crc, 4);
}

uint32_t cache_key_crc(const struct cache_key_block *head, const void *bytes)
{
    struct cache_key_block h = *head;

    h.crc = 0;
    return crc_extend(crc_extend(0, &h, sizeof h), bytes, h.n_bytes);
}

#include "worker/data/cardinality.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "common/hash.h"
#include "common/memory.h"
#include "worker/data/prescan.h"

#define BITS 12u
#define N_REGISTERS (1u << BITS)

struct sketches {
    const struct batch_groups *groups;
    uint8_t (*registers)[N_REGISTERS]; /* owned; one array for each group */
};

static void add_key(uint8_t *registers, uint64_t key)
{
    const uint64_t h = hash_mix(key);
    /* The bit below the others ends the run of zeros. */
    const uint8_t rank = (uint8_t)(__builtin_clzll(h << BITS | UINT64_C(1) << (BITS - 1)) + 1);
    uint8_t *at = &registers[h >> (64 - BITS)];

    *at = rank > *at ? rank : *at;
}

static void add_row(void *arg, const struct batch *row)
{
    struct sketches *s = arg;

    for (uint32_t f = 0; f < row->n_fields; f++)
        for (uint32_t i = row->starts[f]; i < row->starts[f + 1]; i++)
            add_key(s->registers[s->groups->of_field[f]], row->keys[i]);
}

/* Flajolet, Fusy, Gandouet, Meunier 2007, fig. 3; few keys are counted by the empty registers. */
static uint64_t estimate(const uint8_t *registers)
{
    const double m = N_REGISTERS, alpha = 0.7213 / (1 + 1.079 / m);
    double sum = 0, n;
    uint32_t n_empty = 0;

    for (uint32_t i = 0; i < N_REGISTERS; i++) {
        sum += ldexp(1, -registers[i]);
        n_empty += registers[i] == 0;
    }
    n = alpha * m * m / sum;
    if (n <= 2.5 * m && n_empty)
        n = m * log(m / n_empty);
    return (uint64_t)llround(n);
}

int cardinality_measure(const struct schema *schema, const struct batch_groups *groups,
                        struct input_pipes *pipes, char *const *files, uint32_t n_files,
                        uint64_t n_rows_max, uint64_t *ret, struct err *err)
{
    struct sketches s = { .groups = groups,
                          .registers = memory_try_alloc(groups->n * sizeof *s.registers) };
    struct prescan p = { .schema = schema,
                         .plan = *schema_plan(schema),
                         .pipes = pipes,
                         .files = files,
                         .n_files = n_files,
                         .n_rows_max = n_rows_max,
                         .on_row = add_row,
                         .arg = &s };
    int status;

    if (!s.registers)
        return err_set(err, -ENOMEM, "no memory to count the keys of %u tables", groups->n);
    status = prescan_run(&p, err);
    for (uint32_t g = 0; g < groups->n && !status; g++)
        ret[g] = estimate(s.registers[g]);
    free(s.registers);
    return status;
}

#include "worker/client/argument_check.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/message.h"

/* What a section of a pull and one of a push have in common. */
struct argument {
    const char *call;
    uint32_t section, table, n_keys;
    enum codec_id codec;
    const uint64_t *keys;
    bool has_rows; /* an array for its rows */
};

static int check_sections(const char *call, const void *sections, uint32_t n, struct err *err)
{
    if (n > SECTIONS_MAX)
        return err_set(err, -EINVAL, "a %s of %u sections: it may have %u", call, n,
                       SECTIONS_MAX);
    if (n && !sections)
        return err_set(err, -EINVAL, "a %s of %u sections without an array of them", call, n);
    return 0;
}

static bool do_ascend(const uint64_t *keys, uint32_t n)
{
    bool ascend = true;

    for (uint32_t i = 1; i < n; i++)
        ascend &= keys[i - 1] < keys[i];
    return ascend;
}

static int report_order(const struct argument *a, struct err *err)
{
    uint32_t i = 1;

    while (a->keys[i - 1] < a->keys[i])
        i++;
    return err_set(err, -EINVAL,
                   "a %s, section %u: key %" PRIu64 " follows %" PRIu64
                   ": keys must ascend, and each stand there once",
                   a->call, a->section, a->keys[i], a->keys[i - 1]);
}

static int check(const struct argument *a, uint32_t n_tables, struct err *err)
{
    if (a->table >= n_tables)
        return err_set(err, -EINVAL, "a %s, section %u: no table %u, this client has %u",
                       a->call, a->section, a->table, n_tables);
    if ((uint32_t)a->codec >= CODEC_ID_END)
        return err_set(err, -EINVAL, "a %s, section %u: no codec %u", a->call, a->section,
                       (uint32_t)a->codec);
    if (a->n_keys && (!a->keys || !a->has_rows))
        return err_set(err, -EINVAL, "a %s, section %u: %u keys, and no array of %s", a->call,
                       a->section, a->n_keys, a->keys ? "rows" : "keys");
    return do_ascend(a->keys, a->n_keys) ? 0 : report_order(a, err);
}

int argument_check_pull(const struct ps_pull_section *sections, uint32_t n, uint32_t n_tables,
                        struct err *err)
{
    int status = check_sections("pull", sections, n, err);
    uint32_t n_pulled = 0;

    for (uint32_t i = 0; i < n && !status; i++) {
        const struct ps_pull_section *s = &sections[i];

        status = check(
            &(struct argument){ .call = "pull",
                                .section = i,
                                .table = s->table,
                                .n_keys = s->n_keys,
                                .codec = s->codec,
                                .keys = s->keys,
                                .has_rows = s->dst || s->pulled || (s->sink && s->sink->take) },
            n_tables, err);
        if (!status && s->sink && !s->sink->take)
            status = err_set(err, -EINVAL, "a pull, section %u: a sink without take()", i);
        if (!status && s->sink && s->present)
            status = err_set(err, -EINVAL,
                             "a pull, section %u: a sink is told which keys have a row", i);
        if (!status && s->pulled && (s->sink || s->present || s->scan || s->rows || n_pulled++))
            status = err_set(err, -EINVAL,
                             "a pull, section %u: rows stay as they are sent in one section "
                             "of a pull, with nothing beside them",
                             i);
    }
    return status;
}

uint32_t argument_check_feature(const struct ps_pull_section *s)
{
    if (s->sink && s->sink->ask)
        return MESSAGE_FEATURE_DELTAS | s->sink->features;
    return s->scan || s->present ? MESSAGE_FEATURE_WHOLE_TABLES : 0;
}

static int check_push(const struct ps_push_section *s, uint32_t i, uint32_t n_tables,
                      struct err *err)
{
    int status = check(&(struct argument){ .call = "push",
                                           .section = i,
                                           .table = s->table,
                                           .n_keys = s->n_keys,
                                           .codec = s->codec,
                                           .keys = s->keys,
                                           .has_rows = s->values || s->encoded },
                       n_tables, err);

    if (status)
        return status;
    if ((uint32_t)s->op >= SECTION_OP_END)
        return err_set(err, -EINVAL, "a push, section %u: no operation %u", i, (uint32_t)s->op);
    if (s->op == SECTION_ASSIGN_STATE && s->steps > SECTION_STEPS_MAX)
        return err_set(err, -EINVAL, "a push, section %u: no table has %" PRIu64 " steps", i,
                       s->steps);
    if (s->op == SECTION_RATE && (s->n_keys || s->steps > UINT32_MAX))
        return err_set(err, -EINVAL,
                       "a push, section %u: a learning rate has no rows, and is one float", i);
    if (s->op == SECTION_GRADIENT_AT && (s->codec == CODEC_TOPK || (s->n_keys && !s->then) ||
                                         !section_delay_is_valid(s->steps)))
        return err_set(
            err, -EINVAL,
            "a push, section %u: delay compensation needs the rows' weights, a factor "
            "of 0 to %g, and another codec than topk",
            i, (double)SECTION_LAMBDA_MAX);
    if (s->encoded && s->op != SECTION_GRADIENT)
        return err_set(err, -EINVAL,
                       "a push, section %u: only gradients may be encoded already", i);
    return 0;
}

int argument_check_push(const struct ps_push_section *sections, uint32_t n, uint32_t n_tables,
                        struct err *err)
{
    bool is_named[PS_TABLES_MAX] = { false };
    int status = check_sections("push", sections, n, err);

    for (uint32_t i = 0; i < n && !status; i++) {
        status = check_push(&sections[i], i, n_tables, err);
        if (!status && is_named[sections[i].table])
            status = err_set(err, -EINVAL, "a push, section %u: table %u has a section already",
                             i, sections[i].table);
        if (!status)
            is_named[sections[i].table] = true;
    }
    return status;
}

int argument_check_options(const struct ps_options *o, struct err *err)
{
    if (o->reader)
        return 0;
    if (!o->job[0] || strlen(o->job) >= TABLE_SPEC_NAME_MAX)
        return err_set(err, -EINVAL, "job: \"%s\" is no name of 1 to %u characters", o->job,
                       TABLE_SPEC_NAME_MAX - 1);
    if (!o->n_workers || o->rank >= o->n_workers)
        return err_set(err, -EINVAL, "rank %u of %u workers: expected 0 to workers - 1",
                       o->rank, o->n_workers);
    if (o->mode != TABLE_SPEC_MODE_ASYNC && o->mode != TABLE_SPEC_MODE_SSP &&
        o->mode != TABLE_SPEC_MODE_BSP)
        return err_set(err, -EINVAL, "mode %d: expected async, ssp or bsp", (int)o->mode);
    return 0;
}

int argument_check_rows(const struct ps_push_section *s, const struct table_spec *spec,
                        struct err *err)
{
    if (s->op == SECTION_ASSIGN_STATE && s->n_keys && !s->state &&
        table_spec_state_floats(spec))
        return err_set(err, -EINVAL, "table %s: %u rows with state, and no array of it",
                       spec->name, s->n_keys);
    if (section_op_is_gradient(s->op) && s->codec == CODEC_TOPK &&
        spec->dim > TABLE_SPEC_DIM_MAX)
        return err_set(err, -EINVAL,
                       "table %s: topk has numbers of %u floats of a row, this one has %u: "
                       "another codec",
                       spec->name, TABLE_SPEC_DIM_MAX, spec->dim);
    return 0;
}

/* Which fields have tables of their own, with which settings, and what is refused. */
#include "tests/unit/worker/click_log.h"

#include <math.h>

#include "common/memory.h"
#include "worker/field_tables.h"

#define FLAGS_MAX 12u

static struct schema *criteo(const char *shared)
{
    const struct schema_text text = { .preset = "criteo", .shared = shared };
    struct schema *schema;
    struct err err = { 0 };

    must(schema_new(&text, NULL, &schema, &err), &err);
    return schema;
}

/* The tables that these flags make of Criteo's columns; NULL: one. */
struct made {
    struct settings s;
    struct schema *schema;
    struct field_tables *t;
};

static void make(struct made *m, const char *shared, const char *const *flags)
{
    struct err err = { 0 };

    click_log_settings(&m->s, flags);
    m->schema = criteo(shared);
    must(field_tables_new(&m->s, m->schema, &m->t, &err), &err);
    m->s.fields = m->t;
}

static void made_deinit(struct made *m)
{
    field_tables_free(m->t);
    schema_free(m->schema);
    settings_free(&settings_worker, &m->s);
}

#define MAKE(m, ...) make((m), "", (const char *const[]){ __VA_ARGS__, NULL })

/* Field number `field`, from 0 for C1: its settings, and the tail of its tables' names. */
static const struct settings *of(const struct made *m, uint32_t field)
{
    return field_tables_settings(&m->s, field_tables_of(m->t, field));
}

static const char *tail(const struct made *m, uint32_t field)
{
    return field_tables_tail(m->t, field_tables_of(m->t, field));
}

static void without_options_there_is_one_table(void **state)
{
    const char *const none[] = { NULL };
    const char *const as_the_job[] = { "--field", "C*:lr=0", "--field", "C1:init=uniform",
                                       NULL };
    const char *const *cases[] = { none, as_the_job };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct made m;

        make(&m, "", cases[i]);
        assert_null(m.t);
        assert_int_equal(field_tables_n(m.t), 1);
        assert_int_equal(field_tables_of(m.t, 25), 0);
        assert_null(field_tables_groups(m.t));
        assert_string_equal(field_tables_tail(m.t, 0), "");
        assert_true(field_tables_has_fields(m.t, 0));
        assert_ptr_equal(field_tables_settings(&m.s, 0), &m.s);
        assert_false(field_tables_want_counts(m.t));
        made_deinit(&m);
    }
}

static void fields_that_agree_share_a_table(void **state)
{
    struct made m;

    (void)state;
    MAKE(&m, "--field", "C2?:lr=0.5", "--field", "C3:lr=0.5", "--field", "C4:optimizer=adam",
         "--lr", "0.1");
    assert_int_equal(field_tables_n(m.t), 3);
    assert_string_equal(tail(&m, 0), "");
    assert_string_equal(tail(&m, 2), ".C3");  /* the first field of the group */
    assert_string_equal(tail(&m, 19), ".C3"); /* C20 .. C26 */
    assert_string_equal(tail(&m, 25), ".C3");
    assert_string_equal(tail(&m, 3), ".C4");
    assert_float_equal(of(&m, 0)->lr, 0.1f, 0);
    assert_float_equal(of(&m, 20)->lr, 0.5f, 0);
    /* The rate that is given is that of the job's optimizer. */
    assert_int_equal(settings_optim(of(&m, 3), false), TABLE_SPEC_ADAM);
    assert_float_equal(settings_optim_params(of(&m, 3), false, TABLE_SPEC_ADAM).learning_rate,
                       0.001f, 0);
    assert_true(field_tables_has_fields(m.t, 0));
    assert_int_equal(field_tables_groups(m.t)->n, 3);
    made_deinit(&m);
}

static void the_later_item_holds(void **state)
{
    struct made m;

    (void)state;
    MAKE(&m, "--field", "C*:lr=0.5,clip-norm=2", "--field", "C7:lr=0.25", "--field",
         "C8:optimizer=sgd,lr=0.125");
    assert_int_equal(field_tables_n(m.t), 4);
    assert_false(field_tables_has_fields(m.t, 0));
    assert_float_equal(of(&m, 6)->lr, 0.25f, 0);
    assert_float_equal(of(&m, 6)->clip_norm, 2, 0);
    assert_float_equal(of(&m, 7)->lr, 0.125f, 0);
    assert_float_equal(of(&m, 8)->lr, 0.5f, 0);
    made_deinit(&m);
}

static void a_column_is_named_by_its_position_too(void **state)
{
    struct made m;

    (void)state;
    MAKE(&m, "--field", "14:ttl=60s", "--field", "39:table-storage=bf16");
    assert_string_equal(tail(&m, 0), ".C1");
    assert_int_equal(of(&m, 0)->ttl_ms, 60000);
    assert_string_equal(tail(&m, 25), ".C26");
    assert_int_equal(settings_limits(of(&m, 25)).ttl_s, 0);
    assert_int_equal(of(&m, 25)->table_storage, TABLE_SPEC_BF16);
    made_deinit(&m);
}

static void auto_starts_rows_by_what_there_are_of_them(void **state)
{
    uint64_t counts[FIELD_TABLES_MAX] = { 0 };
    struct made m;

    (void)state;
    MAKE(&m, "--init", "auto", "--field", "C1:cardinality=400", "--field", "C2:cardinality=400",
         "--field", "C3:init=normal,init-scale=0.5");
    assert_int_equal(field_tables_n(m.t), 1 + 1 + 1 + 23);
    assert_true(field_tables_want_counts(m.t));
    assert_string_equal(tail(&m, 1), ".C1");
    assert_float_equal(settings_init_scale(of(&m, 1)), 0.05f, 1e-9);
    assert_int_equal(settings_init(of(&m, 1)), TABLE_SPEC_INIT_UNIFORM);
    assert_int_equal(settings_init(of(&m, 2)), TABLE_SPEC_INIT_NORMAL);
    assert_float_equal(settings_init_scale(of(&m, 2)), 0.5f, 0);
    assert_float_equal(settings_init_scale(of(&m, 3)), 0.01f,
                       0);               /* as long as nothing is known */
    counts[field_tables_of(m.t, 0)] = 7; /* it is told */
    counts[field_tables_of(m.t, 3)] = 10000;
    counts[field_tables_of(m.t, 4)] = 25;
    field_tables_set_counts(m.t, counts);
    assert_float_equal(settings_init_scale(of(&m, 0)), 0.05f, 1e-9);
    assert_float_equal(settings_init_scale(of(&m, 3)), 0.01f, 1e-9);
    assert_float_equal(settings_init_scale(of(&m, 4)), 0.2f, 1e-8);
    assert_float_equal(settings_init_scale(of(&m, 5)), 0.01f, 0); /* no row has had it */
    made_deinit(&m);
}

static void columns_that_share_a_table_are_one(void **state)
{
    struct made m;

    (void)state;
    make(&m, "C1,C5;C2,C3", (const char *const[]){ "--init", "auto", NULL });
    assert_int_equal(field_tables_n(m.t), 1 + 24);
    assert_int_equal(field_tables_of(m.t, 0), field_tables_of(m.t, 4));
    assert_int_equal(field_tables_of(m.t, 1), field_tables_of(m.t, 2));
    assert_string_equal(tail(&m, 4), ".C1");
    made_deinit(&m);
}

static void a_record_brings_them_back(void **state)
{
    struct field_tables_field fields[26] = { { 0 } };
    struct field_tables *again;
    struct err err = { 0 };
    struct made m;

    (void)state;
    MAKE(&m, "--field", "C*:lr=0.5", "--field", "C7:lr=0.25,dim=8", "--field", "C9:lr=0");
    for (uint32_t f = 0; f < 26; f++)
        fields[f] =
            (struct field_tables_field){ tail(&m, f), settings_dim(of(&m, f)), f, f == 4 };
    must(field_tables_adopt(&m.s, m.schema, fields, &again, &err), &err);
    assert_int_equal(field_tables_n(again), 3);
    for (uint32_t f = 0; f < 26; f++) {
        assert_string_equal(field_tables_tail(again, field_tables_of(again, f)),
                            fields[f].tail);
        assert_int_equal(field_tables_has_mean(again, f), f == 4);
        assert_int_equal(schema_plan(m.schema)->fields[f].space, f);
    }
    m.s.fields = again;
    assert_int_equal(settings_dim(of(&(struct made){ m.s, m.schema, again }, 6)), 8);
    assert_int_equal(settings_dim(of(&(struct made){ m.s, m.schema, again }, 7)), 4);
    m.s.fields = m.t;
    assert_true(field_tables_has_fields(again, 0));
    field_tables_free(again);
    for (uint32_t f = 0; f < 26; f++)
        fields[f].tail = "", fields[f].has_mean = false;
    must(field_tables_adopt(&m.s, m.schema, fields, &again, &err), &err);
    assert_null(again);
    fields[3].tail = "x";
    assert_int_equal(field_tables_adopt(&m.s, m.schema, fields, &again, &err), PS_ESPEC);
    assert_non_null(strstr(err.text, "its record has a table embx"));
    made_deinit(&m);
}

/* These are of the field alone: they make no table. */
static void fields_have_means_and_hashing_spaces(void **state)
{
    struct made m;

    (void)state;
    MAKE(&m, "--field", "C2*:pooling=mean", "--field", "C3:hash-space=1000", "--field",
         "C21:pooling=sum");
    assert_int_equal(field_tables_n(m.t), 1);
    assert_null(field_tables_groups(m.t));
    for (uint32_t f = 0; f < 26; f++) {
        assert_int_equal(field_tables_has_mean(m.t, f), f == 1 || (f >= 19 && f != 20));
        assert_int_equal(schema_plan(m.schema)->fields[f].space, f == 2 ? 1000 : 0);
        assert_int_equal(schema_plan_unlabelled(m.schema)->fields[f].space, f == 2 ? 1000 : 0);
    }
    made_deinit(&m);
    MAKE(&m, "--pooling", "mean", "--hash-space", "500", "--field",
         "C1:pooling=sum,hash-space=0");
    assert_int_equal(field_tables_n(m.t), 1);
    assert_false(field_tables_has_mean(m.t, 0));
    assert_true(field_tables_has_mean(m.t, 25));
    assert_int_equal(schema_plan(m.schema)->fields[0].space, 0);
    assert_int_equal(schema_plan(m.schema)->fields[25].space, 500);
    made_deinit(&m);
}

static void a_field_takes_the_table_of_another(void **state)
{
    struct made m;

    (void)state;
    /* C9 with C3, whichever comes first; and two that have a table take it along. */
    make(&m, "C1,C5",
         (const char *const[]){ "--init", "auto", "--field", "C3:share-table=C9", "--field",
                                "C5:share-table=C20", "--field", "C9:pooling=mean", NULL });
    assert_int_equal(field_tables_n(m.t), 1 + 26 - 3);
    assert_int_equal(schema_field_table(m.schema, 8), 2);
    assert_int_equal(schema_field_table(m.schema, 4), 0);
    assert_int_equal(schema_field_table(m.schema, 19), 0);
    assert_int_equal(field_tables_of(m.t, 2), field_tables_of(m.t, 8));
    assert_string_equal(tail(&m, 8), ".C3");
    assert_int_equal(schema_plan(m.schema)->fields[8].seed,
                     schema_plan(m.schema)->fields[2].seed);
    assert_true(field_tables_has_mean(m.t, 8));
    assert_false(field_tables_has_mean(m.t, 2));
    made_deinit(&m);
    MAKE(&m, "--field", "C2*:share-table=C2"); /* a pattern, which has that one in it */
    assert_null(m.t);
    assert_int_equal(schema_field_table(m.schema, 25), 1);
    assert_int_equal(schema_field_table(m.schema, 1), 1);
    made_deinit(&m);
}

/* Names that a table cannot have, and long ones. */
static void the_names_of_tables_are_plain(void **state)
{
    const struct schema_text text = {
        .delimiter = ",", .header = true, .label = "y", .categorical = "*"
    };
    static const char line[] =
        "y,a "
        "b,50%,\xc3\xa4,a:b,a-column-whose-name-is-longer-than-a-table's-name-may-be-in-all";
    const char *const want[] = { ".a%20b", ".50%25", ".%C3%A4", ".a:b", NULL };
    struct err err = { 0 };
    struct made m;

    (void)state;
    click_log_settings(&m.s,
                       (const char *const[]){ "--init", "auto", "--field", "a:b:lr=1", NULL });
    must(schema_new(&text, line, &m.schema, &err), &err);
    must(field_tables_new(&m.s, m.schema, &m.t, &err), &err);
    m.s.fields = m.t;
    for (uint32_t f = 0; want[f]; f++)
        assert_string_equal(tail(&m, f), want[f]);
    assert_float_equal(of(&m, 3)->lr, 1, 0);
    assert_int_equal(strlen(tail(&m, 4)), 2 + 16);
    assert_int_equal(strncmp(tail(&m, 4), ".%", 2), 0);
    made_deinit(&m);
}

struct refusal {
    const char *flags[FLAGS_MAX], *says;
};

static const struct refusal refusals[] = {
    { { "--field", "C1" },
      "--field \"C1\": expected is COLUMN:OPTION=VALUE,..., such as C1:lr=0.1" },
    { { "--field", ":lr=1" }, "--field \":lr=1\": expected is" },
    { { "--field", "C1:" }, "--field \"C1:\": expected is" },
    { { "--field", "C1:lr" }, "--field C1: \"lr\" is not OPTION=VALUE" },
    { { "--field", "C1:lr=1,,ttl=1s" }, "--field C1: \"\" is not OPTION=VALUE" },
    { { "--field", "C1:=1" }, "--field C1: \"=1\" is not OPTION=VALUE" },
    { { "--field", "C1:itin=zero" },
      "--field C1: unknown option \"itin\"; did you mean \"init\"?" },
    { { "--field", "C1:batch=3" }, "--field C1: unknown option \"batch\"" },
    { { "--field", "C1:init=one" },
      "--field C1: init: \"one\" is not one of zero|uniform|normal|auto" },
    { { "--field", "C1:cardinality=0" },
      "--field C1: cardinality: \"0\" is not a whole number from 1" },
    { { "--field", "C1:lr=-1" }, "--field C1: --lr: -1 is not from 0" },
    { { "--field", "C1:admit-touches=3" }, "--field C1: --admit-touches of 2 or more" },
    { { "--field", "C1:init=auto,init-scale=1" },
      "--field C1: init-scale says how wide rows start" },
    { { "--field", "C1:push-codec=auto" },
      "--field C1: push-codec auto is chosen for all tables at once: give --push-codec auto" },
    { { "--init", "auto", "--init-scale", "0.1" },
      "--field *: init-scale says how wide rows start" },
    { { "--field", "C99:lr=1" },
      "--field C99: there is no such categorical column; did you mean \"C9\"?" },
    { { "--field", "what:lr=1" }, "--field what: there is no such categorical column" },
    { { "--field", "40:lr=1" }, "--field 40: there is no such categorical column" },
    { { "--field", "X*:lr=1" }, "--field X*: no categorical column has a name like that" },
    { { "--field", "I3:lr=1" }, "--field I3: that is a numeric column, and has no rows" },
    { { "--model", "lr", "--field", "C1:init=zero" },
      "--field C1: --model lr has first-order weights, which start at 0 and are summed; leave "
      "init out" },
    { { "--model", "lr", "--field", "C1:pooling=mean" },
      "--field C1: --model lr has first-order weights, which start at 0 and are summed; leave "
      "pooling out" },
    { { "--field", "C1:pooling=max" }, "--field C1: pooling: \"max\" is not one of sum|mean" },
    { { "--field", "C1:share-table=C99" },
      "--field C1: share-table=C99: expected is the name of one categorical column" },
    { { "--field", "C1:share-table=I1" },
      "--field C1: share-table=I1: expected is the name of one categorical column" },
    { { "--field", "C1:share-table=C2,hash-space=7" },
      "--field: columns 'C1' and 'C2' have one table (share-table), and differ in hash-space" },
    { { "--field", "C4:share-table=C3", "--field", "C4:dim=8" },
      "--field: columns 'C3' and 'C4' have one table (share-table), and differ in dim" },
};

static void what_makes_no_sense_is_refused_with_a_sentence(void **state)
{
    struct schema *schema = criteo("");

    (void)state;
    for (size_t i = 0; i < COUNT_OF(refusals); i++) {
        struct field_tables *t = NULL;
        struct err err = { 0 };
        struct settings s;
        int status;

        click_log_settings(&s, refusals[i].flags);
        status = field_tables_new(&s, schema, &t, &err);
        if (status != PS_ESETTING ||
            strncmp(err.text, refusals[i].says, strlen(refusals[i].says)) != 0)
            fail_msg("%zu: \"%s\" is not \"%s\"", i, err.text, refusals[i].says);
        assert_null(t);
        settings_free(&settings_worker, &s);
    }
    schema_free(schema);
}

static void shared_columns_must_agree(void **state)
{
    const char *const flags[] = { "--field", "C5:lr=1", NULL };
    struct schema *schema = criteo("C1,C5");
    struct field_tables *t;
    struct err err = { 0 };
    struct settings s;

    (void)state;
    click_log_settings(&s, flags);
    assert_int_equal(field_tables_new(&s, schema, &t, &err), PS_ESETTING);
    assert_string_equal(err.text,
                        "--field: columns 'C1' and 'C5' have one table (share-table), "
                        "and differ in lr: give both the same");
    settings_free(&settings_worker, &s);
    schema_free(schema);
}

static void there_are_so_many_tables_and_no_more(void **state)
{
    char line[4096] = "y";
    const struct schema_text text = {
        .delimiter = ",", .header = true, .label = "y", .categorical = "*"
    };
    const char *const flags[] = { "--init", "auto", NULL };
    struct err err = { 0 };
    struct settings s;

    (void)state;
    click_log_settings(&s, flags);
    for (uint32_t n = 1; n <= FIELD_TABLES_MAX; n++) {
        struct field_tables *t;
        struct schema *schema;
        int status;

        snprintf(line + strlen(line), sizeof line - strlen(line), ",c%u", n);
        must(schema_new(&text, line, &schema, &err), &err);
        status = field_tables_new(&s, schema, &t, &err);
        assert_int_equal(status, n < FIELD_TABLES_MAX ? 0 : PS_ESETTING);
        assert_true(status || field_tables_n(t) == n + 1);
        field_tables_free(t);
        schema_free(schema);
    }
    assert_non_null(strstr(err.text, "--field: more than 60 tables"));
    settings_free(&settings_worker, &s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_options_there_is_one_table),
        cmocka_unit_test(fields_that_agree_share_a_table),
        cmocka_unit_test(the_later_item_holds),
        cmocka_unit_test(a_column_is_named_by_its_position_too),
        cmocka_unit_test(auto_starts_rows_by_what_there_are_of_them),
        cmocka_unit_test(columns_that_share_a_table_are_one),
        cmocka_unit_test(a_record_brings_them_back),
        cmocka_unit_test(fields_have_means_and_hashing_spaces),
        cmocka_unit_test(a_field_takes_the_table_of_another),
        cmocka_unit_test(the_names_of_tables_are_plain),
        cmocka_unit_test(what_makes_no_sense_is_refused_with_a_sentence),
        cmocka_unit_test(shared_columns_must_agree),
        cmocka_unit_test(there_are_so_many_tables_and_no_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Samples of tables: whose are their own, and what is summed. */
#include "server/admin/metrics_tables.h"
#include "tests/unit/admin/fixture.h"

enum { N_TABLES = 7 };

struct world {
    struct stats_table tables[N_TABLES];
    struct shard_report report;
    const struct shard_report *shards[2]; /* both the same, but for their numbers */
    struct shard_report other;
    struct node_report node;
};

/* Two jobs of a table and two dense ones each, in the order in which they came, and a dense one of no job. Rows: 1, 2,
 * 4 ... */
static void world_init(struct world *w)
{
    static const char *const names[N_TABLES] = { "a/emb", "a/top", "b/emb", "a/bot",
                                                 "b/top", "b/bot", "lone" };

    *w = (struct world){ 0 };
    for (uint32_t i = 0; i < N_TABLES; i++) {
        snprintf(w->tables[i].spec.name, TABLE_SPEC_NAME_MAX, "%s", names[i]);
        w->tables[i].spec.kind = strstr(names[i], "emb") ? TABLE_SPEC_SPARSE : TABLE_SPEC_DENSE;
        w->tables[i].n_rows = 1u << i;
    }
    w->report = (struct shard_report){ .tables = w->tables, .n_tables = N_TABLES };
    w->other = w->report;
    w->other.shard = 1;
    w->shards[0] = &w->report;
    w->shards[1] = &w->other;
    w->node = (struct node_report){ .n_shards = 2, .shards = w->shards, .metrics_tables = 8 };
}

/* *ret: to be freed. */
static void put(const struct world *w, char **ret)
{
    size_t n;
    FILE *out = open_memstream(ret, &n);

    assert_true(metrics_tables_put(out, &w->node));
    fclose(out);
}

static void assert_rows(const char *text, const char *labels, const char *value)
{
    char line[128];

    snprintf(line, sizeof line, "\npsd_table_rows{%s} %s\n", labels, value);
    if (!strstr(text, line))
        fail_msg("no %s in\n%.1500s", line + 1, text);
}

static uint32_t count(const char *text, const char *what)
{
    uint32_t n = 0;

    for (text = strstr(text, what); text; text = strstr(text + 1, what))
        n++;
    return n;
}

static void dense_tables_of_a_job_are_one_sum(void **state)
{
    struct world w;
    char *text;

    (void)state;
    world_init(&w);
    put(&w, &text);
    assert_rows(text, "shard=\"0\",table=\"a/emb\"", "1");
    assert_rows(text, "shard=\"0\",table=\"b/emb\"", "4");
    assert_rows(text, "shard=\"0\",table=\"a (dense)\"", "10");
    assert_rows(text, "shard=\"1\",table=\"b (dense)\"", "48");
    assert_rows(text, "shard=\"1\",table=\"lone\"", "64");
    assert_int_equal(count(text, "\npsd_table_rows{"), 10);
    assert_int_equal(count(text, "\npsd_table_row_bytes{"),
                     6); /* what is of one row has no sum */
    assert_int_equal(count(text, "\npsd_table_row_overhead_bytes{"), 6);
    free(text);
}

static void beyond_the_limit_there_is_one_sum(void **state)
{
    struct world w;
    char *text;

    (void)state;
    world_init(&w);
    w.node.metrics_tables = 1;
    put(&w, &text);
    assert_rows(text, "shard=\"0\",table=\"a/emb\"", "1");
    assert_rows(text, "shard=\"0\",table=\"a (dense)\"", "10");
    assert_rows(text, "shard=\"0\"", "116");
    assert_int_equal(count(text, "\npsd_table_rows{"), 6);
    free(text);
    w.node.metrics_tables = 0;
    put(&w, &text);
    assert_rows(text, "shard=\"1\"", "127");
    assert_null(strstr(text, "table=\""));
    free(text);
}

/* Of a shard that has not made all tables yet, or in another order, the same ones are shown. */
static void all_shards_show_the_same_tables(void **state)
{
    struct stats_table turned[N_TABLES];
    struct world w;
    char *text;

    (void)state;
    world_init(&w);
    for (uint32_t i = 0; i < N_TABLES; i++)
        turned[i] = w.tables[N_TABLES - 1 - i];
    w.other.tables = turned;
    w.other.n_tables = N_TABLES - 1; /* without a/emb */
    w.node.metrics_tables = 1;
    put(&w, &text);
    assert_rows(text, "shard=\"1\",table=\"a (dense)\"", "10");
    assert_rows(text, "shard=\"1\"", "116");
    assert_int_equal(count(text, "\npsd_table_rows{"), 5);
    w.shards[0] = NULL; /* has not reported yet */
    free(text);
    put(&w, &text);
    assert_rows(text, "shard=\"1\",table=\"lone\"", "64");
    assert_rows(text, "shard=\"1\",table=\"b (dense)\"", "48");
    free(text);
}

static void without_memory_nothing_is_said(void **state)
{
#ifdef PS_FAULTS
    struct world w;
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    world_init(&w);
    for (long k = 0; k < 4; k++) {
        memory_fail_after(k);
        assert_false(metrics_tables_put(out, &w.node));
        memory_fail_after(-1);
    }
    fclose(out);
    free(text);
#endif
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_tables_of_a_job_are_one_sum),
        cmocka_unit_test(beyond_the_limit_there_is_one_sum),
        cmocka_unit_test(all_shards_show_the_same_tables),
        cmocka_unit_test(without_memory_nothing_is_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

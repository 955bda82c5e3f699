/* psctl job: one job whole, and its curve. */
#include "deploy/psctl/online.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/number.h"
#include "deploy/psctl/cluster_query.h"
#include "deploy/psctl/cluster_report.h"
#include "deploy/psctl/curve.h"
#include "deploy/psctl/data_dir.h"
#include "deploy/psctl/field.h"
#include "deploy/psctl/fold.h"
#include "deploy/psctl/text_output.h"

static int fail_of(const char *before, const char *name, const char *after)
{
    fputs("psctl: ", stderr);
    field_put(stderr, before, name, after);
    fputc('\n', stderr);
    return EXIT_FAILED;
}

/* The answers to a question, as if one node had given them; the caller's to delete. NULL: no node has answered. */
static cJSON *ask_merged(struct cluster_query *q, const char *command, uint32_t *n_failed)
{
    cJSON *answers, *all;
    uint32_t n_missing;

    cluster_query_ask(q, &(struct ps_admin_plan){ .command = command });
    answers = cluster_query_answers(q, &n_missing);
    all = n_missing < q->n ? cluster_report_merge(answers) : NULL;
    if (n_missing)
        *n_failed = cluster_query_print_failures(q);
    cJSON_Delete(answers);
    return all;
}

static double last_ms(const cJSON *points)
{
    const int n = cJSON_GetArraySize(points);

    return n ? field_number(cJSON_GetArrayItem(points, n - 1), "ms") : -1;
}

/* Each node has the curve, as workers report to each: the newest is taken. An older psd knows no curves. The caller's
 * to delete; NULL: there is none. */
static cJSON *ask_curve(struct cluster_query *q, const char *job)
{
    cJSON *answers, *found = NULL;
    const cJSON *answer;

    cluster_query_ask(q, &(struct ps_admin_plan){ .command = "curve", .argument = job });
    answers = cluster_query_answers(q, NULL);
    cJSON_ArrayForEach(answer, field_child(answers, "nodes"))
    {
        const cJSON *points = field_child(answer, "points");

        if (!cJSON_GetArraySize(points) || last_ms(points) <= last_ms(found))
            continue;
        cJSON_Delete(found);
        found = cJSON_Duplicate(points, true);
    }
    cJSON_Delete(answers);
    return found;
}

static int print_curve(const struct options *o, struct cluster_query *q, const char *job)
{
    cJSON *points = ask_curve(q, job), *root;

    if (!points) {
        cluster_query_print_failures(q);
        return fail_of("job ", job, " has no curve: no worker has reported its learning");
    }
    if (o->svg)
        curve_put_svg(points, job, stdout);
    else if (!o->json)
        curve_put_csv(points, stdout);
    if (o->json && !o->svg) {
        root = cJSON_CreateObject();
        cJSON_AddStringToObject(root, "job", job);
        cJSON_AddItemToObject(root, "points", points);
        data_dir_print_json(root);
    } else {
        cJSON_Delete(points);
    }
    return EXIT_ANSWERED;
}

/* Of the tables whose names begin with the job's. */
struct job_sum {
    double n_sparse, n_dense, rows, bytes;
};

static struct job_sum sum_tables(const cJSON *tables, const char *job)
{
    const size_t n = strlen(job);
    struct job_sum sum = { 0 };
    const cJSON *t;

    cJSON_ArrayForEach(t, tables)
    {
        const char *name = field_text(t, "name");

        if (strncmp(name, job, n) != 0 || name[n] != '/')
            continue;
        if (strcmp(field_text(t, "kind"), "dense") == 0)
            sum.n_dense++;
        else
            sum.n_sparse++;
        sum.rows += field_number(t, "rows");
        sum.bytes += field_number(t, "bytes");
    }
    return sum;
}

static void print_busy(const cJSON *busy, FILE *out)
{
    const cJSON *stage;
    bool first = true;

    cJSON_ArrayForEach(stage, busy)
    {
        fprintf(out, "%s%s %.0f %%", first ? "busy         " : ", ", stage->string,
                100 * stage->valuedouble);
        first = false;
    }
    if (!first)
        fputc('\n', out);
}

static void print_learning(const cJSON *job, FILE *out)
{
    char cells[5][FIELD_CELL_MAX];

    if (!(field_number(job, "reported_unix_ms") > 0)) {
        fprintf(out, "learning     not reported\n");
        return;
    }
    fprintf(out, "learning     %s samples, %s/s; loss %s; validation: AUC %s, log-loss %s\n",
            field_format_short(cells[0], field_number(job, "samples")),
            field_format_short(cells[1], field_number(job, "samples_per_s")),
            field_format_maybe(cells[2], job, "loss", 4),
            field_format_maybe(cells[3], job, "auc", 4),
            field_format_maybe(cells[4], job, "logloss", 4));
    if (field_number(job, "kept_epoch") > 0)
        fprintf(out,
                "kept         the model of epoch %.0f, step %.0f, which was the best (--keep "
                "best)\n",
                field_number(job, "kept_epoch"), field_number(job, "kept_step"));
    print_busy(field_child(job, "busy"), out);
}

static void print_job_text(const struct options *o, const cJSON *job, const cJSON *tables,
                           const cJSON *points)
{
    const struct job_sum t = sum_tables(tables, field_text(job, "name"));
    struct text_output_view view = text_output_on_stdout(o->output == OPTIONS_WIDE);
    cJSON *alone = cJSON_CreateObject();
    char cell[FIELD_CELL_MAX];
    struct fold fold;
    FILE *out;

    cJSON_AddItemToArray(cJSON_AddArrayToObject(alone, "jobs"), cJSON_Duplicate(job, true));
    (void)text_output_answer("workers", alone, &view);
    cJSON_Delete(alone);
    putchar('\n');
    out = fold_open(&fold);
    print_learning(job, out);
    fprintf(out, "tables       %.0f sparse, %.0f dense; %.0f row%s in %s (psctl tables)\n",
            t.n_sparse, t.n_dense, t.rows, NUMBER_PLURAL(t.rows),
            field_format_bytes(cell, t.bytes));
    fold_close(&fold, &view.terminal, stdout);
    curve_put_text(points, stdout);
}

static void print_job_json(const cJSON *job, const cJSON *tables, const cJSON *points)
{
    const struct job_sum t = sum_tables(tables, field_text(job, "name"));
    cJSON *root = cJSON_Duplicate(job, true), *sum = cJSON_AddObjectToObject(root, "tables");

    cJSON_AddNumberToObject(sum, "sparse", t.n_sparse);
    cJSON_AddNumberToObject(sum, "dense", t.n_dense);
    cJSON_AddNumberToObject(sum, "rows", t.rows);
    cJSON_AddNumberToObject(sum, "bytes", t.bytes);
    cJSON_AddItemToObject(root, "points",
                          points ? cJSON_Duplicate(points, true) : cJSON_CreateArray());
    data_dir_print_json(root);
}

static int print_job(const struct options *o, struct cluster_query *q, const char *name)
{
    uint32_t n_failed = 0;
    cJSON *workers = ask_merged(q, "workers", &n_failed), *tables, *points;
    const cJSON *job = field_find(field_child(workers, "jobs"), "name", name);

    if (!job) {
        if (workers)
            fail_of("no node knows job ", name, "; psctl jobs lists all");
        cJSON_Delete(workers);
        return EXIT_FAILED;
    }
    tables = ask_merged(q, "tables", &n_failed);
    points = ask_curve(q, name);
    if (o->json)
        print_job_json(job, field_child(tables, "tables"), points);
    else
        print_job_text(o, job, field_child(tables, "tables"), points);
    cJSON_Delete(points);
    cJSON_Delete(tables);
    cJSON_Delete(workers);
    return n_failed ? EXIT_FAILED : EXIT_ANSWERED;
}

int online_job(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct cluster_query q;
    int code = EXIT_FAILED;

    (void)n_words;
    if (o->svg && !o->curve) {
        fputs("psctl: --svg draws the curve: it needs --curve\n", stderr);
        return EXIT_MISUSED;
    }
    if (cluster_query_open(&q, o))
        code = o->curve ? print_curve(o, &q, words[0]) : print_job(o, &q, words[0]);
    cluster_query_close(&q);
    return code;
}

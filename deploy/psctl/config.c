#include "deploy/psctl/config.h"

#include <stdio.h>
#include <string.h>

#include "deploy/psctl/cluster_query.h"
#include "deploy/psctl/field.h"
#include "deploy/psctl/text_grid.h"

#define SETTINGS_MAX 1024 /* of a node: more is no answer of psd's */

/* One setting on all nodes. */
struct row {
    const cJSON *answers; /* borrowed */
    const char *name;     /* borrowed */
};

static const cJSON *on_node(const struct row *row, const cJSON *node)
{
    return field_find(field_child(node, "settings"), "name", row->name);
}

/* Of the first node that has it: what must agree does on all. */
static const cJSON *first(const struct row *row)
{
    const cJSON *node, *found = NULL;

    cJSON_ArrayForEach(node, field_child(row->answers, "nodes")) if (!found) found =
        on_node(row, node);
    return found;
}

static bool has_same_text(const cJSON *a, const cJSON *b, const char *name)
{
    return strcmp(field_text(a, name), field_text(b, name)) == 0;
}

static bool is_same(const cJSON *a, const cJSON *b)
{
    return has_same_text(a, b, "value") && has_same_text(a, b, "source") &&
           has_same_text(a, b, "path") && field_number(a, "line") == field_number(b, "line") &&
           field_is_true(a, "reloaded") == field_is_true(b, "reloaded") &&
           field_is_true(a, "waits_for_restart") == field_is_true(b, "waits_for_restart");
}

/* Of all nodes that answer. */
static bool is_agreed(const struct row *row, bool (*same)(const cJSON *, const cJSON *))
{
    const cJSON *node, *a = first(row);

    cJSON_ArrayForEach(
        node,
        field_child(row->answers, "nodes")) if (field_child(node, "settings") &&
                                                (!on_node(row, node) ||
                                                 !same(a, on_node(row, node)))) return false;
    return true;
}

static bool is_same_value(const cJSON *a, const cJSON *b)
{
    return has_same_text(a, b, "value");
}

/* --- which of them --- */

static bool is_remarkable(const struct row *row)
{
    const cJSON *node;

    cJSON_ArrayForEach(node, field_child(row->answers, "nodes"))
    {
        const cJSON *setting = on_node(row, node);

        if (setting && (strcmp(field_text(setting, "source"), "default") != 0 ||
                        field_is_true(setting, "waits_for_restart")))
            return true;
    }
    return false;
}

static bool is_named(const char *name, const char *const *words, uint32_t n_words)
{
    for (uint32_t i = 0; i < n_words; i++)
        if (strcmp(words[i], name) == 0)
            return true;
    return false;
}

/* Nodes of other versions may have other settings: each is listed by the first node that has it. */
static bool is_listed_by(const struct row *row, const cJSON *node)
{
    const cJSON *other;

    cJSON_ArrayForEach(
        other, field_child(row->answers, "nodes")) if (on_node(row, other)) return other ==
        node;
    return false;
}

/* --- lines --- */

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* node: NULL if there is one alone. */
static void add_cells(struct text_grid *g, bool is_wide, const cJSON *setting, const char *node)
{
    const char *value = field_text(setting, "value"), *source = field_text(setting, "source"),
               *path = field_text(setting, "path");
    const bool waits = field_is_true(setting, "waits_for_restart");

    text_grid_add(g, "%s", field_text(setting, "name"));
    text_grid_add(g, "%s", value[0] ? value : "\"\"");
    if (node)
        text_grid_add(g, "%s", node);
    if (path[0])
        text_grid_add(g, "%s:%.0f%s", is_wide ? path : file_name(path),
                      field_number(setting, "line"),
                      field_is_true(setting, "reloaded") ? ", reloaded" : "");
    else
        text_grid_add(g, "%s", source);
    text_grid_add(g, "%s",
                  waits                                  ? "waits for a restart"
                  : field_is_true(setting, "reloadable") ? "takes effect"
                                                         : "-");
    if (waits)
        text_grid_paint(g, TERMINAL_YELLOW);
}

static void add_row(struct text_grid *g, bool is_wide, const struct row *row, bool is_alone)
{
    const cJSON *node;
    char number[24];

    if (is_agreed(row, is_same)) {
        add_cells(g, is_wide, first(row), is_alone ? NULL : "all");
        return;
    }
    cJSON_ArrayForEach(node, field_child(row->answers, "nodes")) if (on_node(row, node))
    {
        snprintf(number, sizeof number, "%.0f", field_number(node, "node"));
        add_cells(g, is_wide, on_node(row, node), number);
    }
}

/* Returns false if nodes differ that must agree, which is said. */
static bool check_equal(const struct row *row, const struct text_output_view *view)
{
    const cJSON *node;
    const char *before = ": ";

    if (!field_is_true(first(row), "equal") || is_agreed(row, is_same_value))
        return true;
    fprintf(view->out, "%sproblem%s", terminal_begin(&view->terminal, TERMINAL_RED),
            terminal_end(&view->terminal, TERMINAL_RED));
    field_put(view->out, ": nodes differ in ", row->name, ", which must be equal");
    cJSON_ArrayForEach(node,
                       field_child(row->answers, "nodes")) if (field_child(node, "settings"))
    {
        fprintf(view->out, "%snode %.0f has ", before, field_number(node, "node"));
        field_put(view->out, "",
                  on_node(row, node) ? field_text(on_node(row, node), "value") : "none", "");
        before = ", ";
    }
    fputc('\n', view->out);
    return false;
}

/* --- all of them --- */

/* Calls each(arg, row) for every setting that is to be shown. Returns how many. */
static uint32_t for_each(const cJSON *answers, const char *const *words, uint32_t n_words,
                         bool is_wide, void (*each)(void *arg, const struct row *row),
                         void *arg)
{
    const cJSON *node, *setting;
    uint32_t n = 0;

    cJSON_ArrayForEach(node, field_child(answers, "nodes"))
        cJSON_ArrayForEach(setting, field_child(node, "settings"))
    {
        struct row row = { answers, field_text(setting, "name") };

        if (!is_listed_by(&row, node) ||
            !(n_words ? is_named(row.name, words, n_words) : is_wide || is_remarkable(&row)))
            continue;
        each(arg, &row);
        n++;
    }
    return n;
}

struct printing {
    const struct text_output_view *view;
    struct text_grid grid;
    bool is_alone, is_equal;
};

static void on_row(void *arg, const struct row *row)
{
    struct printing *p = arg;

    add_row(&p->grid, p->view->is_wide, row, p->is_alone);
}

static void on_check(void *arg, const struct row *row)
{
    struct printing *p = arg;

    p->is_equal = check_equal(row, p->view) && p->is_equal;
}

static bool makes_sense(const cJSON *answers)
{
    const cJSON *node;

    cJSON_ArrayForEach(
        node,
        field_child(answers, "nodes")) if (!field_text(node, "error")[0] &&
                                           (!cJSON_IsArray(field_child(node, "settings")) ||
                                            cJSON_GetArraySize(field_child(node, "settings")) >
                                                SETTINGS_MAX)) return false;
    return true;
}

static bool are_known(const cJSON *answers, const char *const *words, uint32_t n_words)
{
    for (uint32_t i = 0; i < n_words; i++)
        if (!first(&(struct row){ answers, words[i] })) {
            fprintf(stderr,
                    "psctl: config: psd has no setting %.60s; psctl config -o wide lists all\n",
                    words[i]);
            return false;
        }
    return true;
}

int config_print(const cJSON *answers, const char *const *words, uint32_t n_words,
                 const struct text_output_view *view)
{
    static const char *const heads[] = { "<SETTING", "<VALUE", "<NODE", "<FROM",
                                         "<2ON RELOAD" },
                             *const alone[] = { "<SETTING", "<VALUE", "<FROM", "<2ON RELOAD" };
    struct printing p = { .view = view, .is_equal = true };

    if (!makes_sense(answers)) {
        fputs("psctl: the answer makes no sense here; --json shows it as it came\n", stderr);
        return EXIT_FAILED;
    }
    if (!are_known(answers, words, n_words))
        return EXIT_FAILED;
    p.is_alone = cJSON_GetArraySize(field_child(answers, "nodes")) < 2;
    text_grid_init(&p.grid, p.is_alone ? alone : heads,
                   p.is_alone ? COUNT_OF(alone) : COUNT_OF(heads));
    if (for_each(answers, words, n_words, view->is_wide, on_row, &p) == 0) {
        text_grid_drop(&p.grid);
        fputs("all settings are the default\n", view->out);
    } else {
        text_grid_finish(&p.grid, &view->terminal, view->out);
    }
    for_each(answers, words, n_words, true, on_check, &p);
    return p.is_equal ? EXIT_ANSWERED : EXIT_FAILED;
}

int config_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    const struct text_output_view view = text_output_on_stdout(o->output == OPTIONS_WIDE);
    struct cluster_query q;
    int code = EXIT_FAILED;

    if (cluster_query_open(&q, o)) {
        cluster_query_ask(&q, &(struct ps_admin_plan){ .command = "config" });
        if (o->json) {
            code = cluster_query_print_json(&q);
        } else {
            cJSON *answers = cluster_query_answers(&q, NULL);
            uint32_t n_failed = cluster_query_print_failures(&q);

            if (o->origin[0])
                fprintf(view.out, "psctl itself asks %s, with %s\n", o->server, o->origin);
            if (n_failed < q.n)
                code = config_print(answers, words, n_words, &view);
            code = n_failed ? EXIT_FAILED : code;
            cJSON_Delete(answers);
        }
    }
    cluster_query_close(&q);
    return code;
}

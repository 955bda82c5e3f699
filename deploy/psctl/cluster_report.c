#include "deploy/psctl/cluster_report.h"

#include <string.h>

#include "deploy/psctl/field.h"

enum rule { RULE_SUM, RULE_MOST, RULE_LEAST };

struct field_rule {
    const char *name;
    enum rule rule;
};

static const struct field_rule table_rules[] = {
    { "rows", RULE_SUM },         { "bytes", RULE_SUM },        { "slab_bytes", RULE_SUM },
    { "index_bytes", RULE_SUM },  { "sketch_bytes", RULE_SUM }, { "bytes_max", RULE_SUM },
    { "pushes", RULE_MOST },      { "rows_pulled", RULE_SUM },  { "rows_pushed", RULE_SUM },
    { "rows_refused", RULE_SUM }, { "rows_removed", RULE_SUM }, { "rows_unadmitted", RULE_SUM },
    { "rows_evicted", RULE_SUM }, { "rows_idle", RULE_SUM },    { "rows_expired", RULE_SUM },
    { "rows_rare", RULE_SUM },
};

static const struct field_rule job_rules[] = {
    { "min_clock", RULE_LEAST },    { "fenced", RULE_SUM },
    { "deaths", RULE_MOST },        { "lost_pushes", RULE_SUM },
    { "parked_ms", RULE_SUM },      { "staleness_violations", RULE_SUM },
    { "staleness_max", RULE_MOST }, { "staleness_p50", RULE_MOST },
    { "staleness_p99", RULE_MOST },
};

static const struct field_rule worker_rules[] = {
    { "clock", RULE_LEAST },   { "skipped_clocks", RULE_MOST }, { "incarnation", RULE_MOST },
    { "last_seq", RULE_MOST }, { "silent_ms", RULE_MOST },
};

static cJSON *item_of(cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static void set_number(cJSON *object, const char *name, double value)
{
    cJSON *item = item_of(object, name);

    if (item)
        cJSON_SetNumberValue(item, value);
    else
        cJSON_AddNumberToObject(object, name, value);
}

/* In the place of the item of this name, if there is one. */
static void set_item(cJSON *object, const char *name, cJSON *item)
{
    if (item_of(object, name))
        cJSON_ReplaceItemInObjectCaseSensitive(object, name, item);
    else
        cJSON_AddItemToObject(object, name, item);
}

static cJSON *list_of(cJSON *all, const char *name)
{
    cJSON *list = item_of(all, name);

    return list ? list : cJSON_AddArrayToObject(all, name);
}

static void apply(cJSON *into, const cJSON *from, const struct field_rule *rules, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double a = field_number(into, rules[i].name), b = field_number(from, rules[i].name);
        double value = rules[i].rule == RULE_SUM    ? a + b
                       : rules[i].rule == RULE_MOST ? (a > b ? a : b)
                                                    : (a < b ? a : b);

        if (value != a)
            set_number(into, rules[i].name, value);
    }
}

/* --- tables --- */

/* Nodes list their tables in nearly the same order: `hint` is looked at first. */
static cJSON *find_named(cJSON *list, cJSON *hint, const char *name)
{
    cJSON *item;

    if (hint && strcmp(field_text(hint, "name"), name) == 0)
        return hint;
    cJSON_ArrayForEach(item, list) if (strcmp(field_text(item, "name"), name) == 0) return item;
    return NULL;
}

static void add_table(cJSON *into, const cJSON *from)
{
    double rows = field_number(into, "rows"), more = field_number(from, "rows");

    if (rows + more > 0)
        set_number(into, "overhead_bytes_per_row",
                   (field_number(into, "overhead_bytes_per_row") * rows +
                    field_number(from, "overhead_bytes_per_row") * more) /
                       (rows + more));
    apply(into, from, table_rules, COUNT_OF(table_rules));
}

static void add_tables(cJSON *list, const cJSON *from)
{
    cJSON *hint = list->child;
    const cJSON *table;

    cJSON_ArrayForEach(table, from)
    {
        cJSON *into = find_named(list, hint, field_text(table, "name"));

        if (into)
            add_table(into, table);
        else
            cJSON_AddItemToArray(list, cJSON_Duplicate(table, true));
        hint = into ? into->next : NULL;
    }
}

/* --- jobs --- */

/* Workers report their learning to each node: what came last counts. */
static void take_newest_learning(cJSON *into, const cJSON *from)
{
    static const char *const names[] = { "samples", "samples_per_s",   "loss", "auc", "logloss",
                                         "busy",    "reported_unix_ms" };

    if (field_number(from, "reported_unix_ms") <= field_number(into, "reported_unix_ms"))
        return;
    for (size_t i = 0; i < COUNT_OF(names); i++)
        set_item(into, names[i], cJSON_Duplicate(field_child(from, names[i]), true));
}

/* Of a worker at two nodes. It has left when it has left both. */
static int rank_of_state(const char *state)
{
    static const char *const order[] = {
        "left", "expected", "live", "suspected", "dead", "lost"
    };

    for (size_t i = 0; i < COUNT_OF(order); i++)
        if (strcmp(order[i], state) == 0)
            return (int)i;
    return -1;
}

static void add_worker(cJSON *list, const cJSON *from)
{
    cJSON *into;

    cJSON_ArrayForEach(into, list) if (field_number(into, "rank") ==
                                       field_number(from, "rank")) break;
    if (!into) {
        cJSON_AddItemToArray(list, cJSON_Duplicate(from, true));
        return;
    }
    apply(into, from, worker_rules, COUNT_OF(worker_rules));
    take_newest_learning(into, from);
    if (!field_text(into, "name")[0])
        set_item(into, "name", cJSON_CreateString(field_text(from, "name")));
    if (rank_of_state(field_text(from, "state")) > rank_of_state(field_text(into, "state")))
        set_item(into, "state", cJSON_CreateString(field_text(from, "state")));
}

/* What its keys begin with: "16-31" is behind "5". */
static double first_of(const cJSON *item)
{
    double n = 0;

    for (const char *at = item->string; at && *at >= '0' && *at <= '9'; at++)
        n = n * 10 + (*at - '0');
    return n;
}

/* Both are in order. */
static cJSON *add_staleness(const cJSON *a, const cJSON *b)
{
    cJSON *sum = cJSON_CreateObject();
    const cJSON *x = a ? a->child : NULL, *y = b ? b->child : NULL;

    while (x || y) {
        bool has_x = x && (!y || first_of(x) <= first_of(y)),
             has_y = y && (!x || first_of(y) <= first_of(x));

        cJSON_AddNumberToObject(sum, has_x ? x->string : y->string,
                                (has_x ? x->valuedouble : 0) + (has_y ? y->valuedouble : 0));
        x = has_x ? x->next : x;
        y = has_y ? y->next : y;
    }
    return sum;
}

static void add_job(cJSON *into, const cJSON *from)
{
    const cJSON *worker;

    apply(into, from, job_rules, COUNT_OF(job_rules));
    take_newest_learning(into, from);
    set_item(into, "staleness",
             add_staleness(field_child(into, "staleness"), field_child(from, "staleness")));
    cJSON_ArrayForEach(worker, field_child(from, "workers"))
        add_worker(list_of(into, "workers"), worker);
}

static void add_jobs(cJSON *list, const cJSON *from)
{
    const cJSON *job;

    cJSON_ArrayForEach(job, from)
    {
        cJSON *into = find_named(list, NULL, field_text(job, "name"));

        if (into)
            add_job(into, job);
        else
            cJSON_AddItemToArray(list, cJSON_Duplicate(job, true));
    }
}

/* --- waits --- */

static void move_time(cJSON *wait, const char *name, double ms)
{
    double at = field_number(wait, name);

    if (at > 0)
        set_number(wait, name, at + ms);
}

/* ms: by how much the clock of the node that they are from is behind that of the first. */
static void add_waits(cJSON *list, const cJSON *from, double ms)
{
    const cJSON *wait;

    cJSON_ArrayForEach(wait, from)
    {
        cJSON *copy = cJSON_Duplicate(wait, true);

        move_time(copy, "since_unix_ms", ms);
        move_time(copy, "until_unix_ms", ms);
        cJSON_AddItemToArray(list, copy);
    }
}

/* --- all --- */

cJSON *cluster_report_merge(const cJSON *answers)
{
    cJSON *all = cJSON_CreateObject();
    const cJSON *node;
    double now = 0;

    cJSON_ArrayForEach(node, field_child(answers, "nodes"))
    {
        const cJSON *tables = field_child(node, "tables"), *jobs = field_child(node, "jobs"),
                    *waits = field_child(node, "waits");

        if (tables)
            add_tables(list_of(all, "tables"), tables);
        if (jobs)
            add_jobs(list_of(all, "jobs"), jobs);
        now = now > 0 ? now : field_number(node, "now_unix_ms");
        if (waits)
            add_waits(list_of(all, "waits"), waits, now - field_number(node, "now_unix_ms"));
    }
    if (now > 0)
        cJSON_AddNumberToObject(all, "now_unix_ms", now);
    return all;
}

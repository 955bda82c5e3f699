#include "worker/model_shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/model/dlrm_config.h"

/* ---- written ---- */

static cJSON *add_layer(cJSON *layers, const char *name, uint64_t in, uint64_t out,
                        bool has_relu, bool has_norm)
{
    cJSON *layer = cJSON_CreateObject();

    cJSON_AddItemToArray(layers, layer);
    cJSON_AddStringToObject(layer, "name", name);
    cJSON_AddNumberToObject(layer, "in", (double)in);
    cJSON_AddNumberToObject(layer, "out", (double)out);
    cJSON_AddBoolToObject(layer, "relu", has_relu);
    cJSON_AddBoolToObject(layer, "batch_norm", has_norm);
    return layer;
}

/* Of a cross network (worker/model/cross_net.h). */
static void add_cross_layers(cJSON *layers, const struct settings *s, uint64_t width)
{
    for (uint32_t i = 0; i < s->cross_layers; i++) {
        char name[24];

        snprintf(name, sizeof name, "cross.%u", i);
        cJSON_AddNumberToObject(add_layer(layers, name, width, width, false, false), "rank",
                                s->cross_rank);
    }
}

/* One layer for each width, and a last one of width `last`. A product is followed by normalisation and ReLU, but that
 * of the top's last layer. */
static void add_layers(cJSON *layers, const struct settings *s, bool is_top, uint64_t n_in,
                       uint32_t last)
{
    uint32_t widths[SETTINGS_LAYERS_MAX + 1], n = 0;
    const char *setting = is_top ? "top" : "bottom";
    struct err err;

    if (settings_widths(setting, is_top ? s->top : settings_bottom(s), widths,
                        SETTINGS_LAYERS_MAX, &n, &err))
        n = 0; /* the model has refused it before */
    widths[n++] = last;
    for (uint32_t i = 0; i < n; i++) {
        const bool has_relu = !is_top || i + 1 < n;
        char name[16];

        snprintf(name, sizeof name, "%s.%u", is_top ? "top" : "bot", i);
        add_layer(layers, name, n_in, widths[i], has_relu, has_relu && s->batch_norm);
        n_in = widths[i];
    }
}

void model_shape_describe(cJSON *root, const struct settings *s,
                          const struct model_shape_columns *columns)
{
    const enum model_kind kind = (enum model_kind)s->model;
    const uint32_t parts = dlrm_config_parts(kind);
    const struct dlrm_config config = { .kind = kind,
                                        .n_numeric = columns->n_numeric,
                                        .n_hats = settings_n_hats(s),
                                        .n_fields = columns->n_fields,
                                        .dim = settings_dim(s),
                                        .concat = s->interaction == 1,
                                        .self_interaction = s->self_interaction };
    cJSON *object = cJSON_AddObjectToObject(root, "model"), *layers;

    cJSON_AddStringToObject(object, "kind", dlrm_config_kind_name(kind));
    cJSON_AddNumberToObject(object, "dim", config.dim);
    if (parts & MODEL_INTERACTION) {
        cJSON_AddStringToObject(object, "interaction", s->interaction ? "concat" : "dot");
        cJSON_AddBoolToObject(object, "self_interaction", s->self_interaction);
    }
    cJSON_AddBoolToObject(object, "wide", settings_has_wide(s));
    layers = cJSON_AddArrayToObject(object, "layers");
    if (parts & MODEL_LINEAR)
        add_layer(layers, "lin.0", dlrm_config_n_inputs(&config), 1, false, false);
    if (parts & MODEL_BOTTOM && config.n_numeric)
        add_layers(layers, s, false, dlrm_config_n_inputs(&config), s->dim);
    if (parts & MODEL_CROSS)
        add_cross_layers(layers, s, dlrm_config_r_width(&config));
    if (parts & MODEL_TOP)
        add_layers(layers, s, true, dlrm_config_r_width(&config), columns->n_labels);
}

/* ---- read ---- */

static const cJSON *get(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* "": there is none. */
static const char *text_of(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(get(object, name));

    return text ? text : "";
}

/* The widths of an MLP's hidden layers, "512,256". False: it has none, not even a last one. */
static bool widths_of(const cJSON *layers, const char *prefix, char ret[SETTINGS_TEXT_MAX])
{
    const cJSON *layer;
    size_t n = 0, n_before = 0;
    bool has_any = false;

    cJSON_ArrayForEach(layer, layers)
    {
        if (strncmp(text_of(layer, "name"), prefix, strlen(prefix)) != 0 ||
            n + 16 > SETTINGS_TEXT_MAX)
            continue;
        n_before = n; /* the last one stands in no setting */
        n += (size_t)snprintf(ret + n, SETTINGS_TEXT_MAX - n, "%s%u", n ? "," : "",
                              (unsigned)cJSON_GetNumberValue(get(layer, "out")));
        has_any = true;
    }
    ret[n_before] = '\0';
    return has_any;
}

/* False: a kind of a later psworker. */
static bool kind_of(const cJSON *model, int *ret)
{
    for (int kind = 0; kind < MODEL_KINDS; kind++)
        if (strcmp(text_of(model, "kind"), dlrm_config_kind_name((enum model_kind)kind)) == 0) {
            *ret = kind;
            return true;
        }
    return false;
}

/* The record's widths of this MLP, or what stands there if the model has none and so nothing asks for them. */
static void adopt_widths(const cJSON *layers, const char *prefix, char to[SETTINGS_TEXT_MAX],
                         const char *otherwise)
{
    if (!widths_of(layers, prefix, to))
        memcpy(to, otherwise, SETTINGS_TEXT_MAX);
}

/* Of the cross network, if the record has one; else nothing asks for them. */
static void adopt_cross(const cJSON *layers, struct settings *s)
{
    const cJSON *layer;
    uint32_t n = 0;

    cJSON_ArrayForEach(layer, layers)
    {
        const double rank = cJSON_GetNumberValue(get(layer, "rank"));

        if (strncmp(text_of(layer, "name"), "cross.", 6) != 0)
            continue;
        s->cross_layers = ++n;
        s->cross_rank = rank >= 0 && rank <= DLRM_WIDTH_MAX ? (uint32_t)rank : 0;
    }
}

/* Logits: outputs of the top MLP's last layer. */
static uint32_t n_tasks_of(const cJSON *layers)
{
    const cJSON *layer;
    double n = 1;

    cJSON_ArrayForEach(layer, layers)
    {
        if (strncmp(text_of(layer, "name"), "top.", 4) == 0)
            n = cJSON_GetNumberValue(get(layer, "out"));
    }
    return n >= 1 && n <= DLRM_TASKS_MAX ? (uint32_t)n : 1;
}

static bool has_batch_norm(const cJSON *layers)
{
    const cJSON *layer;

    cJSON_ArrayForEach(layer, layers)
    {
        if (cJSON_IsTrue(get(layer, "batch_norm")))
            return true;
    }
    return false;
}

/* A record without hats is of a model that has none. */
static void adopt_hats(const cJSON *root, struct settings *s)
{
    const double n = cJSON_GetNumberValue(get(get(root, "numeric"), "hats"));

    snprintf(s->numeric_hats, sizeof s->numeric_hats, "%u",
             n >= 1 && n <= DLRM_HATS_MAX ? (unsigned)n : 0);
}

static int refuse_setting(const struct settings *s, const char *name, struct err *err)
{
    return err_set(err, PS_ESPEC,
                   "--%s: the model of job \"%s\" has another one, as its record says: leave "
                   "it out",
                   name, s->job);
}

/* What is given, and so differs from the fallback, has to be the record's. */
int model_shape_adopt(struct settings *s, const struct settings *fallback, const cJSON *root,
                      struct err *err)
{
    const cJSON *model = get(root, "model");
    const cJSON *layers = get(model, "layers");
    const double dim = cJSON_GetNumberValue(get(model, "dim"));
    struct settings *to = memory_alloc(sizeof *to);
    const char *wrong = NULL;
    bool is_known;

    *to = *s;
    to->dim = dim >= 1 && dim <= 4096 ? (uint32_t)dim : 0;
    is_known = kind_of(model, &to->model);
    to->interaction = strcmp(text_of(model, "interaction"), "concat") == 0;
    to->self_interaction = cJSON_IsTrue(get(model, "self_interaction"));
    to->wide = cJSON_IsTrue(get(model, "wide"));
    to->batch_norm = has_batch_norm(layers);
    adopt_hats(root, to);
    adopt_widths(layers, "bot.", to->bottom, s->bottom);
    adopt_widths(layers, "top.", to->top, s->top);
    adopt_cross(layers, to);
    to->n_tasks = n_tasks_of(layers);
    if (!to->dim || !is_known)
        wrong = "job";
    else if (s->model != fallback->model && s->model != to->model)
        wrong = "model";
    else if (s->dim != fallback->dim && s->dim != to->dim)
        wrong = "dim";
    else if (strcmp(s->numeric_hats, fallback->numeric_hats) != 0 &&
             settings_n_hats(s) != settings_n_hats(to))
        wrong = "numeric-hats";
    else if (strcmp(s->bottom, fallback->bottom) != 0 && strcmp(s->bottom, to->bottom) != 0)
        wrong = "bottom";
    else if (strcmp(s->top, fallback->top) != 0 && strcmp(s->top, to->top) != 0)
        wrong = "top";
    else if (s->cross_layers != fallback->cross_layers && s->cross_layers != to->cross_layers)
        wrong = "cross-layers";
    else if (s->cross_rank != fallback->cross_rank && s->cross_rank != to->cross_rank)
        wrong = "cross-rank";
    else if (s->interaction != fallback->interaction && s->interaction != to->interaction)
        wrong = "interaction";
    else if (s->self_interaction && !to->self_interaction)
        wrong = "self-interaction";
    else if (s->wide && !to->wide)
        wrong = "wide";
    else if (s->batch_norm && !to->batch_norm)
        wrong = "batch-norm";
    if (!wrong)
        *s = *to;
    free(to);
    return wrong ? refuse_setting(s, wrong, err) : 0;
}

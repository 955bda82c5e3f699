/* psctl config: the settings in force on each node, where each is from, and where nodes differ that must agree. */
#ifndef DEPLOY_PSCTL_CONFIG_H
#define DEPLOY_PSCTL_CONFIG_H

#include "deploy/psctl/options.h"
#include "deploy/psctl/text_output.h"

/* words: names of settings; none: those that are not the default, with -o wide all. Returns the exit code. */
int config_run(const struct options *o, const char *const *words, uint32_t n_words);

/* The same of answers {"nodes": [{"node": N, "settings": [...]}, ...]}, whatever is in them. */
int config_print(const cJSON *answers, const char *const *words, uint32_t n_words,
                 const struct text_output_view *view);

#endif

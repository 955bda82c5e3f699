/* An answer of psd's (JSON) as something to read at a terminal. */
#ifndef DEPLOY_PSCTL_TEXT_OUTPUT_H
#define DEPLOY_PSCTL_TEXT_OUTPUT_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>

#include "deploy/psctl/terminal.h"

/* Where it is printed. */
struct text_output_view {
    FILE *out;
    struct terminal terminal;
    bool is_wide; /* each dense table of a job has a line */
};

struct text_output_view text_output_on_stdout(bool is_wide);

/* `status` also takes {"nodes":[...]} of several nodes. False when the answer is not what psd answers to this
 * command. */
bool text_output_answer(const char *command, const cJSON *root,
                        const struct text_output_view *view);

#endif

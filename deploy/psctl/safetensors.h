/*
 * A file of named arrays as PyTorch's users exchange them (huggingface/safetensors, README, "Format"):
 *
 *     u64 length | JSON, blanks up to a multiple of 8 | data of each array, one behind the other
 *
 *     {"__metadata__": {NAME: TEXT ...}, NAME: {"dtype": "F32"|"I64", "shape": [...], "data_offsets": [from, to]} ...}
 *
 * Offsets count from where the data begins. Arrays of 8-byte items come first, so that each is aligned.
 */
#ifndef DEPLOY_PSCTL_SAFETENSORS_H
#define DEPLOY_PSCTL_SAFETENSORS_H

#include "deploy/psctl/tensor.h"

#define SAFETENSORS_NO_NAME "__metadata__" /* of what is no array */

struct safetensors_note {
    char name[TENSOR_NAME_MAX];
    char text[400];
};

/* No two tensors have one name, and none is called SAFETENSORS_NO_NAME. */
int safetensors_write(const struct file_ops *files, const char *path,
                      const struct tensor *tensors, uint32_t n_tensors,
                      const struct safetensors_note *notes, uint32_t n_notes, struct err *err)
    MUST_CHECK;

#endif

#include "deploy/psctl/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

#define ALIGNMENT 8u

static const char *type_name(enum tensor_type type)
{
    return type == TENSOR_I64 ? "I64" : "F32";
}

static cJSON *numbers(const uint64_t *items, uint32_t n)
{
    cJSON *array = cJSON_CreateArray();

    /* Exact: no file has 2^53 bytes. */
    for (uint32_t i = 0; i < n; i++)
        cJSON_AddItemToArray(array, cJSON_CreateNumber((double)items[i]));
    return array;
}

static void add_tensors(cJSON *root, const struct tensor *tensors, uint32_t n,
                        enum tensor_type type, uint64_t *offset)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t span[2] = { *offset };
        cJSON *item;

        if (tensors[i].type != type)
            continue;
        span[1] = *offset += tensor_bytes(&tensors[i]);
        item = cJSON_AddObjectToObject(root, tensors[i].name);
        cJSON_AddStringToObject(item, "dtype", type_name(type));
        cJSON_AddItemToObject(item, "shape", numbers(tensors[i].dims, tensors[i].n_dims));
        cJSON_AddItemToObject(item, "data_offsets", numbers(span, 2));
    }
}

/* The JSON, padded; NULL: no memory. */
static char *make_head(const struct tensor *tensors, uint32_t n_tensors,
                       const struct safetensors_note *notes, uint32_t n_notes,
                       size_t *ret_bytes)
{
    cJSON *root = cJSON_CreateObject();
    cJSON *metadata = cJSON_AddObjectToObject(root, SAFETENSORS_NO_NAME);
    uint64_t offset = 0;
    char *text, *padded = NULL;

    cJSON_AddStringToObject(metadata, "format", "pt");
    for (uint32_t i = 0; i < n_notes; i++)
        cJSON_AddStringToObject(metadata, notes[i].name, notes[i].text);
    add_tensors(root, tensors, n_tensors, TENSOR_I64, &offset);
    add_tensors(root, tensors, n_tensors, TENSOR_F32, &offset);
    text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    if (text) {
        *ret_bytes = (strlen(text) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        padded = mem_alloc(*ret_bytes + 1);
        memset(padded, ' ', *ret_bytes);
        memcpy(padded, text, strlen(text));
    }
    free(text);
    return padded;
}

static int put_all(struct tensor_file *f, const struct tensor *tensors, uint32_t n,
                   enum tensor_type type)
{
    int status = 0;

    for (uint32_t i = 0; i < n && !status; i++)
        if (tensors[i].type == type)
            status = tensor_file_put_tensor(f, &tensors[i]);
    return status;
}

int safetensors_write(const struct file_ops *files, const char *path,
                      const struct tensor *tensors, uint32_t n_tensors,
                      const struct safetensors_note *notes, uint32_t n_notes, struct err *err)
{
    struct tensor_file f;
    size_t n_bytes = 0;
    char *head = make_head(tensors, n_tensors, notes, n_notes, &n_bytes);
    const uint64_t length = n_bytes;
    int status =
        head ? tensor_file_open(&f, files, path, err) : err_set(err, -ENOMEM, "no memory");

    if (status) {
        free(head);
        return status;
    }
    status = tensor_file_put(&f, &length, sizeof length);
    if (!status)
        status = tensor_file_put(&f, head, n_bytes);
    if (!status)
        status = put_all(&f, tensors, n_tensors, TENSOR_I64);
    if (!status)
        status = put_all(&f, tensors, n_tensors, TENSOR_F32);
    free(head);
    return tensor_file_close(&f, status);
}

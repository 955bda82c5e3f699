#include "deploy/psctl/npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAGIC_BYTES 10u /* with version and length */
#define ALIGNMENT 64u
#define HEAD_BYTES \
    (MAGIC_BYTES + 246u) /* a multiple of ALIGNMENT, and room for any dictionary of ours */

static void encode_head(char dst[static HEAD_BYTES], const struct tensor *t)
{
    static const char magic[8] = { '\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0 };
    const size_t n = HEAD_BYTES - MAGIC_BYTES;
    char text[HEAD_BYTES], shape[64];
    int len;

    if (t->n_dims == 1)
        snprintf(shape, sizeof shape, "(%" PRIu64 ",)", t->dims[0]);
    else
        snprintf(shape, sizeof shape, "(%" PRIu64 ", %" PRIu64 ")", t->dims[0], t->dims[1]);
    len = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                   t->type == TENSOR_I64 ? "<i8" : "<f4", shape);
    memset(dst, ' ', HEAD_BYTES);
    memcpy(dst, magic, sizeof magic);
    dst[8] = (char)(n & 0xff);
    dst[9] = (char)(n >> 8);
    memcpy(dst + MAGIC_BYTES, text, (size_t)len);
    dst[HEAD_BYTES - 1] = '\n';
}

int npy_write(const struct file_ops *files, const char *path, const struct tensor *t,
              struct err *err)
{
    char head[HEAD_BYTES];
    struct tensor_file f;
    int status = tensor_file_open(&f, files, path, err);

    if (status)
        return status;
    encode_head(head, t);
    status = tensor_file_put(&f, head, sizeof head);
    if (!status)
        status = tensor_file_put_tensor(&f, t);
    return tensor_file_close(&f, status);
}

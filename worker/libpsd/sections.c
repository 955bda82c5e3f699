#include "worker/libpsd/sections.h"

#include <errno.h>
#include <string.h>

#define ROWS_BYTES_MIN offsetof(psd_rows, reserved) /* of the first version */
#define ROWS_BYTES_MAX 512u
#define TOPK_DEFAULT 0.01f

int sections_check(const char *call, const psd_rows *rows, int n, struct err *err)
{
    if (n < 0 || n > PSD_SECTIONS_MAX)
        return err_set(err, -EINVAL, "a %s of %d sections: it may have 0 to %d", call, n,
                       PSD_SECTIONS_MAX);
    if (n && !rows)
        return err_set(err, -EINVAL, "a %s of %d sections without an array of them", call, n);
    return 0;
}

/* True if all of what a later version has added is 0, so that it asks for nothing that this one does not know. */
static bool is_known(const psd_rows *at, uint32_t size)
{
    const char *bytes = (const char *)at;

    for (uint32_t i = sizeof *at; i < size; i++)
        if (bytes[i])
            return false;
    return true;
}

/* Section i of an array whose structs have the size of the first one. */
static int read_rows(const psd_rows *rows, uint32_t i, psd_rows *ret, struct err *err)
{
    uint32_t stride = rows->size;
    const psd_rows *at =
        (const psd_rows *)(const void *)((const char *)rows + (size_t)i * stride);

    if (stride < ROWS_BYTES_MIN || stride > ROWS_BYTES_MAX || stride % 8)
        return err_set(err, -EINVAL, "section 0: its size is %u: set it to sizeof(psd_rows)",
                       stride);
    if (at->size != stride)
        return err_set(err, -EINVAL, "section %u: its size is %u, and that of section 0 is %u",
                       i, at->size, stride);
    *ret = (psd_rows){ 0 };
    memcpy(ret, at, stride < sizeof *ret ? stride : sizeof *ret);
    if (ret->reserved || !is_known(at, stride))
        return err_set(
            err, -EINVAL,
            "section %u: a member that this version of libpsd does not know is not 0", i);
    if (ret->n > UINT32_MAX)
        return err_set(err, -EINVAL, "section %u: %llu keys; expected at most %u", i,
                       (unsigned long long)ret->n, UINT32_MAX);
    return 0;
}

/* Makes the engine's section i in ret[] of one that has been read. */
typedef int section_fill(const psd_rows *r, uint32_t i, void *ret, struct err *err);

static int read_all(const psd_rows *rows, uint32_t n, section_fill *fill, void *ret,
                    struct err *err)
{
    int status = 0;

    for (uint32_t i = 0; i < n && !status; i++) {
        psd_rows r;

        status = read_rows(rows, i, &r, err);
        if (!status)
            status = fill(&r, i, ret, err);
    }
    return status;
}

static int fill_pull(const psd_rows *r, uint32_t i, void *ret, struct err *err)
{
    struct ps_pull_section *sections = ret;

    if (r->state || r->steps)
        return err_set(err, -EINVAL, "section %u: state and steps are not pulled", i);
    sections[i] = (struct ps_pull_section){ .table = r->table,
                                            .codec = (enum codec_id)r->codec,
                                            .n_keys = (uint32_t)r->n,
                                            .keys = r->keys,
                                            .dst = r->rows,
                                            .present = r->present };
    return 0;
}

static int fill_push(const psd_rows *r, uint32_t i, void *ret, struct err *err)
{
    struct ps_push_section *sections = ret;

    if (!(r->topk >= 0 && r->topk <= 1))
        return err_set(err, -EINVAL, "section %u: topk is %g; expected a share from 0 to 1", i,
                       (double)r->topk);
    if (r->op > PSD_ASSIGN)
        return err_set(err, -EINVAL, "a push, section %u: no operation %u", i, r->op);
    if (r->state || r->steps || r->present)
        return err_set(err, -EINVAL, "section %u: %s", i,
                       r->present ? "present is for pulls"
                                  : "state and steps are for psd_assign()");
    sections[i] =
        (struct ps_push_section){ .table = r->table,
                                  .op = (enum section_op)r->op,
                                  .codec = (enum codec_id)r->codec,
                                  .topk_fraction = r->topk > 0 ? r->topk : TOPK_DEFAULT,
                                  .n_keys = (uint32_t)r->n,
                                  .keys = r->keys,
                                  .values = r->rows };
    return 0;
}

int sections_read_pull(const psd_rows *rows, uint32_t n, struct ps_pull_section *ret,
                       struct err *err)
{
    return read_all(rows, n, fill_pull, ret, err);
}

int sections_read_push(const psd_rows *rows, uint32_t n, struct ps_push_section *ret,
                       struct err *err)
{
    return read_all(rows, n, fill_push, ret, err);
}

int sections_read_assign(const psd_rows *rows, psd_rows *ret, struct err *err)
{
    int status = rows ? read_rows(rows, 0, ret, err)
                      : err_set(err, -EINVAL, "psd_assign() has no rows: NULL");

    if (!status && ret->present)
        status = err_set(err, -EINVAL, "psd_assign(): present is for pulls");
    return status;
}

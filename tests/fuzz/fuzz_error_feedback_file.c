/*
 * A worker's residuals, as a file: what is read, written, read and written is the same; what is refused
 * leaves nothing behind.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/disk.h"
#include "worker/client/error_feedback.h"
#include "worker/client/error_feedback_file.h"
#include "worker/client/push_encoder.h"

#define DIR "state"
#define PATH DIR "/ctr.2.residuals"

static void must(int status)
{
    assert(status == 0);
}

static struct push_encoder *new_encoder(void)
{
    const struct table_spec emb = { .name = "ctr/emb", .kind = TABLE_SPEC_SPARSE, .dim = 3 };
    const struct table_spec top = {
        .name = "ctr/top", .kind = TABLE_SPEC_DENSE, .dim = 5, .n_floats = 40
    };
    struct push_encoder *e = push_encoder_new(2);

    must(push_encoder_add_table(e, 0, &emb));
    must(push_encoder_add_table(e, 1, &top));
    return e;
}

/* The file, as it is after what it held was read and written. */
static const struct crash_inode *rewrite(struct crash_files *disk)
{
    struct error_feedback_file f = { .job = "ctr", .rank = 2 };
    struct push_encoder *e = new_encoder();
    const struct crash_inode *inode = NULL;
    struct push_encoder_residuals residuals;
    struct err err = { 0 };
    int status = error_feedback_file_read(&disk->ops, DIR, e, &f, &err);

    push_encoder_residuals(e, &residuals);
    if (status == 0) {
        must(error_feedback_file_write(&disk->ops, DIR, &f, e, &err));
        inode = crash_files_at(disk, PATH);
    } else {
        assert(status == PS_ECORRUPT || status == PS_ESPEC || status == -ENOMEM);
        assert(err.text[0] && residuals.n_rows == 0);
    }
    push_encoder_free(e);
    return inode;
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    const struct crash_inode *inode;
    uint64_t digest = 0, again = 0;
    struct crash_files disk;
    int fd;

    crash_files_init(&disk);
    must(disk.ops.mkdir(&disk, DIR));
    must(disk.ops.create(&disk, PATH, &fd));
    must(disk.ops.write_all(&disk, fd, bytes, n_bytes));
    must(disk.ops.close(&disk, fd));
    inode = rewrite(&disk);
    if (inode) {
        harness_digest(&digest, inode->bytes, inode->n_bytes);
        inode = rewrite(&disk);
        assert(inode);
        harness_digest(&again, inode->bytes, inode->n_bytes);
        assert(digest == again);
    }
    assert(crash_files_n_open(&disk) == 0);
    crash_files_deinit(&disk);
}

static void add_residuals(struct error_feedback *r, uint32_t n)
{
    must(error_feedback_reserve(r, n));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < r->dim; k++)
            error_feedback_row(r, i * 7 % 8)[k] = (float)(i + k);
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    struct error_feedback_file f = { .job = "ctr", .rank = 2, .clock = i, .is_ended = i & 1 };
    struct push_encoder *e;
    const struct crash_inode *inode;
    struct crash_files disk;
    struct err err;

    if (i >= 4)
        return false;
    e = new_encoder();
    crash_files_init(&disk);
    add_residuals(push_encoder_residual(e, 0), 2 * i);
    add_residuals(push_encoder_residual(e, 1), i);
    must(error_feedback_file_write(&disk.ops, DIR, &f, e, &err));
    inode = crash_files_at(&disk, PATH);
    assert(inode);
    harness_put(out, inode->bytes, inode->n_bytes);
    crash_files_deinit(&disk);
    push_encoder_free(e);
    return true;
}

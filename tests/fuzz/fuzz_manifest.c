/* A checkpoint's manifest. What is accepted is written, read and written again as the same bytes. */
#include "tests/unit/checkpoint/fixture.h"

#include "server/checkpoint/manifest.h"
#include "tests/fuzz/disk.h"

static const struct crash_inode *rewrite(struct crash_files *disk, const char *from,
                                         const char *to)
{
    struct manifest *m = calloc(1, sizeof *m);
    struct err err = { 0 };
    char path[CRASH_PATH_MAX];
    int status;

    assert(m);
    status = manifest_read(&disk->ops, from, m, &err);
    if (status) {
        assert(err.text[0] && status == PS_ECORRUPT);
    } else {
        assert_int_equal(disk->ops.mkdir(disk, to), 0);
        assert_int_equal(manifest_write(&disk->ops, to, m, &err), 0);
    }
    free(m);
    snprintf(path, sizeof path, "%s/MANIFEST", to);
    return crash_files_at(disk, path);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    const struct crash_inode *first, *second;
    struct crash_files disk;
    int fd;

    crash_files_init(&disk);
    assert_int_equal(disk.ops.mkdir(&disk, "a"), 0);
    assert_int_equal(disk.ops.create(&disk, "a/MANIFEST", &fd), 0);
    assert_int_equal(disk.ops.write_all(&disk, fd, bytes, n_bytes), 0);
    assert_int_equal(disk.ops.close(&disk, fd), 0);
    if (rewrite(&disk, "a", "b")) {
        second = rewrite(&disk, "b", "c");
        first = crash_files_at(&disk, "b/MANIFEST");
        assert(first && second && first->n_bytes == second->n_bytes);
        assert(memcmp(first->bytes, second->bytes, first->n_bytes) == 0);
    }
    assert(crash_files_n_open(&disk) == 0);
    crash_files_deinit(&disk);
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    struct shard *shards[N_SHARDS_MAX];
    const struct crash_inode *inode;
    struct crash_files disk;

    if (i >= 3)
        return false;
    crash_files_init(&disk);
    enter_shard();
    fixture_new(shards, i + 1, 3, i);
    assert_int_equal(fixture_save(&disk.ops, shards, i + 1, 1, NULL), 0);
    inode = crash_files_at(&disk, DATA_DIR "/checkpoints/00000000000000000001/MANIFEST");
    assert(inode);
    harness_put(out, inode->bytes, inode->n_bytes);
    fixture_free(shards, i + 1);
    crash_files_deinit(&disk);
    return true;
}

/* Sizes are measured while a scrub reads; each damaged file is found, and counted once. */
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "server/disk_monitor.h"
#include "tests/support/locked_files.h"
#include "tests/unit/recovery/node_fixture.h"

enum { WAIT_MS = 30000 };

/* The disk of a node, slow, on which psd may truncate a log while it is read. */
struct slow {
    struct node node;
    struct locked_files files;
    struct file_ops ops;
    _Atomic bool is_slow;
    char vanishes[CRASH_PATH_MAX]; /* removed when it is opened; "": none */
    _Atomic uint64_t n_reads;
};

static int open_read(void *state, const char *path, int *ret_fd)
{
    struct slow *s = state;

    if (s->vanishes[0] && strcmp(path, s->vanishes) == 0)
        (void)!s->files.ops.unlink(s->files.ops.state, path);
    return s->files.ops.open_read(s->files.ops.state, path, ret_fd);
}

static int64_t read_some(void *state, int fd, void *dst, size_t n_bytes)
{
    struct slow *s = state;

    s->n_reads++;
    if (!s->is_slow)
        return s->files.ops.read(s->files.ops.state, fd, dst, n_bytes);
    usleep(10000);
    return s->files.ops.read(s->files.ops.state, fd, dst, n_bytes < 100 ? n_bytes : 100);
}

static int close_it(void *state, int fd)
{
    struct slow *s = state;

    return s->files.ops.close(s->files.ops.state, fd);
}

static int list(void *state, const char *path, int (*each)(void *arg, const char *name),
                void *arg)
{
    struct slow *s = state;

    return s->files.ops.list(s->files.ops.state, path, each, arg);
}

static int create(void *state, const char *path, int *ret_fd)
{
    struct slow *s = state;

    return s->files.ops.create(s->files.ops.state, path, ret_fd);
}

static int write_all(void *state, int fd, const void *src, size_t n_bytes)
{
    struct slow *s = state;

    return s->files.ops.write_all(s->files.ops.state, fd, src, n_bytes);
}

static int sync_it(void *state, int fd)
{
    struct slow *s = state;

    return s->files.ops.sync(s->files.ops.state, fd);
}

static int rename_it(void *state, const char *from, const char *to)
{
    struct slow *s = state;

    return s->files.ops.rename(s->files.ops.state, from, to);
}

/* A log of several segments, and a checkpoint in the middle of them. */
static void make(struct slow *s)
{
    memset(s, 0, sizeof *s);
    node_begin(&s->node, 1);
    node_job(&s->node, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(&s->node, "job", 1, 0, 20);
    node_save(&s->node, 5);
    node_steps(&s->node, "job", 1, 20, 100);
    node_die(&s->node);
    locked_files_init(&s->files, &s->node.files.ops);
    s->ops = (struct file_ops){ .state = s,
                                .open_read = open_read,
                                .read = read_some,
                                .close = close_it,
                                .list = list,
                                .create = create,
                                .write_all = write_all,
                                .sync = sync_it,
                                .rename = rename_it };
}

static void end(struct slow *s)
{
    locked_files_deinit(&s->files);
    node_end(&s->node);
}

static struct disk_monitor *start(struct slow *s)
{
    const struct disk_monitor_config config = {
        .files = &s->ops, .data_dir = NODE_DIR, .scrub_every_ms = 100, .measure_every_ms = 20
    };
    struct disk_monitor *w;
    struct err err;

    assert_int_equal(disk_monitor_start(&config, &w, &err), 0);
    return w;
}

/* What the first scrub has found. */
static struct stats_disk scrubbed(struct slow *s)
{
    struct disk_monitor *w = start(s);
    uint64_t until_ms = clock_mono_ms() + WAIT_MS;
    struct stats_disk seen;

    do
        disk_monitor_view(w, &seen);
    while (!seen.n_scrubs && clock_mono_ms() < until_ms && usleep(1000) == 0);
    disk_monitor_close(w);
    assert_true(seen.n_scrubs > 0);
    return seen;
}

/* The segments of the log, by number. */
static struct crash_inode *segment(struct slow *s, size_t i, size_t *ret_n, char *ret_path)
{
    struct wal_segments all;
    char dir[WAL_PATH_MAX], path[WAL_PATH_MAX];

    assert_int_equal(timeline_log_dir(NODE_DIR, 0, 0, dir, NULL), 0);
    assert_int_equal(wal_segment_list(&s->node.files.ops, dir, &all, NULL), 0);
    *ret_n = all.n;
    assert_int_equal(wal_segment_path(dir, all.firsts[i], path, NULL), 0);
    free(all.firsts);
    if (ret_path)
        snprintf(ret_path, CRASH_PATH_MAX, "%.150s", path);
    return crash_files_at(&s->node.files, path);
}

static void sizes_are_measured_while_a_scrub_reads(void **state)
{
    char dir[] = "/tmp/ps-disk-XXXXXX";
    uint64_t until_ms = clock_mono_ms() + WAIT_MS;
    struct disk_monitor *w;
    struct stats_disk seen;
    struct slow s;

    (void)state;
    make(&s);
    s.is_slow = true;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chdir(dir), 0);
    w = start(&s);
    while (s.n_reads < 5 && clock_mono_ms() < until_ms)
        usleep(1000);
    disk_monitor_view(w, &seen);
    assert_int_equal(seen.free_bytes,
                     0); /* the sizes are of the real file system, which has none */
    assert_int_equal(mkdir(NODE_DIR, 0700), 0);
    do
        disk_monitor_view(w, &seen);
    while (!seen.free_bytes && clock_mono_ms() < until_ms && usleep(1000) == 0);
    assert_true(seen.free_bytes > 0);
    assert_int_equal(seen.n_scrubs, 0);
    s.is_slow = false;
    disk_monitor_close(w);
    assert_int_equal(rmdir(NODE_DIR), 0);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(rmdir(dir), 0);
    end(&s);
}

static void each_damaged_segment_is_found(void **state)
{
    struct stats_disk seen;
    struct slow s;
    size_t n;

    (void)state;
    make(&s);
    assert_int_equal(scrubbed(&s).n_damaged, 0);
    (void)segment(&s, 0, &n, NULL);
    assert_true(n >= 4);
    segment(&s, 0, &n, NULL)->bytes[80 + 48 + 60] ^= 1;
    segment(&s, 1, &n, NULL)->bytes[66] ^= 1; /* only its header */
    segment(&s, 2, &n, NULL)->bytes[80 + 48 + 60] ^= 1;
    segment(&s, 3, &n, NULL)->bytes[66] ^= 1;
    node_damage(node_part(&s.node, 1, 0));
    seen = scrubbed(&s);
    assert_int_equal(seen.n_damaged, 5);
    assert_non_null(strstr(seen.damage, "shard-000.psc"));
    end(&s);
}

static void a_log_that_is_truncated_meanwhile_is_read_from_its_new_beginning(void **state)
{
    struct slow s;
    size_t n;

    (void)state;
    make(&s);
    (void)segment(&s, 0, &n, s.vanishes);
    node_damage(segment(&s, n - 2, &n, NULL));
    assert_int_equal(scrubbed(&s).n_damaged, 1);
    (void)segment(&s, 0, &n, s.vanishes);
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_measured_while_a_scrub_reads),
        cmocka_unit_test(each_damaged_segment_is_found),
        cmocka_unit_test(a_log_that_is_truncated_meanwhile_is_read_from_its_new_beginning),
    };

    assert_int_equal(log_line_set_level("error"), 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

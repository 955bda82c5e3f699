#include "tests/unit/recovery/node_fixture.h"

void node_hear(void *arg, const char *sentence)
{
    struct node *n = arg;

    n->n_reported++;
    snprintf(n->sentence, sizeof n->sentence, "%s", sentence);
}

/* --- its logs --- */

static void line_write(struct line *l)
{
    uint64_t due_ms;

    wal_writer_drain(l->writer, &l->queue);
    wal_writer_work(l->writer, 1, 1, &due_ms);
    wal_writer_report(l->writer, &l->queue);
}

void line_flush(struct line *l)
{
    line_write(l);
    assert_int_equal(l->queue.progress.durable, recorder_last(&l->recorder));
}

static int line_reserve(void *owner, size_t n_bytes)
{
    return wal_queue_reserve(&((struct line *)owner)->queue, n_bytes);
}

static uint64_t line_append(void *owner, const struct wal_record *record)
{
    struct line *l = owner;
    uint64_t number = wal_queue_append(&l->queue, record, 1);

    if (l->node->each_apart)
        line_write(l);
    return number;
}

void line_open(struct node *n, uint32_t i, const struct wal_end *end)
{
    struct line *l = &n->lines[i];
    struct wal_writer_config config = {
        .files = &n->files.ops,
        .identity = { .shard = i, .n_shards = n->n_shards, .map_id = n->epoch },
        .durability = WAL_FSYNC,
        .segment_bytes = 4096
    };
    char dir[WAL_PATH_MAX];
    struct err err = { 0 };

    assert_int_equal(timeline_log_dir(NODE_DIR, n->epoch, i, dir, NULL), 0);
    snprintf(config.dir, sizeof config.dir, "%.200s", dir);
    if (wal_writer_open(&config, end, 1, &l->writer, &err) != 0)
        fail_msg("%s", err.text);
    wal_queue_init(&l->queue, &(struct wal_queue_config){ .durability = WAL_FSYNC,
                                                          .next_number = end->last + 1 });
    recorder_init(&l->recorder,
                  &(struct recorder_config){ .sink = { l, line_reserve, line_append },
                                             .last = end->last });
    shard_set_events(l->shard, &l->recorder.events);
}

/* --- what happens --- */

struct worker *node_join_as(struct node *n, uint32_t shard, const char *job,
                            enum table_spec_mode mode, uint32_t rank, uint32_t n_workers,
                            uint64_t incarnation)
{
    struct worker *w = NULL;
    struct err err = { 0 };

    enter_shard();
    if (membership_join(shard_membership(n->lines[shard].shard),
                        &(struct membership_join){ .job = job,
                                                   .rank = rank,
                                                   .n_workers = n_workers,
                                                   .incarnation = incarnation,
                                                   .mode = mode,
                                                   .bound = 3,
                                                   .name = "tester" },
                        0, &w, &err) != 0)
        fail_msg("%s", err.text);
    line_flush(&n->lines[shard]);
    return w;
}

void node_job(struct node *n, const char *job, enum table_spec_mode mode, uint32_t n_workers)
{
    struct table_spec spec = sparse_spec(job, NODE_DIM, TABLE_SPEC_SGD);

    spec.init = TABLE_SPEC_INIT_ZERO;
    spec.params.learning_rate = 1;
    for (uint32_t i = 0; i < n->n_shards; i++) {
        for (uint32_t rank = 0; rank < n_workers; rank++)
            (void)node_join_as(n, i, job, mode, rank, n_workers, 10 + rank);
        (void)make_table(n->lines[i].shard, &spec);
        line_flush(&n->lines[i]);
    }
}

static uint32_t node_table_of(struct shard *s, const char *job)
{
    uint32_t id = 0;

    enter_shard();
    while (strcmp(shard_table(s, id)->spec.name, job) != 0)
        id++;
    return id;
}

void node_push(struct node *n, uint32_t shard, const char *job, uint32_t rank, uint64_t clock)
{
    struct shard *s = n->lines[shard].shard;
    uint64_t keys[NODE_N_KEYS];
    float values[NODE_N_KEYS * NODE_DIM];
    uint32_t n_keys = 0;
    struct worker *w;
    struct push *push;

    enter_shard();
    w = membership_worker(shard_membership(s), job, rank);
    push = next_push(w, clock);
    for (uint64_t key = 0; key < NODE_N_KEYS; key++)
        if (placement_shard(key, 0, n->n_shards) == shard)
            keys[n_keys++] = key;
    for (uint32_t i = 0; i < n_keys * NODE_DIM; i++)
        values[i] = 1;
    add_gradient(push, node_table_of(s, job), NODE_DIM, keys, n_keys, values);
    (void)must_push(s, w, push);
    line_flush(&n->lines[shard]);
}

void node_step(struct node *n, uint32_t shard, const char *job, uint32_t n_workers,
               uint64_t clock)
{
    for (uint32_t rank = 0; rank < n_workers; rank++)
        node_push(n, shard, job, rank, clock);
}

void node_steps(struct node *n, const char *job, uint32_t n_workers, uint64_t from,
                uint64_t end)
{
    for (uint64_t clock = from; clock < end; clock++)
        for (uint32_t i = 0; i < n->n_shards; i++)
            node_step(n, i, job, n_workers, clock);
}

/* --- checkpoints --- */

void node_save(struct node *n, uint32_t keep)
{
    uint64_t firsts[NODE_N_SHARDS_MAX];
    struct err err = { 0 };
    int status;

    *n->m = (struct manifest){ .n_nodes = 1,
                               .shards_per_node = n->n_shards,
                               .n_shards = n->n_shards,
                               .map_id = n->epoch,
                               .n_files = n->n_shards };
    enter_shard();
    status = checkpoint_next(&n->files.ops, NODE_DIR, &n->m->number, &err);
    for (uint32_t i = 0; i < n->n_shards && !status; i++) {
        const struct shard_file_writer_config config = {
            .files = &n->files.ops,
            .data_dir = NODE_DIR,
            .number = n->m->number,
            .shard_index = i,
            .identity = { .shard = i, .n_shards = n->n_shards, .map_id = n->epoch }
        };

        shard_file_writer_note_jobs(n->lines[i].shard, n->m);
        status = shard_file_writer_save(&config, n->lines[i].shard,
                                        recorder_last(&n->lines[i].recorder), NULL, NULL,
                                        &n->m->files[i], &err);
    }
    if (!status)
        status = checkpoint_commit(&n->files.ops, NODE_DIR, n->m, keep, firsts, &err);
    if (status)
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < n->n_shards; i++)
        assert_int_equal(wal_writer_truncate(n->lines[i].writer, firsts[i] + 1, &err), 0);
}

/* --- life --- */

void node_stop_logs(struct node *n)
{
    enter_shard();
    for (uint32_t i = 0; i < n->n_shards; i++) {
        struct line *l = &n->lines[i];

        if (!l->writer)
            continue;
        shard_set_events(l->shard, NULL);
        wal_writer_free(l->writer);
        wal_queue_deinit(&l->queue);
        l->writer = NULL;
    }
    assert_int_equal(crash_files_n_open(&n->files), 0);
}

void node_stop(struct node *n, uint32_t keep)
{
    node_save(n, keep);
    for (uint32_t i = 0; i < n->n_shards; i++)
        assert_int_equal(wal_writer_close(n->lines[i].writer, 1, 1), 0);
    node_stop_logs(n);
}

void node_begin(struct node *n, uint32_t n_shards)
{
    const struct wal_end nothing = { 0 };

    *n = (struct node){ .n_shards = n_shards, .m = memory_alloc(sizeof *n->m) };
    crash_files_init(&n->files);
    assert_int_equal(n->files.ops.mkdir(n->files.ops.state, NODE_DIR), 0);
    assert_int_equal(timeline_make(&n->files.ops, NODE_DIR, 0, NULL), 0);
    for (uint32_t i = 0; i < n_shards; i++) {
        n->lines[i] = (struct line){ .node = n, .shard = make_shard(i, n_shards, 0) };
        line_open(n, i, &nothing);
    }
}

void node_end(struct node *n)
{
    node_stop_logs(n);
    for (uint32_t i = 0; i < n->n_shards; i++)
        shard_free(n->lines[i].shard);
    crash_files_deinit(&n->files);
    free(n->m);
}

/* --- made again --- */

struct shard *node_rebuild(struct node *n, uint32_t i, const struct recover_shard_at *at,
                           int *ret_status, struct recover_shard_facts *ret_facts,
                           struct err *err)
{
    const struct recover_shard_config config = {
        .files = &n->files.ops,
        .data_dir = NODE_DIR,
        .shard_index = i,
        .identity = { .shard = i, .n_shards = n->n_shards },
        .at = at ? *at : (struct recover_shard_at){ 0 },
        .report = node_hear,
        .arg = n
    };
    struct shard *s = make_shard(i, n->n_shards, 0);

    *err = (struct err){ 0 };
    n->n_reported = 0;
    *ret_status = recover_shard_run(&config, s, 0, ret_facts, err);
    assert_int_equal(crash_files_n_open(&n->files), 0);
    assert_true(*ret_status == 0 || err->text[0]);
    if (!*ret_status)
        return s;
    shard_free(s);
    return NULL;
}

int node_collect(struct node *n, const char *path, const struct recover_shard_at *at,
                 struct shard **ret, struct err *err)
{
    const struct load_cluster_config config = { .files = &n->files.ops,
                                                .paths = &path,
                                                .n_paths = 1,
                                                .at = at ? *at : (struct recover_shard_at){ 0 },
                                                .report = node_hear,
                                                .arg = n };
    struct load_cluster_facts facts;
    int status;

    *err = (struct err){ 0 };
    n->n_reported = 0;
    *ret = NULL;
    enter_shard();
    status = load_cluster_one(&config, 0, ret, &facts, err);
    assert_int_equal(crash_files_n_open(&n->files), 0);
    assert_true(status == 0 || err->text[0]);
    return status;
}

void assert_steps(struct shard *s, const char *job, uint64_t n_steps)
{
    struct shard_table *t;

    enter_shard();
    t = shard_table(s, node_table_of(s, job));
    for (uint64_t key = 0; key < NODE_N_KEYS; key++) {
        struct row *row;

        table_find_batch(t->rows, &key, 1, &row);
        assert_true(row ? row->floats[0] == -(float)n_steps && row->floats[1] == row->floats[0]
                        : n_steps == 0);
    }
}

void node_start(struct node *n)
{
    struct recover_shard_facts facts[NODE_N_SHARDS_MAX];
    struct err err;
    int status;

    for (uint32_t i = 0; i < n->n_shards; i++) {
        shard_free(n->lines[i].shard);
        n->lines[i].shard = node_rebuild(n, i, NULL, &status, &facts[i], &err);
        if (status)
            fail_msg("%s", err.text);
    }
    for (uint32_t i = 0; i < n->n_shards; i++)
        line_open(n, i, &facts[i].end);
}

struct crash_inode *node_segment(struct node *n, uint32_t i, uint64_t number)
{
    char dir[WAL_PATH_MAX], path[WAL_PATH_MAX];
    struct wal_segments all;
    struct crash_inode *file;
    size_t at = 0;

    assert_int_equal(timeline_log_dir(NODE_DIR, n->epoch, i, dir, NULL), 0);
    assert_int_equal(wal_segment_list(&n->files.ops, dir, &all, NULL), 0);
    while (at + 1 < all.n && all.firsts[at + 1] <= number)
        at++;
    assert_int_equal(wal_segment_path(dir, all.firsts[at], path, NULL), 0);
    free(all.firsts);
    file = crash_files_at(&n->files, path);
    assert_non_null(file);
    return file;
}

struct crash_inode *node_part(struct node *n, uint64_t number, uint32_t i)
{
    char path[CHECKPOINT_FILE_PATH_MAX];
    struct crash_inode *file;

    assert_int_equal(checkpoint_file_path(NODE_DIR, number, i, path, NULL), 0);
    file = crash_files_at(&n->files, path);
    assert_non_null(file);
    return file;
}

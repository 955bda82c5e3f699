#include "tests/unit/psd/starts.h"

/* A psd that is started, and stopped before it serves anybody. */
struct start {
    struct node *node; /* whose disk */
    struct locked_files files;
    struct settings settings;
    uint32_t n_shards;
    uv_loop_t loop;
    uv_timer_t timer; /* keeps the loop going, as the node's does */
    struct mailbox mailbox;
    struct shard_thread *shards[NODE_N_SHARDS_MAX];
    struct checkpointer *checkpointer;
    struct hello_reply welcome;
    _Atomic bool is_to_stop;
    bool is_done;
    struct start_result result;
};

static void on_timer(uv_timer_t *timer)
{
    (void)timer;
}

static void set_up(struct start *s) ON_MAIN
{
    struct shard_thread_config config = { .core = { .n_shards = s->n_shards,
                                                    .lease_ms = 10000,
                                                    .join_ms = 10000,
                                                    .park_ms = 10000 },
                                          .frame_max_bytes = 1 << 20,
                                          .frame_timeout_ms = 10000,
                                          .checkpoint_bytes_per_s =
                                              1, /* nothing would get written */
                                          .welcome = &s->welcome };
    struct checkpointer_config checkpointer = { .loop = &s->loop,
                                                .mailbox = &s->mailbox,
                                                .files = &s->files.ops,
                                                .data_dir = s->settings.data_dir,
                                                .identity = { .n_shards = s->n_shards },
                                                .n_nodes = 1,
                                                .keep = 2,
                                                .n_shards = s->n_shards,
                                                .shards = s->shards };
    struct err err;

    s->welcome = (struct hello_reply){ .version = 1, .n_nodes = 1, .nodes = { "here:1" } };
    locked_files_init(&s->files, &s->node->files.ops);
    assert_int_equal(uv_loop_init(&s->loop), 0);
    assert_int_equal(uv_timer_init(&s->loop, &s->timer), 0);
    assert_int_equal(uv_timer_start(&s->timer, on_timer, 1, 1), 0);
    assert_int_equal(mailbox_init(&s->mailbox, &s->loop, s), 0);
    for (uint32_t i = 0; i < s->n_shards; i++) {
        config.index = config.core.shard = i;
        assert_int_equal(shard_thread_start(&config, &s->shards[i], &err), 0);
    }
    s->checkpointer = checkpointer_new(&checkpointer);
}

static void tear_down(struct start *s) ON_MAIN
{
    for (uint32_t i = 0; i < s->n_shards; i++)
        shard_thread_stop(s->shards[i]);
    for (uint32_t i = 0; i < s->n_shards; i++)
        shard_thread_join(s->shards[i]);
    uv_close((uv_handle_t *)&s->timer, NULL);
    mailbox_close(&s->mailbox);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&s->loop), 0);
    mailbox_deinit(&s->mailbox);
    checkpointer_free(s->checkpointer);
    locked_files_deinit(&s->files);
    assert_int_equal(crash_files_n_open(&s->node->files), 0);
}

static void on_restored(void *arg, const struct start_result *result)
{
    struct start *s = arg;

    s->result = *result;
    s->is_done = true;
}

/* keep: of a standby; NULL: none. */
static int start(struct node *n, uint32_t n_shards, bool is_to_stop, const uint64_t *keep,
                 struct err *err, const char *const *options)
{
    struct start s = { .node = n, .n_shards = n_shards, .is_to_stop = is_to_stop };
    struct start_config config = { .loop = &s.loop,
                                   .mailbox = &s.mailbox,
                                   .is_to_stop = &s.is_to_stop,
                                   .files = &s.files.ops,
                                   .settings = &s.settings,
                                   .n_nodes = 1,
                                   .n_shards = n_shards,
                                   .shards = s.shards,
                                   .follows = keep != NULL,
                                   .keep = keep };

    enter_main();
    for (size_t i = 0; options[i]; i += 2)
        assert_int_equal(
            settings_set(&settings_psd, &s.settings, options[i], options[i + 1], err), 0);
    assert_int_equal(settings_set(&settings_psd, &s.settings, "listen", "127.0.0.1:0", err), 0);
    assert_int_equal(settings_set(&settings_psd, &s.settings, "durability", "fsync", err), 0);
    s.settings.shards = n_shards;
    if (settings_complete(&s.settings, err) != 0)
        fail_msg("%s", err->text);
    set_up(&s);
    config.checkpointer = s.checkpointer;
    start_run(&config, on_restored, &s);
    while (!s.is_done)
        uv_run(&s.loop, UV_RUN_ONCE);
    tear_down(&s);
    settings_free(&settings_psd, &s.settings);
    *err = s.result.err;
    snprintf(n->sentence, sizeof n->sentence, "%.200s", s.result.from);
    return s.result.err.status;
}

int start_with(struct node *n, uint32_t n_shards, bool is_to_stop, struct err *err,
               const char *const *options)
{
    return start(n, n_shards, is_to_stop, NULL, err, options);
}

int start_standby(struct node *n, uint32_t n_shards, const uint64_t *keep, struct err *err)
{
    return start(n, n_shards, false, keep, err, PLAIN);
}

void must_start(struct node *n, uint32_t n_shards, const char *const *options)
{
    struct err err;

    if (start_with(n, n_shards, false, &err, options) != 0)
        fail_msg("%s", err.text);
}

void must_refuse(struct node *n, uint32_t n_shards, const char *const *options, int want,
                 const char *says)
{
    struct err err;

    assert_int_equal(start_with(n, n_shards, false, &err, options), want);
    if (!strstr(err.text, says))
        fail_msg("\"%s\" is not in: %s", says, err.text);
}

void assert_holds(struct node *n, uint64_t n_steps)
{
    struct shard *one;
    struct err err;

    if (node_collect(n, NODE_DIR, NULL, &one, &err) != 0)
        fail_msg("%s", err.text);
    assert_steps(one, "job", n_steps);
    shard_free(one);
}

bool is_there(struct node *n, uint64_t number, const char *end)
{
    char path[CRASH_PATH_MAX];

    snprintf(path, sizeof path, NODE_DIR "/checkpoints/%020llu%s/MANIFEST",
             (unsigned long long)number, end);
    return crash_files_is_there(&n->files, path);
}

uint64_t newest_epoch(struct node *n)
{
    uint64_t epoch;

    assert_int_equal(timeline_newest(&n->files.ops, NODE_DIR, 0, &epoch, NULL), 0);
    return epoch;
}

void make(struct node *n, uint32_t n_shards)
{
    node_begin(n, n_shards);
    node_job(n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(n, "job", 1, 0, 10);
    node_save(n, 5);
    node_steps(n, "job", 1, 10, 20);
    node_save(n, 5);
    node_steps(n, "job", 1, 20, 25);
    node_save(n, 5);
    node_steps(n, "job", 1, 25, N_STEPS);
    node_die(n);
}

void train(struct node *n, uint64_t from, uint64_t end)
{
    n->epoch = newest_epoch(n);
    node_start(n);
    node_steps(n, "job", 1, from, end);
    node_die(n);
}

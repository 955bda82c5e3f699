#include "tests/unit/wal/fixture.h"

static void fixture_push(struct fixture_storage *storage, uint64_t seed, struct shard_event *e)
{
    storage->push = (struct push){ .seq = seed % 1000 + 1,
                                   .clock = hash_mix(seed) >> 2,
                                   .n_samples = (uint32_t)seed,
                                   .tick = seed & 1,
                                   .n_sections = (uint32_t)(hash_mix2(seed, 5) % 3) };
    for (uint32_t i = 0; i < storage->push.n_sections; i++)
        storage->push.sections[i] = (struct section){
            .table_id = i,
            .op = (enum section_op)((i + seed) % SECTION_OP_END),
            .steps = section_op_has_steps((enum section_op)((i + seed) % SECTION_OP_END))
                         ? seed * 99
                         : 0,
            .codec = CODEC_INT8,
            .n_keys = 3,
            .keys = (const uint8_t *)storage->keys + i,
            .key_bytes = hash_mix2(seed, i) % 100,
            .values = storage->values + i,
            .value_bytes = hash_mix2(seed, i + 9) % 500
        };
    e->push.worker = (struct shard_event_worker){ "job/one", 3, seed * 7 };
    e->push.push = &storage->push;
    if (seed % 7 == 0)
        e->push.status = PS_ENAN;
}

static void fixture_table(struct fixture_storage *storage, uint64_t seed, struct shard_event *e)
{
    struct table_spec *spec = &storage->spec;

    *spec = (struct table_spec){ .kind = TABLE_SPEC_SPARSE,
                                 .dim = 5,
                                 .seed = seed,
                                 .init = TABLE_SPEC_INIT_UNIFORM,
                                 .init_scale = 0.5f,
                                 .optim = TABLE_SPEC_ROWWISE_ADAGRAD };
    snprintf(spec->name, sizeof spec->name, "table%u", (unsigned)(seed % 100));
    spec->params = table_spec_optim_defaults(spec->optim);
    e->table.id = (uint32_t)seed;
    e->table.spec = spec;
}

static void fixture_join(struct fixture_storage *storage, uint64_t seed, struct shard_event *e)
{
    storage->join = (struct membership_join){ .job = "j",
                                              .name = seed % 2 ? "host:123" : NULL,
                                              .rank = 1,
                                              .n_workers = 4,
                                              .incarnation = seed,
                                              .mode = TABLE_SPEC_MODE_SSP,
                                              .bound = 4,
                                              .clock = 17,
                                              .last_acked = 3,
                                              .n_backups = (uint32_t)(seed % 3) };
    e->join.join = &storage->join;
    e->join.now_ms = seed;
}

static void fixture_rows(struct fixture_storage *storage, uint64_t seed, struct shard_event *e)
{
    e->version += 10; /* of a push that is still to come: greater than the next record's */
    e->rows.table_id = 4;
    e->rows.op = (enum shard_rows_op)(hash_mix(seed) % SHARD_ROWS_OP_END);
    e->rows.n_keys = (uint32_t)(seed % SHARD_EVENT_ROWS_MAX + 1);
    e->rows.keys = storage->keys;
    e->rows.touches = e->rows.op == SHARD_ROWS_TOUCHES ? storage->values : NULL;
}

static void fixture_learned(struct fixture_storage *storage, uint64_t seed,
                            struct shard_event *e)
{
    storage->learned = (struct learning_report){ .samples = seed,
                                                 .steps = (uint32_t)seed,
                                                 .loss = (float)seed / 3,
                                                 .samples_per_s = 17,
                                                 .busy = { 1, 2, 3, 4, 5, 1000 },
                                                 .n_validations = 3,
                                                 .auc = 0.75f,
                                                 .logloss = 0.4f,
                                                 .has_one_class = seed % 2 };
    e->learned.report = &storage->learned;
    e->learned.unix_ms = seed;
}

struct wal_record fixture_record(struct fixture_storage *storage, uint64_t seed)
{
    struct wal_record r = { .unix_ms = 1700000000000 + seed };
    const struct shard_event_worker worker = { "job/one", (uint32_t)seed % 9, seed };
    struct shard_event *e = &r.event;

    for (size_t i = 0; i < COUNT_OF(storage->keys); i++)
        storage->keys[i] = hash_mix2(seed / 3, i);
    for (size_t i = 0; i < COUNT_OF(storage->values); i++)
        storage->values[i] = (uint8_t)(i % 5 ? seed : hash_mix2(seed, i));
    /* Pushes most of all. */
    *e = (struct shard_event){ .type = (enum shard_event_type)(hash_mix(seed) % 14),
                               .version = seed / 2 };
    if (e->type > SHARD_EVENT_ROWS)
        e->type = SHARD_EVENT_PUSH;
    if (seed > 100 && seed % 17 == 16) /* an operator's are rare */
        e->type = seed % 2 ? SHARD_EVENT_DROP : SHARD_EVENT_SPEC;
    if (seed > 100 && seed % 19 == 18)
        e->type = SHARD_EVENT_LEARNED;
    switch (e->type) {
    case SHARD_EVENT_TABLE:
    case SHARD_EVENT_SPEC:
        fixture_table(storage, seed, e);
        break;
    case SHARD_EVENT_DROP:
        e->drop.id = (uint32_t)seed;
        break;
    case SHARD_EVENT_JOIN:
        fixture_join(storage, seed, e);
        break;
    case SHARD_EVENT_GONE:
        e->gone.worker = worker;
        e->gone.state = WORKER_DEAD;
        break;
    case SHARD_EVENT_ADVANCE:
        e->advance.worker = worker;
        e->advance.clock = seed;
        break;
    case SHARD_EVENT_COMBINE:
        e->combine.run = seed;
        e->combine.clock = 2 * seed;
        break;
    case SHARD_EVENT_ROWS:
        fixture_rows(storage, seed, e);
        break;
    case SHARD_EVENT_LEARNED:
        e->learned.worker = worker;
        fixture_learned(storage, seed, e);
        break;
    case SHARD_EVENT_PUSH:
    case SHARD_EVENT_TYPE_END:
    default:
        e->type = SHARD_EVENT_PUSH;
        fixture_push(storage, seed, e);
        break;
    }
    return r;
}

bool fixture_is(const struct wal_record *got, uint64_t number, uint64_t seed)
{
    static struct fixture_storage storage;
    struct wal_record want = fixture_record(&storage, seed);
    size_t n = wal_record_bytes(&want);
    uint8_t *a = malloc(n), *b = malloc(n);
    bool same = got->event.type == want.event.type && wal_record_bytes(got) == n;

    want.number = number;
    if (same) {
        wal_record_encode(a, &want);
        wal_record_encode(b, got);
        same = memcmp(a + 4, b + 4, n - 4) == 0;
    }
    free(a);
    free(b);
    return same;
}

int fixture_read(const struct file_ops *files, uint64_t from, struct wal_end *ret)
{
    struct wal_reader *r;
    const struct wal_record *record;
    struct err err = { 0 };
    uint64_t next = from;
    int status = wal_reader_open(files, LOG_DIR, &fixture_identity, from, &r, &err);

    if (status) {
        assert_true(err.text[0] != '\0');
        return status;
    }
    while ((status = wal_reader_next(r, &record, &err)) == 0 && record) {
        assert_int_equal(record->number, next);
        assert_true(fixture_is(record, next, next));
        next++;
    }
    if (!status) {
        *ret = *wal_reader_end(r);
        assert_int_equal(ret->last, next - 1);
        assert_true(ret->last_present <= ret->last);
        assert_true(ret->verdict == WAL_CLEAN || ret->text[0] != '\0');
    } else {
        assert_true(err.text[0] != '\0');
    }
    wal_reader_free(r);
    return status;
}

int fixture_open(struct fixture_log *l, const struct wal_writer_config *config,
                 const struct wal_end *end)
{
    struct err err = { 0 };
    int status = wal_writer_open(config, end, 1700000000000, &l->writer, &err);

    if (status) {
        assert_true(err.text[0] != '\0');
        l->writer = NULL;
    }
    wal_queue_init(&l->queue, &(struct wal_queue_config){ .durability = config->durability,
                                                          .next_number = end->last + 1,
                                                          .block_bytes = 2000,
                                                          .max_bytes = 40000 });
    l->now_ms = 1000;
    return status;
}

int fixture_reopen(struct fixture_log *l, const struct wal_writer_config *config)
{
    struct wal_end end;
    int status = fixture_read(config->files, 1, &end);

    return status ? status : fixture_open(l, config, &end);
}

void fixture_free(struct fixture_log *l)
{
    wal_writer_free(l->writer);
    wal_queue_deinit(&l->queue);
}

int fixture_append(struct fixture_log *l)
{
    static struct fixture_storage storage;
    struct wal_record r = fixture_record(&storage, l->queue.next_number);
    int status = 0;

    if (shard_event_is_asked_for(r.event.type))
        status = wal_queue_reserve(&l->queue, wal_record_bytes(&r));
    if (!status)
        (void)wal_queue_append(&l->queue, &r, l->now_ms);
    return status;
}

void fixture_work(struct fixture_log *l)
{
    wal_writer_drain(l->writer, &l->queue);
    wal_writer_work(l->writer, l->now_ms, 1700000000000, &l->due_ms);
    wal_writer_report(l->writer, &l->queue);
}

#include "tests/unit/core/events_fixture.h"

uint8_t *copy_bytes(const uint8_t *src, size_t n_bytes)
{
    uint8_t *dst = malloc(n_bytes + 1);

    assert_non_null(dst);
    if (n_bytes)
        memcpy(dst, src, n_bytes);
    return dst;
}

static struct push *copy_push(const struct push *src)
{
    struct push *push = malloc(sizeof *push);

    assert_non_null(push);
    *push = *src;
    for (uint32_t i = 0; i < push->n_sections; i++) {
        struct section *section = &push->sections[i];

        section->keys = copy_bytes(section->keys, section->key_bytes);
        section->values = copy_bytes(section->values, section->value_bytes);
    }
    return push;
}

static const char *keep_text(char *dst, size_t dst_bytes, const char *src)
{
    snprintf(dst, dst_bytes, "%s", src ? src : "");
    return dst;
}

static void keep_rows(struct kept_event *k)
{
    assert_in_range(k->e.rows.n_keys, 1, SHARD_EVENT_ROWS_MAX);
    memcpy(k->keys, k->e.rows.keys, k->e.rows.n_keys * sizeof k->keys[0]);
    k->e.rows.keys = k->keys;
    if (k->e.rows.touches)
        memcpy(k->touches, k->e.rows.touches, k->e.rows.n_keys);
    k->e.rows.touches = k->e.rows.op == SHARD_ROWS_TOUCHES ? k->touches : NULL;
}

static void keep_join(struct kept_event *k)
{
    k->join = *k->e.join.join;
    k->join.job = keep_text(k->job, sizeof k->job, k->join.job);
    k->join.name = keep_text(k->name, sizeof k->name, k->join.name);
    k->e.join.join = &k->join;
}

struct kept_event *keep_event(const struct shard_event *event)
{
    struct kept_event *k = calloc(1, sizeof *k);

    assert_non_null(k);
    k->e = *event;
    switch (event->type) {
    case SHARD_EVENT_PUSH:
        k->push = copy_push(event->push.push);
        k->e.push.push = k->push;
        k->e.push.worker.job = keep_text(k->job, sizeof k->job, event->push.worker.job);
        break;
    case SHARD_EVENT_TABLE:
    case SHARD_EVENT_SPEC:
        k->spec = *event->table.spec;
        k->e.table.spec = &k->spec;
        break;
    case SHARD_EVENT_JOIN:
        keep_join(k);
        break;
    case SHARD_EVENT_GONE:
        k->e.gone.worker.job = keep_text(k->job, sizeof k->job, event->gone.worker.job);
        break;
    case SHARD_EVENT_ADVANCE:
        k->e.advance.worker.job = keep_text(k->job, sizeof k->job, event->advance.worker.job);
        break;
    case SHARD_EVENT_ROWS:
        keep_rows(k);
        break;
    case SHARD_EVENT_LEARNED:
        k->e.learned.worker.job = keep_text(k->job, sizeof k->job, event->learned.worker.job);
        k->learned = *event->learned.report;
        k->e.learned.report = &k->learned;
        break;
    case SHARD_EVENT_COMBINE:
    case SHARD_EVENT_DROP:
    case SHARD_EVENT_TYPE_END:
        break;
    }
    return k;
}

void free_event(struct kept_event *k)
{
    if (k->push)
        free_push(k->push);
    free(k);
}

static int event_log_reserve(void *owner, const struct shard_event *event)
{
    struct event_log *j = owner;

    assert_true(event->type != SHARD_EVENT_ROWS && event->type != SHARD_EVENT_GONE &&
                event->type != SHARD_EVENT_ADVANCE);
    if (j->n_reserves_left < 0 || j->n_reserves_left-- != 0)
        return 0;
    return j->failure ? j->failure : -ENOMEM;
}

static void event_log_record(void *owner, const struct shard_event *event)
{
    struct event_log *j = owner;

    if (j->n == j->cap) {
        j->cap = j->cap ? 2 * j->cap : 256;
        j->events = realloc(j->events, j->cap * sizeof(struct kept_event *));
        assert_non_null(j->events);
    }
    j->events[j->n++] = keep_event(event);
}

struct event_log *event_log_new(void)
{
    struct event_log *j = calloc(1, sizeof *j);

    assert_non_null(j);
    j->n_reserves_left = -1;
    j->sink = (struct shard_events){ j, event_log_reserve, event_log_record };
    return j;
}

void event_log_free(struct event_log *j)
{
    for (size_t i = 0; i < j->n; i++)
        free_event(j->events[i]);
    free(j->events);
    free(j);
}

uint64_t n_of_type(const struct event_log *j, enum shard_event_type type, int op)
{
    uint64_t n = 0;

    for (size_t i = 0; i < j->n; i++)
        n += j->events[i]->e.type == type &&
             (type != SHARD_EVENT_ROWS || (int)j->events[i]->e.rows.op == op);
    return n;
}

/* --- scans --- */

int try_scan_begin(struct shard *s, enum snapshot_scan_mode mode, size_t position,
                   struct kept_scan *ret)
{
    int status;

    *ret = (struct kept_scan){ .mode = mode, .position = position };
    enter_shard();
    status = snapshot_scan_begin(s, mode, &ret->scan);
    if (status) {
        ret->scan = NULL;
        return status;
    }
    snapshot_scan_facts(ret->scan, &ret->facts);
    assert_true(ret->facts.n_tables <= 16);
    for (uint32_t i = 0; i < ret->facts.n_tables; i++) {
        if (shard_table(s, i))
            ret->specs[i] = shard_table(s, i)->spec;
        ret->n_pushes[i] = snapshot_scan_n_pushes(ret->scan, i);
    }
    return 0;
}

bool scan_on(struct shard *s, struct kept_scan *w, size_t dst_bytes)
{
    static uint8_t dst[SNAPSHOT_SCAN_BYTES];
    struct kept_slice *k;

    w->slices = realloc(w->slices, (w->n_slices + 1) * sizeof *w->slices);
    assert_non_null(w->slices);
    k = &w->slices[w->n_slices++];
    enter_shard();
    snapshot_scan_more(s, w->scan, dst, dst_bytes, &k->slice);
    assert_true(k->slice.n_bytes <= dst_bytes);
    k->bytes = copy_bytes(dst, k->slice.n_bytes);
    return k->slice.what == SNAPSHOT_SCAN_DONE;
}

void scan_end(struct shard *s, struct kept_scan *w, enum snapshot_scan_end how)
{
    enter_shard();
    snapshot_scan_end(s, w->scan, how);
    w->scan = NULL;
}

void kept_scan_free(struct kept_scan *w)
{
    for (size_t i = 0; i < w->n_slices; i++)
        free(w->slices[i].bytes);
    free(w->slices);
    *w = (struct kept_scan){ 0 };
}

/* --- made again --- */

static int replay_slice(struct shard *s, const struct kept_slice *k)
{
    const uint32_t id = k->slice.table_id, n = k->slice.n_items;
    uint32_t n_ours;
    int status;

    if (!n) /* of a table that has gone meanwhile */
        return 0;
    enter_shard();
    status = k->slice.what == SNAPSHOT_SCAN_GONE ? restore_gone(s, id, k->bytes, n, &n_ours)
                                                 : restore_rows(s, id, k->bytes, n, &n_ours);
    assert_true(status || n_ours == n);
    return status;
}

static int replay_tables(struct shard *s, const struct kept_scan *w)
{
    struct err err = { 0 };
    uint32_t id;
    int status = 0;

    enter_shard();
    for (uint32_t i = 0; i < w->facts.n_tables && !status; i++)
        if (w->specs[i].name[0])
            status = shard_table_open(s, &w->specs[i], false, &id, &err);
        else if (i == shard_n_tables(s))
            status = shard_skip_tables(s, 1);
    return status;
}

static int replay_last(struct shard *s, const struct kept_scan *w, uint64_t now_ms)
{
    struct bytes state = { 0 };
    int status = 0;

    enter_shard();
    for (uint32_t i = 0; i < w->facts.n_tables; i++)
        restore_counts(s, i, w->n_pushes[i], w->facts.version);
    for (size_t i = 0; i < w->n_slices; i++) {
        const struct kept_slice *k = &w->slices[i];
        uint8_t *dst;

        if (k->slice.what != SNAPSHOT_SCAN_STATE)
            continue;
        dst = malloc(state.end + k->slice.n_bytes + 1);
        assert_non_null(dst);
        if (state.end)
            memcpy(dst, state.bytes, state.end);
        if (k->slice.n_bytes)
            memcpy(dst + state.end, k->bytes, k->slice.n_bytes);
        free(state.bytes);
        state = (struct bytes){ .bytes = dst, .end = state.end + k->slice.n_bytes };
    }
    assert_int_equal(state.end, w->facts.state_bytes);
    status = replay_state(s, state.bytes, state.end, now_ms);
    free(state.bytes);
    return status;
}

int replay_scans(struct shard *s, const struct kept_scan *scans, size_t n_scans,
                 uint64_t now_ms)
{
    int status = 0;

    for (size_t i = 0; i < n_scans && !status; i++) {
        status = replay_tables(s, &scans[i]);
        for (size_t k = 0; k < scans[i].n_slices && !status; k++)
            if (scans[i].slices[k].slice.what == SNAPSHOT_SCAN_GONE ||
                scans[i].slices[k].slice.what == SNAPSHOT_SCAN_ROWS)
                status = replay_slice(s, &scans[i].slices[k]);
    }
    if (n_scans && !status)
        status = replay_last(s, &scans[n_scans - 1], now_ms);
    return status;
}

int try_restore(const struct shard_config *config, const struct kept_scan *scans,
                size_t n_scans, const struct event_log *j, size_t end, uint64_t now_ms,
                struct shard **ret)
{
    struct shard *s = shard_new(config);
    struct err err = { 0 };
    int status;

    enter_shard();
    *ret = s;
    replay_begin(s);
    status = replay_scans(s, scans, n_scans, now_ms);
    for (size_t i = n_scans ? scans[n_scans - 1].position : 0; i < end && !status; i++)
        status = shard_replay(s, &j->events[i]->e, now_ms, &err);
    if (status && status != -ENOMEM)
        print_message("replay: %d %s\n", status, err.text);
    replay_end(s, now_ms);
    return status;
}

/* --- the same? --- */

void assert_same_row(const struct table_spec *spec, const struct row *a, const struct row *b,
                     uint32_t payload_bytes)
{
    if (!b)
        fail_msg("table %s: key %llu is not there", spec->name, (unsigned long long)a->key);
    if (a->stamp >> 8 != b->stamp >> 8 || memcmp(a->floats, b->floats, payload_bytes) != 0)
        fail_msg("table %s: key %llu has version %llu, touches %u; expected %llu, %u; %s",
                 spec->name, (unsigned long long)a->key, (unsigned long long)row_version(b),
                 row_touches(b), (unsigned long long)row_version(a), row_touches(a),
                 memcmp(a->floats, b->floats, payload_bytes) ? "other values" : "same values");
}

static void assert_same_table(struct shard *a, struct shard *b, uint32_t id)
{
    const struct shard_table *x, *y;

    enter_shard();
    x = shard_table(a, id);
    y = shard_table(b, id);
    assert_int_equal(x != NULL, y != NULL);
    if (!x)
        return;
    assert_memory_equal(&x->spec, &y->spec, sizeof x->spec);
    assert_int_equal(x->n_pushes, y->n_pushes);
    for (uint64_t i = 0; i < table_n_numbers(x->rows); i++) {
        const struct row *row = table_row(x->rows, i);
        uint64_t key = row ? row->key : 0;
        struct row *other;

        if (!row)
            continue;
        table_find_batch(y->rows, &key, 1, &other);
        assert_same_row(&x->spec, row, other, x->payload_bytes);
    }
    assert_int_equal(table_n_rows(x->rows), table_n_rows(y->rows));
}

static void assert_same_worker(const struct worker *x, const struct worker *y)
{
    assert_int_equal(x->state, y->state);
    assert_int_equal(x->incarnation, y->incarnation);
    assert_int_equal(x->fenced_below, y->fenced_below);
    assert_int_equal(x->clock, y->clock);
    assert_int_equal(x->last_seq, y->last_seq);
    assert_int_equal(x->refused_seq, y->refused_seq);
    assert_int_equal(x->refused_status, y->refused_status);
    assert_string_equal(x->name, y->name);
}

static void assert_same_membership(struct shard *a, struct shard *b)
{
    enter_shard();
    assert_int_equal(membership_n_jobs(shard_membership(a)),
                     membership_n_jobs(shard_membership(b)));
    for (uint32_t i = 0; i < membership_n_jobs(shard_membership(a)); i++) {
        const struct job *x = membership_job(shard_membership(a), i),
                         *y = membership_job(shard_membership(b), i);

        assert_string_equal(x->name, y->name);
        assert_int_equal(x->run, y->run);
        assert_int_equal(x->mode, y->mode);
        assert_int_equal(x->bound, y->bound);
        assert_int_equal(x->n_backups, y->n_backups);
        assert_int_equal(x->applied_end, y->applied_end);
        assert_int_equal(x->n_workers, y->n_workers);
        for (uint32_t k = 0; k < x->n_workers; k++)
            assert_same_worker(&x->workers[k], &y->workers[k]);
    }
}

static void assert_same_held(const struct bsp_held *x, const struct bsp_held *y)
{
    assert_non_null(y);
    assert_int_equal(x->rank, y->rank);
    assert_int_equal(x->incarnation, y->incarnation);
    assert_int_equal(x->seq, y->seq);
    assert_int_equal(x->clock, y->clock);
    assert_int_equal(x->n_samples, y->n_samples);
    assert_int_equal(x->finished, y->finished);
    assert_int_equal(x->n_sections, y->n_sections);
    for (uint32_t i = 0; i < x->n_sections; i++) {
        const struct section *a = &x->sections[i], *b = &y->sections[i];

        assert_int_equal(a->table_id, b->table_id);
        assert_int_equal(a->codec, b->codec);
        assert_int_equal(a->k, b->k);
        assert_int_equal(a->n_keys, b->n_keys);
        assert_int_equal(a->key_bytes, b->key_bytes);
        assert_int_equal(a->value_bytes, b->value_bytes);
        assert_memory_equal(a->keys, b->keys, a->key_bytes);
        assert_memory_equal(a->values, b->values, a->value_bytes);
    }
}

static void assert_same_queues(const struct shard *a, const struct shard *b)
{
    const struct bsp_queue *x = a->queues, *y = b->queues;

    assert_int_equal(a->held_bytes, b->held_bytes);
    for (; x; x = x->next, y = y->next) {
        const struct bsp_held *p = x->first, *q;

        assert_non_null(y);
        assert_int_equal(x->run, y->run);
        assert_string_equal(x->job->name, y->job->name);
        for (q = y->first; p; p = p->next, q = q->next)
            assert_same_held(p, q);
        assert_null(q);
    }
    assert_null(y);
}

void assert_same_shard(struct shard *a, struct shard *b)
{
    enter_shard();
    assert_int_equal(shard_version(a), shard_version(b));
    assert_int_equal(shard_n_tables(a), shard_n_tables(b));
    for (uint32_t i = 0; i < shard_n_tables(a); i++)
        assert_same_table(a, b, i);
    assert_same_membership(a, b);
    assert_same_queues(a, b);
}

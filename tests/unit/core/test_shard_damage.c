/* What a replay makes of bytes and events that cannot be right: a status and never a crash; and of a
 * event log that ends anywhere. */
#include "replay_world.h"
#include "server/core/snapshot_meta.h"
#include "tests/support/share.h"

static const struct shape small = {
    .n_keys = 40, .n_large = 30, .n_steps = 200, .limits = true
};

/* A world in which pushes are held, and what happened until then. */
static struct world held_world(const char *test, uint64_t round)
{
    struct world w = begin_world(test, &small, round);

    for (uint32_t i = 0; i < small.n_steps || !w.s->queues; i++)
        if (i % 3)
            push_one(&w);
        else
            step(&w);
    finish_push(&w);
    return w;
}

static void free_world(struct world *w)
{
    enter_shard();
    if (w->going.scan)
        scan_end(w->s, &w->going, SNAPSHOT_SCAN_DROPPED);
    kept_scan_free(&w->going);
    drop_scans(w);
    shard_free(w->s);
    event_log_free(w->event_log);
}

/* --- the state's bytes --- */

struct state {
    uint8_t *bytes; /* owned */
    size_t n_bytes;
};

static struct state state_of(const struct shard *s)
{
    struct bytes head = { 0 };
    struct state state;
    size_t n_bytes;

    assert_int_equal(snapshot_meta_encode(s, &head), 0);
    state.n_bytes = bytes_len(&head);
    for (const struct bsp_queue *q = s->queues; q; q = q->next)
        for (const struct bsp_held *h = q->first; h; h = h->next) {
            (void)snapshot_meta_payload(h, &n_bytes);
            state.n_bytes += n_bytes;
        }
    state.bytes = malloc(state.n_bytes);
    assert_non_null(state.bytes);
    memcpy(state.bytes, bytes_front(&head), bytes_len(&head));
    n_bytes = bytes_len(&head);
    for (const struct bsp_queue *q = s->queues; q; q = q->next)
        for (const struct bsp_held *h = q->first; h; h = h->next) {
            size_t n_payload;
            const uint8_t *payload = snapshot_meta_payload(h, &n_payload);

            memcpy(state.bytes + n_bytes, payload, n_payload);
            n_bytes += n_payload;
        }
    bytes_deinit(&head);
    return state;
}

/* A shard with w's tables, from these bytes. What was taken must be of use. */
static int try_state(struct world *w, const uint8_t *bytes, size_t n_bytes)
{
    struct shard *s = shard_new(&w->config);
    /* In a block of its own, so that one byte too many is found out. */
    uint8_t *copy = copy_bytes(bytes, n_bytes);
    int status;

    enter_shard();
    replay_begin(s);
    for (uint32_t i = 0; i < shard_n_tables(w->s); i++)
        (void)make_table(s, &shard_table(w->s, i)->spec);
    status = replay_state(s, copy, n_bytes, 0);
    replay_end(s, 0);
    if (!status) {
        for (uint64_t ms = 0; ms < 3 * JOIN_MS; ms += JOIN_MS)
            (void)shard_advance(s, ms + JOIN_MS); /* all end, and what is held is combined */
        assert_null(s->queues);
    }
    shard_free(s);
    free(copy);
    assert_true(status == 0 || status == PS_ECORRUPT);
    return status;
}

static void every_bit_of_a_state_may_be_wrong(void **state)
{
    struct world w = held_world("bits", 0);
    struct state good = state_of(w.s);
    uint64_t n_refused = 0, n = 0;

    (void)state;
    assert_int_equal(try_state(&w, good.bytes, good.n_bytes), 0);
    for (size_t i = (size_t)share_first(); i < good.n_bytes;
         i += (size_t)share_step() * (good.n_bytes > 5000 ? 1 + i % 29 : 1)) {
        uint8_t bit = (uint8_t)(1u << roll(&w.dice, 8));

        good.bytes[i] ^= bit;
        n_refused += try_state(&w, good.bytes, good.n_bytes) != 0;
        good.bytes[i] ^= bit;
        n++;
    }
    print_message("%llu of %llu were refused\n", (unsigned long long)n_refused,
                  (unsigned long long)n);
    /* Most bytes of what is held are gradients, where any bit will do: 6 of 100 in the worst of 20 seeds. */
    assert_true(n_refused > n / 50);
    free(good.bytes);
    free_world(&w);
}

static void a_state_may_end_anywhere(void **state)
{
    struct world w = held_world("ends", 1);
    struct state good = state_of(w.s);

    (void)state;
    for (size_t n = (size_t)share_first(); n < good.n_bytes;
         n += (size_t)share_step() * (good.n_bytes > 5000 ? 1 + n % 29 : 1))
        assert_int_equal(try_state(&w, good.bytes, n), PS_ECORRUPT);
    free(good.bytes);
    free_world(&w);
}

/* --- events --- */

static void every_beginning_of_an_event_log_is_a_shard(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 4; round++) {
        struct world w = held_world("beginnings", round);
        struct shard *again;

        for (size_t n = (size_t)share_first(); n <= w.event_log->n; n += (size_t)share_step()) {
            assert_int_equal(try_restore(&w.config, NULL, 0, w.event_log, n, w.now_ms, &again),
                             0);
            shard_free(again);
        }
        assert_int_equal(
            try_restore(&w.config, NULL, 0, w.event_log, w.event_log->n, w.now_ms, &again), 0);
        assert_same_shard(w.s, again);
        shard_free(again);
        free_world(&w);
    }
}

static uint64_t some_number(struct dice *d, uint64_t was)
{
    switch (roll(d, 6)) {
    case 0:
        return 0;
    case 1:
        return UINT64_MAX;
    case 2:
        return was + 1;
    case 3:
        return was - 1;
    case 4:
        return was ^ UINT64_C(1) << roll(d, 64);
    default:
        return roll(d, 100);
    }
}

static void damage_section(struct dice *d, struct section *section)
{
    uint8_t *keys = (uint8_t *)(uintptr_t)section->keys,
            *values = (uint8_t *)(uintptr_t)section->values;

    switch (roll(d, 7)) {
    case 0:
        section->table_id = (uint32_t)some_number(d, section->table_id);
        break;
    case 1:
        section->op = (enum section_op)roll(d, 4);
        break;
    case 2:
        section->codec = (enum codec_id)roll(d, CODEC_ID_END + 2);
        break;
    case 3:
        section->n_keys = (uint32_t)some_number(d, section->n_keys);
        break;
    case 4:
        section->key_bytes = section->key_bytes ? (size_t)roll(d, section->key_bytes) : 0;
        break;
    case 5:
        if (section->key_bytes)
            keys[roll(d, section->key_bytes)] ^= (uint8_t)(1u << roll(d, 8));
        break;
    default:
        if (section->value_bytes)
            values[roll(d, section->value_bytes)] ^= (uint8_t)(1u << roll(d, 8));
        break;
    }
}

static void damage_push(struct dice *d, struct kept_event *k)
{
    struct push *push = k->push;

    switch (roll(d, 6)) {
    case 0:
        push->seq = some_number(d, push->seq);
        break;
    case 1:
        push->clock = some_number(d, push->clock);
        break;
    case 2:
        push->tick = !push->tick;
        break;
    case 3:
        k->e.push.status = (int)some_number(d, 0);
        break;
    case 4:
        k->e.push.worker.incarnation = some_number(d, k->e.push.worker.incarnation);
        break;
    default:
        if (push->n_sections)
            damage_section(d, &push->sections[roll(d, push->n_sections)]);
        break;
    }
}

static void damage_rows(struct dice *d, struct kept_event *k)
{
    switch (roll(d, 4)) {
    case 0:
        k->e.rows.table_id = (uint32_t)some_number(d, k->e.rows.table_id);
        break;
    case 1:
        k->e.rows.op = (enum shard_rows_op)roll(d, SHARD_ROWS_OP_END + 1);
        break;
    case 2:
        k->keys[roll(d, k->e.rows.n_keys)] = some_number(d, k->keys[0]);
        break;
    default:
        k->e.rows.n_keys = 1 + (uint32_t)roll(d, k->e.rows.n_keys);
        break;
    }
}

static void damage_join(struct dice *d, struct kept_event *k)
{
    switch (roll(d, 7)) {
    case 0:
        k->join.rank = (uint32_t)some_number(d, k->join.rank);
        break;
    case 1:
        k->join.n_workers = (uint32_t)some_number(d, k->join.n_workers);
        break;
    case 2:
        k->join.incarnation = some_number(d, k->join.incarnation);
        break;
    case 3:
        k->join.mode = (enum table_spec_mode)roll(d, TABLE_SPEC_MODE_END + 1);
        break;
    case 4:
        k->join.clock = some_number(d, k->join.clock);
        break;
    case 5:
        k->join.last_acked = some_number(d, k->join.last_acked);
        break;
    default:
        k->job[0] ^= 1;
        break;
    }
}

static void damage_other(struct dice *d, struct kept_event *k)
{
    switch (k->e.type) {
    case SHARD_EVENT_DROP:
        k->e.drop.id = (uint32_t)some_number(d, k->e.drop.id);
        break;
    case SHARD_EVENT_TABLE:
    case SHARD_EVENT_SPEC:
        if (roll(d, 2))
            k->e.table.id = (uint32_t)some_number(d, k->e.table.id);
        else
            ((uint8_t *)&k->spec)[roll(d, sizeof k->spec)] ^= (uint8_t)(1u << roll(d, 8));
        break;
    case SHARD_EVENT_GONE:
        k->e.gone.state = (int)some_number(d, 0);
        break;
    case SHARD_EVENT_ADVANCE:
        k->e.advance.clock = some_number(d, k->e.advance.clock);
        break;
    case SHARD_EVENT_COMBINE:
        if (roll(d, 2))
            k->e.combine.run = some_number(d, k->e.combine.run);
        else
            k->e.combine.clock = some_number(d, k->e.combine.clock);
        break;
    default:
        break;
    }
}

static void damage(struct dice *d, struct kept_event *k)
{
    if (roll(d, 8) == 0)
        k->e.version = some_number(d, k->e.version);
    else if (roll(d, 40) == 0)
        k->e.type = SHARD_EVENT_TYPE_END;
    else if (k->e.type == SHARD_EVENT_PUSH)
        damage_push(d, k);
    else if (k->e.type == SHARD_EVENT_ROWS)
        damage_rows(d, k);
    else if (k->e.type == SHARD_EVENT_JOIN)
        damage_join(d, k);
    else
        damage_other(d, k);
}

/* The event that is damaged, left out, or there twice; then all that comes behind it. */
static void events_may_be_anything(void **state)
{
    struct world w = held_world("events", 2);
    const uint64_t n = 3000 / (uint64_t)share_step();
    uint64_t n_refused = 0;

    (void)state;
    for (uint64_t i = 0; i < n; i++) {
        size_t at = (size_t)roll(&w.dice, w.event_log->n),
               other = (size_t)roll(&w.dice, w.event_log->n);
        struct kept_event *was = w.event_log->events[at], *k = keep_event(&was->e);
        struct shard *again;
        int status;

        damage(&w.dice, k);
        w.event_log->events[at] = roll(&w.dice, 5) ? k : w.event_log->events[other];
        status = try_restore(&w.config, NULL, 0, w.event_log, w.event_log->n, w.now_ms, &again);
        assert_true(status == 0 || status == PS_ECORRUPT || status == -ENOMEM);
        n_refused += status != 0;
        shard_free(again);
        w.event_log->events[at] = was;
        free_event(k);
    }
    print_message("%llu of %llu were refused\n", (unsigned long long)n_refused,
                  (unsigned long long)n);
    assert_true(n_refused > n / 3);
    free_world(&w);
}

#ifdef PS_FAULTS
static void without_memory_a_replay_says_so(void **state)
{
    struct world w = held_world("memory", 3);
    struct shard *again;
    int status = -ENOMEM;
    long k = 0;

    (void)state;
    for (; status; k += share_step() * (1 + k / 50)) {
        memory_fail_after(k);
        status = try_restore(&w.config, w.scans, w.n_scans, w.event_log, w.event_log->n,
                             w.now_ms, &again);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        if (!status)
            assert_same_shard(w.s, again);
        shard_free(again);
    }
    assert_true(k > 20);
    free_world(&w);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_of_a_state_may_be_wrong),
        cmocka_unit_test(a_state_may_end_anywhere),
        cmocka_unit_test(every_beginning_of_an_event_log_is_a_shard),
        cmocka_unit_test(events_may_be_anything),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_a_replay_says_so),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

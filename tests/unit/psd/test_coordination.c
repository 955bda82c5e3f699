/* Claims of two members over a service in memory, which loses requests and answers: each claim follows the one that its writer knew. */
#include "server/coordination.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/hash.h"
#include "server/cluster/coord_mem.h"
#include "tests/support/seed.h"

#define KEY "groups/3"
#define N_CLAIMS 60

struct member {
    char address[32];
    struct coordination *coordination;
    bool is_writing;
    uint64_t term;
    uint32_t n_changes, n_made, n_refused;
};

static struct {
    uint64_t seed, n_drawn;
    uv_loop_t loop;
    struct coord_mem *service;
    uint64_t now_ms;
    struct claim_config cluster;
    bool is_unplaced;     /* of members that begin */
    uint64_t made[10000]; /* claims of this term that were made, as their writers heard */
} world;

static uint64_t draw(void)
{
    return hash_mix2(world.seed, ++world.n_drawn) >> 1;
}

static int open_memory(const struct coord_options *options, uv_loop_t *loop, struct coord **ret,
                       struct err *err)
{
    (void)loop;
    if (strcmp(options->url, "mem") != 0)
        return err_set(err, PS_ESETTING, "coord: wrong");
    *ret = coord_mem_client(world.service);
    return 0;
}

static void on_change(void *owner)
{
    ((struct member *)owner)->n_changes++;
}

static void begin(struct member *m, const char *address, const char *url)
{
    struct coordination_config config = { .loop = &world.loop,
                                          .open = open_memory,
                                          .service = { .url = url },
                                          .cluster = world.cluster,
                                          .is_placed = !world.is_unplaced,
                                          .group = 3,
                                          .own_address = m->address,
                                          .on_change = on_change,
                                          .owner = m };

    *m = (struct member){ 0 };
    snprintf(m->address, sizeof m->address, "%s", address);
    m->coordination = coordination_new(&config);
}

static void set_up(void)
{
    memset(&world, 0, sizeof world);
    world.seed = seed_by_the_clock();
    assert_int_equal(uv_loop_init(&world.loop), 0);
    world.service = coord_mem_new(draw());
    world.cluster = (struct claim_config){ 4, 2, "lease=10000ms cut-every=0" };
    enter_main();
}

static void tear_down(struct member *a, struct member *b)
{
    struct member *both[] = { a, b };

    for (size_t i = 0; i < 2; i++)
        coordination_close(both[i]->coordination);
    coord_mem_advance(world.service, world.now_ms + 100000);
    uv_run(&world.loop, UV_RUN_DEFAULT);
    for (size_t i = 0; i < 2; i++)
        coordination_free(both[i]->coordination);
    coord_mem_free(world.service);
    assert_int_equal(uv_loop_close(&world.loop), 0);
}

static void turn(void)
{
    world.now_ms += 5;
    coord_mem_advance(world.service, world.now_ms);
    uv_run(&world.loop, UV_RUN_NOWAIT);
}

/* A try that is repeated waits for a real timer, so turns are bounded by the clock. */
#define DEADLINE_MS 60000u

static void turn_before(uint64_t end_ms)
{
    assert_true(clock_mono_ms() < end_ms);
    turn();
}

static void until_known(const struct member *m)
{
    const uint64_t end_ms = clock_mono_ms() + DEADLINE_MS;

    while (!coordination_is_known(m->coordination))
        turn_before(end_ms);
}

static void until_written(const struct member *m)
{
    const uint64_t end_ms = clock_mono_ms() + DEADLINE_MS;

    while (m->is_writing)
        turn_before(end_ms);
}

static void on_written(void *arg, const struct err *err)
{
    struct member *m = arg;

    assert_true(m->is_writing);
    m->is_writing = false;
    assert_true(err->status == 0 || err->status == -EEXIST);
    if (err->status)
        m->n_refused++;
    else
        m->n_made++;
    if (!err->status)
        world.made[m->term]++;
}

/* The next term, over what this member knows. */
static void claim(struct member *m)
{
    const struct claim *known = coordination_claim(m->coordination);
    struct claim next = { .history = 7, .in_sync = m->term & 1 };

    next.term = m->term = known ? known->term + 1 : 1;
    snprintf(next.standby, sizeof next.standby, "%s", m->term & 2 ? "h:1" : "");
    m->is_writing = true;
    coordination_write(m->coordination, &next, on_written, m);
    assert_true(m->is_writing);
}

static void claim_and_wait(struct member *m)
{
    claim(m);
    until_written(m);
}

/* Either may be late with each of its first claims: they go on until both have made one. The claims that were tried. */
static uint32_t claim_by_turns(struct member *members)
{
    const uint64_t end_ms = clock_mono_ms() + DEADLINE_MS;
    uint32_t n = 0;

    while (n < N_CLAIMS || !members[0].n_made || !members[1].n_made) {
        struct member *m = &members[draw() % 2];

        assert_true(n < COUNT_OF(world.made) - 1);
        if (!m->is_writing && coordination_is_known(m->coordination)) {
            claim(m);
            n++;
        }
        turn_before(end_ms);
    }
    return n;
}

static void a_claim_is_made_once_whatever_is_lost(void **state)
{
    const struct coord_mem_faults faults = { 20, 300, 60, 60 }, none = { 0 };
    struct member members[2];
    uint64_t last;
    uint32_t n_claims;

    (void)state;
    set_up();
    begin(&members[0], "10.0.0.1:1", "mem");
    begin(&members[1], "10.0.0.2:1", "mem");
    coord_mem_set_faults(world.service, &faults);
    n_claims = claim_by_turns(members);
    coord_mem_set_faults(world.service, &none);
    until_written(&members[0]);
    until_written(&members[1]);
    for (int i = 0; i < 1000; i++)
        turn();
    last = coordination_claim(members[0].coordination)->term;
    for (size_t i = 1; i < COUNT_OF(world.made); i++)
        assert_in_range(world.made[i], 0, i <= last ? 1 : 0);
    assert_in_range(last, members[0].n_made + members[1].n_made, n_claims);
    assert_true(world.made[last]);
    for (int i = 0; i < 2; i++) {
        assert_true(members[i].n_made);
        assert_int_equal(coordination_claim(members[i].coordination)->term, last);
    }
    assert_true(coordination_is_own(members[0].coordination) !=
                coordination_is_own(members[1].coordination));
    print_message("%u claims made, %u refused\n", members[0].n_made + members[1].n_made,
                  members[0].n_refused + members[1].n_refused);
    tear_down(&members[0], &members[1]);
}

static void on_put(void *arg, const struct err *err, const struct coord_result *result)
{
    (void)arg;
    assert_int_equal(err->status, 0);
    assert_true(result->is_made);
}

static void what_is_no_claim_is_not_written_over(void **state)
{
    static const char behind[] = "{\"term\":\"1\",\"history\":\"2\",\"in_sync\":\"yes\","
                                 "\"primary\":\"a\",\"standby\":\"-\",\"takeovers\":\"-\","
                                 "\"writer\":\"0\"} ";
    static const char endless[] =
        "{\"term\":\"18446744073709551615\",\"history\":\"2\",\"in_sync\":\"yes\","
        "\"primary\":\"a\",\"standby\":\"-\",\"takeovers\":\"-\","
        "\"writer\":\"0\"}"; /* no term could follow */
    static const char *const texts[] = {
        "", "{}", "{\"term\":\"1\",\"history\":\"2\",\"in_sync\":\"yes\"}", behind, endless
    };
    struct member a, b;
    char wait[COORDINATION_WAIT_MAX];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct coord *c;
        const struct coord_write write = { .change = COORD_PUT, .key = KEY, .value = texts[i] };

        set_up();
        begin(&a, "10.0.0.1:1", "mem");
        begin(&b, "10.0.0.2:1", "wrong");
        until_known(&a);
        assert_null(coordination_claim(a.coordination));
        c = coord_mem_client(world.service);
        c->ops->put_if(c, &write, 1, 1000, on_put, NULL);
        claim_and_wait(&a); /* over none, but there is one */
        assert_int_equal(a.n_made, 0);
        assert_string_equal(coord_mem_find(world.service, KEY)->value, texts[i]);
        assert_false(coordination_is_own(a.coordination));
        assert_false(coordination_is_known(b.coordination));
        assert_true(coordination_is_waiting(b.coordination, wait));
        assert_non_null(strstr(wait, "coord: wrong"));
        c->ops->close(c, NULL, NULL);
        tear_down(&a, &b);
    }
}

static void a_service_that_is_away_is_awaited(void **state)
{
    struct member a, b;

    (void)state;
    set_up();
    begin(&a, "10.0.0.1:1", "mem");
    begin(&b, "10.0.0.2:1", "mem");
    until_known(&a);
    until_known(&b);
    coord_mem_set_away(world.service, 0, true);
    claim(&a);
    for (int i = 0; i < 1000; i++)
        turn();
    assert_true(a.is_writing);
    claim_and_wait(&b); /* meanwhile another one is first */
    assert_int_equal(b.n_made, 1);
    coord_mem_set_away(world.service, 0, false);
    until_written(&a);
    assert_int_equal(a.n_refused, 1);
    assert_string_equal(coordination_claim(a.coordination)->primary, "10.0.0.2:1");
    tear_down(&a, &b);
}

/* The first claim writes what all nodes share; a psd of another shape has no claim until that is changed. */
static void a_psd_of_another_shape_is_kept_out(void **state)
{
    struct member a, b;
    struct coord *c;
    char wait[COORDINATION_WAIT_MAX];
    struct coord_write write = { .change = COORD_REMOVE, .key = CLAIM_CONFIG_KEY };

    (void)state;
    set_up();
    begin(&a, "10.0.0.1:1", "mem");
    until_known(&a);
    claim_and_wait(&a);
    assert_int_equal(a.n_made, 1);
    assert_string_equal(coord_mem_find(world.service, CLAIM_CONFIG_KEY)->value,
                        "{\"nodes\":\"4\",\"shards\":\"2\",\"settings\":\"lease=10000ms "
                        "cut-every=0\"}");
    world.cluster.n_shards = 3;
    begin(&b, "10.0.0.2:1", "mem");
    for (int i = 0; i < 1000; i++)
        turn();
    assert_false(coordination_is_known(b.coordination));
    assert_null(coordination_claim(b.coordination));
    assert_true(coordination_is_waiting(b.coordination, wait));
    assert_non_null(strstr(wait, "4 nodes of 2 shards"));
    write.if_revision = coord_mem_find(world.service, CLAIM_CONFIG_KEY)->mod_revision;
    c = coord_mem_client(world.service);
    c->ops->put_if(c, &write, 1, 1000, on_put, NULL);
    until_known(&b);
    assert_int_equal(b.n_changes, 2);
    assert_string_equal(coordination_claim(b.coordination)->primary, "10.0.0.1:1");
    c->ops->close(c, NULL, NULL);
    tear_down(&a, &b);
}

/* It has no claim, as any psd of another shape, and says of itself that it is a standby without a place. */
static void a_standby_without_a_place_is_of_no_other_cluster(void **state)
{
    struct member a, b;
    char wait[COORDINATION_WAIT_MAX];

    (void)state;
    set_up();
    begin(&a, "10.0.0.1:1", "mem");
    until_known(&a);
    claim_and_wait(&a);
    world.is_unplaced = true;
    world.cluster.n_nodes = 1;
    begin(&b, "10.0.0.2:1", "mem");
    for (int i = 0; i < 1000; i++)
        turn();
    assert_null(coordination_claim(b.coordination));
    assert_true(coordination_is_waiting(b.coordination, wait));
    assert_string_equal(
        wait, "coord: the primary has not said yet which node of the cluster this psd is");
    tear_down(&a, &b);
}

static void put_config(const char *value)
{
    struct coord_write write = { .change = COORD_PUT, .key = CLAIM_CONFIG_KEY, .value = value };
    const struct coord_item *item = coord_mem_find(world.service, CLAIM_CONFIG_KEY);
    struct coord *c = coord_mem_client(world.service);

    write.if_revision = item ? item->mod_revision : 0;
    c->ops->put_if(c, &write, 1, 1000, on_put, NULL);
    for (int i = 0; i < 1000; i++)
        turn();
    assert_string_equal(coord_mem_find(world.service, CLAIM_CONFIG_KEY)->value, value);
    c->ops->close(c, NULL, NULL);
}

/* Somebody has begun another cluster under this name. Who serves goes on, and claims as before. */
static void a_foreign_config_keeps_nobody_out_who_is_in(void **state)
{
    struct member a, b;

    (void)state;
    set_up();
    begin(&a, "10.0.0.1:1", "mem");
    until_known(&a);
    claim_and_wait(&a);
    put_config("of nobody");
    assert_true(coordination_is_known(a.coordination));
    claim_and_wait(&a);
    assert_int_equal(a.n_made, 2);
    begin(&b, "10.0.0.2:1", "mem");
    for (int i = 0; i < 1000; i++)
        turn();
    assert_false(coordination_is_known(b.coordination));
    tear_down(&a, &b);
}

/* It comes between what a psd knew and its first claim: that is refused, with the sentence of it. */
static void a_first_claim_is_refused_when_the_config_has_become_anothers(void **state)
{
    struct member a, b;

    (void)state;
    set_up();
    begin(&a, "10.0.0.1:1", "mem");
    begin(&b, "10.0.0.2:1", "mem");
    until_known(&a);
    put_config("of nobody");
    claim_and_wait(&a);
    assert_int_equal(a.n_refused, 1);
    tear_down(&a, &b);
}

/* Another node writes it meanwhile: the claim is made with the next try. */
static void a_config_that_comes_in_between_is_read(void **state)
{
    const char value[] = "{\"nodes\":\"4\",\"shards\":\"2\",\"settings\":\"lease=10000ms\"}";
    const struct coord_write write = { .change = COORD_PUT,
                                       .key = CLAIM_CONFIG_KEY,
                                       .value = value };
    struct member a, b;
    struct coord *c;

    (void)state;
    set_up();
    begin(&a, "10.0.0.1:1", "mem");
    begin(&b, "10.0.0.2:1", "mem");
    until_known(&a);
    c = coord_mem_client(world.service);
    c->ops->put_if(c, &write, 1, 1000, on_put, NULL);
    claim_and_wait(&a);
    assert_int_equal(a.n_refused, 1);
    claim_and_wait(&a);
    assert_int_equal(a.n_made, 1);
    assert_string_equal(coord_mem_find(world.service, CLAIM_CONFIG_KEY)->value, value);
    c->ops->close(c, NULL, NULL);
    tear_down(&a, &b);
}

/* What is logged meanwhile. */
static void turn_and_read_log(char *ret, size_t n_bytes)
{
    FILE *file = tmpfile();
    const int saved_fd = dup(STDERR_FILENO);
    size_t n;

    assert_non_null(file);
    assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
    for (int i = 0; i < 20; i++)
        turn();
    assert_true(dup2(saved_fd, STDERR_FILENO) >= 0);
    close(saved_fd);
    rewind(file);
    n = fread(ret, 1, n_bytes - 1, file);
    ret[n] = '\0';
    fclose(file);
}

/* Both members know of them, and a claim of other things keeps them. */
static void three_takeovers_double_the_patience(void **state)
{
    struct member a, b;

    (void)state;
    set_up();
    begin(&a, "10.0.0.1:1", "mem");
    begin(&b, "10.0.0.2:1", "mem");
    until_known(&a);
    until_known(&b);
    for (uint32_t i = 0; i < 7; i++) {
        struct claim next = { .history = 7, .term = i + 1 };
        char log[4096], sentence[128];

        assert_int_equal(coordination_patience_ms(b.coordination, 700), i < 3 ? 700 : 1400);
        claim_add_takeover(&next, next.term);
        a.term = next.term;
        a.is_writing = true;
        coordination_write(a.coordination, &next, on_written, &a);
        turn_and_read_log(log, sizeof log);
        assert_false(a.is_writing);
        snprintf(sentence, sizeof sentence,
                 "coord: %u failovers in ten minutes: a standby waits twice failover-after for "
                 "a silent primary\n",
                 i + 1);
        assert_true(!strstr(log, sentence) == (i + 1 < 3));
        assert_true(i + 1 >= 3 || !strstr(log, "failovers in ten minutes"));
    }
    claim(&a); /* of other things */
    for (int n = 0; n < 20; n++)
        turn();
    assert_int_equal(coordination_claim(b.coordination)->n_takeovers, 7);
    assert_int_equal(coordination_patience_ms(a.coordination, 700), 1400);
    assert_int_equal(coordination_patience_ms(b.coordination, 700), 1400);
    tear_down(&a, &b);
}

/* A store that was restored gives a revision again: a member that does not know that writes over what it has read, and
 * over nothing else of that number. */
static void a_claim_is_not_written_over_another_one_of_the_same_revision(void **state)
{
    struct member a, b;

    (void)state;
    set_up();
    begin(&a, "10.0.0.1:1", "mem");
    until_known(&a);
    claim_and_wait(&a);
    coord_mem_copy(world.service);
    claim_and_wait(&a);
    coord_mem_restore(world.service, true, 1u << 30);
    begin(&b, "10.0.0.2:1", "mem");
    until_known(&b);
    claim_and_wait(&b);
    assert_int_equal(b.n_made, 1);
    claim_and_wait(&a);
    assert_int_equal(a.n_refused, 1);
    assert_non_null(strstr(coord_mem_find(world.service, KEY)->value, "10.0.0.2:1"));
    tear_down(&a, &b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_claim_is_made_once_whatever_is_lost),
        cmocka_unit_test(what_is_no_claim_is_not_written_over),
        cmocka_unit_test(a_service_that_is_away_is_awaited),
        cmocka_unit_test(three_takeovers_double_the_patience),
        cmocka_unit_test(a_claim_is_not_written_over_another_one_of_the_same_revision),
        cmocka_unit_test(a_psd_of_another_shape_is_kept_out),
        cmocka_unit_test(a_standby_without_a_place_is_of_no_other_cluster),
        cmocka_unit_test(a_foreign_config_keeps_nobody_out_who_is_in),
        cmocka_unit_test(a_first_claim_is_refused_when_the_config_has_become_anothers),
        cmocka_unit_test(a_config_that_comes_in_between_is_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

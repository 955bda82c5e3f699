/* The coordination service in memory, whose messages are late or lost. */
#include <stdio.h>
#include <stdlib.h>

#include "common/hash.h"
#include "server/cluster/coord_mem.h"
#include "tests/support/seed.h"
#include "tests/unit/cluster/coord_calls.h"

static void put(struct coord *c, const char *key, int64_t if_revision, const char *value,
                struct calls_answer *answer)
{
    const struct coord_write write = {
        .change = COORD_PUT, .key = key, .if_revision = if_revision, .value = value
    };

    answer->is_there = false;
    c->ops->put_if(c, &write, 1, 1000, calls_on_done, answer);
    assert_false(answer->is_there);
}

/* Clients that count up one key by transactions: whoever hears that its own was made counted, and as often as the key
 * says, but for those that were made without an answer. */
static void under_all_faults_every_transaction_is_made_once_or_not_at_all(void **state)
{
    const uint64_t seed = seed_of_run(1);

    (void)state;
    for (uint64_t run = 0; run < 200; run++) {
        struct coord_mem *m = coord_mem_new(hash_mix2(seed, run));
        struct coord *clients[3];
        struct calls_answer answers[3] = { 0 };
        bool is_busy[3] = { false };
        uint64_t n_made = 0, n_unknown = 0, now = 0;

        coord_mem_set_faults(
            m, &(struct coord_mem_faults){
                   .delay_ms = 20, .late_ms = 2000, .lost_requests = 50, .lost_answers = 50 });
        for (int i = 0; i < 3; i++)
            clients[i] = coord_mem_client(m);
        for (int step = 0; step < 300; step++) {
            const uint64_t dice = hash_mix2(seed, run << 32 | (uint32_t)step);
            const int i = (int)(dice % 3);
            const struct coord_item *item = coord_mem_find(m, "n");
            char value[24];

            if (dice >> 32 & 15)
                coord_mem_set_away(m, (uint32_t)i, dice >> 40 & 1);
            if (is_busy[i] && !answers[i].is_there) {
                now += dice % 100;
                coord_mem_advance(m, now);
                continue;
            }
            n_made += is_busy[i] && answers[i].result.is_made;
            n_unknown += is_busy[i] && answers[i].err.status;
            is_busy[i] = true;
            snprintf(value, sizeof value, "%lld", item ? atoll(item->value) + 1 : 1);
            put(clients[i], "n", item ? item->mod_revision : 0, value, &answers[i]);
        }
        coord_mem_advance(m, now + 10000);
        for (int i = 0; i < 3; i++) {
            n_made += answers[i].result.is_made;
            n_unknown += answers[i].err.status != 0;
            clients[i]->ops->close(clients[i], NULL, NULL);
        }
        {
            const struct coord_item *item = coord_mem_find(m, "n");
            const uint64_t n = item ? strtoull(item->value, NULL, 10) : 0;

            if (n < n_made || n > n_made + n_unknown)
                fail_msg("run %llu: the key says %llu, %llu were made, of %llu nobody knows",
                         (unsigned long long)run, (unsigned long long)n,
                         (unsigned long long)n_made, (unsigned long long)n_unknown);
        }
        coord_mem_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(under_all_faults_every_transaction_is_made_once_or_not_at_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * random-calls SEED SECONDS URL...: calls of libpsd at random, in a random order, with random misuse, from several threads, on
 * workers and readers of running psds. Nothing that it does may end the process or hang: every call returns within its
 * deadline, and a failed one has a sentence. Prints the seed, and how many calls had which result.
 *
 * In builds with PS_FAULTS memory is out now and then in half of the rounds, for a few allocations of any thread.
 *
 * Pointers are those of arrays that are large enough, or NULL: what points nowhere no library can tell.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/memory.h"
#include "worker/libpsd/psd.h"

#define N_THREADS 3u
#define N_OPS 64u
#define N_SCANS 4u
#define N_KEYS_MAX 64u
#define DIM_MAX 64u
#define CALL_MS_MAX 5000u /* give-up, and what a slow machine takes */

struct run {
    uint64_t end_ms;
    const char *url;
    psd *c; /* of this round */
    _Atomic uint64_t n_calls, n_failed, slowest_ms;
    _Atomic long n_without_memory; /* allocations that were made to fail */
    _Atomic int bad;
};

struct caller {
    struct run *run;
    uint64_t seed, n_dice;
    pthread_t thread;
    psd_op ops[N_OPS];
    uint64_t keys[N_OPS][N_KEYS_MAX];
    float rows[N_OPS][N_KEYS_MAX * DIM_MAX]; /* borrowed by the pull of the same number */
    uint8_t present[N_OPS][N_KEYS_MAX / 8];
    uint64_t clock;
    psd_scan scans[N_SCANS];
};

static uint64_t roll(struct caller *t, uint64_t n)
{
    return hash_mix2(t->seed, ++t->n_dice) % n;
}

static bool once_in(struct caller *t, uint64_t n)
{
    return roll(t, n) == 0;
}

static void count(struct caller *t, const char *name, int64_t result, uint64_t began_ms)
{
    struct run *r = t->run;
    uint64_t took_ms = clock_mono_ms() - began_ms;

    r->n_calls++;
    if (took_ms > r->slowest_ms)
        r->slowest_ms = took_ms;
    if (took_ms > CALL_MS_MAX) {
        fprintf(stderr, "%s took %llu ms\n", name, (unsigned long long)took_ms);
        r->bad = 1;
    }
    if (result >= 0)
        return;
    r->n_failed++;
    if (!psd_error()[0]) {
        fprintf(stderr, "%s returned %lld without a sentence\n", name, (long long)result);
        r->bad = 1;
    }
}

#define CALL(call)                                  \
    do {                                            \
        uint64_t began_ms = clock_mono_ms();        \
        count(t, #call, (int64_t)(call), began_ms); \
    } while (0)

/* ---- arguments ---- */

static psd *handle(struct caller *t)
{
    return once_in(t, 200) ? NULL : t->run->c;
}

static int timeout(struct caller *t)
{
    static const int all[] = { 0, 0, 0, 1, 5, 20, -1 };

    return all[roll(t, sizeof all / sizeof *all)];
}

static uint32_t number(struct caller *t)
{
    return once_in(t, 20) ? (uint32_t)hash_mix2(t->seed, t->n_dice) : (uint32_t)roll(t, 4);
}

/* A size that lies leads here. */
union space {
    psd_rows rows[2];
    char bytes[4096];
};

/* Mostly right. */
static psd_rows section(struct caller *t, uint32_t i)
{
    psd_rows r = { .size = sizeof r,
                   .table = number(t),
                   .n = roll(t, N_KEYS_MAX),
                   .keys = t->keys[i],
                   .rows = t->rows[i] };

    for (uint64_t k = 0, key = 0; k < N_KEYS_MAX; k++)
        t->keys[i][k] = key += once_in(t, 500) ? 0 : 1 + roll(t, 1000);
    if (once_in(t, 30))
        r.size = number(t) % 2048;
    if (once_in(t, 30))
        r.keys = NULL;
    if (once_in(t, 30))
        r.rows = NULL;
    if (once_in(t, 10))
        r.codec = number(t) % 9;
    if (once_in(t, 10))
        r.op = number(t) % 4;
    if (once_in(t, 30))
        r.topk = once_in(t, 2) ? 0.5f : -3;
    if (once_in(t, 100))
        r.reserved = number(t);
    if (once_in(t, 4))
        r.present = t->present[i];
    return r;
}

static void fill_rows(struct caller *t, uint32_t i)
{
    float value = once_in(t, 30) ? NAN : (float)roll(t, 100) / 1000;

    for (uint32_t k = 0; k < N_KEYS_MAX * DIM_MAX; k++)
        t->rows[i][k] = value;
}

/* ---- calls ---- */

static void pull(struct caller *t)
{
    uint32_t i = (uint32_t)roll(t, N_OPS);
    union space space = { 0 };
    psd_rows *r = space.rows;
    int n = once_in(t, 50) ? (int)number(t) : 1;

    if (t->ops[i]) { /* its arrays are lent */
        int status = psd_wait(t->run->c, t->ops[i], timeout(t));

        if (status == -ETIMEDOUT || status == -EBUSY || status == -EINTR)
            return;
        t->ops[i] = 0;
    }
    r[0] = r[1] = section(t, i);
    if (n > 1 && r[0].size != sizeof r[0])
        n = 1;
    CALL(psd_pull(handle(t), once_in(t, 20) ? number(t) : t->clock, once_in(t, 50) ? NULL : r,
                  n > 2 ? -n : n, once_in(t, 100) ? NULL : &t->ops[i]));
}

/* A section of no pull: its arrays are this call's. */
static psd_rows own_section(struct caller *t, uint32_t i, float *values, uint64_t *keys)
{
    psd_rows r = section(t, i);

    fill_rows(t, i);
    memcpy(values, t->rows[i], sizeof t->rows[i]);
    memcpy(keys, t->keys[i], sizeof t->keys[i]);
    r.keys = r.keys ? keys : NULL;
    r.rows = r.rows ? values : NULL;
    r.present = once_in(t, 50) ? r.present : NULL;
    return r;
}

static void push(struct caller *t)
{
    static _Thread_local float values[N_KEYS_MAX * DIM_MAX];
    uint32_t i = (uint32_t)roll(t, N_OPS);
    uint64_t keys[N_KEYS_MAX];
    union space space = { 0 };
    uint64_t clock = once_in(t, 30) ? hash_mix2(t->seed, t->n_dice) : t->clock;

    if (t->ops[i])
        return;
    space.rows[0] = own_section(t, i, values, keys);
    space.rows[0].steps = once_in(t, 50);
    CALL(psd_push(handle(t), clock, (uint32_t)roll(t, 10), once_in(t, 20) ? 7 : PSD_TICK,
                  space.rows, once_in(t, 20) ? 0 : 1));
    t->clock++;
}

static void assign(struct caller *t)
{
    static _Thread_local float values[N_KEYS_MAX * DIM_MAX], state[2 * N_KEYS_MAX * DIM_MAX];
    uint32_t i = (uint32_t)roll(t, N_OPS);
    uint64_t keys[N_KEYS_MAX];
    union space space = { 0 };

    if (t->ops[i])
        return;
    space.rows[0] = own_section(t, i, values, keys);
    memcpy(state, values, sizeof values);
    space.rows[0].state = once_in(t, 2) ? state : NULL;
    space.rows[0].steps = once_in(t, 3) ? number(t) : 0;
    CALL(psd_assign(handle(t), once_in(t, 100) ? NULL : space.rows));
}

/* What is lent is read, so that the sanitizer looks at it. */
static void read_lent(const psd_rows *r, int64_t n)
{
    volatile uint64_t sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += r->keys[i] + (uint64_t)(r->rows[i] > 0) +
               (uint64_t)(r->state ? r->state[i] > 0 : 0);
    (void)sum;
}

static void scan(struct caller *t)
{
    psd_scan *own = &t->scans[roll(t, N_SCANS)],
             one = once_in(t, 10) ? (psd_scan)hash_mix2(t->seed, t->n_dice) : *own;
    union space space = { 0 };
    psd_rows *r = space.rows;
    int64_t n = -1;

    if (!*own) {
        CALL(*own = psd_scan_start(handle(t), (int)number(t), (int)roll(t, 20) % 3));
        *own = *own < 0 ? 0 : *own;
    } else if (once_in(t, 8)) {
        CALL(psd_scan_end(handle(t), one));
        *own = one == *own ? 0 : *own;
    } else {
        r->size = once_in(t, 30) ? number(t) % 4096 : sizeof *r;
        CALL(n = psd_scan_next(handle(t), one, once_in(t, 50) ? NULL : r, timeout(t)));
        if (r->size == sizeof *r && r->n)
            read_lent(r, n);
    }
}

static void drop(struct caller *t)
{
    static const char *const names[] = { "j1", "j2/a", "x", "", "j", NULL };
    psd_dropped dropped = { .size = once_in(t, 10) ? number(t) % 5000 : sizeof dropped };
    char space[5000];

    memcpy(space, &dropped, sizeof dropped);
    CALL(psd_drop(handle(t), names[roll(t, sizeof names / sizeof *names)],
                  once_in(t, 5) ? NULL : (psd_dropped *)(void *)space, (int)roll(t, 100)));
}

static void wait_or_cancel(struct caller *t)
{
    uint32_t i = (uint32_t)roll(t, N_OPS);
    psd_op op = once_in(t, 5) ? (psd_op)hash_mix2(t->seed, t->n_dice) : t->ops[i];

    if (once_in(t, 2000))
        CALL(psd_end_waits(handle(t)));
    else if (once_in(t, 4))
        CALL(psd_cancel(handle(t), once_in(t, 100) ? 0 : op));
    else
        CALL(psd_wait(handle(t), op == t->ops[i] ? 0 : op, timeout(t)));
}

static void table(struct caller *t)
{
    static const char *const specs[] = { "dim=4",
                                         "dim=8 optimizer=adam",
                                         "dim=4 optimizer=sgd lr=0.1",
                                         "floats=60",
                                         "",
                                         "dim=",
                                         "dim=4 dim=64",
                                         "=",
                                         "lr=1e9 dim=2",
                                         "dim=4 name=\"",
                                         NULL };
    static const char *const names[] = { "a", "b", "c", "d", "x/y", "", "a b", NULL };
    psd_table_info info = { .size = once_in(t, 10) ? number(t) % 5000 : sizeof info };
    char space[5000];

    CALL(psd_table(handle(t), names[roll(t, 8)], specs[roll(t, sizeof specs / sizeof *specs)]));
    memcpy(space, &info, sizeof info);
    CALL(psd_get_table(handle(t), (int)number(t),
                       once_in(t, 20) ? NULL : (psd_table_info *)(void *)space));
}

static void others(struct caller *t)
{
    uint64_t ids[50], unique[50], numbers[2];
    int64_t inverse[50];
    psd_stats stats = { .size = sizeof stats };
    psd_cache_stats cache = { .size = sizeof cache };
    char text[300];

    for (uint32_t i = 0; i < 50; i++)
        ids[i] = roll(t, 20);
    switch (roll(t, 12)) {
    case 0:
        CALL(psd_flush(handle(t), timeout(t)));
        return;
    case 1:
        CALL(psd_clock(handle(t)));
        return;
    case 2:
        CALL(psd_resume(handle(t)));
        return;
    case 3:
        CALL(psd_notice(handle(t), once_in(t, 9) ? NULL : text, roll(t, sizeof text)));
        return;
    case 4:
        CALL(psd_get_stats(handle(t), once_in(t, 9) ? NULL : &stats));
        CALL(psd_get_cache_stats(handle(t), once_in(t, 9) ? NULL : &cache));
        return;
    case 5:
        CALL(psd_unique(handle(t), ids, roll(t, 51), once_in(t, 9) ? NULL : unique, inverse));
        return;
    case 6:
        CALL(psd_fd(handle(t)));
        return;
    case 7:
        CALL(psd_next(handle(t)));
        return;
    case 8:
        if (once_in(t, 30))
            CALL(psd_checkpoint(handle(t), numbers, 2, (int)roll(t, 100)));
        return;
    case 9:
        if (once_in(t, 60))
            CALL(psd_leave(handle(t), timeout(t)));
        return;
    default:
        (void)psd_strerror((int)number(t) - 10030);
        (void)psd_key(psd_seed("x"), text, 0);
    }
}

static void *call_all(void *arg)
{
    struct caller *t = arg;
    uint64_t end_ms = clock_mono_ms() + 200 + roll(t, 800);

    while (clock_mono_ms() < end_ms && !t->run->bad) {
        switch (roll(t, 8)) {
        case 0:
        case 1:
            pull(t);
            break;
        case 2:
            push(t);
            break;
        case 3:
            wait_or_cancel(t);
            break;
        case 4:
            others(t);
            break;
        case 5:
            table(t);
            break;
        case 6:
            assign(t);
            break;
        default:
            scan(t);
            if (once_in(t, 50))
                drop(t);
        }
    }
    return NULL;
}

/* ---- memory that is out ---- */

struct drought {
    uint64_t seed;
    _Atomic bool is_over;
    _Atomic long *n_failed;
    pthread_t thread;
};

#ifdef PS_FAULTS
static void *fail_allocations(void *arg)
{
    struct drought *d = arg;

    for (uint64_t i = 0; !d->is_over; i++) {
        const uint64_t dice = hash_mix2(d->seed, i);

        memory_fail_anywhere((long)(dice % 200), (long)(dice >> 32) % 4);
        nanosleep(&(struct timespec){ .tv_nsec = (long)(dice % 8000000) }, NULL);
        *d->n_failed += memory_n_failed_anywhere();
    }
    memory_fail_anywhere(-1, 0);
    return NULL;
}
#endif

static void begin_drought(struct drought *d)
{
#ifdef PS_FAULTS
    if (pthread_create(&d->thread, NULL, fail_allocations, d))
        abort();
#endif
    (void)d;
}

static void end_drought(struct drought *d)
{
    d->is_over = true;
#ifdef PS_FAULTS
    pthread_join(d->thread, NULL);
#endif
}

/* A handle, and threads that use it; and its end, with or without what is under way. */
static void use_handle(struct run *r, struct caller *callers, uint64_t seed)
{
    static const char *const options[] = {
        "connect-timeout=5s give-up=3s pull-timeout=2s push-timeout=2s",
        "reader=yes give-up=3s connect-timeout=5s pull-timeout=2s",
        "reader=yes cache=1M max-age=20ms give-up=3s connect-timeout=5s pull-timeout=2s",
        "mode=ssp staleness=3 give-up=3s connect-timeout=5s pull-timeout=300ms "
        "push-timeout=300ms",
        "rank=0 workers=2 mode=bsp connect-timeout=3s give-up=3s pull-timeout=100ms "
        "push-timeout=100ms",
        "rank=9",
        "mode",
        "connect-timeout=1ms"
    };
    char why[PSD_WHY_MAX] = "", url[300];

    snprintf(url, sizeof url, "%s/j%llu", r->url, (unsigned long long)(seed % 5));
    if (psd_open(&r->c, url, options[hash_mix2(seed, 1) % (sizeof options / sizeof *options)],
                 why)) {
        r->bad |= !why[0];
        return;
    }
    for (uint32_t i = 0; i < N_THREADS; i++) {
        memset(&callers[i], 0, sizeof callers[i]);
        callers[i].run = r;
        callers[i].seed = hash_mix2(seed, 100 + i);
        if (pthread_create(&callers[i].thread, NULL, call_all, &callers[i]))
            abort();
    }
    for (uint32_t i = 0; i < N_THREADS; i++)
        pthread_join(callers[i].thread, NULL);
    if (psd_close(r->c))
        r->bad = 1;
}

static void round_of(struct run *r, struct caller *callers, uint64_t seed)
{
    struct drought d = { .seed = seed, .n_failed = &r->n_without_memory };

    if (seed & 1)
        begin_drought(&d);
    use_handle(r, callers, seed);
    if (seed & 1)
        end_drought(&d);
}

int main(int argc, char **argv)
{
    static struct caller callers[N_THREADS];
    struct run r = { 0 };
    uint64_t seed, n = 0;

    if (argc < 4) {
        fprintf(stderr, "usage: random-calls SEED SECONDS URL...\n");
        return 2;
    }
    seed = strtoull(argv[1], NULL, 0);
    printf("random-calls %llu\n", (unsigned long long)seed);
    fflush(stdout);
    r.end_ms = clock_mono_ms() + strtoull(argv[2], NULL, 10) * 1000;
    for (; clock_mono_ms() < r.end_ms && !r.bad; n++) {
        r.url = argv[3 + n % (uint64_t)(argc - 3)];
        round_of(&r, callers, hash_mix2(seed, n));
    }
    printf(
        "%llu handles, %llu calls, %llu failed, the slowest %llu ms; %ld allocations failed\n",
        (unsigned long long)n, (unsigned long long)r.n_calls, (unsigned long long)r.n_failed,
        (unsigned long long)r.slowest_ms, r.n_without_memory);
    return r.bad;
}

/*
 * starved URL: a worker of a running psd whose memory is out, for real: the address space is limited, and what the
 * allocator has left is taken from it, in blocks of all sizes. Calls then return a status, and the process lives. It
 * prints "starved" and reads a line: meanwhile its psd may be restarted. Then there is memory again, all goes on, and
 * each push that returned 0 was applied once.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "worker/libpsd/psd.h"

#define N_KEYS 20000u
#define DIM 4u
#define N_ROUNDS 50u
#define SPACE_BYTES (1u << 20) /* beyond what the process has */

struct block {
    struct block *next;
};

static uint64_t keys[N_KEYS];
static float rows[N_KEYS * DIM];

static void fail(const char *what, int64_t status)
{
    fprintf(stderr, "%s: %lld, %s\n", what, (long long)status, psd_error());
    exit(1);
}

static uint64_t used_bytes(void)
{
    unsigned long n_pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (!f || fscanf(f, "%lu", &n_pages) != 1)
        fail("statm", 0);
    fclose(f);
    return n_pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* All that there is, the largest blocks first. */
static struct block *take_all(void)
{
    struct block *taken = NULL, *more;

    for (size_t n = 1u << 20; n >= sizeof *taken; n /= 2)
        while ((more = malloc(n)) != NULL) {
            more->next = taken;
            taken = more;
        }
    return taken;
}

static void give_back(struct block *taken)
{
    while (taken) {
        struct block *next = taken->next;

        free(taken);
        taken = next;
    }
}

static psd_rows section_of(uint32_t n)
{
    return (psd_rows){ .size = sizeof(psd_rows), .n = n, .keys = keys, .rows = rows };
}

/* 1: it was pushed. */
static uint32_t push(psd *c, uint64_t clock, uint32_t n)
{
    psd_rows section = section_of(n);
    int status;

    for (uint32_t i = 0; i < N_KEYS * DIM; i++)
        rows[i] = 1;
    status = psd_push(c, clock, 1, PSD_TICK, &section, 1);
    if (status && status != -ENOMEM)
        fail("push", status);
    return !status;
}

/* How many calls found no memory. Those of other statuses have had to do with other things that are out with it. */
static uint32_t starve(psd *c, const char *url, uint64_t *clock)
{
    psd_rows section = section_of(N_KEYS);
    uint32_t n_refused = 0;

    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        uint64_t number;
        psd_op op = 0;
        psd *other = NULL;
        int status = psd_pull(c, *clock, &section, 1, &op);

        if (!status)
            status = psd_wait(c, op, 100);
        if (status == -ETIMEDOUT) {
            (void)psd_cancel(c, op);
            (void)psd_wait(c, op, 1000);
        }
        n_refused += status == -ENOMEM;
        if (push(c, *clock, N_KEYS))
            ++*clock;
        else
            n_refused++;
        n_refused += psd_table(c, i % 2 ? "b" : "c", "dim=4") == -ENOMEM;
        n_refused += psd_checkpoint(c, &number, 1, 100) == -ENOMEM;
        status = psd_open(&other, url, "reader=yes connect-timeout=100ms", NULL);
        n_refused += status == -ENOMEM;
        (void)psd_close(other);
    }
    return n_refused;
}

static void check_sums(psd *c, uint64_t n_pushes)
{
    psd_rows section = section_of(N_KEYS);
    psd_op op = 0;
    int status = psd_flush(c, 60000);

    if (!status)
        status = psd_pull(c, n_pushes, &section, 1, &op);
    if (!status)
        status = psd_wait(c, op, 60000);
    if (status)
        fail("with memory again", status);
    for (uint32_t i = 0; i < 100 * DIM; i++)
        if (rows[i] != -0.5f * (float)n_pushes) {
            fprintf(stderr, "%llu pushes, and weight %u is %g\n", (unsigned long long)n_pushes,
                    i, (double)rows[i]);
            exit(1);
        }
}

int main(int argc, char **argv)
{
    static char out[256], in[16];
    struct rlimit before, limit;
    struct block *taken;
    uint64_t clock = 0;
    uint32_t n_refused;
    char why[PSD_WHY_MAX];
    psd *c;

    if (argc != 2 || psd_open(&c, argv[1], "give-up=60s", why)) {
        fprintf(stderr, "usage: starved URL: %s\n", argc == 2 ? why : "one is expected");
        return 2;
    }
    setvbuf(stdout, out, _IOLBF, sizeof out);
    for (uint32_t i = 0; i < N_KEYS; i++)
        keys[i] = 3 * i + 1;
    if (psd_table(c, "a", "dim=4 optimizer=sgd lr=0.5 init=zero"))
        fail("table", 0);
    clock += push(c, clock, 100); /* has memory for little */
    getrlimit(RLIMIT_AS, &before);
    limit = before;
    limit.rlim_cur = used_bytes() + SPACE_BYTES;
    setrlimit(RLIMIT_AS, &limit);
    taken = take_all();
    n_refused = starve(c, argv[1], &clock);
    printf("starved\n");
    if (read(STDIN_FILENO, in, sizeof in) < 0)
        fail("stdin", 0);
    n_refused += starve(c, argv[1], &clock);
    setrlimit(RLIMIT_AS, &before);
    give_back(taken);
    clock += push(c, clock, N_KEYS);
    check_sums(c, clock);
    if (psd_leave(c, 30000) || psd_close(c))
        fail("leave", 0);
    printf("%u calls found no memory\n", n_refused);
    return 0;
}

#include "tests/emu/simt.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "common/hash.h"
#include "tests/emu/fiber.h"
#include "tests/emu/rt.h"

__thread struct dim3 threadIdx, blockIdx, blockDim, gridDim;

enum state { RUNS, AT_BLOCK_BARRIER, AT_WARP_BARRIER, LEFT };

struct thread {
    struct fiber fiber;
    struct dim3 index;
    enum state state;
    unsigned mask;      /* of the warp barrier where it waits, or was last */
    uint64_t published; /* by it, to the lanes of the mask */
    uint64_t got[32];   /* from them, when the barrier opened */
};

/* What a host thread runs: one block at a time. */
struct device {
    struct thread threads[EMU_THREADS_MAX];
    unsigned n, running;
    struct fiber host;
    char *stacks;
    const struct emu_call *call;
    void *shared; /* of the block */
    uint64_t order, n_draws;
};

static __thread struct device *device;

/* Threads of a test end, and leave nothing. A thread in which nobody writes to it has none. */
struct sweeper {
    bool is_wanted;

    ~sweeper()
    {
        if (device)
            munmap(device->stacks, (size_t)EMU_THREADS_MAX * FIBER_STACK_BYTES);
        free(device);
        device = nullptr;
    }
};
static thread_local struct sweeper sweeper;

static struct device *get(void)
{
    if (device)
        return device;
    device = (struct device *)calloc(1, sizeof *device);
    device->stacks = (char *)mmap(nullptr, (size_t)EMU_THREADS_MAX * FIBER_STACK_BYTES,
                                  PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (device->stacks == MAP_FAILED)
        emu_abort("no memory for stacks");
    sweeper.is_wanted = true;
    return device;
}

void emu_abort(const char *why)
{
    fprintf(stderr, "emu: %s; block %u,%u thread %u,%u,%u, order %llu\n", why, blockIdx.x,
            blockIdx.y, threadIdx.x, threadIdx.y, threadIdx.z,
            device ? (unsigned long long)device->order : 0);
    abort();
}

void emu_order(uint64_t order)
{
    (void)&sweeper;
    get()->order = order;
    get()->n_draws = 0;
}

/* A number below n. */
static unsigned draw(struct device *d, unsigned n)
{
    return (unsigned)(hash_mix2(d->order, d->n_draws++) % n);
}

/* 0 .. n - 1 in the order of the day. */
static void permute(struct device *d, unsigned *places, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        places[i] = d->order == 1 ? n - 1 - i : i;
    for (unsigned i = n; d->order > 1 && i > 1; i--) {
        const unsigned k = draw(d, i), last = places[i - 1];

        places[i - 1] = places[k];
        places[k] = last;
    }
}

static void park(enum state at)
{
    struct thread *t = &device->threads[device->running];

    t->state = at;
    fiber_switch(&t->fiber, &device->host);
}

void emu_barrier_block(void)
{
    park(AT_BLOCK_BARRIER);
}

unsigned emu_barrier_warp(unsigned mask, uint64_t value)
{
    struct thread *t = &device->threads[device->running];

    if (!(mask >> (device->running & 31) & 1))
        emu_abort("a lane is not in the mask that it names");
    t->mask = mask;
    t->published = value;
    park(AT_WARP_BARRIER);
    return device->running & 31;
}

uint64_t emu_value(unsigned mask, unsigned lane)
{
    if (!(mask >> lane & 1))
        emu_abort("a shuffle reads a lane outside its mask");
    return device->threads[device->running].got[lane];
}

void *emu_shared(void)
{
    return device->shared;
}

static void entry(void)
{
    struct device *d = device;

    fiber_begin(&d->host);
    d->call->run();
    d->threads[d->running].state = LEFT;
    fiber_end(&d->host);
}

/* Opens the warp barrier where lane `first` waits, if all of its mask are there. */
static unsigned open_warp(struct device *d, unsigned first)
{
    struct thread *warp = &d->threads[first & ~31u];
    const unsigned mask = d->threads[first].mask;

    for (unsigned lane = 0; lane < 32; lane++) {
        const unsigned at = (first & ~31u) + lane;

        if (!(mask >> lane & 1))
            continue;
        if (at >= d->n || warp[lane].state == LEFT)
            emu_abort("a warp barrier names a lane that is not there");
        if (warp[lane].state != AT_WARP_BARRIER || warp[lane].mask != mask)
            return 0;
    }
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1))
            continue;
        for (unsigned from = 0; from < 32; from++)
            warp[lane].got[from] = mask >> from & 1 ? warp[from].published : 0;
        warp[lane].state = RUNS;
    }
    return 1;
}

/* Opens what can be opened. A block that goes on in none of its threads is stuck. */
static void open_barriers(struct device *d)
{
    unsigned n_at = 0, n_left = 0, n_open = 0;

    for (unsigned i = 0; i < d->n; i++) {
        n_at += d->threads[i].state == AT_BLOCK_BARRIER;
        n_left += d->threads[i].state == LEFT;
        if (d->threads[i].state == AT_WARP_BARRIER)
            n_open += open_warp(d, i);
    }
    if (n_at && n_left)
        emu_abort("a block barrier after threads of the block have left");
    if (n_at == d->n) {
        for (unsigned i = 0; i < d->n; i++)
            d->threads[i].state = RUNS;
        n_open++;
    }
    if (!n_open)
        emu_abort("threads wait at different barriers");
}

/* Each thread that can, in the order of the day, to its next barrier. False: all have left. */
static bool pass(struct device *d)
{
    unsigned places[EMU_THREADS_MAX], n_left = 0;

    permute(d, places, d->n);
    for (unsigned i = 0; i < d->n; i++) {
        struct thread *t = &d->threads[places[i]];

        if (t->state == RUNS) {
            d->running = places[i];
            threadIdx = t->index;
            fiber_switch(&d->host, &t->fiber);
        }
        n_left += t->state == LEFT;
    }
    return n_left < d->n;
}

/* Shared memory as large as was asked for, that AddressSanitizer sees its end. */
static void run_block(struct device *d, size_t n_shared)
{
    if (posix_memalign(&d->shared, 32, n_shared))
        emu_abort("no memory to share");
    memset(d->shared, 0xff, n_shared);
    for (unsigned i = 0; i < d->n; i++) {
        struct thread *t = &d->threads[i];

        t->state = RUNS;
        t->index =
            dim3(i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y));
        fiber_init(&t->fiber, d->stacks + (size_t)i * FIBER_STACK_BYTES, entry);
    }
    while (pass(d))
        open_barriers(d);
    free(d->shared);
}

struct launch {
    struct dim3 grid, block;
    size_t n_shared;
    struct emu_call *call; /* owned */
};

static void run_grid(void *arg)
{
    const struct launch *l = (const struct launch *)arg;
    const unsigned n_blocks = l->grid.x * l->grid.y * l->grid.z;
    struct device *d = get();
    unsigned *places = (unsigned *)malloc(n_blocks * sizeof *places);

    d->call = l->call;
    d->n = l->block.x * l->block.y * l->block.z;
    gridDim = l->grid;
    blockDim = l->block;
    permute(d, places, n_blocks);
    for (unsigned i = 0; i < n_blocks; i++) {
        const unsigned b = places[i];

        blockIdx = dim3(b % l->grid.x, b / l->grid.x % l->grid.y, b / (l->grid.x * l->grid.y));
        run_block(d, l->n_shared);
    }
    free(places);
}

static void drop_grid(void *arg)
{
    struct launch *l = (struct launch *)arg;

    delete l->call;
    delete l;
}

cudaError_t emu_launch_call(struct dim3 grid, struct dim3 block, size_t n_shared,
                            cudaStream_t stream, struct emu_call *call)
{
    const size_t n_threads = (size_t)block.x * block.y * block.z;
    struct launch *l = new launch{ grid, block, n_shared, call };

    if (n_threads == 0 || n_threads > EMU_THREADS_MAX || grid.x == 0 || grid.y == 0 ||
        grid.z == 0 || grid.y > 65535 || grid.z > 65535 || n_shared > EMU_SHARED_MAX) {
        drop_grid(l);
        return cudaErrorInvalidValue;
    }
    return emu_stream_launch(stream, run_grid, drop_grid, l);
}

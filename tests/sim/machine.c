#include "tests/sim/machine.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES ((size_t)1 << 20)
#else
#define __sanitizer_start_switch_fiber(save, bottom, n_bytes) \
    ((void)(save), (void)(bottom), (void)(n_bytes))
#define __sanitizer_finish_switch_fiber(saved, bottom, n_bytes) ((void)(saved))
#define __asan_unpoison_memory_region(at, n_bytes) ((void)(at))
#define STACK_BYTES ((size_t)256 << 10)
#endif

#define GUARD_BYTES ((size_t)4096)
#define CORE_US 30u /* the longest that a thread waits for a core, mostly */

struct machine machine;

static void *main_sp, *main_asan;
static const void *main_bottom;
static size_t main_bytes;

/* Saves what a call has to keep, and goes on where the other one did. */
void machine_switch(void **save_sp, void *sp);
__asm__(".text\n"
        ".globl machine_switch\n"
        ".type machine_switch, @function\n"
        "machine_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size machine_switch, .-machine_switch\n");

/* --- fibers --- */

static void on_due(void *owner, uint64_t wait, void *data);

static void to_main(struct fiber *f, void **asan)
{
    machine.running = NULL;
    __sanitizer_start_switch_fiber(asan, main_bottom, main_bytes);
    machine_switch(&f->sp, main_sp);
    __sanitizer_finish_switch_fiber(f->asan_stack, NULL, NULL);
}

static void resume(struct fiber *f)
{
    machine.running = f;
    machine.n_switches++;
    __sanitizer_start_switch_fiber(&main_asan, f->stack, STACK_BYTES);
    machine_switch(&main_sp, f->sp);
    __sanitizer_finish_switch_fiber(main_asan, NULL, NULL);
}

/* Its stack is for the next one. */
static void end_fiber(struct fiber *f)
{
    f->has_ended = true;
    f->wait++;
    f->next_in_line = machine.ended;
    machine.ended = f;
}

static _Noreturn void leave(struct fiber *f)
{
    end_fiber(f);
    to_main(f, NULL);
    abort();
}

static void enter(void)
{
    struct fiber *f = machine.running;

    __sanitizer_finish_switch_fiber(NULL, &main_bottom, &main_bytes);
    f->run(f->arg);
    if (f->joiner)
        fiber_wake(f->joiner);
    leave(f);
}

static uint8_t *new_stack(void)
{
    struct fiber *old = machine.ended;
    uint8_t *stack;

    if (old) {
        machine.ended = old->next_in_line;
        __asan_unpoison_memory_region(old->stack, STACK_BYTES);
        stack = old->stack;
        old->stack = NULL;
        return stack;
    }
    stack = mmap(NULL, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert(stack != MAP_FAILED);
    mprotect(stack, GUARD_BYTES, PROT_NONE);
    return stack + GUARD_BYTES;
}

static void wake_in(struct fiber *f, uint64_t delay_us)
{
    events_in(&machine.events, delay_us, on_due, f, ++f->wait, NULL);
}

static void on_due(void *owner, uint64_t wait, void *data)
{
    struct fiber *f = owner;
    const struct process *p = f->process;

    (void)data;
    if (f->has_ended || f->wait != wait || p->is_dead)
        return;
    if (p->frozen_until_us > machine_now_us()) {
        wake_in(f, p->frozen_until_us - machine_now_us());
        return;
    }
    f->is_waiting = false;
    resume(f);
}

struct fiber *fiber_new(struct process *p, void (*run)(void *arg), void *arg)
{
    struct fiber *f = calloc(1, sizeof *f);
    void **top;

    assert(f);
    *f = (struct fiber){
        .next = p->fibers, .process = p, .stack = new_stack(), .run = run, .arg = arg
    };
    p->fibers = f;
    top = (void **)(void *)(f->stack + STACK_BYTES);
    *--top = NULL;
    *--top = (void *)(uintptr_t)enter;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    f->sp = top;
    wake_in(f, dice_roll(&machine.dice, CORE_US));
    return f;
}

void fiber_sleep(uint64_t us)
{
    struct fiber *f = machine.running;

    if (!f)
        return;
    wake_in(f, us);
    to_main(f, &f->asan_stack);
}

void fiber_yield(void)
{
    if (machine.running && machine.yield_one_in &&
        dice_once_in(&machine.dice, machine.yield_one_in))
        fiber_sleep(dice_roll(&machine.dice, CORE_US));
}

bool fiber_wait(uint64_t until_us)
{
    struct fiber *f = machine.running;
    uint64_t now_us = machine_now_us();

    assert(f);
    f->is_waiting = true;
    f->is_woken = false;
    if (until_us == MACHINE_NEVER)
        f->wait++;
    else
        wake_in(f, until_us > now_us ? until_us - now_us : 0);
    to_main(f, &f->asan_stack);
    return f->is_woken;
}

void fiber_wake(struct fiber *f)
{
    if (!f->is_waiting || f->is_woken)
        return;
    f->is_woken = true;
    wake_in(f, dice_roll(&machine.dice, CORE_US));
}

/* --- processes --- */

static void run_main(void *arg)
{
    struct process *p = arg;

    p->main(p->owner);
    p->is_dead = true;
    socks_of_dead(p);
    p->on_end(p->owner);
}

struct process *process_start(const char *name, struct disk *disk, void (*main)(void *owner),
                              void (*on_end)(void *owner), void *owner)
{
    struct process *p = calloc(1, sizeof *p);

    assert(p);
    *p = (struct process){
        .next = machine.processes, .disk = disk, .main = main, .on_end = on_end, .owner = owner
    };
    snprintf(p->name, sizeof p->name, "%s", name);
    machine.processes = p;
    (void)fiber_new(p, run_main, p);
    return p;
}

void process_kill(struct process *p)
{
    struct fiber *self = machine.running;
    bool is_own = self && self->process == p;

    if (p->is_dead)
        return;
    p->is_dead = true;
    socks_of_dead(p);
    for (struct fiber *f = p->fibers; f; f = f->next)
        if (!f->has_ended && f != self)
            end_fiber(f);
    if (is_own)
        leave(self);
}

void process_freeze(struct process *p, uint64_t for_us)
{
    uint64_t until_us = machine_now_us() + for_us;

    if (until_us <= p->frozen_until_us)
        return;
    p->frozen_us = process_frozen_us(p) + for_us;
    p->frozen_until_us = until_us;
}

uint64_t process_frozen_us(const struct process *p)
{
    uint64_t now_us = machine_now_us();

    return p->frozen_us - (p->frozen_until_us > now_us ? p->frozen_until_us - now_us : 0);
}

/* --- life --- */

void machine_begin(uint64_t seed, uint32_t network_us)
{
    struct fiber *ended = machine.ended;

    machine =
        (struct machine){ .ended = ended, .dice = dice_of(seed, 6), .network_us = network_us };
    net_begin();
    machine.yield_one_in = (uint32_t)dice_from(&machine.dice, 2, 40);
}

void machine_end(void)
{
    for (struct process *p = machine.processes; p; p = p->next)
        process_kill(p);
    events_deinit(&machine.events);
}

bool machine_step(void)
{
    bool goes_on = events_run_next(&machine.events);

    machine.digest = hash_mix2(machine.digest ^ machine.events.now_us,
                               machine.events.n_asked ^ machine.dice.n << 32);
    return goes_on;
}

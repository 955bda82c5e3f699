#include "tests/emu/fiber.h"

#include <stdint.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define ANNOUNCE(save, to) __sanitizer_start_switch_fiber(save, (to)->bottom, (to)->n_bytes)
#define ARRIVED(fake, from) \
    __sanitizer_finish_switch_fiber(fake, &(from)->bottom, &(from)->n_bytes)
#else
#define ANNOUNCE(save, to) (void)0
#define ARRIVED(fake, from) (void)0
#endif

#ifndef __x86_64__
#error "fibers are written for x86-64"
#endif

/* Keeps what a call keeps (System V ABI), and goes on with the other stack. */
extern "C" void fiber_swap(void **save_sp, void *sp);
__asm__(".text\n"
        ".type fiber_swap, @function\n"
        "fiber_swap:\n"
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
        ".size fiber_swap, . - fiber_swap\n"
        ".section .note.GNU-stack, \"\", @progbits\n"
        ".text\n");

void fiber_init(struct fiber *f, void *stack, void (*entry)(void))
{
    /* Six registers, the address to return to, and one word, as a call would leave it: entry() finds its stack
     * aligned as after a call. */
    void **top = (void **)((char *)stack + FIBER_STACK_BYTES) - 8;

    memset(top, 0, 8 * sizeof *top);
    top[6] = (void *)(uintptr_t)entry;
    *f = {};
    f->sp = top;
    f->bottom = stack;
    f->n_bytes = FIBER_STACK_BYTES;
}

void fiber_switch(struct fiber *from, struct fiber *to)
{
    ANNOUNCE(&from->fake_stack, to);
    fiber_swap(&from->sp, to->sp);
    ARRIVED(from->fake_stack, to);
}

void fiber_begin(struct fiber *from)
{
    (void)from;
    ARRIVED(nullptr, from);
}

void fiber_end(struct fiber *to)
{
    void *sp;

    ANNOUNCE(nullptr, to);
    fiber_swap(&sp, to->sp);
    __builtin_unreachable();
}

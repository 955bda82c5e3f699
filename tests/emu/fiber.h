/*
 * Two stacks and a switch between them: what a block's threads are made of. x86-64 alone, as the project's own
 * flags; swapcontext() would ask the kernel at each switch.
 */
#ifndef TESTS_EMU_FIBER_H
#define TESTS_EMU_FIBER_H

#include <stddef.h>

enum { FIBER_STACK_BYTES = 64 * 1024 };

struct fiber {
    void *sp;           /* while it does not run */
    void *fake_stack;   /* AddressSanitizer's */
    const void *bottom; /* of its stack */
    size_t n_bytes;
};

/* The fiber begins in entry(), which does not return, at the first switch to it. */
void fiber_init(struct fiber *f, void *stack, void (*entry)(void));

/* From the fiber that runs to another; returns when something switches back. */
void fiber_switch(struct fiber *from, struct fiber *to);

/* First thing in entry(); `from`: what switched to it. */
void fiber_begin(struct fiber *from);

/* Last: as fiber_switch(), for ever. */
void fiber_end(struct fiber *to);

#endif

/*
 * In which order the emulated device takes threads and blocks: of the launches that the calling thread runs from now on.
 */
#ifndef TESTS_EMU_SIMT_ORDER_H
#define TESTS_EMU_SIMT_ORDER_H

#include "common/base.h"

/* 0: forward; 1: backward; else drawn from it, anew after each barrier. */
EXTERN_C void emu_order(uint64_t order);

#endif

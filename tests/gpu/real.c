/* A real GPU in the place of the emulated one, for the tests that can do with either: nothing can be forgotten, nothing made to
 * fail, and nobody has counted. */
#include "tests/emu/lt.h"
#include "tests/emu/rt.h"

bool emu_rt_is_real(void)
{
    return true;
}

void emu_rt_seed(uint64_t seed)
{
    (void)seed;
}

void emu_rt_fail(long at, enum emu_rt_fault fault)
{
    (void)at, (void)fault;
}

bool emu_rt_has_failed(void)
{
    return false;
}

void emu_rt_ignore_waits(int i)
{
    (void)i;
}

void emu_rt_run_all(void) {}

long emu_rt_alive(void)
{
    return 0;
}

void emu_lt_refuse(unsigned epilogue_bits, enum emu_lt_when when)
{
    (void)epilogue_bits, (void)when;
}

void emu_lt_relu(enum emu_lt_relu relu)
{
    (void)relu;
}

void emu_lt_sums(enum emu_lt_sums sums)
{
    (void)sums;
}

void emu_lt_counts(struct emu_lt_counts *ret)
{
    if (ret)
        *ret = (struct emu_lt_counts){ 0 };
}

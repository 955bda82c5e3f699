/*
 * A device for tests whose memory is not the host's: the ops of another table, the CPU's, behind
 * addresses that nobody can read or write. It does what a device may do, and stops the test with a
 * sentence where its user does what none allows (device.h):
 *
 *     memory    an address of the device that the host touches is a fault; one of the host's that an op
 *               is given is told, and so is memory that has been freed, or never is
 *     copies    in at begin(), out at wait(): whoever changes the host's side in between is told; those
 *               from or to memory of the host that the device did not give are counted
 *     ops       late: at a wait(), this buffer set's or another's, in the order of the begins
 *     records   replayed from their list, without the caller; or called again and held against the
 *               list, argument by argument
 *     kept      rows that stay are put by the CPU's op; host memory that is not its own, a place of two rows or beyond the
 *               memory are told
 *     rows      gradients are summed by row over bag_uses alone, in the order of the bags: the CPU's bits
 */
#ifndef TESTS_SUPPORT_FAR_DEVICE_H
#define TESTS_SUPPORT_FAR_DEVICE_H

#include "worker/compute/device.h"

struct far_device_plan {
    bool late;         /* else everything is done when it is asked for */
    bool replays;      /* else ops with a key that is known are compared with their record */
    uint64_t seed;     /* how late */
    uint64_t bad_wait; /* the so-manieth wait tells PS_EDEVICE, from 1; 0: none */
    bool refuses;      /* to be opened */
};

struct far_device_counts {
    uint64_t n_waits, n_uploads, n_downloads, n_records, n_replays, n_compared, n_allocs;
    uint64_t upload_bytes, most_under_way; /* buffer sets */
    uint64_t n_host_allocs,
        n_pageable; /* pageable: copies that a GPU's driver would have to stage */
};

/* One table for the process, and one open device of it at a time; the plan is borrowed. */
const struct device_ops *far_device_ops(const struct device_ops *cpu,
                                        const struct far_device_plan *plan);

/* Since far_device_ops(). */
struct far_device_counts far_device_counts(void);

#endif

/*
 * CUDA's runtime on the CPU: streams, events, copies and graphs under a scheduler that is out to break its user.
 *
 * What is put on a stream is not run then, but whenever the host waits, and now and then in between: one piece of work of one
 * stream that is ready, drawn at random, and then another. Only what CUDA promises holds: the order of one stream, and a
 * stream that waits for an event. A forgotten wait shows as wrong data.
 *
 *     emu_rt_seed(7);                      another order
 *     emu_rt_ignore_waits(1);                    waits of the second stream are lost: what does the test say?
 *     emu_rt_fail(3, EMU_RT_ONCE);         the fourth call from here on fails
 *
 * Memory of the device is 0xff (NaN) when it is new, as nobody has promised zeros; under ASan the host cannot touch it.
 * Copies refuse pointers of the wrong side. There are two devices. Streams, events, memory and handles belong to that which
 * was the thread's when they were made; used by a thread of the other one, they fail. While a stream is captured, what CUDA
 * forbids fails and spoils the capture.
 */
#ifndef TESTS_EMU_RT_H
#define TESTS_EMU_RT_H

#include <stdbool.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EMU_RT_DEVICES = 2 };

/* False; of a real GPU in the place of this one (tests/gpu/real.c) true. */
bool emu_rt_is_real(void);

/* All state as at the start, another order of what is ready. Nothing may be alive. */
void emu_rt_seed(uint64_t seed);

/* For what stands in for kernels and libraries: run(arg) when it is its turn, again and again if it is captured; drop(arg) once,
 * also if this fails. Without a stream it is run at once. */
cudaError_t emu_stream_launch(cudaStream_t s, void (*run)(void *), void (*drop)(void *),
                              void *arg);

bool emu_rt_is_capturing(void);

/* From now on waits of the i-th stream that was made (from 0) for events are lost, or with i = -1 the host's. -2: none are. */
void emu_rt_ignore_waits(int i);

enum emu_rt_fault { EMU_RT_ONCE, EMU_RT_EVER };

/* Lets n calls that can fail succeed; then one fails, or each does. n = -1: none fails. */
void emu_rt_fail(long n, enum emu_rt_fault fault);

/* Whether a call has failed since emu_rt_fail(); for loops over k. */
bool emu_rt_has_failed(void);

/* For calls that stand in other files.
 *
 * Everything that is queued is run. */
void emu_rt_run_all(void);

/* What CUDA forbids while a stream is captured, to the thread that captures, or to all if it says so: it fails, and the
 * capture with it. */
cudaError_t emu_rt_forbid_in_capture(void);

/* The calling thread's device: 0 until it chooses one, as in CUDA. _use_: a call that CUDA makes there. _has_: it has chosen
 * this one, and to choose it again does nothing. */
int emu_rt_use_device(void);
bool emu_rt_has_device(int device);
void emu_rt_set_device(int device);

/* Bit d: device d has been used since emu_rt_seed(), if only to free something. CUDA has a context there then, of hundreds of
 * MB: a thread has not chosen its device. */
unsigned emu_rt_used_devices(void);

/* Counts one more, and says whether it is to fail. */
bool emu_rt_is_faulty(void);

/* Streams, events, graphs and pieces of memory that are not yet freed. */
long emu_rt_alive(void);

/* What the library has made is counted, too. */
void emu_rt_count(long more);

#ifdef __cplusplus
}
#endif

#endif

/*
 * Memory of the emulated devices, and pinned memory of the host: which is which. New memory is 0xff (NaN), as nobody has
 * promised zeros. Under ASan the device's is poisoned but while its work runs, so that the host cannot touch it.
 */
#ifndef TESTS_EMU_MEMORY_H
#define TESTS_EMU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

enum emu_memory_side { EMU_MEMORY_DEVICE, EMU_MEMORY_HOST };

/* Of that device, if it is not the host's. */
void *emu_memory_new(enum emu_memory_side side, int device, size_t n_bytes);

/* Of that side, not yet freed; anything else is a mistake of the caller's, and ends the program. */
void emu_memory_free(enum emu_memory_side side, void *memory);

/* Whether all n_bytes are that device's, or any of them a device's. */
bool emu_memory_is_device(int device, const void *memory, size_t n_bytes);
bool emu_memory_touches_device(const void *memory, size_t n_bytes);

/* That device's work begins, and ends. It cannot touch another one's memory. */
void emu_memory_open(int device);
void emu_memory_close(void);

/* Pieces not yet freed. */
long emu_memory_alive(void);

#endif

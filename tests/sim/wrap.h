/* Names of functions that the linker puts in the place of the product's (--wrap), and of those themselves. */
#ifndef TESTS_SIM_WRAP_H
#define TESTS_SIM_WRAP_H

#define WRAP(name) __wrap_##name
#define REAL(name) __real_##name

#endif

/* What a caller may get wrong about rows that stay on the far device. Private to it. */
#ifndef TESTS_SUPPORT_FAR_ROWS_H
#define TESTS_SUPPORT_FAR_ROWS_H

#include "worker/compute/device.h"

/* The first row whose place is not below n_places, or another row's too; -1: there is none. */
int far_rows_check(const struct row_upload *u, size_t n_places);

#endif

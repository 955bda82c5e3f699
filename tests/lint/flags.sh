#!/bin/sh
# Prints the compiler's flags for the variant in $1, quoted for the shell, as the Makefile has them. $2: which of its variables, if not
# CFLAGS.
cd "$(dirname "$0")/../.." || exit 2
make -s --no-print-directory BUILD="$(dirname "$1")" VARIANT="$(basename "$1")" \
    --eval="lint-flags: ; @: \$(info \$(${2:-CFLAGS}))" lint-flags

#!/bin/sh
# The other compiler sees other mistakes: every file must be clean for clang too, with gcc's flags. Kernels are read as
# they are for the emulated device; tests/gpu/facts.cu is for a real one alone. $1: the variant.
cd "$(dirname "$0")/../.." || exit 2
flags=$(tests/lint/flags.sh "$1") || exit 2
cxxflags=$(tests/lint/flags.sh "$1" CXXFLAGS) || exit 2
emu=$(tests/lint/flags.sh "$1" EMU_ON) || exit 2
tests/lint/files.sh | grep -E '\.(c|cu|cpp)$' | grep -v '^tests/gpu/.*\.cu$' | {
    while read -r file; do
        case $file in
        *.c) eval "clang $flags -fsyntax-only \"$file\"" || bad=1 ;;
        *) eval "clang++ $cxxflags $emu -x c++ -fsyntax-only \"$file\"" || bad=1 ;;
        esac
    done
    exit ${bad:-0}
}

#!/bin/sh
# The other compiler sees other mistakes: every file must be clean for clang too, with gcc's flags. Kernels are read as
# they are for the emulated device; tests/gpu/facts.cu is for a real one alone. $1: the variant.
cd "$(dirname "$0")/../.." || exit 2
flags=$(tests/lint/flags.sh "$1") || exit 2
cxxflags=$(tests/lint/flags.sh "$1" CXXFLAGS) || exit 2
emu=$(tests/lint/flags.sh "$1" EMU_ON) || exit 2
files() { tests/lint/files.sh | grep -v '^tests/gpu/.*\.cu$' | grep -E "\.($1)\$"; }
side_by_side="xargs -P $(nproc) -n 8"
files c | eval "$side_by_side clang $flags -fsyntax-only" || bad=1
files 'cu|cpp' | eval "$side_by_side clang++ $cxxflags $emu -x c++ -fsyntax-only" || bad=1
exit ${bad:-0}

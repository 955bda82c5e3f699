#!/bin/sh
# libpsd lives in the processes of others: without memory it returns -ENOMEM, and it never ends the process or prints.
#   libpsd.so.1, whose linker has dropped what no public function reaches, has none of the functions that exit
#       (common/memory.h), and asks the C library for none that exits, prints, forks or changes signals;
#   in the folders of the client nobody calls those functions at all;
#   nobody but common/memory.c asks for memory, so that each allocation can fail in a test.
# What may stand there all the same is in `allowed`, with its reason. $1: a build variant, such as build/release.
cd "$(dirname "$0")/../.." || exit 2
library=$1/lib/libpsd.so.1
# __assert_fail: an invariant of ours is broken, which no argument and no server can bring about (random-calls, fuzzers).
allowed='__assert_fail'
exits='memory_alloc|memory_alloc_lines|memory_need|stop_without_memory|_?exit|quick_exit|_Exit|abort|raise|kill|fork|vfork'
prints='stdout|stderr|(__)?v?f?printf(_chk)?|puts|fputs|putchar|fputc|fwrite|perror|v?dprintf|syslog'
signals='signal|sigaction|sigsetmask|alarm|setitimer|uv_signal_[a-z]*|uv_replace_allocator'
memory='malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|memalign|str(n)?dup|v?asprintf|getline|getdelim|open_memstream'
[ -f "$library" ] || { echo "$library is not there: make libpsd"; exit 1; }

nm "$library" | awk '{ name = $NF; sub(/@.*/, "", name); sub(/\.[a-z].*$/, "", name); print name }' |
    grep -vxE "$allowed" | grep -xE "$exits|$prints|$signals" | sort -u |
    sed "s|.*|libpsd reaches &(), which ends the process, prints or changes signals: return a status|" | grep . && bad=1

tests/lint/files.sh common proto worker/client worker/libpsd | grep '\.c$' | grep -vE '^common/(memory\.c|.*/)' | while read -r source; do
    object=$1/pic/${source%.c}.o
    [ -f "$object" ] || { echo "$object: not built, so not checked"; continue; }
    used=$(nm -u "$object" | awk '{ print $NF }')
    echo "$used" | grep -xE "$memory" | sed "s|.*|$source asks for memory by &(): common/memory.h|"
    case $source in
    common/*) ;;
    *) echo "$used" | grep -xE "$exits" | sed "s|.*|$source calls &(), which ends the process: return a status|" ;;
    esac
done | grep . && bad=1
exit ${bad:-0}

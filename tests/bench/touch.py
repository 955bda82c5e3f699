#!/usr/bin/python3
"""Makes the host of a virtual machine back memory, and hands it to a process that grows.

    tests/bench/touch.py 6.5         # GiB; then a line with the process's id on stdin

A virtual machine's memory may not be there yet: the host finds a page when it is first touched, which can take milliseconds, and takes
back within seconds what the machine does not use. So this maps huge pages, touches each, says in one JSON line what the touches took,
and holds them until a process asks for memory: it frees, a little ahead of that process's growth, pages for it to be given.
"""
import json
import mmap
import os
import sys
import time

PAGE = 2 << 20
AHEAD = 512 << 20  # bytes freed that the process has not taken yet
PIECE = 8          # pages freed at a time
LOOK_S = 0.002
SMALL_PAGE = os.sysconf("SC_PAGE_SIZE")


def available_bytes():
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable"))


def touch(memory, n_pages):
    """Microseconds of the first touch of each, sorted."""
    took = []
    for i in range(n_pages):
        start = time.perf_counter_ns()
        memory[i * PAGE] = 1
        took.append((time.perf_counter_ns() - start) / 1000)
    return sorted(took)


def resident_bytes(pid):
    """0 once it has gone."""
    try:
        with open(f"/proc/{pid}/statm") as f:
            return int(f.read().split()[1]) * SMALL_PAGE
    except (FileNotFoundError, ProcessLookupError):
        return 0


def feed(memory, n_pages, pid):
    """Frees pages so that there are AHEAD bytes of them beyond what the process has."""
    freed = 0
    while freed < n_pages and (has := resident_bytes(pid)):
        while freed < n_pages and freed * PAGE < has + AHEAD:
            n = min(PIECE, n_pages - freed)
            memory.madvise(mmap.MADV_DONTNEED, freed * PAGE, n * PAGE)
            freed += n
        time.sleep(LOOK_S)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: touch.py GIB")
    # Half: the process has as much again until pages pass from here to there.
    n_pages = max(int(min(float(sys.argv[1]) * 2**30, available_bytes() / 2) / PAGE), 1)
    with mmap.mmap(-1, n_pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        took = touch(memory, n_pages)
        print(json.dumps({"gib": n_pages * PAGE / 2**30, "seconds": sum(took) / 1e6, "p50_us": took[n_pages // 2],
                          "p99_us": took[n_pages * 99 // 100], "max_us": took[-1]}), flush=True)
        pid = sys.stdin.readline().strip()
        if pid:
            feed(memory, n_pages, pid)


main()

"""How often real processes ask for memory, by caller: what tests/preload/count_allocs.c has counted, and the names of its frames."""
import collections
import functools
import os
import re
import subprocess

from training import BIN, ROOT

COUNTER = BIN.parent / "tests/count_allocs.so"
FRAME = re.compile(r"(\S+)\+0x([0-9a-f]+)")


def counter():
    """The library, built if it is not there."""
    subprocess.run(["make", "-s", "--no-print-directory", f"BUILD={BIN.parents[1]}", f"VARIANT={BIN.parent.name}", "alloc-counter"],
                   cwd=ROOT, check=True)
    return COUNTER


def counted(path):
    """The environment of a process that is counted."""
    return {**os.environ, "LD_PRELOAD": str(counter()), "PS_ALLOCS": str(path)}


def read(path):
    """frames -> how often; a frame is (file, offset)."""
    counts = collections.Counter()
    for line in path.read_text().splitlines():
        n, _, rest = line.split(" ", 2)
        counts[tuple((m[1], int(m[2], 16)) for m in FRAME.finditer(rest))] += int(n)
    return counts


@functools.cache
def _named(frames):
    by_file = collections.defaultdict(set)
    for file, offset in frames:
        by_file[file].add(offset - 1)  # a return address
    found = {}
    for file, offsets in by_file.items():
        offsets = sorted(offsets)
        try:
            out = subprocess.run(["addr2line", "-sfe", file, *map(hex, offsets)], capture_output=True, text=True, timeout=60).stdout
        except FileNotFoundError:
            continue
        for offset, name in zip(offsets, out.splitlines()[::2]):
            found[file, offset + 1] = name
    return found


def names(counts):
    """frames -> their function names, the innermost first, where the file tells."""
    found = _named(frozenset(f for frames in counts for f in frames))
    return {frames: [found.get(f, "??").replace("??", os.path.basename(f[0])) for f in frames] for frames in counts}


def show(counts, most=12):
    """The callers that asked most, for people."""
    named = names(counts)
    return "\n".join(f"{n:8} {' < '.join(named[frames][:9])}" for frames, n in counts.most_common(most))

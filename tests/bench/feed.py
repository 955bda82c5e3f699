#!/usr/bin/python3
"""psworker's feed from its cache of parsed rows, in turn with another build of bench-feed: feed.py BIN [--before BENCH_FEED]

Both read the same synthetic rows; the batches must be the same bit for bit. The ratio is that of each pair of runs, whose order alternates.
On a busy machine the CPU's seconds count: threads that share the work are so many times as fast where each has a core.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile


def run(program, o, threads, folder):
    command = [program, "--batch", o.batch, "--threads", threads, "--rounds", 1, folder / "rows.tsv", folder / "cache"]
    return json.loads(subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True, timeout=600).stdout)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("bin", type=pathlib.Path, help="the folder of psworker and bench-feed")
    p.add_argument("--before", type=pathlib.Path, help="another build of bench-feed, with one thread")
    p.add_argument("--rows", type=int, default=800_000, help="[%(default)s]")
    p.add_argument("--batch", type=int, default=65_536, help="[%(default)s]")
    p.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    p.add_argument("--rounds", type=int, default=5, help="[%(default)s]")
    o = p.parse_args()
    before, before_threads = (o.before, 1) if o.before else (o.bin / "bench-feed", 1)
    pairs = []
    with tempfile.TemporaryDirectory(prefix="psbench-") as name:
        folder = pathlib.Path(name)
        (folder / "cache").mkdir()
        subprocess.run([str(o.bin / "psworker"), "synth", "--rows", str(o.rows), "--seed", "1", "--output", str(folder / "rows.tsv")],
                       check=True, stderr=subprocess.DEVNULL, timeout=600)
        run(before, o, 1, folder)  # writes the cache
        for i in range(o.rounds):
            ways = [(before, before_threads), (o.bin / "bench-feed", o.threads)]
            said = [run(program, o, threads, folder) for program, threads in (ways if i % 2 == 0 else ways[::-1])]
            pair = said if i % 2 == 0 else said[::-1]
            if pair[0]["digest"] != pair[1]["digest"]:
                sys.exit("feed.py: the batches differ")
            pairs.append(pair)
    what = "the other build" if o.before else "one thread"
    print(f"batch {o.batch}, {o.rows} rows from the cache, medians of {o.rounds} pairs:")
    for unit, key in (("samples/s", "samples_per_s"), ("samples per CPU second", "samples_per_cpu_s")):
        ratios = [now[key] / then[key] for then, now in pairs]
        print(f"{what} {statistics.median(then[key] for then, _ in pairs):,.0f} {unit}, {o.threads} threads "
              f"{statistics.median(now[key] for _, now in pairs):,.0f}: {statistics.median(ratios):.2f} x "
              f"({min(ratios):.2f} to {max(ratios):.2f})")

main()

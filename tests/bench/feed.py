#!/usr/bin/python3
"""psworker's feed from its cache of parsed rows, in turn with another build of bench-feed: feed.py BIN [--before BENCH_FEED]

Both read the same synthetic rows; the batches must be the same bit for bit. The ratio is that of each pair of runs.
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
    ratios, rates = [], {"before": [], "now": []}
    with tempfile.TemporaryDirectory(prefix="psbench-") as name:
        folder = pathlib.Path(name)
        (folder / "cache").mkdir()
        subprocess.run([str(o.bin / "psworker"), "synth", "--rows", str(o.rows), "--seed", "1", "--output", str(folder / "rows.tsv")],
                       check=True, stderr=subprocess.DEVNULL, timeout=600)
        run(before, o, 1, folder)  # writes the cache
        for _ in range(o.rounds):
            pair = run(before, o, before_threads, folder), run(o.bin / "bench-feed", o, o.threads, folder)
            if pair[0]["digest"] != pair[1]["digest"]:
                sys.exit("feed.py: the batches differ")
            rates["before"].append(pair[0]["samples_per_s"])
            rates["now"].append(pair[1]["samples_per_s"])
            ratios.append(pair[1]["samples_per_s"] / pair[0]["samples_per_s"])
    what = "the other build" if o.before else "one thread"
    print(f"batch {o.batch}, {o.rows} rows from the cache, medians of {o.rounds} pairs: {what} {statistics.median(rates['before']):,.0f} "
          f"samples/s, {o.threads} threads {statistics.median(rates['now']):,.0f}: {statistics.median(ratios):.2f} x "
          f"({min(ratios):.2f} to {max(ratios):.2f})")


main()

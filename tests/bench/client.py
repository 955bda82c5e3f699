#!/usr/bin/python3
"""What libpsd takes from a shard, beside psbench, which speaks the wire itself.

    tests/bench/client.py build/release/bin            # a minute; also: make bench-client
    tests/bench/client.py build/release/bin --quick    # does it all run?

One shard, dim 16, one connection each, both cores are everybody's. psbench and the library run in turn; a ratio is the median of the
rounds' ratios. Prints markdown.
"""
import argparse
import json
import pathlib
import statistics
import subprocess

import rig

# keys of a pull, pulls under way, threads of the library's caller
CASES = [(26, 1, 1), (26, 8, 1), (26, 8, 4), (1000, 1, 1), (1000, 4, 1)]


def psbench(o, server, keys, depth, *flags, path):
    path.unlink(missing_ok=True)
    subprocess.run([o.bin / "psbench", "pull", "--server", server, "--dim", "16", "--rows", str(o.rows), "--connections", "1", "--depth",
                    str(depth), "--keys-per-request", str(keys), "--seconds", str(o.seconds), "--warmup", str(o.seconds / 5), *flags,
                    "--json", path], check=True, stdout=subprocess.DEVNULL)
    return json.loads(path.read_text().splitlines()[-1])["requests_per_s"]


def library(o, server, keys, depth, threads):
    words = [o.bin / "bench-client", server, o.rows, keys, depth, o.seconds, threads]
    return float(subprocess.run([str(w) for w in words], check=True, stdout=subprocess.PIPE, text=True).stdout)


def measure(o, r, server):
    path = r.scratch / "bench.jsonl"
    psbench(o, server, 26, 8, path=path)  # fills the table
    rows = []
    for keys, depth, threads in CASES:
        pairs = [(psbench(o, server, keys, depth, "--no-fill", path=path), library(o, server, keys, depth, threads))
                 for _ in range(o.rounds)]
        bare, through = (statistics.median(figures) for figures in zip(*pairs))
        rows.append([keys, depth, threads, f"{bare:,.0f}", f"{through:,.0f}", f"{statistics.median(b / a for a, b in pairs):.2f}"])
    rig.table(["keys", "under way", "threads", "psbench, pulls/s", "libpsd, pulls/s", "ratio"], rows)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("bin", type=pathlib.Path, help="the folder of psd, psbench and bench-client")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--cpus", default="0,1")
    o = p.parse_args()
    o.bin = o.bin.resolve()
    o.rows, o.seconds = (20_000, 0.2) if o.quick else (1_000_000, 1)
    o.rounds = 1 if o.quick else o.rounds
    with rig.Rig(o) as r, r.psd() as server:
        measure(o, r, server)


if __name__ == "__main__":
    rig.run(main)

#!/usr/bin/python3
"""What libpsd takes from a shard, beside psbench, which speaks the wire itself.

    tests/bench/client.py build/release/bin            # a minute; also: make bench-client
    tests/bench/client.py build/release/bin --quick    # does it all run?

    tests/bench/client.py build/release/bin --cache    # a reader with a cache instead; the trace asks for ../shared/data

One shard, dim 16, one connection each, both cores are everybody's. psbench and the library run in turn; a ratio is the median of the
rounds' ratios. Prints markdown.
"""
import argparse
import array
import collections
import json
import os
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


def cache(o, r, server):
    """What a hit costs, and what a pull takes before its rows are in the cache and after."""
    psbench(o, server, 26, 8, path=r.scratch / "bench.jsonl")
    lines = [subprocess.run([str(w) for w in (o.bin / "bench-cache", server, o.rows, o.seconds)], check=True, stdout=subprocess.PIPE,
                            text=True).stdout.split("\n") for _ in range(o.rounds)]
    rounds = [[line.split() for line in of_round if line] for of_round in lines]
    hits, times = [], []
    for line in zip(*rounds):
        name, *head = line[0]
        if name == "hit":
            ns = [float(words[4]) for words in line]
            hits.append([head[0], f"{int(head[1]):,}", head[2], f"{statistics.median(ns):.1f}", f"{min(ns):.1f} to {max(ns):.1f}"])
        elif name in ("cold", "warm"):
            p50, p99 = (statistics.median(float(words[i]) for words in line) for i in (2, 3))
            times.append([head[0], name, f"{p50:,.1f}", f"{p99:,.1f}"])
    rig.table(["keys", "rows in use", "threads", "ns a key, median", "rounds"], hits)
    rig.table(["keys", "cache", "p50, us", "p99, us"], times)


def read_trace(path, n_skipped):
    """The categorical tokens of a Criteo file, column by column, as numbers."""
    text = subprocess.run(["zstd", "-dc", path], check=True, stdout=subprocess.PIPE).stdout
    return [(i, token) for line in text.split(b"\n")[:-1] for i, token in enumerate(line.split(b"\t")[n_skipped:]) if token]


def lru_hits(keys, n_rows, n_warm):
    rows, n_hits = collections.OrderedDict(), 0
    for i, key in enumerate(keys):
        if key in rows:
            rows.move_to_end(key)
            n_hits += i >= n_warm
        else:
            rows[key] = None
            if len(rows) > n_rows:
                rows.popitem(last=False)
    return n_hits


def trace(o):
    """Hits of unseen Criteo rows behind the training rows, beside an LRU with as many rows."""
    data = pathlib.Path(os.environ.get("PS_SHARED", pathlib.Path(__file__).resolve().parents[2] / "../shared")) / "data/criteo"
    seen, unseen = read_trace(data / "criteo_dev_110000.tsv.zst", 14), read_trace(data / "criteo_test_unlabelled.tsv.zst", 13)
    numbers, rows = {}, []
    for name, warm, counted in ("cold", [], unseen), ("behind 110,000 training rows", seen, unseen):
        keys = array.array("Q", (numbers.setdefault(token, len(numbers)) for part in (warm, counted) for token in part))
        for n_bytes in (1 << 20, 2 << 20, 3250000, 8 << 20):
            out = subprocess.run([str(o.bin / "bench-cache"), "trace", str(n_bytes), str(len(warm))], check=True, stdout=subprocess.PIPE,
                                 input=keys.tobytes()).stdout
            n_hits, n, n_rows, _ = map(int, out.split())
            lru = lru_hits(keys, n_rows, len(warm))
            rows.append([name, f"{n_bytes:,}", f"{n_rows:,}", f"{100 * n_hits / n:.1f} %", f"{100 * lru / n:.1f} %"])
    rig.table(["trace", "bytes", "rows", "hits", "LRU of as many rows"], rows)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("bin", type=pathlib.Path, help="the folder of psd, psbench and bench-client")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--cpus", default="0,1")
    p.add_argument("--cache", action="store_true", help="a reader's cache")
    o = p.parse_args()
    o.bin = o.bin.resolve()
    o.rows, o.seconds = (20_000, 0.2) if o.quick else (1_000_000, 1)
    o.rounds = 1 if o.quick else o.rounds
    with rig.Rig(o) as r, r.psd() as server:
        (cache if o.cache else measure)(o, r, server)
    if o.cache and not o.quick:
        trace(o)


if __name__ == "__main__":
    rig.run(main)

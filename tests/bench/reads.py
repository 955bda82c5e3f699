#!/usr/bin/python3
"""What a reader waits for, alone and beside workers that push all the time.

    tests/bench/reads.py build/release/bin                            # 2 minutes; also: make bench-reads
    tests/bench/reads.py build/release/bin --before OLD_BIN --realtime

One shard with its write-ahead log, 500,000 rows of dim 16. A reader (psbench --reader) pulls 26 or 2,600 keys every 2 ms or so, closed
loop; psbench pushes meanwhile. psd's shard has core 0 for itself, all else runs on core 1. --before measures another psd in turn with
this one. --realtime (root) makes the reader and the shard's thread SCHED_FIFO, so that no other program of the machine delays them:
what is left is psd's own. The kernel then takes the core from a shard that is always busy for 50 ms of each second: read p99 there,
not p99.9. Prints markdown.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

import rig

ROWS = 500_000
KEYS = [26, 2600]
# name, flags of psbench; the last ones are pushed in slices
LOADS = [("alone", None),
         ("1,000 int8 rows, 8 x 4", ["push", "--keys-per-request", "1000", "--connections", "8", "--depth", "4", "--codec", "int8"]),
         ("1,000 rows, 16 x 4", ["push", "--keys-per-request", "1000", "--connections", "16", "--depth", "4"]),
         ("2,600 rows, 8 x 4", ["push", "--keys-per-request", "2600", "--connections", "8", "--depth", "4"]),
         ("2,600 rows, pushed and pulled, 8 x 4", ["mix", "--keys-per-request", "2600", "--connections", "8", "--depth", "4"]),
         ("20,000 rows, 8 x 2", ["push", "--keys-per-request", "20000", "--connections", "8", "--depth", "2"])]


def give_core(pid, realtime):
    """Core 0 to the thread that has computed most, core 1 to the others."""
    def used(tid):
        return int(pathlib.Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()[0])

    threads = sorted(map(int, os.listdir(f"/proc/{pid}/task")), key=used)
    for tid in threads[:-1]:
        os.sched_setaffinity(tid, {1})
    os.sched_setaffinity(threads[-1], {0})
    if realtime:
        os.sched_setscheduler(threads[-1], os.SCHED_FIFO, os.sched_param(20))


def measure(o, r, folder, flags, keys):
    """p50 and p99 in us, pushed rows a second."""
    out, pushed = r.scratch / "reads.jsonl", r.scratch / "pushes.jsonl"
    for path in (out, pushed):
        path.unlink(missing_ok=True)
    bench = [o.bin / "psbench"]
    o.bin, here = folder, o.bin
    with r.psd("--data-dir", r.scratch / f"data{time.monotonic_ns()}") as server:
        psd = r.running[-1]
        o.bin = here
        common = ["--server", server, "--rows", ROWS]
        fill = r.start([*bench, "pull", *common, "--seconds", 0.2, "--warmup", 0.1], stdout=subprocess.DEVNULL)
        r.finish(fill, "psbench", r.scratch / "psd.log")
        give_core(psd.pid, o.realtime)
        load = None
        if flags:
            load = r.start([*bench, *flags, *common, "--no-fill", "--seconds", o.seconds + 1, "--warmup", 0.2, "--json", pushed],
                           stdout=subprocess.DEVNULL)
            time.sleep(0.4)
        reader = r.start([*bench, "pull", "--reader", *common, "--connections", 1, "--depth", 1, "--keys-per-request", keys, "--pause-us",
                          2000, "--seconds", o.seconds, "--warmup", 0.3, "--json", out],
                         ["chrt", "-f", "30"] if o.realtime else [], stdout=subprocess.DEVNULL)
        r.finish(reader, "psbench", r.scratch / "psd.log")
        if load:
            r.finish(load, "psbench", r.scratch / "psd.log")
    got = json.loads(out.read_text())
    return got["p50_us"], got["p99_us"], json.loads(pushed.read_text())["rows_per_s"] if load else 0


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("bin", type=pathlib.Path, help="the folder of psd and psbench")
    p.add_argument("--before", type=pathlib.Path, metavar="BIN", help="the folder of another psd, to compare with")
    p.add_argument("--realtime", action="store_true", help="the reader and the shard go before all other programs (root)")
    p.add_argument("--quick", action="store_true", help="does it all run?")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=2)
    o = p.parse_args()
    o.bin, o.cpus = o.bin.resolve(), "1"
    if o.quick:
        o.rounds, o.seconds = 1, 0.3
    folders = [o.before.resolve(), o.bin] if o.before else [o.bin]
    rows = []
    with rig.Rig(o) as r:
        for name, flags in LOADS:
            for keys in KEYS:
                got = {folder: [] for folder in folders}
                for round_ in range(o.rounds):
                    for folder in folders if round_ % 2 else folders[::-1]:
                        got[folder].append(measure(o, r, folder, flags, keys))
                medians = [[statistics.median(figures) for figures in zip(*got[folder])] for folder in folders]
                row = [name, f"{keys:,}"]
                for p50, p99, pushed in medians:
                    row += [f"{p50:,.0f}", f"{p99:,.0f}", f"{pushed / 1e6:.2f}" if flags else "-"]
                if o.before:
                    row.append(f"{medians[0][1] / medians[1][1]:.1f}")
                rows.append(row)
                rig.note(" | ".join(row))
    head = ["p50 us", "p99 us", "M rows/s pushed"]
    rig.table(["beside it", "keys", *(f"{w}, before" for w in head), *head, "p99, before / now"] if o.before else
              ["beside it", "keys", *head], rows)


if __name__ == "__main__":
    rig.run(main)

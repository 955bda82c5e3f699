#!/usr/bin/python3
"""What durability costs: the log, checkpoints under load, deltas, and a start after kill -9.

    tests/bench/durable.py build/release/bin            # about five minutes, 4 GiB of memory, 4 GiB of disk in --scratch
    tests/bench/durable.py build/release/bin --quick    # half a minute, small tables: does it all run?

One shard, one client, both cores are everybody's. Ratios are of medians of rounds in turn. Prints markdown; --json FILE has all lines.
"""
import argparse
import contextlib
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
import time

import rig

READY = re.compile(r"psd ready: listening on (\S+), http (\S+),")
LOAD = ["--dim", "16", "--optimizer", "rowwise_adagrad"]
MODES = ["off", "none", "async", "fsync"]
PARTS = ["log", "checkpoints", "restart", "delta"]


class Rig:
    def __init__(self, options, scratch):
        self.o, self.scratch, self.lines = options, scratch, []
        self.rows = 200_000 if options.quick else 10_000_000
        self.seconds = 1 if options.quick else 5

    @contextlib.contextmanager
    def psd(self, *flags, data=None, shards=1):
        """self.took_s: from the start of the process to its first word that it serves."""
        log = self.scratch / "psd.log"
        begin = time.monotonic()
        with open(log, "w") as out:
            psd = subprocess.Popen([self.o.bin / "psd", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--shards", str(shards),
                                    "--data-dir", data or "", *flags], stderr=out)
        try:
            while not (match := READY.search(log.read_text())):
                if psd.poll() is not None:
                    raise rig.Trouble(log.read_text())
                time.sleep(0.005)
            self.took_s = time.monotonic() - begin
            self.server = match[1]
            yield psd
        finally:
            psd.kill()
            psd.wait()

    def bench(self, *flags, name):
        """One line of psbench."""
        path = self.scratch / "bench.jsonl"
        path.unlink(missing_ok=True)
        subprocess.run([self.o.bin / "psbench", *flags, "--server", self.server, "--json", path], check=True, stdout=subprocess.DEVNULL)
        line = json.loads(path.read_text().splitlines()[-1])
        self.lines.append({"case": name, **line})
        return line

    def checkpoint(self):
        """{number, base, rows, bytes, ms}"""
        out = subprocess.run([self.o.bin / "psctl", "--server", self.server, "checkpoint", "--json"], check=True, stdout=subprocess.PIPE,
                             text=True).stdout
        return json.loads(out)

    @contextlib.contextmanager
    def checkpoints(self, n):
        """One after the other while the block runs."""
        loop = subprocess.Popen(["sh", "-c", f"for i in $(seq {n}); do {self.o.bin}/psctl --server {self.server} checkpoint || exit; done"],
                                stdout=subprocess.DEVNULL)
        try:
            yield
        finally:
            loop.kill()
            loop.wait()


def field(line, *names):
    for name in names:
        if name in line:
            return line[name]
    raise rig.Trouble(f"psbench's line has none of {names}: {sorted(line)}")


def rows_per_s(line):
    return field(line, "rows_per_s")


def measure_log(r):
    got = {mode: [] for mode in MODES}
    for _ in range(1 if r.o.quick else 4):
        for mode in MODES:
            data = r.scratch / f"log-{mode}"
            flags = [] if mode == "off" else ["--durability", mode]
            with r.psd(*flags, data=None if mode == "off" else data):
                line = r.bench("push", *LOAD, "--rows", str(min(r.rows, 1_000_000)), "--codec", r.o.codec, "--seconds", str(r.seconds),
                               name=f"log {mode}")
            got[mode].append(rows_per_s(line))
            shutil.rmtree(data, ignore_errors=True)
    median = {mode: statistics.median(got[mode]) for mode in MODES}
    rig.say(f"Pushes of 1,000 keys, {r.o.codec}, closed loop:")
    rig.say()
    rig.table(["durability", "M rows/s", "against no log"],
              [[m, f"{median[m] / 1e6:.2f}", f"{median[m] / median['off']:.2f}"] for m in MODES])


def measure_checkpoints(r):
    data = r.scratch / "data"
    with r.psd("--checkpoint-deltas", "0", "--keep", "1", "--log-max", "100G", data=data) as psd:
        r.bench("push", *LOAD, "--rows", str(r.rows), "--seconds", "1", name="fill")
        full = r.checkpoint()
        base = ["mix", *LOAD, "--rows", str(r.rows), "--no-fill", "--codec", r.o.codec]
        plain, busy = [], []
        for _ in range(1 if r.o.quick else 3):
            plain.append(r.bench(*base, "--seconds", str(r.seconds), name="normal"))
            with r.checkpoints(100):
                busy.append(r.bench(*base, "--seconds", str(r.seconds), name="checkpoint under way"))
        rate = statistics.median(map(rows_per_s, plain)) / 1000 / 2
        tails = {"normal": [], "checkpoint": []}
        for _ in range(1 if r.o.quick else 3):
            tails["normal"].append(r.bench(*base, "--rate", f"{rate:.0f}", "--seconds", str(r.seconds), name="open loop"))
            with r.checkpoints(100):
                tails["checkpoint"].append(r.bench(*base, "--rate", f"{rate:.0f}", "--seconds", str(r.seconds),
                                                   name="open loop, checkpoint"))
        again = r.checkpoint()
    ratio = statistics.median(map(rows_per_s, busy)) / statistics.median(map(rows_per_s, plain))
    rig.say(f"{r.rows / 1e6:.1f} M rows, a checkpoint of {full['bytes'] / 1e6:.0f} MB in {again['ms'] / 1e3:.1f} s; pulls and pushes of 1,000 keys:")
    rig.say()
    rig.table(["", "normal", "while checkpoints are written"],
              [["throughput, closed loop", "1", f"{ratio:.2f}"]] +
              [[f"{q}, ms, open loop at half of it"] +
               [f"{statistics.median(field(t, f'{q}_us') for t in tails[k]) / 1e3:.2f}" for k in ("normal", "checkpoint")]
               for q in ("p50", "p99", "p999")])
    shutil.rmtree(data)


def measure_restart(r):
    """Starts after kill -9; the files are in the page cache."""
    table = []
    for shards in (1, 2):
        data = r.scratch / f"restart-{shards}"
        with r.psd(data=data, shards=shards) as psd:
            r.bench("push", *LOAD, "--rows", str(r.rows), "--seconds", "1", name="fill")
            psd.terminate()
            psd.wait()
        size = sum(f.stat().st_size for f in data.glob("checkpoints/*/*.psc"))
        took = []
        for _ in range(1 if r.o.quick else 7):
            with r.psd(data=data, shards=shards):
                took.append(r.took_s)
        table.append([shards, f"{size / 1e6:.0f}", f"{statistics.median(took):.2f} ({min(took):.2f} to {max(took):.2f})",
                      f"{size / statistics.median(took) / 1e9:.2f}"])
        r.lines.append({"case": "restart", "shards": shards, "bytes": size, "seconds": took})
        shutil.rmtree(data)
    rig.say("From the start of the process to serving:")
    rig.say()
    rig.table(["shards, a core each", "checkpoint, MB", "seconds", "GB/s"], table)


def measure_delta(r):
    data = r.scratch / "delta"
    with r.psd("--log-max", "100G", data=data):
        r.bench("push", *LOAD, "--rows", str(r.rows), "--seconds", "1", name="fill")
        full = r.checkpoint()
        r.bench("push", *LOAD, "--rows", str(r.rows), "--no-fill", "--rate", f"{max(20, r.rows // 100_000)}", "--seconds", "1", "--warmup", "0",
                name="1 % of the rows")
        delta = r.checkpoint()
    rig.say(f"Delta after pushes of {100 * delta['rows'] / full['rows']:.1f} % of the rows: {delta['bytes'] / 1e6:.1f} MB against "
            f"{full['bytes'] / 1e6:.0f} MB, 1/{full['bytes'] / delta['bytes']:.0f}; for each share of rows changed "
            f"{delta['bytes'] / full['bytes'] / (delta['rows'] / full['rows']):.2f} of it in bytes")
    rig.say()
    r.lines.append({"case": "delta", "full": full, "delta": delta})


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("bin", type=pathlib.Path)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--codec", default="int8", help="of pulls and pushes [%(default)s]")
    p.add_argument("--scratch", type=pathlib.Path, help="a folder on the disk that is to be measured [a new one]")
    p.add_argument("--json", type=pathlib.Path, default=rig.ROOT / "build/bench/durable.jsonl")
    p.add_argument("--part", action="append", choices=PARTS, help="[all]")
    o = p.parse_args()
    o.bin = o.bin.resolve()
    parts = o.part or PARTS
    with tempfile.TemporaryDirectory(dir=o.scratch) as scratch:
        r = Rig(o, pathlib.Path(scratch))
        if "log" in parts:
            measure_log(r)
        if "checkpoints" in parts:
            measure_checkpoints(r)
        if "restart" in parts:
            measure_restart(r)
        if "delta" in parts:
            measure_delta(r)
        rig.write_lines(o.json, r.lines)


if __name__ == "__main__":
    rig.run(main)

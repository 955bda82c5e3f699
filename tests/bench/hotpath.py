#!/usr/bin/python3
"""The figures of deploy/docs/benchmarks.md, "The hot path": one shard on one core, psbench on another.

    tests/bench/hotpath.py build/release/bin                    # about twelve minutes, 14 GiB of memory
    tests/bench/hotpath.py build/release/bin --quick            # under two minutes, small tables: does it all run?
    tests/bench/hotpath.py build/release/bin --json FILE        # also everything that was measured

Starts every psd itself, with nothing kept on disk, and prints markdown.
"""

import argparse
import contextlib
import datetime
import json
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

READY = re.compile(r"psd ready: listening on (\S+), http (\S+),")
RESERVED = re.compile(r"(\S+) GiB of memory reserved in (\S+) s")
KEYS = [1000, 10000, 50000]
CODECS = ["fp32", "int8"]
TABLE = ["--optimizer", "rowwise_adagrad", "--storage", "fp32"]
GROW_DIM = 64
STATE_FLOATS = 1  # of row-wise Adagrad
ROW_BYTES = 24  # beyond weights and state
SLABS_BYTES = 160 << 20  # of which little may be used: the newest of rows and of index lines
NETSTAT = ["TCPLossProbes", "DelayedACKLost"]  # TCP waited for something that was late
PARTS = ["limits", "loops", "growth", "local"]
TAILS = ["p50_us", "p99_us", "p999_us"]


def say(line=""):
    print(line, flush=True)


def table(head, rows):
    say("| " + " | ".join(head) + " |")
    say("|" + " --- |" * len(head))
    for row in rows:
        say("| " + " | ".join(row) + " |")
    say()


def netstat():
    """The kernel's counters, of all its connections."""
    with open("/proc/net/netstat") as f:
        lines = [line.split() for line in f if line.startswith("TcpExt:")]
    counters = dict(zip(*lines))
    return {name: int(counters[name]) for name in NETSTAT}


class Bench:
    def __init__(self, options):
        self.options = options
        self.scratch = pathlib.Path(options.scratch)
        self.lines = []

    @contextlib.contextmanager
    def psd(self, *flags):
        """A fresh one, on the server's core."""
        o = self.options
        with open(self.scratch / "psd.log", "w+") as log:
            psd = subprocess.Popen(
                ["taskset", "-c", o.server_cpu, f"{o.bin}/psd", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                 "--shards", "1", "--data-dir", "", *flags], stderr=log)
            try:
                while not (match := READY.search((self.scratch / "psd.log").read_text())):
                    if psd.poll() is not None:
                        sys.exit((self.scratch / "psd.log").read_text())
                    time.sleep(0.05)
                self.server, self.http = match[1], match[2]
                yield psd.pid
            finally:
                psd.terminate()
                psd.wait()

    def psbench(self, *args):
        """One JSON object for each case."""
        o = self.options
        out = self.scratch / "psbench.jsonl"
        out.write_text("")
        command = [f"{o.bin}/psbench", *map(str, args), "--json", str(out)]
        if args[0] != "local":
            command += ["--server", self.server, "--server-cpu", o.server_cpu, "--client-cpu", o.client_cpu]
        if subprocess.run(command, stdout=sys.stderr).returncode:
            sys.exit(" ".join(command))
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        self.lines += lines
        return lines

    def overhead(self, dim):
        """Bytes held for a row beyond its weights and state, by psd's own count."""
        asked = time.monotonic()
        while True:
            with urllib.request.urlopen(f"http://{self.http}/stats", timeout=10) as page:
                stats = json.load(page)
            if stats["shards"][0]["report_age_ms"] < 1000 * (time.monotonic() - asked):  # it was made after what is measured
                break
            time.sleep(0.05)  # reports are made a few times a second
        totals = stats["totals"]
        return totals["bytes"] / totals["rows"] - 4 * (dim + STATE_FLOATS), totals["rows"]


    def grow(self):
        o = self.options
        (case,) = self.psbench("grow", "--dim", GROW_DIM, "--rows", o.grow_rows, "--connections", 1, "--depth", 1, *TABLE)
        return case

    def growths(self):
        """With memory that the kernel, and a virtual machine's host, find as the table grows; then with memory that psd has from the start."""
        o = self.options
        with self.psd():
            as_found = self.grow()
        bytes_wanted = o.grow_rows * (4 * (GROW_DIM + STATE_FLOATS) + ROW_BYTES) * 1.1 + SLABS_BYTES
        with self.psd("--memory-reserve", f"{bytes_wanted / 2**20:.0f}M"):
            gib, seconds = map(float, RESERVED.search((self.scratch / "psd.log").read_text()).groups())
            reserved = self.grow()
        return {"as_found": as_found, "reserved": reserved, "reserve": {"gib": gib, "seconds": seconds}}


def limits_of_dim(bench, dim):
    o = bench.options
    return bench.psbench("pull,push", "--dim", dim, "--rows", o.rows, "--codec", ",".join(CODECS),
                         "--keys-per-request", ",".join(map(str, o.keys)), "--seconds", o.seconds, "--warmup", 0.2,
                         "--limits", "--rounds", o.rounds, *TABLE)


def peak_of(load, keys, limits):
    return next(case["limits"]["actual_rows_per_s"]["median"] for case in limits
                if case["load"] == load and case["codec"] == "fp32" and case["keys_per_request"] == keys)


def open_loops_of_dim(bench, dim, limits):
    """Half of the measured peak of 1,000 keys, fp32, or the rate that was asked for; each several times, in turn, with the kernel's
    counters of each run."""
    o = bench.options
    keys, fill = o.keys[0], [] if not limits else ["--no-fill"]
    runs = {"pull": [], "push": []}
    for _ in range(o.loops):
        for load in runs:
            rate = o.open_rate or peak_of(load, keys, limits) / keys / 2
            before = netstat()
            (run,) = bench.psbench(load, "--dim", dim, "--rows", o.rows, *fill, "--keys-per-request", keys, "--rate", rate,
                                   "--seconds", o.loop_seconds, "--warmup", 0.3, *TABLE)
            run["netstat"] = {name: count - before[name] for name, count in netstat().items()}
            runs[load].append(run)
            fill = ["--no-fill"]
    return list(runs.values())


def millions(value):
    """None: psbench could not measure it."""
    return "-" if value is None else f"{value / 1e6:.2f}"


def ratio_of(ratio):
    return "-" if ratio["median"] is None else f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"


def show_limits(cases):
    say("## Actual against the serial limit 1 / (1/a + 1/b)")
    say()
    say("M rows/s; a: the same bytes between bare libuv sockets; b: the same operations on a bare table in one thread.")
    say("Waiting: what psbench does while it has nothing to do, then what both ends of a do; of each, the better in a try.")
    say()

    def row(case):
        limits = case["limits"]
        m = [millions(limits[name]["median"]) for name in
             ["actual_rows_per_s", "wire_rows_per_s", "table_rows_per_s", "serial_rows_per_s"]]
        ratio = limits["ratio"]
        cpu = case["server_cpu_s_per_million_rows"]
        return [case["load"], str(case["dim"]), f"{case['keys_per_request']:,}", case["codec"],
                f"{case['connections']} x {case['depth']}",
                ", ".join("spins" if spins else "sleeps" for spins in [case["client_spins"], limits["wire_spins"]]), *m,
                ratio_of(ratio), f"{cpu:.3f}" if cpu else "-"]

    table(["load", "dim", "keys", "codec", "in flight", "waiting", "actual", "a", "b", "serial limit", "actual / limit",
           "server CPU s / M rows"], [row(case) for case in cases])


def spread(values):
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def show_open_loops(cases):
    say("## Open loop, Poisson arrivals")
    say()
    say(f"Medians of {len(cases[0])} runs, least and most; beside them what the kernel counted in each run, over all connections of "
        "the machine.")
    say()
    table(["load", "dim", "keys", "requests/s", "p50 us", "p99 us", "p99.9 us", "worst us", "sent late, p99 us", *NETSTAT],
          [[runs[0]["load"], str(runs[0]["dim"]), f"{runs[0]['keys_per_request']:,}",
            f"{statistics.median(run['requests_per_s'] for run in runs):.0f}",
            *(spread([run[name] for run in runs]) for name in [*TAILS, "max_us", "late_p99_us"]),
            *(" ".join(str(run["netstat"][name]) for run in runs) for name in NETSTAT)] for runs in cases])
    say("p99 of each run, us, and TCPLossProbes + DelayedACKLost in it:")
    say()
    table(["load", "dim", "runs from the best p99 to the worst"],
          [[runs[0]["load"], str(runs[0]["dim"]),
            ", ".join(f"{run['p99_us']:.0f} ({sum(run['netstat'].values())})" for run in sorted(runs, key=lambda r: r["p99_us"]))]
           for runs in cases])


def show_growths(growths):
    case, reserve = growths["as_found"], growths["reserve"]
    say(f"## Growth from nothing to {case['rows']:,} rows, dim {case['dim']}, {case['keys_per_request']:,} keys a push")
    say()
    names = [*TAILS, "max_us", "worst_beyond_median_us"]
    kinds = {"new": "a push of new rows", "again": "the same rows once more",
             "server_cpu_new": "server CPU time, new rows", "server_cpu_again": "server CPU time, once more"}
    ways = {"as_found": "as found", "reserved": "reserved"}
    table(["memory", "", "p50 us", "p99 us", "p99.9 us", "worst us", "worst beyond the median us"],
          [[way, text] + [f"{growths[key]['grow'][kind][name]:.0f}" for name in names]
           for key, way in ways.items() for kind, text in kinds.items() if kind in growths[key]["grow"]])
    for key, way in ways.items():
        worst = ", ".join(f"{w['us']:.0f} us at {w['rows_before'] / 1e6:.2f} M" for w in growths[key]["grow"]["worst"][:4])
        say(f"The slowest, {way}: {worst}.")
    say(f"{reserve['gib']} GiB were reserved in {reserve['seconds']} s.")
    say()


def show_local(cases):
    say("## Shards in one process, no sockets")
    say()
    table(["load", "dim", "shards", "M rows/s", "x"],
          [[case["load"], str(case["dim"]), str(n["threads"]), f"{n['rows_per_s']['median'] / 1e6:.2f}",
            f"{n['ratio']['median']:.2f} ({n['ratio']['min']:.2f} to {n['ratio']['max']:.2f})"]
           for case in cases for n in case["threads"]])


def read_options():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("bin", help="the folder of psd and psbench")
    p.add_argument("--quick", action="store_true", help="small tables, short rounds: a smoke test")
    p.add_argument("--json", metavar="FILE", help="write everything that was measured")
    p.add_argument("--rows", type=int, default=10_000_000, help="resident in the table [%(default)s]")
    p.add_argument("--grow-rows", type=int, default=20_000_000, help="of the table that grows [%(default)s]")
    p.add_argument("--local-rows", type=int, default=4_000_000, help="over all shards, without sockets [%(default)s]")
    p.add_argument("--seconds", type=float, default=0.7, help="of each measurement [%(default)s]")
    p.add_argument("--rounds", type=int, default=3, help="of which the median counts [%(default)s]")
    p.add_argument("--loops", type=int, default=7, help="runs of each open loop [%(default)s]")
    p.add_argument("--loop-seconds", type=float, default=2, help="of each of them [%(default)s]")
    p.add_argument("--dims", default="16,64", help="[%(default)s]")
    p.add_argument("--parts", default=",".join(PARTS), help="[%(default)s]")
    p.add_argument("--open-rate", type=float, default=0,
                   help="requests/s of the open loops; 0: half of the peak that limits found [%(default)s]")
    p.add_argument("--server-cpu", default="0", help="psd's core [%(default)s]")
    p.add_argument("--client-cpu", default="1", help="psbench's core [%(default)s]")
    o = p.parse_args()
    o.keys, o.parts = KEYS, o.parts.split(",")
    strange = set(o.parts) - set(PARTS)
    if strange:
        p.error(f"--parts: found {strange.pop()}, expected {','.join(PARTS)}")
    if "loops" in o.parts and "limits" not in o.parts and not o.open_rate:
        p.error("--parts: loops without limits need --open-rate")
    o.dims = [int(dim) for dim in o.dims.split(",")]
    if o.quick:
        o.loops, o.loop_seconds = 2, 0.3
        o.rows, o.grow_rows, o.local_rows, o.seconds, o.rounds, o.keys = 200_000, 300_000, 200_000, 0.2, 1, KEYS[:2]
    return o


def machine():
    with open("/proc/cpuinfo") as f:
        cpus = [line.split(":")[1].strip() for line in f if line.startswith("model name")]
    return {"cpu": cpus[0] if cpus else platform.processor(), "cores": len(cpus), "kernel": platform.release(),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")}


def measure(bench):
    """Of the parts that were asked for."""
    o, found = bench.options, {}
    for dim in o.dims if {"limits", "loops"} & set(o.parts) else []:
        with bench.psd():
            limits = limits_of_dim(bench, dim) if "limits" in o.parts else []
            found.setdefault("limits", []).extend(limits)
            if "loops" in o.parts:
                found.setdefault("open_loops", []).extend(open_loops_of_dim(bench, dim, limits))
            found.setdefault("overheads", []).append((dim, *bench.overhead(dim)))
    if "growth" in o.parts:
        found["growths"] = bench.growths()
    if "local" in o.parts:
        found["local"] = bench.psbench("local", "pull,push", "--dim", 64, "--rows", o.local_rows, "--seconds", o.seconds,
                                       "--rounds", o.rounds, "--threads", "1,2", *TABLE)
    return found


def main():
    o = read_options()
    with tempfile.TemporaryDirectory() as scratch:
        o.scratch = scratch
        found = measure(Bench(o))
    about = {**machine(), "rows": o.rows, "server_cpu": o.server_cpu, "client_cpu": o.client_cpu}
    say(", ".join(f"{name} {value}" for name, value in about.items()))
    say()
    shows = {"limits": show_limits, "open_loops": show_open_loops, "growths": show_growths, "local": show_local}
    for name, show in shows.items():
        if found.get(name):
            show(found[name])
    for dim, n_bytes, rows in found.get("overheads", []):
        say(f"Dim {dim}: {n_bytes:.1f} bytes a row beyond weights and state, at {rows:,} rows.")
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps({**about, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

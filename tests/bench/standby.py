#!/usr/bin/python3
"""What a standby costs its primary, how it keeps up, how long its copy takes, and how an old primary comes back.

    tests/bench/standby.py build/release/bin                          # 6 minutes; also: make bench-standby
    tests/bench/standby.py build/release/bin --parts push,copy --seconds 20 --dir /dev/shm

push    one shard takes all that psbench pushes, without a standby and with one in sync, in turn. Both psd compute: where they share
        cores, rows for each CPU second of the primary tell more than rows/s. The replies of a slow open loop show the way to the standby.
follow  the standby's CPU for each row beside the primary's, and its lag while pushes come at half the speed of `push`.
join    a standby is added while psbench pushes at full speed: how long until it is in sync.
copy    a checkpoint goes to a new standby while psbench pulls in an open loop, and the same pulls without it, in turn. The standby runs at
        SCHED_IDLE, as it has a machine of its own elsewhere.
return  kill -9 of the primary under pushes and checkpoints, promotion, and the old one's return: how many have to copy.

Prints markdown and appends JSON lines. Nothing here passes or fails.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import rig

sys.path[:0] = [str(rig.ROOT / "tests" / folder) for folder in ("system", "ha")]

PARTS = ["push", "follow", "join", "copy", "return"]
WAIT_S = 120
STAMP = re.compile(r"^(\S+)Z (?:info |warn |error) (.*)$")


def wait_for(what, condition, every=0.05):
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise rig.Trouble(f"{what} did not happen within {WAIT_S} s")
        time.sleep(every)


def yields_its_cores():
    """A standby has a machine of its own: here it runs on what the others leave of the cores."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class Psd:
    """One psd of a pair; its log is in its folder."""

    def __init__(self, args, folder, port, *flags, yields=False):
        self.folder, self.address, self.log = folder, f"127.0.0.1:{port}", folder / "psd.log"
        folder.mkdir(parents=True, exist_ok=True)
        with open(self.log, "a", encoding="utf-8") as log:
            self.proc = subprocess.Popen(
                [args.bin / "psd", "--listen", self.address, "--http", "127.0.0.1:0", "--shards", "1", "--data-dir", folder / "data",
                 *flags], stdout=log, stderr=log, preexec_fn=yields_its_cores if yields else None)
        self.args = args

    def says(self, words):
        return words in self.log.read_text()

    def at(self, words):
        """When the log first said so, in seconds."""
        for line in self.log.read_text().splitlines():
            found = STAMP.match(line)
            if found and words in found[2]:
                clock = found[1].split("T")[1].split(":")
                return int(clock[0]) * 3600 + int(clock[1]) * 60 + float(clock[2])
        raise rig.Trouble(f"{self.log} does not say: {words}")

    def psctl(self, *words):
        return subprocess.run([self.args.bin / "psctl", *words, "--server", self.address], capture_output=True, text=True, check=False)

    def replication(self):
        said = self.psctl("status", "--json")
        return {} if said.returncode else json.loads(said.stdout).get("replication", {})

    def lag_ms(self):
        http = re.search(r"http (127\.0\.0\.1:\d+)", self.log.read_text())[1]
        with urllib.request.urlopen(f"http://{http}/stats", timeout=5) as answer:
            return json.load(answer)["replication"]["standby_lag_ms"]

    def cpu_s(self):
        """Of all threads, also those that have ended."""
        fields = pathlib.Path(f"/proc/{self.proc.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def shard_s(self):
        """CPU of the thread that has computed most: the shard's."""
        used = [int(path.read_text().split()[0]) for path in pathlib.Path(f"/proc/{self.proc.pid}/task").glob("*/schedstat")]
        return max(used) / 1e9

    def end(self):
        if self.proc.poll() is None:
            self.proc.kill()
            self.proc.wait()


@contextlib.contextmanager
def primary(args, *flags):
    from training import free_ports
    with tempfile.TemporaryDirectory(prefix="psd-standby-", dir=args.dir) as folder:
        psd = Psd(args, pathlib.Path(folder) / "a", free_ports(1)[0], *flags)
        standbys = []

        def join(yields=False):
            folder_of_it = pathlib.Path(folder) / f"b{len(standbys)}"
            standbys.append(Psd(args, folder_of_it, free_ports(1)[0], "--standby", psd.address, *flags, yields=yields))
            return standbys[-1]

        try:
            wait_for("psd's start", lambda: psd.says("psd ready: "))
            yield psd, join
        finally:
            for one in (psd, *standbys):
                one.end()


def bench(args, psd, *words, beside=None):
    """One run of psbench, as its JSON says; beside(): what goes on meanwhile."""
    out = psd.folder / "bench.jsonl"
    out.unlink(missing_ok=True)
    words = [str(word) for word in words]
    proc = subprocess.Popen([args.bin / "psbench", *words, "--server", psd.address, "--json", out], stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)
    try:
        if beside:
            beside(proc)
        _, said = proc.communicate(timeout=WAIT_S + 600)
    finally:
        proc.kill()
        proc.wait()
    if proc.returncode:
        raise rig.Trouble(f"psbench {' '.join(words)}: {said.strip()[-300:]}")
    return json.loads(out.read_text().splitlines()[-1])


def in_sync(psd):
    wait_for("a standby in sync", lambda: psd.replication().get("in_sync"), 0.2)


def load(args):
    return ["--seconds", args.seconds, "--warmup", 1, "--dim", 16, "--rows", args.rows]


def pushed(args, psd, standby):
    """Rows/s, and rows for each CPU second of both; the latency at a twentieth of the speed."""
    before, cpu, shard = psd.cpu_s(), standby and standby.cpu_s(), psd.shard_s()
    full = bench(args, psd, "push", *load(args), "--no-fill")
    shard = psd.shard_s() - shard
    n_rows = full["rows_per_s"] * (full["seconds"] + 1)
    slow = bench(args, psd, "push", *load(args), "--no-fill", "--keys-per-request", 100, "--rate", 200)
    return {"rows_per_s": full["rows_per_s"], "cpu_s_per_m_rows": full["server_cpu_s_per_million_rows"], "p50_us": slow["p50_us"],
            "p99_us": slow["p99_us"], "shard_s_per_m_rows": shard / n_rows * 1e6, "primary_s": psd.cpu_s() - before,
                "standby_s": standby and standby.cpu_s() - cpu, "n_rows": n_rows}


def part_push(args, say):
    cases = {"alone": [], "got": []}
    for _ in range(args.rounds):
        for name, runs in cases.items():
            with primary(args) as (psd, join):
                standby = None
                bench(args, psd, "push", "--seconds", 0.2, "--warmup", 0, "--dim", 16, "--rows", args.rows)  # fills the table
                if name == "got":
                    standby = join()
                    in_sync(psd)
                runs.append(pushed(args, psd, standby))
                say({"part": "push", "case": name, **runs[-1]})
    med = {name: {k: statistics.median(r[k] for r in runs) for k in ("rows_per_s", "cpu_s_per_m_rows",
        "shard_s_per_m_rows", "p50_us", "p99_us")}
           for name, runs in cases.items()}
    a, b = med["alone"], med["got"]
    rig.table(["push, 1,000 keys, dim 16", "alone", "with a standby, got", "got : alone"], [
        ["rows/s", f"{a['rows_per_s']:,.0f}", f"{b['rows_per_s']:,.0f}", f"{b['rows_per_s'] / a['rows_per_s']:.2f}"],
        ["rows for a CPU second of the primary", f"{1e6 / a['cpu_s_per_m_rows']:,.0f}", f"{1e6 / b['cpu_s_per_m_rows']:,.0f}",
         f"{a['cpu_s_per_m_rows'] / b['cpu_s_per_m_rows']:.2f}"],
        ["rows for a CPU second of its shard's thread", f"{1e6 / a['shard_s_per_m_rows']:,.0f}", f"{1e6 / b['shard_s_per_m_rows']:,.0f}",
         f"{a['shard_s_per_m_rows'] / b['shard_s_per_m_rows']:.2f}"],
        ["reply p50, 200 pushes/s", f"{a['p50_us']:.0f} us", f"{b['p50_us']:.0f} us", f"+ {(b['p50_us'] - a['p50_us']) / 1e3:.2f} ms"]])
    both = [r["primary_s"] / r["standby_s"] for r in cases["got"] if r["standby_s"]]
    rig.say(f"CPU seconds of the primary : of the standby, for the same rows: {statistics.median(both):.2f}\n")
    return a["rows_per_s"]


def part_follow(args, say, speed):
    lags = []

    def note_lags(psd, proc):
        while proc.poll() is None:
            lags.append(psd.lag_ms())
            time.sleep(0.02)

    with primary(args) as (psd, join):
        bench(args, psd, "push", "--seconds", 0.2, "--warmup", 0, "--dim", 16, "--rows", args.rows)
        join()
        in_sync(psd)
        run = bench(args, psd, "push", *load(args), "--no-fill", "--rate", speed / 2 / 1000, beside=lambda proc: note_lags(psd, proc))
    lags.sort()
    p99 = lags[len(lags) * 99 // 100]
    say({"part": "follow", "rows_per_s": run["rows_per_s"], "n_samples": len(lags), "lag_p50_ms": statistics.median(lags), "lag_p99_ms": p99})
    rig.table(["follow", "rows/s", "lag p50", "lag p99"],
              [["half load", f"{run['rows_per_s']:,.0f}", f"{statistics.median(lags):.0f} ms", f"{p99:.0f} ms"]])


def part_join(args, say):
    found = {}

    def beside(psd, join, proc):
        time.sleep(args.seconds / 2)
        if psd.psctl("checkpoint").returncode:
            raise rig.Trouble("the checkpoint was not written")
        began = time.monotonic()
        standby = join()
        wait_for("a standby that follows", lambda: standby.says("following "), 0.1)
        found["follows_s"] = time.monotonic() - began
        in_sync(psd)
        found["in_sync_s"] = time.monotonic() - began
        proc.terminate()
        found["slowed"] = psd.says("pushes are slowed down")

    with primary(args) as (psd, join):
        with contextlib.suppress(rig.Trouble):
            bench(args, psd, "push", *load(args)[2:], "--seconds", WAIT_S * 2, beside=lambda proc: beside(psd, join, proc))
    if "in_sync_s" not in found:
        raise rig.Trouble(f"a standby that joined under full load was not in sync within {WAIT_S} s")
    say({"part": "join", **found})
    rig.table(["join under full load", "follows after", "in sync after", "pushes were slowed down"],
              [["", f"{found['follows_s']:.1f} s", f"{found['in_sync_s']:.1f} s", "yes" if found["slowed"] else "no"]])


def part_copy(args, say):
    pulls = ["pull", "--dim", 64, "--rows", args.copy_rows, "--seconds", args.seconds, "--rate", args.pulls, "--keys-per-request", 100]
    speeds, alone, copied = [], [], []

    def copies(psd, join, proc):
        while proc.poll() is None:
            standby = join(yields=True)
            wait_for("a copy", lambda: standby.says(" bytes in ") or proc.poll() is not None)
            if standby.says(" bytes in "):
                n = int(re.search(r"copied (\d+) bytes", standby.log.read_text())[1])
                seconds = standby.at(" bytes in ") - standby.at("has to be copied")
                speeds.append(n / seconds / 1e6)
            standby.end()
            wait_for("the standby's end", lambda: psd.replication().get("state") != "standby copies")

    with primary(args) as (psd, join):
        bench(args, psd, "pull", *pulls[1:5], "--seconds", 0.2, "--warmup", 0)
        if psd.psctl("checkpoint").returncode:
            raise rig.Trouble("the checkpoint was not written")
        for _ in range(args.rounds):
            alone.append(bench(args, psd, *pulls, "--no-fill")["p999_us"])
            copied.append(bench(args, psd, *pulls, "--no-fill", beside=lambda proc: copies(psd, join, proc))["p999_us"])
    if not speeds:
        raise rig.Trouble("no copy was done in time: --seconds")
    say({"part": "copy", "mb_per_s": speeds, "alone_p999_us": alone, "copied_p999_us": copied})
    rig.table(["copy beside pulls", "copies", "MB/s", "pulls p99.9 alone", "beside copies"],
              [["", len(speeds), f"{statistics.median(speeds):.0f}", *(f"{statistics.median(us) / 1e3:.2f} ms" for us in (alone, copied))]])


def part_return(args, say):
    os.environ["PS_BIN"] = str(args.bin.resolve())
    import counting
    import pair as pairs
    n_copies = lambda p: sum(m.log.read_text().count("has to be copied") for m in (p.primary, p.standby))
    pairs.wait_for = lambda what, condition, *_: wait_for(what, condition)
    returned, copied = 0, 0
    with tempfile.TemporaryDirectory(prefix="psd-return-", dir=args.dir) as folder:
        folder = pathlib.Path(folder)
        p = pairs.Pair(folder / "pair", "--checkpoint-every", args.checkpoint_every, "--durability", args.durability)
        counters = [counting.Counter(folder, p.servers, mode) for mode in ("async", "ssp", "bsp")]
        try:
            for _ in range(args.rounds_of_return):
                p.await_in_sync()
                time.sleep(args.between)  # pushes and checkpoints
                before = n_copies(p)
                p.fail_over()
                p.standby.start("--standby", p.primary.address)
                p.await_in_sync()
                returned += 1
                copied += n_copies(p) > before
            counts = [counter.ask("stop") for counter in counters]
        finally:
            for counter in counters:
                counter.close()
            p.end()
    exact = all(c["lowest"] == c["highest"] == c["pushed"] for c in counts)
    say({"part": "return", "durability": args.durability, "returned": returned, "copied": copied, "exact": exact,
        "pushed": [c["pushed"] for c in counts]})
    rig.table(["return after kill -9", "rounds", "without a copy", "counted increments"],
              [[f"{args.durability}, a checkpoint every {args.checkpoint_every}", returned, f"{100 * (returned - copied) / returned:.0f} %",
                "exact" if exact else str(counts)]])


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("bin", type=pathlib.Path, help="the folder of psd, psbench and psctl")
    p.add_argument("--parts", default=",".join(PARTS), help="%(default)s")
    p.add_argument("--dir", default=None, help="where the data directories are made [the system's]")
    p.add_argument("--json", type=pathlib.Path, default=rig.ROOT / "build/bench/standby.jsonl", metavar="FILE")
    p.add_argument("--seconds", type=float, default=8, help="of a run of psbench [%(default)s]")
    p.add_argument("--rounds", type=int, default=3, help="of parts push and copy [%(default)s]")
    p.add_argument("--rows", type=int, default=500_000, help="of dim 16 [%(default)s]")
    p.add_argument("--speed", type=float, default=1e6, help="rows/s, of which part follow takes half, without part push [%(default)s]")
    p.add_argument("--copy-rows", type=int, default=1_000_000, help="of dim 64, in the checkpoint that is copied [%(default)s]")
    p.add_argument("--pulls", type=int, default=500, help="a second, beside a copy [%(default)s]")
    p.add_argument("--rounds-of-return", type=int, default=40, help="[%(default)s]")
    p.add_argument("--between", type=float, default=1.0, help="seconds of pushes before a kill [%(default)s]")
    p.add_argument("--checkpoint-every", default="500ms", help="of part return [%(default)s]")
    p.add_argument("--durability", default="async", help="of part return [%(default)s]")
    args = p.parse_args()
    args.bin = args.bin.resolve()
    parts = args.parts.split(",")
    if set(parts) - set(PARTS):
        raise rig.Trouble(f"--parts: {','.join(PARTS)}")
    args.json.parent.mkdir(parents=True, exist_ok=True)

    def say(case):
        with open(args.json, "a", encoding="utf-8") as out:
            out.write(json.dumps({"unix_s": int(time.time()), **case}) + "\n")

    speed = args.speed
    rig.say("{date}, {cpu}, {cores} cores\n".format(**rig.machine()))
    if "push" in parts:
        speed = part_push(args, say)
    if "follow" in parts:
        part_follow(args, say, speed)
    if "join" in parts:
        part_join(args, say)
    if "copy" in parts:
        part_copy(args, say)
    if "return" in parts:
        part_return(args, say)


rig.run(main)

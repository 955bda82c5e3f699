#!/usr/bin/python3
"""Stragglers: four workers on two cores, one of them slowed ten times by SIGSTOP slices, in lock step, bounded staleness and async.

    tests/bench/stragglers.py build/release/bin                   # about 8 minutes; also: make bench-stragglers
    tests/bench/stragglers.py build/release/bin --quick           # does it all run?

Throughput is that of all workers together, from the moment when each has trained a batch until the first has trained its share. Then
nobody is slowed any more, so that the rest comes in soon; the test AUC is that of the whole epoch. Three ways to be slow:

    nobody     no worker
    one        the last rank, all the time. Bounded staleness cannot help here for long: the others may be s clocks ahead and no more, so
               the slow worker's rate is everybody's, as in lock step. Async has no bound.
    in turn    for a while each, as where neighbours of a machine come and go: s clocks take that up
"""
import json
import os
import signal
import statistics
import threading
import time

import rig

MODES = [("bsp", ["--mode", "bsp"]), ("ssp, s = 8", ["--mode", "ssp", "--staleness", "8"]), ("async", ["--mode", "async"])]
WAYS = ["nobody", "one", "in turn"]
BASE = MODES[0][0]
START_S = 120


def read_options():
    p = rig.options(__doc__, "stragglers", 3)
    p.add_argument("--workers", type=int, default=4, help="[%(default)s]")
    p.add_argument("--batch", type=int, default=128, help="of each worker [%(default)s]")
    p.add_argument("--slower", type=float, default=10, help="times that the slow one is slowed [%(default)s]")
    p.add_argument("--slice-ms", type=float, default=50, help="run and stop of the slow one together [%(default)s]")
    p.add_argument("--turn-ms", type=float, default=200, help="how long each is slow, in turn [%(default)s]")
    p.add_argument("--ways", default=",".join(WAYS), help="to be slow [%(default)s]")
    p.add_argument("--flag", action="append", default=[], help="one more flag of psworker; repeatable")
    o = rig.read(p)
    o.ways = o.ways.split(",")
    strange = [way for way in o.ways if way not in WAYS]
    if strange or o.slower <= 1 or o.workers < 2:
        p.error(f"--ways: found {strange[0]}, expected {','.join(WAYS)}" if strange else "--slower and --workers: expected more than 1")
    return o


class Brake(threading.Thread):
    """Stops one process for most of each slice, until release(); one that has ended and is not reaped yet takes signals too."""

    def __init__(self, pids, slower, slice_s, turn_s):
        super().__init__(daemon=True)
        self.pids, self.turn_s = pids, turn_s
        self.run_s, self.stop_s = slice_s / slower, slice_s * (1 - 1 / slower)
        self.done = threading.Event()
        self.stopped_s = [0.0] * len(pids)

    def run(self):
        start = time.monotonic()
        while not self.done.is_set():
            turn = int((time.monotonic() - start) / self.turn_s) if self.turn_s else -1
            self.stop(turn % len(self.pids))
            self.done.wait(self.run_s)

    def stop(self, rank):
        os.kill(self.pids[rank], signal.SIGSTOP)
        begin = time.monotonic()
        self.done.wait(self.stop_s)
        self.stopped_s[rank] += time.monotonic() - begin
        os.kill(self.pids[rank], signal.SIGCONT)

    def release(self):
        self.done.set()
        self.join()


def cpu_s(process):
    """User and system time so far; 0 of one that has gone."""
    try:
        with open(f"/proc/{process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def samples_of(process):
    """Trained so far, by its last whole progress line."""
    lines = process.lines.read_text().split("\n")[:-1]
    return json.loads(lines[-1]).get("samples", 0) if lines else 0


class Race:
    def __init__(self, o, rig_):
        self.o, self.rig = o, rig_
        self.train, self.test, self.n_train = rig_.parts()

    def wait(self, processes, what, condition, within_s):
        """The time when it first held; looks every few ms."""
        end = time.monotonic() + within_s
        while not condition():
            broken = next((p for p in processes if self.rig.status_of(p)), None)
            if broken:
                raise rig.Trouble(f"psworker ended too early: {broken.log.read_text()[-2000:].strip()}")
            if time.monotonic() > end:
                raise rig.Trouble(f"{what} did not happen within {within_s} s")
            time.sleep(0.005)
        return time.monotonic()

    def run(self, flags, way, seed):
        o = self.o
        with self.rig.psd() as address:
            everyone = ["--data", self.train, "--servers", address, "--batch", o.batch, "--seed", seed, "--workers", o.workers,
                        "--progress-every", "20ms", "--threads", 1, *rig.PLAIN_TRAINING, *flags, *o.flag]
            processes = [self.rig.worker("train", [*everyone, "--rank", rank], name=f"rank{rank}") for rank in range(o.workers)]
            self.wait(processes, "a first batch of each worker", lambda: all(map(samples_of, processes)), START_S)
            brake = Brake([p.pid for p in processes], o.slower, o.slice_ms / 1000, o.turn_ms / 1000 if way == "in turn" else 0)
            before, start = [samples_of(p) for p in processes], time.monotonic()
            cpu_before = [cpu_s(p) for p in processes]
            if way != "nobody":
                brake.start()
            try:
                share = self.n_train // o.workers - o.batch  # the last batch may be another's
                end = self.wait(processes, "the end of the first worker's share", lambda: max(map(samples_of, processes)) >= share,
                                rig.RUN_S)
                after, cpu_after = [samples_of(p) for p in processes], [cpu_s(p) for p in processes]
                stopped_s = list(brake.stopped_s)  # a stop that ends after `end` is none of it
            finally:
                if brake.is_alive():
                    brake.release()
            results = [self.rig.result(process) for process in processes]
            test = self.rig.psworker("eval", ["--data", self.test, "--servers", address])
        trained = [b - a for a, b in zip(before, after)]
        return {"samples_per_s": sum(trained) / (end - start), "seconds": end - start, "samples_by_rank": trained,
                "stopped_share_by_rank": [s / (end - start) for s in stopped_s],
                "cores_by_rank": [(b - a) / (end - start) for a, b in zip(cpu_before, cpu_after)], "auc": test["auc"],
                "logloss": test["logloss"], "staleness_max": max(r["staleness_max"] for r in results),
                "samples": sum(r["samples"] for r in results), "rejoins": sum(r["rejoins"] for r in results)}


def measure(o, race):
    """(way, mode) -> a result for each seed; the modes' order changes from round to round."""
    runs = {}
    for i, seed in enumerate(o.seeds):
        for way in o.ways:
            for name, flags in MODES[i % len(MODES):] + MODES[:i % len(MODES)]:
                got = rig.monitored(race.run, flags, way, seed)
                runs.setdefault((way, name), []).append(got)
                rig.note(f"seed {seed}, slow: {way}, {name}: {got['samples_per_s']:,.0f} samples/s, AUC {got['auc']:.4f}")
    return runs


def case_of(o, race, runs, way, name):
    mine, base = runs[way, name], runs[way, BASE]
    return {"slow": way, "mode": name, "workers": o.workers, "batch": o.batch, "slower": o.slower, "slice_ms": o.slice_ms,
            "turn_ms": o.turn_ms, "data": race.rig.data_name, "train_rows": race.n_train, "seeds": o.seeds, "runs": mine,
            "ratio": [a["samples_per_s"] / b["samples_per_s"] for a, b in zip(mine, base)],
            "auc_difference": [a["auc"] - b["auc"] for a, b in zip(mine, base)]}


def main():
    o = read_options()
    with rig.Rig(o) as rig_:
        race = Race(o, rig_)
        runs = measure(o, race)
        cases = [case_of(o, race, runs, way, name) for way in o.ways for name, _ in MODES]
        rig.write_lines(o.json, cases)
    rig.say(f"{cases[0]['data']}, {o.workers} workers, batch {o.batch} each, {len(o.seeds)} seeds; a slow one is stopped for "
            f"{100 - 100 / o.slower:.0f} % of each {o.slice_ms:g} ms; in turn: {o.turn_ms:g} ms each.")
    rig.say()
    rig.say_others([run for case in cases for run in case["runs"]])
    rig.table(["slow", "mode", "samples/s, all workers", "/ BSP", "test AUC", "AUC against BSP", "staleness max", "cores: last rank, all"],
              [[case["slow"], case["mode"], f"{statistics.median(r['samples_per_s'] for r in case['runs']):,.0f}",
                rig.median_and_range(case["ratio"]), f"{statistics.mean(r['auc'] for r in case['runs']):.4f}",
                rig.mean_and_spread(case["auc_difference"], "{:+.4f}"), max(r["staleness_max"] for r in case["runs"]),
                ", ".join(f"{statistics.median(cores(r['cores_by_rank']) for r in case['runs']):.2f}" for cores in (lambda c: c[-1], sum))]
               for case in cases])


rig.run(main)

#!/usr/bin/python3
"""Wire bytes: what each codec setting costs on the interface and in test AUC, and what it saves on a slow link.

    sudo tests/bench/wire.py build/release/bin                    # about 30 minutes; also: make bench-wire
    sudo tests/bench/wire.py build/release/bin --quick            # does it all run?
    sudo tests/bench/wire.py build/release/bin --case 'auto=--push-codec auto'

psworker and a psd with one shard stand in two network namespaces with a veth between them. Bytes are those of the interface, both ways:
keys, frames, TCP, IP and Ethernet headers, and all that happens at the start of a job; nothing of the test, which is a run of its own.
Then the link is shaped (tc, tbf) and plain fp32 races the best setting to a fixed test AUC: the steps that it takes are looked for with
--local first, so that only training is timed; the AUC of what was trained is tested afterwards.
"""
import json
import statistics
import time

import net
import rig

AUC_TOLERANCE = 0.0005  # of the mean of the paired differences, for a setting to be the best
PLAIN = "plain fp32"
OFF = ["--row-cache", "0"]  # plain pulls all rows of a batch
INT8 = ["--push-codec", "int8"]
BF16_PULLS = ["--pull-codec", "bf16", "--dense-pull-codec", "bf16"]
INT8_PULLS = ["--pull-codec", "int8", "--dense-pull-codec", "int8"]
ONEBIT = ["--push-codec", "onebit"]
AUTO = ["--push-codec", "auto", "--pull-codec", "auto", "--dense-pull-codec", "auto"]
COUNTS = ["rows_asked", "rows_cached", "rows_pulled", "rows_pulled_again", "rows_pushed", "peak_memory_bytes"]
CASES = [
    ("bf16 both ways", ["--push-codec", "bf16", *BF16_PULLS]),
    ("int8 pushes", INT8),
    ("int8 pushes, bf16 pulls", [*INT8, *BF16_PULLS]),
    ("int8 both ways", [*INT8, *INT8_PULLS]),
    ("int8 pushes, bf16 pulls, zstd", [*INT8, *BF16_PULLS, "--zstd"]),
    ("int8 rows, 1-bit dense, bf16 pulls", [*INT8, "--dense-push-codec", "onebit", *BF16_PULLS]),
    ("1-bit pushes, bf16 pulls", [*ONEBIT, *BF16_PULLS]),
    ("top-k 1 % pushes, bf16 pulls", ["--push-codec", "topk", *BF16_PULLS]),
]
CACHE_CASES = [  # where psworker has a row cache, which is on unless it is told otherwise
    ("fp32, row cache", []),
    ("int8 pushes, row cache", INT8),
    ("int8 rows, 1-bit dense, row cache", [*INT8, "--dense-push-codec", "onebit"]),
    ("int8 rows, 1-bit dense after 50 steps, row cache", [*INT8, "--dense-push-codec", "onebit", "--dense-push-warmup", "50"]),
    ("1-bit pushes, row cache", ONEBIT),
    ("1-bit rows, top-k dense after 32 steps, zstd, row cache",
     [*ONEBIT, "--dense-push-codec", "topk", "--dense-push-warmup", "32", "--dense-push-warmup-codec", "bf16", "--zstd"]),
    ("auto", AUTO),
]


def read_options():
    p = rig.options(__doc__, "wire", 5)
    p.add_argument("--batches", type=rig.numbers, default=[128, 2048], help="[128,2048]")
    p.add_argument("--case", action="append", default=[], metavar="NAME=FLAGS", help="one more setting; repeatable")
    p.add_argument("--only", action="append", metavar="NAME", help="the settings to measure beside plain fp32; repeatable")
    p.add_argument("--rates", default="100mbit,1gbit", help="of the shaped link; none: not shaped [%(default)s]")
    p.add_argument("--best", help="the setting to race plain fp32 with [the one of fewest bytes within the AUC tolerance]")
    p.add_argument("--target-auc", type=float, default=0.74, help="[%(default)s]")
    p.add_argument("--shaped-seeds", type=rig.numbers, default=[1], help="rounds of the race [1]")
    p.add_argument("--threads", type=int, default=1, help="of psworker [%(default)s]")
    o = rig.read(p)
    o.rates = [] if o.rates == "none" else o.rates.split(",")
    if o.quick:
        o.batches, o.rates, o.target_auc = [256], o.rates[:1], 0.5
        o.only = o.only or ["int8 pushes, bf16 pulls"]
    o.extra = []
    for case in o.case:
        name, found, flags = case.partition("=")
        if not found:
            p.error(f'--case: found "{case}", expected NAME=FLAGS')
        o.extra.append((name, flags.split()))
    return o


def settings_of(o, rig_):
    """Plain first."""
    has_cache = not rig_.refusal(OFF)
    off = OFF if has_cache else []
    cases = [(name, flags + off) for name, flags in CASES] + (CACHE_CASES if has_cache else CACHE_CASES[-1:])
    if o.only:
        strange = set(o.only) - {name for name, _ in cases}
        if strange:
            raise rig.Trouble(f"--only: found {strange.pop()}, expected one of: {'; '.join(name for name, _ in cases)}")
        cases = [(name, flags) for name, flags in cases if name in o.only]
    return [(PLAIN, off), *rig_.known(cases + o.extra)]


class Wire:
    def __init__(self, o, rig_, link):
        self.o, self.rig, self.link = o, rig_, link
        self.train, self.test, self.n_train = rig_.parts()

    def run(self, flags, data, batch, seed, rate=None):
        """One job on a psd of its own over the link: training, then the test at full speed."""
        flags = ["--batch", batch, "--seed", seed, "--threads", self.o.threads, *rig.PLAIN_TRAINING, *flags]
        worker, server = (self.link.inside(side) for side in (net.WORKER, net.SERVER))
        with self.rig.psd(listen=f"{net.ADDRESS[net.SERVER]}:0", prefix=server) as address:
            self.link.shape(rate)
            before, start = self.link.bytes(), time.monotonic()
            result = self.rig.psworker("train", ["--data", data, "--servers", address, *flags], worker)
            seconds = time.monotonic() - start
            n_bytes = net.wait_until_quiet(self.link) - before
            self.link.shape(None)
            test = self.rig.psworker("eval", ["--data", self.test, "--servers", address], worker)
        return {"samples": result["samples"], "seconds": seconds, "bytes": n_bytes, "bytes_per_sample": n_bytes / result["samples"],
                "said_bytes_per_sample": result["wire_bytes_per_sample"], "auc": test["auc"], "logloss": test["logloss"],
                **{name: result[name] for name in COUNTS if name in result}}

    def head(self, n_rows):
        return rig.head(self.train, n_rows, self.rig.scratch / "head.tsv")

    def cost(self, name, flags, batch):
        """A setting's bytes and AUC over all seeds, and its bytes without the start of the job and the first batch."""
        runs = []
        for seed in self.o.seeds:
            runs.append(rig.monitored(self.run, flags, self.train, batch, seed))
            rig.note(f"batch {batch}, seed {seed}: {name}: {runs[-1]['bytes_per_sample']:,.1f} bytes a sample, "
                     f"AUC {runs[-1]['auc']:.4f}")
        first = self.run(flags, self.head(batch), batch, self.o.seeds[0])
        steady = (runs[0]["bytes"] - first["bytes"]) / (runs[0]["samples"] - first["samples"])
        return {"setting": name, "flags": flags, "batch": batch, "data": self.rig.data_name, "train_rows": self.n_train,
                "seeds": self.o.seeds, "steady_bytes_per_sample": steady, "runs": runs}

    def steps_to_target(self, flags, batch, seed, every):
        """Looked for in this process: with bound 0 the same bits as over the wire. None if one epoch does not get there."""
        whole = self.rig.scratch / "rows.tsv"
        worker = self.rig.worker("train", ["--local", "--data", whole, "--train-rows", self.n_train, "--batch", batch, "--seed", seed,
                                           "--threads", 2, "--eval-every", every, *rig.PLAIN_TRAINING, *flags])
        self.rig.result(worker)
        found = [json.loads(line) for line in worker.lines.read_text().splitlines()]
        return next((line["step"] for line in found if line["event"] == "validation" and line["auc"] >= self.o.target_auc), None)

    def race(self, name, flags, batch, seed, rate):
        """Seconds over the shaped link until what was trained has the AUC."""
        n_steps = -(-self.n_train // batch)
        every = max(n_steps // 30, 1)
        steps = self.steps_to_target(flags, batch, seed, every) or n_steps
        while True:
            run = rig.monitored(self.run, flags, self.head(min(steps * batch, self.n_train)), batch, seed, rate)
            is_there = run["auc"] >= self.o.target_auc
            rig.note(f"{rate}, batch {batch}, seed {seed}: {name}: AUC {run['auc']:.4f} after {steps} steps, {run['seconds']:.1f} s")
            if is_there or steps >= n_steps:
                break
            steps += every  # the link decides what auto does, so it may need more
        return {"race": name, "flags": flags, "batch": batch, "rate": rate, "seed": seed, "steps": steps,
                "target_auc": self.o.target_auc, "reached": is_there, **run}


def compare(costs):
    """Each setting's ratio of bytes and paired AUC difference to plain fp32 of its batch."""
    for cost in costs:
        plain = next(c for c in costs if c["setting"] == PLAIN and c["batch"] == cost["batch"])
        cost["ratio"] = [a["bytes_per_sample"] / b["bytes_per_sample"] for a, b in zip(cost["runs"], plain["runs"])]
        of_plain = plain["runs"][0]["rows_pulled"]
        cost["rows_pulled_share"] = cost["runs"][0]["rows_pulled"] / of_plain
        cost["rows_pulled_again_share"] = cost["runs"][0].get("rows_pulled_again", 0) / of_plain
        cost["auc_difference"] = [a["auc"] - b["auc"] for a, b in zip(cost["runs"], plain["runs"])]


def best_of(o, costs, batch):
    """Of fewest bytes, among those that keep the AUC."""
    of_batch = [c for c in costs if c["batch"] == batch and c["setting"] != PLAIN]
    if o.best:
        of_batch = [c for c in of_batch if c["setting"] == o.best]
        if not of_batch:
            raise rig.Trouble(f"--best: no setting {o.best} was measured")
    kept = [c for c in of_batch if o.quick or o.best or statistics.mean(c["auc_difference"]) >= -AUC_TOLERANCE]
    return min(kept, key=lambda c: statistics.mean(c["ratio"]), default=None)


def show_costs(costs):
    seeds = ", ".join(map(str, costs[0]["seeds"]))
    rig.say(f"{costs[0]['data']}, {costs[0]['train_rows']:,} rows, seeds {seeds}; AUC differences are those of the same seed.")
    rig.say()
    rig.say_others([run for cost in costs for run in cost["runs"]])
    rig.table(["batch", "setting", "bytes a sample", "after the start", "plain / this", "test AUC", "AUC against plain",
               "rows pulled / plain's", "pulled again / plain's pulls", "samples/s"],
              [[c["batch"], c["setting"], f"{statistics.mean(r['bytes_per_sample'] for r in c['runs']):,.0f}",
                f"{c['steady_bytes_per_sample']:,.0f}", f"{1 / statistics.mean(c['ratio']):.1f}",
                f"{statistics.mean(r['auc'] for r in c['runs']):.4f}", rig.mean_and_spread(c["auc_difference"], "{:+.4f}"),
                f"{c['rows_pulled_share']:.3f}", f"{c['rows_pulled_again_share']:.3f}" if "rows_pulled_again" in c["runs"][0] else "-",
                f"{statistics.median(r['samples'] / r['seconds'] for r in c['runs']):,.0f}"] for c in costs])


def show_races(o, races):
    rig.say(f"Seconds to a test AUC of {o.target_auc} on a shaped link, medians of {len(o.shaped_seeds)} rounds:")
    rig.say()
    rows = []
    for race in races:
        if race["seed"] != o.shaped_seeds[0]:
            continue
        mine, plains = ([r for r in races if all(r[k] == race[k] for k in ("batch", "rate")) and r["race"] == name]
                        for name in (race["race"], PLAIN))
        seconds = [r["seconds"] for r in mine]
        gain = [b["seconds"] / a["seconds"] for a, b in zip(mine, plains)]
        rows.append([race["rate"], race["batch"], race["race"], race["steps"], f"{statistics.median(seconds):.1f}",
                     f"{statistics.median(r['bytes'] * 8e-6 / r['seconds'] for r in mine):,.0f}",
                     "yes" if all(r["reached"] for r in mine) else "no", rig.median_and_range(gain, "{:.1f}")])
    rig.say_others(races)
    rig.table(["link", "batch", "setting", "steps", "seconds", "Mbit/s, both ways", "reached", "plain / this"], rows)


def main():
    o = read_options()
    with net.Link() as link, rig.Rig(o) as rig_:
        if o.rates:
            link.shape(o.rates[0])  # refused here rather than half an hour later
            link.shape(None)
        settings = settings_of(o, rig_)
        wire = Wire(o, rig_, link)
        costs = [wire.cost(name, flags, batch) for batch in o.batches for name, flags in settings]
        compare(costs)
        races = []
        for batch in o.batches:
            best = best_of(o, costs, batch)
            racers = [(name, flags) for name, flags in settings if name in (PLAIN, "auto") or best and name == best["setting"]]
            races += [wire.race(name, flags, batch, seed, rate) for rate in o.rates for seed in o.shaped_seeds for name, flags in racers]
        rig.write_lines(o.json, costs + races)
        show_costs(costs)
        if races:
            show_races(o, races)


rig.run(main)

#!/usr/bin/python3
"""Training speed: psworker --local, psworker + psd and PyTorch, on the same two cores and the same rows.

    tests/bench/train.py build/release/bin                    # about 10 minutes; also: make bench-train
    tests/bench/train.py build/release/bin --quick            # does it all run?
    tests/bench/train.py build/release/bin --case 'auto=--push-codec auto'

All cases run in each round, with the round's number as seed, in an order that changes from round to round; psworker with each number of
threads, PyTorch with the fastest of the settings that a short calibration tried (threads, BLAS library, way to wait, form of the
embedding tables). What has the best median counts. Ratios and AUC differences are taken within a round. Samples a second are those of
the training steps alone: psworker reads and parses the text meanwhile, PyTorch has all rows in memory. Exits 1 where PyTorch's test
log-loss disagrees with psworker's.
"""
import glob
import json
import os
import statistics
import sys

import rig

QUICK_LOSS_TOLERANCE = 0.1  # after 22 steps
LOSS_TOLERANCE = 0.01  # of mean test log-losses; the spread of seeds at batch 2048 is 0.003 (golden/README.md)
FINALISTS = 3  # settings of PyTorch that take part in the rounds
TABLES = ["bags", "one", "rows"]
LITTLE = ["--push-codec", "int8", "--pull-codec", "bf16", "--dense-pull-codec", "bf16"]
CASES = [
    ("in this process", ["--local"]),
    ("in this process, rows from a cache", ["--local", "--data-cache", "CACHE"]),
    ("in this process, bf16 products", ["--local", "--compute", "bf16"]),
    ("psd, fp32", []),
    ("psd, int8 pushes, bf16 pulls", LITTLE),
    ("psd, bf16 products", ["--compute", "bf16"]),
    ("psd, bf16 products, int8 pushes, bf16 pulls", ["--compute", "bf16", *LITTLE]),
]
BASE, TORCH = CASES[0][0], "PyTorch"


def read_options():
    p = rig.options(__doc__, "train", 5)
    p.add_argument("--batch", type=int, default=2048, help="[%(default)s]")
    p.add_argument("--threads", type=rig.numbers, default=[1, 2], help="of psworker and PyTorch, to choose from [1,2]")
    p.add_argument("--case", action="append", default=[], metavar="NAME=FLAGS", help="one more case; repeatable")
    p.add_argument("--no-torch", action="store_true", help="leave PyTorch out")
    o = rig.read(p)
    if o.quick:
        o.batch = min(o.batch, 256)
    o.cases = list(CASES)
    for case in o.case:
        name, found, flags = case.partition("=")
        if not found:
            p.error(f'--case: found "{case}", expected NAME=FLAGS')
        o.cases.append((name, flags.split()))
    return o


class Training:
    def __init__(self, o, rig_):
        self.o, self.rig = o, rig_
        self.path, self.n_train = rig_.text()
        self.data_name = rig_.data_name
        self.tried = []

    # --- psworker ---

    def psworker(self, flags, threads, seed):
        """Tables in this process, or on a psd of its own."""
        words = {"CACHE": self.rig.scratch / "cache"}
        flags = ["--data", self.path, "--train-rows", self.n_train, "--batch", self.o.batch, "--threads", threads, "--seed", seed,
                 *rig.PLAIN_TRAINING, *(words.get(flag, flag) for flag in flags)]
        if "--local" in flags:
            return self.rig.psworker("train", flags)
        with self.rig.psd() as address:
            return self.rig.psworker("train", [*flags, "--servers", address])

    # --- PyTorch ---

    def torch(self, setting, seed, steps=0, compute="fp32"):
        threads = str(setting["threads"])
        env = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "OMP_WAIT_POLICY": setting["wait"]}
        if setting["blas"] != "default":
            env["LD_LIBRARY_PATH"] = setting["blas"]
        out = self.rig.call(["taskset", "-c", self.o.cpus, sys.executable, rig.ROOT / "tests/bench/train_torch.py", self.rows,
                             "--batch", self.o.batch, "--seed", seed, "--threads", threads, "--tables", setting["tables"],
                             "--compute", compute, "--steps", steps], env=env)
        return json.loads(out)

    def tune_torch(self, compute):
        """The settings that were fastest over a few steps."""
        o = self.o
        libraries = [x for x in sorted(glob.glob("/usr/lib/*/openblas-*")) if os.path.exists(f"{x}/libblas.so.3") and not o.quick]
        settings = [{"blas": blas, "threads": threads, "wait": wait, "tables": tables}
                    for blas in libraries or ["default"] for threads in o.threads
                    for wait in (["passive", "active"] if threads > 1 and not o.quick else ["passive"]) for tables in TABLES]
        tried = []
        for setting in settings:
            rate = self.torch(setting, o.seeds[0], 4 if o.quick else 12, compute)["samples_per_s"]
            tried.append({"case": TORCH, "compute": compute, **setting, "samples_per_s": rate})
        self.tried += tried
        best = sorted(range(len(settings)), key=lambda i: -tried[i]["samples_per_s"])
        return [settings[i] for i in best[:1 if o.quick else FINALISTS]]

    # --- all ---

    def plan(self):
        """[(name, [(what it runs with, seed -> result)])]"""
        cases = [(name, [({"flags": flags, "threads": threads},
                          lambda seed, flags=flags, threads=threads: self.psworker(flags, threads, seed)) for threads in self.o.threads])
                 for name, flags in self.rig.known(self.o.cases)]
        if not self.o.no_torch:
            self.rows = self.rig.scratch / "rows.npz"
            self.rig.call([sys.executable, rig.ROOT / "tests/bench/criteo_rows.py", self.path, self.n_train, self.rows])
            for name, compute in [(TORCH, "fp32"), (f"{TORCH}, bf16 products", "bf16")]:
                rig.note(f"tuning: {name}")
                cases.append((name, [(setting, lambda seed, setting=setting, compute=compute: self.torch(setting, seed, 0, compute))
                                     for setting in self.tune_torch(compute)]))
        return cases


def measure(o, plan):
    """name -> its best setting and that one's result for each round"""
    runs = {name: [[] for _ in variants] for name, variants in plan}
    for i, seed in enumerate(o.seeds):
        for name, variants in plan[i % len(plan):] + plan[:i % len(plan)]:
            for (setting, run), results in zip(variants, runs[name]):
                result = rig.monitored(run, seed)
                results.append(result)
                rig.note(f"seed {seed}: {name}, {setting['threads']} threads: {result['samples_per_s']:,.0f} samples/s, "
                         f"AUC {result['auc']:.4f}; others {result['others_share']:.0%}")
    best = {}
    for name, variants in plan:
        medians = [statistics.median(r["samples_per_s"] for r in results) for results in runs[name]]
        at = medians.index(max(medians))
        best[name] = (variants[at][0], runs[name][at], [{**setting, "samples_per_s": m} for (setting, _), m in zip(variants, medians)])
    return best


def ratios(runs, name, base):
    return [a["samples_per_s"] / b["samples_per_s"] for a, b in zip(runs[name], runs.get(base, []))]


def case_of(o, training, runs, name, setting, medians):
    all_of = {key: [run.get(key) for run in runs[name]] for key in
              ["samples_per_s", "auc", "logloss", "peak_memory_bytes", "wire_bytes_per_sample"]}
    return {"case": name, **setting, "medians": medians, "batch": o.batch, "data": training.data_name,
            "train_rows": training.n_train, "seeds": o.seeds, **all_of, "runs": runs[name],
            "ratio_to_torch": ratios(runs, name, TORCH), "ratio_to_local": ratios(runs, name, BASE),
            "auc_difference_to_local": [a["auc"] - b["auc"] for a, b in zip(runs[name], runs[BASE])]}


def show(o, training, cases):
    rig.say(f"{training.data_name}, {training.n_train:,} rows a round, batch {o.batch}, medians of {len(o.seeds)} rounds; "
            "AUC differences are those of the same seed.")
    rig.say()
    rig.table(["setting", "threads", "samples/s", "/ PyTorch", "/ in this process", "test AUC", "AUC against in this process", "log-loss",
               "wire bytes a sample", "peak memory MB"],
              [[case["case"], case["threads"], f"{statistics.median(case['samples_per_s']):,.0f}",
                rig.median_and_range(case["ratio_to_torch"]), rig.median_and_range(case["ratio_to_local"]),
                f"{statistics.mean(case['auc']):.4f}", rig.mean_and_spread(case["auc_difference_to_local"], "{:+.4f}"),
                f"{statistics.mean(case['logloss']):.4f}",
                "-" if TORCH in case["case"] else f"{statistics.median(case['wire_bytes_per_sample']):,.0f}",
                f"{max(case['peak_memory_bytes']) / 1e6:.0f}"] for case in cases])
    rig.say_others([run for case in cases for run in case["runs"]])
    for case in cases:
        if TORCH in case["case"]:
            rig.say(f"{case['case']}: the best setting was {case['threads']} threads, tables as {case['tables']}, "
                    f"OMP_WAIT_POLICY={case['wait']}, BLAS from {case['blas']}.")


def check_losses(o, runs):
    """PyTorch must have trained the same model."""
    if TORCH not in runs:
        return
    ours, theirs = (statistics.mean(run["logloss"] for run in runs[name]) for name in (BASE, TORCH))
    tolerance = QUICK_LOSS_TOLERANCE if o.quick else LOSS_TOLERANCE
    if abs(ours - theirs) > tolerance:
        raise rig.Trouble(f"test log-loss: PyTorch's {theirs:.4f} and psworker's {ours:.4f} differ by more than {tolerance}")


def main():
    o = read_options()
    with rig.Rig(o) as rig_:
        if not o.no_torch:
            rig_.call([sys.executable, "-c", "import torch"], why="PyTorch is not there: apt-get install python3-torch, or say --no-torch")
        training = Training(o, rig_)
        best = measure(o, training.plan())
        runs = {name: results for name, (_, results, _) in best.items()}
        cases = [case_of(o, training, runs, name, setting, medians) for name, (setting, _, medians) in best.items()]
        rig.write_lines(o.json, [*cases, *({"tuning": tried} for tried in training.tried)])
        show(o, training, cases)
        check_losses(o, runs)


rig.run(main)

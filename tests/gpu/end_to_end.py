#!/usr/bin/python3
"""psworker on the GPU, with psd on the same machine over loopback, and its test AUC against the CPU's: end_to_end.py BIN FILE

Speed is that of synthetic rows that have been parsed before (training reads them from a cache), from the second epoch on: the first plans, records
and fills tables. One line a case is added to FILE; a case that fails, or to which one of its settings does nothing, has a sentence in
place of a result.
"""
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import rig  # noqa: E402

ROWS, QUICK_ROWS, QUICK_BATCHES, SEEDS = 1_500_000, 20_000, 32, [1, 2, 3]
EPOCHS = 4  # the first does not count
MLPS = ["--bottom", "512,256", "--top", "1024,1024,512,256"]
QUICK_MLPS = ["--bottom", "32", "--top", "32"]
LITTLE = ["--push-codec", "int8", "--pull-codec", "bf16", "--dense-pull-codec", "bf16"]
# The row cache of a job's only worker pulls nothing ahead.
OVERLAP = ["--mode", "ssp", "--staleness", 4, "--ahead", 3, "--row-cache", 0]
THREADS = ["--net-threads", 4, "--loader-threads", 8]
# Of a run whose AUC depends little on roundings: a change of the learning rate by 10^-5 of it moves the AUC by 0.00006, but with the default
# (Adagrad) by 0.0003 to 0.0014.
STEADY = ["--optimizer", "adam", "--lr", 0.001]
TF32 = ["--compute", "tf32"]  # it does nothing on a CPU
ON_HOST = ["--device-cache", 0]  # the row cache's rows
CASES = [
    ("batch 65536, dim 128, TF32, int8 pushes, bf16 pulls, ahead 3", 65536, 128, [*OVERLAP, *LITTLE, *TF32]),
    ("batch 65536, dim 128, the same with 4 network and 8 loader threads", 65536, 128, [*OVERLAP, *LITTLE, *TF32, *THREADS]),
    ("batch 65536, dim 128, with 8 and 8", 65536, 128, [*OVERLAP, *LITTLE, *TF32, "--net-threads", 8, "--loader-threads", 8]),
    ("batch 65536, dim 128, with 4 and 8, encoded and decoded on the CPU", 65536, 128, [*OVERLAP, *LITTLE, *TF32, *THREADS, "--device-encode", "off"]),
    ("batch 65536, dim 16, TF32, int8 pushes, bf16 pulls, ahead 3", 65536, 16, [*OVERLAP, *LITTLE, *TF32]),
    ("batch 8192, dim 16, TF32, int8 pushes, bf16 pulls, ahead 3", 8192, 16, [*OVERLAP, *LITTLE, *TF32]),
    ("batch 65536, dim 128, TF32, fp32 on the wire, in step, with the row cache", 65536, 128, [*TF32, *ON_HOST]),
    ("batch 65536, dim 128, in step with 4 network and 8 loader threads", 65536, 128, [*TF32, *THREADS, *ON_HOST]),
    ("batch 65536, dim 128, in step with those threads, rows in the GPU's memory", 65536, 128,
     [*TF32, *THREADS, "--row-cache", "4G", "--device-cache", "4G"]),
    ("batch 65536, dim 128, TF32, in this process", 65536, 128, ["--local", *TF32]),
]


class Ends:
    def __init__(self, o, rig_):
        self.o, self.rig = o, rig_
        self.n_rows = QUICK_ROWS if o.quick else ROWS
        self.shards = max(1, min(8, os.cpu_count() // 2))

    def train(self, path, n_train, flags):
        words = ["--data", path, "--train-rows", n_train, *flags]
        if "--local" in flags:
            return self.run(words)
        with self.rig.psd("--shards", self.shards) as address:
            return self.run([*words, "--servers", address])

    def run(self, words):
        worker = self.rig.worker("train", [*words, "--progress-every", "10ms"])
        result = self.rig.result(worker)
        for line in worker.log.read_text().splitlines():
            if "has no effect" in line:
                raise rig.Trouble(line)
        return {**result, "steady_samples_per_s": steady([json.loads(line) for line in worker.lines.read_text().splitlines()])}

    def note(self, case, run, *args):
        """One line: what has been measured, or why not."""
        try:
            case["result"] = rig.monitored(run, *args)
        except rig.Trouble as trouble:
            case["why"] = str(trouble).splitlines()[0][:300]
        with open(self.o.json, "a") as out:
            out.write(json.dumps({**case, "shards": self.shards}) + "\n")

    def speed(self):
        path, n_train, quick = self.rig.scratch / "synthetic.tsv", self.n_rows - self.n_rows // 20, self.o.quick
        flags = ["--data-cache", self.rig.scratch / "cache"]
        self.rig.call([self.o.bin / "psworker", "synth", "--rows", self.n_rows, "--seed", 1, "--output", path])
        # A small model fills the cache.
        self.train(path, n_train, [*flags, "--local", "--device", "cpu", "--bottom", 8, "--top", 8, "--batch", 8192])
        for name, batch, dim, more in CASES:
            batch //= QUICK_BATCHES if quick else 1
            flags_of_case = [*flags, "--device", self.o.device, "--dim", dim, *(QUICK_MLPS if quick else MLPS), "--batch", batch,
                             "--epochs", EPOCHS, *(word for word in more if self.o.device != "cpu" or word not in TF32)]
            self.note({"case": f"{self.o.device}, {name}", "batch": batch, "dim": dim}, self.train, path, n_train, flags_of_case)

    def auc(self):
        """The test AUC of both devices, seed by seed."""
        path, n_train = self.rig.text()
        threads = min(os.cpu_count(), 16)  # they change no result
        for seed in SEEDS:
            for device in (self.o.device, "cpu"):
                self.note({"case": f"AUC, {device}, seed {seed}, {self.rig.data_name}", "device": device, "seed": seed}, self.train, path,
                          n_train, ["--local", "--device", device, "--batch", 2048, "--seed", seed, "--threads", threads, *STEADY])


def steady(lines):
    """Samples a second from the first report after the first epoch until the end; None if there is no such report."""
    first, last = next((line for line in lines if line["event"] == "progress" and line["epoch"]), None), lines[-1]
    if not first or first["samples"] == last["samples"]:
        return None
    return (last["samples"] - first["samples"]) / (last["seconds"] - first["seconds"])


def main():
    p = rig.options(__doc__, "end_to_end", 1)
    p.set_defaults(cpus=",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0))))
    p.add_argument("out", type=pathlib.Path, help="one line for each case")
    p.add_argument("--device", default="cuda", help="[%(default)s]")
    p.add_argument("--part", choices=["speed", "auc"], help="[both]")
    o = rig.read(p)
    o.json = o.out
    with rig.Rig(o) as rig_:
        ends = Ends(o, rig_)
        for part in [o.part] if o.part else ["speed", "auc"]:
            getattr(ends, part)()


rig.run(main)

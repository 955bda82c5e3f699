#!/usr/bin/python3
"""psworker on the GPU, with psd on the same machine over loopback, and its test AUC against the CPU's: end_to_end.py BIN FILE

Speed is that of synthetic rows that have been parsed before: training reads them from a cache. One line a case in FILE; a case that fails
has a sentence in place of a result.
"""
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import rig  # noqa: E402

ROWS, QUICK_ROWS, EPOCHS, DIM, SEEDS = 500_000, 20_000, 5, 16, [1, 2, 3]
MLPS = ["--bottom", "512,256", "--top", "1024,1024,512,256"]
LITTLE = ["--push-codec", "int8", "--pull-codec", "bf16", "--dense-pull-codec", "bf16"]
OVERLAP = ["--mode", "ssp", "--staleness", 4, "--ahead", 3]
CASES = [
    ("batch 8192, int8 pushes, bf16 pulls, ahead 3", 8192, [*OVERLAP, *LITTLE]),
    ("batch 65536, int8 pushes, bf16 pulls, ahead 3", 65536, [*OVERLAP, *LITTLE]),
    ("batch 8192, fp32 on the wire, in step", 8192, []),
    ("batch 8192, in this process", 8192, ["--local"]),
]


class Ends:
    def __init__(self, o, rig_):
        self.o, self.rig = o, rig_
        self.n_rows = QUICK_ROWS if o.quick else ROWS
        self.shards = max(1, min(8, os.cpu_count() // 2))

    def train(self, path, n_train, flags):
        words = ["--data", path, "--train-rows", n_train, *flags]
        if "--local" in flags:
            return self.rig.psworker("train", words)
        with self.rig.psd("--shards", self.shards) as address:
            return self.rig.psworker("train", [*words, "--servers", address])

    def note(self, case, run, *args):
        """One line: what has been measured, or why not."""
        try:
            case["result"] = rig.watched(run, *args)
        except rig.Trouble as trouble:
            case["why"] = str(trouble).splitlines()[0][:300]
        with open(self.o.json, "a") as out:
            out.write(json.dumps({**case, "shards": self.shards}) + "\n")

    def speed(self):
        path, n_train = self.rig.scratch / "synthetic.tsv", self.n_rows - self.n_rows // 20
        flags = ["--data-cache", self.rig.scratch / "cache", "--dim", DIM]
        self.rig.call([self.o.bin / "psworker", "synth", "--rows", self.n_rows, "--seed", 1, "--output", path])
        # A small model fills the cache.
        self.train(path, n_train, [*flags, "--local", "--device", "cpu", "--bottom", 8, "--top", 8, "--batch", 8192])
        for name, batch, more in CASES:
            self.note({"case": f"{self.o.device}, {name}", "batch": batch, "dim": DIM}, self.train, path, n_train,
                      [*flags, "--device", self.o.device, *MLPS, "--batch", batch, "--epochs", 1 if self.o.quick else EPOCHS, *more])

    def auc(self):
        """The test AUC of both devices, seed by seed."""
        path, n_train = self.rig.text()
        for seed in SEEDS:
            for device in (self.o.device, "cpu"):
                self.note({"case": f"AUC, {device}, seed {seed}, {self.rig.data_name}", "device": device, "seed": seed}, self.train, path,
                          n_train, ["--local", "--device", device, "--batch", 2048, "--seed", seed])


def main():
    p = rig.options(__doc__, "end_to_end", 1)
    p.set_defaults(cpus=",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0))))
    p.add_argument("out", type=pathlib.Path, help="one line for each case")
    p.add_argument("--device", default="cuda", help="[%(default)s]")
    o = rig.read(p)
    o.json = o.out
    o.json.write_text("")
    with rig.Rig(o) as rig_:
        ends = Ends(o, rig_)
        ends.speed()
        ends.auc()


rig.run(main)

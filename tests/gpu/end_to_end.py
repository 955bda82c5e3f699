#!/usr/bin/python3
"""psworker on the GPU and on the CPU, with psd on the same machine over loopback: end_to_end.py BIN FILE

Rows are synthetic, and parsed before: training reads them from a cache. One line a case in FILE; a case that fails has a sentence.
"""
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import rig  # noqa: E402

ROWS, DIM = 500_000, 16
MLPS = ["--bottom", "512,256", "--top", "1024,1024,512,256"]
LITTLE = ["--push-codec", "int8", "--pull-codec", "bf16", "--dense-pull-codec", "bf16"]
OVERLAP = ["--mode", "ssp", "--staleness", 4, "--ahead", 3]
CASES = [
    ("GPU, batch 8192, int8 pushes, bf16 pulls, ahead 3", 8192, ["--device", "cuda", *OVERLAP, *LITTLE]),
    ("GPU, batch 65536, int8 pushes, bf16 pulls, ahead 3", 65536, ["--device", "cuda", *OVERLAP, *LITTLE]),
    ("GPU, batch 8192, fp32 on the wire", 8192, ["--device", "cuda"]),
    ("GPU, batch 8192, in this process", 8192, ["--device", "cuda", "--local"]),
    ("CPU, batch 8192, int8 pushes, bf16 pulls, ahead 3", 8192, ["--device", "cpu", *OVERLAP, *LITTLE]),
]


def run(rig_, path, batch, flags, shards):
    words = ["--data", path, "--train-rows", ROWS * 9 // 10, "--data-cache", rig_.scratch / "cache", "--dim", DIM, *MLPS,
             "--batch", batch, *flags]
    if "--local" in flags:
        return rig_.psworker("train", words)
    with rig_.psd("--shards", shards) as address:
        return rig_.psworker("train", [*words, "--servers", address])


def measure(o, rig_):
    path, shards = rig_.scratch / "rows.tsv", max(1, min(8, os.cpu_count() // 2))
    rig_.call([o.bin / "psworker", "synth", "--rows", ROWS, "--seed", 1, "--output", path])
    run(rig_, path, 8192, ["--device", "cpu", "--local"], shards)  # fills the cache
    for name, batch, flags in CASES:
        case = {"case": name, "batch": batch, "dim": DIM, "shards": shards}
        try:
            case |= {"result": rig.watched(run, rig_, path, batch, flags, shards)}
        except rig.Trouble as trouble:
            case |= {"why": str(trouble).splitlines()[0][:300]}
        with open(o.json, "a") as out:
            out.write(json.dumps(case) + "\n")


def main():
    p = rig.options(__doc__, "end_to_end", 1)
    p.set_defaults(cpus=",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0))))
    p.add_argument("out", type=pathlib.Path, help="one line for each case")
    o = rig.read(p)
    o.json = o.out
    o.json.write_text("")
    with rig.Rig(o) as rig_:
        measure(o, rig_)


rig.run(main)

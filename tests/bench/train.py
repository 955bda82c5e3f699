#!/usr/bin/python3
"""Samples a second and wire bytes a sample of psworker, as ratios to --local in the same run.

usage: train.py BIN_DIR [rounds]      writes build/bench/train.json, prints a markdown table

Data: the first 99,000 rows of the Criteo sample where it is (PS_SHARED, default ../shared), else psworker synth's.
The order of the settings changes from round to round, so that a machine that slows down hits all alike.
"""
import datetime
import json
import os
import pathlib
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile

BIN = pathlib.Path(sys.argv[1])
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 3
ROOT = pathlib.Path(__file__).resolve().parents[2]
CRITEO = pathlib.Path(os.environ.get("PS_SHARED", ROOT / "../shared")) / "data/criteo/criteo_dev_110000.tsv.zst"
SETTINGS = [
    ("in this process, batch 128", ["--local", "--batch", 128]),
    ("psd, fp32, batch 128", ["--batch", 128]),
    ("psd, int8 pushes, batch 128", ["--batch", 128, "--push-codec", "int8"]),
    ("psd, int8 pushes, bf16 pulls, batch 128", ["--batch", 128, "--push-codec", "int8", "--pull-codec", "bf16",
                                                 "--dense-pull-codec", "bf16"]),
    ("psd, 1-bit pushes, batch 128", ["--batch", 128, "--push-codec", "onebit"]),
    ("in this process, batch 2048", ["--local", "--batch", 2048]),
    ("psd, fp32, batch 2048", ["--batch", 2048]),
    ("psd, int8 pushes, bf16 pulls, batch 2048", ["--batch", 2048, "--push-codec", "int8", "--pull-codec", "bf16",
                                                  "--dense-pull-codec", "bf16"]),
]


def start_psd(dir):
    log = open(dir / "psd.log", "w+")
    proc = subprocess.Popen([BIN / "psd", "--listen", "127.0.0.1:0", "--shards", "1"], stderr=log)
    while True:
        m = re.search(r"listening on ([^,\s]+)", (dir / "psd.log").read_text())
        if m:
            return proc, m[1]
        if proc.poll() is not None:
            sys.exit((dir / "psd.log").read_text())


def train(data, flags, dir):
    proc, address = (None, "") if "--local" in flags else start_psd(dir)
    where = [] if proc is None else ["--servers", address]
    out = subprocess.run([BIN / "psworker", "train", "--format", "criteo", "--data", data, "--train-rows", "99000", "--json", "-",
                          "--log-level", "warn", *where, *map(str, flags)], check=True, capture_output=True, text=True).stdout
    if proc:
        proc.send_signal(signal.SIGTERM)
        proc.wait()
    return json.loads(out.splitlines()[-1])


def cpu():
    with open("/proc/cpuinfo") as f:
        names = [line.split(":")[1].strip() for line in f if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


def main():
    with tempfile.TemporaryDirectory() as d:
        dir, data = pathlib.Path(d), CRITEO
        if not CRITEO.exists():
            data = dir / "synth.tsv"
            subprocess.run([BIN / "psworker", "synth", "--rows", "110000", "--output", data], check=True)
        runs = {name: [] for name, _ in SETTINGS}
        for i in range(ROUNDS):
            for name, flags in SETTINGS[i % len(SETTINGS):] + SETTINGS[:i % len(SETTINGS)]:
                runs[name].append(train(data, flags, dir))
    rows, base = [], {}
    for name, flags in SETTINGS:
        batch = flags[flags.index("--batch") + 1]
        rate = statistics.median(r["samples_per_s"] for r in runs[name])
        base.setdefault(batch, rate)
        rows.append({"setting": name, "samples_per_s": round(rate), "ratio_to_local": round(rate / base[batch], 3),
                     "wire_bytes_per_sample": round(runs[name][0]["wire_bytes_per_sample"]), "auc": round(runs[name][0]["auc"], 4)})
    report = {"date": datetime.date.today().isoformat(), "cpu": cpu(), "rounds": ROUNDS,
              "data": "criteo sample" if data == CRITEO else "synth", "rows": rows}
    target = ROOT / "build/bench"
    target.mkdir(parents=True, exist_ok=True)
    (target / "train.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"{report['date']}, {report['cpu']}, {report['data']}, medians of {ROUNDS}\n")
    print("| setting | samples/s | / local | wire bytes a sample | AUC |\n| --- | --- | --- | --- | --- |")
    for r in rows:
        print(f"| {r['setting']} | {r['samples_per_s']:,} | {r['ratio_to_local']:.2f} | {r['wire_bytes_per_sample']:,} | {r['auc']:.4f} |")


main()

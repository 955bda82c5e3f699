#!/usr/bin/python3
"""What a job learns that says nothing of its model and training: AUC and log-loss of one pass over the Criteo sample with two batch sizes,
and of three passes over Adult; beside it what the settings of the demo learn. Means and standard deviations of seeds.

    tests/bench/learned.py build/release/bin                      # about 3 minutes on an idle machine; also: make bench-learned
    tests/bench/learned.py build/release/bin --choose --flag=--dense-lr=0.0005 --seeds 1,2

The first 99,000 rows of the sample train and the last 11,000 test. --choose takes the first 88,000 and the 11,000 after them: what a default
is chosen by has seen no test row. Adult's own test file tests; --choose takes the last 6,512 rows of its training file. One validation part
favours some settings by chance: --parts 1,2 adds a second one, the rows before the first, with training rows that end before it.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = pathlib.Path(os.environ.get("PS_SHARED", ROOT / "../shared"))
CRITEO = SHARED / "data/criteo/criteo_dev_110000.tsv.zst"
DEMO = ROOT / "deploy/adult.conf"
LINEAR = SHARED / "golden/criteo/lr_dev.json"
N_TRAIN, N_VALIDATE = 99000, 11000
ADULT, ADULT_N_TRAIN, ADULT_N_VALIDATE = ROOT / "tests/data/adult.data.zst", 32561, 6512


def read_options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("bin", type=pathlib.Path, help="the folder of psworker")
    p.add_argument("--seeds", default="1,2,3,4,5,6,7,8", help="[%(default)s]")
    p.add_argument("--batches", default="128,2048", help="of the Criteo sample [%(default)s]")
    p.add_argument("--choose", action="store_true", help="validate on rows of the training part")
    p.add_argument("--parts", default="1", help="with --choose, which validation parts: 1, 2 or 1,2 [%(default)s]")
    p.add_argument("--rows", default="criteo,adult,demo", help="lines of the table [%(default)s]")
    p.add_argument("--flag", action="append", default=[], help="one more flag of psworker; repeatable")
    o = p.parse_args()
    o.seeds, o.batches, o.rows, o.parts = o.seeds.split(","), o.batches.split(","), o.rows.split(","), o.parts.split(",")
    if set(o.parts) - {"1", "2"} or (o.parts != ["1"] and not o.choose):
        p.error(f"--parts: found {','.join(o.parts)}, expected 1, 2 or 1,2, and --choose")
    strange = [name for name in o.rows if name not in ROWS]
    if strange:
        p.error(f"--rows: found {strange[0]}, expected {','.join(ROWS)}")
    return o


def run(o, *flags):
    """AUC and log-loss of a run of each seed."""
    figures = []
    for seed in o.seeds:
        done = subprocess.run([o.bin / "psworker", "train", "--local", "--device", "cpu", "--seed", seed, "--json", "-", *map(str, flags), *o.flag],
                              capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"learned.py: psworker ended with {done.returncode}:\n{done.stderr[-2000:]}")
        r = json.loads(done.stdout.splitlines()[-1])
        figures.append((r["auc"], r["logloss"]))
    return figures


def row(name, figures):
    aucs, losses = zip(*figures)
    spread = statistics.stdev(aucs) if len(aucs) > 1 else 0
    print(f"| {name} | {statistics.mean(aucs):.4f} ± {spread:.4f} | {min(aucs):.4f} to {max(aucs):.4f} | {statistics.mean(losses):.4f} |", flush=True)


def text_of(packed, n_rows, to):
    """The first rows of a packed log: what is behind them is in no file that psworker sees."""
    with subprocess.Popen(["zstd", "-dcq", packed], stdout=subprocess.PIPE) as log, open(to, "wb") as out:
        for _ in range(n_rows):
            out.write(log.stdout.readline())
        log.stdout.close()
    return to


def chosen(o, packed, n_train, n_validate, folder):
    """Of each validation part: what to add to the line's name, a file that ends with it, and the rows of the file that train."""
    for part in map(int, o.parts):
        n = n_train - (part - 1) * n_validate
        name = f", part {part}" if len(o.parts) > 1 else ""
        yield name, text_of(packed, n, folder / f"{packed.name}.{part}"), n - n_validate


def criteo(o, folder):
    if not CRITEO.exists():
        print(f"Criteo is left out: {CRITEO} is not there, and PS_SHARED names no other place", file=sys.stderr)
        return
    parts = list(chosen(o, CRITEO, N_TRAIN, N_VALIDATE, folder)) if o.choose else [("", CRITEO, N_TRAIN)]
    for batch in o.batches:
        for name, data, n in parts:
            row(f"Criteo sample, batch {batch}{name}", run(o, "--format", "criteo", "--data", data, "--train-rows", n, "--batch", batch,
                                                          "--data-cache", folder / "cache"))
    if LINEAR.exists() and not o.choose:
        best = {r["features"]: r for r in sorted(json.loads(LINEAR.read_text())["results"], key=lambda r: r["auc"])}
        for features, name in (("num", "13 logarithms"), ("bucket", "13 bucketised integers")):
            r = best[features]
            print(f"| logistic regression, hashed, {name}, C={r['C']:g} | {r['auc']:.4f} | | {r['logloss']:.4f} |")


def adult_rows(o, folder):
    if not o.choose:
        return [("", ["--data", ADULT, "--valid", ROOT / "tests/data/adult.test.zst"])]
    return [(name, ["--data", data, "--train-rows", n]) for name, data, n in chosen(o, ADULT, ADULT_N_TRAIN, ADULT_N_VALIDATE, folder)]


def adult(o, folder):
    """What the demo's job says of the data, and nothing of the model and the training."""
    text = DEMO.read_text()
    data = folder / "adult.conf"
    data.write_text(text[text.index("[data]"):text.index("[job]")])
    for name, rows in adult_rows(o, folder):
        row(f"Adult, 3 passes, batch 128{name}", run(o, "--config", data, *rows, "--epochs", 3))


def demo(o, folder):
    for name, rows in adult_rows(o, folder):
        row(f"Adult, deploy/adult.conf{name}", run(o, "--config", DEMO, *rows))


ROWS = {"criteo": criteo, "adult": adult, "demo": demo}


def main():
    o = read_options()
    print(f"seeds {','.join(o.seeds)}; {'validation rows of the training part' if o.choose else 'test rows'} {' '.join(o.flag)}")
    print("| rows | AUC, mean and standard deviation | least and greatest | log-loss |\n| --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in o.rows:
            ROWS[name](o, pathlib.Path(folder))


main()

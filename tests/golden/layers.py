#!/usr/bin/python3
"""Golden numbers of layers of more than 16,384 floats: `python3 tests/golden/layers.py OUT` writes OUT/layer_NAME/*.npy and manifest.txt.

    tar c --sort=name --owner=0 --group=0 --mtime=@0 -C OUT . | zstd -19 --long=27 -o tests/golden/layers.tar.zst

The steps of LAMB and LARS of papers.py, NumPy in float64, on a layer of 170 x 250. So that the archive is small, weights and gradients are products
of a column and a row, in float32, and of the weights after a step every 97th stands here, with the norms of all. The tolerance is six times the
largest difference between float32 and float64.
"""
import argparse

import numpy as np

from models import Case, round_up
from papers import CASES

ROWS, COLS, STEPS, EVERY = 170, 250, 5, 97


def draw():
    """The columns and rows of the first weights, and of the gradients of each step. One row of the layer has no gradient."""
    rng = np.random.RandomState(20261127)
    a, b = rng.normal(scale=0.3, size=(1 + STEPS, ROWS)), rng.normal(scale=0.3, size=(1 + STEPS, COLS))
    a[1:, 7] = 0
    return a.astype(np.float32), b.astype(np.float32)


def run(rule, h, a, b, f):
    p, s, out, norms = np.outer(a[0], b[0]).astype(f), {}, [], []
    for t in range(1, STEPS + 1):
        p = rule(p, np.outer(a[t], b[t]).astype(f), t, s, h, f)
        out.append(p.ravel()[::EVERY])
        norms.append(np.sqrt((p.astype(np.float64) ** 2).sum()))
    return {"p": np.stack(out), "norm": np.array(norms)}


def write(folder, name):
    rule, _, h, _ = CASES[name]
    a, b = draw()
    case = Case(folder, f"layer_{name}")
    for key, value in (("rows", ROWS), ("cols", COLS), ("steps", STEPS), ("every", EVERY), *h.items()):
        case.param(key, value)
    case.put("a", a, "input")
    case.put("b", b, "input")
    want, rounded = (run(rule, h, a, b, f) for f in (np.float64, np.float32))
    for array, x in want.items():
        off = np.max(np.abs(x - rounded[array].astype(np.float64)))
        case.put(array, x.astype(np.float32), "expect", round_up(max(6 * float(off), 5e-7 * float(np.max(np.abs(x))))), 1e-5)
    case.close()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("out", help="a folder that is not there yet")
    out = args.parse_args().out
    for name in ("lamb", "lars"):
        write(out, name)


if __name__ == "__main__":
    main()

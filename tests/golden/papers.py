#!/usr/bin/python3
"""Golden numbers from the papers' formulas alone: `python3 tests/golden/papers.py OUT` writes OUT/paper_NAME/*.npy and manifest.txt.

    tar c --sort=name --owner=0 --group=0 --mtime=@0 -C OUT . | zstd -19 --long=27 -o tests/golden/papers.tar.zst

NumPy in float64, rounded to float32 at the end. LAMB (You et al. 2020, algorithm 2, with bias correction) and LARS (You, Gitman, Ginsburg
2017, algorithm 1) take the whole table of 50 x 8 for a layer, as papers do; CAME (Luo et al. 2023, algorithm 2) takes its 400 weights for a matrix of
20 x 20; SM3-II (Anil et al. 2019) has rows as cover sets; AdamW is
algorithm 2 of Loshchilov and Hutter 2019; Lion algorithm 2 of Chen et al. 2023. rowwise_moment is row-wise Adagrad with its second moment divided by
c = 4 (Zhang et al. 2025, Two-dimensional Sparse Parallelism).

DC-ASGD is algorithms 1 and 2 of Zheng et al. 2017 with four workers, all of which pull the first weights: at step t worker `worker[t]` pushes a
gradient of what it pulled last, and pulls. dcasgd_c has a constant lambda, dcasgd_a lambda / sqrt(mean square + 1e-7) with m = 0.

10 steps. Row 5 has tiny gradients, row 6 large ones, row 7 zeros, row 8 a column of zeros; sparse step 6 is empty. The tolerance is six times the
largest difference between float32 and float64.
"""
import argparse

import numpy as np

from models import Case, round_up

ROWS, COLS, STEPS = 50, 8, 10
WORKER = [0, 1, 2, 3, 0, 2, 1, 1, 3, 0]


def scale_rows(g, rows):
    g = g.copy()
    for i, row in enumerate(rows):
        g[i] *= np.float32({5: 1e-8, 6: 100, 7: 0}.get(row, 1))
        if row == 8:
            g[i, 3] = 0
    return g


def coalesce(rows, g):
    unique, inverse = np.unique(rows, return_inverse=True)
    out = np.zeros((len(unique), COLS))
    np.add.at(out, inverse, g.astype(np.float64))
    return unique.astype(np.int64), out.astype(np.float32)


def draw_step(rng, t):
    rows = np.zeros(0, np.int64)
    if t != 6:
        u = rng.choice(ROWS, size=12, replace=False)
        u[:4] = [5, 6, 7, 8] if t % 3 == 0 else u[:4]
        u = np.array(list(dict.fromkeys(u.tolist())))
        rows = rng.permutation(np.concatenate([u, rng.choice(u, size=8)]))
    return coalesce(rows, scale_rows(rng.normal(scale=0.1, size=(len(rows), COLS)).astype(np.float32), rows))


def draw():
    """The first weights, gradients of all rows, and for each step the rows that it names with theirs."""
    rng = np.random.RandomState(20240601)
    p0 = rng.normal(scale=0.3, size=(ROWS, COLS)).astype(np.float32)
    g = np.stack([scale_rows(rng.normal(scale=0.1, size=(ROWS, COLS)).astype(np.float32), range(ROWS)) for _ in range(STEPS)])
    g[0, :, 2] = 0
    return p0, g, [draw_step(rng, t) for t in range(STEPS)]


def adamw(p, g, t, s, h, f):
    p = p * f(1 - h["lr"] * h["weight_decay"])
    s["m"] = f(h["beta1"]) * s.get("m", 0) + f(1 - h["beta1"]) * g
    s["v"] = f(h["beta2"]) * s.get("v", 0) + f(1 - h["beta2"]) * g * g
    return p - f(h["lr"] / (1 - h["beta1"] ** t)) * s["m"] / (np.sqrt(s["v"]) / f(np.sqrt(1 - h["beta2"] ** t)) + f(h["eps"]))


def lion(p, g, t, s, h, f):
    m = s.get("m", np.zeros_like(p))
    s["m"] = f(h["beta2"]) * m + f(1 - h["beta2"]) * g
    return p * f(1 - h["lr"] * h["weight_decay"]) - f(h["lr"]) * np.sign(f(h["beta1"]) * m + f(1 - h["beta1"]) * g)


def lamb(p, g, t, s, h, f):
    s["m"] = f(h["beta1"]) * s.get("m", 0) + f(1 - h["beta1"]) * g
    s["v"] = f(h["beta2"]) * s.get("v", 0) + f(1 - h["beta2"]) * g * g
    u = s["m"] / f(1 - h["beta1"] ** t) / (np.sqrt(s["v"] / f(1 - h["beta2"] ** t)) + f(h["eps"])) + f(h["weight_decay"]) * p
    return p - f(h["lr"]) * np.sqrt((p * p).sum()) / np.sqrt((u * u).sum()) * u


def lars(p, g, t, s, h, f):
    w, n = np.sqrt((p * p).sum()), np.sqrt((g * g).sum())
    s["b"] = f(h["momentum"]) * s.get("b", 0) + f(h["lr"]) * w / (n + f(h["weight_decay"]) * w) * (g + f(h["weight_decay"]) * p)
    return p - s["b"]


def sm3(p, g, t, s, h, f):
    nu = s.get("s", np.zeros(ROWS, f))[:, None] + g * g
    s["s"] = nu.max(1)
    return p - f(h["lr"]) * np.where(g == 0, f(0), g / np.sqrt(np.where(nu == 0, f(1), nu)))


def came(p, g, t, s, h, f):
    p, g = p.reshape(20, 20), g.reshape(20, 20)

    def follow(name, value, beta):
        s[name] = f(beta) * s.get(name, np.zeros_like(value)) + f(1 - beta) * value
        return s[name]

    def root(rows, columns):
        return np.sqrt(rows[:, None] * columns[None, :] / rows.mean(dtype=f))

    square = g * g + f(1e-30)
    r, c = follow("r", square.mean(1, dtype=f), h["beta2"]), follow("c", square.mean(0, dtype=f), h["beta2"])
    u = g / root(r, c)
    u = u / max(f(1), np.sqrt((u * u).mean(dtype=f)))
    m = follow("m", u, h["beta1"])
    unstable = (u - m) ** 2 + f(1e-16)
    unstable_r, unstable_c = follow("R", unstable.mean(1, dtype=f), 0.9999), follow("C", unstable.mean(0, dtype=f), 0.9999)
    return (p - f(h["lr"]) * (m / root(unstable_r, unstable_c) + f(h["weight_decay"]) * p)).reshape(ROWS, COLS)


def rowwise_moment(p, g, t, s, h, f):
    s["s"] = s.get("s", np.zeros(ROWS, f)) + (g * g).mean(1)
    root = np.sqrt(s["s"] / f(h["moment_divisor"]))[:, None]
    return p - f(h["lr"]) * g / (root + f(h["eps"]))


def dcasgd(p, g, t, s, h, f):
    then = s.setdefault("then", [p] * 4)
    scale = f(h["lambda"]) if h["constant"] else f(h["lambda"]) / np.sqrt(g * g + f(1e-7))
    p = p - f(h["lr"]) * (g + scale * g * g * (p - then[WORKER[t - 1]]))
    then[WORKER[t - 1]] = p
    return p


# Case: rule, dense or sparse, numbers, states. Gradients of row 6 of DC-ASGD are a fiftieth: of 10, g g makes every run unstable.
CASES = {"adamw": (adamw, "dense", {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}, "mv"),
         "lion": (lion, "dense", {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.5}, "m"),
         "lamb": (lamb, "dense", {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.01}, "mv"),
         "lars": (lars, "dense", {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01, "eps": 1e-12}, "b"),
         "came": (came, "dense", {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01}, "mrcRC"),
         "sm3": (sm3, "sparse", {"lr": 0.1, "eps": 1e-30}, "s"),
         "rowwise_moment": (rowwise_moment, "sparse", {"lr": 0.1, "eps": 1e-8, "moment_divisor": 4}, "s"),
         "dcasgd_c": (dcasgd, "dense", {"lr": 0.1, "lambda": 2, "constant": 1}, ""),
         "dcasgd_a": (dcasgd, "dense", {"lr": 0.1, "lambda": 2, "constant": 0}, "")}


def run(rule, h, states, p0, steps, f):
    p, s, out = p0.astype(f), {}, []
    for t, (rows, g) in enumerate(steps, 1):
        whole = np.zeros((ROWS, COLS), f)
        whole[rows] = g
        p = rule(p, whole, t, s, h, f)
        out.append({"p": p} | {f"state_{k}": s[k] for k in states})
    return {k: np.stack([o[k] for o in out]) for k in out[0]}


def write(folder, name):
    rule, kind, h, states = CASES[name]
    p0, dense, sparse = draw()
    if rule is dcasgd:
        dense[:, 6] *= np.float32(0.02)
    steps = sparse if kind == "sparse" else [(np.arange(ROWS), g) for g in dense]
    case = Case(folder, f"paper_{name}")
    for key, value in (("kind", kind), ("rows", ROWS), ("cols", COLS), ("steps", STEPS), *h.items()):
        case.param(key, value)
    case.put("p0", p0, "input")
    if kind == "dense":
        case.put("g", dense, "input")
    else:
        case.put("co_start", np.cumsum([0] + [len(rows) for rows, _ in steps]), "input")
        case.put("co_idx", np.concatenate([rows for rows, _ in steps]), "input")
        case.put("co_rows", np.concatenate([g for _, g in steps]), "input")
    if rule is dcasgd:
        case.put("worker", np.array(WORKER), "input")
    want, rounded = (run(rule, h, states, p0, steps, f) for f in (np.float64, np.float32))
    for array, a in want.items():
        off = np.abs(a - rounded[array].astype(np.float64))
        worst = np.max(off) if array == "p" else np.max(np.maximum(6 * off - 1e-5 * np.abs(a), 0)) / 6
        least = 5e-7 * np.max(np.abs(a)) if array == "p" else 1e-35
        case.put(array, a.astype(np.float32), "expect", round_up(max(6 * float(worst), float(least))), 1e-5)
    case.close()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("out", help="a folder that is not there yet")
    out = args.parse_args().out
    for name in CASES:
        write(out, name)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""Golden numbers of AdamW, Lion, LAMB, LARS, SM3 and CAME: `python3 tests/golden/optimizers.py OUT` writes OUT/opt_NAME/*.npy and manifest.txt.

Debian's python3-torch (1.13) and NumPy, one thread. The archive is made of them:

    tar c --sort=name --owner=0 --group=0 --mtime=@0 -C OUT . | zstd -19 --long=27 -o tests/golden/optimizers.tar.zst

opt_adamw_dense is torch.optim.AdamW. In opt_adamw_sparse torch.optim.SparseAdam steps the rows that a step names, and before it ALL rows that
have had a gradient decay: psd does that lazily, so what it shows of a row is the row as it was at its last step. The others are the
papers' algorithms in float64: Lion (Chen et al. 2023, algorithm 2; decay as with AdamW), LAMB (You et al. 2020, algorithm 2, with bias
correction) and LARS (You, Gitman, Ginsburg 2017, algorithm 1; lr is global rate times trust coefficient) with a norm for each row, and SM3-II
(Anil et al. 2019) with rows as cover sets. CAME (Luo et al. 2023, algorithm 2, with the constants of the paper's code) takes each row of 8 for
a matrix of 2 x 4; so does sm3_matrix, SM3-II with rows and columns as cover sets.

10 steps on a table of 50 x 8. Row 5 has gradients of 1e-9, row 6 of 10, row 7 zeros, row 8 a column of zeros; row 9 starts at 0; sparse step 6
is empty. The tolerance is six times the largest difference between float32 and float64, of state beyond 1e-5 of itself.
"""
import argparse

import numpy as np
import torch

from models import Case, round_up

ROWS, COLS, STEPS = 50, 8, 10
HYPER = {"adamw": {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1},
         "lion": {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.5},
         "lamb": {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.01},
         "lars": {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01, "eps": 1e-8},
         "sm3": {"lr": 0.1, "eps": 1e-30},
         "sm3_matrix": {"lr": 0.1, "eps": 1e-30},
         "came": {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1}}


def draw(kind, seed):
    """The first weights, and of each step the rows that it names with their gradients."""
    rng = np.random.default_rng(seed)
    p0 = rng.normal(scale=0.3, size=(ROWS, COLS)).astype(np.float32)
    p0[9] = 0
    steps = []
    for t in range(STEPS):
        rows = np.arange(ROWS)
        if kind == "sparse":
            rows = np.sort(rng.choice(ROWS, size=0 if t == 6 else rng.integers(5, 20), replace=False))
        g = rng.normal(size=(len(rows), COLS)).astype(np.float32)
        for row, factor in ((5, 1e-9), (6, 10), (7, 0)):
            g[rows == row] *= np.float32(factor)
        g[rows == 8, 3] = 0
        steps.append((rows, g))
    return p0, steps


def adamw_dense(p0, steps, h, dtype):
    p = torch.nn.Parameter(torch.from_numpy(p0).to(dtype))
    o = torch.optim.AdamW([p], lr=h["lr"], betas=(h["beta1"], h["beta2"]), eps=h["eps"], weight_decay=h["weight_decay"])
    for t, (_, g) in enumerate(steps):
        p.grad = torch.from_numpy(g).to(dtype)
        o.step()
        s = o.state[p]
        yield {"p": p, "state_m": s["exp_avg"], "state_v": s["exp_avg_sq"], "state_t": torch.full((ROWS,), t + 1.0)}


def adamw_sparse(p0, steps, h, dtype):
    p = torch.nn.Parameter(torch.from_numpy(p0).to(dtype))
    o = torch.optim.SparseAdam([p], lr=h["lr"], betas=(h["beta1"], h["beta2"]), eps=h["eps"])
    begun, shown, last = torch.zeros(ROWS, dtype=torch.bool), p.detach().clone(), torch.zeros(ROWS)
    for t, (rows, g) in enumerate(steps):
        rows = torch.from_numpy(rows)
        begun[rows] = True
        with torch.no_grad():
            p[begun] *= 1 - h["lr"] * h["weight_decay"]
        if len(rows):
            p.grad = torch.sparse_coo_tensor(rows[None], torch.from_numpy(g).to(dtype), (ROWS, COLS)).coalesce()
            o.step()
        else:  # which this SparseAdam cannot, but counts
            o.state[p]["step"] += 1
        shown[rows], last[rows] = p.detach()[rows], t + 1.0
        s = o.state[p]
        yield {"p": shown, "state_m": s["exp_avg"], "state_v": s["exp_avg_sq"], "state_t": last}


def lion(p0, steps, h, dtype):
    p = torch.from_numpy(p0).to(dtype)
    m, shown, last, begun = torch.zeros_like(p), p.clone(), torch.zeros(ROWS), torch.zeros(ROWS, dtype=torch.bool)
    for t, (rows, g) in enumerate(steps):
        rows, g = torch.from_numpy(rows), torch.from_numpy(g).to(dtype)
        begun[rows] = True
        p[begun] *= 1 - h["lr"] * h["weight_decay"]
        towards = h["beta1"] * m[rows] + (1 - h["beta1"]) * g
        assert not len(rows) or towards[towards != 0].abs().min() > 1e-13  # so that no rounding changes a sign
        p[rows] -= h["lr"] * torch.sign(towards)
        m[rows] = h["beta2"] * m[rows] + (1 - h["beta2"]) * g
        shown[rows], last[rows] = p[rows], t + 1.0
        yield {"p": shown, "state_m": m, "state_t": last}


def lamb(p0, steps, h, dtype):
    p = torch.from_numpy(p0).to(dtype)
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    for t, (rows, g) in enumerate(steps, 1):
        g = torch.from_numpy(g).to(dtype)
        for row, gr in zip(rows, g):
            m[row] = h["beta1"] * m[row] + (1 - h["beta1"]) * gr
            v[row] = h["beta2"] * v[row] + (1 - h["beta2"]) * gr ** 2
            u = m[row] / (1 - h["beta1"] ** t) / ((v[row] / (1 - h["beta2"] ** t)).sqrt() + h["eps"]) + h["weight_decay"] * p[row]
            ratio = p[row].norm() / u.norm() if p[row].norm() > 0 and u.norm() > 0 else 1
            p[row] -= h["lr"] * ratio * u
        yield {"p": p, "state_m": m, "state_v": v}


def lars(p0, steps, h, dtype):
    p = torch.from_numpy(p0).to(dtype)
    b = torch.zeros_like(p)
    for rows, g in steps:
        for row, gr in zip(rows, torch.from_numpy(g).to(dtype)):
            w, n = p[row].norm(), gr.norm()
            local = w / (n + h["weight_decay"] * w + h["eps"]) if w > 0 and n > 0 else 1
            b[row] = h["momentum"] * b[row] + h["lr"] * local * (gr + h["weight_decay"] * p[row])
            p[row] -= b[row]
        yield {"p": p, "state_b": b}


def sm3(p0, steps, h, dtype):
    p = torch.from_numpy(p0).to(dtype)
    mu = torch.zeros(ROWS, dtype=dtype)
    for rows, g in steps:
        for row, gr in zip(rows, torch.from_numpy(g).to(dtype)):
            s = mu[row] + gr ** 2
            p[row] -= torch.where(s > 0, h["lr"] * gr / s.sqrt(), torch.zeros_like(s))
            mu[row] = s.max()
        yield {"p": p, "state_s": mu}


def sm3_matrix(p0, steps, h, dtype):
    p = torch.from_numpy(p0).to(dtype).reshape(ROWS, 2, COLS // 2)
    r, c = torch.zeros(ROWS, 2, dtype=dtype), torch.zeros(ROWS, COLS // 2, dtype=dtype)
    for rows, g in steps:
        for row, gr in zip(rows, torch.from_numpy(g).to(dtype).reshape(-1, 2, COLS // 2)):
            s = torch.minimum(r[row][:, None], c[row][None, :]) + gr ** 2
            p[row] -= torch.where(s > 0, h["lr"] * gr / s.sqrt(), torch.zeros_like(s))
            r[row], c[row] = s.amax(1), s.amax(0)
        yield {"p": p.reshape(ROWS, COLS), "state_r": r, "state_c": c}


def came(p0, steps, h, dtype):
    """Each row on its own, as the authors' code steps a parameter of two dimensions."""
    p = torch.from_numpy(p0).to(dtype).reshape(ROWS, 2, COLS // 2)
    m = torch.zeros_like(p)
    r, c, big_r, big_c = (torch.zeros(ROWS, n, dtype=dtype) for n in (2, COLS // 2, 2, COLS // 2))

    def factored(row, col):
        return torch.outer((row / row.mean()).rsqrt(), col.rsqrt())

    def follow(mean, value, beta):
        mean.mul_(beta).add_(value, alpha=1 - beta)

    for rows, g in steps:
        for row, gr in zip(rows, torch.from_numpy(g).to(dtype).reshape(-1, 2, COLS // 2)):
            square = gr ** 2 + 1e-30
            follow(r[row], square.mean(1), h["beta2"])
            follow(c[row], square.mean(0), h["beta2"])
            u = factored(r[row], c[row]) * gr
            u = u / max(1, u.pow(2).mean().sqrt())
            follow(m[row], u, h["beta1"])
            unstable = (u - m[row]) ** 2 + 1e-16
            follow(big_r[row], unstable.mean(1), 0.9999)
            follow(big_c[row], unstable.mean(0), 0.9999)
            p[row] -= h["lr"] * h["weight_decay"] * p[row]
            p[row] -= h["lr"] * factored(big_r[row], big_c[row]) * m[row]
        yield {"p": p.reshape(ROWS, COLS), "state_m": m.reshape(ROWS, COLS), "state_r": r, "state_c": c, "state_R": big_r, "state_C": big_c}


def run(function, p0, steps, h, dtype):
    """Every step's arrays, one after the other."""
    rows = [{k: a.detach().to(torch.float64).numpy().copy() for k, a in out.items()} for out in function(p0, steps, h, dtype)]
    return {name: np.stack([r[name] for r in rows]) for name in rows[0]}


def write(folder, name, function, kind, seed):
    p0, steps = draw(kind, seed)
    hyper = HYPER[name]
    case = Case(folder, f"opt_{name}_{kind}")
    for key, value in (("kind", kind), ("rows", ROWS), ("cols", COLS), ("steps", STEPS), *hyper.items()):
        case.param(key, value)
    case.put("p0", p0, "input")
    if kind == "dense":
        case.put("g", np.stack([g for _, g in steps]), "input")
    else:
        case.put("co_start", np.cumsum([0] + [len(rows) for rows, _ in steps]), "input")
        case.put("co_idx", np.concatenate([rows for rows, _ in steps]), "input")
        case.put("co_rows", np.concatenate([g for _, g in steps]), "input")
    want, rounded = (run(function, p0, steps, hyper, dtype) for dtype in (torch.float64, torch.float32))
    for array, a in want.items():
        off = np.abs(a - rounded[array])
        worst = np.max(off) if array == "p" else np.max(np.maximum(6 * off - 1e-5 * np.abs(a), 0)) / 6
        least = 5e-7 * np.max(np.abs(a)) if array == "p" else 1e-35
        case.put(array, a.astype(np.float32), "expect", round_up(max(6 * float(worst), float(least))), 1e-5)
    case.close()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("out", help="a folder that is not there yet")
    out = args.parse_args().out
    torch.set_num_threads(1)
    for i, (name, function, kind) in enumerate((("adamw", adamw_dense, "dense"), ("adamw", adamw_sparse, "sparse"), ("lion", lion, "dense"),
                                                ("lion", lion, "sparse"), ("lamb", lamb, "dense"), ("lamb", lamb, "sparse"),
                                                ("lars", lars, "dense"), ("lars", lars, "sparse"), ("sm3", sm3, "dense"),
                                                ("sm3", sm3, "sparse"), ("came", came, "dense"), ("came", came, "sparse"),
                                                ("sm3_matrix", sm3_matrix, "dense"), ("sm3_matrix", sm3_matrix, "sparse"))):
        write(out, name, function, kind, i + 1)


if __name__ == "__main__":
    main()

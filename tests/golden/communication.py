#!/usr/bin/python3
"""Golden numbers of training with few messages: `python3 tests/golden/communication.py OUT` writes OUT/slowmo_NAME/*.npy and manifest.txt.

    tar c --sort=name --owner=0 --group=0 --mtime=@0 -C OUT . | zstd -19 -o tests/golden/communication.tar.zst

SlowMo (Wang, Tantia, Ballas, Rabbat 2020, algorithm 1): three workers, each with an optimizer of PyTorch that keeps its state; after every
four steps the mean of what they came to, and slow momentum. The gradients are given, so that they tell the same whatever the weights. The
tolerance is six times the largest difference between float32 and float64.

frozen_adam: behind round `freeze_after` all workers have the mean of their second moments, corrected for their start at 0, and it stays, no float of
it less than a hundredth of the mean of all (until then one column has no gradient): the
compressed stage of 1-bit Adam (Tang et al. 2021, algorithm 1) without a compression. Asserted here: each round leads the servers where that
algorithm leads by the mean gradients.
"""
import argparse

import numpy as np
import torch

from models import Case, round_up

WORKERS, ROUNDS, STEPS, ROWS, COLS = 3, 4, 4, 5, 8
CASES = {"sgd": (lambda p: torch.optim.SGD(p, lr=0.1), {"lr": 0.1, "slow_lr": 1, "slow_momentum": 0.5}),
         "momentum": (lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), {"lr": 0.05, "momentum": 0.9, "slow_lr": 1, "slow_momentum": 0}),
         "adagrad": (lambda p: torch.optim.Adagrad(p, lr=0.02), {"lr": 0.02, "eps": 1e-10, "slow_lr": 0.7, "slow_momentum": 0.8}),
         "frozen_adam": (lambda p: torch.optim.Adam(p, lr=0.003), {"lr": 0.003, "eps": 1e-8, "slow_lr": 1, "slow_momentum": 0, "freeze_after": 2}),
         "adam": (lambda p: torch.optim.Adam(p, lr=0.003), {"lr": 0.003, "eps": 1e-8, "slow_lr": 1, "slow_momentum": 0.6})}


def draw():
    rng = np.random.RandomState(20200301)
    return (rng.normal(scale=0.3, size=(ROWS, COLS)).astype(np.float32),
            rng.normal(loc=0.02, scale=0.1, size=(WORKERS, ROUNDS, STEPS, ROWS, COLS)).astype(np.float32))


class FrozenAdam:
    """1-bit Adam, algorithm 1 from line 7 on, with Adam's correction of the first moment."""

    def __init__(self, p, adam, v, h):
        state = adam.state[p]
        self.p, self.m, self.t, self.v, self.h = p, state["exp_avg"].clone(), int(state["step"]), v, h

    def step(self):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * self.p.grad
        self.p.data -= self.h["lr"] / (1 - 0.9 ** self.t) * self.m / (self.v.sqrt() + self.h["eps"])


def freeze(workers, optims, h):
    states = [o.state[w] for w, o in zip(workers, optims)]
    v = sum(s["exp_avg_sq"] / (1 - 0.999 ** int(s["step"])) for s in states) / WORKERS
    v = torch.maximum(v, v.mean() / 100)
    return [FrozenAdam(w, o, v, h) for w, o in zip(workers, optims)]


def mean_adam(optims, x0, g, h):
    """Where one worker comes to from x0, by the mean momentum, variance and gradients."""
    x, m, t = x0.clone(), sum(o.m for o in optims) / WORKERS, optims[0].t
    for grad in g.mean(0):
        t += 1
        m = 0.9 * m + 0.1 * torch.tensor(grad, dtype=x.dtype)
        x = x - h["lr"] / (1 - 0.9 ** t) * m / (optims[0].v.sqrt() + h["eps"])
    return x.numpy()


def run(make, h, p0, g, dtype):
    """What each worker has after each of its steps, and the servers after each round."""
    x0 = torch.tensor(p0, dtype=dtype)
    workers = [torch.nn.Parameter(x0.clone()) for _ in range(WORKERS)]
    optims = [make([w]) for w in workers]
    u, local, server, adam = torch.zeros_like(x0), [], [], []
    for r in range(ROUNDS):
        rate = h["lr"]
        if r == h.get("freeze_after"):
            optims = freeze(workers, optims, h)
        if r >= h.get("freeze_after", ROUNDS):
            adam.append(mean_adam(optims, x0, g[:, r].astype(np.float64), h))
        for w, optim, grads in zip(workers, optims, g[:, r]):
            w.data.copy_(x0)
            for grad in grads:
                w.grad = torch.tensor(grad, dtype=dtype)
                optim.step()
                local.append(w.detach().numpy().copy())
        mean = sum(w.detach() for w in workers) / WORKERS
        u = h["slow_momentum"] * u + (x0 - mean) / rate  # the paper's, line 7, and line 8 with alpha = slow_lr
        x0 = x0 - h["slow_lr"] * rate * u
        server.append(x0.numpy().copy())
        if adam and dtype == torch.float64:
            assert np.max(np.abs(adam[-1] - server[-1])) < 1e-12
    return {"local": np.stack(local), "server": np.stack(server)}


def write(folder, name):
    make, h = CASES[name]
    p0, g = draw()
    g[:, :h.get("freeze_after", 0), :, :, 3] = 0
    case = Case(folder, f"slowmo_{name}")
    for key, value in (("workers", WORKERS), ("rounds", ROUNDS), ("local_steps", STEPS), ("rows", ROWS), ("cols", COLS), *h.items()):
        case.param(key, value)
    case.put("p0", p0, "input")
    case.put("g", g.reshape(-1, ROWS, COLS), "input")
    want, rounded = run(make, h, p0, g, torch.float64), run(make, h, p0, g, torch.float32)
    for array, a in want.items():
        off = float(np.max(np.abs(a - rounded[array].astype(np.float64))))
        case.put(array, a.astype(np.float32), "expect", round_up(max(6 * off, 5e-7 * float(np.max(np.abs(a))))), 1e-5)
    case.close()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("out", help="a folder that is not there yet")
    out = args.parse_args().out
    for name in CASES:
        write(out, name)


if __name__ == "__main__":
    main()

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

frozen_lamb: the same of 1-bit LAMB (Li et al. 2022, algorithm 1, with the numbers and the decay of DeepSpeed's code), the table being its layer.
From the freeze on the workers have the mean of their coefficients, and each the ratio of its own fresh second moment. Asserted here: one worker
comes to where the paper's algorithm does, which makes its gradients out of the momentum.

lamb and lars: papers' algorithms of a whole table, as each worker's own steps.

adaptive: the workers' differences are merged with the weight theta = mean of |d_k|^2 / |mean of d_k|^2, in [1, workers]; `server` is where the mean
alone leads in each round.
"""
import argparse

import numpy as np
import torch

from models import Case, tolerance

WORKERS, ROUNDS, STEPS, ROWS, COLS = 3, 4, 4, 5, 8
CASES = {"sgd": (lambda p: torch.optim.SGD(p, lr=0.1), {"lr": 0.1, "slow_lr": 1, "slow_momentum": 0.5}),
         "momentum": (lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), {"lr": 0.05, "momentum": 0.9, "slow_lr": 1, "slow_momentum": 0}),
         "adagrad": (lambda p: torch.optim.Adagrad(p, lr=0.02), {"lr": 0.02, "eps": 1e-10, "slow_lr": 0.7, "slow_momentum": 0.8}),
         "frozen_adam": (lambda p: torch.optim.Adam(p, lr=0.003), {"lr": 0.003, "eps": 1e-8, "slow_lr": 1, "slow_momentum": 0, "freeze_after": 2}),
         "lamb": (lambda p: Lamb(p[0], CASES["lamb"][1]), {"lr": 0.01, "eps": 1e-6, "weight_decay": 0.02, "slow_lr": 1, "slow_momentum": 0.5}),
         "lars": (lambda p: Lars(p[0], CASES["lars"][1]),
                  {"lr": 0.01, "momentum": 0.9, "eps": 1e-8, "weight_decay": 0.02, "slow_lr": 1, "slow_momentum": 0.5}),
         "frozen_lamb": (lambda p: Lamb(p[0], CASES["frozen_lamb"][1]),
                         {"lr": 0.01, "beta2": 0.9, "eps": 1e-6, "weight_decay": 0.02, "slow_lr": 1, "slow_momentum": 0, "freeze_after": 2}),
         "adaptive": (lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5),
                      {"lr": 0.05, "momentum": 0.5, "slow_lr": 1, "slow_momentum": 0, "adaptive": 1}),
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


class Lamb:
    """Algorithm 2 of You et al. 2020, with bias correction; after freeze() the compressed stage of 1-bit LAMB without a compression."""

    def __init__(self, p, h):
        self.p, self.h, self.b2 = p, h, h.get("beta2", 0.999)
        self.m = self.v = torch.zeros_like(p.data)
        self.t, self.average, self.rest, self.shared = 0, 0, 1, None

    def second_moment(self):
        return self.v / (1 - self.b2 ** self.t)

    def coefficient(self):
        return self.average / (1 - self.rest)

    def freeze(self, v, c):
        self.least = v.mean() / 100
        self.v = self.second_moment()
        self.own, self.shared, self.c, self.ratio = self.v.clone(), torch.maximum(v, self.least), c, 1

    def follow_ratio(self, u, decayed):
        eps = self.h["eps"]
        ratio = ((torch.maximum(self.own, self.least).sqrt() + eps) / (torch.maximum(self.v, self.least).sqrt() + eps)).max().item()
        share = min(1, (u.norm() / decayed.norm()).item())
        ratio = min(4, max(0.5, ratio * share + 1 - share))
        self.ratio = min(1.1 * self.ratio, max(0.9 * self.ratio, ratio))

    def step(self):
        self.t += 1
        g, w = self.p.grad, self.p.data
        self.m = 0.9 * self.m + 0.1 * g
        self.v = self.b2 * self.v + (1 - self.b2) * g * g
        v = self.second_moment() if self.shared is None else self.shared
        u = self.m / (1 - 0.9 ** self.t) / (v.sqrt() + self.h["eps"])
        decayed = u + self.h["weight_decay"] * w
        if self.shared is None:
            c = (w.norm() / decayed.norm()).item()
            self.average, self.rest = 0.9 * self.average + 0.1 * c, 0.9 * self.rest
        else:
            self.follow_ratio(u, decayed)
            c = self.c * self.ratio
        self.p.data -= self.h["lr"] * c * decayed


class Lars:
    """Algorithm 1 of You, Gitman, Ginsburg 2017."""

    def __init__(self, p, h):
        self.p, self.h, self.b = p, h, torch.zeros_like(p.data)

    def step(self):
        g, w, wd = self.p.grad, self.p.data, self.h["weight_decay"]
        self.b = self.h["momentum"] * self.b + self.h["lr"] * w.norm() / (g.norm() + wd * w.norm() + self.h["eps"]) * (g + wd * w)
        self.p.data -= self.b


def one_bit_lamb(p0, g, h, n_warm):
    """Algorithm 1 of Li et al. of one worker, which sees momenta alone once its variance is frozen."""
    w, m, v, average, rest = p0.astype(np.float64), 0, 0, 0, 1
    for t, grad in enumerate(g.astype(np.float64), 1):
        before, m = m, 0.9 * m + 0.1 * grad
        if t <= n_warm:
            v = h["beta2"] * v + (1 - h["beta2"]) * grad ** 2
            frozen = fresh = v / (1 - h["beta2"] ** t)
            last = 1
        else:
            fresh = h["beta2"] * fresh + (1 - h["beta2"]) * ((m - 0.9 * before) / 0.1) ** 2
        prelim = m / (1 - 0.9 ** t) / (np.sqrt(frozen) + h["eps"])
        update = prelim + h["weight_decay"] * w
        if t <= n_warm:
            c = np.linalg.norm(w) / np.linalg.norm(update)
            average, rest = 0.9 * average + 0.1 * c, 0.9 * rest
        else:
            factor = ((np.sqrt(frozen) + h["eps"]) / (np.sqrt(fresh) + h["eps"])).max()
            ratio = min(1, np.linalg.norm(prelim) / np.linalg.norm(update))
            factor = np.clip(np.clip(factor * ratio + 1 - ratio, 0.5, 4), last * 0.9, last * 1.1)
            last, c = factor, average / (1 - rest) * factor
        w = w - h["lr"] * c * update
    return w


def freeze(workers, optims, h):
    if isinstance(optims[0], Lamb):
        v, c = sum(o.second_moment() for o in optims) / len(optims), sum(o.coefficient() for o in optims) / len(optims)
        for o in optims:
            o.freeze(v, c)
        return optims
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
    workers = [torch.nn.Parameter(x0.clone()) for _ in g]
    optims = [make([w]) for w in workers]
    u, local, server, adam = torch.zeros_like(x0), [], [], []
    for r in range(ROUNDS):
        rate = h["lr"]
        if r == h.get("freeze_after"):
            optims = freeze(workers, optims, h)
        if r >= h.get("freeze_after", ROUNDS) and isinstance(optims[0], FrozenAdam):
            adam.append(mean_adam(optims, x0, g[:, r].astype(np.float64), h))
        for w, optim, grads in zip(workers, optims, g[:, r]):
            w.data.copy_(x0)
            for grad in grads:
                w.grad = torch.tensor(grad, dtype=dtype)
                optim.step()
                local.append(w.detach().numpy().copy())
        mean = sum(w.detach() for w in workers) / len(workers)
        if h.get("adaptive"):
            theta = sum((x0 - w.detach()).pow(2).sum() for w in workers) / len(workers) / (x0 - mean).pow(2).sum()
            server.append(mean.numpy().copy())
            x0 = x0 - min(max(theta, 1), len(workers)) * (x0 - mean)
            continue
        u = h["slow_momentum"] * u + (x0 - mean) / rate  # the paper's, line 7, and line 8 with alpha = slow_lr
        x0 = x0 - h["slow_lr"] * rate * u
        server.append(x0.numpy().copy())
        if adam and dtype == torch.float64:
            assert np.max(np.abs(adam[-1] - server[-1])) < 1e-12
    return {"local": np.stack(local), "server": np.stack(server)}


def write(folder, name):
    make, h = CASES[name]
    p0, g = draw()
    if name == "frozen_lamb":
        one = run(make, h, p0, g[:1], torch.float64)["server"][-1]
        assert np.max(np.abs(one - one_bit_lamb(p0, g[0].reshape(-1, ROWS, COLS), h, h["freeze_after"] * STEPS))) < 1e-12
    g[:, :h.get("freeze_after", 0), :, :, 3] = 0
    case = Case(folder, f"slowmo_{name}")
    for key, value in (("workers", WORKERS), ("rounds", ROUNDS), ("local_steps", STEPS), ("rows", ROWS), ("cols", COLS), *h.items()):
        case.param(key, value)
    case.put("p0", p0, "input")
    case.put("g", g.reshape(-1, ROWS, COLS), "input")
    want, rounded = run(make, h, p0, g, torch.float64), run(make, h, p0, g, torch.float32)
    for array, a in want.items():
        case.put(array, a.astype(np.float32), "expect", tolerance(a, [rounded[array]]), 1e-5)
    case.close()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("out", help="a folder that is not there yet")
    out = args.parse_args().out
    for name in CASES:
        write(out, name)


if __name__ == "__main__":
    main()

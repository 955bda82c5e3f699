#!/usr/bin/python3
"""Golden numbers of the models beside DLRM: `python3 tests/golden/models.py OUT` writes OUT/model_CASE_OPTIMIZER/*.npy and manifest.txt.

Debian's python3-torch (1.13) and NumPy, one thread. The models are written here from their papers, with torch's own layers, autograd and
optimizers. The archive is made of them:

    tar c --sort=name --owner=0 --group=0 --mtime=@0 -C OUT . | zstd -19 --long=27 -o tests/golden/models.tar.zst

Each case: 20 batches of 24 samples, 5 numeric columns, three fields of which two have one id a sample and one has none to four, repeated
ones too. Expected are probabilities and all gradients of the first batch, the loss of each batch before its update, and all parameters
after the last. The tolerance of an array is six times the largest difference between float32, float64, and float32 from weights that are
moved by 1e-7; a seed is taken only if no pre-activation of any batch comes so near to 0 that a ReLU could flip (MARGIN).
"""
import argparse
import math
import os

import numpy as np
import torch

N_STEPS, BATCH, NUMERIC, DIM = 20, 24, 5, 8
ROWS = [5, 40, 200]
TOP = [16, 8]
MARGIN = 1e-5
LR = {"sgd": 0.1, "adagrad": 0.01}
# A case: --model, layers of a cross network, and their rank; 0: full. Then the weights of the labels in the loss.
CASES = {"lr": ("lr", 0, 0), "fm": ("fm", 0, 0), "wide_deep": ("wide_deep", 0, 0), "deepfm": ("deepfm", 0, 0), "dcnv2": ("dcnv2", 2, 0),
         "dcnv2_low_rank": ("dcnv2", 3, 4), "dcnv2_tasks": ("dcnv2", 1, 0)}
WEIGHTS = {"dcnv2_tasks": [1, 0.3]}


def draw_batches(rng, n_labels):
    batches = []
    for _ in range(N_STEPS):
        x = rng.normal(size=(BATCH, NUMERIC)).astype(np.float32)
        y = rng.integers(0, 2, size=(BATCH, n_labels)).astype(np.float32)
        bags = [[rng.integers(0, n, size=rng.integers(0, 5) if n == 40 else 1) for _ in range(BATCH)] for n in ROWS]
        batches.append((x, y, bags))
    return batches


class Model(torch.nn.Module):
    """z = what the kind adds up, a column for each label. Weights are (out, in), as torch has them."""

    def __init__(self, case, rng):
        super().__init__()
        kind, self.n_cross, self.rank = CASES[case]
        self.kind, self.margin, self.n_labels = kind, math.inf, len(WEIGHTS.get(case, [1]))
        width = 1 if kind == "lr" else DIM
        self.emb = torch.nn.ParameterList([self.draw(rng, n, width, scale=0.5) for n in ROWS])
        if kind not in ["lr", "dcnv2"]:
            self.wide = torch.nn.ParameterList([self.draw(rng, n, 1, scale=0.3) for n in ROWS])
        if kind != "dcnv2":
            self.lin_0_W, self.lin_0_b = self.draw(rng, 1, NUMERIC, scale=0.5), self.draw(rng, 1, scale=0.5)
        self.add_cross(rng, len(ROWS) * DIM + NUMERIC)
        if kind in ["wide_deep", "deepfm", "dcnv2"]:
            self.add_top(rng, len(ROWS) * DIM + NUMERIC)

    @staticmethod
    def draw(rng, *shape, scale):
        return torch.nn.Parameter(torch.tensor(rng.normal(scale=scale, size=shape).astype(np.float32)))

    def add_cross(self, rng, width):
        for i in range(self.n_cross):
            if self.rank:
                setattr(self, f"cross_{i}_V", self.draw(rng, self.rank, width, scale=math.sqrt(1 / width)))
            setattr(self, f"cross_{i}_W", self.draw(rng, width, self.rank or width, scale=math.sqrt(1 / (self.rank or width))))
            setattr(self, f"cross_{i}_b", self.draw(rng, width, scale=0.3))

    def add_top(self, rng, width):
        for i, out in enumerate(TOP + [self.n_labels]):
            setattr(self, f"top_{i}_W", self.draw(rng, out, width, scale=math.sqrt(2 / (width + out))))
            setattr(self, f"top_{i}_b", self.draw(rng, out, scale=math.sqrt(1 / out)))
            width = out

    def tensors(self):
        """Those that are no table."""
        return {name: p for name, p in self.named_parameters() if not name.startswith(("emb", "wide"))}

    def sums(self, tables, bags):
        return [torch.nn.functional.embedding_bag(torch.from_numpy(np.concatenate(b)), table,
                                                  torch.tensor(np.cumsum([0] + [len(k) for k in b[:-1]])), mode="sum")
                for table, b in zip(tables, bags)]

    def mlp(self, x):
        for i in range(len(TOP) + 1):
            x = torch.nn.functional.linear(x, getattr(self, f"top_{i}_W"), getattr(self, f"top_{i}_b"))
            if i < len(TOP):
                self.margin = min(self.margin, x.abs().min().item())
                x = torch.relu(x)
        return x

    def cross(self, x0):
        """Wang et al. 2021, equations 1 and 2."""
        x = x0
        for i in range(self.n_cross):
            narrow = torch.nn.functional.linear(x, getattr(self, f"cross_{i}_V")) if self.rank else x
            x = x0 * torch.nn.functional.linear(narrow, getattr(self, f"cross_{i}_W"), getattr(self, f"cross_{i}_b")) + x
        return x

    def forward(self, x, bags):
        vectors = self.sums(self.emb, bags)
        if self.kind == "dcnv2":
            return self.mlp(self.cross(torch.cat(vectors + [x], 1)))
        if self.kind == "lr":
            return self.first_order(x, vectors)
        z = self.first_order(x, self.sums(self.wide, bags))
        if self.kind in ["fm", "deepfm"]:
            z = z + sum((vectors[i] * vectors[j]).sum(1, keepdim=True) for i in range(len(ROWS)) for j in range(i))
        if self.kind in ["wide_deep", "deepfm"]:
            z = z + self.mlp(torch.cat(vectors + [x], 1))
        return z

    def first_order(self, x, weights):
        return torch.nn.functional.linear(x, self.lin_0_W, self.lin_0_b) + sum(weights)


def train(case, optimizer, seed, dtype=torch.float32, moved=None):
    """What the case expects, by name; the inputs beside it; the smallest pre-activation."""
    rng = np.random.default_rng(seed)
    weights = WEIGHTS.get(case, [1])
    batches, model = draw_batches(rng, len(weights)), Model(case, rng)
    start = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    if moved is not None:
        with torch.no_grad():
            for p in model.parameters():
                p *= 1 + 1e-7 * torch.from_numpy(moved.uniform(-1, 1, size=p.shape).astype(np.float32))
    model = model.to(dtype)
    make = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[optimizer]
    step = make(model.parameters(), lr=LR[optimizer])
    out, losses = {}, []
    for i, (x, y, bags) in enumerate(batches):
        z = model(torch.from_numpy(x).to(dtype), bags)
        y = torch.from_numpy(y).to(dtype)
        loss = sum(w * torch.nn.functional.binary_cross_entropy_with_logits(z[:, k], y[:, k]) for k, w in enumerate(weights))
        step.zero_grad()
        loss.backward()
        if i == 0:
            out["prob"] = np.squeeze(torch.sigmoid(z).detach().numpy())
            for name, p in model.named_parameters():
                out["d_" + name] = p.grad.numpy().copy()
        losses.append(loss.item())
        step.step()
    out["loss"] = np.array(losses)
    for name, p in model.named_parameters():
        out["after20_" + name] = p.detach().numpy().copy()
    return out, start, batches, model.margin


class Case:
    """One folder of arrays and the manifest that tests/support/npy.c reads."""

    def __init__(self, folder, name):
        self.folder, self.lines = os.path.join(folder, name), [f"case {name}"]
        os.makedirs(self.folder)

    def param(self, name, value):
        self.lines.append(f"param {name} {value}")

    def put(self, name, a, role, atol=0.0, rtol=0.0):
        a = np.ascontiguousarray(a).astype("<f4" if np.asarray(a).dtype.kind == "f" else "<i8")
        name = name.replace(".", "_")
        with open(os.path.join(self.folder, name + ".npy"), "wb") as f:
            np.lib.format.write_array(f, a, version=(1, 0), allow_pickle=False)
        kind = "f4" if a.dtype.kind == "f" else "i8"
        self.lines.append(f"array {name} {kind} {role} {atol!r} {rtol!r} {a.ndim} {' '.join(map(str, a.shape))}")

    def close(self):
        with open(os.path.join(self.folder, "manifest.txt"), "w") as f:
            f.write("\n".join(self.lines + ["end"]) + "\n")


def round_up(x):
    """To one digit."""
    e = math.floor(math.log10(x))
    return float(f"{math.ceil(x / 10 ** e)}e{e}")


def tolerance(a, others):
    worst = max(float(np.max(np.abs(a.astype(np.float64) - o))) for o in others)
    return round_up(max(6 * worst, 5e-7 * float(np.max(np.abs(a))), 1e-12))


def put_inputs(case, batches, start):
    case.put("X", np.stack([x for x, _, _ in batches]), "input")
    case.put("y", np.stack([np.squeeze(y, 1) if y.shape[1] == 1 else y for _, y, _ in batches]), "input")
    # Bag (table, sample) of a step: from its offset to the next one's, the last to the segment's end.
    segments = [bags[k] for _, _, bags in batches for k in range(len(ROWS))]
    case.put("seg", np.cumsum([0] + [sum(map(len, s)) for s in segments]), "input")
    case.put("indices", np.concatenate([np.concatenate(s) for s in segments]), "input")
    offsets = [np.cumsum([0] + [len(b) for b in s[:-1]]) for s in segments]
    case.put("offsets", np.stack(offsets).reshape(N_STEPS, len(ROWS), BATCH), "input")
    for array, a in start.items():
        case.put(array, a, "input")


def write(folder, name, optimizer):
    for seed in range(1, 1000):
        want, start, batches, margin = train(name, optimizer, seed)
        if margin > MARGIN:
            break
    moved = np.random.default_rng(1)
    others = [train(name, optimizer, seed, torch.float64)[0]] + [train(name, optimizer, seed, moved=moved)[0] for _ in range(6)]
    case = Case(folder, f"model_{name}_{optimizer}")
    for key, value in (("batch", BATCH), ("dense", NUMERIC), ("dim", 1 if name == "lr" else DIM), ("steps", N_STEPS), ("seed", seed),
                        ("optimizer", optimizer), ("lr", LR[optimizer])):
        case.param(key, value)
    put_inputs(case, batches, start)
    for array, a in want.items():
        case.put(array, a, "expect", tolerance(a, [o[array] for o in others]), 1e-5)
    case.close()
    print(f"{name} {optimizer}: seed {seed}, pre-activations from {margin:.1e}")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("out", help="a folder that is not there yet")
    out = args.parse_args().out
    torch.set_num_threads(1)
    for name in CASES:
        for optimizer in LR:
            write(out, name, optimizer)


if __name__ == "__main__":
    main()

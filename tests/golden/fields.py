#!/usr/bin/python3
"""Golden numbers of fields' options and of clipping: `python3 tests/golden/fields.py OUT` writes OUT/field_CASE/*.npy and manifest.txt.

As models.py, whose batches, tolerances and files it has: three fields, of which two have one id a sample and one has none to four. Vectors
of a field are torch's embedding_bag with mode "sum" or "mean"; of a table with another width than the model's they go through a linear
layer without a bias (mixed-dimension embeddings, Ginart et al. 2021). Gradients are clipped by torch.nn.utils.clip_grad_norm_ over all
parameters. 20 steps of SGD. Expected are probabilities and all gradients of the first batch, as the optimizer gets them, the loss of each
batch before its update, the norm of all gradients of each batch before it is clipped, and all parameters after the last batch.

    tar c --sort=name --owner=0 --group=0 --mtime=@0 -C OUT . | zstd -19 --long=27 -o tests/golden/fields.tar.zst
"""
import argparse
import math

import numpy as np
import torch
from models import BATCH, DIM, MARGIN, N_STEPS, NUMERIC, ROWS, Case, Model, draw_batches, tolerance

LR, BOT, TOP = 0.1, [6], [16, 8]
# A case: --model, widths of the tables, fields with means, and the norm that gradients are clipped to; 0: they are not.
CASES = {"mean_dlrm": ("dlrm", [DIM] * 3, [0, 1], 0), "mean_dcnv2": ("dcnv2", [DIM] * 3, [1, 2], 0), "mixed_dlrm": ("dlrm", [3, DIM, 12], [], 0),
         "mixed_mean_dcnv2": ("dcnv2", [1, 5, DIM], [1], 0), "clip_dlrm": ("dlrm", [DIM] * 3, [], 0.7), "clip_mixed_dcnv2": ("dcnv2", [3, 12, DIM], [1], 0.5)}


class Net(torch.nn.Module):
    """z of a DLRM, or of a DCN V2 with one cross layer."""

    draw = staticmethod(Model.draw)

    def __init__(self, case, rng):
        super().__init__()
        self.kind, dims, self.means, _ = CASES[case]
        self.margin = math.inf
        self.emb = torch.nn.ParameterList([self.draw(rng, n, d, scale=0.5) for n, d in zip(ROWS, dims)])
        for k, d in enumerate(dims):
            if d != DIM:
                setattr(self, f"proj_{k}_W", self.draw(rng, DIM, d, scale=math.sqrt(1 / d)))
        width = len(ROWS) * DIM + NUMERIC
        if self.kind == "dlrm":
            self.add_mlp(rng, "bot", NUMERIC, BOT + [DIM])
            width = DIM + (len(ROWS) + 1) * len(ROWS) // 2
        else:
            self.cross_0_W, self.cross_0_b = self.draw(rng, width, width, scale=math.sqrt(1 / width)), self.draw(rng, width, scale=0.3)
        self.add_mlp(rng, "top", width, TOP + [1])

    def add_mlp(self, rng, name, width, outs):
        for i, out in enumerate(outs):
            setattr(self, f"{name}_{i}_W", self.draw(rng, out, width, scale=math.sqrt(2 / (width + out))))
            setattr(self, f"{name}_{i}_b", self.draw(rng, out, scale=math.sqrt(1 / out)))
            width = out

    def mlp(self, name, x, n, n_relu):
        for i in range(n):
            x = torch.nn.functional.linear(x, getattr(self, f"{name}_{i}_W"), getattr(self, f"{name}_{i}_b"))
            if i < n_relu:
                self.margin = min(self.margin, x.abs().min().item())
                x = torch.relu(x)
        return x

    def vector(self, k, bags):
        v = torch.nn.functional.embedding_bag(torch.from_numpy(np.concatenate(bags)), self.emb[k], torch.tensor(np.cumsum([0] + [len(b) for b in bags[:-1]])),
                                              mode="mean" if k in self.means else "sum")
        return torch.nn.functional.linear(v, getattr(self, f"proj_{k}_W")) if hasattr(self, f"proj_{k}_W") else v

    def forward(self, x, bags):
        t = [self.vector(k, bags[k]) for k in range(len(ROWS))]
        if self.kind == "dlrm":
            d = self.mlp("bot", x, len(BOT) + 1, len(BOT) + 1)
            t = [d] + t
            r = torch.cat([d] + [(t[i] * t[j]).sum(1, keepdim=True) for i in range(len(t)) for j in range(i)], 1)
        else:
            x0 = torch.cat(t + [x], 1)
            r = x0 * torch.nn.functional.linear(x0, self.cross_0_W, self.cross_0_b) + x0
        return self.mlp("top", r, len(TOP) + 1, len(TOP))


def train(name, seed, dtype=torch.float32, moved=None):
    rng = np.random.default_rng(seed)
    batches, net, most = draw_batches(rng, 1), Net(name, rng), CASES[name][3]
    start = {array: p.detach().numpy().copy() for array, p in net.named_parameters()}
    if moved is not None:
        with torch.no_grad():
            for p in net.parameters():
                p *= 1 + 1e-7 * torch.from_numpy(moved.uniform(-1, 1, size=p.shape).astype(np.float32))
    net = net.to(dtype)
    sgd = torch.optim.SGD(net.parameters(), lr=LR)
    out, losses, norms = {}, [], []
    for i, (x, y, bags) in enumerate(batches):
        z = net(torch.from_numpy(x).to(dtype), bags)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(z, torch.from_numpy(y).to(dtype))
        sgd.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(net.parameters(), most or math.inf).item())
        if i == 0:
            out["prob"] = np.squeeze(torch.sigmoid(z).detach().numpy())
            for array, p in net.named_parameters():
                out["d_" + array] = p.grad.numpy().copy()
        losses.append(loss.item())
        sgd.step()
    out["loss"], out["norm"] = np.array(losses), np.array(norms)
    for array, p in net.named_parameters():
        out["after20_" + array] = p.detach().numpy().copy()
    return out, start, batches, net.margin


def write(folder, name):
    kind, dims, means, most = CASES[name]
    for seed in range(1, 1000):
        want, start, batches, margin = train(name, seed)
        if margin > MARGIN:
            break
    assert not most or 4 < sum(want["norm"] > most) < N_STEPS  # some batches are clipped, and some are not
    moved = np.random.default_rng(1)
    others = [train(name, seed, torch.float64)[0]] + [train(name, seed, moved=moved)[0] for _ in range(6)]
    case = Case(folder, f"field_{name}")
    for key, value in (("batch", BATCH), ("dense", NUMERIC), ("dim", DIM), ("steps", N_STEPS), ("seed", seed), ("kind", kind), ("lr", LR), ("clip", most),
                        *((f"dim_{k}", d) for k, d in enumerate(dims)), *((f"mean_{k}", int(k in means)) for k in range(len(ROWS)))):
        case.param(key, value)
    case.put("X", np.stack([x for x, _, _ in batches]), "input")
    case.put("y", np.stack([np.squeeze(y, 1) for _, y, _ in batches]), "input")
    segments = [bags[k] for _, _, bags in batches for k in range(len(ROWS))]
    case.put("seg", np.cumsum([0] + [sum(map(len, s)) for s in segments]), "input")
    case.put("indices", np.concatenate([np.concatenate(s) for s in segments]), "input")
    case.put("offsets", np.stack([np.cumsum([0] + [len(b) for b in s[:-1]]) for s in segments]).reshape(N_STEPS, len(ROWS), BATCH), "input")
    for array, a in start.items():
        case.put(array, a, "input")
    for array, a in want.items():
        case.put(array, a, "expect", tolerance(a, [o[array] for o in others]), 1e-5)
    case.close()
    print(f"{name}: seed {seed}, pre-activations from {margin:.1e}, norms {want['norm'].min():.3g} to {want['norm'].max():.3g}")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("out", help="a folder that is not there yet")
    out = args.parse_args().out
    torch.set_num_threads(1)
    for name in CASES:
        write(out, name)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""The yardstick of train.py: PyTorch trains psworker's default model on the same rows, which lie in memory.

    tests/bench/train_torch.py ROWS.npz --batch 2048 --threads 2 --tables rows     # ROWS.npz: criteo_rows.py

One JSON line: samples a second of the steps alone, test AUC and log-loss, peak memory. The model is psworker's: bottom
13-512-256-64-16, 26 tables of one id a bag, dot products of all pairs, top 367-512-256-1, Adagrad 0.01 on everything, rows in
file order; weights start as psworker's do (the distributions, not the numbers).
"""
import argparse
import json
import resource
import sys
import time

EPSILON = 1e-10  # of torch.optim.Adagrad


def read_options():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("rows", help="an .npz with numeric [n][13], ids [n][26], labels [n], n_train, n_ids")
    p.add_argument("--batch", type=int, default=2048, help="[%(default)s]")
    p.add_argument("--steps", type=int, default=0, help="stop after so many; 0: one epoch [%(default)s]")
    p.add_argument("--seed", type=int, default=1, help="[%(default)s]")
    p.add_argument("--lr", type=float, default=0.01, help="[%(default)s]")
    p.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    p.add_argument("--tables", choices=["bags", "one", "rows"], default="rows",
                   help="26 sparse EmbeddingBags, one sparse Embedding, or unique rows gathered and stepped by hand [%(default)s]")
    p.add_argument("--compute", choices=["fp32", "bf16"], default="fp32", help="bf16: under autocast [%(default)s]")
    return p.parse_args()


try:
    import numpy as np
    import torch
except ImportError as missing:
    sys.exit(f"train_torch.py: {missing}: apt-get install python3-torch")


class Bags(torch.nn.Module):
    """26 tables of their own, as facebookresearch/dlrm keeps them."""

    def __init__(self, table, sizes):
        super().__init__()
        self.first = [int(end - n) for end, n in zip(np.cumsum(sizes), sizes)]
        self.bags = torch.nn.ModuleList(torch.nn.EmbeddingBag.from_pretrained(part, freeze=False, mode="sum", sparse=True)
                                        for part in table.split([int(n) for n in sizes]))
        self.weights = [bag.weight for bag in self.bags]

    def forward(self, ids):
        offsets = torch.arange(len(ids))
        return torch.stack([bag(ids[:, i] - first, offsets) for i, (bag, first) in enumerate(zip(self.bags, self.first))], 1)

    def step(self):
        """The optimizer has them all."""


class One(torch.nn.Module):
    """All tables behind each other in one Embedding: the same function and the same Adagrad."""

    def __init__(self, table, _):
        super().__init__()
        self.table = torch.nn.Embedding.from_pretrained(table, freeze=False, sparse=True)
        self.weights = [self.table.weight]

    def forward(self, ids):
        return self.table(ids)

    def step(self):
        """The optimizer has it."""


class Rows(torch.nn.Module):
    """One table and no optimizer: a batch's unique rows are gathered once, and stepped in place."""

    def __init__(self, table, lr):
        super().__init__()
        self.table, self.state = table, torch.zeros_like(table)
        self.weights, self.lr = [], lr

    def forward(self, ids):
        if not torch.is_grad_enabled():
            return torch.nn.functional.embedding(ids, self.table)
        self.unique, places = torch.unique(ids, return_inverse=True)
        self.rows = self.table.index_select(0, self.unique).requires_grad_()
        return torch.nn.functional.embedding(places, self.rows)

    def step(self):
        gradient = self.rows.grad
        state = self.state.index_select(0, self.unique).addcmul_(gradient, gradient)
        self.state.index_copy_(0, self.unique, state)
        rows = self.rows.detach().addcdiv_(gradient, state.sqrt_().add_(EPSILON), value=-self.lr)
        self.table.index_copy_(0, self.unique, rows)


def mlp(widths):
    layers = []
    for n_in, n_out in zip(widths[:-1], widths[1:]):
        layer = torch.nn.Linear(n_in, n_out)
        torch.nn.init.normal_(layer.weight, 0, (2 / (n_in + n_out)) ** 0.5)
        torch.nn.init.normal_(layer.bias, 0, (1 / n_out) ** 0.5)
        layers += [layer, torch.nn.ReLU(inplace=True)]
    return layers


class Dlrm(torch.nn.Module):
    def __init__(self, o, sizes):
        super().__init__()
        dim, n_fields = 16, 1 + len(sizes)
        self.bottom = torch.nn.Sequential(*mlp([13, 512, 256, 64, dim]))
        self.top = torch.nn.Sequential(*mlp([dim + n_fields * (n_fields - 1) // 2, 512, 256, 1])[:-1])
        table = torch.empty(int(sum(sizes)), dim).uniform_(-0.05, 0.05)
        self.tables = Rows(table, o.lr) if o.tables == "rows" else {"bags": Bags, "one": One}[o.tables](table, sizes)
        i, j = np.tril_indices(n_fields, -1)
        self.pairs = torch.from_numpy(i * n_fields + j)

    def forward(self, numeric, ids):
        """numeric [n][13], ids [n][26] -> logits [n]"""
        bottom = self.bottom(numeric)
        vectors = torch.cat([bottom.unsqueeze(1), self.tables(ids).to(bottom.dtype)], 1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([bottom, dots], 1)).squeeze(1)


def auc(labels, scores):
    """Of ties, a half."""
    _, group, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[group]
    n = labels.sum()
    return float((rank[labels > 0].sum() - n * (n + 1) / 2) / (n * (len(labels) - n)))


def test(model, numeric, ids, labels):
    with torch.no_grad():
        logits = torch.cat([model(numeric[i:i + 4096], ids[i:i + 4096]).float() for i in range(0, len(ids), 4096)])
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.double(), labels.double())
    return {"auc": auc(labels.numpy(), logits.numpy()), "logloss": float(loss)}


def train(o, model, numeric, ids, labels):
    """Seconds and samples of the steps alone."""
    dense = [*model.bottom.parameters(), *model.top.parameters(), *model.tables.weights]
    optimizer = torch.optim.Adagrad(dense, lr=o.lr)
    loss_of = torch.nn.BCEWithLogitsLoss()
    n = min(len(ids), o.steps * o.batch) if o.steps else len(ids)
    start = time.perf_counter()
    for i in range(0, n, o.batch):
        end = min(i + o.batch, n)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=o.compute == "bf16"):
            logits = model(numeric[i:end], ids[i:end])
        loss_of(logits.float(), labels[i:end]).backward()
        optimizer.step()
        model.tables.step()
    return time.perf_counter() - start, n


def main():
    o = read_options()
    torch.set_num_threads(o.threads)
    torch.manual_seed(o.seed)
    file = np.load(o.rows)
    n_train = int(file["n_train"])
    numeric, ids, labels = (torch.from_numpy(file[name]) for name in ["numeric", "ids", "labels"])
    model = Dlrm(o, file["n_ids"])
    seconds, samples = train(o, model, numeric[:n_train], ids[:n_train], labels[:n_train])
    result = {"samples_per_s": samples / seconds, "samples": samples, "seconds": seconds,
              **test(model, numeric[n_train:], ids[n_train:], labels[n_train:]),
              "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    print(json.dumps({**vars(o), "torch": torch.__version__, **result}))


main()

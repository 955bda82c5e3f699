"""DLRM: numbers through a bottom net, ids as rows of psd, all dot products of them, a top net. The dense part is on
psd, too."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import psd.torch as pt
from common import Clicks, auc, connect, read_flags

DIM = 16


def mlp(*widths):
    return nn.Sequential(*(layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU())))


class Dlrm(nn.Module):
    def __init__(self, ebc, n_numbers, bottom=(64,), top=(64,)):
        super().__init__()
        n = 1 + len(ebc.feature_names)
        self.ebc, self.bottom = ebc, mlp(n_numbers, *bottom, DIM)
        self.top = nn.Sequential(mlp(DIM + n * (n - 1) // 2, *top), nn.Linear(top[-1], 1))
        i, j = torch.tril_indices(n, n, -1)
        self.register_buffer("pairs", i * n + j, persistent=False)

    def forward(self, ids, numbers):
        """A KeyedJaggedTensor of `columns`, float32 [batch][numbers] -> logits [batch]"""
        bottom = self.bottom(numbers)
        rows = self.ebc(ids).values().view(len(numbers), -1, DIM)
        vectors = torch.cat([bottom.unsqueeze(1), rows], 1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([bottom, dots], 1)).squeeze(1)


def main():
    flags = read_flags(__doc__)
    columns = [f"c{i}" for i in range(8)]
    clicks = Clicks(len(columns), 4)

    def batches(first, n):
        for i in range(n):
            ids, numbers, y = clicks.batch(flags.batch, first + i)
            yield pt.KeyedJaggedTensor.from_ids(columns, ids), numbers, y

    with connect(flags, "dlrm") as client:
        ebc = pt.EmbeddingBagCollection(client, [pt.EmbeddingBagConfig(c, DIM, [c], lr=0.05) for c in columns])
        model = Dlrm(ebc, n_numbers=4)
        opt = pt.Optimizer(model, client, dense="psd", lr=0.02)
        for ids, numbers, y in pt.prefetch(batches(1000 + flags.rank * flags.steps, flags.steps), opt):
            bce(model(ids, numbers), y).backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            found = [(y, model(ids, numbers)) for ids, numbers, y in batches(0, 10)]
        print(f"AUC {auc(torch.cat([y for y, _ in found]).numpy(), torch.cat([s for _, s in found]).numpy()):.3f}")


if __name__ == "__main__":
    main()

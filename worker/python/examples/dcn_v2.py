"""DCN-V2: pooled rows and numbers through cross layers and a deep net side by side. A torch optimizer steps the dense
part; with several workers it is wrapped in DistributedDataParallel, and only the tables are on psd."""

import os

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import psd.torch as pt
from common import Clicks, auc, connect, read_flags

DIM = 8


class Cross(nn.Module):
    """x0 * (W x + b) + x, with W = U V of a low rank"""

    def __init__(self, n, rank):
        super().__init__()
        self.v, self.u = nn.Linear(n, rank, bias=False), nn.Linear(rank, n)

    def forward(self, x0, x):
        return x0 * self.u(self.v(x)) + x


class Dcn(nn.Module):
    def __init__(self, ebc, n_numbers, n_cross=2, rank=16, deep=64):
        super().__init__()
        n = n_numbers + DIM * len(ebc.feature_names)
        self.ebc, self.crosses = ebc, nn.ModuleList(Cross(n, rank) for _ in range(n_cross))
        self.deep = nn.Sequential(nn.Linear(n, deep), nn.ReLU(), nn.Linear(deep, deep), nn.ReLU())
        self.head = nn.Linear(n + deep, 1)

    def forward(self, ids, numbers):
        """A KeyedJaggedTensor of `columns`, float32 [batch][numbers] -> logits [batch]"""
        x0 = x = torch.cat([numbers, self.ebc(ids).values()], 1)
        for cross in self.crosses:
            x = cross(x0, x)
        return self.head(torch.cat([x, self.deep(x0)], 1)).squeeze(1)


def main():
    flags = read_flags(__doc__)
    columns = [f"c{i}" for i in range(8)]
    clicks = Clicks(len(columns), 4)

    def batches(first, n):
        for i in range(n):
            ids, numbers, y = clicks.batch(flags.batch, first + i)
            yield pt.KeyedJaggedTensor.from_ids(columns, ids), numbers, y

    with connect(flags, "dcn") as client:
        ebc = pt.EmbeddingBagCollection(client,
                                        [pt.EmbeddingBagConfig(c, DIM, [c], optimizer="rowwise_adagrad", lr=0.05)
                                         for c in columns])
        model = Dcn(ebc, n_numbers=4)
        if flags.workers > 1:
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            os.environ.setdefault("MASTER_PORT", "29500")
            torch.distributed.init_process_group("gloo", rank=flags.rank, world_size=flags.workers)
            model = nn.parallel.DistributedDataParallel(model)
        opt = pt.Optimizer(model, client, dense=torch.optim.Adam(model.parameters(), lr=0.003))
        for ids, numbers, y in pt.prefetch(batches(1000 + flags.rank * flags.steps, flags.steps), opt):
            bce(model(ids, numbers), y).backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            found = [(y, model(ids, numbers)) for ids, numbers, y in batches(0, 10)]
        print(f"AUC {auc(torch.cat([y for y, _ in found]).numpy(), torch.cat([s for _, s in found]).numpy()):.3f}")


if __name__ == "__main__":
    main()

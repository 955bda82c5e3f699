"""Two towers: a user is the mean of the items in their history, and what they look for is a row of the same item
table. Trained with the batch's other targets as negatives; the measure is how often the right item is among the first
ten of 200."""

import numpy as np
import torch
from torch import nn

import psd
import psd.torch as pt
from common import connect, read_flags

DIM, N_ITEMS, N_TASTES = 16, 200, 10


def tower():
    return nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, DIM))


class TwoTower(nn.Module):
    def __init__(self, ebc):
        super().__init__()
        self.ebc, self.user, self.item = ebc, tower(), tower()

    def forward(self, ids):
        """A KeyedJaggedTensor of history and target -> user and item vectors, [batch][DIM] each"""
        rows = self.ebc(ids)
        return self.user(rows["history"]), self.item(rows["target"])


def batch_of(n, seed, keys):
    """People like items of one taste: 1 to 8 of them in the past, and one next."""
    g = np.random.default_rng(seed)
    tastes = g.integers(0, N_TASTES, n)
    lengths = np.concatenate([g.integers(1, 9, n), np.ones(n, np.int64)])
    items = g.integers(0, N_ITEMS // N_TASTES, lengths.sum()) * N_TASTES + np.repeat(np.tile(tastes, 2), lengths)
    values = torch.from_numpy(keys[items].view(np.int64))
    return pt.KeyedJaggedTensor(["history", "target"], values,
                                lengths=torch.from_numpy(lengths)), tastes, items[lengths[:n].sum():]


def main():
    flags = read_flags(__doc__)
    keys = psd.keys("item", [f"item-{i}" for i in range(N_ITEMS)])  # of names, as any other program makes them
    with connect(flags, "two-tower") as client:
        # One table, two features: it is pulled once, and gradients of both meet in a row.
        ebc = pt.EmbeddingBagCollection(client,
                                        [pt.EmbeddingBagConfig("item", DIM, ["history", "target"], lr=0.05,
                                                               pooling="mean")])
        model = TwoTower(ebc)
        opt = pt.Optimizer(model, client, dense="psd", optimizer="adam", lr=0.002)
        first = 1000 + flags.rank * flags.steps
        for ids, _, _ in pt.prefetch((batch_of(flags.batch, first + i, keys) for i in range(flags.steps)), opt):
            users, items = model(ids)
            nn.functional.cross_entropy(users @ items.t(), torch.arange(len(users))).backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            ids, tastes, _ = batch_of(500, 0, keys)
            users, _ = model(ids)
            table = model.item(torch.from_numpy(client.table("item").pull(keys)))
            best = (users @ table.t()).topk(10).indices.numpy()
        right = (best % N_TASTES == tastes[:, None]).mean()
        print(f"{right:.3f} of the first ten items are of the user's taste; by chance {1 / N_TASTES:.3f}")


if __name__ == "__main__":
    main()

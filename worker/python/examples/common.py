"""What the examples share: their flags, clicks that a hidden model made, and a measure."""

import argparse
import contextlib

import numpy as np
import psd
import torch


def read_flags(about):
    p = argparse.ArgumentParser(description=about)
    p.add_argument("--url", help="psd://HOST:PORT of a running psd; else one is started for this run")
    p.add_argument("--rank", type=int, default=0, help="of this worker [%(default)s]")
    p.add_argument("--workers", type=int, default=1, help="of the job [%(default)s]")
    p.add_argument("--mode", default="async", help="async, ssp or bsp [%(default)s]")
    p.add_argument("--batch", type=int, default=256, help="[%(default)s]")
    p.add_argument("--steps", type=int, default=300, help="[%(default)s]")
    p.add_argument("--threads", type=int, default=1, help="of PyTorch [%(default)s]")
    flags = p.parse_args()
    torch.set_num_threads(flags.threads)
    torch.manual_seed(1)
    return flags


@contextlib.contextmanager
def connect(flags, job):
    """A client of the psd that --url names, or of one for this run alone."""
    with contextlib.ExitStack() as stack:
        url = flags.url or stack.enter_context(psd.local()).url
        yield stack.enter_context(psd.connect(url, job=job, rank=flags.rank, workers=flags.workers, mode=flags.mode))


class Clicks:
    """Columns of ids, some far more frequent than others, and numbers; a click's chance depends on both."""

    def __init__(self, n_columns, n_numbers, n_ids=1000, seed=1):
        hidden = np.random.default_rng(seed)
        self.effect = hidden.normal(0, 1, (n_columns, n_ids)).astype(np.float32) / np.sqrt(n_columns)
        self.slope = hidden.normal(0, 0.5, n_numbers).astype(np.float32)
        self.n_ids = n_ids

    def batch(self, n, seed):
        """ids int64 [n][columns], numbers float32 [n][numbers], clicks float32 [n]"""
        g = np.random.default_rng(seed)
        ids = np.minimum(g.zipf(1.3, (n, len(self.effect))), self.n_ids) - 1
        numbers = g.normal(0, 1, (n, len(self.slope))).astype(np.float32)
        logits = 2 * self.effect[np.arange(len(self.effect)), ids].sum(1) + numbers @ self.slope
        clicks = g.random(n) < 1 / (1 + np.exp(-logits))
        return torch.from_numpy(ids), torch.from_numpy(numbers), torch.from_numpy(clicks.astype(np.float32))


def auc(clicks, scores):
    """The chance that a click scores above a row without one; of ties, a half."""
    _, group, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[group]
    n = clicks.sum()
    return float((rank[clicks > 0].sum() - n * (n + 1) / 2) / (n * (len(clicks) - n)))

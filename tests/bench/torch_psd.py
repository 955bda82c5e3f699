#!/usr/bin/python3
"""psd.torch beside plain PyTorch: the same model and rows, in turn, on the same cores.

    tests/bench/criteo_rows.py LOG.tsv 100000 ROWS.npz
    tests/bench/torch_psd.py build/release ROWS.npz                # 2 processes and psd on the cores that there are
    tests/bench/torch_psd.py build/release ROWS.npz --auc 5 --batch 128        # one epoch each, over 5 seeds: test AUC

Cases: plain (26 nn.EmbeddingBag(sparse=True), Adagrad on everything), ddp (two of these in DistributedDataParallel over gloo), psd (one
process, dense part on psd, one batch ahead), psd2 (two, async), psd2-small (bf16 pulls, int8 pushes). Every process has one thread. A
process warms up, waits for the others, and counts samples for --seconds; rates of the processes of a case are added. Ratios are
of medians over --rounds. The psd of a case runs on the same cores.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASES = {"plain": 1, "ddp": 2, "psd": 1, "psd2": 2, "psd2-small": 2}
RATIOS = [("psd", "plain"), ("psd2", "plain"), ("psd2-small", "plain"), ("psd2", "ddp"), ("psd2-small", "ddp")]
DIM, N_COLUMNS, WARM_UP = 16, 26, 10


def read_options():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("build", help="with bin/psd and lib/libpsd.so.1")
    p.add_argument("rows", help="an .npz of criteo_rows.py")
    p.add_argument("--batch", default="2048,128", help="[%(default)s]")
    p.add_argument("--rounds", type=int, default=4, help="[%(default)s]")
    p.add_argument("--seconds", type=float, default=5, help="of a measurement [%(default)s]")
    p.add_argument("--cases", default=",".join(CASES), help="[%(default)s]")
    p.add_argument("--auc", type=int, default=0, metavar="SEEDS", help="compare test AUC instead")
    p.add_argument("--depth", type=int, default=1, help="batches that psd.torch pulls ahead [%(default)s]")
    p.add_argument("--process", help=argparse.SUPPRESS)  # CASE,RANK,BATCH,SEED,FOLDER of one
    return p.parse_args()


# --- one process ---

def dlrm(embed, seed):
    import torch
    from torch import nn

    torch.manual_seed(seed)  # the same dense part on both sides

    def mlp(widths):
        return [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU(inplace=True))]

    class Dlrm(nn.Module):
        def __init__(self):
            super().__init__()
            n = 1 + N_COLUMNS
            self.embed = embed
            self.bottom = nn.Sequential(*mlp([13, 512, 256, 64, DIM]))
            self.top = nn.Sequential(*mlp([DIM + n * (n - 1) // 2, 512, 256, 1])[:-1])
            i, j = torch.tril_indices(n, n, -1)
            self.pairs = i * n + j

        def forward(self, numeric, ids):
            bottom = self.bottom(numeric)
            rows = self.embed(ids)
            rows = rows.values().view(len(numeric), N_COLUMNS, DIM) if hasattr(rows, "length_per_key") else rows
            vectors = torch.cat([bottom.unsqueeze(1), rows], 1)
            dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
            return self.top(torch.cat([bottom, dots], 1)).squeeze(1)
    return Dlrm()


def plain_tables(sizes):
    import torch
    from torch import nn

    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = [sum(sizes[:i]) for i in range(len(sizes))]
            self.bags = nn.ModuleList(nn.EmbeddingBag.from_pretrained(torch.empty(n, DIM).uniform_(-0.05, 0.05), freeze=False, mode="sum", sparse=True)
                                      for n in sizes)

        def forward(self, ids):
            offsets = torch.arange(len(ids))
            return torch.stack([bag(ids[:, i] - first, offsets) for i, (bag, first) in enumerate(zip(self.bags, self.first))], 1)
    return Bags()


def jagged_batches(data, batch, rank, n_processes):
    """For ever; each process its share of the rows, in order."""
    import psd.torch as pt

    numeric, ids, labels, n_train = data
    names = [f"c{i}" for i in range(N_COLUMNS)]
    while True:
        for at in range(rank * batch, n_train - batch + 1, batch * n_processes):
            span = slice(at, at + batch)
            yield numeric[span], ids[span], labels[span], pt.KeyedJaggedTensor.from_ids(names, ids[span])


class Plain:
    def __init__(self, data, sizes, batch, rank, n, seed):
        import torch

        self.model = dlrm(plain_tables(sizes), seed)
        if n > 1:
            torch.distributed.init_process_group("gloo", rank=rank, world_size=n)
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=0.01)
        self.batches = jagged_batches(data, batch, rank, n)

    def step(self, loss_of):
        numeric, ids, labels, _ = next(self.batches)
        self.optimizer.zero_grad(set_to_none=True)
        loss_of(self.model(numeric, ids), labels).backward()
        self.optimizer.step()

    def score(self, numeric, ids):
        return self.model(numeric, ids)


class OnPsd:
    def __init__(self, data, batch, rank, n, seed, is_small, depth, exact_until):
        import psd
        import psd.torch as pt

        self.client = psd.connect(os.environ["BENCH_URL"], job="bench", rank=rank, workers=n)
        codecs = {"pull_codec": "bf16", "push_codec": "int8"} if is_small else {}
        tables = [pt.EmbeddingBagConfig(f"c{i}", DIM, [f"c{i}"], lr=0.01, spec={"seed": seed}) for i in range(N_COLUMNS)]
        self.model = dlrm(pt.EmbeddingBagCollection(self.client, tables, **codecs), seed)
        self.opt = pt.Optimizer(self.model, self.client, dense="psd", lr=0.01)
        self.batches = pt.prefetch(jagged_batches(data, batch, rank, n), self.opt, depth, exact_until)

    def step(self, loss_of):
        numeric, _, labels, ids = next(self.batches)
        loss_of(self.model(numeric, ids), labels).backward()
        self.opt.step()

    def score(self, numeric, ids):
        import psd.torch as pt

        return self.model(numeric, pt.KeyedJaggedTensor.from_ids(self.model.embed.feature_names, ids))


def auc(labels, scores):
    import numpy as np

    _, group, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[group]
    n = labels.sum()
    return float((rank[labels > 0].sum() - n * (n + 1) / 2) / (n * (len(labels) - n)))


def await_others(folder, rank, n):
    (folder / f"ready-{rank}").touch()
    while len(list(folder.glob("ready-*"))) < n:
        time.sleep(0.001)


def process(o):
    case, rank, batch, seed, folder = o.process.split(",")
    rank, batch, seed, folder, n = int(rank), int(batch), int(seed), pathlib.Path(folder), CASES[case]
    import numpy as np
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    file = np.load(o.rows)
    numeric, ids, labels = (torch.from_numpy(file[name]) for name in ("numeric", "ids", "labels"))
    data, n_train = (numeric, ids, labels, int(file["n_train"])), int(file["n_train"])
    of_psd = case.startswith("psd")
    side = OnPsd(data, batch, rank, n, seed, case.endswith("small"), o.depth, 64 if o.auc else 0) if of_psd else Plain(
        data, [int(k) for k in file["n_ids"]], batch, rank, n, seed)
    loss_of, n_steps = torch.nn.BCEWithLogitsLoss(), 0
    for _ in range(n_train // batch if o.auc else WARM_UP):
        side.step(loss_of)
    if o.auc:
        side.model.eval()
        with torch.no_grad():
            scores = torch.cat([side.score(numeric[i:i + 2048], ids[i:i + 2048]) for i in range(n_train, len(ids), 2048)])
        print(json.dumps({"auc": auc(labels[n_train:].numpy(), scores.numpy())}), flush=True)
        os._exit(0)
    await_others(folder, rank, n)
    began = time.perf_counter()
    # DDP's processes have to do the same number of steps.
    while time.perf_counter() - began < o.seconds if case != "ddp" else not _all_agree(time.perf_counter() - began >= o.seconds):
        side.step(loss_of)
        n_steps += 1
    print(json.dumps({"rate": n_steps * batch / (time.perf_counter() - began)}), flush=True)
    os._exit(0)  # what is under way is of no interest


def _all_agree(is_over):
    import torch

    votes = torch.tensor([float(is_over)])
    torch.distributed.all_reduce(votes)
    return votes.item() > 0


# --- all of them ---

def run_case(o, case, batch, seed):
    sys.path.insert(0, str(ROOT / "worker/python"))
    import psd

    build = pathlib.Path(o.build).resolve()
    os.environ.update(PSD_BIN=str(build / "bin"))
    env = {**os.environ, "PYTHONPATH": str(ROOT / "worker/python"), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": str(20000 + os.getpid() % 20000 + seed)}
    with tempfile.TemporaryDirectory() as folder, psd.local(shards=CASES[case]) as server:
        env["BENCH_URL"] = server.url
        own = [sys.executable, __file__, o.build, o.rows, "--seconds", str(o.seconds), "--auc", str(o.auc), "--depth", str(o.depth)]
        running = [subprocess.Popen([*own, "--process", f"{case},{rank},{batch},{seed},{folder}"], env=env, stdout=subprocess.PIPE, text=True)
                   for rank in range(CASES[case])]
        found = [json.loads(p.communicate()[0] or "{}") for p in running]
    if any(not f for f in found):
        sys.exit(f"{case}: a process failed")
    return found


def main():
    o = read_options()
    os.environ.setdefault("PSD_LIBRARY", str(pathlib.Path(o.build).resolve() / "lib/libpsd.so.1"))
    if o.process:
        return process(o)
    if o.auc:
        for batch in map(int, o.batch.split(",")):
            pairs = [[run_case(o, case, batch, seed)[0]["auc"] for case in ("plain", "psd")] for seed in range(1, o.auc + 1)]
            plain, on_psd = (statistics.mean(side) for side in zip(*pairs))
            print(f"batch {batch:5} AUC over {o.auc} seeds: plain {plain:.4f}, psd {on_psd:.4f}, difference {on_psd - plain:+.4f}; by seed "
                  + " ".join(f"{b - a:+.4f}" for a, b in pairs), flush=True)
        return None
    cases = o.cases.split(",")
    for batch in map(int, o.batch.split(",")):
        rates = {case: [] for case in cases}
        for i in range(o.rounds):
            for case in cases[i % len(cases):] + cases[:i % len(cases)]:
                rates[case].append(sum(f["rate"] for f in run_case(o, case, batch, i + 1)))
        middle = {case: statistics.median(r) for case, r in rates.items()}
        for case in cases:
            print(f"batch {batch:5} {case:12} {middle[case]:9.0f} samples/s   ({min(rates[case]):.0f} to {max(rates[case]):.0f})", flush=True)
        for a, b in RATIOS:
            if a in middle and b in middle:
                print(f"batch {batch:5} {a}/{b} {middle[a] / middle[b]:.2f}", flush=True)
    return None


main()

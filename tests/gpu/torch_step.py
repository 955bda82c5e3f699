#!/usr/bin/python3
"""The worker's step in PyTorch on the same GPU: unique rows in, gradients of the rows and of the dense parameters out.

    torch_step.py FOLDER SECONDS      # FOLDER: where `bench run` has left rows-N.u32; torch.jsonl goes there too

The model, the batches and the rows that bags hold are those of tests/gpu/bench.c. Ways: eager; a CUDA graph of that; compiled by
torch.compile; a CUDA graph of that; each with rows looked up by F.embedding and, at the largest batch and dim, by an index and by
F.embedding_bag, whose gradients PyTorch makes in other ways. One line a case; what there is no time for is left out with a line
that says so. Exits 3 with a sentence where PyTorch or its GPU is missing.
"""
import json
import pathlib
import statistics
import sys
import time

BATCHES, DIMS, TABLES, NUMERIC = [65536, 2048, 8192], [128, 16, 64], 26, 13
COMPILE_S = 25  # that a compiled case takes at least, cold
WARM, RUNS = 5, 30


LOOKUPS = ["embedding", "index", "bag"]


def gather_rows(torch, how, rows, row_of):
    """batch x TABLES x dim of rows."""
    if how == "embedding":
        return torch.nn.functional.embedding(row_of, rows)
    if how == "bag":
        flat = torch.nn.functional.embedding_bag(row_of.reshape(-1, 1), rows, mode="sum")
        return flat.view(*row_of.shape, rows.shape[1])
    return rows[row_of]


def model_class(torch):
    class Dlrm(torch.nn.Module):
        def __init__(self, dim):
            super().__init__()
            n = TABLES + 1
            self.bottom = self.mlp([NUMERIC, 512, 256, dim], last_relu=True)
            self.top = self.mlp([dim + n * (n - 1) // 2, 1024, 1024, 512, 256, 1], last_relu=False)
            i, j = torch.tril_indices(n, n, -1)
            self.register_buffer("i", i)
            self.register_buffer("j", j)

        @staticmethod
        def mlp(widths, last_relu):
            layers = [layer for a, b in zip(widths, widths[1:]) for layer in (torch.nn.Linear(a, b), torch.nn.ReLU())]
            return torch.nn.Sequential(*(layers if last_relu else layers[:-1]))

        def forward(self, numeric, found):
            bottom = self.bottom(numeric)
            vectors = torch.cat([bottom[:, None], found.to(bottom.dtype)], 1)
            pairs = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.i, self.j]
            return self.top(torch.cat([bottom, pairs], 1)).squeeze(1)

    return Dlrm


def make_step(torch, folder, batch, dim, products, lookup, compiles):
    """A step without arguments, and the number of its rows."""
    torch.manual_seed(0)
    row_of = torch.frombuffer(bytearray((folder / f"rows-{batch}.u32").read_bytes()), dtype=torch.int32)
    row_of = row_of.view(batch, TABLES).long().cuda()
    net = model_class(torch)(dim).cuda()
    rows = torch.rand(int(row_of.max()) + 1, dim, device="cuda").sub_(0.5).requires_grad_()
    numeric = torch.rand(batch, NUMERIC, device="cuda")
    label = torch.randint(0, 2, (batch,), device="cuda").float()

    def loss_of():
        with torch.autocast("cuda", torch.bfloat16, enabled=products == "bf16"):
            logit = net(numeric, gather_rows(torch, lookup, rows, row_of))
        return torch.nn.functional.binary_cross_entropy_with_logits(logit.float(), label)

    loss_of = torch.compile(loss_of) if compiles else loss_of
    return lambda: torch.autograd.grad(loss_of(), [rows, *net.parameters()]), rows.shape[0]


def warm_up(torch, step):
    """On a stream of its own, as a capture wants it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def graph_of(torch, step):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def median_us(torch, step):
    """From the call to the end of the last kernel."""
    took = []
    for _ in range(WARM + RUNS):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        took.append(1e6 * (time.perf_counter() - start))
    return statistics.median(took[WARM:])


def measure(torch, folder, case, compiles):
    """The case's two ways: as called, and as a graph. A way that fails has a sentence in place of a figure."""
    names = ("compiled", "compiled-graph") if compiles else ("eager", "graph")
    lines = []
    try:
        step, n_rows = make_step(torch, folder, case["batch"], case["dim"], case["products"], case["lookup"], compiles)
        warm_up(torch, step)
        for name, make in zip(names, (lambda: step, lambda: graph_of(torch, step))):
            us = median_us(torch, make())
            lines.append({**case, "way": name, "n_rows": n_rows, "us": us, "samples_per_s": 1e6 * case["batch"] / us})
    except Exception as e:  # whatever PyTorch raises is a result of this comparison, not an end of it
        why = (str(e).strip() or type(e).__name__).splitlines()[0][:200]
        lines += [{**case, "way": name, "why": f"failed: {why}"} for name in names[len(lines):]]
    torch.cuda.empty_cache()
    return lines


def find_torch():
    """PyTorch with a GPU, or a sentence."""
    try:
        import torch
    except ImportError as e:
        return None, f"PyTorch is not there: {e}"
    if not torch.cuda.is_available():
        return None, f"PyTorch {torch.__version__} sees no GPU"
    return torch, None


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: torch_step.py FOLDER SECONDS")
    folder, end = pathlib.Path(sys.argv[1]), time.monotonic() + float(sys.argv[2])
    torch, why = find_torch()
    if why:
        print(f"torch_step.py: {why}")
        sys.exit(3)
    torch.set_float32_matmul_precision("high")
    cases = [{"batch": batch, "dim": dim, "products": products, "lookup": lookup}
             for batch in BATCHES for dim in DIMS for lookup in LOOKUPS for products in ("tf32", "bf16")
             if lookup == LOOKUPS[0] or (batch, dim) == (BATCHES[0], DIMS[0])]
    cases = [case for case in cases if (folder / f"rows-{case['batch']}.u32").exists()]
    if not cases:
        print("torch_step.py: there are no rows-N.u32: the benchmark has not run")
        sys.exit(3)
    with open(folder / "torch.jsonl", "w") as out:
        # What matters most first: the largest batch and dim, compiled. Then what takes little; compiled ones take long.
        ways = [(cases[:2], True), (cases, False), (sorted(cases[2:], key=lambda case: DIMS.index(case["dim"])), True)]
        for some, compiles in ways:
            for case in some:
                late = end - time.monotonic() < (COMPILE_S if compiles else 2)
                lines = [{**case, "way": "compiled" if compiles else "eager", "why": "skipped: there was no time left"}] if late \
                    else measure(torch, folder, case, compiles)
                out.writelines(json.dumps({"torch": torch.__version__, **line}) + "\n" for line in lines)
                out.flush()


if __name__ == "__main__":
    main()

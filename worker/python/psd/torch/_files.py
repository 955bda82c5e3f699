"""Checkpoints of both parts of a model, and exports of it."""

import copy
import json
import pathlib
import struct

import numpy as np
import torch

from .._errors import UsageError
from ._collections import EmbeddingCollection, _Collection
from ._jagged import is_jagged


def save(path, opt, **extra):
    """Writes a checkpoint: psd's nodes theirs, and `path` the dense part, the torch optimizer's state, the clock, the
    numbers of the nodes' checkpoints, and `extra`. Returns those numbers. One worker of a job does so, in lock step at
    a clock of all."""
    if opt.dense:
        opt.dense.refresh()  # in async the others have pushed meanwhile
    numbers = opt.client.checkpoint()
    torch.save({"psd": 1, "checkpoint": numbers, "clock": opt.client.clock, "model": opt.model.state_dict(),
                "optimizer": opt.state_dict(),
                "tables": [t.name for c in opt.collections for t in _tables(c)], "extra": extra}, path)
    return numbers


def load(path, opt):
    """Brings back the model, the torch optimizer's state and the clock. The servers have their part: psd was started
    from the checkpoint that save() returned (psd --at N), or still runs. Returns save()'s `extra`.

    UsageError: the servers are at another clock than the file. With dense="psd" the servers' dense part holds, not the
    file's."""
    found = torch.load(path, map_location="cpu")
    if not isinstance(found, dict) or found.get("psd") != 1:
        raise UsageError(f"{path} was not written by psd.torch.save()")
    if opt.client.clock != found["clock"]:
        raise UsageError(f"{path} is of clock {found['clock']}, and this worker goes on at {opt.client.clock}: start "
                         f"psd from its checkpoint (--at {found['checkpoint'][0]})")
    opt.model.load_state_dict(found["model"])
    opt.load_state_dict(found["optimizer"])
    if opt.dense:
        opt.dense.refresh()
    return found["extra"]


def _tables(collection):
    return [table for group in collection._groups.values() for table, _ in group.tables]


# --- export ---

def export(folder, model, example, keys, net="torchscript", tables="safetensors"):
    """Writes what another program can serve: for each table a file with its rows, and the net, whose inputs are the
    pooled rows.

    folder: made if it is not there. example: the tuple of the model's arguments, whose tensors become the net's
    inputs, behind one float32 [batch][sum of dims] for each collection. keys: {table: int64 [n]}, the rows to write,
    ascending. net: "torchscript", "onnx", "export" (torch.export, PyTorch 2) or None. tables: "safetensors" (arrays
    keys and rows) or "npy" (NAME.keys.npy, NAME.rows.npy). Returns the names of the files."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    collections = [m for m in model.modules() if isinstance(m, _Collection)]
    written, about = [], []
    for collection in collections:
        for config, table in _with_tables(collection):
            if config.name not in keys:
                raise UsageError(f"keys of table {config.name!r} are missing: which rows are to be written?")
            wanted = np.unique(np.asarray(keys[config.name]).astype(np.int64).view(np.uint64))
            facts = {"table": table.name, "dim": table.dim, "rows": len(wanted), "features": list(config.feature_names),
                     "pooling": getattr(config, "pooling", "none"), "optimizer": table.optimizer}
            written += _write_table(folder, config.name, wanted, table.pull(wanted), facts, tables)
            about.append(facts)
    if net:
        written.append(_write_net(folder, model, collections, example, net))
    (folder / "model.json").write_text(json.dumps({"tables": about, "net": net,
                                                   "inputs": [c.feature_names for c in collections]}, indent=1))
    return written + ["model.json"]


def _with_tables(collection):
    client = collection._client
    return [(config, client.table(config.name)) for config in collection.configs]


def _write_table(folder, name, keys, rows, facts, form):
    stem = name.replace("/", "_")
    if form == "npy":
        np.save(folder / f"{stem}.keys.npy", keys)
        np.save(folder / f"{stem}.rows.npy", rows)
        return [f"{stem}.keys.npy", f"{stem}.rows.npy"]
    if form != "safetensors":
        raise UsageError(f"tables as {form!r}; expected safetensors or npy")
    arrays = {"keys": ("U64", keys), "rows": ("F32", rows)}
    head, at = {"__metadata__": {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}}, 0
    for label, (kind, array) in arrays.items():
        head[label] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / f"{stem}.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, array in arrays.values():
            f.write(np.ascontiguousarray(array).tobytes())
    return [f"{stem}.safetensors"]


def _rebuild(thing, take):
    """A copy of a batch, in which take() has replaced each tensor."""
    if is_jagged(thing) or thing is None or isinstance(thing, (str, bytes, int, float)):
        return thing
    if isinstance(thing, torch.Tensor):
        return take(thing)
    if isinstance(thing, dict):
        return {name: _rebuild(part, take) for name, part in thing.items()}
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return type(thing)(*(_rebuild(part, take) for part in thing))
    if isinstance(thing, (list, tuple)):
        return type(thing)(_rebuild(part, take) for part in thing)
    other = copy.copy(thing)
    for name, part in getattr(thing, "__dict__", {}).items():
        setattr(other, name, _rebuild(part, take))
    return other


class _Net(torch.nn.Module):
    """The model with pooled rows in place of its collections."""

    def __init__(self, model, collections, example):
        super().__init__()
        self.model, self.collections, self.example = model, collections, example

    def forward(self, *inputs):
        n, rest = len(self.collections), iter(inputs[len(self.collections):])
        for collection, rows in zip(self.collections, inputs[:n]):
            collection.given = rows
        try:
            return self.model(*_rebuild(self.example, lambda _: next(rest)))
        finally:
            for collection in self.collections:
                collection.given = None


def _write_net(folder, model, collections, example, form):
    if any(isinstance(c, EmbeddingCollection) for c in collections):
        raise UsageError("a net with an EmbeddingCollection has no pooled rows as inputs; export its tables with "
                         "net=None")
    example = example if isinstance(example, tuple) else (example,)
    others = []
    _rebuild(example, lambda t: others.append(t) or t)
    n = len(others[0]) if others else 2
    widths = [sum(config.embedding_dim * len(config.feature_names) for config in c.configs) for c in collections]
    inputs = tuple(torch.zeros(n, width) for width in widths)
    inputs += tuple(others)
    held, was_training, steps = _Net(model, collections, example), model.training, {c.step for c in collections}
    if form not in ("torchscript", "onnx", "export"):
        raise UsageError(f"a net as {form!r}; expected torchscript, onnx, export or None")
    if form == "export" and not hasattr(torch, "export"):
        raise UsageError(f"PyTorch {torch.__version__} has no torch.export; expected net='torchscript' or 'onnx'")
    model.eval()
    for step in steps:
        step.is_off = True
    try:
        with torch.no_grad():
            return _trace(folder, held, inputs, form)
    finally:
        for step in steps:
            step.is_off = False
        model.train(was_training)


def _trace(folder, held, inputs, form):
    if form == "torchscript":
        torch.jit.trace(held.forward, inputs, check_trace=False).save(str(folder / "net.pt"))
        return "net.pt"
    if form == "onnx":
        names = [f"input_{i}" for i in range(len(inputs))]
        axes = {name: {0: "batch"} for name in [*names, "output"]}
        torch.onnx.export(held, inputs, str(folder / "net.onnx"), input_names=names, output_names=["output"],
                          dynamic_axes=axes)
        return "net.onnx"
    torch.export.save(torch.export.export(held, inputs), str(folder / "net.pt2"))
    return "net.pt2"

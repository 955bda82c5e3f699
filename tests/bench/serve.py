#!/usr/bin/python3
"""Scores over HTTP by `psworker serve`, beside plain PyTorch with the same exported weights, in one run.

    tests/bench/serve.py build/release/bin            # 2 minutes; also: make bench-serve
    tests/bench/serve.py build/release/bin --quick    # does it all run?

psworker gets JSON over HTTP on a kept connection and answers JSON; the time is the client's, a Python process with raw sockets. PyTorch
(eager, torch.jit.trace and freeze; one thread) is asked inside its process: with tensors that are ready, and with the same JSON, which it
parses and looks up in dictionaries. The variants take turns, a round each. Prints markdown.
"""
import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import rig

sys.path.insert(0, str(rig.ROOT / "tests/system"))
JOB = "bench"
SHAPE = ["--job", JOB, "--format", "criteo"]
BOTTOM = ["--bottom", "512,256,64"]  # and what is psworker's own: 512-256, dim 16


def psworker(o, *words):
    subprocess.run([o.bin / "psworker", *map(str, words)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def prepare(o, folder):
    """A model, its export, and rows."""
    psworker(o, "synth", "--rows", o.train_rows, "--output", folder / "log.tsv")
    psworker(o, "train", *SHAPE, *BOTTOM, "--data", folder / "log.tsv", "--local", "--save", folder / "model")
    subprocess.run([o.bin / "psctl", "export", folder / "model", "--out", folder / "model.safetensors"], check=True, stdout=subprocess.DEVNULL)
    return [line.split("\t")[1:] for line in open(folder / "log.tsv").read().splitlines()[:2000]]


def value(i, text):
    """As a program that has rows would send it: numbers, texts, null."""
    return None if text == "" else int(text) if i < 13 and re.fullmatch("-?[0-9]+", text) else text


# --- psworker ---

@contextlib.contextmanager
def serving(o, *flags):
    process = subprocess.Popen([o.bin / "psworker", "serve", "--http", "127.0.0.1:0", "--job", JOB, "--deadline", "60s", *map(str, flags)],
                               stderr=subprocess.PIPE, text=True)
    try:
        while not (found := re.search(r"http://(\S+):(\d+)/score", process.stderr.readline())):
            assert process.poll() is None
        yield found[1], int(found[2])
    finally:
        process.terminate()
        process.wait(30)


def exchange(s, request):
    s.sendall(request)
    got = s.recv(1 << 16)
    head = got.index(b"\r\n\r\n") + 4
    want = head + int(re.search(rb"Content-Length: (\d+)", got)[1])
    while len(got) < want:
        got += s.recv(1 << 16)
    assert got.startswith(b"HTTP/1.1 200"), got
    return got[head:]


def client(address, requests, seconds):
    """Times of requests, one after another."""
    times = []
    with socket.create_connection(address) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for request in requests[:20]:
            exchange(s, request)
        end = time.perf_counter() + seconds
        while (begun := time.perf_counter()) < end:
            exchange(s, requests[len(times) % len(requests)])
            times.append(time.perf_counter() - begun)
    return times


def http_requests(bodies):
    return [b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(b), b) for b in bodies]


def several(address, requests, seconds, n):
    """The same from n processes at once."""
    with multiprocessing.get_context("fork").Pool(n) as pool:
        return sum(pool.starmap(client, [(address, requests, seconds)] * n), [])


# --- PyTorch ---

class Yardstick:
    """The exported model in PyTorch: a DLRM with one table of rows, and dictionaries from a column's token to its row."""

    def __init__(self, path):
        import numpy as np
        import torch

        import test_export_serves as reader
        torch.set_num_threads(1)
        self.torch, self.reader = torch, reader
        self.export = arrays, tables, models = reader.read_safetensors(path)
        self.record, self.rows = models[JOB], reader.Rows(arrays, tables[f"{JOB}/emb"])
        self.table, self.at = [torch.tensor(self.rows.weight.copy())], [{} for _ in self.record["features"]]
        self.n = len(self.rows.weight)
        layers = {name: [(torch.tensor(arrays[f"{JOB}/{x['name']}.W"].reshape(x["out"], x["in"])), torch.tensor(arrays[f"{JOB}/{x['name']}.b"]))
                         for x in self.record["model"]["layers"] if x["name"].startswith(name)] for name in ("bot", "top")}
        self.np, self.layers = np, layers

    def learn(self, rows):
        """The places of these rows' tokens: what a program would have made before it serves."""
        for row in rows:
            for at, feature, token in zip(self.at, self.record["features"], row[13:]):
                if token in at:
                    continue
                key = self.reader.keys(self.record, feature, token or "")[0]
                at[token] = self.rows.at.get(key, None)
                if at[token] is None:
                    self.table.append(self.torch.tensor(self.rows.initial(key)[None], dtype=self.torch.float32))
                    at[token], self.n = self.n, self.n + 1

    def model(self):
        torch, layers = self.torch, self.layers
        n_features = len(self.record["features"])
        pairs = torch.tril_indices(n_features + 1, n_features + 1, -1)

        class Dlrm(torch.nn.Module):
            def __init__(self, table):
                super().__init__()
                self.rows = torch.nn.Embedding.from_pretrained(table)
                self.bot, self.top = (torch.nn.ModuleList([torch.nn.Linear(*w.shape[::-1]) for w, _ in layers[name]]) for name in ("bot", "top"))
                for name, mlp in (("bot", self.bot), ("top", self.top)):
                    for layer, (w, b) in zip(mlp, layers[name]):
                        layer.weight.data, layer.bias.data = w.clone(), b.clone()

            def forward(self, x, places):
                for layer in self.bot:
                    x = torch.relu(layer(x))
                t = torch.cat([x[:, None], self.rows(places)], 1)
                z = torch.bmm(t, t.transpose(1, 2))[:, pairs[0], pairs[1]]
                r = torch.cat([x, z], 1)
                for layer in self.top[:-1]:
                    r = torch.relu(layer(r))
                return torch.sigmoid(self.top[-1](r))[:, 0]

        return Dlrm(torch.cat(self.table)).eval()

    def tensors(self, rows):
        torch = self.torch
        x = torch.tensor([[v or 0 for v in row[:13]] for row in rows], dtype=torch.float32)
        return torch.log1p(torch.clamp(x, min=0)), torch.tensor([[at[v] for at, v in zip(self.at, row[13:])] for row in rows])


def torch_variants(o, yardstick, batches, bodies):
    """name -> a call with the number of a request."""
    torch, eager = yardstick.torch, yardstick.model()
    ready = [yardstick.tensors(rows) for rows in batches]
    traced = torch.jit.freeze(torch.jit.trace(eager, ready[0]))
    for _ in range(5):
        traced(*ready[0])
    parse = lambda i: yardstick.tensors(json.loads(bodies[i])["rows"])
    return {"PyTorch, eager, tensors ready": lambda i: eager(*ready[i]).tolist(), "PyTorch, jit, tensors ready": lambda i: traced(*ready[i]).tolist(),
            "PyTorch, eager, from JSON": lambda i: eager(*parse(i)).tolist(), "PyTorch, jit, from JSON": lambda i: traced(*parse(i)).tolist()}


def timed(call, n, seconds):
    times, end = [], time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        call(len(times) % n)
        times.append(time.perf_counter() - begun)
    return times


# --- a table ---

def quantile(times, q):
    return sorted(times)[min(len(times) - 1, int(q * len(times)))]


def line(n_rows, name, rounds, busy_s):
    """rounds: the times of each; busy_s: how long a round was."""
    p50, p99 = (statistics.median(quantile(times, q) for times in rounds) for q in (0.5, 0.99))
    per_s = statistics.median(len(times) * n_rows / busy_s for times in rounds)
    return [n_rows, name, f"{1000 * p50:.2f}", f"{1000 * p99:.2f}", f"{per_s:,.0f}"]


def measure(o, yardstick, rows, address, two_threads):
    """All variants in turn."""
    table = []
    for n_rows in (1, 100):
        batches = [rows[i:i + n_rows] for i in range(0, 2000 - n_rows + 1, max(n_rows, 4))][:200]
        bodies = [json.dumps({"rows": b}).encode() for b in batches]
        requests = http_requests(bodies)
        torch = torch_variants(o, yardstick, batches, bodies)
        with socket.create_connection(address) as s:
            for i in range(0, len(requests), 17):
                got = json.loads(exchange(s, requests[i]))["scores"]
                want = torch["PyTorch, eager, from JSON"](i)
                assert max(abs(a - b) for a, b in zip(got, want)) < 1e-5, "the models differ"
        calls = {"psworker serve, 1 connection": lambda: client(address, requests, o.seconds),
                 "psworker serve, 8 connections": lambda: several(address, requests, o.seconds, 8),
                 "psworker serve --threads 2, 8 connections": lambda: several(two_threads, requests, o.seconds, 8),
                 **{name: lambda call=call: timed(call, len(bodies), o.seconds) for name, call in torch.items()}}
        rounds = {name: [] for name in calls}
        with yardstick.torch.no_grad():
            for _ in range(o.rounds):
                for name, call in calls.items():
                    rounds[name].append(call())
        table += [line(n_rows, name, times, o.seconds) for name, times in rounds.items()]
    rig.table(["rows", "by", "p50, ms", "p99, ms", "rows/s"], table)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("bin", type=pathlib.Path, help="the folder of psworker and psctl")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--rounds", type=int, default=5)
    o = p.parse_args()
    o.bin = o.bin.resolve()
    o.train_rows, o.seconds, o.rounds = (3000, 0.2, 1) if o.quick else (30000, 1.5, o.rounds)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        lines = prepare(o, folder)
        rows = [[value(i, text) for i, text in enumerate(line)] for line in lines]
        yardstick = Yardstick(folder / "model.safetensors")
        yardstick.learn(rows)
        with serving(o, "--checkpoint", folder / "model") as one, serving(o, "--checkpoint", folder / "model", "--threads", 2) as two:
            before = os.getloadavg()[0]
            measure(o, yardstick, rows, one, two)
            rig.say(f"{os.cpu_count()} CPUs, PyTorch {yardstick.torch.__version__}; load before: {before:.1f}")


if __name__ == "__main__":
    main()

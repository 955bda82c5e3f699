#!/usr/bin/python3
"""Wire bytes of a job of several workers: totals and test AUC of settings, and what the bytes are made of.

    tests/bench/wire_workers.py build/release/bin                       # 1, 2, 4 and 8 workers; also: make bench-wire-workers
    tests/bench/wire_workers.py build/release/bin --quick               # does it all run?
    tests/bench/wire_workers.py build/release/bin --workers 4 --batches 128 --parts

Bytes are those that psworker counts: whole frames, both ways, of all workers. With --parts a relay stands between workers and psd and
tells keys, rows, dense tables and the rest apart, by what the frames' heads say; compressed bodies count as one part.
"""
import json
import pathlib
import socket
import statistics
import struct
import sys
import threading

import rig

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))
import wire  # noqa: E402  the frames' fields

MODES = {"bsp": ["--mode", "bsp"], "ssp": ["--mode", "ssp", "--staleness", "4"], "async": ["--mode", "async"]}
PLAIN = "plain fp32"
CASES = [("1-bit, top-k dense", ["--push-codec", "onebit", "--dense-push-codec", "topk", "--dense-push-warmup", "32",
                                 "--pull-codec", "int8", "--dense-pull-codec", "int8", "--dense-refresh", "auto", "--zstd"]),
         ("1-bit, top-k dense, deltas", ["--push-codec", "onebit", "--dense-push-codec", "topk", "--dense-push-warmup", "16",
                                         "--dense-push-warmup-codec", "int8", "--zstd", "--pull-deltas", "--pull-tolerance", "0.003",
                                         "--dense-pull-tolerance", "0.0005"])]
HEADER = struct.Struct("<4sBBHIQI")
PULL, PULL_REPLY, PUSH, PUSH_REPLY, TABLE, TABLE_REPLY = 7, 8, 9, 10, 5, 6
ZSTD = 1


def read_options():
    p = rig.options(__doc__, "wire_workers", 8)
    p.add_argument("--workers", type=rig.numbers, default=[1, 2, 4, 8], help="[1,2,4,8]")
    p.add_argument("--batches", type=rig.numbers, default=[128, 2048], help="of each worker [128,2048]")
    p.add_argument("--modes", default="ssp,async", help="of bsp, ssp and async [%(default)s]")
    p.add_argument("--case", action="append", default=[], metavar="NAME=FLAGS", help="a setting in place of the usual ones; repeatable")
    p.add_argument("--parts", action="store_true", help="what the bytes are made of: slower")
    p.add_argument("--no-plain", action="store_true", help="without plain fp32")
    o = rig.read(p)
    if o.quick:
        o.workers, o.batches = o.workers[-1:], [256]
    o.modes = o.modes.split(",")
    if set(o.modes) - set(MODES):
        p.error(f"--modes: found {o.modes}, expected {','.join(MODES)}")
    cases = [case.partition("=")[::2] for case in o.case]
    o.cases = ([] if o.no_plain else [(PLAIN, [])]) + ([(name, flags.split()) for name, flags in cases] or CASES)
    return o


class Relay:
    """Between workers and psd: counts the bytes of each part of the frames."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.target = (host, int(port))
        self.parts, self.lock = {}, threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            link = Link(self)
            for source, target, take in ((client, server, link.request), (server, client, link.reply)):
                threading.Thread(target=self.pump, args=(source, target, take), daemon=True).start()

    def pump(self, source, target, take):
        try:
            while True:
                header = self.whole(source, HEADER.size)
                _, type_, flags, head_bytes, body_bytes, request_id, _ = HEADER.unpack(header)
                head = self.whole(source, head_bytes)
                body = self.whole(source, body_bytes + (4 if flags & 2 else 0))
                take(type_, flags, request_id, head, len(header) + len(head), len(body))
                target.sendall(header + head + body)
        except (OSError, EOFError):
            for end in (source, target):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    @staticmethod
    def whole(source, n):
        got = bytearray(n)
        view, at = memoryview(got), 0
        while at < n:
            n_got = source.recv_into(view[at:])
            if not n_got:
                raise EOFError
            at += n_got
        return bytes(got)

    def count(self, part, n_bytes):
        with self.lock:
            self.parts[part] = self.parts.get(part, 0) + n_bytes

    def close(self):
        self.listener.close()


class Link:
    """One connection: which table is dense, and what a reply answers."""

    def __init__(self, relay):
        self.count = relay.count
        self.tables, self.dense, self.pulls = {}, {}, {}

    def kind(self, section):
        return "dense" if self.dense.get(section.get(1, [0])[0]) else "rows"

    def request(self, type_, flags, request_id, head, n_start, n_body):
        if type_ == TABLE:
            spec = wire.parse(wire.parse(head)[1][0])
            self.tables[request_id] = spec.get(2, [0])[0] != 0
        if type_ not in (PULL, PUSH):
            self.count("the rest", n_start + n_body)
            return
        name = "pull" if type_ == PULL else "push"
        self.count(f"{name}: headers", n_start)
        sections = [wire.parse(item) for item in wire.parse(head).get(3 if type_ == PULL else 5, [])]
        if type_ == PULL:
            self.pulls[request_id] = [self.kind(section) for section in sections]
        if flags & ZSTD:
            self.count(f"{name}: compressed", n_body)
            return
        for section in sections:
            self.count(f"{name}: keys of {self.kind(section)}", section.get(6, [0])[0])
            self.count(f"{name}: {self.kind(section)}", section.get(7, [0])[0])

    def reply(self, type_, flags, request_id, head, n_start, n_body):
        if type_ == TABLE_REPLY and request_id in self.tables:
            self.dense[wire.parse(head).get(3, [0])[0]] = self.tables.pop(request_id)
        if type_ == PUSH_REPLY:
            self.count("push: replies", n_start + n_body)
        elif type_ == PULL_REPLY:
            self.count("pull: headers", n_start)
            kinds = self.pulls.pop(request_id, [])
            reply = wire.Reply(type_, request_id, flags, head, b"")
            if flags & ZSTD or not kinds:
                self.count("pull: compressed values", n_body)
                return
            for kind, n_bytes in zip(kinds, reply.numbers(5)):
                self.count(f"pull: values of {kind}", n_bytes)
        else:
            self.count("the rest", n_start + n_body)


class Job:
    def __init__(self, o, rig_):
        self.o, self.rig = o, rig_
        self.train, self.test, self.n_train = rig_.parts()

    def run(self, flags, mode, n_workers, batch, seed):
        common = ["--batch", batch, "--seed", seed]
        modes = MODES[mode] if n_workers > 1 else []
        with self.rig.psd() as address:
            relay = Relay(address) if self.o.parts else None
            to = relay.address if relay else address
            workers = [self.rig.worker("train", ["--data", self.train, "--servers", to, "--workers", n_workers, "--rank", rank,
                                                 "--threads", 1, *common, *modes, *flags], name=f"rank{rank}")
                       for rank in range(n_workers)]
            results = [self.rig.result(worker) for worker in workers]
            test = self.rig.psworker("eval", ["--data", self.test, "--servers", address, "--threads", 2, *common])
            if relay:
                relay.close()
        samples = sum(result["samples"] for result in results)
        n_bytes = sum(result["wire_bytes_per_sample"] * result["samples"] for result in results)
        seconds = max(result.get("seconds", 0) for result in results)
        return {"samples": samples, "bytes": n_bytes, "bytes_per_sample": n_bytes / samples, "auc": test["auc"],
                "logloss": test["logloss"], "seconds": seconds,
                "parts": {part: n / samples for part, n in sorted(relay.parts.items())} if relay else {}}

    def cases(self):
        o = self.o
        for n_workers in o.workers:
            for mode in o.modes[:1] if n_workers == 1 else o.modes:
                for batch in o.batches:
                    for name, flags in o.cases:
                        flags = flags + (["--row-cache", "0"] if n_workers == 1 and name == PLAIN else [])
                        runs = []
                        for seed in o.seeds:
                            runs.append(rig.monitored(self.run, flags, mode, n_workers, batch, seed))
                            rig.note(f"{n_workers} x {batch}, {mode}, seed {seed}: {name}: {runs[-1]['bytes_per_sample']:,.1f} bytes a "
                                     f"sample, AUC {runs[-1]['auc']:.4f}")
                        yield {"setting": name, "flags": flags, "workers": n_workers, "batch": batch, "mode": mode if n_workers > 1 else "-",
                               "data": self.rig.data_name, "seeds": o.seeds, "runs": runs}


def show(cases):
    rig.say(f"Data: {cases[0]['data']}.")
    rig.say_others([run for case in cases for run in case["runs"]])
    rows = []
    for case in cases:
        plain = next((c for c in cases if c["setting"] == PLAIN and all(c[k] == case[k] for k in ("workers", "batch", "mode"))), None)
        mean = statistics.mean(run["bytes_per_sample"] for run in case["runs"])
        ratio, against = "-", "-"
        if plain:
            ratio = f"{statistics.mean(run['bytes_per_sample'] for run in plain['runs']) / mean:.1f}"
            against = rig.mean_and_spread([a["auc"] - b["auc"] for a, b in zip(case["runs"], plain["runs"])], "{:+.4f}")
        rows.append([case["workers"], case["mode"], case["batch"], case["setting"], f"{mean:,.0f}", ratio,
                     f"{statistics.mean(run['auc'] for run in case['runs']):.4f}", against])
    rig.table(["workers", "mode", "batch", "setting", "bytes a sample", "plain / this", "test AUC", "AUC against plain"], rows)


def show_parts(cases):
    names = sorted({part for case in cases for run in case["runs"] for part in run["parts"]})
    if not names:
        return
    rig.say("What the bytes are made of, bytes a sample:")
    rig.say()
    rig.table(["part", *(f"{c['workers']} x {c['batch']} {c['mode']}: {c['setting']}" for c in cases)],
              [[part, *(f"{statistics.mean(run['parts'].get(part, 0) for run in c['runs']):,.1f}" for c in cases)] for part in names])


def main():
    o = read_options()
    with rig.Rig(o) as rig_:
        cases = list(Job(o, rig_).cases())
        rig.write_lines(o.json, cases)
        show(cases)
        show_parts(cases)


if __name__ == "__main__":
    rig.run(main)

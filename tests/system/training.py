"""Real psd and psworker processes for the tests that train: start, wait, read results."""
import collections
import itertools
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("PS_BIN", ROOT / "build/release/bin")).resolve()
SHARED = pathlib.Path(os.environ.get("PS_SHARED", ROOT / "../shared"))


def shared(path):
    """A file of the real click logs; skipped where they are not, failed in CI."""
    p = SHARED / path
    if not p.exists():
        if os.environ.get("CI"):
            pytest.fail(f"{p} is missing")
        pytest.skip(f"{p} is not there")
    return p


def share(cases, whole_up_to=1):
    """What this run takes of a long test's cases: all, or each n-th with PS_SHARE=n, but one at least. PS_SEED says which
    (tests/support/share.h). Those that are of use only together are whole up to a PS_SHARE."""
    n = int(os.environ.get("PS_SHARE", 1))
    step = 1 if n <= whole_up_to else min(n, len(cases))
    return cases[int(os.environ.get("PS_SEED", "0"), 0) % step::step]


def sanitized_share(cases):
    """All in the release build. With sanitizers, which are ten times slower and look at threads and memory, a share of them."""
    return share(cases) if BIN.parent.name in ("asan", "tsan") else cases


def golden():
    """Where PyTorch's numbers are unpacked; skipped where they are not, failed in CI."""
    p = pathlib.Path(os.environ.get("PS_GOLDEN", ROOT / "build/golden")).resolve()
    if not p.exists():
        if os.environ.get("CI"):
            pytest.fail(f"{p} is missing")
        pytest.skip(f"{p} is not there: `make golden` unpacks it, or PS_GOLDEN says where it is")
    return p


given = collections.deque(maxlen=1000)


def free_ports(n):
    """Ports that nobody listens at, below those that the kernel gives to outgoing connections, so that none is taken before a psd has it, nor
    while it is down between two lives. Test processes side by side draw from different ones; PS_PORTS_FROM: so many run beside these. None
    is one of the last 1,000 given: its psd may not have begun to listen yet."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) + int(os.environ.get("PS_PORTS_FROM", 0))
    first = 10000 + 2500 * (process % 9)
    drawn = random.SystemRandom().sample(sorted(set(range(first, first + 2500)) - set(given)), 100 + n)
    ports = list(itertools.islice(filter(is_free, drawn), n))
    given.extend(ports)
    return ports


def is_free(port):
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_for(what, condition, seconds=120):
    """The first true value of condition(); asks every 50 ms."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)  # between two questions
    raise AssertionError(f"{what} did not happen within {seconds} s")


def in_time(attempt, tries=5):
    """The first of attempt(0), attempt(1) ... that is not None. None says that a run was over before it could be disturbed, or that another process
    did not get its turn: a busy machine had kept it waiting."""
    for n in range(tries):
        got = attempt(n)
        if got is not None:
            return got
    raise AssertionError(f"{tries} times the run was over before it was disturbed")


class Psd:
    """One node. Its log is in `dir`/psd.log."""

    def __init__(self, dir, *flags, listen=None, env=None):
        self.dir = pathlib.Path(dir)
        self.dir.mkdir(parents=True, exist_ok=True)
        self.log = self.dir / "psd.log"
        self.data = self.dir / "data"
        self.n_before = self.log.read_text().count("psd ready") if self.log.exists() else 0
        with open(self.log, "a") as err:
            self.proc = subprocess.Popen(
                [BIN / "psd", "--listen", listen or f"127.0.0.1:{free_ports(1)[0]}", "--http", "127.0.0.1:0", "--data-dir", self.data, *map(str, flags)],
                stderr=err, stdout=err, env=env)
        self.address, self.http = self._ready()

    def _ready(self):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            m = re.findall(r"psd ready: listening on ([^,\s]+), http ([^,\s]+)", self.log.read_text())
            if len(m) > self.n_before:
                return m[-1]
            if self.proc.poll() is not None:
                break
            time.sleep(0.02)  # between two looks at the log
        raise AssertionError(f"psd did not become ready: {self.log.read_text()}")

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=60) as r:
            return r.read().decode()

    def stats(self):
        return json.loads(self.get("/stats"))

    def stop(self):
        """SIGTERM, which writes a checkpoint; the exit status must be 0."""
        self.proc.send_signal(signal.SIGTERM)
        assert self.proc.wait(120) == 0, self.log.read_text()

    def kill(self):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGCONT)
            self.proc.kill()
            self.proc.wait()


@pytest.fixture
def psds(tmp_path):
    """psds(*flags) starts a node in a directory of its own."""
    started = []

    def start(*flags, **kw):
        kw.setdefault("dir", tmp_path / f"psd{len(started)}")
        started.append(Psd(kw.pop("dir"), *flags, **kw))
        return started[-1]

    yield start
    for p in started:
        p.kill()


def psworker(command, *flags, **kw):
    """A running psworker; .wait() it with finish()."""
    return subprocess.Popen([BIN / "psworker", command, *map(str, flags)], stderr=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True, **kw)


def finish(proc, timeout=300, status=0):
    out, err = proc.communicate(timeout=timeout)
    assert status is None or proc.returncode == status, err[-4000:]
    return out, err


def train(*flags, timeout=300):
    """One training run to its end; the last JSON line."""
    out, err = finish(psworker("train", *flags, "--json", "-"), timeout)
    return result(out)


def result(out):
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert lines and lines[-1]["event"] == "result", out
    return lines[-1]


def ended_by_itself(out):
    """Was a run whose first lines were read before over by then? What was read with them may be the last."""
    return '"event":"result"' not in out


def restarted(psds, folder, *flags):
    """A run whose node is stopped by SIGTERM in the midst of it and started again: what it says in the end, and the node's data. None: it was
    over too soon."""
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    node = psds("--shards", 2, listen=listen, dir=folder)
    w = psworker("train", *flags, "--servers", node.address, "--json", "-", "--progress-every", "20ms")
    for _ in range(2):
        assert w.stdout.readline()
    node.stop()
    again = psds("--shards", 2, listen=listen, dir=folder)
    out, _ = finish(w)
    again.stop()
    if ended_by_itself(out) or not result(out)["reconnects"]:
        return None
    return result(out), again.data


def synth(path, rows, seed=1, **kw):
    flags = [x for k, v in kw.items() for x in (f"--{k.replace('_', '-')}", v)]
    finish(psworker("synth", "--rows", rows, "--seed", seed, "--output", path, *flags))
    return path


def keyless_log(path):
    """Samples whose categorical values are missing: the first two batches of 4, the last one, which has a single sample, and some between."""
    rows = [(i % 2, i % 7, "" if i < 8 or i == 40 or i % 9 == 0 else f"t{i % 5}") for i in range(41)]
    path.write_text("y,a,b\n" + "".join(f"{y},{a},{b}\n" for y, a, b in rows))
    return ("--data", path, "--valid", path, "--delimiter", ",", "--header", "--label", "y", "--numeric", "a", "--categorical", "b", "--missing-as",
            "skip", "--wide", "--batch", 4, "--dim", 4, "--bottom", "4", "--top", "4")

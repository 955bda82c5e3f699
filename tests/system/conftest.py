"""Real processes: `start_psd` starts a daemon on free ports and holds it, at the end, to a clean exit."""

import contextlib
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.request

import pytest

import wire
from training import free_ports

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("PS_BIN", ROOT / "build/release/bin")).resolve()
READY = re.compile(r"psd ready: listening on (\S+):(\d+), http (\S+), (\d+) shards?(?:, (\d+) tables? restored)?")
SANITIZER = re.compile(r"Sanitizer|runtime error:|Assertion")
START_S = 120


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """What a passed test wrote goes with it: all of them together write some 20 GB, and a disk with less is enough. A failed one's files stay."""
    report = (yield).get_result()
    item.all_passed = report.passed and (call.when == "setup" or item.all_passed)
    if call.when == "teardown" and item.all_passed and "tmp_path" in item.funcargs:
        shutil.rmtree(item.funcargs["tmp_path"], ignore_errors=True)


class Daemon:
    """A running psd; its log grows in `lines`."""

    def __init__(self, args, cwd, env=None, awaited=True):
        self.process = subprocess.Popen([str(BIN / "psd"), *args], cwd=cwd, env=env, stderr=subprocess.PIPE, text=True,
                                        errors="replace")
        self.lines = []
        self.is_stopping = False
        self.is_ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if awaited:
            self.await_ready()

    def await_ready(self):
        if not self.is_ready.wait(START_S) or not hasattr(self, "port"):
            self.process.kill()
            raise RuntimeError(f"{self.process.args} is not ready: {self.log()}")

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            match = READY.search(line)
            if match:
                self.port, self.http = int(match[2]), match[3]
                self.n_shards, self.n_tables = int(match[4]), int(match[5] or 0)
                self.is_ready.set()
        self.is_ready.set()

    def log(self):
        return "\n".join(self.lines)

    def terminate(self):
        """SIGTERM, once: a second one would cut the last checkpoint short."""
        if not self.is_stopping:
            self.is_stopping = True
            self.process.send_signal(signal.SIGTERM)

    def stop(self):
        """The exit status after SIGTERM."""
        self.terminate()
        status = self.process.wait(START_S)
        self.reader.join()
        self.process.stderr.close()
        return status

    def kill(self):
        self.process.kill()
        self.process.wait()

    # --- clients ---

    def connect(self, shard=0, role="worker", source=None, **more):
        """Greeted and let in; `source`: from this address of the machine."""
        client = wire.Wire(self.port, source=source)
        answer = client.hello(role=role, shard=shard, **more)
        assert answer.status == 0, answer.text
        return client

    def admin(self, command="stats"):
        with self.connect(wire.LISTENER, "operator") as client:
            answer = client.admin(command)
            assert answer.status == 0, answer.text
            return json.loads(answer.body)

    def stats(self):
        with urllib.request.urlopen(f"http://{self.http}/stats", timeout=60) as page:
            return json.load(page)


@pytest.fixture
def start_psd(tmp_path):
    daemons = []

    def start(*args, data=True):
        args = ["--listen", f"127.0.0.1:{free_ports(1)[0]}", "--http", "127.0.0.1:0", *args]
        if data and "--data-dir" not in args:
            args += ["--data-dir", str(tmp_path / f"data-{len(daemons)}")]
        daemons.append(Daemon(args, tmp_path))
        return daemons[-1]

    yield start
    for daemon in daemons:
        was_killed = daemon.process.poll() == -signal.SIGKILL
        status = daemon.stop()
        assert was_killed or status == 0, daemon.log()
        assert not SANITIZER.search(daemon.log()), daemon.log()


@pytest.fixture(scope="module")
def shared_psd(tmp_path_factory, request):
    """One daemon for the tests of a file, which names its arguments in PSD_ARGS."""
    daemon = Daemon(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *request.module.PSD_ARGS],
                    tmp_path_factory.mktemp("psd"))
    yield daemon
    assert daemon.stop() == 0, daemon.log()
    assert not SANITIZER.search(daemon.log()), daemon.log()


def eventually(condition, within_s=120):
    """Asks until it holds. What is waited for is a counter that the daemon publishes a few times a second; a machine that is busy takes its time."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


@contextlib.contextmanager
def worker_alone(psd, job, table, dim):
    """The only worker of its job, and the number of its table."""
    with psd.connect() as client:
        number = client.table(name=table, dim=dim).number(3)
        assert client.join(job=job).status == 0
        yield client, number


@contextlib.contextmanager
def meanwhile(act):
    """Calls act(0), act(1), ... on a thread of its own while the block runs."""
    end = threading.Event()

    def run():
        for i in itertools.count():
            if end.is_set():
                return
            act(i)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()

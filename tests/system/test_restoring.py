"""A node that restores its data answers operators, tells workers to come again, and stops when it is told to."""

import json
import os
import re
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import pytest

import wire
from conftest import BIN, Daemon, eventually
from test_jobs import SMALL
from training import finish, free_ports, psworker, result, synth

DIM = 1024
N_KEYS = 500
N_PUSHES = 8  # of 2 MB each
KEYS = list(range(N_KEYS))


def push(psd, first, n):
    """Pushes of noise, which no compression makes smaller."""
    with psd.connect() as client:
        table = client.table(name="t", dim=DIM).number(3)
        assert client.join(incarnation=1).status == 0
        values = bytearray(os.urandom(4 * DIM * N_KEYS))
        values[3::4] = b"\x3c" * (DIM * N_KEYS)
        for seq in range(first, first + n):
            assert client.push(KEYS, bytes(values), table=table, seq=seq, clock=seq - 1).status == 0
        return rows(client, table)


def rows(client, table):
    answer = client.pull(KEYS, table=table)
    assert answer.status == 0, answer.text
    return answer.body


def check_restoring(psd, want):
    """The table is as it was."""
    with psd.connect(role="reader") as client:
        table = client.table(name="t", dim=DIM, must_exist=True).number(3)
        assert rows(client, table) == want


class Pipe:
    """Takes the place of a log's last segment: psd gets half of it, and the rest after `release`. Then the file is there as before: what psd
    has open is the pipe."""

    def __init__(self, data):
        self.path = sorted(data.rglob("*.psl"))[-1]
        self.content = self.path.read_bytes()
        self.path.unlink()
        os.mkfifo(self.path)
        self.is_half_read, self.release, self.was_closed = threading.Event(), threading.Event(), False
        self.thread = threading.Thread(target=self._feed, daemon=True)
        self.thread.start()

    def _feed(self):
        half = len(self.content) // 2
        with open(self.path, "wb", buffering=0) as pipe:
            again = self.path.with_suffix(".again")
            again.write_bytes(self.content)
            again.replace(self.path)
            try:
                self._write(pipe, self.content[:half])
                self.is_half_read.set()
                self.release.wait()
                self._write(pipe, self.content[half:])
            except BrokenPipeError:
                self.was_closed = True

    @staticmethod
    def _write(pipe, data):
        view = memoryview(data)
        while view:
            view = view[pipe.write(view[:1 << 16]):]


@pytest.fixture
def restoring(start_psd, tmp_path):
    """restoring() is a node in the midst of its restore, its pipe, and what its table holds."""
    data = tmp_path / "data"
    started = []

    def start(env=None):
        args = ("--shards", "1", "--durability", "fsync", "--data-dir", str(data))
        psd = start_psd(*args)
        push(psd, 1, 1)
        psd.kill()
        psd = start_psd(*args)  # begins the log's second segment
        body = push(psd, 2, N_PUSHES)
        psd.kill()
        pipe = Pipe(data)
        port, http = free_ports(2)
        psd = Daemon(["--listen", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{http}", *args], tmp_path, env, awaited=False)
        psd.port, psd.http = port, f"127.0.0.1:{http}"
        started.append((psd, pipe))
        assert pipe.is_half_read.wait(120), psd.log()
        return psd, pipe, body

    yield start
    for psd, pipe in started:
        pipe.release.set()
        psd.stop()


def psctl(psd, *args):
    return subprocess.run([BIN / "psctl", "--server", f"127.0.0.1:{psd.port}", *args], capture_output=True, text=True, timeout=60)


def get(psd, path):
    try:
        with urllib.request.urlopen(f"http://{psd.http}{path}", timeout=60) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metric(psd, name):
    return float(re.search(rf"^{name} (\S+)$", get(psd, "/metrics")[1], re.M)[1])


def test_a_standby_of_it_says_so_and_follows_once_it_serves(restoring, tmp_path):
    psd, pipe, _ = restoring()
    standby = Daemon(["--listen", f"127.0.0.1:{free_ports(1)[0]}", "--http", "127.0.0.1:0", "--shards", "1", "--data-dir", str(tmp_path / "b"),
                      "--standby", f"127.0.0.1:{psd.port}"], tmp_path, awaited=False)
    try:
        eventually(lambda: "the primary is starting, and reads its data" in standby.log())
        pipe.release.set()
        eventually(lambda: f"following 127.0.0.1:{psd.port}" in standby.log())
        assert "is stopping" not in standby.log()
    finally:
        status = standby.stop()
    assert status == 0


def test_operators_see_how_far_it_has_come(restoring):
    psd, pipe, _ = restoring()
    eventually(lambda: metric(psd, "psd_restore_records") > 0 and metric(psd, "psd_restore_bytes") > 4e6)
    assert metric(psd, "psd_restoring") == 1 and metric(psd, "psd_ready") == 0
    assert get(psd, "/healthz") == (200, "ok\n")
    code, text = get(psd, "/readyz")
    assert code == 503 and re.match(r"restoring: .*\d+ rows, [1-9]\d* records of the write-ahead log, for \d+ s\n", text)
    status = psctl(psd, "status")
    assert status.returncode == 0 and ": restoring, " in status.stdout and "\nrestoring    restoring: " in status.stdout
    seen = json.loads(psctl(psd, "status", "--json").stdout)["restoring"]
    assert seen["log_records"] > 0 and seen["bytes"] > 4e6 and seen["text"].startswith("restoring: ")
    why = psctl(psd, "why")
    assert why.returncode == 0 and "restore: this node; restoring: " in why.stdout
    for command in (["workers"], ["checkpoint"], ["row", "t", "1"]):
        got = psctl(psd, *command)
        assert got.returncode == 1 and got.stderr.count("\n") == 1, got
        assert "psd is not ready yet: restoring: " in got.stderr
    eventually(lambda: any(re.search(r"restoring: .* for \d+ s", line) for line in psd.lines))  # and so does who reads the log
    pipe.release.set()
    psd.await_ready()
    eventually(lambda: metric(psd, "psd_restoring") == 0 and metric(psd, "psd_ready") == 1)
    assert get(psd, "/readyz") == (200, "ready\n") and "restoring" not in psctl(psd, "status").stdout
    assert psctl(psd, "workers").returncode == 0


def test_workers_retry_until_it_is_ready(restoring, tmp_path):
    log = synth(tmp_path / "log.tsv", 500)
    psd, pipe, body = restoring()
    for shard in (0, wire.LISTENER):
        with wire.Wire(psd.port) as client:
            answer = client.hello(role="worker", shard=shard)
            assert answer.status == wire.STATUS["ESTOPPING"] and answer.text.startswith("psd is not ready yet: restoring: ")
    flags = (*SMALL, "--job", "ctr", "--data", log, "--servers", f"127.0.0.1:{psd.port}", "--json", "-")
    _, said = finish(psworker("train", *flags, "--connect-timeout", "1s"), status=None)
    assert "no answer for 1 s: psd is not ready yet: restoring: " in said
    worker = psworker("train", *flags, "--connect-timeout", "120s")
    seen = []
    for line in worker.stderr:
        seen.append(line)
        if "waiting for psd" in line:
            break
    assert "psd is not ready yet: restoring: " in seen[-1]
    assert "refused" not in psd.log()
    pipe.release.set()
    out, _ = finish(worker)
    assert result(out)["samples"] == 500
    check_restoring(psd, body)


def test_a_stop_does_not_wait_for_the_rest_of_the_log(restoring, start_psd, tmp_path):
    psd, pipe, body = restoring()
    psd.terminate()
    eventually(lambda: "stopping: the restore is given up" in psd.log())
    pipe.release.set()
    assert psd.stop() == 0
    pipe.thread.join(60)
    assert pipe.was_closed, "it has read all"
    assert "the next start does it" in psd.log() and "psd ready" not in psd.log()
    again = start_psd("--shards", "1", "--data-dir", str(tmp_path / "data"))
    check_restoring(again, body)
    assert metric(again, "psd_restore_bytes") == metric(again, "psd_restore_expected_bytes") > len(pipe.content)


def test_an_address_that_is_taken_is_reported_before_anything_is_restored(restoring, tmp_path):
    psd, _, _ = restoring()
    for flag, address in (("--listen", f"127.0.0.1:{psd.port}"), ("--http", psd.http)):
        flags = {"--listen": "127.0.0.1:0", "--http": "127.0.0.1:0", flag: address}
        got = subprocess.run([BIN / "psd", *(x for pair in flags.items() for x in pair), "--data-dir", tmp_path / "other"],
                             capture_output=True, text=True, timeout=60)
        assert got.returncode == 1 and f"cannot listen on {address}" in got.stderr


def test_the_service_manager_sees_the_progress_and_no_ready(restoring, tmp_path):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(120)
        psd, pipe, _ = restoring({**os.environ, "NOTIFY_SOCKET": path})
        seen = ""
        while "STATUS=restoring: " not in seen:
            seen += manager.recv(4096).decode() + "\n"
        assert "READY=1" not in seen
        pipe.release.set()
        while "READY=1" not in seen:
            seen += manager.recv(4096).decode() + "\n"
        psd.await_ready()

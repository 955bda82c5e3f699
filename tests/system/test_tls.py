"""TLS between all programs: the guide's two nodes and a job, a reload, and who is refused."""
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

import pytest

BIN = pathlib.Path(os.environ["PS_BIN"])
DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "adult.data.zst"
CONFIG = f"--config={DATA.parents[2]}/deploy/adult.conf"


def run(*args, **more):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=180, **more)


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def client(folder, role):
    return [f"--tls-ca={folder}/ca.pem", f"--tls-cert={folder}/{role}.pem", f"--tls-key={folder}/{role}.key"]


class Node:
    def __init__(self, tmp, address, folder, *more):
        self.log = open(tmp / f"psd-{address.split(':')[1]}.log", "w+")
        self.process = subprocess.Popen([str(BIN / "psd"), f"--listen={address}", "--shards=1", "--tls=on",
                                         *client(folder, "node"), *more], stderr=self.log, stdout=self.log)

    def wait_for(self, words, timeout_s=60):
        """The log has these words."""
        until = time.monotonic() + timeout_s
        while words not in self.text():
            assert time.monotonic() < until and self.process.poll() is None, self.text()
            time.sleep(0.02)

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.text()
        self.log.close()


@pytest.fixture
def folder(tmp_path):
    made = run(BIN / "psctl", "cert", tmp_path / "tls", "--job=census")
    assert made.returncode == 0, made.stderr
    return tmp_path / "tls"


def test_two_nodes_and_a_job_with_certificates(tmp_path, folder):
    a, b = [f"127.0.0.1:{port}" for port in free_ports(2)]
    nodes = [Node(tmp_path, at, folder, f"--cluster={a},{b}", f"--node={i}") for i, at in enumerate((a, b))]
    for node in nodes:
        node.wait_for("psd ready")
    trained = run(BIN / "psworker", "train", f"--servers={a}", "--job=census", CONFIG, f"--data={DATA}",
                  "--epochs=1", *client(folder, "worker"))
    assert trained.returncode == 0, trained.stderr
    tables = run(BIN / "psctl", "tables", f"--server={a}", *client(folder, "operator"))
    assert tables.returncode == 0 and "census" in tables.stdout, tables.stderr
    other = run(BIN / "psworker", "train", f"--servers={a}", "--job=other", CONFIG, f"--data={DATA}",
                "--epochs=1", "--give-up=2s", *client(folder, "worker"))
    assert other.returncode != 0 and "role worker of job census may not use it" in other.stderr, other.stderr
    dropped = run(BIN / "psctl", "drop", "census", "--yes", f"--server={a}", *client(folder, "operator"))
    assert dropped.returncode != 0 and "role operator may not do it" in dropped.stderr, dropped.stderr
    dropped = run(BIN / "psctl", "drop", "census", "--yes", f"--server={a}", *client(folder, "admin"))
    assert dropped.returncode == 0, dropped.stderr
    for node in nodes:
        node.stop()


def test_a_pair_copies_promotes_and_switches_over_tls(tmp_path, folder):
    a, b = [f"127.0.0.1:{port}" for port in free_ports(2)]
    ids = client(folder, "admin")

    def ask(at, *words):
        return run(BIN / "psctl", *words, f"--server={at}", *ids)

    def await_in_sync(at):
        until = time.monotonic() + 60
        while '"in_sync":true' not in ask(at, "status", "--json").stdout.replace(" ", ""):
            assert time.monotonic() < until, "no standby in sync"
            time.sleep(0.05)

    def n_rows(at):
        return re.findall(r"^(census/\S+) +\w+ .* fp32 +(\d+)", ask(at, "tables").stdout, re.MULTILINE)

    def data(name):
        return f"--data-dir={tmp_path / name}"

    primary = Node(tmp_path, a, folder, data("a"))
    primary.wait_for("psd ready")
    trained = run(BIN / "psworker", "train", f"--servers={a}", "--job=census", CONFIG, f"--data={DATA}",
                  "--epochs=1", *client(folder, "worker"))
    assert trained.returncode == 0, trained.stderr
    standby = Node(tmp_path, b, folder, data("b"), f"--standby={a}")
    await_in_sync(b)
    await_in_sync(a)
    switched = ask(a, "switch")
    assert switched.returncode == 0 and switched.stdout.startswith(f"{b} is the primary now"), switched.stderr
    await_in_sync(a)
    rows = n_rows(b)
    assert rows
    members = ask(b, "cluster")
    assert members.returncode == 0 and a in members.stdout, members.stdout + members.stderr
    standby.process.kill()
    standby.process.wait()
    until = time.monotonic() + 20
    while (promoted := ask(a, "promote")).returncode:
        assert time.monotonic() < until, promoted.stderr
        time.sleep(0.05)
    assert n_rows(a) == rows
    back = Node(tmp_path, b, folder, data("b"), f"--standby={a}")  # asks whether it still is the primary: over TLS, too
    await_in_sync(b)
    for node in (back, primary):
        node.stop()
    standby.log.close()


def test_certificates_are_read_again_and_a_bad_file_changes_nothing(tmp_path, folder):
    at = f"127.0.0.1:{free_ports(1)[0]}"
    node = Node(tmp_path, at, folder)
    node.wait_for("psd ready")
    ask = [BIN / "psctl", "status", f"--server={at}", *client(folder, "admin")]
    assert run(*ask).returncode == 0
    good = (folder / "node.pem").read_text()
    (folder / "node.pem").write_text("no certificate")
    node.process.send_signal(signal.SIGHUP)
    node.wait_for("all settings stay as they are: tls-cert: cannot use")
    assert run(*ask).returncode == 0
    (folder / "node.pem").unlink()
    (folder / "node.key").unlink()
    assert run(BIN / "psctl", "cert", folder, "--days=7").returncode == 0
    assert (folder / "node.pem").read_text() != good
    node.process.send_signal(signal.SIGHUP)
    node.wait_for("in force now: the certificates")
    assert run(*ask).returncode == 0
    plain = run(BIN / "psctl", "status", f"--server={at}")
    assert plain.returncode != 0 and "this port speaks TLS" in plain.stderr
    openssl = run("openssl", "s_client", "-connect", at, "-tls1_2", input="")
    assert openssl.returncode != 0
    node.wait_for("the peer offers no TLS 1.3")
    assert re.search("refused: this port speaks TLS", node.text())
    node.stop()

"""A pair with etcd: the standby takes over by itself, and each push that was acknowledged is applied once. Stalls are printed."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest
from pair import Member, Pair
from training import BIN, free_ports, wait_for

COUNTER = pathlib.Path(__file__).with_name("counter.py")
PYTHON = pathlib.Path(__file__).resolve().parents[2] / "worker/python"


class Etcd:
    def __init__(self, folder):
        if not shutil.which("etcd"):
            pytest.skip("there is no etcd on PATH (Debian: etcd-server)")
        port, peer_port = free_ports(2)
        self.url, self.address = f"etcd://127.0.0.1:{port}/t", f"127.0.0.1:{port}"
        own, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
        with open(folder / "etcd.log", "a", encoding="utf-8") as log:
            self.proc = subprocess.Popen(
                ["etcd", "--name", "m0", "--data-dir", folder / "etcd", "--listen-client-urls", own,
                 "--advertise-client-urls", own, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", f"m0={peer}"], stdout=log, stderr=log)

    def end(self):
        self.proc.kill()
        self.proc.wait()


class Counter:
    """A worker that counts; it has had no word of what happens."""

    def __init__(self, pair, mode):
        env = {**os.environ, "PYTHONPATH": str(PYTHON), "PSD_LIBRARY": str(BIN.parent / "lib/libpsd.so.1")}
        self.proc = subprocess.Popen([sys.executable, COUNTER, f"psd://{pair.servers}", mode], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True, env=env)
        self.answer()

    def answer(self):
        line = self.proc.stdout.readline()
        assert line, f"the worker has ended: {self.proc.wait(60)}"
        return json.loads(line)

    def ask(self, word):
        self.proc.stdin.write(word + "\n")
        self.proc.stdin.flush()
        return self.answer()

    def check(self):
        end = self.ask("stop")
        assert end["lowest"] == end["highest"] == end["pushed"], end
        assert not end["lost"], end
        assert self.proc.wait(60) == 0


@pytest.fixture(name="etcd")
def one_etcd(tmp_path):
    e = Etcd(tmp_path)
    yield e
    e.proc.send_signal(signal.SIGCONT)
    e.end()


@pytest.fixture(name="start")
def pair_that_counts(tmp_path, etcd):
    """start(*flags): a pair that is in sync, and a worker that has pushed."""
    begun = []

    def start(*flags):
        pair = Pair(tmp_path / "pair", "--coord", etcd.url, *flags)
        counter = Counter(pair, "async")
        begun.append((pair, counter))
        assert counter.ask("go")["pushed"]
        return pair, counter

    yield start
    for pair, counter in begun:
        counter.proc.kill()
        counter.proc.wait()
        pair.primary.proc.send_signal(signal.SIGCONT)
        pair.end()


def await_takeover(pair):
    wait_for("the takeover", lambda: pair.standby.replication().get("role") == "primary", 30)
    pair.primary, pair.standby = pair.standby, pair.primary


def rejoin(pair):
    """Who was the primary has ended, and starts as it did before."""
    pair.standby.start()
    pair.await_in_sync()


@pytest.mark.parametrize("durability", ["fsync", "async"])
def test_a_killed_primary_is_replaced_without_a_person(start, durability):
    pair, counter = start("--durability", durability)
    for n in range(int(os.environ.get("PS_HA_ROUNDS", 2))):
        pair.primary.proc.kill()
        pair.primary.proc.wait()
        await_takeover(pair)
        print(f"kill -9, {durability}: stall {counter.ask('go')['longest_ms']:.0f} ms")
        rejoin(pair)
    counter.check()


def test_a_primary_that_stands_still_is_replaced_and_deposed(start):
    pair, counter = start()
    pair.primary.proc.send_signal(signal.SIGSTOP)
    await_takeover(pair)
    print(f"SIGSTOP: stall {counter.ask('go')['longest_ms']:.0f} ms")
    pair.standby.proc.send_signal(signal.SIGCONT)
    assert pair.standby.proc.wait(60) == 3
    assert pair.standby.says("the coordination service names")
    rejoin(pair)
    counter.check()


def test_without_etcd_pushes_go_on_while_both_live(start, etcd):
    pair, counter = start()
    etcd.proc.send_signal(signal.SIGSTOP)
    for member in (pair.primary, pair.standby):
        wait_for("a word of it", lambda m=member: m.says("the service does not answer"), 60)
    before = counter.ask("go")["pushed"]
    wait_for("pushes", lambda: counter.ask("go")["pushed"] > before + 100, 60)
    etcd.proc.send_signal(signal.SIGCONT)
    wait_for("its return", lambda: pair.standby.says("the service answers again"), 60)
    pair.primary.proc.kill()
    pair.primary.proc.wait()
    await_takeover(pair)
    counter.check()


def test_a_standby_that_ends_is_out_of_sync_in_etcd_first(start):
    """The primary goes on alone; restarted without its standby it serves, and a standby that was not in sync does not."""
    pair, counter = start("--durability", "fsync")
    pair.standby.proc.kill()
    pair.standby.proc.wait()
    wait_for("a primary that goes on alone", lambda: pair.primary.says("is out of sync"), 30)
    counter.ask("go")
    pair.primary.proc.kill()
    pair.primary.proc.wait()
    pair.standby.start("--standby", pair.primary.address)
    wait_for("its first dial", lambda: pair.standby.replication().get("state") == "spare", 30)
    pair.primary.start()
    pair.await_in_sync()
    assert pair.primary.replication()["role"] == "primary"
    counter.check()


def test_a_person_promotes_what_etcd_calls_out_of_sync_with_accept_loss_alone(start):
    """The standby still believes that it is in sync: it stood still while its primary went on alone."""
    pair, counter = start("--durability", "fsync")
    pair.standby.proc.send_signal(signal.SIGSTOP)
    wait_for("a primary that goes on alone", lambda: pair.primary.says("is out of sync"), 30)
    counter.ask("go")
    pair.primary.proc.kill()
    pair.primary.proc.wait()
    pair.standby.proc.send_signal(signal.SIGCONT)
    wait_for("the end of its sessions", lambda: pair.standby.replication().get("state") == "spare", 30)
    refused = pair.standby.psctl("promote", "--the-other-is-dead")
    assert refused.returncode == 1 and "--accept-loss" in refused.stderr, refused
    pair.primary.start()
    pair.await_in_sync()
    counter.check()


def test_a_second_promotion_is_refused_and_the_first_one_goes_on(start, etcd):
    pair, counter = start("--failover-after", "1h")
    pair.primary.proc.send_signal(signal.SIGSTOP)
    etcd.proc.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, etcd.proc.pid, os.WSTOPPED)  # all of its threads
    first = subprocess.Popen([BIN / "psctl", "promote", "--the-other-is-dead", "--server", pair.standby.address],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for("the promotion", lambda: pair.standby.replication().get("state") == "promoting", 30)
    refused = pair.standby.psctl("promote", "--the-other-is-dead")
    assert refused.returncode == 1 and "one is under way" in refused.stderr, refused
    assert first.poll() is None
    etcd.proc.send_signal(signal.SIGCONT)
    assert "is the primary now" in first.communicate(timeout=60)[0]
    assert first.returncode == 0
    pair.primary.proc.send_signal(signal.SIGCONT)
    assert pair.primary.proc.wait(60) == 3
    counter.check()


def test_of_two_psd_of_one_name_and_history_the_one_with_the_greater_term_serves(etcd, tmp_path):
    """As of a virtual machine that is copied while it runs."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    first = Member(tmp_path / "a", free_ports(1)[0], "--shards", "1", "--coord", etcd.url, "--advertise", address)
    first.start()
    first.await_ready()
    second = Member(tmp_path / "b", free_ports(1)[0], *first.flags)
    shutil.copytree(first.data, second.data)
    second.start()
    second.await_ready()
    assert first.proc.wait(60) == 3
    assert first.says("another psd with this one's name")
    second.proc.kill()
    second.proc.wait()


def test_a_standby_that_stood_still_itself_does_not_take_over(start):
    """For longer than --failover-after, and not so long that its primary gives it up."""
    pair, counter = start("--standby-patience", "5s")
    for _ in range(3):
        pair.standby.proc.send_signal(signal.SIGSTOP)
        time.sleep(1)
        pair.standby.proc.send_signal(signal.SIGCONT)
        pushed = counter.ask("go")["pushed"]
        wait_for("pushes", lambda n=pushed: counter.ask("go")["pushed"] > n + 20, 30)
    assert pair.primary.replication()["role"] == "primary" and not pair.standby.says("takes over")
    counter.check()


def test_a_directory_that_is_older_than_the_claim_serves_with_accept_loss_alone(etcd, tmp_path):
    """A backup that was put back: it lacks what its successor has acknowledged."""
    member = Member(tmp_path / "a", free_ports(1)[0], "--shards", "1", "--coord", etcd.url, "--durability", "fsync")
    for n in range(2):
        member.start()
        wait_for("psd's start", lambda n=n: member.log.read_text().count("psd ready: ") > n)
        member.proc.kill()
        member.proc.wait()
        if not n:
            shutil.copytree(member.data, tmp_path / "backup")
    shutil.rmtree(member.data)
    shutil.move(tmp_path / "backup", member.data)
    member.start()
    wait_for("a refusal", lambda: member.says("has not the group's data"))
    assert member.psctl("promote", "--accept-loss").returncode == 0
    wait_for("psd's start", lambda: member.log.read_text().count("psd ready: ") == 3)
    member.proc.kill()
    member.proc.wait()

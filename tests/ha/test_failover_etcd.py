"""A pair with etcd: the standby takes over by itself, and each push that was acknowledged is applied once. Stalls are printed."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from etcd import Etcd
from pair import Pair
from training import BIN, wait_for

COUNTER = pathlib.Path(__file__).with_name("counter.py")
PYTHON = pathlib.Path(__file__).resolve().parents[2] / "worker/python"


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
    with Etcd(tmp_path) as e:
        yield e


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


READS = """
import sys
import psd
with psd.connect(sys.argv[1], job="count-async", reader=True) as client:
    print("rows", client.table("sums").pull([1, 2]).shape)
"""


def test_a_primary_that_may_have_been_replaced_answers_no_pull(start, etcd):
    """Its standby is silent, and etcd does not say which of them is the primary."""
    pair, counter = start()
    etcd.proc.send_signal(signal.SIGSTOP)
    pair.standby.proc.send_signal(signal.SIGSTOP)
    wait_for("its wait in why", lambda: "may be the primary by now: pulls wait" in pair.primary.psctl("why").stdout, 30)
    env = {**os.environ, "PYTHONPATH": str(PYTHON), "PSD_LIBRARY": str(BIN.parent / "lib/libpsd.so.1")}
    with subprocess.Popen([sys.executable, "-c", READS, f"psd://{pair.primary.address}"], stdout=subprocess.PIPE, text=True,
                          env=env) as reader:
        wait_for("a pull that waits", lambda: re.search(r'"parked_pulls": ?[1-9]', pair.primary.psctl("status", "--json").stdout), 30)
        pair.standby.proc.send_signal(signal.SIGCONT)
        etcd.proc.send_signal(signal.SIGCONT)
        assert reader.communicate(timeout=60)[0].startswith("rows")
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

"""Faults of the network and of the primary, with etcd on a host of its own: who serves goes on without a person, and each acknowledged
push is applied once, whoever that is. Rounds: PS_HA_ROUNDS, 1 for each fault; their stalls are printed, and bounded
if it is set. After three failovers within ten minutes a standby waits twice as long: so each pair has two rounds."""

import os
import random
import shutil
import signal
import subprocess

import pytest
from networks import Networks
from pair_on_hosts import DEPOSED, Pair, wait_until
from stalls import KILL_P50_MS, LONGEST_MS, OTHER_P50_MS, Stalls

ROUNDS = int(os.environ.get("PS_HA_ROUNDS", 1))
ROUNDS_OF_A_PAIR = 2


class Etcd:
    def __init__(self, networks, folder):
        self.networks = networks
        if not shutil.which("etcd"):
            pytest.skip("there is no etcd on PATH (Debian: etcd-server)")
        own, peer = f"http://{networks.address('e')}:2379", "http://127.0.0.1:2380"
        with open(folder / "etcd.log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                networks.inside("e", "etcd", "--name", "m0", "--data-dir", folder / "etcd", "--listen-client-urls", own,
                                "--advertise-client-urls", own, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                                "--initial-cluster", f"m0={peer}"), stdout=log, stderr=log)

    def url(self, cluster):
        return f"etcd://{self.networks.address('e')}:2379/{cluster}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def kill(pair, dice):
    pair.serving().kill()


def stop(pair, dice):
    pair.serving().signal(signal.SIGSTOP)


def unplug(pair, dice):
    pair.networks.unplug(pair.serving().name)


def drop(pair, dice):
    """One way between the two."""
    names = [pair.serving().name, pair.other().name]
    dice.shuffle(names)
    pair.networks.drop(*names)


def come_back(pair):
    """All is well again, and who is deposed starts again: until both are there, and in sync."""
    pair.networks.heal()
    for member in pair.members:
        if not member.has_ended():
            member.signal(signal.SIGCONT)

    def is_in_sync():
        for member in pair.members:
            if member.has_ended():
                assert member.process.returncode in (DEPOSED, -signal.SIGKILL), member.log.read_text()[-3000:]
                member.start()
        said = [m.replication() for m in pair.members]
        pair.primary = int(said[1].get("role") == "primary")
        return all(s.get("in_sync") for s in said) and [s["role"] for s in said].count("primary") == 1

    wait_until("both members", is_in_sync)


def pair_of(networks, folder, url, durability, *args, **more):
    folder.mkdir()
    return Pair(networks, folder, "--coord", url, "--durability", durability, *args, **more)


def run_pair(fault, n_rounds, dice, stalls, pair):
    with pair:
        pair.count("async", "ssp", "bsp")
        for _ in range(n_rounds):
            pair.stalls()
            fault(pair, dice)
            during = pair.stalls()  # with the push that was under way
            come_back(pair)
            stalls.add(during + pair.stalls())
        pair.check()


# test_failover_etcd.py has one of each of the first two, and the next test of the third.
LONG = [pytest.param(f, marks=pytest.mark.skipif("PS_HA_ROUNDS" not in os.environ, reason="PS_HA_ROUNDS is not set"))
        for f in (kill, stop, unplug)]


@pytest.mark.parametrize("fault", [*LONG, drop])
def test_a_pair_with_etcd_goes_on_by_itself(tmp_path, fault):
    seed = int(os.environ.get("PS_SEED", "1"), 0)
    print(f"PS_SEED={seed}")
    dice = random.Random(f"{seed} {fault.__name__}")
    stalls = Stalls(f"{fault.__name__}, etcd")
    with Networks("abwe") as networks, Etcd(networks, tmp_path) as etcd:
        for first in range(0, ROUNDS, ROUNDS_OF_A_PAIR):
            run_pair(fault, min(ROUNDS_OF_A_PAIR, ROUNDS - first), dice, stalls,
                     pair_of(networks, tmp_path / str(first), etcd.url(f"t{first}"), dice.choice(["fsync", "async"])))
    stalls.check(KILL_P50_MS if fault is kill else OTHER_P50_MS)


@pytest.mark.parametrize("ack, durability", [("got", "async"), ("got", "fsync"), ("disk", "fsync")])
def test_an_unplugged_primary_is_replaced(tmp_path, ack, durability):
    stalls = Stalls(f"unplug, etcd, {ack}, {durability}")
    with Networks("abwe") as networks, Etcd(networks, tmp_path) as etcd:
        run_pair(unplug, 1, random.Random(1), stalls, pair_of(networks, tmp_path / "pair", etcd.url("t"), durability, "--standby-ack", ack))
    stalls.check(OTHER_P50_MS)


@pytest.mark.parametrize("durability", ["async", "fsync"])
def test_an_unplugged_primary_is_waited_for_with_no(tmp_path, durability):
    """Nobody takes over: its standby may lack pushes. Workers wait until it is back, and nothing is lost."""
    with Networks("abwe") as networks, Etcd(networks, tmp_path) as etcd:
        with pair_of(networks, tmp_path / "pair", etcd.url("t"), durability, "--standby-ack", "no", state="following") as pair:
            pair.count("async")
            pair.counters[0].push_on()
            networks.unplug(pair.serving().name)
            wait_until("its loss", lambda: pair.other().replication().get("state") == "not following")
            refused = pair.psctl("promote", "--the-other-is-dead", server=pair.other().address)
            assert refused.returncode == 1 and "--accept-loss" in refused.stderr, refused
            networks.heal()
            pair.counters[0].push_on()
            pair.await_sync()
            assert pair.serving().replication()["role"] == "primary" and "is the primary now" not in pair.other().log.read_text()
            pair.check()


@pytest.mark.skipif("PS_HA_ROUNDS" not in os.environ, reason="PS_HA_ROUNDS is not set")
def test_many_failovers_of_one_pair_stay_below_two_seconds(tmp_path):
    """The fourth one, and those after it, find a standby that waits twice as long."""
    stalls = Stalls("unplug one pair, etcd")
    with Networks("abwe") as networks, Etcd(networks, tmp_path) as etcd:
        run_pair(unplug, 10, random.Random(1), stalls, pair_of(networks, tmp_path / "pair", etcd.url("t"), "fsync"))
    stalls.check(LONGEST_MS)

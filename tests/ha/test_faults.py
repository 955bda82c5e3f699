"""A pair of psd under faults of all kinds, while three jobs train, one for each mode of consistency. Each acknowledged push is applied
once, whatever happens. Rounds: PS_HA_ROUNDS, 2 for each fault; their stalls are printed, and bounded if it is set."""

import os
import random
import signal

import pytest

from networks import Networks
from pair_on_hosts import Pair
from stalls import KILL_P50_MS, OTHER_P50_MS, Stalls

# A fault returns the stalls that a worker has told of during it.
ROUNDS = int(os.environ.get("PS_HA_ROUNDS", 2))


def kill(pair, dice):
    pair.serving().kill()
    pair.promote()
    pair.other().start()
    return []


def stop(pair, dice):
    pair.serving().signal(signal.SIGSTOP)
    pair.promote("--the-other-is-dead")
    stalls = [pair.counters[dice.randrange(3)].ask("go")["longest_ms"]]
    pair.other().signal(signal.SIGCONT)
    pair.await_deposed()
    pair.other().start()
    return stalls


def unplug(pair, dice):
    pair.networks.unplug(pair.serving().name)
    pair.promote("--the-other-is-dead")
    stalls = [pair.counters[dice.randrange(3)].ask("go")["longest_ms"]]
    pair.networks.heal()
    pair.await_deposed()
    pair.other().start()
    return stalls


def drop(pair, dice):
    """One way between the two: the primary goes on alone."""
    names = [pair.serving().name, pair.other().name]
    dice.shuffle(names)
    pair.networks.drop(*names)
    stalls = pair.stalls()
    pair.networks.heal()
    return stalls


def kill_standby(pair, dice):
    pair.other().kill()
    stalls = pair.stalls()
    pair.other().start()
    return stalls


DISK = pytest.param("disk", marks=pytest.mark.skipif("PS_HA_ROUNDS" not in os.environ, reason="PS_HA_ROUNDS is not set"))


@pytest.mark.parametrize("durability", ["fsync", "async", DISK])
@pytest.mark.parametrize("fault", [kill, stop, unplug, drop, kill_standby])
def test_no_push_is_lost_or_applied_twice(tmp_path, fault, durability):
    """disk: of both, fsync here and --standby-ack disk there."""
    seed = int(os.environ.get("PS_SEED", "1"), 0)
    print(f"PS_SEED={seed}")
    dice = random.Random(f"{seed} {fault.__name__} {durability}")
    stalls = Stalls(f"{fault.__name__}, {durability}")
    args = ["--durability", "fsync", "--standby-ack", "disk"] if durability == "disk" else ["--durability", durability]
    with Networks("abw") as networks, Pair(networks, tmp_path, *args) as pair:
        pair.count("async", "ssp", "bsp")
        for _ in range(ROUNDS):
            pair.stalls()
            during = fault(pair, dice)
            pair.await_sync()
            stalls.add(during + pair.stalls())
        pair.check()
    stalls.check(KILL_P50_MS if fault is kill else OTHER_P50_MS)


@pytest.mark.parametrize("ack, durability", [("no", "async"), ("no", "fsync"), ("disk", "fsync")])
def test_a_standby_is_unplugged(tmp_path, ack, durability):
    """The standby's cable is out. With `no` nobody notices."""
    stalls = Stalls(f"standby unplugged, {ack}, {durability}")
    args = ["--durability", durability, "--standby-ack", ack]
    with Networks("abw") as networks, Pair(networks, tmp_path, *args, state="following" if ack == "no" else "in sync") as pair:
        pair.count("async")
        pair.counters[0].stall()
        networks.unplug(pair.other().name)
        pair.counters[0].push_on(100)
        networks.heal()
        pair.await_sync()
        stalls.add([pair.counters[0].stall()])
        assert ("is out of sync" in pair.serving().log.read_text()) == (ack != "no")
        pair.check()
    stalls.check(OTHER_P50_MS)

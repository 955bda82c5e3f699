"""Three members of etcd under a pair of psd: one dies, two are away, all are slow, and no push is lost or delayed for it. Rounds: PS_HA_ROUNDS;
the stalls are printed."""

import os
import signal
import statistics

import pytest
from etcd import SlowWay
from etcd_pair import await_takeover, kill, rejoin
from training import wait_for

ROUNDS = int(os.environ.get("PS_HA_ROUNDS", 1))
UNDELAYED_MS = 700  # below the shortest wait that etcd could cause: an attempt that is not answered, and the failover


def print_stalls(what, stalls):
    print(f"{what}: stall p50 {statistics.median(stalls):.0f} ms, max {max(stalls):.0f} ms, {len(stalls)} rounds")


def is_away(member):
    """As all who look say it; a sentence of each."""
    report = member.status()
    why = member.psctl("why").stdout
    return (report.get("coordination", {}).get("away") and "coordination service does not answer" in report["health"]
            and "no standby takes over" in why and report["health"])


def lose(etcds, how, *members):
    etcds.kill(*members) if how == "kill -9" else etcds.signal(signal.SIGSTOP, *members)


@pytest.mark.parametrize("how", ["kill -9", "SIGSTOP"] if ROUNDS > 1 else ["SIGSTOP"])
def test_etcds_leader_is_lost_and_no_push_waits(start, etcds, how):
    pair, counter = start(etcds)
    stalls = []
    for _ in range(ROUNDS):
        counter.stall()
        lose(etcds, how, etcds.leader())
        etcds.leader()  # another one
        stalls.append(counter.stall())
        etcds.heal()
    assert pair.primary.replication()["in_sync"]
    print_stalls(f"etcd's leader, {how}", stalls)
    assert min(stalls) < UNDELAYED_MS
    counter.check()


@pytest.mark.parametrize("how", ["kill -9", "SIGSTOP"] if ROUNDS > 1 else ["kill -9"])
def test_etcds_majority_is_away_and_no_push_waits(start, etcds, how):
    """Until it is back nobody takes over, and all who are asked say so."""
    pair, counter = start(etcds)
    stalls = []
    for _ in range(ROUNDS):
        counter.stall()
        lose(etcds, how, *etcds.others(0))
        sentences = [wait_for("the sentence", lambda m=member: is_away(m), 30) for member in pair.members()]
        assert all("ok, but" in sentence for sentence in sentences), sentences
        counter.push_on()
        stalls.append(counter.stall())
        etcds.heal()
        wait_for("its return", lambda: not any(is_away(member) for member in pair.members()), 30)
    print_stalls(f"etcd's majority away, {how}", stalls)
    assert min(stalls) < UNDELAYED_MS
    kill(pair.primary)
    await_takeover(pair)
    counter.check()


def test_etcds_majority_and_the_standby_are_away(start, etcds):
    """The primary may not go on alone: pushes wait, why says for what, and none is lost."""
    pair, counter = start(etcds, "--durability", "fsync")
    for _ in range(ROUNDS):
        etcds.signal(signal.SIGSTOP, *etcds.others(0))
        wait_for("the sentence", lambda: is_away(pair.standby), 30)
        kill(pair.standby)
        wait_for("a wait", lambda: "replies wait until the coordination service" in pair.primary.psctl("why").stdout, 30)
        assert not pair.primary.status()["healthy"]
        assert pair.primary.status()["coordination"]["claim"]["in_sync"]
        etcds.heal()
        counter.push_on()
        assert not pair.primary.status()["coordination"]["claim"]["in_sync"]
        pair.standby.start("--standby", pair.primary.address)
        pair.await_in_sync()
    counter.check()


def test_a_primary_dies_while_etcd_is_away_and_is_replaced_once_it_is_back(start, etcds):
    pair, counter = start(etcds)
    etcds.signal(signal.SIGSTOP, *etcds.others(1))
    wait_for("the sentence", lambda: is_away(pair.standby), 30)
    kill(pair.primary)
    wait_for("its loss", lambda: pair.standby.replication().get("state") == "spare", 30)
    etcds.heal()
    await_takeover(pair)
    counter.check()


def test_the_primary_and_etcds_leader_die_at_once(start, etcds):
    """The failover waits for etcd's election."""
    pair, counter = start(etcds)
    stalls = []
    for _ in range(ROUNDS):
        counter.stall()
        etcds.kill(etcds.leader())
        kill(pair.primary)
        await_takeover(pair)
        stalls.append(counter.stall())
        etcds.heal()
        rejoin(pair)
    print_stalls("primary and etcd's leader, kill -9", stalls)
    counter.check()


def test_etcd_is_slow(start, etcds):
    """Each answer takes longer than the first attempt is given: nothing waits, and a failover still comes."""
    ways = [SlowWay(port) for port in etcds.ports]
    pair, counter = start(etcds, url=etcds.url([way.port for way in ways]))
    stalls, failovers = [], []
    for _ in range(ROUNDS):
        counter.stall()
        for way in ways:
            way.delay_s = 0.3
        counter.push_on(100)
        stalls.append(counter.stall())
        kill(pair.primary)
        await_takeover(pair)
        failovers.append(counter.stall())
        for way in ways:
            way.delay_s = 0
        rejoin(pair)
    for way in ways:
        way.close()
    print_stalls("etcd slow by 600 ms, no failure", stalls)
    print_stalls("etcd slow by 600 ms, kill -9 of the primary", failovers)
    assert min(stalls) < UNDELAYED_MS
    counter.check()

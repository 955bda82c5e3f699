"""What a failure loses, cell by cell of the table in deploy/docs/operations.md (README.md of this folder says which test holds which). Workers
count: what may be lost is what was acknowledged within a time that the mode says, and of all before it nothing is."""

import os
import resource
import shutil
import subprocess
import time

import pytest
from counting import ROOT, Counter
from pair import Member
from training import BIN, free_ports, wait_for

DEPOSED = 3  # exit status of a psd that hears of a greater term
OFTEN = ("--log-interval", "50ms")  # with `disk` and async each reply waits for the standby's next sync
INTERVAL_S = 0.3
AT_INTERVALS = ("--log-interval", f"{INTERVAL_S * 1000:.0f}ms")

# How long before a failure an acknowledged push is safe. None: at once, as nothing of what was acknowledged is lost.
WRITTEN_S = 0.1  # async: it is in the log's file
SYNCED_S = INTERVAL_S  # async, with AT_INTERVALS: it is on the disk
SENT_S = 0.0  # the standby has it, and under fsync has it on its disk: both as fast as they can
LATE_S = 1.0  # of each of these, on a machine that runs other tests, too


@pytest.fixture
def count(tmp_path):
    """count(servers) starts a worker that pushes until check()."""
    counters = []

    def start(servers, mode="async"):
        counters.append(Counter(tmp_path, servers, mode))
        counters[-1].ask("go")
        return counters[-1]

    yield start
    for counter in counters:
        counter.close()


def push_on(counter, n=20):
    """So many acknowledged pushes later."""
    until = counter.ask("go")["pushed"] + n
    wait_for("pushes", lambda: counter.ask("go")["pushed"] >= until, 60)


def push_past(counter, safe_s, n=20):
    """So many pushes later that none of which may be lost, with others behind them that may be."""
    until = counter.ask("go")["pushed"] + n
    wait_for("pushes that are safe", lambda: counter.pushed_by(time.monotonic() - (safe_s + LATE_S if safe_s is not None else 0)) >= until, 60)


def kill(*members):
    """When they had ended, as time.monotonic() has it."""
    for member in members:
        member.proc.kill()
    for member in members:
        member.proc.wait()
    return time.monotonic()


@pytest.fixture
def synced(tmp_path, monkeypatch):
    """synced(): {(device, inode): what of the file is on its disk}, of all processes that start from now on."""
    if BIN.parent.name != "release":
        pytest.skip("a library for LD_PRELOAD would come before the sanitizer's")
    subprocess.run(["make", "-s", "--no-print-directory", f"BUILD={BIN.parents[1]}", "power-cut"], cwd=ROOT, check=True, timeout=300)
    notes = tmp_path / "synced"
    monkeypatch.setenv("LD_PRELOAD", str(BIN.parent / "tests/power_cut.so"))
    monkeypatch.setenv("PS_SYNCED", str(notes))

    def read():
        lines = [line.split() for line in notes.read_text().splitlines()]
        return {tuple(map(int, name.split(":"))): int(end) for name, end in lines}

    return read


def lose_power(synced, *members):
    """At once, and their disks have what was synced. When that was."""
    failed_s = kill(*members)
    ends, n_lost = synced(), 0
    for path in (path for member in members for path in member.data.rglob("*") if path.is_file()):
        found = path.stat()
        end = ends.get((found.st_dev, found.st_ino), 0)
        if found.st_size > end:
            n_lost += found.st_size - end
            os.truncate(path, end)
    print(f"{n_lost} bytes are lost")
    return failed_s


def check_all_once(counter):
    got = counter.ask("stop")
    assert got["lowest"] == got["highest"] == got["pushed"] and got["lost"] == 0, got
    return got["pushed"]


def check_lost(counter, safe_s, *failed_s):
    """Of each failure at most what was acknowledged within safe_s before it, and the worker has counted that, for each of the shards."""
    if safe_s is None:
        check_all_once(counter)
        return
    assert counter.pushed_by(failed_s[0] - safe_s - LATE_S) >= 20, "too few pushes to hold anything"
    # One more each: its acknowledgement had come, and the worker had not noted it.
    most = sum(counter.pushed_by(when_s) - counter.pushed_by(when_s - safe_s - LATE_S) + 1 for when_s in failed_s)
    got = counter.ask("stop")
    print(f"{got['pushed']} pushed, {got['lowest']:.0f} to {got['highest']:.0f} applied; at most {most} may be lost")
    assert got["pushed"] - min(got["lost"], most) <= got["lowest"] <= got["highest"] <= got["pushed"], (most, got)


def come_back(pair):
    """Both, with their command lines, as often as one of them hears that the other one is the primary."""
    starts = {pair.primary: (), pair.standby: ("--standby", pair.primary.address)}

    def is_in_sync():
        for member, flags in starts.items():
            if member.proc.poll() is not None:
                assert member.proc.returncode in (-9, DEPOSED), member.log.read_text()
                member.start(*flags)
        return any(m.replication().get("role") == "standby" and m.replication().get("in_sync") for m in starts)

    wait_for("both members", is_in_sync, 60)


def serve_again(pair):
    """Both, where the standby is never in sync."""
    pair.primary.start()
    pair.standby.start("--standby", pair.primary.address)
    wait_for("a standby that follows", lambda: pair.standby.replication().get("state") == "following", 60)


def come_back_as(ack, pair):
    """Both, with their command lines."""
    serve_again(pair) if ack == "no" else come_back(pair)


def state_with(ack):
    """That a standby is waited for."""
    return "following" if ack == "no" else "in sync"


@pytest.mark.parametrize("ack, durability, safe_s", [("no", "async", WRITTEN_S), ("no", "fsync", None), ("got", "async", WRITTEN_S),
                                                     ("got", "fsync", None), ("disk", "async", None), ("disk", "fsync", None)])
def test_both_are_killed_at_once_and_come_back(pair, count, ack, durability, safe_s):
    """With `no` they lose what one alone would."""
    p = pair("--standby-ack", ack, "--durability", durability, *OFTEN, state=state_with(ack))
    counter, failed_s = count(p.servers), []
    for _ in range(2):
        push_past(counter, safe_s)
        failed_s.append(kill(p.primary, p.standby))
        come_back_as(ack, p)
    push_on(counter)
    check_lost(counter, safe_s, *failed_s)


@pytest.mark.parametrize("ack, durability, safe_s", [("no", "async", WRITTEN_S), ("no", "fsync", None), ("got", "async", None),
                                                     ("got", "fsync", None), ("disk", "fsync", None)])
def test_the_primary_is_killed_and_started_again(pair, count, ack, durability, safe_s):
    """What its log lacks its standby has, and that one takes over; else it goes on as the primary."""
    p = pair("--standby-ack", ack, "--durability", durability, state=state_with(ack))
    counter, failed_s = count(p.servers), []
    for _ in range(2):
        push_past(counter, safe_s)
        failed_s.append(kill(p.primary))
        if ack == "no":
            p.primary.start()
            wait_for("a standby that follows", lambda: p.standby.replication().get("state") == "following", 60)
            continue
        come_back(p)
        if p.standby.replication().get("role") == "primary":
            p.primary, p.standby = p.standby, p.primary
    push_on(counter)
    check_lost(counter, safe_s, *failed_s)


@pytest.mark.parametrize("ack, durability, safe_s", [("no", "async", SYNCED_S), ("no", "fsync", None), ("got", "async", SYNCED_S),
                                                     ("got", "fsync", None), ("disk", "fsync", None)])
def test_both_lose_power_and_come_back(pair, count, synced, ack, durability, safe_s):
    p = pair("--standby-ack", ack, "--durability", durability, *AT_INTERVALS, state=state_with(ack))
    counter = count(p.servers)
    push_past(counter, safe_s, 300)
    failed_s = lose_power(synced, p.primary, p.standby)
    come_back_as(ack, p)
    push_on(counter)
    check_lost(counter, safe_s, failed_s)


@pytest.mark.parametrize("ack, durability, safe_s", [("no", "async", SYNCED_S), ("no", "fsync", SENT_S), ("got", "async", SYNCED_S),
                                                     ("got", "fsync", SENT_S), ("disk", "fsync", None)])
def test_both_lose_power_and_the_primarys_disk_is_lost(pair, count, synced, ack, durability, safe_s):
    """The standby does not know that it has all: a person says so. With `disk` it has."""
    p = pair("--standby-ack", ack, "--durability", durability, *AT_INTERVALS, state=state_with(ack))
    counter = count(p.servers)
    push_past(counter, safe_s, 300)
    failed_s = lose_power(synced, p.primary, p.standby)
    shutil.rmtree(p.primary.data)
    p.standby.start("--standby", p.primary.address)
    wait_for("a refusal", lambda: "--accept-loss" in p.standby.psctl("promote", "--the-other-is-dead").stderr, 20)
    promoted = p.standby.psctl("promote", "--the-other-is-dead", "--accept-loss")
    assert promoted.returncode == 0, promoted.stderr
    push_on(counter)
    check_lost(counter, safe_s, failed_s)


@pytest.mark.parametrize("ack, durability, safe_s", [("no", "async", SYNCED_S), ("no", "fsync", None), ("got", "async", SYNCED_S),
                                                     ("got", "fsync", None), ("disk", "fsync", None)])
def test_both_lose_power_and_the_standbys_disk_is_lost(pair, count, synced, ack, durability, safe_s):
    """The primary hears that its standby has lost all, and goes on with what its own disk has."""
    p = pair("--standby-ack", ack, "--durability", durability, *AT_INTERVALS, state=state_with(ack))
    counter = count(p.servers)
    push_past(counter, safe_s, 300)
    failed_s = lose_power(synced, p.primary, p.standby)
    shutil.rmtree(p.standby.data)
    come_back_as(ack, p)
    assert p.primary.replication()["role"] == "primary"
    push_on(counter)
    check_lost(counter, safe_s, failed_s)


@pytest.mark.parametrize("durability, is_killed, safe_s", [("async", True, WRITTEN_S), ("fsync", True, None), ("async", False, SYNCED_S),
                                                           ("fsync", False, None)])
def test_without_a_standby_psd_is_killed_or_loses_power(tmp_path, count, synced, durability, is_killed, safe_s):
    member = Member(tmp_path / "a", free_ports(1)[0], "--shards", "2", "--durability", durability, *AT_INTERVALS)
    member.start()
    member.await_ready()
    try:
        counter = count(member.address)
        push_past(counter, safe_s, 300)
        failed_s = kill(member) if is_killed else lose_power(synced, member)
        member.start()
        push_on(counter)
        check_lost(counter, safe_s, failed_s)
    finally:
        kill(member)


@pytest.mark.parametrize("ack, durability", [("disk", "fsync"), ("disk", "async"), ("got", "async"), ("got", "fsync")])
def test_a_standby_is_killed_and_then_its_primary_is_gone_for_good(pair, count, ack, durability):
    p = pair("--standby-ack", ack, "--durability", durability, *OFTEN)
    counter = count(p.servers, "bsp")
    kill(p.standby)
    push_on(counter)  # the primary goes on alone
    p.standby.start("--standby", p.primary.address)
    p.await_in_sync()
    push_on(counter)
    before = check_all_once(counter)
    p.fail_over()
    shutil.rmtree(p.standby.data)
    p.standby.start("--standby", p.primary.address)  # an empty one in its place
    p.await_in_sync()
    p.fail_over()
    got = count(p.servers, "bsp").ask("stop")
    assert got["lowest"] == got["highest"] == before + got["pushed"], (before, got)


@pytest.mark.parametrize("durability", ["async", "fsync"])
@pytest.mark.parametrize("is_gone", [False, True], ids=["killed", "gone for good"])
def test_with_standby_ack_no_a_promotion_may_lose_what_was_not_sent_and_says_so(pair, count, durability, is_gone):
    p = pair("--standby-ack", "no", "--durability", durability, state="following")
    counter = count(p.servers)
    push_past(counter, SENT_S)
    assert not p.primary.replication()["in_sync"]
    failed_s = kill(p.primary)
    if is_gone:
        shutil.rmtree(p.primary.data)
    refused = p.standby.psctl("promote", "--the-other-is-dead")
    assert refused.returncode == 1 and "--accept-loss" in refused.stderr, refused
    wait_for("the promotion", lambda: p.standby.psctl("promote", "--accept-loss").returncode == 0, 20)
    push_on(counter)
    check_lost(counter, SENT_S, failed_s)


@pytest.mark.parametrize("durability", ["async", "fsync"])
def test_with_standby_ack_no_the_standby_is_killed_and_nobody_notices(pair, count, durability):
    p = pair("--standby-ack", "no", "--durability", durability, state="following")
    counter = count(p.servers)
    push_on(counter)
    kill(p.standby)
    push_on(counter)
    p.standby.start("--standby", p.primary.address)
    wait_for("a standby that follows", lambda: p.standby.replication().get("state") == "following", 60)
    push_on(counter)
    assert not p.primary.says("is out of sync")
    check_all_once(counter)


@pytest.mark.parametrize("ack", ["no", "got"])
def test_a_standby_that_was_not_in_sync_is_promoted_with_accept_loss_alone(pair, count, ack):
    """The primary comes back as its standby, without what only it had: all that it acknowledged without that one."""
    p = pair("--standby-ack", ack, "--durability", "fsync", state=state_with(ack))
    counter = count(p.servers)
    push_past(counter, SENT_S)
    away_s = kill(p.standby)
    push_on(counter)
    failed_s = kill(p.primary)
    p.standby.start("--standby", p.primary.address)
    wait_for("a refusal", lambda: "--accept-loss" in p.standby.psctl("promote", "--the-other-is-dead").stderr, 20)
    promoted = p.standby.psctl("promote", "--the-other-is-dead", "--accept-loss")
    assert promoted.returncode == 0, promoted.stderr
    push_on(counter)
    p.primary.start()
    wait_for("a standby", lambda: p.primary.replication().get("state") == state_with(ack), 60)
    push_on(counter)
    check_lost(counter, failed_s - away_s + SENT_S, failed_s)


def test_a_standby_whose_disk_was_full_does_not_call_itself_in_sync(pair, count):
    """Its primary went on alone, and died before it could say so."""
    p = pair("--durability", "fsync", "--lease", "1s")
    counter = count(p.servers)
    limits = resource.prlimit(p.standby.proc.pid, resource.RLIMIT_FSIZE, (16, resource.RLIM_INFINITY))
    wait_for("a primary that goes on alone", lambda: not counter.ask("go") or p.primary.says("is out of sync"), 60)
    push_on(counter)
    wait_for("the standby's word", lambda: not p.standby.replication()["in_sync"], 20)
    why = p.standby.psctl("why").stdout
    assert "takes no records" in why and "worker" not in why, why  # it hears no worker, and waits for none
    kill(p.primary)
    resource.prlimit(p.standby.proc.pid, resource.RLIMIT_FSIZE, limits)
    wait_for("a log that is written", lambda: p.standby.says("is written again"), 20)
    assert "--accept-loss" in p.standby.psctl("promote", "--the-other-is-dead").stderr
    p.primary.start()
    p.await_in_sync()
    push_on(counter)
    check_all_once(counter)


def test_a_primary_whose_standby_is_lost_serves_with_accept_loss(pair, count):
    p = pair("--durability", "async")
    counter = count(p.servers)
    push_past(counter, WRITTEN_S)
    failed_s = kill(p.primary, p.standby)
    p.primary.start()
    wait_for("the wait", lambda: p.primary.replication().get("state") == "awaits its standby", 20)
    assert p.standby.address in p.primary.psctl("why").stdout
    assert p.primary.psctl("promote").returncode == 1
    assert p.primary.psctl("promote", "--accept-loss").returncode == 0
    push_on(counter)
    check_lost(counter, WRITTEN_S, failed_s)


def test_a_standby_comes_back_under_large_pushes(pair):
    """It reads what it lacks from the log's segments, one answer after the other."""
    p = pair()
    kill(p.standby)
    bench = subprocess.Popen([BIN / "psbench", "push", "--server", p.primary.address, "--rows", "8000", "--no-fill", "--dim", "256",
                              "--keys-per-request", "1000", "--connections", "4", "--depth", "4", "--seconds", "5", "--warmup", "0"],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    time.sleep(1)  # some hundred megabytes, whatever the machine
    p.standby.start("--standby", p.primary.address)
    said = bench.communicate()[0]
    assert bench.returncode == 0, said + p.primary.log.read_text()
    p.await_in_sync()
    assert not p.standby.says("makes no sense"), p.standby.log.read_text()

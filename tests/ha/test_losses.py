"""What a failure loses: the cells of the table in deploy/docs/operations.md that test_faults.py does not have. Workers count."""

import os
import resource
import shutil
import subprocess
import time

import pytest
from counting import ROOT, Counter
from training import BIN, wait_for

DEPOSED = 3  # exit status of a psd that hears of a greater term
OFTEN = ("--log-interval", "50ms")  # with `disk` and async each reply waits for the standby's next sync


@pytest.fixture
def count(tmp_path):
    """count(pair) starts a worker that pushes until check()."""
    counters = []

    def start(pair, mode="async"):
        counters.append(Counter(tmp_path, pair.servers, mode))
        counters[-1].ask("go")
        return counters[-1]

    yield start
    for counter in counters:
        counter.close()


def push_on(counter, n=20):
    """So many acknowledged pushes later."""
    until = counter.ask("go")["pushed"] + n
    wait_for("pushes", lambda: counter.ask("go")["pushed"] >= until, 60)


def kill(*members):
    for member in members:
        member.proc.kill()
    for member in members:
        member.proc.wait()


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
    """At once, and their disks have what was synced."""
    kill(*members)
    ends, n_lost = synced(), 0
    for path in (path for member in members for path in member.data.rglob("*") if path.is_file()):
        found = path.stat()
        end = ends.get((found.st_dev, found.st_ino), 0)
        if found.st_size > end:
            n_lost += found.st_size - end
            os.truncate(path, end)
    return n_lost


def check_all_once(counter):
    got = counter.ask("stop")
    assert got["lowest"] == got["highest"] == got["pushed"] and got["lost"] == 0, got
    return got["pushed"]


def check_at_most_once(counter):
    """What is lost, the worker has counted, for each of the shards."""
    got = counter.ask("stop")
    assert got["pushed"] - got["lost"] <= got["lowest"] <= got["highest"] <= got["pushed"], got


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


@pytest.mark.parametrize("ack, durability", [("got", "async"), ("got", "fsync"), ("disk", "fsync"), ("disk", "async")])
def test_both_are_killed_at_once_and_come_back(pair, count, ack, durability):
    p = pair("--standby-ack", ack, "--durability", durability, *OFTEN)
    counter = count(p)
    for _ in range(2):
        push_on(counter)
        kill(p.primary, p.standby)
        come_back(p)
    push_on(counter)
    check_all_once(counter) if durability == "fsync" else check_at_most_once(counter)


def serve_again(pair):
    """Both, where the standby is never in sync."""
    pair.primary.start()
    pair.standby.start("--standby", pair.primary.address)
    wait_for("a standby that follows", lambda: pair.standby.replication().get("state") == "following", 60)


@pytest.mark.parametrize("durability", ["async", "fsync"])
def test_with_standby_ack_no_both_are_killed_and_lose_what_one_alone_would(pair, count, durability):
    p = pair("--standby-ack", "no", "--durability", durability, state="following")
    counter = count(p)
    push_on(counter)
    kill(p.primary, p.standby)
    serve_again(p)
    push_on(counter)
    check_all_once(counter) if durability == "fsync" else check_at_most_once(counter)


@pytest.mark.parametrize("ack, durability", [("got", "async"), ("disk", "fsync")])
def test_the_primary_is_killed_and_started_again(pair, count, ack, durability):
    """What its log lacks its standby has, and that one takes over; else it goes on as the primary."""
    p = pair("--standby-ack", ack, "--durability", durability)
    counter = count(p)
    for _ in range(2):
        push_on(counter)
        kill(p.primary)
        come_back(p)
        if p.standby.replication().get("role") == "primary":
            p.primary, p.standby = p.standby, p.primary
    push_on(counter)
    check_all_once(counter)


@pytest.mark.parametrize("ack, durability", [("no", "fsync"), ("got", "async"), ("got", "fsync"), ("disk", "fsync")])
def test_both_lose_power_and_come_back(pair, count, synced, ack, durability):
    p = pair("--standby-ack", ack, "--durability", durability, "--log-interval", "300ms",
             state="following" if ack == "no" else "in sync")
    counter = count(p)
    push_on(counter, 300)
    print(f"{lose_power(synced, p.primary, p.standby)} bytes are lost")
    serve_again(p) if ack == "no" else come_back(p)
    push_on(counter)
    check_all_once(counter) if durability == "fsync" else check_at_most_once(counter)


@pytest.mark.parametrize("ack, durability", [("got", "async"), ("got", "fsync"), ("disk", "fsync")])
def test_both_lose_power_and_the_primarys_disk_is_lost(pair, count, synced, ack, durability):
    """The standby does not know that it has all: a person says so. With `disk` it has."""
    p = pair("--standby-ack", ack, "--durability", durability, "--log-interval", "300ms")
    counter = count(p)
    push_on(counter, 300)
    print(f"{lose_power(synced, p.primary, p.standby)} bytes are lost")
    shutil.rmtree(p.primary.data)
    p.standby.start("--standby", p.primary.address)
    wait_for("a refusal", lambda: "--accept-loss" in p.standby.psctl("promote", "--the-other-is-dead").stderr, 20)
    promoted = p.standby.psctl("promote", "--the-other-is-dead", "--accept-loss")
    assert promoted.returncode == 0, promoted.stderr
    push_on(counter)
    check_all_once(counter) if ack == "disk" else check_at_most_once(counter)


@pytest.mark.parametrize("ack, durability", [("disk", "fsync"), ("disk", "async"), ("got", "async"), ("got", "fsync")])
def test_a_standby_is_killed_and_then_its_primary_is_gone_for_good(pair, count, ack, durability):
    p = pair("--standby-ack", ack, "--durability", durability, *OFTEN)
    counter = count(p, "bsp")
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
    got = count(p, "bsp").ask("stop")
    assert got["lowest"] == got["highest"] == before + got["pushed"], (before, got)


def test_with_standby_ack_no_a_promotion_may_lose_and_says_so(pair, count):
    p = pair("--standby-ack", "no", state="following")
    counter = count(p)
    push_on(counter)
    assert not p.primary.replication()["in_sync"]
    kill(p.primary)
    refused = p.standby.psctl("promote", "--the-other-is-dead")
    assert refused.returncode == 1 and "--accept-loss" in refused.stderr, refused
    wait_for("the promotion", lambda: p.standby.psctl("promote", "--accept-loss").returncode == 0, 20)
    push_on(counter)
    check_at_most_once(counter)


@pytest.mark.parametrize("ack", ["no", "got"])
def test_a_standby_that_was_not_in_sync_is_promoted_with_accept_loss_alone(pair, count, ack):
    """The primary comes back as its standby, without what only it had."""
    p = pair("--standby-ack", ack, "--durability", "fsync", state="in sync" if ack == "got" else "following")
    counter = count(p)
    kill(p.standby)
    push_on(counter)
    kill(p.primary)
    p.standby.start("--standby", p.primary.address)
    wait_for("a refusal", lambda: "--accept-loss" in p.standby.psctl("promote", "--the-other-is-dead").stderr, 20)
    promoted = p.standby.psctl("promote", "--the-other-is-dead", "--accept-loss")
    assert promoted.returncode == 0, promoted.stderr
    push_on(counter)
    p.primary.start()
    wait_for("a standby", lambda: p.primary.replication().get("state") == ("in sync" if ack == "got" else "following"), 60)
    push_on(counter)
    check_at_most_once(counter)


def test_a_standby_whose_disk_was_full_does_not_call_itself_in_sync(pair, count):
    """Its primary went on alone, and died before it could say so."""
    p = pair("--durability", "fsync", "--lease", "1s")
    counter = count(p)
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
    counter = count(p)
    push_on(counter)
    kill(p.primary, p.standby)
    p.primary.start()
    wait_for("the wait", lambda: p.primary.replication().get("state") == "awaits its standby", 20)
    assert p.standby.address in p.primary.psctl("why").stdout
    assert p.primary.psctl("promote").returncode == 1
    assert p.primary.psctl("promote", "--accept-loss").returncode == 0
    push_on(counter)
    check_at_most_once(counter)


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

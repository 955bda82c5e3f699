"""A standby that should be there and is not: the primary serves, says so, and keeps for it no more of its log than it may."""

import contextlib
import re
import shutil
import signal
import subprocess
import time
import urllib.request

import pytest
from counting import Counter
from pair import Member
from training import BIN, free_ports, wait_for


class Health:
    """What a load balancer and a monitor ask the primary."""

    def __init__(self, member):
        found = wait_for("its address", lambda: re.findall(r"psd ready: listening on \S+, http ([^,\s]+)", member.log.read_text()))
        self.url = f"http://{found[-1]}"

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as page:  # raises where it is not healthy
            return page.status, page.read().decode()

    def is_missing(self):
        return re.search(r"^psd_standby_missing (\d)$", self.get("/metrics")[1], re.MULTILINE).group(1)


def kill(member):
    member.proc.kill()
    member.proc.wait()


def test_health_says_that_the_standby_is_missing_until_it_is_back(pair):
    p = pair("--http", "127.0.0.1:0")
    health = Health(p.primary)
    missing = re.compile(f"ok, but standby {p.standby.address} is gone since [0-9TZ:-]+: a failure of this node may lose pushes\n?")
    wait_for("plain ok", lambda: health.get("/healthz") == (200, "ok\n"), 20)
    assert health.is_missing() == "0"
    kill(p.standby)
    wait_for("its absence", lambda: not p.primary.replication()["in_sync"], 30)
    wait_for("the sentence", lambda: missing.fullmatch(health.get("/healthz")[1]), 20)
    assert health.is_missing() == "1" and health.get("/readyz")[0] == 200
    said = p.primary.status()
    assert said["healthy"] and missing.fullmatch(said["health"]), said
    p.standby.start("--standby", p.primary.address)
    p.await_in_sync()
    wait_for("plain ok", lambda: health.get("/healthz") == (200, "ok\n"), 20)
    assert health.is_missing() == "0" and p.primary.status()["health"] == "ok"


def test_a_standby_that_hangs_leaves_its_place_to_another(pair, tmp_path):
    p = pair()
    other = Member(tmp_path / "other", free_ports(1)[0], "--shards", "2")
    p.standby.proc.send_signal(signal.SIGSTOP)  # its connections stand, as those of a machine that lost power
    wait_for("a primary that goes on alone", lambda: p.primary.says("is out of sync"), 30)
    try:
        other.start("--standby", p.primary.address)
        wait_for("the other one in sync", lambda: other.replication().get("in_sync"), 40)
        p.standby.proc.send_signal(signal.SIGCONT)
        wait_for("the refusal", lambda: p.standby.replication().get("refused") == f"{other.address} is the standby, and there is one at a time", 30)
        assert other.replication()["in_sync"] and p.primary.replication()["peer"] == other.address
    finally:
        p.standby.proc.send_signal(signal.SIGCONT)
        kill(other)


@pytest.fixture(name="counter")
def counts(tmp_path):
    """counter(pair) starts a worker that pushes until check()."""
    counters = []

    def start(pair):
        counters.append(Counter(tmp_path, pair.servers, "async"))
        return counters[-1]

    yield start
    for c in counters:
        c.close()


def push_for_a_second(member):
    said = subprocess.run([BIN / "psbench", "push", "--server", member.address, "--rows", "8000", "--no-fill", "--dim", "32",
                           "--keys-per-request", "1000", "--seconds", "1", "--warmup", "0"], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr


def log_bytes(member):
    """On its disk, now: its status is of some time ago."""
    n_bytes = 0
    for path in (member.data / "log").rglob("*.psl"):
        with contextlib.suppress(FileNotFoundError):  # a checkpoint removes it
            n_bytes += path.stat().st_size
    return n_bytes


def checkpointed_log_bytes(member):
    """A segment that has a record of those that came during the checkpoint stays until the next one."""
    said = member.psctl("checkpoint")
    assert said.returncode == 0, said.stderr
    return log_bytes(member)


@pytest.mark.parametrize("bytes_max", ["1M", "8G"])
def test_a_standby_that_is_away_for_longer_than_its_log_copies(pair, counter, bytes_max):
    """With room for all, it goes on where it was."""
    p = pair("--standby-log-max", bytes_max)
    worker = counter(p)
    worker.push_on()
    kill(p.standby)
    wait_for("its absence", lambda: not p.primary.replication()["in_sync"], 30)
    push_for_a_second(p.primary)
    worker.push_on()
    dropped = "the log keeps no more for the standby, which is more than --standby-log-max behind: it has to copy again"
    before = log_bytes(p.primary)
    if bytes_max == "1M":
        wait_for("the sentence of each shard", lambda: p.primary.log.read_text().count(dropped) == 2, 20)
        wait_for("its status", lambda: p.primary.replication()["note"] == dropped and dropped in p.primary.psctl("why").stdout, 20)
        wait_for("a log that is bounded", lambda: checkpointed_log_bytes(p.primary) < before // 4, 20)
    else:
        assert checkpointed_log_bytes(p.primary) >= before and not p.primary.says(dropped)
    p.standby.start("--standby", p.primary.address)
    p.await_in_sync()
    wait_for("a status without a note", lambda: p.primary.replication()["note"] == "", 10)
    assert dropped not in p.primary.psctl("why").stdout
    copied = f"standby {p.standby.address} copies the newest restore point"
    assert p.primary.log.read_text().count(copied) == (2 if bytes_max == "1M" else 1)  # the first one when it was new
    worker.push_on()
    p.fail_over()
    worker.push_on()
    worker.check()


def test_copies_of_use_are_not_counted(pair):
    """After three of no use the next one would have to wait. The third one was in sync for a while: three more begin at once."""
    p = pair()
    for n in range(2, 7):
        if n == 4:
            time.sleep(10.5)
        kill(p.standby)
        shutil.rmtree(p.standby.data)
        p.standby.start("--standby", p.primary.address)
        p.await_in_sync()
    copied = f"standby {p.standby.address} copies the newest restore point"
    assert p.primary.log.read_text().count(copied) == 6 and not p.primary.says("is refused")


@pytest.mark.parametrize("is_named", [False, True], ids=["alone", "etcd"])
def test_a_primary_that_comes_back_with_an_empty_disk_is_not_copied(pair, counter, etcd, is_named):
    """Its standby has the only copy. With etcd it has a history of its own from its start on, as where etcd has lost the claim."""
    p = pair(*(["--coord", etcd.url()] if is_named else []))
    worker = counter(p)
    worker.push_on()
    before = worker.ask("stop")
    if is_named:  # a stop, and not a kill: what it has received goes to its disk
        p.standby.proc.terminate()
        assert p.standby.proc.wait(60) == 0
    kill(p.primary)
    shutil.rmtree(p.primary.data)
    other = ["--coord", etcd.url()] if is_named else []
    said = f"primary {p.primary.address} has no data of this pair, and standby {p.standby.address} has it"
    for start in range(2):  # the second one finds a TERMS of the first one
        p.primary.start(*other)
        if is_named and start == 0:
            p.standby.start("--standby", p.primary.address, *other)
        wait_for("the refusal", lambda n=start: p.primary.log.read_text().count(said) > n and p.standby.says(said), 30)
        assert p.standby.replication()["state"] == "not following"
        wait_for("the standby's doctor", lambda: said in p.standby.psctl("doctor", "--every", "100ms").stdout, 20)
        assert "do not promote" not in p.standby.psctl("doctor", "--every", "100ms").stdout
        wait_for("the primary's health", lambda: said in p.primary.status().get("health", ""), 20)
        status = p.primary.status()
        assert status["healthy"] and status["health"].startswith(f"ok, but {said}"), status
        assert status["replication"]["peer"] == p.standby.address and status["replication"]["missing"], status
        assert said in p.primary.psctl("why").stdout
        assert f"problem: node 0: {said}" in p.primary.psctl("doctor", "--every", "100ms").stdout
        assert p.standby.address in p.primary.psctl("cluster").stdout
        if start == 0:
            kill(p.primary)
    if is_named:
        kill(p.primary)
        wait_for("the promotion", lambda: p.standby.psctl("promote", "--accept-loss").returncode == 0, 20)
        p.primary, p.standby = p.standby, p.primary
    else:
        p.fail_over()
    end = counter(p).ask("stop")
    assert end["lowest"] == end["highest"] == before["pushed"] + end["pushed"], (before, end)


def test_the_second_primary_that_comes_back_with_an_empty_disk_is_not_taken_for_another_cluster(pair, counter):
    """It calls its cluster after itself then, and the pair after the first primary: what its standby says leads to a promotion all the same."""
    p = pair()
    worker = counter(p)
    worker.push_on()
    before = worker.ask("stop")
    p.fail_over()
    p.standby.start()
    p.await_in_sync()
    kill(p.primary)
    shutil.rmtree(p.primary.data)
    p.primary.start()
    said = f"if the primary's disk is lost, stop it and psctl promote --server {p.standby.address};"
    wait_for("the refusal", lambda: p.standby.says(said), 30)
    wait_for("the standby's doctor", lambda: said in p.standby.psctl("doctor", "--every", "100ms").stdout, 20)
    assert "do not promote" not in p.standby.psctl("doctor", "--every", "100ms").stdout
    assert said in p.standby.psctl("why").stdout
    p.fail_over()
    end = counter(p).ask("stop")
    assert end["lowest"] == end["highest"] == before["pushed"] + end["pushed"], (before, end)

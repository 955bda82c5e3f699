"""A pair of psd: kill -9 of the primary at any moment, and what it acknowledged is at its promoted standby, once.

PS_ROUNDS=200 makes as many rounds of the first test; without it there are a few. The seed is printed; PS_SEED
repeats it."""

import os
import pathlib
import random
import signal
import socket
import time

import pytest

import wire
from conftest import Daemon, SANITIZER
from test_durability import DIM, N_SHARDS, N_WORKERS, Pusher, push_until
from training import free_ports

ROUNDS = int(os.environ.get("PS_ROUNDS", "4"))
SEED = int(os.environ.get("PS_SEED", random.SystemRandom().randrange(1 << 32)))


class Member(Daemon):
    """One psd of a pair, with the port that it was given."""

    def __init__(self, cwd, port, *args):
        self.given = port
        super().__init__(["--listen", f"127.0.0.1:{port}", "--http", "127.0.0.1:0", *args], cwd, awaited=False)
        self.port = port

    def state(self):
        """"": it does not answer just now, as it begins again."""
        try:
            return self.admin("status").get("replication", {}).get("state", "")
        except (OSError, wire.Closed):
            return ""

    def says(self, words, n=1):
        end = time.monotonic() + 60  # with a sanitizer, beside other tests
        while sum(words in line for line in self.lines) < n and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        assert sum(words in line for line in self.lines) >= n, self.log()

    def data_dir(self):
        return pathlib.Path(self.process.args[self.process.args.index("--data-dir") + 1])

    def in_sync(self):
        end = time.monotonic() + 60
        while self.state() != "in sync":
            assert self.process.poll() is None and time.monotonic() < end, f"{self.state()}: {self.log()}"
            time.sleep(0.02)

    def order(self, words=""):
        with self.connect(wire.LISTENER, "operator") as client:
            return client.admin("promote", words)

    def promote(self, words=""):
        answer = self.order(words)
        assert answer.status == 0, answer.text
        self.await_ready()


@pytest.fixture
def pair(tmp_path):
    """member(name, *args): a psd with data directory and port of that name."""
    members, ports = [], {}

    def start(name, *args):
        port = ports.setdefault(name, free_ports(1)[0])
        members.append(Member(tmp_path, port, "--data-dir", str(tmp_path / name), "--shards", str(N_SHARDS), "--lease",
                              "60s", *args))
        return members[-1]

    start.port = lambda name: ports.setdefault(name, free_ports(1)[0])
    yield start
    for member in members:
        was_killed = member.process.poll() == -signal.SIGKILL
        status = member.process.poll() if member.process.poll() == 3 else member.stop()
        # A deposed one ends by itself, and catches no signal at its very end.
        is_deposed = status == -signal.SIGTERM and "not the primary any more" in member.log()
        assert was_killed or is_deposed or status in (0, 3), member.log()
        assert not SANITIZER.search(member.log()), member.log()


def standby_of(start, name, primary, *args, host="127.0.0.1"):
    """host: spelt otherwise, --standby is another option than the one that a promotion was done with."""
    member = start(name, "--standby", f"{host}:{start.port(primary)}", *args)
    member.says("listening on")
    return member


def check(pushers):
    for p in pushers:
        p.wait_acknowledged()
    for p in pushers:
        p.check([q for q in pushers if q is not p and q.shard == p.shard])


def fail_over(primary, standby, pushers):
    """The primary dies, the standby is promoted, and has all that was acknowledged."""
    primary.kill()
    for p in pushers:
        p.client.close()
    standby.promote()
    for p in pushers:
        p.connect(standby)
    check(pushers)


@pytest.mark.timeout(60 + 30 * ROUNDS)
@pytest.mark.parametrize("durability", ["fsync", "async"])
def test_what_was_acknowledged_survives_kill_9_of_the_primary_and_is_applied_once(pair, durability):
    print(f"PS_SEED={SEED}")
    rng = random.Random(SEED)
    pushers = [Pusher(rank, shard, rng) for rank in range(N_WORKERS) for shard in range(N_SHARDS)]
    args = ("--durability", durability, "--checkpoint-deltas", "3", "--keep", "2")
    names = ["a", "b"]
    primary = pair("a", *args)
    primary.await_ready()
    for n in range(ROUNDS):
        every = rng.choice(("0s", "100ms", "300ms"))
        standby = standby_of(pair, names[1], names[0], *args, "--checkpoint-every", every)
        for p in pushers:
            p.connect(primary)
        if rng.randrange(2):
            push_until(pushers, time.monotonic() + rng.uniform(0, 0.3), rng)
        standby.in_sync()
        assert push_until(pushers, time.monotonic() + rng.uniform(0.05, 0.8), rng, n_min=10)
        primary.process.send_signal(signal.SIGKILL)
        push_until(pushers, time.monotonic() + 5, rng)  # what is on its way gets lost, or does not
        primary.kill()
        for p in pushers:
            p.client.close()
        standby.promote()
        names.reverse()
        primary = standby
        for p in pushers:
            p.connect(primary)
        check(pushers)
        for p in pushers:
            p.client.close()
    assert sum(p.acked for p in pushers) > 10 * ROUNDS


# --- both of them come and go ---

def two(pair, *more):
    """A primary, its standby, and pushers that are at work."""
    rng = random.Random(SEED)
    args = ("--durability", "fsync", *more)
    primary = pair("a", *args)
    primary.await_ready()
    standby = standby_of(pair, "b", "a", *args)
    pushers = [Pusher(rank, shard, rng) for rank in range(N_WORKERS) for shard in range(N_SHARDS)]
    for p in pushers:
        p.connect(primary)
    standby.in_sync()
    return primary, standby, pushers, rng, args


@pytest.mark.timeout(240)
def test_a_standby_that_was_killed_goes_on_without_a_copy(pair):
    primary, standby, pushers, rng, args = two(pair)
    for kill in (True, False, True):
        assert push_until(pushers, time.monotonic() + 0.3, rng, n_min=20)
        standby.kill() if kill else standby.stop()
        assert push_until(pushers, time.monotonic() + 0.3, rng, n_min=20)
        standby = standby_of(pair, "b", "a", *args)
        standby.in_sync()
        assert "has to be copied" not in standby.log(), standby.log()
    check(pushers)
    fail_over(primary, standby, pushers)


@pytest.mark.timeout(240)
def test_a_primary_that_starts_again_is_followed_again(pair):
    primary, standby, pushers, rng, args = two(pair)
    for stop in (True, False):
        assert push_until(pushers, time.monotonic() + 0.3, rng, n_min=20)
        primary.stop() if stop else primary.kill()
        for p in pushers:
            p.client.close()
        primary = pair("a", *args)
        primary.await_ready()
        for p in pushers:
            p.connect(primary)
        standby.in_sync()
        check(pushers)
    assert sum("has to be copied" in line for line in standby.lines) == 1, standby.log()


@pytest.mark.timeout(240)
def test_a_checkpoint_and_the_log_behind_it_are_copied(pair):
    """The copy is of a primary under load; what it has is the standby's after a kill."""
    rng = random.Random(SEED)
    primary = pair("a", "--durability", "fsync", "--keep", "1")
    primary.await_ready()
    pushers = [Pusher(rank, shard, rng) for rank in range(N_WORKERS) for shard in range(N_SHARDS)]
    for p in pushers:
        p.connect(primary)
    for n in range(4):
        assert push_until(pushers, time.monotonic() + 0.2, rng, n_min=20)
        assert primary.admin("checkpoint")["number"] == n + 1
    standby = standby_of(pair, "b", "a", "--durability", "fsync")
    assert push_until(pushers, time.monotonic() + 0.5, rng, n_min=20)
    standby.in_sync()
    standby.says("copied ")
    check(pushers)
    fail_over(primary, standby, pushers)
    for p in pushers:
        p.client.close()
    standby.kill()
    again = pair("b", "--durability", "fsync")
    again.await_ready()
    for p in pushers:
        p.connect(again)
    check(pushers)


# --- promotion ---

def test_promotion_is_refused_while_the_primary_answers(pair):
    primary, standby, pushers, rng, _ = two(pair)
    assert push_until(pushers, time.monotonic() + 0.1, rng, n_min=20)
    for _ in range(3):
        began = time.monotonic()
        answer = standby.order()
        assert answer.status != 0 and "still answers as the primary" in answer.text
        assert 0.2 < time.monotonic() - began < 2.5
    assert standby.state() == "in sync" and "not in sync" not in standby.log()
    check(pushers)
    answer = primary.order()
    assert answer.status != 0 and "the primary already" in answer.text
    for p in pushers:
        p.client.close()
    answer = standby.order("the-other-is-dead")
    assert answer.status == 0, answer.text
    standby.await_ready()
    for p in pushers:
        p.connect(standby)
    check(pushers)


def test_a_standby_that_has_nothing_is_not_promoted(pair):
    standby = standby_of(pair, "b", "a")
    standby.says("Connection refused")
    answer = standby.order("the-other-is-dead accept-loss")
    assert answer.status != 0 and "no whole copy" in answer.text


def test_a_refused_worker_learns_where_the_primary_is(pair):
    primary, standby, *_ = two(pair)
    client = wire.Wire(standby.port)
    answer = client.hello(shard=0)
    assert answer.status == -10028, answer.text
    assert f"127.0.0.1:{primary.port}" in answer.text


# --- what a standby cannot follow ---

@pytest.mark.parametrize("args, says", [
    (("--lease", "61s"), "lease"),
    (("--cut-every", "7"), "cut-every"),
    (("--frame-max", "1M"), "frame-max"),
    (("--memory-max", "64M"), "memory"),
    (("--shards", "3"), "this standby has 3: give both the same --shards"),
])
def test_other_settings_are_named(pair, args, says):
    primary = pair("a", "--memory-max", "128M")
    primary.await_ready()
    more = () if "--memory-max" in args else ("--memory-max", "128M")
    standby = standby_of(pair, "b", "a", *more, *args)
    standby.says(says)
    assert "following" not in standby.log()


def test_another_program_on_the_port_is_named(pair):
    primary = pair("a")
    primary.await_ready()
    standby = pair("b", "--standby", primary.http)
    standby.says("it answers HTTP")


def test_another_cluster_is_named(pair, tmp_path):
    primary, standby, *_ = two(pair)
    standby.stop()
    other = pair("c")
    other.await_ready()
    standby = standby_of(pair, "b", "c")
    standby.says(f"it is node 0 of cluster 127.0.0.1:{other.port} (")
    standby.says(f"; this standby is node 0 of cluster 127.0.0.1:{primary.port} (")
    assert "following" not in standby.log() and "has to be copied" not in standby.log()


def test_a_psd_that_knows_no_standbys_is_named(pair):
    """It ends the connection at a frame that it does not know."""
    with socket.create_server(("127.0.0.1", pair.port("a"))) as listener:
        standby = standby_of(pair, "b", "a", "--shards", "1")

        def greet():
            connection, _ = listener.accept()
            connection.recv(4096)
            own = f"127.0.0.1:{pair.port('a')}"
            connection.sendall(wire.frame("hello_reply", wire.head((3, 1), (4, own), (6, 1), (7, 5), (8, 1 << 20))))
            connection.recv(4096)
            connection.close()

        for _ in range(3):
            greet()
    standby.says("older psd")

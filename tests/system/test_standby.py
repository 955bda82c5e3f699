"""A pair of psd: kill -9 of the primary at any moment, and what it acknowledged is at its promoted standby, once.

PS_ROUNDS=200 makes as many rounds of the first test; without it there are a few. The seed is printed; PS_SEED repeats it."""

import os
import random
import re
import signal
import time

import pytest

import wire
from conftest import Daemon, SANITIZER, eventually
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
        end = time.monotonic() + 15
        while sum(words in line for line in self.lines) < n and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        assert sum(words in line for line in self.lines) >= n, self.log()

    def in_sync(self):
        eventually(lambda: self.process.poll() is not None or self.state() == "in sync")
        assert self.process.poll() is None, self.log()

    def order(self, words=""):
        with self.connect(wire.LISTENER, "operator") as client:
            return client.admin("promote", words)

    def promote(self, words=""):
        """Refused as long as the primary still answers."""
        end = time.monotonic() + 20
        while True:
            answer = self.order(words)
            if answer.status == 0 or time.monotonic() > end:
                break
            time.sleep(0.01)
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
        assert was_killed or status in (0, 3), member.log()
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
        standby = standby_of(pair, names[1], names[0], *args, "--checkpoint-every", every,
                             host=("127.0.0.1", "localhost")[n // 2 % 2])
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

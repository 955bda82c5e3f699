"""kill -9 of a loaded psd at any moment: what was acknowledged is there, once, after the next start.

PS_ROUNDS=200 makes as many rounds of the first test; without it there are a few. The seed is printed; PS_SEED repeats it."""

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import time

import pytest

import wire
from conftest import BIN, eventually

ROUNDS = int(os.environ.get("PS_ROUNDS", "6"))
SEED = int(os.environ.get("PS_SEED", random.SystemRandom().randrange(1 << 32)))
N_SHARDS = 2
N_WORKERS = 2
N_KEYS = 400
DEPTH = 8
DIM = 4


class Pusher:
    """One worker at one shard: numbered pushes of whole numbers, up to DEPTH of them on their way."""

    def __init__(self, rank, shard, rng):
        self.rank, self.shard, self.rng = rank, shard, rng
        self.keys = wire.keys_of(shard, N_SHARDS, N_KEYS)
        self.sent = []  # of push seq 1, 2 ...: {key: gradient}
        self.acked = 0
        self.client = None

    def connect(self, psd):
        self.psd = psd
        self.client = psd.connect(self.shard)
        answer = self.client.table(name="t", dim=DIM, optim=wire.SGD, lr=1.0)
        assert answer.status == 0, answer.text
        answer = self.client.join(n_workers=N_WORKERS, rank=self.rank, incarnation=1 + self.rank, last_acked=self.acked)
        assert answer.status == 0, answer.text
        applied = answer.number(3)
        assert applied >= self.acked, f"worker {self.rank}: {self.acked} acknowledged, {applied} applied"
        self.acked = applied
        self.on_its_way = []
        for seq in range(applied + 1, len(self.sent) + 1):
            self.send(seq)

    def send(self, seq):
        gradients = self.sent[seq - 1]
        keys = sorted(gradients)
        values = wire.floats(*(float(g) for key in keys for g in [gradients[key]] * DIM))
        request_id = next(self.client.ids)
        self.client.send(wire.push_frame(keys, values, seq=seq, clock=seq - 1, request_id=request_id))
        self.on_its_way.append((seq, request_id))

    def push(self):
        keys = self.rng.sample(self.keys, self.rng.choice((1, 5, 40)))
        self.sent.append({key: self.rng.randint(-8, 8) for key in keys})
        self.send(len(self.sent))

    def take(self):
        """The oldest answer that is awaited."""
        seq, request_id = self.on_its_way.pop(0)
        answer = self.client.wait(request_id)
        if answer.status == -errno.ENOMEM:  # not acknowledged: it and all behind it are sent again
            self.client.close()
            self.connect(self.psd)
            return
        assert answer.status == 0, answer.text
        self.acked = seq

    def step(self):
        if len(self.on_its_way) == DEPTH:
            self.take()
        self.push()

    def wait_acknowledged(self):
        while self.on_its_way:
            self.take()

    def sums(self):
        """What the table has to hold: minus the sum of the gradients, by the learning rate of 1."""
        sums = dict.fromkeys(self.keys, 0)
        for gradients in self.sent[: self.acked]:
            for key, gradient in gradients.items():
                sums[key] -= gradient
        return sums

    def check(self, others):
        answer = self.client.pull(sorted(self.keys))
        assert answer.status == 0, answer.text
        want = self.sums()
        for other in others:
            for key, value in other.sums().items():
                want[key] += value
        got = wire.rows(answer, DIM)
        assert got == [[float(want[key])] * DIM for key in sorted(self.keys)]


def push_until(pushers, end, rng, n_min=0):
    """True: all went well until then, and so often at least; False: the daemon went away."""
    n = 0
    try:
        while time.monotonic() < end or n < n_min:
            rng.choice(pushers).step()
            n += 1
    except wire.Closed:
        return False
    return True


def wait_acknowledged(pushers):
    for p in pushers:
        p.wait_acknowledged()
    for p in pushers:
        p.check([q for q in pushers if q is not p and q.shard == p.shard])


@pytest.mark.timeout(60 + 20 * ROUNDS)
def test_what_was_acknowledged_survives_kill_9_and_is_applied_once(start_psd, tmp_path):
    print(f"PS_SEED={SEED}")
    rng = random.Random(SEED)
    args = ("--shards", str(N_SHARDS), "--data-dir", str(tmp_path / "data"), "--durability", "fsync", "--lease", "60s",
            "--checkpoint-deltas", "3", "--keep", "2")
    pushers = [Pusher(rank, shard, rng) for rank in range(N_WORKERS) for shard in range(N_SHARDS)]
    for _ in range(ROUNDS):
        every = rng.choice(("0s", "0s", "100ms", "300ms"))
        psd = start_psd(*args, "--checkpoint-every", every)
        for p in pushers:
            p.connect(psd)
        assert push_until(pushers, time.monotonic() + rng.uniform(0.05, 0.8), rng, n_min=10)
        psd.process.send_signal(signal.SIGKILL)
        push_until(pushers, time.monotonic() + 5, rng)  # what is on its way gets lost, or does not
        psd.kill()
        for p in pushers:
            p.client.close()
    psd = start_psd(*args)
    for p in pushers:
        p.connect(psd)
    wait_acknowledged(pushers)
    assert sum(p.acked for p in pushers) > 10 * ROUNDS


def one_pusher(psd):
    p = Pusher(0, 0, random.Random(SEED))
    p.keys = list(range(1, N_KEYS + 1))
    p.connect(psd)
    return p


def alone(monkeypatch):
    """One worker, one shard."""
    monkeypatch.setattr("test_durability.N_WORKERS", 1)
    monkeypatch.setattr("test_durability.N_SHARDS", 1)
    return "--shards", "1", "--durability", "fsync", "--lease", "60s"


def node_and_pusher(start_psd, tmp_path, monkeypatch, *flags):
    """A node of one shard, its one worker, its arguments and its data directory."""
    data = tmp_path / "data"
    args = (*alone(monkeypatch), "--data-dir", str(data), *flags)
    psd = start_psd(*args)
    return psd, one_pusher(psd), args, data


def damage(path, at=None):
    """A bit of the byte there; in the middle unless told."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 0x40
    path.write_bytes(data)


def test_a_damaged_checkpoint_is_reported_and_the_one_before_with_a_longer_log_does_as_well(start_psd, tmp_path,
                                                                                         monkeypatch):
    args = (*alone(monkeypatch), "--data-dir", str(tmp_path / "data"))
    psd = start_psd(*args)
    p = one_pusher(psd)
    for n in range(3):
        for _ in range(50):
            p.step()
        assert psd.admin("checkpoint")["number"] == n + 1
    for _ in range(50):
        p.step()
    p.wait_acknowledged()
    psd.kill()
    damage(tmp_path / "data/checkpoints/00000000000000000003/shard-000.psc")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    psd = start_psd(*args)
    assert "00000000000000000003" in psd.log() and "00000000000000000002" in psd.log()
    p.connect(psd)
    wait_acknowledged([p])
    psd.stop()
    damage(sorted((tmp_path / "data/checkpoints").iterdir())[-1] / "shard-000.psc")
    for data in ("copy", "data"):  # with a log behind it, and with none
        psd = start_psd("--restore", data, "--shards", "1")
        assert "chunk" in psd.log()
        p.client = psd.connect(0, role="reader")
        p.client.table(name="t", dim=DIM, must_exist=True)
        p.check([])


def test_a_torn_log_loses_nothing_that_was_acknowledged(start_psd, tmp_path, monkeypatch):
    args = (*alone(monkeypatch), "--data-dir", str(tmp_path / "data"))
    psd = start_psd(*args)
    p = one_pusher(psd)
    for _ in range(100):
        p.step()
    p.wait_acknowledged()
    psd.kill()
    segment = sorted((tmp_path / "data/log").glob("*/shard-000/*.psl"))[-1]
    with segment.open("ab") as f:
        f.write(os.urandom(333))
    psd = start_psd(*args)
    p.connect(psd)
    p.step()
    wait_acknowledged([p])


def test_a_start_at_a_checkpoint_or_a_clock_has_just_that_state(start_psd, tmp_path, monkeypatch):
    args = alone(monkeypatch)
    psd = start_psd(*args, "--data-dir", str(tmp_path / "data"))
    p = one_pusher(psd)
    states = []
    for n in range(3):
        for _ in range(20):
            p.step()
        p.wait_acknowledged()
        states.append((p.acked, p.sums()))
        if n < 2:
            psd.admin("checkpoint")
    psd.kill()
    for at, n_pushes in (("2", 40), ("1", 20), ("job:40", 40), ("job:47", 47), ("job:60", 60), ("job:23", 23)):
        shutil.copytree(tmp_path / "data", tmp_path / f"at-{at}")
        psd = start_psd(*args, "--data-dir", str(tmp_path / f"at-{at}"), "--at", at)
        p.client = psd.connect(0, role="reader")
        p.client.table(name="t", dim=DIM, must_exist=True)
        p.acked = n_pushes
        p.check([])
        psd.stop()


@pytest.mark.parametrize("at, says", [("7", "checkpoint 7"), ("job:99", "99 steps"), ("other:3", "other"),
                                      ("x", "JOB:CLOCK")])
def test_a_state_that_cannot_be_had_is_refused(start_psd, tmp_path, monkeypatch, at, says):
    args = (*alone(monkeypatch), "--data-dir", str(tmp_path / "data"))
    psd = start_psd(*args)
    p = one_pusher(psd)
    for _ in range(5):
        p.step()
    p.wait_acknowledged()
    psd.stop()
    with pytest.raises(RuntimeError, match=says):
        start_psd(*args, "--at", at)


def test_another_number_of_shards_gets_what_the_log_of_the_old_ones_holds(start_psd, tmp_path, monkeypatch):
    data = ("--data-dir", str(tmp_path / "data"))
    args = alone(monkeypatch)
    psd = start_psd(*args, *data)
    p = one_pusher(psd)
    for _ in range(30):
        p.step()
    psd.admin("checkpoint")
    for _ in range(30):
        p.step()
    p.wait_acknowledged()
    psd.kill()
    for n in (3, 5, 4, 1):
        psd = start_psd(*args, *data, "--shards", str(n))
        psd.kill() if n % 2 else psd.stop()
    psd = start_psd(*args, *data)
    p.client = psd.connect(0, role="reader")
    p.check([])


def test_a_damaged_log_is_refused_in_any_layout_and_a_state_before_it_is_not(start_psd, tmp_path, monkeypatch):
    args = alone(monkeypatch)
    psd = start_psd(*args, "--data-dir", str(tmp_path / "data"))
    p = one_pusher(psd)
    for _ in range(20):
        p.step()
    p.wait_acknowledged()
    psd.admin("checkpoint")
    sizes = []
    for n in (1, 29, 30):  # the disk's speed decides how many pushes a block holds, but none holds some of two parts
        for _ in range(n):
            p.step()
        p.wait_acknowledged()
        log = sorted((tmp_path / "data/log").glob("*/shard-000/*.psl"))[-1]
        sizes.append(log.stat().st_size)
    psd.kill()
    damage(log, (sizes[0] + sizes[1]) // 2)
    for more in (("--data-dir", "data"), ("--data-dir", "data", "--shards", "3"), ("--restore", "data"),
                 ("--data-dir", "data", "--at", "job:80")):
        with pytest.raises(RuntimeError, match="the write-ahead log is damaged behind record .*--at JOB:CLOCK"):
            start_psd(*args, *more)
    for at, n_pushes in (("job:21", 21), ("1", 20)):
        psd = start_psd(*args, "--restore", "data", "--at", at)
        p.acked = n_pushes
        p.client = psd.connect(0, role="reader")
        p.client.table(name="t", dim=DIM, must_exist=True)
        p.check([])
        psd.stop()


def small_disk(tmp_path, size):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size={size} tmpfs {disk} 2>/dev/null"):
        pytest.skip("mounting a small file system needs root")
    return disk


def fill_up(disk):
    """To the last byte; the file to be removed again."""
    with open(disk / "filler", "ab") as f:
        try:
            while True:
                f.write(bytes(65536))
                f.flush()
        except OSError:
            pass
    return disk / "filler"


def tool(name, *args):
    return subprocess.run([str(BIN / name), *map(str, args)], capture_output=True, text=True, timeout=100)


@pytest.mark.timeout(180)
def test_an_asynchronous_log_on_a_full_disk_stops_nobody_and_reports_what_a_crash_would_cost(start_psd, tmp_path):
    disk = small_disk(tmp_path, "100m")
    load = ("push", "--rows", "20000", "--dim", "8", "--seconds", "0.3", "--warmup", "0")
    try:
        psd = start_psd("--shards", "1", "--data-dir", str(disk / "data"))
        at = ("--server", f"127.0.0.1:{psd.port}")
        assert tool("psbench", *load, *at, "--rate", "50").returncode == 0  # the disk has to have room for 64 MiB later
        assert "lacks records" not in psd.log()
        filler = fill_up(disk)
        deadline = time.monotonic() + 90
        while not psd.admin("status")["totals"]["log"]["dropped"]:  # once 64 MiB wait for the disk
            assert time.monotonic() < deadline
            assert tool("psbench", *load, *at).returncode == 0
        status = psd.admin("status")
        assert not status["healthy"] and "lacks records" in status["health"] and "No space" in status["health"]
        eventually(lambda: "the write-ahead log lacks records from" in psd.log())
        filler.unlink()
        eventually(lambda: psd.admin("status")["healthy"])
        rows = psd.admin("status")["totals"]["rows"]
        psd.kill()
        whole = tool("psctl", "verify", disk / "data")
        assert whole.returncode == 0 and "checkpoint 1" in whole.stdout, whole.stdout
        psd = start_psd("--shards", "1", "--data-dir", str(disk / "data"))
        assert psd.admin("status")["totals"]["rows"] == rows
        assert psd.stop() == 0
    finally:
        os.system(f"umount -l {disk}")


def test_a_file_that_may_not_grow_is_a_failure_like_others(start_psd, tmp_path, monkeypatch):
    """A limit on the size of files (ulimit -f): the log goes on in another one."""
    psd = start_psd(*alone(monkeypatch), "--data-dir", str(tmp_path / "data"))
    p = one_pusher(psd)
    _, hard = resource.prlimit(psd.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(psd.process.pid, resource.RLIMIT_FSIZE, (16384, hard))
    while not psd.admin("status")["totals"]["log"]["failures"]:
        p.step()
    p.wait_acknowledged()
    resource.prlimit(psd.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
    p.check([])
    psd.kill()
    psd = start_psd(*alone(monkeypatch), "--data-dir", str(tmp_path / "data"))
    p.connect(psd)
    wait_acknowledged([p])
    assert psd.stop() == 0


def test_replies_wait_for_the_disk_and_say_so(start_psd, tmp_path, monkeypatch):
    """A disk that is full: nothing is acknowledged, /healthz is red, and when there is room again all is well."""
    disk = small_disk(tmp_path, "8m")
    try:
        psd = start_psd(*alone(monkeypatch), "--data-dir", str(disk / "data"))
        p = one_pusher(psd)
        for _ in range(10):
            p.step()
        p.wait_acknowledged()
        filler = fill_up(disk)
        deadline = time.monotonic() + 120
        while not psd.admin("status")["totals"]["log"]["failed"]:
            assert time.monotonic() < deadline
            p.push()  # the last page of the log may have room for a few
        status = psd.admin("status")
        assert not status["healthy"] and "write-ahead log" in status["health"]
        assert any(w["what"] == "acknowledgement" for w in psd.admin("why")["waits"])
        filler.unlink()
        wait_acknowledged([p])
        eventually(lambda: psd.admin("status")["healthy"])
        psd.kill()
        psd = start_psd(*alone(monkeypatch), "--data-dir", str(disk / "data"))
        p.connect(psd)
        wait_acknowledged([p])
        assert psd.stop() == 0
    finally:
        os.system(f"umount -l {disk}")

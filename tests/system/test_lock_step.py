"""Lock-step clocks whose rows take long to combine: what others get of a shard meanwhile, and what a death in the middle leaves."""

import itertools
import random
import struct
import threading
import time

from wire import BSP, floats, push_frame, varint

N_SERVED = 400_000
N_KILLED = 200_000
N_DEATHS = 8


def ascending(n, first=1):
    """The bytes of n keys, one behind the other."""
    return varint(first) + b"\x01" * (n - 1)


class Job:
    """A job in lock step, whose workers push the same n keys."""

    def __init__(self, psd, n):
        self.n = n
        self.clients = [psd.connect() for _ in range(2)]
        for rank, client in enumerate(self.clients):
            assert client.join(job="big", rank=rank, n_workers=2, incarnation=1, mode=BSP).status == 0
            self.table = client.table(name="big/t", dim=1).number(3)

    def send(self, rank, clock, first=1):
        self.clients[rank].send(push_frame([], floats(1.0) * self.n, table=self.table, seq=clock + 1, clock=clock,
                                           key_blob=ascending(self.n, first), n_keys=self.n, request_id=1000 + clock))

    def end(self, rank, clock):
        assert self.clients[rank].wait(1000 + clock).status == 0


class Beside:
    """Another job's worker, a row at a time."""

    def __init__(self, psd):
        self.client = psd.connect()
        self.table = self.client.table(name="other", dim=1).number(3)
        assert self.client.join(job="other", incarnation=1).status == 0
        self.is_over = False
        self.ends = []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        for clock in itertools.count():
            if self.is_over:
                return
            assert self.client.push([7], floats(1), table=self.table, seq=clock + 1, clock=clock).status == 0
            self.ends.append(time.perf_counter())

    def longest_pause(self, begin, end):
        ends = [begin, *(at for at in list(self.ends) if begin < at < end), end]
        return max(b - a for a, b in zip(ends, ends[1:]))


def test_others_are_served_while_a_clock_is_combined(start_psd):
    psd = start_psd("--shards", "1", "--lease", "300s", data=False)
    job, beside = Job(psd, N_SERVED), Beside(psd)
    shares = []
    for clock in range(7):
        for rank in range(2):
            job.send(rank, clock, 1 + clock * N_SERVED)
            begin = time.perf_counter()
            job.end(rank, clock)
        end = time.perf_counter()
        shares.append(beside.longest_pause(begin, end) / (end - begin))
        read = job.clients[0].pull([1 + clock * N_SERVED, (clock + 1) * N_SERVED], table=job.table, clock=clock + 1)
        assert struct.unpack("<2f", read.body) == (-1.0, -1.0)
    beside.is_over = True
    beside.thread.join()
    assert sorted(shares)[len(shares) // 2] < 0.5, shares


def read_all(psd):
    reader = psd.connect(role="reader")
    table = reader.table(name="big/t", must_exist=True).number(3)
    body = reader.pull([], table=table, key_blob=ascending(N_KILLED), n_keys=N_KILLED).body
    reader.close()
    return set(struct.unpack(f"<{N_KILLED}f", body))


def test_a_clock_is_whole_or_not_there_after_a_death(start_psd, tmp_path):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    n_whole, takes_s = 0, 0
    for death in range(N_DEATHS + 1):
        args = ("--shards", "1", "--lease", "300s", "--durability", "fsync", "--data-dir", str(tmp_path / f"d{death}"))
        psd = start_psd(*args)
        job = Job(psd, N_KILLED)
        job.send(0, 0)
        job.end(0, 0)
        job.send(1, 0)
        begin = time.perf_counter()
        if death == 0:
            job.end(1, 0)
            takes_s = time.perf_counter() - begin
        time.sleep(dice.uniform(0.0, 1.1) * takes_s)
        psd.kill()
        psd = start_psd(*args)
        end = time.monotonic() + 60
        rows = read_all(psd)
        while len(rows) > 1 and time.monotonic() < end:  # a clock that is combined now
            rows = read_all(psd)
        assert rows in ({0.0}, {-1.0})
        n_whole += rows == {-1.0}
        psd.kill()
    print(n_whole, "of", N_DEATHS + 1, "were whole")
    assert n_whole  # the first one, that was acknowledged

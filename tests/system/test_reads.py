"""A reader beside workers that push all the time: it waits for a bounded part of their pushes. No clocks: psd stands still while all
of them send, and the reader's answer names how many pushes came before it."""

import os
import signal
import urllib.request

import wire
from conftest import eventually

N_WORKERS, N_PUSHES, N_KEYS = 20, 3, 2000  # 60 pushes of 36 kB, which the sockets hold
BEFORE_MAX = 12  # a few in an iteration, and the reader may just have missed one
N_READS = 3
VERSION = 4  # of a pull's reply


def read_waits(psd):
    """How many requests of readers psd has counted."""
    with urllib.request.urlopen(f"http://{psd.http}/metrics", timeout=60) as page:
        for line in page.read().decode().splitlines():
            if line.startswith('psd_read_wait_seconds_count{shard="0"}'):
                return int(line.split()[1])
    raise AssertionError("no psd_read_wait_seconds")


def begin(psd, rank):
    worker = psd.connect()
    table = worker.table(dim=4).number(3)
    assert worker.join(rank=rank, n_workers=N_WORKERS).status == 0
    return worker, table


def test_a_read_waits_for_few_of_the_pushes_before_it(start_psd):
    psd = start_psd("--shards", "1", "--durability", "async")
    workers, tables = zip(*[begin(psd, rank) for rank in range(N_WORKERS)])
    table = tables[0]
    keys, values = list(range(1, 1 + N_KEYS)), wire.floats(*[1.0] * (4 * N_KEYS))
    reader = psd.connect(role="reader")
    n_counted = read_waits(psd)
    for n_read in range(N_READS):
        clock = n_read * N_PUSHES
        os.kill(psd.process.pid, signal.SIGSTOP)
        try:
            for worker in workers:
                for i in range(N_PUSHES):
                    worker.send(wire.push_frame(keys, values, table=table, seq=1 + clock + i, clock=clock + i, request_id=1000 + i))
            reader.send(wire.pull_frame(keys[:26], table=table, request_id=7))
        finally:
            os.kill(psd.process.pid, signal.SIGCONT)
        answer = reader.wait(7)
        assert answer.status == 0, answer.text
        before = answer.number(VERSION) - n_read * N_WORKERS * N_PUSHES
        assert 0 <= before <= BEFORE_MAX, f"{before} of {N_WORKERS * N_PUSHES} pushes came before a read"
        for worker in workers:
            for i in range(N_PUSHES):
                assert worker.wait(1000 + i).status == 0
    with psd.connect(role="reader") as last:
        assert last.pull([1], table=table).number(VERSION) == N_READS * N_WORKERS * N_PUSHES  # and none is lost
    eventually(lambda: read_waits(psd) >= n_counted + N_READS)  # its report comes a few times a second
    for worker in [*workers, reader]:
        worker.close()

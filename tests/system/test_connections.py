"""Many clients that are connected and say nothing: what each of them costs psd."""

import pathlib
import resource

import pytest
import wire
from conftest import eventually

N_IDLE = 1000
BYTES_MAX = 8 << 10  # of one idle connection; twice that would be too much
PSD_ARGS = ["--shards", "2", "--connections-max", str(N_IDLE + 100),
            "--connections-per-address", str(N_IDLE + 100)]


def resident_bytes(pid):
    """Pss: what the process has in memory, shared pages by their share."""
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, value, *_ = line.split()
        if name == "Pss:":
            return int(value) << 10
    raise AssertionError("smaps_rollup has no Pss")


@pytest.fixture
def descriptors():
    """Room for the test's own ends of the sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < N_IDLE + 200:
        pytest.skip(f"at most {hard} descriptors for a process here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, N_IDLE + 200), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def n_open(psd):
    return psd.admin()["totals"]["net"]["connections"]


def test_a_large_push_that_was_answered_is_held_no_more(start_psd):
    psd = start_psd("--shards", "1")
    n = 1000000  # keys 1, 2, 3 ...: more than is applied in one piece
    with psd.connect() as client:
        table = client.table(dim=1).number(3)
        assert client.join().status == 0
        rows = wire.section(table=table, n_keys=n, key_bytes=n, value_bytes=4 * n)
        client.send(wire.frame("push", wire.head((1, 1), (3, 1), (4, 1), (5, [rows])), bytes([1]) * n + bytes(4 * n), request_id=70))
        assert client.wait(70).status == 0
        eventually(lambda: psd.stats()["totals"]["net"]["held_bytes"] < 64 << 10, 30)


def test_a_thousand_idle_connections_cost_little_memory(start_psd, descriptors, record_property):
    psd = start_psd(*PSD_ARGS)
    request = wire.pull_frame(list(range(30000)), table=99)
    with psd.connect(shard=0) as first, psd.connect(shard=1) as second:
        for client in (first, second):  # what the first request of a shard takes is not counted
            client.send(request)
            assert client.reply().status != 0
        before = resident_bytes(psd.process.pid)
        clients = [psd.connect(shard=i % 2) for i in range(N_IDLE)]
        for client in clients:  # each has been served, and a large request leaves nothing behind
            client.send(request)
            assert client.reply().status != 0
        eventually(lambda: n_open(psd) >= N_IDLE + 2)
        each = (resident_bytes(psd.process.pid) - before) / N_IDLE
        record_property("bytes_per_idle_connection", round(each))
        print(f"{each:.0f} bytes for an idle connection")
        assert each < BYTES_MAX
        for client in clients:
            client.close()
        eventually(lambda: n_open(psd) < N_IDLE / 10)

"""A disk that is slower than pushes come (tests/preload/slow_disk.c): psctl why, the log and /metrics say so with figures, pushes are
spread over time, and each is applied once. How fast and how evenly is printed and decides nothing: this machine may be busy."""
import re
import subprocess
import threading

import pytest

import test_durability
import wire
from conftest import BIN, eventually
from fake_standby import COPY, GO_ON, Standby
from test_disk_space import metrics, tool
from test_durability import DIM, alone, one_pusher, wait_acknowledged

SLOW_DISK = BIN.parent / "tests/slow_disk.so"
BYTES_PER_S = 20_000_000
IS_SLOW = re.compile(r"write-ahead log's disk: job psbench, pushes to shard 0; pushes waited for (\S+) s of the last \S+ s; "
                     r"the disk takes (\S+) MB/s, (?:about|more than) (\S+) MB/s are needed; \d+ wait now; since ")
BEGAN = re.compile(r"warn .*shard 0: pushes wait for the write-ahead log's disk: for (\S+) s of the last \S+ s; "
                   r"the disk takes (\S+) MB/s, (?:about|more than) (\S+) MB/s are needed")
ENDED = re.compile(r"info .*shard 0: pushes do not wait for the write-ahead log's disk any more; they did for (\S+) s")


def await_match(pattern, text):
    """The first match in what text() says, some time."""
    matches = []

    def is_there():
        match = pattern.search(text())
        matches.extend([match] if match else [])
        return matches

    eventually(is_there)
    return matches[0]


@pytest.fixture(scope="module")
def slow_disk():
    if BIN.parent.name != "release":
        pytest.skip("a library for LD_PRELOAD would come before the sanitizer's")
    subprocess.run(["make", "-s", "--no-print-directory", f"BUILD={BIN.parents[1]}", f"VARIANT={BIN.parent.name}", "slow-disk"],
                   cwd=test_durability.__file__.rsplit("/tests/", 1)[0], check=True, timeout=300)
    return SLOW_DISK


@pytest.mark.timeout(240)
def test_a_disk_that_is_the_bound_is_said_so_and_pushes_stay_exact(start_psd, slow_disk, tmp_path, monkeypatch):
    args = ("--data-dir", str(tmp_path / "data"), *alone(monkeypatch)[:2], "--lease", "60s")
    with monkeypatch.context() as env:
        env.setenv("LD_PRELOAD", str(slow_disk))
        env.setenv("PS_DISK_BYTES_PER_S", str(BYTES_PER_S))
        psd = start_psd(*args)
    with psd.connect(0) as client:  # so that it is table 0, as the pusher wants it
        assert client.table(name="t", dim=DIM, optim=wire.SGD, lr=1.0).status == 0
    server = f"127.0.0.1:{psd.port}"
    with subprocess.Popen([str(BIN / "psbench"), "push", "--server", server, "--dim", "64", "--rows", "20000", "--seconds", "12",
                           "--warmup", "2"], stdout=subprocess.PIPE, text=True) as load:
        slow = await_match(IS_SLOW, lambda: tool("psctl", "why", "--server", server))
        p = one_pusher(psd)
        for _ in range(60):  # in the same line as psbench's
            p.step()
        p.wait_acknowledged()
        began = await_match(BEGAN, psd.log)
        print(load.communicate(timeout=120)[0])
        assert load.returncode == 0
    m = metrics(psd)
    print(f"a disk of {BYTES_PER_S / 1e6} MB/s: why {slow.groups()}, log {began.groups()}")
    for held, takes, needed in (slow.groups(), began.groups()):  # of a disk of 20 MB/s, and in its bytes
        assert float(held) > 0 and 0 < float(takes) < 1.5 * BYTES_PER_S / 1e6
        assert float(takes) <= float(needed)
    assert m['psd_log_push_wait_seconds_total{shard="0"}'] > 0
    assert m['psd_log_disk_bytes_per_second{shard="0"}'] > 0
    print(await_match(ENDED, psd.log).group())
    eventually(lambda: "write-ahead log's disk" not in tool("psctl", "why", "--server", server))
    assert len(BEGAN.findall(psd.log())) == 1
    p.check([])
    assert psd.stop() == 0
    psd = start_psd(*args)
    p.connect(psd)
    wait_acknowledged([p])


@pytest.mark.timeout(240)
def test_a_standby_that_asks_to_follow_until_its_own_sync_is_over_is_named(start_psd, slow_disk, monkeypatch):
    """That the connection before is out of sync has to be on the disk first, which takes 3 s a sync."""
    with monkeypatch.context() as env:
        env.setenv("LD_PRELOAD", str(slow_disk))
        env.setenv("PS_DISK_BYTES_PER_S", str(BYTES_PER_S))
        env.setenv("PS_DISK_SYNC_US", "3000000")
        psd = start_psd("--shards", "1", "--memory-max", "64M", "--standby-patience", "60s")
    standby = Standby(psd)
    assert (standby.follow(), standby.follow()) == (COPY, GO_ON)
    standby.start()
    eventually(lambda: psd.admin("status")["replication"]["in_sync"], 60)
    standby.close()
    actions = []
    asking = threading.Thread(target=lambda: actions.append(standby.follow()))
    asking.start()
    says = "127.0.0.1:9 asks to follow, and waits until standby 127.0.0.1:9 is out of sync"
    eventually(lambda: [(w["what"], w["why"]) for w in psd.admin("why")["waits"]] == [("standby", says)], 30)
    assert says in tool("psctl", "why", "--server", f"127.0.0.1:{psd.port}")
    asking.join(60)
    assert actions == [GO_ON]
    eventually(lambda: psd.admin("why")["waits"] == [], 30)
    standby.close()

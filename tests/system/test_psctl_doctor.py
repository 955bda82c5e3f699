"""psctl doctor finds faults that are made here, within seconds, and says nothing of what is well."""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
import wire
from conftest import BIN, eventually, meanwhile, worker_alone
from training import free_ports
from wire import floats

pytestmark = pytest.mark.timeout(300)
PR_SET_THP_DISABLE = 41


def doctor(psd, *args):
    got = subprocess.run([str(BIN / "psctl"), "doctor", "--server", f"127.0.0.1:{psd.port}", *args], capture_output=True, text=True,
                         timeout=120)
    assert got.stderr == "", got.stderr
    return got


def is_of_the_machine(text):
    """The disk may be filled by others, and huge pages switched off."""
    return "its disk is" in text or "huge pages" in text or "is busy for" in text


def findings(psd, *args):
    """What it finds of this cluster, as (severity, text)."""
    found = json.loads(doctor(psd, "-o", "json", *args).stdout)["findings"]
    return [(f["severity"], f["text"]) for f in found if not is_of_the_machine(f["text"])]


def finds(psd, *words, **more):
    """Whether a line of it has all the words."""
    return any(all(word in line for word in words) for line in doctor(psd, "--every", "1s", **more).stdout.splitlines())


@pytest.fixture
def two_nodes(start_psd):
    ports = free_ports(2)
    cluster = ",".join(f"127.0.0.1:{port}" for port in ports)
    return [start_psd("--listen", f"127.0.0.1:{port}", "--cluster", cluster, "--node", str(i), "--shards", "1")
            for i, port in enumerate(ports)]


def test_nothing_is_wrong_with_what_is_well(two_nodes):
    assert findings(two_nodes[1]) == []
    got = doctor(two_nodes[1])
    assert all(is_of_the_machine(line) for line in got.stdout.splitlines() if not line.startswith("nothing is wrong: 2 nodes, 2 shards"))


@pytest.mark.parametrize("node, other, sentence", [
    (1, {"--shards": "2"}, "problem: nodes differ in shards, which must be equal, or they refuse workers: node 0 has 1, node 1 has 2"),
    (1, {"--cluster": "{1},{0}", "--node": "0"}, "problem: nodes differ in cluster, which must be equal"),
    (1, {"--node": "0"}, "problem: node 1: it says that it is node 0, and the list of the cluster has its address as node 1"),
    (0, {"--listen": "{2}"}, "warning: node 0: it listens on {2}, and others look for it at {0}"),
])
def test_nodes_that_contradict_each_other_are_named(start_psd, node, other, sentence):
    names = [f"127.0.0.1:{port}" for port in free_ports(3)]
    started = []
    for i in range(2):
        settings = {"--listen": names[i], "--cluster": "{0},{1}", "--node": str(i), "--shards": "1", **(other if i == node else {})}
        started.append(start_psd(*(word.format(*names) for setting in settings.items() for word in setting)))
    got = doctor(started[0], "--every", "100ms")
    assert sentence.format(*names) in got.stdout, got.stdout
    if "--listen" in other:
        assert f"cluster: its line 0, of this node, is {names[0]}, and this psd listens on {names[2]}" in started[0].log()


def test_a_node_that_is_killed_or_frozen_is_found_in_ten_seconds(two_nodes):
    two_nodes[1].process.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    got = doctor(two_nodes[0])
    took = time.monotonic() - begin
    two_nodes[1].process.send_signal(signal.SIGCONT)
    assert got.returncode == 1 and "problem: node 1: it does not answer: " in got.stdout and "no answer for 3000 ms" in got.stdout
    assert took < 10
    two_nodes[1].kill()
    got = doctor(two_nodes[0])
    assert got.returncode == 1 and "problem: node 1: it does not answer: " in got.stdout
    assert [severity for severity, _ in findings(two_nodes[0])] == ["problem"]


def psctl(*args):
    return subprocess.run([str(BIN / "psctl"), *args], capture_output=True, text=True, timeout=120)


def test_of_several_servers_the_first_that_answers_is_asked(two_nodes):
    dead, alive = (f"127.0.0.1:{psd.port}" for psd in two_nodes)
    both = f"{dead}, {alive}"
    assert "psctl itself" not in psctl("config", "--server", both).stdout and psctl("status", "--server", both).returncode == 0
    two_nodes[0].kill()
    got = psctl("tables", "--server", both, "--node", "1")
    assert (got.returncode, got.stderr) == (0, ""), got.stderr
    found = psctl("doctor", "--server", both, "--every", "100ms")
    assert found.returncode == 1 and re.search(f"^problem: node 0: it does not answer: psd at {dead}: Connection refused", found.stdout, re.M), found.stdout
    assert "problem: node 0" in psctl("watch", "doctor", "--server", both, "--every", "100ms", "--count", "1").stdout
    assert psctl("watch", "tables", "--server", both, "--node", "1", "--every", "100ms", "--count", "1").returncode == 0
    for command in (["promote"], ["switch"]):
        one = psctl(*command, "--server", both)
        assert one.returncode == 2 and "name that one alone" in one.stderr, one.stderr
    two_nodes[1].kill()
    got = psctl("tables", "--server", both)
    said = got.stderr.splitlines()
    assert got.returncode == 1 and len(said) == 2 and all(f"psd at {server}: Connection refused" in line for server, line in zip((dead, alive), said)), said
    found = psctl("doctor", "--server", both)
    assert found.returncode == 1 and found.stdout.count("problem: psd at 127.0.0.1:") == 2, found.stdout
    wrong = psctl("tables", "--server", f"{dead},nowhere")
    assert wrong.returncode == 2 and 'server: "nowhere" is no server address' in wrong.stderr


def test_a_worker_that_is_frozen_is_named_with_what_is_known_of_it(start_psd):
    psd = start_psd("--shards", "1", "--lease", "300s")
    with psd.connect() as fast, psd.connect() as slow:
        table = fast.table(name="emb", dim=4).number(3)
        for rank, (client, name) in enumerate([(fast, "the fast one"), (slow, "the slow one")]):
            assert client.join(job="criteo", rank=rank, n_workers=2, mode=wire.BSP, name=name).status == 0
        assert fast.push([1], floats(1, 2, 3, 4), table=table).status == 0
        fast.send(wire.pull_frame([1], table=table, clock=1, deadline_ms=60000, request_id=77))
        eventually(lambda: finds(psd, "job criteo: worker 1 (the slow one) is slow, 1 clock behind", "nothing was heard of it for"), 60)
        slow.push([1], floats(1, 2, 3, 4), table=table)
        assert fast.wait(77).status == 0
    eventually(lambda: not finds(psd, "is slow"), 60)


def test_a_hot_shard_is_named_with_its_table(start_psd):
    psd = start_psd("--shards", "2", "--lease", "300s")
    with worker_alone(psd, "criteo", "criteo/emb", 4) as (client, table):
        keys = wire.keys_of(0, 2, 500)
        assert client.push(keys, floats(1, 2, 3, 4) * 500, table=table).status == 0

        def pull(_):
            assert client.pull(keys, table=table).status == 0

        with meanwhile(pull):
            eventually(lambda: finds(psd, "warning: node 0: shard 0 is hot: ", "table criteo/emb is 100 % of it"), 60)


def test_a_disk_that_fills_is_found_before_it_is_full(start_psd, tmp_path):
    psd = start_psd("--shards", "1", "--data-dir", str(tmp_path / "d"))
    free = shutil.disk_usage(tmp_path).free
    if free < 2 << 30:
        pytest.skip("too little space to fill some of it")
    eventually(lambda: psd.stats()["disk"]["size_bytes"] > 0)
    try:
        with open(tmp_path / "filler", "wb") as filler:
            sizes = iter(range(free // 50, free // 2, free // 500))

            def is_found():
                """It goes on filling, as what other tests remove from the same disk meanwhile counts against it."""
                os.posix_fallocate(filler.fileno(), 0, next(sizes, free // 2))
                return finds(psd, "node 0: its disk is full in ", " at the rate of the last ",
                             "it is not psd's files that grow")

            eventually(is_found, 90)
    finally:
        (tmp_path / "filler").unlink()


def test_huge_pages_that_are_off_are_named(start_psd):
    """What the parent is denied its children are denied, too."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0:
        pytest.skip("this kernel has no switch for huge pages")
    try:
        psd = start_psd("--shards", "1")
    finally:
        prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)
    assert psd.stats()["huge_pages"] is False
    assert finds(psd, "warning: node 0: huge pages are off")


def test_memory_that_is_full_is_named(start_psd):
    psd = start_psd("--shards", "1", "--memory-max", "1M", "--lease", "300s")
    with worker_alone(psd, "criteo", "emb", 32) as (client, table):
        def push(clock):
            keys = range(1 + clock * 400, 401 + clock * 400)
            client.push(keys, floats(*[1] * 32) * 400, table=table, seq=clock + 1, clock=clock)

        with meanwhile(push):
            eventually(lambda: finds(psd, "node 0: its memory is full: "), 60)


def test_a_node_that_keeps_nothing_says_so(start_psd):
    psd = start_psd("--shards", "1", data=False)
    assert findings(psd) == [("note", "it keeps nothing on disk: a restart loses all rows (--data-dir)")]

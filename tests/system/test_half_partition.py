"""A worker that one of two nodes no longer hears: all shards come to one verdict about it, and nobody waits for longer than that takes."""
import os
import pathlib
import re
import select
import signal
import socket
import sys
import threading
import time

import pytest
from checkpoint import read_tables
from training import ROOT, finish, free_ports, psds, psworker, result, synth, wait_for  # noqa: F401

sys.path.append(str(ROOT / "tests/ha"))
from etcd import Etcd  # noqa: E402 (the path is set first)


def owner_of(peer, pids):
    """Which of the processes has this end of a connection on this machine."""
    local = "%08X:%04X" % (int.from_bytes(socket.inet_aton(peer[0]), "little"), peer[1])
    inodes = {f[9] for f in map(str.split, pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]) if f[1] == local}
    for pid in pids:
        for fd in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
            try:
                if (m := re.match(r"socket:\[(\d+)\]", os.readlink(fd))) and m[1] in inodes:
                    return pid
            except FileNotFoundError:
                pass
    return None


class Path:
    """The network before a node: connections to `port` go on to the node, until those of some processes are cut: their bytes stand still."""

    def __init__(self, node_port):
        self.node_port, self.port = node_port, free_ports(1)[0]
        self.listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self.pipes, self.pids, self.blocked = [], [], set()
        self.is_over = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def block(self, *pids):
        self.blocked = set(pids)

    def accept(self):
        client, peer = self.listener.accept()
        try:
            node = socket.create_connection(("127.0.0.1", self.node_port))
        except OSError:
            client.close()  # the node is not there yet
            return
        for s in client, node:  # small messages go at once, as those of psd and psworker do
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pipes.append((client, node, owner_of(peer, self.pids)))

    def move(self, ready):
        for pipe in list(self.pipes):
            client, node, _ = pipe
            for a, b in ((client, node), (node, client)):
                if a in ready:
                    try:
                        data = a.recv(1 << 16)
                        if data:
                            b.sendall(data)
                            continue
                    except OSError:
                        pass
                    client.close()
                    node.close()
                    self.pipes.remove(pipe)
                    break

    def run(self):
        while not self.is_over:
            forwarding = [s for client, node, pid in self.pipes if pid not in self.blocked for s in (client, node)]
            ready = select.select([self.listener, *forwarding], [], [], 0.02)[0]
            if self.listener in ready:
                self.accept()
            self.move(ready)

    def close(self):
        self.is_over = True
        self.thread.join()
        for client, node, _ in self.pipes:
            client.close()
            node.close()
        self.listener.close()


@pytest.fixture
def start_two_nodes(psds):
    """Two nodes of a shard; the path to the second one can be cut for some workers."""
    paths = []

    def start(*flags):
        listen = [f"127.0.0.1:{p}" for p in free_ports(2)]
        paths.append(Path(int(listen[1].split(":")[1])))
        cluster = f"{listen[0]},127.0.0.1:{paths[-1].port}"
        return [psds("--shards", 1, "--lease", "2s", "--cluster", cluster, "--node", i, *flags, listen=listen[i])
                for i in range(2)], paths[-1], cluster

    yield start
    for path in paths:
        path.close()


@pytest.fixture
def two_nodes(start_two_nodes):
    return start_two_nodes()


def workers_of(node):
    return {w["rank"]: w for s in node.stats()["shards"] for j in s["jobs"] for w in j["workers"]}


@pytest.fixture
def etcd(tmp_path):
    """etcd() starts one."""
    started = []

    def start():
        (tmp_path / "etcd").mkdir()
        started.append(Etcd(tmp_path / "etcd"))
        return started[-1]

    yield start
    for e in started:
        e.end()


@pytest.mark.parametrize("mode, coordination", [("ssp", ""), ("bsp", ""), ("ssp", "etcd"), ("bsp", "etcd that is away")])
def test_the_nodes_agree_about_a_worker_that_one_of_them_does_not_hear(start_two_nodes, etcd, tmp_path, mode, coordination):
    """The workers carry it from node to node: with etcd as without, and while etcd is away (server/cluster/README.md)."""
    service = etcd() if coordination else None
    nodes, path, cluster = start_two_nodes(*(("--coord", service.url()) if service else ()))
    data = synth(tmp_path / "log.tsv", 10000)
    flags = ("--data", data, "--servers", cluster, "--format", "criteo", "--mode", mode, "--staleness", 4, "--workers", 3, "--bottom", "32",
             "--top", "32", "--dim", "8", "--batch", "64", "--epochs", "10000", "--give-up", "60s", "--json", "-")
    workers = []
    for rank in range(3):
        workers.append(psworker("train", *flags, "--rank", rank))
        path.pids.append(workers[-1].pid)
    clock = lambda node, rank: workers_of(node).get(rank, {}).get("clock", 0)
    wait_for("progress of all", lambda: all(clock(node, rank) > 10 for node in nodes for rank in range(3)))

    if coordination == "etcd that is away":
        service.signal(signal.SIGSTOP, 0)
        wait_for("its absence", lambda: all(node.stats()["coordination"]["away"] for node in nodes))
    path.block(workers[2].pid)
    wait_for("both nodes' verdict", lambda: all(workers_of(node)[2]["state"] == "dead" for node in nodes))
    ended_at = {workers_of(node)[2]["clock"] for node in nodes}
    assert max(ended_at) - min(ended_at) <= 1  # what was under way when it was cut
    before = [clock(node, 0) for node in nodes]
    wait_for("more steps of the others", lambda: all(clock(node, rank) > before[i] + 20 for i, node in enumerate(nodes) for rank in range(2)))
    assert all(workers_of(node)[rank]["state"] == "live" for node in nodes for rank in range(2))

    path.block()  # it comes back, as a new incarnation, to both
    wait_for("its return", lambda: all(workers_of(node)[2]["state"] == "live" for node in nodes))
    assert len({workers_of(node)[2].get("incarnation") for node in nodes}) == 1
    for w in workers:
        w.send_signal(signal.SIGTERM)
    for w in workers:
        assert result(finish(w)[0])["stopped_early"]
    assert all(j["staleness_violations"] == 0 for node in nodes for s in node.stats()["shards"] for j in s["jobs"])


def train_two(nodes, path, cluster, data, disturb):
    """Two workers in lock step; what they say of themselves, and all rows in the end."""
    flags = ("--data", data, "--servers", cluster, "--format", "criteo", "--mode", "bsp", "--workers", 2, "--bottom", "32", "--top", "32",
             "--dim", "8", "--batch", "64", "--seed", 7, "--epochs", "12", "--give-up", "60s", "--json", "-")
    workers = []
    for rank in range(2):
        workers.append(psworker("train", *flags, "--rank", rank))
        path.pids.append(workers[-1].pid)
    disturb([w.pid for w in workers])
    said = [result(finish(w)[0]) for w in workers]
    for node in nodes:
        node.stop()
    return said, read_tables([node.data for node in nodes])


def test_a_node_that_hears_no_worker_for_a_while_combines_what_the_other_one_does(two_nodes, start_two_nodes, tmp_path):
    """All of its leases end; the workers come back one after another. The rows are those of a run that nothing has disturbed."""
    data = synth(tmp_path / "log.tsv", 10000)
    nodes, path, cluster = two_nodes
    state = lambda node: {rank: w["state"] for rank, w in workers_of(node).items()}

    def isolate(pids):
        wait_for("progress", lambda: all(workers_of(node).get(rank, {}).get("clock", 0) > 10 for node in nodes for rank in range(2)))
        path.block(*pids)
        wait_for("the end of all leases", lambda: set(state(nodes[1]).values()) == {"dead"})
        assert set(state(nodes[0]).values()) == {"live"}
        path.block(pids[1])  # the first one is back, and has to wait for the other one
        before = workers_of(nodes[1])[1]["clock"]
        wait_for("its return", lambda: state(nodes[1])[0] == "live")
        time.sleep(0.5)  # less than a lease
        assert workers_of(nodes[1])[0]["clock"] <= before + 1  # its push of the clock that the other one has not ended
        path.block()
        wait_for("both at work", lambda: min(w["clock"] for w in workers_of(nodes[1]).values()) > before + 5)

    said, rows = train_two(nodes, path, cluster, data, isolate)
    assert [[s[key] for key in ("rejoins", "workers_lost", "rows_untrained")] for s in said] == [[0, 0, 0]] * 2
    log = nodes[1].log.read_text()
    assert "this node has heard no worker of the job for a lease" in log and "counts again" in log
    assert rows == train_two(*start_two_nodes(), data, lambda pids: None)[1]

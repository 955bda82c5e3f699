"""Commands that ask all nodes of a cluster at once, and name each that does not answer."""

import json
import os
import re
import signal
import subprocess
import time

import pytest
import wire
from conftest import BIN, eventually
from test_pair import pair, standby_of  # noqa: F401
from training import free_ports
from wire import floats

pytestmark = pytest.mark.timeout(300)


def psctl(psd, *args):
    return subprocess.run([str(BIN / "psctl"), *args, "--server", f"127.0.0.1:{psd.port}"], capture_output=True, text=True, timeout=120)


def ask(psd, *args):
    got = psctl(psd, *args)
    assert (got.returncode, got.stderr) == (0, "")
    return got.stdout


@pytest.fixture
def nodes(start_psd):
    """Three nodes of one shard each, with a row on each, and a job of two workers."""
    ports = free_ports(3)
    cluster = ",".join(f"127.0.0.1:{port}" for port in ports)
    nodes = [start_psd("--listen", f"127.0.0.1:{port}", "--cluster", cluster, "--node", str(i), "--shards", "1", "--lease", "300s")
             for i, port in enumerate(ports)]
    for shard, node in enumerate(nodes):
        with node.connect() as client:
            table = client.table(name="criteo/emb", dim=4).number(3)
            assert client.join(job="criteo", rank=0, n_workers=2, name="the fast one").status == 0
            for i in range(shard + 1):
                keys = wire.keys_of(shard, 3, 1)
                assert client.push(keys, floats(1, 2, 3, 4), table=table, seq=i + 1, clock=i).status == 0
    eventually(lambda: [node.stats()["totals"]["counters"]["pushes"] for node in nodes] == [1, 2, 3])
    return nodes


@pytest.mark.parametrize("by", [0, 2])
def test_any_node_answers_for_all(nodes, by):
    status = ask(nodes[by], "status")
    assert status.startswith("cluster of 3 nodes: 3 answer, 3 are ready; 3 rows in ")
    assert re.findall(r", node (\d) of 3, ", status) == ["0", "1", "2"]
    assert [line.split()[:2] for line in status.splitlines()[-3:]] == [["0", "0"], ["1", "1"], ["2", "2"]]
    heads, row = (re.split(r"  +", line.strip()) for line in ask(nodes[by], "tables").splitlines())
    shown = dict(zip(heads, row))
    assert (shown["TABLE"], shown["ROWS"], shown["PUSHES"], shown["PUSHED"]) == ("criteo/emb", "3", "3", "6")
    jobs = ask(nodes[by], "jobs").splitlines()
    assert jobs[1].split()[:2] == ["criteo", "async"] and len(jobs) == 2
    workers = ask(nodes[by], "workers")
    assert workers.startswith("job criteo: ") and re.search(r"^ +0  \S+ +1 .*the fast one$", workers, re.M)
    assert [n["node"] for n in json.loads(ask(nodes[by], "tables", "--json"))["nodes"]] == [0, 1, 2]


def test_one_node_is_asked_alone(nodes):
    assert ", node 2 of 3, " in ask(nodes[0], "status", "--node", "2").splitlines()[0]
    assert json.loads(ask(nodes[0], "status", "--node", "1", "--json"))["node"] == 1
    assert "  3  " in ask(nodes[0], "tables", "--node", "2").splitlines()[1] + "  "
    assert ask(nodes[1], "why", "--node", "0").count("\n") >= 1
    got = psctl(nodes[0], "status", "--node", "3")
    assert (got.returncode, got.stdout) == (1, "")
    assert got.stderr == "psctl: node: found 3, expected 0 to 2, as the cluster has 3 nodes\n"


@pytest.mark.parametrize("command", ["status", "tables", "workers", "jobs", "why"])
def test_a_node_that_is_down_has_a_line_and_the_others_are_shown(nodes, command):
    nodes[1].kill()
    got = psctl(nodes[0], command)
    assert got.returncode == 1 and got.stdout
    assert got.stderr.startswith(f"psctl: node 1: psd at 127.0.0.1:{nodes[1].port}: ") and got.stderr.count("\n") == 1
    answers = json.loads(psctl(nodes[0], command, "-o", "json").stdout)["nodes"]
    assert ["error" in answer for answer in answers] == [False, True, False]
    assert psctl(nodes[0], command, "--node", "2").returncode == 0


def test_frozen_nodes_cost_one_deadline_together(nodes):
    for node in nodes[1:]:
        node.process.send_signal(signal.SIGSTOP)
    try:
        begin = time.monotonic()
        got = psctl(nodes[0], "status", "--timeout", "3s")
        took = time.monotonic() - begin
    finally:
        for node in nodes[1:]:
            node.process.send_signal(signal.SIGCONT)
    assert got.returncode == 1 and got.stdout.startswith("cluster of 3 nodes: 1 answers, 1 is ready; ")
    assert [line.split(":")[1] for line in got.stderr.splitlines()] == [" node 1", " node 2"] and "no answer for 3000 ms" in got.stderr
    assert took < 5.9  # not one behind the other


def test_a_node_whose_standby_serves_now_is_shown_and_the_other_member_named(pair):
    names = ["first", "second", "standby"]
    first, second, standby = (f"127.0.0.1:{pair.port(name)}" for name in names)
    nodes = [pair(name, "--cluster", f"{first},{second}", "--node", str(i)) for i, name in enumerate(names[:2])]
    for node in nodes:
        node.await_ready()
    other = standby_of(pair, "standby", "second")
    other.in_sync()
    assert psctl(nodes[1], "switch").returncode == 0
    nodes[1].in_sync()  # as the standby
    says = f"psctl: node 1: {second} is a standby now, of {standby}, which is shown\n"
    for command in ("status", "tables", "workers", "why"):
        got = psctl(nodes[0], command)
        assert (got.returncode, got.stderr) == (0, says), command
    shown = json.loads(psctl(nodes[0], "status", "--json").stdout)["nodes"]
    assert [node["address"] for node in shown] == [first, standby]
    assert psctl(nodes[1], "status", "--node", "1").stderr == ""  # that one is meant itself
    other.kill()
    assert "does not answer" in psctl(nodes[0], "status").stderr
@pytest.mark.parametrize("columns", [80, 120])
def test_what_is_shown_fits_the_terminal(nodes, columns):
    for command in (["status"], ["cluster"], ["tables"], ["workers"], ["jobs"], ["why"], ["config"], ["latency", "--every", "200ms"],
                    ["doctor", "--every", "200ms"], ["top", "--count", "1", "--every", "200ms"], ["watch", "status", "--count", "1"], ["checkpoint"]):
        got = subprocess.run([str(BIN / "psctl"), *command, "--server", f"127.0.0.1:{nodes[0].port}"], capture_output=True, text=True, timeout=120,
                             env={**os.environ, "COLUMNS": str(columns)})
        assert got.returncode == 0, got.stderr
        assert [line for line in got.stdout.splitlines() if len(line) > columns] == [], command


def test_each_command_that_asks_has_json(nodes):
    for command in (["status"], ["cluster"], ["tables"], ["workers"], ["jobs"], ["why"], ["config"], ["latency", "--every", "200ms"],
                    ["doctor", "--every", "200ms"], ["checkpoint"], ["row", "criteo/emb", str(wire.keys_of(0, 3, 1)[0])]):
        json.loads(ask(nodes[0], *command, "--json"))
    for command in (["top"], ["watch", "status"]):  # a line each time
        lines = ask(nodes[0], *command, "--json", "--count", "2", "--every", "200ms").splitlines()
        assert [set(json.loads(line)) >= {"nodes"} for line in lines] == [True, True]
    shards = json.loads(ask(nodes[0], "top", "--json", "--count", "1", "--every", "200ms"))["shards"]
    assert [shard["rows_per_s"] for shard in shards] == [0, 0, 0]

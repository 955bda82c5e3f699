"""What an operator sees at a terminal."""

import json
import re
import signal
import socket
import subprocess
import threading
import time

import pytest
import wire
from conftest import BIN, eventually
from training import free_ports, in_time, wait_for
from wire import floats

pytestmark = pytest.mark.timeout(300)


def psctl(*args, **more):
    return subprocess.run([str(BIN / "psctl"), *args], capture_output=True, text=True, timeout=120, **more)


def ask(psd, *args):
    got = psctl("--server", f"127.0.0.1:{psd.port}", *args)
    assert got.returncode == 0, got.stderr
    assert got.stderr == ""
    return got.stdout


def test_an_idle_node_says_so(start_psd):
    psd = start_psd("--shards", "2")
    status = ask(psd, "status").splitlines()
    assert status[0].startswith(f"psd 0.1.0 at 127.0.0.1:{psd.port}, node 0 of 1, pid {psd.process.pid}, up ")
    assert status[0].endswith(": ready, ok")
    assert [line.split()[0] for line in status[-3:]] == ["SHARD", "0", "1"]
    assert ask(psd, "tables") == "no table yet: the first job that needs one makes it\n"
    assert ask(psd, "workers") == "no job has come\n"
    assert ask(psd, "why") == "nothing waits\n"


def test_tables_workers_and_waits_are_shown_aligned(start_psd):
    psd = start_psd("--shards", "1", "--lease", "300s")
    with psd.connect() as fast, psd.connect() as slow:
        table = fast.table(name="emb", dim=4).number(3)
        for rank, (client, name) in enumerate([(fast, "the fast one"), (slow, "the slow one")]):
            assert client.join(job="criteo", rank=rank, n_workers=2, mode=wire.BSP, name=name).status == 0
        assert fast.push([1], floats(1, 2, 3, 4), table=table).status == 0
        fast.send(wire.pull_frame([1], table=table, clock=1, deadline_ms=50000, request_id=77))
        eventually(lambda: "parked pull" in ask(psd, "why"))
        wait = [line for line in ask(psd, "why").splitlines() if line.startswith("parked pull")]
        assert len(wait) == 1
        assert "job criteo, worker 0" in wait[0] and "min clock is 0, needs 1: worker 1" in wait[0]
        assert "; since " in wait[0] and wait[0].endswith(" s more at most")
        tables = ask(psd, "tables").splitlines()
        assert tables[0].split()[:4] == ["TABLE", "KIND", "DIM", "OPTIMIZER"]
        assert tables[1].split()[:4] == ["emb", "sparse", "4", "sgd"]
        assert tables[0].index("DIM") + 3 == tables[1].index(" 4 ") + 2
        eventually(lambda: re.search(r"^ +0  live +1 +0 .*the fast one$", ask(psd, "workers"), re.M))
        workers = ask(psd, "workers")
        assert workers.startswith("job criteo: bsp, min clock 0, 0 deaths, 0 fenced, 0 staleness violations\n")
        assert "the slow one" in workers
        assert slow.push([1], floats(1, 2, 3, 4), table=table).status == 0
        assert fast.wait(77).status == 0
    eventually(lambda: "parked pull" not in ask(psd, "why"))


def test_a_dense_table_has_only_the_heads_of_its_blocks_beside_its_weights_and_loses_none(start_psd):
    """Its free places and its index are there for good, and blocks that a refused push made were never rows."""
    psd = start_psd("--shards", "1", "--memory-max", "1M", "--lease", "300s")
    with psd.connect() as client:
        table = client.table(name="top", kind=wire.DENSE, dim=256, n_floats=256 << 11).number(3)
        assert client.join().status == 0
        assert client.push([0, 1, 2], floats(*[1] * 256) * 3, table=table).status == 0
        whole = client.push(range(1 << 11), floats(*[1] * 256) * (1 << 11), table=table, seq=2, clock=1)
        assert whole.status == wire.STATUS["EBUDGET"], whole.text
        eventually(lambda: psd.stats()["totals"]["requests"]["push"]["n_refused"] == 1)
    heads, row = (re.split(r"  +", line.strip()) for line in ask(psd, "tables").splitlines())
    shown = dict(zip(heads, row))
    assert (shown["TABLE"], shown["KIND"], shown["ROWS"], shown["REMOVED"]) == ("top", "dense", "3", "0")
    assert shown["OVERHEAD"] == "16.0 B"


def test_a_checkpoint_is_written_on_request(start_psd, tmp_path):
    psd = start_psd("--data-dir", str(tmp_path / "d"))
    assert ask(psd, "checkpoint").startswith("checkpoint 1 is written: full, 0 rows in ")
    assert ask(psd, "checkpoint").startswith("checkpoint 2 is written: ")
    assert (tmp_path / "d/checkpoints/00000000000000000002/MANIFEST").exists()
    assert "the last is number 2" in ask(psd, "status")


@pytest.fixture
def slow_psd(start_psd, tmp_path):
    """A node whose checkpoint takes about eight seconds."""
    psd = start_psd("--shards", "1", "--data-dir", str(tmp_path / "d"), "--checkpoint-rate", "128K", "--checkpoint-deltas", "0")
    with psd.connect() as client:
        table = client.table(name="t", dim=32).number(3)
        assert client.join().status == 0
        assert client.push(range(1, 2001), floats(*[1] * 64000), table=table).status == 0
    return psd


def test_a_checkpoint_is_waited_for_as_long_as_the_node_is_at_work(slow_psd):
    begin = time.monotonic()
    got = psctl("checkpoint", "--server", f"127.0.0.1:{slow_psd.port}", "--timeout", "4s")
    assert got.returncode == 0 and got.stdout.startswith("checkpoint 1 is written: full, 2000 rows in "), got.stderr
    assert time.monotonic() - begin > 5


def test_a_checkpoint_that_goes_on_behind_a_deadline_is_named(slow_psd, tmp_path):
    def stopped(n):
        asked = subprocess.Popen([str(BIN / "psctl"), "checkpoint", "--server", f"127.0.0.1:{slow_psd.port}", "--timeout", "4s"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        # psctl asks once a second how it stands: it knows the number.
        eventually(lambda: asked.poll() is not None or
                   re.search(f"number {n + 1} is being written, since [2-9] s$", ask(slow_psd, "status"), re.M))
        slow_psd.process.send_signal(signal.SIGSTOP)
        out, err = asked.communicate(timeout=120)
        slow_psd.process.send_signal(signal.SIGCONT)
        return (n + 1, out, err) if asked.returncode else None

    number, out, err = in_time(stopped)
    assert out == ""
    assert err == (f"psctl: psd at 127.0.0.1:{slow_psd.port}: no answer for 4000 ms; "
                   f"it was writing checkpoint {number}, which may still end well\n")
    eventually(lambda: (tmp_path / f"d/checkpoints/{number:020}/MANIFEST").exists())


def test_every_node_of_a_cluster_is_asked_for_a_checkpoint(start_psd, tmp_path):
    ports = free_ports(3)
    cluster = ",".join(f"127.0.0.1:{port}" for port in ports)
    nodes = [start_psd("--listen", f"127.0.0.1:{port}", "--cluster", cluster, "--node", str(i), "--shards", "1",
                       "--data-dir", str(tmp_path / str(i))) for i, port in enumerate(ports)]
    lines = ask(nodes[1], "checkpoint").splitlines()
    assert [line.split(" is written")[0] for line in lines] == [f"node {i}: checkpoint 1" for i in range(3)]
    answers = json.loads(ask(nodes[2], "checkpoint", "--json"))["nodes"]
    assert [(a["node"], a["number"]) for a in answers] == [(0, 2), (1, 2), (2, 2)]
    nodes[0].kill()
    got = psctl("checkpoint", "--server", f"127.0.0.1:{ports[1]}")
    assert got.returncode == 1
    assert [line.split(" is written")[0] for line in got.stdout.splitlines()] == ["node 1: checkpoint 3", "node 2: checkpoint 3"]
    assert got.stderr.startswith(f"psctl: node 0: psd at 127.0.0.1:{ports[0]}: ") and got.stderr.count("\n") == 1
    got = psctl("checkpoint", "--server", f"127.0.0.1:{ports[1]}", "--json")
    assert got.returncode == 1
    assert [(a["node"], a.get("number", "error" in a)) for a in json.loads(got.stdout)["nodes"]] == [(0, True), (1, 4), (2, 4)]


def test_waits_of_all_nodes_are_shown_whichever_is_asked(start_psd):
    ports = free_ports(3)
    cluster = ",".join(f"127.0.0.1:{port}" for port in ports)
    nodes = [start_psd("--listen", f"127.0.0.1:{port}", "--cluster", cluster, "--node", str(i), "--shards", "1", "--lease", "60s")
             for i, port in enumerate(ports)]
    assert ask(nodes[0], "why") == "nothing waits\n"
    with nodes[1].connect() as fast1, nodes[2].connect() as fast2:
        for shard, fast in [(1, fast1), (2, fast2)]:
            node, keys = nodes[shard], wire.keys_of(shard, 3, 1)
            table = fast.table(name="emb", dim=4).number(3)
            assert fast.join(job="criteo", rank=0, n_workers=2, mode=wire.BSP, name="the fast one").status == 0
            with node.connect() as slow:
                assert slow.join(job="criteo", rank=1, n_workers=2, mode=wire.BSP, name="the slow one").status == 0
            assert fast.push(keys, floats(1, 2, 3, 4), table=table).status == 0
            fast.send(wire.pull_frame(keys, table=table, clock=1, deadline_ms=60000, request_id=77))
        eventually(lambda: "parked pull: job criteo, worker 0 (the fast one), on 2 shards; " in ask(nodes[0], "why"))
        answers = json.loads(ask(nodes[0], "why", "--json"))["nodes"]
        parked = [(a["node"], [w["what"] for w in a["waits"]].count("parked pull")) for a in answers]
        assert parked == [(0, 0), (1, 1), (2, 1)]
        nodes[2].kill()
        got = psctl("why", "--server", f"127.0.0.1:{ports[0]}")
        assert got.returncode == 1 and "parked pull: job criteo, worker 0 (the fast one); " in got.stdout
        assert got.stderr.startswith(f"psctl: node 2: psd at 127.0.0.1:{ports[2]}: ") and got.stderr.count("\n") == 1
        assert f"node down: node 2 at 127.0.0.1:{ports[2]}; " in got.stdout and "just been started" in got.stdout
    eventually(lambda: psctl("why", "--server", f"127.0.0.1:{ports[0]}").stdout.splitlines()[1:]
               == ["nothing waits on the nodes that answer"])


def test_a_parked_pull_waits_no_longer_than_the_worker_that_it_waits_for_may(start_psd):
    """Half an hour is for the pull; who never joins is given up after --join-timeout."""
    psd = start_psd("--shards", "1", "--join-timeout", "60s", "--lease", "300s")
    with psd.connect() as client:
        table = client.table(name="emb").number(3)
        client.join(rank=0, n_workers=2, mode=wire.BSP)
        assert client.push([1], floats(1, 2, 3, 4), table=table).status == 0
        client.send(wire.pull_frame([1], table=table, clock=1, request_id=77))
        eventually(lambda: "parked pull" in ask(psd, "why"))
        now, waits = (lambda a: (a["now_unix_ms"], a["waits"]))(json.loads(ask(psd, "why", "--json")))
        parked = next(w for w in waits if w["what"] == "parked pull")
        expected = next(w for w in waits if w["what"] == "worker expected")
        assert 0 < parked["until_unix_ms"] - now <= 60000 and abs(parked["until_unix_ms"] - expected["until_unix_ms"]) < 1000
        text = ask(psd, "workers")
        assert re.search(r"0 +live .* 0 s ago|0 +live .* ago", text) and re.search(r"1 +expected .* never", text)
        first = psd.stats()["jobs"][0]["parked_ms"]
        eventually(lambda: psd.stats()["jobs"][0]["parked_ms"] > max(first, 300))  # while it waits
        before = psd.stats()["jobs"][0]["parked_ms"]
        with psd.connect() as other:
            assert other.join(rank=1, n_workers=2, mode=wire.BSP).status == 0
            assert other.push([], b"", seq=1, clock=0).status == 0
            assert client.wait(77).status == 0
        eventually(lambda: psd.stats()["jobs"][0]["parked_ms"] > before)
        assert psd.stats()["jobs"][0]["parked_ms"] < before + 60000  # and it is not counted twice


def test_a_checkpoint_without_a_data_directory_is_refused_with_a_sentence(start_psd):
    psd = start_psd(data=False)
    got = psctl("checkpoint", "--server", f"127.0.0.1:{psd.port}")
    assert got.returncode == 1 and got.stdout == ""
    assert "data-dir" in got.stderr and got.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["status", "tables", "workers", "why", "checkpoint"])
def test_json_is_the_answer_as_it_came(start_psd, command):
    psd = start_psd("--shards", "1")
    assert isinstance(json.loads(ask(psd, command, "--json")), dict)


def test_a_token_is_shown(start_psd, tmp_path):
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    token.chmod(0o600)
    psd = start_psd("--token-file", str(token))
    assert "ready, ok" in ask(psd, "status", "--token-file", str(token))
    got = psctl("status", "--server", f"127.0.0.1:{psd.port}")
    assert got.returncode == 1 and "token" in got.stderr and got.stderr.count("\n") == 1


def test_a_server_that_is_not_there_is_named():
    with wire.socket.socket() as taken:  # bound and not listening: nobody answers here
        taken.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        got = psctl("status", "--server", address, "--timeout", "2s")
    assert got.returncode == 1 and address in got.stderr and got.stderr.count("\n") == 1
    assert "Connection refused: no psd listens there, or it has just been started" in got.stderr


def test_a_host_name_that_does_not_exist_is_named_and_said_not_to_be_known(tmp_path):
    """.invalid is no name anywhere (RFC 2606)."""
    said = "nowhere.invalid:7070: its host name is not known"
    for flag, server in (("--server", "nowhere.invalid:7070"), ("--coord", "etcd://nowhere.invalid:7070/prod")):
        got = psctl("cluster", flag, server, "--timeout", "15s")
        assert got.returncode == 1 and said in got.stderr, got
    log = tmp_path / "psd.log"
    with open(log, "w", encoding="utf-8") as out:
        psd = subprocess.Popen([BIN / "psd", "--listen", "127.0.0.1:0", "--http", "", "--data-dir", tmp_path / "data", "--standby", "nowhere.invalid:7070",
                                "--coord", "etcd://nowhere.invalid:7070/prod"], stderr=out)
    try:
        wait_for("both sentences", lambda: f"standby of {said}" in log.read_text() and f"etcd at {said}" in log.read_text(), 60)
    finally:
        psd.kill()
        psd.wait()


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=lambda f: " ".join(f) or "plain")
def test_a_node_that_is_gone_when_it_is_asked_why_is_not_said_to_be_well(start_psd, flags):
    psd = start_psd("--shards", "1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def show_the_node_once():
            client = listener.accept()[0]
            with client, socket.create_connection(("127.0.0.1", psd.port)) as node:
                node.sendall(client.recv(4096))
                client.sendall(node.recv(65536))
                client.recv(1)  # its end
            listener.accept()[0].close()

        shown = threading.Thread(target=show_the_node_once)
        shown.start()
        got = psctl("why", "--server", "127.0.0.1:%d" % listener.getsockname()[1], *flags)
        shown.join()
    assert (got.returncode, got.stdout) == (1, "")
    assert got.stderr.startswith("psctl: psd at 127.0.0.1:") and got.stderr.count("\n") == 1


@pytest.mark.parametrize("args, words", [
    ([], "what to ask?"),
    (["tabels"], 'unknown command "tabels"'),
    (["tabels", "--check"], 'unknown command "tabels"'),
    (["--print-config", "tabels"], 'unknown command "tabels"'),
    (["verify", "--check"], "verify: expected psctl verify PATH[,PATH...]"),
    (["status", "--check", "--nodes", "2"], "status: has no use for --nodes"),
    (["status", "--sever", "x"], "--server"),
    (["status", "--timeout", "soon"], "--timeout"),
    (["status", "--timeout"], "--timeout"),
    (["status", "tables"], "tables"),
    (["status", "--server", "garbage"], 'server: "garbage" is no server address: expected HOST:PORT'),
    (["status", "--check", "--server", "garbage"], 'server: "garbage" is no server address: expected HOST:PORT'),
    (["--check", "--server", "127.0.0.1:99999"], 'server: "127.0.0.1:99999" is no server address'),
])
def test_a_wrong_question_ends_in_2_and_one_sentence(args, words):
    got = psctl(*args)
    assert got.returncode == 2 and got.stdout == ""
    assert words in got.stderr and got.stderr.startswith("psctl: ") and got.stderr.count("\n") == 1


@pytest.mark.parametrize("content, words", [(None, "No such file"), ("x" * 5000, "more than the")])
def test_a_token_file_that_cannot_be_used_is_named(tmp_path, content, words):
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
        path.chmod(0o600)
    got = psctl("status", "--token-file", str(path))
    assert got.returncode == 1 and words in got.stderr and got.stderr.count("\n") == 1


def test_a_token_file_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "token"
    path.write_text("open sesame\n")
    path.chmod(0o644)
    got = psctl("status", "--token-file", str(path))
    assert got.returncode == 1 and "every user of this machine" in got.stderr and got.stderr.count("\n") == 1


def test_a_server_is_checked_without_being_asked():
    got = psctl("status", "--check", "--server", "[::1]:7070")
    assert (got.returncode, got.stdout, got.stderr) == (0, "psctl: the settings are fine\n", "")


def test_help_and_version():
    assert psctl("--version").stdout == "psctl 0.1.0\n"
    got = psctl("--help")
    assert got.returncode == 0 and "\n  why  " in got.stdout and "what waits now" in got.stdout
    assert psctl("why", "--print-config").stdout.count("server = 127.0.0.1:7070") == 1

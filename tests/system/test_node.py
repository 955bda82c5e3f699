"""The life of one psd: start, signals, checkpoints, what it says when it cannot start."""

import itertools
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest
import wire
from conftest import BIN, Daemon, eventually
from training import free_ports
from wire import STATUS, Wire, floats, rows

pytestmark = pytest.mark.timeout(300)
GRAD = floats(1, 2, 3, 4)


def run(*args, **more):
    return subprocess.run([str(BIN / "psd"), *args], capture_output=True, text=True, timeout=120, **more)


def push_rows(psd, key_list, job="job"):
    """One push of GRAD to each key, on whatever shard it lives; returns the table's number."""
    for shard in range(psd.n_shards):
        mine = [key for key in key_list if wire.shard_of(key, psd.n_shards) == shard]
        with psd.connect(shard=shard) as client:
            table = client.table(name="rows").number(3)
            client.join(job=job)
            assert client.push(mine, GRAD * len(mine), table=table).status == 0
            assert client.leave().status == 0


def pull_rows(psd, key_list):
    found = {}
    for shard in range(psd.n_shards):
        mine = [key for key in key_list if wire.shard_of(key, psd.n_shards) == shard]
        with psd.connect(shard=shard, role="reader") as client:
            table = client.table(must_exist=True, name="rows")
            assert table.status == 0, table.text
            found.update(zip(mine, rows(client.pull(mine, table=table.number(3)))))
    return [found[key] for key in key_list]


KEYS = list(range(1, 200))


@pytest.mark.parametrize("n_shards", ["1", "3", "4"])
def test_a_restart_finds_the_rows_again_on_any_number_of_shards(start_psd, tmp_path, n_shards):
    data = str(tmp_path / "data")
    first = start_psd("--shards", "3", "--data-dir", data)
    push_rows(first, KEYS)
    assert first.stop() == 0
    second = start_psd("--shards", n_shards, "--data-dir", data)
    assert second.n_tables == 1
    assert pull_rows(second, KEYS) == [[-1, -2, -3, -4]] * len(KEYS)
    assert second.stop() == 0
    third = start_psd("--shards", n_shards, "--data-dir", data, "--no-restore")
    assert third.n_tables == 0


def test_a_killed_psd_starts_from_the_checkpoint_that_an_operator_asked_for(start_psd, tmp_path):
    data = tmp_path / "data"
    psd = start_psd("--shards", "2", "--data-dir", str(data))
    push_rows(psd, KEYS)
    answer = psd.admin("checkpoint")
    assert answer["number"] == 1 and answer["rows"] == len(KEYS) and answer["bytes"] > 0
    push_rows(psd, KEYS, job="lost")
    psd.kill()
    shutil.rmtree(data / "log")  # else it has what it had time to write
    psd = start_psd("--shards", "2", "--data-dir", str(data), "--at", "intact")
    assert pull_rows(psd, KEYS) == [[-1, -2, -3, -4]] * len(KEYS)


def test_checkpoints_are_taken_by_the_clock_and_old_ones_removed(start_psd, tmp_path):
    data = tmp_path / "data"
    psd = start_psd("--shards", "1", "--data-dir", str(data), "--checkpoint-every", "100ms", "--checkpoint-deltas", "0", "--keep", "2")
    eventually(lambda: psd.stats()["checkpoints"]["done"] >= 4)
    assert len(list((data / "checkpoints").iterdir())) <= 3  # one may be in the making


def test_nodes_of_a_cluster_restore_alone_or_together(start_psd, tmp_path):
    nodes = [f"127.0.0.1:{port}" for port in free_ports(2)]
    args = ["--cluster", ",".join(nodes), "--shards", "2"]
    pair = [start_psd(*args, "--node", str(i), "--listen", nodes[i], "--data-dir", str(tmp_path / f"n{i}"))
            for i in range(2)]
    maps = []
    for i, node in enumerate(pair):
        with Wire(node.port) as client:
            answer = client.hello(shard=wire.LISTENER)
            assert [n.decode() for n in answer.fields[4]] == nodes and answer.number(5) == i
            maps.append(answer.number(7))
    assert maps[0] == maps[1]
    for shard in range(4):
        with pair[shard // 2].connect(shard=shard % 2) as client:
            mine = [key for key in KEYS if wire.shard_of(key, 4) == shard]
            table = client.table(name="rows").number(3)
            client.join()
            assert client.push(mine, GRAD * len(mine), table=table).status == 0
    assert [node.stop() for node in pair] == [0, 0]
    alone = run("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "n1"), "--shards", "2")
    assert alone.returncode == 1 and "--restore" in alone.stderr and "node 1 of 2" in alone.stderr
    half = run("--listen", "127.0.0.1:0", "--restore", str(tmp_path / "n1"), "--shards", "2")
    assert half.returncode == 1 and "one of 2 nodes" in half.stderr
    both = start_psd("--restore", f"{tmp_path / 'n0'},{tmp_path / 'n1'}", "--shards", "3")
    assert pull_rows(both, KEYS) == [[-1, -2, -3, -4]] * len(KEYS)


def test_damaged_checkpoints_stop_the_start_with_a_sentence(start_psd, tmp_path):
    data = tmp_path / "data"
    psd = start_psd("--shards", "1", "--data-dir", str(data))
    push_rows(psd, KEYS)
    assert psd.stop() == 0
    part = next((data / "checkpoints").glob("*/shard-000.psc"))
    blob = bytearray(part.read_bytes())
    blob[len(blob) // 2] ^= 1
    part.write_bytes(blob)
    shutil.rmtree(data / "log")  # with it nothing would be lost
    for shards in ("1", "2"):
        again = run("--listen", "127.0.0.1:0", "--shards", shards, "--data-dir", str(data))
        assert again.returncode == 1 and "a chunk fails its checksum" in again.stderr
        assert "the write-ahead log alone does not lead there; --no-restore starts empty" in again.stderr


def test_two_daemons_do_not_share_a_data_directory(start_psd, tmp_path):
    psd = start_psd("--data-dir", str(tmp_path / "data"))
    second = run("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    assert second.returncode == 1
    assert f"in use by the psd with pid {psd.process.pid}" in second.stderr


def test_a_port_in_use_is_reported_in_a_sentence(start_psd, tmp_path):
    psd = start_psd()
    second = run("--listen", f"127.0.0.1:{psd.port}")
    assert second.returncode == 1
    assert f"cannot listen on 127.0.0.1:{psd.port}" in second.stderr and len(second.stderr.splitlines()) == 1
    third = run("--listen", "127.0.0.1:0", "--http", psd.http)
    assert third.returncode == 1 and psd.http in third.stderr
    fourth = run("--listen", f"127.0.0.1:{psd.port}", "--data-dir", str(tmp_path / "new"))
    assert fourth.returncode == 1 and "cannot listen" in fourth.stderr and not (tmp_path / "new").exists()


def test_a_start_that_finds_its_port_in_use_has_done_nothing(start_psd, tmp_path):
    """Also not what it was told to do once: go back to an older state."""
    data = tmp_path / "data"
    psd = start_psd("--data-dir", str(data))
    for _ in range(2):
        push_rows(psd, [1, 2, 3])
        psd.admin("checkpoint")
    assert psd.stop() == 0
    before = {p: p.read_bytes() for p in data.rglob("*") if p.is_file() and p.name != "LOCK"}
    other = start_psd()
    for args in (("--listen", f"127.0.0.1:{other.port}"), ("--listen", "127.0.0.1:0", "--http", other.http)):
        failed = run(*args, "--data-dir", str(data), "--at", "1")
        assert failed.returncode == 1 and "cannot listen" in failed.stderr, failed.stderr
    assert {p: p.read_bytes() for p in data.rglob("*") if p.is_file() and p.name != "LOCK"} == before


def test_without_arguments_it_says_what_to_type():
    bare = run()
    assert bare.returncode == 2 and "--dev" in bare.stderr and len(bare.stderr.splitlines()) == 1


MISUSE = [
    (["--listen", "7070"], 2, "listen"),
    (["--listen", "::1:7070"], 2, "listen"),
    (["--listen", "127.0.0.1:70700"], 2, "listen"),
    (["--listen", "127.0.0.1:http"], 2, "listen"),
    (["--shards", "1025"], 2, "shards"),
    (["--shards", "-1"], 2, "shards"),
    (["--memory-max", "lots"], 2, "memory-max"),
    (["--memory-reserve", "999T"], 1, "were to be reserved"),
    (["--lease", "10"], 2, "lease"),
    (["--frame-max", "1"], 2, "frame-max"),
    (["--http", "nowhere"], 2, "http"),
    (["--log-level", "loud"], 2, "log-level"),
    (["--token-file", "/nonexistent"], 2, "token-file"),
    (["--token", "x" * 200], 2, "token"),
    (["--token", "x"], 2, "8 to 127 characters"),
    (["--listen", "0.0.0.0:0"], 2, "there is no token"),
    (["--listen", "[::]:0", "--check"], 2, "there is no token"),
    (["--cluster", "a:1,b"], 2, "cluster"),
    (["--checkpoint-every", "5s"], 2, "data-dir"),
    (["--no-restore", "--restore", "x"], 2, "restore"),
    (["--cluster", "a:1,b:2", "--node", "2"], 2, "node"),
    (["--cluster", "a:1,a:1"], 1, "twice"),
    (["--cluster", "a:1,a:1", "--check"], 1, "cluster: a:1 stands in the list twice"),
    (["--cluster", "a:1,b:1", "--advertise", "b:1", "--check"], 1, "advertise: found b:1, but node 0 of the cluster list is a:1"),
    (["--cluster", "a:1,b:2", "--advertise", "c:3"], 1, "advertise"),
    (["--restore", "/nonexistent"], 1, "/nonexistent"),
    (["--data-dir", "/proc/no"], 1, "data-dir"),
    (["--listen", "no-such-host.invalid:1"], 1, "no-such-host.invalid"),
]


@pytest.mark.parametrize("args,status,words", MISUSE, ids=[" ".join(a)[:40] for a, _, _ in MISUSE])
def test_a_setting_that_is_wrong_is_reported_in_one_sentence(args, status, words):
    listen = [] if "--listen" in args else ["--listen", "127.0.0.1:0"]
    got = run(*listen, *args)
    assert (got.returncode, len(got.stderr.splitlines())) == (status, 1), got.stderr
    assert words in got.stderr


def has_localhost():
    try:
        return bool(socket.getaddrinfo("localhost", 0))
    except OSError:
        return False


@pytest.mark.skipif(not has_localhost() and not os.environ.get("CI"), reason="localhost has no address here: /etc/hosts is missing")
def test_ipv6_names_and_the_config_file_are_understood(start_psd, tmp_path):
    config = tmp_path / "psd.conf"
    config.write_text("[node]\nlisten = localhost:0\nshards = 1\n")
    psd = Daemon(["--config", str(config), "--http", "[::1]:0"], tmp_path)
    with urllib.request.urlopen(f"http://{psd.http}/readyz", timeout=60) as page:
        assert page.status == 200
    assert psd.n_shards == 1 and psd.stop() == 0
    psd = Daemon(["--config", str(config), "--listen", "[::1]:0", "--http", "127.0.0.1:0"], tmp_path)
    with Wire(psd.port, host="::1") as client:
        assert client.hello().status == 0
    assert psd.stop() == 0


def test_sigterm_refuses_waiting_peers_and_keeps_what_was_acknowledged(start_psd, tmp_path):
    data = str(tmp_path / "data")
    psd = start_psd("--shards", "1", "--data-dir", data)
    with psd.connect() as client:
        table = client.table(name="rows").number(3)
        client.join(n_workers=2, mode=wire.SSP)
        assert client.push([1], GRAD, table=table).status == 0
        client.send(wire.pull_frame([1], table=table, clock=1, request_id=77))
        assert client.beat().status == 0
        psd.terminate()
        assert client.wait(77).status == STATUS["ESTOPPING"]
        assert client.is_closed()
    assert psd.stop() == 0
    again = start_psd("--shards", "1", "--data-dir", data)
    assert pull_rows(again, [1]) == [[-1, -2, -3, -4]]


def test_sighup_reads_the_settings_again(start_psd, tmp_path):
    """A new secret counts for who comes, not for who is there; a bad file changes nothing."""
    conf, secret = tmp_path / "psd.conf", tmp_path / "token"
    secret.write_text("first-secret\n")
    secret.chmod(0o600)
    conf.write_text(f"token-file = {secret}\nlog-max = 1G\nlease = 60s\n")
    psd = start_psd("--config", str(conf), "--shards", "1")

    def reload(sentence):
        psd.process.send_signal(signal.SIGHUP)
        eventually(lambda: sentence in psd.log())

    def greeted(token):
        with wire.Wire(psd.port) as client:
            return client.hello(token=token).status

    with psd.connect(token="first-secret") as there:
        assert there.join().status == 0
        secret.write_text("other-secret\n")
        conf.write_text(f"token-file = {secret}\nlog-max = 2G\nlease = 50s\nconnections-max = 5000\n")
        reload("in force now: connections-max, log-max, the secret in token-file")
        assert "SIGHUP: changed, and in force after a restart: lease" in psd.log()
        assert [greeted("first-secret"), greeted("other-secret")] == [STATUS["EGREETING"], 0]
        assert there.beat().status == 0
        conf.write_text(f"token-file = {secret}\nlog-max = much\n")
        reload(f'all settings stay as they are: {conf}:2: log-max: "much" is not a size')
        assert there.beat().status == 0


def test_a_client_learns_the_service_manager_protocol(tmp_path):
    """READY=1 once it serves, WATCHDOG=1 while all shards live, STOPPING=1 on the way out."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(120)
        process = subprocess.Popen([str(BIN / "psd"), "--listen", "127.0.0.1:0", "--shards", "2"], cwd=tmp_path,
                                   env={**os.environ, "NOTIFY_SOCKET": path, "WATCHDOG_USEC": "400000"},
                                   stderr=subprocess.DEVNULL)
        seen = ""
        while not ("READY=1" in seen and "WATCHDOG=1" in seen):
            seen += manager.recv(4096).decode() + "\n"
        assert "STATUS=listening on 127.0.0.1:" in seen
        process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in seen:
            seen += manager.recv(4096).decode() + "\n"
        assert process.wait(120) == 0


def test_it_ends_when_the_watchdog_aborts_it(tmp_path):
    """SIGABRT is what systemd sends to a psd that stands still; SIGKILL comes behind TimeoutStopSec only."""
    process = subprocess.Popen([str(BIN / "psd"), "--listen", "127.0.0.1:0", "--http", "off"], cwd=tmp_path, text=True, stderr=subprocess.PIPE,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
    try:
        assert "psd ready" in process.stderr.readline()
        process.send_signal(signal.SIGABRT)
        assert "aborted: by the watchdog" in process.communicate(timeout=60)[1]
        assert process.returncode == -signal.SIGABRT
    finally:
        process.kill()
        process.wait()


def test_a_worker_that_falls_silent_no_longer_holds_the_others_up(start_psd):
    psd = start_psd("--shards", "1", "--lease", "3s")  # so long nobody keeps this process from beating
    with psd.connect() as fast, psd.connect() as silent:
        table = fast.table(name="rows").number(3)
        fast.join(n_workers=2, mode=wire.BSP)
        silent.join(rank=1, n_workers=2, mode=wire.BSP)
        assert fast.push([1], GRAD, table=table).status == 0
        fast.send(wire.pull_frame([1], table=table, clock=1, request_id=50))
        answer = None
        while answer is None:
            fast.beat()
            answer = fast.kept.pop(50, None)
        assert answer.status == 0 and rows(answer) == [[-1, -2, -3, -4]]
        assert silent.beat().status == STATUS["EFENCED"]
        eventually(lambda: fast.beat().status == 0 and
                   [w["state"] for w in psd.admin("workers")["jobs"][0]["workers"]] == ["live", "dead"])


def test_an_awaited_worker_is_listed_with_a_deadline(start_psd):
    psd = start_psd("--shards", "1", "--lease", "1s", "--join-timeout", "300s")
    with psd.connect() as client:
        seen, incarnations = {}, itertools.count(1)

        def both():
            # It is listed for half a lease: whoever looks too late has it come again.
            if client.join(job="j", n_workers=2, mode=wire.BSP, name="the silent one", incarnation=next(incarnations)).status == 0:
                time.sleep(0.8)  # its silence is the case
            seen.update((wait["what"], wait) for wait in psd.admin("why")["waits"])
            return {"worker expected", "worker silent"} <= set(seen)

        eventually(both)
        assert seen["worker expected"]["who"].startswith("job j, worker 1")
        assert "the silent one" in seen["worker silent"]["who"]
        for wait in seen.values():
            assert wait["since_unix_ms"] < wait["until_unix_ms"]


def test_a_daemon_that_was_stopped_for_longer_than_the_lease_buries_nobody(start_psd):
    psd = start_psd("--shards", "1", "--lease", "3s")
    with psd.connect() as client:
        client.table(name="rows")
        client.join()
        psd.process.send_signal(signal.SIGSTOP)
        time.sleep(3.6)  # the wait is the case: the lease has to be over
        psd.process.send_signal(signal.SIGCONT)
        psd.admin("status")  # so that it has looked at its leases before the beat
        assert client.beat().status == 0


def test_the_pages_answer_while_it_serves(start_psd):
    psd = start_psd("--shards", "2")
    push_rows(psd, KEYS)
    for page, words in [("/", "psd"), ("/stats", '"shards"'), ("/metrics", "# TYPE"), ("/healthz", "ok"), ("/readyz", "")]:
        with urllib.request.urlopen(f"http://{psd.http}{page}", timeout=60) as answer:
            assert answer.status == 200 and words in answer.read().decode()
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://{psd.http}/nothing", timeout=60)
    eventually(lambda: psd.stats()["totals"]["rows"] == len(KEYS))
    assert json.dumps(psd.admin("tables")).count('"rows"') >= 1


def test_a_daemon_out_of_descriptors_serves_again_when_some_are_free(start_psd):
    psd = start_psd("--shards", "1")
    # What psd opens by itself, it has closed again: the count is its own, and nothing of it is refused below.
    eventually(lambda: b"psd_disk_bytes 0\n" not in urllib.request.urlopen(f"http://{psd.http}/metrics", timeout=60).read())
    n_open = len(os.listdir(f"/proc/{psd.process.pid}/fd"))
    _, most = resource.prlimit(psd.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(psd.process.pid, resource.RLIMIT_NOFILE, (n_open + 4, most))
    clients = []
    for _ in range(20):
        try:
            clients.append(Wire(psd.port, timeout=5))
            clients[-1].hello()
        except (wire.Closed, OSError):
            pass
    for client in clients:
        client.close()

    def serves():
        try:
            with Wire(psd.port) as client:
                return client.hello().status == 0
        except wire.Closed:
            return False

    eventually(serves)
    resource.prlimit(psd.process.pid, resource.RLIMIT_NOFILE, (1024, most))

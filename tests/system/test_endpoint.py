"""The stats endpoint of a node at work."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest
import wire
from conftest import BIN, eventually
from wire import floats

pytestmark = pytest.mark.timeout(300)
GRAD = floats(1, 2, 3, 4)


def get(psd, path, method="GET"):
    request = urllib.request.Request(f"http://{psd.http}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode(), e.headers


def work(psd):
    """Two workers of a bounded-staleness job, some pushes and pulls, a refusal, a malformed frame, a refused HELLO."""
    keys = wire.keys_of(0, psd.n_shards, 3)
    with psd.connect() as a, psd.connect() as b:
        table = a.table(name="emb", dim=4).number(3)
        for rank, client in enumerate([a, b]):
            assert client.join(job="criteo", rank=rank, n_workers=2, mode=wire.SSP, bound=2).status == 0
        for clock in range(2):
            assert a.push(keys, GRAD * 3, table=table, seq=clock + 1, clock=clock).status == 0
            assert a.pull(keys, table=table, clock=clock + 1).status == 0
        assert b.push(keys, floats(float("nan"), 0, 0, 0) * 3, table=table).status == wire.STATUS["ENAN"]
        assert b.pull(keys, table=table, clock=1, codec=wire.INT8).status == 0
        with psd.connect() as bad:
            bad.send(b"X" * 24)
            assert bad.is_closed()
        with wire.Wire(psd.port) as nobody:
            assert nobody.hello(role="king").status != 0
        eventually(lambda: psd.stats()["totals"]["n_waits"] == 0 and psd.stats()["totals"]["requests"]["pull"]["n"] == 3
                   and psd.stats()["totals"]["net"]["malformed_frames"] == 1 and psd.stats()["totals"]["net"]["refused_greetings"] == 1)
        return psd.stats(), get(psd, "/metrics")[1]


def test_stats_report_what_the_workers_did(start_psd):
    psd = start_psd("--shards", "2", "--lease", "300s")
    stats, _ = work(psd)
    total = stats["totals"]
    assert [s["shard"] for s in stats["shards"]] == [0, 1]
    assert total["rows"] == stats["shards"][0]["rows"] == 3
    assert total["bytes"] >= stats["tables"][0]["bytes"] > 0
    assert total["live_workers"] == 2
    push, pull = total["requests"]["push"], total["requests"]["pull"]
    assert (push["n"], push["n_refused"], pull["n"], pull["n_refused"]) == (3, 1, 3, 0)
    assert 0 < pull["p50_ns"] <= pull["p99_ns"] <= pull["max_ns"]
    assert total["codecs"]["fp32"] == {"bytes_in": 2 * 48, "bytes_out": 2 * 48}  # what was refused does not count
    assert total["codecs"]["int8"]["bytes_out"] == 3 * 8
    assert total["net"]["malformed_frames"] == 1 and total["net"]["refused_greetings"] == 1
    assert total["counters"]["nan_pushes"] == 1 and "NaN" in total["last_refusal"]["text"]
    job = stats["jobs"][0]
    assert (job["name"], job["mode"], job["bound"], job["staleness_violations"]) == ("criteo", "ssp", 2, 0)
    assert job["staleness"] == {"0": 1, "1": 1, "2": 1} or sum(job["staleness"].values()) == 3
    assert job["staleness_max"] <= 2
    assert stats["waits"] == []


def test_promtool_has_no_complaint_about_the_metrics_of_a_node_at_work(start_psd):
    if not shutil.which("promtool") and not os.environ.get("CI"):
        pytest.skip("promtool is missing: apt-get install prometheus (it brings a service along)")
    psd = start_psd("--shards", "2", "--lease", "300s")
    _, metrics = work(psd)
    got = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True, timeout=120)
    assert (got.returncode, got.stdout, got.stderr) == (0, "", "")
    assert 'psd_requests_refused_total{shard="0",type="push"} 1\n' in metrics
    assert 'psd_job_staleness_violations_total{shard="0",job="criteo"} 0\n' in metrics
    families = [line.split()[2] for line in metrics.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families)) > 40


def test_health_readiness_and_what_is_not_there(start_psd):
    psd = start_psd()
    assert get(psd, "/healthz")[:2] == (200, "ok\n")
    assert get(psd, "/readyz")[:2] == (200, "ready\n")
    status, text, _ = get(psd, "/nothing")
    assert status == 404 and text.startswith("no such page") and text.count("\n") == 1
    status, text, headers = get(psd, "/stats", "DELETE")
    assert status == 405 and headers["Allow"] == "GET, HEAD" and text.startswith("read-only")
    status, text, headers = get(psd, "/stats", "HEAD")
    assert status == 200 and text == "" and int(headers["Content-Length"]) > 100


def test_the_page_of_another_site_may_not_read_along(start_psd):
    """DNS rebinding: its name leads to this node by now, but its browser still says whom it asks for."""
    psd = start_psd("--http-hosts", "stats.example")
    for host, code in (("evil.example", 403), ("stats.example:80", 200), ("localhost", 200), (psd.http, 200),
                       ("[::1].evil.example", 403), ("1:evil.example", 403), ("evil\texample", 403)):
        request = urllib.request.Request(f"http://{psd.http}/stats", headers={"Host": host})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.status == code, host
        except urllib.error.HTTPError as e:
            with e:
                assert e.code == code, host
    _, page, headers = get(psd, "/")
    assert "script-src 'self'" in headers["Content-Security-Policy"] and "unsafe" not in headers["Content-Security-Policy"]
    assert page.count("<script") == page.count('<script src="') == 3 and "<style" not in page


def test_a_failed_checkpoint_turns_health_red_and_the_next_good_one_green(start_psd, tmp_path):
    data = tmp_path / "d"
    psd = start_psd("--data-dir", str(data))
    (data / "checkpoints").write_text("a file where a directory must be")
    with psd.connect(wire.LISTENER, "operator") as client:
        answer = client.admin("checkpoint")
        assert answer.status != 0 and "checkpoints" in answer.text
        eventually(lambda: get(psd, "/healthz")[0] == 503)
        assert get(psd, "/healthz")[1].startswith("the last checkpoint failed: ")
        (data / "checkpoints").unlink()
        assert client.admin("checkpoint").status == 0
        eventually(lambda: get(psd, "/healthz")[0] == 200)


def test_the_last_checkpoint_is_known_after_a_restart(start_psd, tmp_path):
    def metric(psd, name):
        return float(re.search(rf"^{name} (\S+)$", get(psd, "/metrics")[1], re.M)[1])

    data = str(tmp_path / "d")
    psd = start_psd("--data-dir", data)
    with psd.connect() as client:
        table = client.table(name="emb", dim=4).number(3)
        client.join()
        client.push(wire.keys_of(0, psd.n_shards, 2), GRAD * 2, table=table)
    assert psd.stop() == 0
    again = start_psd("--data-dir", data)
    assert any(re.search(r"loading .*: checkpoint 1 of \d+ bytes, and the write-ahead log", line) for line in again.lines)
    last = again.stats()["checkpoints"]
    assert (last["done"], last["last_number"], last["last_rows"], last["last_took_ms"]) == (0, 1, 2, 0)
    assert last["last_bytes"] > 100 and abs(time.time() - last["last_unix_ms"] / 1000) < 300
    assert metric(again, "psd_last_checkpoint_timestamp_seconds") == pytest.approx(last["last_unix_ms"] / 1000)
    again.admin("checkpoint")
    eventually(lambda: again.stats()["checkpoints"]["last_number"] == 2)
    assert metric(again, "psd_last_checkpoint_bytes") > 0 and "psd_last_checkpoint_duration_seconds" in get(again, "/metrics")[1]


def test_the_process_and_its_disk_are_measured(start_psd, tmp_path):
    psd = start_psd("--shards", "1", "--data-dir", str(tmp_path / "d"))
    psd.data_dir = tmp_path / "d"
    stats, text = work(psd)
    metrics = dict(re.findall(r"^(\w+) (\S+)$", text, re.M))
    assert int(float(metrics["process_open_fds"])) == pytest.approx(len(os.listdir(f"/proc/{psd.process.pid}/fd")), abs=3)
    assert float(metrics["process_max_fds"]) > 100 and float(metrics["process_cpu_seconds_total"]) > 0
    assert float(metrics["process_threads"]) >= 3
    assert float(metrics["process_virtual_memory_bytes"]) > float(metrics["process_resident_memory_bytes"]) > 1e6
    assert 0 < float(metrics["psd_disk_free_bytes"]) < float(metrics["psd_disk_bytes"])
    assert stats["disk"]["size_bytes"] == float(metrics["psd_disk_bytes"])
    assert " free of " in subprocess.run([BIN / "psctl", "status", "--server", f"127.0.0.1:{psd.port}"], capture_output=True, text=True).stdout
    assert stats["totals"]["requests"]["push"]["n_minute"] == stats["totals"]["requests"]["push"]["n"]
    assert psd.admin("why")["waits"] == [] and metrics["psd_waits"] == "0"
    for old, new in ("psd_log_records", "psd_log_records_total"), ("psd_shard_version", "psd_shard_changes_total"):
        assert f"# HELP {old} Deprecated: {new}." in text and f"# TYPE {new} counter" in text


def test_metrics_count_a_parked_pull_among_the_waits(start_psd):
    def waits():
        return re.search(r"^psd_waits (\S+)$", get(psd, "/metrics")[1], re.M)[1]

    psd = start_psd("--shards", "2", "--lease", "300s")
    keys = wire.keys_of(0, 2, 1)
    with psd.connect() as fast, psd.connect() as slow:
        table = fast.table(name="emb", dim=4).number(3)
        for rank, client in enumerate([fast, slow]):
            assert client.join(job="criteo", rank=rank, n_workers=2, mode=wire.BSP).status == 0
        assert fast.push(keys, GRAD, table=table).status == 0
        eventually(lambda: waits() == "0")
        fast.send(wire.pull_frame(keys, table=table, clock=1, request_id=77))
        eventually(lambda: waits() == "1")
        assert [w["what"] for w in psd.admin("why")["waits"]] == ["parked pull"]
        assert slow.push(keys, GRAD, table=table).status == 0
        assert fast.wait(77).status == 0
        eventually(lambda: waits() == "0")


def test_what_a_restart_has_replayed_has_not_joined(start_psd, tmp_path):
    data = str(tmp_path / "d")
    psd = start_psd("--shards", "1", "--data-dir", data, "--lease", "300s")
    with psd.connect() as a, psd.connect() as b:
        a.join(job="stays"), b.join(job="goes")
        assert b.ask("leave", wire.head((1, 0))).status == 0
        eventually(lambda: any("job goes: worker 0 has left" in line for line in psd.lines))
        psd.kill()
    again = start_psd("--shards", "1", "--data-dir", data, "--lease", "300s")
    with again.connect() as c:
        c.join(job="new")
        eventually(lambda: any("job new: worker 0 has joined" in line for line in again.lines))
    assert not [line for line in again.lines if "has left" in line or "job stays: worker" in line]
    assert any("job stays: restored at min clock 0; 1 of its 1 workers were live" in line for line in again.lines)


class Listener:
    """Asks for events, and takes none."""

    def __init__(self, psd, receive_bytes=0):
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        host, port = psd.http.split(":")
        self.socket.connect((host, int(port)))
        self.socket.sendall(f"GET /events HTTP/1.1\r\nHost: {psd.http}\r\n\r\n".encode())

    def has_come(self):
        try:
            return self.socket.recv(1 << 20, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""

    def is_taken(self):
        eventually(self.has_come)
        if self.has_come().startswith(b"HTTP/1.1 200"):
            return True
        self.socket.close()
        return False


def test_listeners_that_do_not_read_hold_nobody_up_and_one_too_many_is_refused(start_psd):
    psd = start_psd("--shards", "1")
    with contextlib.ExitStack() as open_ones:
        def listen(receive_bytes):
            one = Listener(psd, receive_bytes)
            open_ones.callback(one.socket.close)
            return one

        listeners = [listen(2048 if i else 0) for i in range(32)]  # but for one they are full at once
        assert all(one.is_taken() for one in listeners)
        for n in range(1, 4):  # also while events are made that nobody takes
            eventually(lambda: listeners[0].has_come().count(b"data: ") >= n)
            status, text, _ = get(psd, "/events")
            assert (status, text) == (503, "too many pages are open: close one, or read /stats\n")
            assert get(psd, "/healthz")[:2] == (200, "ok\n") and get(psd, "/stats")[0] == 200
        listeners[1].socket.close()
        eventually(lambda: listen(0).is_taken())


def test_the_page_is_whole_and_asks_nobody_else(start_psd):
    psd = start_psd()
    status, text, headers = get(psd, "/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert text.startswith("<!doctype html>") and text.rstrip().endswith("</html>")
    assert "http://" not in text and "https://" not in text

"""What a node leaves on its disk: no more than a start needs; how much that is is shown; what is damaged there is found
before it is needed."""

import json
import os
import subprocess
import urllib.request

import pytest

from conftest import BIN, eventually
from test_damage import bad_sectors, check, push  # noqa: F401
from test_durability import alone, damage, node_and_pusher, small_disk


def tool(name, *args, code=0):
    got = subprocess.run([str(BIN / name), *map(str, args)], capture_output=True, text=True, timeout=300)
    assert got.returncode == code, got.stdout + got.stderr
    return got.stdout + got.stderr


def n_bytes(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def metrics(psd):
    with urllib.request.urlopen(f"http://{psd.http}/metrics", timeout=60) as page:
        lines = [line for line in page.read().decode().splitlines() if not line.startswith("#")]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


@pytest.mark.timeout(240)
def test_a_clean_stop_leaves_a_checkpoint_and_no_log(start_psd, tmp_path):
    data = tmp_path / "data"
    psd = start_psd("--shards", "2", "--data-dir", str(data))
    for _ in range(20):
        tool("psbench", "push", "--server", f"127.0.0.1:{psd.port}", "--rows", "20000", "--dim", "16", "--seconds", "1",
             "--warmup", "0")
        if n_bytes(data / "log") > 200 << 20:
            break
    before = n_bytes(data / "log")
    assert before > 100 << 20
    rows = psd.admin("status")["totals"]["rows"]
    assert psd.stop() == 0
    log, checkpoints = n_bytes(data / "log"), n_bytes(data / "checkpoints")
    print(f"log {before} bytes, after a clean stop {log}; checkpoints {checkpoints}")
    assert log < 1 << 20
    assert "nothing is damaged" in tool("psctl", "verify", data)
    psd = start_psd("--shards", "2", "--data-dir", str(data))
    assert psd.admin("status")["totals"]["rows"] == rows


def test_prune_leaves_the_newest_restore_point_and_all_that_it_needs(start_psd, tmp_path, monkeypatch):
    psd, p, args, data = node_and_pusher(start_psd, tmp_path, monkeypatch)
    for _ in range(3):
        push(p, 20)
        psd.admin("checkpoint")
    push(p, 20)
    assert "psd runs on it" in tool("psctl", "prune", data, "--yes")
    psd.kill()
    before = n_bytes(data)
    would = tool("psctl", "prune", data)
    assert "not needed" in would and n_bytes(data) == before
    answer = json.loads(tool("psctl", "prune", data, "--yes", "--json"))
    assert answer["removed"] and answer["bytes"] == before - n_bytes(data) > 0
    assert "nothing is damaged" in tool("psctl", "verify", data)
    assert "0 bytes are not needed" in tool("psctl", "prune", data)
    psd = start_psd(*args)
    p.connect(psd)
    p.check([])
    assert p.acked == 80


def test_archived_data_is_shown_with_its_size_and_pruned(start_psd, tmp_path, monkeypatch):
    psd, p, args, data = node_and_pusher(start_psd, tmp_path, monkeypatch)
    for _ in range(2):
        push(p, 20)
        psd.admin("checkpoint")
    assert psd.stop() == 0
    psd = start_psd(*args, "--at", "1")
    eventually(lambda: metrics(psd)["psd_disk_aside_bytes"] > 0)
    assert "archived" in tool("psctl", "status", "--server", f"127.0.0.1:{psd.port}")
    listed = tool("psctl", "prune", data)
    assert "checkpoint 2, archived" in listed and "bytes" in listed
    tool("psctl", "prune", data, "--yes")  # psd runs, and has no use for it
    assert not list((data / "checkpoints").glob("*.aside"))
    assert psd.stop() == 0
    psd = start_psd(*args)
    check(p, psd, 20)
    eventually(lambda: metrics(psd)["psd_disk_aside_bytes"] == 0)


def test_a_damaged_newest_checkpoint_is_not_pruned_upon(start_psd, tmp_path, monkeypatch):
    psd, p, args, data = node_and_pusher(start_psd, tmp_path, monkeypatch)
    for _ in range(2):
        push(p, 20)
        psd.admin("checkpoint")
    psd.kill()
    damage(data / "checkpoints/00000000000000000002/shard-000.psc")
    before = n_bytes(data)
    assert "00000000000000000002" in tool("psctl", "prune", data, "--yes", code=1)
    assert n_bytes(data) == before
    psd = start_psd(*args)
    check(p, psd, 40)


def test_sizes_are_in_the_metrics_and_in_status(start_psd, tmp_path, monkeypatch):
    psd, p, _, data = node_and_pusher(start_psd, tmp_path, monkeypatch)
    push(p, 50)
    psd.admin("checkpoint")
    eventually(lambda: metrics(psd)["psd_disk_checkpoint_bytes"] == n_bytes(data / "checkpoints"))
    assert metrics(psd)["psd_disk_log_bytes"] > 0
    assert metrics(psd)["psd_disk_free_bytes"] > 0
    disk = psd.admin("status")["disk"]
    assert disk["checkpoint_bytes"] == n_bytes(data / "checkpoints") and disk["free_bytes"] > 0
    assert "disk         checkpoints" in tool("psctl", "status", "--server", f"127.0.0.1:{psd.port}")


@pytest.mark.parametrize("what", ["checkpoint", "log"])
def test_a_scrub_finds_damage_before_it_is_needed(start_psd, tmp_path, monkeypatch, what):
    psd, p, _, data = node_and_pusher(start_psd, tmp_path, monkeypatch, "--scrub-every", "500ms")
    for _ in range(2):
        push(p, 30)
        psd.admin("checkpoint")
    push(p, 30)
    runs = metrics(psd)["psd_scrubs_total"]
    eventually(lambda: metrics(psd)["psd_scrubs_total"] > runs + 1)
    assert metrics(psd)["psd_scrub_damaged_files"] == 0 and "scrub:" in psd.log()
    if what == "checkpoint":
        path, says = data / "checkpoints/00000000000000000002/shard-000.psc", "shard-000.psc"
    else:
        path, says = sorted(data.glob("log/*/shard-000/*.psl"))[-1], "the write-ahead log is damaged behind record"
    damage(path)
    eventually(lambda: metrics(psd)["psd_scrub_damaged_files"] == 1)
    assert "scrub: " in psd.log() and says in psd.log() and says[:20] in psd.admin("status")["disk"]["damage"]
    assert "1 file damaged" in tool("psctl", "status", "--server", f"127.0.0.1:{psd.port}")
    damage(path)
    eventually(lambda: metrics(psd)["psd_scrub_damaged_files"] == 0)


def test_a_scrub_reports_sectors_that_cannot_be_read_and_files_that_are_gone(start_psd, tmp_path, monkeypatch, bad_sectors):
    psd, p, _, data = node_and_pusher(start_psd, tmp_path, monkeypatch, "--scrub-every", "500ms")
    push(p, 30)
    newest = sorted(data.glob("log/*/shard-000/*.psl"))[-1]
    bad_sectors(newest, 0)
    eventually(lambda: metrics(psd)["psd_scrub_damaged_files"] == 1)
    assert "cannot be read: Input/output error" in psd.log()
    bad_sectors(data, 0)
    eventually(lambda: metrics(psd)["psd_scrub_damaged_files"] == 0)
    newest.rename(tmp_path / "away")
    eventually(lambda: metrics(psd)["psd_scrub_damaged_files"] == 1)
    assert f"segment {newest.name} of the write-ahead log is gone" in psd.log()
    (tmp_path / "away").rename(newest)
    eventually(lambda: metrics(psd)["psd_scrub_damaged_files"] == 0)
    whole = newest.read_bytes()
    newest.write_bytes(whole[:len(whole) // 2])
    eventually(lambda: metrics(psd)["psd_scrub_damaged_files"] == 1)
    assert "the write-ahead log is cut behind record" in psd.log()
    newest.write_bytes(whole)
    eventually(lambda: metrics(psd)["psd_scrub_damaged_files"] == 0)


def test_a_scrub_reads_each_file_once_and_counts_it_once(start_psd, tmp_path, monkeypatch):
    psd, p, args, data = node_and_pusher(start_psd, tmp_path, monkeypatch, "--keep", "5")
    tool("psbench", "push", "--server", f"127.0.0.1:{psd.port}", "--rows", "20000", "--dim", "16", "--seconds", "1",
         "--warmup", "0")
    psd.admin("checkpoint")
    for _ in range(3):
        p.step()
        p.wait_acknowledged()
        psd.admin("checkpoint")
    first, *deltas = sorted((data / "checkpoints").iterdir())
    assert len(deltas) == 3 and all(n_bytes(d) < n_bytes(first) / 4 for d in deltas)
    psd.stop()
    log = n_bytes(data / "log")
    assert log < n_bytes(data / "checkpoints") / 10, "checkpoints are what is read"
    psd = start_psd(*args, "--scrub-every", "700ms")
    eventually(lambda: metrics(psd)["psd_scrubs_total"] >= 1, 30)
    now = metrics(psd)
    read = now["psd_scrub_bytes_total"] / now["psd_scrubs_total"]
    size = n_bytes(data / "checkpoints") + n_bytes(data / "log")
    print(f"{size} bytes of checkpoints and logs, {read} read")
    assert read < 1.2 * size
    damage(first / "shard-000.psc")
    eventually(lambda: metrics(psd)["psd_scrub_damaged_files"] == 1, 30)
    runs = metrics(psd)["psd_scrubs_total"]
    eventually(lambda: metrics(psd)["psd_scrubs_total"] > runs + 1, 30)
    assert metrics(psd)["psd_scrub_damaged_files"] == 1


def test_control_files_of_another_layout_are_no_damage(start_psd, tmp_path):
    data = tmp_path / "data"
    args = ("--data-dir", str(data))
    psd = start_psd(*args, "--shards", "4")
    tool("psbench", "push", "--server", f"127.0.0.1:{psd.port}", "--rows", "40000", "--seconds", "0.3", "--warmup", "0")
    psd.kill()
    psd = start_psd(*args, "--shards", "2", "--keep", "1", "--scrub-every", "300ms")
    for _ in range(2):
        psd.admin("checkpoint")
    assert len(list(data.glob("wal-*.control"))) == 4
    for _ in range(3):
        runs = metrics(psd)["psd_scrubs_total"]
        eventually(lambda: metrics(psd)["psd_scrubs_total"] > runs, 30)
        assert metrics(psd)["psd_scrub_damaged_files"] == 0, psd.log()
    assert "nothing is damaged" in tool("psctl", "verify", data)


def test_restarts_do_not_put_a_scrub_off(start_psd, tmp_path, monkeypatch):
    data = tmp_path / "data"
    args = (*alone(monkeypatch), "--data-dir", str(data), "--scrub-every", "100h")
    psd = start_psd(*args)
    state = data / "scrub.state"
    eventually(state.exists)
    first = int(state.read_text().split()[-1])
    assert psd.stop() == 0
    psd = start_psd(*args)
    assert psd.stop() == 0
    assert int(state.read_text().split()[-1]) == first, "the first start counts"
    state.write_text(f"psd scrub, format 1\nlast {first - 101 * 3600 * 1000}\n")
    psd = start_psd(*args)
    eventually(lambda: metrics(psd)["psd_scrubs_total"] == 1)
    assert int(state.read_text().split()[-1]) >= first


@pytest.mark.timeout(240)
def test_logs_leave_a_small_disk_space_for_checkpoints(start_psd, tmp_path):
    """With log-max as it is by default they would take 32 GiB before the first checkpoint."""
    disk = small_disk(tmp_path, "160m")
    try:
        psd = start_psd("--shards", "2", "--data-dir", str(disk / "data"), "--checkpoint-rate", "0")
        eventually(lambda: "a checkpoint is taken after each" in psd.log())
        pushed = 0
        while pushed < 240 << 20:
            tool("psbench", "push", "--server", f"127.0.0.1:{psd.port}", "--rows", "20000", "--dim", "16", "--seconds", "1",
                 "--warmup", "0", "--rate", "600")
            log = psd.admin("status")["totals"]["log"]
            pushed = log["bytes"]
            assert not log["dropped"] and not log["failures"]
        rows = psd.admin("status")["totals"]["rows"]
        assert psd.stop() == 0
        psd = start_psd("--shards", "2", "--data-dir", str(disk / "data"))
        assert psd.admin("status")["totals"]["rows"] == rows
        assert psd.stop() == 0
    finally:
        os.system(f"umount -l {disk}")

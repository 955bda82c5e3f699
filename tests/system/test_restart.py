"""What a start is told (--at, --restore, --no-restore) is done once, and leaves what it does not begin from."""

import json
import random
import subprocess

import pytest

from conftest import BIN
from test_durability import DIM, SEED, Pusher, alone, damage, one_pusher, wait_acknowledged


def steps(psd, p, n):
    for _ in range(n):
        p.step()
    p.wait_acknowledged()


def check_rows(psd, p, n_pushes):
    """The table is as after so many pushes of p."""
    reader = Pusher(0, 0, random.Random(SEED))
    reader.keys, reader.sent, reader.acked = p.keys, p.sent, n_pushes
    reader.client = psd.connect(0, role="reader")
    reader.client.table(name="t", dim=DIM, must_exist=True)
    reader.check([])


def go_on(psd, p, n_known):
    """p has sent only the first n_known, and trains on from there."""
    p.sent, p.acked = p.sent[:n_known], n_known
    p.connect(psd)


def trained(start_psd, args):
    """Checkpoint 1 behind 20 pushes, 2 behind 40, 60 in all; then kill -9."""
    psd = start_psd(*args)
    p = one_pusher(psd)
    for n in range(3):
        steps(psd, p, 20)
        if n < 2:
            psd.admin("checkpoint")
    psd.kill()
    return p


def names(path):
    return sorted(f.name.lstrip("0") for f in path.iterdir())


def test_a_crash_behind_a_start_at_an_older_state_costs_nothing_that_came_since(start_psd, tmp_path, monkeypatch):
    args = (*alone(monkeypatch), "--data-dir", str(tmp_path / "data"))
    p = trained(start_psd, args)
    for again in range(3):
        psd = start_psd(*args, "--at", "1")
        assert ("they are done" in psd.log()) == (again > 0)
        go_on(psd, p, 20 + 10 * again)
        steps(psd, p, 10)
        psd.kill()
    assert names(tmp_path / "data/checkpoints") == ["1", "2.aside", "3"]
    psd = start_psd(*args)  # told nothing: it is forgotten,
    check_rows(psd, p, 50)
    psd.kill()
    psd = start_psd(*args, "--at", "1")  # and counts again
    check_rows(psd, p, 20)
    psd.stop()


def test_a_crash_behind_no_restore_does_not_begin_with_nothing_again(start_psd, tmp_path, monkeypatch):
    args = (*alone(monkeypatch), "--data-dir", str(tmp_path / "data"))
    trained(start_psd, args)
    psd = start_psd(*args, "--no-restore")
    assert names(tmp_path / "data/checkpoints") == ["1.aside", "2.aside", "3"]
    p = one_pusher(psd)
    steps(psd, p, 10)
    for _ in range(4):
        psd.admin("checkpoint")  # more than --keep
    psd.kill()
    psd = start_psd(*args, "--no-restore")
    p.connect(psd)
    wait_acknowledged([p])
    assert psd.stop() == 0
    assert {"1.aside", "2.aside"} < set(names(tmp_path / "data/checkpoints"))
    assert (tmp_path / "data/log" / f"{0:020}").exists()


def test_a_clock_before_the_last_one_that_was_gone_back_to_is_still_there(start_psd, tmp_path, monkeypatch):
    args = (*alone(monkeypatch), "--data-dir", str(tmp_path / "data"))
    p = trained(start_psd, args)
    known = 60
    for clock in (55, 50, 33, 25):
        psd = start_psd(*args, "--at", f"job:{clock}")
        check_rows(psd, p, clock)
        psd.kill()
        known = clock
    with pytest.raises(RuntimeError, match="has not finished 40 steps"):
        start_psd(*args, "--at", "job:40")
    psd = start_psd(*args)
    go_on(psd, p, known)
    steps(psd, p, 5)
    check_rows(psd, p, known + 5)
    psd.stop()


def test_a_damaged_beginning_of_an_epoch_is_not_gone_around(start_psd, tmp_path, monkeypatch):
    args = (*alone(monkeypatch), "--data-dir", str(tmp_path / "data"))
    p = trained(start_psd, args)
    psd = start_psd(*args, "--at", "job:50")
    psd.kill()
    damage(tmp_path / f"data/checkpoints/{3:020}/shard-000.psc")
    for at in ((), ("--at", "job:50")):
        with pytest.raises(RuntimeError, match="checkpoint 3, with which a newer log begins"):
            start_psd(*args, *at)
    psd = start_psd(*args, "--at", "2")
    check_rows(psd, p, 40)
    psd.stop()


def test_a_damaged_last_checkpoint_does_not_stop_a_change_of_layout(start_psd, tmp_path, monkeypatch):
    args = (*alone(monkeypatch), "--data-dir", str(tmp_path / "data"))
    p = trained(start_psd, args)
    psd = start_psd(*args)
    assert psd.stop() == 0  # checkpoint 3 says all
    damage(tmp_path / f"data/checkpoints/{3:020}/shard-000.psc")
    psd = start_psd(*args, "--shards", "2")
    assert f"{3:020}" in psd.log()
    psd.kill()
    psd = start_psd(*args)
    check_rows(psd, p, 60)
    psd.stop()


def psctl(*words, code=0):
    done = subprocess.run([BIN / "psctl", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_archived_checkpoints_are_listed_and_checked_and_can_be_restored(start_psd, tmp_path, monkeypatch):
    """2 is a delta to 1, and both were taken under load: they need each other, and their log."""
    data = tmp_path / "data"
    args = (*alone(monkeypatch), "--data-dir", str(data))
    p = trained(start_psd, args)
    start_psd(*args, "--no-restore").kill()
    assert names(data / "checkpoints") == ["1.aside", "2.aside", "3"]
    listed = json.loads(psctl("checkpoints", data, "--json"))["checkpoints"]
    assert [(c["number"], c.get("aside", False)) for c in listed] == [(3, False), (1, True), (2, True)]
    assert listed[2]["base"] == 1
    assert "delta to 1, archived" in psctl("checkpoints", data)
    assert "whole    checkpoint 2 (archived): delta to 1" in psctl("verify", data)
    for name in ("2", "2.aside", f"{2:020}.aside"):
        assert "whole    checkpoint 2" in psctl("verify", data / "checkpoints" / name)
        psctl("export", data / "checkpoints" / name, "--out", tmp_path / f"{name}.npy")
        other = (*alone(monkeypatch), "--data-dir", str(tmp_path / f"to-{name}"))
        psd = start_psd(*other, "--restore", str(data / "checkpoints" / name))
        check_rows(psd, p, 40)
        psd.kill()
    psd = start_psd(*args, "--at", "2")
    check_rows(psd, p, 40)
    go_on(psd, p, 40)
    steps(psd, p, 5)
    psd.kill()
    psd = start_psd(*args, "--at", "2")  # done once
    check_rows(psd, p, 45)
    psd.stop()
    with pytest.raises(RuntimeError, match="no valid checkpoint 7"):
        start_psd(*args, "--at", "7")


def test_a_checkpoints_short_number_is_its_name(start_psd, tmp_path, monkeypatch):
    data = tmp_path / "data"
    args = (*alone(monkeypatch), "--data-dir", str(data))
    p = trained(start_psd, args)
    psd = start_psd("--data-dir", str(tmp_path / "to"), *alone(monkeypatch), "--restore", str(data / "checkpoints/1") + "/")
    check_rows(psd, p, 20)
    psd.kill()
    assert "whole    checkpoint 1" in psctl("verify", data / "checkpoints/1")
    assert "DRIFT" in psctl("diff", data / "checkpoints/1", data / "checkpoints/2", code=1).upper()


def test_psctl_reads_all_nodes_and_leaves_no_directory_behind_a_failure(start_psd, tmp_path, monkeypatch):
    data = tmp_path / "data"
    trained(start_psd, (*alone(monkeypatch), "--data-dir", str(data)))
    for command in ("verify", "checkpoints"):
        got = psctl(command, f"{data},{data}")
        assert got.count(f"{data}:\n") == 2
        assert len(psctl(command, f"{data},{data}", "--json").splitlines()) == 2
    to = tmp_path / "to"
    done = subprocess.run([BIN / "psctl", "restore", data, "--to", to, "--table", "nobody"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and not to.exists(), done.stderr
    psctl("restore", data, "--to", to)
    assert to.exists()

"""Files of a data directory that are damaged, cut or gone: what a start makes of it, and psctl verify; nothing is lost
but what the damage has taken, and nothing is lost without a word."""

import shutil
import subprocess

import pytest

import conftest
from conftest import BIN, eventually
from test_durability import DIM, alone, damage, node_and_pusher, one_pusher


@pytest.fixture
def bad_sectors(tmp_path, monkeypatch):
    """bad(path, first): the 4,096 bytes of a file from there on cannot be read any more, by processes started from now on."""
    if BIN.parent.name != "release":
        pytest.skip("a library for LD_PRELOAD would come before the sanitizer's")
    subprocess.run(["make", "-s", "--no-print-directory", f"BUILD={BIN.parents[1]}", f"VARIANT={BIN.parent.name}", "bad-sectors"],
                   cwd=conftest.__file__.rsplit("/tests/", 1)[0], check=True, timeout=300)
    places = tmp_path / "bad"
    monkeypatch.setenv("PS_BAD_SECTORS", str(places))
    monkeypatch.setenv("LD_PRELOAD", str(BIN.parent / "tests/bad_sectors.so"))

    def bad(path, first):
        places.write_text(f"{path.stat().st_ino} {first} {first + 4096}")

    return bad


def tool(*args):
    return subprocess.run([str(BIN / "psctl"), *map(str, args)], capture_output=True, text=True, timeout=100)


def segments(data, shard=0):
    return sorted((data / "log").glob(f"*/shard-{shard:03}/*.psl"))


def push(p, n):
    for _ in range(n):
        p.step()
        p.wait_acknowledged()  # a block for each


def push_rows(psd):
    """To every shard."""
    subprocess.run([BIN / "psbench", "push", "--server", f"127.0.0.1:{psd.port}", "--rows", "40000", "--seconds", "0.3", "--warmup", "0"],
                   check=True, capture_output=True, timeout=100)


def check(p, psd, n_pushes):
    """The state is that of so many pushes."""
    p.acked = n_pushes
    p.client = psd.connect(0, role="reader")
    p.client.table(name="t", dim=DIM, must_exist=True)
    p.check([])


def refused(start_psd, *args):
    with pytest.raises(RuntimeError) as e:
        start_psd(*args)
    return str(e.value)


@pytest.fixture
def pushed(start_psd, tmp_path, monkeypatch):
    """20 pushes, a checkpoint, 20 more, kill -9."""
    psd, p, args, data = node_and_pusher(start_psd, tmp_path, monkeypatch)
    push(p, 20)
    psd.admin("checkpoint")
    push(p, 20)
    psd.kill()
    return p, args, data


def test_damage_before_the_checkpoint_is_in_nobodys_way(start_psd, pushed):
    p, args, data = pushed
    assert len(segments(data)) == 2, "a checkpoint begins a segment"
    damage(segments(data)[0], 80 + 48 + 20)
    got = tool("verify", data)
    assert got.returncode == 1 and "damaged" in got.stdout
    out = data.parent / "arrays"
    assert tool("export", data, "--out", out, "--format", "npy").returncode == 0
    psd = start_psd(*args)
    p.connect(psd)
    p.check([])
    assert p.acked == 40


def test_a_sector_that_cannot_be_read_is_damage_like_any_other(start_psd, bad_sectors, pushed):
    p, args, data = pushed
    old = segments(data)[0]
    bad_sectors(old, 0)  # before the checkpoint: nobody needs it
    got = tool("verify", data)
    assert got.returncode == 1 and "cannot be read: Input/output error" in got.stdout, got.stdout
    psd = start_psd(*args)
    p.connect(psd)
    p.check([])
    push(p, 200)
    psd.kill()
    newest = segments(data)[-1]
    assert newest.stat().st_size > 8192
    bad_sectors(newest, 4096)
    said = refused(start_psd, *args)
    assert "damaged behind record" in said and "cannot be read: Input/output error" in said and "--at intact" in said
    assert "byte " in said and newest.name in tool("verify", data).stdout
    psd = start_psd(*args, "--at", "intact")
    reader = psd.connect(0, role="worker")
    reader.table(name="t", dim=DIM, must_exist=True)
    applied = reader.join(n_workers=1, rank=0, incarnation=1).number(3)
    assert 40 < applied < 240, "all before the sector"
    check(p, psd, applied)
    assert psd.stop() == 0
    psd = start_psd(*args)
    check(p, psd, applied)


def test_a_control_file_that_cannot_be_read_is_in_nobodys_way(start_psd, bad_sectors, pushed):
    p, args, data = pushed
    bad_sectors(data / "wal-000.control", 0)
    got = tool("verify", data)
    assert got.returncode == 1 and "wal-000.control" in got.stdout and "1 things are damaged" in got.stdout, got
    for at, n_pushes in ((), 40), (("--at", "intact"), 40), (("--at", "1"), 20):
        copy = data.parent / f"copy{''.join(at)}"
        shutil.copytree(data, copy)
        bad_sectors(copy / "wal-000.control", 0)
        psd = start_psd(*args[:-1], str(copy), *at)
        assert "whether files of the write-ahead log are gone is not known" in psd.log()
        check(p, psd, n_pushes)
        assert psd.stop() == 0


def test_what_an_epoch_began_with_and_cannot_be_read_is_written_anew(start_psd, bad_sectors, pushed):
    p, args, data = pushed
    psd = start_psd(*args, "--at", "1")
    check(p, psd, 20)
    psd.kill()
    began = sorted(data.glob("log/*/BEGINNING"))[-1]
    bad_sectors(began, 0)
    assert "BEGINNING" in refused(start_psd, *args, "--at", "1")
    psd = start_psd(*args)
    assert "BEGINNING: it is written anew" in psd.log()
    check(p, psd, 20)
    psd.kill()
    psd = start_psd(*args, "--at", "1")
    check(p, psd, 20)


@pytest.mark.parametrize("what", ["MANIFEST", "shard-000.psc"])
@pytest.mark.parametrize("at", [(), ("--at", "intact")])
def test_with_the_only_checkpoint_damaged_the_log_has_everything(start_psd, pushed, what, at):
    p, args, data = pushed
    path = data / "checkpoints/00000000000000000001" / what
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    psd = start_psd(*args, *at)
    assert f"rows from {data}, and" in psd.log(), "no checkpoint is named"
    p.connect(psd)
    p.check([])
    assert p.acked == 40
    assert psd.stop() == 0


def test_without_a_whole_checkpoint_or_the_beginning_of_the_log_no_start_is_empty(start_psd, pushed):
    p, args, data = pushed
    segments(data)[0].unlink()
    damage(data / "checkpoints/00000000000000000001/MANIFEST")
    for at in (), ("--at", "intact"):
        said = refused(start_psd, *args, *at)
        assert "no checkpoint of 1 is whole" in said and "--no-restore starts empty" in said


def test_a_damaged_header_of_a_segment_costs_nothing(start_psd, pushed):
    p, args, data = pushed
    newest = segments(data)[-1]
    whole = newest.read_bytes()
    newest.write_bytes(whole[:66] + bytes([whole[66] ^ 0x55]) + whole[67:])
    got = tool("verify", data)
    assert got.returncode == 1 and "its records are there" in got.stdout and newest.name in got.stdout, got.stdout
    psd = start_psd(*args)
    assert "its records are there" in psd.log()
    p.connect(psd)
    p.check([])
    assert p.acked == 40


def test_the_advice_for_a_damaged_log_and_beginning_is_no_circle(start_psd, pushed):
    p, args, data = pushed
    psd = start_psd(*args, "--at", "1")
    p.connect(psd)
    before = p.acked
    push(p, 30)
    psd.kill()
    damage(sorted(data.glob("log/*/BEGINNING"))[-1])
    damage(segments(data)[-1])
    assert "--at intact" in refused(start_psd, *args)
    psd = start_psd(*args, "--at", "intact")
    reader = psd.connect(0, role="worker")
    reader.table(name="t", dim=DIM, must_exist=True)
    applied = reader.join(n_workers=1, rank=0, incarnation=1).number(3)
    assert before + 5 < applied < before + 30
    assert psd.stop() == 0
    start_psd(*args)


def test_a_shards_log_that_is_gone_before_the_first_checkpoint_is_named(start_psd, tmp_path):
    data = tmp_path / "data"
    args = ("--data-dir", str(data), "--shards", "4")
    psd = start_psd(*args)
    push_rows(psd)
    psd.kill()
    shutil.rmtree(segments(data, 1)[0].parent)
    said = refused(start_psd, *args)
    assert "shard 1: segment" in said and "is gone, with what was acknowledged" in said, said
    got = tool("verify", data)
    assert got.returncode == 1 and "shard 1: segment" in got.stdout and "shard 3: records" in got.stdout, got.stdout


def test_verify_finds_a_log_that_is_gone_with_its_control_file(start_psd, tmp_path):
    data = tmp_path / "data"
    args = ("--data-dir", str(data), "--shards", "2")
    psd = start_psd(*args)
    push_rows(psd)
    psd.admin("checkpoint")
    push_rows(psd)
    psd.kill()
    got = tool("verify", data)
    assert got.returncode == 0 and "has no write-ahead log" not in got.stdout, got.stdout

    def remove(shard):
        shutil.rmtree(segments(data, shard)[0].parent)
        for path in data.glob(f"wal-{shard:03}.control*"):
            path.unlink()

    remove(1)
    got = tool("verify", data)
    assert got.returncode == 1 and "shard 1: it is gone, and its control file" in got.stdout, got.stdout
    assert "1 things are damaged" in got.stdout
    remove(0)  # now it looks like the copy of a checkpoint
    got = tool("verify", data)
    assert got.returncode == 0 and "has no write-ahead log beside it" in got.stdout, got.stdout
    psd = start_psd(*args)
    assert psd.log().count("has no write-ahead log beside it") == 2


def test_a_restore_of_what_is_intact_gets_all_before_the_damage(start_psd, pushed):
    p, args, data = pushed
    newest = segments(data)[-1]
    damage(newest)
    said = refused(start_psd, *args)
    assert "damaged behind record" in said and "--at intact" in said
    psd = start_psd(*args, "--at", "intact")
    reader = psd.connect(0, role="worker")
    reader.table(name="t", dim=DIM, must_exist=True)
    answer = reader.join(n_workers=1, rank=0, incarnation=1)
    applied = answer.number(3)
    assert 25 <= applied <= 35, "not only the 20 of the checkpoint"
    check(p, psd, applied)
    assert psd.stop() == 0
    psd = start_psd(*args)  # it goes on from there
    check(p, psd, applied)


@pytest.mark.parametrize("what", ["segment", "shard", "log"])
def test_removed_files_of_the_log_are_reported_at_the_start_and_by_verify(start_psd, pushed, what):
    p, args, data = pushed
    newest = segments(data)[-1]
    if what == "segment":
        newest.unlink()
    else:
        shutil.rmtree(newest.parent if what == "shard" else data / "log")
    got = tool("verify", data)
    assert got.returncode == 1 and "is gone, with what was acknowledged behind record" in got.stdout, got.stdout
    said = refused(start_psd, *args)
    assert f"segment {newest.name} of the write-ahead log is gone" in said and "--at intact" in said
    psd = start_psd(*args, "--at", "intact")
    check(p, psd, 20)
    assert psd.stop() == 0
    assert tool("verify", data).returncode == 0
    psd = start_psd(*args)
    check(p, psd, 20)


def test_a_log_that_is_gone_with_its_control_file_is_a_line_at_the_start(start_psd, pushed):
    p, args, data = pushed
    shutil.rmtree(data / "log")
    for control in data.glob("wal-*.control"):
        control.unlink()
    psd = start_psd(*args)
    line = "checkpoint 1 has no write-ahead log beside it"
    assert line in psd.log()
    check(p, psd, 20)
    assert psd.stop() == 0
    psd = start_psd(*args)
    assert line not in psd.log()
    check(p, psd, 20)


def test_a_log_that_was_truncated_far_back_is_not_called_torn(start_psd, tmp_path, monkeypatch):
    psd, p, args, data = node_and_pusher(start_psd, tmp_path, monkeypatch)
    push(p, 10)
    psd.admin("checkpoint")
    push(p, 30)
    control = data / "wal-000.control"
    eventually(lambda: int(control.read_text().split("durable ")[1].split()[0]) >= 40)
    psd.kill()
    newest = segments(data)[-1]
    whole = newest.read_bytes()
    for at in (len(whole) // 2, len(whole) // 2 + 3, 81, 80, 0):
        newest.write_bytes(whole[:at])
        got = tool("verify", data)
        assert got.returncode == 1 and "it is truncated" in got.stdout, got.stdout
        said = refused(start_psd, *args)
        assert "is truncated or damaged: it ends behind record" in said and "were on the disk" in said and "--at intact" in said
    newest.write_bytes(whole)
    psd = start_psd(*args)
    p.connect(psd)
    p.check([])
    assert p.acked == 40


def test_no_acknowledged_push_of_the_last_moment_is_missed_without_a_word(start_psd, tmp_path, monkeypatch):
    """kill -9 right behind the last reply, then the log is cut, or a bit of its last block flipped."""
    data = tmp_path / "data"
    args = (*alone(monkeypatch), "--data-dir", str(data))
    psd = start_psd(*args)
    p = one_pusher(psd)
    push(p, 200)
    psd.kill()
    newest = segments(data)[-1]
    whole = newest.read_bytes()
    flipped = whole[:-20] + bytes([whole[-20] ^ 4]) + whole[-19:]
    for left in (flipped, whole[:-10], *(whole[:len(whole) * n // 4] for n in (3, 2, 1))):
        newest.write_bytes(left)
        got = tool("verify", data)
        assert got.returncode == 1 and "is truncated or damaged" in got.stdout and "were on the disk" in got.stdout, got.stdout
        said = refused(start_psd, *args)
        assert "is truncated or damaged: it ends behind record" in said and "were on the disk" in said and "--at intact" in said
    psd = start_psd(*args, "--at", "intact")
    applied = psd.connect(0, role="worker")
    applied.table(name="t", dim=DIM, must_exist=True)
    n_pushes = applied.join(n_workers=1, rank=0, incarnation=1).number(3)
    assert 30 < n_pushes < 60, "a quarter of the log"
    check(p, psd, n_pushes)
    assert psd.stop() == 0
    psd = start_psd(*args)  # and it goes on from there, with nothing to miss
    check(p, psd, n_pushes)


def test_a_torn_end_is_no_damage_and_what_is_lost_with_it_is_said(start_psd, tmp_path, monkeypatch):
    data = tmp_path / "data"
    args = (*alone(monkeypatch), "--data-dir", str(data))
    psd = start_psd(*args)
    p = one_pusher(psd)
    push(p, 20)
    psd.kill()
    with segments(data)[-1].open("ab") as f:
        f.write(b"half of a block that was never synced")
    got = tool("verify", data)
    assert got.returncode == 0 and "nothing is damaged; 1 logs end torn, and what came behind is lost" in got.stdout, got.stdout
    psd = start_psd(*args)
    assert "is lost; nothing of it is known to have been on the disk" in psd.log()
    p.connect(psd)
    p.check([])
    assert p.acked == 20


def test_a_data_directory_whose_files_are_gone_is_reported(start_psd, tmp_path):
    data = tmp_path / "data"
    psd = start_psd("--data-dir", str(data))
    assert "was not there" in psd.log()
    assert data.stat().st_mode & 0o777 == 0o700
    assert psd.stop() == 0
    psd = start_psd("--data-dir", str(data))
    assert "was not there" not in psd.log() and "are gone" not in psd.log()
    assert psd.stop() == 0
    for path in data.iterdir():
        if path.name != "LOCK":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    psd = start_psd("--data-dir", str(data))
    assert "checkpoints and write-ahead logs are gone" in psd.log()


def test_data_directories_of_before_have_no_control_file_and_open(start_psd, pushed):
    p, args, data = pushed
    (data / "wal-000.control").unlink()
    psd = start_psd(*args)
    p.connect(psd)
    p.check([])
    assert p.acked == 40
    assert (data / "wal-000.control").exists()


def test_a_mark_that_is_gone_is_reported_by_verify_and_at_the_start(start_psd, tmp_path, monkeypatch):
    """With the newest segment cut besides, nothing else knows of the pushes that were acknowledged last."""
    data = tmp_path / "data"
    args = (*alone(monkeypatch), "--data-dir", str(data))
    psd = start_psd(*args)
    p = one_pusher(psd)
    push(p, 40)
    psd.kill()
    newest, mark = segments(data)[-1], data / "wal-000.control.mark"
    said = "gone, so whether acknowledged records behind"
    assert said not in tool("verify", data).stdout
    mark.unlink()
    got = tool("verify", data)
    assert got.returncode == 1 and said in got.stdout and mark.name in got.stdout, got.stdout
    whole = newest.read_bytes()
    newest.write_bytes(whole[: len(whole) // 2])
    psd = start_psd(*args)
    assert said in psd.log() and mark.name in psd.log()
    assert psd.stop() == 0
    psd = start_psd(*args)
    assert said not in psd.log()


@pytest.mark.parametrize("kib", [200_000, 400_000, 600_000])
def test_a_process_without_address_space_ends_with_a_sentence_and_an_exit_code(tmp_path, kib):
    psd = subprocess.Popen(["bash", "-c", f"ulimit -v {kib}; exec {BIN}/psd --listen 127.0.0.1:0 --shards 8 --data-dir {tmp_path}/data"],
                           stderr=subprocess.PIPE, text=True)
    log = ""
    for line in psd.stderr:  # until it ends, or serves and is told to end
        log += line
        if "psd ready" in line:
            psd.terminate()
    assert psd.wait(60) in (0, 1), log
    assert ("psd ready" in log) == (psd.returncode == 0), log
    assert psd.returncode == 0 or "ulimit -v" in log or "memory" in log, log

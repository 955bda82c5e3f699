"""Whole tables: exports come back by `psctl import`, tables are scanned while they train, pulls say what is there."""

import json
import signal
import struct
import subprocess
import time

import pytest
import training
import wire
from conftest import BIN, Daemon, eventually

np = pytest.importorskip("numpy", reason="python3-numpy is not installed: arrays cannot be made")

SCAN_HEAD = struct.Struct("<QQII")


def psctl(*args):
    return subprocess.run([str(BIN / "psctl"), *map(str, args)], capture_output=True, text=True, timeout=300)


def imports(psd, path, *more):
    got = psctl("import", path, "--server", f"127.0.0.1:{psd.port}", "--json", *more)
    assert got.returncode == 0, got.stderr
    return json.loads(got.stdout)


def refused(psd, path, *more, code=1):
    """The sentence of an import that has not worked."""
    got = psctl("import", path, "--server", f"127.0.0.1:{psd.port}", *more)
    assert got.returncode == code and got.stdout == "", got.stdout + got.stderr
    lines = got.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("psctl: "), got.stderr
    return lines[0]


def exports(data, out, *more):
    got = psctl("export", data, "--out", out, *more)
    assert got.returncode == 0, got.stderr


def read_safetensors(path):
    """{name: (type, shape, bytes)}, and the notes."""
    raw = path.read_bytes()
    n = struct.unpack_from("<Q", raw)[0]
    head = json.loads(raw[8:8 + n])
    notes = head.pop("__metadata__", {})
    return {name: (a["dtype"], a["shape"], raw[8 + n + a["data_offsets"][0]:8 + n + a["data_offsets"][1]])
            for name, a in head.items()}, {name: json.loads(text) for name, text in notes.items() if name.startswith("psd:")}


def write_safetensors(path, arrays, notes=None, n_less=0):
    types = {"float32": "F32", "int64": "I64", "uint64": "U64", "float64": "F64", "float16": "F16"}
    head, at = {"__metadata__": notes or {}}, 0
    for name, a in arrays.items():
        head[name] = {"dtype": types[str(a.dtype)], "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(head).encode()
    raw = struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in arrays.values())
    path.write_bytes(raw[:len(raw) - n_less])
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Data of two shards: an Adam job with dense tables, stored as bf16, and one with Adagrad."""
    base = tmp_path_factory.mktemp("trained")
    training.synth(base / "clicks.tsv", 4000)
    psd = Daemon(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--shards", "2", "--data-dir", "data"], base)
    for job, more in (("adam", ["--optimizer", "adam", "--table-storage", "bf16"]), ("ada", ["--optimizer", "adagrad"]),
                      ("adamw", ["--optimizer", "adamw", "--dense-optimizer", "lion"]),
                      ("came", ["--optimizer", "came", "--dense-optimizer", "came"]),
                      ("sm3", ["--optimizer", "sm3_matrix", "--dense-optimizer", "sm3_matrix"])):
        worker = training.psworker("train", "--format", "criteo", "--data", base / "clicks.tsv", "--job", job, "--batch", "256",
                                   "--servers", f"127.0.0.1:{psd.port}", *more)
        assert worker.wait(240) == 0
    assert psd.stop() == 0
    return base / "data"


@pytest.mark.parametrize("form", ["safetensors", "npy"])
def test_an_export_comes_back_bit_by_bit_into_another_number_of_shards(trained, start_psd, tmp_path, form):
    exports(trained, tmp_path / "out", "--state", "--format", form)
    psd = start_psd("--shards", "3", "--data-dir", str(tmp_path / "again"))
    assert "--make makes it" in refused(psd, tmp_path / "out")
    got = imports(psd, tmp_path / "out", "--make")
    assert got["tables"] > 4 and got["rows"] > 1000 and got["rows_refused"] == 0
    imports(psd, tmp_path / "out")  # once more changes nothing
    assert psd.stop() == 0
    exports(trained, tmp_path / "before", "--state")
    exports(tmp_path / "again", tmp_path / "after", "--state")
    before, before_notes = read_safetensors(tmp_path / "before")
    after, after_notes = read_safetensors(tmp_path / "after")
    assert sorted(before) == sorted(after)
    for name, array in before.items():
        assert array == after[name], name
    for name, note in before_notes.items():
        for member in ("kind", "dim", "optimizer", "storage", "steps"):
            assert note[member] == after_notes[name][member], (name, member)


def test_weights_alone_and_single_tables_can_be_imported(trained, start_psd, tmp_path):
    exports(trained, tmp_path / "out", "--state")
    psd = start_psd("--shards", "2", "--data-dir", str(tmp_path / "again"))
    assert imports(psd, tmp_path / "out", "--make", "--weights", "--table", "ada/emb")["tables"] == 1
    assert "no table nonsense" in refused(psd, tmp_path / "out", "--table", "nonsense", code=2)
    assert psd.stop() == 0
    exports(tmp_path / "again", tmp_path / "after", "--state")
    before, _ = read_safetensors(tmp_path / "out")
    after, _ = read_safetensors(tmp_path / "after")
    assert before["ada/emb.weight"] == after["ada/emb.weight"]
    assert before["ada/emb.state.s"] != after["ada/emb.state.s"]
    assert "adam/emb.keys" not in after


def test_bad_input_is_one_clear_sentence(start_psd, tmp_path):
    psd = start_psd("--shards", "2")
    keys, rows = np.array([-5, 3, 9], np.int64), np.ones((3, 4), np.float32)
    path = tmp_path / "in.safetensors"

    def says(text, arrays, *more, n_less=0, code=1):
        sentence = refused(psd, write_safetensors(path, arrays, n_less=n_less), "--make", *more, code=code)
        assert text in sentence, sentence

    write_safetensors(path, {"t.keys": keys, "t.weight": rows})
    assert imports(psd, path, "--make", "--set", "lr=0.5")["rows"] == 3
    bad = rows.copy()
    bad[1, 2] = np.nan
    says("row 1 has NaN", {"t.keys": keys, "t.weight": bad})
    says("is F64 [3, 4]; expected F32", {"t.keys": keys, "t.weight": rows.astype(np.float64)})
    says("expected I64 or U64", {"t.keys": keys.astype(np.float32), "t.weight": rows})
    says("expected as many rows as there are keys", {"t.keys": keys[:2], "t.weight": rows})
    says("do not ascend at row 2", {"t.keys": np.array([1, 7, 3], np.int64), "t.weight": rows})
    says("the key of the row before it, 7", {"t.keys": np.array([1, 7, 7], np.int64), "t.weight": rows})
    says("do not ascend at row 1", {"t.keys": keys.view(np.uint64), "t.weight": rows})
    says("rows of 4 floats here; array t.weight has rows of 5", {"t.keys": keys, "t.weight": np.ones((3, 5), np.float32)})
    says("no t.weight", {"t.keys": keys})
    says("is the state of another optimizer", {"t.keys": keys, "t.weight": rows, "t.state.s": rows})
    says("cut short", {"t.keys": keys, "t.weight": rows}, n_less=5)
    says("no table in it", {})
    (tmp_path / "junk").write_bytes(b"this is no array")
    assert "neither an npy nor a safetensors file" in refused(psd, tmp_path / "junk")
    (tmp_path / "d").mkdir()
    np.save(tmp_path / "d" / "t.keys.npy", keys)
    np.save(tmp_path / "d" / "t.weight.npy", np.asfortranarray(rows))
    assert "Fortran order" in refused(psd, tmp_path / "d")
    np.save(tmp_path / "d" / "t.weight.npy", rows)
    assert imports(psd, tmp_path / "d")["rows"] == 3
    assert "No such file" in refused(psd, tmp_path / "nothing")
    assert psctl("import", path, "--server", "127.0.0.1:1", "--timeout", "1s").returncode == 1


def test_what_finds_no_place_is_said(start_psd, tmp_path):
    psd = start_psd("--shards", "1", "--memory-max", "64M", data=False)
    n = 800000
    write_safetensors(tmp_path / "in", {"t.keys": np.arange(n, dtype=np.int64), "t.weight": np.ones((n, 32), np.float32)})
    got = psctl("import", tmp_path / "in", "--server", f"127.0.0.1:{psd.port}", "--make")
    assert got.returncode == 1 and "found no place in memory" in got.stderr, got.stderr


def test_an_interrupted_import_is_completed_by_the_same_once_more(start_psd, tmp_path):
    psd = start_psd("--shards", "2", "--data-dir", str(tmp_path / "data"))
    n = 1500000
    keys, rows = np.arange(n, dtype=np.int64) * 3 - n, np.random.default_rng(4).random((n, 8), np.float32)
    write_safetensors(tmp_path / "in", {"t/emb.keys": keys, "t/emb.weight": rows})
    process = subprocess.Popen([str(BIN / "psctl"), "import", str(tmp_path / "in"), "--server", f"127.0.0.1:{psd.port}", "--make"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: any(t["rows"] for t in psd.stats()["tables"]))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and "the same import once more completes it" in said, said
    imports(psd, tmp_path / "in")
    assert psd.stop() == 0
    exports(tmp_path / "data", tmp_path / "after")
    after, _ = read_safetensors(tmp_path / "after")
    assert after["t/emb.keys"][2] == keys.tobytes() and after["t/emb.weight"][2] == rows.tobytes()


# --- on the wire ---

def scan(client, table, dim, slice_bytes=20000, at=0, **fields):
    """(version, [(key, floats)]) of each slice; sets out again from `at`."""
    over = False
    while not over:
        got = client.pull([], table=table, scan_bytes=slice_bytes, cursor=at, **fields)
        assert got.status == 0, got.text
        version, at, n, flags = SCAN_HEAD.unpack_from(got.body)
        over = flags & 1
        width = (len(got.body) - SCAN_HEAD.size - 8 * n) // max(n, 1)
        keys = struct.unpack_from(f"<{n}Q", got.body, SCAN_HEAD.size)
        yield version, at, [(key, got.body[SCAN_HEAD.size + 8 * n + i * width:][:width]) for i, key in enumerate(keys)]


def test_a_table_is_scanned_while_it_trains(start_psd, tmp_path):
    training.synth(tmp_path / "clicks.tsv", 6000)
    psd = start_psd("--shards", "2", "--data-dir", str(tmp_path / "data"))
    job = training.psworker("train", "--format", "criteo", "--data", tmp_path / "clicks.tsv", "--job", "j", "--epochs", "10000",
                            "--batch", "64", "--servers", f"127.0.0.1:{psd.port}")
    eventually(lambda: any(t["name"] == "j/emb" and t["rows"] > 5000 for t in psd.stats()["tables"]))
    for shard in range(2):
        with psd.connect(shard, "reader") as client:
            found = client.table(must_exist=True, name="j/emb")
            assert found.number(5) & 1
            dim = wire.parse(found.fields[4][0])[3][0]
            seen, first, before = {}, None, {}
            for key in wire.keys_of(shard, 2, 50):  # no key of the job: reading makes no row
                assert client.pull([key], table=found.number(3), present=True).body[-1] == 0
            for version, _, rows in scan(client, found.number(3), dim, state=True):
                first = version if first is None else first
                assert version >= first
                for key, row in rows:
                    assert key not in seen and wire.shard_of(key, 2) == shard
                    seen[key] = row
            assert len(seen) > 1000
            present = client.pull(sorted(seen)[:999], table=found.number(3), present=True)
            assert present.numbers(5) == [999 * 4 * dim + 125] and present.body[-125:] == b"\xff" * 124 + b"\x7f"
    job.send_signal(signal.SIGTERM)
    job.wait(60)


def test_a_scan_goes_on_behind_a_restart(start_psd, tmp_path):
    psd = start_psd("--shards", "1", "--durability", "fsync", "--data-dir", str(tmp_path / "data"))
    n = 5000
    keys, rows = np.arange(n, dtype=np.int64), np.random.default_rng(4).random((n, 4), np.float32)
    imports(psd, write_safetensors(tmp_path / "in", {"t.keys": keys, "t.weight": rows}), "--make")
    seen = []
    with psd.connect(0, "reader") as client:
        table = client.table(must_exist=True, name="t").number(3)
        for version, at, got in scan(client, table, 4):
            seen += got
            if len(seen) > n // 3:
                break
    psd.kill()
    again = start_psd("--shards", "1", "--durability", "fsync", "--data-dir", str(tmp_path / "data"))
    with again.connect(0, "reader") as client:
        table = client.table(must_exist=True, name="t").number(3)
        for later, _, got in scan(client, table, 4, at=at):
            assert later >= version
            seen += got
    assert sorted(key for key, _ in seen) == list(range(n))
    for key, row in seen:
        assert row == rows[key].tobytes()


def test_rows_are_assigned_while_others_train_them(start_psd):
    psd = start_psd("--shards", "1")
    with psd.connect() as client:
        assert client.join(job="j").status == 0
        table = client.table(name="j/t", dim=2, optim=wire.ADAGRAD, epsilon=0.1).number(3)
        first = client.push([4, 8], wire.floats(1, 2, 3, 4), table=table, seq=1)
        state = wire.floats(1, 2, 0.5, 0.25, 3, 4, 4, 9)
        pushed = client.push([8, 9], state, table=table, seq=2, tick=False, op=wire.ASSIGN_STATE, steps=50)
        assert pushed.status == 0 and pushed.number(5) == first.number(5) + 1
        assert client.push([8, 9], state, table=table, seq=2, tick=False, op=wire.ASSIGN_STATE, steps=50).number(7) == 1
        rows = dict(row for _, _, part in scan(client, table, 2, state=True) for row in part)
        assert sorted(rows) == [4, 8, 9] and rows[8] + rows[9] == state
        bad = client.push([8, 9], wire.floats(1, 2, -1, 0, 3, 4, 5, 6), table=table, seq=3, op=wire.ASSIGN_STATE)
        assert bad.status == wire.STATUS["ENAN"] and "negative sum of squares" in bad.text

"""psctl on data directories: a real psd has trained, taken checkpoints, and been killed."""

import concurrent.futures
import json
import random
import shutil
import struct
import subprocess

import checkpoint
import pytest
import training
import wire
from conftest import BIN, Daemon, eventually
from wire import floats

np = pytest.importorskip("numpy", reason="python3-numpy is not installed: arrays cannot be read")

DAMAGED = 3  # the shard whose log tests damage


def psctl(*args):
    return subprocess.run([str(BIN / "psctl"), *map(str, args)], capture_output=True, text=True, timeout=300)


def psctl_json(*args, code=0):
    """What psctl prints, as an object."""
    got = psctl(*args, "--json")
    assert got.returncode == code, got.stderr + got.stdout
    return json.loads(got.stdout)


def refused(*args, code=1):
    got = psctl(*args)
    assert got.returncode == code and got.stdout == "", got.stdout + got.stderr
    lines = [line for line in got.stderr.splitlines() if not line.startswith("psctl: note: ")]
    assert len(lines) == 1 and lines[0].startswith("psctl: "), got.stderr
    return lines[0]


def assert_same(a, b):
    difference = psctl_json("diff", a, b)
    assert difference["same"], difference
    assert len(difference["tables"]) > 0


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The data of a psd of four shards with a job: a full checkpoint, deltas on it, and a log beyond; then kill -9.

    Small batches: the job's first pass, which alone makes rows, is to outlast the checkpoints on the slowest disk.
    """
    base = tmp_path_factory.mktemp("killed")
    training.synth(base / "clicks.tsv", 12000)
    psd = Daemon(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--shards", "4", "--data-dir", "data",
                  "--checkpoint-every", "0", "--keep", "10", "--durability", "fsync"], base)
    job = training.psworker("train", "--format", "criteo", "--data", base / "clicks.tsv", "--job", "j", "--epochs", "10000",
                            "--batch", "16", "--table-storage", "bf16", "--servers", f"127.0.0.1:{psd.port}")

    eventually(lambda: psd.stats()["jobs"])
    for _ in range(3):
        wait_for_more(psd, clock_of, 6)
        assert psctl("checkpoint", "--server", f"127.0.0.1:{psd.port}").returncode == 0
    sizes = []
    for _ in range(2):  # with 3 syncs what was written before is durable, and blocks behind it say so; reports come late
        wait_for_more(psd, clock_of, 8)
        wait_for_more(psd, syncs_of, 8)
        sizes.append({s.name: s.stat().st_size for s in segments(base / "data")})
    wait_for_more(psd, syncs_of, 8)
    psd.kill()
    job.kill()
    job.wait()
    name, end = max(sizes[1].items())
    (base / "promised.json").write_text(json.dumps([name, sizes[0].get(name, 0), end]))
    return base / "data"


def wait_for_more(psd, number_of, n):
    start = number_of(psd)
    eventually(lambda: number_of(psd) >= start + n)


def clock_of(psd):
    (job,) = psd.stats()["jobs"]
    return job["min_clock"]


def syncs_of(psd):
    return psd.stats()["shards"][DAMAGED]["log"]["syncs"]


def segments(data):
    return sorted(data.glob(f"log/*/shard-{DAMAGED:03}/*.psl"))


@pytest.fixture
def copy(killed, tmp_path):
    return shutil.copytree(killed, tmp_path / "copy")


# --- verify ---

def test_what_a_killed_psd_has_left_is_whole(killed):
    report = psctl_json("verify", killed)
    assert report["damage"] == []
    assert [c["verdict"] for c in report["checkpoints"]] == ["whole"] * 3
    assert [c["base"] for c in report["checkpoints"]] == [0, 1, 2]
    assert len(report["logs"]) == 4 and all(log["last"] > 24 for log in report["logs"])
    assert psctl_json("verify", killed / "checkpoints/00000000000000000003")["damage"] == []


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_every_byte_of_a_checkpoint_counts(copy):
    dice = random.Random(5)
    for file in sorted((copy / "checkpoints").glob("*/*")):
        for at in (0, dice.randrange(file.stat().st_size), file.stat().st_size - 1):
            flip(file, at)
            damage = psctl_json("verify", file.parent, code=1)["damage"]
            assert any(file.parent.name in sentence for sentence in damage), (file, at, damage)
            flip(file, at)
    assert psctl_json("verify", copy)["damage"] == []


def test_a_damaged_link_takes_the_restore_points_on_it_with_it(copy):
    part = copy / "checkpoints/00000000000000000002/shard-001.psc"
    flip(part, part.stat().st_size // 2)
    damage = psctl_json("verify", copy, code=1)["damage"]
    assert "shard-001.psc" in damage[0] and "byte" in damage[0]
    assert any(sentence.startswith("restore point 3 is of no use") for sentence in damage)
    got = psctl("verify", copy)
    assert got.returncode == 1 and got.stdout.endswith("2 things are damaged\n")


@pytest.fixture(scope="module")
def scanned(tmp_path_factory):
    """The data of a psd whose one checkpoint was scanned so slowly that pushes came meanwhile: without its log it is
    none. All pushes were acknowledged; then kill -9. The data directory, and how many pushes there were."""
    base = tmp_path_factory.mktemp("walked")
    psd = Daemon(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--shards", "1", "--data-dir", "data",
                  "--durability", "fsync", "--checkpoint-rate", "256K"], base)
    seq = 1
    with psd.connect() as client:
        table = client.table(name="t", dim=32).number(3)
        assert client.join().status == 0
        assert client.push(range(1, 2001), floats(*[1] * 64000), table=table, seq=1, clock=0).status == 0
        asked = subprocess.Popen([str(BIN / "psctl"), "checkpoint", "--server", f"127.0.0.1:{psd.port}"],
                                 stdout=subprocess.DEVNULL)
        while asked.poll() is None:
            seq += 1
            assert client.push([seq], floats(*[1] * 32), table=table, seq=seq, clock=seq - 1).status == 0
        assert asked.returncode == 0
    psd.kill()
    return base / "data", seq


def test_a_log_without_records_that_a_checkpoint_needs_is_damage(scanned, tmp_path):
    data, n_pushes = scanned
    scan = checkpoint.manifest(data)["files"][0]
    assert scan["through"] - scan["first"] > 10
    assert psctl_json("verify", data)["damage"] == []
    assert psctl_json("replay", data)["tables"][0]["pushes"] == n_pushes

    copy = shutil.copytree(data, tmp_path / "copy")
    segment = sorted(copy.glob("log/*/shard-000/*.psl"))[-1]
    assert int(segment.stem) == scan["first"] + 1  # a checkpoint begins a segment
    segment.write_bytes(segment.read_bytes()[:200])
    report = psctl_json("verify", copy, code=1)
    assert [c["verdict"] for c in report["checkpoints"]] == ["whole"]
    needs, truncation = report["damage"]
    assert needs == (f"restore point 1, shard 0: needs records {scan['first'] + 1} to {scan['through']} of its log, "
                     "0 are there")
    assert "it is truncated" in truncation
    assert f"needs the log up to record {scan['through']}" in refused("replay", copy)


@pytest.mark.parametrize("place", [0.33, 0.8])
def test_a_flipped_byte_that_was_promised_damages_the_log(killed, copy, tmp_path, place):
    """Of what no checkpoint has."""
    name, start, end = json.loads((killed.parent / "promised.json").read_text())
    (segment,) = (s for s in segments(copy) if s.name == name)
    flip(segment, int(start + (end - start) * place))
    damage = psctl_json("verify", copy, code=1)["damage"]
    assert any(f"shard {DAMAGED}" in sentence and "byte" in sentence and segment.name in sentence for sentence in damage), damage
    lines = psctl("verify", copy).stdout.splitlines()
    assert not any(line.startswith("whole") and f"shard {DAMAGED}:" in line for line in lines), lines
    assert sum(line.startswith("whole    log") for line in lines) == 3
    assert "damaged behind record" in refused("replay", copy)
    assert "damaged behind record" in refused("export", copy, "--out", tmp_path / "out")
    assert "damaged behind record" in refused("restore", copy, "--to", tmp_path / "to")
    assert not (tmp_path / "out").exists() and not list((tmp_path / "to").glob("checkpoints/*"))


def test_an_unfinished_checkpoint_is_no_damage(copy):
    (copy / "checkpoints/00000000000000000003/MANIFEST").unlink()
    report = psctl_json("verify", copy)
    assert [c["verdict"] for c in report["checkpoints"]] == ["whole", "whole", "unfinished"]


def test_tools_read_while_psd_writes(start_psd, tmp_path):
    psd = start_psd("--shards", "2", "--data-dir", str(tmp_path / "d"), "--checkpoint-every", "50ms", "--keep", "2")
    with psd.connect() as client:
        table = client.table(name="t", dim=4).number(3)
        assert client.join().status == 0
        keys = wire.keys_of(0, 2, 50)
        for seq in range(1, 61):
            assert client.push(keys, floats(*[seq] * 200), table=table, seq=seq, clock=seq - 1).status == 0
            if seq % 6 == 0:
                assert psctl_json("verify", tmp_path / "d")["damage"] == []
        eventually(lambda: [t["pushes"] for t in psctl_json("replay", tmp_path / "d")["tables"]] == [60])
    assert [t["rows"] for t in psctl_json("replay", tmp_path / "d")["tables"]] == [50]


def test_tools_read_while_checkpoints_go_and_the_log_is_truncated(start_psd, tmp_path):
    data = tmp_path / "d"
    psd = start_psd("--shards", "1", "--data-dir", str(data), "--checkpoint-every", "20ms", "--checkpoint-deltas", "2",
                    "--keep", "1", "--durability", "none")  # segments of 64 MiB, which 250 pushes fill
    load = subprocess.Popen([str(BIN / "psbench"), "push", "--server", f"127.0.0.1:{psd.port}", "--rows", "5000", "--dim", "64",
                             "--rate", "400", "--seconds", "500", "--warmup", "0"], stdout=subprocess.DEVNULL)
    firsts, newest, n_pushes = set(), set(), [0]
    try:
        eventually(lambda: any(data.glob("checkpoints/*/MANIFEST")))
        eventually(lambda: any(t["pushes"] for t in psctl_json("replay", data)["tables"]))
        while len(firsts) < 3 or len(newest) < 5:  # the log was cut, and all checkpoints were replaced
            assert load.poll() is None, (firsts, newest)
            report = psctl_json("verify", data)
            assert report["damage"] == []
            firsts.add(report["logs"][0]["first"])
            newest.add(max(c["number"] for c in report["checkpoints"]))
            n_pushes.append(psctl_json("replay", data)["tables"][0]["pushes"])
            assert n_pushes[-1] >= n_pushes[-2]
            psctl_json("export", data, "--out", tmp_path / f"{len(n_pushes)}.safetensors")
            assert psctl_json("checkpoints", data)["checkpoints"]
    finally:
        load.kill()
        load.wait()
    psd.kill()
    report = psctl_json("verify", data)
    assert report["damage"] == []
    whole = [c for c in report["checkpoints"] if c["verdict"] == "whole"]
    points = psctl_json("checkpoints", data)["checkpoints"]
    assert [(c["number"], c.get("log_cut")) for c in points] == [(c["number"], c.get("log_cut")) for c in whole]
    for point in points:
        if point.get("log_cut"):
            assert "needs the log up to record" in refused("replay", data, "--at", point["number"])
    assert "log_cut" not in points[-1]
    psctl_json("replay", data, "--at", points[-1]["number"])


# --- checkpoints, --at ---

def test_restore_points_are_listed_and_can_be_gone_back_to(killed):
    points = psctl_json("checkpoints", killed)["checkpoints"]
    assert [p["number"] for p in points] == [1, 2, 3] and [p["base"] for p in points] == [0, 1, 2]
    clocks = [p["jobs"][0]["min_clock"] for p in points]
    assert clocks == sorted(clocks) and points[0]["jobs"][0]["name"] == "j"
    lines = psctl("checkpoints", killed).stdout.splitlines()
    assert len(lines) == 4 and "delta to 2" in lines[3] and f"j:{clocks[2]}" in lines[3]

    clock = clocks[2] + 2
    exact = psctl_json("replay", killed, "--at", f"j:{clock}")["tables"]
    assert {t["pushes"] for t in exact if t["name"] != "j/model"} == {clock}  # the record of the model is not trained
    end = psctl_json("replay", killed)["tables"]
    assert all(t["pushes"] > clock for t in end if t["name"] != "j/model")
    assert "checkpoint 9" in refused("replay", killed, "--at", "9")
    assert "10000" in refused("replay", killed, "--at", "j:10000")
    refused("replay", killed, "--at", "j:", code=2)


# --- restore ---

def test_four_shards_three_five_four_are_the_same_rows(killed, tmp_path):
    before = killed
    for n_shards in (3, 5, 4):
        made = psctl_json("restore", before, "--to", tmp_path / str(n_shards), "--shards", n_shards)
        assert made["shards"] == n_shards and made["rows"] > 1000
        assert psctl_json("verify", tmp_path / str(n_shards))["damage"] == []
        before = tmp_path / str(n_shards)
        assert_same(killed, before)
    assert psctl_json("replay", killed, "--against", before)["against"]["same"]
    digests = [psctl_json("replay", path)["tables"] for path in (killed, before)]
    assert digests[0] == digests[1]


def test_nodes_of_another_cluster_hold_the_same_rows_together(killed, tmp_path):
    for node in (0, 1, 2):
        psctl_json("restore", killed, "--to", tmp_path / str(node), "--nodes", 3, "--node", node, "--shards", 2)
    nodes = ",".join(str(tmp_path / str(node)) for node in (2, 0, 1))
    assert_same(killed, nodes)
    psctl_json("restore", nodes, "--to", tmp_path / "one", "--shards", 1)
    assert_same(killed, tmp_path / "one")
    assert "by node 0, one of 3 nodes" in refused("restore", tmp_path / "0", "--to", tmp_path / "x")
    assert "both" in refused("diff", f"{tmp_path / '0'},{tmp_path / '0'}", killed)


def test_one_table_alone_is_restored(killed, tmp_path):
    made = psctl_json("restore", killed, "--to", tmp_path / "d", "--table", "j/emb")
    assert made["tables"] == 1
    tables = psctl_json("diff", killed, tmp_path / "d", code=1)["tables"]
    assert [t["name"] for t in tables if t["in_b"]] == ["j/emb"]
    assert all(t["rows_a"] == t["rows_b"] and t["changed"] == t["restamped"] == 0 for t in tables if t["in_b"])
    assert "no table nope" in refused("restore", killed, "--to", tmp_path / "e", "--table", "nope")


def test_what_is_there_is_not_replaced(killed, tmp_path):
    psctl_json("restore", killed, "--to", tmp_path / "d")
    files = sorted(p.name for p in (tmp_path / "d").rglob("*"))
    assert "already" in refused("restore", killed, "--to", tmp_path / "d")
    assert files == sorted(p.name for p in (tmp_path / "d").rglob("*"))


def test_psd_serves_what_was_restored(start_psd, killed, tmp_path):
    psctl_json("restore", killed, "--to", tmp_path / "d", "--shards", 3, "--at", "3")
    psctl_json("export", killed, "--at", "3", "--out", tmp_path / "npy", "--format", "npy", "--state", "--table", "j/emb")
    keys, weights, state = [np.load(tmp_path / f"npy/j%2Femb.{name}.npy") for name in ("keys", "weight", "state.s")]
    psd = start_psd("--shards", "3", "--data-dir", str(tmp_path / "d"))
    for i in range(0, len(keys), len(keys) // 7):
        key = int(keys[i:i + 1].view(np.uint64)[0])
        row = psctl_json("row", "j/emb", key, "--server", f"127.0.0.1:{psd.port}")
        assert row["found"] and row["key"] == str(key)
        assert np.array_equal(np.array(row["weights"], "f4"), weights[i])
        assert np.array_equal(np.array(row["state"], "f4"), state[i].reshape(-1))


# --- export ---

def read_safetensors(path):
    """By the format's own description."""
    data = path.read_bytes()
    n = struct.unpack_from("<Q", data)[0]
    head = json.loads(data[8:8 + n])
    notes = head.pop("__metadata__")
    arrays = {}
    for name, item in head.items():
        begin, end = (8 + n + at for at in item["data_offsets"])
        arrays[name] = np.frombuffer(data[begin:end], {"F32": "<f4", "I64": "<i8"}[item["dtype"]]).reshape(item["shape"])
    assert max(item["data_offsets"][1] for item in head.values()) == len(data) - 8 - n
    return arrays, notes


def test_both_formats_hold_what_the_files_hold(killed, tmp_path):
    psctl_json("restore", killed, "--to", tmp_path / "one", "--shards", 1)
    rows = checkpoint.read_tables([tmp_path / "one"])
    psctl_json("export", killed, "--out", tmp_path / "m.safetensors", "--state")
    psctl_json("export", killed, "--out", tmp_path / "npy", "--format", "npy", "--state")
    arrays, notes = read_safetensors(tmp_path / "m.safetensors")
    assert "is there already" in refused("export", killed, "--out", tmp_path / "m.safetensors")
    tables = json.loads((tmp_path / "npy/tables.json").read_text())["tables"]
    files = [tmp_path / "npy" / f"{name}.npy" for t in tables for name in t["arrays"]]
    assert len(files) == len(arrays) and {f"psd:{t['name']}" for t in tables} < set(notes)
    for name, array in arrays.items():
        assert np.array_equal(np.load(tmp_path / "npy" / (name.replace("/", "%2F") + ".npy")), array), name
    assert set(rows) == {t["name"] for t in tables}
    for t in tables:
        if t["kind"] == "sparse":
            keys = arrays[t["name"] + ".keys"]
            assert len(keys) == len(rows[t["name"]]) and np.all(np.diff(keys) > 0)
            both = np.concatenate([arrays[t["name"] + ".weight"], arrays[t["name"] + ".state.s"].reshape(len(keys), -1)], 1)
            want = b"".join(rows[t["name"]][int(key)] for key in keys.view(np.uint64))
        else:
            both = arrays[t["name"]]
            blocks = [rows[t["name"]][i][:4 * t["dim"]] for i in range(len(rows[t["name"]]))]
            want = b"".join(blocks)[:4 * t["n_floats"]]
        assert both.astype("<f4").tobytes() == want, t["name"]


def test_pytorch_takes_the_arrays(killed, tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    psctl_json("export", killed, "--out", tmp_path / "npy", "--format", "npy", "--table", "j/emb")
    weights = torch.from_numpy(np.load(tmp_path / "npy/j%2Femb.weight.npy"))
    keys = torch.from_numpy(np.load(tmp_path / "npy/j%2Femb.keys.npy"))
    bag = torch.nn.Embedding.from_pretrained(weights)
    at = torch.searchsorted(keys, keys[17])
    assert torch.equal(bag(at), weights[17]) and keys.dtype == torch.int64


@pytest.mark.parametrize("form", ["safetensors", "npy"])
def test_a_table_that_is_no_record_of_a_model_is_an_array_alone(start_psd, tmp_path, form):
    psd = start_psd("--shards", "1", "--data-dir", str(tmp_path / "d"))
    records = {"junk": [1000, 3.5, -1, 300] * 8, "text": b'{"format": 1}', "cut": b'{"format": "psd model 1"', "real": b'{"format":"psd model 1"}'}
    with psd.connect() as client:
        for job, floats in records.items():
            table = client.table(name=f"{job}/model", kind=wire.DENSE, dim=32, n_floats=32).number(3)
            assert client.join(job=job).status == 0
            assert client.push([0], struct.pack("<32f", *(list(floats) + [0] * 32)[:32]), table=table, op=wire.ASSIGN).status == 0
            assert client.leave().status == 0
        client.table(name="empty/model", kind=wire.DENSE, dim=32, n_floats=32)
    psd.stop()
    psctl_json("export", tmp_path / "d", "--format", form, "--out", tmp_path / "out")
    if form == "npy":
        models = json.loads((tmp_path / "out/tables.json").read_text())["models"]
    else:
        models = {name[10:]: json.loads(text) for name, text in read_safetensors(tmp_path / "out")[1].items() if name.startswith("psd.model:")}
    assert models == {"real": {"format": "psd model 1"}}


@pytest.mark.parametrize("form", ["safetensors", "npy"])
def test_two_arrays_of_one_name_are_refused_before_anything_is_written(start_psd, tmp_path, form):
    psd = start_psd("--shards", "2", "--data-dir", str(tmp_path / "d"))
    for shard in range(2):
        with psd.connect(shard) as client:
            client.table(name="x", dim=4)
            client.table(name="x.weight", kind=wire.DENSE, dim=4, n_floats=10)
            client.table(name="__metadata__", kind=wire.DENSE, dim=4, n_floats=10)
    psd.stop()
    sentence = refused("export", tmp_path / "d", "--format", form, "--out", tmp_path / "out")
    assert "tables x and x.weight both have an array x.weight" in sentence
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.tmp").exists()
    for i, table in enumerate(("x", "x.weight")):
        psctl_json("export", tmp_path / "d", "--format", form, "--out", tmp_path / str(i), "--table", table)
    rest = ["export", tmp_path / "d", "--format", form, "--table", "x,__metadata__", "--out", tmp_path / "out"]
    if form == "npy":
        assert psctl_json(*rest)["arrays"] == 3
    else:
        assert "__metadata__" in refused(*rest) and not (tmp_path / "out").exists()


# --- diff ---

def test_a_diff_reports_what_came_and_what_moved(killed):
    report = psctl_json("diff", killed, killed, "--at", "2")
    assert report["same"]
    first = killed / "checkpoints/00000000000000000001"
    emb = next(t for t in psctl_json("diff", first, killed, "--top", 3, code=1)["tables"] if t["name"] == "j/emb")
    assert emb["only_b"] == emb["rows_b"] - emb["rows_a"] > 0 and emb["only_a"] == 0 and len(emb["only_b_keys"]) == 8
    drifts = [item["l2"] for item in emb["top"]]
    assert len(drifts) == 3 and drifts == sorted(drifts, reverse=True) and drifts[0] == emb["drift"]["max"]
    assert 0 < emb["drift"]["mean"] <= emb["drift"]["p99"] <= emb["drift"]["max"]
    got = psctl("diff", first, killed, "--top", 1)
    lines = got.stdout
    assert got.returncode == 1
    assert "  only in B" in lines and "  drift " in lines
    got = psctl("replay", first, "--against", killed)
    assert got.returncode == 1 and "changed" in got.stdout


# --- row ---

def test_a_row_names_the_worker_that_pushed_it_last(start_psd, tmp_path):
    psd = start_psd("--shards", "2", "--data-dir", str(tmp_path / "d"))
    address = f"127.0.0.1:{psd.port}"
    keys = wire.keys_of(1, 2, 3)
    with psd.connect(1) as one, psd.connect(1) as other:
        table = one.table(name="t", dim=2, optim=wire.ADAGRAD, lr=0.5, epsilon=1e-10).number(3)
        for rank, client in enumerate((one, other)):
            assert client.join(job="shop", rank=rank, n_workers=2, incarnation=70 + rank).status == 0
        assert one.push(keys, floats(*range(1, 7)), table=table, seq=1, clock=0).status == 0
        assert other.push(keys[1:2], floats(1, 1), table=table, seq=1, clock=0).status == 0
        row = psctl_json("row", "t", keys[0], "--server", address)
        assert row["pushed_by"] == {"job": "shop", "clock": 0, "combined": False, "rank": 0, "incarnation": "70", "seq": 1}
        assert (row["version"], row["touches"], row["optimizer"]) == (1, 1, "adagrad") and row["state"] == [1, 4]
        text = psctl("row", "t", hex(keys[1]), "--server", address).stdout
        assert "job shop, clock 0: rank 1, incarnation 71, push number 1\n" in text and "version      2, 2 touches" in text
    psctl_json("checkpoint", "--server", address)
    psd.kill()
    psd = start_psd("--shards", "2", "--data-dir", str(tmp_path / "d"))
    address = f"127.0.0.1:{psd.port}"
    row = psctl_json("row", "t", keys[1], "--server", address)
    assert row["version"] == 2 and "pushed_by" not in row
    assert "not among the last 65,536 pushes" in psctl("row", "t", keys[1], "--server", address).stdout
    absent = psctl("row", "t", wire.keys_of(1, 2, 4)[3], "--server", address)
    assert "there is none" in absent.stdout and (absent.returncode, absent.stderr) == (1, "")
    assert not psctl_json("row", "t", wire.keys_of(1, 2, 4)[3], "--server", address, code=1)["found"]
    assert "no table nope" in refused("row", "nope", 1, "--server", address)


def test_a_row_on_another_node_is_asked_for_there(start_psd, tmp_path):
    ports = training.free_ports(2)
    cluster = ",".join(f"127.0.0.1:{port}" for port in ports)
    nodes = [start_psd("--listen", f"127.0.0.1:{port}", "--cluster", cluster, "--node", str(i), "--shards", "2",
                       "--data-dir", str(tmp_path / str(i))) for i, port in enumerate(ports)]
    for shard in range(4):
        with nodes[shard // 2].connect(shard % 2) as client:
            table = client.table(name="t", dim=1).number(3)
            assert client.join().status == 0
            assert client.push(wire.keys_of(shard, 4, 1), floats(shard), table=table).status == 0
    for port in ports:
        for shard in range(4):
            row = psctl_json("row", "t", wire.keys_of(shard, 4, 1)[0], "--server", f"127.0.0.1:{port}")
            assert (row["shard"], row["node"], row["weights"]) == (shard, shard // 2, [-shard])


def test_many_peers_that_ask_for_rows_and_leave_do_no_harm(start_psd):
    psd = start_psd("--shards", "3")
    for shard in range(3):
        with psd.connect(shard) as client:
            client.table(name="t", dim=4)

    def leave_at_once(i):
        with psd.connect(wire.LISTENER, "operator") as client:
            client.send(wire.frame("admin", wire.head((1, "row"), (2, f"{i} t"))))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(leave_at_once, range(100)))
    assert not psctl_json("row", "t", 1, "--server", f"127.0.0.1:{psd.port}", code=1)["found"]
    for argument in ("", "7", "x t", "7 ", "99999999999999999999 t"):
        with psd.connect(wire.LISTENER, "operator") as client:
            assert client.admin("row", argument).text.startswith("row: found ")


# --- misuse ---

@pytest.mark.parametrize("args, code, words", [
    (["verify"], 2, "expected psctl verify PATH"),
    (["verify", "a", "b"], 2, '"b"'),
    (["verify", "nowhere"], 1, "no such directory: nowhere"),
    (["verify", "nowhere", "--to", "x"], 2, "has no use for --to"),
    (["status", "--out", "x"], 2, "has no use for --out"),
    (["checkpoints", "nowhere"], 1, "no such directory: nowhere"),
    (["replay", "nowhere"], 1, "nowhere"),
    (["replay", "a,,b"], 2, "empty path"),
    (["replay", "nowhere", "--at", "7x"], 2, "7x"),
    (["diff", "nowhere"], 2, "expected psctl diff A B"),
    (["export", "nowhere"], 2, "--out PATH"),
    (["export", "nowhere", "--out", "x", "--format", "pickle"], 2, "pickle"),
    (["restore", "nowhere"], 2, "--to DATA_DIR"),
    (["restore", "nowhere", "--to", "d", "--nodes", "0"], 2, "nodes"),
    (["row", "t"], 2, "expected psctl row TABLE KEY"),
    (["row", "t", "seven"], 2, "seven"),
])
def test_a_wrong_question_is_answered_with_one_sentence(args, code, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in refused(*args, code=code)


def test_a_file_that_cannot_be_written_is_named(killed, tmp_path):
    assert "missing/m" in refused("export", killed, "--out", tmp_path / "missing/m")
    got = subprocess.run(["sh", "-c", f"trap '' XFSZ; ulimit -f 10; exec {BIN}/psctl export {killed} --out {tmp_path}/m"],
                         capture_output=True, text=True)
    assert got.returncode == 1 and "cannot write" in got.stderr and list(tmp_path.iterdir()) == []

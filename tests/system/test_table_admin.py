"""psctl drop and psctl set: tables of a job on a running cluster, while workers are there, under kill -9, and when one
shard has dropped what another has not."""
import errno
import json
import random
import subprocess
import time

import pytest

import wire
from conftest import BIN, eventually
from training import Psd, finish, free_ports, synth
from wire import STATUS

DIM = 4
ROWS = 50


def psctl(psd, *args):
    return subprocess.run([str(BIN / "psctl"), *map(str, args), "--server", f"127.0.0.1:{psd.port}"], capture_output=True, text=True, timeout=120)


def offline(*args):
    return subprocess.run([str(BIN / "psctl"), *map(str, args)], capture_output=True, text=True, timeout=120)


def fill(psd, job="ctr", tables=3, shards=2):
    """Tables with rows, pushed by a worker of the job, which leaves."""
    for shard in range(shards):
        with psd.connect(shard) as client:
            ids = [client.table(name=f"{job}/t{i}", dim=DIM).number(3) for i in range(tables)]
            assert client.join(job=job, incarnation=int(time.time() * 1000)).status == 0
            keys = wire.keys_of(shard, shards, ROWS)
            for seq, table in enumerate(ids, 1):
                assert client.push(keys, wire.floats(*[1.0] * DIM * ROWS), table=table, seq=seq, clock=seq - 1).status == 0
            assert client.leave().status == 0


def state(psd, job="ctr", tables=3, shards=2):
    """For each shard, of each table the number of its keys that have a row; None: there is no such table."""
    found = []
    for shard in range(shards):
        with psd.connect(shard, "reader") as client:
            for i in range(tables):
                answer = client.table(name=f"{job}/t{i}", must_exist=True)
                if answer.status:
                    assert answer.status == STATUS["ENOTABLE"]
                    found.append(None)
                    continue
                keys = wire.keys_of(shard, shards, ROWS)
                got = wire.rows(client.pull(keys, table=answer.number(3)), DIM)
                found.append(sum(any(row) for row in got))
    return found


def test_a_job_without_workers_is_dropped_and_its_places_are_free_again(start_psd):
    psd = start_psd("--shards", "1", "--tables-max", "600")
    with psd.connect() as greedy, psd.connect() as second, psd.connect() as third:
        made = [client.table(name=f"ctr/{who}{i}") for who, client in enumerate((greedy, second)) for i in range(257)]
        refused = [answer for answer in made if answer.status]
        assert len(refused) == 2 and all(a.status == -errno.ENOSPC and "share" in a.text for a in refused)
        assert greedy.table(name="ctr/00").status == 0  # one that is there
        answers = [third.table(name=f"ads/{i}") for i in range(100)]
        full = [a for a in answers if a.status]
        assert len(full) == 12 and all(a.status == -errno.ENOSPC and "--tables-max" in a.text for a in full)
        assert full[0].text.endswith("ctr has 512 of them")
        eventually(lambda: "ctr has 512 of them: psctl drop" in psctl(psd, "why").stdout)
        assert "(wire.py) has made 256 tables" in psd.log()
        got = psctl(psd, "drop", "ctr")
        assert got.returncode == 1 and got.stdout.startswith("job ctr has 512 tables, 0 rows, ") and "nothing was dropped: --yes drops them" in got.stderr
        got = psctl(psd, "drop", "ctr", "--yes")
        assert (got.returncode, got.stderr) == (0, ""), got.stderr
        assert got.stdout.startswith("job ctr: dropped 512 tables, 0 rows")
        assert psctl(psd, "drop", "ctr", "--yes").stdout == "job ctr has no tables\n"
        assert third.table(name="ads/99").status == 0
        assert third.table(name="ads/99").number(3) == 600  # a number is not given again


def test_tables_without_a_slash_are_dropped_by_their_names(start_psd):
    psd = start_psd("--shards", "2")
    for shard in range(2):
        with psd.connect(shard) as client:
            assert client.table(name="bare").status == 0 and client.table(name="other").status == 0
    dropped = psctl(psd, "drop", "bare", "--yes")
    assert dropped.returncode == 0, dropped.stderr
    for shard in range(2):
        with psd.connect(shard) as client:
            assert client.table(name="bare", must_exist=True).status == STATUS["ENOTABLE"]
            assert client.table(name="other", must_exist=True).status == 0


def test_a_job_with_workers_is_not_dropped_and_old_numbers_are_reported(start_psd):
    psd = start_psd("--shards", "2")
    fill(psd)
    with psd.connect() as client, psd.connect(role="reader") as reader:
        assert client.join(job="ctr", incarnation=1 << 60).status == 0
        table = client.table(name="ctr/t0", dim=DIM).number(3)
        for args in (("drop", "ctr", "--yes"), ("set", "ctr", "lr=0.5")):
            got = psctl(psd, *args)
            assert got.returncode == 1 and "rank 0 (wire.py) is live" in got.stderr and "nothing was changed" in got.stderr
        assert client.leave().status == 0
        assert psctl(psd, "drop", "ctr", "--yes").returncode == 0
        answer = reader.pull([wire.keys_of(0, 2, 1)[0]], table=table)
        assert answer.status == STATUS["ENOTABLE"] and "was dropped" in answer.text
        assert client.join(job="other", incarnation=1).status == 0
        answer = client.push(wire.keys_of(0, 2, 1), wire.floats(*[1.0] * DIM), table=table)
        assert answer.status == STATUS["ENOTABLE"] and "was dropped" in answer.text
    assert state(psd) == [None] * 6


def test_pulls_that_wait_or_are_being_answered_end_with_their_table(start_psd):
    psd = start_psd("--shards", "1", "--lease", "300s")
    dim, keys = 64, list(range(1, 40001))
    with psd.connect() as client:
        table = client.table(name="ctr/large", dim=dim).number(3)
        small = client.table(name="ctr/small", dim=DIM).number(3)
        assert client.join(job="ctr").status == 0
        assert client.push(keys, bytes(4 * dim * len(keys)), table=table).status == 0
        assert client.leave().status == 0
    readers = [psd.connect(role="reader", frame_flags=flags) for flags in (0, 2) for _ in range(4)]
    with psd.connect() as parked:
        assert parked.join(job="other", n_workers=2, mode=wire.BSP).status == 0
        parked.send(wire.pull_frame([1], table=small, clock=1, request_id=70))
        assert parked.beat().status == 0 and 70 not in parked.kept
        for reader in readers:  # 10 MB each, which nobody reads yet
            reader.send(wire.pull_frame(keys, table=table, request_id=80))
        got = psctl(psd, "drop", "ctr", "--yes")
        assert got.returncode == 0, got.stderr
        answer = parked.wait(70)
        assert answer.status == STATUS["ENOTABLE"] and "dropped meanwhile" in answer.text
        ends = []
        for reader in readers:
            try:
                ends.append(reader.wait(80).status)
            except wire.Closed:
                ends.append("closed")
            reader.close()
        assert set(ends) <= {0, STATUS["ENOTABLE"], "closed"}, ends
        assert parked.leave().status == 0


@pytest.mark.parametrize("durability", ["async", "fsync"])
def test_a_kill_at_any_moment_leaves_each_table_whole_or_gone_and_what_was_answered_done(start_psd, tmp_path, durability):
    flags = ("--shards", "2", "--data-dir", str(tmp_path / "data"), "--durability", durability)
    dice = random.Random(durability)
    psd = start_psd(*flags)
    n_interrupted = 0
    fill(psd, job="stays", tables=1)
    assert psctl(psd, "checkpoint").returncode == 0
    for _ in range(6):
        fill(psd, tables=40)
        if dice.random() < 0.5:
            assert psctl(psd, "checkpoint").returncode == 0
        dropping = subprocess.Popen([str(BIN / "psctl"), "drop", "ctr", "--yes", "--server", f"127.0.0.1:{psd.port}"],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(dice.random() * 0.12)  # the moment of the kill is random; nothing is waited for
        psd.kill()
        done = dropping.wait() == 0
        psd = start_psd(*flags)
        left = state(psd, tables=40)
        if durability == "fsync":  # else pushes of the last 100 ms may be lost with the process
            assert all(n in (None, ROWS) for n in left), left
        assert not done or left == [None] * 80
        n_interrupted += not done
        # In async the kill may have taken the worker's leave with it: then it lives until its lease is over.
        eventually(lambda: psctl(psd, "drop", "ctr", "--yes").returncode == 0)
        psd.kill()  # what was answered is on the disk, whatever --durability is
        psd = start_psd(*flags)
        assert state(psd, tables=40) == [None] * 80
        assert set(state(psd, job="stays", tables=1)) == {ROWS}
    assert n_interrupted


def test_a_checkpoint_after_a_drop_has_neither_its_tables_nor_another_table_under_their_numbers(start_psd, tmp_path):
    data = tmp_path / "data"
    flags = ("--shards", "2", "--data-dir", str(data), "--durability", "fsync")
    psd = start_psd(*flags)
    fill(psd, job="first")
    fill(psd)
    fill(psd, job="last")
    assert psctl(psd, "checkpoint").returncode == 0
    assert psctl(psd, "drop", "ctr", "--yes").returncode == 0
    assert psctl(psd, "checkpoint").returncode == 0
    fill(psd, job="first")
    assert psctl(psd, "checkpoint").returncode == 0  # a delta to the one without them
    fill(psd)
    psd.kill()
    got = offline("verify", data)
    assert got.returncode == 0, got.stdout + got.stderr
    assert offline("export", data, "--out", tmp_path / "out.safetensors").returncode == 0
    psd = start_psd(*flags)
    assert all(set(state(psd, job=job)) == {ROWS} for job in ("first", "ctr", "last"))
    assert psctl(psd, "drop", "ctr", "--yes").returncode == 0
    assert psd.stop() == 0
    psd = start_psd("--shards", "3", "--data-dir", str(data))  # resharded
    assert psd.n_tables == 6
    assert json.loads(offline("replay", data, "--json").stdout)


def test_what_one_shard_has_dropped_and_another_has_not_goes_with_the_next_drop(start_psd, tmp_path):
    ports = free_ports(2)
    cluster = ",".join(f"127.0.0.1:{port}" for port in ports)
    nodes = [start_psd("--listen", f"127.0.0.1:{port}", "--cluster", cluster, "--node", str(i), "--shards", "1", "--data-dir", str(tmp_path / f"n{i}"))
             for i, port in enumerate(ports)]
    for node, psd in enumerate(nodes):
        with psd.connect() as client:
            table = client.table(name="ctr/t0", dim=DIM).number(3)
            assert client.join(job="ctr").status == 0
            assert client.push(wire.keys_of(node, 2, ROWS), wire.floats(*[1.0] * DIM * ROWS), table=table).status == 0
            assert client.leave().status == 0
    with nodes[0].connect(wire.LISTENER, "operator") as operator:
        assert operator.admin("drop", "ctr").status == 0
    for psd in nodes:
        assert psd.stop() == 0
    dirs = f"{tmp_path}/n0,{tmp_path}/n1"
    for args in (("export", dirs, "--out", tmp_path / "x.safetensors"), ("diff", dirs, dirs), ("replay", dirs),
                 ("restore", dirs, "--to", tmp_path / "r", "--shards", "2")):
        got = offline(*args)
        assert got.returncode == 0, got.stderr
    psd = start_psd("--shards", "2", "--data-dir", str(tmp_path / "r"))
    assert psd.n_tables == 1
    assert psctl(psd, "drop", "ctr", "--yes").returncode == 0
    assert state(psd, tables=1) == [None, None]
    nodes = [start_psd("--listen", f"127.0.0.1:{port}", "--cluster", cluster, "--node", str(i), "--shards", "1", "--data-dir", str(tmp_path / f"n{i}"))
             for i, port in enumerate(ports)]
    assert [psd.n_tables for psd in nodes] == [0, 1]
    got = psctl(nodes[0], "drop", "ctr", "--yes")
    assert got.returncode == 0 and got.stdout.startswith("job ctr: dropped 1 table, 50 rows"), got.stderr
    got = psctl(nodes[1], "drop", "no such job", "--yes")
    assert got.returncode == 0 and got.stdout == "job no such job has no tables\n"


def test_a_node_that_does_not_answer_leaves_all_as_they_were(start_psd, tmp_path):
    ports = free_ports(2)
    cluster = ",".join(f"127.0.0.1:{port}" for port in ports)
    psd = start_psd("--listen", f"127.0.0.1:{ports[0]}", "--cluster", cluster, "--shards", "1")
    with psd.connect() as client:
        assert client.table(name="ctr/t0").status == 0
        got = psctl(psd, "drop", "ctr", "--yes")
        assert got.returncode == 1 and "node 1" in got.stderr and "nothing was changed" in got.stderr
        assert client.table(name="ctr/t0", must_exist=True).status == 0


# --- psctl set ---

TRAIN = ("--format", "criteo", "--job", "ctr", "--bottom", "16", "--top", "16", "--dim", "4", "--batch", "64", "--seed", "7", "--device", "cpu")


def train(psd, data, state_dir, *flags):
    worker = subprocess.Popen([str(BIN / "psworker"), "train", "--data", data, "--servers", f"127.0.0.1:{psd.port}", "--state-dir", state_dir,
                               *TRAIN, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = worker.communicate(timeout=120)
    return worker.returncode, err


def test_a_job_goes_on_with_another_learning_rate(start_psd, tmp_path):
    data = synth(tmp_path / "log.tsv", 2048)
    flags = ("--shards", "2", "--data-dir", str(tmp_path / "data"), "--durability", "fsync")
    psd = start_psd(*flags)
    code, said = train(psd, data, tmp_path / "state", "--lr", "0.01")
    assert code == 0, said
    got = psctl(psd, "set", "ctr", "lr=0.005")
    assert got.returncode == 0 and got.stdout.startswith("job ctr: changed"), got.stderr
    psd.kill()
    psd = start_psd(*flags)
    code, said = train(psd, data, tmp_path / "state2", "--lr", "0.01")
    assert code == 2 and "learning_rate is 0.005 here, 0.01 was asked for" in said and "psctl set ctr lr=0.01 changes it" in said
    code, said = train(psd, data, tmp_path / "state2", "--lr", "0.005")
    assert code == 0, said
    assert psd.stop() == 0
    psd = start_psd(*flags)  # from a checkpoint
    code, said = train(psd, data, tmp_path / "state3", "--lr", "0.005")
    assert code == 0, said
    for bad in ("dim=3", "lr", "lr=x", "decay=never"):
        got = psctl(psd, "set", "ctr", bad)
        assert got.returncode == 1 and "setting" in got.stderr, bad
    assert psctl(psd, "set", "nothing", "lr=1").stdout == "job nothing has no tables\n"


SETS = {
    "batch norm": (("--batch-norm", "--lr", "0.01"), "lr=0.005,weight-decay=0.001", ("--batch-norm", "--lr", "0.005", "--weight-decay", "0.001")),
    "early stop": (("--early-stop", "2", "--eval-every", "10", "--valid-fraction", "0.2", "--lr", "0.01"), "lr=0.005",
                   ("--early-stop", "2", "--eval-every", "10", "--valid-fraction", "0.2", "--lr", "0.005")),
    "schedule": (("--lr", "0.01", "--batch-norm"), "warmup=7,decay-clocks=50,decay=linear,decay-floor=0.25",
                 ("--lr", "0.01", "--batch-norm", "--warmup", "7", "--decay", "linear", "--decay-clocks", "50", "--decay-floor", "0.25")),
    "clip": (("--lr", "0.01", "--clip-norm", "1"), "clip=2", ("--lr", "0.01", "--clip-norm", "2")),
    "sgd": (("--lr", "0.01", "--dense-optimizer", "sgd", "--dense-lr", "1", "--batch-norm"), "dense-lr=0.5",
            ("--lr", "0.01", "--dense-optimizer", "sgd", "--dense-lr", "0.5", "--batch-norm")),
}


@pytest.mark.parametrize("case", SETS)
def test_a_job_with_tables_that_are_not_trained_goes_on_with_what_was_set(start_psd, tmp_path, case):
    before, settings, after = SETS[case]
    data = synth(tmp_path / "log.tsv", 1024)
    flags = ("--shards", "2", "--data-dir", str(tmp_path / "data"), "--durability", "fsync")
    psd = start_psd(*flags)
    code, said = train(psd, data, tmp_path / "state", *before)
    assert code == 0, said
    assert psctl(psd, "set", "ctr", settings).returncode == 0
    psd.kill()
    psd = start_psd(*flags)
    code, said = train(psd, data, tmp_path / "state2", *before)
    assert code == 2 and "psctl set ctr " in said, said
    code, said = train(psd, data, tmp_path / "state2", *after)
    assert code == 0, said
    assert psctl(psd, "checkpoint").returncode == 0
    psd.kill()
    psd = start_psd(*flags)
    code, advice = train(psd, data, tmp_path / "state3", *before)
    for _ in range(4):  # one command for embeddings, one for dense tables at most
        if code == 0:
            break
        assert code == 2, advice
        wanted = advice.split("(psctl set ctr ")[1].split(" changes it")[0]
        assert psctl(psd, "set", "ctr", wanted).returncode == 0, wanted
        code, advice = train(psd, data, tmp_path / "state3", *before)
    assert code == 0, advice


def test_means_of_columns_keep_their_settings(start_psd, tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("y,a,b\n" + "".join(f"{i % 2},{i % 7}.5,t{i % 5}\n" for i in range(500)))
    psd = start_psd("--shards", "1")
    run = lambda *flags: subprocess.run([str(BIN / "psworker"), "train", "--servers", f"127.0.0.1:{psd.port}", "--job", "ctr", "--delimiter", ",",
                                         "--header", "--label", "y", "--numeric", "a", "--categorical", "b", "--numeric-as", "standardise", "--dim", "4",
                                         "--bottom", "4", "--top", "4", "--data", str(log), *flags], capture_output=True, text=True, timeout=120)
    assert run("--lr", "0.01").returncode == 0
    assert psctl(psd, "set", "ctr", "lr=0.005").returncode == 0
    got = run("--lr", "0.005")
    assert got.returncode == 0, got.stderr


def test_a_job_whose_statistics_an_earlier_set_has_changed_goes_on(start_psd, tmp_path):
    """Under its own name such a table is changed, as every table of a job was once."""
    data = synth(tmp_path / "log.tsv", 1024)
    flags = ("--shards", "2", "--data-dir", str(tmp_path / "data"), "--durability", "fsync")
    psd = start_psd(*flags)
    code, said = train(psd, data, tmp_path / "state", "--batch-norm")
    assert code == 0, said

    def statistics():  # a shard reports once a second or so
        return [t["name"] for t in psd.admin("tables")["tables"] if t["name"].endswith((".mean", ".var"))]

    eventually(statistics)
    for name in statistics():
        got = psctl(psd, "set", name, "lr=0.005,dense-clip=1")
        assert got.returncode == 0 and "changed 1 table," in got.stdout, got.stdout + got.stderr
    psd.kill()
    psd = start_psd(*flags)
    code, said = train(psd, data, tmp_path / "state2", "--batch-norm")
    assert code == 0, said
    psd.kill()
    psd = start_psd(*flags)  # the cure is in the log
    code, said = train(psd, data, tmp_path / "state3", "--batch-norm")
    assert code == 0, said


def test_a_worker_that_joins_during_a_drop_finds_all_shards_changed_or_none(start_psd, tmp_path):
    shards, tables = 4, 20
    psd = start_psd("--shards", str(shards), "--data-dir", str(tmp_path / "data"), "--durability", "fsync")
    dice = random.Random(1)
    ends, span, n = set(), 0.03, 0
    while n < 12 or len(ends) < 2:  # on a slow machine psctl starts late: the joins do, too, until it has come first
        n += 1
        assert n < 60, (ends, span)
        fill(psd, tables=tables, shards=shards)
        dropping = subprocess.Popen([str(BIN / "psctl"), "drop", "ctr", "--yes", "--server", f"127.0.0.1:{psd.port}"],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(dice.random() * span)
        clients = [psd.connect(shard) for shard in range(shards)]
        for client in reversed(clients):
            while (joined := client.join(job="ctr", incarnation=int(time.time() * 1000))).status == -errno.EBUSY:
                time.sleep(0.001)
            assert joined.status == 0, joined.text
        there = [answer.status == 0 for client in clients for i in range(tables) for answer in [client.table(name=f"ctr/t{i}", must_exist=True)]]
        out, err = dropping.communicate(timeout=60)
        assert all(there) or not any(there), (there, out, err)
        assert dropping.returncode == 0 if not any(there) else "nothing was changed" in err, (out, err)
        ends.add(any(there))
        span *= 1.3 if any(there) else 0.8
        for client in clients:
            assert client.leave().status == 0
            client.close()
        assert psctl(psd, "drop", "ctr", "--yes").returncode == 0
    assert False in ends

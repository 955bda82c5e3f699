"""psd dies in the middle of a step of a job, and its data goes to another layout: rows are of one clock, what is left out
is told, and what cannot be had is refused."""

import json
import shutil
import subprocess

import pytest

import wire
from conftest import BIN, Daemon, eventually
from training import free_ports

DIM = 4
KEYS = list(range(1, 61))


class Job:
    """Two workers at every shard. Gradients are 1, sgd steps by 1: a row says how many steps it has seen."""

    def __init__(self, connects, mode):
        self.workers = {}
        for shard, connect in enumerate(connects):
            for rank in range(2):
                client = self.workers[shard, rank] = connect()
                assert client.join(n_workers=2, rank=rank, incarnation=5 + rank, mode=mode, bound=9).status == 0
                assert client.table(name="t", dim=DIM, optim=wire.SGD, lr=1.0).status == 0
        self.keys = [[k for k in KEYS if wire.shard_of(k, len(connects)) == shard] for shard in range(len(connects))]

    def push(self, shard, rank, clock):
        values = wire.floats(*[1.0] * (DIM * len(self.keys[shard])))
        answer = self.workers[shard, rank].push(self.keys[shard], values, seq=clock + 1, clock=clock)
        assert answer.status == 0, answer.text

    def steps(self, n):
        for clock in range(n):
            for shard, rank in self.workers:
                self.push(shard, rank, clock)


def steps_of_rows(psd, n_shards):
    """Of every row, as a set."""
    found = set()
    for shard in range(n_shards):
        with psd.connect(shard, role="reader") as client:
            client.table(name="t", dim=DIM, must_exist=True)
            answer = client.pull([k for k in KEYS if wire.shard_of(k, n_shards) == shard])
            assert answer.status == 0, answer.text
            found |= {-value for row in wire.rows(answer, DIM) for value in row}
    return found


def args_of(tmp_path, *more):
    return "--data-dir", str(tmp_path / "data"), "--durability", "fsync", "--lease", "60s", "--checkpoint-every", "0s", *more


@pytest.fixture
def torn(start_psd, tmp_path):
    """Killed when one shard had combined step 6, and the other held half of it."""
    psd = start_psd(*args_of(tmp_path, "--shards", "2"))
    job = Job([lambda s=s: psd.connect(s) for s in range(2)], wire.BSP)
    job.steps(5)
    job.push(0, 0, 5)
    job.push(0, 1, 5)
    job.push(1, 0, 5)
    psd.kill()
    return tmp_path / "data"


def test_another_layout_after_a_crash_in_lock_step_has_rows_of_one_clock(start_psd, torn, tmp_path):
    psd = start_psd(*args_of(tmp_path, "--shards", "3"))
    assert steps_of_rows(psd, 3) == {5.0}
    assert "data is of 2 shards, this psd has 3: " in psd.log()
    reported = [line for line in psd.log().splitlines() if "job job" in line]
    assert len(reported) == 1 and "is brought to 5" in reported[0] and "3 pushes" in reported[0] and "left out" in reported[0], reported


def test_the_layout_that_wrote_it_goes_on_in_the_middle_of_the_step(start_psd, torn, tmp_path):
    psd = start_psd(*args_of(tmp_path, "--shards", "2"))
    assert "this psd has" not in psd.log()
    with psd.connect(1) as client:
        assert client.join(n_workers=2, rank=1, incarnation=6, mode=wire.BSP).status == 0
        client.table(name="t", dim=DIM, must_exist=True)
        keys = [k for k in KEYS if wire.shard_of(k, 2) == 1]
        assert client.push(keys, wire.floats(*[1.0] * (DIM * len(keys))), seq=6, clock=5).status == 0
    assert steps_of_rows(psd, 2) == {6.0}


def test_tools_see_the_clock_that_all_shards_have(torn, tmp_path):
    got = subprocess.run([BIN / "psctl", "restore", torn, "--to", tmp_path / "one", "--shards", "1", "--json"],
                         capture_output=True, text=True, timeout=300)
    assert got.returncode == 0 and "is brought to 5" in got.stderr, got.stderr
    got = subprocess.run([BIN / "psctl", "diff", torn, tmp_path / "one", "--json"], capture_output=True, text=True,
                         timeout=300)
    assert got.returncode == 0 and json.loads(got.stdout)["same"], got.stdout + got.stderr


def test_nodes_that_do_not_see_each_other_are_refused_with_what_to_change(start_psd, tmp_path):
    nodes = [f"127.0.0.1:{port}" for port in free_ports(2)]

    def start(i, n_shards, *more):
        return start_psd("--cluster", ",".join(nodes), "--node", str(i), "--listen", nodes[i], "--shards", n_shards,
                         "--durability", "fsync", "--lease", "60s", "--data-dir", str(tmp_path / f"n{i}"), *more)

    pair = [start(i, "1") for i in range(2)]
    job = Job([lambda i=i: pair[i].connect(0) for i in range(2)], wire.BSP)
    job.steps(4)
    for rank in range(2):
        job.push(1, rank, 4)
    for node in pair:
        node.kill()
    for i, n_steps in ((0, 4), (1, 5)):
        with pytest.raises(RuntimeError, match=f"--restore DIR,DIR, or on each node --at job:{n_steps}, the smallest"):
            start(i, "2")
    both = start_psd("--restore", f"{tmp_path / 'n0'},{tmp_path / 'n1'}", "--shards", "3")
    assert steps_of_rows(both, 3) == {4.0}
    pair = [start(i, "2", "--at", "job:4") for i in range(2)]
    for i, node in enumerate(pair):
        for shard in range(2):
            with node.connect(shard, role="reader") as client:
                client.table(name="t", dim=DIM, must_exist=True)
                answer = client.pull([k for k in KEYS if wire.shard_of(k, 4) == 2 * i + shard])
                assert {v for row in wire.rows(answer, DIM) for v in row} == {-4.0}


def test_a_directory_in_which_psd_has_only_run_is_new_to_a_cluster_and_to_a_standby(start_psd, tmp_path):
    """psd.service runs as soon as the package is there, before anybody says that it is one of several."""
    for name in ("stopped", "killed", "followed"):
        alone = start_psd("--shards", "3", "--data-dir", str(tmp_path / name))
        alone.stop() if name == "stopped" else alone.kill()
    ports = free_ports(3)

    def start(i, name):
        return start_psd("--cluster", ",".join(f"127.0.0.1:{port}" for port in ports[:2]), "--node", str(i), "--listen",
                         f"127.0.0.1:{ports[i]}", "--shards", "2", "--data-dir", str(tmp_path / name))

    nodes = [start(i, name) for i, name in enumerate(("stopped", "killed"))]
    for node in nodes:
        assert "holds no table and no record: taken as new" in node.log()
    standby = Daemon(["--listen", f"127.0.0.1:{ports[2]}", "--http", "127.0.0.1:0", "--shards", "2", "--data-dir",
                      str(tmp_path / "followed"), "--standby", f"127.0.0.1:{ports[0]}"], tmp_path, awaited=False)
    try:
        eventually(lambda: "is in sync with" in standby.log())
    finally:
        assert standby.stop() == 0, standby.log()
    nodes[1].kill()  # and goes on in what it has begun
    assert "taken as new" not in start(1, "killed").log()


def test_a_directory_with_a_worker_in_it_is_not_new_to_a_cluster(start_psd, tmp_path):
    alone = start_psd(*args_of(tmp_path, "--shards", "2"))
    Job([lambda: alone.connect(0)], wire.BSP)
    alone.kill()
    cluster = "--cluster", ",".join(f"127.0.0.1:{port}" for port in free_ports(2)), "--node", "0", "--shards", "2"
    for log in [None, *(tmp_path / "data").rglob("shard-000/*.psl")]:
        if log:
            log.unlink()  # the control file knows of its records
        with pytest.raises(RuntimeError, match="data was written by node 0 of 1, this is node 0 of 2: is --data-dir or --node wrong\\?"):
            start_psd(*cluster, "--data-dir", str(tmp_path / "data"))


def test_a_clock_of_a_job_in_ssp_is_reported_as_inexact(start_psd, tmp_path):
    psd = start_psd(*args_of(tmp_path, "--shards", "2"))
    job = Job([lambda s=s: psd.connect(s) for s in range(2)], wire.SSP)
    job.steps(3)
    for clock in (3, 4):
        job.push(0, 0, clock)
    job.push(0, 1, 3)
    job.push(1, 0, 3)
    job.push(1, 1, 3)
    psd.kill()
    got = subprocess.run([BIN / "psctl", "replay", tmp_path / "data", "--at", "job:4", "--json"], capture_output=True,
                         text=True, timeout=300)
    notes = [line for line in got.stderr.splitlines() if "not in lock step" in line]
    assert got.returncode == 0 and len(notes) == 1, got.stderr
    for more in (("--restore", str(tmp_path / "data"), "--shards", "3"), args_of(tmp_path, "--shards", "2")):
        again = start_psd(*more, "--at", "job:4")
        assert sum("not in lock step" in line for line in again.lines) == 1, again.log()
        again.stop()


def test_tools_refuse_a_damaged_log_and_take_a_state_before_it(start_psd, tmp_path):
    psd = start_psd(*args_of(tmp_path, "--shards", "2"))
    job = Job([lambda s=s: psd.connect(s) for s in range(2)], wire.ASYNC)
    job.steps(10)
    psd.admin("checkpoint")
    shutil.copytree(tmp_path / "data", tmp_path / "early", ignore=shutil.ignore_patterns("*.tmp"))  # they come and go
    for clock in range(10, 40):
        for shard, rank in job.workers:
            job.push(shard, rank, clock)
    psd.kill()
    data = tmp_path / "data"
    segment = sorted(data.glob("log/*/shard-001/*.psl"))[-1]
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) * 3 // 4] ^= 1
    segment.write_bytes(damaged)

    def psctl(*args):
        return subprocess.run([BIN / "psctl", *args], capture_output=True, text=True, timeout=300)

    for args in (("restore", data, "--to", tmp_path / "r"), ("export", data, "--out", tmp_path / "x.safetensors"),
                 ("replay", data), ("diff", data, data)):
        got = psctl(*args)
        assert got.returncode == 1 and "the write-ahead log is damaged behind record" in got.stderr, (args, got.stderr)
        assert "--at JOB:CLOCK" in got.stderr
        got = psctl(*args, "--at", "1")
        assert got.returncode == 0, (args, got.stderr)
    got = psctl("replay", data, "--at", "1", "--against", tmp_path / "early")
    assert got.returncode == 0 and "no difference" in got.stdout

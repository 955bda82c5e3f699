"""The number of shards is the data directory's: another machine, with other cores, changes it only when it is asked for."""
import os
import shutil

import pytest

import wire


@pytest.fixture
def cores():
    """cores(n): what is started from here on may use so many."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("this machine has one core")
    yield lambda n: os.sched_setaffinity(0, sorted(allowed)[:n])
    os.sched_setaffinity(0, allowed)


def clock_of(psd, shard):
    """Where a worker that comes back goes on."""
    with psd.connect(shard) as client:
        answer = client.join(incarnation=7, clock=1)
        assert answer.status == 0 and client.leave().status == 0
        return answer.number(4)


def train(psd, n_shards):
    for shard in range(n_shards):
        with psd.connect(shard) as client:
            table = client.table(name="t").number(3)
            assert client.join(incarnation=5).status == 0
            for seq in range(1, 4):
                assert client.push(wire.keys_of(shard, n_shards, 3), wire.floats(*[1.0] * 12), table=table, seq=seq, clock=seq - 1).status == 0
            assert client.leave().status == 0


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_machine_with_other_cores_keeps_the_shards_and_the_clocks_of_jobs(start_psd, tmp_path, cores, end):
    flags = ("--data-dir", str(tmp_path / "data"), "--durability", "fsync")
    cores(2)
    psd = start_psd(*flags)
    assert psd.n_shards == 2  # a new data directory: as many as cores
    train(psd, 2)
    psd.stop() if end == "stop" else psd.kill()
    cores(1)
    psd = start_psd(*flags)
    assert psd.n_shards == 2 and "2 shards, as" in psd.log() and "jobs begin anew" in psd.log()
    assert [clock_of(psd, shard) for shard in range(2)] == [3, 3]
    assert psd.stop() == 0
    psd = start_psd(*flags, "--shards", "1")  # asked for
    assert psd.n_shards == 1 and "is of 2 shards, this psd has 1: " in psd.log()
    assert clock_of(psd, 0) == 1
    assert psd.stop() == 0
    cores(2)
    psd = start_psd(*flags)
    assert psd.n_shards == 1


def test_a_data_directory_that_cannot_be_opened_is_reported_once(start_psd, tmp_path, cores):
    data = tmp_path / "data"
    psd = start_psd("--data-dir", str(data), "--shards", "1")
    train(psd, 1)
    assert psd.stop() == 0
    manifest = next((data / "checkpoints").glob("*/MANIFEST"))
    manifest.write_text(manifest.read_text().replace('"', "'", 3))
    shutil.rmtree(data / "log")  # with it nothing would be lost
    with pytest.raises(RuntimeError) as said:
        start_psd("--data-dir", str(data))
    assert str(said.value).count("MANIFEST") == 1, said.value

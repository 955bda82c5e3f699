"""--net-threads: psworker's connections on several threads. Any number of them ends in the same bits, also if psd is killed or stopped
meanwhile."""
import re

import pytest
from checkpoint import read_tables
from training import finish, free_ports, in_time, psds, psworker, restarted, result, synth, train  # noqa: F401

FLAGS = ("--format", "criteo", "--bottom", "32", "--top", "32", "--dim", "32", "--batch", "1024", "--seed", "7", "--row-cache", "0")


def trained(psds, data, *flags, n_shards=3):
    node = psds("--shards", n_shards)
    r = train("--data", data, "--servers", node.address, *FLAGS, *flags)
    node.stop()
    return read_tables([node.data]), r


def test_any_number_of_threads_ends_in_the_same_bits(psds, tmp_path):
    """Answers of more than 32 KiB keep the buffer that they came in; the others are copied."""
    data = synth(tmp_path / "log.tsv", 5000)
    for codecs in ((), ("--push-codec", "onebit", "--pull-codec", "int8", "--zstd")):
        want, one = trained(psds, data, *codecs)
        for n in (2, 3, 16):
            got, r = trained(psds, data, *codecs, "--net-threads", n)
            assert got == want and r["loss"] == one["loss"], n
            assert 0 <= r["busy_network"] <= 1


def test_a_node_that_comes_back_is_found_by_all_threads(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 6000)
    flags = ("--epochs", "6", "--batch", "64")
    want, _ = trained(psds, log, *flags, n_shards=2)
    r, data = in_time(lambda n: restarted(psds, tmp_path / f"restarted{n}", "--data", log, *FLAGS, *flags, "--net-threads", "3"))
    assert r["samples"] == 36000
    assert read_tables([data]) == want


def killed(psds, folder, *flags):
    """A run whose node is killed in the midst of it, and started again: its last line, and the node's data. None: it was over too soon."""
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    node = psds("--shards", 3, "--durability", "fsync", listen=listen, dir=folder)
    w = psworker("train", *flags, "--servers", node.address, "--json", "-", "--progress-every", "20ms")
    for _ in range(2):
        assert w.stdout.readline()
    node.kill()
    again = psds("--shards", 3, "--durability", "fsync", listen=listen, dir=folder)
    out, _ = finish(w)
    again.stop()
    return (result(out), again.data) if result(out)["reconnects"] else None


def test_a_node_that_is_killed_loses_no_push(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 6000)
    flags = ("--epochs", "4", "--batch", "64")
    want, _ = trained(psds, log, *flags)
    r, data = in_time(lambda n: killed(psds, tmp_path / f"killed{n}", "--data", log, *FLAGS, *flags, "--net-threads", "2"))
    assert r["samples"] == 24000 and r["pushes_lost"] == 0
    assert read_tables([data]) == want


@pytest.mark.parametrize("n", (1, 3))
def test_a_node_that_stays_away_ends_the_run_by_the_deadline(psds, tmp_path, n):
    log = synth(tmp_path / "log.tsv", 6000)
    node = psds("--shards", 3)
    w = psworker("train", "--data", log, *FLAGS, "--epochs", "1000", "--servers", node.address, "--net-threads", n, "--give-up", "1s",
                 "--json", "-", "--progress-every", "20ms")
    assert w.stdout.readline()
    node.kill()
    _, err = finish(w, status=1)
    assert re.search(r"shard \d at \S+ has been away for \d+ s", err)

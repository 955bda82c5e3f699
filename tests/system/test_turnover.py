"""Rows that come and go: budgets, admission, removal, storage; from psworker's flags to what psd says about them."""
import pytest
from checkpoint import read_tables
from training import finish, psds, psworker, synth, train, wait_for  # noqa: F401

SMALL = ("--format", "criteo", "--bottom", "16", "--top", "16", "--dim", "8", "--batch", "64")
MIB = 1 << 20


def table(node, holds=lambda t: True):
    """The embedding table, once it is reported and the condition holds: reports are made a few times a second."""
    return wait_for("a report", lambda: next((t for t in node.stats()["tables"] if t["name"] == "job/emb" and holds(t)), None))


def every_shard_reports(node, pushes):
    """Shards report one by one, and a table's pushes in /stats are those of the first that had them all."""
    def all_do():
        lines = [l for l in node.get("/metrics").splitlines() if l.startswith("psd_table_pushes_total{") and "job/emb" in l]
        return lines and all(float(l.split()[-1]) == pushes for l in lines)
    wait_for("every shard's report", all_do)


@pytest.fixture(scope="module")
def many_keys(tmp_path_factory):
    """Far more keys than the budgets below have room for."""
    return synth(tmp_path_factory.mktemp("log") / "log.tsv", 12000, cardinality=1000000, zipf=0.5)


def test_a_table_grows_from_the_reserve_and_then_from_the_kernel(psds, many_keys):
    node = psds("--shards", 1, "--memory-reserve", "8M")
    assert "memory reserved in" in node.log.read_text()
    assert node.stats()["memory_reserve_left_bytes"] == 8 * MIB <= node.stats()["rss_bytes"]
    train("--data", many_keys, "--servers", node.address, *SMALL)
    assert table(node, lambda t: t["pushes"] == 188)["bytes"] > 16 * MIB
    assert wait_for("the reserve's end", lambda: node.stats()["memory_reserve_left_bytes"] < 8 * MIB)


@pytest.mark.parametrize("full", ["oldest", "rarest", "refuse"])
def test_a_small_table_trains_on_and_memory_stays_within_its_budget(psds, many_keys, full):
    node = psds("--shards", 2)
    before = node.stats()["rss_bytes"]
    r = train("--data", many_keys, "--servers", node.address, *SMALL, "--table-max", "8M", "--table-full", full)
    assert r["samples"] == 12000
    every_shard_reports(node, 188)
    t = table(node)
    assert t["bytes_max"] == 8 * MIB and 0.5 * t["bytes_max"] < t["bytes"] <= t["bytes_max"]
    assert t["limits"]["max_bytes"] == 8 * MIB and t["limits"]["victims"] == ("none" if full == "refuse" else full)
    gone = t["rows_refused"] if full == "refuse" else t["rows_evicted"]
    assert gone > 10000 and t["rows_evicted" if full == "refuse" else "rows_refused"] == 0
    assert t["rows_removed"] == t["rows_evicted"]
    assert node.stats()["totals"]["counters"]["rows_evicted"] == t["rows_evicted"]
    assert node.stats()["rss_bytes"] - before < 8 * MIB + 64 * MIB  # buffers and the model are in it, too
    metrics = node.get("/metrics")
    assert sum(float(line.split()[-1]) for line in metrics.splitlines()
               if line.startswith('psd_table_rows_evicted_total{') and "job/emb" in line) == t["rows_evicted"]


def test_a_node_with_a_budget_restores_all_that_it_held(psds, many_keys):
    node = psds("--shards", 2, "--memory-max", "16M")
    train("--data", many_keys, "--servers", node.address, *SMALL, "--table-full", "oldest")
    table(node, lambda t: t["rows_evicted"] > 1000)
    node.stop()
    held = read_tables([node.data])
    again = psds("--shards", 2, "--memory-max", "16M", dir=node.dir)
    again.stop()
    assert read_tables([again.data]) == held


def test_rows_come_late_and_go_again(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 12000, cardinality=20000, zipf=1.05)
    node = psds("--shards", 2)
    flags = ("--admit-touches", "2", "--admit-clocks", "100", "--idle-clocks", "60", "--rare-touches", "2", "--rare-clocks", "80",
             "--ttl", "1h")
    everything = train("--data", log, "--local", *SMALL, "--save", tmp_path / "all")
    train("--data", log, "--servers", node.address, *SMALL, *flags)
    every_shard_reports(node, 188)
    t = table(node)
    assert t["limits"] == {"admit_touches": 2, "admit_clocks": 100, "idle_clocks": 60, "ttl_s": 3600, "rare_touches": 2,
                           "rare_clocks": 80, "victims": "none", "max_bytes": 0}
    assert everything["samples"] == 12000
    assert 0 < t["rows"] < len(read_tables([tmp_path / "all"])["job/emb"]) / 2
    assert t["rows_unadmitted"] > 1000 and t["sketch_bytes"] > 0
    table(node, lambda t: t["rows_idle"] + t["rows_rare"] > 0)
    # The same rules hold inside the worker's process.
    train("--data", log, "--local", *SMALL, *flags, "--save", tmp_path / "few")
    assert len(read_tables([tmp_path / "few"])["job/emb"]) < len(read_tables([tmp_path / "all"])["job/emb"]) / 2


@pytest.mark.parametrize("storage", ["fp32", "bf16", "fp16"])
def test_weights_stored_in_halves_learn_alike_on_servers_and_inside_the_process(psds, tmp_path, storage):
    log = synth(tmp_path / "log.tsv", 24000, cardinality=50)
    flags = ("--data", log, "--valid-fraction", "0.2", *SMALL, "--optimizer", "rowwise_adagrad", "--lr", "0.05",
             "--table-storage", storage)
    node = psds("--shards", 3)
    r = train(*flags, "--servers", node.address)
    assert r["auc"] > 0.6
    t = table(node)
    assert t["storage"] == storage and t["payload_bytes"] == 8 * (4 if storage == "fp32" else 2) + 4
    node.stop()
    assert train(*flags, "--local", "--save", tmp_path / "local")["auc"] == r["auc"]
    assert read_tables([node.data]) == read_tables([tmp_path / "local"])  # lock step: bit for bit


@pytest.mark.parametrize("flags, sentence", [
    (("--admit-touches", "3"), "--admit-touches of 2 or more and --admit-clocks go together"),
    (("--admit-clocks", "3"), "--admit-touches of 2 or more and --admit-clocks go together"),
    (("--rare-touches", "3"), "--rare-touches and --rare-clocks go together"),
    (("--rare-touches", "256", "--rare-clocks", "9"), "rare-touches"),
    (("--admit-touches", "16", "--admit-clocks", "9"), "admit-touches"),
    (("--ttl", "1500ms"), "whole seconds"),
    (("--table-full", "newest"), "refuse"),
    (("--table-storage", "fp8"), "fp32"),
], ids=lambda f: " ".join(f) if isinstance(f, tuple) else "")
def test_what_makes_no_sense_is_reported_before_anything_begins(tmp_path, flags, sentence):
    _, err = finish(psworker("train", "--data", tmp_path, "--format", "criteo", "--local", *flags, "--check"), status=2)
    assert sentence in err and len(err.strip().splitlines()) == 1

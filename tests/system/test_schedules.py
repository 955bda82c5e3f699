"""Learning rates that fall when validations no longer get better, and the best model kept: alike in one process and on servers, with one worker
and two, and after kill -9."""
import json
import subprocess

import numpy as np
import pytest
from training import BIN, ROOT, finish, free_ports, in_time, psds, psworker, result, synth, train  # noqa: F401

MODEL = ("--format", "criteo", "--bottom", "16", "--top", "16", "--dim", "4")
FALLS = ("--batch", 32, "--lr", "0.3", "--eval-every", 20, "--decay", "plateau", "--decay-patience", 1, "--decay-rate", "0.5", "--decay-floor", "0.1")


@pytest.fixture
def data(tmp_path):
    """Logs of which little can be learned: later passes spoil the model."""
    lines = synth(tmp_path / "all.tsv", rows=3000, cardinality=200).read_text().splitlines(keepends=True)
    (tmp_path / "d.tsv").write_text("".join(lines[:2000]))
    (tmp_path / "v.tsv").write_text("".join(lines[2000:]))
    return (*MODEL, "--data", tmp_path / "d.tsv", "--valid", tmp_path / "v.tsv")


def falls(err):
    """The factors that the log has."""
    return [line.split("are ")[1].split(" of what")[0] for line in err.splitlines() if "the learning rates are" in line]


def figures(r):
    return r["auc"], r["logloss"]


def best(folder):
    kept = json.loads((folder / "BEST.json").read_text())
    del kept["job"]
    return kept


def evaluated(data, folder, job):
    valid = data[-1]
    return result(finish(psworker("eval", "--local", "--data", valid, *MODEL, "--job", job, "--checkpoint", folder, "--json", "-"))[0])


def test_the_rate_falls_alike_everywhere(psds, data, tmp_path):
    node = psds("--shards", 2)
    flags = (*data, *FALLS, "--epochs", 4, "--json", "-")
    out, err = finish(psworker("train", *flags, "--local"))
    want = figures(result(out))
    assert falls(err) == ["0.5", "0.25", "0.125", "0.1"]
    for job, cache in (("cached", "256M"), ("plain", 0)):
        out, err = finish(psworker("train", *flags, "--servers", node.address, "--job", job, "--row-cache", cache))
        assert figures(result(out)) == want and falls(err) == ["0.5", "0.25", "0.125", "0.1"]
    # A later run goes on with the rate; without --decay plateau it is refused, and told why.
    again, err = finish(psworker("train", *flags, "--servers", node.address, "--job", "plain"))
    assert falls(err) == []
    _, err = finish(psworker("train", *data, "--batch", 32, "--servers", node.address, "--job", "plain"), status=2)
    assert "psctl set plain lr=0.03,decay=none" in err, err


def test_two_workers_fall_alike_and_the_best_model_is_kept_from_servers(psds, data, tmp_path):
    node = psds("--shards", 3)
    flags = (*data, *FALLS, "--epochs", 4, "--servers", node.address, "--workers", 2, "--keep", "best", "--json", "-")
    ends = []
    for job in "ab":
        ranks = [psworker("train", *flags, "--job", job, "--rank", rank, "--save", tmp_path / f"{job}{rank}") for rank in range(2)]
        outs = [finish(p) for p in ranks]
        assert len(falls(outs[0][1])) > 1
        ends.append((figures(result(outs[0][0])), best(tmp_path / f"{job}0")))
        assert not (tmp_path / f"{job}1").exists()  # rank 0 validates
        validations = [json.loads(line) for line in outs[0][0].splitlines() if '"validation"' in line or '"result"' in line]
        top = max(validations, key=lambda v: v["auc"])
        kept = best(tmp_path / f"{job}0")
        assert (kept["auc"], kept["logloss"]) == figures(top) == figures(evaluated(data, tmp_path / f"{job}0", job))
        assert f"--keep best: {tmp_path / f'{job}0'} has the model of epoch {kept['epoch']}, step {kept['step']}" in outs[0][1]
    assert ends[0] == ends[1]
    text = subprocess.run([BIN / "psctl", "job", "a", "--server", node.address], capture_output=True, text=True, check=True).stdout
    assert f"the model of epoch {ends[0][1]['epoch']}, step {ends[0][1]['step']}, which was the best" in text


def killed(psds, data, tmp_path, n, victim):
    """A run of two workers whose rank 0 or psd is killed in the midst of it: figures and what is kept. None: it was over too soon."""
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    where, save = tmp_path / f"psd-{victim}{n}", tmp_path / f"save-{victim}{n}"
    start = lambda: psds("--shards", 2, "--durability", "fsync", listen=listen, dir=where)
    node = start()
    flags = (*data, *FALLS, "--epochs", 4, "--servers", node.address, "--workers", 2, "--keep", "best", "--save", save, "--keep-negatives", "0.7",
             "--json", "-")
    rank = lambda r: psworker("train", *flags, "--rank", r, "--state-dir", tmp_path / f"state-{victim}{n}")
    workers = [rank(0), rank(1)]
    seen = 0
    while victim and seen < 3 + n:
        line = workers[0].stdout.readline()
        if not line or '"result"' in line:
            break
        seen += '"validation"' in line
    if victim == "worker":
        workers[0].kill()
        is_over = '"result"' in finish(workers[0], status=None)[0]
        workers[0] = rank(0)
    elif victim == "psd":
        node.kill()
        node = start()
    outs = [finish(w)[0] for w in workers]
    node.stop()
    if victim == "worker" and is_over:
        return None
    return figures(result(outs[0])), best(save)


@pytest.mark.parametrize("victim", ["worker", "psd"])
def test_a_killed_job_goes_on_with_its_rate_and_its_best(psds, data, tmp_path, victim):
    calm = killed(psds, data, tmp_path, 0, None)
    assert in_time(lambda n: killed(psds, data, tmp_path, n, victim)) == calm


@pytest.mark.parametrize("flags, says", [
    (("--decay", "plateau"), "--decay plateau needs validation rows"),
    (("--decay", "plateau", "--optimizer", "ftrl", "--train-rows", 5), "--decay plateau does not go with ftrl"),
    (("--decay", "plateau", "--decay-rate", 1, "--train-rows", 5), "--decay-rate: plateau multiplies by it; found 1"),
    (("--keep", "best", "--train-rows", 5), "--keep best goes with --save DIR"),
    (("--keep", "best", "--save", "x"), "--keep best needs validation rows"),
    (("--save", "x"), "--save goes with --local or --keep best"),
])
def test_what_cannot_be_meant_is_refused(data, flags, says):
    _, err = finish(psworker("train", *data[:-2], *flags), status=2)
    assert says in err


def test_each_part_has_a_seed_of_its_own(data):
    flags = (*data, "--local", "--shuffle", 500, "--dropout", "0.2", "--batch", 64)
    run = lambda *more: figures(train(*flags, *more))
    same = run("--seed", 7)
    assert run("--seed", 3, "--seed-init", 7, "--seed-shuffle", 7, "--seed-dropout", 7) == same
    others = {run("--seed", 7, f"--seed-{part}", 3) for part in ("init", "shuffle", "dropout")}
    assert len(others | {same}) == 4


def test_a_part_of_the_negatives_trains_a_model_that_holds_for_all(tmp_path):
    """The same rows are drawn whoever reads them; probabilities are not those of the rows that were drawn."""
    job = ("--config", ROOT / "deploy/adult.conf", "--data", ROOT / "tests/data/adult.data.zst", "--valid", ROOT / "tests/data/adult.test.zst", "--local",
           "--seed", 2)
    whole = train(*job, "--epochs", 1)
    part = train(*job, "--epochs", 1, "--keep-negatives", "0.2")
    assert 0.3 < part["samples"] / whole["samples"] < 0.5  # a quarter of the rows are positive
    assert abs(part["calibration"] - 1) < 0.25 and part["auc"] > whole["auc"] - 0.01  # uncorrected it would be above 2
    for more in (("--loader-threads", 3), ("--data-cache", tmp_path / "cache"), ("--data-cache", tmp_path / "cache")):
        assert figures(train(*job, "--epochs", 1, "--keep-negatives", "0.2", *more)) == figures(part)
    assert figures(train(*job, "--epochs", 1, "--keep-negatives", "0.2", "--seed-shuffle", 5)) != figures(part)


def test_the_weight_of_positive_samples_and_smoothed_labels_change_probabilities(data):
    plain = train(*data, "--local", "--batch", 64)
    heavy = train(*data, "--local", "--batch", 64, "--positive-weight", 5)
    smooth = train(*data, "--local", "--batch", 64, "--label-smoothing", "0.5")
    assert heavy["calibration"] > 1.5 * plain["calibration"] and smooth["loss"] > plain["loss"]
    assert figures(train(*data, "--local", "--batch", 64, "--positive-weight", 1, "--label-smoothing", 0)) == figures(plain)


def test_gradients_are_clipped_by_their_norm(psds, data, tmp_path):
    """A bound that is never reached changes no bit; in one process, behind the row cache and over the wire it is the same."""
    flags = (*data, "--batch", 32, "--optimizer", "sgd", "--lr", 1)
    plain = figures(train(*flags, "--local"))
    assert figures(train(*flags, "--local", "--clip-global-norm", "1e6")) == plain
    clipped = figures(train(*flags, "--local", "--clip-global-norm", "0.05"))
    assert clipped != plain
    node = psds("--shards", 2)
    for job, cache in (("cached", "256M"), ("plain", 0)):
        assert figures(train(*flags, "--servers", node.address, "--job", job, "--row-cache", cache, "--clip-global-norm", "0.05")) == clipped


def test_whole_tables_decay_alike_everywhere(psds, data, tmp_path):
    """Also behind the row cache, whose copies decay with the servers' rows, after a crash, in a checkpoint and in an export."""
    flags = (*data, "--batch", 32, "--optimizer", "sgd", "--lr", "0.3", "--wide")
    decays = (*flags, "--row-decay", "0.002")
    want = figures(train(*decays, "--local", "--save", tmp_path / "saved"))
    assert want != figures(train(*flags, "--local"))
    start = lambda: psds("--shards", 2, "--durability", "fsync", dir=tmp_path / "node")  # noqa: E731
    node = start()
    for job, cache in (("cached", "256M"), ("plain", 0)):
        assert figures(train(*decays, "--servers", node.address, "--job", job, "--row-cache", cache)) == want
    node.kill()
    node = start()
    evaluate = ("eval", "--data", data[-1], *MODEL, "--wide", "--json", "-")
    for source in (("--servers", node.address, "--job", "plain"), ("--local", "--checkpoint", tmp_path / "saved")):
        assert figures(result(finish(psworker(*evaluate, *source))[0])) == want
    # What an export has is what a reader sees: the rows whose last push was long ago are as small as they show.
    subprocess.run([BIN / "psctl", "export", tmp_path / "saved", "--out", tmp_path / "npy", "--format", "npy"], check=True, capture_output=True)
    keys, rows = (np.load(tmp_path / "npy" / f"job%2Femb.{part}.npy") for part in ("keys", "weight"))
    row = subprocess.run([BIN / "psctl", "--server", node.address, "row", "plain/emb", str(keys.view(np.uint64)[0]), "-o", "json"], check=True,
                         capture_output=True, text=True).stdout
    assert json.loads(row)["weights"] == pytest.approx(rows[0].tolist(), rel=1e-6)
    _, err = finish(psworker("train", *data, "--local", "--optimizer", "ftrl", "--row-decay", "0.1"), status=2)
    assert "row_decay is 0.1" in err and "ftrl_l2" in err

"""Several labels: a task each with its own figures, from servers, a cache, a checkpoint and over HTTP; the same numbers everywhere."""
import math
import random

import pytest
from test_serve import PATIENT, serve  # noqa: F401  (a fixture)
from training import finish, psds, psworker, result, train  # noqa: F401

DATA = ("--delimiter", ",", "--columns", "click,price,ad,buy,user", "--label", "click,buy", "--numeric", "price", "--categorical", "ad,user")
SHAPE = ("--job", "j", "--batch", 64, "--dim", 4, "--top", "16", "--bottom", "8", "--lr", 0.1)


def draw(path, n, seed):
    """A click follows the ad, a purchase the user: one column alone says nothing about the other label."""
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        ad, user = rng.randrange(20), rng.randrange(20)
        rows.append((int(rng.random() < (0.8 if ad % 2 else 0.3)), rng.randrange(9), f"ad{ad}", int(rng.random() < (0.4 if user % 2 else 0.1)), f"u{user}"))
    path.write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    return rows


def auc(labels, scores):
    pairs = [(a > b) + (a == b) / 2 for a, y in zip(scores, labels) if y for b, x in zip(scores, labels) if not x]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("model", [("--model", "dlrm"), ("--model", "dcnv2", "--cross-layers", 1)], ids=lambda m: m[1])
def test_each_label_is_learned_and_reported_alone(psds, serve, tmp_path, model):
    draw(tmp_path / "log.csv", 6000, 1)
    rows = draw(tmp_path / "other.csv", 500, 2)
    node = psds("--shards", 2)
    shape = (*DATA, *SHAPE, *(model if "dlrm" not in model else ()), "--servers", node.address)
    shape = tuple(x for i, x in enumerate(shape) if "dcnv2" not in model or x not in ("--bottom", "8"))
    flags = (*shape, "--loss-weights", "buy=0.5", "--data-cache", tmp_path / "cache")
    learned = train(*flags, "--data", tmp_path / "log.csv", "--epochs", 2, "--valid", tmp_path / "other.csv")
    assert [task["label"] for task in learned["tasks"]] == ["click", "buy"]
    assert all(task["auc"] > 0.62 for task in learned["tasks"])
    assert math.isclose(learned["auc"], sum(task["auc"] for task in learned["tasks"]) / 2)
    again, said = finish(psworker("eval", *flags, "--data", tmp_path / "other.csv", "--json", "-"))
    assert result(again)["tasks"] == learned["tasks"]
    assert "label buy: AUC" in said
    lines = finish(psworker("predict", *shape, "--data", tmp_path / "other.csv", "--labelled"))[0].splitlines()
    scores = [tuple(map(float, line.split("\t"))) for line in lines]
    assert len(scores) == len(rows)
    for i, (task, column) in enumerate(zip(learned["tasks"], (0, 3))):
        assert math.isclose(auc([row[column] for row in rows], [s[i] for s in scores]), task["auc"], rel_tol=1e-9)
    bare = [(row[1], row[2], row[4]) for row in rows]
    (tmp_path / "bare.csv").write_text("\n".join(",".join(map(str, row)) for row in bare) + "\n")
    assert finish(psworker("predict", *shape, "--data", tmp_path / "bare.csv"))[0].splitlines() == lines
    server = serve("--job", "j", "--servers", node.address, *PATIENT)
    assert [tuple(s) for s in server.scores([{"price": p, "ad": a, "user": u} for p, a, u in bare[:50]])] == scores[:50]


def test_a_cache_and_the_files_give_the_same_bits(tmp_path):
    draw(tmp_path / "log.csv", 3000, 3)
    flags = (*DATA, *SHAPE, "--local", "--data", tmp_path / "log.csv", "--valid-fraction", 0.2)
    plain = train(*flags)
    cached = [train(*flags, "--data-cache", tmp_path / "cache") for _ in range(2)]
    assert plain["tasks"] == cached[0]["tasks"] == cached[1]["tasks"]
    one = train(*(("click" if x == "click,buy" else x) for x in flags), "--ignore", "buy", "--data-cache", tmp_path / "cache")
    assert "tasks" not in one and one["auc"] > 0.6


@pytest.mark.parametrize("flags, said", [
    (("--loss-weights", "sale=2"), '--loss-weights: "sale=2" is not the name of a label and a number above 0'),
    (("--loss-weights", "buy=0"), '--loss-weights: "buy=0" is not'),
    (("--model", "deepfm"), "several labels need logits that a top MLP alone makes"), (("--wide",), "several labels need"),
    (("--keep-negatives", 0.5), "--keep-negatives: a sample of several labels"),
])
def test_what_several_labels_cannot_have_is_refused(tmp_path, flags, said):
    draw(tmp_path / "log.csv", 100, 4)
    shape = [x for x in SHAPE if "deepfm" not in flags or x not in ("--bottom", "8")]
    assert said in finish(psworker("train", *DATA, *shape, "--local", "--data", tmp_path / "log.csv", *flags), status=2)[1]

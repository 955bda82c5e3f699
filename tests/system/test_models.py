"""Every --model trains on servers, evaluates, goes on from a checkpoint, predicts and serves the same numbers; what a model does not have is refused."""
import pytest
from test_serve import PATIENT, predicted, serve  # noqa: F401  (a fixture)
from training import finish, psds, psworker, result, synth, train  # noqa: F401

MODELS = {"lr": (), "fm": ("--dim", 8), "wide_deep": ("--dim", 8, "--top", "16"), "deepfm": ("--dim", 8, "--top", "16"),
          "dcnv2": ("--dim", 4, "--top", "16", "--cross-layers", 1, "--cross-rank", 8)}
JOB = ("--format", "criteo", "--batch", 64)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return synth(tmp_path_factory.mktemp("log") / "log.tsv", 12000, cardinality=50)


def evaluate(*flags):
    return result(finish(psworker("eval", *flags, "--json", "-"))[0])["auc"]


@pytest.mark.parametrize("model", MODELS)
def test_a_job_learns_and_goes_on_from_its_servers_checkpoint(psds, log, tmp_path, model):
    flags = (*JOB, "--job", "j", "--model", model, *MODELS[model], "--data", log)
    node = psds("--shards", 2)
    learned = train(*flags, "--valid-fraction", 0.2, "--servers", node.address)
    assert learned["auc"] > 0.6
    before = evaluate(*flags, "--servers", node.address)
    node.stop()
    node = psds("--shards", 2, dir=node.dir)
    assert evaluate(*flags, "--servers", node.address) == before
    assert train(*flags, "--valid-fraction", 0.2, "--servers", node.address)["auc"] > 0.6
    other = "fm" if model != "fm" else "deepfm"
    _, said = finish(psworker("train", *JOB, "--job", "j", "--model", other, "--data", log, "--servers", node.address), status=2)
    assert f'--model: job "j" is of {model}, these settings are of {other}: give --model {model}, or take another --job' in said


@pytest.mark.parametrize("model", MODELS)
def test_scores_over_http_are_those_of_predict(serve, log, tmp_path, model):
    flags = (*JOB, "--job", "j", "--model", model, *MODELS[model], "--data", log)
    lines = log.read_text().splitlines()[:300]
    (tmp_path / "some.tsv").write_text("\n".join(lines) + "\n")
    train(*flags, "--local", "--save", tmp_path / "model")
    want = predicted(*flags[:-2], "--data", tmp_path / "some.tsv", "--labelled", "--checkpoint", tmp_path / "model")
    server = serve("--job", "j", "--checkpoint", tmp_path / "model", *PATIENT)
    names = [*(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    rows = [dict(zip(names, line.split("\t")[1:])) for line in lines]
    assert server.scores(rows) == want


@pytest.mark.parametrize("flags, said", [
    (("--model", "lr", "--dim", 8), "--dim: --model lr has no embeddings"), (("--model", "lr", "--wide"), "--wide: --model lr has no rows beside"),
    (("--model", "fm", "--top", "8"), "--top: --model fm has no top MLP"), (("--model", "fm", "--dropout", 0.1), "--dropout: --model fm has no hidden layers"),
    (("--model", "deepfm", "--bottom", "8"), "--bottom: --model deepfm has no bottom MLP"),
    (("--model", "wide_deep", "--interaction", "concat"), "--interaction: --model wide_deep has no interaction to choose"),
    (("--cross-rank", 4), "--cross-rank: --model dlrm has no cross network"),
    (("--model", "dcnv2", "--cross-layers", 9), "--cross-layers"), (("--model", "ffm"), "--model"),
])
def test_what_a_model_does_not_have_is_refused(tmp_path, flags, said):
    assert said in finish(psworker("train", "--format", "criteo", "--data", tmp_path, "--local", *flags), status=2)[1]


def test_a_job_begun_without_hats_goes_on_without_them(tmp_path):
    synth(tmp_path / "log.tsv", 300)
    flags = ("--format", "criteo", "--data", tmp_path / "log.tsv", "--dim", 4, "--top", 8)
    finish(psworker("train", *flags, "--local", "--numeric-hats", 0, "--save", tmp_path / "model"))
    ask = ("predict", *flags, "--labelled", "--checkpoint", tmp_path / "model")
    want, _ = finish(psworker(*ask, "--numeric-hats", 0))
    got, err = finish(psworker(*ask))
    assert got == want and "was begun without --numeric-hats" in err
    _, err = finish(psworker(*ask, "--numeric-hats", 3, "--bottom", "512,256,64"), status=2)
    assert "--numeric-hats: job" in err and "give --numeric-hats 0" in err

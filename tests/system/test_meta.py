"""Meta learning (--meta): new tasks, of which a model sees a few samples, and what is refused."""
import random

import pytest

from training import finish, psds, psworker, result, train  # noqa: F401  (psds is a fixture)

COLUMNS = ("--columns", "y,a,b,c,task,item", "--label", "y", "--numeric", "a,b,c", "--numeric-as", "raw", "--categorical", "task,item")
SMALL = (*COLUMNS, "--dim", 8, "--bottom", "32", "--top", "32", "--batch", 256, "--shuffle", 0)
META = ("--meta", "task", "--meta-inner-lr", 0.3, "--meta-inner-steps", 3)


def write(path, tasks, n_rows, seed):
    """Each task has a bias and weights of its own; the rows of a task stand together."""
    rng, lines = random.Random(seed), []
    for task in tasks:
        own = random.Random(task)
        bias, weights = own.gauss(0, 2), [own.gauss(0, 2) for _ in range(3)]
        for _ in range(n_rows):
            x = [rng.gauss(0, 1) for _ in weights]
            z = bias + sum(w * v for w, v in zip(weights, x))
            y = int(rng.random() < 1 / (1 + 2.718281828 ** -z))
            lines.append("\t".join([str(y), *(f"{v:.4f}" for v in x), f"t{task}", f"i{rng.randrange(20)}"]))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    return write(folder / "train.tsv", range(300), 32, 1), write(folder / "new.tsv", range(1000, 1100), 32, 2)


def evaluate(data, checkpoint, *flags):
    return result(finish(psworker("eval", "--data", data, "--local", "--checkpoint", checkpoint, *SMALL, *flags, "--json", "-"))[0])


def test_a_model_that_has_learned_to_adapt_is_better_at_new_tasks(logs, tmp_path):
    data, new = logs
    run = ("--data", data, "--valid", new, "--local", "--epochs", 10, *SMALL)
    plain = train(*run, "--save", tmp_path / "plain")
    meta = train(*run, "--save", tmp_path / "meta", *META)
    adapted = evaluate(new, tmp_path / "plain", *META)
    assert plain["auc"] < 0.6  # the rows say nothing of a task that nobody has seen
    assert meta["auc"] > 0.8
    assert meta["auc"] > adapted["auc"] + 0.05  # steps on a model that was not trained for them
    again = evaluate(new, tmp_path / "meta", *META)
    assert (again["auc"], again["logloss"]) == (meta["auc"], meta["logloss"])
    assert evaluate(new, tmp_path / "meta")["auc"] < 0.65  # the same weights, which do not adapt


def test_over_servers_it_learns_the_same_bits_as_in_one_process(psds, logs, tmp_path):
    data, new = logs
    run = ("--data", data, "--valid", new, "--steps-max", 20, *SMALL, *META)
    node = psds("--shards", 3)
    local, remote = train(*run, "--local"), train(*run, "--servers", node.address, "--mode", "bsp")
    assert (remote["auc"], remote["logloss"]) == (local["auc"], local["logloss"])


def test_tasks_of_one_sample_are_trained_on_as_they_are_and_counted(tmp_path):
    data = write(tmp_path / "log.tsv", range(400), 1, 3)
    run = ("--data", data, "--valid", data, "--local", *SMALL, "--json", "-")
    out, err = finish(psworker("train", *run, "--meta", "task"))
    assert "400 of 400 tasks had one sample in their batch" in err
    plain = result(finish(psworker("train", *run))[0])
    meta = result(out)
    assert abs(meta["logloss"] - plain["logloss"]) < 1e-4  # nothing to adapt to: the mean over tasks is that over samples
    assert "had one sample" not in finish(psworker("train", *run, "--meta", "item"))[1]


def test_what_cannot_be_is_refused_by_a_sentence(logs, tmp_path):
    def refused(*flags, command="train"):
        return finish(psworker(command, "--data", logs[0], "--local", *SMALL, *flags), status=2)[1]

    assert "\"user\" is none of the 2 categorical columns, whose first is task" in refused("--meta", "user")
    assert "go with --meta" in refused("--meta-inner-steps", 2)
    assert "goes without --batch-norm, --dropout" in refused(*META, "--dropout", 0.1)
    assert "goes without --batch-norm, --dropout" in refused(*META, "--clip-global-norm", 1)
    assert "goes without --report" in refused(*META, "--report", tmp_path / "page.html")
    assert "goes with one device" in refused(*META, "--device", "cuda:all")
    assert "goes without --delay-compensation" in finish(
        psworker("train", "--data", logs[0], *SMALL, *META, "--mode", "async", "--delay-compensation", 1), status=2)[1]
    assert "predict and serve have no labels" in refused(*META, "--checkpoint", tmp_path, command="predict")

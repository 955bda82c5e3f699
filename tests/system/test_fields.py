"""Fields with tables of their own: the same bits as one table where their options change nothing, from training to serving."""
import random
import struct

import pytest
from test_keys_by_name import SHAPE, key, log, rows_of
from test_serve import PATIENT, serve  # noqa: F401

import checkpoint
from training import finish, psds, psworker, train  # noqa: F401

COLUMNS = ["y", "target", "history", "price", "city"]
# A bound that no gradient reaches: another table, and the same numbers.
APART = ("--field", "target:clip-norm=1e6", "--field", "c*y:clip-norm=1e7")
WIDE = ("--wide", "--valid-fraction", 0.2)


def all_rows(folder, kind="emb", job="job"):
    """The rows of all tables of this kind; no key is in two of them."""
    tables = checkpoint.read_tables([folder])
    found = {}
    for name in tables:
        if name.split("/")[1].split(".")[0] == kind:
            assert not set(found) & set(tables[name])
            found.update(tables[name])
    return found


def remote(psds, tmp_path, flags, name, ranks=1, shards=2):
    node = psds("--shards", shards, dir=tmp_path / name)
    workers = [psworker("train", *flags, "--servers", node.address, "--workers", ranks, "--rank", r, "--json", tmp_path / f"{name}.{r}") for r in range(ranks)]
    for w in workers:
        finish(w)
    node.stop()
    return all_rows(node.data), all_rows(node.data, "wide")


def test_tables_of_their_own_train_as_one_table(psds, tmp_path):
    flags = (*log(tmp_path / "log.csv", COLUMNS), *WIDE)
    one = train(*flags, "--local", "--save", tmp_path / "one")
    apart = train(*flags, *APART, "--local", "--save", tmp_path / "apart")
    assert one["logloss"] == apart["logloss"] and one["auc"] == apart["auc"]
    names = {n for n in checkpoint.read_tables([tmp_path / "apart"]) if n.split("/")[1].startswith(("emb", "wide"))}
    assert names == {f"job/{kind}{tail}" for kind in ("emb", "wide") for tail in ("", ".target", ".city")}
    want = all_rows(tmp_path / "one"), all_rows(tmp_path / "one", "wide")
    assert (all_rows(tmp_path / "apart"), all_rows(tmp_path / "apart", "wide")) == want
    assert key("target", "i1", flags) in checkpoint.read_tables([tmp_path / "apart"])["job/emb.target"]
    # Over the wire with the exact cache and without, and what a section of the configuration says in place of flags.
    config = tmp_path / "job.conf"
    config.write_text("[training]\nepochs = 1\n[field target]\nclip-norm = 1e6\n[field c*y]\nclip-norm = 1e7\n")
    assert remote(psds, tmp_path, (*flags, *APART), "cached") == want
    assert remote(psds, tmp_path, (*flags, "--config", config, "--row-cache", 0), "bare") == want


@pytest.mark.parametrize("codec", ["fp32", "onebit"])
def test_lock_step_of_two_workers_with_tables_of_their_own(psds, tmp_path, codec):
    flags = (*log(tmp_path / "log.csv", COLUMNS), "--wide", "--push-codec", codec)
    want = remote(psds, tmp_path, flags, "one", ranks=2, shards=3)
    assert remote(psds, tmp_path, (*flags, *APART), "apart", ranks=2) == want


def test_a_codec_of_a_field_is_for_its_rows_alone(psds, tmp_path):
    """As if the job had it, where the field's rows are concerned in the first step; the other rows go as they are."""
    flags = (*log(tmp_path / "log.csv", COLUMNS, n=32), "--workers", 1, "--optimizer", "sgd", "--lr", 0.5)
    plain, _ = remote(psds, tmp_path, flags, "plain")
    coded, _ = remote(psds, tmp_path, (*flags, "--push-codec", "int8"), "coded")
    mixed, _ = remote(psds, tmp_path, (*flags, "--field", "city:push-codec=int8"), "mixed")
    cities = {key("city", f"c{i}", flags) for i in range(9)}
    assert plain != coded
    assert mixed == {k: (coded if k in cities else plain)[k] for k in plain}


def test_workers_that_reuse_rows_and_start_tables_by_their_keys(psds, tmp_path):
    """Two workers that are not in lock step, each of which makes the tables by what it has counted."""
    flags = (*log(tmp_path / "log.csv", COLUMNS), *WIDE, "--mode", "ssp", "--reuse-clocks", 2, "--init", "auto", "--field", "city:lr=0.02")
    emb, wide = remote(psds, tmp_path, flags, "node", ranks=2)
    assert len(emb) == len(wide) == 30 + 30 + 9


def test_what_is_trained_is_read_by_all_commands(psds, tmp_path, serve):
    flags = (*log(tmp_path / "log.csv", COLUMNS), *WIDE)
    train(*flags, "--local", "--save", tmp_path / "one")
    train(*flags, *APART, "--local", "--save", tmp_path / "apart")
    predict = lambda name, *more: finish(psworker("predict", *flags, *more, "--labelled", "--checkpoint", tmp_path / name))[0]  # noqa: E731
    want = predict("one")
    assert predict("apart", *APART) == want
    _, err = finish(psworker("eval", *flags, "--checkpoint", tmp_path / "apart"), status=2)
    assert "--field: in job \"job\" column 'target' has its rows in table job/emb.target, these settings put them in job/emb" in err
    _, err = finish(psworker("serve", "--checkpoint", tmp_path / "apart", "--field", "city:lr=1"), status=2)
    assert '--field: the record of job "job" says which tables its fields have: leave it out' in err
    rows = [dict(zip(COLUMNS, line.split(","))) for line in (tmp_path / "log.csv").read_text().splitlines()[1:4]]
    scores = serve("--checkpoint", tmp_path / "apart", *PATIENT).scores([{name: row[name] for name in COLUMNS[1:]} for row in rows])
    assert scores == pytest.approx([float(line) for line in want.split()[:3]], abs=1e-6)
    # A run that goes on finds its tables, and one with other options is told so.
    node = psds("--shards", 2)
    train(*flags, *APART, "--servers", node.address)
    assert "these settings put them in job/emb" in finish(psworker("train", *flags, "--servers", node.address), status=2)[1]
    _, err = finish(psworker("train", *flags, *APART, "--field", "city:optimizer=sgd", "--servers", node.address), status=2)
    assert "job/emb.city: optimizer is adagrad here, sgd was asked for" in err
    train(*flags, *APART, "--servers", node.address)


def test_rows_start_as_wide_as_their_fields_are_large(tmp_path):
    """A learning rate of nearly 0 leaves the rows where they started."""
    flags = (*log(tmp_path / "log.csv", COLUMNS), "--lr", "1e-30", "--init", "auto", "--field", "city:cardinality=100")
    train(*flags, "--local", "--save", tmp_path / "m")
    for field, n in (("target", 30), ("history", 30), ("city", 100)):
        values = [abs(x) for row in checkpoint.read_tables([tmp_path / "m"])[f"job/emb.{field}"].values() for x in struct.unpack_from("<4f", row)]
        assert 0.8 / n**0.5 < max(values) <= 1 / n**0.5
    assert rows_of(tmp_path / "m") == {}


def test_rows_of_several_widths(psds, tmp_path, serve):
    dims = ("--field", "target:dim=2", "--field", "city:dim=9,lr=0.02", "--l2-embedding", "1e-4")
    flags = (*log(tmp_path / "log.csv", COLUMNS), *WIDE)
    train(*flags, *dims, "--local", "--save", tmp_path / "m")
    tables = checkpoint.read_tables([tmp_path / "m"])
    assert {len(row) for row in tables["job/emb.target"].values()} == {2 * 2 * 4} and {len(row) for row in tables["job/emb.city"].values()} == {2 * 9 * 4}
    assert len(tables["job/proj.1.W"]) == len(tables["job/proj.2.W"]) == 1
    want = all_rows(tmp_path / "m"), all_rows(tmp_path / "m", "wide")
    assert remote(psds, tmp_path, (*flags, *dims), "cached") == want
    assert remote(psds, tmp_path, (*flags, *dims, "--row-cache", 0), "bare", shards=3) == want
    predictions, _ = finish(psworker("predict", *flags, *dims, "--labelled", "--checkpoint", tmp_path / "m"))
    rows = [dict(zip(COLUMNS, line.split(","))) for line in (tmp_path / "log.csv").read_text().splitlines()[1:4]]
    scores = serve("--checkpoint", tmp_path / "m", *PATIENT).scores([{name: row[name] for name in COLUMNS[1:]} for row in rows])
    assert scores == pytest.approx([float(line) for line in predictions.split()[:3]], abs=1e-6)
    for other, sentence in (("target:dim=3", "table job/emb.target has rows of 2 floats, these settings ask for rows of 3"), ("target:dim=0", "--field target: dim: \"0\" is not a whole number from 1 to 4096")):
        assert sentence in finish(psworker("eval", *flags, *dims, "--field", other, "--checkpoint", tmp_path / "m"), status=2)[1]


def bags(path, n=2000):
    """history has none to four tokens, some of them more than once."""
    rng = random.Random(7)
    lines = ["y,target,history,price,city"]
    for _ in range(n):
        history = "|".join(f"i{rng.randrange(30)}" for _ in range(rng.randrange(5)))
        lines.append(",".join((rng.choice("01"), f"i{rng.randrange(30)}", history, str(rng.randrange(99)), f"c{rng.randrange(9)}")))
    path.write_text("\n".join(lines) + "\n")
    return ("--data", path, "--delimiter", ",", "--header", "--label", "y", "--numeric", "price", "--categorical", "*", "--inner-separator", "|",
            *SHAPE, "--valid-fraction", 0.2)


def test_means_and_tables_of_other_columns(psds, tmp_path, serve):
    """share-table of a field is --share-table; what is a mean is one in all commands, and another pooling is another job."""
    flags = bags(tmp_path / "log.csv")
    shared = train(*flags, "--share-table", "target,history", "--local", "--save", tmp_path / "shared")
    field = ("--field", "history:share-table=target")
    assert train(*flags, *field, "--local", "--save", tmp_path / "field")["logloss"] == shared["logloss"]
    assert all_rows(tmp_path / "field") == all_rows(tmp_path / "shared")
    assert key("history", "i1", (*flags, *field)) == key("target", "i1", flags)
    mean = (*field, "--field", "history:pooling=mean")
    got = train(*flags, *mean, "--local", "--save", tmp_path / "mean")
    assert got["logloss"] != shared["logloss"]
    # Fields with one token each have the same mean as sum.
    assert train(*flags, *field, "--pooling", "mean", "--field", "target:pooling=sum", "--local")["logloss"] == got["logloss"]
    assert remote(psds, tmp_path, (*flags, *mean), "node")[0] == all_rows(tmp_path / "mean")
    _, err = finish(psworker("eval", *flags, *field, "--checkpoint", tmp_path / "mean"), status=2)
    assert "--pooling: in job \"job\" column 'history' has mean, in these settings sum: give it as the job has it" in err
    want, _ = finish(psworker("predict", *flags, *mean, "--labelled", "--checkpoint", tmp_path / "mean"))
    rows = [dict(zip(COLUMNS, line.split(","))) for line in (tmp_path / "log.csv").read_text().splitlines()[1:40]]
    scores = serve("--checkpoint", tmp_path / "mean", *PATIENT).scores([{name: row[name] for name in COLUMNS[1:]} for row in rows])
    assert scores == pytest.approx([float(line) for line in want.split()[:39]], abs=1e-6)


def test_a_hashing_space_is_as_many_rows(psds, tmp_path, serve):
    flags, cache = bags(tmp_path / "log.csv"), ("--data-cache", tmp_path)
    spaces = ("--field", "target:hash-space=7", "--field", "history:hash-space=4")
    train(*flags, *cache, "--local", "--save", tmp_path / "all")  # a cache of other keys
    train(*flags, *cache, *spaces, "--local", "--save", tmp_path / "few")
    want = {key(c, f"i{i}", (*flags, *spaces)) for c in ("target", "history") for i in range(30)} | {key("city", f"c{i}", flags) for i in range(9)}
    assert len(want) == 7 + 4 + 9 and set(all_rows(tmp_path / "few")) == want
    assert remote(psds, tmp_path, (*flags, *spaces), "node")[0] == all_rows(tmp_path / "few")
    _, err = finish(psworker("eval", *flags, "--checkpoint", tmp_path / "few"), status=2)
    assert "--hash-space: in job \"job\" column 'target' has 7, in these settings 0: give it as the job has it" in err
    predictions, _ = finish(psworker("predict", *flags, *spaces, "--labelled", "--checkpoint", tmp_path / "few"))
    rows = [dict(zip(COLUMNS, line.split(","))) for line in (tmp_path / "log.csv").read_text().splitlines()[1:40]]
    scores = serve("--checkpoint", tmp_path / "few", *PATIENT).scores([{name: row[name] for name in COLUMNS[1:]} for row in rows])
    assert scores == pytest.approx([float(line) for line in predictions.split()[:39]], abs=1e-6)


def test_check_says_what_is_wrong_with_a_field(tmp_path):
    flags = log(tmp_path / "log.csv", COLUMNS)
    for field, sentence in (("cty:lr=1", '--field cty: there is no such categorical column; did you mean "city"?'), ("price:lr=1", "--field price: that is a numeric column, and has no rows")):
        assert sentence in finish(psworker("train", *flags, "--check", "--field", field), status=2)[1]
    finish(psworker("train", *flags, "--check", *APART))

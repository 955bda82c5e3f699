"""Keys come from the names of columns: columns come and go, share a table, and jobs that were begun with keys by position keep them."""
import random
import signal
import subprocess

import pytest

import checkpoint
from training import BIN, finish, in_time, psds, psworker, train  # noqa: F401

SHAPE = ("--dim", 4, "--bottom", "8", "--top", "8", "--batch", 32)
COLUMNS = ["y", "target", "history", "price", "city"]


def log(path, columns, n=2000, seed=3):
    """The same rows whatever the columns that are written of them, and their order."""
    rng = random.Random(seed)
    lines = [",".join(columns)]
    for _ in range(n):
        row = dict(zip(COLUMNS, (rng.choice("01"), f"i{rng.randrange(30)}", f"i{rng.randrange(30)}", str(rng.randrange(99)), f"c{rng.randrange(9)}")))
        lines.append(",".join(row[c] for c in columns))
    path.write_text("\n".join(lines) + "\n")
    return ("--data", path, "--delimiter", ",", "--header", "--label", "y", "--numeric", "price", "--categorical", "*", *SHAPE)


def key(column, token, flags):
    return int(finish(psworker("key", column, token, *flags))[0])


def rows_of(folder, job="job"):
    return checkpoint.read_tables([folder])[f"{job}/emb"]


def without_record(source, to, job="job"):
    """A job as a psworker made it that kept no record of its model."""
    tables = [name for name in checkpoint.read_tables([source]) if name != f"{job}/model"]
    command = (BIN / "psctl", "restore", source, "--to", to, "--shards", 1, "--table", ",".join(tables))
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    assert f"{job}/model" not in checkpoint.read_tables([to])
    return to


def test_a_column_keeps_its_keys_when_others_go_or_move(tmp_path):
    whole = log(tmp_path / "whole.csv", COLUMNS)
    fewer = log(tmp_path / "fewer.csv", ["city", "price", "y", "history"])
    assert key("city", "c1", whole) == key("city", "c1", fewer) != key("history", "c1", whole)
    position = ("--key-scheme", "position")
    assert key("city", "c1", (*whole, *position)) != key("city", "c1", (*fewer, *position))
    train(*whole, "--local", "--save", tmp_path / "a")
    train(*fewer, "--local", "--save", tmp_path / "b")
    a, b = rows_of(tmp_path / "a"), rows_of(tmp_path / "b")
    assert len(a) == 30 + 30 + 9 and len(b) == 30 + 9 and set(b) < set(a)
    assert all(key("city", f"c{i}", whole) in b for i in range(9))


@pytest.mark.parametrize("scheme", ["name", "position"])
def test_columns_that_share_a_table_have_one_row_for_a_token(psds, tmp_path, scheme):
    flags = (*log(tmp_path / "log.csv", COLUMNS), "--share-table", "target,history", "--key-scheme", scheme)
    assert key("target", "i1", flags) == key("history", "i1", flags) != key("city", "i1", flags)
    node = psds("--shards", 2)
    over_wire = train(*flags, "--servers", node.address, "--valid-fraction", 0.2)
    alone = train(*flags, "--local", "--save", tmp_path / "model", "--valid-fraction", 0.2)
    assert over_wire["logloss"] == alone["logloss"] and len(rows_of(tmp_path / "model")) == 30 + 9
    assert key("history", "i1", flags) in rows_of(tmp_path / "model")
    apart = [f for f in flags if f not in ("--share-table", "target,history")]
    _, err = finish(psworker("eval", *apart, "--checkpoint", tmp_path / "model"), status=2)
    assert "--share-table: in job \"job\" column 'history' has the table of 'target', these settings give it that of 'history'" in err


def test_a_job_begun_by_position_goes_on_so(psds, tmp_path):
    flags = log(tmp_path / "log.csv", COLUMNS)
    train(*flags, "--local", "--save", tmp_path / "made", "--key-scheme", "position")
    (tmp_path / "node").mkdir()
    old = without_record(tmp_path / "made", tmp_path / "node/data")
    before = rows_of(old)
    for name in ("made", "node/data"):
        out, err = finish(psworker("predict", *flags, "--labelled", "--checkpoint", tmp_path / name))
        assert 'job "job" has keys by column position' in err
        assert name == "made" or out == predicted
        predicted = out
    _, err = finish(psworker("eval", *flags, "--checkpoint", old, "--key-scheme", "name"), status=2)
    assert '--key-scheme name: job "job" was begun with keys by column position, and keeps them' in err
    _, err = finish(psworker("eval", *flags, "--checkpoint", old, "--share-table", "target,history"), status=2)
    assert '--share-table: job "job" was begun without shared tables' in err
    again = psds("--shards", 1, dir=tmp_path / "node")
    _, err = finish(psworker("train", *flags, "--servers", again.address))
    assert 'job "job" has keys by column position' in err
    again.stop()
    assert set(rows_of(again.data)) == set(before)
    assert "job/model" not in checkpoint.read_tables([again.data])


def test_a_job_by_name_says_what_does_not_fit_it(tmp_path):
    flags = log(tmp_path / "log.csv", COLUMNS)
    train(*flags, "--local", "--save", tmp_path / "m")
    moved = log(tmp_path / "moved.csv", ["y", "city", "history", "price", "target"])
    for wrong, sentence in (
            ((*flags, "--key-scheme", "position"), '--key-scheme position: job "job" was begun with keys by column name'),
            (moved, "job \"job\": its categorical column 1 is 'target', that of these settings and the log 'city'"),
            ((*flags, "--ignore", "city"), "job \"job\": its categorical column 3 is 'city', that of these settings and the log 'none'"),
            ((*flags, "--numeric-as", "raw"), 'job "job" was begun with --numeric-as log1p, these settings have raw')):
        _, err = finish(psworker("eval", *wrong, "--checkpoint", tmp_path / "m"), status=2)
        assert sentence in err
    rows_alone = without_record(tmp_path / "m", tmp_path / "bare")  # the seed of the rows tells the scheme, too
    want, got = (finish(psworker("predict", *flags, "--labelled", "--checkpoint", tmp_path / name)) for name in ("m", rows_alone))
    assert want[0] == got[0] and 'has keys by column name' in got[1]


def test_the_workers_of_a_job_have_one_scheme(psds, tmp_path):
    flags = (*log(tmp_path / "log.csv", COLUMNS), "--workers", 2, "--mode", "async", "--allow-lost-workers", "--finish-timeout", 0, "--servers", psds("--shards", 2).address)
    finish(psworker("train", *flags, "--rank", 1))  # not the one that fills the record
    for wrong, sentence in ((("--key-scheme", "position"), 'job "job" was begun with keys by column name'),
                            (("--share-table", "target,history"), 'job "job" was begun with other columns than these settings'),
                            (("--numeric-as", "raw"), 'job "job" was begun with other columns than these settings')):
        assert sentence in finish(psworker("train", *flags, "--rank", 0, *wrong), status=2)[1]
    finish(psworker("train", *flags, "--rank", 0))
    assert "these settings give it that of 'target'" in finish(psworker("train", *flags, "--rank", 1, "--share-table", "target,history"), status=2)[1]


@pytest.mark.parametrize("scheme", ["name", "position"])
def test_a_killed_worker_resumes_with_its_keys(psds, tmp_path, scheme):
    flags = log(tmp_path / "log.csv", COLUMNS, 20000)
    train(*flags, "--local", "--save", tmp_path / "calm", "--key-scheme", scheme)

    def attempt(n):
        node = psds("--shards", 2)
        job = (*flags, "--servers", node.address, "--state-dir", tmp_path / f"state{n}", "--json", "-")
        p = psworker("train", *job, "--key-scheme", scheme, "--progress-every", "10ms")
        p.stdout.readline()
        p.send_signal(signal.SIGKILL)
        out, _ = p.communicate()
        if '"event":"result"' in out:
            return None
        _, err = finish(psworker("train", *job))
        assert f'job "job" has keys by column {scheme}' in err
        node.stop()
        return rows_of(node.data)
    assert in_time(attempt) == rows_of(tmp_path / "calm")

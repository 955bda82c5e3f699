"""psworker on Parquet files that DuckDB, Rust's arrow and hyparquet-writer have written, beside the same rows as text."""
import gzip
import hashlib
import json
import re
import shutil

import pytest
from checkpoint import read_tables
from training import ROOT, finish, in_time, psds, psworker, result, train  # noqa: F401

SAMPLES = ROOT / "tests/data/parquet"
TEXT = SAMPLES / "rows.tsv.gz"
MODEL = ("--bottom", "16", "--top", "16", "--dim", "8", "--batch", "16", "--seed", "7")
COLUMNS = ("--label", "label", "--numeric", "count,total,rate,price,flag", "--categorical", "city,token,item,big,small,weight,history,tags",
           "--bucketise", "spread", "--inner-separator", "|")
FLAT = ("--label", "label", "--numeric", "count,total,rate,price,flag", "--categorical", "city,token,item,small,weight", "--bucketise", "spread")
FILES = ("duckdb-snappy", "duckdb-zstd", "duckdb-gzip", "duckdb-v2", "arrow-v1", "arrow-v2", "arrow-plain", "arrow-delta", "hyparquet")
SHA256 = {
    "arrow-delta.parquet": "7700c1ad853aa0fb9894e9295c28774341021e91d2d267ba77f171075c8b6810",
    "arrow-plain.parquet": "edb64735f7f746af7982e3499fe1c22d34837a620f7aed36400a5864453b0b66",
    "arrow-v1.parquet": "ddb9f6b482bd323d86baae1feea6cbb82f0199fc4731dce68d202f66b630336b",
    "arrow-v2.parquet": "b40b45e5c8fb88ef2b2ad1713b1abbc6a788cc8a2da2522bea3c2b133acc4490",
    "duckdb-gzip.parquet": "30b58d9617f007e9f595b1795419fd3415c6b9f9ce7b407118006fe00bf7cad5",
    "duckdb-lz4.parquet": "088ecf96aaec6c747638bd2a5bfc1791324bfa133cb00d178bcd99f0cac2e7ee",
    "duckdb-snappy.parquet": "38df4c3f37ce9ffc073350a36e36ff077117b7c27035e62a8a82bdf627006249",
    "duckdb-v2.parquet": "87a378de45b5b7fffb3918563262ca0699f53724b58e11b7dca06face08b5422",
    "duckdb-zstd.parquet": "8927cd285b0beda74984fbf7b486561830c00350f10ac390c59977008e09f420",
    "hyparquet-half.parquet": "0dc49db248da41d001540f9201a72af504e4de65e2058a5a6b26b289010f0c54",
    "hyparquet.parquet": "c4e068728974848783960ac674af48866413012a4b7159147fc7a7dab3fed5d9",
    "rows.tsv.gz": "052b13154738964a42bd8656ed8e8fca094088637e9298cde6a4c8e2f32852f7",
}


def several(path, n):
    return [word for _ in range(n) for word in ("--data", path)]


def trained(psds, data, *flags, columns=COLUMNS, header=False):
    """The tables after a run on a fresh node."""
    node = psds("--shards", 2)
    train(*data, *(("--header",) if header else ()), "--servers", node.address, *MODEL, *columns, *flags)
    node.stop()
    return read_tables([node.data])


def test_the_samples_are_those_that_their_writers_have_written():
    assert sorted(p.name for p in SAMPLES.iterdir() if p.name not in ("README.md", "write.mjs")) == sorted(SHA256)
    for name, digest in SHA256.items():
        assert hashlib.sha256((SAMPLES / name).read_bytes()).hexdigest() == digest, name


def test_training_on_parquet_ends_in_the_bits_of_training_on_text(psds, tmp_path):
    wants = {columns: trained(psds, several(TEXT, 3), "--shuffle", 50, columns=columns, header=True) for columns in (COLUMNS, FLAT)}
    for name in FILES:
        columns = FLAT if name == "hyparquet" else COLUMNS
        assert trained(psds, several(SAMPLES / f"{name}.parquet", 3), "--shuffle", 50, columns=columns) == wants[columns], name
    # Text and Parquet side by side, with the cache of parsed rows, under a path that is longer than sentences show.
    folder = tmp_path / ("mixed" * 30)
    folder.mkdir()
    for i, name in enumerate(("arrow-v1.parquet", "rows.tsv.gz", "duckdb-v2.parquet")):
        shutil.copy(SAMPLES / name, folder / f"{i}-{name}")
    for _ in range(2):
        assert trained(psds, ("--data", folder), "--shuffle", 50, "--data-cache", tmp_path / "cache", header=True) == wants[COLUMNS]


def together(psds, data, *flags, share="rows"):
    node = psds("--shards", 2)
    workers = [psworker("train", *data, "--servers", node.address, *MODEL, *COLUMNS, "--workers", 2, "--rank", rank, "--share", share, "--mode", "bsp",
                        "--numeric-as", "standardise", "--epochs", 2, *flags) for rank in range(2)]
    for w in workers:
        finish(w)
    node.stop()
    return read_tables([node.data])


@pytest.mark.parametrize("share", ("rows", "files"))
def test_two_workers_share_parquet_as_they_share_text(psds, share):
    want = together(psds, several(TEXT, 4), "--header", share=share)
    for name in ("arrow-v2", "duckdb-snappy"):
        assert together(psds, several(SAMPLES / f"{name}.parquet", 4), share=share) == want, name


def test_a_killed_worker_goes_on_in_a_parquet_file_where_it_was(psds, tmp_path):
    want = trained(psds, several(TEXT, 60), "--epochs", 3, header=True)

    def killed(n):
        node = psds("--shards", 2, "--lease", "60s")
        flags = (*several(SAMPLES / "arrow-v1.parquet", 60), "--servers", node.address, *MODEL, *COLUMNS, "--epochs", 3, "--state-dir",
                 tmp_path / f"state-{n}")
        for step in (30, 700):
            w = psworker("train", *flags, "--json", "-", "--progress-every", "10ms")
            for line in w.stdout:
                if json.loads(line).get("step", 0) > step:
                    break
            w.kill()
            if '"event":"result"' in w.communicate()[0]:
                return None
        out, err = finish(psworker("train", *flags, "--json", "-"))
        assert "a process before this one has left its state" in err and result(out)["pushes_lost"] == 0
        node.stop()
        return read_tables([node.data])

    assert in_time(killed) == want


def test_validation_and_prediction_read_parquet(psds, tmp_path):
    flags = ("--local", *MODEL, *COLUMNS, "--valid-fraction", "0.25")
    want = train(*several(TEXT, 2), "--header", *flags, "--save", tmp_path / "text")
    got = train(*several(SAMPLES / "duckdb-zstd.parquet", 2), *flags, "--save", tmp_path / "parquet")
    assert (got["auc"], got["logloss"], got["samples"]) == (want["auc"], want["logloss"], want["samples"]) and want["samples"] == 240
    said = [finish(psworker("predict", "--data", data, "--checkpoint", tmp_path / "text", *MODEL, *COLUMNS, *more))[0]
            for data, more in ((TEXT, ("--header", "--labelled")), (SAMPLES / "arrow-v2.parquet", ("--labelled",)), (SAMPLES / "arrow-v1.parquet", ()))]
    assert len(said[0].splitlines()) == 160 and said[1] == said[0] and said[2] == said[0]  # without --labelled the label is not looked at
    keys = [finish(psworker("key", "history", "28|31", "--data", data, *COLUMNS, *more))[0] for data, more in ((TEXT, ("--header",)), (SAMPLES / "duckdb-v2.parquet", ()))]
    assert keys[0] == keys[1] and len(keys[0].split()) == 2


def refused(*flags, status=1):
    return finish(psworker("train", "--local", *MODEL, *flags), status=status)[1]


def test_what_cannot_be_read_is_refused_before_a_step(tmp_path):
    data = ("--data", SAMPLES / "duckdb-snappy.parquet", "--label", "label")
    assert re.search(r"column 'day' is a DATE; integers, reals, .* can be read", refused(*data, "--categorical", "city,day"))
    assert "column 'history' is a LIST, which can be categorical only, not numeric" in refused(*data, "--numeric", "history")
    assert "no column is called 'town'; there are label, count" in refused(*data, "--categorical", "town", status=2)
    assert "column 'label' is packed with LZ4_RAW" in refused("--data", SAMPLES / "duckdb-lz4.parquet", "--label", "label", "--categorical", "city", "--interaction", "concat")
    short = tmp_path / "short.parquet"
    short.write_bytes((SAMPLES / "arrow-v1.parquet").read_bytes()[:9000])
    assert "begins as Parquet and does not end so" in refused("--data", short, *COLUMNS)
    with open(SAMPLES / "arrow-v1.parquet", "rb") as pipe:
        _, err = finish(psworker("train", "--local", *MODEL, *COLUMNS, "--data", "-", stdin=pipe), status=1)
    assert "standard input: is Parquet, which is read from its end" in err


def test_a_malformed_row_is_named_by_its_number(tmp_path):
    flags = ("--local", *MODEL, "--label", "label", "--numeric", "city", "--categorical", "item", "--bad-rows-max", 0)
    _, err = finish(psworker("train", "--data", SAMPLES / "arrow-v1.parquet", *flags), status=1)
    said = re.search(r"arrow-v1.parquet:(\d+): column 6 \(city\): '(.*)' is not a number", err)
    first = next(i for i, line in enumerate(gzip.open(TEXT, "rt").read().splitlines()[1:], 1) if line.split("\t")[6])
    assert said and int(said[1]) == first

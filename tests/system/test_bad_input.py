"""What a person can get wrong: each ends in one clear sentence that names the thing, and an exit code (2 misuse, 1 failure)."""
import gzip
import json
import os
import re
import subprocess

import pytest
from training import BIN, finish, psds, psworker, result, synth, train, wait_for  # noqa: F401

LOG = ["data", "DATA"]  # --data FILE, filled in by the test

WORKER_MISUSE = [
    ([], "which command"),
    (["trian"], '"trian" is no command'),
    (["train"], "--data"),
    (["train", "--dta", "x"], 'dta.*did you mean.*data'),
    (["--data", "x", "train"], "the command comes first: psworker train"),
    (["--dta", "x", "eval"], "the command comes first: psworker eval"),
    (["--data", "x"], "which command"),
    (["--dta", "x"], 'dta.*did you mean.*data'),
    (["key"], "key: a column and a token are expected"),
    (["key", "C1", "--format", "criteo"], "key: a column and a token are expected"),
    (["key", "I1", "5", "--format", "criteo"], 'key: "I1" is no categorical column; there are 26'),
    (["key", "C1", "x", "y", "--format", "criteo"], '"y" is not an option'),
    (["key", "C1", "x"], "columns"),
    (["train", "--data"], "data"),
    (["train", "--data", "x", "--batch", "0"], "batch"),
    (["train", "--data", "x", "--batch", "12x"], "batch.*12x"),
    (["train", "--data", "x", "--batch", "-1"], "batch"),
    (["train", "--data", "x", "--lr", "nan"], "lr"),
    (["train", "--data", "x", "--lr", "fast"], "lr.*fast"),
    (["train", "--data", "x", "--mode", "sync"], "mode.*sync.*async.*ssp.*bsp"),
    (["train", "--data", "x", "--optimizer", "sgdd"], "optimizer.*sgdd"),
    (["train", "--data", "x", "--push-codec", "int4"], "push-codec.*int4"),
    (["train", "--data", "x", "--pull-codec", "onebit"], "pull-codec.*onebit"),
    (["train", "--data", "x", "--wide-push-codec", "int8"], "wide-push-codec.*int8"),
    (["train", "--data", "x", "--dense-refresh", "2"], "--dense-refresh.*ssp or async"),
    (["train", "--data", "x", "--dense-refresh", "0"], "--dense-refresh.*auto.*from 1"),
    (["train", "--data", "x", "--residual-max", "much"], "residual-max.*much"),
    (["train", "--data", "x", "--workers", "2", "--rank", "2"], "--rank"),
    (["train", "--data", "x", "--local", "--workers", "2"], "--local"),
    (["train", "--data", "x", "--save", "d"], "--save"),
    (["train", "--data", "x", "--bottom", "512,,64"], "bottom.*512,,64"),
    (["train", "--data", "x", "--top", "wide"], "top.*wide"),
    (["train", "--data", "x", "--dropout", "1"], "dropout"),
    (["train", "--data", "x", "--valid-fraction", "1"], "valid-fraction"),
    (["train", "--data", "x", "--valid-fraction", "0.1", "--train-rows", "5"], "train-rows"),
    (["train", "--data", "x", "--early-stop", "2"], "early-stop"),
    (["train", "--data", "x", "--local", "--valid-fraction", "0.1", "--keep", "best"], "keep best.*--save"),
    (["train", "--data", "x", "--local", "--save", "y", "--keep", "best"], "keep best.*validation rows"),
    (["train", "--data", "x", "--job", "a/b"], "job"),
    (["train", "--data", "x", "--threads", "0"], "threads.*0.*1.*64"),
    (["train", "--data", "x", "--threads", "65"], "threads.*65"),
    (["eval", "--data", "x", "--threads", "all"], "threads.*all"),
    (["predict", "--data", "x", "--compute", "fp8"], "compute.*fp8.*fp32.*bf16"),
    (["train", "--data", "x", "--log-level", "loud"], "log-level.*loud"),
    (["train", "--data", "x", "--window", "12Q"], "window.*12Q"),
    (["train", "--data", "x", "--give-up", "soon"], "give-up.*soon"),
    (["train", "--config", "/nonexistent.conf"], "/nonexistent.conf"),
    (["eval", "--data", "x", "--local"], "--local needs --checkpoint"),
    (["predict"], "--data"),
]

PSD_MISUSE = [
    ([], "--dev"),
    (["--dev", "--shards", "x"], "shards.*x"),
    (["--dev", "--shards", "99999"], "shards.*99999"),
    (["--dev", "--listen", "nowhere"], "listen.*nowhere"),
    (["--dev", "--listen", "127.0.0.1:99999"], "listen.*99999"),
    (["--dev", "--memory-max", "lots"], "memory-max.*lots"),
    (["--dev", "--shrads", "2"], 'shrads.*did you mean.*shards'),
    (["--dev", "--lease", "1"], "lease"),
    (["--dev", "--cluster", "127.0.0.1:1,127.0.0.1:2", "--node", "2"], "node"),
    (["--dev", "--token-file", "/nonexistent"], "/nonexistent"),
]


def refused(program, args, code, pattern, cwd=None):
    p = subprocess.run([BIN / program, *map(str, args)], capture_output=True, text=True, timeout=300, cwd=cwd)
    assert p.returncode == code, (p.returncode, p.stderr)
    lines = [line for line in p.stderr.splitlines() if line and not re.match(r"\S+Z info ", line)]
    assert len(lines) == 1, f"one sentence, not {lines}"
    assert re.search(pattern, lines[0]), lines[0]


@pytest.mark.parametrize("args,pattern", WORKER_MISUSE, ids=[" ".join(a) or "none" for a, _ in WORKER_MISUSE])
def test_psworker_says_what_is_wrong_with_a_flag(args, pattern, tmp_path):
    refused("psworker", args, 2, pattern, cwd=tmp_path)


@pytest.mark.parametrize("program,args", [("psworker", ("train", "--servers")), ("psctl", ("status", "--server")), ("psctl", ("why", "--server")),
                                          ("psbench", ("pull", "--server"))], ids=lambda x: x if isinstance(x, str) else x[0])
def test_the_stats_port_instead_of_the_servers_is_reported_in_one_sentence(psds, tmp_path, program, args):
    node = psds("--shards", 1)
    data = ("--data", synth(tmp_path / "log.tsv", 100), "--format", "criteo") if program == "psworker" else ()
    refused(program, (*args, node.http, *data), 1, f"{node.http}: it answers HTTP: is this the stats port\\?$")


@pytest.mark.parametrize("args,pattern", PSD_MISUSE, ids=[" ".join(a) or "none" for a, _ in PSD_MISUSE])
def test_psd_says_what_is_wrong_with_a_flag(args, pattern, tmp_path):
    refused("psd", args, 2, pattern, cwd=tmp_path)


CONFIGS = [
    ("bacth = 5\n", "job.conf:1.*bacth.*batch"),
    ("[training]\nbatch = many\n", "job.conf:2.*batch.*many"),
    ("batch\n", "job.conf:1"),
    ("[training\nbatch = 5\n", "job.conf:1"),
    ("mode = ssp\nstaleness = -1\n", "job.conf:2.*staleness"),
]


@pytest.mark.parametrize("text,pattern", CONFIGS, ids=range(len(CONFIGS)))
def test_a_line_of_a_job_file_is_named(text, pattern, tmp_path):
    conf = tmp_path / "job.conf"
    conf.write_text(text)
    refused("psworker", ["train", "--data", "x", "--config", conf], 2, pattern)


def criteo_line(label="1", numeric="5", token="68fd1e64"):
    return "\t".join([label] + [numeric] * 13 + [token] * 26) + "\n"


DATA = [
    ("no file", None, [], 1, "nosuch"),
    ("an empty file", b"", [], 1, "no rows|empty"),
    ("not the columns that were told", b"1\t2\t3\n" * 5, ["--bad-rows-max", "2"], 1, r":3.*3 column|:3.*columns"),
    ("a label that is none", criteo_line(label="maybe").encode() * 5, ["--bad-rows-max", "0"], 1, ":1.*maybe"),
    ("a number that is none", criteo_line(numeric="5x").encode() * 5, ["--bad-rows-max", "0"], 1, ":1.*5x"),
    ("a cut gzip file", gzip.compress(criteo_line().encode() * 1000)[:-20], [], 1, "log.tsv"),
    ("a cut zstd file", "zstd", [], 1, "log.tsv"),
    ("a column that is not there", criteo_line().encode() * 5, ["--format", "", "--label", "0", "--numeric", "77"], 2, "77"),
    ("a name without a header", criteo_line().encode() * 5, ["--format", "", "--label", "click"], 2, "click"),
    ("one column twice", criteo_line().encode() * 5, ["--format", "", "--label", "0", "--numeric", "1", "--categorical", "1"], 2, "1"),
    ("nothing left to train on", criteo_line().encode() * 5, ["--train-rows", "5"], 2, "train-rows"),
]


@pytest.mark.parametrize("content,flags,code,pattern", [d[1:] for d in DATA], ids=[d[0] for d in DATA])
def test_data_that_cannot_be_read_is_named_with_file_and_line(content, flags, code, pattern, tmp_path):
    log = tmp_path / ("nosuch.tsv" if content is None else "log.tsv")
    if content == "zstd":
        content = subprocess.run(["zstd", "-c"], input=b"".join(criteo_line(token=f"{i:x}").encode() for i in range(1000)),
                                 capture_output=True, check=True).stdout[:-30]
    if content is not None:
        log.write_bytes(content)
    refused("psworker", ["train", "--local", "--data", log, "--format", "criteo", *flags], code, pattern)


@pytest.mark.parametrize("flags", [("--format", "criteo"), ("--header", "--label", "click", "--categorical", "*"),
                                   ("--format", "criteo", "--numeric-as", "standardise")], ids=" ".join)
def test_a_device_without_end_is_refused(flags):
    """What is read before the first batch is kept, so this took all memory."""
    refused("psworker", ["train", "--local", "--data", "/dev/zero", *flags], 1, "/dev/zero.*(more than 16 MiB|1 MiB)")


@pytest.mark.parametrize("program,args,code", [("psd", ("--config",), 2), ("psd", ("--listen", "127.0.0.1:0", "--token-file"), 2), ("psctl", ("verify",), 1),
                                               ("psctl", ("status", "--token-file"), 1), ("psworker", ("train", "--config"), 2)],
                         ids=lambda x: " ".join(x) if isinstance(x, tuple) else str(x))
def test_a_fifo_that_nobody_writes_is_not_waited_for(program, args, code, tmp_path):
    path = tmp_path / "wal-000.control"
    os.mkfifo(path)
    refused(program, [*args, tmp_path if "verify" in args else path], code, "no file, and nothing came from it for 10 s")


@pytest.mark.parametrize("flag,text,pattern", [("--config", "nonsense = 1", "nonsense"), ("--token-file", "short", "token-file: found 5 bytes")])
def test_settings_and_tokens_come_from_pipes_too(flag, text, pattern):
    """After a while: a shell's <(...) may have to ask for them."""
    got = subprocess.run(["bash", "-c", f"exec {BIN}/psd --listen 127.0.0.1:0 {flag} <(sleep .3; echo '{text}')"], capture_output=True, text=True, timeout=60)
    assert got.returncode == 2 and pattern in got.stderr, got


def test_a_few_malformed_rows_are_counted_and_skipped(tmp_path):
    log = synth(tmp_path / "log.tsv", 500)
    with open(log, "ab") as f:
        f.write(b"1\t2\n" * 3 + criteo_line().encode())
    flags = ("--local", "--data", log, "--format", "criteo", "--bottom", "8", "--top", "8", "--json", "-", "--epochs", 2)
    out, err = finish(psworker("train", *flags, "--bad-rows-max", 3))
    assert result(out)["samples"] == 2 * 501 and result(out)["bad_rows"] == 2 * 3
    assert len(re.findall(r"\S+log\.tsv:501: 2 columns, 40 expected: skipped, as up to 3 malformed rows are", err)) == 1
    assert re.search(r"6 malformed rows were skipped \(--bad-rows-max\); the first: \S+log\.tsv:501: 2 columns", err)


def test_a_first_line_that_is_no_row_may_be_a_header(tmp_path):
    log = tmp_path / "h.csv"
    log.write_text("label,x,y\n" + "1,2,3\n0,3,2\n" * 50)
    flags = ("--local", "--data", log, "--delimiter", ",", "--label", "0", "--numeric", "1-2", "--bottom", "8", "--top", "8", "--batch", 10)
    assert re.search(r"h\.csv:1: column 0.*: skipped.*; is this line a header\? --header$", finish(psworker("train", *flags))[1], re.M)
    for header in (["--header"], ["--header", "yes"]):
        assert "skipped" not in finish(psworker("train", *flags, *header))[1]


def test_a_mistake_about_the_files_makes_no_table(psds, tmp_path):
    """So the corrected run may have another shape."""
    log, node = synth(tmp_path / "log.tsv", 2000), psds("--shards", 2)
    other = tmp_path / "other.csv"
    other.write_text("1,2\n" * 2000)
    flags = ("--servers", node.address, "--bottom", "8", "--top", "8", "--shuffle", 1000, "--data-cache", tmp_path / "cache")
    criteo = ("--format", "criteo")
    for code, pattern, *wrong in ((2, "label: no column is the label", "--format", "criteo-unlabelled"),
                                  (1, r"other\.csv:1001: 1 column, 40 expected; 1001 malformed", *criteo, "--data", other),
                                  (1, r"other\.csv:1001: 1 column, 40 expected", *criteo, "--valid", other),
                                  (1, r"no rows for rank 1 of 2 to train on \(0 malformed", *criteo, "--workers", 2, "--rank", 1,
                                   "--batch", 2000, "--job", "of-two")):
        p = psworker("train", *([] if "--data" in wrong else ["--data", log]), *flags, *wrong)
        _, err = finish(p, status=code)
        assert re.search(pattern, err.splitlines()[-1]), err
        assert wait_for("the goodbye", lambda: all(w["state"] in ("left", "expected") for j in node.stats()["jobs"] for w in j["workers"]))
    assert node.stats()["tables"] == [] and not (tmp_path / "cache").exists()
    train("--data", log, *flags, *criteo, "--dim", "8")
    assert wait_for("the tables", lambda: node.stats()["tables"])


def test_of_a_file_that_has_malformed_rows_alone_the_first_is_reported(tmp_path):
    log = tmp_path / "text.md"
    log.write_text("a line\n" * 163)
    for command, *flags in (("train", "--local"), ("train", "--local", "--shuffle", 50)):
        refused("psworker", [command, "--data", log, "--format", "criteo", *flags], 1,
                r"no rows for rank 0 of 1 to train on: \S+text\.md:1: 1 column, 40 expected \(163 malformed ones\)")
    model = tmp_path / "model"
    train("--local", "--data", synth(tmp_path / "log.tsv", 100), "--format", "criteo", "--save", model)
    refused("psworker", ["eval", "--data", log, "--format", "criteo", "--checkpoint", model], 1,
            r"no rows to read: \S+text\.md:1: 1 column, 40 expected \(163 malformed ones\)")


def test_where_a_model_is_to_be_saved_is_seen_to_before_the_training(tmp_path):
    log = synth(tmp_path / "log.tsv", 500)
    file = tmp_path / "file"
    file.write_text("")
    for save in ("/proc/nope", file, tmp_path / "not" / "there"):
        out, err = finish(psworker("train", "--local", "--data", log, "--format", "criteo", "--save", save, "--json", "-"), status=1)
        assert re.search(rf"--save: cannot .*{save}", err.splitlines()[-1]) and json.loads(out)["event"] == "failure"
        assert "computing on cpu" not in err
    train("--local", "--data", log, "--format", "criteo", "--bottom", "8", "--top", "8", "--save", tmp_path / "made")
    assert list((tmp_path / "made" / "checkpoints").iterdir())


def test_a_bound_that_nothing_has_is_named(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 100)
    small = ("--data", log, "--format", "criteo", "--local", "--bottom", "8", "--top", "8")
    said = lambda *flags: [line for line in finish(psworker("train", *small, *flags))[1].splitlines() if "has no effect" in line]
    assert re.search("--staleness 3 has no effect: it is the bound of --mode ssp", *said("--staleness", 3))
    assert re.search("--dense-staleness 0 has no effect: it is the bound of --dense-mode ssp",
                     *said("--dense-staleness", 0, "--mode", "ssp", "--staleness", 3))
    assert not said("--dense-mode", "ssp", "--dense-staleness", 2, "--embedding-mode", "ssp", "--embedding-staleness", 3)


def test_a_server_that_is_not_there_is_named_and_waited_for_until_the_deadline(tmp_path):
    log = synth(tmp_path / "log.tsv", 100)
    p = psworker("train", "--data", log, "--format", "criteo", "--servers", "127.0.0.1:1", "--connect-timeout", "3s")
    _, err = finish(p, status=1)
    assert re.search(r"127\.0\.0\.1:1", err) and "refused" in err


def test_tables_with_another_shape_are_refused_with_the_field_that_differs(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 200)
    node = psds("--shards", 1)
    flags = ("--data", log, "--format", "criteo", "--servers", node.address, "--bottom", "8", "--top", "8")
    train(*flags)
    _, err = finish(psworker("train", *flags, "--lr", "0.5"), status=2)
    assert re.search(r"learning_rate is 0\.03 here, 0\.5 was", err.splitlines()[-1])
    _, err = finish(psworker("train", *flags, "--dim", "4"), status=2)
    assert re.search(r"dim", err.splitlines()[-1])
    _, err = finish(psworker("eval", *flags, "--bottom", "16"), status=2)
    assert re.search(r"holds \d\d+ floats, these settings ask for \d+: .*--bottom", err.splitlines()[-1])
    _, err = finish(psworker("eval", *flags, "--dim", "4"), status=2)
    assert re.search(r"has rows of 16 floats, these settings ask for rows of 4: --dim", err.splitlines()[-1])
    _, err = finish(psworker("eval", *flags, "--job", "another"), status=1)
    assert "another" in err.splitlines()[-1]
    train(*flags)  # and the daemon still serves


def test_a_learning_rate_that_diverges_ends_the_job_with_a_sentence(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 3000)
    node = psds("--shards", 1)
    _, err = finish(psworker("train", "--data", log, "--format", "criteo", "--servers", node.address, "--optimizer", "sgd",
                             "--lr", "900000", "--bottom", "64", "--top", "64"), status=1)
    assert re.search("NaN|diverged", err.splitlines()[-1])


def test_the_memory_budget_refuses_new_rows_and_the_job_goes_on(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 20000, cardinality=100000)
    node = psds("--shards", 1, "--memory-max", "4M")
    r = train("--data", log, "--format", "criteo", "--servers", node.address, "--bottom", "16", "--top", "16", "--dim", "32")
    assert r["rows_refused"] > 0 and r["samples"] == 20000
    shard = node.stats()["shards"][0]
    assert shard["rows_refused"] > 0 if "rows_refused" in shard else True
    assert node.get("/healthz")

"""How tables go over the wire: residuals of lossy codecs outlive a restart, and codecs are chosen for the link."""
import gzip
import json
import re
import signal

from checkpoint import read_tables
from training import ended_by_itself, finish, in_time, psds, psworker, result, synth, train  # noqa: F401

BATCH = 64
SMALL = ("--bottom", "32", "--top", "32", "--dim", "8", "--batch", BATCH, "--seed", "7", "--format", "criteo", "--job", "ctr",
         "--optimizer", "adagrad", "--lr", "0.02")
# A bound so small that residuals are flushed every few steps, and a warm-up that ends in the first run.
LOSSY = ("--push-codec", "onebit", "--dense-push-codec", "topk", "--topk", "0.05", "--dense-push-warmup", 5,
         "--residual-max", "100K")


def split(tmp_path, path, rows, name):
    """The first `rows` rows, and the rest."""
    lines = path.read_text().splitlines(keepends=True)
    head, tail = tmp_path / f"{name}-0.tsv", tmp_path / f"{name}-1.tsv"
    head.write_text("".join(lines[:rows]))
    tail.write_text("".join(lines[rows:]))
    return head, tail


def local(tmp_path, data, *flags):
    train("--data", data, "--local", "--save", tmp_path / "local", *SMALL, *flags)
    return read_tables([tmp_path / "local"])


def worker(node, data, *flags):
    return psworker("train", "--data", data, "--servers", node.address, "--json", "-", *SMALL, *flags)


def stopped(node):
    node.stop()
    return read_tables([node.data])


def test_a_run_in_two_halves_ends_in_the_same_bits_as_in_one(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 4096)
    want = local(tmp_path, data, *LOSSY)
    for n_shards in (1, 3):
        node, state = psds("--shards", n_shards), tmp_path / f"state{n_shards}"
        for half in split(tmp_path, data, 32 * BATCH, "half"):
            r = result(finish(worker(node, half, *LOSSY, "--state-dir", state))[0])
            assert r["residual_settled"] > 0 and r["residual_rows"] > 0
        assert sorted(p.name for p in state.iterdir()) == ["ctr.0.lock", "ctr.0.residuals"]
        assert stopped(node) == want
    # And without the first half's residuals it is another run.
    node = psds("--shards", 1)
    for half in split(tmp_path, data, 32 * BATCH, "half"):
        finish(worker(node, half, *LOSSY))
    assert stopped(node) != want


def test_a_run_stopped_by_a_signal_goes_on_where_it_was(psds, tmp_path):
    rows = 40000
    data = synth(tmp_path / "log.tsv", rows)
    want = local(tmp_path, data, *LOSSY)

    def stopped_early(n):
        node, state = psds("--shards", 2), tmp_path / f"state{n}"
        first = worker(node, data, *LOSSY, "--state-dir", state, "--progress-every", "10ms")
        for line in first.stdout:
            if '"step":' in line and int(re.search(r'"step":(\d+)', line)[1]) >= 10:
                break
        first.send_signal(signal.SIGTERM)
        out, _ = finish(first)
        if ended_by_itself(out) or result(out)["step"] == rows // BATCH:
            return None
        return node, state, result(out)

    node, state, r = in_time(stopped_early)
    assert r["stopped_early"] and 10 <= r["step"] < rows // BATCH
    _, rest = split(tmp_path, data, r["step"] * BATCH, "rest")
    _, err = finish(worker(node, rest, *LOSSY, "--state-dir", state))
    assert re.search(rf"rows have residuals of {r['step']} earlier steps", err), err
    assert stopped(node) == want


def test_what_a_kill_leaves_is_reported_and_used_and_a_bad_file_is_one_sentence(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 40000)

    def killed(n):
        node, state = psds("--shards", 1), tmp_path / f"state{n}"
        flags = (*LOSSY, "--state-dir", state, "--state-every", 10)
        w = worker(node, data, *flags, "--progress-every", "10ms")
        for line in w.stdout:
            if '"step":' in line and int(re.search(r'"step":(\d+)', line)[1]) >= 30:
                break
        w.kill()
        w.communicate()
        return (node, state, flags) if w.returncode == -signal.SIGKILL and any(state.glob("*.residuals")) else None

    node, state, flags = in_time(killed)
    head, _ = split(tmp_path, data, 4 * BATCH, "head")
    _, err = finish(worker(node, data, *flags))  # goes on behind the last step
    assert re.search(r"did not end by itself; the residuals of \d+ rows are as of its step \d+0:", err), err

    file = state / "ctr.0.residuals"
    whole = file.read_bytes()
    file.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    _, err = finish(worker(node, head, *flags))
    assert re.search(r"ctr\.0\.residuals is damaged: .*; this run begins without residuals", err), err
    assert "have residuals" not in err

    (state / "other.0.residuals").write_bytes(whole)
    _, err = finish(worker(node, head, *flags, "--job", "other"), status=2)
    assert 'is of job "ctr", rank 0; this is job "other", rank 0' in err
    (tmp_path / "file").write_text("")
    _, err = finish(worker(node, head, *LOSSY, "--state-dir", tmp_path / "file" / "dir"), status=1)
    assert "--state-dir" in err and "cannot be made" in err, err


def test_a_run_that_ends_with_an_error_keeps_its_residuals(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 40 * BATCH)
    flags = (*LOSSY, "--state-dir", tmp_path / "state")
    node = psds("--shards", 2)
    # A log that breaks off: before the first step, then behind the first of them.
    packed = gzip.compress(data.read_bytes())
    broken = tmp_path / "log.tsv.gz"
    broken.write_bytes(packed[:100])
    finish(worker(node, broken, *flags), status=1)
    broken.write_bytes(packed[:len(packed) // 2])
    _, err = finish(worker(node, broken, *flags), status=1)
    assert "did not end by itself" not in err, "nothing was pushed before"
    _, err = finish(worker(node, data, *flags))
    found = re.search(r"(\d+) rows have residuals of (\d+) earlier steps", err)
    assert found and int(found[1]) > 0 and int(found[2]) > 5, err
    assert "did not end by itself" not in err


def test_settings_that_can_do_nothing_are_said(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 4 * BATCH)
    ssp = ("--mode", "ssp", "--staleness", 2, "--ahead", 2)
    node = psds("--shards", 1)
    _, err = finish(worker(node, data, *ssp))
    assert err.count("--ahead 2 has no effect: the row cache") == 1, err
    _, err = finish(worker(node, data, *ssp, "--row-cache", 0, "--job", "plain"))
    assert "--ahead" not in err
    _, err = finish(worker(node, data, "--ahead", 2, "--dense-refresh", "auto", "--job", "lockstep"))
    assert err.count("--ahead 2 has no effect: in lock step") == 1, err
    assert err.count("--dense-refresh auto has no effect: in lock step") == 1, err


def test_tables_that_the_row_cache_leaves_out_are_named(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 4 * BATCH)
    node = psds("--shards", 1)
    _, err = finish(worker(node, data, "--job", "j", "--idle-clocks", 100))
    assert err.count("the row cache leaves table j/emb out") == 1, err
    assert "WARN" not in node.log.read_text().upper(), "asking whether a table is there is no refusal"


def test_dense_tables_are_pulled_every_so_many_steps_within_the_bound(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 6400)
    node = psds("--shards", 2)
    ssp = ("--mode", "ssp", "--staleness", 4)
    got = {}
    for refresh in ("1", "4", "100", "auto"):
        r = result(finish(worker(node, data, *ssp, "--dense-refresh", refresh, "--row-cache", 0, "--job", f"r{refresh}"))[0])
        got[refresh] = r["bytes_in"]
        assert r["staleness_max"] <= 4
    assert got["4"] < got["1"] * 0.8
    assert got["100"] > got["1"] * 0.1, "the bound of 4 ends it after 5 steps"
    # A validation sees what the tables hold, not what the steps use.
    out, _ = finish(worker(node, data, "--mode", "async", "--dense-refresh", 99, "--row-cache", 0, "--train-rows", 50 * BATCH, "--eval-every", 50,
                           "--job", "validates"))
    events = [json.loads(line) for line in out.splitlines()]
    assert [e["auc"] for e in events if e["event"] == "validation"] == [result(out)["auc"]]
    _, err = finish(worker(node, data, "--dense-refresh", 2), status=2)
    assert "--dense-refresh goes with --mode ssp or async" in err
    _, err = finish(worker(node, data, *ssp, "--dense-refresh", "often"), status=2)
    assert '"often" is neither auto nor a number' in err


def test_auto_says_what_it_chose_and_why(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 6400)
    auto = [x for side in ("push", "pull", "wide-push", "wide-pull", "dense-push", "dense-pull")
            for x in (f"--{side}-codec", "auto")]
    _, err = finish(worker(psds("--shards", 2), data, *auto, "--wide"))
    assert re.search(r"link (\d[\d.]* [MG]bit/s|faster than can be measured), [\d.]+ ms away; [\d.]+ ms of wire against [\d.]+ ms of compute a step: "
                     r"rows \w+ out, \w+ in; wide \w+ out, \w+ in; dense \w+ out, \w+ in", err), err
    _, err = finish(psworker("train", "--data", data, "--local", *SMALL, *auto))
    assert re.search(r"no link; .*rows fp32 out, fp32 in; dense fp32 out, fp32 in", err), err

"""What a user does with psworker: train, eval, predict, from servers and from checkpoints; many workers; switches; stopping."""
import json
import math
import os
import pty
import re
import signal
import subprocess

import pytest
from checkpoint import manifest, newest, read_tables
from training import BIN, ROOT, finish, free_ports, in_time, keyless_log, psds, psworker, restarted, result, shared, synth, train, wait_for  # noqa: F401

SMALL = ("--format", "criteo", "--bottom", "16", "--top", "16", "--dim", "8", "--batch", "64")
ADULT = ("--config", ROOT / "deploy/adult.conf", "--data", ROOT / "tests/data/adult.data.zst")
ADULT_TEST = ROOT / "tests/data/adult.test.zst"


def evaluate(*flags):
    out, _ = finish(psworker("eval", *flags, "--json", "-"))
    return result(out)


def predictions(*flags):
    out, _ = finish(psworker("predict", *flags))
    return [float(line) for line in out.splitlines()]


def test_a_model_is_evaluated_alike_from_servers_a_restart_a_checkpoint_and_other_shards(psds, tmp_path):
    node = psds("--shards", 3)
    want = train(*ADULT, "--valid", ADULT_TEST, "--servers", node.address, "--epochs", 1)
    assert want["auc"] > 0.9 and want["validation_rows"] == 16281
    flags = ("--config", ROOT / "deploy/adult.conf", "--data", ADULT_TEST)
    same = lambda r: (r["auc"], r["logloss"]) == (want["auc"], want["logloss"])
    assert same(evaluate(*flags, "--servers", node.address))
    node.stop()
    assert same(evaluate(*flags, "--checkpoint", node.data))
    assert same(evaluate(*flags, "--checkpoint", newest(node.data)))
    again = psds("--shards", 2, dir=node.dir)
    assert same(evaluate(*flags, "--servers", again.address))
    again.stop()

    ports = free_ports(2)
    cluster = ",".join(f"127.0.0.1:{p}" for p in ports)
    nodes = [psds("--shards", 2, "--cluster", cluster, "--node", i, "--restore", node.data, listen=f"127.0.0.1:{p}")
             for i, p in enumerate(ports)]
    assert same(evaluate(*flags, "--servers", nodes[1].address))
    for n in nodes:
        n.stop()
    assert read_tables([n.data for n in nodes]) == read_tables([node.data])
    assert same(evaluate(*flags, "--checkpoint", ",".join(str(n.data) for n in nodes)))
    _, err = finish(psworker("eval", *flags, "--checkpoint", nodes[0].data), status=1)
    assert "node 1 is not among" in err  # half a model is none


def test_predictions_are_those_that_eval_scores(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 3000)
    train("--data", log, "--local", "--save", tmp_path / "model", *SMALL)
    want = evaluate("--data", log, "--checkpoint", tmp_path / "model", *SMALL)
    labels = [int(line.split("\t")[0]) for line in open(log)]
    for flags, source in ((("--labelled",), log), ((), tmp_path / "unlabelled.tsv")):
        (tmp_path / "unlabelled.tsv").write_text("".join(line.split("\t", 1)[1] for line in open(log)))
        p = predictions("--data", source, "--checkpoint", tmp_path / "model", *SMALL, *flags)
        assert len(p) == 3000 and all(0 <= x <= 1 for x in p)
        logloss = -sum(math.log(x if y else 1 - x) for x, y in zip(p, labels)) / len(p)
        assert abs(logloss - want["logloss"]) < 1e-6


def test_predict_stops_at_a_malformed_row_so_that_line_n_is_row_n(tmp_path):
    log = synth(tmp_path / "log.tsv", 500)
    train("--data", log, "--local", "--save", tmp_path / "model", *SMALL)
    with open(log, "a") as f:
        f.write("1\t2\n")
    _, err = finish(psworker("predict", "--data", log, "--labelled", "--checkpoint", tmp_path / "model", *SMALL), status=1)
    assert re.search(r"log.tsv:501", err)


def test_a_failed_predict_leaves_the_output_as_it_was(tmp_path):
    log = synth(tmp_path / "log.tsv", 300)
    train("--data", log, "--local", "--save", tmp_path / "model", *SMALL)
    flags = ("predict", "--data", log, "--checkpoint", tmp_path / "model", *SMALL)
    out = tmp_path / "px.txt"
    link = tmp_path / "link.txt"
    link.symlink_to("px.txt")
    for path in (out, link):
        out.write_text("of yesterday\n")
        out.chmod(0o600)
        _, err = finish(psworker(*flags, "--output", path), status=1)
        assert "--labelled" in err and "written to" not in err
        assert out.read_text() == "of yesterday\n" and not list(tmp_path.glob("*.part"))
        _, err = finish(psworker(*flags, "--labelled", "--output", path))
        assert "300 predictions written to" in err
        assert len(out.read_text().splitlines()) == 300 and not list(tmp_path.glob("*.part"))
        assert link.is_symlink() and out.stat().st_mode & 0o777 == 0o600
    finish(psworker(*flags, "--output", tmp_path / "new.txt"), status=1)
    assert not list(tmp_path.glob("new.txt*"))
    _, err = finish(psworker(*flags, "--labelled", "--output", tmp_path / "none/px.txt"), status=1)
    assert err.splitlines()[-1].endswith(f"--output: {tmp_path}/none/px.txt.part cannot be written: No such file or directory")


def test_predict_writes_straight_to_what_is_no_plain_file(tmp_path):
    log = synth(tmp_path / "log.tsv", 300)
    train("--data", log, "--local", "--save", tmp_path / "model", *SMALL)
    flags = ("predict", "--data", log, "--labelled", "--checkpoint", tmp_path / "model", *SMALL)
    want = predictions(*flags[1:])
    out, _ = finish(psworker(*flags, "--output", "/dev/stdout"))
    assert [float(line) for line in out.splitlines()] == want
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = subprocess.Popen(["cat", str(fifo)], stdout=subprocess.PIPE, text=True)
    finish(psworker(*flags, "--output", fifo))
    assert [float(line) for line in reader.communicate(timeout=300)[0].splitlines()] == want and fifo.is_fifo()
    with open(tmp_path / "shell.txt", "w+") as shell:  # as `> shell.txt` does: the file that is open is the one that is written
        subprocess.run([BIN / "psworker", *map(str, flags), "--output", "/dev/stdout"], stdout=shell, stderr=subprocess.DEVNULL, check=True,
                       timeout=100)
        shell.seek(0)
        assert [float(line) for line in shell] == want
    _, err = finish(psworker(*flags, "--output", "/dev/full"), status=1)
    assert "cannot be written: No space left on device" in err


def test_the_row_of_a_token_is_found_by_its_key(psds, tmp_path):
    node = psds("--shards", 2)
    log = tmp_path / "log.csv"
    log.write_text("y,a,city,tags\n" + "".join(f"{i % 2},{i},{'rome' if i % 3 else 'oslo'},x|y\n" for i in range(300)))
    columns = ("--delimiter", ",", "--header", "--label", "y", "--bucketise", "a", "--categorical", "city,tags", "--inner-separator", "|")
    train("--data", log, *columns, "--servers", node.address, "--dim", 4, "--bottom", "8", "--top", "8")
    keys = lambda *words, flags=(*columns, "--data", log): finish(psworker("key", *words, *flags))[0].split()
    row = lambda key: subprocess.run([BIN / "psctl", "--server", node.address, "row", "job/emb", key], capture_output=True, text=True).stdout
    known = [key for words in (("city", "rome"), ("a", "299"), ("tags", "x|y")) for key in keys(*words)]
    assert keys("2", "rome") == known[:1] and len({*known, *keys("city", "x")}) == 5
    for key in known:
        assert "there is none" not in row(key)
    assert "there is none" in row(keys("city", "x")[0])  # it stands in another column
    criteo = ("--format", "criteo")
    with open("/dev/full", "w") as full:
        full = subprocess.run([BIN / "psworker", "key", "C1", "68fd1e64", *criteo], stdout=full, stderr=subprocess.PIPE, text=True)
    assert full.returncode == 1 and full.stderr == "psworker: the keys cannot be written: No space left on device\n"
    assert keys("C1", "68fd1e64", flags=criteo) == keys("14", "68fd1e64", flags=criteo) != keys("C2", "68fd1e64", flags=criteo)


def test_batches_without_any_key_are_batches(psds, tmp_path):
    flags = keyless_log(tmp_path / "log.csv")
    want = train(*flags, "--local")
    got = train(*flags, "--servers", psds("--shards", 2).address)
    assert got["samples"] == 41 and (got["auc"], got["logloss"]) == (want["auc"], want["logloss"])


def test_a_terminal_gets_a_bar(tmp_path):
    log = synth(tmp_path / "log.tsv", 20000)
    try:
        main, side = pty.openpty()
    except OSError as e:  # a container without /dev/pts
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no terminal is to be had: {e}")
    p = subprocess.Popen([BIN / "psworker", "train", "--local", "--data", log, "--train-rows", "19000", "--eval-every", "50",
                          "--progress-every", "20ms", *SMALL], stderr=side, stdout=side)
    os.close(side)
    seen = b""
    while True:
        try:
            seen += os.read(main, 65536)
        except OSError:  # the other side is closed
            break
    os.close(main)
    assert p.wait() == 0
    assert re.search(rb"epoch 1/1 \[#+\.+\] +\d+%  \d+ samples/s  loss 0\.\d+  AUC 0\.\d+  staleness 0  \d+ bytes/sample", seen)


def test_training_again_goes_on_from_the_tables_that_are_there(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 5000)
    node = psds("--shards", 2)
    flags = ("--data", log, "--servers", node.address, "--valid", log, *SMALL)
    first, second = train(*flags), train(*flags)
    assert second["logloss"] < first["logloss"]


@pytest.mark.parametrize("share", ["rows", "files"])
def test_every_row_is_trained_on_once_by_one_of_the_workers(psds, tmp_path, share):
    logs = [synth(tmp_path / f"log{i}.tsv.zst", 1000 + i, seed=i) for i in range(4)]
    node = psds("--shards", 2)
    workers = [psworker("train", "--data", ",".join(map(str, logs)), "--servers", node.address, "--workers", 3, "--rank", r,
                        "--mode", "async", "--share", share, *SMALL, "--json", "-") for r in range(3)]
    samples = [result(finish(w)[0])["samples"] for w in workers]
    assert sum(samples) == sum(1000 + i for i in range(4)) and all(samples)


def test_the_bound_holds_and_is_shown(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 12000)
    node = psds("--shards", 2)
    workers = [psworker("train", "--data", log, "--servers", node.address, "--workers", 3, "--rank", r, "--mode", "ssp",
                        "--staleness", 2, *SMALL, "--json", "-") for r in range(3)]
    results = [result(finish(w)[0]) for w in workers]
    assert max(r["staleness_max"] for r in results) <= 2
    job = wait_for("the goodbyes", lambda: [j for j in node.stats()["jobs"] if all(w["state"] == "left" for w in j["workers"])])[0]
    assert job["staleness_violations"] == 0 and job["staleness_max"] <= 2 and sum(job["staleness"].values()) > 100


def test_a_table_may_be_asynchronous_in_a_lock_step_job(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 4000)
    node = psds("--shards", 2)
    workers = [psworker("train", "--data", log, "--servers", node.address, "--workers", 2, "--rank", r, "--mode", "bsp",
                        "--embedding-mode", "async", *SMALL, "--json", "-") for r in range(2)]
    for w in workers:
        finish(w)
    node.stop()
    again = psds("--shards", 1, dir=node.dir)  # a table's mode is part of it, and of its checkpoint
    modes = wait_for("the first report", lambda: {t["name"]: t["mode"] for t in again.stats()["tables"]})
    assert modes["job/emb"] == "async" and modes["job/bot.0.W"] == "job"


def test_a_job_goes_on_with_another_number_of_workers_and_another_mode(psds, tmp_path):
    """Their warm-up is another one, if nobody says which."""
    log = synth(tmp_path / "log.tsv", 2000)
    node = psds("--shards", 2)
    flags = ("--data", log, "--servers", node.address, *SMALL)
    finish(psworker("train", *flags))
    for w in [psworker("train", *flags, "--workers", 2, "--rank", r, "--mode", "ssp", "--staleness", 2) for r in range(2)]:
        finish(w)
    _, said = finish(psworker("train", *flags, "--warmup", "5"), status=2)
    assert "warmup_clocks" in said
    _, said = finish(psworker("train", *flags, "--warmup", "5x"), status=2)
    assert '--warmup: "5x" is neither auto nor a number of clocks' in said


@pytest.mark.parametrize("flags", [
    ("--batch-norm", "--dropout", "0.2", "--wide"), ("--interaction", "concat"), ("--self-interaction", "--l2-dense", "1e-4"),
    ("--optimizer", "ftrl", "--lr", "0.1", "--ftrl-l1", "1e-6"), ("--optimizer", "adam", "--lr", "0.002"),
    ("--optimizer", "momentum", "--lr", "0.02"), ("--optimizer", "rowwise_adagrad", "--lr", "0.05"),
    ("--push-codec", "onebit", "--optimizer", "sgd", "--lr", "0.1"), ("--push-codec", "topk", "--topk", "0.25"), ("--pull-codec", "bf16", "--push-codec", "bf16"),
    ("--warmup", "20", "--decay", "linear", "--decay-clocks", "400", "--clip-norm", "1"), ("--shuffle", "2000"),
], ids=lambda f: " ".join(f))
def test_every_switch_learns(psds, tmp_path, flags):
    """AUC on held-out rows of a planted model; 0.5 is chance, about 0.8 the best possible."""
    log = synth(tmp_path / "log.tsv", 24000, cardinality=50)
    node = psds("--shards", 2)
    r = train("--data", log, "--valid-fraction", "0.2", "--servers", node.address, *SMALL, *flags)
    assert r["auc"] > 0.6, r["auc"]


def test_threads_change_no_result(tmp_path):
    log = synth(tmp_path / "log.tsv", 6000, cardinality=50)
    flags = ("--data", log, "--format", "criteo", "--bottom", "64", "--top", "128,32", "--dim", "8", "--batch", "300")
    scores = {}
    for n in (1, 2):
        model = tmp_path / f"model{n}"
        out, err = finish(psworker("train", *flags, "--valid-fraction", "0.2", "--local", "--save", model, "--threads", n, "--json", "-"))
        trained = result(out)
        assert f", {n} thread" in err  # the log says how many compute
        scores[n] = [(r["auc"], r["logloss"]) for r in (trained, *(evaluate(*flags, "--checkpoint", model, "--threads", t)
                                                                   for t in (1, 2)))]
        assert scores[n][1] == scores[n][2]
    assert scores[1] == scores[2]
    p = [predictions(*flags, "--labelled", "--checkpoint", tmp_path / "model1", "--threads", n) for n in (1, 2)]
    assert len(p[0]) == 6000 and p[0] == p[1]


def test_bf16_products_learn_as_well(tmp_path):
    """Where the processor has no bf16, the log says so, and the result is that of fp32."""
    flags = (*ADULT, "--valid", ADULT_TEST, "--epochs", 1, "--local")
    want = train(*flags)
    out, err = finish(psworker("train", *flags, "--compute", "bf16", "--json", "-"))
    got, has_bf16 = result(out), "bf16 products by" in err
    assert abs(got["auc"] - want["auc"]) < 0.02
    assert has_bf16 or "no bf16" in err
    assert has_bf16 == ((got["auc"], got["logloss"]) != (want["auc"], want["logloss"]))


def test_tf32_on_the_cpu_is_fp32_and_says_so(tmp_path):
    log = synth(tmp_path / "log.tsv", 3000, cardinality=50)
    flags = ("--data", log, "--valid-fraction", "0.2", "--local", "--device", "cpu", *SMALL)
    want = train(*flags)
    out, err = finish(psworker("train", *flags, "--compute", "tf32", "--json", "-"))
    assert (result(out)["auc"], result(out)["logloss"]) == (want["auc"], want["logloss"])
    assert "computing on cpu: tf32 is for GPUs: fp32 products by " in err


def test_standardised_columns_are_read_back_the_same_way(psds, tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("y,a,b,c\n" + "".join(f"{i % 2},{1000 + 7 * (i % 2) + i % 5},{i % 3},t{i % 11}\n" for i in range(2000)))
    flags = ("--delimiter", ",", "--header", "--label", "y", "--numeric", "a,b", "--categorical", "c", "--numeric-as", "standardise",
             "--bottom", "8", "--top", "8", "--dim", "4", "--batch", "32", "--lr", "0.05")
    node = psds("--shards", 2)
    r = train("--data", log, "--valid", log, "--servers", node.address, *flags)
    assert r["auc"] > 0.99
    other = tmp_path / "other.csv"  # other rows, whose own moments differ
    other.write_text("y,a,b,c\n" + "".join(f"1,{1007 + i % 5},{i % 3},t{i % 11}\n" for i in range(50)))
    assert min(predictions("--data", other, "--labelled", "--servers", node.address, *flags)) > 0.5


def test_real_avazu_rows_are_read_by_header_names(tmp_path):
    log = shared("data/avazu/avazu_train20k.csv.zst")
    r = train("--data", log, "--local", "--delimiter", ",", "--header", "--label", "click", "--categorical", "*", "--ignore", "id",
              "--bottom", "16", "--top", "32,16", "--valid-fraction", "0.1", "--lr", "0.02")
    assert r["bad_rows"] == 0 and r["samples"] + r["validation_rows"] == 20000 and r["auc"] > 0.6


def test_a_second_process_of_a_live_rank_waits_and_disturbs_nobody(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 2000)
    node = psds("--shards", 2)
    flags = ("--data", log, "--servers", node.address, *SMALL, "--json", "-", "--progress-every", "50ms")
    first = psworker("train", *flags, "--epochs", 10000)
    assert first.stdout.readline()
    out, err = finish(psworker("train", *flags, "--connect-timeout", "3s"), status=1)
    assert re.search(r"rank 0 is psworker \S+, heard of \d+ ms ago", err.splitlines()[-1])
    last = json.loads(out.splitlines()[-1])  # who reads --json is told, too
    assert last.pop("event") == "failure" and "psworker: " + last["error"] == err.splitlines()[-1]
    first.send_signal(signal.SIGTERM)
    out, err = finish(first)
    assert result(out)["rejoins"] == 0 and "declared dead" not in err
    train(*flags)


def test_a_run_that_has_no_data_says_so_in_json(tmp_path):
    reported = tmp_path / "told.json"
    reported.write_text('{"event":"result"}\n')  # another run's
    _, err = finish(psworker("train", "--local", *SMALL, "--json", reported, "--data", tmp_path / "none.tsv"), status=1)
    assert json.loads(reported.read_text()) == {"event": "failure", "error": err.splitlines()[-1].removeprefix("psworker: ")}


def test_a_token_may_come_from_a_pipe_that_is_read_once(psds, tmp_path):
    """As a shell's --token-file <(...) does."""
    log = synth(tmp_path / "log.tsv", 500)
    node = psds("--shards", 1, "--token", "open sesame")
    reads, writes = os.pipe()
    os.write(writes, b"open sesame\n")
    os.close(writes)
    flags = ("--data", log, "--valid-fraction", "0.3", "--servers", node.address, "--token-file", f"/dev/fd/{reads}", *SMALL, "--json", "-")
    out, _ = finish(psworker("train", *flags, pass_fds=(reads,)))
    os.close(reads)
    assert result(out)["validation_rows"] == 150


def test_early_stop_ends_all_workers(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 1000, cardinality=5)
    node = psds("--shards", 2)
    flags = ("--data", log, "--valid-fraction", "0.3", "--servers", node.address, "--workers", 2, "--early-stop", 2, "--epochs", 500,
             "--lr", "0.1", *SMALL, "--json", "-")
    workers = [psworker("train", *flags, "--rank", r) for r in range(2)]
    outs = [finish(w)[0] for w in workers]
    assert all(result(o)["stopped_early"] for o in outs)
    assert len({result(o)["step"] for o in outs}) == 1  # in lock step all end at the same clock
    aucs = [json.loads(line)["auc"] for line in outs[0].splitlines() if '"validation"' in line]
    assert aucs[-1] <= max(aucs[:-1]) and aucs[-2] <= max(aucs[:-2])


@pytest.mark.parametrize("by,best", [("auc", max), ("logloss", min)])
def test_the_best_model_is_kept(tmp_path, by, best):
    """A rate at which later passes spoil the model: what --save leaves is the best validation's."""
    lines = synth(tmp_path / "all.tsv", rows=3000).read_text().splitlines(keepends=True)
    (tmp_path / "d.tsv").write_text("".join(lines[:2000]))
    (tmp_path / "v.tsv").write_text("".join(lines[2000:]))
    model = ("--format", "criteo", "--bottom", "16", "--top", "16", "--dim", "4", "--job", "kept")
    out = finish(psworker("train", "--local", "--data", tmp_path / "d.tsv", "--valid", tmp_path / "v.tsv", *model, "--batch", 32, "--epochs", 4,
                          "--lr", 0.3, "--eval-every", 20, "--early-stop-by", by, "--save", tmp_path / "saved", "--keep", "best", "--json", "-"))[0]
    figures = [json.loads(line)[by] for line in out.splitlines() if '"validation"' in line or '"result"' in line]
    assert len(figures) > 5 and best(figures) != figures[-1], "the last one is the best: this shows nothing"
    got = result(finish(psworker("eval", "--local", "--data", tmp_path / "v.tsv", "--checkpoint", tmp_path / "saved", *model, "--json", "-"))[0])
    assert got[by] == best(figures)


def test_a_signal_stops_a_worker_after_its_step_and_the_others_go_on(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 3000)
    node = psds("--shards", 2)
    flags = ("--data", log, "--servers", node.address, "--workers", 2, "--mode", "bsp", *SMALL, "--json", "-", "--progress-every",
             "50ms")
    stopped = psworker("train", *flags, "--rank", 1, "--epochs", 10000)
    other = psworker("train", *flags, "--rank", 0, "--epochs", 40)
    assert stopped.stdout.readline()  # a progress line: it trains
    stopped.send_signal(signal.SIGTERM)
    out, err = finish(stopped)
    assert result(out)["stopped_early"] and "stopping after this step" in err
    r = result(finish(other, status=3)[0])  # the rows of the other one
    assert r["samples"] == 40 * 1500 or r["samples"] == 40 * 1528 or r["samples"] > 40 * 1400
    assert not any(w["state"] == "dead" for j in node.stats()["jobs"] for w in j["workers"])


def two_workers(node, log, *mode, epochs=10000, every="200ms"):
    flags = ("--data", log, "--servers", node.address, "--workers", 2, *mode, *SMALL, "--json", "-", "--progress-every", every)
    both = [psworker("train", *flags, "--rank", r, "--epochs", 10000 if r else epochs) for r in range(2)]
    for w in both:
        assert w.stdout.readline()  # it trains
    return both


@pytest.mark.parametrize("mode", [("--mode", "bsp"), ("--mode", "ssp", "--staleness", 2, "--ahead", 1),
                                  ("--mode", "ssp", "--staleness", 2, "--reuse-clocks", 2),
                                  ("--mode", "ssp", "--staleness", 2, "--reuse-clocks", 2, "--ahead", 1)], ids=lambda m: " ".join(map(str, m)))
def test_a_wait_for_a_worker_is_reported_with_its_reason_and_a_signal_ends_it(psds, tmp_path, mode):
    node = psds("--shards", 2, "--lease", "120s")
    waits, hangs = two_workers(node, synth(tmp_path / "log.tsv", 3000), *mode)
    hangs.send_signal(signal.SIGSTOP)
    reason = r", \d+\.\d s so far: min clock is \d+, needs \d+: worker 1 \(psworker \S+\) is at \d+"
    n_reported = 0
    for line in waits.stderr:
        n_reported += bool(re.search("waiting" + reason, line))
        if n_reported == 3:
            break
    waits.send_signal(signal.SIGTERM)
    out, err = finish(waits, timeout=100)  # the lease is longer
    assert result(out)["stopped_early"] and (mode[-2] == "--ahead" or re.search("the stop ends a wait" + reason, err))
    workers = lambda: {w["rank"]: w["state"] for j in node.stats()["jobs"] for w in j["workers"]}
    assert wait_for("the goodbye", lambda: workers()[0] == "left") and workers()[1] == "live"
    hangs.kill()
    hangs.communicate()


def test_a_worker_that_is_gone_is_named_by_those_who_waited_for_it(psds, tmp_path):
    node = psds("--shards", 2, "--lease", "2s")
    stays, dies = two_workers(node, synth(tmp_path / "log.tsv", 3000))
    dies.kill()
    dies.communicate()
    reported = lambda what: next(line for line in stays.stderr if re.search(what, line))
    assert reported("waiting, ") and reported("worker 1 is gone: .*declared dead; the others go on without it")
    node.proc.send_signal(signal.SIGSTOP)  # one more wait: it is said once
    assert reported("waiting, .*no server says for what")
    node.proc.send_signal(signal.SIGCONT)
    before = node.stats()["jobs"][0]["workers"][0]["clock"]
    assert any(json.loads(line)["step"] > before + 1000 for line in stays.stdout)  # many more steps
    stays.send_signal(signal.SIGTERM)
    out, err = finish(stays)
    assert result(out)["stopped_early"] and "is gone" not in err


@pytest.mark.parametrize("cache", ["256M", "0"])
def test_a_wait_for_a_server_is_reported_with_and_without_the_row_cache(psds, tmp_path, cache):
    """With it a job's only worker asks for nothing in the end, and waits where it pushes."""
    node = psds("--shards", 2, "--lease", "120s")
    worker = psworker("train", "--data", synth(tmp_path / "log.tsv", 3000), "--servers", node.address, *SMALL, "--epochs", 10000, "--json", "-",
                      "--progress-every", "200ms", "--row-cache", cache, "--window", "64K")
    while json.loads(worker.stdout.readline())["samples"] < 6000:  # all rows have come
        pass
    node.proc.send_signal(signal.SIGSTOP)
    assert any(re.search("waiting, .*no server says for what", line) for line in worker.stderr)
    node.proc.send_signal(signal.SIGCONT)
    worker.send_signal(signal.SIGTERM)
    assert result(finish(worker)[0])["stopped_early"]


def test_workers_wait_for_servers_that_start_late_and_say_so(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 500)
    port, = free_ports(1)
    w = psworker("train", "--data", log, "--servers", f"127.0.0.1:{port}", *SMALL)
    for line in w.stderr:
        if "waiting for psd at" in line:
            break
    psds("--shards", 1, listen=f"127.0.0.1:{port}")
    finish(w)


def test_a_job_survives_the_restart_of_its_server(psds, tmp_path):
    """SIGTERM writes everything; the worker reconnects, and every sample counts once: as an undisturbed run, bit for bit."""
    log = synth(tmp_path / "log.tsv", 6000)
    calm = psds("--shards", 2)
    flags = ("--data", log, *SMALL, "--epochs", 6)
    train(*flags, "--servers", calm.address)
    calm.stop()
    r, data = in_time(lambda n: restarted(psds, tmp_path / f"restarted{n}", *flags))
    assert r["samples"] == 36000
    assert read_tables([data]) == read_tables([calm.data])


def test_checkpoints_are_written_on_a_timer_and_on_request(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 500)
    node = psds("--shards", 2, "--checkpoint-every", "300ms", "--checkpoint-deltas", 0, "--keep", "2")
    train("--data", log, "--servers", node.address, *SMALL)
    wait_for("the fourth checkpoint", lambda: node.stats()["checkpoints"]["done"] >= 4)
    p = subprocess.run([BIN / "psctl", "--server", node.address, "checkpoint"], capture_output=True, text=True, timeout=300)
    assert p.returncode == 0 and re.search(r"\d+", p.stdout)
    assert len(list((node.data / "checkpoints").iterdir())) <= 3
    node.kill()  # as a crash
    before = read_tables([node.data])  # not sooner: the timer goes on, and old ones go
    again = psds("--shards", 3, dir=node.dir)
    again.stop()
    assert read_tables([node.data]) == before

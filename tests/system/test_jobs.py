"""Jobs that start wrong, lose workers, rows or pushes, or read data that comes once: what they say, and their exit codes."""
import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from training import BIN, finish, free_ports, psds, psworker, result, synth, train, wait_for  # noqa: F401

SMALL = ("--format", "criteo", "--bottom", "16", "--top", "16", "--dim", "8", "--batch", "64")


# --- data that can be read once ---

def predicted(tmp_path, name, data, *flags, **kw):
    """Trains by itself; what the model says of the log afterwards, as text, and the result line."""
    out, _ = finish(psworker("train", *SMALL, *flags, "--local", "--save", tmp_path / name, "--json", "-", "--data", data, **kw))
    said, _ = finish(psworker("predict", *SMALL, "--labelled", "--checkpoint", tmp_path / name, "--data", tmp_path / "log.tsv"))
    return said, result(out)


@pytest.mark.parametrize("how", ["-", "/dev/stdin", "zstd", "file as stdin", "fifo"])
def test_a_pipe_trains_on_every_row_to_the_same_bits_as_the_file(tmp_path, how):
    log = synth(tmp_path / "log.tsv", 3000)
    expected, whole = predicted(tmp_path, "file", log)
    assert whole["samples"] == 3000
    path = how if how in ("-", "/dev/stdin") else "-"
    if how == "fifo":
        os.mkfifo(tmp_path / "fifo")
        source, path = subprocess.Popen(["sh", "-c", f"cat '{log}' > '{tmp_path}/fifo'"]), tmp_path / "fifo"
        stdin = subprocess.DEVNULL
    elif how == "file as stdin":
        source, stdin = None, open(log)
    else:
        source = subprocess.Popen(["zstd", "-qc", log] if how == "zstd" else ["cat", log], stdout=subprocess.PIPE)
        stdin = source.stdout
    got, said = predicted(tmp_path, "pipe", path, stdin=stdin)
    assert said["samples"] == 3000 and said["loss"] == whole["loss"] > 0
    assert got == expected
    if source:
        assert source.wait() == 0


def test_a_pipe_with_a_header_and_standardised_columns_is_checked_and_then_read_whole(tmp_path):
    rows = [f"{i % 2},{i % 7}.5,t{i % 5}" for i in range(3000)]
    log = tmp_path / "log.csv"
    log.write_text("y,a,b\n" + "\n".join(rows) + "\n")
    flags = ("--delimiter", ",", "--header", "--label", "y", "--numeric", "a", "--categorical", "b", "--numeric-as", "standardise", "--batch", 64,
             "--dim", 4, "--bottom", 4, "--top", 4)
    train = ("train", *flags, "--shuffle", 500, "--local", "--json", "-")
    file, _ = finish(psworker(*train, "--save", tmp_path / "file", "--data", log))
    source = subprocess.Popen(["cat", log], stdout=subprocess.PIPE)
    pipe, _ = finish(psworker(*train, "--save", tmp_path / "pipe", "--data", "-", stdin=source.stdout))
    file_says, pipe_says = [finish(psworker("predict", *flags, "--labelled", "--checkpoint", tmp_path / name, "--data", log))[0]
                            for name in ("file", "pipe")]
    assert result(pipe)["samples"] == 3000 and result(pipe)["loss"] == result(file)["loss"] and pipe_says == file_says and len(file_says.splitlines()) == 3000


@pytest.mark.parametrize("flags,sentence", [
    (("--epochs", 2), "--epochs 2: standard input can be read only once"),
    (("--valid-fraction", "0.1"), "--valid-fraction: standard input can be read only once"),
    (("--train-rows", "100"), "--train-rows: standard input can be read only once"),
    (("--valid", "-"), "standard input is named twice"),
    (("--data", "/dev/stdin"), "/dev/stdin is named twice"),
])
def test_a_second_pass_over_a_pipe_is_refused_before_the_first(tmp_path, flags, sentence):
    _, err = finish(psworker("train", *SMALL, "--local", "--data", "-", *flags, stdin=subprocess.PIPE), status=2)
    assert sentence in err


def test_a_stop_ends_a_wait_for_a_silent_pipe(tmp_path):
    log = synth(tmp_path / "log.tsv", 3000)
    w = psworker("train", *SMALL, "--local", "--json", "-", "--progress-every", "10ms", "--data", "-", stdin=subprocess.PIPE)
    w.stdin.write(log.read_text())
    w.stdin.flush()
    for line in w.stdout:
        if json.loads(line)["samples"] > 1000:
            break
    w.send_signal(signal.SIGTERM)
    out = w.stdout.read()
    assert w.wait(30) == 0 and result(out)["stopped_early"]


@pytest.mark.parametrize("packed", [False, True], ids=["in mid-line", "in mid-frame"])
def test_a_stop_of_a_pipe_that_has_stopped_halfway_is_no_error_in_its_data(tmp_path, packed):
    log = synth(tmp_path / "log.tsv", 20000)
    data = log.read_bytes()
    if packed:
        data = subprocess.run(["zstd", "-qc", log], stdout=subprocess.PIPE, check=True).stdout
        data = data[:len(data) * 3 // 4]
    else:
        data = data[:data.index(b"\n", len(data) // 2) + 30]
    w = subprocess.Popen([BIN / "psworker", "train", *SMALL, "--local", "--json", "-", "--progress-every", "10ms", "--bad-rows-max", "0", "--data", "-"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    w.stdin.write(data)
    w.stdin.flush()
    for line in w.stdout:
        if json.loads(line)["samples"] > 1000:
            break
    time.sleep(0.5)  # it waits for more
    w.send_signal(signal.SIGTERM)
    out, err = w.stdout.read().decode(), w.stderr.read().decode()
    assert w.wait(30) == 0, err
    assert result(out)["stopped_early"] and result(out)["bad_rows"] == 0 and result(out)["samples"] % 64 == 0


def test_a_start_that_is_stopped_while_columns_are_measured_leaves_the_job(psds, tmp_path):
    node = psds("--shards", 1, "--lease", "300s")
    rows = "".join(f"{i % 2},{i % 7}.5,t{i % 5}\n" for i in range(3000))
    w = psworker("train", "--servers", node.address, "--delimiter", ",", "--header", "--label", "y", "--numeric", "a", "--categorical", "b",
                 "--numeric-as", "standardise", "--batch", 64, "--dim", 4, "--bottom", 4, "--top", 4, "--data", "-", stdin=subprocess.PIPE)
    w.stdin.write("y,a,b\n" + rows + "0,1")
    w.stdin.flush()
    states = lambda: [worker["state"] for job in node.stats()["jobs"] for worker in job["workers"]]
    wait_for("the join", lambda: states() == ["live"])
    time.sleep(0.5)
    w.send_signal(signal.SIGTERM)
    assert w.wait(10) == 143
    wait_for("the farewell", lambda: states() == ["left"])
    w.stdin.close()


def test_a_restart_says_which_rows_of_a_pipe_it_passes_over(psds, tmp_path):
    node = psds("--shards", 1, "--lease", "60s")
    log = synth(tmp_path / "log.tsv", 6400)
    rows = log.read_text()
    start = lambda: psworker("train", *SMALL, "--servers", node.address, "--data", "-", "--json", "-", "--state-dir", tmp_path / "state",
                             "--progress-every", "10ms", stdin=subprocess.PIPE)
    killed = start()

    def feed():
        with contextlib.suppress(BrokenPipeError):
            killed.stdin.write(rows[:len(rows) // 2])
            killed.stdin.flush()

    threading.Thread(target=feed, daemon=True).start()
    for line in killed.stdout:
        if json.loads(line)["step"] > 20:
            break
    killed.kill()
    killed.wait()
    again = start()
    out, err = again.communicate(rows)
    n_done = int(re.search(r"standard input can be read only once, and the first (\d+) batches of this worker in it are passed over", err)[1])
    assert again.returncode == 0 and n_done > 20 and result(out)["samples"] + n_done * 64 == 6400


# --- workers and rows that are lost ---

def job(node, log, rank, *flags, workers=2):
    return psworker("train", *SMALL, "--servers", node.address, "--workers", workers, "--rank", rank, "--data", log, "--json", "-", *flags)


@pytest.mark.parametrize("allow", [False, True])
def test_a_worker_that_never_comes_is_a_loss_with_its_rows(psds, tmp_path, allow):
    node = psds("--shards", 2, "--join-timeout", "1s")
    log = synth(tmp_path / "log.tsv", 3000)
    w = job(node, log, 0, "--train-rows", 2900, *(["--allow-lost-workers"] if allow else []))
    out, err = finish(w, status=0 if allow else 3)
    said = result(out)
    assert said["workers_lost"] == 1
    assert said["samples"] + said["rows_untrained"] == 2900
    assert allow or "lost 1 of its 2 workers: about 1428 rows stay untrained, as nobody takes over another rank's rows" in err


def test_a_worker_that_is_killed_is_a_loss_and_one_that_comes_back_in_time_is_none(psds, tmp_path):
    node = psds("--shards", 2, "--lease", "3s")
    log = synth(tmp_path / "log.tsv", 30000)
    stays, dies = job(node, log, 0), job(node, log, 1, "--progress-every", "10ms")
    for line in dies.stdout:
        if json.loads(line)["step"] > 20:
            break
    dies.kill()
    dies.communicate()
    out, err = finish(stays, status=3)
    said = result(out)
    assert said["workers_lost"] == 1 and 0 < said["rows_untrained"] < 15000
    assert "job \"job\" lost 1 of its 2 workers" in err

    both = [job(node, log, rank, "--job", "whole") for rank in range(2)]
    for w in both:
        out, _ = finish(w)
        assert result(out)["workers_lost"] == 0 and result(out)["rows_untrained"] == 0 and result(out)["pushes_lost"] == 0


def test_rows_that_a_worker_was_away_for_are_a_loss_to_every_rank(psds, tmp_path):
    """Rank 0 reads from a pipe, so that the job stands still until rank 1 is back."""
    node = psds("--shards", 1, "--lease", "3s")
    log = synth(tmp_path / "log.tsv", 20000)
    rows = log.read_text().splitlines(keepends=True)
    stays = psworker("train", *SMALL, "--servers", node.address, "--workers", 2, "--data", "-", "--json", "-", stdin=subprocess.PIPE)
    dies = job(node, log, 1, "--progress-every", "10ms")
    threading.Thread(target=lambda: (stays.stdin.write("".join(rows[:12800])), stays.stdin.flush()), daemon=True).start()
    for line in dies.stdout:
        if json.loads(line)["step"] > 20:
            break
    dies.kill()
    dies.communicate()
    workers = lambda: [(w["state"], w["clock"]) for j in node.stats()["jobs"] for w in j["workers"]]
    wait_for("the death", lambda: len(now := workers()) == 2 and now[1][0] == "dead" and now[0][1] > now[1][1] + 5)
    back = job(node, log, 1)
    wait_for("the return", lambda: workers()[1][0] == "live")
    out, _ = stays.communicate("".join(rows[12800:]))
    said = result(out)
    assert stays.returncode == 3 and said["workers_lost"] == 0
    out, err = finish(back, status=3)
    assert result(out)["rows_untrained"] >= 5 * 64 and "while this worker was away" in err
    assert said["rows_untrained"] == result(out)["rows_untrained"]


def test_a_worker_that_was_frozen_trains_all_its_rows_and_nobody_reports_a_loss(psds, tmp_path):
    node = psds("--shards", 2, "--lease", "1s")
    log = synth(tmp_path / "log.tsv", 20000)
    rows = log.read_text().splitlines(keepends=True)
    stays = psworker("train", *SMALL, "--servers", node.address, "--workers", 2, "--data", "-", "--json", "-", stdin=subprocess.PIPE)
    frozen = job(node, log, 1, "--progress-every", "10ms")
    threading.Thread(target=lambda: (stays.stdin.write("".join(rows[:12800])), stays.stdin.flush()), daemon=True).start()
    for line in frozen.stdout:
        if json.loads(line)["step"] > 20:
            break
    frozen.send_signal(signal.SIGSTOP)
    workers = lambda: [(w["state"], w["clock"]) for j in node.stats()["jobs"] for w in j["workers"]]
    wait_for("the death", lambda: len(now := workers()) == 2 and now[1][0] == "dead" and now[0][1] > now[1][1] + 5)
    frozen.send_signal(signal.SIGCONT)
    wait_for("the return", lambda: workers()[1][0] == "live")
    with ThreadPoolExecutor(1) as reader:  # of both at once: one whose pipe is full keeps the other waiting
        end = reader.submit(finish, frozen)
        out, err = stays.communicate("".join(rows[12800:]))
        assert stays.returncode == 0 and result(out)["rows_untrained"] == 0, err
        out, _ = end.result()
    assert result(out)["rejoins"] and result(out)["rows_untrained"] == 0


def test_a_stop_behind_the_last_step_hides_no_loss_that_is_known(psds, tmp_path):
    node = psds("--shards", 1, "--lease", "2s")
    log = synth(tmp_path / "log.tsv", 20000)
    ends, dies = (job(node, log, rank, "--mode", "async", "--progress-every", "10ms", workers=3) for rank in (0, 1))
    slow = psworker("train", *SMALL, "--servers", node.address, "--workers", 3, "--rank", 2, "--mode", "async", "--data", "-", stdin=subprocess.PIPE)
    slow.stdin.write("".join(log.read_text().splitlines(keepends=True)[:6400]))
    slow.stdin.flush()
    for line in dies.stdout:
        if json.loads(line)["step"] > 5:
            break
    dies.kill()
    dies.communicate()
    wait_for("the death", lambda: [w["state"] for j in node.stats()["jobs"] for w in j["workers"]][1:] == ["dead", "live"])
    for line in ends.stderr:
        if "waiting for the job's other workers: rank 2 (" in line:
            break
    ends.send_signal(signal.SIGTERM)
    out, err = finish(ends, timeout=20, status=3)
    assert result(out)["workers_lost"] == 1 and "lost 1 of its 3 workers" in err
    slow.kill()
    slow.communicate()


def one_goes_ahead(node, log, *flags):
    """Rank 0, and rank 1 as it has made more than 20 steps and is stopped."""
    ahead, stopped = job(node, log, 0, *flags), job(node, log, 1, *flags, "--progress-every", "10ms")
    for line in stopped.stdout:
        if json.loads(line)["step"] > 20:
            break
    stopped.send_signal(signal.SIGSTOP)
    return ahead, stopped


def wait_at_the_end(worker):
    said = ""
    for line in worker.stderr:
        said += line
        if "waiting for the job's other workers: rank 1 (" in line:
            return
    raise AssertionError(said)


@pytest.mark.parametrize("mode", [("--mode", "async"), ("--mode", "ssp", "--staleness", 100000)], ids=["async", "ssp"])
def test_a_worker_that_is_killed_while_the_others_end_is_a_loss_in_every_mode(psds, tmp_path, mode):
    node = psds("--shards", 2)
    log = synth(tmp_path / "log.tsv", 60000)
    ends, dies = one_goes_ahead(node, log, *mode)
    dies.kill()
    dies.communicate()
    out, err = finish(ends, status=3)
    assert result(out)["workers_lost"] == 1 and 0 < result(out)["rows_untrained"] < 30000
    assert "lost 1 of its 2 workers" in err and "waiting for the job's other workers: rank 1 (" in err


@pytest.mark.parametrize("mode", ["async", "bsp"])
@pytest.mark.parametrize("allow", [False, True])
def test_a_worker_that_leaves_before_its_last_step_leaves_rows_untrained(psds, tmp_path, mode, allow):
    node = psds("--shards", 2)
    log = synth(tmp_path / "log.tsv", 60000)
    stays, leaves = one_goes_ahead(node, log, "--mode", mode, *(["--allow-lost-workers"] if allow else []))
    leaves.send_signal(signal.SIGTERM)
    leaves.send_signal(signal.SIGCONT)
    out, _ = finish(leaves)
    done = [json.loads(line)["samples"] for line in out.splitlines() if '"result"' in line][0]
    out, err = finish(stays, status=0 if allow else 3)
    if mode == "async" and allow:
        return  # it may have ended before the other one left
    said = result(out)
    assert said["workers_lost"] == 0 and said["samples"] + said["rows_untrained"] + done == 60000
    assert allow or "1 of its 2 workers, rank 1 first, left before their last step: about" in err


def test_a_malformed_row_that_was_a_batch_is_no_step_left_out(psds, tmp_path):
    node = psds("--shards", 2)
    log = synth(tmp_path / "log.tsv", 3 * 64 + 1)  # rank 1 has the second batch, and the last row
    log.write_text(log.read_text()[:-1] + "\tmore\n")
    both = [job(node, log, rank, "--mode", "async") for rank in range(2)]
    said = [result(finish(w)[0]) for w in both]
    assert [r["step"] for r in said] == [2, 1] and [r["rows_untrained"] for r in said] == [0, 0] and said[1]["bad_rows"] == 1


def test_an_end_that_no_node_reports_is_not_known(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 20000)
    for is_killed in (True, False):
        node = psds("--shards", 1, "--lease", "300s")
        ends, hangs = one_goes_ahead(node, log, "--mode", "async", "--give-up", "2s", "--finish-timeout", "600s" if is_killed else "7s")
        wait_at_the_end(ends)
        if is_killed:
            node.kill()
        out, err = finish(ends, status=3)
        assert result(out)["rows_untrained"] is None and result(out)["workers_lost"] == 0
        assert "how many rows stay untrained is not known: " + ("psd at" if is_killed else "rank 1 (psworker") in err
        hangs.kill()
        hangs.communicate()


def test_a_signal_ends_the_wait_for_the_others(psds, tmp_path):
    node = psds("--shards", 1, "--lease", "300s")
    ends, hangs = one_goes_ahead(node, synth(tmp_path / "log.tsv", 20000), "--mode", "async")
    wait_at_the_end(ends)
    ends.send_signal(signal.SIGTERM)
    out, _ = finish(ends, timeout=100)  # it would wait for --finish-timeout, 10 minutes
    assert result(out)["rows_untrained"] is None
    hangs.kill()
    hangs.communicate()


def test_a_worker_that_is_killed_at_its_end_has_nothing_to_train_again(psds, tmp_path):
    node = psds("--shards", 2, "--lease", "300s")
    log = synth(tmp_path / "log.tsv", 20000)
    flags = "--mode", "async", "--state-dir", tmp_path / "state"
    first, other = one_goes_ahead(node, log, *flags)
    wait_at_the_end(first)
    first.kill()
    first.communicate()
    again = job(node, log, 0, *flags)
    wait_at_the_end(again)
    other.send_signal(signal.SIGCONT)
    with ThreadPoolExecutor(1) as reader:  # of both at once, as above
        end = reader.submit(finish, other)
        out, _ = finish(again)
        assert result(out)["samples"] == 0 and result(out)["rows_untrained"] == 0
        end.result()
    assert not list((tmp_path / "state").glob("*.pushes"))


# --- pushes that a crash of psd has lost ---

def test_a_crash_that_loses_acknowledged_pushes_is_in_the_result(psds, tmp_path):
    """The data directory is put back to an older state while psd is down: so much was acknowledged, and is gone."""
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    node = psds("--shards", 2, "--no-restore", listen=listen, dir=tmp_path / "node")
    log = synth(tmp_path / "log.tsv", 200000)
    w = psworker("train", *SMALL, "--servers", node.address, "--data", log, "--json", "-", "--row-cache", "0", "--progress-every", "20ms")
    for line in w.stdout:
        if json.loads(line)["step"] > 50:
            break
    node.kill()
    subprocess.run(["rm", "-rf", node.data], check=True)
    psds("--shards", 2, listen=listen, dir=tmp_path / "node")
    out, err = finish(w)
    said = result(out)
    assert said["reconnects"] and said["pushes_lost"] > 50
    assert "acknowledged pushes of this worker in a crash" in err and "servers that crashed have lost" in err and "warn" in err


# --- wrong from the start ---

def check(*flags, status):
    return finish(psworker("train", *SMALL, "--check", *flags), status=status)[1]


def test_check_reads_the_files(tmp_path):
    log = synth(tmp_path / "log.tsv", 300)
    assert check("--data", log, status=0) == ""
    assert "nowhere.tsv" in check("--data", tmp_path / "nowhere.tsv", status=1)
    assert "nowhere.tsv" in check("--data", log, "--valid", tmp_path / "nowhere.tsv", status=1)
    (tmp_path / "wrong.csv").write_text("1,2,3\n" * 2000)
    assert "wrong.csv:" in check("--data", tmp_path / "wrong.csv", status=1)
    assert "token-file" in check("--data", log, "--token-file", tmp_path / "none", status=1)
    assert "--state-dir" in check("--data", log, "--state-dir", log, status=1)
    assert "--data-cache" in check("--data", log, "--data-cache", log, status=1)
    assert "label" in check("--data", log, "--format", "", "--label", "a", "--numeric", "1", status=2)
    assert not list(tmp_path.glob("*.lock"))
    _, err = finish(psworker("eval", *SMALL, "--check", "--data", log, "--checkpoint", tmp_path / "none"), status=1)
    assert "--checkpoint" in err
    assert check("--data", "-", status=0) == ""


def test_servers_without_a_port_are_misuse(tmp_path):
    log = synth(tmp_path / "log.tsv", 300)
    for flags in ([], ["--check"]):
        _, err = finish(psworker("train", *SMALL, "--data", log, "--servers", "127.0.0.1", *flags), status=2)
        assert "--servers: \"127.0.0.1\" is no server address" in err


@pytest.mark.parametrize("flags", [("--workers", 3), ("--mode", "async")])
def test_settings_that_the_jobs_other_workers_do_not_have_are_misuse(psds, tmp_path, flags):
    node = psds("--shards", 1)
    log = synth(tmp_path / "log.tsv", 3000)
    waits = job(node, log, 0)
    wait_for("a worker", lambda: any(w["state"] == "live" for j in node.stats()["jobs"] for w in j["workers"]))
    _, err = finish(job(node, log, 1, *flags), status=2)
    assert "runs with 2 workers" in err or "runs in mode bsp" in err
    waits.kill()
    waits.communicate()


def test_a_start_that_fails_leaves_the_job_to_the_next_one(psds, tmp_path):
    """Node 1 is not there: the first start joins node 0 alone, with a wrong number of workers."""
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    cluster = ("--cluster", f"{first},{second}", "--shards", 1)
    node = psds(*cluster, "--node", 0, listen=first)
    log = synth(tmp_path / "log.tsv", 3000)
    for workers in (1, 3):
        _, err = finish(job(node, log, 0, "--connect-timeout", "1s", workers=workers), status=1)
        assert f"at {second} has been away" in err
    right = job(node, log, 0), job(node, log, 1)
    psds(*cluster, "--node", 1, listen=second)
    for w in right:
        out, err = finish(w)
        assert result(out)["samples"] in (1472, 1528) and "runs with" not in err


def test_a_start_that_a_signal_ends_leaves_nothing_behind(psds, tmp_path):
    """A worker joins all shards or none, so none while a node is not there."""
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    node = psds("--cluster", f"{first},{second}", "--shards", 1, "--node", 0, listen=first)
    log = synth(tmp_path / "log.tsv", 3000)
    for number in (signal.SIGINT, signal.SIGTERM):
        w = job(node, log, 0, workers=1)
        assert any(second in line for line in w.stderr), "it says for whom it waits"
        w.send_signal(number)
        assert w.wait(10) == 128 + number
        w.communicate()
        assert node.stats()["jobs"] == []


def psd_once(*flags):
    return subprocess.run([BIN / "psd", *map(str, flags)], capture_output=True, text=True, timeout=60)


def test_a_size_without_its_unit_is_refused(tmp_path):
    for size in ("48", "1000000", "1023K"):
        got = psd_once("--dev", "--memory-max", size, "--check")
        assert got.returncode == 2 and "memory-max: " in got.stderr and "1M or more" in got.stderr
        assert ("as in 64G" if size == "48" else "as in 64M") in got.stderr
    assert psd_once("--dev", "--memory-max", "1M", "--check").returncode == 0


def test_a_psd_that_keeps_nothing_says_so(tmp_path):
    for data in (False, True):
        psd = subprocess.Popen([BIN / "psd", "--listen", "127.0.0.1:0", "--http", "off", "--shards", "1", *(["--data-dir", tmp_path / "d"] if data else [])],
                               stderr=subprocess.PIPE, text=True)
        lines = []
        for line in psd.stderr:
            lines.append(line)
            if "psd ready" in line:
                break
        psd.terminate()
        rest = psd.communicate()[1]
        assert any("no data-dir" in line and "warn" in line for line in lines + [rest]) != data

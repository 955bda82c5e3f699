"""psworker tune: the same seed finds the same, the test file is never read, trials that fail are counted, jobs are dropped, also after a signal."""
import json
import os
import pathlib
import select
import signal
import subprocess
import xml.etree.ElementTree

from training import BIN, ROOT, finish, free_ports, psds, psworker, wait_for  # noqa: F401

ADULT = ("--config", ROOT / "deploy/adult.conf", "--data", ROOT / "tests/data/adult.data.zst", "--epochs", 1)


def lines(out):
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def tune(tmp_path, *flags, **kw):
    return psworker("tune", *ADULT, *flags, env={**os.environ, "TMPDIR": str(tmp_path), "NO_PROXY": "*"}, **kw)


def without_times(events):
    return sorted((json.dumps({k: v for k, v in e.items() if k != "seconds"}, sort_keys=True) for e in events))


def test_the_same_seed_finds_the_same_without_reading_the_test_file(tmp_path):
    found = []
    svg = tmp_path / "a.svg"
    for parallel in (1, 2):
        out, err = finish(tune(tmp_path, "--local", "--trials", 6, "--seed", 3, "--parallel", parallel, "--json", "-", "--valid", "/none", "--svg", svg))
        found.append(lines(out))
    assert without_times(found[0]) == without_times(found[1]) and "does not read --valid" in err
    best = found[0][-1]
    assert best["event"] == "tune" and best["trials"] == 6 and best["failed"] == 0 and set(best["mattered"]) == {"lr", "dense-lr", "dim", "dropout"}
    whole = [e for e in found[0] if e["event"] == "trial" and e["share"] == 1]
    assert len(whole) == 2 and best["auc"] == max(e["auc"] for e in whole) > 0.9
    assert "--valid /none" in best["command"] and "--trials" not in best["command"]
    assert [p.name for p in tmp_path.iterdir()] == ["a.svg"]
    picture = xml.etree.ElementTree.parse(svg).getroot()
    assert len(picture.findall(".//{http://www.w3.org/2000/svg}circle")) >= 4 * 5


def test_trials_that_diverge_or_are_refused_are_counted(tmp_path):
    out, err = finish(tune(tmp_path, "--local", "--trials", 8, "--halving", 1, "--seed", 2, "--search",
                           "optimizer=sgd|adagrad,lr=0.01|100000,beta1=0.9|3"))
    failed = [line for line in err.splitlines() if " failed: " in line]
    assert any("training has diverged" in line for line in failed) and any("--beta1" in line for line in failed)
    assert f"8 trials, {len(failed)} failed" in out and "The best is trial" in out


def test_a_search_that_makes_no_sense_is_misuse(tmp_path):
    for flags, why in ((("--search", "job=a|b"), "none of the settings"), (("--workers", 2), "--parallel runs several"),
                       (("--keep-negatives", 0.5), "--halving 1 trains each trial on all"), (("--svg", "-"), "stdout has the table"),
                       (("--search", "keep-negatives=0.5|1"), "--halving 1 trains each trial on all")):
        for check in ((), ("--check",)):
            _, err = finish(tune(tmp_path, "--local", *flags, *check), status=2)
            assert why in err.splitlines()[-1]
    for flags, why in ((("--data", "/none"), "/none"), (("--svg", tmp_path / "none/a.svg"), "cannot be written: No such file")):
        _, err = finish(tune(tmp_path, "--local", *flags, "--check"), status=None)
        assert why in err.splitlines()[-1]
    finish(tune(tmp_path, "--local", "--check", "--svg", tmp_path / "a.svg"))
    assert not list(tmp_path.iterdir())


def children(pid):
    """Ended ones left out."""
    stats = [line for stat in pathlib.Path("/proc").glob("[0-9]*/stat") if (line := read(stat))]
    return [int(line.split()[0]) for line in stats if (rest := line.rpartition(")")[2].split())[1] == str(pid) and rest[0] != "Z"]


def read(path):
    try:
        return path.read_text()
    except OSError:
        return ""


def test_trials_end_with_a_search_that_is_killed(tmp_path):
    w = tune(tmp_path, "--local", "--halving", 1, "--epochs", 10000)
    trial = os.pidfd_open(wait_for("a trial", lambda: children(w.pid))[0])
    wait_for("its training", lambda: any("computing on" in read(path) for path in tmp_path.glob("psworker-tune-*/trial0.log")))
    w.kill()
    finish(w, status=-signal.SIGKILL)
    poll = select.poll()
    poll.register(trial, select.POLLIN)
    assert poll.poll(120000)
    os.close(trial)


def test_a_search_ends_when_nobody_reads_its_lines(tmp_path):
    w = tune(tmp_path, "--local", "--halving", 1, "--trials", 1000, "--json", "-")
    assert w.stdout.readline()
    w.stdout.close()
    err = w.stderr.read()
    assert w.wait(120) == 1 and "nobody reads stdout" in err and "psworker: --json: - cannot be written" in err
    assert not list(tmp_path.iterdir())


def test_a_search_that_may_not_drop_its_jobs_does_not_begin(tmp_path, psds):
    for name, text in (("roles", "admin root-secret\nworker worker-secret\n"), ("token", "worker-secret\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    node = psds("--shards", 1, "--token-file", tmp_path / "roles")
    folder = tmp_path / "tune"
    folder.mkdir()
    _, err = finish(tune(folder, "--servers", node.address, "--token-file", tmp_path / "token"), status=1)
    assert "takes the role admin" in err and "trial 1" not in err and not list(folder.iterdir())
    reads, writes = os.pipe()
    os.write(writes, b"worker-secret\n")
    os.close(writes)
    _, err = finish(tune(folder, "--servers", node.address, "--token-file", f"/dev/fd/{reads}", pass_fds=[reads]), status=2)
    assert "no plain file, and each trial reads it" in err
    os.close(reads)


def test_jobs_are_dropped_at_the_end_and_after_a_signal(tmp_path, psds):
    node = psds("--shards", 2)
    folder = tmp_path / "tune"
    folder.mkdir()
    flags = ("--servers", node.address, "--search", "dim=4|8", "--halving", 1, "--parallel", 2)
    out, err = finish(tune(folder, *flags, "--trials", 3))
    assert "3 trials, 0 failed" in out and "psctl drop" not in err
    assert not node.stats()["tables"]
    for number in [signal.SIGINT] + [signal.SIGHUP] * (signal.getsignal(signal.SIGHUP) != signal.SIG_IGN):
        w = tune(folder, *flags, "--trials", 1000)
        for line in w.stderr:
            if "trial 3:" in line:
                break
        w.send_signal(number)
        out, err = finish(w)
        assert "stopped by a signal" in out and "The best is trial" in out
        assert not node.stats()["tables"] and not list(folder.iterdir())


def test_jobs_are_dropped_by_the_standby_that_took_over(tmp_path, psds):
    primary = psds("--shards", 1)
    address, log = f"127.0.0.1:{free_ports(1)[0]}", tmp_path / "standby.log"
    with open(log, "w") as out:
        standby = subprocess.Popen([BIN / "psd", "--listen", address, "--http", "127.0.0.1:0", "--data-dir", tmp_path / "b", "--shards", "1",
                                    "--standby", primary.address], stdout=out, stderr=out)
    try:
        wait_for("a standby in sync", lambda: "in sync" in read(log))
        primary.kill()
        wait_for("a promotion", lambda: not subprocess.run([BIN / "psctl", "--server", address, "promote"], capture_output=True).returncode)
        _, err = finish(tune(tmp_path, "--servers", f"{primary.address},{address}", "--trials", 1))
        assert "psctl drop" not in err
        assert "no table yet" in subprocess.run([BIN / "psctl", "--server", address, "tables"], capture_output=True, text=True).stdout
    finally:
        standby.kill()
        standby.wait()

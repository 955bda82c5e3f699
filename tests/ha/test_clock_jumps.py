"""The time of day jumps by an hour, there and back, on the primary, its standby or all of them (tests/preload/wall_clock.c): nobody takes
over, no lease ends and nothing is lost."""

import contextlib
import re
import signal
import struct
import subprocess
import time

import pytest
from checkpoint import read_tables
from counting import ROOT
from training import BIN, ended_by_itself, finish, in_time, psworker, result, synth, train

HOUR = 3600
# Shorter than a jump, and longer than a busy machine keeps a process waiting.
PATIENT = ("--lease", "60s", "--standby-patience", "60s", "--failover-after", "60s")


@pytest.fixture(name="clocks")
def settable_clocks(tmp_path, monkeypatch):
    """clocks(seconds, *processes) sets those of processes that were started meanwhile."""
    if BIN.parent.name != "release":
        pytest.skip("a library for LD_PRELOAD would come before the sanitizer's")
    subprocess.run(["make", "-s", "--no-print-directory", f"BUILD={BIN.parents[1]}", "wall-clock"], cwd=ROOT, check=True, timeout=300)
    folder = tmp_path / "clocks"
    folder.mkdir()
    monkeypatch.setenv("LD_PRELOAD", str(BIN.parent / "tests/wall_clock.so"))
    monkeypatch.setenv("PS_CLOCKS", str(folder))

    def set_clocks(seconds, *processes):
        for process in processes:
            with open(folder / str(process.pid), "r+b") as clock:
                clock.write(struct.pack("<q", seconds))

    return set_clocks


def jumps(p, worker):
    """Who has which time, one after the other."""
    return [{p.primary.proc: HOUR}, {p.standby.proc: HOUR, worker: HOUR}, {p.primary.proc: -HOUR}, {p.standby.proc: -HOUR, worker: -HOUR},
            {p.primary.proc: HOUR, p.standby.proc: 0, worker: 0}, {p.primary.proc: 0}]


def ahead_s(member):
    """Of its clock, as its status shows it."""
    return member.status()["now_unix_ms"] / 1000 - time.time()


@contextlib.contextmanager
def stopped(*processes):
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    yield
    for process in processes:
        process.send_signal(signal.SIGCONT)


def test_nobody_takes_over_and_no_lease_ends(start, etcd, clocks):
    p, counter = start(etcd, "--durability", "fsync", *PATIENT)
    term = p.primary.replication()["term"]
    for jump in jumps(p, counter.process):
        for process, seconds in jump.items():
            # Nothing is heard between the jump and the next look at the clock: who took that for an hour of silence would act.
            with stopped(*{p.primary.proc, p.standby.proc, counter.process} - {process}):
                clocks(seconds, process)
                time.sleep(0.3)  # the length of the disturbance, not a wait for an event
        counter.push_on()
        for member in (p.primary, p.standby):
            want = jump.get(member.proc)
            assert want is None or abs(ahead_s(member) - want) < HOUR / 2, "its clock was not set"
        said = p.primary.replication()
        assert said["role"] == "primary" and said["in_sync"] and said["term"] == term, said
        assert p.standby.replication()["role"] == "standby"
    for member in (p.primary, p.standby):
        said = member.log.read_text()
        assert not re.search(r" (takes over|is out of sync|is silent|is declared dead|is suspected)", said), said
    counter.check()


def test_a_job_in_lock_step_keeps_its_bits(pair, clocks, tmp_path):
    log = synth(tmp_path / "log.tsv", 4000)
    model = ("--bottom", "32", "--top", "32", "--dim", "8", "--batch", "64", "--seed", "7", "--format", "criteo", "--epochs", "6",
             "--job", "j")
    train("--data", log, "--local", "--save", tmp_path / "local", *model)
    want = read_tables([tmp_path / "local"])

    def attempt(_):
        p = pair(*PATIENT)
        worker = psworker("train", "--data", log, "--servers", p.servers, "--mode", "bsp", "--json", "-",
                          "--progress-every", "20ms", *model)
        for jump in jumps(p, worker):
            assert worker.stdout.readline()
            for process, seconds in jump.items():
                clocks(seconds, process)
        out, err = finish(worker)
        if ended_by_itself(out):
            return None
        assert not result(out)["reconnects"] and "primary moved" not in err, err
        p.primary.proc.terminate()
        assert p.primary.proc.wait(120) == 0, p.primary.log.read_text()
        return read_tables([p.primary.data])

    assert in_time(attempt) == want

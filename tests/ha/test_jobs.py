"""A job does not end when its primary does: the standby has the same bits, and the workers go there."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from checkpoint import read_tables
from training import ended_by_itself, finish, in_time, psds, psworker, result, synth, train  # noqa: F401 (psds: a fixture)

MODEL = ("--bottom", "32", "--top", "32", "--dim", "8", "--batch", "64", "--seed", "7", "--format", "criteo",
         "--epochs", "6")


@pytest.fixture(name="log")
def click_log(tmp_path):
    return synth(tmp_path / "log.tsv", 4000)


def run_job(pair, log, servers, *flags, disturb, n_workers=1):
    """Disturbed in the midst of it: last lines and notices of its workers. None: it was over too soon."""
    workers = [psworker("train", "--data", log, "--servers", servers, *MODEL, "--workers", n_workers, "--rank", rank,
                        "--json", "-", "--progress-every", "20ms", *flags) for rank in range(n_workers)]
    for _ in range(3):
        assert workers[0].stdout.readline()
    disturb(pair)
    with ThreadPoolExecutor(n_workers) as readers:  # of all at once: one whose pipe is full keeps the others waiting
        ends = list(readers.map(finish, workers))
    if ended_by_itself(ends[0][0]):
        return None
    return [result(out) for out, _ in ends], [err for _, err in ends]


def digest(member):
    member.proc.send_signal(signal.SIGTERM)
    assert member.proc.wait(120) == 0, member.log.read_text()
    return read_tables([member.data])


def fail_over(pair):
    pair.fail_over()


def undisturbed(log, folder, psds, n_workers):
    """The tables that the job ends with: of one worker in its own process, else on servers that stay."""
    if n_workers == 1:
        train("--data", log, "--local", "--save", folder / "local", *MODEL, "--job", "j")
        return read_tables([folder / "local"])
    node = psds()
    workers = [psworker("train", "--data", log, "--servers", node.address, *MODEL, "--workers", n_workers, "--rank", rank,
                        "--mode", "bsp", "--job", "j") for rank in range(n_workers)]
    for worker in workers:
        finish(worker)
    node.stop()
    return read_tables([node.data])


@pytest.mark.parametrize("n_workers, durability", [(1, "fsync"), (2, "fsync"), (2, "async")])
def test_lock_step_keeps_its_bits_through_kill_9_of_the_primary(pair, psds, log, tmp_path, n_workers, durability):
    want = undisturbed(log, tmp_path, psds, n_workers)

    def attempt(_):
        p = pair("--durability", durability)
        ran = run_job(p, log, p.servers, "--mode", "bsp", "--job", "j", disturb=fail_over, n_workers=n_workers)
        if not ran:
            return None
        assert all("primary moved from" in err for err in ran[1]), ran[1]
        return digest(p.primary)

    got = in_time(attempt)
    assert got.keys() == want.keys()
    for table, rows in want.items():
        assert rows.keys() == got[table].keys(), table
        differ = [key for key in rows if rows[key] != got[table][key]]
        assert not differ, f"{table}: {len(differ)} of {len(rows)} rows have other bits, as {differ[:5]}"


def test_a_job_moves_when_its_primary_stands_still(pair, log):
    """Its connections stay, and nothing says that it is gone but the standby."""
    def stand_still(p):
        p.primary.proc.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        said = p.standby.psctl("promote", "--the-other-is-dead")
        assert said.returncode == 0, said.stderr
        print(f"promoted after {time.monotonic() - began:.3f} s")
        p.primary, p.standby = p.standby, p.primary

    def attempt(_):
        p = pair()
        ran = run_job(p, log, p.servers, "--job", "j", disturb=stand_still)
        return ran and (ran, p)

    (_, errors), p = in_time(attempt)
    assert f"to {p.primary.address}" in errors[0]


def test_a_job_goes_there_and_back_again(pair, log):
    def there_and_back(p):
        p.fail_over()
        p.standby.start("--standby", p.primary.address)
        p.await_in_sync()
        p.fail_over()

    def attempt(_):
        p = pair()
        return run_job(p, log, p.servers, "--job", "j", "--epochs", "40", disturb=there_and_back)

    _, errors = in_time(attempt)
    assert errors[0].count("primary moved from") == 2, errors[0]

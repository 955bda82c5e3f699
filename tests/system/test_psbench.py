"""psbench as its users meet it: every load runs, the JSON says what was measured, wrong words are refused."""

import json
import signal
import subprocess

import pytest
from conftest import BIN, eventually
from training import in_time


SMALL = ["--rows", "20000", "--keys-per-request", "100", "--dim", "8", "--seconds", "0.3", "--warmup", "0.1"]
EVERYWHERE = {"event", "load", "local", "unix_ms", "cpu_model", "cores", "keys_per_request", "dim", "rows", "zipf",
              "pull_share", "connections", "depth", "rate", "arrivals", "codec", "optimizer", "storage", "compress"}
MEASURED = {"shards", "seconds", "requests", "rows_per_s", "requests_per_s", "gb_per_s", "bytes_in", "bytes_out",
            "p50_us", "p99_us", "p999_us", "max_us", "errors", "rows_refused", "unsent", "late_p99_us",
            "late_max_us", "server_cpu_s_per_million_rows", "client_busy", "client_spins"}


def psbench(*args):
    return subprocess.run([str(BIN / "psbench"), *args], capture_output=True, text=True, timeout=300)


@pytest.fixture
def measure(tmp_path):
    """Runs psbench; the JSON lines that it wrote."""
    def run(*args):
        out = tmp_path / "out.jsonl"
        got = psbench(*args, "--json", str(out))
        assert got.returncode == 0, got.stderr
        assert got.stderr == ""
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        out.unlink()
        return lines
    return run


def at(psd):
    return ["--server", f"127.0.0.1:{psd.port}"]


@pytest.mark.parametrize("load", ["pull", "push", "mix"])
def test_every_load_reports_what_it_measured(start_psd, measure, load):
    psd = start_psd("--shards", "2", data=False)
    (line,) = measure(load, *at(psd), *SMALL, "--codec", "int8", "--zipf", "0.9")
    assert set(line) == EVERYWHERE | MEASURED
    assert line["load"] == load and line["codec"] == "int8" and line["shards"] == 2 and line["errors"] == 0
    assert line["requests"] > 0 and 0 < line["p50_us"] <= line["p99_us"] <= line["p999_us"] <= line["max_us"]
    assert line["rows_per_s"] == pytest.approx(line["requests_per_s"] * 100, rel=1e-3)
    assert line["server_cpu_s_per_million_rows"] > 0  # it found the process by itself
    eventually(lambda: psd.admin()["totals"]["rows"] == 20000)
    eventually(lambda: (psd.admin()["totals"]["counters"]["pulls"] > 0) == (load != "push"))


def test_a_reader_pulls_beside_a_job_and_pauses(start_psd, measure):
    psd = start_psd("--shards", "1", data=False)
    measure("pull", *at(psd), *SMALL)
    (line,) = measure("pull", *at(psd), *SMALL, "--reader", "--connections", "2", "--depth", "1", "--pause-us", "2000")
    assert line["errors"] == 0 and 0 < line["requests"] <= 2 * 0.3 / 0.001 + 2
    refused = psbench("push", *at(psd), *SMALL, "--reader")
    assert refused.returncode == 2 and "reader: pulls" in refused.stderr
    refused = psbench("pull", *at(psd), *SMALL, "--spin", "--pause-us", "5")
    assert refused.returncode == 2 and "pause-us: is for the closed loop" in refused.stderr


def test_loads_codecs_and_keys_are_combined(start_psd, measure):
    psd = start_psd("--shards", "1", data=False)
    lines = measure("pull,push", *at(psd), *SMALL, "--codec", "fp32,onebit", "--keys-per-request", "50",
                    "--seconds", "0.1")
    assert [(line["load"], line["codec"], line["keys_per_request"]) for line in lines] == [
        (load, codec, keys) for load in ["pull", "push"] for codec in ["fp32", "onebit"] for keys in [100, 50]]


@pytest.mark.parametrize("arrivals", ["poisson", "fixed"])
def test_an_open_loop_sends_at_its_rate(start_psd, measure, arrivals):
    psd = start_psd("--shards", "1", data=False)
    (line,) = measure("pull", *at(psd), *SMALL, "--rate", "200", "--arrivals", arrivals, "--seconds", "1")
    assert line["arrivals"] == arrivals and line["rate"] == 200
    assert line["requests"] + line["unsent"] == pytest.approx(200 * line["seconds"], rel=0.4)  # a busy machine makes it last longer


def test_an_open_loop_counts_requests_that_could_not_be_sent(start_psd, measure):
    """More than any server answers: latency is that of the backlog, and not of the lucky ones."""
    psd = start_psd("--shards", "1", data=False)
    (line,) = measure("pull", *at(psd), *SMALL, "--rate", "3000000", "--seconds", "0.5", "--connections", "1",
                      "--depth", "1")
    assert line["unsent"] > line["requests"]
    assert line["p50_us"] > 100_000


def test_a_client_that_spins_does_not_sleep(start_psd, measure):
    """Small frames that are much work for the server: asleep it uses little of its core, spinning all it gets."""
    psd = start_psd("--shards", "1", data=False)
    slow = ["push", *at(psd), "--codec", "onebit", "--rows", "20000", "--keys-per-request", "10000", "--dim", "64",
            "--connections", "1", "--depth", "1", "--seconds", "0.5", "--warmup", "0.1"]

    def measured(_):
        (asleep,) = measure(*slow)
        (spinning,) = measure(*slow, "--spin")
        assert not asleep["client_spins"] and spinning["client_spins"]
        assert spinning["requests"] > 0 and spinning["errors"] == 0
        return True if spinning["client_busy"] > 1.5 * asleep["client_busy"] else None  # else others had the core

    in_time(measured)


def test_an_open_loop_spins_anyway(start_psd, measure):
    psd = start_psd("--shards", "1", data=False)
    (line,) = measure("pull", *at(psd), *SMALL, "--rate", "200")
    assert line["client_spins"]


@pytest.mark.parametrize("load", ["grow", "mix"])
def test_loads_end_while_the_client_spins(start_psd, measure, load):
    psd = start_psd("--shards", "1", data=False)
    (line,) = measure(load, *at(psd), *SMALL, "--spin")
    assert line["client_spins"] and line["errors"] == 0
    assert load == "mix" or line["requests"] == 200


def test_growth_is_kept_apart_from_the_rows_own_work(start_psd, measure):
    psd = start_psd("--shards", "1", data=False)
    (line,) = measure("grow", *at(psd), *SMALL, "--connections", "2")
    assert set(line) == EVERYWHERE | MEASURED | {"grow"}
    assert set(line["grow"]) == {"new", "again", "worst"}
    assert line["requests"] == 200
    slowest = [worst["us"] for worst in line["grow"]["worst"]]
    assert slowest == sorted(slowest, reverse=True) and slowest[0] == line["max_us"]
    eventually(lambda: psd.admin()["totals"]["counters"]["pushes"] == 400)  # and once more
    assert psd.admin()["totals"]["rows"] == 20000


def test_the_servers_work_is_seen_where_requests_go_one_at_a_time(start_psd, measure):
    psd = start_psd("--shards", "1", data=False)
    (line,) = measure("grow", *at(psd), *SMALL, "--connections", "1", "--depth", "1")
    assert set(line["grow"]) == {"new", "again", "server_cpu_new", "server_cpu_again", "worst"}
    assert 0 < line["grow"]["server_cpu_new"]["p50_us"] <= line["grow"]["server_cpu_new"]["max_us"]


def test_limits_stand_beside_the_actual_rate(start_psd, measure):
    psd = start_psd("--shards", "1", data=False)
    lines = measure("pull,push", *at(psd), *SMALL, "--limits", "--rounds", "1", "--optimizer", "rowwise_adagrad")
    for line in lines:
        assert set(line) == EVERYWHERE | MEASURED | {"limits"}
        actual, wire, table, serial, ratio = (line["limits"][name]["median"] for name in [
            "actual_rows_per_s", "wire_rows_per_s", "table_rows_per_s", "serial_rows_per_s", "ratio"])
        assert actual == pytest.approx(line["rows_per_s"], rel=1e-3)
        assert serial == pytest.approx(1 / (1 / wire + 1 / table), rel=1e-3)
        assert ratio == pytest.approx(actual / serial, abs=1e-3)


def test_limits_are_measured_with_the_better_way_to_wait(start_psd, measure):
    psd = start_psd("--shards", "1", data=False)
    (line,) = measure("pull", *at(psd), *SMALL, "--limits", "--rounds", "1")
    asleep, spinning = (line["limits"][name] for name in ["try_sleeps_rows_per_s", "try_spins_rows_per_s"])
    assert asleep > 0 and spinning > 0
    assert line["client_spins"] == (spinning > asleep)


def test_limits_with_spin_are_measured_so(start_psd, measure):
    psd = start_psd("--shards", "1", data=False)
    (line,) = measure("pull", *at(psd), *SMALL, "--limits", "--rounds", "1", "--spin")
    assert line["client_spins"]
    assert line["limits"]["try_sleeps_rows_per_s"] == line["limits"]["try_spins_rows_per_s"] == 0


def test_limits_are_those_of_one_shard(start_psd):
    psd = start_psd("--shards", "2", data=False)
    got = psbench("pull", *at(psd), *SMALL, "--limits")
    assert got.returncode == 1
    assert got.stderr == "psbench: limits: are those of one core, but the server has 2 shards\n"


@pytest.mark.parametrize("tls", [False, True])
def test_connections_alone_are_counted(start_psd, measure, tmp_path, tls):
    flags = []
    if tls:
        assert subprocess.run([str(BIN / "psctl"), "cert", str(tmp_path / "tls")], capture_output=True, timeout=60).returncode == 0
        node, worker = ([f"--tls-ca={tmp_path}/tls/ca.pem", f"--tls-cert={tmp_path}/tls/{role}.pem",
                         f"--tls-key={tmp_path}/tls/{role}.key"] for role in ["node", "worker"])
        flags = worker
    psd = start_psd("--shards", "2", *(["--tls", "on", *node] if tls else []), data=False)
    (line,) = measure("connect", *at(psd), "--reconnects", "50", "--connections", "7", *flags)
    assert line["load"] == "connect" and line["tls"] is tls and line["shards"] == 2
    assert line["reconnects"] == 50 and line["connections"] == 7
    assert line["connections_per_s"] == pytest.approx(50 / line["seconds"], rel=0.1)
    assert 0 < line["p50_us"] <= line["p99_us"] <= line["max_us"]
    assert line["server_cpu_ms_per_connection"] > 0 and line["client_cpu_ms_per_connection"] > 0
    (line,) = measure("connect", *at(psd), "--reconnects", "3", "--reader", *flags)  # fewer than at a time
    assert line["reconnects"] == 3


def test_a_connection_that_is_refused_ends_the_count(start_psd, tmp_path):
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    token.chmod(0o600)
    psd = start_psd("--shards", "1", "--token-file", str(token), data=False)
    got = psbench("connect", *at(psd), "--token", "wrong")
    assert got.returncode == 1 and "token: a wrong one" in got.stderr and got.stderr.count("\n") == 1


def test_shards_run_without_a_server(measure):
    (line,) = measure("local", "mix", *SMALL, "--threads", "1,2", "--rounds", "2", "--storage", "bf16")
    assert set(line) == EVERYWHERE | {"threads"} and line["local"] and line["storage"] == "bf16"
    assert [case["threads"] for case in line["threads"]] == [1, 2]
    assert line["threads"][0]["ratio"]["median"] == 1
    assert all(rate > 0 for case in line["threads"] for rate in case["each"])


@pytest.mark.parametrize("args, sentence", [
    ([], "what to do? expected pull, push, mix or grow"),
    (["pul"], 'what to do? found "pul"'),
    (["local"], "what to do? expected pull"),
    (["pull", "--codec", "int9"], 'codec: found "int9", expected fp32'),
    (["pull", "--keys-per-request", "10,0"], 'keys-per-request: found "0"'),
    (["pull", "--seconds", "0"], "seconds: found 0, expected more"),
    (["pull", "--pull-share", "2"], "pull-share"),
    (["pull", "--client-cpu", "first"], 'client-cpu: found "first"'),
    (["grow", "--limits"], "limits: are those of pull, push and mix"),
    (["pull", "--limits", "--rate", "5"], "limits: are those of a closed loop"),
    (["local", "grow"], "local: found grow"),
    (["local", "pull", "--spin"], "spin: is for answers of a server"),
    (["connect", "--reconnects", "0"], "reconnects"),
    (["connect", "--rate", "5"], "limits and rate: are those of requests"),
    (["connect", "pull"], "pull"),
    (["pull", "--rats", "5"], "rats"),
    (["pull", "--token", "x" * 128, "--check"], "token: found 128 characters, expected at most 127"),
    (["pull", "--token", "a", "--token-file", "b"], "token and token-file: both are given, expected one of them"),
    (["pull", "--server", "garbage"], 'server: "garbage" is no server address: expected HOST:PORT'),
    (["pull", "--check", "--server", "garbage"], 'server: "garbage" is no server address: expected HOST:PORT'),
    (["pull", "--check", "--server", "127.0.0.1:1,x:0"], 'server: "x:0" is no server address'),
    (["pull", "--check", "--codec", "int9"], 'codec: found "int9", expected fp32'),
])
def test_wrong_words_are_refused(args, sentence):
    got = psbench(*args)
    assert got.returncode == 2
    assert got.stderr.startswith("psbench: ") and sentence in got.stderr and got.stderr.count("\n") == 1


def test_a_token_is_shown(start_psd, measure, tmp_path):
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    token.chmod(0o600)
    psd = start_psd("--shards", "1", "--token-file", str(token), data=False)
    for flags in (["--token-file", str(token)], ["--token", "open sesame"]):
        (line,) = measure("mix", *at(psd), *SMALL, *flags)
        assert line["errors"] == 0 and line["server_cpu_s_per_million_rows"] > 0
    got = psbench("mix", *at(psd), *SMALL)
    assert got.returncode == 1 and "token: none given (--token-file)" in got.stderr


@pytest.mark.parametrize("content, words", [(None, "No such file"), ("x" * 5000, "more than the 127"), ("\n", "found 0 bytes"),
                                            ("a\nb\n", "expected one line"), ("x" * 128, "found 128 bytes")])
def test_a_token_file_that_cannot_be_used_is_named(tmp_path, content, words):
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
        path.chmod(0o600)
    got = psbench("pull", "--token-file", str(path))
    assert got.returncode == 1 and got.stderr.startswith("psbench: token-file: ")
    assert words in got.stderr and str(path) in got.stderr and got.stderr.count("\n") == 1


def test_settings_are_checked_without_a_server():
    got = psbench("pull", "--check", "--server", "127.0.0.1:1, [::1]:7070")
    assert (got.returncode, got.stdout, got.stderr) == (0, "psbench: the settings are fine\n", "")


def test_rows_without_memory_are_reported(start_psd, measure):
    psd = start_psd("--shards", "1", "--memory-max", "1M", data=False)
    (line,) = measure("push", *at(psd), *SMALL, "--dim", "64")
    assert line["rows_refused"] > 0


@pytest.mark.parametrize("load, more, what", [
    ("push", ("--rows", "1000000000"), "filling the table"),
    ("push", ("--rows", "20000", "--no-fill", "--seconds", "80"), "requests"),
    ("grow", ("--rows", "5000000", "--keys-per-request", "10", "--connections", "1", "--depth", "1"), "requests"),
])
def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(start_psd, load, more, what):
    psd = start_psd("--shards", "1", "--memory-max", "64M", data=False)
    child = subprocess.Popen([str(BIN / "psbench"), load, *at(psd), *more, "--timeout", "5s"], stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: psd.admin()["totals"]["rows"] > 0)
        psd.process.send_signal(signal.SIGSTOP)
        assert child.wait(60) == 1
        assert f": {what}: no answer for 5 s; psctl why" in child.stderr.read()
    finally:
        psd.process.send_signal(signal.SIGCONT)
        child.kill()
        child.stderr.close()


def test_too_few_rows_are_reported(start_psd):
    psd = start_psd("--shards", "1", data=False)
    got = psbench("pull", *at(psd), "--rows", "100")
    assert got.returncode == 1
    assert "rows: 100 are too few for requests of 1000 keys" in got.stderr

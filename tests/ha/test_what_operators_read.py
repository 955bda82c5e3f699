"""What the guide's reader sees of a pair, in psctl, /healthz, /metrics and the logs: each sentence whole, and about now."""

import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from counting import Counter
from etcd_pair import CountedPair, await_takeover, kill
from pair import Member
from relay import Relay
from training import BIN, free_ports, wait_for

HTTP = ("--http", "127.0.0.1:0")
UTC = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def page(member, path):
    """Status and text."""
    try:
        with urllib.request.urlopen(f"http://{member.status()['http_address']}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def missing(member):
    return re.search(r"^psd_standby_missing (\d)$", page(member, "/metrics")[1], re.MULTILINE).group(1)


def doctor(member):
    return member.psctl("doctor", "--every", "100ms").stdout


def log(member):
    return member.log.read_text()


@pytest.fixture
def member(tmp_path):
    """member(name, *flags): a psd that has been started."""
    made = []

    def start(name, *flags):
        made.append(Member(tmp_path / name, free_ports(1)[0], "--shards", "2", *HTTP, *flags))
        made[-1].start()
        return made[-1]

    yield start
    for m in made:
        if m.proc.poll() is None:
            kill(m)


# --- switch ---

def test_a_psd_that_rose_says_that_its_standby_is_gone_and_is_switched_once_it_is_back(pair):
    p = pair(*HTTP)
    p.fail_over()
    said = p.primary.psctl("switch")
    assert said.returncode == 1 and re.search(f"standby {p.standby.address} is gone since {UTC}: start psd there", said.stderr), said.stderr
    assert re.search(f"ok, but standby {p.standby.address} is gone since {UTC}: ", p.primary.status()["health"])
    assert re.search(f"standby {p.standby.address} is missing, gone for \\d", doctor(p.primary))
    assert re.search(r"no standby, gone for \d", p.primary.psctl("status").stdout)
    p.standby.start()
    p.await_in_sync()
    assert "gone" not in p.primary.status()["health"]
    said = p.primary.psctl("switch")
    assert said.returncode == 0, said.stderr
    assert "ack got" in (p.standby.data / "TERMS").read_text()


def test_a_standby_is_gone_though_another_psd_asks(pair, member):
    """Whom the primary refuses is not the one that has gone."""
    p = pair(*HTTP)
    kill(p.standby)
    stranger = member("c", "--memory-max", "64M", "--standby", p.primary.address)
    wait_for("its refusal", lambda: "could not hold the primary's rows" in log(stranger), 30)
    gone = f"ok, but standby {p.standby.address} is gone since "
    wait_for("the sentence", lambda: page(p.primary, "/healthz")[1].startswith(gone), 30)
    for _ in range(40):  # it asks every 2 s
        assert page(p.primary, "/healthz")[1].startswith(gone)
        time.sleep(0.1)
    refusal = f"standby {stranger.address} is refused: the standby has --memory-max 64M, the primary 0 (no limit): it could not hold the primary's rows"
    why, said = p.primary.psctl("why").stdout, " ".join(doctor(p.primary).split())
    assert refusal in page(p.primary, "/healthz")[1] and refusal in why and refusal in said, (why, said)
    assert f"its standby {p.standby.address} is missing, gone for " in said, said


def test_a_standby_that_is_silent_is_gone_since_its_last_word(pair):
    p = pair("--standby-ack", "no", *HTTP, state="following")
    assert p.primary.status()["replication"]["gone_unix_ms"] == 0
    p.standby.proc.send_signal(19)
    wait_for("its silence", lambda: p.primary.status()["replication"]["gone_unix_ms"], 20)
    p.standby.proc.send_signal(18)
    wait_for("its word", lambda: not p.primary.status()["replication"]["gone_unix_ms"], 20)


def test_a_standby_that_was_restarted_says_that_it_does_not_know_whether_it_has_all(pair):
    p = pair(*HTTP)
    kill(p.primary)
    kill(p.standby)
    p.standby.start()
    wait_for("its doubt", lambda: p.standby.replication().get("unheard"), 20)
    advice = f"{p.primary.address} is asked to be followed: Connection refused: no program listens there; if it is dead, psctl promote --accept-loss makes " \
             "this one the primary"
    wait_for("its advice", lambda: advice in p.standby.psctl("why").stdout and page(p.standby, "/healthz") == (503, f"{advice}\n"), 20)
    assert doctor(p.standby).count("psctl promote") == 1
    said = p.standby.psctl("promote", "--the-other-is-dead")
    assert said.returncode == 1 and "has not followed it since its own start" in said.stderr, said.stderr
    assert "psctl promote --accept-loss makes this one the primary" in doctor(p.standby)


def test_right_after_a_switch_the_old_primary_is_said_to_restart(pair):
    p = pair(*HTTP)
    old, new = p.primary, p.standby
    assert old.psctl("switch").returncode == 0
    kill(old)  # before it follows
    said = new.psctl("switch")
    assert said.returncode == 1 and re.search(f"{old.address} has handed over at {UTC}, and restarts as the standby", said.stderr), said.stderr


# --- refusals ---

def refused(member, primary, says):
    wait_for("the refusal", lambda: says in (member.replication().get("refused") or ""), 20)
    found = member.status()
    assert says in found["replication"]["refused"]
    assert found["replication"]["refused"] in found["health"] and says in page(member, "/healthz")[1]
    said = doctor(member)
    assert f"its primary {primary.address}, which lives, refuses it: " in said and says in said
    assert "do not promote it" in said and "psctl promote" not in said


def test_what_a_refused_standby_lacks_is_named_and_it_is_not_to_be_promoted(member):
    primary = member("a", "--memory-max", "128M")
    primary.await_ready()
    refused(member("b", "--memory-max", "64M", "--standby", primary.address), primary,
            "the standby has --memory-max 64M, the primary 128M: it could not hold the primary's rows")
    refused(member("c", "--memory-max", "128M", "--shards", "1", "--standby", primary.address), primary,
            "it has 2 shards, and this standby has 1: give both the same --shards")


def test_a_primary_knows_of_the_standby_that_it_refuses_and_both_logs_say_it_once(member):
    primary, sentence = member("a", "--memory-max", "128M"), "the standby has --memory-max 64M, the primary 128M: it could not hold the primary's rows"
    primary.await_ready()
    way = Relay(("127.0.0.1", int(primary.address.rpartition(":")[2])))  # it counts
    standby = member("b", "--memory-max", "64M", "--standby", way.address)
    said = f"standby {standby.address} is refused: {sentence}"
    wait_for("the primary's health", lambda: page(primary, "/healthz") == (200, f"ok, but {said}\n"), 20)
    assert said in primary.psctl("why").stdout and missing(primary) == "1"
    assert f"problem: node 0: {said}" in " ".join(doctor(primary).split())
    assert f"group 0: {primary.address} waits for standby {standby.address}: {said}" in " ".join(primary.psctl("cluster").stdout.split())
    wait_for("its questions", lambda: way.n > 7, 30)  # five lines at once are let through at most
    assert log(primary).count("is refused") == log(standby).count(sentence) == 1, log(primary) + log(standby)
    kill(standby)
    standby.flags = tuple({"64M": "128M"}.get(word, word) for word in standby.flags)
    standby.start()
    wait_for("a standby in sync", lambda: page(primary, "/healthz") == (200, "ok\n"), 30)
    assert "refused" not in primary.psctl("why").stdout + doctor(primary)
    way.close()


def test_the_standby_that_a_primary_waits_for_and_refuses_is_named_with_the_reason(pair):
    p = pair("--memory-max", "128M", *HTTP)
    kill(p.primary, p.standby)
    p.primary.start()
    wait_for("its wait", lambda: "workers are refused until it follows" in p.primary.psctl("why").stdout, 20)
    p.standby.start("--memory-max", "64M")
    reason = f"standby {p.standby.address} is refused: the standby has --memory-max 64M, the primary 128M: it could not hold the primary's rows"
    wait_for("the reason", lambda: f"workers are refused until it follows; {reason}" in " ".join(p.primary.psctl("why").stdout.split()), 20)
    said = " ".join(doctor(p.primary).split())
    assert reason in said and f"it waits for its standby {p.standby.address}, and refuses workers" in said, said


def test_another_cluster_is_named_in_english(member):
    primary, ports = member("a"), free_ports(1)
    primary.await_ready()
    refused(member("b", "--cluster", f"127.0.0.1:{ports[0]}", "--node", "0", "--advertise", f"127.0.0.1:{ports[0]}",
                   "--standby", primary.address), primary, f"; this standby is node 0 of cluster 127.0.0.1:{ports[0]} (")


def test_both_of_a_pair_are_started_at_once(member):
    """The primary waits for etcd: its standby says so, and that it asks again."""
    coord = ("--coord", f"etcd://127.0.0.1:{free_ports(1)[0]}/prod")
    primary = member("a", *coord)
    standby = member("b", *coord, "--standby", primary.address)
    refused(standby, primary, "psd is not ready yet: the coordination service has to say who is the primary: etcd at ")
    assert "it is asked again every 2 s" in standby.status()["health"]
    assert "restoring" not in log(primary) and "is stopping" not in log(primary) + log(standby)


def test_a_pair_without_a_table_keeps_its_shards_and_its_place(tmp_path):
    """Its primary is started again without --shards: nothing is in its directory but TERMS."""
    primary, standby = (Member(tmp_path / name, port) for name, port in zip("ab", free_ports(2)))
    try:
        primary.start("--shards", "1")
        primary.await_ready()
        standby.start("--shards", "1", "--standby", primary.address)
        wait_for("a standby in sync", lambda: standby.replication().get("in_sync"), 60)
        kill(primary)
        primary.start()
        wait_for("its return", lambda: primary.proc.poll() is not None or primary.replication().get("in_sync"), 60)
        assert primary.proc.poll() is None and "taken as new" not in log(primary), log(primary)
        assert len(primary.status()["shards"]) == 1
    finally:
        for m in (primary, standby):
            if m.proc and m.proc.poll() is None:
                kill(m)


# --- the metric ---

def test_with_standby_ack_no_a_standby_that_follows_is_not_missing(pair):
    p = pair("--standby-ack", "no", *HTTP, state="following")
    wait_for("the standby", lambda: missing(p.primary) == "0", 20)
    assert page(p.primary, "/healthz") == (200, "ok\n")
    assert "follows, and is never in sync, with --standby-ack no" in doctor(p.primary)
    assert "with --standby-ack no a standby is never in sync" in p.primary.psctl("switch").stderr
    kill(p.standby)
    wait_for("its absence", lambda: missing(p.primary) == "1", 30)


# --- the log ---

def test_a_log_names_as_joined_who_joins_and_a_return_is_no_error(pair, tmp_path):
    p = pair(*HTTP)
    counter = Counter(tmp_path, p.servers, "async")
    counter.ask("go")
    wait_for("the worker", lambda: "has joined" in log(p.primary), 20)
    wait_for("its pushes at the standby", lambda: p.standby.replication().get("standby_lag_records") == 0, 20)
    p.fail_over()
    p.primary.await_ready()
    counter.ask("stop")
    counter.close()
    before = len(log(p.standby))
    p.standby.start()
    p.await_in_sync()
    back = log(p.standby)[before:]
    assert "this psd is not the primary any more" in back and " error " not in back and "has joined" not in back, back
    p.standby.proc.terminate()
    p.standby.proc.wait()
    assert "has joined" not in log(p.standby)[before:]
    rose = log(p.primary)
    assert "were live, and have a lease to come back" in rose, rose
    # A worker that comes to the new primary has joined there before.
    assert rose.count("has joined") == 0, rose


# --- promote ---

def psctl(*words):
    return subprocess.run([BIN / "psctl", *words], capture_output=True, text=True, timeout=60, check=False)


def test_a_promotion_by_etcd_finds_the_standby_and_one_without_etcd_says_what_it_waits_for(tmp_path, etcd):
    url = etcd.url()
    p = CountedPair(tmp_path / "pair", "--coord", url, *HTTP)
    try:
        said = psctl("promote", "--coord", url)
        assert said.returncode == 1 and f"{p.primary.address} still answers as the primary" in said.stderr, said.stderr
        said = psctl("promote", "1", "--coord", url)
        assert said.returncode == 1 and "promote: found group 1, expected 0 to 0" in said.stderr
        said = p.standby.psctl("promote", "0")
        assert said.returncode == 1 and f"{p.primary.address} still answers as the primary" in said.stderr, said.stderr
        etcd.signal(signal.SIGSTOP, 0)  # which nobody has noticed yet: else it is refused at once
        kill(p.primary)
        began = time.monotonic()
        said = p.standby.psctl("promote", "--the-other-is-dead", "--timeout", "4s")
        assert said.returncode == 1 and 3 < time.monotonic() - began < 20
        notes = [line for line in said.stderr.splitlines() if line.startswith(f"psctl: note: {p.standby.address}, for ")]
        assert notes and "it becomes the primary: the coordination service has to say who is the primary: etcd at " in notes[-1], said.stderr
        assert "is not the primary after 4 s: it becomes the primary: the coordination" in said.stderr and "goes on without psctl" in said.stderr
        assert page(p.standby, "/healthz")[1].startswith("it becomes the primary: the coordination service")
        etcd.heal()
        wait_for("the promotion", lambda: p.standby.replication().get("role") == "primary", 60)
    finally:
        p.end()
        etcd.heal()


def test_a_name_that_etcd_does_not_know_is_asked_for_in_a_sentence(etcd):
    said = psctl("status", "--coord", etcd.url())
    assert said.returncode == 1
    assert said.stderr.endswith("under this cluster's name: is it right? A psd can also be named itself, as HOST:PORT\n"), said.stderr


def test_a_switch_after_a_failover_asks_the_primary_of_now(start, etcd):
    """Not the one that died, which is the first in the map of its group."""
    pair, _ = start(etcd)
    dead = pair.primary
    kill(dead)
    await_takeover(pair)
    third = Member(dead.data.parent.parent / "c", free_ports(1)[0], *dead.flags)
    try:
        for words in (["switch", "--coord", dead.flags[dead.flags.index("--coord") + 1]], ["switch", "0", "--server", None]):
            third.start("--standby", pair.primary.address)
            wait_for("the third in sync", lambda: third.replication().get("in_sync"), 60)
            said = subprocess.run([BIN / "psctl", *(word or pair.primary.address for word in words)], capture_output=True, text=True, check=False)
            assert said.returncode == 0 and said.stdout.startswith(f"{third.address} is the primary now"), said
            pair.primary, third = third, pair.primary
            kill(third)
    finally:
        for member in (pair.primary, third):
            if member is not pair.standby and member.proc and member.proc.poll() is None:
                member.proc.kill()
                member.proc.wait()


def test_doctor_says_in_what_the_members_of_a_pair_differ(pair):
    p = pair("--durability", "async")
    p.standby.proc.kill()
    p.standby.proc.wait()
    p.standby.flags = [{"async": "fsync"}.get(word, word) for word in p.standby.flags] + ["--standby-ack", "disk"]
    p.standby.start("--standby", p.primary.address)
    p.await_in_sync()
    for one, other, own, theirs in ((p.primary, p.standby, ("async", "got"), ("fsync", "disk")), (p.standby, p.primary, ("fsync", "disk"), ("async", "got"))):
        said = one.psctl("doctor").stdout
        for i, name in enumerate(("durability", "standby-ack")):
            assert (f"warning: node 0: it has {name} {own[i]}, and {other.address}, the other one of its pair, {theirs[i]}: after a failover "
                    "that one counts; give both the same") in " ".join(said.split()), said

"""An earlier psd as primary and as standby of this one: each says so in a sentence, tries stay few, and nothing is lost."""

import time

import earlier
import pytest
from altered import NewerWay
from counting import Counter
from etcd_pair import kill
from pair import Member
from training import BIN, finish, free_ports, psworker, synth, wait_for

FLAGS = ("--shards", "2", "--durability", "fsync")
COPIES = "copies the newest restore point"


@pytest.fixture
def member(tmp_path):
    """member(name, *flags, programs=...): one that is not started yet."""
    members = []

    def make(name, *flags, **more):
        members.append(Member(tmp_path / name, free_ports(1)[0], *FLAGS, *flags, **more))
        return members[-1]

    yield make
    for m in members:
        if m.proc:
            kill(m)


@pytest.fixture
def count(tmp_path):
    """count(servers) starts a worker that pushes until check()."""
    counters = []

    def start(servers):
        counters.append(Counter(tmp_path, servers, "async"))
        counters[-1].push_on()
        return counters[-1]

    yield start
    for counter in counters:
        counter.close()


@pytest.fixture(scope="module")
def without_standbys():
    return earlier.build(earlier.WITHOUT_STANDBYS, "psd")


@pytest.fixture(scope="module")
def without_learned_records():
    """It knows standbys, and not all records that this psd writes."""
    return earlier.build(earlier.WITHOUT_LEARNED_RECORDS, "psd")


def lines(m, *words):
    return [line for line in m.log.read_text().splitlines() if any(word in line for word in words)]


def test_a_primary_that_knows_no_standbys_goes_on_alone(member, count, without_standbys):
    """The standby says what it is, in growing intervals, and can be promoted to nothing."""
    old, standby = member("a", programs=without_standbys), member("b")
    old.start()
    old.await_ready()
    counter = count(old.address)
    standby.start("--standby", old.address)
    wait_for("the sentence", lambda: standby.says("is it an older psd?"), 30)
    counter.push_on(200)
    refused = standby.psctl("promote", "--the-other-is-dead", "--accept-loss")
    assert refused.returncode == 1 and "no whole copy" in refused.stderr, refused
    assert "older psd" in standby.psctl("why").stdout
    assert len(lines(standby, " warn ", " error ")) <= 4, standby.log.read_text()
    counter.check()


def test_a_psd_that_knows_no_standbys_does_not_start_as_one(member, count, without_standbys):
    primary, old = member("a"), member("b", programs=without_standbys)
    primary.start()
    primary.await_ready()
    counter = count(primary.address)
    old.start("--standby", primary.address)
    assert old.proc.wait(60) == 2
    assert lines(old, "standby"), old.log.read_text()
    assert not old.data.exists()
    counter.push_on()
    assert not primary.replication().get("in_sync")
    counter.check()


def test_a_standby_takes_over_from_an_older_primary(member, count, without_learned_records):
    """The way of an upgrade: the standby first."""
    old, standby = member("a", programs=without_learned_records), member("b")
    old.start()
    old.await_ready()
    standby.start("--standby", old.address)
    wait_for("a standby in sync", lambda: standby.replication().get("in_sync"), 60)
    counter = count(f"{old.address},{standby.address}")
    counter.push_on(200)
    kill(old)
    standby.promote()
    counter.push_on()
    counter.check()


def test_an_older_standby_that_cannot_read_a_record_copies_ever_more_rarely(member, count, tmp_path, without_learned_records):
    """It throws away what it has, each time, and asks for a copy: three come at once, and the next one has to wait."""
    primary, old = member("a"), member("b", programs=without_learned_records)
    primary.start()
    primary.await_ready()
    old.start("--standby", primary.address)
    wait_for("a standby in sync", lambda: old.replication().get("in_sync"), 60)
    counter = count(primary.address)
    worker = psworker("train", "--data", synth(tmp_path / "log.tsv", 4000), "--servers", primary.address, "--format", "criteo", "--job", "j",
                      "--mode", "async", "--bottom", "16", "--top", "16", "--dim", "4", "--batch", "64", "--epochs", "100000", "--json", "-",
                      "--progress-every", "100ms")
    wait_for("a record that it cannot read", lambda: old.says("a record of an unknown type"), 60)
    wait_for("the refusal", lambda: primary.says("copies were of no use before long"), 60)
    wait_for("its reason", lambda: old.says("the standby's log has the reason"), 30)
    n_lines = len(lines(primary, " warn ", " info "))
    time.sleep(6)  # in which it would copy five times more
    assert len(lines(primary, COPIES)) == 3
    assert len(lines(primary, " warn ", " info ")) - n_lines <= 8, primary.log.read_text()  # its refusals are limited
    assert not primary.replication()["in_sync"] and counter.ask("go")["longest_ms"] > 0
    refused = old.psctl("promote", "--the-other-is-dead", "--accept-loss")
    assert refused.returncode == 1 and "no whole copy" in refused.stderr, refused
    worker.terminate()
    finish(worker)
    counter.check()


def test_a_standby_is_upgraded_in_its_place(member, count, without_learned_records):
    """With the data that the older one has got."""
    primary, standby = member("a"), member("b", programs=without_learned_records)
    primary.start()
    primary.await_ready()
    standby.start("--standby", primary.address)
    wait_for("a standby in sync", lambda: standby.replication().get("in_sync"), 60)
    counter = count(f"{primary.address},{standby.address}")
    kill(standby)
    counter.push_on()
    standby.programs = BIN
    standby.start("--standby", primary.address)
    wait_for("a standby in sync", lambda: standby.replication().get("in_sync"), 60)
    counter.push_on()
    kill(primary)
    standby.promote()
    counter.push_on()
    counter.check()


def test_a_record_of_a_newer_primary_is_not_taken_and_its_standby_goes_on_where_it_was(member, count):
    """Once the record is one that it knows, as it would be for an upgraded standby."""
    p, s = member("primary"), member("standby")
    way = NewerWay(("127.0.0.1", int(p.address.rpartition(":")[2])))
    said = "which this psd does not know: the primary is a newer one; upgrade this standby"
    try:
        p.start("--advertise", way.address)
        p.await_ready()
        s.start("--standby", way.address)
        wait_for("a standby in sync", lambda: s.replication().get("in_sync"), 60)
        counter = count(f"{p.address},{s.address}")
        wait_for("it in sync", lambda: s.replication().get("in_sync"), 60)
        way.alters = True
        wait_for("its sentence", lambda: counter.ask("go") and said in s.psctl("why").stdout, 30)
        assert lines(s, "of the primary is of type 99, " + said)
        counter.push_on()  # the primary goes on alone
        way.alters = False
        wait_for("it in sync", lambda: s.replication().get("in_sync"), 60)
        assert len(lines(p, COPIES)) == 1 and not lines(s, "are given up"), s.log.read_text()
        counter.push_on()
        kill(p)
        s.promote()
        counter.check()
    finally:
        way.close()

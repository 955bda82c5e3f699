"""A primary whose data directory is put back from an older copy: its standby has records that were acknowledged, and that this copy lacks.
They are not given up: the primary says so, and a person promotes the standby."""

import os
import shutil
import signal

import pytest
import wire
from counting import Counter
from training import free_ports, wait_for

SAYS = "is an older copy"


@pytest.fixture
def counter(tmp_path):
    """counter(pair) starts a worker that has pushed."""
    counters = []

    def start(p):
        counters.append(Counter(tmp_path, p.servers, "async"))
        counters[-1].push_on()
        return counters[-1]

    yield start
    for c in counters:
        c.close()


def kill(*members):
    for member in members:
        member.proc.kill()
    for member in members:
        member.proc.wait()


def copy_of(member):
    """Of its directory, as it is while nobody writes it."""
    copy = member.data.with_name("copy")
    shutil.copytree(member.data, copy)
    return copy


def put_back(member, copy):
    shutil.rmtree(member.data)
    copy.rename(member.data)


def given_up(member):
    """Its line about records that it has given up; each shard has the same end."""
    return next(line for line in member.log.read_text().splitlines() if "are given up" in line)


def stop(member):
    member.proc.terminate()
    assert member.proc.wait(60) == 0


def follow_and_check(p, before, counter):
    """What had been acknowledged is there, and the old copy follows without its own."""
    if p.primary.proc.poll() is not None:
        p.primary.start("--standby", p.standby.address)
    p.primary, p.standby = p.standby, p.primary
    p.await_in_sync()
    assert p.primary.replication()["role"] == "primary" and p.standby.replication()["role"] == "standby"
    end = counter(p).ask("stop")
    assert end["lowest"] == end["highest"] == before["pushed"] + end["pushed"], (before, end)


def promote_and_check(p, before, counter):
    promoted = p.standby.psctl("promote")
    assert promoted.returncode == 0, promoted
    follow_and_check(p, before, counter)


@pytest.mark.parametrize("durability", ["async", "fsync"])
def test_a_copy_of_before_the_primarys_last_start_is_refused(pair, counter, durability):
    p = pair("--durability", durability)
    worker = counter(p)
    stop(p.primary)
    copy = copy_of(p.primary)
    p.primary.start()
    p.await_in_sync()
    worker.push_on()
    before = worker.ask("stop")
    kill(p.primary)
    put_back(p.primary, copy)
    p.primary.start()
    await_refusal(p)
    why = p.primary.psctl("why").stdout
    assert SAYS in why and p.standby.address in why, why
    promote_and_check(p, before, counter)


def copy_while_it_stands_still(member):
    member.proc.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, member.proc.pid, os.WSTOPPED)  # all of its threads: one of them may have been renaming a file
    copy = copy_of(member)
    member.proc.send_signal(signal.SIGCONT)
    return copy


def await_refusal(p):
    wait_for("the refusal", lambda: p.primary.says(SAYS) and p.standby.says(SAYS), 30)
    assert p.primary.proc.poll() is None and p.primary.replication()["state"] == "awaits its standby"


def test_with_fsync_a_copy_of_the_primarys_last_run_is_refused(pair, counter):
    """Its TERMS say that it has all that was acknowledged; the standby knows what was on that disk."""
    p = pair("--durability", "fsync")
    worker = counter(p)
    copy = copy_while_it_stands_still(p.primary)
    worker.push_on(200)
    before = worker.ask("stop")
    kill(p.primary)
    put_back(p.primary, copy)
    p.primary.start()
    await_refusal(p)
    promote_and_check(p, before, counter)


def test_with_fsync_a_standby_that_was_restarted_takes_over_from_an_old_copy(pair, counter):
    """It does not know any more what was on the primary's disk."""
    p = pair("--durability", "fsync")
    worker = counter(p)
    copy = copy_while_it_stands_still(p.primary)
    worker.push_on(200)
    before = worker.ask("stop")
    kill(p.primary, p.standby)
    put_back(p.primary, copy)
    p.standby.start("--standby", p.primary.address)
    p.primary.start()
    wait_for("its word", lambda: p.primary.says("has more than this psd's log, and becomes the primary"), 30)
    wait_for("the takeover", lambda: p.standby.replication()["role"] == "primary", 30)
    follow_and_check(p, before, counter)


def test_a_standby_that_finds_an_old_copy_serving_keeps_its_records(pair, counter):
    """The copy is of a time without a standby in sync, so the primary serves before that one is back, which stands still for a second or two: less
    than its patience, or it could not be sure of all."""
    p = pair("--durability", "fsync", "--standby-patience", "8s")
    worker = counter(p)
    p.standby.proc.send_signal(signal.SIGSTOP)
    p.primary.await_alone()
    copy = copy_while_it_stands_still(p.primary)
    p.standby.proc.send_signal(signal.SIGCONT)
    wait_for("a standby that follows", lambda: p.primary.log.read_text().count("is in sync") == 2, 60)
    worker.push_on(200)
    before = worker.ask("stop")
    kill(p.primary)
    p.standby.proc.send_signal(signal.SIGSTOP)
    put_back(p.primary, copy)
    p.primary.start()
    wait_for("a primary that serves", lambda: p.primary.log.read_text().count("psd ready") == 2, 30)
    p.standby.proc.send_signal(signal.SIGCONT)
    said = "serves from an older copy of its data directory"
    wait_for("the refusal", lambda: p.primary.says(said) and p.standby.says(said), 30)
    refused = p.standby.psctl("promote")
    assert refused.returncode == 1 and "still answers as the primary" in refused.stderr, refused
    kill(p.primary)
    promote_and_check(p, before, counter)


def test_a_person_says_that_the_old_copy_serves(pair, counter):
    """The way back to an earlier state: the standby gives its records up, and follows."""
    p = pair("--durability", "async")
    worker = counter(p)
    stop(p.primary)
    copy = copy_of(p.primary)
    p.primary.start()
    p.await_in_sync()
    worker.push_on()
    worker.ask("stop")
    kill(p.primary)
    put_back(p.primary, copy)
    p.primary.start()
    await_refusal(p)
    refused = p.primary.psctl("promote")
    assert refused.returncode == 1 and SAYS in refused.stderr, refused
    assert p.primary.psctl("promote", "--accept-loss").returncode == 0
    wait_for("its standby", lambda: p.primary.replication().get("in_sync"), 60)
    assert p.standby.replication()["role"] == "standby"
    assert "some of them may have been acknowledged: a person has made that psd the primary with --accept-loss" in given_up(p.standby)


def test_a_killed_primary_with_fsync_serves_again(pair, counter):
    """What its standby has more was never acknowledged."""
    p = pair("--durability", "fsync")
    worker = counter(p)
    for _ in range(3):
        kill(p.primary)
        p.primary.start()
        p.await_in_sync()
        worker.push_on()
    assert p.primary.replication()["role"] == "primary" and not p.primary.says(SAYS)
    worker.check()


def test_of_two_standbys_one_is_promoted_without_a_word_of_the_other(pair, counter):
    """The other one answers, but not as the primary."""
    p = pair("--durability", "fsync")
    worker = counter(p)
    before = worker.ask("stop")
    kill(p.primary)
    p.primary.start("--standby", f"127.0.0.1:{free_ports(1)[0]}")  # where nobody is
    wait_for("its word", lambda: p.standby.says("is a standby of"), 30)
    p.standby.promote()
    kill(p.primary)
    follow_and_check(p, before, counter)


def test_two_copies_that_start_apart_are_of_different_terms(pair, counter):
    """The standby of the one does not go on with the other, which has as many records, and others."""
    p = pair("--durability", "fsync")
    p.standby.proc.send_signal(signal.SIGSTOP)
    p.primary.await_alone()
    kill(p.primary)
    copy = copy_of(p.primary)
    p.primary.start()
    wait_for("a primary that serves", lambda: p.primary.log.read_text().count("psd ready") == 2, 30)
    first = p.primary.replication()["term"]
    p.standby.proc.send_signal(signal.SIGCONT)
    wait_for("a standby that follows", lambda: p.primary.log.read_text().count("is in sync") == 1, 60)
    worker = counter(p)
    before = worker.ask("stop")
    kill(p.primary)
    p.standby.proc.send_signal(signal.SIGSTOP)
    put_back(p.primary, copy)
    p.primary.start()
    wait_for("a primary that serves", lambda: p.primary.log.read_text().count("psd ready") == 3, 30)
    counter(p).push_on(before["pushed"] + 50)
    assert p.primary.replication()["term"] != first
    p.standby.proc.send_signal(signal.SIGCONT)
    said = "serves from an older copy of its data directory"
    wait_for("the refusal", lambda: p.primary.says(said) and p.standby.says(said), 30)


def test_with_etcd_and_fsync_a_copy_of_the_same_term_asks_its_standby_first(pair, counter, etcd):
    """etcd names it as the primary of just this term. The standby was restarted, and knows nothing of what was on that disk."""
    p = pair("--coord", etcd.url(), "--durability", "fsync", "--failover-after", "20s")
    worker = counter(p)
    copy = copy_while_it_stands_still(p.primary)
    worker.push_on(200)
    before = worker.ask("stop")
    kill(p.primary, p.standby)
    put_back(p.primary, copy)
    p.standby.start("--standby", p.primary.address)
    wait_for("its listener", lambda: p.standby.log.read_text().count("listening on") == 3, 30)
    p.primary.start()
    wait_for("its word", lambda: p.primary.says("has more than this psd's log, and becomes the primary"), 30)
    wait_for("the takeover", lambda: p.standby.replication()["role"] == "primary", 30)
    follow_and_check(p, before, counter)


def test_with_etcd_and_fsync_a_primary_whose_standby_is_not_there_serves_alone(pair, counter, etcd):
    """It is asked, and refuses the connection: nobody waits for it."""
    p = pair("--coord", etcd.url(), "--durability", "fsync", "--failover-after", "20s")
    worker = counter(p)
    kill(p.primary, p.standby)
    p.primary.start()
    wait_for("a primary that serves", lambda: p.primary.log.read_text().count("psd ready") == 2, 10)
    worker.check()


def log_workers_unanswered(member, n):
    """n joins on each shard, one after the other, whose replies wait. They are on this member's disk; a standby that stands still has asked for
    two of them at most."""
    clients = []
    for rank in range(n):
        for shard in range(2):
            before = member.status()["shards"][shard]["log"]["records"]
            client = wire.Wire(int(member.address.rpartition(":")[2]))
            clients.append(client)
            assert client.hello(shard=shard).status == 0
            client.send(wire.frame("join", wire.head((1, "j"), (2, rank), (3, n), (4, 7), (5, wire.ASYNC), (9, "w")), request_id=2))
            wait_for("its record", lambda s=shard, b=before: member.status()["shards"][s]["log"]["durable"] > b, 30)
    return clients


def test_a_primary_that_comes_back_says_that_nothing_of_what_it_gives_up_was_acknowledged(pair, counter):
    """Its standby was in sync to the end, and stood still when these records were made: no reply went out."""
    p = pair("--durability", "fsync", "--standby-patience", "60s")
    counter(p).ask("stop")  # both logs have records
    p.standby.proc.send_signal(signal.SIGSTOP)
    clients = log_workers_unanswered(p.primary, 5)
    kill(p.primary)
    for client in clients:
        client.close()
    p.standby.proc.send_signal(signal.SIGCONT)
    p.standby.promote()
    p.primary.start("--standby", p.standby.address)
    wait_for("its line", lambda: p.primary.says("are given up"), 30)
    assert given_up(p.primary).endswith("; none of them had been acknowledged")


def test_a_primary_that_had_gone_on_alone_says_that_some_of_what_it_gives_up_may_be_acknowledged(pair, counter):
    p = pair("--durability", "fsync", "--standby-patience", "1s")
    worker = counter(p)
    p.standby.proc.send_signal(signal.SIGSTOP)
    p.primary.await_alone()
    worker.push_on(100)
    worker.ask("stop")
    kill(p.primary)
    p.standby.proc.send_signal(signal.SIGCONT)
    assert p.standby.psctl("promote", "--accept-loss").returncode == 0
    kill(p.standby)  # its next run does not know how that term began
    p.standby.start()
    p.standby.await_ready()
    p.primary.start("--standby", p.standby.address)
    wait_for("its line", lambda: p.primary.says("are given up"), 30)
    assert given_up(p.primary).endswith("; some of them may have been acknowledged: this psd had gone on without its standby")

"""Who follows whom after a start: what a directory, the other one and etcd know of later terms wins over --standby."""

import signal

import pytest
from counting import Counter
from etcd_pair import kill
from pair import Member
from training import free_ports, wait_for

FLAGS = ("--shards", "2")


@pytest.fixture
def count(tmp_path):
    """count(*members) starts a worker that pushes until check()."""
    counters = []

    def start(*members):
        folder = tmp_path / f"counter{len(counters)}"
        folder.mkdir()
        counters.append(Counter(folder, ",".join(m.address for m in members), "async"))
        counters[-1].push_on()
        return counters[-1]

    yield start
    for counter in counters:
        counter.close()


@pytest.fixture
def third(tmp_path):
    """third(*flags): one more psd, which is not started yet."""
    members = []

    def make(*flags):
        members.append(Member(tmp_path / f"third{len(members)}", free_ports(1)[0], *FLAGS, *flags))
        return members[-1]

    yield make
    for m in members:
        if m.proc:
            kill(m)


def follows(member, primary):
    said = member.replication()
    return said.get("role") == "standby" and said.get("peer") == primary.address and said.get("in_sync")


def await_following(member, primary):
    wait_for(f"a standby in sync of {primary.address}", lambda: follows(member, primary), 30)


def is_primary(member):
    said = member.status()
    return said.get("replication", {}).get("role") == "primary" and said.get("ready")


def await_primary(member):
    wait_for("a primary that serves", lambda: is_primary(member), 30)


def await_pair(one, other):
    """With async the standby may have more, and takes over."""
    wait_for("a primary and its standby", lambda: any(is_primary(p) and follows(s, p) for p, s in ((one, other), (other, one))), 30)


def move_to_a_third(p, c):
    """The primary is lost, its standby promoted; a third psd becomes the standby, and by a switch the primary."""
    p.fail_over()
    c.start("--standby", p.primary.address)
    wait_for("a standby in sync", lambda: c.replication().get("in_sync") and p.primary.replication().get("in_sync"), 60)
    said = p.primary.psctl("switch")
    assert said.returncode == 0, said.stderr
    p.primary, p.standby = c, p.primary


def test_after_a_switch_to_a_third_machine_the_pair_goes_on(pair, third, count):
    p, c = pair("--durability", "fsync"), third("--durability", "fsync")
    a, b = p.primary, p.standby
    option = ("--standby", a.address)
    counter = count(a, b, c)
    move_to_a_third(p, c)
    await_following(b, c)  # in the same process
    assert b.says(f"--standby {a.address} is done: that was the primary before, and this psd follows {c.address}")
    for member in (b, c):  # `a` was the first in the list of nodes, and is nobody's partner
        said = member.psctl("cluster")
        assert said.returncode == 0 and a.address not in said.stdout and b.address in said.stdout, said
    kill(b)
    said = c.psctl("cluster")
    assert said.returncode == 1 and f"{b.address} does not answer: " in said.stdout and a.address not in said.stdout, said
    b.start(*option)  # its command of before
    await_following(b, c)
    assert c.psctl("switch").returncode == 0
    await_following(c, b)
    counter.push_on()
    kill(b)
    kill(c)
    b.start(*option)  # it was the primary last
    c.start("--standby", b.address)
    await_pair(b, c)
    counter.push_on()
    counter.check()


@pytest.mark.parametrize("durability", ["async", "fsync"])
def test_who_comes_back_after_two_changes_finds_the_primary(pair, third, count, durability):
    """Its standby of before is a standby again, of a third one: that is no word that it may serve."""
    p, c = pair("--durability", durability), third("--durability", durability)
    a, b = p.primary, p.standby
    counter = count(a, b, c)
    move_to_a_third(p, c)
    await_following(b, c)
    try:
        a.start()
        wait_for("its primary", lambda: a.replication().get("role") == "standby", 30)
        assert a.says(f"{b.address} follows {c.address}, the primary of term")
        assert a.replication()["peer"] == c.address and is_primary(c)
        counter.push_on()
        counter.check()
    finally:
        kill(a)  # no member of the pair any more


def test_the_option_at_the_one_that_was_the_primary_changes_nothing(pair, count):
    """Both have --standby with the other's address, and both were killed."""
    p = pair("--durability", "fsync")
    counter = count(p.primary, p.standby)
    kill(p.primary)
    p.primary.start("--standby", p.standby.address)
    await_pair(p.primary, p.standby)
    assert p.primary.says(f"--standby {p.standby.address}: this psd was the primary of that one")
    counter.push_on()
    kill(p.primary, p.standby)
    p.primary.start("--standby", p.standby.address)
    p.standby.start("--standby", p.primary.address)
    await_pair(p.primary, p.standby)
    counter.push_on()
    counter.check()


def test_the_option_at_one_whose_standby_was_promoted_makes_it_the_standby(pair, count):
    p = pair()
    counter = count(p.primary, p.standby)
    p.fail_over()
    p.standby.start("--standby", p.primary.address)
    await_following(p.standby, p.primary)
    counter.push_on()
    counter.check()


def test_with_the_option_the_one_that_was_the_primary_serves_nobody_before_it_has_an_answer(pair, count):
    """It was not in sync with its standby, which may have been promoted meanwhile, and cannot be asked."""
    p = pair("--durability", "fsync")
    counter = count(p.primary, p.standby)
    kill(p.standby)
    p.primary.await_alone()
    counter.push_on()
    kill(p.primary)
    p.primary.start("--standby", p.standby.address)
    wait_for("its wait", lambda: f"standby {p.standby.address} may be the primary by now" in p.primary.psctl("why").stdout, 20)
    refused = p.primary.psctl("promote")
    assert refused.returncode == 1 and "with --accept-loss what this psd does not have is lost" in refused.stderr, refused
    p.standby.start("--standby", p.primary.address)
    await_primary(p.primary)
    await_following(p.standby, p.primary)
    counter.push_on()
    counter.check()


# --- with etcd ---

def test_with_etcd_one_that_was_left_out_follows_whom_the_claim_names(start, etcd, third):
    """Its own directory knows of no promotion: a third one had taken its place, and the primary's."""
    url = etcd.url()
    p, _ = start(etcd, url=url)
    a, b, c = p.primary, p.standby, third("--coord", url)
    kill(b)
    a.await_alone()
    c.start("--standby", a.address)
    wait_for("a standby in sync", lambda: c.replication().get("in_sync") and a.replication().get("in_sync"), 60)
    kill(a)
    await_primary(c)
    b.start("--standby", a.address)
    await_following(b, c)
    assert b.says(f"{c.address} is the primary, of term")


def test_with_etcd_after_a_switch_to_a_third_machine_the_pair_goes_on(start, etcd, third):
    url = etcd.url()
    p, _ = start(etcd, url=url)
    a, b, c = p.primary, p.standby, third("--coord", url)
    kill(a)
    await_primary(b)
    c.start("--standby", b.address)
    wait_for("a standby in sync", lambda: c.replication().get("in_sync") and b.replication().get("in_sync"), 60)
    assert b.psctl("switch").returncode == 0
    await_following(b, c)
    kill(b)
    b.start("--standby", a.address)
    await_following(b, c)


def test_one_that_came_back_empty_and_serves_is_named_beside_the_primary(pair):
    """Another directory, without --standby: nothing there says that there is a pair."""
    p = pair()
    lost = p.primary
    p.fail_over()
    lost.data.rename(lost.data.with_name("lost"))
    said = p.primary.psctl("cluster")
    assert "serves as a primary, too" not in said.stdout
    lost.start()
    wait_for("its start", lambda: lost.status().get("ready"), 20)
    said = p.primary.psctl("cluster")
    assert said.returncode == 1, said.stdout
    assert f"{lost.address} serves as a primary, too, with other data than {p.primary.address}" in said.stdout, said.stdout


# --- its address ---

def test_a_standby_that_does_not_answer_at_its_own_address_is_said_before_it_is_the_primary(pair, count):
    p = pair()
    counter = count(p.primary)
    kill(p.standby)
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    p.standby.start("--standby", p.primary.address, "--advertise", nowhere)
    wait_for("a standby in sync", lambda: p.primary.replication().get("peer") == nowhere and p.primary.replication().get("in_sync"), 60)
    wait_for("its note", lambda: f"standby {nowhere} does not answer at that address" in p.primary.psctl("doctor").stdout, 20)
    assert p.primary.says(f"standby {nowhere} does not answer there")
    refused = p.primary.psctl("switch")
    assert refused.returncode == 1 and f"would not find it: {nowhere}: " in refused.stderr, refused
    counter.push_on()
    kill(p.standby)
    p.standby.start("--standby", p.primary.address)
    wait_for("a standby in sync", lambda: p.primary.replication().get("peer") == p.standby.address and p.standby.replication().get("in_sync"), 60)
    wait_for("the switch", lambda: p.primary.psctl("switch").returncode == 0, 20)
    assert is_primary(p.standby)
    counter.check()


# --- a person promotes ---

def test_a_standby_that_stood_still_while_its_primary_went_on_alone_is_not_promoted_without_a_word(pair, count):
    p = pair("--durability", "fsync")
    counter = count(p.primary, p.standby)
    p.standby.proc.send_signal(signal.SIGSTOP)
    p.primary.await_alone()
    counter.push_on()
    kill(p.primary)
    p.standby.proc.send_signal(signal.SIGCONT)
    refused = p.standby.psctl("promote", "--the-other-is-dead")
    assert refused.returncode == 1 and "if it went on alone, this standby does not know of that time" in refused.stderr, refused
    wait_for("its end", lambda: p.standby.replication().get("state") == "not following", 20)
    refused = p.standby.psctl("promote")
    assert refused.returncode == 1 and "--accept-loss goes on without it" in refused.stderr, refused
    p.primary.start()
    await_following(p.standby, p.primary)
    counter.push_on()
    kill(p.primary)
    p.standby.promote()  # it has followed since
    counter.push_on()
    counter.check()


def test_what_counts_is_how_long_the_primary_waits_not_the_standbys_own_patience(pair, count):
    p = pair()
    kill(p.standby)
    p.standby.start("--standby-patience", "60s")
    await_following(p.standby, p.primary)
    counter = count(p.primary, p.standby)
    p.standby.proc.send_signal(signal.SIGSTOP)
    wait_for("a primary that goes on alone", lambda: p.primary.says("is out of sync"), 30)
    counter.push_on()
    kill(p.primary)
    p.standby.proc.send_signal(signal.SIGCONT)
    refused = p.standby.psctl("promote", "--the-other-is-dead")
    assert refused.returncode == 1 and "if it went on alone, this standby does not know of that time" in refused.stderr, refused


def test_a_promotion_that_failed_is_done_again_without_a_loss(pair, count):
    p = pair()
    counter = count(p.primary, p.standby)
    (p.standby.data / "TERMS.tmp").mkdir()  # so it cannot be written
    kill(p.primary)
    wait_for("the refusal", lambda: "TERMS" in p.standby.psctl("promote").stderr, 20)
    (p.standby.data / "TERMS.tmp").rmdir()
    p.standby.promote()
    counter.push_on()
    counter.check()

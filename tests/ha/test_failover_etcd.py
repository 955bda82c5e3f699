"""A pair with etcd: the standby takes over by itself, and each push that was acknowledged is applied once. Stalls are printed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from altered import AlteredWay
from counting import Counter, psd_environment
from etcd import Etcd
from etcd_pair import CountedPair, await_takeover, kill, rejoin
from pair import Member
from training import BIN, finish, free_ports, psworker, synth, wait_for

ROUNDS = int(os.environ.get("PS_HA_ROUNDS", 2))


@pytest.mark.parametrize("durability", ["fsync", "async"])
def test_a_killed_primary_is_replaced_without_a_person(start, etcd, durability):
    pair, counter = start(etcd, "--durability", durability)
    for _ in range(ROUNDS):
        kill(pair.primary)
        await_takeover(pair)
        print(f"kill -9, {durability}: stall {counter.stall():.0f} ms")
        rejoin(pair)
    counter.check()


def test_a_primary_that_stands_still_is_replaced_and_deposed(start, etcd):
    pair, counter = start(etcd)
    pair.primary.proc.send_signal(signal.SIGSTOP)
    await_takeover(pair)
    print(f"SIGSTOP: stall {counter.stall():.0f} ms")
    pair.standby.proc.send_signal(signal.SIGCONT)
    assert pair.standby.proc.wait(60) == 3
    assert pair.standby.says("the coordination service names")
    rejoin(pair)
    counter.check()


def test_without_etcd_pushes_go_on_while_both_live(start, etcd):
    pair, counter = start(etcd)
    etcd.signal(signal.SIGSTOP, 0)
    for member in (pair.primary, pair.standby):
        wait_for("a word of it", lambda m=member: m.says("the service does not answer"), 60)
    before = counter.ask("go")["pushed"]
    wait_for("pushes", lambda: counter.ask("go")["pushed"] > before + 100, 60)
    etcd.heal()
    wait_for("its return", lambda: pair.standby.says("the service answers again"), 60)
    kill(pair.primary)
    await_takeover(pair)
    counter.check()


def test_without_etcd_a_standby_that_comes_back_holds_no_push_up(start, etcd):
    """It is not in sync before etcd has noted it: until then the primary goes on alone."""
    pair, counter = start(etcd)
    kill(pair.standby)
    pair.primary.await_alone()
    etcd.signal(signal.SIGSTOP, 0)
    wait_for("a word of it", lambda: pair.primary.says("the service does not answer"), 60)
    pair.standby.start("--standby", pair.primary.address)
    wait_for("a standby that follows", lambda: pair.standby.replication().get("state") == "following", 60)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        counter.push_on()
    assert pair.primary.replication()["state"] == "standby follows" and counter.stall() < 2000
    etcd.heal()
    pair.await_in_sync()
    counter.check()


READS = """
import sys
import psd
with psd.connect(sys.argv[1], job="count-async", reader=True) as client:
    print("rows", client.table("sums").pull([1, 2]).shape)
"""


def test_a_primary_that_may_have_been_replaced_answers_no_pull(start, etcd):
    """Its standby is silent, and etcd does not say which of them is the primary."""
    pair, counter = start(etcd)
    etcd.signal(signal.SIGSTOP, 0)
    pair.standby.proc.send_signal(signal.SIGSTOP)
    wait_for("its wait in why", lambda: "pulls wait" in pair.primary.psctl("why").stdout, 30)
    with subprocess.Popen([sys.executable, "-c", READS, f"psd://{pair.primary.address}"], stdout=subprocess.PIPE, text=True,
                          env=psd_environment()) as reader:
        wait_for("a pull that waits", lambda: re.search(r'"parked_pulls": ?[1-9]', pair.primary.psctl("status", "--json").stdout), 30)
        pair.standby.proc.send_signal(signal.SIGCONT)
        etcd.heal()
        assert reader.communicate(timeout=60)[0].startswith("rows")
    counter.check()


def test_a_standby_that_ends_is_out_of_sync_in_etcd_first(start, etcd):
    """The primary goes on alone; restarted without its standby it serves, and a standby that was not in sync does not."""
    pair, counter = start(etcd, "--durability", "fsync")
    kill(pair.standby)
    pair.primary.await_alone()
    counter.ask("go")
    kill(pair.primary)
    pair.standby.start("--standby", pair.primary.address)
    wait_for("its first dial", lambda: pair.standby.replication().get("state") == "not following", 30)
    pair.primary.start()
    pair.await_in_sync()
    assert pair.primary.replication()["role"] == "primary"
    counter.check()


@pytest.mark.parametrize("failover_after", ["700ms", "3s"])
def test_a_standby_whose_rows_differ_tries_to_take_over_every_10_s(tmp_path, etcd, failover_after):
    """Its primary died at that moment, so nothing can be copied; etcd would let it. For a second it tells the primary, before or behind that."""
    ports = free_ports(2)
    way = AlteredWay(("127.0.0.1", ports[0]))
    flags = ("--shards", "2", "--coord", etcd.url(), "--durability", "fsync", "--failover-after", failover_after)
    primary = Member(tmp_path / "a", ports[0], *flags, "--advertise", way.address)
    standby = Member(tmp_path / "b", ports[1], *flags)
    counter = None
    try:
        primary.start()
        primary.await_ready()
        standby.start("--standby", way.address)
        wait_for("a standby in sync", lambda: standby.replication().get("in_sync"), 60)
        counter = Counter(tmp_path, primary.address, "async")
        counter.push_on(50)
        wait_for("it in sync", lambda: standby.replication().get("in_sync"), 60)
        way.alters = True
        wait_for("an audit", lambda: way.is_down, 30)
        kill(primary)
        says = f"{way.address} is silent, and this standby does not take over: shard "
        wait_for("the reason", lambda: says in standby.psctl("why").stdout, 30)
        assert "has other values here" in standby.psctl("why").stdout
        tries = standby.log.read_text().count("and this standby takes over")
        time.sleep(4)
        assert standby.log.read_text().count("and this standby takes over") - tries <= 1, standby.log.read_text()
        assert says in standby.psctl("why").stdout
        way.is_down = False
        primary.start()
        wait_for("a copy that is in sync", lambda: standby.replication().get("in_sync"), 60)
        assert standby.replication()["role"] == "standby" and standby.says("has to be copied")
    finally:
        if counter:
            counter.close()
        for member in (primary, standby):
            if member.proc and member.proc.poll() is None:
                kill(member)
        way.close()


def test_a_person_promotes_what_etcd_calls_out_of_sync_with_accept_loss_alone(start, etcd):
    """The standby still believes that it is in sync: it stood still while its primary went on alone."""
    pair, counter = start(etcd, "--durability", "fsync")
    pair.standby.proc.send_signal(signal.SIGSTOP)
    pair.primary.await_alone()
    counter.ask("go")
    kill(pair.primary)
    pair.standby.proc.send_signal(signal.SIGCONT)
    wait_for("the end of its sessions", lambda: pair.standby.replication().get("state") == "not following", 30)
    wait_for("the reason", lambda: f"{pair.primary.address} is silent, and this standby does not take over: it is not in sync"
             in pair.standby.psctl("why").stdout, 20)
    refused = pair.standby.psctl("promote", "--the-other-is-dead")
    assert refused.returncode == 1 and "--accept-loss" in refused.stderr, refused
    pair.primary.start()
    pair.await_in_sync()
    counter.check()


def test_a_primary_that_stops_before_its_standby_hears_that_it_is_in_sync_is_replaced(tmp_path, etcd):
    """Between the claim and the primary's next word to the standby: what counts is the claim."""
    ports = free_ports(2)
    url = etcd.url()
    primary, standby = (Member(tmp_path / name, port, "--shards", "2", "--coord", url, "--standby-patience", "30s") for name, port in zip("ab", ports))
    try:
        primary.start()
        primary.await_ready()
        etcd.signal(signal.SIGSTOP, 0)
        standby.start("--standby", primary.address)
        wait_for("a claim under way", lambda: "has noted whether standby" in primary.psctl("why").stdout, 30)
        standby.proc.send_signal(signal.SIGSTOP)
        time.sleep(1)  # its fetches have been answered, and it sends no others
        etcd.heal()
        wait_for("the claim", lambda: primary.says(f"standby {standby.address} is in sync"), 30)
        primary.proc.send_signal(signal.SIGSTOP)
        standby.proc.send_signal(signal.SIGCONT)
        wait_for("the takeover", lambda: standby.replication().get("role") == "primary", 20)
    finally:
        etcd.heal()
        kill(primary, standby)


def test_a_standby_that_cannot_write_the_term_that_it_has_claimed_says_so(start, etcd):
    pair, counter = start(etcd)
    (pair.standby.data / "TERMS.tmp").mkdir()  # as a full disk refuses it
    kill(pair.primary)
    says = f"{pair.primary.address} is silent, and this standby does not take over: cannot write: "
    wait_for("the reason", lambda: says in pair.standby.psctl("why").stdout, 30)
    time.sleep(8)
    assert says in pair.standby.psctl("why").stdout
    assert not pair.standby.says("failovers in ten minutes"), pair.standby.log.read_text()  # it is one
    (pair.standby.data / "TERMS.tmp").rmdir()
    await_takeover(pair)
    rejoin(pair)
    counter.check()


def test_a_standby_whose_claim_waits_for_etcd_says_so(start, etcd):
    pair, counter = start(etcd)
    etcd.signal(signal.SIGSTOP, 0)
    kill(pair.primary)
    wait_for("the wait", lambda: "; it becomes the primary: the coordination service has to say who is the primary" in pair.standby.psctl("why").stdout, 30)
    etcd.heal()
    await_takeover(pair)
    counter.check()


def test_a_second_promotion_is_refused_and_the_first_one_goes_on(start, etcd):
    pair, counter = start(etcd, "--failover-after", "1h")
    pair.primary.proc.send_signal(signal.SIGSTOP)
    etcd.signal(signal.SIGSTOP, 0)
    first = subprocess.Popen([BIN / "psctl", "promote", "--the-other-is-dead", "--server", pair.standby.address],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for("the promotion", lambda: pair.standby.replication().get("state") == "promoting", 30)
    refused = pair.standby.psctl("promote", "--the-other-is-dead")
    assert refused.returncode == 1 and "one is under way" in refused.stderr, refused
    assert first.poll() is None
    etcd.heal()
    assert "is the primary now" in first.communicate(timeout=60)[0]
    assert first.returncode == 0
    pair.primary.proc.send_signal(signal.SIGCONT)
    assert pair.primary.proc.wait(60) == 3
    counter.check()


def test_a_promotion_without_etcd_is_refused_at_once_and_pushes_go_on(start, etcd):
    """Its primary lives. Once etcd is back it is done."""
    pair, counter = start(etcd)
    etcd.signal(signal.SIGSTOP, 0)
    wait_for("a word of it", lambda: pair.standby.says("the service does not answer"), 60)
    refused = pair.standby.psctl("promote", "--the-other-is-dead")
    assert refused.returncode == 1 and "the coordination service does not answer" in refused.stderr, refused
    counter.push_on()
    assert pair.standby.replication()["in_sync"]
    etcd.heal()
    wait_for("its return", lambda: pair.standby.says("the service answers again"), 60)
    promoted = pair.standby.psctl("promote", "--the-other-is-dead")
    assert promoted.returncode == 0, promoted
    assert pair.primary.proc.wait(60) == 3
    counter.check()


def test_of_a_promotion_and_its_primarys_claim_one_is_made_and_both_members_say_which(start, etcd):
    """etcd stops before the promotion, and neither of them has noticed."""
    pair, counter = start(etcd)
    etcd.signal(signal.SIGSTOP, 0)
    asked = subprocess.Popen([BIN / "psctl", "promote", "--the-other-is-dead", "--server", pair.standby.address],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for("the primary's claim", lambda: asked.poll() is not None or "has noted whether standby" in pair.primary.psctl("why").stdout, 60)
    etcd.heal()
    said = asked.communicate(timeout=60)[1]
    if asked.returncode == 0:
        assert pair.primary.proc.wait(60) == 3
    else:
        assert f"{pair.primary.address} is still the primary" in said or "does not answer" in said, said
        if "is still the primary" in said:
            assert pair.standby.says(f"does not become the primary: promote: {pair.primary.address} is still the primary")
        pair.await_in_sync()
    counter.check()


def test_of_two_psd_of_one_name_and_history_the_one_with_the_greater_term_serves(etcd, tmp_path):
    """As of a virtual machine that is copied while it runs."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    first = Member(tmp_path / "a", free_ports(1)[0], "--shards", "1", "--coord", etcd.url(), "--advertise", address)
    first.start()
    first.await_ready()
    second = Member(tmp_path / "b", free_ports(1)[0], *first.flags)
    shutil.copytree(first.data, second.data, ignore=shutil.ignore_patterns("*.tmp"))
    second.start()
    second.await_ready()
    assert first.proc.wait(60) == 3
    assert first.says("another psd with this one's name")
    second.proc.kill()
    second.proc.wait()


def test_a_standby_that_stood_still_itself_does_not_take_over(start, etcd):
    """For longer than --failover-after, and not so long that its primary gives it up."""
    pair, counter = start(etcd, "--standby-patience", "5s")
    for _ in range(3):
        pair.standby.proc.send_signal(signal.SIGSTOP)
        time.sleep(1)  # its pause is the case
        pair.standby.proc.send_signal(signal.SIGCONT)
        pushed = counter.ask("go")["pushed"]
        wait_for("pushes", lambda n=pushed: counter.ask("go")["pushed"] > n + 20, 30)
    assert pair.primary.replication()["role"] == "primary" and not pair.standby.says("takes over")
    counter.check()


def run(program, *words):
    return subprocess.run([BIN / program, *words], capture_output=True, text=True, timeout=60, check=False)


def test_programs_find_the_nodes_by_etcd(tmp_path, etcd):
    """psctl, psbench, psworker and the Python package are given etcd's address alone, and a job goes on through a failover."""
    url = etcd.url()
    missing = run("psctl", "cluster", "--coord", url)
    assert missing.returncode == 1 and "no psd has served under this cluster's name" in missing.stderr, missing
    pair = CountedPair(tmp_path / "pair", "--coord", url, servers=url)
    try:
        group = json.loads(run("psctl", "cluster", "--coord", url, "-o", "json").stdout)["groups"][0]
        assert (group["primary"], group["standby"], group["in_sync"]) == (pair.primary.address, pair.standby.address, True)
        assert run("psctl", "cluster", "--server", pair.standby.address).stdout.count(pair.standby.address) == 1
        assert pair.primary.address in run("psctl", "status", "--coord", url).stdout
        bench = run("psbench", "push", "--server", url, "--rows", "4000", "--keys-per-request", "100", "--seconds", "0.2", "--warmup", "0")
        assert bench.returncode == 0, bench.stderr
        worker = psworker("train", "--data", synth(tmp_path / "log.tsv", 4000), "--servers", url, "--format", "criteo", "--job", "j",
                          "--mode", "async", "--bottom", "32", "--top", "32", "--dim", "8", "--batch", "64", "--epochs", "30", "--json", "-", "--progress-every", "20ms")
        assert worker.stdout.readline()
        kill(pair.primary)
        await_takeover(pair)
        finish(worker)
        said = run("psctl", "cluster", "--coord", url)
        assert said.returncode == 1 and f"{pair.standby.address} does not answer" in said.stdout, said
        pair.counter.check()
        pair.counter.close()
        pair.counter = Counter(tmp_path, url, "async")  # the new primary first
        pair.counter.push_on()
    finally:
        pair.end()


def test_a_psd_with_the_name_of_another_cluster_keeps_its_data(tmp_path, etcd):
    """It does not serve, says why, and goes on under its own name."""
    urls = [etcd.url(), etcd.url()]
    members = [Member(tmp_path / name, port, "--shards", "2", "--durability", "fsync") for name, port in zip("ab", free_ports(2))]
    try:
        for member, url in zip(members, urls):
            member.start("--coord", url)
            member.await_ready()
            counter = Counter(member.log.parent, member.address, "async")
            counter.push_on()
            counter.check()
        stranger = members[1]
        kill(stranger)
        stranger.start("--coord", urls[0])
        wait_for("the sentence", lambda: "is the name behind" in stranger.psctl("why").stdout, 30)
        assert not stranger.status()["ready"]
        assert stranger.psctl("promote", "--accept-loss").returncode == 1
        kill(stranger)
        stranger.start("--coord", urls[1])
        wait_for("its rows", lambda: stranger.status().get("totals", {}).get("rows") == 64, 30)
        kill(stranger)
        stranger.flags = ("--shards", "4")
        stranger.start("--coord", urls[0], "--data-dir", tmp_path / "new")
        wait_for("the sentence", lambda: "1 node of 2 shards, and this psd is of 1 node of 4" in stranger.psctl("why").stdout, 30)
        assert members[0].status()["ready"]
    finally:
        kill(*members)


def test_a_new_standbys_place_in_the_cluster_is_what_its_primary_says(tmp_path, etcd):
    """Before that it is a node alone, which is no other cluster: its log has no error about etcd's name."""
    url, ports = etcd.url(), free_ports(3)
    nodes = ",".join(f"127.0.0.1:{port}" for port in ports[:2])
    members = [Member(tmp_path / str(i), port, "--coord", url, "--shards", "1", "--cluster", nodes, "--node", str(i)) for i, port in enumerate(ports[:2])]
    standby = Member(tmp_path / "standby", ports[2], "--coord", url)
    try:
        for member in members:
            member.start()
            member.await_ready()
        standby.start("--standby", members[1].address)
        wait_for("a standby in sync", lambda: members[1].says(f"standby {standby.address} is in sync"), 30)
        assert "the cluster of this name" not in standby.log.read_text(), standby.log.read_text()
        kill(members[1])
        wait_for("the takeover", lambda: standby.says("psd ready: "), 30)
    finally:
        kill(*(m for m in (*members, standby) if m.proc))


def test_etcd_that_asks_for_certificates_and_a_password(tmp_path):
    etcd = Etcd(tmp_path, guarded=True)
    url, pair = etcd.url(), None
    try:
        pair = CountedPair(tmp_path / "pair", "--coord", url, *etcd.flags())
        pair.counter.push_on()
        kill(pair.primary)
        await_takeover(pair)
        assert pair.primary.address in run("psctl", "cluster", "--coord", url, *etcd.flags()).stdout
        refused = run("psctl", "cluster", "--coord", url, "--timeout", "500ms")
        assert refused.returncode == 1 and "does it want TLS (coord-ca)" in refused.stderr, refused
        access = {name.replace("-", "_"): str(value) for name, value in etcd.access().items()}
        found = subprocess.run([sys.executable, "-c", f"import psd; print(psd.connect('{url}', reader=True, **{access!r}).url)"], text=True,
                               stdout=subprocess.PIPE, timeout=60, check=False, env=psd_environment())
        assert found.stdout == f"psd://{pair.primary.address}\n", found
        pair.counter.check()
    finally:
        if pair:
            pair.end()
        etcd.end()


def test_a_directory_that_is_older_than_the_claim_serves_with_accept_loss_alone(etcd, tmp_path):
    """A backup that was put back: it lacks what its successor has acknowledged."""
    member = Member(tmp_path / "a", free_ports(1)[0], "--shards", "1", "--coord", etcd.url(), "--durability", "fsync")
    for n in range(2):
        member.start()
        wait_for("psd's start", lambda n=n: member.log.read_text().count("psd ready: ") > n)
        member.proc.kill()
        member.proc.wait()
        if not n:
            shutil.copytree(member.data, tmp_path / "backup")
    shutil.rmtree(member.data)
    shutil.move(tmp_path / "backup", member.data)
    member.start()
    wait_for("a refusal", lambda: member.says("has not the group's data"))
    assert "standby: none; its data directory has not the group's data, and there is no standby: workers are refused; since" \
        in member.psctl("why").stdout
    refused = member.psctl("promote")
    assert refused.returncode == 1 and "and there is no standby: with --accept-loss" in refused.stderr, refused
    assert member.psctl("promote", "--accept-loss").returncode == 0
    wait_for("psd's start", lambda: member.log.read_text().count("psd ready: ") == 3)
    member.proc.kill()
    member.proc.wait()


@pytest.mark.parametrize("in_sync, who", [(True, "which standby {} has: workers are refused until that is the primary"),
                                          (False, "and standby {} may not have all of it: workers are refused; since")])
def test_a_directory_that_is_not_the_groups_says_who_has_its_data(start, etcd, in_sync, who):
    pair, counter = start(etcd)
    counter.check()
    if in_sync:
        kill(pair.primary, pair.standby)
    else:
        kill(pair.standby)
        wait_for("a primary alone", lambda: not pair.primary.replication()["in_sync"], 30)
        kill(pair.primary)
    shutil.rmtree(pair.primary.data)
    pair.primary.start()
    who = who.format(pair.standby.address)
    wait_for("a sentence", lambda: f"its data directory has not the group's data, {who}" in pair.primary.psctl("why").stdout, 15)
    refused = pair.primary.psctl("promote")
    assert refused.returncode == 1 and who.split(": workers")[0] in refused.stderr, refused

"""etcd that is emptied, or restored from a copy: the primary claims again, its standby takes over as before, and each push that was
acknowledged is applied once. Who may have been replaced claims nothing."""

import json
import signal
import time

from etcd import SlowWay
from etcd_pair import await_takeover, kill, rejoin
from training import wait_for

LOST = "the coordination service has lost this psd's claim"
AGAIN = "the claim of this psd was lost, and is there again"


def claim(etcd):
    """Of the last pair, or None."""
    said = etcd.get(f"/psd/t{etcd.n_clusters}/groups/0")
    return said and json.loads(said)


def await_claim(pair, etcd):
    """The primary's, with its standby in sync."""
    def is_there():
        said = claim(etcd)
        return said and said["primary"] == pair.primary.address and said["standby"] == pair.standby.address and said["in_sync"] == "yes"
    wait_for("the claim", is_there, 30)


def check_that_a_takeover_works(pair, counter):
    kill(pair.primary)
    await_takeover(pair)
    rejoin(pair)
    counter.check()


def test_a_primary_whose_claim_is_deleted_claims_again(start, etcd):
    pair, counter = start(etcd)
    term = claim(etcd)["term"]
    etcd.delete("/psd/")
    await_claim(pair, etcd)
    assert claim(etcd)["term"] == term and pair.primary.says(AGAIN) and not pair.standby.says("takes over")
    check_that_a_takeover_works(pair, counter)


def test_an_etcd_that_comes_back_empty_is_noticed(start, etcd):
    pair, counter = start(etcd)
    etcd.restore()
    await_claim(pair, etcd)
    for member in (pair.primary, pair.standby):
        wait_for("its word", lambda m=member: m.says("coord: etcd was restored or replaced: "), 30)
    check_that_a_takeover_works(pair, counter)


def test_an_etcd_that_is_restored_from_before_a_failover_ends_nobody(start, etcd):
    """Its claim names the standby of now as the primary. The pair is whole: so the primary claims over it, and both go on."""
    pair, counter = start(etcd)
    copy = etcd.copy()
    kill(pair.primary)
    await_takeover(pair)
    rejoin(pair)
    etcd.restore(copy)
    await_claim(pair, etcd)
    assert pair.primary.proc.poll() is None and pair.standby.proc.poll() is None
    check_that_a_takeover_works(pair, counter)


def test_a_standby_does_not_take_over_by_a_claim_of_a_restored_etcd(start, etcd):
    """The copy says that the standby is in sync. Since then the primary has gone on alone, and the standby does not know."""
    pair, counter = start(etcd, "--durability", "fsync")
    copy = etcd.copy()
    kill(pair.standby)
    pair.primary.await_alone()
    pair.standby.start("--standby", pair.primary.address)
    pair.await_in_sync()
    await_claim(pair, etcd)
    pair.standby.proc.send_signal(signal.SIGSTOP)
    wait_for("its claim", lambda: claim(etcd)["in_sync"] == "no", 30)
    counter.ask("go")
    kill(pair.primary)
    etcd.restore(copy)
    pair.standby.proc.send_signal(signal.SIGCONT)
    wait_for("the reason", lambda: "does not take over: " in pair.standby.psctl("why").stdout, 30)
    refused = pair.standby.psctl("promote", "--the-other-is-dead")
    assert refused.returncode == 1 and "--accept-loss" in refused.stderr, refused
    assert not pair.standby.says("this psd is the primary now")
    pair.primary.start()
    pair.await_in_sync()
    counter.check()


def test_a_person_promotes_the_standby_of_a_primary_that_died_with_its_claim(start, etcd):
    pair, counter = start(etcd, "--durability", "fsync", "--standby-patience", "60s")  # it stands still for less
    for member in (pair.primary, pair.standby):
        member.proc.send_signal(signal.SIGSTOP)
    etcd.restore()
    kill(pair.primary)
    pair.standby.proc.send_signal(signal.SIGCONT)
    reason = f"{pair.primary.address} is silent, and this standby does not take over: nobody has claimed to be the primary (psctl promote)"
    wait_for("the reason", lambda: reason in pair.standby.psctl("why").stdout, 30)
    said = pair.standby.psctl("promote")
    assert said.returncode == 0, said
    pair.primary, pair.standby = pair.standby, pair.primary
    rejoin(pair)
    await_claim(pair, etcd)
    counter.check()


def test_a_primary_that_was_replaced_before_etcd_was_emptied_acknowledges_nothing(start, etcd):
    """It stood still, cut off from etcd, while its standby took over, and etcd forgets that: it must neither claim nor go on alone."""
    way = SlowWay(etcd.ports[0])
    pair, counter = start(etcd, url=etcd.url([way.port]))
    kill(pair.standby)
    pair.standby.flags = [word.replace(str(way.port), str(etcd.ports[0])) for word in pair.standby.flags]
    rejoin(pair)
    await_claim(pair, etcd)
    pair.primary.proc.send_signal(signal.SIGSTOP)
    way.delay_s = 1000.0
    await_takeover(pair)
    way.delay_s = 0.0
    pair.primary.proc.send_signal(signal.SIGSTOP)  # before it can claim again
    etcd.restore()
    pair.standby.proc.send_signal(signal.SIGCONT)
    wait_for("its word", lambda: pair.standby.says("coord: etcd was restored or replaced: "), 30)
    time.sleep(4)  # longer than its patience with a standby
    assert claim(etcd) is None and not pair.standby.says(AGAIN)
    assert pair.standby.log.read_text().count("is out of sync") == 1  # of before, when its standby was restarted
    assert LOST in pair.standby.psctl("why").stdout
    pair.primary.proc.send_signal(signal.SIGCONT)
    assert pair.standby.proc.wait(60) == 3
    rejoin(pair)
    counter.check()
    way.close()


def test_a_standby_that_is_lost_with_the_claim_holds_replies_up_until_it_is_back(start, etcd):
    pair, counter = start(etcd)
    pair.standby.proc.send_signal(signal.SIGSTOP)
    etcd.delete("/psd/")
    wait_for("the reason", lambda: LOST in pair.primary.psctl("why").stdout, 30)
    assert pair.standby.address in pair.primary.psctl("why").stdout
    kill(pair.standby)
    pair.standby.start("--standby", pair.primary.address)
    await_claim(pair, etcd)
    counter.check()


def test_a_standby_that_asked_just_before_the_loss_was_seen_asks_again(start, etcd):
    """Its question lies in the primary's socket when that one wakes up, so it is read first, and proves nothing."""
    pair, counter = start(etcd, "--standby-patience", "20s")
    kill(pair.standby)
    pair.primary.proc.send_signal(signal.SIGSTOP)
    etcd.delete("/psd/")
    pair.standby.start("--standby", pair.primary.address)
    wait_for("its start", lambda: pair.standby.log.read_text().count("listening on") >= 3, 30)
    time.sleep(0.5)  # its question is sent
    pair.primary.proc.send_signal(signal.SIGCONT)
    began = time.monotonic()
    await_claim(pair, etcd)
    assert time.monotonic() - began < 15  # not when its question has timed out
    counter.check()


def test_a_primary_that_comes_back_to_an_empty_etcd_awaits_who_has_replaced_it(start, etcd):
    """With fsync its log has all that it acknowledged itself. What the other one has acknowledged since, no claim tells any more."""
    pair, counter = start(etcd, "--durability", "fsync")
    pair.primary.proc.send_signal(signal.SIGSTOP)
    await_takeover(pair)
    counter.ask("go")
    kill(pair.standby, pair.primary)
    etcd.restore()
    pair.standby.start()
    wait_for("the reason", lambda: "may be the primary by now" in pair.standby.psctl("why").stdout, 30)
    time.sleep(6)  # longer than it waits for one that has not taken over
    assert pair.standby.log.read_text().count("this psd is the primary, of term") == 1  # of its first start
    pair.primary.start()
    pair.await_in_sync()
    counter.check()

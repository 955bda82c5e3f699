"""A primary and its standby, which is the test's own: what it gets, what replies wait for, and who is the primary after a restart."""

import errno
import os
import pathlib
import re
import socket
import subprocess
import threading

import pytest

import wire
from conftest import BIN, Daemon, eventually
from fake_standby import COPY, GO_ON, TAKE_OVER, Peer, Refused, Standby
from training import free_ports

ARGS = ["--shards", "2", "--memory-max", "64M"]


def standby_of(psd):
    return psd.admin("status")["replication"]


def follow(psd, **more):
    standby = Standby(psd, **more)
    assert standby.follow() == COPY
    standby.copied = standby.files()
    assert standby.follow() == GO_ON
    standby.start()
    return standby


def goes_on(standby):
    """False while another FOLLOW is being answered: a standby asks again."""
    try:
        return standby.follow() == GO_ON
    except Refused as e:
        assert e.status == -errno.EBUSY
        return False


def await_sync(psd):
    eventually(lambda: standby_of(psd)["in_sync"])


class Worker:
    """One connection to each shard; pushes are numbered."""

    def __init__(self, psd, table="t"):
        self.clients = [psd.connect(i) for i in range(psd.n_shards)]
        self.tables = [c.table(name=table, dim=4).number(3) for c in self.clients]
        self.keys = [wire.keys_of(i, psd.n_shards, 3) for i in range(psd.n_shards)]
        answers = [c.join(incarnation=1) for c in self.clients]
        assert all(a.status == 0 for a in answers), answers[0].text
        self.seq = max(a.number(3) for a in answers)

    def push(self, n=1):
        for _ in range(n):
            self.seq += 1
            for client, table, keys in zip(self.clients, self.tables, self.keys):
                answer = client.push(keys, wire.floats(*range(12)), table=table, seq=self.seq, clock=self.seq - 1)
                assert answer.status == 0, answer.text

    def close(self):
        for client in self.clients:
            client.close()


def test_a_standby_gets_every_record_once_and_in_order(start_psd):
    psd = start_psd(*ARGS)
    worker = Worker(psd)
    worker.push(20)
    standby = follow(psd)
    assert standby.copied == {}  # there is no checkpoint yet
    worker.push(30)
    eventually(lambda: standby_of(psd)["in_sync"] and standby_of(psd)["standby_lag_records"] == 0)
    for i in range(psd.n_shards):
        eventually(lambda i=i: standby.last()[i] == psd.stats()["shards"][i]["log"]["records"] >= 50)
    worker.close()
    standby.close()
    assert not standby.failures


def test_a_checkpoint_is_copied_with_what_it_needs(start_psd):
    psd = start_psd(*ARGS)
    worker = Worker(psd)
    worker.push(5)
    psd.admin("checkpoint")
    worker.push(5)
    psd.admin("checkpoint")
    standby = Standby(psd)
    assert standby.follow() == COPY
    files = standby.files()
    names = list(files)
    assert names[-1] == "checkpoints/00000000000000000002/MANIFEST"
    assert len(names) == 6
    data = next(psd.process.args[i + 1] for i, a in enumerate(psd.process.args) if a == "--data-dir")
    for name, content in files.items():
        assert content == open(f"{data}/{name}", "rb").read()
    standby.close()
    worker.close()


def test_a_standby_that_stops_in_the_middle_of_its_copy_is_named(start_psd):
    psd = start_psd(*ARGS)
    psd.admin("checkpoint")
    standby = Standby(psd, name="slow-1")
    assert standby.follow() == COPY
    eventually(lambda: "standby slow-1 has asked for nothing for" in standby_of(psd)["note"], 30)
    assert standby.files()  # it goes on
    assert not standby_of(psd)["note"]
    standby.close()


def test_replies_wait_for_the_standby_while_it_is_in_sync_and_for_its_patience(start_psd):
    psd = start_psd(*ARGS, "--standby-patience", "1s")
    worker = Worker(psd)
    standby = follow(psd)
    await_sync(psd)
    standby.stop()  # it is silent, and its connections are open
    waits = []
    pusher = threading.Thread(target=worker.push)
    pusher.start()
    eventually(lambda: waits.extend(w for w in psd.admin("why")["waits"] if w["what"] == "acknowledgement") or waits)
    assert "standby" in waits[0]["why"]
    pusher.join()
    assert not standby_of(psd)["in_sync"]
    standby.close()
    worker.push()
    worker.close()


def test_a_standby_that_leaves_is_out_of_sync_and_may_come_back(start_psd):
    psd = start_psd(*ARGS, "--standby-patience", "1h")
    worker = Worker(psd)
    standby = follow(psd)
    await_sync(psd)
    standby.close()
    eventually(lambda: not standby_of(psd)["in_sync"])
    worker.push(10)
    assert standby.follow() == GO_ON  # what came meanwhile is in the log's segments
    standby.start()
    await_sync(psd)
    worker.push(3)
    worker.close()
    standby.close()
    assert not standby.failures


def test_with_disk_a_standby_is_not_in_sync_before_it_has_written_what_was_acknowledged(start_psd):
    psd = start_psd(*ARGS, "--standby-ack", "disk", "--standby-patience", "500ms")
    worker = Worker(psd)
    standby = Standby(psd)
    assert standby.follow() == COPY
    standby.files()
    assert standby.follow() == GO_ON
    standby.writes = False
    standby.start()
    worker.push(10)
    eventually(lambda: psd.log().count("is out of sync") >= 2 or " is in sync" in psd.log())
    assert " is in sync" not in psd.log()
    standby.writes = True
    await_sync(psd)
    worker.push(3)
    worker.close()
    standby.close()


# --- two of one address ---


def test_a_second_standby_of_the_same_address_is_refused_while_the_first_one_goes_on(start_psd):
    psd = start_psd(*ARGS)
    standby = follow(psd)
    await_sync(psd)
    other = Standby(psd, settings=standby.settings)
    with pytest.raises(Refused, match="does another standby have the same --advertise"):
        other.follow()
    other.close()
    assert standby_of(psd)["in_sync"] and not standby.failures
    standby.close()


def test_a_follow_that_goes_before_its_answer_keeps_no_standby_out(start_psd):
    psd = start_psd(*ARGS)
    standby = follow(psd)
    await_sync(psd)
    standby.main.close()  # its fetches go on: another one of its address may follow
    standby.main = None
    other = Standby(psd, settings=standby.settings)
    other.connect()
    other.main.send(wire.frame("follow", other.follow_head(other.settings)))
    other.close()
    eventually(lambda: len(standby.failures) == psd.n_shards)  # it is noticed only then
    standby.close()
    eventually(lambda: goes_on(standby))
    standby.start()
    eventually(lambda: psd.log().count("is in sync") == 2)
    standby.close()


def test_a_copy_that_another_one_ends_gets_its_answer(start_psd):
    psd = start_psd(*ARGS)
    worker = Worker(psd)
    worker.push(200)
    psd.admin("checkpoint")
    first = Standby(psd)
    assert first.follow() == COPY
    name = next(line.split(" ")[1] for line in first.main.ask("file", wire.head((1, ""))).body.decode().splitlines())
    for n in range(20):
        second = Standby(psd, address=f"127.0.0.1:{10 + n}", settings=first.settings)  # of its own: copies of one in a row wait
        second.connect()
        first.main.send(wire.frame("file", wire.head((1, name), (2, 0), (3, 1 << 16)), request_id=77))
        assert second.follow() == COPY
        first.main.wait(77)
        assert "FOLLOW first" in first.main.ask("file", wire.head((1, ""))).text
        first.close()
        first = second
    first.close()
    worker.close()


# --- it is asked whether it is the primary ---


def lose(standby):
    """Its connections end at once."""
    standby.stops.set()
    for client in standby.clients:
        client.socket.shutdown(socket.SHUT_RDWR)
    standby.close()
    standby.failures.clear()


@pytest.fixture
def asked(tmp_path):
    """asked(answers, flags): a primary, its standby in sync, and who answers in its place; a psd that may end by itself."""
    made = []

    def start(answers, *flags):
        address = f"127.0.0.1:{free_ports(1)[0]}"
        psd = Daemon(["--listen", f"127.0.0.1:{free_ports(1)[0]}", "--http", "127.0.0.1:0", "--data-dir", str(tmp_path / "d"), *ARGS,
                      *flags], tmp_path)
        made.append(psd)
        standby = follow(psd, address=address)
        is_known = []
        peer = Peer(address, lambda n: answers(n, psd, standby) if is_known else (1, f"127.0.0.1:{psd.port}"))
        made.append(peer)
        await_sync(psd)
        eventually(lambda: peer.n_answered)  # psd asks whether it is there; what is asked from here on counts
        peer.n = 0
        is_known.append(True)
        return psd, standby, peer

    yield start
    for one in made:
        one.kill() if isinstance(one, Daemon) and one.process.poll() is None else None
        one.close() if isinstance(one, Peer) else None


def assert_deposed(psd, standby, n_alone):
    assert psd.process.wait(60) == 3, psd.log()
    assert f"{standby.address} is the primary" in psd.log()
    assert psd.log().count("is out of sync") == n_alone, psd.log()


def test_a_standby_that_was_asked_before_it_came_back_is_asked_again(asked):
    def answers(n, psd, standby):
        return (1, f"127.0.0.1:{psd.port}") if n == 1 else (1 << 17, standby.address)

    psd, standby, _ = asked(answers, "--standby-patience", "20s")
    lose(standby)
    eventually(lambda: "is out of sync" in psd.log())
    assert standby.follow() == GO_ON
    standby.start()
    eventually(lambda: psd.log().count("is in sync") == 2)
    lose(standby)
    assert_deposed(psd, standby, 1)


def test_a_standby_whose_connections_end_after_it_was_asked_is_asked_again(asked):
    def answers(n, psd, standby):
        if n > 1:
            return 1 << 17, standby.address
        lose(standby)
        return 1, f"127.0.0.1:{psd.port}"

    psd, standby, _ = asked(answers, "--standby-patience", "2s")
    standby.stop()  # silent
    assert_deposed(psd, standby, 0)


def test_replies_wait_for_a_standby_that_becomes_the_primary(asked):
    """One that has sealed its shards takes over, however long its disk takes for that."""
    def answers(n, psd, standby):
        return (1, "") if n < 12 else (1 << 17, standby.address)

    psd, standby, peer = asked(answers, "--standby-patience", "500ms")
    lose(standby)
    eventually(lambda: peer.n >= 2)
    said = []
    eventually(lambda: said.extend(w["why"] for w in psd.admin("why")["waits"] if w["what"] == "standby") or said)
    assert said[0] == f"standby {standby.address} is becoming the primary: replies wait until it is, or says that it is not", said
    eventually(lambda: peer.n >= 5)
    assert "is becoming the primary: replies wait" in psd.log()
    assert_deposed(psd, standby, 0)


def test_a_standby_that_gives_its_promotion_up_is_followed_again(asked):
    def answers(n, psd, _):
        return (1, "") if n < 4 else (1, f"127.0.0.1:{psd.port}")

    psd, standby, peer = asked(answers, "--standby-patience", "500ms")
    lose(standby)
    eventually(lambda: peer.n >= 2)
    assert standby.follow() == GO_ON
    standby.start()
    eventually(lambda: psd.log().count("is in sync") == 2)
    standby.close()


# --- a restart ---


def restart(psd, tmp_path, data, *more):
    """It is not ready yet, and has said why."""
    port = free_ports(1)[0]
    again = Daemon(["--listen", f"127.0.0.1:{port}", "--http", "127.0.0.1:0", *ARGS, *data, *more], tmp_path, awaited=False)
    again.port, again.n_shards = port, psd.n_shards
    eventually(lambda: any("workers are refused until it follows" in line for line in again.lines))
    return again


def kill(psd, standby):
    standby.stops.set()
    psd.kill()
    standby.close()
    standby.failures.clear()


@pytest.mark.parametrize("durability, doubt", [("fsync", "be the primary by now"), ("async", "have more than this node's log")])
def test_a_primary_whose_standby_was_in_sync_waits_for_it_after_a_restart(start_psd, tmp_path, durability, doubt):
    data = ["--data-dir", str(tmp_path / "d"), "--durability", durability]
    psd = start_psd(*ARGS, *data)
    worker = Worker(psd)
    standby = follow(psd)
    await_sync(psd)
    worker.push(10)
    psd.admin("checkpoint")  # the log is on the disk up to here
    kill(psd, standby)
    again = restart(psd, tmp_path, data)
    with wire.Wire(again.port) as client:
        refused = client.hello()
        assert refused.status == wire.STATUS["ESTOPPING"] and f"standby 127.0.0.1:9 may {doubt};" in refused.text
    assert [(w["what"], w["why"]) for w in again.admin("why")["waits"]] \
        == [("standby", f"standby 127.0.0.1:9 may {doubt}: workers are refused until it follows")]
    with wire.Wire(again.port) as client:
        client.hello(role="operator", shard=wire.LISTENER)
        refused = client.admin("promote", "")
        assert refused.status == -errno.EPERM and f"standby 127.0.0.1:9 may {doubt}: with --accept-loss" in refused.text
    standby.psd = again
    assert standby.follow() == GO_ON
    again.await_ready()
    standby.start()
    await_sync(again)
    assert 1 < standby_of(again)["term"] <= 1 + 65536
    worker = Worker(again)
    assert worker.seq == 10
    worker.push()
    worker.close()
    standby.close()
    assert again.stop() == 0


@pytest.mark.parametrize("then", ["async", "fsync"])
def test_a_standby_that_has_more_takes_over(start_psd, tmp_path, then):
    """One that dies before it has noted so is told again: else both would be standbys. Under fsync a log has all that was
    acknowledged, but not that of a run before it."""
    data = ["--data-dir", str(tmp_path / "d"), "--durability"]
    psd = start_psd(*ARGS, *data, "async")
    worker = Worker(psd)
    worker.push()
    standby = follow(psd)
    await_sync(psd)
    kill(psd, standby)
    again = restart(psd, tmp_path, [*data, then])
    standby.psd = again
    for _ in range(2):
        assert standby.follow(last=[n + 5 for n in standby.last()]) == TAKE_OVER
        eventually(lambda: "becomes the primary" in again.log())
        assert [w["what"] for w in again.admin("why")["waits"]] == ["standby"]
        standby.close()
        standby.main = None
    with wire.Wire(again.port) as client:
        assert client.hello().status == wire.STATUS["ESTOPPING"]
    assert again.stop() == 0


def test_a_promotion_before_etcd_has_said_who_is_the_primary_is_refused(tmp_path):
    port, nobody = free_ports(2)
    psd = Daemon(["--listen", f"127.0.0.1:{port}", "--http", "127.0.0.1:0", "--data-dir", str(tmp_path / "d"), *ARGS,
                  "--coord", f"etcd://127.0.0.1:{nobody}/prod"], tmp_path, awaited=False)
    eventually(lambda: "coord: the service has not answered yet" in psd.log())

    def order():
        with wire.Wire(port) as client:
            client.hello(role="operator", shard=wire.LISTENER)
            refused = client.admin("promote", "accept-loss")
            assert refused.status == -11, refused.text
            return refused.text

    eventually(lambda: "has to say first who is the primary" in order())
    assert psd.stop() == 0


def test_a_fetch_of_a_greater_term_deposes_the_primary(tmp_path):
    psd = Daemon(["--listen", f"127.0.0.1:{free_ports(1)[0]}", "--http", "127.0.0.1:0", "--data-dir", str(tmp_path / "d"), *ARGS], tmp_path)
    standby = follow(psd)
    await_sync(psd)
    standby.stop()
    with pytest.raises(Refused) as refused:
        standby.fetch(standby.clients[0], 0, term=65536)
    assert refused.value.status == -10028
    assert psd.process.wait(60) == 3
    assert "65536" in psd.log()
    standby.close()


def test_who_may_not_follow(start_psd):
    psd = start_psd(*ARGS)
    standby = follow(psd)
    other = Standby(psd, name="standby-2", address="127.0.0.1:10", settings=standby.settings)
    with pytest.raises(Refused, match="one at a time"):
        other.follow()
    client = other.shard(0)
    with pytest.raises(Refused, match="standby-2 does not|does not follow"):
        other.fetch(client, 0, term=standby.term)
    other.address = standby.address
    other.memory = 1 << 20
    with pytest.raises(Refused, match="--memory-max"):
        other.follow()
    other.memory = 1 << 50
    other.settings = standby.settings.replace("lease=10000ms", "lease=9000ms")
    with pytest.raises(Refused, match="lease=9000ms, the primary lease=10000ms"):
        other.follow()
    other.settings, other.address = standby.settings, f"127.0.0.1:{psd.port}"
    with pytest.raises(Refused, match="--advertise of its own"):
        other.follow()
    other.close()
    await_sync(psd)
    standby.close()


def test_a_standby_without_a_hello_of_its_role_gets_nothing(start_psd):
    psd = start_psd(*ARGS)
    with psd.connect(0) as client:
        assert client.ask("fetch", wire.head((1, 1), (2, 1))).status == -1
    with psd.connect(0, role="standby") as client:
        assert client.ask("fetch", wire.head((1, 1), (2, 1))).status == -116
    with psd.connect(wire.LISTENER, "standby") as client:
        assert client.ask("file", wire.head((1, ""))).status == -1
        assert "FOLLOW first" in client.ask("file", wire.head((1, "../../etc/passwd"))).text


def test_without_data_dir_there_is_no_standby(start_psd):
    psd = start_psd(*ARGS, data=False)
    with pytest.raises(Refused, match="--data-dir"):
        Standby(psd).follow()
    assert "replication" not in psd.admin("status")


def test_a_follow_whose_terms_cannot_be_written_leaves_no_file_open(start_psd, tmp_path):
    psd = start_psd(*ARGS, "--data-dir", str(tmp_path / "d"))
    psd.admin("checkpoint")
    (tmp_path / "d/TERMS").mkdir()
    standby = Standby(psd)
    with pytest.raises(Refused):
        standby.follow()
    open_files = len(os.listdir(f"/proc/{psd.process.pid}/fd"))
    for _ in range(5):
        with pytest.raises(Refused) as refused:
            standby.follow()
        assert "TERMS" in refused.value.text
    assert len(os.listdir(f"/proc/{psd.process.pid}/fd")) == open_files
    standby.close()


def test_a_standby_that_follows_and_is_not_in_sync_is_not_switched_to(start_psd):
    """It is there, so it is not called gone."""
    psd = start_psd(*ARGS, "--standby-patience", "60s")
    standby = Standby(psd)
    assert standby.follow() == COPY
    assert standby.follow() == GO_ON  # and fetches nothing
    with psd.connect(wire.LISTENER, role="operator") as client:
        refused = client.admin("switch", "0")
    assert refused.status == -errno.ENODATA and "switch: standby 127.0.0.1:9 is not in sync yet" in refused.text, refused.text
    standby.close()


def test_a_new_standby_takes_the_place_of_one_that_is_away_and_that_one_is_refused(start_psd):
    """One at a time: the one before follows once the new one is away, too."""
    psd = start_psd(*ARGS)
    before = follow(psd)
    await_sync(psd)
    before.close()
    eventually(lambda: standby_of(psd)["state"] == "no standby")
    new = follow(psd, name="standby-2", address="127.0.0.1:10")
    await_sync(psd)
    assert standby_of(psd)["peer"] == "127.0.0.1:10"
    with pytest.raises(Refused) as refused:
        before.follow()
    assert refused.value.status == -errno.EBUSY
    assert refused.value.text == "127.0.0.1:10 is the standby, and there is one at a time"
    assert standby_of(psd)["in_sync"] and standby_of(psd)["peer"] == "127.0.0.1:10"
    new.close()
    eventually(lambda: standby_of(psd)["state"] == "no standby")
    eventually(lambda: goes_on(before))
    before.start()
    await_sync(psd)
    assert standby_of(psd)["peer"] == "127.0.0.1:9"
    before.close()


def test_lies_of_a_standby_end_its_connection_and_nothing_else(start_psd):
    psd = start_psd(*ARGS, "--standby-patience", "500ms")
    worker = Worker(psd)
    standby = follow(psd)
    await_sync(psd)
    worker.push(5)
    standby.stop()
    for lie in (lambda last: dict(next_=last + 100), lambda last: dict(next_=1), lambda last: dict(durable=last + 1),
                lambda last: dict(next_=(1 << 64) - 1)):
        with pytest.raises(wire.Closed):
            standby.fetch(standby.clients[0], 0, **lie(standby.last()[0]))
        worker.push()
        standby.close()
        assert standby.follow() == GO_ON
        standby.start()
        await_sync(psd)
        standby.stop()
    client = standby.clients[0]
    for _ in range(4):  # each one ends the wait of the one before
        client.send(wire.frame("fetch", wire.head((1, standby.term), (2, standby.last()[0] + 1), (5, 60000)), request_id=next(client.ids)))
    assert [client.reply().number(5) for _ in range(3)] == [0, 0, 0]
    standby.close()
    worker.push()
    for garbage in (b"PSD1" + bytes(20), wire.frame("follow", b"\xff\xff"), wire.frame("fetch", b"\x01"), wire.frame("push", b""),
                    wire.frame("follow", wire.head((1, 1)), bytes(8 * 3 * 64))):
        for shard in (0, wire.LISTENER):
            with psd.connect(shard, "standby") as client:
                client.send(garbage)
                try:
                    client.reply()  # a refusal
                except wire.Closed:
                    pass
    worker.push()
    worker.close()


def test_a_full_ring_holds_pushes_up_for_the_patience(start_psd):
    psd = start_psd("--shards", "1", "--memory-max", "256M", "--standby-patience", "20s")  # the ring is full before
    standby = follow(psd)
    await_sync(psd)
    bench = subprocess.Popen([str(BIN / "psbench"), "push", "--server", f"127.0.0.1:{psd.port}",
                              "--rows", "2500", "--no-fill", "--dim", "256",
                              "--keys-per-request", "1000", "--connections", "16", "--depth", "8", "--seconds", "24", "--warmup", "0"],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    eventually(lambda: psd.stats()["shards"][0]["log"]["records"] > 20)
    standby.stop()
    eventually(lambda: psd.stats()["shards"][0]["log"]["pushes_waiting"])
    assert standby_of(psd)["in_sync"]
    eventually(lambda: any(w["what"] == "standby behind" for w in psd.admin("why")["waits"]), 5)
    waits = {w["what"]: w for w in psd.admin("why")["waits"]}
    assert waits["standby behind"]["who"] == "pushes, joins and tables of shard 0"
    assert re.match(r"standby .* has not acknowledged the newest 6\d MB: they go on after --standby-patience$",
                    waits["standby behind"]["why"]), waits
    assert not [what for what in waits if "write-ahead log" in what], waits
    assert "write-ahead log's disk" not in psd.log()
    n_held = psd.stats()["shards"][0]["log"]["records"]
    said = bench.communicate()[0]
    assert bench.returncode == 0, said
    assert psd.stats()["shards"][0]["log"]["records"] > n_held  # they went on
    assert not standby_of(psd)["in_sync"]
    standby.close()


def test_a_slow_standby_gets_all_of_it(start_psd):
    psd = start_psd(*ARGS)
    worker = Worker(psd)
    worker.push(50)
    standby = Standby(psd)
    assert standby.follow() == COPY
    assert standby.follow() == GO_ON
    clients = [standby.shard(i) for i in range(psd.n_shards)]
    for i, client in enumerate(clients):
        while standby.last()[i] < 50:
            standby.fetch(client, i, max_bytes=1)  # a record at a time
            worker.push()
    for client in clients:
        client.close()
    worker.close()
    standby.close()


def test_what_the_log_has_lost_is_not_copied_again_and_again(start_psd):
    """A restore point from which the log does not go on is none, until there is another one."""
    psd = start_psd(*ARGS, "--durability", "fsync")
    worker = Worker(psd)
    worker.push(50)
    data = next(psd.process.args[i + 1] for i, a in enumerate(psd.process.args) if a == "--data-dir")
    segment = min(pathlib.Path(data).glob("log/*/shard-000/*.psl"))
    content = segment.read_bytes()
    standby = Standby(psd)
    assert standby.follow() == COPY
    assert standby.follow() == GO_ON
    with open(segment, "r+b") as f:
        f.seek(len(content) // 2)
        f.write(bytes([content[len(content) // 2] ^ 1]))
    client = standby.shard(0)
    with pytest.raises(Refused, match="the log does not have record") as refused:
        while standby.last()[0] < 50:
            standby.fetch(client, 0)
    assert refused.value.status == -61 and 1 < standby.last()[0] < 50
    with pytest.raises(Refused, match="psctl checkpoint") as refused:
        standby.follow()
    assert refused.value.status == -10025
    assert psd.admin("checkpoint")["number"] == 1
    assert standby.follow() == COPY
    client.close()
    worker.close()
    standby.close()

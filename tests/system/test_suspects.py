"""What one worker says of another: a lie about a healthy worker changes nothing, and no wait for a suspect is without an end."""
import json
import time

import pytest

import wire
from training import free_ports, psds, wait_for  # noqa: F401

EFENCED, EDEADLINE, DOUBTED = wire.STATUS["EFENCED"], wire.STATUS["EDEADLINE"], -115
LEASE_S = 3


class Member:
    """A worker of a job on both nodes, each of one shard."""

    def __init__(self, nodes, rank, incarnation=1, relays=1, n_workers=3, name=None):
        self.rank, self.incarnation, self.wires, self.suspects, self.seq = rank, incarnation, [], {}, 0
        for node in nodes:
            client = wire.Wire(int(node.address.rsplit(":", 1)[1]))
            with wire.Wire(int(nodes[0].address.rsplit(":", 1)[1])) as first:
                map_id = first.hello(shard=wire.LISTENER).number(7)
            assert client.hello(map_id=map_id).status == 0
            self.wires.append(client)
            self.joined = client.join(rank=rank, n_workers=n_workers, incarnation=incarnation, mode=wire.BSP, relays=relays,
                                      name=name or f"w{rank}")
            assert self.joined.status == 0, self.joined.text
            assert client.table(name="t", dim=2).status == 0

    def say(self, shard, *suspects):
        """A beat with (rank, incarnation, agreed); the reply's status, and whom the shard suspects."""
        heads = [wire.head((1, rank), (2, incarnation), (4, agreed)) for rank, incarnation, agreed in suspects]
        return self.wires[shard].ask("beat", wire.head((2, heads)))

    def relay(self):
        """As proto/README.md says: what a shard suspects goes to the others, and that all refuse it to all."""
        for shard, client in enumerate(self.wires):
            reply = self.say(shard, *((*key, len(refuse) == len(self.wires)) for key, refuse in self.suspects.items()))
            if reply.status == 0:
                for key in self.suspects:
                    self.suspects[key].add(shard)
            for item in reply.fields.get(4, []):
                head = wire.parse(item)
                self.suspects.setdefault((head.get(1, [0])[0], head[2][0]), set()).add(shard)

    def push(self, value):
        """The same gradient for a key of each shard; the statuses."""
        self.seq += 1
        return [client.push(wire.keys_of(shard, 2, 1), wire.floats(value, value), seq=self.seq, clock=self.seq - 1).status
                for shard, client in enumerate(self.wires)]

    def row(self, shard, clock):
        reply = self.wires[shard].pull(wire.keys_of(shard, 2, 1), clock=clock, deadline_ms=20000)
        assert reply.status == 0, reply.text
        return wire.rows(reply, 2)[0][0]


@pytest.fixture
def start_nodes(psds):
    def start(*flags):
        listen = [f"127.0.0.1:{p}" for p in free_ports(2)]
        return [psds("--shards", 1, "--cluster", ",".join(listen), "--node", i, *flags, listen=listen[i]) for i in range(2)]

    return start


def states(nodes, rank):
    """Of a worker, on each node."""
    return [w["state"] for node in nodes for shard in node.stats()["shards"] for job in shard["jobs"] for w in job["workers"] if w["rank"] == rank]


LIES = {"suspected, at both": (False, (0, 1), 1), "refused by all, at both": (True, (0, 1), 1), "by one that does not relay": (False, (0, 1), 0),
        "refused by all, at one": (True, (0,), 1)}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_a_healthy_worker_changes_nothing(start_nodes, lie):
    agreed, shards, relays = LIES[lie]
    nodes = start_nodes("--lease", f"{LEASE_S}s")
    honest, victim, liar = Member(nodes, 0), Member(nodes, 1), Member(nodes, 2, relays=relays)
    for shard in shards:
        reply = liar.say(shard, (1, 1, agreed))
        assert reply.status == (DOUBTED if relays else 0)
        assert [wire.parse(s)[1] for s in reply.fields.get(5, [])] == [[1]] * relays and ("rank 1" in reply.text) == bool(relays)
        assert liar.say(shard, (1, 1, True)).status == (DOUBTED if relays else 0)  # once more
    assert [honest.push(3.0), victim.push(30.0), liar.push(3.0)] == [[0, 0]] * 3
    assert [honest.row(shard, 1) for shard in (0, 1)] == [-12.0, -12.0]  # of all three, at both

    until = time.monotonic() + 1.3 * LEASE_S
    while time.monotonic() < until:
        for member in (honest, victim):
            member.relay()
        for shard in (0, 1):
            liar.say(shard, *([(1, 1, agreed)] if shard in shards else []))
        time.sleep(0.2)
    assert states(nodes, 1) == ["live", "live"] and not honest.suspects
    assert [honest.push(3.0), victim.push(30.0), liar.push(3.0)] == [[0, 0]] * 3
    assert [victim.row(shard, 2) for shard in (0, 1)] == [-24.0, -24.0]
    for shard, node in enumerate(nodes):
        wait_for("the liar's name in the log",
                 lambda: ("worker 2 says that a shard suspects worker 1 (w1)" in node.log.read_text()) == (bool(relays) and shard in shards))


def test_two_workers_that_say_it_end_a_third_one_everywhere(start_nodes):
    nodes = start_nodes("--lease", f"{LEASE_S}s")
    members = [Member(nodes, rank) for rank in range(3)]
    wait_for("reports with all of them", lambda: states(nodes, 2) == ["live", "live"])  # else its death is no news to the log
    assert members[0].say(1, (2, 1, False)).status == DOUBTED
    assert members[2].say(1).status == 0
    assert members[1].say(1, (2, 1, False)).status == 0
    assert members[2].say(1).status == EFENCED and members[2].say(0).status == 0
    until = time.monotonic() + 60
    while states(nodes, 2) != ["dead", "dead"] and time.monotonic() < until:
        for member in members[:2]:
            member.relay()
        time.sleep(0.1)
    assert states(nodes, 2) == ["dead", "dead"]
    wait_for("their names in the log", lambda: "refused by all shards, by the word of worker" in nodes[1].log.read_text())


def test_a_worker_that_the_only_other_one_accuses_has_a_lease_to_come_back(start_nodes):
    nodes = start_nodes("--lease", f"{LEASE_S}s")
    liar, victim = Member(nodes, 0, n_workers=2), Member(nodes, 1, n_workers=2)
    for _ in range(2):
        liar.say(0, (1, 1, True))
    assert victim.say(0).status == EFENCED and victim.say(1).status == 0
    wait_for("its state", lambda: states(nodes, 1) == ["suspected", "live"], seconds=LEASE_S / 2)
    again = Member(nodes, 1, incarnation=2, n_workers=2, name="w1")
    until = time.monotonic() + 1.3 * LEASE_S
    while time.monotonic() < until:
        for member in (liar, again):
            member.relay()
        time.sleep(0.2)
    assert states(nodes, 1) == ["live", "live"]
    assert "worker 1 (w1) is suspected" in nodes[0].log.read_text() and "by the word of worker 0" in nodes[0].log.read_text()
    assert all(job["deaths"] == 0 for node in nodes for shard in node.stats()["shards"] for job in shard["jobs"])


def test_a_node_that_hears_no_worker_combines_nothing_until_all_are_back(start_nodes):
    nodes = start_nodes("--lease", f"{LEASE_S}s")
    members = [Member(nodes, rank, n_workers=2) for rank in range(2)]
    assert [members[0].push(3.0), members[1].push(30.0)] == [[0, 0]] * 2
    until = time.monotonic() + 1.5 * LEASE_S
    while time.monotonic() < until:
        assert [member.say(0).status for member in members] == [0, 0]
        time.sleep(0.2)
    wait_for("its states", lambda: states(nodes, 0) == states(nodes, 1) == ["live", "dead"], seconds=LEASE_S)
    assert members[0].push(3.0) == [0, 0]  # it goes on at both, and its clock waits for the other one
    early = members[0].wires[1].pull(wire.keys_of(1, 2, 1), clock=2, deadline_ms=1000)
    assert early.status == EDEADLINE and "worker 1 (w1) is at 1" in early.text
    assert members[1].push(30.0) == [0, 0]
    assert members[0].row(0, 2) == members[0].row(1, 2) == -33.0
    assert states(nodes, 0) == states(nodes, 1) == ["live", "live"]


def test_a_worker_that_relays_nothing_holds_the_job_up_until_a_deadline(start_nodes):
    """It says that it relays, so its shards wait for its word."""
    nodes = start_nodes("--lease", "1s", "--park-max", "8s")
    waiting, silent, mute = Member(nodes, 0, relays=0), Member(nodes, 1, relays=0), Member(nodes, 2)
    beats = [Member(nodes, rank, relays=rank // 2) for rank in (0, 2)]  # each a second connection: a parked pull is silence
    assert waiting.push(1.0) == mute.push(1.0) == [0, 0] and silent.rank == 1
    pull_id, began = 1000, time.monotonic()
    waiting.wires[0].send(wire.pull_frame(wire.keys_of(0, 2, 1), clock=1, request_id=pull_id))
    waits = {}
    waiting.wires[0].socket.settimeout(0.1)
    while pull_id not in waiting.wires[0].kept and time.monotonic() < began + 60:
        for member in beats:
            for shard in (0, 1):
                assert member.say(shard).status == 0
        for wait in json.loads(nodes[0].get("/stats"))["waits"]:
            waits[wait["what"]] = wait
        try:
            reply = waiting.wires[0].reply()
            waiting.wires[0].kept[reply.request_id] = reply
        except TimeoutError:
            pass
    reply = waiting.wires[0].kept[pull_id]
    assert reply.status == EDEADLINE
    assert "worker 1 (w1) is at 0, suspected" in reply.text
    assert "which worker 2 (w2) does not say yet" in waits["worker suspected"]["why"]
    for what in ("worker suspected", "parked pull"):
        assert abs(waits[what]["until_unix_ms"] / 1000 - time.time()) < 6, waits[what]
    assert states(nodes, 1)[0] == "suspected"

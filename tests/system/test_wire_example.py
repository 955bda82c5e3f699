"""proto/README.md is enough to write a client: its example in hex is what psd says, byte for byte, and a client made
from its tables alone (wire.py, standard library only) joins, trains, is refused in every documented way, comes back
after a lost connection and a lost server, and sends again what was not acknowledged."""

import errno
import json
import re
import struct
import time

import pytest
import wire
from conftest import ROOT, eventually
from training import free_ports
from wire import STATUS, Wire, crc32c, floats, frame, head, keys, pull_frame, push_frame, rows, section, zigzag

N_SHARDS = 2
PSD_ARGS = ["--shards", str(N_SHARDS), "--lease", "300s", "--frame-timeout", "300s", "--frame-max", "1M"]
pytestmark = pytest.mark.timeout(300)

README = (ROOT / "proto" / "README.md").read_text()
CLOCK_END = 1 << 62
HERE = wire.keys_of(0, N_SHARDS, 3)
ELSEWHERE = wire.keys_of(1, N_SHARDS, 1)[0]
GRAD = floats(1, 2, 3, 4)
NAN = floats(1, float("nan"), 3, 4)


# --- the bytes of the README ---

def hex_lines(text):
    """The bytes of each line, without what stands behind a bar."""
    return [bytes.fromhex(line.split("|")[0]) for line in text.splitlines()]


def example():
    """(what the line says, bytes) of each frame of the example, '>' to psd and '<' from it, in order."""
    frames = []
    for block in re.findall(r"^```\n([<>].*?)^```$", README, re.M | re.S):
        for part in re.split(r"^(?=[<>])", block, flags=re.M)[1:]:
            title, _, data = part.partition("\n")
            frames.append((title, b"".join(hex_lines(data))))
    return frames


def split_frame(data):
    type_, flags, head_bytes, body_bytes, request_id, crc = struct.unpack("<BBHIQI", data[4:24])
    body_at = 24 + head_bytes
    return type_, flags, request_id, crc, data[24:body_at], data[body_at:body_at + body_bytes], \
        data[body_at + body_bytes:]


def test_every_frame_in_the_readme_has_the_lengths_and_the_sums_that_it_says():
    blocks = re.findall(r"^```\n(50 53 44 31.*?)^```$", README, re.M | re.S)
    lone = [bytes.fromhex("".join(re.findall(r"\b[0-9a-f]{2}\b", block.splitlines()[0]))) for block in blocks]
    frames = lone + [data for _, data in example()]
    assert len(lone) == 2 and len(frames) == 20
    for data in frames:
        _, flags, _, crc, head_, body, behind = split_frame(data)
        whole = crc32c(data[:20] + head_ + body)
        if flags & wire.SUM_BEHIND:
            assert behind == struct.pack("<I", whole) and crc == crc32c(data[:20] + head_)
        else:
            assert behind == b"" and crc == whole


def test_the_readmes_example_is_what_goes_over_the_wire(start_psd):
    frames = example()
    assert [title[0] for title, _ in frames] == list("><" * 9)
    psd = start_psd("--advertise", "127.0.0.1:7070", "--shards", "1", "--lease", "60s", data=False)
    with Wire(psd.port) as client:
        for (asked, request), (received, reply) in zip(frames[::2], frames[1::2]):
            client.send(request)
            assert client.read(len(reply)) == reply, f"{asked}: {received}"
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.read(1)


def test_a_client_made_from_the_tables_writes_the_bytes_of_the_example():
    three, answer_keys = keys(5, 6, 300), keys(5, 7, 300)
    emb = head((1, "emb"), (3, 2), (9, head((1, 1.0))))
    values = floats(1, 2, 3, 4, 0.5, -1)
    push = head((1, 1), (3, 32), (4, 1), (5, section(n_keys=3, key_bytes=4, value_bytes=24)))
    mine = [
        frame("hello", head((1, 1), (2, 1), (3, "worker"), (7, "example")), request_id=1),
        frame("join", head((1, "demo"), (3, 1), (4, 7), (5, wire.ASYNC), (9, "example")), request_id=2),
        frame("table", head((1, emb)), request_id=3),
        frame("push", push, three + values, request_id=4),
        frame("pull", head((1, 1), (3, section(n_keys=3, key_bytes=4))), answer_keys, request_id=5),
        frame("push", push, three + values, request_id=6),
        frame("push", head((1, 3), (2, 1), (4, 1)), request_id=7),
        frame("beat", head((1, 1)), request_id=8),
        frame("leave", head((1, 1)), request_id=9),
    ]
    assert mine == [data for title, data in example() if title[0] == ">"]


def test_the_keys_and_the_crc_of_the_readme():
    assert crc32c(b"123456789") == 0xE3069283 and "0xE3069283" in README
    assert keys(5, 6, 300).hex(" ") in README
    assert [wire.mix(key) >> 52 for key in (0, 1)] == [3618, 2320] and "slot(0) = 3618, slot(1) = 2320" in README


def table_rows(first_cell):
    """The cells of each row of the README's table whose head begins so."""
    block = re.search(rf"^\| {first_cell} \|.*?\n\|[ -|]*\n(.*?)\n\n", README, re.M | re.S)[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]


def test_both_tables_of_statuses_say_the_same_and_their_numbers_are_right():
    requests = "HELLO JOIN TABLE PULL PUSH BEAT LEAVE ADMIN FOLLOW FILE FETCH WATCH".split()
    by_status = {request: set() for request in requests}
    for number, name, replies, _ in table_rows("status \\| name"):
        assert int(number) == (STATUS[name[3:]] if name.startswith("PS_") else -getattr(errno, name))
        but = replies.removeprefix("all but ").split(", ")
        for request in [r for r in requests if r not in but] if replies.startswith("all but") else but:
            by_status[request].add(int(number))
    by_request = {}
    for replies, statuses in table_rows("reply to"):
        numbers = set()
        for first, last in re.findall(r"(-\d+)(?: to (-\d+))?", statuses):
            numbers.update(range(int(last or first), int(first) + 1))
        for request in replies.split(", "):
            by_request.setdefault(request, set()).update(numbers)
    assert by_request == by_status


# --- a client as "The life of a client" tells ---

class Worker:
    """One worker at one shard. It keeps every push until it knows that it was acknowledged."""

    def __init__(self, port, table=None, shard=0, **who):
        self.port, self.shard, self.spec = port, shard, table or {"name": "t"}
        self.who = dict({"job": "job", "incarnation": 1}, **who)
        self.unacknowledged, self.next_seq, self.last_acked, self.clock = [], 1, 0, 0
        self.wire = None

    def __enter__(self):
        self.connect()
        return self

    def __exit__(self, *_):
        self.wire.close()

    def connect(self):
        """Greets, joins, names its table, sends again what the shard has not acknowledged. Returns the answer to the join."""
        if self.wire:
            self.wire.close()
        self.wire = Wire(self.port)
        assert self.wire.hello(shard=self.shard).status == 0
        clock = self.unacknowledged[0]["clock"] if self.unacknowledged else self.clock
        joined = self.wire.join(clock=clock, last_acked=self.last_acked, **self.who)
        assert joined.status == 0, joined.text
        self.number = self.wire.table(**self.spec).number(3)
        again = [push for push in self.unacknowledged if push["seq"] > joined.number(3)]
        self.acknowledged(joined.number(3))
        for push in again:
            self.send(push)
        return joined

    def acknowledged(self, seq):
        self.last_acked = max(self.last_acked, seq)
        self.unacknowledged = [push for push in self.unacknowledged if push["seq"] > self.last_acked]

    def send(self, push):
        push["request_id"] = next(self.wire.ids)
        self.wire.send(push_frame(table=self.number, **push))

    def push(self, key_list, values):
        """One step, sent; wait() returns its reply."""
        push = {"key_list": key_list, "values": values, "seq": self.next_seq, "clock": self.clock}
        self.next_seq += 1
        self.clock += 1
        self.unacknowledged.append(push)
        self.send(push)

    def wait(self):
        """The answers to all that is under way."""
        answers = []
        while self.unacknowledged:
            answers.append(self.wire.wait(self.unacknowledged[0]["request_id"]))
            self.acknowledged(self.unacknowledged[0]["seq"])
        return answers

    def pull(self, key_list):
        return rows(self.wire.pull(key_list, table=self.number, clock=self.clock))


def test_a_client_trains_loses_its_connection_and_sends_again_exactly_once(shared_psd):
    with Worker(shared_psd.port, job="again", table={"name": "again"}) as worker:
        for step in range(3):
            worker.push(HERE[:2], GRAD * 2)
        assert [a.status for a in worker.wait()] == [0, 0, 0]
        # Acknowledged, but the answer is lost; then one that never came.
        worker.push(HERE[:1], GRAD)
        eventually(lambda: rows(worker.wire.pull(HERE[:1], table=worker.number)) == [[-4, -8, -12, -16]])
        worker.unacknowledged.append({"key_list": HERE[:1], "values": GRAD, "seq": 5, "clock": 4})
        worker.next_seq, worker.clock = 6, 5
        joined = worker.connect()
        assert (joined.number(3), joined.number(4), joined.number(7)) == (4, 4, 1)  # last_applied, clock, resumed
        assert [a.number(3) for a in worker.wait()] == [5]
        assert worker.pull(HERE[:2]) == [[-5, -10, -15, -20], [-3, -6, -9, -12]]
        assert worker.wire.leave().status == 0
        assert worker.wire.beat().status == STATUS["ENOJOIN"]


# --- last_applied, and a server that was lost ---

def restarted(start_psd, psd, port):
    psd.kill()
    return start_psd("--shards", "1", "--lease", "300s", "--listen", f"127.0.0.1:{port}", data=False)


@pytest.mark.parametrize("keeps", [False, True], ids=["acknowledged pushes are gone", "they were kept"])
def test_last_applied_is_raised_to_last_acked(start_psd, keeps):
    """A psd without a data directory ends and comes back with nothing."""
    port = free_ports(1)[0]
    psd = start_psd("--shards", "1", "--lease", "300s", "--listen", f"127.0.0.1:{port}", data=False)
    with Worker(port) as worker:
        for step in range(2):
            worker.push([1], GRAD)
        kept = list(worker.unacknowledged)
        worker.wait()
        restarted(start_psd, psd, port)
        if keeps:
            worker.unacknowledged, worker.last_acked = kept, 0
        joined = worker.connect()
        assert joined.number(7) == 0  # not resumed
        assert joined.number(3) == (0 if keeps else 2)
        assert joined.number(4) == (0 if keeps else 2)
        assert [a.status for a in worker.wait()] == ([0, 0] if keeps else [])
        worker.push([1], GRAD)
        assert [a.status for a in worker.wait()] == [0]
        assert worker.pull([1]) == ([[-3, -6, -9, -12]] if keeps else [[-1, -2, -3, -4]])


def test_a_number_that_the_shard_has_and_the_client_does_not_is_reported_as_repeated(shared_psd):
    with Worker(shared_psd.port, job="truly", table={"name": "truly"}) as worker:
        worker.push(HERE[:1], GRAD)
        worker.wait()
        worker.last_acked = 0
        assert worker.connect().number(3) == 1


def test_a_shard_that_was_killed_believes_a_last_acked_beyond_its_own_count(start_psd, tmp_path):
    flags = ("--shards", "1", "--data-dir", str(tmp_path / "believes"), "--durability", "fsync", "--lease", "300s")
    psd = start_psd(*flags)
    with Worker(psd.port) as worker:
        worker.push(HERE[:1], GRAD)
        worker.wait()
        psd.kill()
        psd = start_psd(*flags)
        worker.port, worker.last_acked, worker.clock, worker.next_seq = psd.port, 5, 5, 6
        joined = worker.connect()
        assert (joined.number(3), joined.number(4), joined.number(7)) == (5, 5, 1)  # last_applied, clock, resumed
        assert worker.wire.push(HERE[:1], GRAD, table=worker.number, seq=2, clock=1).number(7) == 1
        worker.push(HERE[:1], GRAD)
        assert [a.status for a in worker.wait()] == [0]
        assert worker.pull(HERE[:1]) == [[-2, -4, -6, -8]]
        eventually(lambda: "4 pushes that had been acknowledged to rank 0 are lost" in psd.log())


def test_an_operator_hears_when_a_push_is_on_the_disk(start_psd):
    psd = start_psd("--shards", "1", "--log-interval", "50ms", "--lease", "300s")
    with Worker(psd.port) as worker:
        worker.push([1], GRAD)
        worker.wait()

    def log():
        return psd.admin("stats")["shards"][0]["log"]

    eventually(lambda: log()["records"] >= 3)  # the table, the join, the push
    newest = log()["records"]
    eventually(lambda: log()["durable"] >= newest)


# --- refusals of pushes: which use the number up ---

@pytest.fixture
def joined(shared_psd, request):
    """A connection that has joined a job of its own and has a table of its own."""
    name = "n." + str(abs(hash(request.node.name)))
    with shared_psd.connect() as client:
        client.name = name
        client.t = client.table(name=name).number(3)
        assert client.join(job=name).status == 0
        yield client
    with shared_psd.connect() as client:  # jobs with workers take places
        assert client.join(job=name, incarnation=2).status == 0
        assert client.leave().status == 0


TWICE = head((2, 0), (5, 1), (6, 1), (7, 16))
LEAVES_THE_NUMBER = {
    "a gap": (dict(seq=3), "ESEQ"),
    "number 0": (dict(seq=0), "ESEQ"),
    "key bytes past the body": (dict(key_bytes=1 << 20), "ECOUNT"),
    "values that are no multiple of the keys": (dict(n_keys=3), "ECOUNT"),
    "257 sections": (dict(raw_sections=[b""] * 257), "ECOUNT"),
    "a codec that is none": (dict(codec=6), "ECODEC"),
    "top 0": (dict(codec=wire.TOPK, k=0), "ECODEC"),
    "an operation that is none": (dict(op=5), "EPROTO"),
    "state in a push": (dict(state=True), "EPROTO"),
    "a body that is no zstd frame": (dict(flags=wire.ZSTD), "ECORRUPT"),
    "a zstd frame of more than the limit":
        (dict(flags=wire.ZSTD, body=b"\x28\xb5\x2f\xfd\x80\x60" + struct.pack("<I", 1 << 28) + b"\x03\0\0"), "ETOOBIG"),
}
USES_THE_NUMBER_UP = {
    "NaN": (dict(values=NAN), "ENAN"),
    "no such table": (dict(table=777), "ENOTABLE"),
    "rows too narrow": (dict(values=GRAD[:12]), "EWIDTH"),
    "a key twice": (dict(key_list=HERE[:2], key_blob=wire.leb(HERE[0]) + b"\0", values=GRAD * 2), "EORDER"),
    "a key longer than need be": (dict(key_blob=b"\x80\x00"), "ECOUNT"),
    "a key of another shard": (dict(key_list=[ELSEWHERE]), "ESHARD"),
    "top 5 of 4": (dict(values=bytes(30), codec=wire.TOPK, k=5), "ECODEC"),
    "an index past the row": (dict(values=struct.pack("<Hf", 4, 1), codec=wire.TOPK, k=1), "ECODEC"),
    "a clock out of range": (dict(clock=CLOCK_END), "EPROTO"),
    "a clock from which few steps lead on": (dict(clock=CLOCK_END - 1), "EPROTO"),
}


def bad_push(client, fields):
    return client.push(**dict(dict(key_list=HERE[:1], values=GRAD, table=client.t), **fields))


@pytest.mark.parametrize("name", LEAVES_THE_NUMBER)
def test_a_push_that_cannot_be_read_or_is_not_its_turn_leaves_its_number_unused(name, joined):
    fields, status = LEAVES_THE_NUMBER[name]
    assert bad_push(joined, fields).status == STATUS[status]
    good = joined.push(HERE[:1], GRAD, table=joined.t)
    assert (good.status, good.number(7)) == (0, 0)


@pytest.mark.parametrize("name", USES_THE_NUMBER_UP)
def test_a_push_that_is_refused_for_good_uses_its_number_up(name, joined, shared_psd):
    fields, status = USES_THE_NUMBER_UP[name]
    assert bad_push(joined, fields).status == STATUS[status]
    again = joined.push(HERE[:1], GRAD, table=joined.t)
    assert (again.status, again.number(7)) == (STATUS[status], 1)
    with shared_psd.connect() as other:
        answer = other.join(job=joined.name)
        assert (answer.number(3), answer.number(9), zigzag(answer.number(10))) == (1, 1, STATUS[status])
    assert joined.push(HERE[:1], GRAD, table=joined.t, seq=2, clock=1).status == 0


def test_a_table_twice_and_a_clock_that_was_ended_use_the_number_up(shared_psd):
    with shared_psd.connect() as client:
        table = client.table(name="twice").number(3)
        assert client.join(job="twice", mode=wire.BSP).status == 0
        blob = keys(HERE[0])
        one = section(table=table, n_keys=1, key_bytes=len(blob), value_bytes=16)
        assert client.push([], b"", raw_sections=[one, one], body=(blob + GRAD) * 2).status == STATUS["EPROTO"]
        assert client.push(HERE[:1], GRAD, table=table, seq=2, clock=0).status == STATUS["EPROTO"]  # 1 ticked, too
        assert client.push(HERE[:1], GRAD, table=table, seq=3, clock=1).status == 0
        assert client.leave().status == 0


def test_a_refused_push_ticks_and_one_that_was_not_acknowledged_does_not(joined):
    assert bad_push(joined, dict(key_bytes=1 << 20)).number(4) == 0
    assert joined.beat().number(3) == 0
    assert bad_push(joined, dict(values=NAN)).number(4) == 1  # min_clock
    assert joined.beat().number(3) == 1


def test_1024_pushes_are_held_and_the_next_uses_its_number_up(shared_psd):
    n = 1024
    with shared_psd.connect() as fast:
        assert fast.join(job="held", n_workers=2, mode=wire.BSP).status == 0
        for i in range(n):
            fast.send(push_frame([], b"", raw_sections=[], seq=i + 1, clock=i, request_id=i + 1000))
        assert all(fast.wait(i + 1000).status == 0 for i in range(n))
        for repeated in (0, 1):
            answer = fast.push([], b"", raw_sections=[], seq=n + 1, clock=n)
            assert (answer.status, answer.number(7)) == (STATUS["ETOOBIG"], repeated)
        assert fast.leave().status == 0


def test_a_push_beyond_a_sync_point_is_refused_until_later(start_psd):
    psd = start_psd("--shards", "1", "--cut-every", "2", "--lease", "300s")
    with psd.connect() as fast, psd.connect() as slow:
        table = fast.table().number(3)
        for rank, client in enumerate((fast, slow)):
            assert client.join(job="meet", rank=rank, n_workers=2, mode=wire.SSP, bound=9).status == 0
        push = dict(key_list=[1], values=GRAD, table=table)
        assert [fast.push(seq=i + 1, clock=i, **push).status for i in range(3)] == [0, 0, -errno.EBUSY]
        assert [slow.push(seq=i + 1, clock=i, **push).status for i in range(2)] == [0, 0]
        answer = fast.push(seq=3, clock=2, **push)
        assert (answer.status, answer.number(7)) == (0, 0)


# --- limits, by their numbers ---

def test_tables_max_and_64_jobs_are_the_most(start_psd):
    psd = start_psd("--shards", "1", "--lease", "300s", "--tables-max", "1024", data=False)
    for first in range(0, 1024, 256):  # a connection's share
        with psd.connect() as client:
            for i in range(first, first + 256):
                client.send(frame("table", head((1, wire.spec(name=f"t{i}"))), request_id=1000 + i))
            assert [client.wait(1000 + i).number(3) for i in range(first, first + 256)] == list(range(first, first + 256))
            if first == 0:
                refused = client.table(name="one.more")
                assert refused.status == -errno.ENOSPC and "share" in refused.text
    with psd.connect() as client:
        assert client.table(name="one.more").status == -errno.ENOSPC
        assert client.table(name="t7").number(3) == 7
    for first in range(0, 64, 16):  # a connection's share; an address has three times as much
        with psd.connect(source="127.0.0.2" if first == 48 else None) as client:
            for i in range(first, first + 16):
                assert client.join(job=f"job{i}").status == 0  # the worker before goes on living, unheard of
            refused = client.join(job="one.more")
            assert refused.status == -errno.ENOSPC and "share" in refused.text
            if first == 0:
                assert client.join(job="job9").status == 0 and client.leave().status == 0
                assert client.join(job="again").status == 0 and client.leave().status == 0
                assert client.join(job="job9", incarnation=2).status == 0
    with psd.connect() as client:
        refused = client.join(job="one.more")
        assert refused.status == -errno.ENOSPC and "this address" in refused.text
    with psd.connect(source="127.0.0.3") as client:
        refused = client.join(job="one.more")
        assert refused.status == -errno.ENOSPC and "too many jobs" in refused.text
        assert client.join(job="job9", incarnation=2).status == 0 and client.leave().status == 0
        assert client.join(job="one.more").status == 0


def test_connections_and_parked_pulls_beyond_the_limit(start_psd):
    psd = start_psd("--shards", "1", "--connections-max", "1", "--lease", "300s", data=False)
    with psd.connect() as fast:
        with Wire(psd.port) as second:
            assert second.hello().status == -errno.EMFILE
        table = fast.table().number(3)
        assert fast.join(job="parks", n_workers=2, mode=wire.BSP).status == 0
        for i in range(17):
            fast.send(pull_frame([1], table=table, clock=1, request_id=100 + i))
        assert fast.wait(116).status == -errno.ENOBUFS
        answer = fast.pull([1], table=table, n_keys=1 << 24, key_bytes=1 << 24)
        assert answer.status == STATUS["ECOUNT"]
        assert fast.beat().status == 0


def test_a_hello_has_2019_bytes_at_most(shared_psd):
    for n, is_heard in ((2019, True), (2020, False)):
        start = wire.hello()
        padded = start + head((1000, bytes(n - len(start) - 4)))  # a field that nobody knows
        assert len(padded) == n
        with Wire(shared_psd.port) as client:
            client.send(frame("hello", padded))
            if is_heard:
                assert client.reply().status == 0
            else:
                assert client.is_closed()


def zstd_of(start, n_zeros):
    """A zstd frame (RFC 8878) of some bytes as they are, then zeros: blocks of 128 KiB, 4 bytes each."""
    full, rest = divmod(n_zeros, 1 << 17)
    sizes = [1 << 17] * full + [rest] * (rest > 0)
    blocks = [(len(start) << 3).to_bytes(3, "little") + start]
    blocks += [(n << 3 | 2 | (i == len(sizes))).to_bytes(3, "little") + b"\0" for i, n in enumerate(sizes, 1)]
    return b"\x28\xb5\x2f\xfd\x80\x60" + struct.pack("<I", len(start) + n_zeros) + b"".join(blocks)


def test_memory_for_held_pushes_and_for_dense_blocks(start_psd):
    """With a memory limit 64 MiB of pushes are held, half of that for those that are ahead."""
    psd = start_psd("--shards", "1", "--memory-max", "1M", "--lease", "300s", data=False)
    dim, n_rows = 16384, 200
    row_keys, n_zeros = keys(*range(1, n_rows + 1)), 4 * dim * n_rows
    with psd.connect() as client:
        table = client.table(dim=dim).number(3)
        dense = client.table(name="d", kind=wire.DENSE, dim=dim, n_floats=dim * 100).number(3)
        assert client.join(n_workers=2, mode=wire.BSP).status == 0

        def push(seq, clock):
            rows_of_zeros = section(table=table, n_keys=n_rows, key_bytes=len(row_keys), value_bytes=n_zeros)
            return client.push([], b"", seq=seq, clock=clock, tick=False, flags=wire.ZSTD,
                               body=zstd_of(row_keys, n_zeros), raw_sections=[rows_of_zeros])

        assert [push(seq, 0).status for seq in (1, 2)] == [0, 0]
        assert push(3, 1).status == -errno.ENOMEM
        assert [push(seq, 0).number(7) for seq in (3, 4, 5)] == [0, 0, 0]
        for repeated in (0, 1):
            answer = push(6, 0)
            assert (answer.status, answer.number(7)) == (STATUS["EBUDGET"], repeated)
        body = keys(*range(50))
        for repeated in (0, 1):
            answer = client.push([], b"", seq=7, tick=False, flags=wire.ZSTD, body=zstd_of(body, 4 * dim * 50),
                                 raw_sections=[section(table=dense, op=wire.ASSIGN, n_keys=50, key_bytes=len(body),
                                                       value_bytes=4 * dim * 50)])
            assert (answer.status, answer.number(7)) == (STATUS["EBUDGET"], repeated)


def test_a_node_that_stops_says_so_to_a_parked_pull(start_psd):
    psd = start_psd("--shards", "1", "--lease", "300s", data=False)
    with psd.connect() as client:
        table = client.table().number(3)
        assert client.join(n_workers=2, mode=wire.BSP).status == 0
        client.send(pull_frame([1], table=table, clock=1, request_id=70))
        assert client.beat().status == 0
        psd.terminate()
        assert client.wait(70).status == STATUS["ESTOPPING"]
        assert client.is_closed()


# --- joins ---

@pytest.mark.parametrize("fields, status", [
    (dict(job=""), -errno.EINVAL), (dict(n_workers=0), -errno.EINVAL), (dict(n_workers=1025), -errno.EINVAL),
    (dict(rank=1), -errno.EINVAL), (dict(clock=CLOCK_END + 1), -errno.EINVAL), (dict(clock=CLOCK_END), -errno.EINVAL),
    (dict(clock=(1 << 53) + (1 << 16) + 1), -errno.EINVAL), (dict(clock=1 << 53), 0),
    (dict(last_acked=(1 << 53) + 1), -errno.EINVAL), (dict(last_acked=1 << 53), 0),
    (dict(mode=4), STATUS["EPROTO"]), (dict(mode=0), STATUS["EPROTO"]), (dict(job="x" * 128), STATUS["EPROTO"]),
    (dict(name="x" * 64), STATUS["EPROTO"]), (dict(incarnation=0), 0), (dict(incarnation=(1 << 63) - 1), 0),
    (dict(incarnation=1 << 63), -errno.EINVAL), (dict(incarnation=(1 << 64) - 1), -errno.EINVAL)])
def test_the_ranges_of_a_join(shared_psd, fields, status):
    with shared_psd.connect() as client:
        answer = client.join(**dict({"job": f"ranges {fields}"}, **fields))
        assert answer.status == status, answer.text
        if not status:
            assert client.leave().status == 0


def test_a_second_join_on_a_connection(shared_psd):
    with shared_psd.connect() as client:
        table = client.table(name="second").number(3)
        assert client.join(job="second").number(7) == 0
        assert client.push(HERE[:1], GRAD, table=table).status == 0
        same = client.join(job="second")  # as after a lost connection
        assert (same.status, same.number(3), same.number(7)) == (0, 1, 1)
        other = client.join(job="second.other")  # from here on it speaks for this one
        assert (other.status, other.number(3), other.number(7)) == (0, 0, 0)
        assert client.push(HERE[:1], GRAD, table=table).number(7) == 0
        assert client.join(job="second", rank=7).status == -errno.EINVAL  # a refused one changes nothing
        assert client.push(HERE[:1], GRAD, table=table, seq=2, clock=1).status == 0
        assert client.leave().status == 0

        def states():
            return {job["name"]: job["workers"][0]["state"] for job in shared_psd.admin("stats")["jobs"]
                    if job["name"].startswith("second")}

        eventually(lambda: states() == {"second": "live", "second.other": "left"})
        assert client.beat().status == STATUS["ENOJOIN"]
        assert client.join(job="second").number(7) == 1 and client.leave().status == 0


def test_parked_pulls_go_with_the_connection_to_its_new_worker(shared_psd):
    with shared_psd.connect() as client:
        table = client.table(name="goes").number(3)
        assert client.join(job="goes", n_workers=2, mode=wire.BSP).status == 0
        client.send(pull_frame(HERE[:1], table=table, clock=1, request_id=70))
        assert client.beat().status == 0 and 70 not in client.kept
        assert client.join(job="goes.other").status == 0  # asynchronous: it waits for nobody
        assert client.wait(70).status == 0
        assert client.leave().status == 0


def test_two_connections_of_one_incarnation_both_speak_for_it(shared_psd):
    with shared_psd.connect() as first, shared_psd.connect() as second:
        table = first.table(name="both").number(3)
        assert first.join(job="both").status == 0 and second.join(job="both").number(7) == 1
        for seq, client in enumerate((first, second, first), 1):
            assert client.push(HERE[:1], GRAD, table=table, seq=seq, clock=seq - 1).status == 0
        assert first.leave().status == 0


def test_two_processes_that_chose_one_incarnation_do_not_both_speak_for_it(shared_psd):
    with shared_psd.connect() as first, shared_psd.connect() as second:
        assert first.join(job="same", name="one").status == 0
        taken = second.join(job="same", name="another")
        assert taken.status == -errno.EBUSY and "another process, one, is rank 0" in taken.text
        first.close()
        deadline = time.monotonic() + 30
        while (again := second.join(job="same", name="another")).status:  # until the end of the first is seen
            assert again.status == -errno.EBUSY and time.monotonic() < deadline
        assert second.leave().status == 0


def test_incarnations_fences_and_a_rank_that_is_taken(shared_psd):
    with shared_psd.connect() as client, shared_psd.connect() as other:
        assert client.join(job="ranks", incarnation=10, name="one").status == 0
        assert other.join(job="ranks", incarnation=11, name="another").status == -errno.EBUSY
        older = other.join(job="ranks", incarnation=9, name="one")
        assert (older.status, older.number(8)) == (STATUS["EFENCED"], 11)
        newer = other.join(job="ranks", incarnation=11, name="one")
        assert (newer.status, newer.number(7)) == (0, 0)
        assert client.beat().status == STATUS["EFENCED"]
        assert other.leave().status == 0
        assert other.join(job="ranks", incarnation=11, name="one").status == 0  # all had gone: the job starts afresh
        assert other.leave().status == 0


def test_the_greatest_incarnation_leaves_its_rank_to_the_next_process(shared_psd):
    with shared_psd.connect() as client, shared_psd.connect() as other:
        assert client.join(job="top", incarnation=(1 << 63) - 1, name="one").status == 0
        assert client.leave().status == 0
        assert client.join(job="top", n_workers=2, incarnation=5, name="one").status == 0
        assert other.join(job="top", n_workers=2, rank=1, incarnation=(1 << 63) - 1, name="one").status == 0
        assert other.leave().status == 0
        assert other.join(job="top", n_workers=2, rank=1, incarnation=5, name="one").status == 0
        assert client.leave().status == 0 and other.leave().status == 0


def test_no_worker_claims_pushes_that_this_shard_knows_it_never_had(shared_psd):
    with shared_psd.connect() as client, shared_psd.connect() as again:
        table = client.table(name="claims").number(3)
        assert client.join(job="claims").status == 0
        assert client.push(HERE[:1], GRAD, table=table).status == 0
        refused = again.join(job="claims", last_acked=2)
        assert refused.status == -errno.EINVAL and "never" not in refused.text and "has lost none" in refused.text
        assert again.join(job="claims", last_acked=1).number(3) == 1
        assert client.push(HERE[:1], GRAD, table=table, seq=2, clock=1).status == 0
        assert client.leave().status == 0


def test_a_pull_moves_no_clock_to_where_no_step_leads_on(joined):
    refused = joined.ask("pull", head((1, CLOCK_END)))
    assert refused.status == STATUS["EPROTO"], refused.text
    assert joined.beat().number(3) == 0
    assert joined.push([], b"", raw_sections=[]).number(4) == 1


def test_only_ticks_pulls_and_joins_move_a_clock(joined):
    assert joined.beat(clock=9).number(3) == 0
    assert joined.ask("pull", head((1, 5), (4, 2))).status == 0  # 5, of which 2 are under way
    assert joined.beat().number(3) == 3
    assert joined.ask("pull", head((1, 1), (4, 2))).status == STATUS["ECOUNT"]
    assert joined.push([], b"", raw_sections=[], clock=7).number(4) == 8


# --- leases ---

def test_a_client_with_a_parked_pull_has_to_beat_and_tables_are_no_beat(start_psd):
    psd = start_psd("--shards", "1", "--lease", "4s", "--join-timeout", "300s", data=False)
    with psd.connect() as mute, psd.connect() as beats:
        table = mute.table().number(3)
        for job, client in (("mute", mute), ("beats", beats)):
            assert client.join(job=job, n_workers=2, mode=wire.BSP).status == 0
            client.send(pull_frame([1], table=table, clock=1, request_id=500))
        end = time.monotonic() + 60
        while 500 not in mute.kept and time.monotonic() < end:
            assert beats.beat().status == 0
            assert mute.table().status == 0
            time.sleep(0.1)  # between two heartbeats
        assert mute.wait(500).status == STATUS["EFENCED"]
        assert 500 not in beats.kept and beats.beat().status == 0
        answer = mute.join(job="mute", n_workers=2, mode=wire.BSP)
        assert (answer.status, answer.number(8)) == (STATUS["EFENCED"], 2)


# --- readers and operators ---

def test_what_a_reader_may_do(shared_psd):
    with shared_psd.connect() as worker, shared_psd.connect(role="reader") as reader:
        table = worker.table(name="read").number(3)
        assert worker.join(job="read", n_workers=2, mode=wire.BSP).status == 0
        assert reader.table(name="read.not").status == -errno.EPERM
        assert reader.table(must_exist=True, name="read").number(3) == table
        assert reader.table(must_exist=True, name="read.not").status == STATUS["ENOTABLE"]
        assert reader.join(job="read", rank=1, n_workers=2, mode=wire.BSP).status == -errno.EPERM
        answer = reader.pull(HERE[:1], table=table, clock=99)  # nothing to wait for
        assert (answer.status, rows(answer), answer.number(3)) == (0, [[0] * 4], 0)
        assert {reader.push(HERE[:1], GRAD, table=table).status, reader.beat().status, reader.leave().status} == \
            {STATUS["ENOJOIN"]}
        assert worker.leave().status == 0


def test_what_an_operator_hears(shared_psd):
    with shared_psd.connect() as worker:
        worker.table(name="asked")
        worker.table(name="asked.dense", kind=wire.DENSE, n_floats=4)
    with shared_psd.connect(wire.LISTENER, "operator") as client:
        for command in ("status", "tables", "workers", "why", "stats"):
            assert json.loads(client.admin(command).body)
        assert json.loads(client.admin("row", f"{HERE[0]} asked").body)["found"] is False
        assert client.admin("row", "no number").status == STATUS["ESETTING"]
        assert client.admin("row", f"{HERE[0]} nowhere").status == STATUS["ENOTABLE"]
        assert client.admin("row", f"{1 << 40} asked.dense").status == -errno.ERANGE
        assert client.admin("else").status == -errno.EINVAL
        assert client.admin("checkpoint").status == -errno.EINVAL


# --- dense tables ---

def xxh3_of_4_to_8(data):
    """XXH3_64bits of 4 to 8 bytes."""
    mask = (1 << 64) - 1
    flip = 0x1CAD21F72C81017C ^ 0xDB979083E96DD4DE
    h = (int.from_bytes(data[-4:], "little") + (int.from_bytes(data[:4], "little") << 32)) ^ flip
    h ^= ((h << 49 | h >> 15) ^ (h << 24 | h >> 40)) & mask
    h = h * 0x9FB21C651E98DF25 & mask
    h = (h ^ (h >> 35) + len(data)) * 0x9FB21C651E98DF25 & mask
    return h ^ h >> 28


def test_a_dense_tables_blocks_stand_where_the_readme_says(shared_psd):
    assert xxh3_of_4_to_8(b"top_0_W") == 0xA59DDE20C3F5E975 and "0xa59dde20c3f5e975" in README
    name, dim, n_blocks = "dense_1", 4, 16
    salt = xxh3_of_4_to_8(name.encode())
    here = [b for b in range(n_blocks) if wire.shard_of(b ^ salt, N_SHARDS) == 0]
    assert 0 < len(here) < n_blocks
    with shared_psd.connect() as client:
        table = client.table(name=name, kind=wire.DENSE, dim=dim, n_floats=dim * n_blocks - 1).number(3)
        assert client.join(job=name).status == 0
        for block in range(n_blocks + 1):
            assert client.pull([block], table=table).status == (0 if block in here else STATUS["ESHARD"])
        assert client.push(here, GRAD * len(here), table=table, op=wire.ASSIGN).status == 0
        assert rows(client.pull(here, table=table, clock=1)) == [[1, 2, 3, 4]] * len(here)
        assert client.leave().status == 0


# --- MANIFEST ---

def sum_of_shard_file(data):
    """As the README says: the header, the tables' records, the heads of the chunks, the footer."""
    n_tables, = struct.unpack_from("<I", data, 32)
    at = 96 + 336 * n_tables
    crc, end = crc32c(data[:at]), len(data) - 56
    while at < end:
        n_bytes, = struct.unpack_from("<I", data, at + 12)
        crc = crc32c(data[at:at + 20], crc)
        at += 20 + n_bytes
    assert at == end and struct.unpack_from("<I", data, end + 48)[0] == crc
    return crc32c(data[end:], crc)


def test_how_a_manifest_sums_a_file(start_psd, tmp_path):
    psd = start_psd("--shards", str(N_SHARDS), "--data-dir", str(tmp_path / "data"))
    for shard in range(N_SHARDS):
        with psd.connect(shard=shard) as client:
            table = client.table(dim=64).number(3)
            client.join()
            client.push(wire.keys_of(shard, N_SHARDS, 40), floats(*[1.0] * 64) * 40, table=table)
    with psd.connect(wire.LISTENER, "operator") as client:
        assert client.admin("checkpoint").status == 0
    manifests = sorted((tmp_path / "data").glob("**/MANIFEST"))
    text = manifests[-1].read_bytes()
    own = text.rindex(b'"crc32c"')
    assert text[own:] == b'"crc32c": "%08x"\n}\n' % crc32c(text[:own])
    files = json.loads(text)["files"]
    assert len(files) == N_SHARDS and any(f["rows"] == 40 for f in files)
    for f in files:
        data = (manifests[-1].parent / f["name"]).read_bytes()
        assert (f["bytes"], f["crc32c"]) == (len(data), f"{sum_of_shard_file(data):08x}")

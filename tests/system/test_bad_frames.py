"""Whatever a peer sends, psd answers with a status and a sentence or hangs up, counts it, and goes on serving.

Every case runs against a real daemon; after each one a good client reads the row that was there before."""

import contextlib
import ctypes
import ctypes.util
import math
import socket
import struct

import pytest
import wire
from conftest import eventually
from wire import STATUS, Closed, Wire, floats, frame, head, keys, pull_frame, push_frame, rows, section, zigzag

N_SHARDS = 2
# Nobody is late here, however slow the machine: who is to be too slow has a daemon of its own.
PSD_ARGS = ["--shards", str(N_SHARDS), "--greeting-timeout", "300s", "--frame-timeout", "300s", "--frame-max", "1M",
            "--lease", "300s"]
pytestmark = pytest.mark.timeout(300)

HERE = wire.keys_of(0, N_SHARDS, 8)      # keys of the shard that the tests talk to
ELSEWHERE = wire.keys_of(1, N_SHARDS, 1)[0]
GRAD = floats(1, 2, 3, 4)
N_PARKED_MAX = 16


# --- what holds before and after every case ---

class Counters:
    """The daemon's counters now, and what has been added since the last look."""

    def __init__(self, daemon):
        self.daemon, self.seen = daemon, {}
        self.read()

    def read(self):
        stats = self.daemon.admin()
        net, listener, requests = stats["totals"]["net"], stats["door"], stats["totals"]["requests"]
        now = {"malformed": net["malformed_frames"] + listener["malformed_frames"],
               "refused": net["refused_requests"], "refused_greetings": listener["refused_greetings"],
               "slow": net["slow_peers"] + listener["slow_peers"], "expired": net["expired_pulls"],
               "repeated": stats["totals"]["counters"]["pushes_repeated"],
               "nan": stats["totals"]["counters"]["nan_pushes"],
               "rows_refused": stats["totals"]["counters"]["rows_refused"],
               "refused_pushes": requests["push"]["n_refused"], "refused_pulls": requests["pull"]["n_refused"],
               "connections": net["connections_total"], "open": net["connections"],
               "fenced": sum(job["fenced"] for job in stats["jobs"])}
        self.added = {name: n - self.seen.get(name, 0) for name, n in now.items()}
        self.now = now
        return self.added

    def eventually_adds(self, name, n=1):
        self.seen = self.before
        eventually(lambda: self.read()[name] >= n)

    def start(self):
        self.before = dict(self.now)
        return self


@pytest.fixture(scope="module")
def good_row(shared_psd):
    """A row that every case must leave as it is, in a table of its own."""
    with shared_psd.connect() as client:
        table = client.table(name="good", lr=1.0).number(3)
        client.join(job="good")
        assert client.push(HERE[:1], GRAD, table=table).status == 0
    return table


@pytest.fixture(autouse=True)
def still_serves(request):
    if "shared_psd" not in request.fixturenames:
        yield None
        return
    psd, table = request.getfixturevalue("shared_psd"), request.getfixturevalue("good_row")
    yield
    with psd.connect(role="reader") as client:
        answer = client.pull(HERE[:1], table=table)
        assert answer.status == 0 and rows(answer) == [[-1, -2, -3, -4]]
    assert psd.process.poll() is None


@pytest.fixture
def counted(shared_psd):
    return Counters(shared_psd).start()


@pytest.fixture
def worker(shared_psd, request):
    """A client that has joined a job of its own and has a table of its own."""
    name = "t." + str(abs(hash(request.node.name)))
    with shared_psd.connect() as client:
        client.name = name
        client.t = client.table(name=name).number(3)
        assert client.join(job=name).status == 0
        yield client
    with shared_psd.connect() as client:  # jobs with workers are counted: make room for the next
        assert client.join(job=name, incarnation=2).status == 0
        assert client.leave().status == 0


# --- frames: the framing is lost, so the connection ends ---

def corrupt_body():
    return push_frame(HERE[:1], GRAD)[:-1] + b"\x00"


BROKEN_FRAMES = {
    "wrong magic": frame("beat", magic=b"PSD2"),
    "another protocol": b"GET / HTTP/1.1\r\nHost: psd\r\n\r\n",
    "type 0": frame(0),
    "unknown type": frame(99),
    "type 255": frame(255),
    "reserved flag": frame("beat", flags=4),
    "wrong sum behind the body": frame("beat", flags=wire.SUM_BEHIND, sum_behind=1),
    "wrong crc of a head with a sum behind": frame("push", body_bytes=1000, flags=wire.SUM_BEHIND, crc=1),
    "all flags": frame("beat", flags=255),
    "wrong crc": frame("beat", crc=0xDEADBEEF),
    "damaged body": corrupt_body(),
    "oversized body": frame("push", body_bytes=(1 << 20) + 1),
    "body of 4 GiB": frame("push", body_bytes=0xFFFFFFFF),
    "head and body together oversized": frame("push", head_bytes=65535, body_bytes=1 << 20),
    "a reply from a client": frame("push_reply", head((3, 1))),
    "a second hello": frame("hello", wire.hello()),
    "an operator's command": frame("admin", head((1, "status"))),
}


@pytest.mark.parametrize("name", BROKEN_FRAMES)
def test_a_broken_frame_ends_its_connection(name, worker, counted):
    worker.send(BROKEN_FRAMES[name])
    assert worker.is_closed()
    counted.eventually_adds("malformed")


@pytest.mark.parametrize("n", [1, 4, 23, 24, 30])
def test_a_frame_that_the_peer_truncates_changes_nothing(n, worker, shared_psd, counted):
    worker.send(push_frame(HERE[:1], GRAD, table=worker.t)[:n])
    worker.socket.shutdown(socket.SHUT_WR)
    assert worker.is_closed()
    counted.read()
    with shared_psd.connect(role="reader") as client:
        assert rows(client.pull(HERE[:1], table=worker.t)) == [[0, 0, 0, 0]]


def test_a_slow_sender_is_hung_up_on_and_an_idle_peer_is_not(start_psd):
    psd = start_psd("--shards", str(N_SHARDS), "--frame-timeout", "300ms")
    counted = Counters(psd).start()
    with psd.connect() as idle, psd.connect() as slow:
        slow.send(push_frame(HERE[:1], GRAD)[:-1])
        assert slow.is_closed()
        counted.eventually_adds("slow")
        assert idle.pull(HERE[:1]).status == STATUS["ENOJOIN"]


# --- HELLOs ---

HELLOS = {
    "version too new": (dict(version=(2, 9)), "EVERSION", "version"),
    "version 0": (dict(version=(0, 0)), "EVERSION", "version"),
    "unknown role": (dict(role="boss"), "EGREETING", "role: found \"boss\""),
    "no role": (dict(role=""), "EGREETING", "role"),
    "shard out of range": (dict(shard=2), "EGREETING", "shard: found 2"),
    "an operator at a shard": (dict(role="operator", shard=0), "EGREETING", "operator"),
    "another cluster": (dict(map_id=12345), "ECLUSTER", "--cluster"),
}


@pytest.mark.parametrize("name", HELLOS)
def test_a_hello_that_does_not_fit_is_refused_with_a_sentence(name, shared_psd, counted):
    fields, status, words = HELLOS[name]
    with Wire(shared_psd.port) as client:
        answer = client.hello(**fields)
        assert (answer.type, answer.status) == ("hello_reply", STATUS[status])
        assert words in answer.text
        assert client.is_closed()
    counted.eventually_adds("refused_greetings")


def test_bytes_behind_the_hello_are_refused(shared_psd, counted):
    with Wire(shared_psd.port) as client:
        client.send(frame("hello", wire.hello()) + frame("beat"))
        answer = client.reply()
        assert answer.status == STATUS["EGREETING"] and "behind the hello" in answer.text
        assert client.is_closed()
    counted.eventually_adds("refused_greetings")


def test_a_first_message_that_is_no_hello_is_refused(shared_psd, counted):
    with Wire(shared_psd.port) as client:
        client.send(push_frame(HERE[:1], GRAD))
        assert client.reply().status == STATUS["EGREETING"]
        assert client.is_closed()
    counted.eventually_adds("refused_greetings")


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x04\x01\x02\x00", b"PSD2" + bytes(20),
                                  frame("hello", b"\xff\xff\xff"), frame("hello", wire.hello(), crc=1),
                                  frame("hello", bytes(3000)), frame("hello", wire.hello(name="x" * 64)),
                                  frame("hello", wire.hello(token="x" * 500))],
                         ids=["http", "nearly tls", "magic", "garbage head", "crc", "too long", "name", "token"])
def test_bytes_that_are_no_hello_are_hung_up_on(data, shared_psd, counted):
    with Wire(shared_psd.port) as client:
        client.send(data)
        assert client.is_closed()
    counted.eventually_adds("malformed")


@pytest.mark.parametrize("name", [b"nul\x00x", b"a\nb", b"\x1b[31m", b"\xff\xfe", b"\xc0\x80", b"cut\xc3", b"\xc2\x9b2J"])
def test_a_name_that_is_no_text_is_refused_and_never_truncated(name, shared_psd):
    with shared_psd.connect() as client:
        refusal = client.join(job=name)
        assert refusal.status == STATUS["EPROTO"] and ("join's job" in refusal.text or b"\0" in name)  # no protobuf string at all
        assert client.table(name=name).status == STATUS["EPROTO"]
        assert client.join(job="fine", name=name).status == STATUS["EPROTO"]
        assert "nul" not in [job["name"] for job in shared_psd.admin()["jobs"]]
        assert client.join(job="na\u00efve \u20ac").status == 0


def test_a_finite_gradient_that_would_end_in_nan_is_refused_or_clipped(start_psd):
    """3e38 twice: the squares are infinite in the optimizer's state, then NaN."""
    huge = floats(1, 3e38, -3e38, 2)
    for flags, statuses, counter in ([], [STATUS["ENAN"]] * 2, "huge_pushes"), (["--gradient-over", "clip"], [0, 0], "rows_clipped"):
        psd = start_psd("--shards", "1", *flags)
        with psd.connect() as client:
            table = client.table(name="t", optim=wire.ADAGRAD, lr=0.1, epsilon=1e-8).number(3)
            client.join()
            assert [client.push([1], huge, table=table, seq=1 + i, clock=i).status for i in range(2)] == statuses
            assert all(map(math.isfinite, rows(client.pull([1], table=table, clock=0))[0]))
            eventually(lambda: psd.admin()["totals"]["counters"][counter] == 2)
            assert psd.admin()["totals"]["counters"]["nan_pushes"] == 0


def test_a_client_that_sends_nothing_or_half_a_hello_is_closed(start_psd):
    psd = start_psd("--greeting-timeout", "200ms")
    with Wire(psd.port) as silent, Wire(psd.port) as half:
        with contextlib.suppress(Closed):  # sooner than it could send
            half.send(frame("hello", wire.hello())[:30])
        assert silent.is_closed() and half.is_closed()

    def counts_them():
        try:
            stats = psd.admin()
        except Closed:  # this process, too, may be too slow for such a daemon
            return False
        return stats["totals"]["net"]["slow_peers"] + stats["door"]["slow_peers"] >= 2

    eventually(counts_them)


def test_a_token_is_asked_for_and_compared(start_psd):
    psd = start_psd("--token", "open sesame", "--shards", "1")
    for token in ["", "open sesam", "open sesame!", "Open sesame"]:
        with Wire(psd.port) as client:
            answer = client.hello(token=token)
            assert answer.status == STATUS["EGREETING"] and "token" in answer.text
    with psd.connect(token="open sesame") as client:
        assert client.table().status == 0


def test_connections_beyond_the_limit_are_refused_and_operators_still_accepted(start_psd):
    psd = start_psd("--connections-max", "2", "--shards", "1")
    with psd.connect(), psd.connect():
        with Wire(psd.port) as third:
            answer = third.hello()
            assert answer.status != 0 and "--connections-max" in answer.text
        with psd.connect(wire.LISTENER, "operator") as operator:
            assert operator.admin("status").status == 0

    def is_free():
        with Wire(psd.port) as client:
            return client.hello().status == 0

    eventually(is_free)


# --- heads that make no sense ---

@pytest.mark.parametrize("type_", ["join", "table", "pull", "push", "beat", "leave"])
@pytest.mark.parametrize("garbage", [b"\xff" * 11, b"\x0a\x7fshort", b"\x0b\x0c\x00"],
                         ids=["endless varint", "length past the end", "groups"])
def test_a_head_that_is_no_protobuf_is_refused(type_, garbage, worker, counted):
    answer = worker.ask(type_, garbage)
    assert answer.status == STATUS["EPROTO"] and answer.text
    counted.eventually_adds("refused")


# --- pushes ---

def body_of(key_list, values):
    return keys(*key_list) + values


A, B = HERE[:2]
BAD_PUSHES = {
    "keys out of order": (dict(key_blob=wire.leb(B) + wire.leb((A - B) % (1 << 64)), key_list=[A, B],
                               values=GRAD * 2), "EORDER"),
    "a key twice": (dict(key_blob=wire.leb(A) + b"\0", key_list=[A, A], values=GRAD * 2), "EORDER"),
    "a key past 2^64": (dict(key_blob=b"\xff" * 10, key_list=[A], values=GRAD), "ECOUNT"),
    "a key longer than it need be": (dict(key_blob=b"\x80\x00", key_list=[A], values=GRAD), "ECOUNT"),
    "fewer keys than counted": (dict(key_list=[A], values=GRAD * 2, n_keys=2), "ECOUNT"),
    "more keys than counted": (dict(key_list=[A, B], values=GRAD, n_keys=1), "ECOUNT"),
    "2^32 - 1 keys counted": (dict(key_list=[A], values=GRAD, n_keys=0xFFFFFFFF), "ECOUNT"),
    "no keys, but values": (dict(key_list=[], values=GRAD), None),
    "key bytes past the body": (dict(key_list=[A], values=GRAD, key_bytes=1 << 20), "ECOUNT"),
    "2^32 - 1 key bytes": (dict(key_list=[A], values=GRAD, key_bytes=0xFFFFFFFF), "ECOUNT"),
    "value bytes past the body": (dict(key_list=[A], values=GRAD, value_bytes=1 << 20), "ECOUNT"),
    "value bytes short of the body": (dict(key_list=[A], values=GRAD, value_bytes=12), "ECOUNT"),
    "lengths that sum up past 2^32": (dict(key_list=[A], values=GRAD, key_bytes=0xFFFFFFFF, value_bytes=0xFFFFFFFF),
                                      "ECOUNT"),
    "body longer than its sections": (dict(key_list=[A], values=GRAD, body=body_of([A], GRAD) + b"x"), "ECOUNT"),
    "no body": (dict(key_list=[A], values=GRAD, body=b""), "ECOUNT"),
    "body without sections": (dict(key_list=[A], values=GRAD, raw_sections=[]), "ECOUNT"),
    "NaN": (dict(key_list=[A], values=floats(0, math.nan, 0, 0)), "ENAN"),
    "infinity": (dict(key_list=[A], values=floats(0, 0, 0, math.inf)), "ENAN"),
    "minus infinity": (dict(key_list=[A], values=floats(-math.inf, 0, 0, 0)), "ENAN"),
    "a NaN scale": (dict(key_list=[A], values=floats(math.nan) + bytes(4), codec=wire.INT8), "ENAN"),
    "unknown table": (dict(key_list=[A], values=GRAD, table=777), "ENOTABLE"),
    "table 2^32 - 1": (dict(key_list=[A], values=GRAD, table=0xFFFFFFFF), "ENOTABLE"),
    "rows too narrow": (dict(key_list=[A], values=GRAD[:12]), "EWIDTH"),
    "rows too wide": (dict(key_list=[A], values=GRAD + GRAD), "EWIDTH"),
    "unknown codec": (dict(key_list=[A], values=GRAD, codec=6), "ECODEC"),
    "codec 2^32 - 1": (dict(key_list=[A], values=GRAD, codec=0xFFFFFFFF), "ECODEC"),
    "unknown op": (dict(key_list=[A], values=GRAD, op=5), "EPROTO"),
    "a learning rate with rows": (dict(key_list=[A], values=GRAD, op=3), "ECOUNT"),
    "top 0 of a row": (dict(key_list=[A], values=b"", codec=wire.TOPK, k=0), "ECODEC"),
    "top 5 of 4": (dict(key_list=[A], values=bytes(30), codec=wire.TOPK, k=5), "ECODEC"),
    "top indexes twice": (dict(key_list=[A], values=struct.pack("<HHff", 1, 1, 1, 1), codec=wire.TOPK, k=2), "ECODEC"),
    "top index past the row": (dict(key_list=[A], values=struct.pack("<Hf", 4, 1), codec=wire.TOPK, k=1), "ECODEC"),
    "a key of another shard": (dict(key_list=sorted([A, ELSEWHERE]), values=GRAD * 2), "ESHARD"),
    "a clock far ahead": (dict(key_list=[A], values=GRAD, clock=(1 << 64) - 1), "EPROTO"),
    "257 sections": (dict(key_list=[], values=b"", raw_sections=[section(n_keys=0)] * 257), None),
}


@pytest.mark.parametrize("name", BAD_PUSHES)
def test_a_bad_push_is_refused_whole_and_counted(name, worker, shared_psd, counted):
    fields, status = BAD_PUSHES[name]
    fields = dict({"table": worker.t}, **fields)
    answer = worker.push(**fields)
    assert answer.type == "push_reply" and answer.status < -10000 and answer.text
    if status:
        assert answer.status == STATUS[status], answer.text
    with shared_psd.connect(role="reader") as reader:
        assert rows(reader.pull([A, B], table=worker.t)) == [[0] * 4] * 2
    counted.eventually_adds("refused_pushes")


def test_a_nan_push_is_kept_apart_in_the_counters_and_kept_for_the_operator(worker, shared_psd, counted):
    assert worker.push([A], floats(1, math.nan, 1, 1), table=worker.t, clock=5).status == STATUS["ENAN"]
    counted.eventually_adds("nan")
    refusals = [shard["last_refusal"] for shard in shared_psd.admin()["shards"] if shard["last_refusal"]["n"]]
    assert any(r["table"] == worker.name and r["key"] == A and r["clock"] == 5 for r in refusals)


def test_one_table_in_two_sections_is_refused(worker, counted):
    blob = keys(A)
    one = section(table=worker.t, n_keys=1, key_bytes=len(blob), value_bytes=16)
    answer = worker.push([], b"", raw_sections=[one, one], body=(blob + GRAD) * 2)
    assert answer.status == STATUS["EPROTO"]
    counted.eventually_adds("refused_pushes")


def test_a_refused_push_uses_its_number_up_so_that_the_job_goes_on(worker):
    assert worker.push([A], floats(math.nan, 0, 0, 0), table=worker.t, seq=1).status == STATUS["ENAN"]
    assert worker.push([A], GRAD, table=worker.t, seq=2, clock=1).status == 0


def test_a_push_before_the_join_is_refused(shared_psd, counted):
    with shared_psd.connect() as client:
        table = client.table(name="unjoined").number(3)
        assert client.push([A], GRAD, table=table).status == STATUS["ENOJOIN"]
        assert client.pull([A], table=table).status == STATUS["ENOJOIN"]
        assert client.beat().status == STATUS["ENOJOIN"]
        assert client.leave().status == STATUS["ENOJOIN"]
    counted.eventually_adds("refused", 4)


def test_a_gap_in_the_numbers_is_refused_until_the_missing_push_comes(worker, counted):
    assert worker.push([A], GRAD, table=worker.t, seq=2, clock=1).status == STATUS["ESEQ"]
    counted.eventually_adds("refused_pushes")
    assert worker.push([A], GRAD, table=worker.t, seq=1).status == 0
    assert worker.push([A], GRAD, table=worker.t, seq=2, clock=1).status == 0
    assert rows(worker.pull([A], table=worker.t, clock=2)) == [[-2, -4, -6, -8]]


def test_push_number_0_is_refused(worker):
    answer = worker.push([A], GRAD, table=worker.t, seq=0)
    assert answer.status < -10000 or answer.number(7) == 1  # a fault, or acknowledged long since
    assert rows(worker.pull([A], table=worker.t)) == [[0] * 4]


def test_a_repeated_push_is_applied_once(worker, counted):
    for i in range(3):
        answer = worker.push([A], GRAD, table=worker.t, seq=1)
        assert answer.status == 0 and answer.number(7) == (i > 0)
    assert rows(worker.pull([A], table=worker.t, clock=1)) == [[-1, -2, -3, -4]]
    counted.eventually_adds("repeated", 2)


def test_a_connection_dropped_at_every_byte_of_a_push_applies_it_exactly_once(shared_psd, request):
    name = "every.byte"
    with shared_psd.connect() as client:
        table = client.table(name=name).number(3)
    data = push_frame([A, B], GRAD * 2, table=table, seq=1)
    for n in range(len(data) + 1):
        with shared_psd.connect() as client:
            answer = client.join(job=name)
            assert answer.status == 0 and answer.number(3) == 0
            if n == len(data):
                client.send(data)
                assert client.reply().status == 0
            else:
                client.send(data[:n])
    with shared_psd.connect() as client:
        assert client.join(job=name).number(3) == 1
        again = client.push([A, B], GRAD * 2, table=table, seq=1)
        assert again.status == 0 and again.number(7) == 1
        assert rows(client.pull([A, B], table=table, clock=1)) == [[-1, -2, -3, -4]] * 2


# --- compressed bodies ---

def compress(data):
    zstd = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
    zstd.ZSTD_compress.restype = ctypes.c_size_t
    out = ctypes.create_string_buffer(len(data) + 1024)
    n = zstd.ZSTD_compress(out, ctypes.c_size_t(len(out)), data, ctypes.c_size_t(len(data)), 1)
    return out.raw[:n]


def bomb(n_blocks, size_field=b""):
    """RLE blocks of 128 KiB of zeros, 4 bytes each (RFC 8878, 3.1.1)."""
    frame_head = b"\x28\xb5\x2f\xfd" + (b"\x80\x60" if size_field else b"\x00\x60") + size_field
    block = (1 << 17 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    return frame_head + block * (n_blocks - 1) + (1 << 17 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"


def test_a_compressed_push_is_understood(worker):
    answer = worker.push([A], GRAD, table=worker.t, flags=wire.ZSTD, body=compress(body_of([A], GRAD)))
    assert answer.status == 0
    assert rows(worker.pull([A], table=worker.t, clock=1)) == [[-1, -2, -3, -4]]


BAD_ZSTD = {
    "garbage": (b"this is no zstd frame", "ECORRUPT"),
    "empty": (b"", None),
    "cut off": (compress(body_of([A], GRAD))[:-3], "ECORRUPT"),
    "two frames": (compress(body_of([A], GRAD)) * 2, None),
    "bytes behind it": (compress(body_of([A], GRAD)) + b"more", None),
    "a bomb of 256 MiB that does not say its size": (bomb(2048), "ECORRUPT"),
    "a bomb that says its size": (bomb(2048, (1 << 28).to_bytes(4, "little")), "ETOOBIG"),
    "a bomb that lies about its size": (bomb(2048, (40).to_bytes(4, "little")), None),
}


@pytest.mark.parametrize("name", BAD_ZSTD)
def test_a_compressed_body_that_is_wrong_is_refused(name, worker, counted):
    body, status = BAD_ZSTD[name]
    answer = worker.push([A], GRAD, table=worker.t, flags=wire.ZSTD, body=body)
    assert answer.status < -10000 and answer.text
    if status:
        assert answer.status == STATUS[status], answer.text
    counted.eventually_adds("refused_pushes")
    assert rows(worker.pull([A], table=worker.t)) == [[0] * 4]


# --- pulls ---

BAD_PULLS = {
    "unknown table": (dict(key_list=[A], table=777), "ENOTABLE"),
    "unknown codec": (dict(key_list=[A], codec=99), "ECODEC"),
    "keys out of order": (dict(key_list=[B, A]), "EORDER"),
    "count lies": (dict(key_list=[A], n_keys=9), "ECOUNT"),
    "length lies": (dict(key_list=[A], key_bytes=3), "ECOUNT"),
    "values in a question": (dict(key_list=[A], value_bytes=16), "ECOUNT"),
    "a key of another shard": (dict(key_list=[ELSEWHERE]), "ESHARD"),
    "an answer beyond the frame": (dict(key_list=[A], n_keys=1 << 20), None),
}


@pytest.mark.parametrize("name", BAD_PULLS)
def test_a_bad_pull_is_refused_with_a_sentence(name, worker, counted):
    fields, status = BAD_PULLS[name]
    answer = worker.pull(**dict({"table": worker.t}, **fields))
    assert answer.type == "pull_reply" and answer.status < -10000 and answer.text and not answer.body
    if status:
        assert answer.status == STATUS[status], answer.text
    counted.eventually_adds("refused_pulls")


def test_a_pull_that_waits_too_long_says_for_whom_and_holds_nothing_up(shared_psd, counted):
    with shared_psd.connect() as fast, shared_psd.connect() as slow:
        table = fast.table(name="parked").number(3)
        fast.join(job="parked", rank=0, n_workers=2, mode=wire.BSP, name="the fast one")
        slow.join(job="parked", rank=1, n_workers=2, mode=wire.BSP, name="the slow one")
        assert fast.push([A], GRAD, table=table).status == 0
        fast.send(pull_frame([A], table=table, clock=1, deadline_ms=300000, request_id=500))
        assert fast.beat().status == 0  # passes the parked pull
        why = []

        def shows():
            why[:] = [w for w in shared_psd.admin("why")["waits"] if w["what"] == "parked pull"]
            return why

        eventually(shows)
        assert "the slow one" in why[0]["why"] and "parked" in why[0]["who"] and why[0]["until_unix_ms"]
        fast.send(pull_frame([A], table=table, clock=1, deadline_ms=400, request_id=501))
        answer = fast.wait(501)
        assert answer.status == STATUS["EDEADLINE"]
        assert answer.text == "min clock is 0, needs 1: worker 1 (the slow one) is at 0"
        counted.eventually_adds("expired")
        assert slow.push([A], GRAD, table=table).status == 0
        assert rows(fast.wait(500)) == [[-1, -2, -3, -4]]  # the mean of both


def test_pulls_beyond_what_a_connection_may_park_are_refused(shared_psd, counted):
    with shared_psd.connect() as fast:
        table = fast.table(name="many.parked").number(3)
        fast.join(job="many", rank=0, n_workers=2, mode=wire.BSP)
        fast.push([A], GRAD, table=table)
        for i in range(N_PARKED_MAX + 1):
            fast.send(pull_frame([A], table=table, clock=1, request_id=100 + i))
        answer = fast.wait(100 + N_PARKED_MAX)
        assert answer.status < 0 and "parked" in answer.text
        counted.eventually_adds("refused_pulls")
    eventually(lambda: not [w for w in shared_psd.admin("why")["waits"] if w["what"] == "parked pull"])


# --- tables and jobs ---

def test_a_table_asked_for_with_another_specification_is_refused_by_the_field(shared_psd, counted):
    with shared_psd.connect() as client:
        assert client.table(name="same", dim=16).status == 0
        assert client.table(name="same", dim=16).status == 0
        answer = client.table(name="same", dim=32)
        assert answer.status == STATUS["ESPEC"]
        assert "same" in answer.text and "dim" in answer.text and "16" in answer.text and "32" in answer.text
        assert client.table(name="same", dim=16, lr=0.5).status == STATUS["ESPEC"]
        assert client.table(must_exist=True, name="nowhere").status == STATUS["ENOTABLE"]
    counted.eventually_adds("refused", 2)  # whether a table is there is a question, and no is an answer


BAD_SPECS = {
    "no name": dict(name=""),
    "a blank in the name": dict(name="a b"),
    "a line feed in the name": dict(name="a\nb"),
    "a long name": dict(name="n" * 128),
    "dim 0": dict(dim=0),
    "dim beyond the limit": dict(dim=16385),
    "an unknown kind": dict(kind=2),
    "a sparse table with a length": dict(n_floats=5),
    "a dense table without one": dict(kind=1, n_floats=0),
    "a dense table of 2^63 floats": dict(kind=1, n_floats=1 << 63),
    "an unknown start": dict(init=3),
    "a NaN scale": dict(init=1, init_scale=math.nan),
    "a negative scale": dict(init=1, init_scale=-1.0),
    "an unknown optimizer": dict(optim=99),
    "optimizer 2^32 - 1": dict(optim=0xFFFFFFFF),
    "a NaN rate": dict(lr=math.nan),
    "an infinite rate": dict(lr=math.inf),
    "a negative rate": dict(lr=-1.0),
    "a negative clip": dict(clip=-1.0),
    "an unknown decay": dict(decay=99),
    "an unknown mode": dict(mode=4),
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_a_specification_out_of_range_is_refused_with_a_sentence(name, shared_psd, counted):
    with shared_psd.connect() as client:
        answer = client.table(**dict({"name": "bad.spec"}, **BAD_SPECS[name]))
        assert answer.type == "table_reply" and answer.status < -10000 and answer.text
        assert client.table(must_exist=True, name="bad.spec").status == STATUS["ENOTABLE"]
    counted.eventually_adds("refused", 1)


def test_a_reader_changes_nothing(shared_psd, counted):
    with shared_psd.connect(role="reader") as client:
        assert client.table(name="by.reader").status != 0
        assert client.join(job="by.reader").status != 0
        assert client.push([A], GRAD).status == STATUS["ENOJOIN"]
    counted.eventually_adds("refused", 3)


BAD_JOINS = {
    "no job": dict(job=""),
    "rank beyond the workers": dict(rank=3, n_workers=3),
    "no workers": dict(n_workers=0),
    "too many workers": dict(n_workers=1 << 20),
    "an unknown mode": dict(mode=9),
    "the job's own mode": dict(mode=wire.MODE_JOB),
}


FIELDS = {"no job": "job's name", "rank beyond the workers": "rank 3", "no workers": "0 workers", "too many workers": "1048576 workers",
          "an unknown mode": "mode: expected 1, 2 or 3", "the job's own mode": "mode: expected 1, 2 or 3"}


@pytest.mark.parametrize("name", BAD_JOINS)
def test_a_join_that_makes_no_sense_is_refused_with_a_sentence(name, shared_psd, counted):
    with shared_psd.connect() as client:
        answer = client.join(**dict({"job": "bad.join"}, **BAD_JOINS[name]))
        assert answer.type == "join_reply" and answer.status < 0
        assert FIELDS[name] in answer.text
        assert client.beat().status == STATUS["ENOJOIN"]
    counted.eventually_adds("refused", 2)


def test_a_job_joined_with_other_settings_is_refused_by_the_setting(shared_psd, counted):
    with shared_psd.connect() as first, shared_psd.connect() as second:
        assert first.join(job="settings", n_workers=2, mode=wire.SSP, bound=3).status == 0
        for more in [dict(mode=wire.BSP), dict(mode=wire.SSP, bound=4), dict(mode=wire.SSP, bound=3, n_workers=3)]:
            answer = second.join(**dict(dict(job="settings", rank=1, n_workers=2), **more))
            assert answer.status == STATUS["EJOB"] and answer.text
    counted.eventually_adds("refused", 3)


def test_an_older_incarnation_is_fenced(shared_psd, counted):
    with shared_psd.connect() as old, shared_psd.connect() as new:
        table = old.table(name="fenced").number(3)
        assert old.join(job="fenced", incarnation=1).status == 0
        assert old.push([A], GRAD, table=table).status == 0
        assert new.join(job="fenced", incarnation=2).status == 0
        assert old.push([A], GRAD, table=table, seq=2, clock=1).status == STATUS["EFENCED"]
        assert old.pull([A], table=table).status == STATUS["EFENCED"]
        assert old.beat().status == STATUS["EFENCED"]
        assert old.join(job="fenced", incarnation=1).status == STATUS["EFENCED"]
        assert rows(new.pull([A], table=table)) == [[-1, -2, -3, -4]]
    counted.eventually_adds("fenced")


def test_a_parked_pull_of_a_worker_that_is_replaced_is_fenced(shared_psd):
    with shared_psd.connect() as old, shared_psd.connect() as new:
        table = old.table(name="replaced").number(3)
        old.join(job="replaced", n_workers=2, mode=wire.BSP, incarnation=1)
        assert old.push([A], GRAD, table=table).status == 0
        old.send(pull_frame([A], table=table, clock=1, request_id=70))
        assert old.beat().status == 0
        assert new.join(job="replaced", n_workers=2, mode=wire.BSP, incarnation=2).status == 0
        assert old.wait(70).status == STATUS["EFENCED"]


def test_the_memory_budget_refuses_new_rows_and_keeps_the_old(start_psd):
    psd = start_psd("--shards", "1", "--memory-max", "1M")
    with psd.connect() as client:
        table = client.table(name="full", dim=64).number(3)
        client.join(job="full")
        refused, seq, row = 0, 0, floats(*[1.0] * 64)
        while not refused and seq < 200:
            batch = list(range(seq * 100, seq * 100 + 100))
            seq += 1
            answer = client.push(batch, row * 100, table=table, seq=seq, clock=seq - 1)
            assert answer.status in (0, STATUS["EBUDGET"])
            refused += answer.number(6) or answer.status != 0
        assert refused
        answer = client.push([0], row, table=table, seq=seq + 1, clock=seq)
        assert answer.status == 0 and not answer.number(6)
        assert rows(client.pull([0], table=table, clock=seq + 1), 64) == [[-2.0] * 64]
    eventually(lambda: psd.admin()["totals"]["counters"]["rows_refused"] > 0)
    assert psd.admin()["totals"]["bytes"] <= 1 << 20


# --- operators ---

def test_an_unknown_command_is_refused_with_those_there_are(shared_psd):
    with shared_psd.connect(wire.LISTENER, "operator") as client:
        answer = client.admin("reboot")
        assert answer.status != 0 and "status" in answer.text and "reboot" in answer.text
        assert client.admin("checkpoint").status != 0  # no data directory
        assert client.ask("admin", b"\xff" * 11).status == STATUS["EPROTO"]
        client.send(push_frame([A], GRAD))
        assert client.is_closed()


def test_a_worker_at_the_listener_gets_the_map(shared_psd):
    with Wire(shared_psd.port) as client:
        answer = client.hello(shard=wire.LISTENER)
        assert answer.status == 0
        assert answer.fields[4] == [f"127.0.0.1:{shared_psd.port}".encode()]
        assert answer.number(6) == N_SHARDS and answer.number(7)
        map_id = answer.number(7)
    with shared_psd.connect(shard=1, map_id=map_id) as client:
        assert client.table(name="mapped").status == 0

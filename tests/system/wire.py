"""A client of psd's wire that can also say wrong things: frames and heads are made byte by byte from
proto/README.md's tables, with nothing of the C code in between."""

import itertools
import socket
import struct

MAGIC = b"PSD1"
LISTENER = 0xFFFFFFFF
ZSTD, SUM_BEHIND = 1, 2

TYPES = ("hello hello_reply join join_reply table table_reply pull pull_reply push push_reply "
         "beat beat_reply leave leave_reply admin admin_reply follow follow_reply file file_reply fetch fetch_reply "
         "watch watch_reply").split()
TYPE = {name: number for number, name in enumerate(TYPES, 1)}

STATUS = {name: -10001 - i for i, name in enumerate(
    "EPROTO ECORRUPT ENOTABLE EWIDTH ESHARD EDEVICE ESPEC EBUDGET EFENCED ESEQ EDEADLINE ENAN EORDER ECODEC "
    "EVERSION EGREETING EJOB ETOOBIG ECLUSTER ESTOPPING EDATA ESETTING ENOJOIN ECOUNT ENOCHECKPOINT EHTTP ENOTFILE EMOVED EKEYS".split())}
STATUS |= {"EDENIED": -10040, "ETLSPLAIN": -10042}

SPARSE, DENSE = 0, 1
SGD, MOMENTUM, ADAGRAD = 0, 1, 2
GRADIENT, ASSIGN, ASSIGN_STATE = 0, 1, 2
FP32, BF16, FP16, INT8, ONEBIT, TOPK = range(6)
MODE_JOB, ASYNC, SSP, BSP = range(4)


def _crc_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ 0x82F63B78 if n & 1 else n >> 1
        table.append(n)
    return table


_CRC = _crc_table()


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


# --- protobuf, as far as ps.proto uses it ---

def varint(n):
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def head(*fields):
    """(number, value): int -> varint, float -> fixed32, str or bytes -> length-delimited, list -> repeated."""
    out = b""
    for number, value in fields:
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, float):
                out += varint(number << 3 | 5) + struct.pack("<f", item)
            elif isinstance(item, (str, bytes)):
                item = item.encode() if isinstance(item, str) else item
                out += varint(number << 3 | 2) + varint(len(item)) + item
            elif item:
                out += varint(number << 3) + varint(int(item))
    return out


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def parse(data):
    """{number: [values]}"""
    fields, at = {}, 0
    while at < len(data):
        tag, at = read_varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = read_varint(data, at)
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        elif kind == 2:
            n, at = read_varint(data, at)
            value, at = data[at:at + n], at + n
        else:
            raise ValueError(f"wire type {kind}")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def zigzag(n):
    return n >> 1 ^ -(n & 1)


class Reply:
    """A reply's type, fields by number, status, text and body."""

    def __init__(self, type_, request_id, flags, head_, body):
        self.type, self.request_id, self.flags, self.body = type_, request_id, flags, body
        self.fields = parse(head_)
        self.status = zigzag(self.number(1))
        self.text = self.fields.get(2, [b""])[0].decode()

    def number(self, field):
        return self.fields.get(field, [0])[0]

    def numbers(self, field):
        """A repeated integer, packed or not."""
        out = []
        for item in self.fields.get(field, []):
            if isinstance(item, int):
                out.append(item)
                continue
            at = 0
            while at < len(item):
                value, at = read_varint(item, at)
                out.append(value)
        return out


def frame(type_, head_=b"", body=b"", request_id=1, flags=0, magic=MAGIC, crc=None,
          head_bytes=None, body_bytes=None, sum_behind=None):
    """One frame; what is given overrides what is true."""
    number = TYPE[type_] if isinstance(type_, str) else type_
    start = magic + struct.pack("<BBHIQ", number, flags,
                                len(head_) if head_bytes is None else head_bytes,
                                len(body) if body_bytes is None else body_bytes, request_id)
    whole = crc32c(start + head_ + body)
    if not flags & SUM_BEHIND:
        return start + struct.pack("<I", whole if crc is None else crc) + head_ + body
    return (start + struct.pack("<I", crc32c(start + head_) if crc is None else crc) + head_ + body +
            struct.pack("<I", whole if sum_behind is None else sum_behind))


# --- keys ---

def leb(n):
    return varint(n)


def keys(*ascending):
    """Delta-coded, without a look at the order."""
    out, last = b"", 0
    for i, key in enumerate(ascending):
        out += leb((key - last) % (1 << 64) if i else key)
        last = key
    return out


def mix(x):
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & mask
    return x ^ x >> 31


def shard_of(key, n_shards):
    return (mix(key) >> 52) * n_shards // 4096


def keys_of(shard, n_shards, n):
    """The first n keys that live on a shard."""
    return list(itertools.islice((k for k in itertools.count(1) if shard_of(k, n_shards) == shard), n))


# --- messages ---

def hello(role="worker", shard=0, token="", version=(1, 1), map_id=0, name="wire.py", frame_flags=0):
    return head((1, version[0]), (2, version[1]), (3, role), (4, token), (5, shard), (6, map_id), (7, name),
                (8, frame_flags))


def spec(name="t", kind=SPARSE, dim=4, n_floats=0, seed=1, init=0, init_scale=0.0, optim=SGD, lr=1.0, mode=MODE_JOB,
         bound=0, clip=0.0, epsilon=0.0, warmup=0, decay=0):
    params = head((1, float(lr)), (2, float(epsilon)))
    return head((1, name), (2, kind), (3, dim), (4, n_floats), (5, seed), (6, init), (7, float(init_scale)), (8, optim),
                (9, params), (10, warmup), (11, decay), (16, float(clip)), (17, mode), (18, bound))


def section(table=0, op=GRADIENT, codec=FP32, k=0, n_keys=0, key_bytes=0, value_bytes=0, state=False, steps=0,
            present=False, scan_bytes=0, cursor=0):
    return head((1, table), (2, op), (3, codec), (4, k), (5, n_keys), (6, key_bytes), (7, value_bytes), (8, int(state)),
                (9, steps), (10, int(present)), (11, scan_bytes), (12, cursor))


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


def push_frame(key_list, values, table=0, seq=1, clock=0, samples=1, tick=True, request_id=1, flags=0, body=None,
               key_blob=None, raw_sections=None, **wrong):
    """`wrong` overrides fields of the section."""
    blob = keys(*key_list) if key_blob is None else key_blob
    fields = dict(table=table, n_keys=len(key_list), key_bytes=len(blob), value_bytes=len(values))
    fields.update(wrong)
    sections = [section(**fields)] if raw_sections is None else raw_sections
    return frame("push", head((1, seq), (2, clock), (3, samples), (4, int(tick)), (5, sections)),
                 blob + values if body is None else body, request_id, flags)


def pull_frame(key_list, table=0, clock=0, deadline_ms=0, request_id=1, codec=FP32, key_blob=None, **wrong):
    blob = keys(*key_list) if key_blob is None else key_blob
    fields = dict(table=table, codec=codec, n_keys=len(key_list), key_bytes=len(blob))
    fields.update(wrong)
    return frame("pull", head((1, clock), (2, deadline_ms), (3, [section(**fields)])), blob, request_id)


class Closed(Exception):
    """The daemon hung up."""


class Wire:
    """One connection. Requests are numbered; a reply to another request than the last is kept for wait()."""

    def __init__(self, port, host="127.0.0.1", timeout=60, source=None):
        self.socket = socket.create_connection((host, port), timeout, source and (source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ids = itertools.count(1)
        self.kept = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as e:
            raise Closed from e

    def read(self, n):
        data = b""
        while len(data) < n:
            try:
                more = self.socket.recv(n - len(data))
            except ConnectionResetError as e:
                raise Closed from e
            if not more:
                raise Closed
            data += more
        return data

    def reply(self):
        start = self.read(24)
        type_, flags, head_bytes, body_bytes, request_id, crc = struct.unpack("<BBHIQI", start[4:])
        head_, body = self.read(head_bytes), self.read(body_bytes)
        whole = crc32c(start[:20] + head_ + body)
        if flags & SUM_BEHIND:
            assert crc == crc32c(start[:20] + head_)
            crc = struct.unpack("<I", self.read(4))[0]
        assert start[:4] == MAGIC and crc == whole
        return Reply(TYPES[type_ - 1], request_id, flags, head_, body)

    def wait(self, request_id):
        while request_id not in self.kept:
            got = self.reply()
            self.kept[got.request_id] = got
        return self.kept.pop(request_id)

    def is_closed(self):
        """Has the daemon hung up (it may have said something before)?"""
        try:
            while True:
                self.reply()
        except Closed:
            return True
        except socket.timeout:
            return False

    def ask(self, type_, head_=b"", body=b"", **more):
        request_id = next(self.ids)
        self.send(frame(type_, head_, body, request_id, **more))
        return self.wait(request_id)

    def hello(self, **fields):
        return self.ask("hello", hello(**fields))

    def table(self, must_exist=False, **fields):
        return self.ask("table", head((1, spec(**fields)), (2, int(must_exist))))

    def join(self, job="job", rank=0, n_workers=1, incarnation=1, mode=ASYNC, bound=0, clock=0, last_acked=0,
             name="wire.py", relays=0):
        return self.ask("join", head((1, job), (2, rank), (3, n_workers), (4, incarnation), (5, mode), (6, bound),
                                     (7, clock), (8, last_acked), (9, name), (10, relays)))

    def push(self, key_list, values, **fields):
        request_id = next(self.ids)
        self.send(push_frame(key_list, values, request_id=request_id, **fields))
        return self.wait(request_id)

    def pull(self, key_list, **fields):
        request_id = next(self.ids)
        self.send(pull_frame(key_list, request_id=request_id, **fields))
        return self.wait(request_id)

    def beat(self, clock=0):
        return self.ask("beat", head((1, clock)))

    def leave(self, clock=0):
        return self.ask("leave", head((1, clock)))

    def admin(self, command, argument=""):
        return self.ask("admin", head((1, command), (2, argument)))


def rows(reply, dim=4):
    """The fp32 rows of a pull's reply."""
    values = struct.unpack(f"<{len(reply.body) // 4}f", reply.body)
    return [list(values[i:i + dim]) for i in range(0, len(values), dim)]

"""Ways between a primary and its standby that alter answers about records."""

import struct
import threading

import wire
from relay import Relay

AUDIT = 10  # of FetchReply
ONE_ROW = 8 + 24
CHECKSUM = -20  # of the last row
RECORD_HEADER, TYPE_AT = 40, 32  # server/wal/wal_record.h
UNKNOWN_TYPE = 99


class AlteredWay(Relay):
    alters = is_down = False
    goes_down = True  # once it has altered an answer

    def __init__(self, target):
        self.is_over = threading.Event()
        super().__init__(target)

    def connect(self):
        if self.is_down:
            raise OSError
        return super().connect()

    def pieces(self, source, is_answer):
        """Where it is down no connection ends: it says nothing to the standby behind it."""
        while True:
            try:
                data, is_altered = self.frame(source) if is_answer else (source.recv(1 << 16), False)
            except OSError:
                data, is_altered = b"", False
            if self.is_down:
                self.is_over.wait()
            if not data or self.is_over.is_set():
                return
            self.is_down = is_altered and self.goes_down
            yield data

    def close(self):
        self.is_over.set()
        super().close()

    def frame(self, primary):
        """The next one, altered if that can be done and is to be done."""
        start = self.read(primary, 24)
        number, flags, head_bytes, body_bytes, request_id, _ = struct.unpack("<BBHIQI", start[4:])
        head, rest = self.read(primary, head_bytes), self.read(primary, body_bytes + 4 * bool(flags & wire.SUM_BEHIND))
        is_meant = self.alters and wire.TYPES[number - 1] == "fetch_reply"
        altered = self.alter(head, rest[:body_bytes]) if is_meant else None
        if not altered:
            return start + head + rest, False
        self.alters = not self.goes_down
        return wire.frame(number, *altered, request_id, flags), True

    def alter(self, head, body):
        """Another checksum of the audit's last row; None: there is no row."""
        rows = wire.parse(head).get(AUDIT, [b""])[0]
        if len(rows) < ONE_ROW:
            return None
        return head.replace(rows, rows[:CHECKSUM] + bytes([rows[CHECKSUM] ^ 1]) + rows[CHECKSUM + 1:]), body

    @staticmethod
    def read(source, n):
        data = b""
        while len(data) < n:
            more = source.recv(n - len(data))
            if not more:
                raise OSError
            data += more
        return data


class NewerWay(AlteredWay):
    """The first record of each answer is of a type that no psd knows yet, as long as it alters."""

    goes_down = False

    def alter(self, head, body):
        if not body:
            return None
        end = RECORD_HEADER + struct.unpack_from("<I", body, 4)[0]
        sealed = body[4:TYPE_AT] + struct.pack("<I", UNKNOWN_TYPE) + body[TYPE_AT + 4:end]
        return head, struct.pack("<I", wire.crc32c(sealed)) + sealed + body[end:]

"""A way between a primary and its standby that alters a row of the primary's audit, and is down behind that."""

import socket
import struct
import threading

import wire

AUDIT = 10  # of FetchReply
ONE_ROW = 8 + 24
CHECKSUM = -20  # of the last row


class AlteredWay:
    def __init__(self, primary):
        self.primary = primary
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.alters = self.is_down = False
        self.held = []  # nobody hears behind it that the way is down
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                standby, _ = self.listener.accept()
            except OSError:
                return
            try:
                if self.is_down:
                    raise OSError
                primary = socket.create_connection(self.primary)
            except OSError:
                standby.close()
                continue
            self.held.append(standby)
            threading.Thread(target=self.ask, args=(standby, primary), daemon=True).start()
            threading.Thread(target=self.answer, args=(primary, standby), daemon=True).start()

    def ask(self, standby, primary):
        try:
            while (data := standby.recv(1 << 16)) and not self.is_down:
                primary.sendall(data)
        except OSError:
            pass
        if self.is_down:
            self.held.append(primary)  # it is not told, and does not go on alone
        else:
            primary.close()

    def answer(self, primary, standby):
        try:
            while True:
                data, is_altered = self.frame(primary)
                if self.is_down:
                    return
                self.is_down = is_altered
                standby.sendall(data)
        except OSError:
            pass

    def frame(self, primary):
        """The next one, with another checksum of the last row if it has rows and they are to be altered."""
        start = self.read(primary, 24)
        number, flags, head_bytes, body_bytes, request_id, _ = struct.unpack("<BBHIQI", start[4:])
        head, rest = self.read(primary, head_bytes), self.read(primary, body_bytes + 4 * bool(flags & wire.SUM_BEHIND))
        if not self.alters or wire.TYPES[number - 1] != "fetch_reply":
            return start + head + rest, False
        rows = wire.parse(head).get(AUDIT, [b""])[0]
        if len(rows) < ONE_ROW:
            return start + head + rest, False
        self.alters = False
        altered = head.replace(rows, rows[:CHECKSUM] + bytes([rows[CHECKSUM] ^ 1]) + rows[CHECKSUM + 1:])
        return wire.frame(number, altered, rest[:body_bytes], request_id, flags), True

    @staticmethod
    def read(source, n):
        data = b""
        while len(data) < n:
            more = source.recv(n - len(data))
            if not more:
                raise OSError
            data += more
        return data

    def close(self):
        self.listener.close()
        for end in self.held:
            end.close()

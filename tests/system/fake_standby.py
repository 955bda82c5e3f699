"""A standby for tests of the primary: it follows, copies and fetches as proto/README.md says, keeps records as bytes, and can lie."""

import socket
import struct
import threading

import wire

GO_ON, COPY, TAKE_OVER = 1, 2, 3


def terms_body(terms):
    """[(term, [first of each shard])]"""
    return b"".join(struct.pack(f"<{1 + len(first)}Q", term, *first) for term, first in terms)


def read_terms(body, n_shards):
    step = 8 * (1 + n_shards)
    out = []
    for at in range(0, len(body), step):
        term, *first = struct.unpack(f"<{1 + n_shards}Q", body[at:at + step])
        out.append((term, first))
    return out


class Peer:
    """Listens where the standby is said to be, and answers each question of who the primary is as answers(n) says: a group's term and
    primary, or None: it knows of no group. n is 1, 2, ..."""

    def __init__(self, address, answers):
        self.address, self.answers, self.n, self.n_answered = address, answers, 0, 0
        host, port = address.split(":")
        self.listener = socket.create_server((host, int(port)))
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                self.n += 1
                answer = self.answers(self.n)
                group = wire.head((1, answer[0]), (2, answer[1])) if answer else None
                connection.settimeout(10)
                try:
                    connection.recv(4096)
                    connection.sendall(wire.frame("hello_reply", wire.head(
                        (3, 1), (4, self.address), (6, 2), (7, 5), (8, 1 << 20), *([(9, group)] if group else []), (10, 1))))
                    self.n_answered += 1
                    connection.recv(4096)
                except OSError:
                    pass

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


class Refused(Exception):
    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status, self.text = status, text


def split(body):
    """[(number, type, bytes)] of a fetch's body; every crc is checked."""
    out, at = [], 0
    while at < len(body):
        crc, n_bytes, number = struct.unpack_from("<IIQ", body, at)
        end = at + (40 + n_bytes + 7) // 8 * 8
        assert wire.crc32c(body[at + 4:at + 40 + n_bytes]) == crc
        out.append((number, struct.unpack_from("<I", body, at + 32)[0], body[at:end]))
        at = end
    assert at == len(body)
    return out


class Standby:
    def __init__(self, psd, name="standby-1", address="127.0.0.1:9", settings=None, memory=1 << 50):
        self.psd, self.name, self.address, self.memory = psd, name, address, memory
        self.n_shards = psd.n_shards
        self.settings = settings
        self.history, self.terms, self.term = 0, [], 0
        self.records = [[] for _ in range(self.n_shards)]  # from first[i] on
        self.first = [1] * self.n_shards
        self.main = None
        self.threads, self.stops, self.clients = [], threading.Event(), []
        self.failures = []
        self.writes = True  # what it gets is on its disk

    def last(self):
        return [f + len(r) - 1 for f, r in zip(self.first, self.records)]

    def connect(self):
        self.main = wire.Wire(self.psd.port)
        answer = self.main.hello(role="standby", shard=wire.LISTENER, name=self.name)
        if answer.status:
            raise Refused(answer.status, answer.text)

    def their_settings(self):
        """The sentence of a refusal says what the primary has, word by word."""
        words = []
        while True:
            answer = self.main.ask("follow", self.follow_head(" ".join(words)))
            if not answer.status:
                return " ".join(words)
            found = answer.text.partition("the primary has ")[2].partition(", and the standby has none")[0]
            if not found or len(words) > 30:
                raise Refused(answer.status, answer.text)
            words.append(found)

    def follow_head(self, settings, term=0, last=None):
        return wire.head((1, term), (2, self.history), (4, self.memory), (5, settings), (6, "cpu"), (7, self.address),
                         (8, b"".join(wire.varint(n) for n in (last or self.last()))))

    def follow(self, last=None):
        """The action; adopts the primary's terms."""
        if not self.main:
            self.connect()
        if self.settings is None:
            self.settings = self.their_settings()
        answer = self.main.ask("follow", self.follow_head(self.settings, self.term, last), terms_body(self.terms))
        if answer.status:
            raise Refused(answer.status, answer.text)
        action = answer.number(5)
        self.keep = answer.numbers(6)
        if action == TAKE_OVER:
            return action
        self.history, self.term = answer.number(4), answer.number(3)
        self.terms = read_terms(answer.body, self.n_shards)
        if action == GO_ON:
            for i, keep in enumerate(self.keep):
                del self.records[i][keep - self.first[i] + 1:]
        return action

    def files(self):
        """{name: bytes}, in their order."""
        out = {}
        answer = self.main.ask("file", wire.head((1, "")))
        assert answer.status == 0, answer.text
        for line in answer.body.decode().splitlines():
            size, name = line.split(" ", 1)
            data = b""
            while len(data) < int(size):
                part = self.main.ask("file", wire.head((1, name), (2, len(data)), (3, 1 << 16)))
                assert part.status == 0, part.text
                assert part.number(3) == int(size)
                data += part.body
            out[name] = data
        return out

    def shard(self, i):
        client = wire.Wire(self.psd.port)
        answer = client.hello(role="standby", shard=i, name=self.name)
        if answer.status:
            raise Refused(answer.status, answer.text)
        return client

    def fetch(self, client, i, wait_ms=0, max_bytes=0, durable=None, term=None, next_=None):
        """One FETCH; its records are added."""
        next_ = next_ or self.last()[i] + 1
        answer = client.ask("fetch", wire.head(
            (1, self.term if term is None else term), (2, next_), (3, next_ - 1 if durable is None else durable),
            (4, next_ - 1), (5, wait_ms), (6, max_bytes)))
        if answer.status:
            raise Refused(answer.status, answer.text)
        got = split(answer.body)
        assert len(got) == answer.number(5)
        for number, _, data in got:
            assert number == self.last()[i] + 1
            self.records[i].append(data)
        return answer

    def _run(self, i):
        try:
            while not self.stops.is_set():
                self.fetch(self.clients[i], i, wait_ms=200, durable=None if self.writes else 0)
        except (wire.Closed, socket.timeout, OSError) as e:
            self.failures.append(e)
        except Refused as e:
            self.failures.append(e)

    def start(self):
        """Fetches of all shards, by threads."""
        self.stops.clear()
        self.clients = [self.shard(i) for i in range(self.n_shards)]
        self.threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(self.n_shards)]
        for thread in self.threads:
            thread.start()

    def stop(self):
        """Silent from now on; the connections stay."""
        self.stops.set()
        for thread in self.threads:
            thread.join()
        self.threads = []

    def close(self):
        self.stop()
        for client in self.clients:
            client.close()
        self.clients = []
        if self.main:
            self.main.close()
            self.main = None

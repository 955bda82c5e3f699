"""Hostile peers, run as a program of its own so that they take no time from the test's clients:

    hostile.py zstd PORT N    readers of shard 0 that send compressed frames without an end
    hostile.py heads PORT N   readers of shard 0 that send pushes and pulls whose heads name 32,000 empty sections
    hostile.py bytes PORT N   readers of shard 0 that begin such a push with a body of 32 MiB, and send that byte by byte, 1000
                              bytes a second from all of them
    hostile.py drip PORT N    HTTP clients that send a line of their request's head every 0.5 s

    hostile.py silent PORT N  peers of 127.0.0.2 and 127.0.0.3 that connect and say nothing; one that is hung up on
                              begins again
    hostile.py greeted PORT N the same behind a good hello
    hostile.py asked PORT N   the same with one request, from 127.0.0.2 to 127.0.0.9
    hostile.py keys PORT N    readers of shard 0 that ask table 0 for keys of 64 MiB in 2 KB, again and again
    hostile.py unfinished PORT N  readers of shard 0 that send 20 MiB of a frame of 60 MiB, hang up and begin again
    hostile.py hoard PORT N   readers of shard 0 that pull 16 MiB of table 0 again and again, and read nothing
    hostile.py scans PORT N   readers of shard 0 that scan table 0, two times a row in each request, from anywhere
    hostile.py joined-scans PORT N  the same of workers, which have joined a job of their own
    hostile.py topk-scans PORT N    readers that scan it for as many bytes as there are, of which they want one float a row
    hostile.py states PORT N  workers that pull the state of 4,000 keys that are not there, again and again
    hostile.py unread-scans PORT N  readers that ask for many scans of table 0 at once, of all bytes, and read nothing
    hostile.py unread-states PORT N  the same, for the state of 15,000 keys of table 0 that are not there

They go on until stdin closes. It prints "ready" once all are connected and have sent something."""

import contextlib
import random
import resource
import selectors
import socket
import sys
import threading
import time

import wire

FRAME_UNPACKS_TO = (64 << 20) - 4096


def bomb(n_bytes):
    """A zstd frame of so many zeros, RLE blocks of 128 KiB, that says how many (RFC 8878, 3.1.1)."""
    sizes = [1 << 17] * (n_bytes >> 17) + ([n_bytes & (1 << 17) - 1] if n_bytes & (1 << 17) - 1 else [])
    blocks = [(size << 3 | 1 << 1 | (i + 1 == len(sizes))).to_bytes(3, "little") + b"\0" for i, size in enumerate(sizes)]
    return b"\x28\xb5\x2f\xfd\x80\x60" + n_bytes.to_bytes(4, "little") + b"".join(blocks)


def zstd_frames():
    """Frames of 2 KB that hold 64 MiB: a push, a pull whose head says something else, and one whose head is right."""
    n = FRAME_UNPACKS_TO
    body = bomb(n)
    one = wire.section(n_keys=2, key_bytes=2, value_bytes=0)
    right = wire.section(n_keys=(n + 9) // 10, key_bytes=n, value_bytes=0)
    return [wire.frame("push", wire.head((1, 1), (5, [wire.section(n_keys=1, key_bytes=1, value_bytes=n - 1)])), body,
                       flags=wire.ZSTD),
            wire.frame("pull", wire.head((3, [one])), body, flags=wire.ZSTD),
            wire.frame("pull", wire.head((3, [right])), body, flags=wire.ZSTD)]


N_SECTIONS = 32000
ALL_BYTES = (1 << 32) - 1


def many_sections(type_, **more):
    return wire.frame(type_, bytes([(5 if type_ == "push" else 3) << 3 | 2, 0]) * N_SECTIONS, **more)


def byte_by_byte(port, n):
    clients = readers(port, n)
    for client in clients:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(many_sections("push", body_bytes=32 << 20))
    print("ready", flush=True)
    while True:
        for client in clients:
            with contextlib.suppress(OSError):
                client.send(b"\0", socket.MSG_DONTWAIT)
            time.sleep(0.001)  # the pace is the case


def flood(clients, data):
    """Sends `data` again and again on every socket, and reads what comes."""
    ready = selectors.DefaultSelector()
    at = {}
    for client in clients:
        client.setblocking(False)
        at[client] = 0
        ready.register(client, selectors.EVENT_READ | selectors.EVENT_WRITE)
    said = False
    while at:
        for key, events in ready.select(1):
            client = key.fileobj
            try:
                if events & selectors.EVENT_READ and not client.recv(1 << 20):
                    raise ConnectionResetError
                if events & selectors.EVENT_WRITE:
                    at[client] = (at[client] + client.send(data[at[client]:])) % len(data)
            except BlockingIOError:
                pass
            except OSError:
                ready.unregister(client)
                del at[client]
        if not said:
            print("ready", flush=True)
            said = True


def drip(port, n):
    """n clients; one that is cut off begins again."""
    clients = []
    said = False
    while True:
        for i in range(n):
            try:
                if i == len(clients):
                    clients.append(socket.create_connection(("127.0.0.1", port)))
                    clients[i].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
                clients[i].sendall(b"X-A: b\r\n")
            except OSError:
                with contextlib.suppress(OSError):
                    clients[i].close()
                    clients[i] = socket.create_connection(("127.0.0.1", port), 5)
        if not said:
            print("ready", flush=True)
            said = True
        time.sleep(0.5)  # the pace is the case


def connect(port, what, i):
    n_addresses = 8 if what == "asked" else 2
    client = socket.create_connection(("127.0.0.1", port), 60, (f"127.0.0.{2 + i % n_addresses}", 0))
    if what != "silent":
        client.sendall(wire.frame("hello", wire.hello()))
    if what == "asked":
        with contextlib.suppress(OSError):  # one that is refused
            client.recv(1)
            client.sendall(wire.frame("table", wire.head((1, wire.spec(name="none")), (2, 1))))
    client.setblocking(False)
    return client


def sit(port, what, n):
    clients = [connect(port, what, i) for i in range(n)]
    print("ready", flush=True)
    while True:
        for i in range(n):
            with contextlib.suppress(BlockingIOError, OSError):
                while clients[i].recv(4096):
                    pass
                clients[i].close()
                clients[i] = connect(port, what, i)
        time.sleep(0.05)  # between two looks at who was hung up on


def readers(port, n):
    clients = []
    for _ in range(n):
        client = wire.Wire(port)
        assert client.hello(role="reader").status == 0
        clients.append(client.socket)
    return clients


def workers(port, n):
    clients = []
    for rank in range(n):
        client = wire.Wire(port)
        assert client.hello().status == 0
        assert client.join(job="hostile", rank=rank, n_workers=n, incarnation=1).status == 0
        clients.append(client.socket)
    return clients


def scans(n_sections, **fields):
    cursors = [random.getrandbits(64) for _ in range(n_sections)]
    return wire.frame("pull", wire.head((3, [wire.section(cursor=cursor, **fields) for cursor in cursors])))


def many_scans(n_sections, **fields):
    return b"".join(scans(n_sections, **fields) for _ in range(400))


def absent_states(n_keys):
    return wire.pull_frame(list(range(1 << 40, (1 << 40) + n_keys)), state=True)


def send_only(clients, data):
    """As flood(), but reads nothing."""
    ready = selectors.DefaultSelector()
    at = dict.fromkeys(clients, 0)
    for client in clients:
        client.setblocking(False)
        ready.register(client, selectors.EVENT_WRITE)
    print("ready", flush=True)
    while True:
        for key, _ in ready.select(1):
            try:
                at[key.fileobj] = (at[key.fileobj] + key.fileobj.send(data[at[key.fileobj]:])) % len(data)
            except OSError:  # the greediest are hung up on
                ready.unregister(key.fileobj)


def hoard(port, n):
    pulls = wire.pull_frame(list(range(4096)), table=0) * 10
    clients = readers(port, n)
    for client in clients:
        client.sendall(pulls)
    print("ready", flush=True)
    threading.Event().wait()  # they read nothing; main() ends it


def unfinished(port, n):
    data = memoryview(wire.frame("pull", body=bytes(60 << 20)))[: 20 << 20]
    ready = selectors.DefaultSelector()

    def begin():
        client = wire.Wire(port)
        assert client.hello(role="reader").status == 0
        client.socket.setblocking(False)
        ready.register(client.socket, selectors.EVENT_WRITE, [client, 0])

    for _ in range(n):
        begin()
    print("ready", flush=True)
    while True:
        for key, _ in ready.select(1):
            client, at = key.data
            try:
                key.data[1] += client.socket.send(data[at : at + (1 << 18)])
            except OSError:  # the greediest are hung up on
                key.data[1] = len(data)
            if key.data[1] == len(data):
                ready.unregister(client.socket)
                client.socket.close()
                begin()


def main():
    what, port, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if what == "zstd":
        frames = zstd_frames()
        data = memoryview(b"".join(frames[i % len(frames)] for i in range((1 << 20) // 2100)))
        work = lambda: flood(readers(port, n), data)  # noqa: E731
    elif what == "keys":
        work = lambda: flood(readers(port, n), memoryview(zstd_frames()[2]))  # noqa: E731
    elif what == "unfinished":
        work = lambda: unfinished(port, n)  # noqa: E731
    elif what == "heads":
        work = lambda: flood(readers(port, n), many_sections("push") + many_sections("pull"))  # noqa: E731
    elif what == "bytes":
        work = lambda: byte_by_byte(port, n)  # noqa: E731
    elif what == "drip":
        work = lambda: drip(port, n)  # noqa: E731
    elif what == "hoard":
        work = lambda: hoard(port, n)  # noqa: E731
    elif what == "scans":
        work = lambda: flood(readers(port, n), many_scans(2, scan_bytes=1))  # noqa: E731
    elif what == "joined-scans":
        work = lambda: flood(workers(port, n), many_scans(2, scan_bytes=1))  # noqa: E731
    elif what == "topk-scans":
        work = lambda: flood(readers(port, n), scans(1, scan_bytes=ALL_BYTES, codec=wire.TOPK, k=1))  # noqa: E731
    elif what == "states":
        work = lambda: flood(workers(port, n), absent_states(4000))  # noqa: E731
    elif what == "unread-scans":
        work = lambda: send_only(readers(port, n), many_scans(16, scan_bytes=ALL_BYTES))  # noqa: E731
    elif what == "unread-states":
        work = lambda: send_only(readers(port, n), absent_states(15000))  # noqa: E731
    else:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(n + 100, hard)), hard))
        work = lambda: sit(port, what, n)  # noqa: E731
    threading.Thread(target=work, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()

"""What goes wrong between a primary and its standby: other programs, other settings, damage on the way, full disks. Each is
told in a sentence, nothing is lost, and tries come in growing intervals."""

import os
import random
import shutil
import socket
import struct
import subprocess
import threading
import time

import pytest

import checkpoint
import wire
from conftest import eventually
from relay import Relay
from test_durability import N_SHARDS, N_WORKERS, Pusher
from test_pair import SEED, Member, check, fail_over, pair, push_until, standby_of, two  # noqa: F401
from training import free_ports

# --- another program on the port ---


class Stranger:
    """Listens where a psd is expected; `answer` is sent to who comes, after its first bytes. None: silence."""

    def __init__(self, port, answer):
        self.answer, self.n = answer, 0
        self.listener = socket.create_server(("127.0.0.1", port))
        self.held = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.n += 1
            connection.settimeout(5)
            try:
                connection.recv(4096)
                if self.answer is None:
                    self.held.append(connection)
                    continue
                connection.sendall(self.answer)
                if self.answer:
                    connection.recv(4096)
            except OSError:
                pass
            connection.close()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()
        for connection in self.held:
            connection.close()


def welcome(**more):
    """A hello_reply; status is a name of wire.STATUS."""
    fields = [(n, v) for n, v in ((1, more.get("status", 0)), (2, more.get("text", "")), (3, more.get("version", 1)),
                                  (4, more.get("own", "")), (6, 1), (7, 5), (8, 1 << 20)) if v]
    return wire.frame("hello_reply", wire.head(*fields))


def negative(status):
    """As protobuf's sint32 has it."""
    return -2 * status - 1


STRANGERS = [
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it answers HTTP"),
    (b"SSH-2.0-OpenSSH_9.2\r\n", "it is no psd"),
    (b"", "connection"),
    (random.Random(7).randbytes(512), "it is no psd"),
    (wire.frame("join_reply", wire.head((3, 1))), "no psd that a standby can follow"),
    (welcome(status=negative(wire.STATUS["EVERSION"]), text="protocol version: found 1 to 1, expected 2"), "protocol version"),
    (wire.frame("hello_reply", b"\xff\xff\xff"), "no psd that a standby can follow"),
    (None, "does not answer"),
]


def quiet(member, dials, more=2):
    """It goes on trying, in intervals that have grown, and has said why once."""
    def n_lines():
        return sum(" warn " in line or " error " in line for line in member.lines)

    began, before, lines = time.monotonic(), dials(), n_lines()
    eventually(lambda: dials() >= before + more)
    assert dials() - before <= more + 3 * (time.monotonic() - began)
    assert n_lines() == lines, member.log()


def test_another_program_where_the_primary_should_be(pair):
    standby = None
    for answer, says in STRANGERS:
        stranger = Stranger(pair.port("a"), answer)
        n = sum(says in line for line in standby.lines) if standby else 0
        standby = standby or standby_of(pair, "b", "a")
        standby.says(says, n + 1)
        if answer == b"":
            quiet(standby, lambda: stranger.n)
        stranger.close()
    assert standby.state() == "not following"
    refused = standby.order("the-other-is-dead accept-loss")
    assert refused.status and "no whole copy" in refused.text
    primary = pair("a")
    primary.await_ready()
    standby.in_sync()


# --- where the standby should be ---

def start_awaiting(pair):
    """A primary that starts again, whose standby was in sync."""
    primary, standby, pushers, rng, _ = two(pair)
    assert push_until(pushers, time.monotonic() + 0.1, rng, n_min=20)
    standby.kill()
    primary.kill()
    for p in pushers:
        p.client.close()
    return pushers


def test_another_program_where_the_standby_should_be(pair):
    """The primary does not take its silence, or its garbage, for the word of its standby."""
    pushers = start_awaiting(pair)
    stranger = Stranger(pair.port("b"), b"SSH-2.0-OpenSSH_9.2\r\n")
    primary = pair("a", "--durability", "fsync")
    primary.says("workers are refused until it follows")
    assert [w["what"] for w in primary.admin("why")["waits"]] == ["standby"]
    quiet(primary, lambda: stranger.n, more=1)
    stranger.close()
    stranger = Stranger(pair.port("b"), welcome(own="127.0.0.1:1"))
    quiet(primary, lambda: stranger.n, more=1)
    stranger.close()
    standby_of(pair, "b", "a", "--durability", "fsync")
    primary.await_ready()
    for p in pushers:
        p.connect(primary)
    check(pushers)


# --- who is refused ---

REFUSED = [
    # arguments of both, of the standby; what the standby says, what the primary says
    ((), ("--shards", "3"), "it has 2 shards, and this standby has 3: give both the same --shards", None),
    ((), ("--lease", "61s"), "lease=61000ms, the primary lease=60000ms", "lease=61000ms"),
    (("--memory-max", "128M"), ("--memory-max", "64M"), "could not hold the primary's rows", "could not hold"),
    ((), ("--memory-max", "64M"), "the primary 0 (no limit): it could not hold the primary's rows", "could not hold"),
    (("--token-file", "token"), ("--token-file", "other"), "token", "token"),
    ((), ("--coord", "etcd://127.0.0.1:9/prod"), "the standby has coord=prod, and the primary has none: ", "coord=prod"),
    ((), ("--cluster", "10.0.0.1:7070,10.0.0.2:7070", "--node", "0", "--advertise", "10.0.0.1:7070"), "of cluster", None),
]


@pytest.mark.parametrize("both, args, says, primary_says", REFUSED)
def test_who_is_refused_and_what_both_say(pair, tmp_path, both, args, says, primary_says):
    for name in ("token", "other"):
        (tmp_path / name).write_text(f"a secret that is the {name}\n")
        (tmp_path / name).chmod(0o600)
    primary = pair("a", *both)
    primary.await_ready()
    standby = standby_of(pair, "b", "a", *both, *args)
    standby.says(says)
    if primary_says:
        primary.says(primary_says)
    time.sleep(1.5)
    assert sum(" warn  standby of" in line or " error " in line for line in standby.lines) == 1, standby.log()
    assert len([line for line in primary.lines if "warn" in line]) <= 6, primary.log()
    assert "following" not in standby.log() and "has to be copied" not in standby.log()


def test_a_standby_of_itself_ends_with_a_sentence(tmp_path):
    port = free_ports(1)[0]
    standby = Member(tmp_path, port, "--data-dir", str(tmp_path / "a"), "--standby", f"127.0.0.1:{port}")
    standby.reader.join(20)
    assert standby.process.wait(20) == 2
    assert f"standby: 127.0.0.1:{port} is this psd's own address: give that of its primary" in standby.log()
    assert not (tmp_path / "a").exists()


def nodes_of(member):
    with wire.Wire(member.port) as client:
        return client.hello(shard=wire.LISTENER).fields[4]


def test_a_standby_that_was_refused_leaves_nothing_that_counts_at_a_later_start(pair):
    """It has been welcomed by another cluster, whose settings are not its own."""
    primary, wrong = pair("a"), pair("c", "--lease", "61s")
    for member in (primary, wrong):
        member.await_ready()
    for name in ("b", "d"):
        standby = pair(name, "--standby", f"127.0.0.1:{wrong.port}")
        standby.says("lease=61000ms")
        assert standby.stop() == 0
    alone = pair("d")
    for _ in range(2):
        alone.await_ready()
        assert nodes_of(alone) == [f"127.0.0.1:{alone.port}".encode()]
        assert alone.stop() == 0
        alone = pair("d")
    standby_of(pair, "b", "a").in_sync()


def test_a_second_standby_and_one_of_a_standby_are_refused(pair):
    primary, standby, pushers, rng, _ = two(pair)
    second = standby_of(pair, "c", "a")
    second.says(f"127.0.0.1:{standby.port} is the standby, and there is one at a time")
    primary.says("there is one at a time")
    third = standby_of(pair, "d", "b")
    third.says(f"this psd is a standby of 127.0.0.1:{primary.port}")
    assert push_until(pushers, time.monotonic() + 1, rng, n_min=20)
    for member in (second, third):
        assert len([line for line in member.lines if " warn " in line]) == 1, member.log()
    assert sum("is refused" in line for line in primary.lines) <= 6
    assert standby.state() == "in sync"
    check(pushers)
    second.stop()
    third.stop()
    standby.kill()
    second = standby_of(pair, "c", "a")  # its place is free now
    second.in_sync()


def test_two_standbys_of_each_other_that_have_no_data_say_what_to_do(pair):
    says = "both are standbys, and neither has data: start one of them without --standby"
    one, other = standby_of(pair, "a", "b"), standby_of(pair, "b", "a", host="localhost")
    for member in (one, other):
        member.says(says)
        assert [says in w["why"] for w in member.admin("why")["waits"]] == [True]
        assert says in member.admin("status")["health"]
    assert one.stop() == 0
    primary = pair("a")
    primary.await_ready()
    other.in_sync()


def test_a_standby_with_data_whose_primary_is_a_new_standby_is_the_one_to_promote(pair):
    primary, standby, pushers, rng, args = two(pair)
    assert push_until(pushers, time.monotonic() + 0.1, rng, n_min=20)
    for p in pushers:
        p.wait_acknowledged()
        p.client.close()
    primary.kill()
    shutil.rmtree(primary.data_dir())
    other = standby_of(pair, "a", "b", *args)
    standby.says("it is a standby without data: promote the psd that has data (psctl promote")
    other.says("or promote this one (psctl promote)")
    assert standby.order().status == 0
    other.in_sync()


# --- damage on the way ---

class Proxy(Relay):
    """Between the two; flips a byte of long answers while `flips` lasts."""

    flips = flipped = 0

    def __init__(self, port):
        super().__init__(("127.0.0.1", port))

    def pieces(self, source, is_answer):
        for data in super().pieces(source, is_answer):
            piece = bytearray(data)
            if is_answer and self.flips and len(piece) > 1000:
                self.flips -= 1
                self.flipped += 1
                piece[len(piece) * 2 // 3] ^= 0x40
            yield piece


def test_damage_on_the_way_is_noticed_and_it_goes_on_by_itself(pair):
    """Of files that are copied, and of records that are fetched."""
    rng = random.Random(SEED)
    primary = pair("a", "--durability", "fsync")
    primary.await_ready()
    pushers = pushers_of(primary, rng)
    assert push_until(pushers, time.monotonic() + 0.3, rng, n_min=20)
    assert primary.admin("checkpoint")["number"] == 1
    proxy = Proxy(primary.port)
    proxy.flips = 1
    standby = pair("b", "--durability", "fsync", "--standby", f"127.0.0.1:{proxy.port}")
    standby.says("the copy is given up")
    proxy.flips = 0
    standby.in_sync()
    for _ in range(2):
        proxy.flips, before = 3, proxy.flipped
        end = time.monotonic() + 20
        while proxy.flipped < before + 3 and time.monotonic() < end:
            push_until(pushers, time.monotonic() + 0.1, rng)
        assert proxy.flipped == before + 3
        standby.in_sync()
    assert len([line for line in standby.lines if " warn " in line]) <= 8, standby.log()
    assert push_until(pushers, time.monotonic() + 0.1, rng, n_min=20)
    check(pushers)
    fail_over(primary, standby, pushers)
    proxy.close()


def pushers_of(primary, rng):
    out = [Pusher(rank, shard, rng) for rank in range(N_WORKERS) for shard in range(N_SHARDS)]
    for p in out:
        p.connect(primary)
    return out


# --- full disks ---

@pytest.fixture
def small_disk(tmp_path):
    """small_disk(name): the data directory of that name is on a file system of its own."""
    folders = []

    def mount(name, n_bytes="32M"):
        folder = tmp_path / name
        folder.mkdir()
        got = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", str(folder)], check=False)
        if got.returncode:
            pytest.skip("mount needs root")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    """The disk, to its last page. tmpfs refuses now and then although it has space."""
    while sum(path.stat().st_size for path in folder.glob("filler")) < 16 << 20:
        try:
            with open(folder / "filler", "ab", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
        except OSError:
            time.sleep(0.01)
    return folder / "filler"


def test_a_full_disk_of_the_standby(pair, small_disk):
    """The primary goes on alone, the standby says why, and comes back once there is space."""
    disk = small_disk("b")
    primary, standby, pushers, rng, _ = two(pair, "--standby-patience", "1s")
    filler = fill(disk)
    end = time.monotonic() + 30
    while primary.state() == "in sync" and time.monotonic() < end:
        push_until(pushers, time.monotonic() + 0.2, rng)
    assert primary.state() != "in sync"
    standby.says("takes no records")
    assert "No space left" in standby.log() or "no space" in standby.log()
    assert push_until(pushers, time.monotonic() + 1, rng, n_min=20)  # alone
    check(pushers)
    refused = standby.order("the-other-is-dead")
    assert refused.status and "--accept-loss" in refused.text  # the primary has more
    lines = len(standby.lines)
    time.sleep(1)
    assert len(standby.lines) - lines <= 3, standby.log()
    os.unlink(filler)
    standby.in_sync()
    assert push_until(pushers, time.monotonic() + 0.2, rng, n_min=20)
    check(pushers)
    fail_over(primary, standby, pushers)


def test_a_full_disk_of_the_primary(pair, small_disk):
    """Under fsync pushes wait for its own disk; nothing is lost, and both go on once there is space."""
    disk = small_disk("a")
    primary, standby, pushers, rng, _ = two(pair, "--standby-patience", "1s")
    assert push_until(pushers, time.monotonic() + 0.2, rng, n_min=20)
    filler = fill(disk)
    threading.Timer(3, os.unlink, (filler,)).start()
    push_until(pushers, time.monotonic() + 4, rng)
    eventually(lambda: not filler.exists())
    assert push_until(pushers, time.monotonic() + 1, rng, n_min=20)
    standby.in_sync()
    check(pushers)
    fail_over(primary, standby, pushers)


# --- rows that differ ---

def alter_row(path):
    """One weight of the file's last row; all checksums are right. Returns the row's key."""
    data = bytearray(path.read_bytes())
    base, specs = checkpoint.read_head(bytes(data))
    at = start = checkpoint.HEADER_BYTES + len(specs) * checkpoint.TABLE_BYTES
    heads, chunks = bytes(data[:start]), []
    while data[at:at + 4] != b"END\n":
        table, n_items, n_bytes = struct.unpack_from("<III", data, at + 4)
        if data[at:at + 4] == b"ROWS":
            chunks.append((at, n_bytes, checkpoint.ROW_HEAD_BYTES + specs[table][3]))
        at += checkpoint.CHUNK_BYTES + n_bytes
    head, n_bytes, row_bytes = chunks[-1]
    row = head + checkpoint.CHUNK_BYTES + n_bytes - row_bytes
    data[row + checkpoint.ROW_HEAD_BYTES] ^= 1
    body = bytes(data[head + checkpoint.CHUNK_BYTES:head + checkpoint.CHUNK_BYTES + n_bytes])
    struct.pack_into("<I", data, head + 16, wire.crc32c(bytes(data[head:head + 16]) + body))
    at = start
    while data[at:at + 4] != b"END\n":
        heads += bytes(data[at:at + checkpoint.CHUNK_BYTES])
        at += checkpoint.CHUNK_BYTES + struct.unpack_from("<I", data, at + 12)[0]
    before = wire.crc32c(bytes(data[at:at + 56]), struct.unpack_from("<I", data, at + 48)[0])
    struct.pack_into("<I", data, at + 48, wire.crc32c(heads))
    struct.pack_into("<I", data, at + 52, wire.crc32c(bytes(data[at:at + 52])))
    path.write_bytes(data)
    manifest = path.parent / "MANIFEST"
    whole = wire.crc32c(bytes(data[at:at + 56]), wire.crc32c(heads))
    text = manifest.read_text()[:-23].replace(f"{before:08x}", f"{whole:08x}")
    manifest.write_text(text + f'"crc32c": "{wire.crc32c(text.encode()):08x}"\n}}\n')
    return struct.unpack_from("<Q", data, row)[0]


def test_a_row_of_the_standby_that_differs_is_found_and_all_is_copied_anew(pair):
    primary, standby, pushers, rng, args = two(pair)
    assert push_until(pushers, time.monotonic() + 0.2, rng, n_min=50)
    check(pushers)
    standby.in_sync()
    assert standby.stop() == 0
    data = standby.data_dir()
    key = alter_row(sorted(checkpoint.newest(data).glob("shard-*.psc"))[0])
    standby = standby_of(pair, "b", "a", *args)
    standby.says(f"the row of table t, key {key} has other values here")
    primary.says("copies anew, as it found that at record")
    standby.says("copied ")
    standby.in_sync()
    found = primary.admin("status")["replication"]
    assert found["differences"] == 1 and found["in_sync"], found
    assert push_until(pushers, time.monotonic() + 0.2, rng, n_min=20)
    fail_over(primary, standby, pushers)


def test_another_libm_is_logged_by_both(pair):
    """The processor's features that it uses are its own affair: without FMA its logarithm has other last bits."""
    primary = pair("a")
    primary.await_ready()
    os.environ["GLIBC_TUNABLES"] = "glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2"
    try:
        standby = standby_of(pair, "b", "a")
    finally:
        del os.environ["GLIBC_TUNABLES"]
    standby.in_sync()
    if "computes as" not in standby.log():
        pytest.skip("libm computes alike with and without FMA here")
    primary.says("computes as")
    for member in (primary, standby):
        assert "in their last bits" in member.admin("status")["replication"]["note"]

"""Long answers that leave psd while they are being made, to clients that say that they understand them."""

import socket

import pytest
import wire
from conftest import eventually

PSD_ARGS = ["--shards", "1", "--frame-timeout", "500ms"]
DIM, N_KEYS = 128, 6000  # 3 MB
ANSWER_BYTES = 4 * DIM * N_KEYS
KEYS = list(range(1, 2 * N_KEYS, 2))
SEQ, HUGE = 1, 60_000  # 30 MB: more than the two sockets hold
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def psd(start_psd):
    psd = start_psd(*PSD_ARGS)
    with psd.connect() as client:
        assert client.table(dim=DIM, init=1, init_scale=1.0).status == 0
        assert client.join().status == 0
        gradients = wire.floats(*(i / 1000 for i in range(50 * DIM)))
        assert client.push(KEYS[::N_KEYS // 50][:50], gradients, seq=SEQ).status == 0
        assert client.leave().status == 0
    return psd


def reader(psd, frame_flags):
    return psd.connect(role="reader", frame_flags=frame_flags)


def test_an_answer_in_parts_is_the_answer_in_one_piece(psd):
    with reader(psd, wire.SUM_BEHIND) as in_parts, reader(psd, 0) as in_one:
        parts, one = in_parts.pull(KEYS), in_one.pull(KEYS)
        assert (parts.flags, one.flags) == (wire.SUM_BEHIND, 0)
        assert parts.status == one.status == 0
        assert len(parts.body) == ANSWER_BYTES and parts.body == one.body
        assert parts.numbers(5) == one.numbers(5) == [ANSWER_BYTES]
        assert parts.number(4) == one.number(4) > 0
        assert in_parts.pull(KEYS[:10]).flags == 0


def test_requests_behind_it_are_answered_behind_it(psd):
    with reader(psd, wire.SUM_BEHIND) as client:
        client.send(b"".join(wire.pull_frame(KEYS[:n], request_id=n) for n in (N_KEYS, 3, N_KEYS - 1, 2)))
        for n in (N_KEYS, 3, N_KEYS - 1, 2):
            answer = client.reply()
            assert (answer.request_id, answer.status, len(answer.body)) == (n, 0, 4 * DIM * n)


def test_keys_out_of_order_are_refused_and_the_connection_goes_on(psd):
    with reader(psd, wire.SUM_BEHIND) as client:
        assert client.pull(KEYS[:-1] + KEYS[-2:-1]).status == wire.STATUS["EORDER"]
        assert client.pull(KEYS).status == 0


def slow(psd):
    return psd.admin()["totals"]["net"]["slow_peers"]


def test_a_client_that_hangs_up_or_stops_reading_ends_its_answer_alone(psd):
    with reader(psd, wire.SUM_BEHIND) as gone, reader(psd, wire.SUM_BEHIND) as stuck, reader(psd, 0) as other:
        request = wire.pull_frame(list(range(HUGE)))
        stuck.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        gone.send(request)
        stuck.send(request)
        assert gone.read(100)[:4] == wire.MAGIC
        gone.close()
        assert other.pull(KEYS).status == 0
        eventually(lambda: slow(psd) == 1)  # of the two: the one that has not hung up
        assert other.pull(KEYS).status == 0
        with pytest.raises(wire.Closed):
            stuck.read(4 * DIM * HUGE)


def test_psd_stops_in_the_middle_of_an_answer(psd):
    with reader(psd, wire.SUM_BEHIND) as client:
        client.send(wire.pull_frame(list(range(HUGE))))
        assert client.read(100)[:4] == wire.MAGIC
        psd.process.terminate()
        with pytest.raises(wire.Closed):
            client.read(4 * DIM * HUGE)
        assert psd.process.wait(timeout=60) == 0

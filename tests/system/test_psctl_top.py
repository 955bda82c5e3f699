"""psctl top, watch and latency, at a terminal and in a pipe."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import threading

import pytest
import wire
from conftest import BIN, eventually
from wire import floats

pytestmark = pytest.mark.timeout(300)


def psctl(psd, *args):
    return subprocess.run([str(BIN / "psctl"), *args, "--server", f"127.0.0.1:{psd.port}"], capture_output=True, text=True, timeout=120)


@pytest.fixture
def busy_psd(start_psd):
    """One job that pulls and pushes without an end."""
    psd = start_psd("--shards", "2", "--lease", "300s")
    end = threading.Event()
    with psd.connect() as client:
        table = client.table(name="criteo/emb", dim=4).number(3)
        assert client.join(job="criteo", name="the worker").status == 0
        keys = wire.keys_of(0, 2, 100)
        assert client.push(keys, floats(1, 2, 3, 4) * 100, table=table).status == 0

        def train():
            clock = 1
            while not end.is_set():
                assert client.pull(keys, table=table).status == 0
                assert client.push(keys, floats(1, 2, 3, 4) * 100, table=table, seq=clock + 1, clock=clock).status == 0
                clock += 1

        thread = threading.Thread(target=train)
        thread.start()
        try:
            eventually(lambda: psd.stats()["totals"]["rows"] == 100)
            yield psd
        finally:
            end.set()
            thread.join()


class Terminal:
    """psctl at a terminal of 24 lines."""

    def __init__(self, psd, *args, columns=100, **more):
        self.fd, inner = pty.openpty()
        self.text = ""
        env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
        subprocess.run(["stty", "rows", "24", "cols", str(columns)], stdin=inner, check=True)
        self.child = subprocess.Popen([str(BIN / "psctl"), *args, "--server", f"127.0.0.1:{psd.port}", "--every", "300ms"], stdin=inner,
                                      stdout=inner, stderr=inner, env={**env, "TERM": "xterm", **more}, start_new_session=True)
        os.close(inner)

    def read(self, s=0.1):
        while select.select([self.fd], [], [], s)[0]:
            try:
                chunk = os.read(self.fd, 65536)
            except OSError:
                break
            if not chunk:
                break
            self.text += chunk.decode()
        return self.text

    def screen(self):
        """The lines of the last frame."""
        frame = self.read().split("\033[H")[-1]
        return re.sub(r"\033\[[0-9;?]*[A-Za-z]", "", frame)

    def press(self, key):
        os.write(self.fd, key.encode())

    def until(self, condition):
        eventually(lambda: condition(self.screen()), 60)

    def close(self):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        os.close(self.fd)


def test_top_shows_rates_opens_a_job_and_leaves_the_terminal_as_it_was(busy_psd):
    top = Terminal(busy_psd, "top")
    try:
        top.until(lambda screen: re.search(r"^ +0 +0 +\d\S*( k)? .*us", screen, re.M) and "LOG LAG" in screen)
        top.until(lambda screen: re.search(r"^criteo +async +1 of 1 +\d+ +[1-9]", screen, re.M))
        top.press("r")
        top.press("\r")
        top.until(lambda screen: "job criteo: async" in screen and "the worker" in screen and "criteo/emb" in screen and "q, Esc: back" in screen)
        top.press("q")
        top.until(lambda screen: "SHARD" in screen)
        top.press("q")
        assert top.child.wait(timeout=60) == 0
        assert top.read().endswith("\033[?25h\033[?1049l")
    finally:
        top.close()


def test_top_fits_80_columns_without_colours(busy_psd):
    """A line that is wider would move all others up, with every frame."""
    top = Terminal(busy_psd, "top", columns=80, NO_COLOR="1")
    try:
        top.until(lambda screen: "criteo" in screen and "q: end" in screen)
        assert max(len(line) for line in re.split(r"\r?\n", top.screen())) <= 80
        assert not re.search(r"\033\[[0-9;]*m", top.text)
        top.press("q")
        assert top.child.wait(timeout=60) == 0
    finally:
        top.close()


def test_top_draws_no_screen_at_a_terminal_that_has_none(busy_psd):
    top = Terminal(busy_psd, "top", "--count", "1", TERM="dumb")
    try:
        assert top.child.wait(timeout=60) == 0
        assert "SHARD" in top.read() and "\033" not in top.text
    finally:
        top.close()


def test_top_ends_with_a_signal_and_leaves_the_terminal_as_it_was(busy_psd):
    top = Terminal(busy_psd, "top")
    try:
        top.until(lambda screen: "SHARD" in screen)
        top.child.send_signal(signal.SIGTERM)
        assert top.child.wait(timeout=60) == 0
        assert top.read().endswith("\033[?25h\033[?1049l")
    finally:
        top.close()


def test_top_in_a_pipe_prints_frames(busy_psd):
    got = psctl(busy_psd, "top", "--count", "2", "--every", "1500ms")
    assert (got.returncode, got.stderr) == (0, "")
    frames = got.stdout.split("\n\n\n") if "\n\n\n" in got.stdout else re.split(r"\n\n(?=\d\d:)", got.stdout)
    assert len(frames) == 2
    for frame in frames:
        assert re.match(r"\d\d:\d\d:\d\d  1 node, 2 shards, 1 job; \S+( [kM])? rows/s, ", frame)
        assert re.search(r"^criteo +async +1 of 1 +\d+ +\d+\.\d ", frame, re.M)


def test_a_command_is_repeated(busy_psd):
    got = psctl(busy_psd, "watch", "tables", "--count", "3", "--every", "100ms")
    assert (got.returncode, got.stderr) == (0, "")
    assert got.stdout.count("every 0.1 s: psctl tables, ") == 3 and got.stdout.count("criteo/emb") == 3
    screen = Terminal(busy_psd, "watch", "row", "criteo/emb", "7777", "--count", "2")
    try:
        assert screen.child.wait(timeout=60) == 1  # there is no such row
        assert screen.read().count("\033[H\033[2J") == 2 and "there is none" in screen.read()
    finally:
        screen.close()


def test_a_repeated_command_shows_failures_too(busy_psd):
    screen = Terminal(busy_psd, "watch", "status", "--count", "1", "--node", "7")
    try:
        assert screen.child.wait(timeout=60) == 1
        assert "psctl: node: found 7, expected 0 to 0" in screen.read().split("\033[2J")[1]
    finally:
        screen.close()


@pytest.mark.parametrize("args, words", [
    (["watch"], "watch: expected psctl watch COMMAND ..."),
    (["watch", "drop", "job"], "watch: drop is no command that only asks"),
    (["watch", "tabels"], 'unknown command "tabels"; did you mean "tables"?'),
    (["watch", "row", "t"], "row: expected psctl row TABLE KEY"),
    (["watch", "watch", "status"], "watch: watch is no command that only asks"),
    (["status", "--count", "3"], "status: has no use for --count"),
    (["top", "--every", "1ms"], "--every"),
])
def test_a_wrong_word_ends_in_2_and_one_sentence(args, words):
    got = subprocess.run([str(BIN / "psctl"), *args], capture_output=True, text=True, timeout=60)
    assert (got.returncode, got.stdout) == (2, "")
    assert words in got.stderr and got.stderr.count("\n") == 1


def test_latency_has_a_histogram_of_each_type(busy_psd):
    eventually(lambda: busy_psd.stats()["totals"]["requests"]["push"]["n_minute"] > 100)
    got = psctl(busy_psd, "latency", "--every", "1s")
    assert (got.returncode, got.stderr) == (0, "")
    assert re.search(r"^pull +\d+ +\d+ us ", got.stdout, re.M) and "\npush, " in got.stdout and "  <= " in got.stdout
    report = json.loads(psctl(busy_psd, "latency", "-o", "json", "--every", "100ms").stdout)
    pull = report["requests"]["pull"]
    assert pull["n_minute"] == sum(n for _, n in pull["minute_ns"]) > 100
    assert 0 < pull["p50_ns"] <= pull["p90_ns"] <= pull["p99_ns"] <= pull["max_ns"]
    node = busy_psd.stats()["totals"]["requests"]["pull"]
    assert node["n_minute"] == sum(n for _, n in node["minute_ns"])


def test_latency_says_what_was_waited_for(start_psd):
    psd = start_psd("--shards", "1", "--lease", "300s")
    with psd.connect() as fast, psd.connect() as slow:
        table = fast.table(name="emb", dim=4).number(3)
        for rank, (client, name) in enumerate([(fast, "the fast one"), (slow, "the slow one")]):
            assert client.join(job="criteo", rank=rank, n_workers=2, mode=wire.BSP, name=name).status == 0
        assert fast.push([1], floats(1, 2, 3, 4), table=table).status == 0
        fast.send(wire.pull_frame([1], table=table, clock=1, deadline_ms=60000, request_id=77))
        words = "for slower workers; worker 1 (the slow one) is the last, at clock 0"
        eventually(lambda: words in psctl(psd, "latency", "--every", "1500ms").stdout, 60)
        assert slow.push([1], floats(1, 2, 3, 4), table=table).status == 0
        assert fast.wait(77).status == 0

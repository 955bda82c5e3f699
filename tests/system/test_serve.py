"""psworker serve: scores over HTTP are predict's bits; a job is followed within its bound; servers that are gone; hostile clients; the end."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest
from training import BIN, ROOT, finish, free_ports, psds, psworker, synth, train, wait_for  # noqa: F401

ADULT = ("--config", ROOT / "deploy/adult.conf")
PATIENT = ("--deadline", "60s", "--max-age", "60s")  # where a busy machine is not to be seen
ADULT_DATA = ROOT / "tests/data/adult.data.zst"
SMALL = ("--format", "criteo", "--bottom", "16", "--top", "16", "--dim", "8", "--batch", "64")


class Server:
    """A running psworker serve."""

    def __init__(self, folder, *flags):
        self.log = folder / f"serve{time.monotonic_ns()}.log"
        with open(self.log, "w") as err:
            self.process = subprocess.Popen([BIN / "psworker", "serve", "--http", "127.0.0.1:0", *map(str, flags)], stderr=err)
        found = wait_for("the start", lambda: re.search(r"on http://(\S+):(\d+)/score", self.text()) or self.process.poll() is not None, 60)
        assert found is not True, self.text()
        self.host, self.port = found[1], int(found[2])

    def text(self):
        return self.log.read_text()

    def connect(self, timeout=60):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers={}, connection=None):
        """Status and text."""
        c = connection or self.connect()
        c.request(method, path, body, headers)
        answer = c.getresponse()
        text = answer.read().decode()
        if not connection:
            c.close()
        return answer.status, text

    def get(self, path):
        status, text = self.ask("GET", path)
        assert status == 200, text
        return text

    def answer(self, rows, connection=None, **more):
        """Status, and what was answered."""
        status, text = self.ask("POST", "/score", json.dumps({"rows": rows, **more}), connection=connection)
        return status, json.loads(text)

    def scores(self, rows, **more):
        status, answer = self.answer(rows, **more)
        assert status == 200, answer
        return answer["scores"]

    def metric(self, name):
        return float(re.search(rf"^psworker_serve_{re.escape(name)} (\S+)$", self.get("/metrics"), re.M)[1])

    def stop(self, status=0):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(90) == status, self.text()
        assert "Sanitizer" not in self.text(), self.text()


@pytest.fixture
def serve(tmp_path):
    servers = []

    def start(*flags):
        servers.append(Server(tmp_path, *flags))
        return servers[-1]

    yield start
    for s in servers:
        if s.process.poll() is None:
            s.stop()


@pytest.fixture(scope="module")
def adult(tmp_path_factory):
    """A model of the census, and rows of it: as text with the label, and as values by name."""
    folder = tmp_path_factory.mktemp("adult")
    train(*ADULT, "--epochs", 1, "--data", ADULT_DATA, "--local", "--save", folder / "model")
    text = subprocess.run(["zstd", "-dc", ROOT / "tests/data/adult.test.zst"], check=True, capture_output=True, text=True).stdout
    lines = [line for line in text.splitlines() if line][:3000]
    # What a model has not seen, and what is missing.
    lines[1] = lines[1].replace(" Private,", " Ministry of Silly Walks,")
    lines[2] = "?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, <=50K."
    lines[3] = ", , 1, , , , , , , , , , , , <=50K."
    (folder / "rows").write_text("\n".join(lines) + "\n")
    names = re.search("^columns = (.*)$", (ROOT / "deploy/adult.conf").read_text(), re.M)[1].split(",")
    return folder, names, [line.split(", ") for line in lines]


def inputs(server, names, table, convert=str):
    """Rows as objects, of the columns that the model has; an empty field is left out."""
    wanted = set(json.loads(server.get("/model"))["columns"])
    return [{n: convert(v) for n, v in zip(names, row) if n in wanted and v != ""} for row in table]


def predicted(*flags):
    out, _ = finish(psworker("predict", *flags))
    return [float(line) for line in out.splitlines()]


def as_number(text):
    return int(text) if re.fullmatch("[0-9]+", text) else text


def test_scores_of_a_checkpoint_are_the_bits_that_predict_writes(serve, adult):
    folder, names, table = adult
    want = predicted(*ADULT, "--data", folder / "rows", "--labelled", "--checkpoint", folder / "model")
    server = serve("--job", "adult", "--checkpoint", folder / "model", "--threads", 2, *PATIENT)
    rows = inputs(server, names, table, as_number)
    assert server.scores(rows) == want  # in passes of 128
    assert [server.scores([row])[0] for row in rows[:200]] == want[:200]
    assert server.scores(inputs(server, names, table)[:100]) == want[:100]
    # As lists, in the model's order and in the client's; missing ones are null.
    order = json.loads(server.get("/model"))["columns"]
    assert server.scores([[row.get(c) for c in order] for row in rows[:100]]) == want[:100]
    assert server.scores([[row.get(c) for c in order[::-1]] for row in rows[:100]], columns=order[::-1]) == want[:100]
    status, answer = server.answer([])
    assert status == 200 and answer == {"scores": [], "clock": None, "age_s": None}
    # Many at once share passes, and get their own.
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        got = list(pool.map(lambda i: server.scores(rows[i : i + 1 + i % 7]), range(400)))
    assert got == [want[i : i + 1 + i % 7] for i in range(400)]
    assert server.metric('answers_total{code="200"}') > 600 and server.metric("in_flight") == 0
    assert server.metric("rows_total") >= len(rows) + 200 and server.metric("batches_total") < server.metric("rows_total")
    # The settings of the training are as good as none.
    other = serve(*ADULT, "--data", folder / "gone", "--checkpoint", folder / "model", *PATIENT)
    assert other.scores(rows[:100]) == want[:100]


def test_standardised_columns_bags_and_shared_tables_come_from_the_record(serve, tmp_path):
    lines = [f"{i % 2},{i / 7},{i % 5 or ''},t{i % 9}|t{i % 4},t{i % 6},{i % 40}" for i in range(400)]
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    flags = ("--job", "j", "--delimiter", ",", "--columns", "y,a,b,hist,target,age", "--label", "y", "--numeric", "a,b", "--numeric-as",
             "standardise", "--categorical", "hist,target", "--bucketise", "age", "--inner-separator", "|", "--share-table", "hist,target",
             "--missing-as", "skip", "--dim", 4, "--bottom", "8", "--top", "8,4", "--interaction", "concat", "--batch-norm", "--numeric-hats", 3)
    train(*flags, "--data", tmp_path / "log", "--local", "--save", tmp_path / "model")
    want = predicted(*flags, "--data", tmp_path / "log", "--labelled", "--checkpoint", tmp_path / "model")
    server = serve("--job", "j", "--checkpoint", tmp_path / "model", *PATIENT)
    rows = [dict(zip(("a", "b", "hist", "target", "age"), line.split(",")[1:])) for line in lines]
    assert server.scores(rows) == want
    for row in rows:
        row["hist"] = row["hist"].split("|")
        row["age"] = int(row["age"])
    assert server.scores(rows) == want


def test_bad_requests_have_a_status_and_a_sentence(serve, adult):
    folder, names, table = adult
    server = serve("--job", "adult", "--checkpoint", folder / "model", "--body-max", 4096)
    for body, says in (("", "no JSON"), ("{", "no JSON"), ('{"rows":[{"age":NaN}]}', "NaN"), ('{"rows":[{"height":1}]}', 'no column \\"height\\"'),
                       ('{"rows":[{"age":true}]}', "neither a text nor a number"), ('{"rows":[{"age":"x"}]}', "is not a number"),
                       ('{"rows":[[1]]}', "1 value, 13 expected"), ('{"rows":1}', "no list"), (b"\x00\xff", "no JSON")):
        status, text = server.ask("POST", "/score", body)
        assert status == 400 and says in text and list(json.loads(text)) == ["error"], (body, status, text)
    long = json.dumps({"rows": [{"workclass": "x" * 5000}]})
    for body in (long, iter([long.encode()])):  # with its length, and in chunks
        status, text = server.ask("POST", "/score", body)
        assert status == 413 and "--body-max" in text, text
    assert server.ask("GET", "/score")[0] == 405 and server.ask("PUT", "/score", "{}")[0] == 405 and server.ask("POST", "/model", "{}")[0] == 405
    assert server.ask("GET", "/nothing")[0] == 404
    assert server.ask("GET", "/healthz", headers={"Host": "evil.example"})[0] == 403
    assert server.ask("POST", "/score", '{"rows":[]}', {"Host": "evil.example"})[0] == 403
    status, text = server.ask("POST", "/v1/score", '{"rows":[{}]}')
    assert status == 200 and len(json.loads(text)["scores"]) == 1
    assert server.get("/healthz") == "ok\n"
    assert server.metric('answers_total{code="400"}') == 9 and server.metric('answers_total{code="413"}') == 2


def test_a_token_is_asked_for_where_other_machines_come(serve, adult, tmp_path):
    folder, _, _ = adult
    flags = ("--job", "adult", "--checkpoint", folder / "model")
    _, err = finish(psworker("serve", *flags, "--http", "0.0.0.0:0"), status=2)
    assert "--http-token-file" in err and "--insecure" in err
    (tmp_path / "token").write_text("open sesame\n")
    (tmp_path / "token").chmod(0o600)
    server = serve(*flags, "--http", "0.0.0.0:0", "--http-token-file", tmp_path / "token")
    server.host = "127.0.0.1"
    for headers in ({}, {"Authorization": "Bearer open"}, {"Authorization": "Bearer open sesamee"}, {"Authorization": "Basic open sesame"}):
        for method, path, body in (("POST", "/score", '{"rows":[{}]}'), ("GET", "/model", None), ("GET", "/metrics", None)):
            assert server.ask(method, path, body, headers)[0] == 401
    assert server.ask("POST", "/score", '{"rows":[{}]}', {"Authorization": "Bearer open sesame"})[0] == 200
    assert server.ask("GET", "/healthz")[0] == 200
    insecure = serve(*flags, "--http", "0.0.0.0:0", "--insecure")
    insecure.host = "127.0.0.1"
    assert insecure.scores([{}])


@pytest.mark.parametrize("flags,says,code", (
    (("--device", "cuda"), "computes on the CPU", 2), (("--local",), "--checkpoint", 2), (("--http", "nowhere"), "http: ", 2),
    (("--dim", 4), "--dim: the model", 2), (("--job", "other"), "no record of its columns", 1),
    (("--job", "other", "--columns", "a,b", "--numeric", "a"), "table other/", 1)))
def test_what_does_not_fit_ends_the_start(adult, flags, says, code):
    folder, _, _ = adult
    model = "" if "--local" in flags else folder / "model"
    _, err = finish(psworker("serve", "--job", "adult", "--http", "127.0.0.1:0", "--checkpoint", model, *flags), 30, code)
    assert says in err


def test_a_job_that_has_ended_is_served_with_its_bits(serve, psds, adult):
    folder, names, table = adult
    node = psds("--shards", 2)
    train(*ADULT, "--epochs", 1, "--data", ADULT_DATA, "--servers", node.address)
    want = predicted(*ADULT, "--data", folder / "rows", "--labelled", "--servers", node.address)
    server = serve("--job", "adult", "--servers", node.address, "--threads", 2, *PATIENT)
    rows = inputs(server, names, table, as_number)
    status, answer = server.answer(rows)
    assert status == 200 and answer["scores"] == want and 0 <= answer["age_s"] <= 60
    assert answer["clock"] is None or answer["clock"] > 0
    model = json.loads(server.get("/model"))
    assert model["source"] == "servers" and model["record"]["model"]["dim"] == 8


def test_promtool_has_no_complaint_about_the_metrics_and_the_page_names_them(serve, psds, adult):
    if not shutil.which("promtool") and not os.environ.get("CI"):
        pytest.skip("promtool is missing: deploy/deps.sh prometheus (it brings a service along)")
    folder, names, table = adult
    node = psds("--shards", 1)
    (folder / "few").write_text("".join(", ".join(line) + "\n" for line in table[4:504]).replace("K.\n", "K\n"))
    train(*ADULT, "--epochs", 1, "--data", folder / "few", "--servers", node.address)
    followed = serve("--job", "adult", "--servers", node.address, *PATIENT)
    fixed = serve("--job", "adult", "--checkpoint", folder / "model", *PATIENT)
    families = {}
    for server in (followed, fixed):
        server.scores(inputs(server, names, table, as_number)[:10])
        assert server.answer([{}])[0] == 200 and server.ask("POST", "/score", "no JSON")[0] == 400
        text = server.get("/metrics")
        got = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=120)
        assert (got.returncode, got.stdout + got.stderr) == (0, "")
        families[server] = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    page = (ROOT / "deploy/docs/monitoring.md").read_text()
    section = page[page.index("### Metrics of psworker serve"):page.index("## /stats")]
    of_clocks = {"psworker_serve_model_clock"}  # only while servers say it
    assert families[followed] | of_clocks == set(re.findall(r"`(psworker_serve_[a-z_]+)`", section))
    assert families[fixed] == families[followed] - of_clocks - {"psworker_serve_model_age_seconds"}


def test_a_job_is_followed_within_the_bound(serve, psds, tmp_path):
    """Clocks grow, ages stay within --max-age, and at the end the scores are predict's."""
    log = synth(tmp_path / "log.tsv", 20000)
    node = psds("--shards", 2)
    flags = (*SMALL, "--job", "live", "--servers", node.address)
    trainer = psworker("train", *flags, "--data", log, "--epochs", 20, "--json", "-", "--progress-every", "20ms")
    assert trainer.stdout.readline()  # its tables are there, and the record
    server = serve("--job", "live", "--servers", node.address, "--max-age", "200ms")
    cells = [line.split("\t")[1:] for line in open(log).read().splitlines()[:50]]
    order = json.loads(server.get("/model"))["columns"]
    assert order[0] == "I1" and len(order) == 39
    seen, clocks = [], set()
    while trainer.poll() is None and len(clocks) < 6:
        status, answer = server.answer(cells)
        if status != 200:  # a busy machine: too late is said, and not served
            assert status == 503 and ("--max-age" in answer["error"] or "--deadline" in answer["error"]), answer
            continue
        assert 0 <= answer["age_s"] <= 0.25 and (not seen or (answer["clock"] or 0) >= (seen[-1]["clock"] or 0))
        seen.append(answer)
        clocks |= {answer["clock"]} - {None}
    trainer.terminate()
    trainer.communicate(timeout=60)
    assert trainer.returncode == 0
    assert len(clocks) > 2 and len({tuple(a["scores"]) for a in seen}) > len(clocks) / 2
    (tmp_path / "head").write_text("".join(open(log).read().splitlines(True)[:50]))
    want = predicted(*flags, "--data", tmp_path / "head", "--labelled")
    # Within the bound it has the last step, too.
    wait_for("the last step", lambda: server.answer(cells)[1].get("scores") == want, 5)
    assert server.metric("refreshes_total") > 3


def test_servers_that_are_gone_are_a_503_within_the_deadline_and_may_come_back(serve, psds, adult):
    folder, names, table = adult
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    node = psds("--shards", 2, listen=listen)
    train(*ADULT, "--epochs", 1, "--data", ADULT_DATA, "--servers", node.address)
    server = serve("--job", "adult", "--servers", node.address, "--max-age", "1s", "--deadline", "400ms")
    rows = inputs(server, names, table[:10], as_number)
    want = server.scores(rows)
    node.stop()
    gone = time.monotonic()
    refused = []
    while time.monotonic() - gone < 4:
        begun = time.monotonic()
        status, answer = server.answer(rows)
        took = time.monotonic() - begun
        assert status in (200, 503) and took < 3, (status, took)  # --deadline, and what a busy machine takes
        if status == 503:
            refused.append(answer["error"])
        else:
            assert answer["scores"] == want and begun - gone < 1.1  # nothing older than the bound
    assert len(refused) > 3 and all(refused)
    assert server.ask("GET", "/healthz")[0] == 503 and server.metric("failed_refreshes_total") > 0
    node = psds("--shards", 2, listen=listen, dir=node.dir)
    wait_for("the servers' return", lambda: server.answer(rows)[0] == 200, 30)
    assert server.scores(rows) == want
    wait_for("a fresh model", lambda: server.ask("GET", "/healthz")[0] == 200, 30)
    # For good, it ends with a sentence.
    last = serve("--job", "adult", "--servers", node.address, "--max-age", "200ms", "--give-up", "1s")
    node.kill()
    assert last.process.wait(30) == 1 and "--give-up" in last.text()


def test_sigterm_under_load_answers_what_has_begun(serve, adult):
    """A client that keeps its connection is told that it ends; no request that was read goes without an answer."""
    folder, names, table = adult
    server = serve("--job", "adult", "--checkpoint", folder / "model", *PATIENT)
    rows = inputs(server, names, table[:50], as_number)
    want = server.scores(rows)
    stopping = threading.Event()
    lost, n_answers = [], []

    def client():
        n = 0
        while True:
            c = server.connect()
            try:
                c.connect()
            except OSError:
                break  # nobody listens any more
            with contextlib.closing(c):
                try:
                    while True:
                        c.request("POST", "/score", json.dumps({"rows": rows}))
                        answer = c.getresponse()
                        if answer.status != 200 or json.loads(answer.read())["scores"] != want:
                            lost.append(answer.status)
                        n += 1
                        if answer.getheader("Connection") == "close":
                            break
                except (OSError, http.client.HTTPException) as e:
                    # Only a connection that was made, and not accepted, in the moment of the end.
                    if not stopping.is_set():
                        lost.append(e)
        n_answers.append(n)

    clients = [threading.Thread(target=client) for _ in range(8)]
    for t in clients:
        t.start()
    time.sleep(1)  # under load
    stopping.set()
    server.stop()
    for t in clients:
        t.join(60)
    assert not lost and min(n_answers) > 3


def test_slow_and_many_clients_hold_nobody_up(serve, adult):
    folder, _, _ = adult
    server = serve("--job", "adult", "--checkpoint", folder / "model", "--connections-max", 40, "--deadline", "5s", "--in-flight-max", 100)
    slow = []
    for i in range(60):  # headers, and a body that never comes to its end
        s = socket.create_connection((server.host, server.port))
        s.sendall(b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{" if i % 2 else b"POST /sc")
        slow.append(s)
    for _ in range(20):
        assert len(server.scores([{}])) == 1
    until = time.monotonic() + 5  # those that are turned away close on the other side, too
    while server.metric("connections") > 42 and time.monotonic() < until:
        time.sleep(0.05)
    assert server.metric("connections") <= 42
    for s in slow:  # 10 s and --deadline after their first byte
        s.settimeout(30)
        with contextlib.suppress(ConnectionError):
            while s.recv(1 << 16):
                pass
    assert server.metric("evicted_connections_total") >= 60 and len(server.scores([{}])) == 1
    # A request whose client leaves is dropped.
    for _ in range(20):
        s = socket.create_connection((server.host, server.port))
        body = b'{"rows":[' + b",".join([b"{}"] * 3000) + b"]}"
        s.sendall(b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        s.close()
    wait_for("idleness", lambda: server.metric("in_flight") == 0, 30)


def test_too_much_work_is_refused(serve, adult):
    """A request that takes longer than its deadline is answered then, and is no work any more."""
    folder, _, _ = adult
    server = serve("--job", "adult", "--checkpoint", folder / "model", "--deadline", "100ms", "--in-flight-max", 4)
    body = json.dumps({"rows": [{}] * 200000})
    begun = time.monotonic()
    status, text = server.ask("POST", "/score", body)
    assert status == 503 and "--deadline" in text and time.monotonic() - begun < 5
    wait_for("the next one", lambda: server.answer([{}])[0] == 200, 10)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        codes = list(pool.map(lambda _: server.ask("POST", "/score", body)[0], range(24)))
    assert set(codes) <= {200, 503} and 503 in codes
    assert server.metric("expired_total") > 0
    wait_for("the next one", lambda: server.answer([{}])[0] == 200, 10)

"""TLS between all programs: the guide's two nodes and a job, a reload, and who is refused."""
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

import pytest

BIN = pathlib.Path(os.environ["PS_BIN"])
DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "adult.data.zst"
CONFIG = f"--config={DATA.parents[2]}/deploy/adult.conf"


def run(*args, **more):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=180, **more)


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def client(folder, role):
    return [f"--tls-ca={folder}/ca.pem", f"--tls-cert={folder}/{role}.pem", f"--tls-key={folder}/{role}.key"]


class Node:
    def __init__(self, tmp, address, folder, *more, keep=True):
        self.log = open(tmp / f"psd-{address.split(':')[1]}.log", "w+")
        usual = ["--tls=on", *client(folder, "node")] if keep else []
        self.process = subprocess.Popen([str(BIN / "psd"), f"--listen={address}", "--shards=1", *usual, *more], stderr=self.log,
                                        stdout=self.log)

    def wait_for(self, words, timeout_s=60):
        """The log has these words."""
        until = time.monotonic() + timeout_s
        while words not in self.text():
            assert time.monotonic() < until and self.process.poll() is None, self.text()
            time.sleep(0.02)

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.text()
        self.log.close()


@pytest.fixture
def folder(tmp_path):
    made = run(BIN / "psctl", "cert", tmp_path / "tls", "--job=census")
    assert made.returncode == 0, made.stderr
    return tmp_path / "tls"


def test_two_nodes_and_a_job_with_certificates(tmp_path, folder):
    a, b = [f"127.0.0.1:{port}" for port in free_ports(2)]
    nodes = [Node(tmp_path, at, folder, f"--cluster={a},{b}", f"--node={i}") for i, at in enumerate((a, b))]
    for node in nodes:
        node.wait_for("psd ready")
    trained = run(BIN / "psworker", "train", f"--servers={a}", "--job=census", CONFIG, f"--data={DATA}",
                  "--epochs=1", *client(folder, "worker"))
    assert trained.returncode == 0, trained.stderr
    tables = run(BIN / "psctl", "tables", f"--server={a}", *client(folder, "operator"))
    assert tables.returncode == 0 and "census" in tables.stdout, tables.stderr
    other = run(BIN / "psworker", "train", f"--servers={a}", "--job=other", CONFIG, f"--data={DATA}",
                "--epochs=1", "--give-up=2s", *client(folder, "worker"))
    assert other.returncode != 0 and "role worker of job census may not use it" in other.stderr, other.stderr
    dropped = run(BIN / "psctl", "drop", "census", "--yes", f"--server={a}", *client(folder, "operator"))
    assert dropped.returncode != 0 and "drop: role operator may not do it" in dropped.stderr, dropped.stderr
    dropped = run(BIN / "psctl", "drop", "census", "--yes", f"--server={a}", *client(folder, "admin"))
    assert dropped.returncode == 0, dropped.stderr
    for node in nodes:
        node.stop()


def test_a_pair_copies_promotes_and_switches_over_tls(tmp_path, folder):
    a, b = [f"127.0.0.1:{port}" for port in free_ports(2)]
    ids = client(folder, "admin")

    def ask(at, *words):
        return run(BIN / "psctl", *words, f"--server={at}", *ids)

    def await_in_sync(at):
        until = time.monotonic() + 60
        while '"in_sync":true' not in ask(at, "status", "--json").stdout.replace(" ", ""):
            assert time.monotonic() < until, "no standby in sync"
            time.sleep(0.05)

    def n_rows(at):
        return re.findall(r"^(census/\S+) +\w+ .* fp32 +(\d+)", ask(at, "tables").stdout, re.MULTILINE)

    def data(name):
        return f"--data-dir={tmp_path / name}"

    primary = Node(tmp_path, a, folder, data("a"))
    primary.wait_for("psd ready")
    trained = run(BIN / "psworker", "train", f"--servers={a}", "--job=census", CONFIG, f"--data={DATA}",
                  "--epochs=1", *client(folder, "worker"))
    assert trained.returncode == 0, trained.stderr
    standby = Node(tmp_path, b, folder, data("b"), f"--standby={a}")
    await_in_sync(b)
    await_in_sync(a)
    switched = ask(a, "switch")
    assert switched.returncode == 0 and switched.stdout.startswith(f"{b} is the primary now"), switched.stderr
    await_in_sync(a)
    rows = n_rows(b)
    assert rows
    members = ask(b, "cluster")
    assert members.returncode == 0 and a in members.stdout, members.stdout + members.stderr
    standby.process.kill()
    standby.process.wait()
    until = time.monotonic() + 20
    while (promoted := ask(a, "promote")).returncode:
        assert time.monotonic() < until, promoted.stderr
        time.sleep(0.05)
    assert n_rows(a) == rows
    back = Node(tmp_path, b, folder, data("b"), f"--standby={a}")  # asks whether it still is the primary: over TLS, too
    await_in_sync(b)
    for node in (back, primary):
        node.stop()
    standby.log.close()


def test_certificates_are_read_again_and_a_bad_file_changes_nothing(tmp_path, folder):
    at = f"127.0.0.1:{free_ports(1)[0]}"
    node = Node(tmp_path, at, folder)
    node.wait_for("psd ready")
    ask = [BIN / "psctl", "status", f"--server={at}", *client(folder, "admin")]
    assert run(*ask).returncode == 0
    good = (folder / "node.pem").read_text()
    (folder / "node.pem").write_text("no certificate")
    node.process.send_signal(signal.SIGHUP)
    node.wait_for("all settings stay as they are: tls-cert: cannot use")
    assert run(*ask).returncode == 0
    (folder / "node.pem").unlink()
    (folder / "node.key").unlink()
    assert run(BIN / "psctl", "cert", folder, "--days=7").returncode == 0
    assert (folder / "node.pem").read_text() != good
    node.process.send_signal(signal.SIGHUP)
    node.wait_for("in force now: the certificates")
    assert run(*ask).returncode == 0
    plain = run(BIN / "psctl", "status", f"--server={at}")
    assert plain.returncode != 0 and "this port speaks TLS" in plain.stderr
    openssl = run("openssl", "s_client", "-connect", at, "-tls1_2", input="")
    assert openssl.returncode != 0
    node.wait_for("the peer offers no TLS 1.3")
    assert re.search("refused: this port speaks TLS", node.text())
    node.stop()


# --- what each program says when the two ends do not fit ---

ROOT = DATA.parents[2]


def test_a_token_that_is_taken_away_leaves_nobody_behind_and_a_new_one_counts(tmp_path, folder):
    """By a reload: certificates are wanted of those who have no token to show."""
    (at,) = [f"127.0.0.1:{port}" for port in free_ports(1)]
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    token.chmod(0o600)
    config = tmp_path / "psd.conf"
    config.write_text(f"token-file = {token}\n")
    node = Node(tmp_path, at, folder, f"--config={config}")
    node.wait_for("psd ready")

    def status(*more):
        return run(BIN / "psctl", "status", f"--server={at}", f"--tls-ca={folder}/ca.pem", *more)

    def reload(text, n):
        config.write_text(text)
        node.process.send_signal(signal.SIGHUP)
        until = time.monotonic() + 60
        while node.text().count("SIGHUP: settings were read again") < n:
            assert time.monotonic() < until, node.text()
            time.sleep(0.02)

    assert status(f"--token-file={token}").returncode == 0
    reload("", 1)
    for more in [], [f"--token-file={token}"]:
        refused = status(*more)
        assert refused.returncode == 1 and "certificate" in refused.stderr, refused.stdout + refused.stderr
    reload(f"token-file = {token}\n", 2)
    assert status(f"--token-file={token}").returncode == 0
    assert "token: none given" in status().stderr
    node.stop()


def make_cert(folder, name, role, ca="ca", days=30, host="127.0.0.1", use="serverAuth,clientAuth"):
    """With openssl, as one's own CA would: NAME.pem and NAME.key. Days below 0: it has expired."""
    names = f"subjectAltName=URI:psd://psd/{role},{'IP' if host[0].isdigit() else 'DNS'}:{host}"
    (folder / "names").write_text(f"{names}\nextendedKeyUsage={use}\n")
    for step in (["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                  "-keyout", f"{name}.key", "-out", "csr"],
                 ["x509", "-req", "-in", "csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-days", str(days), "-extfile", "names",
                  "-out", f"{name}.pem"]):
        made = run("openssl", *step, cwd=folder)
        assert made.returncode == 0, made.stderr


def ids(folder, name, ca="ca"):
    if name is None:
        return []
    return [f"--tls-ca={folder}/{ca}.pem", *([f"--tls-cert={folder}/{name}.pem", f"--tls-key={folder}/{name}.key"] if name else [])]


PYTHON = """
import sys, psd
options = {name.replace("-", "_"): value for name, value in (a[2:].split("=", 1) for a in sys.argv[2:])}
psd.connect(f"psd://{sys.argv[1]}", job="census", connect_timeout="2s", **options)
"""
PROGRAMS = {
    "psctl": lambda at, flags: run(BIN / "psctl", "status", f"--server={at}", *flags),
    "psbench": lambda at, flags: run(BIN / "psbench", "pull", f"--server={at}", "--seconds=1", *flags),
    "psworker": lambda at, flags: run(BIN / "psworker", "train", f"--servers={at}", "--job=census", CONFIG, f"--data={DATA}",
                                      "--epochs=1", "--connect-timeout=2s", *flags),
    "python": lambda at, flags: run("/usr/bin/python3", "-c", PYTHON, at, *flags, env={
        **os.environ, "PYTHONPATH": str(ROOT / "worker/python"), "PSD_LIBRARY": str(BIN.parent / "lib/libpsd.so.1")}),
}
# The node's certificate (None: it is plain), the client's ("": it shows none), its CA; what the client says, and what the node logs.
MISFITS = [
    ("node", None, "ca", "this port speaks TLS", "this port speaks TLS"),
    (None, "admin", "ca", "does not speak TLS|one end speaks TLS", "does not speak TLS"),
    ("node", "late", "ca", "this end's certificate: it has expired", "the peer's certificate has expired"),
    ("node", "admin", "other", "certificate is of another CA than", "this end's certificate: it is of another CA"),
    ("node", "stranger", "ca", "this end's certificate: it is of another CA", "certificate is of another CA than"),
    ("node", "", "ca", "this end has none", "shows no certificate"),
    ("away", "admin", "ca", "lacks an expected name", "this end's certificate for its names"),
    ("gone", "admin", "ca", "the peer's certificate has expired", "this end's certificate: it has expired"),
    ("node", "useless", "ca", "the use of this end's certificate .tls-cert.: extendedKeyUsage lacks clientAuth", "is not for this use"),
]


@pytest.fixture
def misfits(tmp_path, folder):
    assert run(BIN / "psctl", "cert", tmp_path / "others").returncode == 0
    for end in ("pem", "key"):
        (tmp_path / "others" / f"ca.{end}").rename(folder / f"other.{end}")
    make_cert(folder, "late", "admin", days=-1)
    make_cert(folder, "stranger", "admin", ca="other")
    make_cert(folder, "outsider", "node", ca="other")
    make_cert(folder, "away", "node", host="elsewhere.example")
    make_cert(folder, "gone", "node", days=-1)
    make_cert(folder, "useless", "admin", use="serverAuth")
    make_cert(folder, "served", "node", use="serverAuth")
    return folder


@pytest.mark.parametrize("server, cert, ca, said, logged", MISFITS, ids=lambda v: "" if v is None else str(v)[:12])
def test_each_program_and_the_node_say_why_they_do_not_fit(tmp_path, misfits, server, cert, ca, said, logged):
    at, standby_at = [f"127.0.0.1:{port}" for port in free_ports(2)]
    node = Node(tmp_path, at, misfits, *ids(misfits, server), "--tls=on" if server else "--tls=off", keep=False)
    node.wait_for("psd ready")
    n_logged = 0
    for name, program in PROGRAMS.items():
        got = program(at, ids(misfits, cert, ca))
        assert got.returncode != 0 and re.search(said, got.stdout + got.stderr), f"{name}: {got.stdout}{got.stderr}"
        until = time.monotonic() + 20
        while len(re.findall(logged, node.text())) <= n_logged and "lines like it" not in node.text():
            assert time.monotonic() < until, f"{name}: {node.text()}"
            time.sleep(0.02)
        n_logged = len(re.findall(logged, node.text()))
    if cert != "":  # a psd shows a certificate of role node, or is plain
        own = cert and {"admin": "node", "late": "gone", "stranger": "outsider", "useless": "served"}[cert]
        standby = Node(tmp_path, standby_at, misfits, *ids(misfits, own, ca), "--tls=on" if cert else "--tls=off",
                       f"--data-dir={tmp_path / 'standby'}", f"--standby={at}", keep=False)
        until = time.monotonic() + 30
        while not re.search(said, standby.text()):
            assert time.monotonic() < until, standby.text()
            time.sleep(0.02)
        standby.process.kill()
        standby.process.wait()
        standby.log.close()
    node.stop()


def test_a_node_knows_what_peers_will_hold_against_its_certificate(tmp_path, misfits):
    at = f"127.0.0.1:{free_ports(1)[0]}"
    node = Node(tmp_path, at, misfits, *ids(misfits, "served"), "--tls=on", keep=False)
    node.wait_for("tls: the certificate (tls-cert) is not for clients (extendedKeyUsage lacks clientAuth)")
    got = run(BIN / "psctl", "doctor", f"--server={at}", "--every=100ms", *ids(misfits, "admin"))
    assert "its certificate (tls-cert) is not for clients (extendedKeyUsage lacks clientAuth)" in got.stdout, got.stdout + got.stderr
    node.stop()


def test_doctor_has_a_finding_for_each_node_whose_certificate_has_expired(tmp_path, misfits):
    """No client comes as far as the report that says when it expires."""
    servers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    nodes = []
    for i, name in enumerate(["node", "gone"]):
        more = [f"--cluster={','.join(servers)}", f"--node={i}"]
        nodes.append(Node(tmp_path, servers[i], misfits, *ids(misfits, name), "--tls=on", *more, keep=False))
        nodes[-1].wait_for("psd ready")
    refused = r"problem: (.*)its certificate \(tls-cert\) is refused: psd at (.*): the peer's certificate has expired.*: renew it, and reload psd"

    def doctor(server):
        got = run(BIN / "psctl", "doctor", f"--server={server}", "--every=100ms", *ids(misfits, "admin"))
        assert got.returncode == 1 and got.stderr == "", got.stderr
        return re.findall(refused, got.stdout)

    assert doctor(",".join(servers)) == [("node 1: ", servers[1])]
    assert doctor(servers[1]) == [("", servers[1])]
    for node in nodes:
        node.stop()


def test_clients_see_at_once_that_a_port_with_tls_is_that_of_the_pages(tmp_path, folder):
    at, pages = [f"127.0.0.1:{port}" for port in free_ports(2)]
    node = Node(tmp_path, at, folder, f"--http={pages}")
    node.wait_for("psd ready")
    for name in ("psctl", "psworker", "psbench"):
        begin = time.monotonic()
        got = PROGRAMS[name](pages, client(folder, "admin"))
        assert got.returncode == 1 and f"{pages}: it answers HTTP: is this the stats port?" in got.stderr, got.stderr
        assert time.monotonic() - begin < 20
    node.stop()


def test_clients_say_that_a_server_offers_no_tls_13(tmp_path, folder):
    port = free_ports(1)[0]
    old = subprocess.Popen(["openssl", "s_server", "-accept", f"127.0.0.1:{port}", "-tls1_2", "-cert", folder / "node.pem", "-key",
                            folder / "node.key"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert any("ACCEPT" in line for line in old.stdout)
    got = PROGRAMS["psctl"](f"127.0.0.1:{port}", ids(folder, "admin"))
    assert got.returncode != 0 and "offers no TLS 1.3" in got.stderr, got.stderr
    old.kill()
    old.wait()


def test_a_worker_reads_its_certificates_again(tmp_path, folder):
    """psworker serve, which is long-lived: a bad file keeps the certificates that it has."""
    at, http = [f"127.0.0.1:{port}" for port in free_ports(2)]
    node = Node(tmp_path, at, folder)
    node.wait_for("psd ready")
    trained = run(BIN / "psworker", "train", f"--servers={at}", "--job=census", CONFIG, f"--data={DATA}", "--epochs=1",
                  *client(folder, "worker"))
    assert trained.returncode == 0, trained.stderr
    log = tmp_path / "serve.log"
    with open(log, "w") as out:
        serve = subprocess.Popen([str(BIN / "psworker"), "serve", f"--servers={at}", "--job=census", f"--http={http}", CONFIG,
                                  *client(folder, "reader")], stderr=out, stdout=out, start_new_session=True)

    def await_log(words):
        until = time.monotonic() + 60
        while words not in log.read_text():
            assert time.monotonic() < until and serve.poll() is None, log.read_text()
            time.sleep(0.02)

    await_log("serving job")
    good = (folder / "reader.pem").read_text()
    (folder / "reader.pem").write_text("no certificate")
    serve.send_signal(signal.SIGHUP)
    await_log("the certificates stay as they are: tls-cert: cannot use")
    (folder / "reader.pem").write_text(good)
    serve.send_signal(signal.SIGHUP)
    await_log("the certificates were read again")
    serve.terminate()
    assert serve.wait(60) == 0, log.read_text()
    node.stop()

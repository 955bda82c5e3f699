"""Real etcd, one member or more, on ports of this machine; and a slow way to one."""

import base64
import http.client
import json
import os
import select
import pathlib
import shutil
import signal
import ssl
import subprocess
import time

import pytest
from relay import Relay
from training import free_ports, wait_for

CERTIFICATES = pathlib.Path(__file__).resolve().parents[1] / "support/certificates.sh"


class Etcd:
    """Its members in a folder of their own. Each pair of psd has a cluster's name of its own: url()."""

    def __init__(self, folder, n_members=1, guarded=False):
        """guarded: over TLS, with certificates of clients, and user psd has a password."""
        if not shutil.which("etcd"):
            pytest.skip("there is no etcd on PATH (Debian: etcd-server)")
        self.folder, self.n_clusters, self.n_copies, self.context = folder, 0, 0, None
        if guarded:
            subprocess.run([CERTIFICATES, folder], check=True)
            self.context = ssl.create_default_context(cafile=folder / "ca.pem")
            self.context.load_cert_chain(folder / "client.pem", folder / "client.key")
        ports = free_ports(2 * n_members)
        self.ports, self.peers = ports[:n_members], [f"http://127.0.0.1:{port}" for port in ports[n_members:]]
        self.procs = [None] * n_members
        for member in range(n_members):
            self.start(member)
        wait_for("etcd", lambda: all(self.answers(member) for member in range(n_members)), 60)
        if guarded:
            self.make_user()

    def make_user(self):
        (self.folder / "password").write_text("correct horse\n")
        (self.folder / "password").chmod(0o600)
        keys = {"key": base64.b64encode(b"/psd/").decode(), "range_end": base64.b64encode(b"/psd0").decode()}
        for path, body in (("user/add", {"name": "root", "password": "root"}), ("role/add", {"name": "root"}),
                           ("user/grant", {"user": "root", "role": "root"}), ("user/add", {"name": "psd", "password": "correct horse"}),
                           ("role/add", {"name": "psd"}), ("role/grant", {"name": "psd", "perm": {"permType": "READWRITE", **keys}}),
                           ("user/grant", {"user": "psd", "role": "psd"}), ("enable", {})):
            assert "header" in self.ask(0, f"/v3/auth/{path}", body, 10), path

    def access(self):
        """How a program is told to ask it: names of options, without --, and their values."""
        at = self.folder
        return {"coord-ca": at / "ca.pem", "coord-cert": at / "client.pem", "coord-key": at / "client.key", "coord-user": "psd",
                "coord-password-file": at / "password"} if self.context else {}

    def flags(self):
        return [str(word) for name, value in self.access().items() for word in (f"--{name}", value)]

    def start(self, member):
        tls = ["--cert-file", self.folder / "server.pem", "--key-file", self.folder / "server.key", "--trusted-ca-file", self.folder / "ca.pem",
               "--client-cert-auth"] if self.context else []
        own, peer = f"http{'s' if tls else ''}://127.0.0.1:{self.ports[member]}", self.peers[member]
        everybody = ",".join(f"m{i}={url}" for i, url in enumerate(self.peers))
        with open(self.folder / f"etcd{member}.log", "a", encoding="utf-8") as log:
            self.procs[member] = subprocess.Popen(
                ["etcd", "--name", f"m{member}", "--data-dir", self.folder / f"m{member}", "--listen-client-urls", own,
                 "--advertise-client-urls", own, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", everybody, *tls], stdout=log, stderr=log)

    def ask(self, member, path, body, seconds=1):
        """The answer, or None."""
        connection = (http.client.HTTPSConnection("127.0.0.1", self.ports[member], timeout=seconds, context=self.context)
                      if self.context else http.client.HTTPConnection("127.0.0.1", self.ports[member], timeout=seconds))
        try:
            connection.request("POST", path, json.dumps(body))
            return json.loads(connection.getresponse().read())
        except (OSError, ValueError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def answers(self, member):
        """A linearizable read: there is a leader."""
        said = self.ask(member, "/v3/kv/range", {"key": "AA=="}) or {}
        return "header" in said or "user name is empty" in said.get("error", "")

    def get(self, key):
        """A value, by any member."""
        for member, proc in enumerate(self.procs):
            said = proc and self.ask(member, "/v3/kv/range", {"key": base64.b64encode(key.encode()).decode()})
            if said and said.get("kvs"):
                return base64.b64decode(said["kvs"][0]["value"]).decode()
        return None

    def url(self, ports=None):
        """For the next pair."""
        self.n_clusters += 1
        return f"etcd://{','.join(f'127.0.0.1:{port}' for port in ports or self.ports)}/t{self.n_clusters}"

    def leader(self):
        def find():
            for member, proc in enumerate(self.procs):
                said = proc and self.ask(member, "/v3/maintenance/status", {})
                if said and said.get("leader") == said["header"]["member_id"]:
                    return [member]
            return None
        return wait_for("etcd's leader", find, 60)[0]

    def others(self, member):
        return [i for i in range(len(self.procs)) if i != member]

    def signal(self, number, *members):
        for member in members:
            self.procs[member].send_signal(number)
            if number == signal.SIGSTOP:
                os.waitid(os.P_PID, self.procs[member].pid, os.WSTOPPED)  # all of its threads

    def kill(self, *members):
        self.signal(signal.SIGKILL, *members)
        for member in members:
            self.procs[member].wait()
            self.procs[member] = None

    def heal(self):
        """All run, and answer."""
        for member, proc in enumerate(self.procs):
            if proc:
                proc.send_signal(signal.SIGCONT)
            else:
                self.start(member)
        wait_for("etcd's return", lambda: all(self.answers(member) for member in range(len(self.procs))), 60)

    def copy(self):
        """Of the only member's data, as a backup."""
        self.n_copies += 1
        return shutil.copytree(self.folder / "m0", self.folder / f"copy{self.n_copies}")

    def restore(self, copy=None):
        """It ends, and comes back with the data of a copy, or with none."""
        if self.procs[0]:
            self.kill(0)
        shutil.rmtree(self.folder / "m0")
        if copy:
            shutil.copytree(copy, self.folder / "m0")
        self.heal()

    def delete(self, prefix):
        """All keys below it."""
        first, last = prefix.encode(), prefix[:-1].encode() + bytes([ord(prefix[-1]) + 1])
        said = self.ask(0, "/v3/kv/deleterange", {"key": base64.b64encode(first).decode(), "range_end": base64.b64encode(last).decode()})
        assert said and "header" in said, said

    def end(self):
        self.kill(*[member for member, proc in enumerate(self.procs) if proc])


class SlowWay(Relay):
    """Each piece goes on to `target`, a port of this machine, and back, `delay_s` later."""

    def __init__(self, target):
        self.delay_s = 0.0
        super().__init__(("127.0.0.1", target))

    def pieces(self, source, is_answer):
        """Until the source ends: what is held then is lost."""
        held = []
        while True:
            until = held[0][0] - time.monotonic() if held else None
            if select.select([source], [], [], until and max(until, 0))[0]:
                piece = source.recv(65536)
                if not piece:
                    return
                held.append((time.monotonic() + self.delay_s, piece))
            while held and held[0][0] <= time.monotonic():
                yield held.pop(0)[1]

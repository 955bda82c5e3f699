"""An etcd of one member, a real process."""

import shutil
import signal
import subprocess

import pytest
from training import free_ports


class Etcd:
    def __init__(self, folder):
        if not shutil.which("etcd"):
            pytest.skip("there is no etcd on PATH (Debian: etcd-server)")
        port, peer_port = free_ports(2)
        self.url, self.address = f"etcd://127.0.0.1:{port}/t", f"127.0.0.1:{port}"
        own, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
        with open(folder / "etcd.log", "a", encoding="utf-8") as log:
            self.proc = subprocess.Popen(
                ["etcd", "--name", "m0", "--data-dir", folder / "etcd", "--listen-client-urls", own,
                 "--advertise-client-urls", own, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", f"m0={peer}"], stdout=log, stderr=log)

    def end(self):
        self.proc.kill()
        self.proc.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.send_signal(signal.SIGCONT)
        self.end()

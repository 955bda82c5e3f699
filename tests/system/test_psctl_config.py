"""psctl config: what is in force on each node of a cluster, before and after a reload, and for whom."""

import json
import os
import re
import signal
import subprocess

from conftest import BIN, eventually
from training import free_ports

SECRETS = {"all": "secret-of-all-roles", "worker/ads": "secret-of-a-worker"}


def psctl(port, secret, *args):
    return subprocess.run([str(BIN / "psctl"), "config", *args, "--server", f"127.0.0.1:{port}", "--token-file", secret],
                          capture_output=True, text=True, timeout=120)


def secret_file(folder, name, text):
    path = folder / name
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_settings_of_a_cluster_and_what_a_reload_changes(start_psd, tmp_path):
    ports = free_ports(2)
    tokens = secret_file(tmp_path, "tokens", "".join(f"{role} {secret}\n" for role, secret in SECRETS.items()))
    operator, worker = (secret_file(tmp_path, f"of-{i}", secret + "\n") for i, secret in enumerate(SECRETS.values()))
    conf = tmp_path / "psd.conf"
    common = f"cluster = 127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}\ntoken-file = {tokens}\nshards = 1\n"
    conf.write_text(common + "log-max = 4G\n")
    nodes = [start_psd("--config", str(conf), "--listen", f"127.0.0.1:{port}", "--node", str(i), "--cut-every", "500" if i else "1000")
             for i, port in enumerate(ports)]

    got = psctl(ports[0], operator)
    assert got.returncode == 1
    assert re.search(r"^log-max +4G +all +psd\.conf:4 +takes effect$", got.stdout, re.M), got.stdout
    assert re.search(r"^shards +1 +all +psd\.conf:3 +-$", got.stdout, re.M) and re.search(r"^node +1 +1 +command line +-$", got.stdout, re.M)
    assert "problem: nodes differ in cut-every, which must be equal: node 0 has 1000, node 1 has 500\n" in got.stdout
    assert not re.search(r"^lease ", got.stdout, re.M) and re.search(r"^lease +10s +all +default", psctl(ports[1], operator, "-o", "wide").stdout, re.M)

    conf.write_text(common.replace("shards = 1", "shards = 3") + "\nlog-max = 2G\n")
    nodes[0].process.send_signal(signal.SIGHUP)
    eventually(lambda: re.search(r"^log-max +2G +0 +psd\.conf:5, reloaded +takes effect$", psctl(ports[0], operator).stdout, re.M))
    said = psctl(ports[0], operator, "shards", "--node", "0")
    assert said.returncode == 0 and re.search(r"^shards +1 +psd\.conf:3 +waits for a restart$", said.stdout, re.M), said.stdout

    got = psctl(ports[0], operator, "--json")
    assert got.returncode == 0
    answers = json.loads(got.stdout)["nodes"]
    assert [len(node["settings"]) > 50 for node in answers] == [True, True] and not [s for s in SECRETS.values() if s in got.stdout]
    assert not {s["name"] for s in answers[0]["settings"]} ^ {s["name"] for s in answers[1]["settings"]}

    refused = psctl(ports[0], worker)
    assert refused.returncode == 1 and "config: role worker may not do it" in refused.stderr, refused.stderr
    unknown = psctl(ports[0], operator, "no-such")
    assert (unknown.returncode, unknown.stdout) == (1, "") and "psd has no setting no-such" in unknown.stderr


def own(home, *args, **env):
    """psctl, as a user with this home folder calls it."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PSCTL_CONFIG", "XDG_CONFIG_HOME")}
    return subprocess.run([str(BIN / "psctl"), *args], capture_output=True, text=True, timeout=120, env={**clean, "HOME": str(home), **env})


def test_psctl_takes_servers_and_secrets_from_the_users_file(start_psd, tmp_path):
    secret = secret_file(tmp_path, "secret", "a-secret-of-the-cluster\n")
    psd, other = (start_psd("--shards", "1", *args) for args in (("--token-file", str(secret)), ()))
    server = f"127.0.0.1:{psd.port}"
    file = tmp_path / ".config/psd/psctl.conf"
    file.parent.mkdir(parents=True)
    file.write_text(f"server = {server}\ntoken-file = {secret}\noutput = json\n")
    got = own(tmp_path, "status")
    assert got.returncode == 0 and json.loads(got.stdout)["n_shards"] == 1, got.stderr

    got = own(tmp_path, "config", "shards", "-o", "text")  # the command line wins
    assert got.stdout.startswith(f"psctl itself asks {server}, with server, token-file of {file}\n"), got.stdout + got.stderr
    assert own(tmp_path, "status", "--server", f"127.0.0.1:{other.port}").returncode == 0
    assert own(tmp_path, "status", "--token-file", "").returncode == 1
    assert own(tmp_path, "status", "--config", "/dev/null", "--timeout", "1s").returncode == 1  # in its place
    moved = file.rename(tmp_path / "moved.conf")
    assert own(tmp_path, "status", "--timeout", "1s").returncode == 1
    assert own(tmp_path, "status", PSCTL_CONFIG=str(moved)).returncode == 0
    missing = own(tmp_path, "status", PSCTL_CONFIG=str(file))
    assert missing.returncode == 2 and str(file) in missing.stderr
    assert own(tmp_path, "status", "--server", server, "--token-file", str(secret), PSCTL_CONFIG="").returncode == 0


def test_the_users_file_says_where_and_who_and_nothing_else(start_psd, tmp_path):
    psd = start_psd("--shards", "1")
    file = tmp_path / "psctl.conf"
    file.write_text("coord = etcd://127.0.0.1:1/nobody\n")  # --server is for another cluster
    assert own(tmp_path, "status", "--server", f"127.0.0.1:{psd.port}", PSCTL_CONFIG=str(file)).returncode == 0
    file.write_text("tls-ca = /nonexist.pem\n")
    assert own(tmp_path, "help", PSCTL_CONFIG=str(file)).returncode == 0
    assert own(tmp_path, "checkpoints", str(tmp_path), PSCTL_CONFIG=str(file)).returncode == 1  # for another reason
    refused = own(tmp_path, "status", PSCTL_CONFIG=str(file))
    assert refused.returncode == 2 and "nonexist.pem" in refused.stderr
    file.write_text("# a\nyes = yes\n")
    refused = own(tmp_path, "drop", "j", PSCTL_CONFIG=str(file))
    assert refused.returncode == 2 and f"{file}:2: yes: this file is for settings of the sections server and output" in refused.stderr

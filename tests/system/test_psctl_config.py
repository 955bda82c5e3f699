"""psctl config: what is in force on each node of a cluster, before and after a reload, and for whom."""

import json
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

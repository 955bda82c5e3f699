"""The samples for containers, Kubernetes and Slurm: their form, and each command line of psd and psworker in them, held against --check."""

import json
import os
import re
import shlex
import shutil
import subprocess

import pytest
import yaml
from conftest import BIN, ROOT

SAMPLES = ROOT / "deploy/samples"

# Stands for a program: the same command line, with this machine's token and data in the place of the sample's, and --check. What
# was called is a line of $CALLS; a command line that --check refuses ends it with the program's own status.
PROGRAM = """#!/bin/bash
name=$(basename "$0") args=() before=
for arg in "$@"; do
    case $before in --token-file) arg=$OWN_TOKEN ;; --data) arg=$OWN_CLICKS ;; esac
    args+=("$arg") before=$arg
    case $before in "$OWN_TOKEN" | "$OWN_CLICKS") before= ;; esac
done
echo "$name $*" >>"$CALLS"
exec "$BIN/$name" "${args[@]}" --check
"""
# Runs a step's command once for each task.
SRUN = """#!/bin/bash
n=1
while [[ $1 == --* ]]; do
    case $1 in --ntasks=*) n=${1#*=} ;; esac
    shift
done
for ((i = 0; i < n; i++)); do SLURM_PROCID=$i "$@" || exit; done
"""
SCONTROL = """#!/bin/bash
[ "$*" = "show hostnames n[1-6]" ] && printf 'n%d\\n' 1 2 3 4 5 6
"""


@pytest.fixture
def shell(tmp_path):
    """Runs a command line with shims before the programs; returns (status, what it said, calls of psd and psworker)."""
    bin = tmp_path / "bin"
    bin.mkdir()
    for name, text in (("psd", PROGRAM), ("psworker", PROGRAM), ("srun", SRUN), ("scontrol", SCONTROL)):
        (bin / name).write_text(text)
        (bin / name).chmod(0o755)
    token, clicks, calls = tmp_path / "own-token", tmp_path / "clicks.tsv", tmp_path / "calls"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    subprocess.run([BIN / "psworker", "synth", "--rows", "20000", "--output", clicks], check=True, capture_output=True)

    def run(*args, **env):
        calls.write_text("")
        got = subprocess.run(args, capture_output=True, text=True, timeout=240, cwd=tmp_path, env={
            **os.environ, "PATH": f"{bin}:{os.environ['PATH']}", "BIN": str(BIN), "CALLS": str(calls), "OWN_TOKEN": str(token),
            "OWN_CLICKS": str(clicks), **env})
        return got.returncode, got.stdout + got.stderr, calls.read_text().splitlines()

    return run


def option(line, name):
    """Of a command line, as the shell reads it."""
    words = shlex.split(line)
    return words[words.index(name) + 1]


# --- the container ---


def instructions():
    text = re.sub(r"\\\n\s*", "", (SAMPLES / "Containerfile").read_text())
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line and not line.startswith("#")]


def test_the_containerfile_is_well_formed_and_its_command_line_passes_check(shell):
    lines = instructions()
    known = {"FROM", "RUN", "COPY", "WORKDIR", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "CMD"}
    assert {name for name, _ in lines} == known
    bases = [rest for name, rest in lines if name == "FROM"]
    assert all(re.match(r"debian:\d+-slim\b", base) for base in bases) and bases[0].endswith(" AS build")
    last = lines[max(i for i, line in enumerate(lines) if line[0] == "FROM"):]
    of = {name: rest for name, rest in last}
    assert of["USER"].isdigit() and int(of["USER"]) > 0 and f"--uid {of['USER']}" in of["RUN"]
    assert all("rm -rf /var/lib/apt/lists" in rest for name, rest in last if name == "RUN" and "apt-get" in rest)
    command = json.loads(of["CMD"])
    status, said, calls = shell(*command)
    assert status == 0 and len(calls) == 1, said
    line = " ".join(command)
    assert of["EXPOSE"].split() == [option(line, "--listen").split(":")[1], option(line, "--http").split(":")[1]]
    probe = json.loads(of["HEALTHCHECK"][of["HEALTHCHECK"].index("CMD ") + 4:])
    assert probe[0] == "curl" and "curl" in of["RUN"] and probe[-1] == f"http://127.0.0.1:{option(line, '--http').split(':')[1]}/healthz"
    assert of["VOLUME"] == of["WORKDIR"] == option(line, "--data-dir") and f"psd -m 750 {of['VOLUME']}" in of["RUN"]
    # The packages that are copied are those that the tree builds.
    control = (ROOT / "deploy/debian/control").read_text()
    copied = next(rest for name, rest in last if name == "COPY")
    for name in re.findall(r"(\w+)_\*\.deb", copied):
        assert f"\nPackage: {name}\n" in control and f"/tmp/{name}_*.deb" in of["RUN"]


# --- Kubernetes ---


def resources():
    found = {d["kind"]: d for d in yaml.safe_load_all((SAMPLES / "kubernetes.yaml").read_text())}
    assert set(found) == {"Service", "StatefulSet", "Job"}
    return found


def check_pod(spec):
    """No root, no rights; every mount has its volume; returns the only container."""
    security = spec["securityContext"]
    assert security["runAsNonRoot"] is True and security["runAsUser"] > 0 and security["seccompProfile"] == {"type": "RuntimeDefault"}
    container, = spec["containers"]
    own = container["securityContext"]
    assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] is True and own["capabilities"] == {"drop": ["ALL"]}
    assert container["command"] == ["/bin/sh", "-c"] and len(container["args"]) == 1 and container["image"].count(":") == 1
    assert {"cpu", "memory"} <= set(container["resources"]["requests"]) and "memory" in container["resources"]["limits"]
    return container


def port(container, name):
    return next(p["containerPort"] for p in container["ports"] if p["name"] == name)


def test_the_stateful_set_fits_its_service_and_each_pods_command_line_passes_check(shell):
    found = resources()
    service, state = found["Service"]["spec"], found["StatefulSet"]["spec"]
    assert found["StatefulSet"]["apiVersion"] == "apps/v1" and found["Service"]["apiVersion"] == "v1"
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"] is True
    assert state["serviceName"] == found["Service"]["metadata"]["name"]
    labels = state["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items() and state["selector"]["matchLabels"].items() <= labels.items()
    pod = state["template"]["spec"]
    container = check_pod(pod)
    claims = {c["metadata"]["name"] for c in state["volumeClaimTemplates"]} | {v["name"] for v in pod["volumes"]}
    mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
    assert set(mounts.values()) == claims
    assert pod["terminationGracePeriodSeconds"] >= 300
    assert {p["name"]: p["port"] for p in service["ports"]} == {p["name"]: p["containerPort"] for p in container["ports"]}
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "http"}
    name = found["StatefulSet"]["metadata"]["name"]
    nodes = [f"{name}-{i}.{state['serviceName']}:{port(container, 'psd')}" for i in range(state["replicas"])]
    for i in range(state["replicas"]):
        status, said, calls = shell(*container["command"], *container["args"], HOSTNAME=f"{name}-{i}")
        assert status == 0 and len(calls) == 1, said
        assert option(calls[0], "--node") == str(i) and option(calls[0], "--cluster").split(",") == nodes
        assert option(calls[0], "--listen") == f"0.0.0.0:{port(container, 'psd')}"
        assert option(calls[0], "--http") == f"0.0.0.0:{port(container, 'http')}"
        assert mounts[option(calls[0], "--data-dir")] == "data"
        assert mounts[os.path.dirname(option(calls[0], "--token-file"))] == "token"
    assert state["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(port(container, "http"))
    # A node beyond the list is refused: the shims do ask the programs.
    status, said, _ = shell(*container["command"], *container["args"], HOSTNAME=f"{name}-{state['replicas']}")
    assert status == 2 and "node" in said


def test_the_jobs_pods_are_its_ranks(shell):
    found = resources()
    job = found["Job"]["spec"]
    assert found["Job"]["apiVersion"] == "batch/v1" and job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"]
    pod = job["template"]["spec"]
    container = check_pod(pod)
    assert pod["restartPolicy"] == "Never", "podFailurePolicy needs it"
    rule, = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [2, 3]}
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    psd = found["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]["args"][0]
    for rank in range(job["completions"]):
        status, said, calls = shell(*container["command"], *container["args"], JOB_COMPLETION_INDEX=str(rank))
        assert status == 0 and len(calls) == 1, said
        assert option(calls[0], "--rank") == str(rank) and option(calls[0], "--workers") == str(job["completions"])
        assert option(calls[0], "--servers") == option(psd.removeprefix("exec "), "--cluster")
        assert option(calls[0], "--metrics-listen") == f"0.0.0.0:{port(container, 'metrics')}"


# --- Slurm ---


def test_the_batch_script_is_sound():
    script = SAMPLES / "slurm.sh"
    assert os.access(script, os.X_OK) and subprocess.run(["bash", "-n", script], timeout=60).returncode == 0
    if shutil.which("shellcheck"):
        got = subprocess.run(["shellcheck", script], capture_output=True, text=True, timeout=120)
        assert got.returncode == 0, got.stdout


def test_the_batch_script_starts_nodes_first_and_every_rank_behind_them(shell, tmp_path):
    status, said, calls = shell("bash", SAMPLES / "slurm.sh", SLURM_JOB_NUM_NODES="6", SLURM_JOB_NODELIST="n[1-6]")
    assert status == 0, said
    nodes = [c for c in calls if c.startswith("psd ")]
    ranks = [c for c in calls if c.startswith("psworker ")]
    assert [option(c, "--node") for c in nodes] == ["0", "1"] and [option(c, "--rank") for c in ranks] == [str(i) for i in range(8)]
    assert {option(c, "--cluster") for c in nodes} == {option(c, "--servers") for c in ranks} == {"n1:7070,n2:7070"}
    assert {option(c, "--workers") for c in ranks} == {"8"}
    assert len({option(c, "--data-dir") for c in nodes}) == 2
    token = tmp_path / "psd/token"
    assert token.stat().st_mode & 0o077 == 0 and len(token.read_text()) == 32
    # A failure of the workers is the script's.
    status, said, _ = shell("bash", SAMPLES / "slurm.sh", SLURM_JOB_NUM_NODES="6", SLURM_JOB_NODELIST="n[1-6]", OWN_CLICKS="/nonexistent")
    assert status != 0 and "/nonexistent" in said


def test_an_installation_has_the_samples(tmp_path):
    got = subprocess.run([ROOT / "deploy/install.sh", BIN, tmp_path, "/usr"], capture_output=True, text=True, timeout=120)
    assert got.returncode == 0, got.stderr
    for folder in ("prometheus", "grafana", "samples"):
        assert {p.name for p in (tmp_path / "usr/share/psd" / folder).iterdir()} == {p.name for p in (ROOT / "deploy" / folder).iterdir()}
    assert os.access(tmp_path / "usr/share/psd/samples/slurm.sh", os.X_OK)

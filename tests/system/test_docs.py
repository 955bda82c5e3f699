"""The documents for users: their commands run, their output is the programs', and what the programs print is in them.

The blocks of a page that have no mark (guides.py) run in order, in one shell, in an empty directory. test_guides.py runs the others.
"""

import importlib.util
import json
import os
import re
import signal
import subprocess
import urllib.request

import pytest
from conftest import BIN, ROOT, eventually
from guides import blocks
from training import free_ports
from wire import LISTENER

PAGES = [ROOT / "README.md", *sorted((ROOT / "deploy/docs").glob("*.md"))]
LONGEST_S = 240
# What a page's commands print, beside that they all succeed.
PRINTED = {
    "README.md": ["job clicks: ssp with bound 4", " 0 staleness violations", "of 2, pid"],
    "tutorial.md": ["the same predictions", "nothing is damaged", "pushed by    job first"],
    "operations.md": ["nothing is damaged", "archived", "all are the same"],
    "monitoring.md": ["ok\n", "ready\n", "nothing waits", "REQUEST ", "no job has come"],
    "serving.md": ['{"scores":[', '"clock":null,"age_s":null}'],
}

# The pages use the default ports, which other tests use too: these stand before the programs in PATH, and name free ones
# where the page names none.
SHIMS = {
    "psd": """case " $* " in *" --listen "*) ;; *) set -- "$@" --listen 127.0.0.1:$P7070 --http 127.0.0.1:$P7071 ;; esac
exec "$BIN/psd" "$@" 2>"$LOGS/psd.$$" """,
    "psworker": """case " $* " in *" --servers "* | *" --local "* | *" --checkpoint "*) ;;
" train "* | " eval "* | " predict "*) set -- "$@" --servers 127.0.0.1:$P7070 ;; esac
case " $* " in " train "*" --servers "*) : >"$LOGS/train.$$" ;; esac
exec "$BIN/psworker" "$@" """,
    "psctl": """case "$1" in status | tables | workers | jobs | why | checkpoint | row | doctor | latency | top | watch) set -- "$@" --server 127.0.0.1:$P7070 ;; esac
exec "$BIN/psctl" "$@" """,
    # At least so long, and until every psd is ready and every worker has joined: a machine that is busy takes its time.
    "sleep": """/bin/sleep "$1"
for i in $(seq 600); do
    n_psd=$(ls "$LOGS" | grep -c '^psd') n_train=$(ls "$LOGS" | grep -c '^train')
    n_joined=$(grep -ch 'has joined' "$LOGS"/psd.* | sort -n | tail -n 1)
    [ "$(cat "$LOGS"/psd.* | grep -c 'psd ready')" = "$n_psd" ] && [ "$n_joined" -ge "$n_train" ] && exit 0
    /bin/sleep 0.1
done
cat "$LOGS"/psd.* >&2
exit 1""",
}


def commands(page):
    """A program in Python that needs no psd runs among the commands, where PyTorch is; tests/python runs the others."""
    texts = []
    for block in blocks(page):
        if block.kind == "sh" and block.how is None:
            texts.append(block.text)
        elif block.kind == "python" and "import psd" not in block.text and importlib.util.find_spec("torch"):
            texts.append(f"/usr/bin/python3 - <<'END'\n{block.text}END\n")
    return texts


def is_run(page):
    return bool(commands(page))


@pytest.mark.parametrize("page", [page for page in PAGES if is_run(page)], ids=lambda page: page.name)
def test_the_commands_of_a_page_succeed(page, tmp_path):
    shims, logs, here = tmp_path / "shims", tmp_path / "logs", tmp_path / "here"
    for folder in [shims, logs, here]:
        folder.mkdir()
    for name, text in SHIMS.items():
        (shims / name).write_text(f"#!/bin/sh\n{text}\n")
        (shims / name).chmod(0o755)
    ports = dict(zip(["7070", "7071", "7072", "7073", "7080"], free_ports(5)))
    script = "set -eu\n" + "".join(commands(page))
    script = re.sub(r"127\.0\.0\.1:(707[0-3]|7080)\b", lambda match: f"127.0.0.1:{ports[match[1]]}", script)
    env = {**os.environ, "PATH": f"{shims}:{BIN}:{os.environ['PATH']}", "BIN": str(BIN), "LOGS": str(logs),
           **{f"P{port}": str(free) for port, free in ports.items()}}
    with open(tmp_path / "printed", "w") as out:
        shell = subprocess.Popen(["bash", "-c", script], cwd=here, env=env, stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=subprocess.STDOUT, start_new_session=True)
    try:
        status = shell.wait(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        status = "too late"
    try:
        os.killpg(shell.pid, signal.SIGKILL)
        left = True
    except ProcessLookupError:
        left = False
    shell.wait()
    printed = (tmp_path / "printed").read_text()
    assert status == 0, printed + "".join(log.read_text() for log in logs.iterdir())
    assert not left, "a page stops what it starts"
    assert [text for text in PRINTED[page.name] if text not in printed] == [], printed
    if page.name == "serving.md":  # of a job: within the --max-age 2s that the page names; how old exactly goes by the machine
        clock, age_s = re.search(r'"clock":(\d+),"age_s":(\d+\.\d+)}', printed).groups()
        assert int(clock) <= 40 and float(age_s) <= 2, printed


def test_each_page_with_commands_prints_something_that_is_looked_at():
    assert sum(len(commands(page)) for page in PAGES) >= 10
    assert {page.name for page in PAGES if is_run(page)} == set(PRINTED)


def shape(line):
    """A line without what differs from run to run."""
    return re.sub(r"[0-9][0-9.]*", "N", re.sub(r"^(\.\.\.|\d{4}-\S+) ", "", line)).strip()


def test_the_demo_prints_what_the_readme_shows():
    shown = next(block.text for block in blocks(ROOT / "README.md") if "psd listens on" in block.text)
    got = subprocess.run([ROOT / "deploy/demo.sh", BIN], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    assert got.returncode == 0, got.stderr
    printed = {shape(line) for line in (got.stdout + got.stderr).splitlines()}
    assert [line for line in shown.splitlines() if shape(line) not in printed] == []
    assert float(re.search(r"^test AUC ([0-9.]+)", got.stdout, re.M)[1]) >= 0.90


def test_the_reference_is_what_the_programs_print():
    got = subprocess.run([ROOT / "deploy/docs/reference.sh", BIN], capture_output=True, text=True, timeout=60)
    assert got.returncode == 0, got.stderr
    assert got.stdout == (ROOT / "deploy/docs/reference.md").read_text(), "deploy/docs/reference.md is stale: run make docs"


def names_in(report):
    """Of all fields, however deep; what is named after types, codecs or numbers is no field."""
    if isinstance(report, list):
        return set().union(*map(names_in, report))
    if not isinstance(report, dict):
        return set()
    found = set(report)
    for name, value in report.items():
        if name in ("requests", "codecs"):
            found |= names_in(list(value.values()))
        elif name != "staleness":
            found |= names_in(value)
    return found


def test_the_monitoring_page_has_every_metric_and_field(start_psd, tmp_path):
    page = (ROOT / "deploy/docs/monitoring.md").read_text()
    psd = start_psd("--shards", "1")
    clicks, lines = tmp_path / "clicks.tsv", tmp_path / "lines.json"
    subprocess.run([BIN / "psworker", "synth", "--rows", "2000", "--output", clicks], check=True, capture_output=True)
    subprocess.run([BIN / "psworker", "train", "--format", "criteo", "--data", clicks, "--valid-fraction", "0.1", "--bottom", "16",
                    "--top", "16", "--servers", f"127.0.0.1:{psd.port}", "--json", lines], check=True, capture_output=True)
    standby = subprocess.Popen([BIN / "psd", "--listen", f"127.0.0.1:{free_ports(1)[0]}", "--http", "", "--shards", "1", "--data-dir",
                                tmp_path / "standby", "--standby", f"127.0.0.1:{psd.port}"])
    eventually(lambda: psd.admin("status").get("replication", {}).get("in_sync"))
    standby.kill()
    standby.wait()
    with urllib.request.urlopen(f"http://{psd.http}/metrics", timeout=60) as answer:
        metrics = set(re.findall(r"^# TYPE (\S+)", answer.read().decode(), re.M))
    assert len(metrics) > 50
    assert metrics == set(re.findall(r"^\| `((?:psd|process)_[a-z_]+)` \|", page, re.M))

    names = set(re.findall(r"`([a-z0-9_]+)`", page))
    eventually(lambda: {"last_seq", "sketch_bytes", "admit_touches", "p99_ns"} <= names_in(psd.stats()))  # once the shard has reported
    fields = names_in(psd.stats())
    assert len(fields) > 150
    described = set(re.findall(r"`([a-z0-9_]+)`", page[page.index("## /stats"):page.index("## Lines of psworker")]))
    assert fields - described == set()
    with psd.connect(LISTENER, "operator") as client:
        for command in ("status", "tables", "workers", "why"):
            assert names_in(json.loads(client.admin(command).body)) <= fields
    fields = {name for line in lines.read_text().splitlines() for name in json.loads(line)}
    assert len(fields) > 30
    assert fields - names == set()

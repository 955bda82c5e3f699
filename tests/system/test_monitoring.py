"""What watches psd and psworker: alert rules with an example of each, the dashboard, and the metrics that both speak of."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import pytest
import wire
import yaml
from conftest import BIN, ROOT, SANITIZER, eventually
from test_endpoint import get, work

pytestmark = pytest.mark.timeout(300)
RULES = ROOT / "deploy/prometheus/alerts.yml"
EXAMPLES = ROOT / "deploy/prometheus/alerts_test.yml"
DASHBOARD = ROOT / "deploy/grafana/psd.json"
NAME = re.compile(r"\b(?:psd|psworker|process)_[a-z0-9_]+\b")
MODEL = ["--format", "criteo", "--bottom", "16", "--top", "16", "--dim", "4", "--batch", "100", "--progress-every", "10ms"]


@pytest.fixture
def promtool():
    """Runs it; fails if it complains."""
    if not shutil.which("promtool") and not os.environ.get("CI"):
        pytest.skip("promtool is missing: deploy/deps.sh prometheus (it brings a service along)")

    def run(*args, **more):
        got = subprocess.run(["promtool", *map(str, args)], capture_output=True, text=True, timeout=120, **more)
        assert got.returncode == 0, got.stdout + got.stderr
        return got.stdout + got.stderr

    return run


def families(metrics):
    return set(re.findall(r"^# TYPE (\S+)", metrics, re.M))


def unknown(expr, known):
    """Names of no family; a histogram has three series."""
    without_labels = re.sub(r"\{[^}]*\}", "", expr)
    return {n for n in NAME.findall(without_labels) if n not in known and re.sub(r"_(bucket|sum|count)$", "", n) not in known}


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def examples():
    return yaml.safe_load(EXAMPLES.read_text())["tests"]


# --- alerts ---


def test_every_alert_has_an_example_where_it_fires_and_one_where_it_does_not():
    alerts = [rule["alert"] for rule in rules()]
    assert len(alerts) == len(set(alerts)) >= 8
    tests = [t for e in examples() for t in e["alert_rule_test"]]
    assert {t["alertname"] for t in tests if t["exp_alerts"]} == set(alerts)
    assert {t["alertname"] for t in tests if not t["exp_alerts"]} == set(alerts)
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_the_page_names_every_alert():
    page = (ROOT / "deploy/docs/monitoring.md").read_text()
    assert set(re.findall(r"^\| (Psd[A-Za-z]+) \|", page, re.M)) == {rule["alert"] for rule in rules()}


def test_promtool_runs_the_examples(promtool):
    promtool("check", "config", RULES.parent / "prometheus.yml")
    promtool("test", "rules", EXAMPLES)


def test_an_alert_that_never_fires_or_always_does_fails_its_example(promtool, tmp_path):
    shutil.copy(EXAMPLES, tmp_path)
    for expr in ("vector(0) > 1", "vector(1)"):
        changed = yaml.safe_load(RULES.read_text())
        for rule in [r for g in changed["groups"] for r in g["rules"]]:
            rule["expr"] = expr
        (tmp_path / RULES.name).write_text(yaml.safe_dump(changed))
        got = subprocess.run(["promtool", "test", "rules", EXAMPLES.name], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert got.returncode != 0
        assert set(re.findall(r"alertname: *(\w+)", got.stdout + got.stderr)) == {rule["alert"] for rule in rules()}, got.stderr


def test_psd_exports_all_that_alerts_and_their_examples_speak_of(start_psd):
    psd = start_psd("--shards", "2", "--lease", "300s")
    _, metrics = work(psd)
    known = families(metrics)
    for rule in rules():
        assert unknown(rule["expr"], known) == set(), rule["alert"]
    series = {s["series"].split("{")[0] for e in examples() for s in e["input_series"]}
    assert {s for s in series if unknown(s, known)} == set() and series - {"up"} > {"psd_healthy"}
    # What rules join on.
    assert 'psd_job_staleness_bound_clocks{shard="0",job="criteo"} 2\n' in metrics
    assert 'psd_log_has_gap{shard="0"} 0\n' in metrics
    assert unknown("rate(psd_no_such_thing_total[5m])", known) == {"psd_no_such_thing_total"}


def test_tables_beyond_the_limit_are_one_sum(start_psd):
    psd = start_psd("--shards", "1", "--metrics-tables", "3")
    with psd.connect() as client:
        for i in range(40):
            assert client.table(name=f"t{i:02}", dim=4).status == 0
        eventually(lambda: len(psd.stats()["tables"]) == 40)
        samples = re.findall(r"^psd_table_pushes_total\{(.*)\} ", get(psd, "/metrics")[1], re.M)
    assert samples == [f'shard="0",table="t{i:02}"' for i in range(3)] + ['shard="0"']


def test_a_job_is_fewer_than_600_samples(start_psd):
    """Of a node with two shards: what every scrape costs. Buckets and tables that nobody charts made it twice as many."""
    psd = start_psd("--shards", "2", "--lease", "300s")
    clients = [psd.connect(shard) for shard in range(2)]
    for client in clients:
        assert client.join(job="criteo").status == 0
        assert client.table(name="criteo/emb", dim=4).status == 0
        for i in range(14):
            assert client.table(name=f"criteo/top.{i}.weight", kind=wire.DENSE, dim=16, n_floats=64).status == 0
    eventually(lambda: [len(s["tables"]) for s in psd.stats()["shards"]] == [15, 15])
    samples = [line for line in get(psd, "/metrics")[1].splitlines() if not line.startswith("#")]
    assert 300 < len(samples) < 600
    assert {'psd_table_rows{shard="1",table="criteo/emb"} 0', 'psd_table_rows{shard="0",table="criteo (dense)"} 0'} <= set(samples)
    for client in clients:
        client.close()


# --- the dashboard ---


def panels():
    return json.loads(DASHBOARD.read_text())["panels"]


def expressions():
    dashboard = json.loads(DASHBOARD.read_text())
    found = [(p["title"], t["expr"]) for p in panels() for t in p.get("targets", [])]
    return found + [(a["name"], a["expr"]) for a in dashboard["annotations"]["list"] if "expr" in a]


def test_the_dashboard_has_what_grafanas_schema_demands():
    """Of schema version 36 (dashboard_kind.cue): required fields, their types and ranges; ids that are unique; no panel upon another."""
    d = json.loads(DASHBOARD.read_text())
    assert d["style"] in ("dark", "light") and isinstance(d["editable"], bool) and d["graphTooltip"] in (0, 1, 2)
    assert 36 <= d["schemaVersion"] < 100 and 8 <= len(d["uid"]) <= 40 and d["id"] is None and d["title"]
    assert set(d["time"]) == {"from", "to"} and isinstance(d["tags"], list) and d["refresh"]
    for annotation in d["annotations"]["list"]:
        assert {"name", "datasource", "enable", "iconColor"} <= set(annotation) and "uid" in annotation["datasource"]
    variables = {v["name"]: v for v in d["templating"]["list"]}
    assert {v["type"] for v in variables.values()} <= {"query", "datasource", "custom", "interval", "textbox", "constant", "adhoc"}
    assert all(v["hide"] in (0, 1, 2) for v in variables.values())
    assert len({p["id"] for p in d["panels"]}) == len(d["panels"]) > 20
    cells = set()
    for panel in d["panels"]:
        at = panel["gridPos"]
        assert at["w"] > 0 and at["h"] > 0 and at["x"] >= 0 and at["y"] >= 0 and at["x"] + at["w"] <= 24
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & own, panel["title"]
        cells |= own
        assert panel["title"] and panel["type"] in ("row", "stat", "timeseries")
        if panel["type"] == "row":
            assert panel["collapsed"] is False and panel["panels"] == []
            continue
        assert set(panel["fieldConfig"]) == {"defaults", "overrides"} and panel["options"]
        assert panel["fieldConfig"]["defaults"]["color"]["mode"] in ("thresholds", "palette-classic")
        ids = [t["refId"] for t in panel["targets"]]
        assert len(ids) == len(set(ids)) >= 1
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"} == panel["datasource"]
    for title, expr in expressions():
        assert {v for v in re.findall(r"\$\{?(\w+)", expr)} <= {*variables, "__rate_interval"}, title


def test_promtool_parses_every_expression_of_the_dashboard(promtool, tmp_path):
    def parsed(exprs):
        text = [e.replace("$__rate_interval", "1m").replace("$instance", ".*") for e in exprs]
        (tmp_path / "rules.yml").write_text(yaml.safe_dump(
            {"groups": [{"name": "panels", "rules": [{"record": f"panel:{i}", "expr": e} for i, e in enumerate(text)]}]}))
        return subprocess.run(["promtool", "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=120)

    got = parsed([expr for _, expr in expressions()])
    assert got.returncode == 0, got.stdout + got.stderr
    assert parsed(["sum by (job (psd_ready)"]).returncode != 0


# --- psworker's own metrics ---


class Trainer:
    """psworker train --metrics-listen, as a rank of a job."""

    def __init__(self, psd, data, rank, *args):
        self.process = subprocess.Popen(
            [BIN / "psworker", "train", *MODEL, "--data", data, "--valid-fraction", "0.1", "--servers", f"127.0.0.1:{psd.port}", "--job",
             'my"job', "--workers", "2", "--rank", str(rank), "--epochs", "10000", *args], stderr=subprocess.PIPE, text=True, errors="replace")
        self.lines = []
        self.url = None
        self.is_known = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            match = re.search(r"metrics on (http://\S+)/metrics", line)
            if match:
                self.url = match[1]
                self.is_known.set()
        self.is_known.set()

    def get(self, path="/metrics", **more):
        assert self.is_known.wait(120) and self.url, "".join(self.lines)
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, **more), timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read().decode()

    def value(self, name, more=""):
        found = re.search(rf'^psworker_{name}\{{job="my\\"job",rank="[01]"{more}\}} (\S+)$', self.get()[1], re.M)
        return float(found[1]) if found else None

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(120)
        self.reader.join()
        self.process.stderr.close()
        assert not SANITIZER.search("".join(self.lines)), "".join(self.lines)
        return status


@pytest.fixture
def clicks(tmp_path):
    subprocess.run([BIN / "psworker", "synth", "--rows", "5000", "--output", tmp_path / "clicks.tsv"], check=True, capture_output=True)
    return tmp_path / "clicks.tsv"


def test_a_worker_shows_its_training_while_it_waits_and_while_it_learns(start_psd, clicks):
    psd = start_psd("--shards", "1", "--lease", "300s")
    first = Trainer(psd, clicks, 0, "--metrics-listen", "127.0.0.1:0", "--eval-every", "10")
    second = None
    try:
        # The other one has not come: the trainer waits, the endpoint answers.
        assert first.value("samples_total") == 0 and first.value("validation_auc") is None
        assert first.get("/nothing")[0] == 404 and first.get(method="POST", data=b"x")[0] == 405
        assert first.get(headers={"Host": "evil.example"})[0] == 403
        second = Trainer(psd, clicks, 1, "--metrics-listen", "127.0.0.1:0")
        eventually(lambda: first.value("validations_total") >= 2 and first.value("loss") is not None)
        text = first.get()[1]
        known = families(text)
        assert 0 < first.value("validation_auc") < 1 and first.value("validation_logloss") > 0 and first.value("validation_rows") == 500
        assert first.value("samples_total") > 1000 and first.value("clock") >= 10 and first.value("epoch") >= 1
        assert first.value("busy_ratio", ',stage="compute"') is not None and first.value("received_bytes_total") > 0
        assert first.value("pushes_lost_total") == first.value("reconnects_total") == 0
        assert second.value("samples_total") > 0 and second.value("validations_total") == 0
        page = (ROOT / "deploy/docs/monitoring.md").read_text()
        section = page[page.index("### Metrics of psworker train"):page.index("### Metrics of psworker serve")]
        assert known == set(re.findall(r"^\| `(psworker_[a-z_]+)` \|", section, re.M))
        # The dashboard knows no others.
        known |= families(get(psd, "/metrics")[1])
        assert {n for _, expr in expressions() for n in unknown(expr, known)} == set()
        if shutil.which("promtool"):
            got = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=120)
            assert (got.returncode, got.stdout + got.stderr) == (0, "")
    finally:
        for trainer in (first, second):
            if trainer:
                assert trainer.stop() == 0, "".join(trainer.lines)


def test_a_metrics_address_that_cannot_be_had_ends_the_run_before_it_begins(clicks):
    def run(*args):
        return subprocess.run([BIN / "psworker", "train", *MODEL, "--local", "--data", clicks, *args], capture_output=True, text=True, timeout=120)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        got = run("--metrics-listen", f"127.0.0.1:{taken.getsockname()[1]}")
        assert got.returncode == 1 and "in use" in got.stderr.splitlines()[-1]
    got = run("--metrics-listen", "127.0.0.1", "--check")
    assert got.returncode == 2 and "metrics-listen" in got.stderr
    assert run("--metrics-listen", "127.0.0.1:0", "--check").returncode == 0

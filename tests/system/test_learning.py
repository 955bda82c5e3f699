"""What workers report of their learning: /stats, /curve, /metrics, psctl job; through a restart, and at a standby that takes over."""
import csv
import io
import json
import os
import re
import signal
import subprocess
import urllib.request
import xml.etree.ElementTree

import pytest

from test_pair import pair, standby_of  # noqa: F401
from training import BIN, ROOT, finish, psds, psworker, wait_for  # noqa: F401

ADULT = ("--config", ROOT / "deploy/adult.conf", "--data", ROOT / "tests/data/adult.data.zst",
         "--valid", ROOT / "tests/data/adult.test.zst")


def events(out, kind):
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == kind]


def curve(psd, job="adult"):
    with urllib.request.urlopen(f"http://{psd.http}/curve?job={job}", timeout=60) as r:
        answer = json.load(r)
    assert answer["job"] == job
    return answer["points"]


def job_of(psd, name="adult"):
    return next(j for j in psd.stats()["jobs"] if j["name"] == name)


def psctl(psd, *words, **env):
    return subprocess.run([BIN / "psctl", *words, "--server", psd.address], check=True, capture_output=True, text=True,
                          env={**os.environ, **env}).stdout


def near(a, b):
    """Equal as floats of 32 bits are."""
    return a == pytest.approx(b, rel=2e-6, abs=1e-9)


def check_shape(points):
    assert points and len(points) <= 512
    for before, after in zip(points, points[1:]):
        assert before["ms"] <= after["ms"] and before["samples"] <= after["samples"] and before["clock"] <= after["clock"]


def check_csv(psd, points):
    rows = list(csv.DictReader(io.StringIO(psctl(psd, "job", "adult", "--curve"))))
    assert list(rows[0]) == ["unix_ms", "clock", "samples", "samples_per_s", "loss", "auc", "logloss"]
    assert len(rows) == len(points)
    for row, point in zip(rows, points):
        assert int(row["unix_ms"]) == point["ms"] and int(row["samples"]) == point["samples"] and int(row["clock"]) == point["clock"]
        for name in ("samples_per_s", "loss", "auc", "logloss"):
            assert near(float(row[name]), point[name]) if row[name] else point[name] is None


def check_svg(psd, points):
    text = psctl(psd, "job", "adult", "--curve", "--svg")
    root = xml.etree.ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == space + "svg" and "http" not in text.replace("http://www.w3.org/2000/svg", "") and "prefers-color-scheme" in text
    drawn = [len(line.get("points").split()) for line in root.iter(space + "polyline")]
    assert drawn[0] == sum(p["loss"] is not None for p in points)
    words = [e.text for e in root.iter(space + "text")]
    assert "samples trained on" in words and any("AUC" in w for w in words)
    inside = [float(n) for line in root.iter(space + "polyline") for pair in line.get("points").split() for n in pair.split(",")]
    assert all(0 <= n <= float(root.get("height")) + 760 for n in inside)


def check_psctl(psd, points):
    text = psctl(psd, "job", "adult")
    assert max(map(len, psctl(psd, "job", "adult", COLUMNS="80").splitlines())) <= 80
    assert "learning " in text and "busy " in text and re.search(r"tables +\d+ sparse", text) and "\nloss\n" in text
    whole = json.loads(psctl(psd, "job", "adult", "-o", "json"))
    assert whole["name"] == "adult" and whole["points"] == points and whole["tables"]["rows"] > 0
    heads, row = psctl(psd, "jobs", "-o", "wide").splitlines()[:2]
    assert "LOSS" in heads and "AUC" in heads and f"{job_of(psd)['auc']:.4f}" in row
    frame = psctl(psd, "top", "--count", "1", "--every", "100ms")
    assert "LOSS" in frame and "MEMORY" in frame


def test_the_curve_is_what_the_worker_logs_and_outlives_a_restart(psds, tmp_path):
    psd = psds("--shards", 2)
    out, _ = finish(psworker("train", *ADULT, "--servers", psd.address, "--epochs", 12, "--progress-every", "400ms", "--eval-every", 1000,
                             "--json", "-"))
    lines, validations, end = events(out, "progress"), events(out, "validation"), events(out, "result")[0]
    points = wait_for("the last validation", lambda: near(job_of(psd)["auc"] or 0, end["auc"]) and curve(psd))
    check_shape(points)
    assert lines and validations
    # A line's report that was overtaken before it left is merged with the next one: so may the last be, and on a busy machine others.
    same = [(line, p) for line in lines for p in points if p["loss"] is not None and near(p["loss"], line["loss"])]
    assert same and all(p["samples"] >= line["samples"] for line, p in same), (lines, points)  # more, if a validation came with it
    assert all(0 < p["loss"] < 1 for p in points if p["loss"] is not None) and sum(p["loss"] is not None for p in points) <= len(lines) + 1
    got = [(p["auc"], p["logloss"]) for p in points if p["auc"] is not None]
    assert near(got[-1][0], end["auc"]) and near(got[-1][1], end["logloss"])
    assert all(any(near(auc, v["auc"]) for v in [*validations, end]) for auc, _ in got)
    job = job_of(psd)
    assert job["samples"] == end["samples"] == points[-1]["samples"] and near(job["auc"], end["auc"]) and job["samples_per_s"] == 0
    assert job["workers"][0]["samples"] == end["samples"] and set(job["busy"]) == {"read", "fetch", "servers", "compute", "deliver", "network"}
    assert all(0 <= share <= 1 for share in job["busy"].values())
    metrics = psd.get("/metrics")
    assert len(re.findall(r"^psd_job_samples_total\{", metrics, re.M)) == 1  # one shard of two has the reports
    assert re.search(rf'^psd_job_samples_total{{shard="0",job="adult"}} {end["samples"]}$', metrics, re.M)
    for name in ("loss", "auc", "logloss", "samples_per_second"):
        assert re.search(rf'^psd_job_{name}{{', metrics, re.M)
    check_csv(psd, points)
    check_svg(psd, points)
    check_psctl(psd, points)
    psd.proc.send_signal(signal.SIGKILL)  # from the log
    psd.proc.wait()
    again = psds("--shards", 2, dir=psd.dir)
    assert wait_for("the curve", lambda: curve(again)) == points and job_of(again)["auc"] == job["auc"]
    again.stop()  # from a checkpoint
    third = psds("--shards", 2, dir=psd.dir)
    assert wait_for("the curve", lambda: curve(third)) == points and job_of(third)["loss"] == job["loss"]
    assert curve(third, "nobody") == []
    missing = subprocess.run([BIN / "psctl", "job", "nobody", "--server", third.address], capture_output=True, text=True)
    assert missing.returncode == 1 and "no node knows job nobody" in missing.stderr


def test_two_workers_are_summed(psds):
    psd = psds()
    flags = (*ADULT, "--servers", psd.address, "--workers", 2, "--epochs", 1, "--mode", "ssp", "--json", "-")
    both = [psworker("train", *flags, "--rank", r) for r in range(2)]
    ends = [events(finish(p)[0], "result")[0] for p in both]
    job = wait_for("the last validation", lambda: (j := job_of(psd))["auc"] is not None and j)
    samples = [w["samples"] for w in job["workers"]]
    assert sorted(samples) == sorted(e["samples"] for e in ends) and job["samples"] == sum(samples)
    assert job["auc"] == pytest.approx(next(e["auc"] for e in ends if e["auc"] is not None), rel=1e-5)
    losses = [w["loss"] for w in job["workers"]]
    assert min(losses) <= job["loss"] <= max(losses)


def test_a_standby_that_takes_over_has_the_curve(pair):
    primary = pair("a")
    primary.await_ready()
    standby = standby_of(pair, "b", "a")
    primary.in_sync()
    out, _ = finish(psworker("train", *ADULT, "--servers", f"127.0.0.1:{primary.port}", "--epochs", 1, "--json", "-"))
    end = events(out, "result")[0]
    points = wait_for("the last validation", lambda: (p := curve(primary)) and p[-1]["auc"] is not None and p)
    assert points[-1]["samples"] == end["samples"] and near(points[-1]["auc"], end["auc"])
    # A heartbeat's reply waits for no standby.
    wait_for("the last record", lambda: primary.admin("status")["replication"]["standby_lag_records"] == 0)
    primary.process.send_signal(signal.SIGKILL)
    primary.process.wait()
    standby.promote()
    wait_for("the curve", lambda: curve(standby) == points)  # its report may be of a moment before

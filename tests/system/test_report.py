"""The page of a run, psworker train --report: its parts, names that are markup, the same seed, a full disk, and how it looks."""
import html.parser
import re
import signal

from browser import Browser
from training import BIN, ROOT, finish, psds, psworker, result, synth  # noqa: F401

ADULT = ("--config", ROOT / "deploy/adult.conf", "--data", ROOT / "tests/data/adult.data.zst", "--valid", ROOT / "tests/data/adult.test.zst",
         "--epochs", 1, "--report-rows", 2000)
SECTIONS = ["curves", "calibration", "importance", "cost", "settings"]
VOID = ("meta", "br")


class Reader(html.parser.HTMLParser):
    """Fails where an element is not closed in its order. `cells`: of each section the rows of its tables."""

    def __init__(self, text):
        super().__init__()
        self.open, self.sections, self.rows, self.names = [], [], {}, set()
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        if tag == "section":
            self.sections.append(dict(attrs)["id"])
            self.rows[self.sections[-1]] = []
        if tag == "tr":
            self.rows[self.sections[-1]].append([])
        if tag in ("td", "th"):
            self.rows[self.sections[-1]][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.names.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if any(tag in self.open for tag in ("td", "th")):
            self.rows[self.sections[-1]][-1][-1] += data


def read(path):
    text = path.read_text()
    page = Reader(text)
    assert page.sections == SECTIONS and not page.names & {"script", "img", "link", "iframe"}
    assert not re.search(r"(src|href)=|url\(|https?:", text)
    return page


def column(page, section, n):
    return [row[n] for row in page.rows[section] if len(row) > n]


def test_a_page_has_curves_calibration_importance_cost_and_settings(tmp_path):
    path = tmp_path / "a.html"
    out, _ = finish(psworker("train", *ADULT, "--local", "--eval-every", 60, "--report", path, "--json", "-"))
    page = read(path)
    assert f"{result(out)['auc']:.4f}" in path.read_text()
    names = column(page, "importance", 0)
    assert names[0] == "column" and len(names) == 14 and {"capital-gain", "age", "education-num", "sex"} <= set(names)
    drops = [float(x) for x in column(page, "importance", 3)[1:]]
    assert drops == sorted(drops, reverse=True) and drops[0] > 0.01
    rows = [int(x.replace("\u202f", "")) for x in column(page, "calibration", 1)[1:]]
    assert len(rows) == 10 and sum(rows) == result(out)["validation_rows"]
    assert {"lr", "report"} <= set(column(page, "settings", 0)) and len([p for p in tmp_path.iterdir()]) == 1


def test_the_same_seed_measures_the_same_importance(tmp_path):
    pages = []
    for name in ("a", "b"):
        finish(psworker("train", *ADULT, "--local", "--report", tmp_path / name))
        pages.append(read(tmp_path / name).rows)
    assert pages[0]["importance"] == pages[1]["importance"] and pages[0]["calibration"] == pages[1]["calibration"]


def test_names_are_data_and_bytes_are_counted_by_codec(tmp_path, psds):
    name = "<script>alert(1)</script>\"&'"
    log = tmp_path / "log.csv"
    log.write_text(f"y,{name},<b>x\n" + "".join(f"{i % 2},{i % 7},t{i % 5}\n" for i in range(600)))
    node = psds()
    path = tmp_path / "page.html"
    finish(psworker("train", "--servers", node.address, "--data", log, "--train-rows", 400, "--delimiter", ",", "--header", "--label", "y", "--numeric",
                    1, "--categorical", 2, "--batch", 20, "--dim", 4, "--bottom", 4, "--top", 4, "--job", "<i>job", "--push-codec", "onebit",
                    "--pull-codec", "bf16", "--row-cache", 0, "--report", path))
    page = read(path)
    assert {name, "<b>x"} <= set(column(page, "importance", 0))
    codecs = column(page, "cost", 0)
    assert "bf16" in codecs and "onebit" in codecs and "int8" not in codecs


def test_what_cannot_be_written_is_refused_first_or_leaves_the_training_as_it_is(tmp_path):
    _, err = finish(psworker("train", *ADULT, "--local", "--report", tmp_path / "none/a.html"), status=None)
    assert f"psworker: --report: {tmp_path}/none/a.html cannot be written: No such file or directory" in err
    out, err = finish(psworker("train", *ADULT, "--local", "--report", "/dev/full", "--json", "-"))
    assert result(out)["auc"] > 0.8
    assert "--report: /dev/full cannot be written: No space left on device; the training is not affected" in err


def test_a_link_to_nowhere_is_not_followed_before_the_end(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "page.html")
    finish(psworker("train", *ADULT, "--servers", "127.0.0.1:1", "--connect-timeout", "50ms", "--report", link), status=1)
    assert [p.name for p in tmp_path.iterdir()] == ["link"]
    finish(psworker("train", *ADULT, "--local", "--report", link))
    read(tmp_path / "page.html")


def test_a_page_of_a_run_that_was_stopped_says_so(tmp_path):
    path = tmp_path / "a.html"
    w = psworker("train", *ADULT, "--epochs", 10000, "--local", "--report", path, "--json", "-", "--progress-every", "20ms")
    assert w.stdout.readline()
    w.send_signal(signal.SIGTERM)
    finish(w)
    read(path)
    assert path.read_text().count("Not measured: the run was stopped before its last validation") == 2


def test_a_run_that_failed_has_a_page_that_says_so(tmp_path):
    path = tmp_path / "a.html"
    path.write_text("of an earlier run")
    _, err = finish(psworker("train", *ADULT, "--local", "--report", path, "--lr", 1e5, "--dense-lr", 1e5, "--optimizer", "sgd", "--dense-optimizer",
                             "sgd"), status=None)
    assert "training has diverged" in err
    read(path)
    assert "The run failed" in path.read_text() and "training has diverged" in path.read_text()


def test_a_page_fits_into_a_browser_of_any_width(tmp_path):
    browser = Browser()
    path = tmp_path / "a.html"
    try:
        finish(psworker("train", *ADULT, "--local", "--eval-every", 60, "--report", path))
        grounds = set()
        for width, scheme in ((1280, "light"), (400, "dark")):
            page = browser.open(f"file://{path}", width=width, scheme=scheme)
            page.wait("document.querySelector('footer') != null")
            assert page.get("document.documentElement.scrollWidth") <= width
            assert page.get("[...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().width > 250)")
            grounds.add(page.get("getComputedStyle(document.body).backgroundColor"))
            page.close()
        assert len(grounds) == 2 and not browser.errors
    finally:
        browser.close()

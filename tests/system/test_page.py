"""The stats page in a headless Chromium, with a job that trains behind it."""
import json
import signal

import browser
import pytest
import training
from training import free_ports, psds, psworker, synth, wait_for  # noqa: F401

pytestmark = pytest.mark.timeout(300)
TABS = ["overview", "jobs", "tables", "storage", "cluster"]

# What the first tile and the first chart's table show when they are first shown.
FIRST_RATE = """
new MutationObserver((all, observer) => {
  const tile = document.querySelector('#overview-tiles .value');
  const greatest = document.querySelector('#overview-charts td:last-child');
  if (tile && tile.textContent) {
    window.first = [tile.textContent, greatest ? greatest.textContent : ''];
    observer.disconnect();
  }
}).observe(document, { subtree: true, childList: true, characterData: true });
"""


@pytest.fixture
def chromium():
    started = browser.Browser()
    yield started
    started.close()


@pytest.fixture
def trained(psds, tmp_path, chromium):  # noqa: F811
    """A node at which two workers train until the test is over, for some seconds so far."""
    node = psds("--shards", 2, "--lease", "60s")
    data = synth(tmp_path / "clicks.tsv", 20000)
    flags = ["--servers", node.address, "--job", "clicks", "--format", "criteo", "--data", data, "--valid-fraction", 0.1, "--workers", 2, "--mode", "ssp",
             "--staleness", 4, "--epochs", 10000, "--eval-every", 20]
    workers = [psworker("train", *flags, "--rank", rank) for rank in range(2)]
    wait_for("a history of rates", lambda: json.loads(node.get("/history"))["series"].get("rows_pulled", [0])[-1])
    node.workers = workers
    yield node
    for w in workers:
        w.kill()
        w.communicate()


def visible(tab):
    return f"[...document.querySelectorAll('[role=tabpanel]')].filter(p => !p.hidden).map(p => p.id).join() === 'panel-{tab}'"


def show(page, tab):
    page.get(f"document.getElementById('tab-{tab}').click()")
    page.wait(visible(tab))


# A chart is drawn, or says what is missing; if it is drawn, a table with a caption has its values.
CHARTS = """
[...document.querySelectorAll('[role=tabpanel]:not([hidden]) figure')].map(f => ({
  title: f.dataset.chart, isDrawn: !!f.querySelector('canvas'), label: f.querySelector('.plot').getAttribute('aria-label'),
  described: (document.getElementById(f.querySelector('.plot').getAttribute('aria-describedby')) || {}).tagName,
  caption: (f.querySelector('caption') || {}).textContent, isFocusable: f.querySelector('.plot').tabIndex === 0, empty: f.querySelector('.plot').textContent,
  rows: [...f.querySelectorAll('tbody tr')].map(r => [...r.children].map(c => c.textContent)),
}))
"""


def check_charts(page, drawn):
    charts = {c["title"]: c for c in page.get(CHARTS)}
    for title, c in charts.items():
        assert title in c["label"]
        if c["isDrawn"]:
            assert c["caption"] == title and c["described"] == "TABLE" and c["isFocusable"] and c["rows"], c
            assert all(len(row) == 4 for row in c["rows"])
        else:
            assert len(c["empty"]) > 10 and not c["isFocusable"], c
    assert drawn <= {t for t, c in charts.items() if c["isDrawn"]}, charts
    return charts


def test_the_page_shows_a_running_job(trained, chromium, tmp_path):
    page = chromium.open(f"http://{trained.http}/", first=FIRST_RATE)
    rate, greatest = page.wait("window.first")
    assert rate[0].isdigit() and greatest[0] in "123456789"  # rates at first sight
    page.wait(visible("overview"))
    page.wait("document.querySelectorAll('#overview-charts canvas').length >= 5")
    charts = check_charts(page, {"Rows per second", "Latency of the last minute", "Values on the wire by codec", "Memory", "Waits"})
    assert [r[0] for r in charts["Rows per second"]["rows"]] == ["pulled", "pushed"]
    assert all(r[3].endswith("/s") and r[3] != "0/s" for r in charts["Rows per second"]["rows"])
    assert page.get("document.querySelectorAll('#overview-requests tbody tr').length") >= 4

    show(page, "jobs")
    assert page.wait("document.querySelector('#jobs-list tbody a').textContent") == "clicks"
    assert page.wait("[...document.querySelectorAll('#job-workers tbody .pill')].map(p => p.textContent).join()") == "live,live"
    clock = "Number(document.querySelector('#job-tiles .value').textContent.replace(/[^0-9]/g, ''))"
    before = page.get(clock)
    page.wait(f"{clock} > {before}")  # as events come
    if "samples" in trained.stats()["jobs"][0]:  # workers report their learning
        page.wait("document.querySelectorAll('#job-charts canvas').length === 3")
        check_charts(page, {"Loss", "Validation AUC", "Samples per second"})
        speed = "document.querySelectorAll('#job-tiles .value')[1].textContent"
        page.wait(f"{speed} !== '0'")
        first, second = trained.workers
        first.send_signal(signal.SIGSTOP)
        wait_for("the other one at the bound", lambda: any(w["who"].startswith("job clicks, ") for w in trained.stats()["waits"]))
        second.send_signal(signal.SIGSTOP)
        page.wait(f"{speed} === '0'")  # what workers said last is no speed of now
        for w in trained.workers:
            w.send_signal(signal.SIGCONT)
        page.wait(f"{speed} !== '0'")

    show(page, "tables")
    names = page.wait("(l => l.length && l)([...document.querySelectorAll('#tables-list tbody th')].map(c => c.textContent))")
    n_dense = sum(t["kind"] == "dense" for t in trained.stats()["tables"])
    assert sorted(names) == sorted(["clicks/emb", f"clicks: {n_dense} dense tables"])
    page.get("document.querySelector('#tables-list .fold').click()")
    page.wait(f"document.querySelectorAll('#tables-list tbody tr').length === {n_dense + 2}")
    assert page.get("document.activeElement.className") == "fold"

    show(page, "storage")
    page.wait("document.querySelectorAll('#storage-logs tbody tr').length === 2")
    check_charts(page, {"Write-ahead log, written", "Waiting for the disk"})
    show(page, "cluster")
    page.wait("document.querySelectorAll('#cluster-shards tbody tr').length === 2")
    assert not check_charts(page, {"Rows per second by shard"})["Lag of the standby"]["isDrawn"]
    page.picture(tmp_path / "cluster.png")

    origin = f"http://{trained.http}/"
    assert page.get(f"performance.getEntriesByType('resource').every(r => r.name.startsWith('{origin}'))")
    assert page.get("performance.getEntriesByType('navigation').length") == 1  # and no reload
    assert not [e for e in chromium.errors if "curve" not in e.get("url", "")]


def test_it_works_with_the_keyboard_alone(trained, chromium):
    page = chromium.open(f"http://{trained.http}/")
    page.wait("document.querySelectorAll('#overview-charts canvas').length >= 5")
    for _ in range(10):
        if page.get("document.activeElement.getAttribute('role') === 'tab'"):
            break
        page.press("Tab")
    shown = "document.activeElement.id + ' ' + document.querySelectorAll('[role=tab][tabindex=\"0\"]').length"
    assert page.get(shown) == "tab-overview 1"
    assert page.get("getComputedStyle(document.activeElement).outlineStyle") == "solid"  # where one is can be seen
    for key, tab in [("ArrowRight", "jobs"), ("End", "cluster"), ("ArrowRight", "overview"), ("ArrowLeft", "cluster"), ("Home", "overview")]:
        page.press(key)
        assert page.get(shown) == f"tab-{tab} 1"
        assert page.get(visible(tab)) and page.get("location.hash") == f"#{tab}"
        assert page.get("document.querySelector('[aria-selected=true]').id") == f"tab-{tab}"
    for _ in range(10):
        if page.get("document.activeElement.classList.contains('plot')"):
            break
        page.press("Tab")
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    said = page.wait("document.getElementById('spoken').textContent")
    assert "pulled" in said and "pushed" in said and ":" in said
    assert page.get("document.activeElement.closest('figure').querySelectorAll('th')[1].textContent") == "there"
    page.press("Escape")
    page.wait("document.activeElement.closest('figure').querySelectorAll('th')[1].textContent === 'now'")


# The element that has the focus, marked if that can be seen and it has a name; null: none has it.
FOCUSED = """
(e => {
  if (e === document.body) return null;
  const r = e.getBoundingClientRect(), s = getComputedStyle(e), x = Math.max(1, Math.min(innerWidth - 1, (r.left + r.right) / 2));
  const y = Math.max(1, Math.min(innerHeight - 1, (r.top + r.bottom) / 2)), hit = document.elementFromPoint(x, y);
  const isThere = r.right > 0 && r.bottom > 0 && r.left < innerWidth && r.top < innerHeight && hit && (e.contains(hit) || hit.contains(e));
  const isMarked = s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1;
  const isNamed = e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim() || (e.labels && e.labels.length);
  if (isThere && isMarked && isNamed) e.dataset.focused = 1;
  return [isThere ? '' : 'out of sight', isMarked ? '' : 'not outlined', isNamed ? '' : 'without a name', e.outerHTML.slice(0, 120)].join(' ');
})(document.activeElement)
"""
WITHOUT_FOCUS = """
[...document.querySelectorAll('a[href], button, input, [tabindex]')].filter(e => e.tabIndex >= 0 && e.getClientRects().length && !e.dataset.focused)
  .map(e => e.outerHTML.slice(0, 120))
"""


def walk(page):
    """With Tab through the whole page, until nothing is left. What has come or moved meanwhile takes another round; the first one begins anywhere."""
    for i in range(5):
        steps = []
        while not steps or (steps[-1] is not None and len(steps) < 200):
            page.press("Tab")
            steps.append(page.get(FOCUSED))
        assert len(steps) < 200
        left = page.get(WITHOUT_FOCUS)
        if i and not left:
            return
    raise AssertionError(f"Tab does not lead to {left}: {steps}")


def focus(page, selector):
    """With Tab alone."""
    for _ in range(200):
        page.press("Tab")
        if page.get(f"document.activeElement.matches({json.dumps(selector)})"):
            return
    raise AssertionError(f"Tab does not lead to {selector}")


def test_tab_leads_everywhere_and_keys_act(trained, chromium):
    page = chromium.open(f"http://{trained.http}/")
    page.wait("document.querySelectorAll('#overview-charts canvas').length >= 5")
    page.press("Tab")  # first of all past what is the same on each tab
    assert page.get("document.activeElement.className") == "skip"
    page.press("Enter")
    page.wait("document.activeElement.id === 'content'")
    for tab in TABS:
        focus(page, "[role=tab][tabindex='0']")
        page.press("Home")
        for _ in range(TABS.index(tab)):
            page.press("ArrowRight")
        page.wait(visible(tab))
        page.wait(f"document.getElementById('panel-{tab}').querySelectorAll('.card:not([hidden]), .none:not([hidden])').length > 0")
        walk(page)

    focus(page, "#range button")
    page.press("ArrowRight")
    assert page.get("document.activeElement.dataset.range + document.activeElement.getAttribute('aria-checked')") == "minutestrue"
    page.press("ArrowLeft")
    assert page.get("document.activeElement.dataset.range + document.activeElement.getAttribute('aria-checked')") == "secondstrue"

    show(page, "tables")
    page.wait("!!document.querySelector('#tables-list .fold')")
    for key, direction in (("Space", "descending"), ("Enter", "ascending")):
        focus(page, "#tables-list th:nth-child(4) button")
        page.press(key)
        assert page.get("document.activeElement.closest('th').getAttribute('aria-sort')") == direction
    focus(page, "#tables-list .fold")
    for key, expanded in (("Enter", "true"), ("Space", "false")):
        page.press(key)
        assert page.get("document.activeElement.getAttribute('aria-expanded')") == expanded  # and it keeps the focus
    focus(page, "#tables-filter")
    page.type("EMB")
    page.wait("document.querySelectorAll('#tables-list tbody tr').length === 1")

    show(page, "jobs")
    focus(page, "#jobs-list tbody a")
    page.press("Enter")
    assert page.get("location.hash") == "#jobs/clicks" and page.get("document.activeElement.textContent") == "clicks"
    page.wait("!document.getElementById('job').hidden")
    clock = "Number(document.querySelector('#job-tiles .value').textContent.replace(/[^0-9]/g, ''))"
    before = page.get(clock)
    page.wait(f"{clock} > {before}")
    assert page.get("document.activeElement.textContent") == "clicks"  # what comes each second leaves the focus


def test_it_fits_a_narrow_window_in_the_dark(trained, chromium):
    page = chromium.open(f"http://{trained.http}/", width=400, height=800, scheme="dark")
    page.wait("document.querySelectorAll('#overview-charts canvas').length >= 5")
    for tab in TABS:
        show(page, tab)
        assert page.get("document.documentElement.scrollWidth") <= 400, tab
        # Nothing of a card is cut off, but for tables that can be moved.
        assert page.get("[...document.querySelectorAll('[role=tabpanel]:not([hidden]) :is(.chart, .tile)')].filter(e => e.scrollWidth > e.clientWidth)"
                        ".map(e => e.textContent)") == [], tab
    dark, light = page.get("['backgroundColor', 'color'].map(k => getComputedStyle(document.body)[k].match(/\\d+/g).reduce((a, n) => a + Number(n), 0))")
    assert dark < 100 and light > 600
    full = "fullIn({totals: {bytes: 1e6}}, {keep: 2, deltas: 2, every_ms: 20000, log_max_bytes: 1e9}, {log_bytes: 0, checkpoint_bytes: 0, free_bytes: "
    assert page.get(full + "1e9, fill_bytes_per_s: 1e6, others_fill_bytes_per_s: 0, fill_over_ms: 60000}) === Infinity")  # --log-max ends it before
    assert 900e3 < page.get(full + "1e9, fill_bytes_per_s: 2e6, others_fill_bytes_per_s: 1e6, fill_over_ms: 60000})") < 960e3
    assert page.get(full + "1e9, fill_bytes_per_s: 2e6, others_fill_bytes_per_s: 1e6, fill_over_ms: 5000}) === Infinity")  # who knows
    trained.kill()
    assert "does not answer" in page.wait("!document.getElementById('offline').hidden && document.getElementById('offline').textContent")


def test_all_nodes_of_the_map_are_shown(psds, chromium):  # noqa: F811
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    node = psds("--shards", 2, "--cluster", ",".join(addresses), "--node", 1, listen=addresses[1])
    assert [n["address"] for n in node.stats()["cluster_nodes"]] == addresses
    page = chromium.open(f"http://{node.http}/#cluster")
    page.wait("document.querySelectorAll('#cluster-members tbody tr').length === 3")
    rows = page.get("[...document.querySelectorAll('#cluster-members tbody tr')].map(r => [...r.children].map(c => c.textContent))")
    assert [row[:4] for row in rows] == [[addresses[1], "primary", "1", "2 to 3"], [addresses[0], "node", "0", "0 to 1"], [addresses[2], "node", "2", "4 to 5"]]
    assert rows[0][4] == "serving, this node, 1 of 3" and all("does not hear it" in row[4] for row in rows[1:])


def test_an_idle_node_says_what_is_missing(psds, chromium):  # noqa: F811
    node = psds("--shards", 1)
    page = chromium.open(f"http://{node.http}/#jobs")
    assert "No job has come" in page.wait("(document.querySelector('#jobs-list .none') || {}).textContent")
    show(page, "tables")
    assert "No table yet" in page.wait("(document.querySelector('#tables-list .none') || {}).textContent")
    show(page, "overview")
    assert "Nothing waits" in page.wait("(document.querySelector('#overview-waits .none:not([hidden])') || {}).textContent")
    charts = check_charts(page, set())
    assert not charts["Latency of the last minute"]["isDrawn"]
    for spec, x, values in (("over: 'clock', from0: false, sparse: true", [5], [1]), ("over: 'clock'", [5], [0]), ("log: true", [5, 6], [0, 0]),
                            ("from0: false", [5, 6], [1e-9, 1e-9]), ("whole: true", [5, 6], [1e18, 0.01]), ("unit: format.bytes", [7, 8], [0, 1e15])):
        page.get(f"(c => {{ document.body.append(c.root); c.update({x}, [{{label: 'a', color: 1, values: {values}}}]); }})"
                 f"(new Chart({{title: 'one', empty: '', {spec}}}))")
        assert page.get("new Promise(done => requestAnimationFrame(() => setTimeout(() => done(!!document.body.lastChild.querySelector('canvas')))))")

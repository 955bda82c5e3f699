/* The stats page: /history once, then /events each second; /stats while a tab shows what grows with tables or shards. */
"use strict";

const at = id => document.getElementById(id);
const TABS = ["overview", "jobs", "tables", "storage", "cluster"];
const LISTS_MS = 2000, CURVE_MS = 5000, RETRY_MS = 2000, OLD_MS = 3000, OFFLINE_MS = 5000;
const SLOTS = { seconds: 900, minutes: 1440 }, STEP_S = { seconds: 1, minutes: 60 }, SHOWN_MIN = 120;

const state = {
  tab: "overview", job: null, range: "seconds",
  stats: null,    /* of the newest event, with the lists of the newest /stats */
  lists: null, listsBefore: null,
  seconds: null, minutes: null, /* { slot, time: of slot, in s, n, series: {name: values} } */
  curves: new Map(),
  isOpen: false,  /* the first answers have come: what is shown first has rates */
  heard: 0,       /* performance.now() of the newest answer */
};

/* ---- elements that are kept from one second to the next, so that focus and reading stay where they are ---- */

const counted = (n, noun) => format.count(n) + " " + noun + (n === 1 ? "" : "s");
function setText(e, text) { if (e.textContent !== text) e.textContent = text; }
function setClass(e, name) { if (e.className !== name) e.className = name; }

function pill(text, kind) { return element("span", text, "pill inline " + (kind || "")); }

/* tiles: [label, value, more, {kind, spark: values}] */
function tiles(host, list) {
  if (host.childElementCount !== list.length)
    host.replaceChildren(...list.map(() => {
      const tile = element("dl", undefined, "tile"), value = element("dd", undefined, "value"), more = element("dd", undefined, "more");
      tile.append(element("dt"), value, more);
      return tile;
    }));
  list.forEach(([label, value, more, extra = {}], i) => {
    const [dt, dd, small] = host.children[i].children;
    setText(dt, label);
    setText(dd, value);
    dd.title = value;
    setClass(dd, "value " + (extra.kind || ""));
    setText(small, more || "");
    if (extra.spark) spark(host.children[i], extra.spark);
  });
}

function spark(tile, values) {
  const ns = "http://www.w3.org/2000/svg", W = 120, H = 26;
  let svg = tile.querySelector("svg");
  if (!svg) {
    svg = document.createElementNS(ns, "svg");
    for (const [k, v] of [["class", "spark"], ["viewBox", `0 0 ${W} ${H}`], ["preserveAspectRatio", "none"], ["aria-hidden", "true"]])
      svg.setAttribute(k, v);
    svg.append(document.createElementNS(ns, "path"));
    tile.append(svg);
  }
  const shown = values.slice(-120), most = Math.max(...shown.map(v => v || 0)) || 1, first = 120 - shown.length;
  let d = "";
  shown.forEach((v, i) => {
    if (v === null || v === undefined) return;
    d += (d && shown[i - 1] !== null ? "L" : "M") + ((first + i) / 119 * W).toFixed(1) + " " + (H - 1.5 - v / most * (H - 4)).toFixed(1);
  });
  svg.firstChild.setAttribute("d", d);
}

/*
 * columns: { title, text: row -> text, node: row -> element (made when the text changes), left, head, wrap, sort: row -> value }
 * rows: objects with a `key`. What comes from peers only ever becomes text.
 */
function grid(host, spec, rows) {
  let g = host.grid;
  if (!g || g.titles !== spec.columns.map(c => c.title).join("|")) g = makeGrid(host, spec);
  setText(g.title, spec.title);
  setText(g.note, spec.note ? spec.note(rows) : "");
  setClass(g.card, "card" + (spec.narrow ? " narrow" : ""));
  g.card.hidden = !rows.length;
  g.none.hidden = rows.length > 0;
  setText(g.none, spec.none || "");
  setClass(g.none, "none" + (spec.calm ? " calm" : ""));
  g.rows = rows;
  sortRows(g, spec);
  fillGrid(g, spec);
}

function makeGrid(host, spec) {
  const g = { titles: spec.columns.map(c => c.title).join("|"), lines: new Map(), sorted: spec.sorted || null };
  const heading = element("h2"), table = element("table"), head = element("tr"), thead = element("thead");
  g.title = element("span");
  g.note = element("small");
  heading.append(g.title, g.note);
  g.body = element("tbody");
  g.heads = spec.columns.map(column => {
    const th = element("th", undefined, column.left ? "l" : "");
    th.scope = "col";
    if (!column.sort) { th.textContent = column.title; return th; }
    const button = element("button", column.title);
    button.type = "button";
    button.addEventListener("click", () => {
      const isSame = g.sorted && g.sorted.title === column.title;
      g.sorted = { title: column.title, down: isSame ? !g.sorted.down : !column.left };
      sortRows(g, g.spec);
      fillGrid(g, g.spec);
    });
    th.append(button);
    return th;
  });
  g.spec = spec;
  head.append(...g.heads);
  thead.append(head);
  table.append(element("caption", spec.title, "unseen"), thead, g.body);
  const wide = element("div", undefined, "wide");
  wide.tabIndex = 0;
  wide.setAttribute("role", "region");
  wide.setAttribute("aria-label", spec.title);
  wide.append(table);
  g.card = element("div", undefined, "card");
  g.card.append(wide);
  g.none = element("p");
  host.replaceChildren(heading, g.card, g.none);
  host.grid = g;
  return g;
}

function sortRows(g, spec) {
  const column = g.sorted && spec.columns.find(c => c.title === g.sorted.title);
  g.spec = spec;
  spec.columns.forEach((c, i) => {
    if (column && c === column) g.heads[i].setAttribute("aria-sort", g.sorted.down ? "descending" : "ascending");
    else g.heads[i].removeAttribute("aria-sort");
  });
  g.shown = g.rows;
  if (!column) return;
  const sign = g.sorted.down ? -1 : 1, of = column.sort;
  const compare = (a, b) => sign * (typeof of(a) === "string" ? of(a).localeCompare(of(b)) : of(a) - of(b));
  /* A group's rows stay behind the group. */
  const groups = g.rows.filter(r => !r.inner).map(r => [r, ...g.rows.filter(x => x.inner === r.key)]);
  g.shown = groups.sort((a, b) => compare(a[0], b[0])).flat();
}

function fillGrid(g, spec) {
  const seen = new Set();
  g.shown.forEach((row, n) => {
    let tr = g.lines.get(row.key);
    if (!tr) {
      tr = element("tr");
      spec.columns.forEach((c, i) => {
        const cell = element(i ? "td" : "th", undefined, (c.left ? "l" : "") + (c.wrap ? " w" : ""));
        if (!i) cell.scope = "row";
        tr.append(cell);
      });
      g.lines.set(row.key, tr);
    }
    seen.add(row.key);
    setClass(tr, row.inner ? "inner" : row.chosen ? "chosen" : "");
    spec.columns.forEach((c, i) => {
      const cell = tr.children[i], text = c.text(row), mark = c.mark ? c.mark(row) : text;
      if (cell.mark === mark) return;
      cell.mark = mark;
      if (c.node) cell.replaceChildren(c.node(row, text)); else cell.textContent = text;
    });
    if (g.body.children[n] !== tr) g.body.insertBefore(tr, g.body.children[n] || null);
  });
  for (const [key, tr] of g.lines) if (!seen.has(key)) { tr.remove(); g.lines.delete(key); }
}

/* ---- history ---- */

function takeHistory(range, h) {
  const isPart = n => Array(Math.max(0, h.n - n)).fill(null);
  for (const name in h.series) h.series[name] = isPart(h.series[name].length).concat(h.series[name]);
  state[range] = { slot: h.slot, time: h.slot_unix_ms / 1000, n: h.n, series: h.series };
}

/* The newest second. True: there is a hole before it, that /history may fill. */
function takeSecond(slot, time, values) {
  const h = state.seconds;
  if (!h || !h.n) { state.seconds = { slot, time, n: 1, series: Object.fromEntries(Object.entries(values).map(([k, v]) => [k, [v]])) }; return true; }
  if (slot <= h.slot) return slot < h.slot - 5; /* psd's machine was started anew */
  const skipped = Math.min(slot - h.slot - 1, SLOTS.seconds);
  for (const name in values) if (!h.series[name]) h.series[name] = Array(h.n).fill(name.startsWith("codec_") ? 0 : null);
  for (const name in h.series) {
    const line = h.series[name];
    for (let i = 0; i < skipped; i++) line.push(null);
    line.push(name in values ? values[name] : name.startsWith("codec_") ? 0 : null);
    if (line.length > SLOTS.seconds) line.splice(0, line.length - SLOTS.seconds);
  }
  h.n = Math.min(h.n + skipped + 1, SLOTS.seconds);
  h.slot = slot;
  h.time = time;
  return skipped > 0;
}

const series = name => { const h = state[state.range]; return (h && h.series[name]) || []; };
/* The newest known value among the last seconds; undefined: none is known. */
function newest(name) {
  const line = (state.seconds && state.seconds.series[name]) || [];
  for (let i = line.length - 1; i >= 0 && i > line.length - 4; i--) if (line[i] !== null && line[i] !== undefined) return line[i];
  return undefined;
}
const shown = (value, unit) => value === undefined || value === null ? "\u2013" : unit(value);
function plus(a, b) { return a === undefined || b === undefined ? undefined : a + b; }
function sums(...names) {
  const lines = names.map(n => (state.seconds && state.seconds.series[n]) || []);
  return lines[0].map((v, i) => lines.every(l => l[i] === null || l[i] === undefined) ? null : lines.reduce((a, l) => a + (l[i] || 0), 0));
}

/* ---- charts ---- */

const line = (name, label, color, dashed) => ({ label, color, dashed, values: series(name) });
const names = prefix => Object.keys((state[state.range] || { series: {} }).series).filter(n => n.startsWith(prefix));

function codecLines() {
  const total = n => series(n).reduce((a, v) => a + (v || 0), 0);
  const of = (prefix, what, dashed) => names(prefix).map(n => line(n, n.slice(prefix.length) + " " + what, 0, dashed));
  const known = [...new Set([...names("codec_in."), ...names("codec_out.")].map(n => n.split(".")[1]))]
    .sort((a, b) => total("codec_in." + b) + total("codec_out." + b) - total("codec_in." + a) - total("codec_out." + a)).slice(0, 4);
  return [...of("codec_in.", "pushed", false), ...of("codec_out.", "pulled", true)]
    .map(l => ({ ...l, color: known.indexOf(l.label.split(" ")[0]) + 1 })).filter(l => l.color > 0 && l.values.some(v => v > 0));
}
function shardLines() {
  const all = names("shard.").filter(n => n.endsWith(".rows_per_s"));
  const total = n => series(n).slice(-60).reduce((a, v) => a + (v || 0), 0);
  return all.sort((a, b) => total(b) - total(a)).slice(0, 8).map(n => n.split(".")[1]).sort((a, b) => a - b)
    .map((s, i) => line("shard." + s + ".rows_per_s", "shard " + s, i + 1));
}

const CHARTS = {
  overview: [
    [{ title: "Rows per second", unit: format.rate, empty: "Rates are known after two seconds." },
      () => [line("rows_pulled", "pulled", 1), line("rows_pushed", "pushed", 2)]],
    [{ title: "Latency of the last minute", unit: format.nanos, log: true, empty: "No pull and no push in the last minute." },
      () => [line("p50_ns.pull", "pull p50", 1, true), line("p99_ns.pull", "pull p99", 1), line("p50_ns.push", "push p50", 2, true),
        line("p99_ns.push", "push p99", 2)]],
    [{ title: "Values on the wire by codec", unit: format.byteRate, empty: "No values have been pulled or pushed in this time." }, codecLines],
    [{ title: "Staleness of pulls", unit: format.count, whole: true, empty: "No pull has read rows of a job with a clock in this time." },
      () => [line("staleness_p50", "p50, clocks", 3, true), line("staleness_p99", "p99, clocks", 3)]],
    [{ title: "Memory", unit: format.bytes, empty: "Nothing is known yet." },
      () => [line("rss_bytes", "resident", 1), line("tables_bytes", "in tables", 3), line("held_bytes", "messages", 2)]],
    [{ title: "Waits", unit: format.count, whole: true, empty: "Nothing is known yet." },
      () => [line("waits", "all", 6), line("parked_pulls", "parked pulls", 1), line("pushes_waiting", "pushes, for the log", 2),
        line("replies_waiting", "replies, for a sync", 4, true)]],
  ],
  storage: [
    [{ title: "Write-ahead log, written", unit: format.byteRate, empty: "Without --data-dir there is no log." }, () => [line("log_bytes", "bytes", 1)]],
    [{ title: "On disk", unit: format.bytes, empty: "Without --data-dir nothing is on disk." },
      () => [line("disk_checkpoint_bytes", "checkpoints", 3), line("disk_log_bytes", "write-ahead log", 1)]],
    [{ title: "Waiting for the disk", unit: format.count, whole: true, empty: "Without --data-dir nothing waits." },
      () => [line("pushes_waiting", "pushes", 2), line("replies_waiting", "replies", 4, true)]],
    [{ title: "Age of the last checkpoint", unit: format.lasting, empty: "No checkpoint has been written." },
      () => [line("checkpoint_age_ms", "age", 3)]],
  ],
  cluster: [
    [{ title: "Rows per second by shard", unit: format.rate, empty: "This node keeps no history by shard: it has too many." }, shardLines],
    [{ title: "Lag of the standby", unit: format.lasting, empty: "No standby follows this node." }, () => [line("lag_ms", "behind", 2)]],
  ],
};
const figures = {};

function drawCharts(tab) {
  if (!CHARTS[tab]) return;
  if (!figures[tab]) {
    figures[tab] = CHARTS[tab].map(([spec]) => new Chart(spec));
    at(tab + "-charts").replaceChildren(...figures[tab].map(f => f.root));
  }
  const h = state[state.range], step = STEP_S[state.range], n = h ? h.n : 0;
  const x = Array.from({ length: n }, (_, i) => h.time - (n - 1 - i) * step);
  CHARTS[tab].forEach(([, lines], i) => {
    const figure = figures[tab][i];
    if (state.range === "minutes" && n < 2) {
      figure.spec = { ...CHARTS[tab][i][0], ...figure.spec, empty: "One point a minute: the first two come within three minutes of the start." };
      return figure.update([], []);
    }
    figure.spec.empty = CHARTS[tab][i][0].empty;
    figure.update(x, lines(), h && [h.time - (Math.min(SLOTS[state.range], Math.max(SHOWN_MIN, n)) - 1) * step, h.time]);
  });
}

/* ---- what is shown ---- */

const ago = ms => format.lasting(Math.max(0, ms)) + " ago";
const waitsGrid = {
  title: "Waits", calm: true, none: "Nothing waits.",
  columns: [
    { title: "what", left: true, text: w => w.what }, { title: "who", left: true, text: w => w.who + (w.n > 1 ? ", on " + w.n + " shards" : "") },
    { title: "why", left: true, wrap: true, text: w => w.why },
    { title: "since", text: w => format.lasting(Math.max(0, w.now - w.since_unix_ms)) },
    { title: "ends", text: w => w.until_unix_ms ? "in " + format.lasting(Math.max(0, w.until_unix_ms - w.now)) : "no deadline" },
  ],
};
const requestsGrid = {
  title: "Requests", note: () => "latencies of the last minute", none: "No request has come yet.",
  columns: [
    { title: "request", left: true, text: r => r.key, sort: r => r.key },
    { title: "last minute", text: r => format.count(r.n_minute), sort: r => r.n_minute }, { title: "ever", text: r => format.count(r.n), sort: r => r.n },
    { title: "refused", text: r => format.count(r.n_refused), sort: r => r.n_refused },
    { title: "p50", text: r => r.n_minute ? format.nanos(r.p50_ns) : "\u2013", sort: r => r.p50_ns },
    { title: "p99", text: r => r.n_minute ? format.nanos(r.p99_ns) : "\u2013", sort: r => r.p99_ns },
    { title: "slowest ever", text: r => r.max_ns ? format.nanos(r.max_ns) : "\u2013", sort: r => r.max_ns },
  ],
};

function showHead(s) {
  setText(at("address"), s.address + (s.n_nodes > 1 ? ", node " + s.node + " of " + s.n_nodes : ""));
  document.title = (s.healthy ? "" : "! ") + "psd " + s.address;
  const word = s.stopping ? "stopping" : s.restoring ? "restoring" : s.ready ? s.healthy ? s.health : "unhealthy" : "starting";
  setText(at("health"), word.length > 60 ? "ok, with a warning" : word);
  setClass(at("health"), "pill " + (!s.healthy ? "bad" : !s.ready || s.stopping || s.health !== "ok" ? "warn" : "good"));
  setText(at("facts"), (s.restoring ? s.restoring.text + "; " : s.health !== "ok" ? s.health + "; " : "") +
    "up " + format.lasting(s.now_unix_ms - s.started_unix_ms) + ", version " + s.version);
}

/* A worker that waits for several shards is one line. */
function foldWaits(s) {
  const found = new Map();
  for (const w of s.waits) {
    const key = [w.what, w.who, w.why].join("|"), same = found.get(key);
    if (!same) found.set(key, { ...w, key, n: 1, now: s.now_unix_ms });
    else Object.assign(same, { n: same.n + 1, since_unix_ms: Math.min(same.since_unix_ms, w.since_unix_ms) });
  }
  return [...found.values()];
}

function showOverview(s) {
  const t = s.totals, c = s.checkpoints, n = s.jobs ? s.jobs.reduce((a, j) => a + j.workers.length, 0) : 0;
  const part = s.memory_max_bytes ? " of " + format.bytes(s.memory_max_bytes) : "";
  const p99 = newest("p99_ns.pull");
  tiles(at("overview-tiles"), [
    ["Rows per second", shown(plus(newest("rows_pulled"), newest("rows_pushed")), format.count),
      shown(newest("rows_pulled"), format.count) + " pulled, " + shown(newest("rows_pushed"), format.count) + " pushed", { spark: sums("rows_pulled", "rows_pushed") }],
    ["Network", shown(plus(newest("bytes_in"), newest("bytes_out")), format.byteRate),
      shown(newest("bytes_in"), format.byteRate) + " in, " + shown(newest("bytes_out"), format.byteRate) + " out", { spark: sums("bytes_in", "bytes_out") }],
    ["Pull latency, p99", shown(p99, format.nanos), p99 === undefined ? "no pull in the last minute" : "p50 " + shown(newest("p50_ns.pull"), format.nanos) + ", with waits for workers",
      { spark: sums("p99_ns.pull") }],
    ["CPU", shown(newest("cpu"), format.cores), "cores in use, " + counted(s.shards_per_node, "shard"), { spark: sums("cpu") }],
    ["Rows", format.count(t.rows), format.bytes(t.tables_bytes) + part],
    ["Workers", t.live_workers + " live", s.jobs ? counted(s.jobs.length, "job") + (n > t.live_workers ? ", " + (n - t.live_workers) + " not live" : "") : "",
      { kind: n > t.live_workers && s.jobs.some(j => j.workers.some(w => w.state === "suspected")) ? "warn" : "" }],
    ["Waits", format.count(t.n_waits), t.net.parked_pulls ? counted(t.net.parked_pulls, "parked pull") : "no parked pull"],
    ["Last checkpoint", c.last_unix_ms ? ago(s.now_unix_ms - c.last_unix_ms) : "none",
      c.last_error || (c.under_way ? "one is being written" : c.last_number ? "number " + c.last_number + ", " + format.bytes(c.last_bytes) : s.durability === "off" ? "no data directory" : ""),
      { kind: c.last_error ? "bad" : "" }],
  ]);
  if (s.waits) grid(at("overview-waits"), waitsGrid, foldWaits(s));
  grid(at("overview-requests"), requestsGrid, Object.entries(t.requests).filter(([, r]) => r.n + r.n_refused > 0).map(([key, r]) => ({ key, ...r })));
  showRefusals(t);
}

function showRefusals(t) {
  const r = t.last_refusal, net = t.net;
  const parts = [["requests", net.refused_requests], ["handshakes", net.refused_greetings], ["malformed frames", net.malformed_frames],
    ["slow peers", net.slow_peers], ["pushes with NaN", t.counters.nan_pushes], ["fenced pushes", t.counters.pushes_fenced],
    ["new rows for want of memory", t.counters.rows_refused], ["staleness violations", t.staleness_violations]].filter(([, n]) => n > 0);
  grid(at("overview-refusals"), {
    title: "Refused", calm: true, narrow: true, none: "Nothing was refused since the start.", note: () => r.n ? "last: " + r.text + (r.worker ? " (" + r.worker + ")" : "") : "",
    columns: [{ title: "what", left: true, text: x => x.key }, { title: "since the start", text: x => format.count(x.n) }],
  }, parts.map(([key, n]) => ({ key, n })));
}

/* -- jobs -- */

const modeText = j => j.mode === "ssp" ? "ssp, bound " + j.bound : j.mode;
const known = v => v !== null && v !== undefined;
const maybe = (v, unit) => known(v) ? unit(v) : "\u2013";
const stateKind = { live: "good", suspected: "warn", dead: "bad", lost: "bad", expected: "warn" };

const jobsGrid = {
  title: "Jobs", none: "No job has come. A worker brings one: psworker train --job NAME --servers " + location.hostname + ":7070",
  columns: [
    { title: "job", left: true, text: j => j.name, mark: j => j.name, sort: j => j.name,
      node: j => { const a = element("a", j.name); a.href = "#jobs/" + encodeURIComponent(j.name); return a; } },
    { title: "workers", text: j => j.workers.filter(w => w.state === "live").length + " of " + j.n_workers, sort: j => j.n_workers },
    { title: "clock", text: j => format.count(j.min_clock), sort: j => j.min_clock },
    { title: "samples/s", text: j => maybe(j.samples_per_s, format.count), sort: j => j.samples_per_s || 0 },
    { title: "loss", text: j => maybe(j.loss, format.real), sort: j => j.loss || 0 },
    { title: "AUC", text: j => maybe(j.auc, format.real), sort: j => j.auc || 0 },
    { title: "mode", left: true, text: modeText },
    { title: "staleness p99", text: j => format.count(j.staleness_p99), sort: j => j.staleness_p99 },
    { title: "pulls waited", text: j => format.lasting(j.parked_ms), sort: j => j.parked_ms },
    { title: "deaths", text: j => format.count(j.deaths), sort: j => j.deaths },
  ],
};

/* A bar for each stage of a worker's pipeline; the stages run side by side, so the busiest one sets the speed. */
function shareBars(busy) {
  const box = element("span", undefined, "inline"), entries = Object.entries(busy);
  const most = entries.reduce((a, b) => b[1] > a[1] ? b : a, ["", 0]);
  box.append(element("span", most[0] + " " + format.percent(most[1]), "stage"));
  for (const [stage, share] of entries) {
    const bar = element("span", undefined, "share"), fill = element("i", undefined, "c1"), word = element("span", stage + " " + format.percent(share), "unseen");
    fill.style.width = Math.min(100, share * 100) + "%";
    bar.title = stage + " " + format.percent(share);
    bar.append(fill);
    box.append(bar, word);
  }
  return box;
}
const busyText = busy => Object.entries(busy).map(([k, v]) => k + " " + format.percent(v)).join(", ");

function workersGrid(workers) {
  const columns = [
    { title: "worker", left: true, text: w => String(w.rank) },
    { title: "state", left: true, text: w => w.state, node: (w, text) => pill(text, stateKind[text]) },
    { title: "clock", text: w => format.count(w.clock) },
    { title: "behind", text: w => format.count(w.behind) },
    { title: "heard of", text: w => w.state === "expected" || w.state === "lost" ? "never" : ago(w.silent_ms) },
  ];
  if (workers.some(w => known(w.samples_per_s))) columns.push({ title: "samples/s", text: w => maybe(w.samples_per_s, format.count) });
  if (workers.some(w => known(w.loss))) columns.push({ title: "loss", text: w => maybe(w.loss, format.real) });
  if (workers.some(w => known(w.busy)))
    columns.push({ title: "busiest stage", left: true, text: w => known(w.busy) ? busyText(w.busy) : "\u2013", node: w => known(w.busy) ? shareBars(w.busy) : element("span", "\u2013") });
  columns.push({ title: "skipped clocks", text: w => format.count(w.skipped_clocks) }, { title: "name", left: true, text: w => w.name });
  return { title: "Workers", none: "No worker has joined.", columns };
}

const LEARNING = [
  [{ title: "Loss", unit: format.real, over: "clock", from0: false, sparse: true, summary: "least", empty: "No loss yet: workers report it with their heartbeats." },
    p => [{ label: "training loss", color: 2, values: p.map(x => x.loss) }, { label: "validation log-loss", color: 4, dashed: true, values: p.map(x => x.logloss) }]],
  [{ title: "Validation AUC", unit: format.real, over: "clock", from0: false, sparse: true, empty: "No AUC yet: workers with --valid or --valid-fraction measure it." },
    p => [{ label: "AUC", color: 3, values: p.map(x => x.auc) }]],
  [{ title: "Samples per second", unit: format.rate, over: "clock", sparse: true, empty: "No speed has been reported." },
    p => [{ label: "all workers", color: 1, values: p.map(x => x.samples_per_s) }]],
];

function showJobs(s) {
  const jobs = s.jobs || [];
  if (state.job === null && jobs.length === 1) state.job = jobs[0].name;
  const job = jobs.find(j => j.name === state.job);
  grid(at("jobs-list"), jobsGrid, jobs.map(j => ({ ...j, key: j.name, chosen: j === job })));
  at("job").hidden = !job;
  if (job) showJob(s, job);
}

function showJob(s, j) {
  setText(at("job-title"), "Job " + j.name);
  const most = Math.max(0, ...j.workers.map(w => w.clock)), live = j.workers.filter(w => w.state === "live").length;
  tiles(at("job-tiles"), [
    ["Clock", format.count(j.min_clock), "the fastest worker is at " + format.count(most)],
    ["Samples per second", maybe(j.samples_per_s, format.count), known(j.samples) ? format.count(j.samples) + " so far" : "not reported"],
    ["Loss", maybe(j.loss, format.real), known(j.logloss) ? "validation log-loss " + format.real(j.logloss) : ""],
    ["AUC", maybe(j.auc, format.real), known(j.auc) ? "of the last validation" : "no validation yet"],
    ["Workers", live + " of " + j.n_workers, j.deaths ? counted(j.deaths, "death") + " seen" : "none has died", { kind: live < j.n_workers ? "warn" : "" }],
    ["Staleness", "p99 " + format.count(j.staleness_p99), modeText(j) + ", greatest " + format.count(j.staleness_max), { kind: j.staleness_violations ? "bad" : "" }],
  ]);
  const workers = j.workers.map(w => ({ ...w, key: w.rank, behind: most - w.clock }));
  grid(at("job-workers"), workersGrid(workers), workers);
  const pulls = Object.values(j.staleness).reduce((a, n) => a + n, 0);
  grid(at("job-staleness"), {
    title: "Staleness of pulls", narrow: true, note: () => "since the start", none: "No pull with a clock yet.",
    columns: [{ title: "clocks behind", left: true, text: r => r.key }, { title: "pulls", text: r => format.count(r.n) },
      { title: "share", text: r => format.percent(r.n / pulls), node: (r, text) => {
        const box = element("span", text), m = element("meter");
        m.max = 1; m.value = r.n / pulls; m.setAttribute("aria-hidden", "true");
        box.append(m);
        return box;
      } }],
  }, Object.entries(j.staleness).map(([key, n]) => ({ key, n })));
  drawLearning(j.name);
}

function drawLearning(name) {
  if (!figures.job) {
    figures.job = LEARNING.map(([spec]) => new Chart(spec));
    at("job-charts").replaceChildren(...figures.job.map(f => f.root));
  }
  const points = (state.curves.get(name) || []).filter((p, i, all) => !i || p.clock > all[i - 1].clock);
  LEARNING.forEach(([, lines], i) => figures.job[i].update(points.map(p => p.clock), points.length ? lines(points) : []));
}

/* -- tables -- */

const tableGrid = {
  title: "Tables", none: "No table yet: a job creates its tables when it starts.", sorted: { title: "memory", down: true },
  columns: [
    { title: "table", left: true, text: t => t.label, mark: t => t.label + t.isOpen, sort: t => t.label, node: tableName },
    { title: "kind", left: true, text: t => t.kind }, { title: "dim", text: t => t.dim === null ? "" : format.count(t.dim), sort: t => t.dim || 0 },
    { title: "rows", text: t => format.count(t.rows), sort: t => t.rows },
    { title: "memory", text: t => format.bytes(t.bytes) + (t.bytes_max ? " of " + format.bytes(t.bytes_max) : ""), sort: t => t.bytes },
    { title: "pulled", text: t => shown(t.pulled, format.rate), sort: t => t.pulled || 0 },
    { title: "pushed", text: t => shown(t.pushed, format.rate), sort: t => t.pushed || 0 },
    { title: "optimizer", left: true, text: t => t.optimizer + (t.learning_rate === null ? "" : " " + format.real(t.learning_rate)) },
    { title: "stored", left: true, text: t => t.storage },
    { title: "overhead/row", text: t => t.overhead_bytes_per_row === null ? "" : format.bytes(t.overhead_bytes_per_row) },
    { title: "removed", text: t => format.count(t.rows_removed), sort: t => t.rows_removed },
    { title: "not admitted", text: t => format.count(t.rows_unadmitted), sort: t => t.rows_unadmitted },
    { title: "refused", text: t => format.count(t.rows_refused), sort: t => t.rows_refused },
  ],
};
const opened = new Set();

function tableName(t) {
  if (!t.group) return element("span", t.label);
  const b = element("button", t.label, "fold");
  b.type = "button";
  b.setAttribute("aria-expanded", String(t.isOpen));
  b.addEventListener("click", () => {
    if (!opened.delete(t.key)) opened.add(t.key);
    showTables();
    const again = [...at("tables-list").querySelectorAll(".fold")].find(x => x.textContent === t.label);
    if (again) again.focus();
  });
  return b;
}

function tableRows() {
  const now = state.lists, before = state.listsBefore, seconds = before ? (now.now_unix_ms - before.now_unix_ms) / 1000 : 0;
  const old = new Map(seconds > 0 && before.pid === now.pid ? before.tables.map(t => [t.name, t]) : []);
  const rate = (t, what) => old.has(t.name) ? Math.max(0, t[what] - old.get(t.name)[what]) / seconds : undefined;
  const filter = at("tables-filter").value.trim().toLowerCase();
  return now.tables.map(t => ({ ...t, key: t.name, label: t.name, pulled: rate(t, "rows_pulled"), pushed: rate(t, "rows_pushed") }))
    .filter(t => t.name.toLowerCase().includes(filter));
}

/* A job's dense tables are one line, that opens. */
function foldTables(rows) {
  const groups = new Map(), all = [];
  for (const t of rows) {
    const job = t.name.includes("/") ? t.name.slice(0, t.name.indexOf("/")) : "";
    if (t.kind !== "dense") { all.push(t); continue; }
    if (!groups.has(job)) groups.set(job, []);
    groups.get(job).push(t);
  }
  for (const [job, list] of groups) {
    if (list.length < 3) { all.push(...list); continue; }
    const sum = what => list.reduce((a, t) => plus(a, t[what]), 0), key = "dense of " + job;
    all.push({ ...list[0], key, group: true, isOpen: opened.has(key), label: (job ? job + ": " : "") + list.length + " dense tables", dim: null,
      rows: sum("rows"), bytes: sum("bytes"), pulled: sum("pulled"), pushed: sum("pushed"), overhead_bytes_per_row: null, learning_rate: null,
      rows_removed: sum("rows_removed"), rows_unadmitted: sum("rows_unadmitted"), rows_refused: sum("rows_refused"), bytes_max: sum("bytes_max") });
    if (opened.has(key)) all.push(...list.map(t => ({ ...t, inner: key })));
  }
  return all;
}

function showTables() {
  if (!state.lists) return;
  const rows = foldTables(tableRows()), n = state.lists.tables.length;
  grid(at("tables-list"), { ...tableGrid, none: n ? "No table has this in its name." : tableGrid.none,
    note: () => n ? counted(n, "table") + ", " + format.bytes(state.lists.tables.reduce((a, t) => a + t.bytes, 0)) : "" }, rows);
}

/* -- storage -- */

const logsGrid = {
  title: "Write-ahead log by shard", none: "Without --data-dir there is no log: what is in memory is lost when psd ends.",
  columns: [
    { title: "shard", left: true, text: r => String(r.shard) },
    { title: "state", left: true, text: r => r.log.failed ? "cannot be written" : r.log.gap ? "lacks records" : r.log.full ? "full" : "ok",
      node: (r, text) => pill(text, text === "ok" ? "good" : text === "full" ? "warn" : "bad") },
    { title: "records", text: r => format.count(r.log.records) }, { title: "not yet safe", text: r => format.count(Math.max(0, r.log.records - r.log.durable)) },
    { title: "in memory", text: r => format.bytes(r.log.held_bytes) }, { title: "written", text: r => format.bytes(r.log.bytes) },
    { title: "syncs", text: r => format.count(r.log.syncs) }, { title: "disk takes", text: r => r.log.disk_bytes_per_s ? format.byteRate(r.log.disk_bytes_per_s) : "\u2013" },
    { title: "pushes waited", text: r => format.lasting(r.log.push_wait_us / 1000) }, { title: "error", left: true, wrap: true, text: r => r.log.error },
  ],
};

/* As psctl doctor foretells it: psd's own files grow up to what --log-max and --keep let them, and a rate says nothing of times much longer than it was
   measured over. */
function fullIn(s, c, d) {
  const own = Math.max(0, d.fill_bytes_per_s - (d.others_fill_bytes_per_s || 0)), others = d.fill_bytes_per_s - own;
  const perCheckpoint = own * c.every_ms / 1000, log = c.keep * (perCheckpoint > 0 ? Math.min(c.log_max_bytes, perCheckpoint) : c.log_max_bytes);
  const mayGrow = !c.log_max_bytes ? Infinity : Math.max(0, log - d.log_bytes) + Math.max(0, (c.keep + c.deltas + 1) * s.totals.bytes - d.checkpoint_bytes);
  let full = own + others > 0 ? d.free_bytes / (own + others) : Infinity;
  if (own * full > mayGrow) full = others > 0 ? (d.free_bytes - mayGrow) / others : Infinity;
  return d.fill_over_ms >= 10000 && full < 86400 && full * 1000 < 60 * d.fill_over_ms ? full * 1000 : Infinity;
}

function showStorage(s) {
  const c = s.checkpoints, d = s.disk;
  const fullMs = d ? fullIn(s, c, d) : Infinity, fills = fullMs < Infinity ? "full in " + format.lasting(fullMs) + " at this rate" : "";
  const every = c.every_ms ? "every " + format.lasting(c.every_ms) : "only when asked";
  const safe = { off: "rows live in memory alone", none: "there is no log: a restart loses what is newer than a checkpoint", async: "pushes are acknowledged before the log is synced", fsync: "pushes are acknowledged when the log is synced" };
  tiles(at("storage-tiles"), [
    ["Durability", s.durability, safe[s.durability] || ""],
    ["Last checkpoint", c.last_unix_ms ? ago(s.now_unix_ms - c.last_unix_ms) : "none", c.last_error || (c.last_number ? "number " + c.last_number + ", " + every : every), { kind: c.last_error ? "bad" : "" }],
    ["It holds", c.last_number ? counted(c.last_rows, "row") : "\u2013", c.last_number ? format.bytes(c.last_bytes) + (c.last_took_ms ? " in " + format.lasting(c.last_took_ms) : "") : ""],
    ["Checkpoints", c.done + " written", c.failed ? c.failed + " failed" : c.under_way ? "number " + c.under_way.number + " is under way" : "none failed", { kind: c.failed ? "warn" : "" }],
    ["On disk", d ? format.bytes(d.checkpoint_bytes + d.log_bytes + d.aside_bytes) : "\u2013", d ? format.bytes(d.log_bytes) + " of it log" : "no data directory"],
    ["Free", d && d.size_bytes ? format.bytes(d.free_bytes) : "\u2013", d && d.size_bytes ? fills || "of " + format.bytes(d.size_bytes) : "", { kind: d && d.size_bytes && d.free_bytes < d.size_bytes / 20 ? "bad" : "" }],
    ["Not yet on disk", s.durability === "off" ? "\u2013" : format.bytes(s.totals.log.held_bytes), s.durability === "off" ? "no data directory" : "of the write-ahead log, in memory"],
    ["Scrub", d && d.scrubs ? d.damaged_files ? d.damaged_files + " damaged" : "whole" : "\u2013", d && d.damage ? d.damage : d && d.scrubbed_unix_ms ? format.bytes(d.scrubbed_bytes) + " read " + ago(s.now_unix_ms - d.scrubbed_unix_ms) : "no file has been read again yet",
      { kind: d && d.damaged_files ? "bad" : "" }],
  ]);
  if (state.lists) grid(at("storage-logs"), logsGrid, s.durability === "off" ? [] : state.lists.shards.filter(r => r.reported && r.log.on).map(r => ({ ...r, key: r.shard })));
}

/* -- cluster -- */

const membersGrid = {
  title: "Members that this node knows", note: () => "nodes do not ask each other: psctl status asks all",
  columns: [
    { title: "address", left: true, text: m => m.key }, { title: "role", left: true, text: m => m.role, node: (m, text) => pill(text, text === "primary" ? "good" : "") },
    { title: "node", text: m => String(m.node) }, { title: "shards", left: true, text: m => m.shards },
    { title: "state", left: true, text: m => m.state, wrap: true },
  ],
};
const shardsGrid = {
  title: "Shards of this node", none: "No shard has reported yet.",
  columns: [
    { title: "shard", left: true, text: r => String(r.shard), sort: r => r.shard },
    { title: "report", text: r => format.lasting(r.report_age_ms) + " old", sort: r => r.report_age_ms },
    { title: "rows", text: r => format.count(r.rows), sort: r => r.rows },
    { title: "rows/s", text: r => shown(r.rowsPerSecond, format.count), sort: r => r.rowsPerSecond || 0 },
    { title: "memory", text: r => format.bytes(r.bytes) + (r.memory_max_bytes ? " of " + format.bytes(r.memory_max_bytes) : ""), sort: r => r.bytes },
    { title: "cores", text: r => shown(r.cores, format.cores), sort: r => r.cores || 0 },
    { title: "pull p99", text: r => r.requests.pull.n_minute ? format.nanos(r.requests.pull.p99_ns) : "\u2013", sort: r => r.requests.pull.p99_ns },
    { title: "push p99", text: r => r.requests.push.n_minute ? format.nanos(r.requests.push.p99_ns) : "\u2013", sort: r => r.requests.push.p99_ns },
    { title: "parked", text: r => format.count(r.net.parked_pulls), sort: r => r.net.parked_pulls },
    { title: "log in memory", text: r => format.bytes(r.log.held_bytes), sort: r => r.log.held_bytes },
    { title: "connections", text: r => format.count(r.net.connections), sort: r => r.net.connections },
    { title: "refused", text: r => format.count(r.net.refused_requests), sort: r => r.net.refused_requests },
  ],
};

/* This node's group first, then the other nodes of the map, of which it hears nothing. */
function members(s) {
  const r = s.replication, claim = s.coordination && s.coordination.claim, list = new Map();
  const shards = node => node * s.shards_per_node + (s.shards_per_node > 1 ? " to " + ((node + 1) * s.shards_per_node - 1) : "");
  const add = (key, role, text, node = s.node) => { if (key && !list.has(key)) list.set(key, { key, role, state: text, node, shards: shards(node) }); };
  add(s.address, r ? r.role || "primary" : "primary", (r && r.state ? r.state : s.ready ? "serving" : "starting") + ", this node" + (s.n_nodes > 1 ? ", " + s.node + " of " + s.n_nodes : ""));
  if (r) add(r.peer, r.role === "standby" ? "primary" : "standby", r.in_sync ? "in sync" : "not in sync" + (r.note ? ": " + r.note : ""));
  if (claim) { add(claim.primary, "primary", "as the coordination service says"); add(claim.standby, "standby", claim.in_sync ? "in sync" : "not in sync"); }
  for (const n of (state.lists && state.lists.cluster_nodes) || []) if (n.node !== s.node) add(n.address, "node", "of the cluster's map; this node does not hear it", n.node);
  return [...list.values()];
}

function showCluster(s) {
  const r = s.replication, c = s.coordination;
  tiles(at("cluster-tiles"), [
    ["This node", s.n_nodes > 1 ? s.node + " of " + s.n_nodes : "the only one", counted(s.n_nodes * s.shards_per_node, "shard") + ", " + s.shards_per_node + " here"],
    ["Role", r ? r.role || "primary" : "primary", r ? "term " + r.term + (r.state ? ", " + r.state : "") : "no standby has been set up"],
    ["Standby", r && r.peer ? r.in_sync ? "in sync" : "not in sync" : "none", r && r.peer ? r.peer : "no other host has these rows", { kind: r && r.peer && !r.in_sync ? "bad" : "" }],
    ["Lag", r && r.peer ? format.lasting(r.standby_lag_ms) : "\u2013", r && r.peer ? counted(r.standby_lag_records, "record") + (r.differences ? ", " + counted(r.differences, "difference") : "") : ""],
    ["Coordination", c ? c.away ? "does not answer" : "etcd answers" : "none", c ? c.away ? c.error : c.service + ", " + counted(c.takeovers, "takeover") + " in 10 min" : "a standby takes over when told", { kind: c && c.away ? "bad" : "" }],
    ["Process", "pid " + s.pid, format.lasting(s.cpu_seconds * 1000) + " of CPU, " + (s.huge_pages ? "huge pages" : "no huge pages")],
  ]);
  grid(at("cluster-members"), membersGrid, members(s));
  if (state.lists)
    grid(at("cluster-shards"), shardsGrid, state.lists.shards.filter(x => x.reported).map(x => ({ ...x, key: x.shard,
      rowsPerSecond: newest("shard." + x.shard + ".rows_per_s"), cores: newest("shard." + x.shard + ".cpu") })));
}

const SHOW = { overview: showOverview, jobs: showJobs, tables: showTables, storage: showStorage, cluster: showCluster };

function show() {
  const s = state.stats;
  if (!s || !state.isOpen) return;
  showHead(s);
  SHOW[state.tab](s);
  drawCharts(state.tab);
}

/* ---- tabs: the arrow keys move between them, and the address says which one is shown ---- */

function choose(tab, isFocused) {
  state.tab = TABS.includes(tab) ? tab : "overview";
  for (const t of TABS) {
    const button = at("tab-" + t), is = t === state.tab;
    button.setAttribute("aria-selected", String(is));
    button.tabIndex = is ? 0 : -1;
    at("panel-" + t).hidden = !is;
    if (is && isFocused) button.focus();
  }
  show();
  askLists();
}
function readAddress() {
  const [tab, name] = location.hash.slice(1).split("/");
  try { state.job = name ? decodeURIComponent(name) : state.job; } catch { /* not ours */ }
  choose(tab, false);
}
function moves(e, n, i) {
  return { ArrowRight: (i + 1) % n, ArrowLeft: (i + n - 1) % n, ArrowDown: (i + 1) % n, ArrowUp: (i + n - 1) % n, Home: 0, End: n - 1 }[e.key];
}
at("tabs").addEventListener("click", e => { const b = e.target.closest("[role=tab]"); if (b) location.hash = b.id.slice(4); });
at("tabs").addEventListener("keydown", e => {
  const to = moves(e, TABS.length, TABS.indexOf(state.tab));
  if (to === undefined) return;
  e.preventDefault();
  history.replaceState(null, "", "#" + TABS[to]);
  choose(TABS[to], true);
});
function chooseRange(button) {
  for (const b of at("range").children) {
    b.setAttribute("aria-checked", String(b === button));
    b.tabIndex = b === button ? 0 : -1;
  }
  state.range = button.dataset.range;
  show();
  if (state.range === "minutes") askHistory("minutes");
}
at("range").addEventListener("click", e => { const b = e.target.closest("button"); if (b) chooseRange(b); });
at("range").addEventListener("keydown", e => {
  const all = [...at("range").children], to = moves(e, all.length, all.indexOf(document.activeElement));
  if (to === undefined) return;
  e.preventDefault();
  all[to].focus();
  chooseRange(all[to]);
});
at("tables-filter").addEventListener("input", showTables);
addEventListener("hashchange", readAddress);
document.addEventListener("visibilitychange", () => { if (!document.hidden) { show(); askLists(); } });

/* ---- what psd says ---- */

async function get(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(path + ": " + answer.status);
  return answer.json();
}

const PATHS = { seconds: "history", minutes: "history/day" };
async function askHistory(range) {
  try {
    takeHistory(range, await get(PATHS[range]));
    show();
  } catch { /* the next hole, or the next minute, asks again */ }
}
let filling = 0;
function fillHole() {
  clearTimeout(filling);
  filling = setTimeout(() => askHistory("seconds"), 1300); /* its text is up to a second old */
}

function takeStats(s) {
  state.heard = performance.now();
  if (state.stats && state.stats.pid !== s.pid) { state.seconds = state.minutes = state.listsBefore = null; askHistory("seconds"); }
  state.stats = s.jobs || !state.lists ? s : { ...s, jobs: state.lists.jobs, waits: state.lists.waits };
}

const isListed = () => ["tables", "storage", "cluster"].includes(state.tab) || !state.stats || !state.stats.jobs;
let asking = false;
async function askLists() {
  if (asking || document.hidden || !isListed()) return;
  asking = true;
  try {
    const s = await get("stats");
    if (!state.lists || s.now_unix_ms > state.lists.now_unix_ms + 500) state.listsBefore = state.lists;
    state.lists = s;
    if (!state.stats) takeStats(s);
    show();
  } catch { /* the banner says so */ } finally { asking = false; }
}
let hasCurves = true;
async function askCurve() {
  if (!hasCurves || document.hidden || state.tab !== "jobs" || state.job === null) return;
  try {
    const curve = await get("curve?job=" + encodeURIComponent(state.job));
    state.curves.set(curve.job, curve.points);
    show();
  } catch { hasCurves = false; /* this psd keeps none */ }
}

let source = null;
function listen() {
  if (source) source.close();
  source = new EventSource("events");
  source.onmessage = e => {
    const { slot, values, stats } = JSON.parse(e.data);
    const hole = takeSecond(slot, (stats.now_unix_ms - 500) / 1000, values);
    takeStats(stats);
    if (hole) fillHole();
    if (!document.hidden) show();
  };
  source.onerror = () => { if (source.readyState === EventSource.CLOSED) setTimeout(listen, RETRY_MS); };
}

/* Without events, as when too many pages listen, /stats and /history are asked. */
async function watch() {
  const old = performance.now() - state.heard;
  if (old > OLD_MS && !document.hidden)
    try {
      const [h, s] = await Promise.all([get("history"), get("stats")]);
      takeHistory("seconds", h);
      state.lists = s;
      takeStats(s);
      show();
    } catch { /* shown below */ }
  const away = performance.now() - state.heard;
  at("offline").hidden = away < OFFLINE_MS;
  if (away >= OFFLINE_MS) setText(at("offline"), "psd does not answer since " + format.lasting(away) + "; what stands here is as old. The page tries again.");
}

async function start() {
  readAddress();
  await Promise.all([askHistory("seconds"), askLists()]);
  state.isOpen = true;
  show();
  listen();
  setInterval(watch, RETRY_MS);
  setInterval(askLists, LISTS_MS);
  setInterval(askCurve, CURVE_MS);
  setInterval(() => { if (state.range === "minutes" && !document.hidden) askHistory("minutes"); }, 60000);
  addEventListener("hashchange", askCurve);
  askCurve();
}
start();

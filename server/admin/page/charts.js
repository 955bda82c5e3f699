/* Charts: uPlot, beside each a table of its values that is its legend, too; the arrow keys move through the points. */
"use strict";

const format = (() => {
  const fixed = (n, digits) => n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(Math.min(1, digits)) : n.toFixed(digits);
  function scaled(n, base, units) {
    let i = 0;
    for (; Math.abs(n) >= base * .9995 && i < units.length - 1; i++) n /= base;
    return [n, units[i]];
  }
  function count(n) {
    if (n < 0) return "-" + count(-n);
    if (n < 10000) return Number.isInteger(n) || n >= 100 ? Math.round(n).toLocaleString("en-US") : fixed(n, 2);
    const [value, unit] = scaled(n, 1000, ["", "k", "M", "G", "T", "P"]);
    return fixed(value, 2) + " " + unit;
  }
  function bytes(n) {
    const [value, unit] = scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
    return (unit === "B" ? Math.round(value) : fixed(value, 2)) + " " + unit;
  }
  function nanos(n) {
    const [value, unit] = scaled(n, 1000, ["ns", "\u00b5s", "ms", "s"]);
    return fixed(value, 2) + " " + unit;
  }
  function lasting(ms) {
    const s = ms / 1000;
    return s < .05 ? "0 s" : s < 10 ? s.toFixed(1) + " s" : s < 120 ? Math.round(s) + " s" : s < 7200 ? Math.floor(s / 60) + " min" :
      s < 172800 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " d";
  }
  return {
    count, bytes, nanos, lasting,
    rate: n => count(n) + "/s", byteRate: n => bytes(n) + "/s", cores: n => fixed(n, 2),
    real: n => Math.abs(n) >= 1000 ? count(n) : n !== 0 && Math.abs(n) < .0001 ? n.toExponential(1) : Number(n.toPrecision(4)).toString(),
    percent: n => (n * 100).toFixed(n < .1 ? 1 : 0) + " %",
  };
})();

function element(tag, text, name) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (name) e.className = name;
  return e;
}

const Chart = (() => {
  const all = new Set();
  const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const two = n => String(n).padStart(2, "0");
  const clockTime = s => { const d = new Date(s * 1000); return two(d.getHours()) + ":" + two(d.getMinutes()) + ":" + two(d.getSeconds()); };
  const tens = Array.from({ length: 16 }, (_, i) => 10 ** i), wholeSteps = tens.flatMap(n => [n, 2 * n, 5 * n]);
  const byteSteps = Array.from({ length: 50 }, (_, i) => 2 ** i);
  let next = 1;

  /* spec: title, unit (a function of format), summary ("greatest" or "least"), over ("time" or a word for x), empty (a
     sentence), from0, log, whole, sparse: its values
     are few, and joined. */
  class Figure {
    constructor(spec) {
      this.spec = { unit: format.count, over: "time", from0: true, ...spec };
      this.plot = null;
      this.lines = [];
      this.x = [];
      this.at = null;
      this.root = element("figure", undefined, "chart");
      this.root.dataset.chart = spec.title;
      const caption = element("figcaption", spec.title);
      this.moment = element("span", "");
      caption.append(this.moment);
      this.box = element("div", undefined, "plot empty");
      this.box.setAttribute("role", "group");
      this.box.setAttribute("aria-roledescription", "chart");
      this.table = element("table", undefined, "legend");
      this.table.id = "values-" + next++;
      this.root.append(caption, this.box, this.table);
      this.box.addEventListener("keydown", e => this.onKey(e));
      this.box.addEventListener("blur", () => this.point(null));
      new ResizeObserver(() => this.resize()).observe(this.box);
      all.add(this);
    }

    /* lines: [{label, values, color: 1 to 8, dashed}], each value of the same place in x; null: unknown. */
    update(x, lines, range) {
      lines = lines.filter(l => l.values.some(v => v !== null && v !== undefined));
      const shape = JSON.stringify(lines.map(l => [l.label, l.color, l.dashed]));
      this.x = x;
      this.lines = lines;
      this.range = range || [x[0], x[x.length - 1]];
      if (!lines.length) return this.showEmpty();
      if (!this.plot || this.shape !== shape) this.build(shape);
      else this.plot.setData(this.data(), true);
      this.showTable();
    }

    data() { return [this.x, ...this.lines.map(l => l.values)]; }

    showEmpty() {
      if (this.plot) this.plot.destroy();
      this.plot = null;
      this.box.className = "plot empty";
      this.box.removeAttribute("tabindex");
      this.box.setAttribute("aria-label", this.spec.title + ": " + this.spec.empty);
      this.box.textContent = this.spec.empty;
      this.table.replaceChildren();
      this.table.hidden = true;
      this.moment.textContent = "";
    }

    axes() {
      const line = { stroke: color("--line"), width: 1 }, text = color("--dim"), font = "11px system-ui, sans-serif";
      const isTime = this.spec.over === "time", unit = this.spec.unit, isShort = () => this.range[1] - this.range[0] < 300;
      const base = { stroke: text, font, grid: line, ticks: { ...line, size: 4 } };
      return [
        { ...base, space: 76, size: 30, values: (u, at) => at.map(v => isTime ? clockTime(v).slice(0, isShort() ? 8 : 5) : format.count(v)) },
        { ...base, size: 66, space: 36, values: (u, at) => at.map(v => v === null ? "" : v === 0 ? "0" : unit(v).replace(/\.0+(?= |$)/, "")),
          ...(this.spec.log ? { splits: (u, i, least, most) => tens.filter(v => v >= least && v <= most) } : {}),
          ...(unit === format.bytes || unit === format.byteRate ? { incrs: byteSteps } : this.spec.whole ? { incrs: wholeSteps } : {}) },
      ];
    }

    build(shape) {
      if (this.plot) this.plot.destroy();
      this.shape = shape;
      this.box.className = "plot";
      this.box.textContent = "";
      this.box.tabIndex = 0;
      this.box.setAttribute("aria-label", this.spec.title + "; its values are in the table below. Arrow keys move through the points.");
      this.box.setAttribute("aria-describedby", this.table.id);
      this.table.hidden = false;
      this.buildTable();
      this.plot = new uPlot({
        width: this.box.clientWidth || 320, height: this.box.clientHeight || 190,
        legend: { show: false }, padding: [8, 6, 0, 0],
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 }, ...(this.spec.over === "time" ? { sync: { key: "psd" } } : {}) },
        scales: {
          x: { time: this.spec.over === "time", range: () => this.range },
          y: this.spec.log ? { distr: 3, range: (u, least, most) => uPlot.rangeLog(least || 1, most || 10, 10, false) } :
            { range: (u, least, most) => this.spec.from0 ? [0, most > 0 ? most * 1.08 : 1] : uPlot.rangeNum(least, most, .1, true) },
        },
        axes: this.axes(),
        series: [{}, ...this.lines.map(l => ({
          label: l.label, stroke: color("--s" + l.color), width: 1.6, dash: l.dashed ? [5, 4] : undefined,
          points: { show: (u, i) => u.data[i].filter(v => v !== null).length < (this.spec.sparse ? 40 : 3), size: 5 }, spanGaps: !!this.spec.sparse,
        }))],
        hooks: { setCursor: [u => this.onCursor(u.cursor.idx)] },
      }, this.data(), this.box);
      this.plot.root.setAttribute("aria-hidden", "true");
    }

    /* Rows stay from one second to the next, so that who reads them is not disturbed. */
    buildTable() {
      const thead = element("thead"), head = element("tr"), body = element("tbody");
      const titles = ["series", "now", "mean", this.spec.summary === "least" ? "least" : "greatest"];
      titles.forEach((t, i) => { const th = element("th", t, i ? "" : "l"); th.scope = "col"; head.append(th); });
      this.nowTitle = head.children[1];
      this.cells = this.lines.map(l => {
        const row = element("tr", undefined, "c" + l.color + (l.dashed ? " dashed" : "")), name = element("th", l.label, "l");
        name.scope = "row";
        row.append(name, element("td"), element("td"), element("td"));
        body.append(row);
        return [...row.children].slice(1);
      });
      thead.append(head);
      this.table.replaceChildren(element("caption", this.spec.title, "unseen"), thead, body);
    }

    /* Of the point under the cursor, else of the newest. */
    showTable() {
      const unit = this.spec.unit, show = v => v === null || v === undefined || Number.isNaN(v) ? "\u2013" : unit(v);
      const at = this.at !== null && this.at < this.x.length ? this.at : null, set = (e, text) => { if (e.textContent !== text) e.textContent = text; };
      set(this.nowTitle, at === null ? "now" : "there");
      this.lines.forEach((l, i) => {
        const known = l.values.filter(v => v !== null && v !== undefined), cells = this.cells[i];
        set(cells[0], show(at !== null ? l.values[at] : this.spec.sparse ? known[known.length - 1] : l.values[l.values.length - 1]));
        set(cells[1], show(known.reduce((a, b) => a + b, 0) / known.length));
        set(cells[2], show(this.spec.summary === "least" ? Math.min(...known) : Math.max(...known)));
      });
      set(this.moment, at === null ? "" : this.place(at));
    }

    place(at) { return this.spec.over === "time" ? clockTime(this.x[at]) : this.spec.over + " " + format.count(this.x[at]); }

    onCursor(idx) {
      const at = idx === undefined ? null : idx;
      if (at === this.at) return;
      this.at = at;
      this.showTable();
    }

    point(at) {
      if (!this.plot) return;
      if (at === null) return this.plot.setCursor({ left: -10, top: -10 });
      this.plot.setCursor({ left: this.plot.valToPos(this.x[at], "x"), top: 5 });
      document.getElementById("spoken").textContent = this.place(at) + ": " +
        this.lines.map(l => l.label + " " + (l.values[at] === null || l.values[at] === undefined ? "unknown" : this.spec.unit(l.values[at]))).join(", ");
    }

    onKey(e) {
      const last = this.x.length - 1, at = this.at === null ? last + 1 : this.at, far = Math.max(1, Math.round(last / 20));
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - far, PageDown: at + far, Home: 0, End: last }[e.key];
      if (e.key === "Escape") this.point(null);
      else if (to === undefined) return;
      else this.point(Math.min(last, Math.max(0, to)));
      e.preventDefault();
    }

    resize() {
      if (this.plot && this.box.clientWidth) this.plot.setSize({ width: this.box.clientWidth, height: this.box.clientHeight });
    }
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const chart of all) if (chart.plot) chart.build(chart.shape);
  });
  return Figure;
})();

// Curves over steps, as the pages of a run and of several have them. A page says what to draw:
//   charts: [{id, title, unit, series: () => [{label, color, data: [{x, y}], dash, marker, smooth}], format, log, zero, smooth, wide}]
//   steps: the largest x; logged: the steps that the arrow keys visit; resumes: steps at which a run was started again
let curvesOf = { charts: [], steps: 1, logged: [], resumes: [] };

function smoothed(data, weight) {
  let mean = NaN;
  return data.map((p) => {
    if (!known(p.y)) return p;
    mean = known(mean) ? weight * mean + (1 - weight) * p.y : p.y;
    return { x: p.x, y: mean };
  });
}

// Where a run was started again: a dotted line through every chart.
const marks = {
  id: "marks",
  afterDatasetsDraw(chart) {
    const { ctx, chartArea: area, scales } = chart;
    ctx.save();
    ctx.strokeStyle = colour("--dim");
    ctx.fillStyle = colour("--dim");
    ctx.font = "11px system-ui, sans-serif";
    ctx.setLineDash([2, 4]);
    let free = -Infinity;
    for (const step of curvesOf.resumes) {
      const x = scales.x.getPixelForValue(step);
      if (x < area.left || x > area.right) continue;
      ctx.beginPath();
      ctx.moveTo(x, area.top);
      ctx.lineTo(x, area.bottom);
      ctx.stroke();
      const room = area.right - x > 56;
      if (chart.canvas.id === "plot-loss" && x - free > 64) { ctx.textAlign = room ? "left" : "right"; ctx.fillText("resumed", x + (room ? 5 : -5), area.top + 11); free = x; }
    }
    ctx.restore();
  },
};

const drawn = new Map();
function draw(spec) {
  const weight = Number($("smooth").value), old = drawn.get(spec.id);
  if (old) old.destroy();
  const sets = spec.series().filter((s) => s.data.some((p) => known(p.y)));
  const datasets = [];
  for (const s of sets) {
    const base = { borderColor: colour(s.color), backgroundColor: colour(s.color), borderWidth: 2, borderDash: s.dash || [], pointRadius: 0, pointHoverRadius: 5,
      pointStyle: s.marker || (s.dash ? "line" : "circle"), spanGaps: false, tension: 0, clip: 8 };
    if (s.marker) base.pointRadius = s.data.length > 60 ? 2 : 4;
    if (s.data.length === 1) base.pointRadius = 4;
    if (s.smooth && weight > 0) {
      datasets.push({ ...base, label: s.label + ", smoothed", data: smoothed(s.data, weight), order: 1 });
      datasets.push({ ...base, label: s.label, data: s.data, borderColor: colour(s.color) + "55", borderWidth: 1.2, order: 2 });
    } else {
      datasets.push({ ...base, label: s.label, data: s.data });
    }
  }
  const ink = colour("--dim"), grid = colour("--grid");
  const chart = new Chart($("plot-" + spec.id), {
    type: "line",
    data: { datasets },
    plugins: [marks],
    options: {
      responsive: true, maintainAspectRatio: false, animation: false, parsing: false, normalized: true,
      interaction: { mode: "nearest", axis: "x", intersect: false },
      layout: { padding: { right: 6 } },
      scales: {
        x: { type: "linear", min: 0, max: Math.max(curvesOf.steps, 1), title: { display: true, text: "step", color: ink }, ticks: { color: ink, maxRotation: 0, autoSkipPadding: 24, includeBounds: false, callback: (v) => compact(v) }, grid: { color: grid, drawBorder: false } },
        y: { type: spec.log && $("log").checked ? "logarithmic" : "linear", beginAtZero: Boolean(spec.zero), grace: spec.zero ? "8%" : 0, ticks: { color: ink, maxTicksLimit: 7, callback: (v) => (spec.log ? digits(v, 3) : spec.format(v)) }, grid: { color: grid, drawBorder: false } },
      },
      plugins: {
        legend: { display: datasets.length > 1, position: "top", align: "end", labels: { color: colour("--ink"), usePointStyle: true, boxWidth: 9, boxHeight: 9, padding: 14 } },
        tooltip: { displayColors: true, usePointStyle: true, callbacks: { title: (items) => (items.length ? "step " + grouped(items[0].parsed.x) : ""), label: (i) => " " + i.dataset.label + ": " + spec.format(i.parsed.y) } },
        decimation: { enabled: true, algorithm: "lttb", samples: 800, threshold: 1600 },
      },
    },
  });
  drawn.set(spec.id, chart);
  return chart;
}

// Arrow keys move from logged step to logged step; what stands there is shown, and said in a line that screen readers read.
function keyboard(spec, canvas, reading) {
  let at = -1;
  const show = () => {
    const chart = drawn.get(spec.id), step = curvesOf.logged[at];
    const active = [], said = [];
    chart.data.datasets.forEach((set, datasetIndex) => {
      let index = -1, distance = Infinity;
      set.data.forEach((p, i) => { const d = Math.abs(p.x - step); if (known(p.y) && d < distance) { distance = d; index = i; } });
      if (index < 0 || (set.data.length > 2 && distance > 0)) return;
      active.push({ datasetIndex, index });
      said.push(set.label + " " + spec.format(set.data[index].y));
    });
    chart.setActiveElements(active);
    const x = chart.scales.x.getPixelForValue(step);
    chart.tooltip.setActiveElements(active, { x, y: chart.chartArea.top + 10 });
    chart.update("none");
    reading.textContent = "Step " + grouped(step) + ": " + said.join(", ");
  };
  canvas.addEventListener("keydown", (e) => {
    const n = curvesOf.logged.length, far = Math.max(1, Math.round(n / 20));
    const moves = { ArrowRight: 1, ArrowLeft: -1, PageUp: far, PageDown: -far };
    if (!n) return;
    if (e.key === "Home") at = 0;
    else if (e.key === "End") at = n - 1;
    else if (e.key in moves) at = at < 0 ? (moves[e.key] > 0 ? 0 : n - 1) : Math.min(n - 1, Math.max(0, at + moves[e.key]));
    else if (e.key === "Escape") { drawn.get(spec.id).setActiveElements([]); drawn.get(spec.id).tooltip.setActiveElements([], { x: 0, y: 0 }); drawn.get(spec.id).update("none"); reading.textContent = ""; return; }
    else return;
    e.preventDefault();
    show();
  });
}

// All logged values of a chart. Built when it is opened: it may be long.
function values(spec) {
  const details = el("details", {}, el("summary", {}, "Values as a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("table")) return;
    const sets = spec.series().filter((s) => s.data.some((p) => known(p.y)) && s.label !== "planned");
    const at = sets.map((s) => new Map(s.data.map((p) => [p.x, p.y])));
    const rows = curvesOf.logged.map((step) => [grouped(step), ...at.map((a) => (known(a.get(step)) ? spec.format(a.get(step)) : ""))]);
    details.append(table(spec.title, ["step", ...sets.map((s) => s.label)], rows, [0, ...sets.map((_, i) => i + 1)]));
  });
  return details;
}

function drawAll() { for (const spec of curvesOf.charts) if ($("plot-" + spec.id)) draw(spec); }

function curves() {
  if (!curvesOf.logged.length) { $("grid").append(el("p", { class: "card wide" }, "No step was logged yet.")); return; }
  for (const spec of curvesOf.charts) {
    const sets = spec.series().filter((s) => s.data.some((p) => known(p.y)));
    if (!sets.length) continue;
    const ends = sets.map((s) => { const good = s.data.filter((p) => known(p.y)); return s.label + " from " + spec.format(good[0].y) + " to " + spec.format(lastOf(good).y); });
    const canvas = el("canvas", { id: "plot-" + spec.id, tabindex: "0", role: "img", "aria-label": spec.title + " over " + plural(curvesOf.steps, "step") + ": " + ends.join("; ") + ". Arrow keys read single values." });
    const reading = el("p", { class: "reading", "aria-live": "polite" });
    $("grid").append(el("figure", { class: spec.wide ? "wide" : "" }, el("figcaption", {}, spec.title, spec.unit ? el("span", {}, spec.unit) : null), el("div", { class: "plot" }, canvas), reading, values(spec)));
    keyboard(spec, canvas, reading);
  }
  drawAll();
  $("log").addEventListener("change", () => draw(curvesOf.charts[0]));
  $("smooth").addEventListener("input", () => curvesOf.charts.filter((c) => c.smooth && drawn.has(c.id)).forEach(draw));
}

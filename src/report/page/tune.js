// A search: cli/tune_page.h says what its data are.
const found = data.search;
const GiB = 2 ** 30;
const percent = (x, n = 1) => fixed(100 * x, n) + " %";
const value = (point, key) => point.keys[key];

function head() {
  const best = found.best[0];
  $("eyebrow").textContent = found.declared ? "Lockstep search, from published rates" : "Lockstep search";
  $("title").textContent = data.name;
  document.title = data.name + " – Lockstep search";
  $("subtitle").textContent = plural(found.ranks, "rank") + " · " + found.cluster + " · " + plural(found.global_batch_size, "sequence") + " a step";
  $("status").textContent = best.layout;
  $("status").classList.add("good");
  tiles([
    ["Fastest step", seconds(best.step_time_s), seconds(best.band_s[0]) + " to " + seconds(best.band_s[1])],
    ["Tokens a second", compact(best.tokens_per_s), "MFU " + percent(best.mfu)],
    ["Memory of a rank", bytes(best.bytes), data.capacity > 0 ? "of " + bytes(data.capacity) : ""],
    ["Layouts", grouped(found.layouts), grouped(found.planned) + " planned in " + seconds(found.wall_s)],
    ["The recipe's own", found.own.plan ? seconds(found.own.plan.step_time_s) : "–", "place: " + found.own.place],
  ]);
}

// ---- filters ----
const shownOf = { "parallelism.tensor_parallel_degree": "tp", "parallelism.pipeline_parallel_degree": "pp", "parallelism.pipeline_parallel_schedule": "schedule", "partition.preset": "partition", "activation_checkpoint.mode": "recompute", "parallelism.enable_async_tensor_parallel": "asynchronous tp" };
const chosen = new Map();  // key -> value; absent: any

function filters() {
  const add = (label, id, options, change) => {
    const select = el("select", { id }, el("option", { value: "" }, "any"), ...options.map((o) => el("option", { value: o }, o)));
    select.addEventListener("change", () => { change(select.value); drawSearch(); });
    $("filters").append(el("label", { for: id }, label, select));
  };
  const set = (key) => (v) => (v === "" ? chosen.delete(key) : chosen.set(key, v));
  const size = (p) => p.microbatch;
  for (const [key, label] of Object.entries(shownOf)) {
    const options = [...new Set(data.points.map((p) => value(p, key)))].sort((a, b) => a.length - b.length || (a < b ? -1 : 1));
    if (options.length > 1) add(label, "filter-" + label.replace(" ", "-"), options, set(key));
  }
  const sizes = [...new Set(data.points.map(size))].sort((a, b) => a - b);
  if (sizes.length > 1) add("microbatch", "filter-microbatch", sizes, set("microbatch"));
  if (new Set(data.points.map((p) => p.fits)).size > 1) add("fits", "filter-fits", ["yes", "no"], set("fits"));
}
function passes(p) {
  for (const [key, v] of chosen) {
    const of = key === "microbatch" ? String(p.microbatch) : key === "fits" ? (p.fits ? "yes" : "no") : value(p, key);
    if (of !== v) return false;
  }
  return true;
}

// ---- the scatter ----
const lines = {
  id: "lines",
  afterDatasetsDraw(chart) {
    const { ctx, chartArea: area, scales } = chart, x = scales.x.getPixelForValue(data.capacity / GiB);
    if (!(data.capacity > 0) || x < area.left || x > area.right) return;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("--c2");
    ctx.setLineDash([6, 4]);
    ctx.beginPath();
    ctx.moveTo(x, area.top);
    ctx.lineTo(x, area.bottom);
    ctx.stroke();
    ctx.font = "11px system-ui, sans-serif";
    ctx.textAlign = x - area.left > 90 ? "right" : "left";
    ctx.fillText("a rank's memory", x + (x - area.left > 90 ? -5 : 5), area.top + 11);
    ctx.restore();
  },
};
let drawnSearch = null;
function drawSearch() {
  if (drawnSearch) drawnSearch.destroy();
  const shown = data.points.filter(passes), timed = shown.filter((p) => p.step_s > 0);
  const schedules = [...new Set(data.points.map((p) => value(p, "parallelism.pipeline_parallel_degree") === "1" ? "no pipeline" : value(p, "parallelism.pipeline_parallel_schedule")))].sort();
  const of = (p) => (value(p, "parallelism.pipeline_parallel_degree") === "1" ? "no pipeline" : value(p, "parallelism.pipeline_parallel_schedule"));
  const point = (p) => ({ x: p.bytes / GiB, y: p.step_s, point: p });
  const datasets = schedules.map((name, i) => ({ label: name, data: timed.filter((p) => of(p) === name).map(point), backgroundColor: colour("--bar" + ((i % 9) + 1)) + "c0", borderColor: colour("--bar" + ((i % 9) + 1)), pointRadius: 4, pointHoverRadius: 7, pointStyle: ["circle", "rect", "triangle", "rectRot", "star", "crossRot"][i % 6] }));
  const front = found.pareto.map((p) => ({ x: p.bytes / GiB, y: p.step_time_s }));
  datasets.push({ label: "no other beats these in both", type: "line", data: front, borderColor: colour("--ink"), backgroundColor: "transparent", borderWidth: 1.4, pointRadius: 0, stepped: "before", order: 9 });
  const axis = (title) => ({ type: "linear", title: { display: true, text: title, color: colour("--dim") }, ticks: { color: colour("--dim"), maxRotation: 0, autoSkipPadding: 20 }, grid: { color: colour("--grid"), drawBorder: false }, grace: "4%" });
  drawnSearch = new Chart($("plot-search"), {
    type: "scatter", data: { datasets: datasets.filter((s) => s.data.length) }, plugins: [lines],
    options: { responsive: true, maintainAspectRatio: false, animation: false, parsing: false, scales: { x: axis("GiB of the fullest rank"), y: axis("seconds a step") },
      onClick: (_, hit) => { const p = hit.map((h) => drawnSearch.data.datasets[h.datasetIndex].data[h.index].point).find(Boolean); if (p) choose(p); },
      plugins: { legend: { position: "top", align: "end", labels: { color: colour("--ink"), usePointStyle: true, boxWidth: 9, boxHeight: 9, padding: 12 } },
        tooltip: { callbacks: { label: (i) => (i.raw.point ? " " + i.raw.point.layout + ": " + seconds(i.raw.point.step_s) + ", " + bytes(i.raw.point.bytes) : "") } } } },
  });
  const untimed = shown.length - timed.length;
  $("shown").textContent = timed.length + " of " + data.points.length + " layouts" + (untimed ? "; " + untimed + " need more memory than a rank has and were not timed" : "");
  $("plot-search").setAttribute("aria-label", timed.length + " layouts by memory and step time; the fastest takes " + (timed.length ? seconds(Math.min(...timed.map((p) => p.step_s))) : "–"));
}

// What the table of the fastest also knows.
function ofTable(p) {
  const row = found.best.find((r) => r.layout === p.layout && r.bytes === p.bytes);
  return row ? [["MFU", percent(row.mfu)], ["Exposed communication", percent(row.exposed_communication_s / row.step_time_s)], ["Bubble", percent(row.bubble_fraction)]] : [];
}

function choose(p) {
  const sections = new Map();
  for (const [key, v] of Object.entries(p.keys)) {
    const dot = key.indexOf("."), name = key.slice(0, dot), bare = /^(-?[0-9.]+|true|false)$/.test(v);
    sections.set(name, [...(sections.get(name) || []), key.slice(dot + 1) + " = " + (bare ? v : JSON.stringify(v))]);
  }
  const text = [...sections].map(([name, keys]) => "[" + name + "]\n" + keys.join("\n")).join("\n\n");
  $("chosen").replaceChildren(card(p.layout, list([["Step", seconds(p.step_s)], ["Memory", bytes(p.bytes)], ...ofTable(p)]), toml(text, "Keys of the layout")));
}

function tablesBelow() {
  const heads = ["", "step", "band", "memory", "MFU", "exposed", "bubble", "layout", "against the first"];
  const row = (place, r) => [place, seconds(r.step_time_s), seconds(r.band_s[0]) + " to " + seconds(r.band_s[1]), bytes(r.bytes), percent(r.mfu), percent(r.exposed_communication_s / r.step_time_s), percent(r.bubble_fraction), el("code", {}, r.layout), r.why];
  const rows = found.best.map((r, i) => row(i + 1, r));
  if (found.own.plan) rows.push(row("own", found.own.plan));
  $("best").append(table("The fastest layouts", heads, rows, [0, 1, 2, 3, 4, 5, 6], true));
  $("front").append(table("Memory and time", ["memory", "step", "layout"], found.pareto.map((p) => [bytes(p.bytes), seconds(p.step_time_s), el("code", {}, p.layout)]), [0, 1], true));
  for (const w of found.what_if) $("front").append(el("p", { class: "note" }, "With " + w.with + ": " + seconds(w.step_time_s) + ", " + w.layout));
  if (found.devices.length) {
    $("devices-s").hidden = false;
    const cells = found.devices.map((d) => [grouped(d.devices), ...(d.fits ? [seconds(d.step_time_s), compact(d.tokens_per_s), known(d.days) ? digits(d.days, 3) : "", known(d.price) ? grouped(Math.round(d.price)) : "", el("code", {}, d.layout)] : ["", "", "", "", d.why_not])]);
    $("devices").append(table("Numbers of devices", ["devices", "step", "tokens a second", "days", "price", "layout"], cells, [0, 1, 2, 3, 4], true));
  }
  const cuts = [...found.not_planned.map((c) => [grouped(c.layouts) + " layouts", c.why, c.of]), ...found.excluded.map((e) => [plural(e.degrees, "pair") + " of degrees", e.why, ""])];
  $("cuts").append(cuts.length ? table("Not planned", ["how many", "why", "the nearest of them"], cuts, [], true) : el("p", { class: "card" }, "Every layout was planned."));
}

head();
filters();
redraws.push(drawSearch);
applyTheme();
tablesBelow();
$("recipe").append(toml(data.recipe, "Recipe"));
$("foot").textContent = "Made by lockstep tune. Charts: Chart.js " + Chart.version + ", MIT licence.";
document.documentElement.dataset.ready = "yes";

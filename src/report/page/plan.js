// A plan: cli/plan_page.h says what its data are.
const plan = data.plan;
const GiB = 2 ** 30;
const causeColours = ["--bar1", "--bar3", "--bar4", "--bar6", "--bar5", "--grid"];
const percent = (x, n = 1) => fixed(100 * x, n) + " %";

function head() {
  $("eyebrow").textContent = plan.declared ? "Lockstep plan, from published rates" : "Lockstep plan";
  $("title").textContent = data.name;
  document.title = data.name + " – Lockstep plan";
  $("subtitle").textContent = plural(plan.ranks, "rank") + " · " + plan.cluster;
  const pill = $("status");
  pill.textContent = plan.fits ? "Fits" : "Does not fit";
  if (plan.fits) pill.classList.add("good");
  tiles([
    ["Step", seconds(plan.step_time_s), known(plan.step_time_low_s) ? seconds(plan.step_time_low_s) + " to " + seconds(plan.step_time_high_s) : ""],
    ["Tokens a second", compact(plan.tokens_per_s), compact(plan.tokens_per_s / plan.ranks) + " a rank"],
    ["MFU", percent(plan.mfu), "HFU " + percent(plan.hfu)],
    ["Memory of a rank", bytes(plan.needed_bytes), data.memory.capacity > 0 ? "of " + bytes(data.memory.capacity) : ""],
    ["Exposed communication", percent(plan.exposed_communication_s / plan.step_time_s), "of the step; bubble " + percent(plan.bubble_fraction)],
    ["Hidden communication", seconds(plan.hidden_communication_s), "behind computation"],
  ]);
  $("facts").append(list(data.facts));
  const { played, all } = data.microbatches;
  $("remarks").textContent = played < all ? "The pictures show a step of " + played + " microbatches. The planned step has " + grouped(all) + ": those in between repeat." : "";
}

// ---- timeline ----
const units = data.timeline;
const canvas = $("timeline");
const whole = Math.max(1, Math.round(data.step_s / data.unit_s));
const view = { begin: 0, end: whole };
const lanes = [];  // {rank, thread, top, height, slices}
const kFields = 6;

function layLanes() {
  const ranks = units.ranks.length, height = Math.max(7, Math.min(24, 640 / ranks));
  let top = 0;
  for (const rank of units.ranks) {
    rank.threads.forEach((slices, thread) => {
      if (!slices.length) return;
      const h = thread === 0 ? height : Math.max(4, height / 2);
      lanes.push({ rank: rank.rank, thread, top, height: h, slices });
      top += h + 1;
    });
    top += Math.max(1, height / 8);
  }
  return top;
}
const lanesHeight = layLanes();
const left = 46, axis = 26;

function firstVisible(slices) {  // the first slice that ends after the view begins
  let low = 0, high = slices.length / kFields;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (slices[mid * kFields] + slices[mid * kFields + 1] < view.begin) low = mid + 1;
    else high = mid;
  }
  return low;
}

function drawTimeline() {
  const width = canvas.parentElement.clientWidth, height = lanesHeight + axis, scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const ctx = canvas.getContext("2d");
  ctx.setTransform(scale, 0, 0, scale, 0, 0);
  ctx.clearRect(0, 0, width, height);
  const perUnit = (width - left) / (view.end - view.begin), colours = causeColours.map(colour);
  const ink = colour("--dim"), onSlice = colour("--card");
  ctx.font = "11px system-ui, sans-serif";
  for (const lane of lanes) {
    let column = -1;  // the last one that is filled
    for (let i = firstVisible(lane.slices); i * kFields < lane.slices.length; ++i) {
      const at = i * kFields, begin = lane.slices[at];
      if (begin > view.end) break;
      const x = Math.max(left, left + (begin - view.begin) * perUnit);
      const end = Math.min(width, left + (begin + lane.slices[at + 1] - view.begin) * perUnit);
      if (Math.floor(end) <= column) continue;  // below a pixel
      ctx.fillStyle = colours[lane.slices[at + 2]];
      ctx.fillRect(x, lane.top, Math.max(0.7, end - x - (end - x > 4 ? 0.7 : 0)), lane.height);
      column = Math.floor(end);
      if (end - x > 22 && lane.height >= 11 && lane.thread === 0 && lane.slices[at + 2] < 3) {
        ctx.fillStyle = onSlice;
        ctx.textAlign = "center";
        ctx.fillText(lane.slices[at + 5], (x + end) / 2, lane.top + lane.height / 2 + 4);
      }
    }
  }
  ctx.fillStyle = ink;
  ctx.textAlign = "left";
  ctx.fillText("rank", 0, lanesHeight + 19);
  ctx.textAlign = "right";
  let free = -Infinity;
  for (const lane of lanes) {
    if (lane.thread > 0 || lane.top < free) continue;
    ctx.fillText(lane.rank, left - 8, lane.top + Math.min(lane.height, 12) / 2 + 4);
    free = lane.top + 13;
  }
  ticks(ctx, width, perUnit, ink);
  canvas.dataset.begin = view.begin * data.unit_s;
  canvas.dataset.end = view.end * data.unit_s;
  canvas.setAttribute("aria-label", "What each pipeline rank does between " + seconds(view.begin * data.unit_s) + " and " + seconds(view.end * data.unit_s) + " of the step");
}

function ticks(ctx, width, perUnit, ink) {
  const span = (view.end - view.begin) * data.unit_s, raw = span / Math.max(2, width / 130), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
  ctx.strokeStyle = colour("--line");
  ctx.textAlign = "center";
  for (let t = Math.ceil((view.begin * data.unit_s) / step) * step; t <= view.end * data.unit_s * (1 + 1e-9); t += step) {
    const x = left + (t / data.unit_s - view.begin) * perUnit;
    ctx.beginPath();
    ctx.moveTo(x, 0);
    ctx.lineTo(x, lanesHeight + 4);
    ctx.stroke();
    ctx.fillStyle = ink;
    const text = span < 0.01 ? digits(1e6 * t, 6) + " µs" : span < 10 ? digits(1e3 * t, 6) + " ms" : digits(t, 5) + " s";
    ctx.fillText(text, Math.min(Math.max(x, left + 20), width - 26), lanesHeight + 19);
  }
}

function setView(begin, end) {
  const span = Math.min(whole, Math.max(20, end - begin));
  view.begin = Math.min(Math.max(0, begin), whole - span);
  view.end = view.begin + span;
  drawTimeline();
}
function zoom(factor, share = 0.5) {
  const span = view.end - view.begin, at = view.begin + share * span;
  setView(at - share * span * factor, at + (1 - share) * span * factor);
}
const shareAt = (x) => Math.min(1, Math.max(0, (x - left) / (canvas.clientWidth - left)));

function sliceAt(x, y) {
  const lane = lanes.find((l) => y >= l.top && y <= l.top + l.height);
  if (!lane || x < left) return null;
  const t = view.begin + shareAt(x) * (view.end - view.begin), at = firstVisible(lane.slices);
  for (let i = at; i * kFields < lane.slices.length && lane.slices[i * kFields] <= t; ++i) {
    const f = lane.slices.slice(i * kFields, (i + 1) * kFields);
    if (t <= f[0] + f[1]) return { lane, begin: f[0], length: f[1], cause: units.causes[f[2]], name: units.names[f[3]], instance: f[4], microbatch: f[5] };
  }
  return null;
}

function interact() {
  const tip = $("tip");
  let dragged = null;
  canvas.addEventListener("wheel", (e) => {
    if (document.activeElement !== canvas && !e.ctrlKey) return;
    e.preventDefault();
    zoom(e.deltaY > 0 ? 1.25 : 0.8, shareAt(e.offsetX));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (e) => { dragged = { x: e.offsetX, begin: view.begin, end: view.end }; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointerup", () => { dragged = null; });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("pointermove", (e) => {
    if (dragged) {
      const moved = ((e.offsetX - dragged.x) / (canvas.clientWidth - left)) * (dragged.end - dragged.begin);
      setView(dragged.begin - moved, dragged.end - moved);
      return;
    }
    const s = sliceAt(e.offsetX, e.offsetY);
    tip.hidden = !s;
    if (!s) return;
    tip.replaceChildren(el("b", {}, s.cause), el("span", {}, s.name === s.cause ? "" : s.name),
      el("span", {}, "rank " + s.lane.rank + (s.lane.thread ? ", communicating thread" : "") + ", microbatch " + s.microbatch + ", block " + s.instance),
      el("span", {}, "at " + seconds(s.begin * data.unit_s) + ", for " + seconds(s.length * data.unit_s)));
    tip.style.left = Math.min(e.offsetX + 14, canvas.clientWidth - tip.offsetWidth - 4) + "px";
    tip.style.top = e.offsetY + 16 + "px";
  });
  canvas.addEventListener("keydown", (e) => {
    const span = view.end - view.begin;
    const does = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), "0": () => setView(0, whole), ArrowLeft: () => setView(view.begin - span / 8, view.end - span / 8), ArrowRight: () => setView(view.begin + span / 8, view.end + span / 8), Home: () => setView(0, span), End: () => setView(whole - span, whole) }[e.key];
    if (!does) return;
    e.preventDefault();
    does();
  });
  $("zoom-in").addEventListener("click", () => zoom(0.5));
  $("zoom-out").addEventListener("click", () => zoom(2));
  $("zoom-all").addEventListener("click", () => setView(0, whole));
  addEventListener("resize", drawTimeline);
}

function legend() {
  units.causes.forEach((cause, i) => {
    const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = "var(" + causeColours[i] + ")";
    $("legend").append(el("span", {}, swatch, cause));
  });
}

// ---- charts ----
const drawn = new Map();
function chart(id, config) {
  if (drawn.has(id)) drawn.get(id).destroy();
  drawn.set(id, new Chart($(id), config));
}
const decades = (c) => (/^1e/.test(c.tick.value.toExponential()) ? colour("--grid") : "transparent");
const scale = (title, more = {}) => ({ type: "linear", title: { display: true, text: title, color: colour("--dim") }, ticks: { color: colour("--dim"), maxRotation: 0, autoSkipPadding: 20 }, grid: { color: colour("--grid"), drawBorder: false }, ...more });
const names = { color: colour("--ink"), usePointStyle: true, boxWidth: 9, boxHeight: 9, padding: 12 };

function drawMemory() {
  const of = data.memory.ranks[Number($("memory-rank").value)], bin = data.step_s / data.memory.bins;
  const sums = of.bytes.map((b) => b.reduce((sum, x) => sum + x, 0)), peak = sums.indexOf(Math.max(...sums));
  const series = data.memory.kinds.map((kind, k) => ({ kind, k })).filter(({ k }) => of.bytes.some((b) => b[k] > 0));
  const datasets = series.map(({ kind, k }, i) => ({ label: kind, data: of.bytes.map((b, j) => ({ x: (j + 0.5) * bin, y: b[k] / GiB })), fill: true, stepped: "middle", borderWidth: 0, pointRadius: 0, backgroundColor: colour("--bar" + ((i % 9) + 1)), borderColor: colour("--bar" + ((i % 9) + 1)), stack: "memory" }));
  const limits = [["the rank's arena", of.total, "--ink"], data.memory.capacity > 0 && data.memory.capacity < 2 * of.total ? ["the device's memory", data.memory.capacity, "--c2"] : null].filter(Boolean);
  for (const [label, value, c] of limits) datasets.push({ label, data: [{ x: 0, y: value / GiB }, { x: data.step_s, y: value / GiB }], borderColor: colour(c), backgroundColor: "transparent", borderWidth: 1.6, borderDash: [6, 4], pointRadius: 0, stack: label });
  chart("plot-memory", {
    type: "line", data: { datasets },
    options: { responsive: true, maintainAspectRatio: false, animation: false, parsing: false, interaction: { mode: "nearest", axis: "x", intersect: false },
      scales: { x: scale("seconds", { min: 0, max: data.step_s }), y: scale("GiB", { stacked: true, beginAtZero: true }) },
      plugins: { legend: { position: "top", align: "end", labels: { ...names, color: colour("--ink"), usePointStyle: false } }, tooltip: { callbacks: { title: (items) => (items.length ? "at " + seconds(items[0].parsed.x) : ""), label: (i) => " " + i.dataset.label + ": " + digits(i.parsed.y, 4) + " GiB" } } } },
  });
  $("plot-memory").setAttribute("aria-label", "Memory of pipeline rank " + of.rank + " by kind over the step; at most " + bytes(sums[peak]));
  $("peak").textContent = "Fullest at " + seconds((peak + 0.5) * bin) + ": " + bytes(sums[peak]) + " (" + grouped(sums[peak]) + " bytes) in buffers. The arena has " + bytes(of.total) + " (" + grouped(of.total) + " bytes)." + (of.host > 0 ? " Copies of the states for checkpoints take " + bytes(of.host) + " of the host's memory." : "");
}

function drawRoofline() {
  const { flops_per_s: roof, bytes_per_s: rate, ops } = data.roofline;
  const computing = ops.filter((o) => o.flops > 0 && o.bytes > 0), most = Math.max(...computing.map((o) => o.time_s), 1e-30);
  const shown = computing.filter((o) => o.time_s > 1e-3 * most), ofKind = new Map();
  for (const o of shown) ofKind.set(o.kind, (ofKind.get(o.kind) || 0) + o.time_s);
  const ranked = [...ofKind.keys()].sort((a, b) => ofKind.get(b) - ofKind.get(a)), named = new Set(ranked.slice(0, 7)), others = "other ops";
  const kindOf = (o) => (named.has(o.kind) ? o.kind : others), kinds = [...named, ...(ranked.length > named.size ? [others] : [])];
  const radius = (o) => 3 + 15 * Math.sqrt(o.time_s / most);
  const datasets = kinds.map((kind, i) => ({ type: "scatter", label: kind, pointRadius: shown.filter((o) => kindOf(o) === kind).map(radius), pointHoverRadius: shown.filter((o) => kindOf(o) === kind).map((o) => radius(o) + 2), backgroundColor: colour("--bar" + ((i % 9) + 1)) + "b0", borderColor: colour("--bar" + ((i % 9) + 1)),
    data: shown.filter((o) => kindOf(o) === kind).map((o) => ({ x: o.flops / o.bytes, y: o.flops / o.time_s / 1e12, op: o })) }));
  const xs = shown.map((o) => o.flops / o.bytes), low = Math.min(...xs, 1) / 2, high = Math.max(...xs, (2 * roof) / rate) * 2, knee = roof / rate;
  datasets.push({ type: "line", label: "the device's rates", order: 9, borderColor: colour("--ink"), backgroundColor: "transparent", borderWidth: 1.6, pointRadius: 0, tension: 0,
    data: [{ x: low, y: (low * rate) / 1e12 }, { x: knee, y: roof / 1e12 }, { x: high, y: roof / 1e12 }] });
  chart("plot-roofline", {
    data: { datasets },
    options: { responsive: true, maintainAspectRatio: false, animation: false, parsing: false,
      scales: { x: scale("FLOPs a byte", { type: "logarithmic", min: low, max: high, grid: { color: decades, drawBorder: false }, ticks: { color: colour("--dim"), maxRotation: 0, autoSkip: false, callback: (v) => (/^1e/.test(v.toExponential()) ? digits(v, 2) : "") } }),
        y: scale("TFLOP/s", { type: "logarithmic", grid: { color: decades, drawBorder: false }, ticks: { color: colour("--dim"), autoSkip: false, callback: (v) => (/^1e/.test(v.toExponential()) ? digits(v, 2) : "") } }) },
      plugins: { legend: { position: "top", align: "end", labels: { ...names, color: colour("--ink") } }, tooltip: { callbacks: { label: (i) => (i.raw.op ? " " + i.raw.op.name + ": " + digits(i.parsed.y, 3) + " TFLOP/s, " + seconds(i.raw.op.time_s) + " in " + digits(i.raw.op.count, 4) + " calls" : "") } } } },
  });
  $("plot-roofline").setAttribute("aria-label", shown.length + " ops under the rates of the device; the table below has their numbers");
}

function stack(parts) {  // [name, value, text]
  const total = parts.reduce((sum, [, v]) => sum + Math.max(0, v), 0), bar = el("div", { class: "stack", "aria-hidden": "true" });
  const rows = parts.map(([name, v], i) => {
    const part = el("span"), swatch = el("span", { class: "swatch", "aria-hidden": "true" });
    part.style.width = (100 * Math.max(0, v)) / total + "%";
    part.style.background = swatch.style.background = "var(--bar" + ((i % 9) + 1) + ")";
    bar.append(part);
    return [el("span", {}, swatch, name), seconds(v), percent(v / total)];
  });
  return [bar, rows];
}

function where() {
  const [bar, rows] = stack(Object.entries(data.causes).filter(([, v]) => v !== 0));
  $("where").append(card("Seconds of the step by cause", bar, table("Seconds by cause", ["cause", "time", "share"], rows, [1, 2], true)));
  const spent = [...data.communication].sort((a, b) => b.exposed_s + b.hidden_s - a.exposed_s - a.hidden_s);
  const lines = spent.map((c) => [el("code", {}, c.op), c.over, seconds(c.exposed_s), seconds(c.hidden_s), seconds(c.waiting_s), bytes(c.bytes)]);
  $("where").append(card("Communication", lines.length ? table("Communication", ["op", "over", "exposed", "hidden", "waiting", "bytes"], lines, [2, 3, 4, 5], true) : el("p", {}, "There is none."),
    el("p", { class: "note" }, "Of a rank and step: exposed on the computing thread; hidden on the communicating one; waiting for members that come later.")));
}

function tablesBelow() {
  $("roofline-table").addEventListener("toggle", () => {
    if (!$("roofline-table").open || $("roofline-table").querySelector("table")) return;
    const rows = [...data.roofline.ops].sort((a, b) => b.time_s - a.time_s).map((o) => [el("code", {}, o.name), digits(o.count, 4), seconds(o.time_s), percent(o.time_s / plan.step_time_s), digits(o.flops / o.time_s / 1e12, 4), digits(o.bytes / o.time_s / 1e9, 4)]);
    $("roofline-table").append(table("Ops", ["op", "calls", "time", "of the step", "TFLOP/s", "GB/s"], rows, [1, 2, 3, 4, 5]));
  });
  const stages = plan.stages.map((s, k) => {
    const of = plan.stack_bytes[k];
    return [grouped(k), grouped(s.layers), bytes(s.bytes.total), ...(of ? [bytes(of.allocated), bytes(of.reserved)] : []), seconds(s.waiting_s), compact(s.flops_executed)];
  });
  const of = plan.stack_bytes.length ? ["allocated by the software", "reserved"] : [];
  const heads = ["rank", "layers", "Lockstep's arena", ...of, "waiting", "FLOPs of a step"];
  $("ranks").append(table("Pipeline ranks", heads, stages, heads.map((_, i) => i), stages.length <= 24));
}

head();
legend();
data.memory.ranks.forEach((r, i) => $("memory-rank").append(el("option", { value: i }, r.rank)));
$("memory-rank").value = data.memory.ranks.reduce((best, r, i) => (r.total > data.memory.ranks[best].total ? i : best), 0);
$("memory-rank").addEventListener("change", drawMemory);
redraws.push(drawTimeline, drawMemory, drawRoofline);
applyTheme();
interact();
where();
tablesBelow();
$("recipe").append(toml(data.recipe, "Recipe"));
$("foot").textContent = "Made by lockstep plan. Charts: Chart.js " + Chart.version + ", MIT licence.";
document.documentElement.dataset.ready = "yes";

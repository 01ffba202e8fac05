// A training run: report/page.h says what its data are.
const run = data;
// ---- what the run says ----
const starts = run.events.filter((e) => e.event === "start");
const last = starts[starts.length - 1] || {};
const ends = run.events.filter((e) => e.event === "end");
const m = run.metrics;
const lastStart = run.events.lastIndexOf(last);
const end = run.events.slice(lastStart + 1).find((e) => e.event === "end");
const heldout = m.step.map((s, i) => ({ x: s, y: m.heldout[i] })).filter((p) => known(p.y));
const best = heldout.reduce((b, p) => (!b || p.y < b.y ? p : b), null);
const steps = lastOf(m.step) || last.step || 0;

// ---- head ----
function head() {
  const named = last.description && last.description !== "default job" ? last.description : run.folder;
  $("title").textContent = named;
  document.title = named + " – Lockstep";
  const model = last.model || {}, job = last.job || {};
  $("subtitle").textContent = [
    model.name ? model.name + (model.flavor ? " " + model.flavor : "") : "",
    known(model.parameters) ? compact(model.parameters) + " parameters" : "",
    known(job.ranks) ? plural(job.ranks, "rank") : "",
    named === run.folder ? "" : run.folder,
  ].filter(Boolean).join(" · ");
  const words = { done: "Finished", signal: "Stopped by a signal", time: "Stopped at its time limit", non_finite: "Stopped: not finite", failed: "Failed" };
  const pill = $("status");
  const refused = !starts.length && run.events.some((e) => e.event === "refused");
  pill.textContent = end ? words[end.reason] || end.reason : refused ? "Refused" : "No end recorded";
  if (end && end.reason === "done") pill.classList.add("good");
  if (!end && !refused) pill.title = "The run is still going, or was killed";

  const n = m.step.length;
  const tokens = lastOf(m.tokens);
  const rate = end && end.summary && end.summary.tokens_per_s > 0 ? end.summary.tokens_per_s : lastOf(m.tokens_per_s);
  const time = m.step_time.reduce((sum, t, i) => (known(t) ? sum + t * (m.step[i] - (i ? m.step[i - 1] : 0)) : sum), 0);
  tiles([
    ["Training loss", n ? fixed(lastOf(m.loss), 4) : "–", n ? "at step " + grouped(steps) : ""],
    best ? ["Best held-out loss", fixed(best.y, 4), "step " + grouped(best.x) + ", perplexity " + digits(Math.exp(best.y), 4)] : null,
    ["Steps", grouped(steps), last.steps >= steps ? "of " + grouped(last.steps) : ""],
    ["Tokens seen", compact(tokens), ""],
    ["Tokens a second", compact(rate), known(lastOf(m.mfu)) ? "MFU " + fixed(lastOf(m.mfu), 1) + " %" : ""],
    ["Time in steps", time > 0 ? seconds(time) : "–", starts.length > 1 ? plural(starts.length, "start") : ""],
  ]);
}

// ---- charts ----
const points = (values) => m.step.map((s, i) => ({ x: s, y: known(values[i]) ? values[i] : NaN }));
const level = (y) => (known(y) && m.step.length ? [{ x: m.step[0], y }, { x: steps, y }] : []);
const GiB = 2 ** 30;
const plan = last.plan || {};
const ranksHere = (last.job || {}).processes > 1 ? last.job.ranks / last.job.processes : (last.job || {}).ranks || 1;

const charts = [
  { id: "loss", title: "Loss", unit: "nats a token", wide: true, smooth: true, log: true, format: (y) => fixed(y, 4), series: () => [
    { label: "training", color: "--c1", data: points(m.loss), smooth: true },
    { label: "held-out", color: "--c2", data: heldout, marker: "rectRot" },
    ...Object.entries(m.heldout_of || {}).map(([name, losses], i) => ({ label: "held-out, " + name, color: ["--c3", "--c4", "--bar2", "--bar8"][i % 4],
      data: losses.map(([x, y]) => ({ x, y })), marker: ["triangle", "rect", "star", "cross"][i % 4], dash: i < 4 ? [] : [4, 3] }))] },
  { id: "rate", title: "Tokens a second", unit: "of the whole job", zero: true, format: compact, series: () => [
    { label: "measured", color: "--c1", data: points(m.tokens_per_s) },
    { label: "planned", color: "--c2", data: level(plan.step_time_s > 0 ? last.job.tokens_per_step / plan.step_time_s : undefined), dash: [7, 5] }] },
  { id: "norm", title: "Gradient norm", unit: "before clipping", smooth: true, format: small, series: () => [{ label: "gradient norm", color: "--c3", data: points(m.grad_norm), smooth: true }] },
  { id: "lr", title: "Learning rate", unit: "", zero: true, format: small, series: () => [{ label: "learning rate", color: "--c4", data: points(m.lr) }] },
  { id: "memory", title: "Memory", unit: last.job && last.job.processes > 1 ? "GiB, of the first process" : "GiB, of all ranks", zero: true, format: (y) => digits(y, 4), series: () => [
    { label: "resident", color: "--c1", data: points(m.resident) },
    { label: "planned", color: "--c2", data: level(known(plan.bytes_of_a_rank) ? (ranksHere === (last.job || {}).ranks ? plan.bytes_of_all_ranks : ranksHere * plan.bytes_of_a_rank) / GiB : undefined), dash: [7, 5] }] },
];

curvesOf = { charts, steps, logged: m.step, resumes: starts.slice(1).map((s) => s.step) };

// ---- tables ----
function planned() {
  const s = (end && end.summary) || {};
  const difference = (p, x) => (known(p) && known(x) && p !== 0 ? (x >= p ? "+" : "−") + fixed(100 * Math.abs(x / p - 1), 1) + " %" : "");
  const rows = [];
  const row = (name, p, x, f) => { if (known(p) || known(x)) rows.push([name, f(p), f(x), difference(p, x)]); };
  const measured = s.step_time_s > 0 ? s.step_time_s : undefined;
  row("Step time", plan.step_time_s, measured, seconds);
  row("Tokens a second", plan.step_time_s > 0 ? last.job.tokens_per_step / plan.step_time_s : undefined, s.tokens_per_s > 0 ? s.tokens_per_s : undefined, compact);
  row("Memory of all ranks", plan.bytes_of_all_ranks, s.peak_bytes_resident > 0 ? s.peak_bytes_resident : undefined, bytes);
  const first = card("Figures", rows.length ? table("Planned beside measured", ["", "planned", "measured", "difference"], rows, [1, 2, 3], true) : el("p", {}, "Nothing was planned."),
    !known(plan.step_time_s) ? el("p", { class: "note" }, "A step time is planned where train knows this machine: run lockstep bench once, then train --cluster FILE.") : el("p", { class: "note" }, "Planned for " + plan.cluster + "; measured is the median step."));
  $("plan").append(first);
  const kinds = Object.entries(plan.bytes_by_kind || {}).filter(([, b]) => b > 0);
  if (kinds.length) {
    const total = kinds.reduce((sum, [, b]) => sum + b, 0);
    const stack = el("div", { class: "stack", "aria-hidden": "true" });
    const rows2 = kinds.map(([name, b], i) => {
      const part = el("span"), swatch = el("span", { class: "swatch", "aria-hidden": "true" });
      part.style.width = (100 * b) / total + "%";
      part.style.background = swatch.style.background = "var(--bar" + ((i % 9) + 1) + ")";
      stack.append(part);
      return [el("span", {}, swatch, name), bytes(b), fixed((100 * b) / total, 1) + " %"];
    });
    $("plan").append(card("Planned memory of the fullest rank: " + bytes(total), stack, table("Planned memory by kind", ["kind", "bytes", "share"], rows2, [1, 2], true)));
  }
}

function float8() {
  const shares = run.float8;
  if (!shares) return;
  $("float8-all").hidden = false;
  const share = (x) => digits(100 * x, 3) + " %";
  const size = (x) => (known(x) ? digits(x, 4) : "–");
  const rows = shares.operands.map((o) => [el("code", {}, o.layer), o.operand, size(o.amax_least), size(o.amax_median), size(o.amax_largest), share(o.flushed), share(o.clipped)]);
  $("float8").append(el("p", { class: "note" }, "Counted in " + plural(shares.steps, "step") + ". Flushed: elements that are no zeros and become zero. Clipped: elements beyond the largest code."),
    table("What float8 loses", ["layer", "operand", "least amax", "median", "largest", "flushed", "clipped"], rows, [2, 3, 4, 5, 6], rows.length <= 25));
  if (shares.filter_fqns.length) {
    $("float8").append(el("p", { class: "note" }, "Layers of which an operand loses more than 5 % stay as they are with"),
      el("pre", { tabindex: "0", role: "region", "aria-label": "Keys of the recipe" }, "[" + shares.table + "]\nfilter_fqns = " + JSON.stringify(shares.filter_fqns)));
  }
}

function setup() {
  const job = last.job || {}, machine = last.machine || {}, build = last.build || {}, model = last.model || {};
  const mesh = Object.entries(job.mesh || {}).filter(([, n]) => n > 1).map(([a, n]) => a + " " + n).join(" × ");
  $("setup").append(
    card("Job", list([
      ["Model", [model.name, model.flavor].filter(Boolean).join(" ")], ["Parameters", grouped(model.parameters)],
      ["Ranks", known(job.ranks) ? grouped(job.ranks) + (mesh ? " (" + mesh + ")" : "") : ""], ["Threads", known(job.threads_per_rank) ? plural(job.threads_per_rank, "thread") + " a rank" : ""],
      ["Processes", known(job.processes) ? plural(job.processes, "process") + " on " + plural(job.hosts, "host") : ""],
      ["Batch", known(job.global_batch_size) ? plural(job.global_batch_size, "sequence") + " of " + grouped(job.seq_len) + " tokens in " + (job.microbatches === 1 ? "1 microbatch" : grouped(job.microbatches) + " microbatches") : ""],
      ["Types", last.types || ""], ["Recompute", last.recompute || ""]])),
    card("Machine", list([
      ["Host", machine.host], ["Processor", machine.processor], ["Cores", known(machine.cores) ? grouped(machine.cores) : ""], ["Memory", known(machine.memory_bytes) ? bytes(machine.memory_bytes) : ""],
      ["GPU", machine.gpu ? "seen (" + machine.gpu + "), not used by this build" : ""], ["System", machine.system], ["Peak for MFU", plan.peak || ""],
      ["Lockstep", [build.version, build.commit].filter(Boolean).join(", ")], ["Compiler", build.compiler]])));
}

// "section.key" -> value of a recipe as a run writes it: one key a line.
function keys(toml) {
  const out = new Map();
  let section = "";
  for (const line of (toml || "").split("\n")) {
    const head = line.match(/^\[([^\]]+)\]$/), key = line.match(/^([A-Za-z0-9_.-]+) = (.*)$/);
    if (head) section = head[1];
    else if (key) out.set(section + "." + key[1], key[2]);
  }
  return out;
}

function recipe() {
  const rows = [];
  for (let i = 1; i < starts.length; ++i) {
    const before = keys(starts[i - 1].recipe), after = keys(starts[i].recipe);
    for (const key of new Set([...before.keys(), ...after.keys()])) {
      if (before.get(key) === after.get(key)) continue;
      rows.push([grouped(starts[i].step), el("code", {}, key), before.has(key) ? el("code", { class: "was" }, before.get(key)) : "default", after.has(key) ? el("code", {}, after.get(key)) : "default"]);
    }
  }
  if (starts.length > 1) {
    $("recipe").append(rows.length ? el("div", { class: "card" }, el("h3", {}, "What changed between starts"), table("Changes of the recipe", ["from step", "key", "before", "after"], rows, [0]))
      : el("p", { class: "note" }, "The run was started " + starts.length + " times, each time with the same recipe."));
  }
  const text = last.recipe || run.recipe || "";
  $("recipe").append(text ? el("details", { open: "" }, el("summary", {}, "The recipe as it ran last: every key that was set"), el("pre", { tabindex: "0", role: "region", "aria-label": "Recipe" }, text.trim()))
    : el("p", { class: "note" }, "No recipe is recorded."));
}

function samples() {
  if (!run.samples.length) {
    $("samples").append(el("p", { class: "card" }, "This run has none yet. ", el("code", {}, "lockstep sample " + run.folder + " --prompt TEXT --keep"), " generates some from its latest checkpoint and keeps them for this page."));
    return;
  }
  const box = el("div", { class: "samples" });
  for (const s of run.samples.slice(-12).reverse()) {
    const facts = [known(s.step) ? "step " + grouped(s.step) : "", known(s.temperature) ? "temperature " + s.temperature : "", known(s.top_p) && s.top_p < 1 ? "top-p " + s.top_p : "", s.top_k > 0 ? "top-k " + s.top_k : ""].filter(Boolean).join(", ");
    box.append(el("div", { class: "card" }, el("p", { class: "note" }, facts), el("p", { class: "sample" }, el("b", {}, s.prompt || ""), s.text || "")));
  }
  $("samples").append(box);
}

function checkpoints() {
  if (!run.checkpoints.length) { $("checkpoints").append(el("p", { class: "card" }, "None are there.")); return; }
  const rows = run.checkpoints.map((c) => [grouped(c.step), el("code", {}, c.folder), bytes(c.bytes), c.has_optimizer ? "whole" : "model only"]);
  $("checkpoints").append(table("Checkpoints", ["step", "folder", "size", "what"], rows, [0, 2], true));
}

function events() {
  const text = {
    start: (e) => (e.resumed_from ? "Resumed from " + e.resumed_from : e.step > 0 ? "Started at step " + grouped(e.step) : "Started"),
    checkpoint: (e) => "Checkpoint " + e.folder,
    not_counted: (e) => "The step did not count: loss " + e.loss + ", gradient norm " + e.grad_norm,
    refused: (e) => "Refused, so nothing was trained: " + e.text,
    end: (e) => (e.reason === "done" ? "Finished" : e.reason === "failed" ? "Failed: " + e.text : e.text.charAt(0).toUpperCase() + e.text.slice(1)),
  };
  const rows = run.events.map((e) => [clock(e.time), grouped(e.step), (text[e.event] || ((x) => x.event))(e)]);
  $("events").append(rows.length ? table("Events", ["time", "step", "what happened"], rows, [1], rows.length <= 25) : el("p", { class: "card" }, "None are recorded."));
}

$("eyebrow").textContent = "Lockstep training run";
redraws.push(drawAll);
head();
curves();
applyTheme();
planned();
float8();
setup();
recipe();
samples();
checkpoints();
events();
$("foot").textContent = "Made by lockstep report at " + clock(run.made) + (run.every > 1 ? "; the curves have every " + run.every + "th logged step" : "") + ". Curves: Chart.js " + Chart.version + ", MIT licence.";
document.documentElement.dataset.ready = "yes";

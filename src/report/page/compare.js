// Several training runs next to each other: report/compare.h says what the data are.
const runs = data.runs;
const GiB = 2 ** 30;
// A run has one colour in all charts, and past the fourth also dashes.
const look = (i) => ({ color: ["--c1", "--c2", "--c3", "--c4"][i % 4], dash: [[], [7, 4], [2, 3]][Math.floor(i / 4) % 3] });
const points = (run, name) => run.metrics.step.map((s, i) => ({ x: s, y: known(run.metrics[name][i]) ? run.metrics[name][i] : NaN }));
const of = (name, more = {}) => runs.map((run, i) => ({ label: run.folder, ...look(i), data: points(run, name), ...more }));

function heldout() {
  return runs.map((run, i) => ({ label: run.folder, ...look(i), marker: "rectRot", data: points(run, "heldout").filter((p) => known(p.y)) }));
}

const charts = [
  { id: "loss", title: "Training loss", unit: "nats a token", wide: true, smooth: true, log: true, format: (y) => fixed(y, 4), series: () => of("loss", { smooth: true }) },
  { id: "heldout", title: "Held-out loss", unit: "nats a token", format: (y) => fixed(y, 4), series: heldout },
  { id: "rate", title: "Tokens a second", unit: "of the whole job", zero: true, format: compact, series: () => of("tokens_per_s") },
  { id: "norm", title: "Gradient norm", unit: "before clipping", smooth: true, format: small, series: () => of("grad_norm", { smooth: true }) },
  { id: "lr", title: "Learning rate", unit: "", zero: true, format: small, series: () => of("lr") },
  { id: "mfu", title: "MFU", unit: "%", zero: true, format: (y) => fixed(y, 1), series: () => of("mfu") },
  { id: "memory", title: "Memory", unit: "GiB, of the first process", zero: true, format: (y) => digits(y, 4), series: () => of("resident") },
];
const logged = [...new Set(runs.flatMap((run) => run.metrics.step))].sort((a, b) => a - b);
curvesOf = { charts, steps: logged.length ? lastOf(logged) : 1, logged, resumes: [] };

function head() {
  $("eyebrow").textContent = "Lockstep training runs";
  $("title").textContent = plural(runs.length, "run");
  document.title = runs.map((run) => run.folder).join(", ") + " – Lockstep";
  $("subtitle").textContent = runs.map((run) => run.folder).join(" · ");
  $("status").hidden = true;
}

function summary() {
  const words = { done: "finished", signal: "stopped by a signal", time: "stopped at its time limit", non_finite: "stopped: not finite" };
  const rows = runs.map((run, i) => {
    const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = "var(" + look(i).color + ")";
    const memory = known(run.bytes_resident) ? run.bytes_resident : run.bytes_resident_first_process;
    return [el("span", {}, swatch, run.folder), words[run.status] || run.status || "–", grouped(run.steps) + (known(run.of_steps) && run.of_steps >= run.steps ? " of " + grouped(run.of_steps) : ""), fixed(run.final_loss, 4),
      known(run.best_heldout_loss) ? fixed(run.best_heldout_loss, 4) : "–", compact(run.tokens_seen), compact(run.tokens_per_s), known(run.mfu_percent) ? fixed(run.mfu_percent, 1) + " %" : "–", bytes(memory)];
  });
  $("runs").append(table("Runs", ["run", "status", "steps", "last loss", "best held-out", "tokens", "tokens a second", "MFU", "memory"], rows, [2, 3, 4, 5, 6, 7, 8], true));
}

function recipes() {
  for (const folder of data.unread) $("recipe").append(el("p", { class: "note" }, "The recipe of " + folder + " cannot be read, so its keys are not compared."));
  const rows = data.keys.map((k) => [el("code", {}, k.key), ...k.values.map((v) => (v === null ? "–" : el("code", {}, v)))]);
  $("recipe").append(rows.length ? table("Keys that differ", ["key", ...runs.map((run) => run.folder)], rows, [], true) : el("p", { class: "card" }, "The recipes do not differ."));
}

redraws.push(drawAll);
head();
summary();
curves();
applyTheme();
recipes();
$("foot").textContent = "Made by lockstep report at " + clock(data.made) + (runs.some((run) => run.every > 1) ? "; the curves of long runs have every n-th logged step" : "") + ". Curves: Chart.js " + Chart.version + ", MIT licence.";
document.documentElement.dataset.ready = "yes";

"use strict";
// What all pages share: elements, numbers, tables, tiles, colours. Text is only ever set as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...children.filter((c) => c !== null && c !== undefined).map((c) => (c instanceof Node ? c : String(c))));
  return e;
}

// ---- numbers ----
const known = (x) => typeof x === "number" && isFinite(x);
const digits = (x, n) => (known(x) ? Number(x.toPrecision(n)).toLocaleString("en-US", { maximumSignificantDigits: n }) : "–");
const fixed = (x, n) => (known(x) ? x.toFixed(n) : "–");
const grouped = (x) => (known(x) ? x.toLocaleString("en-US") : "–");
const small = (x) => (known(x) ? (x !== 0 && Math.abs(x) < 1e-3 ? x.toExponential(2) : digits(x, 4)) : "–");
function compact(x) {
  if (!known(x)) return "–";
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (Math.abs(x) >= unit) return digits(x / (unit === 1e4 ? 1e3 : unit), 3) + name;
  return digits(x, 4);
}
function bytes(x) {
  if (!known(x)) return "–";
  for (const [unit, name] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (Math.abs(x) >= unit) return digits(x / unit, 4) + " " + name;
  return x + " B";
}
function seconds(x) {
  if (!known(x)) return "–";
  if (x < 1) return digits(1000 * x, 3) + " ms";
  if (x < 60) return digits(x, 3) + " s";
  if (x < 3600) return Math.floor(x / 60) + " min " + Math.round(x % 60) + " s";
  return Math.floor(x / 3600) + " h " + Math.round((x % 3600) / 60) + " min";
}
const clock = (iso) => (iso ? iso.replace("T", " ").replace("Z", " UTC") : "");
const plural = (n, noun) => grouped(n) + " " + noun + (n === 1 ? "" : noun.endsWith("s") || noun.endsWith("ch") ? "es" : "s");

const lastOf = (list) => (list.length ? list[list.length - 1] : undefined);

// ---- parts of a page ----
function table(caption, heads, rows, numeric = [], tall = false) {
  const head = el("tr", {}, ...heads.map((h, i) => el("th", { scope: "col", class: numeric.includes(i) ? "num" : "" }, h)));
  const body = rows.map((r) => el("tr", {}, ...r.map((c, i) => el("td", { class: numeric.includes(i) ? "num" : "" }, c))));
  return el("div", { class: tall ? "scroll tall" : "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { hidden: "" }, caption), el("thead", {}, head), el("tbody", {}, ...body)));
}
function list(pairs) {
  const dl = el("dl");
  for (const [name, value] of pairs) if (value !== "" && value !== null && value !== undefined) dl.append(el("dt", {}, name), el("dd", {}, value));
  return dl;
}
const card = (title, ...content) => el("div", { class: "card" }, el("h3", {}, title), ...content);

function tiles(of) {
  for (const tile of of.filter(Boolean))
    $("tiles").append(el("li", {}, el("span", { class: "label" }, tile[0]), el("span", { class: "value" }, tile[1]), el("span", { class: "more" }, tile[2])));
}
// The recipe as TOML, with a button that copies it.
function toml(text, label) {
  const copy = el("button", { type: "button" }, "Copy");
  copy.addEventListener("click", () => navigator.clipboard.writeText(text).then(() => { copy.textContent = "Copied"; }, () => { copy.textContent = "Select and copy"; }));
  return el("div", { class: "copied" }, copy, el("pre", { tabindex: "0", role: "region", "aria-label": label }, text.trim()));
}

// ---- colours of the page ----
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const redraws = [];  // called when the colours change
const themes = ["auto", "light", "dark"];
let theme = new URLSearchParams(location.search).get("theme") || "auto";
if (!themes.includes(theme)) theme = "auto";
const dark = matchMedia("(prefers-color-scheme: dark)");
function applyTheme() {
  document.documentElement.dataset.theme = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
  $("theme").textContent = { auto: "Colours: system", light: "Colours: light", dark: "Colours: dark" }[theme];
  for (const draw of redraws) draw();
}
$("theme").addEventListener("click", () => { theme = themes[(themes.indexOf(theme) + 1) % 3]; applyTheme(); });
dark.addEventListener("change", applyTheme);

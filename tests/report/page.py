"""The pages of `lockstep report`, `plan` and `tune --html` in a headless Chromium: that they draw, reads well at 1280 and 390 pixels in light and dark, works
by keyboard alone, and asks nothing of a network. Screenshots are left under build/report for a person to look at.

Arguments: the lockstep binary."""
import json
import os
import re
import subprocess
import sys
import time

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import small_run

CONTRAST = """
const rgb = (c) => c.match(/[0-9.]+/g).map(Number);
const light = (c) => { const [r, g, b] = rgb(c).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (rgb(c).length === 3 || rgb(c)[3] > 0) return c; } return "rgb(255, 255, 255)"; };
const out = [];
for (const e of document.querySelectorAll("h1,h2,h3,p,td,th,dt,dd,summary,button,.label,.value,.more,.pill,figcaption,label,pre")) {
  if (!e.textContent.trim() || !e.offsetParent) continue;
  const a = light(getComputedStyle(e).color), b = light(behind(e)), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) out.push(e.tagName + " " + e.className + " " + e.textContent.slice(0, 30) + " " + ratio.toFixed(2));
}
return out;
"""

failures = []


def check(holds, what):
    if not holds:
        failures.append(what)
        print("FAILS:", what)


def make_run(lockstep, folder):
    """A run in three parts: another learning rate from step 20, and a page of it."""
    run = small_run.prepare(lockstep, folder)
    run("train", "r.toml", "--training.steps", "20")
    run("train", "r.toml", "--optimizer.lr", "5e-3")
    run("sample", "run", "--prompt", "the quick", "--max-tokens", "20", "--seed", "1", "--keep")
    run("report", "run", "--html", "page.html")
    return f"{folder}/page.html"


def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     "--disable-background-networking", "--disable-component-update", "--no-first-run", "--window-size=1280,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(os.environ.get("CHROMEDRIVER", "/usr/bin/chromedriver")))


def size(d, width, height):
    d.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                      {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})


def drawn_pixels(d, chart):
    """Pixels of a canvas that are not empty."""
    return d.execute_script("""const c = document.getElementById(arguments[0]), p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        let n = 0; for (let i = 3; i < p.length; i += 4) n += p[i] > 0; return n;""", chart)


def looks(d, page, pictures, charts, prefix=""):
    for name, width in (("wide", 1280), ("phone", 390)):
        for theme in ("light", "dark"):
            size(d, width, 900)
            d.get(f"file://{page}?theme={theme}")
            of = f"{prefix}{name}, {theme}"
            check(d.execute_script("return document.documentElement.dataset.ready") == "yes", f"{of}: the script ends")
            check(d.execute_script("return document.documentElement.scrollWidth") <= width, f"{of}: nothing is wider than the page")
            low = d.execute_script(CONTRAST)
            check(not low, f"{of}: text has a contrast of 4.5: {low}")
            for chart in charts:
                check(drawn_pixels(d, chart) > 1000, f"{of}: the chart {chart} is drawn")
            size(d, width, d.execute_script("return document.documentElement.scrollHeight"))
            d.save_screenshot(f"{pictures}/{prefix}{name}-{theme}.png")
    errors = [e for e in d.get_log("browser") if e["level"] == "SEVERE"]
    check(not errors, f"no script fails: {errors}")


def says(d, folder):
    """What the page says is what the run's files say."""
    with open(f"{folder}/run/metrics.jsonl") as f:
        metrics = [json.loads(line) for line in f]
    text = d.find_element(By.TAG_NAME, "body").text
    best = min(m["validation_metrics/loss"] for m in metrics if "validation_metrics/loss" in m)
    for part in ("a small run", "Finished", f"{metrics[-1]['loss_metrics/global_avg_loss']:.4f}", f"{best:.4f}",
                 "What changed between starts", "optimizer.lr", "training.steps", "Planned beside measured", "Memory of all ranks",
                 "step-00000040", "Resumed from run/checkpoint/step-00000020", "2 (dp_shard 2)", "the quick"):
        check(part in text, f"the page says: {part}")
    check(re.search(r"Processor\s+\S", text), "the page names the processor")


def keyboard(d, page):
    """By keyboard alone: the skip link, the controls, a curve's values, a table."""
    size(d, 1280, 900)
    d.get(f"file://{page}?theme=light")
    seen = []
    d.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    for _ in range(40):
        e = d.switch_to.active_element
        seen.append(e.get_attribute("id") or e.text or e.tag_name)
        check(e.value_of_css_property("outline-style") != "none", f"{seen[-1]}: the focus is seen")
        if e.get_attribute("id") == "plot-loss":
            break
        e.send_keys(Keys.TAB)
    check(seen[0] == "Skip to the charts", f"the first stop skips to the curves: {seen}")
    check({"theme", "log", "smooth"} <= set(seen), f"the controls are on the way: {seen}")
    chart = d.switch_to.active_element
    check("training from" in chart.get_attribute("aria-label"), "a chart says in words what it shows")
    chart.send_keys(Keys.HOME)
    reading = chart.find_element(By.XPATH, "ancestor::figure").find_element(By.CLASS_NAME, "reading")
    check(reading.text.startswith("Step 1: training "), f"Home reads the first step: {reading.text}")
    chart.send_keys(Keys.END)
    check(reading.text.startswith("Step 40: training ") and "held-out" in reading.text, f"End reads the last step: {reading.text}")
    chart.send_keys(Keys.ARROW_LEFT)
    check(reading.text.startswith("Step 38: training "), f"an arrow moves by a logged step: {reading.text}")
    before = drawn_pixels(d, "plot-loss")
    chart.send_keys(Keys.ESCAPE)
    check(reading.text == "" and drawn_pixels(d, "plot-loss") != before, "Escape takes the reading away")
    chart.send_keys(Keys.TAB)
    summary = d.switch_to.active_element
    check(summary.tag_name == "summary", "behind a chart stands its table")
    summary.send_keys(Keys.ENTER)
    figure = chart.find_element(By.XPATH, "ancestor::figure")
    for _ in range(50):  # it is built when it opens
        rows = figure.find_elements(By.CSS_SELECTOR, "tbody tr")
        if rows:
            break
        time.sleep(0.1)
    check(len(rows) == 21, f"the table has all logged steps: {len(rows)}")
    d.find_element(By.ID, "log").send_keys(Keys.SPACE)
    check(d.execute_script("return Chart.getChart('plot-loss').options.scales.y.type") == "logarithmic", "the scale changes")
    d.find_element(By.ID, "smooth").send_keys(Keys.END)
    check(len(d.execute_script("return Chart.getChart('plot-loss').data.datasets.map((s) => s.label)")) == 3, "smoothing adds a line")
    d.find_element(By.ID, "theme").send_keys(Keys.ENTER)
    check(d.execute_script("return document.documentElement.dataset.theme") == "dark", "the colours change")


def plan_and_search(d, lockstep, folder):
    """A plan's timeline zooms, its memory follows the chosen rank, a search's points follow the filters."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    flags = ["--cluster", f"{root}/clusters/h100.toml"]
    for command in (["plan", f"{root}/recipes/llama3_8b_torchtitan_pp.toml", "--html", f"{folder}/plan.html"],
                    ["tune", f"{root}/recipes/llama3_8b_torchtitan.toml", "--ranks", "8", "--devices", "8,16", "--html",
                     f"{folder}/tune.html"]):
        subprocess.run([lockstep, *command, *flags], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    looks(d, f"{folder}/plan.html", folder, ("timeline", "plot-memory", "plot-roofline"), "plan-")
    size(d, 1280, 900)
    d.get(f"file://{folder}/plan.html?theme=light")
    canvas = d.find_element(By.ID, "timeline")
    seen = lambda: (float(canvas.get_attribute("data-begin")), float(canvas.get_attribute("data-end")))
    whole = seen()
    data = json.loads(d.execute_script("return document.getElementById('data').textContent"))
    check(abs(whole[1] - data["step_s"]) < 1e-6 * data["step_s"] and whole[0] == 0, f"the whole step is shown: {whole}")
    d.find_element(By.ID, "zoom-in").click()
    check(abs((seen()[1] - seen()[0]) * 2 - whole[1]) < 1e-6 * whole[1], f"a button zooms: {seen()}")
    canvas.send_keys("+")
    narrow = seen()
    check(narrow[1] - narrow[0] < 0.5 * whole[1], f"a key zooms: {narrow}")
    canvas.send_keys(Keys.ARROW_RIGHT)
    check(seen()[0] > narrow[0], "an arrow moves")
    d.find_element(By.ID, "zoom-all").click()
    check(seen() == whole, "the whole step comes back")
    found = d.execute_script("""const c = document.getElementById('timeline'), box = c.getBoundingClientRect();
        for (let x = 60; x < box.width; x += 7) {
          c.dispatchEvent(new PointerEvent('pointermove', { clientX: box.left + x, clientY: box.top + 8, bubbles: true }));
          const tip = document.getElementById('tip');
          if (!tip.hidden && /microbatch/.test(tip.textContent)) return tip.textContent;
        } return '';""")
    check("rank 0" in found, f"a slice can be read: {found}")
    peak = d.find_element(By.ID, "peak").text
    ranks = [f"{r['total']:,}" for r in data["memory"]["ranks"]]
    check(any(total in peak for total in ranks), f"the peak is said: {peak}")
    d.execute_script("const s = document.getElementById('memory-rank'); s.value = 0; s.dispatchEvent(new Event('change'));")
    check(ranks[0] in d.find_element(By.ID, "peak").text, "the memory of the chosen rank is drawn")

    looks(d, f"{folder}/tune.html", folder, ("plot-search",), "tune-")
    size(d, 1280, 900)
    d.get(f"file://{folder}/tune.html?theme=light")
    count = lambda: d.execute_script("return Chart.getChart('plot-search').data.datasets.reduce((n, s) => n + s.data.filter((p) => p.point).length, 0)")
    everything = count()
    data = json.loads(d.execute_script("return document.getElementById('data').textContent"))
    check(everything == sum(p["step_s"] > 0 for p in data["points"]), f"all timed layouts are points: {everything}")
    d.execute_script("const s = document.getElementById('filter-tp'); s.value = '2'; s.dispatchEvent(new Event('change'));")
    few = count()
    check(0 < few < everything, f"a filter hides points: {few} of {everything}")
    of_two = sum(p["step_s"] > 0 and p["keys"]["parallelism.tensor_parallel_degree"] == "2" for p in data["points"])
    check(few == of_two, f"the filter leaves its layouts: {few}, {of_two}")
    d.execute_script("choose(data.points.find((p) => p.step_s > 0))")
    check("tensor_parallel_degree" in d.find_element(By.ID, "chosen").text, "a layout shows its keys")
    check(d.find_element(By.ID, "devices-s").is_displayed(), "the table of devices is there")
    check(data["search"]["best"][0]["layout"] in d.find_element(By.TAG_NAME, "body").text, "the fastest is named")
    network(d, f"{folder}/tune.html", [f"file://{folder}/plan.html"])


def network(d, page, more=()):
    """Nothing but the file itself was asked for."""
    asked = [json.loads(e["message"])["message"] for e in d.get_log("performance")]
    urls = {m["params"]["request"]["url"].split("?")[0] for m in asked if m["method"] == "Network.requestWillBeSent"}
    others = {u for u in urls if u != f"file://{page}" and u not in more and not u.startswith(("data:", "chrome", "about:"))}
    check(not others, f"only the page is loaded: {others}")


def main():
    lockstep, top = os.path.abspath(sys.argv[1]), os.path.abspath(".")
    folder = f"{top}/build/report"
    subprocess.run(["rm", "-rf", folder], check=True)
    page = make_run(lockstep, folder)
    d = browser()
    try:
        looks(d, page, folder, [f"plot-{chart}" for chart in ("loss", "rate", "norm", "lr", "memory")])
        says(d, folder)
        keyboard(d, page)
        network(d, page)
        plan_and_search(d, lockstep, folder)
    finally:
        d.quit()
    print(f"{'FAILED' if failures else 'passed'}; screenshots: {folder}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

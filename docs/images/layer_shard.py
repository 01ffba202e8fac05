#!/usr/bin/env python3
"""Draws layer_shard.svg: a Llama layer's forward before and after the pass `shard`, as `lockstep show --after` prints it.

    docs/images/layer_shard.py > docs/images/layer_shard.svg
"""
STYLE = """
  svg { background: var(--page); }
  :root { --page: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #8c959f; --box: #f1f3f5; --edge: #afb8c1; --call: #0a5ec2; --callbox: #dcebfd; }
  @media (prefers-color-scheme: dark) {
    :root { --page: #0d1117; --ink: #e6edf3; --soft: #9da7b1; --line: #6e7681; --box: #1c2128; --edge: #444c56; --call: #79b8ff; --callbox: #10284a; }
  }
  text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: var(--ink); }
  .head { font: 600 16px system-ui, sans-serif; }
  .sub { font: 13px system-ui, sans-serif; fill: var(--soft); }
  .shape { font-size: 12px; fill: var(--soft); }
  .page { fill: var(--page); }
  .box { fill: var(--box); stroke: var(--edge); }
  .call { fill: var(--callbox); stroke: var(--call); stroke-width: 2; }
  .calltext, .new { fill: var(--call); font-weight: 600; }
  .flow { stroke: var(--line); stroke-width: 1.5; fill: none; }
  .tip { fill: var(--line); }
"""
# An op, the type of its result before `shard`, and after it. A collective has no type before.
ROWS = [
    ("x", "[batch, seq, hidden]", "[batch/dp, seq/tp, hidden]"),
    ("n1 = rmsnorm", "[batch, seq, hidden]", "[batch/dp, seq/tp, hidden]"),
    ("all_gather over tp", None, "[batch/dp, seq, hidden]"),
    ("q k v = einsum", "[.., seq, kv_heads, ..]", "[.., seq, kv_heads/tp, ..]"),
    ("o = attention", "[.., seq, kv_heads, ..]", "[.., seq, kv_heads/tp, ..]"),
    ("ao = einsum(o, wo)", "[batch, seq, hidden]", "[batch/dp, seq, hidden]|partial sum tp"),
    ("reduce_scatter over tp", None, "[batch/dp, seq/tp, hidden]"),
    ("x1 = add(x, ao)", "[batch, seq, hidden]", "[batch/dp, seq/tp, hidden]"),
    ("n2 = rmsnorm", "[batch, seq, hidden]", "[batch/dp, seq/tp, hidden]"),
    ("all_gather over tp", None, "[batch/dp, seq, hidden]"),
    ("gate up = einsum", "[batch, seq, ffn]", "[batch/dp, seq, ffn/tp]"),
    ("act = swiglu", "[batch, seq, ffn]", "[batch/dp, seq, ffn/tp]"),
    ("mlp = einsum(act, w2)", "[batch, seq, hidden]", "[batch/dp, seq, hidden]|partial sum tp"),
    ("reduce_scatter over tp", None, "[batch/dp, seq/tp, hidden]"),
    ("y = add(x1, mlp)", "[batch, seq, hidden]", "[batch/dp, seq/tp, hidden]"),
]
RESIDUALS = [(0, 7), (7, 14)]  # from the result of a row to another row, beside the column
TOP, STEP, HIGH, WIDE = 92, 48, 30, 198
COLUMNS = [(60, 1), (520, 2)]  # left edge of the boxes, position of the type in a row
SIZE = (970, TOP + STEP * len(ROWS) + 44)


def text(x, y, what, style=""):
    return f'<text x="{x}" y="{y}"{f" class={chr(34)}{style}{chr(34)}" if style else ""}>{what}</text>'


def column(x, which):
    out = []
    middle, previous = x + WIDE / 2, None
    for i, row in enumerate(ROWS):
        if row[which] is None:
            continue
        y = TOP + STEP * i
        if previous is not None:
            out.append(f'<path class="flow" d="M{middle} {previous + HIGH} V{y - 6}"/>')
            out.append(f'<path class="tip" d="M{middle - 5} {y - 8} h10 l-5 8 z"/>')
        collective = row[1] is None
        out.append(f'<rect class="{"call" if collective else "box"}" x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="5"/>')
        out.append(text(x + 10, y + 20, row[0], "calltext" if collective else ""))
        lines = row[which].split("|")
        for k, line in enumerate(lines):
            out.append(text(x + WIDE + 12, y + 20 - 8 * (len(lines) - 1) + 16 * k, line, "shape" if k == 0 else "new"))
        previous = y
    for begin, end in RESIDUALS:
        y0, y1 = TOP + STEP * begin + HIGH / 2, TOP + STEP * end + HIGH / 2
        # Two residuals meet at one row: each keeps to its half of the box's side.
        y0 += 6 if begin else 0
        y1 -= 6 if end < len(ROWS) - 1 else 0
        out.append(f'<path class="flow" d="M{x} {y0} H{x - 26} V{y1} H{x - 6}"/>')
        out.append(f'<path class="tip" d="M{x - 8} {y1 - 5} v10 l8 -5 z"/>')
    return out


width, height = SIZE
svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
       'aria-label="The forward of a layer before and after the pass shard">',
       f"<style>{STYLE}</style>", f'<rect class="page" width="{width}" height="{height}"/>']
svg += [text(60, 34, "Before shard", "head"), text(60, 56, "One function over whole tensors.", "sub"),
        text(520, 34, "After shard", "head"),
        text(520, 56, "The same ops on shards. The pass added the collectives (blue).", "sub")]
legend = [(60, "/dp: split over data ranks"), (250, "/tp: split over tensor-parallel ranks"),
          (520, "partial sum tp: the ranks' values must still be added")]
svg += [text(x, height - 20, words, "sub") for x, words in legend]
for left, which in COLUMNS:
    svg += column(left, which)
print("\n".join(svg + ["</svg>"]))

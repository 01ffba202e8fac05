"""What flushed values cost: the relative error of normally distributed values in float8, beside the share of them that becomes
zero, where one value of the tensor is `amax` times larger than their deviation. Needs Python alone.

    python3 scripts/float8_flushed.py
"""

import math
import random

VALUES = 200_000
TYPES = {"E4M3": (448.0, -6, 3), "E5M2": (57344.0, -14, 2)}  # largest value, least exponent of normal ones, bits of mantissa


def rounded(x, least, bits):
    """x in a type without overflow: to nearest, ties to even; below the least exponent in steps of the least value."""
    exponent = max(math.frexp(abs(x))[1] - 1, least) if x else least
    step = 2.0 ** (exponent - bits)
    return round(x / step) * step


def main():
    draw = random.Random(1)
    values = [draw.gauss(0, 1) for _ in range(VALUES)]
    print("| amax / deviation | " + " | ".join(f"{t}: flushed | error" for t in TYPES) + " |")
    print("|---" * (1 + 2 * len(TYPES)) + "|")
    for amax in (1e1, 1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 1e8, 1e9):
        row = [f"{amax:,.0f}"]
        for top, least, bits in TYPES.values():
            scale = top / amax
            codes = [rounded(x * scale, least, bits) for x in values]
            flushed = sum(q == 0 for q in codes) / VALUES
            error = sum((q / scale - x) ** 2 for q, x in zip(codes, values)) / sum(x * x for x in values)
            row += [f"{100 * flushed:.2f} %", f"{100 * math.sqrt(error):.2f} %"]
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes float8.json: what torchao's float8 and MXFP8 training computes, emulated on the CPU.

  codes     casts to E4M3 and E5M2
  scales    the scale of an amax, with and without rounding to a power of two
  blocks    MX: scales and codes of blocks of 32
  linear    a linear's result and both gradients
  training  20 steps of two small Llamas with converted linears, and how far torch is from itself with other orders of sums

See README.md for the formulas and for how to run this.
"""

import argparse
import base64
import copy
import json
import os
import sys

sys.setdlopenflags(1)  # lazy: torch's build for CUDA loads on machines without it

import numpy as np
import torch
import torch.nn.functional as F
import torchao
from torch.utils._python_dispatch import TorchDispatchMode
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.float8.config import CastConfig, ScalingType
from torchao.float8.float8_training_tensor import Float8TrainingTensor
from torchao.float8.float8_utils import amax_to_scale, to_fp8_saturated
from torchao.prototype.moe_training.mxfp8_linear import mx_mm
from torchao.prototype.mx_formats.config import MXFP8Dim0CastKernelChoice, MXFP8Dim1CastKernelChoice, ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import MXTensor, to_mx
from torchao.quantization.quantize_.common import KernelPreference

import make_bfloat16 as narrow
import make_golden as golden

BF16 = torch.bfloat16
aten = torch.ops.aten
# name: torch's type, bits of the mantissa, bias, code of the largest value, half-width of uniform inputs
TYPES = {"e4m3": (torch.float8_e4m3fn, 3, 7, 0x7E, 600.0), "e5m2": (torch.float8_e5m2, 2, 15, 0x7B, 70000.0)}
CHUNK = 4000


def stream(name, n):
    """splitmix64 of the n numbers from fnv1a64(name)."""
    return golden.splitmix64_array(np.uint64(golden.fnv1a64(name)) + np.arange(n, dtype=np.uint64))


def normal(name, n):
    """n numbers of mean 0, variance 1, none beyond 6: multiples of 2^-16."""
    total = np.zeros(n, np.int64)
    for k in range(3):
        inner = golden.splitmix64_array(np.arange(n, dtype=np.uint64) * np.uint64(3) + np.uint64(k))
        h = golden.splitmix64_array(np.uint64(golden.fnv1a64(name)) + inner)
        for part in range(4):
            total += ((h >> np.uint64(16 * part)) & np.uint64(0xFFFF)).astype(np.int64)
    return (2 * total - 12 * 65535).astype(np.float64) / 131072.0


def fnv1a64(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & golden.M64
    return f"0x{h:016x}"


def hashes(array):
    return [fnv1a64(array[i:i + CHUNK].tobytes()) for i in range(0, len(array), CHUNK)]


# ---- codes and scales ----------------------------------------------------------------------------------------------


def cast_inputs(name, n=400000):
    _, bits, bias, top, width = TYPES[name]
    h = stream(f"float8.{name}", n)
    i = np.arange(n)
    kind = i % 5
    u = 2.0 * ((h >> np.uint64(11)).astype(np.float64) * 2.0**-53) - 1.0
    x = np.empty(n, np.float32)
    x[kind == 0] = normal(f"float8.{name}", n)[kind == 0]
    x[kind == 1] = (width * u)[kind == 1]
    code = (h % np.uint64(top + 1)).astype(np.int64)  # halfway to the next code, and the floats before and after that
    exponent, mantissa = code >> bits, code & ((1 << bits) - 1)
    step = np.exp2((np.maximum(exponent, 1) - bias - bits).astype(np.float64))
    half = (np.where(exponent > 0, (1 << bits) + mantissa, mantissa) + 0.5) * step
    beside = ((h >> np.uint64(32)) % np.uint64(3)).astype(np.int32) - 1
    half = (half.astype(np.float32).view(np.int32) + beside).view(np.float32)
    x[kind == 2] = np.where((h >> np.uint64(63)) > 0, -half, half)[kind == 2]
    x[kind == 3] = (2.0**(2 - bias) * u)[kind == 3]  # half of these are subnormal
    x[kind == 4] = (h & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32)[kind == 4]
    x[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4028234663852886e38, -3.4028234663852886e38]
    return x


def codes(name):
    type_, bits, _, top, _ = TYPES[name]
    x = cast_inputs(name)
    q = to_fp8_saturated(torch.from_numpy(x.copy()), type_)
    finite = np.where(np.isnan(x), np.float32(0), x)
    assert (to_fp8_saturated(torch.from_numpy(finite.copy()), type_).float().abs() <= torch.finfo(type_).max).all()
    got = q.view(torch.uint8).numpy().copy()
    nan = np.isnan(x)
    assert (torch.isnan(q.float()).numpy() == nan).all()
    print(f"codes {name}: {nan.sum()} of {len(x)} are NaN, as codes {sorted(set(got[nan].tolist()))}; "
          f"{(got & 0x7F == top).sum()} largest, {((got & 0x7F) < (1 << bits)).sum()} subnormal or zero")
    got[nan] = 0x7F
    x[nan] = 0
    return {"inputs": fnv1a64(x.tobytes()), "codes": hashes(got)}


def scales(name, power_of_two):
    def of(amax):
        return amax_to_scale(torch.from_numpy(amax), TYPES[name][0], power_of_two).numpy()

    narrow_bits = (np.arange(1, 0x7F81, dtype=np.uint32) << np.uint32(16)).view(np.float32)  # up to infinity
    wide = (stream("float8.amax", 100000) % np.uint64(0x7F800000)).astype(np.uint32).view(np.float32)
    known = {text: float(of(np.array([value], np.float32))[0])
             for text, value in (("0", 0), ("1e-30", 1e-30), ("1", 1), ("500", 500), ("inf", np.inf), ("nan", np.nan))}
    print(f"scales {name}{' power of two' if power_of_two else ''}: {known}")
    assert np.isnan(known.pop("nan"))
    return {"bfloat16": hashes(of(narrow_bits)), "float32": hashes(of(wide)), "known": known}


# ---- blocks of 32 --------------------------------------------------------------------------------------------------

MX = {"mx_floor": ScaleCalculationMode.FLOOR, "mx_rceil": ScaleCalculationMode.RCEIL}


def block_inputs(type_, blocks=4000):
    """[blocks, 32]: normal numbers times a power of two for each block, every other block in bfloat16. At the beginning of some
    blocks is the largest value of the type times the block's power, or its neighbour in bfloat16; some are zeros."""
    h = stream("float8.blocks", blocks)
    power = np.exp2((h % np.uint64(61)).astype(np.float64) - 30.0)[:, None]
    x = (normal("float8.blocks", 32 * blocks).reshape(blocks, 32) * power).astype(np.float32)
    top = (torch.finfo(type_).max * power[:, 0]).astype(np.float32)
    b = np.arange(blocks)
    for kind, shift in ((1, 0), (2, 1), (3, -1)):
        at = b % 50 == kind
        x[at, 0] = (top.view(np.int32) + np.int32(shift * 65536)).view(np.float32)[at]
    x[b % 2 == 0] = torch.from_numpy(x[b % 2 == 0]).to(BF16).float().numpy()
    x[b % 50 == 0] = 0
    return x


def blocks(name):
    type_ = TYPES[name][0]
    x = block_inputs(type_)
    out = {"inputs": fnv1a64(x.tobytes())}
    for recipe, mode in MX.items():
        s, q = to_mx(torch.from_numpy(x), type_, 32, mode)
        s, q = s.view(torch.uint8).numpy().reshape(-1), q.view(torch.uint8).numpy().reshape(-1)
        clipped = (np.abs(x) * np.exp2(127.0 - s)[:, None] > torch.finfo(type_).max).sum()
        print(f"blocks {name} {recipe}: scales from {s.min()} to {s.max()}, {clipped} of {x.size} beyond the largest value")
        out[recipe] = {"scales": fnv1a64(s.tobytes()), "codes": hashes(q)}
    return out


# ---- one linear ----------------------------------------------------------------------------------------------------

M, K, N = 192, 256, 128
ROWS = {"y": 13, "dx": 25, "dw": 17}  # every so many rows are kept: no multiples of the periods of linear_operands
SCALED = ("tensorwise", "rowwise", "rowwise_with_gw_hp")


class MxLinear(torch.nn.Linear):
    """torchao's MXFP8Linear, emulated, with its plain casts along both dims: those of the class itself are kernels of CUDA."""

    mode = None

    def forward(self, x):
        e4m3 = torch.float8_e4m3fn
        return mx_mm.apply(x, self.weight, e4m3, e4m3, e4m3, 32, KernelPreference.EMULATED, MXFP8Dim0CastKernelChoice.TORCH,
                           MXFP8Dim1CastKernelChoice.TORCH, self.mode, False)


def convert(model, recipe, chosen):
    """Converts the linears that `chosen(module, name)` takes; their names. `recipe`: a name or a configuration of torchao."""
    names = [n for n, m in model.named_modules() if type(m) is torch.nn.Linear and chosen(m, n)]
    if recipe in MX:
        for name in names:
            linear = model.get_submodule(name)
            linear.__class__, linear.mode = MxLinear, MX[recipe]
    else:
        config = Float8LinearConfig.from_recipe_name(recipe) if isinstance(recipe, str) else recipe
        object.__setattr__(config, "emulate", True)
        convert_to_float8_training(model, config=config, module_filter_fn=lambda m, n: n in names)
    return names


def linear_operands():
    """x [M, K], w [N, K], dy [M, N]"""
    m, k, n = np.arange(M)[:, None], np.arange(K), np.arange(N)
    x = normal("float8.x", M * K).reshape(M, K) * np.exp2(m % 5 - 2.0) * np.exp2(k % 3 - 1.0)
    w = normal("float8.w", N * K).reshape(N, K) * np.exp2(n[:, None] % 5 - 8.0) * np.exp2(k % 7 - 3.0)
    dy = normal("float8.dy", M * N).reshape(M, N) * np.exp2(m % 3 - 14.0) * np.exp2(n % 5 - 2.0)
    return [torch.from_numpy(a.astype(np.float32)).to(BF16) for a in (x, w, dy)]


def linear_results(recipe):
    x, w, dy = linear_operands()
    model = torch.nn.Sequential(torch.nn.Linear(K, N, bias=False)).to(BF16)
    model[0].weight.data = w
    assert convert(model, recipe, lambda m, n: True) == ["0"]
    x.requires_grad_()
    y = model(x)
    y.backward(dy)
    return {"y": y.detach(), "dx": x.grad, "dw": model[0].weight.grad}


def linear():
    out = {"shape": {"m": M, "k": K, "n": N}, "every_row": ROWS,
           "operands": [fnv1a64(a.view(torch.int16).numpy().tobytes()) for a in linear_operands()]}
    for recipe in (*SCALED, *MX):
        as_torch, exact = linear_results(recipe), None
        with Sums("float64"):
            exact = linear_results(recipe)
        found = []
        for name, got in as_torch.items():
            assert got.dtype == BF16 and got.shape == {"y": (M, N), "dx": (M, K), "dw": (N, K)}[name]
            steps = (got.view(torch.int16).int() - exact[name].view(torch.int16).int()).abs()
            found.append(f"{name} {(steps > 0).sum()} of {steps.numel()} by at most {steps.max()}")
        print(f"linear {recipe}: results that differ from sums in float64, in units of the last place: " + ", ".join(found))
        out[recipe] = {n: base64.b64encode(g[::ROWS[n]].contiguous().view(torch.int16).numpy().tobytes()).decode()
                       for n, g in as_torch.items()}
    return out


# ---- training ------------------------------------------------------------------------------------------------------


SEEDS = 8
WAYS = ("float64", "scaled", "halves", "eager")


class Sums(TorchDispatchMode):
    """All products, the head's too, with other sums. Fused attention is one op that stays as it is.

    float64  sums in float64, scales applied to the sum
    scaled   sums in float32, scales applied to the sum: what float8 units do; torchao's emulation divides operands before it
    halves   operands as torchao's emulation has them; two sums in float32 of half the terms each
    """

    def __init__(self, way):
        super().__init__()
        self.way = way

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func not in (aten.mm.default, aten.bmm.default):
            assert "mm" not in func.__name__ and "linear" not in func.__name__, func
            return func(*args, **(kwargs or {}))
        operands, scale = [], 1.0
        sums = torch.float64 if self.way == "float64" else torch.float32
        for a in args:
            if isinstance(a, Float8TrainingTensor):
                dtype = a._orig_dtype
                if self.way == "halves":
                    operands.append(a._data.float() / a._scale)
                else:
                    operands.append(a._data.to(sums))
                    scale = scale * a._scale.to(sums)
            elif isinstance(a, MXTensor):
                dtype = a.orig_dtype
                operands.append(a.dequantize(torch.float32).to(sums))
            else:
                dtype = a.dtype
                operands.append(a.to(sums))
        a, b = operands
        if self.way == "halves":
            half = a.shape[-1] // 2
            product = a[..., :half] @ b[..., :half, :] + a[..., half:] @ b[..., half:, :]
        else:
            product = a @ b / scale
        return product.to(dtype)


def small_llama(**changes):
    case = copy.deepcopy(golden.CASES["llama_gqa"])
    case["config"].update(changes)
    return case


# llama_gqa's feed-forward width, 172, is no multiple of 16; of llama_32 all dims are multiples of 32.
TRAINED = {"llama_gqa": (small_llama(), ("tensorwise", "rowwise")),
           "llama_32": (small_llama(intermediate_size=192, num_key_value_heads=4), (*SCALED, *MX))}
golden.CASES["llama_32"] = TRAINED["llama_32"][0]
golden.STOCK_ATTENTION["llama_32"] = golden.STOCK_ATTENTION["llama_gqa"]


def converted(module, name):
    return "lm_head" not in name and all(d % 16 == 0 for d in module.weight.shape)


def train(name, case, recipe, attention="sdpa", steps=golden.STEPS):
    """The figures that a golden run has, the first step's gradients, and the converted linears. `recipe` None: bfloat16."""
    o, vocab = case["optimizer"], case["config"]["vocab_size"]
    model, undo = narrow.build(name, case, "cast", attention)
    linears = convert(model, recipe, converted) if recipe else []
    params = dict(model.named_parameters())
    groups = [{"params": [p for p in params.values() if p.dim() == 2], "weight_decay": o["weight_decay"]},
              {"params": [p for p in params.values() if p.dim() != 2], "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"], foreach=False)
    out = {"losses": [], "grad_norms": [], "step1_param_grad_norms": {}}

    def loss_of(step):
        inputs, target = golden.batch(step, vocab, case["formula"])
        seen = {n: p.to(BF16) for n, p in params.items()}
        logits = torch.func.functional_call(model, seen, (), {"input_ids": inputs}, tie_weights=True).logits
        assert logits.dtype == BF16
        return F.cross_entropy(logits.float().reshape(-1, vocab), target.reshape(-1), ignore_index=-100)

    for step in range(steps):
        opt.zero_grad(set_to_none=True)
        loss = loss_of(step)
        loss.backward()
        if step == 0:
            gradients = {n: p.grad.double().clone() for n, p in params.items()}  # clipping changes them
            out["step1_param_grad_norms"] = {n: g.norm().item() for n, g in gradients.items()}
        out["grad_norms"].append(torch.nn.utils.clip_grad_norm_(params.values(), o["max_grad_norm"]).item())
        out["losses"].append(loss.item())
        opt.step()
    with torch.no_grad():
        out["final_loss"] = loss_of(steps).item()
        out["final_param_norms"] = {n: p.norm().item() for n, p in params.items()}
    undo()
    return out, gradients, linears


def in_another_way(way, *args, **more):
    """train() with attention as transformers has it, or with other sums."""
    if way == "eager":
        return train(*args, **more, attention="eager")
    with Sums(way):
        return train(*args, **more)


def salted(case, seed):
    case = copy.deepcopy(case)
    case["formula"]["salt"] = f"#{seed}"
    return case


def gradient_errors(exact, runs):
    """Of each parameter, |got - exact| / |exact|: root mean square over the sets of weights."""
    return {n: narrow.rms([((got[n] - want[n]).norm() / want[n].norm()).item() for want, got in zip(exact, runs)])
            for n in exact[0]}


def apart(a, b):
    """Of two such: the root mean square of the relative differences."""
    return narrow.rms([b[n] / a[n] - 1 for n in a])


def make_recipe(name, case, recipe, exact):
    ways = [w for w in WAYS if not (recipe in MX and w == "scaled")]
    figures, _, linears = train(name, case, recipe)
    noise = {w: golden.compare(figures, in_another_way(w, name, case, recipe)[0]) for w in ways}
    exact_gradients = [e[2] for e in exact]
    runs = [train(name, salted(case, seed), recipe)[:2] for seed in range(SEEDS)]
    errors = gradient_errors(exact_gradients, [g for _, g in runs])
    spread = {w: apart(errors, gradient_errors(exact_gradients, [
        in_another_way(w, name, salted(case, seed), recipe, steps=1)[1] for seed in range(SEEDS)])) for w in ways}
    found = [narrow.distances(e, (r["losses"], r["grad_norms"], g)) for e, (r, g) in zip(exact, runs)]
    of = {k: narrow.rms([d[k] for d in found]) for k in found[0]}
    losses = figures["losses"]
    print(f"{name} {recipe}: {len(linears)} linears; loss {losses[0]:.4f} -> {losses[-1]:.4f}; from float64: "
          + ", ".join(f"{k} {v:.2e}" for k, v in of.items()))
    for w in ways:
        print(f"  {w:8s} " + ", ".join(f"{k} {v:.1e}" for k, v in noise[w].items()) + f"; gradient errors {spread[w]:.4f}",
              flush=True)
    noise = {k: max(n[k] for n in noise.values()) for k in figures}
    return {"converted": linears, "torchao": golden.digits(figures, 8), "noise": golden.digits(noise, 3),
            "distances": golden.digits(found, 4), "gradient_errors": golden.digits(errors, 5),
            "gradient_errors_noise": golden.digits(max(spread.values()), 3)}


def mistakes():
    """Changed configurations of tensorwise scaling."""
    def cast(type_, scaling=ScalingType.DYNAMIC):
        return CastConfig(target_dtype=type_, scaling_type=scaling)

    e4m3, e5m2, off = torch.float8_e4m3fn, torch.float8_e5m2, ScalingType.DISABLED
    return {"E4M3 gradients": Float8LinearConfig(cast_config_grad_output=cast(e4m3)),
            "E5M2 throughout": Float8LinearConfig(cast_config_input=cast(e5m2), cast_config_weight=cast(e5m2)),
            "scales rounded to powers of two": Float8LinearConfig(round_scales_to_power_of_2=True),
            "gradients of weights in bfloat16": Float8LinearConfig(cast_config_input_for_grad_weight=cast(e4m3, off),
                                                                   cast_config_grad_output_for_grad_weight=cast(e5m2, off)),
            "rowwise": Float8LinearConfig.from_recipe_name("rowwise"), "nothing converted": None}


def sensitivity(name, case, exact, errors):
    out = {}
    for label, config in mistakes().items():
        runs = [train(name, salted(case, seed), config, steps=1)[1] for seed in range(SEEDS)]
        out[label] = apart(errors, gradient_errors([e[2] for e in exact], runs))
        print(f"  {label:34s} gradient errors {out[label]:.4f}", flush=True)
    return golden.digits(out, 3)


def training():
    out = {}
    for name, (case, recipes) in TRAINED.items():
        exact = [narrow.train(name, salted(case, seed), "float64", None, golden.STEPS) for seed in range(SEEDS)]
        made = {r: make_recipe(name, case, r, exact) for r in recipes}
        model = golden.build(name, case, torch.float32, True)
        out[name] = {"config": case["config"], "optimizer": case["optimizer"], "formula": case["formula"],
                     "batch": {"steps": golden.STEPS, "sequences": golden.BATCH, "seq_len": golden.SEQ},
                     "checks": {"param_shapes": {n: list(p.shape) for n, p in model.named_parameters()}},
                     "float64": golden.digits([{"losses": e[0], "grad_norms": e[1]} for e in exact], 12), "recipes": made}
        if name == "llama_32":
            out[name]["sensitivity"] = sensitivity(name, case, exact, made["tensorwise"]["gradient_errors"])
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "float8.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    made = {"made_with": {"torch": torch.__version__, "torchao": torchao.__version__,
                          "transformers": golden.transformers.__version__, "numpy": np.__version__},
            "codes": {name: codes(name) for name in TYPES},
            "scales": {name: {rounding: scales(name, rounding == "power_of_two") for rounding in ("plain", "power_of_two")}
                       for name in TYPES},
            "blocks": {name: blocks(name) for name in TYPES}, "linear": linear(), "training": training()}
    with open(args.out, "w") as out:
        json.dump(made, out, indent=None, separators=(",", ":"))
        out.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

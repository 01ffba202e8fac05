#!/usr/bin/env python3
"""Writes <case>.json for each case below: reference figures of 20 training steps.

The models are transformers' (eager attention) on the CPU, trained with torch.optim.AdamW.
Weights and tokens come from integer hashing, so another implementation can rebuild them exactly.
Every case runs in float64 (the golden figures) and in float32 (the measured rounding noise).
See README.md for the formulas and for how to run this.
"""

import argparse
import copy
import importlib
import json
import math
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import torch.nn.functional as F
import transformers

STEPS = 20
BATCH = 8
SEQ = 64
M64 = (1 << 64) - 1

COMMON = {
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
}

FORMULA = {"embed_scale": 0.03125, "norm_scale": 0.125, "matrix_numerator": 1.2,
           "chain_mod": 61, "chain_mul": 5, "chain_add": 7, "mask_mod": 7, "mask_prefix": 3}
OPTIMIZER = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-4, "weight_decay": 0.1, "max_grad_norm": 1.0}


def relative(**more):
    """A small model of another family of Llama's kind."""
    return {"vocab_size": 199, "hidden_size": 32, "intermediate_size": 84, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None,
            "tie_word_embeddings": False, **COMMON, **more}


# `config` speaks of every family in Llama's words; hf_config() turns them into the family's own.
CASES = {
    "llama_gqa": {
        "config": {
            "vocab_size": 271,
            "hidden_size": 64,
            "intermediate_size": 172,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "rope_scaling": None,
            "tie_word_embeddings": False,
            **COMMON,
        },
        "optimizer": {
            "lr": 5e-3,
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-5,
            "weight_decay": 0.1,
            "max_grad_norm": 1.0,
        },
        "formula": {"embed_scale": 0.03125, "norm_scale": 0.125, "matrix_numerator": 1.2,
                    "chain_mod": 61, "chain_mul": 5, "chain_add": 7, "mask_mod": 7, "mask_prefix": 3},
    },
    "llama_tied": {
        "config": {
            "vocab_size": 199,
            "hidden_size": 48,
            "intermediate_size": 132,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 12,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            },
            "tie_word_embeddings": True,
            **COMMON,
        },
        "optimizer": {
            "lr": 1e-2,
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-4,
            "weight_decay": 0.1,
            "max_grad_norm": 1.0,
        },
        "formula": {"embed_scale": 0.03125, "norm_scale": 0.125, "matrix_numerator": 1.2,
                    "chain_mod": 53, "chain_mul": 5, "chain_add": 7, "mask_mod": 7, "mask_prefix": 3},
    },
    "gpt2": {
        "config": {"model_type": "gpt2", "vocab_size": 199, "hidden_size": 48, "intermediate_size": 120, "num_hidden_layers": 2,
                   "num_attention_heads": 4, "max_position_embeddings": 80, "rms_norm_eps": 1e-3, "tie_word_embeddings": True},
        "optimizer": {**OPTIMIZER, "lr": 2e-2, "max_grad_norm": 0.6},
        "formula": {**FORMULA, "embed_scale": 0.25, "bias_scale": 0.1, "in_axis": 0},
    },
    "qwen2_bias": {
        "config": relative(model_type="qwen2", qkv_bias=True),
        "optimizer": OPTIMIZER,
        "formula": {**FORMULA, "bias_scale": 0.5},
    },
    "qwen3_qk_norm": {
        "config": relative(model_type="qwen3", qk_norm=True, head_dim=12),
        "optimizer": OPTIMIZER,
        "formula": FORMULA,
    },
    "mistral_window": {
        "config": relative(model_type="mistral", sliding_window=11),
        "optimizer": OPTIMIZER,
        "formula": FORMULA,
    },
}


def family(cfg):
    """The module of transformers that holds the model, and the prefix of its classes."""
    name = cfg.get("model_type", "llama")
    prefix = {"llama": "Llama", "gpt2": "GPT2", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}[name]
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}"), prefix


# ---- formulas ------------------------------------------------------------------------------------------------------


def fnv1a64(s):
    h = 0xCBF29CE484222325
    for byte in s.encode():
        h = ((h ^ byte) * 0x100000001B3) & M64
    return h


def splitmix64(x):
    z = (x + 0x9E3779B97F4A7C15) & M64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def splitmix64_array(x):
    z = x + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def weight(name, shape, f):
    """Float32 array of `shape`; the element index is row-major over the Hugging Face shape ([out, in]; GPT-2: [in, out])."""
    n = math.prod(shape)
    h = splitmix64_array(np.arange(n, dtype=np.uint64) + np.uint64(fnv1a64(name + f.get("salt", ""))))
    x = 2.0 * ((h >> np.uint64(11)).astype(np.float64) * 2.0**-53) - 1.0
    if name.endswith(".bias"):
        v = f["bias_scale"] * x
    elif len(shape) == 1:
        v = 1.0 + f["norm_scale"] * x
    elif any(table in name for table in ("embed_tokens", "wte", "wpe")):
        v = f["embed_scale"] * x
    else:
        v = x * (f["matrix_numerator"] / math.sqrt(float(shape[f.get("in_axis", 1)])))
    return v.astype(np.float32).reshape(shape)


def tokens(step, vocab, f):
    """[BATCH][SEQ + 1] token ids of one step."""
    key = fnv1a64("tokens")
    out = []
    for b in range(BATCH):
        row = []
        for t in range(SEQ + 1):
            h = splitmix64((key + (step * BATCH + b) * (SEQ + 1) + t) & M64)
            if t == 0 or h % 8 == 0:
                row.append((h >> 8) % vocab)
            else:
                row.append((f["chain_mul"] * row[-1] + f["chain_add"] + (h >> 8) % 2) % f["chain_mod"])
        out.append(row)
    return out


def masked(step, b, t, f):
    h = splitmix64((fnv1a64("mask") + (step * BATCH + b) * SEQ + t) & M64)
    return t < f["mask_prefix"] * b or h % f["mask_mod"] == 0


def batch(step, vocab, f):
    tok = torch.tensor(tokens(step, vocab, f))
    target = tok[:, 1:].clone()
    for b in range(BATCH):
        for t in range(SEQ):
            if masked(step, b, t, f):
                target[b, t] = -100
    return tok[:, :-1].contiguous(), target


# ---- float64 versions of the places where transformers computes in float32 whatever the model's type ---------------


def exact_norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def inverse_frequencies(cfg):
    d = cfg["head_dim"]
    freq = [1.0 / cfg["rope_theta"] ** (2 * i / d) for i in range(d // 2)]
    s = cfg["rope_scaling"]
    if s is None:
        return freq
    low = s["original_max_position_embeddings"] / s["low_freq_factor"]
    high = s["original_max_position_embeddings"] / s["high_freq_factor"]
    out = []
    for w in freq:
        length = 2 * math.pi / w
        if length < high:
            out.append(w)
        elif length > low:
            out.append(w / s["factor"])
        else:
            smooth = (s["original_max_position_embeddings"] / length - s["low_freq_factor"]) / (
                s["high_freq_factor"] - s["low_freq_factor"])
            out.append((1 - smooth) * w / s["factor"] + smooth * w)
    return out


class Rotary(torch.nn.Module):
    def __init__(self, cfg, dtype):
        super().__init__()
        self.inv_freq = torch.tensor(inverse_frequencies(cfg), dtype=dtype)

    def forward(self, x, position_ids):
        angle = position_ids[..., None].to(self.inv_freq.dtype) * self.inv_freq
        emb = torch.cat((angle, angle), dim=-1)
        return emb.cos(), emb.sin()


def attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    repeat_kv = sys.modules[type(module).__module__].repeat_kv
    key = repeat_kv(key, module.num_key_value_groups)
    value = repeat_kv(value, module.num_key_value_groups)
    w = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        w = w + attention_mask
    w = F.softmax(w, dim=-1)
    return torch.matmul(w, value).transpose(1, 2).contiguous(), w


STOCK_ATTENTION = {name: family(case["config"])[0].eager_attention_forward for name, case in CASES.items()}


# ---- one run -------------------------------------------------------------------------------------------------------


def hf_config(cfg):
    module, prefix = family(cfg)
    config = getattr(transformers, prefix + "Config")
    plain = dict(attn_implementation="eager", use_cache=False, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    if prefix == "GPT2":
        return config(vocab_size=cfg["vocab_size"], n_embd=cfg["hidden_size"], n_inner=cfg["intermediate_size"],
                      n_layer=cfg["num_hidden_layers"], n_head=cfg["num_attention_heads"],
                      n_positions=cfg["max_position_embeddings"], layer_norm_epsilon=cfg["rms_norm_eps"],
                      tie_word_embeddings=cfg["tie_word_embeddings"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **plain)
    ours = ("model_type", "qkv_bias", "qk_norm", "rope_theta", "rope_scaling")
    c = {k: v for k, v in cfg.items() if k not in ours}
    rope = dict(cfg["rope_scaling"] or {"rope_type": "default"})
    rope["rope_theta"] = cfg["rope_theta"]
    return config(**c, rope_parameters=rope, **plain)


def build(name, case, dtype, stock):
    cfg = case["config"]
    module, prefix = family(cfg)
    model = getattr(module, prefix + ("LMHeadModel" if prefix == "GPT2" else "ForCausalLM"))(hf_config(cfg))
    assert model.config._attn_implementation == "eager"
    with torch.no_grad():
        for param, p in model.named_parameters():
            p.copy_(torch.from_numpy(weight(param, tuple(p.shape), case["formula"])))
    if prefix == "GPT2":  # computes in the type of its weights throughout
        model = model.to(dtype)
        model.train()
        return model
    rotary = Rotary(cfg, torch.float64)
    assert torch.allclose(rotary.inv_freq.float(), model.model.rotary_emb.inv_freq, rtol=1e-6, atol=0)
    if not stock:
        model = model.to(dtype)
        for m in model.modules():
            if type(m).__name__ == prefix + "RMSNorm":
                m.forward = exact_norm.__get__(m)
        model.model.rotary_emb = rotary if dtype == torch.float64 else Rotary(cfg, dtype)
    module.eager_attention_forward = STOCK_ATTENTION[name] if stock else attention
    model.train()
    return model


def run(name, case, dtype, stock=False, mutant=None):
    """`stock`: transformers' own code, which is float32 only. `mutant`: a deliberate mistake, for the sensitivity."""
    assert not stock or dtype == torch.float32
    vocab = case["config"]["vocab_size"]
    o = case["optimizer"]
    module = family(case["config"])[0]
    saved_repeat = getattr(module, "repeat_kv", None)
    if mutant == "kv_heads_tiled":
        module.repeat_kv = lambda x, n: x.repeat(1, n, 1, 1)
    model = build(name, case, dtype, stock)
    params = dict(model.named_parameters())
    decayed = [p for p in params.values() if p.dim() == 2 or mutant == "decay_norms"]
    plain = [p for p in params.values() if not (p.dim() == 2 or mutant == "decay_norms")]
    opt = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": o["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
        lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"], foreach=False)

    def loss_of(step):
        inputs, target = batch(step, vocab, case["formula"])
        logits = model(input_ids=inputs).logits
        assert logits.dtype == dtype
        if mutant == "mean_of_row_means":
            return torch.stack([F.cross_entropy(l, t, ignore_index=-100) for l, t in zip(logits, target)]).mean(), target
        return F.cross_entropy(logits.reshape(-1, vocab), target.reshape(-1), ignore_index=-100), target

    out = {"losses": [], "grad_norms": [], "step1_param_grad_norms": {}}
    valid = []
    for step in range(STEPS):
        opt.zero_grad(set_to_none=True)
        loss, target = loss_of(step)
        loss.backward()
        if step == 0:
            out["step1_param_grad_norms"] = {n: p.grad.norm().item() for n, p in params.items()}
        norm = torch.nn.utils.clip_grad_norm_(params.values(), o["max_grad_norm"])
        opt.step()
        out["losses"].append(loss.item())
        out["grad_norms"].append(norm.item())
        valid.append(int((target != -100).sum()))
    with torch.no_grad():
        loss, target = loss_of(STEPS)
        out["final_loss"] = loss.item()
        out["final_param_norms"] = {n: p.norm().item() for n, p in params.items()}
    valid.append(int((target != -100).sum()))
    if saved_repeat:
        module.repeat_kv = saved_repeat
    return out, valid


def values(x):
    return list(x.values()) if isinstance(x, dict) else x if isinstance(x, list) else [x]


def rel(a, b):
    return max(abs(x - y) / abs(x) for x, y in zip(values(a), values(b), strict=True))


def compare(a, b):
    return {k: rel(a[k], b[k]) for k in a}


# ---- sensitivity ---------------------------------------------------------------------------------------------------


def variants(case):
    """name -> (changed case, mutant)"""
    v = {}

    def scaled(label, section, key, factor, sub=None):
        c = copy.deepcopy(case)
        d = c[section][sub] if sub else c[section]
        d[key] = round(d[key] * factor) if isinstance(d[key], int) else d[key] * factor
        v[label] = (c, None)

    scaled("eps x1.1", "optimizer", "eps", 1.1)
    scaled("beta1 x1.1", "optimizer", "beta1", 1.1)
    scaled("weight_decay x1.1", "optimizer", "weight_decay", 1.1)
    if "rope_theta" in case["config"]:
        scaled("rope_theta x1.1", "config", "rope_theta", 1.1)
    if "sliding_window" in case["config"]:
        scaled("sliding_window x1.1", "config", "sliding_window", 1.1)
    scaled("rms_norm_eps x1.1", "config", "rms_norm_eps", 1.1)
    for beta in ("beta1", "beta2"):
        c = copy.deepcopy(case)
        c["optimizer"][beta] = 1 - (1 - c["optimizer"][beta]) * 1.1
        v[f"1-{beta} x1.1"] = (c, None)
    scaled("beta2 x0.9", "optimizer", "beta2", 0.9)
    scaled("lr x1.1", "optimizer", "lr", 1.1)
    scaled("max_grad_norm x1.1", "optimizer", "max_grad_norm", 1.1)
    if case["config"].get("rope_scaling"):
        for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
            scaled(f"rope_scaling.{key} x1.1", "config", key, 1.1, "rope_scaling")
        c = copy.deepcopy(case)
        c["config"]["rope_scaling"] = None
        v["no rope_scaling"] = (c, None)
    if case["config"].get("num_key_value_heads", 0) not in (0, case["config"]["num_attention_heads"]):
        v["kv heads tiled, not repeated"] = (case, "kv_heads_tiled")
    v["decay on norms too"] = (case, "decay_norms")
    v["loss = mean of row means"] = (case, "mean_of_row_means")
    return v


REQUIRED = ("eps x1.1", "beta1 x1.1", "1-beta1 x1.1", "1-beta2 x1.1", "beta2 x0.9", "weight_decay x1.1",
            "rope_theta x1.1", "rms_norm_eps x1.1", "sliding_window x1.1")


def digits(x, n):
    if isinstance(x, dict):
        return {k: digits(y, n) for k, y in x.items()}
    if isinstance(x, list):
        return [digits(y, n) for y in x]
    return float(f"{x:.{n}g}") if isinstance(x, float) else x


def make(name, case):
    gold, valid = run(name, case, torch.float64)
    single, _ = run(name, case, torch.float32, stock=True)
    patched, _ = run(name, case, torch.float32)
    self_check = max(compare(single, patched).values())
    noise = compare(gold, single)

    print(f"\n{name}: loss {gold['losses'][0]:.4f} -> {gold['losses'][-1]:.4f}, final {gold['final_loss']:.4f}; "
          f"grad norm {min(gold['grad_norms']):.3f}..{max(gold['grad_norms']):.3f}, "
          f"clipped in {sum(g > case['optimizer']['max_grad_norm'] for g in gold['grad_norms'])} of {STEPS} steps")
    print("float32 noise: " + ", ".join(f"{k} {x:.1e}" for k, x in noise.items())
          + f"; float64 patches run in float32 against stock: {self_check:.1e}")

    sensitivity = {}
    for label, (changed, mutant) in variants(case).items():
        d = compare(gold, run(name, changed, torch.float64, mutant=mutant)[0])
        d["max"] = max(d.values())
        sensitivity[label] = d
        print(f"  {label:52s} loss {d['losses']:.1e}  grad norm {d['grad_norms']:.1e}  step-1 grads "
              f"{d['step1_param_grad_norms']:.1e}  final loss {d['final_loss']:.1e}  final params {d['final_param_norms']:.1e}")

    f = case["formula"]
    cfg = case["config"]
    model = build(name, case, torch.float32, True)
    samples = {}
    for p in [n for n, _ in model.named_parameters() if ".1." not in n]:
        samples[p] = [float(x) for x in weight(p, tuple(model.get_parameter(p).shape), f).reshape(-1)[:3]]
    first = tokens(0, cfg["vocab_size"], f)[0][:16]
    row0 = [int(masked(0, 2, t, f)) for t in range(16)]
    return {
        "case": name,
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__},
        "config": cfg,
        "optimizer": {"name": "adamw", "schedule": "constant", "decay": "2-D parameters only", **case["optimizer"]},
        "batch": {"steps": STEPS, "sequences": BATCH, "seq_len": SEQ},
        "formula": f,
        "checks": {
            "fnv1a64_of_tokens": f"0x{fnv1a64('tokens'):016x}",
            "splitmix64_of_0": f"0x{splitmix64(0):016x}",
            "first_weights": samples,
            "first_tokens": first,
            "mask_step0_row2_first16": row0,
            "valid_targets": valid[:STEPS],
            "final_valid_targets": valid[STEPS],
            "rope_inv_freq": inverse_frequencies(cfg) if "rope_theta" in cfg else [],
            "param_shapes": {n: list(p.shape) for n, p in model.named_parameters()},
        },
        "float64": gold,
        "float32": digits(single, 9),
        "float32_noise": digits({**noise, "max": max(noise.values())}, 3),
        "sensitivity": digits(sensitivity, 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)), help="folder to write to")
    parser.add_argument("cases", nargs="*", help="which; all by default")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    made = {name: make(name, case) for name, case in CASES.items() if not args.cases or name in args.cases}
    bad = []
    for name, g in made.items():
        if g["float32_noise"]["max"] > 1e-5:
            bad.append(f"{name}: float32 noise {g['float32_noise']['max']}")
        if g["float64"]["losses"][0] - g["float64"]["losses"][-1] < 1:
            bad.append(f"{name}: the loss falls by less than 1 nat")
        if not any(x > g["optimizer"]["max_grad_norm"] for x in g["float64"]["grad_norms"]):
            bad.append(f"{name}: clipping never acts")
        bad += [f"{name}: {k} is hardly visible ({g['sensitivity'][k]['max']})" for k in REQUIRED
                if k in g["sensitivity"] and g["sensitivity"][k]["max"] < 5e-4]
    for line in bad:
        print("FAIL", line)
    if bad:
        return 1
    for name, g in made.items():
        with open(os.path.join(args.out, name + ".json"), "w") as out:
            json.dump(g, out, indent=1)
            out.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

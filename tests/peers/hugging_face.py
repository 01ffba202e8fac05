#!/usr/bin/env python3
"""Models of Hugging Face transformers through `lockstep convert` and back.

For every architecture that is known: a small model with weights by formula is saved by transformers (also in shards and in
bfloat16), imported, and made to go on from a prompt; the logits of each of its 64 cached steps are held against one forward pass of
transformers over the whole text. Then it is exported again, and transformers must load it and give the same logits.

    hugging_face.py LOCKSTEP                     compares, prints a line a case
    hugging_face.py LOCKSTEP --figures FILE      writes what tests/cli/convert_test.cpp holds the program to
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers

M64 = (1 << 64) - 1
PROMPT = [3, 41, 7, 19, 2, 23, 5, 11, 13, 17]

LLAMA = {"vocab_size": 45, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6,
         "num_key_value_heads": 2, "head_dim": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 96,
         "tie_word_embeddings": False, "hidden_act": "silu"}
SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
GPT2 = {"vocab_size": 45, "n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 96}

CASES = {
    "llama": ("llama", {**LLAMA, "rope_theta": 10000.0}),
    "llama_scaled_tied": ("llama", {**LLAMA, "rope_theta": 500000.0, "rope_scaling": SCALED, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {**LLAMA, "rope_theta": 1000000.0}),
    "qwen2": ("qwen2", {**LLAMA, "rope_theta": 1000000.0}),
    "mistral": ("mistral", {**LLAMA, "rope_theta": 10000.0, "sliding_window": 12}),
    "gpt2": ("gpt2", GPT2),
    "gpt2_erf": ("gpt2", {**GPT2, "n_inner": 56, "activation_function": "gelu"}),
}


def splitmix64(x):
    z = (x + 0x9E3779B97F4A7C15) & M64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def fnv1a64(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & M64
    return h


def values(name, shape):
    """Uniform in [-1, 1) by hashing, scaled: norms about 1, biases about 0, matrices by their last dimension."""
    start = fnv1a64(name)
    x = np.array([2 * ((splitmix64((start + i) & M64) >> 11) * 2.0**-53) - 1 for i in range(math.prod(shape))])
    if len(shape) == 1:
        x = 0.2 * x if name.endswith("bias") else 1 + 0.25 * x
    else:
        x = x * (1.5 / math.sqrt(shape[-1]))
    return torch.tensor(x.reshape(shape), dtype=torch.float32)


def make(kind, config):
    c = transformers.AutoConfig.for_model(kind, **config)
    c._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(c).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values(name, tuple(parameter.shape)))
    return model


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].double().numpy()


def run(lockstep, *arguments):
    done = subprocess.run([lockstep, *arguments, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"lockstep {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}{done.stdout}")
    return json.loads(done.stdout)


def generate(lockstep, checkpoint, folder, count, *more):
    file = os.path.join(folder, "logits.txt")
    out = run(lockstep, "sample", checkpoint, "--prompt-tokens", ",".join(map(str, PROMPT)), "--temperature", "0", "--max-tokens",
              str(count), "--logits", file, *more)
    return out["sequences"][0]["tokens"], np.loadtxt(file, ndmin=2)


def compare(lockstep, name, kind, config, folder):
    model = make(kind, config)
    there, here, back = (os.path.join(folder, name, d) for d in ("there", "here", "back"))
    model.save_pretrained(there, max_shard_size="9KB")
    run(lockstep, "convert", there, here)
    worst = 0.0
    for layout in ([], ["--parallelism.tensor_parallel_degree", "2"]):
        tokens, got = generate(lockstep, here, folder, 64, *layout)
        want = logits_of(model, PROMPT + tokens[:-1])[len(PROMPT) - 1:]
        worst = max(worst, np.abs(got - want).max())
    scale = np.abs(want).max()
    run(lockstep, "convert", here, back, "--shard-bytes", "9000")
    again = transformers.AutoModelForCausalLM.from_pretrained(back, attn_implementation="eager").float().eval()
    text = PROMPT + tokens
    exact = np.abs(logits_of(again, text) - logits_of(model, text)).max()
    half = os.path.join(folder, name, "half")
    model.to(torch.bfloat16).save_pretrained(half)
    rounded = transformers.AutoModelForCausalLM.from_pretrained(half, attn_implementation="eager").float().eval()
    run(lockstep, "convert", half, os.path.join(folder, name, "from_half"))
    tokens, got = generate(lockstep, os.path.join(folder, name, "from_half"), folder, 16)
    bf16 = np.abs(got - logits_of(rounded, PROMPT + tokens[:-1])[len(PROMPT) - 1:]).max()
    ok = worst < 1e-5 and exact == 0 and bf16 < 1e-5
    print(f"{name:18} logits up to {scale:.2f}, 64 cached steps differ by {worst:.2e}, of bfloat16 weights {bf16:.2e}, "
          f"exported again {exact:.2e}  {'ok' if ok else 'WRONG'}", flush=True)
    return ok


def figures(file):
    out = {"prompt": PROMPT, "made_with": {"torch": torch.__version__, "transformers": transformers.__version__}, "cases": {}}
    for name, (kind, config) in CASES.items():
        model = make(kind, config)
        tokens, rows = list(PROMPT), []
        for _ in range(8):
            rows.append(logits_of(model, tokens)[-1])
            tokens.append(int(rows[-1].argmax()))
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            saved = json.load(open(os.path.join(folder, "config.json")))
        shapes = {n: list(p.shape) for n, p in model.named_parameters()}
        out["cases"][name] = {"config": saved, "shapes": shapes, "tokens": tokens[len(PROMPT):],
                              "logits": [[float(f"{x:.9g}") for x in row] for row in rows]}
    with open(file, "w") as f:
        json.dump(out, f, indent=None, separators=(",", ":"))
        f.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--figures")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    if args.figures:
        return figures(args.figures)
    with tempfile.TemporaryDirectory() as folder:
        results = [compare(args.lockstep, name, kind, config, folder)
                   for name, (kind, config) in CASES.items() if args.only in name]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()

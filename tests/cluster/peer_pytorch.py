#!/usr/bin/env python3
"""One rank of FSDP2 or HSDP in PyTorch over gloo, started by mpirun on an emulated cluster; the first prints one JSON line.

The model of peers.py in float32, AdamW (fused), clipping to norm 1; a unit a layer, the rest in one."""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench" / "peers"))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from model import Attention, Layer, Model, SwiGlu

parser = argparse.ArgumentParser()
for name in ("dim", "layers", "heads", "ffn", "vocab", "seq", "replicate", "steps"):
    parser.add_argument(f"--{name}", type=int, required=True)
parser.add_argument("--microbatches", type=int, default=1)
parser.add_argument("--address", required=True, help="of the first host")
args = parser.parse_args()

rank, ranks = (int(os.environ[f"OMPI_COMM_WORLD_{x}"]) for x in ("RANK", "SIZE"))
os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR=args.address, MASTER_PORT="29517", GLOO_SOCKET_IFNAME="eth0")
torch.set_num_threads(1)
dist.init_process_group("gloo")

torch.manual_seed(0)
layers = [Layer(nn.RMSNorm, args.dim, Attention(args.dim, args.heads, args.seq, False, True), SwiGlu(args.dim, args.ffn)) for _ in range(args.layers)]
model = Model(nn.RMSNorm, args.dim, args.vocab, None, layers)
shape, names = ((args.replicate, ranks // args.replicate), ("replicate", "shard")) if args.replicate > 1 else ((ranks,), ("shard",))
mesh = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)
for layer in model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
tokens = torch.randint(0, args.vocab, (ranks, args.microbatches, 1, args.seq + 1))[rank]

times = []
for _ in range(args.steps + 2):
    dist.barrier()
    start = time.perf_counter()
    for part in tokens:
        loss = F.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten()) / args.microbatches
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()
    dist.barrier()
    times.append(time.perf_counter() - start)
if rank == 0:
    parameters = sum(p.numel() for p in model.parameters())
    print(json.dumps({"torch": torch.__version__, "parameters": parameters, "step_time_s": statistics.median(times[2:]), "loss": loss.item()}))
dist.destroy_process_group()

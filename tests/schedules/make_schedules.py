#!/usr/bin/env python3
"""Writes schedules.txt: the tables of torch.distributed.pipelining over a grid of (ranks, stages a rank, microbatches).

A case is a line `name ranks stages_per_rank microbatches`, then a line a rank as PyTorch's _dump_csv writes it, then
`in_flight`, the activation slots that PyTorch's liveness analysis gives to each stage, and an empty line. A case that PyTorch
refuses has the line `refused` instead. At the end, after `drawn name ranks stages_per_rank microbatches`, some tables as
PyTorch prints them, up to a line with a dot.

GPipe and 1F1B: the order in which _step_microbatches calls a stage, recorded from a stage that does nothing. Their
_get_pipeline_order has no idle cells either, but its 1F1B leaves out microbatch 0 of the last stage and, with fewer
microbatches than stages, runs ones that do not exist (so 1F1B's constructor refuses those; its step would run them).
The others: pipeline_order, idle cells included.
Run it with torch 2.15, without arguments: python3 make_schedules.py (20 seconds).
"""

import csv
import io
import logging
import os
import sys
import types
from unittest import mock

from torch.distributed.pipelining import schedules as S
from torch.distributed.pipelining.stage import PipelineStage

SINGLE = ["GPipe", "1F1B"]
MULTI = ["LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"]
GRID = [(ranks, chunks, microbatches) for ranks in (1, 2, 3, 4) for chunks in (1, 2, 3) for microbatches in (1, 2, 3, 5, 6, 8)]
GRID += [(4, 2, 10), (4, 2, 12), (8, 1, 16), (8, 2, 4), (8, 2, 8), (8, 2, 16)]
DRAWN = [("1F1B", 2, 1, 3), ("InterleavedZeroBubble", 2, 2, 4), ("ZBVZeroBubble", 3, 2, 2)]


def stage_of(ranks, chunks, index):
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.stage_index = index, ranks, index
    stage.num_stages, stage.submod, stage.is_last = ranks * chunks, None, False
    for ops in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
        setattr(stage, ops, lambda microbatch: [])
    return stage


def executed(name, ranks, microbatches):
    table = {}
    for rank in range(ranks):
        stage, row = stage_of(ranks, 1, rank), []
        stage.forward_one_chunk = lambda m, *a, r=row, s=rank, **k: r.append(S._Action(s, S.FORWARD, m))
        stage.backward_one_chunk = lambda m, *a, r=row, s=rank, **k: r.append(S._Action(s, S.FULL_BACKWARD, m))
        schedule = S.get_schedule_class(name)(stage, max(ranks, microbatches))
        schedule._n_microbatches = microbatches
        schedule._initialize_stage = lambda *a: None
        schedule._step_microbatches([()] * microbatches, [{}] * microbatches)
        table[rank] = row
    return table


def constructed(name, ranks, chunks, microbatches):
    stages = [stage_of(ranks, chunks, 0) for _ in range(chunks)]
    return S.get_schedule_class(name)(stages, microbatches)


def in_flight(table, stages, microbatches):
    schedule = types.SimpleNamespace(pipeline_order=table, _n_microbatches=microbatches)
    slots = {}
    for rank, row in table.items():
        for stage in sorted({a.stage_index for a in row if a is not None}):
            plan = S.analyze_pipeline_activation_liveness(
                schedule, pp_rank=rank, stage_indices=[stage], granularity="stage_microbatch")
            slots[stage] = plan.num_slots
    return [slots[s] for s in range(stages)]


def table_of(name, ranks, chunks, microbatches):
    if name in SINGLE:
        return executed(name, ranks, microbatches)
    return constructed(name, ranks, chunks, microbatches).pipeline_order


def write_case(out, name, ranks, chunks, microbatches):
    print(name, ranks, chunks, microbatches, file=out)
    try:
        table = table_of(name, ranks, chunks, microbatches)
    except ValueError:
        print("refused\n", file=out)
        return
    rows = io.StringIO()
    csv.writer(rows, lineterminator="\n").writerows(table[r] for r in range(ranks))
    out.write(rows.getvalue())
    print("in_flight", *in_flight(table, ranks * chunks, microbatches), file=out)
    print(file=out)


def main():
    logging.disable(logging.WARNING)
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "schedules.txt")
    with open(path, "w") as out:
        for ranks, chunks, microbatches in GRID:
            for name in SINGLE + MULTI:
                if (name in SINGLE and chunks != 1) or (name == "ZBVZeroBubble" and chunks != 2):
                    continue
                write_case(out, name, ranks, chunks, microbatches)
        for name, ranks, chunks, microbatches in DRAWN:
            print("drawn", name, ranks, chunks, microbatches, file=out)
            print(S._format_pipeline_order(table_of(name, ranks, chunks, microbatches)), end=".\n", file=out)


if __name__ == "__main__":
    main()

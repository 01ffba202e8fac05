"""Causal attention around a ring of ranks over gloo, as PyTorch's context parallelism does it: a rank has the pieces r and 2 n - 1 - r
of 2 n of a sequence, keys and values travel while a block is computed, and blocks are merged by their log-sums.
"""
import torch
import torch.distributed as dist

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def own_tokens(seq, rank, ranks):
    pieces = torch.arange(seq).chunk(2 * ranks)
    return torch.cat((pieces[rank], pieces[2 * ranks - 1 - rank]))


def travel(rank, ranks, tensors):  # to the next rank, from the one before: what arrives, and what to wait for
    arrive = [torch.empty_like(t) for t in tensors]
    operations = [dist.P2POp(dist.isend, t, (rank + 1) % ranks) for t in tensors]
    operations += [dist.P2POp(dist.irecv, t, (rank - 1) % ranks) for t in arrive]
    return arrive, dist.batch_isend_irecv(operations)


def wait(work):
    for w in work:
        w.wait()


def halves(rank, source, tokens):  # the queries and the keys that a block has, and whether it is the causal square
    if source == rank:
        return slice(0, tokens), slice(0, tokens), True
    if source < rank:
        return slice(0, tokens), slice(0, tokens // 2), False
    return slice(tokens // 2, tokens), slice(0, tokens), False


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):  # [batch, heads, tokens, head_dim]
        rank, ranks = dist.get_rank(), dist.get_world_size()
        q, here = q.contiguous(), [k.contiguous(), v.contiguous()]
        ctx.save_for_backward(q, *here)
        out, lse = torch.zeros_like(q), q.new_full(q.shape[:3], -torch.inf)
        for hop in range(ranks):
            if hop + 1 < ranks:
                arrive, work = travel(rank, ranks, here)
            rows, keys, square = halves(rank, (rank - hop) % ranks, q.shape[2])
            o, l = FORWARD(q[:, :, rows], here[0][:, :, keys], here[1][:, :, keys], 0.0, square)
            both = torch.logaddexp(lse[:, :, rows], l)
            out[:, :, rows] = out[:, :, rows] * (lse[:, :, rows] - both).exp()[..., None] + o * (l - both).exp()[..., None]
            lse[:, :, rows] = both
            if hop + 1 < ranks:
                wait(work)
                here = arrive
        ctx.results = out, lse
        return out

    @staticmethod
    def backward(ctx, d_out):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        (q, *here), (out, lse) = ctx.saved_tensors, ctx.results
        d_out, dq, sums = d_out.contiguous(), torch.zeros_like(q), [torch.zeros_like(t) for t in here]
        for hop in range(ranks):
            if hop + 1 < ranks:
                arrive, work = travel(rank, ranks, here)
            rows, keys, square = halves(rank, (rank - hop) % ranks, q.shape[2])
            gradients = BACKWARD(d_out[:, :, rows], q[:, :, rows], here[0][:, :, keys], here[1][:, :, keys], out[:, :, rows],
                                 lse[:, :, rows], 0.0, square)
            dq[:, :, rows] += gradients[0]
            for s, g in zip(sums, gradients[1:]):
                s[:, :, keys] += g
            if hop + 1 < ranks:
                wait(work)
                here = arrive
            sums, work = travel(rank, ranks, sums)  # behind their keys; the last time, home
            wait(work)
        return dq, *sums

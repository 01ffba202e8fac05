#include "passes/fuse_loss.h"

#include <algorithm>

#include "base/error.h"
#include "base/round.h"
#include "passes/parts.h"
#include "passes/splice.h"

namespace lockstep::passes {
namespace {

using ir::DimRole;
using ir::EntryKind;
using ir::Op;
using ir::Routine;
using ir::RoutineKind;
using ir::TensorId;

enum Part { Before, Chunk, After };

bool over_vocab(const Routine& r, const Op& op) {
    const ir::DimId vocab = r.dim(DimRole::Vocab);
    const auto has = [&](TensorId t) { return std::count(r.tensors[t].dims.begin(), r.tensors[t].dims.end(), vocab) > 0; };
    return std::any_of(op.in.begin(), op.in.end(), has) || std::any_of(op.out.begin(), op.out.end(), has);
}

// The chunk holds every op over vocab and those between two of them; before it comes what it needs, after it the rest.
std::vector<int> divide(const Routine& r) {
    const size_t n = r.ops.size();
    std::vector<bool> below(r.tensors.size(), false), above(r.tensors.size(), false);  // made from / needed by an op over vocab
    std::vector<bool> follows(n), precedes(n), vocab(n);
    for (size_t i = 0; i < n; ++i) {
        vocab[i] = over_vocab(r, r.ops[i]);
        follows[i] = std::any_of(r.ops[i].in.begin(), r.ops[i].in.end(), [&](TensorId t) { return below[t]; });
        for (TensorId t : r.ops[i].out) below[t] = below[t] || follows[i] || vocab[i];
    }
    for (size_t i = n; i-- > 0;) {
        precedes[i] = std::any_of(r.ops[i].out.begin(), r.ops[i].out.end(), [&](TensorId t) { return above[t]; });
        for (TensorId t : r.ops[i].in) above[t] = above[t] || precedes[i] || vocab[i];
    }
    std::vector<int> parts(n);
    for (size_t i = 0; i < n; ++i) {
        if (vocab[i] || (follows[i] && precedes[i])) parts[i] = Chunk;
        else parts[i] = precedes[i] ? Before : After;
    }
    return parts;
}

int64_t next_divisor(int64_t n, int64_t at_least) {
    int64_t d = std::clamp<int64_t>(at_least, 1, n);
    while (n % d != 0) ++d;
    return d;
}

// Shrinks batch and seq of the chunk routine. Slices must be contiguous, so seq is cut only where a slice holds one sequence.
void cut(const mesh::Mesh& mesh, Routine& r, const FuseLossOptions& options) {
    const ir::DimId batch = r.dim(DimRole::Batch), seq = r.dim(DimRole::Seq), vocab = r.dim(DimRole::Vocab);
    const ir::Tensor* logits = nullptr;
    for (const ir::Tensor& t : r.tensors) {
        if (t.dims == std::vector<ir::DimId>{batch, seq, vocab}) logits = &t;
    }
    ensure(logits, "fuse_loss: no logits [batch, seq, vocab]");
    for (const ir::Tensor& t : r.tensors) {
        if (t.dims.size() < 2 || t.dims[0] != batch || t.dims[1] != seq) continue;
        ensure(t.placement.dims[0] == logits->placement.dims[0] && t.placement.dims[1] == logits->placement.dims[1],
               "fuse_loss: " + t.name + " has another placement along its tokens than the logits");
    }
    const int64_t local_batch = ir::local_size(mesh, r, *logits, 0), local_seq = ir::local_size(mesh, r, *logits, 1);
    const int64_t want = ceil_div(local_batch * local_seq, options.chunk_tokens);
    const int64_t batch_cuts = next_divisor(local_batch, want);
    const int64_t seq_cuts = batch_cuts == local_batch ? next_divisor(local_seq, ceil_div(want, batch_cuts)) : 1;
    r.chunks = batch_cuts * seq_cuts;
    for (auto [dim, cuts] : {std::pair{batch, batch_cuts}, std::pair{seq, seq_cuts}}) {
        for (ir::Dim& d : r.dims) {  // and what is aligned with it
            if (&d != &r.dims[dim] && d.of != dim) continue;
            d.size /= cuts;
            d.valid = d.size;
        }
    }
}

std::vector<Routine> in_three(const mesh::Mesh& mesh, const Routine& whole, const std::vector<std::string>& names,
                              RoutineKind last, const FuseLossOptions& options) {
    const std::vector<int> parts = divide(whole);
    Routine without_ops = whole;
    without_ops.ops.clear();
    std::vector<Routine> out;
    const RoutineKind kinds[] = {RoutineKind::Forward, RoutineKind::Loss, last};
    for (int i = 0; i < 3; ++i) {
        Routine r = part_of(without_ops, whole.ops, parts, i, "");
        if (r.ops.empty()) continue;
        r.name = names[i];
        r.kind = kinds[i];
        if (kinds[i] == RoutineKind::Loss) cut(mesh, r, options);
        out.push_back(std::move(r));
    }
    return out;
}

}  // namespace

ir::Program fuse_loss(ir::Program program, const FuseLossOptions& options) {
    const std::string block = program.blocks.back().name;
    std::vector<Routine> out;
    for (const Routine& r : program.routines) {
        std::vector<Routine> made = {r};
        if (r.block == block && r.kind == RoutineKind::Backward) continue;
        if (r.block == block && r.entry == EntryKind::Train) {
            const Routine& backward = *program.routine(RoutineKind::Backward, block);
            const Routine joint = join_forward_and_backward(r, backward, Results::Keep, false);
            made = in_three(program.mesh, joint, {r.name, block + ".loss", backward.name}, RoutineKind::Backward, options);
        } else if (r.block == block && r.entry == EntryKind::Eval) {
            made = in_three(program.mesh, r, {r.name, block + ".eval.loss", block + ".eval.sum"}, RoutineKind::Forward, options);
        }
        for (Routine& m : made) out.push_back(std::move(m));
    }
    program.routines = std::move(out);
    return program;
}

}  // namespace lockstep::passes

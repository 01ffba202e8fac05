#include "passes/fuse_loss.h"

#include <algorithm>

#include "base/error.h"
#include "base/round.h"
#include "ops/builder.h"
#include "passes/splice.h"

namespace lockstep::passes {
namespace {

using ir::Access;
using ir::DimRole;
using ir::EntryKind;
using ir::Op;
using ir::PortKind;
using ir::Routine;
using ir::RoutineKind;
using ir::TensorId;

enum class Part { Before, Chunk, After };

bool over_vocab(const Routine& r, const Op& op) {
    const ir::DimId vocab = r.dim(DimRole::Vocab);
    const auto has = [&](TensorId t) { return std::count(r.tensors[t].dims.begin(), r.tensors[t].dims.end(), vocab) > 0; };
    return std::any_of(op.in.begin(), op.in.end(), has) || std::any_of(op.out.begin(), op.out.end(), has);
}

// The chunk holds every op over vocab and those between two of them; before it comes what it needs, after it the rest.
std::vector<Part> divide(const Routine& r) {
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
    std::vector<Part> parts(n);
    for (size_t i = 0; i < n; ++i) {
        if (vocab[i] || (follows[i] && precedes[i])) parts[i] = Part::Chunk;
        else parts[i] = precedes[i] ? Part::Before : Part::After;
    }
    return parts;
}

// The ops of one part as a routine of their own. What another part makes is read through a value port, what another part needs
// is written to one.
Routine extract(const Routine& whole, const std::vector<Part>& parts, Part part) {
    std::vector<bool> made_here(whole.tensors.size(), false), made_elsewhere = made_here, read_elsewhere = made_here,
                                                              read_here = made_here;
    for (size_t i = 0; i < parts.size(); ++i) {
        for (TensorId t : whole.ops[i].out) (parts[i] == part ? made_here : made_elsewhere)[t] = true;
        for (TensorId t : whole.ops[i].in) (parts[i] == part ? read_here : read_elsewhere)[t] = true;
    }
    Routine r = whole;
    r.ops.clear();
    for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i] == part) r.ops.push_back(whole.ops[i]);
    }
    for (size_t t = 0; t < r.tensors.size(); ++t) {
        ir::Tensor& tensor = r.tensors[t];
        const auto cross = [&](Access access) {
            tensor.port = static_cast<int>(r.ports.size());
            r.ports.push_back({tensor.name, PortKind::Value, access});
        };
        if (tensor.port < 0 && made_here[t] && read_elsewhere[t]) cross(Access::Write);
        if (tensor.port < 0 && made_elsewhere[t] && read_here[t]) cross(Access::Read);
        if (tensor.port >= 0 && !made_here[t] && !read_here[t]) tensor.port = -1;
    }
    std::erase_if(r.ops, [](const Op& op) { return op.out.empty(); });
    for (size_t p = 0; p < r.ports.size(); ++p) {
        if (!r.port_tensors(static_cast<int>(p)).empty()) continue;
        for (ir::Tensor& t : r.tensors) t.port -= t.port > static_cast<int>(p);
        r.ports.erase(r.ports.begin() + static_cast<long>(p--));
    }
    ops::renumber(r);
    return r;
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
               "fuse_loss: " + t.name + " stands otherwise than the logits along its tokens");
    }
    const int64_t local_batch = ir::local_size(mesh, r, *logits, 0), local_seq = ir::local_size(mesh, r, *logits, 1);
    const int64_t want = ceil_div(local_batch * local_seq, options.chunk_tokens);
    const int64_t batch_cuts = next_divisor(local_batch, want);
    const int64_t seq_cuts = batch_cuts == local_batch ? next_divisor(local_seq, ceil_div(want, batch_cuts)) : 1;
    r.chunks = batch_cuts * seq_cuts;
    for (auto [dim, cuts] : {std::pair{batch, batch_cuts}, std::pair{seq, seq_cuts}}) {
        r.dims[dim].size /= cuts;
        r.dims[dim].valid = r.dims[dim].size;
    }
}

std::vector<Routine> in_three(const mesh::Mesh& mesh, const Routine& whole, const std::vector<std::string>& names,
                              RoutineKind last, const FuseLossOptions& options) {
    const std::vector<Part> parts = divide(whole);
    std::vector<Routine> out;
    const RoutineKind kinds[] = {RoutineKind::Forward, RoutineKind::Loss, last};
    for (int i = 0; i < 3; ++i) {
        Routine r = extract(whole, parts, static_cast<Part>(i));
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

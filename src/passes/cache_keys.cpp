#include "passes/cache_keys.h"

#include <algorithm>
#include <map>

#include "ops/builder.h"

namespace lockstep::passes {
namespace {

using ir::Access;
using ir::Op;
using ir::PortKind;
using ir::Routine;
using ir::TensorId;

bool has_dim(const Routine& r, TensorId t, ir::DimId dim) {
    const std::vector<ir::DimId>& dims = r.tensors[t].dims;
    return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

// Keys and values of a block's instances; prefill and decode bind the same.
ir::StateId cache_of(ir::Program& program, const std::string& block, Dtype type) {
    for (size_t i = 0; i < program.states.size(); ++i) {
        if (program.states[i].role == ir::StateRole::Cache && program.states[i].block == block)
            return static_cast<ir::StateId>(i);
    }
    ir::State s;
    s.name = "cache", s.role = ir::StateRole::Cache, s.scope = ir::Scope::Entry;
    s.block = block, s.dtype = type, s.writer = ir::RoutineKind::Forward;
    return program.add(std::move(s));
}

// The renames of seq to kv_seq go: what they made is now in the cache, or is an input.
void use_cache(ir::Program& program, Routine& r) {
    ops::Builder b(r);
    const ir::DimId kv_seq = r.dim(ir::DimRole::KvSeq);
    const std::vector<Op> ops = std::move(r.ops);
    r.ops.clear();
    std::map<TensorId, TensorId> sources;  // result of a rename -> where it is read now
    for (Op op : ops) {
        for (TensorId& t : op.in) {
            if (const auto it = sources.find(t); it != sources.end()) t = it->second;
        }
        const bool renames = op.kind == ir::kRename && has_dim(r, op.out[0], kv_seq);
        if (!renames) {
            r.ops.push_back(std::move(op));
            continue;
        }
        const ir::Tensor made = r.tensors[op.out[0]];
        if (made.dtype == Dtype::I32) {  // positions or documents of the keys
            const bool positions = r.ports[r.tensors[op.in[0]].port].role == ir::PortRole::Positions;
            sources[op.out[0]] = b.port(positions ? ir::PortRole::KvPositions : ir::PortRole::KvDocuments, PortKind::Input,
                                        Access::Read, made.dims, Dtype::I32);
            continue;
        }
        const TensorId cache =
            b.port_tensor("cache", PortKind::State, Access::Update, "cache." + made.name, made.dims, made.name, made.dtype);
        r.ports[r.tensors[cache].port].state = cache_of(program, r.block, made.dtype);
        sources[op.out[0]] = cache;
        Op append;
        append.kind = ir::kAppend;
        append.in = {cache, op.in[0], r.port_tensors(r.port(ir::PortRole::Positions))[0]};
        append.out = {cache};
        r.ops.push_back(std::move(append));
    }
}

}  // namespace

ir::Program cache_keys(ir::Program program, const CacheKeysOptions& options) {
    const std::string last = program.blocks.back().name;
    std::erase_if(program.routines, [&](const Routine& r) { return r.entry == ir::EntryKind::Prefill && r.block == last; });
    for (Routine& r : program.routines) {
        if (r.entry != ir::EntryKind::Prefill && r.entry != ir::EntryKind::Decode) continue;
        ir::Dim& seq = r.dims[static_cast<size_t>(r.dim(ir::DimRole::Seq))];
        seq.size = seq.valid = r.entry == ir::EntryKind::Decode ? 1 : std::min(options.prefill_tokens, seq.size);
        use_cache(program, r);
    }
    return program;
}

}  // namespace lockstep::passes

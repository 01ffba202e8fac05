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

// The renames of seq to kv_seq go: what they made now stands in the cache, or is an input.
void use_cache(Routine& r) {
    ops::Builder b(r);
    const ir::DimId kv_seq = r.dim("kv_seq");
    const std::vector<Op> ops = std::move(r.ops);
    r.ops.clear();
    std::map<TensorId, TensorId> stands;  // result of a rename -> where it is read now
    for (Op op : ops) {
        for (TensorId& t : op.in) {
            if (const auto it = stands.find(t); it != stands.end()) t = it->second;
        }
        const bool renames = op.kind == "rename" && has_dim(r, op.out[0], kv_seq);
        if (!renames) {
            r.ops.push_back(std::move(op));
            continue;
        }
        const ir::Tensor made = r.tensors[op.out[0]];
        if (made.dtype == Dtype::I32) {  // positions or documents of the keys
            const std::string source = "kv_" + r.tensors[op.in[0]].source;
            stands[op.out[0]] = b.port_tensor(source, PortKind::Input, Access::Read, source, made.dims, source, Dtype::I32);
            continue;
        }
        const TensorId cache =
            b.port_tensor("cache", PortKind::State, Access::Update, "cache." + made.name, made.dims, made.name, made.dtype);
        stands[op.out[0]] = cache;
        Op append;
        append.kind = "append";
        append.in = {cache, op.in[0], r.find("pos")};
        append.out = {cache};
        r.ops.push_back(std::move(append));
    }
}

}  // namespace

ir::Program cache_keys(ir::Program program, const CacheKeysOptions& options) {
    const std::string last = program.blocks.back().name;
    std::erase_if(program.routines, [&](const Routine& r) { return r.entry == "prefill" && r.block == last; });
    for (Routine& r : program.routines) {
        if (r.entry != "prefill" && r.entry != "decode") continue;
        ir::Dim& seq = r.dims[static_cast<size_t>(r.dim("seq"))];
        seq.size = seq.valid = r.entry == "decode" ? 1 : std::min(options.prefill_tokens, seq.size);
        use_cache(r);
    }
    return program;
}

}  // namespace lockstep::passes
